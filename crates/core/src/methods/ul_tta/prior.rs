//! The class prior π: how much more often than at the start each class occurs in the stream.
//!
//! **Experts.** Five experts with half-lives 4, 16, 64, 256 and ∞ samples count the adapted posterior of all samples;
//! one more expert always says π⁰. An expert's prior is its smoothed counts behind a *dead zone*: log-ratios to π⁰
//! shrink by `prior_dead_zone` towards 0, because a zero-shot model predicts some classes two or three times too often even on
//! balanced streams, and that is bias, not label shift. How well expert k *foretold* a sample is
//!
//! ```text
//! foretold_k = Σ_c q_c · π_k,c / π⁰_c        q = the frozen posterior of the sample (lifted, see below)
//! ```
//!
//! 1 is as good as π⁰. An expert's record is the decayed sum of log(foretold), and π is the mixture of the experts'
//! priors with weights softmax(record); the expert at π⁰ has a head start.
//!
//! **Stay, move near, or jump.** Things come in runs. Four more experts do not count but filter: before each scene
//! the class *stays* with probability h (0.5, 0.8, 0.95, 0.99); else it moves *near*, to a class with a similar
//! prototype (`neighbours.rs`), three times in ten, or *jumps* anywhere:
//!
//! ```text
//! π_h = h · stay + (1 − h) · (0.3 near + 0.7 π⁰)      stay ∝ posterior of the last scene · lift^stay_lift      near = K stay
//! ```
//!
//! with the adapted posterior, K the neighbours' weights, and the lift of the background to the power `prior_stay_lift`: a run of
//! a class that the head hardly knows must not turn into a run of the class that the head favours. All use the
//! same two vectors, stay and near: a further one would cost nothing per class.
//!
//! **Lift.** Counts and frozen posterior are multiplied by the lift of the *background* (`background.rs`) before they are
//! compared: a class that the head favours, and that wins often for this reason, is held down.
//!
//! **Doubt.** With up to five classes the background is blind or nearly so; there one more expert takes weight from the others
//! for π⁰ where what they foretell is the mix of the whole stream and no more (`doubt.rs`).
//!
//! All priors are kept as ratios to π⁰.

use super::background::Background;
use super::config::DefaultConfig;
use super::corrections::IN_PRIOR;
use super::doubt;
use super::experts::{Expert, Shares};
use super::neighbours::Neighbours;
use crate::kernels::{Line, TOGETHER, Voices, Weighed, blend, exp, fill, ln, none_above_one};
use crate::methods::checked::checked_counts;
use crate::methods::kl::cap_kl;
use crate::{Error, Head, Result, State};

/// Most half-lives in the settings.
pub(super) const MAX_EXPERTS: usize = 16;

/// Most probabilities of staying in the settings.
pub(super) const MAX_STAYS: usize = 8;

/// All experts, with the one that stays at π⁰ and the doubt.
const MAX_ALL: usize = 2 + MAX_EXPERTS + MAX_STAYS;

/// Share of the moves that go near; the others go anywhere.
const NEAR: f64 = 0.3;

/// Smaller shares of the last scene's posterior are not carried to the neighbours one by one.
const LEAST_STAY: f32 = 1e-3;

/// Samples before the prior enters the answers. It learns from the first one on; but a few scenes of one camera are
/// much alike, and a prior that had seen nothing else would make every later answer surer than it is right.
pub(in crate::methods) const WARM_UP: u64 = 16;

/// An expert with less weight than this has no say.
const LIGHT: f64 = 1e-9;

/// Added to what an expert foretold, so that its logarithm is finite.
const LEAST_FORETOLD: f64 = 1e-6;

#[derive(Clone, Debug)]
pub(super) struct Prior {
    /// e^δ and e^−δ of the dead zone.
    zone: [f32; 2],
    record_decay: f64,
    head_start: f64,
    kl_max: f64,
    classes: usize,
    /// π⁰.
    start: Vec<f64>,
    /// C π⁰_c, and whether it is 1 for every class.
    base: Vec<f32>,
    uniform: bool,
    /// Empty where the prior is frozen.
    experts: Vec<Expert>,
    pub background: Background,
    /// The values of h.
    stays: Vec<f64>,
    /// Posterior of the last scene, and the same moved to the neighbours; both as ratios to π⁰.
    stay: Vec<f32>,
    near: Vec<f32>,
    neighbours: Neighbours,
    /// The logarithm of the doubt's weight at the start, where there are few classes.
    doubt: Option<f64>,
    /// The records: of the expert that stays at π⁰ first, then one per half-life, then one per h, and the doubt's last.
    records: Vec<f64>,
    /// KL(π‖π⁰) as of the last update.
    kl: f64,
}

/// What the prior computes for one sample.
#[derive(Clone, Debug, Default)]
pub(super) struct PriorWork {
    /// What each expert foretold of the sample.
    foretold: Vec<f64>,
    shares: Shares,
    /// The lifted posterior of the candidates.
    stay: Vec<f32>,
    /// C π_c of the mixture, for the last sample.
    pub mix: Vec<f32>,
}

impl Prior {
    /// `half_life` is that of the evidence.
    pub(super) fn new(config: &DefaultConfig, classes: usize, half_life: f64) -> Self {
        let a = &config.advanced;
        let given = &config.prior.start;
        let start = if given.is_empty() { vec![1.0 / classes as f64; classes] } else { given.clone() };
        let (half_lives, stays): (&[f64], &[f64]) =
            if config.prior.frozen { (&[], &[]) } else { (&a.prior_half_lives, &a.prior_stays) };
        let expert = |h: f64| Expert::new(h, a.prior_smoothing, classes);
        let zone = a.prior_dead_zone.exp();
        let doubt = doubt::start(classes).filter(|_| !half_lives.is_empty());
        Self {
            zone: [zone as f32, (1.0 / zone) as f32],
            record_decay: a.prior_record_decay,
            head_start: a.prior_head_start,
            kl_max: a.prior_kl_max,
            classes,
            base: start.iter().map(|p| (p * classes as f64) as f32).collect(),
            uniform: config.prior.start.is_empty(),
            start,
            experts: half_lives.iter().map(|&h| expert(h)).collect(),
            background: Background::new(config, classes, half_life),
            stays: stays.to_vec(),
            stay: vec![1.0; classes],
            near: vec![1.0; classes],
            neighbours: Neighbours::new(classes),
            records: vec![0.0; 1 + half_lives.len() + stays.len() + usize::from(doubt.is_some())],
            doubt,
            kl: 0.0,
        }
    }

    pub(super) fn kl(&self) -> f64 {
        self.kl
    }

    /// Writes the prior at the start, for answers during the warm-up.
    pub(super) fn at_start(&self, mix: &mut [f32], log_prior: &mut [f32]) {
        mix.copy_from_slice(&self.base);
        log_prior.iter_mut().zip(&self.base).for_each(|(o, b)| *o = b.ln());
    }

    /// Takes over what depends on the head alone.
    pub(super) fn keep_neighbours(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.neighbours, &mut other.neighbours);
    }

    /// Writes log(C π_c) for the coming sample, and C π_c to `work.mix`. `text` is exp(frozen logit − best).
    pub(super) fn log_ratios(&self, text: &[f32], work: &mut PriorWork, out: &mut [f32]) {
        let c = self.classes;
        work.mix.resize(c, 0.0);
        if self.experts.is_empty() {
            self.at_start(&mut work.mix, out);
            return;
        }
        work.foretold.resize(self.records.len(), 0.0);
        let (sums, [all, of_start, stay, near]) = self.weigh(text);
        let norm = 1.0 / all as f64;
        let weights = self.weights();
        let mut at_start = weights[0] as f32;
        work.foretold[0] = if self.uniform { 1.0 } else { of_start as f64 * norm };
        let mut beliefs: [(&[f32], f32); 2] = [(&[], 0.0); 2];
        let mut experts = [(Line::NOTHING, 0.0); MAX_EXPERTS];
        let (mut believed, mut speaking) = (0, 0);
        if !self.stays.is_empty() {
            let hits = [stay as f64 * norm, near as f64 * norm];
            let [of_stay, of_near] = self.filter(hits, &weights, &mut work.foretold, &mut at_start);
            for (belief, factor) in [(&self.stay, of_stay), (&self.near, of_near)] {
                if factor > LIGHT {
                    beliefs[believed] = (belief, factor as f32);
                    believed += 1;
                }
            }
        }
        let (lift, zone) = (&self.background.lift, self.zone);
        if let (Some(_), Some(slowest), Some(last)) =
            (self.doubt, self.experts.last(), work.foretold.last_mut())
        {
            *last = doubt::foretold(slowest, lift, &self.base, text);
        }
        for (k, (expert, [mass, hit])) in self.experts.iter().zip(sums).enumerate() {
            let mean = mass as f64 / c as f64;
            work.foretold[k + 1] = hit as f64 * norm / mean;
            if weights[k + 1] <= LIGHT {
                continue;
            }
            let factor = (weights[k + 1] / mean) as f32;
            let line = expert.as_line();
            if self.uniform && mass == c as f32 && none_above_one(line, lift, zone) {
                // All ratios lie within the dead zone: this expert says π⁰, too.
                at_start += factor;
            } else {
                experts[speaking] = (line, factor);
                speaking += 1;
            }
        }
        if self.uniform && believed + speaking == 0 {
            fill(&mut work.mix, 1.0);
            fill(out, 0.0);
            return;
        }
        let voices = Voices { beliefs: &beliefs[..believed], experts: &experts[..speaking], lift, zone };
        blend(&voices, at_start, &self.base, &mut work.mix, out);
        if self.kl_max.is_finite() {
            self.cap(&mut work.mix, out);
        }
    }

    /// What the filtering experts foretold, from what *stay* and *near* did, and the weights of stay and near in the
    /// mixture. Their weight on π⁰ is added to `at_start`.
    fn filter(
        &self,
        [stay, near]: [f64; 2],
        weights: &[f64; MAX_ALL],
        foretold: &mut [f64],
        at_start: &mut f32,
    ) -> [f64; 2] {
        let [mut of_stay, mut of_near] = [0.0; 2];
        let first = 1 + self.experts.len();
        for (k, &h) in self.stays.iter().enumerate() {
            let moves = NEAR * near + (1.0 - NEAR) * foretold[0];
            foretold[first + k] = h * stay + (1.0 - h) * moves;
            let weight = weights[first + k];
            of_stay += weight * h;
            of_near += weight * (1.0 - h) * NEAR;
            *at_start += (weight * (1.0 - h) * (1.0 - NEAR)) as f32;
        }
        [of_stay, of_near]
    }

    /// Holds C π within the cap on its divergence from π⁰, and its logarithms with it.
    fn cap(&self, mix: &mut [f32], out: &mut [f32]) {
        let c = self.classes as f64;
        let mut pi: Vec<f64> = mix.iter().map(|&m| m as f64 / c).collect();
        cap_kl(&mut pi, &self.start, self.kl_max);
        for ((m, o), p) in mix.iter_mut().zip(out).zip(pi) {
            *m = (p * c) as f32;
            *o = ln(*m);
        }
    }

    /// Weighs π_k,c / π⁰_c of all experts but for their scale: their smoothed counts, lifted, behind the dead zone. Returns
    /// what [`Weighed::weigh`] does, of each expert and of all.
    fn weigh(&self, text: &[f32]) -> ([[f32; 2]; MAX_EXPERTS], [f32; 4]) {
        let weighed = Weighed {
            text,
            lift: &self.background.lift,
            base: (!self.uniform).then_some(&self.base[..]),
            beliefs: [&self.stay, &self.near],
            zone: self.zone,
        };
        let (mut sums, mut all) = ([[0.0; 2]; MAX_EXPERTS], [0.0; 4]);
        for (experts, sums) in self.experts.chunks(TOGETHER).zip(sums.chunks_mut(TOGETHER)) {
            let mut lines = [Line::NOTHING; TOGETHER];
            lines.iter_mut().zip(experts).for_each(|(line, expert)| *line = expert.as_line());
            all = weighed.weigh(&lines[..experts.len()], sums);
        }
        (sums, all)
    }

    /// The experts' weights: softmax of their records. The doubt's goes to the expert that stays at π⁰.
    fn weights(&self) -> [f64; MAX_ALL] {
        let n = self.records.len();
        let mut mixed = [0.0; MAX_ALL];
        mixed[..n].copy_from_slice(&self.records);
        mixed[0] += self.head_start;
        mixed[n - 1] += self.doubt.unwrap_or(0.0);
        let best = mixed[..n].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        for w in &mut mixed[..n] {
            *w = exp((*w - best) as f32) as f64;
            sum += *w;
        }
        mixed[..n].iter_mut().for_each(|w| *w /= sum);
        if self.doubt.is_some() {
            mixed[0] += std::mem::take(&mut mixed[n - 1]);
        }
        mixed
    }

    /// Learns from a sample, admitted or not: the records, the counts, where the next scene may be, the background.
    /// `posterior` is the adapted posterior of the candidates, `text` is exp(frozen logit − best), `winner` the class
    /// of the best frozen logit; `work` comes from `log_ratios` for the same sample.
    pub(super) fn learn(
        &mut self,
        work: &mut PriorWork,
        candidates: &[u32],
        posterior: &[f32],
        text: &[f32],
        winner: usize,
        head: &Head,
    ) {
        if self.experts.is_empty() {
            return;
        }
        for (record, &foretold) in self.records.iter_mut().zip(&work.foretold) {
            *record = self.record_decay * *record + ln((foretold + LEAST_FORETOLD) as f32) as f64;
        }
        self.advance(candidates, posterior, &mut work.stay, head);
        let shares = &mut work.shares;
        let classes = candidates.iter().map(|&c| c as usize);
        shares.list(classes.zip(posterior.iter().copied()), &self.start);
        for expert in &mut self.experts {
            expert.count(1.0, shares);
        }

        self.background.count(candidates, text, winner, work.mix[winner], shares);
    }

    /// What the filter believes of the next class before it moves: this sample's posterior, lifted; and near it.
    fn advance(&mut self, candidates: &[u32], posterior: &[f32], lifted: &mut Vec<f32>, head: &Head) {
        if self.stays.is_empty() {
            return;
        }
        let rest = 1.0 - posterior.iter().sum::<f32>();
        lifted.clear();
        let lift = &self.background.stay_lift;
        lifted.extend(candidates.iter().zip(posterior).map(|(&c, p)| p * lift[c as usize]));
        let all = lifted.iter().sum::<f32>() + rest.max(0.0);
        lifted.iter_mut().for_each(|p| *p /= all.max(f32::MIN_POSITIVE));
        let posterior = &lifted[..];
        let listed: f32 = posterior.iter().sum();
        let others = (self.classes - candidates.len()).max(1) as f32;
        let rest = (1.0 - listed).max(0.0) / others;
        let (classes, start, uniform) = (self.classes as f32, &self.start, self.uniform);
        // A share as a ratio to π⁰.
        let ratio = |share: f32, c: usize| if uniform { share * classes } else { share / start[c] as f32 };
        if uniform {
            fill(&mut self.stay, rest * classes);
        } else {
            self.stay.iter_mut().zip(start).for_each(|(s, &p)| *s = rest / p as f32);
        }
        let alone = self.classes == 1;
        let moved: f32 = posterior.iter().filter(|share| !alone && **share > LEAST_STAY).sum();
        fill(&mut self.near, (1.0 - moved).max(0.0));
        for (&c, &share) in candidates.iter().zip(posterior) {
            self.stay[c as usize] = ratio(share, c as usize);
            if share > LEAST_STAY {
                for &(near, weight) in self.neighbours.of(c as usize, head) {
                    self.near[near as usize] += ratio(share * weight, near as usize);
                }
            }
        }
    }

    /// Withdraws the shares of a sample that was counted `age` samples ago, and counts a label in its place; with `sign`
    /// −1 the other way round.
    pub(super) fn recount(&mut self, shares: &[(u32, f32)], label: usize, age: u64, sign: f64) {
        for expert in &mut self.experts {
            for &(class, share) in shares.iter().filter(|share| share.1 > 0.0) {
                expert.recount(class as usize, -sign * share as f64, age, &self.start);
            }
            expert.recount(label, sign * IN_PRIOR, age, &self.start);
        }
    }

    /// The lift from the background as it stands.
    pub(super) fn relift(&mut self) {
        if !self.experts.is_empty() {
            self.background.relift();
        }
    }

    /// At an update: the lift, and the KL that operators watch.
    pub(super) fn update(&mut self, work: &PriorWork) {
        if self.experts.is_empty() {
            return;
        }
        self.relift();
        let c = self.classes as f64;
        self.kl = work
            .mix
            .iter()
            .zip(&self.base)
            .map(|(&m, &b)| (m as f64 / c) * (m as f64 / b as f64).max(1e-30).ln())
            .sum::<f64>()
            .max(0.0);
    }

    /// π of the last sample, for reports.
    pub(super) fn current(&self, work: &PriorWork) -> Vec<f64> {
        let c = self.classes as f64;
        if self.experts.is_empty() || work.mix.is_empty() {
            return self.start.clone();
        }
        work.mix.iter().map(|&m| m as f64 / c).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        (self.experts.len() + 2) * self.classes * 12 + self.classes * 48 + self.neighbours.bytes()
    }

    pub(super) fn save(&self, work: &PriorWork, state: &mut State) {
        if self.experts.is_empty() {
            return;
        }
        let (mut counts, mut sums) = (Vec::new(), Vec::new());
        self.experts.iter().chain(&self.background.counts).for_each(|e| e.save(&mut counts, &mut sums));
        state.put("local.prior.kl", &[self.kl]);
        state.put("local.prior.records", &self.records);
        state.put("local.prior.counts", &counts);
        state.put("local.prior.sums", &sums);
        state.put("local.prior.lift", &self.background.lift);
        state.put("local.prior.stay", &self.stay);
        state.put("local.prior.near", &self.near);
        state.put("local.prior.mix", &work.mix);
    }

    pub(super) fn load(&mut self, work: &mut PriorWork, state: &State) -> Result<()> {
        if self.experts.is_empty() {
            return Ok(());
        }
        self.kl = checked_counts("local.prior.kl", state, 1)?[0];
        let (name, mut len) = ("local.prior.records", self.records.len());
        // States of before the doubt have no record of it.
        len -= usize::from(self.doubt.is_some() && state.get::<f64>(name)?.len() + 1 == len);
        self.records[..len].copy_from_slice(state.get_n::<f64>(name, len)?);
        let all = self.experts.len() + self.background.counts.len();
        let counts = checked_counts("local.prior.counts", state, all * self.classes)?;
        let sums = checked_counts("local.prior.sums", state, all * 3)?;
        let saved = counts.chunks(self.classes).zip(sums.as_chunks().0);
        let starts = std::iter::repeat_n(&self.start, self.experts.len()).chain([&self.background.even; 2]);
        let experts = self.experts.iter_mut().chain(&mut self.background.counts);
        for ((expert, start), (counts, &sums)) in experts.zip(starts).zip(saved) {
            expert.load(counts, sums, start)?;
        }
        self.background.load(state)?;
        let belief = |name: &str| -> Result<Vec<f32>> {
            let beliefs = state.within::<f32>(name, self.classes, 0.0..=1e30)?;
            let sum: f64 = beliefs.iter().zip(&self.start).map(|(&b, p)| b as f64 * p).sum();
            if !(0.99..1.01).contains(&sum) {
                return Err(Error::state(format!("{name}: expected shares that add up to 1, got {sum}")));
            }
            Ok(beliefs.to_vec())
        };
        (self.stay, self.near) = (belief("local.prior.stay")?, belief("local.prior.near")?);
        let len = if state.get::<f32>("local.prior.mix")?.is_empty() { 0 } else { self.classes };
        work.mix = state.within::<f32>("local.prior.mix", len, 0.0..=1.001 * self.classes as f64)?.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes that are all equally near.
    fn head(classes: usize) -> Head {
        let rows = (0..classes * classes).map(|i| if i % (classes + 1) == 0 { 1.0 } else { 0.0 }).collect();
        Head::new(rows, classes, (0..classes).map(|c| c.to_string()), 10.0).unwrap()
    }

    fn config(change: impl Fn(&mut DefaultConfig)) -> DefaultConfig {
        let mut config = DefaultConfig::default();
        change(&mut config);
        config
    }

    fn without_doubt(mut prior: Prior) -> Prior {
        prior.doubt = Some(f64::NEG_INFINITY);
        prior
    }

    #[test]
    fn a_missing_class_is_found_out_and_balance_stays_uniform() {
        let run = |labels: &dyn Fn(usize) -> usize| {
            let mut prior = Prior::new(&config(|_| ()), 4, 1000.0);
            let (mut work, mut out) = (PriorWork::default(), [0.0; 4]);
            for i in 0..400 {
                let mut text = [0.05f32; 4];
                text[labels(i)] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                let sum: f32 = text.iter().zip(&work.mix).map(|(t, m)| t * m).sum();
                let posterior: Vec<f32> = text.iter().zip(&work.mix).map(|(t, m)| t * m / sum).collect();
                prior.learn(&mut work, &[0, 1, 2, 3], &posterior, &text, labels(i), &head(4));
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
            let config = config(|c| c.advanced.prior_background = background);
            let mut prior = without_doubt(Prior::new(&config, 4, 1000.0));
            let (mut work, mut out) = (PriorWork::default(), [0.0; 4]);
            for i in 0..400 {
                let mut text = [0.05, 0.05, others, others];
                text[i % 2] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                let sum: f32 = text.iter().zip(&work.mix).map(|(t, m)| t * m).sum();
                let posterior: Vec<f32> = text.iter().zip(&work.mix).map(|(t, m)| t * m / sum).collect();
                prior.learn(&mut work, &[0, 1, 2, 3], &posterior, &text, i % 2, &head(4));
                if i % 64 == 63 {
                    prior.update(&work);
                }
            }
            work.mix[0] / work.mix[3]
        };
        let (missing, favoured) = ([0.0, 0.6].map(|b| ratio(0.05, b)), [0.0, 0.6].map(|b| ratio(0.002, b)));
        assert_eq!(missing[1], missing[0], "the second places are even: nothing to lift");
        assert!(favoured[1] < 0.5 * favoured[0], "{favoured:?}");
    }

    /// Of two classes the one that did not win always comes second.
    #[test]
    fn two_classes_are_never_lifted() {
        let mut prior = Prior::new(&config(|_| ()), 2, 1000.0);
        let (mut work, mut out) = (PriorWork::default(), [0.0; 2]);
        for i in 0..300 {
            let winner = usize::from(i % 5 == 0);
            let mut text = [0.3f32; 2];
            text[winner] = 1.0;
            prior.log_ratios(&text, &mut work, &mut out);
            prior.learn(&mut work, &[0, 1], &text.map(|t| t / 1.3), &text, winner, &head(2));
            prior.update(&work);
        }
        assert!(prior.background.lift.iter().all(|l| (l - 1.0).abs() < 1e-5), "{:?}", prior.background.lift);
    }

    /// What π⁰ says must not be taken for what the head favours.
    #[test]
    fn a_start_is_no_background() {
        let lift = |start: Vec<f64>| {
            let config = config(|c| c.prior.start.clone_from(&start));
            let mut prior = Prior::new(&config, 3, 1000.0);
            let (mut work, mut out) = (PriorWork::default(), [0.0; 3]);
            for i in 0..300 {
                let mut text = [0.1f32; 3];
                text[i % 3] = 1.0;
                prior.log_ratios(&text, &mut work, &mut out);
                prior.learn(&mut work, &[0, 1, 2], &text.map(|t| t / 1.2), &text, i % 3, &head(3));
                prior.update(&work);
            }
            prior.background.lift.clone()
        };
        let (even, skewed) = (lift(Vec::new()), lift(vec![0.9, 0.05, 0.05]));
        assert!(even.iter().zip(&skewed).all(|(a, b)| (a - b).abs() < 0.02), "{even:?} {skewed:?}");
    }

    /// A head that favours the first of two classes: seven samples in eight look like it. And runs of fifty.
    #[test]
    fn with_two_classes_what_lasts_may_be_the_head_and_runs_are_believed() {
        let ratio = |sample: &dyn Fn(usize) -> [f32; 2], doubts: bool| {
            let prior = Prior::new(&config(|_| ()), 2, 1000.0);
            let mut prior = if doubts { prior } else { without_doubt(prior) };
            let (mut work, mut out) = (PriorWork::default(), [0.0; 2]);
            for i in 0..400 {
                let text = sample(i);
                prior.log_ratios(&text, &mut work, &mut out);
                let sum: f32 = text.iter().zip(&work.mix).map(|(t, m)| t * m).sum();
                let posterior: Vec<f32> = text.iter().zip(&work.mix).map(|(t, m)| t * m / sum).collect();
                prior.learn(&mut work, &[0, 1], &posterior, &text, usize::from(text[1] == 1.0), &head(2));
            }
            work.mix[0] / work.mix[1]
        };
        let favoured = |i: usize| if i % 8 == 7 { [0.05, 1.0] } else { [1.0, 0.05] };
        let (with, without) = (ratio(&favoured, true), ratio(&favoured, false));
        assert!(with - 1.0 < 0.6 * (without - 1.0), "{with} {without}");
        let runs = |i: usize| if (i / 50).is_multiple_of(2) { [0.05, 1.0] } else { [1.0, 0.05] };
        assert!(ratio(&runs, true) > 10.0, "{}", ratio(&runs, true));
    }

    #[test]
    fn mixture_is_a_distribution_under_any_start() {
        let config = config(|c| c.prior.start = vec![0.5, 0.3, 0.2]);
        let mut prior = Prior::new(&config, 3, 1000.0);
        let (mut work, mut out) = (PriorWork::default(), [0.0; 3]);
        for _ in 0..50 {
            prior.log_ratios(&[1.0, 0.1, 0.1], &mut work, &mut out);
            let sum: f32 = work.mix.iter().sum();
            assert!((sum - 3.0).abs() < 1e-4, "{sum}");
            prior.learn(&mut work, &[0, 1, 2], &[0.9, 0.05, 0.05], &[1.0, 0.1, 0.1], 0, &head(3));
        }
    }
}
