//! The baseline methods: each against its NumPy oracle step by step, the laws every adapter keeps, and the quirks
//! of published code that a faithful baseline reproduces.

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use ultta::adapter::{Adapter, Batch, Prediction, Readout, Rows, ViewsRef};
use ultta::scores::{Summary, softmax, weigh};
use ultta::state::Tensor;
use ultta::{Config, Features, Head, Input, Scores, Session, State};

const METHODS: [&str; 13] = [
    "t3a",
    "tip-adapter",
    "freetta",
    "tda",
    "bca",
    "onzeta",
    "dmn",
    "stata",
    "lame",
    "prior-only",
    "temperature-only",
    "boost-adapter",
    "zero",
];

// === a stream to run on ===

/// Rows with the views each has, and the frozen scores of both: what a batch borrows from.
struct Block {
    features: Features<'static>,
    zero_shot: Scores,
    frozen: Vec<Summary>,
    weights: Scores,
    views: Features<'static>,
    view_scores: Scores,
    offsets: Vec<usize>,
}

impl Block {
    fn new(head: &Head, features: Features<'static>, views: Features<'static>) -> Self {
        let zero_shot = head.zero_shot(&features).unwrap();
        let mut weights = Scores::zeros(zero_shot.rows(), zero_shot.classes());
        let frozen = (0..zero_shot.rows()).map(|r| weigh(zero_shot.row(r), weights.row_mut(r))).collect();
        let each = views.rows() / features.rows().max(1);
        let offsets = (0..=features.rows()).map(|r| r * each).collect();
        Self {
            view_scores: head.zero_shot(&views).unwrap(),
            zero_shot,
            frozen,
            weights,
            features,
            views,
            offsets,
        }
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            first_id: 0,
            features: self.features.slice(0..self.features.rows()),
            zero_shot: (&self.zero_shot).into(),
            frozen: &self.frozen,
            weights: (&self.weights).into(),
            learn: None,
            times: None,
            keep_scores: true,
            views: (self.views.rows() > 0).then_some(ViewsRef {
                features: &self.views,
                zero_shot: &self.view_scores,
                offsets: &self.offsets,
            }),
        }
    }
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

const CLASSES: usize = 5;
const DIM: usize = 12;
const VIEWS: usize = 4;

fn head() -> Head {
    let names: Vec<String> = (0..CLASSES).map(|c| format!("class {c}")).collect();
    let text = Features::normalized(noise(CLASSES * DIM, 1), DIM).unwrap();
    Head::new(text.data().to_vec(), DIM, names, 20.0).unwrap()
}

/// Rows around the classes, off the text by a common shift.
fn rows(head: &Head, n: usize, seed: u64) -> Features<'static> {
    let (shift, spread) = (noise(DIM, 99), noise(n * DIM, seed));
    let value = |i: usize| {
        let (row, d) = (i / DIM, i % DIM);
        head.prototype((row * 7 + seed as usize) % CLASSES)[d] + 0.5 * shift[d] + 0.6 * spread[i]
    };
    Features::normalized((0..n * DIM).map(value).collect::<Vec<_>>(), DIM).unwrap()
}

fn block(head: &Head, n: usize, seed: u64) -> Block {
    Block::new(head, rows(head, n, seed), rows(head, n * VIEWS, seed + 1000))
}

fn build(name: &str, head: &Head) -> Box<dyn Adapter> {
    Config::named(name).unwrap().method.build(&head.clone().into()).unwrap()
}

// === the laws ===

#[test]
fn predict_changes_nothing_and_an_empty_batch_is_a_no_op() {
    let head = head();
    let (taught, asked, empty) = (block(&head, 30, 1), block(&head, 10, 2), block(&head, 0, 3));
    for name in METHODS {
        let mut adapter = build(name, &head);
        adapter.step(&taught.batch()).unwrap();
        let before = adapter.save();
        let first = adapter.predict(&asked.batch()).unwrap();
        assert_eq!(adapter.predict(&asked.batch()).unwrap(), first, "{name}");
        assert_eq!(adapter.save(), before, "{name}");
        assert!(adapter.step(&empty.batch()).unwrap().answers.is_empty(), "{name}");
        assert_eq!(adapter.save(), before, "{name}: an empty batch taught");
    }
}

#[test]
fn a_step_is_predict_and_observe_in_the_order_of_the_card() {
    let head = head();
    let stream = block(&head, 40, 4);
    for name in METHODS {
        let (mut whole, mut parts) = (build(name, &head), build(name, &head));
        let size = if whole.card().rows == Rows::Joint { 8 } else { 1 };
        for first in (0..40).step_by(size) {
            let batch = stream.batch();
            let batch = batch.slice(first..first + size);
            let step = whole.step(&batch).unwrap();
            let (mut prediction, observed) = match parts.card().readout {
                Readout::BeforeObserve => {
                    let prediction = parts.predict(&batch).unwrap();
                    (prediction, parts.observe(&batch).unwrap())
                }
                Readout::AfterObserve => {
                    let observed = parts.observe(&batch).unwrap();
                    (parts.predict(&batch).unwrap(), observed)
                }
            };
            for (answer, admitted) in prediction.answers.iter_mut().zip(observed.admitted) {
                answer.admitted = admitted;
            }
            assert_eq!(step, prediction, "{name}, row {first}");
            assert_eq!(whole.save(), parts.save(), "{name}, row {first}");
        }
    }
}

#[test]
fn independent_rows_do_not_care_how_they_are_grouped() {
    let head = head();
    let stream = block(&head, 40, 5);
    for name in METHODS {
        let (mut one, mut many) = (build(name, &head), build(name, &head));
        if one.card().rows == Rows::Joint {
            continue;
        }
        let together = many.step(&stream.batch()).unwrap();
        let single: Vec<Prediction> =
            (0..40).map(|row| one.step(&stream.batch().slice(row..row + 1)).unwrap()).collect();
        let alone: Vec<f32> = single.iter().flat_map(|p| p.scores.data()).copied().collect();
        assert_eq!(together.scores.data(), alone, "{name}");
        assert_eq!(many.save(), one.save(), "{name}");
    }
}

#[test]
fn reset_is_fresh_and_a_saved_state_continues() {
    let head = head();
    let (early, late) = (block(&head, 32, 6), block(&head, 32, 7));
    for name in METHODS {
        let fresh = build(name, &head).save();
        let mut adapter = build(name, &head);
        adapter.step(&early.batch()).unwrap();
        let saved = adapter.save();
        let straight = adapter.step(&late.batch()).unwrap();
        let mut resumed = build(name, &head);
        resumed.load(&saved).unwrap();
        assert_eq!(resumed.save(), saved, "{name}");
        assert_eq!(resumed.step(&late.batch()).unwrap(), straight, "{name}");
        assert_eq!(resumed.save(), adapter.save(), "{name}");
        resumed.reset();
        assert_eq!(resumed.save(), fresh, "{name}");
    }
}

#[test]
fn a_session_survives_its_state_file() {
    let head = head();
    let folder = tempfile::tempdir().unwrap();
    for name in METHODS {
        let config = Config::named(name).unwrap();
        let mut session = Session::new(head.clone(), &config).unwrap();
        step_with_views(&mut session, 50, 8);
        let path = folder.path().join(name);
        session.state().save(&path).unwrap();
        let mut resumed = Session::resume(head.clone(), &State::load(&path).unwrap()).unwrap();
        let (a, b) = (step_with_views(&mut session, 20, 9), step_with_views(&mut resumed, 20, 9));
        assert_eq!((a, session.state()), (b, resumed.state()), "{name}");
    }
}

fn step_with_views(session: &mut Session, n: usize, seed: u64) -> Vec<ultta::session::Row> {
    let head = session.head().clone();
    let (features, views) = (rows(&head, n, seed), rows(&head, n * VIEWS, seed + 1000));
    let counts = vec![VIEWS; n];
    let input = Input { views: Some(&views), view_counts: Some(&counts), ..Input::new(&features) };
    session.step_with(&input).unwrap().rows
}

#[test]
fn a_wrong_shape_or_a_foreign_state_leaves_the_state_alone() {
    let head = head();
    for name in METHODS {
        let mut session = Session::new(head.clone(), &Config::named(name).unwrap()).unwrap();
        step_with_views(&mut session, 20, 10);
        let before = session.state();
        let wide = Features::normalized(vec![1.0; 2 * (DIM + 1)], DIM + 1).unwrap();
        assert!(session.step(&wide).is_err(), "{name}");
        assert_eq!(session.state(), before, "{name}");

        let mut adapter = build(name, &head);
        adapter.step(&block(&head, 20, 10).batch()).unwrap();
        let before = adapter.save();
        for key in before.tensors.keys() {
            let mut torn = before.clone();
            torn.tensors.insert(key.clone(), Tensor::U8(vec![1, 2, 3]));
            assert!(adapter.load(&torn).is_err(), "{name}: {key}");
            assert_eq!(adapter.save(), before, "{name}: {key}");
        }
    }
}

#[test]
fn rows_that_must_not_teach_do_not() {
    let head = head();
    let stream = block(&head, 30, 11);
    let learn = vec![false; 30];
    for name in METHODS {
        let mut adapter = build(name, &head);
        let before = adapter.save();
        adapter.step(&Batch { learn: Some(&learn), ..stream.batch() }).unwrap();
        if name != "t3a" || adapter.card().rows == Rows::Independent {
            assert_eq!(adapter.save(), before, "{name}");
        }
    }
}

#[test]
fn state_stays_bounded() {
    let head = head();
    for name in METHODS {
        let mut adapter = build(name, &head);
        let mut sizes = Vec::new();
        for round in 0..4 {
            for seed in 0..15 {
                adapter.step(&block(&head, 100, 100 * round + seed).batch()).unwrap();
            }
            sizes.push(adapter.vitals().state_bytes);
        }
        assert!(sizes[3] <= sizes[1], "{name}: {sizes:?}");
    }
}

#[test]
fn degenerate_input_stays_finite() {
    // Two classes with the same anchor, rows all equal and exactly on it or opposite to it.
    let anchor = Features::normalized(noise(DIM, 3), DIM).unwrap().data().to_vec();
    let head = Head::new([anchor.clone(), anchor.clone()].concat(), DIM, ["a", "b"], 100.0).unwrap();
    let opposite: Vec<f32> = anchor.iter().map(|v| -v).collect();
    for row in [anchor, opposite] {
        let features = Features::new(row.repeat(70), DIM).unwrap();
        let stream = Block::new(&head, features.clone(), features.select(&[0; 70 * VIEWS]));
        for name in METHODS {
            let mut adapter = build(name, &head);
            for _ in 0..3 {
                let step = adapter.step(&stream.batch()).unwrap();
                assert!(step.scores.data().iter().all(|s| s.is_finite()), "{name}");
                assert!(step.answers.iter().all(|a| a.prob.is_finite()), "{name}");
            }
            assert!(State::from_bytes(&with_format(adapter.save()).to_bytes().unwrap()).is_ok(), "{name}");
        }
    }
}

fn with_format(mut state: State) -> State {
    state.metadata.insert("format".into(), format!("ultta-state-{}", ultta::state::STATE_VERSION));
    state
}

#[test]
fn settings_out_of_range_are_refused() {
    let head = head();
    for (method, key, value) in [
        ("t3a", "filter_k", "0"),
        ("tda", "mask_low", "0"),
        ("onzeta", "horizon", "0"),
        ("lame", "weight", "-1"),
        ("stata", "alpha", "0"),
        ("freetta", "refresh", "0"),
        ("bca", "embedding_threshold", "2"),
        ("dmn", "beta", "-1"),
        ("zero", "share", "1.5"),
        ("prior_only", "gamma", "0"),
        ("temperature_only", "min", "9"),
        ("boost_adapter", "caches.alpha", "-1"),
        ("tip_adapter", "alpha", "-1"),
    ] {
        let config = Config::resolve(None, Some(method), None, &[(key, value)]).unwrap();
        let error = config
            .method
            .build(&head.clone().into())
            .err()
            .unwrap_or_else(|| panic!("{method}.{key}"))
            .to_string();
        assert!(error.contains(key), "{error}");
    }
}

// === the oracles ===

/// A fixture made by the script of the same name.
struct Fixture {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Fixture {
    fn open(name: &'static str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.safetensors"));
        Self { name, bytes: std::fs::read(path).unwrap() }
    }

    fn metadata(&self, key: &str) -> String {
        let (_, header) = SafeTensors::read_metadata(&self.bytes).unwrap();
        header.metadata().as_ref().unwrap()[key].clone()
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap();
        view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    fn f64s(&self, name: &str) -> Vec<f64> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap();
        view.data().as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
    }

    fn state(&self, step: usize) -> State {
        let prefix = format!("state.{step}.");
        let mut state = State::default();
        for (name, view) in self.tensors().iter() {
            let Some(name) = name.strip_prefix(&prefix) else { continue };
            let data = view.data();
            match view.dtype() {
                Dtype::F64 => state.put(
                    name,
                    &data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect::<Vec<_>>(),
                ),
                Dtype::F32 => state.put(
                    name,
                    &data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>(),
                ),
                Dtype::U64 => state.put(
                    name,
                    &data.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b)).collect::<Vec<_>>(),
                ),
                Dtype::U32 => state.put(
                    name,
                    &data.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect::<Vec<_>>(),
                ),
                other => panic!("{name}: {other:?}"),
            }
        }
        state
    }

    /// Every step from the oracle's own state: same answers, same state after it, to 1e-5.
    fn check(&self) {
        let dim = self.tensors().tensor("features").unwrap().shape()[1];
        let prototypes = self.f32s("prototypes");
        let names: Vec<String> = (0..prototypes.len() / dim).map(|c| c.to_string()).collect();
        let scale: f32 = self.metadata("logit_scale").parse().unwrap();
        let head = Head::new(prototypes, dim, names, scale).unwrap();
        let features = Features::new(self.f32s("features"), dim).unwrap();
        let views = match self.tensors().names().contains(&"views") {
            true => Features::new(self.f32s("views"), dim).unwrap(),
            false => Features::empty(dim),
        };
        let stream = Block::new(&head, features, views);
        let config = Config::from_toml(&self.metadata("config")).unwrap();
        let mut adapter = config.method.build(&head.clone().into()).unwrap();
        self.same_state(&adapter.save(), &self.state(0), 0);
        let batch: usize = self.metadata("batch").parse().unwrap();
        for step in 0..self.metadata("steps").parse().unwrap() {
            adapter.load(&self.state(step)).unwrap();
            let part = stream.batch();
            let part = part.slice(step * batch..(step + 1) * batch);
            let prediction = adapter.step(&part).unwrap();
            let expected = self.f64s(&format!("probs.{step}"));
            for (row, expected) in expected.chunks(head.n_classes()).enumerate() {
                let mut probs = vec![0.0; head.n_classes()];
                softmax(prediction.scores.row(row), prediction.tau_cal[row], &mut probs);
                for (got, want) in probs.iter().zip(expected) {
                    assert!(
                        (*got as f64 - want).abs() < 1e-5,
                        "{}, step {step}: {got}, expected {want}",
                        self.name
                    );
                }
            }
            self.same_state(&adapter.save(), &self.state(step + 1), step + 1);
        }
    }

    fn same_state(&self, ours: &State, oracle: &State, step: usize) {
        let keys = |s: &State| s.tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(ours), keys(oracle), "{}", self.name);
        let values = |t: &Tensor| -> Vec<f64> {
            match t {
                Tensor::F64(v) => v.clone(),
                Tensor::F32(v) => v.iter().map(|&v| v as f64).collect(),
                Tensor::U64(v) => v.iter().map(|&v| v as f64).collect(),
                Tensor::U32(v) => v.iter().map(|&v| v as f64).collect(),
                other => panic!("{other:?}"),
            }
        };
        for (name, tensor) in &ours.tensors {
            let (got, want) = (values(tensor), values(&oracle.tensors[name]));
            assert_eq!(got.len(), want.len(), "{}, step {step}: {name}", self.name);
            for (g, w) in got.iter().zip(&want) {
                let close = (g - w).abs() <= 1e-5 * w.abs().max(1.0);
                assert!(close, "{}, step {step}: {name}: {g}, expected {w}", self.name);
            }
        }
    }
}

macro_rules! oracles {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            Fixture::open(stringify!($name)).check();
        }
    )*};
}

mod oracle {
    use super::Fixture;
    oracles! { tda tda_views boost_adapter zero t3a tip_adapter dmn onzeta bca freetta prior_only temperature_only lame stata }
}

// === quirks of published code ===

mod quirk {
    use super::*;

    /// `filter_K = -1` was meant to keep every support; the slice `[:-1]` drops one per class and batch.
    #[test]
    fn t3a_keep_all_drops_one_support_per_class_and_batch() {
        Fixture::open("t3a_keep_all").check();
    }

    /// The entropy is in nats and its divisor log₂ C: a uniform row has "normalised" entropy ln 2, not 1.
    #[test]
    fn tda_divides_nats_by_bits() {
        let anchors: Vec<f32> = (0..4).flat_map(|c| (0..4).map(move |d| f32::from(c == d))).collect();
        let head = Head::new(anchors, 4, ["a", "b", "c", "d"], 1e-3).unwrap();
        let uniform = Block::new(&head, Features::new(vec![0.5; 4], 4).unwrap(), Features::empty(4));
        assert!((uniform.frozen[0].entropy - 4f32.ln()).abs() < 1e-6);
        for (high, enters) in [(0.69, false), (0.70, true)] {
            let high = high.to_string();
            let config =
                Config::resolve(None, Some("tda"), None, &[("entropy_high", high.as_str())]).unwrap();
            let mut tda = config.method.build(&head.clone().into()).unwrap();
            tda.step(&uniform.batch()).unwrap();
            let held = tda.save().get::<u32>("negative.class").unwrap().len();
            assert_eq!(held == 1, enters, "ln 4 / log2 4 = {}", 4f64.ln() / 2.0);
        }
    }

    /// A sample enters the cache before it is scored, so the first answer already counts itself.
    #[test]
    fn tda_scores_a_sample_against_itself() {
        let head = head();
        let first = block(&head, 1, 12);
        let alone = Block::new(&head, first.features.clone(), Features::empty(DIM));
        let mut tda = build("tda", &head);
        let step = tda.step(&alone.batch()).unwrap();
        let label = alone.frozen[0].label;
        // α₊ exp(−β₊ (1 − ⟨z, z⟩)) = 2, less what the negative cache takes if the sample is in it, too
        let gain = step.scores.row(0)[label] - alone.zero_shot.row(0)[label];
        let negative = tda.save().get::<u32>("negative.masks").unwrap().contains(&(label as u32));
        assert!((gain - if negative { 2.0 - 0.117 } else { 2.0 }).abs() < 1e-4, "{gain}");
    }

    /// The mixing weight is β √((i+1)/n): the same sample is answered differently under another stream length.
    #[test]
    fn onzeta_depends_on_the_length_of_the_stream() {
        let head = head();
        let stream = block(&head, 5, 13);
        let answer = |horizon: &str| {
            let config = Config::resolve(None, Some("onzeta"), None, &[("horizon", horizon)]).unwrap();
            config.method.build(&head.clone().into()).unwrap().step(&stream.batch()).unwrap().scores
        };
        assert_ne!(answer("5"), answer("50"));
        // beyond its horizon the weight stays at β
        let config = Config::resolve(None, Some("onzeta"), None, &[("horizon", "5")]).unwrap();
        let mut adapter = config.method.build(&head.clone().into()).unwrap();
        (0..3).for_each(|_| drop(adapter.step(&stream.batch()).unwrap()));
        assert_eq!(adapter.vitals().evidence_weight, 0.8);
    }

    /// S₀ is divided by the number of rows once per chunk of 2500: only larger batches notice.
    #[test]
    fn stata_divides_its_first_variance_inside_the_chunk_loop() {
        let head = head();
        let answers = |n: usize, chunked: &str| {
            let config =
                Config::resolve(None, Some("stata"), None, &[("chunked_variance", chunked), ("rounds", "1")]);
            let stream = Block::new(&head, rows(&head, n, 14), Features::empty(DIM));
            config
                .unwrap()
                .method
                .build(&head.clone().into())
                .unwrap()
                .predict(&stream.batch())
                .unwrap()
                .scores
        };
        assert_eq!(answers(60, "true"), answers(60, "false"));
        assert_ne!(answers(2600, "true"), answers(2600, "false"));
    }
}

// === labelled shots ===

#[test]
fn tip_adapter_reads_its_shots() {
    let head = head();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shots.safetensors");
    let shots = rows(&head, 6, 15);
    let write = |labels: &[i64]| {
        let keys: Vec<u8> = shots.data().iter().flat_map(|v| v.to_le_bytes()).collect();
        let labels: Vec<u8> = labels.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = |dtype, shape, data| safetensors::tensor::TensorView::new(dtype, shape, data).unwrap();
        let tensors = [
            ("features", view(Dtype::F32, vec![6, DIM], &keys)),
            ("labels", view(Dtype::I64, vec![6], &labels)),
        ];
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    };
    let build = || {
        let file = path.to_str().unwrap();
        Config::resolve(None, Some("tip-adapter"), None, &[("shots", file)])
            .unwrap()
            .method
            .build(&head.clone().into())
    };
    let labels = [0, 1, 2, 3, 4, 0];
    write(&labels);
    let mut adapter = build().unwrap();
    let stream = Block::new(&head, rows(&head, 4, 16), Features::empty(DIM));
    let before = adapter.save();
    let step = adapter.step(&stream.batch()).unwrap();
    assert_eq!(adapter.save(), before, "labelled shots learn nothing from the stream");
    for row in 0..4 {
        let mut expected: Vec<f64> = stream.zero_shot.row(row).iter().map(|&v| v as f64).collect();
        for (shot, &label) in labels.iter().enumerate() {
            let product: f64 =
                stream.features.row(row).iter().zip(shots.row(shot)).map(|(a, b)| (a * b) as f64).sum();
            expected[label as usize] += 1.17 * (-(1.0 - product)).exp();
        }
        for (got, want) in step.scores.row(row).iter().zip(expected) {
            assert!((*got as f64 - want).abs() < 1e-4, "{got} {want}");
        }
    }
    write(&[0, 1, 2, 3, 4, 5]);
    assert!(build().err().unwrap().to_string().contains("label 5"));
    std::fs::write(&path, "torn").unwrap();
    assert!(build().is_err());
}

#[test]
fn temperature_only_learns_from_delayed_labels() {
    let head = head();
    let stream = block(&head, 64, 17);
    let config =
        Config::resolve(None, Some("temperature-only"), None, &[("beta", "0"), ("prior_strength", "0.1")]);
    let mut adapter = config.unwrap().method.build(&head.clone().into()).unwrap();
    adapter.step(&stream.batch()).unwrap();
    assert_eq!(adapter.vitals().tau_cal, 3.0, "entropy alone asks for the largest temperature");
    // labels that the frozen answer gets wrong every other time: it was too sure
    for id in 0..64 {
        let label = stream.frozen[id as usize].label;
        adapter.feedback(id, if id % 2 == 0 { label } else { (label + 1) % CLASSES }).unwrap();
    }
    assert!(adapter.feedback(64, 0).is_err());
    adapter.step(&stream.batch()).unwrap();
    assert!(adapter.vitals().tau_cal < 1.0, "{}", adapter.vitals().tau_cal);
}
