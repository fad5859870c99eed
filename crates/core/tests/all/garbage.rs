//! Garbage: rows that look like nothing are told one by one, teach nothing, and change nothing of what the others teach.

use crate::common::{Played, Rng, Stream, World, config, differing, quick, through_bytes};
use proptest::prelude::*;
use ultta::{Features, Health, Input, Session, Standing, Step};

/// Pictures that differ from one another in nine ways (ten classes), and little beyond these; texts beside them.
fn world() -> World {
    World::new(10, 256, 20.0)
}

/// Noise around the mean of the pictures, about as far from it as they are.
fn noise(world: &World, n: usize, seed: u64) -> Features<'static> {
    let (pictures, mut rng) = (world.rows(400, 99), Rng(seed));
    let dim = pictures.dim();
    let mean: Vec<f32> =
        (0..dim).map(|i| (0..400).map(|row| pictures.row(row)[i]).sum::<f32>() / 400.0).collect();
    let rows: Vec<f32> = (0..n)
        .flat_map(|_| {
            rng.direction(dim).into_iter().zip(&mean).map(|(noise, m)| 0.7 * noise + m).collect::<Vec<_>>()
        })
        .collect();
    Features::normalized(rows, dim).unwrap()
}

/// Pictures with garbage among them: runs of noise, single rows of it, opposites, and copies of noise.
fn littered(world: &World, n: usize, seed: u64) -> (Features<'static>, Vec<bool>) {
    let (pictures, noise, mut rng) = (world.rows(n, seed), noise(world, n, seed + 1), Rng(seed + 2));
    let dim = pictures.dim();
    let (mut rows, mut garbage) = (pictures.data().to_vec(), vec![false; n]);
    let mut at = 20;
    while at + 12 < n {
        let run = [1, 2, 7, 12][rng.below(4)];
        let kind = rng.below(3);
        for i in at..at + run {
            let new: Vec<f32> = match kind {
                0 => rows[(i - 1) * dim..i * dim].iter().map(|v| -v).collect(),
                1 if i > at && i % 3 == 0 => rows[(i - 1) * dim..i * dim].to_vec(),
                _ => noise.row(i).to_vec(),
            };
            // Opposites in turns with pictures: of a run every other row.
            garbage[i] = kind != 0 || (i - at) % 2 == 0;
            rows[i * dim..][..dim].copy_from_slice(&new);
        }
        at += run + 5 + rng.below(25);
    }
    (Features::normalized(rows, dim).unwrap(), garbage)
}

fn verdicts(step: &Step) -> Vec<bool> {
    step.rows.iter().map(|row| row.garbage).collect()
}

/// How many rows of two lists differ.
fn unlike(a: &[bool], b: &[bool]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn verdicts_depend_on_the_rows_alone(block in 1usize..70, seed in 0u64..1000) {
        let world = world();
        let (rows, garbage) = littered(&world, 400, seed);
        let whole = world.session(&quick("ul-tta", &[])).step(&rows).unwrap();
        let told = verdicts(&whole);
        prop_assert_eq!(told.iter().filter(|&&told| told).count() as u64, whole.health.garbage);
        prop_assert!(unlike(&told, &garbage) <= 40, "{} of 400 rows are misjudged", unlike(&told, &garbage));
        prop_assert!(whole.health.garbage > 30, "{} rows", whole.health.garbage);
        // However the rows are grouped, saved and resumed.
        let mut session = world.session(&quick("ul-tta", &[]));
        let (mut grouped, mut expected) = (Played::default(), Played::default());
        expected.take(&whole);
        for start in (0..rows.rows()).step_by(block) {
            let part = rows.slice(start..rows.rows().min(start + block));
            let foretold = session.predict(&part.slice(0..1)).unwrap();
            let step = session.step(&part).unwrap();
            prop_assert_eq!(foretold.rows[0].garbage, step.rows[0].garbage, "row {}", start);
            grouped.take(&step);
            session = Session::resume(session.head().clone(), &through_bytes(&session.state())).unwrap();
        }
        prop_assert!(grouped == expected);
        prop_assert_eq!(session.health(), whole.health);
        // Whatever else the method does with them.
        for settings in [("prior.frozen", "true"), ("prototypes.frozen", "true"), ("calibration.rule", "off"), ("gate.keep", "0.3")] {
            let step = world.session(&quick("ul-tta", &[settings])).step(&rows).unwrap();
            prop_assert_eq!(&verdicts(&step), &told, "{:?}", settings);
        }
    }

    /// Answer by answer: what predict says of the next row is what step says, and it changes nothing.
    #[test]
    fn predict_foretells_garbage(seed in 0u64..1000) {
        let world = world();
        let (rows, _) = littered(&world, 200, seed);
        let mut session = world.session(&quick("ul-tta", &[]));
        for row in 0..rows.rows() {
            let one = rows.slice(row..row + 1);
            let before = session.state();
            let foretold = session.predict(&one).unwrap();
            prop_assert_eq!(differing(&session.state(), &before), [""; 0]);
            let step = session.step(&one).unwrap();
            prop_assert_eq!(foretold.rows, step.rows, "row {}", row);
            prop_assert_eq!(foretold.prediction.scores, step.prediction.scores, "row {}", row);
        }
    }
}

/// What a stream that begins with garbage had taught is forgotten, and predict knows the row at which it is.
#[test]
fn a_stream_that_begins_with_garbage_begins_anew() {
    let world = world();
    let noise = noise(&world, 40, 3);
    let mut session = world.session(&config("ul-tta", &[]));
    let mut restarted = 0;
    for row in 0..40 {
        let one = noise.slice(row..row + 1);
        let foretold = session.predict(&one).unwrap();
        let step = session.step(&one).unwrap();
        assert_eq!(foretold.rows, step.rows, "row {row}");
        assert_eq!(foretold.prediction.scores, step.prediction.scores, "row {row}");
        assert!(row >= 16 || !step.rows[0].garbage, "row {row}: there is too little to compare with");
        if step.health.restarts > restarted {
            assert!(row >= 19 && step.rows[0].garbage, "row {row}");
            assert_eq!(session.state().get::<u64>("evidence.seen").unwrap()[0], 0);
            restarted = step.health.restarts;
        }
    }
    assert_eq!(restarted, 1);
    assert!(session.health().garbage >= 20, "{} of the last 24", session.health().garbage);
    // A session that begins with pictures loses nothing by garbage that comes later.
    let mut session = world.session(&config("ul-tta", &[]));
    session.step(&world.rows(60, 4)).unwrap();
    let step = session.step(&noise).unwrap();
    let told = step.rows.iter().filter(|row| row.garbage).count();
    assert!(step.health.restarts == 0 && told >= 36, "{told} of 40");
    assert_eq!(
        session.state().get::<u64>("evidence.seen").unwrap()[0],
        step.health.seen - step.health.garbage
    );
}

/// What is learnt: all but what is told of rows, and what is kept of them so that they can be asked about or labelled.
fn learnt(session: &Session) -> ultta::State {
    let of_rows = [
        "local.recent",
        "local.scene.",
        "local.kept.",
        "local.garbage",
        "local.prior.mix",
        "local.updated_at",
    ];
    let mut state = session.state();
    state.tensors.retain(|name, _| {
        let own =
            ["evidence.", "gate.", "local.", "guard.", "sets."].iter().any(|part| name.starts_with(part));
        own && (name.starts_with("local.scene.apart") || !of_rows.iter().any(|part| name.starts_with(part)))
    });
    state
}

#[test]
fn garbage_teaches_nothing() {
    let world = world();
    let noise = noise(&world, 220, 5);
    let mut session = world.session(&quick("ul-tta", &[]));
    session.step(&world.rows(300, 6)).unwrap();
    let (before, health) = (learnt(&session), session.health());
    assert!(before.tensors.keys().any(|name| name.starts_with("local.prior")), "the prior is compared");
    assert!(before.any_under("evidence.") && before.any_under("guard.") && before.any_under("local.watch"));
    // Chance lets some noise pass: a row that would not be told is not shown.
    let mut shown = 0;
    for row in 0..noise.rows() {
        let one = noise.slice(row..row + 1);
        if session.predict(&one).unwrap().rows[0].garbage {
            let row = session.step(&one).unwrap().rows[0];
            assert!(row.garbage && !row.admitted && row.begins_scene);
            shown += 1;
        }
    }
    assert!(shown > 200, "{shown} of 220 rows");
    assert_eq!(differing(&learnt(&session), &before), [""; 0]);
    // Told, and left out of the estimate.
    let health_now = session.health();
    assert_eq!((health_now.garbage - health.garbage, health_now.seen), (shown, 300 + shown));
    let [now, then] = [&health_now, &health].map(|h: &Health| h.estimate);
    assert!((now.top1 - then.top1).abs() < 1e-9, "{now:?} and {then:?}");
}

#[test]
fn rows_that_may_not_learn_leave_what_rows_are_compared_with() {
    let world = world();
    let (rows, _) = littered(&world, 300, 7);
    let mut session = world.session(&quick("ul-tta", &[]));
    session.step(&world.rows(60, 8)).unwrap();
    let compared = |session: &Session| {
        let mut state = session.state();
        state.tensors.retain(|name, _| name.starts_with("local.garbage") || name == "local.scene.garbage");
        state
    };
    let before = compared(&session);
    assert_eq!(before.tensors.len(), 3);
    let learn = [false; 300];
    let step = session.step(Input { learn: Some(&learn), ..Input::new(&rows) }).unwrap();
    assert!(step.health.garbage > 20, "they are told all the same: {}", step.health.garbage);
    assert_eq!(differing(&compared(&session), &before), [""; 0]);
    // Marked rows change no verdict on the others: every third row is marked.
    let learn: Vec<bool> = (0..300).map(|row| row % 3 != 0).collect();
    let mut marked = world.session(&quick("ul-tta", &[]));
    let step = marked.step(Input { learn: Some(&learn), ..Input::new(&rows) }).unwrap();
    let others: Vec<usize> = (0..300).filter(|&row| learn[row]).collect();
    let alone = world.session(&quick("ul-tta", &[])).step(&rows.select(&others)).unwrap();
    let told: Vec<bool> = others.iter().map(|&row| step.rows[row].garbage).collect();
    assert_eq!(told, verdicts(&alone));
}

/// While the frozen model answers because the guard has no faith in the method, and after a return to a healthy state, rows are
/// judged and told as without the guard.
#[test]
fn verdicts_go_on_whatever_the_guard_does() {
    let world = world();
    // Class after class: adapted answers concentrate, which a strict guard takes for a collapse.
    let labels: Vec<usize> = (0..900).map(|i| i / 90).collect();
    let (pictures, noise) = (world.images(&labels, &mut Rng(9)), noise(&world, 900, 10));
    let mut rows = pictures.data().to_vec();
    for row in (0..900).filter(|row| row % 40 > 33) {
        // The second row of every run is a copy of the first.
        let shown = if row % 40 == 35 { row - 1 } else { row };
        rows[row * 256..][..256].copy_from_slice(noise.row(shown));
    }
    let rows = Features::normalized(rows, 256).unwrap();
    let strict = [
        ("guard.advanced.window", "16"),
        ("guard.advanced.concentration", "1"),
        ("guard.advanced.support", "1"),
        ("guard.advanced.patience", "200"),
    ];
    let calm = world.session(&quick("ul-tta", &[("guard.enabled", "false")])).step(&rows).unwrap();
    let mut session = world.session(&quick("ul-tta", &strict));
    let (mut told, mut standings) = (Vec::new(), Vec::new());
    for row in 0..rows.rows() {
        let one = rows.slice(row..row + 1);
        let foretold = session.predict(&one).unwrap().rows[0].garbage;
        let step = session.step(&one).unwrap();
        assert_eq!(foretold, step.rows[0].garbage, "row {row}: {:?}", step.health.standing);
        if step.rows[0].garbage {
            standings.push(step.health.standing);
        }
        told.extend(verdicts(&step));
    }
    for standing in [Standing::Healthy, Standing::ZeroShot] {
        assert!(standings.contains(&standing), "{standing:?} is part of what is tested");
    }
    assert_eq!(told, verdicts(&calm));
    assert_eq!(session.health().garbage, calm.health.garbage);
    assert!(calm.health.garbage > 80, "{} rows", calm.health.garbage);
    let whole = world.session(&quick("ul-tta", &strict)).step(&rows).unwrap();
    assert_eq!(verdicts(&whole), told, "in blocks, too");
}

#[test]
fn it_can_be_switched_off_and_no_other_method_tells() {
    let world = world();
    let (rows, _) = littered(&world, 300, 11);
    let mut off = world.session(&quick("ul-tta", &[("spot_garbage", "false")]));
    let step = off.step(&rows).unwrap();
    assert_eq!(step.health.garbage, 0);
    assert!(step.rows.iter().all(|row| !row.garbage));
    assert_eq!(off.state().get::<f32>("local.garbage.rows").unwrap(), [0.0; 0], "nothing is kept for it");
    for method in ["ul-tta:paper", "zero-shot", "tda", "dota"] {
        let step = world.session(&config(method, &[])).step(&rows).unwrap();
        assert!(step.health.garbage == 0 && step.rows.iter().all(|row| !row.garbage), "{method}");
    }
}

/// A state of an earlier build loads; rows are judged once sixteen have come.
#[test]
fn states_of_before_garbage_are_read() {
    let world = world();
    let mut session = world.session(&quick("ul-tta", &[]));
    session.step(&world.rows(300, 12)).unwrap();
    let mut state = session.state();
    let before = state.tensors.len();
    state.tensors.retain(|name, _| !name.contains("garbage"));
    assert!(before - state.tensors.len() >= 4);
    let mut earlier = Session::resume(world.head.clone(), &through_bytes(&state)).unwrap();
    let noise = noise(&world, 2, 13);
    assert!(!earlier.step(&noise.slice(0..1)).unwrap().rows[0].garbage);
    Stream::plain(&world, 30, 14).play(&mut earlier, 0..30, 8);
    let step = earlier.step(&noise.slice(1..2)).unwrap();
    assert!(step.rows[0].garbage && step.health.garbage >= 1);
}
