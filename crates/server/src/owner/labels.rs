//! Delayed labels, and the recent answers that they are for.

use std::collections::VecDeque;
use std::time::Instant;

use ultta::Row;

use super::Owner;
use crate::api::Remembered;
use crate::job::{Feedback, Outcome, Outcomes, SourceId};
use crate::problem::Problem;

/// Answers remembered for delayed labels: as many as the method remembers by default.
const REMEMBERED: usize = 100_000;

/// The latest answers, oldest first, with ids that count on.
pub(super) struct RecentAnswers {
    answers: VecDeque<RecentAnswer>,
    /// Only for a shadow: which samples of the followed stream the answers belong to.
    runs: VecDeque<Run>,
    started: Instant,
}

/// An answer that a label may still arrive for.
#[derive(Clone, Copy, Debug)]
struct RecentAnswer {
    id: u64,
    /// Whether a label has arrived.
    labelled: bool,
    /// Label and probability answered.
    adapted: (u32, f32),
    /// Label and probability of the frozen model.
    frozen: (u32, f32),
    /// When it was given, in seconds since the stream was opened.
    at: f32,
}

/// Samples that follow each other here and in the followed stream.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: SourceId,
    own: u64,
    length: u64,
}

impl RecentAnswers {
    pub(super) fn new() -> Self {
        Self { answers: VecDeque::new(), runs: VecDeque::new(), started: Instant::now() }
    }

    /// Remembers answers. `source` is the first sample's id in the followed stream.
    pub(super) fn add(&mut self, rows: &[Row], source: Option<SourceId>) {
        let at = self.started.elapsed().as_secs_f32();
        for row in rows {
            if self.answers.len() == REMEMBERED {
                self.answers.pop_front();
            }
            self.answers.push_back(RecentAnswer {
                id: row.id,
                labelled: false,
                adapted: (row.label as u32, row.prob),
                frozen: (row.zero_shot.label as u32, row.zero_shot.prob),
                at,
            });
        }
        if let (Some(source), Some(row)) = (source, rows.first()) {
            self.runs.push_back(Run { source, own: row.id, length: rows.len() as u64 });
        }
        let oldest = self.answers.front().map_or(0, |answer| answer.id);
        while self.runs.front().is_some_and(|run| run.own + run.length <= oldest) {
            self.runs.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.answers.clear();
        self.runs.clear();
    }

    fn by_id(&mut self, id: u64) -> Option<&mut RecentAnswer> {
        let first = self.answers.front()?.id;
        let place = usize::try_from(id.checked_sub(first)?).ok()?;
        self.answers.get_mut(place).filter(|answer| answer.id == id)
    }

    /// The own id of a sample of the followed stream.
    fn id_by_source(&self, source: SourceId) -> Option<u64> {
        // Samples are shown in their order, so runs are in the order of their sources.
        let next = self.runs.partition_point(|run| run.source <= source);
        let run = self.runs.get(next.checked_sub(1)?)?;
        // A run of an earlier generation may have larger ids than this one.
        let ahead = source.1.checked_sub(run.source.1)?;
        (run.source.0 == source.0 && ahead < run.length).then_some(run.own + ahead)
    }

    /// How many seconds ago a sample was answered; `None` if it was before the stream was opened.
    fn age(&mut self, id: u64) -> Option<f64> {
        let at = self.by_id(id)?.at;
        Some((self.started.elapsed().as_secs_f64() - f64::from(at)).max(0.0))
    }
}

impl Owner {
    pub(super) fn feedback(&mut self, feedback: Feedback) {
        let outcomes = self.take_labels(&feedback);
        if let Some(reply) = feedback.reply {
            let _ = reply.send(outcomes);
        }
    }

    /// Takes in labels that count at once (`None` takes one back). Gives what became of each, and how many count now.
    pub fn correct(
        &mut self,
        given: &[(u64, Option<usize>)],
        generation: Option<u64>,
    ) -> Result<(Vec<Outcome>, usize), Problem> {
        self.check_generation(generation, None)?;
        let next = self.session.next_id();
        let classes = self.session.head().n_classes();
        let refusal = |&(id, label): &(u64, Option<usize>)| match label {
            Some(label) if label >= classes => Some(ultta::Error::Label { label, classes }.to_string()),
            _ if id >= next => Some(format!("sample {id} has not been answered yet")),
            _ => None,
        };
        let refusals: Vec<Option<String>> = given.iter().map(refusal).collect();
        let sound: Vec<(u64, Option<usize>)> =
            given.iter().zip(&refusals).filter(|(_, why)| why.is_none()).map(|(given, _)| *given).collect();
        self.log_corrections(&sound)?;
        let no_use = self.no_use();
        let outcome = |used: ultta::Result<bool>, unused: &'static str| match used {
            Ok(true) => Outcome::Taken,
            Ok(false) => Outcome::Unused(unused),
            Err(e) => Outcome::Refused(e.to_string()),
        };
        let mut outcomes = Vec::with_capacity(given.len());
        for (&(id, label), why) in given.iter().zip(refusals) {
            outcomes.push(match (why, label) {
                (Some(why), _) => Outcome::Refused(why),
                (None, Some(label)) => outcome(self.session.correct(id, label), no_use),
                (None, None) => outcome(Ok(self.session.withdraw(id)), "there was no label"),
            });
        }
        let taken = outcomes.iter().filter(|outcome| **outcome == Outcome::Taken).count();
        let corrections = self.session.corrections().len();
        if taken > 0 {
            let text = format!("{taken} labels given or taken back; {corrections} count now");
            self.publishing.behind = true;
            self.publishing.wanted = true;
            self.announce("corrected", &text);
        }
        Ok((outcomes, corrections))
    }

    /// Why a sound label is not used.
    fn no_use(&self) -> &'static str {
        if self.session.learning() {
            "the method has no use for labels"
        } else {
            "learning is stopped; send it again once the stream learns"
        }
    }

    /// Refuses labels for samples of another generation. `source` is there if the ids are another stream's.
    fn check_generation(&self, generation: Option<u64>, source: Option<u64>) -> Result<(), Problem> {
        if let Some(generation) = generation.filter(|&g| g != self.extra.generation) {
            return Err(Problem::conflict(format!(
                "the labels are for generation {generation} of the stream, which is now at {}: its state was replaced",
                self.extra.generation
            )));
        }
        if generation.is_none() && source.is_none() && self.extra.generation > 0 {
            return Err(Problem::conflict(format!(
                "the stream is in generation {}, and ids count anew in each: send `generation` as the answers to the samples had it",
                self.extra.generation
            )));
        }
        Ok(())
    }

    fn take_labels(&mut self, feedback: &Feedback) -> Result<Outcomes, Problem> {
        self.check_generation(feedback.generation, feedback.source)?;
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
        self.copied = None;
        self.parts.shadows.show_labels(&feedback.labels, self.extra.generation);
        self.board.set_status(self.status());
        Ok(Outcomes { outcomes, remembered: self.remembered() })
    }

    /// The samples that labels can still be for.
    fn remembered(&mut self) -> Remembered {
        let own = self.recent.answers.front().map(|answer| answer.id);
        let (samples, most, oldest, setting) = match self.session.memory() {
            Some(memory) => (memory.samples, memory.most, memory.oldest, Some(memory.setting)),
            None => (self.recent.answers.len(), REMEMBERED, own, None),
        };
        let oldest_seconds = oldest.and_then(|id| self.recent.age(id));
        Remembered { samples, most, setting, oldest_id: oldest, oldest_seconds }
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
            Ok(false) => Outcome::Unused(self.no_use()),
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        if let Some(answer) = self.recent.by_id(id).filter(|answer| !answer.labelled) {
            answer.labelled = true;
            self.board.labelled(label, answer.adapted, answer.frozen);
        }
        outcome
    }
}
