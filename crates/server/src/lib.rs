//! The service: `ultta serve`. Named streams over HTTP, each a [`Session`](ultta::Session) that learns while it
//! answers and keeps on the disk what it has learnt.
//!
//! ```text
//! listen ─► http (tokens, limits) ─► routes ─► stream's queue ─► owner thread ─► log ─► session ─► answer
//!                                      └─ reads ─► board (published state) ◄───────────────┘
//! ```
//!
//! Read `owner/mod.rs` first: one thread per stream takes requests in arrival order, writes them to the log and
//! only then lets them teach. Reads never reach it; they are answered from the board, where the owner publishes.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod alarms;
mod answer;
mod api;
mod auth;
mod board;
pub mod body;
mod clock;
mod deliver;
mod descriptors;
#[cfg(test)]
mod document;
mod fleet;
#[doc(hidden)]
pub mod fuzz;
mod http;
mod job;
mod keeper;
mod listen;
mod log;
mod manifest;
mod mark;
mod metrics;
mod owner;
mod parts;
mod picture;
mod problem;
mod recovery;
mod register;
mod room;
mod routes;
pub mod samples;
mod settings;
mod shadow;
mod store;
mod story;
mod stream;
mod streams;
mod turns;
mod verdict;
mod watch;

pub use listen::{Server, ServerError};
pub use picture::{PictureEncoder, stand_back};
pub use settings::{AlarmSettings, Durability, Limits, ServerConfig, ShareSettings, Tokens};
pub use streams::{StreamSpec, Streams};
