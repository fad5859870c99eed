//! The binary `ultta`; the Python package calls the same function.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ultta_cli::main_from(std::env::args_os())
}
