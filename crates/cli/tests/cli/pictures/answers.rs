//! `ultta classify`: answers, states, watched folders.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{Place, draw, tree};

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

/// A name is one thing on one line, whatever characters it has.
#[test]
fn control_characters_in_names_are_escaped_for_people() {
    let place = Place::new();
    draw(&place.path("photos/a\nwarning: b\u{1b}[2J.png"), 1);
    std::fs::write(place.path("photos/broken\r\n.png"), b"").unwrap();
    let people = place.run(&["classify", "photos", "--labels", "cat,dog,fox"]).success();
    assert_eq!(people.stdout.lines().count(), 1, "{:?}", people.stdout);
    assert!(people.stdout.contains(r"a\nwarning: b\u{1b}[2J.png: "), "{:?}", people.stdout);
    assert!(people.stderr.contains(r"broken\r\n.png"), "{:?}", people.stderr);
    assert!(!(people.stdout + &people.stderr).contains(['\r', '\u{1b}']));
    let strict = place.run(&["classify", "photos/broken\r\n.png", "--labels", "cat,dog,fox", "--strict"]);
    assert_eq!((strict.code, strict.stderr.trim_end().lines().count()), (2, 1), "{:?}", strict.stderr);
    let missing = place.run(&["inspect", "no\nsuch.safetensors"]);
    assert!(missing.code == 2 && missing.stderr.contains(r"no\nsuch.safetensors"), "{:?}", missing.stderr);
    let doctor = place.run(&["doctor", "photos"]);
    assert!(doctor.stdout.contains(r"broken\r\n.png"), "{:?}", doctor.stdout);
    assert!(!doctor.stdout.contains(['\r', '\u{1b}']), "{:?}", doctor.stdout);
    // Names of classes come from files, too.
    let labels = "cat,dog\nWRONG\u{1b}[2J";
    let classes = place.run(&["classify", "photos", "--labels", labels, "--top", "2"]).success();
    assert!(classes.stdout.contains(r"dog\nWRONG\u{1b}[2J"), "{:?}", classes.stdout);
    place.run(&["head", "--labels", labels, "--out", "h.safetensors"]).success();
    let head = place.run(&["inspect", "h.safetensors"]).success();
    assert!(head.stdout.contains(r"names: cat, dog\nWRONG\u{1b}[2J"), "{:?}", head.stdout);
    for text in [classes.stdout, classes.stderr, head.stdout] {
        assert!(!text.contains("\nWRONG") && !text.contains('\u{1b}'), "{text:?}");
    }
    let json = place.run(&["classify", "photos", "--labels", "cat,dog,fox", "--json"]).success();
    assert!(
        json.lines().iter().any(|line| line["id"].as_str().unwrap().contains('\n')),
        "data stays as it is"
    );
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

/// Updates by time go by the clock at which pictures arrive.
#[test]
fn updates_by_time_come_without_times_being_given() {
    let place = Place::new();
    for i in 0..60 {
        draw(&place.path(&format!("a/{i:03}.png")), i);
    }
    let since_the_last_update = |seconds: &str| {
        let seconds = format!("advanced.update_seconds={seconds}");
        let rarely = ["--set", "advanced.update_every=1000000", "--set", &seconds];
        let args =
            ["classify", "a", "--labels", "cat,dog,fox", "--batch", "4", "--save-state", "s.safetensors"];
        place.run(&[&args[..], &rarely].concat()).success();
        ultta::State::load(place.path("s.safetensors")).unwrap().get::<u64>("local.since").unwrap()[0]
    };
    let (by_count, by_time) = (since_the_last_update("0"), since_the_last_update("0.000001"));
    assert!(by_count >= 20, "none by count: {by_count}");
    assert!(by_time <= 8, "one with every batch: {by_time}");
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
