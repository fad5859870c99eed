//! Safetensors: where the tensors of a file are, and the bytes of a new file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::Problem;

/// The strings a file carries beside its tensors.
pub type Strings = BTreeMap<String, String>;

/// What the header of a safetensors file says. It borrows nothing, so it can stand beside the mapped bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensors {
    /// The strings the file carries.
    pub metadata: Strings,
    /// Where each tensor is, by its name.
    pub entries: BTreeMap<String, Entry>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its place among the bytes of the file.
    pub bytes: Range<usize>,
}

impl Tensors {
    /// Reads the header of a whole file and checks that the tensors lie within it.
    pub fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let broken = |reason: String| Problem::Broken { format: "safetensors file", reason };
        if bytes.is_empty() {
            return Err(broken("it is empty".into()));
        }
        let (header, found) = SafeTensors::read_metadata(bytes).map_err(|e| broken(e.to_string()))?;
        let start = header + size_of::<u64>();
        let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
            let (from, to) = info.data_offsets;
            (name, Entry { dtype: info.dtype, shape: info.shape.clone(), bytes: start + from..start + to })
        };
        let entries = found.tensors().into_iter().map(entry).collect();
        let metadata = found.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Self { metadata, entries })
    }

    /// A tensor, where the file has it.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// A tensor that must be there.
    pub fn need(&self, name: &str) -> Result<&Entry, Problem> {
        self.get(name).ok_or_else(|| Problem::Missing { name: name.into(), found: self.names() })
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }
}

/// A tensor on its way into a file.
pub struct NewTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub bytes: &'a [u8],
}

/// The bytes of a safetensors file. Tensors and strings are sorted, so that the same content gives the same bytes.
pub fn to_bytes(mut tensors: Vec<NewTensor<'_>>, metadata: &Strings) -> Vec<u8> {
    // Wide numbers first, so that every tensor begins at a multiple of its numbers' width.
    tensors.sort_by(|a, b| (Reverse(a.dtype), a.name).cmp(&(Reverse(b.dtype), b.name)));
    let mut bytes = header(tensors.iter().map(|t| (t.name, t.dtype, &t.shape[..])), metadata);
    tensors.iter().for_each(|tensor| bytes.extend_from_slice(tensor.bytes));
    bytes
}

/// The beginning of a safetensors file; the bytes of the tensors follow in the order given.
pub fn header<'a>(
    tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [usize])>,
    metadata: &Strings,
) -> Vec<u8> {
    #[derive(Serialize)]
    struct Info<'a> {
        dtype: Dtype,
        shape: &'a [usize],
        data_offsets: [usize; 2],
    }
    let json = |value: &str| serde_json::to_string(value).expect("a string is valid JSON");
    let mut text = String::from("{\"__metadata__\":");
    text += &serde_json::to_string(metadata).expect("strings are valid JSON");
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let info = Info { dtype, shape, data_offsets: [start, end] };
        text += &format!(",{}:{}", json(name), serde_json::to_string(&info).expect("sizes are valid JSON"));
    }
    text.push('}');
    let mut header = text.into_bytes();
    // The numbers begin at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Number;

    fn file() -> Vec<u8> {
        let (a, b) = (f32::encode(&[1.0, 2.0]), i64::encode(&[7]));
        let tensors = vec![
            NewTensor { name: "a", dtype: Dtype::F32, shape: vec![1, 2], bytes: &a },
            NewTensor { name: "b", dtype: Dtype::I64, shape: vec![1], bytes: &b },
        ];
        to_bytes(tensors, &Strings::from([("k".into(), "\"v\"".into())]))
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = file();
        let tensors = Tensors::read(&bytes).unwrap();
        assert_eq!((tensors.names(), &tensors.metadata["k"][..]), (vec!["a".into(), "b".into()], "\"v\""));
        let a = tensors.need("a").unwrap();
        assert_eq!((f32::decode(&bytes[a.bytes.clone()]), &a.shape[..]), (vec![1.0, 2.0], &[1, 2][..]));
        assert_eq!(i64::decode(&bytes[tensors.get("b").unwrap().bytes.clone()]), [7]);
        let missing = tensors.need("c").unwrap_err().to_string();
        assert_eq!(missing, "no tensor named `c`; the file holds [\"a\", \"b\"]");
    }

    /// The format's own library reads the file, and writes the same bytes but for the strings.
    #[test]
    fn the_library_agrees() {
        let bytes = file();
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("b").unwrap().data(), i64::encode(&[7]));
        let mut strings = std::collections::HashMap::new();
        strings.insert("k".to_string(), "\"v\"".to_string());
        assert_eq!(safetensors::serialize(theirs.tensors(), Some(strings)).unwrap(), bytes);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |bytes: &[u8]| Tensors::read(bytes).unwrap_err().to_string();
        assert_eq!(error(b""), "not a valid safetensors file: it is empty");
        assert!(error(b"\xff\xff\xff\xff\xff\xff\xff\xff{}").contains("header"));
        let whole = file();
        assert!(error(&whole[..whole.len() - 1]).starts_with("not a valid safetensors file"));
    }
}
