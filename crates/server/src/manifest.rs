//! The manifest of a stream's folder: which files belong to the stream, with digests of those that do not grow. What is
//! missing, exchanged or changed is found by it when the stream is opened, and named; nothing is guessed around.
//!
//! The manifest is written aside and renamed, and it is what makes a change count. A new segment of the log is made,
//! then listed, then written to; a base state is written, then listed, and only then what it replaces is removed. A
//! crash in between leaves files that are not listed: a base that nobody needs, a segment without a record, or what the
//! listed base has replaced. None of these is looked at again.
//!
//! The manifest names the stream: a folder that lies in another one's place is known by it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use ultta::{Error, Result};
use ultta_formats::{read_regular, write_atomically};

use crate::log::sync_folder;
use crate::store::io_error;
use crate::streams::check_name;

/// Name of the manifest in its folder.
pub const FILE: &str = "manifest.json";

const FORMAT: &str = "ultta-manifest-1";

/// No log ever has this many records: a larger number means damage.
const MOST_RECORDS: u64 = 1 << 62;

/// Bytes of a manifest, or of the settings, at most.
pub const MOST_BYTES: u64 = 16 << 20;

/// What belongs to a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: String,
    /// Name of the stream. `None` in streams of earlier builds, until they are opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Digest of the head.
    pub head: String,
    /// SHA-256 of `stream.json`.
    pub settings: String,
    /// The state that recovery starts from; `None` for a stream at its start.
    pub base: Option<Base>,
    /// Numbers of the first records of the log's segments, in order.
    pub logs: Vec<u64>,
    /// Whether the log has a mark (`mark.rs`). Streams of earlier builds get one when they are opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// Alarms of this generation, raised at rows before this id, were acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<(u64, u64)>,
    /// Labels of the snapshots; each file has its own digest in it. `None` in streams of earlier builds, until they are
    /// opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<BTreeSet<String>>,
    /// What was lost, until someone acknowledges it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// A base state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Number of the record that it stands before.
    pub number: u64,
    /// SHA-256 of its file.
    pub sha256: String,
    /// Bytes of its file. `None` in those of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The file: the manifest, and the SHA-256 of its text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    sha256: String,
}

impl Manifest {
    /// The manifest of a new stream: no base, and one segment that begins with record 0.
    pub fn new(name: &str, head: &str, settings: &[u8]) -> Self {
        let (head, settings) = (head.to_string(), sha256(settings));
        Self {
            format: FORMAT.into(),
            name: Some(name.into()),
            head,
            settings,
            base: None,
            logs: vec![0],
            marked: true,
            known: None,
            snapshots: Some(BTreeSet::new()),
            damage: None,
        }
    }

    /// Number of the record that recovery starts with.
    pub fn start(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.number)
    }

    /// Makes a base the one that recovery starts from. Its segment begins with the record of the same number.
    pub fn rebase(&mut self, base: Base) {
        let number = base.number;
        self.base = Some(base);
        self.logs.retain(|&first| first > number);
        self.logs.insert(0, number);
    }

    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let sealed = Sealed { manifest: self.clone(), sha256: self.digest(&path)? };
        let text = serde_json::to_vec_pretty(&sealed).map_err(|e| io_error("writing", &path, e.into()))?;
        write_atomically(&path, &text)?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))
    }

    /// Reads the manifest of a folder. One that is missing or damaged is an error: without it nothing else can be
    /// trusted.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let broken = |reason: String| Error::Format { reason, path: path.clone() };
        let bytes = match read_regular(&path, MOST_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(broken("the list of the stream's files is missing".into()));
            }
            read => read.map_err(|e| io_error("opening", &path, e))?,
        };
        let Sealed { manifest, sha256 } = serde_json::from_slice(&bytes)
            .map_err(|e| broken(format!("the list of the stream's files is damaged: {e}")))?;
        if manifest.format != FORMAT {
            return Err(broken(format!("format {:?}, this build reads {FORMAT:?}", manifest.format)));
        }
        let digits = |digest: &String| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
        let known = manifest.base.as_ref().is_none_or(|base| digits(&base.sha256));
        let follows = manifest.logs.first() == Some(&manifest.start())
            && manifest.logs.windows(2).all(|pair| pair[0] < pair[1])
            && manifest.logs.iter().all(|&first| first < MOST_RECORDS);
        let labelled = manifest.snapshots.iter().flatten().all(|label| check_name(label).is_ok());
        if manifest.digest(&path)? != sha256 || !follows || !known || !labelled {
            return Err(broken("the list of the stream's files is damaged: its digest is another".into()));
        }
        Ok(manifest)
    }

    fn digest(&self, path: &Path) -> Result<String> {
        let text = serde_json::to_vec(self).map_err(|e| io_error("writing", path, e.into()))?;
        Ok(self::sha256(&text))
    }
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut hash = Hash::default();
    hash.hash.update(bytes);
    hash.finish()
}

/// SHA-256 of what is written to it.
#[derive(Default)]
pub struct Hash {
    hash: Sha256,
    bytes: u64,
}

impl Hash {
    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// In hexadecimal digits.
    pub fn finish(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_manifest_is_read_as_written_and_any_change_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::new("a", "ab12", b"{}");
        manifest.logs.push(40);
        manifest.rebase(Base { number: 40, sha256: sha256(b"state"), bytes: Some(5) });
        assert_eq!((manifest.start(), &manifest.logs[..]), (40, &[40][..]));
        manifest.logs.push(90);
        manifest.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest);
        let path = folder.path().join(FILE);
        let text = fs::read(&path).unwrap();
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            // A change of white space between words changes no meaning.
            assert!(Manifest::read(folder.path()).is_err() || text[at].is_ascii_whitespace(), "byte {at}");
        }
        fs::remove_file(&path).unwrap();
        let error = Manifest::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
    }
}
