//! T3A: class weights rebuilt from the most certain test features seen so far.
//!
//! Iwasawa and Matsuo, *Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization*,
//! NeurIPS 2021.
//!
//! ```text
//! supports S_c start with the classifier's own row w_c, at the entropy of the classifier on that row
//! each batch: every z joins S_ŷ under its pseudo-label with its entropy; keep the M lowest entropies per class
//! weight_c = norm(Σ_{u ∈ S_c} u / ‖u‖);  ℓ = s⟨z, weight_c⟩
//! ```
//!
//! Pseudo-labels and entropies are the frozen classifier's. The whole batch joins before any of it is scored.
//! Departure: the cosine is multiplied by the head's logit scale (a linear classifier has none to apply). On
//! CLIP the rule is kept verbatim, though text rows are evicted once M confident images have arrived while
//! classes not visited stay textual, which favours the visited ones.
//!
//! As in the published code: `filter_k = -1`, meant to keep everything, drops the least certain support of every
//! class at every batch (the branch for it is overwritten, and the slice `[:-1]` remains).

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::scores::summary;
use crate::{Error, Features, Head, Result, Scores, State, kernels};

/// Settings of T3A.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct T3aConfig {
    /// Supports kept per class (M); the publication tries 1, 5, 20, 50, 100 and -1.
    pub filter_k: i64,
}

impl Default for T3aConfig {
    fn default() -> Self {
        Self { filter_k: 100 }
    }
}

impl T3aConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<T3a> {
        if self.filter_k < -1 || self.filter_k == 0 {
            let reason = format!("expected a positive number or -1, got {}", self.filter_k);
            return Err(Error::config("method.t3a.filter_k", reason));
        }
        let capacity = if self.filter_k == -1 { usize::MAX } else { self.filter_k as usize };
        let mut t3a = T3a {
            supports: Cache::new(head.dim(), head.n_classes(), capacity),
            weights: vec![0.0; head.prototypes().len()],
            head: head.clone(),
            keep_all: self.filter_k == -1,
        };
        t3a.start()?;
        Ok(t3a)
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "t3a",
    summary: "class weights are means of the most certain features under each pseudo-label",
    paper: "Iwasawa and Matsuo, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, NeurIPS 2021",
    // The scores; the weight of one class anew from 100 supports.
    operations: Some(|c, d| 2.0 * c * d + 200.0 * d),
    readout: Readout::AfterObserve,
    grouping: Grouping::Joint,
    batch: Some(32),
    tuned: true,
    ..Card::PLAIN
};

/// T3A.
#[derive(Clone, Debug)]
pub(crate) struct T3a {
    head: Head,
    supports: Cache,
    /// Unit class weights, made from the supports.
    weights: Vec<f32>,
    keep_all: bool,
}

impl T3a {
    /// The classifier's rows are the first supports.
    fn start(&mut self) -> Result<()> {
        self.supports.clear();
        let rows = Features::new(self.head.prototypes().to_vec(), self.head.dim())?;
        let scores = self.head.zero_shot(&rows)?;
        for class in 0..rows.rows() {
            let own = summary(scores.row(class), 1.0);
            self.supports.offer(own.label, own.entropy, rows.row(class));
        }
        (0..rows.rows()).for_each(|class| self.update(class));
        Ok(())
    }

    /// A class's weight from its supports.
    fn update(&mut self, class: usize) {
        let dim = self.head.dim();
        let mut sum = vec![0.0; dim];
        for slot in self.supports.slots(class) {
            math::add(&mut sum, 1.0, self.supports.key(slot));
        }
        math::normalize(&mut sum);
        self.weights[class * dim..][..dim].iter_mut().zip(sum).for_each(|(w, v)| *w = v as f32);
    }
}

impl Adapter for T3a {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        let (dim, scale) = (self.head.dim(), self.head.logit_scale());
        kernels::products(batch.features.data(), &self.weights, dim, scale, scores.data_mut());
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        let mut touched = vec![false; self.head.n_classes()];
        for (row, frozen) in batch.frozen.iter().enumerate() {
            let slot = if batch.may_learn(row) {
                self.supports.offer(frozen.label, frozen.entropy, batch.features.row(row))
            } else {
                None
            };
            touched[frozen.label] |= slot.is_some();
            admitted.push(slot.is_some());
        }
        if self.keep_all && batch.rows() > 0 {
            (0..touched.len()).for_each(|class| self.supports.drop_worst(class));
            touched.fill(true);
        }
        (0..touched.len()).filter(|&class| touched[class]).for_each(|class| self.update(class));
        Observed { admitted }
    }

    fn reset(&mut self) {
        self.start().expect("the head's rows were accepted when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        self.supports.save("supports", &mut state);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.supports = self.supports.loaded("supports", state)?;
        (0..self.head.n_classes()).for_each(|class| self.update(class));
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let weights: Vec<f64> = math::widen(&self.weights);
        let (movement_max, movement_mean) = math::movement(&weights, self.head.prototypes(), self.head.dim());
        let state_bytes = self.supports.bytes() + self.weights.len() * 4;
        Vitals { movement_max, movement_mean, state_bytes, ..Default::default() }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let weights: Vec<f64> = math::widen(&self.weights);
        let moved = math::distances(&weights, self.head.prototypes(), self.head.dim());
        let uniform = 1.0 / moved.len() as f64;
        let drift = |(class, movement)| ClassDrift {
            movement,
            prior: uniform,
            evidence: self.supports.slots(class).len() as f64,
        };
        moved.into_iter().enumerate().map(drift).collect()
    }
}
