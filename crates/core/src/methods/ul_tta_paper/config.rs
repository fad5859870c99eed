//! Settings of the published algorithm, under the paper's symbols. `config/paper.toml` explains every key.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::config::in_range;
use crate::gate::GateConfig;
use crate::methods::presets::{Preset, check_start};

/// Settings of the published algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PaperConfig {
    /// Always [`Preset::Paper`].
    pub preset: Preset,
    /// Whose posterior shares an admitted sample among the classes it teaches.
    pub responsibilities: Responsibilities,
    /// Smaller shares are dropped.
    pub min_responsibility: f64,
    /// Which samples may teach.
    pub gate: GateConfig,
    /// Part 1: the prototypes t_c.
    pub prototypes: PrototypesConfig,
    /// Part 2: the class prior π.
    pub prior: PriorConfig,
    /// Part 3: the temperatures τ_pred and τ_cal.
    pub temperature: TemperatureConfig,
    /// When the three parts move.
    pub update: UpdateConfig,
    /// Start strict, relax as samples are admitted.
    pub schedule: ScheduleConfig,
    /// Delayed labels.
    pub feedback: FeedbackConfig,
}

/// Whose posterior shares an admitted sample among the classes it teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Responsibilities {
    /// The adapted model's, as published.
    Adapted,
    /// The frozen model's.
    Text,
}

/// Part 1: the prototypes t_c.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrototypesConfig {
    /// `true` keeps the text anchors μ_c.
    pub frozen: bool,
    /// α: weight of the anchor, in samples.
    pub alpha: f64,
    /// η: step towards the new mean at each update.
    pub eta: f64,
    /// ρ: largest distance from the anchor.
    pub rho: f64,
    /// ε: keeps the mean of nothing finite.
    pub epsilon: f64,
}

/// Part 2: the class prior π.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorConfig {
    /// `true` keeps π⁰.
    pub frozen: bool,
    /// π⁰, one value per class; empty is uniform.
    pub start: Vec<f64>,
    /// γ per class: pseudo-counts that hold π at π⁰.
    pub gamma: f64,
    /// κ: cap on KL(π‖π⁰).
    pub kappa: f64,
}

/// Part 3: the temperatures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemperatureConfig {
    /// `true` keeps τ_pred = 1.
    pub frozen: bool,
    /// `true` emits probabilities at τ_pred, too: one temperature instead of two.
    pub single: bool,
    /// β: smoothing of τ_pred.
    pub beta: f64,
    /// Least τ_pred.
    pub min: f64,
    /// Largest τ_pred.
    pub max: f64,
    /// Recent samples among which the admitted ones since the last update are looked for.
    pub window: usize,
    /// Whether τ_cal also multiplies the log prior.
    pub cal_prior: bool,
    /// Least τ_cal that labels can give.
    pub cal_min: f64,
    /// Largest τ_cal that labels can give.
    pub cal_max: f64,
    /// Classes per sample that the fits look at one by one …
    pub candidates: usize,
    /// … if within this many logits of the best.
    pub candidate_range: f64,
}

/// What is counted towards an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// Admitted samples.
    Admitted,
    /// All samples that may teach, admitted or not.
    Seen,
}

/// When the three parts move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpdateConfig {
    /// B: after this many samples.
    pub every: u64,
    /// Which samples are counted.
    pub count: Count,
    /// Also after this many seconds; 0 is off.
    pub seconds: f64,
}

/// Start strict, relax as samples are admitted. All but `samples` are factors at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Fully relaxed after this many admitted samples; 0 is off.
    pub samples: f64,
    /// On the share that the gate keeps.
    pub gate: f64,
    /// On α.
    pub alpha: f64,
    /// On γ.
    pub gamma: f64,
    /// On κ.
    pub kappa: f64,
    /// On η.
    pub eta: f64,
}

/// Delayed labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackConfig {
    /// Samples that can still be labelled. Of the older ones only the answer is kept: their labels tune the confidence.
    pub remember: usize,
    /// Whether a label also enters the class sums, if its sample is among the last 1,024.
    pub teach: bool,
    /// How many labels τ_cal = 1 is worth.
    pub prior_strength: f64,
}

impl Default for PaperConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Paper,
            responsibilities: Responsibilities::Adapted,
            min_responsibility: 1e-6,
            gate: GateConfig { keep: 0.5, ..Default::default() },
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
        Self { frozen: false, alpha: 1.0, eta: 0.1, rho: 0.01, epsilon: 1e-8 }
    }
}

impl Default for PriorConfig {
    fn default() -> Self {
        Self { frozen: false, start: Vec::new(), gamma: 1.0, kappa: 0.07 }
    }
}

impl Default for TemperatureConfig {
    fn default() -> Self {
        Self {
            frozen: false,
            single: false,
            beta: 0.9,
            min: 0.5,
            max: 3.0,
            window: 1024,
            cal_prior: false,
            cal_min: 0.2,
            cal_max: 5.0,
            candidates: 64,
            candidate_range: 6.0,
        }
    }
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self { every: 64, count: Count::Admitted, seconds: 0.0 }
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { samples: 0.0, gate: 0.5, alpha: 10.0, gamma: 10.0, kappa: 0.1, eta: 0.5 }
    }
}

impl Default for FeedbackConfig {
    fn default() -> Self {
        Self { remember: 100_000, teach: false, prior_strength: 10.0 }
    }
}

impl PaperConfig {
    /// The settings that the numbers in a saved state depend on: under others they would mean something else.
    pub(crate) const STATE_KEYS: [&str; 4] =
        ["prototypes.frozen", "prior.frozen", "prior.start", "temperature.candidates"];

    /// Checks every number against its range.
    pub(super) fn check(&self, n_classes: usize) -> Result<()> {
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
        range("prior.gamma", self.prior.gamma, 1e-9, 1e12)?;
        range("prior.kappa", self.prior.kappa, 0.0, inf)?;
        check_start(&self.prior.start, n_classes)?;
        let t = &self.temperature;
        range("temperature.beta", t.beta, 0.0, 1.0)?;
        range("temperature.min", t.min, 1e-3, t.max)?;
        range("temperature.max", t.max, 1e-3, 1e3)?;
        range("temperature.window", t.window as f64, 1.0, 1e6)?;
        range("temperature.cal_min", t.cal_min, 1e-3, t.cal_max)?;
        range("temperature.cal_max", t.cal_max, 1e-3, 1e3)?;
        range("temperature.candidates", t.candidates as f64, 2.0, 4096.0)?;
        range("temperature.candidate_range", t.candidate_range, 0.0, inf)?;
        range("update.every", self.update.every as f64, 1.0, 1e12)?;
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
