//! [`Health`]: what operators watch when there are no labels.

use serde::Serialize;

use crate::guard::Standing;

/// What operators watch when there are no labels. Shares are taken over the guard's window, which holds
/// samples that are no near-copies; maxima over the whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Health {
    /// Samples answered.
    pub seen: u64,
    /// Scenes among them: runs of near-copies.
    pub scenes: u64,
    /// Samples per scene.
    pub rows_per_scene: f64,
    /// How often the method began anew because the stream had changed.
    pub restarts: u64,
    /// Share of recent samples that the gate admitted.
    pub admitted_share: f64,
    /// Share of recent samples answered differently from zero-shot.
    pub flip_share: f64,
    /// Samples answered differently from zero-shot, since the start.
    pub flips: u64,
    /// Running share of unknown samples.
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
    /// The same for the zero-shot answers.
    pub effective_classes_zero_shot: f64,
    /// Largest prior KL seen at a check.
    pub max_prior_kl: f64,
    /// Largest prototype movement seen at a check.
    pub max_movement: f64,
    /// Whether the session adapts, was restored, or fell back to zero-shot.
    pub standing: Standing,
    /// How often the collapse guard fired.
    pub guard_fired: u64,
    /// Bytes carried from sample to sample.
    pub state_bytes: usize,
}
