//! Alarms: has the stream changed? A sequential test over scenes with a promised rate of false alarms
//! (`alarms.scenes`: at most one per this many scenes, 100,000 unless set), without labels, in closed form and flat memory.
//!
//! | part | what it is | file |
//! |---|---|---|
//! | numbers | what is measured on a scene: look, level and contrast of the picture, the mix of classes | `numbers.rs`, `mix.rs` |
//! | ranks | where a number stands among all before: uniform while nothing changes, whatever its distribution | `ranks.rs` |
//! | pace | how many scenes are worth one independent scene | `pace.rs` |
//! | bets | what wins on ranks that stay high or low, and almost never on others | `bets.rs` |
//! | feed | rows that repeat, bit for bit | `feed.rs` |
//!
//! A bet that has grown to 16 times `alarms.scenes` (four numbers, four bets each, so that the rates add up) raises an
//! alarm. While scenes come in exchangeable order, the ranks are exactly uniform and independent, and the promise is
//! a theorem; where scenes resemble those before, it rests on the measured pace, and `docs/alarms.md` has what was found.
//!
//! After an alarm the new normal is learnt, and everything is compared with that. Nothing is judged in the first scenes
//! (about 220, more where scenes resemble one another). Everything is measured with the frozen model, so what a method
//! learns cannot raise or hide an alarm.

mod bets;
mod feed;
mod mix;
mod numbers;
mod pace;
mod ranks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::{Error, Result, State};
use bets::BETS;
use feed::Feed;
use numbers::{CONTRAST, Change, LEVEL, LOOK, MIX, NUMBERS, Numbers};

/// Alarms that are kept.
const KEPT: usize = 16;

/// Settings of the alarms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmConfig {
    /// `false` watches nothing.
    pub enabled: bool,
    /// The promise: while nothing changes, at most one false alarm per this many scenes.
    pub scenes: f64,
}

impl Default for AlarmConfig {
    fn default() -> Self {
        Self { enabled: true, scenes: 100_000.0 }
    }
}

impl AlarmConfig {
    pub(crate) fn check(&self) -> Result<()> {
        in_range("alarms.scenes", self.scenes, 100.0..=1e12)
    }

    /// log M at which a bet raises an alarm.
    fn threshold(&self) -> f64 {
        (self.scenes * (NUMBERS * BETS) as f64).ln()
    }
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// The pictures look different: another place, another view, other preprocessing.
    Domain,
    /// Other classes are frequent.
    Mix,
    /// The pictures say less, or something unlike any class: a covered lens, night, blur.
    Quality,
    /// The same row comes again and again.
    Frozen,
}

impl AlarmKind {
    const ALL: [Self; 4] = [Self::Domain, Self::Mix, Self::Quality, Self::Frozen];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Mix => "mix",
            Self::Quality => "quality",
            Self::Frozen => "frozen",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Domain => {
                "look at recent pictures: was the camera moved, or did an update change the preprocessing? If this is \
                 the new normal, nothing is to be done"
            }
            Self::Mix => {
                "look at the class mix: if it is plausible, nothing is to be done; if not, look at recent pictures"
            }
            Self::Quality => {
                "look at recent pictures: is the lens covered or dirty, is it dark, is the picture blurred or broken?"
            }
            Self::Frozen => "the feed repeats one picture: restart the camera, the recorder or the decoder",
        }
    }
}

/// The stream has changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alarm {
    /// What has changed.
    pub kind: AlarmKind,
    /// Id of the row at which the alarm was raised.
    pub id: u64,
    /// Id of the row at which the change began, as far as can be told.
    pub since: u64,
    /// Scenes since then; for a frozen feed, rows.
    pub scenes: u64,
    /// How strong the change is: the largest move of a number, in its own standard deviations. For a frozen feed, the
    /// number of repeats.
    pub strength: f64,
    /// How sure it is: natural logarithm of the odds against chance.
    pub evidence: f64,
    /// For `mix`: the class whose share grew most, by index.
    pub class: Option<u32>,
    /// Of the number that moved most: its mean before and since. For `mix`, the share of `class`.
    pub before: f64,
    /// See `before`.
    pub now: f64,
}

impl Alarm {
    /// What changed and since when, in words. `classes` are the names of the classes.
    pub fn text(&self, classes: &[String]) -> String {
        let name = |class: u32| classes.get(class as usize).map_or("?", String::as_str);
        let what = match (self.kind, self.class) {
            (AlarmKind::Frozen, _) => {
                return format!("the same row came {} times, since row {}", self.scenes + 1, self.since);
            }
            (AlarmKind::Mix, Some(class)) => format!(
                "the classes have changed: {} has {:.0} % of the scenes, before {:.0} %",
                name(class),
                100.0 * self.now,
                100.0 * self.before
            ),
            (AlarmKind::Mix, None) => "the classes have changed".to_string(),
            (AlarmKind::Domain, _) => "the pictures look different".to_string(),
            (AlarmKind::Quality, _) => "the pictures have become hard to read".to_string(),
        };
        format!(
            "{what}, since row {} ({} scenes ago), by {:.1} deviations",
            self.since, self.scenes, self.strength
        )
    }
}

/// A row that is no copy, as the alarms see it.
pub(crate) struct AlarmRow<'a> {
    pub id: u64,
    pub features: &'a [f32],
    /// Mean of the frozen logits, their mean square after centring, and the best class by them.
    pub moments: (f32, f32),
    pub class: u32,
}

/// Watches one session.
#[derive(Clone, Debug)]
pub(crate) struct Alarms {
    config: AlarmConfig,
    /// log M at which a bet raises an alarm.
    threshold: f64,
    numbers: Numbers,
    feed: Feed,
    raised: u64,
    /// The newest last.
    kept: VecDeque<Alarm>,
    /// Rows and scenes so far.
    rows: u64,
    scenes: u64,
}

impl Alarms {
    pub(crate) fn new(config: &AlarmConfig) -> Self {
        Self {
            config: config.clone(),
            threshold: config.threshold(),
            numbers: Numbers::default(),
            feed: Feed::default(),
            raised: 0,
            kept: VecDeque::new(),
            rows: 0,
            scenes: 0,
        }
    }

    /// Takes in a row, which begins a scene unless it is a copy.
    pub(crate) fn push(&mut self, row: &AlarmRow<'_>, copy: bool) -> Option<Alarm> {
        if !self.config.enabled {
            return None;
        }
        self.rows += 1;
        let enough = || enough_repeats(self.threshold, self.rows, self.scenes);
        let frozen = self.feed.push(row.id, row.features, enough);
        let alarm = frozen.map(|frozen| Alarm {
            kind: AlarmKind::Frozen,
            id: row.id,
            since: frozen.first_id,
            scenes: frozen.repeats,
            strength: frozen.repeats as f64,
            evidence: frozen.evidence,
            class: None,
            before: 0.0,
            now: 0.0,
        });
        // A row that repeats the one before is no scene, even where a method knows none and takes every row for one.
        let scene = !copy && !self.feed.repeats();
        let alarm = alarm.or_else(|| if scene { self.scene(row) } else { None })?;
        self.raised += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(alarm);
        Some(alarm)
    }

    fn scene(&mut self, scene: &AlarmRow<'_>) -> Option<Alarm> {
        self.scenes += 1;
        let (which, bet) = self.numbers.push(scene)?;
        if bet.log < self.threshold {
            return None;
        }
        let (since, changes) = self.numbers.changes(bet.scenes);
        let kind = kind_of(which, &changes);
        let most = changes.iter().max_by(|a, b| a.effect.abs().total_cmp(&b.effect.abs()));
        let most = most.copied().unwrap_or_default();
        let [(class, before, now), _] = self.numbers.moved(bet.scenes);
        let mix = kind == AlarmKind::Mix;
        self.numbers = Numbers::default();
        Some(Alarm {
            kind,
            id: scene.id,
            since,
            scenes: bet.scenes,
            strength: most.effect.abs(),
            evidence: bet.log,
            class: mix.then_some(class),
            before: if mix { before } else { most.before },
            now: if mix { now } else { most.now },
        })
    }

    /// Alarms since the start.
    pub(crate) fn raised(&self) -> u64 {
        self.raised
    }

    /// The last alarms, oldest first.
    pub(crate) fn kept(&self) -> impl ExactSizeIterator<Item = &Alarm> {
        self.kept.iter()
    }

    /// Whether a change would be seen now.
    pub(crate) fn is_ready(&self) -> bool {
        self.numbers.is_ready()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.numbers.bytes() + KEPT * size_of::<Alarm>()
    }

    pub(crate) fn save(&self, state: &mut State) {
        self.numbers.save(state);
        self.feed.save(state);
        state.put("alarm.raised", &[self.raised, self.rows, self.scenes]);
        let class = |a: &Alarm| a.class.map_or(0, |class| u64::from(class) + 1);
        let kept = self.kept.iter().flat_map(|a| [a.kind as u64, a.id, a.since, a.scenes, class(a)]);
        state.put("alarm.kept", &kept.collect::<Vec<_>>());
        let numbers = self.kept.iter().flat_map(|a| [a.strength, a.evidence, a.before, a.now]);
        state.put("alarm.kept.numbers", &numbers.collect::<Vec<_>>());
    }

    /// Continues from a state; one without alarms starts anew.
    pub(crate) fn load(&mut self, state: &State, classes: usize, dim: usize) -> Result<()> {
        let mut fresh = Self::new(&self.config);
        if state.any_under("alarm.") {
            fresh.numbers = Numbers::load(state, classes, dim)?;
            fresh.feed = Feed::load(state, dim)?;
            [fresh.raised, fresh.rows, fresh.scenes] = state.counts("alarm.raised")?;
            let (whole, rest) = state.get::<u64>("alarm.kept")?.as_chunks::<5>();
            let n = whole.len();
            if !rest.is_empty() {
                return Err(Error::state("alarm.kept: expected five numbers for each alarm"));
            }
            let numbers = state.within::<f64>("alarm.kept.numbers", 4 * n, -1e12..=1e12)?.as_chunks::<4>().0;
            for (&[kind, id, since, scenes, class], &[strength, evidence, before, now]) in
                whole.iter().zip(numbers).skip(n.saturating_sub(KEPT))
            {
                let kind = AlarmKind::ALL.get(kind as usize).copied().filter(|_| class <= classes as u64);
                let kind =
                    kind.ok_or_else(|| Error::state("alarm.kept holds an alarm that is not possible"))?;
                let class = class.checked_sub(1).map(|class| class as u32);
                fresh.kept.push_back(Alarm {
                    kind,
                    id,
                    since,
                    scenes,
                    strength,
                    evidence,
                    class,
                    before,
                    now,
                });
            }
        }
        *self = fresh;
        Ok(())
    }
}

/// −log of the chance of a run of repeats that is told: the promise counts scenes, and there are more rows.
fn enough_repeats(threshold: f64, rows: u64, scenes: u64) -> f64 {
    threshold + (rows as f64 / scenes.max(1) as f64).max(1.0).ln()
}

/// What kind of change it is, from the number whose bet won and from how much each has moved.
fn kind_of(which: usize, changes: &[Change; NUMBERS]) -> AlarmKind {
    let effect = |which: usize| changes[which].effect;
    let reads_less = effect(CONTRAST) < -0.75 || effect(LEVEL).abs() > 3.0;
    // A lens that is uncovered again changes everything, and is no lack of quality.
    let reads_more = effect(CONTRAST) > 0.75;
    if !reads_more && (reads_less || which == CONTRAST || (which == LEVEL && effect(LOOK) < 0.6)) {
        AlarmKind::Quality
    } else if which == MIX || effect(MIX) > 0.35 {
        AlarmKind::Mix
    } else {
        AlarmKind::Domain
    }
}

/// A number from 0 to 1 that looks random and depends on its arguments alone, so that a session can be repeated.
fn chance(id: u64, salt: u64) -> f64 {
    let mut z =
        id.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add((salt + 1).wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
