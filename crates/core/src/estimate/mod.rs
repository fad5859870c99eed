//! How right the answers are, told without labels and corrected by those that come (`docs/estimates.md`).
//!
//! The emitted probability of an answer, averaged, is an estimate of accuracy. Two things are wrong with it: a head whose
//! confidence is wrong as a whole, and scenes that are counted as if every frame were a witness.
//!
//! *Confidence that is wrong as a whole* is seen by asking the frozen model twice, with each half of the feature's
//! dimensions ([`Halves`]). How often both halves agree, beyond chance, does not depend on the temperature; how much
//! their posteriors overlap does. From both follows a correction of the mean probability, fitted with datasets left out
//! (`docs/estimate.py`). What is left of the error is the *systematic* part of every interval.
//!
//! *Scenes*: the variance of the mean is summed over scenes, each counting with its rows squared.
//!
//! The adapted answers get the accuracy of the frozen ones, moved in log-odds by what adaptation gained by its own account.
//! Labels come in through [`Labels`].

use serde::{Deserialize, Serialize};

use crate::{Error, Features, Head, Result, State};

mod halves;
mod labels;

use halves::logistic;
pub(crate) use halves::{Halves, is_compared, log_odds};
use labels::{Errors, Labels, joined};

/// An estimated accuracy, and the interval that holds it in nine of ten streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Share of right answers.
    pub top1: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// What is known before the first answer.
    const NOTHING: Estimate = Estimate { top1: 0.5, low: 0.0, high: 1.0 };

    fn new(top1: f64, variance: f64) -> Self {
        let reach = NINE_OF_TEN * variance.max(0.0).sqrt();
        let top1 = top1.clamp(0.0, 1.0);
        Self { top1, low: (top1 - reach).max(0.0), high: (top1 + reach).min(1.0) }
    }
}

/// The estimates of a class: how often the answers that name it are right.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassEstimate {
    /// Adapted answers that named the class.
    pub answers: u64,
    /// Of the adapted answers.
    pub adapted: Estimate,
    /// Of the zero-shot answers.
    pub zero_shot: Estimate,
}

/// All estimates of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimates {
    /// Over the whole stream: of the adapted answers, and of the frozen ones.
    pub whole: [Estimate; 2],
    /// The same over recent scenes.
    pub recent: [Estimate; 2],
    /// Labels that they rest on.
    pub labels: u64,
}

/// Standard deviations from the middle to the ends of an interval.
const NINE_OF_TEN: f64 = 1.645;

/// Half-life, in scenes, of what counts as recent.
const RECENT: f64 = 512.0;

/// Of the probability that an answer leaves, this share goes to the frozen model's answer, where a method does not say.
const REST: f32 = 0.7;

/// Systematic standard deviation of the adapted and of the frozen estimate. Fitted by `docs/estimate.py`.
const SYSTEMATIC: [f64; 2] = [0.07, 0.055];

/// What the errors of the adapted and of the frozen estimate are like, for when labels come. Fitted by `docs/estimate.py`.
const ERRORS: [Errors; 2] = [
    Errors { usual: 0.693, deviations: [0.023, 0.143] },
    Errors { usual: 0.803, deviations: [0.028, 0.145] },
];

/// One answer, as the estimator is shown it.
pub(crate) struct EstimateRow<'a> {
    pub id: u64,
    /// The class answered and its emitted probability.
    pub label: usize,
    pub prob: f32,
    /// The frozen model's class, and the emitted probability of that class, where the method tells it.
    pub frozen_label: usize,
    pub frozen_prob: Option<f32>,
    /// Whether it is a near-copy of the scene at hand.
    pub copy: bool,
    /// Whether it was judged to fit no class: then it is neither right nor wrong.
    pub unknown: bool,
    /// Its place among the rows that [`Estimator::prepare`] was shown.
    pub place: usize,
    pub features: &'a [f32],
    pub logits: &'a [f32],
}

/// Sums over scenes. Indices 0 are the adapted answers, 1 the frozen ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    rows: f64,
    /// Rows of the first scenes, before temperatures have settled.
    early: f64,
    /// Emitted probabilities.
    prob: [f64; 2],
    /// Variance of the number of right answers.
    spread: [f64; 2],
}

impl Sums {
    /// Number of values in a file.
    const LEN: usize = 6;

    fn fade(&mut self, keep: f64) {
        self.rows *= keep;
        self.early *= keep;
        self.prob = self.prob.map(|p| p * keep);
        self.spread = self.spread.map(|s| s * keep * keep);
    }

    /// Takes in a scene: its rows, and their sums of probabilities.
    fn close(&mut self, scene: &Sums) {
        if scene.rows == 0.0 {
            return;
        }
        self.rows += scene.rows;
        self.early += scene.early;
        for side in 0..2 {
            self.prob[side] += scene.prob[side];
            let mean = (scene.prob[side] / scene.rows).clamp(0.0, 1.0);
            self.spread[side] += scene.rows * scene.rows * mean * (1.0 - mean);
        }
    }

    fn values(&self) -> [f64; Self::LEN] {
        [self.rows, self.early, self.prob[0], self.prob[1], self.spread[0], self.spread[1]]
    }

    fn of(values: &[f64]) -> Self {
        let &[rows, early, a, b, c, d] = values else { return Self::default() };
        Self { rows, early, prob: [a, b], spread: [c, d] }
    }
}

/// Estimates accuracy along a stream.
#[derive(Clone, Debug)]
pub(crate) struct Estimator {
    whole: Sums,
    recent: Sums,
    /// The scene at hand.
    scene: Sums,
    /// Scenes begun.
    scenes: u64,
    halves: Halves,
    /// Per class: answers that named it and their probabilities, adapted and frozen.
    classes: Vec<[f64; 4]>,
    labels: Labels,
}

impl Estimator {
    pub(crate) fn new(classes: usize, dim: usize) -> Self {
        Self {
            whole: Sums::default(),
            recent: Sums::default(),
            scene: Sums::default(),
            scenes: 0,
            halves: Halves::new(classes, dim),
            classes: vec![[0.0; 4]; classes],
            labels: Labels::default(),
        }
    }

    /// Looks ahead to rows that will be taken in, of which some begin `scenes`: while every scene is compared, what the
    /// comparisons need is computed for all of them at once; later it is `known` for those that could be foreseen.
    pub(crate) fn prepare<'a>(
        &mut self,
        rows: &Features<'_>,
        scenes: impl Iterator<Item = usize>,
        known: impl Iterator<Item = (usize, &'a [f32])>,
        head: &Head,
    ) {
        self.halves.clear();
        if self.scenes < halves::DENSE {
            self.halves.prepare(rows, scenes, head);
            return;
        }
        known.for_each(|(place, logits)| self.halves.know(place, logits));
    }

    /// Scenes so far.
    pub(crate) fn scenes(&self) -> u64 {
        self.scenes
    }

    /// Takes in an answer.
    pub(crate) fn push(&mut self, row: &EstimateRow<'_>, head: &Head) {
        let same = row.label == row.frozen_label;
        let told = row.frozen_prob.unwrap_or(REST * (1.0 - row.prob));
        let probs = [row.prob, if same { row.prob } else { told }].map(|p| f64::from(p.clamp(0.0, 1.0)));
        if !row.copy {
            self.begin_scene(row, head);
        }
        self.labels.remember(row, probs, self.scenes);
        if row.unknown {
            return;
        }
        self.scene.rows += 1.0;
        self.scene.early += f64::from(u8::from(self.scenes <= halves::DENSE));
        let named = [row.label, row.frozen_label];
        for side in 0..2 {
            self.scene.prob[side] += probs[side];
            let class = &mut self.classes[named[side]];
            class[2 * side] += 1.0;
            class[2 * side + 1] += probs[side];
        }
    }

    fn begin_scene(&mut self, row: &EstimateRow<'_>, head: &Head) {
        let ended = std::mem::take(&mut self.scene);
        self.whole.close(&ended);
        self.recent.fade(0.5f64.powf(1.0 / RECENT));
        self.recent.close(&ended);
        self.halves.meet(row.features, row.logits, Some(row.place), head, self.scenes);
        self.scenes += 1;
    }

    /// A label for an earlier answer. Of several for one answer the first counts.
    pub(crate) fn label(&mut self, id: u64, label: usize) {
        self.labels.take(id, label, self.scenes, RECENT);
    }

    /// The estimates now.
    pub(crate) fn estimates(&self) -> Estimates {
        let (mut whole, mut recent) = (self.whole, self.recent);
        whole.close(&self.scene);
        recent.close(&self.scene);
        Estimates {
            whole: self.of(&whole, false),
            recent: self.of(&recent, true),
            labels: self.labels.count(),
        }
    }

    /// Estimates from sums: of the adapted answers and of the frozen ones.
    fn of(&self, sums: &Sums, recent: bool) -> [Estimate; 2] {
        if sums.rows <= 0.0 {
            return [Estimate::NOTHING; 2];
        }
        let free = self.label_free(sums);
        std::array::from_fn(|side| {
            let sampling = sums.spread[side] / (sums.rows * sums.rows);
            let mean = sums.prob[side] / sums.rows;
            match self.labels.told(side, mean, sums.rows, self.scenes, recent) {
                Some(told) => {
                    let (top1, variance) = joined((free[side], sampling), ERRORS[side], told);
                    Estimate::new(top1, variance)
                }
                None => Estimate::new(free[side], sampling + SYSTEMATIC[side].powi(2)),
            }
        })
    }

    /// The estimates that need no labels.
    fn label_free(&self, sums: &Sums) -> [f64; 2] {
        let [adapted, frozen] = sums.prob.map(|p| p / sums.rows);
        let corrected = self.halves.corrected(frozen, sums.early / sums.rows);
        let moved = logistic(log_odds(corrected) + log_odds(adapted) - log_odds(frozen));
        [moved, corrected]
    }

    /// How much more often the adapted answers over recent scenes are right than they claim, by the estimate that needs no labels.
    pub(crate) fn surplus(&self) -> f64 {
        let mut recent = self.recent;
        recent.close(&self.scene);
        if recent.rows <= 0.0 {
            return 0.0;
        }
        self.label_free(&recent)[0] - recent.prob[0] / recent.rows
    }

    /// Per class: how often the answers that name it are right.
    pub(crate) fn per_class(&self) -> Vec<ClassEstimate> {
        let mut whole = self.whole;
        whole.close(&self.scene);
        let now = self.of(&whole, false);
        let rows_per_scene = whole.rows / self.scenes.max(1) as f64;
        let of = |class: &[f64; 4], side: usize| {
            let (n, sum) = (class[2 * side], class[2 * side + 1]);
            if n <= 0.0 {
                return Estimate::NOTHING;
            }
            let mean = sum / n;
            // What moved the mean over all answers moves that of a class.
            let shift = log_odds(now[side].top1) - log_odds(whole.prob[side] / whole.rows);
            let top1 = logistic(log_odds(mean) + shift);
            let reach = (now[side].high - now[side].low) / (2.0 * NINE_OF_TEN);
            let sampling = top1 * (1.0 - top1) * rows_per_scene.max(1.0) / n;
            Estimate::new(top1, sampling + (1.5 * reach).powi(2))
        };
        let class = |class: &[f64; 4]| ClassEstimate {
            answers: class[0] as u64,
            adapted: of(class, 0),
            zero_shot: of(class, 1),
        };
        self.classes.iter().map(class).collect()
    }

    /// What the estimates are made of, for fits: mean probabilities, overlap and agreement of the halves, share of early
    /// rows, sampling variances; what labels say of each side, and its variance (0 without labels).
    pub(crate) fn ingredients(&self) -> [f64; 11] {
        let mut whole = self.whole;
        whole.close(&self.scene);
        let rows = whole.rows.max(1e-300);
        let (overlap, agreement) = self.halves.reading().unwrap_or_default();
        let [adapted, frozen] = whole.prob.map(|p| p / rows);
        let [a, b] = whole.spread.map(|s| s / (rows * rows));
        let told = |side: usize, mean: f64| {
            self.labels.told(side, mean, whole.rows, self.scenes, false).unwrap_or_default()
        };
        let ((t, u), (v, w)) = (told(0, adapted), told(1, frozen));
        [adapted, frozen, overlap, agreement, whole.early / rows, a, b, t, u, v, w]
    }

    pub(crate) fn bytes(&self) -> usize {
        6 * size_of::<f64>() * self.classes.len() + Labels::bytes()
    }

    pub(crate) fn save(&self, state: &mut State) {
        let sums = [self.whole, self.recent, self.scene].map(|sums| sums.values());
        state.put("estimate.sums", sums.as_flattened());
        state.put("estimate.counts", &[self.scenes]);
        self.halves.save("estimate.", state);
        state.put("estimate.classes", self.classes.as_flattened());
        self.labels.save(state);
    }

    pub(crate) fn load(&mut self, state: &State) -> Result<()> {
        let classes = self.classes.len();
        let mut fresh = Self::new(classes, 0);
        fresh.halves = self.halves.fresh();
        if state.any_under("estimate.") {
            let numbers = |name: &str, len: usize| state.within::<f64>(name, len, 0.0..=MOST);
            let sums = numbers("estimate.sums", 3 * Sums::LEN)?;
            let mut sums = sums.chunks(Sums::LEN).map(Sums::of);
            let mut next = || sums.next().unwrap_or_default();
            (fresh.whole, fresh.recent, fresh.scene) = (next(), next(), next());
            for sums in [fresh.whole, fresh.recent, fresh.scene] {
                if sums.prob.iter().any(|&p| p > sums.rows * (1.0 + 1e-9) + 1e-9) {
                    return Err(Error::state("estimate.sums holds a mean probability above 1"));
                }
            }
            [fresh.scenes] = state.counts("estimate.counts")?;
            fresh.halves.load("estimate.", state)?;
            fresh.classes.as_flattened_mut().copy_from_slice(numbers("estimate.classes", 4 * classes)?);
            fresh.labels.load(state, classes)?;
        }
        *self = fresh;
        Ok(())
    }
}

/// The largest sum that a file may hold.
const MOST: f64 = 1e18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_counts_once_however_many_frames_it_has() {
        let frame = Sums { rows: 1.0, prob: [0.8, 0.6], ..Default::default() };
        let (mut apart, mut together) = (Sums::default(), Sums::default());
        (0..30).for_each(|_| apart.close(&frame));
        together.close(&Sums { rows: 30.0, prob: [24.0, 18.0], ..Default::default() });
        assert_eq!(apart.rows, together.rows);
        assert!((together.spread[0] / apart.spread[0] - 30.0).abs() < 1e-9);
    }
}
