//! [`Pack`]: features on disk with their labels, if they have any. Safetensors, `.npy` and `.npz` are told apart
//! by their first bytes (`docs/formats.md`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::f16;
use memmap2::Mmap;
use safetensors::SafeTensors;
use ultta::{Error, FeatureFile, Features, Result};

use crate::npy::{self, Dtype, Header, NPY_MAGIC, NPZ_MAGIC};

/// Rows that [`Pack::check`] reads at once.
const CHECK_ROWS: usize = 4096;

/// What a safetensors file says about itself.
type Strings = BTreeMap<String, String>;

/// Features of one stream, read as they are asked for, and their labels.
pub struct Pack {
    path: PathBuf,
    source: Source,
    labels: Option<Vec<usize>>,
    metadata: Strings,
}

enum Source {
    Safetensors(FeatureFile),
    Array(Array),
}

/// A NumPy matrix: the bytes of a `.npy` file, mapped or unpacked.
struct Array {
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    dtype: Dtype,
    rows: usize,
    dim: usize,
}

impl Pack {
    /// Opens a file and checks its header and labels; no row is read yet. Labels come from the file itself, or
    /// from `labels` (any of the three formats) when given.
    pub fn open(path: impl AsRef<Path>, labels: Option<&Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut pack = match format_of(path)? {
            Format::Safetensors => Self::from_safetensors(path)?,
            Format::Npy | Format::Npz => Self::from_numpy(path, map_file(path)?)?,
        };
        if let Some(path) = labels {
            pack.labels = Some(read_labels(path)?);
        }
        if let Some(labels) = pack.labels.as_ref().filter(|labels| labels.len() != pack.rows()) {
            let reason = format!("labels: expected one per row ({}), got {}", pack.rows(), labels.len());
            return Err(bad(path, reason));
        }
        Ok(pack)
    }

    fn from_safetensors(path: &Path) -> Result<Self> {
        let source = FeatureFile::open(path)?;
        let (labels, metadata) = safetensors_labels(path)?;
        Ok(Self { path: path.to_owned(), source: Source::Safetensors(source), labels, metadata })
    }

    /// The pack in the bytes of a `.npy` or `.npz` file; `path` is for messages.
    pub fn from_numpy(path: &Path, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let whole = bytes.as_ref();
        let (array, labels) = if whole.starts_with(NPZ_MAGIC) {
            let [features, labels] = npy::unpack(whole, ["features", "labels"]).map_err(|e| bad(path, e))?;
            let features = features.ok_or_else(|| {
                bad(path, format!("no array named `features`; the file holds {:?}", npy::names(whole)))
            })?;
            (Array::new(path, features)?, labels.map(|bytes| npy_labels(path, &bytes)).transpose()?)
        } else {
            (Array::new(path, bytes)?, None)
        };
        let metadata = BTreeMap::new();
        Ok(Self { path: path.to_owned(), source: Source::Array(array), labels, metadata })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match &self.source {
            Source::Safetensors(file) => file.rows(),
            Source::Array(array) => array.rows,
        }
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        match &self.source {
            Source::Safetensors(file) => file.dim(),
            Source::Array(array) => array.dim,
        }
    }

    /// The dtype the rows are stored in.
    pub fn dtype(&self) -> String {
        match &self.source {
            Source::Safetensors(file) => file.dtype(),
            Source::Array(array) => format!("{:?}", array.dtype),
        }
    }

    /// One label per row, where there are labels.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_deref()
    }

    /// Strings that a safetensors file carries: its provenance.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// A fingerprint of labels and rows; of many rows, some. Tells packs apart, is no seal.
    pub fn digest(&self) -> Result<String> {
        const SAMPLED: usize = 64;
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut take = |value: u64| {
            for byte in value.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        take(self.rows() as u64);
        self.labels().unwrap_or(&[]).iter().for_each(|&label| take(label as u64));
        for row in (0..self.rows()).step_by(self.rows().div_ceil(SAMPLED).max(1)) {
            let row = self.read(row..row + 1, true)?;
            row.data().iter().for_each(|v| take(u64::from(v.to_bits())));
        }
        Ok(format!("{hash:016x}"))
    }

    /// Reads some consecutive rows. With `normalize`, rows of any norm but zero are accepted.
    pub fn read(&self, rows: Range<usize>, normalize: bool) -> Result<Features<'static>> {
        match &self.source {
            Source::Safetensors(file) => file.read(rows, normalize),
            Source::Array(array) => array.read(rows, normalize),
        }
    }

    /// What is wrong with a row, and in which file: of many packs one is meant.
    pub fn named(&self, error: Error) -> Error {
        match error {
            Error::NotFinite { .. } | Error::NotUnit { .. } => bad(&self.path, error.to_string()),
            other => other,
        }
    }

    /// Reads the rows with these indices, in this order.
    pub fn select(&self, rows: &[usize], normalize: bool) -> Result<Features<'static>> {
        if rows.is_empty() {
            return Ok(Features::empty(self.dim()));
        }
        if rows.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return self.read(rows[0]..rows[rows.len() - 1] + 1, normalize);
        }
        let mut data = Vec::with_capacity(rows.len() * self.dim());
        for &row in rows {
            data.extend_from_slice(self.read(row..row + 1, normalize)?.data());
        }
        Features::new(data, self.dim())
    }

    /// Reads every row once, so that a bad one is known before any work starts.
    pub fn check(&self, normalize: bool) -> Result<()> {
        for start in (0..self.rows()).step_by(CHECK_ROWS) {
            self.read(start..self.rows().min(start + CHECK_ROWS), normalize)?;
        }
        Ok(())
    }

    /// Checks that every label is a class.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        let labels = self.labels.as_deref().unwrap_or_default();
        match labels.iter().position(|&label| label >= n_classes) {
            None => Ok(()),
            Some(row) => Err(bad(
                &self.path,
                format!(
                    "labels: row {row} has label {}, expected less than the number of classes, {n_classes}",
                    labels[row]
                ),
            )),
        }
    }
}

impl Array {
    fn new(path: &Path, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let Header { dtype, shape, start } = Header::parse(bytes.as_ref()).map_err(|e| bad(path, e))?;
        let &[rows, dim] = &shape[..] else {
            return Err(bad(path, format!("features: expected shape (rows, dim), got {shape:?}")));
        };
        if dim == 0 {
            return Err(bad(path, "features: expected at least 1 column, got 0"));
        }
        if !matches!(dtype, Dtype::F16 | Dtype::F32 | Dtype::F64) {
            return Err(bad(path, format!("features: expected dtype F16, F32 or F64, got {dtype:?}")));
        }
        Ok(Self { bytes: Box::new(bytes), start, dtype, rows, dim })
    }

    fn read(&self, rows: Range<usize>, normalize: bool) -> Result<Features<'static>> {
        if rows.end > self.rows || rows.start > rows.end {
            return Err(Error::Shape { what: "rows in the file", expected: self.rows, got: rows.end });
        }
        let bytes_per_row = self.dim * self.dtype.bytes();
        let bytes = &(*self.bytes).as_ref()[self.start..];
        let bytes = &bytes[rows.start * bytes_per_row..rows.end * bytes_per_row];
        let values: Vec<f32> = match self.dtype {
            Dtype::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
            Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            _ => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
        };
        let features =
            if normalize { Features::normalized(values, self.dim) } else { Features::new(values, self.dim) };
        features.map_err(|e| match e {
            Error::NotUnit { what, row, norm } => Error::NotUnit { what, row: row + rows.start, norm },
            Error::NotFinite { what, row } => Error::NotFinite { what, row: row + rows.start },
            other => other,
        })
    }
}

/// What a file is, by its first bytes. Anything that is not NumPy's is taken for safetensors, whose reader
/// says what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Safetensors,
    Npy,
    Npz,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Features,
    Head,
    State,
}

impl Kind {
    /// Tells features, head and state files apart by what they hold. Only headers are read.
    pub fn of(path: &Path) -> Result<Self> {
        if format_of(path)? != Format::Safetensors {
            return Ok(Kind::Features);
        }
        let map = map_file(path)?;
        let (_, header) = SafeTensors::read_metadata(&map)
            .map_err(|e| bad(path, format!("not a valid safetensors file: {e}")))?;
        let tensors = header.tensors();
        let format = header.metadata().as_ref().and_then(|strings| strings.get("format"));
        match format {
            Some(format) if format.starts_with("ultta-state") => Ok(Kind::State),
            _ if tensors.contains_key("prototypes") => Ok(Kind::Head),
            _ if tensors.contains_key("features") => Ok(Kind::Features),
            _ => {
                let mut names: Vec<_> = tensors.into_keys().collect();
                names.sort();
                let reason =
                    format!("expected `features`, `prototypes` or a state; the file holds {names:?}");
                Err(bad(path, reason))
            }
        }
    }
}

fn format_of(path: &Path) -> Result<Format> {
    let mut first = Vec::new();
    let file = File::open(path).map_err(|e| io("opening", path, e))?;
    file.take(NPY_MAGIC.len() as u64).read_to_end(&mut first).map_err(|e| io("reading", path, e))?;
    Ok(match first {
        _ if first.starts_with(NPY_MAGIC) => Format::Npy,
        _ if first.starts_with(NPZ_MAGIC) => Format::Npz,
        _ => Format::Safetensors,
    })
}

/// The labels in a file of their own.
fn read_labels(path: &Path) -> Result<Vec<usize>> {
    match format_of(path)? {
        Format::Npy => npy_labels(path, &map_file(path)?),
        Format::Npz => {
            let map = map_file(path)?;
            let [labels, _] = npy::unpack(&map, ["labels", "features"]).map_err(|e| bad(path, e))?;
            let labels = labels.ok_or_else(|| {
                bad(path, format!("no array named `labels`; the file holds {:?}", npy::names(&map)))
            })?;
            npy_labels(path, &labels)
        }
        Format::Safetensors => {
            let (labels, _) = safetensors_labels(path)?;
            labels.ok_or_else(|| bad(path, "no tensor named `labels`"))
        }
    }
}

/// The tensor `labels` of a safetensors file, if it has one, and the file's strings. Only they are read.
fn safetensors_labels(path: &Path) -> Result<(Option<Vec<usize>>, Strings)> {
    let map = map_file(path)?;
    let broken = |e: safetensors::SafeTensorError| bad(path, format!("not a valid safetensors file: {e}"));
    let tensors = SafeTensors::deserialize(&map).map_err(broken)?;
    let (_, header) = SafeTensors::read_metadata(&map).map_err(broken)?;
    let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    let Ok(view) = tensors.tensor("labels") else { return Ok((None, metadata)) };
    let dtype = match view.dtype() {
        safetensors::Dtype::I8 => Dtype::I8,
        safetensors::Dtype::I16 => Dtype::I16,
        safetensors::Dtype::I32 => Dtype::I32,
        safetensors::Dtype::I64 => Dtype::I64,
        safetensors::Dtype::U8 => Dtype::U8,
        safetensors::Dtype::U16 => Dtype::U16,
        safetensors::Dtype::U32 => Dtype::U32,
        safetensors::Dtype::U64 => Dtype::U64,
        other => return Err(bad(path, format!("labels: expected whole numbers, got dtype {other:?}"))),
    };
    Ok((Some(labels(path, view.data(), dtype, view.shape())?), metadata))
}

fn npy_labels(path: &Path, bytes: &[u8]) -> Result<Vec<usize>> {
    let Header { dtype, shape, start } =
        Header::parse(bytes).map_err(|e| bad(path, format!("labels: {e}")))?;
    let len = dtype.bytes() * shape.iter().product::<usize>();
    labels(path, &bytes[start..start + len], dtype, &shape)
}

/// Labels out of little-endian whole numbers.
fn labels(path: &Path, bytes: &[u8], dtype: Dtype, shape: &[usize]) -> Result<Vec<usize>> {
    if shape.len() != 1 {
        return Err(bad(path, format!("labels: expected shape [rows], got {shape:?}")));
    }
    let values: Vec<i128> = match dtype {
        Dtype::I8 => bytes.iter().map(|&b| i128::from(b as i8)).collect(),
        Dtype::I16 => bytes.as_chunks().0.iter().map(|&b| i16::from_le_bytes(b).into()).collect(),
        Dtype::I32 => bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
        Dtype::I64 => bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b).into()).collect(),
        Dtype::U8 => bytes.iter().map(|&b| b.into()).collect(),
        Dtype::U16 => bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b).into()).collect(),
        Dtype::U32 => bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b).into()).collect(),
        Dtype::U64 => bytes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b).into()).collect(),
        other => return Err(bad(path, format!("labels: expected whole numbers, got dtype {other:?}"))),
    };
    let label = |(row, value): (usize, i128)| {
        usize::try_from(value)
            .map_err(|_| bad(path, format!("labels: row {row} has label {value}, expected 0 or more")))
    };
    values.into_iter().enumerate().map(label).collect()
}

fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|e| io("opening", path, e))?;
    // SAFETY: the map is read-only, and a file that shrinks under its reader is the writer's mistake, as for
    // every program that maps its input.
    unsafe { Mmap::map(&file) }.map_err(|e| io("mapping", path, e))
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::Format { reason: reason.into(), path: path.to_owned() }
}

fn io(doing: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Io { doing, source, path: path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = [NPY_MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn save(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn error(result: Result<Pack>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn npy_rows_are_read_and_selected() {
        let folder = tempfile::tempdir().unwrap();
        let rows = floats(&[1.0, 0.0, 0.0, 1.0, 0.6, 0.8]);
        let path = save(&folder, "x.npy", &npy("<f4", "(3, 2)", &rows));
        let labels = save(&folder, "y.npy", &npy("<i4", "(3,)", &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]));
        let pack = Pack::open(&path, Some(&labels)).unwrap();
        assert_eq!((pack.rows(), pack.dim(), pack.dtype()), (3, 2, "F32".to_string()));
        assert_eq!(pack.labels(), Some(&[2, 1, 0][..]));
        assert_eq!(pack.select(&[2, 0], false).unwrap().data(), [0.6, 0.8, 1.0, 0.0]);
        assert_eq!(pack.select(&[1, 2], false).unwrap().data(), [0.0, 1.0, 0.6, 0.8]);
        assert!(pack.check_labels(3).is_ok());
        let error = pack.check_labels(2).unwrap_err().to_string();
        assert!(error.contains("row 0 has label 2") && error.contains("classes, 2"), "{error}");
    }

    #[test]
    fn bad_rows_are_named_by_their_place_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let rows = floats(&[1.0, 0.0, 3.0, 4.0, f32::NAN, 0.0]);
        let pack = Pack::open(save(&folder, "x.npy", &npy("<f4", "(3, 2)", &rows)), None).unwrap();
        assert!(matches!(pack.read(1..2, false), Err(Error::NotUnit { row: 1, .. })));
        assert!(matches!(pack.check(true), Err(Error::NotFinite { row: 2, .. })));
        assert!(matches!(pack.read(2..4, true), Err(Error::Shape { .. })));
    }

    #[test]
    fn wrong_arrays_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let rows = npy("<f4", "(1, 2)", &floats(&[1.0, 0.0]));
        let open = |bytes: &[u8]| Pack::open(save(&folder, "x.npy", bytes), None);
        assert!(error(open(&npy("<f4", "(2,)", &floats(&[1.0, 0.0])))).contains("shape (rows, dim)"));
        assert!(error(open(&npy("<i8", "(1, 1)", &[0; 8]))).contains("F16, F32 or F64"));
        assert!(error(open(&npy("<f4", "(1, 0)", &[]))).contains("at least 1 column"));
        let with =
            |labels: &[u8]| Pack::open(save(&folder, "x.npy", &rows), Some(&save(&folder, "y.npy", labels)));
        assert!(error(with(&npy("<f4", "(1,)", &[0; 4]))).contains("whole numbers"));
        assert!(error(with(&npy("|i1", "(1,)", &[255]))).contains("label -1"));
        assert!(error(with(&npy("|i1", "(1, 1)", &[0]))).contains("shape [rows]"));
        assert!(error(with(&npy("|i1", "(2,)", &[0, 0]))).contains("expected one per row (1), got 2"));
    }
}
