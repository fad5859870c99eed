//! The merge law: evidence adds, local parts restart, an empty state is neutral, strangers are refused.

use crate::common::{Stream, World, assert_sound, config, in_preset, own_variants, quick, through_bytes};
use ultta::{Config, Error, Session, State, Tensor};

/// Methods and settings that gather evidence.
fn teachable() -> Vec<(String, Config)> {
    own_variants().into_iter().filter(|(name, _)| name != "zero-shot").collect()
}

fn taught(world: &World, config: &Config, n: usize, seed: u64) -> State {
    let mut session = world.session(config);
    Stream::full(world, n, seed).play(&mut session, 0..n, 64);
    session.state()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor {
        Tensor::F64(v) => v.to_vec(),
        Tensor::U64(v) => v.iter().map(|&v| v as f64).collect(),
        other => panic!("evidence is f64 or counts, not {other:?}"),
    }
}

fn scale(state: &State) -> f64 {
    state.scalar("evidence.scale").unwrap_or(1.0)
}

/// The true value of an evidence tensor, waiting rows and common scale applied.
fn evidence(state: &State, name: &str) -> Vec<f64> {
    let factor = if name.starts_with("evidence.decayed.") { scale(state) } else { 1.0 };
    floats(&state.settled().unwrap().tensors[name]).iter().map(|v| v * factor).collect()
}

fn names(state: &State) -> Vec<String> {
    state.tensors.keys().filter(|k| k.starts_with("evidence.") && *k != "evidence.scale").cloned().collect()
}

#[test]
fn evidence_adds_and_locals_are_left_behind() {
    let world = World::small();
    for (name, config) in teachable() {
        let (a, b) = (taught(&world, &config, 700, 1), taught(&world, &config, 300, 2));
        let merged = a.merge(&b).unwrap();
        // Beside the evidence stands what trust it had earned.
        assert!(merged.tensors.keys().all(|k| k.starts_with("evidence.") || k == "trust"), "{name}");
        assert_eq!(names(&merged), names(&a), "{name}");
        assert_eq!(scale(&merged), 1.0, "{name}");
        assert_eq!(merged.metadata, a.metadata, "{name}");
        for tensor in names(&a) {
            let (x, y, sum) = (evidence(&a, &tensor), evidence(&b, &tensor), evidence(&merged, &tensor));
            for i in 0..sum.len() {
                assert_eq!(sum[i], x[i] + y[i], "{name}, {tensor}[{i}]");
            }
        }
    }
}

#[test]
fn merging_is_commutative_exactly_and_associative_up_to_rounding() {
    let world = World::small();
    for (name, config) in teachable() {
        let [a, b, c] = [(400, 3), (250, 4), (90, 5)].map(|(n, seed)| taught(&world, &config, n, seed));
        let ab = a.merge(&b).unwrap();
        assert_eq!(ab, b.merge(&a).unwrap(), "{name}");
        assert_eq!(ab.to_bytes().unwrap(), b.merge(&a).unwrap().to_bytes().unwrap(), "{name}");
        let (left, right) = (ab.merge(&c).unwrap(), a.merge(&b.merge(&c).unwrap()).unwrap());
        assert_eq!(names(&left), names(&right), "{name}");
        for tensor in names(&left) {
            let (left, right) = (evidence(&left, &tensor), evidence(&right, &tensor));
            let largest = left.iter().fold(1e-9f64, |m, v| m.max(v.abs()));
            for (l, r) in left.iter().zip(&right) {
                assert!((l - r).abs() <= 1e-13 * largest, "{name}, {tensor}: {l} and {r}");
            }
        }
    }
}

#[test]
fn an_empty_state_is_neutral() {
    let world = World::small();
    for (name, config) in own_variants() {
        let empty = world.session(&config).state();
        assert!(empty.is_empty(), "{name}");
        if name != "zero-shot" {
            let state = taught(&world, &config, 200, 6);
            assert!(!state.is_empty(), "{name}");
            assert_eq!(state.merge(&empty).unwrap(), state, "{name}");
            assert_eq!(empty.merge(&state).unwrap(), state, "{name}");
        }
        assert_eq!(empty.merge(&empty).unwrap(), empty, "{name}");
    }
}

#[test]
fn a_merged_state_loads_and_continues() {
    let world = World::small();
    let stream = Stream::full(&world, 600, 7);
    for (name, config) in teachable() {
        let (a, b) = (taught(&world, &config, 500, 8), taught(&world, &config, 400, 9));
        let merged = through_bytes(&a.merge(&b).unwrap());
        let mut session = Session::resume(world.head.clone(), &merged).unwrap();
        assert_eq!((session.next_id(), session.health().guard_fired), (0, 0), "{name}: locals restart");
        let counts = |state: &State| state.get::<u64>("evidence.seen").unwrap().to_vec();
        assert_eq!(counts(&session.state()), counts(&merged), "{name}");
        let per_class: Vec<f64> = [&a, &b].iter().fold(vec![0.0; 10], |mut sum, state| {
            let one = Session::resume(world.head.clone(), state).unwrap().per_class();
            sum.iter_mut().zip(one).for_each(|(s, c)| *s += c.evidence);
            sum
        });
        for (class, drift) in session.per_class().iter().enumerate() {
            let expected = per_class[class];
            assert!((drift.evidence - expected).abs() <= 1e-9 * expected.max(1.0), "{name}, class {class}");
        }
        // the same evidence again, and bit for bit the same continuation
        let again = session.state();
        for tensor in names(&merged) {
            assert_eq!(evidence(&again, &tensor), evidence(&merged, &tensor), "{name}, {tensor}");
        }
        let mut twin = Session::resume(world.head.clone(), &merged).unwrap();
        let first = stream.play(&mut session, 0..600, 50);
        assert!(first == stream.play(&mut twin, 0..600, 1), "{name}");
        assert_eq!(session.state(), twin.state(), "{name}");
        assert_sound(&session.predict(&stream.features).unwrap(), &name);
    }
}

#[test]
fn what_follows_from_the_evidence_is_there_at_once() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let merged = taught(&world, &config, 400, 10).merge(&taught(&world, &config, 400, 11)).unwrap();
    let session = Session::resume(world.head.clone(), &merged).unwrap();
    assert!(session.state().has("local.fold.factor"), "Σ is factorised and the classes are folded");

    // The published prior is a function of the counts alone.
    let config = quick("ul-tta:paper", &[("prior.kappa", "inf")]);
    let (a, b) = (taught(&world, &config, 400, 12), taught(&world, &config, 400, 13));
    let merged = a.merge(&b).unwrap();
    let counts = merged.get::<f64>("evidence.prior").unwrap();
    let total: f64 = counts.iter().sum();
    let session = Session::resume(world.head.clone(), &merged).unwrap();
    for (class, drift) in session.per_class().iter().enumerate() {
        let expected = (1.0 + counts[class]) / (10.0 + total);
        assert!((drift.prior - expected).abs() < 1e-6, "class {class}: {} not {expected}", drift.prior);
    }
}

/// Evidence that earned trust in its parts is trusted once merged, by the mean of what they earned, and answers better than
/// the frozen model at once.
#[test]
fn merged_evidence_keeps_the_trust_that_its_parts_earned() {
    let world = World::new(10, 32, 9.0);
    let config = quick("ul-tta", &[]);
    let learnt = |seed: u64, n: usize| {
        let mut session = world.session(&config);
        session.step(&world.rows(n, seed)).unwrap();
        session.state()
    };
    let (a, b) = (learnt(1, 500), learnt(2, 300));
    let merged = a.merge(&b).unwrap();
    let judged = |state: &State| state.get::<u64>("local.since").unwrap()[1] as f64;
    let scale = |state: &State| state.get::<f64>("local.image").unwrap()[0];
    let trust = merged.get::<f64>("trust").unwrap();
    assert_eq!(trust[0], judged(&a) + judged(&b));
    let mean = (judged(&a) * scale(&a) + judged(&b) * scale(&b)) / trust[0];
    assert!((trust[1] - mean).abs() < 1e-9 * mean && mean > 0.0, "{} not {mean}", trust[1]);

    let (rows, labels) = world.samples(3000, 999);
    let right = |session: &Session| {
        let step = session.predict(&rows).unwrap();
        let of = |label: &dyn Fn(usize) -> usize| (0..3000).filter(|&i| label(i) == labels[i]).count();
        (of(&|i| step.rows[i].label), of(&|i| step.rows[i].zero_shot.label))
    };
    let (adapted, frozen) = right(&Session::resume(world.head.clone(), &merged).unwrap());
    assert!(adapted > frozen + 60, "{adapted} right of 3000, frozen {frozen}");
    let mut without = merged.clone();
    without.tensors.remove("trust");
    assert_eq!(right(&Session::resume(world.head.clone(), &without).unwrap()), (frozen, frozen));

    for (i, wrong) in [(0, 1e30), (1, -1.0), (2, 1e13), (8, 0.0)] {
        let mut state = merged.clone();
        let mut trust = trust.to_vec();
        trust[i] = wrong;
        state.put("trust", &trust);
        let refused = Session::resume(world.head.clone(), &state).unwrap_err().to_string();
        assert!(refused.contains("trust"), "{refused}");
    }
}

#[test]
fn two_halves_give_the_evidence_of_the_whole() {
    // Where nothing depends on what came before (frozen responsibilities, no gate, no forgetting, all samples in
    // the second moments), the sums of two sessions are those of one session over both streams.
    let world = World::new(10, 48, 12.0);
    let default = (("prototypes.half_life", "inf"), "evidence.decayed.");
    let paper = (("prior.kappa", "inf"), "evidence.");
    for (preset, (free, prefix)) in [("ul-tta", default), ("ul-tta:paper", paper)] {
        let settings = [("responsibilities", "text"), ("gate.enabled", "false"), ("gate.warm_up", "0"), free];
        let config = config(preset, &settings.map(|s| in_preset(preset, s)));
        let rows = world.rows(190, 14);
        let session = |range: std::ops::Range<usize>| {
            let mut session = world.session(&config);
            session.step(&rows.slice(range)).unwrap();
            session.state()
        };
        let whole = session(0..190);
        let merged = session(0..77).merge(&session(77..190)).unwrap();
        assert!(names(&whole).iter().any(|n| n.starts_with(prefix)), "{preset}");
        for tensor in names(&whole) {
            let (a, b) = (evidence(&whole, &tensor), evidence(&merged, &tensor));
            let largest = a.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            for (a, b) in a.iter().zip(&b) {
                // second moments multiply in f32
                assert!((a - b).abs() < 1e-6 * largest, "{preset}, {tensor}: {a} and {b}");
            }
        }
    }
}

#[test]
fn merged_evidence_answers_like_either_order() {
    let world = World::small();
    for preset in ["ul-tta", "ul-tta:paper"] {
        let config = quick(preset, &[]);
        let (a, b) = (taught(&world, &config, 300, 15), taught(&world, &config, 500, 16));
        let rows = world.rows(300, 17);
        let answer = |state: &State| {
            Session::resume(world.head.clone(), state).unwrap().step(&rows).unwrap().prediction.scores
        };
        assert_eq!(answer(&a.merge(&b).unwrap()), answer(&b.merge(&a).unwrap()), "{preset}");
    }
}

#[test]
fn strangers_are_refused() {
    let world = World::small();
    let config = quick("ul-tta", &[]);
    let state = taught(&world, &config, 150, 18);

    let other_head = taught(&World::new(10, 24, 12.0), &config, 150, 18);
    assert!(matches!(state.merge(&other_head), Err(Error::OtherHead { .. })));

    let other = taught(&world, &quick("ul-tta", &[("prototypes.half_life", "400")]), 150, 18);
    let error = state.merge(&other).unwrap_err();
    assert!(matches!(error, Error::OtherConfig { .. }), "{error}");
    assert!(error.to_string().contains("prototypes.half_life is 1000.0 here, 400.0 there"), "{error}");
    let unrelated = taught(&world, &quick("ul-tta", &[("advanced.shrink", "4")]), 150, 18);
    state.merge(&unrelated).unwrap();
    let paper = taught(&world, &quick("ul-tta:paper", &[]), 150, 18);
    assert!(matches!(state.merge(&paper), Err(Error::OtherConfig { .. })));

    let mut newer = state.clone();
    newer.metadata.insert("format".into(), "ultta-state-3".into());
    let error = state.merge(&newer).unwrap_err();
    assert!(matches!(&error, Error::Version { expected: 2, got } if got == "ultta-state-3"), "{error}");

    // even an empty stranger
    let empty = World::new(10, 24, 12.0).session(&config).state();
    assert!(matches!(state.merge(&empty), Err(Error::OtherHead { .. })));
    assert!(matches!(empty.merge(&state), Err(Error::OtherHead { .. })));
}

#[test]
fn evidence_that_does_not_fit_is_refused() {
    let world = World::small();
    let state = taught(&world, &quick("ul-tta", &[]), 150, 19);
    let with = |change: &dyn Fn(&mut State)| {
        let mut other = state.clone();
        change(&mut other);
        state.merge(&other).unwrap_err().to_string()
    };
    let name = "evidence.decayed.class_n";
    assert!(with(&|s| drop(s.tensors.remove(name))).contains("evidence.decayed.class_n is missing"));
    assert!(with(&|s| s.put(name, &[1.0f64; 9])).contains("expected 10 values, got 9"));
    assert!(with(&|s| s.put(name, &[1u64; 10])).contains("wrong type"));
    let mut rounded = state.clone();
    rounded.put("evidence.rounded", &[0i16; 160]);
    assert!(rounded.merge(&state).unwrap_err().to_string().contains("cannot be merged"));
}
