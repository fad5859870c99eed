//! A stream's folder: its head, its settings, the state it starts from, its log, its snapshots.
//!
//! ```text
//! <data_dir>/streams/<name>/manifest.json           which of the files below belong to the stream, and what was lost
//!                           stream.json             settings
//!                           head.safetensors        the head
//!                           base-<n>-<digest>.safetensors  the state before record n of the log
//!                           log-<n>.wal             records from n on
//!                           synced                  the number up to which records are known to be on the disk
//!                           log-<n>.damaged-<m>     what a damaged segment held from record m on
//!                           snapshots/<label>.safetensors
//!                           <file>.exchanged        what somebody else put in a file's place while the server ran
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use ultta::{Config, Error, Head, Result, State};
use ultta_formats::regular::demand_regular;
use ultta_formats::{ASIDE_PREFIX, read_regular, write_atomically};

use crate::clock::Arrivals;
use crate::log::{self, Log, sync_folder};
use crate::manifest::{self, Base, Hash, MOST_BYTES, Manifest, sha256};
use crate::mark::Mark;
use crate::settings::Durability;
use crate::watch::Prints;

mod look;
mod snapshots;

const FORMAT: &str = "ultta-stream-2";

const HEAD: &str = "head.safetensors";
const SETTINGS: &str = "stream.json";

/// Bytes of the note of what was lost, about, and what is said of what does not fit.
const MOST_NOTED: usize = 4 << 10;
const MORE: &str = "; and more, which the log of the server has";

/// Bytes of a head, or of a state whose length is not known, at most.
const MOST_FILE: u64 = 4 << 30;

/// Where earlier builds kept the note of what was lost.
const EARLIER_DAMAGE: &str = "damage.txt";

/// What `stream.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub format: String,
    /// The resolved configuration, as TOML.
    pub config: String,
    pub durability: Option<Durability>,
    /// The stream whose traffic this one is shown, and when that was created: another of its name is not it.
    pub shadow_of: Option<String>,
    #[serde(default)]
    pub source_created: Option<f64>,
    /// Seconds since 1970.
    pub created: f64,
    /// The group that it shares evidence with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// What a stream carries beside its session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extra {
    /// Times the state was replaced (reset, roll back, merge): sample ids count within a generation.
    pub generation: u64,
    pub arrivals: Arrivals,
    /// In a group over a broker: the number of the last message that is known.
    pub position: u64,
}

/// The folder of one stream. Clones are the same folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    manifest: Arc<Mutex<Manifest>>,
    mark: Arc<Mark>,
    /// The folder, whatever lies at its path. Where folders cannot be opened, there is none.
    own: Arc<Mutex<Option<File>>>,
    /// The files that do not grow, as they were when they were written or read.
    prints: Arc<Prints>,
    /// The text of the settings, once they are read.
    settings: Arc<OnceLock<Vec<u8>>>,
}

impl Folder {
    /// Makes the folder of a new stream: whole, or not at all. It may start from a state, learning or not.
    pub fn create(path: &Path, head: &Head, meta: &Meta, start: Option<&(State, bool)>) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = path.with_file_name(format!(".new-{name}"));
        let made = Self::make(path, &aside, &name, head, meta, start);
        // What was half made would keep its part of a full disk.
        made.inspect_err(|_| drop(fs::remove_dir_all(&aside)))
    }

    fn make(
        path: &Path,
        aside: &Path,
        name: &str,
        head: &Head,
        meta: &Meta,
        start: Option<&(State, bool)>,
    ) -> Result<()> {
        let io_error = |e| io_error("creating", path, e);
        let _ = fs::remove_dir_all(aside);
        fs::create_dir_all(aside.join("snapshots")).map_err(io_error)?;
        head.save(aside.join(HEAD))?;
        let settings = serde_json::to_vec_pretty(meta).map_err(|e| io_error(e.into()))?;
        write_atomically(&aside.join(SETTINGS), &settings)?;
        Mark::create(aside)?;
        let folder = Self::with(aside.to_owned(), Manifest::new(name, head.digest(), &settings))?;
        folder.create_log(0)?;
        match start {
            Some((state, learning)) => folder.write_base(state.clone(), 0, *learning, Extra::default())?,
            None => folder.manifest().write(aside)?,
        }
        fs::rename(aside, path).map_err(io_error)?;
        sync_folder(path).map_err(io_error)
    }

    /// Opens the folder of a stream. Every file that is listed must be there, and nothing may have been learnt into a
    /// segment that is not. With `adopt` it may have been another stream's: it was copied here.
    pub fn open(path: PathBuf, adopt: bool) -> Result<Self> {
        let manifest = Manifest::read(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(other) = manifest.name.as_ref().filter(|other| **other != name && !adopt) {
            let reason =
                format!("it is the folder of the stream {other}; put each folder back in its own place");
            return Err(Error::Format { reason, path });
        }
        if !manifest.marked {
            Mark::create(&path)?;
        }
        let folder = Self::with(path, manifest.clone())?;
        if !manifest.marked || manifest.name.as_ref() != Some(&name) {
            folder.list(|manifest| (manifest.marked, manifest.name) = (true, Some(name)))?;
        }
        if let Some(base) = &manifest.base {
            demand(&folder.base_path(base), "a base state")?;
        }
        for &first in &manifest.logs {
            let path = folder.log_path(first);
            demand(&path, "a segment of the log")?;
            let foreign =
                log::foreign(&path, folder.identity()).map_err(|e| io_error("opening", &path, e))?;
            if let Some(reason) = foreign {
                return Err(Error::Format { reason, path });
            }
        }
        // What lies before the base was replaced by it.
        let others = folder.numbers("log-", ".wal")?.into_iter().filter(|first| *first > manifest.start());
        for first in others.filter(|first| !manifest.logs.contains(first)) {
            let path = folder.log_path(first);
            if fs::metadata(&path).map_err(|e| io_error("opening", &path, e))?.len() > log::EMPTY {
                return Err(Error::Format {
                    reason: "a segment of the log with records in it is not listed in manifest.json".into(),
                    path,
                });
            }
        }
        folder.take_over()?;
        folder.remove_unfinished();
        for label in folder.manifest().snapshots.iter().flatten() {
            folder.prints.remember(&folder.snapshot_path(label));
        }
        Ok(folder)
    }

    /// Lists what earlier builds did not list: snapshots, and what was lost.
    fn take_over(&self) -> Result<()> {
        if self.manifest().snapshots.is_none() {
            let found = self.snapshot_files()?;
            self.list(|manifest| manifest.snapshots = Some(found))?;
        }
        let path = self.path.join(EARLIER_DAMAGE);
        match read_regular(&path, MOST_BYTES) {
            Ok(text) => self.note_damage(&String::from_utf8_lossy(&text))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(io_error("opening", &path, e)),
        }
        fs::remove_file(&path).map_err(|e| io_error("removing", &path, e))
    }

    /// Removes what was being written when the server was killed.
    fn remove_unfinished(&self) {
        for folder in [self.path.clone(), self.path.join("snapshots")] {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(ASIDE_PREFIX)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn with(path: PathBuf, manifest: Manifest) -> Result<Self> {
        let mark = Arc::new(Mark::open(&path)?);
        let (own, prints) = (Arc::new(Mutex::new(File::open(&path).ok())), Arc::new(Prints::default()));
        prints.remember(&path.join(manifest::FILE));
        let manifest = Arc::new(Mutex::new(manifest));
        Ok(Self { path, manifest, mark, own, prints, settings: Arc::default() })
    }

    /// Records before this number are known to be on the disk.
    pub fn synced(&self) -> u64 {
        self.mark.number()
    }

    /// All records before this number are on the disk now. If that cannot be noted, an earlier number stands.
    pub fn note_synced(&self, number: u64) {
        if let Err(error) = self.mark.advance(number) {
            tracing::warn!(path = %self.path.display(), %error, "how far the log is synced could not be noted");
        }
    }

    /// Which files belong to the stream.
    pub fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the stream's logs are known by: its settings, which have the time of its creation in them.
    fn identity(&self) -> log::Identity {
        let digits = self.manifest().settings.clone();
        std::array::from_fn(|i| {
            digits.get(2 * i..2 * i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0)
        })
    }

    /// Changes the manifest, on the disk and here.
    fn list(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        self.demand_own()?;
        let mut current = self.manifest();
        let mut changed = current.clone();
        change(&mut changed);
        changed.write(&self.path)?;
        self.prints.remember(&self.path.join(manifest::FILE));
        *current = changed;
        Ok(())
    }

    /// Removes a stream for good, whatever its folder holds; one whose folder is gone already is removed, too. It is gone
    /// with its name; what cannot be removed of it then is removed at the next start.
    pub fn remove(path: &Path) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut gone = path.with_file_name(format!(".gone-{name}"));
        for copy in 1.. {
            if fs::remove_dir_all(&gone).is_ok() || !gone.exists() {
                break;
            }
            gone = path.with_file_name(format!(".gone-{name}-{copy}"));
        }
        let io_error = |e| io_error("removing", path, e);
        match fs::rename(path, &gone) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(io_error)?,
        }
        if let Err(error) = sync_folder(path).and_then(|()| fs::remove_dir_all(&gone)) {
            tracing::warn!(stream = %name, %error, "some files of a deleted stream stay until the next start");
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn head(&self) -> Result<Head> {
        let path = self.path.join(HEAD);
        demand(&path, "the head")?;
        self.prints.remember(&path);
        let bytes = read_regular(&path, MOST_FILE).map_err(|e| io_error("opening", &path, e))?;
        let head = Head::from_bytes(&bytes).map_err(|e| match e {
            Error::Format { reason, .. } => Error::Format { reason, path: path.clone() },
            other => other,
        })?;
        let (expected, got) = (&self.manifest().head, head.digest());
        if got != expected {
            let reason = format!("it is another head: expected the one with digest {expected}, got {got}");
            return Err(Error::Format { reason, path });
        }
        Ok(head)
    }

    pub fn meta(&self) -> Result<Meta> {
        let path = self.path.join(SETTINGS);
        demand(&path, "the stream's settings")?;
        self.prints.remember(&path);
        let bytes = read_regular(&path, MOST_BYTES).map_err(|e| io_error("opening", &path, e))?;
        let broken = |reason| Error::Format { reason, path: path.clone() };
        let meta: Meta =
            serde_json::from_slice(&bytes).map_err(|e| broken(format!("not a stream's settings: {e}")))?;
        if meta.format != FORMAT {
            return Err(broken(format!("format {:?}, this build reads {FORMAT:?}", meta.format)));
        }
        if sha256(&bytes) != self.manifest().settings {
            return Err(broken("the stream's settings were changed: their digest is another".into()));
        }
        self.settings.get_or_init(|| bytes);
        Ok(meta)
    }

    /// Writes the state before a record and makes it the one that recovery starts from; on success what lies before it
    /// is of no more use. The segment that begins with the record must be there.
    pub fn write_base(&self, mut state: State, number: u64, learning: bool, extra: Extra) -> Result<()> {
        for (key, value) in [
            ("learning", learning.to_string()),
            ("generation", extra.generation.to_string()),
            ("latest", extra.arrivals.latest.to_bits().to_string()),
            ("position", extra.position.to_string()),
        ] {
            state.metadata.insert(format!("server.{key}"), value);
        }
        self.demand_own()?;
        let (sha256, bytes) = digest(&state)?;
        // Its name has its digest, so that two states before one record never meet in one file.
        let base = Base { number, sha256, bytes: Some(bytes) };
        let path = self.base_path(&base);
        state.save(&path)?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))?;
        self.list(|manifest| manifest.rebase(base))?;
        // What the base replaces is not looked at any more.
        let replaced = |name: &str| name.starts_with("base-") || name.starts_with("log-");
        self.prints.keep(|known| !replaced(&known.file_name().unwrap_or_default().to_string_lossy()));
        self.prints.remember(&path);
        Ok(())
    }

    /// The state that recovery starts from, as it was written.
    pub fn base(&self) -> Result<Option<State>> {
        let Some((bytes, path)) = self.base_bytes()? else { return Ok(None) };
        State::from_bytes(&bytes).map(Some).map_err(|e| Error::Format { reason: e.to_string(), path })
    }

    /// The file of the state that recovery starts from, as it was written, and its path.
    fn base_bytes(&self) -> Result<Option<(Vec<u8>, PathBuf)>> {
        let Some(base) = self.manifest().base.clone() else { return Ok(None) };
        let path = self.base_path(&base);
        self.prints.remember(&path);
        let broken = |reason: String| Error::Format { reason, path: path.clone() };
        let found = fs::metadata(&path).map_err(|e| io_error("opening", &path, e))?.len();
        if let Some(expected) = base.bytes.filter(|expected| *expected != found) {
            return Err(broken(format!(
                "the base state was changed: it has {found} bytes, expected {expected}"
            )));
        }
        let bytes = read_regular(&path, MOST_FILE).map_err(|e| io_error("opening", &path, e))?;
        if sha256(&bytes) != base.sha256 {
            return Err(broken("the base state was changed: its digest is another".into()));
        }
        Ok(Some((bytes, path)))
    }

    /// A new segment of the log.
    pub fn create_log(&self, first: u64) -> Result<Log> {
        self.demand_own()?;
        let path = self.log_path(first);
        Log::create(&path, first, self.identity()).map_err(|e| io_error("creating", &path, e))
    }

    /// A segment that is not written to any more is right as it is now.
    pub fn remember_log(&self, first: u64) {
        self.prints.remember(&self.log_path(first));
    }

    /// Lists a new segment: from here on it may be written to.
    pub fn list_log(&self, first: u64) -> Result<()> {
        self.list(|manifest| manifest.logs.push(first))
    }

    /// Removes bases and segments that the listed base has replaced. Returns how many.
    pub fn compact(&self) -> Result<usize> {
        self.demand_own()?;
        let Some(base) = self.manifest().base.clone() else { return Ok(0) };
        let (kept, mut replaced) = (self.base_path(&base), Vec::new());
        for name in self.names()? {
            if name.starts_with("base-") && name.ends_with(".safetensors") && self.path.join(&name) != kept {
                replaced.push(self.path.join(name));
            }
        }
        let segments = self.numbers("log-", ".wal")?.into_iter().filter(|&first| first < base.number);
        replaced.extend(segments.map(|first| self.log_path(first)));
        for path in &replaced {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error("removing", path, e)),
                _ => {}
            }
        }
        Ok(replaced.len())
    }

    /// Keeps a note of what was lost, until it is acknowledged. An earlier note stays beside it.
    pub fn note_damage(&self, text: &str) -> Result<()> {
        self.list(|manifest| {
            manifest.damage = Some(match manifest.damage.take() {
                Some(earlier) if earlier.contains(text) || earlier.ends_with(MORE) => earlier,
                Some(earlier) if earlier.len() > MOST_NOTED => earlier + MORE,
                Some(earlier) => format!("{earlier}; {text}"),
                None => text.to_string(),
            });
        })
    }

    /// What was lost and is not acknowledged yet. A snapshot that is put back is not lost any more.
    pub fn damage(&self) -> Option<String> {
        let lost = self.lost_snapshots().into_iter().map(|label| format!("the snapshot {label} is missing"));
        let notes: Vec<String> = self.manifest().damage.clone().into_iter().chain(lost).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Notes that alarms at rows before `id` of a generation were acknowledged.
    pub fn acknowledge_alarms(&self, generation: u64, id: u64) -> Result<()> {
        self.list(|manifest| manifest.known = Some((generation, id)))
    }

    /// Id of the row up to which alarms of a generation were acknowledged.
    pub fn alarms_known(&self, generation: u64) -> u64 {
        self.manifest().known.filter(|known| known.0 == generation).map_or(0, |known| known.1)
    }

    /// Removes the note of what was lost, and snapshots that are missing from the list. What was set aside stays.
    pub fn acknowledge_damage(&self) -> Result<()> {
        let lost = self.lost_snapshots();
        if self.manifest().damage.is_none() && lost.is_empty() {
            return Ok(());
        }
        self.list(|manifest| {
            manifest.damage = None;
            manifest.snapshots.get_or_insert_default().retain(|label| !lost.contains(label));
        })
    }

    fn base_path(&self, base: &Base) -> PathBuf {
        self.path.join(format!("base-{:020}-{}.safetensors", base.number, &base.sha256[..16]))
    }

    pub(crate) fn log_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("log-{number:020}.wal"))
    }

    /// The numbers of the files of one kind, in order.
    pub(crate) fn numbers(&self, prefix: &str, suffix: &str) -> Result<Vec<u64>> {
        let number = |name: &String| name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok();
        let mut numbers: Vec<u64> = self.names()?.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn names(&self) -> Result<Vec<String>> {
        let io_error = |e| io_error("reading", &self.path, e);
        let entries = fs::read_dir(&self.path).map_err(io_error)?;
        entries.map(|e| Ok(e.map_err(io_error)?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// SHA-256 of a state's file, which is not made for it, and its bytes.
fn digest(state: &State) -> Result<(String, u64)> {
    let mut hash = Hash::default();
    state.write_to(&mut hash).map_err(|e| io_error("writing", Path::new("a state"), e))?;
    let bytes = hash.bytes();
    Ok((hash.finish(), bytes))
}

/// A file that belongs to the stream must be there.
fn demand(path: &Path, what: &str) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) => demand_regular(&found).map_err(|e| io_error("opening", path, e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::Format {
            reason: format!("{what} is missing; put the file back from a copy, or delete the stream"),
            path: path.to_owned(),
        }),
        Err(e) => Err(io_error("opening", path, e)),
    }
}

impl Meta {
    pub fn new(
        config: &Config,
        durability: Option<Durability>,
        source: Option<(String, f64)>,
        created: f64,
        group: Option<String>,
    ) -> Self {
        let (shadow_of, source_created) = source.unzip();
        let (format, config) = (FORMAT.into(), config.to_toml());
        Self { format, config, durability, shadow_of, source_created, created, group }
    }
}

pub fn io_error(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { doing, source, path: path.to_owned() }
}
