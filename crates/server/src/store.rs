//! A stream's folder: its head, its settings, the state it starts from, its log, its snapshots.
//!
//! ```text
//! <data_dir>/streams/<name>/stream.json             settings
//!                           head.safetensors        the head
//!                           base-<n>.safetensors    the state before record n of the log
//!                           log-<n>.wal             records from n on
//!                           snapshots/<label>.safetensors
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ultta::{Config, Error, Features, Head, Input, Result, Scores, Session, State};
use ultta_formats::write_atomically;

use crate::clock::Arrivals;
use crate::log::{self, Log, Record, Rows, sync_folder};
use crate::settings::Durability;

const FORMAT: &str = "ultta-stream-1";

/// Rows that recovery steps through at once, where the method lets any grouping give the same bits.
const REPLAY_BLOCK: usize = 128;

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

/// A stream as found on the disk.
pub struct Recovered {
    pub session: Session,
    pub extra: Extra,
    pub log: Log,
    /// Records replayed.
    pub records: u64,
    /// Bytes of broken log that were cut off.
    pub dropped: u64,
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

    /// The session as it was: the latest base, and every record of the log behind it.
    pub fn recover(&self, head: Head, config: &Config) -> Result<Recovered> {
        let (bases, logs) = (self.numbers("base-", ".safetensors")?, self.numbers("log-", ".wal")?);
        let mut session = Session::new(head, config)?;
        let mut extra = Extra::default();
        let start = bases.last().copied().unwrap_or(0);
        if let Some(&number) = bases.last() {
            let path = self.base_path(number);
            let state = State::load(&path)?;
            session.load(&state).map_err(|e| Error::Format { reason: e.to_string(), path })?;
            session.set_learning(note(&state, "learning") != Some("false"));
            extra.generation = note(&state, "generation").and_then(|v| v.parse().ok()).unwrap_or(0);
            let latest = note(&state, "latest").and_then(|v| v.parse().ok().map(f64::from_bits));
            extra.arrivals.latest = latest.unwrap_or(f64::MIN);
        }
        let mut replayer = Replayer { session, extra, pending: None, records: 0 };
        let (mut current, mut dropped): (Option<Log>, u64) = (None, 0);
        for &first in logs.iter().filter(|&&first| first >= start) {
            let path = self.log_path(first);
            let expected = current.as_ref().map_or(start, Log::next);
            if current.is_some() && !log::is_segment(&path) {
                // A full disk, or the end, came before it was begun: the one before it goes on.
                dropped += fs::metadata(&path).map_or(0, |m| m.len());
                fs::remove_file(&path).map_err(|e| io_error("removing", &path, e))?;
                continue;
            }
            if first != expected || dropped > 0 {
                // Records in between are missing: what follows them cannot be learnt in order.
                dropped += fs::metadata(&path).map_or(0, |m| m.len());
                let aside = path.with_extension("torn");
                fs::rename(&path, aside).map_err(|e| io_error("setting aside", &path, e))?;
                continue;
            }
            let tail = log::replay(&path, first, |record| replayer.take(record))
                .map_err(|e| io_error("reading", &path, e))?;
            dropped += tail.dropped;
            current = Some(tail.log);
        }
        replayer.flush();
        let Replayer { session, extra, records, .. } = replayer;
        let log = match current {
            Some(log) => log,
            None => {
                let path = self.log_path(start);
                Log::create(&path, start).map_err(|e| io_error("creating", &path, e))?
            }
        };
        Ok(Recovered { session, extra, log, records, dropped })
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

    fn base_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("base-{number:020}.safetensors"))
    }

    fn log_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("log-{number:020}.wal"))
    }

    fn numbers(&self, prefix: &str, suffix: &str) -> Result<Vec<u64>> {
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

/// Feeds records to a session, rows in blocks where the method allows it.
struct Replayer {
    session: Session,
    extra: Extra,
    pending: Option<Rows>,
    records: u64,
}

impl Replayer {
    fn take(&mut self, record: Record) {
        self.records += 1;
        match record {
            Record::Rows(rows) => {
                for time in rows.times.iter().flatten() {
                    self.extra.arrivals.latest = self.extra.arrivals.latest.max(*time);
                }
                let joins = independent(&self.session)
                    && self.pending.as_ref().is_some_and(|p| p.joins(&rows) && p.len() < REPLAY_BLOCK);
                match &mut self.pending {
                    Some(pending) if joins => pending.append(&rows),
                    _ => {
                        self.flush();
                        self.pending = Some(rows);
                    }
                }
            }
            // What failed then fails again now, and changes nothing either time.
            Record::Feedback { id, label } => {
                self.flush();
                let _ = self.session.feedback(id, label as usize);
            }
            Record::Learning(learning) => {
                self.flush();
                self.session.set_learning(learning);
            }
        }
    }

    fn flush(&mut self) {
        if let Some(rows) = self.pending.take() {
            let _ = with_input(&rows, None, false, |input| self.session.step(input));
        }
    }
}

/// Whether any grouping of rows gives the same answers and state.
pub fn independent(session: &Session) -> bool {
    session.config().method.card().grouping == ultta::adapter::Grouping::Independent
}

/// Shows rows to a session, with the frozen model's scores for them where they are at hand.
pub fn with_input<T>(
    rows: &Rows,
    zero_shot: Option<&Scores>,
    keep_scores: bool,
    work: impl FnOnce(&Input<'_>) -> Result<T>,
) -> Result<T> {
    let features = Features::new(&rows.features[..], rows.dim)?;
    let views = match rows.view_counts {
        Some(_) => Some(Features::new(&rows.views[..], rows.dim)?),
        None => None,
    };
    work(&Input {
        zero_shot,
        learn: rows.learn.as_deref(),
        times: rows.times.as_deref(),
        views: views.as_ref(),
        view_counts: rows.view_counts.as_deref(),
        keep_scores,
        ..Input::new(&features)
    })
}

fn note<'s>(state: &'s State, key: &str) -> Option<&'s str> {
    state.metadata.get(&format!("server.{key}")).map(String::as_str)
}

pub fn io_error(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { doing, source, path: path.to_owned() }
}
