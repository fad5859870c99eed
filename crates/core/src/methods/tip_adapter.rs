//! Tip-Adapter: a cache of labelled shots beside the frozen scores.
//!
//! Zhang et al., *Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification*, ECCV 2022.
//!
//! ```text
//! ℓ = s⟨z, w⟩ + α Σ_i exp(−β (1 − ⟨z, k_i⟩)) onehot(y_i)        16 shots per class, k_i their features
//! ```
//!
//! The publication searches α and β on a validation set; here they stay at its starting values for ImageNet.
//!
//! With `shots`, a safetensors file with `features` (n × d) and `labels` (n), it is the published method: labelled,
//! and it learns nothing from the stream. Without, it is its honest unlabelled reading: the cache holds, per
//! pseudo-class, the 16 samples of lowest entropy that the stream has brought; a sample joins before it is
//! scored, as in TDA.

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::math;
use crate::adapter::{Adapter, Batch, Card, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::{Error, FeatureFile, Features, Head, Result, Scores, State, What};

/// Settings of Tip-Adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TipAdapterConfig {
    /// File of labelled shots; empty for the unlabelled reading.
    pub shots: String,
    /// Samples per class the unlabelled cache holds.
    pub capacity: usize,
    /// Weight of the cache (α).
    pub alpha: f64,
    /// Sharpness of the cache (β).
    pub beta: f64,
}

impl Default for TipAdapterConfig {
    fn default() -> Self {
        Self { shots: String::new(), capacity: 16, alpha: 1.17, beta: 1.0 }
    }
}

impl TipAdapterConfig {
    /// The adapter for a head; reads the shots.
    pub(crate) fn build(&self, head: &Head) -> Result<TipAdapter> {
        in_range("method.tip_adapter.alpha", self.alpha, 0.0..=1e6)?;
        in_range("method.tip_adapter.beta", self.beta, 0.0..=1e6)?;
        let labelled = !self.shots.is_empty();
        let capacity = if labelled { usize::MAX } else { self.capacity };
        let mut cache = Cache::new(head.dim(), head.n_classes(), capacity);
        if labelled {
            let (features, labels) = read_shots(&self.shots)?;
            if features.dim() != head.dim() {
                return Err(Error::Shape {
                    what: What::Other("dimension of the shots"),
                    expected: head.dim(),
                    got: features.dim(),
                });
            }
            for (row, label) in labels.into_iter().enumerate() {
                if label >= head.n_classes() {
                    return Err(Error::Label { label, classes: head.n_classes() });
                }
                cache.offer(label, 0.0, features.row(row));
            }
        }
        Ok(TipAdapter { start: cache.clone(), cache, config: self.clone() })
    }
}

/// The rows and labels of a file of shots.
fn read_shots(path: &str) -> Result<(Features<'static>, Vec<usize>)> {
    let file = FeatureFile::open(path)?;
    let labels = file
        .stored()
        .labels()
        .ok_or_else(|| Error::format(path, "shots: expected a tensor `labels`, one per row"))?;
    Ok((file.read_all(false)?, labels.to_vec()))
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "tip_adapter",
    summary: "a cache of labelled shots (setting `shots`); without them, of the stream's own confident answers",
    paper: "Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022",
    // 16 cached samples per class.
    operations: Some(|c, d| 32.0 * c * d + 32.0 * c),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    files: &["shots"],
    tuned: true,
    answer_keys: &["alpha", "beta"],
    ..Card::PLAIN
};

/// Tip-Adapter.
#[derive(Clone, Debug)]
pub(crate) struct TipAdapter {
    config: TipAdapterConfig,
    /// The labelled shots, or nothing.
    start: Cache,
    cache: Cache,
}

impl Adapter for TipAdapter {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), batch.zero_shot.classes());
        for row in 0..batch.rows() {
            let mut sums = math::widen(batch.zero_shot.row(row));
            let TipAdapterConfig { alpha, beta, .. } = self.config;
            self.cache.add_affinities(batch.features.row(row), alpha, beta, &mut sums);
            scores.row_mut(row).iter_mut().zip(sums).for_each(|(s, v)| *s = v as f32);
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let unlabelled = self.config.shots.is_empty();
        let mut admitted = Vec::with_capacity(batch.rows());
        for (row, frozen) in batch.frozen.iter().enumerate() {
            let may = unlabelled && batch.may_learn(row);
            let row = batch.features.row(row);
            admitted.push(may && self.cache.offer(frozen.label, frozen.entropy, row).is_some());
        }
        Observed { admitted }
    }

    fn reset(&mut self) {
        self.cache = self.start.clone();
    }

    fn save(&self) -> State {
        let mut state = State::default();
        self.cache.save("cache", &mut state);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.cache = self.cache.loaded("cache", state)?;
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        Vitals { state_bytes: self.cache.bytes(), ..Default::default() }
    }
}
