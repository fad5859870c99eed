//! Binary bodies: samples as a safetensors or `.npy` file.

use ultta::FeatureFile;
use ultta_formats::kind::PARQUET_MAGIC;
use ultta_formats::npy::{NPY_MAGIC, NPZ_MAGIC};

use crate::samples::{Samples, Views};

/// Bytes of a safetensors header, at most: a few tensors need few.
const MOST_HEADER: u64 = 1 << 20;

/// Reads a file: `.npy` (rows × dim) or safetensors with `features` and, optionally, `learn` (BOOL or U8) and `times`
/// (F64) with one value per row, and `views` (rows × views × dim). Which of the two follows from the contents. With
/// `normalize`, rows of any length but zero are scaled to unit length. Where the dimension is known, rows of another one
/// are refused before their norms are looked at.
pub fn from_file(
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    dim: Option<usize>,
    normalize: bool,
) -> ultta::Result<Samples> {
    let file = open(bytes)?;
    if let Some(expected) = dim.filter(|&dim| dim != file.dim()) {
        return Err(ultta::Error::Shape { what: ultta::What::Dimension, expected, got: file.dim() });
    }
    samples(&file, normalize)
}

/// The file of a body. Its rows are not read yet.
pub(crate) fn open(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> ultta::Result<FeatureFile> {
    let refused = |reason: String| Err(ultta::Error::Format { reason, path: "body".into() });
    // An archive may unpack to far more than was posted.
    if bytes.as_ref().starts_with(NPZ_MAGIC) {
        return refused("neither a .npy file nor a valid safetensors file: an archive".into());
    }
    if bytes.as_ref().starts_with(PARQUET_MAGIC) {
        return refused("Parquet is not taken here: safetensors or .npy".into());
    }
    // A list of a million tensors takes ten times its bytes to read.
    let length = bytes.as_ref().first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if !bytes.as_ref().starts_with(NPY_MAGIC) && length > MOST_HEADER && length < bytes.as_ref().len() as u64
    {
        return refused(format!("a header may have {MOST_HEADER} bytes, got {length}"));
    }
    FeatureFile::from_bytes("body", bytes)
}

/// The rows of a file, scaled and checked.
pub(crate) fn samples(file: &FeatureFile, normalize: bool) -> ultta::Result<Samples> {
    let rows: Vec<usize> = (0..file.rows()).collect();
    let views = file
        .views(&rows, normalize)?
        .map(|features| Views { features, counts: vec![file.views_each(); rows.len()] });
    let learn = file.learn().map(<[bool]>::to_vec);
    Samples::new(file.read_all(normalize)?, learn, file.times().map(<[f64]>::to_vec), views)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_unpack_to_far_more_is_refused() {
        let reason = |bytes: &[u8]| from_file(bytes.to_vec(), None, false).unwrap_err().to_string();
        assert!(reason(b"PK\x03\x04 and more").contains("an archive"));
        let parquet = reason(b"PAR1 and more");
        assert!(parquet.contains("Parquet is not taken here: safetensors or .npy"), "{parquet}");
        assert!(!parquet.contains("--"), "no flags over HTTP: {parquet}");
    }

    #[test]
    fn a_long_header_is_refused_before_it_is_read() {
        let file =
            |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b" "].concat();
        let reason = |header: &str| from_file(file(header), None, false).unwrap_err().to_string();
        let long = format!("{{\"__metadata__\": {{\"a\": \"{}\"}}}}", "x".repeat(1 << 20));
        assert!(reason(&long).contains("a header may have 1048576 bytes"), "{}", reason(&long));
        assert!(!reason("{\"__metadata__\": {\"a\": \"x\"}}").contains("a header may have"));
    }
}
