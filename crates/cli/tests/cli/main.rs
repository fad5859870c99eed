//! The `ultta` binary from outside, in temporary folders.

mod bad_input;
mod corpus;
mod pipe;
mod real;
mod run;
mod support;
