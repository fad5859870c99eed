//! The laws that every adapter keeps. They run on every method of the registry: a new method is checked as soon as it
//! is listed in `methods/mod.rs`. Every batch carries views, so methods that need them are fed.

use crate::common::batch::{Block, CLASSES, DIM, VIEWS, block, build, head, noise, rows};
use ultta::internal::Batch;
use ultta::{
    Config, Error, Features, Footing, Grouping, Growth, Head, Input, Prediction, Readout, Session, State,
    Tensor,
};

/// The names of all methods and presets, made to last: tests name what failed by them.
fn methods() -> impl Iterator<Item = &'static str> {
    ultta::names().into_iter().map(|name| &*name.leak())
}

/// All methods and presets, each with its card.
fn cards() -> impl Iterator<Item = (&'static str, &'static ultta::Card)> {
    methods().map(|name| (name, ultta::card(name).unwrap()))
}

#[test]
fn predict_changes_nothing_and_an_empty_batch_is_a_no_op() {
    let head = head();
    let (taught, asked, empty) = (block(&head, 30, 1), block(&head, 10, 2), block(&head, 0, 3));
    for name in methods() {
        let mut adapter = build(name, &head);
        adapter.step(&taught.batch());
        let before = adapter.save();
        let first = adapter.predict(&asked.batch());
        assert_eq!(adapter.predict(&asked.batch()), first, "{name}");
        assert_eq!(adapter.save(), before, "{name}");
        assert!(adapter.step(&empty.batch()).answers.is_empty(), "{name}");
        assert_eq!(adapter.save(), before, "{name}: an empty batch taught");
    }
}

#[test]
fn a_step_is_predict_and_observe_in_the_order_of_the_card() {
    let head = head();
    let stream = block(&head, 40, 4);
    for name in methods() {
        let (mut whole, mut parts) = (build(name, &head), build(name, &head));
        let size = if whole.card().grouping == Grouping::Joint { 8 } else { 1 };
        for first in (0..40).step_by(size) {
            let batch = stream.batch();
            let batch = batch.slice(first..first + size);
            let step = whole.step(&batch);
            let (mut prediction, observed) = match parts.card().readout {
                Readout::BeforeObserve => {
                    let prediction = parts.predict(&batch);
                    (prediction, parts.observe(&batch))
                }
                Readout::AfterObserve => {
                    let observed = parts.observe(&batch);
                    (parts.predict(&batch), observed)
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
    for name in methods() {
        let (mut one, mut many) = (build(name, &head), build(name, &head));
        if one.card().grouping == Grouping::Joint {
            continue;
        }
        let together = many.step(&stream.batch());
        let single: Vec<Prediction> =
            (0..40).map(|row| one.step(&stream.batch().slice(row..row + 1))).collect();
        let alone: Vec<f32> = single.iter().flat_map(|p| p.scores.data()).copied().collect();
        assert_eq!(together.scores.data(), alone, "{name}");
        assert_eq!(many.save(), one.save(), "{name}");
    }
}

#[test]
fn reset_is_fresh_and_a_saved_state_continues() {
    let head = head();
    let (early, late) = (block(&head, 32, 6), block(&head, 32, 7));
    for name in methods() {
        let fresh = build(name, &head).save();
        let mut adapter = build(name, &head);
        adapter.step(&early.batch());
        let saved = adapter.save();
        let straight = adapter.step(&late.batch());
        let mut resumed = build(name, &head);
        resumed.load(&saved).unwrap();
        assert_eq!(resumed.save(), saved, "{name}");
        assert_eq!(resumed.step(&late.batch()), straight, "{name}");
        assert_eq!(resumed.save(), adapter.save(), "{name}");
        resumed.reset();
        assert_eq!(resumed.save(), fresh, "{name}");
    }
}

#[test]
fn a_session_survives_its_state_file() {
    let head = head();
    let folder = tempfile::tempdir().unwrap();
    for name in methods() {
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

fn step_with_views(session: &mut Session, n: usize, seed: u64) -> Vec<ultta::Row> {
    let head = session.head().clone();
    let (features, views) = (rows(&head, n, seed), rows(&head, n * VIEWS, seed + 1000));
    let counts = vec![VIEWS; n];
    let input = Input { views: Some(&views), view_counts: Some(&counts), ..Input::new(&features) };
    session.step(input).unwrap().rows
}

#[test]
fn a_wrong_shape_or_a_foreign_state_leaves_the_state_alone() {
    let head = head();
    for name in methods() {
        let mut session = Session::new(head.clone(), &Config::named(name).unwrap()).unwrap();
        step_with_views(&mut session, 20, 10);
        let before = session.state();
        let wide = Features::normalized(vec![1.0; 2 * (DIM + 1)], DIM + 1).unwrap();
        assert!(session.step(&wide).is_err(), "{name}");
        assert_eq!(session.state(), before, "{name}");

        let mut adapter = build(name, &head);
        adapter.step(&block(&head, 20, 10).batch());
        let before = adapter.save();
        for key in before.tensors.keys() {
            let mut torn = before.clone();
            torn.tensors.insert(key.clone(), Tensor::U8(vec![1, 2, 3].into()));
            assert!(adapter.load(&torn).is_err(), "{name}: {key}");
            assert_eq!(adapter.save(), before, "{name}: {key}");
        }
    }
}

/// Methods whose answers depend on the order in which the head lists its classes, each with the reason.
const ORDERED: [(&str, &str); 0] = [];

#[test]
fn class_order_does_not_matter() {
    // Recursions amplify what another order of sums rounds otherwise: the stream is short.
    const ROWS: usize = 120;
    let head = head();
    let mut order: Vec<usize> = (0..CLASSES).collect();
    order.rotate_left(2);
    order.swap(0, 3);
    let prototypes: Vec<f32> = order.iter().flat_map(|&c| head.prototype(c).to_vec()).collect();
    let names = order.iter().map(|&c| head.classes()[c].clone());
    let other = Head::new(prototypes, DIM, names, head.logit_scale()).unwrap();
    let here = block(&head, ROWS, 30);
    let there = Block::new(&other, here.features.clone(), here.views.clone());
    let largest_gap = |name: &str| {
        let (a, b) =
            (build(name, &head).step(&here.batch()).scores, build(name, &other).step(&there.batch()).scores);
        let gaps = (0..ROWS).flat_map(|row| {
            let (a, b) = (a.row(row), b.row(row));
            order.iter().zip(b).map(|(&from, b)| (a[from] - b).abs()).collect::<Vec<_>>()
        });
        gaps.fold(0.0, f32::max)
    };
    for name in methods() {
        let (gap, listed) = (largest_gap(name), ORDERED.iter().any(|(listed, _)| *listed == name));
        assert_eq!(gap > 2e-3, listed, "{name}: scores differ by up to {gap}");
    }
}

#[test]
fn rows_that_must_not_teach_do_not() {
    let head = head();
    let stream = block(&head, 30, 11);
    let learn = vec![false; 30];
    // Such rows are still answered: what is remembered of answered samples may hold them.
    let answered = [
        "local.recent",
        "local.kept",
        "local.since",
        "local.updated_at",
        "local.prior.mix",
        "evidence.seen",
        "remembered",
    ];
    let learnt = |mut state: State| {
        state.tensors.retain(|name, _| !answered.iter().any(|prefix| name.starts_with(prefix)));
        state
    };
    for name in methods() {
        let mut adapter = build(name, &head);
        let before = learnt(adapter.save());
        adapter.step(&Batch { learn: Some(&learn), ..stream.batch() });
        assert_eq!(learnt(adapter.save()), before, "{name}");
    }
}

#[test]
fn state_stays_bounded() {
    let head = head();
    for name in methods() {
        let mut adapter = build(name, &head);
        let mut sizes = Vec::new();
        for round in 0..4 {
            // The time of a method whose memory grows does so, too.
            let blocks = if adapter.card().growth == Growth::Samples { 1 } else { 15 };
            for seed in 0..blocks {
                adapter.step(&block(&head, 100, 100 * round + seed).batch());
            }
            sizes.push(adapter.vitals().state_bytes);
        }
        // A card that tells of growth must be right about it, too.
        match adapter.card().growth {
            Growth::Samples => assert!(sizes[3] > sizes[2] && sizes[2] > sizes[1], "{name}: {sizes:?}"),
            Growth::Classes | Growth::Squares => assert!(sizes[3] <= sizes[1], "{name}: {sizes:?}"),
        }
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
        for name in methods() {
            let mut adapter = build(name, &head);
            for _ in 0..3 {
                let step = adapter.step(&stream.batch());
                assert!(step.scores.data().iter().all(|s| s.is_finite()), "{name}");
                assert!(step.answers.iter().all(|a| a.prob.is_finite()), "{name}");
            }
            assert!(State::from_bytes(&with_format(adapter.save()).to_bytes().unwrap()).is_ok(), "{name}");
        }
    }
}

fn with_format(mut state: State) -> State {
    state.metadata.insert("format".into(), format!("ultta-state-{}", ultta::internal::STATE_VERSION));
    state
}

// === cards ===

#[test]
fn cards_name_settings_that_exist() {
    for (name, card) in cards() {
        let settings: toml::Table = Config::named(name).unwrap().to_toml().parse().unwrap();
        let warm_up = card.warm_up.map(|(_, key)| key);
        let named =
            card.files.iter().chain(&card.horizon).chain(&card.times).chain(&warm_up).chain(card.answer_keys);
        for key in named {
            let found = key.split('.').try_fold(&settings["method"][card.name], |value, key| value.get(key));
            assert!(found.is_some(), "{name}: no setting {key}");
        }
        for preset in card.presets {
            assert!(ultta::card(&format!("{}:{preset}", card.name)).is_some(), "{name}: {preset}");
        }
        let sized = card.grouping == Grouping::Joint && !card.transductive;
        assert_eq!(card.batch.is_some(), sized, "{name}: batch of its paper");
        assert!(!card.transductive || card.grouping == Grouping::Joint, "{name}");
        assert_eq!(card.bytes.is_some(), card.growth != Growth::Classes, "{name}: bytes");
        assert!(!card.summary.is_empty() && !card.paper.is_empty(), "{name}");
    }
}

#[test]
fn one_method_is_the_baseline_and_one_our_own() {
    let marked = |mark: fn(&ultta::Card) -> bool| {
        ultta::cards().into_iter().filter(|card| mark(card)).map(|card| card.name).collect::<Vec<_>>()
    };
    assert_eq!(marked(|card| card.baseline), ["zero_shot"]);
    assert_eq!(marked(|card| card.own), ["ul_tta"]);
    for name in methods() {
        assert_eq!(Config::named(name).unwrap().method.name(), name);
    }
}

/// What a card calls a setting of the answers alone leaves the state as it is, bit for bit, and another value of it
/// does not refuse a state.
#[test]
fn settings_of_answers_alone_do_not_reach_the_state() {
    let head = head();
    for (name, card) in cards() {
        let settings: toml::Table = Config::named(name).unwrap().to_toml().parse().unwrap();
        let mut plain = Session::new(head.clone(), &Config::named(name).unwrap()).unwrap();
        step_with_views(&mut plain, 60, 12);
        for key in card.answer_keys {
            let other = match &settings["method"][card.name][*key] {
                toml::Value::Float(value) => (value / 2.0).to_string(),
                toml::Value::Integer(value) => (value / 2).to_string(),
                toml::Value::Boolean(value) => (!value).to_string(),
                value => panic!("{name}: {key} is {value}"),
            };
            let config = Config::resolve(None, Some(name), None, &[(key, &other)]).unwrap();
            let mut session = Session::new(head.clone(), &config).unwrap();
            let loaded = session.load(&plain.state());
            loaded.unwrap_or_else(|e| panic!("{name}: {key} refuses the state: {e}"));
            let learnt = |config: &Config| {
                let mut adapter = config.method.build(&head.clone().into()).unwrap();
                adapter.step(&block(&head, 60, 12).batch());
                adapter.save()
            };
            let own = Config::named(name).unwrap();
            assert_eq!(learnt(&config), learnt(&own), "{name}: {key}");
        }
    }
}

#[test]
fn cards_tell_on_what_footing_a_method_stands() {
    let footing = |name: &str| Config::named(name).unwrap().method.card().footing();
    assert_eq!(footing("prior_only"), Footing::Earlier);
    assert_eq!(footing("tda"), Footing::Itself);
    assert_eq!(footing("ecalp"), Footing::Itself, "the sample is in its graph when it is answered");
    assert_eq!(footing("lame"), Footing::Batch);
    assert!(Footing::ALL.is_sorted());
    let remarks = |name: &str| Config::named(name).unwrap().method.card().remarks();
    assert_eq!(remarks("onzeta"), ["needs the stream's length"]);
    assert_eq!(remarks("tda"), ["tuned per dataset in its paper"]);
    assert_eq!(remarks("zero"), ["needs views"]);
    assert!(remarks("ul_tta").is_empty());
}

#[test]
fn the_table_of_methods_is_that_of_the_cards() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/methods.md");
    let written = std::fs::read_to_string(path).unwrap();
    for footing in Footing::ALL {
        let mut title = footing.title().to_string();
        title[..1].make_ascii_uppercase();
        let part = written.split("\n## ").find(|part| part.starts_with(&title));
        let part = part.unwrap_or_else(|| panic!("docs/methods.md: no heading {title:?}"));
        let told: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
        let row = |card: &&ultta::Card| {
            let remarks = card.remarks().join("; ");
            let remarks = if remarks.is_empty() { "–" } else { &remarks };
            format!("| `{}` | {} | {remarks} | {} |", card.name.replace('_', "-"), card.summary, card.paper)
        };
        let cards: Vec<String> = ultta::cards()
            .iter()
            .filter(|card| card.footing() == footing)
            .map(|card| row(&&**card))
            .collect();
        assert_eq!(told, cards, "docs/methods.md, {title}: expected the rows on the right");
    }
    // A preset with a card of its own is told below the table.
    let paper = ultta::card("ul-tta:paper").unwrap();
    let told = format!("{} ({})", paper.summary, paper.paper);
    assert!(written.contains(&told), "docs/methods.md: expected {told:?}");
}

#[test]
fn settings_that_a_card_names_take_effect() {
    let onzeta = Config::named("onzeta").unwrap().method.for_stream_of(77);
    assert!(Config { method: onzeta, ..Default::default() }.to_toml().contains("horizon = 77"));
    let tda = Config::named("tda").unwrap().method;
    assert_eq!(tda.for_stream_of(77), tda);
    let shots =
        Config::resolve(None, Some("tip-adapter"), None, &[("shots", "a.safetensors")]).unwrap().method;
    assert_eq!(shots.files(), [("method.tip_adapter.shots".to_string(), "a.safetensors".to_string())]);
    assert!(tda.files().is_empty() && !tda.uses_times());
    let timed = Config::resolve(None, None, None, &[("advanced.update_seconds", "2")]).unwrap().method;
    assert!(timed.uses_times() && !Config::default().method.uses_times());
}

#[test]
fn sessions_predict_what_they_step_and_clones_go_their_own_way() {
    let head = head();
    for name in methods() {
        let config = Config::named(name).unwrap();
        let mut session = Session::new(head.clone(), &config).unwrap();
        step_with_views(&mut session, 40, 20);
        let (features, views) = (rows(&head, 1, 21), rows(&head, VIEWS, 22));
        let input = Input { views: Some(&views), view_counts: Some(&[VIEWS]), ..Input::new(&features) };
        let before = session.state();
        let predicted = session.predict(input).unwrap();
        assert_eq!(session.state(), before, "{name}");
        let mut copy = session.clone();
        let stepped = copy.step(input).unwrap();
        assert_eq!(session.state(), before, "{name}: a step of the clone reached the original");
        assert_eq!(session.step(input).unwrap().rows, stepped.rows, "{name}");
        assert_eq!(session.state(), copy.state(), "{name}");
        if session.config().method.card().readout == Readout::BeforeObserve {
            assert_eq!(predicted.prediction.scores, stepped.prediction.scores, "{name}");
        }
        let without = session.predict(&features);
        if session.config().method.card().needs_views {
            assert!(matches!(without, Err(Error::NeedsViews { .. })), "{name}");
        } else {
            assert!(without.is_ok(), "{name}");
        }
    }
}
