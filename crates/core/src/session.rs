//! [`Session`]: the single door. What happens to a block of rows, from first to last:
//!
//! 1. [`Input::check`](crate::Input): sizes fit and numbers are finite. After this nothing can fail.
//! 2. `Blocks`: the frozen head scores the rows.
//! 3. Known? Rows that fit no class are marked `unknown` and do not teach ([`crate::unknown`]).
//! 4. [`Adapter::step`]: the method answers, gates, accumulates and updates.
//! 5. [`Guard`]: notes the answers; if they collapse, the method returns to its last healthy state.

use std::sync::Arc;

use crate::adapter::{Adapter, Answer, Batch, ClassDrift, Grouping, Memory, Prediction, ScoresRef};
use crate::blocks::{Blocks, GUARD_ROWS};
use crate::guard::{Answered, Guard, Standing, Verdict};
use crate::step::ZeroShotAnswer;
use crate::unknown::Unknown;
use crate::{Config, Error, Features, Head, Health, Input, Result, Row, Scores, State, Step};

/// A frozen head and the adapter that keeps it accurate on one stream. A clone is independent of the original.
#[derive(Clone)]
pub struct Session {
    pub(crate) head: Arc<Head>,
    pub(crate) config: Config,
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) unknown: Unknown,
    pub(crate) guard: Guard,
    /// Last healthy state of the adapter; `None` is the start.
    pub(crate) healthy: Option<State>,
    /// Sample count when the healthy state was remembered.
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
            unknown: Unknown::new(&config.unknown),
            guard: Guard::new(&config.guard, head.n_classes()),
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
        let mut weights = Scores::default();
        for block in Blocks::new(&head, &input, self.joint()) {
            for rows in block.parts(self.next_id) {
                let part = block.part(rows, &mut weights);
                // Judged by the frozen model alone: what was learnt cannot make an unknown sample look known.
                let unknown: Vec<bool> = part.frozen.iter().map(|row| self.unknown.judge(row)).collect();
                let learn: Vec<bool> = (0..unknown.len())
                    .map(|row| self.learning && part.may_learn(row) && !unknown[row])
                    .collect();
                let batch = part.batch(self.next_id, &learn);
                let prediction = match self.guard.standing() {
                    Standing::ZeroShot => Prediction::frozen(&batch),
                    Standing::Healthy | Standing::Restored => self.adapter.step(&batch),
                };
                let scenes = self.totals.scenes;
                self.count(&batch, &prediction, &unknown);
                self.next_id += batch.rows() as u64;
                if self.next_id.is_multiple_of(GUARD_ROWS) {
                    self.watch();
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
        let mut weights = Scores::default();
        let mut next_id = self.next_id;
        for block in Blocks::new(&self.head, &input, self.joint()) {
            for rows in block.parts(next_id) {
                let part = block.part(rows, &mut weights);
                let unknown: Vec<bool> = part.frozen.iter().map(|row| self.unknown.is_unknown(row)).collect();
                let learn: Vec<bool> = (0..unknown.len())
                    .map(|row| self.learning && part.may_learn(row) && !unknown[row])
                    .collect();
                let batch = part.batch(next_id, &learn);
                let prediction = match self.guard.standing() {
                    Standing::ZeroShot => Prediction::frozen(&batch),
                    Standing::Healthy | Standing::Restored => self.adapter.predict(&batch),
                };
                next_id += batch.rows() as u64;
                answers.push(&batch, prediction, &unknown, self.totals.scenes, false);
            }
            answers.push_zero_shot(block.zero_shot());
        }
        Ok(answers.into_step(self.health()))
    }

    /// Lets rows teach; their answers are not kept. Tells which rows the gate admitted.
    pub fn observe(&mut self, features: &Features<'_>) -> Result<Vec<bool>> {
        let step = self.step(Input { keep_scores: false, ..Input::new(features) })?;
        Ok(step.rows.iter().map(|row| row.admitted).collect())
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

    /// Which samples delayed labels can be for; `None` if the method has no use for labels.
    pub fn memory(&self) -> Option<Memory> {
        self.adapter.memory()
    }

    /// Whether a step or a prediction can take these samples. Both ask this before anything changes.
    pub fn check(&self, input: &Input<'_>) -> Result<()> {
        input.check(&self.head, self.adapter.card())
    }

    fn joint(&self) -> bool {
        self.adapter.card().grouping == Grouping::Joint
    }

    /// Notes the answers of a part, for health and guard.
    fn count(&mut self, batch: &Batch<'_>, prediction: &Prediction, unknown: &[bool]) {
        for (row, answer) in prediction.answers.iter().enumerate() {
            let frozen = &batch.frozen[row];
            // The guard counts scenes: copies of one picture are one witness.
            if !answer.copy {
                let own = batch.zero_shot.row(row)[answer.label];
                self.guard.push(Answered {
                    adapted: answer.label as u32,
                    zero_shot: frozen.label as u32,
                    support: (own - frozen.log_sum).exp(),
                    frozen: frozen.prob,
                    admitted: answer.admitted,
                });
            }
            self.totals.scenes += u64::from(begins_scene(batch, row, answer));
            self.totals.admitted += u64::from(answer.admitted);
            self.totals.flips += u64::from(answer.label != frozen.label);
            self.totals.unknown += u64::from(unknown[row]);
        }
    }

    /// Lets the guard decide: remember the state, return to a healthy one, or go on.
    fn watch(&mut self) {
        let vitals = self.adapter.vitals();
        self.totals.max_prior_kl = self.totals.max_prior_kl.max(vitals.prior_kl);
        self.totals.max_movement = self.totals.max_movement.max(vitals.movement_max);
        match self.guard.check() {
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
                let healthy = self.healthy.take();
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
        self.healthy_at = 0;
        self.next_id = 0;
        self.totals = Totals::default();
    }

    /// Health now.
    pub fn health(&self) -> Health {
        let vitals = self.adapter.vitals();
        Health {
            seen: self.next_id,
            scenes: self.totals.scenes,
            rows_per_scene: self.next_id as f64 / self.totals.scenes.max(1) as f64,
            restarts: self.totals.restarts + vitals.restarts,
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
            state_bytes: vitals.state_bytes
                + self.guard.bytes()
                + self.healthy.as_ref().map_or(0, State::bytes),
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
struct Answers {
    rows: Vec<Row>,
    zero_shot: Scores,
    prediction: Prediction,
    keep_scores: bool,
}

impl Answers {
    fn new(input: &Input<'_>, classes: usize) -> Self {
        Self {
            rows: Vec::with_capacity(input.features.rows()),
            zero_shot: Scores::zeros(0, classes),
            prediction: Prediction { scores: Scores::zeros(0, classes), ..Default::default() },
            keep_scores: input.keep_scores,
        }
    }

    /// Takes in the answers of a part. `scenes` began before it; `in_turn` if its rows follow one another, and do not
    /// stand each by itself.
    fn push(
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
                scene: scenes.saturating_sub(1),
                begins_scene,
            });
        }
        if self.keep_scores {
            self.prediction.append(prediction);
        }
    }

    fn push_zero_shot(&mut self, scores: ScoresRef<'_>) {
        if self.keep_scores {
            self.zero_shot.append(scores);
        }
    }

    fn into_step(self, health: Health) -> Step {
        Step { rows: self.rows, zero_shot: self.zero_shot, prediction: self.prediction, health }
    }
}

/// Whether a row begins a scene: it may teach, and is no copy. Where a method knows no scenes, no row is a copy.
fn begins_scene(batch: &Batch<'_>, row: usize, answer: &Answer) -> bool {
    batch.may_learn(row) && !answer.copy
}
