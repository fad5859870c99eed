//! Prior-only: the class prior alone follows the stream, by online EM.
//!
//! Saerens, Latinne and Decaestecker, *Adjusting the Outputs of a Classifier to New a Priori Probabilities: A
//! Simple Procedure*, Neural Computation 2002.
//!
//! ```text
//! E: p_c ∝ p_text(c|z) · π_c / π⁰_c        M: π_c = (γ/C + Σ p_c) / (γ + n),  π⁰ uniform
//! ```
//!
//! Departure: the published EM iterates over a whole data set; on a stream each sample is visited once (an E step
//! with the prior so far, then its share of the M step), and γ pseudo-counts keep the first samples from deciding.

use serde::{Deserialize, Serialize};

use super::checked::checked_counts;
use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Head, Layer, Result, Scores, State};

/// Settings of prior-only adaptation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorOnlyConfig {
    /// Pseudo-counts per class (γ = this times C).
    pub gamma: f64,
}

impl Default for PriorOnlyConfig {
    fn default() -> Self {
        Self { gamma: 1.0 }
    }
}

impl PriorOnlyConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<PriorOnly> {
        in_range("method.prior_only.gamma", self.gamma, 1e-9..=1e12)?;
        Ok(PriorOnly { config: self.clone(), counts: vec![0.0; head.n_classes()], seen: 0 })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "prior_only",
    summary: "the class prior alone, by online EM",
    paper: "Saerens et al., Adjusting the Outputs of a Classifier to New a Priori Probabilities, Neural Computation 2002",
    operations: Some(|c, _| 6.0 * c),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

/// Prior-only adaptation.
#[derive(Clone, Debug)]
pub(crate) struct PriorOnly {
    config: PriorOnlyConfig,
    /// Σ p per class.
    counts: Vec<f64>,
    /// n.
    seen: u64,
}

impl PriorOnly {
    /// C π_c.
    fn ratio(&self, class: usize) -> f64 {
        let classes = self.counts.len() as f64;
        classes * (self.config.gamma + self.counts[class]) / (self.config.gamma * classes + self.seen as f64)
    }

    fn accumulate(&mut self, mut logits: Vec<f64>) {
        softmax_f64(&mut logits);
        self.counts.iter_mut().zip(logits).for_each(|(n, p)| *n += p);
        self.seen += 1;
    }

    fn logits(&self, zero_shot: &[f32]) -> Vec<f64> {
        zero_shot.iter().enumerate().map(|(c, &l)| l as f64 + self.ratio(c).ln()).collect()
    }
}

impl Adapter for PriorOnly {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.counts.len());
        for row in 0..batch.rows() {
            let logits = self.logits(batch.zero_shot.row(row));
            scores.row_mut(row).iter_mut().zip(logits).for_each(|(s, v)| *s = v as f32);
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        for row in (0..batch.rows()).filter(|&row| batch.may_learn(row)) {
            let logits = self.logits(batch.zero_shot.row(row));
            self.accumulate(logits);
        }
        Observed { admitted: (0..batch.rows()).map(|row| batch.may_learn(row)).collect() }
    }

    /// Answer and update share the logits.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.counts.len());
        for row in 0..batch.rows() {
            let logits = self.logits(batch.zero_shot.row(row));
            scores.row_mut(row).iter_mut().zip(&logits).for_each(|(s, &v)| *s = v as f32);
            if batch.may_learn(row) {
                self.accumulate(logits);
            }
        }
        let mut prediction = Prediction::from_scores(scores);
        for (row, answer) in prediction.answers.iter_mut().enumerate() {
            answer.admitted = batch.may_learn(row);
        }
        prediction
    }

    fn reset(&mut self) {
        self.counts.fill(0.0);
        self.seen = 0;
    }

    fn save(&self) -> State {
        let mut state = State::default();
        state.put("counts", &self.counts);
        state.put("seen", &[self.seen]);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        // A file may come from anywhere: its numbers are checked before anything changes.
        let counts = checked_counts("counts", state, self.counts.len())?;
        ([self.seen], self.counts) = (state.counts("seen")?, counts);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let classes = self.counts.len();
        let prior: Vec<f64> = (0..classes).map(|c| self.ratio(c) / classes as f64).collect();
        Vitals { prior_kl: math::kl_from_uniform(&prior), state_bytes: classes * 8 + 8, ..Default::default() }
    }

    fn layer(&self, head: &Head) -> Option<Layer> {
        let ratios = || (0..self.counts.len()).map(|c| self.ratio(c));
        let bias = ratios().map(|ratio| ratio.ln() as f32).collect();
        let prior = ratios().map(|ratio| (ratio / self.counts.len() as f64) as f32).collect();
        Some(Layer { bias, prior, ..Layer::frozen(head) })
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let classes = self.counts.len() as f64;
        let drift = |(c, &evidence)| ClassDrift { movement: 0.0, prior: self.ratio(c) / classes, evidence };
        self.counts.iter().enumerate().map(drift).collect()
    }
}
