//! Test-time adaptation by gradients through the encoder: Tent, EATA, SAR, CoTTA, TTT, TTT++ and TPT on CLIP.
//!
//! ```text
//! pictures ─► vit (image tower, differentiable) ─► head ─► method (loss, backward, step) ─► answer
//! ```
//!
//! [`Session`] is the door: [`Session::step`] takes preprocessed pictures and gives answers beside the frozen
//! model's. One file per method; [`method`] says what a method is.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use ultta_gradient::{MethodConfig, Model, Session};
//!
//! let name = "openai/clip-vit-base-patch16";
//! let encoder = ultta_encode::open(name)?;
//! let classes = ultta_encode::prompts::Classes::from_list("cat,dog")?;
//! let templates = ultta_encode::prompts::Templates::named("photo")?;
//! let head = ultta_encode::prompts::build_head(&*encoder, &classes, &templates, None, |_, _| ())?;
//! let tent = MethodConfig::by_name("tent").unwrap();
//! let mut session = Session::new(Arc::new(Model::open(name)?), Arc::new(head), &tent)?;
//! # let pixels: Vec<f32> = vec![];
//! let step = session.step(&pixels, None)?;
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod cotta;
pub mod eata;
mod error;
pub mod eval;
pub mod method;
mod ops;
pub mod sar;
mod session;
pub mod tent;
pub mod tiny;
pub mod tpt;
pub mod train;
pub mod ttt;
pub mod views;
pub mod vit;

pub use error::{Error, Result};
pub use method::{Cost, Method, MethodConfig, cards};
pub use ops::{cross_entropy, entropy, softmax};
pub use session::{Session, Step};
pub use vit::Model;
