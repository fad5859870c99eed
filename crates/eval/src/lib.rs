//! What surrounds a session: packs of features with their labels, stream orders and protocols, metrics, runs and
//! their reports. The only crate that knows labels.
//!
//! ```text
//! packs ─► protocol (order, batches, strangers, labels) ─► session ─► metrics ─► run folder ─► report
//! ```
#![deny(missing_docs)]

pub mod dataset;
pub mod driver;
pub mod metrics;
pub mod order;
pub mod pack;
pub mod pictures;
pub mod plot;
pub mod protocol;
pub mod random;
pub mod report;
pub mod suite;
pub mod summary;
