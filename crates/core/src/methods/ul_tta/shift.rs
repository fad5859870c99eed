//! Notices that the rows have come to look unlike those before: a covered lens, noise, the lens uncovered again.
//!
//! Two numbers of a row tell: the mean of its frozen logits, and the logarithm of their spread. Over the first rows of
//! scenes each is tracked twice, with a short and a long half-life. If the short mean leaves the long one, or the
//! short deviation is much larger or smaller than the long one, by a factor r (`advanced.restart_at`), then what was
//! learnt belongs to another stream, and the method *restarts*: zero-shot answers first, and learning anew.
//!
//! ```text
//! |m₁₆ − m₂₅₆| > r σ₂₅₆      σ₁₆ > r σ₂₅₆      σ₁₆ < σ₂₅₆ / r      |m₁₆ − m₂₅₆| > r max(σ₁₆, σ₂₅₆ / 2)
//! ```

use crate::{Result, State};

/// Short and long half-life, in scenes.
const HALF_LIVES: [f64; 2] = [16.0, 256.0];

/// Scenes before the first judgement.
const MIN_SCENES: f64 = 64.0;

/// Decayed n, Σx and Σx² of both numbers, under both half-lives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Watch {
    tracks: [[[f64; 3]; 2]; 2],
    scenes: f64,
}

impl Watch {
    /// The watch after one more scene, whose first row has logits with this mean and centred mean square; and whether
    /// the stream has changed, in which case the watch starts again.
    pub(super) fn after(mut self, (mean, square): (f32, f64), restart_at: f64) -> (Self, bool) {
        let numbers = [mean as f64, 0.5 * (square + 1e-9).ln()];
        self.scenes += 1.0;
        for (track, half_life) in self.tracks.iter_mut().zip(HALF_LIVES) {
            let fade = 0.5f64.powf(1.0 / half_life);
            for ([n, sum, squares], x) in track.iter_mut().zip(numbers) {
                (*n, *sum, *squares) = (*n * fade + 1.0, *sum * fade + x, *squares * fade + x * x);
            }
        }
        if self.scenes < MIN_SCENES || !(0..2).any(|i| self.has_changed(i, restart_at)) {
            return (self, false);
        }
        (Self::default(), true)
    }

    fn has_changed(&self, number: usize, k: f64) -> bool {
        let [short, long] = [0, 1].map(|track| {
            let [n, sum, squares] = self.tracks[track][number];
            let mean = sum / n;
            (mean, (squares / n - mean * mean).max(1e-8).sqrt())
        });
        let gap = (short.0 - long.0).abs();
        gap > k * long.1
            || short.1 > k * long.1
            || short.1 < long.1 / k
            || gap > k * short.1.max(0.5 * long.1)
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("local.watch", self.tracks.as_flattened().as_flattened());
        state.put("local.watch.scenes", &[self.scenes]);
    }

    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        let values = state.within::<f64>("local.watch", 12, -1e18..=1e18)?;
        for (into, from) in self.tracks.as_flattened_mut().iter_mut().zip(values.as_chunks::<3>().0) {
            *into = *from;
        }
        self.scenes = state.within::<f64>("local.watch.scenes", 1, 0.0..=1e18)?[0];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(watch: &mut Watch, rows: impl Iterator<Item = (f32, f64)>) -> usize {
        rows.filter(|&row| {
            let (next, changed) = watch.after(row, 4.0);
            *watch = next;
            changed
        })
        .count()
    }

    #[test]
    fn a_steady_stream_never_restarts_and_another_one_does_once() {
        let mut watch = Watch::default();
        let steady =
            |offset: f32| (0..500).map(move |i| (offset + (i % 7) as f32 * 0.3, 4.0 + (i % 5) as f64));
        assert_eq!(run(&mut watch, steady(0.0)), 0);
        assert_eq!(run(&mut watch, steady(20.0)), 1, "and the new stream is steady");
        assert_eq!(run(&mut watch, (0..100).map(|_| (20.0, 5.0))), 1, "rows that are all alike");
    }

    #[test]
    fn nothing_is_judged_before_there_is_something_to_compare_with() {
        let mut watch = Watch::default();
        assert_eq!(run(&mut watch, (0..63).map(|i| (if i < 32 { 0.0 } else { 50.0 }, 1.0))), 0);
    }
}
