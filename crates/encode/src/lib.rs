//! Pictures and class names to features: CLIP (transformers and residual networks) and SigLIP on the CPU, in pure Rust.
//!
//! ```text
//! source ─► decode ─► preprocess ─► encoder ─► features ─► session
//! prompts ─► tokens ─► encoder ─► head ────────────────────┘
//! ```
//!
//! [`open`] gives an [`Encoder`] by folder or hub name ([`tiny`] ships with the crate), [`encode_picture`] a feature of a
//! file's bytes, [`prompts::build_head`] a head of class names, [`pipeline::run`] the features of many pictures on all
//! cores.
#![deny(missing_docs)]

pub mod augment;
pub mod config;
pub mod dataset;
pub mod decode;
pub mod doctor;
pub mod encoder;
mod error;
pub mod flops;
pub mod hub;
pub mod models;
#[cfg(feature = "onnx")]
pub mod onnx;
mod pickle;
pub mod pipeline;
pub mod preprocess;
pub mod prompts;
mod resize;
mod resnet;
mod secret;
pub mod source;
mod splits;
pub mod store;
pub mod thumbnail;
pub mod tiny;
pub mod tokens;
pub mod video;
mod vit;
pub mod weights;

pub use encoder::{Clip, Encoder, encode_picture, open};
pub use error::{Error, Result};
pub use vit::element::Activation;

/// The Rust block of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/encode.md")]
struct Guide;
