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
        || dot_lanes(a, z),
    )
}

#[inline(always)]
fn dot_lanes(a: &[f64], z: &[f32]) -> f64 {
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

/// softmax in place. An element-wise pass in fixed lanes, as everywhere.
pub(crate) fn softmax(row: &mut [f64]) {
    let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES];
            let (chunks, tail) = row.as_chunks_mut::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    chunk[i] = exp(chunk[i] - best);
                    lanes[i] += chunk[i];
                }
            }
            for (i, v) in tail.iter_mut().enumerate() {
                *v = exp(*v - best);
                lanes[i] += *v;
            }
            let scale = 1.0 / lanes.iter().sum::<f64>();
            row.iter_mut().for_each(|v| *v *= scale);
        },
    );
}

/// eˣ for x ≤ 0, to a few units in the last place; below -700 it gives 0.
///
/// Range reduction by powers of two and the Taylor polynomial of degree 13 on ±½ ln 2.
#[inline(always)]
fn exp(x: f64) -> f64 {
    // Adding 1.5·2^52 rounds to an integer that can be read from the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let clamped = if x < -700.0 { -700.0 } else { x };
    let shifted = clamped * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_147_180_369_123_8) - n * 1.908_214_929_270_587_7e-10;
    const INVERSE_FACTORIALS: [f64; 13] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];
    let mut p = INVERSE_FACTORIALS[0];
    for factor in &INVERSE_FACTORIALS[1..] {
        p = p * r + factor;
    }
    let p = p * r + 1.0;
    let power = f64::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(1023) << 52);
    if x < -700.0 { 0.0 } else { p * power }
}

/// Rows that a pass over a matrix works on at once: their sums do not wait for each other.
const TOGETHER: usize = 4;

/// ⟨row, z⟩ for every row of a matrix.
pub(crate) fn dots(rows: &[f64], z: &[f32], scale: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows.len() / z.len());
    vectorised(
        #[inline(always)]
        || {
            let mut four = rows.chunks_exact(TOGETHER * z.len());
            for rows in four.by_ref() {
                let row = |r: usize| &rows[r * z.len()..][..z.len()];
                let heads: [_; TOGETHER] = std::array::from_fn(|r| row(r).as_chunks::<LANES>());
                let mut lanes = [[0.0f64; LANES]; TOGETHER];
                let (chunks, tail) = z.as_chunks::<LANES>();
                for (k, chunk) in chunks.iter().enumerate() {
                    for (lanes, head) in lanes.iter_mut().zip(&heads) {
                        for i in 0..LANES {
                            lanes[i] += head.0[k][i] * chunk[i] as f64;
                        }
                    }
                }
                for (lanes, head) in lanes.iter_mut().zip(&heads) {
                    for (i, (a, &z)) in head.1.iter().zip(tail).enumerate() {
                        lanes[i] += a * z as f64;
                    }
                }
                out.extend(lanes.map(|lanes| scale * lanes.iter().sum::<f64>()));
            }
            out.extend(four.remainder().chunks(z.len()).map(|row| scale * dot_lanes(row, z)));
        },
    );
    out
}

/// `row += weights[row] · z` for every row of a matrix, each row then scaled to unit length.
pub(crate) fn step_rows(rows: &mut [f64], weights: &[f64], z: &[f32]) {
    let dim = z.len();
    vectorised(
        #[inline(always)]
        || {
            for (rows, weights) in rows.chunks_mut(TOGETHER * dim).zip(weights.chunks(TOGETHER)) {
                let mut lanes = [[0.0f64; LANES]; TOGETHER];
                let (chunks, tail) = z.as_chunks::<LANES>();
                for (k, chunk) in chunks.iter().enumerate() {
                    for (r, (lanes, &weight)) in lanes.iter_mut().zip(weights).enumerate() {
                        let place = &mut rows[r * dim + k * LANES..][..LANES];
                        for i in 0..LANES {
                            place[i] += weight * chunk[i] as f64;
                            lanes[i] += place[i] * place[i];
                        }
                    }
                }
                for (r, (lanes, &weight)) in lanes.iter_mut().zip(weights).enumerate() {
                    let place = &mut rows[r * dim + chunks.len() * LANES..][..tail.len()];
                    for (i, (v, &z)) in place.iter_mut().zip(tail).enumerate() {
                        *v += weight * z as f64;
                        lanes[i] += *v * *v;
                    }
                }
                for (row, lanes) in rows.chunks_mut(dim).zip(lanes) {
                    let square: f64 = lanes.iter().sum();
                    let scale = if square > 0.0 { 1.0 / square.sqrt() } else { 1.0 };
                    row.iter_mut().for_each(|v| *v *= scale);
                }
            }
        },
    );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_std() {
        let mut x = -699.0f64;
        while x <= 0.0 {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14, "exp({x})");
            x += 0.0173;
        }
        assert_eq!((exp(0.0), exp(-1000.0)), (1.0, 0.0));
    }
}
