//! Scenes: a run of near-copies teaches once, wherever it is cut into blocks; and a stream that changes begins anew.

use crate::common::{Rng, Stream, World, config, quick, through_bytes};
use proptest::prelude::*;
use ultta::{Config, Features, Session, State, Step};

/// Pictures that are far apart, so that no two of them are near-copies by chance.
fn world() -> World {
    World::new(10, 64, 20.0)
}

/// Row `i` repeated exactly, `times[i]` times.
fn repeated(rows: &Features<'_>, times: &[usize]) -> Features<'static> {
    let order: Vec<usize> =
        times.iter().enumerate().flat_map(|(row, &n)| std::iter::repeat_n(row, n)).collect();
    rows.select(&order)
}

/// Each row as a shot of near-copies.
fn shots(rows: &Features<'_>, length: usize, seed: u64) -> Features<'static> {
    let mut rng = Rng(seed);
    let copies = repeated(rows, &vec![length; rows.rows()]);
    let noise = 0.15 / (copies.dim() as f32).sqrt();
    let noisy: Vec<f32> = copies.data().iter().map(|v| v + noise * rng.normal()).collect();
    Features::normalized(noisy, copies.dim()).unwrap()
}

/// What the method, guard, alarms and estimates have learnt, without what is told of rows: their ids and the number of rows in
/// the scene at hand; the alarm for a feed that repeats itself, and draws of earlier scenes by their ids; and estimates, which
/// are of the answers to all rows, copies among them. Rejection and sets, which are off here, speak of rows, too.
fn learnt(session: &Session) -> State {
    let mut state = session.state();
    let ids = [
        "local.recent.ids",
        "local.recent.earlier.ids",
        "local.scene.counts",
        "local.scene.copies",
        "local.scene.copies_of",
    ];
    let alarms = ["alarm.counts", "alarm.sum", "alarm.recent", "alarm.recent_weight", "alarm.mix.recent"];
    let estimates = ["estimate.counts", "estimate.halves", "estimate.named"];
    state.tensors.retain(|name, _| {
        let own = ["evidence.", "gate.", "local.", "guard."].iter().any(|p| name.starts_with(p));
        own && !name.starts_with("local.kept.") && !ids.contains(&name.as_str())
            || alarms.contains(&name.as_str())
            || estimates.contains(&name.as_str())
    });
    state
}

fn cuts(step: &Step) -> Vec<bool> {
    step.rows.iter().map(|row| row.begins_scene).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn exact_copies_teach_as_one_row(times in prop::collection::vec(1usize..5, 180), seed in 0u64..1000) {
        let world = world();
        let rows = world.rows(times.len(), seed);
        let config = quick("ul-tta", &[]);
        let (mut once, mut often) = (world.session(&config), world.session(&config));
        once.step(&rows).unwrap();
        prop_assume!(once.health().scenes == rows.rows() as u64);
        let step = often.step(&repeated(&rows, &times)).unwrap();
        prop_assert_eq!(step.health.scenes, rows.rows() as u64);
        prop_assert_eq!(learnt(&once), learnt(&often));
        for part in ["guard.", "alarm.", "estimate."] {
            prop_assert!(learnt(&often).any_under(part), "{} is compared", part);
        }
        let mut first = 0;
        for (scene, &n) in times.iter().enumerate() {
            let shot = &step.rows[first..first + n];
            prop_assert!(shot[0].begins_scene && shot[1..].iter().all(|row| !row.begins_scene && !row.admitted));
            prop_assert!(shot.iter().all(|row| row.scene == scene as u64));
            first += n;
        }
    }

    #[test]
    fn cuts_depend_on_the_rows_alone(length in 2usize..9, block in 1usize..70, seed in 0u64..1000) {
        let world = world();
        let rows = shots(&world.rows(40, seed), length, seed);
        let whole = world.session(&quick("ul-tta", &[])).step(&rows).unwrap();
        // Two shots in a row may look alike, and a shot may wander off.
        prop_assert!((30..100).contains(&whole.health.scenes), "{} scenes of 40 shots", whole.health.scenes);
        // However the rows are grouped, and interrupted in the middle of a scene.
        let mut session = world.session(&quick("ul-tta", &[]));
        let mut grouped = Vec::new();
        for start in (0..rows.rows()).step_by(block) {
            let part = rows.slice(start..rows.rows().min(start + block));
            grouped.extend(cuts(&session.step(&part).unwrap()));
            session = Session::resume(session.head().clone(), &through_bytes(&session.state())).unwrap();
        }
        prop_assert_eq!(&grouped, &cuts(&whole));
        // Whatever else the method does with them.
        for settings in [("prior.frozen", "true"), ("prototypes.frozen", "true"), ("calibration.rule", "off")] {
            let step = world.session(&quick("ul-tta", &[settings])).step(&rows).unwrap();
            prop_assert_eq!(cuts(&step), cuts(&whole));
        }
    }
}

#[test]
fn a_camera_that_never_moves_teaches_once() {
    let world = world();
    let rows = repeated(&world.rows(1, 1), &[600]);
    let mut session = world.session(&config("ul-tta", &[]));
    let step = session.step(&rows).unwrap();
    assert_eq!((step.health.scenes, step.health.rows_per_scene), (1, 600.0));
    assert_eq!(session.state().get::<u64>("evidence.seen").unwrap()[0], 1);
    let (first, last) = (&step.rows[0], &step.rows[599]);
    assert!(last.prob <= first.prob + 1e-6, "copies make nothing surer: {} and {}", first.prob, last.prob);
}

#[test]
fn pictures_of_one_class_are_not_one_scene() {
    let world = world();
    let rows = world.images(&[3; 200], &mut Rng(5));
    let step = world.session(&config("ul-tta", &[])).step(&rows).unwrap();
    assert!(step.health.scenes > 180, "{} scenes of 200 pictures", step.health.scenes);
}

#[test]
fn copies_are_answered_from_the_mean_of_their_scene() {
    let world = world();
    // Pictures between two classes: zero-shot answers flicker within a shot.
    let (one, other) = (world.rows(60, 7), world.rows(60, 8));
    let between: Vec<f32> = one.data().iter().zip(other.data()).map(|(a, b)| a + b).collect();
    let rows = shots(&Features::normalized(between, 64).unwrap(), 20, 9);
    let step = world.session(&config("ul-tta", &[])).step(&rows).unwrap();
    let within = |w: &&[ultta::Row]| !w[1].begins_scene;
    let flickers =
        step.rows.windows(2).filter(within).filter(|w| w[0].zero_shot.label != w[1].zero_shot.label);
    let switches = step.rows.windows(2).filter(within).filter(|w| w[0].label != w[1].label).count();
    let flickers = flickers.count();
    assert!(flickers > 20 && 2 * switches < flickers, "{switches} switches, {flickers} of zero-shot");
    let alone = world.session(&config("ul-tta", &[("scenes", "false")])).step(&rows).unwrap();
    assert_eq!(alone.health.scenes, 1200, "every row is a scene");
}

#[test]
fn a_label_for_a_copy_is_a_label_for_its_scene() {
    let world = world();
    let rows = repeated(&world.rows(40, 9), &[3; 40]);
    let mut session = world.session(&config("ul-tta", &[]));
    session.step(&rows).unwrap();
    for id in [30, 31, 32] {
        assert!(session.feedback(id, 1).unwrap());
    }
    let state = session.state();
    let labelled: Vec<&String> = state.tensors.keys().filter(|k| k.starts_with("local.labelled")).collect();
    let ids = labelled.iter().find(|k| k.ends_with("ids")).expect("ids of labelled samples");
    assert_eq!(state.get::<u64>(ids).unwrap(), [30], "one scene, one label");
}

/// A lens that is covered, and uncovered again: what was learnt is forgotten both times, and it is told.
#[test]
fn a_stream_that_changes_begins_anew() {
    let world = world();
    // Rows at right angles to all classes, as far as can be: they say nothing about any.
    let mut rng = Rng(11);
    let mut noise: Vec<f32> = (0..300 * 64).map(|_| rng.normal()).collect();
    for row in noise.chunks_mut(64) {
        for _ in 0..50 {
            for class in 0..10 {
                let text = world.head.prototype(class);
                let along: f32 = row.iter().zip(text).map(|(r, t)| r * t).sum();
                row.iter_mut().zip(text).for_each(|(r, t)| *r -= along * t);
            }
        }
    }
    let noise = Features::normalized(noise, 64).unwrap();
    let run = |config: &Config| {
        let mut session = world.session(config);
        Stream::plain(&world, 400, 12).play(&mut session, 0..400, 100);
        session.step(&noise).unwrap();
        session.health().restarts
    };
    assert!(run(&config("ul-tta", &[])) >= 1);
    assert_eq!(run(&config("ul-tta", &[("advanced.restart_at", "inf")])), 0);
    let mut session = world.session(&config("ul-tta", &[]));
    Stream::plain(&world, 800, 13).play(&mut session, 0..800, 100);
    assert_eq!(session.health().restarts, 0, "a steady stream goes on");
}

#[test]
fn the_prior_warms_up() {
    let world = world();
    // One class after another, each for a long time: later the prior has much to say.
    let labels: Vec<usize> = (0..400).map(|i| i / 40).collect();
    let rows = world.images(&labels, &mut Rng(11));
    let frozen = [("prototypes.frozen", "true"), ("calibration.rule", "off"), ("scenes", "false")];
    let step = world.session(&config("ul-tta", &frozen)).step(&rows).unwrap();
    let differs = |row: &ultta::Row| (row.prob_pred - row.zero_shot.prob).abs() > 1e-4;
    assert!(!step.rows[..16].iter().any(differs), "the first 16 samples are answered as by the frozen head");
    assert!(step.rows[16..].iter().filter(|row| differs(row)).count() > 300);
}

#[test]
fn the_answer_is_the_most_probable_class() {
    let world = world();
    // Pictures between two classes, one of them in runs: the frozen model and the adapted answer often differ by little.
    let labels: Vec<usize> = (0..600).map(|i| i / 30 % 10).collect();
    let (one, other) = (world.images(&labels, &mut Rng(21)), world.rows(600, 22));
    let between: Vec<f32> = one.data().iter().zip(other.data()).map(|(a, b)| a + b).collect();
    let rows = Features::normalized(between, 64).unwrap();
    let step = world.session(&config("ul-tta", &[])).step(&rows).unwrap();
    assert!(step.rows.iter().filter(|row| row.label != row.zero_shot.label).count() > 20);
    for (i, row) in step.rows.iter().enumerate() {
        let probs = step.probs(i, ultta::Temperature::Cal);
        let best = (0..probs.len()).max_by(|&a, &b| probs[a].total_cmp(&probs[b])).unwrap();
        assert_eq!(best, row.label, "row {i}: {probs:?}");
    }
}
