//! [`Scores`]: rows × classes of logits, and what is read off a row: softmax, entropy, margin, the best classes.
//! In this crate softmax is written here only: in f32 for the stream, in f64 for methods whose state is f64, and from
//! one known probability. The encoder (attention) and the gradient methods (differentiable) have their own.

use crate::adapter::ScoresRef;
use crate::kernels::{LANES, exp, exp_f64, max, padded, sum_each, sum_lanes, vectorised};

/// A logit that no logit comes near, whose multiples are finite.
const NOTHING: f32 = -1e30;

/// Number of partial sums in loops over f64 values.
pub(crate) const LANES_F64: usize = 8;

/// Logits, one row per sample and one column per class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    data: Vec<f32>,
    classes: usize,
}

impl Scores {
    /// Zeros.
    pub fn zeros(rows: usize, classes: usize) -> Self {
        Self { data: vec![0.0; rows * classes], classes }
    }

    /// Rows one after another; the length must be a multiple of `classes`.
    pub fn from_rows(data: Vec<f32>, classes: usize) -> Self {
        assert!(classes > 0 && data.len().is_multiple_of(classes), "scores: whole rows of {classes} classes");
        Self { data, classes }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.classes.max(1)
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.classes..][..self.classes]
    }

    /// One row, to be written.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.classes..][..self.classes]
    }

    /// All rows, one after another.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All rows, to be written.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Makes room for this many rows. Their values are unspecified until they are written.
    pub(crate) fn resize(&mut self, rows: usize, classes: usize) {
        self.classes = classes;
        self.data.resize(rows * classes, 0.0);
    }

    /// Appends the rows of another matrix with as many classes.
    pub(crate) fn append<'a>(&mut self, other: impl Into<ScoresRef<'a>>) {
        let other = other.into();
        self.classes = other.classes();
        self.data.extend_from_slice(other.data());
    }
}

/// What a row of logits says, at a temperature multiplier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The best class (the first among equals).
    pub label: usize,
    /// Its logit, before the multiplier.
    pub best: f32,
    /// Its probability.
    pub prob: f32,
    /// log Σ exp(τ · logit).
    pub log_sum: f32,
    /// −Σ p log p, in nats.
    pub entropy: f32,
    /// Best logit minus runner-up, before the multiplier.
    pub margin: f32,
    /// Mean of the logits, and their mean square after centring; 0 unless [`weigh`] made the summary.
    pub moments: (f32, f32),
}

/// Summary of a row under softmax(τ · row).
pub fn summary(row: &[f32], tau: f32) -> Summary {
    vectorised(
        #[inline(always)]
        || {
            let top = best_two(row);
            let mut sums = [[0.0f32; LANES]; 2];
            let (chunks, tail) = row.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    let x = tau * (chunk[i] - top.0);
                    add(&mut sums, i, exp(x), x);
                }
            }
            for (i, &value) in tail.iter().enumerate() {
                let x = tau * (value - top.0);
                add(&mut sums, i, exp(x), x);
            }
            Summary::of(top, tau, sum_each(sums))
        },
    )
}

/// Summary of a row at τ = 1; writes exp(logit − best) to `weights`.
pub fn weigh(row: &[f32], weights: &mut [f32]) -> Summary {
    vectorised(
        #[inline(always)]
        || {
            let (top, all) = best_two_and_sum(row);
            let n = row.len() as f32;
            let mean = sum_lanes(all, []) / n;
            let (mut sums, mut squares) = ([[0.0f32; LANES]; 2], [0.0f32; LANES]);
            let (chunks, tail) = row.as_chunks::<LANES>();
            let (outs, out_tail) = weights.as_chunks_mut::<LANES>();
            for (chunk, out) in chunks.iter().zip(outs) {
                weigh_chunk(chunk, top.0, out, &mut sums);
                for i in 0..LANES {
                    squares[i] += (chunk[i] - mean) * (chunk[i] - mean);
                }
            }
            let mut last = [0.0; LANES];
            weigh_chunk(&padded(tail, NOTHING), top.0, &mut last, &mut sums);
            out_tail.iter_mut().zip(last).for_each(|(o, w)| *o = w);
            let ends = padded(tail, mean);
            for i in 0..LANES {
                squares[i] += (ends[i] - mean) * (ends[i] - mean);
            }
            let [weight, moment, square] = sum_each([sums[0], sums[1], squares]);
            Summary { moments: (mean, square / n), ..Summary::of(top, 1.0, [weight, moment]) }
        },
    )
}

/// Summary at τ = 1 of a row whose weights exp(logit − origin) are known, but for some `listed` classes: these
/// have weight 0 there, and their exp(logit − best) is written to `listed_weights`.
pub(crate) fn summary_weighed(
    row: &[f32],
    weights: &[f32],
    origin: f32,
    listed: &[u32],
    listed_weights: &mut Vec<f32>,
) -> Summary {
    listed_weights.clear();
    vectorised(
        #[inline(always)]
        || {
            let top = best_two(row);
            let factor = exp(origin - top.0);
            let mut sums = [[0.0f32; LANES]; 2];
            let (chunks, tail) = row.as_chunks::<LANES>();
            let (knowns, known_tail) = weights.as_chunks::<LANES>();
            for (chunk, known) in chunks.iter().zip(knowns) {
                add_chunk(chunk, top.0, &known.map(|w| factor * w), &mut sums);
            }
            let last = padded(known_tail, 0.0).map(|w| factor * w);
            add_chunk(&padded(tail, 0.0), top.0, &last, &mut sums);
            for classes in listed.chunks(LANES) {
                let (mut logits, mut own) = ([NOTHING; LANES], [0.0; LANES]);
                logits.iter_mut().zip(classes).for_each(|(logit, &c)| *logit = row[c as usize]);
                weigh_chunk(&logits, top.0, &mut own, &mut sums);
                listed_weights.extend_from_slice(&own[..classes.len()]);
            }
            Summary::of(top, 1.0, sum_each(sums))
        },
    )
}

/// exp(logit − best) of a chunk, which is added to the sums.
#[inline(always)]
fn weigh_chunk(logits: &[f32; LANES], best: f32, out: &mut [f32; LANES], sums: &mut [[f32; LANES]; 2]) {
    for i in 0..LANES {
        out[i] = exp(logits[i] - best);
    }
    add_chunk(logits, best, out, sums);
}

/// Adds the weights of a chunk to the sums, and their shares of the mean logit.
#[inline(always)]
fn add_chunk(logits: &[f32; LANES], best: f32, weights: &[f32; LANES], sums: &mut [[f32; LANES]; 2]) {
    for i in 0..LANES {
        sums[0][i] += weights[i];
    }
    for i in 0..LANES {
        sums[1][i] += weights[i] * (logits[i] - best);
    }
}

/// Adds a weight and its share of the mean logit to a lane.
#[inline(always)]
fn add(sums: &mut [[f32; LANES]; 2], lane: usize, weight: f32, logit: f32) {
    sums[0][lane] += weight;
    sums[1][lane] += weight * logit;
}

impl Summary {
    /// From the best value, its index and the runner-up, and Σ w, Σ w log w with w = exp(τ (logit − best)).
    #[inline(always)]
    fn of((best, label, second): (f32, usize, f32), tau: f32, [sum, moment]: [f32; 2]) -> Self {
        let log = sum.ln();
        Self {
            label,
            best,
            prob: 1.0 / sum,
            log_sum: tau * best + log,
            entropy: (log - moment / sum).max(0.0),
            margin: best - second,
            moments: (0.0, 0.0),
        }
    }
}

/// The largest value, its first index, and the largest among the others.
#[inline(always)]
fn best_two(row: &[f32]) -> (f32, usize, f32) {
    best_two_and_sum(row).0
}

/// The same, and the sum of all values, in lanes.
#[inline(always)]
fn best_two_and_sum(row: &[f32]) -> ((f32, usize, f32), [f32; LANES]) {
    let mut first = [f32::NEG_INFINITY; LANES];
    let mut second = [f32::NEG_INFINITY; LANES];
    let mut sum = [0.0f32; LANES];
    let (chunks, tail) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            let v = chunk[i];
            let low = if v < first[i] { v } else { first[i] };
            second[i] = if low > second[i] { low } else { second[i] };
            first[i] = if v > first[i] { v } else { first[i] };
            sum[i] += v;
        }
    }
    for (i, &v) in tail.iter().enumerate() {
        let low = if v < first[i] { v } else { first[i] };
        second[i] = if low > second[i] { low } else { second[i] };
        first[i] = if v > first[i] { v } else { first[i] };
        sum[i] += v;
    }
    let best = max(&first);
    // Two lanes, or a lane's second, may hold the same best value: a tie has margin 0.
    let winner = first.iter().position(|&v| v == best).unwrap_or(0);
    let mut runner = second[winner];
    for i in 0..LANES {
        if i != winner && first[i] > runner {
            runner = first[i];
        }
    }
    ((best, position(row, best), runner), sum)
}

/// The first index of a value that is known to occur.
#[inline(always)]
fn position(row: &[f32], value: f32) -> usize {
    let (chunks, tail) = row.as_chunks::<LANES>();
    for (c, chunk) in chunks.iter().enumerate() {
        let mut hit = false;
        for &v in chunk {
            hit |= v == value;
        }
        if hit {
            return c * LANES + chunk.iter().position(|&v| v == value).unwrap_or(0);
        }
    }
    chunks.len() * LANES + tail.iter().position(|&v| v == value).unwrap_or(0)
}

/// softmax(τ · row) into `probs`; returns the best class, the first among equals.
pub fn softmax(row: &[f32], tau: f32, probs: &mut [f32]) -> usize {
    vectorised(
        #[inline(always)]
        || {
            let best = max(row);
            let mut lanes = [0.0f32; LANES];
            let (rows, row_tail) = row.as_chunks::<LANES>();
            let (outs, out_tail) = probs.as_chunks_mut::<LANES>();
            for (x, out) in rows.iter().zip(outs) {
                for i in 0..LANES {
                    out[i] = exp(tau * (x[i] - best));
                    lanes[i] += out[i];
                }
            }
            let tail = row_tail.iter().zip(out_tail).map(|(x, out)| {
                *out = exp(tau * (x - best));
                *out
            });
            let share = 1.0 / sum_lanes(lanes, tail);
            for p in probs.iter_mut() {
                *p *= share;
            }
            position(row, best)
        },
    )
}

/// softmax of f64 logits, in place; returns log Σ exp. For methods whose state is f64.
pub(crate) fn softmax_f64(row: &mut [f64]) -> f64 {
    let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES_F64];
            let (chunks, tail) = row.as_chunks_mut::<LANES_F64>();
            for chunk in chunks {
                for i in 0..LANES_F64 {
                    chunk[i] = exp_f64(chunk[i] - best);
                    lanes[i] += chunk[i];
                }
            }
            for (i, v) in tail.iter_mut().enumerate() {
                *v = exp_f64(*v - best);
                lanes[i] += *v;
            }
            let sum = lanes.iter().sum::<f64>();
            let scale = 1.0 / sum;
            row.iter_mut().for_each(|v| *v *= scale);
            best + sum.ln()
        },
    )
}

/// softmax(τ · row) into `probs`, from one class's probability, which is known: p_c = p · exp(τ (row_c − row_known)).
pub fn softmax_from(row: &[f32], tau: f32, (known, prob): (usize, f32), probs: &mut [f32]) {
    if prob < 1e-6 {
        // The known probability is too small: the others cannot be computed from it.
        softmax(row, tau, probs);
        return;
    }
    let origin = row[known];
    vectorised(
        #[inline(always)]
        || {
            for (p, &x) in probs.iter_mut().zip(row) {
                *p = prob * exp(tau * (x - origin));
            }
        },
    )
}

/// The `k` best classes of a row with their logits, best first, the lower index first among equals.
pub fn top_k(row: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    let by_score = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    let k = k.min(row.len());
    if k > 0 && k < row.len() {
        order.select_nth_unstable_by(k - 1, by_score);
    }
    order.truncate(k);
    order.sort_unstable_by(by_score);
    order.into_iter().map(|c| (c, row[c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_three_classes() {
        // softmax(0, ln 2, ln 5) = 1/8, 2/8, 5/8
        let row = [0.0, 2f32.ln(), 5f32.ln()];
        let s = summary(&row, 1.0);
        assert_eq!(s.label, 2);
        assert!((s.prob - 0.625).abs() < 1e-6);
        assert!((s.log_sum - 8f32.ln()).abs() < 1e-6);
        assert!((s.margin - 2.5f32.ln()).abs() < 1e-6);
        let entropy: f32 = [0.125f32, 0.25, 0.625].iter().map(|p| -p * p.ln()).sum();
        assert!((s.entropy - entropy).abs() < 1e-6);
        let mut probs = [0.0; 3];
        softmax(&row, 1.0, &mut probs);
        assert!((probs[1] - 0.25).abs() < 1e-6);
        assert_eq!(top_k(&row, 2).iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn ties_go_to_the_first_class_with_margin_zero() {
        for n in [2, 5, 16, 17, 40] {
            let s = summary(&vec![1.5; n], 1.0);
            assert_eq!((s.label, s.margin), (0, 0.0));
            assert!((s.entropy - (n as f32).ln()).abs() < 1e-5);
            let mut row = vec![0.0; n];
            row[n - 1] = 3.0;
            row[n / 2 - 1] = 3.0;
            let s = summary(&row, 1.0);
            assert_eq!((s.label, s.margin), (n / 2 - 1, 0.0));
        }
    }

    #[test]
    fn probabilities_from_a_known_one() {
        let row = [0.3, 2.0, -1.0, 1.9, 40.0];
        let (mut probs, mut from) = ([0.0; 5], [0.0; 5]);
        for (tau, known) in [(1.0, 4), (0.05, 4), (0.05, 2), (1.0, 2)] {
            softmax(&row, tau, &mut probs);
            softmax_from(&row, tau, (known, probs[known]), &mut from);
            for (a, b) in probs.iter().zip(from) {
                assert!((a - b).abs() < 1e-6, "{probs:?} {from:?}");
            }
        }
    }

    #[test]
    fn extreme_rows_stay_finite() {
        let s = summary(&[1e6, -1e6, 0.0], 3.0);
        assert_eq!((s.label, s.prob, s.entropy), (0, 1.0, 0.0));
        assert_eq!(s.margin, 1e6);
    }
}
