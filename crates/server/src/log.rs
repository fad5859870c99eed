//! The write-ahead log of one stream: every observed sample and every label, in order, before they teach.
//!
//! A segment file `log-<first>.wal` begins with eight bytes of magic and version and eight of its stream. A record is framed by its length, the
//! CRC-32 of its payload and the CRC-32 of these two (u32 each, little-endian); its payload begins with its number. A
//! record that the file ends in is a write that was cut short: it was never acknowledged under `sync`, or lies within
//! the last interval. Its length has a checksum of its own, so that a damaged length is not taken for that.
//!
//! Features were scaled before they were logged. A record whose checksum is right gives them back bit for bit; they
//! are neither scaled nor checked again.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use ultta::Features;
use ultta_formats::numbers::Number;
use ultta_formats::open_regular;

use crate::fleet::GroupRecord;
use crate::samples::{Samples, Views};
use crate::watch;

mod replay;

#[cfg(test)]
use replay::{Tail, Whole};
pub use replay::{foreign, replay, set_aside};

/// How a segment begins: a name and the version of the format.
const MAGIC: &[u8; 8] = b"ULTTAW\x00\x03";
/// Bytes behind the magic: the stream that the log belongs to.
pub type Identity = [u8; 8];
/// Bytes of a segment without a record.
pub const EMPTY: u64 = BEGINNING as u64;
const BEGINNING: usize = MAGIC.len() + size_of::<Identity>();
/// Bytes in front of a record: its length, its checksum, the checksum of these.
const FRAME: usize = 12;
/// Kinds of records.
const SAMPLES: u8 = 1;
const FEEDBACK: u8 = 2;
const LEARNING: u8 = 3;
const CORRECTION: u8 = 4;
const GROUP: u8 = 5;
/// What a record of samples holds beside features.
const HAS_LEARN: u8 = 1;
const HAS_TIMES: u8 = 2;
const HAS_VIEWS: u8 = 4;
/// A buffer that grew beyond this for one large write is given back.
const BUFFER_KEPT: usize = 1 << 20;

/// One thing that happened to a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Samples were observed.
    Samples(Samples),
    /// A delayed label arrived.
    Feedback { id: u64, label: u64 },
    /// Learning was stopped or resumed.
    Learning(bool),
    /// A label that counts at once was given, or taken back.
    Correction { id: u64, label: Option<u64> },
    /// The stream's group changed it.
    Group(GroupRecord),
}

/// A segment open for appending.
#[derive(Debug)]
pub struct Log {
    /// Shared with the keeper, which syncs it.
    file: Arc<File>,
    /// Where the next frame goes: the end of the last whole one.
    end: u64,
    /// Number of the first record, and of the next one.
    first: u64,
    next: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// A new segment of a stream whose first record has this number. It is on the disk when this returns.
    pub fn create(path: &Path, first: u64, whose: Identity) -> io::Result<Self> {
        // Written aside and renamed: the segment in use may be an empty one with the same number.
        let aside = path.with_extension("new");
        let make = || -> io::Result<File> {
            let mut options = File::options();
            let mut file = open_regular(&aside, options.create(true).truncate(true).read(true).write(true))?;
            file.write_all(&[*MAGIC, whose].concat())?;
            file.sync_all()?;
            std::fs::rename(&aside, path)?;
            sync_folder(path)?;
            Ok(file)
        };
        let file = make().inspect_err(|_| drop(std::fs::remove_file(&aside)))?;
        Ok(Self { file: Arc::new(file), end: EMPTY, first, next: first, buffer: Vec::new() })
    }

    /// Number of the first record.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// The segment's file, for syncing in another thread.
    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Whether somebody else has removed the file or changed its length: what is written then may be lost. Says what.
    pub fn harm(&self) -> Option<String> {
        let found = match self.file.metadata() {
            Ok(found) => found,
            Err(e) => return Some(format!("its state cannot be asked for: {e}")),
        };
        if watch::is_removed(&found) {
            return Some("it was removed, or another file was put in its place".into());
        }
        let (expected, got) = (self.end, found.len());
        (got != expected).then(|| format!("it has {got} bytes, and {expected} were written"))
    }

    /// Whether the file is at its path, and is what was written.
    pub fn harm_at(&self, path: &Path) -> Option<String> {
        self.harm().or_else(|| watch::elsewhere(&self.file, path))
    }

    /// Puts samples into the next write, as one record.
    pub fn stage_samples(&mut self, samples: &Samples) {
        self.frame(|out| put_samples(out, samples));
    }

    /// Puts a label into the next write.
    pub fn stage_feedback(&mut self, id: u64, label: u64) {
        self.frame(|out| {
            out.push(FEEDBACK);
            out.extend(id.to_le_bytes());
            out.extend(label.to_le_bytes());
        });
    }

    /// Puts a label that counts at once into the next write; without one, that it was taken back.
    pub fn stage_correction(&mut self, id: u64, label: Option<u64>) {
        self.frame(|out| {
            out.push(CORRECTION);
            out.extend(id.to_le_bytes());
            out.push(u8::from(label.is_some()));
            out.extend(label.unwrap_or(0).to_le_bytes());
        });
    }

    /// Puts what a group does into the next write.
    pub fn stage_group(&mut self, record: &GroupRecord) {
        self.frame(|out| {
            out.push(GROUP);
            record.write(out);
        });
    }

    /// Puts the state of learning into the next write.
    pub fn stage_learning(&mut self, learning: bool) {
        self.frame(|out| out.extend([LEARNING, u8::from(learning)]));
    }

    fn frame(&mut self, payload: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        self.buffer.extend([0; FRAME]);
        self.buffer.extend(self.next.to_le_bytes());
        payload(&mut self.buffer);
        let (length, crc) = {
            let payload = &self.buffer[start + FRAME..];
            (payload.len() as u32, crc32fast::hash(payload))
        };
        self.buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.buffer[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        let own = crc32fast::hash(&self.buffer[start..start + 8]);
        self.buffer[start + 8..start + FRAME].copy_from_slice(&own.to_le_bytes());
        self.next += 1;
    }

    /// Writes what was staged, and with `sync` waits for the disk. On an error the log is as it was before.
    pub fn commit(&mut self, sync: bool) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let records = self.staged_records();
        let mut file = &*self.file;
        let mut written = file.write_all(&self.buffer);
        if written.is_ok() && sync {
            written = file.sync_data();
        }
        let length = self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        match written {
            Ok(()) => {
                self.end += length;
                Ok(())
            }
            Err(e) => {
                self.next -= records;
                let _ = file.set_len(self.end);
                let _ = file.seek(SeekFrom::Start(self.end));
                Err(e)
            }
        }
    }

    fn staged_records(&self) -> u64 {
        let (mut at, mut records) = (0, 0);
        while let Some(length) = self.buffer.get(at..at + 4) {
            at += FRAME + u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
            records += 1;
        }
        records
    }
}

/// Makes a new or renamed file of a folder durable.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn put_samples(out: &mut Vec<u8>, samples: &Samples) {
    let flag = |there: bool, flag: u8| if there { flag } else { 0 };
    out.push(SAMPLES);
    out.extend((samples.len() as u32).to_le_bytes());
    out.extend((samples.features().dim() as u32).to_le_bytes());
    out.push(
        flag(samples.learn().is_some(), HAS_LEARN)
            | flag(samples.times().is_some(), HAS_TIMES)
            | flag(samples.views().is_some(), HAS_VIEWS),
    );
    out.extend(samples.learn().into_iter().flatten().map(|&learn| u8::from(learn)));
    for time in samples.times().into_iter().flatten() {
        out.extend(time.to_le_bytes());
    }
    for &count in samples.views().into_iter().flat_map(|views| &views.counts) {
        out.extend((count as u32).to_le_bytes());
    }
    put_floats(out, samples.features().data());
    if let Some(views) = samples.views() {
        put_floats(out, views.features.data());
    }
}

fn put_floats(out: &mut Vec<u8>, values: &[f32]) {
    let start = out.len();
    out.resize(start + values.len() * 4, 0);
    for (slot, value) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *slot = value.to_le_bytes();
    }
}

/// A record from its payload; `None` if the payload is not valid.
pub fn parse(payload: &[u8], number: u64) -> Option<Record> {
    let mut bytes = Bytes(payload);
    if bytes.u64()? != number {
        return None;
    }
    let record = match bytes.u8()? {
        SAMPLES => Record::Samples(parse_samples(&mut bytes)?),
        FEEDBACK => Record::Feedback { id: bytes.u64()?, label: bytes.u64()? },
        LEARNING => Record::Learning(bytes.u8()? != 0),
        CORRECTION => {
            let (id, given, label) = (bytes.u64()?, bytes.u8()? != 0, bytes.u64()?);
            Record::Correction { id, label: given.then_some(label) }
        }
        GROUP => Record::Group(GroupRecord::parse(bytes.take(bytes.0.len())?)?),
        _ => return None,
    };
    bytes.0.is_empty().then_some(record)
}

fn parse_samples(bytes: &mut Bytes<'_>) -> Option<Samples> {
    let (rows, dim) = (bytes.u32()? as usize, bytes.u32()? as usize);
    let flags = bytes.u8()?;
    let mut learn = None;
    if flags & HAS_LEARN != 0 {
        learn = Some(bytes.take(rows)?.iter().map(|&byte| byte != 0).collect());
    }
    let mut times = None;
    if flags & HAS_TIMES != 0 {
        let bits = bytes.take(rows.checked_mul(8)?)?;
        times = Some(f64::decode(bits));
    }
    let mut counts: Option<Vec<usize>> = None;
    if flags & HAS_VIEWS != 0 {
        let words = bytes.take(rows.checked_mul(4)?)?;
        counts = Some(u32::decode(words).into_iter().map(|count| count as usize).collect());
    }
    let features = bytes.features(rows, dim)?;
    let views = match counts {
        Some(counts) => Some(Views { features: bytes.features(counts.iter().sum(), dim)?, counts }),
        None => None,
    };
    Samples::new(features, learn, times, views).ok()
}

/// What is left of a payload.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn features(&mut self, rows: usize, dim: usize) -> Option<Features<'static>> {
        let bytes = self.take(rows.checked_mul(dim)?.checked_mul(4)?)?;
        Features::trusted(f32::decode(bytes), dim)
    }
}

#[cfg(test)]
mod tests;
