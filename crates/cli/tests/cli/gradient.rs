//! Methods that change the encoder, on a folder of drawn shapes and a small random model.

use std::path::Path;
use std::process::{Command, Output};

use image::{ImageBuffer, Rgb};
use serde_json::Value;
use ultta_encode::tiny::config;
use ultta_encode::tiny::shapes::{SHAPES, Style, draw};
use ultta_eval::random::Random;

fn ultta(place: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    command.env("XDG_CACHE_HOME", place.join("cache")).env("HF_HUB_OFFLINE", "1");
    command.args(args).current_dir(place).output().unwrap()
}

fn pictures(folder: &Path, each: usize, style: Style) {
    let mut random = Random::new(1);
    for (shape, word) in SHAPES.iter().enumerate().take(4) {
        std::fs::create_dir_all(folder.join(word)).unwrap();
        for i in 0..each {
            let picture = draw(shape, style, || random.uniform());
            let image: ImageBuffer<Rgb<u8>, _> =
                ImageBuffer::from_raw(picture.width as u32, picture.height as u32, picture.rgb).unwrap();
            image.save(folder.join(word).join(format!("{i}.png"))).unwrap();
        }
    }
}

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let mut sizes = config();
    sizes.vision.blocks.layers = 1;
    let model = ultta_gradient::Model::random("small", sizes, 1).unwrap();
    model.save(&place.path().join("model")).unwrap();
    pictures(&place.path().join("shifted"), 5, Style::Shifted);
    pictures(&place.path().join("source"), 3, Style::Source);
    place
}

#[test]
fn every_method_runs_on_a_folder_of_pictures_with_its_costs() {
    let place = place();
    std::fs::write(place.path().join("shifted/circle/broken.png"), "no picture").unwrap();
    std::fs::write(place.path().join("c.toml"), "[method.tpt]\nviews = 4\n[method.cotta]\nviews = 2\n")
        .unwrap();
    let methods = "zero-shot,ul-tta,tent,eata,sar,cotta,ttt,ttt++,tpt";
    let args = [
        "eval",
        "--images",
        "shifted",
        "--source",
        "source",
        "--model",
        "model",
        "--methods",
        methods,
        "--config",
        "c.toml",
        "--protocols",
        "iid+batch:8,sorted",
        "--json",
    ];
    let output = ultta(place.path(), &args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("broken.png"), "a picture that cannot be read is a warning: {said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = document["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 9 * 2);
    let frozen = runs[0]["zero_shot"]["top1"].clone();
    for run in runs {
        let name = run["method"].as_str().unwrap();
        assert_eq!(run["n"], 20, "{name}");
        assert_eq!(run["dataset"], "shifted");
        assert_eq!(run["zero_shot"]["top1"], frozen, "{name}: zero-shot is the same beside every method");
        let cost = &run["cost"];
        let learns = !matches!(name, "zero-shot" | "ul-tta");
        assert_eq!(cost["parameters"].as_u64().unwrap() > 0, learns, "{name}: {cost}");
        assert!(cost["flops"].as_f64().unwrap() > 0.0 && cost["forwards"].as_f64().unwrap() >= 1.0, "{name}");
    }
    let table = ultta(place.path(), &args[..args.len() - 1]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("cost per picture") && table.contains("| ttt++ |"), "{table}");
    let again = String::from_utf8_lossy(&ultta(place.path(), &args).stderr).into_owned();
    assert!(again.contains("18 of 18 runs were there already"), "{again}");
    let report = ultta(place.path(), &["report", "runs", "--md"]);
    assert!(String::from_utf8(report.stdout).unwrap().contains("tent"));
}

#[test]
fn on_features_they_say_what_they_need() {
    let place = place();
    let output = ultta(place.path(), &["eval", "--data", "nowhere", "--methods", "zero-shot,tent"]);
    assert_eq!(output.status.code(), Some(2));
    let output = ultta(
        place.path(),
        &["eval", "--images", "shifted", "--model", "model", "--methods", "zero-shot", "--out", "runs"],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = ultta(place.path(), &["eval", "--data", "runs/pictures", "--methods", "zero-shot,tent"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("needs pictures") && said.contains("--images"), "{said}");
    let run = ["run", "--features", "runs/pictures/shifted/features.safetensors", "--head"];
    let run = [&run[..], &["runs/pictures/shifted/head.safetensors", "--method", "tent"]].concat();
    let output = ultta(place.path(), &run);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs pictures"));
    let list = String::from_utf8(ultta(place.path(), &["methods"]).stdout).unwrap();
    for card in ultta_gradient::cards() {
        assert!(list.contains(card.name), "{list}");
    }
}
