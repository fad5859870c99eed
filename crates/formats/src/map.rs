//! Memory maps: files whose contents are read as they are needed, so that a file may be larger than memory. And freed memory that
//! goes back to the system.

use std::fs::File;
use std::path::Path;

pub use memmap2::Mmap;

use crate::{Error, Result, open_regular};

/// Maps a file into memory, read-only. An empty file gives an empty map.
pub fn map_file(path: &Path) -> Result<Mmap> {
    let file = open_regular(path, File::options().read(true)).map_err(Error::io("opening", path))?;
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

/// Has memory that is freed go back to the system, for programs that run for long and now and then hold much. glibc keeps freed
/// memory in pools, eight for each core, and in each of them as much as was ever freed in one piece, up to 64 MB. With this
/// there are as many pools as threads can run at once, and all of them together keep 16 MB (or 1 MB each) at their ends; what
/// is free between pieces that are held goes back with [`give_free_pages_back`]. Call it once, before other threads are
/// started. With other allocators nothing is done.
#[allow(unsafe_code)]
pub fn give_freed_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn mallopt(what: c_int, value: c_int) -> c_int;
        }
        const TRIM_THRESHOLD: c_int = -1;
        const MMAP_THRESHOLD: c_int = -3;
        const ARENA_MAX: c_int = -8;
        // Larger pieces have pages of their own. Smaller thresholds cost large requests up to a fifth more of a processor, larger
        // ones keep hundreds of megabytes.
        const LARGE: c_int = 8 << 20;
        let pools = std::thread::available_parallelism().map_or(1, usize::from).min(1024) as c_int;
        let kept = ((16 << 20) / pools).clamp(1 << 20, LARGE);
        for (what, value) in [(MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, kept), (ARENA_MAX, pools)] {
            // SAFETY: the function is glibc's, with this signature and these numbers; it changes how memory is obtained from then on,
            // and nothing that is held. That no other thread allocates meanwhile is asked of the caller.
            unsafe { mallopt(what, value) };
        }
    }
}

/// Gives free pages between pieces of memory that are held back to the system: after work that took much memory, since it
/// looks at all that is free. With allocators other than glibc's nothing is done.
#[allow(unsafe_code)]
pub fn give_free_pages_back() {
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
