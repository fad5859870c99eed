//! The encoder from outside: one test binary.

mod hub;
#[cfg(feature = "onnx")]
mod onnx;
mod parity;
mod tiny;
