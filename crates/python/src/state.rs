//! [`State`]: what a session carries, detached from it.

use std::path::PathBuf;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ultta::Tensor;

use crate::array::vector;
use crate::error::raise;
use crate::html;

/// What a session carries, detached from it: to be saved, sent, merged or loaded.
///
/// >>> import numpy as np, ultta
/// >>> head = ultta.Head.from_text_features(np.eye(3), ["cat", "dog", "owl"], logit_scale=20.0)
/// >>> session = ultta.Session(head)
/// >>> state = session.state()
/// >>> ultta.State.from_bytes(state.to_bytes()) == state
/// True
#[pyclass(frozen, eq, module = "ultta", from_py_object)]
#[derive(Clone, PartialEq)]
pub struct State {
    pub inner: ultta::State,
}

#[pymethods]
impl State {
    /// Reads a state file. Refuses broken and foreign ones with ValueError.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let inner = py.detach(|| ultta::State::load(path)).map_err(raise)?;
        Ok(Self { inner })
    }

    /// Writes a state file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.inner.save(path)).map_err(raise)
    }

    /// Reads the bytes of a state file.
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        Ok(Self { inner: ultta::State::from_bytes(data).map_err(raise)? })
    }

    /// The bytes of a state file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.inner.to_bytes()).map_err(raise)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Adds the evidence of another session that started from the same head and configuration.
    /// What is local to one stream restarts.
    fn merge(&self, py: Python<'_>, other: &State) -> PyResult<Self> {
        Ok(Self { inner: py.detach(|| self.inner.merge(&other.inner)).map_err(raise)? })
    }

    /// Whether the state holds no evidence yet.
    #[getter]
    fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Strings: format version, digest of the head, resolved configuration.
    #[getter]
    fn metadata(&self) -> std::collections::BTreeMap<String, String> {
        self.inner.metadata.clone()
    }

    /// Bytes the arrays take.
    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.bytes()
    }

    /// Names of the arrays.
    fn keys(&self) -> Vec<String> {
        self.inner.tensors.keys().cloned().collect()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.inner.tensors.get(name).ok_or_else(|| PyKeyError::new_err(name.to_string()))?;
        Ok(match tensor {
            Tensor::F64(values) => vector(py, values.to_vec()).into_any(),
            Tensor::F32(values) => vector(py, values.to_vec()).into_any(),
            Tensor::U64(values) => vector(py, values.to_vec()).into_any(),
            Tensor::U32(values) => vector(py, values.to_vec()).into_any(),
            Tensor::I16(values) => vector(py, values.to_vec()).into_any(),
            Tensor::U8(values) => vector(py, values.to_vec()).into_any(),
        })
    }

    fn __contains__(&self, name: &str) -> bool {
        self.inner.has(name)
    }

    fn __len__(&self) -> usize {
        self.inner.tensors.len()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = py.import("ultta._ultta")?.getattr("_state_from_bytes")?;
        Ok((restore, PyTuple::new(py, [self.to_bytes(py)?])?))
    }

    fn __repr__(&self) -> String {
        format!("State({} arrays, {} bytes)", self.inner.tensors.len(), self.inner.bytes())
    }

    fn _repr_html_(&self) -> String {
        let mut rows = vec![("arrays", self.inner.tensors.len().to_string())];
        rows.push(("bytes", self.inner.bytes().to_string()));
        rows.push(("method", self.inner.metadata.get("method").cloned().unwrap_or_default()));
        html::table("State", &rows)
    }
}

/// Unpickles a state.
#[pyfunction]
pub fn _state_from_bytes(data: &[u8]) -> PyResult<State> {
    State::from_bytes(data)
}
