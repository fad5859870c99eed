//! `ultta suite` on pictures, and views beside features: small trees of all layouts, a small random model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use image::{ImageBuffer, Rgb};
use serde_json::Value;
use ultta_encode::tiny::config;
use ultta_encode::tiny::shapes::{SHAPES, Style, draw};
use ultta_eval::random::Random;

fn command(place: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    command.env("XDG_CACHE_HOME", place.join("cache")).env("HF_HUB_OFFLINE", "1");
    command.args(args).current_dir(place);
    command
}

fn ok(place: &Path, args: &[&str]) -> Output {
    let output = command(place, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Draws some pictures into a folder.
fn draw_into(folder: PathBuf, shape: usize, n: usize, random: &mut Random) {
    std::fs::create_dir_all(&folder).unwrap();
    for i in 0..n {
        let picture = draw(shape % SHAPES.len(), Style::Shifted, || random.uniform());
        let (width, height) = (picture.width as u32, picture.height as u32);
        let image: ImageBuffer<Rgb<u8>, _> = ImageBuffer::from_raw(width, height, picture.rgb).unwrap();
        image.save(folder.join(format!("{i}.png"))).unwrap();
    }
}

fn model(place: &Path) {
    model_named(place, "model", 1);
}

fn model_named(place: &Path, name: &str, seed: u64) {
    let mut sizes = config();
    sizes.vision.blocks.layers = 1;
    ultta_gradient::Model::random("small", sizes, seed).unwrap().save(&place.join(name)).unwrap();
}

/// The eight layouts of the paper's datasets, under folder names as people have them.
fn trees(place: &Path) {
    let mut random = Random::new(3);
    let domains: [(&str, &[&str], &[&str]); 4] = [
        ("PACS", &["art_painting", "cartoon", "photo", "sketch"], &["dog", "house"]),
        ("office_home", &["Art", "Clipart", "Product", "Real World"], &["Bed", "Chair"]),
        (
            "domain_net",
            &["clipart", "infograph", "painting", "quickdraw", "real", "sketch"],
            &["bear", "bus", "cat"],
        ),
        ("terra_incognita", &["location_100", "location_38", "location_43", "location_46"], &["bird", "cat"]),
    ];
    for (set, domains, classes) in domains {
        for domain in domains {
            for (shape, class) in classes.iter().enumerate() {
                draw_into(place.join("root").join(set).join(domain).join(class), shape, 3, &mut random);
            }
        }
    }
    let flat: [(&str, &[&str]); 4] = [
        ("imagenetv2-matched-frequency-format-val", &["0", "1", "10"]),
        ("imagenet-r", &["n01443537", "n01484850"]),
        ("imagenet-a", &["n01498041", "n01531178"]),
        ("ImageNet-Sketch", &["n01440764", "n01443537"]),
    ];
    for (set, classes) in flat {
        for (shape, class) in classes.iter().enumerate() {
            draw_into(place.join("root").join(set).join(class), shape, 3, &mut random);
        }
    }
}

fn files_named(folder: &Path, name: &str) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|n| n == name) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_papers_tables_from_pictures_killed_and_resumed() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    model(place);
    trees(place);
    let suite = |out: &'static str| {
        ["suite", "paper", "--images", "root", "--model", "model", "--long", "120", "--out", out]
    };
    let stamps = |name: &str| -> Vec<(PathBuf, std::time::SystemTime)> {
        let time = |p: PathBuf| (p.clone(), p.metadata().unwrap().modified().unwrap());
        files_named(&place.join("runs"), name).into_iter().map(time).collect()
    };
    // Killed twice: once the first pack is there, while the others are being encoded; and once the first run is there.
    // Everything is encoded by then, some runs are made.
    let killed_with_the_first = |name: &str| {
        let mut child =
            command(place, &suite("runs")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while files_named(&place.join("runs"), name).is_empty() && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(600), "no {name} in ten minutes");
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        stamps("features.safetensors")
    };
    let packs = 4 + 4 + 6 + 4 + 4;
    // A machine that stalled this test meanwhile has encoded them all: once more from the start.
    let begun = std::iter::repeat_with(|| {
        let _ = std::fs::remove_dir_all(place.join("runs"));
        killed_with_the_first("features.safetensors")
    });
    let begun =
        begun.take(5).find(|begun| begun.len() < packs).expect("killed while packs are being encoded");
    let encoded = killed_with_the_first("done");
    assert!(begun.iter().all(|pack| encoded.contains(pack)), "no pack is encoded twice");
    let made = stamps("done");
    assert_eq!(encoded.len(), packs, "a pack per domain");
    let output = ok(place, &suite("runs"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("0 to encode") && said.contains("in all about"), "{said}");
    assert!(said.contains("tent:") && said.contains("cotta:"), "the time of both is estimated: {said}");
    assert_eq!(stamps("features.safetensors"), encoded, "nothing is encoded twice");
    let after = stamps("done");
    assert!(made.iter().all(|run| after.contains(run)), "nothing is run twice");
    assert!(made.len() < after.len(), "killed while runs are being made");
    let tables = String::from_utf8(output.stdout).unwrap();
    assert!(!tables.contains("absent") && !tables.contains("needs pictures"), "{tables}");
    assert!(tables.contains("| without guards |"), "{tables}");
    // Methods that change the encoder have figures of their own everywhere, not a word why there are none.
    let section = |title: &str| tables.split(title).nth(1).unwrap().split("\n**").next().unwrap();
    let ours = |title: &str, row: &str| -> String {
        let line = section(title).lines().find(|line| line.starts_with(&format!("| {row} |")));
        line.unwrap_or_else(|| panic!("{title}, {row}: {tables}")).split('|').nth(3).unwrap().trim().into()
    };
    let is_a_figure = |cell: &str| {
        let numbers: Vec<Option<f64>> = cell.split(" / ").map(|part| part.parse().ok()).collect();
        matches!(numbers[..], [Some(top1), Some(_)] if (0.0..=100.0).contains(&top1))
    };
    let rows = ultta_eval::suite::DATASETS.map(|set| ("**Per dataset**", format!("{} · Tent", set.name)));
    for (title, row) in rows.into_iter().chain(["Tent", "CoTTA"].map(|row| ("**DomainNet**", row.into()))) {
        assert!(is_a_figure(&ours(title, &row)), "{title}, {row}: {tables}");
    }
    let value = ours("**Stability over 120 samples**", "CoTTA");
    assert!(value.starts_with("yes, ") || value.starts_with("no, "), "{tables}");
    assert!(tables.contains("54 in 6 packs"), "{tables}");
    let written = std::fs::read_to_string(place.join("runs/tables.md")).unwrap();
    assert_eq!(written, tables);
    let report = std::fs::read_to_string(place.join("runs/report.html")).unwrap();
    assert!(report.contains("Summary") && report.contains("Means over 1 seed,"), "one seed, the times aside");
    // The same as without a kill, but for what is measured in time.
    let figures = |tables: &str| {
        let (before, rest) = tables.split_once("**Efficiency**").unwrap();
        format!("{before}{}", rest.split_once("**Stability").unwrap().1)
    };
    let whole = String::from_utf8(ok(place, &suite("fresh")).stdout).unwrap();
    assert_eq!(figures(&whole), figures(&tables));
}

#[test]
fn a_quick_look_takes_some_pictures_and_absent_data_say_how_to_get_them() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    model(place);
    let mut random = Random::new(3);
    for domain in ["art_painting", "photo"] {
        for (shape, class) in ["dog", "house"].iter().enumerate() {
            draw_into(place.join("root/pacs").join(domain).join(class), shape, 4, &mut random);
        }
    }
    let args = [
        "suite",
        "paper",
        "datasets",
        "per-dataset",
        "--images",
        "root",
        "--model",
        "model",
        "--sample",
        "4",
    ];
    let tables = String::from_utf8(ok(place, &args).stdout).unwrap();
    assert!(tables.contains("8 in 2 packs"), "{tables}");
    assert!(
        tables.contains("absent: get DomainBed's download script") && tables.contains("root/office-home")
    );
    let estimate = command(place, &[&args[..], &["--estimate"]].concat()).output().unwrap();
    assert!(estimate.status.success() && estimate.stdout.is_empty());
    // The whole afterwards, under the same --out: neither is in the way of the other, nor in its report.
    let whole = String::from_utf8(ok(place, &args[..args.len() - 2]).stdout).unwrap();
    assert!(whole.contains("16 in 2 packs"), "{whole}");
    let again = String::from_utf8(ok(place, &args).stdout).unwrap();
    assert_eq!(again, tables, "the sample's runs are still there");
    for folder in ["suite-paper", "suite-paper-sample-4"] {
        let report = std::fs::read_to_string(place.join("runs").join(folder).join("report.html")).unwrap();
        assert!(report.contains("Means over 1 seed,"), "{folder}");
    }
}

#[test]
fn the_batteries_run_from_coop_layouts() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    model(place);
    let mut random = Random::new(3);
    for (shape, class) in ["banded", "dotted"].iter().enumerate() {
        draw_into(place.join("root/dtd/images").join(class), shape, 3, &mut random);
    }
    let entry =
        |class: &str, label: usize, i: usize| serde_json::json!([format!("{class}/{i}.png"), label, class]);
    let test: Vec<Value> = (0..3).flat_map(|i| [entry("dotted", 1, i), entry("banded", 0, i)]).collect();
    let split = serde_json::json!({ "train": [], "val": [], "test": test });
    std::fs::write(place.join("root/dtd/split_zhou_DescribableTextures.json"), split.to_string()).unwrap();
    // One of ImageNet's shifts as CoOp has it, and a folder without its split: a warning, and the others run.
    for (shape, id) in ["n01498041", "n01531178"].iter().enumerate() {
        draw_into(place.join("root/imagenet-adversarial/imagenet-a").join(id), shape, 3, &mut random);
    }
    std::fs::create_dir_all(place.join("root/food-101/images")).unwrap();
    let args = ["suite", "tta-vlm", "--images", "root", "--model", "model", "--methods", "zero-shot,tda"];
    let output = ok(place, &args);
    let tables = String::from_utf8(output.stdout).unwrap();
    assert!(tables.contains("| dtd | 6, 2 |") && tables.contains("/ 47.4 |"), "{tables}");
    assert!(
        tables.contains("| food101 | absent: expected in root/food101")
            && tables.contains("ImageNet and its shifts")
            && tables.contains("| imagenet-a | 6, 200 |"),
        "{tables}"
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("expected 1692 (CoOp's test split") && said.contains("expected 47 classes"),
        "{said}"
    );
    assert!(said.contains("food101 is taken as absent: opening:"), "{said}");
    let head = files_named(&place.join("runs"), "head.safetensors").remove(0);
    let about = String::from_utf8(ok(place, &["inspect", head.to_str().unwrap()]).stdout).unwrap();
    assert!(about.contains("banded"), "{about}");
    let kept = |name: &str| std::fs::read_to_string(place.join("runs/suite-tta-vlm").join(name)).unwrap();
    assert_eq!(kept("tables.md"), tables);
    assert!(kept("report.html").contains("Summary"));
    // Another model under the same --out runs, too, and the first one's runs stay.
    model_named(place, "other", 2);
    let of = |model: &str| {
        let args = ["suite", "tta-vlm", "cross-domain", "--images", "root", "--methods", "zero-shot,tda"];
        String::from_utf8(ok(place, &[&args[..], &["--model", model]].concat()).stdout).unwrap()
    };
    let (other, first) = (of("other"), of("model"));
    assert!(other.contains("| dtd | 6, 2 | other |") && tables.starts_with(&first), "{other} {first}");
    // With views the methods that need them run, beside their published figures.
    let views = ["suite", "tta-vlm", "imagenet", "--images", "root", "--model", "model", "--views", "3"];
    let output = ok(place, &views);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("6 to encode with 3 views at"), "{said}");
    let tables = String::from_utf8(output.stdout).unwrap();
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().into()).collect() };
    let of = |row: &str| cells(tables.lines().find(|line| line.starts_with(row)).unwrap());
    let (header, row) = (of("| dataset |"), of("| imagenet-a |"));
    let cell = |method: &str| &row[header.iter().position(|name| name == method).unwrap()];
    assert!(
        cell("boost-adapter").ends_with(" / 64.5") && !cell("boost-adapter").starts_with('–'),
        "{tables}"
    );
    assert!(!cell("zero").starts_with('–') && place.join("runs/suite-tta-vlm-views-3/tables.md").is_file());
    let packs = String::from_utf8(ok(place, &["suite", "tta-vlm", "imagenet"]).stdout).unwrap();
    assert!(packs.contains("absent: `ultta encode --dataset imagenet-r --root DIR --out data`"), "{packs}");
    assert_eq!(command(place, &["suite", "tta-vlm", "imagnet"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn views_are_written_read_and_made() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    model(place);
    let mut random = Random::new(3);
    for (shape, word) in SHAPES.iter().enumerate().take(3) {
        draw_into(place.join("photos").join(word), shape, 4, &mut random);
    }
    std::fs::write(place.join("photos").join(SHAPES[0]).join("broken.png"), "no picture").unwrap();
    let encode = ["encode", "photos", "--model", "model", "--views", "3", "--out"];
    ok(place, &[&encode[..], &["f.safetensors"]].concat());
    ok(place, &[&encode[..], &["g.safetensors", "--save-every", "5"]].concat());
    let bytes = |name: &str| std::fs::read(place.join(name)).unwrap();
    assert!(bytes("f.safetensors") == bytes("g.safetensors"), "parts do not change the views");
    let (f, plain) = (place.join("f.safetensors"), place.join("plain.safetensors"));
    let views = |path: &Path| ultta_eval::pack::Pack::open(path, None).unwrap().file().views_each();
    ok(place, &["encode", "photos", "--model", "model", "--out", "plain.safetensors"]);
    assert_eq!((views(&f), views(&plain)), (3, 0));
    // On pictures `eval` makes the same views, and methods that need them run.
    let eval = [
        "eval",
        "--images",
        "photos",
        "--model",
        "model",
        "--methods",
        "zero-shot,zero,boost-adapter,tda",
        "--json",
    ];
    let output = ok(place, &[&eval[..], &["--views", "3", "--out", "with"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["runs"].as_array().unwrap().len(), 4, "{document}");
    let forwards = |document: &Value, method: &str| {
        let runs = document["runs"].as_array().unwrap();
        runs.iter().find(|r| r["method"] == method).unwrap()["cost"]["forwards"].as_f64().unwrap()
    };
    assert_eq!(forwards(&document, "zero-shot"), 1.0);
    assert_eq!(forwards(&document, "zero"), 4.0, "the picture and its views");
    assert_eq!(forwards(&document, "tda"), 4.0, "it reads them where there are any");
    let output = ok(place, &[&eval[..], &["--out", "without"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["skipped"].as_array().unwrap().len(), 2, "{document}");
    assert_eq!(forwards(&document, "tda"), 1.0);
    // `run` reads them from the file.
    let head = "with/pictures/photos/head.safetensors";
    let run = |features: &str| {
        command(place, &["run", "--features", features, "--head", head, "--method", "zero"]).output().unwrap()
    };
    assert!(run("with/pictures/photos/features.safetensors").status.success());
    assert!(!run("plain.safetensors").status.success(), "without views it cannot run");
}
