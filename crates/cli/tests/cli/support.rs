//! Small packs, a head, and the binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;
use ultta::Head;

pub const DIM: usize = 8;
pub const CLASSES: [&str; 4] = ["cat", "dog, small", "horse", "a \"quoted\" name"];

/// What a run of the binary came to.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The binary with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    let outcome = Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    outcome
}

pub fn ultta(arguments: &[&str]) -> Outcome {
    outcome(&mut command(arguments))
}

impl Outcome {
    pub fn success(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// A failure with this exit code, in one line on standard error that says all these words.
    pub fn failure(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {self:?}");
        }
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// A folder with `head.safetensors` and `features.safetensors` (labelled).
pub struct Folder {
    folder: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        Self::with_rows(300)
    }

    pub fn with_rows(rows: usize) -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap() };
        let anchors = unit_rows(CLASSES.len(), 1);
        Head::new(anchors.clone(), DIM, CLASSES, 30.0)
            .unwrap()
            .save(folder.path("head.safetensors"))
            .unwrap();
        let (features, labels) = samples(rows, &anchors);
        folder.features("features.safetensors", &features, DIM, Some(&labels));
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn features(&self, name: &str, features: &[f32], dim: usize, labels: Option<&[i64]>) {
        let data: Vec<u8> = features.iter().flat_map(|v| v.to_le_bytes()).collect();
        let labels: Option<Vec<u8>> = labels.map(|l| l.iter().flat_map(|v| v.to_le_bytes()).collect());
        let mut tensors =
            vec![("features", TensorView::new(Dtype::F32, vec![features.len() / dim, dim], &data).unwrap())];
        if let Some(labels) = &labels {
            tensors.push(("labels", TensorView::new(Dtype::I64, vec![labels.len() / 8], labels).unwrap()));
        }
        self.write(name, safetensors::serialize(tensors, None).unwrap());
    }

    /// A head file as anyone could have written it, checked by nobody.
    pub fn raw_head(&self, name: &str, classes: &str, n_classes: usize) {
        let data: Vec<u8> = unit_rows(n_classes, 1).iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![n_classes, DIM], &data).unwrap();
        let strings = [("classes", classes), ("logit_scale", "30")];
        let strings: HashMap<_, _> = strings.map(|(k, v)| (k.to_string(), v.to_string())).into();
        self.write(name, safetensors::serialize([("prototypes", view)], Some(strings)).unwrap());
    }

    /// `ultta run` on the folder's features and head, with further arguments. `%` stands for the folder.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_on("features.safetensors", arguments)
    }

    /// The same on another features file.
    pub fn run_on(&self, features: &str, arguments: &[&str]) -> Outcome {
        outcome(&mut self.run_command(features, arguments))
    }

    pub fn run_command(&self, features: &str, arguments: &[&str]) -> Command {
        let features = if features == "-" { features.to_string() } else { self.arg(features) };
        let head = self.arg("head.safetensors");
        // `%` is the folder, but after a number it is per cent.
        let folder = self.folder.path().to_str().unwrap();
        let filled =
            |a: &&str| if a.len() > 1 && a.ends_with('%') { a.to_string() } else { a.replace('%', folder) };
        let arguments: Vec<String> = arguments.iter().map(filled).collect();
        let mut all = vec!["run", "--features", &features, "--head", &head];
        all.extend(arguments.iter().map(String::as_str));
        command(&all)
    }

    /// Nothing but these files is here: no half-written file was left behind.
    pub fn holds_only(&self, names: &[&str]) {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut found: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        let mut names = names.to_vec();
        names.sort();
        assert_eq!(found, names);
    }
}

/// Unit rows from a fixed sequence of pseudo-random numbers.
pub fn unit_rows(rows: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..rows).flat_map(|_| unit((0..DIM).map(|_| random.next()).collect())).collect()
}

/// Noisy copies of anchors, class after class in turn, with their labels.
fn samples(rows: usize, anchors: &[f32]) -> (Vec<f32>, Vec<i64>) {
    let mut random = Random(2);
    let mut features = Vec::new();
    let mut labels = Vec::new();
    for row in 0..rows {
        let class = row % CLASSES.len();
        let anchor = &anchors[class * DIM..][..DIM];
        features.extend(unit(anchor.iter().map(|v| v + 0.5 * random.next()).collect()));
        labels.push(class as i64);
    }
    (features, labels)
}

fn unit(row: Vec<f32>) -> Vec<f32> {
    let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
    row.into_iter().map(|v| v / norm).collect()
}

/// A linear congruential generator (Knuth's constants); values in [-1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The bytes of a `.npy` file.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Sends a signal to a process of ours.
pub fn send(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
