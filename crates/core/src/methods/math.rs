//! f64 arithmetic that several methods share. Sums run in fixed lanes, so the vector width does not matter.

use crate::kernels::vectorised;

/// Number of partial sums.
const LANES: usize = 8;

/// Probabilities below this are written as it: logits stay finite.
const TINY: f64 = 1e-30;

/// ⟨a, z⟩ of f64 state with an f32 row.
pub(crate) fn dot(a: &[f64], z: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES];
            let (a, a_tail) = a.as_chunks::<LANES>();
            let (z, z_tail) = z.as_chunks::<LANES>();
            for (a, z) in a.iter().zip(z) {
                for i in 0..LANES {
                    lanes[i] += a[i] * z[i] as f64;
                }
            }
            for (i, (a, &z)) in a_tail.iter().zip(z_tail).enumerate() {
                lanes[i] += a * z as f64;
            }
            lanes.iter().sum()
        },
    )
}

/// `row += weight · z`.
pub(crate) fn add(row: &mut [f64], weight: f64, z: &[f32]) {
    crate::kernels::accumulate(row, weight, z);
}

/// Scales a row to unit length; a zero row stays zero.
pub(crate) fn normalize(row: &mut [f64]) {
    let square = vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES];
            let (chunks, tail) = row.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] += chunk[i] * chunk[i];
                }
            }
            for (i, v) in tail.iter().enumerate() {
                lanes[i] += v * v;
            }
            lanes.iter().sum::<f64>()
        },
    );
    if square > 0.0 {
        let scale = 1.0 / square.sqrt();
        row.iter_mut().for_each(|v| *v *= scale);
    }
}

/// f32 rows as f64.
pub(crate) fn widen(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&v| v as f64).collect()
}

/// softmax in place.
pub(crate) fn softmax(row: &mut [f64]) {
    let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for v in row.iter_mut() {
        *v = (*v - best).exp();
        sum += *v;
    }
    row.iter_mut().for_each(|v| *v /= sum);
}

/// Scales to sum 1.
pub(crate) fn to_shares(row: &mut [f64]) {
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v /= sum);
}

/// The first index of the largest value.
pub(crate) fn argmax(row: &[f64]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}

/// Probabilities as logits.
pub(crate) fn logits_of(probs: &[f64], out: &mut [f32]) {
    for (out, p) in out.iter_mut().zip(probs) {
        *out = p.max(TINY).ln() as f32;
    }
}

/// Largest and mean distance of f64 rows from their f32 anchors.
pub(crate) fn movement(rows: &[f64], anchors: &[f32], dim: usize) -> (f64, f64) {
    let distances = distances(rows, anchors, dim);
    let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    (distances.iter().copied().fold(0.0, f64::max), mean)
}

/// Distance of each f64 row from its f32 anchor.
pub(crate) fn distances(rows: &[f64], anchors: &[f32], dim: usize) -> Vec<f64> {
    let squared =
        |(r, a): (&[f64], &[f32])| r.iter().zip(a).map(|(r, &a)| (r - a as f64).powi(2)).sum::<f64>();
    rows.chunks(dim).zip(anchors.chunks(dim)).map(squared).map(f64::sqrt).collect()
}

/// KL(prior‖uniform), in nats.
pub(crate) fn kl_from_uniform(prior: &[f64]) -> f64 {
    let classes = prior.len() as f64;
    prior.iter().filter(|p| **p > 0.0).map(|p| p * (p * classes).ln()).sum::<f64>().max(0.0)
}
