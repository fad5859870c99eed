//! Metrics and plots.

pub mod plot;
