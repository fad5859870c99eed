//! Metrics and evaluations, of the crate that knows labels. Results travel as JSON; `ultta.metrics` and
//! `ultta._evaluate` make dictionaries of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::json;
use ultta::{Error, Features};
use ultta_eval::dataset::{self, Dataset, Heads};
use ultta_eval::method::each_once;
use ultta_eval::metrics::{Detection, Ece, Edges, Gather, adaptive_ece, aurc};
use ultta_eval::pack::Pack;
use ultta_eval::plan::{Job, Outcome, Plan, Progress};
use ultta_eval::protocol::Protocol;
use ultta_eval::summary::cells;

use crate::array::Matrix;
use crate::error::{counts_differ, raise};
use crate::head::Head;

/// How often pending signals are looked at while an evaluation runs.
const LOOK: Duration = Duration::from_millis(50);

/// All metrics of probabilities (rows × classes) against labels, as JSON.
#[pyfunction]
pub fn _quality(
    py: Python<'_>,
    probs: PyReadonlyArray2<'_, f32>,
    answers: PyReadonlyArray1<'_, i64>,
    labels: PyReadonlyArray1<'_, i64>,
) -> PyResult<String> {
    let (probs, answers, labels) = (probs.as_array(), answers.as_slice()?, labels.as_slice()?);
    let (rows, classes) = probs.dim();
    for (what, one, got) in [("answers", "answer", answers.len()), ("labels", "label", labels.len())] {
        if got != rows {
            return Err(counts_differ(what, (rows, "row"), (got, one)));
        }
    }
    for &label in answers.iter().chain(labels) {
        if usize::try_from(label).is_ok_and(|label| label < classes) {
            continue;
        }
        return Err(PyValueError::new_err(format!(
            "labels: {label} is not below the number of classes, {classes}"
        )));
    }
    let quality = py.detach(|| {
        let mut gather = Gather::new(classes);
        let mut row = vec![0.0; classes];
        for (i, probs) in probs.outer_iter().enumerate() {
            row.iter_mut().zip(probs).for_each(|(to, from)| *to = *from);
            gather.push(&row, answers[i] as usize, labels[i] as usize, None);
        }
        gather.quality()
    });
    Ok(json!(quality).to_string())
}

/// Bins of a reliability diagram with the calibration errors over them, as JSON.
#[pyfunction]
pub fn _reliability(
    prob: PyReadonlyArray1<'_, f64>,
    right: PyReadonlyArray1<'_, bool>,
    bins: usize,
    closed: &str,
) -> PyResult<String> {
    let edges = match closed {
        "left" => Edges::Left,
        "right" => Edges::Right,
        other => {
            return Err(PyValueError::new_err(format!("closed: expected 'left' or 'right', got {other:?}")));
        }
    };
    if bins == 0 {
        return Err(PyValueError::new_err("bins: expected at least 1, got 0"));
    }
    let mut ece = Ece::with_edges(bins, edges);
    for (prob, right) in answers(&prob, &right)? {
        ece.push(prob, right);
    }
    Ok(json!({"ece": ece.value(), "mce": ece.max(), "bins": ece.bins()}).to_string())
}

/// Calibration error over bins of equal mass.
#[pyfunction]
pub fn _adaptive_ece(
    prob: PyReadonlyArray1<'_, f64>,
    right: PyReadonlyArray1<'_, bool>,
    bins: usize,
) -> PyResult<f64> {
    if bins == 0 {
        return Err(PyValueError::new_err("bins: expected at least 1, got 0"));
    }
    Ok(adaptive_ece(&answers(&prob, &right)?, bins))
}

/// Area under the risk–coverage curve.
#[pyfunction]
pub fn _aurc(prob: PyReadonlyArray1<'_, f64>, right: PyReadonlyArray1<'_, bool>) -> PyResult<f64> {
    Ok(aurc(&answers(&prob, &right)?))
}

/// How well scores tell known samples from strangers, as JSON.
#[pyfunction]
pub fn _detection(
    known: PyReadonlyArray1<'_, f32>,
    strangers: PyReadonlyArray1<'_, f32>,
) -> PyResult<String> {
    let found = Detection::of(known.as_slice()?, strangers.as_slice()?).ok_or_else(|| {
        PyValueError::new_err("detection: expected known samples and strangers, got none of one")
    })?;
    Ok(json!(found).to_string())
}

fn answers(
    prob: &PyReadonlyArray1<'_, f64>,
    right: &PyReadonlyArray1<'_, bool>,
) -> PyResult<Vec<(f64, bool)>> {
    let (prob, right) = (prob.as_slice()?, right.as_slice()?);
    if prob.len() != right.len() {
        let (expected, got) = ((prob.len(), "prob"), (right.len(), "mark"));
        return Err(counts_differ("right", expected, got));
    }
    if let Some(row) = prob.iter().position(|p| !(0.0..=1.0).contains(p)) {
        return Err(PyValueError::new_err(format!(
            "prob: row {row}: expected a probability, got {}",
            prob[row]
        )));
    }
    Ok(prob.iter().copied().zip(right.iter().copied()).collect())
}

/// Refuses rows that a pack cannot hold: of another dimension than the head's, not finite, not of unit length.
#[pyfunction]
pub fn _check_rows(py: Python<'_>, features: &Bound<'_, PyAny>, head: &Head) -> PyResult<()> {
    let rows = Matrix::of("features", features)?;
    let (data, expected, got) = (rows.data(), head.inner.dim(), rows.dim());
    if got != expected {
        return Err(raise(Error::Shape { what: ultta::What::Dimension, expected, got }));
    }
    py.detach(|| Features::new(data, got)).map(drop).map_err(raise)
}

/// Packs below a folder: features with the head beside them.
#[pyfunction]
pub fn _find_packs(folder: PathBuf) -> PyResult<Vec<(PathBuf, PathBuf)>> {
    dataset::find(&folder, Heads::Main).map_err(raise)
}

/// Runs methods × packs × protocols × seeds and returns runs, the table over them and what was skipped, as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn _evaluate(
    py: Python<'_>,
    packs: Vec<(PathBuf, PathBuf)>,
    strangers: Vec<(PathBuf, PathBuf)>,
    in_distribution: Option<PathBuf>,
    methods: Vec<String>,
    protocols: Vec<String>,
    seeds: Vec<u64>,
    config: Option<String>,
    out: PathBuf,
    jobs: usize,
    bar: Option<Py<PyAny>>,
) -> PyResult<String> {
    let open = |pairs: &[(PathBuf, PathBuf)]| -> ultta::Result<Vec<Dataset>> {
        let opened: ultta::Result<Vec<_>> = pairs.iter().map(|(f, h)| Dataset::open(f, h)).collect();
        let mut datasets = opened?;
        dataset::name_all(&mut datasets)?;
        Ok(datasets)
    };
    let plan = Plan {
        datasets: open(&packs).map_err(raise)?,
        strangers: open(&strangers).map_err(raise)?,
        in_distribution: in_distribution.map(|path| Pack::open(&path, None)).transpose().map_err(raise)?,
        methods: each_once(&methods, config.as_deref()).map_err(raise)?,
        protocols: protocols
            .iter()
            .map(|name| name.parse::<Protocol>())
            .collect::<Result<_, _>>()
            .map_err(PyValueError::new_err)?,
        seeds,
        out,
        jobs,
        patience: None,
    };
    let outcome = py.detach(|| watched(&plan, bar.as_ref()))?;
    let document = json!({
        "runs": outcome.runs,
        "summary": cells(&outcome.runs),
        "skipped": outcome.skipped,
    });
    Ok(document.to_string())
}

/// Runs a plan on other threads, while this one, which signals reach, looks for them and moves the bar.
fn watched(plan: &Plan, bar: Option<&Py<PyAny>>) -> PyResult<Outcome> {
    let watch = Watch::default();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| plan.run(&watch));
        let mut shown = 0;
        let mut look = || {
            let finished = watch.finished.load(Ordering::Relaxed);
            let fresh = finished - std::mem::replace(&mut shown, finished);
            Python::attach(|py| {
                py.check_signals()?;
                bar.map_or(Ok(()), |bar| bar.call_method1(py, "update", (fresh,)).map(drop))
            })
        };
        let mut interrupted = None;
        while !worker.is_finished() {
            std::thread::sleep(LOOK);
            if interrupted.is_none()
                && let Err(error) = look()
            {
                watch.gives_up.store(true, Ordering::Relaxed);
                interrupted = Some(error);
            }
        }
        let outcome = worker.join().expect("a plan does not panic");
        match interrupted {
            Some(error) => Err(error),
            None => look().and(outcome.map_err(raise)),
        }
    })
}

/// What the looking thread knows of the plan, and tells it.
#[derive(Default)]
struct Watch {
    finished: AtomicUsize,
    gives_up: AtomicBool,
}

impl Progress for Watch {
    fn finished(&self, _worker: usize, _job: &Job<'_>, _fresh: bool) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::Relaxed)
    }
}
