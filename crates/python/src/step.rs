//! [`Step`]: the answers for a block of samples, each array made when it is asked for.

use std::sync::Arc;

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use ultta::internal::{softmax_from, top_k};
use ultta::{Row, Temperature};

use crate::array::{matrix, vector, view};
use crate::head::Head;
use crate::html;
use crate::pickle::{self, Reduced};

/// Rows shown in a notebook.
const SHOWN: usize = 10;

/// What came of one block of samples. Every array has one entry or row per sample and is read-only.
///
/// >>> import numpy as np, ultta
/// >>> head = ultta.Head.from_text_features(np.eye(2), ["cat", "dog"])
/// >>> step = ultta.Session(head).step([[0.6, 0.8], [0.8, 0.6]])
/// >>> step.labels, step.names
/// (array([1, 0]), ['dog', 'cat'])
/// >>> step.zero_shot.scores.round(3)
/// array([[60., 80.],
///        [80., 60.]], dtype=float32)
#[pyclass(frozen, module = "ultta")]
pub struct Step {
    pub inner: ultta::Step,
    head: Arc<ultta::Head>,
    keep_scores: bool,
    probs: PyOnceLock<Py<PyArray2<f32>>>,
}

impl Step {
    pub fn new(inner: ultta::Step, head: Arc<ultta::Head>, keep_scores: bool) -> Self {
        Self { inner, head, keep_scores, probs: PyOnceLock::new() }
    }

    /// One value per row.
    fn column<'py, T: numpy::Element>(
        &self,
        py: Python<'py>,
        value: impl Fn(&Row) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        vector(py, self.inner.rows.iter().map(value).collect())
    }

    /// Fails where scores are asked for that were not kept.
    fn kept(&self) -> PyResult<&ultta::Step> {
        if self.keep_scores {
            return Ok(&self.inner);
        }
        Err(PyRuntimeError::new_err("step: the scores were not kept; ask for them with keep_scores=True"))
    }

    fn all_probs<'py>(
        &self,
        py: Python<'py>,
        temperature: Temperature,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let step = self.kept()?;
        let rows = step.rows.len();
        let probs: Vec<f32> = py.detach(|| (0..rows).flat_map(|row| step.probs(row, temperature)).collect());
        matrix(py, probs, self.head.n_classes())
    }

    /// A row as a dictionary, in the words of the command line.
    fn record<'py>(&self, py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyDict>> {
        let zero_shot = PyDict::new(py);
        zero_shot.set_item("label", row.zero_shot.label)?;
        zero_shot.set_item("prob", row.zero_shot.prob)?;
        let record = PyDict::new(py);
        record.set_item("id", row.id)?;
        record.set_item("label", row.label)?;
        record.set_item("class", &self.head.classes()[row.label])?;
        record.set_item("prob", row.prob)?;
        record.set_item("prob_pred", row.prob_pred)?;
        record.set_item("zero_shot", zero_shot)?;
        record.set_item("admitted", row.admitted)?;
        record.set_item("unknown", row.unknown)?;
        record.set_item("garbage", row.garbage)?;
        Ok(record)
    }
}

#[pymethods]
impl Step {
    /// Ids of the samples, for feedback: samples are numbered in arrival order.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |row| row.id as i64)
    }

    /// The classes answered.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |row| row.label as i64)
    }

    /// The names of the classes answered.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.inner.rows.iter().map(|row| self.head.classes()[row.label].as_str()).collect()
    }

    /// The set of classes of each sample, the most probable first; empty unless `coverage` is set.
    #[getter]
    fn sets(&self) -> Vec<Vec<u32>> {
        self.inner.sets.clone()
    }

    /// Calibrated probability of each answer.
    #[getter]
    fn prob<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        self.column(py, |row| row.prob)
    }

    /// Probability of each answer at the prediction temperature.
    #[getter]
    fn prob_pred<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        self.column(py, |row| row.prob_pred)
    }

    /// Whether the gate admitted each sample as a teacher.
    #[getter]
    fn admitted<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        self.column(py, |row| row.admitted)
    }

    /// Whether each sample fits no class.
    #[getter]
    fn unknown<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        self.column(py, |row| row.unknown)
    }

    /// Whether each sample looks like nothing that the stream or the head knows (noise, the opposite of a picture).
    #[getter]
    fn garbage<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        self.column(py, |row| row.garbage)
    }

    /// Alarms raised in this step: dictionaries with `kind` ("domain", "mix", "quality" or "frozen"), `id` and `since`
    /// (sample ids), `scenes`, `strength`, `evidence`, `text` and `advice`.
    #[getter]
    fn alarms<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.inner.alarms.iter().map(|alarm| alarm_record(py, alarm, self.head.classes())).collect()
    }

    /// Number of the scene that each sample belongs to: a scene is a run of near-copies.
    #[getter]
    fn scenes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |row| row.scene as i64)
    }

    /// Whether each sample began its scene.
    #[getter]
    fn begins_scene<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        self.column(py, |row| row.begins_scene)
    }

    /// Calibrated probabilities of all classes, rows × classes: what a consumer should use.
    #[getter]
    fn probs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let probs =
            self.probs.get_or_try_init(py, || self.all_probs(py, Temperature::Cal).map(Bound::unbind))?;
        Ok(probs.bind(py).clone())
    }

    /// Probabilities at the prediction temperature, the ones behind the answer.
    #[getter]
    fn probs_pred<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.all_probs(py, Temperature::Pred)
    }

    /// The adapted logits, rows × classes.
    #[getter]
    fn scores<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let step = this.get();
        let scores = &step.kept()?.prediction.scores;
        // SAFETY: a step is never changed, and `this` keeps it alive.
        Ok(unsafe { view(this.clone().into_any(), scores.data(), step.head.n_classes()) })
    }

    /// What the frozen model says about the same samples.
    #[getter]
    fn zero_shot(this: &Bound<'_, Self>) -> ZeroShot {
        ZeroShot { step: this.clone().unbind() }
    }

    /// Health of the session after this step.
    #[getter]
    fn health(&self) -> Health {
        Health::from(self.inner.health)
    }

    /// The `k` best classes of every row and their calibrated probabilities, both rows × k.
    fn top<'py>(
        &self,
        py: Python<'py>,
        k: usize,
    ) -> PyResult<(Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<f32>>)> {
        let step = self.kept()?;
        let k = k.min(self.head.n_classes());
        let best = |row| step.top(row, k);
        let (labels, probs) =
            py.detach(|| (0..step.rows.len()).flat_map(best).map(|(c, p)| (c as i64, p)).unzip());
        Ok((matrix(py, labels, k)?, matrix(py, probs, k)?))
    }

    /// One dictionary per row, as the command line writes them.
    fn to_dicts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.inner.rows.iter().map(|row| self.record(py, row)).collect()
    }

    /// A data frame with one line per row: pandas if it is there, else polars.
    fn to_frame<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("ultta._frames")?.getattr("step_frame")?.call1((this,))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        pickle::reduce_step(py, Head { inner: self.head.clone() }, &self.inner, self.keep_scores)
    }

    /// A step is never changed: a copy is the step itself.
    fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'_, PyAny>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __len__(&self) -> usize {
        self.inner.rows.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, row: isize) -> PyResult<Bound<'py, PyDict>> {
        let n = self.inner.rows.len() as isize;
        let index = if row < 0 { row + n } else { row };
        match usize::try_from(index).ok().and_then(|i| self.inner.rows.get(i)) {
            Some(row) => self.record(py, row),
            None => Err(PyIndexError::new_err(format!("step: row {row} is not among its {n} rows"))),
        }
    }

    fn __repr__(&self) -> String {
        let rows = &self.inner.rows;
        let flips = rows.iter().filter(|row| row.label != row.zero_shot.label).count();
        let admitted = rows.iter().filter(|row| row.admitted).count();
        format!("Step({} rows, {admitted} admitted, {flips} answered differently from zero-shot)", rows.len())
    }

    fn _repr_html_(&self) -> String {
        let names = self.head.classes();
        let line = |row: &Row| {
            vec![
                row.id.to_string(),
                names[row.label].clone(),
                format!("{:.3}", row.prob),
                names[row.zero_shot.label].clone(),
                format!("{:.3}", row.zero_shot.prob),
                String::from(if row.admitted { "yes" } else { "" }),
            ]
        };
        let lines: Vec<_> = self.inner.rows.iter().take(SHOWN).map(line).collect();
        let caption = match self.inner.rows.len() {
            n if n > SHOWN => format!("Step: the first {SHOWN} of {n} rows"),
            n => format!("Step: {n} rows"),
        };
        html::grid(
            &caption,
            &["id", "class", "prob", "zero-shot class", "zero-shot prob", "admitted"],
            &lines,
        )
    }
}

/// What the frozen model says, beside the adapted answer of a step.
#[pyclass(frozen, module = "ultta")]
pub struct ZeroShot {
    step: Py<Step>,
}

#[pymethods]
impl ZeroShot {
    /// The classes the frozen model answers.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.step.get().column(py, |row| row.zero_shot.label as i64)
    }

    /// Probability of each of these answers.
    #[getter]
    fn prob<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        self.step.get().column(py, |row| row.zero_shot.prob)
    }

    /// Probabilities of all classes, rows × classes.
    #[getter]
    fn probs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let step = self.step.get();
        let scores = &step.kept()?.zero_shot;
        let classes = step.head.n_classes();
        let mut probs = vec![0.0; scores.data().len()];
        py.detach(|| {
            for (row, out) in probs.chunks_exact_mut(classes).enumerate() {
                let answer = &step.inner.rows[row].zero_shot;
                softmax_from(scores.row(row), 1.0, (answer.label, answer.prob), out);
            }
        });
        matrix(py, probs, classes)
    }

    /// The frozen model's logits, rows × classes.
    #[getter]
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let step = self.step.get();
        let scores = &step.kept()?.zero_shot;
        // SAFETY: a step is never changed, and the array keeps it alive.
        Ok(unsafe { view(self.step.bind(py).clone().into_any(), scores.data(), step.head.n_classes()) })
    }

    /// The `k` best classes of every row, rows × k.
    fn top<'py>(&self, py: Python<'py>, k: usize) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let step = self.step.get();
        let scores = &step.kept()?.zero_shot;
        let k = k.min(step.head.n_classes());
        let best = |row| top_k(scores.row(row), k).into_iter().map(|(c, _)| c as i64);
        matrix(py, (0..scores.rows()).flat_map(best).collect(), k)
    }

    /// What the frozen model says is part of a step, and travels with it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let getattr = py.import("builtins")?.getattr("getattr")?;
        Ok((getattr, (self.step.bind(py), "zero_shot").into_pyobject(py)?))
    }

    fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'_, PyAny>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __len__(&self) -> usize {
        self.step.get().inner.rows.len()
    }

    fn __repr__(&self) -> String {
        format!("ZeroShot({} rows)", self.__len__())
    }
}

/// An estimated accuracy, and the interval that holds it in nine of ten streams (90 %). With features of fewer than 64
/// dimensions and no labels it is rough: they are too few for the correction.
#[pyclass(frozen, get_all, eq, module = "ultta")]
#[derive(Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Share of right answers.
    top1: f64,
    /// Lower end of the interval.
    low: f64,
    /// Upper end of the interval.
    high: f64,
}

impl Estimate {
    pub fn new([top1, low, high]: [f64; 3]) -> Self {
        Self { top1, low, high }
    }
}

impl From<ultta::Estimate> for Estimate {
    fn from(ultta::Estimate { top1, low, high }: ultta::Estimate) -> Self {
        Self { top1, low, high }
    }
}

#[pymethods]
impl Estimate {
    /// The figures by name.
    #[allow(clippy::wrong_self_convention)] // Python's methods take a reference
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("top1", self.top1)?;
        dict.set_item("low", self.low)?;
        dict.set_item("high", self.high)?;
        Ok(dict)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        pickle::reduce_estimate(py, [self.top1, self.low, self.high])
    }

    fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'_, PyAny>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __repr__(&self) -> String {
        format!("Estimate(top1={:.4}, low={:.4}, high={:.4})", self.top1, self.low, self.high)
    }
}

/// An alarm as a dictionary.
pub fn alarm_record<'py>(
    py: Python<'py>,
    alarm: &ultta::Alarm,
    classes: &[String],
) -> PyResult<Bound<'py, PyDict>> {
    let record = PyDict::new(py);
    record.set_item("kind", alarm.kind.name())?;
    record.set_item("id", alarm.id)?;
    record.set_item("since", alarm.since)?;
    record.set_item("scenes", alarm.scenes)?;
    record.set_item("strength", alarm.strength)?;
    record.set_item("evidence", alarm.evidence)?;
    record.set_item("text", alarm.text(classes))?;
    record.set_item("advice", alarm.kind.advice())?;
    Ok(record)
}

/// Declares `Health` with getters for the fields of the core's, so that each is written once.
macro_rules! health {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)* ; $($(#[$about:meta])* $estimate:ident,)*) => {
        /// What operators watch when there are no labels. Shares are over the guard's window, maxima over the
        /// stream.
        #[pyclass(frozen, eq, module = "ultta")]
        #[derive(Clone, PartialEq)]
        pub struct Health {
            pub inner: ultta::Health,
        }

        #[pymethods]
        impl Health {
            $($(#[$doc])* #[getter] fn $field(&self) -> $type { self.inner.$field })*
            $($(#[$about])* #[getter] fn $estimate(&self) -> Estimate { self.inner.$estimate.into() })*

            /// Whether the session adapts ("healthy"), was "restored", or fell back to "zero_shot".
            #[getter]
            fn standing(&self) -> &'static str {
                self.inner.standing.name()
            }

            /// All figures by name.
            fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($field), self.inner.$field)?;)*
                $(dict.set_item(stringify!($estimate), self.$estimate().to_dict(py)?)?;)*
                dict.set_item("standing", self.standing())?;
                Ok(dict)
            }

            fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
                pickle::reduce_health(py, &self.inner)
            }

            fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
                this.clone()
            }

            fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'_, PyAny>) -> Bound<'py, Self> {
                this.clone()
            }

            fn __repr__(&self) -> String {
                let fields = [
                    $(format!(concat!(stringify!($field), "={}"), written(&self.inner.$field)),)*
                    $(format!(concat!(stringify!($estimate), "={}"), self.$estimate().__repr__()),)*
                ];
                format!("Health(standing='{}', {})", self.standing(), fields.join(", "))
            }

            fn _repr_html_(&self) -> String {
                let mut rows = vec![("standing", self.standing().to_string())];
                $(rows.push((stringify!($field), written(&self.inner.$field)));)*
                $(rows.push((stringify!($estimate), self.$estimate().__repr__()));)*
                html::table("Health", &rows)
            }
        }
    };
}

/// A figure as Python writes it: four digits, and a truth in full.
fn written(value: &impl std::fmt::Debug) -> String {
    match format!("{value:?}").as_str() {
        "true" => "True".into(),
        "false" => "False".into(),
        _ => format!("{value:.4?}"),
    }
}

impl From<ultta::Health> for Health {
    fn from(inner: ultta::Health) -> Self {
        Self { inner }
    }
}

health! {
    /// Samples answered.
    seen: u64,
    /// Scenes among them: runs of near-copies.
    scenes: u64,
    /// Rows per scene.
    rows_per_scene: f64,
    /// How often the method began anew because the stream had changed.
    restarts: u64,
    /// Samples that look like nothing the stream or the head knows, since the start: they taught nothing.
    garbage: u64,
    /// Share of recent samples that the gate admitted.
    admitted_share: f64,
    /// Share of recent samples answered differently from zero-shot.
    flip_share: f64,
    /// Samples answered differently from zero-shot, since the start.
    flips: u64,
    /// Running share of unknown samples.
    unknown_share: f64,
    /// KL(π‖π⁰) of the class prior.
    prior_kl: f64,
    /// Largest prototype movement over the classes.
    movement_max: f64,
    /// Mean prototype movement.
    movement_mean: f64,
    /// Temperature multiplier of the answer.
    tau_pred: f64,
    /// Temperature multiplier of the calibrated probabilities.
    tau_cal: f64,
    /// How much the evidence from the stream may say, in [0, 1].
    evidence_weight: f64,
    /// Effective number of classes among recent adapted answers.
    effective_classes: f64,
    /// Effective number of classes among recent zero-shot answers.
    effective_classes_zero_shot: f64,
    /// Largest prior KL seen at a check.
    max_prior_kl: f64,
    /// Largest prototype movement seen at a check.
    max_movement: f64,
    /// Alarms raised since the start: how often the stream has changed.
    alarms: u64,
    /// Whether alarms have seen enough scenes to notice a change now.
    alarms_ready: bool,
    /// How often the collapse guard fired.
    guard_fired: u64,
    /// Labels that the estimates rest on.
    estimate_labels: u64,
    /// Share of the samples whose set of classes is to hold the truth; 0 where no sets are asked for.
    coverage: f64,
    /// Whether labels back this up.
    coverage_promise: bool,
    /// Labels that came for samples with sets.
    coverage_labels: u64,
    /// Share of these labels that the set of their sample held.
    coverage_held: f64,
    /// Mean number of classes of recent sets.
    set_size: f64,
    /// Bytes carried from sample to sample.
    state_bytes: usize,
    ;
    /// Share of the adapted answers that are right, estimated without labels or corrected by those that came.
    estimate,
    /// Share of the zero-shot answers that are right, estimated without labels or corrected by those that came.
    estimate_zero_shot,
    /// Share of the adapted answers over recent scenes that are right, by estimate.
    estimate_recent,
    /// Share of the zero-shot answers over recent scenes that are right, by estimate.
    estimate_recent_zero_shot,
}
