//! Settings of UL-TTA. Each lever (prototypes, prior, temperature) has a rule; a preset chooses the rules and
//! their numbers. `config/default.toml` explains every key.

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::gate::GateConfig;
use crate::{Error, Result};

/// A named set of values for all settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Never meaningfully worse than zero-shot: prequential trust on all levers.
    #[default]
    Default,
    /// The published algorithm, with the repairs its text needs.
    Paper,
}

/// Settings of UL-TTA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct UlTtaConfig {
    pub preset: Preset,
    /// Whose posterior shares a sample among the classes it teaches.
    pub responsibilities: Responsibilities,
    /// Responsibilities below this are dropped.
    pub min_responsibility: f64,
    pub gate: GateConfig,
    pub prototypes: PrototypesConfig,
    pub prior: PriorConfig,
    pub temperature: TemperatureConfig,
    pub update: UpdateConfig,
    pub schedule: ScheduleConfig,
    pub feedback: FeedbackConfig,
}

/// Whose posterior shares a sample among the classes it teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Responsibilities {
    /// The frozen model's: what was learnt cannot confirm itself.
    Text,
    /// The frozen model's with the image evidence, without the prior.
    Fused,
    /// The adapted one, as published.
    Adapted,
}

/// How prototypes learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrototypeRule {
    /// Text anchors stay; centred, whitened class means of the images add their evidence.
    Evidence,
    /// Published: anchors and images averaged, interpolated, clipped.
    Map,
    /// Text anchors only.
    Frozen,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PrototypesConfig {
    pub rule: PrototypeRule,
    // map
    pub alpha: f64,
    pub eta: f64,
    pub rho: f64,
    pub epsilon: f64,
    // evidence
    pub shrink: f64,
    pub trust: f64,
    pub trust_max: f64,
    pub covariance_shrink: f64,
    pub half_life: f64,
    pub half_life_per_class: f64,
    pub candidates: usize,
    pub candidate_range: f64,
    pub scale_window: usize,
    pub scale_min_rows: usize,
    pub scale_start: f64,
    pub scale_max: f64,
    pub scale_smoothing: f64,
    pub refresh: f64,
}

/// How the class prior learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriorRule {
    /// A mixture over forgetting rates, each trusted as far as it foretold the frozen posterior.
    Experts,
    /// Published: Dirichlet counts of admitted samples under a KL cap.
    Dirichlet,
    /// The starting prior only.
    Frozen,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PriorConfig {
    pub rule: PriorRule,
    pub start: Vec<f64>,
    pub gamma: f64,
    pub kappa: f64,
    // experts
    pub half_lives: Vec<f64>,
    pub dead_zone: f64,
    pub background: f64,
    pub weight_decay: f64,
    pub uniform_bias: f64,
}

/// How the temperature of the answer is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredRule {
    /// τ_pred = 1.
    Fixed,
    /// Published: minimise the entropy of admitted samples.
    Entropy,
}

/// How the temperature of the calibrated probabilities is set while there are no labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalRule {
    /// τ_cal = 1.
    Fixed,
    /// Match the frozen posterior under the current prior, on samples not yet learnt from.
    Match,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TemperatureConfig {
    pub pred: PredRule,
    pub beta: f64,
    pub min: f64,
    pub max: f64,
    pub cal: CalRule,
    pub cal_prior: bool,
    pub cal_power: f64,
    pub cal_margin: f64,
    pub single: bool,
    pub cal_window: usize,
    pub cal_min: f64,
    pub cal_max: f64,
}

/// What is counted towards an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// All samples that may teach, admitted or not.
    Seen,
    /// Admitted samples.
    Admitted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct UpdateConfig {
    pub every: u64,
    pub every_most: u64,
    pub count: Count,
    pub seconds: f64,
}

/// Starts strict and relaxes as evidence grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ScheduleConfig {
    pub samples: f64,
    pub gate: f64,
    pub alpha: f64,
    pub gamma: f64,
    pub kappa: f64,
    pub eta: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct FeedbackConfig {
    pub remember: usize,
    pub teach: bool,
    pub prior_strength: f64,
}

impl Default for UlTtaConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Default,
            responsibilities: Responsibilities::Fused,
            min_responsibility: 3e-3,
            gate: Default::default(),
            prototypes: Default::default(),
            prior: Default::default(),
            temperature: Default::default(),
            update: Default::default(),
            schedule: Default::default(),
            feedback: Default::default(),
        }
    }
}

impl Default for PrototypesConfig {
    fn default() -> Self {
        Self {
            rule: PrototypeRule::Evidence,
            alpha: 1.0,
            eta: 0.1,
            rho: 0.01,
            epsilon: 1e-8,
            shrink: 3.0,
            trust: 120.0,
            trust_max: 6.0,
            covariance_shrink: 0.3,
            half_life: 1000.0,
            half_life_per_class: 32.0,
            candidates: 64,
            candidate_range: 6.0,
            scale_window: 768,
            scale_min_rows: 100,
            scale_start: 300.0,
            scale_max: 2000.0,
            scale_smoothing: 0.3,
            refresh: 0.4,
        }
    }
}

impl Default for PriorConfig {
    fn default() -> Self {
        Self {
            rule: PriorRule::Experts,
            start: Vec::new(),
            gamma: 0.05,
            kappa: f64::INFINITY,
            half_lives: vec![4.0, 16.0, 64.0, 256.0, f64::INFINITY],
            dead_zone: 0.5,
            background: 0.6,
            weight_decay: 0.98,
            uniform_bias: 7.0,
        }
    }
}

impl Default for TemperatureConfig {
    fn default() -> Self {
        Self {
            pred: PredRule::Fixed,
            beta: 0.9,
            min: 0.5,
            max: 3.0,
            cal: CalRule::Match,
            cal_prior: true,
            cal_power: 0.8,
            cal_margin: 0.75,
            single: false,
            cal_window: 1024,
            cal_min: 0.2,
            cal_max: 5.0,
        }
    }
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self { every: 128, every_most: 1024, count: Count::Seen, seconds: 0.0 }
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { samples: 0.0, gate: 0.5, alpha: 10.0, gamma: 10.0, kappa: 0.1, eta: 0.5 }
    }
}

impl Default for FeedbackConfig {
    fn default() -> Self {
        Self { remember: 1024, teach: false, prior_strength: 10.0 }
    }
}

impl PrototypesConfig {
    /// Half-life of the evidence, in samples.
    pub(super) fn forgets(&self, classes: usize) -> f64 {
        self.half_life.max(self.half_life_per_class * classes as f64)
    }
}

impl UlTtaConfig {
    /// All settings of a preset.
    pub fn preset(preset: Preset) -> Self {
        let default = Self::default();
        match preset {
            Preset::Default => default,
            Preset::Paper => Self {
                preset,
                responsibilities: Responsibilities::Adapted,
                min_responsibility: 1e-6,
                gate: GateConfig { keep: 0.5, ..default.gate },
                prototypes: PrototypesConfig { rule: PrototypeRule::Map, ..default.prototypes },
                prior: PriorConfig { rule: PriorRule::Dirichlet, gamma: 1.0, kappa: 0.07, ..default.prior },
                temperature: TemperatureConfig {
                    pred: PredRule::Entropy,
                    cal: CalRule::Fixed,
                    cal_prior: false,
                    ..default.temperature
                },
                update: UpdateConfig { every: 64, every_most: 64, count: Count::Admitted, seconds: 0.0 },
                ..default
            },
        }
    }

    /// Checks every number against its range.
    pub(crate) fn check(&self, n_classes: usize) -> Result<()> {
        let key = |k: &str| format!("method.ul_tta.{k}");
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&key(k), v, lo..=hi);
        let inf = f64::INFINITY;
        self.gate.check(&key("gate"))?;
        range("min_responsibility", self.min_responsibility, 0.0, 1.0)?;
        let p = &self.prototypes;
        range("prototypes.alpha", p.alpha, 0.0, inf)?;
        range("prototypes.eta", p.eta, 0.0, 1.0)?;
        range("prototypes.rho", p.rho, 0.0, inf)?;
        range("prototypes.epsilon", p.epsilon, 0.0, 1.0)?;
        range("prototypes.shrink", p.shrink, 1e-9, inf)?;
        range("prototypes.trust", p.trust, 0.0, inf)?;
        range("prototypes.trust_max", p.trust_max, 0.0, 1e3)?;
        range("prototypes.covariance_shrink", p.covariance_shrink, 1e-3, 1.0)?;
        range("prototypes.half_life", p.half_life, 1.0, inf)?;
        range("prototypes.half_life_per_class", p.half_life_per_class, 0.0, inf)?;
        range("prototypes.candidates", p.candidates as f64, 2.0, 4096.0)?;
        range("prototypes.candidate_range", p.candidate_range, 0.0, inf)?;
        range("prototypes.scale_window", p.scale_window as f64, 1.0, 1e6)?;
        range("prototypes.scale_start", p.scale_start, 0.0, p.scale_max)?;
        range("prototypes.scale_max", p.scale_max, 0.0, 1e6)?;
        range("prototypes.scale_smoothing", p.scale_smoothing, 0.0, 1.0)?;
        range("prototypes.refresh", p.refresh, 0.0, 1.0)?;
        let prior = &self.prior;
        range("prior.gamma", prior.gamma, 1e-9, 1e12)?;
        range("prior.kappa", prior.kappa, 0.0, inf)?;
        range("prior.dead_zone", prior.dead_zone, 0.0, 100.0)?;
        range("prior.background", prior.background, 0.0, 1.0)?;
        range("prior.weight_decay", prior.weight_decay, 0.0, 1.0)?;
        range("prior.uniform_bias", prior.uniform_bias, -1e3, 1e3)?;
        for &h in &prior.half_lives {
            range("prior.half_lives", h, 1.0, inf)?;
        }
        if prior.rule == PriorRule::Experts && !(1..=16).contains(&prior.half_lives.len()) {
            let got = prior.half_lives.len();
            return Err(Error::config(
                key("prior.half_lives"),
                format!("expected 1 to 16 values, got {got}"),
            ));
        }
        if !prior.start.is_empty() {
            if prior.start.len() != n_classes {
                let got = prior.start.len();
                let reason = format!("expected one value per class ({n_classes}) or none, got {got}");
                return Err(Error::config(key("prior.start"), reason));
            }
            let sum: f64 = prior.start.iter().sum();
            // What is smaller has no logarithm in f32 to work with.
            if prior.start.iter().any(|&p| !(p >= 1e-9 && p.is_finite())) || (sum - 1.0).abs() > 1e-3 {
                let reason = format!("expected values of at least 1e-9 that sum to 1, got a sum of {sum}");
                return Err(Error::config(key("prior.start"), reason));
            }
        }
        let t = &self.temperature;
        range("temperature.beta", t.beta, 0.0, 1.0)?;
        range("temperature.min", t.min, 1e-3, t.max)?;
        range("temperature.max", t.max, 1e-3, 1e3)?;
        range("temperature.cal_min", t.cal_min, 1e-3, t.cal_max)?;
        range("temperature.cal_max", t.cal_max, 1e-3, 1e3)?;
        range("temperature.cal_power", t.cal_power, 0.0, 1.0)?;
        range("temperature.cal_margin", t.cal_margin, 0.0, 1.0)?;
        range("temperature.cal_window", t.cal_window as f64, 1.0, 1e6)?;
        range("update.every", self.update.every as f64, 1.0, 1e12)?;
        range("update.every_most", self.update.every_most as f64, 1.0, 1e12)?;
        range("update.seconds", self.update.seconds, 0.0, inf)?;
        let s = &self.schedule;
        range("schedule.samples", s.samples, 0.0, inf)?;
        range("schedule.gate", s.gate, 0.0, 1.0)?;
        range("schedule.kappa", s.kappa, 0.0, 1.0)?;
        range("schedule.eta", s.eta, 0.0, 1.0)?;
        range("schedule.alpha", s.alpha, 1.0, 1e12)?;
        range("schedule.gamma", s.gamma, 1.0, 1e12)?;
        range("feedback.remember", self.feedback.remember as f64, 1.0, 1e6)?;
        range("feedback.prior_strength", self.feedback.prior_strength, 0.0, 1e12)
    }
}
