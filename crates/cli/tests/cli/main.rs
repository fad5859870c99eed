//! The `ultta` binary from outside, in temporary folders. One file per command or concern; one test binary for all.
#![forbid(unsafe_code)]

mod bad_input;
mod corpus;
mod demo;
mod eval;
mod export;
#[cfg(all(feature = "serve", target_os = "linux"))]
mod first_steps;
#[cfg(feature = "serve")]
mod fleet;
#[cfg(feature = "gradient")]
mod gradient;
#[cfg(all(feature = "serve", target_os = "linux"))]
mod kills;
mod operating;
mod pictures;
mod pipe;
mod real;
mod run;
#[cfg(all(feature = "serve", target_os = "linux"))]
mod serve;
#[cfg(feature = "gradient")]
mod suite;
mod support;
#[cfg(unix)]
mod video;
