//! [`Features`]: rows of unit vectors, and the file they are read from.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use crate::{Error, Result, kernels};

/// A row whose norm is at most this far from 1 is renormalised; further away it is an error.
pub const NORM_TOLERANCE: f64 = 1e-2;

/// A row whose norm is at most this far from 1 is taken as it is: f32 arithmetic gives no better.
const NORM_EXACT: f64 = 2e-6;

/// Rows of unit vectors, one per sample. They are unit because only checked constructors make them.
///
/// ```
/// use ultta::Features;
/// let features = Features::new(vec![1.0, 0.0, 0.6, 0.8], 2)?;
/// assert_eq!((features.rows(), features.dim()), (2, 2));
/// assert!(Features::new(vec![3.0, 4.0], 2).is_err());
/// assert_eq!(Features::normalized(vec![3.0, 4.0], 2)?.row(0), [0.6, 0.8]);
/// # Ok::<(), ultta::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Features<'a> {
    data: Cow<'a, [f32]>,
    dim: usize,
}

impl<'a> Features<'a> {
    /// Rows that are unit already; norms within [`NORM_TOLERANCE`] of 1 are renormalised, others are an error.
    /// Takes a `Vec` or borrows a slice: rows that are exactly unit are not copied.
    pub fn new(data: impl Into<Cow<'a, [f32]>>, dim: usize) -> Result<Self> {
        Ok(Self { data: unit_rows("features", data.into(), dim, false)?, dim })
    }

    /// Rows of any length but zero, scaled to unit length.
    pub fn normalized(data: impl Into<Cow<'a, [f32]>>, dim: usize) -> Result<Self> {
        Ok(Self { data: unit_rows("features", data.into(), dim, true)?, dim })
    }

    /// No rows of the given dimension.
    pub fn empty(dim: usize) -> Self {
        Self { data: Cow::Owned(Vec::new()), dim }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.dim.max(1)
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.dim..][..self.dim]
    }

    /// All rows, one after another.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Some consecutive rows, borrowed.
    pub fn slice(&self, rows: Range<usize>) -> Features<'_> {
        Features {
            data: Cow::Borrowed(&self.data[rows.start * self.dim..rows.end * self.dim]),
            dim: self.dim,
        }
    }

    /// The rows with these indices, in this order, copied.
    pub fn select(&self, rows: &[usize]) -> Features<'static> {
        let mut data = Vec::with_capacity(rows.len() * self.dim);
        for &row in rows {
            data.extend_from_slice(self.row(row));
        }
        Features { data: Cow::Owned(data), dim: self.dim }
    }

    /// The same rows, owned.
    pub fn into_owned(self) -> Features<'static> {
        Features { data: Cow::Owned(self.data.into_owned()), dim: self.dim }
    }
}

/// Checks that `data` is whole rows of finite values and unit length, and renormalises where allowed.
pub(crate) fn unit_rows<'a>(
    what: &'static str,
    mut data: Cow<'a, [f32]>,
    dim: usize,
    any_norm: bool,
) -> Result<Cow<'a, [f32]>> {
    if dim == 0 {
        return Err(Error::Shape { what: "feature dimension", expected: 1, got: 0 });
    }
    if !data.len().is_multiple_of(dim) {
        return Err(Error::Shape { what: "length of the last row", expected: dim, got: data.len() % dim });
    }
    for row in 0..data.len() / dim {
        let range = row * dim..(row + 1) * dim;
        let norm = norm(&data[range.clone()]);
        if !norm.is_finite() {
            return Err(Error::NotFinite { what, row });
        }
        let off = (norm - 1.0).abs();
        if off <= NORM_EXACT {
            continue;
        }
        if norm < 1e-30 || (!any_norm && off > NORM_TOLERANCE) {
            return Err(Error::NotUnit { what, row, norm });
        }
        for value in &mut data.to_mut()[range] {
            *value = (*value as f64 / norm) as f32;
        }
    }
    Ok(data)
}

fn norm(row: &[f32]) -> f64 {
    kernels::vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; 8];
            let (chunks, tail) = row.as_chunks::<8>();
            for chunk in chunks {
                for i in 0..8 {
                    lanes[i] += chunk[i] as f64 * chunk[i] as f64;
                }
            }
            for (i, &v) in tail.iter().enumerate() {
                lanes[i] += v as f64 * v as f64;
            }
            lanes.iter().sum::<f64>().sqrt()
        },
    )
}

/// A features file in safetensors form, memory-mapped: rows are converted as they are read, so a file larger
/// than memory streams.
///
/// The tensor is named `features`, is `[rows, dim]` and of dtype F16, BF16, F32 or F64 (`docs/formats.md`).
#[derive(Debug)]
pub struct FeatureFile {
    map: Mmap,
    path: PathBuf,
    data: Range<usize>,
    dtype: Dtype,
    rows: usize,
    dim: usize,
}

impl FeatureFile {
    /// Opens a file and checks its header; no row is read yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = map_file(path)?;
        let tensors = SafeTensors::deserialize(&map)
            .map_err(|e| Error::format(path, format!("not a valid safetensors file: {e}")))?;
        let view = tensors.tensor("features").map_err(|_| {
            let names = tensors.names().into_iter().map(|n| n.to_string()).collect::<Vec<_>>();
            Error::format(path, format!("no tensor named `features`; the file holds {names:?}"))
        })?;
        let &[rows, dim] = view.shape() else {
            return Err(Error::format(
                path,
                format!("`features`: expected 2 dimensions [rows, dim], got shape {:?}", view.shape()),
            ));
        };
        if dim == 0 {
            return Err(Error::format(path, "`features`: expected at least 1 column, got 0"));
        }
        let dtype = view.dtype();
        if value_bytes(dtype).is_none() {
            return Err(Error::format(
                path,
                format!("`features`: expected dtype F16, BF16, F32 or F64, got {dtype:?}"),
            ));
        }
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let data = start..start + view.data().len();
        Ok(Self { path: path.to_owned(), data, dtype, rows, dim, map })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The dtype the rows are stored in.
    pub fn dtype(&self) -> String {
        format!("{:?}", self.dtype)
    }

    /// Reads some consecutive rows. With `normalize`, rows of any norm but zero are accepted.
    pub fn read(&self, rows: Range<usize>, normalize: bool) -> Result<Features<'static>> {
        if rows.end > self.rows || rows.start > rows.end {
            return Err(Error::Shape { what: "rows in the file", expected: self.rows, got: rows.end });
        }
        let bytes_per_row = self.dim * value_bytes(self.dtype).expect("checked when opened");
        let bytes = &self.map[self.data.clone()][rows.start * bytes_per_row..rows.end * bytes_per_row];
        let values = decode(bytes, self.dtype).expect("checked when opened");
        let first = rows.start;
        let values = unit_rows("features", Cow::Owned(values), self.dim, normalize).map_err(|e| match e {
            Error::NotUnit { what, row, norm } => Error::NotUnit { what, row: row + first, norm },
            Error::NotFinite { what, row } => Error::NotFinite { what, row: row + first },
            other => other,
        })?;
        Ok(Features { data: values, dim: self.dim })
    }

    /// Reads all rows.
    pub fn read_all(&self, normalize: bool) -> Result<Features<'static>> {
        self.read(0..self.rows, normalize)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Maps a file into memory.
pub(crate) fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|e| Error::io("opening", path, e))?;
    if file.metadata().map_err(|e| Error::io("reading", path, e))?.len() == 0 {
        return Err(Error::format(path, "not a valid safetensors file: it is empty"));
    }
    // SAFETY: the map is read-only. Another process truncating the file underneath would be an error of that
    // process; the same holds for every program that maps its input.
    unsafe { Mmap::map(&file) }.map_err(|e| Error::io("mapping", path, e))
}

fn value_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F32 => Some(4),
        Dtype::F64 => Some(8),
        _ => None,
    }
}

/// Little-endian floats of any supported dtype as f32.
pub(crate) fn decode(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked() {
        assert!(matches!(Features::new(vec![1.0; 3], 2), Err(Error::Shape { expected: 2, got: 1, .. })));
        assert!(matches!(Features::new(vec![], 0), Err(Error::Shape { .. })));
        assert!(matches!(Features::new(vec![0.0, 0.0], 2), Err(Error::NotUnit { row: 0, .. })));
        assert!(matches!(Features::normalized(vec![0.0, 0.0], 2), Err(Error::NotUnit { row: 0, .. })));
        let nan = vec![1.0, 0.0, f32::NAN, 0.0];
        assert!(matches!(Features::new(nan, 2), Err(Error::NotFinite { row: 1, .. })));
        let inf = vec![f32::INFINITY, 0.0];
        assert!(matches!(Features::normalized(inf, 2), Err(Error::NotFinite { row: 0, .. })));
    }

    #[test]
    fn nearly_unit_rows_are_renormalised_and_unit_rows_borrowed() {
        let near = Features::new(vec![1.005, 0.0], 2).unwrap();
        assert_eq!(near.row(0), [1.0, 0.0]);
        let exact = [0.6f32, 0.8];
        assert!(matches!(Features::new(&exact[..], 2).unwrap().data, Cow::Borrowed(_)));
    }
}
