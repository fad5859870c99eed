//! What goes over the wire, in both directions: `classify` (samples, answers, labels), `manage` (streams), `choice` (a
//! stream's method and settings), `operate` (why, corrections, suggestions), `groups` (who shares), `watch` (health, methods, settings), `matrix` (rows of numbers in JSON), `bounded`
//! (lists that end at a bound).

mod bounded;
mod choice;
mod classify;
mod groups;
mod manage;
mod matrix;
mod operate;
mod watch;

#[cfg(test)]
pub use crate::document::Refusals;
pub use bounded::{Bounded, MOST_ENTRIES, Numbers};
pub use classify::*;
pub use groups::*;
pub use manage::*;
pub use matrix::Matrix;
pub use operate::*;
pub use watch::*;
