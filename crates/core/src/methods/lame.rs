//! LAME: the batch's probabilities pulled together along its nearest neighbours.
//!
//! Boudiaf et al., *Parameter-free Online Test-time Adaptation*, CVPR 2022.
//!
//! ```text
//! K_ij = 1 if j is among the 5 nearest neighbours of i in the batch (not symmetrised)
//! Y⁰ = p;   Y ← softmax(log p + λ K Y), until the energy settles, at most 100 times
//! energy = Σ Y ⊙ (−log p − λ K Y + log Y);   settled: |ΔE| ≤ 1e-8 |E|
//! ```
//!
//! Joint over a batch; nothing is carried between batches. The kernel that does the best in the publication's
//! tables (k-nearest neighbours) is the one offered.

use serde::{Deserialize, Serialize};

use super::math;
use crate::adapter::{Adapter, Batch, Card, Grouping, Prediction, Readout};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Features, Head, Result, Scores, kernels};

/// Keeps log p finite, as published.
const EPSILON: f64 = 1e-10;

/// Settings of LAME.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LameConfig {
    /// Neighbours of a sample.
    pub neighbours: usize,
    /// Weight of the neighbours (λ).
    pub weight: f64,
    /// Most iterations.
    pub iterations: usize,
}

impl Default for LameConfig {
    fn default() -> Self {
        Self { neighbours: 5, weight: 1.0, iterations: 100 }
    }
}

impl LameConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, _head: &Head) -> Result<Lame> {
        in_range("method.lame.weight", self.weight, 0.0..=1e6)?;
        in_range("method.lame.iterations", self.iterations as f64, 0.0..=1e6)?;
        Ok(Lame { config: self.clone() })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "lame",
    summary: "probabilities of a batch pulled together along nearest neighbours; carries nothing on",
    paper: "Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022",
    // Neighbours in a batch of 64; at most 100 rounds over 5 of them.
    operations: Some(|c, d| 128.0 * d + 1000.0 * c),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    batch: Some(64),
    answer_keys: &["neighbours", "weight", "iterations"],
    ..Card::PLAIN
};

/// LAME.
#[derive(Clone, Debug)]
pub(crate) struct Lame {
    config: LameConfig,
}

/// The `k` rows most similar to each row, itself left out, with their products; the first among equals.
pub(crate) fn nearest_rows(features: &Features<'_>, k: usize) -> Vec<Vec<(usize, f64)>> {
    let rows = features.rows();
    let mut products = vec![0.0; rows * rows];
    if rows > 0 {
        kernels::products(features.data(), features.data(), features.dim(), 1.0, &mut products);
    }
    let neighbours = |i: usize| {
        let mut others: Vec<usize> = (0..rows).filter(|&j| j != i).collect();
        let product = |j: usize| products[i * rows + j];
        others.sort_by(|&a, &b| product(b).total_cmp(&product(a)).then(a.cmp(&b)));
        others.truncate(k);
        others.into_iter().map(|j| (j, product(j) as f64)).collect()
    };
    (0..rows).map(neighbours).collect()
}

impl Lame {
    fn solve(&self, batch: &Batch<'_>) -> Vec<f64> {
        let classes = batch.zero_shot.classes();
        let neighbours = nearest_rows(&batch.features, self.config.neighbours);
        let mut y: Vec<f64> = Vec::with_capacity(batch.rows() * classes);
        for row in 0..batch.rows() {
            let mut p = math::widen(batch.zero_shot.row(row));
            softmax_f64(&mut p);
            y.extend(p);
        }
        let log_p: Vec<f64> = y.iter().map(|p| (p + EPSILON).ln()).collect();
        let mut energy = f64::INFINITY;
        for iteration in 0..self.config.iterations {
            let mut next = log_p.clone();
            kernels::vectorised(
                #[inline(always)]
                || {
                    for (logits, nearest) in next.chunks_mut(classes).zip(&neighbours) {
                        for &(j, _) in nearest {
                            let other = &y[j * classes..][..classes];
                            logits.iter_mut().zip(other).for_each(|(l, v)| *l += self.config.weight * v);
                        }
                    }
                },
            );
            // Σ y (log y − log p − pull): every logarithm is its logit less the row's log-sum.
            let now = -next.chunks_mut(classes).map(softmax_f64).sum::<f64>();
            y = next;
            if iteration > 1 && (now - energy).abs() <= 1e-8 * energy.abs() {
                break;
            }
            energy = now;
        }
        y
    }
}

impl Adapter for Lame {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), batch.zero_shot.classes());
        math::logits_of(&self.solve(batch), scores.data_mut());
        Prediction::from_scores(scores)
    }
}
