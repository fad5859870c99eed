//! Errors of the core as Python exceptions: one match, in the core's own words.

use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};
use ultta::Error;

/// `OSError` for files that cannot be read or written, `ValueError` for everything else the caller handed over.
pub fn raise(error: Error) -> PyErr {
    // The core names the flag of the command line; here it is an argument.
    let words = error.to_string().replace("--normalize", "normalize=True");
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
