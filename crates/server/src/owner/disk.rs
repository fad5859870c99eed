//! What an owner keeps on the disk: the log and the base states; and what happens while the disk refuses them.

use std::time::{Duration, Instant};

use ultta::State;

use super::Owner;
use crate::fleet::GroupRecord;
use crate::job::Classify;
use crate::keeper::Written;
use crate::log::Log;
use crate::problem::Problem;
use crate::settings::Durability;
use crate::store::Extra;

/// Pause between two attempts to write after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Whether the files of the stream are what they were is looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// The log, and whether the disk takes it.
pub(super) struct Disk {
    log: Log,
    /// Why the disk does not take the log; `None` while it does.
    refusal: Option<String>,
    /// When writing was last tried after a failure.
    tried: Instant,
    /// When the oldest record that is not synced yet was written.
    unsynced_since: Option<Instant>,
    /// When the files were last looked at.
    looked: Instant,
    /// What somebody else has done to the files, until it is noted.
    harm: Option<String>,
}

impl Disk {
    pub(super) fn new(log: Log) -> Self {
        let now = Instant::now();
        Self { log, refusal: None, tried: now, unsynced_since: None, looked: now, harm: None }
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    pub(super) fn accepts_again(&mut self) {
        self.refusal = None;
    }

    /// When the next chore is due: a moment, and a time after it.
    pub(super) fn next_chore(&self, sync_interval: Duration) -> (Duration, Instant) {
        let look = if self.refusal.is_some() { (RETRY, self.tried) } else { (LOOK, self.looked) };
        let sync = self.unsynced_since.map(|since| (sync_interval, since));
        sync.filter(|(after, since)| *since + *after < look.1 + look.0).unwrap_or(look)
    }

    /// Writes what was staged. Without `sync` it is synced later.
    fn commit(&mut self, sync: bool) -> std::io::Result<()> {
        self.log.commit(sync)?;
        if !sync {
            self.unsynced_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }
}

impl Owner {
    /// Syncs, tries again after a failure, starts a new log when the old one is long.
    pub(super) fn do_disk_chores(&mut self) {
        if let Some(failure) = self.keeper.take_failure() {
            self.degrade(format!("syncing the log failed: {failure}"));
        }
        if self.keeper.has_ended() && self.disk.refusal.is_none() {
            self.degrade("the thread that syncs the log has ended; restart the server".into());
        }
        if self.disk.refusal.is_some() && self.disk.tried.elapsed() >= RETRY {
            self.try_again();
        }
        if self.disk.refusal.is_none() && self.disk.looked.elapsed() >= LOOK {
            self.look();
        }
        if let Some(since) = self.disk.unsynced_since
            && since.elapsed() >= self.parts.sync_interval
            && self.keeper.sync(Written::of(&self.disk.log, since))
        {
            self.disk.unsynced_since = None;
        }
        let long = self.disk.log.bytes() >= self.parts.compact_bytes;
        if long && self.disk.refusal.is_none() && !self.keeper.writes_base() {
            self.rotate();
        }
    }

    /// Logs samples with one write. `false` while the disk refuses the log.
    pub(super) fn log_samples(&mut self, group: &[Classify]) -> bool {
        if self.refuse_if_degraded("").is_err() {
            return false;
        }
        for job in group {
            self.disk.log.stage_samples(&job.samples);
        }
        self.commit().is_ok()
    }

    /// Logs delayed labels.
    pub(super) fn log_labels<'a>(
        &mut self,
        labels: impl Iterator<Item = &'a (u64, usize)>,
    ) -> Result<(), Problem> {
        self.refuse_if_degraded("nothing is learnt at the moment")?;
        for (id, label) in labels {
            self.disk.log.stage_feedback(*id, *label as u64);
        }
        self.commit().map_err(|reason| Problem::storage(format!("the labels cannot be kept: {reason}")))
    }

    /// Logs labels that count at once, and those that are taken back.
    pub(super) fn log_corrections(&mut self, given: &[(u64, Option<usize>)]) -> Result<(), Problem> {
        self.refuse_if_degraded("nothing is learnt at the moment")?;
        for (id, label) in given {
            self.disk.log.stage_correction(*id, label.map(|label| label as u64));
        }
        self.commit().map_err(|reason| Problem::storage(format!("the labels cannot be kept: {reason}")))
    }

    /// Logs what a group does.
    pub(super) fn log_group(&mut self, record: &GroupRecord) -> Result<(), Problem> {
        self.refuse_if_degraded("what the group knows cannot be kept")?;
        self.disk.log.stage_group(record);
        self.commit()
            .map_err(|reason| Problem::storage(format!("what the group knows cannot be kept: {reason}")))
    }

    /// Logs that learning is stopped or resumed.
    pub(super) fn log_learning(&mut self, learning: bool) -> Result<(), Problem> {
        self.refuse_if_degraded("the change cannot be kept")?;
        self.disk.log.stage_learning(learning);
        self.commit().map_err(|reason| Problem::storage(format!("the change cannot be kept: {reason}")))
    }

    /// Before anything is logged: whether the disk takes it, into a file that is still the log.
    fn refuse_if_degraded(&mut self, what: &str) -> Result<(), Problem> {
        if self.disk.refusal.is_none() && self.disk.log.harm().is_some() {
            self.mend();
        }
        match &self.disk.refusal {
            Some(reason) => Err(Problem::storage(format!("{what}: {reason}"))),
            None => Ok(()),
        }
    }

    /// Writes what was staged; if the disk does not take it, nothing is learnt from here on. The error says why.
    fn commit(&mut self) -> Result<(), String> {
        let sync = self.parts.durability == Durability::Sync;
        self.disk.commit(sync).map_err(|e| {
            let reason = format!("writing the log failed: {e}");
            self.degrade(reason.clone());
            reason
        })?;
        if sync {
            self.parts.folder.note_synced(self.disk.log.next());
        }
        Ok(())
    }

    /// From here on samples are answered without learning, until the disk takes the log again.
    fn degrade(&mut self, reason: String) {
        self.disk.tried = Instant::now();
        if self.disk.refusal.is_none() {
            tracing::error!(stream = self.parts.name, reason, "degraded: answering without learning");
            self.board.event(self.parts.clock.now(), "degraded", reason.clone());
        }
        self.disk.refusal = Some(reason);
        self.board.set_status(self.status());
    }

    /// Tries to go on after a failure: a whole new base and log, with all that was learnt before.
    fn try_again(&mut self) {
        self.disk.tried = Instant::now();
        if self.keeper.has_ended() {
            return;
        }
        match self.restore() {
            Ok(()) => {
                self.disk.accepts_again();
                self.announce("recovered", "the disk takes the log again; learning goes on");
                self.tell_damage();
            }
            Err(problem) => self.degrade(problem.detail),
        }
    }

    /// Looks whether the files of the stream are what they were.
    fn look(&mut self) {
        self.disk.looked = Instant::now();
        // A base that is being written changes what belongs to the stream.
        if self.keeper.writes_base() {
            return;
        }
        if !self.parts.folder.look(&self.disk.log).is_empty() {
            self.mend();
        }
        self.parts.folder.look_at_copies();
        self.tell_damage();
    }

    /// What somebody else has removed, cut or exchanged is told as damage, and written anew from what is in memory.
    fn mend(&mut self) {
        match self.restore() {
            Ok(()) => self.tell_damage(),
            Err(problem) => self.degrade(problem.detail),
        }
    }

    fn tell_damage(&mut self) {
        let damage = self.parts.folder.damage();
        if damage != self.damage {
            self.damage = damage;
            let text = self.damage.clone().unwrap_or_else(|| "what was missing is back".into());
            self.announce("damaged", &text);
        }
    }

    /// Makes the stream's folder whole with all that is in memory, and notes what somebody else had done to it.
    fn restore(&mut self) -> Result<(), Problem> {
        while self.keeper.writes_base() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let folder = self.parts.folder.clone();
        let harms = folder.look(&self.disk.log);
        if !harms.is_empty() {
            let told: Vec<String> = harms.iter().map(ToString::to_string).collect();
            let told = told.join("; ");
            if self.disk.refusal.is_none() {
                tracing::error!(stream = self.parts.name, "somebody else changed its files: {told}");
            }
            folder.restore(&harms, self.session.head()).map_err(|e| {
                Problem::storage(format!(
                    "somebody else changed its files ({told}), and they cannot be written anew: {e}"
                ))
            })?;
            self.disk.harm = Some(format!(
                "somebody else changed files of the stream while the server ran ({told}); all that was learnt was written anew"
            ));
        }
        self.begin_log_at(self.session.state(), self.session.learning(), self.extra)?;
        if let Some(harm) = self.disk.harm.take() {
            folder.note_damage(&harm)?;
        }
        Ok(())
    }

    /// Makes a state the one that recovery starts from, with an empty log behind it. On an error nothing is learnt until
    /// a later attempt succeeds: which of the two states the disk has is known only then.
    pub(super) fn write_base(&mut self, state: State, learning: bool, extra: Extra) -> Result<(), Problem> {
        // A base that is still being written is listed first.
        while self.keeper.writes_base() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let written = self.begin_log_at(state, learning, extra);
        if let Err(problem) = &written
            && self.disk.refusal.is_none()
        {
            self.degrade(format!("writing the state failed: {}", problem.detail));
        }
        written
    }

    fn begin_log_at(&mut self, state: State, learning: bool, extra: Extra) -> Result<(), Problem> {
        let number = self.disk.log.next();
        // A segment counts once it is listed, together with the base that it begins behind.
        let log = self.parts.folder.create_log(number)?;
        let log = if self.disk.log.first() == number {
            // The new segment has replaced the segment in use, which was empty.
            self.disk.log = log;
            None
        } else {
            Some(log)
        };
        if self.disk.unsynced_since.is_some() {
            // If writing the base fails, the old segment still counts.
            self.disk.log.file().sync_data().map_err(|e| Problem::storage(e.to_string()))?;
        }
        self.parts.folder.write_base(state, number, learning, extra)?;
        if let Some(log) = log {
            self.disk.log = log;
        }
        self.disk.unsynced_since = None;
        if let Err(e) = self.parts.folder.compact() {
            tracing::warn!(stream = self.parts.name, error = %e, "old logs stay");
        }
        Ok(())
    }

    /// Starts a new segment; the keeper writes the state before it and removes what came earlier.
    fn rotate(&mut self) {
        let number = self.disk.log.next();
        let folder = &self.parts.folder;
        let log = match folder.create_log(number).and_then(|log| folder.list_log(number).map(|()| log)) {
            Ok(log) => log,
            Err(e) => return self.degrade(format!("starting a new log failed: {e}")),
        };
        let old = std::mem::replace(&mut self.disk.log, log);
        self.parts.folder.remember_log(old.first());
        // Both segments are kept until the base is written.
        let before = self.disk.unsynced_since.take().map(|since| Written::of(&old, since));
        self.keeper.write_base(before, self.session.state(), number, self.session.learning(), self.extra);
    }

    /// Before the thread ends: writes a base state with everything that was accepted.
    pub(super) fn finish(&mut self) {
        self.keeper.finish();
        match self.restore() {
            Ok(()) => {
                tracing::info!(stream = self.parts.name, seen = self.session.next_id(), "state written")
            }
            Err(e) => {
                tracing::error!(stream = self.parts.name, error = e.detail, "the state could not be written")
            }
        }
    }
}
