//! The loop of one run. In plain words:
//!
//! ```text
//! for block in protocol.stream(datasets, seed) {
//!     let block = stage.show(block);              // near-copies, garbage, a shifted state
//!     let step = session.step(block)?;            // answer, then learn (or as the method's card says)
//!     for (answer, label) in zip(step, labels) { tally.push(answer, label) }
//!     for label that is due { session.feedback(id, label) }
//! }
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ultta::internal::LABELLED_ROWS;
use ultta::{Error, Features, Grouping, Head, Health, Input, Result, Scores, Session};

use crate::clock::{Clock, thread_seconds};
use crate::dataset::Dataset;
use crate::pictures::{Cost, PictureSession, peak_bytes, reset_peak};
use crate::plan::Job;
use crate::protocol::{Role, Sample, Stream};
use crate::random::Random;
use crate::stage::Stage;
use crate::summary::{Estimated, Made, Record, Run, Timing, Window};
use crate::tally::{End, LogitRow, Tally};

/// What answers a stream and learns from it.
enum Learner {
    /// A session on features.
    Features(Box<Session>),
    /// A method on the pictures themselves. It has no use for labels.
    Pictures(Box<dyn PictureSession>),
}

/// A block that was answered.
struct Answered {
    /// The frozen model's logits.
    zero_shot: Scores,
    /// The method's logits.
    logits: Scores,
    rows: Vec<AnsweredRow>,
    /// Sets of classes, and how well each row fits the known ones; empty where there are none.
    sets: Vec<Vec<u32>>,
    known: Vec<f32>,
    health: Option<Health>,
    /// How long the step took.
    seconds: f64,
    /// Processor time of the step; `None` where it is not known.
    cpu_seconds: Option<f64>,
}

struct AnsweredRow {
    /// Whether it was judged to fit no class.
    unknown: bool,
    /// The sample's id, by which a delayed label names it.
    id: u64,
    /// Temperature of the method's probabilities.
    tau: f32,
    /// The method's answer and how probable it is.
    answer: (usize, f32),
    /// The frozen model's answer and how probable it is.
    zero_shot: (usize, f32),
}

/// The result of a run.
pub struct Ran {
    /// Its figures.
    pub run: Run,
    /// The stretches of its stream.
    pub windows: Vec<Window>,
}

/// Delayed labels on their way to the session: each arrives some samples after the sample it belongs to.
struct Labels {
    share: f64,
    delay: usize,
    random: Random,
    due: VecDeque<(usize, u64, usize)>,
    used: usize,
}

impl Job<'_> {
    /// Runs the stream. `advanced` is told of every block and says whether to go on.
    pub fn run(&self, stream: &Stream, mut advanced: impl FnMut(usize) -> bool) -> Result<Ran> {
        let n = stream.samples.len();
        let head = self.head()?;
        reset_peak();
        let mut learner = Learner::start(self, &head, n)?;
        let mut labels = learner.labels(self);
        let block = self.block();
        let mut tally = Tally::new(self, &head, stream);
        let mut clock = Clock::new(self.protocol.compute, block);
        let mut stage = Stage::new(self.protocol, self.packs[0], self.seed)?;
        let mut done = 0;
        for samples in stream.samples.chunks(block) {
            let mut features = self.features(samples)?;
            if let Some(stage) = &mut stage {
                features = stage.show(samples, &features)?;
            }
            if clock.busy(done + samples.len() - 1) {
                // The method still works on earlier samples: the frozen model answers these.
                let scores = head.zero_shot(&features)?;
                for (i, sample) in samples.iter().enumerate() {
                    tally.push_frozen(sample, scores.row(i));
                }
            } else {
                let answered = learner.step(self, samples, &features, &head)?;
                clock.worked(answered.seconds, answered.cpu_seconds, done, samples.len());
                for (i, sample) in samples.iter().enumerate() {
                    tally.push(sample, answered.adapted(i), answered.zero_shot(i));
                    let verdict = answered.known.get(i).map(|&score| (answered.rows[i].unknown, score));
                    tally.push_promises(sample, answered.sets.get(i).map(Vec::as_slice), verdict);
                    if self.method.card().transductive {
                        tally.close_window(done + i + 1);
                    }
                    if let Some(labels) = &mut labels {
                        labels.ask(self, sample, done + i, answered.rows[i].id);
                    }
                }
                tally.health = answered.health;
            }
            done += samples.len();
            tally.close_window(done);
            if let (Some(labels), Learner::Features(session)) = (&mut labels, &mut learner) {
                labels.hand_over(session, done)?;
            }
            if !advanced(samples.len()) {
                let reason = format!("given up after {done} of {n} samples");
                return Err(Error::Config { key: "run".into(), reason });
            }
        }
        let mut timing = clock.timing();
        if let (Some(pack), Learner::Features(session)) = (self.in_distribution, &learner) {
            tally.ask_in_distribution(session, pack)?;
        }
        let (mut summary, windows, right) = tally.finish(learner.end());
        summary.labels_used = labels.map_or(0, |labels| labels.used);
        summary.cost = learner.cost(self, &head, &mut timing);
        Ok(Ran { run: Run { summary, timing, right: Some(right), made: Some(Made::now()) }, windows })
    }

    /// The first pack's head, its prototypes blurred where the protocol says so.
    fn head(&self) -> Result<Arc<Head>> {
        let head = &self.packs[0].head;
        if self.protocol.weak == 0.0 {
            return Ok(head.clone());
        }
        let mut random = Random::new(self.seed ^ 0x0EA4);
        let size = self.protocol.weak / (head.dim() as f64).sqrt();
        let noisy: Vec<f32> =
            head.prototypes().iter().map(|&v| (v as f64 + size * random.normal()) as f32).collect();
        let unit = Features::normalized(noisy, head.dim())?;
        Ok(Arc::new(Head::new(
            unit.data().to_vec(),
            head.dim(),
            head.classes().to_vec(),
            head.logit_scale(),
        )?))
    }

    fn block(&self) -> usize {
        let usual = self.method.batch();
        let joint = self.method.card().grouping == Grouping::Joint;
        match (self.protocol.batch, self.protocol.labels, self.protocol.compute) {
            (Some(batch), _, _) => batch,
            (None, Some(_), _) if !joint => LABELLED_ROWS,
            (None, _, Some(_)) if !joint => 1,
            _ => usual,
        }
    }

    pub(crate) fn dataset(&self, sample: &Sample) -> &Dataset {
        let packs = if sample.role == Role::Stranger { &self.others } else { &self.packs };
        packs[sample.pack as usize]
    }

    pub(crate) fn label(&self, sample: &Sample) -> usize {
        self.packs[sample.pack as usize].labels()[sample.row as usize]
    }

    fn features(&self, samples: &[Sample]) -> Result<Features<'static>> {
        let same = |a: &Sample, b: &Sample| std::ptr::eq(self.dataset(a), self.dataset(b));
        let mut all = Features::empty(self.packs[0].pack.dim());
        for group in samples.chunk_by(same) {
            let rows: Vec<usize> = group.iter().map(|s| s.row as usize).collect();
            let pack = &self.dataset(&group[0]).pack;
            let part = pack.select(&rows, false).map_err(|e| pack.named(e))?;
            if group.len() == samples.len() {
                return Ok(part);
            }
            all.append(&part);
        }
        Ok(all)
    }

    /// The preprocessed pictures of some samples, one after another.
    fn pixels(&self, samples: &[Sample]) -> Result<Vec<f32>> {
        let mut pixels = Vec::new();
        for sample in samples {
            let dataset = self.dataset(sample);
            let Some(pictures) = &dataset.pictures else {
                let reason = format!("{} needs pictures, {} has none", self.method.name, dataset.name);
                return Err(Error::Config { key: "pictures".into(), reason });
            };
            pixels.extend(pictures.read(&[sample.row as usize])?);
        }
        Ok(pixels)
    }

    /// Which samples may teach; `None` if all may. Garbage may: it is no row of a file.
    pub(crate) fn learn(&self, samples: &[Sample]) -> Option<Vec<bool>> {
        let may = |sample: &Sample| {
            let marks = self.dataset(sample).pack.file().learn();
            sample.role == Role::Garbage || marks.is_none_or(|marks| marks[sample.row as usize])
        };
        let learn: Vec<bool> = samples.iter().map(may).collect();
        learn.contains(&false).then_some(learn)
    }

    /// Views of the samples, if every sample's pack has the same number of them. Rows that the protocol makes itself
    /// have no views.
    fn views(&self, samples: &[Sample]) -> Result<Option<Features<'static>>> {
        if self.protocol.alters() {
            return Ok(None);
        }
        let each = samples.first().map_or(0, |s| self.dataset(s).views_each());
        if each == 0 || samples.iter().any(|s| self.dataset(s).views_each() != each) {
            return Ok(None);
        }
        let mut all = Features::empty(self.packs[0].pack.dim());
        for sample in samples {
            if let Some(views) = self.dataset(sample).views(&[sample.row as usize])? {
                all.append(&views);
            }
        }
        Ok(Some(all))
    }
}

impl Learner {
    fn start(job: &Job<'_>, head: &Arc<Head>, samples: usize) -> Result<Self> {
        Ok(match &job.method.pictures {
            Some(method) => Learner::Pictures(method.start(head)?),
            None => Learner::Features(Box::new(Session::new(head.clone(), &job.method.for_stream(samples))?)),
        })
    }

    /// The labels that the protocol sends, where they are of use.
    fn labels(&self, job: &Job<'_>) -> Option<Labels> {
        let (share, delay) = job.protocol.labels.filter(|_| matches!(self, Learner::Features(_)))?;
        let random = Random::new(job.seed ^ 0x1ABE1);
        Some(Labels { share, delay, random, due: VecDeque::new(), used: 0 })
    }

    /// Answers a block and learns from it. Only the step itself is timed, not what is read for it.
    fn step(
        &mut self,
        job: &Job<'_>,
        samples: &[Sample],
        features: &Features<'_>,
        head: &Head,
    ) -> Result<Answered> {
        match self {
            Learner::Features(session) => {
                let views = job.views(samples)?;
                let each = views.as_ref().map_or(0, |views| views.rows() / samples.len().max(1));
                let counts = vec![each; samples.len()];
                let learn = job.learn(samples);
                let mut input = Input::new(features);
                input.learn = learn.as_deref();
                input.views = views.as_ref();
                input.view_counts = views.as_ref().map(|_| &counts[..]);
                let (started, begun) = (Instant::now(), thread_seconds());
                let step = session.step(input)?;
                let seconds = started.elapsed().as_secs_f64();
                // A session works on the thread that asks it.
                let cpu_seconds = thread_seconds().zip(begun).map(|(end, begun)| end - begun);
                let row = |(row, &tau): (&ultta::Row, &f32)| AnsweredRow {
                    unknown: row.unknown,
                    id: row.id,
                    tau,
                    answer: (row.label, row.prob),
                    zero_shot: (row.zero_shot.label, row.zero_shot.prob),
                };
                Ok(Answered {
                    rows: step.rows.iter().zip(&step.prediction.tau_cal).map(row).collect(),
                    zero_shot: step.zero_shot,
                    sets: step.sets,
                    known: step.known,
                    logits: step.prediction.calibrated.unwrap_or(step.prediction.scores),
                    health: Some(step.health),
                    seconds,
                    cpu_seconds,
                })
            }
            Learner::Pictures(session) => {
                let zero_shot = head.zero_shot(features)?;
                let pixels = job.pixels(samples)?;
                let started = Instant::now();
                let prediction = session.step(&pixels, &zero_shot)?;
                let seconds = started.elapsed().as_secs_f64();
                let row = |(i, answer): (usize, &ultta::Answer)| AnsweredRow {
                    unknown: false,
                    id: 0,
                    tau: 1.0,
                    answer: (answer.label, answer.prob),
                    zero_shot: LogitRow::of(zero_shot.row(i)).answer,
                };
                let rows = prediction.answers.iter().enumerate().map(row).collect();
                let (sets, known) = (Vec::new(), Vec::new());
                Ok(Answered {
                    rows,
                    sets,
                    known,
                    zero_shot,
                    logits: prediction.scores,
                    health: None,
                    seconds,
                    // Models use all cores.
                    cpu_seconds: None,
                })
            }
        }
    }

    /// What the learner says of itself at the end of the stream.
    fn end(&self) -> End {
        match self {
            Learner::Features(session) => {
                let health = session.health();
                End {
                    max_prior_kl: health.max_prior_kl,
                    max_movement: health.max_movement,
                    state_bytes: health.state_bytes,
                    guard_fired: health.guard_fired,
                    record: Some(Record {
                        rows: health.seen,
                        scenes: health.scenes,
                        restarts: health.restarts,
                        garbage: health.garbage,
                        alarms: health.alarms,
                        standing: health.standing,
                    }),
                    admitted_share: session.admitted() as f64 / session.next_id().max(1) as f64,
                    classes: session.per_class(),
                    estimated: Some(Estimated {
                        adapted: health.estimate,
                        zero_shot: health.estimate_zero_shot,
                        labels: health.estimate_labels,
                        ingredients: session.estimate_ingredients(),
                    }),
                }
            }
            Learner::Pictures(session) => End {
                max_movement: session.max_movement(),
                state_bytes: session.cost().parameters * size_of::<f32>(),
                ..End::default()
            },
        }
    }

    /// What the method cost, where pictures are at hand. Also completes the timing.
    fn cost(&self, job: &Job<'_>, head: &Head, timing: &mut Timing) -> Option<Cost> {
        match self {
            Learner::Features(_) => {
                let encoding = job.packs[0].pictures.as_ref()?.encoding();
                timing.encode_seconds = encoding.seconds;
                timing.peak_bytes = peak_bytes().map_or(0, |own| own.max(encoding.peak_bytes));
                // The picture and, for a method that reads them, its views; the zero-shot scores; what the card counts.
                let card = job.method.card();
                let reads = card.needs_views || card.reads_views;
                let views = if reads { job.packs[0].views_each() } else { 0 };
                let forwards = 1.0 + views as f64;
                let (classes, dim) = (head.n_classes() as f64, head.dim() as f64);
                // Where the encoder's operations or the method's own are not known, the sum is not.
                let own = card.operations.filter(|_| encoding.flops > 0.0).map(|count| count(classes, dim));
                let flops = own.map(|own| forwards * encoding.flops + 2.0 * classes * dim + own);
                Some(Cost { forwards, flops, ..Cost::default() })
            }
            Learner::Pictures(session) => {
                timing.peak_bytes = peak_bytes().unwrap_or(0);
                Some(session.cost())
            }
        }
    }
}

impl Answered {
    fn adapted(&self, row: usize) -> LogitRow<'_> {
        let AnsweredRow { tau, answer, .. } = self.rows[row];
        LogitRow { logits: self.logits.row(row), tau, answer }
    }

    fn zero_shot(&self, row: usize) -> LogitRow<'_> {
        LogitRow { logits: self.zero_shot.row(row), tau: 1.0, answer: self.rows[row].zero_shot }
    }
}

impl Labels {
    /// Decides whether a sample gets a label, and when.
    fn ask(&mut self, job: &Job<'_>, sample: &Sample, place: usize, id: u64) {
        if sample.role == Role::Known && self.random.uniform() < self.share {
            self.due.push_back((place + self.delay, id, job.label(sample)));
        }
    }

    /// Hands over the labels that are due. A sample that the session has forgotten needs none.
    fn hand_over(&mut self, session: &mut Session, done: usize) -> Result<()> {
        while self.due.front().is_some_and(|due| due.0 < done) {
            let (_, id, label) = self.due.pop_front().expect("there is a front");
            match session.feedback(id, label) {
                Ok(used) => self.used += usize::from(used),
                Err(Error::Forgotten { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}
