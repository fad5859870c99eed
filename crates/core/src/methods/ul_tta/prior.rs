//! The class prior π: how much more often than its start each class occurs here.
//!
//! **Experts** (default). Experts with half-lives 4, 16, … ∞ keep decayed soft counts of the adapted posterior
//! over all samples, one more expert stays at the start π⁰. An expert's prior is its smoothed counts with a dead
//! zone around π⁰: zero-shot models predict some classes two or three times too often even on balanced streams,
//! and that is bias, not label shift. An expert's weight is how well it foretold the frozen posterior.
//!
//! **Background.** A class that the head favours wins often, like a class that occurs often. The two differ in what
//! comes *second*: a favoured class also comes second often, on samples that belong elsewhere; a class that occurs
//! often does not. So every class's share of the frozen posterior without its winner is kept, too, over the samples
//! that it did not win, and (that share, as a ratio to an even one)^−λ lifts counts and frozen posterior alike before
//! they are compared. A sample counts for it by how little its winner was expected, so that a long run of one class
//! does not make its neighbours look favoured. Of two classes the loser always comes second, which tells nothing:
//! the lift is 1.
//!
//! **Dirichlet** (paper). Posterior mean over the responsibilities of admitted samples, capped by KL(π‖π⁰) ≤ κ.
//!
//! Everything is kept as a ratio to π⁰. Counts decay by one scale factor per expert; mass too small to list is
//! spread evenly.

use super::config::{PriorConfig, PriorRule};
use crate::kernels::{Ratios, blend, exp, ln, multiply};
use crate::{Error, Result, State};

/// Most experts besides the one that stays at the start.
pub(super) const MAX_EXPERTS: usize = 16;

/// Posterior shares below this are spread evenly instead of counted one by one.
const SMALL: f32 = 1e-3;

/// An expert with less weight than this has no say.
const LIGHT: f64 = 1e-9;

/// With less than this beside the winner, whose exp(logit − best) is 1, there is nothing to see.
const MIN_REST: f32 = 1e-30;

/// Bounds of a lift, and of the samples an expert can have counted: far from what an f32 cannot hold.
const LIFTS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
const MAX_TOTAL: f64 = 1e15;

/// Counts are rescaled when an expert's scale falls below this.
const MIN_SCALE: f64 = 1e-12;

#[derive(Clone, Debug)]
pub(super) struct Prior {
    config: PriorConfig,
    classes: usize,
    /// π⁰.
    start: Vec<f64>,
    /// 1/C.
    even: Vec<f64>,
    /// C π⁰_c, what all ratios multiply, and whether it is 1 everywhere.
    base: Vec<f32>,
    uniform: bool,
    experts: Vec<Expert>,
    /// Shares of the frozen posterior without its winner, and the winners; both as ratios to 1/C.
    background: [Expert; 2],
    /// (Mean share where it did not win, as a ratio to 1/(C − 1))^−λ, as of the last update.
    lift: Vec<f32>,
    /// Log-weights: the expert that stays at the start first, then one per half-life.
    weights: Vec<f64>,
    /// Dirichlet: Σ r over admitted samples, and log(C π_c) as of the last update.
    counts: Vec<f64>,
    log_ratio: Vec<f32>,
    /// KL(π‖π⁰) as of the last update.
    kl: f64,
}

/// Decayed soft counts, as ratios to π⁰: the true value is `scale · (counts[c] + spread)`.
#[derive(Clone, Debug)]
struct Expert {
    decay: f64,
    gamma: f64,
    scale: f64,
    /// Σ of the true counts.
    total: f64,
    spread: f64,
    counts: Vec<f64>,
    /// The counts in f32, for the passes over all classes.
    near: Vec<f32>,
}

impl Expert {
    fn new(half_life: f64, gamma: f64, classes: usize) -> Self {
        Self {
            decay: 0.5f64.powf(1.0 / half_life),
            gamma: (gamma * classes as f64).min(half_life / 4.0),
            scale: 1.0,
            total: 0.0,
            spread: 0.0,
            counts: vec![0.0; classes],
            near: vec![0.0; classes],
        }
    }

    /// Counts a sample of this weight.
    fn count(&mut self, weight: f64, shares: &Shares) {
        self.scale *= self.decay;
        self.total = self.total * self.decay + weight;
        let unit = weight / self.scale;
        for &(class, ratio) in &shares.listed {
            self.set_count(class, self.counts[class] + ratio * unit);
        }
        self.spread += shares.spread * unit;
        if self.scale < MIN_SCALE {
            for class in 0..self.counts.len() {
                self.set_count(class, self.counts[class] * self.scale);
            }
            self.spread *= self.scale;
            self.scale = 1.0;
        }
    }

    /// The true counts.
    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.counts.iter().map(|count| self.scale * (count + self.spread))
    }

    /// Smoothed counts as ratios to π⁰: `slope · count + offset`.
    fn line(&self) -> (f64, f64) {
        let all = self.gamma + self.total;
        (self.scale / all, (self.gamma + self.scale * self.spread) / all)
    }

    /// Counts, then scale, total and spread.
    fn save(&self, counts: &mut Vec<f64>, ones: &mut Vec<f64>) {
        counts.extend_from_slice(&self.counts);
        ones.extend([self.scale, self.total, self.spread]);
    }

    fn load(&mut self, counts: &[f64], ones: [f64; 3], start: &[f64]) -> Result<()> {
        for (class, &count) in counts.iter().enumerate() {
            self.set_count(class, count);
        }
        [self.scale, self.total, self.spread] = ones;
        if self.total > MAX_TOTAL {
            return Err(Error::state("local.prior.ones: a total out of range"));
        }
        if !(MIN_SCALE..=1.0).contains(&self.scale) {
            return Err(Error::state("local.prior.ones: a scale out of range"));
        }
        // No class, and no spread, holds more than all.
        let all = 1.001 * self.total + 1e-6;
        let fits = |(count, start): (&f64, &f64)| count * self.scale * start <= all;
        if self.spread * self.scale > all || !counts.iter().zip(start).all(fits) {
            return Err(Error::state("local.prior.counts: more than their total"));
        }
        Ok(())
    }

    fn set_count(&mut self, class: usize, count: f64) {
        self.counts[class] = count;
        self.near[class] = count as f32;
    }
}

/// How a sample is shared among the classes, as ratios to π⁰: some one by one, the rest evenly.
#[derive(Clone, Debug, Default)]
struct Shares {
    listed: Vec<(usize, f64)>,
    spread: f64,
}

impl Shares {
    /// Lists the shares that are worth it; they add up to at most 1.
    fn list(&mut self, shares: impl Iterator<Item = (usize, f32)>, start: &[f64]) {
        self.listed.clear();
        self.spread = 1.0;
        for (class, share) in shares.filter(|s| s.1 > SMALL) {
            self.listed.push((class, share as f64 / start[class]));
            self.spread -= share as f64;
        }
        self.spread = self.spread.max(0.0);
    }
}

/// What the prior needs per sample, kept between calls to save allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct PriorWork {
    /// How much better than uniform each expert foretold the sample.
    foretold: Vec<f64>,
    /// The frozen weights, lifted.
    lifted: Vec<f32>,
    /// Each expert's ratios.
    ratios: Vec<f32>,
    shares: Shares,
    /// C π_c of the mixture.
    pub mix: Vec<f32>,
}

impl Prior {
    /// `half_life` is the evidence's, and the background's, too.
    pub(super) fn new(config: &PriorConfig, classes: usize, half_life: f64) -> Self {
        let start =
            if config.start.is_empty() { vec![1.0 / classes as f64; classes] } else { config.start.clone() };
        let experts = match config.rule {
            PriorRule::Experts => {
                config.half_lives.iter().map(|&h| Expert::new(h, config.gamma, classes)).collect()
            }
            _ => Vec::new(),
        };
        let base: Vec<f32> = start.iter().map(|p| (p * classes as f64) as f32).collect();
        Self {
            weights: vec![0.0; experts.len() + 1],
            counts: if config.rule == PriorRule::Dirichlet { vec![0.0; classes] } else { Vec::new() },
            log_ratio: base.iter().map(|&b| b.ln()).collect(),
            background: [half_life; 2].map(|h| Expert::new(h, config.gamma, classes)),
            even: vec![1.0 / classes as f64; classes],
            lift: vec![1.0; classes],
            uniform: config.start.is_empty(),
            base,
            experts,
            start,
            classes,
            kl: 0.0,
            config: config.clone(),
        }
    }

    pub(super) fn kl(&self) -> f64 {
        self.kl
    }

    /// Writes log(C π_c) for the coming sample. `text` is exp(frozen logit − best).
    pub(super) fn log_ratios(&self, text: &[f32], work: &mut PriorWork, out: &mut [f32]) {
        if self.experts.is_empty() {
            out.copy_from_slice(&self.log_ratio);
            return;
        }
        let c = self.classes;
        work.mix.resize(c, 0.0);
        work.lifted.resize(c, 0.0);
        work.ratios.resize(c * self.experts.len(), 0.0);
        work.foretold.resize(self.experts.len() + 1, 0.0);
        let norm = 1.0 / multiply(text, &self.lift, &mut work.lifted) as f64;
        let text = &work.lifted[..];
        let weights = self.mixture();
        let mut own = weights[0] as f32;
        work.foretold[0] =
            if self.uniform { 1.0 } else { multiply(&self.base, text, &mut work.mix) as f64 * norm };
        let mut factors = [(0, 0.0f32); MAX_EXPERTS];
        let mut speaking = 0;
        for (k, (expert, ratios)) in self.experts.iter().zip(work.ratios.chunks_exact_mut(c)).enumerate() {
            let [mass, hit, most] = self.ratios(expert).weigh(&self.base, text, ratios);
            let mean = mass as f64 / c as f64;
            work.foretold[k + 1] = hit as f64 * norm / mean;
            if weights[k + 1] <= LIGHT {
                continue;
            }
            let factor = (weights[k + 1] / mean) as f32;
            if self.uniform && most <= 1.0 && mass == c as f32 {
                // All ratios within the dead zone: it says what the expert at the start says.
                own += factor;
            } else {
                factors[speaking] = (k, factor);
                speaking += 1;
            }
        }
        if self.uniform && speaking == 0 {
            work.mix.fill(1.0);
            out.fill(0.0);
            return;
        }
        // The expert at the start has ratio 1 everywhere.
        blend(&work.ratios, &factors[..speaking], own, &self.base, &mut work.mix, out);
        if self.config.kappa.is_finite() {
            let mut pi: Vec<f64> = work.mix.iter().map(|&m| m as f64 / c as f64).collect();
            cap_kl(&mut pi, &self.start, self.config.kappa);
            for ((m, o), p) in work.mix.iter_mut().zip(out).zip(pi) {
                *m = (p * c as f64) as f32;
                *o = ln(*m);
            }
        }
    }

    /// C π_c of the sample that `log_ratios` was last called for, where it is at hand.
    pub(super) fn mix<'a>(&self, work: &'a PriorWork) -> Option<&'a [f32]> {
        (!self.experts.is_empty()).then_some(&work.mix)
    }

    /// An expert's ratios: `scale · (count + spread)`, smoothed by γ, lifted, behind the dead zone.
    fn ratios<'a>(&'a self, expert: &'a Expert) -> Ratios<'a> {
        let (slope, offset) = expert.line();
        let zone = self.config.dead_zone.exp();
        Ratios {
            counts: &expert.near,
            lift: &self.lift,
            slope: slope as f32,
            offset: offset as f32,
            up: zone as f32,
            down: (1.0 / zone) as f32,
        }
    }

    /// softmax(w + b) over the experts.
    fn mixture(&self) -> [f64; MAX_EXPERTS + 1] {
        let n = self.weights.len();
        let mut mixed = [0.0; MAX_EXPERTS + 1];
        mixed[..n].copy_from_slice(&self.weights);
        mixed[0] += self.config.uniform_bias;
        let best = mixed[..n].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for w in &mut mixed[..n] {
            *w = exp((*w - best) as f32) as f64;
            sum += *w;
        }
        mixed[..n].iter_mut().for_each(|w| *w /= sum);
        mixed
    }

    /// Learns from a sample that any row may teach: weighs the experts, counts the adapted posterior of the
    /// candidates, then what comes after the frozen winner. `text` is exp(frozen logit − best); `work` must come
    /// from `log_ratios` for the same sample.
    pub(super) fn learn(
        &mut self,
        work: &mut PriorWork,
        candidates: &[u32],
        posterior: &[f32],
        text: &[f32],
        winner: usize,
    ) {
        if self.experts.is_empty() {
            return;
        }
        for (w, &f) in self.weights.iter_mut().zip(&work.foretold) {
            *w = self.config.weight_decay * *w + ln((f + 1e-6) as f32) as f64;
        }
        let shares = &mut work.shares;
        let candidates = candidates.iter().map(|&c| c as usize);
        shares.list(candidates.clone().zip(posterior.iter().copied()), &self.start);
        for expert in &mut self.experts {
            expert.count(1.0, shares);
        }

        if self.config.background == 0.0 {
            return;
        }
        let others = candidates.filter(|&c| c != winner).map(|c| (c, text[c]));
        let rest: f32 = others.clone().map(|(_, t)| t).sum();
        if rest < MIN_REST {
            return;
        }
        let weight = (1.0 / work.mix[winner] as f64).min(1.0);
        let [seconds, winners] = &mut self.background;
        shares.list(others.map(|(c, t)| (c, t / rest)), &self.even);
        seconds.count(weight, shares);
        shares.list([(winner, 1.0)].into_iter(), &self.even);
        winners.count(weight, shares);
    }

    /// Dirichlet: counts the responsibility of an admitted sample for a class.
    pub(super) fn count(&mut self, class: usize, responsibility: f64) {
        if let Some(count) = self.counts.get_mut(class) {
            *count += responsibility;
        }
    }

    /// At an update: the Dirichlet posterior mean under its cap, and the KL for the operator.
    pub(super) fn update(&mut self, gamma_factor: f64, kappa_factor: f64, work: &PriorWork) {
        match self.config.rule {
            PriorRule::Frozen => {}
            PriorRule::Experts => {
                let c = self.classes as f64;
                let [seconds, winners] = &self.background;
                let power = -self.config.background;
                for ((lift, second), won) in self.lift.iter_mut().zip(seconds.ratios()).zip(winners.ratios())
                {
                    // Of the samples that it did not win, and smoothed.
                    let share = seconds.gamma + second * (c - 1.0) / c;
                    let all = (seconds.gamma + seconds.total - won / c).max(seconds.gamma);
                    *lift = (share / all).powf(power).clamp(*LIFTS.start(), *LIFTS.end()) as f32;
                }
                self.kl = work
                    .mix
                    .iter()
                    .zip(&self.base)
                    .map(|(&m, &b)| (m as f64 / c) * (m as f64 / b as f64).max(1e-30).ln())
                    .sum::<f64>()
                    .max(0.0);
            }
            PriorRule::Dirichlet => {
                let gamma = self.config.gamma * self.classes as f64 * gamma_factor;
                let total: f64 = gamma + self.counts.iter().sum::<f64>();
                let mut pi: Vec<f64> =
                    self.counts.iter().zip(&self.start).map(|(n, p)| (gamma * p + n) / total).collect();
                cap_kl(&mut pi, &self.start, self.config.kappa * kappa_factor);
                self.kl = kl(&pi, &self.start);
                for (l, p) in self.log_ratio.iter_mut().zip(&pi) {
                    *l = (p * self.classes as f64).ln() as f32;
                }
            }
        }
    }

    /// π now, for reports.
    pub(super) fn current(&self, work: &PriorWork) -> Vec<f64> {
        let c = self.classes as f64;
        match self.config.rule {
            PriorRule::Experts if !work.mix.is_empty() => work.mix.iter().map(|&m| m as f64 / c).collect(),
            PriorRule::Dirichlet => self.log_ratio.iter().map(|&l| (l as f64).exp() / c).collect(),
            _ => self.start.clone(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.experts.len() + 2) * self.classes * 12 + self.classes * 36
    }

    pub(super) fn save_evidence(&self, state: &mut State) {
        if !self.counts.is_empty() {
            state.put("evidence.prior", &self.counts);
        }
    }

    pub(super) fn load_evidence(&mut self, state: &State) -> Result<()> {
        if !self.counts.is_empty() {
            self.counts = checked_counts("evidence.prior", state, self.classes)?;
        }
        Ok(())
    }

    pub(super) fn save_local(&self, work: &PriorWork, state: &mut State) {
        state.put("local.prior.kl", &[self.kl]);
        state.put("local.prior.weights", &self.weights);
        if self.config.rule == PriorRule::Dirichlet {
            state.put("local.prior.log_ratio", &self.log_ratio);
        }
        if !self.experts.is_empty() {
            let (mut counts, mut ones) = (Vec::new(), Vec::new());
            self.experts.iter().chain(&self.background).for_each(|e| e.save(&mut counts, &mut ones));
            state.put("local.prior.counts", &counts);
            state.put("local.prior.ones", &ones);
            state.put("local.prior.lift", &self.lift);
            state.put("local.prior.mix", &work.mix);
        }
    }

    pub(super) fn load_local(&mut self, work: &mut PriorWork, state: &State) -> Result<()> {
        self.kl = checked_counts("local.prior.kl", state, 1)?[0];
        self.weights = state.get_n::<f64>("local.prior.weights", self.weights.len())?.to_vec();
        if self.config.rule == PriorRule::Dirichlet {
            let log_ratio = state.within::<f32>("local.prior.log_ratio", self.classes, -1e3..=1e3)?;
            self.log_ratio = log_ratio.to_vec();
        }
        if !self.experts.is_empty() {
            let all = self.experts.len() + self.background.len();
            let counts = checked_counts("local.prior.counts", state, all * self.classes)?;
            let ones = checked_counts("local.prior.ones", state, all * 3)?;
            let saved = counts.chunks(self.classes).zip(ones.as_chunks().0);
            let starts = std::iter::repeat_n(&self.start, self.experts.len()).chain([&self.even; 2]);
            let experts = self.experts.iter_mut().chain(&mut self.background);
            for ((expert, start), (counts, &ones)) in experts.zip(starts).zip(saved) {
                expert.load(counts, ones, start)?;
            }
            self.lift = state.within::<f32>("local.prior.lift", self.classes, LIFTS)?.to_vec();
            let mix = state.get::<f32>("local.prior.mix")?;
            let len = if mix.is_empty() { 0 } else { self.classes };
            work.mix =
                state.within::<f32>("local.prior.mix", len, 0.0..=1.001 * self.classes as f64)?.to_vec();
        }
        Ok(())
    }
}

/// Values that count something: none may be negative, or beyond what a stream can hold.
pub(super) fn checked_counts(name: &str, state: &State, len: usize) -> Result<Vec<f64>> {
    Ok(state.within::<f64>(name, len, 0.0..=1e30)?.to_vec())
}

/// Sums of unit vectors, one per count: none can be longer than its count.
pub(super) fn checked_sums(name: &str, sums: &[f64], counts: &[f64]) -> Result<()> {
    let dim = sums.len() / counts.len();
    let fits = sums.chunks(dim).zip(counts).all(|(sum, n)| sum.iter().all(|s| s.abs() <= 1.001 * n + 1e-6));
    if fits { Ok(()) } else { Err(Error::state(format!("{name} holds a sum longer than its count"))) }
}

/// KL(p‖q) in nats.
pub(super) fn kl(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| if *p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum::<f64>().max(0.0)
}

/// Mixes `pi` back towards `start` with the largest share λ of itself that keeps KL(π‖π⁰) ≤ κ.
pub(super) fn cap_kl(pi: &mut [f64], start: &[f64], kappa: f64) {
    if kl(pi, start) <= kappa {
        return;
    }
    let mixed = |lambda: f64| -> Vec<f64> {
        pi.iter().zip(start).map(|(p, s)| lambda * p + (1.0 - lambda) * s).collect()
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if kl(&mixed(middle), start) <= kappa {
            low = middle;
        } else {
            high = middle;
        }
    }
    let capped = mixed(low);
    pi.copy_from_slice(&capped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_takes_the_largest_share() {
        let start = [0.25; 4];
        let mut pi = [0.7, 0.1, 0.1, 0.1];
        cap_kl(&mut pi, &start, 0.07);
        assert!((kl(&pi, &start) - 0.07).abs() < 1e-9);
        let mut loose = [0.26, 0.25, 0.25, 0.24];
        cap_kl(&mut loose, &start, 0.07);
        assert_eq!(loose, [0.26, 0.25, 0.25, 0.24]);
        let mut none = [0.7, 0.1, 0.1, 0.1];
        cap_kl(&mut none, &start, 0.0);
        assert!(none.iter().all(|p| (p - 0.25).abs() < 1e-6));
    }

    #[test]
    fn a_missing_class_is_found_out_and_balance_stays_uniform() {
        let run = |labels: &dyn Fn(usize) -> usize| {
            let mut prior = Prior::new(&PriorConfig::default(), 4, 1000.0);
            let (mut work, mut out) = (PriorWork::default(), [0.0; 4]);
            for i in 0..400 {
                let mut text = [0.05f32; 4];
                text[labels(i)] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                let sum: f32 = text.iter().zip(&work.mix).map(|(t, m)| t * m).sum();
                let posterior: Vec<f32> = text.iter().zip(&work.mix).map(|(t, m)| t * m / sum).collect();
                prior.learn(&mut work, &[0, 1, 2, 3], &posterior, &text, labels(i));
            }
            work.mix
        };
        let balanced = run(&|i| i % 4);
        assert!(balanced.iter().all(|m| (m - 1.0).abs() < 0.05), "{balanced:?}");
        let missing = run(&|i| i % 2);
        assert!(missing[0] > 1.5 && missing[3] < 0.5, "{missing:?}");
    }

    /// Two of four classes win all samples. Where the other two come second, they are missing; where even second
    /// place goes to the two, the head favours them.
    #[test]
    fn a_class_that_comes_second_as_well_is_favoured_not_frequent() {
        let ratio = |others: f32, background: f64| {
            let config = PriorConfig { background, ..Default::default() };
            let mut prior = Prior::new(&config, 4, 1000.0);
            let (mut work, mut out) = (PriorWork::default(), [0.0; 4]);
            for i in 0..400 {
                let mut text = [0.05, 0.05, others, others];
                text[i % 2] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                let sum: f32 = text.iter().zip(&work.mix).map(|(t, m)| t * m).sum();
                let posterior: Vec<f32> = text.iter().zip(&work.mix).map(|(t, m)| t * m / sum).collect();
                prior.learn(&mut work, &[0, 1, 2, 3], &posterior, &text, i % 2);
                if i % 64 == 63 {
                    prior.update(1.0, 1.0, &work);
                }
            }
            work.mix[0] / work.mix[3]
        };
        let (missing, favoured) = ([0.0, 0.6].map(|b| ratio(0.05, b)), [0.0, 0.6].map(|b| ratio(0.002, b)));
        assert_eq!(missing[1], missing[0], "what comes second is even: nothing to lift");
        assert!(favoured[1] < 0.5 * favoured[0], "{favoured:?}");
    }

    /// Of two classes the one that did not win always comes second.
    #[test]
    fn two_classes_are_never_lifted() {
        let mut prior = Prior::new(&PriorConfig::default(), 2, 1000.0);
        let (mut work, mut out) = (PriorWork::default(), [0.0; 2]);
        for i in 0..300 {
            let winner = usize::from(i % 5 == 0);
            let mut text = [0.3f32; 2];
            text[winner] = 1.0;
            prior.log_ratios(&text, &mut work, &mut out);
            prior.learn(&mut work, &[0, 1], &text.map(|t| t / 1.3), &text, winner);
            prior.update(1.0, 1.0, &work);
        }
        assert!(prior.lift.iter().all(|l| (l - 1.0).abs() < 1e-5), "{:?}", prior.lift);
    }

    /// What π⁰ says must not be taken for what the head favours.
    #[test]
    fn a_start_is_no_background() {
        let lift = |start: Vec<f64>| {
            let config = PriorConfig { start, ..Default::default() };
            let mut prior = Prior::new(&config, 3, 1000.0);
            let (mut work, mut out) = (PriorWork::default(), [0.0; 3]);
            for i in 0..300 {
                let mut text = [0.1f32; 3];
                text[i % 3] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                prior.learn(&mut work, &[0, 1, 2], &text.map(|t| t / 1.2), &text, i % 3);
                prior.update(1.0, 1.0, &work);
            }
            prior.lift.clone()
        };
        let (even, skewed) = (lift(Vec::new()), lift(vec![0.9, 0.05, 0.05]));
        assert!(even.iter().zip(&skewed).all(|(a, b)| (a - b).abs() < 0.02), "{even:?} {skewed:?}");
    }

    #[test]
    fn mixture_is_a_distribution_under_any_start() {
        let config = PriorConfig { start: vec![0.5, 0.3, 0.2], ..Default::default() };
        let mut prior = Prior::new(&config, 3, 1000.0);
        let (mut work, mut out) = (PriorWork::default(), [0.0; 3]);
        for _ in 0..50 {
            prior.log_ratios(&[1.0, 0.1, 0.1], &mut work, &mut out);
            let sum: f32 = work.mix.iter().sum();
            assert!((sum - 3.0).abs() < 1e-4, "{sum}");
            prior.learn(&mut work, &[0, 1, 2], &[0.9, 0.05, 0.05], &[1.0, 0.1, 0.1], 0);
        }
    }
}
