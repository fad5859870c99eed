//! Settings of the default method. `config/default.toml` explains every key.

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::gate::GateConfig;
use crate::methods::presets::{Preset, check_start};
use crate::methods::recent::TEACHABLE;
use crate::{Error, Result};

/// Settings of the default method: first those that a user has a reason to change, the rest in [`Advanced`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DefaultConfig {
    /// Always [`Preset::Default`].
    pub preset: Preset,
    /// Whether a run of near-copies teaches once, and is answered from its mean.
    pub scenes: bool,
    /// Rows that look like nothing the stream or the head knows teach nothing.
    pub spot_garbage: bool,
    /// Which samples may teach.
    pub gate: GateChoice,
    /// The image evidence.
    pub prototypes: PrototypesConfig,
    /// The class prior.
    pub prior: PriorConfig,
    /// The emitted probabilities.
    pub calibration: CalibrationConfig,
    /// Delayed labels.
    pub feedback: FeedbackConfig,
    /// Settings that hardly anybody needs to change.
    pub advanced: Advanced,
}

/// Which samples may teach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateChoice {
    /// Share of recent samples that would pass; 1 admits every sample after the warm-up.
    pub keep: f64,
}

/// The image evidence: class means of the stream's own images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrototypesConfig {
    /// `true` answers from the text prototypes alone.
    pub frozen: bool,
    /// Half-life of the evidence in samples, at least.
    pub half_life: f64,
}

/// The class prior.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorConfig {
    /// `true` stays at the start.
    pub frozen: bool,
    /// Expected share of each class at the start; empty is uniform.
    pub start: Vec<f64>,
}

/// What sets the temperature τ_cal of the emitted probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationRule {
    /// The stream itself, corrected by delayed labels where there are any.
    #[default]
    Match,
    /// Delayed labels alone; τ_cal is 1 without them.
    Labels,
    /// Nothing: τ_cal is 1.
    Off,
}

/// The emitted probabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationConfig {
    /// What sets their temperature.
    pub rule: CalibrationRule,
}

/// Delayed labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackConfig {
    /// Samples that can still be labelled. Of the older ones only the answer is kept: their labels tune the confidence.
    pub remember: usize,
    /// Whether a label also enters the image evidence, if its sample is among the last 1,024.
    pub teach: bool,
}

/// Whose posterior shares an admitted sample among the classes it teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Responsibilities {
    /// Frozen logits and image evidence together, without the prior.
    Fused,
    /// Frozen logits alone: what was learnt cannot confirm itself.
    Text,
}

/// Settings that hardly anybody needs to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // explained in config/default.toml
pub struct Advanced {
    pub gate_window: usize,
    pub gate_warm_up: u64,
    pub responsibilities: Responsibilities,
    pub min_responsibility: f64,
    pub half_life_per_class: f64,
    pub shrink: f64,
    pub covariance_shrink: f64,
    pub trust_samples: f64,
    pub trust_max: f64,
    pub candidates: usize,
    pub candidate_range: f64,
    pub scale_window: usize,
    pub scale_min_rows: usize,
    pub prior_half_lives: Vec<f64>,
    pub prior_stays: Vec<f64>,
    pub prior_stay_lift: f64,
    pub prior_smoothing: f64,
    pub prior_dead_zone: f64,
    pub prior_background: f64,
    pub prior_record_decay: f64,
    pub prior_head_start: f64,
    pub prior_kl_max: f64,
    pub sharpen_share: f64,
    pub match_window: usize,
    pub match_power: f64,
    /// How far confidence moves, in log-odds, to what halves of the dimensions say of how right the head is.
    pub halves_share: f64,
    pub margin_share: f64,
    pub tau_min: f64,
    pub tau_max: f64,
    pub label_strength: f64,
    pub update_every: u64,
    pub update_seconds: f64,
    pub scene_near: f64,
    /// Noise is told from pictures in so many dimensions and more.
    pub garbage_dim: usize,
    pub correctable: usize,
    pub restart_at: f64,
    pub frozen_share: f64,
    pub floor: f64,
}

impl Default for DefaultConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Default,
            scenes: true,
            spot_garbage: true,
            gate: Default::default(),
            prototypes: Default::default(),
            prior: Default::default(),
            calibration: Default::default(),
            feedback: Default::default(),
            advanced: Default::default(),
        }
    }
}

impl Default for GateChoice {
    fn default() -> Self {
        Self { keep: 0.9 }
    }
}

impl Default for PrototypesConfig {
    fn default() -> Self {
        Self { frozen: false, half_life: 1000.0 }
    }
}

impl Default for FeedbackConfig {
    fn default() -> Self {
        Self { remember: 100_000, teach: false }
    }
}

impl Default for Advanced {
    fn default() -> Self {
        Self {
            gate_window: 512,
            gate_warm_up: 100,
            responsibilities: Responsibilities::Fused,
            min_responsibility: 3e-3,
            half_life_per_class: 32.0,
            shrink: 3.0,
            covariance_shrink: 0.3,
            trust_samples: 20.0,
            trust_max: 5.0,
            candidates: 64,
            candidate_range: 6.0,
            scale_window: 768,
            scale_min_rows: 100,
            prior_half_lives: vec![4.0, 16.0, 64.0, 256.0, f64::INFINITY],
            prior_stays: vec![0.5, 0.8, 0.95, 0.99],
            prior_stay_lift: 0.7,
            prior_smoothing: 0.05,
            prior_dead_zone: 0.4,
            prior_background: 1.0,
            prior_record_decay: 0.985,
            prior_head_start: 6.0,
            prior_kl_max: f64::INFINITY,
            sharpen_share: 1.0,
            match_window: 1024,
            match_power: 0.73,
            halves_share: 0.79,
            margin_share: 0.35,
            tau_min: 0.2,
            tau_max: 5.0,
            label_strength: 10.0,
            update_every: 128,
            update_seconds: 0.0,
            scene_near: 0.25,
            garbage_dim: 256,
            correctable: 1024,
            restart_at: 3.0,
            frozen_share: 0.33,
            floor: 0.003,
        }
    }
}

/// The gate admits nothing while it holds fewer samples: a quantile of fewer says little.
const GATE_MIN_FILL: usize = 30;

impl DefaultConfig {
    /// The settings that the numbers in a saved state depend on: under others they would mean something else.
    pub(crate) const STATE_KEYS: [&str; 8] = [
        "prototypes.frozen",
        "prototypes.half_life",
        "advanced.half_life_per_class",
        "prior.frozen",
        "prior.start",
        "advanced.prior_half_lives",
        "advanced.prior_stays",
        "advanced.candidates",
    ];

    /// Half-life of the evidence for a head, in samples.
    pub(super) fn half_life(&self, classes: usize) -> f64 {
        self.prototypes.half_life.max(self.advanced.half_life_per_class * classes as f64)
    }

    /// How far τ_pred follows the margins: only where temperatures follow the stream.
    pub(super) fn sharpen_share(&self) -> f64 {
        if self.calibration.rule == CalibrationRule::Match { self.advanced.sharpen_share } else { 0.0 }
    }

    /// The gate's settings.
    pub(super) fn gate(&self) -> GateConfig {
        GateConfig {
            enabled: self.gate.keep < 1.0,
            keep: self.gate.keep,
            keep_margin: 0.0,
            window: self.advanced.gate_window,
            min_fill: GATE_MIN_FILL,
            warm_up: self.advanced.gate_warm_up,
        }
    }

    /// Samples that must be remembered whole: for the fits, and for labels that teach.
    pub(super) fn remembered(&self) -> usize {
        let teachable = if self.feedback.teach { TEACHABLE } else { 1 };
        self.advanced.scale_window.max(self.advanced.match_window).max(teachable)
    }

    /// Checks every number against its range.
    pub(super) fn check(&self, n_classes: usize) -> Result<()> {
        let key = |k: &str| format!("method.ul_tta.{k}");
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&key(k), v, lo..=hi);
        let inf = f64::INFINITY;
        range("gate.keep", self.gate.keep, 0.0, 1.0)?;
        range("prototypes.half_life", self.prototypes.half_life, 1.0, inf)?;
        check_start(&self.prior.start, n_classes)?;
        range("feedback.remember", self.feedback.remember as f64, 1.0, 1e6)?;
        let a = &self.advanced;
        range("advanced.gate_window", a.gate_window as f64, 1.0, 1e6)?;
        range("advanced.min_responsibility", a.min_responsibility, 0.0, 1.0)?;
        range("advanced.half_life_per_class", a.half_life_per_class, 0.0, inf)?;
        range("advanced.shrink", a.shrink, 1e-9, inf)?;
        range("advanced.covariance_shrink", a.covariance_shrink, 1e-3, 1.0)?;
        range("advanced.trust_samples", a.trust_samples, 0.0, inf)?;
        range("advanced.trust_max", a.trust_max, 0.0, 1e3)?;
        range("advanced.candidates", a.candidates as f64, 2.0, 4096.0)?;
        range("advanced.candidate_range", a.candidate_range, 0.0, inf)?;
        range("advanced.scale_window", a.scale_window as f64, 1.0, 1e6)?;
        for &half_life in &a.prior_half_lives {
            range("advanced.prior_half_lives", half_life, 1.0, inf)?;
        }
        if !(1..=super::prior::MAX_EXPERTS).contains(&a.prior_half_lives.len()) {
            let (most, got) = (super::prior::MAX_EXPERTS, a.prior_half_lives.len());
            let reason = format!("expected 1 to {most} values, got {got}");
            return Err(Error::config(key("advanced.prior_half_lives"), reason));
        }
        for &stay in &a.prior_stays {
            range("advanced.prior_stays", stay, 0.0, 1.0)?;
        }
        if a.prior_stays.len() > super::prior::MAX_STAYS {
            let (most, got) = (super::prior::MAX_STAYS, a.prior_stays.len());
            return Err(Error::config(
                key("advanced.prior_stays"),
                format!("expected at most {most} values, got {got}"),
            ));
        }
        range("advanced.prior_stay_lift", a.prior_stay_lift, 0.0, 1.0)?;
        range("advanced.prior_smoothing", a.prior_smoothing, 1e-9, 1e12)?;
        range("advanced.prior_dead_zone", a.prior_dead_zone, 0.0, 100.0)?;
        range("advanced.prior_background", a.prior_background, 0.0, 1.0)?;
        range("advanced.prior_record_decay", a.prior_record_decay, 0.0, 1.0)?;
        range("advanced.prior_head_start", a.prior_head_start, -1e3, 1e3)?;
        range("advanced.prior_kl_max", a.prior_kl_max, 0.0, inf)?;
        range("advanced.sharpen_share", a.sharpen_share, 0.0, 1.0)?;
        range("advanced.match_window", a.match_window as f64, 1.0, 1e6)?;
        range("advanced.match_power", a.match_power, 0.0, 1.0)?;
        range("advanced.halves_share", a.halves_share, 0.0, 1.0)?;
        range("advanced.margin_share", a.margin_share, 0.0, 1.0)?;
        range("advanced.tau_min", a.tau_min, 1e-3, a.tau_max)?;
        range("advanced.tau_max", a.tau_max, 1e-3, 1e3)?;
        range("advanced.label_strength", a.label_strength, 0.0, 1e12)?;
        range("advanced.update_every", a.update_every as f64, 1.0, 1e12)?;
        range("advanced.update_seconds", a.update_seconds, 0.0, inf)?;
        range("advanced.scene_near", a.scene_near, 0.0, 1.0)?;
        range("advanced.correctable", a.correctable as f64, 0.0, 1e6)?;
        range("advanced.restart_at", a.restart_at, 1.0, inf)?;
        range("advanced.frozen_share", a.frozen_share, 0.0, 0.5)?;
        range("advanced.floor", a.floor, 0.0, 0.5)
    }
}
