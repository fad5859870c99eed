//! UL-TTA as published: B. Kim, *Ultra-Light Test-Time Adaptation for Vision–Language Models*, 2025. It is kept to
//! compare the default method (`../ul_tta/`) with.
//!
//! With unit image feature z, prototype t_c (anchored at the text prototype μ_c), logit scale s, class prior π and C
//! classes the answer is
//!
//! ```text
//! ℓ_c = τ_pred · s⟨z, t_c⟩ + log(C π_c)      ŷ = argmax ℓ      p = softmax(τ_cal · s⟨z, t_c⟩ + log(C π_c))
//! ```
//!
//! A sample is answered first. Then the gate decides whether it teaches; if so, it is shared among the classes by its
//! posterior, the mean of the posteriors of its K views where there are views. An update after B admitted samples
//! moves three things: prototypes (`prototypes.rs`), prior (`prior.rs`), temperatures (`temperature.rs`).
//!
//! Where the published text is wrong or silent, it is read so: the KL guard takes the *largest* share that satisfies
//! the cap (the smallest is always 0); τ multiplies the model's own logit scale; the MAP mean is normalised,
//! interpolated, clipped, normalised; ρ = 0.01 and κ = 0.07 are the largest movement and KL that its stability table
//! reports; the entropy that τ_pred minimises is that of the admitted samples since the last update, as they were
//! scored. So the temperature is fitted last, as in Algorithm 1, but to scores from before the prototypes and the prior
//! moved: scoring the samples again would need their features, which are not kept.

use std::sync::Arc;

use crate::adapter::{Adapter, Answer, Batch, Card, ClassDrift, Memory, Observed, Prediction, Vitals};
use crate::gate::Gate;
use crate::kernels::{exp, indices_above};
use crate::methods::presets::PAPER_CARD;
use crate::methods::recent::{Flags, Labelled, Lump, Recent, Sample, TEACHABLE, choose_candidates};
use crate::methods::views::mean_posterior;
use crate::scores::{Summary, softmax, summary};
use crate::{Head, Result, Scores, State};

mod config;
mod prior;
mod prototypes;
mod saved;
mod temperature;

pub use config::*;
use prior::Prior;
use prototypes::Prototypes;
use temperature::Temperatures;

/// Rows whose scores are computed in one matrix product. After an update the scores of the rows that are left are
/// computed again.
const AHEAD: usize = crate::blocks::PART_ROWS;

/// The adapter.
#[derive(Clone, Debug)]
pub struct Paper {
    config: PaperConfig,
    head: Arc<Head>,
    gate: Gate,
    /// `None` where prototypes are frozen.
    prototypes: Option<Prototypes>,
    prior: Prior,
    temperatures: Temperatures,
    recent: Recent,
    labelled: Labelled,
    /// Samples that could teach, and samples that the gate admitted.
    seen: u64,
    admitted: u64,
    /// Samples counted towards the next update.
    since_update: u64,
    /// Samples remembered since the last update.
    recent_since: usize,
    /// Time of the last update, where times are given.
    updated_at: Option<f64>,
    /// Largest and mean movement of the prototypes, as of the last update.
    movement: (f64, f64),
    work: Work,
}

/// Buffers for one sample, reused.
#[derive(Clone, Debug, Default)]
struct Work {
    candidates: Vec<u32>,
    /// Of the candidates: frozen logits relative to the best, what the moved prototypes add, log(C π_c).
    text: Vec<f32>,
    moved: Vec<f32>,
    prior: Vec<f32>,
}

/// One sample as it comes in.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    /// Frozen logits s⟨z, μ_c⟩, and their summary.
    text: &'a [f32],
    frozen: &'a Summary,
    /// exp(frozen logit − best).
    weights: &'a [f32],
    /// s⟨z, t_c⟩, where prototypes move.
    moved: Option<&'a [f32]>,
}

impl<'a> Incoming<'a> {
    fn of(batch: &'a Batch<'_>, row: usize, moved: Option<&'a [f32]>) -> Self {
        Self {
            text: batch.zero_shot.row(row),
            frozen: &batch.frozen[row],
            weights: batch.weights.row(row),
            moved,
        }
    }

    /// s⟨z, t_c⟩.
    fn base(&self) -> &'a [f32] {
        self.moved.unwrap_or(self.text)
    }
}

/// One sample as answered.
struct Answered {
    /// Of ℓ.
    summary: Summary,
    answer: Answer,
    lump: Lump,
}

/// The settings that the schedule changes, as they are now.
struct Strictness {
    /// Factor on the share that the gate keeps.
    gate: f64,
    alpha: f64,
    gamma: f64,
    kappa: f64,
    eta: f64,
}

impl PaperConfig {
    /// The adapter for a head; settings out of range are an error.
    pub fn build(&self, head: &Arc<Head>) -> Result<Paper> {
        self.check(head.n_classes())?;
        Ok(Paper::new(self, head))
    }
}

impl Paper {
    fn new(config: &PaperConfig, head: &Arc<Head>) -> Self {
        let classes = head.n_classes();
        let width = config.temperature.candidates.min(classes);
        let teachable = if config.feedback.teach { TEACHABLE } else { 1 };
        let remembered = config.temperature.window.max(teachable);
        let kept_dim = if config.feedback.teach { head.dim() } else { 0 };
        let moving = !config.prototypes.frozen;
        Self {
            gate: Gate::new(&config.gate),
            prototypes: moving.then(|| Prototypes::new(&config.prototypes, head)),
            prior: Prior::new(&config.prior, classes),
            temperatures: Temperatures::default(),
            recent: Recent::new(remembered, width, kept_dim).remembering(config.feedback.remember),
            labelled: Labelled::new(width),
            seen: 0,
            admitted: 0,
            since_update: 0,
            recent_since: 0,
            updated_at: None,
            movement: (0.0, 0.0),
            work: Work::default(),
            config: config.clone(),
            head: head.clone(),
        }
    }

    /// Answers a sample. Writes ℓ to `scores` and, where τ_cal gives logits of another shape, these to `calibrated`.
    fn answer(
        &self,
        row: Incoming<'_>,
        work: &mut Work,
        scores: &mut [f32],
        calibrated: Option<&mut [f32]>,
    ) -> Answered {
        let (tau_pred, log_prior) = (self.temperatures.pred as f32, self.prior.log_ratio());
        let base = row.base();
        for ((s, &b), &p) in scores.iter_mut().zip(base).zip(log_prior) {
            *s = tau_pred * b + p;
        }
        let summary = summary(scores, 1.0);
        let prob = self.emitted_prob(scores, base, &summary, calibrated);
        let lump = self.remember(row, scores, &summary, work);
        let answer = Answer { label: summary.label, prob, prob_pred: summary.prob, ..Default::default() };
        Answered { summary, answer, lump }
    }

    /// Probability of the answer at τ_cal.
    fn emitted_prob(
        &self,
        scores: &[f32],
        base: &[f32],
        pred: &Summary,
        calibrated: Option<&mut [f32]>,
    ) -> f32 {
        let tau = if self.config.temperature.single { 1.0 } else { self.temperatures.cal as f32 };
        let Some(out) = calibrated else {
            return if tau == 1.0 { pred.prob } else { summary(scores, tau).prob };
        };
        for ((o, &b), &p) in out.iter_mut().zip(base).zip(self.prior.log_ratio()) {
            *o = tau * b + p;
        }
        let s = summary(out, 1.0);
        s.prob * exp(out[pred.label] - s.best)
    }

    /// Collects what the fits will need of a sample: its candidates, and the lump of the other classes.
    fn remember(&self, row: Incoming<'_>, scores: &[f32], summary: &Summary, work: &mut Work) -> Lump {
        let (text, origin, log_prior) = (row.text, row.frozen.best, self.prior.log_ratio());
        let base = row.base();
        let best = row.moved.map_or(origin, |m| m.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let t = &self.config.temperature;
        choose_candidates(base, best, t.candidates, t.candidate_range, &mut work.candidates);
        let candidates = || work.candidates.iter().map(|&c| c as usize);
        work.text.clear();
        work.text.extend(candidates().map(|c| text[c] - origin));
        work.moved.clear();
        work.moved.extend(candidates().map(|c| base[c] - text[c]));
        work.prior.clear();
        work.prior.extend(candidates().map(|c| log_prior[c]));

        let classes = (text.len() - work.candidates.len()) as f32;
        if classes == 0.0 {
            let none = Lump::log_mass(0.0, 0.0);
            return Lump { classes, text: none, prior: none, ratio: none };
        }
        let log = |mass: f32| Lump::log_mass(classes, mass);
        let listed: f32 = candidates().map(|c| row.weights[c]).sum();
        let prior = if self.temperatures.pred == 1.0 {
            let posterior: f32 = candidates().map(|c| exp(scores[c] - summary.best) * summary.prob).sum();
            log(1.0 - posterior) + summary.log_sum - origin
        } else {
            // ℓ is at τ_pred; the fits need the sum at τ = 1.
            let plain = |c: usize| base[c] + log_prior[c];
            let top = candidates().map(plain).fold(f32::NEG_INFINITY, f32::max);
            let all: f64 = (0..text.len()).map(|c| exp(plain(c) - top) as f64).sum();
            let listed: f64 = candidates().map(|c| exp(plain(c) - top) as f64).sum();
            log((all - listed) as f32) + top - origin
        };
        let listed_prior: f32 = work.prior.iter().map(|&p| exp(p)).sum();
        let ratio = log(text.len() as f32 - listed_prior) - classes.max(1.0).ln();
        Lump { classes, text: log(exp(row.frozen.log_sum - origin) - listed), prior, ratio }
    }

    /// Whether τ_cal gives logits of its own instead of a multiple of ℓ.
    fn own_calibrated_logits(&self) -> bool {
        !self.config.temperature.cal_prior && !self.config.temperature.single
    }

    /// The temperature that turns the emitted logits into probabilities.
    fn row_tau_cal(&self) -> f32 {
        let multiplied = self.config.temperature.cal_prior && !self.config.temperature.single;
        if multiplied { self.temperatures.cal as f32 } else { 1.0 }
    }

    /// The schedule: strict at the start, relaxed as samples are admitted.
    fn strictness(&self) -> Strictness {
        let (s, p) = (&self.config.schedule, &self.config);
        let (alpha, eta) = (p.prototypes.alpha, p.prototypes.eta);
        let (gamma, kappa) = (p.prior.gamma, p.prior.kappa);
        if s.samples <= 0.0 {
            return Strictness { gate: 1.0, alpha, gamma, kappa, eta };
        }
        let progress = (self.admitted as f64 / s.samples).min(1.0);
        let linear = |start: f64| start + (1.0 - start) * progress;
        let geometric = |start: f64| start.powf(1.0 - progress);
        Strictness {
            gate: linear(s.gate),
            alpha: alpha * geometric(s.alpha),
            gamma: gamma * geometric(s.gamma),
            kappa: kappa * linear(s.kappa),
            eta: eta * linear(s.eta),
        }
    }

    /// Whether the gate lets a sample teach.
    fn admits(&self, sample: &Summary) -> bool {
        self.seen >= self.config.gate.warm_up && self.gate.admits(sample)
    }

    /// Lets an answered sample teach. Tells whether the gate admitted it, and whether an update followed.
    fn learn(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        scores: &[f32],
        answered: &Answered,
        work: &Work,
    ) -> (bool, bool) {
        let may_learn = batch.may_learn(row);
        let z = batch.features.row(row);
        let admitted = may_learn && self.admits(&answered.summary);
        self.seen += u64::from(may_learn);
        if admitted {
            self.accumulate(batch, row, scores, &answered.summary);
            self.admitted += 1;
        }
        if may_learn {
            self.gate.aim(self.strictness().gate);
            self.gate.push(&answered.summary);
        }
        self.recent.push(Sample {
            id: batch.first_id + row as u64,
            classes: &work.candidates,
            text: &work.text,
            image: &work.moved,
            prior: &work.prior,
            features: z,
            image_weight: 1.0,
            lump: answered.lump,
            flags: Flags { teaches: may_learn, has_image: false, admitted },
        });
        self.recent_since += 1;
        let counts = match self.config.update.count {
            Count::Seen => may_learn,
            Count::Admitted => admitted,
        };
        self.since_update += u64::from(counts);
        let due = self.update_is_due(counts, batch.times.map(|t| t[row]));
        if due {
            self.update();
        }
        (admitted, due)
    }

    /// Whether an update follows the sample: by count, or by time where times are given.
    fn update_is_due(&mut self, counts: bool, time: Option<f64>) -> bool {
        let seconds = self.config.update.seconds;
        let by_time = match (time, self.updated_at) {
            (Some(now), Some(last)) => seconds > 0.0 && self.since_update > 0 && now - last >= seconds,
            _ => false,
        };
        let due = (counts && self.since_update >= self.config.update.every) || by_time;
        if due || self.updated_at.is_none() {
            self.updated_at = time.or(self.updated_at);
        }
        due
    }

    /// Shares an admitted sample among the classes, and lets it teach them.
    fn accumulate(&mut self, batch: &Batch<'_>, row: usize, scores: &[f32], summary: &Summary) {
        let least = self.config.min_responsibility as f32;
        let mut shares: Vec<(u32, f32)> = Vec::new();
        if let Some(mean) = self.view_responsibilities(batch, row) {
            shares.extend(mean.iter().enumerate().map(|(c, &r)| (c as u32, r)).filter(|s| s.1 > least));
        } else {
            let mut classes = Vec::new();
            match self.config.responsibilities {
                Responsibilities::Text => {
                    let (weights, frozen) = (batch.weights.row(row), &batch.frozen[row]);
                    let sum = exp(frozen.log_sum - frozen.best);
                    indices_above(weights, least * sum, &mut classes);
                    shares.extend(classes.iter().map(|&c| (c, weights[c as usize] / sum)));
                }
                Responsibilities::Adapted => {
                    let floor = summary.log_sum + least.max(1e-30).ln();
                    indices_above(scores, floor, &mut classes);
                    shares.extend(classes.iter().map(|&c| (c, exp(scores[c as usize] - summary.log_sum))));
                }
            }
        }
        for (c, share) in shares {
            self.prior.count(c as usize, share as f64);
            if let Some(prototypes) = &mut self.prototypes {
                prototypes.teach(c as usize, share as f64, batch.features.row(row));
            }
        }
    }

    /// With K extra views of a sample, its responsibilities are the mean of the views' posteriors.
    fn view_responsibilities(&self, batch: &Batch<'_>, row: usize) -> Option<Vec<f32>> {
        let mut scores = vec![0.0; self.head.n_classes()];
        let tau_pred = self.temperatures.pred as f32;
        mean_posterior(batch, row, |z, text, probs| {
            if self.config.responsibilities == Responsibilities::Text {
                softmax(text, 1.0, probs);
                return;
            }
            let moved = self.moved(z);
            let base = moved.as_deref().unwrap_or(text);
            for ((s, &b), &p) in scores.iter_mut().zip(base).zip(self.prior.log_ratio()) {
                *s = tau_pred * b + p;
            }
            softmax(&scores, 1.0, probs);
        })
    }

    /// s⟨z, t_c⟩ of some rows, where prototypes move.
    fn moved(&self, rows: &[f32]) -> Option<Vec<f32>> {
        let mut out = Vec::new();
        self.prototypes.as_ref()?.scores(rows, &mut out);
        Some(out)
    }

    /// Moves prototypes, prior and temperatures.
    fn update(&mut self) {
        // Prototypes, prior, temperature: the order of Algorithm 1.
        let strict = self.strictness();
        if let Some(prototypes) = &mut self.prototypes {
            prototypes.update(strict.alpha, strict.eta);
            let moved = prototypes.movements();
            let mean = moved.iter().sum::<f64>() / moved.len().max(1) as f64;
            self.movement = (moved.iter().copied().fold(0.0, f64::max), mean);
        }
        self.prior.update(strict.gamma, strict.kappa);
        if !self.config.temperature.frozen {
            let since = self.recent.newest(self.recent_since);
            let rows: Vec<Sample<'_>> = since.filter(|s| s.flags.admitted).collect();
            self.temperatures.fit_pred(&rows, &self.config.temperature);
        }
        self.since_update = 0;
        self.recent_since = 0;
    }

    /// Room for a prediction.
    fn empty_prediction(&self, rows: usize) -> Prediction {
        let classes = self.head.n_classes();
        Prediction {
            scores: Scores::zeros(rows, classes),
            calibrated: self.own_calibrated_logits().then(|| Scores::zeros(rows, classes)),
            ..Default::default()
        }
    }
}

impl Adapter for Paper {
    fn card(&self) -> &'static Card {
        &PAPER_CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut prediction = self.empty_prediction(batch.rows());
        let moved = self.moved(batch.features.data());
        let classes = self.head.n_classes();
        let mut work = Work::default();
        for row in 0..batch.rows() {
            let moved = moved.as_ref().map(|m| &m[row * classes..][..classes]);
            let incoming = Incoming::of(batch, row, moved);
            let calibrated = prediction.calibrated.as_mut().map(|c| c.row_mut(row));
            let answered = self.answer(incoming, &mut work, prediction.scores.row_mut(row), calibrated);
            let admitted = batch.may_learn(row) && self.admits(&answered.summary);
            prediction.answers.push(Answer { admitted, ..answered.answer });
            prediction.tau_cal.push(self.row_tau_cal());
        }
        prediction
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let prediction = self.step(batch);
        Observed { admitted: prediction.answers.iter().map(|a| a.admitted).collect() }
    }

    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        // Scores that nobody will read share one row.
        let keep_scores = batch.keep_scores || batch.keep_probs;
        let kept = if keep_scores { batch.rows() } else { batch.rows().min(1) };
        let mut prediction = self.empty_prediction(kept);
        let mut work = std::mem::take(&mut self.work);
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        // s⟨z, t_c⟩ of some rows, and the first of these rows; `None` where they have to be computed again.
        let mut ahead: Option<(Vec<f32>, usize)> = None;
        for row in 0..batch.rows() {
            if ahead.as_ref().is_none_or(|(scores, first)| (row - first) * classes >= scores.len()) {
                let end = batch.rows().min(row + AHEAD);
                let rows = &batch.features.data()[row * dim..end * dim];
                ahead = self.moved(rows).map(|scores| (scores, row));
            }
            let moved = ahead.as_ref().map(|(scores, first)| &scores[(row - first) * classes..][..classes]);
            let incoming = Incoming::of(batch, row, moved);
            let place = if keep_scores { row } else { 0 };
            let calibrated = prediction.calibrated.as_mut().map(|c| c.row_mut(place));
            let answered = self.answer(incoming, &mut work, prediction.scores.row_mut(place), calibrated);
            prediction.tau_cal.push(self.row_tau_cal());
            let scores = prediction.scores.row(place);
            let (admitted, updated) = self.learn(batch, row, scores, &answered, &work);
            prediction.answers.push(Answer { admitted, ..answered.answer });
            if updated {
                ahead = None;
            }
        }
        self.work = work;
        if !keep_scores {
            (prediction.scores, prediction.calibrated) = (Scores::default(), None);
        }
        prediction
    }

    fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let sample = self.recent.find(id, self.config.feedback.remember)?;
        let new = self.labelled.put(sample, label);
        // A sample from a state that was saved without features cannot teach.
        let can_teach = sample.features.iter().any(|&v| v != 0.0);
        if let Some(prototypes) = self.prototypes.as_mut().filter(|_| new && can_teach) {
            prototypes.teach(label, 1.0, sample.features);
        }
        let strength = self.config.feedback.prior_strength;
        self.temperatures.fit_cal(&self.labelled, strength, &self.config.temperature);
        Ok(true)
    }

    fn memory(&self) -> Option<Memory> {
        Some(self.recent.memory())
    }

    fn reset(&mut self) {
        *self = Self::new(&self.config, &self.head);
    }

    fn save(&self) -> State {
        self.save_all()
    }

    fn load(&mut self, state: &State) -> Result<()> {
        *self = self.loaded(state)?;
        Ok(())
    }

    fn checkpoint(&self) -> State {
        self.save_evidence(true)
    }

    fn vitals(&self) -> Vitals {
        let single = self.config.temperature.single;
        Vitals {
            prior_kl: self.prior.kl(),
            movement_max: self.movement.0,
            movement_mean: self.movement.1,
            tau_pred: self.temperatures.pred,
            tau_cal: if single { self.temperatures.pred } else { self.temperatures.cal },
            evidence_weight: 0.0,
            restarts: 0,
            state_bytes: self.recent.bytes()
                + self.labelled.bytes()
                + self.prior.bytes()
                + self.gate.bytes()
                + self.prototypes.as_ref().map_or(0, |p| p.bytes()),
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let movements = self.prototypes.as_ref().map_or_else(Vec::new, |p| p.movements());
        let evidence: &[f64] = self.prototypes.as_ref().map_or(&[], |p| p.counts());
        let prior = self.prior.current();
        ClassDrift::of_classes(&movements, &prior, evidence)
    }
}
