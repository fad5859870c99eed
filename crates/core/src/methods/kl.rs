//! The KL guard: how far a class prior π may move away from its start π⁰.

/// KL(p‖q) in nats.
pub(crate) fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| if *p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum::<f64>().max(0.0)
}

/// Mixes `prior` back towards `start` so that KL(prior‖start) ≤ `most`: the result is
/// `share · prior + (1 − share) · start` with the largest share that satisfies the bound.
pub(crate) fn cap_kl(prior: &mut [f64], start: &[f64], most: f64) {
    if kl(prior, start) <= most {
        return;
    }
    let mixed = |share: f64| -> Vec<f64> {
        prior.iter().zip(start).map(|(p, s)| share * p + (1.0 - share) * s).collect()
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if kl(&mixed(middle), start) <= most {
            low = middle;
        } else {
            high = middle;
        }
    }
    let capped = mixed(low);
    prior.copy_from_slice(&capped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_takes_the_largest_share() {
        let start = [0.25; 4];
        let mut prior = [0.7, 0.1, 0.1, 0.1];
        cap_kl(&mut prior, &start, 0.07);
        assert!((kl(&prior, &start) - 0.07).abs() < 1e-9);
        let mut loose = [0.26, 0.25, 0.25, 0.24];
        cap_kl(&mut loose, &start, 0.07);
        assert_eq!(loose, [0.26, 0.25, 0.25, 0.24]);
        let mut none = [0.7, 0.1, 0.1, 0.1];
        cap_kl(&mut none, &start, 0.0);
        assert!(none.iter().all(|p| (p - 0.25).abs() < 1e-6));
    }
}
