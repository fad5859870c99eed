//! Errors of the core as Python exceptions: the core's own words, then what the caller can do about it.

use pyo3::PyErr;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use ultta::{Error, What};

/// `OSError` for files that cannot be read or written, `ValueError` for everything else the caller handed over.
pub fn raise(error: Error) -> PyErr {
    advised(error, None)
}

/// Errors of rows that a caller handed over with `normalize` or without it: the advice depends on it.
pub fn raise_rows(normalize: bool) -> impl Fn(Error) -> PyErr {
    move |error| advised(error, Some(normalize))
}

/// Refuses two counts that should be one, in the caller's words: "3 prototypes, 2 class names".
pub fn counts_differ(
    what: &'static str,
    (expected, of): (usize, &str),
    (got, given): (usize, &str),
) -> PyErr {
    let told = beside((got, given), (expected, of));
    PyValueError::new_err(format!("{}{told}", Error::Shape { what: What::Other(what), expected, got }))
}

/// A number with its noun.
fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

fn advised(error: Error, normalize: Option<bool>) -> PyErr {
    let words = format!("{error}{}", advice(error.root(), normalize));
    match error {
        Error::Io { source, .. } => os_error(&source, words),
        _ => PyValueError::new_err(words),
    }
}

/// With an error number, Python chooses the fitting subclass, FileNotFoundError and the like.
fn os_error(source: &std::io::Error, words: String) -> PyErr {
    match source.raw_os_error().or(missing(source)) {
        Some(number) => PyOSError::new_err((number, words)),
        None => PyOSError::new_err(words),
    }
}

/// Errors on the way from pictures and names to features: `ConnectionError` if the hub did not give a model.
pub fn raise_encoding(error: ultta_encode::Error) -> PyErr {
    let words = error.to_string();
    match error {
        ultta_encode::Error::Core(error) => raise(error),
        ultta_encode::Error::Io { source, .. } => os_error(&source, words),
        ultta_encode::Error::Hub { .. } => PyConnectionError::new_err(words),
        _ => PyValueError::new_err(words),
    }
}

/// An error of one picture, with its name in front.
pub fn raise_encoding_of(picture: &str, error: ultta_encode::Error) -> PyErr {
    PyValueError::new_err(format!("{picture}: {error}"))
}

/// What the caller can do. `normalize` is what was passed as such, if the call has it.
fn advice(error: &Error, normalize: Option<bool>) -> String {
    match *error {
        // Scaling cannot help a row of zeros, whatever was passed.
        Error::NotUnit { norm, .. } if norm < 1e-30 => {
            "; a row of zeros has no direction, so leave it out".into()
        }
        Error::NotUnit { .. } if normalize == Some(false) => {
            "; scale the rows to unit length first, or pass normalize=True".into()
        }
        Error::NotUnit { .. } => "; scale the rows to unit length first".into(),
        Error::Version { .. } => "; start a new session, or use the version of ultta that wrote it".into(),
        Error::Shape { what: What::Dimension, expected, got } if got > 0 => {
            format!("; the rows have {got} numbers, the head's {expected}: do both come from one encoder?")
        }
        Error::Shape { what: What::LearnMarks, expected, got } => {
            beside((got, "learn mark"), (expected, "row"))
        }
        Error::Shape { what: What::Times, expected, got } => beside((got, "time"), (expected, "row")),
        Error::Shape { what: What::ViewCounts, expected, got } => {
            beside((got, "view count"), (expected, "row"))
        }
        _ => String::new(),
    }
}

/// ": 3 times, 10 rows".
fn beside((got, given): (usize, &str), (expected, of): (usize, &str)) -> String {
    format!(": {}, {}", counted(got, given), counted(expected, of))
}

/// ENOENT for a missing folder, whose number a temporary file's error does not hand on.
fn missing(error: &std::io::Error) -> Option<i32> {
    (error.kind() == std::io::ErrorKind::NotFound).then_some(2)
}
