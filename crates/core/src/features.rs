//! [`Features`]: rows of unit vectors, and the file they are read from.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ultta_formats::{Line, StoredFeatures};

use crate::{Error, Result, What, kernels};

/// A row whose norm is at most this far from 1 is renormalised; further away it is an error.
pub const NORM_TOLERANCE: f64 = 1e-2;

/// A row whose norm is at most this far from 1 is taken as it is: f32 arithmetic gives no better.
const NORM_EXACT: f64 = 2e-6;

/// Rows of unit vectors, one per sample. They are unit because the constructors check them; [`Features::trusted`] alone takes
/// the word of its caller.
///
/// ```
/// use ultta::Features;
/// let features = Features::new(vec![1.0, 0.0, 0.6, 0.8], 2)?;
/// assert_eq!((features.rows(), features.dim()), (2, 2));
/// assert!(Features::new(vec![3.0, 4.0], 2).is_err());
/// assert_eq!(Features::normalized(vec![3.0, 4.0], 2)?.row(0), [0.6, 0.8]);
/// # Ok::<(), ultta::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Features<'a> {
    data: Data<'a>,
    dim: usize,
}

/// Values of rows: a caller's, or values that clones and slices share.
#[derive(Clone, Debug)]
enum Data<'a> {
    Borrowed(&'a [f32]),
    Shared(Arc<Vec<f32>>, Range<usize>),
}

impl<'a> From<Cow<'a, [f32]>> for Data<'a> {
    fn from(data: Cow<'a, [f32]>) -> Self {
        match data {
            Cow::Borrowed(values) => Data::Borrowed(values),
            Cow::Owned(values) => {
                let all = 0..values.len();
                Data::Shared(Arc::new(values), all)
            }
        }
    }
}

impl<'a> Features<'a> {
    /// Rows that are unit already; norms within [`NORM_TOLERANCE`] of 1 are renormalised, others are an error.
    /// Takes a `Vec` or borrows a slice: rows that are exactly unit are not copied.
    pub fn new(data: impl Into<Cow<'a, [f32]>>, dim: usize) -> Result<Self> {
        Self::checked(data, dim, false)
    }

    /// Rows of any length but zero, scaled to unit length.
    pub fn normalized(data: impl Into<Cow<'a, [f32]>>, dim: usize) -> Result<Self> {
        Self::checked(data, dim, true)
    }

    /// [`normalized`](Self::normalized) if `normalize` is set, else [`new`](Self::new). Every row is checked once:
    /// that it is finite, that its length is right, and scaled where that is asked for.
    pub fn checked(data: impl Into<Cow<'a, [f32]>>, dim: usize, normalize: bool) -> Result<Self> {
        Ok(Self { data: unit_rows(What::Features, data.into(), dim, normalize)?.into(), dim })
    }

    /// The features and the extra views of a JSON line. With `normalize`, rows of any norm but zero are accepted.
    pub fn of_line(line: &'a Line, normalize: bool) -> Result<(Self, Option<Features<'static>>)> {
        let dim = line.features.len();
        let features = Self::checked(&line.features, dim, normalize)?;
        if line.views.is_empty() {
            return Ok((features, None));
        }
        if let Some(view) = line.views.iter().find(|view| view.len() != dim) {
            return Err(Error::Shape {
                what: What::Other("length of a view"),
                expected: dim,
                got: view.len(),
            });
        }
        let views = unit_rows(What::Views, Cow::Owned(line.views.concat()), dim, normalize)?;
        Ok((features, Some(Features { data: views.into(), dim })))
    }

    /// Rows that were checked before and kept under a checksum: taken bit for bit, neither checked nor scaled again.
    /// `None` unless they are whole rows.
    pub fn trusted(data: Vec<f32>, dim: usize) -> Option<Features<'static>> {
        let whole = dim > 0 && data.len().is_multiple_of(dim);
        whole.then(|| Features { data: Cow::<[f32]>::Owned(data).into(), dim })
    }

    /// No rows of the given dimension.
    pub fn empty(dim: usize) -> Self {
        Self { data: Data::Borrowed(&[]), dim }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data().len() / self.dim.max(1)
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data()[row * self.dim..][..self.dim]
    }

    /// All rows, one after another.
    pub fn data(&self) -> &[f32] {
        match &self.data {
            Data::Borrowed(values) => values,
            Data::Shared(values, range) => &values[range.clone()],
        }
    }

    /// Some consecutive rows. Nothing is copied: borrowed rows stay borrowed, owned rows are shared.
    pub fn slice(&self, rows: Range<usize>) -> Features<'a> {
        let (start, end) = (rows.start * self.dim, rows.end * self.dim);
        let data = match &self.data {
            Data::Borrowed(values) => Data::Borrowed(&values[start..end]),
            Data::Shared(values, range) => {
                assert!(start <= end && end <= range.len(), "rows {rows:?} of {}", self.rows());
                Data::Shared(values.clone(), range.start + start..range.start + end)
            }
        };
        Features { data, dim: self.dim }
    }

    /// The rows with these indices, in this order, copied.
    pub fn select(&self, rows: &[usize]) -> Features<'static> {
        let mut data = Vec::with_capacity(rows.len() * self.dim);
        for &row in rows {
            data.extend_from_slice(self.row(row));
        }
        Features { data: Cow::<[f32]>::Owned(data).into(), dim: self.dim }
    }

    /// The same rows, owned. Borrowed rows are copied; a clone of owned rows shares them.
    pub fn into_owned(self) -> Features<'static> {
        let data = match self.data {
            Data::Borrowed(values) => Cow::<[f32]>::Owned(values.to_vec()).into(),
            Data::Shared(values, range) => Data::Shared(values, range),
        };
        Features { data, dim: self.dim }
    }

    /// Adds the rows of `other` at the end. Rows that are shared with a clone or a slice are copied first.
    ///
    /// # Panics
    /// If the dimensions differ.
    pub fn append(&mut self, other: &Features<'_>) {
        assert_eq!(self.dim, other.dim, "rows of another dimension cannot be appended");
        if let Data::Shared(values, range) = &mut self.data
            && *range == (0..values.len())
        {
            Arc::make_mut(values).extend_from_slice(other.data());
            range.end = values.len();
            return;
        }
        let mut values = Vec::with_capacity(self.data().len() + other.data().len());
        values.extend_from_slice(self.data());
        values.extend_from_slice(other.data());
        self.data = Cow::<[f32]>::Owned(values).into();
    }
}

impl PartialEq for Features<'_> {
    fn eq(&self, other: &Features<'_>) -> bool {
        self.dim == other.dim && self.data() == other.data()
    }
}

/// Checks that `data` is whole rows of finite values and unit length, and renormalises where allowed.
pub(crate) fn unit_rows<'a>(
    what: What,
    mut data: Cow<'a, [f32]>,
    dim: usize,
    any_norm: bool,
) -> Result<Cow<'a, [f32]>> {
    if dim == 0 {
        return Err(Error::Shape { what: What::Dimension, expected: 1, got: 0 });
    }
    if !data.len().is_multiple_of(dim) {
        return Err(Error::Shape {
            what: What::Other("length of the last row"),
            expected: dim,
            got: data.len() % dim,
        });
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

/// A features file, memory-mapped: rows are converted and checked as they are read, so a file larger than memory
/// streams. Safetensors, `.npy`, `.npz` or, in builds with the feature, Parquet (`docs/formats.md`).
///
/// Beside the rows a file may carry which rows may teach (`learn`), when they arrived (`times`) and extra views of
/// the samples (`views`): what [`Input`](crate::Input) takes.
#[derive(Debug)]
pub struct FeatureFile {
    stored: StoredFeatures,
}

impl FeatureFile {
    /// Opens a file and checks its header; no row is read yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { stored: StoredFeatures::open(path)? })
    }

    /// Takes the bytes of a file and checks their header; `name` stands for the path in messages.
    pub fn from_bytes(name: &str, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        Ok(Self { stored: StoredFeatures::from_bytes(name, bytes)? })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.stored.rows()
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.stored.dim()
    }

    /// The dtype the rows are stored in.
    pub fn dtype(&self) -> String {
        format!("{:?}", self.stored.dtype())
    }

    /// Reads some consecutive rows. With `normalize`, rows of any norm but zero are accepted.
    pub fn read(&self, rows: Range<usize>, normalize: bool) -> Result<Features<'static>> {
        if rows.end > self.rows() || rows.start > rows.end {
            return Err(Error::Shape {
                what: What::Other("rows in the file"),
                expected: self.rows(),
                got: rows.end,
            });
        }
        let first = rows.start;
        unit(What::Features, self.stored.read_rows(rows), self.dim(), normalize, |row| first + row)
    }

    /// Reads all rows.
    pub fn read_all(&self, normalize: bool) -> Result<Features<'static>> {
        self.read(0..self.rows(), normalize)
    }

    /// Reads the rows with these indices, in this order.
    pub fn select(&self, rows: &[usize], normalize: bool) -> Result<Features<'static>> {
        self.check_rows(rows)?;
        if !rows.is_empty() && rows.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return self.read(rows[0]..rows[rows.len() - 1] + 1, normalize);
        }
        let mut data = Vec::with_capacity(rows.len() * self.dim());
        rows.iter().for_each(|&row| data.extend(self.stored.read_rows(row..row + 1)));
        unit(What::Features, data, self.dim(), normalize, |i| rows[i])
    }

    /// Which rows may teach, where the file says so.
    pub fn learn(&self) -> Option<&[bool]> {
        self.stored.learn()
    }

    /// Arrival times in seconds, where the file has them.
    pub fn times(&self) -> Option<&[f64]> {
        self.stored.times()
    }

    /// Extra views per row; 0 without views.
    pub fn views_each(&self) -> usize {
        self.stored.views_each()
    }

    /// The extra views of the rows with these indices, [`FeatureFile::views_each`] after another for each row;
    /// `None` without views.
    pub fn views(&self, rows: &[usize], normalize: bool) -> Result<Option<Features<'static>>> {
        self.check_rows(rows)?;
        let each = self.views_each();
        if each == 0 {
            return Ok(None);
        }
        unit(What::Views, self.stored.read_views(rows), self.dim(), normalize, |i| rows[i / each]).map(Some)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.stored.path()
    }

    /// The file as it is stored, with its labels and strings.
    pub fn stored(&self) -> &StoredFeatures {
        &self.stored
    }

    fn check_rows(&self, rows: &[usize]) -> Result<()> {
        match rows.iter().find(|&&row| row >= self.rows()) {
            Some(row) => Err(Error::Shape {
                what: What::Other("rows in the file"),
                expected: self.rows(),
                got: row + 1,
            }),
            None => Ok(()),
        }
    }
}

/// Unit rows out of a file; an error names the row's place in the file.
fn unit(
    what: What,
    data: Vec<f32>,
    dim: usize,
    normalize: bool,
    place: impl Fn(usize) -> usize,
) -> Result<Features<'static>> {
    let data = unit_rows(what, Cow::Owned(data), dim, normalize).map_err(|e| match e {
        Error::NotUnit { what, row, norm } => Error::NotUnit { what, row: place(row), norm },
        Error::NotFinite { what, row } => Error::NotFinite { what, row: place(row) },
        other => other,
    })?;
    Ok(Features { data: data.into(), dim })
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
        assert!(matches!(Features::new(&exact[..], 2).unwrap().data, Data::Borrowed(_)));
    }

    #[test]
    fn clones_and_slices_share_rows_and_appending_leaves_them_alone() {
        let mut rows = Features::new(vec![1.0, 0.0, 0.0, 1.0, 0.6, 0.8], 2).unwrap();
        let (copy, last) = (rows.clone(), rows.slice(1..3));
        assert!(std::ptr::eq(copy.row(1), last.row(0)), "no copy was made");
        rows.append(&last);
        assert_eq!((rows.rows(), copy.rows(), last.rows()), (5, 3, 2));
        assert_eq!((rows.row(4), last.row(1)), (&[0.6f32, 0.8][..], &[0.6f32, 0.8][..]));
        let mut part = last.slice(0..1);
        part.append(&copy.slice(0..1));
        assert_eq!(part.data(), [0.0, 1.0, 1.0, 0.0]);
        let mut borrowed = Features::empty(2);
        borrowed.append(&part);
        assert_eq!(borrowed, part);
    }

    #[test]
    fn a_line_gives_features_and_views() {
        let line = |text: &str| Line::parse(text.as_bytes()).unwrap().unwrap();
        let full = line(r#"{"features": [1, 0], "views": [[0, 1], [3, 4]]}"#);
        let (features, views) = Features::of_line(&full, true).unwrap();
        assert_eq!((features.rows(), views.unwrap().data()), (1, &[0.0, 1.0, 0.6, 0.8][..]));
        assert!(matches!(
            Features::of_line(&full, false),
            Err(Error::NotUnit { what: What::Views, row: 1, .. })
        ));
        let ragged = line(r#"{"features": [1, 0], "views": [[1]]}"#);
        assert!(Features::of_line(&ragged, false).unwrap_err().to_string().contains("length of a view"));
        assert!(Features::of_line(&line("[]"), false).is_err());
    }
}
