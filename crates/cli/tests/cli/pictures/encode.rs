//! `ultta encode`: killed and resumed, beside files of others, with pictures that cannot be read.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ultta::{FeatureFile, Head};

use super::{Place, draw, tree};

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
