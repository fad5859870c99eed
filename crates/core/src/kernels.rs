//! The arithmetic that costs time, each piece once.
//!
//! Two rules make every answer independent of how rows are grouped into blocks:
//! - the order in which one (row, class) product is summed depends on the dimension alone: lanes run along the
//!   dimension, and a lone row goes through the same chain of operations as a row of a large block;
//! - element-wise passes sum in `LANES` fixed lanes, so the vector width of the CPU does not matter.
//!
//! CPU features are found at run time (`pulp`): a baseline x86-64 build still uses AVX2 or AVX-512.

use pulp::{Arch, Simd, WithSimd};

use crate::blocks::PASS_ROWS;

mod experts;
mod functions;
mod lanes;

pub(crate) use experts::{Line, TOGETHER, Voices, Weighed, blend, none_above_one};
pub use functions::exp;
pub(crate) use functions::{exp_f64, ln};
pub(crate) use lanes::*;

// What is not inlined into a kernel is compiled without the CPU features of the kernel, and a call for each few numbers
// takes longer than their arithmetic. The compiler inlines by its own estimate; the next two do not leave it the choice.
// Mark the closure `#[inline(always)]`.

/// `map` of an array, for kernels.
#[inline(always)]
pub(crate) fn each<T: Copy, U: Copy, const N: usize>(values: [T; N], pass: impl Fn(T) -> U) -> [U; N] {
    let mut results = [pass(values[0]); N];
    for i in 1..N {
        results[i] = pass(values[i]);
    }
    results
}

/// The closure itself. (An argument can be marked `#[inline(always)]`, a closure in a `let` cannot.)
#[inline(always)]
pub(crate) fn inlined<F>(closure: F) -> F {
    closure
}

/// `out[row * n_classes + class] = scale * ⟨rows[row], weights[class]⟩`.
pub(crate) fn products(rows: &[f32], weights: &[f32], dim: usize, scale: f32, out: &mut [f32]) {
    let across = weights.len() / dim;
    Arch::new().dispatch(Products { rows, weights, stride: dim, dim, scale, out, across });
}

/// Classes that are scored by whole rows and by halves before the next ones are: their weights stay in the second-level cache.
const CLASSES_AT_ONCE: usize = 64;

/// [`products`] of some rows, and [`leading_products`] over the first half of the dimensions of others. The weights are read once.
pub(crate) fn products_and_halves(
    [rows, halved]: [&[f32]; 2],
    weights: &[f32],
    dim: usize,
    scale: f32,
    [out, half_out]: [&mut [f32]; 2],
) {
    let across = weights.len() / dim;
    for (i, weights) in weights.chunks(CLASSES_AT_ONCE * dim).enumerate() {
        let first = i * CLASSES_AT_ONCE;
        let whole = Products { rows, weights, stride: dim, dim, scale, out: &mut out[first..], across };
        Arch::new().dispatch(whole);
        let out = &mut half_out[first..];
        Arch::new().dispatch(Products {
            rows: halved,
            weights,
            stride: dim,
            dim: dim / 2,
            scale,
            out,
            across,
        });
    }
}

/// [`products`] over the first `dim` of `stride` dimensions: as if the others were 0 in every row.
pub(crate) fn leading_products(
    rows: &[f32],
    weights: &[f32],
    [stride, dim]: [usize; 2],
    scale: f32,
    out: &mut [f32],
) {
    let across = weights.len() / stride;
    Arch::new().dispatch(Products { rows, weights, stride, dim, scale, out, across });
}

struct Products<'a> {
    rows: &'a [f32],
    weights: &'a [f32],
    stride: usize,
    dim: usize,
    scale: f32,
    out: &'a mut [f32],
    /// Values from a row of `out` to the next.
    across: usize,
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Products { rows, weights, stride, dim, scale, out, across } = self;
        let n_classes = weights.len() / stride;
        for (rows, out) in rows.chunks(PASS_ROWS * stride).zip(out.chunks_mut(PASS_ROWS * across)) {
            let n_rows = rows.len() / stride;
            if n_rows == 1 {
                single_row(simd, &rows[..dim], weights, stride, scale, out);
                continue;
            }
            let mut class = 0;
            while class < n_classes {
                let width = (n_classes - class).min(4);
                let mut row = 0;
                while row < n_rows {
                    let height = (n_rows - row).min(3);
                    // A tile at the edge repeats its last row or class; the repeated sums are not stored.
                    let r = each(
                        [0, 1, 2],
                        #[inline(always)]
                        |i: usize| nth(rows, stride, dim, row + i.min(height - 1)),
                    );
                    let w = each(
                        [0, 1, 2, 3],
                        #[inline(always)]
                        |i: usize| nth(weights, stride, dim, class + i.min(width - 1)),
                    );
                    let sums = tile(simd, r, w);
                    for i in 0..height {
                        for j in 0..width {
                            out[(row + i) * across + class + j] = scale * sums[i][j];
                        }
                    }
                    row += height;
                }
                class += width;
            }
        }
    }
}

/// The first `dim` values of row number `i` of a matrix.
#[inline(always)]
fn nth(matrix: &[f32], stride: usize, dim: usize, i: usize) -> &[f32] {
    &matrix[i * stride..][..dim]
}

#[inline(always)]
fn single_row<S: Simd>(simd: S, row: &[f32], weights: &[f32], stride: usize, scale: f32, out: &mut [f32]) {
    let n_classes = weights.len() / stride;
    let mut class = 0;
    while class < n_classes {
        let width = (n_classes - class).min(8);
        let w = each(
            [0, 1, 2, 3, 4, 5, 6, 7],
            #[inline(always)]
            |i: usize| nth(weights, stride, row.len(), class + i.min(width - 1)),
        );
        let [sums] = tile(simd, [row], w);
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
    let rows = each(
        rows,
        #[inline(always)]
        |r| S::as_simd_f32s(r),
    );
    let weights = each(
        weights,
        #[inline(always)]
        |w| S::as_simd_f32s(w),
    );
    let steps = rows[0].0.len();
    let row_heads = each(
        rows,
        #[inline(always)]
        |r| &r.0[..steps],
    );
    let weight_heads = each(
        weights,
        #[inline(always)]
        |w| &w.0[..steps],
    );
    let mut acc = [[simd.splat_f32s(0.0); W]; R];
    for k in 0..steps {
        let z: [S::f32s; R] = each(
            row_heads,
            #[inline(always)]
            |head| head[k],
        );
        for j in 0..W {
            let w = weight_heads[j][k];
            for i in 0..R {
                acc[i][j] = simd.mul_add_e_f32s(z[i], w, acc[i][j]);
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

/// `out[i] = ⟨rows[index[i]], z⟩` over a matrix of 16-bit rows; the caller applies the rows' scales.
pub(crate) fn gather_dots_i16(rows: &[i16], dim: usize, index: &[u32], z: &[f32], out: &mut [f32]) {
    Arch::new().dispatch(GatherDots { rows, dim, index, z, out });
}

struct GatherDots<'a> {
    rows: &'a [i16],
    dim: usize,
    index: &'a [u32],
    z: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for GatherDots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (o, &c) in self.out.iter_mut().zip(self.index) {
            *o = dot_i16(simd, &self.rows[c as usize * self.dim..][..self.dim], self.z);
        }
    }
}

/// ⟨row, z⟩ of a row stored as 16-bit integers.
#[inline(always)]
fn dot_i16<S: Simd>(simd: S, row: &[i16], z: &[f32]) -> f32 {
    /// Values widened at once.
    const WIDE: usize = 64;
    let mut acc = [simd.splat_f32s(0.0); 4];
    let (rows, row_tail) = row.as_chunks::<WIDE>();
    let (zs, z_tail) = z.as_chunks::<WIDE>();
    let mut add = inlined(
        #[inline(always)]
        |wide: &[f32; WIDE], z: &[f32; WIDE]| {
            let (wide, z) = (S::as_simd_f32s(wide).0, S::as_simd_f32s(z).0);
            for (i, (&w, &z)) in wide.iter().zip(z).enumerate() {
                acc[i % 4] = simd.mul_add_e_f32s(w, z, acc[i % 4]);
            }
        },
    );
    let mut wide = [0.0f32; WIDE];
    for (q, z) in rows.iter().zip(zs) {
        for i in 0..WIDE {
            wide[i] = q[i] as f32;
        }
        add(&wide, z);
    }
    if !row_tail.is_empty() {
        let mut last = [0.0f32; WIDE];
        wide.fill(0.0);
        for (w, &q) in wide.iter_mut().zip(row_tail) {
            *w = q as f32;
        }
        last[..z_tail.len()].copy_from_slice(z_tail);
        add(&wide, &last);
    }
    let pairs = [simd.add_f32s(acc[0], acc[1]), simd.add_f32s(acc[2], acc[3])];
    simd.reduce_sum_f32s(simd.add_f32s(pairs[0], pairs[1]))
}

/// Writes the places of the bits that are set, beyond `from`, behind the first `found` indices. How many indices there are then. Whether
/// bits are set cannot be foreseen, so the first few are written in any case.
#[inline(always)]
fn take_bits(mut bits: u64, from: usize, out: &mut Vec<u32>, found: usize) -> usize {
    const FEW: usize = 4;
    let all = bits.count_ones() as usize;
    if out.len() < found + 64 {
        out.resize(found + 256, 0);
    }
    let slots = &mut out[found..found + 64];
    let next = |bits: &mut u64| {
        let place = bits.trailing_zeros() as usize;
        *bits &= bits.wrapping_sub(1);
        (from + place) as u32
    };
    for slot in &mut slots[..FEW] {
        *slot = next(&mut bits);
    }
    for slot in slots.iter_mut().take(all).skip(FEW) {
        *slot = next(&mut bits);
    }
    found + all
}

/// Appends the indices, from `from` on, of the values that are at least `floor`. Every index is written, and the next one over it unless it
/// was a hit: hits cannot be foreseen.
#[inline(always)]
fn keep(values: &[f32], from: usize, floor: f32, out: &mut Vec<u32>) {
    let start = out.len();
    out.resize(start + values.len(), 0);
    let (slots, mut hits) = (&mut out[start..], 0);
    for (i, &value) in values.iter().enumerate() {
        slots[hits] = (from + i) as u32;
        hits += usize::from(value >= floor);
    }
    out.truncate(start + hits);
}

/// Appends the indices of all values that are at least `floor`.
pub(crate) fn indices_above(values: &[f32], floor: f32, out: &mut Vec<u32>) {
    Arch::new().dispatch(Above(values, floor, out))
}

struct Above<'a>(&'a [f32], f32, &'a mut Vec<u32>);

impl WithSimd for Above<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Above(values, floor, out) = self;
        let (heads, tail) = S::as_simd_f32s(values);
        let least = simd.splat_f32s(floor);
        let hits = inlined(
            #[inline(always)]
            |v: S::f32s| simd.greater_than_or_equal_f32s(v, least),
        );
        let (chunks, rest) = heads.as_chunks::<4>();
        // Where the CPU has masks of one bit for each value, the bits of four are gathered.
        if size_of::<S::m32s>() == size_of::<u16>() {
            let mut found = out.len();
            for (i, chunk) in chunks.iter().map(|chunk| &chunk[..]).chain([rest]).enumerate() {
                let mut bits = 0;
                for (j, &vector) in chunk.iter().enumerate() {
                    if let &[low, high] = pulp::bytemuck::bytes_of(&hits(vector)) {
                        bits |= u64::from(u16::from_le_bytes([low, high])) << (16 * j);
                    }
                }
                found = take_bits(bits, 4 * i * S::F32_LANES, out, found);
            }
            out.truncate(found);
        } else {
            // Whole chunks without a hit are skipped, and then whole vectors.
            let has_hit = inlined(
                #[inline(always)]
                |v: S::f32s| simd.first_true_m32s(hits(v)) < S::F32_LANES,
            );
            for (i, chunk) in chunks.iter().enumerate() {
                let &[a, b, c, d] = chunk;
                if has_hit(simd.max_f32s(simd.max_f32s(a, b), simd.max_f32s(c, d))) {
                    for (j, _) in chunk.iter().enumerate().filter(|(_, vector)| has_hit(**vector)) {
                        let from = (i * 4 + j) * S::F32_LANES;
                        keep(&values[from..from + S::F32_LANES], from, floor, out);
                    }
                }
            }
            let from = chunks.len() * 4 * S::F32_LANES;
            keep(&values[from..values.len() - tail.len()], from, floor, out);
        }
        keep(tail, values.len() - tail.len(), floor, out);
    }
}

/// The same value everywhere.
pub(crate) fn fill(row: &mut [f32], value: f32) {
    vectorised(
        #[inline(always)]
        || row.fill(value),
    );
}

/// Runs an element-wise pass with the widest vectors this CPU has. Mark the closure `#[inline(always)]`: it must
/// become part of the function that was compiled for them.
#[inline(always)]
pub fn vectorised<R>(pass: impl FnMut() -> R) -> R {
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
    fn indices_are_those_of_the_values_that_reach_the_floor() {
        for n in [0, 1, 15, 16, 17, 63, 64, 65, 100, 130, 1000] {
            let values = noise(n, n as u32 + 3);
            for floor in [-1.0, 0.0, 0.3, 0.49, 1.0] {
                let reach = |i: &u32| values[*i as usize] >= floor;
                let expected: Vec<u32> = std::iter::once(7).chain((0..n as u32).filter(reach)).collect();
                let mut found = vec![7];
                indices_above(&values, floor, &mut found);
                assert_eq!(found, expected, "{n} values from {floor}");
                found = vec![7];
                Simd::vectorize(pulp::Scalar::new(), Above(&values, floor, &mut found));
                assert_eq!(found, expected, "{n} values from {floor}, without vectors");
                // A CPU whose masks are vectors.
                #[cfg(target_arch = "x86_64")]
                if let Some(simd) = pulp::x86::V3::try_new() {
                    found = vec![7];
                    Simd::vectorize(simd, Above(&values, floor, &mut found));
                    assert_eq!(found, expected, "{n} values from {floor}, with AVX2");
                }
            }
        }
    }

    #[test]
    fn a_product_does_not_depend_on_its_block() {
        for dim in [1, 3, 8, 17, 64, 100, 512] {
            for n_classes in [1, 2, 4, 5, 9, 23] {
                let n_rows = 140;
                let (rows, weights) = (noise(n_rows * dim, 1), noise(n_classes * dim, 2));
                let mut whole = vec![0.0; n_rows * n_classes];
                products(&rows, &weights, dim, 100.0, &mut whole);
                let half = dim / 2;
                let mut leading = vec![0.0; n_rows * n_classes];
                leading_products(&rows, &weights, [dim, half], 100.0, &mut leading);
                for (row, leading) in rows.chunks(dim).zip(leading.chunks(n_classes)) {
                    // As if the other half were 0, and the same for a row alone.
                    let (mut halved, mut alone) = (row.to_vec(), vec![0.0; n_classes]);
                    halved[half..].fill(0.0);
                    products(&halved, &weights, dim, 100.0, &mut alone);
                    assert_eq!(alone, leading);
                    leading_products(row, &weights, [dim, half], 100.0, &mut alone);
                    assert_eq!(alone, leading);
                }
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
