//! Ultra-light test-time adaptation for frozen zero-shot classifiers (CLIP and its kin).
//!
//! ```text
//! images ─► features ─► head ─► zero-shot scores ─► [ gate ─► accumulate ─► update ] ─► answer ─► metrics
//! ```
//!
//! A [`Session`] is the single door: it owns a [`Head`] (class anchors and the model's logit scale) and an
//! adapter, and every [`Session::step`] answers a block of [`Features`] and lets it teach.
//!
//! ```
//! use ultta::{Config, Features, Head, Session};
//!
//! let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0)?;
//! let mut session = Session::new(head, &Config::default())?;
//! for row in [[0.6f32, 0.8], [0.8, 0.6]] {
//!     let step = session.step(&Features::new(&row[..], 2)?)?;
//!     let answer = &step.rows[0];
//!     println!("{} ({:.2}), zero-shot {}", answer.label, answer.prob, answer.zero_shot.label);
//! }
//! # Ok::<(), ultta::Error>(())
//! ```
//!
//! Read [`session`] first, then [`adapter`], then a file of [`methods`].
#![deny(missing_docs)]

pub mod adapter;
pub mod config;
mod error;
pub mod features;
pub mod gate;
pub mod guard;
pub mod head;
pub mod kernels;
pub mod methods;
pub mod reliability;
pub mod scores;
pub mod session;
#[cfg(feature = "simulate")]
pub mod simulate;
pub mod state;
pub mod unknown;
mod window;

pub use adapter::{Adapter, Batch, Card};
pub use config::Config;
pub use error::{Error, Result};
pub use features::{FeatureFile, Features};
pub use head::{Anchor, Head};
pub use scores::Scores;
pub use session::{Health, Input, Session, Step};
pub use state::State;
