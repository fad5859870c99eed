//! Binary bodies: rows as a safetensors or `.npy` file.

use ultta::{FeatureFile, Features};
use ultta_formats::npy::NPZ_MAGIC;

/// Rows as they come in.
#[derive(Clone, Debug)]
pub struct Body {
    /// Unit rows.
    pub features: Features<'static>,
    /// Rows that must not teach are `false`.
    pub learn: Option<Vec<bool>>,
    /// Arrival times in seconds.
    pub times: Option<Vec<f64>>,
}

impl Body {
    /// Reads a file: `.npy` (rows × dim) or safetensors with `features` and, optionally, `learn` (BOOL or U8) and
    /// `times` (F64), one value per row. Which of the two follows from the contents.
    pub fn parse(bytes: &[u8], normalize: bool) -> ultta::Result<Self> {
        // An archive may unpack to far more than was posted.
        if bytes.starts_with(NPZ_MAGIC) {
            let reason = "neither a .npy file nor a valid safetensors file: an archive".into();
            return Err(ultta::Error::Format { reason, path: "body".into() });
        }
        let file = FeatureFile::from_bytes("body", bytes.to_vec())?;
        Ok(Self {
            features: file.read_all(normalize)?,
            learn: file.learn().map(<[bool]>::to_vec),
            times: file.times().map(<[f64]>::to_vec),
        })
    }
}
