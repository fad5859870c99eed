//! The evidence of a group, as one member knows it.
//!
//! *The law.* The group's *clock* T counts the samples of all members. Delta i, cut when its member's clock stood at t_i, adds
//! to the group's evidence
//!
//! ```text
//! sums_i · 2^(−(T − t_i) / half-life)
//! ```
//!
//! and T is the sum of the samples of all deltas that are known (or the largest t_i, should that lie ahead because others
//! are not known yet). Both are sums and maxima over a set, so the order and the grouping of deltas do not matter: members that
//! heard the same hold the same, but for rounding. Within a delta its member's own samples fade as they do without a group.
//! Deltas of a member are numbered. Each is added once, in order; a gap asks for the member's whole contribution.
//!
//! A member keeps the sum of what the others gave and the sum of what it gave itself. Its answers come from the fold of its own
//! evidence pooled with the others' (`evidence/fold.rs`, where their worth is earned). Others whose evidence has misled are
//! set aside for some updates, longer each time.

mod body;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Evidence, UlTta};
use crate::delta::{Delta, LABELS, Sums, refused};
use crate::group::{Heard, Kinship, Membership, Sharing};
use crate::methods::triangle;
use crate::{Error, Result, State};
use body::Body;
pub(super) use body::Others;

/// A clock may run this many half-lives ahead of what is known. Beyond that it would make the group forget everything.
const AHEAD: f64 = 8.0;

/// What all members may have given since their whole contributions were kept, in samples of each: a contribution's clock counts it.
const SINCE_KEPT: f64 = 1e6;

/// Members of a group, at most: each costs every other one a line of its state.
const MOST_MEMBERS: usize = 4096;

/// Updates for which others are set aside that have misled, the first time.
const ASIDE: u64 = 8;

/// The largest tempo: a member in a large group waits for an eighth of the samples that it would wait for alone, so that
/// the fits have some samples to go by.
const MOST_PACE: f64 = 8.0;

/// The group's clock goes no further.
const LATEST: f64 = 1e15;

/// What a member knows of its group.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    member: String,
    kin: Kinship,
    half_life: f64,
    own: Heard,
    heard: BTreeMap<String, Heard>,
    /// Samples of all deltas, and the largest stamp.
    clock: f64,
    latest: f64,
    /// What this member gave, and what the others did. Clones share both until one of them changes.
    given: Arc<Body>,
    others: Arc<Body>,
    last: Option<Arc<Delta>>,
    /// How often others were set aside, and for how many more updates they are.
    asides: u64,
    aside: u64,
}

impl Shared {
    fn new(member: &str, kin: Kinship, half_life: f64, classes: usize, dim: usize) -> Self {
        let body = Arc::new(Body::new(classes, dim));
        Self {
            member: member.into(),
            kin,
            half_life,
            own: Heard::default(),
            heard: BTreeMap::new(),
            clock: 0.0,
            latest: 0.0,
            given: body.clone(),
            others: body,
            last: None,
            asides: 0,
            aside: 0,
        }
    }

    /// The group's clock.
    fn now(&self) -> f64 {
        self.clock.max(self.latest)
    }

    /// The *tempo*: how many samples of the group come on one of this member's, as far as they were given.
    pub(super) fn tempo(&self) -> f64 {
        (self.clock / self.own.samples.max(1) as f64).clamp(1.0, MOST_PACE)
    }

    /// What the others have learnt, unless it is set aside.
    pub(super) fn others(&self) -> Option<Others<'_>> {
        let scale = ((self.others.reference - self.now()) / self.half_life).exp2();
        (self.aside == 0).then_some(Others { body: &self.others, scale })
    }

    /// What the others have learnt. Called once per update, because it shortens the time they are set aside.
    pub(super) fn others_at_update(&mut self) -> Option<Others<'_>> {
        self.aside = self.aside.saturating_sub(1);
        self.others()
    }

    /// Sets others aside that have misled.
    pub(super) fn set_aside(&mut self) {
        self.aside = ASIDE << self.asides.min(10);
        self.asides += 1;
    }

    pub(super) fn bytes(&self) -> usize {
        let (c, d) = (self.given.class_n.len(), self.given.sum.len());
        // Two bodies and the mark.
        3 * 8 * (c * d + c + triangle::len(d) + 2 * d)
    }

    /// The delta that leads from one place to another.
    fn delta(&self, member: &str, from: Heard, to: Heard, sums: Sums) -> Delta {
        let Kinship { head, settings } = self.kin.clone();
        let Heard { epoch, number: upto, samples, stamp } = to;
        let (after, before) = (from.number, from.samples);
        let samples = samples - before;
        let half_life = if self.half_life.is_finite() { self.half_life } else { 0.0 };
        let member = member.into();
        Delta { head, settings, member, epoch, after, upto, before, samples, stamp, half_life, sums }
    }

    /// Refuses what is not for this group, or cannot be.
    fn check(&self, delta: &Delta) -> Result<()> {
        let (classes, dim) = (self.given.class_n.len(), self.given.sum.len());
        delta.check(&self.kin.head, &self.kin.settings, classes, dim)
    }

    /// Adds a delta that was checked and follows what is known.
    fn add(&mut self, delta: &Delta) {
        let known = self.heard.get(&delta.member).map_or(0, |heard| heard.samples);
        let samples = delta.before + delta.samples;
        Arc::make_mut(&mut self.others).add(&delta.sums, delta.stamp, self.half_life, 1.0);
        self.clock = (self.clock + samples.saturating_sub(known) as f64).min(LATEST);
        self.latest = self.latest.max(delta.stamp);
        let heard = Heard { epoch: delta.epoch, number: delta.upto, samples, stamp: delta.stamp };
        self.heard.insert(delta.member.clone(), heard);
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("shared.at", &[self.own.epoch, self.own.number, self.own.samples, self.asides, self.aside]);
        state.put("shared.clock", &[self.clock, self.latest, self.own.stamp]);
        let strings = [&self.member, &self.kin.head, &self.kin.settings].map(|s| s.as_str());
        // Strings and numbers are always valid JSON.
        let names = serde_json::to_vec(&(strings, &self.heard)).unwrap_or_default();
        state.put("shared.names", &names);
        self.given.save("given", state);
        self.others.save("others", state);
        let last = self.last.as_ref().and_then(|last| last.to_bytes().ok()).unwrap_or_default();
        state.put("shared.last", &last);
    }

    pub(super) fn load(state: &State, half_life: f64, classes: usize, dim: usize) -> Result<Self> {
        let [epoch, number, samples, asides, aside] = state.counts("shared.at")?;
        let clock = state.within::<f64>("shared.clock", 3, 0.0..=LATEST)?;
        let ([member, head, settings], heard): ([String; 3], _) =
            serde_json::from_slice(state.get::<u8>("shared.names")?)
                .map_err(|e| Error::state(format!("shared.names: {e}")))?;
        let last = match state.get::<u8>("shared.last")? {
            [] => None,
            bytes => Some(Arc::new(Delta::from_bytes(bytes)?)),
        };
        Ok(Self {
            member,
            kin: Kinship { head, settings },
            half_life,
            own: Heard { epoch, number, samples, stamp: clock[2] },
            heard,
            clock: clock[0],
            latest: clock[1],
            given: Arc::new(Body::load("given", state, classes, dim)?),
            others: Arc::new(Body::load("others", state, classes, dim)?),
            last,
            asides,
            aside,
        })
    }
}

impl UlTta {
    fn shared(&self) -> Result<&Shared> {
        self.shared.as_deref().ok_or_else(not_joined)
    }

    fn shared_half_life(&self) -> f64 {
        self.config.half_life(self.head.n_classes())
    }

    /// Evidence that knows nothing of its own.
    fn fresh_evidence(&self) -> Box<Evidence> {
        Box::new(Evidence::new(&self.config, self.head.n_classes(), self.head.dim()))
    }
}

fn not_joined() -> Error {
    Error::NotShared { reason: "the session has not joined a group".into() }
}

impl Sharing for UlTta {
    fn join(&mut self, member: &str, kin: Kinship) -> Result<()> {
        if self.evidence.is_none() {
            return Err(Error::NotShared { reason: "prototypes are frozen, so there is no evidence".into() });
        }
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        match self.shared.as_deref_mut() {
            Some(shared) if shared.member == member => {}
            Some(shared) => {
                // What it gave under its old name stays, as another member's.
                let heard = std::mem::take(&mut shared.own);
                let old = std::mem::replace(&mut shared.member, member.into());
                let clock = shared.now();
                let sums = shared.given.at(clock, shared.half_life, None);
                let half_life = shared.half_life;
                Arc::make_mut(&mut shared.others).add(&sums, clock, half_life, 1.0);
                shared.given = Arc::new(Body::new(classes, dim));
                shared.last = None;
                if heard.number > 0 {
                    shared.heard.insert(old, heard);
                }
            }
            None => {
                let shared = Shared::new(member, kin, self.shared_half_life(), classes, dim);
                self.shared = Some(Box::new(shared));
            }
        }
        Ok(())
    }

    fn cut(&mut self) -> Result<Option<Delta>> {
        let (Some(shared), Some(evidence)) = (self.shared.as_deref_mut(), self.evidence.as_deref_mut())
        else {
            return Err(not_joined());
        };
        let samples = evidence.gained_samples();
        if samples == 0 {
            return Ok(None);
        }
        let sums = evidence.gained();
        // More labels than samples can carry: they wait for more samples.
        let taught: f64 = sums.class_n.iter().map(|&n| n.abs() as f64).sum();
        if taught > samples as f64 + LABELS || sums.withdrawn > samples as f64 + LABELS {
            return Ok(None);
        }
        let own = Heard {
            epoch: shared.own.epoch,
            number: shared.own.number + 1,
            samples: shared.own.samples + samples,
            stamp: shared.now() + samples as f64,
        };
        let delta = shared.delta(&shared.member, shared.own, own, sums);
        shared.check(&delta)?;
        Arc::make_mut(&mut shared.given).add(&delta.sums, delta.stamp, shared.half_life, 1.0);
        shared.clock += samples as f64;
        shared.latest = shared.latest.max(delta.stamp);
        shared.own = own;
        shared.last = Some(Arc::new(delta.clone()));
        evidence.set_mark();
        Ok(Some(delta))
    }

    fn last_cut(&self) -> Option<Delta> {
        self.shared.as_ref()?.last.as_deref().cloned()
    }

    fn is_new(&self, delta: &Delta) -> Result<bool> {
        let shared = self.shared()?;
        shared.check(delta)?;
        let Delta { member, epoch, after, upto, .. } = delta;
        if *member == shared.member {
            if (*epoch, *upto) <= (shared.own.epoch, shared.own.number) {
                return Ok(false);
            }
            let reason = "another member goes by this name, or this one was put back from an old copy; join under another name";
            return Err(refused(member, reason));
        }
        let heard = shared.heard.get(member).copied();
        if heard.is_none() && shared.heard.len() >= MOST_MEMBERS {
            return Err(refused(member, format!("a group has {MOST_MEMBERS} members at most")));
        }
        let known = heard.unwrap_or(Heard { epoch: *epoch, ..Heard::default() });
        if *epoch < known.epoch {
            return Err(refused(member, "its contribution was taken out of the group since"));
        }
        if *epoch == known.epoch && *upto <= known.number && heard.is_some() {
            return Ok(false);
        }
        if *epoch > known.epoch || *after != known.number {
            return Err(Error::Gap { member: member.clone(), expected: known.number, got: *after });
        }
        let ahead = shared.now() + delta.samples as f64 + AHEAD * shared.half_life;
        if delta.stamp > ahead {
            let reason =
                format!("its clock says {:.0}, and here it cannot be beyond {ahead:.0}", delta.stamp);
            return Err(refused(member, reason));
        }
        Ok(true)
    }

    fn take(&mut self, delta: &Delta) -> Result<bool> {
        if !self.is_new(delta)? {
            return Ok(false);
        }
        if let Some(shared) = self.shared.as_deref_mut() {
            shared.add(delta);
        }
        if let Some(evidence) = &mut self.evidence {
            let taught = delta.sums.classes.iter().zip(&delta.sums.class_n);
            taught.for_each(|(&class, &n)| evidence.freshen(class as usize, n));
        }
        Ok(true)
    }

    fn contribution(&self) -> Result<Delta> {
        let shared = self.shared()?;
        let clock = shared.now();
        let at = Heard { stamp: clock, ..shared.own };
        let sums = shared.given.at(clock, shared.half_life, None);
        Ok(shared.delta(&shared.member, Heard::default(), at, sums))
    }

    fn total(&self) -> Result<Delta> {
        let shared = self.shared()?;
        let clock = shared.now();
        let sums = shared.others.at(clock, shared.half_life, Some(&shared.given));
        let at = Heard { stamp: clock, samples: shared.clock as u64, ..Heard::default() };
        Ok(shared.delta("", Heard::default(), at, sums))
    }

    fn sift(&self, contributions: Vec<Delta>) -> Result<(Vec<Delta>, Vec<Error>)> {
        let shared = self.shared()?;
        let (mut taken, mut errors): (BTreeMap<String, Delta>, _) = (BTreeMap::new(), Vec::new());
        for delta in contributions.into_iter().filter(|delta| delta.member != shared.member) {
            let done = shared.check(&delta).and_then(|()| {
                let one_too_many = taken.len() >= MOST_MEMBERS;
                if delta.after != 0 || one_too_many || taken.contains_key(&delta.member) {
                    let reason = format!(
                        "a whole contribution is expected, one of each of {MOST_MEMBERS} members at most"
                    );
                    return Err(refused(&delta.member, reason));
                }
                Ok(())
            });
            match done {
                Ok(()) => drop(taken.insert(delta.member.clone(), delta)),
                Err(e) => errors.push(e),
            }
        }
        // What is left out justifies nobody else's clock: again until all that is left fits.
        loop {
            let samples: f64 = taken.values().map(|delta| (delta.before + delta.samples) as f64).sum();
            let since = SINCE_KEPT * (1 + taken.len()) as f64;
            let most =
                (shared.own.samples as f64 + samples).max(shared.now()) + since + AHEAD * shared.half_life;
            let ahead = taken.values().find(|delta| delta.stamp > most);
            let Some((member, stamp)) = ahead.map(|delta| (delta.member.clone(), delta.stamp)) else { break };
            taken.remove(&member);
            let reason = format!("its clock says {stamp:.0}, and here it cannot be beyond {most:.0}");
            errors.push(refused(&member, reason));
        }
        Ok((taken.into_values().collect(), errors))
    }

    fn rebuild(&mut self, contributions: &[Delta]) -> Result<()> {
        let (contributions, errors) = self.sift(contributions.to_vec())?;
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        let mut fresh = self.shared()?.clone();
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        fresh.others = Arc::new(Body::new(classes, dim));
        fresh.heard.clear();
        fresh.clock = fresh.own.samples as f64;
        fresh.latest = fresh.own.stamp;
        contributions.iter().for_each(|delta| fresh.add(delta));
        *self.shared.as_deref_mut().ok_or_else(not_joined)? = fresh;
        if let Some(evidence) = &mut self.evidence {
            evidence.unfold();
            evidence.recompute(self.shared.as_deref().and_then(Shared::others));
        }
        Ok(())
    }

    fn withdraw_member(&mut self, contribution: &Delta) -> Result<()> {
        let fresh = self.fresh_evidence();
        let shared = self.shared.as_deref_mut().ok_or_else(not_joined)?;
        shared.check(contribution)?;
        let Delta { member, epoch, after, upto, stamp, sums, .. } = contribution;
        let own = *member == shared.member;
        let known = if own { Some(&mut shared.own) } else { shared.heard.get_mut(member) };
        let Some(known) = known else { return Err(refused(member, "nothing was heard of it")) };
        // Of its own it may have given more meanwhile, which the others will refuse.
        let number = if own { *upto } else { known.number };
        if (known.epoch, number, 0) != (*epoch, *upto, *after) {
            return Err(Error::Gap { member: member.clone(), expected: known.number, got: *upto });
        }
        (known.epoch, known.number) = (known.epoch + 1, 0);
        if own {
            // What it learnt goes here, too, and it gives again from the start.
            shared.given = Arc::new(Body::new(self.head.n_classes(), self.head.dim()));
            shared.last = None;
            self.evidence = Some(fresh);
        } else {
            let half_life = shared.half_life;
            Arc::make_mut(&mut shared.others).add(sums, *stamp, half_life, -1.0);
        }
        if let Some(evidence) = &mut self.evidence {
            evidence.unfold();
            evidence.recompute(self.shared.as_deref().and_then(Shared::others));
        }
        Ok(())
    }

    fn membership(&self) -> Option<Membership> {
        let shared = self.shared.as_deref()?;
        let apart = self.evidence.as_ref().map_or(0.0, |evidence| evidence.apart());
        let scale = ((shared.others.reference - shared.now()) / shared.half_life).exp2();
        let others = Others { body: &shared.others, scale };
        Some(Membership {
            member: shared.member.clone(),
            given: shared.own,
            waiting: self.evidence.as_ref().map_or(0, |evidence| evidence.gained_samples()),
            heard: shared.heard.clone(),
            clock: shared.now(),
            others: others.n(),
            counted: if shared.aside == 0 { others.mean_worth(apart) * others.n() } else { 0.0 },
            set_aside: shared.aside > 0,
        })
    }

    fn save_group(&self) -> State {
        let mut state = State::default();
        if let Some(shared) = &self.shared {
            shared.save(&mut state);
        }
        state
    }

    fn load_group(&mut self, state: &State) -> Result<()> {
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let shared = Shared::load(state, self.shared_half_life(), classes, dim)?;
        self.shared = Some(Box::new(shared));
        if let Some(evidence) = &mut self.evidence {
            evidence.set_mark();
            evidence.unfold();
            evidence.recompute(self.shared.as_deref().and_then(Shared::others));
        }
        Ok(())
    }
}
