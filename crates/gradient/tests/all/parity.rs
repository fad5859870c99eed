//! Gradients, losses and parameters step by step beside PyTorch's: `fixtures/make.py` made what is compared with.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use safetensors::SafeTensors;
use ultta::Head;
use ultta_gradient::method::Classifier;
use ultta_gradient::train::{Parameters, Which};
use ultta_gradient::{MethodConfig, Model, Session, entropy};

const STEPS: usize = 3;
const TOLERANCE: f32 = 1e-4;

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

struct Fixture {
    bytes: Vec<u8>,
    settings: serde_json::Value,
    model: Arc<Model>,
    head: Arc<Head>,
}

impl Fixture {
    fn open() -> Self {
        let bytes = std::fs::read(fixtures().join("steps.safetensors")).unwrap();
        let text = std::fs::read_to_string(fixtures().join("settings.json")).unwrap();
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap();
        let model = Arc::new(Model::open(fixtures().join("clip").to_str().unwrap()).unwrap());
        let mut fixture = Self { bytes, settings, model, head: dummy() };
        let scale = fixture.settings["scale"].as_f64().unwrap() as f32;
        assert!((fixture.model.logit_scale() - scale).abs() < 1e-5);
        let names: Vec<String> = (0..5).map(|c| format!("class {c}")).collect();
        fixture.head = Arc::new(Head::new(fixture.get("prototypes"), 8, names, scale).unwrap());
        fixture
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn get(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let data = tensors.tensor(name).unwrap_or_else(|_| panic!("no {name}")).data().to_vec();
        data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    /// The names behind a prefix.
    fn names(&self, prefix: &str) -> BTreeSet<String> {
        self.tensors().names().iter().filter_map(|n| n.strip_prefix(prefix)).map(str::to_string).collect()
    }

    fn classifier(&self) -> Classifier {
        Classifier::new(self.model.clone(), self.head.clone()).unwrap()
    }

    fn config(&self, method: &str, further: &str) -> MethodConfig {
        let mut table: toml::Table = serde_json::from_value(self.settings[method].clone()).unwrap();
        table.extend(further.parse::<toml::Table>().unwrap());
        let text = format!("[method.{method}]\n{}", toml::to_string(&table).unwrap());
        MethodConfig::resolve(method, Some(&text)).unwrap().unwrap()
    }

    /// Every number of a method after the first and the last step, its answers after each.
    fn check(&self, method: &str, further: &str, source: bool) {
        let mut session =
            Session::new(self.model.clone(), self.head.clone(), &self.config(method, further)).unwrap();
        if source {
            session.prepare(&self.get("source")).unwrap();
        }
        let start = self.model.weights();
        for k in 0..STEPS {
            let step = session.step(&self.get(&format!("pixels.{k}")), None).unwrap();
            let logits = self.get(&format!("{method}.logits.{k}"));
            near(&format!("{method}: logits of step {k}"), step.prediction.scores.data(), &logits);
            let loss = self.get(&format!("{method}.loss.{k}"));
            near(&format!("{method}: loss of step {k}"), &[session.cost().loss as f32], &loss);
            let prefix = format!("{method}.after.{k}.");
            let names = self.names(&prefix);
            if names.is_empty() {
                continue;
            }
            let values: Vec<(String, Vec<f32>)> = session
                .method()
                .parameters()
                .values()
                .map(|(name, value)| (name.to_string(), flat(value)))
                .collect();
            let own: BTreeSet<String> = values.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(own, names, "{method} changes other parameters than PyTorch did");
            let mut moved = 0.0f32;
            for (name, value) in &values {
                let expected = self.get(&format!("{prefix}{name}"));
                near(&format!("{method}: {name} after step {k}"), value, &expected);
                let before = flat(&start[name]);
                moved = value.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(moved, f32::max);
            }
            assert!(
                moved > 20.0 * TOLERANCE,
                "{method}: a comparison of steps that do not move says nothing"
            );
        }
    }
}

fn dummy() -> Arc<Head> {
    let rows = [[1.0, 0.0], [0.0, 1.0]].concat();
    Arc::new(Head::new(rows, 2, vec!["a", "b"], 1.0).unwrap())
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE, "{what}: number {i}: expected {b}, got {a}");
    }
}

#[test]
fn every_norm_gets_the_gradient_of_pytorch_and_nothing_else_gets_one() {
    let fixture = Fixture::open();
    let classifier = fixture.classifier();
    let parameters = Parameters::of_images(&fixture.model, Which::Norms, 0).unwrap();
    let pixels = fixture.get("pixels.0");
    let patches = fixture.model.patches(&pixels).unwrap();
    let loss = entropy(&classifier.logits(parameters.weights(), &patches).unwrap()).unwrap();
    let loss = loss.mean_all().unwrap();
    near("loss", &[loss.to_scalar::<f32>().unwrap()], &fixture.get("tent.loss.0"));
    let grads = loss.backward().unwrap();
    let names = fixture.names("tent.grad.");
    assert_eq!(names.len(), 2 * (2 * 2 + 2), "two blocks of two norms, one before, one behind");
    for name in &names {
        let grad = grads.get(&parameters.weights()[name]).unwrap_or_else(|| panic!("no gradient for {name}"));
        let expected = fixture.get(&format!("tent.grad.{name}"));
        near(name, &flat(grad), &expected);
        assert!(expected.iter().any(|g| g.abs() > 1e-3), "{name}: a gradient of zero says nothing");
    }
    for (name, weight) in parameters.weights() {
        assert_eq!(grads.get(weight).is_some(), names.contains(name), "{name}");
    }
}

#[test]
fn every_weight_gets_the_gradient_of_pytorch_where_all_learn() {
    let fixture = Fixture::open();
    let classifier = fixture.classifier();
    let parameters = Parameters::of_images(&fixture.model, Which::All, 0).unwrap();
    let patches = fixture.model.patches(&fixture.get("pixels.0")).unwrap();
    let student = classifier.logits(parameters.weights(), &patches).unwrap();
    let teacher = Tensor::from_vec(fixture.get("cotta.logits.0"), student.shape(), student.device()).unwrap();
    let teacher = ultta_gradient::softmax(&teacher).unwrap();
    let loss = ultta_gradient::cross_entropy(&teacher, &student).unwrap().mean_all().unwrap();
    near("loss", &[loss.to_scalar::<f32>().unwrap()], &fixture.get("cotta.loss.0"));
    let grads = loss.backward().unwrap();
    let names = fixture.names("cotta.grad.");
    assert_eq!(names.len(), 2 * 12 + 2 * 2 + 4, "blocks; two norms; patch, class, position, projection");
    for name in &names {
        let grad = grads.get(&parameters.weights()[name]).unwrap_or_else(|| panic!("no gradient for {name}"));
        near(name, &flat(grad), &fixture.get(&format!("cotta.grad.{name}")));
    }
    for (name, weight) in parameters.weights() {
        assert_eq!(grads.get(weight).is_some(), names.contains(name), "{name}");
    }
}

#[test]
fn tent_steps_are_those_of_pytorch() {
    Fixture::open().check("tent", "", false);
}

#[test]
fn eata_steps_are_those_of_pytorch() {
    Fixture::open().check("eata", "", true);
}

#[test]
fn sar_steps_are_those_of_pytorch() {
    Fixture::open().check("sar", "", false);
}

#[test]
fn cotta_steps_are_those_of_pytorch() {
    Fixture::open().check("cotta", "", false);
}

#[test]
fn the_towers_agree_with_the_encoder_in_plain_rust() {
    let fixture = Fixture::open();
    let encoder = ultta_encode::Clip::open(fixtures().join("clip")).unwrap();
    let pixels = fixture.get("pixels.0");
    let expected = ultta_encode::Encoder::images(&encoder, &pixels).unwrap();
    let model = &fixture.model;
    let features = model.images(model.weights(), &model.patches(&pixels).unwrap()).unwrap();
    near("images", &flat(&features), expected.data());
    let ids: Vec<Vec<u32>> = vec![vec![0, 4, 9, 2, 15, 1], vec![0, 7, 15, 1, 1, 1]];
    let raw = encoder.raw_tokens(&ids).unwrap();
    let expected = ultta::Features::normalized(raw, 8).unwrap();
    let embedded = model.embed(model.weights(), &ids).unwrap();
    let features = model.texts(model.weights(), &embedded, &[4, 2]).unwrap();
    near("texts", &flat(&features), expected.data());
}
