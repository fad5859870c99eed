//! The names of a server's streams, in `streams.json` beside their folders: a folder that is gone is noticed when the server
//! starts.
//!
//! A stream is listed after its folder was made, and taken off the list before its folder is removed. So a crash in between
//! leaves a folder that is not listed, and such a folder is a stream like any other: it is listed at the next start.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use ultta::{Error, Result};
use ultta_formats::{read_regular, write_atomically};

use crate::log::sync_folder;
use crate::manifest::MOST_BYTES;
use crate::store::io_error;
use crate::streams::check_name;
use crate::watch::Prints;

const FORMAT: &str = "ultta-streams-1";

/// The names of the streams.
pub struct Register {
    path: PathBuf,
    names: Mutex<BTreeSet<String>>,
    /// Whether there was a list.
    known: bool,
    prints: Prints,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    format: String,
    streams: BTreeSet<String>,
}

impl Register {
    /// Reads the list; there is none in folders of earlier builds. If it cannot be read, the server's log says so, and the
    /// folders that are there are what counts.
    pub fn open(path: PathBuf) -> Self {
        let names = read(&path).unwrap_or_else(|error| {
            tracing::error!(%error, "the list of the streams cannot be read; a stream whose folder is missing is not noticed this time");
            None
        });
        let (known, prints) = (names.is_some(), Prints::default());
        prints.remember(&path);
        Self { path, names: Mutex::new(names.unwrap_or_default()), known, prints }
    }

    /// Writes the list anew if somebody else has removed or changed it while the server ran.
    pub fn look(&self) {
        let current = self.lock();
        if self.prints.fits(&self.path) || (current.is_empty() && !self.path.exists()) {
            return;
        }
        if !matches!(read(&self.path), Ok(Some(found)) if found == *current) {
            let path = self.path.display();
            match self.write(current.clone()) {
                Ok(()) => {
                    tracing::error!(%path, "somebody else changed the list of the streams; it was written anew")
                }
                Err(error) => tracing::error!(%error, "somebody else changed the list of the streams"),
            }
        }
        self.prints.remember(&self.path);
    }

    /// Whether the list tells which streams there were, so that one that is not on it is new.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// The names that are listed.
    pub fn names(&self) -> BTreeSet<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists names beside those that are listed.
    pub fn add<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Result<()> {
        self.change(|listed| listed.extend(names.into_iter().cloned()))
    }

    /// Takes a name off the list.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.change(|listed| {
            listed.remove(name);
        })
    }

    /// Changes the list, on the disk and here. A list that stays the same is not written.
    fn change(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> Result<()> {
        let mut current = self.lock();
        let mut changed = current.clone();
        change(&mut changed);
        if changed != *current {
            self.write(changed.clone())?;
            *current = changed;
        }
        Ok(())
    }

    fn write(&self, streams: BTreeSet<String>) -> Result<()> {
        let listed = Listed { format: FORMAT.into(), streams };
        let text =
            serde_json::to_vec_pretty(&listed).map_err(|e| io_error("writing", &self.path, e.into()))?;
        write_atomically(&self.path, &text)?;
        self.prints.remember(&self.path);
        sync_folder(&self.path).map_err(|e| io_error("syncing", &self.path, e))
    }
}

fn read(path: &Path) -> Result<Option<BTreeSet<String>>> {
    let bytes = match read_regular(path, MOST_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| io_error("opening", path, e))?,
    };
    let broken = |reason: String| Error::Format { reason, path: path.to_owned() };
    let listed: Listed =
        serde_json::from_slice(&bytes).map_err(|e| broken(format!("not a list of streams: {e}")))?;
    if listed.format != FORMAT {
        return Err(broken(format!("format {:?}, this build reads {FORMAT:?}", listed.format)));
    }
    match listed.streams.iter().find(|name| check_name(name).is_err()) {
        Some(name) => Err(broken(format!("{name:?} is no name of a stream"))),
        None => Ok(Some(listed.streams)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_read_as_written_and_a_broken_list_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("streams.json");
        let register = Register::open(path.clone());
        assert!(register.names().is_empty() && !path.exists());
        register.add(&["b".to_string(), "a".to_string()]).unwrap();
        register.remove("b").unwrap();
        for harm in [fs::remove_file, |path: &PathBuf| fs::write(path, "{")] {
            harm(&path).unwrap();
            register.look();
            assert_eq!(read(&path).unwrap(), Some(BTreeSet::from(["a".to_string()])), "written anew");
        }
        assert_eq!(Register::open(path.clone()).names(), BTreeSet::from(["a".to_string()]));
        for broken in [
            "{",
            r#"{"format": "x", "streams": ["a"]}"#,
            r#"{"format": "ultta-streams-1", "streams": ["../a"]}"#,
        ] {
            fs::write(&path, broken).unwrap();
            assert!(read(&path).is_err() && Register::open(path.clone()).names().is_empty(), "{broken}");
        }
    }
}
