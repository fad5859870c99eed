//! Estimates of accuracy: what they say without labels, and what labels make of them.

use crate::common::{World, config, through_bytes};
use ultta::{Estimate, Session};

fn holds(estimate: Estimate, top1: f64) -> bool {
    estimate.low <= top1 && top1 <= estimate.high
}

/// A session that has answered rows, and how often it and the frozen model were right.
fn answered(world: &World, n: usize) -> (Session, Vec<usize>, [f64; 2]) {
    let (rows, labels) = world.samples(n, 5);
    let mut session = world.session(&config("ul-tta", &[]));
    let step = session.step(&rows).unwrap();
    let right =
        |of: &dyn Fn(usize) -> usize| (0..n).filter(|&i| of(i) == labels[i]).count() as f64 / n as f64;
    let top1 = [right(&|i| step.rows[i].label), right(&|i| step.rows[i].zero_shot.label)];
    (session, labels, top1)
}

#[test]
fn nothing_is_known_before_the_first_answer() {
    let health = World::small().session(&config("ul-tta", &[])).health();
    assert_eq!((health.estimate.low, health.estimate.high, health.estimate_labels), (0.0, 1.0, 0));
}

#[test]
fn an_estimate_has_an_interval_that_labels_make_narrow_and_right() {
    let world = World::small();
    let (mut session, labels, top1) = answered(&world, 3000);
    let free = session.health();
    for e in [free.estimate, free.estimate_zero_shot, free.estimate_recent, free.estimate_recent_zero_shot] {
        assert!(0.0 <= e.low && e.low < e.top1 && e.top1 <= e.high && e.high <= 1.0, "{e:?}");
        assert!(e.high - e.low > 0.05, "a systematic error stays: {e:?}");
    }
    for id in (0..3000).step_by(6) {
        session.feedback(id as u64, labels[id]).unwrap();
    }
    let told = session.health();
    assert_eq!(told.estimate_labels, 500);
    for (estimate, before, top1) in
        [(told.estimate, free.estimate, top1[0]), (told.estimate_zero_shot, free.estimate_zero_shot, top1[1])]
    {
        assert!((estimate.top1 - top1).abs() < 0.04 && holds(estimate, top1), "{estimate:?} {top1}");
        assert!(estimate.high - estimate.low < 0.6 * (before.high - before.low), "{estimate:?} {before:?}");
    }
    // What was counted is saved, and labels for a resumed session count on.
    let mut other = Session::resume(world.head.clone(), &through_bytes(&session.state())).unwrap();
    assert_eq!(other.health().estimate, told.estimate);
    for session in [&mut session, &mut other] {
        session.feedback(1, labels[1]).unwrap();
    }
    assert_eq!(session.health(), other.health());
}

#[test]
fn every_class_has_an_estimate() {
    let (session, ..) = answered(&World::small(), 1000);
    let classes = session.class_estimates();
    assert_eq!(classes.iter().map(|c| c.answers).sum::<u64>(), 1000);
    let all = session.health().estimate;
    for class in classes.iter().filter(|c| c.answers > 0) {
        let e = class.adapted;
        assert!(
            e.low <= e.top1 && e.top1 <= e.high && e.high - e.low >= all.high - all.low - 1e-9
                || e.high == 1.0
        );
    }
}

#[test]
fn unknown_samples_are_neither_right_nor_wrong() {
    let world = World::small();
    let settings = [("unknown.score", "max_softmax"), ("unknown.advanced.threshold", "1.0")];
    let mut session = world.session(&config("ul-tta", &settings));
    let step = session.step(&world.rows(300, 4)).unwrap();
    assert!(step.rows.iter().all(|row| row.unknown));
    assert_eq!((step.health.estimate.low, step.health.estimate.high), (0.0, 1.0));
}

/// Sets and rejection by cost are part of the state: blocks, single rows and a resumed session say the same.
#[test]
fn sets_and_rejection_do_not_depend_on_grouping() {
    let world = World::small();
    let settings = [("coverage", "0.9"), ("unknown.score", "cone"), ("unknown.cost", "0.1")];
    let (rows, labels) = world.samples(700, 6);
    let play = |size: usize, resumed: bool| {
        let mut session = world.session(&config("ul-tta", &settings));
        let (mut sets, mut unknown) = (Vec::new(), Vec::new());
        for start in (0..700).step_by(size) {
            // Labels come after whole blocks of 100, whatever the size.
            if start > 0 && start % 100 == 0 {
                for id in (start - 100..start).step_by(4) {
                    session.feedback(id as u64, labels[id]).unwrap();
                }
            }
            if resumed && start == 300 {
                session = Session::resume(world.head.clone(), &through_bytes(&session.state())).unwrap();
            }
            let step = session.step(&rows.slice(start..start + size)).unwrap();
            unknown.extend(step.rows.iter().map(|row| row.unknown));
            sets.extend(step.sets);
        }
        (sets, unknown, session.state(), session.health())
    };
    let whole = play(100, false);
    for (size, resumed) in [(1, false), (20, true), (100, true)] {
        let other = play(size, resumed);
        assert!(other == whole, "{size} {resumed}");
    }
    let (sets, unknown, _, health) = whole;
    let rejected = unknown.iter().filter(|unknown| **unknown).count() as f64 / 700.0;
    assert!((0.02..0.25).contains(&rejected), "{rejected}");
    assert!(health.coverage_promise && health.coverage_labels == 150 && health.set_size > 0.0);
    let held = (350..700).filter(|&i| sets[i].contains(&(labels[i] as u32))).count() as f64 / 350.0;
    assert!((held - 0.9).abs() < 0.08, "{held}");
    let plain = world.session(&config("ul-tta", &[])).step(&rows).unwrap();
    assert!(plain.sets.is_empty() && plain.known.is_empty(), "only where they are asked for");
}
