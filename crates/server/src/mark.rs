//! The mark of a stream's log: the number up to which its records are known to be on the disk. It is written behind every
//! sync, so it never runs ahead of the log; a log that ends before it was cut off, and not by a crash.
//!
//! The file has two places for the number, each with its checksum and in a sector of its own. They are written in turns, so
//! that one of them is whole whatever moment a crash comes at.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ultta::{Error, Result};
use ultta_formats::open_regular;

use crate::log::sync_folder;
use crate::store::io_error;
use crate::watch::elsewhere;

/// Name of the mark in its folder.
pub const FILE: &str = "synced";

/// Bytes from one place to the other.
const SECTOR: usize = 512;
/// Bytes of a place: the number and its checksum.
const PLACE: usize = 12;
/// Bytes of the file.
const BYTES: usize = SECTOR + PLACE;

/// The mark of one stream's log.
#[derive(Debug)]
pub struct Mark {
    path: PathBuf,
    marked: Mutex<Marked>,
}

#[derive(Debug)]
struct Marked {
    file: File,
    number: u64,
    /// The place that is written next.
    next: usize,
}

impl Mark {
    /// Makes the mark of a log that has nothing on the disk yet. The file is on the disk when this returns.
    pub fn create(folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        make(&path, 0).map(drop).map_err(|e| io_error("creating", &path, e))
    }

    /// Opens the mark of a folder. One that is missing or damaged is an error.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let broken = |reason: &str| Error::Format { reason: reason.into(), path: path.clone() };
        let mut file = match open_regular(&path, File::options().read(true).write(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(broken("the mark of the log's end is missing"));
            }
            opened => opened.map_err(|e| io_error("opening", &path, e))?,
        };
        let mut bytes = Vec::new();
        let most = BYTES as u64;
        (&mut file).take(most).read_to_end(&mut bytes).map_err(|e| io_error("reading", &path, e))?;
        let numbers = [0, SECTOR].map(|at| number(bytes.get(at..at + PLACE)?));
        // The older one, or the one that is not whole, is written next.
        let next = usize::from(numbers[1] < numbers[0]);
        let number = numbers[1 - next].ok_or_else(|| broken("the mark of the log's end is damaged"))?;
        Ok(Self { path, marked: Mutex::new(Marked { file, number, next }) })
    }

    /// Records before this number are known to be on the disk.
    pub fn number(&self) -> u64 {
        self.lock().number
    }

    /// All records before this number are on the disk.
    pub fn advance(&self, number: u64) -> io::Result<()> {
        let mut marked = self.lock();
        if number <= marked.number {
            return Ok(());
        }
        let at = (marked.next * SECTOR) as u64;
        marked.file.seek(SeekFrom::Start(at))?;
        marked.file.write_all(&place(number))?;
        marked.number = number;
        marked.next = 1 - marked.next;
        Ok(())
    }

    /// Whether somebody else has removed, cut or exchanged the file. Says what.
    pub fn harm(&self) -> Option<String> {
        let marked = self.lock();
        let cut = match marked.file.metadata() {
            Ok(found) => (found.len() < BYTES as u64).then(|| "it was cut off".to_string()),
            Err(e) => Some(format!("its state cannot be asked for: {e}")),
        };
        cut.or_else(|| elsewhere(&marked.file, &self.path))
    }

    /// Makes the file anew, with the number that is known.
    pub fn renew(&self) -> Result<()> {
        let mut marked = self.lock();
        let file = make(&self.path, marked.number).map_err(|e| io_error("creating", &self.path, e))?;
        (marked.file, marked.next) = (file, 0);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Marked> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file with this number in both places, in the place of whatever file is there.
fn make(path: &Path, number: u64) -> io::Result<File> {
    let mut bytes = vec![0; BYTES];
    bytes[..PLACE].copy_from_slice(&place(number));
    bytes[SECTOR..].copy_from_slice(&place(number));
    let aside = path.with_extension("new");
    let mut file = open_regular(&aside, File::options().create(true).truncate(true).read(true).write(true))?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    sync_folder(path)?;
    Ok(file)
}

fn place(number: u64) -> [u8; PLACE] {
    let mut place = [0; PLACE];
    place[..8].copy_from_slice(&number.to_le_bytes());
    place[8..].copy_from_slice(&checksum(number).to_le_bytes());
    place
}

fn number(place: &[u8]) -> Option<u64> {
    let (number, checksum_found) = place.split_first_chunk::<8>()?;
    let number = u64::from_le_bytes(*number);
    (checksum_found == checksum(number).to_le_bytes()).then_some(number)
}

/// Not that of the number alone: zeros are no mark.
fn checksum(number: u64) -> u32 {
    crc32fast::hash(&[*b"ultta-mk", number.to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_a_write_that_was_cut_short_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        Mark::create(folder.path()).unwrap();
        for number in [0, 1, 2, 300, 70_000] {
            let mark = Mark::open(folder.path()).unwrap();
            mark.advance(number).unwrap();
            mark.advance(number / 2).unwrap();
            assert_eq!(mark.number(), number, "it never goes back");
            assert_eq!(Mark::open(folder.path()).unwrap().number(), number);
        }
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        // Of two places one may be broken: the other tells at least what was told before.
        for at in (0..PLACE).chain(SECTOR..SECTOR + PLACE) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let mark = Mark::open(folder.path()).unwrap();
            assert!([300, 70_000].contains(&mark.number()), "byte {at}");
            mark.advance(70_001).unwrap();
            assert_eq!(Mark::open(folder.path()).unwrap().number(), 70_001, "byte {at}");
        }
        for bytes in [vec![], vec![0; 600], whole[..PLACE - 1].to_vec()] {
            std::fs::write(&path, &bytes).unwrap();
            assert!(Mark::open(folder.path()).unwrap_err().to_string().contains("is damaged"), "{bytes:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Mark::open(folder.path()).unwrap_err().to_string().contains("is missing"));
    }
}
