//! The laws of a session, each checked on every method, preset and switch of [`crate::common::variants`].

use std::sync::Arc;

use crate::common::{Played, Rng, Stream, World, assert_sound, config, quick, through_bytes, variants};
use ultta::internal::LOGIT_SCALES;
use ultta::{Config, Error, Features, Head, Input, Scores, Session, Standing, State, Temperature, Tensor};

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
    for (name, config) in variants() {
        let mut session = world.session(&config);
        for row in 0..stream.len() {
            let mut expected = Played::default();
            let mut predicted = session.predict(&stream.features.slice(row..row + 1)).unwrap();
            // predict does not know the caller's marks
            if !stream.learn.as_ref().unwrap()[row] {
                let row = &mut predicted.rows[0];
                row.admitted = false;
                row.scene = row.scene.saturating_sub(u64::from(row.begins_scene));
                row.begins_scene = false;
            }
            expected.take(&predicted);
            assert_eq!(stream.play(&mut session, row..row + 1, 1), expected, "{name}, row {row}");
        }
    }
}

#[test]
fn predicted_rows_do_not_depend_on_their_neighbours() {
    let world = World::small();
    let (taught, asked) = (Stream::plain(&world, 300, 4), world.rows(40, 5));
    for (name, config) in variants() {
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
    let cuts = [1, 39, 63, 64, 65, 100, 333, 776, 1024, 1025, 1500, 2049];
    for (kind, stream) in [("plain", Stream::plain(&world, LONG, 8)), ("full", Stream::full(&world, LONG, 9))]
    {
        for (name, config) in variants() {
            let mut single = world.session(&config);
            let expected = stream.play(&mut single, 0..LONG, 1);
            let bytes = single.state().to_bytes().unwrap();
            for block in [7, LONG] {
                let mut session = world.session(&config);
                assert!(
                    stream.play(&mut session, 0..LONG, block) == expected,
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
            for cut in cuts.into_iter().chain([LONG]) {
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

fn differing(a: &State, b: &State) -> Vec<String> {
    let names = a.tensors.keys().chain(b.tensors.keys());
    let mut names: Vec<String> = names.filter(|k| a.tensors.get(*k) != b.tensors.get(*k)).cloned().collect();
    names.dedup();
    names
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
    for (name, config) in variants() {
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
    for (name, config) in variants().into_iter().filter(|(name, _)| !name.contains("start prior")) {
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

// === bounds ===

#[test]
fn state_stays_bounded() {
    let world = World::small();
    let stream = Stream::plain(&world, 4096, 16);
    for (name, config) in variants() {
        let mut session = world.session(&config);
        stream.play(&mut session, 0..2048, 512);
        let warm = (session.state().bytes(), session.health().state_bytes);
        stream.play(&mut session, 2048..4096, 512);
        let end = (session.state().bytes(), session.health().state_bytes);
        assert!(end.1 <= warm.1, "{name}: {} then {} bytes", warm.1, end.1);
        // What waits for the next chunk, or is not there without it, comes and goes.
        let slack = 128 * 16 * 4 + 16 * 16 * 8;
        // A record for late labels: 64 bytes a sample, up to `feedback.remember` of them.
        let slack = slack + session.memory().map_or(0, |memory| memory.most.min(2048) * 64);
        assert!(end.0 <= warm.0 + slack, "{name}: {} then {} bytes in the file", warm.0, end.0);
    }
}

#[test]
fn ten_thousand_classes_fit() {
    let (classes, dim) = (10_000, 512);
    let mut rng = Rng(17);
    let texts: Vec<f32> = (0..classes * dim).map(|_| rng.uniform() - 0.45).collect();
    let texts = Features::normalized(texts, dim).unwrap();
    let names = (0..classes).map(|c| format!("class {c}"));
    let head = Arc::new(Head::new(texts.data().to_vec(), dim, names, 100.0).unwrap());
    let images: Vec<f32> =
        (0..320 * dim).map(|i| texts.row((i / dim) * 31 % classes)[i % dim] + 0.03 * rng.normal()).collect();
    let images = Features::normalized(images, dim).unwrap();
    // Means and sums of every class, its 32 neighbours, what is kept for late labels and of copies, and 8 MB for the rest.
    let most = 8 * 1024 * 1024 + 3 * classes * dim * 4 + classes * 300 + 100_000 * 64 + 8192 * 24;
    for name in ["ul-tta", "ul-tta:paper"] {
        let config = Config::named(name).unwrap();
        let mut session = Session::new(head.clone(), &config).unwrap();
        let step = session.step(Input { keep_scores: false, ..Input::new(&images) }).unwrap();
        // With the copy that the guard keeps once the stream is long enough.
        let copy = config.method.build(&head).unwrap().checkpoint().bytes();
        let held = step.health.state_bytes + copy;
        assert!(held < most, "{name}: {held} bytes, at most {most}");
        let file = session.state().bytes();
        assert!(file < most, "{name}: {file} bytes in the file, at most {most}");
    }
}

/// Second moments are kept once, packed: d = 4096 and 100 classes take at most 150 MB, with the copy of the guard.
#[test]
fn wide_features_fit() {
    let (classes, dim, rows) = (100, 4096, 1152);
    let mut rng = Rng(23);
    let texts: Vec<f32> = (0..classes * dim).map(|_| rng.uniform() - 0.45).collect();
    let texts = Features::normalized(texts, dim).unwrap();
    let names = (0..classes).map(|c| format!("class {c}"));
    let head = Arc::new(Head::new(texts.data().to_vec(), dim, names, 100.0).unwrap());
    let images: Vec<f32> =
        (0..rows * dim).map(|i| texts.row((i / dim) % classes)[i % dim] + 0.01 * rng.normal()).collect();
    let images = Features::normalized(images, dim).unwrap();
    let mut session = Session::new(head.clone(), &Config::default()).unwrap();
    session.step(Input { keep_scores: false, ..Input::new(&images) }).unwrap();
    let state = session.state();
    assert!(!state.under("healthy.").tensors.is_empty() && state.has("local.fold.factor"));
    let (file, held) = (state.bytes(), session.health().state_bytes);
    assert!(file < 150_000_000 && held < 150_000_000, "{file} bytes in the file, {held} held");
    let other = Session::resume(head, &state).unwrap();
    assert_eq!(other.state(), state);
}

#[test]
fn the_healthy_copy_is_counted() {
    let world = World::small();
    let stream = Stream::plain(&world, 1100, 18);
    let mut session = world.session(&config("ul-tta", &[]));
    stream.play(&mut session, 0..1000, 100);
    let before = session.health().state_bytes;
    stream.play(&mut session, 1000..1100, 100);
    let copy: usize = session.state().under("healthy.").bytes();
    assert!(copy > 0, "a healthy stream leaves a copy at sample 1024");
    assert_eq!(session.health().state_bytes, before + copy);
}

// === bad and strange input ===

#[test]
fn a_wrong_shape_is_an_error_and_changes_nothing() {
    let world = World::small();
    let dim = world.head.dim();
    let stream = Stream::full(&world, 200, 19);
    let rows = world.rows(3, 20);
    let wide = Features::normalized(vec![1.0; 2 * (dim + 1)], dim + 1).unwrap();
    let views = world.rows(4, 21);
    let classes = world.head.n_classes();
    let (few, narrow) = (Scores::zeros(2, classes), Scores::zeros(3, classes - 1));
    for (name, config) in variants() {
        let mut session = world.session(&config);
        stream.play(&mut session, 0..200, 64);
        let before = session.state();
        let input = || Input::new(&rows);
        let huge = [usize::MAX, 2, 3];
        let bad: Vec<(&str, Input<'_>)> = vec![
            ("features", Input::new(&wide)),
            ("scores", Input { zero_shot: Some(&few), ..input() }),
            ("scores", Input { zero_shot: Some(&narrow), ..input() }),
            ("learn", Input { learn: Some(&[true; 2]), ..input() }),
            ("times", Input { times: Some(&[0.0; 4]), ..input() }),
            ("times", Input { times: Some(&[1e9, f64::NAN, 1e9]), ..input() }),
            ("views", Input { views: Some(&views), ..input() }),
            ("views", Input { views: Some(&views), view_counts: Some(&[2, 2]), ..input() }),
            ("views", Input { views: Some(&views), view_counts: Some(&[2, 2, 1]), ..input() }),
            ("views", Input { views: Some(&views), view_counts: Some(&huge), ..input() }),
            ("views", Input { views: Some(&wide), view_counts: Some(&[1, 1, 0]), ..input() }),
            ("views", Input { view_counts: Some(&[1, 0, 0]), ..input() }),
        ];
        for (what, input) in bad {
            let error = session.step(input).unwrap_err();
            assert!(
                matches!(error, Error::Shape { .. } | Error::NotFinite { .. }),
                "{name}, {what}: {error}"
            );
            assert_eq!(session.state(), before, "{name}, {what}");
        }
        assert!(matches!(session.predict(&wide), Err(Error::Shape { .. })), "{name}");
    }
}

#[test]
fn degenerate_streams_stay_finite() {
    let world = World::small();
    let dim = world.head.dim();
    let one = world.rows(1, 22);
    let equal = one.select(&[0; 300]);
    let axes: Vec<f32> = (0..300 * dim).map(|i| f32::from(u8::from(i / dim % dim == i % dim))).collect();
    let axes = Features::new(axes, dim).unwrap();
    let opposite: Vec<f32> = world.head.prototype(0).iter().map(|v| -v).collect();
    let against = Features::new(opposite, dim).unwrap().select(&[0; 300]);
    let sparse = [("equal rows", &equal), ("one-hot rows", &axes), ("rows against an anchor", &against)];
    for (name, config) in variants() {
        for (what, rows) in sparse {
            let mut session = world.session(&config);
            for _ in 0..3 {
                assert_sound(&session.step(rows).unwrap(), &format!("{name}, {what}"));
            }
            through_bytes(&session.state());
        }
    }
}

#[test]
fn degenerate_heads_stay_finite() {
    let dim = 16;
    let same: Vec<f32> = (0..10 * dim).map(|i| f32::from(u8::from(i % dim == 0))).collect();
    let axes: Vec<f32> = (0..10 * dim).map(|i| f32::from(u8::from(i / dim == i % dim))).collect();
    let rows = World::small().rows(400, 23);
    for (what, prototypes) in [("identical prototypes", same), ("one-hot prototypes", axes)] {
        let names = || (0..10).map(|c| c.to_string());
        let head = Arc::new(Head::new(prototypes, dim, names(), 50.0).unwrap());
        for (name, config) in variants() {
            let mut session = Session::new(head.clone(), &config).unwrap();
            assert_sound(&session.step(&rows).unwrap(), &format!("{name}, {what}"));
            through_bytes(&session.state());
        }
    }
    let two = World::new(2, 3, 30.0);
    for name in ["zero-shot", "ul-tta", "ul-tta:paper"] {
        let mut session = two.session(&Config::named(name).unwrap());
        assert_sound(&session.step(&two.rows(500, 24)).unwrap(), &format!("{name}, two classes"));
    }
}

#[test]
fn any_logit_scale_stays_finite() {
    let plain = World::small();
    let rows = plain.rows(900, 25);
    for scale in [*LOGIT_SCALES.start(), 1e-3, 1.0, 1000.0, 1e5, *LOGIT_SCALES.end()] {
        let head = Arc::new((*plain.head).clone().with_logit_scale(scale).unwrap());
        for (name, config) in variants() {
            let mut session = Session::new(head.clone(), &config).unwrap();
            assert_sound(&session.step(&rows).unwrap(), &format!("{name}, logit scale {scale}"));
            let mut again = Session::new(head.clone(), &config).unwrap();
            again
                .load(&through_bytes(&session.state()))
                .unwrap_or_else(|e| panic!("{name}, logit scale {scale}: {e}"));
        }
    }
}

#[test]
fn extreme_settings_stay_finite() {
    let plain = World::small();
    let rows = plain.rows(500, 26);
    let default: &[&[(&str, &str)]] = &[
        &[("advanced.tau_min", "0.001"), ("advanced.tau_max", "0.001")],
        &[("advanced.tau_min", "1000"), ("advanced.tau_max", "1000")],
        &[("advanced.trust_max", "1000")],
        &[
            ("advanced.trust_samples", "0"),
            ("advanced.shrink", "1e-9"),
            ("advanced.covariance_shrink", "0.001"),
        ],
        &[("advanced.trust_samples", "inf"), ("advanced.shrink", "inf")],
        &[("advanced.prior_kl_max", "0")],
        &[
            ("advanced.prior_smoothing", "1e-9"),
            ("advanced.prior_dead_zone", "0"),
            ("advanced.prior_background", "1"),
            ("advanced.prior_head_start", "-1000"),
        ],
        &[
            ("advanced.prior_smoothing", "1e12"),
            ("advanced.prior_dead_zone", "100"),
            ("advanced.prior_background", "0"),
            ("advanced.prior_head_start", "1000"),
        ],
        &[("advanced.prior_record_decay", "1"), ("advanced.prior_half_lives", "[1.0, inf]")],
        &[
            ("advanced.prior_record_decay", "0"),
            ("prototypes.half_life", "1"),
            ("prototypes.half_life_per_class", "0"),
        ],
        &[
            ("gate.keep", "0"),
            ("gate.warm_up", "0"),
            ("advanced.gate_window", "1"),
            ("advanced.gate_min_fill", "0"),
        ],
        &[("gate.keep", "1"), ("update.every", "1"), ("advanced.min_responsibility", "0")],
        &[
            ("advanced.min_responsibility", "1"),
            ("advanced.candidates", "2"),
            ("advanced.candidate_range", "0"),
        ],
        &[("advanced.match_power", "0"), ("advanced.margin_share", "1")],
        &[("advanced.scale_window", "1"), ("advanced.scale_min_rows", "0"), ("advanced.match_window", "1")],
    ];
    let tiny: &[(&str, &str)] = &[
        ("temperature.min", "0.001"),
        ("temperature.max", "0.001"),
        ("temperature.cal_min", "0.001"),
        ("temperature.cal_max", "0.001"),
    ];
    let huge: &[(&str, &str)] = &[
        ("temperature.min", "1000"),
        ("temperature.max", "1000"),
        ("temperature.cal_min", "1000"),
        ("temperature.cal_max", "1000"),
    ];
    let paper: &[&[(&str, &str)]] = &[
        tiny,
        huge,
        &[("prototypes.alpha", "inf")],
        &[
            ("prototypes.alpha", "0"),
            ("prototypes.eta", "1"),
            ("prototypes.rho", "inf"),
            ("prototypes.epsilon", "0"),
        ],
        &[("prototypes.rho", "0"), ("prior.kappa", "0")],
        &[("prior.gamma", "1e-9")],
        &[("prior.gamma", "1e12")],
        &[("gate.keep", "0"), ("gate.window", "1"), ("gate.min_fill", "0"), ("gate.warm_up", "0")],
        &[("gate.keep", "1"), ("update.every", "1"), ("min_responsibility", "0")],
        &[("min_responsibility", "1"), ("temperature.candidates", "2"), ("temperature.candidate_range", "0")],
        &[
            ("schedule.samples", "inf"),
            ("schedule.kappa", "0"),
            ("schedule.gate", "0"),
            ("schedule.eta", "0"),
        ],
        &[("schedule.samples", "50"), ("schedule.alpha", "1e12"), ("schedule.gamma", "1e12")],
        &[("temperature.beta", "1"), ("temperature.window", "1")],
    ];
    for scale in [1.0, 12.0, 1000.0] {
        let head = Arc::new((*plain.head).clone().with_logit_scale(scale).unwrap());
        for (preset, extremes) in [("ul-tta", default), ("ul-tta:paper", paper)] {
            for settings in extremes {
                let what = format!("{preset}, logit scale {scale}, {settings:?}");
                let mut session = Session::new(head.clone(), &quick(preset, settings)).unwrap();
                assert_sound(&session.step(&rows).unwrap(), &what);
                for id in 400..420 {
                    // forgotten where the guard has returned to the start
                    let told = session.feedback(id, (id % 10) as usize);
                    assert!(matches!(told, Ok(true) | Err(Error::Forgotten { .. })), "{what}: {told:?}");
                }
                assert_sound(&session.step(&rows).unwrap(), &what);
                through_bytes(&session.state());
            }
        }
    }
}

// === who may teach ===

/// What a session has learnt: everything but windows of answered samples, counters and the guard.
fn learnt(session: &Session) -> Vec<(String, Tensor)> {
    let local = ["local.recent", "local.since", "local.labelled", "local.updated_at", "local.prior.mix"];
    // Ids of rows, for delayed labels.
    let ids = ["local.scene.counts", "local.scene.copies"];
    let local = [&local[..], &ids].concat();
    session
        .state()
        .tensors
        .into_iter()
        .filter(|(name, _)| {
            let kept = ["evidence.", "gate.", "local."].iter().any(|p| name.starts_with(p));
            kept && !local.iter().any(|p| name.starts_with(p))
        })
        .collect()
}

#[test]
fn rows_that_may_not_learn_teach_nothing() {
    let world = World::small();
    let (taught, others) = (Stream::plain(&world, 300, 27), world.rows(400, 28));
    for (name, config) in variants() {
        let mut session = world.session(&config);
        taught.play(&mut session, 0..300, 100);
        let before = learnt(&session);
        let learn = [false; 400];
        let step = session.step(Input { learn: Some(&learn), ..Input::new(&others) }).unwrap();
        assert!(step.rows.iter().all(|r| !r.admitted), "{name}");
        assert_eq!(learnt(&session), before, "{name}");
        session.set_learning(false);
        let step = session.step(&others).unwrap();
        assert!(!session.learning() && step.rows.iter().all(|r| !r.admitted), "{name}");
        assert_eq!(learnt(&session), before, "{name}, learning stopped");
        let predicted = session.predict(&others).unwrap();
        assert!(predicted.rows.iter().all(|r| !r.admitted), "{name}, learning stopped");
        session.set_learning(true);
        session.step(&others).unwrap();
        if name != "zero-shot" {
            assert_ne!(learnt(&session), before, "{name}, learning again");
        }
    }
}

#[test]
fn leaving_out_the_rows_that_may_not_learn_changes_no_other_answer() {
    let world = World::small();
    let (rows, strangers) = (world.rows(350, 29), world.rows(350, 30));
    for name in ["zero-shot", "ul-tta", "ul-tta:paper"] {
        let config = Config::named(name).unwrap();
        let (mut alone, mut among) = (world.session(&config), world.session(&config));
        for i in 0..350 {
            let row = rows.slice(i..i + 1);
            let stranger = strangers.slice(i..i + 1);
            among.step(Input { learn: Some(&[false]), ..Input::new(&stranger) }).unwrap();
            let (a, b) = (alone.step(&row).unwrap(), among.step(&row).unwrap());
            assert_eq!(a.prediction.scores, b.prediction.scores, "{name}, row {i}");
            assert_eq!((a.rows[0].prob, a.rows[0].admitted), (b.rows[0].prob, b.rows[0].admitted), "{name}");
        }
        assert_eq!(learnt(&alone), learnt(&among), "{name}");
    }
}

#[test]
fn unknown_rows_are_reported_and_teach_nothing() {
    let world = World::small();
    // rows that fit no class: orthogonal to nothing in particular, far from every image
    let mut rng = Rng(31);
    let strangers: Vec<f32> = (0..200 * 16).map(|_| rng.normal()).collect();
    let strangers = Features::normalized(strangers, 16).unwrap();
    for (score, threshold) in [("max_softmax", "0.99999"), ("energy", "1000")] {
        for preset in ["ul-tta", "ul-tta:paper"] {
            let settings = [("unknown.score", score), ("unknown.threshold", threshold)];
            let mut session = world.session(&quick(preset, &settings));
            let before = learnt(&session);
            let step = session.step(&strangers).unwrap();
            assert!(step.rows.iter().all(|r| r.unknown && !r.admitted), "{preset}, {score}");
            assert_eq!(learnt(&session), before, "{preset}, {score}");
            assert_eq!(session.unknown(), 200);
            assert!(step.health.unknown_share > 0.1, "{preset}: {}", step.health.unknown_share);
        }
    }
    // by quantile some are, and none of them teaches
    let settings = [("unknown.score", "max_softmax"), ("unknown.quantile", "0.2")];
    let mut session = world.session(&quick("ul-tta", &settings));
    let step = session.step(&world.rows(600, 32)).unwrap();
    let unknown = step.rows.iter().filter(|r| r.unknown).count();
    assert!((30..300).contains(&unknown), "{unknown}");
    assert!(step.rows.iter().any(|r| r.admitted));
    assert!(step.rows.iter().all(|r| !(r.unknown && r.admitted)));
}

#[test]
fn views_change_responsibilities_only() {
    let world = World::small();
    let (taught, asked) = (Stream::plain(&world, 256, 33), world.rows(20, 34));
    let views = world.rows(60, 35);
    for (name, config) in variants().into_iter().filter(|(name, _)| name != "zero-shot") {
        let mut plain = world.session(&config);
        taught.play(&mut plain, 0..256, 128);
        let mut viewed = plain.clone();
        let a = plain.step(&asked).unwrap();
        let input = Input { views: Some(&views), view_counts: Some(&[3; 20]), ..Input::new(&asked) };
        let b = viewed.step(input).unwrap();
        let updated = plain.state().tensors.get("local.since") != viewed.state().tensors.get("local.since");
        assert!(!updated, "{name}");
        let shares = ["class_n", "class_sum", "fold.fresh", "evidence.prior"];
        // an update in between carries the responsibilities on
        let since = plain.state().get::<u64>("local.since").unwrap().last().copied().unwrap();
        if since >= 20 {
            assert_eq!(a.rows, b.rows, "{name}");
            for key in differing(&plain.state(), &viewed.state()) {
                assert!(shares.iter().any(|s| key.ends_with(s)), "{name}: {key} changed");
            }
        }
        let taught = name.contains("prototypes frozen") && !name.contains("paper");
        if a.rows.iter().any(|r| r.admitted) && !taught {
            assert_ne!(plain.state(), viewed.state(), "{name}: views had no effect");
        }
    }
}

#[test]
fn views_that_repeat_the_sample_change_nothing_but_rounding() {
    let world = World::small();
    let stream = Stream::plain(&world, 300, 36);
    let order: Vec<usize> = (0..600).map(|i| i / 2).collect();
    let views = stream.features.select(&order);
    for preset in ["ul-tta", "ul-tta:paper"] {
        let least = if preset == "ul-tta" { "advanced.min_responsibility" } else { "min_responsibility" };
        let config = quick(preset, &[("gate.enabled", "false"), (least, "0")]);
        let (mut plain, mut viewed) = (world.session(&config), world.session(&config));
        plain.step(&stream.features).unwrap();
        let input =
            Input { views: Some(&views), view_counts: Some(&[2; 300]), ..Input::new(&stream.features) };
        viewed.step(input).unwrap();
        let name = if preset == "ul-tta" { "evidence.decayed.class_n" } else { "evidence.class_n" };
        let (a, b) = (plain.state(), viewed.state());
        for (a, b) in a.get::<f64>(name).unwrap().iter().zip(b.get::<f64>(name).unwrap()) {
            assert!((a - b).abs() < 1e-3 * a.max(1.0), "{preset}: {a} and {b}");
        }
    }
}

#[test]
fn updates_follow_the_times_passed_in() {
    let world = World::small();
    let rows = world.rows(600, 37);
    for preset in ["ul-tta", "ul-tta:paper"] {
        let config = quick(preset, &[("update.seconds", "10"), ("update.every", "1000000")]);
        let mut still = world.session(&config);
        still.step(Input { times: Some(&[5.0; 600]), ..Input::new(&rows) }).unwrap();
        assert_eq!(still.health().movement_max, 0.0, "{preset}: no time passed");
        let times: Vec<f64> = (0..600).map(|i| 5.0 + i as f64 * 0.1).collect();
        let mut timed = world.session(&config);
        timed.step(Input { times: Some(&times), ..Input::new(&rows) }).unwrap();
        assert!(timed.health().movement_max > 0.0, "{preset}");
        let since = timed.state().get::<u64>("local.since").unwrap()[0];
        assert!(since < 150, "{preset}: {since} samples since an update that comes every 100");
    }
}

// === delayed labels ===

/// A session that has answered 400 rows.
fn answered(world: &World, settings: &[(&str, &str)], preset: &str) -> (Session, Vec<usize>) {
    let (rows, labels) = world.samples(400, 38);
    let mut session = world.session(&config(preset, settings));
    session.step(&rows).unwrap();
    (session, labels)
}

#[test]
fn feedback_must_name_a_remembered_sample_and_a_class() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let (mut session, _) = answered(&world, &[("feedback.remember", "100")], preset);
        let before = session.state();
        let error = session.feedback(3, 10).unwrap_err();
        assert!(matches!(error, Error::Label { label: 10, classes: 10 }), "{error}");
        for id in [400, u64::MAX, 0, 299] {
            let error = session.feedback(id, 0).unwrap_err();
            assert!(matches!(error, Error::Forgotten { remembered: 100, .. }), "{preset}, {id}: {error}");
        }
        assert_eq!(session.state(), before, "{preset}");
        assert!(session.feedback(300, 0).unwrap() && session.feedback(399, 0).unwrap());
        assert_ne!(session.state(), before, "{preset}");
    }
    let mut frozen = world.session(&config("zero-shot", &[]));
    frozen.step(&world.rows(5, 1)).unwrap();
    assert!(!frozen.feedback(2, 1).unwrap(), "zero-shot has no use for labels");
    assert!(matches!(frozen.feedback(2, 10), Err(Error::Label { .. })));
}

/// Labels that come late find what is kept of their samples, and say much the same as labels that come at once.
#[test]
fn labels_may_come_late() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let mut session = world.session(&config(preset, &[("feedback.prior_strength", "1")]));
        let rows = world.rows(6000, 38);
        let labels: Vec<usize> = session.step(&rows).unwrap().rows.iter().map(|row| row.label).collect();
        let memory = session.memory().unwrap();
        // A near-copy is no sample of its own.
        assert!((5500..=6000).contains(&memory.samples), "{preset}: {memory:?}");
        assert_eq!((memory.oldest, memory.most), (Some(0), 100_000), "{preset}");
        let told = |first: usize, shift: usize| {
            let mut session = session.clone();
            for id in first..first + 300 {
                assert!(session.feedback(id as u64, (labels[id] + shift) % 10).unwrap());
            }
            session.health().tau_cal
        };
        let (late_right, late_wrong, soon_right) = (told(0, 0), told(0, 1), told(5700, 0));
        assert!(late_right > 1.2 * late_wrong, "{preset}: {late_right} {late_wrong}");
        assert!((late_right / soon_right).ln().abs() < 0.8, "{preset}: {late_right} {soon_right}");
        let mut other = Session::resume(world.head.clone(), &session.state()).unwrap();
        assert!(other.feedback(17, 3).unwrap() && session.feedback(17, 3).unwrap());
        assert_eq!(other.state(), session.state(), "{preset}: a saved state remembers");
    }
}

#[test]
fn calibration_follows_the_labels() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let (session, _) = answered(&world, &[("feedback.prior_strength", "1")], preset);
        let rows = world.rows(400, 38);
        let labels: Vec<usize> =
            world.session(session.config()).step(&rows).unwrap().rows.iter().map(|r| r.label).collect();
        let told = |shift: usize| {
            let mut session = session.clone();
            for id in 250..400 {
                session.feedback(id as u64, (labels[id] + shift) % 10).unwrap();
            }
            session.health().tau_cal
        };
        let (right, wrong) = (told(0), told(1));
        assert!(right > 1.2, "{preset}: answers that are always right deserve confidence, got {right}");
        assert!(wrong < 0.6, "{preset}: answers that are always wrong deserve none, got {wrong}");
        let mut strong = world.session(&config(preset, &[("feedback.prior_strength", "1e9")]));
        strong.step(&rows).unwrap();
        let free = strong.health().tau_cal;
        for id in 250..400 {
            strong.feedback(id as u64, (labels[id] + 1) % 10).unwrap();
        }
        let held = strong.health().tau_cal;
        assert!((held / free - 1.0).abs() < 1e-2, "{preset}: a strong prior holds it at {free}, got {held}");
    }
}

#[test]
fn labels_correct_the_label_free_rule() {
    let world = World::small();
    let (free, labels) = answered(&world, &[], "ul-tta");
    let told = |ids: std::ops::Range<u64>| {
        let mut session = free.clone();
        for id in ids {
            session.feedback(id, labels[id as usize]).unwrap();
        }
        session
    };
    let before = free.health().tau_cal;
    let (few, mut many) = (told(398..400).health().tau_cal, told(200..400));
    let moved = |tau: f64| (tau / before).ln().abs();
    assert!(moved(few) < 0.1, "two labels hardly move it: {few} from {before}");
    assert!(moved(many.health().tau_cal) > moved(few), "many do");
    many.step(&world.rows(256, 39)).unwrap();
    let told = many.health().tau_cal;
    // A label for a sample that has one puts it right.
    let mut wrong = many.clone();
    wrong.feedback(399, (labels[399] + 1) % 10).unwrap();
    assert!(wrong.health().tau_cal < told);
    wrong.feedback(399, labels[399]).unwrap();
    assert!((wrong.health().tau_cal - told).abs() < 1e-3);
    let resumed = Session::resume(world.head.clone(), &through_bytes(&many.state())).unwrap();
    assert_eq!(resumed.health().tau_cal, told);
}

#[test]
fn the_order_in_which_labels_arrive_hardly_matters() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let (session, labels) = answered(&world, &[("feedback.teach", "true")], preset);
        let told = |ids: &mut dyn Iterator<Item = usize>| {
            let mut session = session.clone();
            for id in ids {
                assert!(session.feedback(id as u64, labels[id]).unwrap());
            }
            session
        };
        let (forwards, backwards) = (told(&mut (300..400)), told(&mut (300..400).rev()));
        let (a, b) = (forwards.health().tau_cal, backwards.health().tau_cal);
        assert!((a - b).abs() < 1e-2 * a, "{preset}: {a} and {b}");
        // a label told twice counts once
        let again = told(&mut (300..400).rev().chain(300..400));
        assert_eq!(
            forwards.per_class().iter().map(|c| c.evidence.round()).collect::<Vec<_>>(),
            again.per_class().iter().map(|c| c.evidence.round()).collect::<Vec<_>>(),
            "{preset}"
        );
    }
}

#[test]
fn labels_teach_when_asked_to() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let evidence = |session: &Session| session.per_class().iter().map(|c| c.evidence).collect::<Vec<_>>();
        let (mut quiet, labels) = answered(&world, &[], preset);
        let before = evidence(&quiet);
        quiet.feedback(390, labels[390]).unwrap();
        assert_eq!(evidence(&quiet), before, "{preset}: labels only calibrate by default");
        let (mut taught, _) = answered(&world, &[("feedback.teach", "true")], preset);
        for id in 380..390 {
            taught.feedback(id, 7).unwrap();
        }
        let after = evidence(&taught);
        for class in 0..10 {
            let gain = after[class] - before[class];
            let expected = if class == 7 { 10.0 } else { 0.0 };
            assert!((gain - expected).abs() < 1e-6, "{preset}, class {class}: {gain}");
        }
    }
}

// === the guard ===

/// Settings under which the published rules collapse: nothing holds prototypes, prior or temperature.
fn reckless(guard: &[(&'static str, &'static str)]) -> Config {
    let mut settings = vec![
        ("prototypes.rho", "inf"),
        ("prototypes.alpha", "0.01"),
        ("prototypes.eta", "1"),
        ("prior.kappa", "inf"),
        ("prior.gamma", "0.001"),
        ("temperature.beta", "0"),
        ("guard.patience", "100000"),
    ];
    settings.extend_from_slice(guard);
    quick("ul-tta:paper", &settings)
}

/// A world where images lie far from the texts, seen class by class for a while, again and again.
fn treacherous() -> (World, Features<'static>) {
    let world = World::new(40, 16, 40.0);
    let mut rng = Rng(40);
    let labels: Vec<usize> = (0..3000)
        .map(|i| if i % 600 < 300 { (i % 600 / 60 + i / 600 * 5) % 40 } else { rng.below(40) })
        .collect();
    let rows = world.images(&labels, &mut rng);
    (world, rows)
}

#[test]
fn a_collapse_is_noticed_and_answered_bit_for_bit() {
    let (world, rows) = treacherous();
    let mut watched = world.session(&reckless(&[("guard.enabled", "false")]));
    let collapsed = watched.step(&rows).unwrap().health;
    assert_eq!((collapsed.guard_fired, collapsed.standing), (0, Standing::Healthy), "it only watches");
    assert!(
        collapsed.effective_classes < 0.5 * collapsed.effective_classes_zero_shot,
        "the stream is meant to collapse: {collapsed:?}"
    );

    let config = reckless(&[]);
    let mut whole = world.session(&config);
    let step = whole.step(&rows).unwrap();
    assert_sound(&step, "a block across the fall");
    assert!(step.health.guard_fired >= 2, "{:?}", step.health);
    assert_eq!(step.health.standing, Standing::ZeroShot, "{:?}", step.health);
    let last = &step.rows[2900..];
    assert!(last.iter().all(|r| r.label == r.zero_shot.label && r.prob == r.zero_shot.prob && !r.admitted));

    let stream = Stream { features: rows, learn: None, times: None, views: None, labels: None };
    let mut expected = Played::default();
    expected.take(&step);
    let mut single = world.session(&config);
    assert!(stream.play(&mut single, 0..3000, 1) == expected);
    assert_eq!(differing(&single.state(), &whole.state()), [""; 0]);
    let mut resumed = world.session(&config);
    let mut got = Played::default();
    for first in (0..3000).step_by(150) {
        got.extend(stream.play(&mut resumed, first..first + 150, 70));
        resumed = Session::resume(world.head.clone(), &through_bytes(&resumed.state())).unwrap();
    }
    assert!(got == expected);
    assert_eq!(resumed.health(), whole.health());

    // zero-shot for a while, or until reset
    let predicted = whole.predict(&stream.features.slice(0..50)).unwrap();
    assert!(predicted.rows.iter().all(|r| r.label == r.zero_shot.label));
    whole.reset();
    assert_eq!(whole.health().standing, Standing::Healthy);
    assert_eq!(whole.health().guard_fired, 0);
}

#[test]
fn a_restored_session_stands_on_its_healthy_copy() {
    let (world, _) = treacherous();
    let mut rng = Rng(41);
    // balanced and harmless for long enough to leave a copy, then a run that teaches recklessly
    let settings = [("advanced.responsibilities", "text"), ("guard.window", "64")];
    let config = quick("ul-tta", &settings);
    let labels: Vec<usize> = (0..1100).map(|_| rng.below(40)).collect();
    let mut session = world.session(&config);
    session.step(&world.images(&labels, &mut rng)).unwrap();
    let state = session.state();
    let healthy = state.under("healthy.");
    assert!(!healthy.tensors.is_empty(), "a healthy stream leaves a copy");
    let names: Vec<&String> = healthy.tensors.keys().collect();
    assert!(names.iter().all(|n| n.starts_with("evidence.")), "only evidence is kept: {names:?}");
    // class sums are rounded to 16 bits against the largest of their class
    let (rounded, scales) = (
        healthy.get::<i16>("evidence.rounded").unwrap(),
        healthy.get::<f64>("evidence.rounded_scale").unwrap(),
    );
    assert_eq!((rounded.len(), scales.len()), (40 * 16, 40));
    for class in 0..40 {
        let largest = rounded[class * 16..][..16].iter().map(|v| v.unsigned_abs()).max().unwrap();
        assert!(largest == 32767 || scales[class] == 0.0, "class {class}: {largest}");
    }
}

#[test]
fn the_published_rules_are_kept_apart_by_their_settings() {
    // Each switch of the ablation table changes the answers of its preset, and nothing else does.
    let world = World::small();
    let stream = Stream::plain(&world, 600, 42);
    for preset in ["ul-tta", "ul-tta:paper"] {
        let full = world.session(&quick(preset, &[])).step(&stream.features).unwrap();
        let mut switches = vec![
            vec![("gate.enabled", "false")],
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
