//! The one error type of this crate.

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A head, a feature or a setting that does not fit.
    #[error(transparent)]
    Core(#[from] ultta::Error),
    /// A model or a picture that cannot be read.
    #[error(transparent)]
    Encode(#[from] ultta_encode::Error),
    /// Arithmetic on tensors of the wrong shape: a fault of this crate, not of its caller.
    #[error("tensor: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A model whose towers cannot be adapted here.
    #[error("model: {0}")]
    Model(String),
}

impl Error {
    pub(crate) fn shape(what: &'static str, expected: usize, got: usize) -> Self {
        Self::Core(ultta::Error::Shape { what: ultta::What::Other(what), expected, got })
    }

    pub(crate) fn config(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Core(ultta::Error::Config { key: key.into(), reason: reason.into() })
    }
}

impl From<ultta_formats::Error> for Error {
    fn from(error: ultta_formats::Error) -> Self {
        Error::Core(error.into())
    }
}

/// For callers that know the core's errors only.
impl From<Error> for ultta::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            other => ultta::Error::Config { key: "pictures".into(), reason: other.to_string() },
        }
    }
}
