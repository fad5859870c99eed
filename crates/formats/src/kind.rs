//! Telling the project's files apart by what they hold.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::npy::{NPY_MAGIC, NPZ_MAGIC};
use crate::{Error, Problem, Result, Tensors, map_file};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Features,
    Head,
    State,
}

impl Kind {
    /// Tells features, head and state files apart. Only headers are read.
    pub fn of(path: &Path) -> Result<Self> {
        if Format::of_file(path)? != Format::Safetensors {
            return Ok(Kind::Features);
        }
        let tensors = Tensors::read(&map_file(path)?).map_err(|e| e.at(path))?;
        let format = tensors.metadata.get("format");
        if format.is_some_and(|format| format.starts_with("ultta-state")) {
            Ok(Kind::State)
        } else if tensors.get("prototypes").is_some() {
            Ok(Kind::Head)
        } else if tensors.get("features").is_some() {
            Ok(Kind::Features)
        } else {
            Err(Problem::Kind { found: tensors.names() }.at(path))
        }
    }
}

/// How Parquet files begin.
pub const PARQUET_MAGIC: &[u8] = b"PAR1";

/// How a file is laid out. Bytes that are neither NumPy's nor Parquet's are taken for safetensors, whose reader says what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Safetensors,
    Npy,
    Npz,
    Parquet,
}

impl Format {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        if bytes.starts_with(NPY_MAGIC) {
            Format::Npy
        } else if bytes.starts_with(NPZ_MAGIC) {
            Format::Npz
        } else if bytes.starts_with(PARQUET_MAGIC) {
            Format::Parquet
        } else {
            Format::Safetensors
        }
    }

    fn of_file(path: &Path) -> Result<Self> {
        let mut first = Vec::new();
        let file = File::open(path).map_err(Error::io("opening", path))?;
        file.take(NPY_MAGIC.len() as u64).read_to_end(&mut first).map_err(Error::io("reading", path))?;
        Ok(Self::of(&first))
    }
}
