//! Errors of the core as Python exceptions: one match, in the core's own words.

use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};
use ultta::Error;

/// `OSError` for files that cannot be read or written, `ValueError` for everything else the caller handed over.
pub fn raise(error: Error) -> PyErr {
    let advice = match error.root() {
        // A row of zeros has no direction that scaling could keep.
        Error::NotUnit { what: "features" | "views", norm, .. } if *norm > 0.0 => {
            "; scale the rows to unit length first, or pass normalize=True"
        }
        _ => "",
    };
    let words = format!("{error}{advice}");
    match error {
        // With an error number, Python chooses the fitting subclass, FileNotFoundError and the like.
        Error::Io { source, .. } => match source.raw_os_error().or(missing(&source)) {
            Some(number) => PyOSError::new_err((number, words)),
            None => PyOSError::new_err(words),
        },
        _ => PyValueError::new_err(words),
    }
}

/// ENOENT for a missing folder, whose number a temporary file's error does not hand on.
fn missing(error: &std::io::Error) -> Option<i32> {
    (error.kind() == std::io::ErrorKind::NotFound).then_some(2)
}
