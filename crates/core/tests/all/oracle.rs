//! UL-TTA against an independent writing of it, `fixtures/ul_tta.py`: step by step from restored states.
//!
//! A fixture holds a stream and, at several points of it, the oracle's whole state under the names of a state file.
//! From there the session answers every sample up to and including the next update. Compared are the scores, both
//! probability distributions and the gate's decisions on the way, and what the update did.
//!
//! Tolerance: 1e-5, relative where values are large. Folded rows have one of their own: they are rounded to 16 bits,
//! so a coefficient may differ by one unit (the oracle rounds the same value in f64), and image scores with it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::config;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use ultta::{Config, Features, Head, Session, State, Temperature, Tensor};

const TOLERANCE: f64 = 1e-5;

struct Fixture {
    name: String,
    bytes: Vec<u8>,
    config: Config,
    head: Arc<Head>,
    features: Features<'static>,
    /// Rows at which a comparison starts, and at which its update falls.
    spans: Vec<(usize, usize)>,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let case: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["case"]).unwrap();
        let settings: Vec<(String, String)> = serde_json::from_value(case["settings"].clone()).unwrap();
        let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let rows = |key: &str| -> Vec<usize> { serde_json::from_value(case[key].clone()).unwrap() };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let dim = file.tensor("features").unwrap().shape()[1];
        let classes = file.tensor("prototypes").unwrap().shape()[0];
        let names = (0..classes).map(|c| c.to_string());
        let scale = case["logit_scale"].as_f64().unwrap() as f32;
        let head = Head::new(f32s(&file, "prototypes"), dim, names, scale).unwrap();
        let features = Features::new(f32s(&file, "features"), dim).unwrap();
        Self {
            name: name.into(),
            config: config(case["method"].as_str().unwrap(), &settings),
            head: Arc::new(head),
            features,
            spans: rows("starts").into_iter().zip(rows("ends")).collect(),
            bytes,
        }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// A session in the oracle's state at a point.
    fn restore(&self, point: usize) -> Session {
        let file = self.file();
        let mut session = Session::new(self.head.clone(), &self.config).unwrap();
        let mut state = session.state();
        let prefix = format!("{point}.state.");
        for (name, view) in file.iter() {
            let Some(name) = name.strip_prefix(&prefix) else { continue };
            let data = view.data();
            let tensor = match view.dtype() {
                Dtype::F64 => Tensor::F64(chunks(data, f64::from_le_bytes).into()),
                Dtype::F32 => Tensor::F32(chunks(data, f32::from_le_bytes).into()),
                Dtype::U64 => Tensor::U64(chunks(data, u64::from_le_bytes).into()),
                Dtype::U32 => Tensor::U32(chunks(data, u32::from_le_bytes).into()),
                Dtype::I16 => Tensor::I16(chunks(data, i16::from_le_bytes).into()),
                Dtype::U8 => Tensor::U8(data.to_vec().into()),
                other => panic!("{name}: {other:?}"),
            };
            state.tensors.insert(name.to_string(), tensor);
        }
        if let Tensor::U64(counts) = state.tensors.get_mut("session.counts").unwrap() {
            std::sync::Arc::make_mut(counts)[0] = self.spans[point].0 as u64;
        }
        as_saved(&mut state, self.head.dim());
        session.load(&state).unwrap();
        session
    }

    /// Steps from every point to its update and compares.
    fn check(&self) {
        for point in 0..self.spans.len() {
            let (start, end) = self.spans[point];
            let mut session = self.restore(point);
            let step = session.step(&self.features.slice(start..end)).unwrap();
            let file = self.file();
            let expect = |what: &str| f32s(&file, &format!("{point}.{what}"));
            let (scores, pred, cal) = (expect("scores"), expect("pred"), expect("cal"));
            let admitted = file.tensor(&format!("{point}.admitted")).unwrap();
            let classes = self.head.n_classes();
            for row in 0..end - start {
                let what = format!("{}, row {}", self.name, start + row);
                let wanted = &scores[row * classes..][..classes];
                let largest = wanted.iter().fold(1.0f32, |m, v| m.max(v.abs())) as f64;
                for (got, wanted) in step.prediction.scores.row(row).iter().zip(wanted) {
                    let gap = (*got as f64 - *wanted as f64).abs() / largest;
                    assert!(gap < TOLERANCE, "{what}: score {got}, expected {wanted}");
                }
                for (temperature, wanted) in [(Temperature::Pred, &pred), (Temperature::Cal, &cal)] {
                    let wanted = &wanted[row * classes..][..classes];
                    let probs = step.probs(row, temperature);
                    for (got, wanted) in probs.iter().zip(wanted) {
                        // a probability moves with its score
                        let gap = (got - wanted).abs() as f64 / largest;
                        assert!(gap < TOLERANCE, "{what}: {temperature:?} {got}, expected {wanted}");
                    }
                }
                assert_eq!(step.rows[row].admitted, admitted.data()[row] != 0, "{what}");
                let garbage = file.tensor(&format!("{point}.garbage")).is_ok_and(|t| t.data()[row] != 0);
                assert_eq!(step.rows[row].garbage, garbage, "{what}");
            }
            self.check_update(point, &session.state());
        }
    }

    /// What the update learnt.
    fn check_update(&self, point: usize, state: &State) {
        let file = self.file();
        // The oracle's sums have the waiting rows in them, and its triangles are squares.
        let state = &state.settled().unwrap();
        let prefix = format!("{point}.learnt.");
        let paper = self.name.starts_with("paper");
        let scale = state.scalar::<f64>("evidence.scale").unwrap_or(1.0);
        let decayed = |name: &str| -> Vec<f64> {
            state.get::<f64>(&format!("evidence.decayed.{name}")).unwrap().iter().map(|v| v * scale).collect()
        };
        let mut compared = 0;
        for (name, view) in file.iter() {
            let Some(name) = name.strip_prefix(&prefix) else { continue };
            let mut wanted = chunks(view.data(), f64::from_le_bytes);
            if ["evidence.second", "local.fold.factor"].contains(&name) && !paper {
                wanted = packed(&wanted, self.head.dim());
            }
            // The true values behind what is stored over a scale.
            let got = match name {
                "fold.rows" | "fold.row_scale" | "scenes" => continue,
                "evidence.n" => decayed("n"),
                "evidence.second" => decayed("second"),
                "evidence.class_n" if !paper => decayed("class_n"),
                "evidence.class_sum" if !paper => decayed("class_sum"),
                "experts" => self.expert_counts(state),
                name => floats(&state.tensors[name]),
            };
            let what = format!("{}, update at {}, {name}", self.name, self.spans[point].1);
            // Rounded rows carry their tolerance into the biases and movements computed from them.
            let tolerance = match name {
                "local.fold.bias" | "local.movement" if !paper => 1e-4,
                // The search for τ_cal stops within a thousandth.
                "local.calibration" if !paper => 1e-4,
                _ => TOLERANCE,
            };
            close(&got, &wanted, tolerance, &what);
            compared += 1;
        }
        assert!(compared >= 8, "{}: only {compared} arrays compared", self.name);
        if !paper {
            self.check_fold(point, state);
        }
    }

    /// Soft counts of the experts: `π⁰ · scale · (counts + spread)`.
    fn expert_counts(&self, state: &State) -> Vec<f64> {
        let classes = self.head.n_classes();
        let counts = state.get::<f64>("local.prior.counts").unwrap();
        let sums = state.get::<f64>("local.prior.sums").unwrap();
        let text = self.config.to_toml();
        let start: toml::Table = text.parse().unwrap();
        let start: Vec<f64> = start["method"]["ul_tta"]["prior"]["start"].clone().try_into().unwrap();
        let start = if start.is_empty() { vec![1.0 / classes as f64; classes] } else { start };
        // The last two are the background's, as ratios to an even share.
        let background = counts.len() - 2 * classes;
        let one = |i: usize| {
            let sums = &sums[i / classes * 3..][..3];
            let start = if i < background { start[i % classes] } else { 1.0 / classes as f64 };
            start * sums[0] * (counts[i] + sums[2])
        };
        (0..counts.len()).map(one).collect()
    }

    /// Folded rows within one unit of their rounding, and image scores within what that makes of them.
    fn check_fold(&self, point: usize, state: &State) {
        let file = self.file();
        let learnt = |name: &str| {
            let view = file.tensor(&format!("{point}.learnt.{name}")).unwrap();
            chunks(view.data(), f64::from_le_bytes)
        };
        let dim = self.head.dim();
        let (rows, units) = (learnt("fold.rows"), learnt("fold.row_scale"));
        let stored = state.get::<i16>("local.fold.rows").unwrap();
        let scales = state.get::<f32>("local.fold.row_scale").unwrap();
        let (bias, wanted_bias) = (state.get::<f32>("local.fold.bias").unwrap(), learnt("local.fold.bias"));
        let mut folded = 0;
        for class in 0..self.head.n_classes() {
            let unit = units[class];
            let got: Vec<f64> =
                stored[class * dim..][..dim].iter().map(|&q| q as f64 * scales[class] as f64).collect();
            let wanted = &rows[class * dim..][..dim];
            for (got, wanted) in got.iter().zip(wanted) {
                let gap = (got - wanted).abs();
                assert!(
                    gap <= 1.01 * unit + TOLERANCE * wanted.abs(),
                    "{}: {got}, expected {wanted}",
                    self.name
                );
            }
            folded += usize::from(unit > 0.0);
            for row in 0..20 {
                let z = self.features.row(row);
                let score = |a: &[f64], b: f64| a.iter().zip(z).map(|(a, &z)| a * z as f64).sum::<f64>() + b;
                let (got, wanted) = (score(&got, bias[class] as f64), score(wanted, wanted_bias[class]));
                let length: f64 = z.iter().map(|v| v.abs() as f64).sum();
                let allowed = 2.0 * unit * length + TOLERANCE * wanted.abs().max(1.0);
                assert!(
                    (got - wanted).abs() <= allowed,
                    "{}: image score {got}, expected {wanted}",
                    self.name
                );
            }
        }
        // before the gate admits a sample there is nothing to fold
        let taught = learnt("evidence.class_n").iter().any(|&n| n > 0.0);
        assert_eq!(folded > 0, taught, "{}: nothing was folded", self.name);
    }

    /// Delayed labels: the temperature they ask for.
    fn check_labels(&self) {
        let file = self.file();
        let last = self.spans.len() - 1;
        let (start, end) = self.spans[last];
        let mut session = self.restore(last);
        session.step(&self.features.slice(start..end)).unwrap();
        let told = |name: &str| chunks(file.tensor(name).unwrap().data(), u64::from_le_bytes);
        for (id, label) in told("told.ids").into_iter().zip(told("told.labels")) {
            session.feedback(id, label as usize).unwrap();
        }
        let wanted = chunks(file.tensor("told.tau_cal").unwrap().data(), f64::from_le_bytes)[0];
        let got = session.health().tau_cal;
        // The search stops once a step is below a thousandth: its last step is quadratically smaller.
        assert!((got - wanted).abs() < 1e-4 * wanted, "{}: tau_cal {got}, expected {wanted}", self.name);
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&b| from(b)).collect()
}

fn f32s(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    chunks(file.tensor(name).unwrap().data(), f32::from_le_bytes)
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor {
        Tensor::F64(v) => v.to_vec(),
        Tensor::F32(v) => v.iter().map(|&v| v as f64).collect(),
        other => panic!("{other:?}"),
    }
}

/// The lower triangle of a square, column by column.
fn packed<T: Copy>(square: &[T], dim: usize) -> Vec<T> {
    (0..dim).flat_map(|c| square[c * dim..][c..dim].iter().copied()).collect()
}

/// The oracle writes squares, and the second moments with and without the waiting rows; a state has triangles, without.
fn as_saved(state: &mut State, dim: usize) {
    if let Ok(factor) = state.get::<f32>("local.fold.factor").map(|factor| packed(factor, dim)) {
        state.put("local.fold.factor", &factor);
    }
    let Ok(second_n) = state.scalar::<f64>("local.evidence.second_n") else { return };
    let with_rows = state.get::<f64>("evidence.decayed.second").unwrap().to_vec();
    let second = state.get::<f64>("local.evidence.second").map_or(with_rows, <[f64]>::to_vec);
    state.put("evidence.decayed.second", &packed(&second, dim));
    let n = state.get::<f64>("evidence.decayed.n").unwrap()[0];
    state.put("evidence.decayed.n", &[n, second_n]);
    let second_sum = state.get::<f64>("local.evidence.second_sum").unwrap().to_vec();
    state.put("evidence.decayed.second_sum", &second_sum);
    for name in ["second_n", "second_sum", "second"] {
        state.tensors.remove(&format!("local.evidence.{name}"));
    }
}

fn close(got: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let gap = (got - wanted).abs() / wanted.abs().max(1.0);
        assert!(gap <= tolerance, "{what}[{i}]: {got}, expected {wanted}");
    }
}

macro_rules! fixtures {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn follows_the_oracle() {
                super::Fixture::open(stringify!($name)).check();
            }

            #[test]
            fn follows_delayed_labels() {
                super::Fixture::open(stringify!($name)).check_labels();
            }
        }
    )*};
}

fixtures! {
    default_few default_start default_many default_shift default_dull default_garbage paper_few paper_loose paper_many
}

/// What keeps the fixtures worth something: they cover what the method does.
#[test]
fn fixtures_cover_the_method() {
    let default =
        ["default_few", "default_start", "default_many", "default_shift", "default_dull", "default_garbage"];
    let all = [&default[..], &["paper_few", "paper_loose", "paper_many"]].concat();
    let fixtures: Vec<Fixture> = all.iter().map(|name| Fixture::open(name)).collect();
    let learnt = |fixture: &Fixture, name: &str| -> Vec<Vec<f64>> {
        let file = fixture.file();
        (0..fixture.spans.len())
            .filter_map(|p| file.tensor(&format!("{p}.learnt.{name}")).ok().map(|v| v.data().to_vec()))
            .map(|data| chunks(&data, f64::from_le_bytes))
            .collect()
    };
    let any = |name: &str, test: &dyn Fn(&[f64]) -> bool| {
        fixtures.iter().flat_map(|f| learnt(f, name)).any(|values| test(&values))
    };
    let trusted = |v: &[f64]| v.chunks(2).all(|r| r[1] > 0.0 && 1.0 - r[0] / r[1] > 0.2);
    assert!(any("local.image.records", &trusted), "the image evidence foretells something somewhere");
    let approved = |v: &[f64]| v[2..8].iter().any(|&gain| gain > 1.0);
    assert!(any("local.image", &approved), "the second opinion approves of what it changes, so it speaks");
    assert!(any("local.image", &|v| v[2..8].iter().all(|&gain| gain <= 0.0)), "and elsewhere not");
    assert!(
        any("local.image", &|v| v[8] > 0.0 && v[8] < v[9]),
        "the halves agree on some samples, not on all"
    );
    assert!(any("local.prior.stay", &|v| v.iter().any(|&s| s > 2.0)), "the filter expects a class to stay");
    assert!(any("scenes", &|v| v[0] > 5.0), "there are copies");
    assert!(any("scenes", &|v| v[1] > 0.0), "and a restart");
    assert!(any("local.calibration", &|v| v[2] < 0.95 || v[2] > 1.05), "tau_cal moves");
    assert!(any("local.temperatures", &|v| v[0] > 1.5), "the paper's tau_pred moves");
    assert!(any("local.tau_pred", &|v| v[0] > 1.5), "and that of the default");
    assert!(any("local.prior.kl", &|v| v[0] > 0.1), "the prior moves");
    assert!(any("local.prior.kl", &|v| (v[0] - 0.07).abs() < 1e-9), "and is capped");
    assert!(any("local.movement", &|v| (v[0] - 0.01).abs() < 1e-3), "prototypes are clipped");
    assert!(any("local.movement", &|v| v[0] > 0.1), "and not");
    let garbage = fixtures.iter().find(|f| f.name == "default_garbage").unwrap();
    let told = [0, 1].map(|point| {
        let file = garbage.file();
        file.tensor(&format!("{point}.garbage")).unwrap().data().to_vec()
    });
    assert_eq!(told[0][..20], [0; 20], "garbage that comes first is noticed late");
    assert!(told[0][21..34].iter().all(|&row| row == 1), "and then told, its copies too: {:?}", told[0]);
    assert_eq!(learnt(garbage, "scenes")[0][1], 1.0, "what it taught is forgotten");
    let clean = |from: usize, to: usize| told[1][from - 75..to - 75].iter().all(|&row| row == 0);
    let noticed = |from: usize, to: usize| told[1][from - 75..to - 75].iter().all(|&row| row == 1);
    assert!(clean(75, 80) && noticed(80, 81) && clean(81, 90), "a single row: {:?}", told[1]);
    assert!(noticed(90, 98) && noticed(99, 100) && clean(100, 103), "a run, an opposite: {:?}", told[1]);
    for name in ["default_many", "paper_many"] {
        let fixture = fixtures.iter().find(|f| f.name == name).unwrap();
        let file = fixture.file();
        let counts = chunks(file.tensor("1.state.local.recent.counts").unwrap().data(), u32::from_le_bytes);
        assert!(counts.contains(&16) && counts.iter().any(|&c| c < 16), "{name}: {counts:?}");
    }
}
