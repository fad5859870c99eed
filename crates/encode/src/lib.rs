//! Pictures and class names to features: CLIP and SigLIP on the CPU, in pure Rust.
//!
//! ```text
//! files ─► decode ─► preprocess ─► encode ─► features ─► session
//! names ─► templates ─► tokens ─► encode ─► head ──────────┘
//! ```
#![deny(missing_docs)]

pub mod augment;
pub mod config;
pub mod decode;
pub mod encoder;
mod error;
pub mod hub;
pub mod models;
#[cfg(feature = "onnx")]
pub mod onnx;
mod pickle;
pub mod preprocess;
pub mod tokens;
mod vit;
pub mod weights;

pub use encoder::{Clip, Encoder, encode_picture, open};
pub use error::{Error, Result};
pub use vit::element::Activation;
