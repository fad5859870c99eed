//! What an operator does: see why, correct, label what helps, take the head along.

use serde_json::{Value, json};

use crate::common::*;

/// A stream that has seen rows, and one of them that is no near-copy of another.
fn taught(folder: &std::path::Path) -> (Service, Vec<f32>, u64) {
    let service = Service::with_default(folder, "ul-tta");
    let features = rows(400);
    service.classify(&features.slice(0..399));
    let answer = service.post("/v1/streams/default/classify", &json!({"features": [features.row(399)]})).1;
    (service, features.row(399).to_vec(), answer["rows"][0]["id"].as_u64().unwrap())
}

/// An explanation that was given.
fn explained(service: &Service, body: &Value) -> Value {
    let (status, told) = service.post("/v1/streams/default/explain", body);
    assert_eq!(status, 200, "{told}");
    told
}

#[test]
fn an_explanation_adds_up_and_a_correction_counts_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (service, row, id) = taught(folder.path());
    let body = json!({"features": row, "best": 12});
    let told = explained(&service, &body);
    for class in told["classes"].as_array().unwrap() {
        let sum: f64 = class["nats"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum();
        assert!((sum - class["logit"].as_f64().unwrap()).abs() < 1e-4, "{class}");
    }
    let label = told["classes"][1]["label"].as_u64().unwrap() as usize;
    let correct = |body: Value| service.post("/v1/streams/default/correct", &body);
    let (status, given) = correct(json!({"labels": [{"id": id, "label": label}]}));
    assert_eq!((status, &given["outcomes"][0]["outcome"]), (200, &json!("taken")), "{given}");
    assert_eq!(given["corrections"], 1);
    let after = explained(&service, &body);
    assert_eq!((&after["label"], &after["flipped_by"]), (&json!(label), &json!("labels")), "{after}");
    assert_eq!(explained(&service, &json!({"id": id}))["label"], label);

    // Taken back, and refused where nothing can be meant.
    assert_eq!(correct(json!({"labels": [{"id": id, "withdraw": true}]})).1["corrections"], 0);
    assert_eq!(explained(&service, &body)["label"], told["label"]);
    let refused = correct(json!({"labels": [{"id": 1u64 << 40, "label": 0}, {"id": id, "label": 99}]})).1;
    assert_eq!(refused["outcomes"][0]["outcome"], "refused");
    assert_eq!(refused["outcomes"][1]["outcome"], "refused");
    assert_eq!(correct(json!({"labels": [{"id": id, "label": 0, "withdraw": true}]})).0, 422);
    assert_eq!(correct(json!({"labels": [{"id": id, "class": "no such"}]})).0, 422);
    assert_eq!(service.post("/v1/streams/default/explain", &json!({})).0, 422);
    assert_eq!(service.post("/v1/streams/default/explain", &json!({"id": 1u64 << 40})).0, 404);
    assert_eq!(service.post("/v1/streams/default/explain", &json!({"features": [1.0]})).0, 422);
    let events = service.get("/v1/streams/default/history").1;
    assert!(events["events"].as_array().unwrap().iter().any(|event| event["kind"] == "corrected"));
    service.stop();
}

#[test]
fn an_explanation_is_what_the_library_tells() {
    let folder = tempfile::tempdir().unwrap();
    let (service, row, id) = taught(folder.path());
    let labels = json!({"labels": [{"id": id, "label": 3}]});
    assert_eq!(service.post("/v1/streams/default/correct", &labels).0, 200);
    let by_row = explained(&service, &json!({"features": row, "best": 3}));
    let by_id = explained(&service, &json!({"id": id}));
    let state = ultta::State::from_bytes(&service.get_bytes("/v1/streams/default/state").1).unwrap();
    service.stop();
    let session = ultta::Session::resume(head(), &state).unwrap();
    let features = ultta::Features::new(row, DIM).unwrap();
    let named = |explained: ultta::Explanation| -> Value {
        let text = serde_json::to_string(&explained.named(session.head())).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    for (mut told, expected) in [
        (by_row, named(session.explain(&features, 3).unwrap())),
        (by_id, named(session.explain_sample(id, 5).unwrap())),
    ] {
        for own in ["stream", "generation", "as_of"] {
            assert!(told.as_object_mut().unwrap().remove(own).is_some());
        }
        assert_eq!(told, expected);
        assert_eq!(told["standing"], "healthy");
    }
}

#[test]
fn a_label_that_is_not_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (service, row, id) = taught(folder.path());
    let give = |stream: &str, label: Value| {
        let told = service.post(&format!("/v1/streams/{stream}/correct"), &json!({"labels": [label]})).1;
        let outcome = &told["outcomes"][0];
        (outcome["outcome"].as_str().unwrap().to_string(), outcome["reason"].as_str().map(String::from))
    };
    let unused = |why: &str| ("unused".to_string(), Some(why.to_string()));
    let withdraw = json!({"id": id, "withdraw": true});
    assert_eq!(give("default", withdraw.clone()), unused("there was no label"));
    assert_eq!(give("default", json!({"id": id, "label": 1})).0, "taken");
    // A frozen stream takes no labels in, but gives them back.
    assert_eq!(service.post("/v1/streams/default/freeze", &json!({})).0, 200);
    assert_eq!(
        give("default", json!({"id": id, "label": 2})),
        unused("learning is stopped; send it again once the stream learns")
    );
    assert_eq!(give("default", withdraw), ("taken".to_string(), None));
    service.ensure("frozen", "zero-shot");
    let answer = service.post("/v1/streams/frozen/classify", &json!({"features": [row]})).1;
    let label = json!({"id": answer["rows"][0]["id"], "label": 1});
    assert_eq!(give("frozen", label), unused("the method has no use for labels"));
    service.stop();
}

#[test]
fn corrections_are_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (service, _, id) = taught(folder.path());
    let labels = json!({"labels": [{"id": id, "label": 3}, {"id": id - 7, "label": 5}, {"id": id - 7, "withdraw": true}]});
    assert_eq!(service.post("/v1/streams/default/correct", &labels).1["corrections"], 1);
    let before = service.get_bytes("/v1/streams/default/state").1;
    // A copy of the folder, as a crash would leave it: the log alone knows of the labels.
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), copy.path());
    service.stop();
    let again = Service::start(config(copy.path()));
    assert_eq!(again.get_bytes("/v1/streams/default/state").1, before);
    again.stop();
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn suggestions_and_the_layer_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let (service, ..) = taught(folder.path());
    let (status, told) = service.get("/v1/streams/default/suggest?k=7");
    assert_eq!((status, told["suggestions"].as_array().unwrap().len()), (200, 7), "{told}");
    assert!(told["suggestions"][0]["expected_use"].as_f64().unwrap() > 0.0);
    for (format, begins) in [("onnx", &b"\x08\x08"[..]), ("npz", b"PK"), ("safetensors", b"")] {
        let (status, bytes) = service.get_bytes(&format!("/v1/streams/default/layer?format={format}"));
        assert!(status == 200 && bytes.len() > CLASSES * DIM * 4 && bytes.starts_with(begins), "{format}");
    }
    assert_eq!(service.get("/v1/streams/default/layer?format=pt").0, 422);
    let page = include_str!("../../src/pages/dashboard.html");
    let button = |ending: &&str| page.contains(&format!("<button data-format=\"{ending}\">"));
    assert!(ultta::LAYER_ENDINGS.iter().all(button), "the page exports, too");
    let sent = service.agent.get(service.url("/v1/streams/default/layer?format=npz")).call().unwrap();
    assert_eq!(sent.headers()["content-disposition"], "attachment; filename=\"default.npz\"");
    service.ensure("tda", "tda");
    assert_eq!(service.get("/v1/streams/tda/layer").0, 422);
    assert_eq!(service.get("/v1/streams/tda/suggest").1["suggestions"], json!([]));
    service.stop();
}
