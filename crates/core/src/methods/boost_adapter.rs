//! BoostAdapter: TDA whose positive cache is extended, for each sample, by the sample's own confident views.
//!
//! Zhang et al., *BoostAdapter: Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping*,
//! NeurIPS 2024.
//!
//! ```text
//! caches as in TDA, updated before scoring
//! for x: a throw-away copy of the positive cache takes in the 10 % most certain views of x under their own
//!        pseudo-labels, with room for K₊ + δ samples per class
//! ℓ = TDA's scores with that copy in place of the positive cache
//! ```
//!
//! Logits and cache entries come from the original view; the views only feed the copy, as published for the
//! fine-grained datasets (`average_views` gives the other reading: TDA's mean over the views).

use serde::{Deserialize, Serialize};

use super::math;
use super::tda::{Caches, TdaConfig};
use super::views::{Sample, confident_views};
use crate::adapter::{Adapter, Batch, Card, Grouping, Observed, Prediction, Readout, Vitals};
use crate::{Head, Result, Scores, State};

/// Settings of BoostAdapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoostAdapterConfig {
    /// Room for boosting samples per class beyond the positive cache's (δ).
    pub delta: usize,
    /// Whether a sample's logits and feature are means over its confident views.
    pub average_views: bool,
    /// The caches.
    pub caches: TdaConfig,
}

impl Default for BoostAdapterConfig {
    fn default() -> Self {
        Self { delta: 3, average_views: false, caches: TdaConfig::default() }
    }
}

impl BoostAdapterConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<BoostAdapter> {
        self.caches.check("boost_adapter.caches")?;
        Ok(BoostAdapter { caches: Caches::new(&self.caches, head), config: self.clone() })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "boost_adapter",
    summary: "TDA with each sample's confident views joining the cache for its own answer",
    paper: "Zhang et al., BoostAdapter: Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping, NeurIPS 2024",
    // The scores of 64 views; TDA.
    operations: Some(|c, d| 138.0 * c * d + 4.0 * c * c),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    needs_views: true,
    tuned: true,
    ..Card::PLAIN
};

/// BoostAdapter.
#[derive(Clone, Debug)]
pub(crate) struct BoostAdapter {
    config: BoostAdapterConfig,
    caches: Caches,
}

impl BoostAdapter {
    fn sample<'a>(&self, batch: &'a Batch<'_>, row: usize) -> Sample<'a> {
        if self.config.average_views {
            Sample::confident(batch, row, self.config.caches.view_share)
        } else {
            Sample::own(batch, row)
        }
    }

    /// The positive term with the views of the sample in the cache.
    fn add_boosted(&self, batch: &Batch<'_>, row: usize, feature: &[f32], scores: &mut [f64]) {
        let TdaConfig { alpha, beta, capacity, view_share, .. } = self.config.caches;
        let cache = &self.caches.positive;
        let products = cache.products(feature);
        let views = confident_views(batch, row, view_share);
        for (class, score) in scores.iter_mut().enumerate() {
            let mut entries: Vec<(f32, f64)> =
                cache.slots(class).map(|s| (cache.entropy(s), products[s] as f64)).collect();
            let own = views.iter().filter(|v| v.label == class);
            entries.extend(own.map(|v| (v.entropy, crate::kernels::dot_f64(feature, v.feature))));
            entries.sort_by(|a, b| a.0.total_cmp(&b.0));
            entries.truncate(capacity + self.config.delta);
            for (_, product) in entries {
                *score += alpha * (-beta * (1.0 - product)).exp();
            }
        }
    }
}

impl Adapter for BoostAdapter {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), batch.zero_shot.classes());
        for row in 0..batch.rows() {
            let sample = self.sample(batch, row);
            let mut sums = math::widen(&sample.logits);
            self.add_boosted(batch, row, &sample.feature, &mut sums);
            self.caches.subtract_negative(&sample.feature, &mut sums);
            scores.row_mut(row).iter_mut().zip(sums).for_each(|(s, v)| *s = v as f32);
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let sample = self.sample(batch, row);
            admitted.push(batch.may_learn(row) && self.caches.accumulate(&sample));
        }
        Observed { admitted }
    }

    fn reset(&mut self) {
        self.caches.clear();
    }

    fn save(&self) -> State {
        self.caches.save()
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.caches.load(state)
    }

    fn vitals(&self) -> Vitals {
        Vitals { state_bytes: self.caches.bytes(), ..Default::default() }
    }
}
