//! What a session bears: memory that stays bounded, wrong, strange and extreme input. Wrong input is tried on every method
//! of the registry that needs no views, the rest on our own method with every switch; `laws.rs` has what every method bears.

use std::sync::Arc;

use crate::common::{Rng, Stream, World, assert_sound, config, own_variants, quick, through_bytes, variants};
use ultta::internal::LOGIT_SCALES;
use ultta::{Config, Error, Features, Head, Input, Scores, Session};

#[test]
fn state_stays_bounded() {
    let world = World::small();
    let stream = Stream::plain(&world, 4096, 16);
    for (name, config) in own_variants() {
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
        // And 24 bytes an answer, so that labels correct the estimate of accuracy: the last 16,384.
        let slack = slack + 2048 * 24;
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
    for (name, config) in own_variants() {
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
        for (name, config) in own_variants() {
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
        for (name, config) in own_variants() {
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
            ("advanced.half_life_per_class", "0"),
        ],
        &[("gate.keep", "0"), ("advanced.gate_warm_up", "0"), ("advanced.gate_window", "1")],
        &[("gate.keep", "1"), ("advanced.update_every", "1"), ("advanced.min_responsibility", "0")],
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
