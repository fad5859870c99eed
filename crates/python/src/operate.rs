//! What an operator does: see why, label what helps.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ultta::{Explanation, Features, Head, Input};

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
    let (explanation, head) = session.using(py, |session| {
        let explained = match (data, id) {
            (Some((data, dim)), None) => {
                let features = Features::checked(data, dim, normalize).map_err(raise)?;
                session.explain(Input::new(&features), best)
            }
            (None, Some(id)) => session.explain_sample(id, best),
            _ => return Err(PyValueError::new_err("explain: expected either features or id")),
        };
        Ok((explained.map_err(raise)?, session.head().clone()))
    })?;
    as_dict(py, &explanation, &head)
}

fn as_dict<'py>(py: Python<'py>, explanation: &Explanation, head: &Head) -> PyResult<Bound<'py, PyDict>> {
    let name = |label: usize| head.classes()[label].as_str();
    let row = &explanation.row;
    let dict = PyDict::new(py);
    dict.set_item("label", row.label)?;
    dict.set_item("class", name(row.label))?;
    dict.set_item("prob", row.prob)?;
    dict.set_item("zero_shot_class", name(row.zero_shot.label))?;
    dict.set_item("zero_shot_prob", row.zero_shot.prob)?;
    dict.set_item("flipped_by", explanation.flipped_by.map(|lever| lever.name()))?;
    dict.set_item("corrected", explanation.corrected.map(name))?;
    let levers: Vec<&str> = explanation.levers.iter().map(|lever| lever.name()).collect();
    let mut classes = Vec::new();
    for class in &explanation.classes {
        let entry = PyDict::new(py);
        entry.set_item("label", class.label)?;
        entry.set_item("class", name(class.label))?;
        entry.set_item("logit", class.logit)?;
        entry.set_item("prob", class.prob)?;
        entry.set_item("zero_shot", class.zero_shot)?;
        let nats = PyDict::new(py);
        for (lever, value) in levers.iter().zip(&class.nats) {
            nats.set_item(lever, value)?;
        }
        entry.set_item("nats", nats)?;
        classes.push(entry);
    }
    dict.set_item("classes", classes)?;
    let mut similar = Vec::new();
    for scene in &explanation.similar {
        let entry = PyDict::new(py);
        entry.set_item("id", scene.id)?;
        entry.set_item("cosine", scene.cosine)?;
        entry.set_item("class", name(scene.label))?;
        entry.set_item("corrected", scene.corrected.map(name))?;
        similar.push(entry);
    }
    dict.set_item("similar", similar)?;
    Ok(dict)
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
