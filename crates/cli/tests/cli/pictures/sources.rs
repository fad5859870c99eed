//! Where pictures come from: lists, tables, archives, globs, layouts of datasets.

use std::io::Write;
use std::process::Stdio;

use ultta::Head;

use super::{MODEL, Outcome, Place, draw};

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
    let before = Head::load(&head).unwrap().digest().to_owned();
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
