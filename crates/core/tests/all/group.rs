//! A group: what members give each other adds up in any order, once, and can be taken out; nothing local restarts; strangers
//! and liars are refused by name.

use crate::common::{Rng, Stream, World, differing, quick, through_bytes};
use proptest::prelude::*;
use ultta::{Config, Delta, Error, Features, Session, State};

fn forgetting() -> Config {
    quick("ul-tta", &[("prototypes.half_life", "150"), ("advanced.half_life_per_class", "0")])
}

fn member(world: &World, config: &Config, name: &str) -> Session {
    let mut session = world.session(config);
    session.join(name).unwrap();
    session
}

fn values(delta: &Delta) -> Vec<f64> {
    delta.values(10)
}

/// The same evidence: every kind of sum within so much of its own largest number.
fn assert_close(a: &[f64], b: &[f64], within: f64, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    // Counts, sum, sum and second moments of the rows behind these, counts and sums of 10 classes.
    let parts = |dim: usize| [2, dim, dim, dim * (dim + 1) / 2, 10, 10 * dim];
    let dim = (1..200).find(|&dim| parts(dim).iter().sum::<usize>() == a.len()).unwrap();
    let mut start = 0;
    for (part, len) in parts(dim).into_iter().enumerate() {
        let (a, b) = (&a[start..start + len], &b[start..start + len]);
        let largest = a.iter().chain(b).fold(1e-3f64, |m, v| m.max(v.abs()));
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            assert!((x - y).abs() <= within * largest, "{what}: {x} and {y} at {i} of part {part}");
        }
        start += len;
    }
}

/// Three members learn, cut and hear of each other now and then; all their deltas, in the order in which they were cut.
fn history(world: &World, config: &Config, seed: u64) -> (Vec<Session>, Vec<Delta>) {
    let mut rng = Rng(seed);
    let mut members: Vec<Session> = ["a", "b", "c"].iter().map(|n| member(world, config, n)).collect();
    let streams: Vec<Stream> = (0..3).map(|i| Stream::full(world, 600, seed + i)).collect();
    let (mut at, mut heard, mut cut) = ([0; 3], [0; 3], Vec::<Delta>::new());
    while at.iter().any(|&at| at < 600) {
        let who = rng.below(3);
        let rows = (1 + rng.below(120)).min(600 - at[who]);
        streams[who].play(&mut members[who], at[who]..at[who] + rows, 64);
        at[who] += rows;
        if rng.below(2) == 0 {
            cut.extend(members[who].cut().unwrap());
        }
        if rng.below(3) == 0 {
            let upto = heard[who] + rng.below(cut.len() + 1 - heard[who]);
            cut[heard[who]..upto].iter().for_each(|delta| {
                members[who].take(delta).unwrap();
            });
            heard[who] = upto;
        }
    }
    for who in 0..3 {
        cut.extend(members[who].cut().unwrap());
    }
    for who in 0..3 {
        cut[heard[who]..].iter().for_each(|delta| {
            members[who].take(delta).unwrap();
        });
    }
    (members, cut)
}

/// The deltas in another order that keeps each member's own.
fn shuffled(deltas: &[Delta], rng: &mut Rng) -> Vec<Delta> {
    let mut queues: Vec<Vec<Delta>> = ["a", "b", "c"]
        .iter()
        .map(|name| deltas.iter().filter(|d| d.member() == *name).rev().cloned().collect())
        .collect();
    let mut order = Vec::new();
    while order.len() < deltas.len() {
        let queue = rng.below(3);
        order.extend(queues[queue].pop());
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Commutative and associative, forgetting included: any order, any grouping, the same evidence.
    #[test]
    fn order_and_grouping_do_not_matter(seed in 0u64..1_000_000) {
        let world = World::small();
        let (members, deltas) = history(&world, &forgetting(), seed);
        let total = values(&members[0].group_total().unwrap());
        prop_assert!(total[0] > 0.5);
        for other in &members[1..] {
            assert_close(&total, &values(&other.group_total().unwrap()), 1e-6, "members");
        }
        let mut rng = Rng(seed + 7);
        for _ in 0..3 {
            let mut one = member(&world, &forgetting(), "one machine that was given all deltas");
            for delta in shuffled(&deltas, &mut rng) {
                prop_assert!(one.take(&delta).unwrap());
                prop_assert!(!one.take(&delta).unwrap(), "a second time changes nothing");
            }
            assert_close(&total, &values(&one.group_total().unwrap()), 1e-6, "another order");
        }
        // Whole contributions instead of single deltas, in any order.
        let mut whole: Vec<Delta> = members.iter().map(|m| m.contribution().unwrap()).collect();
        rng.shuffle(&mut whole);
        let mut newcomer = member(&world, &forgetting(), "newcomer");
        newcomer.rebuild(&whole).unwrap();
        assert_close(&total, &values(&newcomer.group_total().unwrap()), 1e-6, "contributions");
    }
}

/// What a member gave can be put together from its deltas alone.
#[test]
fn a_contribution_is_its_deltas_one_after_another() {
    let world = World::small();
    let (members, deltas) = history(&world, &forgetting(), 21);
    let own: Vec<&Delta> = deltas.iter().filter(|d| d.member() == "a").collect();
    let whole = own[1..].iter().try_fold(own[0].clone(), |sum, next| sum.followed_by(next)).unwrap();
    let told = members[0].contribution().unwrap();
    assert_eq!((whole.span(), whole.samples()), (told.span(), told.samples()));
    let fade = 0.5f64.powf((told.stamp() - whole.stamp()) / 150.0);
    let faded: Vec<f64> = values(&whole).iter().map(|v| v * fade).collect();
    assert_close(&faded, &values(&told), 1e-5, "one after another");
    assert!(matches!(own[0].followed_by(own[2]), Err(Error::Gap { .. })));
    // What is left of it when it is taken out counts its samples, and nothing else.
    let mut newcomer = member(&world, &forgetting(), "newcomer");
    newcomer.rebuild(&[told.tombstone()]).unwrap();
    let total = newcomer.group_total().unwrap();
    assert_eq!((total.samples(), total.n_classes()), (told.samples(), 0));
}

/// A delta's weight halves with every half-life of the group's samples, whoever brought them.
#[test]
fn forgetting_counts_the_samples_of_the_group() {
    let world = World::small();
    let config = forgetting();
    let (mut a, mut b) = (member(&world, &config, "a"), member(&world, &config, "b"));
    Stream::plain(&world, 100, 1).play(&mut a, 0..100, 50);
    let first = a.cut().unwrap().unwrap();
    b.take(&first).unwrap();
    let mut observer = member(&world, &config, "observer");
    observer.take(&first).unwrap();
    let before = values(&observer.group_total().unwrap());
    Stream::plain(&world, 300, 2).play(&mut b, 0..300, 50);
    let second = b.cut().unwrap().unwrap();
    let samples = second.samples() as f64;
    assert_eq!(second.stamp(), first.samples() as f64 + samples);
    observer.take(&second).unwrap();
    let after = values(&observer.group_total().unwrap());
    let alone = values(&second);
    let faded: Vec<f64> = before.iter().map(|v| v * 0.5f64.powf(samples / 150.0)).collect();
    // The first two values are counts; the second moments of rows that wait are not told yet.
    assert!((after[0] - faded[0] - alone[0]).abs() < 1e-4, "{} = {} + {}", after[0], faded[0], alone[0]);
}

#[test]
fn taking_a_delta_restarts_nothing_local() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let (mut a, mut b) = (member(&world, &config, "a"), member(&world, &config, "b"));
    Stream::full(&world, 500, 1).play(&mut a, 0..500, 64);
    Stream::full(&world, 500, 2).play(&mut b, 0..500, 64);
    let before = a.state();
    assert!(a.take(&b.cut().unwrap().unwrap()).unwrap());
    let changed = differing(&before, &a.state());
    let allowed = |name: &String| name.starts_with("shared.") || name == "local.fold.fresh";
    assert!(changed.iter().all(allowed), "{changed:?}");
    assert!(changed.iter().any(|name| name == "shared.others.class_sum"), "{changed:?}");
    assert_eq!((a.next_id(), a.health().guard_fired), (500, 0));
}

/// Alone in a group, a session answers as outside of one, bit for bit.
#[test]
fn a_group_of_one_changes_nothing() {
    let world = World::small();
    let stream = Stream::full(&world, 900, 3);
    let config = quick("ul-tta", &[]);
    let (mut alone, mut grouped) = (world.session(&config), member(&world, &config, "a"));
    for start in (0..900).step_by(90) {
        let expected = stream.play(&mut alone, start..start + 90, 30);
        assert_eq!(stream.play(&mut grouped, start..start + 90, 30), expected, "from row {start}");
        grouped.cut().unwrap();
    }
}

/// A member that is saved and read back goes on bit for bit, also in what it gives.
#[test]
fn a_saved_member_goes_on_bit_for_bit() {
    let world = World::small();
    for (name, config) in [("quick", quick("ul-tta", &[])), ("forgetting", forgetting())] {
        let (_, deltas) = history(&world, &config, 5);
        let stream = Stream::full(&world, 800, 6);
        let play = |again: bool| -> (State, Vec<Delta>) {
            let mut session = member(&world, &config, "me");
            let mut given = Vec::new();
            for (i, start) in (0..800).step_by(40).enumerate() {
                stream.play(&mut session, start..start + 40, 40);
                deltas.iter().skip(2 * i).take(2).for_each(|delta| {
                    session.take(delta).unwrap();
                });
                if i % 3 == 2 {
                    given.extend(session.cut().unwrap());
                }
                if again {
                    let state = through_bytes(&session.state());
                    session = Session::resume(world.head.clone(), &state).unwrap();
                    assert_eq!(session.state(), state, "{name}");
                }
            }
            (session.state(), given)
        };
        let ((whole, given), (pieces, given_again)) = (play(false), play(true));
        assert_eq!(differing(&whole, &pieces), [""; 0], "{name}");
        assert_eq!(given, given_again, "{name}");
        assert!(given.len() > 4, "{name}");
    }
}

#[test]
fn a_gap_an_old_copy_and_a_second_member_of_one_name_are_seen() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let stream = Stream::plain(&world, 400, 1);
    let mut a = member(&world, &config, "a");
    let cuts: Vec<Delta> = (0..4)
        .map(|i| {
            stream.play(&mut a, i * 100..(i + 1) * 100, 50);
            a.cut().unwrap().unwrap()
        })
        .collect();
    assert!(a.cut().unwrap().is_none(), "nothing new");
    assert_eq!(a.last_cut().unwrap().as_ref(), cuts.last());
    let mut b = member(&world, &config, "b");
    b.take(&cuts[0]).unwrap();
    let before = b.state();
    let gap = b.take(&cuts[2]).unwrap_err();
    assert!(matches!(&gap, Error::Gap { member, expected: 1, got: 2 } if member == "a"), "{gap}");
    assert_eq!(b.state(), before, "a refusal changes nothing");
    // The whole contribution closes it.
    b.rebuild(&[a.contribution().unwrap()]).unwrap();
    assert!(!b.take(&cuts[3]).unwrap());
    // Another that goes by the name of a member.
    let mut again = member(&world, &config, "a");
    let taken = again.take(&cuts[0]).unwrap_err().to_string();
    assert!(taken.contains("another member goes by this name"), "{taken}");
    assert!(!a.take(&cuts[1]).unwrap(), "its own deltas come back to it");
    // Under another name it goes on, and what it gave stays.
    let total = values(&a.group_total().unwrap());
    a.join("a2").unwrap();
    assert_close(&values(&a.group_total().unwrap()), &total, 1e-6, "renamed");
    assert_eq!(a.membership().unwrap().heard["a"].number, 4);
    stream.play(&mut a, 0..50, 50);
    assert_eq!(a.cut().unwrap().unwrap().span(), (0, 1));
}

#[test]
fn what_a_member_gave_can_be_taken_out_everywhere() {
    let world = World::small();
    let config = forgetting();
    let (mut members, deltas) = history(&world, &config, 11);
    let bad = members[1].contribution().unwrap();
    for session in &mut members {
        session.withdraw_member(&bad).unwrap();
    }
    // As if it had only counted, and taught nothing.
    let mut clean = member(&world, &config, "clean");
    deltas.iter().filter(|d| d.member() != "b").for_each(|d| {
        clean.take(d).unwrap();
    });
    let fade =
        0.5f64.powf((members[0].membership().unwrap().clock - clean.membership().unwrap().clock) / 150.0);
    let expected: Vec<f64> = values(&clean.group_total().unwrap()).iter().map(|v| v * fade).collect();
    for session in &members {
        assert_close(&values(&session.group_total().unwrap()), &expected, 1e-6, "after it was taken out");
    }
    let own: f64 = members[1].per_class().iter().map(|class| class.evidence).sum();
    assert_eq!(own, 0.0, "nor does it go by it itself");
    // What is on its way of the old contribution is refused; what it learns from here on counts again.
    let late = deltas.iter().rfind(|d| d.member() == "b").unwrap();
    let refused = members[0].take(late).unwrap_err().to_string();
    assert!(refused.contains("taken out"), "{refused}");
    Stream::plain(&world, 200, 12).play(&mut members[1], 0..200, 50);
    let fresh = members[1].cut().unwrap().unwrap();
    assert_eq!((fresh.epoch(), fresh.span()), (1, (0, 1)));
    for who in [0, 2] {
        assert!(members[who].take(&fresh).unwrap());
    }
    let total = values(&members[1].group_total().unwrap());
    assert_close(&values(&members[0].group_total().unwrap()), &total, 1e-6, "after it came back");
    // A second time there is nothing to take out; a newcomer counts the same samples.
    assert!(members[0].withdraw_member(&bad).is_err());
    let mut newcomer = member(&world, &config, "newcomer");
    let whole: Vec<Delta> = members.iter().map(|m| m.contribution().unwrap()).collect();
    newcomer.rebuild(&whole).unwrap();
    assert_close(&values(&newcomer.group_total().unwrap()), &total, 1e-6, "a newcomer");
}

/// Everything about a delta that can be wrong is refused with a reason that says so, and changes nothing.
#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let (mut a, mut b) = (member(&world, &config, "bad"), member(&world, &config, "b"));
    Stream::plain(&world, 400, 1).play(&mut a, 0..400, 50);
    let good = a.cut().unwrap().unwrap();
    assert!(good.has_second_moments());
    let spoil = |change: &dyn Fn(&mut State)| -> Result<Delta, Error> {
        // The bytes of a delta are those of a state, but for its name.
        let bytes = good.to_bytes().unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains("ultta-delta-1"));
        let at = bytes.windows(13).position(|w| w == b"ultta-delta-1").unwrap();
        let mut bytes = bytes;
        bytes[at..at + 13].copy_from_slice(b"ultta-state-2");
        let mut state = State::from_bytes(&bytes).unwrap();
        change(&mut state);
        let mut bytes = state.to_bytes().unwrap();
        let at = bytes.windows(13).position(|w| w == b"ultta-state-2").unwrap();
        bytes[at..at + 13].copy_from_slice(b"ultta-delta-1");
        Delta::from_bytes(&bytes)
    };
    fn scale(state: &mut State, name: &str, by: f32) {
        let scaled: Vec<f32> = state.get::<f32>(name).unwrap().iter().map(|v| v * by).collect();
        state.put(name, &scaled);
    }
    let cases: [(&str, &dyn Fn(&mut State)); 12] = [
        ("not finite", &|s| scale(s, "sum", f32::NAN)),
        ("another head", &|s| drop(s.metadata.insert("head".into(), "0000".into()))),
        ("other settings", &|s| drop(s.metadata.insert("settings".into(), "method = \"x\"".into()))),
        ("justify", &|s| scale(s, "class_n", 40.0)),
        ("justify", &|s| s.put("n", &[1e6, 0.0, 0.0, 400.0, 1000.0])),
        ("longer than", &|s| scale(s, "class_sum", 30.0)),
        ("longer than", &|s| scale(s, "sum", 30.0)),
        ("second moments", &|s| scale(s, "second", 3.0)),
        ("do not fit each other", &|s| s.put("classes", &[7u32, 6])),
        ("not those of this head", &|s| {
            let mut classes = s.get::<u32>("classes").unwrap().to_vec();
            *classes.last_mut().unwrap() = 10_000;
            s.put("classes", &classes);
        }),
        ("samples cannot be", &|s| s.put("at", &[0u64, 0, 1, 0, 1 << 50])),
        ("clock", &|s| {
            let mut n = s.get::<f64>("n").unwrap().to_vec();
            n[3] = 1e9;
            s.put("n", &n);
        }),
    ];
    let before = b.state();
    for (reason, change) in cases {
        let refused = spoil(change).and_then(|delta| b.take(&delta)).unwrap_err();
        assert!(matches!(&refused, Error::Delta { member, .. } if member == "bad"), "{reason}: {refused}");
        assert!(refused.to_string().contains(reason), "{reason}: {refused}");
        assert_eq!(b.state(), before, "{reason}");
    }
    // A whole contribution, too: it is left out, and the rest is taken.
    let mut other = member(&world, &config, "other");
    Stream::plain(&world, 200, 2).play(&mut other, 0..200, 50);
    let fits = other.cut().unwrap().unwrap();
    for (reason, change) in
        cases.into_iter().filter(|(reason, _)| *reason != "not finite" && *reason != "do not fit each other")
    {
        let bad = spoil(change).unwrap();
        let refused = b.rebuild(&[fits.clone(), bad.clone()]).unwrap_err();
        assert!(refused.to_string().contains(reason), "{reason}: {refused}");
        assert_eq!(b.state(), before, "{reason}");
        let (taken, refused) = b.sift(vec![bad, fits.clone()]).unwrap();
        assert_eq!((taken.as_slice(), refused.len()), (std::slice::from_ref(&fits), 1), "{reason}");
        assert!(refused[0].to_string().contains(reason), "{reason}: {}", refused[0]);
    }
    for bytes in [&b""[..], b"nothing", &good.to_bytes().unwrap()[..200]] {
        assert!(Delta::from_bytes(bytes).is_err());
    }
    let same = Delta::from_bytes(&good.to_bytes().unwrap()).unwrap();
    assert_eq!(same, good);
    assert!(b.take(&same).unwrap());
    // Methods without evidence, and sessions that never joined, say so.
    for config in [quick("ul-tta", &[("prototypes.frozen", "true")]), crate::common::config("zero-shot", &[])]
    {
        assert!(matches!(world.session(&config).join("x"), Err(Error::NotShared { .. })));
    }
    assert!(matches!(world.session(&config).take(&good), Err(Error::NotShared { .. })));
}

/// What replaces a session's state keeps its place in the group, and gives only what comes after.
#[test]
fn a_reset_keeps_the_place_in_the_group() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let (mut a, mut b) = (member(&world, &config, "a"), member(&world, &config, "b"));
    let stream = Stream::plain(&world, 600, 1);
    stream.play(&mut a, 0..300, 50);
    b.take(&a.cut().unwrap().unwrap()).unwrap();
    let snapshot = a.state();
    stream.play(&mut a, 300..600, 50);
    b.take(&a.cut().unwrap().unwrap()).unwrap();
    let mut fresh = world.session(&config);
    fresh.keep_membership(&a).unwrap();
    let mut earlier = world.session(&config);
    earlier.load(&snapshot).unwrap();
    earlier.keep_membership(&a).unwrap();
    for mut session in [fresh, earlier] {
        assert_eq!(session.membership().unwrap().given.number, 2);
        assert!(session.cut().unwrap().is_none(), "nothing new");
        stream.play(&mut session, 0..120, 40);
        let next = session.cut().unwrap().unwrap();
        assert_eq!(next.span(), (2, 3));
        assert!((100..=120).contains(&next.samples()), "{} samples, but for near-copies", next.samples());
        let mut hears = b.clone();
        assert!(hears.take(&next).unwrap());
        assert_close(
            &values(&hears.group_total().unwrap()),
            &values(&session.group_total().unwrap()),
            1e-6,
            "after a reset",
        );
    }
}

fn accuracy(world: &World, session: &Session, bend: Option<&[f32]>) -> f64 {
    let (rows, labels) = world.samples(3000, 999);
    let rows = bent(&rows, bend);
    let step = session.predict(&rows).unwrap();
    let right = step.rows.iter().zip(&labels).filter(|(row, label)| row.label == **label).count();
    right as f64 / labels.len() as f64
}

/// Rows seen through another lens: every coordinate is scaled.
fn bent(rows: &Features<'_>, bend: Option<&[f32]>) -> Features<'static> {
    let dim = rows.dim();
    let data: Vec<f32> =
        rows.data().iter().enumerate().map(|(i, v)| v * bend.map_or(1.0, |b| b[i % dim])).collect();
    Features::normalized(data, dim).unwrap()
}

/// Three members that share learn about as much as one that sees everything, and more than each alone.
#[test]
fn members_teach_each_other() {
    let world = World::new(10, 32, 9.0);
    let config = quick("ul-tta", &[]);
    let rows = world.rows(900, 4);
    let mut all = world.session(&config);
    all.step(&rows).unwrap();
    let mut alone: Vec<Session> = (0..3).map(|_| world.session(&config)).collect();
    let mut members: Vec<Session> = ["a", "b", "c"].iter().map(|n| member(&world, &config, n)).collect();
    for round in 0..10 {
        let mut deltas = Vec::new();
        for who in 0..3 {
            let mine: Vec<usize> = (round * 90..(round + 1) * 90).filter(|i| i % 3 == who).collect();
            let part = rows.select(&mine);
            alone[who].step(&part).unwrap();
            members[who].step(&part).unwrap();
            deltas.extend(members[who].cut().unwrap());
        }
        for session in &mut members {
            deltas.iter().for_each(|delta| {
                session.take(delta).unwrap();
            });
        }
    }
    let whole = accuracy(&world, &all, None);
    let mean = |sessions: &[Session]| {
        sessions.iter().map(|s| accuracy(&world, s, None)).sum::<f64>() / sessions.len() as f64
    };
    let (shared, single) = (mean(&members), mean(&alone));
    assert!(shared > single, "shared {shared:.4}, alone {single:.4}");
    assert!(shared > whole - 0.02, "shared {shared:.4}, one machine {whole:.4}");
}

/// Members wait and update by the group's samples: of three alike each begins to learn after a third of the usual warm-up.
#[test]
fn members_wait_for_the_groups_samples() {
    let world = World::small();
    let config = crate::common::config("ul-tta", &[("scenes", "false"), ("gate.keep", "1")]);
    let first_admitted = |others: usize| {
        let mut one = member(&world, &config, "one");
        let mut rest: Vec<Session> =
            (0..others).map(|i| member(&world, &config, &format!("other {i}"))).collect();
        let mut first = None;
        for round in 0..20 {
            let step = one.step(&world.rows(10, round)).unwrap();
            let here = step.prediction.answers.iter().position(|answer| answer.admitted);
            first = first.or(here.map(|i| 10 * round as usize + i));
            one.cut().unwrap();
            for (i, other) in rest.iter_mut().enumerate() {
                other.step(&world.rows(10, 1000 * (i as u64 + 1) + round)).unwrap();
                one.take(&other.cut().unwrap().unwrap()).unwrap();
            }
        }
        first.unwrap()
    };
    assert_eq!(first_admitted(0), 100, "alone, the warm-up of the settings");
    assert_eq!(first_admitted(2), 34, "of three, a third of it");
    assert_eq!(first_admitted(20), 13, "in a large group an eighth of it, and no less");
}

/// A camera that sees the classes elsewhere than the others is not spoilt by them: they come to count for little.
#[test]
fn a_camera_unlike_the_rest_is_not_spoilt() {
    let world = World::new(10, 32, 9.0);
    let config = quick("ul-tta", &[]);
    let mut rng = Rng(77);
    let lens: Vec<f32> = (0..32).map(|_| if rng.below(2) == 0 { 0.3 } else { 1.7 }).collect();
    let mut rest = member(&world, &config, "rest");
    rest.step(&world.rows(1500, 5)).unwrap();
    let told = rest.cut().unwrap().unwrap();
    let play = |lens: Option<&[f32]>, share: bool| -> (f64, Option<f64>) {
        let mut camera = member(&world, &config, "camera");
        if share {
            camera.take(&told).unwrap();
        }
        camera.step(&bent(&world.rows(900, 6), lens)).unwrap();
        let membership = camera.membership().unwrap();
        (accuracy(&world, &camera, lens), share.then(|| membership.counted / membership.others))
    };
    let (alike, counted) = play(None, true);
    assert!(counted.unwrap() > 0.5, "others of the same kind count: {counted:?}");
    assert!(alike > play(None, false).0 - 0.01);
    let ((odd, counted), alone) = (play(Some(&lens), true), play(Some(&lens), false).0);
    assert!(counted.unwrap() < 0.3, "others of another kind do not: {counted:?}");
    assert!(odd > alone - 0.02, "with others {odd:.4}, alone {alone:.4}");
}
