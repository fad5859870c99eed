//! NumPy's `.npy` arrays and `.npz` archives.
//!
//! Only what feature and label files need is understood: arrays of plain numbers, little-endian, rows one after
//! another. Everything else is refused by name. Archives of floats and names are written, too.

use std::io::{Cursor, Read, Write};
use std::ops::Range;

use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::numbers::Number;

use crate::Problem;

/// How a `.npy` file begins.
pub const NPY_MAGIC: &[u8] = b"\x93NUMPY";
/// How a `.npz` archive begins.
pub const NPZ_MAGIC: &[u8] = b"PK\x03\x04";

/// NumPy itself refuses longer headers.
const MAX_HEADER: usize = 10_000;

/// A dtype from NumPy's type string, `<f4` for example.
fn dtype(descr: &str) -> Result<Dtype, Problem> {
    if descr.starts_with('>') {
        return Err(unsupported(format!(
            "dtype {descr}: big-endian; save it as little-endian (`.astype('<f4')`)"
        )));
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
        "b1" => Dtype::BOOL,
        _ => {
            return Err(unsupported(format!(
                "dtype {descr}: expected plain numbers (f2, f4, f8, i1 … u8) or b1"
            )));
        }
    })
}

/// What a `.npy` header says, checked against the bytes that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the numbers.
    pub dtype: Dtype,
    /// The array's shape.
    pub shape: Vec<usize>,
    /// The place of the numbers among the bytes of the file.
    pub bytes: Range<usize>,
}

impl Header {
    /// Parses the header of a whole `.npy` file.
    pub fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let truncated = || broken("truncated header");
        let rest = bytes.strip_prefix(NPY_MAGIC).ok_or_else(|| broken("it does not begin like one"))?;
        let (len, before) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
            [version, _, ..] if !(1..=3).contains(version) => {
                return Err(broken(format!("format version {version}, expected 1 to 3")));
            }
            _ => return Err(truncated()),
        };
        if len > MAX_HEADER {
            return Err(broken(format!("header of {len} bytes, at most {MAX_HEADER} allowed")));
        }
        let start = before + len;
        let text = std::str::from_utf8(bytes.get(before..start).ok_or_else(truncated)?)
            .map_err(|_| broken("the header is not text"))?;
        let dtype = dtype(quoted(field(text, "descr")?)?)?;
        if field(text, "fortran_order")?.starts_with("True") {
            return Err(unsupported(
                "columns are stored one after another (Fortran order); save `np.ascontiguousarray` of it",
            ));
        }
        let shape = tuple(field(text, "shape")?)?;
        let expected = shape
            .iter()
            .try_fold(dtype.bitsize() / 8, |n, &size| n.checked_mul(size))
            .ok_or_else(|| broken(format!("impossible shape {shape:?}")))?;
        let got = bytes.len() - start;
        if got < expected {
            return Err(broken(format!(
                "truncated: expected {expected} bytes of numbers for shape {shape:?}, got {got}"
            )));
        }
        Ok(Self { dtype, shape, bytes: start..start + expected })
    }
}

fn broken(reason: impl Into<String>) -> Problem {
    Problem::Broken { format: ".npy file", reason: reason.into() }
}

fn unsupported(what: impl Into<String>) -> Problem {
    Problem::Unsupported { what: what.into() }
}

/// What follows a key of the header's dictionary. NumPy writes `{'descr': '<f4', 'fortran_order': False, …}`.
fn field<'t>(text: &'t str, key: &str) -> Result<&'t str, Problem> {
    [format!("'{key}'"), format!("\"{key}\"")]
        .iter()
        .find_map(|quoted| text.split_once(quoted.as_str()))
        .and_then(|(_, rest)| rest.trim_start().strip_prefix(':'))
        .map(str::trim_start)
        .ok_or_else(|| broken(format!("no {key} in the header")))
}

fn quoted(text: &str) -> Result<&str, Problem> {
    let mut parts = text.splitn(3, ['\'', '"']);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(""), Some(inner), Some(_)) => Ok(inner),
        _ => Err(unsupported("structured dtype: expected plain numbers")),
    }
}

fn tuple(text: &str) -> Result<Vec<usize>, Problem> {
    let bad = || broken("the shape is no tuple of sizes");
    let (inner, _) = text.strip_prefix('(').and_then(|t| t.split_once(')')).ok_or_else(bad)?;
    let sizes = inner.split(',').map(str::trim).filter(|t| !t.is_empty());
    sizes.map(|t| t.parse().map_err(|_| bad())).collect()
}

/// A `.npz` archive: arrays by name.
pub struct Archive<'a>(ZipArchive<Cursor<&'a [u8]>>);

impl<'a> Archive<'a> {
    /// Opens the bytes of an archive.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Problem> {
        ZipArchive::new(Cursor::new(bytes)).map(Self).map_err(|e| broken_archive(e.to_string()))
    }

    /// An array as the bytes of a whole `.npy` file; `None` where it is missing.
    pub fn take(&mut self, name: &str) -> Result<Option<Vec<u8>>, Problem> {
        let Some(index) = self.0.index_for_name(&format!("{name}.npy")) else { return Ok(None) };
        let mut entry = self.0.by_index(index).map_err(|e| broken_archive(format!("{name}: {e}")))?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|e| broken_archive(format!("{name}: {e}")))?;
        Ok(Some(bytes))
    }

    /// The names of the arrays, sorted.
    pub fn names(&self) -> Vec<String> {
        let names = self.0.file_names().flatten();
        let mut names: Vec<String> = names.map(|name| name.trim_end_matches(".npy").to_string()).collect();
        names.sort();
        names
    }
}

/// An array on its way into an archive.
pub enum NewArray<'a> {
    /// Floats of a shape.
    Floats(&'a [usize], &'a [f32]),
    /// Names.
    Names(&'a [String]),
}

impl NewArray<'_> {
    /// The bytes of a `.npy` file.
    fn to_bytes(&self) -> Vec<u8> {
        let (descr, shape, data) = match self {
            NewArray::Floats(shape, values) => ("<f4".to_string(), shape.to_vec(), f32::encode(values)),
            NewArray::Names(names) => {
                // NumPy's strings have one length, four bytes a character.
                let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(1);
                let padded = names.iter().flat_map(|name| {
                    name.chars().map(u32::from).chain(std::iter::repeat(0)).take(width).collect::<Vec<_>>()
                });
                (format!("<U{width}"), vec![names.len()], u32::encode(&padded.collect::<Vec<_>>()))
            }
        };
        let sizes: String = shape.iter().map(|size| format!("{size},")).collect();
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
        // The numbers begin at a multiple of 64.
        let length = (NPY_MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - NPY_MAGIC.len() - 4;
        header.extend(std::iter::repeat_n(' ', length - header.len() - 1));
        header.push('\n');
        [NPY_MAGIC, &[1, 0], &(length as u16).to_le_bytes(), header.as_bytes(), &data].concat()
    }
}

/// The bytes of a `.npz` archive, not compressed.
pub fn archive(arrays: &[(&str, NewArray<'_>)]) -> Result<Vec<u8>, Problem> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, array) in arrays {
        zip.start_file(format!("{name}.npy"), options).map_err(|e| broken_archive(e.to_string()))?;
        zip.write_all(&array.to_bytes()).map_err(|e| broken_archive(e.to_string()))?;
    }
    Ok(zip.finish().map_err(|e| broken_archive(e.to_string()))?.into_inner())
}

fn broken_archive(reason: String) -> Problem {
    Problem::Broken { format: ".npz archive", reason }
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
        let start = NPY_MAGIC.len() + 4 + header.len();
        assert_eq!(parsed, Header { dtype: Dtype::F32, shape: vec![3, 4], bytes: start..start + 48 });
        let labels =
            Header::parse(&npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", 2)).unwrap();
        assert_eq!((labels.dtype, labels.shape), (Dtype::U8, vec![2]));
    }

    #[test]
    fn an_archive_is_read_back() {
        let names = ["a".to_string(), "žluť".to_string()];
        let written = [("w", NewArray::Floats(&[2, 1], &[1.5, -2.0])), ("names", NewArray::Names(&names))];
        let bytes = archive(&written).unwrap();
        let mut archive = Archive::open(&bytes).unwrap();
        assert_eq!(archive.names(), ["names", "w"]);
        let array = archive.take("w").unwrap().unwrap();
        let header = Header::parse(&array).unwrap();
        assert_eq!((header.dtype, &header.shape[..], header.bytes.start % 64), (Dtype::F32, &[2, 1][..], 0));
        assert_eq!(f32::decode(&array[header.bytes]), [1.5, -2.0]);
        let names = archive.take("names").unwrap().unwrap();
        assert!(names.ends_with(&u32::encode(&[0x17e, u32::from('l'), u32::from('u'), 0x165])));
    }

    #[test]
    fn mistakes_are_named() {
        let problem = |bytes: &[u8]| Header::parse(bytes).unwrap_err().to_string();
        let error = |header: &str| problem(&npy(header, 8));
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
        assert!(problem(b"\x93NUMPY\x01\x00\xff\x00{").contains("truncated"));
        assert!(problem(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f").contains("at most"));
        assert!(problem(b"\x93NUMPY\x09\x00").contains("version 9"));
    }
}
