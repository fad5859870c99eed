//! OnZeta: online label learning against a balanced stream, and online proxy learning in the image space.
//!
//! Qian and Hu, *Online Zero-Shot Classification with CLIP*, ECCV 2024.
//!
//! ```text
//! for sample i = 0, 1, …:  η = c_w/√(i+1),  η_ρ = c_r/√(i+1),  b = β √((i+1)/n)
//! q ∝ softmax(s⟨z, w⟩) ⊙ exp(ρ)            ρ ← max(0, ρ − η_ρ (q − α/C))
//! v = softmax(⟨z, W⟩/τ_i), W₀ = w           W ← norm(W − (η/τ_i) z (v − q)ᵀ), per class
//! p = b v + (1 − b) q                        with the ρ and W from before this sample
//! ```
//!
//! The published text temperature 0.01 is the head's logit scale here. `n` is the stream's length, which a live
//! stream does not have: it is a setting, and beyond it b stays at β.

use serde::{Deserialize, Serialize};

use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Head, Result, Scores, State};

/// Settings of OnZeta.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OnzetaConfig {
    /// Length of the stream (n).
    pub horizon: u64,
    /// Temperature of the image branch (τ_i).
    pub tau_i: f64,
    /// Step size of the proxies (c_w).
    pub cw: f64,
    /// Step size of the label dual (c_r).
    pub cr: f64,
    /// How strongly the labels are balanced (α): 1 towards uniform, 0 not at all.
    pub alpha: f64,
    /// Largest weight of the image branch (β).
    pub beta: f64,
}

impl Default for OnzetaConfig {
    fn default() -> Self {
        Self { horizon: 10_000, tau_i: 0.04, cw: 0.5, cr: 20.0, alpha: 1.0, beta: 0.8 }
    }
}

impl OnzetaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Onzeta> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.onzeta.{k}"), v, lo..=hi);
        range("horizon", self.horizon as f64, 1.0, 1e15)?;
        range("tau_i", self.tau_i, 1e-6, 1e6)?;
        range("cw", self.cw, 0.0, 1e6)?;
        range("cr", self.cr, 0.0, 1e6)?;
        range("alpha", self.alpha, 0.0, 1e6)?;
        range("beta", self.beta, 0.0, 1.0)?;
        Ok(Onzeta {
            config: self.clone(),
            proxies: math::widen(head.prototypes()),
            dual: vec![0.0; head.n_classes()],
            seen: 0,
            head: head.clone(),
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "onzeta",
    summary: "labels balanced online by a dual variable, class proxies learnt in the image space",
    paper: "Qian and Hu, Online Zero-Shot Classification with CLIP, ECCV 2024",
    // Scores, gradient and norms of all proxies.
    operations: Some(|c, d| 9.0 * c * d),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    horizon: Some("horizon"),
    answer_keys: &["beta"],
    ..Card::PLAIN
};

/// OnZeta.
#[derive(Clone, Debug)]
pub(crate) struct Onzeta {
    config: OnzetaConfig,
    head: Head,
    /// W, one unit row per class.
    proxies: Vec<f64>,
    /// ρ.
    dual: Vec<f64>,
    /// i.
    seen: u64,
}

/// The two branches' probabilities for one sample.
struct Branches {
    /// q.
    text: Vec<f64>,
    /// v.
    image: Vec<f64>,
}

impl Onzeta {
    fn branches(&self, z: &[f32], zero_shot: &[f32]) -> Branches {
        let mut text: Vec<f64> = zero_shot.iter().zip(&self.dual).map(|(&l, rho)| l as f64 + rho).collect();
        softmax_f64(&mut text);
        let mut image = math::dots(&self.proxies, z, 1.0 / self.config.tau_i);
        softmax_f64(&mut image);
        Branches { text, image }
    }

    /// b.
    fn image_weight(&self) -> f64 {
        self.config.beta * ((self.seen + 1) as f64 / self.config.horizon as f64).min(1.0).sqrt()
    }

    fn mixed(&self, b: &Branches) -> Vec<f64> {
        let weight = self.image_weight();
        b.image.iter().zip(&b.text).map(|(v, q)| weight * v + (1.0 - weight) * q).collect()
    }

    fn update(&mut self, z: &[f32], b: &Branches) {
        let root = ((self.seen + 1) as f64).sqrt();
        let share = self.config.alpha / self.dual.len() as f64;
        let (dual_rate, rate) = (self.config.cr / root, self.config.cw / root / self.config.tau_i);
        for (rho, q) in self.dual.iter_mut().zip(&b.text) {
            *rho = (*rho - dual_rate * (q - share)).max(0.0);
        }
        let steps: Vec<f64> = b.image.iter().zip(&b.text).map(|(v, q)| -rate * (v - q)).collect();
        math::step_rows(&mut self.proxies, &steps, z);
        self.seen += 1;
    }
}

impl Adapter for Onzeta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let branches = self.branches(batch.features.row(row), batch.zero_shot.row(row));
            math::logits_of(&self.mixed(&branches), scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            admitted.push(batch.may_learn(row));
            if batch.may_learn(row) {
                let z = batch.features.row(row);
                let branches = self.branches(z, batch.zero_shot.row(row));
                self.update(z, &branches);
            }
        }
        Observed { admitted }
    }

    /// Answer and update share the two branches.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let z = batch.features.row(row);
            let branches = self.branches(z, batch.zero_shot.row(row));
            math::logits_of(&self.mixed(&branches), scores.row_mut(row));
            if batch.may_learn(row) {
                self.update(z, &branches);
            }
        }
        let mut prediction = Prediction::from_scores(scores);
        for (row, answer) in prediction.answers.iter_mut().enumerate() {
            answer.admitted = batch.may_learn(row);
        }
        prediction
    }

    fn reset(&mut self) {
        self.proxies = math::widen(self.head.prototypes());
        self.dual.fill(0.0);
        self.seen = 0;
    }

    fn save(&self) -> State {
        let mut state = State::default();
        state.put("proxies", &self.proxies);
        state.put("dual", &self.dual);
        state.put("seen", &[self.seen]);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let proxies = state.get_n::<f64>("proxies", self.proxies.len())?.to_vec();
        let dual = state.get_n::<f64>("dual", self.dual.len())?.to_vec();
        [self.seen] = state.counts("seen")?;
        (self.proxies, self.dual) = (proxies, dual);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.proxies, self.head.prototypes(), self.head.dim());
        let state_bytes = (self.proxies.len() + self.dual.len()) * 8;
        Vitals {
            movement_max,
            movement_mean,
            evidence_weight: self.image_weight(),
            state_bytes,
            ..Default::default()
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.proxies, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        moved.into_iter().map(|movement| ClassDrift { movement, prior, evidence: self.seen as f64 }).collect()
    }
}
