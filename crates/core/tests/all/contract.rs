//! The laws of a session, each checked on every method of the registry that needs no views (`laws.rs` checks those), in
//! every preset, with every switch of our own. A law about single rows leaves out methods that answer rows jointly; that a step
//! answers what `predict` answers, methods that learn from a row before they answer it. Three laws are promised by our own
//! method alone: many classes with candidates, the order of classes (zero-shot is held to it, too), and the effect of every switch.

use std::sync::Arc;

use crate::common::{
    Played, Rng, Stream, World, assert_sound, config, differing, in_preset, independent_variants,
    own_variants, quick, through_bytes, variants,
};
use ultta::{Features, Head, Input, Readout, Session, Temperature};

/// Long enough for dozens of updates, several factorisations, the switch to thinned second moments (after 64
/// samples of 16 dimensions), rescaled sums and two healthy copies (every 1024 samples).
const LONG: usize = 2200;

// === answering ===

#[test]
fn predict_changes_nothing() {
    let world = World::small();
    let (taught, asked) = (Stream::full(&world, 300, 1), world.rows(70, 2));
    for (name, config) in variants() {
        let mut session = world.session(&config);
        taught.play(&mut session, 0..300, 50);
        let before = session.state();
        let (first, second) = (session.predict(&asked).unwrap(), session.predict(&asked).unwrap());
        assert_eq!(first.rows, second.rows, "{name}");
        assert_eq!(session.state(), before, "{name}");
    }
}

#[test]
fn a_step_of_one_row_answers_what_predict_answers() {
    let world = World::small();
    let stream = Stream { labels: None, ..Stream::full(&world, 260, 3) };
    for (name, config) in independent_variants() {
        let card = config.method.card();
        if card.readout == Readout::AfterObserve {
            continue;
        }
        let mut session = world.session(&config);
        for row in 0..stream.len() {
            let mut expected = Played::default();
            // With the caller's marks, times and views, as the step has them.
            expected.take(&stream.predict(&session, row..row + 1));
            let stepped = stream.play(&mut session, row..row + 1, 1);
            // Only our own method, in both presets, foretells whether a row will teach.
            if card.name != "ul_tta" {
                expected.rows[0].admitted = stepped.rows[0].admitted;
            }
            assert_eq!(stepped, expected, "{name}, row {row}");
        }
    }
}

#[test]
fn predicted_rows_do_not_depend_on_their_neighbours() {
    let world = World::small();
    let (taught, asked) = (Stream::plain(&world, 300, 4), world.rows(40, 5));
    for (name, config) in independent_variants() {
        let mut session = world.session(&config);
        taught.play(&mut session, 0..300, 100);
        let together = session.predict(&asked).unwrap();
        for row in 0..40 {
            let alone = session.predict(&asked.slice(row..row + 1)).unwrap();
            assert_eq!(alone.prediction.scores.row(0), together.prediction.scores.row(row), "{name}");
            assert_eq!(alone.rows[0].prob, together.rows[row].prob, "{name}");
        }
    }
}

#[test]
fn answers_are_sound_from_the_first_row_on() {
    let world = World::small();
    let stream = Stream::full(&world, 600, 6);
    for (name, config) in variants() {
        let mut session = world.session(&config);
        assert_sound(&session.predict(&stream.features.slice(0..1)).unwrap(), &name);
        for first in (0..600).step_by(30) {
            assert_sound(&stream.step(&mut session, first..first + 30), &name);
        }
    }
}

#[test]
fn zero_shot_stands_beside_every_answer() {
    let world = World::small();
    let stream = Stream::plain(&world, 400, 7);
    let mut plain = world.session(&config("zero-shot", &[]));
    let frozen = plain.step(&stream.features).unwrap();
    for (name, config) in variants() {
        let step = world.session(&config).step(&stream.features).unwrap();
        assert_eq!(step.zero_shot, frozen.prediction.scores, "{name}");
        for (row, frozen) in step.rows.iter().zip(&frozen.rows) {
            assert_eq!((row.zero_shot.label, row.zero_shot.prob), (frozen.label, frozen.prob), "{name}");
        }
        let flips = step.rows.iter().filter(|r| r.label != r.zero_shot.label).count() as u64;
        assert_eq!(step.health.flips, flips, "{name}");
        assert_eq!(step.health.seen, 400, "{name}");
    }
}

// === exactness ===

#[test]
fn scores_that_the_caller_has_give_the_same_bits() {
    let world = World::small();
    let stream = Stream::plain(&world, 900, 40);
    for (name, config) in variants() {
        let (mut own, mut given) = (world.session(&config), world.session(&config));
        for at in (0..900).step_by(150) {
            let features = stream.features.slice(at..at + 150);
            let scores = world.head.zero_shot(&features).unwrap();
            let expected = own.step(&features).unwrap();
            let got = given.step(Input { zero_shot: Some(&scores), ..Input::new(&features) }).unwrap();
            assert_eq!(got.rows, expected.rows, "{name}");
            assert_eq!(got.zero_shot, expected.zero_shot, "{name}");
            assert_eq!(got.prediction.scores, expected.prediction.scores, "{name}");
        }
        assert_eq!(given.state(), own.state(), "{name}");
    }
}

#[test]
fn any_blocks_and_any_resume_give_the_same_bits() {
    let world = World::small();
    let cuts = [1, 39, 64, 65, 333, 1024, 1025, 2049];
    let plain = ("plain", Stream::plain(&world, LONG / 2, 8), LONG / 2);
    for (kind, stream, rows) in [plain, ("full", Stream::full(&world, LONG, 9), LONG)] {
        for (name, config) in independent_variants() {
            let mut single = world.session(&config);
            let expected = stream.play(&mut single, 0..rows, 1);
            let bytes = single.state().to_bytes().unwrap();
            for block in [7, rows] {
                let mut session = world.session(&config);
                assert!(
                    stream.play(&mut session, 0..rows, block) == expected,
                    "{name}, {kind}, blocks of {block}"
                );
                assert!(
                    session.state().to_bytes().unwrap() == bytes,
                    "{name}, {kind}, state after blocks of {block}: {:?}",
                    differing(&session.state(), &single.state())
                );
            }
            let mut resumed = world.session(&config);
            let (mut got, mut at) = (Played::default(), 0);
            for cut in cuts.into_iter().filter(|&cut| cut < rows).chain([rows]) {
                got.extend(stream.play(&mut resumed, at..cut, 50));
                let saved = through_bytes(&resumed.state());
                assert_eq!(saved, resumed.state(), "{name}, {kind}, bytes at {cut}");
                let health = resumed.health();
                resumed = Session::resume(world.head.clone(), &saved).unwrap();
                assert_eq!(
                    differing(&resumed.state(), &saved),
                    [""; 0],
                    "{name}, {kind}, loaded at {cut} and saved again"
                );
                assert_eq!(resumed.health(), health, "{name}, {kind}, health at {cut}");
                at = cut;
            }
            assert!(got == expected, "{name}, {kind}, resumed");
            assert!(resumed.state().to_bytes().unwrap() == bytes, "{name}, {kind}, state of the resumed");
        }
    }
}

#[test]
fn many_classes_with_candidates_give_the_same_bits() {
    let world = World::new(90, 24, 25.0);
    let stream = Stream::full(&world, 700, 10);
    for config in [quick("ul-tta", &[]), quick("ul-tta:paper", &[]), config("ul-tta", &[])] {
        let mut single = world.session(&config);
        let expected = stream.play(&mut single, 0..700, 1);
        let mut session = world.session(&config);
        let mut got = stream.play(&mut session, 0..301, 41);
        let mut session = Session::resume(world.head.clone(), &through_bytes(&session.state())).unwrap();
        got.extend(stream.play(&mut session, 301..700, 700));
        assert!(got == expected);
        assert_eq!(differing(&session.state(), &single.state()), [""; 0]);
    }
}

#[test]
fn a_clone_goes_its_own_way() {
    let world = World::small();
    let stream = Stream::plain(&world, 500, 11);
    for (name, config) in independent_variants() {
        let mut session = world.session(&config);
        stream.play(&mut session, 0..300, 64);
        let mut copy = session.clone();
        let before = session.state();
        let apart = stream.play(&mut copy, 300..500, 64);
        assert_eq!(session.state(), before, "{name}");
        assert_eq!(stream.play(&mut session, 300..500, 9), apart, "{name}");
    }
}

#[test]
fn reset_is_fresh() {
    let world = World::small();
    let stream = Stream::full(&world, 400, 12);
    for (name, config) in variants() {
        let fresh = world.session(&config).state();
        let mut session = world.session(&config);
        let first = stream.play(&mut session, 0..400, 33);
        assert_ne!(session.state(), fresh, "{name}");
        session.reset();
        assert_eq!(session.state(), fresh, "{name}");
        assert_eq!(stream.play(&mut session, 0..400, 33), first, "{name}");
    }
}

#[test]
fn an_empty_block_is_a_no_op() {
    let world = World::small();
    let stream = Stream::plain(&world, 200, 13);
    let empty = Features::empty(world.head.dim());
    for (name, config) in variants() {
        let mut session = world.session(&config);
        for taught in [0..0, 0..200] {
            stream.play(&mut session, taught, 64);
            let before = session.state();
            let step = session.step(&empty).unwrap();
            assert!(step.rows.is_empty() && step.prediction.scores.data().is_empty(), "{name}");
            assert!(session.predict(&empty).unwrap().rows.is_empty(), "{name}");
            assert_eq!(session.state(), before, "{name}");
        }
    }
}

#[test]
fn scores_are_kept_only_when_asked_for() {
    let world = World::small();
    let stream = Stream::plain(&world, 200, 14);
    for (name, config) in variants() {
        let (mut with, mut without) = (world.session(&config), world.session(&config));
        let kept = with.step(&stream.features).unwrap();
        let input = Input { keep_scores: false, ..Input::new(&stream.features) };
        let bare = without.step(input).unwrap();
        assert_eq!(bare.rows, kept.rows, "{name}");
        assert!(bare.prediction.scores.data().is_empty() && bare.zero_shot.data().is_empty(), "{name}");
        let mut observer = world.session(&config);
        let admitted: Vec<bool> = kept.rows.iter().map(|r| r.admitted).collect();
        assert_eq!(observer.observe(&stream.features).unwrap(), admitted, "{name}");
        assert_eq!(observer.state(), with.state(), "{name}");
    }
}

// === symmetry ===

#[test]
fn class_order_does_not_matter() {
    let world = World::small();
    let (classes, dim) = (world.head.n_classes(), world.head.dim());
    let mut order: Vec<usize> = (0..classes).collect();
    Rng(5).shuffle(&mut order);
    let prototypes: Vec<f32> = order.iter().flat_map(|&c| world.head.prototype(c).to_vec()).collect();
    let names = order.iter().map(|&c| world.head.classes()[c].clone());
    let head = Arc::new(Head::new(prototypes, dim, names, world.head.logit_scale()).unwrap());
    let stream = Stream::plain(&world, 220, 15);
    // A start prior is written in the order of the classes.
    for (name, config) in own_variants().into_iter().filter(|(name, _)| !name.contains("start prior")) {
        let here = world.session(&config).step(&stream.features).unwrap();
        let there = Session::new(head.clone(), &config).unwrap().step(&stream.features).unwrap();
        for row in 0..220 {
            let (a, b) = (here.prediction.scores.row(row), there.prediction.scores.row(row));
            for (to, &from) in order.iter().enumerate() {
                assert!((a[from] - b[to]).abs() < 2e-3, "{name}, row {row}: {} and {}", a[from], b[to]);
            }
            assert_eq!(here.rows[row].admitted, there.rows[row].admitted, "{name}, row {row}");
        }
    }
}

// === settings ===

#[test]
fn every_switch_changes_the_answers() {
    // Each switch of the ablation table has an effect on the answers of its preset.
    let world = World::small();
    let stream = Stream::plain(&world, 600, 42);
    for preset in ["ul-tta", "ul-tta:paper"] {
        let full = world.session(&quick(preset, &[])).step(&stream.features).unwrap();
        let mut switches = vec![
            vec![in_preset(preset, ("gate.enabled", "false"))],
            vec![("prototypes.frozen", "true")],
            vec![("prior.frozen", "true")],
        ];
        if preset == "ul-tta:paper" {
            switches.push(vec![("temperature.single", "true")]);
            switches.push(vec![("temperature.frozen", "true")]);
            switches.push(vec![("prototypes.rho", "inf"), ("prior.kappa", "inf"), ("temperature.beta", "0")]);
        } else {
            switches.push(vec![("calibration.rule", "off")]);
            switches.push(vec![("calibration.rule", "labels")]);
        }
        for switch in switches {
            let other = world.session(&quick(preset, &switch)).step(&stream.features).unwrap();
            let same = (0..600).all(|row| {
                other.probs(row, Temperature::Cal) == full.probs(row, Temperature::Cal)
                    && other.rows[row] == full.rows[row]
            });
            assert!(!same, "{preset}: {switch:?} has no effect");
        }
    }
}
