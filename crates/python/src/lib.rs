//! The Python module of ultta: one file per core module, glue only. The package around it is in `python/ultta`,
//! its tests in `tests`.
//!
//! ```text
//! array (NumPy in and out) ─► features of the core ─► session ─► step ─► array
//! ```

mod array;
mod block;
mod cli;
mod config;
mod encoder;
mod error;
mod eval;
mod head;
mod html;
mod operate;
mod pickle;
mod session;
mod simulate;
mod state;
mod step;

use pyo3::prelude::*;

/// The compiled part of the package `ultta`.
#[pymodule]
mod _ultta {
    #[pymodule_export]
    use crate::cli::_main;
    #[pymodule_export]
    use crate::config::{default_config, methods};
    #[pymodule_export]
    use crate::encoder::Encoder;
    #[pymodule_export]
    use crate::eval::{
        _adaptive_ece, _aurc, _check_rows, _detection, _evaluate, _find_packs, _quality, _reliability,
    };
    #[pymodule_export]
    use crate::head::{_head_from_bytes, Head};
    #[pymodule_export]
    use crate::operate::suggest_from_answers;
    #[pymodule_export]
    use crate::pickle::{_restore_estimate, _restore_health, _restore_step};
    #[pymodule_export]
    use crate::session::{_core_seconds, _restore_session, Session};
    #[pymodule_export]
    use crate::simulate::Simulator;
    #[pymodule_export]
    use crate::state::{_state_from_bytes, State};
    #[pymodule_export]
    use crate::step::{Estimate, Health, Step, ZeroShot};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
