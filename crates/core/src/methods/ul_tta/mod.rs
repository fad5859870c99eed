//! The default method: it keeps a frozen zero-shot head accurate on one stream, in closed form and without labels.
//!
//! With unit image feature z, text prototype μ_c, logit scale s and C classes the answer is
//!
//! ```text
//! ℓ_c = τ_pred s⟨z, μ_c⟩ + trust · scale · v_c(z) + log(C π_c)      ŷ = argmax ℓ
//! p = (1 − floor) ((1 − w) softmax(τ_cal ℓ) + w softmax(s⟨z, μ⟩)) + floor / C
//! ```
//!
//! | part | what it is | file |
//! |---|---|---|
//! | v_c(z) | score of the image against the stream's own class means, the *evidence* | `evidence.rs` |
//! | π_c | class prior of the stream, a mixture of *experts* that count or filter | `prior.rs`, `experts.rs`, `neighbours.rs` |
//! | lift, bias | which classes the head favours, and how much it favours any | `background.rs` |
//! | doubt | with few classes: what lasts may be the head, not the stream | `doubt.rs` |
//! | shares | how an admitted sample is shared among the classes it teaches | `shares.rs` |
//! | p | what is emitted: adapted and frozen probabilities | `emission.rs` |
//! | τ_pred | how sharp the frozen logits are beside what was learnt | `sharpness.rs` |
//! | scale, τ_cal | one-dimensional fits over remembered samples; τ_cal goes by how right the head is, too, as halves of the dimensions tell | `fits.rs`, `../recent/`, `../../estimate/halves.rs` |
//! | trust | how loudly the evidence speaks: as far as the other half of the dimensions approves of what it changes | `opinion.rs`, `fits.rs` |
//! | z | of a near-copy: the mean of the *scene* at hand | `scene.rs` |
//! | garbage | rows that look like nothing: answered and told, but they teach nothing | `garbage.rs` |
//! | correction_c(z) | what labels add to s⟨z, μ_c⟩ in both lines above, where somebody gave some | `corrections.rs`, `label_prior.rs`, `kept.rs` |
//! | restart | everything is forgotten when rows come to look unlike those before | `shift.rs` |
//! | parts of an answer, a plain layer | why a row is answered so; what a device can run | `explain.rs`, `layer.rs` |
//! | others | what a group has learnt, and the law that adds it up | `shared.rs` |
//! | all of it in a file | what is saved, what of it two sessions may add, how loudly their sum may speak | `saved.rs`, `trust.rs` |
//!
//! A row comes in by `arrival.rs`. A sample is answered first and teaches after (`answer.rs`, `UlTta::learn`). A sample
//! here is the first row of a scene: near-copies are answered and teach nothing. Every sample teaches the prior; samples
//! that the gate admits teach the evidence. What was learnt of the prior, and the trust in the evidence, count from the
//! next sample on; the evidence itself and the fits enter the answers at an update, every 128 samples at first and more
//! rarely later (`schedule.rs`).
//!
//! What is emitted mixes adapted and frozen probabilities, because errors are systematic within a class: a run of
//! pictures that the head misreads makes the adapted answer surer than it is right. The *frozen share* w
//! (`advanced.frozen_share`) bounds the regret on a sample, for every class:
//!
//! ```text
//! −log p ≤ −log p_frozen + log 1/((1 − floor) w)      −log p ≤ −log p_adapted + log 1/((1 − floor)(1 − w))
//! ```
//!
//! w is the setting times the share of samples on which the two halves of the dimensions disagree (`opinion.rs`): a head that
//! is often wrong keeps its doubts. It is up to three times that under a head that favours some classes (its *bias*,
//! `background.rs`), because there whole runs are wrong. Where the mixture would prefer another class to the answer, w is lowered on that sample, which loosens the
//! first bound there: the answer is always the most probable class. The *floor* bounds what any sure and wrong answer
//! costs: −log p ≤ log(C / floor).
//!
//! *Warm-up.* The prior learns from the first sample on, and enters the answers after 16 samples, after a restart 64, and
//! still later after restarts that follow one another closely. τ_pred: from 64 samples on. τ_cal: from the first update on. The evidence:
//! the first 100 samples move mean and covariance but no class. The first update, after 128 samples, folds it if
//! there were as many samples as classes; the second fits its scale to the samples scored since; and the sample after that
//! is the first that it is judged on. So it enters the answers after 257 samples, if the second opinion approves of it by
//! then, and later with more than 120 classes.
//!
//! It takes what it moves (prototypes, prior, temperature) from B. Kim, *Ultra-Light Test-Time Adaptation for
//! Vision–Language Models*; how each learns is different. The paper keeps no covariance; here the evidence keeps the
//! d × d second moments of the images. The published algorithm is in `../ul_tta_paper/`.

use std::sync::Arc;

use crate::adapter::{
    Adapter, Answer, Batch, Card, ClassDrift, KeptScene, Memory, Observed, Prediction, Vitals,
};
use crate::estimate::{Halves, log_odds};
use crate::explain::{Part, Similar};
use crate::gate::Gate;
use crate::group::Sharing;
use crate::kernels::fold_lanes;
use crate::methods::presets::CARD;
use crate::methods::recent::{Flags, Labelled, Lump, Recent, Sample};
use crate::scores::Summary;
use crate::{Head, Layer, Result, Scores, State};

mod answer;
mod arrival;
mod background;
mod config;
mod corrections;
mod doubt;
mod emission;
mod evidence;
mod experts;
mod explain;
mod fits;
mod garbage;
mod kept;
mod label_prior;
mod layer;
mod lump;
mod neighbours;
mod opinion;
mod prior;
mod saved;
mod scene;
mod schedule;
mod shared;
mod shares;
mod sharpness;
mod shift;
pub(crate) mod trust;

pub use config::*;
use corrections::{Corrected, Corrections};
use evidence::Evidence;
use fits::{Calibration, ImageBranch};
use garbage::Garbage;
use kept::Kept;
use opinion::{Halved, Opinion};
pub(super) use prior::WARM_UP;
use prior::{Prior, PriorWork};
use scene::Scene;
use shared::Shared;
use sharpness::Sharpness;
use shift::Watch;

/// Samples after which the prior's lift follows its background.
const LIFT_EVERY: u64 = 8;

/// The adapter.
#[derive(Clone, Debug)]
pub struct UlTta {
    config: DefaultConfig,
    head: Arc<Head>,
    gate: Gate,
    /// `None` where prototypes are frozen.
    evidence: Option<Box<Evidence>>,
    /// `None` outside of a group.
    shared: Option<Box<Shared>>,
    prior: Prior,
    image: ImageBranch,
    calibration: Calibration,
    recent: Recent,
    labelled: Labelled,
    scene: Scene,
    garbage: Garbage,
    /// What halves of the dimensions say of how right the head is.
    halves: Halves,
    watch: Watch,
    sharpness: Sharpness,
    kept: Kept,
    corrections: Corrections,
    /// How often it began anew because the stream had changed.
    restarts: u64,
    /// How many of the last restarts followed one another hastily, the first of them counted; 0 before the first restart
    /// (`arrival.rs`).
    hasty: u64,
    /// Samples that could teach, and samples that the gate admitted.
    seen: u64,
    admitted: u64,
    /// Samples that could teach since the last update.
    since_update: u64,
    /// Time of the last update, where times are given.
    updated_at: Option<f64>,
    /// Largest and mean movement of the prototypes, as of the last update.
    movement: (f64, f64),
    work: Work,
}

/// Buffers for one sample, reused.
#[derive(Clone, Debug, Default)]
struct Work {
    prior: PriorWork,
    /// log(C π_c).
    log_prior: Vec<f32>,
    /// The *candidates*: the classes whose image score is computed, because the others cannot win.
    candidates: Vec<u32>,
    /// v of the candidates, relative to the lowest of them.
    image: Vec<f32>,
    /// exp(ℓ − best frozen logit) of the classes that are no candidates; 0 for candidates.
    weights: Vec<f32>,
    /// Adapted posterior of the candidates.
    posterior: Vec<f32>,
    /// Frozen logits of the candidates relative to the best, and their log(C π_c).
    candidate_text: Vec<f32>,
    candidate_prior: Vec<f32>,
    /// The candidates in both halves of the dimensions, and what these are made from: the deviation from the mean with every
    /// second sign turned, and the candidates' image scores of that.
    halves: Vec<Halved>,
    turned: Vec<f32>,
    turned_image: Vec<f32>,
    /// The classes that the sample teaches, each with its share of the sample.
    shares: Vec<(u32, f32)>,
    /// A row, or the mean of its scene, with what labels add to its frozen logits; whether that is what was answered.
    corrected: Corrected,
    is_corrected: bool,
    /// exp(τ_cal (ℓ − best)) of the sample, where all its probabilities will be read and τ_cal is not 1; else empty.
    tempered: Vec<f32>,
    keep_tempered: bool,
    /// What the frozen model says of a scene, and exp(logit − best) of it.
    scene_logits: Vec<f32>,
    scene_weights: Vec<f32>,
    /// The frozen logits times τ_pred, and exp(logit − best) of them, where τ_pred is not 1.
    sharp_text: Vec<f32>,
    sharp_weights: Vec<f32>,
}

/// One sample as it comes in.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    z: &'a [f32],
    /// Frozen logits s⟨z, μ_c⟩, and their summary.
    text: &'a [f32],
    frozen: &'a Summary,
    /// exp(frozen logit − best).
    weights: &'a [f32],
}

impl Work {
    /// exp(frozen logit − best) of what was answered: the row, or the mean of its scene.
    fn answered_weights<'a>(&'a self, answered: &Answered, batch: &'a Batch<'_>, row: usize) -> &'a [f32] {
        match (self.is_corrected, answered.answer.copy) {
            (true, _) => &self.corrected.weights,
            (false, true) => &self.scene_weights,
            (false, false) => batch.weights.row(row),
        }
    }
}

impl<'a> Incoming<'a> {
    fn of(batch: &'a Batch<'_>, row: usize) -> Self {
        Self {
            z: batch.features.row(row),
            text: batch.zero_shot.row(row),
            frozen: &batch.frozen[row],
            weights: batch.weights.row(row),
        }
    }
}

/// One sample as answered. The candidates' part of it is in [`Work`].
struct Answered {
    /// Of ℓ.
    summary: Summary,
    answer: Answer,
    /// τ_cal, and the probability of the answer under it, before the floor.
    tau: f32,
    matched: f32,
    image_weight: f32,
    has_image: bool,
    lump: Lump,
    /// w, and the frozen probability of the frozen answer.
    frozen_share: f32,
    frozen_prob: f32,
    /// τ_pred. Where it is not 1, [`Work`] holds the sharpened logits.
    tau_pred: f32,
}

impl DefaultConfig {
    /// The adapter for a head; settings out of range are an error.
    pub fn build(&self, head: &Arc<Head>) -> Result<UlTta> {
        self.check(head.n_classes())?;
        Ok(UlTta::new(self, head))
    }
}

impl UlTta {
    fn new(config: &DefaultConfig, head: &Arc<Head>) -> Self {
        let (classes, dim) = (head.n_classes(), head.dim());
        let width = config.advanced.candidates.min(classes);
        let kept_dim = if config.feedback.teach { dim } else { 0 };
        let evidence = (!config.prototypes.frozen).then(|| Box::new(Evidence::new(config, classes, dim)));
        Self {
            gate: Gate::new(&config.gate()),
            evidence,
            shared: None,
            prior: Prior::new(config, classes, config.half_life(classes)),
            image: ImageBranch::default(),
            calibration: Calibration::default(),
            recent: Recent::new(config.remembered(), width, kept_dim).remembering(config.feedback.remember),
            labelled: Labelled::new(width),
            scene: Scene::new(&config.advanced, classes, dim),
            garbage: Garbage::new(config.advanced.garbage_dim, head),
            halves: Halves::new(classes, dim),
            watch: Watch::new(classes),
            sharpness: Sharpness::new(config.sharpen_share()),
            kept: Kept::new(config.advanced.correctable, dim),
            corrections: Corrections::default(),
            restarts: 0,
            hasty: 0,
            seen: 0,
            admitted: 0,
            since_update: 0,
            updated_at: None,
            movement: (0.0, 0.0),
            work: Work::default(),
            config: config.clone(),
            head: head.clone(),
        }
    }

    /// The temperature of the emitted probabilities.
    fn tau_cal(&self) -> f64 {
        if self.config.calibration.rule == CalibrationRule::Off { 1.0 } else { self.calibration.tau }
    }

    /// Whether the gate lets a sample teach the evidence.
    fn admits(&self, sample: &Summary) -> bool {
        self.seen >= self.warm_up() && self.gate.admits(sample)
    }

    /// Lets an answered sample teach. `true` if the gate admitted it.
    fn learn(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        incoming: Incoming<'_>,
        answered: &Answered,
        work: &mut Work,
    ) -> bool {
        let may_learn = batch.may_learn(row) && !answered.answer.garbage;
        let z = batch.features.row(row);
        let admitted = may_learn && self.admits(&answered.summary);
        if may_learn {
            let Incoming { frozen, text, .. } = Incoming::of(batch, row);
            self.sharpness.push(text, frozen, &work.candidates);
            self.corrections.prior.foretell(Incoming::of(batch, row).weights, frozen.prob);
            let winner = incoming.frozen.label;
            let weights = if answered.tau_pred == 1.0 { incoming.weights } else { &work.sharp_weights };
            self.prior.learn(&mut work.prior, &work.candidates, &work.posterior, weights, winner, &self.head);
            if let Some(evidence) = &mut self.evidence {
                evidence.observe(z);
            }
            self.halves.meet(z, batch.zero_shot.row(row), None, &self.head, self.seen);
            self.seen += 1;
            if self.seen.is_multiple_of(LIFT_EVERY) {
                self.prior.relift();
                // Until the first update an under-confident head would be outvoted by what was learnt of the prior.
                if self.seen < self.config.advanced.update_every {
                    self.sharpness.fit();
                }
            }
        }
        work.shares.clear();
        if admitted {
            self.accumulate(batch, row, incoming, answered, work);
            self.admitted += 1;
        }
        self.keep(batch.first_id + row as u64, z, answered, may_learn, work);
        if may_learn {
            self.gate.push(&answered.summary);
            self.judge(z, answered, work);
        }
        self.recent.push(Sample {
            id: batch.first_id + row as u64,
            classes: &work.candidates,
            text: &work.candidate_text,
            image: &work.image,
            prior: &work.candidate_prior,
            features: z,
            image_weight: answered.image_weight,
            lump: answered.lump,
            flags: Flags { teaches: may_learn, has_image: answered.has_image, admitted },
        });
        self.since_update += u64::from(may_learn);
        if self.update_is_due(may_learn, batch.times.map(|t| t[row])) {
            self.update(work);
        }
        admitted
    }

    /// Asks the halves for their opinion, and keeps the records of the image evidence. Evidence that misleads for long is
    /// dropped.
    fn judge(&mut self, z: &[f32], answered: &Answered, work: &mut Work) {
        if self.evidence.is_some() && Opinion::is_due(self.seen - 1) {
            self.halve(z, answered.tau_pred, work);
            self.image.opinion.compare(&work.halves, &work.candidate_prior);
            if answered.has_image && self.image.scale > 0.0 {
                self.image.opinion.judge(&work.halves, self.image.scale as f32, self.tempo());
            }
        }
        if !answered.has_image {
            return;
        }
        let Work { candidate_text, candidate_prior, image, .. } = work;
        self.image.judge(candidate_text, candidate_prior, image, &answered.lump);
        if self.image.misleads()
            && let Some(evidence) = &mut self.evidence
        {
            **evidence = Evidence::new(&self.config, self.head.n_classes(), self.head.dim());
            self.image = ImageBranch::default();
            self.shared.as_deref_mut().into_iter().for_each(Shared::set_aside);
        }
    }

    /// Both halves of a sample, of its candidates (`opinion.rs`).
    fn halve(&self, z: &[f32], tau_pred: f32, work: &mut Work) {
        work.halves.clear();
        let Some(evidence) = self.evidence.as_ref().filter(|_| work.candidates.len() > 1) else { return };
        evidence.turn(z, &mut work.turned);
        evidence.turned_scores(&work.turned, &work.candidates, &mut work.turned_image);
        let scale = tau_pred * self.head.logit_scale();
        for (i, &c) in work.candidates.iter().enumerate() {
            let prototype = self.head.prototype(c as usize);
            let (text, turned) = (
                work.candidate_text[i] + work.candidate_prior[i],
                scale * fold_lanes(&work.turned, prototype, |y, m| y * m),
            );
            let (image, turned_image) = (work.image[i], work.turned_image[i]);
            work.halves.push(Halved {
                text: [text + turned, text - turned],
                image: [image + turned_image, image - turned_image],
            });
        }
    }

    /// An empty prediction with room for the scores of `kept` rows.
    fn prediction(&self, batch: &Batch<'_>, kept: usize, keep_scores: bool) -> Prediction {
        let classes = self.head.n_classes();
        let probs = batch.keep_probs.then(|| Scores::zeros(batch.rows(), classes));
        let advanced = &self.config.advanced;
        let mixed = keep_scores && (advanced.floor > 0.0 || advanced.frozen_share > 0.0);
        let calibrated = mixed.then(|| Scores::zeros(kept, classes));
        Prediction { scores: Scores::zeros(kept, classes), calibrated, probs, ..Default::default() }
    }

    /// Fits the temperatures, moves the prior's lift, folds the evidence.
    fn update(&mut self, work: &mut Work) {
        let advanced = &self.config.advanced;
        self.sharpness.fit();
        if self.config.calibration.rule == CalibrationRule::Match {
            // In few dimensions a half knows too little to tell. Only biased heads are taken to be surer than they are right.
            let (known, biased) = (self.halves.are_large(), self.biased());
            let moved = |claim| {
                let right = self.halves.corrected(claim, Halves::early(self.seen));
                let moved = log_odds(right) - log_odds(claim);
                if !known {
                    0.0
                } else if moved < 0.0 {
                    biased * moved
                } else {
                    moved
                }
            };
            self.calibration.fit(&self.recent, &self.gate.margins(), moved, advanced);
            if !self.labelled.is_empty() {
                self.calibration.fit_to_labels(&self.labelled, advanced);
            }
        }
        let least = self.least_scored();
        self.image.fit(&self.recent, advanced, least);
        self.prior.update(&work.prior);
        let warm = self.seen > self.warm_up();
        if let Some(evidence) = &mut self.evidence {
            if warm {
                evidence.update(self.shared.as_deref_mut().and_then(Shared::others_at_update));
            }
            self.image.grow(evidence.mean_count(), advanced);
        }
        self.corrections.follow(self.evidence.as_deref());
        let moved = self.movements();
        let largest = moved.iter().copied().fold(0.0, f64::max);
        self.movement = (largest, moved.iter().sum::<f64>() / moved.len().max(1) as f64);
        self.since_update = 0;
    }

    /// How far the evidence moves each prototype: adding trust · scale · ⟨z, Σ⁻¹ m_c⟩ to s⟨z, μ_c⟩ is the same as moving
    /// μ_c by trust · scale · Σ⁻¹ m_c / s.
    fn movements(&self) -> Vec<f64> {
        let Some(evidence) = &self.evidence else { return Vec::new() };
        let factor = self.image.weight() as f64 / self.head.logit_scale() as f64;
        evidence.norms().iter().map(|&n| factor * n as f64).collect()
    }
}

impl Adapter for UlTta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut prediction = self.prediction(batch, batch.rows(), true);
        let mut work = Work::default();
        for row in 0..batch.rows() {
            let (mut answered, admitted) =
                self.peek(Incoming::of(batch, row), &mut work, prediction.scores.row_mut(row));
            answered.answer.admitted = admitted && batch.may_learn(row);
            self.emit(&answered, work.answered_weights(&answered, batch, row), &[], row, &mut prediction);
        }
        prediction
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let prediction = self.step(batch);
        Observed { admitted: prediction.answers.iter().map(|a| a.admitted).collect() }
    }

    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        // Scores that nobody will read share one row.
        let kept = if batch.keep_scores { batch.rows() } else { batch.rows().min(1) };
        let mut prediction = self.prediction(batch, kept, batch.keep_scores);
        let mut work = std::mem::take(&mut self.work);
        work.keep_tempered = batch.keep_scores || batch.keep_probs;
        for row in 0..batch.rows() {
            let place = if batch.keep_scores { row } else { 0 };
            let scores = prediction.scores.row_mut(place);
            let answered = self.take_in(batch, row, &mut work, scores);
            let weights = work.answered_weights(&answered, batch, row);
            self.emit(&answered, weights, &work.tempered, place, &mut prediction);
        }
        self.work = work;
        if !batch.keep_scores {
            prediction.scores = Scores::default();
        }
        prediction
    }

    fn rest(&mut self, batch: &Batch<'_>) -> Vec<(bool, bool)> {
        let none = vec![false; batch.rows()];
        let resting = Batch { learn: Some(&none), ..batch.clone() };
        let (mut work, mut scores) = (std::mem::take(&mut self.work), vec![0.0; self.head.n_classes()]);
        let looks =
            (0..batch.rows()).map(|row| self.pass_by(batch, &resting, row, &mut work, &mut scores)).collect();
        self.work = work;
        looks
    }

    fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let taught = self.scene.taught_by(id);
        let sample = self.recent.find(taught, self.config.feedback.remember)?;
        let new = self.labelled.put(sample, label);
        // A sample from a state that was saved without features cannot teach.
        let can_teach = sample.features.iter().any(|&v| v != 0.0);
        if let Some(evidence) = self.evidence.as_mut().filter(|_| new && can_teach) {
            evidence.teach(label, 1.0, sample.features);
        }
        if self.config.calibration.rule != CalibrationRule::Off {
            self.calibration.fit_to_labels(&self.labelled, &self.config.advanced);
        }
        Ok(true)
    }

    fn memory(&self) -> Option<Memory> {
        Some(self.recent.memory())
    }

    fn correct(&mut self, id: u64, label: usize) -> Result<bool> {
        self.correct_sample(id, label).map(|()| true)
    }

    fn withdraw(&mut self, id: u64) -> bool {
        self.withdraw_label(id)
    }

    fn corrections(&self) -> Vec<(u64, usize)> {
        self.corrections.given().collect()
    }

    fn explain(&self, batch: &Batch<'_>) -> (Prediction, Vec<Part>) {
        self.explain_row(batch)
    }

    fn similar(&self, z: &[f32], most: usize) -> Vec<Similar> {
        self.similar_scenes(z, most)
    }

    fn kept_features(&self, id: u64) -> Result<(u64, Vec<f32>)> {
        let scene = self.kept.find(self.scene.taught_by(id))?;
        Ok((scene.id, scene.features()))
    }

    fn kept(&self) -> Vec<KeptScene> {
        self.kept_scenes()
    }

    fn reset(&mut self) {
        let shared = self.shared.take();
        *self = Self { shared, ..Self::new(&self.config, &self.head) };
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
        Vitals {
            prior_kl: self.prior.kl(),
            movement_max: self.movement.0,
            movement_mean: self.movement.1,
            tau_pred: self.sharpness.tau,
            tau_cal: self.tau_cal(),
            evidence_weight: if self.image.scale > 0.0 { self.image.trust() } else { 0.0 },
            restarts: self.restarts,
            state_bytes: self.recent.bytes()
                + self.labelled.bytes()
                + self.prior.bytes()
                + self.scene.bytes()
                + self.garbage.bytes()
                + self.halves.bytes()
                + self.watch.bytes()
                + self.sharpness.bytes()
                + self.kept.bytes()
                + self.corrections.bytes()
                + self.gate.bytes()
                + self.shared.as_ref().map_or(0, |shared| shared.bytes())
                + self.evidence.as_ref().map_or(0, |e| e.bytes()),
        }
    }

    fn layer(&self, _head: &Head) -> Option<Layer> {
        Some(self.linear_layer())
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        Some(self)
    }

    fn sharing_mut(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let movements = self.movements();
        let evidence: Vec<f64> = self.evidence.iter().flat_map(|e| e.counts()).collect();
        let prior = self.prior.current(&self.work.prior);
        ClassDrift::of_classes(&movements, &prior, &evidence)
    }
}
