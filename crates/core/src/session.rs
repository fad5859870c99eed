//! [`Session`]: the single door. A step is the whole program in one screen:
//!
//! ```text
//! features ─► zero-shot scores ─► known? ─► adapter (answer, gate, accumulate, update) ─► guard ─► step
//! ```

use std::sync::Arc;

use serde::Serialize;

use crate::adapter::{Adapter, Answer, Batch, ClassDrift, Prediction, Rows, ScoresRef, ViewsRef};
use crate::guard::{Guard, Seen, Standing, Verdict};
use crate::scores::{Summary, softmax_from, top_k, weigh};
use crate::state::{STATE_VERSION, differing_setting};
use crate::unknown::Unknown;
use crate::{Config, Error, Features, Head, Result, Scores, State};

/// Rows that share one pass over the frozen head; larger blocks are worked through in pieces of this size.
const BLOCK: usize = 128;

/// Rows that go through the adapter at once: what is computed for them stays in the cache until it is read.
const PART: usize = 32;

/// A frozen head and the adapter that keeps it accurate on one stream.
pub struct Session {
    head: Arc<Head>,
    config: Config,
    adapter: Box<dyn Adapter>,
    unknown: Unknown,
    guard: Guard,
    /// Last healthy state of the adapter; `None` is the start.
    healthy: Option<State>,
    healthy_bytes: usize,
    /// Sample count when it was remembered.
    healthy_at: u64,
    /// Id of the next sample.
    next_id: u64,
    totals: Totals,
    learning: bool,
}

/// Counts and maxima since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    admitted: u64,
    flips: u64,
    unknown: u64,
    max_prior_kl: f64,
    max_movement: f64,
}

/// Samples on their way in: features, and what the caller knows about them.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// One unit row per sample.
    pub features: &'a Features<'a>,
    /// The frozen model's scores for the rows, [`Head::zero_shot`] of them, where the caller has them: they need
    /// no session, so that many blocks can be scored at once beside a stream. They are taken at their word.
    pub zero_shot: Option<&'a Scores>,
    /// `false` marks a row that must not teach, an upstream detector's word.
    pub learn: Option<&'a [bool]>,
    /// Arrival time of each row in seconds, for updates by time. Never decreasing within a session.
    pub times: Option<&'a [f64]>,
    /// Extra views (weak augmentations) of the samples, all rows one after another …
    pub views: Option<&'a Features<'a>>,
    /// … and how many views each sample has.
    pub view_counts: Option<&'a [usize]>,
    /// Whether the step keeps all scores (rows × classes) or only the answers.
    pub keep_scores: bool,
}

impl<'a> Input<'a> {
    /// Plain rows.
    pub fn new(features: &'a Features<'a>) -> Self {
        Self {
            features,
            zero_shot: None,
            learn: None,
            times: None,
            views: None,
            view_counts: None,
            keep_scores: true,
        }
    }
}

/// The zero-shot answer for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ZeroShotAnswer {
    /// The class the frozen model answers.
    pub label: usize,
    /// Its probability.
    pub prob: f32,
}

/// The answer for a row, the adapted one beside the frozen one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Id of the sample, for feedback: samples are numbered in arrival order.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its calibrated probability (τ_cal).
    pub prob: f32,
    /// Its probability at the prediction temperature (τ_pred).
    pub prob_pred: f32,
    /// What the frozen model says.
    pub zero_shot: ZeroShotAnswer,
    /// Whether the gate admitted the sample as a teacher.
    pub admitted: bool,
    /// Whether the sample fits no class.
    pub unknown: bool,
}

/// Which probabilities are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// The ones behind the answer (τ_pred).
    Pred,
    /// The calibrated ones (τ_cal), for consumers.
    Cal,
}

/// What came of one block of samples.
#[derive(Clone, Debug)]
pub struct Step {
    /// One answer per sample.
    pub rows: Vec<Row>,
    /// The frozen model's logits; empty unless scores are kept.
    pub zero_shot: Scores,
    /// The adapter's logits and temperatures; empty unless scores are kept.
    pub prediction: Prediction,
    /// Health after this step.
    pub health: Health,
}

impl Step {
    /// Probabilities of all classes for a row; the answer's is the row's own, to the last bit. Needs kept scores.
    pub fn probs(&self, row: usize, temperature: Temperature) -> Vec<f32> {
        let scores = &self.prediction.scores;
        let mut probs = vec![0.0; scores.classes()];
        let answer = &self.rows[row];
        let (logits, tau, prob) = match temperature {
            Temperature::Pred => (scores, 1.0, answer.prob_pred),
            Temperature::Cal => {
                let logits = self.prediction.calibrated.as_ref().unwrap_or(scores);
                (logits, self.prediction.tau_cal[row], answer.prob)
            }
        };
        softmax_from(logits.row(row), tau, (answer.label, prob), &mut probs);
        probs
    }

    /// The `k` best classes of a row with their calibrated probabilities. Needs kept scores.
    pub fn top(&self, row: usize, k: usize) -> Vec<(usize, f32)> {
        let probs = self.probs(row, Temperature::Cal);
        top_k(self.prediction.scores.row(row), k).into_iter().map(|(c, _)| (c, probs[c])).collect()
    }
}

/// What operators watch when there are no labels. Shares are over the guard's window, maxima over the stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Health {
    /// Samples answered.
    pub seen: u64,
    /// Share of recent samples that the gate admitted.
    pub admitted_share: f64,
    /// Share of recent samples answered differently from zero-shot.
    pub flip_share: f64,
    /// Samples answered differently from zero-shot, since the start.
    pub flips: u64,
    /// Running share of unknown samples.
    pub unknown_share: f64,
    /// KL(π‖π⁰) of the class prior.
    pub prior_kl: f64,
    /// Largest prototype movement over the classes.
    pub movement_max: f64,
    /// Mean prototype movement.
    pub movement_mean: f64,
    /// Temperature multiplier of the answer.
    pub tau_pred: f64,
    /// Temperature multiplier of the calibrated probabilities.
    pub tau_cal: f64,
    /// How much the evidence from the stream says: 0 is nothing, 1 is as much as it was fitted to.
    pub evidence_weight: f64,
    /// Effective number of classes among recent adapted answers.
    pub effective_classes: f64,
    /// The same for the zero-shot answers.
    pub effective_classes_zero_shot: f64,
    /// Largest prior KL seen at a check.
    pub max_prior_kl: f64,
    /// Largest prototype movement seen at a check.
    pub max_movement: f64,
    /// Whether the session adapts, was restored, or fell back to zero-shot.
    pub standing: Standing,
    /// How often the collapse guard fired.
    pub guard_fired: u64,
    /// Bytes carried from sample to sample.
    pub state_bytes: usize,
}

impl Session {
    /// A session that has seen nothing.
    pub fn new(head: impl Into<Arc<Head>>, config: &Config) -> Result<Self> {
        let head = head.into();
        Ok(Self {
            adapter: config.method.build(&head)?,
            unknown: Unknown::new(&config.unknown),
            guard: Guard::new(&config.guard, head.n_classes()),
            healthy: None,
            healthy_bytes: 0,
            healthy_at: 0,
            next_id: 0,
            totals: Totals::default(),
            learning: true,
            config: config.clone(),
            head,
        })
    }

    /// Continues from a saved state, under the configuration that the state carries.
    pub fn resume(head: impl Into<Arc<Head>>, state: &State) -> Result<Self> {
        let config =
            state.metadata.get("config").ok_or_else(|| Error::state("it carries no configuration"))?;
        let mut session = Self::new(head, &Config::from_toml(config)?)?;
        session.load(state)?;
        Ok(session)
    }

    /// Answers a block of samples in arrival order and lets them teach.
    ///
    /// For a method whose card says `Rows::Independent` the grouping into blocks does not matter: the answers
    /// and the state are those of one sample at a time, bit for bit.
    pub fn step(&mut self, features: &Features<'_>) -> Result<Step> {
        self.step_with(&Input::new(features))
    }

    /// [`step`](Self::step) with all that the caller knows about the samples. On an error nothing has changed.
    pub fn step_with(&mut self, input: &Input<'_>) -> Result<Step> {
        self.check(input)?;
        let joint = self.adapter.card().rows == Rows::Joint;
        let classes = self.head.n_classes();
        let mut rows = Vec::with_capacity(input.features.rows());
        let mut zero_shot = Scores::zeros(0, classes);
        let mut kept = Prediction { scores: Scores::zeros(0, classes), ..Default::default() };
        self.for_each_block(
            input,
            joint,
            |session, batch| {
                // Judged by the frozen model, so that adaptation cannot talk itself into accepting strangers.
                let unknown: Vec<bool> = batch.frozen.iter().map(|s| session.unknown.judge(s)).collect();
                let learn: Vec<bool> = (0..batch.rows())
                    .map(|i| session.learning && batch.may_learn(i) && !unknown[i])
                    .collect();
                let batch = Batch { learn: Some(&learn), ..batch.clone() };
                // The guard looks at fixed sample counts, so a block is cut there.
                let mut done = 0;
                while done < batch.rows() {
                    let to_check = (Guard::EVERY - session.next_id % Guard::EVERY) as usize;
                    let cut = if joint { batch.rows() } else { batch.rows().min(done + to_check) };
                    let part = batch.slice(done..cut);
                    let prediction = session.advance(&part)?;
                    session.finish(&part, &prediction, &unknown[done..cut], &mut rows);
                    if input.keep_scores {
                        kept.append(prediction);
                    }
                    done = cut;
                }
                Ok(())
            },
            &mut zero_shot,
        )?;
        Ok(Step { rows, zero_shot, prediction: kept, health: self.health() })
    }

    /// The answers now, without learning from the rows. Changes nothing.
    pub fn predict(&self, features: &Features<'_>) -> Result<Step> {
        let input = Input::new(features);
        self.check(&input)?;
        let zero_shot = self.head.zero_shot(features)?;
        let mut weights = Scores::default();
        let frozen = weigh_rows((&zero_shot).into(), &mut weights);
        let batch = self.batch(&input, (&zero_shot).into(), &frozen, &weights, None);
        let prediction = match self.guard.standing() {
            Standing::ZeroShot => frozen_prediction(&batch),
            _ => self.adapter.predict(&batch)?,
        };
        let row = |(i, answer): (usize, &Answer)| {
            let unknown = self.unknown.is_unknown(&frozen[i]);
            Row {
                id: self.next_id + i as u64,
                label: answer.label,
                prob: answer.prob,
                prob_pred: answer.prob_pred,
                zero_shot: ZeroShotAnswer { label: frozen[i].label, prob: frozen[i].prob },
                admitted: answer.admitted && self.learning && !unknown,
                unknown,
            }
        };
        let rows = prediction.answers.iter().enumerate().map(row).collect();
        Ok(Step { rows, zero_shot, prediction, health: self.health() })
    }

    /// Lets rows teach; their answers are not kept.
    pub fn observe(&mut self, features: &Features<'_>) -> Result<Vec<bool>> {
        let step = self.step_with(&Input { keep_scores: false, ..Input::new(features) })?;
        Ok(step.rows.iter().map(|r| r.admitted).collect())
    }

    /// A delayed label for an earlier sample. `false` if the method has no use for labels, or learning is stopped.
    pub fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let classes = self.head.n_classes();
        if label >= classes {
            return Err(Error::Label { label, classes });
        }
        if !self.learning {
            return Ok(false);
        }
        self.adapter.feedback(id, label)
    }

    /// One part of a block through the adapter, or around it when the session has fallen back.
    fn advance(&mut self, batch: &Batch<'_>) -> Result<Prediction> {
        match self.guard.standing() {
            Standing::ZeroShot => Ok(frozen_prediction(batch)),
            _ => self.adapter.step(batch),
        }
    }

    /// Notes the answers of a part of a block; at a check, lets the guard decide.
    fn finish(&mut self, batch: &Batch<'_>, prediction: &Prediction, unknown: &[bool], rows: &mut Vec<Row>) {
        for (i, answer) in prediction.answers.iter().enumerate() {
            let frozen = &batch.frozen[i];
            let own = batch.zero_shot.row(i)[answer.label];
            self.guard.push(Seen {
                adapted: answer.label as u32,
                zero_shot: frozen.label as u32,
                support: (own - frozen.log_sum).exp(),
                frozen: frozen.prob,
                admitted: answer.admitted,
            });
            self.totals.admitted += u64::from(answer.admitted);
            self.totals.flips += u64::from(answer.label != frozen.label);
            self.totals.unknown += u64::from(unknown[i]);
            rows.push(Row {
                id: self.next_id,
                label: answer.label,
                prob: answer.prob,
                prob_pred: answer.prob_pred,
                zero_shot: ZeroShotAnswer { label: frozen.label, prob: frozen.prob },
                admitted: answer.admitted,
                unknown: unknown[i],
            });
            self.next_id += 1;
        }
        if self.next_id.is_multiple_of(Guard::EVERY) {
            self.watch();
        }
    }

    fn watch(&mut self) {
        let vitals = self.adapter.vitals();
        self.totals.max_prior_kl = self.totals.max_prior_kl.max(vitals.prior_kl);
        self.totals.max_movement = self.totals.max_movement.max(vitals.movement_max);
        match self.guard.check() {
            Verdict::Fine => {}
            // A copy costs time in proportion to the classes, so it is made less often the more there are.
            Verdict::Healthy => {
                let spacing = self.healthy_at.clamp(1024, 16_384).max(self.head.n_classes() as u64);
                if self.config.guard.enabled && self.next_id >= self.healthy_at + spacing {
                    let copy = self.adapter.checkpoint();
                    self.healthy_bytes = copy.bytes();
                    self.healthy = Some(copy);
                    self.healthy_at = self.next_id;
                }
            }
            Verdict::Restore | Verdict::FallBack => {
                let healthy = self.healthy.take();
                self.healthy_bytes = 0;
                if healthy.is_none_or(|state| self.adapter.load(&state).is_err()) {
                    self.adapter.reset();
                }
            }
        }
    }

    /// Stops or resumes learning, from samples and from labels; answers go on either way.
    pub fn set_learning(&mut self, learning: bool) {
        self.learning = learning;
    }

    /// Whether samples teach.
    pub fn learning(&self) -> bool {
        self.learning
    }

    /// Back to the start. Ids start again, too.
    pub fn reset(&mut self) {
        self.adapter.reset();
        self.unknown = Unknown::new(&self.config.unknown);
        self.guard = Guard::new(&self.config.guard, self.head.n_classes());
        self.healthy = None;
        self.healthy_bytes = 0;
        self.healthy_at = 0;
        self.next_id = 0;
        self.totals = Totals::default();
    }

    /// Everything needed to continue bit for bit.
    pub fn state(&self) -> State {
        let mut state = self.adapter.save();
        state.metadata.insert("format".into(), format!("ultta-state-{STATE_VERSION}"));
        state.metadata.insert("head".into(), self.head.digest());
        state.metadata.insert("config".into(), self.config.to_toml());
        state.metadata.insert("settings".into(), self.config.state_settings().to_string());
        state.metadata.insert("method".into(), self.adapter.card().name.into());
        let t = &self.totals;
        state.put("session.counts", &[self.next_id, t.admitted, t.flips, t.unknown, self.healthy_at]);
        state.put("session.maxima", &[t.max_prior_kl, t.max_movement]);
        self.unknown.save(&mut state);
        self.guard.save(&mut state);
        if let Some(healthy) = &self.healthy {
            state.put_under("healthy.", healthy.clone());
        }
        state
    }

    /// Continues from a saved state, under this session's own configuration. Only settings that the saved numbers
    /// depend on must be the same. On an error nothing has changed.
    pub fn load(&mut self, state: &State) -> Result<()> {
        let meta = |key: &str| state.metadata.get(key).map(String::as_str).unwrap_or("");
        if meta("format") != format!("ultta-state-{STATE_VERSION}") {
            return Err(Error::Version { expected: STATE_VERSION, got: meta("format").to_string() });
        }
        let digest = self.head.digest();
        if meta("head") != digest {
            return Err(Error::OtherHead { expected: digest, got: meta("head").to_string() });
        }
        let ours = self.config.state_settings();
        if meta("settings").parse().ok().as_ref() != Some(&ours) {
            return Err(Error::OtherConfig { key: differing_setting(&ours.to_string(), meta("settings")) });
        }
        state.check_finite()?;
        let mut fresh = Self::new(self.head.clone(), &self.config)?;
        fresh.learning = self.learning;
        fresh.adapter.load(state)?;
        fresh.unknown.load(state)?;
        fresh.guard.load(state)?;
        if state.any_under("session.") {
            let [next_id, admitted, flips, unknown, healthy_at] = state.counts("session.counts")?;
            let &[max_prior_kl, max_movement] = state.get::<f64>("session.maxima")? else {
                return Err(Error::state("session.maxima: expected 2 values"));
            };
            (fresh.next_id, fresh.healthy_at) = (next_id, healthy_at);
            fresh.totals = Totals { admitted, flips, unknown, max_prior_kl, max_movement };
        }
        let healthy = state.under("healthy.");
        if !healthy.tensors.is_empty() {
            self.config.method.build(&self.head)?.load(&healthy)?;
            fresh.healthy_bytes = healthy.bytes();
            fresh.healthy = Some(healthy);
        }
        *self = fresh;
        Ok(())
    }

    /// Health now.
    pub fn health(&self) -> Health {
        let vitals = self.adapter.vitals();
        Health {
            seen: self.next_id,
            admitted_share: self.guard.admitted_share(),
            flip_share: self.guard.flip_share(),
            flips: self.totals.flips,
            unknown_share: self.unknown.share(),
            prior_kl: vitals.prior_kl,
            movement_max: vitals.movement_max,
            movement_mean: vitals.movement_mean,
            tau_pred: vitals.tau_pred,
            tau_cal: vitals.tau_cal,
            evidence_weight: vitals.evidence_weight,
            effective_classes: self.guard.effective_adapted(),
            effective_classes_zero_shot: self.guard.effective_zero_shot(),
            max_prior_kl: self.totals.max_prior_kl.max(vitals.prior_kl),
            max_movement: self.totals.max_movement.max(vitals.movement_max),
            standing: self.guard.standing(),
            guard_fired: self.guard.fired(),
            state_bytes: vitals.state_bytes + self.guard.bytes() + self.healthy_bytes,
        }
    }

    /// Per class: how far its prototype moved, its prior, its evidence. Empty where the method has none.
    pub fn per_class(&self) -> Vec<ClassDrift> {
        self.adapter.per_class()
    }

    /// Samples admitted as teachers since the start.
    pub fn admitted(&self) -> u64 {
        self.totals.admitted
    }

    /// Samples judged unknown since the start.
    pub fn unknown(&self) -> u64 {
        self.totals.unknown
    }

    /// The head.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// The resolved configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Id of the next sample.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Whether a step can take these samples: what can be wrong with them is found before anything changes.
    pub fn check(&self, input: &Input<'_>) -> Result<()> {
        let rows = input.features.rows();
        let total = |counts: &[usize]| counts.iter().fold(0, |n: usize, &c| n.saturating_add(c));
        let shape = |what, expected, got| {
            if expected == got { Ok(()) } else { Err(Error::Shape { what, expected, got }) }
        };
        shape("feature dimension", self.head.dim(), input.features.dim())?;
        if let Some(scores) = input.zero_shot {
            shape("classes of the zero-shot scores", self.head.n_classes(), scores.classes())?;
            shape("rows of the zero-shot scores", rows, scores.rows())?;
        }
        if let Some(learn) = input.learn {
            shape("learn marks", rows, learn.len())?;
        }
        if let Some(times) = input.times {
            shape("times", rows, times.len())?;
            if let Some(row) = times.iter().position(|t| !t.is_finite()) {
                return Err(Error::NotFinite { what: "times", row });
            }
        }
        if let Some(views) = input.views {
            shape("dimension of the views", self.head.dim(), views.dim())?;
            let counts = input.view_counts.unwrap_or(&[]);
            shape("view counts", rows, counts.len())?;
            shape("views", total(counts), views.rows())?;
        } else {
            shape("views", total(input.view_counts.unwrap_or(&[])), 0)?;
        }
        if self.adapter.card().needs_views && input.views.is_none() {
            return Err(Error::Shape {
                what: "views (this method needs some of every sample)",
                expected: 1,
                got: 0,
            });
        }
        Ok(())
    }

    /// Computes zero-shot scores piece by piece, where they are not given, and hands each piece on as a batch.
    fn for_each_block(
        &mut self,
        input: &Input<'_>,
        joint: bool,
        mut work: impl FnMut(&mut Self, &Batch<'_>) -> Result<()>,
        kept: &mut Scores,
    ) -> Result<()> {
        let rows = input.features.rows();
        let (block, part) = if joint { (rows.max(1), rows.max(1)) } else { (BLOCK, PART) };
        let mut weights = Scores::default();
        let mut first_view = 0;
        for start in (0..rows).step_by(block) {
            let end = rows.min(start + block);
            let own;
            let zero_shot = match input.zero_shot {
                Some(scores) => ScoresRef::from(scores).slice(start..end),
                None => {
                    own = self.head.zero_shot(&input.features.slice(start..end))?;
                    ScoresRef::from(&own)
                }
            };
            for from in (start..end).step_by(part) {
                let to = end.min(from + part);
                let features = input.features.slice(from..to);
                let scores = zero_shot.slice(from - start..to - start);
                let frozen = weigh_rows(scores, &mut weights);
                let part = Input {
                    features: &features,
                    learn: input.learn.map(|v| &v[from..to]),
                    times: input.times.map(|v| &v[from..to]),
                    view_counts: input.view_counts.map(|v| &v[from..to]),
                    ..*input
                };
                let views = Views::of(&self.head, &part, &mut first_view)?;
                let batch = self.batch(&part, scores, &frozen, &weights, views.as_ref());
                work(self, &batch)?;
            }
            if input.keep_scores {
                kept.append(zero_shot);
            }
        }
        Ok(())
    }

    fn batch<'a>(
        &self,
        input: &Input<'a>,
        zero_shot: ScoresRef<'a>,
        frozen: &'a [Summary],
        weights: &'a Scores,
        views: Option<&'a Views<'a>>,
    ) -> Batch<'a> {
        Batch {
            first_id: self.next_id,
            features: input.features.clone(),
            zero_shot,
            frozen,
            weights: weights.into(),
            learn: input.learn,
            times: input.times,
            keep_scores: input.keep_scores,
            views: views.map(|v| ViewsRef {
                features: &v.features,
                zero_shot: &v.zero_shot,
                offsets: &v.offsets,
            }),
        }
    }
}

impl Clone for Session {
    /// A second session in the same state, that goes its own way from here.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.head.clone(), &self.config).expect("the configuration was valid");
        copy.load(&self.state()).expect("a session's own state fits it");
        copy.learning = self.learning;
        copy
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("method", &self.adapter.card().name)
            .field("classes", &self.head.n_classes())
            .field("dim", &self.head.dim())
            .field("seen", &self.next_id)
            .finish()
    }
}

/// The views of a block with the frozen model's scores for them.
struct Views<'a> {
    features: Features<'a>,
    zero_shot: Scores,
    offsets: Vec<usize>,
}

impl<'a> Views<'a> {
    fn of(head: &Head, input: &Input<'a>, first_view: &mut usize) -> Result<Option<Self>> {
        let (Some(views), Some(counts)) = (input.views, input.view_counts) else { return Ok(None) };
        let mut offsets = vec![0];
        for &count in counts {
            offsets.push(offsets[offsets.len() - 1] + count);
        }
        let end = *first_view + offsets[offsets.len() - 1];
        let features = views.slice(*first_view..end).into_owned();
        *first_view = end;
        Ok(Some(Self { zero_shot: head.zero_shot(&features)?, features, offsets }))
    }
}

/// Summary of each row; writes exp(logit − best) to `weights`.
fn weigh_rows(scores: ScoresRef<'_>, weights: &mut Scores) -> Vec<Summary> {
    weights.resize(scores.rows(), scores.classes());
    (0..scores.rows()).map(|r| weigh(scores.row(r), weights.row_mut(r))).collect()
}

/// The frozen model's answers in the shape of a prediction.
fn frozen_prediction(batch: &Batch<'_>) -> Prediction {
    Prediction::from_scores(batch.zero_shot.to_scores())
}
