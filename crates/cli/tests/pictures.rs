//! The commands that see pictures, on small trees and a small random model made here.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;
use ultta::{FeatureFile, Head};

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

/// A model of `transformers` with CLIP's vocabulary, one block a tower and random weights.
fn write_model(folder: &Path, seed: u32) {
    let (width, hidden, dim, size, patch) = (16, 32, 8, 16, 8);
    let config = serde_json::json!({
        "model_type": "clip", "projection_dim": dim,
        "vision_config": {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": size, "patch_size": patch},
        "text_config": {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 77, "vocab_size": 49408},
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("visual_projection.weight".into(), vec![dim, width]),
        ("text_projection.weight".into(), vec![dim, width]),
        ("vision_model.embeddings.class_embedding".into(), vec![width]),
        ("vision_model.embeddings.patch_embedding.weight".into(), vec![width, 3, patch, patch]),
        ("vision_model.embeddings.position_embedding.weight".into(), vec![5, width]),
        ("text_model.embeddings.token_embedding.weight".into(), vec![49408, width]),
        ("text_model.embeddings.position_embedding.weight".into(), vec![77, width]),
    ];
    let mut norms = vec![
        "vision_model.pre_layrnorm".to_string(),
        "vision_model.post_layernorm".into(),
        "text_model.final_layer_norm".into(),
    ];
    for tower in ["vision", "text"] {
        let layer = format!("{tower}_model.encoder.layers.0");
        norms.extend([format!("{layer}.layer_norm1"), format!("{layer}.layer_norm2")]);
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
    for norm in norms {
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

#[test]
fn a_folder_is_classified_and_broken_files_are_reported() {
    let place = Place::new();
    let (good, broken) = tree(&place.path("photos"), 120);
    assert!(broken > 10);
    let out = place.run(&["classify", "photos", "--labels", "cat,dog,fox", "--json", "--top", "2"]).success();
    let lines = out.lines();
    assert_eq!(lines.len(), good + broken, "nothing is lost");
    let errors: Vec<&Value> = lines.iter().filter(|l| l.get("error").is_some()).collect();
    assert_eq!(errors.len(), broken);
    assert!(errors.iter().any(|e| e["error"].as_str().unwrap().contains("empty")));
    let ids: Vec<&str> = lines.iter().map(|l| l["id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted(), "in the order of the paths");
    for line in lines.iter().filter(|l| l.get("error").is_none()) {
        assert_eq!(line["top"].as_array().unwrap().len(), 2);
        assert!(line["zero_shot"]["prob"].as_f64().unwrap() > 0.0);
    }
    assert!(out.stderr.contains(&format!("{broken} of {} pictures could not be read", good + broken)));
    // For people, and as a table.
    let people = place.run(&["classify", "photos", "--labels", "cat,dog,fox"]).success();
    assert_eq!(people.stdout.lines().count(), good);
    let table = place.run(&["classify", "photos", "--labels", "cat,dog,fox", "--csv"]).success();
    assert_eq!(table.stdout.lines().count(), good + 1);
    let strict = place.run(&["classify", "photos", "--labels", "cat,dog,fox", "--strict"]);
    assert_eq!(strict.code, 2);
    assert!(strict.stderr.contains("error: ") && strict.stderr.contains("00039"), "{}", strict.stderr);
}

#[test]
fn the_state_continues_and_the_batch_does_not_matter() {
    let place = Place::new();
    for i in 0..60 {
        draw(&place.path(&format!("a/{i:03}.png")), i);
    }
    let labels = ["--labels", "cat,dog,fox", "--json"];
    let run = |extra: &[&str]| place.run(&[&["classify"], extra, &labels[..]].concat()).success().stdout;
    let whole = run(&["a", "--save-state", "whole.safetensors"]);
    assert_eq!(whole, run(&["a", "--batch", "3"]), "the encoder's batch is speed, not meaning");
    let first = run(&["a/0[0-2]*.png", "--save-state", "s.safetensors"]);
    let second = run(&["a/0[3-5]*.png", "--load-state", "s.safetensors", "--save-state", "s2.safetensors"]);
    let class = |text: &str| -> Vec<Value> {
        text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["prob"].clone()).collect()
    };
    assert_eq!(class(&whole), class(&(first + &second)));
    let states = ["whole.safetensors", "s2.safetensors"].map(|f| std::fs::read(place.path(f)).unwrap());
    assert_eq!(states[0], states[1]);
    // Views feed the teaching and are seeded.
    let with = run(&["a", "--views", "2"]);
    assert_eq!(with, run(&["a", "--views", "2", "--batch", "8"]));
    // Strangers.
    let unknown = run(&["a", "--unknown", "0.2"]);
    assert!(unknown.contains("\"unknown\":true"));
}

#[test]
fn lists_tables_archives_and_globs_give_the_same_answers() {
    let place = Place::new();
    let mut archive = tar::Builder::new(Vec::new());
    let mut table = String::from("path,label\n");
    let mut list = String::new();
    for i in 0..12 {
        let name = format!("p/{i:03}.png");
        draw(&place.path(&name), i);
        table += &format!("{name},{}\n", i % 3);
        list += &format!("{name}\n");
        for (name, bytes) in [
            (format!("{i:03}.png"), std::fs::read(place.path(&name)).unwrap()),
            (format!("{i:03}.cls"), (i % 3).to_string().into_bytes()),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, &bytes[..]).unwrap();
        }
    }
    std::fs::write(place.path("set.tar"), archive.into_inner().unwrap()).unwrap();
    std::fs::write(place.path("set.csv"), table).unwrap();
    let probs = |out: Outcome| -> Vec<f64> {
        out.success().lines().iter().map(|l| l["prob"].as_f64().unwrap()).collect()
    };
    let labels = ["--labels", "cat,dog,fox", "--json"];
    let run = |path: &str| probs(place.run(&[&["classify", path], &labels[..]].concat()));
    let folder = run("p");
    assert_eq!(folder.len(), 12);
    assert_eq!(folder, run("set.tar"));
    assert_eq!(folder, run("set.csv"));
    assert_eq!(folder, run("p/*.png"));
    let mut command = place.command(&[&["classify", "-"], &labels[..]].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 12);
    // Labels come along.
    for input in ["set.tar", "set.csv"] {
        place.run(&["encode", input, "--out", "f.safetensors", "-q"]).success();
        let pack = ultta_eval::pack::Pack::open(place.path("f.safetensors"), None).unwrap();
        assert_eq!(pack.labels().unwrap(), (0..12).map(|i| i % 3).collect::<Vec<_>>());
    }
    assert_eq!(place.run(&["classify", "nowhere", "--labels", "a,b"]).code, 2);
    assert_eq!(place.run(&["classify", "q/*.png", "--labels", "a,b"]).code, 2);
}

#[test]
fn encoding_goes_on_after_a_kill() {
    let place = Place::new();
    let (good, broken) = tree(&place.path("photos"), 2500);
    place.run(&["encode", "photos", "--out", "whole.safetensors", "-q"]).success();
    // Killed as soon as some parts are there; the last part it wrote may be any.
    let mut kills = 0;
    for wanted in [1, 8, 20] {
        let arguments = ["encode", "photos", "--out", "killed.safetensors", "--save-every", "40", "-q"];
        let mut child = place.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        let parts = place.path("killed.safetensors.parts");
        while begun.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none() {
            let there = std::fs::read_dir(&parts).map_or(0, |all| all.count());
            if there >= wanted {
                kills += 1;
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(kills > 0, "the machine was too fast to be stopped");
    let out = place.run(&["encode", "photos", "--out", "killed.safetensors", "--save-every", "40"]).success();
    assert!(out.stderr.contains("going on after"), "{}", out.stderr);
    let whole = FeatureFile::open(place.path("whole.safetensors")).unwrap();
    assert_eq!(whole.rows(), good);
    let same = ["whole.safetensors", "killed.safetensors"].map(|f| std::fs::read(place.path(f)).unwrap());
    assert!(same[0] == same[1], "byte for byte");
    let table = std::fs::read_to_string(place.path("killed.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + good + broken);
    assert_eq!(table.lines().filter(|l| l.starts_with(',')).count(), broken);
    assert!(!place.path("killed.safetensors.parts").exists());
    // Labels from the folders, and the head of the same classes.
    let pack = ultta_eval::pack::Pack::open(place.path("whole.safetensors"), None).unwrap();
    assert_eq!(pack.metadata()["classes"], r#"["cat","dog","red fox"]"#);
    assert_eq!(pack.labels().unwrap().iter().max(), Some(&2));
    place.run(&["head", "--labels-folder", "photos", "--out", "head.safetensors", "-q"]).success();
    assert_eq!(Head::load(place.path("head.safetensors")).unwrap().classes(), ["cat", "dog", "red fox"]);
    place.run(&["run", "--features", "whole.safetensors", "--head", "head.safetensors", "-q"]).success();
    // In several files.
    let arguments =
        ["encode", "photos", "--out", "many.safetensors", "--save-every", "100", "--shard-rows", "500", "-q"];
    place.run(&arguments).success();
    let rows: usize = (0..)
        .map_while(|i| {
            let name = std::fs::read_dir(place.folder.path()).unwrap().flatten().map(|e| e.file_name());
            let name = name
                .map(|n| n.into_string().unwrap())
                .find(|n| n.starts_with(&format!("many-{i:05}-of-")))?;
            Some(FeatureFile::open(place.path(&name)).unwrap().rows())
        })
        .sum();
    assert_eq!(rows, good);
    // An unfinished run with other pictures is not mixed up with this one.
    std::fs::create_dir(place.path("killed.safetensors.parts")).unwrap();
    std::fs::write(place.path("killed.safetensors.parts/00000000.safetensors"), b"x").unwrap();
    assert_eq!(place.run(&["encode", "photos", "--out", "killed.safetensors", "-q"]).code, 2);
}

#[test]
fn files_of_others_are_not_replaced() {
    let place = Place::new();
    let mut table = String::from("path,label\n");
    for i in 0..12 {
        draw(&place.path(&format!("p/{i:03}.png")), i);
        table += &format!("p/{i:03}.png,{}\n", i % 3);
    }
    std::fs::write(place.path("mine.csv"), &table).unwrap();
    std::fs::create_dir(place.path("folder.safetensors")).unwrap();
    for (input, out, word) in [
        ("mine.csv", "mine.safetensors", "mine.csv"),
        ("p", "mine.safetensors", "mine.csv"),
        ("p", "features.csv", ".safetensors"),
        ("p", "folder.safetensors", "folder"),
    ] {
        let refused = place.run(&["encode", input, "--out", out, "-q"]);
        assert!(refused.code == 2 && refused.stderr.contains(word), "{input} {out}: {}", refused.stderr);
    }
    assert_eq!(std::fs::read_to_string(place.path("mine.csv")).unwrap(), table);
    assert!(!place.path("features.csv").exists());
    // Its own table is replaced, unless it is what is read.
    for _ in 0..2 {
        place.run(&["encode", "p", "--out", "own.safetensors", "-q"]).success();
    }
    assert_eq!(place.run(&["encode", "own.csv", "--out", "own.safetensors", "-q"]).code, 2);
    place.run(&["encode", "mine.csv", "--out", "many.safetensors", "--shard-rows", "5", "-q"]).success();
    let rows = [0, 1, 2].map(|i| {
        let pack =
            ultta_eval::pack::Pack::open(place.path(&format!("many-{i:05}-of-00003.safetensors")), None);
        pack.unwrap().labels().unwrap().to_vec()
    });
    assert_eq!(rows.concat(), (0..12).map(|i| i % 3).collect::<Vec<_>>());
    assert_eq!(rows.map(|labels| labels.len()), [5, 5, 2]);
}

#[test]
fn what_cannot_be_read_is_reported_and_the_rest_goes_on() {
    let place = Place::new();
    for i in 0..4 {
        draw(&place.path(&format!("p/{}/{i}.png", ["cat", "dog"][i % 2])), i);
    }
    let labels = ["--labels", "cat,dog", "--json", "-q"];
    let run = |paths: &[&str]| place.run(&[&["classify"], paths, &labels[..]].concat());
    assert!(Command::new("mkfifo").arg(place.path("p/cat/pipe.jpg")).status().unwrap().success());
    assert_eq!(run(&["p"]).success().lines().len(), 4);
    std::fs::write(place.path("bad.tar"), [7; 2000]).unwrap();
    let lines = run(&["p", "bad.tar"]).success().lines();
    assert_eq!((lines.len(), lines[4]["id"].as_str()), (5, Some("bad.tar")));
    assert_eq!(run(&["p", "bad.tar", "--strict"]).code, 2);
    let mut command = place.command(&[&["classify", "-"], &labels[..]].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"p/cat/0.png\n\xff.png\np/dog/1.png\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
    // A picture beside the class folders costs the labels, and that is said.
    draw(&place.path("p/loose.png"), 9);
    let out = place.run(&["encode", "p", "--out", "f.safetensors"]).success();
    assert!(out.stderr.contains("loose.png has no class"), "{}", out.stderr);
    // Answers without others beside them.
    place.run(&["classify", "p/loose.png", "--labels", "cat,dog", "--top", "0"]).success();
    place.run(&["classify", "p/loose.png", "--labels", "cat,dog", "--top", "0", "--json"]).success();
    assert_eq!(place.run(&["classify", "p/loose.png", "--labels", "cat,dog", "--views", "3"]).code, 2);
    std::fs::create_dir(place.path("empty")).unwrap();
    for command in ["classify", "doctor"] {
        let extra: &[&str] = if command == "classify" { &labels } else { &[] };
        let out = place.run(&[&[command, "empty"], extra].concat());
        assert!(out.code == 2 && out.stderr.contains("no pictures in empty"), "{}", out.stderr);
    }
}

#[test]
fn datasets_are_read_in_their_layouts() {
    let place = Place::new();
    let classes = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"];
    for (d, domain) in ["art_painting", "cartoon", "photo", "sketch"].iter().enumerate() {
        for (c, class) in classes.iter().enumerate() {
            for k in 0..2 {
                draw(&place.path(&format!("data/PACS/{domain}/{class}/{k}.png")), d * 20 + c * 2 + k);
            }
        }
    }
    let out = place.run(&["encode", "--dataset", "pacs", "--root", "data", "--out", "packs"]).success();
    assert!(out.stderr.contains("expected 9991 (published; -9935) pictures, found 56"), "{}", out.stderr);
    let model = MODEL.path().file_name().unwrap().to_str().unwrap();
    for domain in ["art_painting", "cartoon", "photo", "sketch"] {
        let folder = place.path(&format!("packs/pacs-{domain}/{model}"));
        let pack = ultta_eval::pack::Pack::open(folder.join("features.safetensors"), None).unwrap();
        assert_eq!((pack.rows(), pack.labels().unwrap()[13]), (14, 6));
        assert_eq!(Head::load(folder.join("head.safetensors")).unwrap().classes(), classes);
    }
    // Again: the features stay, the head is that of the prompts asked for.
    let head = place.path(&format!("packs/pacs-photo/{model}/head.safetensors"));
    let before = Head::load(&head).unwrap().digest();
    let again = ["encode", "--dataset", "pacs", "--root", "data", "--out", "packs", "-q"];
    let out = place.run(&[&again[..], &["--templates", "imagenet-7"]].concat()).success();
    assert!(out.stdout.contains("its head was renewed"), "{}", out.stdout);
    assert_ne!(Head::load(&head).unwrap().digest(), before);
    // Numbers are classes, not text: 2 before 10.
    for class in [0, 2, 10] {
        draw(&place.path(&format!("v2/imagenetv2-matched-frequency-format-val/{class}/a.jpeg")), class);
    }
    place.run(&["encode", "--dataset", "imagenet-v2", "--root", "v2", "--out", "packs", "-q"]).success();
    let v2 = place.path(&format!("packs/imagenet-v2/{model}"));
    let pack = ultta_eval::pack::Pack::open(v2.join("features.safetensors"), None).unwrap();
    assert_eq!(pack.labels().unwrap(), [0, 2, 10]);
    let head = Head::load(v2.join("head.safetensors")).unwrap();
    assert_eq!((head.n_classes(), head.classes()[1].as_str()), (1000, "goldfish"));
    // WordNet ids of a subset: goldfish is class 0 of ImageNet-R.
    for id in ["n01443537", "n01484850", "n99999999"] {
        draw(&place.path(&format!("r/imagenet-r/{id}/a.jpg")), 3);
    }
    let out = place.run(&["encode", "--dataset", "imagenet_r", "--root", "r", "--out", "packs"]).success();
    assert!(out.stderr.contains("198 of 200 class folders are missing"), "{}", out.stderr);
    assert!(out.stderr.contains("n99999999"));
    let r = place.path(&format!("packs/imagenet-r/{model}"));
    let pack = ultta_eval::pack::Pack::open(r.join("features.safetensors"), None).unwrap();
    assert_eq!(pack.labels().unwrap(), [0, 1]);
    assert_eq!(
        Head::load(r.join("head.safetensors")).unwrap().classes()[..2],
        ["goldfish", "great white shark"]
    );
    let wrong = place.run(&["encode", "--dataset", "office-home", "--root", "data", "--out", "x"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("Clipart"), "{}", wrong.stderr);
    let unknown = place.run(&["encode", "--dataset", "pax", "--root", "data", "--out", "x"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("domainnet"));
}

#[test]
fn a_folder_is_watched() {
    let place = Place::new();
    std::fs::create_dir(place.path("in")).unwrap();
    draw(&place.path("in/0.png"), 0);
    let arguments = ["classify", "--watch", "in", "--watch-idle", "3", "--labels", "cat,dog", "--json", "-q"];
    let child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(900));
    draw(&place.path("in/later/1.jpg"), 1);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().next().unwrap().contains("0.png"));
}

#[test]
fn a_watched_file_that_changes_is_answered_again() {
    let place = Place::new();
    draw(&place.path("in/0.png"), 0);
    draw(&place.path("aside.png"), 1);
    let whole = std::fs::read(place.path("aside.png")).unwrap();
    let arguments = ["classify", "in", "--watch", "./in", "--labels", "cat,dog", "--json", "-q"];
    let saving = ["--save-state", "s.safetensors"];
    let mut command = place.command(&[&arguments[..], &saving].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let names = |line: &Value, name: &str| line["id"].as_str().unwrap().ends_with(name);
    assert!(names(&next(), "0.png"));
    // A copy that pauses is reported, and answered when it is whole.
    std::fs::write(place.path("in/1.png"), &whole[..whole.len() / 2]).unwrap();
    let cut = next();
    assert!(names(&cut, "1.png") && cut.get("error").is_some(), "each picture once: {cut}");
    std::fs::write(place.path("in/1.png"), &whole).unwrap();
    let line = next();
    assert!(names(&line, "1.png") && line.get("error").is_none(), "{line}");
    draw(&place.path("in/0.png"), 5);
    assert!(names(&next(), "0.png"));
    // Without the folder it ends, and keeps what it learnt.
    std::fs::remove_dir_all(place.path("in")).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(lines.next().is_none());
    assert!(place.path("s.safetensors").exists());
}

#[test]
fn heads_are_built_cached_and_mixed_with_exemplars() {
    let place = Place::new();
    let build = |extra: &[&str], out: &str| {
        place.run(&[&["head", "--out", out], extra].concat()).success();
        Head::load(place.path(out)).unwrap()
    };
    let head = build(&["--labels", "cat,dog,red fox"], "a.safetensors");
    assert_eq!((head.n_classes(), head.dim()), (3, 8));
    assert!((head.logit_scale() - 100.0).abs() < 0.01);
    assert_eq!(std::fs::read_dir(place.path("cache/ultta/heads")).unwrap().count(), 1);
    assert_eq!(head.digest(), build(&["--labels", "cat,dog,red fox"], "b.safetensors").digest());
    let many = build(&["--labels", "cat,dog,red fox", "--templates", "imagenet-80"], "c.safetensors");
    assert_ne!(head.digest(), many.digest());
    std::fs::write(place.path("d.json"), r#"{"cat": ["whiskers"], "dog": ["a {} that barks"]}"#).unwrap();
    assert_eq!(build(&["--labels-file", "d.json"], "d.safetensors").classes(), ["cat", "dog"]);
    for class in ["cat", "Dog", "red_fox"] {
        draw(&place.path(&format!("ex/{class}/0.png")), class.len());
    }
    let mixed = build(&["--labels", "cat,dog,red fox", "--exemplars", "ex:0.5"], "e.safetensors");
    assert_ne!(head.digest(), mixed.digest());
    draw(&place.path("ex/bird/0.png"), 1);
    let wrong =
        place.run(&["head", "--labels", "cat,dog,red fox", "--exemplars", "ex", "--out", "f.safetensors"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("bird"));
    assert_eq!(place.run(&["head", "--labels", "cat", "--out", "f.safetensors"]).code, 2);
    // A head file serves in place of names.
    draw(&place.path("p/0.png"), 0);
    place.run(&["classify", "p", "--head", "a.safetensors", "-q"]).success();
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let place = Place::new();
    tree(&place.path("photos"), 40);
    let out = place.run(&["doctor", "photos"]);
    assert!(out.code == 2 && out.stdout.contains("pictures can be read") && out.stdout.contains("empty"));
    let model = place.run(&["doctor", "--check-model"]).success();
    assert!(model.stdout.contains("parity vector") && model.stdout.contains("colours"), "{}", model.stdout);
    place.run(&["encode", "photos", "--out", "f.safetensors", "-q"]).success();
    place.run(&["head", "--labels", "dog,cat,red fox", "--out", "h.safetensors", "-q"]).success();
    let both = place.run(&["doctor", "--features", "f.safetensors", "--head", "h.safetensors"]);
    assert!(both.stdout.contains("rows are unit vectors"), "{}", both.stdout);
    assert!(both.stdout.contains("class 0 is \"cat\" in the features file and \"dog\" in the head"));
    // A head of another model.
    let other = place.path("other");
    std::fs::create_dir(&other).unwrap();
    write_model(&other, 77);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    let made = command
        .args(["head", "--labels", "cat,dog,red fox", "--model", &place.text("other"), "-q", "--no-cache"])
        .args(["--out", &place.text("o.safetensors")])
        .status();
    assert!(made.unwrap().success());
    let out = place.run(&["doctor", "--features", "f.safetensors", "--head", "o.safetensors"]);
    assert!(out.code == 2 && out.stdout.contains("encode both with the same model"), "{}", out.stdout);
    // Rows that are no unit vectors are counted from 0.
    let mut bytes = std::fs::read(place.path("f.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let row = 3 * 8 * 4;
    for value in bytes[start + row..start + row + 32].as_chunks_mut::<4>().0 {
        *value = (3.0 * f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(place.path("long.safetensors"), &bytes).unwrap();
    let out = place.run(&["doctor", "--features", "long.safetensors"]);
    assert!(
        out.stdout.contains("norms between 1.000 and 3.000") && out.stdout.contains("row 3"),
        "{}",
        out.stdout
    );
    bytes[start + row..start + row + 32].fill(0);
    std::fs::write(place.path("zero.safetensors"), &bytes).unwrap();
    let out = place.run(&["doctor", "--features", "zero.safetensors"]);
    assert!(out.stdout.contains("row 3 is all zeros"), "{}", out.stdout);
    assert_eq!(place.run(&["doctor"]).code, 2);
}

#[test]
fn models_are_listed_and_a_missing_one_says_what_to_do() {
    let place = Place::new();
    let out = place.run(&["models"]).success();
    assert!(out.stdout.contains("openai/clip-vit-base-patch16") && out.stdout.contains("(default)"));
    draw(&place.path("p/0.png"), 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    command.args(["classify", &place.text("p"), "--labels", "a,b"]);
    command.env("HF_HOME", place.path("hf")).env("HF_HUB_OFFLINE", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    for word in [
        "HF_HUB_OFFLINE",
        "model.safetensors",
        "config.json",
        "--model",
        "models--openai--clip-vit-base-patch16",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
