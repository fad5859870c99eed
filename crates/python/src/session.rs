//! [`Session`]: the single door. Rows come in as arrays, the core works without the interpreter's lock, and
//! between pieces of a long block pending signals are looked at.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, TryLockError};

use numpy::PyArray1;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use ultta::Features;

use crate::array::{Matrix, list, vector};
use crate::block::{Bar, Block, Views};
use crate::config;
use crate::error::{counts_differ, raise};
use crate::head::Head;
use crate::html;
use crate::operate;
use crate::state::State;
use crate::step::{Health, Step, alarm_record};

/// A frozen head and the adapter that keeps it accurate on one stream.
///
/// Settings go by the names of the configuration (`ultta.default_config()`): `gate={"keep": 0.5}`,
/// `gate__keep=0.5` and `**{"gate.keep": 0.5}` mean the same.
///
/// A session serves one stream: from two threads at once it refuses with RuntimeError. It can be pickled and
/// copied; a copy goes its own way.
///
/// >>> import numpy as np, ultta
/// >>> head = ultta.Head.from_text_features(np.eye(2), ["cat", "dog"])
/// >>> session = ultta.Session(head, advanced__update_every=64)
/// >>> session.step([0.6, 0.8]).names
/// ['dog']
/// >>> session
/// Session(ul_tta, 2 classes, dim 2, 1 seen)
#[pyclass(frozen, module = "ultta")]
pub struct Session {
    inner: Mutex<ultta::Session>,
    head: Arc<ultta::Head>,
}

impl From<ultta::Session> for Session {
    fn from(session: ultta::Session) -> Self {
        Self { head: session.head().clone(), inner: Mutex::new(session) }
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (head, method="ul_tta", preset="default", **settings))]
    fn new(
        py: Python<'_>,
        head: Head,
        method: &str,
        preset: &str,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        // Every method starts from its own defaults; only other presets need naming.
        let preset = Some(preset).filter(|preset| *preset != "default");
        let config = config::resolve(None, Some(method), preset, settings)?;
        Ok(py.detach(|| ultta::Session::new(head.inner, &config)).map_err(raise)?.into())
    }

    /// A session as a configuration says: TOML text, or the `pathlib.Path` of a file. Settings win over it.
    #[staticmethod]
    #[pyo3(signature = (head, config, **settings))]
    fn from_config(
        py: Python<'_>,
        head: Head,
        config: &Bound<'_, PyAny>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let text = match config.cast::<PyString>() {
            Ok(text) => text.to_string(),
            Err(_) => std::fs::read_to_string(config.extract::<PathBuf>()?)?,
        };
        let config = config::resolve(Some(&text), None, None, settings)?;
        Ok(py.detach(|| ultta::Session::new(head.inner, &config)).map_err(raise)?.into())
    }

    /// Continues from a saved state (a file or a `State`), under the configuration that the state carries.
    #[staticmethod]
    fn resume(py: Python<'_>, head: Head, state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let state = state_of(state)?;
        Ok(py.detach(|| ultta::Session::resume(head.inner, &state)).map_err(raise)?.into())
    }

    /// Answers samples in arrival order and lets them teach.
    ///
    /// `features`: one unit row or many, as anything NumPy, DLPack or `__array__` can hand over; C-contiguous
    /// float32 arrays are not copied (and must not be written to meanwhile). With `normalize`, rows of any
    /// length but zero are accepted.
    /// `learn`: False marks a row that must not teach. `times`: arrival times in seconds, for updates by time.
    /// `views`: extra views of the samples, rows × views × dim; or all view rows (2-D) with `view_counts`.
    /// `keep_scores=False` saves memory where only the answers are wanted. `progress` shows a bar (tqdm).
    ///
    /// On an error nothing has changed. Ctrl-C stops between pieces of a long block: the rows until then have
    /// taught, and `seen` tells how many.
    #[pyo3(signature = (features, *, learn=None, times=None, views=None, view_counts=None, normalize=false,
        keep_scores=true, progress=false))]
    #[allow(clippy::too_many_arguments)]
    fn step(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        learn: Option<&Bound<'_, PyAny>>,
        times: Option<&Bound<'_, PyAny>>,
        views: Option<&Bound<'_, PyAny>>,
        view_counts: Option<&Bound<'_, PyAny>>,
        normalize: bool,
        keep_scores: bool,
        progress: bool,
    ) -> PyResult<Step> {
        let rows = Matrix::of("features", features)?;
        let learn = learn.map(|marks| list::<bool>("learn marks", "bool", marks)).transpose()?;
        let times = times.map(|times| list::<f64>("times", "float64", times)).transpose()?;
        let views = views.map(|views| Views::of(views, view_counts)).transpose()?;
        let bar = if progress { Some(Bar::new(py, rows.data().len() / rows.dim().max(1))?) } else { None };
        let block = Block {
            rows: (rows.data(), rows.dim()),
            learn: learn.as_deref(),
            times: times.as_deref(),
            views: views.as_ref().map(|v| (v.rows.data(), v.rows.dim(), v.counts.as_slice())),
            normalize,
            keep_scores,
        };
        let step = self
            .using(py, |session| block.work(session, bar.as_ref(), |session, input| session.step(*input)));
        if let Some(bar) = bar {
            bar.close(py)?;
        }
        Ok(Step::new(step?, self.head.clone(), keep_scores))
    }

    /// The answers now, without learning from the rows. Changes nothing.
    ///
    /// `views` and `view_counts` are those of `step`, for methods that answer from several views of a sample.
    #[pyo3(signature = (features, *, views=None, view_counts=None, normalize=false))]
    fn predict(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        views: Option<&Bound<'_, PyAny>>,
        view_counts: Option<&Bound<'_, PyAny>>,
        normalize: bool,
    ) -> PyResult<Step> {
        let rows = Matrix::of("features", features)?;
        let views = views.map(|views| Views::of(views, view_counts)).transpose()?;
        let block = Block {
            rows: (rows.data(), rows.dim()),
            learn: None,
            times: None,
            views: views.as_ref().map(|v| (v.rows.data(), v.rows.dim(), v.counts.as_slice())),
            normalize,
            keep_scores: true,
        };
        let step =
            self.using(py, |session| block.work(session, None, |session, input| session.predict(*input)))?;
        Ok(Step::new(step, self.head.clone(), true))
    }

    /// Lets rows teach; their answers are not kept. Tells which rows the gate admitted.
    #[pyo3(signature = (features, *, learn=None, times=None, normalize=false, progress=false))]
    fn observe<'py>(
        &self,
        py: Python<'py>,
        features: &Bound<'py, PyAny>,
        learn: Option<&Bound<'py, PyAny>>,
        times: Option<&Bound<'py, PyAny>>,
        normalize: bool,
        progress: bool,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let step = self.step(py, features, learn, times, None, None, normalize, false, progress)?;
        Ok(vector(py, step.inner.rows.iter().map(|row| row.admitted).collect()))
    }

    /// Delayed labels (class indices or names) for earlier samples, by the ids their steps gave. Returns how
    /// many the method had a use for. Either all are taken in or, on an error, none.
    ///
    /// >>> import numpy as np, ultta
    /// >>> session = ultta.Session(ultta.Head.from_text_features(np.eye(2), ["cat", "dog"]))
    /// >>> step = session.step([[0.6, 0.8], [0.8, 0.6]])
    /// >>> session.feedback(step.ids, ["dog", "dog"])
    /// 2
    fn feedback(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.take_labels(py, ids, labels, ultta::Session::feedback)
    }

    /// Labels (class indices or names) for earlier samples that count at once: from the next one on, rows that look like a
    /// labelled sample lean to its label by 4 to 9 nats; a head that is surer than that keeps its answer. What the sample had
    /// taught by itself is withdrawn. Returns how many were used: none where the method has no use for labels or learning is
    /// stopped. Either all are taken in or, on an error, none.
    ///
    /// >>> import numpy as np, ultta
    /// >>> session = ultta.Session(ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], logit_scale=5.0))
    /// >>> step = session.step([0.6, 0.8])
    /// >>> session.correct(step.ids, "cat")
    /// 1
    /// >>> session.predict([0.6, 0.8]).names
    /// ['cat']
    /// >>> session.withdraw(step.ids)
    /// 1
    /// >>> session.predict([0.6, 0.8]).names
    /// ['dog']
    fn correct(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.take_labels(py, ids, labels, ultta::Session::correct)
    }

    /// Takes back labels given with `correct`, also while learning is stopped. Returns how many there were.
    fn withdraw(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let ids = list::<i64>("ids", "int64", ids)?;
        self.using(py, |session| Ok(ids.iter().filter(|&&id| session.withdraw(id as u64)).count()))
    }

    /// The labels that count, by the ids of their samples.
    #[getter]
    fn corrections(&self, py: Python<'_>) -> PyResult<std::collections::BTreeMap<u64, usize>> {
        self.using(py, |session| Ok(session.corrections().into_iter().collect()))
    }

    /// Why a row is answered as it is: for the `best` classes what text, labels, images, prior and scene say, in nats that
    /// add up to the logits; which lever flipped the answer; the most similar earlier scenes. Give one row of `features`,
    /// or the `id` of an earlier sample. `ultta.plot.explanation` draws it. Changes nothing.
    #[pyo3(signature = (features=None, *, id=None, best=5, normalize=false))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        features: Option<&Bound<'py, PyAny>>,
        id: Option<u64>,
        best: usize,
        normalize: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        operate::explain(self, py, features, id, best, normalize)
    }

    /// The `k` earlier scenes whose labels would help most, the best first: `id`, `label`, `class`, `prob` and
    /// `expected_use`, about how many recent answers hang on the label.
    #[pyo3(signature = (k=20))]
    fn suggest<'py>(&self, py: Python<'py>, k: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
        operate::suggest(self, py, k)
    }

    /// Writes the adapted head as a plain linear layer for a device that cannot adapt: `.onnx`, `.npz` or `.safetensors`.
    fn export(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.using(py, |session| session.layer().and_then(|layer| layer.save(path)).map_err(raise))
    }

    /// Everything needed to continue bit for bit.
    fn state(&self, py: Python<'_>) -> PyResult<State> {
        Ok(State { inner: self.using(py, |session| Ok(session.state()))? })
    }

    /// Writes the state to a file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.using(py, |session| session.state().save(path).map_err(raise))
    }

    /// Continues from a saved state (a file or a `State`) of the same head and configuration. On an error
    /// nothing has changed.
    fn load(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = state_of(state)?;
        self.using(py, |session| session.load(&state).map_err(raise))
    }

    /// Takes in the evidence of others (sessions, states or state files) that started from the same head and
    /// configuration. What is local to one stream (windows, prior, temperatures) restarts.
    #[pyo3(signature = (*others))]
    fn merge(slf: &Bound<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<()> {
        if others.iter().any(|other| other.is(slf)) {
            let text = "merge: expected other sessions, got this one: its evidence would count twice";
            return Err(PyValueError::new_err(text));
        }
        let others = others.iter().map(|other| state_of(&other)).collect::<PyResult<Vec<_>>>()?;
        slf.get().using(slf.py(), |session| {
            let mut merged = session.state();
            for other in &others {
                merged = merged.merge(other).map_err(raise)?;
            }
            session.load(&merged).map_err(raise)
        })
    }

    /// Back to the start. Ids start again, too.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.using(py, |session| {
            session.reset();
            Ok(())
        })
    }

    /// Health now.
    #[getter]
    fn health(&self, py: Python<'_>) -> PyResult<Health> {
        self.using(py, |session| Ok(Health::from(session.health())))
    }

    /// The last alarms, oldest first, at most 16; a step has its own. See `Step.alarms`.
    #[getter]
    fn alarms<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let (alarms, head) = self.using(py, |session| Ok((session.alarms(), session.head().clone())))?;
        alarms.iter().map(|alarm| alarm_record(py, alarm, head.classes())).collect()
    }

    /// Per class: how far its prototype `movement` went, its `prior` and its `evidence` in samples (empty arrays where
    /// the method has none); the `answers` that named it and the `estimate` of how many of these are right, with
    /// `estimate_low` and `estimate_high`; under `estimate_zero_shot`, `estimate_zero_shot_low` and `estimate_zero_shot_high` the same
    /// of the zero-shot answers. Where no answer named a class, its interval is 0 to 1.
    fn per_class<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let classes = self.using(py, |session| Ok(session.per_class()))?;
        let dict = PyDict::new(py);
        dict.set_item("movement", vector(py, classes.iter().map(|c| c.movement).collect()))?;
        dict.set_item("prior", vector(py, classes.iter().map(|c| c.prior).collect()))?;
        dict.set_item("evidence", vector(py, classes.iter().map(|c| c.evidence).collect()))?;
        let named = self.using(py, |session| Ok(session.class_estimates()))?;
        dict.set_item("answers", vector(py, named.iter().map(|c| c.answers as f64).collect()))?;
        let sides: [(&str, fn(&ultta::ClassEstimate) -> ultta::Estimate); 2] =
            [("estimate", |c| c.adapted), ("estimate_zero_shot", |c| c.zero_shot)];
        for (name, of) in sides {
            dict.set_item(name, vector(py, named.iter().map(|c| of(c).top1).collect()))?;
            dict.set_item(format!("{name}_low"), vector(py, named.iter().map(|c| of(c).low).collect()))?;
            dict.set_item(format!("{name}_high"), vector(py, named.iter().map(|c| of(c).high).collect()))?;
        }
        Ok(dict)
    }

    /// Samples answered; the id of the next one.
    #[getter]
    fn seen(&self, py: Python<'_>) -> PyResult<u64> {
        self.using(py, |session| Ok(session.next_id()))
    }

    /// Whether samples teach; answers go on either way.
    #[getter]
    fn learning(&self, py: Python<'_>) -> PyResult<bool> {
        self.using(py, |session| Ok(session.learning()))
    }

    #[setter]
    fn set_learning(&self, py: Python<'_>, learning: bool) -> PyResult<()> {
        self.using(py, |session| {
            session.set_learning(learning);
            Ok(())
        })
    }

    /// The head.
    #[getter]
    fn head(&self) -> Head {
        Head { inner: self.head.clone() }
    }

    /// The card of the method.
    #[getter]
    fn method<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let card = self.using(py, |session| Ok(session.config().method.card()))?;
        config::card_dict(py, card)
    }

    /// The resolved configuration as nested dictionaries.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let config = self.using(py, |session| Ok(session.config().clone()))?;
        config::to_dict(py, &config)
    }

    /// The resolved configuration as TOML.
    #[getter]
    fn config_toml(&self, py: Python<'_>) -> PyResult<String> {
        self.using(py, |session| Ok(session.config().to_toml()))
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(self.using(py, |session| Ok(session.clone()))?.into())
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.__copy__(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (state, learning) =
            self.using(py, |session| Ok((session.state().to_bytes().map_err(raise)?, session.learning())))?;
        let restore = py.import("ultta._ultta")?.getattr("_restore_session")?;
        Ok((restore, (self.head(), PyBytes::new(py, &state), learning).into_pyobject(py)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.using(py, |session| {
            let (method, head) = (session.config().method.card().name, session.head());
            let (classes, dim, seen) = (head.n_classes(), head.dim(), session.next_id());
            Ok(format!("Session({method}, {classes} classes, dim {dim}, {seen} seen)"))
        })
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        self.using(py, |session| {
            let health = session.health();
            let rows = [
                ("method", session.config().method.card().name.to_string()),
                ("classes", session.head().n_classes().to_string()),
                ("seen", health.seen.to_string()),
                ("standing", format!("{:?}", health.standing)),
                ("admitted, recently", format!("{:.1} %", 100.0 * health.admitted_share)),
                ("different from zero-shot, recently", format!("{:.1} %", 100.0 * health.flip_share)),
                ("evidence weight", format!("{:.3}", health.evidence_weight)),
                ("τ_cal", format!("{:.3}", health.tau_cal)),
            ];
            Ok(html::table("Session", &rows))
        })
    }
}

impl Session {
    /// Works on the session without the interpreter's lock. A session that is at work elsewhere is refused,
    /// not waited for.
    pub(crate) fn using<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ultta::Session) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| match self.inner.try_lock() {
            Ok(mut session) => work(&mut session),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "session: it is in use by another thread; a session serves one stream, so give each thread its \
                 own (copy.copy(session)) or guard it with a lock",
            )),
            Err(TryLockError::Poisoned(_)) => Err(PyRuntimeError::new_err(
                "session: an earlier call broke off half-way; start again from a saved state",
            )),
        })
    }

    /// Takes in labels, all or none.
    fn take_labels(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        labels: &Bound<'_, PyAny>,
        take: fn(&mut ultta::Session, u64, usize) -> ultta::Result<bool>,
    ) -> PyResult<usize> {
        let ids = list::<i64>("ids", "int64", ids)?;
        let labels = self.labels(labels)?;
        if ids.len() != labels.len() {
            return Err(counts_differ("labels", (ids.len(), "id"), (labels.len(), "label")));
        }
        self.using(py, |session| {
            let before = (ids.len() > 1).then(|| session.state());
            let mut used = 0;
            for (&id, &label) in ids.iter().zip(&labels) {
                // A negative number wraps to one that is no sample or no class, which the core refuses.
                match take(session, id as u64, label as usize) {
                    Ok(useful) => used += usize::from(useful),
                    Err(error) => {
                        if let Some(before) = &before {
                            session.load(before).map_err(raise)?;
                        }
                        return Err(raise(error));
                    }
                }
            }
            Ok(used)
        })
    }

    /// Class indices, given as such or by name.
    fn labels(&self, labels: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let names = match labels.extract::<String>() {
            Ok(name) => vec![name],
            Err(_) => match labels.extract::<Vec<String>>() {
                Ok(names) => names,
                Err(_) => return list::<i64>("labels", "int64", labels),
            },
        };
        let index = |name: &String| {
            let found = self.head.classes().iter().position(|class| class == name);
            found
                .map(|class| class as i64)
                .ok_or_else(|| PyValueError::new_err(format!("{name:?} is not a class of the head")))
        };
        names.iter().map(index).collect()
    }
}

/// The state that a `State`, a `Session` or a file holds.
fn state_of(object: &Bound<'_, PyAny>) -> PyResult<ultta::State> {
    if let Ok(state) = object.cast::<State>() {
        return Ok(state.get().inner.clone());
    }
    if let Ok(session) = object.cast::<Session>() {
        return Ok(session.get().state(object.py())?.inner);
    }
    let path: PathBuf = object.extract().map_err(|_| {
        let got = object.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
        PyTypeError::new_err(format!("state: expected a State, a Session or the path of a file, got {got}"))
    })?;
    object.py().detach(|| ultta::State::load(path)).map_err(raise)
}

/// Unpickles a session.
#[pyfunction]
pub fn _restore_session(py: Python<'_>, head: Head, state: &[u8], learning: bool) -> PyResult<Session> {
    let state = ultta::State::from_bytes(state).map_err(raise)?;
    let mut session = py.detach(|| ultta::Session::resume(head.inner, &state)).map_err(raise)?;
    session.set_learning(learning);
    Ok(session.into())
}

/// Seconds that the core itself takes for a step on these rows, for `bench.py` to compare with.
#[pyfunction]
pub fn _core_seconds(py: Python<'_>, session: &Session, features: &Bound<'_, PyAny>) -> PyResult<f64> {
    let rows = Matrix::of("features", features)?;
    let (dim, data) = (rows.dim(), rows.data());
    session.using(py, |session| {
        let started = std::time::Instant::now();
        let step = session.step(&Features::new(data, dim).map_err(raise)?).map_err(raise)?;
        let seconds = started.elapsed().as_secs_f64();
        drop(step);
        Ok(seconds)
    })
}
