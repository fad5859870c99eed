//! Bad input: a clear error for each, and nothing lost.

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::support::{DIM, Folder, command, npy, outcome, ultta, unit_rows};

/// Runs on a features file over outputs of an earlier run: it must fail, and they must stay as they were.
fn fails(folder: &Folder, features: &str, flags: &[&str], code: i32, words: &[&str]) {
    folder.write("old.jsonl", "old predictions\n");
    folder.write("old.state", "old state\n");
    let outputs = ["--out", "%/old.jsonl", "--save-state", "%/old.state"];
    folder.run_on(features, &[&outputs, flags].concat()).failure(code, words);
    assert_eq!(folder.read("old.jsonl"), "old predictions\n");
    assert_eq!(folder.read("old.state"), "old state\n");
    assert!(
        std::fs::read_dir(folder.path("."))
            .unwrap()
            .all(|e| { !e.unwrap().file_name().to_string_lossy().starts_with(".ultta-") }),
        "a file was left behind"
    );
}

#[test]
fn rows_that_are_not_finite_or_not_unit() {
    let folder = Folder::new();
    type Spoil = fn(&mut [f32]);
    let bad_rows: [(&str, Spoil, &str); 4] = [
        ("nan", |row| row[3] = f32::NAN, "not finite"),
        ("inf", |row| row[3] = f32::NEG_INFINITY, "not finite"),
        ("zero", |row| row.fill(0.0), "norm 0.0000"),
        ("long", |row| row.iter_mut().for_each(|v| *v *= 2.0), "norm 2.0000"),
    ];
    for (name, spoil, words) in bad_rows {
        let mut rows = unit_rows(5000, 3);
        spoil(&mut rows[4999 * DIM..]);
        let file = format!("{name}.safetensors");
        folder.features(&file, &rows, DIM, None);
        fails(&folder, &file, &[], 2, &[&file, "row 4999", words]);
        let data: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
        folder.write("x.npy", npy("<f4", "(5000, 8)", &data));
        fails(&folder, "x.npy", &[], 2, &["x.npy", "row 4999", words]);
        let normalized = folder.run_on(&file, &["--normalize"]);
        assert_eq!(normalized.code, if name == "long" { 0 } else { 2 }, "{normalized:?}");
    }
}

#[test]
fn a_wrong_dimension() {
    let folder = Folder::new();
    folder.features("wide.safetensors", &unit_rows(6, 3), 2 * DIM, None);
    fails(&folder, "wide.safetensors", &[], 2, &["expected 8 columns", "got 16", "wide.safetensors"]);
}

#[test]
fn heads_that_are_no_heads() {
    let folder = Folder::new();
    let heads = [
        (r#"["only"]"#, 1, "one class"),
        ("[]", 0, "no classes"),
        (r#"["a", "b", "a"]"#, 3, "occurs twice"),
        (r#"["a", " "]"#, 2, "empty name"),
        (r#"["a", "b", "c"]"#, 2, "expected 2, got 3"),
        (r#"{"a": 1}"#, 2, "JSON list"),
    ];
    for (classes, n, words) in heads {
        folder.raw_head("head.safetensors", classes, n);
        fails(&folder, "features.safetensors", &[], 2, &["head.safetensors", words]);
        ultta(&["inspect", &folder.arg("head.safetensors")]).failure(2, &[words]);
    }
}

#[test]
fn no_rows() {
    let folder = Folder::new();
    folder.features("none.safetensors", &[], DIM, None);
    fails(&folder, "none.safetensors", &[], 2, &["at least 1 row", "none.safetensors"]);
}

#[test]
fn a_wrong_dtype_or_shape() {
    let folder = Folder::new();
    let ones = [0u8; 64];
    let save = |name: &str, tensor: &str, dtype, shape: Vec<usize>, labels: Option<(Dtype, Vec<usize>)>| {
        let n = |dtype: Dtype, shape: &[usize]| dtype.bitsize() / 8 * shape.iter().product::<usize>();
        let mut tensors =
            vec![(tensor, TensorView::new(dtype, shape.clone(), &ones[..n(dtype, &shape)]).unwrap())];
        if let Some((dtype, shape)) = &labels {
            let view = TensorView::new(*dtype, shape.clone(), &ones[..n(*dtype, shape)]).unwrap();
            tensors.push(("labels", view));
        }
        folder.write(name, safetensors::serialize(tensors, None).unwrap());
    };
    save("i32", "features", Dtype::I32, vec![1, 8], None);
    fails(&folder, "i32", &[], 2, &["F16, BF16, F32 or F64", "I32"]);
    save("flat", "features", Dtype::F32, vec![8], None);
    fails(&folder, "flat", &[], 2, &["[rows, dim]", "[8]"]);
    save("named", "embeddings", Dtype::F32, vec![1, 8], None);
    fails(&folder, "named", &[], 2, &["no tensor named `features`", "embeddings"]);
    save("float-labels", "features", Dtype::F32, vec![1, 8], Some((Dtype::F32, vec![1])));
    fails(&folder, "float-labels", &[], 2, &["labels: expected whole numbers", "F32"]);
    save("few-labels", "features", Dtype::F32, vec![2, 8], Some((Dtype::I64, vec![1])));
    fails(&folder, "few-labels", &[], 2, &["labels: expected one per row (2), got 1"]);
    save("square-labels", "features", Dtype::F32, vec![1, 8], Some((Dtype::I64, vec![1, 1])));
    fails(&folder, "square-labels", &[], 2, &["labels: expected shape [rows]"]);
}

#[test]
fn truncated_files_and_oversized_headers() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state"]).success();
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    for (name, flags) in [
        ("features.safetensors", vec![]),
        ("head.safetensors", vec![]),
        ("state", vec!["--load-state", "%/state"]),
    ] {
        let whole = folder.bytes(name);
        for len in [0, 4, 8, 100, whole.len() - 1] {
            folder.write(name, &whole[..len]);
            fails(&folder, "features.safetensors", &flags, 2, &["not a valid", name]);
        }
        folder.write(name, &huge);
        fails(&folder, "features.safetensors", &flags, 2, &["header", name]);
        folder.write(name, &whole);
    }
    folder.write("short.npy", npy("<f4", "(100, 8)", &[0; 64]));
    fails(&folder, "short.npy", &[], 2, &["truncated", "short.npy"]);
    folder.write("short.npz", b"PK\x03\x04 and nothing more");
    fails(&folder, "short.npz", &[], 2, &["not a valid .npz", "short.npz"]);
}

#[test]
fn labels_out_of_range() {
    let folder = Folder::new();
    folder.features("f.safetensors", &unit_rows(3, 3), DIM, Some(&[0, 4, 1]));
    fails(&folder, "f.safetensors", &[], 2, &["row 1 has label 4", "number of classes, 4", "f.safetensors"]);
    folder.features("f.safetensors", &unit_rows(3, 3), DIM, Some(&[0, 1, -1]));
    fails(&folder, "f.safetensors", &[], 2, &["row 2 has label -1"]);
}

#[test]
fn a_state_of_another_head() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state"]).success();
    folder.raw_head("head.safetensors", r#"["a", "b", "c", "d"]"#, 4);
    let words = ["another head", "give the head"];
    fails(&folder, "features.safetensors", &["--load-state", "%/state"], 2, &words);
    fails(&folder, "features.safetensors", &["--load-state", "%/head.safetensors"], 2, &["not a state file"]);
}

#[test]
fn files_that_are_not_there() {
    let folder = Folder::new();
    fails(&folder, "missing", &[], 2, &["no such file or folder: ", "missing"]);
    fails(
        &folder,
        "features.safetensors",
        &["--load-state", "%/missing"],
        2,
        &["no such file or folder: ", "missing"],
    );
    fails(
        &folder,
        "features.safetensors",
        &["--config", "%/missing"],
        2,
        &["no such file or folder: ", "missing"],
    );
    folder.run_on(".", &[]).failure(2, &["it is a folder"]);
    ultta(&["inspect", &folder.arg(".")]).failure(2, &["it is a folder"]);
}

#[test]
fn an_unwritable_output() {
    let folder = Folder::new();
    folder.run(&["--out", "%/no/such/p.jsonl"]).failure(1, &["cannot write", "p.jsonl"]);
    folder.run(&["--save-state", "%/no/such/s"]).failure(1, &["cannot write", "such/s"]);
    std::fs::create_dir(folder.path("p.jsonl")).unwrap();
    folder.run(&["--out", "%/p.jsonl"]).failure(2, &["it is a folder"]);
    folder.run(&["--save-state", "%/p.jsonl"]).failure(2, &["not a regular file"]);
    folder.run(&["--out", "%/p.txt"]).failure(2, &[".jsonl, .csv or .parquet"]);
    // No output replaces an input, or the other output.
    folder.run(&["--save-state", "%/head.safetensors"]).failure(2, &["is an input"]);
    folder.run(&["--out", "%/x.jsonl", "--save-state", "%/x.jsonl"]).failure(2, &["both name"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let folder = Folder::new();
    folder.run(&["--out", "/dev/full"]).failure(1, &["cannot write", "No space left"]);
    folder.run(&["--save-state", "/dev/full"]).failure(2, &["not a regular file"]);
    // A limit on the size of files stands for a disk that fills up in the middle.
    folder.write("old.jsonl", "old predictions\n");
    folder.write("old.state", "old state\n");
    let limited = |flags: &str| {
        let ultta = command(&[]).get_program().to_string_lossy().into_owned();
        let script = format!(
            "trap '' XFSZ; ulimit -f 1; cd '{}' && exec '{ultta}' run --features features.safetensors \
             --head head.safetensors {flags}",
            folder.path(".").display()
        );
        outcome(std::process::Command::new("sh").args(["-c", &script])).failure(1, &["File too large"])
    };
    limited("--out old.jsonl");
    limited("--out old.jsonl --probs --top 4");
    limited("--save-state old.state");
    assert_eq!(folder.read("old.jsonl"), "old predictions\n");
    assert_eq!(folder.read("old.state"), "old state\n");
    folder.holds_only(&["features.safetensors", "head.safetensors", "old.jsonl", "old.state"]);
}

#[cfg(unix)]
#[test]
fn an_output_behind_a_link() {
    let folder = Folder::new();
    folder.write("real.jsonl", "old\n");
    std::os::unix::fs::symlink(folder.path("real.jsonl"), folder.path("link.jsonl")).unwrap();
    folder.run(&["--out", "%/link.jsonl"]).success();
    assert!(folder.path("link.jsonl").is_symlink(), "the link stays a link");
    assert_eq!(folder.read("real.jsonl").lines().count(), 300);
}
