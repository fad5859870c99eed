//! Sums and maxima of element-wise passes, in a fixed number of *lanes*: the order of additions does not depend on the
//! vector width of the CPU.

use super::vectorised;

/// Number of partial sums in element-wise passes.
pub(crate) const LANES: usize = 16;

/// Σ term(a, b), in lanes.
pub(crate) fn fold_lanes(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (xs, x_tail) = a.as_chunks::<LANES>();
            let (ys, y_tail) = b.as_chunks::<LANES>();
            for (x, y) in xs.iter().zip(ys) {
                for i in 0..LANES {
                    lanes[i] += term(x[i], y[i]);
                }
            }
            sum_lanes(lanes, x_tail.iter().zip(y_tail).map(|(&x, &y)| term(x, y)))
        },
    )
}

/// Sum of the lanes, to which the values of a tail, fewer than there are lanes, are added first.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES], tail: impl IntoIterator<Item = f32>) -> f32 {
    let mut last = [0.0f32; LANES];
    last.iter_mut().zip(tail).for_each(|(l, v)| *l = v);
    for i in 0..LANES {
        lanes[i] += last[i];
    }
    sum_pairs(lanes)
}

/// Pairwise sum of the lanes. It is kept out of the passes: inlined, its order would become that of the lanes in the
/// loop before it, which then is not vectorised.
#[inline(never)]
fn sum_pairs(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// [`sum_lanes`] of several, without tails: they are added up side by side.
#[inline(never)]
pub(crate) fn sum_each<const N: usize>(mut lanes: [[f32; LANES]; N]) -> [f32; N] {
    let mut width = LANES / 2;
    while width > 0 {
        for lanes in &mut lanes {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        width /= 2;
    }
    let mut sums = [0.0; N];
    sums.iter_mut().zip(&lanes).for_each(|(sum, lanes)| *sum = lanes[0]);
    sums
}

/// The values of a tail as a whole chunk: the rest of it is `pad`.
#[inline(always)]
pub(crate) fn padded(tail: &[f32], pad: f32) -> [f32; LANES] {
    let mut chunk = [pad; LANES];
    chunk.iter_mut().zip(tail).for_each(|(c, v)| *c = *v);
    chunk
}

/// Pairwise maximum of the lanes. It is kept out of the passes for the same reason as the pairwise sum.
#[inline(never)]
pub(crate) fn max_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest value; -∞ for an empty slice.
#[inline(always)]
pub(crate) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    tail.iter().fold(max_lanes(lanes), |m, &v| if v > m { v } else { m })
}
