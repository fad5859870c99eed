//! What an operator does: see why, label what helps.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ultta::{Features, Input};

use crate::array::Matrix;
use crate::error::raise;
use crate::session::Session;

/// Why a row, or an earlier sample, is answered as it is.
pub fn explain<'py>(
    session: &Session,
    py: Python<'py>,
    features: Option<&Bound<'py, PyAny>>,
    id: Option<u64>,
    best: usize,
    normalize: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let row = features.map(|features| Matrix::of("features", features)).transpose()?;
    let data = row.as_ref().map(|row| (row.data(), row.dim()));
    let explanation = session.using(py, |session| {
        let explained = match (data, id) {
            (Some((data, dim)), None) => {
                let features = Features::checked(data, dim, normalize).map_err(raise)?;
                session.explain(Input::new(&features), best)
            }
            (None, Some(id)) => session.explain_sample(id, best),
            _ => return Err(PyValueError::new_err("explain: expected either features or id")),
        };
        Ok(explained.map_err(raise)?.named(session.head()))
    })?;
    let told =
        serde_json::to_string(&explanation).map_err(|error| PyValueError::new_err(error.to_string()))?;
    from_json(py, &told)
}

/// What to label of a run, from its answers (JSON lines of ``ultta run --out``) and the features that were answered: the best first, as
/// ``ultta suggest --answers`` has it.
#[pyfunction]
#[pyo3(signature = (answers, features, k = 20, *, normalize = false))]
pub fn suggest_from_answers<'py>(
    py: Python<'py>,
    answers: PathBuf,
    features: PathBuf,
    k: usize,
    normalize: bool,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    if k == 0 {
        return Err(PyValueError::new_err("k: expected 1 or more, got 0"));
    }
    let lines = py.detach(|| ultta_cli::suggest_of_run(&answers, &features, k, normalize));
    let lines = lines.map_err(PyValueError::new_err)?;
    lines.lines().map(|line| from_json(py, line)).collect()
}

/// The same JSON as of the command line and the service, read by Python.
fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    Ok(py.import("json")?.call_method1("loads", (text,))?.cast_into()?)
}

/// The scenes whose labels would help most.
pub fn suggest<'py>(session: &Session, py: Python<'py>, k: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let (suggested, head) =
        session.using(py, |session| Ok((session.suggest(k).map_err(raise)?, session.head().clone())))?;
    let entry = |suggestion: &ultta::Suggestion| {
        let dict = PyDict::new(py);
        dict.set_item("id", suggestion.id)?;
        dict.set_item("label", suggestion.label)?;
        dict.set_item("class", &head.classes()[suggestion.label])?;
        dict.set_item("prob", suggestion.prob)?;
        dict.set_item("expected_use", suggestion.expected_use)?;
        Ok(dict)
    };
    suggested.iter().map(entry).collect()
}
