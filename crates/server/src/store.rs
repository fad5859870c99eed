//! A stream's folder: its head, its settings, the state it starts from, its log, its snapshots.
//!
//! ```text
//! <data_dir>/streams/<name>/stream.json             settings
//!                           head.safetensors        the head
//!                           base-<n>.safetensors    the state before record n of the log
//!                           log-<n>.wal             records from n on
//!                           log-<n>.damaged-<m>     what a damaged segment held from record m on
//!                           damage.txt              what was lost, until it is acknowledged
//!                           snapshots/<label>.safetensors
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ultta::{Config, Error, Head, Result, State};
use ultta_formats::write_atomically;

use crate::clock::Arrivals;
use crate::log::{Log, sync_folder};
use crate::settings::Durability;

const FORMAT: &str = "ultta-stream-1";

/// The note of what was lost.
const DAMAGE: &str = "damage.txt";

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
}

/// What a stream carries beside its session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extra {
    /// Times the state was replaced (reset, roll back, merge): sample ids count within a generation.
    pub generation: u64,
    pub arrivals: Arrivals,
}

/// The folder of one stream.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Makes the folder of a new stream: whole, or not at all. It may start from a state, learning or not.
    pub fn create(
        path: &Path,
        head: &Head,
        config: &Config,
        meta: &Meta,
        start: Option<&(State, bool)>,
    ) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = path.with_file_name(format!(".new-{name}"));
        let io_error = |e| io_error("creating", path, e);
        let _ = fs::remove_dir_all(&aside);
        fs::create_dir_all(aside.join("snapshots")).map_err(io_error)?;
        debug_assert_eq!(meta.config, config.to_toml());
        head.save(aside.join("head.safetensors"))?;
        let text = serde_json::to_vec_pretty(meta).map_err(|e| io_error(e.into()))?;
        write_atomically(&aside.join("stream.json"), &text)?;
        let folder = Self::new(aside.clone());
        if let Some((state, learning)) = start {
            folder.write_base(state.clone(), 0, *learning, Extra::default())?;
        }
        Log::create(&folder.log_path(0), 0).map_err(io_error)?;
        fs::rename(&aside, path).map_err(io_error)?;
        sync_folder(path).map_err(io_error)?;
        Ok(Self::new(path.to_owned()))
    }

    /// Removes the stream for good.
    pub fn remove(&self) -> Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let gone = self.path.with_file_name(format!(".gone-{name}"));
        let io_error = |e| io_error("removing", &self.path, e);
        let _ = fs::remove_dir_all(&gone);
        fs::rename(&self.path, &gone).map_err(io_error)?;
        sync_folder(&self.path).map_err(io_error)?;
        fs::remove_dir_all(&gone).map_err(io_error)
    }

    pub fn head(&self) -> Result<Head> {
        Head::load(self.path.join("head.safetensors"))
    }

    pub fn meta(&self) -> Result<Meta> {
        let path = self.path.join("stream.json");
        let bytes = fs::read(&path).map_err(|e| io_error("opening", &path, e))?;
        let meta: Meta = serde_json::from_slice(&bytes).map_err(|e| Error::Format {
            reason: format!("not a stream's settings: {e}"),
            path: path.clone(),
        })?;
        if meta.format != FORMAT {
            let reason = format!("format {:?}, this build reads {FORMAT:?}", meta.format);
            return Err(Error::Format { reason, path });
        }
        Ok(meta)
    }

    /// Writes the state before a record; on success what lies before it is of no more use.
    pub fn write_base(&self, mut state: State, number: u64, learning: bool, extra: Extra) -> Result<()> {
        for (key, value) in [
            ("learning", learning.to_string()),
            ("generation", extra.generation.to_string()),
            ("latest", extra.arrivals.latest.to_bits().to_string()),
        ] {
            state.metadata.insert(format!("server.{key}"), value);
        }
        let path = self.base_path(number);
        state.save(&path)?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))
    }

    /// A new segment of the log.
    pub fn create_log(&self, first: u64) -> Result<Log> {
        let path = self.log_path(first);
        Log::create(&path, first).map_err(|e| io_error("creating", &path, e))
    }

    /// Removes bases and segments that a later base has replaced. Returns how many.
    pub fn compact(&self, base: u64) -> Result<usize> {
        let mut removed = 0;
        for (prefix, suffix) in [("log-", ".wal"), ("base-", ".safetensors")] {
            for number in self.numbers(prefix, suffix)?.into_iter().filter(|&n| n < base) {
                let path = self.path.join(format!("{prefix}{number:020}{suffix}"));
                match fs::remove_file(&path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(io_error("removing", &path, e));
                    }
                    _ => removed += 1,
                }
            }
        }
        Ok(removed)
    }

    /// Removes every base and segment but those of this number.
    pub fn remove_others(&self, base: u64) -> Result<()> {
        for (prefix, suffix) in [("log-", ".wal"), ("base-", ".safetensors")] {
            for number in self.numbers(prefix, suffix)?.into_iter().filter(|&n| n != base) {
                let path = self.path.join(format!("{prefix}{number:020}{suffix}"));
                fs::remove_file(&path).map_err(|e| io_error("removing", &path, e))?;
            }
        }
        Ok(())
    }

    /// Keeps a note of what was lost, until it is acknowledged. An earlier note stays beside it.
    pub fn note_damage(&self, text: &str) -> Result<()> {
        let notes = match self.damage()? {
            Some(earlier) if !earlier.contains(text) => format!("{earlier}; {text}"),
            Some(earlier) => earlier,
            None => text.to_string(),
        };
        let path = self.path.join(DAMAGE);
        write_atomically(&path, notes.as_bytes())?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))
    }

    /// What was lost and is not acknowledged yet.
    pub fn damage(&self) -> Result<Option<String>> {
        let path = self.path.join(DAMAGE);
        match fs::read(&path) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("opening", &path, e)),
        }
    }

    /// Removes the note of what was lost. What was set aside stays.
    pub fn acknowledge_damage(&self) -> Result<()> {
        let path = self.path.join(DAMAGE);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("removing", &path, e)),
            _ => sync_folder(&path).map_err(|e| io_error("syncing", &path, e)),
        }
    }

    /// Names and sizes of the snapshots, oldest name first.
    pub fn snapshots(&self) -> Result<Vec<(String, u64)>> {
        let folder = self.path.join("snapshots");
        let io_error = |e| io_error("reading", &folder, e);
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io_error)? {
            let entry = entry.map_err(io_error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(label) = name.strip_suffix(".safetensors").filter(|l| !l.starts_with('.')) else {
                continue;
            };
            found.push((label.to_string(), entry.metadata().map_err(io_error)?.len()));
        }
        found.sort();
        Ok(found)
    }

    pub fn save_snapshot(&self, label: &str, state: &State) -> Result<()> {
        let path = self.snapshot_path(label);
        state.save(&path)?;
        sync_folder(&path).map_err(|e| io_error("syncing", &path, e))
    }

    pub fn load_snapshot(&self, label: &str) -> Result<State> {
        State::load(self.snapshot_path(label))
    }

    pub fn remove_snapshot(&self, label: &str) -> Result<()> {
        let path = self.snapshot_path(label);
        fs::remove_file(&path).map_err(|e| io_error("removing", &path, e))
    }

    fn snapshot_path(&self, label: &str) -> PathBuf {
        self.path.join("snapshots").join(format!("{label}.safetensors"))
    }

    pub(crate) fn base_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("base-{number:020}.safetensors"))
    }

    pub(crate) fn log_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("log-{number:020}.wal"))
    }

    /// The numbers of the files of one kind, in order.
    pub(crate) fn numbers(&self, prefix: &str, suffix: &str) -> Result<Vec<u64>> {
        let io_error = |e| io_error("reading", &self.path, e);
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io_error)? {
            let name = entry.map_err(io_error)?.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix(prefix).and_then(|n| n.strip_suffix(suffix));
            numbers.extend(number.and_then(|n| n.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

impl Meta {
    pub fn new(
        config: &Config,
        durability: Option<Durability>,
        source: Option<(String, f64)>,
        created: f64,
    ) -> Self {
        let (shadow_of, source_created) = source.unzip();
        let (format, config) = (FORMAT.into(), config.to_toml());
        Self { format, config, durability, shadow_of, source_created, created }
    }
}

pub fn io_error(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { doing, source, path: path.to_owned() }
}
