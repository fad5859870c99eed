//! [`Facts`]: what a method is allowed to see and to keep.

use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Growth, Readout};

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
    /// It needs further views of each picture.
    pub views: bool,
    /// It changes the encoder and so needs the pictures.
    pub pictures: bool,
    /// It sees the whole stream first.
    pub whole_stream: bool,
    /// Its memory grows with the stream, or with classes × dimensions².
    pub grows: bool,
    /// Its paper chose settings for each dataset.
    pub tuned: bool,
}

impl Facts {
    /// The facts on a method's card.
    pub fn of(card: &Card, pictures: bool) -> Self {
        Self {
            answers_after: card.readout == Readout::AfterObserve,
            later_samples: card.grouping == Grouping::Joint,
            stream_length: card.horizon.is_some(),
            labels: card.needs_labels,
            views: card.needs_views,
            pictures,
            whole_stream: card.transductive,
            grows: card.growth != Growth::Classes,
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
            (self.grows, "memory grows"),
            (self.tuned, "tuned per dataset in its paper"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|w| w.0).map(|w| w.1).collect();
        if words.is_empty() { "–".into() } else { words.join(", ") }
    }
}
