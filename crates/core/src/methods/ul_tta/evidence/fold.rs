//! The *fold*: the evidence as the answers use it, one row Σ⁻¹ m_c and one bias per class.
//!
//! In a group, what the others have learnt is pooled with the own sums here, and only here. How much theirs counts is earned:
//! a camera unlike the rest sees its classes elsewhere than they do. With a_c and b_c the own and the others' mean of a class,
//! n_c and o_c the samples behind them, and s² the variance within classes, chance alone lets
//!
//! ```text
//! ‖a_c − b_c‖² ≈ s² (1/n_c + 1/o_c)        apart = max(0, mean over c of ‖a_c − b_c‖² − s² (1/n_c + 1/o_c)) / s²
//! ```
//!
//! and the others' o_c samples of a class count as o_c / (1 + o_c · apart): all of them where the cameras agree, at most
//! 1 / apart where they do not. The own samples take over as they grow.

use std::sync::Arc;

use super::Evidence;
use crate::kernels::vectorised;
use crate::linear::{cholesky, solve};
use crate::methods::triangle;
use crate::methods::ul_tta::shared::Others;

/// Σ is factorised again, and all classes folded, when the evidence has grown by this factor and by this many samples
/// per class since the last time.
const GROWTH: f64 = 1.5;
const GROWTH_PER_CLASS: f64 = 2.0;

/// Evidence that forgets does not grow for ever. Then Σ is factorised this many times per half-life.
const PER_HALF_LIFE: f64 = 4.0;

/// But there are at least this many samples between two such factorisations, and this many more per class: a
/// factorisation costs d³, folding all classes C·d².
const MIN_SPACING: f64 = 1024.0;
const MIN_SPACING_PER_CLASS: f64 = 16.0;

/// A class is folded again once its new evidence is this share of its whole evidence: smaller changes hardly show.
const REFRESH: f64 = 0.4;

/// Classes folded at once: bounds the memory of the right-hand sides.
pub(super) const FOLD_BLOCK: usize = 128;

/// A value of a folded row beyond this is no solution: Σ has at least `covariance_shrink` on its diagonal.
pub(super) const LARGEST: f64 = 1e7;

/// The own mean of a class is compared with the others' mean of it where both have at least this many samples.
const COMPARED: f64 = 2.0;

/// Nothing is said of how far apart they lie while n₁ n₂ / (n₁ + n₂), summed over the compared classes, is less than this; n₁
/// and n₂ are the samples of a class on either side.
const MIN_COMPARED: f64 = 32.0;

/// The evidence as the answers use it.
#[derive(Clone, Debug)]
pub(super) struct Fold {
    /// Lower Cholesky factor of Σ, a packed triangle.
    pub(super) factor: Arc<Vec<f32>>,
    /// `n` and `samples` when Σ was factorised.
    pub(super) at_n: f64,
    pub(super) at_samples: u64,
    /// Σ⁻¹ m_c as 16-bit integers, with one scale per row.
    pub(super) rows: Vec<i16>,
    pub(super) row_scale: Vec<f32>,
    pub(super) bias: Vec<f32>,
    /// ‖Σ⁻¹ m_c‖.
    pub(super) norm: Vec<f32>,
    /// Evidence that came in for each class since it was folded.
    pub(super) fresh: Vec<f32>,
}

impl Fold {
    fn new(classes: usize, dim: usize) -> Self {
        Self {
            factor: Arc::default(),
            at_n: 0.0,
            at_samples: 0,
            rows: vec![0; classes * dim],
            row_scale: vec![0.0; classes],
            bias: vec![0.0; classes],
            norm: vec![0.0; classes],
            fresh: vec![0.0; classes],
        }
    }
}

impl Evidence {
    /// At an update: factorises Σ if it has changed, folds the classes that have.
    pub(in super::super) fn update(&mut self, others: Option<Others<'_>>) {
        let others = others.filter(|o| o.n() > 0.0);
        let (true_n, classes) = (self.pooled_n(others), self.classes as f64);
        let due = match &self.fold {
            None => true_n >= classes,
            Some(fold) => {
                let grown = (GROWTH * fold.at_n).max(fold.at_n + GROWTH_PER_CLASS * classes);
                let spacing = MIN_SPACING + MIN_SPACING_PER_CLASS * classes;
                let since = (self.samples - fold.at_samples) as f64;
                true_n >= grown || since >= spacing.max(self.half_life / PER_HALF_LIFE)
            }
        };
        if due {
            self.apart = others.and_then(|o| self.apart_from(o)).unwrap_or(self.apart);
        }
        self.pooled_count = others.map(|o| {
            let pooled = |c: usize| self.class_n[c] * self.scale + o.worth(c, self.apart) * o.class_n(c);
            (0..self.classes).map(pooled).sum::<f64>() / classes
        });
        if due && let Some(factor) = self.factorise(others) {
            let mut fold = self.fold.take().unwrap_or_else(|| Fold::new(self.classes, self.dim));
            (fold.factor, fold.at_n, fold.at_samples) =
                (Arc::new(factor), self.pooled_n(others), self.samples);
            let known = |c: usize| self.class_n[c] > 0.0 || others.is_some_and(|o| o.class_n(c) > 0.0);
            let all: Vec<usize> = (0..self.classes).filter(|&c| known(c)).collect();
            self.fold_classes(&mut fold, &all, others);
            self.fold = Some(fold);
        } else if let Some(mut fold) = self.fold.take() {
            let changed: Vec<usize> = (0..self.classes)
                .filter(|&c| {
                    let theirs = others.map_or(0.0, |o| o.worth(c, self.apart) * o.class_n(c));
                    let evidence = self.class_n[c] * self.scale + theirs + self.shrink;
                    fold.fresh[c] as f64 > REFRESH * evidence
                })
                .collect();
            self.fold_classes(&mut fold, &changed, others);
            self.fold = Some(fold);
        }
    }

    /// Notes that others have taught a class.
    pub(in super::super) fn freshen(&mut self, class: usize, n: f32) {
        if let Some(fold) = &mut self.fold {
            // In the long run no more is fresh than there is.
            fold.fresh[class] = (fold.fresh[class] + n.abs()).min(1e9);
        }
    }

    /// How far apart others' class means lie from the own ones, as of the last fold: 0 where they agree.
    pub(in super::super) fn apart(&self) -> f64 {
        self.apart
    }

    /// Forgets the fold: the next update makes it anew.
    pub(in super::super) fn unfold(&mut self) {
        (self.fold, self.pooled_count, self.apart) = (None, None, 0.0);
    }

    /// Samples behind the mean and the covariance.
    fn pooled_n(&self, others: Option<Others<'_>>) -> f64 {
        self.n * self.scale + others.map_or(0.0, |o| o.mean_worth(self.apart) * o.n())
    }

    /// How far the others' class means lie from the own ones, in variances; `None` where too little can be compared.
    fn apart_from(&self, others: Others<'_>) -> Option<f64> {
        let dim = self.dim;
        let (mut within, mut beyond, mut rows, mut weights) = (0.0, 0.0, 0.0, 0.0);
        for c in 0..self.classes {
            let (own, theirs) = (self.class_n[c] * self.scale, others.class_n(c));
            if own < COMPARED || theirs < COMPARED {
                continue;
            }
            let ours = self.class_sum[c * dim..][..dim].iter().map(|s| s * self.scale / own);
            let other = others.class_sum(c).iter().map(|s| s * others.scale / theirs);
            let (mut square, mut gap) = (0.0, 0.0);
            for (a, b) in ours.zip(other) {
                square += a * a;
                gap += (a - b) * (a - b);
            }
            // Rows have unit length: what the mean lacks is their variance, but for what the mean took of it.
            within += own * (1.0 - square);
            rows += own - 1.0;
            let weight = own * theirs / (own + theirs);
            beyond += weight * gap;
            weights += weight;
        }
        if weights < MIN_COMPARED || within <= 0.0 || rows <= 0.0 {
            return None;
        }
        let variance = within / rows;
        let compared = (0..self.classes)
            .filter(|&c| self.class_n[c] * self.scale >= COMPARED && others.class_n(c) >= COMPARED)
            .count() as f64;
        // Each class adds its weight times its gap; by chance alone that is the variance.
        Some(((beyond - compared * variance) / weights / variance).max(0.0))
    }

    /// Lower Cholesky factor of Σ, packed. `None` if there is nothing to factorise.
    fn factorise(&mut self, others: Option<Others<'_>>) -> Option<Vec<f32>> {
        self.add_pending();
        let true_n = self.pooled_n(others);
        let Some(o) = others.filter(|o| o.body.second_n > 0.0) else {
            return self.factor_of(self.second_n, &self.second_sum, &self.second, true_n);
        };
        let (own, theirs) = (self.scale, o.scale * o.mean_worth(self.apart));
        let add = |a: &[f64], b: &[f64]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a * own + b * theirs).collect()
        };
        let n = self.second_n * own + o.body.second_n * theirs;
        let (sum, second) = (add(&self.second_sum, &o.body.second_sum), add(&self.second, &o.body.second));
        self.factor_of(n, &sum, &second, true_n)
    }

    fn factor_of(&self, n: f64, second_sum: &[f64], second: &[f64], true_n: f64) -> Option<Vec<f32>> {
        let dim = self.dim;
        if n <= 0.0 || true_n <= 0.0 {
            return None;
        }
        let mean: Vec<f64> = second_sum.iter().map(|s| s / n).collect();
        let variance: f64 =
            (0..dim).map(|i| second[triangle::column(dim, i).start] / n - mean[i] * mean[i]).sum::<f64>()
                / dim as f64;
        if variance.is_nan() || variance <= 1e-12 {
            return None;
        }
        let shrink = self.covariance_shrink.max(dim as f64 / (dim as f64 + true_n));
        let scale = (1.0 - shrink) / variance;
        let mut sigma = vec![0.0f32; dim * dim];
        for column in 0..dim {
            let pull = mean[column] * scale;
            let from = &second[triangle::column(dim, column)];
            let into = &mut sigma[column * dim..][column..dim];
            vectorised(
                #[inline(always)]
                || {
                    for ((i, f), m) in into.iter_mut().zip(from).zip(&mean[column..]) {
                        *i = (f * (scale / n) - m * pull) as f32;
                    }
                },
            );
            into[0] += shrink as f32;
        }
        cholesky(&mut sigma, dim)?;
        Some(triangle::pack(&sigma, dim))
    }

    /// g of all that is pooled.
    fn origin(&self, others: Option<Others<'_>>) -> Vec<f64> {
        let Some(o) = others else { return self.sum.iter().map(|s| s / self.n).collect() };
        let (n, theirs) = (self.pooled_n(others), o.scale * o.mean_worth(self.apart));
        self.sum.iter().zip(&o.body.sum).map(|(a, b)| (a * self.scale + b * theirs) / n).collect()
    }

    /// Folds some classes: Σ⁻¹ m_c and the bias −⟨g, Σ⁻¹ m_c⟩ − ½ ⟨m_c, Σ⁻¹ m_c⟩.
    fn fold_classes(&self, fold: &mut Fold, classes: &[usize], others: Option<Others<'_>>) {
        if classes.is_empty() {
            return;
        }
        let dim = self.dim;
        let origin = self.origin(others);
        let factor = triangle::unpack(&fold.factor, dim);
        let mut means = Vec::with_capacity(FOLD_BLOCK.min(classes.len()) * dim);
        for block in classes.chunks(FOLD_BLOCK) {
            means.clear();
            for &c in block {
                let start = means.len();
                means.resize(start + dim, 0.0);
                self.class_mean(c, &origin, others, &mut means[start..]);
            }
            let mut solved = means.clone();
            solve(&factor, dim, &mut solved);
            for (i, &c) in block.iter().enumerate() {
                let (mean, row) = (&means[i * dim..][..dim], &solved[i * dim..][..dim]);
                let stored = &mut fold.rows[c * dim..][..dim];
                let (scale, [at_mean, at_own, square]) = round_row(row, mean, &origin, stored);
                fold.row_scale[c] = scale;
                fold.bias[c] = (-at_mean - 0.5 * at_own) as f32;
                fold.norm[c] = square.sqrt() as f32;
                fold.fresh[c] = 0.0;
            }
        }
    }

    /// m_c = (S_c − N_c g) / (N_c + k), pooled.
    fn class_mean(&self, c: usize, origin: &[f64], others: Option<Others<'_>>, into: &mut [f32]) {
        let (own_n, sum) = (self.class_n[c], &self.class_sum[c * self.dim..][..self.dim]);
        let Some(o) = others else {
            let weight = self.scale / (own_n * self.scale + self.shrink);
            return vectorised(
                #[inline(always)]
                || {
                    for ((m, s), g) in into.iter_mut().zip(sum).zip(origin) {
                        *m = ((s - own_n * g) * weight) as f32;
                    }
                },
            );
        };
        let worth = o.worth(c, self.apart);
        // Labels may have withdrawn a little more than was told.
        let n = (own_n * self.scale + worth * o.class_n(c)).max(0.0);
        let (weight, own, theirs) = (1.0 / (n + self.shrink), self.scale, worth * o.scale);
        vectorised(
            #[inline(always)]
            || {
                let sums = sum.iter().zip(o.class_sum(c));
                for ((m, (a, b)), g) in into.iter_mut().zip(sums).zip(origin) {
                    *m = ((a * own + b * theirs - n * g) * weight) as f32;
                }
            },
        );
    }
}

/// Stores a folded row as 16-bit integers under one scale. A row that is no solution, because the factor was too poor,
/// is stored as 0: the class has no evidence. Returns the scale, and the products of the row *as stored* with the
/// image mean g, the class mean m_c and itself: so rounding cancels at z = g.
fn round_row(row: &[f32], own: &[f32], mean: &[f64], stored: &mut [i16]) -> (f32, [f64; 3]) {
    /// Adding 1.5·2^23 rounds to an integer that can be read from the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LANES: usize = 8;
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (rows, rest) = row.as_chunks::<LANES>();
            for row in rows {
                for i in 0..LANES {
                    // A NaN stays.
                    let v = row[i].abs();
                    lanes[i] = if v <= lanes[i] { lanes[i] } else { v };
                }
            }
            for (lane, v) in lanes.iter_mut().zip(rest) {
                *lane = if v.abs() <= *lane { *lane } else { v.abs() };
            }
            let sound = lanes.iter().all(|&v| (v as f64) < LARGEST);
            let largest = lanes.iter().copied().fold(0.0, f32::max);
            let scale = if sound { largest / i16::MAX as f32 } else { 0.0 };
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (s, &v) in stored.iter_mut().zip(row) {
                let value = if inverse > 0.0 { v * inverse } else { 0.0 };
                *s = (value + ROUND).to_bits() as i16;
            }
            let mut sums = [[0.0f64; LANES]; 3];
            let (values, values_rest) = stored.as_chunks::<LANES>();
            let (means, means_rest) = mean.as_chunks::<LANES>();
            let (owns, owns_rest) = own.as_chunks::<LANES>();
            for ((value, mean), own) in values.iter().zip(means).zip(owns) {
                for i in 0..LANES {
                    let value = value[i] as f64 * scale as f64;
                    sums[0][i] += value * mean[i];
                    sums[1][i] += value * own[i] as f64;
                    sums[2][i] += value * value;
                }
            }
            for (i, ((&value, mean), &own)) in values_rest.iter().zip(means_rest).zip(owns_rest).enumerate() {
                let value = value as f64 * scale as f64;
                sums[0][i] += value * mean;
                sums[1][i] += value * own as f64;
                sums[2][i] += value * value;
            }
            (scale, sums.map(|s| s.iter().sum()))
        },
    )
}
