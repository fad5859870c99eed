//! Reading a segment when its stream is opened: record by record, and what is broken is told from what a crash left unfinished.
//! Whatever a file holds, little more of it than a whole record is in memory, and every byte is looked at a few times at most.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ultta_formats::open_regular;

use super::{BEGINNING, Bytes, EMPTY, FRAME, Identity, Log, MAGIC, Record, SAMPLES, parse, sync_folder};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Bytes of an unfinished record that are kept beside the log.
const MOST_TORN: u64 = 256 << 20;
/// Bytes that are looked at in vain for a record behind a damaged one.
const MOST_VAIN: u64 = 16 << 30;

/// How reading a segment ended.
#[derive(Debug)]
pub struct Tail {
    /// The segment, open for appending behind its last whole record.
    pub log: Log,
    /// Bytes behind the last whole record. They were cut off, unless they are damage.
    pub dropped: u64,
    /// What was lost, if that is more than an unfinished write. Then nothing may be appended to the segment.
    pub damage: Option<Damage>,
}

/// A record in a segment that is neither whole nor an unfinished write.
#[derive(Debug, PartialEq)]
pub struct Damage {
    /// Its number.
    pub record: u64,
    /// Whole records behind it.
    pub behind: Whole,
    /// The file beside the segment that keeps it and all behind it.
    pub aside: PathBuf,
}

/// Whole records that are not learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Whole {
    pub records: u64,
    /// Rows in them.
    pub rows: u64,
}

impl std::fmt::Display for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |n: u64| if n == 1 { "" } else { "s" };
        let Self { records, rows } = self;
        write!(f, "{records} whole record{} ({rows} row{})", plural(*records), plural(*rows))
    }
}

/// Why a segment does not belong to this stream; `None` if it does, or if its beginning is cut off or damaged.
pub fn foreign(path: &Path, whose: Identity) -> io::Result<Option<String>> {
    let mut beginning = [0; BEGINNING];
    if let Err(e) = open_regular(path, File::options().read(true))?.read_exact(&mut beginning) {
        return if e.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(e) };
    }
    let (magic, found) = beginning.split_at(MAGIC.len());
    let (name, version) = magic.split_at(MAGIC.len() - 1);
    Ok(if !MAGIC.starts_with(name) {
        None
    } else if !MAGIC.ends_with(version) {
        Some(format!("version {} of the log, this build reads version {}", version[0], MAGIC[7]))
    } else {
        (found != whose).then(|| "it is a log of another stream".to_string())
    })
}

/// Reads a segment record by record and opens it for appending. A record that the file ends in is cut off; it is kept
/// beside the segment as `.torn`.
pub fn replay(path: &Path, first: u64, mut record: impl FnMut(Record)) -> io::Result<Tail> {
    let mut file = open_regular(path, File::options().read(true).write(true))?;
    let mut window = Window::over(&file)?;
    let length = window.length;
    let (mut end, mut next) = (0, first);
    if window.get(0, BEGINNING)?.is_some_and(|beginning| beginning.starts_with(MAGIC)) {
        end = EMPTY;
        while let Some((parsed, bytes)) = read_record(&mut window, end, next)? {
            record(parsed);
            end += bytes;
            next += 1;
        }
    }
    let dropped = length - end;
    let rest = rest(&mut window, end, next)?;
    let mut damage = None;
    if let Rest::Damaged(behind) = rest {
        let aside = path.with_extension(format!("damaged-{next}"));
        copy(&file, end, u64::MAX, &aside)?;
        damage = Some(Damage { record: next, behind, aside });
    } else if dropped > 0 {
        if rest == Rest::Unfinished {
            // If the disk is full, the tail is not kept: it holds nothing that was acknowledged.
            let _ = copy(&file, end, MOST_TORN, &path.with_extension("torn"));
        }
        file.set_len(end)?;
        file.sync_all()?;
    }
    file.seek(SeekFrom::Start(end))?;
    Ok(Tail { log: Log { file: Arc::new(file), end, first, next, buffer: Vec::new() }, dropped, damage })
}

/// A file, a piece of it at a time.
struct Window<'f> {
    file: &'f File,
    length: u64,
    /// The piece, and where it begins.
    start: u64,
    piece: Vec<u8>,
}

impl<'f> Window<'f> {
    fn over(file: &'f File) -> io::Result<Self> {
        Ok(Self { file, length: file.metadata()?.len(), start: 0, piece: Vec::new() })
    }

    /// Whether a frame at a place is in the piece at hand.
    fn holds(&self, at: u64) -> bool {
        at >= self.start && at - self.start + FRAME as u64 <= self.piece.len() as u64
    }

    /// Where the next bytes are that were ever written: a file may have holes far larger than the disk.
    fn data_from(&self, at: u64) -> u64 {
        #[cfg(target_os = "linux")]
        match rustix::fs::seek(self.file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => return data,
            Err(rustix::io::Errno::NXIO) => return self.length.max(at),
            Err(_) => {}
        }
        at
    }

    /// Some bytes of the file; `None` if it ends before they do.
    fn get(&mut self, at: u64, length: usize) -> io::Result<Option<&[u8]>> {
        let Some(left) = self.length.checked_sub(at).filter(|left| *left >= length as u64) else {
            return Ok(None);
        };
        let inside = at >= self.start && at - self.start + length as u64 <= self.piece.len() as u64;
        if !inside {
            let wanted = length.max(usize::try_from(left).unwrap_or(PIECE).min(PIECE));
            if self.piece.capacity() > 2 * PIECE && wanted <= PIECE {
                self.piece = Vec::new();
            }
            self.piece.resize(wanted, 0);
            self.start = at;
            let mut file = self.file;
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut self.piece)?;
        }
        let from = (at - self.start) as usize;
        Ok(Some(&self.piece[from..from + length]))
    }

    /// Length and checksum of the payload behind a frame, if what is there is a frame and the file has room for its payload.
    fn frame(&mut self, at: u64) -> io::Result<Option<(u64, u32)>> {
        let Some((size, crc)) = self.get(at, FRAME)?.and_then(parse_frame) else { return Ok(None) };
        let size = size as u64;
        Ok((self.length - at - FRAME as u64 >= size).then_some((size, crc)))
    }

    /// Whether the payload of this size behind a frame has this checksum.
    fn is_whole(&mut self, at: u64, size: u64, crc: u32) -> io::Result<bool> {
        let (mut at, end) = (at + FRAME as u64, at + FRAME as u64 + size);
        let mut hash = crc32fast::Hasher::new();
        while at < end {
            let length = (end - at).min(PIECE as u64);
            hash.update(self.get(at, length as usize)?.unwrap_or_default());
            at += length;
        }
        Ok(hash.finalize() == crc)
    }
}

/// The record at a place and its bytes, frame included; `None` if what is there is no whole record.
fn read_record(window: &mut Window<'_>, at: u64, number: u64) -> io::Result<Option<(Record, u64)>> {
    let Some((size, crc)) = window.frame(at)? else { return Ok(None) };
    if !window.is_whole(at, size, crc)? {
        return Ok(None);
    }
    let payload = window.get(at + FRAME as u64, size as usize)?;
    let record = payload.and_then(|payload| parse(payload, number));
    Ok(record.map(|record| (record, FRAME as u64 + size)))
}

/// Length and checksum of a payload; `None` if the bytes are no frame.
fn parse_frame(frame: &[u8]) -> Option<(usize, u32)> {
    let mut bytes = Bytes(frame);
    let (size, crc, own) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
    (size > 0 && crc32fast::hash(&frame[..8]) == own).then_some((size as usize, crc))
}

/// What lies behind the last whole record.
#[derive(PartialEq)]
enum Rest {
    /// Nothing, or zeros: room that a file system gave and nothing was written to.
    Nothing,
    /// A record that the file ends in: the write that was under way when the process or the machine stopped.
    Unfinished,
    /// A record that is neither, and whole ones behind it.
    Damaged(Whole),
}

fn rest(window: &mut Window<'_>, from: u64, next: u64) -> io::Result<Rest> {
    let behind = whole_records(window, from, next)?;
    // A segment's beginning is whole before it is listed.
    if from == 0 || behind.records > 0 {
        return Ok(Rest::Damaged(behind));
    }
    let (mut at, mut zeros) = (window.data_from(from), true);
    while at < window.length && zeros {
        let length = (window.length - at).min(PIECE as u64);
        zeros = window.get(at, length as usize)?.is_none_or(|piece| piece.iter().all(|&byte| byte == 0));
        at = window.data_from(at + length);
    }
    if zeros {
        return Ok(Rest::Nothing);
    }
    let cut = match window.get(from, FRAME)? {
        None => true,
        Some(frame) => parse_frame(frame).is_some() && window.frame(from)?.is_none(),
    };
    Ok(if cut { Rest::Unfinished } else { Rest::Damaged(behind) })
}

/// Whole records from a place on, from a record's number on.
fn whole_records(window: &mut Window<'_>, from: u64, next: u64) -> io::Result<Whole> {
    let (mut at, mut whole) = (from, Whole::default());
    // A file may claim one record within the other. As many bytes as it has are looked at in vain, no more.
    let mut vain = window.length.saturating_sub(from).min(MOST_VAIN);
    while at < window.length {
        if !window.holds(at) {
            // A record may begin with zeros.
            at = at.max(window.data_from(at).saturating_sub(FRAME as u64));
        }
        match record_at(window, at, next, &mut vain)? {
            None => at += 1,
            Some((rows, size)) => {
                whole.records += 1;
                whole.rows += u64::from(rows);
                at += FRAME as u64 + size;
            }
        }
    }
    Ok(whole)
}

/// Rows and size of the whole record at a place.
fn record_at(window: &mut Window<'_>, at: u64, next: u64, vain: &mut u64) -> io::Result<Option<(u32, u64)>> {
    /// A record's number, its kind, and the rows of samples.
    const START: usize = 8 + 1 + 4;
    let Some((size, crc)) = window.frame(at)?.filter(|(size, _)| *size >= 8 && size <= vain) else {
        return Ok(None);
    };
    let start = window.get(at + FRAME as u64, START.min(size as usize))?.unwrap_or_default();
    let mut bytes = Bytes(start);
    if bytes.u64().is_none_or(|number| number < next) {
        return Ok(None);
    }
    let rows = if bytes.u8() == Some(SAMPLES) { bytes.u32() } else { None };
    if !window.is_whole(at, size, crc)? {
        *vain -= size;
        return Ok(None);
    }
    Ok(Some((rows.unwrap_or(0), size)))
}

/// Copies a segment that cannot be replayed. Returns its whole records.
pub fn set_aside(path: &Path, aside: &Path, first: u64) -> io::Result<Whole> {
    let file = open_regular(path, File::options().read(true))?;
    copy(&file, 0, u64::MAX, aside)?;
    whole_records(&mut Window::over(&file)?, 0, first)
}

/// Copies a file from a given byte on, some bytes at most; the copy is on the disk when this returns. Holes stay holes, and what
/// cannot be copied whole takes no room.
fn copy(file: &File, from: u64, most: u64, to: &Path) -> io::Result<()> {
    let mut window = Window::over(file)?;
    let end = window.length.min(from.saturating_add(most));
    let mut copy = open_regular(to, File::options().create(true).truncate(true).write(true))?;
    let mut copied = || -> io::Result<()> {
        copy.set_len(end.saturating_sub(from))?;
        let mut at = window.data_from(from);
        while at < end {
            let length = (end - at).min(PIECE as u64);
            copy.seek(SeekFrom::Start(at - from))?;
            copy.write_all(window.get(at, length as usize)?.unwrap_or_default())?;
            at = window.data_from(at + length);
        }
        copy.sync_all()
    };
    copied().inspect_err(|_| drop(std::fs::remove_file(to)))?;
    sync_folder(to)
}
