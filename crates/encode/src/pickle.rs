//! Weights that `torch.save` wrote: a ZIP archive with a pickle that names the tensors and files that hold them.
//!
//! Only what a plain state dictionary needs is understood; nothing in the pickle is executed.

use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::rc::Rc;

use safetensors::Dtype;

/// A tensor's place in the file.
pub(crate) struct Stored {
    pub name: String,
    pub start: usize,
    pub len: usize,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

/// The most bytes a pickle may have: names and shapes of a few thousand tensors.
const MAX_PICKLE: u64 = 64 << 20;

/// The most values a pickle may have on its stack.
const MAX_STACK: usize = 1 << 20;

/// The most tuples and dictionaries inside one another; a state dictionary has three or four.
const MAX_DEPTH: usize = 16;

/// The most entries that are looked at in search of tensors.
const MAX_ENTRIES: usize = 1 << 20;

/// Finds the tensors of an archive.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<Stored>, String> {
    let mut archive =
        zip::ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("not a ZIP archive: {e}"))?;
    let pickle = archive
        .file_names()
        .filter_map(|name| Some(name.ok()?.into_owned()))
        .find(|name| name.ends_with("/data.pkl"))
        .ok_or("expected an archive of torch.save, but there is no data.pkl in it")?;
    let folder = pickle.trim_end_matches("data.pkl").to_string();
    let mut program = Vec::new();
    let file = archive.by_name(&pickle).map_err(|e| e.to_string())?;
    file.take(MAX_PICKLE).read_to_end(&mut program).map_err(|e| e.to_string())?;
    let mut found = Vec::new();
    for (name, tensor) in tensors(&program)? {
        let file = format!("{folder}data/{}", tensor.storage);
        let entry = archive.by_name(&file).map_err(|e| format!("{name}: {e}"))?;
        if entry.compression() != zip::CompressionMethod::Stored {
            return Err(format!("{name}: expected a stored file, got a compressed one"));
        }
        let begin = entry.data_start().ok_or_else(|| format!("{name}: its data cannot be found"))?;
        let size = if tensor.dtype == Dtype::F64 || tensor.dtype == Dtype::I64 {
            8
        } else if tensor.dtype == Dtype::F32 {
            4
        } else {
            2
        };
        // Strides of a contiguous tensor, last dimension fastest.
        let too_large = || format!("{name}: its shape is too large: {:?}", tensor.shape);
        let mut expected = 1usize;
        for (&n, &stride) in tensor.shape.iter().zip(&tensor.stride).rev() {
            if n != 1 && stride != expected {
                return Err(format!("{name}: expected a contiguous tensor, got strides {:?}", tensor.stride));
            }
            expected = expected.checked_mul(n).ok_or_else(too_large)?;
        }
        let len = expected.checked_mul(size).ok_or_else(too_large)?;
        let start = tensor.offset.checked_mul(size).ok_or_else(too_large)?;
        let end = start.checked_add(len).ok_or_else(too_large)?;
        let in_file = usize::try_from(begin).ok().and_then(|begin| begin.checked_add(end));
        if end as u64 > entry.size() || in_file.is_none_or(|end| end > bytes.len()) {
            return Err(format!("{name}: its data is cut short"));
        }
        let start = begin as usize + start;
        found.push(Stored { name, start, len, dtype: tensor.dtype, shape: tensor.shape.clone() });
    }
    Ok(found)
}

struct TensorValue {
    storage: String,
    dtype: Dtype,
    offset: usize,
    shape: Vec<usize>,
    stride: Vec<usize>,
}

/// A value on the pickle's stack. A pickle may recall a value any number of times, so copies share what they hold.
#[derive(Clone)]
enum Value {
    None,
    Mark,
    Int(i64),
    Text(Rc<str>),
    Tuple(Rc<Values>),
    /// Key, value, key, value …
    Dict(Rc<Values>),
    Global(Rc<str>),
    Storage(Rc<str>, Dtype),
    Tensor(Rc<TensorValue>),
    Other,
}

/// What a tuple or a dictionary holds.
#[derive(Clone, Default)]
struct Values {
    values: Vec<Value>,
    /// Tuples and dictionaries inside one another, this one included.
    depth: usize,
}

impl Values {
    fn new(values: Vec<Value>) -> Result<Rc<Self>, String> {
        let mut new = Self::default();
        new.extend(values)?;
        Ok(Rc::new(new))
    }

    fn extend(&mut self, values: Vec<Value>) -> Result<(), String> {
        let depth = |value: &Value| match value {
            Value::Tuple(inner) | Value::Dict(inner) => inner.depth,
            _ => 0,
        };
        self.depth = values.iter().map(depth).max().unwrap_or(0).saturating_add(1).max(self.depth);
        if self.depth > MAX_DEPTH {
            return Err(format!("the pickle nests its values deeper than {MAX_DEPTH}"));
        }
        self.values.extend(values);
        Ok(())
    }
}

/// Runs the pickle as far as it builds dictionaries of tensors.
fn tensors(program: &[u8]) -> Result<Vec<(String, Rc<TensorValue>)>, String> {
    let mut stack: Vec<Value> = Vec::new();
    let mut memo: HashMap<u32, Value> = HashMap::new();
    // Dictionaries are filled after they were put into the memo; only the outermost one matters.
    let mut at = 0usize;
    let bad = |at: usize| format!("the pickle ends in the middle (byte {at})");
    macro_rules! take {
        ($n:expr) => {{
            let n = $n;
            let part = program.get(at..at.saturating_add(n)).ok_or_else(|| bad(at))?;
            at += n;
            part
        }};
    }
    macro_rules! pop {
        () => {
            stack.pop().ok_or("the pickle takes from an empty stack")?
        };
    }
    fn to_mark(stack: &mut Vec<Value>) -> Result<Vec<Value>, String> {
        let place = stack.iter().rposition(|v| matches!(v, Value::Mark)).ok_or("the pickle misses a mark")?;
        let values = stack.split_off(place + 1);
        stack.pop();
        Ok(values)
    }
    fn add(stack: &mut [Value], values: Vec<Value>) -> Result<(), String> {
        if let Some(Value::Dict(entries)) = stack.last_mut() {
            Rc::make_mut(entries).extend(values)?;
        }
        Ok(())
    }
    loop {
        if stack.len() > MAX_STACK {
            return Err("the pickle is too deep".into());
        }
        let op = take!(1)[0];
        match op {
            0x80 => drop(take!(1)),
            b'.' => break,
            b'(' => stack.push(Value::Mark),
            b')' => stack.push(Value::Tuple(Values::new(vec![])?)),
            b'}' => stack.push(Value::Dict(Values::new(vec![])?)),
            b']' | b'N' => stack.push(if op == b'N' { Value::None } else { Value::Other }),
            0x88 | 0x89 => stack.push(Value::Int(i64::from(op == 0x88))),
            b'K' => stack.push(Value::Int(take!(1)[0].into())),
            b'M' => {
                stack.push(Value::Int(u16::from_le_bytes(take!(2).try_into().unwrap_or_default()).into()))
            }
            b'J' => {
                stack.push(Value::Int(i32::from_le_bytes(take!(4).try_into().unwrap_or_default()).into()))
            }
            0x8a => {
                let n = take!(1)[0] as usize;
                let bytes = take!(n);
                let mut value = [0; 8];
                value[..n.min(8)].copy_from_slice(&bytes[..n.min(8)]);
                stack.push(Value::Int(i64::from_le_bytes(value)));
            }
            b'G' => {
                take!(8);
                stack.push(Value::Other);
            }
            b'X' | 0x8c => {
                let n = match op {
                    b'X' => u32::from_le_bytes(take!(4).try_into().unwrap_or_default()) as usize,
                    _ => take!(1)[0] as usize,
                };
                stack.push(Value::Text(String::from_utf8_lossy(take!(n)).into()));
            }
            b'q' => drop(memo.insert(take!(1)[0].into(), stack.last().cloned().unwrap_or(Value::None))),
            b'r' => {
                let index = u32::from_le_bytes(take!(4).try_into().unwrap_or_default());
                memo.insert(index, stack.last().cloned().unwrap_or(Value::None));
            }
            b'h' | b'j' => {
                let index = match op {
                    b'h' => take!(1)[0].into(),
                    _ => u32::from_le_bytes(take!(4).try_into().unwrap_or_default()),
                };
                stack.push(memo.get(&index).cloned().ok_or("the pickle recalls what it never kept")?);
            }
            b'c' => {
                let mut line = || -> Result<String, String> {
                    let rest = program.get(at..).ok_or_else(|| bad(at))?;
                    let n = rest.iter().position(|&b| b == b'\n').ok_or_else(|| bad(at))?;
                    at += n + 1;
                    Ok(String::from_utf8_lossy(&rest[..n]).into_owned())
                };
                let (module, name) = (line()?, line()?);
                stack.push(Value::Global(format!("{module}.{name}").into()));
            }
            b't' => {
                let values = to_mark(&mut stack)?;
                stack.push(Value::Tuple(Values::new(values)?));
            }
            0x85..=0x87 => {
                let n = (op - 0x84) as usize;
                let place = stack.len().checked_sub(n).ok_or("the pickle takes from an empty stack")?;
                let values = stack.split_off(place);
                stack.push(Value::Tuple(Values::new(values)?));
            }
            b'Q' => {
                let value = storage(pop!())?;
                stack.push(value);
            }
            b'R' => {
                let (arguments, function) = (pop!(), pop!());
                stack.push(reduce(function, arguments));
            }
            b's' => {
                let (value, key) = (pop!(), pop!());
                add(&mut stack, vec![key, value])?;
            }
            b'u' => {
                let values = to_mark(&mut stack)?;
                add(&mut stack, values)?;
            }
            b'a' => drop(pop!()),
            b'e' => drop(to_mark(&mut stack)?),
            b'b' => drop(pop!()),
            other => {
                return Err(format!("the pickle uses an instruction of no state dictionary ({other:#x})"));
            }
        }
    }
    let mut found = Vec::new();
    collect(&pop!(), &mut found, &mut 0)?;
    if found.is_empty() {
        return Err("the pickle holds no tensors".into());
    }
    Ok(found)
}

fn storage(id: Value) -> Result<Value, String> {
    if let Value::Tuple(parts) = id
        && let [_, Value::Global(kind), Value::Text(key), ..] = &parts.values[..]
    {
        let dtype = match &**kind {
            "torch.FloatStorage" => Dtype::F32,
            "torch.HalfStorage" => Dtype::F16,
            "torch.BFloat16Storage" => Dtype::BF16,
            "torch.DoubleStorage" => Dtype::F64,
            "torch.LongStorage" => Dtype::I64,
            other => return Err(format!("tensors of {other} are not understood")),
        };
        return Ok(Value::Storage(key.clone(), dtype));
    }
    Err("the pickle names its storage in an unknown way".into())
}

fn reduce(function: Value, arguments: Value) -> Value {
    let (Value::Global(name), Value::Tuple(arguments)) = (function, arguments) else { return Value::Other };
    match (&*name, &arguments.values[..]) {
        ("collections.OrderedDict", _) => Value::Dict(Rc::default()),
        (
            "torch._utils._rebuild_tensor_v2",
            [
                Value::Storage(storage, dtype),
                Value::Int(offset),
                Value::Tuple(shape),
                Value::Tuple(stride),
                ..,
            ],
        ) => {
            let sizes = |values: &[Value]| -> Option<Vec<usize>> {
                values
                    .iter()
                    .map(|v| if let Value::Int(n) = v { usize::try_from(*n).ok() } else { None })
                    .collect()
            };
            match (sizes(&shape.values), sizes(&stride.values), usize::try_from(*offset)) {
                (Some(shape), Some(stride), Ok(offset)) if shape.len() == stride.len() => {
                    let (storage, dtype) = (storage.to_string(), *dtype);
                    Value::Tensor(Rc::new(TensorValue { storage, dtype, offset, shape, stride }))
                }
                _ => Value::Other,
            }
        }
        ("torch._utils._rebuild_parameter", [tensor @ Value::Tensor(_), ..]) => tensor.clone(),
        _ => Value::Other,
    }
}

/// All tensors under text keys; dictionaries inside (`state_dict`) are entered, and a wrapper's `module.` dropped.
/// `seen` counts the entries looked at: a dictionary may hold one other many times over.
fn collect(
    value: &Value,
    found: &mut Vec<(String, Rc<TensorValue>)>,
    seen: &mut usize,
) -> Result<(), String> {
    let Value::Dict(entries) = value else { return Ok(()) };
    for entry in entries.values.chunks_exact(2) {
        *seen += 1;
        if *seen > MAX_ENTRIES {
            return Err(format!("the pickle holds more than {MAX_ENTRIES} entries"));
        }
        match (&entry[0], &entry[1]) {
            (Value::Text(name), Value::Tensor(tensor)) if tensor.dtype != Dtype::I64 => {
                found.push((name.strip_prefix("module.").unwrap_or(name).to_string(), tensor.clone()));
            }
            (_, inner @ Value::Dict(_)) => collect(inner, found, seen)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(program: &[u8]) -> String {
        tensors(program).err().expect("refused")
    }

    #[test]
    fn tuples_inside_tuples_end_somewhere() {
        let mut program = b")".to_vec();
        program.extend([0x85; 100_000]);
        assert!(refused(&program).contains("deeper than"));
    }

    #[test]
    fn one_value_recalled_many_times_takes_no_room() {
        // Every round makes a dictionary that holds the last one thirty times over.
        let mut program = b"}q\0".to_vec();
        for _ in 0..MAX_DEPTH - 2 {
            program.extend(b"}(");
            program.extend(b"Nh\0".repeat(30));
            program.extend(b"uq\0");
        }
        program.push(b'.');
        assert!(refused(&program).contains("entries"));
    }
}
