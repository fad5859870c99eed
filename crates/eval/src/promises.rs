//! What a session promises beside its answers, compared with the labels: sets of classes, and rejection of strangers.

use serde::{Deserialize, Serialize};

use crate::metrics::Detection;
use crate::protocol::Role;

/// Sets of classes along a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetFigures {
    /// The promised share of samples whose set holds the true class.
    pub coverage: f64,
    /// Whether that share was guaranteed by labels at the end of the run.
    pub promise: bool,
    /// The share of samples whose set held the true class.
    pub held: f64,
    /// Mean number of classes of a set.
    pub size: f64,
}

/// Rejection of samples that fit no class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// Share of the known samples that were rejected.
    pub known: f64,
    /// Share of the strangers that were rejected; 0 where there are none.
    pub strangers: f64,
    /// How well the score tells strangers, where there are some.
    pub detection: Option<Detection>,
}

/// Counts along a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    /// Sets, those that held the truth, their classes: over the run, and since the last window.
    sets: [u64; 3],
    window: [u64; 3],
    /// For known samples and for strangers: how many there were, and how many were rejected.
    judged: [[u64; 2]; 2],
    scores: [Vec<f32>; 2],
}

impl Promises {
    pub(crate) fn push_set(&mut self, set: &[u32], label: usize) {
        let held = u64::from(set.contains(&(label as u32)));
        for counts in [&mut self.sets, &mut self.window] {
            *counts = [counts[0] + 1, counts[1] + held, counts[2] + set.len() as u64];
        }
    }

    pub(crate) fn push_verdict(&mut self, role: Role, unknown: bool, score: f32) {
        let side = usize::from(role == Role::Stranger);
        self.judged[side][0] += 1;
        self.judged[side][1] += u64::from(unknown);
        self.scores[side].push(score);
    }

    /// Share held and mean size since the last call.
    pub(crate) fn close_window(&mut self) -> Option<(f64, f64)> {
        shares(std::mem::take(&mut self.window))
    }

    pub(crate) fn sets(&self, health: &ultta::Health) -> Option<SetFigures> {
        let (held, size) = shares(self.sets)?;
        Some(SetFigures { coverage: health.coverage, promise: health.coverage_promise, held, size })
    }

    pub(crate) fn rejection(&self) -> Option<Rejection> {
        let share = |[n, rejected]: [u64; 2]| rejected as f64 / n.max(1) as f64;
        let [known, strangers] = self.judged;
        (known[0] > 0).then(|| Rejection {
            known: share(known),
            strangers: share(strangers),
            detection: Detection::of(&self.scores[0], &self.scores[1]),
        })
    }
}

fn shares([n, held, classes]: [u64; 3]) -> Option<(f64, f64)> {
    (n > 0).then(|| (held as f64 / n as f64, classes as f64 / n as f64))
}
