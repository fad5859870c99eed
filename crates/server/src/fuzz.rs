//! Doors for the fuzzers and the replay of their corpus (`fuzz/readers.rs`); no part of the interface.

use std::io;
use std::path::Path;

use ultta::Config;

use crate::api::*;
use crate::log;
use crate::manifest::Manifest;
use crate::problem::Problem;
use crate::routes::{classify, json, manage, v2};
use crate::store::{Folder, Meta};
use crate::stream::Size;

/// Reads a segment of the write-ahead log as the service does when it starts. Returns the number of its whole records.
pub fn log(path: &Path) -> io::Result<u64> {
    let mut records = 0;
    log::foreign(path, *b"a stream")?;
    log::replay(path, 0, |_| records += 1)?;
    Ok(records)
}

/// Parses the payload of a record without looking at its checksum. Returns whether it is a valid record.
pub fn record(payload: &[u8]) -> bool {
    log::parse(payload, 0).is_some()
}

/// Reads a JSON body in the way of every call that takes one. Returns the number of calls that accept it.
pub fn request(bytes: &[u8]) -> usize {
    let size = Size { dim: 2, most_rows: 1000 };
    let created = json::<CreateStream>(bytes).and_then(|request| {
        let spec = manage::spec(request, |name| Err(Problem::not_found(name)))?;
        ultta::Session::new(spec.head, &spec.config)?;
        Ok(())
    });
    let cloned = json::<CloneStream>(bytes).and_then(|request| Ok(request.choice().resolve().map(drop)?));
    [
        classify::from_json(bytes, ClassifyQuery::default(), size).map(drop),
        created,
        cloned,
        json::<PicturesRequest>(bytes).map(drop),
        json::<FeedbackRequest>(bytes).map(drop),
        json::<ExplainRequest>(bytes).map(drop),
        json::<CorrectRequest>(bytes).map(drop),
        json::<SnapshotRequest>(bytes).map(drop),
        json::<RollbackRequest>(bytes).map(drop),
        json::<MergeRequest>(bytes).map(drop),
        json::<DropRequest>(bytes).map(drop),
    ]
    .iter()
    .filter(|read| read.is_ok())
    .count()
}

/// Reads a body of the Open Inference Protocol. Returns the number of its samples.
pub fn infer(bytes: &[u8], header_length: Option<usize>) -> Option<usize> {
    let size = Size { dim: 2, most_rows: 1000 };
    v2::read_body(bytes, header_length, size).ok().map(|samples| samples.len())
}

/// Opens a stream's folder whose list of files and settings are these, the list sealed anew so that what stands behind
/// its digest is tried. Whether it could be opened.
pub fn folder(path: &Path, manifest: &[u8], settings: &[u8]) -> bool {
    if std::fs::write(path.join("stream.json"), settings).is_err() {
        return false;
    }
    match serde_json::from_slice::<Manifest>(manifest) {
        Ok(manifest) => drop(manifest.write(path)),
        Err(_) => drop(std::fs::write(path.join("manifest.json"), manifest)),
    }
    let _ = serde_json::from_slice::<Meta>(settings).map(|meta| Config::from_saved(&meta.config));
    let Ok(folder) = Folder::open(path.to_owned(), true) else { return false };
    folder.meta().is_ok() && folder.head().is_ok() && folder.base().is_ok()
}
