//! The names of a server's streams, in `streams.json` beside their folders: a folder that is gone is noticed when the server
//! starts.
//!
//! A stream is listed after its folder was made, and taken off the list before its folder is removed. So a crash in between
//! leaves a folder that is not listed, and such a folder is a stream like any other: it is listed at the next start.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use ultta::{Error, Result};
use ultta_formats::write_atomically;

use crate::log::sync_folder;
use crate::store::io_error;
use crate::streams::check_name;

const FORMAT: &str = "ultta-streams-1";

/// The names of the streams.
pub struct Register {
    path: PathBuf,
    names: Mutex<BTreeSet<String>>,
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
            BTreeSet::new()
        });
        Self { path, names: Mutex::new(names) }
    }

    /// The names that are listed.
    pub fn names(&self) -> BTreeSet<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let mut current = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = current.clone();
        change(&mut changed);
        if changed == *current {
            return Ok(());
        }
        let listed = Listed { format: FORMAT.into(), streams: changed };
        let text =
            serde_json::to_vec_pretty(&listed).map_err(|e| io_error("writing", &self.path, e.into()))?;
        write_atomically(&self.path, &text)?;
        sync_folder(&self.path).map_err(|e| io_error("syncing", &self.path, e))?;
        *current = listed.streams;
        Ok(())
    }
}

fn read(path: &PathBuf) -> Result<BTreeSet<String>> {
    let bytes = match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        read => read.map_err(|e| io_error("opening", path, e))?,
    };
    let broken = |reason: String| Error::Format { reason, path: path.clone() };
    let listed: Listed =
        serde_json::from_slice(&bytes).map_err(|e| broken(format!("not a list of streams: {e}")))?;
    if listed.format != FORMAT {
        return Err(broken(format!("format {:?}, this build reads {FORMAT:?}", listed.format)));
    }
    match listed.streams.iter().find(|name| check_name(name).is_err()) {
        Some(name) => Err(broken(format!("{name:?} is no name of a stream"))),
        None => Ok(listed.streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_a_broken_list_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("streams.json");
        let register = Register::open(path.clone());
        assert!(register.names().is_empty() && !path.exists());
        register.add(&["b".to_string(), "a".to_string()]).unwrap();
        register.remove("b").unwrap();
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
