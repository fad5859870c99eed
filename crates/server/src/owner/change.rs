//! Changes of state: freeze, reset, roll back, merge.

use ultta::{Session, State};

use super::Owner;
use crate::problem::Problem;
use crate::store::Extra;

impl Owner {
    /// Stops or resumes learning.
    pub fn set_learning(&mut self, learning: bool) -> Result<(), Problem> {
        if self.session.learning() == learning {
            return Ok(());
        }
        self.log_learning(learning)?;
        self.session.set_learning(learning);
        self.publishing.behind = true;
        if learning {
            self.announce("unfrozen", "samples teach again");
        } else {
            self.announce("frozen", "samples are answered; neither they nor labels teach");
        }
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

    /// Somebody has acknowledged what was lost on the disk, and the open alarms.
    pub fn acknowledge(&mut self) -> Result<(), Problem> {
        self.parts.folder.acknowledge_damage()?;
        if let Some(damage) = self.damage.take() {
            self.announce("acknowledged", &damage);
        }
        match self.acknowledge_alarms()? {
            0 => {}
            1 => self.announce("acknowledged", "an alarm"),
            n => self.announce("acknowledged", &format!("{n} alarms")),
        }
        Ok(())
    }

    /// The alarms so far are known, after a restart, too. Returns how many were open.
    pub fn acknowledge_alarms(&mut self) -> Result<usize, Problem> {
        self.parts.folder.acknowledge_alarms(self.extra.generation, self.session.next_id())?;
        Ok(self.board.acknowledge_alarms())
    }

    /// Number of samples seen.
    pub fn seen(&self) -> u64 {
        self.session.next_id()
    }

    /// Keeps the state under a label.
    pub fn snapshot(&mut self, label: &str) -> Result<(), Problem> {
        self.parts.folder.save_snapshot(label, &self.session.state())?;
        self.board.event(self.parts.clock.now(), "snapshot", format!("kept as {label}"));
        Ok(())
    }

    /// Puts another session in the place of this one. The log goes on, and a new generation of sample ids begins.
    /// The new state is on the disk before this returns.
    fn replace(&mut self, mut session: Session, kind: &'static str, text: &str) -> Result<(), Problem> {
        session.set_learning(self.session.learning());
        session.keep_membership(&self.session)?;
        // Arrival times start again, too: a wrong time must not outlive the state that learnt from it.
        let extra = Extra {
            generation: self.extra.generation + 1,
            position: self.extra.position,
            ..Extra::default()
        };
        self.write_base(session.state(), session.learning(), extra)?;
        self.session = session;
        self.extra = extra;
        self.recent.clear();
        self.board.clear();
        self.disk.accepts_again();
        self.publishing.behind = true;
        self.publishing.wanted = true;
        self.announce(kind, text);
        self.publish();
        Ok(())
    }

    /// Tells of a change: in the server's log, in the stream's status and among its events.
    pub(super) fn announce(&mut self, kind: &'static str, text: &str) {
        tracing::info!(stream = self.parts.name, kind, "{text}");
        self.copied = None;
        self.board.set_status(self.status());
        self.board.event(self.parts.clock.now(), kind, text);
    }
}
