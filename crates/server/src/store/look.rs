//! Whether a stream's files are what they were while the server runs, and writing anew what is not: all that they hold is in
//! memory, but for snapshots.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use ultta::{Error, Head, Result};
use ultta_formats::write_atomically;

use super::{Folder, HEAD, SETTINGS, io_error};
use crate::log::Log;
use crate::manifest::{FILE, Manifest};
use crate::mark;
use crate::watch::elsewhere;

/// A file that somebody else has removed, cut, changed or exchanged.
#[derive(Debug)]
pub struct Harm {
    path: PathBuf,
    reason: String,
}

impl std::fmt::Display for Harm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.file_name().unwrap_or_default().to_string_lossy(), self.reason)
    }
}

impl Folder {
    /// Refuses to write while something else lies at the path of the folder.
    pub(super) fn demand_own(&self) -> Result<()> {
        let refuse = |why: String| Err(io_error("opening", &self.path, io::Error::other(why)));
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match fs::metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => refuse("the stream's folder is missing".into()),
            Err(e) => refuse(e.to_string()),
            Ok(_) => match own.as_ref().and_then(|own| elsewhere(own, &self.path)) {
                Some(_) => refuse("another folder is in the place of the stream's; put it back".into()),
                None => Ok(()),
            },
        }
    }

    /// What somebody else has done to the files of the stream, whose log is this one. What the owner of the stream does
    /// to them must not be under way.
    pub fn look(&self, log: &Log) -> Vec<Harm> {
        if let Err(error) = self.demand_own() {
            let reason = match error {
                Error::Io { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            return vec![Harm { path: self.path.clone(), reason }];
        }
        let manifest = self.manifest().clone();
        let mut harms = Vec::new();
        let mut note = |path: PathBuf, reason: Option<String>| {
            harms.extend(reason.map(|reason| Harm { path, reason }));
        };
        note(self.log_path(log.first()), log.harm_at(&self.log_path(log.first())));
        for first in manifest.logs.iter().copied().filter(|first| *first != log.first()) {
            let path = self.log_path(first);
            note(path.clone(), self.changed(&path, || Err("it was removed or changed".to_string())));
        }
        note(self.path.join(mark::FILE), self.mark.harm());
        note(self.path.join(FILE), self.manifest_changed());
        let path = self.path.join(HEAD);
        note(path.clone(), self.changed(&path, || reason(self.head())));
        let path = self.path.join(SETTINGS);
        note(path.clone(), self.changed(&path, || reason(self.meta())));
        if let Some(base) = &manifest.base {
            let path = self.base_path(base);
            note(path.clone(), self.changed(&path, || reason(self.base_bytes())));
        }
        harms
    }

    /// What somebody else has done to the snapshots is noted as damage.
    pub fn look_at_copies(&self) {
        if let Err(error) = self.look_at_snapshots() {
            tracing::warn!(path = %self.path.display(), %error, "the loss of a snapshot could not be noted");
        }
    }

    /// What is wrong with a file, if it is not as it is remembered, and by its contents not what it was either.
    fn changed(
        &self,
        path: &Path,
        right: impl FnOnce() -> std::result::Result<(), String>,
    ) -> Option<String> {
        if self.prints.fits(path) {
            return None;
        }
        right().inspect_err(|_| self.prints.forget(path)).err()
    }

    fn manifest_changed(&self) -> Option<String> {
        // Held, so that nobody writes it meanwhile.
        let current = self.manifest();
        let path = self.path.join(FILE);
        if self.prints.fits(&path) {
            return None;
        }
        match Manifest::read(&self.path) {
            Ok(found) if found == *current => {
                self.prints.remember(&path);
                None
            }
            Ok(_) => Some("it is another list of files".into()),
            Err(error) => reason::<()>(Err(error)).err(),
        }
    }

    /// Puts what was done to these files right: what lies in their places is set aside, and head, settings and mark are
    /// written anew. A folder that is missing is made; one that is another one's is not touched. Log, base state and
    /// manifest are for the caller to write.
    pub fn restore(&self, harms: &[Harm], head: &Head) -> Result<()> {
        if let Err(error) = self.demand_own() {
            if self.path.exists() {
                return Err(error);
            }
            fs::create_dir_all(self.path.join("snapshots"))
                .map_err(|e| io_error("creating", &self.path, e))?;
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = File::open(&self.path).ok();
        }
        for Harm { path, .. } in harms.iter().filter(|harm| harm.path != self.path) {
            match fs::rename(path, free_name(path)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("setting aside", path, e));
                }
                _ => {}
            }
        }
        let (at_head, at_settings) = (self.path.join(HEAD), self.path.join(SETTINGS));
        if !at_settings.exists()
            && let Some(settings) = self.settings.get()
        {
            write_atomically(&at_settings, settings)?;
            self.prints.remember(&at_settings);
        }
        if !at_head.exists() {
            head.save(&at_head)?;
            self.prints.remember(&at_head);
        }
        if self.mark.harm().is_some() {
            self.mark.renew()?;
        }
        Ok(())
    }
}

/// A name for what is set aside, beside what was set aside earlier.
fn free_name(path: &Path) -> PathBuf {
    let name = |turn: usize| {
        path.with_extension(if turn == 1 { "exchanged".into() } else { format!("exchanged-{turn}") })
    };
    let taken = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    (1..).map(name).find(|path| !taken(path)).unwrap_or_else(|| name(1))
}

/// What an error says, without the path.
pub(super) fn reason<T>(found: Result<T>) -> std::result::Result<(), String> {
    match found {
        Ok(_) => Ok(()),
        Err(Error::Format { reason, .. }) => Err(reason),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err("it is missing".into())
        }
        Err(Error::Io { doing, source, .. }) => Err(format!("{doing}: {source}")),
        Err(other) => Err(other.to_string()),
    }
}
