//! The write-ahead log of one stream: every observed row and every label, in order, before they teach.
//!
//! A segment file `log-<first>.wal` begins with eight bytes of magic and version. A record is framed by its length
//! and CRC-32 (u32 each, little-endian); its payload begins with its number. A frame that is cut short or broken
//! ends the log: what follows was never acknowledged under `sync`, or lies within the last interval.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"ULTTAW\x00\x01";
const FRAME: usize = 8;

/// Rows and what is known about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub dim: usize,
    pub features: Vec<f32>,
    pub learn: Option<Vec<bool>>,
    pub times: Option<Vec<f64>>,
    pub views: Vec<f32>,
    pub view_counts: Option<Vec<usize>>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.features.len() / self.dim.max(1)
    }

    /// Whether other rows can follow these in one block.
    pub fn joins(&self, other: &Rows) -> bool {
        self.dim == other.dim
            && self.times.is_some() == other.times.is_some()
            && self.view_counts.is_none()
            && other.view_counts.is_none()
    }

    /// Takes in rows that follow these.
    pub fn append(&mut self, other: &Rows) {
        if self.learn.is_some() || other.learn.is_some() {
            let (own, added) = (self.len(), other.len());
            let learn = self.learn.get_or_insert_with(|| vec![true; own]);
            match &other.learn {
                Some(marks) => learn.extend(marks),
                None => learn.resize(own + added, true),
            }
        }
        if let (Some(times), Some(added)) = (&mut self.times, &other.times) {
            times.extend(added);
        }
        self.features.extend_from_slice(&other.features);
    }
}

/// One thing that happened to a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Rows were observed.
    Rows(Rows),
    /// A delayed label arrived.
    Feedback { id: u64, label: u64 },
    /// Learning was stopped or resumed.
    Learning(bool),
}

/// A segment open for appending.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// Where the next frame goes: the end of the last whole one.
    end: u64,
    /// Number of the next record.
    next: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// A new segment whose first record has this number. It is on the disk when this returns.
    pub fn create(path: &Path, first: u64) -> io::Result<Self> {
        // Made aside: an empty segment of this number may be the one in use.
        let aside = path.with_extension("new");
        let make = || -> io::Result<File> {
            let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&aside)?;
            file.write_all(MAGIC)?;
            file.sync_all()?;
            std::fs::rename(&aside, path)?;
            sync_folder(path)?;
            Ok(file)
        };
        let file = make().inspect_err(|_| drop(std::fs::remove_file(&aside)))?;
        Ok(Self { file, end: MAGIC.len() as u64, next: first, buffer: Vec::new() })
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// A handle for syncing in another thread.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts a row record into the next write.
    pub fn stage_rows(&mut self, rows: &Rows) {
        self.frame(|out| put_rows(out, rows));
    }

    /// Puts a label into the next write.
    pub fn stage_feedback(&mut self, id: u64, label: u64) {
        self.frame(|out| {
            out.push(2);
            out.extend(id.to_le_bytes());
            out.extend(label.to_le_bytes());
        });
    }

    /// Puts the state of learning into the next write.
    pub fn stage_learning(&mut self, learning: bool) {
        self.frame(|out| out.extend([3, u8::from(learning)]));
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
        self.next += 1;
    }

    /// Writes what was staged, and syncs if asked. On an error the log is as it was before.
    pub fn commit(&mut self, sync: bool) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let records = self.staged();
        let written = self.file.write_all(&self.buffer).and_then(|()| match sync {
            true => self.file.sync_data(),
            false => Ok(()),
        });
        let length = self.buffer.len() as u64;
        self.buffer.clear();
        if self.buffer.capacity() > 1 << 20 {
            self.buffer.shrink_to(1 << 20);
        }
        match written {
            Ok(()) => {
                self.end += length;
                Ok(())
            }
            Err(e) => {
                self.next -= records;
                let _ = self.file.set_len(self.end);
                let _ = self.file.seek(SeekFrom::Start(self.end));
                Err(e)
            }
        }
    }

    fn staged(&self) -> u64 {
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

/// How reading a segment ended.
#[derive(Debug)]
pub struct Tail {
    /// The segment, open for appending behind its last whole record.
    pub log: Log,
    /// Bytes behind the last whole record, which were cut off.
    pub dropped: u64,
}

/// Whether a segment was begun: without its magic nothing was acknowledged into it.
pub fn is_segment(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *MAGIC
}

/// Reads a segment record by record and opens it for appending. A broken tail is cut off; it is kept beside the
/// segment as `.torn`.
pub fn replay(path: &Path, first: u64, mut record: impl FnMut(Record)) -> io::Result<Tail> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    let mut reader = io::BufReader::with_capacity(1 << 20, &file);
    let whole = reader.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    if !whole {
        // A segment is created before anything is acknowledged into it.
        drop(reader);
        keep_torn(path, &mut file, 0)?;
        return Ok(Tail { log: Log::create(path, first)?, dropped: length });
    }
    let (mut end, mut next) = (MAGIC.len() as u64, first);
    let mut payload = Vec::new();
    loop {
        let mut frame = [0; FRAME];
        if reader.read_exact(&mut frame).is_err() {
            break;
        }
        let size = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
        let crc = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
        if u64::from(size) > length - end {
            break;
        }
        payload.resize(size as usize, 0);
        if reader.read_exact(&mut payload).is_err() || crc32fast::hash(&payload) != crc {
            break;
        }
        let Some(parsed) = parse(&payload, next) else { break };
        record(parsed);
        end += FRAME as u64 + u64::from(size);
        next += 1;
    }
    drop(reader);
    let dropped = length - end;
    if dropped > 0 {
        keep_torn(path, &mut file, end)?;
        file.set_len(end)?;
        file.sync_all()?;
    }
    file.seek(SeekFrom::Start(end))?;
    Ok(Tail { log: Log { file, end, next, buffer: Vec::new() }, dropped })
}

fn keep_torn(path: &Path, file: &mut File, from: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    // Without room for it, the tail is not kept: it holds nothing that was acknowledged.
    let _ = File::create(path.with_extension("torn")).and_then(|mut aside| io::copy(file, &mut aside));
    Ok(())
}

fn put_rows(out: &mut Vec<u8>, rows: &Rows) {
    out.push(1);
    out.extend((rows.len() as u32).to_le_bytes());
    out.extend((rows.dim as u32).to_le_bytes());
    let flags = u8::from(rows.learn.is_some())
        | u8::from(rows.times.is_some()) << 1
        | u8::from(rows.view_counts.is_some()) << 2;
    out.push(flags);
    if let Some(learn) = &rows.learn {
        out.extend(learn.iter().map(|&l| u8::from(l)));
    }
    for time in rows.times.iter().flatten() {
        out.extend(time.to_le_bytes());
    }
    for &count in rows.view_counts.iter().flatten() {
        out.extend((count as u32).to_le_bytes());
    }
    put_floats(out, &rows.features);
    put_floats(out, &rows.views);
}

fn put_floats(out: &mut Vec<u8>, values: &[f32]) {
    let start = out.len();
    out.resize(start + values.len() * 4, 0);
    for (slot, value) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *slot = value.to_le_bytes();
    }
}

/// A record from its payload; `None` if it makes no sense.
pub fn parse(payload: &[u8], number: u64) -> Option<Record> {
    let mut bytes = Bytes(payload);
    if bytes.u64()? != number {
        return None;
    }
    let record = match bytes.u8()? {
        1 => {
            let (rows, dim) = (bytes.u32()? as usize, bytes.u32()? as usize);
            let flags = bytes.u8()?;
            let learn = match flags & 1 {
                0 => None,
                _ => Some(bytes.take(rows)?.iter().map(|&b| b != 0).collect()),
            };
            let times = match flags & 2 {
                0 => None,
                _ => Some((0..rows).map(|_| bytes.u64().map(f64::from_bits)).collect::<Option<_>>()?),
            };
            let view_counts: Option<Vec<usize>> = match flags & 4 {
                0 => None,
                _ => Some((0..rows).map(|_| bytes.u32().map(|n| n as usize)).collect::<Option<_>>()?),
            };
            let features = bytes.floats(rows.checked_mul(dim)?)?;
            let views: usize = view_counts.iter().flatten().sum();
            let views = bytes.floats(views.checked_mul(dim)?)?;
            Record::Rows(Rows { dim, features, learn, times, views, view_counts })
        }
        2 => Record::Feedback { id: bytes.u64()?, label: bytes.u64()? },
        3 => Record::Learning(bytes.u8()? != 0),
        _ => return None,
    };
    bytes.0.is_empty().then_some(record)
}

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

    fn floats(&mut self, n: usize) -> Option<Vec<f32>> {
        Some(self.take(n.checked_mul(4)?)?.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let plain = Rows { dim: 2, features: vec![1.0, 0.0, 0.6, 0.8], ..Default::default() };
        let full = Rows {
            dim: 2,
            features: vec![0.0, 1.0],
            learn: Some(vec![false]),
            times: Some(vec![2.5]),
            views: vec![1.0, 0.0, 0.0, 1.0],
            view_counts: Some(vec![2]),
        };
        vec![
            Record::Rows(plain),
            Record::Feedback { id: 1, label: 0 },
            Record::Learning(false),
            Record::Rows(full),
        ]
    }

    fn write(path: &Path, first: u64) -> Vec<u64> {
        let mut log = Log::create(path, first).unwrap();
        let mut ends = vec![log.bytes()];
        for record in records() {
            match &record {
                Record::Rows(rows) => log.stage_rows(rows),
                Record::Feedback { id, label } => log.stage_feedback(*id, *label),
                Record::Learning(learning) => log.stage_learning(*learning),
            }
            log.commit(false).unwrap();
            ends.push(log.bytes());
        }
        ends
    }

    fn read(path: &Path, first: u64) -> (Vec<Record>, Tail) {
        let mut found = Vec::new();
        let tail = replay(path, first, |r| found.push(r)).unwrap();
        (found, tail)
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log-7.wal");
        write(&path, 7);
        let (found, tail) = read(&path, 7);
        assert_eq!(found, records());
        assert_eq!((tail.log.next(), tail.dropped), (11, 0));
    }

    #[test]
    fn a_log_cut_anywhere_keeps_its_whole_records_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log-0.wal");
        let ends = write(&path, 0);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|&&end| end <= cut as u64).count().saturating_sub(1);
            let (found, mut tail) = read(&path, 0);
            assert_eq!(found, records()[..whole], "cut at {cut}");
            tail.log.stage_feedback(9, 9);
            tail.log.commit(true).unwrap();
            let (again, tail) = read(&path, 0);
            assert_eq!(again.len(), whole + 1, "cut at {cut}");
            assert_eq!(tail.dropped, 0);
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_log_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log-0.wal");
        let ends = write(&path, 0);
        let bytes = std::fs::read(&path).unwrap();
        for at in MAGIC.len()..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            std::fs::write(&path, &broken).unwrap();
            let whole = ends.iter().filter(|&&end| end <= at as u64).count() - 1;
            let (found, tail) = read(&path, 0);
            assert_eq!(found, records()[..whole], "flipped at {at}");
            assert!(tail.dropped > 0);
            assert!(path.with_extension("torn").exists());
        }
    }

    #[test]
    fn rows_join_only_where_they_are_alike() {
        let plain = Rows { dim: 2, features: vec![1.0, 0.0], ..Default::default() };
        let marked = Rows { learn: Some(vec![false]), ..plain.clone() };
        let timed = Rows { times: Some(vec![1.0]), ..plain.clone() };
        assert!(plain.joins(&marked) && !plain.joins(&timed));
        let mut both = plain.clone();
        both.append(&marked);
        both.append(&plain);
        assert_eq!(both.learn, Some(vec![true, false, true]));
        assert_eq!(both.len(), 3);
    }
}
