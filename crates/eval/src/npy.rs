//! Reading NumPy's `.npy` arrays and `.npz` archives.
//!
//! Only what feature and label files need is understood: one- and two-dimensional arrays of plain numbers,
//! little-endian, rows one after another. Everything else is refused by name.

use std::io::{Cursor, Read};

use zip::ZipArchive;

/// How a `.npy` file begins.
pub const NPY_MAGIC: &[u8] = b"\x93NUMPY";
/// How a `.npz` archive begins.
pub const NPZ_MAGIC: &[u8] = b"PK\x03\x04";

/// NumPy itself refuses longer headers.
const MAX_HEADER: usize = 10_000;

/// A number's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Dtype {
    /// From a type string like `<f4`.
    fn parse(descr: &str) -> Result<Self, String> {
        if descr.starts_with('>') {
            return Err(format!("dtype {descr}: big-endian; save it as little-endian (`.astype('<f4')`)"));
        }
        Ok(match descr.trim_start_matches(['<', '|', '=']) {
            "f2" => Dtype::F16,
            "f4" => Dtype::F32,
            "f8" => Dtype::F64,
            "i1" => Dtype::I8,
            "i2" => Dtype::I16,
            "i4" => Dtype::I32,
            "i8" => Dtype::I64,
            "u1" => Dtype::U8,
            "u2" => Dtype::U16,
            "u4" => Dtype::U32,
            "u8" => Dtype::U64,
            _ => return Err(format!("dtype {descr}: expected plain numbers (f2, f4, f8, i1 … u8)")),
        })
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }
}

/// What a `.npy` header says, checked against the bytes that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where the numbers begin.
    pub start: usize,
}

impl Header {
    /// Parses the header of a whole `.npy` file.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let truncated = || "not a valid .npy file: truncated header".to_string();
        let rest =
            bytes.strip_prefix(NPY_MAGIC).ok_or("not a valid .npy file: it does not begin like one")?;
        let (len, before) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
            [version, _, ..] if !(1..=3).contains(version) => {
                return Err(format!("not a valid .npy file: format version {version}, expected 1 to 3"));
            }
            _ => return Err(truncated()),
        };
        if len > MAX_HEADER {
            return Err(format!(
                "not a valid .npy file: header of {len} bytes, at most {MAX_HEADER} allowed"
            ));
        }
        let start = before + len;
        let text = std::str::from_utf8(bytes.get(before..start).ok_or_else(truncated)?)
            .map_err(|_| "not a valid .npy file: the header is not text")?;
        let dtype = Dtype::parse(quoted(field(text, "descr")?)?)?;
        if field(text, "fortran_order")?.starts_with("True") {
            return Err(
                "columns are stored one after another (Fortran order); save `np.ascontiguousarray` of it"
                    .into(),
            );
        }
        let shape = tuple(field(text, "shape")?)?;
        let expected = shape
            .iter()
            .try_fold(dtype.bytes(), |n, &size| n.checked_mul(size))
            .ok_or_else(|| format!("not a valid .npy file: impossible shape {shape:?}"))?;
        let got = bytes.len() - start;
        if got < expected {
            return Err(format!(
                "not a valid .npy file: truncated: expected {expected} bytes of numbers for shape {shape:?}, got {got}"
            ));
        }
        Ok(Self { dtype, shape, start })
    }
}

/// What follows a key of the header's dictionary. NumPy writes `{'descr': '<f4', 'fortran_order': False, …}`.
fn field<'t>(text: &'t str, key: &str) -> Result<&'t str, String> {
    let missing = || format!("not a valid .npy file: no {key} in the header");
    [format!("'{key}'"), format!("\"{key}\"")]
        .iter()
        .find_map(|quoted| text.split_once(quoted.as_str()))
        .and_then(|(_, rest)| rest.trim_start().strip_prefix(':'))
        .map(str::trim_start)
        .ok_or_else(missing)
}

fn quoted(text: &str) -> Result<&str, String> {
    let mut parts = text.splitn(3, ['\'', '"']);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(""), Some(inner), Some(_)) => Ok(inner),
        _ => Err("structured dtype: expected plain numbers".into()),
    }
}

fn tuple(text: &str) -> Result<Vec<usize>, String> {
    let bad = || "not a valid .npy file: the shape is no tuple of sizes".to_string();
    let (inner, _) = text.strip_prefix('(').and_then(|t| t.split_once(')')).ok_or_else(bad)?;
    let sizes = inner.split(',').map(str::trim).filter(|t| !t.is_empty());
    sizes.map(|t| t.parse().map_err(|_| bad())).collect()
}

/// Takes arrays out of a `.npz` archive, each as the bytes of a whole `.npy` file; `None` where it is missing.
pub fn unpack(bytes: &[u8], names: [&str; 2]) -> Result<[Option<Vec<u8>>; 2], String> {
    let broken = |e: String| format!("not a valid .npz archive: {e}");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| broken(e.to_string()))?;
    let mut arrays = [None, None];
    for (array, name) in arrays.iter_mut().zip(names) {
        let Some(index) = archive.index_for_name(&format!("{name}.npy")) else { continue };
        let mut entry = archive.by_index(index).map_err(|e| broken(format!("{name}: {e}")))?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|e| broken(format!("{name}: {e}")))?;
        *array = Some(bytes);
    }
    Ok(arrays)
}

/// The names of the arrays in a `.npz` archive.
pub fn names(bytes: &[u8]) -> Vec<String> {
    let Ok(archive) = ZipArchive::new(Cursor::new(bytes)) else { return Vec::new() };
    archive.file_names().flatten().map(|name| name.trim_end_matches(".npy").to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = NPY_MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; data]);
        bytes
    }

    #[test]
    fn numpys_own_header_is_read() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }         \n";
        let parsed = Header::parse(&npy(header, 48)).unwrap();
        assert_eq!(
            parsed,
            Header { dtype: Dtype::F32, shape: vec![3, 4], start: NPY_MAGIC.len() + 4 + header.len() }
        );
        let labels =
            Header::parse(&npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", 2)).unwrap();
        assert_eq!((labels.dtype, labels.shape), (Dtype::U8, vec![2]));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |header: &str| Header::parse(&npy(header, 8)).unwrap_err();
        let header = |descr: &str, fortran: &str, shape: &str| {
            error(&format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"))
        };
        assert!(header("'<f4'", "False", "(3, 4)").contains("truncated: expected 48 bytes"));
        assert!(header("'>f4'", "False", "(1, 2)").contains("big-endian"));
        assert!(header("'<c8'", "False", "(1, 1)").contains("plain numbers"));
        assert!(header("[('a', '<f4')]", "False", "(1,)").contains("structured"));
        assert!(header("'<f4'", "True", "(1, 2)").contains("Fortran"));
        assert!(header("'<f4'", "False", "(-1, 2)").contains("shape"));
        assert!(
            header("'<f4'", "False", "(4611686018427387904, 4611686018427387904)").contains("impossible")
        );
        assert!(error("{}").contains("no descr"));
        assert!(Header::parse(b"\x93NUMPY\x01\x00\xff\x00{").unwrap_err().contains("truncated"));
        assert!(Header::parse(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f").unwrap_err().contains("at most"));
        assert!(Header::parse(b"\x93NUMPY\x09\x00").unwrap_err().contains("version 9"));
    }
}
