//! State files: one test per error variant, damaged and hostile files, settings that may change.

use std::sync::Arc;

use crate::common::{Rng, Stream, World, assert_sound, config, quick, through_bytes};
use ultta::{Anchor, Config, Error, FeatureFile, Features, Head, Session, State, Tensor};

// === one test per error variant ===

macro_rules! variants {
    ($($variant:ident $name:ident $make:block => $message:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let error: Error = $make;
                assert!(matches!(error, Error::$variant { .. }), "{error:?}");
                assert!(error.to_string().contains($message), "{error}");
            }
        )*

        /// A new variant without a test is noticed here.
        #[test]
        fn every_error_variant_has_a_test() {
            let source = include_str!("../../src/error.rs");
            let body = source.split_once("pub enum Error {").unwrap().1.split_once("\n}").unwrap().0;
            let declared: Vec<&str> = body
                .lines()
                .filter_map(|line| line.strip_prefix("    "))
                .filter(|line| line.starts_with(char::is_uppercase))
                .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap())
                .collect();
            let tested = [$(stringify!($variant)),*];
            assert!(declared.len() > 10, "{declared:?}");
            for variant in declared {
                assert!(tested.contains(&variant), "no test makes Error::{variant}");
            }
        }
    };
}

/// A member that has given twice: its session and both deltas.
fn giver() -> (World, Session, [ultta::Delta; 2]) {
    let world = World::small();
    let mut session = world.session(&config("ul-tta", &[]));
    session.join("giver").unwrap();
    let cut = [1, 2].map(|seed| {
        session.step(&world.rows(50, seed)).unwrap();
        session.cut().unwrap().unwrap()
    });
    (world, session, cut)
}

variants! {
    Delta error_delta {
        let (world, _, [first, _]) = giver();
        let mut other = world.session(&config("ul-tta", &[("prototypes.half_life", "77")]));
        other.join("other").unwrap();
        other.take(&first).unwrap_err()
    } => "what giver learnt is refused: it was learnt under other settings";
    Gap error_gap {
        let (world, _, [_, second]) = giver();
        let mut other = world.session(&config("ul-tta", &[]));
        other.join("other").unwrap();
        other.take(&second).unwrap_err()
    } => "of giver, number 0 is expected";
    NotShared error_not_shared {
        World::small().session(&config("zero-shot", &[])).join("a").unwrap_err()
    } => "zero_shot keeps no evidence";
    Shape error_shape { Features::new(vec![1.0, 0.0, 1.0], 2).unwrap_err() } => "expected 2, got 1";
    NotUnit error_not_unit { Features::new(vec![1.0, 0.0, 3.0, 4.0], 2).unwrap_err() } => "row 1 has norm 5.0000";
    NotFinite error_not_finite {
        Head::new(vec![1.0, 0.0, 0.0, f32::NAN], 2, ["a", "b"], 1.0).unwrap_err()
    } => "prototypes: row 1 holds a value that is not finite";
    NeedsViews error_needs_views {
        let world = World::small();
        world.session(&config("zero", &[])).predict(&world.rows(1, 1)).unwrap_err()
    } => "views: the method zero needs views of every sample, got none";
    InFile error_in_file {
        let error = Features::new(vec![3.0, 4.0], 2).unwrap_err();
        let error = Error::InFile { error: error.into(), path: "a.safetensors".into() };
        assert!(matches!(error.root(), Error::NotUnit { .. }));
        error
    } => "row 0 has norm 5.0000, expected 1 (within 0.01) (a.safetensors)";
    Classes error_classes {
        let vector = [1.0, 0.0];
        let anchors = [Anchor { class: 0, vector: &vector, weight: 1.0 }];
        Head::from_anchors(&anchors, 2, ["a", "b"], 1.0).unwrap_err()
    } => "class \"b\" has no anchor";
    Config error_config {
        Session::new(World::small().head, &config("ul-tta", &[("gate.keep", "1.5")])).unwrap_err()
    } => "method.ul_tta.gate.keep: expected a number from 0 to 1, got 1.5";
    OtherHead error_other_head {
        let state = World::new(10, 24, 12.0).session(&Config::default()).state();
        World::small().session(&Config::default()).load(&state).unwrap_err()
    } => "saved for another head";
    Version error_version {
        let mut state = saved();
        state.metadata.insert("format".into(), "ultta-state-9".into());
        State::from_bytes(&state.to_bytes().unwrap()).unwrap_err()
    } => "format \"ultta-state-9\", this build reads version 2 only";
    OtherConfig error_other_config {
        let other = quick("ul-tta", &[("prototypes.half_life", "500")]);
        World::small().session(&other).load(&saved()).unwrap_err()
    } => "prototypes.half_life is 500.0 here, 1000.0 there";
    State error_state {
        let mut state = saved();
        state.tensors.remove("evidence.decayed.sum");
        World::small().session(&quick("ul-tta", &[])).load(&state).unwrap_err()
    } => "evidence.decayed.sum is missing";
    Format error_format {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features.safetensors");
        std::fs::write(&path, [0; 64]).unwrap();
        FeatureFile::open(&path).unwrap_err()
    } => "not a valid safetensors file";
    Io error_io { State::load("no/such/file").unwrap_err() } => "(no/such/file)";
    Forgotten error_forgotten {
        World::small().session(&Config::default()).feedback(0, 0).unwrap_err()
    } => "sample 0 is not among the 0 remembered ones";
    NoLayer error_no_layer {
        let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 1.0).unwrap();
        let config = Config::resolve(None, Some("tda"), None, &[]).unwrap();
        Session::new(head, &config).unwrap().layer().unwrap_err()
    } => "no linear layer";
    Label error_label {
        World::small().session(&Config::default()).feedback(0, 10).unwrap_err()
    } => "label 10 is not below the number of classes, 10";
}

// === damaged state files ===

/// The state of a session in the middle of everything: rows waiting, labels told, a healthy copy kept.
pub fn saved() -> State {
    let world = World::small();
    let mut session = world.session(&quick("ul-tta", &[]));
    Stream::full(&world, 1100, 1).play(&mut session, 0..1100, 64);
    session.state()
}

fn all_saved() -> Vec<(&'static str, Config, State)> {
    let world = World::small();
    let unknown: &[(&str, &str)] = &[("unknown.score", "energy"), ("unknown.advanced.quantile", "0.1")];
    [("ul-tta", &[][..]), ("ul-tta:paper", &[("feedback.teach", "true")][..]), ("ul-tta", unknown)]
        .into_iter()
        .map(|(name, settings)| {
            let config = quick(name, settings);
            let mut session = world.session(&config);
            Stream::full(&world, 1100, 2).play(&mut session, 0..1100, 64);
            (name, config, session.state())
        })
        .collect()
}

/// A session that has learnt.
fn learnt(config: &Config) -> Session {
    let world = World::small();
    let mut session = world.session(config);
    session.step(&world.rows(150, 3)).unwrap();
    session
}

/// Loads a state that should be refused into a copy of a session; the copy must not notice.
fn refused(session: &Session, state: &State) -> String {
    let mut copy = session.clone();
    let error = copy.load(state).expect_err("the state should be refused");
    assert_eq!(copy.state(), session.state(), "after: {error}");
    assert!(Session::resume(session.head().clone(), state).is_err());
    error.to_string()
}

#[test]
fn a_truncated_file_is_refused() {
    let bytes = saved().to_bytes().unwrap();
    for keep in (0..bytes.len()).step_by(bytes.len() / 300) {
        let error = State::from_bytes(&bytes[..keep]).unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{keep} bytes: {error}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(State::from_bytes(&longer).is_err());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    std::fs::write(&path, []).unwrap();
    assert!(State::load(&path).unwrap_err().to_string().contains("empty"));
}

#[test]
fn flipped_bits_never_panic() {
    let world = World::small();
    let rows = world.rows(70, 4);
    for (name, config, state) in all_saved() {
        let bytes = state.to_bytes().unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut rng = Rng(5);
        for round in 0..400 {
            let mut damaged = bytes.clone();
            // half of them in the header, which is small
            let at = if round % 2 == 0 { rng.below(header) } else { rng.below(bytes.len()) };
            damaged[at] ^= 1 << rng.below(8);
            let Ok(state) = State::from_bytes(&damaged) else { continue };
            let mut session = world.session(&config);
            if session.load(&state).is_ok() {
                assert_sound(&session.step(&rows).unwrap(), &format!("{name}, byte {at}"));
            }
        }
    }
}

#[test]
fn hostile_headers_are_refused() {
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(std::iter::repeat_n(0, data));
        bytes
    };
    let hostile = [
        vec![0xff; 8],
        vec![0xff; 4096],
        [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
        [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(),
        file("", 0),
        file("not json", 0),
        file("[]", 0),
        file(r#"{"x":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}}"#, 8),
        file(r#"{"x":{"dtype":"F64","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#, 8),
        file(r#"{"x":{"dtype":"F64","shape":[1],"data_offsets":[8,0]}}"#, 8),
        file(r#"{"x":{"dtype":"F64","shape":[1],"data_offsets":[0,800]}}"#, 8),
        file(
            r#"{"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"y":{"dtype":"F64","shape":[1],"data_offsets":[4,12]}}"#,
            12,
        ),
        // a valid file, but of something else
        file(r#"{"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#, 8),
        file(
            r#"{"__metadata__":{"format":"ultta-state-2"},"x":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}}"#,
            8,
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile");
    for bytes in hostile {
        let error = State::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{error}");
        assert!(Head::from_bytes(&bytes).is_err());
        std::fs::write(&path, &bytes).unwrap();
        assert!(FeatureFile::open(&path).is_err());
        assert!(Head::load(&path).is_err() && State::load(&path).is_err());
    }
}

#[test]
fn every_missing_tensor_is_named() {
    for (name, config, state) in all_saved() {
        assert!(state.tensors.keys().any(|k| k.starts_with("healthy.")), "{name}");
        let session = learnt(&config);
        // A state without the features of recent samples is that of a session in which labels do not teach; states of earlier
        // builds do not tell of garbage.
        let may_miss = ["local.recent.features", "local.scene.garbage", "session.garbage"];
        for key in state.tensors.keys().filter(|key| !may_miss.contains(&key.as_str())) {
            let mut without = state.clone();
            without.tensors.remove(key);
            println!("{name}, without {key}");
            let error = refused(&session, &without);
            // what is not rounded is whole, with sums of its own
            let short = match key.trim_start_matches("healthy.") {
                "evidence.rounded" => "_sum",
                key => key,
            };
            assert!(error.contains(short), "{name}, without {key}: {error}");
        }
    }
}

fn resized(tensor: &Tensor, by: isize) -> Tensor {
    fn change<T: Copy + Default>(values: &[T], by: isize) -> Vec<T> {
        let mut values = values.to_vec();
        values.resize(values.len().saturating_add_signed(by), T::default());
        values
    }
    match tensor {
        Tensor::F64(v) => Tensor::F64(change(v, by).into()),
        Tensor::F32(v) => Tensor::F32(change(v, by).into()),
        Tensor::U64(v) => Tensor::U64(change(v, by).into()),
        Tensor::U32(v) => Tensor::U32(change(v, by).into()),
        Tensor::I16(v) => Tensor::I16(change(v, by).into()),
        Tensor::U8(v) => Tensor::U8(change(v, by).into()),
    }
}

#[test]
fn wrong_lengths_and_types_are_refused() {
    for (_, config, state) in all_saved() {
        let session = learnt(&config);
        for (key, tensor) in &state.tensors {
            for by in [-1, 1] {
                let mut changed = state.clone();
                changed.tensors.insert(key.clone(), resized(tensor, by));
                // windows may hold any number of values, but then their columns disagree
                let free = ["unknown.scores", "local.updated_at"];
                if !free.contains(&key.as_str()) && changed.tensors[key] != *tensor {
                    refused(&session, &changed);
                }
            }
            let mut changed = state.clone();
            let other = match tensor {
                Tensor::U8(_) => Tensor::U32(vec![1; 8].into()),
                _ => Tensor::U8(vec![1; 8].into()),
            };
            changed.tensors.insert(key.clone(), other);
            assert!(refused(&session, &changed).contains("wrong type"), "{key}");
        }
    }
}

#[test]
fn states_of_before_the_doubt_are_read() {
    let world = World::new(2, 24, 12.0);
    let mut session = world.session(&Config::default());
    session.step(&world.rows(300, 6)).unwrap();
    let mut state = session.state();
    for (key, tensor) in state.tensors.iter_mut().filter(|(key, _)| key.ends_with("local.prior.records")) {
        println!("{key}");
        *tensor = resized(tensor, -1);
    }
    let mut earlier = world.session(&Config::default());
    earlier.load(&state).unwrap();
    earlier.step(&world.rows(300, 7)).unwrap();
    let Tensor::F64(records) = &earlier.state().tensors["local.prior.records"] else {
        panic!("records are f64")
    };
    assert_eq!(records.len(), 11, "π⁰, five counts, four stays, the doubt");
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let (_, config, state) = all_saved().remove(0);
    let session = learnt(&config);
    for (key, tensor) in &state.tensors {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut changed = state.clone();
            match changed.tensors.get_mut(key).unwrap() {
                Tensor::F64(v) if !v.is_empty() => Arc::make_mut(v)[0] = bad,
                Tensor::F32(v) if !v.is_empty() => *Arc::make_mut(v).last_mut().unwrap() = bad as f32,
                _ => continue,
            }
            let error = State::from_bytes(&changed.to_bytes().unwrap()).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("not finite"), "{tensor:?}: {error}");
            assert!(refused(&session, &changed).contains("not finite"), "{key}, never written");
        }
    }
}

#[test]
fn values_that_cannot_be_are_refused_or_harmless() {
    let world = World::small();
    let rows = world.rows(200, 6);
    for (name, config, state) in all_saved() {
        let fresh = world.session(&config);
        for (key, tensor) in &state.tensors {
            for choice in 0..5 {
                let mut changed = state.clone();
                let float = [0.0, -1.0, 1e30, -1e30, 1e-40][choice];
                let count = [0, 1, u64::MAX, u64::MAX / 2, 1 << 40][choice];
                match changed.tensors.get_mut(key).unwrap() {
                    Tensor::F64(v) => Arc::make_mut(v).fill([0.0, -1.0, f64::MAX, f64::MIN, 1e-310][choice]),
                    Tensor::F32(v) => Arc::make_mut(v).fill(float),
                    Tensor::U64(v) => Arc::make_mut(v).fill(count),
                    Tensor::U32(v) => Arc::make_mut(v).fill(count as u32),
                    Tensor::I16(v) => Arc::make_mut(v).fill([0, 1, i16::MAX, i16::MIN, -1][choice]),
                    Tensor::U8(v) => Arc::make_mut(v).fill([0, 1, 255, 127, 128][choice]),
                }
                let mut session = fresh.clone();
                if session.load(&changed).is_err() {
                    assert_eq!(session.state(), fresh.state());
                    continue;
                }
                let what = format!("{name}: {key} filled with choice {choice} ({} values)", len(tensor));
                assert_sound(&session.step(&rows).unwrap(), &what);
                through_bytes(&session.state());
            }
        }
    }
}

fn len(tensor: &Tensor) -> usize {
    match tensor {
        Tensor::F64(v) => v.len(),
        Tensor::F32(v) => v.len(),
        Tensor::U64(v) => v.len(),
        Tensor::U32(v) => v.len(),
        Tensor::I16(v) => v.len(),
        Tensor::U8(v) => v.len(),
    }
}

#[test]
fn metadata_is_checked() {
    let state = saved();
    let session = learnt(&quick("ul-tta", &[]));
    for key in ["format", "head", "settings"] {
        let mut changed = state.clone();
        changed.metadata.remove(key);
        refused(&session, &changed);
    }
    let mut changed = state.clone();
    changed.metadata.remove("format");
    let error = State::from_bytes(&changed.to_bytes().unwrap()).unwrap_err().to_string();
    assert!(error.contains("not a state file"), "{error}");
    changed = state.clone();
    changed.metadata.insert("config".into(), "[method.ul_tta]\nspeed = 3".into());
    assert!(matches!(Session::resume(World::small().head, &changed), Err(Error::Config { .. })));
}

#[test]
fn a_state_of_the_first_release_is_refused_by_its_version() {
    let mut state = saved();
    state.metadata.insert("format".into(), "ultta-state-1".into());
    let error = State::from_bytes(&state.to_bytes().unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Version { expected: 2, got } if got == "ultta-state-1"), "{error}");
}

/// Settings that the saved numbers do not depend on may change from one run to the next.
#[test]
fn other_settings_do_not_refuse_a_state() {
    let world = World::small();
    let stream = Stream::full(&world, 1100, 2);
    let shared = [
        ("guard.advanced.window", "32"),
        ("unknown.score", "energy"),
        ("feedback.remember", "40"),
        ("feedback.teach", "true"),
    ];
    let own: [(&str, &[(&str, &str)]); 2] = [
        (
            "ul-tta",
            &[
                ("gate.keep", "0.5"),
                ("advanced.gate_window", "20"),
                ("advanced.tau_max", "1.01"),
                ("calibration.rule", "off"),
                ("advanced.match_window", "50"),
            ],
        ),
        (
            "ul-tta:paper",
            &[
                ("gate.window", "20"),
                ("temperature.max", "1.01"),
                ("prototypes.rho", "0.5"),
                ("temperature.window", "50"),
            ],
        ),
    ];
    for (preset, settings) in own {
        let mut before = world.session(&quick(preset, &[]));
        stream.play(&mut before, 0..1100, 64);
        let state = through_bytes(&before.state());
        let all = [&shared[..], settings].concat();
        for setting in &all {
            world
                .session(&quick(preset, &[*setting]))
                .load(&state)
                .unwrap_or_else(|e| panic!("{preset}, {setting:?}: {e}"));
        }
        let config = quick(preset, &all);
        let mut session = world.session(&config);
        session.load(&state).unwrap();
        assert_eq!((session.health().seen, session.config()), (1100, &config));
        // Saved without features: the label calibrates, but cannot teach.
        let evidence = |s: &Session| s.per_class().iter().map(|c| c.evidence).sum::<f64>();
        let known = evidence(&session);
        assert!(session.feedback(1099, 3).unwrap());
        assert_eq!(evidence(&session), known, "{preset}");
        assert_sound(&session.step(&world.rows(300, 3)).unwrap(), preset);
        // And back.
        before.load(&through_bytes(&session.state())).unwrap();
        assert_eq!(before.health().seen, 1400);
    }
}
