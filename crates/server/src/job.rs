//! What is asked of a stream's owner, and what it replies.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;
use ultta::{Row, Temperature};
use ultta::{Scores, Step};

use crate::api::Remembered;
use crate::owner::Owner;
use crate::problem::Problem;
use crate::room::Share;
use crate::samples::Samples;

/// What is asked of an owner.
pub enum Job {
    /// Samples to answer and learn from.
    Classify(Classify),
    /// Delayed labels.
    Feedback(Feedback),
    /// Anything else, done between two blocks.
    Control(Box<dyn FnOnce(&mut Owner) + Send>),
    /// A reader found the published session behind.
    Publish,
    /// Finish: write the state and end.
    Stop(oneshot::Sender<()>),
}

/// Samples to answer and learn from.
pub struct Classify {
    pub samples: Samples,
    /// The frozen model's scores for them, where they were computed on the way here.
    pub zero_shot: Option<Scores>,
    pub extent: Extent,
    pub arrived: Instant,
    pub reply: Reply,
    /// The room that it holds until it is done, whether or not its client still waits.
    pub _held: Option<Arc<Share>>,
}

impl Classify {
    /// Whether this can be stepped as one block behind an earlier job. Samples that come with their scores gain
    /// nothing by it.
    pub fn can_follow(&self, earlier: &Classify) -> bool {
        self.zero_shot.is_none() && earlier.zero_shot.is_none() && earlier.samples.can_append(&self.samples)
    }
}

/// What an answer holds beyond the best class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Number of best classes to list.
    pub top: usize,
    /// Whether to list the probabilities of all classes.
    pub probs: bool,
    /// Whether to give the probability behind the answer, too.
    pub prob_pred: bool,
}

impl Extent {
    /// Whether the scores of a step must be kept for it.
    pub fn needs_scores(&self) -> bool {
        self.top > 0 || self.probs
    }
}

/// A sample of the stream that is shadowed: its generation, and its id within that.
pub type SourceId = (u64, u64);

/// Where answers go.
pub enum Reply {
    /// To the request that waits for them.
    Caller(oneshot::Sender<Result<Answers, Problem>>),
    /// Nowhere: they are compared with the labels that the shadowed stream answered.
    Shadow { first: SourceId, labels: Vec<u32> },
}

impl Reply {
    pub fn send(self, answers: Result<Answers, Problem>) {
        if let Reply::Caller(reply) = self {
            // What was accepted stays accepted, also if the caller has gone.
            let _ = reply.send(answers);
        }
    }
}

/// What became of samples that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Nothing was kept of them.
    Nothing,
    /// They are in the log and counted, but learning is stopped.
    Logged,
    /// They are in the log, and the session learns.
    Learnt,
}

impl Kept {
    /// Of samples that are in the log.
    pub fn in_log(learning: bool) -> Self {
        if learning { Kept::Learnt } else { Kept::Logged }
    }
}

/// Answers to samples.
#[derive(Clone, Debug)]
pub struct Answers {
    pub rows: Vec<Row>,
    /// The best classes per sample; empty unless the request wants them.
    pub top: Vec<Vec<(usize, f32)>>,
    /// The probabilities of all classes per sample; empty unless the request wants them.
    pub probs: Vec<Vec<f32>>,
    /// The sets of classes; empty unless the stream gives sets.
    pub sets: Vec<Vec<u32>>,
    /// Whether labels back their coverage up.
    pub set_promise: Option<bool>,
    /// Whether the request wants the probability behind each answer.
    pub prob_pred: bool,
    /// What became of the samples.
    pub kept: Kept,
    pub generation: u64,
    /// Number of samples that the answering state had seen.
    pub as_of: u64,
}

impl Answers {
    /// The answers to some of the samples of a step.
    pub fn of(step: &Step, rows: Range<usize>, extent: Extent, kept: Kept, generation: u64) -> Self {
        let mut top = Vec::new();
        if extent.top > 0 {
            top.extend(rows.clone().map(|row| step.top(row, extent.top)));
        }
        let mut probs = Vec::new();
        if extent.probs {
            probs.extend(rows.clone().map(|row| step.probs(row, Temperature::Cal)));
        }
        let sets = step.sets.get(rows.clone()).map(<[_]>::to_vec).unwrap_or_default();
        Self {
            rows: step.rows[rows].to_vec(),
            set_promise: (!sets.is_empty()).then_some(step.health.coverage_promise),
            sets,
            top,
            probs,
            prob_pred: extent.prob_pred,
            kept,
            generation,
            as_of: step.health.seen,
        }
    }

    /// Whether the samples are in the log, so that they have ids.
    pub fn logged(&self) -> bool {
        self.kept >= Kept::Logged
    }

    /// Whether the samples may teach: they are in the log, and learning is not stopped.
    pub fn learnt(&self) -> bool {
        self.kept == Kept::Learnt
    }

    /// Takes in the answers to the rows behind these.
    pub fn append(&mut self, later: Answers) {
        self.rows.extend(later.rows);
        self.top.extend(later.top);
        self.probs.extend(later.probs);
        self.sets.extend(later.sets);
        self.as_of = later.as_of;
    }
}

/// Delayed labels.
pub struct Feedback {
    /// Sample id and label.
    pub labels: Vec<(u64, usize)>,
    /// The generation that the sender believes the ids belong to.
    pub generation: Option<u64>,
    /// If set, the ids are those of the stream that is shadowed, in this generation of it.
    pub source: Option<u64>,
    /// The room that it holds until it is done.
    pub _held: Option<Arc<Share>>,
    pub reply: Option<oneshot::Sender<Result<Outcomes, Problem>>>,
}

/// What became of labels, and for which samples labels can still come.
pub struct Outcomes {
    pub outcomes: Vec<Outcome>,
    pub remembered: Remembered,
}

/// What became of a label.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The method learnt from it.
    Taken,
    /// Nothing was learnt from it, and why; it counts for calibration only.
    Unused(&'static str),
    /// The label cannot be used.
    Refused(String),
}
