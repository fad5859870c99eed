//! Opening what an earlier run left: the data folder, and every stream in it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use ultta::{Config, Error};

use super::lock::Lock;
use super::{OPENING, Streams, check_name};
use crate::clock::Clock;
use crate::deliver::Outbox;
use crate::metrics::Metrics;
use crate::owner::{Owner, Parts};
use crate::recovery::recover;
use crate::register::Register;
use crate::settings::ServerConfig;
use crate::shadow::{Shadow, Shadows};
use crate::store::Folder;
use crate::stream::Stream;
use crate::verdict::Verdict;

/// The start waits for a stream for this long.
const PATIENCE: Duration = Duration::from_secs(20);

impl Streams {
    /// Opens a data folder and every stream in it; one that cannot be opened is reported and left. Replays logs, so it may take a while.
    pub(crate) fn open(
        config: &ServerConfig,
        metrics: Arc<Metrics>,
        outbox: Outbox,
    ) -> ultta::Result<Arc<Self>> {
        let root = config.data_dir.join("streams");
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |e| Error::Io { doing, source: e, path }
        };
        fs::create_dir_all(&root).map_err(failed("creating", &root))?;
        let lock = Lock::take(&config.data_dir, &root)?;
        let streams = Arc::new(Self {
            root: root.clone(),
            register: Register::open(config.data_dir.join("streams.json")),
            streams: RwLock::default(),
            damaged: Mutex::default(),
            changing: tokio::sync::Mutex::new(()),
            lock: Mutex::new(lock),
            durability: config.durability,
            sync_interval: Duration::from_millis(config.sync_interval_ms),
            compact_bytes: config.compact_bytes,
            limits: config.limits.clone(),
            metrics,
            clock: Clock::new(),
            outbox,
            silent_after: config.alarms.silent_seconds.map(Duration::from_secs_f64),
            stopped: AtomicBool::new(false),
        });
        let mut names = Vec::new();
        for entry in fs::read_dir(&root).map_err(failed("reading", &root))? {
            let name = entry.map_err(failed("reading", &root))?.file_name().to_string_lossy().into_owned();
            if name.starts_with(".new-") || name.starts_with(".gone-") {
                // Half made, or half removed.
                let _ = fs::remove_dir_all(root.join(&name));
            } else if check_name(&name).is_ok() {
                names.push(name);
            }
        }
        names.sort();
        streams.open_each(&names, PATIENCE, Self::start);
        for name in streams.register.names().into_iter().filter(|name| !names.contains(name)) {
            let reason =
                "its folder is missing; put it back from a copy and start again, or delete the stream"
                    .to_string();
            tracing::error!(stream = name, reason, "damaged");
            streams.damaged_names().insert(name, reason);
        }
        if let Err(error) = streams.register.add(&names) {
            tracing::warn!(%error, "the list of the streams could not be written");
        }
        Ok(streams)
    }

    /// Opens streams one after the other. One that takes longer than that goes on by itself and is served when it is open; the
    /// next one begins, and is waited for half as long: however many take long, the server starts.
    fn open_each(
        self: &Arc<Self>,
        names: &[String],
        mut patience: Duration,
        open: impl Fn(&Self, &str) -> ultta::Result<()> + Copy + Send + 'static,
    ) {
        // Those that are not open yet are not there for anybody.
        self.damaged_names().extend(names.iter().map(|name| (name.clone(), OPENING.to_string())));
        let runtime = tokio::runtime::Handle::current();
        for name in names {
            let (streams, own, runtime) = (self.clone(), name.clone(), runtime.clone());
            let (done, opened) = mpsc::channel();
            let work = move || {
                let _entered = runtime.enter();
                streams.open_one(&own, open);
                let _ = done.send(());
            };
            let begun = std::thread::Builder::new().name(format!("open {name}")).spawn(work);
            if let Err(error) = begun {
                self.report(name, format!("it could not be opened: starting a thread for it: {error}"));
            } else if opened.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(stream = name, "it takes long to open; the others are served meanwhile");
                patience /= 2;
            }
        }
    }

    /// Opens a stream. Whatever is wrong with its folder, the others are served.
    fn open_one(&self, name: &str, open: impl Fn(&Self, &str) -> ultta::Result<()>) {
        let failure = match catch_unwind(AssertUnwindSafe(|| open(self, name))) {
            Ok(Ok(())) => {
                self.damaged_names().remove(name);
                self.connect(name);
                // Shadows that were open before it.
                let follows = |stream: &Arc<Stream>| stream.meta.shadow_of.as_deref() == Some(name);
                self.all()
                    .iter()
                    .filter(|stream| follows(stream))
                    .for_each(|shadow| self.connect(&shadow.name));
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its files make the program fail; the log of the server has the place".into(),
        };
        self.report(name, format!("it could not be opened: {failure}"));
    }

    fn report(&self, name: &str, reason: String) {
        tracing::error!(stream = name, reason, "damaged");
        self.tell(name, "verdict", Verdict::unopened(&reason));
        self.damaged_names().insert(name.into(), reason);
    }

    /// Opens a stream's folder and starts its owner.
    pub(super) fn start(&self, name: &str) -> ultta::Result<()> {
        // A folder that nobody knows of was copied here.
        let adopt = self.register.is_known() && !self.register.names().contains(name);
        let folder = Folder::open(self.root.join(name), adopt)?;
        let meta = folder.meta()?;
        let head = folder.head()?;
        let config = Config::from_saved(&meta.config)?;
        let started = Instant::now();
        let recovered = recover(&folder, head, &config)?;
        let (records, dropped_bytes) = (recovered.records, recovered.dropped);
        let (seconds, seen) = (started.elapsed().as_secs_f64(), recovered.session.next_id());
        if let Some(damage) = &recovered.damage {
            tracing::error!(stream = name, records, dropped_bytes, seen, seconds, "damaged: {damage}");
        } else if dropped_bytes > 0 {
            tracing::warn!(stream = name, records, dropped_bytes, seen, seconds, "recovered");
        } else if records > 0 {
            tracing::info!(stream = name, records, dropped_bytes, seen, seconds, "recovered");
        } else if seen > 0 {
            tracing::info!(stream = name, seen, "opened");
        }
        let head = recovered.session.head().clone();
        let durability = meta.durability.unwrap_or(self.durability);
        let (shadows, missed) = (Shadows::default(), Arc::new(AtomicU64::new(0)));
        let stages = self.metrics.stages(name);
        let parts = Parts {
            name: name.to_string(),
            folder: folder.clone(),
            durability,
            sync_interval: self.sync_interval,
            compact_bytes: self.compact_bytes,
            clock: self.clock,
            stages: stages.clone(),
            shadows: shadows.clone(),
            missed: missed.clone(),
            outbox: self.outbox.clone(),
            silent_after: self.silent_after,
        };
        let (owner, board) = Owner::new(parts, recovered);
        if records > 0 || dropped_bytes > 0 {
            let mut text = format!("{records} log records replayed");
            if dropped_bytes > 0 {
                text += &format!(", {dropped_bytes} bytes of broken log cut off");
            }
            board.event(self.clock.now(), "recovered", text);
        }
        let (queue, jobs) = tokio::sync::mpsc::channel(self.limits.queue);
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name(format!("own {name}"))
            .spawn(move || owner.run(jobs, runtime))
            .map_err(|e| Error::Io { doing: "starting a thread for", source: e, path: name.into() })?;
        let stream = Stream {
            name: name.to_string(),
            digest: head.digest().into(),
            head,
            config,
            meta,
            durability,
            board,
            stages,
            shadows,
            folder,
            recovered_records: records,
            dropped_bytes,
            missed,
            leaving: AtomicBool::new(false),
            queue,
            clock: self.clock,
        };
        let mut streams = self.write();
        // After the server has stopped the stream ends with its queue.
        if !self.stopped.load(Ordering::Acquire) {
            streams.insert(name.to_string(), Arc::new(stream));
        }
        Ok(())
    }

    /// Lets a shadow see the traffic of its stream.
    pub(super) fn connect(&self, name: &str) {
        let Ok(stream) = self.get(name) else { return };
        if let Some(source) = &stream.meta.shadow_of
            && let Ok(source) = self.get(source)
            && source.digest == stream.digest
            && stream.meta.source_created.is_none_or(|created| created == source.meta.created)
        {
            let needs_views = stream.config.method.card().needs_views;
            source.shadows.add(Shadow::new(name, stream.queue.clone(), needs_views, stream.missed.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::AlarmSettings;

    /// An empty data folder, opened.
    fn opened(data_dir: &Path) -> Arc<Streams> {
        let config = ServerConfig { data_dir: data_dir.to_owned(), ..ServerConfig::default() };
        let outbox = Outbox::start(&AlarmSettings::default()).unwrap();
        Streams::open(&config, Arc::new(Metrics::new().unwrap()), outbox).unwrap()
    }

    /// Writes the folder of a stream that was never opened.
    fn make(streams: &Streams, name: &str) {
        let head = ultta::Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0).unwrap();
        let meta = crate::store::Meta::new(&Config::default(), None, None, 0.0, None);
        Folder::create(&streams.root.join(name), &head, &meta, None).unwrap();
    }

    /// A stream whose folder cannot be read to its end keeps nobody waiting, and is served when it is open.
    #[test]
    fn a_stream_that_takes_long_to_open_keeps_no_other_from_being_served() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let streams = opened(folder.path());
        let names = ["a", "slow", "z"].map(String::from);
        names.iter().for_each(|name| make(&streams, name));
        let release = folder.path().join("release");
        streams.open_each(&names, Duration::from_millis(500), |streams, name| {
            while name == "slow" && !streams.root.join("../release").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            streams.start(name)
        });
        assert!(streams.get("a").is_ok() && streams.get("z").is_ok());
        let told = streams.get("slow").map(drop).unwrap_err();
        assert_eq!((told.status, told.detail.contains(OPENING)), (503, true), "{}", told.detail);
        assert_eq!(runtime.block_on(streams.delete("slow")).unwrap_err().status, 503);
        fs::write(&release, b"").unwrap();
        while streams.get("slow").is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(streams.damaged().is_empty());
        runtime.block_on(streams.stop());
    }

    /// A deletion that comes the moment a stream is open ends the stream first.
    #[test]
    fn a_stream_that_has_just_opened_is_deleted_for_good() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let streams = opened(folder.path());
        let path = streams.root.join("a");
        make(&streams, "a");
        streams.damaged_names().insert("a".into(), OPENING.into());
        streams.start("a").unwrap();
        let stream = streams.read().get("a").cloned().unwrap();
        runtime.block_on(streams.delete("a")).map_err(|problem| problem.detail).unwrap();
        assert!(stream.queue.is_closed() && !path.exists() && streams.damaged().is_empty());
        runtime.block_on(streams.stop());
    }

    /// What a write left that was cut short by a full disk, or by the end of the process, takes no room for ever.
    #[test]
    fn what_was_half_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("a"), folder.path().join(".new-a"));
        let head = ultta::Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0).unwrap();
        let meta = crate::store::Meta::new(&Config::default(), None, None, 0.0, None);
        fs::create_dir_all(path.join("taken")).unwrap();
        assert!(Folder::create(&path, &head, &meta, None).is_err() && !aside.exists());
        fs::remove_dir_all(&path).unwrap();
        Folder::create(&path, &head, &meta, None).unwrap();
        let left = [path.join(".ultta-half"), path.join("snapshots/.ultta-half")];
        for half in &left {
            fs::write(half, b"half a state").unwrap();
        }
        Folder::open(path.clone(), false).unwrap();
        assert!(!left.iter().any(|half| half.exists()) && path.join("head.safetensors").exists());
    }
}
