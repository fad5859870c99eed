//! [`Step`]: what came of one block of samples.

use serde::{Deserialize, Serialize};

use crate::adapter::Prediction;
use crate::scores::{softmax_from, top_k};
use crate::{Alarm, Health, Scores};

/// The zero-shot answer for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZeroShotAnswer {
    /// The class the frozen model answers.
    pub label: usize,
    /// Its probability.
    pub prob: f32,
}

/// The answer for a row, the adapted one beside the frozen one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Id of the sample, for feedback: samples are numbered in arrival order.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its calibrated probability (τ_cal).
    pub prob: f32,
    /// Its probability at the prediction temperature (τ_pred).
    pub prob_pred: f32,
    /// What the frozen model says.
    pub zero_shot: ZeroShotAnswer,
    /// Whether the gate admitted the sample as a teacher.
    pub admitted: bool,
    /// Whether the sample fits no class.
    pub unknown: bool,
    /// Whether the sample looks like nothing that the stream or the head knows (noise, the opposite of a picture): then it
    /// teaches nothing. Only the default method tells.
    pub garbage: bool,
    /// Number of the scene that the sample belongs to, from 0. A scene is a run of near-copies; where the method
    /// knows no scenes every sample is one. A sample that may not teach is told the scene at hand.
    pub scene: u64,
    /// Whether the sample began its scene: it may teach, and is no near-copy.
    pub begins_scene: bool,
}

/// Which probabilities are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// The ones behind the answer (τ_pred).
    Pred,
    /// The calibrated ones (τ_cal), for consumers.
    Cal,
}

/// What came of one block of samples.
#[derive(Clone, Debug)]
pub struct Step {
    /// One answer per sample.
    pub rows: Vec<Row>,
    /// The set of classes of each sample, the most probable first; none unless `coverage` is set.
    pub sets: Vec<Vec<u32>>,
    /// How well each sample fits the known ones, the score that `unknown` goes by; none where rejection is off.
    pub known: Vec<f32>,
    /// The frozen model's logits; empty unless scores are kept.
    pub zero_shot: Scores,
    /// The adapter's logits and temperatures; empty unless scores are kept.
    pub prediction: Prediction,
    /// Alarms raised in this step.
    pub alarms: Vec<Alarm>,
    /// Health after this step.
    pub health: Health,
}

impl Step {
    /// Probabilities of all classes for a row; the answer's is the row's own, to the last bit. Needs kept scores.
    pub fn probs(&self, row: usize, temperature: Temperature) -> Vec<f32> {
        let scores = &self.prediction.scores;
        let mut probs = vec![0.0; scores.classes()];
        let answer = &self.rows[row];
        let (logits, tau, prob) = match temperature {
            Temperature::Pred => (scores, 1.0, answer.prob_pred),
            Temperature::Cal => {
                let logits = self.prediction.calibrated.as_ref().unwrap_or(scores);
                (logits, self.prediction.tau_cal[row], answer.prob)
            }
        };
        softmax_from(logits.row(row), tau, (answer.label, prob), &mut probs);
        probs
    }

    /// The `k` best classes of a row with their calibrated probabilities. Needs kept scores.
    pub fn top(&self, row: usize, k: usize) -> Vec<(usize, f32)> {
        let probs = self.probs(row, Temperature::Cal);
        top_k(self.prediction.scores.row(row), k).into_iter().map(|(c, _)| (c, probs[c])).collect()
    }
}
