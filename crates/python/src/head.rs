//! [`Head`]: class anchors, names and the logit scale.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray2;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use ultta::{Anchor, Features};

use crate::array::{Matrix, list, matrix, view};
use crate::error::{counts_differ, raise, raise_rows};
use crate::html;

/// The frozen zero-shot classifier: one unit anchor per class, class names and the scale of its logits.
///
/// >>> import numpy as np, ultta
/// >>> head = ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], logit_scale=100.0)
/// >>> head.zero_shot([0.6, 0.8]).round(3)
/// array([[60., 80.]], dtype=float32)
#[pyclass(frozen, eq, hash, module = "ultta", from_py_object)]
#[derive(Clone)]
pub struct Head {
    pub inner: Arc<ultta::Head>,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || self.inner.digest() == other.inner.digest()
    }
}

impl std::hash::Hash for Head {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.inner.digest().hash(state);
    }
}

/// Class names as a list. One text is a slip: it is no list of its letters.
pub fn class_names(classes: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if classes.is_instance_of::<PyString>() {
        let words = "classes: expected a list of class names, got one str; did you mean .split()?";
        return Err(PyTypeError::new_err(words));
    }
    let named = |error: PyErr| {
        let words = format!("classes: expected a list of class names: {}", error.value(classes.py()));
        PyTypeError::new_err(words)
    };
    classes.extract().map_err(named)
}

impl From<ultta::Head> for Head {
    fn from(head: ultta::Head) -> Self {
        Self { inner: Arc::new(head) }
    }
}

/// A head of several anchors per class.
fn folded_or_apart(
    anchors: &[Anchor<'_>],
    dim: usize,
    classes: Vec<String>,
    logit_scale: f32,
    apart: Option<f32>,
) -> ultta::Result<ultta::Head> {
    match apart {
        Some(sharpness) => ultta::Head::from_anchors_apart(anchors, dim, classes, logit_scale, sharpness),
        None => ultta::Head::from_anchors(anchors, dim, classes, logit_scale),
    }
}

#[pymethods]
impl Head {
    /// A head from text features: one unit row per class (classes × dim), or several per class
    /// (classes × anchors × dim), which fold into the normalised mean of their directions. With `anchors_apart=T` they
    /// are kept apart: a class scores the soft maximum over its anchors (T near 0: their mean, a large T: their maximum,
    /// 1 adds up probabilities).
    ///
    /// With `normalize`, rows of any length but zero are accepted.
    ///
    /// >>> import numpy as np, ultta
    /// >>> prompts = np.array([[[1, 0.1], [1, -0.1]], [[0.1, 2], [-0.1, 2]]])
    /// >>> ultta.Head.from_text_features(prompts, ["cat", "dog"]).prototypes.round(3).tolist()
    /// [[1.0, 0.0], [0.0, 1.0]]
    #[staticmethod]
    #[pyo3(signature = (features, classes, logit_scale=100.0, *, normalize=false, metadata=None, anchors_apart=None))]
    fn from_text_features(
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        classes: &Bound<'_, PyAny>,
        logit_scale: f32,
        normalize: bool,
        metadata: Option<BTreeMap<String, String>>,
        anchors_apart: Option<f32>,
    ) -> PyResult<Self> {
        let classes = class_names(classes)?;
        let anchors = Matrix::any("prototypes", features)?;
        let (dim, data) = (anchors.dim(), anchors.data());
        if let [n, _] | [n, _, _] = *anchors.shape()
            && n != classes.len()
        {
            return Err(counts_differ("prototypes", (classes.len(), "class name"), (n, "prototype")));
        }
        if anchors_apart.is_some() && anchors.shape().len() == 2 {
            let words =
                "anchors_apart: expected several anchors per class (classes × anchors × dim), got one each";
            return Err(PyValueError::new_err(words));
        }
        let head = match *anchors.shape() {
            [_, _] if normalize => py.detach(|| {
                let rows = Features::normalized(data, dim)?;
                ultta::Head::new(rows.data().to_vec(), dim, classes, logit_scale)
            }),
            [_, _] => py.detach(|| ultta::Head::new(data.to_vec(), dim, classes, logit_scale)),
            [n, per_class, _] => {
                let anchor = |row: usize| Anchor {
                    class: row / per_class,
                    vector: &data[row * dim..][..dim],
                    weight: 1.0,
                };
                let anchors: Vec<Anchor<'_>> = (0..n * per_class).map(anchor).collect();
                py.detach(|| folded_or_apart(&anchors, dim, classes, logit_scale, anchors_apart))
            }
            ref shape => {
                return Err(PyValueError::new_err(format!(
                    "prototypes: expected classes × dim or classes × anchors × dim, got shape {shape:?}"
                )));
            }
        };
        let mut head = head.map_err(raise_rows(normalize))?;
        for (key, value) in metadata.unwrap_or_default() {
            head = head.with_metadata(key, value);
        }
        Ok(head.into())
    }

    /// A head whose classes have any number of anchors each: row `i` of `features` (an exemplar image, a
    /// prompt) belongs to class `labels[i]`, with weight `weights[i]`. They fold into one mean per class, or are kept
    /// apart, as in `from_text_features`.
    #[staticmethod]
    #[pyo3(signature = (features, labels, classes, logit_scale=100.0, *, weights=None, anchors_apart=None))]
    fn from_anchors(
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        labels: &Bound<'_, PyAny>,
        classes: &Bound<'_, PyAny>,
        logit_scale: f32,
        weights: Option<&Bound<'_, PyAny>>,
        anchors_apart: Option<f32>,
    ) -> PyResult<Self> {
        let classes = class_names(classes)?;
        let rows = Matrix::of("anchors", features)?;
        let anchors = anchors(&rows, labels, weights)?;
        let dim = rows.dim();
        let head = py.detach(|| folded_or_apart(&anchors, dim, classes, logit_scale, anchors_apart));
        Ok(head.map_err(raise)?.into())
    }

    /// This head with further anchors mixed in; its own prototypes count with weight `own`.
    #[pyo3(signature = (features, labels, *, own=1.0, weights=None))]
    fn with_anchors(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        labels: &Bound<'_, PyAny>,
        own: f32,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let rows = Matrix::of("anchors", features)?;
        let anchors = anchors(&rows, labels, weights)?;
        Ok(py.detach(|| self.inner.with_anchors(own, &anchors)).map_err(raise)?.into())
    }

    /// A head from an open_clip model: every class name in every template, encoded, normalised and averaged.
    ///
    /// A template is a text with `{}` in the name's place, or a function of the name. The logit scale is the
    /// model's own. Needs PyTorch and open_clip.
    #[staticmethod]
    #[pyo3(signature = (model, tokenizer, classes, templates=None, *, batch_size=256))]
    fn from_open_clip(
        model: &Bound<'_, PyAny>,
        tokenizer: &Bound<'_, PyAny>,
        classes: &Bound<'_, PyAny>,
        templates: Option<&Bound<'_, PyAny>>,
        batch_size: usize,
    ) -> PyResult<Self> {
        let encode = model.py().import("ultta._text")?.getattr("head_from_open_clip")?;
        Ok(encode.call1((model, tokenizer, classes, templates, batch_size))?.extract()?)
    }

    /// A head from a transformers model (CLIP, SigLIP and their kin) and its processor or tokenizer; templates
    /// as in `from_open_clip`. Needs PyTorch and transformers.
    #[staticmethod]
    #[pyo3(signature = (model, processor, classes, templates=None, *, batch_size=256))]
    fn from_transformers(
        model: &Bound<'_, PyAny>,
        processor: &Bound<'_, PyAny>,
        classes: &Bound<'_, PyAny>,
        templates: Option<&Bound<'_, PyAny>>,
        batch_size: usize,
    ) -> PyResult<Self> {
        let encode = model.py().import("ultta._text")?.getattr("head_from_transformers")?;
        Ok(encode.call1((model, processor, classes, templates, batch_size))?.extract()?)
    }

    /// Reads a head file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(py.detach(|| ultta::Head::load(path)).map_err(raise)?.into())
    }

    /// Writes a head file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.inner.save(path)).map_err(raise)
    }

    /// Reads the bytes of a head file.
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        Ok(ultta::Head::from_bytes(data).map_err(raise)?.into())
    }

    /// The bytes of a head file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.to_bytes().map_err(raise)?))
    }

    /// The same head with another logit scale.
    fn with_logit_scale(&self, logit_scale: f32) -> PyResult<Self> {
        let head = ultta::Head::clone(&self.inner);
        Ok(head.with_logit_scale(logit_scale).map_err(raise)?.into())
    }

    /// The same head with provenance added: `head.with_metadata(encoder="ViT-B-32")`.
    #[pyo3(signature = (**metadata))]
    fn with_metadata(&self, metadata: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut head = ultta::Head::clone(&self.inner);
        for (key, value) in metadata.into_iter().flatten() {
            head = head.with_metadata(key.extract::<String>()?, value.str()?.to_string());
        }
        Ok(head.into())
    }

    /// The frozen model's scores, logit_scale · ⟨z, μ_c⟩: rows × classes.
    #[pyo3(signature = (features, *, normalize=false))]
    fn zero_shot<'py>(
        &self,
        py: Python<'py>,
        features: &Bound<'py, PyAny>,
        normalize: bool,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let rows = Matrix::of("features", features)?;
        let (dim, data) = (rows.dim(), rows.data());
        let scores = py.detach(|| {
            let make = if normalize { Features::normalized } else { Features::new };
            self.inner.zero_shot(&make(data, dim)?)
        });
        matrix(py, scores.map_err(raise_rows(normalize))?.data().to_vec(), self.inner.n_classes())
    }

    /// All prototypes, classes × dim, read-only.
    #[getter]
    fn prototypes<'py>(this: &Bound<'py, Self>) -> Bound<'py, PyArray2<f32>> {
        let head = &this.get().inner;
        // SAFETY: a head is never changed, and `this` keeps it alive.
        unsafe { view(this.clone().into_any(), head.prototypes(), head.dim()) }
    }

    /// Class names, in label order.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.inner.classes().to_vec()
    }

    /// Number of classes.
    #[getter]
    fn n_classes(&self) -> usize {
        self.inner.n_classes()
    }

    /// Length of a prototype.
    #[getter]
    fn dim(&self) -> usize {
        self.inner.dim()
    }

    /// The model's own logit scale (CLIP: about 100).
    #[getter]
    fn logit_scale(&self) -> f32 {
        self.inner.logit_scale()
    }

    /// Free-form provenance. It does not enter the digest.
    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.inner.metadata().clone()
    }

    /// SHA-256 over prototypes, class names and logit scale: what a state belongs to.
    #[getter]
    fn digest(&self) -> String {
        self.inner.digest().into()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = py.import("ultta._ultta")?.getattr("_head_from_bytes")?;
        Ok((restore, PyTuple::new(py, [self.to_bytes(py)?])?))
    }

    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.clone()
    }

    fn __repr__(&self) -> String {
        let Self { inner } = self;
        format!(
            "Head({} classes, dim {}, logit scale {})",
            inner.n_classes(),
            inner.dim(),
            inner.logit_scale()
        )
    }

    fn _repr_html_(&self) -> String {
        let head = &self.inner;
        let mut names = head.classes().iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        if head.n_classes() > 8 {
            names.push_str(", …");
        }
        let mut rows = vec![
            ("classes", format!("{}: {names}", head.n_classes())),
            ("dim", head.dim().to_string()),
            ("logit scale", head.logit_scale().to_string()),
        ];
        rows.extend(head.metadata().iter().map(|(key, value)| (key.as_str(), value.clone())));
        html::table("Head", &rows)
    }
}

/// Rows with the classes they belong to.
fn anchors<'a>(
    rows: &'a Matrix<'_>,
    labels: &Bound<'_, PyAny>,
    weights: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Anchor<'a>>> {
    let dim = rows.dim();
    let vectors: Vec<&[f32]> = rows.data().chunks_exact(dim.max(1)).collect();
    let labels = list::<i64>("labels", "int64", labels)?;
    let weights = match weights {
        Some(weights) => list::<f32>("weights", "float32", weights)?,
        None => vec![1.0; vectors.len()],
    };
    for (what, one, got) in [("labels", "label", labels.len()), ("weights", "weight", weights.len())] {
        if got != vectors.len() {
            return Err(counts_differ(what, (vectors.len(), "anchor"), (got, one)));
        }
    }
    // A negative label wraps to one that is no class, which the core refuses.
    let anchor = |i: usize| Anchor { class: labels[i] as usize, vector: vectors[i], weight: weights[i] };
    Ok((0..vectors.len()).map(anchor).collect())
}

/// Unpickles a head.
#[pyfunction]
pub fn _head_from_bytes(data: &[u8]) -> PyResult<Head> {
    Head::from_bytes(data)
}
