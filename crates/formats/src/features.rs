//! A features file as it is stored: rows of numbers, and what may stand beside them (labels, `learn`, `times`,
//! `views`, strings). Safetensors, `.npy`, `.npz` and Parquet are told apart by their first bytes.
//!
//! Nothing here knows what a row means: whether it is of unit length is checked by `ultta::FeatureFile`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;

use crate::kind::Format;
use crate::npy::{Archive, Header};
use crate::numbers::{FLOATS, Number, extend_floats, is_float, whole};
use crate::tensors::Strings;
use crate::{Problem, Result, Tensors, map_file};

/// The bytes of a file, mapped or held in memory.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What is said of Parquet where it is not read.
#[cfg(feature = "parquet")]
pub const NO_PARQUET: &str = "a Parquet file; expected safetensors, .npy or .npz here";
/// What is said of Parquet where it is not read.
#[cfg(not(feature = "parquet"))]
pub const NO_PARQUET: &str = "a Parquet file; this build does not read it, for want of the feature `parquet`";

/// One array of a file.
#[derive(Clone)]
struct Array {
    name: &'static str,
    file: Bytes,
    place: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// An open features file.
pub struct StoredFeatures {
    path: PathBuf,
    features: Array,
    rows: usize,
    dim: usize,
    labels: Option<Vec<usize>>,
    learn: Option<Vec<bool>>,
    times: Option<Vec<f64>>,
    views: Option<Array>,
    metadata: Strings,
}

impl std::fmt::Debug for StoredFeatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, rows, dim, features, .. } = self;
        write!(f, "StoredFeatures({}, {rows} × {dim} {:?})", path.display(), features.dtype)
    }
}

/// The arrays of a file by name.
enum Arrays {
    Safetensors(Bytes, Tensors),
    /// A `.npy` file is one array; its name is whatever the reader is looking for first.
    Npy(Bytes),
    Npz(Bytes),
}

impl StoredFeatures {
    /// Opens a file and checks its header and the small arrays; no row is read yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = map_file(path)?;
        #[cfg(feature = "parquet")]
        if Format::of(&file) == Format::Parquet {
            let unpacked = crate::parquet::unpack(path)?;
            return Self::read(path, unpacked).map_err(|problem| problem.at(path));
        }
        Self::from_bytes(path, file)
    }

    /// Takes the bytes of a file and checks their header; `path` is for messages. Parquet is refused: a few of its bytes can unpack to very many,
    /// and these bytes may come from anybody.
    pub fn from_bytes(
        path: impl AsRef<Path>,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let path = path.as_ref();
        Self::read(path, Arc::new(bytes)).map_err(|problem| problem.at(path))
    }

    fn read(path: &Path, bytes: Bytes) -> Result<Self, Problem> {
        let arrays = Arrays::of(bytes)?;
        let features = arrays.need("features")?;
        let &[rows, dim] = &features.shape[..] else { return Err(features.shape_problem("[rows, dim]")) };
        if dim == 0 {
            return Err(Problem::NoColumns { name: "features".into() });
        }
        features.check_float()?;
        // A `.npy` file holds nothing but the rows.
        let beside = |name| if matches!(arrays, Arrays::Npy(_)) { Ok(None) } else { arrays.get(name) };
        let labels = beside("labels")?.map(|array| array.labels()).transpose()?;
        if let Some(labels) = labels.as_ref().filter(|labels| labels.len() != rows) {
            return Err(Problem::Count { name: "labels", expected: rows, got: labels.len() });
        }
        let learn = beside("learn")?.map(|array| array.flags(rows)).transpose()?;
        let times = beside("times")?.map(|array| array.times(rows)).transpose()?;
        let views = beside("views")?;
        if let Some(views) = &views {
            if !matches!(views.shape[..], [r, _, d] if r == rows && d == dim) {
                return Err(views.shape_problem(&format!("[{rows}, views, {dim}]")));
            }
            views.check_float()?;
        }
        let metadata = match arrays {
            Arrays::Safetensors(_, tensors) => tensors.metadata,
            _ => Strings::new(),
        };
        Ok(Self { path: path.to_owned(), features, rows, dim, labels, learn, times, views, metadata })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
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
    pub fn dtype(&self) -> Dtype {
        self.features.dtype
    }

    /// Strings that a safetensors file carries: its provenance.
    pub fn metadata(&self) -> &Strings {
        &self.metadata
    }

    /// One label per row, where there are labels.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_deref()
    }

    /// Which rows may teach (`learn`), where the file says so.
    pub fn learn(&self) -> Option<&[bool]> {
        self.learn.as_deref()
    }

    /// Arrival times in seconds (`times`), where the file has them.
    pub fn times(&self) -> Option<&[f64]> {
        self.times.as_deref()
    }

    /// Extra views per row (`views`); 0 without views.
    pub fn views_each(&self) -> usize {
        self.views.as_ref().map_or(0, |views| views.shape[1])
    }

    /// The numbers of some consecutive rows. Panics beyond the last row.
    pub fn read_rows(&self, rows: Range<usize>) -> Vec<f32> {
        let mut values = Vec::with_capacity(rows.len() * self.dim);
        self.features.extend(&mut values, rows, self.dim);
        values
    }

    /// The numbers of the views of some rows, row after row; none without views. Panics beyond the last row.
    pub fn read_views(&self, rows: &[usize]) -> Vec<f32> {
        let Some(views) = &self.views else { return Vec::new() };
        let width = self.views_each() * self.dim;
        let mut values = Vec::with_capacity(rows.len() * width);
        rows.iter().for_each(|&row| views.extend(&mut values, row..row + 1, width));
        values
    }
}

/// The labels in a file of their own: the array `labels`, or the only array of a `.npy` file.
pub fn read_labels(path: &Path) -> Result<Vec<usize>> {
    let read = |bytes: Bytes| Arrays::of(bytes)?.need("labels")?.labels();
    read(Arc::new(map_file(path)?)).map_err(|problem| problem.at(path))
}

impl Arrays {
    fn of(file: Bytes) -> Result<Self, Problem> {
        let bytes = (*file).as_ref();
        Ok(match Format::of(bytes) {
            Format::Npy => Arrays::Npy(file),
            Format::Npz => Arrays::Npz(file),
            Format::Parquet => return Err(Problem::Unsupported { what: NO_PARQUET.into() }),
            Format::Safetensors => {
                let tensors = Tensors::read(bytes)?;
                Arrays::Safetensors(file, tensors)
            }
        })
    }

    fn get(&self, name: &'static str) -> Result<Option<Array>, Problem> {
        match self {
            Arrays::Safetensors(file, tensors) => Ok(tensors.get(name).map(|entry| Array {
                name,
                file: file.clone(),
                place: entry.bytes.clone(),
                dtype: entry.dtype,
                shape: entry.shape.clone(),
            })),
            Arrays::Npy(file) => Array::numpy(name, file.clone()).map(Some),
            Arrays::Npz(file) => match Archive::open((**file).as_ref())?.take(name)? {
                Some(bytes) => Array::numpy(name, Arc::new(bytes)).map(Some),
                None => Ok(None),
            },
        }
    }

    fn need(&self, name: &'static str) -> Result<Array, Problem> {
        self.get(name)?.ok_or_else(|| Problem::Missing { name: name.into(), found: self.names() })
    }

    fn names(&self) -> Vec<String> {
        match self {
            Arrays::Safetensors(_, tensors) => tensors.names(),
            Arrays::Npy(_) => Vec::new(),
            Arrays::Npz(file) => {
                Archive::open((**file).as_ref()).map_or(Vec::new(), |archive| archive.names())
            }
        }
    }
}

impl Array {
    fn numpy(name: &'static str, file: Bytes) -> Result<Self, Problem> {
        let Header { dtype, shape, bytes } = Header::parse((*file).as_ref())?;
        Ok(Self { name, place: bytes, dtype, shape, file })
    }

    fn bytes(&self) -> &[u8] {
        &(*self.file).as_ref()[self.place.clone()]
    }

    /// Appends the numbers of some rows of `width` numbers each.
    fn extend(&self, values: &mut Vec<f32>, rows: Range<usize>, width: usize) {
        let width = width * self.dtype.bitsize() / 8;
        let known = extend_floats(values, &self.bytes()[rows.start * width..rows.end * width], self.dtype);
        debug_assert!(known, "the dtype was checked when the file was opened");
    }

    fn check_float(&self) -> Result<(), Problem> {
        if is_float(self.dtype) { Ok(()) } else { Err(self.dtype_problem(FLOATS)) }
    }

    fn labels(&self) -> Result<Vec<usize>, Problem> {
        if self.shape.len() != 1 {
            return Err(self.shape_problem("[rows]"));
        }
        let values =
            whole(self.bytes(), self.dtype).ok_or_else(|| self.dtype_problem("whole numbers (I8 … U64)"))?;
        let label = |(row, label)| usize::try_from(label).map_err(|_| Problem::Label { row, label });
        values.into_iter().enumerate().map(label).collect()
    }

    fn flags(&self, rows: usize) -> Result<Vec<bool>, Problem> {
        self.one_per_row(rows)?;
        if !matches!(self.dtype, Dtype::BOOL | Dtype::U8) {
            return Err(self.dtype_problem("dtype BOOL or U8"));
        }
        Ok(self.bytes().iter().map(|&b| b != 0).collect())
    }

    fn times(&self, rows: usize) -> Result<Vec<f64>, Problem> {
        self.one_per_row(rows)?;
        if self.dtype == Dtype::F64 {
            Ok(f64::decode(self.bytes()))
        } else {
            Err(self.dtype_problem("dtype F64"))
        }
    }

    fn one_per_row(&self, rows: usize) -> Result<(), Problem> {
        if self.shape == [rows] { Ok(()) } else { Err(self.shape_problem(&format!("[{rows}]"))) }
    }

    fn shape_problem(&self, expected: &str) -> Problem {
        Problem::Shape { name: self.name.into(), expected: expected.into(), got: self.shape.clone() }
    }

    fn dtype_problem(&self, expected: &'static str) -> Problem {
        Problem::Dtype { name: self.name.into(), expected, got: self.dtype }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{NewTensor, to_bytes};

    fn file(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Result<StoredFeatures> {
        let new = tensors.iter().map(|(name, dtype, shape, bytes)| NewTensor {
            name,
            dtype: *dtype,
            shape: shape.to_vec(),
            bytes,
        });
        StoredFeatures::from_bytes("f", to_bytes(new.collect(), &Strings::new()))
    }

    fn rows() -> (&'static str, Dtype, &'static [usize], Vec<u8>) {
        ("features", Dtype::F32, &[2, 2], f32::encode(&[1.0, 0.0, 0.6, 0.8]))
    }

    #[test]
    fn everything_beside_the_rows_is_read() {
        let stored = file(&[
            rows(),
            ("labels", Dtype::I64, &[2], i64::encode(&[1, 0])),
            ("learn", Dtype::BOOL, &[2], vec![1, 0]),
            ("times", Dtype::F64, &[2], f64::encode(&[0.5, 2.0])),
            ("views", Dtype::F64, &[2, 1, 2], f64::encode(&[0.0, 1.0, 1.0, 0.0])),
        ])
        .unwrap();
        assert_eq!((stored.rows(), stored.dim(), stored.dtype()), (2, 2, Dtype::F32));
        assert_eq!(stored.read_rows(1..2), [0.6, 0.8]);
        assert_eq!(stored.labels(), Some(&[1, 0][..]));
        assert_eq!(stored.learn(), Some(&[true, false][..]));
        assert_eq!(stored.times(), Some(&[0.5, 2.0][..]));
        assert_eq!((stored.views_each(), stored.read_views(&[1, 0])), (1, vec![1.0, 0.0, 0.0, 1.0]));
    }

    #[test]
    fn mistakes_are_named() {
        for (beside, words) in [
            (("labels", Dtype::I64, &[1][..], vec![0; 8]), "labels: expected one per row (2), got 1"),
            (("labels", Dtype::F32, &[2], vec![0; 8]), "labels: expected whole numbers (I8 … U64), got F32"),
            (("labels", Dtype::I8, &[2], vec![0, 255]), "labels: row 1 has label -1, expected 0 or more"),
            (("learn", Dtype::BOOL, &[3], vec![0; 3]), "learn: expected shape [2], got [3]"),
            (("learn", Dtype::I8, &[2], vec![0; 2]), "learn: expected dtype BOOL or U8, got I8"),
            (("times", Dtype::F32, &[2], vec![0; 8]), "times: expected dtype F64, got F32"),
            (("views", Dtype::F32, &[2, 2], vec![0; 16]), "views: expected shape [2, views, 2], got [2, 2]"),
        ] {
            let error = file(&[rows(), beside]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = file(&[("x", Dtype::U8, &[1], vec![0])]).unwrap_err().to_string();
        assert!(error.contains("no tensor named `features`; the file holds [\"x\"]"), "{error}");
        let error = file(&[("features", Dtype::F32, &[2, 0], vec![])]).unwrap_err().to_string();
        assert!(error.contains("at least 1 column"), "{error}");
    }
}
