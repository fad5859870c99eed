//! Ultra-light test-time adaptation for frozen zero-shot classifiers (CLIP and its kin).
//!
//! CLIP classifies an image by comparing its feature with one text vector per class. The text vectors are fixed when
//! the classes are named; the stream of images that arrives afterwards differs from what they describe: other
//! cameras, other class frequencies, over-confident scores. This crate learns three things from the stream itself,
//! without labels, gradients or a second pass: how the classes look here (*evidence*), how often they occur here
//! (*prior*) and how sure an answer may be (*temperature*). The network stays frozen; a sample costs microseconds.
//!
//! A [`Session`] is the only door. It owns a [`Head`] (class anchors and the model's logit scale) and an adapter, the
//! method that learns. Every row of [`Features`] takes four steps:
//!
//! 1. **Score**: the frozen head gives zero-shot scores; rows that fit no class are marked unknown.
//! 2. **Answer**: the adapter corrects the scores by what it has learnt so far.
//! 3. **Learn**: the gate decides whether the row may teach; if so its evidence is added.
//! 4. **Watch**: the guard compares answers with the frozen model and returns to a healthy state if they collapse.
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
//! With files, as `ultta head` and `ultta encode` write them:
//!
//! ```no_run
//! use ultta::{Config, FeatureFile, Head, Session};
//!
//! let head = Head::load("head.safetensors")?;
//! let features = FeatureFile::open("features.safetensors")?;
//! let mut session = Session::new(head, &Config::default())?;
//! for row in session.step(&features.read_all(false)?)?.rows {
//!     println!("{} {:.2} (zero-shot {})", row.label, row.prob, row.zero_shot.label);
//! }
//! session.state().save("state.safetensors")?;
//! # Ok::<(), ultta::Error>(())
//! ```
//!
//! The [`glossary`] defines every word used in a sense of its own. To read the source, begin with `session.rs`, then
//! `adapter.rs`, then one file of `methods/`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod adapter;
mod alarm;
mod blocks;
mod config;
mod delta;
mod drift;
mod error;
mod estimate;
mod explain;
mod export;
mod features;
mod gate;
mod group;
mod guard;
mod head;
mod health;
mod input;
mod kernels;
mod linear;
mod methods;
mod mixture;
mod persist;
mod reliability;
mod scores;
mod session;
mod sets;
mod state;
mod step;
mod suggest;
mod unknown;
mod window;

#[cfg(feature = "simulate")]
pub mod simulate;

#[doc = include_str!("glossary.md")]
pub mod glossary {}

// For users.
pub use alarm::{Alarm, AlarmConfig, AlarmKind};
pub use config::{Config, DEFAULT_TOML};
pub use delta::Delta;
pub use error::{Error, Result, What};
pub use estimate::{ClassEstimate, Estimate};
pub use explain::{
    ExplainedClass, Explanation, Lever, NamedClass, NamedExplanation, NamedScene, Part, Similar,
};
pub use export::{LAYER_ENDINGS, Layer};
pub use features::{FeatureFile, Features};
pub use group::{Heard, Membership};
pub use guard::{GuardConfig, Standing};
pub use head::{Anchor, Head};
pub use health::Health;
pub use input::Input;
pub use methods::{MethodConfig, card, cards, names};
pub use scores::Scores;
pub use session::Session;
pub use state::{Element, State, Tensor};
pub use step::{Row, Step, Temperature, ZeroShotAnswer};
pub use suggest::{Suggestion, Unlabelled, suggest};
pub use unknown::{UnknownConfig, UnknownScore};

// What a session tells of itself and of its method.
pub use adapter::{
    Answer, Card, ClassDrift, Footing, Grouping, Growth, KeptScene, Memory, Prediction, Readout,
};

/// What the other crates of this workspace share with the core, and what its own tests look at: the trait of a method
/// among it. No promise is made about it to anybody else.
#[doc(hidden)]
pub mod internal {
    pub use crate::adapter::{Adapter, Batch, CloneAdapter, Observed, ScoresRef, ViewsRef, Vitals};
    pub use crate::blocks::{LABELLED_ROWS, PASS_ROWS, STEP_ROWS};
    pub use crate::config::{PAPER_TOML, nearest};
    pub use crate::features::NORM_TOLERANCE;
    pub use crate::group::Sharing;
    pub use crate::head::LOGIT_SCALES;
    pub use crate::kernels::{exp, vectorised};
    pub use crate::reliability::{Bin, Ece, Edges, bin_of};
    pub use crate::scores::{Summary, softmax, softmax_from, summary, top_k, weigh};
    pub use crate::state::STATE_VERSION;
}
