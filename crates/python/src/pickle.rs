//! How answers and health are pickled: rows, sets and alarms as JSON, health as TOML (which knows infinities), scores as arrays.
//! Whatever is restored is checked first, so that a pickle that was tampered with is refused.

use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ultta::{Alarm, Prediction, Row, Scores};

use crate::array::{matrix, vector};
use crate::head::Head;
use crate::step::{Estimate, Health, Step};

/// What `__reduce__` returns: a function and its arguments.
pub type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The scores of a step that kept them: the frozen model's, the adapted ones, those of the calibrated
/// probabilities where they differ, and the temperatures of the latter.
type Kept<'py> = (
    Bound<'py, PyArray2<f32>>,
    Bound<'py, PyArray2<f32>>,
    Option<Bound<'py, PyArray2<f32>>>,
    Bound<'py, PyArray1<f32>>,
);

/// The same on the way in.
type Given<'py> = (
    PyReadonlyArray2<'py, f32>,
    PyReadonlyArray2<'py, f32>,
    Option<PyReadonlyArray2<'py, f32>>,
    PyReadonlyArray1<'py, f32>,
);

pub fn reduce_health<'py>(py: Python<'py>, health: &ultta::Health) -> PyResult<Reduced<'py>> {
    Ok((function(py, "_restore_health")?, (health_text(health)?,).into_pyobject(py)?))
}

pub fn reduce_estimate<'py>(py: Python<'py>, figures: [f64; 3]) -> PyResult<Reduced<'py>> {
    Ok((function(py, "_restore_estimate")?, (figures,).into_pyobject(py)?))
}

pub fn reduce_step<'py>(
    py: Python<'py>,
    head: Head,
    step: &ultta::Step,
    keep_scores: bool,
) -> PyResult<Reduced<'py>> {
    let rows =
        serde_json::to_vec(&(&step.rows, &step.sets, &step.known, &step.alarms)).map_err(unexpected)?;
    let kept: Option<Kept<'py>> = if keep_scores {
        let whole = |scores: &Scores| matrix(py, scores.data().to_vec(), head.inner.n_classes());
        let prediction = &step.prediction;
        let calibrated = prediction.calibrated.as_ref().map(whole).transpose()?;
        let tau_cal = vector(py, prediction.tau_cal.clone());
        Some((whole(&step.zero_shot)?, whole(&prediction.scores)?, calibrated, tau_cal))
    } else {
        None
    };
    let arguments = (head, PyBytes::new(py, &rows), health_text(&step.health)?, kept).into_pyobject(py)?;
    Ok((function(py, "_restore_step")?, arguments))
}

/// Unpickles an estimate.
#[pyfunction]
pub fn _restore_estimate(figures: [f64; 3]) -> PyResult<Estimate> {
    if figures.iter().all(|figure| (0.0..=1.0).contains(figure)) {
        return Ok(Estimate::new(figures));
    }
    Err(PyValueError::new_err("an estimate is a share and its interval, from 0 to 1"))
}

/// Unpickles a health.
#[pyfunction]
pub fn _restore_health(text: &str) -> PyResult<Health> {
    Ok(Health::from(toml::from_str::<ultta::Health>(text).map_err(unexpected)?))
}

/// Unpickles a step.
#[pyfunction]
pub fn _restore_step(head: Head, rows: &[u8], health: &str, kept: Option<Given<'_>>) -> PyResult<Step> {
    let (rows, sets, known, alarms): (Vec<Row>, Vec<Vec<u32>>, Vec<f32>, Vec<Alarm>) =
        serde_json::from_slice(rows).map_err(unexpected)?;
    let health = _restore_health(health)?.inner;
    let classes = head.inner.n_classes();
    if rows.iter().any(|row| row.label.max(row.zero_shot.label) >= classes) {
        return Err(unexpected("a label is no class of the head"));
    }
    if ![0, rows.len()].contains(&sets.len()) || ![0, rows.len()].contains(&known.len()) {
        return Err(unexpected(format!(
            "{} sets and {} scores for {} rows",
            sets.len(),
            known.len(),
            rows.len()
        )));
    }
    if sets.iter().flatten().any(|&class| class as usize >= classes) {
        return Err(unexpected("a set holds no class of the head"));
    }
    let keep_scores = kept.is_some();
    let whole = |given: &PyReadonlyArray2<'_, f32>| {
        let array = given.as_array();
        if array.dim() != (rows.len(), classes) {
            return Err(unexpected(format!("scores of {:?} for {} rows", array.dim(), rows.len())));
        }
        Ok(Scores::from_rows(array.iter().copied().collect(), classes))
    };
    let (zero_shot, prediction) = match kept {
        None => Default::default(),
        Some((frozen, scores, calibrated, tau_cal)) => {
            let tau_cal: Vec<f32> = tau_cal.as_array().iter().copied().collect();
            if tau_cal.len() != rows.len() {
                return Err(unexpected(format!("{} temperatures for {} rows", tau_cal.len(), rows.len())));
            }
            let calibrated = calibrated.as_ref().map(whole).transpose()?;
            // The answers are in `rows`; nothing reads those of a prediction once a step is made.
            let prediction =
                Prediction { scores: whole(&scores)?, calibrated, tau_cal, ..Default::default() };
            (whole(&frozen)?, prediction)
        }
    };
    let step = ultta::Step { rows, sets, known, zero_shot, prediction, alarms, health };
    Ok(Step::new(step, Arc::clone(&head.inner), keep_scores))
}

fn health_text(health: &ultta::Health) -> PyResult<String> {
    toml::to_string(health).map_err(unexpected)
}

fn function<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("ultta._ultta")?.getattr(name)
}

fn unexpected(reason: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("pickle: it holds no step or health of this version: {reason}"))
}
