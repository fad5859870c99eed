//! The one error type of this crate: what is wrong, what was expected, what was found; paths come last.

use std::path::PathBuf;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong on the way from pictures and names to features.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A picture cannot be decoded, or is refused by a limit.
    #[error("{reason}")]
    Picture {
        /// What is wrong with it.
        reason: String,
    },
    /// A model's configuration or weights are missing, incomplete or of another kind.
    #[error("model: {reason} ({path})", path = ultta_formats::shown(path))]
    Model {
        /// What is wrong, and what was expected.
        reason: String,
        /// The file or folder.
        path: PathBuf,
    },
    /// A file could not be had from the hub.
    #[error("hub: {reason}")]
    Hub {
        /// What happened, and what to do.
        reason: String,
    },
    /// A video cannot be read.
    #[error("{0}")]
    Video(String),
    /// A text cannot be encoded.
    #[error("text: {reason}")]
    Text {
        /// What is wrong with it.
        reason: String,
    },
    /// Class names, templates or labels are not what they should be.
    #[error("{what}: {reason}")]
    Names {
        /// The list: `labels`, `templates`.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A folder is not laid out as the dataset's name says.
    #[error("dataset {name}: {reason} ({path})", path = ultta_formats::shown(path))]
    Dataset {
        /// The dataset.
        name: String,
        /// What was expected and what was found.
        reason: String,
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{doing}: {source} ({path})", path = ultta_formats::shown(path))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the operating system reported.
        source: std::io::Error,
        /// The file.
        path: PathBuf,
    },
    /// The ONNX runtime refused.
    #[error("onnx: {reason}")]
    Onnx {
        /// What the runtime reported.
        reason: String,
    },
    /// An error of the core: shapes, heads, files.
    #[error(transparent)]
    Core(#[from] ultta::Error),
}

impl From<ultta_formats::Error> for Error {
    fn from(error: ultta_formats::Error) -> Self {
        match error {
            ultta_formats::Error::Io { doing, source, path } => Error::Io { doing, source, path },
            other => Error::Core(other.into()),
        }
    }
}

impl Error {
    pub(crate) fn picture(reason: impl Into<String>) -> Self {
        // Some decoders write paragraphs; a table of unreadable files has a line for each.
        let reason: String = reason.into();
        Error::Picture { reason: reason.split_whitespace().collect::<Vec<_>>().join(" ") }
    }
    pub(crate) fn model(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Error::Model { reason: reason.into(), path: path.into() }
    }
    pub(crate) fn hub(reason: impl Into<String>) -> Self {
        Error::Hub { reason: reason.into() }
    }
    pub(crate) fn names(what: &'static str, reason: impl Into<String>) -> Self {
        Error::Names { what, reason: reason.into() }
    }
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { doing, path: path.into(), source }
    }
}
