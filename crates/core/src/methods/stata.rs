//! StatA: Gaussian classes fitted to a batch, anchored to the text by their counts.
//!
//! Zanella et al., *Realistic Test-Time Adaptation of Vision-Language Models*, CVPR 2025.
//!
//! ```text
//! ŷ = softmax(s⟨x, w⟩), z⁰ = ŷ;  W_ij = ⟨x_i, x_j⟩ for the 3 nearest neighbours j of i
//! E, 5 times:  z_ik ∝ ŷ_ik exp( 1/50 [ −½ Σ_d (x_d − μ_kd)²/S_kd − ½ Σ_d log S_kd + 50/(2·3) (Wᵀz + W z)_ik ] )
//! M:  β_k = n_k/(α + n_k), n_k the number of rows whose largest z is k
//!     μ_k = norm(β_k norm(mean_k) + (1 − β_k) w_k)
//!     S_k = β_k var_k + (1 − β_k)(S₀ + (w_k − μ_k)²),   S₀ = variance of the batch around w under ŷ
//! 10 rounds of E and M; the answer is z
//! ```
//!
//! Joint over a batch; nothing is carried between batches, as in the published code. A class with n_k = 0 stays
//! at (w_k, S₀), so only the classes that some row prefers cost anything.
//!
//! Departure: in the published code S₀ is divided by the number of rows inside its loop over chunks of 2500 rows,
//! so the first chunk is divided twice in a larger batch. `chunked_variance` gives that; the default does not.

use serde::{Deserialize, Serialize};

use super::lame::nearest_rows;
use super::math;
use crate::adapter::{Adapter, Batch, Card, Grouping, Prediction, Readout};
use crate::config::in_range;
use crate::kernels::vectorised;
use crate::scores::softmax_f64;
use crate::{Head, Result, Scores};

/// Temperature of the Gaussian term.
const GAUSSIAN_TEMPERATURE: f64 = 50.0;

/// Rows of a chunk in the published initialisation of S₀.
const CHUNK: usize = 2500;

/// Rows whose share of a class is smaller do not move that class.
const NEGLIGIBLE: f64 = 1e-12;

/// Variances stay above this.
const SMALLEST_VARIANCE: f64 = 1e-12;

/// Settings of StatA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StataConfig {
    /// Strength of the text anchor, in samples (α).
    pub alpha: f64,
    /// Weight of log ŷ.
    pub text_weight: f64,
    /// Weight of the neighbours.
    pub neighbour_weight: f64,
    /// Neighbours of a sample.
    pub neighbours: usize,
    /// Rounds of E and M.
    pub rounds: usize,
    /// Fixed-point steps within E.
    pub inner: usize,
    /// Whether n_k is the sum of z instead of a count of rows.
    pub soft_counts: bool,
    /// Whether S₀ is divided inside the loop over chunks, as in the published code.
    pub chunked_variance: bool,
}

impl Default for StataConfig {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            text_weight: 1.0,
            neighbour_weight: 1.0,
            neighbours: 3,
            rounds: 10,
            inner: 5,
            soft_counts: false,
            chunked_variance: false,
        }
    }
}

impl StataConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Stata> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.stata.{k}"), v, lo..=hi);
        range("alpha", self.alpha, 1e-9, 1e12)?;
        range("text_weight", self.text_weight, 0.0, 1e6)?;
        range("neighbour_weight", self.neighbour_weight, 0.0, 1e6)?;
        range("neighbours", self.neighbours as f64, 1.0, 1e4)?;
        range("rounds", self.rounds as f64, 0.0, 1e4)?;
        range("inner", self.inner as f64, 0.0, 1e4)?;
        Ok(Stata { config: self.clone(), head: head.clone() })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "stata",
    summary: "Gaussian classes fitted to a batch and anchored to the text; carries nothing on",
    paper: "Zanella et al., Realistic Test-Time Adaptation of Vision-Language Models, CVPR 2025",
    // 10 rounds over the classes that some row of 128 prefers; neighbours in the batch; 5 times 6 passes over C.
    operations: Some(|c, d| 80.0 * c.min(128.0) * d + 256.0 * d + 300.0 * c),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    batch: Some(128),
    answer_keys: &[
        "alpha",
        "text_weight",
        "neighbour_weight",
        "neighbours",
        "rounds",
        "inner",
        "soft_counts",
        "chunked_variance",
    ],
    ..Card::PLAIN
};

/// StatA.
#[derive(Clone, Debug)]
pub(crate) struct Stata {
    config: StataConfig,
    head: Head,
}

/// −½ Σ_d (x_d − μ_d)²/S_d.
fn mahalanobis(x: &[f32], mean: &[f64], inverse: &[f64]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; 8];
            let (x, x_tail) = x.as_chunks::<8>();
            let (m, m_tail) = mean.as_chunks::<8>();
            let (s, s_tail) = inverse.as_chunks::<8>();
            for ((x, m), s) in x.iter().zip(m).zip(s) {
                for i in 0..8 {
                    let off = x[i] as f64 - m[i];
                    lanes[i] += off * off * s[i];
                }
            }
            for (i, ((&x, m), s)) in x_tail.iter().zip(m_tail).zip(s_tail).enumerate() {
                lanes[i] += (x as f64 - m).powi(2) * s;
            }
            -0.5 * lanes.iter().sum::<f64>()
        },
    )
}

/// Adds (x − w)², weighted.
fn add_squares(x: &[f32], w: &[f32], weight: f64, sums: &mut [f64]) {
    vectorised(
        #[inline(always)]
        || {
            for ((&x, &w), s) in x.iter().zip(w).zip(sums.iter_mut()) {
                let off = x as f64 - w as f64;
                *s += weight * off * off;
            }
        },
    );
}

/// Adds a row, weighted, to first and second moments.
fn moments(x: &[f32], weight: f64, first: &mut [f64], second: &mut [f64]) {
    vectorised(
        #[inline(always)]
        || {
            for ((&x, m), s) in x.iter().zip(first.iter_mut()).zip(second.iter_mut()) {
                let x = x as f64;
                *m += weight * x;
                *s += weight * x * x;
            }
        },
    );
}

impl Stata {
    fn solve(&self, batch: &Batch<'_>) -> Vec<f64> {
        let classes = self.head.n_classes();
        let mut text: Vec<f64> = Vec::with_capacity(batch.rows() * classes);
        for row in 0..batch.rows() {
            let mut p = math::widen(batch.zero_shot.row(row));
            softmax_f64(&mut p);
            text.extend(p);
        }
        let log_text: Vec<f64> = text.iter().map(|p| self.config.text_weight * p.max(1e-300).ln()).collect();
        let neighbours = nearest_rows(&batch.features, self.config.neighbours);
        let start = self.start_variance(batch, &text);
        // Column k of `gaussian` holds the log-likelihoods under class k.
        let mut gaussian = vec![0.0; text.len()];
        for class in 0..classes {
            self.likelihood(batch, &math::widen(self.head.prototype(class)), &start, class, &mut gaussian);
        }
        let text_gaussian = gaussian.clone();
        let mut z = text;
        for _ in 0..self.config.rounds {
            for _ in 0..self.config.inner {
                z = self.assign(&z, &log_text, &gaussian, &neighbours);
            }
            gaussian.copy_from_slice(&text_gaussian);
            self.fit(batch, &z, &start, &mut gaussian);
        }
        z
    }

    /// S₀: the batch's variance around the text rows, shared by all classes.
    fn start_variance(&self, batch: &Batch<'_>, text: &[f64]) -> Vec<f64> {
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let mut variance = vec![0.0; dim];
        for first in (0..batch.rows()).step_by(CHUNK) {
            for row in first..batch.rows().min(first + CHUNK) {
                for (class, &weight) in text[row * classes..][..classes].iter().enumerate() {
                    if weight > NEGLIGIBLE {
                        add_squares(
                            batch.features.row(row),
                            self.head.prototype(class),
                            weight,
                            &mut variance,
                        );
                    }
                }
            }
            if self.config.chunked_variance {
                variance.iter_mut().for_each(|v| *v /= batch.rows() as f64);
            }
        }
        if !self.config.chunked_variance {
            variance.iter_mut().for_each(|v| *v /= batch.rows().max(1) as f64);
        }
        variance.iter_mut().for_each(|v| *v = v.max(SMALLEST_VARIANCE));
        variance
    }

    /// One class's column of log-likelihoods.
    fn likelihood(&self, batch: &Batch<'_>, mean: &[f64], variance: &[f64], class: usize, out: &mut [f64]) {
        let classes = self.head.n_classes();
        let log_det: f64 = variance.iter().map(|s| s.ln()).sum();
        let inverse: Vec<f64> = variance.iter().map(|s| 1.0 / s).collect();
        for row in 0..batch.rows() {
            out[row * classes + class] = mahalanobis(batch.features.row(row), mean, &inverse) - 0.5 * log_det;
        }
    }

    /// E: one fixed-point step.
    fn assign(&self, z: &[f64], log_text: &[f64], gaussian: &[f64], near: &[Vec<(usize, f64)>]) -> Vec<f64> {
        let classes = self.head.n_classes();
        let pull = self.config.neighbour_weight / (2.0 * self.config.neighbours as f64);
        let mut next = vec![0.0; z.len()];
        vectorised(
            #[inline(always)]
            || {
                for ((n, t), g) in next.iter_mut().zip(log_text).zip(gaussian) {
                    *n = t + g / GAUSSIAN_TEMPERATURE;
                }
                for (i, neighbours) in near.iter().enumerate() {
                    for &(j, weight) in neighbours {
                        for (to, from) in [(i, j), (j, i)] {
                            let from = &z[from * classes..][..classes];
                            let to = &mut next[to * classes..][..classes];
                            to.iter_mut().zip(from).for_each(|(t, f)| *t += pull * weight * f);
                        }
                    }
                }
            },
        );
        next.chunks_mut(classes).for_each(|row| {
            softmax_f64(row);
        });
        next
    }

    /// M: refits the classes that rows prefer and writes their columns of log-likelihoods.
    fn fit(&self, batch: &Batch<'_>, z: &[f64], start: &[f64], gaussian: &mut [f64]) {
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let mut counts = vec![0.0; classes];
        for row in z.chunks(classes) {
            if self.config.soft_counts {
                counts.iter_mut().zip(row).for_each(|(n, z)| *n += z);
            } else {
                counts[math::argmax(row)] += 1.0;
            }
        }
        for class in (0..classes).filter(|&k| counts[k] > 0.0) {
            let beta = counts[class] / (self.config.alpha + counts[class]);
            let column = || (0..batch.rows()).map(|row| (row, z[row * classes + class]));
            let total: f64 = column().map(|(_, z)| z).sum();
            let anchor = self.head.prototype(class);
            // Weighted first and second moments in one pass; the variance around any mean follows from them.
            let (mut first, mut second) = (vec![0.0; dim], vec![0.0; dim]);
            for (row, z) in column().filter(|(_, z)| *z > NEGLIGIBLE * total) {
                moments(batch.features.row(row), z / total, &mut first, &mut second);
            }
            let mut mean = first.clone();
            math::normalize(&mut mean);
            mean.iter_mut().zip(anchor).for_each(|(m, &w)| *m = beta * *m + (1.0 - beta) * w as f64);
            math::normalize(&mut mean);
            let spread: Vec<f64> =
                (0..dim).map(|i| second[i] - 2.0 * mean[i] * first[i] + mean[i] * mean[i]).collect();
            let anchored = (0..dim).map(|i| {
                let text = start[i] + (anchor[i] as f64 - mean[i]).powi(2);
                (beta * spread[i] + (1.0 - beta) * text).max(SMALLEST_VARIANCE)
            });
            self.likelihood(batch, &mean, &anchored.collect::<Vec<_>>(), class, gaussian);
        }
    }
}

impl Adapter for Stata {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        math::logits_of(&self.solve(batch), scores.data_mut());
        Prediction::from_scores(scores)
    }
}
