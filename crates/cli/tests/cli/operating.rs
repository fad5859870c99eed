//! `ultta explain`, `ultta suggest` and `ultta correct`.

use serde_json::Value;

use crate::support::{Folder, ultta};

#[test]
fn an_explanation_adds_up_in_json_and_reads_as_a_table() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state.safetensors"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let features = folder.arg("features.safetensors");
    let explain = |more: &[&str]| ultta(&[&["explain", "--head", &head, "--state", &state], more].concat());
    let row = ["--features", &features, "--row", "7"];
    let told = explain(&[&row[..], &["--json"]].concat()).success().json();
    assert_eq!(told["levers"][0], "text");
    for class in told["classes"].as_array().unwrap() {
        let sum: f64 = class["nats"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum();
        assert!((sum - class["logit"].as_f64().unwrap()).abs() < 1e-4, "{class}");
    }
    assert_eq!(told["similar"].as_array().unwrap().len(), 5);
    let text = explain(&row).success().stdout;
    assert!(text.contains("zero-shot says") && text.contains("= logit"), "{text}");
    assert!(text.contains("most similar earlier scenes"), "{text}");
    explain(&["--id", "299"]).success();
    explain(&["--id", "100000"]).failure(2, &["100000"]);
    explain(&["--features", &features, "--row", "300"]).failure(2, &["300 rows"]);
    explain(&[]).failure(2, &["--row"]);
}

#[test]
fn suggestions_come_from_a_run_and_from_a_state() {
    let folder = Folder::new();
    folder.run(&["--out", "%/a.jsonl", "--save-state", "%/state.safetensors", "--shuffle", "1"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let (answers, features) = (folder.arg("a.jsonl"), folder.arg("features.safetensors"));
    let of_run = ["suggest", "--answers", &answers, "--features", &features, "--k", "5"];
    let of_state = ["suggest", "--state", &state, "--head", &head, "--k", "5"];
    for arguments in [of_run, of_state] {
        let told = ultta(&[&arguments[..], &["--json"]].concat()).success().stdout;
        let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5);
        let uses: Vec<f64> = lines.iter().map(|line| line["expected_use"].as_f64().unwrap()).collect();
        assert!(uses.is_sorted_by(|a, b| a >= b) && uses[0] > 0.0, "{uses:?}");
        assert_eq!(ultta(&arguments).success().stdout.lines().count(), 6);
    }
    folder.write("bad.jsonl", "{\"id\": 1}\n");
    ultta(&["suggest", "--answers", &folder.arg("bad.jsonl"), "--features", &features])
        .failure(2, &["line 1", "--out"]);
    ultta(&["suggest"]).failure(2, &["--answers"]);
}

#[test]
fn a_label_for_a_saved_state_counts_and_can_be_taken_back() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state.safetensors", "--shuffle", "1"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let of_state = ["--head", &head, "--state", &state];
    let correct = |more: &[&str]| ultta(&[&["correct"][..], &of_state, more].concat());
    let explain =
        || ultta(&[&["explain"][..], &of_state, &["--id", "299", "--json"]].concat()).success().json();
    let before = explain();
    let wanted = (before["row"]["label"].as_u64().unwrap() + 1) % 4;
    let as_it_was = folder.bytes("state.safetensors");

    let told =
        correct(&[&format!("299={wanted}"), "--json", "--out", &folder.arg("other.safetensors")]).success();
    assert_eq!(told.json()["corrections"][0]["label"], wanted);
    assert_eq!(folder.bytes("state.safetensors"), as_it_was, "--out leaves the state alone");
    correct(&[&format!("299={wanted}")]).success();
    let after = explain();
    assert_eq!(after["corrected"], wanted, "{after}");
    // One label need not outweigh a head that is sure, but it counts.
    let of_wanted = |told: &Value| {
        let classes = told["classes"].as_array().unwrap();
        classes.iter().find(|class| class["label"] == wanted).unwrap()["logit"].as_f64().unwrap()
    };
    assert!(of_wanted(&after) > of_wanted(&before) + 1.0, "{before} {after}");
    assert!(after["levers"].as_array().unwrap().contains(&"labels".into()), "{after}");

    correct(&["--withdraw", "299"]).success();
    let back = explain();
    assert!(back["corrected"].is_null());
    let logit = |told: &Value| told["classes"][0]["logit"].as_f64().unwrap();
    assert!((logit(&back) - logit(&before)).abs() < 1e-4, "{before} {back}");

    let as_it_is = folder.bytes("state.safetensors");
    correct(&["--withdraw", "299"]).failure(2, &["no label"]);
    correct(&["298=1", "299=nobody"]).failure(2, &["nobody"]);
    correct(&["298"]).failure(2, &["ID=LABEL"]);
    correct(&["298=99"]).failure(2, &["99"]);
    correct(&["100000=1"]).failure(2, &["100000"]);
    correct(&[]).failure(2, &["--withdraw"]);
    assert_eq!(folder.bytes("state.safetensors"), as_it_is, "what is refused changes nothing");
}
