//! The arithmetic that costs time, each piece once.
//!
//! Two rules make every answer independent of how rows are grouped into blocks:
//! - the order in which one (row, class) product is summed depends on the dimension alone: lanes run along the
//!   dimension, and a lone row goes through the same chain of operations as a row of a large block;
//! - element-wise passes sum in [`LANES`] fixed lanes, so the vector width of the CPU does not matter.
//!
//! CPU features are found at run time (`pulp`): a baseline x86-64 build still uses AVX2 or AVX-512.

use pulp::{Arch, Simd, WithSimd};

/// Number of partial sums in element-wise passes.
pub(crate) const LANES: usize = 16;

/// Rows of a block that share one pass over the classes: 128 rows of 512 floats stay in the second-level cache.
const ROW_BLOCK: usize = 128;

/// `out[row * n_classes + class] = scale * ⟨rows[row], weights[class]⟩`.
pub(crate) fn products(rows: &[f32], weights: &[f32], dim: usize, scale: f32, out: &mut [f32]) {
    Arch::new().dispatch(Products { rows, weights, dim, scale, out });
}

struct Products<'a> {
    rows: &'a [f32],
    weights: &'a [f32],
    dim: usize,
    scale: f32,
    out: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Products { rows, weights, dim, scale, out } = self;
        let n_classes = weights.len() / dim;
        for (rows, out) in rows.chunks(ROW_BLOCK * dim).zip(out.chunks_mut(ROW_BLOCK * n_classes)) {
            let n_rows = rows.len() / dim;
            if n_rows == 1 {
                single_row(simd, rows, weights, dim, scale, out);
                continue;
            }
            let mut class = 0;
            while class < n_classes {
                let width = (n_classes - class).min(4);
                let mut row = 0;
                while row < n_rows {
                    let height = (n_rows - row).min(3);
                    // Edges repeat their last row or class: the sum is the same, and stored once.
                    let r = |i: usize| &rows[(row + i.min(height - 1)) * dim..][..dim];
                    let w = |i: usize| &weights[(class + i.min(width - 1)) * dim..][..dim];
                    let sums = tile(simd, [r(0), r(1), r(2)], [w(0), w(1), w(2), w(3)]);
                    for i in 0..height {
                        for j in 0..width {
                            out[(row + i) * n_classes + class + j] = scale * sums[i][j];
                        }
                    }
                    row += height;
                }
                class += width;
            }
        }
    }
}

#[inline(always)]
fn single_row<S: Simd>(simd: S, row: &[f32], weights: &[f32], dim: usize, scale: f32, out: &mut [f32]) {
    let n_classes = weights.len() / dim;
    let mut class = 0;
    while class < n_classes {
        let width = (n_classes - class).min(8);
        let w = |i: usize| &weights[(class + i.min(width - 1)) * dim..][..dim];
        let [sums] = tile(simd, [row], [w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7)]);
        for j in 0..width {
            out[class + j] = scale * sums[j];
        }
        class += width;
    }
}

/// Products of `R` rows with `W` weights, each a chain of fused multiply-adds along the dimension.
#[inline(always)]
fn tile<S: Simd, const R: usize, const W: usize>(
    simd: S,
    rows: [&[f32]; R],
    weights: [&[f32]; W],
) -> [[f32; W]; R] {
    let rows = rows.map(|r| S::as_simd_f32s(r));
    let weights = weights.map(|w| S::as_simd_f32s(w));
    let steps = rows[0].0.len();
    let row_heads = rows.map(|r| &r.0[..steps]);
    let weight_heads = weights.map(|w| &w.0[..steps]);
    let mut acc = [[simd.splat_f32s(0.0); W]; R];
    for k in 0..steps {
        let w: [S::f32s; W] = std::array::from_fn(|j| weight_heads[j][k]);
        for i in 0..R {
            let z = row_heads[i][k];
            for j in 0..W {
                acc[i][j] = simd.mul_add_e_f32s(z, w[j], acc[i][j]);
            }
        }
    }
    if !rows[0].1.is_empty() {
        for i in 0..R {
            let z = simd.partial_load_f32s(rows[i].1);
            for j in 0..W {
                acc[i][j] = simd.mul_add_e_f32s(z, simd.partial_load_f32s(weights[j].1), acc[i][j]);
            }
        }
    }
    let mut sums = [[0.0; W]; R];
    for i in 0..R {
        for j in 0..W {
            sums[i][j] = simd.reduce_sum_f32s(acc[i][j]);
        }
    }
    sums
}

/// ⟨a, b⟩ with f64 sums: for norms and other things that are rarely computed.
pub(crate) fn dot_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| a as f64 * b as f64).sum()
}

/// `sum += weight * row` into an f64 accumulator.
pub(crate) fn accumulate(sum: &mut [f64], weight: f64, row: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (s, &z) in sum.iter_mut().zip(row) {
                *s += weight * z as f64;
            }
        },
    );
}

/// ⟨row, z⟩ of a row stored as 16-bit integers; the caller applies the row's scale.
#[inline(always)]
fn dot_i16(row: &[i16], z: &[f32]) -> f32 {
    let mut acc = [[0.0f32; LANES]; 2];
    let (row2, row_tail) = row.as_chunks::<{ 2 * LANES }>();
    let (z2, z_tail) = z.as_chunks::<{ 2 * LANES }>();
    for (q, z) in row2.iter().zip(z2) {
        for half in 0..2 {
            for i in 0..LANES {
                acc[half][i] += q[half * LANES + i] as f32 * z[half * LANES + i];
            }
        }
    }
    for (i, (&q, &z)) in row_tail.iter().zip(z_tail).enumerate() {
        acc[i / LANES][i % LANES] += q as f32 * z;
    }
    let mut lanes = acc[0];
    for i in 0..LANES {
        lanes[i] += acc[1][i];
    }
    sum_lanes(lanes)
}

/// `out[i] = ⟨rows[index[i]], z⟩` over a matrix of 16-bit rows.
pub(crate) fn gather_dots_i16(rows: &[i16], dim: usize, index: &[u32], z: &[f32], out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (o, &c) in out.iter_mut().zip(index) {
                *o = dot_i16(&rows[c as usize * dim..][..dim], z);
            }
        },
    );
}

/// Pairwise sum of the lanes.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
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
    tail.iter().chain(&lanes).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// eˣ, relative error below 2e-7 on [-87, 88]; below that range it gives 0, above it the value at 88.
///
/// Range reduction by powers of two and a polynomial of degree five (the coefficients of Cephes `expf`).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer that can be read from the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.0 { 88.0 } else { x };
    let clamped = if clamped < -87.0 { -87.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

/// ln x for finite x ≥ 1e-30 (smaller values are treated as 1e-30), absolute error below 3e-7 near 1.
///
/// The polynomial of Cephes `logf` on [√½, √2).
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let x = if x > 1e-30 { x } else { 1e-30 };
    // Move the mantissa into [√½, √2): subtracting the bits of √½ makes the exponent round the right way.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let exponent = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let e = exponent as f32;
    let mut p = 7.037_683_6e-2;
    p = p * m - 1.151_461e-1;
    p = p * m + 1.167_699_9e-1;
    p = p * m - 1.242_014_1e-1;
    p = p * m + 1.424_932_3e-1;
    p = p * m - 1.666_805_7e-1;
    p = p * m + 2.000_071_5e-1;
    p = p * m - 2.499_999_4e-1;
    p = p * m + 0.333_333_3;
    let square = m * m;
    let y = p * m * square + e * -2.121_944_4e-4 - 0.5 * square;
    m + y + e * 0.693_359_4
}

/// Runs an element-wise pass with the widest vectors this CPU has. Mark the closure `#[inline(always)]`: it must
/// become part of the function that was compiled for them.
#[inline(always)]
pub(crate) fn vectorised<R>(pass: impl FnMut() -> R) -> R {
    // Called as `FnMut`: the shim that calls such a closure as `FnOnce` would not be inlined.
    struct Pass<F>(F);
    impl<R, F: FnMut() -> R> WithSimd for Pass<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, _simd: S) -> R {
            (self.0)()
        }
    }
    Arch::new().dispatch(Pass(pass))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_769) | 1;
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn a_product_does_not_depend_on_its_block() {
        for dim in [1, 3, 8, 17, 64, 100, 512] {
            for n_classes in [1, 2, 4, 5, 9, 23] {
                let n_rows = 140;
                let (rows, weights) = (noise(n_rows * dim, 1), noise(n_classes * dim, 2));
                let mut whole = vec![0.0; n_rows * n_classes];
                products(&rows, &weights, dim, 100.0, &mut whole);
                for block in [1, 2, 3, 7, 128] {
                    let mut parts = vec![0.0; n_rows * n_classes];
                    for (r, o) in rows.chunks(block * dim).zip(parts.chunks_mut(block * n_classes)) {
                        products(r, &weights, dim, 100.0, o);
                    }
                    assert_eq!(whole, parts, "dim {dim}, classes {n_classes}, block {block}");
                }
                for (i, &got) in whole.iter().enumerate() {
                    let (row, class) = (i / n_classes, i % n_classes);
                    let exact = 100.0 * dot_f64(&rows[row * dim..][..dim], &weights[class * dim..][..dim]);
                    assert!((got as f64 - exact).abs() < 1e-3, "{got} {exact}");
                }
            }
        }
    }

    #[test]
    fn exp_and_ln_agree_with_std() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let (got, want) = (exp(x), (x as f64).exp());
            assert!(((got as f64 - want) / want).abs() < 3e-7, "exp({x}) = {got}, expected {want}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert!(exp(1000.0).is_finite());
        let mut x = 1e-20f32;
        while x < 1e20 {
            let (got, want) = (ln(x), (x as f64).ln());
            assert!(
                (got as f64 - want).abs() <= 3e-7 * want.abs().max(1.0),
                "ln({x}) = {got}, expected {want}"
            );
            x *= 1.0137;
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn sixteen_bit_dots() {
        let dim = 70;
        let rows: Vec<i16> = noise(3 * dim, 3).iter().map(|v| (v * 60_000.0) as i16).collect();
        let z = noise(dim, 4);
        let mut out = [0.0; 2];
        gather_dots_i16(&rows, dim, &[2, 0], &z, &mut out);
        for (got, class) in out.into_iter().zip([2, 0]) {
            let want: f64 = (0..dim).map(|i| rows[class * dim + i] as f64 * z[i] as f64).sum();
            assert!((got as f64 - want).abs() < 1e-4 * want.abs().max(1000.0));
        }
    }
}
