//! The command line, for the `ultta` command of the wheel.

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs the command line on these arguments, the program's name first; returns its exit code.
#[pyfunction]
pub fn _main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    let code = py.detach(|| ultta_cli::main_from(args));
    // An exit code does not tell its number, but can be compared.
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(1)
}
