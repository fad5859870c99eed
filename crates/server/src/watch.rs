//! What files are known by while the server runs: one that is removed, cut or exchanged by somebody else is noticed then, and
//! not at the next start.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ultta_formats::regular::demand_regular;

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Which(u64, u64);

impl Which {
    #[cfg(unix)]
    fn of(found: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(found.dev(), found.ino())
    }

    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Self {
        Self(0, 0)
    }
}

/// Whether an open file has no name any more.
pub fn is_removed(found: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        found.nlink() == 0
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        false
    }
}

/// Why an open file or folder is not what is found at its path; `None` if it is.
pub fn elsewhere(file: &File, path: &Path) -> Option<String> {
    let (own, found) = match (file.metadata(), fs::metadata(path)) {
        (Ok(own), Ok(found)) => (own, found),
        (_, Err(e)) if e.kind() == io::ErrorKind::NotFound => return Some("it is gone".into()),
        (Err(e), _) | (_, Err(e)) => return Some(format!("its state cannot be asked for: {e}")),
    };
    (Which::of(&own) != Which::of(&found)).then(|| "another file is in its place".into())
}

/// What a file that nobody changes is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    which: Which,
    length: u64,
    modified: Option<SystemTime>,
}

impl Print {
    fn at(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        demand_regular(&found)?;
        Ok(Self { which: Which::of(&found), length: found.len(), modified: found.modified().ok() })
    }
}

/// Files that nobody changes, as they were when they were last known to be right.
#[derive(Debug, Default)]
pub struct Prints(Mutex<BTreeMap<PathBuf, Print>>);

impl Prints {
    /// The file is right as it is now.
    pub fn remember(&self, path: &Path) {
        match Print::at(path) {
            Ok(print) => drop(self.lock().insert(path.to_owned(), print)),
            Err(_) => self.forget(path),
        }
    }

    /// Whether a file is as it is remembered.
    pub fn fits(&self, path: &Path) -> bool {
        let found = Print::at(path).ok();
        found.is_some() && self.lock().get(path).copied() == found
    }

    /// The file is not right as it is.
    pub fn forget(&self, path: &Path) {
        self.lock().remove(path);
    }

    /// Forgets files that are not wanted any more.
    pub fn keep(&self, wanted: impl Fn(&Path) -> bool) {
        self.lock().retain(|path, _| wanted(path));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Print>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
