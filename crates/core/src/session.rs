//! [`Session`]: the single door. What happens to a block of rows, from first to last:
//!
//! 1. [`Input::check`](crate::Input): sizes fit and times are finite; features were checked when they were made. After
//!    this nothing can fail.
//! 2. `Blocks`: the frozen head scores the rows.
//! 3. Known? If `unknown.score` is set, rows that fit no class are marked `unknown` and do not teach ([`crate::unknown`]).
//! 4. [`Adapter::step`]: the method answers, gates, accumulates and updates.
//! 5. [`Estimate`](crate::Estimate): how right the answers are, without labels.
//! 6. [`Guard`]: notes the answers. Every 64 rows, after 7, it judges them: if they collapse, the method returns to its
//!    last healthy state.
//! 7. [`Alarm`]: notes the scenes; if they come to differ from those before, an alarm is raised ([`crate::alarm`]).

use std::sync::Arc;

use crate::adapter::{
    Adapter, Answer, Batch, ClassDrift, Grouping, KeptScene, Memory, Prediction, ScoresRef,
};
use crate::alarm::{AlarmKind, AlarmRow, Alarms};
use crate::blocks::{Blocks, GUARD_ROWS, Part};
use crate::estimate::{self, ClassEstimate, Estimator};
use crate::guard::{Guard, GuardRow, Standing, Verdict};
use crate::sets::Sets;
use crate::step::ZeroShotAnswer;
use crate::unknown::Unknown;
use crate::{Alarm, Config, Error, Features, Head, Health, Input, Layer, Result, Row, Scores, State, Step};

/// A frozen head and the adapter that keeps it accurate on one stream. A clone is independent of the original.
#[derive(Clone)]
pub struct Session {
    pub(crate) head: Arc<Head>,
    pub(crate) config: Config,
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) unknown: Unknown,
    pub(crate) guard: Guard,
    pub(crate) alarms: Alarms,
    pub(crate) estimator: Estimator,
    /// `false` in benchmarks that measure what estimates cost.
    pub(crate) estimating: bool,
    /// Where sets of classes are asked for.
    pub(crate) sets: Option<Sets>,
    /// Last healthy state of the adapter; `None` is the start.
    pub(crate) healthy: Option<State>,
    /// Rows seen when the healthy state was remembered.
    pub(crate) healthy_at: u64,
    /// Id of the next sample.
    pub(crate) next_id: u64,
    pub(crate) totals: Totals,
    pub(crate) learning: bool,
}

/// Counts and maxima since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) admitted: u64,
    pub(crate) flips: u64,
    pub(crate) unknown: u64,
    pub(crate) scenes: u64,
    pub(crate) garbage: u64,
    /// Restarts of the method before the guard last changed its state.
    pub(crate) restarts: u64,
    pub(crate) max_prior_kl: f64,
    pub(crate) max_movement: f64,
}

impl Session {
    /// A session that has seen nothing.
    pub fn new(head: impl Into<Arc<Head>>, config: &Config) -> Result<Self> {
        let head = head.into();
        Ok(Self {
            adapter: config.method.build(&head)?,
            unknown: Unknown::new(&config.unknown, &head),
            guard: Guard::new(&config.guard, head.n_classes()),
            alarms: Alarms::new(&config.alarms),
            estimator: Estimator::new(head.n_classes(), head.dim()),
            estimating: true,
            sets: Sets::new(config.coverage),
            healthy: None,
            healthy_at: 0,
            next_id: 0,
            totals: Totals::default(),
            learning: true,
            config: config.clone(),
            head,
        })
    }

    /// Answers samples in arrival order and lets them teach. On an error nothing has changed.
    ///
    /// For a method whose card says [`Grouping::Independent`] the grouping into steps does not matter: the answers and
    /// the state are those of one sample at a time, bit for bit.
    pub fn step<'a>(&mut self, input: impl Into<Input<'a>>) -> Result<Step> {
        let input = input.into();
        self.check(&input)?;
        let head = self.head.clone();
        let mut answers = Answers::new(&input, head.n_classes());
        answers.keep_known = self.unknown.enabled();
        let mut weights = Scores::default();
        for block in Blocks::new(&head, &input, self.joint()).comparing(self.estimator.scenes()) {
            for rows in block.parts(self.next_id) {
                let part = block.part(rows.clone(), &mut weights);
                // Only the frozen model decides: learning must not make strangers look known.
                let verdicts = (0..part.rows()).map(|row| self.unknown.judge(part.seen(row)));
                let unknown = answers.take_verdicts(verdicts);
                let learn = self.may_learn(&part, &unknown);
                let mut batch = part.batch(self.next_id, &learn);
                batch.keep_probs = self.sets.is_some();
                let prediction = match self.guard.standing() {
                    Standing::ZeroShot => Prediction::frozen(&batch, self.adapter.rest(&batch)),
                    Standing::Healthy | Standing::Restored => self.adapter.step(&batch),
                };
                if let Some(sets) = &mut self.sets {
                    answers.push_sets(&prediction, |row, probs| sets.give(self.next_id + row as u64, probs));
                }
                let scenes = self.totals.scenes;
                self.count(&batch, &prediction, &unknown, block.halves(rows));
                self.look_out(&part, &batch, &prediction, &mut answers.alarms);
                self.next_id += batch.rows() as u64;
                if self.next_id.is_multiple_of(GUARD_ROWS) {
                    self.watch();
                    if let Some(sets) = &mut self.sets {
                        sets.believe(self.estimator.surplus());
                    }
                }
                answers.push(&batch, prediction, &unknown, scenes, true);
            }
            answers.push_zero_shot(block.zero_shot());
        }
        Ok(answers.into_step(self.health()))
    }

    /// The answers now, without learning from the rows. Changes nothing.
    pub fn predict<'a>(&self, input: impl Into<Input<'a>>) -> Result<Step> {
        let input = input.into();
        self.check(&input)?;
        let mut answers = Answers::new(&input, self.head.n_classes());
        answers.keep_known = self.unknown.enabled();
        let mut weights = Scores::default();
        let mut next_id = self.next_id;
        for block in Blocks::new(&self.head, &input, self.joint()) {
            for rows in block.parts(next_id) {
                let part = block.part(rows, &mut weights);
                let verdicts = (0..part.rows()).map(|row| self.unknown.is_unknown(part.seen(row)));
                let unknown = answers.take_verdicts(verdicts);
                let learn = self.may_learn(&part, &unknown);
                let mut batch = part.batch(next_id, &learn);
                batch.keep_probs = self.sets.is_some();
                let prediction = match self.guard.standing() {
                    Standing::ZeroShot => self.peek_frozen(&batch),
                    Standing::Healthy | Standing::Restored => self.adapter.predict(&batch),
                };
                if let Some(sets) = &self.sets {
                    answers.push_sets(&prediction, |_, probs| sets.of(probs));
                }
                next_id += batch.rows() as u64;
                answers.push(&batch, prediction, &unknown, self.totals.scenes, false);
            }
            answers.push_zero_shot(block.zero_shot());
        }
        Ok(answers.into_step(self.health()))
    }

    /// The frozen model's answers, under scenes as they are now. Changes nothing.
    pub(crate) fn peek_frozen(&self, batch: &Batch<'_>) -> Prediction {
        Prediction::frozen(
            batch,
            self.adapter.predict(batch).answers.iter().map(|answer| (answer.copy, answer.garbage)),
        )
    }

    /// Which rows of a part may teach.
    fn may_learn(&self, part: &Part<'_>, unknown: &[bool]) -> Vec<bool> {
        (0..unknown.len()).map(|row| self.learning && part.may_learn(row) && !unknown[row]).collect()
    }

    /// Lets rows teach; their answers are not kept. Tells which rows the gate admitted.
    pub fn observe(&mut self, features: &Features<'_>) -> Result<Vec<bool>> {
        let step = self.step(Input { keep_scores: false, ..Input::new(features) })?;
        Ok(step.rows.iter().map(|row| row.admitted).collect())
    }

    /// A delayed label for an earlier sample: it corrects the estimate of accuracy and the sets, and teaches. `false` if
    /// the method has no use for it, or learning is stopped; while learning is stopped it counts for nothing.
    pub fn feedback(&mut self, id: u64, label: usize) -> Result<bool> {
        let classes = self.head.n_classes();
        if label >= classes {
            return Err(Error::Label { label, classes });
        }
        if !self.learning {
            return Ok(false);
        }
        let used = self.adapter.feedback(id, label)?;
        self.estimator.label(id, label);
        if let Some(sets) = &mut self.sets {
            sets.label(id, label);
        }
        Ok(used)
    }

    /// A label for an earlier sample that counts at once: from the next row on, rows that look like the sample lean to its
    /// label by 4 to 9 nats (where the frozen model is surer than that it keeps its answer), and what the sample had taught
    /// by itself is withdrawn. A label for a near-copy is one for its scene. `false` if the method has no use for it, or
    /// learning is stopped.
    ///
    /// [`feedback`](Self::feedback) is for labels that only measure and calibrate.
    pub fn correct(&mut self, id: u64, label: usize) -> Result<bool> {
        let classes = self.head.n_classes();
        if label >= classes {
            return Err(Error::Label { label, classes });
        }
        if !self.learning {
            return Ok(false);
        }
        let used = self.adapter.correct(id, label)?;
        if used {
            self.guard.try_again();
        }
        Ok(used)
    }

    /// Takes back a label given with [`correct`](Self::correct): what it had changed is as if it had not been given, but for
    /// what later rows have taught meanwhile. `false` if there is none for this sample. While learning is stopped labels can
    /// be taken back all the same.
    pub fn withdraw(&mut self, id: u64) -> bool {
        self.adapter.withdraw(id)
    }

    /// The labels that count, by the ids of their samples, in the order in which they were given.
    pub fn corrections(&self) -> Vec<(u64, usize)> {
        self.adapter.corrections()
    }

    /// The earlier scenes whose features are kept, oldest first.
    pub fn kept(&self) -> Vec<KeptScene> {
        self.adapter.kept()
    }

    /// Which samples delayed labels can be for; `None` if the method has no use for labels.
    pub fn memory(&self) -> Option<Memory> {
        self.adapter.memory()
    }

    /// Whether a step or a prediction can take these samples. Both ask this before anything changes.
    pub fn check(&self, input: &Input<'_>) -> Result<()> {
        input.check(&self.head, self.adapter.card())
    }

    pub(crate) fn joint(&self) -> bool {
        self.adapter.card().grouping == Grouping::Joint
    }

    /// Notes the answers of a part, for health, estimates and guard. `halves` are the scores by half of the dimensions that
    /// are known.
    fn count<'a>(
        &mut self,
        batch: &Batch<'_>,
        prediction: &Prediction,
        unknown: &[bool],
        halves: impl Iterator<Item = (usize, &'a [f32])>,
    ) {
        if self.estimating {
            let answers = prediction.answers.iter().enumerate();
            let scenes = answers.filter(|(_, answer)| !answer.copy).map(|(row, _)| row);
            self.estimator.prepare(&batch.features, scenes, halves, &self.head);
        }
        for (row, answer) in prediction.answers.iter().enumerate() {
            let frozen = &batch.frozen[row];
            // The guard counts scenes: copies of one picture are one witness.
            if !answer.copy && !answer.garbage {
                let own = batch.zero_shot.row(row)[answer.label];
                self.guard.push(GuardRow {
                    adapted: answer.label as u32,
                    zero_shot: frozen.label as u32,
                    support: (own - frozen.log_sum).exp(),
                    frozen: frozen.prob,
                    admitted: answer.admitted,
                });
            }
            if self.estimating {
                self.estimator.push(
                    &estimate::EstimateRow {
                        id: batch.first_id + row as u64,
                        label: answer.label,
                        prob: answer.prob,
                        frozen_label: frozen.label,
                        frozen_prob: answer.prob_frozen,
                        copy: answer.copy,
                        unknown: unknown[row] || answer.garbage,
                        place: row,
                        features: batch.features.row(row),
                        logits: batch.zero_shot.row(row),
                    },
                    &self.head,
                );
            }
            self.totals.scenes += u64::from(begins_scene(batch, row, answer));
            self.totals.admitted += u64::from(answer.admitted);
            self.totals.flips += u64::from(answer.label != frozen.label);
            self.totals.unknown += u64::from(unknown[row]);
            self.totals.garbage += u64::from(answer.garbage);
        }
    }

    /// Shows the rows of a part to the alarms, but those that the caller marked. Rows that fit no class count: strangers
    /// are a change, too.
    fn look_out(
        &mut self,
        part: &Part<'_>,
        batch: &Batch<'_>,
        prediction: &Prediction,
        raised: &mut Vec<Alarm>,
    ) {
        for (row, answer) in prediction.answers.iter().enumerate().filter(|(row, _)| part.may_learn(*row)) {
            let scene = AlarmRow {
                id: batch.first_id + row as u64,
                features: batch.features.row(row),
                moments: batch.frozen[row].moments,
                class: batch.frozen[row].label as u32,
            };
            if let Some(alarm) = self.alarms.push(&scene, answer.copy) {
                if let Some(sets) = self.sets.as_mut().filter(|_| alarm.kind != AlarmKind::Frozen) {
                    sets.change(alarm.since);
                }
                raised.push(alarm);
            }
        }
    }

    /// Lets the guard decide: remember the state, return to a healthy one, or go on.
    fn watch(&mut self) {
        let vitals = self.adapter.vitals();
        self.totals.max_prior_kl = self.totals.max_prior_kl.max(vitals.prior_kl);
        self.totals.max_movement = self.totals.max_movement.max(vitals.movement_max);
        match self.guard.check(!self.adapter.corrections().is_empty()) {
            Verdict::Fine => {}
            // A copy takes time in proportion to the number of classes, so more classes mean fewer copies.
            Verdict::Healthy => {
                let spacing = self.healthy_at.clamp(1024, 16_384).max(self.head.n_classes() as u64);
                if self.config.guard.enabled && self.next_id >= self.healthy_at + spacing {
                    self.healthy = Some(self.adapter.checkpoint());
                    self.healthy_at = self.next_id;
                }
            }
            Verdict::Restore | Verdict::FallBack => {
                self.totals.restarts += vitals.restarts;
                // Without a healthy state, all that was learnt from the stream goes; what somebody said stays.
                let healthy = self.healthy.take().unwrap_or_default();
                if self.adapter.load(&healthy).is_err() {
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
        self.unknown = Unknown::new(&self.config.unknown, &self.head);
        self.guard = Guard::new(&self.config.guard, self.head.n_classes());
        self.alarms = Alarms::new(&self.config.alarms);
        self.estimator = Estimator::new(self.head.n_classes(), self.head.dim());
        self.sets = Sets::new(self.config.coverage);
        self.healthy = None;
        self.healthy_at = 0;
        self.next_id = 0;
        self.totals = Totals::default();
    }

    /// Health now.
    pub fn health(&self) -> Health {
        let vitals = self.adapter.vitals();
        let estimates = self.estimator.estimates();
        let sets = self.sets.as_ref().map(Sets::health).unwrap_or_default();
        Health {
            seen: self.next_id,
            scenes: self.totals.scenes,
            rows_per_scene: self.next_id as f64 / self.totals.scenes.max(1) as f64,
            restarts: self.totals.restarts + vitals.restarts,
            garbage: self.totals.garbage,
            admitted_share: self.guard.admitted_share(),
            flip_share: self.guard.flip_share(),
            flips: self.totals.flips,
            unknown_share: self.unknown.rejected(),
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
            alarms: self.alarms.raised(),
            alarms_ready: self.alarms.is_ready(),
            guard_fired: self.guard.fired(),
            estimate: estimates.whole[0],
            estimate_zero_shot: estimates.whole[1],
            estimate_recent: estimates.recent[0],
            estimate_recent_zero_shot: estimates.recent[1],
            estimate_labels: estimates.labels,
            coverage: sets.coverage,
            coverage_promise: sets.promise,
            coverage_labels: sets.labels,
            coverage_held: sets.held,
            set_size: sets.size,
            state_bytes: vitals.state_bytes
                + self.guard.bytes()
                + self.alarms.bytes()
                + self.estimator.bytes()
                + self.sets.as_ref().map_or(0, Sets::bytes)
                + self.healthy.as_ref().map_or(0, State::bytes),
        }
    }

    /// The last alarms, oldest first: at most 16. [`Step::alarms`] has those of a step.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.kept().copied().collect()
    }

    /// Per class: how far its prototype moved, its prior, its evidence. Empty where the method has none.
    pub fn per_class(&self) -> Vec<ClassDrift> {
        self.adapter.per_class()
    }

    /// The answers as they are now, as one linear layer for a device that cannot adapt. A near-copy of the scene at hand
    /// is answered by the layer as every other row.
    pub fn layer(&self) -> Result<Layer> {
        if self.head.anchors_apart().is_some() {
            let reason = "the head keeps several anchors per class apart; fold them into one each first";
            return Err(Error::NoLayer { reason: reason.into() });
        }
        if self.guard.standing() == Standing::ZeroShot {
            return Ok(Layer::frozen(&self.head).centred());
        }
        self.adapter.layer(&self.head).map(Layer::centred).ok_or_else(|| {
            let method = self.config.method.name();
            Error::NoLayer { reason: format!("the answers of the method {method} are no linear layer") }
        })
    }

    /// Per class: how often the answers that name it are right, by estimate.
    pub fn class_estimates(&self) -> Vec<ClassEstimate> {
        self.estimator.per_class()
    }

    /// What the estimate of the stream's accuracy is made of, for fits of its constants.
    #[doc(hidden)]
    pub fn estimate_ingredients(&self) -> [f64; 11] {
        self.estimator.ingredients()
    }

    /// The session without estimates of accuracy, for benchmarks of what they cost.
    #[doc(hidden)]
    pub fn without_estimates(self) -> Self {
        Self { estimating: false, ..self }
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

/// The answers of a step, gathered part by part.
pub(crate) struct Answers {
    rows: Vec<Row>,
    sets: Vec<Vec<u32>>,
    /// Scores of *known*, if wanted.
    known: Vec<f32>,
    keep_known: bool,
    zero_shot: Scores,
    prediction: Prediction,
    keep_scores: bool,
    alarms: Vec<Alarm>,
}

impl Answers {
    pub(crate) fn new(input: &Input<'_>, classes: usize) -> Self {
        Self {
            rows: Vec::with_capacity(input.features.rows()),
            sets: Vec::new(),
            known: Vec::new(),
            keep_known: false,
            zero_shot: Scores::zeros(0, classes),
            prediction: Prediction { scores: Scores::zeros(0, classes), ..Default::default() },
            keep_scores: input.keep_scores,
            alarms: Vec::new(),
        }
    }

    /// Takes in the answers of a part. `scenes` began before it; `in_turn` if its rows follow one another, and do not
    /// stand each by itself.
    pub(crate) fn push(
        &mut self,
        batch: &Batch<'_>,
        prediction: Prediction,
        unknown: &[bool],
        mut scenes: u64,
        in_turn: bool,
    ) {
        let before = scenes;
        for (row, (answer, frozen)) in prediction.answers.iter().zip(batch.frozen).enumerate() {
            let begins_scene = begins_scene(batch, row, answer);
            scenes = if in_turn { scenes } else { before } + u64::from(begins_scene);
            self.rows.push(Row {
                id: batch.first_id + row as u64,
                label: answer.label,
                prob: answer.prob,
                prob_pred: answer.prob_pred,
                zero_shot: ZeroShotAnswer { label: frozen.label, prob: frozen.prob },
                admitted: answer.admitted,
                unknown: unknown[row],
                garbage: answer.garbage,
                scene: scenes.saturating_sub(1),
                begins_scene,
            });
        }
        if self.keep_scores {
            // A step has the scores and computes probabilities from them: as many numbers again are not kept.
            self.prediction.append(Prediction { probs: None, ..prediction });
        }
    }

    /// Takes in what the judge says of a part's rows: which are unknown.
    fn take_verdicts(&mut self, verdicts: impl Iterator<Item = (bool, f32)>) -> Vec<bool> {
        let (unknown, scores): (Vec<bool>, Vec<f32>) = verdicts.unzip();
        if self.keep_known {
            self.known.extend(scores);
        }
        unknown
    }

    /// Takes in the sets of a part's rows, each from its probabilities.
    fn push_sets(&mut self, prediction: &Prediction, mut set: impl FnMut(usize, &[f32]) -> Vec<u32>) {
        let mut buffer = Vec::new();
        for row in 0..prediction.answers.len() {
            self.sets.push(set(row, prediction.emitted(row, &mut buffer)));
        }
    }

    pub(crate) fn push_zero_shot(&mut self, scores: ScoresRef<'_>) {
        if self.keep_scores {
            self.zero_shot.append(scores);
        }
    }

    pub(crate) fn into_step(self, health: Health) -> Step {
        Step {
            rows: self.rows,
            sets: self.sets,
            known: self.known,
            zero_shot: self.zero_shot,
            prediction: self.prediction,
            alarms: self.alarms,
            health,
        }
    }
}

/// Whether a row begins a scene: it may teach, and is no copy. Where a method knows no scenes, no row is a copy.
fn begins_scene(batch: &Batch<'_>, row: usize, answer: &Answer) -> bool {
    batch.may_learn(row) && !answer.copy
}
