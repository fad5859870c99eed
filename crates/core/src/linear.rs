//! Dense linear algebra for covariances: sums of squares, Cholesky factors, solves. f32 and f64, one thread.
//!
//! Matrices are column-major; of a symmetric one and of a factor only the lower triangle is read and written. All the
//! arithmetic that costs time is one operation, [`update`]: blocks of both factors are packed into panels, and a tile of
//! the result stays in registers while a panel passes. The order of a sum depends on the sizes alone.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Sub};

use pulp::{Arch, Simd, WithSimd};

use crate::kernels::{each, vectorised};

/// Vectors along a column of a tile, and columns of a tile: 12 sums and what they are made of fit 16 registers.
const TALL: usize = 2;
const WIDE: usize = 6;

/// Terms of a sum added in one pass: a panel of this depth stays in the first cache.
const DEPTH: usize = 256;

/// Columns factorised or solved at once, before [`update`] spreads what came out of them.
const BLOCK: usize = 32;

/// f32 or f64.
pub(crate) trait Real:
    Copy
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// As many values as an instruction works on.
    type Vector<S: Simd>: Copy;
    const ONE: Self;

    fn sqrt(self) -> Self;
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// a · b + c
    fn fused<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>)
    -> Self::Vector<S>;
    fn vectors<S: Simd>(values: &[Self]) -> &[Self::Vector<S>];
    fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [Self::Vector<S>];
}

macro_rules! real {
    ($real:ident, $vector:ident, $splat:ident, $fused:ident, $vectors:ident, $vectors_mut:ident) => {
        impl Real for $real {
            type Vector<S: Simd> = S::$vector;
            const ONE: Self = 1.0;

            fn sqrt(self) -> Self {
                self.sqrt()
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn fused<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$fused(a, b, c)
            }

            #[inline(always)]
            fn vectors<S: Simd>(values: &[Self]) -> &[S::$vector] {
                S::$vectors(values).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [S::$vector] {
                S::$vectors_mut(values).0
            }
        }
    };
}

real!(f32, f32s, splat_f32s, mul_add_e_f32s, as_simd_f32s, as_mut_simd_f32s);
real!(f64, f64s, splat_f64s, mul_add_e_f64s, as_simd_f64s, as_mut_simd_f64s);

/// Adds `sign · Σ z zᵀ` over some rows z to the lower triangle of a `dim` × `dim` matrix.
pub(crate) fn add_squares<T: Real>(matrix: &mut [T], rows: &[T], dim: usize, sign: T) {
    let z = Factor { values: rows, rows: dim, terms: rows.len() / dim, row: 1, term: dim };
    update(matrix, dim, z, z, sign, true);
}

/// Adds some columns of `Σ z zᵀ` over some rows z to a matrix that begins with the first of them, at its diagonal entry.
pub(crate) fn add_square_columns<T: Real>(
    matrix: &mut [T],
    rows: &[T],
    dim: usize,
    columns: std::ops::Range<usize>,
) {
    if rows.is_empty() {
        return;
    }
    let part = |count: usize| Factor {
        values: &rows[columns.start..],
        rows: count,
        terms: rows.len() / dim,
        row: 1,
        term: dim,
    };
    let height = dim - columns.start;
    update(matrix, height, part(height), part(columns.len()), T::ONE, true);
}

/// Replaces the lower triangle of a positive definite `dim` × `dim` matrix by its Cholesky factor. `None` if it has none;
/// the matrix is then spoilt.
pub(crate) fn cholesky<T: Real>(matrix: &mut [T], dim: usize) -> Option<()> {
    for first in (0..dim).step_by(BLOCK) {
        let end = (first + BLOCK).min(dim);
        for column in first..end {
            let (before, rest) = matrix.split_at_mut(column * dim);
            let own = &mut rest[column..dim];
            for earlier in (first..column).step_by(4) {
                // Four columns at a time; a column beyond the last counts 0 times.
                let part = |i: usize| &before[(earlier + i).min(column - 1) * dim + column..][..dim - column];
                let count = |i: usize| if earlier + i < column { part(i)[0] } else { T::default() };
                let (parts, counts) = ([0, 1, 2, 3].map(part), [0, 1, 2, 3].map(count));
                vectorised(
                    #[inline(always)]
                    || {
                        let [a, b, c, d] = each(
                            parts,
                            #[inline(always)]
                            |part| &part[..own.len()],
                        );
                        for i in 0..own.len() {
                            let sum =
                                (counts[0] * a[i] + counts[1] * b[i]) + (counts[2] * c[i] + counts[3] * d[i]);
                            own[i] = own[i] - sum;
                        }
                    },
                );
            }
            // Neither 0 nor what is not a number is greater.
            let root = own[0].sqrt();
            if root.partial_cmp(&T::default()) != Some(Ordering::Greater) {
                return None;
            }
            let inverse = T::ONE / root;
            own.iter_mut().for_each(|v| *v = *v * inverse);
            own[0] = root;
        }
        if end < dim {
            let (done, rest) = matrix.split_at_mut(end * dim);
            let panel = Factor {
                values: &done[first * dim + end..],
                rows: dim - end,
                terms: end - first,
                row: 1,
                term: dim,
            };
            update(&mut rest[end..], dim, panel, panel, T::default() - T::ONE, true);
        }
    }
    Some(())
}

/// Solves L Lᵀ x = b for every column b of `columns`, in place. `factor` is the lower `dim` × `dim` factor L.
pub(crate) fn solve<T: Real>(factor: &[T], dim: usize, columns: &mut [T]) {
    let blocks: Vec<usize> = (0..dim).step_by(BLOCK).collect();
    for &first in &blocks {
        let end = (first + BLOCK).min(dim);
        let solved = within_block(
            columns,
            dim,
            first..end,
            #[inline(always)]
            |k, r| factor[(first + k) * dim + first + r],
            true,
        );
        if end < dim {
            let below = Factor {
                values: &factor[first * dim + end..],
                rows: dim - end,
                terms: end - first,
                row: 1,
                term: dim,
            };
            update(
                &mut columns[end..],
                dim,
                below,
                across(&solved, end - first),
                T::default() - T::ONE,
                false,
            );
        }
    }
    for &first in blocks.iter().rev() {
        let end = (first + BLOCK).min(dim);
        let solved = within_block(
            columns,
            dim,
            first..end,
            #[inline(always)]
            |k, r| factor[(first + r) * dim + first + k],
            false,
        );
        if first > 0 {
            let beside =
                Factor { values: &factor[first..], rows: first, terms: end - first, row: dim, term: 1 };
            update(columns, dim, beside, across(&solved, end - first), T::default() - T::ONE, false);
        }
    }
}

/// [`solve`] for one column, which is not worth packing. Its sums have an order of their own.
pub(crate) fn solve_one(factor: &[f64], dim: usize, x: &mut [f64]) {
    const LANES: usize = 8;
    let column = |k: usize| &factor[k * dim + k..(k + 1) * dim];
    vectorised(
        #[inline(always)]
        || {
            for k in 0..dim {
                let (own, below) = x[k..dim].split_at_mut(1);
                own[0] /= column(k)[0];
                for (b, l) in below.iter_mut().zip(&column(k)[1..]) {
                    *b -= l * own[0];
                }
            }
            for k in (0..dim).rev() {
                let (l, below) = (&column(k)[1..], &x[k + 1..dim]);
                let ((l, l_rest), (x_parts, x_rest)) = (l.as_chunks::<LANES>(), below.as_chunks::<LANES>());
                let mut sums = [0.0; LANES];
                for (l, x) in l.iter().zip(x_parts) {
                    for lane in 0..LANES {
                        sums[lane] += l[lane] * x[lane];
                    }
                }
                let mut sum = 0.0;
                sums.iter().for_each(|s| sum += s);
                l_rest.iter().zip(x_rest).for_each(|(l, x)| sum += l * x);
                x[k] = (x[k] - sum) / column(k)[0];
            }
        },
    );
}

/// Solves with one triangle on the diagonal. `at(k, r)` is how often unknown k counts in equation r. Returns the solved
/// rows, each with its value of every column.
fn within_block<T: Real>(
    columns: &mut [T],
    dim: usize,
    rows: std::ops::Range<usize>,
    at: impl Fn(usize, usize) -> T,
    forward: bool,
) -> Vec<T> {
    let (size, count) = (rows.len(), columns.len() / dim);
    let mut solved = vec![T::default(); size * count];
    transpose(&columns[rows.start..], dim, &mut solved, count, [count, size]);
    for step in 0..size {
        let k = if forward { step } else { size - 1 - step };
        let (before, rest) = solved.split_at_mut(k * count);
        let (own, after) = rest.split_at_mut(count);
        let inverse = T::ONE / at(k, k);
        own.iter_mut().for_each(|v| *v = *v * inverse);
        let own = &*own;
        let (others, offset) = if forward { (after, k + 1) } else { (before, 0) };
        vectorised(
            #[inline(always)]
            || {
                for (r, other) in others.chunks_exact_mut(count).enumerate() {
                    let weight = at(k, offset + r);
                    for (o, &v) in other.iter_mut().zip(own) {
                        *o = *o - weight * v;
                    }
                }
            },
        );
    }
    transpose(&solved, count, &mut columns[rows.start..], dim, [size, count]);
    solved
}

/// `to[c · to_stride + r] = from[r · from_stride + c]` for all rows r and columns c.
fn transpose<T: Copy>(
    from: &[T],
    from_stride: usize,
    to: &mut [T],
    to_stride: usize,
    [rows, columns]: [usize; 2],
) {
    const SIDE: usize = 8;
    for first in (0..rows).step_by(SIDE) {
        let row = |i: usize| &from[(first + i) * from_stride..][..columns];
        if first + SIDE <= rows {
            let lines: [&[T]; SIDE] = std::array::from_fn(row);
            for c in 0..columns {
                let across: [T; SIDE] = std::array::from_fn(|i| lines[i][c]);
                to[c * to_stride + first..][..SIDE].copy_from_slice(&across);
            }
        } else {
            for i in 0..rows - first {
                row(i).iter().enumerate().for_each(|(c, &v)| to[c * to_stride + first + i] = v);
            }
        }
    }
}

/// Solved rows as the second factor of [`update`].
fn across<T>(solved: &[T], terms: usize) -> Factor<'_, T> {
    let count = solved.len() / terms;
    Factor { values: solved, rows: count, terms, row: 1, term: count }
}

/// A matrix of `rows` × `terms` values somewhere in a slice: the value (i, k) stands at `i · row + k · term`. One of the
/// two strides is 1.
struct Factor<'a, T> {
    values: &'a [T],
    rows: usize,
    terms: usize,
    row: usize,
    term: usize,
}

impl<T> Clone for Factor<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Factor<'_, T> {}

impl<T: Real> Factor<'_, T> {
    /// Packs up to `width` rows beginning at `first`: term after term, the rows of a term side by side. Rows beyond the
    /// last are 0.
    #[inline(always)]
    fn pack(&self, first: usize, width: usize, terms: std::ops::Range<usize>, into: &mut [T]) {
        let height = width.min(self.rows - first);
        if height < width {
            into.fill(T::default());
        }
        if self.row == 1 {
            for (k, packed) in terms.zip(into.chunks_exact_mut(width)) {
                packed[..height].copy_from_slice(&self.values[first + k * self.term..][..height]);
            }
        } else {
            let from = &self.values[first * self.row + terms.start..];
            transpose(from, self.row, into, width, [height, terms.len()]);
        }
    }
}

/// `matrix[i, j] += sign · Σ_k left[i, k] · right[j, k]`; columns are `stride` values apart. With `lower` only i ≥ j.
fn update<T: Real>(
    matrix: &mut [T],
    stride: usize,
    left: Factor<'_, T>,
    right: Factor<'_, T>,
    sign: T,
    lower: bool,
) {
    if left.rows > 0 && right.rows > 0 && left.terms > 0 {
        Arch::new().dispatch(Update { matrix, stride, left, right, sign, lower });
    }
}

struct Update<'a, T> {
    matrix: &'a mut [T],
    stride: usize,
    left: Factor<'a, T>,
    right: Factor<'a, T>,
    sign: T,
    lower: bool,
}

impl<T: Real> WithSimd for Update<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Update { matrix, stride, left, right, sign, lower } = self;
        let height = TALL * size_of::<T::Vector<S>>() / size_of::<T>();
        let most = DEPTH.min(left.terms);
        let mut tall = vec![T::default(); height * most];
        let mut wide = vec![T::default(); right.rows.next_multiple_of(WIDE) * most];
        let mut edge = vec![T::default(); height];
        for from in (0..left.terms).step_by(DEPTH) {
            let depth = DEPTH.min(left.terms - from);
            let panels = wide.chunks_exact_mut(WIDE * depth);
            for (j, panel) in (0..right.rows).step_by(WIDE).zip(panels) {
                right.pack(j, WIDE, from..from + depth, panel);
            }
            let tall = &mut tall[..height * depth];
            for i in (0..left.rows).step_by(height) {
                left.pack(i, height, from..from + depth, tall);
                let rows = height.min(left.rows - i);
                for (j, panel) in (0..right.rows).step_by(WIDE).zip(wide.chunks_exact(WIDE * depth)) {
                    if lower && i + rows <= j {
                        break;
                    }
                    let sums = tile::<T, S>(simd, tall, panel);
                    let sign = T::splat(simd, sign);
                    // The index into the sums is a constant once this is unrolled, so that they stay in registers.
                    for column in 0..WIDE {
                        let at = j + column;
                        if at >= right.rows {
                            break;
                        }
                        let skip = if lower { at.saturating_sub(i) } else { 0 };
                        let into = &mut matrix[at * stride + i..][..rows];
                        let whole = rows == height && skip == 0;
                        if !whole {
                            edge[..rows].copy_from_slice(into);
                        }
                        let target = T::vectors_mut::<S>(if whole { &mut *into } else { &mut edge });
                        let target = target.first_chunk_mut::<TALL>().expect("a tile is TALL vectors high");
                        for v in 0..TALL {
                            target[v] = T::fused(simd, sign, sums[v][column], target[v]);
                        }
                        if !whole && skip < rows {
                            into[skip..].copy_from_slice(&edge[skip..rows]);
                        }
                    }
                }
            }
        }
    }
}

/// The sums of a tile.
#[inline(always)]
fn tile<T: Real, S: Simd>(simd: S, tall: &[T], wide: &[T]) -> [[T::Vector<S>; WIDE]; TALL] {
    let mut sums = [[T::splat(simd, T::default()); WIDE]; TALL];
    let (tall, _) = T::vectors::<S>(tall).as_chunks::<TALL>();
    let (wide, _) = wide.as_chunks::<WIDE>();
    for (rows, columns) in tall.iter().zip(wide) {
        for j in 0..WIDE {
            let column = T::splat(simd, columns[j]);
            for i in 0..TALL {
                sums[i][j] = T::fused(simd, rows[i], column, sums[i][j]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x as f64 / u64::MAX as f64 - 0.5
            })
            .collect()
    }

    /// Σ z zᵀ, both triangles.
    fn squares(rows: &[f64], dim: usize) -> Vec<f64> {
        let mut sum = vec![0.0; dim * dim];
        for z in rows.chunks(dim) {
            for (at, s) in sum.iter_mut().enumerate() {
                *s += z[at % dim] * z[at / dim];
            }
        }
        sum
    }

    const SIZES: [usize; 12] = [1, 2, 3, 5, 24, 31, 32, 33, 64, 65, 100, 130];

    #[test]
    fn squares_are_added_to_the_lower_triangle_alone() {
        for dim in SIZES {
            for count in [0, 1, 7, DEPTH, DEPTH + 3] {
                let rows = noise(count * dim, 1);
                let wanted = squares(&rows, dim);
                let mut matrix = vec![7.0; dim * dim];
                add_squares(&mut matrix, &rows, dim, -1.0);
                let narrow: Vec<f32> = rows.iter().map(|&v| v as f32).collect();
                let mut single = vec![7.0f32; dim * dim];
                add_squares(&mut single, &narrow, dim, -1.0);
                for at in 0..dim * dim {
                    let wanted = if at % dim >= at / dim { 7.0 - wanted[at] } else { 7.0 };
                    assert!((matrix[at] - wanted).abs() < 1e-12, "dim {dim}, {count} rows, at {at}");
                    assert!((single[at] as f64 - wanted).abs() < 1e-4, "dim {dim}, {count} rows, at {at}");
                }
            }
        }
    }

    #[test]
    fn a_factor_solves_its_matrix() {
        for dim in SIZES {
            for count in [1, 3, 4, 30] {
                let mut matrix = squares(&noise(2 * dim * dim, 2), dim);
                (0..dim).for_each(|i| matrix[i * dim + i] += 1.0);
                let right = noise(count * dim, 3);
                let residual = |solved: &[f64]| {
                    let row = |c: usize, i: usize| -> f64 {
                        (0..dim).map(|k| matrix[k * dim + i] * solved[c * dim + k]).sum()
                    };
                    (0..count * dim).map(|at| (row(at / dim, at % dim) - right[at]).abs()).fold(0.0, f64::max)
                };
                let mut factor = matrix.clone();
                cholesky(&mut factor, dim).expect("positive definite");
                let mut solved = right.clone();
                solve(&factor, dim, &mut solved);
                assert!(residual(&solved) < 1e-10, "dim {dim}, {count} columns: {}", residual(&solved));
                let mut solved = right.clone();
                solved.chunks_mut(dim).for_each(|column| solve_one(&factor, dim, column));
                assert!(residual(&solved) < 1e-10, "dim {dim}, one by one: {}", residual(&solved));

                let mut factor: Vec<f32> = matrix.iter().map(|&v| v as f32).collect();
                cholesky(&mut factor, dim).expect("positive definite");
                let mut solved: Vec<f32> = right.iter().map(|&v| v as f32).collect();
                solve(&factor, dim, &mut solved);
                let solved: Vec<f64> = solved.iter().map(|&v| v as f64).collect();
                assert!(residual(&solved) < 2e-4, "dim {dim}, {count} columns: {}", residual(&solved));
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_factor() {
        for dim in [1, 3, 40, 70] {
            for bad in [0.0, -1.0, f64::NAN] {
                let mut matrix = vec![0.0; dim * dim];
                (0..dim).for_each(|i| matrix[i * dim + i] = 1.0);
                matrix[dim * dim - 1] = bad;
                assert!(cholesky(&mut matrix, dim).is_none(), "dim {dim}, {bad}");
            }
        }
    }
}
