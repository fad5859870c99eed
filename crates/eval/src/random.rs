//! Seeded random numbers that never change, on any machine or in any version: a seed stands for a stream.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `n`. The multiplication maps 64 random bits onto it; its bias is below 2⁻³².
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// The logarithm of a gamma variate of unit scale (Marsaglia and Tsang, 2000). The logarithm, because for a
    /// shape of 0.001 the value itself underflows.
    pub fn log_gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // Γ(a) = Γ(a + 1) · U^(1/a)
            return self.log_gamma(shape + 1.0) + (1.0 - self.uniform()).ln() / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.uniform()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln();
            }
        }
    }

    /// A draw from the symmetric Dirichlet distribution over `n` shares.
    pub fn dirichlet(&mut self, concentration: f64, n: usize) -> Vec<f64> {
        let logs: Vec<f64> = (0..n).map(|_| self.log_gamma(concentration)).collect();
        let best = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = logs.iter().map(|l| (l - best).exp()).collect();
        let sum: f64 = shares.iter().sum();
        shares.into_iter().map(|s| s / sum).collect()
    }

    /// Fisher–Yates from the end.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i + 1);
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_fixed_by_their_seed() {
        // This exact number must never change.
        assert_eq!(Random::new(0).bits(), 0xe220_a839_7b1d_cdaf);
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }

    #[test]
    fn moments_are_right() {
        let mut random = Random::new(2);
        let n = 20_000;
        let mean = |f: &mut dyn FnMut() -> f64| (0..n).map(|_| f()).sum::<f64>() / n as f64;
        assert!((mean(&mut || random.uniform()) - 0.5).abs() < 0.01);
        assert!(mean(&mut || random.normal()).abs() < 0.03);
        for shape in [0.3, 1.0, 4.0] {
            assert!((mean(&mut || random.log_gamma(shape).exp()) / shape - 1.0).abs() < 0.05, "{shape}");
        }
        let shares = random.dirichlet(0.001, 10);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares.iter().any(|&s| s > 0.9));
    }
}
