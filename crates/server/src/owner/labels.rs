//! Delayed labels, and the recent answers that they are for.

use std::collections::VecDeque;

use ultta::Row;

use super::Owner;
use crate::job::{Feedback, Outcome, SourceId};
use crate::problem::Problem;

/// Answers remembered for delayed labels.
const REMEMBERED: usize = 8192;

/// The latest answers, oldest first, with ids that count on.
#[derive(Default)]
pub(super) struct RecentAnswers(VecDeque<RecentAnswer>);

/// An answer that a label may still arrive for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentAnswer {
    id: u64,
    /// Of a shadow: which sample of the followed stream it was.
    source: Option<SourceId>,
    /// Whether a label has arrived.
    labelled: bool,
    /// Label and probability answered.
    adapted: (u32, f32),
    /// Label and probability of the frozen model.
    frozen: (u32, f32),
}

impl RecentAnswers {
    /// Remembers answers. `first_source` is the first sample's id in the followed stream.
    pub(super) fn add(&mut self, rows: &[Row], first_source: Option<SourceId>) {
        for (i, row) in rows.iter().enumerate() {
            if self.0.len() == REMEMBERED {
                self.0.pop_front();
            }
            self.0.push_back(RecentAnswer {
                id: row.id,
                source: first_source.map(|(generation, first)| (generation, first + i as u64)),
                labelled: false,
                adapted: (row.label as u32, row.prob),
                frozen: (row.zero_shot.label as u32, row.zero_shot.prob),
            });
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn by_id(&mut self, id: u64) -> Option<&mut RecentAnswer> {
        let first = self.0.front()?.id;
        self.0.get_mut(id.checked_sub(first)? as usize).filter(|answer| answer.id == id)
    }

    /// The own id of a sample of the followed stream. The shadow's own traffic lies in between, so all are looked at.
    fn id_by_source(&self, source: SourceId) -> Option<u64> {
        self.0.iter().rev().find(|answer| answer.source == Some(source)).map(|answer| answer.id)
    }
}

impl Owner {
    pub(super) fn feedback(&mut self, feedback: Feedback) {
        let outcomes = self.take_labels(&feedback);
        if let Some(reply) = feedback.reply {
            let _ = reply.send(outcomes);
        }
    }

    fn take_labels(&mut self, feedback: &Feedback) -> Result<Vec<Outcome>, Problem> {
        if let Some(generation) = feedback.generation.filter(|&g| g != self.extra.generation) {
            return Err(Problem::conflict(format!(
                "the labels are for generation {generation} of the stream, which is now at {}: its state was replaced",
                self.extra.generation
            )));
        }
        if feedback.generation.is_none() && feedback.source.is_none() && self.extra.generation > 0 {
            return Err(Problem::conflict(format!(
                "the stream is in generation {}, and ids count anew in each: send `generation` as the answers to the samples had it",
                self.extra.generation
            )));
        }
        let labels: Vec<Result<(u64, usize), String>> =
            feedback.labels.iter().map(|&(id, label)| self.find_sample(id, label, feedback.source)).collect();
        self.log_labels(labels.iter().flatten())?;
        let mut outcomes = Vec::with_capacity(labels.len());
        for label in labels {
            outcomes.push(match label {
                Ok((id, label)) => self.learn_label(id, label),
                Err(reason) => Outcome::Refused(reason),
            });
        }
        self.publishing.behind = true;
        self.parts.shadows.show_labels(&feedback.labels, self.extra.generation);
        self.board.set_status(self.status());
        Ok(outcomes)
    }

    /// The own id of a labelled sample, or why the label cannot be used.
    fn find_sample(&self, id: u64, label: usize, source: Option<u64>) -> Result<(u64, usize), String> {
        let own = match source {
            Some(generation) => {
                self.recent.id_by_source((generation, id)).ok_or(format!("sample {id} was not shown"))?
            }
            None => id,
        };
        let classes = self.session.head().n_classes();
        if label >= classes {
            return Err(ultta::Error::Label { label, classes }.to_string());
        }
        if own >= self.session.next_id() {
            return Err(format!("sample {own} has not been answered yet"));
        }
        Ok((own, label))
    }

    /// Lets a label teach, and counts it for the calibration once.
    fn learn_label(&mut self, id: u64, label: usize) -> Outcome {
        let outcome = match self.session.feedback(id, label) {
            Ok(true) => Outcome::Taken,
            Ok(false) => Outcome::Unused,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        if let Some(answer) = self.recent.by_id(id).filter(|answer| !answer.labelled) {
            answer.labelled = true;
            self.board.labelled(label, answer.adapted, answer.frozen);
        }
        outcome
    }
}
