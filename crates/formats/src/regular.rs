//! Regular files, and nothing else in their place: opening a pipe waits for whoever is at its other end, and a device may
//! go on for ever.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file as the options say. What is none is refused, and never waited for.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    demand_regular(&file.metadata()?)?;
    Ok(file)
}

/// Refuses what is no regular file.
pub fn demand_regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
    Err(io::Error::other(format!("it is {what}, expected a file")))
}

/// The contents of a regular file of at most so many bytes.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path, File::options().read(true))?;
    let length = file.metadata()?.len();
    let too_long = || io::Error::other(format!("a file of {length} bytes, expected at most {most}"));
    if length > most {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    // It may have grown meanwhile.
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(read_regular(&path, 3).unwrap(), b"abc");
        let error = read_regular(&path, 2).unwrap_err().to_string();
        assert!(error.contains("3 bytes, expected at most 2"), "{error}");
        // Far more than there is on the disk, and in memory.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_regular(&path, 1 << 20).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&pipe, &socket, &folder.path().to_owned(), &"/dev/zero".into(), &"/dev/full".into()] {
            assert!(read_regular(path, 10).is_err(), "{path:?}");
            assert!(crate::map_file(path).is_err(), "{path:?}");
            for options in [
                File::options().write(true),
                File::options().write(true).create(true).truncate(true),
                File::options().read(true).write(true),
            ] {
                assert!(open_regular(path, options).is_err(), "{path:?}");
            }
        }
    }
}
