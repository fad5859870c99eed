//! Everything that is counted along one run, and the summary that comes of it.

use std::collections::VecDeque;
use std::sync::Arc;

use ultta::internal::{softmax_from, summary};
use ultta::{ClassDrift, Head, Input, Result, Session};

use crate::method::BLOCK;
use crate::metrics::{
    AfterGarbage, Detection, DetectionIntervals, ECE_BINS, Ece, Gather, Steadiness, bootstrap,
};
use crate::pack::Pack;
use crate::plan::Job;
use crate::promises::Promises;
use crate::protocol::{Role, Sample, Stream};
use crate::summary::{
    ClassStory, Course, Domain, Estimated, Facts, Flip, Flips, Open, Record, Right, Stability, Summary,
    Window,
};

/// Flips and classes kept as examples.
const EXAMPLES: usize = 12;
/// Samples in the running accuracy by which recovery after a shift is measured.
const RECOVERY_WINDOW: usize = 100;

/// What a session says of itself at the end of a stream.
#[derive(Default)]
pub(crate) struct End {
    pub max_prior_kl: f64,
    pub max_movement: f64,
    pub state_bytes: usize,
    pub guard_fired: u64,
    pub record: Option<Record>,
    pub admitted_share: f64,
    pub classes: Vec<ClassDrift>,
    pub estimated: Option<Estimated>,
}

/// What a classifier told of a sample: logits, the temperature of their probabilities, its answer and how probable
/// that is.
#[derive(Clone, Copy)]
pub(crate) struct LogitRow<'a> {
    pub logits: &'a [f32],
    pub tau: f32,
    pub answer: (usize, f32),
}

impl<'a> LogitRow<'a> {
    /// The answer that the logits alone give.
    pub fn of(logits: &'a [f32]) -> Self {
        let s = summary(logits, 1.0);
        Self { logits, tau: 1.0, answer: (s.label, s.prob) }
    }
}

/// Everything that is counted along one run.
pub(crate) struct Tally<'a> {
    job: &'a Job<'a>,
    stream: &'a Stream,
    adapted: Gather,
    zero_shot: Gather,
    steadiness: Steadiness,
    /// Rows of garbage, and samples that counted before the last of them.
    garbage: (usize, usize),
    /// Scores that tell strangers: adapted and frozen, maximum softmax and energy; known ones, then strangers.
    detection: [[Vec<f32>; 4]; 2],
    flips: Flips,
    helpful: VecDeque<(Flip, Sample)>,
    harmful: VecDeque<(Flip, Sample)>,
    windows: Vec<Window>,
    window: usize,
    /// Labelled samples before each window's start and the running ECEs.
    counted: usize,
    running: [Ece; 2],
    /// Position in the stream of each labelled sample, where the stream has domains.
    places: Vec<usize>,
    place: usize,
    missed: usize,
    pub health: Option<ultta::Health>,
    probs: Vec<f32>,
    frozen: Vec<f32>,
    /// Sums of the probabilities before the present window: adapted, frozen.
    mass: [Vec<f64>; 2],
    max_answer_kl: f64,
    head: Arc<Head>,
    promises: Promises,
}

impl<'a> Tally<'a> {
    pub fn new(job: &'a Job<'a>, head: &Arc<Head>, stream: &'a Stream) -> Self {
        let classes = head.n_classes();
        Self {
            job,
            stream,
            adapted: Gather::new(classes),
            zero_shot: Gather::new(classes),
            steadiness: Steadiness::default(),
            garbage: (0, 0),
            detection: Default::default(),
            flips: Flips::default(),
            helpful: VecDeque::new(),
            harmful: VecDeque::new(),
            windows: Vec::new(),
            window: (stream.samples.len() / 40).clamp(100, 10_000),
            counted: 0,
            running: [Ece::new(ECE_BINS), Ece::new(ECE_BINS)],
            places: Vec::new(),
            place: 0,
            missed: 0,
            health: None,
            probs: vec![0.0; classes],
            frozen: vec![0.0; classes],
            mass: [vec![0.0; classes], vec![0.0; classes]],
            max_answer_kl: 0.0,
            head: head.clone(),
            promises: Promises::default(),
        }
    }

    /// Takes in what was promised for a sample: its set, and whether it was rejected.
    pub fn push_promises(&mut self, sample: &Sample, set: Option<&[u32]>, verdict: Option<(bool, f32)>) {
        if sample.role == Role::Garbage {
            return;
        }
        if let Some((unknown, score)) = verdict {
            self.promises.push_verdict(sample.role, unknown, score);
        }
        if let Some(set) = set.filter(|_| sample.role == Role::Known) {
            self.promises.push_set(set, self.job.label(sample));
        }
    }

    /// A sample the method missed.
    pub fn push_frozen(&mut self, sample: &Sample, zero_shot: &[f32]) {
        self.missed += 1;
        let told = LogitRow::of(zero_shot);
        self.push(sample, told, told);
    }

    pub fn push(&mut self, sample: &Sample, adapted: LogitRow<'_>, zero_shot: LogitRow<'_>) {
        let place = self.place;
        self.place += 1;
        if sample.role == Role::Garbage {
            self.garbage = (self.garbage.0 + 1, self.adapted.scored().len());
            return;
        }
        softmax_from(adapted.logits, adapted.tau, adapted.answer, &mut self.probs);
        softmax_from(zero_shot.logits, zero_shot.tau, zero_shot.answer, &mut self.frozen);
        let (answer, frozen) = (adapted.answer.0, zero_shot.answer.0);
        let against_pack = self.job.in_distribution.is_some();
        if self.job.protocol.open > 0.0 || against_pack {
            let energy = |row: &[f32]| summary(row, 1.0).log_sum;
            let scores =
                [self.probs[answer], energy(adapted.logits), self.frozen[frozen], energy(zero_shot.logits)];
            // Against another pack the whole stream is out of distribution.
            let side = usize::from(sample.role == Role::Stranger || against_pack);
            self.detection[side].iter_mut().zip(scores).for_each(|(all, score)| all.push(score));
        }
        if sample.role == Role::Stranger {
            return;
        }
        let class = self.job.label(sample);
        // −log p from the logits where p itself is too small.
        let log = |probs: &[f32], told: LogitRow<'_>| {
            (probs[class] < 1e-30).then(|| {
                let (row, top) = (told.logits, summary(told.logits, told.tau).label);
                -(probs[top] as f64).ln() + told.tau as f64 * (row[top] as f64 - row[class] as f64)
            })
        };
        let (nll, frozen_nll) = (log(&self.probs, adapted), log(&self.frozen, zero_shot));
        let scored = self.adapted.push(&self.probs, answer, class, nll);
        let frozen_scored = self.zero_shot.push(&self.frozen, frozen, class, frozen_nll);
        let copy = self.job.protocol.shots.map(|_| sample.copy);
        self.steadiness.push([answer, frozen], [scored, frozen_scored], copy);
        self.running[0].push(scored.confidence as f64, scored.right);
        self.running[1].push(frozen_scored.confidence as f64, frozen_scored.right);
        if !self.stream.shifts.is_empty() {
            self.places.push(place);
        }
        if answer != frozen {
            self.note_flip(sample, class, answer, frozen);
        }
    }

    /// Confidence on the in-distribution pack, as the session stands at the end of the stream.
    pub fn ask_in_distribution(&mut self, session: &Session, pack: &Pack) -> Result<()> {
        let each = pack.file().views_each();
        for start in (0..pack.rows()).step_by(BLOCK) {
            let end = pack.rows().min(start + BLOCK);
            let rows = pack.read(start..end, false).map_err(|e| pack.named(e))?;
            let views = pack.file().views(&(start..end).collect::<Vec<_>>(), false)?;
            let counts = vec![each; rows.rows()];
            let view_counts = views.is_some().then_some(&counts[..]);
            let step = session.predict(Input { views: views.as_ref(), view_counts, ..Input::new(&rows) })?;
            for (i, row) in step.rows.iter().enumerate() {
                let logits = step.prediction.calibrated.as_ref().unwrap_or(&step.prediction.scores).row(i);
                let energy = |row: &[f32]| summary(row, 1.0).log_sum;
                let scores = [row.prob, energy(logits), row.zero_shot.prob, energy(step.zero_shot.row(i))];
                self.detection[0].iter_mut().zip(scores).for_each(|(all, score)| all.push(score));
            }
        }
        Ok(())
    }

    fn note_flip(&mut self, sample: &Sample, class: usize, answer: usize, frozen: usize) {
        let kept = match (frozen == class, answer == class) {
            (false, true) => {
                self.flips.helpful += 1;
                &mut self.helpful
            }
            (true, false) => {
                self.flips.harmful += 1;
                &mut self.harmful
            }
            _ => {
                self.flips.neutral += 1;
                return;
            }
        };
        let name = |c: usize| self.head.classes()[c].clone();
        let id = match self.job.packs.len() {
            1 => sample.row.to_string(),
            _ => format!("{}:{}", self.job.dataset(sample).name, sample.row),
        };
        kept.push_back((
            Flip { id, class: name(class), zero_shot: name(frozen), adapted: name(answer), thumbnail: None },
            *sample,
        ));
        if kept.len() > EXAMPLES {
            kept.pop_front();
        }
    }

    /// Notes a window once it is full, or the stream has ended.
    pub fn close_window(&mut self, done: usize) {
        let begun = self.windows.last().map_or(0, |w| w.end);
        if done - begun < self.window && done < self.stream.samples.len() {
            return;
        }
        let fresh = &self.adapted.scored()[self.counted..];
        let frozen = &self.zero_shot.scored()[self.counted..];
        let n = fresh.len();
        let (set_held, set_size) = self.promises.close_window().unzip();
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n.max(1) as f64;
        self.windows.push(Window {
            end: done,
            n,
            top1: mean(&mut fresh.iter().map(|s| f64::from(s.right))),
            zero_shot_top1: mean(&mut frozen.iter().map(|s| f64::from(s.right))),
            confidence: mean(&mut fresh.iter().map(|s| s.confidence as f64)),
            ece: self.running[0].value(),
            zero_shot_ece: self.running[1].value(),
            prior_kl: self.health.map_or(0.0, |h| h.prior_kl),
            movement: self.health.map_or(0.0, |h| h.movement_max),
            tau_cal: self.health.map_or(1.0, |h| h.tau_cal),
            set_held,
            set_size,
        });
        self.counted += n;
        let own = [&self.adapted, &self.zero_shot].map(|g| g.mass().to_vec());
        let fresh = |i: usize| own[i].iter().zip(&self.mass[i]).map(|(now, before)| now - before).collect();
        self.max_answer_kl = self.max_answer_kl.max(divergence(&[fresh(0), fresh(1)]));
        self.mass = own;
    }

    pub fn finish(mut self, end: End) -> (Summary, Vec<Window>, Right) {
        let full = |w: &&Window| w.n * 2 >= self.window && w.n > 0;
        let tops = |value: fn(&Window) -> f64| self.windows.iter().filter(full).map(value);
        let worst = |value| tops(value).fold(1.0f64, f64::min);
        let course = Course {
            window: self.window,
            first: self.windows.iter().find(|w| w.n > 0).map_or(0.0, |w| w.top1),
            last: self.windows.iter().rfind(full).map_or(0.0, |w| w.top1),
            worst: worst(|w| w.top1),
            zero_shot_worst: worst(|w| w.zero_shot_top1),
            domains: self.domains(),
        };
        let collapsed = self
            .windows
            .iter()
            .filter(full)
            .any(|w| w.top1 < 0.5 * w.zero_shot_top1 && w.zero_shot_top1 > 0.1);
        let stability = Stability {
            max_prior_kl: end.max_prior_kl,
            max_movement: end.max_movement,
            accuracy_drop: self.drop(),
            collapsed,
            max_answer_kl: self.max_answer_kl,
        };
        let mut flips = std::mem::take(&mut self.flips);
        let shown = |(flip, sample): &(Flip, Sample)| {
            let pictures = self.job.dataset(sample).pictures.as_ref();
            let thumbnail = pictures.and_then(|pictures| pictures.thumbnail(sample.row as usize));
            Flip { thumbnail, ..flip.clone() }
        };
        flips.examples = self.harmful.iter().chain(&self.helpful).map(shown).collect();
        let summary = Summary {
            dataset: self.job.dataset.clone(),
            method: self.job.method.name.clone(),
            protocol: self.job.protocol.name().to_string(),
            seed: self.job.seed,
            n: self.adapted.scored().len(),
            classes: self.head.n_classes(),
            quality: self.adapted.quality(),
            zero_shot: self.zero_shot.quality(),
            intervals: bootstrap(
                self.adapted.scored(),
                self.zero_shot.scored(),
                &self.steadiness.shot_lengths(),
                self.job.seed,
            ),
            flips,
            switches: self.steadiness.switches(),
            shots: self.steadiness.shots(),
            after_garbage: self.after_garbage(),
            course,
            stability,
            open: self.open(),
            admitted_share: end.admitted_share,
            state_bytes: end.state_bytes,
            guard_fired: end.guard_fired,
            record: end.record,
            missed: self.missed,
            labels_used: 0,
            sets: self.health.as_ref().and_then(|health| self.promises.sets(health)),
            rejection: self.promises.rejection(),
            estimated: end.estimated,
            reliability: self.adapted.bins().to_vec(),
            zero_shot_reliability: self.zero_shot.bins().to_vec(),
            drift: self.drift(&end.classes),
            cost: None,
            facts: Facts::of(self.job),
        };
        let right = Right::of(self.adapted.scored().iter().map(|s| s.right));
        (summary, self.windows, right)
    }

    /// Gain over zero-shot in the last tenth minus the gain in the first tenth.
    fn drop(&self) -> f64 {
        let n = self.adapted.scored().len();
        let tenth = (n / 10).max(1).min(n);
        let gain = |range: std::ops::Range<usize>| {
            let right = |g: &Gather| g.scored()[range.clone()].iter().filter(|s| s.right).count() as f64;
            (right(&self.adapted) - right(&self.zero_shot)) / range.len().max(1) as f64
        };
        gain(n - tenth..n) - gain(0..tenth)
    }

    fn after_garbage(&self) -> Option<AfterGarbage> {
        let (rows, before) = self.garbage;
        let [adapted, frozen] = [&self.adapted, &self.zero_shot].map(|g| &g.scored()[before..]);
        (rows > 0).then(|| AfterGarbage::of(rows, adapted, frozen)).flatten()
    }

    fn open(&self) -> Option<Open> {
        let [known, strangers] = &self.detection;
        let of = |i: usize| Detection::of(&known[i], &strangers[i]);
        Some(Open {
            strangers: strangers[0].len(),
            max_softmax: of(0)?,
            energy: of(1)?,
            zero_shot_max_softmax: of(2)?,
            zero_shot_energy: of(3)?,
            max_softmax_intervals: DetectionIntervals::of(&known[0], &strangers[0], self.job.seed),
            energy_intervals: DetectionIntervals::of(&known[1], &strangers[1], self.job.seed),
        })
    }

    fn domains(&self) -> Vec<Domain> {
        let ends = self.stream.shifts.iter().skip(1).map(|s| s.0).chain([self.stream.samples.len()]);
        let domain = |((start, name), end): (&(usize, String), usize)| {
            let first = self.places.partition_point(|p| *p < *start);
            let last = self.places.partition_point(|p| *p < end);
            let (adapted, frozen) =
                (&self.adapted.scored()[first..last], &self.zero_shot.scored()[first..last]);
            let share = |s: &[crate::metrics::Scored]| {
                s.iter().filter(|s| s.right).count() as f64 / s.len().max(1) as f64
            };
            let settled = share(&adapted[adapted.len() / 2..]);
            let recovery = (RECOVERY_WINDOW..=adapted.len())
                .find(|&i| share(&adapted[i - RECOVERY_WINDOW..i]) >= settled - 0.01);
            Domain {
                name: name.clone(),
                n: adapted.len(),
                top1: share(adapted),
                zero_shot_top1: share(frozen),
                recovery,
            }
        };
        self.stream.shifts.iter().zip(ends).map(domain).collect()
    }

    /// The classes whose prototype moved most, or whose prior did.
    fn drift(&self, classes: &[ClassDrift]) -> Vec<ClassStory> {
        let uniform = 1.0 / classes.len().max(1) as f64;
        let story = |(class, d): (usize, &ClassDrift)| {
            let recall = |g: &Gather| {
                let (n, right) = g.per_class()[class];
                right as f64 / f64::from(n.max(1))
            };
            ClassStory {
                class: self.head.classes()[class].clone(),
                movement: d.movement,
                prior: d.prior,
                evidence: d.evidence,
                n: self.adapted.per_class()[class].0,
                recall: recall(&self.adapted),
                zero_shot_recall: recall(&self.zero_shot),
            }
        };
        let mut stories: Vec<ClassStory> = classes.iter().enumerate().map(story).collect();
        let shift = |s: &ClassStory| s.movement + (s.prior.max(1e-12) / uniform).ln().abs();
        stories.sort_by(|a, b| shift(b).total_cmp(&shift(a)).then(a.class.cmp(&b.class)));
        stories.truncate(EXAMPLES);
        stories
    }
}

/// KL of the first mass from the second, both scaled to one.
fn divergence([p, q]: &[Vec<f64>; 2]) -> f64 {
    let (n, m) = (p.iter().sum::<f64>().max(1e-300), q.iter().sum::<f64>().max(1e-300));
    let term = |(p, q): (&f64, &f64)| {
        let (p, q) = (p / n, (q / m).max(1e-12));
        if p > 0.0 { p * (p / q).ln() } else { 0.0 }
    };
    p.iter().zip(q).map(term).sum::<f64>().max(0.0)
}
