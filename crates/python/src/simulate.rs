//! [`Simulator`]: simulated streams, for the package's own measurements.

use std::sync::{Mutex, PoisonError};

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use ultta::simulate::{Simulator as Inner, SimulatorConfig};

use crate::array::{matrix, vector};
use crate::error::raise;
use crate::head::Head;

/// An endless seeded stream of features and their labels.
#[pyclass(frozen, name = "_Simulator", module = "ultta._ultta")]
pub struct Simulator {
    inner: Mutex<Inner>,
}

#[pymethods]
impl Simulator {
    #[new]
    fn new(classes: usize, dim: usize, seed: u64) -> PyResult<Self> {
        let config = SimulatorConfig { classes, dim, seed, ..SimulatorConfig::default() };
        Ok(Self { inner: Mutex::new(Inner::new(&config).map_err(raise)?) })
    }

    /// The head that the stream belongs to.
    #[getter]
    fn head(&self) -> Head {
        let simulator = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Head { inner: simulator.head().clone().into() }
    }

    /// The next rows and their labels.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        rows: usize,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<i64>>)> {
        let (features, labels) = py.detach(|| {
            let mut simulator = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let (features, labels) = simulator.next_block(rows);
            (features, labels.into_iter().map(i64::from).collect::<Vec<i64>>())
        });
        Ok((matrix(py, features.data().to_vec(), features.dim())?, vector(py, labels)))
    }
}
