//! Memory maps: files whose contents are read as they are needed, so that a file may be larger than memory. And freed memory that
//! goes back to the system.

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

/// Has memory that is freed go back to the system, for programs that run for long and now and then hold much. glibc keeps it
/// otherwise: with every large piece that is freed it raises the size up to which it keeps pieces, to 64 MB in each of many
/// pools. Call it once, before other threads are started. With other allocators nothing is done.
#[allow(unsafe_code)]
pub fn give_freed_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(what: c_int, value: c_int) -> c_int;
        }
        // Smaller ones cost large requests up to a fifth more of a processor, larger ones keep hundreds of megabytes.
        const KEPT: c_int = 8 << 20;
        const TRIM_THRESHOLD: c_int = -1;
        const MMAP_THRESHOLD: c_int = -3;
        for what in [MMAP_THRESHOLD, TRIM_THRESHOLD] {
            // SAFETY: the function is glibc's, with this signature and these numbers; it changes how memory is obtained from then on,
            // and nothing that is held. That no other thread allocates meanwhile is asked of the caller.
            unsafe { mallopt(what, KEPT) };
        }
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
