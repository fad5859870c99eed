//! What can be wrong with a file. Each problem says what was expected and what was found; paths come last.

use std::path::{Path, PathBuf};

use safetensors::Dtype;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file that cannot be read or written, or whose contents are wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{doing}: {source} ({path})", path = crate::shown(path))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the operating system reported.
        source: std::io::Error,
        /// The file.
        path: PathBuf,
    },
    /// The contents are not what they should be.
    #[error("{problem} ({path})", path = crate::shown(path))]
    Content {
        /// What is wrong.
        problem: Problem,
        /// The file.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { doing, source, path: path.to_owned() }
    }
}

/// What is wrong with the contents of a file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes do not follow the format.
    #[error("not a valid {format}: {reason}")]
    Broken {
        /// `safetensors file`, `.npy file`, `.npz archive` or `Parquet file`.
        format: &'static str,
        /// Where it goes wrong.
        reason: String,
    },
    /// The format allows it, this reader does not.
    #[error("{what}")]
    Unsupported {
        /// What the file holds, and what to save instead.
        what: String,
    },
    /// An array that must be there is not.
    #[error("no tensor named `{name}`; the file holds {found:?}")]
    Missing {
        /// The array's name.
        name: String,
        /// The names of the arrays that are there, sorted.
        found: Vec<String>,
    },
    /// An array has another shape.
    #[error("{name}: expected shape {expected}, got {got:?}")]
    Shape {
        /// The array's name.
        name: String,
        /// The shape that would fit, in words.
        expected: String,
        /// The shape that was found.
        got: Vec<usize>,
    },
    /// A matrix without columns.
    #[error("{name}: expected at least 1 column, got 0")]
    NoColumns {
        /// The array's name.
        name: String,
    },
    /// An array holds another type of number.
    #[error("{name}: expected {expected}, got {got:?}")]
    Dtype {
        /// The array's name.
        name: String,
        /// The dtypes that would fit, in words.
        expected: &'static str,
        /// The dtype that was found.
        got: Dtype,
    },
    /// An array has another number of entries than the features have rows.
    #[error("{name}: expected one per row ({expected}), got {got}")]
    Count {
        /// The array's name.
        name: &'static str,
        /// Number of rows.
        expected: usize,
        /// Number of entries.
        got: usize,
    },
    /// A row without a value.
    #[error("{name}: row {row} has no value (null)")]
    Null {
        /// The array's name.
        name: String,
        /// Index of the row.
        row: usize,
    },
    /// A row of another length than the first.
    #[error("{name}: row {row} has {got} numbers, expected {expected} as in the first row")]
    Length {
        /// The array's name.
        name: String,
        /// Index of the row.
        row: usize,
        /// Numbers in the first row.
        expected: usize,
        /// Numbers in this one.
        got: usize,
    },
    /// A label below zero, or too large for an index.
    #[error("labels: row {row} has label {label}, expected 0 or more")]
    Label {
        /// Index of the row.
        row: usize,
        /// The label that was found.
        label: i128,
    },
    /// A safetensors file that is none of the project's.
    #[error("expected `features`, `prototypes` or a state; the file holds {found:?}")]
    Kind {
        /// The names of the arrays that are there, sorted.
        found: Vec<String>,
    },
}

impl Problem {
    /// The problem with the file it was found in.
    pub fn at(self, path: impl Into<PathBuf>) -> Error {
        Error::Content { problem: self, path: path.into() }
    }
}
