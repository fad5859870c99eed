//! A block of rows on its way through a session, piece by piece.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ultta::internal::PASS_ROWS;
use ultta::{Error, Features, Grouping, Input, Scores};

use crate::array::{Matrix, list};
use crate::error::{raise, raise_rows};

/// Scores (rows × classes) worked out between two looks at pending signals: a fraction of a second.
const SCORES_PER_LOOK: usize = 1 << 20;

/// A block of rows with all that the caller knows about them.
pub struct Block<'a> {
    pub rows: (&'a [f32], usize),
    pub learn: Option<&'a [bool]>,
    pub times: Option<&'a [f64]>,
    pub views: Option<(&'a [f32], usize, &'a [usize])>,
    pub normalize: bool,
    pub keep_scores: bool,
}

impl Block<'_> {
    /// Checks the whole block, then works through it piece by piece. Methods that answer the rows of a block
    /// jointly get it in one piece.
    pub fn work(
        &self,
        session: &mut ultta::Session,
        bar: Option<&Bar>,
        work: impl Fn(&mut ultta::Session, &Input<'_>) -> ultta::Result<ultta::Step>,
    ) -> PyResult<ultta::Step> {
        let (expected, got) = (session.head().dim(), self.rows.1);
        if expected != got {
            return Err(raise(Error::Shape { what: ultta::What::Dimension, expected, got }));
        }
        let features = self.features(self.rows.0, got)?;
        let views = match self.views {
            Some((data, dim, counts)) => Some((self.features(data, dim)?, counts)),
            None => None,
        };
        let input = Input {
            learn: self.learn,
            times: self.times,
            views: views.as_ref().map(|v| &v.0),
            view_counts: views.as_ref().map(|v| v.1),
            keep_scores: self.keep_scores,
            ..Input::new(&features)
        };
        session.check(&input).map_err(raise)?;
        let rows = features.rows();
        let joint = session.config().method.card().grouping == Grouping::Joint;
        let piece = if joint { rows } else { (SCORES_PER_LOOK / session.head().n_classes()).max(PASS_ROWS) };
        if rows <= piece && bar.is_none() {
            return work(session, &input).map_err(raise);
        }
        let mut pieces = Vec::new();
        let (mut start, mut first_view) = (0, 0);
        while start < rows {
            let end = rows.min(start + piece);
            let part = features.slice(start..end);
            let counts = input.view_counts.map(|counts| &counts[start..end]);
            let last_view = first_view + counts.map_or(0, |counts| counts.iter().sum());
            let part_views = input.views.map(|views| views.slice(first_view..last_view));
            let step = work(
                session,
                &Input {
                    learn: input.learn.map(|v| &v[start..end]),
                    times: input.times.map(|v| &v[start..end]),
                    views: part_views.as_ref(),
                    view_counts: counts,
                    keep_scores: self.keep_scores,
                    ..Input::new(&part)
                },
            );
            pieces.push(step.map_err(raise)?);
            Python::attach(|py| {
                bar.map_or(Ok(()), |bar| bar.update(py, end - start))?;
                py.check_signals()
            })?;
            (start, first_view) = (end, last_view);
        }
        if pieces.is_empty() { work(session, &input).map_err(raise) } else { Ok(join(pieces)) }
    }

    fn features<'a>(&self, data: &'a [f32], dim: usize) -> PyResult<Features<'a>> {
        let make = if self.normalize { Features::normalized } else { Features::new };
        make(data, dim).map_err(raise_rows(self.normalize))
    }
}

/// The pieces of a block as one step.
fn join(mut pieces: Vec<ultta::Step>) -> ultta::Step {
    let scores = |part: &dyn Fn(&ultta::Step) -> Option<&Scores>| {
        let parts: Vec<&Scores> = pieces.iter().filter_map(part).collect();
        let data: Vec<f32> = parts.iter().flat_map(|scores| scores.data()).copied().collect();
        parts.first().map(|first| Scores::from_rows(data, first.classes().max(1)))
    };
    let zero_shot = scores(&|step| Some(&step.zero_shot)).unwrap_or_default();
    let adapted = scores(&|step| Some(&step.prediction.scores)).unwrap_or_default();
    let calibrated = scores(&|step| step.prediction.calibrated.as_ref());
    let later = pieces.split_off(1);
    let mut whole = pieces.remove(0);
    for mut piece in later {
        whole.rows.append(&mut piece.rows);
        whole.sets.append(&mut piece.sets);
        whole.known.append(&mut piece.known);
        whole.prediction.tau_cal.append(&mut piece.prediction.tau_cal);
        whole.prediction.answers.append(&mut piece.prediction.answers);
        whole.alarms.append(&mut piece.alarms);
        whole.health = piece.health;
    }
    // Rows that were only predicted are numbered from the session's next id in every piece.
    let first = whole.rows.first().map_or(0, |row| row.id);
    for (i, row) in whole.rows.iter_mut().enumerate() {
        row.id = first + i as u64;
    }
    whole.zero_shot = zero_shot;
    whole.prediction.scores = adapted;
    whole.prediction.calibrated = calibrated;
    whole
}

/// Extra views of the samples: all view rows, and how many each sample has.
pub struct Views<'py> {
    pub rows: Matrix<'py>,
    pub counts: Vec<usize>,
}

impl<'py> Views<'py> {
    pub fn of(views: &Bound<'py, PyAny>, counts: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let rows = Matrix::any("views", views)?;
        let counts = match (rows.shape(), counts) {
            (&[samples, each, _], None) => vec![each; samples],
            (&[_, _], Some(counts)) => {
                let counts = list::<i64>("view counts", "int64", counts)?;
                let count = |n: i64| {
                    usize::try_from(n).map_err(|_| {
                        PyValueError::new_err(format!("view counts: expected at least 0, got {n}"))
                    })
                };
                counts.into_iter().map(count).collect::<PyResult<_>>()?
            }
            _ => {
                return Err(PyValueError::new_err(
                    "views: expected rows × views × dim, or all view rows (2 dimensions) with view_counts",
                ));
            }
        };
        Ok(Self { rows, counts })
    }
}

/// A progress bar of `ultta._progress`.
pub struct Bar(Py<PyAny>);

impl Bar {
    pub fn new(py: Python<'_>, total: usize) -> PyResult<Self> {
        let bar = py.import("ultta._progress")?.getattr("bar")?.call1((total,))?;
        Ok(Self(bar.unbind()))
    }

    fn update(&self, py: Python<'_>, rows: usize) -> PyResult<()> {
        self.0.call_method1(py, "update", (rows,)).map(drop)
    }

    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.call_method0(py, "close").map(drop)
    }
}
