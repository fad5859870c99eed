//! How sure a figure is: bootstrap intervals over samples, spread over seeds.

use serde::{Deserialize, Serialize};

use super::{ECE_BINS, Ece, Scored};
use crate::random::Random;

/// Redrawn streams behind a bootstrap interval.
const REDRAWS: usize = 100;

/// A 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// 2.5 % of the redrawn values lie below.
    pub low: f64,
    /// 2.5 % of the redrawn values lie above.
    pub high: f64,
}

/// Bootstrap intervals of top-1, ECE, NLL and Brier score: the samples drawn again with replacement.
pub fn bootstrap(scored: &[Scored], seed: u64) -> [Interval; 4] {
    let n = scored.len();
    if n == 0 {
        return [Interval::default(); 4];
    }
    let mut random = Random::new(seed);
    let mut redrawn: [Vec<f64>; 4] = std::array::from_fn(|_| Vec::with_capacity(REDRAWS));
    for _ in 0..REDRAWS {
        let mut ece = Ece::new(ECE_BINS);
        let (mut right, mut nll, mut brier) = (0u64, 0.0f64, 0.0f64);
        for _ in 0..n {
            let s = &scored[random.below(n)];
            right += u64::from(s.right);
            nll += s.nll as f64;
            brier += s.brier as f64;
            ece.push(s.confidence as f64, s.right);
        }
        let n = n as f64;
        for (values, value) in redrawn.iter_mut().zip([right as f64 / n, ece.value(), nll / n, brier / n]) {
            values.push(value);
        }
    }
    redrawn.map(|mut values| {
        values.sort_by(f64::total_cmp);
        let at = |q: f64| values[((values.len() - 1) as f64 * q).round() as usize];
        Interval { low: at(0.025), high: at(0.975) }
    })
}

/// Mean and standard deviation over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation (n − 1 in the denominator); 0 for a single value.
    pub sd: f64,
}

impl Spread {
    /// Of some values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Self { mean, sd: if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_mean_and_narrows_with_samples() {
        let scored = |n: usize| -> Vec<Scored> {
            let one = |i: usize| Scored { confidence: 0.7, right: i % 10 < 7, nll: 1.0, brier: 0.5 };
            (0..n).map(one).collect()
        };
        let [few, ..] = bootstrap(&scored(100), 1);
        let [many, ece, nll, _] = bootstrap(&scored(10_000), 1);
        assert!(few.low <= 0.7 && 0.7 <= few.high);
        assert!(many.high - many.low < 0.3 * (few.high - few.low));
        assert!((many.high - many.low - 2.0 * 1.96 * (0.21f64 / 1e4).sqrt()).abs() < 5e-3);
        assert_eq!(nll, Interval { low: 1.0, high: 1.0 });
        assert!(ece.low < 0.005);
        assert_eq!(bootstrap(&scored(100), 1)[0], few, "the seed decides");
    }

    #[test]
    fn spread_over_seeds() {
        assert_eq!(Spread::of([1.0, 3.0]), Spread { mean: 2.0, sd: 2f64.sqrt() });
        assert_eq!(Spread::of([1.0]), Spread { mean: 1.0, sd: 0.0 });
    }
}
