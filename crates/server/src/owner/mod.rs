//! The owner of a stream: one thread that takes requests in arrival order, writes them to the log, and only then
//! lets them teach.
//!
//! ```text
//! queue ─► gather ─► log ─► step ─► answer ─► publish
//! ```
//!
//! Samples were checked and scaled before they queued, and large requests bring the frozen model's scores with them.
//! Requests that wait together are logged with one write (and one sync), and stepped as one block where the method
//! says that grouping does not matter. What takes long and need not be in order is done by the
//! [keeper](crate::keeper).
//!
//! This file is the thread's loop. Its jobs: `classify` (samples), `labels` (delayed labels), `change` (freeze,
//! reset, roll back, merge), `group` (what is shared), `disk` (log, base states, what happens when the disk refuses).

mod change;
mod classify;
mod disk;
mod group;
mod labels;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use ultta::{Health, Session};

use crate::alarms::{AlarmView, Pulse};
use crate::board::{Board, Status};
use crate::clock::Clock;
use crate::deliver::{Notice, Outbox};
use crate::job::{Classify, Job};
use crate::keeper::Keeper;
use crate::metrics::Stages;
use crate::recovery::Recovered;
use crate::settings::Durability;
use crate::shadow::Shadows;
use crate::store::{Extra, Folder};
use crate::verdict::Verdict;
use disk::Disk;
pub use group::{Standing, Taken};
use labels::RecentAnswers;

/// Samples that are logged together, at most (a single request may have more).
const GROUP_ROWS: usize = ultta::internal::STEP_ROWS;
/// While there are readers, they are shown a session that is at most this old.
const PUBLISH_WITH_READERS: Duration = Duration::from_secs(1);
/// Without readers a session is published less often; the first reader still finds a recent one.
const PUBLISH_WITHOUT_READERS: Duration = Duration::from_secs(10);

/// An operator is shown a copy that rows have left behind by at most this long, and copies cost little of the owner's time.
const COPY_AGAIN: Duration = Duration::from_millis(200);
/// A copy that nobody asks for again is given back after this.
const COPY_KEPT: Duration = Duration::from_secs(2);

/// What an owner is made of.
pub struct Parts {
    pub name: String,
    pub folder: Folder,
    pub durability: Durability,
    pub sync_interval: Duration,
    pub compact_bytes: u64,
    pub clock: Clock,
    pub stages: Stages,
    pub shadows: Shadows,
    /// Of a shadow: samples that it was not shown.
    pub missed: Arc<AtomicU64>,
    /// Where alarms go.
    pub outbox: Outbox,
    /// Time without requests after which the stream is silent, where one is set.
    pub silent_after: Option<Duration>,
}

/// One stream's owner.
pub struct Owner {
    parts: Parts,
    session: Session,
    extra: Extra,
    /// What was lost on the disk, until someone acknowledges it.
    damage: Option<String>,
    board: Arc<Board>,
    keeper: Keeper,
    disk: Disk,
    recent: RecentAnswers,
    publishing: Publishing,
    copied: Option<Copied>,
    /// Whether samples without a time get the server's time.
    stamps_times: bool,
    agreement: Agreement,
    pulse: Pulse,
    /// The verdict that was told last.
    told: Option<Verdict>,
}

/// When the session is published again.
struct Publishing {
    /// Whether the session has changed since it was published.
    behind: bool,
    /// Whether a reader wants a newer one.
    wanted: bool,
    last: Instant,
    /// How long publishing took the owner last time.
    cost: Duration,
}

/// A copy of the session for an operator's questions. Those who ask at once share it.
struct Copied {
    session: Arc<Session>,
    at: Instant,
    /// How long copying took the owner.
    cost: Duration,
}

/// Of a shadow: how often it answers as the stream that it follows.
#[derive(Clone, Copy, Default)]
struct Agreement {
    same: u64,
    shown: u64,
}

impl Owner {
    /// Takes over what was found on the disk.
    pub fn new(parts: Parts, recovered: Recovered) -> (Self, Arc<Board>) {
        let Recovered { session, extra, log, damage, .. } = recovered;
        let status = Status {
            learning: session.learning(),
            watched: session.config().alarms.enabled,
            alarm_scenes: session.config().alarms.scenes,
            generation: extra.generation,
            degraded: None,
            damage: damage.clone(),
            log_next: log.next(),
            log_bytes: log.bytes(),
            health: session.health(),
            shadow_agreement: None,
            shadow_dropped: 0,
            last_row: None,
            silence_seconds: 0.0,
            rows_per_second: 0.0,
            sync_lag_ms: 0.0,
        };
        let known = parts.folder.alarms_known(extra.generation);
        let board = Arc::new(Board::new(status, Arc::new(session.clone()), known, parts.clock.now()));
        let pulse = Pulse::new(parts.silent_after, session.next_id());
        let keeper = Keeper::start(&parts.name, parts.folder.clone(), board.clone());
        let owner = Self {
            stamps_times: session.config().method.uses_times(),
            session,
            extra,
            damage,
            board: board.clone(),
            keeper,
            disk: Disk::new(log),
            recent: RecentAnswers::new(),
            publishing: Publishing {
                behind: false,
                wanted: false,
                last: Instant::now(),
                cost: Duration::ZERO,
            },
            copied: None,
            agreement: Agreement::default(),
            pulse,
            told: None,
            parts,
        };
        (owner, board)
    }

    /// Works until it is told to stop.
    pub fn run(mut self, mut queue: mpsc::Receiver<Job>, runtime: tokio::runtime::Handle) {
        let mut next: Option<Job> = None;
        // Whoever subscribed may still have the word of an earlier run.
        self.tell_verdict();
        loop {
            let job = next.take().or_else(|| self.receive(&mut queue, &runtime));
            match job {
                Some(Job::Classify(first)) => {
                    let (group, other) = gather(first, &mut queue);
                    next = other;
                    self.classify(group);
                }
                Some(Job::Feedback(feedback)) => self.feedback(feedback),
                Some(Job::Control(control)) => control(&mut self),
                Some(Job::Publish) => self.publishing.wanted = true,
                Some(Job::Stop(done)) => {
                    self.finish();
                    drop(queue);
                    let _ = done.send(());
                    return;
                }
                None => {}
            }
            self.do_chores();
        }
    }

    /// The next job, or `None` when a chore is due.
    fn receive(&self, queue: &mut mpsc::Receiver<Job>, runtime: &tokio::runtime::Handle) -> Option<Job> {
        if let Ok(job) = queue.try_recv() {
            return Some(job);
        }
        // A closed queue means that no request can come any more: the same as being told to stop.
        let stop = || Job::Stop(oneshot::channel().0);
        match self.time_to_chore() {
            None => Some(queue.blocking_recv().unwrap_or_else(stop)),
            Some(wait) => {
                let received = runtime.block_on(async { tokio::time::timeout(wait, queue.recv()).await });
                received.ok().map(|job| job.unwrap_or_else(stop))
            }
        }
    }

    /// How long to wait for a job before a chore is due; `None` while no chore is to come.
    fn time_to_chore(&self) -> Option<Duration> {
        let left = |after: Duration, since: Instant| {
            after.saturating_sub(since.elapsed()).max(Duration::from_millis(1))
        };
        let (after, since) = self.disk.next_chore(self.parts.sync_interval);
        let disk = Some(left(after, since));
        let publish = self.publishing.behind.then(|| left(self.publish_after(), self.publishing.last));
        let silence = self.pulse.left().map(|left| left.max(Duration::from_millis(1)));
        let copied = self.copied.as_ref().map(|copied| left(COPY_KEPT, copied.at));
        disk.into_iter().chain(publish).chain(silence).chain(copied).min()
    }

    /// What is due between two jobs.
    fn do_chores(&mut self) {
        self.do_disk_chores();
        if let Some(seconds) = self.pulse.silence() {
            self.raise(AlarmView::silent(self.parts.clock.now(), seconds, self.session.next_id()));
        }
        self.tell_verdict();
        if self.copied.as_ref().is_some_and(|copied| copied.at.elapsed() >= COPY_KEPT) {
            self.copied = None;
        }
        if self.publishing.wanted && !self.publishing.behind {
            self.publishing.wanted = false;
            self.board.withdraw_request();
        }
        if self.publishing.behind && self.publishing.last.elapsed() >= self.publish_after() {
            self.publish();
        }
    }

    // ── publishing ───────────────────────────────────────────────────────────────────────────────────────────

    /// Pause between two publications: long enough that publishing costs little of the owner's time.
    fn publish_after(&self) -> Duration {
        let Publishing { wanted, cost, .. } = self.publishing;
        if wanted { PUBLISH_WITH_READERS.max(cost * 20) } else { PUBLISH_WITHOUT_READERS.max(cost * 50) }
    }

    fn publish(&mut self) {
        let started = Instant::now();
        if self.keeper.publish(&self.session, self.extra.generation, self.parts.clock.now()) {
            self.publishing =
                Publishing { behind: false, wanted: false, last: Instant::now(), cost: started.elapsed() };
        }
    }

    /// A copy of the session, which has seen all samples before `least`, and its generation: for what an operator asks. It has
    /// every label and change; rows may be a moment ahead of it.
    pub fn session(&mut self, least: u64) -> (Arc<Session>, u64) {
        let next = self.session.next_id();
        let recent = |copied: &Copied| {
            let seen = copied.session.next_id();
            seen == next || (seen >= least && copied.at.elapsed() < COPY_AGAIN.max(copied.cost * 20))
        };
        let session = match &self.copied {
            Some(copied) if recent(copied) => copied.session.clone(),
            _ => {
                let at = Instant::now();
                let session = Arc::new(self.session.clone());
                self.copied = Some(Copied { session: session.clone(), at, cost: at.elapsed() });
                session
            }
        };
        (session, self.extra.generation)
    }

    fn status(&self) -> Status {
        self.status_with(self.session.health())
    }

    fn status_with(&self, health: Health) -> Status {
        let Agreement { same, shown } = self.agreement;
        let (last_row, silence_seconds) = self.board.silence(self.parts.clock.now());
        Status {
            learning: self.session.learning(),
            watched: self.session.config().alarms.enabled,
            alarm_scenes: self.session.config().alarms.scenes,
            generation: self.extra.generation,
            degraded: self.disk.refusal().map(str::to_string),
            damage: self.damage.clone(),
            log_next: self.disk.log().next(),
            log_bytes: self.disk.log().bytes(),
            health,
            shadow_agreement: (shown > 0).then(|| same as f64 / shown as f64),
            shadow_dropped: self.parts.missed.load(Ordering::Relaxed),
            last_row,
            silence_seconds,
            rows_per_second: 0.0,
            sync_lag_ms: self.keeper.sync_lag_ms(),
        }
    }

    // ── alarms ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Tells of an alarm: in the server's log, in the metrics, among the stream's events, and to whoever subscribed.
    fn raise(&mut self, alarm: AlarmView) {
        let now = self.parts.clock.now();
        tracing::warn!(
            stream = self.parts.name,
            kind = alarm.kind,
            "alarm: {}; {}",
            alarm.text,
            alarm.advice
        );
        self.parts.stages.alarm(alarm.kind);
        self.board.raise(alarm.clone(), now);
        self.send(Some(alarm));
    }

    /// Tells the verdict to whoever subscribed, when it has changed.
    fn tell_verdict(&mut self) {
        if self.parts.outbox.wants_verdicts() {
            self.send(None);
        }
    }

    fn send(&mut self, alarm: Option<AlarmView>) {
        let verdict = Verdict::of(&self.status(), &self.board.alarms());
        if alarm.is_none() && self.told.as_ref().is_some_and(|told| told.says_the_same(&verdict)) {
            return;
        }
        let (stream, time) = (self.parts.name.clone(), self.parts.clock.now());
        let event = if alarm.is_some() { "alarm" } else { "verdict" };
        self.told = Some(verdict.clone());
        self.parts.outbox.send(&Notice { event, stream, time, alarm, verdict });
    }
}

/// Requests that wait behind the first one, as long as they are samples, too; and the job that ended the group.
fn gather(first: Classify, queue: &mut mpsc::Receiver<Job>) -> (Vec<Classify>, Option<Job>) {
    let mut rows = first.samples.len();
    let mut group = vec![first];
    while rows < GROUP_ROWS {
        match queue.try_recv() {
            Ok(Job::Classify(job)) => {
                rows += job.samples.len();
                group.push(job);
            }
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}
