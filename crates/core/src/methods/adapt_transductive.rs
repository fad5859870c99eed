//! ADAPT, transductive: as [`adapt`](super::adapt), with all samples at hand before the first is answered.
//!
//! Zhang et al., *Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment*, NeurIPS 2025,
//! arXiv 2508.15568, with its released `ADAPT_transductive.py`. The batch is the whole stream. Its bank holds, per class k
//! that some sample prefers, the 6 of those samples with the lowest entropy; every sample j counts in every mean:
//!
//! ```text
//! μ_c = α (Σ_bank c q_i z_i + Σ_j p_jc z_j) / (Σ q_i + Σ_j p_jc) + (1 − α) w_c,  classes without a bank: w_c
//! A, v and the answer as online, v over the finished bank
//! ```
//!
//! The released code's quirk, `double_count`: samples of the bank count twice in their mean. The other departures are those
//! of the online form; nothing lags here. Nothing is kept from one batch to the next. Rows that must not teach enter
//! neither bank nor means, and are answered.

use serde::{Deserialize, Serialize};

use super::adapt::{Bank, blend, scale_logits};
use super::math;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, Grouping, Prediction, Readout};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Head, Result, Scores};

/// Settings of ADAPT, transductive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptTransductiveConfig {
    /// Samples in the bank per class (L).
    pub capacity: usize,
    /// Share of the samples in a class mean (α).
    pub alpha: f64,
    /// How little the Gaussian term counts (s).
    pub scale: f64,
    /// Whether samples of the bank count twice in their mean, as released.
    pub double_count: bool,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
}

impl Default for AdaptTransductiveConfig {
    fn default() -> Self {
        Self { capacity: 6, alpha: 0.9, scale: 60.0, double_count: true, view_share: 0.1 }
    }
}

impl AdaptTransductiveConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<AdaptTransductive> {
        in_range("method.adapt_transductive.capacity", self.capacity as f64, 1.0..=1e6)?;
        in_range("method.adapt_transductive.alpha", self.alpha, 0.0..=1.0)?;
        in_range("method.adapt_transductive.scale", self.scale, 1e-3..=1e9)?;
        in_range("method.adapt_transductive.view_share", self.view_share, 0.0..=1.0)?;
        Ok(AdaptTransductive { config: self.clone(), head: head.clone() })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "adapt_transductive",
    summary: "Gaussian classes and a vote of confident samples scale the frozen logits, over the whole stream",
    paper: super::adapt::CARD.paper,
    // Sums over all samples, the vote of 6 per class, the scores; the one factorisation is shared by the whole stream.
    operations: Some(|c, d| 16.0 * c * d),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    transductive: true,
    tuned: true,
    answer_keys: &["capacity", "alpha", "scale", "double_count", "view_share"],
    reads_views: true,
    ..Card::PLAIN
};

/// ADAPT, transductive.
#[derive(Clone, Debug)]
pub(crate) struct AdaptTransductive {
    config: AdaptTransductiveConfig,
    head: Head,
}

impl AdaptTransductive {
    /// Σ_j p_jc z_j and Σ_j p_jc of every class, and the bank.
    fn gather(&self, samples: &[(Sample<'_>, bool)]) -> (Vec<f64>, Vec<f64>, Bank) {
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let (mut sums, mut totals) = (vec![0.0; classes * dim], vec![0.0; classes]);
        let mut bank = Bank::new(dim, classes, self.config.capacity);
        for (sample, _) in samples.iter().filter(|(_, teaches)| *teaches) {
            // Of views the mean of their probabilities, as online; of one row in full precision.
            let mut probs = math::widen(if sample.of_views() { &sample.probs } else { &sample.logits });
            if !sample.of_views() {
                softmax_f64(&mut probs);
            }
            for (class, &p) in probs.iter().enumerate() {
                // Below this it is less than rounding in the sums.
                if p > 1e-12 {
                    math::add(&mut sums[class * dim..][..dim], p, &sample.feature);
                    totals[class] += p;
                }
            }
            let entropy = -probs.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
            bank.offer(sample.label, entropy as f32, probs[sample.label] as f32, &sample.feature);
        }
        (sums, totals, bank)
    }
}

impl Adapter for AdaptTransductive {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let sample = |row| (Sample::confident(batch, row, self.config.view_share), batch.may_learn(row));
        let samples: Vec<(Sample<'_>, bool)> = (0..batch.rows()).map(sample).collect();
        let (mut means, mut totals, mut bank) = self.gather(&samples);
        for (class, mean) in means.chunks_mut(dim).enumerate() {
            let text = self.head.prototype(class);
            if bank.held(class) == 0 {
                mean.iter_mut().zip(text).for_each(|(m, &w)| *m = w as f64);
                continue;
            }
            if self.config.double_count {
                totals[class] += bank.add_weighted(class, mean);
            }
            blend(mean, totals[class], self.config.alpha, text);
        }
        let gaussian = bank.precision(&means).discriminant(&means);
        let mut scores = Scores::zeros(batch.rows(), classes);
        for (row, (sample, _)) in samples.iter().enumerate() {
            let z = &sample.feature;
            let out = scores.row_mut(row);
            scale_logits(
                gaussian.scores(z),
                &bank.vote(z),
                bank.len(),
                self.config.scale,
                &sample.logits,
                out,
            );
        }
        Prediction::from_scores(scores)
    }
}
