//! A stream in a group: what it learnt is cut for the others, what they learnt is added. Logged before it counts, as all else.

use ultta::{Delta, Membership};

use super::Owner;
use crate::fleet::GroupRecord;
use crate::problem::Problem;

/// Where a member stands, and the last message of the broker that it knows.
#[derive(Clone, Debug)]
pub struct Standing {
    pub membership: Membership,
    #[cfg_attr(not(feature = "nats"), allow(dead_code))]
    pub position: u64,
}

/// What became of a delta.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    New,
    Known,
    /// Something before it is missing.
    Gap,
    /// It is in this member's own name, and not of its making.
    Stolen,
    Refused(String),
}

/// A contribution that was left out.
#[derive(Clone, Debug)]
pub struct LeftOut {
    pub member: String,
    pub reason: String,
}

impl Owner {
    /// Becomes a member, unless it is one of that name already. After a loss on the disk a member goes by a name of its own,
    /// `NAME~…`, which it keeps.
    pub fn join(&mut self, name: &str) -> Result<(), Problem> {
        let known = self.session.membership().map(|membership| membership.member);
        let own = |member: &str| {
            member.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('~'))
        };
        match known {
            Some(member) if own(&member) => Ok(()),
            _ => self.record(&GroupRecord::Join { member: name.into() }).map(|_| ()),
        }
    }

    #[cfg(feature = "nats")]
    /// Joins under a new name: the old one is someone else's, or of a later past that was lost.
    pub fn rename(&mut self, name: &str) -> Result<(), Problem> {
        let member = format!("{name}~{}", (self.parts.clock.now() * 1e3) as u64);
        self.record(&GroupRecord::Join { member: member.clone() })?;
        self.announce("renamed", &format!("the group knew {name} otherwise; it goes on as {member}"));
        Ok(())
    }

    /// Cuts what was learnt since the last time, if that is as much as `least` samples.
    pub fn cut(&mut self, least: u64) -> Result<Option<Delta>, Problem> {
        let waiting = self.session.membership().map_or(0, |membership| membership.waiting);
        if waiting < least.max(1) {
            return Ok(None);
        }
        Ok(self.record(&GroupRecord::Cut)?.cut)
    }

    #[cfg(feature = "nats")]
    /// The delta that was cut last.
    pub fn last_cut(&self) -> Option<Delta> {
        self.session.last_cut().ok().flatten()
    }

    /// Adds what another member has learnt.
    pub fn take(&mut self, position: u64, delta: &Delta, bytes: &[u8]) -> Result<Taken, Problem> {
        match self.session.is_new(delta) {
            Ok(true) => {}
            Ok(false) => {
                self.extra.position = self.extra.position.max(position);
                return Ok(Taken::Known);
            }
            Err(ultta::Error::Gap { .. }) => return Ok(Taken::Gap),
            Err(e) if self.session.membership().is_some_and(|m| m.member == delta.member()) => {
                tracing::warn!(stream = self.parts.name, error = %e, "the group");
                return Ok(Taken::Stolen);
            }
            Err(e) => return Ok(Taken::Refused(e.to_string())),
        }
        self.record(&GroupRecord::Take { position, delta: bytes.to_vec() })?;
        Ok(Taken::New)
    }

    /// Starts again with whole contributions of the others. Those that do not fit are left out; tells whose, and why.
    pub fn rebuild(&mut self, position: u64, contributions: Vec<Delta>) -> Result<Vec<LeftOut>, Problem> {
        let (taken, refused) = self.session.sift(contributions)?;
        let contributions = taken.iter().map(Delta::to_bytes).collect::<ultta::Result<_>>()?;
        self.record(&GroupRecord::Rebuild { position, contributions })?;
        self.announce("rebuilt", "what the group knows was taken over anew");
        let told = refused.into_iter().map(|error| match error {
            ultta::Error::Delta { ref member, .. } => {
                LeftOut { member: member.clone(), reason: error.to_string() }
            }
            other => LeftOut { member: String::new(), reason: other.to_string() },
        });
        Ok(told.collect())
    }

    /// Takes a member's whole contribution out. `false` if that is not what was heard of it.
    pub fn drop_member(&mut self, position: u64, contribution: &Delta) -> Result<bool, Problem> {
        let Some(membership) = self.session.membership() else { return Ok(false) };
        let (member, epoch) = (contribution.member(), contribution.epoch());
        let own = membership.member == member;
        let heard = if own { Some(membership.given) } else { membership.heard.get(member).copied() };
        let fits = heard.is_some_and(|h| h.epoch == epoch && (own || h.number == contribution.span().1));
        if !fits {
            return Ok(false);
        }
        let contribution = contribution.to_bytes()?;
        self.record(&GroupRecord::Drop { position, contribution })?;
        let text = format!("what {member} gave to the group was taken out");
        self.announce("dropped", &text);
        Ok(true)
    }

    /// All that this member gave.
    pub fn contribution(&self) -> Result<Delta, Problem> {
        Ok(self.session.contribution()?)
    }

    /// All that the group gave.
    pub fn group_total(&self) -> Result<Delta, Problem> {
        Ok(self.session.group_total()?)
    }

    pub fn standing(&self) -> Option<Standing> {
        let membership = self.session.membership()?;
        Some(Standing { membership, position: self.extra.position })
    }

    fn record(&mut self, record: &GroupRecord) -> Result<crate::fleet::Changed, Problem> {
        self.log_group(record)?;
        let done = record.apply(&mut self.session, &mut self.extra)?;
        self.publishing.behind |= done.changed;
        self.copied = None;
        Ok(done)
    }
}
