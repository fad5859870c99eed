//! [`State`]: everything a session needs to continue bit for bit, as named tensors in one safetensors file.
//!
//! Names tell what a tensor is: `evidence.*` are sums that two sessions may add ([`State::merge`]), everything
//! else is local to one stream. `docs/formats.md` lists them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use ultta_formats::numbers::Number;
use ultta_formats::tensors::{self, Entry};
use ultta_formats::{Aside, Dtype, Problem, Tensors, map_file};

use crate::{Error, Result};

/// The format version this build writes and reads.
pub const STATE_VERSION: u32 = 2;

/// The largest count a state may hold.
pub const MAX_COUNT: u64 = 1 << 56;

/// One named array of a state. Clones share it, also with the session that it was saved from, until one of them changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// Floating-point numbers of 64 bits.
    F64(Arc<Vec<f64>>),
    /// Floating-point numbers of 32 bits.
    F32(Arc<Vec<f32>>),
    /// Counts and ids.
    U64(Arc<Vec<u64>>),
    /// Class numbers.
    U32(Arc<Vec<u32>>),
    /// Rounded numbers of 16 bits.
    I16(Arc<Vec<i16>>),
    /// Marks, and rounded numbers of 8 bits.
    U8(Arc<Vec<u8>>),
}

/// What a session carries, detached from it: to be saved, sent, merged or loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Strings: format version, head digest, resolved config, and what else a reader may want to know.
    pub metadata: BTreeMap<String, String>,
    /// Arrays by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// A type of value that a state can hold.
pub trait Element: Copy + Sized + 'static {
    /// Wraps values.
    fn wrap(values: Arc<Vec<Self>>) -> Tensor;
    /// Unwraps values of this type.
    fn unwrap(tensor: &Tensor) -> Option<&Arc<Vec<Self>>>;
}

macro_rules! element {
    ($($ty:ty, $variant:ident);* $(;)?) => {$(
        impl Element for $ty {
            fn wrap(values: Arc<Vec<Self>>) -> Tensor { Tensor::$variant(values) }
            fn unwrap(tensor: &Tensor) -> Option<&Arc<Vec<Self>>> {
                match tensor { Tensor::$variant(values) => Some(values), _ => None }
            }
        }
    )*};
}
element!(f64, F64; f32, F32; u64, U64; u32, U32; i16, I16; u8, U8);

impl State {
    /// Stores an array.
    pub fn put<T: Element>(&mut self, name: impl Into<String>, values: &[T]) {
        self.put_shared(name, Arc::new(values.to_vec()));
    }

    /// Stores an array without copying it.
    pub fn put_shared<T: Element>(&mut self, name: impl Into<String>, values: Arc<Vec<T>>) {
        self.tensors.insert(name.into(), T::wrap(values));
    }

    /// An array that must be there, of this type.
    pub fn get<T: Element>(&self, name: &str) -> Result<&[T]> {
        self.find(name).map(|values| &values[..])
    }

    /// An array that must be there, of this type and length, without copying it.
    pub fn shared<T: Element>(&self, name: &str, len: usize) -> Result<Arc<Vec<T>>> {
        self.get_n::<T>(name, len)?;
        self.find(name).cloned()
    }

    fn find<T: Element>(&self, name: &str) -> Result<&Arc<Vec<T>>> {
        let tensor = self.tensors.get(name).ok_or_else(|| Error::state(format!("{name} is missing")))?;
        T::unwrap(tensor).ok_or_else(|| Error::state(format!("{name} has the wrong type")))
    }

    /// An array that must be there, of this type and length.
    pub fn get_n<T: Element>(&self, name: &str, len: usize) -> Result<&[T]> {
        let values = self.get(name)?;
        if values.len() != len {
            return Err(Error::state(format!("{name}: expected {len} values, got {}", values.len())));
        }
        Ok(values)
    }

    /// A single value that must be there.
    pub fn scalar<T: Element>(&self, name: &str) -> Result<T> {
        Ok(self.get_n::<T>(name, 1)?[0])
    }

    /// Counts that must be there, `N` of them, none so large that counting on could overflow.
    pub fn counts<const N: usize>(&self, name: &str) -> Result<[u64; N]> {
        let wrong = || Error::state(format!("{name}: expected {N} counts"));
        let counts: [u64; N] = self.get_n(name, N)?.try_into().map_err(|_| wrong())?;
        if counts.iter().any(|&count| count > MAX_COUNT) {
            return Err(Error::state(format!("{name} holds a count beyond {MAX_COUNT}")));
        }
        Ok(counts)
    }

    /// An array that must be there: `len` numbers, each within `bounds`.
    pub fn within<T: Element + Into<f64>>(
        &self,
        name: &str,
        len: usize,
        bounds: RangeInclusive<f64>,
    ) -> Result<&[T]> {
        let values = self.get_n::<T>(name, len)?;
        match values.iter().find(|&&v| !bounds.contains(&v.into())) {
            Some(&v) => {
                let (v, low, high) = (v.into(), bounds.start(), bounds.end());
                Err(Error::state(format!("{name} holds {v}, expected {low} to {high}")))
            }
            None => Ok(values),
        }
    }

    /// Whether there is any array whose name starts with `prefix`.
    pub fn any_under(&self, prefix: &str) -> bool {
        self.tensors.range(prefix.to_string()..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// Refuses values that are not finite.
    pub(crate) fn check_finite(&self) -> Result<()> {
        for (name, tensor) in &self.tensors {
            let finite = match tensor {
                Tensor::F64(v) => v.iter().all(|v| v.is_finite()),
                Tensor::F32(v) => v.iter().all(|v| v.is_finite()),
                _ => true,
            };
            if !finite {
                return Err(Error::state(format!("{name} holds values that are not finite")));
            }
        }
        Ok(())
    }

    /// Whether an array is there.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The arrays whose names start with `prefix`, under their names without the prefix.
    pub fn under(&self, prefix: &str) -> State {
        let tensors = self
            .tensors
            .iter()
            .filter_map(|(k, v)| k.strip_prefix(prefix).map(|k| (k.to_string(), v.clone())))
            .collect();
        State { metadata: BTreeMap::new(), tensors }
    }

    /// Adds the arrays of another state, with `prefix` before each name.
    pub fn put_under(&mut self, prefix: &str, other: State) {
        self.tensors.extend(other.tensors.into_iter().map(|(k, v)| (format!("{prefix}{k}"), v)));
    }

    /// Bytes the arrays take.
    pub fn bytes(&self) -> usize {
        self.tensors.values().map(|t| t.len() * t.dtype().bitsize() / 8).sum()
    }

    /// Adds the evidence of two sessions that started from the same head and configuration.
    ///
    /// Commutative, and associative up to rounding. Local parts (windows, prior experts, interpolated prototypes)
    /// restart when the result is loaded, and what follows from the evidence is recomputed; what else is kept of both a method
    /// says on its card (for the default, how far it trusts its evidence, and its temperature). Merging with a state that has no evidence returns the other unchanged.
    pub fn merge(&self, other: &State) -> Result<State> {
        for key in ["format", "head", "settings"] {
            let (ours, theirs) = (self.metadata.get(key), other.metadata.get(key));
            if ours == theirs {
                continue;
            }
            let (ours, theirs) = (ours.cloned().unwrap_or_default(), theirs.cloned().unwrap_or_default());
            return Err(match key {
                "head" => Error::OtherHead { expected: ours, got: theirs },
                "settings" => Error::OtherConfig { key: differing_setting(&ours, &theirs) },
                _ => Error::Version { expected: STATE_VERSION, got: theirs },
            });
        }
        if self.is_empty() {
            return Ok(other.clone());
        }
        if other.is_empty() {
            return Ok(self.clone());
        }
        if !self.has("evidence.seen") {
            let method = self.metadata.get("method").map_or("this method", String::as_str);
            return Err(Error::state(format!("{method} keeps no evidence that could be merged")));
        }
        let (ours, theirs) = (self.settled()?, other.settled()?);
        let mut merged = State { metadata: self.metadata.clone(), tensors: BTreeMap::new() };
        // Decayed sums are stored over one common scale; the merged ones have scale 1.
        let scale = |state: &State| state.scalar::<f64>("evidence.scale").unwrap_or(1.0);
        let (our_scale, their_scale) = (scale(self), scale(other));
        for (name, ours) in ours.tensors.iter().filter(|(name, _)| name.starts_with("evidence.")) {
            let decayed = name.starts_with("evidence.decayed.");
            let (a_scale, b_scale) = if decayed { (our_scale, their_scale) } else { (1.0, 1.0) };
            let sum = match ours {
                Tensor::F64(_) if name == "evidence.scale" => f64::wrap(Arc::new(vec![1.0])),
                Tensor::F64(a) => {
                    let b = theirs.get_n::<f64>(name, a.len())?;
                    let sum = a.iter().zip(b).map(|(a, b)| a * a_scale + b * b_scale);
                    f64::wrap(Arc::new(sum.collect()))
                }
                Tensor::U64(a) => {
                    let b = theirs.get_n::<u64>(name, a.len())?;
                    u64::wrap(Arc::new(a.iter().zip(b).map(|(a, b)| a.saturating_add(*b)).collect()))
                }
                _ => return Err(Error::state(format!("{name}: rounded evidence cannot be merged"))),
            };
            merged.tensors.insert(name.clone(), sum);
        }
        for merge in crate::methods::cards().iter().filter_map(|card| card.merge) {
            merge(self, other, &mut merged)?;
        }
        Ok(merged)
    }

    /// The state with the rows that wait to enter the evidence added to it: `evidence.*` is whole then.
    pub fn settled(&self) -> Result<State> {
        crate::methods::triangle::settle(self)
    }

    /// Whether the state holds no evidence yet.
    pub fn is_empty(&self) -> bool {
        let none = |name: &str| self.get::<u64>(name).is_ok_and(|n| n.first() == Some(&0));
        none("evidence.seen") || none("session.counts") || self.tensors.is_empty()
    }

    /// The bytes of a state file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.bytes() + 4096);
        self.write_to(&mut bytes).map_err(|e| Error::state(format!("it cannot be written: {e}")))?;
        Ok(bytes)
    }

    /// Writes the bytes of a state file piece by piece.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut ordered: Vec<(&str, &Tensor, [usize; 1])> =
            self.tensors.iter().map(|(name, tensor)| (&name[..], tensor, [tensor.len()])).collect();
        // Wide numbers first, so that every array begins at a multiple of its numbers' width.
        ordered.sort_by_key(|(name, tensor, _)| (Reverse(tensor.dtype()), *name));
        let entries = ordered.iter().map(|(name, tensor, shape)| (*name, tensor.dtype(), &shape[..]));
        out.write_all(&tensors::header(entries, &self.metadata))?;
        ordered.iter().try_for_each(|(_, tensor, _)| tensor.write_to(out))
    }

    /// Reads the bytes of a state file: refuses another version, broken files and values that are not finite.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let state = Self::read(bytes)?;
        match state.metadata.get("format") {
            Some(v) if *v == format!("ultta-state-{STATE_VERSION}") => {}
            Some(v) => return Err(Error::Version { expected: STATE_VERSION, got: v.clone() }),
            None => return Err(Error::state("not a state file (no `format` in its metadata)")),
        }
        state.check_finite()?;
        Ok(state)
    }

    /// Reads the strings and arrays of a file, whatever they are.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let Tensors { metadata, entries } = Tensors::read(bytes).map_err(|e| match e {
            Problem::Broken { reason, .. } => Error::state(format!("not a valid state file: {reason}")),
            other => Error::state(other.to_string()),
        })?;
        let mut state = State { metadata, tensors: BTreeMap::new() };
        for (name, Entry { dtype, bytes: place, .. }) in entries {
            let data = &bytes[place];
            let tensor = match dtype {
                Dtype::F64 => Tensor::F64(f64::decode(data).into()),
                Dtype::F32 => Tensor::F32(f32::decode(data).into()),
                Dtype::U64 => Tensor::U64(u64::decode(data).into()),
                Dtype::U32 => Tensor::U32(u32::decode(data).into()),
                Dtype::I16 => Tensor::I16(i16::decode(data).into()),
                Dtype::U8 => Tensor::U8(data.to_vec().into()),
                other => return Err(Error::state(format!("{name} has an unexpected dtype {other:?}"))),
            };
            state.tensors.insert(name, tensor);
        }
        Ok(state)
    }

    /// Writes a state file: aside, synced, then renamed, so that a crash leaves the old file or the new one.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut aside = Aside::create(path.as_ref())?;
        self.write_to(&mut aside).map_err(|source| Error::Io {
            doing: "writing",
            source,
            path: path.as_ref().into(),
        })?;
        Ok(aside.commit()?)
    }

    /// Reads a state file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_bytes(&map_file(path.as_ref())?)
    }
}

impl Tensor {
    fn dtype(&self) -> Dtype {
        match self {
            Tensor::F64(_) => Dtype::F64,
            Tensor::F32(_) => Dtype::F32,
            Tensor::U64(_) => Dtype::U64,
            Tensor::U32(_) => Dtype::U32,
            Tensor::I16(_) => Dtype::I16,
            Tensor::U8(_) => Dtype::U8,
        }
    }

    fn len(&self) -> usize {
        match self {
            Tensor::F64(v) => v.len(),
            Tensor::F32(v) => v.len(),
            Tensor::U64(v) => v.len(),
            Tensor::U32(v) => v.len(),
            Tensor::I16(v) => v.len(),
            Tensor::U8(v) => v.len(),
        }
    }

    fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        /// Numbers that are encoded at once.
        const PIECE: usize = 1 << 16;
        fn write<T: Number>(values: &[T], out: &mut impl Write) -> io::Result<()> {
            values.chunks(PIECE).try_for_each(|piece| out.write_all(&T::encode(piece)))
        }
        match self {
            Tensor::F64(v) => write(v, out),
            Tensor::F32(v) => write(v, out),
            Tensor::U64(v) => write(v, out),
            Tensor::U32(v) => write(v, out),
            Tensor::I16(v) => write(v, out),
            Tensor::U8(v) => out.write_all(v),
        }
    }
}

/// The first setting in which two states differ, with both values. Method and preset come first.
pub(crate) fn differing_setting(ours: &str, theirs: &str) -> String {
    let (ours, theirs): (toml::Table, toml::Table) =
        (ours.parse().unwrap_or_default(), theirs.parse().unwrap_or_default());
    let value = |table: &toml::Table, key: &str| table.get(key).map_or("nothing".into(), |v| v.to_string());
    let first = ["method", "preset"].into_iter();
    let keys = first.chain(ours.keys().chain(theirs.keys()).map(String::as_str));
    match keys.into_iter().find(|key| ours.get(*key) != theirs.get(*key)) {
        Some(key) => format!("{key} is {} here, {} there", value(&ours, key), value(&theirs, key)),
        None => "its settings cannot be read".into(),
    }
}
