//! Files: writes that replace a file as a whole, and what is written is read again.

use crate::common::{Rng, Stream, World, quick, through_bytes};
use crate::state_files::saved;
use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::path::Path;
use std::process::Command;
use ultta::{Config, Error, FeatureFile, Features, Head, Session, State, Tensor};
use ultta_formats::write_atomically;

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
            "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact files::a_full_disk_leaves_the_old_file --nocapture",
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
        prop::collection::vec(finite, 0..9).prop_map(|v| Tensor::F64(v.into())),
        prop::collection::vec(small, 0..9).prop_map(|v| Tensor::F32(v.into())),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(|v| Tensor::U64(v.into())),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(|v| Tensor::U32(v.into())),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(|v| Tensor::I16(v.into())),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(|v| Tensor::U8(v.into())),
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
