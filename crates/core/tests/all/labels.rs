//! Labels that come later: which samples they may name, and what they change.

use crate::common::{World, config, in_preset, through_bytes};
use ultta::{Error, Session};

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
        // Labels start from the confidence that the margins tell of, whatever the default's own share of it is.
        let mut settings = vec![in_preset(preset, ("feedback.prior_strength", "1"))];
        settings.extend((preset == "ul-tta").then_some(("advanced.margin_share", "1")));
        let mut session = world.session(&config(preset, &settings));
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
        let (session, _) = answered(&world, &[in_preset(preset, ("feedback.prior_strength", "1"))], preset);
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
        let mut strong =
            world.session(&config(preset, &[in_preset(preset, ("feedback.prior_strength", "1e9"))]));
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
