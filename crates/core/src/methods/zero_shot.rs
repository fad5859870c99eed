//! The frozen model itself, as a method: the baseline walks through the same door.

use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, Batch, Card, Prediction, Readout, Rows};
use crate::{Head, Result};

/// Zero-shot has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroShotConfig {}

impl ZeroShotConfig {
    /// The adapter.
    pub fn build(&self, _head: &Head) -> Result<ZeroShot> {
        Ok(ZeroShot)
    }
}

/// Answers with the frozen model's scores and never learns.
#[derive(Clone, Debug)]
pub struct ZeroShot;

/// The method's card.
pub static CARD: Card = Card {
    name: "zero_shot",
    summary: "the frozen model's own answer; learns nothing",
    paper: "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    readout: Readout::BeforeObserve,
    rows: Rows::Independent,
    needs_horizon: false,
    needs_labels: false,
    needs_views: false,
};

impl Adapter for ZeroShot {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Result<Prediction> {
        let answers = batch
            .frozen
            .iter()
            .map(|s| crate::adapter::Answer {
                label: s.label,
                prob: s.prob,
                prob_pred: s.prob,
                admitted: false,
            })
            .collect();
        let rows = batch.rows();
        Ok(Prediction {
            scores: batch.zero_shot.to_scores(),
            calibrated: None,
            tau_cal: vec![1.0; rows],
            answers,
        })
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<Prediction> {
        self.predict(batch)
    }
}
