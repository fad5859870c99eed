//! The keeper: the second thread of a stream. It does what is slow and need not be in order: syncing the log every
//! interval, writing base states, publishing sessions for readers.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use ultta::{Session, State};

use crate::board::Board;
use crate::log::Log;
use crate::store::{Extra, Folder};

/// The owner's end of the keeper.
pub struct Keeper {
    chores: Option<mpsc::Sender<Chore>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
}

/// One thing for the keeper to do.
enum Chore {
    /// Sync the log.
    Sync(Written),
    /// Write the state before a log record, and remove the logs that it replaces. What is not synced of them comes first: if
    /// the state cannot be written, they still count.
    Base { before: Option<Written>, state: State, number: u64, learning: bool, extra: Extra },
    /// Put a copy of the session on the board.
    Publish { session: Arc<Session>, generation: u64, time: f64 },
}

/// What was written to the log and is not synced yet.
pub struct Written {
    pub file: Arc<File>,
    /// When the oldest record of it was written.
    pub since: Instant,
    /// Number of the record behind it.
    pub next: u64,
}

/// What the keeper is doing, and how it went. The owner reads it.
#[derive(Default)]
struct Progress {
    syncing: AtomicBool,
    writing_base: AtomicBool,
    publishing: AtomicBool,
    /// Longest time that a record waited for the disk, in microseconds.
    lag: AtomicU64,
    /// The last failure to sync, until the owner takes it.
    failure: Mutex<Option<String>>,
}

impl Keeper {
    pub fn start(stream: &str, folder: Folder, board: Arc<Board>) -> Self {
        let (sender, chores) = mpsc::channel::<Chore>();
        let progress = Arc::new(Progress::default());
        let (name, shared) = (stream.to_string(), progress.clone());
        let work = move || chores.into_iter().for_each(|chore| chore.run(&name, &folder, &board, &shared));
        match std::thread::Builder::new().name(format!("keep {stream}")).spawn(work) {
            Ok(thread) => Self { chores: Some(sender), thread: Some(thread), progress },
            Err(e) => {
                tracing::error!(stream, error = %e, "no keeper thread");
                Self { chores: None, thread: None, progress }
            }
        }
    }

    /// Syncs the log. `false` while an earlier sync is under way.
    pub fn sync(&self, written: Written) -> bool {
        self.send(&self.progress.syncing, || Chore::Sync(written))
    }

    /// Writes a base state, once what was written before it is synced. `false` while an earlier one is being written.
    pub fn write_base(
        &self,
        before: Option<Written>,
        state: State,
        number: u64,
        learning: bool,
        extra: Extra,
    ) -> bool {
        self.send(&self.progress.writing_base, || Chore::Base { before, state, number, learning, extra })
    }

    /// Publishes the session. `false` while an earlier one is being published.
    pub fn publish(&self, session: &Session, generation: u64, time: f64) -> bool {
        self.send(&self.progress.publishing, || Chore::Publish {
            session: Arc::new(session.clone()),
            generation,
            time,
        })
    }

    /// Whether a base state is being written.
    pub fn writes_base(&self) -> bool {
        self.progress.writing_base.load(Ordering::Acquire) && !self.has_ended()
    }

    /// Whether its thread has ended before it was told to, or was never there: nothing is synced any more.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Longest time that a record waited for the disk, in milliseconds.
    pub fn sync_lag_ms(&self) -> f64 {
        self.progress.lag.load(Ordering::Relaxed) as f64 / 1e3
    }

    /// Why the last sync failed. Each failure is returned once.
    pub fn take_failure(&self) -> Option<String> {
        self.progress.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Finishes what is under way and ends the thread.
    pub fn finish(&mut self) {
        self.chores = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Hands a chore over unless one of its kind is under way.
    fn send(&self, busy: &AtomicBool, chore: impl FnOnce() -> Chore) -> bool {
        if busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let sent = self.chores.as_ref().is_some_and(|chores| chores.send(chore()).is_ok());
        if !sent {
            busy.store(false, Ordering::Release);
        }
        sent
    }
}

impl Chore {
    fn run(self, stream: &str, folder: &Folder, board: &Board, progress: &Progress) {
        match self {
            Chore::Sync(written) => {
                written.sync(folder, progress);
                progress.syncing.store(false, Ordering::Release);
            }
            Chore::Base { before, state, number, learning, extra } => {
                if let Some(before) = before {
                    before.sync(folder, progress);
                }
                let written = folder.write_base(state, number, learning, extra);
                match written.and_then(|()| folder.compact()) {
                    Ok(_) => tracing::debug!(stream, number, "log compacted"),
                    // The log goes on growing, and nothing is lost; the next rotation tries again.
                    Err(e) => tracing::warn!(stream, error = %e, "the log could not be compacted"),
                }
                progress.writing_base.store(false, Ordering::Release);
            }
            Chore::Publish { session, generation, time } => {
                board.publish(session, generation, time);
                progress.publishing.store(false, Ordering::Release);
            }
        }
    }
}

impl Written {
    /// What a segment holds by now.
    pub fn of(log: &Log, since: Instant) -> Self {
        Self { file: log.file(), since, next: log.next() }
    }

    fn sync(self, folder: &Folder, progress: &Progress) {
        let synced = self.file.sync_data();
        progress.lag.fetch_max(self.since.elapsed().as_micros() as u64, Ordering::Relaxed);
        match synced {
            Ok(()) => folder.note_synced(self.next),
            Err(e) => {
                *progress.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
            }
        }
    }
}
