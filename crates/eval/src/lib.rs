//! What surrounds a session: packs of features with their labels, stream orders, metrics, plots. The only crate
//! that knows labels.
#![deny(missing_docs)]

pub mod lines;
pub mod metrics;
mod npy;
pub mod order;
pub mod pack;
pub mod plot;
