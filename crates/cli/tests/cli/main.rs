//! The `ultta` binary from outside, in temporary folders.

mod bad_input;
mod corpus;
mod demo;
mod pipe;
mod real;
mod run;
mod support;
