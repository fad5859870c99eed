//! What surrounds a session: packs of features with their labels, stream orders and protocols, metrics, runs and
//! their reports. The only crate that knows labels.
//!
//! ```text
//! packs ─► protocol (order, batches, strangers, labels) ─► session ─► metrics ─► run folder ─► report
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod arrival;
mod clock;
pub mod dataset;
mod facts;
mod made;
pub mod method;
pub mod metrics;
mod naming;
pub mod order;
pub mod pack;
pub mod pictures;
pub mod plan;
pub mod plot;
mod promises;
pub mod protocol;
pub mod random;
pub mod refused;
pub mod report;
mod right;
mod run;
pub mod run_folder;
mod stage;
mod stream;
pub mod suite;
pub mod summary;
mod tally;
#[cfg(test)]
mod testing;
pub mod tune;
pub mod words;
