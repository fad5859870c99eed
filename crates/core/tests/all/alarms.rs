//! Alarms of a session: raised once for a change, the same however rows are grouped, kept in the state.

use crate::common::{Rng, World, quick, through_bytes};
use ultta::{Alarm, AlarmKind, Config, Features, Input, Session};

/// 700 rows, then 300 that are moved by one common step, then 200 times the same row.
fn rows(world: &World) -> Features<'static> {
    let (before, after) = (world.rows(700, 1), world.rows(300, 2));
    let step = Rng(5).direction(world.head.dim());
    let moved = after
        .data()
        .chunks(after.dim())
        .flat_map(|row| row.iter().zip(&step).map(|(v, s)| v + 1.5 * s).collect::<Vec<_>>());
    let mut data: Vec<f32> = before.data().iter().copied().chain(moved).collect();
    let last = data[data.len() - after.dim()..].to_vec();
    (0..200).for_each(|_| data.extend_from_slice(&last));
    Features::normalized(data, before.dim()).unwrap()
}

fn world() -> World {
    World::new(10, 64, 20.0)
}

fn kinds(alarms: &[Alarm]) -> Vec<AlarmKind> {
    alarms.iter().map(|alarm| alarm.kind).collect()
}

#[test]
fn a_change_raises_one_alarm_and_a_feed_that_repeats_another() {
    let world = world();
    let rows = rows(&world);
    for method in ["ul-tta", "zero-shot", "ul-tta:paper"] {
        let mut session = world.session(&Config::named(method).unwrap());
        let step = session.step(&rows).unwrap();
        let [change, frozen] = step.alarms[..] else { panic!("{method}: {:?}", step.alarms) };
        assert!((690..760).contains(&change.since) && change.id < 800, "{method}: {change:?}");
        assert_ne!(change.kind, AlarmKind::Frozen);
        assert_eq!((frozen.kind, frozen.since), (AlarmKind::Frozen, 999), "{method}");
        assert_eq!((step.health.alarms, session.alarms()), (2, step.alarms.clone()), "{method}");
        assert!(change.text(world.head.classes()).contains("since row"));
        session.reset();
        assert_eq!((session.health().alarms, session.alarms().len()), (0, 0));
    }
}

#[test]
fn alarms_do_not_depend_on_grouping_or_on_being_saved() {
    let world = world();
    let rows = rows(&world);
    let config = quick("ul-tta", &[]);
    let mut whole = world.session(&config);
    let alarms = whole.step(&rows).unwrap().alarms;
    for block in [1, 7, 64, 500] {
        let mut session = world.session(&config);
        let mut found = Vec::new();
        for start in (0..rows.rows()).step_by(block) {
            let end = rows.rows().min(start + block);
            found.extend(session.step(&rows.slice(start..end)).unwrap().alarms);
            // Into a file and back, at every stage of a bet.
            if start % 97 < block {
                let state = through_bytes(&session.state());
                session = Session::resume(world.head.clone(), &state).unwrap();
            }
        }
        assert_eq!(found, alarms, "blocks of {block}");
        assert_eq!(session.state(), whole.state(), "blocks of {block}");
    }
}

#[test]
fn rows_are_watched_unless_the_caller_marks_them_or_it_is_switched_off() {
    let world = world();
    let rows = rows(&world);
    let mut still = world.session(&Config::default());
    still.set_learning(false);
    assert_eq!(still.step(&rows).unwrap().alarms.len(), 2, "what is not learnt from is watched");
    let mut marked = world.session(&Config::default());
    let learn: Vec<bool> = (0..rows.rows()).map(|row| row < 700).collect();
    let input = Input { learn: Some(&learn), ..Input::new(&rows) };
    assert_eq!(marked.step(input).unwrap().alarms, [], "the caller knows that they are different");
    let mut off = world.session(&quick("ul-tta", &[("alarms.enabled", "false")]));
    assert_eq!(off.step(&rows).unwrap().alarms, []);
    let mut asked = world.session(&Config::default());
    asked.step(&rows.slice(0..700)).unwrap();
    let before = asked.state();
    let predicted = asked.predict(&rows.slice(700..1200)).unwrap();
    assert_eq!((predicted.alarms, asked.state()), (Vec::new(), before), "predictions change nothing");
}

#[test]
fn a_state_with_impossible_alarms_is_refused_and_one_without_starts_anew() {
    let world = world();
    let rows = rows(&world);
    let mut session = world.session(&Config::default());
    session.step(&rows).unwrap();
    let good = session.state();
    assert!(kinds(&session.alarms()).contains(&AlarmKind::Frozen));
    let damages: [(&str, fn(&mut ultta::State, &str)); 7] = [
        ("alarm.kept", |s, n| s.put(n, &[9u64, 1, 1, 1, 0])),
        ("alarm.kept", |s, n| s.put(n, &[1u64, 1, 1])),
        ("alarm.mix.recent", |s, n| s.put(n, &[400u32])),
        ("alarm.look.edges", |s, n| s.put(n, &[3.0f64, 1.0])),
        ("alarm.level.counts", |s, n| s.put(n, &[u64::MAX; 81])),
        ("alarm.contrast.blocks", |s, n| s.put(n, &[u64::MAX; 26])),
        ("alarm.counts", |s, n| s.put(n, &[5u64, 0, 99])),
    ];
    for (name, damage) in damages {
        let mut bad = good.clone();
        damage(&mut bad, name);
        let error = session.load(&bad).unwrap_err().to_string();
        assert!(error.contains("alarm."), "{name}: {error}");
        assert_eq!(session.state(), good, "{name}: on an error nothing has changed");
    }
    let mut without = good;
    without.tensors.retain(|name, _| !name.starts_with("alarm."));
    session.load(&without).unwrap();
    assert_eq!(session.health().alarms, 0);
    assert!(session.health().seen > 0);
}
