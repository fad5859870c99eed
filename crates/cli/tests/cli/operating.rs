//! `ultta explain`, `ultta suggest` and `ultta correct`.

use serde_json::Value;

use crate::support::{CLASSES, Folder, ultta};

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
    // Names and numbers of classes, as everywhere.
    for field in ["label", "prob", "zero_shot_label", "zero_shot_prob", "temperature"] {
        assert!(told[field].is_number(), "{field}: {told}");
    }
    for field in ["class", "zero_shot_class", "standing"] {
        assert!(told[field].is_string(), "{field}: {told}");
    }
    assert!(told.get("row").is_none() && told["similar"][0]["class"].is_string(), "{told}");
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
fn an_answer_leads_to_the_sample_that_is_corrected() {
    let folder = Folder::new();
    folder.run(&["--out", "%/a.jsonl", "--save-state", "%/state.safetensors", "--shuffle", "1"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let (answers, features) = (folder.arg("a.jsonl"), folder.arg("features.safetensors"));
    let lines =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let answered = lines(&folder.read("a.jsonl"));
    let by_sample = |sample: &Value| answered.iter().find(|line| line["sample"] == *sample).unwrap();
    assert!(answered.iter().any(|line| line["sample"] != line["id"]), "the order is another than the file's");
    // What the state keeps of a sample is what its answer said.
    let kept = ["suggest", "--state", &state, "--head", &head, "--k", "1000", "--json"];
    let kept = lines(&ultta(&kept).success().stdout);
    assert!(kept.len() > 20, "{}", kept.len());
    for scene in &kept {
        let line = by_sample(&scene["sample"]);
        assert_eq!((&scene["label"], &scene["class"]), (&line["label"], &line["class"]), "{scene} {line}");
        assert!(scene["row"].is_null());
    }
    // From a run's answers to a label and to an explanation, by the sample that both name.
    let suggested = ["suggest", "--answers", &answers, "--features", &features, "--k", "3", "--json"];
    let suggested = lines(&ultta(&suggested).success().stdout);
    let of_state = ["--head", &head, "--state", &state];
    for told in &suggested {
        let line = by_sample(&told["sample"]);
        assert_eq!((&told["row"], &told["class"]), (&line["id"], &line["class"]));
        let sample = told["sample"].to_string();
        let explain =
            || ultta(&[&["explain"][..], &of_state, &["--id", &sample, "--json"]].concat()).success().json();
        let row = ["--features", &features, "--row", &told["row"].to_string(), "--json"];
        let of_row = ultta(&[&["explain"][..], &of_state, &row].concat()).success().json();
        let text = |told: &Value| {
            let classes = told["classes"].as_array().unwrap();
            classes.iter().find(|class| class["label"] == line["label"]).unwrap()["nats"][0].as_f64().unwrap()
        };
        // Features are kept in 8 bits.
        assert!((text(&explain()) - text(&of_row)).abs() < 0.5, "{told}");
        ultta(&[&["correct"][..], &of_state, &[&format!("{sample}=horse")]].concat()).success();
        assert_eq!(explain()["corrected"], "horse");
    }
    let table = ultta(&["suggest", "--answers", &answers, "--features", &features]).success().stdout;
    assert!(table.starts_with("       row      sample     use"), "{table}");
    for command in ["correct", "explain"] {
        assert!(ultta(&[command, "--help"]).success().stdout.contains("`sample`"), "{command}");
    }
}

#[test]
fn a_state_with_anchors_is_operated_with_them() {
    let folder = Folder::new();
    let features = folder.arg("features.safetensors");
    let with = ["--anchors", &format!("{features}:0.5"), "--logit-scale", "25"];
    folder.run(&[&with[..], &["--save-state", "%/state.safetensors"]].concat()).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let layer = folder.arg("layer.npz");
    let commands: [&[&str]; 4] = [
        &["explain", "--id", "299"],
        &["suggest", "--k", "3"],
        &["correct", "299=1"],
        &["export", "--out", &layer],
    ];
    for command in commands {
        let all = [command, &["--head", &head, "--state", &state]].concat();
        ultta(&all).failure(2, &["--anchors"]);
        ultta(&[&all[..], &with].concat()).success();
    }
    let out = ["correct", "299=1", "--head", &head, "--state", &state, "--out", &features];
    ultta(&[&out[..], &with].concat()).failure(2, &["is an input"]);
}

#[test]
fn what_a_method_does_not_keep_is_said() {
    let folder = Folder::new();
    folder.run(&["--method", "zero-shot", "--save-state", "%/state.safetensors"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let of_state = ["--head", &head, "--state", &state];
    let told = ultta(&[&["explain"][..], &of_state, &["--id", "5"]].concat())
        .failure(2, &["sample 5", "keeps no samples", "--features and --row"]);
    assert!(!told.stderr.contains("feedback") && !told.stderr.contains("correctable"), "{told:?}");
    ultta(&[&["correct"][..], &of_state, &["5=1"]].concat()).failure(2, &["zero-shot", "no use for labels"]);
    let empty = ultta(&[&["suggest"][..], &of_state].concat()).success();
    assert!(empty.stderr.contains("nothing to suggest: ") && empty.stderr.contains("zero-shot"), "{empty:?}");
    assert_eq!(empty.stdout.lines().count(), 1);
    folder.write("none.jsonl", "");
    let (none, features) = (folder.arg("none.jsonl"), folder.arg("features.safetensors"));
    let empty = ultta(&["suggest", "--answers", &none, "--features", &features, "--json"]).success();
    assert!(empty.stderr.contains("holds no answers") && empty.stdout.is_empty(), "{empty:?}");
    assert_eq!(ultta(&[&["suggest"][..], &of_state, &["--k", "0"]].concat()).code, 2);

    // The default keeps samples, but not this one.
    folder.run(&["--save-state", "%/state.safetensors"]).success();
    let forgotten = ultta(&[&["explain"][..], &of_state, &["--id", "100000"]].concat())
        .failure(2, &["advanced.correctable", "--features and --row"]);
    assert!(!forgotten.stderr.contains("feedback"), "{forgotten:?}");
}

#[test]
fn a_state_that_the_guard_holds_at_zero_shot_says_so() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state.safetensors"]).success();
    let path = folder.path("state.safetensors");
    let mut state = ultta::State::load(&path).unwrap();
    state.put("guard.standing", &[2u64, 0, 2]);
    state.save(&path).unwrap();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let layer = folder.arg("layer.npz");
    let commands: [&[&str]; 2] = [&["explain", "--id", "299"], &["export", "--out", &layer]];
    for command in commands {
        let told = ultta(&[command, &["--head", &head, "--state", &state, "--json"]].concat()).success();
        assert!(told.stderr.contains("fallen back to zero-shot"), "{told:?}");
        assert_eq!(told.json()["standing"], "zero_shot", "{told:?}");
    }
}

#[test]
fn names_for_ids_are_no_rows() {
    let folder = Folder::new();
    folder.write(
        "a.jsonl",
        "{\"id\":\"clip.mp4@0.200\",\"label\":0,\"class\":\"cat\",\"prob\":0.5,\"begins_scene\":true}\n",
    );
    let (answers, features) = (folder.arg("a.jsonl"), folder.arg("features.safetensors"));
    ultta(&["suggest", "--answers", &answers, "--features", &features])
        .failure(2, &["clip.mp4@0.200", "no row of"]);
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
    let wanted = (before["label"].as_u64().unwrap() + 1) % 4;
    let as_it_was = folder.bytes("state.safetensors");

    let told =
        correct(&[&format!("299={wanted}"), "--json", "--out", &folder.arg("other.safetensors")]).success();
    assert_eq!(told.json()["corrections"][0]["label"], wanted);
    assert_eq!(folder.bytes("state.safetensors"), as_it_was, "--out leaves the state alone");
    correct(&[&format!("299={wanted}")]).success();
    let after = explain();
    assert_eq!(after["corrected"], CLASSES[wanted as usize], "{after}");
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
