//! Who may teach a session: rows that may not learn, rows that fit no class, views, and the times that updates follow.

use crate::common::{Rng, Stream, World, differing, in_preset, own_variants, quick};
use ultta::{Config, Features, Head, Input, Session, Tensor};

/// What a session has learnt: everything but windows of answered samples, counters and the guard.
fn learnt(session: &Session) -> Vec<(String, Tensor)> {
    let local = ["local.recent", "local.since", "local.labelled", "local.updated_at", "local.prior.mix"];
    // Ids of rows, for delayed labels, and rows that may be asked about later.
    let ids = ["local.scene.counts", "local.scene.copies", "local.kept"];
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
    for (name, config) in own_variants() {
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

/// A head whose logits are far smaller than its margins deserve is sharpened before the first update (after 128 samples): from the
/// 64th sample on, as the header of `ul_tta/mod.rs` tells.
#[test]
fn a_dull_head_is_sharpened_before_the_first_update() {
    let world = World::small();
    let head = &world.head;
    let dull =
        Head::new(head.prototypes().to_vec(), head.dim(), head.classes().to_vec(), head.logit_scale() / 4.0);
    let mut session = Session::new(dull.unwrap(), &Config::default()).unwrap();
    let rows = world.rows(120, 29);
    let tau = |session: &mut Session, rows: &Features<'_>| session.step(rows).unwrap().health.tau_pred;
    assert_eq!(tau(&mut session, &rows.slice(0..63)), 1.0);
    assert!(tau(&mut session, &rows.slice(63..120)) > 1.5);
}

/// README, `docs/faq.md` and the header of `ul_tta/mod.rs` tell when the image evidence enters the answers: after 257 samples,
/// with more than 120 classes later. Until then answers and scores are those of a session whose prototypes are frozen. (How
/// probable they are is not: halves are compared only where there is evidence.)
#[test]
fn what_classes_look_like_counts_from_about_the_260th_scene_on() {
    let first_weight = |world: &World, rows: usize| {
        let stream = world.rows(rows, 26);
        // Every row is a scene of its own.
        let scenes = ("scenes", "false");
        let mut learning = world.session(&Config::resolve(None, None, None, &[scenes]).unwrap());
        let frozen = Config::resolve(None, None, None, &[scenes, ("prototypes.frozen", "true")]);
        let mut frozen = world.session(&frozen.unwrap());
        let mut first = None;
        for i in 0..rows {
            let row = stream.slice(i..i + 1);
            let (a, b) = (learning.step(&row).unwrap(), frozen.step(&row).unwrap());
            let same = a.prediction.scores == b.prediction.scores;
            if !same && first.is_none() {
                first = Some(i);
            }
            assert!(first.is_some() || a.rows[0].label == b.rows[0].label, "row {i}");
        }
        assert_eq!(learning.health().evidence_weight > 0.0, first.is_some());
        first
    };
    let first = first_weight(&World::small(), 400).expect("the evidence has weight");
    assert!((257..300).contains(&first), "row {first}");
    assert_eq!(first_weight(&World::new(160, 24, 25.0), 300), None, "more classes, a later start");
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
            let settings = [("unknown.score", score), ("unknown.advanced.threshold", threshold)];
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
    let settings = [("unknown.score", "max_softmax"), ("unknown.advanced.quantile", "0.2")];
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
    for (name, config) in own_variants().into_iter().filter(|(name, _)| name != "zero-shot") {
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
        let settings = [("gate.enabled", "false"), ("min_responsibility", "0")];
        let config = quick(preset, &settings.map(|s| in_preset(preset, s)));
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
        let config = quick(
            preset,
            &[in_preset(preset, ("update.seconds", "10")), in_preset(preset, ("update.every", "1000000"))],
        );
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
