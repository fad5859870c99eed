//! The tests of the core from outside, one binary; each file is a module.

mod alarms;
mod architecture;
mod baselines;
mod common;
mod contract;
mod corrections;
mod estimates;
mod export;
mod files;
mod garbage;
mod group;
mod guard;
mod labels;
mod laws;
mod limits;
mod merge;
mod oracle;
mod real_streams;
mod scenes;
mod state_files;
mod teaching;
