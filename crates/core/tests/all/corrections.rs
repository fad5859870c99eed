//! Why a row is answered as it is, and labels that count at once.

use ultta::{Config, Error, Features, Input, Lever, Session, Standing, Temperature};

use crate::common::{Rng, World, config, differing, own_variants, quick, through_bytes};

/// A session that has learnt from rows of a few classes, all levers at work.
fn learnt(world: &World, settings: &[(&str, &str)]) -> Session {
    let mut session = world.session(&quick("ul-tta", settings));
    let labels: Vec<usize> = (0..600).map(|i| [0, 1, 2, 3, i % 10][i % 5]).collect();
    session.step(&world.images(&labels, &mut Rng(5))).unwrap();
    session
}

/// A session under a strict guard that was given a hundred labels of one class.
fn of_one_class(world: &World) -> Session {
    let strict = [("guard.advanced.concentration", "1.0"), ("guard.advanced.support", "1.0")];
    let mut session = learnt(world, &strict);
    for scene in session.kept().iter().rev().step_by(2).take(100) {
        session.correct(scene.id, 0).unwrap();
    }
    session
}

fn one(z: &[f32]) -> Features<'_> {
    Features::new(z, z.len()).unwrap()
}

/// The parts of an explanation add up to the logits of the answer, with labels and copies.
#[test]
fn explanations_add_up() {
    let world = World::small();
    for (name, config) in own_variants() {
        let mut session = world.session(&config);
        let rows = world.rows(300, 3);
        let step = session.step(&rows).unwrap();
        for row in step.rows.iter().rev().step_by(9).take(8) {
            session.correct(row.id, (row.label + 3) % 10).unwrap();
        }
        let others = world.rows(20, 9);
        // The last row is a near-copy of the scene at hand.
        for z in (0..20).map(|i| others.row(i)).chain([rows.row(299)]) {
            let explained = session.explain(&one(z), 10).unwrap();
            let answer = session.predict(&one(z)).unwrap();
            assert_eq!(explained.row, answer.rows[0], "{name}");
            for class in &explained.classes {
                let sum: f32 = class.nats.iter().sum();
                let logit = answer.prediction.scores.row(0)[class.label];
                assert!((sum - logit).abs() < 1e-4, "{name}: class {} {sum} {logit}", class.label);
            }
            assert_eq!(explained.levers[0], Lever::Text);
            assert_eq!(explained.flipped_by.is_some(), explained.row.label != explained.row.zero_shot.label);
        }
    }
}

#[test]
fn an_explanation_names_the_levers_and_similar_scenes() {
    let world = World::small();
    let mut session = learnt(&world, &[]);
    let rows = world.rows(2, 77);
    let id = session.step(&rows.slice(0..1)).unwrap().rows[0].id;
    session.step(&rows.slice(1..2)).unwrap();
    let explained = session.explain(&one(rows.row(0)), 3).unwrap();
    assert_eq!(explained.levers, [Lever::Text, Lever::Image, Lever::Prior]);
    assert!((3..=4).contains(&explained.classes.len()));
    assert!(explained.classes.is_sorted_by(|a, b| a.logit >= b.logit));
    assert_eq!(explained.similar[0].id, id, "the same picture");
    assert!(explained.similar[0].cosine > 0.99 && explained.similar.len() == 5);
    // The same by its id, from the features that are kept.
    let by_id = session.explain_sample(id, 3).unwrap();
    assert_eq!((by_id.row.id, by_id.row.label), (id, explained.row.label));
    assert!(by_id.similar.iter().all(|similar| similar.id != id));
    assert!(matches!(session.explain_sample(1 << 40, 3), Err(Error::Forgotten { .. })));
    assert!(session.explain(&world.rows(2, 1), 3).is_err(), "one row at a time");
    let mut frozen = world.session(&config("zero-shot", &[]));
    frozen.step(&rows).unwrap();
    let nothing = frozen.explain_sample(0, 3).unwrap_err().to_string();
    assert_eq!(nothing, "sample 0 is not remembered: this method keeps no samples");
    let copy = session.explain(&one(rows.row(1)), 3).unwrap();
    assert!(copy.levers.contains(&Lever::Scene));
}

#[test]
fn one_label_changes_the_next_similar_row() {
    let world = World::small();
    for settings in [&[][..], &[("prior.frozen", "true")]] {
        let mut session = learnt(&world, settings);
        let mut fresh = world.session(&quick("ul-tta", settings));
        for session in [&mut session, &mut fresh] {
            let mut rng = Rng(31);
            let z = world.images(&[6], &mut rng);
            let answered = session.step(&z).unwrap().rows[0];
            let before = session.predict(&z).unwrap();
            let label = before.top(0, 2)[1].0;
            let before = before.probs(0, ultta::Temperature::Cal)[label];
            assert!(session.correct(answered.id, label).unwrap());
            let after = session.predict(&z).unwrap();
            assert_eq!(after.rows[0].label, label, "{settings:?}: the same picture is answered by its label");
            // A picture like it is nearer to that label than it was.
            let data: Vec<f32> = z.row(0).iter().zip(rng.direction(16)).map(|(v, n)| v + 0.3 * n).collect();
            let like = Features::normalized(data, 16).unwrap();
            let explained = session.explain(&like, 10).unwrap();
            let place = explained.levers.iter().position(|lever| *lever == Lever::Labels).unwrap();
            let class = explained.classes.iter().find(|class| class.label == label).unwrap();
            assert!(class.nats[place] > 0.5 && class.prob > before, "{settings:?}: {class:?}");
        }
    }
}

/// Everything in the state is as it was, to 1e-6 of its size, and bit for bit where no sums are involved.
fn assert_same_state(a: &Session, b: &Session) {
    let (a, b) = (a.state(), b.state());
    for name in differing(&a, &b) {
        let (Ok(x), Ok(y)) = (a.get::<f64>(&name), b.get::<f64>(&name)) else {
            let (x, y) = (a.get::<f32>(&name).unwrap(), b.get::<f32>(&name).unwrap());
            assert_eq!(x.len(), y.len(), "{name}");
            assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 1e-6 * (1.0 + x.abs())), "{name}");
            continue;
        };
        assert_eq!(x.len(), y.len(), "{name}");
        assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 1e-6 * (1.0 + x.abs())), "{name}");
    }
}

#[test]
fn a_label_that_is_taken_back_leaves_the_state_as_it_was() {
    let world = World::small();
    let mut session = learnt(&world, &[]);
    let before = session.clone();
    let ids: Vec<u64> = session.kept().iter().rev().step_by(13).take(20).map(|scene| scene.id).collect();
    for (i, &id) in ids.iter().enumerate() {
        session.correct(id, i % 10).unwrap();
    }
    session.correct(ids[0], 7).unwrap();
    assert_eq!(session.corrections().len(), 20, "a second label replaces the first");
    assert_ne!(session.predict(&world.rows(40, 4)).unwrap().prediction.scores, {
        before.predict(&world.rows(40, 4)).unwrap().prediction.scores
    });
    for &id in &ids {
        assert!(session.withdraw(id));
        assert!(!session.withdraw(id), "it is gone");
    }
    assert_same_state(&session, &before);
    let (a, b) = (session.predict(&world.rows(99, 4)).unwrap(), before.predict(&world.rows(99, 4)).unwrap());
    assert!(a.rows.iter().zip(&b.rows).all(|(a, b)| a.label == b.label && (a.prob - b.prob).abs() < 1e-6));
}

#[test]
fn labels_are_saved_and_go_on_bit_for_bit() {
    let world = World::small();
    let mut session = learnt(&world, &[]);
    for (i, scene) in session.kept().iter().rev().step_by(7).take(12).enumerate() {
        session.correct(scene.id, i % 10).unwrap();
    }
    let mut resumed = Session::resume(world.head.clone(), &through_bytes(&session.state())).unwrap();
    assert_eq!(resumed.corrections(), session.corrections());
    let rows = world.rows(60, 12);
    let (a, b) = (session.step(&rows).unwrap(), resumed.step(&rows).unwrap());
    assert_eq!(a.prediction.scores, b.prediction.scores);
    assert!(session.withdraw(session.corrections()[3].0) && resumed.withdraw(resumed.corrections()[3].0));
    assert_eq!(differing(&session.state(), &resumed.state()), Vec::<String>::new());
}

#[test]
fn grouping_does_not_matter_with_labels() {
    let world = World::small();
    let rows = world.rows(400, 12);
    let run = |block: usize| {
        let mut session = learnt(&world, &[]);
        for (i, scene) in session.kept().iter().rev().step_by(7).take(12).enumerate() {
            session.correct(scene.id, i % 10).unwrap();
        }
        for start in (0..400).step_by(block) {
            session.step(&rows.slice(start..400.min(start + block))).unwrap();
        }
        session.state()
    };
    assert_eq!(differing(&run(1), &run(64)), Vec::<String>::new());
}

#[test]
fn labels_for_what_is_not_kept_are_refused_and_count_for_scenes() {
    let world = World::small();
    let mut session = learnt(&world, &[("advanced.correctable", "50")]);
    assert_eq!(session.kept().len(), 50);
    assert!(matches!(session.correct(3, 0), Err(Error::Forgotten { remembered: 50, .. })));
    assert!(matches!(session.correct(599, 10), Err(Error::Label { .. })));
    let z = world.rows(1, 90);
    let first = session.step(&z).unwrap().rows[0].id;
    let copy = session.step(&z).unwrap().rows[0].id;
    assert!(session.correct(copy, 2).unwrap());
    assert_eq!(session.corrections(), [(first, 2)], "a label for a near-copy is one for its scene");
    assert!(session.withdraw(copy));
    session.set_learning(false);
    assert!(!session.correct(first, 2).unwrap());
    let mut other = world.session(&config("tda", &[]));
    other.step(&z).unwrap();
    assert!(!other.correct(0, 1).unwrap() && !other.withdraw(0));
}

/// Labels outlive a return of the guard, which they may have caused.
#[test]
fn labels_outlive_the_guard() {
    let world = World::small();
    let mut session = of_one_class(&world);
    let before = session.corrections();
    session.step(&world.rows(600, 12)).unwrap();
    assert!(session.health().guard_fired > 0, "under a strict guard, labels of one class are a collapse");
    assert_eq!(session.corrections(), before);
    session.reset();
    assert!(session.corrections().is_empty() && session.kept().is_empty());
}

#[test]
fn a_label_ends_a_fall_back_to_zero_shot() {
    let world = World::small();
    let mut session = of_one_class(&world);
    let rows = world.rows(2000, 12);
    let fell = (0..2000).step_by(50).any(|first| {
        session.step(&rows.slice(first..first + 50)).unwrap().health.standing == Standing::ZeroShot
    });
    assert!(fell, "under a strict guard, labels of one class are a collapse");
    let row = world.rows(1, 13);
    let answered = session.step(&row).unwrap().rows[0];
    assert_eq!((answered.label, session.health().standing), (answered.zero_shot.label, Standing::ZeroShot));
    let other = 1 + answered.label % 9;
    let probability = |session: &Session| session.predict(&row).unwrap().probs(0, Temperature::Cal)[other];
    let before = probability(&session);
    assert!(
        session.correct(answered.id, other).unwrap(),
        "a row that was answered zero-shot can be labelled"
    );
    assert_eq!(session.health().standing, Standing::Restored);
    assert!(probability(&session) > 2.0 * before, "and the label counts at once");
}

/// Wrong labels while the stream goes on, withdrawn after: what stays is not far below zero-shot.
#[test]
fn a_thousand_wrong_labels_withdrawn_do_no_lasting_harm() {
    let world = World::new(20, 64, 30.0);
    let mut session = world.session(&Config::default());
    let (rows, labels) = world.samples(3000, 8);
    for start in (0..1500).step_by(50) {
        let step = session.step(&rows.slice(start..start + 50)).unwrap();
        for (i, row) in step.rows.iter().enumerate().filter(|(i, _)| i % 3 != 2) {
            session.correct(row.id, (labels[start + i] + 1 + i % 18) % 20).unwrap();
        }
    }
    assert!(session.corrections().len() >= 990, "{}", session.corrections().len());
    for (id, _) in session.corrections() {
        session.withdraw(id);
    }
    let step = session.step(Input::new(&rows.slice(1500..3000))).unwrap();
    let right = |label: fn(&ultta::Row) -> usize| {
        step.rows.iter().zip(&labels[1500..]).filter(|(row, truth)| label(row) == **truth).count()
    };
    let (adapted, frozen) = (right(|row| row.label), right(|row| row.zero_shot.label));
    assert!(adapted + 30 >= frozen, "{adapted} of 1500 right, zero-shot {frozen}");
}

/// Rows are withdrawn from the class means as they are kept, in 8 bits: what remains of them must not spoil the state.
#[test]
fn a_state_whose_rows_were_all_corrected_can_be_loaded() {
    let world = World::small();
    let mut session = world.session(&quick("ul-tta", &[]));
    let step = session.step(&world.rows(300, 3)).unwrap();
    assert!(step.rows.iter().any(|row| row.admitted));
    for row in &step.rows {
        session.correct(row.id, (row.label + 3) % 10).unwrap();
    }
    let resumed = Session::resume(world.head.clone(), &through_bytes(&session.state())).unwrap();
    assert_eq!(resumed.corrections(), session.corrections());
}
