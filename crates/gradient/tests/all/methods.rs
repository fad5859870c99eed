//! Laws that every method keeps, on a small model with random weights.

use std::sync::Arc;

use ultta::{Features, Head};
use ultta_encode::config::ModelConfig;
use ultta_encode::flops;
use ultta_encode::tiny::shapes::Style;
use ultta_encode::{Clip, Encoder};
use ultta_eval::random::Random;
use ultta_gradient::{MethodConfig, Model, Session, cards, tiny};

fn config() -> ModelConfig {
    let mut config = ultta_encode::tiny::config();
    config.vision.image_size = 16;
    config.preprocess.size = 16;
    config.preprocess.resize = ultta_encode::config::Resize::Shortest(16);
    config.vision.blocks.layers = 2;
    config.vision.blocks.width = 16;
    config.vision.blocks.hidden = 32;
    config.text.blocks.layers = 1;
    config.text.blocks.width = 16;
    config.text.blocks.hidden = 16;
    config.dim = 8;
    config
}

fn model() -> Arc<Model> {
    Arc::new(Model::random("random", config(), 3).unwrap())
}

fn head() -> Arc<Head> {
    let mut random = Random::new(4);
    let values: Vec<f32> = (0..4 * 8).map(|_| random.normal() as f32).collect();
    let unit = Features::normalized(values, 8).unwrap();
    Arc::new(Head::new(unit.data().to_vec(), 8, vec!["cat", "dog", "bird", "fish"], 4.0).unwrap())
}

fn pixels(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..n * 3 * 16 * 16).map(|_| random.normal() as f32).collect()
}

/// All methods, with margins that let samples teach and steps that can be seen.
fn methods() -> Vec<MethodConfig> {
    let file = "
[method.tent]
lr = 0.05
[method.eata]
lr = 0.05
margin = 2.0
d_margin = 1.1
[method.sar]
lr = 2.0
margin = 2.0
reset_below = 0.0
[method.cotta]
lr = 0.5
views = 2
threshold = 1.0
[method.ttt]
lr = 0.05
momentum = 0.9
[method.'ttt++']
lr = 0.05
[method.tpt]
lr = 0.05
views = 6
selected = 0.4
";
    cards().iter().map(|card| MethodConfig::resolve(card.name, Some(file)).unwrap().unwrap()).collect()
}

fn session(config: &MethodConfig) -> Session {
    Session::new(model(), head(), config).unwrap()
}

fn answers(session: &mut Session, seeds: std::ops::Range<u64>) -> Vec<Vec<f32>> {
    seeds.map(|s| session.step(&pixels(4, s), None).unwrap().prediction.scores.data().to_vec()).collect()
}

fn gap(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn every_method_learns_and_reset_undoes_it() {
    for config in methods() {
        let name = config.card().name;
        let mut session = session(&config);
        let zero_shot = session.step(&pixels(4, 0), None).unwrap().zero_shot;
        session.reset().unwrap();
        let first = answers(&mut session, 0..4);
        let last = session.step(&pixels(4, 9), None).unwrap();
        assert!(gap(last.prediction.scores.data(), last.zero_shot.data()) > 1e-3, "{name} learns nothing");
        if config.card().readout == ultta::Readout::BeforeObserve && name != "cotta" {
            assert!(
                gap(&first[0], zero_shot.data()) < 1e-4,
                "{name}: the first batch is answered before it teaches"
            );
        }
        session.reset().unwrap();
        assert_eq!(answers(&mut session, 0..4), first, "{name} after a reset");
    }
}

#[test]
fn an_episodic_method_remembers_nothing() {
    for config in methods() {
        let name = config.card().name;
        let mut table = toml::Table::try_from(&config).unwrap();
        table[name].as_table_mut().unwrap().insert("episodic".into(), true.into());
        let text = toml::to_string(&toml::Table::from_iter([("method".to_string(), table.into())])).unwrap();
        let config = MethodConfig::resolve(name, Some(&text)).unwrap().unwrap();
        let mut session = session(&config);
        let first = answers(&mut session, 7..8);
        answers(&mut session, 0..2);
        assert_eq!(answers(&mut session, 7..8), first, "{name}");
    }
}

/// A running loss below the threshold brings SAR back to where it started.
#[test]
fn sar_recovers() {
    let file = |below: &str| format!("[method.sar]\nlr = 2.0\nmargin = 2.0\nreset_below = {below}");
    let played = |below: &str| {
        let config = MethodConfig::resolve("sar", Some(&file(below))).unwrap().unwrap();
        let mut session = session(&config);
        let last = answers(&mut session, 0..3).pop().unwrap();
        (last, session.cost().resets)
    };
    let (kept, none) = played("0.0");
    let (recovered, each) = played("1000.0");
    assert_eq!((none, each), (0, 3));
    let config = MethodConfig::resolve("sar", Some(&file("0.0"))).unwrap().unwrap();
    let fresh = answers(&mut session(&config), 2..3).pop().unwrap();
    assert_eq!(recovered, fresh, "every step starts afresh");
    assert!(gap(&kept, &fresh) > 1e-3);
}

#[test]
fn a_refused_step_changes_nothing() {
    for config in methods() {
        let name = config.card().name;
        let (mut disturbed, mut plain) = (session(&config), session(&config));
        answers(&mut disturbed, 0..1);
        answers(&mut plain, 0..1);
        let cost = disturbed.cost();
        let short = disturbed.step(&pixels(1, 0)[1..], None).err().unwrap().to_string();
        assert!(short.contains("expected 768"), "{short}");
        let mut bad = pixels(2, 0);
        bad[800] = f32::NAN;
        let not_finite = disturbed.step(&bad, None).err().unwrap().to_string();
        assert!(not_finite.contains("row 1"), "{not_finite}");
        assert!(disturbed.step(&pixels(2, 0), Some(ultta::Scores::zeros(3, 4))).is_err());
        assert_eq!(disturbed.cost(), cost, "{name}");
        assert_eq!(answers(&mut disturbed, 1..3), answers(&mut plain, 1..3), "{name}");
    }
}

#[test]
fn only_what_a_method_declares_moves() {
    let start = model();
    for config in methods() {
        let name = config.card().name;
        let mut session = session(&config);
        answers(&mut session, 0..2);
        let own: Vec<String> = session.method().parameters().values().map(|(n, _)| n.to_string()).collect();
        let all = |name: &str| own.iter().all(|n| n.contains(name));
        match name {
            "tent" | "eata" | "sar" => assert!(all("norm") && all("vision"), "{name}: {own:?}"),
            "tpt" => assert_eq!(own, ["text.context"]),
            _ => assert!(own.iter().all(|n| n.starts_with("vision.") || n.starts_with("rotation."))),
        }
        for (weight, value) in session.classifier().model().weights() {
            let (a, b) = (value.flatten_all().unwrap(), start.weights()[weight].flatten_all().unwrap());
            assert_eq!(
                a.to_vec1::<f32>().unwrap(),
                b.to_vec1::<f32>().unwrap(),
                "{name}: {weight} of the model"
            );
        }
        let cost = session.cost();
        assert!(cost.updates > 0 && cost.flops > 0.0 && cost.pictures == 8, "{name}: {cost:?}");
        assert_eq!(cost.skipped, 0, "{name}");
    }
}

#[test]
fn passes_are_counted() {
    let expected = [
        ("tent", 4, 4),
        // Its Fisher information comes from the stream, so it goes twice.
        ("eata", 8, 8),
        ("sar", 8, 8),
        // Anchor, two views, student.
        ("cotta", 16, 4),
        // Four turns and the answer.
        ("ttt", 20, 16),
        ("ttt++", 12, 8),
        ("tpt", 24, 0),
    ];
    for (config, (name, forwards, backwards)) in methods().iter().zip(expected) {
        let mut session = session(config);
        session.step(&pixels(4, 0), None).unwrap();
        let cost = session.cost();
        assert_eq!((config.card().name, cost.forwards, cost.backwards), (name, forwards, backwards));
        assert_eq!(cost.text_backwards, if name == "tpt" { 16 } else { 0 });
    }
}

#[test]
fn tpt_answers_one_by_one_as_in_a_batch() {
    let config = methods().into_iter().find(|c| c.card().name == "tpt").unwrap();
    let together = session(&config).step(&pixels(3, 1), None).unwrap().prediction.scores;
    let mut one_by_one = session(&config);
    for (i, picture) in pixels(3, 1).chunks(768).enumerate() {
        let alone = one_by_one.step(picture, None).unwrap().prediction.scores;
        assert!(gap(alone.row(0), together.row(i)) < 1e-4);
    }
}

#[test]
fn source_pictures_give_ttt_a_head_and_ttt_plus_plus_its_moments() {
    for config in methods().into_iter().filter(|c| c.card().name.starts_with("ttt")) {
        let (mut with, mut without) = (session(&config), session(&config));
        with.prepare(&pixels(32, 5)).unwrap();
        let (with, without) = (answers(&mut with, 0..2), answers(&mut without, 0..2));
        assert!(gap(&with[1], &without[1]) > 1e-5, "{}", config.card().name);
    }
}

#[test]
fn a_saved_model_is_opened_by_the_encoder() {
    let folder = tempfile::tempdir().unwrap();
    let model = model();
    model.save(folder.path()).unwrap();
    let encoder = Clip::open(folder.path()).unwrap();
    let (pixels, texts) = (pixels(2, 1), ["a cat".to_string(), "two old dogs".to_string()]);
    let patches = model.patches(&pixels).unwrap();
    let images = model.images(model.weights(), &patches).unwrap().flatten_all().unwrap();
    assert!(gap(&images.to_vec1::<f32>().unwrap(), encoder.images(&pixels).unwrap().data()) < 1e-5);
    let (ids, ends) = model.tokens(&texts).unwrap();
    let words = model.texts(model.weights(), &model.embed(model.weights(), &ids).unwrap(), &ends).unwrap();
    let words = words.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(gap(&words, encoder.texts(&texts).unwrap().data()) < 1e-5);
    let again = Model::open(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(again.weights().len(), model.weights().len());
}

#[test]
fn operations_of_vit_b_16() {
    let mut config = config();
    config.vision.image_size = 224;
    config.vision.patch = 16;
    config.vision.blocks.width = 768;
    config.vision.blocks.layers = 12;
    config.vision.blocks.hidden = 3072;
    config.dim = 512;
    let forward = flops::image_forward(&config);
    assert!((forward / 1e9 - 35.1).abs() < 0.2, "{forward}");
    let (norms, all) = (flops::image_backward(&config, false), flops::image_backward(&config, true));
    assert!(norms < 1.1 * forward && all > 1.9 * forward);
}

#[test]
fn settings_out_of_range_or_unknown_are_refused() {
    for (text, word) in [
        ("[method.tent]\nlr = -1.0", "method.tent.lr"),
        ("[method.tent]\nspeed = 1.0", "speed"),
        ("[method.tent]\nbatch = 0", "method.tent.batch"),
        ("[method.eata]\nd_margin = nan", "method.eata.d_margin"),
        ("[method.sar]\nrho = nan", "method.sar.rho"),
        ("[method.sar]\nreset_below = nan", "method.sar.reset_below"),
        ("[method.cotta]\nrestore = 2.0", "method.cotta.restore"),
        ("[method.tpt]\ncontext = ''", "method.tpt.context"),
    ] {
        let name = text[8..].split(']').next().unwrap();
        let error = match MethodConfig::resolve(name, Some(text)) {
            Ok(config) => Session::new(model(), head(), &config.unwrap()).err().unwrap(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(MethodConfig::resolve("tda", None).unwrap().is_none());
    let narrow = Arc::new(Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, vec!["a", "b"], 1.0).unwrap());
    let error = Session::new(model(), narrow, &methods()[0]).err().unwrap().to_string();
    assert!(error.contains("expected 8, got 2"), "{error}");
}

#[test]
fn the_tiny_model_learns_its_shapes_and_meets_a_shift() {
    let model = tiny::train(120, 1, |_, _| ()).unwrap();
    let share = |style| tiny::accuracy(&model, 20, style, 77).unwrap();
    let (source, shifted) = (share(Style::Source), share(Style::Shifted));
    assert!(source > 0.6, "source {source}");
    assert!(shifted < source - 0.1, "source {source}, shifted {shifted}");
    // As it would ship: the same weights to half precision, of the words' tokens alone.
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path()).unwrap();
    let whole = ultta_encode::encoder::open_weights(folder.path()).unwrap();
    let shipped = ultta_encode::tiny::unpack(&tiny::packed(&model).unwrap()).unwrap();
    assert_eq!(shipped.names(), whole.names());
    let values = |weights: &ultta_encode::weights::Tensors| {
        weights.get("vision.projection.weight", &[32, 64]).unwrap()
    };
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * b.abs() + 1e-4;
    assert!(values(&shipped).iter().zip(&values(&whole)).all(near));
    let table = shipped.get("text.token", &[49_408, 32]).unwrap();
    assert_eq!(table.chunks(32).filter(|row| row.iter().any(|v| *v != 0.0)).count(), 19);
}
