//! Doors for the fuzzers and the replay of their corpus (`fuzz/readers.rs`); no part of the interface.

use std::io;
use std::path::Path;

use crate::log;

/// Reads a segment of the write-ahead log as a start of the service does. Gives the number of its whole records.
pub fn log(path: &Path) -> io::Result<u64> {
    let mut records = 0;
    log::replay(path, 0, |_| records += 1)?;
    Ok(records)
}

/// Parses the payload of a record, whatever its checksum. Whether it made sense.
pub fn record(payload: &[u8]) -> bool {
    log::parse(payload, 0).is_some()
}
