//! UL-TTA: class prototypes, class prior and temperature of a frozen head, adapted in closed form.
//!
//! Paper: B. Kim, *Ultra-Light Test-Time Adaptation for Vision–Language Models*. With unit image feature z,
//! text anchor μ_c and logit scale s the answer is
//!
//! ```text
//! ℓ_c = τ_pred · (s⟨z, t_c⟩ + image evidence) + log(C π_c)      p = softmax(ℓ)      ŷ = argmax ℓ
//! ```
//!
//! Each sample is answered first and teaches after. Each of the three levers has a rule of its own, and a preset
//! chooses the rules:
//!
//! | lever | `default` | `paper` |
//! |---|---|---|
//! | prototypes | `evidence`: whitened class means in the image cone, beside the text | `map`: anchor and images averaged |
//! | prior | `experts`: forgetting rates weighed by what they foretold | `dirichlet`: counts of admitted samples |
//! | temperature | τ_cal matches the frozen posterior | τ_pred minimises entropy, τ_cal stays 1 |
//!
//! Where the published text is wrong or silent, `paper` reads it so: the KL guard takes the *largest* share λ
//! that satisfies the cap (the smallest is always 0); τ multiplies the model's own logit scale; the MAP mean is
//! normalised, interpolated, clipped, normalised; ρ = 0.01 and κ = 0.07 are the largest movement and KL its
//! stability table reports; the entropy that τ_pred minimises is that of the admitted samples since the last
//! update, as they were scored.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::adapter::{Adapter, Answer, Batch, Card, ClassDrift, Observed, Prediction, Readout, Rows, Vitals};
use crate::gate::Gate;
use crate::kernels::{LANES, exp, indices_above, sum_lanes, vectorised};
use crate::scores::{Summary, softmax, summary, summary_weighed, weigh};
use crate::{Error, Head, Result, Scores, State};

mod config;
mod evidence;
mod map;
mod prior;
mod recent;

pub use config::*;
use evidence::Evidence;
use map::Map;
use prior::{Prior, PriorWork};
use recent::{Lines, One, Recent, Sample, newton};

/// The method's card.
pub static CARD: Card = Card {
    name: "ul_tta",
    summary: "prototypes, prior and temperature in closed form (presets: default, paper)",
    paper: "Kim, Ultra-Light Test-Time Adaptation for Vision-Language Models, 2025",
    readout: Readout::BeforeObserve,
    rows: Rows::Independent,
    needs_horizon: false,
    needs_labels: false,
    needs_views: false,
};

/// Rows whose moved-prototype scores are computed at once; an update in between computes the rest again.
const AHEAD: usize = 32;

/// Rows that a fit looks at: of more recent samples, every second, third, …
const FIT_ROWS: usize = 256;

/// Updates become rarer as evidence grows: one per this share of the samples seen, within bounds.
const UPDATE_SHARE: u64 = 8;

/// Labelled rows that τ_cal is fitted to.
const LABELLED: usize = 512;

/// The adapter.
#[derive(Clone, Debug)]
pub struct UlTta {
    config: UlTtaConfig,
    head: Arc<Head>,
    gate: Gate,
    prototypes: Prototypes,
    prior: Prior,
    recent: Recent,
    /// Samples with delayed labels, and the labels of the ring's slots, oldest first.
    labelled: Recent,
    labels: VecDeque<u32>,
    image: ImageBranch,
    tau_pred: f64,
    /// The temperature that matches the frozen posterior, the one chosen without labels, and the one emitted.
    tau_match: f64,
    tau_free: f64,
    tau_cal: f64,
    /// Samples that may teach, and those that did.
    seen: u64,
    admitted: u64,
    since_update: u64,
    updated_at: Option<f64>,
    /// Samples that entered `recent` since the last update.
    recent_since: usize,
    movement: (f64, f64),
    work: Work,
}

#[derive(Clone, Debug)]
enum Prototypes {
    Evidence(Box<Evidence>),
    Map(Box<Map>),
    Frozen,
}

/// How loudly the image evidence speaks, as of the last update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ImageBranch {
    /// Its own temperature `a`.
    scale: f64,
    /// Share of the frozen posterior's information that it foretold, on samples it had not learnt from.
    foretold: f64,
    /// ω: how much of it enters the answer.
    trust: f64,
}

/// Buffers for one sample, reused.
#[derive(Clone, Debug, Default)]
struct Work {
    /// Adapted weights of the classes that are no candidates.
    weights: Vec<f32>,
    prior: PriorWork,
    log_prior: Vec<f32>,
    candidates: Vec<u32>,
    image: Vec<f32>,
    candidate_text: Vec<f32>,
    candidate_prior: Vec<f32>,
    posterior: Vec<f32>,
    /// Classes that the sample teaches, and how much of it each gets.
    shares: Vec<(u32, f32)>,
}

/// One sample as it comes in: features, frozen logits with their summary, and s⟨z, t_c⟩ where prototypes move.
#[derive(Clone, Copy)]
struct Shown<'a> {
    z: &'a [f32],
    text: &'a [f32],
    /// exp(frozen logit − best).
    weights: &'a [f32],
    frozen: &'a Summary,
    moved: Option<&'a [f32]>,
}

impl<'a> Shown<'a> {
    fn of(batch: &'a Batch<'_>, row: usize, moved: Option<&'a [f32]>) -> Self {
        Self {
            z: batch.features.row(row),
            text: batch.zero_shot.row(row),
            weights: batch.weights.row(row),
            frozen: &batch.frozen[row],
            moved,
        }
    }
}

/// One sample as answered.
struct Answered {
    summary: Summary,
    answer: Answer,
    one: One,
}

impl UlTtaConfig {
    /// The adapter for a head; settings out of range are an error.
    pub fn build(&self, head: &Arc<Head>) -> Result<UlTta> {
        self.check(head.n_classes())?;
        Ok(UlTta::new(self, head))
    }
}

impl UlTta {
    fn new(config: &UlTtaConfig, head: &Arc<Head>) -> Self {
        let (classes, dim) = (head.n_classes(), head.dim());
        let prototypes = match config.prototypes.rule {
            PrototypeRule::Evidence => {
                Prototypes::Evidence(Box::new(Evidence::new(&config.prototypes, classes, dim)))
            }
            PrototypeRule::Map => Prototypes::Map(Box::new(Map::new(&config.prototypes, head))),
            PrototypeRule::Frozen => Prototypes::Frozen,
        };
        let width = config.prototypes.candidates.min(classes);
        let rows =
            config.prototypes.scale_window.max(config.temperature.cal_window).max(config.feedback.remember);
        let kept_dim = if config.feedback.teach { dim } else { 0 };
        Self {
            gate: Gate::new(&config.gate),
            prototypes,
            prior: Prior::new(&config.prior, classes, config.prototypes.forgets(classes)),
            recent: Recent::new(rows, width, kept_dim),
            labelled: Recent::new(LABELLED, width, 0),
            labels: VecDeque::with_capacity(LABELLED),
            image: ImageBranch::default(),
            tau_pred: 1.0,
            tau_match: 1.0,
            tau_free: 1.0,
            tau_cal: 1.0,
            seen: 0,
            admitted: 0,
            since_update: 0,
            updated_at: None,
            recent_since: 0,
            movement: (0.0, 0.0),
            work: Work::default(),
            config: config.clone(),
            head: head.clone(),
        }
    }

    /// Weight of the image scores in the answer.
    fn image_weight(&self) -> f32 {
        match &self.prototypes {
            Prototypes::Evidence(_) => (self.image.trust * self.image.scale) as f32,
            Prototypes::Map(_) => 1.0,
            Prototypes::Frozen => 0.0,
        }
    }

    /// Answers one sample: frozen scores, what prototypes add, prior. Writes ℓ to `scores`.
    fn answer(
        &self,
        shown: Shown<'_>,
        work: &mut Work,
        scores: &mut [f32],
        calibrated: Option<&mut [f32]>,
    ) -> Answered {
        let Shown { z, text, weights, frozen, moved } = shown;
        let classes = text.len();
        let base = moved.unwrap_or(text);
        work.log_prior.resize(classes, 0.0);
        let text_sum = exp(frozen.log_sum - frozen.best);
        self.prior.log_ratios(weights, &mut work.prior, &mut work.log_prior);

        // Image scores, only where they can matter: the other classes take the lowest of them.
        choose_candidates(base, frozen, moved.is_some(), &self.config.prototypes, &mut work.candidates);
        let mut weight = self.image_weight();
        let mut has_image = 0.0;
        match &self.prototypes {
            Prototypes::Evidence(evidence) if evidence.speaks() => {
                evidence.scores(z, &work.candidates, &mut work.image);
                let lowest = work.image.iter().copied().fold(f32::INFINITY, f32::min);
                work.image.iter_mut().for_each(|v| *v -= lowest);
                has_image = 1.0;
            }
            Prototypes::Map(_) => {
                work.image.clear();
                work.image.extend(work.candidates.iter().map(|&c| base[c as usize] - text[c as usize]));
            }
            _ => {
                work.image.clear();
                work.image.resize(work.candidates.len(), 0.0);
                weight = 0.0;
            }
        }

        let tau_pred = self.tau_pred as f32;
        // Where only prior and image evidence adapt, the weights follow from the frozen ones by a product each.
        let ratios = self.prior.mix(&work.prior).filter(|_| tau_pred == 1.0 && moved.is_none());
        if let Some(ratios) = ratios {
            work.weights.resize(classes, 0.0);
            let known = text.iter().zip(&work.log_prior).zip(weights).zip(ratios);
            vectorised(
                #[inline(always)]
                || {
                    for ((s, o), (((&t, &p), &w), &m)) in
                        scores.iter_mut().zip(&mut work.weights).zip(known.clone())
                    {
                        *s = t + p;
                        *o = w * m;
                    }
                },
            );
            work.candidates.iter().for_each(|&c| work.weights[c as usize] = 0.0);
        } else {
            for ((s, &b), &p) in scores.iter_mut().zip(base).zip(&work.log_prior) {
                *s = tau_pred * b + p;
            }
        }
        if has_image > 0.0 && weight > 0.0 {
            for (&c, &v) in work.candidates.iter().zip(&work.image) {
                scores[c as usize] += tau_pred * weight * v;
            }
        }
        let summary = if ratios.is_some() {
            summary_weighed(scores, &work.weights, frozen.best, &work.candidates, &mut work.posterior)
        } else {
            let summary = summary(scores, 1.0);
            // Relative to the best logit: at large logit scales the log-sum has few digits left behind the point.
            work.posterior.clear();
            work.posterior.extend(work.candidates.iter().map(|&c| exp(scores[c as usize] - summary.best)));
            summary
        };
        work.posterior.iter_mut().for_each(|p| *p *= summary.prob);
        let prob = self.calibrated_prob(scores, base, &summary, work, calibrated);

        // What the fits will need of this sample.
        work.candidate_text.clear();
        work.candidate_text.extend(work.candidates.iter().map(|&c| text[c as usize] - frozen.best));
        work.candidate_prior.clear();
        work.candidate_prior.extend(work.candidates.iter().map(|&c| work.log_prior[c as usize]));
        let rest = (classes - work.candidates.len()) as f32;
        let listed: f32 = work.candidates.iter().map(|&c| weights[c as usize]).sum();
        let listed_posterior: f32 = work.posterior.iter().sum();
        let listed_prior: f32 = match self.prior.mix(&work.prior) {
            Some(mix) => work.candidates.iter().map(|&c| mix[c as usize]).sum(),
            None => work.candidate_prior.iter().map(|&p| exp(p)).sum(),
        };
        let log_rest = |mass: f32| if rest > 0.0 { mass.max(rest * 1e-9).ln() } else { -80.0 };
        let rest_prior = if self.tau_pred == 1.0 || rest == 0.0 {
            log_rest(1.0 - listed_posterior) + summary.log_sum - frozen.best
        } else {
            // The posterior is at τ_pred; the fits need the sum at 1.
            let plain = |c: usize| base[c] + work.log_prior[c];
            let top = work.candidates.iter().map(|&c| plain(c as usize)).fold(f32::NEG_INFINITY, f32::max);
            let all: f64 = (0..classes).map(|c| exp(plain(c) - top) as f64).sum();
            let listed: f64 = work.candidates.iter().map(|&c| exp(plain(c as usize) - top) as f64).sum();
            log_rest((all - listed) as f32) + top - frozen.best
        };
        let one = One {
            weight,
            rest,
            rest_text: log_rest(text_sum - listed),
            rest_prior,
            rest_ratio: log_rest(classes as f32 - listed_prior) - rest.max(1.0).ln(),
            teaches: 0.0,
            has_image,
            admitted: 0.0,
        };
        let answer = Answer { label: summary.label, prob, prob_pred: summary.prob, admitted: false };
        Answered { summary, answer, one }
    }

    /// Probability of the answer at τ_cal. Where τ_cal does not multiply the prior, the logits differ in shape
    /// and are written out.
    fn calibrated_prob(
        &self,
        scores: &[f32],
        base: &[f32],
        pred: &Summary,
        work: &Work,
        calibrated: Option<&mut [f32]>,
    ) -> f32 {
        let tau = if self.config.temperature.single { 1.0 } else { self.tau_cal as f32 };
        let Some(out) = calibrated else {
            return if tau == 1.0 { pred.prob } else { 1.0 / sum_exp(scores, tau, pred.best) };
        };
        for ((o, &b), &p) in out.iter_mut().zip(base).zip(&work.log_prior) {
            *o = tau * b + p;
        }
        let s = summary(out, 1.0);
        s.prob * exp(out[pred.label] - s.best)
    }

    /// Whether τ_cal gives logits of its own instead of a multiple of the answer's.
    fn own_calibrated_logits(&self) -> bool {
        !self.config.temperature.cal_prior && !self.config.temperature.single
    }

    fn strictness(&self) -> Strictness {
        let s = &self.config.schedule;
        if s.samples <= 0.0 {
            return Strictness::NONE;
        }
        let progress = (self.admitted as f64 / s.samples).min(1.0);
        let linear = |start: f64| start + (1.0 - start) * progress;
        let geometric = |start: f64| start.powf(1.0 - progress);
        Strictness {
            gate: linear(s.gate),
            alpha: geometric(s.alpha),
            gamma: geometric(s.gamma),
            kappa: linear(s.kappa),
            eta: linear(s.eta),
        }
    }

    /// Whether the gate lets a sample teach.
    fn admits(&self, sample: &Summary) -> bool {
        self.seen >= self.config.gate.warm_up && self.gate.admits(sample)
    }

    /// Lets an answered sample teach: gate, accumulate, update. `true` if it was admitted and updated the head.
    fn learn(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        scores: &[f32],
        mut answered: Answered,
        work: &mut Work,
    ) -> (bool, bool) {
        let may_learn = batch.may_learn(row);
        let z = batch.features.row(row);

        // gate
        let admitted = may_learn && self.admits(&answered.summary);

        // accumulate
        if may_learn {
            let winner = batch.frozen[row].label;
            let text = batch.weights.row(row);
            self.prior.learn(&mut work.prior, &work.candidates, &work.posterior, text, winner);
            if let Prototypes::Evidence(evidence) = &mut self.prototypes {
                evidence.observe(z);
            }
            self.seen += 1;
        }
        if admitted {
            self.accumulate(batch, row, scores, &answered, work);
            self.admitted += 1;
        }
        if may_learn {
            self.gate.push(&answered.summary, self.strictness().gate);
        }
        answered.one.teaches = f32::from(u8::from(may_learn));
        answered.one.admitted = f32::from(u8::from(admitted));
        self.recent.push(Sample {
            id: batch.first_id + row as u64,
            classes: &work.candidates,
            text: &work.candidate_text,
            image: &work.image,
            prior: &work.candidate_prior,
            features: z,
            one: answered.one,
        });
        self.recent_since += 1;

        // update
        let counts = match self.config.update.count {
            Count::Seen => may_learn,
            Count::Admitted => admitted,
        };
        self.since_update += u64::from(counts);
        let time = batch.times.map(|t| t[row]);
        let by_time = self.config.update.seconds > 0.0
            && match (time, self.updated_at) {
                (Some(now), Some(last)) => self.since_update > 0 && now - last >= self.config.update.seconds,
                _ => false,
            };
        if self.updated_at.is_none() {
            self.updated_at = time;
        }
        let UpdateConfig { every, every_most, .. } = self.config.update;
        let most = match &self.prototypes {
            Prototypes::Evidence(evidence) => every_most.min(evidence.half_life() as u64 / 2),
            _ => every_most,
        };
        let enough = every.max(most.min(self.seen / UPDATE_SHARE));
        let due = (counts && self.since_update >= enough) || by_time;
        if due {
            self.update(work);
            self.updated_at = time.or(self.updated_at);
        }
        (admitted, due)
    }

    /// Shares an admitted sample among its classes.
    fn accumulate(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        scores: &[f32],
        answered: &Answered,
        work: &mut Work,
    ) {
        let z = batch.features.row(row);
        let least = self.config.min_responsibility as f32;
        let shares = &mut work.shares;
        shares.clear();
        match self.view_responsibilities(batch, row) {
            Some(mean) => {
                shares.extend(mean.iter().enumerate().map(|(c, &r)| (c as u32, r)).filter(|s| s.1 > least))
            }
            None => match self.config.responsibilities {
                Responsibilities::Text => {
                    let sum = exp(batch.frozen[row].log_sum - batch.frozen[row].best);
                    each_above(batch.weights.row(row), least * sum, |c, e| shares.push((c as u32, e / sum)));
                }
                Responsibilities::Fused => {
                    // Relative to the best fused logit, which may lie beyond the range of exp.
                    let fused = |i: usize| work.candidate_text[i] + answered.one.weight * work.image[i];
                    let top = (0..work.candidates.len()).map(fused).fold(0.0, f32::max);
                    let rest = if answered.one.rest > 0.0 { exp(answered.one.rest_text - top) } else { 0.0 };
                    shares.extend(work.candidates.iter().enumerate().map(|(i, &c)| (c, exp(fused(i) - top))));
                    let sum = shares.iter().fold(rest, |sum, share| sum + share.1);
                    shares.retain_mut(|share| {
                        share.1 /= sum;
                        share.1 >= least
                    });
                }
                Responsibilities::Adapted => {
                    let log_sum = answered.summary.log_sum;
                    let floor = log_sum + least.max(1e-30).ln();
                    each_above(scores, floor, |c, l| shares.push((c as u32, exp(l - log_sum))));
                }
            },
        }
        for &(c, r) in &*shares {
            self.prior.count(c as usize, r as f64);
            match &mut self.prototypes {
                Prototypes::Evidence(evidence) => evidence.teach(c as usize, r as f64, z),
                Prototypes::Map(map) => map.teach(c as usize, r as f64, z),
                Prototypes::Frozen => {}
            }
        }
    }

    /// With K extra views of a sample, its responsibilities are the mean of their K posteriors.
    fn view_responsibilities(&self, batch: &Batch<'_>, row: usize) -> Option<Vec<f32>> {
        let views = batch.views?;
        let rows = views.of(row);
        if rows.is_empty() {
            return None;
        }
        let classes = self.head.n_classes();
        let (mut mean, mut probs) = (vec![0.0f32; classes], vec![0.0f32; classes]);
        let mut work = Work::default();
        let share = 1.0 / rows.len() as f32;
        for view in rows {
            let text = views.zero_shot.row(view);
            match self.config.responsibilities {
                Responsibilities::Text => {
                    softmax(text, 1.0, &mut probs);
                }
                rule => {
                    let z = views.features.row(view);
                    let moved = self.moved(z);
                    let mut scores = vec![0.0; classes];
                    let mut weights = vec![0.0; classes];
                    let frozen = weigh(text, &mut weights);
                    let shown =
                        Shown { z, text, weights: &weights, frozen: &frozen, moved: moved.as_deref() };
                    self.answer(shown, &mut work, &mut scores, None);
                    if rule == Responsibilities::Fused {
                        scores.iter_mut().zip(&work.log_prior).for_each(|(s, p)| *s -= p);
                    }
                    softmax(&scores, 1.0, &mut probs);
                }
            }
            for (m, &p) in mean.iter_mut().zip(&probs) {
                *m += share * p;
            }
        }
        Some(mean)
    }

    /// s⟨z, t_c⟩ where prototypes move.
    fn moved(&self, rows: &[f32]) -> Option<Vec<f32>> {
        let Prototypes::Map(map) = &self.prototypes else { return None };
        let mut out = Vec::new();
        map.scores(rows, &mut out);
        Some(out)
    }

    /// Refits the temperatures, moves the prior, folds the evidence.
    fn update(&mut self, work: &mut Work) {
        let strict = self.strictness();
        self.fit_tau_cal();
        self.fit_image_branch();
        if self.config.temperature.pred == PredRule::Entropy {
            self.fit_tau_pred();
        }
        self.prior.update(strict.gamma, strict.kappa, &work.prior);
        match &mut self.prototypes {
            Prototypes::Evidence(evidence) => {
                if self.seen > self.config.gate.warm_up {
                    evidence.update();
                }
                let p = &self.config.prototypes;
                let n = evidence.mean_count();
                let foretold = self.image.foretold.max(0.0);
                let grown = if n > 0.0 { p.trust_max * n / (n + p.trust) } else { 0.0 };
                self.image.trust = foretold * foretold * grown;
            }
            Prototypes::Map(map) => map.update(strict.alpha, strict.eta),
            Prototypes::Frozen => {}
        }
        self.movement = self.measure_movement();
        self.since_update = 0;
        self.recent_since = 0;
    }

    /// The recent samples that a fit looks at: those that may teach, and of many every second, third, …
    fn fit_rows(
        &self,
        window: usize,
        wanted: impl Fn(&Sample<'_>) -> bool,
    ) -> impl Iterator<Item = Sample<'_>> {
        let all: Vec<Sample<'_>> =
            self.recent.newest(window).filter(|s| s.one.teaches > 0.0 && wanted(s)).collect();
        let step = all.len().div_ceil(FIT_ROWS).max(1);
        all.into_iter().step_by(step)
    }

    /// The image branch's temperature `a`: cross-entropy between the frozen posterior under the prior and
    /// softmax(a v + log prior) over recent samples, each scored before it taught; and how much of that
    /// posterior's information the branch foretold, beyond the prior.
    fn fit_image_branch(&mut self) {
        let p = &self.config.prototypes;
        let scored = |s: &Sample<'_>| s.one.has_image > 0.0 && s.one.teaches > 0.0;
        if self.recent.newest(p.scale_window).filter(scored).count() < p.scale_min_rows.max(1) {
            return;
        }
        let lines = Lines::new(self.fit_rows(p.scale_window, scored), |s, x, b| {
            x.copy_from_slice(s.image);
            b.copy_from_slice(s.prior);
            if s.one.rest > 0.0 {
                b[s.classes.len()] = s.one.rest_ratio + s.one.log_rest();
            }
        });
        let start = if self.image.scale > 1.0 { self.image.scale } else { p.scale_start };
        let fitted = lines.matching(start, (0.0, p.scale_max), 0.5, 1.0);
        self.image.foretold = vectorised(
            #[inline(always)]
            || {
                let (mut with, mut without) = (0.0, 0.0);
                for (line, [x, b, log_p]) in lines.iter().zip(lines.targets()) {
                    with += log_p - fitted * x - b + line.moments(fitted as f32).log_sum();
                    without += log_p - b + line.moments(0.0).log_sum();
                }
                (1.0 - with / without.max(1e-9)).min(1.0)
            },
        );
        self.image.scale = if self.image.scale == 0.0 {
            fitted
        } else {
            (1.0 - p.scale_smoothing) * self.image.scale + p.scale_smoothing * fitted
        };
    }

    /// τ_cal without labels. Fused evidence double-counts, so first the temperature that matches the frozen
    /// posterior under the prior of the time, applied only in part: where the answers got better, they may be
    /// surer. Then, if the answers' margins tell of a higher accuracy than the confidence, most of the way there.
    /// Labels, where there are any, correct it.
    fn fit_tau_cal(&mut self) {
        let t = &self.config.temperature;
        if t.cal == CalRule::Fixed {
            return;
        }
        let lines =
            Lines::new(self.fit_rows(t.cal_window, |_| true), |s, x, b| self.calibration_line(s, x, b));
        if lines.len() == 0 {
            return;
        }
        let matched = lines.matching(self.tau_match, (t.cal_min, t.cal_max), 0.3, 0.0);
        let base = matched.powf(t.cal_power).clamp(t.cal_min, t.cal_max);
        // Mean confidence at a temperature, and its derivative.
        let confidence = |tau: f64| {
            let (mut sum, mut slope) = (0.0, 0.0);
            vectorised(
                #[inline(always)]
                || {
                    for line in lines.iter() {
                        let m = line.moments(tau as f32);
                        let best = line.best_candidate() as f64;
                        let p = (tau * best - m.log_sum()).exp();
                        sum += p;
                        slope += p * (best - m.mean);
                    }
                },
            );
            (sum / lines.len() as f64, slope / lines.len() as f64)
        };
        let now = confidence(base).0;
        let accuracy = folded_accuracy(&self.gate.margins());
        let mut emitted = base;
        if t.cal_margin > 0.0 && accuracy > 0.5 && accuracy > now {
            let wanted = now + t.cal_margin * (accuracy - now);
            emitted = self.tau_free.clamp(base, t.cal_max);
            // Confidence grows with τ and flattens out: Newton steps on it, never more than a third at once.
            for _ in 0..8 {
                let (at, slope) = confidence(emitted);
                let step = (wanted - at) / slope.max(1e-9);
                let next = (emitted + step.clamp(-0.3 * emitted, 0.5 * emitted)).clamp(base, t.cal_max);
                let change = (next - emitted).abs();
                emitted = next;
                if change <= 1e-3 * emitted {
                    break;
                }
            }
        }
        (self.tau_match, self.tau_free, self.tau_cal) = (matched, emitted, emitted);
        if self.labelled.len() > 0 {
            self.fit_tau_cal_to_labels();
        }
    }

    /// τ_cal from delayed labels: negative log-likelihood over a factor on the temperature chosen without labels,
    /// with a prior that holds the factor at 1.
    fn fit_tau_cal_to_labels(&mut self) {
        let t = &self.config.temperature;
        let strength = self.config.feedback.prior_strength;
        let count = self.labelled.len() as f64;
        let lines = Lines::new(self.labelled.newest(LABELLED), |s, x, b| self.calibration_line(s, x, b));
        // The entry of each label: its candidate, or the lump.
        let entry = |(s, label): (Sample<'_>, &u32)| {
            s.classes.iter().position(|c| c == label).unwrap_or(s.classes.len())
        };
        let entries: Vec<usize> =
            self.labelled.newest(LABELLED).zip(self.labels.iter().rev()).map(entry).collect();
        let fitted = newton(
            self.tau_cal,
            (t.cal_min, t.cal_max),
            0.3,
            0.0,
            #[inline(always)]
            |tau| {
                let (mut slope, mut curvature) = (0.0, 0.0);
                for (line, &entry) in lines.iter().zip(&entries) {
                    let m = line.moments(tau as f32);
                    slope += m.mean - line.x[entry] as f64;
                    curvature += m.variance;
                }
                let log = (tau / self.tau_free).ln();
                slope += strength * log / tau;
                curvature += strength * ((1.0 - log) / (tau * tau)).max(0.0);
                (slope / count, curvature / count)
            },
        );
        self.tau_cal = fitted;
    }

    /// The logits of a remembered sample as a line in τ_cal.
    #[inline(always)]
    fn calibration_line(&self, s: &Sample<'_>, x: &mut [f32], b: &mut [f32]) {
        let (weight, lump) = (s.one.weight, s.classes.len());
        // Every lumped class has an equal part of the lump.
        let each = s.one.log_rest();
        if self.config.temperature.cal_prior {
            let tau_pred = self.tau_pred as f32;
            for i in 0..x.len() {
                x[i] = tau_pred * (s.text[i] + weight * s.image[i]) + s.prior[i];
            }
            b.fill(0.0);
        } else {
            for i in 0..x.len() {
                x[i] = s.text[i] + weight * s.image[i];
            }
            b.copy_from_slice(s.prior);
        }
        x[lump] -= each;
        b[lump] += each;
    }

    /// τ_pred as published: the τ of least entropy over the admitted samples since the last update.
    fn fit_tau_pred(&mut self) {
        let t = &self.config.temperature;
        let rows: Vec<Sample<'_>> =
            self.recent.newest(self.recent_since).filter(|s| s.one.admitted > 0.0).collect();
        if rows.is_empty() {
            return;
        }
        // Entropy and its derivative: dH/dτ = −Cov_p(ℓ, x) with ℓ = τ x + log prior.
        let at = |tau: f64| {
            let (mut entropy, mut slope) = (0.0, 0.0);
            for s in &rows {
                let n = s.classes.len();
                let x = |i: usize| s.text[i] as f64 + s.one.weight as f64 * s.image[i] as f64;
                // The lumped classes share one logit each of x and prior.
                let rest_x = s.one.rest_text as f64 - (s.one.rest as f64).max(1.0).ln();
                let rest_b = s.one.rest_prior as f64 - s.one.rest_text as f64;
                let logits: Vec<(f64, f64, f64)> = (0..n)
                    .map(|i| (tau * x(i) + s.prior[i] as f64, x(i), 1.0))
                    .chain((s.one.rest > 0.0).then_some((tau * rest_x + rest_b, rest_x, s.one.rest as f64)))
                    .collect();
                let best = logits.iter().fold(f64::NEG_INFINITY, |m, l| m.max(l.0));
                let (mut z, mut el, mut ex, mut elx) = (0.0, 0.0, 0.0, 0.0);
                for (l, x, count) in logits {
                    let p = count * (l - best).exp();
                    z += p;
                    el += p * (l - best);
                    ex += p * x;
                    elx += p * (l - best) * x;
                }
                entropy += z.ln() - el / z;
                slope -= elx / z - (el / z) * (ex / z);
            }
            (entropy, slope)
        };
        const GRID: usize = 16;
        let point = |i: usize| t.min + (t.max - t.min) * i as f64 / GRID as f64;
        let best = (0..=GRID).min_by(|&a, &b| at(point(a)).0.total_cmp(&at(point(b)).0)).unwrap_or(GRID);
        let (mut low, mut high) = (point(best.saturating_sub(1)), point((best + 1).min(GRID)));
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if at(middle).1 > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        let fitted = if at(high).1 <= 0.0 { high } else { low };
        self.tau_pred = (t.beta * self.tau_pred + (1.0 - t.beta) * fitted).clamp(t.min, t.max);
    }

    /// Largest and mean movement of the prototypes.
    fn measure_movement(&self) -> (f64, f64) {
        let moved = self.movements();
        let max = moved.iter().copied().fold(0.0, f64::max);
        (max, moved.iter().sum::<f64>() / moved.len().max(1) as f64)
    }

    /// ‖t_c − μ_c‖. Image evidence adds ω a ⟨z, Σ⁻¹ m_c⟩ to s⟨z, μ_c⟩: the same as a move by ω a Σ⁻¹ m_c / s.
    fn movements(&self) -> Vec<f64> {
        match &self.prototypes {
            Prototypes::Evidence(evidence) => {
                let factor = self.image_weight() as f64 / self.head.logit_scale() as f64;
                evidence.norms().iter().map(|&n| factor * n as f64).collect()
            }
            Prototypes::Map(map) => map.movements(),
            Prototypes::Frozen => Vec::new(),
        }
    }

    fn each_row(&self, batch: &Batch<'_>, work: &mut Work) -> Prediction {
        let mut prediction = self.empty_prediction(batch.rows());
        let moved = self.moved(batch.features.data());
        let classes = self.head.n_classes();
        for row in 0..batch.rows() {
            let moved = moved.as_ref().map(|m| &m[row * classes..][..classes]);
            let (scores, calibrated) = (&mut prediction.scores, &mut prediction.calibrated);
            let mut answered = self.answer(
                Shown::of(batch, row, moved),
                work,
                scores.row_mut(row),
                calibrated.as_mut().map(|c| c.row_mut(row)),
            );
            answered.answer.admitted = batch.may_learn(row) && self.admits(&answered.summary);
            prediction.answers.push(answered.answer);
            prediction.tau_cal.push(self.row_tau_cal());
        }
        prediction
    }

    fn row_tau_cal(&self) -> f32 {
        if self.own_calibrated_logits() || self.config.temperature.single { 1.0 } else { self.tau_cal as f32 }
    }

    fn empty_prediction(&self, rows: usize) -> Prediction {
        let classes = self.head.n_classes();
        Prediction {
            scores: Scores::zeros(rows, classes),
            calibrated: self.own_calibrated_logits().then(|| Scores::zeros(rows, classes)),
            tau_cal: Vec::with_capacity(rows),
            answers: Vec::with_capacity(rows),
        }
    }
}

/// Factors by which a schedule still holds settings back.
struct Strictness {
    gate: f64,
    alpha: f64,
    gamma: f64,
    kappa: f64,
    eta: f64,
}

impl Strictness {
    const NONE: Strictness = Strictness { gate: 1.0, alpha: 1.0, gamma: 1.0, kappa: 1.0, eta: 1.0 };
}

/// Accuracy told by the shape of the margins alone, free of their scale: if they are |N(μ, σ)|, with the right
/// answer on one side, the share on that side is Φ(μ/σ), and E\[Δ\]²/E\[Δ²\] gives μ/σ. ½ means it cannot tell.
fn folded_accuracy(margins: &[f32]) -> f64 {
    let (first, second) =
        margins.iter().fold((0.0, 0.0), |(a, b), &m| (a + m as f64, b + m as f64 * m as f64));
    let n = margins.len().max(1) as f64;
    let ratio = (first / n).powi(2) / (second / n + 1e-30);
    if ratio <= std::f64::consts::FRAC_2_PI {
        return 0.5;
    }
    let (mut low, mut high) = (0.0f64, 6.0f64);
    for _ in 0..40 {
        let k = 0.5 * (low + high);
        let mean =
            std::f64::consts::FRAC_2_PI.sqrt() * (-0.5 * k * k).exp() + k * erf(k / std::f64::consts::SQRT_2);
        if mean * mean / (1.0 + k * k) < ratio {
            low = k;
        } else {
            high = k;
        }
    }
    0.5 * (1.0 + erf(low / std::f64::consts::SQRT_2))
}

/// The error function (Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7).
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let poly = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t
        + 0.254_829_592)
        * t;
    x.signum() * (1.0 - poly * (-x * x).exp())
}

/// The classes whose image score is computed: all of them if they are few, else those whose logit is within
/// range of the best, at most so many.
fn choose_candidates(
    base: &[f32],
    frozen: &Summary,
    moved: bool,
    config: &PrototypesConfig,
    candidates: &mut Vec<u32>,
) {
    candidates.clear();
    if base.len() <= config.candidates {
        candidates.extend(0..base.len() as u32);
        return;
    }
    let best = if moved { base.iter().copied().fold(f32::NEG_INFINITY, f32::max) } else { frozen.best };
    let floor = best - config.candidate_range as f32;
    indices_above(base, floor, candidates);
    if candidates.len() > config.candidates {
        let by_score = |a: &u32, b: &u32| base[*b as usize].total_cmp(&base[*a as usize]).then(a.cmp(b));
        candidates.select_nth_unstable_by(config.candidates - 1, by_score);
        candidates.truncate(config.candidates);
        candidates.sort_unstable();
    }
}

/// Calls `hit` for every value that is at least `floor`, skipping whole chunks without one.
#[inline(always)]
fn each_above(values: &[f32], floor: f32, mut hit: impl FnMut(usize, f32)) {
    let (chunks, tail) = values.as_chunks::<LANES>();
    for (i, chunk) in chunks.iter().enumerate() {
        let mut any = 0u32;
        for &v in chunk {
            any |= u32::from(v >= floor);
        }
        if any != 0 {
            for (j, &v) in chunk.iter().enumerate() {
                if v >= floor {
                    hit(i * LANES + j, v);
                }
            }
        }
    }
    for (j, &v) in tail.iter().enumerate() {
        if v >= floor {
            hit(chunks.len() * LANES + j, v);
        }
    }
}

/// Σ exp(τ (x − best)).
fn sum_exp(row: &[f32], tau: f32, best: f32) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (chunks, tail) = row.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] += exp(tau * (chunk[i] - best));
                }
            }
            for (i, &x) in tail.iter().enumerate() {
                lanes[i] += exp(tau * (x - best));
            }
            sum_lanes(lanes)
        },
    )
}

impl Adapter for UlTta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Result<Prediction> {
        Ok(self.each_row(batch, &mut Work::default()))
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Result<Observed> {
        let prediction = self.step(batch)?;
        Ok(Observed { admitted: prediction.answers.iter().map(|a| a.admitted).collect() })
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<Prediction> {
        // Scores that nobody will read share one row.
        let kept = if batch.keep_scores { batch.rows() } else { batch.rows().min(1) };
        let mut prediction = self.empty_prediction(kept);
        let mut work = std::mem::take(&mut self.work);
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        // Scores of moved prototypes, computed for some rows ahead until an update makes them stale.
        let mut ahead: Option<Vec<f32>> = None;
        let mut ahead_from = 0;
        for row in 0..batch.rows() {
            if let Prototypes::Map(map) = &self.prototypes
                && ahead.as_ref().is_none_or(|a| (row - ahead_from) * classes >= a.len())
            {
                let end = batch.rows().min(row + AHEAD);
                let mut scores = ahead.take().unwrap_or_default();
                map.scores(&batch.features.data()[row * dim..end * dim], &mut scores);
                (ahead, ahead_from) = (Some(scores), row);
            }
            let moved = ahead.as_ref().map(|a| &a[(row - ahead_from) * classes..][..classes]);
            let place = if batch.keep_scores { row } else { 0 };
            let (scores, calibrated) = (&mut prediction.scores, &mut prediction.calibrated);
            let answered = self.answer(
                Shown::of(batch, row, moved),
                &mut work,
                scores.row_mut(place),
                calibrated.as_mut().map(|c| c.row_mut(place)),
            );
            let mut answer = answered.answer;
            prediction.tau_cal.push(self.row_tau_cal());
            let (admitted, updated) = self.learn(batch, row, scores.row(place), answered, &mut work);
            answer.admitted = admitted;
            prediction.answers.push(answer);
            if updated {
                ahead = None;
            }
        }
        self.work = work;
        if !batch.keep_scores {
            (prediction.scores, prediction.calibrated) = (Scores::default(), None);
        }
        Ok(prediction)
    }

    fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let remembered = self.recent.len().min(self.config.feedback.remember);
        // The ring may hold older samples for the fits.
        let oldest = self.recent.newest(remembered).last().map_or(u64::MAX, |s| s.id);
        let Some(sample) = self.recent.find(id).filter(|s| s.id >= oldest) else {
            return Err(Error::Forgotten { id, remembered });
        };
        // Labels arrive in any order; one that is known already counts once, and may be put right.
        let known = self.labelled.newest(LABELLED).position(|s| s.id == id);
        if let Some(age) = known {
            let place = self.labels.len() - 1 - age;
            self.labels[place] = label as u32;
            self.fit_tau_cal_to_labels();
            return Ok(true);
        }
        if self.labels.len() == LABELLED {
            self.labels.pop_front();
        }
        self.labels.push_back(label as u32);
        self.labelled.push(sample);
        if self.config.feedback.teach {
            match &mut self.prototypes {
                Prototypes::Evidence(evidence) => evidence.teach(label, 1.0, sample.features),
                Prototypes::Map(map) => map.teach(label, 1.0, sample.features),
                Prototypes::Frozen => {}
            }
        }
        self.fit_tau_cal_to_labels();
        Ok(true)
    }

    fn reset(&mut self) {
        *self = Self::new(&self.config, &self.head);
    }

    fn save(&self) -> State {
        let mut state = self.save_evidence(false);
        self.gate.save(&mut state);
        self.prior.save_local(&self.work.prior, &mut state);
        match &self.prototypes {
            Prototypes::Evidence(evidence) => evidence.save_local(&mut state),
            Prototypes::Map(map) => map.save_local(&mut state),
            Prototypes::Frozen => {}
        }
        self.recent.save("local.recent.", &mut state);
        self.labelled.save("local.labelled.", &mut state);
        state.put("local.labelled.labels", &self.labels.iter().copied().collect::<Vec<_>>());
        let ImageBranch { scale, foretold, trust } = self.image;
        state.put("local.image", &[scale, foretold, trust]);
        state.put("local.temperatures", &[self.tau_pred, self.tau_match, self.tau_cal, self.tau_free]);
        state.put("local.movement", &[self.movement.0, self.movement.1]);
        state.put("local.updated_at", &self.updated_at.map_or(vec![], |t| vec![t]));
        state.put("local.since", &[self.since_update, self.recent_since as u64]);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let mut fresh = Self::new(&self.config, &self.head);
        if state.any_under("evidence.") {
            [fresh.seen, fresh.admitted] = state.counts("evidence.seen")?;
            fresh.prior.load_evidence(state)?;
            match &mut fresh.prototypes {
                Prototypes::Evidence(evidence) => evidence.load_evidence(state)?,
                Prototypes::Map(map) => map.load_evidence(state)?,
                Prototypes::Frozen => {}
            }
            // Local parts are all there, or none is and they restart.
            if state.any_under("local.") || state.any_under("gate.") {
                fresh.load_local(state)?;
            } else {
                fresh.recompute();
            }
        }
        *self = fresh;
        Ok(())
    }

    fn checkpoint(&self) -> State {
        self.save_evidence(true)
    }

    fn vitals(&self) -> Vitals {
        Vitals {
            prior_kl: self.prior.kl(),
            movement_max: self.movement.0,
            movement_mean: self.movement.1,
            tau_pred: self.tau_pred,
            tau_cal: if self.config.temperature.single { self.tau_pred } else { self.tau_cal },
            evidence_weight: match &self.prototypes {
                Prototypes::Evidence(_) if self.image.scale > 0.0 => self.image.trust,
                _ => 0.0,
            },
            state_bytes: self.recent.bytes()
                + self.labelled.bytes()
                + self.prior.bytes()
                + self.gate.bytes()
                + match &self.prototypes {
                    Prototypes::Evidence(evidence) => evidence.bytes(),
                    Prototypes::Map(map) => map.bytes(),
                    Prototypes::Frozen => 0,
                },
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let movements = self.movements();
        let evidence: Vec<f64> = match &self.prototypes {
            Prototypes::Evidence(evidence) => evidence.counts().collect(),
            Prototypes::Map(map) => map.counts().to_vec(),
            Prototypes::Frozen => Vec::new(),
        };
        let prior = self.prior.current(&self.work.prior);
        let get = |v: &[f64], c: usize| v.get(c).copied().unwrap_or(0.0);
        (0..self.head.n_classes())
            .map(|c| ClassDrift {
                movement: get(&movements, c),
                prior: get(&prior, c),
                evidence: get(&evidence, c),
            })
            .collect()
    }
}

impl UlTta {
    fn save_evidence(&self, compact: bool) -> State {
        let mut state = State::default();
        state.put("evidence.seen", &[self.seen, self.admitted]);
        self.prior.save_evidence(&mut state);
        match &self.prototypes {
            Prototypes::Evidence(evidence) => evidence.save_evidence(&mut state, compact),
            Prototypes::Map(map) => map.save_evidence(&mut state, compact),
            Prototypes::Frozen => {}
        }
        state
    }

    /// What follows from the evidence alone: after a merge, or a return to a healthy state.
    fn recompute(&mut self) {
        let strict = self.strictness();
        self.prior.update(strict.gamma, strict.kappa, &PriorWork::default());
        if let Prototypes::Evidence(evidence) = &mut self.prototypes {
            evidence.recompute();
        }
    }

    fn load_local(&mut self, state: &State) -> Result<()> {
        let classes = self.head.n_classes();
        self.gate.load(state, self.strictness().gate)?;
        self.prior.load_local(&mut self.work.prior, state)?;
        match &mut self.prototypes {
            Prototypes::Evidence(evidence) => evidence.load_local(state)?,
            Prototypes::Map(map) => map.load_local(state)?,
            Prototypes::Frozen => {}
        }
        self.recent.load("local.recent.", state, classes)?;
        if !self.recent.is_ordered() {
            return Err(Error::state("local.recent.ids: samples out of order"));
        }
        self.labelled.load("local.labelled.", state, classes)?;
        let labels = state.get_n::<u32>("local.labelled.labels", self.labelled.len())?;
        if labels.iter().any(|&l| l as usize >= classes) {
            return Err(Error::state("local.labelled.labels: a class out of range"));
        }
        self.labels = labels.iter().copied().collect();
        let &[scale, foretold, trust] = state.get::<f64>("local.image")? else {
            return Err(Error::state("local.image: expected 3 values"));
        };
        let &[tau_pred, tau_match, tau_cal, tau_free] = state.get::<f64>("local.temperatures")? else {
            return Err(Error::state("local.temperatures: expected 4 values"));
        };
        let (p, t) = (&self.config.prototypes, &self.config.temperature);
        // All start at 1, whatever the bounds.
        let within = |tau: f64, low: f64, high: f64| (low.min(1.0)..=high.max(1.0)).contains(&tau);
        let sound = (0.0..=p.scale_max).contains(&scale)
            && (0.0..=p.trust_max).contains(&trust)
            && foretold <= 1.0
            && within(tau_pred, t.min, t.max)
            && within(tau_match, t.cal_min, t.cal_max)
            && within(tau_cal, t.cal_min, t.cal_max)
            && within(tau_free, t.cal_min, t.cal_max);
        if !sound {
            return Err(Error::state("local.temperatures or local.image: a value out of range"));
        }
        self.image = ImageBranch { scale, foretold, trust };
        (self.tau_pred, self.tau_match) = (tau_pred, tau_match);
        (self.tau_cal, self.tau_free) = (tau_cal, tau_free);
        let movement = prior::checked_counts("local.movement", state, 2)?;
        self.movement = (movement[0], movement[1]);
        self.updated_at = state.get::<f64>("local.updated_at")?.first().copied();
        let [since_update, recent_since] = state.counts("local.since")?;
        (self.since_update, self.recent_since) = (since_update, recent_since as usize);
        Ok(())
    }
}
