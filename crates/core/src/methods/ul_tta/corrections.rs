//! *Corrections*: labels that somebody gives for earlier rows and that count at once.
//!
//! A label adds to the frozen logits of its class, for rows that look like the labelled ones among the stream's images:
//!
//! ```text
//! r_c = Σ_i (z_i − g) / (N_c + shrink)
//! correction_c(z) = (loudness / variance) ⟨z − g, Σ⁻¹ r_c⟩ + lead_c
//! ```
//!
//! over the N_c rows z_i that were labelled c. The constants are below (`docs/operating.md` says how they were found); g is the
//! mean of the stream's images, variance is their mean one and Σ their covariance scaled to mean variance 1 (`evidence.rs`), the
//! identity before there is one. The first part is 0 on average over the stream, and bounded, because N / (N + shrink) is below 1
//! and Σ has at least `covariance_shrink` on its diagonal. The lead is what the labels say of how often the class occurs, as far
//! as the stream bears them out (`label_prior.rs`). A correction is linear in z. Everything that follows works on the corrected
//! logits: what the prior and the evidence learn from later rows, too.
//!
//! In the prior the label counts [`IN_PRIOR`] samples of its class, faded as if it had come with its row. What the row had taught by
//! itself, its pseudo-label, is withdrawn from prior and evidence. Taking a label back does all of this the other way
//! round. The last [`MOST`] labels count; they do not fade.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::evidence::Evidence;
use super::kept::{KeptRow, load_scenes, save_scenes};
use super::label_prior::LabelPrior;
use super::{Incoming, UlTta, Work};
use crate::kernels::fold_lanes;
use crate::scores::{Summary, weigh};
use crate::{Error, Result, State};

/// Labels that count, at most: when there are more, the oldest one stops counting.
pub(super) const MOST: usize = 4096;

/// Samples that hold a class's mean of labelled rows at 0.
const SHRINK: f64 = 10.0;

/// Weight of a correction in the logits.
const LOUDNESS: f64 = 0.2;

/// Least loudness times dimensions: in fewer than 500 dimensions the loudness is larger, so that a label adds about 9
/// nats to its own row.
const LEAST_LOUDNESS: f64 = 100.0;

/// Samples that a label counts in the prior.
pub(super) const IN_PRIOR: f64 = 2.0;

/// 1 − ‖g‖² before the stream has told.
const SPREAD_START: f64 = 0.4;

/// Samples that [`SPREAD_START`] is worth.
const START_WORTH: f64 = 20.0;

/// A number of a row beyond this is no solution.
const LARGEST: f64 = 1e7;

/// The labels that were given, and what they add to the logits.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrections {
    /// In the order in which they were given: the row, as it was kept, and its label.
    given: VecDeque<(KeptRow, u32)>,
    /// g, and loudness / variance, as of the last update. Empty before the first label.
    mean: Vec<f32>,
    loudness: f32,
    /// Per class with labels: (loudness / variance) Σ⁻¹ r_c, and −⟨g, ·⟩ of it.
    rows: BTreeMap<u32, (Vec<f32>, f32)>,
    /// What the labels say of how often each class occurs.
    pub prior: LabelPrior,
}

/// Frozen logits with the labels' part in them, and what is always computed of logits.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrected {
    pub text: Vec<f32>,
    pub weights: Vec<f32>,
    pub frozen: Summary,
}

impl Corrections {
    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Ids and labels, in the order in which they were given.
    pub(super) fn given(&self) -> impl Iterator<Item = (u64, usize)> {
        self.given.iter().map(|(scene, label)| (scene.id, *label as usize))
    }

    /// The label that was given for a scene.
    pub(super) fn label_of(&self, id: u64) -> Option<usize> {
        self.given().find(|given| given.0 == id).map(|given| given.1)
    }

    /// Adds L to the logits of a row.
    pub(super) fn add_to(&self, z: &[f32], logits: &mut [f32]) {
        for (&class, (row, bias)) in &self.rows {
            logits[class as usize] += fold_lanes(row, z, |a, b| a * b) + bias;
        }
        for &(class, lead) in self.prior.lead() {
            logits[class as usize] += lead;
        }
    }

    /// The logits of a row with L in them.
    pub(super) fn correct(&self, z: &[f32], text: &[f32], out: &mut Corrected) {
        out.text.clear();
        out.text.extend_from_slice(text);
        self.add_to(z, &mut out.text);
        out.weights.resize(text.len(), 0.0);
        out.frozen = weigh(&out.text, &mut out.weights);
    }

    /// Adds L to a linear layer.
    pub(super) fn add_to_layer(&self, weights: &mut [f32], bias: &mut [f32]) {
        for (&class, (row, own)) in &self.rows {
            let out = &mut weights[class as usize * row.len()..][..row.len()];
            out.iter_mut().zip(row).for_each(|(o, v)| *o += v);
            bias[class as usize] += own;
        }
        for &(class, lead) in self.prior.lead() {
            bias[class as usize] += lead;
        }
    }

    /// Computes the rows of some classes anew.
    fn fold(&mut self, classes: &[u32], evidence: &Evidence) {
        let dim = self.mean.len();
        let mut sums = vec![0.0f32; classes.len() * dim];
        let mut counts = vec![0.0f64; classes.len()];
        let places: BTreeMap<u32, usize> = classes.iter().enumerate().map(|(i, &c)| (c, i)).collect();
        for (scene, label) in &self.given {
            let Some(&place) = places.get(label) else { continue };
            counts[place] += 1.0;
            let sum = &mut sums[place * dim..][..dim];
            let row = scene.numbers.iter().zip(&self.mean);
            sum.iter_mut().zip(row).for_each(|(s, (&v, g))| *s += v as f32 * scene.scale - g);
        }
        for (sum, n) in sums.chunks_exact_mut(dim.max(1)).zip(&counts) {
            let factor = (1.0 / (n + SHRINK)) as f32;
            sum.iter_mut().for_each(|s| *s *= factor);
        }
        evidence.whiten(&mut sums);
        for (row, &class) in sums.chunks_exact_mut(dim.max(1)).zip(classes) {
            row.iter_mut().for_each(|v| *v *= self.loudness);
            let sound = row.iter().all(|v| (v.abs() as f64) < LARGEST);
            if !sound || row.iter().all(|v| *v == 0.0) {
                self.rows.remove(&class);
                continue;
            }
            let bias = -fold_lanes(row, &self.mean, |a, b| a * b);
            self.rows.insert(class, (row.to_vec(), bias));
        }
    }

    /// Follows the stream: g, variance and Σ as they are now.
    pub(super) fn follow(&mut self, evidence: Option<&Evidence>) {
        if let Some(evidence) = evidence.filter(|_| !self.is_empty()) {
            self.look(evidence);
            let classes: BTreeSet<u32> = self.given.iter().map(|given| given.1).collect();
            let classes: Vec<u32> = classes.into_iter().collect();
            self.fold(&classes, evidence);
        }
    }

    fn look(&mut self, evidence: &Evidence) {
        let (mean, n) = evidence.mean();
        let apart = (1.0 - mean.iter().map(|g| g * g).sum::<f64>()).clamp(0.0, 1.0);
        let spread = (START_WORTH * SPREAD_START + n * apart) / (START_WORTH + n);
        let loudness = (LOUDNESS * mean.len() as f64).max(LEAST_LOUDNESS);
        self.loudness = (loudness / spread.max(1e-6)) as f32;
        self.mean = mean.iter().map(|&g| g as f32).collect();
    }

    /// Takes in a label for a scene, under a head with `classes` classes.
    fn give(&mut self, scene: KeptRow, label: u32, classes: usize, evidence: Option<&Evidence>) {
        let oldest = if self.given.len() == MOST { self.given.pop_front() } else { None };
        self.given.push_back((scene, label));
        if let Some(evidence) = evidence {
            if self.mean.is_empty() {
                self.look(evidence);
            }
            let changed: BTreeSet<u32> = oldest.map(|given| given.1).into_iter().chain([label]).collect();
            self.fold(&changed.into_iter().collect::<Vec<_>>(), evidence);
        }
        self.prior.count(self.given.iter().map(|given| given.1), classes);
    }

    /// Takes a label back; gives what it was.
    fn take_back(&mut self, id: u64, classes: usize, evidence: Option<&Evidence>) -> Option<(KeptRow, u32)> {
        let place = self.given.iter().position(|(scene, _)| scene.id == id)?;
        let taken = self.given.remove(place)?;
        if self.is_empty() {
            *self = Self::default();
            return Some(taken);
        }
        if let Some(evidence) = evidence {
            self.fold(&[taken.1], evidence);
        }
        self.prior.count(self.given.iter().map(|given| given.1), classes);
        Some(taken)
    }

    /// What the labelled rows had taught is forgotten, so nothing of it can be given back.
    pub(super) fn retire(&mut self) {
        self.given.iter_mut().for_each(|(scene, _)| scene.counted = Default::default());
    }

    pub(super) fn bytes(&self) -> usize {
        let dim = self.mean.len();
        self.given.len() * (dim + size_of::<KeptRow>()) + (1 + self.rows.len()) * dim * 4
    }

    pub(super) fn save(&self, state: &mut State) {
        if self.is_empty() {
            return;
        }
        save_scenes("local.given.", self.given.iter().map(|(scene, _)| scene), state);
        state.put("local.given.labels", &self.given.iter().map(|given| given.1).collect::<Vec<_>>());
        state.put("local.given.mean", &self.mean);
        state.put("local.given.loudness", &[self.loudness]);
        state.put("local.given.folded", &self.rows.keys().copied().collect::<Vec<_>>());
        let rows: Vec<f32> =
            self.rows.values().flat_map(|(row, bias)| row.iter().chain([bias])).copied().collect();
        state.put("local.given.rows", &rows);
        self.prior.save(state);
    }

    pub(super) fn load(&mut self, state: &State, classes: usize, dim: usize) -> Result<()> {
        *self = Self::default();
        if !state.any_under("local.given.") {
            return Ok(());
        }
        let scenes = load_scenes("local.given.", state, classes, dim)?;
        let labels = state.get_n::<u32>("local.given.labels", scenes.len())?;
        let folded = state.get::<u32>("local.given.folded")?;
        if labels.iter().chain(folded).any(|&c| c as usize >= classes) || scenes.len() > MOST {
            return Err(Error::state("local.given: too many labels, or a class out of range"));
        }
        let len = if state.get::<f32>("local.given.mean")?.is_empty() { 0 } else { dim };
        self.mean = state.within::<f32>("local.given.mean", len, -1.001..=1.001)?.to_vec();
        self.loudness = state.within::<f32>("local.given.loudness", 1, 0.0..=1e12)?[0];
        let stride = dim + 1;
        let most = LARGEST * stride as f64;
        let rows = state.within::<f32>("local.given.rows", folded.len() * stride, -most..=most)?;
        let row = |(i, &class): (usize, &u32)| {
            (class, (rows[i * stride..][..dim].to_vec(), rows[i * stride + dim]))
        };
        self.rows = folded.iter().enumerate().map(row).collect();
        self.given = scenes.into_iter().zip(labels.iter().copied()).collect();
        self.prior.load(state)?;
        self.prior.count(self.given.iter().map(|given| given.1), classes);
        Ok(())
    }
}

impl<'a> Incoming<'a> {
    /// The row with the labels' part in its frozen logits, where there are labels.
    pub(super) fn corrected<'b>(
        self,
        corrections: &Corrections,
        buffer: &'b mut Corrected,
        work: &mut Work,
    ) -> Incoming<'b>
    where
        'a: 'b,
    {
        work.is_corrected = !corrections.is_empty();
        if !work.is_corrected {
            return self;
        }
        corrections.correct(self.z, self.text, buffer);
        let Corrected { text, weights, frozen } = &*buffer;
        Incoming { z: self.z, text, frozen, weights }
    }
}

impl UlTta {
    /// A label that counts at once. A second label for the same scene replaces the first.
    pub(super) fn correct_sample(&mut self, id: u64, label: usize) -> Result<()> {
        let scene = self.kept.find(self.scene.taught_by(id))?.clone();
        self.withdraw_label(scene.id);
        self.recount(&scene, label, 1.0);
        self.corrections.give(scene, label as u32, self.head.n_classes(), self.evidence.as_deref());
        Ok(())
    }

    /// Takes the label of a scene back. `false` if there was none.
    pub(super) fn withdraw_label(&mut self, id: u64) -> bool {
        let (id, classes) = (self.scene.taught_by(id), self.head.n_classes());
        let Some((scene, label)) = self.corrections.take_back(id, classes, self.evidence.as_deref()) else {
            return false;
        };
        self.recount(&scene, label as usize, -1.0);
        true
    }

    /// Withdraws what a row had taught by itself and counts its label in the prior; with `sign` −1 the other way round.
    fn recount(&mut self, scene: &KeptRow, label: usize, sign: f64) {
        let counted = &scene.counted;
        // Samples that taught since; forgotten where the method began anew in between.
        let Some(age) = self.seen.checked_sub(counted.seen).filter(|_| counted.seen > 0) else { return };
        self.prior.recount(&scene.posterior, label, age, sign);
        if let Some(evidence) = &mut self.evidence {
            evidence.recount(&counted.evidence, &scene.features(), counted.samples, age, sign);
        }
    }
}
