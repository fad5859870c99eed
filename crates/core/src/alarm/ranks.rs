//! [`Ranks`]: where a number stands among all numbers before it, as a number from −1 to 1.
//!
//! If the numbers come in an exchangeable order (shuffled, say), the rank of each among those so far is uniform and
//! independent of the earlier ranks, whatever their distribution. The numbers before are kept as counts in fixed bins,
//! so memory is flat; within a bin the rank is drawn at random, which keeps it exactly uniform.

use crate::kernels::vectorised;
use crate::{Error, Result, State};

/// Bins beyond the smallest and the largest of the first numbers, on each side, each twice as wide as the one before.
const OUTER: usize = 8;

/// The most bins there can be.
pub(super) const MOST_BINS: usize = super::numbers::FIRST + 2 * OUTER + 1;

/// Counts of all numbers so far, in bins.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ranks {
    /// Ascending.
    edges: Vec<f64>,
    /// One more than edges.
    counts: Vec<u64>,
    n: u64,
}

impl Ranks {
    /// Bins that fit these numbers; none is counted yet.
    pub(super) fn fitting(numbers: impl Iterator<Item = f64>) -> Self {
        let mut edges: Vec<f64> = numbers.collect();
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup();
        if let (Some(&low), Some(&high)) = (edges.first(), edges.last()) {
            let mut step = (high - low).max(1e-6) / 8.0;
            for _ in 0..OUTER {
                edges.insert(0, edges[0] - step);
                edges.push(edges[edges.len() - 1] + step);
                step *= 2.0;
            }
        }
        Self { counts: vec![0; edges.len() + 1], edges, n: 0 }
    }

    /// Takes in a number and returns its rank among all so far: −1 is the smallest, 1 the largest. `chance`, from 0 to 1,
    /// decides within a bin.
    pub(super) fn push(&mut self, number: f64, chance: f64) -> f64 {
        // Edges ascend: all that are not above the number come first. One pass over some 80 bins takes less time than a search.
        let (bin, below) = vectorised(
            #[inline(always)]
            || {
                let passed = |(&edge, &count): (&f64, &u64)| if edge <= number { [1, count] } else { [0, 0] };
                let passed = self.edges.iter().zip(&self.counts).map(passed);
                passed.fold((0, 0), |(bins, below), [bin, count]| (bins + bin, below + count))
            },
        );
        let bin = bin as usize;
        self.counts[bin] += 1;
        self.n += 1;
        2.0 * (below as f64 + chance * self.counts[bin] as f64) / self.n as f64 - 1.0
    }

    /// Numbers so far.
    pub(super) fn n(&self) -> u64 {
        self.n
    }

    pub(super) fn save(&self, name: &str, state: &mut State) {
        state.put(format!("{name}.edges"), &self.edges);
        state.put(format!("{name}.counts"), &self.counts);
    }

    pub(super) fn load(name: &str, state: &State) -> Result<Self> {
        let key = format!("{name}.edges");
        let edges = state.get::<f64>(&key)?;
        if edges.len() >= MOST_BINS || edges.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(Error::state(format!("{key} holds bins that are not possible")));
        }
        let key = format!("{name}.counts");
        // Before there are bins there are no counts.
        let bins = if state.get::<u64>(&key)?.is_empty() { edges.len() } else { edges.len() + 1 };
        let counts = state.get_n::<u64>(&key, bins)?.to_vec();
        if counts.iter().any(|&count| count > 1 << 48) {
            return Err(Error::state(format!("{key} holds a count beyond {}", 1u64 << 48)));
        }
        Ok(Self { edges: edges.to_vec(), n: counts.iter().sum(), counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::chance;

    #[test]
    fn ranks_of_any_distribution_are_uniform() {
        for shape in [|u: f64| u, |u: f64| u.powi(8), |u: f64| (4.0 * u).floor()] {
            let number = |i: u64| shape(chance(i, 1));
            let mut ranks = Ranks::fitting((0..64).map(number));
            let mut bins = [0u32; 10];
            for i in 64..20_064 {
                let rank = ranks.push(number(i), chance(i, 2));
                bins[((rank + 1.0) * 5.0).min(9.0) as usize] += 1;
            }
            // 2,000 are expected in each; four deviations are 170.
            assert!(bins.iter().all(|n| (1830..2170).contains(n)), "{bins:?}");
        }
    }

    #[test]
    fn numbers_beyond_all_others_have_the_highest_rank() {
        let mut ranks = Ranks::fitting((0..64).map(f64::from));
        for i in 0..1000u64 {
            ranks.push((i % 64) as f64, chance(i, 3));
        }
        assert!(ranks.push(1e9, 0.5) > 0.998 && ranks.push(-1e9, 0.5) < -0.998);
        assert_eq!(ranks.n(), 1002);
    }
}
