//! ZERO: a vote of the sample's most certain views, each with its temperature at zero.
//!
//! Farina et al., *Frustratingly Easy Test-Time Adaptation of Vision-Language Models*, NeurIPS 2024.
//!
//! ```text
//! keep the 30 % most certain of the N views;  p = mean over them of onehot(argmax)
//! a tie is broken by the next most certain views, one by one
//! ```
//!
//! Departure: if all views together still leave a tie, the larger mean probability among the tied classes wins.
//! Stateless. The probabilities are shares of votes; a class without a vote keeps a floor of one part in 1000 of
//! its frozen probability, so that logarithms exist.

use serde::{Deserialize, Serialize};

use super::math;
use super::views::views_by_entropy;
use crate::adapter::{Adapter, Batch, Card, Grouping, Prediction, Readout};
use crate::config::in_range;
use crate::scores::softmax;
use crate::{Head, Result, Scores};

/// Weight of the frozen posterior that keeps shares of votes above zero.
const FLOOR: f64 = 1e-3;

/// A tie is decided by this much of a vote.
const TIE_BREAK: f64 = 1e-3;

/// Settings of ZERO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroConfig {
    /// Share of the views, the most certain ones, that vote.
    pub share: f64,
}

impl Default for ZeroConfig {
    fn default() -> Self {
        Self { share: 0.3 }
    }
}

impl ZeroConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, _head: &Head) -> Result<Zero> {
        in_range("method.zero.share", self.share, 0.0..=1.0)?;
        Ok(Zero { config: self.clone() })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "zero",
    summary: "majority vote of the sample's most certain views",
    paper: "Farina et al., Frustratingly Easy Test-Time Adaptation of Vision-Language Models, NeurIPS 2024",
    // The scores of 64 views.
    operations: Some(|c, d| 128.0 * c * d),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    needs_views: true,
    answer_keys: &["share"],
    ..Card::PLAIN
};

/// ZERO.
#[derive(Clone, Debug)]
pub(crate) struct Zero {
    config: ZeroConfig,
}

impl Zero {
    /// Probabilities by vote.
    fn vote(&self, batch: &Batch<'_>, row: usize) -> Vec<f64> {
        let views = views_by_entropy(batch, row);
        let voters = ((views.len() as f64 * self.config.share) as usize).max(1);
        let classes = batch.zero_shot.classes();
        let mut mean = vec![0.0f64; classes];
        let mut probs = vec![0.0; classes];
        for view in &views {
            softmax(view.logits, 1.0, &mut probs);
            mean.iter_mut().zip(&probs).for_each(|(m, &p)| *m += p as f64 / views.len() as f64);
        }
        let mut votes = vec![0.0; classes];
        views[..voters].iter().for_each(|v| votes[v.label] += 1.0);
        let tied = leaders(&votes);
        if tied.len() > 1 {
            // The next views vote on, among the tied classes, until one leads.
            let mut more = vec![0.0; classes];
            let decided = views[voters..].iter().filter(|v| tied.contains(&v.label)).find_map(|v| {
                more[v.label] += 1.0;
                Some(v.label).filter(|_| leaders(&more).len() == 1)
            });
            let best_mean =
                || *tied.iter().max_by(|a, b| mean[**a].total_cmp(&mean[**b])).unwrap_or(&tied[0]);
            votes[decided.unwrap_or_else(best_mean)] += TIE_BREAK;
        }
        math::to_shares(&mut votes);
        votes.iter().zip(&mean).map(|(v, m)| (1.0 - FLOOR) * v + FLOOR * m).collect()
    }
}

/// The classes with the most votes.
fn leaders(votes: &[f64]) -> Vec<usize> {
    let most = votes[math::argmax(votes)];
    (0..votes.len()).filter(|&c| votes[c] == most).collect()
}

impl Adapter for Zero {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), batch.zero_shot.classes());
        for row in 0..batch.rows() {
            math::logits_of(&self.vote(batch, row), scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }
}
