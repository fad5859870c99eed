//! A session in a *group*: members with the same head and settings that teach each other the classes.
//!
//! ```text
//! join ─► cut ─► (the others) take ─► … ─► contribution (all that a member gave) ─► rebuild (a newcomer), withdraw_member
//! ```
//!
//! Evidence is shared. What belongs to one camera stays with it: scenes, prior, temperatures, gate, guard. [`Delta`] is what
//! goes from one member to the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Delta, Error, Result, Session, State};

/// Who shares: what a delta must be for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kinship {
    /// Digest of the head.
    pub head: String,
    /// The settings that evidence depends on.
    pub settings: String,
}

/// What a member has heard of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// How often its contribution was taken out.
    pub epoch: u64,
    /// The number of its last delta.
    pub number: u64,
    /// Samples behind all that it ever gave.
    pub samples: u64,
    /// The group's clock when it gave last.
    pub stamp: f64,
}

/// Where a member stands in its group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Membership {
    /// Its name in the group.
    pub member: String,
    /// What it has given itself.
    pub given: Heard,
    /// Samples that it has learnt from and not given yet.
    pub waiting: u64,
    /// What it has heard, by member.
    pub heard: BTreeMap<String, Heard>,
    /// Samples of all members.
    pub clock: f64,
    /// Samples behind the others' evidence, faded to now.
    pub others: f64,
    /// How many of them count here: fewer where the others see the classes differently.
    pub counted: f64,
    /// Whether the others' evidence is set aside, because it misled.
    pub set_aside: bool,
}

/// A method whose evidence can be shared. [`Session`] has the same calls for users.
pub trait Sharing {
    /// Becomes a member.
    fn join(&mut self, member: &str, kin: Kinship) -> Result<()>;
    /// What was learnt since the last cut; `None` if that is nothing yet.
    fn cut(&mut self) -> Result<Option<Delta>>;
    /// The delta that was cut last.
    fn last_cut(&self) -> Option<Delta>;
    /// Whether a delta would be taken: `false` if it is known already.
    fn is_new(&self, delta: &Delta) -> Result<bool>;
    /// Adds what another member has learnt. `false` if it is known already.
    fn take(&mut self, delta: &Delta) -> Result<bool>;
    /// All that this member gave, as one delta.
    fn contribution(&self) -> Result<Delta>;
    /// All that the group gave, as one delta in the name of nobody: the same for all members that heard the same.
    fn total(&self) -> Result<Delta>;
    /// Those of whole contributions that `rebuild` takes, and why it takes the rest not.
    fn sift(&self, contributions: Vec<Delta>) -> Result<(Vec<Delta>, Vec<Error>)>;
    /// Starts again with the others' whole contributions.
    fn rebuild(&mut self, contributions: &[Delta]) -> Result<()>;
    /// Takes a member's whole contribution out.
    fn withdraw_member(&mut self, contribution: &Delta) -> Result<()>;
    /// Where it stands; `None` before it joined.
    fn membership(&self) -> Option<Membership>;
    /// Saves what it knows of the group, and takes it over into another session of the same stream.
    fn save_group(&self) -> State;
    /// Reads what `save_group` wrote. What the session has learnt by itself counts as told.
    fn load_group(&mut self, state: &State) -> Result<()>;
}

impl Session {
    /// Becomes a member of a group under a name that no other member has. What was learnt before is part of the first delta.
    /// A member that joins under another name gives from there on; what it gave before stays in the group.
    pub fn join(&mut self, member: &str) -> Result<()> {
        if member.is_empty() || member.len() > 200 || member.chars().any(char::is_control) {
            let reason = "a member's name: expected 1 to 200 characters that can be printed".into();
            return Err(Error::NotShared { reason });
        }
        let kin =
            Kinship { head: self.head.digest().into(), settings: self.config.state_settings().to_string() };
        self.sharing_mut()?.join(member, kin)
    }

    /// What was learnt since the last cut, for the others; `None` if that is nothing yet.
    pub fn cut(&mut self) -> Result<Option<Delta>> {
        self.sharing_mut()?.cut()
    }

    /// The delta that was cut last: to be sent again by a member that does not know whether it arrived.
    pub fn last_cut(&self) -> Result<Option<Delta>> {
        Ok(self.sharing()?.last_cut())
    }

    /// Adds what another member has learnt; nothing local restarts. `false` if it is known already. On an error nothing has
    /// changed: [`Error::Gap`] asks for [`rebuild`](Self::rebuild), [`Error::Delta`] says why the delta is refused.
    pub fn take(&mut self, delta: &Delta) -> Result<bool> {
        self.sharing_mut()?.take(delta)
    }

    /// Whether [`take`](Self::take) would add a delta, or why it would refuse it.
    pub fn is_new(&self, delta: &Delta) -> Result<bool> {
        self.sharing()?.is_new(delta)
    }

    /// All that this member gave, as one delta: for checkpoints, and to take it out again.
    pub fn contribution(&self) -> Result<Delta> {
        self.sharing()?.contribution()
    }

    /// All that the group gave, faded to now: the same for all members that heard the same.
    pub fn group_total(&self) -> Result<Delta> {
        self.sharing()?.total()
    }

    /// Those of some whole contributions that [`rebuild`](Self::rebuild) takes, and why it refuses the others.
    pub fn sift(&self, contributions: Vec<Delta>) -> Result<(Vec<Delta>, Vec<Error>)> {
        self.sharing()?.sift(contributions)
    }

    /// Forgets what was heard, and starts again with the whole contributions of the other members. All of them must fit, or
    /// nothing changes; [`sift`](Self::sift) tells which do.
    pub fn rebuild(&mut self, contributions: &[Delta]) -> Result<()> {
        self.sharing_mut()?.rebuild(contributions)
    }

    /// Takes a member's whole contribution out. For the member itself that is all it has learnt.
    pub fn withdraw_member(&mut self, contribution: &Delta) -> Result<()> {
        self.sharing_mut()?.withdraw_member(contribution)
    }

    /// Where the session stands in its group; `None` outside of one.
    pub fn membership(&self) -> Option<Membership> {
        self.adapter.sharing().and_then(|sharing| sharing.membership())
    }

    /// Takes over another session's place in its group: after a reset, a return to an earlier state or a merge. Only what
    /// is learnt from here on will be given.
    pub fn keep_membership(&mut self, of: &Session) -> Result<()> {
        match of.adapter.sharing().filter(|sharing| sharing.membership().is_some()) {
            Some(sharing) => {
                let group = sharing.save_group();
                self.sharing_mut()?.load_group(&group)
            }
            None => Ok(()),
        }
    }

    fn sharing(&self) -> Result<&dyn Sharing> {
        self.adapter.sharing().ok_or_else(|| no_evidence(self.adapter.card().name))
    }

    fn sharing_mut(&mut self) -> Result<&mut dyn Sharing> {
        let name = self.adapter.card().name;
        self.adapter.sharing_mut().ok_or_else(|| no_evidence(name))
    }
}

fn no_evidence(method: &str) -> Error {
    Error::NotShared { reason: format!("the method {method} keeps no evidence that could be shared") }
}
