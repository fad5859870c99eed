//! The lock of a data folder: two servers on one folder would destroy each other's logs. The folder of the streams is locked beside
//! the file, which somebody might remove; whichever is removed while the server runs is locked anew.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ultta::{Error, Result};
use ultta_formats::open_regular;

use crate::watch::elsewhere;

/// Held as long as the server runs.
pub struct Lock(Vec<(PathBuf, File)>);

impl Lock {
    pub fn take(folder: &Path, streams: &Path) -> Result<Self> {
        let mut held = Vec::new();
        for path in [folder.join("lock"), streams.to_owned()] {
            held.push((path.clone(), lock(&path)?));
        }
        Ok(Self(held))
    }

    /// Locks anew what is not what it was.
    pub fn look(&mut self) {
        for (path, held) in &mut self.0 {
            if elsewhere(held, path).is_none() {
                continue;
            }
            match lock(path) {
                Ok(anew) => {
                    tracing::error!(path = %path.display(), "somebody else removed what the server had locked; it is locked anew");
                    *held = anew;
                }
                Err(error) => tracing::error!(%error, "what the server had locked was removed"),
            }
        }
    }

    pub fn release(&mut self) {
        self.0.clear();
    }
}

fn lock(path: &Path) -> Result<File> {
    let failed = |source| Error::Io { doing: "opening", source, path: path.to_owned() };
    let is_folder = path.is_dir();
    let mut options = File::options();
    let options =
        if is_folder { options.read(true) } else { options.create(true).truncate(false).write(true) };
    let file = if is_folder { options.open(path) } else { open_regular(path, options) }.map_err(failed)?;
    #[cfg(unix)]
    {
        use rustix::fs::{FlockOperation, flock};
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Not every file system locks folders.
            Err(e) if !is_folder || e == rustix::io::Errno::WOULDBLOCK => {
                let taken = io::Error::new(io::ErrorKind::AddrInUse, "another server uses this data folder");
                return Err(failed(taken));
            }
            _ => {}
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_removed_is_locked_anew() {
        let folder = tempfile::tempdir().unwrap();
        let streams = folder.path().join("streams");
        fs::create_dir(&streams).unwrap();
        let take = || Lock::take(folder.path(), &streams);
        let mut held = take().unwrap();
        assert!(take().is_err());
        held.look();
        fs::remove_dir(&streams).unwrap();
        fs::remove_file(folder.path().join("lock")).unwrap();
        fs::create_dir(&streams).unwrap();
        held.look();
        assert!(take().is_err());
        held.release();
        assert!(take().is_ok());
    }
}
