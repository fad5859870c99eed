//! Files that are written aside and renamed when they are complete: a reader sees the old file or the whole new
//! one, and an error leaves the old one as it was.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// How the name of a file that is not complete yet begins. One whose writer was killed stays.
pub const ASIDE_PREFIX: &str = ".ultta-";

/// A new file beside the one it will replace. Dropped without [`Aside::commit`], it is removed.
#[derive(Debug)]
pub struct Aside {
    file: BufWriter<NamedTempFile>,
    target: PathBuf,
}

impl Aside {
    /// Begins a file. Behind a link, the file the link points to will be replaced, not the link.
    pub fn create(path: &Path) -> Result<Self> {
        // Renaming over a device, a pipe or a folder would do harm.
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            let what = io::Error::other("expected a regular file or nothing at that place");
            return Err(Error::io("writing", path)(what));
        }
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let file = new_file(folder_of(&target)).map_err(Error::io("creating a file beside", &target))?;
        if let Some(found) = found {
            // Who may read a file stays as it was. Where the file system knows no permissions, nothing is lost.
            let _ = file.as_file().set_permissions(found.permissions());
        }
        Ok(Self { file: BufWriter::new(file), target })
    }

    /// Completes the file: it is on the disk under its name when this returns.
    pub fn commit(self) -> Result<()> {
        let Self { file, target } = self;
        let file = file.into_inner().map_err(|e| Error::io("writing", &target)(e.into_error()))?;
        file.as_file().sync_all().map_err(Error::io("writing", &target))?;
        file.persist(&target).map_err(|e| Error::io("renaming to", &target)(e.error))?;
        // The rename itself reaches the disk with its folder; not every system can sync a folder.
        if let Ok(folder) = File::open(folder_of(&target)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// The file that will be replaced.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a whole file aside, syncs it and renames it.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut aside = Aside::create(path)?;
    aside.write_all(bytes).map_err(Error::io("writing", path))?;
    aside.commit()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file is private by default. This one becomes a result: its permissions are those of every new
/// file, 0666 less the user's umask.
fn new_file(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE_PREFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write_atomically(&path, b"old").unwrap();
        let mut aside = Aside::create(&path).unwrap();
        aside.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(aside);
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["f".into()]));
        write_atomically(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["f".into()]));
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_atomically(folder.path(), b"").unwrap_err().to_string();
        assert!(error.contains("expected a regular file"), "{error}");
        let nowhere = write_atomically(&folder.path().join("none/f"), b"").unwrap_err();
        assert!(matches!(nowhere, Error::Io { doing: "creating a file beside", .. }));
    }

    /// A new file has the permissions that every new file has here; a replaced one keeps its own.
    #[cfg(unix)]
    #[test]
    fn the_umask_and_the_old_permissions_are_respected() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (plain, ours) = (folder.path().join("plain"), folder.path().join("ours"));
        fs::write(&plain, b"").unwrap();
        write_atomically(&ours, b"").unwrap();
        assert_eq!(mode(&ours), mode(&plain));
        for private in [0o600, 0o640] {
            fs::set_permissions(&ours, fs::Permissions::from_mode(private)).unwrap();
            write_atomically(&ours, b"again").unwrap();
            assert_eq!(mode(&ours), private);
        }
    }
}
