//! The frozen model itself as a method, so that the baseline is run and measured like every other method.

use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, Batch, Card, Grouping, Prediction, Readout};
use crate::{Head, Layer, Result};

/// Zero-shot has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroShotConfig {}

impl ZeroShotConfig {
    /// The adapter.
    pub(crate) fn build(&self, _head: &Head) -> Result<ZeroShot> {
        Ok(ZeroShot)
    }
}

/// Answers with the frozen model's scores and never learns.
#[derive(Clone, Debug)]
pub(crate) struct ZeroShot;

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "zero_shot",
    summary: "the frozen model's own answer; learns nothing",
    paper: "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    baseline: true,
    operations: Some(|_, _| 0.0),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

impl Adapter for ZeroShot {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let answers = batch
            .frozen
            .iter()
            .map(|s| crate::adapter::Answer {
                label: s.label,
                prob: s.prob,
                prob_pred: s.prob,
                ..Default::default()
            })
            .collect();
        let rows = batch.rows();
        Prediction {
            scores: batch.zero_shot.to_scores(),
            calibrated: None,
            probs: None,
            tau_cal: vec![1.0; rows],
            answers,
        }
    }

    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        self.predict(batch)
    }

    fn layer(&self, head: &Head) -> Option<Layer> {
        Some(Layer::frozen(head))
    }
}
