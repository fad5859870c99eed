//! The commands that see pictures, on small trees and a small random model made here.

mod answers;
mod doctor;
mod encode;
mod sources;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a model, and a cache folder of its own.
struct Place {
    folder: TempDir,
}

static MODEL: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), 1);
    folder
});

struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn success(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        self
    }

    fn refused(self, words: &[&str]) {
        assert_eq!(self.code, 2, "{}\n{}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {}", self.stderr);
        }
    }

    fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().into()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("XDG_CACHE_HOME", self.path("cache")).env("HF_HUB_OFFLINE", "1");
        command.env("HF_HOME", self.path("hf"));
        if ["classify", "encode", "head"].contains(&arguments[0]) || arguments.contains(&"--check-model") {
            command.args(["--model", MODEL.path().to_str().unwrap(), "--threads", "2"]);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let output = self.command(arguments).output().unwrap();
        let outcome = Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        outcome
    }
}

fn noise(n: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_769) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        (x as f32 / u32::MAX as f32 - 0.5) * scale
    };
    (0..n).map(|_| next()).collect()
}

/// Sizes of an image tower.
struct Tower {
    width: usize,
    layers: usize,
    size: usize,
    patch: usize,
}

/// A model of `transformers` with CLIP's vocabulary, one block a tower and random weights.
fn write_model(folder: &Path, seed: u32) {
    write_sized(folder, seed, Tower { width: 16, layers: 1, size: 16, patch: 8 });
}

/// One that takes some tenths of a second for a picture.
pub fn write_slow_model(folder: &Path) {
    write_sized(folder, 1, Tower { width: 512, layers: 10, size: 224, patch: 16 });
}

fn write_sized(folder: &Path, seed: u32, tower: Tower) {
    let (width, hidden, dim) = (16, 32, 8);
    let Tower { width: wide, layers, size, patch } = tower;
    let config = serde_json::json!({
        "model_type": "clip", "projection_dim": dim,
        "vision_config": {"hidden_size": wide, "intermediate_size": 2 * wide, "num_hidden_layers": layers,
            "num_attention_heads": 2, "image_size": size, "patch_size": patch},
        "text_config": {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 77, "vocab_size": 49408},
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("visual_projection.weight".into(), vec![dim, wide]),
        ("text_projection.weight".into(), vec![dim, width]),
        ("vision_model.embeddings.class_embedding".into(), vec![wide]),
        ("vision_model.embeddings.patch_embedding.weight".into(), vec![wide, 3, patch, patch]),
        ("vision_model.embeddings.position_embedding.weight".into(), vec![(size / patch).pow(2) + 1, wide]),
        ("text_model.embeddings.token_embedding.weight".into(), vec![49408, width]),
        ("text_model.embeddings.position_embedding.weight".into(), vec![77, width]),
    ];
    let mut norms = vec![
        ("vision_model.pre_layrnorm".to_string(), wide),
        ("vision_model.post_layernorm".into(), wide),
        ("text_model.final_layer_norm".into(), width),
    ];
    let vision = (0..layers).map(|layer| ("vision", layer, wide, 2 * wide));
    for (tower, layer, width, hidden) in vision.chain([("text", 0, width, hidden)]) {
        let layer = format!("{tower}_model.encoder.layers.{layer}");
        norms.extend([(format!("{layer}.layer_norm1"), width), (format!("{layer}.layer_norm2"), width)]);
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            shapes.push((format!("{layer}.self_attn.{part}.weight"), vec![width, width]));
            shapes.push((format!("{layer}.self_attn.{part}.bias"), vec![width]));
        }
        shapes.push((format!("{layer}.mlp.fc1.weight"), vec![hidden, width]));
        shapes.push((format!("{layer}.mlp.fc1.bias"), vec![hidden]));
        shapes.push((format!("{layer}.mlp.fc2.weight"), vec![width, hidden]));
        shapes.push((format!("{layer}.mlp.fc2.bias"), vec![width]));
    }
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (i, (name, shape)) in shapes.into_iter().enumerate() {
        let n = shape.iter().product();
        tensors.push((name, shape, noise(n, seed + i as u32, 0.8)));
    }
    for (norm, width) in norms {
        tensors.push((format!("{norm}.weight"), vec![width], vec![1.0; width]));
        tensors.push((format!("{norm}.bias"), vec![width], vec![0.0; width]));
    }
    tensors.push(("logit_scale".into(), vec![], vec![100f32.ln()]));
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|t| t.2.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views: Vec<(&str, TensorView<'_>)> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, b)| (t.0.as_str(), TensorView::new(Dtype::F32, t.1.clone(), b).unwrap()))
        .collect();
    let metadata: Option<HashMap<String, String>> = None;
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, metadata).unwrap())
        .unwrap();
}

/// A picture whose colour follows its number.
fn draw(path: &Path, number: usize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (w, h) = (20 + number as u32 % 13, 18 + number as u32 % 7);
    let picture = image::RgbImage::from_fn(w, h, |x, y| {
        image::Rgb([(number * 37 % 256) as u8, (x * 9 % 256) as u8, (y * 11 + number as u32) as u8])
    });
    picture.save(path).unwrap();
}

/// Pictures of several kinds with broken ones among them: how many are good, and how many are broken.
fn tree(root: &Path, n: usize) -> (usize, usize) {
    let (mut good, mut broken) = (0, 0);
    for i in 0..n {
        let class = ["cat", "dog", "red_fox"][i % 3];
        let ending = ["jpg", "png", "bmp"][i % 3];
        let path = root.join(class).join(format!("{i:05}.{ending}"));
        draw(&path, i);
        match i % 17 {
            5 => std::fs::write(&path, b"").unwrap(),
            11 => {
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            }
            14 => std::fs::write(&path, b"this is no picture").unwrap(),
            _ => {
                good += 1;
                continue;
            }
        }
        broken += 1;
    }
    std::fs::write(root.join("cat").join("notes.txt"), "not a picture").unwrap();
    (good, broken)
}
