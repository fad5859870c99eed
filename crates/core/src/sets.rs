//! Sets of classes that hold the truth as often as asked for (`coverage = 0.9`).
//!
//! *Split conformal*: a labelled sample has the score 1 − p, with p the emitted probability of its label. The set of a sample
//! holds the classes whose score is at most the (1 − misses) quantile of these scores. The *misses* allowed start at
//! 1 − coverage and follow the stream (*adaptive conformal inference*): after each label they fall by step · coverage if the
//! set had missed it, and rise by step · (1 − coverage) if not. Over the labels the share of misses so comes to 1 − coverage, whatever the stream does; over
//! all samples, if the labelled ones are a fair draw. A set may be empty: nothing was plausible enough.
//!
//! Without labels there is no promise. Scores then come from the emitted probabilities themselves, of classes drawn by
//! them: a *credible* set, as right as the probabilities are. They fade as labels come.

use std::collections::VecDeque;

use crate::kernels::{indices_above, vectorised};
use crate::{Error, Result, State};

/// Labels from which on there is a promise.
const PROMISED: u64 = 20;

/// How far a label moves the share of misses that is allowed.
const STEP: f64 = 0.03;

/// Scores of labelled samples that are kept.
const LABELLED: usize = 200;

/// Most of them that a state may hold: earlier builds kept more.
const LABELLED_IN_STATE: usize = 500;

/// Scores by the probabilities themselves that are kept.
const BELIEVED: usize = 256;

/// Labels that the scores by the probabilities are worth together.
const BELIEF: f64 = 10.0;

/// Without labels the threshold is set anew after this many samples.
const EVERY: u64 = 32;

/// Samples that labels may come for.
const REMEMBERED: usize = 8192;

/// Classes that are kept of each of them.
const BEST: usize = 16;

/// Stands for no class.
const NONE: u32 = u32::MAX;

/// Half-life, in samples, of the mean size.
const SIZE_HALF_LIFE: f64 = 1000.0;

/// A set as it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Given {
    /// Least probability of a class in it.
    threshold: f32,
    /// The most probable classes.
    classes: [u32; BEST],
    probs: [f32; BEST],
}

/// What can be said of the sets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SetsHealth {
    pub coverage: f64,
    /// Whether there are labels enough for a promise.
    pub promise: bool,
    pub labels: u64,
    /// Share of the labels that the set of their sample held.
    pub held: f64,
    /// Mean number of classes of recent sets.
    pub size: f64,
}

/// Gives sets.
#[derive(Clone, Debug)]
pub(crate) struct Sets {
    coverage: f64,
    /// The share of misses that is allowed at present.
    level: f64,
    threshold: f32,
    labelled: VecDeque<f32>,
    believed: VecDeque<f32>,
    given: VecDeque<Given>,
    /// Id behind the newest.
    next_id: u64,
    labels: u64,
    held: u64,
    size: f64,
}

impl Sets {
    /// `None` where no coverage is asked for.
    pub(crate) fn new(coverage: f64) -> Option<Self> {
        (coverage > 0.0).then(|| Self {
            coverage,
            level: 1.0 - coverage,
            threshold: (1.0 - coverage) as f32,
            labelled: VecDeque::new(),
            believed: VecDeque::new(),
            given: VecDeque::new(),
            next_id: 0,
            labels: 0,
            held: 0,
            size: 0.0,
        })
    }

    /// The set of a sample with these probabilities, the most probable class first.
    pub(crate) fn of(&self, probs: &[f32]) -> Vec<u32> {
        found(probs, self.threshold)
    }

    /// The set of a sample, which is remembered for its label.
    pub(crate) fn give(&mut self, id: u64, probs: &[f32]) -> Vec<u32> {
        let found = found(probs, self.threshold.min(among_best(probs)));
        let set: Vec<u32> =
            found.iter().copied().take_while(|&class| probs[class as usize] >= self.threshold).collect();
        if id != self.next_id {
            self.given.clear();
        }
        if self.given.len() == REMEMBERED {
            self.given.pop_front();
        }
        self.given.push_back(Given::new(self.threshold, &found, probs));
        self.next_id = id + 1;
        if self.believed.len() == BELIEVED {
            self.believed.pop_front();
        }
        self.believed.push_back(1.0 - probs[drawn(id, &found, probs)]);
        if id.is_multiple_of(EVERY) {
            self.aim();
        }
        let keep = 0.5f64.powf(1.0 / SIZE_HALF_LIFE);
        self.size =
            if id == 0 { set.len() as f64 } else { keep * self.size + (1.0 - keep) * set.len() as f64 };
        set
    }

    /// A label for an earlier sample. Of several for one sample the first counts.
    pub(crate) fn label(&mut self, id: u64, label: usize) {
        let first = self.next_id - self.given.len() as u64;
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(given) = place.and_then(|place| self.given.get_mut(place)) else { return };
        let Some(prob) = given.prob(label) else { return };
        let missed = prob < given.threshold;
        given.classes[0] = NONE;
        self.labels += 1;
        self.held += u64::from(!missed);
        let step = STEP * (1.0 - self.coverage - f64::from(u8::from(missed)));
        self.level = (self.level + step).clamp(-STEP, 1.0 + STEP);
        if self.labelled.len() == LABELLED {
            self.labelled.pop_front();
        }
        self.labelled.push_back(1.0 - prob);
        self.aim();
    }

    /// Sets the threshold: the (1 − misses) quantile of the scores.
    fn aim(&mut self) {
        if self.level <= 0.0 || self.level >= 1.0 {
            self.threshold = if self.level <= 0.0 { 0.0 } else { f32::INFINITY };
            return;
        }
        let belief = match (self.labelled.len(), self.believed.len()) {
            (_, 0) => 0.0,
            (0, _) => 1.0,
            (_, n) => BELIEF / n as f64,
        };
        let mut scores: Vec<(f32, f64)> = self.labelled.iter().map(|&score| (score, 1.0)).collect();
        scores.extend(self.believed.iter().map(|&score| (score, belief)));
        scores.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let all: f64 = scores.iter().map(|(_, weight)| weight).sum();
        // The sample at hand is one more label, as far as labels decide.
        let wanted = (1.0 - self.level) * (all + self.labelled.len() as f64 / all.max(1.0));
        let mut below = 0.0;
        let quantile = scores.iter().find(|(_, weight)| {
            below += weight;
            below >= wanted
        });
        self.threshold = quantile.map_or(0.0, |(score, _)| 1.0 - score);
    }

    pub(crate) fn health(&self) -> SetsHealth {
        SetsHealth {
            coverage: self.coverage,
            promise: self.labels >= PROMISED,
            labels: self.labels,
            held: if self.labels > 0 { self.held as f64 / self.labels as f64 } else { 0.0 },
            size: self.size,
        }
    }

    /// Bytes when everything is there.
    pub(crate) fn bytes(&self) -> usize {
        REMEMBERED * size_of::<Given>() + 4 * (LABELLED + BELIEVED)
    }

    pub(crate) fn save(&self, state: &mut State) {
        let given = || self.given.iter();
        state.put("sets.given.thresholds", &given().map(|g| g.threshold.min(2.0)).collect::<Vec<_>>());
        state.put("sets.given.classes", given().map(|g| g.classes).collect::<Vec<_>>().as_flattened());
        state.put("sets.given.probs", given().map(|g| g.probs).collect::<Vec<_>>().as_flattened());
        state.put("sets.labelled", &self.labelled.iter().copied().collect::<Vec<_>>());
        state.put("sets.believed", &self.believed.iter().copied().collect::<Vec<_>>());
        state.put("sets.counts", &[self.next_id, self.labels, self.held]);
        state.put("sets.level", &[self.level, self.size, f64::from(self.threshold.min(2.0))]);
    }

    pub(crate) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        if !state.any_under("sets.") {
            return Ok(());
        }
        let thresholds = state.get::<f32>("sets.given.thresholds")?;
        let n = thresholds.len();
        if n > REMEMBERED || thresholds.iter().any(|t| !(0.0..=2.0).contains(t)) {
            return Err(Error::state("sets.given.thresholds: too many, or out of range"));
        }
        let named = state.get_n::<u32>("sets.given.classes", n * BEST)?.as_chunks::<BEST>().0;
        if named.as_flattened().iter().any(|&class| class as usize >= classes && class != NONE) {
            return Err(Error::state("sets.given.classes: a class out of range"));
        }
        let probs = state.within::<f32>("sets.given.probs", n * BEST, 0.0..=1.0)?.as_chunks::<BEST>().0;
        let scores = |name: &str, most: usize| -> Result<VecDeque<f32>> {
            let values = state.get::<f32>(name)?;
            if values.len() > most || values.iter().any(|s| !(0.0..=1.0).contains(s)) {
                return Err(Error::state(format!("{name}: too many scores, or one out of range")));
            }
            Ok(values.iter().copied().collect())
        };
        let mut labelled = scores("sets.labelled", LABELLED_IN_STATE)?;
        labelled.drain(..labelled.len().saturating_sub(LABELLED));
        let believed = scores("sets.believed", BELIEVED)?;
        let [next_id, labels, held] = state.counts("sets.counts")?;
        let level = state.within::<f64>("sets.level", 3, -1.0..=1e9)?;
        if next_id < n as u64 || held > labels || level[0] > 2.0 || !(0.0..=2.0).contains(&level[2]) {
            return Err(Error::state("sets.counts or sets.level out of range"));
        }
        let given = |i: usize| Given { threshold: thresholds[i], classes: named[i], probs: probs[i] };
        self.given = (0..n).map(given).collect();
        (self.labelled, self.believed) = (labelled, believed);
        (self.next_id, self.labels, self.held) = (next_id, labels, held);
        (self.level, self.size, self.threshold) = (level[0], level[1], level[2] as f32);
        Ok(())
    }
}

impl Given {
    /// `found` are the most probable classes in their order, at least as many as are kept.
    fn new(threshold: f32, found: &[u32], probs: &[f32]) -> Self {
        let mut given = Self { threshold, classes: [NONE; BEST], probs: [0.0; BEST] };
        for (place, &class) in found.iter().take(BEST).enumerate() {
            given.classes[place] = class;
            given.probs[place] = probs[class as usize].clamp(0.0, 1.0);
        }
        given
    }

    /// The probability of a class; of one beyond those kept, half of the least one. `None` if a label has come already.
    fn prob(&self, label: usize) -> Option<f32> {
        if self.classes[0] == NONE {
            return None;
        }
        let place = self.classes.iter().position(|&class| class as usize == label);
        Some(place.map_or(0.5 * self.probs[BEST - 1], |place| self.probs[place]))
    }
}

/// The classes with at least this probability: the more probable first, the lower index first among equals.
fn found(probs: &[f32], least: f32) -> Vec<u32> {
    let mut found = Vec::with_capacity(4 * BEST);
    indices_above(probs, least, &mut found);
    // Probabilities are not negative, so their bits are in their order; turned over, the larger ones come first.
    let key = |&class: &u32| u64::from(!probs[class as usize].to_bits()) << 32 | u64::from(class);
    let mut keys: Vec<u64> = found.iter().map(key).collect();
    keys.sort_unstable();
    found.iter_mut().zip(keys).for_each(|(class, key)| *class = key as u32);
    found
}

/// A probability that at least [`BEST`] classes have and hardly more, or that all have: of the largest values of some groups of
/// classes the [`BEST`]th.
fn among_best(probs: &[f32]) -> f32 {
    const GROUPS: usize = 4 * BEST;
    let mut most = [0.0f32; GROUPS];
    let (chunks, tail) = probs.as_chunks::<GROUPS>();
    vectorised(
        #[inline(always)]
        || {
            for chunk in chunks {
                for i in 0..GROUPS {
                    most[i] = if chunk[i] > most[i] { chunk[i] } else { most[i] };
                }
            }
        },
    );
    most.iter_mut().zip(tail).for_each(|(most, &prob)| *most = most.max(prob));
    let mut bits = most.map(f32::to_bits);
    f32::from_bits(*bits.select_nth_unstable(GROUPS - BEST).1)
}

/// A class drawn by its probability; the id decides the draw. It goes through the most probable classes first, which are `found`,
/// because it mostly ends there.
fn drawn(id: u64, found: &[u32], probs: &[f32]) -> usize {
    let mut bits = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut left = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let mut ends_with = |prob: f32| {
        left -= f64::from(prob);
        left <= 0.0
    };
    let among_found = found.iter().map(|&class| class as usize).find(|&class| ends_with(probs[class]));
    among_found.unwrap_or_else(|| {
        let least = found.last().map_or(f32::INFINITY, |&class| probs[class as usize]);
        let other = probs.iter().position(|&prob| prob < least && ends_with(prob));
        other.unwrap_or(probs.len() - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream whose class 0 has probability `told` by the model and `real` in truth; every 20th is labelled 100 later.
    fn covered(told: f32, real: f64, labels: bool, rows: u64) -> (f64, SetsHealth) {
        let mut sets = Sets::new(0.9).unwrap();
        let (mut held, mut counted) = (0, 0);
        let mut truth = Vec::new();
        for id in 0..rows {
            // How sure the model is differs from sample to sample.
            let sure = told + (1.0 - told) * ((id * 7919 % 100) as f32 / 100.0 - 0.5);
            let mut probs = [(1.0 - sure) / 9.0; 10];
            probs[0] = sure;
            let odds = real + (1.0 - real) * ((id * 7919 % 100) as f64 / 100.0 - 0.5);
            let label = if (id as f64 * 0.618_033_988).fract() < odds { 0 } else { 1 + (id % 9) as usize };
            truth.push(label);
            let set = sets.give(id, &probs);
            if id >= rows / 2 {
                counted += 1;
                held += u64::from(set.contains(&(label as u32)));
            }
            if labels && id >= 100 && id % 20 == id / 20 % 20 {
                sets.label(id - 100, truth[(id - 100) as usize]);
            }
        }
        (held as f64 / counted as f64, sets.health())
    }

    #[test]
    fn labels_make_the_promise_good() {
        for (told, real) in [(0.7, 0.7), (0.7, 0.5), (0.5, 0.8)] {
            let (share, health) = covered(told, real, true, 20_000);
            // Nine classes are equally probable here, and a set takes all of them or none: it may hold more than asked for.
            assert!(health.promise && (0.87..0.99).contains(&share), "{told} {real}: {share}");
        }
    }

    #[test]
    fn without_labels_there_is_none() {
        let (share, health) = covered(0.7, 0.7, false, 5000);
        assert!(!health.promise && health.labels == 0);
        assert!(share > 0.85, "calibrated probabilities are credible: {share}");
        assert!(covered(0.7, 0.4, false, 5000).0 < 0.85, "wrong ones are not");
    }
}
