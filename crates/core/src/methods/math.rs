//! f64 arithmetic that several methods share.

use pulp::{Arch, Simd, WithSimd};

use crate::kernels::{each, ln, vectorised};

/// Number of partial sums.
const LANES: usize = 8;

/// Smaller probabilities are raised to this, so that their logits are finite.
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

/// `row ← (n · row + p · z) / (n + p)`.
pub(crate) fn blend(row: &mut [f64], (n, p): (f64, f64), z: &[f64]) {
    let (keep, add) = (n / (n + p), p / (n + p));
    vectorised(
        #[inline(always)]
        || row.iter_mut().zip(z).for_each(|(r, z)| *r = keep * *r + add * z),
    );
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

/// scale · ⟨row, z⟩ for every row of a matrix.
pub(crate) fn dots(rows: &[f64], z: &[f32], scale: f64) -> Vec<f64> {
    /// Rows that are summed side by side, so that the CPU need not wait for one sum before it goes on with the next.
    const TOGETHER: usize = 8;
    struct Dots<'a>(&'a [f64], &'a [f64], f64);
    impl WithSimd for Dots<'_> {
        type Output = Vec<f64>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<f64> {
            let Dots(rows, z, scale) = self;
            let mut out = Vec::with_capacity(rows.len() / z.len() + TOGETHER);
            let (z_head, z_tail) = S::as_simd_f64s(z);
            for rows in rows.chunks(TOGETHER * z.len()) {
                // A group with fewer rows repeats its last row.
                let last = rows.len() / z.len() - 1;
                let mut parts = [S::as_simd_f64s(&rows[..z.len()]); TOGETHER];
                for r in 1..TOGETHER {
                    parts[r] = S::as_simd_f64s(&rows[r.min(last) * z.len()..][..z.len()]);
                }
                let heads = each(
                    parts,
                    #[inline(always)]
                    |part| &part.0[..z_head.len()],
                );
                let mut sums = [simd.splat_f64s(0.0); TOGETHER];
                for (k, &z) in z_head.iter().enumerate() {
                    for r in 0..TOGETHER {
                        sums[r] = simd.mul_add_e_f64s(heads[r][k], z, sums[r]);
                    }
                }
                if !z_tail.is_empty() {
                    let z = simd.partial_load_f64s(z_tail);
                    for r in 0..TOGETHER {
                        sums[r] = simd.mul_add_e_f64s(simd.partial_load_f64s(parts[r].1), z, sums[r]);
                    }
                }
                for &sum in &sums[..last + 1] {
                    out.push(scale * simd.reduce_sum_f64s(sum));
                }
            }
            out
        }
    }
    Arch::new().dispatch(Dots(rows, &widen(z), scale))
}

/// `row += weights[row] · z` for every row of a matrix, each row then scaled to unit length.
pub(crate) fn step_rows(rows: &mut [f64], weights: &[f64], z: &[f32]) {
    struct Step<'a>(&'a mut [f64], &'a [f64], &'a [f64]);
    impl WithSimd for Step<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Step(rows, weights, z) = self;
            let (z_head, z_tail) = S::as_simd_f64s(z);
            let (z4, z1) = z_head.as_chunks::<4>();
            for (row, &weight) in rows.chunks_exact_mut(z.len()).zip(weights) {
                let weight = simd.splat_f64s(weight);
                let (head, tail) = S::as_mut_simd_f64s(row);
                let (row4, row1) = head.as_chunks_mut::<4>();
                let mut sums = [simd.splat_f64s(0.0); 4];
                for (row, z) in row4.iter_mut().zip(z4) {
                    for i in 0..4 {
                        row[i] = simd.mul_add_e_f64s(weight, z[i], row[i]);
                        sums[i] = simd.mul_add_e_f64s(row[i], row[i], sums[i]);
                    }
                }
                for (v, &z) in row1.iter_mut().zip(z1) {
                    *v = simd.mul_add_e_f64s(weight, z, *v);
                    sums[0] = simd.mul_add_e_f64s(*v, *v, sums[0]);
                }
                if !tail.is_empty() {
                    let v = simd.mul_add_e_f64s(
                        weight,
                        simd.partial_load_f64s(z_tail),
                        simd.partial_load_f64s(tail),
                    );
                    sums[1] = simd.mul_add_e_f64s(v, v, sums[1]);
                    simd.partial_store_f64s(tail, v);
                }
                let pairs = [simd.add_f64s(sums[0], sums[1]), simd.add_f64s(sums[2], sums[3])];
                let square = simd.reduce_sum_f64s(simd.add_f64s(pairs[0], pairs[1]));
                let scale = if square > 0.0 { 1.0 / square.sqrt() } else { 1.0 };
                for v in row {
                    *v *= scale;
                }
            }
        }
    }
    Arch::new().dispatch(Step(rows, weights, &widen(z)))
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
    vectorised(
        #[inline(always)]
        || {
            for (out, p) in out.iter_mut().zip(probs) {
                *out = ln(p.max(TINY) as f32);
            }
        },
    );
}

/// Largest and mean distance of f64 rows from their f32 anchors.
pub(crate) fn movement(rows: &[f64], anchors: &[f32], dim: usize) -> (f64, f64) {
    let distances = distances(rows, anchors, dim);
    let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    (distances.iter().copied().fold(0.0, f64::max), mean)
}

/// Distance of each f64 row from its f32 anchor.
pub(crate) fn distances(rows: &[f64], anchors: &[f32], dim: usize) -> Vec<f64> {
    let squared = |(r, a): (&[f64], &[f32])| {
        let mut lanes = [0.0f64; LANES];
        for (r, a) in r.chunks(LANES).zip(a.chunks(LANES)) {
            for (lane, (r, &a)) in lanes.iter_mut().zip(r.iter().zip(a)) {
                let apart = r - a as f64;
                *lane += apart * apart;
            }
        }
        lanes.iter().sum::<f64>()
    };
    vectorised(
        #[inline(always)]
        || rows.chunks(dim).zip(anchors.chunks(dim)).map(squared).map(f64::sqrt).collect(),
    )
}

/// KL(prior‖uniform), in nats.
pub(crate) fn kl_from_uniform(prior: &[f64]) -> f64 {
    let classes = prior.len() as f64;
    prior.iter().filter(|p| **p > 0.0).map(|p| p * (p * classes).ln()).sum::<f64>().max(0.0)
}
