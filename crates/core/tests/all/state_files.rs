//! Files: one test per error variant, damaged and hostile state files, atomic writes, and round trips.

use std::path::Path;
use std::process::Command;

use crate::common::{Rng, Stream, World, assert_sound, config, quick, through_bytes};
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use ultta::{Anchor, Config, Error, FeatureFile, Features, Head, Session, State, Tensor};
use ultta_formats::write_atomically;

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

variants! {
    Shape error_shape { Features::new(vec![1.0, 0.0, 1.0], 2).unwrap_err() } => "expected 2, got 1";
    NotUnit error_not_unit { Features::new(vec![1.0, 0.0, 3.0, 4.0], 2).unwrap_err() } => "row 1 has norm 5.0000";
    NotFinite error_not_finite {
        Head::new(vec![1.0, 0.0, 0.0, f32::NAN], 2, ["a", "b"], 1.0).unwrap_err()
    } => "prototypes: row 1 holds a value that is not finite";
    NeedsViews error_needs_views {
        let world = World::small();
        world.session(&config("zero", &[])).predict(&world.rows(1, 1)).unwrap_err()
    } => "views: the method zero needs some of every sample, got none";
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
    } => "format \"ultta-state-9\", this build reads version 2 only; start anew";
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
    Label error_label {
        World::small().session(&Config::default()).feedback(0, 10).unwrap_err()
    } => "label 10 is not below the number of classes, 10";
}

// === damaged state files ===

/// The state of a session in the middle of everything: rows waiting, labels told, a healthy copy kept.
fn saved() -> State {
    let world = World::small();
    let mut session = world.session(&quick("ul-tta", &[]));
    Stream::full(&world, 1100, 1).play(&mut session, 0..1100, 64);
    session.state()
}

fn all_saved() -> Vec<(&'static str, Config, State)> {
    let world = World::small();
    let unknown: &[(&str, &str)] = &[("unknown.score", "energy"), ("unknown.quantile", "0.1")];
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

/// Loads a state that should be refused into a session that has learnt; the session must not notice.
fn refused(config: &Config, state: &State) -> String {
    let world = World::small();
    let mut session = world.session(config);
    session.step(&world.rows(150, 3)).unwrap();
    let before = session.state();
    let error = session.load(state).expect_err("the state should be refused");
    assert_eq!(session.state(), before, "after: {error}");
    assert!(Session::resume(world.head.clone(), state).is_err());
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
        // A state without the features of recent samples is that of a session in which labels do not teach.
        for key in state.tensors.keys().filter(|key| *key != "local.recent.features") {
            let mut without = state.clone();
            without.tensors.remove(key);
            let error = refused(&config, &without);
            // without their rounded form, class sums are missing
            let short = match key.trim_start_matches("healthy.") {
                "evidence.rounded" => "class_sum",
                "evidence.rounded_second" => "evidence.decayed.second",
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
        Tensor::F64(v) => Tensor::F64(change(v, by)),
        Tensor::F32(v) => Tensor::F32(change(v, by)),
        Tensor::U64(v) => Tensor::U64(change(v, by)),
        Tensor::U32(v) => Tensor::U32(change(v, by)),
        Tensor::I16(v) => Tensor::I16(change(v, by)),
        Tensor::U8(v) => Tensor::U8(change(v, by)),
    }
}

#[test]
fn wrong_lengths_and_types_are_refused() {
    for (_, config, state) in all_saved() {
        for (key, tensor) in &state.tensors {
            for by in [-1, 1] {
                let mut changed = state.clone();
                changed.tensors.insert(key.clone(), resized(tensor, by));
                // windows may hold any number of values, but then their columns disagree
                let free = ["unknown.scores", "local.updated_at"];
                if !free.contains(&key.as_str()) {
                    refused(&config, &changed);
                }
            }
            let mut changed = state.clone();
            let other = match tensor {
                Tensor::U8(_) => Tensor::U32(vec![1; 8]),
                _ => Tensor::U8(vec![1; 8]),
            };
            changed.tensors.insert(key.clone(), other);
            assert!(refused(&config, &changed).contains("wrong type"), "{key}");
        }
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let (_, config, state) = all_saved().remove(0);
    for (key, tensor) in &state.tensors {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut changed = state.clone();
            match changed.tensors.get_mut(key).unwrap() {
                Tensor::F64(v) if !v.is_empty() => v[0] = bad,
                Tensor::F32(v) if !v.is_empty() => *v.last_mut().unwrap() = bad as f32,
                _ => continue,
            }
            let error = State::from_bytes(&changed.to_bytes().unwrap()).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("not finite"), "{tensor:?}: {error}");
            assert!(refused(&config, &changed).contains("not finite"), "{key}, never written");
        }
    }
}

#[test]
fn values_that_cannot_be_are_refused_or_harmless() {
    let world = World::small();
    let rows = world.rows(200, 6);
    for (name, config, state) in all_saved() {
        for (key, tensor) in &state.tensors {
            for choice in 0..5 {
                let mut changed = state.clone();
                let float = [0.0, -1.0, 1e30, -1e30, 1e-40][choice];
                let count = [0, 1, u64::MAX, u64::MAX / 2, 1 << 40][choice];
                match changed.tensors.get_mut(key).unwrap() {
                    Tensor::F64(v) => v.fill([0.0, -1.0, f64::MAX, f64::MIN, 1e-310][choice]),
                    Tensor::F32(v) => v.fill(float),
                    Tensor::U64(v) => v.fill(count),
                    Tensor::U32(v) => v.fill(count as u32),
                    Tensor::I16(v) => v.fill([0, 1, i16::MAX, i16::MIN, -1][choice]),
                    Tensor::U8(v) => v.fill([0, 1, 255, 127, 128][choice]),
                }
                let mut session = world.session(&config);
                let before = session.state();
                if session.load(&changed).is_err() {
                    assert_eq!(session.state(), before);
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
    let config = quick("ul-tta", &[]);
    for key in ["format", "head", "settings"] {
        let mut changed = state.clone();
        changed.metadata.remove(key);
        refused(&config, &changed);
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
    assert!(error.to_string().contains("start anew"), "{error}");
}

/// Settings that the saved numbers do not depend on may change from one run to the next.
#[test]
fn other_settings_do_not_refuse_a_state() {
    let world = World::small();
    let stream = Stream::full(&world, 1100, 2);
    let shared = [
        ("guard.window", "32"),
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

// === atomic writes ===

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_write_replaces_the_file_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (old, new) = (World::small().session(&Config::default()).state(), saved());
    old.save(&path).unwrap();
    new.save(&path).unwrap();
    assert_eq!(State::load(&path).unwrap(), new);
    assert_eq!(listing(folder.path()), ["state"]);
}

#[test]
fn a_write_that_cannot_be_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let state = saved();
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("file"), "x").unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let mut nowhere = vec![taken, folder.path().join("missing/state"), file.join("state")];
    if cfg!(target_os = "linux") {
        nowhere.push("/proc/state".into());
    }
    for path in nowhere {
        let error = state.save(&path).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(listing(folder.path()), ["file", "taken"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

/// Runs in a process of its own, under a limit on file sizes: what a full disk does to a write.
#[test]
fn a_full_disk_leaves_the_old_file() {
    if let Ok(path) = std::env::var("ULTTA_TEST_FULL_DISK") {
        let error = write_atomically(Path::new(&path), &[1; 1 << 20]).unwrap_err();
        assert!(matches!(error, ultta_formats::Error::Io { doing: "writing", .. }), "{error:?}");
        return;
    }
    if !cfg!(unix) {
        println!("skipped: limits on file sizes need a Unix shell");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    std::fs::write(&path, "old").unwrap();
    let output = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact state_files::a_full_disk_leaves_the_old_file --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env("ULTTA_TEST_FULL_DISK", &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(listing(folder.path()), ["state"]);
}

// === round trips ===

fn features_file(path: &Path, dtype: Dtype, values: &[f32], dim: usize) {
    let data: Vec<u8> = match dtype {
        Dtype::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        Dtype::F64 => values.iter().flat_map(|&v| (v as f64).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&v| v.to_le_bytes()).collect(),
    };
    let view = TensorView::new(dtype, vec![values.len() / dim, dim], &data).unwrap();
    std::fs::write(path, safetensors::serialize([("features", view)], None).unwrap()).unwrap();
}

fn unit_rows(dim: usize, rows: usize, seed: u64) -> Features<'static> {
    let mut rng = Rng(seed);
    let data: Vec<f32> = (0..rows).flat_map(|_| rng.direction(dim)).collect();
    Features::normalized(data, dim).unwrap()
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let finite = prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL;
    let small = prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL;
    prop_oneof![
        prop::collection::vec(finite, 0..9).prop_map(Tensor::F64),
        prop::collection::vec(small, 0..9).prop_map(Tensor::F32),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Tensor::U64),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(Tensor::U32),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(Tensor::I16),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Tensor::U8),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn features_round_trip(dim in 1usize..40, rows in 0usize..30, seed: u64, kind in 0usize..4) {
        let dtype = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16][kind];
        let features = unit_rows(dim, rows, seed);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features");
        features_file(&path, dtype, features.data(), dim);
        let file = FeatureFile::open(&path).unwrap();
        prop_assert_eq!((file.rows(), file.dim(), file.dtype()), (rows, dim, format!("{dtype:?}")));
        let read = file.read_all(false).unwrap();
        let tolerance = [0.0, 0.0, 1e-3, 1e-2][kind];
        for (a, b) in features.data().iter().zip(read.data()) {
            prop_assert!((a - b).abs() <= tolerance);
        }
        // rows read by parts are the rows read at once
        let middle = rows / 2;
        let parts = [file.read(0..middle, false).unwrap(), file.read(middle..rows, false).unwrap()];
        prop_assert_eq!([parts[0].data(), parts[1].data()].concat(), read.data());
        prop_assert!(file.read(0..rows + 1, false).is_err());
    }

    #[test]
    fn heads_round_trip(
        dim in 1usize..20,
        names in prop::collection::hash_set("[^\\s]\\PC{0,12}", 2..12),
        scale in 1e-6f32..1e6,
        seed: u64,
        note in "\\PC{0,20}",
    ) {
        let prototypes = unit_rows(dim, names.len(), seed).data().to_vec();
        let head = Head::new(prototypes, dim, names, scale).unwrap().with_metadata("source", note);
        let back = Head::from_bytes(&head.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(back.prototypes(), head.prototypes());
        prop_assert_eq!(back.classes(), head.classes());
        prop_assert_eq!(back.logit_scale(), head.logit_scale());
        prop_assert_eq!(back.metadata(), head.metadata());
        prop_assert_eq!(back.digest(), head.digest());
        prop_assert_eq!(back.to_bytes().unwrap(), head.to_bytes().unwrap());
    }

    #[test]
    fn states_round_trip(
        tensors in prop::collection::btree_map("[a-z.]{1,12}", tensor(), 0..8),
        notes in prop::collection::btree_map("[a-z]{1,8}", "\\PC{0,20}", 0..4),
    ) {
        let mut state = State { metadata: notes, tensors };
        state.metadata.insert("format".into(), "ultta-state-2".into());
        let bytes = state.to_bytes().unwrap();
        prop_assert_eq!(&State::from_bytes(&bytes).unwrap(), &state);
        prop_assert_eq!(state.to_bytes().unwrap(), bytes, "the same state, the same bytes");
    }

    #[test]
    fn a_session_state_round_trips_at_any_moment(rows in 0usize..400, seed: u64, paper: bool, teach: bool) {
        let world = World::small();
        let teach = [("feedback.teach", if teach { "true" } else { "false" })];
        let config = quick(if paper { "ul-tta:paper" } else { "ul-tta" }, &teach);
        let mut session = world.session(&config);
        Stream::full(&world, rows, seed >> 1).play(&mut session, 0..rows, 90);
        let state = through_bytes(&session.state());
        let mut back = Session::resume(world.head.clone(), &state).unwrap();
        prop_assert_eq!(back.state(), session.state());
        let more = world.rows(80, seed);
        let (a, b) = (session.step(&more).unwrap(), back.step(&more).unwrap());
        prop_assert_eq!(a.rows, b.rows);
        prop_assert_eq!(session.state(), back.state());
    }

    #[test]
    fn arbitrary_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(State::from_bytes(&bytes).is_err());
        prop_assert!(Head::from_bytes(&bytes).is_err());
    }

    #[test]
    fn rows_of_any_length_are_normalised_or_refused(
        data in prop::collection::vec(prop::num::f32::ANY, 0..24),
        dim in 1usize..5,
    ) {
        if let Ok(features) = Features::normalized(data, dim) {
            for row in 0..features.rows() {
                let norm: f64 = features.row(row).iter().map(|&v| v as f64 * v as f64).sum();
                prop_assert!((norm.sqrt() - 1.0).abs() < 1e-5, "{norm}");
            }
        }
    }
}

#[test]
fn a_features_file_must_hold_features() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("features");
    let write = |name: &str, dtype, shape: Vec<usize>, bytes: usize| {
        let data = vec![0; bytes];
        let view = TensorView::new(dtype, shape, &data).unwrap();
        std::fs::write(&path, safetensors::serialize([(name, view)], None).unwrap()).unwrap();
        FeatureFile::open(&path)
    };
    let reason = |result: Result<FeatureFile, Error>| result.unwrap_err().to_string();
    assert!(reason(write("rows", Dtype::F32, vec![1, 2], 8)).contains("no tensor named `features`"));
    assert!(reason(write("features", Dtype::F32, vec![2], 8)).contains("expected shape [rows, dim]"));
    assert!(reason(write("features", Dtype::I32, vec![1, 2], 8)).contains("got I32"));
    assert!(reason(write("features", Dtype::F32, vec![2, 0], 0)).contains("at least 1 column"));
    let zero = write("features", Dtype::F32, vec![1, 2], 8).unwrap();
    assert!(matches!(zero.read_all(false), Err(Error::NotUnit { row: 0, .. })));
    assert!(matches!(zero.read_all(true), Err(Error::NotUnit { row: 0, .. })));
    assert_eq!(write("features", Dtype::F16, vec![0, 3], 0).unwrap().read_all(false).unwrap().rows(), 0);
}

#[test]
fn a_head_file_must_hold_a_head() {
    let prototypes: Vec<u8> = [1.0f32, 0.0, 0.0, 1.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let make = |shape: Vec<usize>, notes: &[(&str, &str)]| {
        let view = TensorView::new(Dtype::F32, shape, &prototypes).unwrap();
        let notes = notes.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Head::from_bytes(&safetensors::serialize([("prototypes", view)], Some(notes)).unwrap())
    };
    let (classes, scale) = (("classes", r#"["a","b"]"#), ("logit_scale", "100"));
    make(vec![2, 2], &[classes, scale]).unwrap();
    let reason = |shape, notes: &[(&str, &str)]| make(shape, notes).unwrap_err().to_string();
    assert!(reason(vec![4], &[classes, scale]).contains("[classes, dim]"));
    assert!(reason(vec![2, 2], &[scale]).contains("no `classes`"));
    assert!(reason(vec![2, 2], &[classes]).contains("no `logit_scale`"));
    assert!(reason(vec![2, 2], &[("classes", "a, b"), scale]).contains("JSON list"));
    assert!(reason(vec![2, 2], &[classes, ("logit_scale", "high")]).contains("expected a number"));
    assert!(reason(vec![2, 2], &[classes, ("logit_scale", "-1")]).contains("logit scale"));
    assert!(reason(vec![2, 2], &[("classes", r#"["a","b","c"]"#), scale]).contains("class names"));
    let features = unit_rows(2, 3, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("features");
    features_file(&path, Dtype::F32, features.data(), 2);
    let error = Head::load(&path).unwrap_err().to_string();
    assert!(error.contains("no tensor named `prototypes`") && error.contains("features"), "{error}");
    assert!(SafeTensors::deserialize(&std::fs::read(&path).unwrap()).is_ok());
}

#[cfg(unix)]
#[test]
fn writing_replaces_files_and_follows_links_but_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::fs::write(&file, b"old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_atomically(&link, b"new").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    for other in [Path::new("/dev/null"), folder.path()] {
        let error = write_atomically(other, b"new").unwrap_err().to_string();
        assert!(error.contains("regular file"), "{error}");
        assert!(!std::fs::metadata(other).unwrap().is_file());
    }
}
