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

use crate::blocks::PASS_ROWS;
use crate::kernels::{exp, fold_lanes, leading_products, max, products, vectorised};
use crate::{Error, Features, Head, Result, State};

mod labels;

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

/// The halves are compared at each of the first scenes, later at every 64th.
const DENSE: u64 = 256;
const SPARSE: u64 = 64;

/// Whether the halves are compared at a scene, once not every scene is.
pub(crate) fn is_compared(scene: u64) -> bool {
    scene >= DENSE && scene.is_multiple_of(SPARSE)
}

/// Half-life, in scenes, of the comparison of the halves.
const HALVES_HALF_LIFE: f64 = 4096.0;

/// Of the probability that an answer leaves, this share goes to the frozen model's answer, where a method does not say.
const REST: f32 = 0.7;

/// Where the correction's inputs are centred, and their scale: overlap, agreement, share of early scenes.
const CENTRES: [(f64, f64); 3] = [(0.5, 0.25), (0.5, 0.25), (0.4, 0.3)];

/// The correction of the mean probability: constant, overlap, agreement, early; overlap², overlap · agreement, agreement².
/// Fitted by `docs/estimate.py`.
const CORRECTION: [f64; 7] = [0.0165, -0.0126, 0.0362, 0.0139, 0.0495, -0.0472, -0.0181];

/// An accuracy is no higher than this much plus agreement and overlap of the halves: answers on which the halves never
/// agree say nothing of the image.
const CAP: f64 = 0.45;

/// In fewer dimensions a half knows too little for a correction.
const MIN_DIM: usize = 64;

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

/// The frozen model asked twice, with each half of the dimensions.
#[derive(Clone, Debug)]
struct Halves {
    /// Scenes compared, by weight.
    weight: f64,
    /// Weighted sums: posterior overlap, and whether both name the same class.
    overlap: f64,
    agree: f64,
    /// How often each half names each class.
    named: [Vec<f64>; 2],
    /// Agreement by chance: Σ_c share of the first · share of the second.
    chance: f64,
    /// Whether the halves have dimensions enough.
    large: bool,
    /// Buffers: rows, or one of which one half is 0; the logits of the two halves.
    rows: Vec<f32>,
    logits: [Vec<f32>; 2],
    /// Places of rows whose first half's logits are ready, and these.
    places: Vec<usize>,
    ready: Vec<f32>,
}

impl Halves {
    fn new(classes: usize, dim: usize) -> Self {
        let named = [vec![0.0; classes], vec![0.0; classes]];
        Self {
            weight: 0.0,
            overlap: 0.0,
            agree: 0.0,
            named,
            chance: 0.0,
            large: dim >= MIN_DIM,
            rows: Vec::new(),
            logits: Default::default(),
            places: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Computes the first half's logits of some rows at once: for one row alone the whole head is read, too.
    fn prepare(&mut self, rows: &Features<'_>, places: impl Iterator<Item = usize>, head: &Head) {
        let (dim, classes, scale) = (head.dim(), head.n_classes(), head.logit_scale());
        self.rows.clear();
        for place in places.take(PASS_ROWS) {
            self.places.push(place);
            self.rows.extend_from_slice(rows.row(place));
        }
        self.ready.resize(self.places.len() * classes, 0.0);
        leading_products(&self.rows, head.prototypes(), [dim, dim / 2], scale, &mut self.ready);
    }

    /// Compares the halves on an image whose logits are known. `place` is its place among the rows that were looked at
    /// before.
    fn compare(&mut self, z: &[f32], logits: &[f32], place: usize, head: &Head, weight: f64) {
        let (dim, scale) = (head.dim(), head.logit_scale());
        let half = dim / 2;
        let [first, second] = &mut self.logits;
        first.clear();
        match self.places.binary_search(&place) {
            Ok(ready) => first.extend_from_slice(&self.ready[ready * logits.len()..][..logits.len()]),
            Err(_) => {
                first.resize(logits.len(), 0.0);
                leading_products(z, head.prototypes(), [dim, half], scale, first);
            }
        }
        if head.anchors_apart().is_some() {
            // Where a class has several anchors its logit is no sum of two halves.
            self.rows.clear();
            self.rows.resize(dim, 0.0);
            self.rows[half..].copy_from_slice(&z[half..]);
            second.resize(logits.len(), 0.0);
            products(&self.rows, head.prototypes(), dim, scale, second);
        } else {
            second.clear();
            second.extend(logits.iter().zip(first.iter()).map(|(whole, first)| whole - first));
        }
        let best = [&*first, &*second].map(|half| {
            let top = max(half);
            half.iter().position(|&logit| logit == top).unwrap_or(0)
        });
        for (half, best) in [&mut *first, &mut *second].into_iter().zip(best) {
            let top = half[best];
            vectorised(
                #[inline(always)]
                // A half has half the logit's size: twice the temperature makes it whole.
                || half.iter_mut().for_each(|logit| *logit = exp(2.0 * (*logit - top))),
            );
        }
        let sum = |half: &[f32]| fold_lanes(half, half, |weight, _| weight);
        let overlap =
            fold_lanes(first, second, |a, b| a * b) / (sum(first) * sum(second)).max(f32::MIN_POSITIVE);
        let keep = if weight > 1.0 { 0.5f64.powf(weight / HALVES_HALF_LIFE) } else { 1.0 };
        self.weight = self.weight * keep + weight;
        self.overlap = self.overlap * keep + weight * f64::from(overlap);
        self.agree = self.agree * keep + if best[0] == best[1] { weight } else { 0.0 };
        for (named, best) in self.named.iter_mut().zip(best) {
            if keep < 1.0 {
                named.iter_mut().for_each(|n| *n *= keep);
            }
            named[best] += weight;
        }
        self.reckon_chance();
    }

    fn reckon_chance(&mut self) {
        let both: f64 = self.named[0].iter().zip(&self.named[1]).map(|(a, b)| a * b).sum();
        self.chance = if self.weight > 0.0 { both / (self.weight * self.weight) } else { 0.0 };
    }

    /// Mean overlap of the halves' posteriors, and their agreement beyond chance.
    fn reading(&self) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let agree = self.agree / self.weight;
        let beyond = (agree - self.chance) / (1.0 - self.chance).max(1e-3);
        Some((self.overlap / self.weight, beyond.clamp(0.0, 1.0)))
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
        self.halves.places.clear();
        if self.scenes < DENSE {
            self.halves.prepare(rows, scenes, head);
            return;
        }
        self.halves.ready.clear();
        for (place, logits) in known {
            self.halves.places.push(place);
            self.halves.ready.extend_from_slice(logits);
        }
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
        self.scene.early += f64::from(u8::from(self.scenes <= DENSE));
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
        if self.scenes < DENSE {
            self.halves.compare(row.features, row.logits, row.place, head, 1.0);
        } else if is_compared(self.scenes) {
            self.halves.compare(row.features, row.logits, row.place, head, SPARSE as f64);
        }
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
        let Some((overlap, agreement)) = self.halves.reading() else { return [adapted, frozen] };
        let corrected = corrected(frozen, [overlap, agreement, sums.early / sums.rows], self.halves.large);
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
        let h = &self.halves;
        state.put("estimate.halves", &[h.weight, h.overlap, h.agree]);
        state.put("estimate.named", &h.named.concat());
        state.put("estimate.classes", self.classes.as_flattened());
        self.labels.save(state);
    }

    pub(crate) fn load(&mut self, state: &State) -> Result<()> {
        let classes = self.classes.len();
        let mut fresh = Self::new(classes, 0);
        fresh.halves.large = self.halves.large;
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
            let halves = numbers("estimate.halves", 3)?;
            (fresh.halves.weight, fresh.halves.overlap, fresh.halves.agree) =
                (halves[0], halves[1], halves[2]);
            let named = numbers("estimate.named", 2 * classes)?;
            fresh.halves.named = [named[..classes].to_vec(), named[classes..].to_vec()];
            fresh.halves.reckon_chance();
            fresh.classes.as_flattened_mut().copy_from_slice(numbers("estimate.classes", 4 * classes)?);
            fresh.labels.load(state, classes)?;
        }
        *self = fresh;
        Ok(())
    }
}

/// The largest sum that a file may hold.
const MOST: f64 = 1e18;

/// The mean probability of the frozen answers, corrected by what the halves tell; only capped where they are small.
fn corrected(mean: f64, inputs: [f64; 3], large: bool) -> f64 {
    let [o, a, e]: [f64; 3] = std::array::from_fn(|i| (inputs[i] - CENTRES[i].0) / CENTRES[i].1);
    let terms = [1.0, o, a, e, o * o, o * a, a * a];
    let correction: f64 = CORRECTION.iter().zip(terms).map(|(b, x)| b * x).sum();
    let most = (CAP + inputs[0] + inputs[1]).min(0.995);
    (mean.min(most) + if large { correction } else { 0.0 }).clamp(0.02, most)
}

fn log_odds(p: f64) -> f64 {
    let p = p.clamp(0.005, 0.995);
    (p / (1.0 - p)).ln()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

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

    /// Classes along the axes, each image at its class's anchor in both halves, or in one half only.
    fn halves(agree: bool) -> (f64, f64) {
        let mut anchors = vec![0.0f32; 4 * 8];
        (0..4).for_each(|c| {
            anchors[c * 8 + c] = 0.5f32.sqrt();
            anchors[c * 8 + 4 + c] = 0.5f32.sqrt();
        });
        let head = Head::new(anchors, 8, ["a", "b", "c", "d"], 20.0).unwrap();
        let mut halves = Halves::new(4, 8);
        for i in 0..64 {
            let mut z = [0.0f32; 8];
            z[i % 4] = 0.5f32.sqrt();
            z[4 + if agree { i % 4 } else { i / 4 % 4 }] = 0.5f32.sqrt();
            let logits: Vec<f32> =
                (0..4).map(|c| 20.0 * fold_lanes(&z, head.prototype(c), |a, b| a * b)).collect();
            halves.compare(&z, &logits, i, &head, 1.0);
        }
        halves.reading().unwrap()
    }

    #[test]
    fn halves_agree_beyond_chance_or_not() {
        let (overlap, agreement) = halves(true);
        assert!(overlap > 0.99 && agreement > 0.99, "{overlap} {agreement}");
        let (overlap, agreement) = halves(false);
        assert!((overlap - 0.25).abs() < 0.01 && agreement < 1e-9, "{overlap} {agreement}");
    }

    #[test]
    fn answers_that_say_nothing_of_the_image_are_not_believed() {
        for large in [false, true] {
            assert!(corrected(0.99, [0.05, 0.0, 0.1], large) <= CAP + 0.05);
            assert_eq!(corrected(0.01, [0.0, 0.0, 0.1], false), 0.02);
        }
        for mean in [0.2, 0.5, 0.9] {
            let better = corrected(mean, [0.4, 0.8, 0.1], true);
            assert!(better > corrected(mean, [0.4, 0.3, 0.1], true), "{mean}: more agreement, more accuracy");
        }
    }
}
