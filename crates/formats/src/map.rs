//! Memory maps: files whose contents are read as they are needed, so that a file may be larger than memory. And memory that is
//! given back to the system.

use std::fs::File;
use std::path::Path;

pub use memmap2::Mmap;

use crate::{Error, Result};

/// Maps a file into memory, read-only. An empty file gives an empty map.
pub fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(Error::io("opening", path))?;
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        return Err(Error::io("opening", path)(std::io::Error::other("it is a folder, expected a file")));
    }
    map(&file).map_err(Error::io("mapping", path))
}

/// Maps an open file into memory, read-only.
#[allow(unsafe_code)]
pub(crate) fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read-only, and everything that reads it treats the bytes as untrusted. What `Mmap` asks
    // of its caller is that no other process shortens or rewrites the file while it is mapped. That cannot be
    // enforced; it holds for files that this project writes, since they are replaced by a rename and never
    // written in place, and it is asked of every other file that a user hands over (`docs/formats.md`).
    unsafe { Mmap::map(file) }
}

/// Gives memory that was freed back to the system. glibc keeps it, in pools of several threads, and may go on keeping
/// hundreds of megabytes after large requests; with other allocators nothing is done.
#[allow(unsafe_code)]
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function is glibc's, with this signature; it may be called at any time from any thread, and touches
        // only memory that no one holds.
        unsafe { malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_seen_as_bytes_and_an_empty_one_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&map_file(&path).unwrap()[..], b"abc");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&map_file(&path).unwrap()[..], b"");
        let refused = map_file(folder.path()).unwrap_err();
        assert!(matches!(refused, Error::Io { doing: "opening", .. }));
        assert!(refused.to_string().contains("it is a folder"), "{refused}");
        assert!(matches!(map_file(&folder.path().join("none")), Err(Error::Io { doing: "opening", .. })));
    }
}
