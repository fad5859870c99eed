//! [`Blocks`]: a long input in pieces. Every size in which rows are grouped on their way through a step, through `ultta run`
//! and through the service stands here, with its reason.
//!
//! Sizes change speed only. The answers of a method with independent rows are the same for every grouping, bit for
//! bit; a method that answers a batch jointly gets its rows in one piece.

use std::borrow::Cow;
use std::ops::Range;

use crate::adapter::{Batch, ScoresRef, ViewsRef};
use crate::estimate::is_compared;
use crate::scores::{Summary, weigh};
use crate::unknown::Seen;
use crate::{Features, Head, Input, Scores};

/// Rows that share one pass over the class prototypes: 128 rows of 512 floats stay in the second-level cache while
/// the prototypes, which may be larger, stream past once. Recovery gathers replayed rows up to this number, too.
pub const PASS_ROWS: usize = 128;

/// Views that share one pass, at most, unless a single row has more: a block of rows with many views would hold the scores of
/// all of them.
const PASS_VIEWS: usize = 1024;

/// Rows of a step of `ultta run`, and of requests that the service gathers: two passes, so that what a step does once
/// (its health, a log record, a progress bar) is shared by many rows, and an interrupt still acts within milliseconds.
pub const STEP_ROWS: usize = 2 * PASS_ROWS;

/// Rows of a step where delayed labels are handed over, which happens between steps: a label is at most this many rows
/// late.
pub const LABELLED_ROWS: usize = 16;

/// Rows that go through the adapter at once: their logits and exponentials are still in the cache when the adapter
/// reads them.
pub(crate) const PART_ROWS: usize = 8;

/// The collapse guard looks whenever the number of rows is a multiple of this. A part ends there, so that the
/// guard acts at the same row however the rows are grouped.
pub(crate) const GUARD_ROWS: u64 = 64;

/// The blocks of an input, in order. Each has the frozen model's scores for its rows.
pub(crate) struct Blocks<'a> {
    head: &'a Head,
    input: &'a Input<'a>,
    /// The whole input is one block and one part.
    joint: bool,
    next_row: usize,
    next_view: usize,
    /// Scenes before the first row, where the estimate of accuracy will compare halves.
    scenes: Option<u64>,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(head: &'a Head, input: &'a Input<'a>, joint: bool) -> Self {
        Self { head, input, joint, next_row: 0, next_view: 0, scenes: None }
    }

    /// The same blocks. Rows that the estimate of accuracy will ask for are also scored by half of their dimensions, as far as
    /// they can be foreseen: every row is taken to begin a scene.
    pub(crate) fn comparing(self, scenes: u64) -> Self {
        Self { scenes: Some(scenes), ..self }
    }

    /// Where the next pass ends: with the last row whose views still fit.
    fn end_of_pass(&self) -> usize {
        let end = self.input.features.rows().min(self.next_row + PASS_ROWS);
        let Some(counts) = self.input.views.and(self.input.view_counts) else { return end };
        let mut views = 0;
        let fitting = counts[self.next_row..end].iter().take_while(|&&count| {
            views += count;
            views <= PASS_VIEWS
        });
        self.next_row + fitting.count().max(1)
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        let rows = self.input.features.rows();
        if self.next_row == rows {
            return None;
        }
        let end = if self.joint { rows } else { self.end_of_pass() };
        let range = self.next_row..end;
        self.next_row = end;
        let features = self.input.features.slice(range.clone());
        let mut halves = HalfScores::default();
        let zero_shot = match self.input.zero_shot {
            Some(scores) => Cow::Borrowed(scores),
            None => {
                let compared = |place: &usize| {
                    self.scenes.is_some_and(|n| is_compared(n + (range.start + place) as u64))
                };
                halves.places = (0..range.len()).filter(compared).collect();
                let (scores, logits) = self.head.scores_and_halves(&features, &halves.places);
                halves.logits = logits;
                Cow::Owned(scores)
            }
        };
        let views = self.input.views.zip(self.input.view_counts).map(|(views, counts)| {
            let mut offsets = vec![0];
            for &count in &counts[range.clone()] {
                offsets.push(offsets[offsets.len() - 1] + count);
            }
            let first = self.next_view;
            self.next_view += offsets[offsets.len() - 1];
            let features = views.slice(first..self.next_view);
            Views { zero_shot: self.head.scores(&features), features, offsets }
        });
        Some(Block { input: self.input, joint: self.joint, range, features, zero_shot, halves, views })
    }
}

/// Consecutive rows that were scored together.
pub(crate) struct Block<'a> {
    input: &'a Input<'a>,
    joint: bool,
    /// Its rows within the input.
    range: Range<usize>,
    features: Features<'a>,
    /// Scores of this block, or the caller's scores of the whole input.
    zero_shot: Cow<'a, Scores>,
    halves: HalfScores,
    views: Option<Views<'a>>,
}

/// Scores of some rows by the first half of their dimensions.
#[derive(Default)]
struct HalfScores {
    places: Vec<usize>,
    logits: Vec<f32>,
}

/// The views of a block with the frozen model's scores for them.
struct Views<'a> {
    features: Features<'a>,
    zero_shot: Scores,
    /// The views of row `i` are the view rows `offsets[i]..offsets[i + 1]`.
    offsets: Vec<usize>,
}

impl Block<'_> {
    /// The frozen model's scores.
    pub(crate) fn zero_shot(&self) -> ScoresRef<'_> {
        match &self.zero_shot {
            Cow::Borrowed(all) => ScoresRef::from(*all).slice(self.range.clone()),
            Cow::Owned(scores) => scores.into(),
        }
    }

    /// The scores by the first half of the dimensions that are known for some rows, with places among these.
    pub(crate) fn halves(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, &[f32])> {
        let logits = self.halves.logits.chunks_exact(self.zero_shot.classes());
        let known = self.halves.places.iter().zip(logits);
        let first = rows.start;
        known.filter(move |(place, _)| rows.contains(place)).map(move |(place, half)| (place - first, half))
    }

    /// The rows that go through the adapter at once, as ranges within the block. `first_id` is the id of the
    /// block's first row.
    pub(crate) fn parts(&self, first_id: u64) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, joint) = (self.range.len(), self.joint);
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == rows {
                return None;
            }
            let to_guard = (GUARD_ROWS - (first_id + start as u64) % GUARD_ROWS) as usize;
            let to_part = PART_ROWS - start % PART_ROWS;
            let end = if joint { rows } else { rows.min(start + to_part.min(to_guard)) };
            let part = start..end;
            start = end;
            Some(part)
        })
    }

    /// Some rows as the adapter is shown them. Their exponentials go to `weights`, which the caller keeps to save
    /// allocations.
    pub(crate) fn part<'p>(&'p self, rows: Range<usize>, weights: &'p mut Scores) -> Part<'p> {
        let zero_shot = self.zero_shot().slice(rows.clone());
        weights.resize(rows.len(), zero_shot.classes());
        let frozen = (0..rows.len()).map(|row| weigh(zero_shot.row(row), weights.row_mut(row))).collect();
        let of_input = self.range.start + rows.start..self.range.start + rows.end;
        Part {
            features: self.features.slice(rows.clone()),
            zero_shot,
            frozen,
            weights: (&*weights).into(),
            learn: self.input.learn.map(|learn| &learn[of_input.clone()]),
            times: self.input.times.map(|times| &times[of_input]),
            views: self.views.as_ref().map(|views| ViewsRef {
                features: &views.features,
                zero_shot: &views.zero_shot,
                offsets: &views.offsets[rows.start..=rows.end],
            }),
            keep_scores: self.input.keep_scores,
        }
    }
}

/// Rows that go through the adapter at once.
pub(crate) struct Part<'a> {
    features: Features<'a>,
    zero_shot: ScoresRef<'a>,
    /// Summary (τ = 1) of each row of scores.
    pub(crate) frozen: Vec<Summary>,
    weights: ScoresRef<'a>,
    learn: Option<&'a [bool]>,
    times: Option<&'a [f64]>,
    views: Option<ViewsRef<'a>>,
    keep_scores: bool,
}

impl Part<'_> {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.frozen.len()
    }

    /// A row as the judge of strangers sees it.
    pub(crate) fn seen(&self, row: usize) -> Seen<'_> {
        Seen { frozen: &self.frozen[row], logits: self.zero_shot.row(row), features: self.features.row(row) }
    }

    /// Whether the caller lets a row teach.
    pub(crate) fn may_learn(&self, row: usize) -> bool {
        self.learn.is_none_or(|learn| learn[row])
    }

    /// The part as a batch; `learn` tells which rows may teach.
    pub(crate) fn batch<'b>(&'b self, first_id: u64, learn: &'b [bool]) -> Batch<'b> {
        Batch {
            first_id,
            features: self.features.clone(),
            zero_shot: self.zero_shot,
            frozen: &self.frozen,
            weights: self.weights,
            learn: Some(learn),
            times: self.times,
            views: self.views,
            keep_scores: self.keep_scores,
            keep_probs: false,
        }
    }
}
