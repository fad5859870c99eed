//! [`Pack`]: features on disk with their labels, if they have any (`docs/formats.md`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};
use ultta::{Error, FeatureFile, Features, Result};
use ultta_formats::Problem;
use ultta_formats::features::read_labels;

/// Rows that [`Pack::check`] reads at once.
const CHECK_ROWS: usize = 4096;

/// Features of one stream, read as they are asked for, and their labels.
pub struct Pack {
    file: FeatureFile,
    labels: Option<Vec<usize>>,
}

impl Pack {
    /// Opens a file and checks its header and labels; no row is read yet. Labels come from the file itself, or
    /// from `labels` (any format of a features file) when given.
    pub fn open(path: impl AsRef<Path>, labels: Option<&Path>) -> Result<Self> {
        let mut pack = Self::of(FeatureFile::open(path)?);
        if let Some(path) = labels {
            let labels = read_labels(path)?;
            if labels.len() != pack.rows() {
                let problem = Problem::Count { name: "labels", expected: pack.rows(), got: labels.len() };
                return Err(problem.at(path).into());
            }
            pack.labels = Some(labels);
        }
        Ok(pack)
    }

    /// A features file with its own labels.
    pub fn of(file: FeatureFile) -> Self {
        let labels = file.stored().labels().map(<[usize]>::to_vec);
        Self { file, labels }
    }

    /// The features file: rows, `learn`, `times` and `views`.
    pub fn file(&self) -> &FeatureFile {
        &self.file
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.file.rows()
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.file.dim()
    }

    /// The dtype the rows are stored in.
    pub fn dtype(&self) -> String {
        self.file.dtype()
    }

    /// One label per row, where there are labels.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_deref()
    }

    /// Strings that a safetensors file carries: its provenance.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.file.stored().metadata()
    }

    /// A fingerprint of the labels, of which rows may teach, and of up to 64 rows spread over the file. It tells packs apart,
    /// but a changed row may go unnoticed.
    pub fn digest(&self) -> Result<String> {
        const SAMPLED: usize = 64;
        let mut hash = Sha256::new();
        hash.update((self.rows() as u64).to_le_bytes());
        self.labels().unwrap_or(&[]).iter().for_each(|&label| hash.update((label as u64).to_le_bytes()));
        self.file.learn().unwrap_or(&[]).iter().for_each(|&learn| hash.update([u8::from(learn)]));
        for row in (0..self.rows()).step_by(self.rows().div_ceil(SAMPLED).max(1)) {
            let row = self.read(row..row + 1, true)?;
            row.data().iter().for_each(|v| hash.update(v.to_le_bytes()));
        }
        Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads some consecutive rows. With `normalize`, rows of any norm but zero are accepted.
    pub fn read(&self, rows: Range<usize>, normalize: bool) -> Result<Features<'static>> {
        self.file.read(rows, normalize)
    }

    /// An error about a row, with the path of this pack's file added: an evaluation reads many files.
    pub fn named(&self, error: Error) -> Error {
        match error {
            Error::NotFinite { .. } | Error::NotUnit { .. } => {
                Error::InFile { error: error.into(), path: self.path().to_owned() }
            }
            other => other,
        }
    }

    /// Reads the rows with these indices, in this order.
    pub fn select(&self, rows: &[usize], normalize: bool) -> Result<Features<'static>> {
        self.file.select(rows, normalize)
    }

    /// Reads every row once, so that a bad one is known before any work starts.
    pub fn check(&self, normalize: bool) -> Result<()> {
        for start in (0..self.rows()).step_by(CHECK_ROWS) {
            let rows = start..self.rows().min(start + CHECK_ROWS);
            self.read(rows.clone(), normalize)?;
            self.file().views(&rows.collect::<Vec<_>>(), normalize)?;
        }
        Ok(())
    }

    /// Checks that every label is a class.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        let labels = self.labels.as_deref().unwrap_or_default();
        match labels.iter().position(|&label| label >= n_classes) {
            None => Ok(()),
            Some(row) => Err(bad(
                self.path(),
                format!(
                    "labels: row {row} has label {}, expected less than the number of classes, {n_classes}",
                    labels[row]
                ),
            )),
        }
    }

    /// Checks that the classes which the file names, if it does, are those of a head, in the same order: labels are their numbers.
    pub fn check_classes(&self, classes: &[String]) -> Result<()> {
        let Some(names) = self.metadata().get("classes") else { return Ok(()) };
        let names: Vec<String> = serde_json::from_str(names).unwrap_or_default();
        if names == classes {
            return Ok(());
        }
        let what = match names.iter().zip(classes).find(|(a, b)| a != b) {
            Some((a, b)) => format!("{a:?} in the features, {b:?} in the head"),
            None => format!("{} in the features, {} in the head", names.len(), classes.len()),
        };
        Err(bad(self.path(), format!("the head has other classes than the features: {what}")))
    }
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::Format { reason: reason.into(), path: path.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ultta_formats::npy::NPY_MAGIC;

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
        assert!(error(open(&npy("<f4", "(2,)", &floats(&[1.0, 0.0])))).contains("shape [rows, dim]"));
        assert!(error(open(&npy("<i8", "(1, 1)", &[0; 8]))).contains("F16, BF16, F32 or F64"));
        assert!(error(open(&npy("<f4", "(1, 0)", &[]))).contains("at least 1 column"));
        let with =
            |labels: &[u8]| Pack::open(save(&folder, "x.npy", &rows), Some(&save(&folder, "y.npy", labels)));
        assert!(error(with(&npy("<f4", "(1,)", &[0; 4]))).contains("whole numbers"));
        assert!(error(with(&npy("|i1", "(1,)", &[255]))).contains("label -1"));
        assert!(error(with(&npy("|i1", "(1, 1)", &[0]))).contains("shape [rows]"));
        assert!(error(with(&npy("|i1", "(2,)", &[0, 0]))).contains("expected one per row (1), got 2"));
    }
}
