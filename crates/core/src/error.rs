//! The one error type of this crate. Each variant says what is wrong, what was expected and what was found; paths
//! come last. What to do about it differs between the command line, HTTP and Python, so each of them adds its own
//! advice.

use std::path::PathBuf;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error is about. The command line, HTTP and Python choose their advice by it, not by the words of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The length of a row of features.
    Dimension,
    /// The rows of features.
    Features,
    /// The extra views of the rows.
    Views,
    /// How many views each row has.
    ViewCounts,
    /// Which rows may teach.
    LearnMarks,
    /// When the rows came.
    Times,
    /// Anything that needs no advice of its own.
    Other(&'static str),
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            What::Dimension => "feature dimension",
            What::Features => "features",
            What::Views => "views",
            What::ViewCounts => "view counts",
            What::LearnMarks => "learn marks",
            What::Times => "times",
            What::Other(what) => what,
        })
    }
}

/// Everything that can be wrong with what a caller hands over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size does not fit: a feature dimension, a number of rows or of classes.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// The thing whose size is wrong.
        what: What,
        /// The size that would fit.
        expected: usize,
        /// The size that was given.
        got: usize,
    },
    /// A feature or prototype row is not of unit length.
    #[error("{what}: row {row} has norm {norm:.4}, expected 1 (within 0.01)")]
    NotUnit {
        /// Which matrix the row belongs to.
        what: What,
        /// Index of the row.
        row: usize,
        /// Its Euclidean norm.
        norm: f64,
    },
    /// A row holds NaN or an infinity.
    #[error("{what}: row {row} holds a value that is not finite")]
    NotFinite {
        /// Which matrix the row belongs to.
        what: What,
        /// Index of the row.
        row: usize,
    },
    /// The method answers from several views of each sample, and none were given.
    #[error("views: the method {method} needs views of every sample, got none")]
    NeedsViews {
        /// Name of the method.
        method: String,
    },
    /// The class list cannot make a head.
    #[error("head: {reason}")]
    Classes {
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A setting is unknown, of the wrong type or out of range.
    #[error("config: {key}: {reason}")]
    Config {
        /// The dotted key.
        key: String,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// A saved state belongs to another head.
    #[error("state: it was saved for another head (digest {got}, this head is {expected})")]
    OtherHead {
        /// Digest of the head in use.
        expected: String,
        /// Digest recorded in the state.
        got: String,
    },
    /// A saved state has a format version this build does not read.
    #[error("state: format {got:?}, this build reads version {expected} only")]
    Version {
        /// The version this build writes and reads.
        expected: u32,
        /// The version found.
        got: String,
    },
    /// A saved state was made under another configuration.
    #[error("state: it was saved under another configuration: {key}")]
    OtherConfig {
        /// The first setting that differs, with both values.
        key: String,
    },
    /// A saved state is incomplete, inconsistent or holds values that cannot be.
    #[error("state: {reason}")]
    State {
        /// What is wrong with it.
        reason: String,
    },
    /// A file is not what it claims to be.
    #[error("{reason} ({path})", path = ultta_formats::shown(path))]
    Format {
        /// What is wrong with the contents.
        reason: String,
        /// The file.
        path: PathBuf,
    },
    /// What is wrong with a value, and the file that holds it.
    #[error("{error} ({path})", path = ultta_formats::shown(path))]
    InFile {
        /// What is wrong.
        error: Box<Error>,
        /// The file.
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
    /// A sample was asked for, or labelled, that is unknown or no longer remembered.
    #[error("{}", forgotten(*id, *remembered, *setting))]
    Forgotten {
        /// The sample's id.
        id: u64,
        /// How many samples are remembered.
        remembered: usize,
        /// The setting that bounds their number; `None` if the method keeps no samples.
        setting: Option<&'static str>,
    },
    /// What a member of the group has learnt cannot be taken.
    #[error("group: what {member} learnt is refused: {reason}")]
    Delta {
        /// Who learnt it.
        member: String,
        /// Why it is refused.
        reason: String,
    },
    /// What a member learnt before this is missing: its whole contribution is needed.
    #[error("group: of {member}, number {expected} is expected, and what follows number {got} came")]
    Gap {
        /// Whose contribution has a gap.
        member: String,
        /// The number that is known.
        expected: u64,
        /// The number that the delta begins behind.
        got: u64,
    },
    /// The session shares nothing: it has not joined a group, or its method keeps no evidence.
    #[error("group: {reason}")]
    NotShared {
        /// Why not.
        reason: String,
    },
    /// The answers cannot be given by one linear layer.
    #[error("export: {reason}")]
    NoLayer {
        /// Why not.
        reason: String,
    },
    /// A label is not a class of the head.
    #[error("label {label} is not below the number of classes, {classes}")]
    Label {
        /// The label given.
        label: usize,
        /// Number of classes.
        classes: usize,
    },
}

/// What is said of a sample that is not remembered.
fn forgotten(id: u64, remembered: usize, setting: Option<&str>) -> String {
    match setting {
        Some(setting) => format!(
            "sample {id} is not among the {remembered} remembered ones; the setting {setting} says how many are remembered at most, and a return to a healthy state forgets them"
        ),
        None => format!("sample {id} is not remembered: this method keeps no samples"),
    }
}

impl Error {
    /// The error without the file it was found in. The command line, HTTP and Python look at it to choose their advice.
    pub fn root(&self) -> &Error {
        match self {
            Error::InFile { error, .. } => error.root(),
            other => other,
        }
    }

    pub(crate) fn config(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Config { key: key.into(), reason: reason.into() }
    }
    pub(crate) fn state(reason: impl Into<String>) -> Self {
        Error::State { reason: reason.into() }
    }
    pub(crate) fn format(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Error::Format { path: path.into(), reason: reason.into() }
    }
}

impl From<ultta_formats::Error> for Error {
    fn from(error: ultta_formats::Error) -> Self {
        match error {
            ultta_formats::Error::Io { doing, source, path } => Error::Io { doing, source, path },
            ultta_formats::Error::Content { problem, path } => Error::format(path, problem.to_string()),
            other => Error::format(PathBuf::new(), other.to_string()),
        }
    }
}
