//! The guard: a collapse is noticed and answered, and a restored session stands on its healthy copy.

use crate::common::{Played, Rng, Stream, World, assert_sound, differing, quick, through_bytes};
use ultta::{Config, Features, Session, Standing, Step};

/// Settings under which the published rules collapse: nothing holds prototypes, prior or temperature.
fn reckless(guard: &[(&'static str, &'static str)]) -> Config {
    let mut settings = vec![
        ("prototypes.rho", "inf"),
        ("prototypes.alpha", "0.01"),
        ("prototypes.eta", "1"),
        ("prior.kappa", "inf"),
        ("prior.gamma", "0.001"),
        ("temperature.beta", "0"),
        ("guard.advanced.patience", "100000"),
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
    let settings = [("advanced.responsibilities", "text"), ("guard.advanced.window", "64")];
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

/// Whatever the guard does, a copy stays a copy: a return to a healthy state in the middle of a scene begins none, and
/// while the frozen model answers, scenes go on.
#[test]
fn copies_stay_copies_whatever_the_guard_does() {
    let world = World::new(10, 64, 20.0);
    // Class after class: adapted answers concentrate, which a strict guard takes for a collapse.
    let labels: Vec<usize> = (0..700).map(|i| i / 70).collect();
    let pictures = world.images(&labels, &mut Rng(42));
    // Five copies each: the guard judges every 64 rows, which is in the middle of a scene.
    let rows = pictures.select(&(0..3500).map(|i| i / 5).collect::<Vec<_>>());
    let strict = [
        ("guard.advanced.window", "16"),
        ("guard.advanced.concentration", "1"),
        ("guard.advanced.support", "1"),
        ("guard.advanced.patience", "200"),
    ];
    let cuts = |step: &Step| step.rows.iter().map(|r| (r.scene, r.begins_scene)).collect::<Vec<_>>();
    let calm = world.session(&quick("ul-tta", &[("guard.enabled", "false")])).step(&rows).unwrap();
    let mut session = world.session(&quick("ul-tta", &strict));
    let mut step = session.step(&rows.slice(0..1)).unwrap();
    let (mut standings, mut alone) = (Vec::new(), cuts(&step));
    for row in 1..rows.rows() {
        let one = rows.slice(row..row + 1);
        let foretold = session.predict(&one).unwrap().rows[0];
        step = session.step(&one).unwrap();
        assert_eq!(foretold.begins_scene, step.rows[0].begins_scene, "row {row}: {:?}", step.health.standing);
        alone.extend(cuts(&step));
        standings.push(step.health.standing);
    }
    for standing in [Standing::Healthy, Standing::Restored, Standing::ZeroShot] {
        assert!(standings.contains(&standing), "{standing:?} is part of what is tested");
    }
    assert_eq!(alone, cuts(&calm));
    assert_eq!(step.health.scenes, calm.health.scenes);
    assert!(calm.health.scenes < 800, "{} scenes of 700 pictures", calm.health.scenes);
    // In blocks it is the same, and a label for a copy finds its scene across returns and falls.
    let mut whole = world.session(&quick("ul-tta", &strict));
    assert_eq!(cuts(&whole.step(&rows).unwrap()), alone);
    assert_eq!(differing(&whole.state(), &session.state()), [""; 0]);
    let fell = 1 + standings.iter().position(|&s| s == Standing::ZeroShot).unwrap() as u64;
    let copy = (fell + 5..).find(|&id| !alone[id as usize].1).unwrap();
    let first = (0..copy).rev().find(|&id| alone[id as usize].1).unwrap();
    assert!(whole.correct(copy, 3).unwrap());
    assert_eq!(whole.corrections(), [(first, 3)], "the label of copy {copy} is one for its scene");
}
