//! [`Encoder`]: pictures and class names to features and heads, without PyTorch.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use numpy::{PyArray2, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ultta_encode::decode::{Limits, Picture, decode};
use ultta_encode::preprocess::preprocess;
use ultta_encode::prompts::{Classes, Templates, build_head, head_cache};
use ultta_encode::source::Item;
use ultta_encode::{Error, tiny};

use crate::array::matrix;
use crate::error::{raise_encoding, raise_encoding_of};
use crate::head::{Head, class_names};

/// Pictures encoded between two looks at pending signals.
const AT_A_TIME: usize = 8;

/// CLIP or SigLIP on the CPU: pictures to features, class names to a head. PyTorch is not needed.
///
/// `model` is a folder, a name on the Hugging Face hub (`owner/name`, downloaded once) or a short name that
/// `ultta models` lists. `tiny` ships with the package and knows ten drawn shapes.
///
/// >>> import numpy as np, ultta
/// >>> encoder = ultta.Encoder("tiny")
/// >>> encoder
/// Encoder(tiny, dim 32)
/// >>> head = encoder.head(["circle", "star"])
/// >>> ultta.Session(head).step(encoder.encode(np.zeros((32, 32, 3), np.uint8))).probs.shape
/// (1, 2)
#[pyclass(frozen, module = "ultta")]
pub struct Encoder {
    model: String,
    inner: Box<dyn ultta_encode::Encoder>,
}

/// A picture as it was handed over.
enum Given {
    File(PathBuf),
    Bytes(Vec<u8>),
    Picture(Picture),
}

/// Templates as they were handed over: one text (a template, or the name of shipped ones) or several.
#[derive(FromPyObject)]
pub enum Wanted {
    One(String),
    Several(Vec<String>),
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(py: Python<'_>, model: PathBuf) -> PyResult<Self> {
        let model = model.to_string_lossy().into_owned();
        let inner = py.detach(|| ultta_cli::open_encoder(&model)).map_err(raise_encoding)?;
        Ok(Self { model, inner })
    }

    /// Features of pictures, one unit row each: a path, the bytes of a file, an array (rows × columns × RGB, uint8), a PIL
    /// image, or several of them.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        pictures: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let list = py.import("ultta._arrays")?.getattr("pictures")?.call1((pictures,))?;
        let dim = self.inner.dim();
        let (mut rows, mut done, mut part) = (Vec::new(), 0, Vec::with_capacity(AT_A_TIME));
        let mut rest = list.try_iter()?.peekable();
        while let Some(one) = rest.next() {
            part.push(Given::of(&one?)?);
            if part.len() == AT_A_TIME || rest.peek().is_none() {
                let found = py.detach(|| self.features(&part));
                rows.extend(found.map_err(|(i, error)| part[i].raise(done + i, error))?);
                done += part.len();
                part.clear();
                py.check_signals()?;
            }
        }
        matrix(py, rows, dim)
    }

    /// A head of class names: each class is the mean of its prompts, the logit scale is the model's own.
    ///
    /// `templates` is a text with `{}` in the name's place, a list of them, or the name of shipped ones (`photo`, which is
    /// the default, `imagenet-7`, `imagenet-80`, `cifar`, `none`).
    #[pyo3(signature = (classes, templates=None))]
    fn head(&self, py: Python<'_>, classes: &Bound<'_, PyAny>, templates: Option<Wanted>) -> PyResult<Head> {
        let classes = class_names(classes)?;
        if let Some(words) = tiny::warning(self.inner.name(), &classes) {
            let category = py.get_type::<PyUserWarning>();
            PyErr::warn(py, &category, &CString::new(words)?, 1)?;
        }
        let made = py.detach(|| {
            let templates = match templates {
                None => Templates::named("photo"),
                Some(Wanted::One(one)) if !one.contains("{}") => Templates::named(&one),
                Some(Wanted::One(one)) => Templates::new("own", vec![one]),
                Some(Wanted::Several(list)) => Templates::new("own", list),
            };
            let cache = head_cache();
            build_head(&*self.inner, &Classes::new(classes)?, &templates?, cache.as_deref(), |_, _| ())
        });
        Ok(made.map_err(raise_encoding)?.into())
    }

    /// The model's name or folder.
    #[getter]
    fn model(&self) -> &str {
        &self.model
    }

    /// Length of a feature.
    #[getter]
    fn dim(&self) -> usize {
        self.inner.dim()
    }

    /// What turns cosines into logits.
    #[getter]
    fn logit_scale(&self) -> f32 {
        self.inner.logit_scale()
    }

    /// A copy opens the model by its name.
    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let model = PyTuple::new(this.py(), [&this.get().model])?;
        Ok((this.get_type().into_any(), model))
    }

    fn __repr__(&self) -> String {
        format!("Encoder({}, dim {})", self.model, self.inner.dim())
    }
}

impl Encoder {
    /// Features of some pictures, row after row; else the first that fails, and why.
    fn features(&self, pictures: &[Given]) -> Result<Vec<f32>, (usize, Error)> {
        let mut pixels = Vec::new();
        for (i, picture) in pictures.iter().enumerate() {
            pixels.extend(self.pixels(picture).map_err(|error| (i, error))?);
        }
        let features = self.inner.images(&pixels).map_err(|error| (0, error))?;
        Ok(features.data().to_vec())
    }

    /// What the encoder sees of a picture. A decoder that panics on a broken file costs that file alone.
    fn pixels(&self, picture: &Given) -> Result<Vec<f32>, Error> {
        let limits = Limits::default();
        let work = || match picture {
            Given::Picture(picture) => preprocess(picture, self.inner.preprocess()),
            Given::Bytes(bytes) => preprocess(&decode(bytes, &limits)?, self.inner.preprocess()),
            Given::File(path) => {
                let bytes = Item::file(path, None).read(limits.bytes)?;
                preprocess(&decode(&bytes, &limits)?, self.inner.preprocess())
            }
        };
        let gave_up = |_| Err(Error::Picture { reason: "the decoder gave up on it".into() });
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(gave_up)
    }
}

impl Given {
    /// What `ultta._arrays.pictures` yields: a path, bytes, or an array of RGB.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.as_bytes().to_vec()));
        }
        if let Ok(array) = object.extract::<PyReadonlyArray3<'_, u8>>() {
            let &[height, width, _] = array.shape() else { unreachable!("three dimensions") };
            return Ok(Self::Picture(Picture { width, height, rgb: array.as_slice()?.to_vec() }));
        }
        Ok(Self::File(object.extract()?))
    }

    /// An error, with the picture's name in front: its path, or its place in the list.
    fn raise(&self, place: usize, error: Error) -> PyErr {
        match (self, error) {
            // It names the path itself.
            (Self::File(_), error @ Error::Io { .. }) => raise_encoding(error),
            (Self::File(path), error) => raise_encoding_of(&path.display().to_string(), error),
            (_, error) => raise_encoding_of(&format!("picture {place}"), error),
        }
    }
}
