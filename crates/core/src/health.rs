//! [`Health`]: what operators watch when there are no labels.

use serde::{Deserialize, Serialize};

use crate::Estimate;
use crate::guard::Standing;

/// What operators watch when there are no labels. Shares are taken over the guard's window, which holds
/// samples that are no near-copies; maxima over the whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Samples answered: rows that came in.
    pub seen: u64,
    /// Scenes among them: runs of near-copies.
    pub scenes: u64,
    /// Rows per scene.
    pub rows_per_scene: f64,
    /// How often the method began anew because the stream had changed.
    pub restarts: u64,
    /// Samples that look like nothing the stream or the head knows, since the start: they taught nothing.
    pub garbage: u64,
    /// Share of recent samples that the gate admitted.
    pub admitted_share: f64,
    /// Share of recent samples answered differently from zero-shot.
    pub flip_share: f64,
    /// Samples answered differently from zero-shot, since the start.
    pub flips: u64,
    /// Running share of unknown samples, by verdicts from 0 on (half-life `unknown.advanced.share_half_life`).
    pub unknown_share: f64,
    /// KL(π‖π⁰) of the class prior.
    pub prior_kl: f64,
    /// Largest prototype movement over the classes.
    pub movement_max: f64,
    /// Mean prototype movement.
    pub movement_mean: f64,
    /// Temperature multiplier of the answer.
    pub tau_pred: f64,
    /// Temperature multiplier of the calibrated probabilities.
    pub tau_cal: f64,
    /// How much the evidence from the stream counts in the answers: 0 is nothing. For the default it is the *trust*.
    pub evidence_weight: f64,
    /// Effective number of classes among recent adapted answers.
    pub effective_classes: f64,
    /// Effective number of classes among recent zero-shot answers.
    pub effective_classes_zero_shot: f64,
    /// Largest prior KL seen at a check.
    pub max_prior_kl: f64,
    /// Largest prototype movement seen at a check.
    pub max_movement: f64,
    /// Whether the session adapts, was restored, or fell back to zero-shot.
    pub standing: Standing,
    /// Alarms raised since the start: how often the stream has changed.
    pub alarms: u64,
    /// Whether alarms have seen enough scenes to notice a change now.
    pub alarms_ready: bool,
    /// How often the collapse guard fired.
    pub guard_fired: u64,
    /// Share of the adapted answers that are right, estimated without labels or corrected by those that came.
    pub estimate: Estimate,
    /// Share of the zero-shot answers that are right, estimated without labels or corrected by those that came.
    pub estimate_zero_shot: Estimate,
    /// Share of the adapted answers over recent scenes that are right, by estimate (half-life 512 scenes).
    pub estimate_recent: Estimate,
    /// Share of the zero-shot answers over recent scenes that are right, by estimate.
    pub estimate_recent_zero_shot: Estimate,
    /// Labels that the estimates rest on.
    pub estimate_labels: u64,
    /// Share of the samples whose set of classes is to hold the truth; 0 where no sets are asked for.
    pub coverage: f64,
    /// Whether labels back this up: 20, after a change 20 since, and one of late. Without them the sets are credible sets, as right
    /// as the probabilities are.
    pub coverage_promise: bool,
    /// Labels that came for samples with sets.
    pub coverage_labels: u64,
    /// Share of these labels that the set of their sample held.
    pub coverage_held: f64,
    /// Mean number of classes of recent sets.
    pub set_size: f64,
    /// Bytes carried from sample to sample.
    pub state_bytes: usize,
}
