//! The file formats that every crate of the project shares: how bytes on disk become numbers and names, and how
//! files are written. What the numbers mean (unit rows, class anchors, evidence) is the business of the callers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`features`] | a features file as it is stored: rows, labels, `learn`, `times`, `views` |
//! | [`tensors`] | safetensors: reading the header, writing a file |
//! | [`npy`] | NumPy's `.npy` arrays and `.npz` archives |
//! | `parquet` | Parquet as a features file, behind the feature `parquet` |
//! | [`onnx`] | small ONNX models, written only |
//! | [`lines`] | rows as JSON lines |
//! | [`numbers`] | little-endian numbers of every dtype |
//! | [`map`] | memory maps, and memory given back: the only `unsafe` code of this crate |
//! | [`regular`] | regular files, and nothing else in their place |
//! | [`write`](mod@write) | files that are written aside and renamed |
//! | [`shown`](mod@shown) | names of files as they are shown to people |
//! | [`kind`] | telling features, head and state files apart |
//!
//! `docs/formats.md` describes the formats for users.
#![deny(missing_docs, unsafe_code)]

mod error;
pub mod features;
pub mod kind;
pub mod lines;
pub mod map;
pub mod npy;
pub mod numbers;
pub mod onnx;
#[cfg(feature = "parquet")]
mod parquet;
pub mod regular;
pub mod shown;
pub mod tensors;
pub mod write;

pub use error::{Error, Problem, Result};
pub use features::StoredFeatures;
pub use kind::Kind;
pub use lines::{Id, Line};
pub use map::map_file;
pub use regular::{open_regular, read_regular};
pub use safetensors::Dtype;
pub use shown::shown;
pub use tensors::{Tensors, to_bytes};
pub use write::{ASIDE_PREFIX, Aside, write_atomically};
