//! Notices that the rows have come to look unlike those before: a covered lens, noise, the lens uncovered again, dusk.
//!
//! Two numbers of a row tell: the mean of its frozen logits, and the logarithm of their spread. Over the first rows of
//! scenes each is tracked twice, with a short and a long half-life. If the short mean leaves the long one, or the
//! short deviation is much larger or smaller than the long one, by a factor r (`advanced.restart_at`), then what was
//! learnt belongs to another stream, and the method *restarts*: zero-shot answers first, and learning anew.
//!
//! ```text
//! |m₁₆ − m₂₅₆| > r σ₂₅₆      σ₁₆ > r σ₂₅₆      σ₁₆ < σ₂₅₆ / r      |m₁₆ − m₂₅₆| > r max(σ₁₆, σ₂₅₆ / 2)
//! ```
//!
//! Where classes come in runs, every new class looks like a small change. So the numbers are tracked once more *within
//! classes*: as they differ from their mean over the last scenes that the frozen model named alike. Within classes a change
//! stands out, and a smaller one is enough:
//!
//! ```text
//! |m₁₆ − m₂₅₆| > 0.38 r σ₂₅₆
//! ```

use crate::{Result, State};

/// Short and long half-life, in scenes.
const HALF_LIVES: [f64; 2] = [16.0, 256.0];

/// Scenes before the first judgement.
const MIN_SCENES: f64 = 64.0;

/// Half-life of the means of a class, in scenes of that class.
const CLASS_HALF_LIFE: f64 = 64.0;

/// Scenes that a class needs before it is compared.
const CLASS_SCENES: f64 = 8.0;

/// Share of r that is enough within classes.
const WITHIN: f64 = 0.38;

/// What is watched.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Watch {
    all: Tracks,
    within: Tracks,
    /// Decayed number of scenes of each class, and sums of the two numbers.
    classes: Vec<[f64; 3]>,
}

/// Decayed n, Σx and Σx² of both numbers, under both half-lives; and scenes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tracks {
    sums: [[[f64; 3]; 2]; 2],
    scenes: f64,
}

impl Tracks {
    fn after(mut self, numbers: [f64; 2]) -> Self {
        self.scenes += 1.0;
        for (track, half_life) in self.sums.iter_mut().zip(HALF_LIVES) {
            let fade = 0.5f64.powf(1.0 / half_life);
            for ([n, sum, squares], x) in track.iter_mut().zip(numbers) {
                (*n, *sum, *squares) = (*n * fade + 1.0, *sum * fade + x, *squares * fade + x * x);
            }
        }
        self
    }

    /// Whether one of the numbers has changed, by the gap of its means and its short and long deviation.
    fn changed(&self, sign: impl Fn(f64, f64, f64) -> bool) -> bool {
        self.scenes >= MIN_SCENES
            && (0..2).any(|number| {
                let [short, long] = [0, 1].map(|track| {
                    let [n, sum, squares] = self.sums[track][number];
                    let mean = sum / n;
                    (mean, (squares / n - mean * mean).max(1e-8).sqrt())
                });
                sign((short.0 - long.0).abs(), short.1, long.1)
            })
    }
}

impl Watch {
    pub(super) fn new(classes: usize) -> Self {
        Self { all: Tracks::default(), within: Tracks::default(), classes: vec![[0.0; 3]; classes] }
    }

    /// Whether the stream has changed with one more scene, whose first row has logits with this mean and centred mean
    /// square, and this best class; and the tracks after it.
    fn look(&self, numbers: [f64; 2], label: usize, restart_at: f64) -> (bool, [Tracks; 2]) {
        let all = self.all.after(numbers);
        let [n, first, second] = self.classes[label];
        let within = if n < CLASS_SCENES {
            self.within
        } else {
            self.within.after([numbers[0] - first / n, numbers[1] - second / n])
        };
        let r = restart_at;
        let changed = all.changed(|gap, short, long| {
            gap > r * long || short > r * long || short < long / r || gap > r * short.max(0.5 * long)
        });
        let changed = changed || within.changed(|gap, _, long| gap > WITHIN * r * long);
        (changed, [all, within])
    }

    /// Whether a scene would be a change. Nothing moves.
    pub(super) fn would_change(&self, moments: (f32, f64), label: usize, restart_at: f64) -> bool {
        self.look(numbers(moments), label, restart_at).0
    }

    /// Takes in a scene. `true` if the stream has changed; the watch starts again then.
    pub(super) fn push(&mut self, moments: (f32, f64), label: usize, restart_at: f64) -> bool {
        let numbers = numbers(moments);
        let (changed, tracks) = self.look(numbers, label, restart_at);
        if changed {
            *self = Self::new(self.classes.len());
            return true;
        }
        [self.all, self.within] = tracks;
        let fade = 0.5f64.powf(1.0 / CLASS_HALF_LIFE);
        let class = &mut self.classes[label];
        *class = [class[0] * fade + 1.0, class[1] * fade + numbers[0], class[2] * fade + numbers[1]];
        false
    }

    pub(super) fn bytes(&self) -> usize {
        24 * self.classes.len()
    }

    pub(super) fn save(&self, state: &mut State) {
        let tracks = [self.all, self.within];
        state.put("local.watch", tracks.map(|t| t.sums).as_flattened().as_flattened().as_flattened());
        state.put("local.watch.scenes", &tracks.map(|t| t.scenes));
        state.put("local.watch.classes", self.classes.as_flattened());
    }

    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        let values = state.within::<f64>("local.watch", 24, -1e18..=1e18)?.as_chunks::<3>().0;
        let scenes = state.within::<f64>("local.watch.scenes", 2, 0.0..=1e18)?;
        for ((tracks, values), &scenes) in
            [&mut self.all, &mut self.within].into_iter().zip(values.chunks(4)).zip(scenes)
        {
            tracks.sums.as_flattened_mut().copy_from_slice(values);
            tracks.scenes = scenes;
        }
        let len = 3 * self.classes.len();
        let classes = state.within::<f64>("local.watch.classes", len, -1e18..=1e18)?;
        self.classes.copy_from_slice(classes.as_chunks().0);
        Ok(())
    }
}

fn numbers((mean, square): (f32, f64)) -> [f64; 2] {
    [mean as f64, 0.5 * (square + 1e-9).ln()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(watch: &mut Watch, rows: impl Iterator<Item = (f32, f64)>) -> usize {
        rows.filter(|&row| {
            let foreseen = watch.would_change(row, 0, 4.0);
            let changed = watch.push(row, 0, 4.0);
            assert_eq!(foreseen, changed);
            changed
        })
        .count()
    }

    #[test]
    fn a_steady_stream_never_restarts_and_another_one_does_once() {
        let mut watch = Watch::new(1);
        let steady =
            |offset: f32| (0..500).map(move |i| (offset + (i % 7) as f32 * 0.3, 4.0 + (i % 5) as f64));
        assert_eq!(run(&mut watch, steady(0.0)), 0);
        assert_eq!(run(&mut watch, steady(20.0)), 1, "and the new stream is steady");
        assert_eq!(run(&mut watch, (0..100).map(|_| (20.0, 5.0))), 1, "rows that are all alike");
    }

    #[test]
    fn nothing_is_judged_before_there_is_something_to_compare_with() {
        let mut watch = Watch::new(1);
        assert_eq!(run(&mut watch, (0..63).map(|i| (if i < 32 { 0.0 } else { 50.0 }, 1.0))), 0);
    }

    /// Rows of two classes that differ by six: classes that come in runs are no change, all of them moving by four is.
    #[test]
    fn a_change_within_classes_is_seen_and_a_run_is_not() {
        let row = |class: usize, i: usize, offset: f32| (6.0 * class as f32 + offset + (i % 5) as f32, 4.0);
        let mut watch = Watch::new(2);
        let mut changes = |rows: &mut dyn Iterator<Item = (usize, (f32, f64))>| {
            rows.filter(|&(class, row)| watch.push(row, class, 3.0)).count()
        };
        assert_eq!(changes(&mut (0..600).map(|i| (i % 2, row(i % 2, i, 0.0)))), 0);
        assert_eq!(changes(&mut (0..400).map(|i| (i / 100 % 2, row(i / 100 % 2, i, 0.0)))), 0, "runs");
        assert_eq!(changes(&mut (0..400).map(|i| (i % 2, row(i % 2, i, 4.0)))), 1);
    }
}
