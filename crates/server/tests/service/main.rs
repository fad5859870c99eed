//! The service, in process on a free port: one file per promise.
//!
//! - `common`: a server to ask, and streams to ask it with
//! - `classify`: bodies of every kind give the answers of a session in Rust
//! - `views`: methods that need views of every sample
//! - `streams`: create, freeze, snapshot, roll back, clone, merge, delete
//! - `durability`: recovery is bit for bit; torn tails; clocks
//! - `groups`: streams of one server that share what they learn
//! - `fleet`: servers that share over a real broker, and faults (feature `nats`)
//! - `contributions`: what members keep at the broker, and what strangers put there
//! - `credentials`: how a server tells the broker who it is, and keeps that to itself
//! - `protection`: tokens, limits, malformed bodies, slow and many clients, TLS, shutdown
//! - `hostile`: clients and disks that mean harm hurt nobody else
//! - `answers`: answers that nobody reads, bodies that pause
//! - `manifest`: files that are missing, exchanged or changed are named
//! - `watched`: files that are removed, cut or exchanged while the server runs; what is no file at all
//! - `operate`: why, corrections, suggestions, the layer
//! - `pictures`: the seam to an image model
//! - `corpus`: the fuzzers' corpus through the binary body parser

mod alarms;
mod answers;
mod classify;
mod common;
#[cfg(feature = "nats")]
mod contributions;
mod corpus;
#[cfg(feature = "nats")]
mod credentials;
mod durability;
#[cfg(feature = "nats")]
mod fleet;
mod groups;
mod hostile;
mod manifest;
mod operate;
mod pictures;
mod protection;
mod streams;
mod views;
mod watched;
