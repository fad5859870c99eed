//! Binary bodies: rows as a safetensors or `.npy` file.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use ultta::Features;
use ultta_eval::pack::Pack;

/// How a `.npy` file begins.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

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
        if bytes.starts_with(NPY_MAGIC) {
            let pack = Pack::from_numpy(Path::new("body"), bytes.to_vec())?;
            let features = pack.read(0..pack.rows(), normalize)?;
            return Ok(Self { features, learn: None, times: None });
        }
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|e| malformed(format!("neither a .npy file nor a valid safetensors file: {e}")))?;
        let view = tensors.tensor("features").map_err(|_| {
            malformed(format!("no tensor named `features`; the body holds {:?}", tensors.names()))
        })?;
        let &[rows, dim] = view.shape() else {
            return Err(malformed(format!("`features`: expected shape [rows, dim], got {:?}", view.shape())));
        };
        let data = floats(view.data(), view.dtype()).ok_or_else(|| {
            malformed(format!("`features`: expected dtype F16, BF16, F32 or F64, got {:?}", view.dtype()))
        })?;
        let features = if normalize { Features::normalized(data, dim) } else { Features::new(data, dim) }?;
        let per_row = |name: &str| match tensors.tensor(name) {
            Ok(view) if view.shape() == [rows] => Ok(Some(view)),
            Ok(view) => Err(malformed(format!("`{name}`: expected shape [{rows}], got {:?}", view.shape()))),
            Err(_) => Ok(None),
        };
        let learn = match per_row("learn")? {
            None => None,
            Some(view) if matches!(view.dtype(), Dtype::BOOL | Dtype::U8) => {
                Some(view.data().iter().map(|&b| b != 0).collect())
            }
            Some(view) => {
                return Err(malformed(format!("`learn`: expected dtype BOOL or U8, got {:?}", view.dtype())));
            }
        };
        let times = match per_row("times")? {
            None => None,
            Some(view) if view.dtype() == Dtype::F64 => {
                Some(view.data().as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect())
            }
            Some(view) => {
                return Err(malformed(format!("`times`: expected dtype F64, got {:?}", view.dtype())));
            }
        };
        Ok(Self { features, learn, times })
    }
}

fn malformed(reason: String) -> ultta::Error {
    ultta::Error::Format { reason, path: "body".into() }
}

fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
        _ => return None,
    })
}
