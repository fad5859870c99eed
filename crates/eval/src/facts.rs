//! [`Facts`]: what a method is allowed to see and to keep.

use serde::{Deserialize, Serialize};
use ultta::{Grouping, Growth};

use crate::plan::Job;

/// What a method is allowed to see and to keep. Only methods with the same facts are compared as equals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The sample teaches before it is answered.
    pub answers_after: bool,
    /// It sees later samples before it answers: those of its batch, or all.
    pub later_samples: bool,
    /// It is told the length of the stream.
    pub stream_length: bool,
    /// It is given labelled examples.
    pub labels: bool,
    /// It needs further views of each picture, or has read them.
    pub views: bool,
    /// It changes the encoder and so needs the pictures.
    pub pictures: bool,
    /// It sees the whole stream first.
    pub whole_stream: bool,
    /// Its memory grows with the stream, or with classes × dimensions².
    pub grows: bool,
    /// Its memory grows with the stream. Older runs do not tell.
    pub grows_with_stream: bool,
    /// Its memory grows with classes × dimensions². Older runs do not tell.
    pub grows_with_squares: bool,
    /// Its paper chose settings for each dataset.
    pub tuned: bool,
}

impl Facts {
    /// The facts on the card of a run's method, and what this run gave it.
    pub fn of(job: &Job<'_>) -> Self {
        let card = job.method.card();
        let views = !job.protocol.alters() && job.packs.iter().any(|pack| pack.views_each() > 0);
        // The only files that settings name are labelled shots.
        let shots = !job.method.config.method.files().is_empty();
        Self {
            answers_after: card.teaches_first(),
            later_samples: card.grouping == Grouping::Joint,
            stream_length: card.horizon.is_some(),
            labels: card.needs_labels || shots,
            views: card.needs_views || (card.reads_views && views),
            pictures: job.method.pictures.is_some(),
            whole_stream: card.transductive,
            grows: card.growth != Growth::Classes,
            grows_with_stream: card.growth == Growth::Samples,
            grows_with_squares: card.growth == Growth::Squares,
            tuned: card.tuned,
        }
    }

    /// In short words, for a column of a table.
    pub fn words(&self) -> String {
        let words = [
            (self.answers_after, "learns before it answers"),
            (self.later_samples && !self.whole_stream, "later samples of its batch"),
            (self.stream_length, "stream's length"),
            (self.labels, "labels"),
            (self.views, "views"),
            (self.pictures, "pictures"),
            (self.whole_stream, "whole stream"),
            (self.grows_with_stream, "memory grows with the stream"),
            (self.grows_with_squares, "memory grows with classes × dimensions²"),
            (self.grows && !self.grows_with_stream && !self.grows_with_squares, "memory grows"),
            (self.tuned, "tuned per dataset in its paper"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|w| w.0).map(|w| w.1).collect();
        if words.is_empty() { "–".into() } else { words.join(", ") }
    }
}
