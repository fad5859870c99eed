//! PTA: one confidence-weighted image prototype per class beside the frozen scores.
//!
//! *Prototype-Based Test-Time Adaptation of Vision-Language Models*, ICML 2026, arXiv 2604.21360, with its released code.
//! P_c starts at 0, R_c at the text row w_c. With p = softmax(ℓ), every sample first teaches:
//!
//! ```text
//! if p_c ≥ 0.1:  a = 1 − exp(−p_c / T),  P_c ← (1 − a) P_c + a z
//! all c:         R_c ← norm(α R_c + (1 − α) P_c)
//! answer:        s⟨z, w_c⟩ + s⟨z, R_c⟩
//! ```
//!
//! With views, z is the mean of the most certain tenth (unit rows, not renormalised) and p the softmax of their mean
//! logits.
//!
//! The released code's quirk, `feedback`: the second line feeds R back into itself, so that two samples after a class was
//! touched its text is gone (cos(R, P) is 0.98, then 0.9995). `feedback = false` puts w_c in its place, which the paper's
//! text suggests. Either way a class that was never touched stays at its text row, some 50 logits below those that were:
//! where a class never reaches p ≥ 0.1, it is lost.
//!
//! Departures: T = 20 everywhere (the release has 50 for Caltech101 alone); s is the head's own logit scale, not 100;
//! the arithmetic is not half-precision. A row R_c whose P_c stands still is fed back until what is left of its way to P_c/|P_c|
//! vanishes in f64, and not any further: nothing would change.

use serde::{Deserialize, Serialize};

use super::math;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Head, Result, Scores, State};

/// A share of the way that is nothing beside 1 in f64.
const VANISHED: f64 = 1e-18;
/// A row is fed back at most as often as this after its prototype moved.
const MOST_MOVES: f64 = 10_000.0;

/// Settings of PTA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PtaConfig {
    /// Share of the old reference row in the new one (α).
    pub alpha: f64,
    /// How slowly a prototype follows its samples (T).
    pub temperature: f64,
    /// A sample teaches the classes with at least this probability.
    pub threshold: f64,
    /// Whether a reference row is fed back into itself, as released; else the text row is mixed in.
    pub feedback: bool,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
}

impl Default for PtaConfig {
    fn default() -> Self {
        Self { alpha: 0.01, temperature: 20.0, threshold: 0.1, feedback: true, view_share: 0.1 }
    }
}

impl PtaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Pta> {
        in_range("method.pta.alpha", self.alpha, 0.0..=0.999)?;
        in_range("method.pta.temperature", self.temperature, 1e-3..=1e9)?;
        in_range("method.pta.threshold", self.threshold, 1e-3..=1.0)?;
        in_range("method.pta.view_share", self.view_share, 0.0..=1.0)?;
        let classes = head.n_classes();
        Ok(Pta {
            prototypes: vec![0.0; classes * head.dim()],
            references: math::widen(head.prototypes()),
            moves: vec![0; classes],
            head: head.clone(),
            config: self.clone(),
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "pta",
    summary: "one confidence-weighted image prototype per class beside zero-shot",
    paper: "Prototype-Based Test-Time Adaptation of Vision-Language Models, ICML 2026, arXiv 2604.21360",
    // The rows R of all classes move and are scaled; the scores.
    operations: Some(|c, d| 9.0 * c * d),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    tuned: true,
    reads_views: true,
    ..Card::PLAIN
};

/// PTA.
#[derive(Clone, Debug)]
pub(crate) struct Pta {
    config: PtaConfig,
    head: Head,
    /// P, one row per class.
    prototypes: Vec<f64>,
    /// R, one unit row per class.
    references: Vec<f64>,
    /// Samples after which R_c no longer changes, if P_c stands still.
    moves: Vec<u32>,
}

impl Pta {
    fn accumulate(&mut self, sample: &Sample<'_>) -> bool {
        let dim = self.head.dim();
        let mut probs = math::widen(&sample.logits);
        softmax_f64(&mut probs);
        let mut taught = false;
        for (class, &p) in probs.iter().enumerate().filter(|(_, p)| **p >= self.config.threshold) {
            let a = 1.0 - (-p / self.config.temperature).exp();
            let row = &mut self.prototypes[class * dim..][..dim];
            row.iter_mut().for_each(|v| *v *= 1.0 - a);
            math::add(row, a, &sample.feature);
            let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            self.moves[class] = self.moves_to_rest(length);
            taught = true;
        }
        taught
    }

    /// Updates that bring R_c to rest at P_c/|P_c|. Near it each leaves α/(α + (1 − α)|P_c|) of the way, farther off a little
    /// more: twice as many are made.
    fn moves_to_rest(&self, length: f64) -> u32 {
        let alpha = self.config.alpha;
        if !self.config.feedback {
            return 1;
        }
        let left = alpha / (alpha + (1.0 - alpha) * length);
        (2.0 * VANISHED.ln() / left.ln()).ceil().clamp(1.0, MOST_MOVES) as u32
    }

    /// R_c ← norm(α R_c + (1 − α) P_c) wherever it still moves.
    fn update(&mut self) {
        let (alpha, dim) = (self.config.alpha, self.head.dim());
        for class in 0..self.moves.len() {
            if self.moves[class] == 0 {
                continue;
            }
            let row = &mut self.references[class * dim..][..dim];
            if !self.config.feedback {
                let text = self.head.prototype(class);
                row.iter_mut().zip(text).for_each(|(r, &w)| *r = w as f64);
            }
            let image = &self.prototypes[class * dim..][..dim];
            row.iter_mut().zip(image).for_each(|(r, p)| *r = alpha * *r + (1.0 - alpha) * p);
            math::normalize(row);
            self.moves[class] -= 1;
        }
    }

    fn scores(&self, sample: &Sample<'_>, out: &mut [f32]) {
        let image = math::dots(&self.references, &sample.feature, self.head.logit_scale() as f64);
        for ((out, image), &text) in out.iter_mut().zip(image).zip(sample.logits.iter()) {
            *out = (text as f64 + image) as f32;
        }
    }
}

impl Adapter for Pta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.config.view_share);
            self.scores(&sample, scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let learns = batch.may_learn(row);
            let taught = learns && self.accumulate(&Sample::confident(batch, row, self.config.view_share));
            if learns {
                self.update();
            }
            admitted.push(taught);
        }
        Observed { admitted }
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        state.put("prototypes", &self.prototypes);
        state.put("references", &self.references);
        state.put("moves", &self.moves);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let rows = self.prototypes.len();
        // Means of unit rows, and unit rows: no entry is beyond 1.
        let prototypes = state.within::<f64>("prototypes", rows, -1.01..=1.01)?.to_vec();
        let references = state.within::<f64>("references", rows, -1.01..=1.01)?.to_vec();
        let moves = state.within::<u32>("moves", self.moves.len(), 0.0..=MOST_MOVES)?.to_vec();
        (self.prototypes, self.references, self.moves) = (prototypes, references, moves);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.references, self.head.prototypes(), self.head.dim());
        let state_bytes = 16 * self.prototypes.len() + 4 * self.moves.len();
        Vitals { movement_max, movement_mean, evidence_weight: 1.0, state_bytes, ..Default::default() }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.references, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        moved.into_iter().map(|movement| ClassDrift { movement, prior, evidence: 0.0 }).collect()
    }
}
