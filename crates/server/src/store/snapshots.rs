//! Snapshots of a stream: each file has its label and its digest in it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use ultta::{Error, Result, State};
use ultta_formats::read_regular;

use super::look::reason;
use super::{Folder, MOST_FILE, digest, io_error};
use crate::log::sync_folder;
use crate::streams::check_name;

/// In the metadata of a snapshot: the SHA-256 of the file without this entry.
const SEAL: &str = "server.sha256";

/// In the metadata of a snapshot: its label, so that another one under its name is noticed.
const LABEL: &str = "server.label";

impl Folder {
    /// Labels and sizes of the snapshots, by label. One that is missing has no bytes.
    pub fn snapshots(&self) -> Vec<(String, u64)> {
        let listed = self.manifest().snapshots.clone().unwrap_or_default();
        let size = |label: &String| fs::metadata(self.snapshot_path(label)).map_or(0, |found| found.len());
        listed.into_iter().map(|label| (label.clone(), size(&label))).collect()
    }

    /// Labels of the snapshots that are there.
    pub(super) fn snapshot_files(&self) -> Result<BTreeSet<String>> {
        let folder = self.path.join("snapshots");
        let io_error = |e| io_error("reading", &folder, e);
        let mut found = BTreeSet::new();
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(io_error)?,
        };
        for entry in entries {
            let name = entry.map_err(io_error)?.file_name().to_string_lossy().into_owned();
            found.extend(
                name.strip_suffix(".safetensors").filter(|l| check_name(l).is_ok()).map(String::from),
            );
        }
        Ok(found)
    }

    pub fn save_snapshot(&self, label: &str, state: &State) -> Result<()> {
        self.demand_own()?;
        let path = self.snapshot_path(label);
        let mut sealed = state.clone();
        sealed.metadata.insert(LABEL.into(), label.into());
        sealed.metadata.insert(SEAL.into(), digest(&sealed)?.0);
        fs::create_dir_all(self.path.join("snapshots")).map_err(|e| io_error("creating", &path, e))?;
        sealed.save(&path)?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))?;
        self.prints.remember(&path);
        self.list(|manifest| {
            manifest.snapshots.get_or_insert_default().insert(label.into());
        })
    }

    pub fn load_snapshot(&self, label: &str) -> Result<State> {
        let path = self.snapshot_path(label);
        if !path.exists() {
            return Err(Error::Format { reason: format!("the snapshot {label} is missing"), path });
        }
        let bytes = read_regular(&path, MOST_FILE).map_err(|e| io_error("opening", &path, e))?;
        let mut state = State::from_bytes(&bytes).map_err(|e| {
            let reason = format!("the snapshot {label} was changed: {e}");
            Error::Format { reason, path: path.clone() }
        })?;
        drop(bytes);
        let seal = state.metadata.remove(SEAL);
        if seal != Some(digest(&state)?.0) {
            let reason = format!("the snapshot {label} was changed: its digest is another");
            return Err(Error::Format { reason, path });
        }
        // Snapshots of earlier builds have no label in them.
        if let Some(other) = state.metadata.remove(LABEL).filter(|other| other != label) {
            let reason = format!("the snapshot {label} was exchanged: it is the one of the label {other}");
            return Err(Error::Format { reason, path });
        }
        Ok(state)
    }

    /// Removes a snapshot: from the list first, so that a crash in between leaves nothing that is missed.
    pub fn remove_snapshot(&self, label: &str) -> Result<()> {
        self.list(|manifest| {
            manifest.snapshots.get_or_insert_default().remove(label);
        })?;
        let path = self.snapshot_path(label);
        match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| io_error("removing", &path, e)),
        }
    }

    pub(super) fn snapshot_path(&self, label: &str) -> PathBuf {
        self.path.join("snapshots").join(format!("{label}.safetensors"))
    }

    /// Labels of the snapshots that are listed and missing.
    pub(super) fn lost_snapshots(&self) -> Vec<String> {
        let listed = || self.manifest().snapshots.clone().unwrap_or_default();
        let lost: Vec<String> =
            listed().into_iter().filter(|label| !self.snapshot_path(label).exists()).collect();
        // One that is removed meanwhile is not lost.
        if lost.is_empty() {
            lost
        } else {
            lost.into_iter().filter(|label| listed().contains(label)).collect()
        }
    }

    /// Snapshots that somebody else has changed while the server ran are noted as damage, each once.
    pub(super) fn look_at_snapshots(&self) -> Result<()> {
        let listed = self.manifest().snapshots.clone().unwrap_or_default();
        for label in listed {
            let path = self.snapshot_path(&label);
            if self.prints.fits(&path) || !path.exists() {
                continue;
            }
            if let Err(reason) = reason(self.load_snapshot(&label))
                && self.manifest().snapshots.as_ref().is_some_and(|listed| listed.contains(&label))
            {
                self.note_damage(&reason)?;
            }
            self.prints.remember(&path);
        }
        Ok(())
    }
}
