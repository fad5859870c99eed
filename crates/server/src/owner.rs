//! The owner of a stream: one thread that takes requests in arrival order, writes them to the log, and only then
//! lets them teach.
//!
//! ```text
//! queue ─► gather ─► check ─► log ─► step ─► answer ─► publish
//! ```
//!
//! The frozen model's scores of large requests were computed before they queued, many at a time.
//!
//! Requests that wait together are logged with one write (and one sync) and stepped as one block where the method
//! says that grouping does not matter. What takes long and need not be in order — syncing every interval, writing
//! base states, publishing a session for reads — is done by a second thread, the keeper.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as chores;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use ultta::{Config, Head, Scores, Session, State, Step};
use ultta::{Row, Temperature};

use crate::board::{Board, Status};
use crate::clock::Clock;
use crate::log::{Log, Rows};
use crate::metrics::{Stage, Stages};
use crate::problem::Problem;
use crate::settings::Durability;
use crate::store::{Extra, Folder, Recovered, independent, with_input};

/// Rows that are logged and stepped together, at most (a single request may have more).
const GROUP_ROWS: usize = 256;
/// Answers remembered for delayed labels.
const REMEMBERED: usize = 8192;
/// Pause between two attempts to write after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// A session is published again for readers after so long …
const PUBLISH_WANTED: Duration = Duration::from_secs(1);
/// … and without readers after so long, so that the first of them finds a recent one.
const PUBLISH_UNWANTED: Duration = Duration::from_secs(10);

/// What is asked of an owner.
pub enum Job {
    /// Rows to answer and learn from.
    Classify(Classify),
    /// Delayed labels.
    Feedback(Feedback),
    /// Anything else, done between two blocks.
    Control(Box<dyn FnOnce(&mut Owner) + Send>),
    /// A reader found the published session behind.
    Publish,
    /// Finish: write the state and end.
    Stop(oneshot::Sender<()>),
}

/// Rows to answer and learn from.
pub struct Classify {
    pub rows: Rows,
    /// The frozen model's scores for them, where they were computed on the way here.
    pub zero_shot: Option<Scores>,
    pub extent: Extent,
    pub arrived: Instant,
    pub reply: Reply,
}

impl Classify {
    /// Whether this can be stepped as one block with an earlier one. Rows that come with their scores gain nothing
    /// by it.
    fn joins(&self, first: &Classify) -> bool {
        self.zero_shot.is_none() && first.zero_shot.is_none() && self.rows.joins(&first.rows)
    }
}

/// What an answer holds beyond the best class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// The best classes, so many.
    pub top: usize,
    /// Probabilities of all classes.
    pub probs: bool,
}

/// A sample of the stream that is shadowed: its generation, and its id within that.
pub type SourceId = (u64, u64);

/// Where answers go.
pub enum Reply {
    Caller(oneshot::Sender<Result<Answers, Problem>>),
    /// Nowhere: they are compared with those of the stream that is shadowed.
    Shadow {
        first: SourceId,
        labels: Vec<u32>,
    },
}

/// Answers to rows.
#[derive(Clone, Debug)]
pub struct Answers {
    pub rows: Vec<Row>,
    /// Per row, if asked for.
    pub top: Vec<Vec<(usize, f32)>>,
    /// Per row, if asked for.
    pub probs: Vec<Vec<f32>>,
    /// Whether the rows are in the log and the session has seen them.
    pub learnt: bool,
    pub generation: u64,
    /// Samples that the answering state had seen.
    pub as_of: u64,
}

impl Answers {
    /// Takes a part of a step.
    pub fn of(
        step: &Step,
        rows: std::ops::Range<usize>,
        extent: Extent,
        learnt: bool,
        generation: u64,
    ) -> Self {
        let top =
            if extent.top > 0 { rows.clone().map(|r| step.top(r, extent.top)).collect() } else { Vec::new() };
        let probs = match extent.probs {
            true => rows.clone().map(|r| step.probs(r, Temperature::Cal)).collect(),
            false => Vec::new(),
        };
        Self { rows: step.rows[rows].to_vec(), top, probs, learnt, generation, as_of: step.health.seen }
    }
}

/// Delayed labels.
pub struct Feedback {
    pub labels: Vec<(u64, usize)>,
    pub generation: Option<u64>,
    /// Ids are those of the stream that is shadowed, in this generation of it.
    pub source: Option<u64>,
    pub reply: Option<oneshot::Sender<Result<Vec<Outcome>, Problem>>>,
}

/// What became of a label.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The method learnt from it.
    Taken,
    /// The method has no use for labels, or learning is stopped; it counts for calibration only.
    Unused,
    /// It cannot be used.
    Refused(String),
}

/// Streams that are shown the same rows.
#[derive(Clone, Default)]
pub struct Shadows(Arc<Mutex<Vec<Shadow>>>);

#[derive(Clone)]
struct Shadow {
    name: String,
    queue: mpsc::Sender<Job>,
    dropped: Arc<AtomicU64>,
}

impl Shadows {
    pub fn add(&self, name: &str, queue: mpsc::Sender<Job>, dropped: Arc<AtomicU64>) {
        self.lock().push(Shadow { name: name.to_string(), queue, dropped });
    }

    pub fn remove(&self, name: &str) {
        self.lock().retain(|shadow| shadow.name != name);
    }

    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|shadow| shadow.name.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Shadow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes rows on; a shadow that cannot keep up misses them, and says so.
    fn show(&self, rows: &Rows, answers: &[Row], generation: u64) {
        let shadows = self.lock();
        for shadow in shadows.iter() {
            let labels = answers.iter().map(|row| row.label as u32).collect();
            let first = (generation, answers.first().map_or(0, |row| row.id));
            let reply = Reply::Shadow { first, labels };
            let job = Classify {
                rows: rows.clone(),
                zero_shot: None,
                extent: Extent::default(),
                arrived: Instant::now(),
                reply,
            };
            if shadow.queue.try_send(Job::Classify(job)).is_err() {
                shadow.dropped.fetch_add(answers.len() as u64, Ordering::Relaxed);
            }
        }
    }

    fn tell(&self, labels: &[(u64, usize)], generation: u64) {
        for shadow in self.lock().iter() {
            let source = Some(generation);
            let job = Feedback { labels: labels.to_vec(), generation: None, source, reply: None };
            let _ = shadow.queue.try_send(Job::Feedback(job));
        }
    }
}

/// An answer that a label may still arrive for.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    id: u64,
    source: Option<SourceId>,
    /// Whether a label has arrived.
    labelled: bool,
    adapted: (u32, f32),
    frozen: (u32, f32),
}

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
    pub dropped: Arc<AtomicU64>,
}

/// One stream's owner.
pub struct Owner {
    parts: Parts,
    session: Session,
    extra: Extra,
    log: Log,
    board: Arc<Board>,
    keeper: Keeper,
    remembered: VecDeque<Remembered>,
    /// Why nothing is learnt.
    degraded: Option<String>,
    tried: Instant,
    /// Records since the last sync.
    unsynced: bool,
    /// When the oldest of them was written.
    oldest: Instant,
    /// Whether the published session is behind, whether a reader wants it newer.
    behind: bool,
    wanted: bool,
    published: Instant,
    publish_cost: Duration,
    /// Whether the server stamps arrival times.
    stamps: bool,
    agreed: (u64, u64),
}

impl Owner {
    /// Takes over what was found on the disk.
    pub fn new(parts: Parts, recovered: Recovered) -> (Self, Arc<Board>) {
        let Recovered { session, extra, log, .. } = recovered;
        let stamps = session.config().method.uses_times();
        let status = Status {
            learning: session.learning(),
            generation: extra.generation,
            degraded: None,
            log_next: log.next(),
            log_bytes: log.bytes(),
            health: session.health(),
            shadow_agreement: None,
            shadow_dropped: 0,
            sync_lag_ms: 0.0,
        };
        let board = Arc::new(Board::new(status, Arc::new(session.clone())));
        let keeper = Keeper::start(&parts, session.head().clone(), session.config().clone(), board.clone());
        let owner = Self {
            session,
            extra,
            log,
            board: board.clone(),
            keeper,
            remembered: VecDeque::with_capacity(REMEMBERED),
            degraded: None,
            tried: Instant::now(),
            unsynced: false,
            oldest: Instant::now(),
            behind: false,
            wanted: false,
            published: Instant::now(),
            publish_cost: Duration::ZERO,
            stamps,
            agreed: (0, 0),
            parts,
        };
        (owner, board)
    }

    /// Works until told to stop.
    pub fn run(mut self, mut queue: mpsc::Receiver<Job>, runtime: tokio::runtime::Handle) {
        let mut next: Option<Job> = None;
        loop {
            let job = match next.take() {
                Some(job) => Some(job),
                None => self.receive(&mut queue, &runtime),
            };
            match job {
                Some(Job::Classify(first)) => {
                    let mut group = vec![first];
                    let mut rows = group[0].rows.len();
                    while rows < GROUP_ROWS {
                        match queue.try_recv() {
                            Ok(Job::Classify(job)) => {
                                rows += job.rows.len();
                                group.push(job);
                            }
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.classify(group);
                }
                Some(Job::Feedback(feedback)) => self.feedback(feedback),
                Some(Job::Control(control)) => control(&mut self),
                Some(Job::Publish) => self.wanted = true,
                Some(Job::Stop(done)) => {
                    self.finish();
                    drop(queue);
                    let _ = done.send(());
                    return;
                }
                None => {}
            }
            self.chores();
        }
    }

    /// The next job, or `None` when a chore is due.
    fn receive(&self, queue: &mut mpsc::Receiver<Job>, runtime: &tokio::runtime::Handle) -> Option<Job> {
        if let Ok(job) = queue.try_recv() {
            return Some(job);
        }
        match self.patience() {
            // A closed queue means that nobody is left to ask: as good as being told to stop.
            None => queue.blocking_recv().or_else(|| Some(Job::Stop(oneshot::channel().0))),
            Some(wait) => match runtime.block_on(async { tokio::time::timeout(wait, queue.recv()).await }) {
                Ok(Some(job)) => Some(job),
                Ok(None) => Some(Job::Stop(oneshot::channel().0)),
                Err(_) => None,
            },
        }
    }

    /// How long to wait for a job before a chore is due.
    fn patience(&self) -> Option<Duration> {
        let mut wait: Option<Duration> = None;
        let mut due = |after: Duration, since: Instant| {
            let left = after.saturating_sub(since.elapsed()).max(Duration::from_millis(1));
            wait = Some(wait.map_or(left, |w| w.min(left)));
        };
        if self.degraded.is_some() {
            due(RETRY, self.tried);
        }
        if self.unsynced {
            due(self.parts.sync_interval, self.oldest);
        }
        if self.behind {
            due(self.publish_after(), self.published);
        }
        wait
    }

    fn publish_after(&self) -> Duration {
        match self.wanted {
            true => PUBLISH_WANTED.max(self.publish_cost * 20),
            false => PUBLISH_UNWANTED.max(self.publish_cost * 50),
        }
    }

    /// What is due between two jobs.
    fn chores(&mut self) {
        if let Some(failure) = self.keeper.failure() {
            self.degrade(format!("syncing the log failed: {failure}"));
        }
        if self.degraded.is_some() && self.tried.elapsed() >= RETRY {
            self.recover();
        }
        if self.unsynced && self.oldest.elapsed() >= self.parts.sync_interval {
            match self.log.handle() {
                Ok(file) => {
                    if self.keeper.sync(file, self.oldest) {
                        self.unsynced = false;
                    }
                }
                Err(e) => self.degrade(format!("syncing the log failed: {e}")),
            }
        }
        if self.log.bytes() >= self.parts.compact_bytes && self.degraded.is_none() && !self.keeper.basing() {
            self.rotate();
        }
        if self.wanted && !self.behind {
            self.wanted = false;
            self.board.unask();
        }
        if self.behind && self.published.elapsed() >= self.publish_after() {
            self.publish();
        }
    }

    // ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn classify(&mut self, group: Vec<Classify>) {
        let taken = Instant::now();
        let mut jobs = Vec::with_capacity(group.len());
        for mut job in group {
            self.parts.stages.observe(Stage::Queue, taken - job.arrived);
            match with_input(&job.rows, job.zero_shot.as_ref(), false, |input| self.session.check(input)) {
                Ok(()) => {
                    self.stamp(&mut job.rows);
                    jobs.push(job);
                }
                Err(e) => job.reply.send(Err(e.into())),
            }
        }
        if jobs.is_empty() {
            return;
        }
        if self.degraded.is_none() {
            for job in &jobs {
                self.log.stage_rows(&job.rows);
            }
            self.commit();
        }
        self.parts.stages.observe(Stage::Log, taken.elapsed());
        if self.degraded.is_some() {
            return self.predict_only(jobs);
        }
        let stepping = Instant::now();
        let together = independent(&self.session);
        let mut jobs = VecDeque::from(jobs);
        while let Some(first) = jobs.pop_front() {
            let mut block = vec![first];
            while together && jobs.front().is_some_and(|job| job.joins(&block[0])) {
                block.extend(jobs.pop_front());
            }
            self.step(block);
        }
        self.parts.stages.observe(Stage::Step, stepping.elapsed());
    }

    /// Steps jobs as one block and answers them.
    fn step(&mut self, mut block: Vec<Classify>) {
        let counts: Vec<usize> = block.iter().map(|job| job.rows.len()).collect();
        let keep = block.iter().any(|job| job.extent.top > 0 || job.extent.probs);
        let (mut rows, zero_shot) = (std::mem::take(&mut block[0].rows), block[0].zero_shot.take());
        for job in &block[1..] {
            rows.append(&job.rows);
        }
        let step = match with_input(&rows, zero_shot.as_ref(), keep, |input| self.session.step(input)) {
            Ok(step) => step,
            Err(e) => {
                let problem = Problem::from(e);
                return block.into_iter().for_each(|job| job.reply.send(Err(problem.clone())));
            }
        };
        self.behind = true;
        let mut start = 0;
        for (job, count) in block.iter().zip(&counts) {
            let source = match &job.reply {
                Reply::Shadow { first, labels } => {
                    let same = step.rows[start..start + count].iter().zip(labels);
                    self.agreed.0 += same.filter(|(row, label)| row.label as u32 == **label).count() as u64;
                    self.agreed.1 += *count as u64;
                    Some(*first)
                }
                Reply::Caller(_) => None,
            };
            for (i, row) in step.rows[start..start + count].iter().enumerate() {
                if self.remembered.len() == REMEMBERED {
                    self.remembered.pop_front();
                }
                self.remembered.push_back(Remembered {
                    id: row.id,
                    source: source.map(|(generation, first)| (generation, first + i as u64)),
                    labelled: false,
                    adapted: (row.label as u32, row.prob),
                    frozen: (row.zero_shot.label as u32, row.zero_shot.prob),
                });
            }
            start += count;
        }
        self.parts.shadows.show(&rows, &step.rows, self.extra.generation);
        self.parts.stages.rows.inc_by(rows.len() as u64);
        let status = self.status_with(step.health);
        let latencies = block.iter().map(|job| job.arrived.elapsed());
        self.board.note(&step.rows, latencies, status, self.parts.clock.now());
        let mut start = 0;
        for (job, count) in block.into_iter().zip(counts) {
            if matches!(job.reply, Reply::Caller(_)) {
                let answers =
                    Answers::of(&step, start..start + count, job.extent, true, self.extra.generation);
                job.reply.send(Ok(answers));
            }
            start += count;
        }
    }

    /// Answers without learning, because nothing can be kept.
    fn predict_only(&mut self, jobs: Vec<Classify>) {
        for job in jobs {
            let answered = with_input(&job.rows, None, false, |input| self.session.predict(input));
            let answers = answered
                .map(|step| Answers::of(&step, 0..step.rows.len(), job.extent, false, self.extra.generation));
            job.reply.send(answers.map_err(Problem::from));
        }
    }

    fn stamp(&mut self, rows: &mut Rows) {
        if self.stamps && rows.times.is_none() {
            rows.times = Some(vec![self.parts.clock.now(); rows.len()]);
        }
        if let Some(times) = &mut rows.times {
            self.extra.arrivals.lift(times);
        }
    }

    // ── labels ───────────────────────────────────────────────────────────────────────────────────────────────

    fn feedback(&mut self, feedback: Feedback) {
        let outcomes = self.take_labels(&feedback);
        if let Some(reply) = feedback.reply {
            let _ = reply.send(outcomes);
        }
    }

    fn take_labels(&mut self, feedback: &Feedback) -> Result<Vec<Outcome>, Problem> {
        if let Some(generation) = feedback.generation.filter(|&g| g != self.extra.generation) {
            return Err(Problem::conflict(format!(
                "the labels are for generation {generation} of the stream, which is now at {}: its state was replaced",
                self.extra.generation
            )));
        }
        if let Some(reason) = &self.degraded {
            return Err(Problem::storage(format!("nothing is learnt at the moment: {reason}")));
        }
        let classes = self.session.head().n_classes();
        let labels: Vec<Result<(u64, usize), String>> = feedback
            .labels
            .iter()
            .map(|&(id, label)| {
                let own = match feedback.source {
                    Some(generation) => {
                        self.by_source((generation, id)).ok_or(format!("sample {id} was not shown"))?
                    }
                    None => id,
                };
                if label >= classes {
                    return Err(ultta::Error::Label { label, classes }.to_string());
                }
                if own >= self.session.next_id() {
                    return Err(format!("sample {own} has not been answered yet"));
                }
                Ok((own, label))
            })
            .collect();
        for (id, label) in labels.iter().flatten() {
            self.log.stage_feedback(*id, *label as u64);
        }
        self.commit();
        if let Some(reason) = &self.degraded {
            return Err(Problem::storage(format!("the labels cannot be kept: {reason}")));
        }
        let mut outcomes = Vec::with_capacity(labels.len());
        for label in labels {
            let (id, label) = match label {
                Ok(pair) => pair,
                Err(reason) => {
                    outcomes.push(Outcome::Refused(reason));
                    continue;
                }
            };
            let outcome = match self.session.feedback(id, label) {
                Ok(true) => Outcome::Taken,
                Ok(false) => Outcome::Unused,
                Err(e) => Outcome::Refused(e.to_string()),
            };
            if !matches!(outcome, Outcome::Refused(_))
                && let Some(row) = self.by_id(id).filter(|row| !row.labelled)
            {
                row.labelled = true;
                let (adapted, frozen) = (row.adapted, row.frozen);
                self.board.labelled(label, adapted, frozen);
            }
            outcomes.push(outcome);
        }
        self.behind = true;
        self.parts.shadows.tell(&feedback.labels, self.extra.generation);
        self.board.set_status(self.status());
        Ok(outcomes)
    }

    fn by_id(&mut self, id: u64) -> Option<&mut Remembered> {
        let first = self.remembered.front()?.id;
        self.remembered.get_mut(id.checked_sub(first)? as usize).filter(|row| row.id == id)
    }

    /// Samples of the stream's own traffic lie between those that were shown, so all are looked at.
    fn by_source(&self, source: SourceId) -> Option<u64> {
        self.remembered.iter().rev().find(|row| row.source == Some(source)).map(|row| row.id)
    }

    // ── changes of state ─────────────────────────────────────────────────────────────────────────────────────

    /// Stops or resumes learning.
    pub fn set_learning(&mut self, learning: bool) -> Result<(), Problem> {
        if self.session.learning() == learning {
            return Ok(());
        }
        if let Some(reason) = &self.degraded {
            return Err(Problem::storage(format!("the change cannot be kept: {reason}")));
        }
        self.log.stage_learning(learning);
        self.commit();
        if let Some(reason) = &self.degraded {
            return Err(Problem::storage(format!("the change cannot be kept: {reason}")));
        }
        self.session.set_learning(learning);
        self.behind = true;
        let (kind, text) = match learning {
            true => ("unfrozen", "samples teach again"),
            false => ("frozen", "samples are answered; neither they nor labels teach"),
        };
        self.changed(kind, text);
        Ok(())
    }

    /// Back to the start.
    pub fn reset(&mut self) -> Result<(), Problem> {
        let fresh = Session::new(self.session.head().clone(), self.session.config())?;
        self.replace(fresh, "reset", "back to the start")
    }

    /// Continues from another state of the same head and configuration.
    pub fn load(&mut self, state: &State, kind: &'static str, text: &str) -> Result<(), Problem> {
        let mut session = Session::new(self.session.head().clone(), self.session.config())?;
        session.load(state)?;
        self.replace(session, kind, text)
    }

    /// Adds the evidence of another state (the merge law).
    pub fn merge(&mut self, other: &State, text: &str) -> Result<(), Problem> {
        let merged = self.session.state().merge(other)?;
        self.load(&merged, "merged", text)
    }

    /// Samples seen.
    pub fn seen(&self) -> u64 {
        self.session.next_id()
    }

    /// The state as it is.
    pub fn state(&self) -> State {
        self.session.state()
    }

    /// Whether samples teach.
    pub fn learning(&self) -> bool {
        self.session.learning()
    }

    /// Keeps the state under a label.
    pub fn snapshot(&mut self, label: &str) -> Result<(), Problem> {
        self.parts.folder.save_snapshot(label, &self.session.state())?;
        self.board.event(self.parts.clock.now(), "snapshot", format!("kept as {label}"));
        Ok(())
    }

    /// Ids, generation and log go on; everything else is that of the other session. The new state is on the disk
    /// before this returns.
    fn replace(&mut self, mut session: Session, kind: &'static str, text: &str) -> Result<(), Problem> {
        session.set_learning(self.session.learning());
        // Time starts again, too: a wrong stamp must not outlive what it was learnt with.
        let extra = Extra { generation: self.extra.generation + 1, ..Extra::default() };
        self.rebase(&session, extra)?;
        self.session = session;
        self.extra = extra;
        self.remembered.clear();
        self.board.clear();
        self.degraded = None;
        self.behind = true;
        self.wanted = true;
        self.changed(kind, text);
        self.publish();
        Ok(())
    }

    fn changed(&mut self, kind: &'static str, text: &str) {
        tracing::info!(stream = self.parts.name, kind, "{text}");
        self.board.set_status(self.status());
        self.board.event(self.parts.clock.now(), kind, text);
    }

    // ── keeping it ───────────────────────────────────────────────────────────────────────────────────────────

    /// Writes what was staged; if the disk does not take it, nothing is learnt from here on.
    fn commit(&mut self) {
        let sync = self.parts.durability == Durability::Sync;
        match self.log.commit(sync) {
            Ok(()) if !sync && !self.unsynced => {
                self.unsynced = true;
                self.oldest = Instant::now();
            }
            Ok(()) => {}
            Err(e) => self.degrade(format!("writing the log failed: {e}")),
        }
    }

    fn degrade(&mut self, reason: String) {
        self.tried = Instant::now();
        if self.degraded.is_none() {
            tracing::error!(stream = self.parts.name, reason, "degraded: answering without learning");
            self.board.event(self.parts.clock.now(), "degraded", reason.clone());
        }
        self.degraded = Some(reason);
        self.board.set_status(self.status());
    }

    /// Tries to go on after a failure: a whole new base and log, with all that was learnt before.
    fn recover(&mut self) {
        self.tried = Instant::now();
        if self.rebase_own().is_ok() {
            self.degraded = None;
            self.changed("recovered", "the disk takes the log again; learning goes on");
        }
    }

    fn rebase_own(&mut self) -> Result<(), Problem> {
        let state = self.session.state();
        let (learning, extra) = (self.session.learning(), self.extra);
        self.rebase_state(state, learning, extra)
    }

    fn rebase(&mut self, session: &Session, extra: Extra) -> Result<(), Problem> {
        self.rebase_state(session.state(), session.learning(), extra)
    }

    /// Makes a state the one that recovery starts from.
    fn rebase_state(&mut self, state: State, learning: bool, extra: Extra) -> Result<(), Problem> {
        // A base that is still being written may have the same number.
        while self.keeper.basing() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let number = self.log.next();
        // The segment first: an empty one is harmless, a base whose segment cannot be made would not be.
        let log = self.parts.folder.create_log(number)?;
        if self.unsynced {
            // Should the base fail, recovery goes through the old segment into the new one.
            self.log
                .handle()
                .and_then(|file| file.sync_data())
                .map_err(|e| Problem::storage(e.to_string()))?;
        }
        self.log = log;
        self.unsynced = false;
        self.parts.folder.write_base(state, number, learning, extra)?;
        if let Err(e) = self.parts.folder.compact(number) {
            tracing::warn!(stream = self.parts.name, error = %e, "old logs stay");
        }
        Ok(())
    }

    /// Starts a new segment; the keeper writes the state before it and removes what came earlier.
    fn rotate(&mut self) {
        let number = self.log.next();
        // What the old segment still has to sync is in the new base; until that is there, both are kept.
        let old = self.log.handle();
        match self.parts.folder.create_log(number) {
            Ok(log) => self.log = log,
            Err(e) => return self.degrade(format!("starting a new log failed: {e}")),
        }
        if let (true, Ok(file)) = (self.unsynced, old) {
            self.keeper.sync(file, self.oldest);
        }
        self.unsynced = false;
        self.keeper.base(self.session.state(), number, self.session.learning(), self.extra);
    }

    fn finish(&mut self) {
        let name = self.parts.name.clone();
        self.keeper.finish();
        match self.rebase_own() {
            Ok(()) => tracing::info!(stream = name, seen = self.session.next_id(), "state written"),
            Err(e) => tracing::error!(stream = name, error = e.detail, "the state could not be written"),
        }
    }

    // ── publishing ───────────────────────────────────────────────────────────────────────────────────────────

    fn publish(&mut self) {
        let started = Instant::now();
        if self.keeper.publish(&self.session, self.extra.generation) {
            self.publish_cost = started.elapsed();
            self.published = Instant::now();
            (self.behind, self.wanted) = (false, false);
        }
    }

    fn status(&self) -> Status {
        self.status_with(self.session.health())
    }

    fn status_with(&self, health: ultta::Health) -> Status {
        let (agreed, shown) = self.agreed;
        Status {
            learning: self.session.learning(),
            generation: self.extra.generation,
            degraded: self.degraded.clone(),
            log_next: self.log.next(),
            log_bytes: self.log.bytes(),
            health,
            shadow_agreement: (shown > 0).then(|| agreed as f64 / shown as f64),
            shadow_dropped: self.parts.dropped.load(Ordering::Relaxed),
            sync_lag_ms: self.keeper.notes.lag.load(Ordering::Relaxed) as f64 / 1e3,
        }
    }
}

impl Reply {
    fn send(self, answers: Result<Answers, Problem>) {
        if let Reply::Caller(reply) = self {
            // A caller who has gone does not undo what was accepted.
            let _ = reply.send(answers);
        }
    }
}

/// The second thread of a stream: everything slow that need not be in order.
struct Keeper {
    chores: Option<chores::Sender<Chore>>,
    thread: Option<std::thread::JoinHandle<()>>,
    notes: Arc<Notes>,
}

enum Chore {
    /// The log, and when its oldest record that waits for this was written.
    Sync(File, Instant),
    Base {
        state: State,
        number: u64,
        learning: bool,
        extra: Extra,
    },
    Publish {
        state: State,
        learning: bool,
        generation: u64,
    },
}

#[derive(Default)]
struct Notes {
    syncing: AtomicBool,
    basing: AtomicBool,
    publishing: AtomicBool,
    /// Longest time that a record waited for the disk, in microseconds.
    lag: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Keeper {
    fn start(parts: &Parts, head: Arc<Head>, config: Config, board: Arc<Board>) -> Self {
        let (sender, receiver) = chores::channel::<Chore>();
        let notes = Arc::new(Notes::default());
        let (folder, name, seen) = (parts.folder.clone(), parts.name.clone(), notes.clone());
        let work = move || {
            for chore in receiver {
                match chore {
                    Chore::Sync(file, since) => {
                        let synced = file.sync_data();
                        seen.lag.fetch_max(since.elapsed().as_micros() as u64, Ordering::Relaxed);
                        if let Err(e) = synced {
                            *seen.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                                Some(e.to_string());
                        }
                        seen.syncing.store(false, Ordering::Release);
                    }
                    Chore::Base { state, number, learning, extra } => {
                        let written = folder.write_base(state, number, learning, extra);
                        match written.and_then(|()| folder.compact(number)) {
                            Ok(_) => tracing::debug!(stream = name, number, "log compacted"),
                            // The log goes on growing, and nothing is lost; the next rotation tries again.
                            Err(e) => {
                                tracing::warn!(stream = name, error = %e, "the log could not be compacted")
                            }
                        }
                        seen.basing.store(false, Ordering::Release);
                    }
                    Chore::Publish { state, learning, generation } => {
                        let session = Session::new(head.clone(), &config).and_then(|mut session| {
                            session.load(&state)?;
                            session.set_learning(learning);
                            Ok(session)
                        });
                        match session {
                            Ok(session) => board.publish(Arc::new(session), generation),
                            Err(e) => tracing::error!(stream = name, error = %e, "publishing failed"),
                        }
                        seen.publishing.store(false, Ordering::Release);
                    }
                }
            }
        };
        let spawned = std::thread::Builder::new().name(format!("keep {}", parts.name)).spawn(work);
        match spawned {
            Ok(thread) => Self { chores: Some(sender), thread: Some(thread), notes },
            Err(e) => {
                tracing::error!(stream = parts.name, error = %e, "no keeper thread");
                Self { chores: None, thread: None, notes }
            }
        }
    }

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

    /// `false` while an earlier sync is under way.
    fn sync(&self, file: File, since: Instant) -> bool {
        self.send(&self.notes.syncing, || Chore::Sync(file, since))
    }

    fn base(&self, state: State, number: u64, learning: bool, extra: Extra) {
        self.send(&self.notes.basing, || Chore::Base { state, number, learning, extra });
    }

    fn basing(&self) -> bool {
        self.notes.basing.load(Ordering::Acquire)
    }

    /// `false` while an earlier session is being published.
    fn publish(&self, session: &Session, generation: u64) -> bool {
        self.send(&self.notes.publishing, || Chore::Publish {
            state: session.state(),
            learning: session.learning(),
            generation,
        })
    }

    fn failure(&self) -> Option<String> {
        self.notes.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Finishes what is under way.
    fn finish(&mut self) {
        self.chores = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
