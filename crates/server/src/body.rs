//! Binary bodies: samples as a safetensors or `.npy` file.

use ultta::FeatureFile;
use ultta_formats::npy::NPZ_MAGIC;

use crate::samples::{Samples, Views};

/// Reads a file: `.npy` (rows × dim) or safetensors with `features` and, optionally, `learn` (BOOL or U8) and `times`
/// (F64) with one value per row, and `views` (rows × views × dim). Which of the two follows from the contents. With
/// `normalize`, rows of any length but zero are scaled to unit length. Where the dimension is known, rows of another one
/// are refused before their norms are looked at.
pub fn from_file(
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    dim: Option<usize>,
    normalize: bool,
) -> ultta::Result<Samples> {
    // An archive may unpack to far more than was posted.
    if bytes.as_ref().starts_with(NPZ_MAGIC) {
        let reason = "neither a .npy file nor a valid safetensors file: an archive".into();
        return Err(ultta::Error::Format { reason, path: "body".into() });
    }
    let file = FeatureFile::from_bytes("body", bytes)?;
    if let Some(expected) = dim.filter(|&dim| dim != file.dim()) {
        return Err(ultta::Error::Shape { what: "feature dimension", expected, got: file.dim() });
    }
    let rows: Vec<usize> = (0..file.rows()).collect();
    let views = file
        .views(&rows, normalize)?
        .map(|features| Views { features, counts: vec![file.views_each(); rows.len()] });
    let learn = file.learn().map(<[bool]>::to_vec);
    Samples::new(file.read_all(normalize)?, learn, file.times().map(<[f64]>::to_vec), views)
}
