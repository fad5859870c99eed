//! Lower triangles of symmetric matrices, packed column by column: half the memory of the square. And the rows that wait
//! to enter one, in a saved state.

use std::ops::Range;

use crate::kernels::accumulate;
use crate::linear::add_square_columns;
use crate::{Error, Result, State};

/// Columns of a product that are computed at once: bounds the memory for it.
const PANEL: usize = 128;

/// Numbers of a triangle.
pub(crate) fn len(dim: usize) -> usize {
    dim * (dim + 1) / 2
}

/// Where a column is, from its diagonal entry down.
pub(crate) fn column(dim: usize, column: usize) -> Range<usize> {
    let start = column * dim - column * column.saturating_sub(1) / 2;
    start..start + dim - column
}

/// The triangle of a square, column-major.
pub(crate) fn pack(square: &[f32], dim: usize) -> Vec<f32> {
    let mut packed = Vec::with_capacity(len(dim));
    (0..dim).for_each(|c| packed.extend_from_slice(&square[c * dim..][c..dim]));
    packed
}

/// The square of a triangle, column-major, with zeros above the diagonal.
pub(crate) fn unpack(packed: &[f32], dim: usize) -> Vec<f32> {
    let mut square = vec![0.0; dim * dim];
    (0..dim).for_each(|c| square[c * dim..][c..dim].copy_from_slice(&packed[column(dim, c)]));
    square
}

/// Σ z zᵀ over some rows, handed over column by column, each from its diagonal entry down.
pub(crate) fn outer_products(rows: &[f32], dim: usize, mut each: impl FnMut(usize, &[f32])) {
    let mut panel = Vec::new();
    for start in (0..dim).step_by(PANEL) {
        let (width, height) = (PANEL.min(dim - start), dim - start);
        panel.clear();
        panel.resize(height * width, 0.0);
        add_square_columns(&mut panel, rows, dim, start..start + width);
        (0..width).for_each(|i| each(start + i, &panel[i * height + i..(i + 1) * height]));
    }
}

/// A state whose waiting rows have entered the evidence: what two states may add.
pub(crate) fn settle(state: &State) -> Result<State> {
    let mut settled = state.clone();
    let Ok(waiting) = state.get::<f32>("local.evidence.pending") else { return Ok(settled) };
    if waiting.is_empty() {
        return Ok(settled);
    }
    let mut sum = state.get::<f64>("evidence.decayed.second_sum")?.to_vec();
    let dim = sum.len();
    if dim == 0 || !waiting.len().is_multiple_of(dim) {
        return Err(Error::state("local.evidence.pending: not whole rows"));
    }
    let mut second = state.get_n::<f64>("evidence.decayed.second", len(dim))?.to_vec();
    let mut n = state.get_n::<f64>("evidence.decayed.n", 2)?.to_vec();
    let unit: f64 = state.scalar("local.evidence.unit")?;
    outer_products(waiting, dim, |c, from| accumulate(&mut second[column(dim, c)], unit, from));
    waiting.chunks(dim).for_each(|z| accumulate(&mut sum, unit, z));
    n[1] += (waiting.len() / dim) as f64 * unit;
    settled.put("evidence.decayed.second_sum", &sum);
    settled.put("evidence.decayed.second", &second);
    settled.put("evidence.decayed.n", &n);
    settled.put::<f32>("local.evidence.pending", &[]);
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triangle_is_half_a_square() {
        for dim in [1, 2, 5, 300] {
            let square: Vec<f32> =
                (0..dim * dim).map(|i| if i % dim >= i / dim { i as f32 } else { 0.0 }).collect();
            let packed = pack(&square, dim);
            assert_eq!((packed.len(), column(dim, dim - 1).end), (len(dim), len(dim)));
            assert_eq!(unpack(&packed, dim), square);
            let rows: Vec<f32> = (0..3 * dim).map(|i| (i % 7) as f32).collect();
            outer_products(&rows, dim, |c, from| {
                for (i, &got) in from.iter().enumerate() {
                    let wanted: f32 = rows.chunks(dim).map(|z| z[c] * z[c + i]).sum();
                    assert_eq!(got, wanted, "{dim}: {c} {i}");
                }
            });
        }
    }
}
