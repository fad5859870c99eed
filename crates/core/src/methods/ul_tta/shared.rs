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

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Evidence, UlTta};
use crate::delta::{Delta, LABELS, Sums, refused};
use crate::group::{Heard, Kinship, Membership, Sharing};
use crate::methods::checked::checked_sums;
use crate::methods::triangle;
use crate::{Error, Result, State};

/// The sums are brought to a newer clock when this many half-lives have passed.
const REBASE: f64 = 16.0;

/// A clock may run this many half-lives ahead of what is known. Beyond that it would make the group forget everything.
const AHEAD: f64 = 8.0;

/// Updates for which others are set aside that have misled, the first time.
const ASIDE: u64 = 8;

/// The largest tempo: a member in a large group waits for an eighth of the samples that it would wait for alone, so that
/// the fits have some samples to go by.
const MOST_PACE: f64 = 8.0;

/// The group's clock goes no further.
const LATEST: f64 = 1e15;

/// Sums of a group, as they were when its clock stood at `reference`.
#[derive(Clone, Debug)]
pub(super) struct Body {
    reference: f64,
    pub n: f64,
    pub sum: Vec<f64>,
    pub second_n: f64,
    pub second_sum: Vec<f64>,
    pub second: Vec<f64>,
    class_n: Vec<f64>,
    class_sum: Vec<f64>,
}

/// What others have learnt, as a fold takes it in: all sums are to be multiplied by `scale`.
#[derive(Clone, Copy)]
pub(super) struct Others<'a> {
    pub body: &'a Body,
    pub scale: f64,
}

impl Others<'_> {
    pub(super) fn n(&self) -> f64 {
        self.body.n * self.scale
    }

    pub(super) fn class_n(&self, class: usize) -> f64 {
        self.body.class_n[class] * self.scale
    }

    pub(super) fn class_sum(&self, class: usize) -> &[f64] {
        let dim = self.body.sum.len();
        &self.body.class_sum[class * dim..][..dim]
    }

    /// What a sample of a class counts.
    pub(super) fn worth(&self, class: usize, apart: f64) -> f64 {
        1.0 / (1.0 + self.class_n(class).max(0.0) * apart)
    }

    /// What a sample counts on average.
    pub(super) fn mean_worth(&self, apart: f64) -> f64 {
        if apart == 0.0 {
            return 1.0;
        }
        let (mut counted, mut all) = (0.0, 0.0);
        for class in 0..self.body.class_n.len() {
            let n = self.class_n(class).max(0.0);
            counted += self.worth(class, apart) * n;
            all += n;
        }
        if all > 0.0 { counted / all } else { 1.0 }
    }
}

impl Body {
    fn new(classes: usize, dim: usize) -> Self {
        Self {
            reference: 0.0,
            n: 0.0,
            sum: vec![0.0; dim],
            second_n: 0.0,
            second_sum: vec![0.0; dim],
            second: vec![0.0; triangle::len(dim)],
            class_n: vec![0.0; classes],
            class_sum: vec![0.0; classes * dim],
        }
    }

    /// Adds sums that were faded to a stamp; with `sign` −1 takes them out.
    fn add(&mut self, sums: &Sums, stamp: f64, half_life: f64, sign: f64) {
        if stamp - self.reference > REBASE * half_life {
            self.rebase(stamp, half_life);
        }
        let weight = sign * ((stamp - self.reference) / half_life).exp2();
        let dim = self.sum.len();
        self.n += weight * sums.n;
        self.second_n += weight * sums.second_n;
        add(&mut self.sum, weight, &sums.sum);
        if !sums.second.is_empty() {
            add(&mut self.second_sum, weight, &sums.second_sum);
            add(&mut self.second, weight, &sums.second);
        }
        for (i, &c) in sums.classes.iter().enumerate() {
            self.class_n[c as usize] += weight * sums.class_n[i] as f64;
            add(&mut self.class_sum[c as usize * dim..][..dim], weight, &sums.class_sum[i * dim..][..dim]);
        }
    }

    fn rebase(&mut self, clock: f64, half_life: f64) {
        let factor = ((self.reference - clock) / half_life).exp2();
        let sums =
            [&mut self.sum, &mut self.second_sum, &mut self.second, &mut self.class_n, &mut self.class_sum];
        sums.into_iter().flatten().for_each(|v| *v *= factor);
        self.n *= factor;
        self.second_n *= factor;
        self.reference = clock;
    }

    /// The sums at a clock, with those of another body if there is one.
    fn at(&self, clock: f64, half_life: f64, with: Option<&Body>) -> Sums {
        let factor = |body: &Body| ((body.reference - clock) / half_life).exp2();
        let (own, theirs) = (factor(self), with.map_or(0.0, factor));
        let one = |get: fn(&Body) -> f64| get(self) * own + with.map_or(0.0, |w| get(w) * theirs);
        let all = |get: fn(&Body) -> &[f64]| -> Vec<f32> {
            let mut sums: Vec<f64> = get(self).iter().map(|v| v * own).collect();
            if let Some(with) = with {
                sums.iter_mut().zip(get(with)).for_each(|(s, v)| *s += v * theirs);
            }
            sums.into_iter().map(|v| v as f32).collect()
        };
        let (dim, class_n, class_sum) = (self.sum.len(), all(|b| &b.class_n), all(|b| &b.class_sum));
        let told = |c: usize| class_n[c] != 0.0 || class_sum[c * dim..][..dim].iter().any(|&v| v != 0.0);
        let classes: Vec<u32> = (0..class_n.len()).filter(|&c| told(c)).map(|c| c as u32).collect();
        let some = one(|b| b.second_n) > 0.0;
        let second = |get| if some { all(get) } else { Vec::new() };
        Sums {
            n: one(|b| b.n).max(0.0),
            second_n: one(|b| b.second_n).max(0.0),
            withdrawn: 0.0,
            sum: all(|b| &b.sum),
            second_sum: second(|b| &b.second_sum),
            second: second(|b| &b.second),
            class_n: classes.iter().map(|&c| class_n[c as usize]).collect(),
            class_sum: classes.iter().flat_map(|&c| class_sum[c as usize * dim..][..dim].to_vec()).collect(),
            classes,
        }
    }

    fn save(&self, name: &str, state: &mut State) {
        state.put(format!("shared.{name}.n"), &[self.reference, self.n, self.second_n]);
        let sums = [
            ("sum", &self.sum),
            ("second_sum", &self.second_sum),
            ("second", &self.second),
            ("class_n", &self.class_n),
            ("class_sum", &self.class_sum),
        ];
        sums.into_iter().for_each(|(part, sums)| state.put(format!("shared.{name}.{part}"), sums));
    }

    fn load(name: &str, state: &State, classes: usize, dim: usize) -> Result<Self> {
        let at = |part: &str| format!("shared.{name}.{part}");
        let sums = |part: &str, len: usize| Ok::<_, Error>(state.get_n::<f64>(&at(part), len)?.to_vec());
        let n = state.within::<f64>(&at("n"), 3, -1e3..=1e30)?;
        let body = Self {
            reference: n[0],
            n: n[1],
            second_n: n[2],
            sum: sums("sum", dim)?,
            second_sum: sums("second_sum", dim)?,
            second: sums("second", triangle::len(dim))?,
            class_n: state.within::<f64>(&at("class_n"), classes, -1e30..=1e30)?.to_vec(),
            class_sum: sums("class_sum", classes * dim)?,
        };
        checked_sums(&at("sum"), &body.sum, &[body.n])?;
        checked_sums(&at("second"), &body.second, &[body.second_n])?;
        Ok(body)
    }
}

fn add(into: &mut [f64], weight: f64, from: &[f32]) {
    into.iter_mut().zip(from).for_each(|(to, &v)| *to += weight * v as f64);
}

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

    fn rebuild(&mut self, contributions: &[Delta]) -> Result<()> {
        let mut fresh = self.shared()?.clone();
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        fresh.others = Arc::new(Body::new(classes, dim));
        fresh.heard.clear();
        fresh.clock = fresh.own.samples as f64;
        fresh.latest = fresh.own.stamp;
        for delta in contributions {
            if delta.member == fresh.member {
                continue;
            }
            fresh.check(delta)?;
            if delta.after != 0 || fresh.heard.contains_key(&delta.member) {
                return Err(refused(&delta.member, "a whole contribution is expected, one of each member"));
            }
            fresh.add(delta);
        }
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
