//! [`Numbers`]: the four numbers of a scene, and how each compares with all before.

use super::bets::{Bet, Bets};
use super::mix::Mix;
use super::pace::Pace;
use super::ranks::Ranks;
use super::{AlarmRow, chance};
use crate::kernels::{LANES, padded, sum_each, vectorised};
use crate::{Error, Result, State};

/// The numbers of a scene that are watched.
pub(super) const NUMBERS: usize = 4;
/// How much the features lean to recent scenes rather than to all before: (z − m) · (r − m) / |r − m|, where m is the mean of
/// all scenes and r the mean of recent ones.
pub(super) const LOOK: usize = 0;
/// Mean of the frozen logits.
pub(super) const LEVEL: usize = 1;
/// Logarithm of the spread of the frozen logits.
pub(super) const CONTRAST: usize = 2;
/// See [`Mix`].
pub(super) const MIX: usize = 3;
const NAMES: [&str; NUMBERS] = ["look", "level", "contrast", "mix"];

/// Scenes before the numbers count: until then there is nothing to compare with.
const WARM_UP: u64 = 2 * super::mix::SCENES as u64;

/// Scenes that the bins of the ranks are fitted to.
pub(super) const FIRST: usize = 64;

/// Independent scenes before bets are taken, and changes of class before bets on the mix are.
const READY: f64 = 48.0;

/// The pace is measured from n scenes, with a relative error of about √(pace / n). It is taken larger than measured by
/// this many such errors.
const CAUTION: f64 = 3.0;

/// Scenes after which a scene counts half in the recent mean.
const HALF_LIFE: f32 = 16.0;

/// Scenes whose numbers are remembered, to tell how much has changed since a change began.
pub(super) const REMEMBERED: usize = 256;

/// The numbers of the scenes so far, since the start or the last alarm.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    scenes: u64,
    /// Sum of the features, and decayed sum with its weight.
    sum: Vec<f32>,
    recent: Vec<f32>,
    recent_weight: f32,
    mix: Mix,
    /// Scenes of another class than the one before, and that class.
    changes: u64,
    class: u32,
    tracks: [Track; NUMBERS],
    /// The newest last: id of the row, and its numbers.
    remembered: Remembered,
    /// Σ and Σ² of each number, since the ranks begin.
    totals: [[f64; 2]; NUMBERS],
}

/// Ring of the last scenes.
type Remembered = std::collections::VecDeque<(u64, [f64; NUMBERS])>;

/// One number.
#[derive(Clone, Debug, Default, PartialEq)]
struct Track {
    ranks: Ranks,
    pace: Pace,
    bets: Bets,
}

impl Track {
    fn rank(&mut self, number: f64, id: u64, which: usize) -> f64 {
        let rank = self.ranks.push(number, chance(id, which as u64));
        self.pace.push(rank);
        rank
    }
}

/// What a number did since a bet on it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Change {
    pub before: f64,
    pub now: f64,
    /// In standard deviations of the number before.
    pub effect: f64,
}

impl Numbers {
    /// Takes in a scene. The number whose bet has won most, with its bet, once bets are taken.
    pub(super) fn push(&mut self, scene: &AlarmRow<'_>) -> Option<(usize, Bet)> {
        let numbers = self.measure(scene);
        self.scenes += 1;
        if self.scenes <= WARM_UP {
            return None;
        }
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back((scene.id, numbers));
        for ([sum, squares], number) in self.totals.iter_mut().zip(numbers) {
            *sum += number;
            *squares += number * number;
        }
        let ranked = self.scenes - WARM_UP;
        if ranked < FIRST as u64 {
            return None;
        }
        if ranked == FIRST as u64 {
            self.begin_ranks();
            return None;
        }
        let changes = self.changes as f64;
        let mut best: Option<(usize, Bet)> = None;
        for (which, (track, number)) in self.tracks.iter_mut().zip(numbers).enumerate() {
            let rank = track.rank(number, scene.id, which);
            let (n, pace) = (track.ranks.n() as f64, track.pace.scenes());
            let pace = pace * (1.0 + CAUTION * (pace / n).sqrt());
            if n < READY * pace || (which == MIX && changes < READY) {
                continue;
            }
            track.bets.push(rank, pace);
            let bet = track.bets.best();
            if best.is_none_or(|(_, other)| bet.log > other.log) {
                best = Some((which, bet));
            }
        }
        best
    }

    /// The numbers of a scene, which enters the means.
    fn measure(&mut self, scene: &AlarmRow<'_>) -> [f64; NUMBERS] {
        let (mean, square) = scene.moments;
        self.sum.resize(scene.features.len(), 0.0);
        self.recent.resize(scene.features.len(), 0.0);
        let (all, recent) = (1.0 / (self.scenes.max(1) as f32), 1.0 / self.recent_weight.max(1.0));
        let fade = 0.5f32.powf(1.0 / HALF_LIFE);
        let look = lean(scene.features, &mut self.sum, &mut self.recent, [all, recent, fade]);
        self.recent_weight = self.recent_weight * fade + 1.0;
        self.changes += u64::from(self.class != scene.class && self.scenes >= WARM_UP);
        self.class = scene.class;
        let mix = self.mix.push(scene.class, scene.id);
        [look as f64, mean as f64, 0.5 * (square as f64 + 1e-9).ln(), mix]
    }

    /// Fits the bins to the first scenes and ranks them.
    fn begin_ranks(&mut self) {
        for (which, track) in self.tracks.iter_mut().enumerate() {
            track.ranks = Ranks::fitting(self.remembered.iter().map(|(_, numbers)| numbers[which]));
            for (id, numbers) in &self.remembered {
                track.rank(numbers[which], *id, which);
            }
        }
    }

    /// What each number did in the last scenes, compared with all before; and the id of the first of these scenes' rows.
    pub(super) fn changes(&self, scenes: u64) -> (u64, [Change; NUMBERS]) {
        let last = (scenes as usize).clamp(1, self.remembered.len().max(1));
        let recent = || self.remembered.iter().rev().take(last);
        let since = recent().next_back().map_or(0, |(id, _)| *id);
        let n = self.scenes.saturating_sub(WARM_UP) as f64 - last as f64;
        let change = |which: usize| {
            let [sum, squares] = self.totals[which];
            let (part, part_squares) = recent().fold((0.0, 0.0), |(s, q), (_, numbers)| {
                (s + numbers[which], q + numbers[which] * numbers[which])
            });
            let before = (sum - part) / n.max(1.0);
            let deviation = ((squares - part_squares) / n.max(1.0) - before * before).max(1e-12).sqrt();
            let now = part / last as f64;
            Change { before, now, effect: (now - before) / deviation }
        };
        (since, std::array::from_fn(change))
    }

    /// The class that gained most in the last scenes, and the one that lost most.
    pub(super) fn moved(&self, scenes: u64) -> [(u32, f64, f64); 2] {
        self.mix.moved(scenes.min(super::mix::SCENES as u64) as usize)
    }

    /// Whether changes would be seen now: bets are taken on at least one number.
    pub(super) fn is_ready(&self) -> bool {
        self.tracks.iter().any(|track| track.bets != Bets::default())
    }

    /// On how many numbers bets are taken.
    #[cfg(test)]
    pub(super) fn judged(&self) -> usize {
        self.tracks.iter().filter(|track| track.bets != Bets::default()).count()
    }

    pub(super) fn bytes(&self) -> usize {
        8 * self.sum.len() + REMEMBERED * 40 + NUMBERS * (16 * super::ranks::MOST_BINS + 600)
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("alarm.counts", &[self.scenes, self.changes, u64::from(self.class)]);
        state.put("alarm.sum", &self.sum);
        state.put("alarm.recent", &self.recent);
        state.put("alarm.recent_weight", &[self.recent_weight]);
        self.mix.save(state);
        for (track, name) in self.tracks.iter().zip(NAMES) {
            let name = format!("alarm.{name}");
            track.ranks.save(&name, state);
            track.pace.save(&name, state);
            track.bets.save(&name, state);
        }
        let (ids, numbers): (Vec<u64>, Vec<[f64; NUMBERS]>) = self.remembered.iter().copied().unzip();
        state.put("alarm.remembered.ids", &ids);
        state.put("alarm.remembered", numbers.as_flattened());
        state.put("alarm.totals", self.totals.as_flattened());
    }

    pub(super) fn load(state: &State, classes: usize, dim: usize) -> Result<Self> {
        let [scenes, changes, class] = state.counts("alarm.counts")?;
        if class >= classes as u64 {
            return Err(Error::state(format!("alarm.counts holds class {class} of {classes}")));
        }
        let dim = if scenes == 0 { 0 } else { dim };
        let most = 1.001 * scenes as f64 + 1e-6;
        let ids = state.get::<u64>("alarm.remembered.ids")?;
        let expected = scenes.saturating_sub(WARM_UP).min(REMEMBERED as u64) as usize;
        if ids.len() != expected {
            return Err(Error::state(format!(
                "alarm.remembered.ids: expected {expected}, got {}",
                ids.len()
            )));
        }
        let numbers = state.within::<f64>("alarm.remembered", NUMBERS * ids.len(), -1e12..=1e12)?;
        let totals = state.within::<f64>("alarm.totals", 2 * NUMBERS, -1e30..=1e30)?;
        let mut tracks: [Track; NUMBERS] = Default::default();
        let ranked = scenes.saturating_sub(WARM_UP);
        for (track, name) in tracks.iter_mut().zip(NAMES) {
            let name = format!("alarm.{name}");
            *track = Track {
                ranks: Ranks::load(&name, state)?,
                pace: Pace::load(&name, state)?,
                bets: Bets::load(&name, state)?,
            };
            if track.ranks.n() != if ranked < FIRST as u64 { 0 } else { ranked } {
                return Err(Error::state(format!("{name}.counts do not fit {scenes} scenes")));
            }
        }
        let pairs = numbers.as_chunks::<NUMBERS>().0;
        Ok(Self {
            scenes,
            sum: state.within::<f32>("alarm.sum", dim, -most..=most)?.to_vec(),
            recent: state.within::<f32>("alarm.recent", dim, -most..=most)?.to_vec(),
            recent_weight: state.within::<f32>("alarm.recent_weight", 1, 0.0..=1e3)?[0],
            mix: Mix::load(state, classes)?,
            changes,
            class: class as u32,
            tracks,
            remembered: ids.iter().copied().zip(pairs.iter().copied()).collect(),
            totals: std::array::from_fn(|i| [totals[2 * i], totals[2 * i + 1]]),
        })
    }
}

/// (z − m) · (r − m) / |r − m|, where m and r are the sums times the first two factors. Then z enters both sums, of which the second fades
/// by the third factor.
fn lean(z: &[f32], sum: &mut [f32], recent: &mut [f32], factors: [f32; 3]) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            // Copies: what is read through a reference might be changed by the writes.
            let [factors] = [factors];
            let (mut dots, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
            let (zs, z_tail) = z.as_chunks::<LANES>();
            let (sums, sum_tail) = sum.as_chunks_mut::<LANES>();
            let (recents, recent_tail) = recent.as_chunks_mut::<LANES>();
            for ((z, sum), recent) in zs.iter().zip(sums).zip(recents) {
                lean_chunk(z, sum, recent, factors, [&mut dots, &mut squares]);
            }
            let (mut sum, mut recent) = (padded(sum_tail, 0.0), padded(recent_tail, 0.0));
            lean_chunk(&padded(z_tail, 0.0), &mut sum, &mut recent, factors, [&mut dots, &mut squares]);
            sum_tail.iter_mut().zip(sum).for_each(|(to, from)| *to = from);
            recent_tail.iter_mut().zip(recent).for_each(|(to, from)| *to = from);
            let [dot, square] = sum_each([dots, squares]);
            dot / (square + 1e-12).sqrt()
        },
    )
}

/// One chunk of [`lean`], which adds to both sums of lanes.
#[inline(always)]
fn lean_chunk(
    z: &[f32; LANES],
    sum: &mut [f32; LANES],
    recent: &mut [f32; LANES],
    [all, weight, fade]: [f32; 3],
    [dots, squares]: [&mut [f32; LANES]; 2],
) {
    let (z, old_sum, old_recent) = (*z, *sum, *recent);
    let (mut new_sum, mut new_recent) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..LANES {
        let (m, r) = (old_sum[i] * all, old_recent[i] * weight);
        new_sum[i] = old_sum[i] + z[i];
        new_recent[i] = old_recent[i] * fade + z[i];
        dots[i] += (z[i] - m) * (r - m);
        squares[i] += (r - m) * (r - m);
    }
    (*sum, *recent) = (new_sum, new_recent);
}
