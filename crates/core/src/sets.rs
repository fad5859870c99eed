//! Sets of classes that hold the truth as often as asked for (`coverage = 0.9`).
//!
//! *Credible*: the classes of recent samples, the most probable first, each counting by its probability. The *mass* of a class
//! is the share of all this that is more probable than it is. If the probabilities are right, the mass of the true class is
//! uniform, and a set of the classes with a mass of at most 0.9 holds the truth nine times of ten. It follows at once where
//! probabilities become more or less sure.
//!
//! *Conformal*: labels tell the masses of true classes, and the set holds the classes whose mass is at most the (1 − misses) quantile of
//! these. The credible set counts as some labels; where the estimate of accuracy ([`crate::estimate`], without labels) says that answers
//! are right more often than they claim, or less often, the masses of the true classes are taken to lie lower, or higher. The *misses* allowed start at 1 − coverage and follow the stream (*adaptive
//! conformal inference*): after each label they fall by step · coverage if the set had missed it, and rise by step · (1 − coverage) if
//! not. Over the labels the share of misses so comes to 1 − coverage, whatever the stream does; over all samples, if the
//! labelled ones are a fair draw. A set may be empty: nothing was plausible enough. Without labels there is no promise, and the
//! credible set is as right as the probabilities and their correction are.
//!
//! *After a change* (an alarm, [`crate::alarm`]) labels of before count little, and until new ones have come fewer misses are
//! allowed.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::kernels::{LANES, indices_above, vectorised};
use crate::{Error, Result, State};

/// Labels from which on there is a promise; after a change, labels for samples since.
const PROMISED: u64 = 20;

/// How far a label moves the share of misses that is allowed.
const STEP: f64 = 0.0075;

/// Labels whose masses are kept, and what the weight of each is multiplied by at every later one.
const LABELLED: usize = 200;
const FADE: f32 = 0.98;

/// Labels that the probabilities themselves are worth, unless labels contradict them.
const BELIEF: f64 = 100.0;

/// Where answers are right more often than they claim by a share s, the masses of true classes are taken to be as if the least of
/// e^(this · s) uniform ones.
const SURPLUS: f64 = 2.5;

/// The largest such share that is believed.
const MOST_SURPLUS: f64 = 0.3;

/// Weight of a label that is older than the last change of the stream.
const BEFORE_CHANGE: f32 = 0.3;

/// Weight of the probabilities from before the last change of the stream.
const BELIEVED_BEFORE: f64 = 0.1;

/// Caution: the misses allowed are lowered by this many standard deviations of a share that is counted over all labels (and
/// `SPARE` more).
const CAUTION: f64 = 0.2;

/// The same once the stream has changed, with the labels since the change in the place of all labels.
const CAUTION_AFTER_CHANGE: f64 = 1.5;

/// Labels that are added to those that were counted, so that a few labels do not make caution boundless.
const SPARE: f64 = 15.0;

/// Caution after a change leaves at least this share of 1 − coverage as misses, however few the labels since then.
const LEAST: f64 = 0.3;

/// The probabilities of recent samples are looked at again after this many samples.
const EVERY: u64 = 32;

/// Half-life, in samples, of the probabilities that are looked at: this share of the samples since the stream began or changed, in
/// which probabilities become sharper quickly, between these two.
const BELIEF_SHARE: f64 = 0.1;
const BELIEF_HALF_LIFE: [f64; 2] = [20.0, 180.0];

/// Samples that labels may come for. Where none has come for so many samples there is no promise.
const REMEMBERED: usize = 8192;

/// Classes that are kept of each of them.
const BEST: usize = 16;

/// Stands for no class.
const NONE: u32 = u32::MAX;

/// Half-life, in samples, of the mean size.
const SIZE_HALF_LIFE: f64 = 1000.0;

/// A set as it was given.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    /// How many classes it holds.
    held: u32,
    /// The most probable classes, their masses, and the mass of any other.
    classes: [u32; BEST],
    masses: [f32; BEST],
    beyond: f32,
    /// The classes of the set that are not among these; none if it holds all classes there are.
    more: Box<[u32]>,
}

/// What can be said of the sets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SetsHealth {
    pub coverage: f64,
    /// Whether there are labels enough for a promise: since the last change, and lately.
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
    /// Largest mass of a class in a set, and the least probability that this comes to.
    most: f32,
    threshold: f32,
    belief: Belief,
    /// How much more often answers are right than they claim.
    surplus: f64,
    /// Masses of labelled classes, and their weights.
    labelled: VecDeque<[f32; 2]>,
    given: VecDeque<Given>,
    /// Id behind the newest.
    next_id: u64,
    labels: u64,
    held: u64,
    /// Id behind the newest sample that a label came for.
    labelled_id: u64,
    /// Id behind the last sample before a change that is not yet heard of, and before the last one that is; 0 if there is none.
    pending: u64,
    changed: u64,
    /// Labels for samples since.
    since: u64,
    size: f64,
    /// Buffer.
    found: Vec<u32>,
}

impl Sets {
    /// `None` where no coverage is asked for.
    pub(crate) fn new(coverage: f64) -> Option<Self> {
        (coverage > 0.0).then(|| Self {
            coverage,
            level: 1.0 - coverage,
            most: coverage as f32,
            threshold: (1.0 - coverage) as f32,
            belief: Belief::default(),
            surplus: 0.0,
            labelled: VecDeque::new(),
            given: VecDeque::new(),
            next_id: 0,
            labels: 0,
            held: 0,
            labelled_id: 0,
            pending: 0,
            changed: 0,
            since: 0,
            size: 0.0,
            found: Vec::new(),
        })
    }

    /// The set of a sample with these probabilities, the most probable class first.
    pub(crate) fn of(&self, probs: &[f32]) -> Vec<u32> {
        let mut found = Vec::new();
        find(probs, self.threshold, &mut found);
        found
    }

    /// The stream has changed with this sample. That counts from the next sample on at which the belief is looked at, so that it
    /// does not matter how samples are grouped.
    pub(crate) fn change(&mut self, id: u64) {
        self.pending = id.max(1);
    }

    /// How much more often the answers of late are right than they claim, by the estimate without labels.
    pub(crate) fn believe(&mut self, surplus: f64) {
        self.surplus = surplus.clamp(-MOST_SURPLUS, MOST_SURPLUS);
    }

    /// The set of a sample, which is remembered for its label.
    pub(crate) fn give(&mut self, id: u64, probs: &[f32]) -> Vec<u32> {
        if id.is_multiple_of(EVERY) || id.is_power_of_two() {
            self.hear_of_change();
            self.belief.look();
            if id.is_multiple_of(EVERY) {
                self.belief.fade(BELIEF_SHARE * id.saturating_sub(self.changed) as f64);
            }
            self.aim();
        }
        find(probs, self.threshold.min(among_best(probs)), &mut self.found);
        let mut given = Given::new(&self.found, probs, &mut self.belief);
        let held = self.found.iter().take_while(|&&class| probs[class as usize] >= self.threshold).count();
        let set = self.found[..held].to_vec();
        given.held = held as u32;
        if held > BEST && held < probs.len() {
            given.more = Box::from(&set[BEST..]);
        }
        if id != self.next_id {
            self.given.clear();
        }
        if self.given.len() == REMEMBERED {
            self.given.pop_front();
        }
        self.given.push_back(given);
        self.next_id = id + 1;
        let keep = 0.5f64.powf(1.0 / SIZE_HALF_LIFE);
        self.size = if id == 0 { held as f64 } else { keep * self.size + (1.0 - keep) * held as f64 };
        set
    }

    fn hear_of_change(&mut self) {
        if self.pending == 0 {
            return;
        }
        self.changed = std::mem::take(&mut self.pending);
        self.belief.doubt();
        self.labelled.iter_mut().for_each(|[_, weight]| *weight *= BEFORE_CHANGE);
        self.since = 0;
    }

    /// A label for an earlier sample. Of several for one sample the first counts.
    pub(crate) fn label(&mut self, id: u64, label: usize) {
        let first = self.next_id - self.given.len() as u64;
        let place = id.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(given) = place.and_then(|place| self.given.get_mut(place)) else { return };
        let Some(mass) = given.mass(label) else { return };
        let missed = !given.holds(label);
        given.classes[0] = NONE;
        self.labels += 1;
        self.labelled_id = self.labelled_id.max(id + 1);
        self.held += u64::from(!missed);
        let step = STEP * (1.0 - self.coverage - f64::from(u8::from(missed)));
        self.level = (self.level + step).clamp(-STEP, 1.0 + STEP);
        if self.labelled.len() == LABELLED {
            self.labelled.pop_front();
        }
        self.labelled.iter_mut().for_each(|[_, weight]| *weight *= FADE);
        let new = id >= self.changed;
        self.since += u64::from(new);
        self.labelled.push_back([mass, if new { 1.0 } else { BEFORE_CHANGE }]);
        self.aim();
    }

    /// The share of misses that is allowed, with caution.
    fn misses(&self) -> f64 {
        let off = |labels: u64| (self.coverage * (1.0 - self.coverage) / (labels as f64 + SPARE)).sqrt();
        if self.labels == 0 {
            return self.level;
        }
        if self.changed == 0 {
            return self.level - CAUTION * off(self.labels);
        }
        let least = self.level.min(LEAST * (1.0 - self.coverage));
        (self.level - CAUTION_AFTER_CHANGE * off(self.since)).max(least)
    }

    /// Sets the largest mass, the (1 − misses) quantile, and the threshold.
    fn aim(&mut self) {
        let misses = self.misses();
        self.most = if misses <= 0.0 {
            1.0
        } else if misses >= 1.0 {
            -1.0
        } else {
            self.quantile(1.0 - misses) as f32
        };
        self.threshold = match self.most {
            most if most < 0.0 => f32::INFINITY,
            most => self.belief.prob(most),
        };
    }

    /// The mass below which this share of true classes lies, by the labels and what is believed. Half of a label lies below its
    /// mass; between labels the share grows evenly.
    fn quantile(&self, share: f64) -> f64 {
        let mut labelled: Vec<[f64; 2]> = self.labelled.iter().map(|label| label.map(f64::from)).collect();
        labelled.sort_unstable_by(|a, b| a[0].total_cmp(&b[0]));
        let power = (SURPLUS * self.surplus).exp();
        let edge = 1.0 - (1.0 - self.coverage).powf(power.recip());
        let (mut all, mut squares, mut beyond) = (0.0, 0.0, 0.0);
        for [mass, weight] in &mut labelled {
            let own = *weight;
            *weight = all + 0.5 * own;
            all += own;
            squares += own * own;
            beyond += if *mass > edge { own } else { 0.0 };
        }
        // How far the share of the labels beyond the believed quantile is off, as a squared number of deviations.
        let spread = self.coverage * (1.0 - self.coverage) * (squares + all * all / BELIEF);
        let contradiction = (beyond - (1.0 - self.coverage) * all).powi(2) / spread.max(1e-12);
        let worth = BELIEF * (2.0 / (1.0 + contradiction)).min(1.0);
        let wanted = share * (worth + all);
        let believed = |mass: f64| worth * (1.0 - (1.0 - mass).powf(power));
        let next = labelled.partition_point(|&[mass, told]| believed(mass) + told < wanted);
        let [start, before] = if next > 0 { labelled[next - 1] } else { [0.0; 2] };
        let [end, told] = labelled.get(next).copied().unwrap_or([1.0, all]);
        let grows = (told - before) / (end - start).max(1e-12);
        halved([start, end], |mass| believed(mass) + before + grows * (mass - start) >= wanted)
    }

    /// Whether labels tell of the stream as it is now.
    fn promise(&self) -> bool {
        let since = if self.changed == 0 { self.labels } else { self.since };
        let lately = self.next_id.saturating_sub(self.labelled_id) <= REMEMBERED as u64;
        self.pending == 0 && since >= PROMISED && lately
    }

    pub(crate) fn health(&self) -> SetsHealth {
        SetsHealth {
            coverage: self.coverage,
            promise: self.promise(),
            labels: self.labels,
            held: if self.labels > 0 { self.held as f64 / self.labels as f64 } else { 0.0 },
            size: self.size,
        }
    }

    /// Bytes when everything is there.
    pub(crate) fn bytes(&self) -> usize {
        let more = 4 * (self.size as usize).saturating_sub(BEST);
        REMEMBERED * (size_of::<Given>() + more)
            + LABELLED * size_of::<[f32; 2]>()
            + 8 * BINS
            + 4 * (BINS + 1)
    }

    pub(crate) fn save(&self, state: &mut State) {
        let given = || self.given.iter();
        state.put("sets.given.held", &given().map(|g| g.held).collect::<Vec<_>>());
        state.put("sets.given.beyond", &given().map(|g| g.beyond).collect::<Vec<_>>());
        state.put("sets.given.more", &given().flat_map(|g| g.more.iter().copied()).collect::<Vec<_>>());
        state.put("sets.given.classes", given().map(|g| g.classes).collect::<Vec<_>>().as_flattened());
        state.put("sets.given.masses", given().map(|g| g.masses).collect::<Vec<_>>().as_flattened());
        state.put("sets.masses", self.labelled.iter().copied().collect::<Vec<_>>().as_flattened());
        state.put("sets.believed.bins", &self.belief.bins);
        state.put("sets.believed.above", &self.belief.above);
        state.put(
            "sets.counted",
            &[self.next_id, self.labels, self.held, self.pending, self.changed, self.since, self.labelled_id],
        );
        state.put("sets.level", &[self.level, self.size]);
        state.put("sets.surplus", &[self.surplus]);
        state.put("sets.most", &[self.most, self.threshold.min(2.0)]);
    }

    pub(crate) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        // States of earlier builds do not have the sets as they were given: sets begin anew.
        if !state.has("sets.given.held") {
            return Ok(());
        }
        let [next_id, labels, held, pending, changed, since, labelled_id] = state.counts("sets.counted")?;
        let sizes = state.get::<u32>("sets.given.held")?;
        let n = sizes.len();
        if n > REMEMBERED || sizes.iter().any(|&size| size as usize > classes) {
            return Err(Error::state("sets.given.held: too many, or a set larger than the head"));
        }
        let beyond = state.within::<f32>("sets.given.beyond", n, 0.0..=1.0)?;
        let listed =
            |size: u32| if (size as usize) < classes { (size as usize).saturating_sub(BEST) } else { 0 };
        let all = sizes.iter().map(|&size| listed(size)).sum();
        let mut more = state.get_n::<u32>("sets.given.more", all)?;
        if more.iter().any(|&class| class as usize >= classes) {
            return Err(Error::state("sets.given.more: a class out of range"));
        }
        let named = state.get_n::<u32>("sets.given.classes", n * BEST)?.as_chunks::<BEST>().0;
        if named.as_flattened().iter().any(|&class| class as usize >= classes && class != NONE) {
            return Err(Error::state("sets.given.classes: a class out of range"));
        }
        let masses = state.within::<f32>("sets.given.masses", n * BEST, 0.0..=1.0)?.as_chunks::<BEST>().0;
        let labelled = state.get::<f32>("sets.masses")?;
        if labelled.len() % 2 > 0
            || labelled.len() > 2 * LABELLED
            || labelled.iter().any(|s| !(0.0..=1.0).contains(s))
        {
            return Err(Error::state("sets.masses: too many, or one out of range"));
        }
        let bins = state.within::<f64>("sets.believed.bins", BINS, 0.0..=1e9)?;
        let above = state.within::<f32>("sets.believed.above", BINS + 1, 0.0..=1.0)?;
        let level = state.within::<f64>("sets.level", 2, -1.0..=1e9)?;
        // States of earlier builds do not have it.
        if state.has("sets.surplus") {
            self.surplus = state.within::<f64>("sets.surplus", 1, -MOST_SURPLUS..=MOST_SURPLUS)?[0];
        }
        let aimed = state.within::<f32>("sets.most", 2, -1.0..=2.0)?;
        if next_id < n as u64
            || labelled_id > next_id
            || held > labels
            || since > labels
            || level[0] > 2.0
            || aimed[1] < 0.0
        {
            return Err(Error::state("sets.counted, sets.level or sets.most out of range"));
        }
        let given = |i: usize| {
            let (own, rest) = more.split_at(listed(sizes[i]));
            more = rest;
            let (held, beyond) = (sizes[i], beyond[i]);
            Given { held, beyond, classes: named[i], masses: masses[i], more: own.into() }
        };
        self.given = (0..n).map(given).collect();
        self.labelled = labelled.as_chunks::<2>().0.iter().copied().collect();
        self.belief.bins.copy_from_slice(bins);
        self.belief.above.copy_from_slice(above);
        (self.next_id, self.labels, self.held) = (next_id, labels, held);
        (self.pending, self.changed, self.since, self.labelled_id) = (pending, changed, since, labelled_id);
        (self.level, self.size, self.most, self.threshold) = (level[0], level[1], aimed[0], aimed[1]);
        Ok(())
    }
}

impl Given {
    /// `found` are the most probable classes in their order, at least as many as are kept. They count for what is believed.
    fn new(found: &[u32], probs: &[f32], belief: &mut Belief) -> Self {
        let more = Box::default();
        let mut given = Self { held: 0, classes: [NONE; BEST], masses: [1.0; BEST], beyond: 1.0, more };
        let found = &found[..found.len().min(BEST)];
        let mut best = [0.0f32; BEST];
        best.iter_mut().zip(found).for_each(|(best, &class)| *best = probs[class as usize]);
        given.classes[..found.len()].copy_from_slice(found);
        let places = best.map(bin);
        for ((mass, &place), &prob) in given.masses.iter_mut().zip(&places).zip(&best[..found.len()]) {
            *mass = belief.mass_at(place);
            belief.bins[place.0] += f64::from(prob);
        }
        // Other classes are taken as half as probable as the last of these.
        if probs.len() > BEST {
            let (rest, least) = (best.iter().fold(1.0, |rest, prob| rest - prob), best[BEST - 1]);
            let place = bin(0.5 * least);
            given.beyond = belief.mass_at(place);
            belief.bins[place.0] += f64::from(rest.max(0.0));
        }
        given
    }

    /// The mass of a class. `None` if a label has come already.
    fn mass(&self, label: usize) -> Option<f32> {
        if self.classes[0] == NONE {
            return None;
        }
        let place = self.classes.iter().position(|&class| class as usize == label);
        Some(place.map_or(self.beyond, |place| self.masses[place]))
    }

    /// Whether the set holds a class.
    fn holds(&self, label: usize) -> bool {
        match self.classes.iter().position(|&class| class as usize == label) {
            Some(place) => place < self.held as usize,
            // A set of many classes without a list holds all there are.
            None => {
                self.held as usize > BEST && (self.more.is_empty() || self.more.contains(&(label as u32)))
            }
        }
    }
}

/// Probabilities from 2⁻²⁰ to 1 lie in bins, sixteen for every doubling: their bits but the last nineteen.
const BINS: usize = 16 * 20 + 1;
const DROPPED: u32 = 19;
const FIRST: u32 = (127 - 20) << 4;

/// How probable classes are in recent samples, each by its probability.
#[derive(Clone, Debug)]
struct Belief {
    bins: Vec<f64>,
    /// Share in a bin and all above it, when it was last looked at.
    above: Vec<f32>,
}

impl Default for Belief {
    /// Before the first sample the mass of a class is what its probability leaves.
    fn default() -> Self {
        let above = (0..=BINS).map(|bin| if bin < BINS { 1.0 - lower(bin) } else { 0.0 });
        Self { bins: vec![0.0; BINS], above: above.collect() }
    }
}

/// The least probability of a bin.
fn lower(bin: usize) -> f32 {
    f32::from_bits((bin as u32 + FIRST) << DROPPED)
}

/// The bin of a probability, and how far up in it.
fn bin(prob: f32) -> (usize, f32) {
    let bits = prob.clamp(lower(0), 1.0).to_bits();
    let up = (bits & ((1 << DROPPED) - 1)) as f32 / (1 << DROPPED) as f32;
    (((bits >> DROPPED) - FIRST) as usize, up)
}

impl Belief {
    /// The share that is more probable than what lies at a place: a bin, and how far up in it.
    fn mass_at(&self, (bin, up): (usize, f32)) -> f32 {
        let [own, next] = [self.above[bin], self.above[bin + 1]];
        (next + (own - next) * (1.0 - up)).clamp(0.0, 1.0)
    }

    /// The probability with this mass.
    fn prob(&self, mass: f32) -> f32 {
        if mass >= 1.0 {
            return 0.0;
        }
        // Shares fall from bin to bin.
        let bin = self.above.partition_point(|&above| above >= mass).saturating_sub(1).min(BINS - 1);
        let [own, next] = [self.above[bin], self.above[bin + 1]];
        let up = if own > next { 1.0 - ((mass - next) / (own - next)).clamp(0.0, 1.0) } else { 0.0 };
        let step = (up * (1 << DROPPED) as f32) as u32;
        f32::from_bits(lower(bin).to_bits() + step.min((1 << DROPPED) - 1))
    }

    /// Brings the shares up to date.
    fn look(&mut self) {
        let all: f64 = self.bins.iter().sum();
        if all > 0.0 {
            let mut sum = 0.0;
            for (above, share) in self.above.iter_mut().zip(&self.bins).rev() {
                sum += share;
                *above = (sum / all).min(1.0) as f32;
            }
        }
    }

    /// Old samples count less.
    fn fade(&mut self, half_life: f64) {
        let [least, most] = BELIEF_HALF_LIFE;
        let keep = 0.5f64.powf(EVERY as f64 / half_life.clamp(least, most));
        self.bins.iter_mut().for_each(|share| *share *= keep);
    }

    /// What was believed before a change counts little.
    fn doubt(&mut self) {
        self.bins.iter_mut().for_each(|share| *share *= BELIEVED_BEFORE);
    }
}

/// Where between two values something begins to hold, to a millionth of their distance.
fn halved([mut low, mut high]: [f64; 2], holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..20 {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// Writes the classes with at least this probability: the more probable first, the lower index first among equals.
fn find(probs: &[f32], least: f32, found: &mut Vec<u32>) {
    found.clear();
    indices_above(probs, least, found);
    if found.len() <= FEW {
        sort_few(probs, found);
        return;
    }
    // Probabilities are not negative, so their bits are in their order; turned over, the larger ones come first.
    let key = |class: u32| u64::from(!probs[class as usize].to_bits()) << 32 | u64::from(class);
    let mut keys: Vec<u64> = found.iter().map(|&class| key(class)).collect();
    keys.sort_unstable();
    found.iter_mut().zip(keys).for_each(|(class, key)| *class = key as u32);
}

/// Classes that are sorted by counting, for each, those that come before it.
const FEW: usize = 4 * BEST;

/// Sorts at most [`FEW`] classes, whose indices ascend, by their probabilities.
fn sort_few(probs: &[f32], classes: &mut [u32]) {
    let mut own = [-1.0f32; FEW];
    own.iter_mut().zip(&*classes).for_each(|(own, &class)| *own = probs[class as usize]);
    let more_probable = count_above(own, classes.len());
    let mut sorted = [NONE; FEW];
    for (&class, &place) in classes.iter().zip(&more_probable) {
        // Among equals the lower index has come first.
        let free = sorted.iter().skip(place as usize).position(|&other| other == NONE);
        sorted[place as usize + free.unwrap_or(0)] = class;
    }
    classes.copy_from_slice(&sorted[..classes.len()]);
}

/// For each of the first `n` values, how many of these are larger.
fn count_above(values: [f32; FEW], n: usize) -> [u32; FEW] {
    vectorised(
        #[inline(always)]
        || {
            let (values, mut above) = (values, [0; FEW]);
            let chunks = above.as_chunks_mut::<LANES>().0.iter_mut().zip(values.as_chunks::<LANES>().0);
            for (above, own) in chunks.take(n.div_ceil(LANES)) {
                let mut larger = [0u32; LANES];
                for &other in &values[..n.min(FEW)] {
                    for i in 0..LANES {
                        larger[i] += u32::from(other > own[i]);
                    }
                }
                *above = larger;
            }
            above
        },
    )
}

/// A probability that at least [`BEST`] classes have and hardly more, or that all have: of the largest values of some groups of
/// classes about the [`BEST`]th.
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
    let most = most.map(f32::to_bits);
    // Halves the distance between a value that enough groups reach and one that too few do.
    let (mut enough, mut too_much) = (0, 1.0f32.to_bits() + 1);
    while too_much - enough > 1 {
        let middle = enough + (too_much - enough) / 2;
        let reach = groups_from(&most, middle);
        if reach < BEST as u32 {
            too_much = middle;
        } else {
            enough = middle;
            if reach <= BEST as u32 + SLACK {
                break;
            }
        }
    }
    f32::from_bits(enough)
}

/// Classes more than [`BEST`] that may be looked at.
const SLACK: u32 = 4;

/// How many values are at least this much.
fn groups_from<const N: usize>(values: &[u32; N], least: u32) -> u32 {
    vectorised(
        #[inline(always)]
        || {
            let [least] = [least];
            values.iter().map(|&value| u32::from(value >= least)).sum()
        },
    )
}
