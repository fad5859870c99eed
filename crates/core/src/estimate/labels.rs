//! Labels that come later, in estimates of accuracy: many answers corrected by few labels.
//!
//! *Prediction-powered*: with labels for n of N answers, right or wrong y and emitted probability p, the accuracy is
//!
//! ```text
//! n/N · mean(y) + (1 − n/N) · (w · mean(p of the others) + mean(y − w p))
//! ```
//!
//! It is valid whatever p is, if the labelled answers are a fair draw; the weight w is chosen for the least variance, so that
//! probabilities that tell nothing are not used. The variance of mean(y − w p) is summed over scenes. Answers behind the newest
//! labelled one may be right more often or less, by the systematic deviation. The estimate without labels joins in by what its errors are
//! like on datasets that nothing was fitted on: mostly small, at times large ([`joined`]). Labels that say nearly the same hardly move it, for they
//! scatter more than it errs; labels that say something else by more than their scatter are believed.

use std::collections::VecDeque;

use super::EstimateRow;
use crate::{Error, Result, State};

/// Answers that a label can still correct the estimate for.
const REMEMBERED: usize = 16_384;

/// Marks an answer that needs no label: it has had one, or belongs to no class.
const NONE: u32 = u32::MAX;

/// Labels that the choice w = 1 is worth, times the usual variance of probabilities.
const WEIGHT_HOLD: f64 = 0.25;

/// Labels that the usual variance of y − w p is worth, and that variance: as if two more labels were wrong and two right.
const VARIANCE_HOLD: (f64, f64) = (4.0, 0.5);

/// An answer that a label may come for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Remembered {
    /// Class answered, and the frozen model's; [`NONE`] where no label is needed.
    named: [u32; 2],
    /// Their emitted probabilities.
    probs: [f32; 2],
    scene: u64,
}

/// Sums over the labelled answers of scenes: with m labels in a scene, y of them right and p the sum of probabilities,
/// Σm, Σy, Σp, Σy², Σyp, Σp², Σmy, Σmp, Σm².
type Sums = [f64; 9];

/// The labels of one scene.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cluster {
    scene: u64,
    labels: f64,
    right: [f64; 2],
    probs: [f64; 2],
}

impl Cluster {
    fn add_to(&self, sums: &mut [Sums; 2], weight: f64) {
        let m = self.labels;
        for (side, sums) in sums.iter_mut().enumerate() {
            let (y, p) = (self.right[side], self.probs[side]);
            for (sum, value) in sums.iter_mut().zip([m, y, p, y * y, y * p, p * p, m * y, m * p, m * m]) {
                *sum += weight * value;
            }
        }
    }
}

/// Labels so far, and the answers that more may come for.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels {
    /// The last answers, oldest first; ids count on.
    answers: VecDeque<Remembered>,
    /// Id behind the newest answer.
    next_id: u64,
    taken: u64,
    /// Id behind the newest answer that has a label.
    labelled_to: u64,
    /// Scenes with labels, but for the last one.
    whole: [Sums; 2],
    recent: [Sums; 2],
    /// Scene up to which `recent` has faded.
    faded_to: u64,
    last: Cluster,
}

impl Labels {
    pub(super) fn remember(&mut self, row: &EstimateRow<'_>, probs: [f64; 2], scene: u64) {
        if row.id != self.next_id {
            self.answers.clear();
        }
        if self.answers.len() == REMEMBERED {
            self.answers.pop_front();
        }
        let named = if row.unknown { [NONE; 2] } else { [row.label as u32, row.frozen_label as u32] };
        self.answers.push_back(Remembered { named, probs: probs.map(|p| p as f32), scene });
        self.next_id = row.id + 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.taken
    }

    pub(super) fn take(&mut self, id: u64, label: usize, scenes: u64, half_life: f64) {
        let first = self.next_id - self.answers.len() as u64;
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(answer) = place.and_then(|place| self.answers.get_mut(place)) else { return };
        if answer.named[0] == NONE {
            return;
        }
        let (named, probs, scene) = (answer.named, answer.probs, answer.scene);
        answer.named = [NONE; 2];
        self.labelled_to = self.labelled_to.max(id + 1);
        if self.last.labels > 0.0 && self.last.scene != scene {
            let ended = std::mem::take(&mut self.last);
            ended.add_to(&mut self.whole, 1.0);
            let keep = fade(scenes - self.faded_to.min(scenes), half_life);
            self.recent.as_flattened_mut().iter_mut().for_each(|sum| *sum *= keep);
            self.faded_to = scenes;
            ended.add_to(&mut self.recent, fade(scenes - ended.scene.min(scenes), half_life));
        }
        self.last.scene = scene;
        self.last.labels += 1.0;
        for side in 0..2 {
            self.last.right[side] += f64::from(u8::from(named[side] as usize == label));
            self.last.probs[side] += f64::from(probs[side]);
        }
        self.taken += 1;
    }

    /// What the labels say of one side: the accuracy over `rows` answers whose mean probability is `mean`, and its
    /// variance. `None` without labels.
    pub(super) fn told(
        &self,
        side: usize,
        mean: f64,
        rows: f64,
        scenes: u64,
        recent: bool,
    ) -> Option<(f64, f64)> {
        let mut sums = if recent { self.recent } else { self.whole };
        let mut weight = 1.0;
        if recent {
            let keep = fade(scenes - self.faded_to.min(scenes), super::RECENT);
            sums.as_flattened_mut().iter_mut().for_each(|sum| *sum *= keep);
            weight = fade(scenes - self.last.scene.min(scenes), super::RECENT);
        }
        self.last.add_to(&mut sums, weight);
        let (told, variance) = rectified(&sums[side], mean, rows)?;
        let late = (self.next_id.saturating_sub(self.labelled_to) as f64 / rows.max(1.0)).min(1.0);
        Some((told, variance + (late * super::SYSTEMATIC[side]).powi(2)))
    }

    /// Bytes that the answers take when all are there.
    pub(super) fn bytes() -> usize {
        REMEMBERED * size_of::<Remembered>()
    }

    pub(super) fn save(&self, state: &mut State) {
        let answers = || self.answers.iter();
        let named: Vec<[u32; 2]> = answers().map(|a| a.named).collect();
        let probs: Vec<[f32; 2]> = answers().map(|a| a.probs).collect();
        state.put("estimate.answers.named", named.as_flattened());
        state.put("estimate.answers.probs", probs.as_flattened());
        state.put("estimate.answers.scenes", &answers().map(|a| a.scene).collect::<Vec<_>>());
        let last = &self.last;
        state.put("estimate.labels.counts", &[self.next_id, self.taken, self.faded_to, last.scene]);
        state.put("estimate.labels.to", &[self.labelled_to]);
        let [y, y0] = last.right;
        let [p, p0] = last.probs;
        state.put("estimate.labels.last", &[last.labels, y, y0, p, p0]);
        state.put("estimate.labels.sums", [self.whole, self.recent].as_flattened().as_flattened());
    }

    pub(super) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        let scenes = state.get::<u64>("estimate.answers.scenes")?;
        let n = scenes.len();
        if n > REMEMBERED {
            return Err(Error::state("estimate.answers.scenes: more answers than are kept"));
        }
        let named = state.get_n::<u32>("estimate.answers.named", 2 * n)?.as_chunks::<2>().0;
        if named.as_flattened().iter().any(|&class| class as usize >= classes && class != NONE) {
            return Err(Error::state("estimate.answers.named: a class out of range"));
        }
        let probs = state.within::<f32>("estimate.answers.probs", 2 * n, 0.0..=1.0)?.as_chunks::<2>().0;
        let [next_id, taken, faded_to, last_scene] = state.counts("estimate.labels.counts")?;
        if next_id < n as u64 {
            return Err(Error::state("estimate.labels.counts: fewer answers than are kept"));
        }
        let last = state.within::<f64>("estimate.labels.last", 5, 0.0..=super::MOST)?;
        let sums = state.within::<f64>("estimate.labels.sums", 36, 0.0..=super::MOST)?.as_chunks::<9>().0;
        self.answers =
            (0..n).map(|i| Remembered { named: named[i], probs: probs[i], scene: scenes[i] }).collect();
        (self.next_id, self.taken, self.faded_to) = (next_id, taken, faded_to);
        [self.labelled_to] = state.counts("estimate.labels.to")?;
        self.last = Cluster {
            scene: last_scene,
            labels: last[0],
            right: [last[1], last[2]],
            probs: [last[3], last[4]],
        };
        (self.whole, self.recent) = ([sums[0], sums[1]], [sums[2], sums[3]]);
        Ok(())
    }
}

/// How far an estimate without labels is off where nothing was fitted: mostly by the usual, at times by much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errors {
    /// How often by the usual.
    pub usual: f64,
    /// Both deviations, the usual one first.
    pub deviations: [f64; 2],
}

/// An estimate without labels, of which the sampling variance is given, and one with them, with its variance, in one: the mean and the variance
/// of what is left to believe when the labels have told which of both sizes the error likely has.
pub(super) fn joined(free: (f64, f64), errors: Errors, told: (f64, f64)) -> (f64, f64) {
    let shares = [errors.usual, 1.0 - errors.usual];
    let parts: [[f64; 3]; 2] = std::array::from_fn(|i| {
        let own = free.1 + errors.deviations[i].powi(2);
        let both = own + told.1;
        let likely = shares[i] * (-(told.0 - free.0).powi(2) / (2.0 * both)).exp() / both.sqrt() + 1e-12;
        [likely, (told.1 * free.0 + own * told.0) / both, own * told.1 / both]
    });
    let all = parts[0][0] + parts[1][0];
    let mean = parts.iter().map(|[likely, mean, _]| likely * mean).sum::<f64>() / all;
    let spread = |[likely, own, variance]: &[f64; 3]| likely * (variance + (own - mean).powi(2));
    (mean, parts.iter().map(spread).sum::<f64>() / all)
}

fn fade(scenes: u64, half_life: f64) -> f64 {
    0.5f64.powf(scenes as f64 / half_life)
}

/// The accuracy over `rows` answers with this mean probability, from the labelled ones among them, and its variance.
fn rectified(&[n, y, p, yy, yp, pp, my, mp, mm]: &Sums, mean: f64, rows: f64) -> Option<(f64, f64)> {
    if n < 1e-6 {
        return None;
    }
    let (right, prob) = (y / n, p / n);
    let covariance = yp - prob * my - right * mp + right * prob * mm;
    let variance = (pp - 2.0 * prob * mp + prob * prob * mm).max(0.0);
    let weight = ((covariance + WEIGHT_HOLD) / (variance + WEIGHT_HOLD)).clamp(0.0, 1.5);
    let rest = right - weight * prob;
    let squares =
        yy - 2.0 * weight * yp + weight * weight * pp - 2.0 * rest * (my - weight * mp) + rest * rest * mm;
    let (held, usual) = VARIANCE_HOLD;
    let variance = (squares.max(0.0) + held * usual * mm / n) / (n * (n + held));
    let labelled = (n / rows.max(1e-300)).min(1.0);
    let others = if rows > n { ((rows * mean - p) / (rows - n)).clamp(0.0, 1.0) } else { prob };
    let told = labelled * right + (1.0 - labelled) * (weight * others + rest);
    Some((told.clamp(0.0, 1.0), ((1.0 - labelled) * variance).max(1e-7)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels for every `step`-th of `rows` answers in scenes of `frames`, of which `right` in ten are right, answered with
    /// probability `prob`; the estimate over all, from labels and a guess of 0.5 ± 0.5.
    fn told(rows: u64, frames: u64, step: usize, right: u64, prob: f32) -> (f64, f64) {
        let mut labels = Labels::default();
        for id in 0..rows {
            let row = EstimateRow {
                id,
                label: 1,
                prob,
                frozen_label: 1,
                frozen_prob: None,
                copy: false,
                unknown: false,
                place: 0,
                features: &[],
                logits: &[],
            };
            labels.remember(&row, [f64::from(prob); 2], id / frames);
        }
        for id in (0..rows).step_by(step) {
            let is_right = ((id / frames) as f64 * 0.618_033_988).fract() < right as f64 / 10.0;
            labels.take(id, usize::from(is_right), rows / frames, 512.0);
            labels.take(id, 1, rows / frames, 512.0);
        }
        assert_eq!(labels.count(), rows.div_ceil(step as u64), "a second label does not count");
        let told = labels.told(0, f64::from(prob), rows as f64, rows / frames, false);
        let errors = Errors { usual: 0.5, deviations: [0.5; 2] };
        joined((0.5, 0.0), errors, told.expect("labels have come"))
    }

    #[test]
    fn labels_tell_whatever_the_probabilities_say() {
        for prob in [0.05, 0.7, 0.99] {
            let (top1, variance) = told(10_000, 1, 20, 7, prob);
            assert!((top1 - 0.7).abs() < 0.03, "{prob}: {top1}");
            let usual = 0.7 * 0.3 / 500.0;
            assert!((0.7..1.3).contains(&(variance / usual)), "{prob}: {variance} {usual}");
        }
    }

    #[test]
    fn frames_of_a_scene_are_one_witness() {
        let (_, apart) = told(10_000, 1, 20, 7, 0.7);
        let (_, together) = told(10_000, 200, 20, 7, 0.7);
        assert!((6.0..14.0).contains(&(together / apart)), "ten labels a scene: {}", together / apart);
    }

    #[test]
    fn few_labels_say_little_and_all_labels_say_all() {
        let (top1, variance) = told(1000, 1, 1000, 10, 0.6);
        assert!((0.5..0.9).contains(&top1) && variance > 0.05, "{top1} {variance}");
        let (top1, variance) = told(1000, 1, 1, 7, 0.2);
        assert!((top1 - 0.7).abs() < 3e-3 && variance < 1e-6, "{top1} {variance}");
    }

    #[test]
    fn few_labels_move_an_estimate_only_where_they_speak_against_it() {
        let errors = Errors { usual: 0.8, deviations: [0.03, 0.17] };
        let moved =
            |told: f64, variance: f64| (joined((0.9, 1e-4), errors, (told, variance)).0 - 0.9) / (told - 0.9);
        // Thirty labels scatter by 0.05: about a third of what they say is believed, and nearly all of what scatter does not explain.
        assert!(moved(0.86, 0.0025) < 0.4, "{}", moved(0.86, 0.0025));
        assert!(moved(0.6, 0.0025) > 0.85, "{}", moved(0.6, 0.0025));
        // Many labels are believed in any case, and the interval is no wider than theirs.
        assert!(moved(0.86, 1e-5) > 0.98);
        let (_, variance) = joined((0.9, 1e-4), errors, (0.86, 1e-5));
        assert!(variance <= 1.001e-5, "{variance}");
    }
}
