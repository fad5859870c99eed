//! Settings given as Python values, resolved by the core; and the registry of methods.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use toml::{Table, Value};
use ultta::{Card, Config, Grouping, Readout};

use crate::error::raise;

/// The cards of all methods: what each does, where it comes from, when it answers and what it needs.
#[pyfunction]
pub fn methods(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    ultta::cards().into_iter().map(|card| card_dict(py, card)).collect()
}

/// The default configuration as TOML, every key with its meaning.
#[pyfunction]
pub fn default_config() -> &'static str {
    ultta::DEFAULT_TOML
}

/// A card as a dictionary.
pub fn card_dict<'py>(py: Python<'py>, card: &Card) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", card.name)?;
    dict.set_item("summary", card.summary)?;
    dict.set_item("paper", card.paper)?;
    let readout = match card.readout {
        Readout::BeforeObserve => "before_observe",
        Readout::AfterObserve => "after_observe",
    };
    dict.set_item("readout", readout)?;
    let rows = match card.grouping {
        Grouping::Independent => "independent",
        Grouping::Joint => "joint",
    };
    dict.set_item("rows", rows)?;
    dict.set_item("needs_horizon", card.horizon.is_some())?;
    dict.set_item("needs_labels", card.needs_labels)?;
    dict.set_item("needs_views", card.needs_views)?;
    dict.set_item("sees_stream", card.transductive)?;
    dict.set_item("memory_grows_with", card.growth.title())?;
    dict.set_item("tuned", card.tuned)?;
    Ok(dict)
}

/// Layers, later ones winning: preset, TOML text, method and preset by name, single settings.
pub fn resolve(
    text: Option<&str>,
    method: Option<&str>,
    preset: Option<&str>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    if let Some(reason) = method.and_then(ultta_cli::needs_pictures) {
        return Err(PyValueError::new_err(format!("config: method: {reason}")));
    }
    let mut flat = Vec::new();
    if let Some(settings) = settings {
        flatten("", settings, &mut flat)?;
    }
    let flat: Vec<(&str, &str)> = flat.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    Config::resolve(text, method, preset, &flat).map_err(raise)
}

/// `gate={"keep": 0.5}`, `gate__keep=0.5` and `**{"gate.keep": 0.5}` all mean `gate.keep = 0.5`.
fn flatten(prefix: &str, settings: &Bound<'_, PyDict>, into: &mut Vec<(String, String)>) -> PyResult<()> {
    for (key, value) in settings {
        let key = format!("{prefix}{}", key.extract::<String>()?.replace("__", "."));
        match value.cast::<PyDict>() {
            Ok(group) => flatten(&format!("{key}."), group, into)?,
            Err(_) => into.push((key.clone(), literal(&key, &value)?)),
        }
    }
    Ok(())
}

/// A Python value as it is written in TOML.
fn literal(key: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(value.is_true().to_string());
    }
    if let Ok(value) = value.cast::<PyString>() {
        return Ok(Value::String(value.extract()?).to_string());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() || value.hasattr("tolist")? {
        // A NumPy scalar has `tolist`, too, and becomes a plain number.
        let plain = if value.hasattr("tolist")? { value.call_method0("tolist")? } else { value.clone() };
        if plain.is_instance_of::<PyList>() || plain.is_instance_of::<PyTuple>() {
            let items = plain.try_iter()?.map(|item| literal(key, &item?)).collect::<PyResult<Vec<_>>>()?;
            return Ok(format!("[{}]", items.join(", ")));
        }
        return literal(key, &plain);
    }
    if value.is_instance_of::<PyInt>() {
        let number = value.extract::<i64>().map_err(|_| {
            PyValueError::new_err(format!("config: {key}: expected a 64-bit integer, got {value}"))
        })?;
        return Ok(number.to_string());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(value.extract()?).to_string());
    }
    Err(PyTypeError::new_err(format!(
        "config: {key}: expected a number, a string, a truth value, a list or a dict, got {}",
        value.get_type().name()?
    )))
}

/// A resolved configuration as nested dictionaries.
pub fn to_dict<'py>(py: Python<'py>, config: &Config) -> PyResult<Bound<'py, PyAny>> {
    let table: Table = config.to_toml().parse().map_err(|e| PyValueError::new_err(format!("{e}")))?;
    python_value(py, &Value::Table(table))
}

fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::String(value) => value.into_pyobject(py)?.into_any(),
        Value::Integer(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => value.into_pyobject(py)?.into_any(),
        Value::Boolean(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Datetime(value) => value.to_string().into_pyobject(py)?.into_any(),
        Value::Array(values) => {
            let items = values.iter().map(|v| python_value(py, v)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Table(table) => {
            let dict = PyDict::new(py);
            for (key, value) in table {
                dict.set_item(key, python_value(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
