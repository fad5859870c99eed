//! Temperature-only: the frozen scores under one learnt temperature.
//!
//! With delayed labels: Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017. Without: the entropy
//! objective of Wang et al., *Tent*, ICLR 2021, restricted to the temperature.
//!
//! ```text
//! labels:   τ̂ = argmin Σ_i −log softmax(τ ℓ_i)_{y_i} + k/2 (τ − 1)²     over the remembered labelled samples
//! none yet: τ̂ = argmin Σ_i H(softmax(τ ℓ_i)) = τ_max, as dH/dτ = −τ Var(ℓ) ≤ 0 for every sample
//! every B samples: τ ← clip(β τ + (1 − β) τ̂)
//! ```
//!
//! The answer never changes, only its probability.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, Answer, Batch, Card, Grouping, Memory, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::scores::{softmax, summary};
use crate::{Error, Head, Result, State};

/// Newton steps on the labelled objective, which is convex in τ.
const NEWTON_STEPS: usize = 8;

/// Settings of temperature-only adaptation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemperatureOnlyConfig {
    /// Samples between two updates (B).
    pub every: u64,
    /// Smoothing of the temperature (β).
    pub beta: f64,
    /// Smallest multiplier.
    pub min: f64,
    /// Largest multiplier (τ_max).
    pub max: f64,
    /// Strength of the labelled objective's prior at 1 (k).
    pub prior_strength: f64,
    /// Samples remembered for delayed labels.
    pub remember: usize,
}

impl Default for TemperatureOnlyConfig {
    fn default() -> Self {
        Self { every: 64, beta: 0.9, min: 0.5, max: 3.0, prior_strength: 10.0, remember: 512 }
    }
}

impl TemperatureOnlyConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<TemperatureOnly> {
        let key = |k: &str| format!("method.temperature_only.{k}");
        in_range(&key("every"), self.every as f64, 1.0..=1e12)?;
        in_range(&key("beta"), self.beta, 0.0..=1.0)?;
        in_range(&key("max"), self.max, 1e-3..=1e3)?;
        in_range(&key("min"), self.min, 1e-3..=self.max)?;
        in_range(&key("prior_strength"), self.prior_strength, 0.0..=1e12)?;
        in_range(&key("remember"), self.remember as f64, 0.0..=1e5)?;
        Ok(TemperatureOnly {
            config: self.clone(),
            classes: head.n_classes(),
            tau: 1.0,
            seen: 0,
            remembered: VecDeque::new(),
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "temperature_only",
    summary: "one temperature on the frozen scores: by delayed labels, by entropy until there are any",
    paper: "Guo et al., On Calibration of Modern Neural Networks, ICML 2017; Wang et al., Tent, ICLR 2021",
    operations: Some(|c, _| 4.0 * c),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

/// Temperature-only adaptation.
#[derive(Clone, Debug)]
pub(crate) struct TemperatureOnly {
    config: TemperatureOnlyConfig,
    classes: usize,
    tau: f64,
    seen: u64,
    remembered: VecDeque<Remembered>,
}

/// A sample kept for its label.
#[derive(Clone, Debug)]
struct Remembered {
    id: u64,
    logits: Vec<f32>,
    label: Option<u32>,
}

impl TemperatureOnly {
    /// Keeps a sample for its label, whether or not the sample may teach.
    fn remember(&mut self, id: u64, logits: &[f32]) {
        if self.remembered.len() == self.config.remember {
            self.remembered.pop_front();
        }
        if self.config.remember > 0 {
            self.remembered.push_back(Remembered { id, logits: logits.to_vec(), label: None });
        }
    }

    fn update(&mut self) {
        let TemperatureOnlyConfig { beta, min, max, .. } = self.config;
        let fitted = if self.remembered.iter().any(|r| r.label.is_some()) { self.fit() } else { max };
        self.tau = (beta * self.tau + (1.0 - beta) * fitted).clamp(min, max);
    }

    /// Newton's method on the labelled objective.
    fn fit(&self) -> f64 {
        let TemperatureOnlyConfig { min, max, prior_strength, .. } = self.config;
        let mut tau = self.tau;
        let mut probs = vec![0.0; self.classes];
        for _ in 0..NEWTON_STEPS {
            let mut slope = prior_strength * (tau - 1.0);
            let mut curvature = prior_strength + 1e-9;
            for (r, label) in self.remembered.iter().filter_map(|r| Some((r, r.label?))) {
                softmax(&r.logits, tau as f32, &mut probs);
                let pairs = || probs.iter().zip(&r.logits).map(|(&p, &l)| (p as f64, l as f64));
                let mean: f64 = pairs().map(|(p, l)| p * l).sum();
                slope += mean - r.logits[label as usize] as f64;
                curvature += pairs().map(|(p, l)| p * (l - mean).powi(2)).sum::<f64>();
            }
            tau = (tau - slope / curvature).clamp(min, max);
        }
        tau
    }
}

impl Adapter for TemperatureOnly {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let tau = self.tau as f32;
        let answer = |row: usize| {
            let s = summary(batch.zero_shot.row(row), tau);
            Answer { label: s.label, prob: s.prob, prob_pred: batch.frozen[row].prob, ..Default::default() }
        };
        Prediction {
            scores: batch.zero_shot.to_scores(),
            calibrated: None,
            probs: None,
            tau_cal: vec![tau; batch.rows()],
            answers: (0..batch.rows()).map(answer).collect(),
        }
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        for row in 0..batch.rows() {
            self.remember(batch.first_id + row as u64, batch.zero_shot.row(row));
            if batch.may_learn(row) {
                self.seen += 1;
                if self.seen.is_multiple_of(self.config.every) {
                    self.update();
                }
            }
        }
        Observed { admitted: (0..batch.rows()).map(|row| batch.may_learn(row)).collect() }
    }

    fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let remembered = self.remembered.len();
        let found = self.remembered.iter_mut().find(|r| r.id == id);
        found.ok_or(Error::Forgotten { id, remembered, setting: Some("remember") })?.label =
            Some(label as u32);
        Ok(true)
    }

    fn memory(&self) -> Option<Memory> {
        let (samples, oldest) = (self.remembered.len(), self.remembered.front().map(|first| first.id));
        Some(Memory { samples, oldest, most: self.config.remember, setting: "remember" })
    }

    fn reset(&mut self) {
        self.tau = 1.0;
        self.seen = 0;
        self.remembered.clear();
    }

    fn save(&self) -> State {
        let mut state = State::default();
        state.put("tau", &[self.tau]);
        state.put("seen", &[self.seen]);
        let rows = || self.remembered.iter();
        state.put("remembered.id", &rows().map(|r| r.id).collect::<Vec<_>>());
        state.put("remembered.label", &rows().map(|r| r.label.unwrap_or(u32::MAX)).collect::<Vec<_>>());
        state.put("remembered.logits", &rows().flat_map(|r| &r.logits).copied().collect::<Vec<f32>>());
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let ids = state.get::<u64>("remembered.id")?;
        let labels = state.get_n::<u32>("remembered.label", ids.len())?;
        let logits = state.get_n::<f32>("remembered.logits", ids.len() * self.classes)?;
        let known = |l: u32| l == u32::MAX || (l as usize) < self.classes;
        if ids.len() > self.config.remember || !labels.iter().all(|&l| known(l)) {
            return Err(Error::state("remembered: too many samples, or a label out of range"));
        }
        ([self.seen], self.tau) = (state.counts("seen")?, state.scalar("tau")?);
        let rows = ids.iter().zip(labels).zip(logits.chunks(self.classes));
        let row = |((&id, &label), logits): ((&u64, &u32), &[f32])| Remembered {
            id,
            logits: logits.to_vec(),
            label: Some(label).filter(|&l| l != u32::MAX),
        };
        self.remembered = rows.map(row).collect();
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let state_bytes = self.remembered.len() * (self.classes * 4 + size_of::<Remembered>());
        Vitals { tau_cal: self.tau, state_bytes, ..Default::default() }
    }
}
