//! OGA: Gaussian classes fitted to the most certain samples, multiplied into the zero-shot probabilities.
//!
//! Fuchs, Zanella and De Vleeschouwer, *Online Gaussian Test-Time Adaptation of Vision-Language Models*, CVPRW 2025,
//! arXiv 2501.04352, with its released code. Eight slots per class hold the samples of lowest zero-shot entropy H; an
//! empty slot has H = ln C. Batches of 32:
//!
//! ```text
//! each row in order, k = argmax p:  if H is below the largest H among the slots of k, the row takes that slot
//! classes with at least 2 samples:  μ_c = (Σ samples) / 8;  the others  μ_c = w_c
//! once a class has at least 3:      x = z − μ over all n samples held, S their covariance,
//!                                   B = d ((n−1) S + tr(S) I)⁻¹ if n ≤ 4d, else S⁺;   before:  B = d I
//! answer:                           p · softmax(τ (⟨z, Bμ_c⟩ − ½ μ_cᵀBμ_c)),  τ = 0.05
//! ```
//!
//! The released code's quirk, `by_capacity`: a mean is the sum divided by the eight slots, filled or not, so that the mean
//! of a class with two samples has a quarter of its length. `by_capacity = false` divides by the samples.
//!
//! Departures: where S has a Cholesky factor, S⁺ is S⁻¹ without a cut at small eigenvalues; H has no 1e-6 within its
//! logarithm; the arithmetic is not half-precision. The publication reports the mean of batch accuracies over a hundred
//! shuffles; here every sample counts once.

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::gaussian::{Discriminant, Precision, scatter};
use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::{Head, Result, Scores, State};

/// Samples from which on a class has a mean of its own.
const FOR_A_MEAN: usize = 2;

/// Samples of some class from which on there is a covariance.
const FOR_A_COVARIANCE: usize = 3;

/// Settings of OGA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OgaConfig {
    /// Samples held per class.
    pub capacity: usize,
    /// Weight of the Gaussian term (τ).
    pub tau: f64,
    /// Whether a mean is divided by the capacity, as released; else by the samples held.
    pub by_capacity: bool,
}

impl Default for OgaConfig {
    fn default() -> Self {
        Self { capacity: 8, tau: 0.05, by_capacity: true }
    }
}

impl OgaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Oga> {
        in_range("method.oga.capacity", self.capacity as f64, 1.0..=1e6)?;
        in_range("method.oga.tau", self.tau, 0.0..=1e6)?;
        let memory = Cache::new(head.dim(), head.n_classes(), self.capacity);
        Ok(Oga::of(memory, head, self))
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "oga",
    summary: "Gaussian classes of the most certain samples multiplied into the zero-shot probabilities",
    paper: "Fuchs et al., Online Gaussian Test-Time Adaptation of Vision-Language Models, CVPRW 2025, arXiv 2501.04352",
    // The scores; every 32 samples 8 c rows of scatter, a factorisation and C solutions.
    operations: Some(|c, d| 2.0 * c * d + (10.0 * c * d * d + 2.0 / 3.0 * d * d * d) / 32.0),
    readout: Readout::AfterObserve,
    grouping: Grouping::Joint,
    batch: Some(32),
    answer_keys: &["tau"],
    ..Card::PLAIN
};

/// OGA.
#[derive(Clone, Debug)]
pub(crate) struct Oga {
    config: OgaConfig,
    head: Head,
    memory: Cache,
    /// μ and B follow from the memory alone.
    means: Vec<f64>,
    gaussian: Discriminant,
}

impl Oga {
    fn of(memory: Cache, head: &Head, config: &OgaConfig) -> Self {
        let means = means(&memory, head, config);
        let gaussian = precision(&memory, &means, head.dim()).discriminant(&means);
        Self { config: config.clone(), head: head.clone(), memory, means, gaussian }
    }

    fn scores(&self, z: &[f32], zero_shot: &[f32], out: &mut [f32]) {
        let gaussian = self.gaussian.scores(z);
        for ((out, g), &text) in out.iter_mut().zip(gaussian).zip(zero_shot) {
            *out = (text as f64 + self.config.tau * g) as f32;
        }
    }
}

/// μ, one row per class.
fn means(memory: &Cache, head: &Head, config: &OgaConfig) -> Vec<f64> {
    let mut means = math::widen(head.prototypes());
    for (class, mean) in means.chunks_mut(head.dim()).enumerate() {
        let held = memory.slots(class).len();
        if held >= FOR_A_MEAN {
            let count = if config.by_capacity { config.capacity } else { held };
            mean.fill(0.0);
            memory.slots(class).for_each(|slot| math::add(mean, 1.0 / count as f64, memory.key(slot)));
        }
    }
    means
}

/// B.
fn precision(memory: &Cache, means: &[f64], dim: usize) -> Precision {
    if !(0..memory.classes()).any(|class| memory.slots(class).len() >= FOR_A_COVARIANCE) {
        return Precision::diagonal(dim, 1.0, dim as f64);
    }
    let mut centred = Vec::with_capacity(memory.len() * dim);
    for (class, mean) in means.chunks(dim).enumerate() {
        for slot in memory.slots(class) {
            centred.extend(memory.key(slot).iter().zip(mean).map(|(&z, m)| z as f64 - m));
        }
    }
    let (n, mut scatter) = (memory.len(), scatter(centred, dim));
    if n <= 4 * dim {
        return Precision::ridge(scatter, dim, n);
    }
    scatter.iter_mut().for_each(|v| *v /= (n - 1) as f64);
    Precision::pseudo(scatter, dim)
}

impl Adapter for Oga {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            self.scores(batch.features.row(row), batch.zero_shot.row(row), scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let empty = (self.head.n_classes() as f32).ln();
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let frozen = &batch.frozen[row];
            let certain = batch.may_learn(row) && frozen.entropy < empty;
            let taken =
                certain && self.memory.offer(frozen.label, frozen.entropy, batch.features.row(row)).is_some();
            admitted.push(taken);
        }
        if admitted.contains(&true) {
            self.means = means(&self.memory, &self.head, &self.config);
            self.gaussian = precision(&self.memory, &self.means, self.head.dim()).discriminant(&self.means);
        }
        Observed { admitted }
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        self.memory.save("memory", &mut state);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        *self = Self::of(self.memory.loaded("memory", state)?, &self.head, &self.config);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.means, self.head.prototypes(), self.head.dim());
        Vitals {
            movement_max,
            movement_mean,
            evidence_weight: self.config.tau,
            state_bytes: self.memory.bytes() + 8 * (2 * self.means.len() + self.head.n_classes()),
            ..Default::default()
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.means, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        let drift = |(class, movement)| ClassDrift {
            movement,
            prior,
            evidence: self.memory.slots(class).len() as f64,
        };
        moved.into_iter().enumerate().map(drift).collect()
    }
}
