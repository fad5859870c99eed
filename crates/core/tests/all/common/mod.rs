//! What the test files share: small simulated worlds with the geometry of real features, streams of samples with
//! all that a caller may know about them, and the configurations that every law is checked on.
#![allow(dead_code)]

pub mod batch;

use std::ops::Range;
use std::sync::Arc;

use ultta::{Config, Features, Grouping, Head, Input, Session, State};
use ultta::{Row, Step, Temperature};

/// Numbers that look random and are the same everywhere (SplitMix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: the sum of four uniforms, scaled to variance 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.uniform()).sum();
        (sum - 2.0) * 3f32.sqrt()
    }

    /// A vector of normals with expected length 1.
    pub fn direction(&mut self, dim: usize) -> Vec<f32> {
        let scale = 1.0 / (dim as f32).sqrt();
        (0..dim).map(|_| self.normal() * scale).collect()
    }

    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.below(i + 1));
        }
    }
}

/// A head and images of its classes. Texts and images live in separate cones, as they do for CLIP.
pub struct World {
    pub head: Arc<Head>,
    centres: Vec<Vec<f32>>,
}

impl World {
    pub fn new(classes: usize, dim: usize, logit_scale: f32) -> Self {
        let mut rng = Rng(classes as u64 * 1000 + dim as u64);
        let (text_cone, image_cone) = (rng.direction(dim), rng.direction(dim));
        let (mut texts, mut centres) = (Vec::new(), Vec::new());
        for _ in 0..classes {
            let own = rng.direction(dim);
            texts.extend(own.iter().zip(&text_cone).map(|(o, t)| o + 0.8 * t));
            let bent = rng.direction(dim);
            centres.push((0..dim).map(|i| image_cone[i] + 0.8 * own[i] + 0.4 * bent[i]).collect());
        }
        let texts = Features::normalized(texts, dim).unwrap();
        let names = (0..classes).map(|c| format!("class {c}"));
        let head = Head::new(texts.data().to_vec(), dim, names, logit_scale).unwrap();
        Self { head: Arc::new(head), centres }
    }

    /// A small one: few classes, few dimensions, so that every schedule turns over early.
    pub fn small() -> Self {
        Self::new(10, 16, 12.0)
    }

    /// The image of a class.
    pub fn image(&self, class: usize, rng: &mut Rng) -> Vec<f32> {
        let noise = rng.direction(self.head.dim());
        self.centres[class].iter().zip(noise).map(|(c, n)| c + 0.6 * n).collect()
    }

    /// `n` samples, classes drawn at random, with their labels.
    pub fn samples(&self, n: usize, seed: u64) -> (Features<'static>, Vec<usize>) {
        let mut rng = Rng(seed);
        let labels: Vec<usize> = (0..n).map(|_| rng.below(self.head.n_classes())).collect();
        (self.images(&labels, &mut rng), labels)
    }

    pub fn images(&self, labels: &[usize], rng: &mut Rng) -> Features<'static> {
        let data: Vec<f32> = labels.iter().flat_map(|&label| self.image(label, rng)).collect();
        Features::normalized(data, self.head.dim()).unwrap()
    }

    pub fn rows(&self, n: usize, seed: u64) -> Features<'static> {
        self.samples(n, seed).0
    }

    pub fn session(&self, config: &Config) -> Session {
        Session::new(self.head.clone(), config).unwrap()
    }
}

/// A stream with everything a caller may know: marks, times, views, and labels that come later.
pub struct Stream {
    pub features: Features<'static>,
    pub learn: Option<Vec<bool>>,
    pub times: Option<Vec<f64>>,
    pub views: Option<(Features<'static>, Vec<usize>)>,
    /// Labels, of which every `FEEDBACK`-th is told, `DELAY` samples late.
    pub labels: Option<Vec<usize>>,
}

const FEEDBACK: usize = 41;
const DELAY: usize = 60;

impl Stream {
    /// Only features.
    pub fn plain(world: &World, n: usize, seed: u64) -> Self {
        Self { features: world.rows(n, seed), learn: None, times: None, views: None, labels: None }
    }

    /// Some rows may not teach, times pass unevenly, some samples have views, some labels arrive.
    pub fn full(world: &World, n: usize, seed: u64) -> Self {
        let (features, labels) = world.samples(n, seed);
        let mut rng = Rng(seed + 1);
        let learn = (0..n).map(|_| rng.below(10) > 0).collect();
        let mut now = 0.0;
        let times = (0..n)
            .map(|_| {
                now += rng.uniform() as f64;
                now
            })
            .collect();
        let counts: Vec<usize> = (0..n).map(|_| [0, 0, 2, 3][rng.below(4)]).collect();
        let shown: Vec<usize> =
            labels.iter().zip(&counts).flat_map(|(&l, &k)| std::iter::repeat_n(l, k)).collect();
        let views = Some((world.images(&shown, &mut rng), counts));
        Self { features, learn: Some(learn), times: Some(times), views, labels: Some(labels) }
    }

    pub fn len(&self) -> usize {
        self.features.rows()
    }

    /// One step over some rows.
    pub fn step(&self, session: &mut Session, rows: Range<usize>) -> Step {
        self.given(rows, |input| session.step(input).unwrap())
    }

    /// What a session answers to some rows, which teach nothing.
    pub fn predict(&self, session: &Session, rows: Range<usize>) -> Step {
        self.given(rows, |input| session.predict(input).unwrap())
    }

    /// Hands over some rows, with all that is known about them.
    fn given(&self, rows: Range<usize>, work: impl FnOnce(Input<'_>) -> Step) -> Step {
        let features = self.features.slice(rows.clone());
        let views = self.views.as_ref().map(|(views, counts)| {
            let first = counts[..rows.start].iter().sum();
            let n: usize = counts[rows.clone()].iter().sum();
            views.slice(first..first + n)
        });
        let input = Input {
            learn: self.learn.as_ref().map(|v| &v[rows.clone()]),
            times: self.times.as_ref().map(|v| &v[rows.clone()]),
            views: views.as_ref(),
            view_counts: self.views.as_ref().map(|(_, counts)| &counts[rows.clone()]),
            ..Input::new(&features)
        };
        work(input)
    }

    /// Some rows in blocks of at most `block`, labels told when they are due.
    pub fn play(&self, session: &mut Session, rows: Range<usize>, block: usize) -> Played {
        let mut played = Played::default();
        let mut at = rows.start;
        while at < rows.end {
            if let Some(labels) = &self.labels
                && at.is_multiple_of(FEEDBACK)
                && at >= DELAY
            {
                session.feedback((at - DELAY) as u64, labels[at - DELAY]).unwrap();
            }
            let mut end = rows.end.min(at + block);
            if self.labels.is_some() {
                end = end.min((at / FEEDBACK + 1) * FEEDBACK);
            }
            played.take(&self.step(session, at..end));
            at = end;
        }
        played
    }
}

/// Answers and scores of a stream, to be compared bit by bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    pub rows: Vec<Row>,
    pub scores: Vec<u32>,
    pub probs: Vec<u32>,
}

impl Played {
    pub fn take(&mut self, step: &Step) {
        self.rows.extend_from_slice(&step.rows);
        self.scores.extend(step.prediction.scores.data().iter().map(|v| v.to_bits()));
        for row in 0..step.rows.len() {
            for temperature in [Temperature::Pred, Temperature::Cal] {
                self.probs.extend(step.probs(row, temperature).iter().map(|p| p.to_bits()));
            }
        }
    }

    pub fn extend(&mut self, other: Played) {
        self.rows.extend(other.rows);
        self.scores.extend(other.scores);
        self.probs.extend(other.probs);
    }
}

/// Fails unless a step's answers are what a consumer may rely on: finite, distributions, consistent.
pub fn assert_sound(step: &Step, what: &str) {
    let classes = step.prediction.scores.classes();
    assert!(step.prediction.scores.data().iter().all(|v| v.is_finite()), "{what}: scores");
    for (i, row) in step.rows.iter().enumerate() {
        assert!(row.label < classes, "{what}: row {i} answers class {}", row.label);
        for p in [row.prob, row.prob_pred, row.zero_shot.prob] {
            assert!((0.0..=1.0 + 1e-5).contains(&p), "{what}: row {i} has probability {p}");
        }
        for (temperature, own) in [(Temperature::Pred, row.prob_pred), (Temperature::Cal, row.prob)] {
            let probs = step.probs(i, temperature);
            let sum: f64 = probs.iter().map(|&p| p as f64).sum();
            assert!((sum - 1.0).abs() < 1e-4, "{what}: row {i} sums to {sum}");
            assert!(
                (probs[row.label] - own).abs() < 2e-5,
                "{what}: row {i} says {own} at {temperature:?}, its distribution {}",
                probs[row.label]
            );
        }
    }
    let h = &step.health;
    for (name, v) in [
        ("prior_kl", h.prior_kl),
        ("movement_max", h.movement_max),
        ("movement_mean", h.movement_mean),
        ("tau_pred", h.tau_pred),
        ("tau_cal", h.tau_cal),
        ("evidence_weight", h.evidence_weight),
        ("effective_classes", h.effective_classes),
        ("effective_classes_zero_shot", h.effective_classes_zero_shot),
        ("unknown_share", h.unknown_share),
    ] {
        assert!(v.is_finite() && v >= 0.0, "{what}: health.{name} = {v}");
    }
}

/// Through the bytes of a state file.
pub fn through_bytes(state: &State) -> State {
    State::from_bytes(&state.to_bytes().unwrap()).unwrap()
}

/// Names of the tensors in which two states differ.
pub fn differing(a: &State, b: &State) -> Vec<String> {
    let names = a.tensors.keys().chain(b.tensors.keys());
    let mut names: Vec<String> = names.filter(|k| a.tensors.get(*k) != b.tensors.get(*k)).cloned().collect();
    names.dedup();
    names
}

pub fn config(method: &str, settings: &[(&str, &str)]) -> Config {
    Config::resolve(None, Some(method), None, settings).unwrap()
}

/// A key and its value.
type Setting = (&'static str, &'static str);

/// Windows and intervals small enough that a few hundred samples pass all of them many times.
const QUICK: [Setting; 3] =
    [("feedback.remember", "160"), ("guard.advanced.window", "64"), ("guard.advanced.patience", "256")];
const QUICK_DEFAULT: [Setting; 6] = [
    ("advanced.gate_warm_up", "40"),
    ("advanced.update_every", "32"),
    ("advanced.gate_window", "64"),
    ("advanced.scale_window", "96"),
    ("advanced.scale_min_rows", "40"),
    ("advanced.match_window", "128"),
];
const QUICK_PAPER: [Setting; 4] =
    [("gate.warm_up", "40"), ("update.every", "32"), ("gate.window", "64"), ("temperature.window", "128")];

/// A setting of the published algorithm as the default has it, where `preset` is the default.
pub fn in_preset<'a>(preset: &str, (key, value): (&'a str, &'a str)) -> (&'a str, &'a str) {
    match (preset, key) {
        ("ul-tta", "gate.enabled") if value == "false" => ("gate.keep", "1"),
        ("ul-tta", "gate.warm_up") => ("advanced.gate_warm_up", value),
        ("ul-tta", "update.seconds") => ("advanced.update_seconds", value),
        ("ul-tta", "update.every") => ("advanced.update_every", value),
        ("ul-tta", "feedback.prior_strength") => ("advanced.label_strength", value),
        ("ul-tta", "min_responsibility") => ("advanced.min_responsibility", value),
        ("ul-tta", "responsibilities") => ("advanced.responsibilities", value),
        _ => (key, value),
    }
}

/// The presets with quick schedules and further settings.
pub fn quick(method: &str, settings: &[(&str, &str)]) -> Config {
    let own: &[Setting] = if method == "ul-tta:paper" { &QUICK_PAPER } else { &QUICK_DEFAULT };
    config(method, &[&QUICK, own, settings].concat())
}

/// Every method of the registry that needs no views (`laws.rs` checks those), in every preset, and the switches of our
/// own. The head must have ten classes.
pub fn variants() -> Vec<(String, Config)> {
    let all = ultta::names().into_iter().map(|name| (name.clone(), config(&name, &[])));
    all.filter(|(_, config)| !config.method.card().needs_views).chain(switches()).collect()
}

/// Zero-shot, and our own method in every preset with every switch. The head must have ten classes.
pub fn own_variants() -> Vec<(String, Config)> {
    let named = ["zero-shot", "ul-tta", "ul-tta:paper"].map(|name| (name.to_string(), config(name, &[])));
    named.into_iter().chain(switches()).collect()
}

/// Those of `variants` whose rows are answered one by one.
pub fn independent_variants() -> Vec<(String, Config)> {
    let independent = |config: &Config| config.method.card().grouping == Grouping::Independent;
    variants().into_iter().filter(|(_, config)| independent(config)).collect()
}

/// Our own method, in every preset, with the switches that the laws are checked on.
fn switches() -> Vec<(String, Config)> {
    let start = "[0.19, 0.01, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.15, 0.05]";
    let mut all = Vec::new();
    let unknown: &[Setting] = &[("unknown.score", "max_softmax"), ("unknown.advanced.quantile", "0.1")];
    let switches: &[(&str, &[Setting])] = &[
        ("quick", &[]),
        ("no gate", &[("gate.enabled", "false")]),
        ("prototypes frozen", &[("prototypes.frozen", "true")]),
        ("prior frozen", &[("prior.frozen", "true")]),
        ("update by time", &[("update.seconds", "7.5"), ("update.every", "1000000")]),
        ("unknown", unknown),
        ("labels teach", &[("feedback.teach", "true")]),
        ("start prior", &[("prior.start", start)]),
    ];
    for preset in ["ul-tta", "ul-tta:paper"] {
        for (name, settings) in switches {
            let settings: Vec<Setting> = settings.iter().map(|&s| in_preset(preset, s)).collect();
            all.push((format!("{preset}, {name}"), quick(preset, &settings)));
        }
    }
    let own: &[(&str, &str, &[Setting])] = &[
        ("ul-tta", "text responsibilities", &[("advanced.responsibilities", "text")]),
        ("ul-tta", "few candidates", &[("advanced.candidates", "4"), ("advanced.candidate_range", "2")]),
        ("ul-tta", "forgets fast", &[("prototypes.half_life", "15"), ("advanced.half_life_per_class", "0")]),
        ("ul-tta", "never forgets", &[("prototypes.half_life", "inf"), ("gate.keep", "0.5")]),
        ("ul-tta", "prior under a cap", &[("advanced.prior_kl_max", "0.05")]),
        ("ul-tta", "calibrated by labels", &[("calibration.rule", "labels")]),
        ("ul-tta", "not calibrated", &[("calibration.rule", "off")]),
        ("ul-tta", "energy", &[("unknown.score", "energy"), ("unknown.advanced.quantile", "0.2")]),
        ("ul-tta:paper", "single temperature", &[("temperature.single", "true")]),
        ("ul-tta:paper", "schedule", &[("schedule.samples", "200")]),
        (
            "ul-tta:paper",
            "no guards",
            &[("prototypes.rho", "inf"), ("prior.kappa", "inf"), ("temperature.beta", "0")],
        ),
        ("ul-tta:paper", "temperature fixed", &[("temperature.frozen", "true")]),
        ("ul-tta:paper", "text responsibilities", &[("responsibilities", "text")]),
        ("ul-tta:paper", "prior in the calibration", &[("temperature.cal_prior", "true")]),
        ("ul-tta:paper", "updates by samples seen", &[("update.count", "seen")]),
        ("ul-tta:paper", "few candidates", &[("temperature.candidates", "4")]),
    ];
    for (preset, name, settings) in own {
        all.push((format!("{preset}, {name}"), quick(preset, settings)));
    }
    all
}
