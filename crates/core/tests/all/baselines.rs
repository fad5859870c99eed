//! The baseline methods: each against its NumPy oracle step by step, and the quirks of published code that a
//! faithful baseline reproduces. The laws that every method keeps are in `laws.rs`.

use std::path::PathBuf;

use crate::common::batch::{Block, CLASSES, DIM, block, build, head, rows};

use safetensors::{Dtype, SafeTensors};
use ultta::internal::softmax;
use ultta::{Config, Features, Head, State, Tensor};

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
        let views = if self.tensors().names().contains(&"views") {
            Features::new(self.f32s("views"), dim).unwrap()
        } else {
            Features::empty(dim)
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
            let prediction = adapter.step(&part);
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
                Tensor::F64(v) => v.to_vec(),
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
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                Fixture::open(stringify!($name)).check();
            }
        )*

        /// `zero_shot` computes nothing; the oracle of `ul_tta` is compared in `oracle.rs`.
        #[test]
        fn no_method_is_without() {
            let compared = ["zero_shot", "ul_tta", $(stringify!($name)),*];
            for card in ultta::cards() {
                assert!(compared.contains(&card.name), "{} is not in the list oracles!", card.name);
            }
        }
    };
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
            tda.step(&uniform.batch());
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
        let step = tda.step(&alone.batch());
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
            config.method.build(&head.clone().into()).unwrap().step(&stream.batch()).scores
        };
        assert_ne!(answer("5"), answer("50"));
        // beyond its horizon the weight stays at β
        let config = Config::resolve(None, Some("onzeta"), None, &[("horizon", "5")]).unwrap();
        let mut adapter = config.method.build(&head.clone().into()).unwrap();
        (0..3).for_each(|_| drop(adapter.step(&stream.batch())));
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
            config.unwrap().method.build(&head.clone().into()).unwrap().predict(&stream.batch()).scores
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
    let step = adapter.step(&stream.batch());
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
    adapter.step(&stream.batch());
    assert_eq!(adapter.vitals().tau_cal, 3.0, "entropy alone asks for the largest temperature");
    // labels that the frozen answer gets wrong every other time: it was too sure
    for id in 0..64 {
        let label = stream.frozen[id as usize].label;
        adapter.feedback(id, if id % 2 == 0 { label } else { (label + 1) % CLASSES }).unwrap();
    }
    assert!(adapter.feedback(64, 0).is_err());
    adapter.step(&stream.batch());
    assert!(adapter.vitals().tau_cal < 1.0, "{}", adapter.vitals().tau_cal);
}
