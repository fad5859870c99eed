//! [`Pace`]: how many scenes are worth one independent scene. Scenes of a real stream resemble those just before, so the
//! mean of n ranks scatters as if there were only n / pace of them. The pace is measured from the ranks themselves:
//!
//! ```text
//! pace = max over k of  Var(sum of 2ᵏ ranks) / (2ᵏ Var(rank))      Var(rank) = 1/3
//! ```
//!
//! over all lengths of blocks of which there are enough. The largest of them counts, so chance makes the pace too large
//! rather than too small.

use crate::{Error, Result, State};

/// Lengths of blocks: 1, 2, 4, …, 4096 scenes.
const LEVELS: usize = 13;

/// The first lengths, whose pace changes with nearly every scene.
const SHORT: usize = 2;

/// Blocks of a length before it counts.
const MIN_BLOCKS: u64 = 8;

/// Sums of squares of blocks of ranks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    levels: [Level; LEVELS],
    /// The largest pace of the lengths that rarely end a block: all but the first [`SHORT`].
    of_long: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Level {
    blocks: u64,
    /// Σ of squared sums of whole blocks.
    squares: f64,
    /// A block that waits for its neighbour, to make one of twice the length.
    waits: Option<f64>,
    /// The pace by this length.
    pace: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { levels: [Level::default(); LEVELS], of_long: 0.0 }
    }
}

impl Pace {
    pub(super) fn push(&mut self, rank: f64) {
        let mut sum = rank;
        for (k, level) in self.levels.iter_mut().enumerate() {
            level.blocks += 1;
            level.squares += sum * sum;
            level.measure(k);
            match level.waits.take() {
                Some(other) => sum += other,
                None => {
                    level.waits = Some(sum);
                    if k >= SHORT {
                        self.compare_long();
                    }
                    return;
                }
            }
        }
        self.compare_long();
    }

    fn compare_long(&mut self) {
        self.of_long = largest(&self.levels[SHORT..], 0.0);
    }

    /// The pace, at least 1.
    pub(super) fn scenes(&self) -> f64 {
        largest(&self.levels[..SHORT], self.of_long.max(1.0))
    }

    pub(super) fn save(&self, name: &str, state: &mut State) {
        let blocks: Vec<u64> =
            self.levels.iter().flat_map(|l| [l.blocks, u64::from(l.waits.is_some())]).collect();
        let sums: Vec<f64> = self.levels.iter().flat_map(|l| [l.squares, l.waits.unwrap_or(0.0)]).collect();
        state.put(format!("{name}.blocks"), &blocks);
        state.put(format!("{name}.block_sums"), &sums);
    }

    pub(super) fn load(name: &str, state: &State) -> Result<Self> {
        let counts: [u64; 2 * LEVELS] = state.counts(&format!("{name}.blocks"))?;
        let key = format!("{name}.block_sums");
        let sums = state.within::<f64>(&key, 2 * LEVELS, -1e18..=1e18)?;
        let mut pace = Self::default();
        for (k, level) in pace.levels.iter_mut().enumerate() {
            let (blocks, waits) = (counts[2 * k], counts[2 * k + 1] != 0);
            let (squares, sum, length) = (sums[2 * k], sums[2 * k + 1], (1u64 << k) as f64);
            if !(0.0..=1.001 * blocks as f64 * length * length + 1e-9).contains(&squares)
                || sum.abs() > 1.001 * length
            {
                return Err(Error::state(format!("{key} holds sums that {blocks} blocks cannot have")));
            }
            *level = Level { blocks, squares, waits: waits.then_some(sum), pace: 0.0 };
            level.measure(k);
        }
        pace.compare_long();
        Ok(pace)
    }
}

/// The largest pace, at least this much.
fn largest(levels: &[Level], least: f64) -> f64 {
    levels.iter().map(|level| level.pace).fold(least, f64::max)
}

impl Level {
    fn measure(&mut self, k: usize) {
        if self.blocks >= MIN_BLOCKS {
            self.pace = 3.0 * self.squares / (self.blocks as f64 * (1u64 << k) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::chance;

    #[test]
    fn independent_ranks_have_a_pace_near_one_and_held_ones_that_of_their_runs() {
        for (run, low, high) in [(1, 1.0, 1.6), (8, 7.0, 13.0), (64, 55.0, 110.0)] {
            let mut pace = Pace::default();
            (0..40_000u64).for_each(|i| pace.push(2.0 * chance(i / run, 5) - 1.0));
            assert!((low..high).contains(&pace.scenes()), "runs of {run}: {}", pace.scenes());
        }
    }
}
