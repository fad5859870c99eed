use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Session, State};

use crate::common::*;

#[test]
fn streams_are_created_listed_frozen_reset_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/v1/streams").1["streams"], json!([]));
    let small = json!({"prototypes": [[1, 0], [0, 1]], "classes": ["a", "b"], "logit_scale": 10});
    let create = |body: Value| service.post("/v1/streams", &body);
    let (status, made) = create(json!({"name": "cam", "head": small, "settings": {"gate.keep": 0.5}}));
    assert_eq!((status, &made["method"]), (201, &json!("ul-tta")), "{made}");
    assert!(service.get("/v1/streams/cam").1["config"].as_str().unwrap().contains("keep = 0.5"));
    assert_eq!(create(json!({"name": "cam", "head": small})).0, 409);
    assert_eq!(create(json!({"name": "../x", "head": small})).0, 422);
    assert_eq!(create(json!({"name": "x", "head": small, "method": "ul-ta"})).0, 422);
    assert_eq!(create(json!({"name": "x", "head": small, "head_of": "cam"})).0, 422);
    assert_eq!(create(json!({"name": "x", "typo": 1, "head": small})).0, 422);
    assert_eq!(
        create(json!({"name": "x", "head": {"prototypes": [[1, 0]], "classes": ["a"], "logit_scale": 1}})).0,
        422
    );
    assert_eq!(create(json!({"name": "zs", "head_of": "cam", "method": "zero-shot"})).0, 201);
    assert_eq!(service.get("/v1/streams").1["streams"].as_array().unwrap().len(), 2);

    let row = json!({"features": [[0.6, 0.8]]});
    let (_, frozen) = service.post("/v1/streams/cam/freeze", &json!({}));
    assert_eq!(frozen["status"]["learning"], false);
    let (_, answer) = service.post("/v1/streams/cam/classify", &row);
    assert_eq!((&answer["learnt"], &answer["rows"][0]["admitted"]), (&json!(false), &json!(false)));
    assert_eq!(answer["rows"][0]["id"], 0, "it is logged all the same");
    assert_eq!(service.post("/v1/streams/cam/unfreeze", &json!({})).1["status"]["learning"], true);
    let (_, reset) = service.post("/v1/streams/cam/reset", &json!({}));
    assert_eq!((&reset["status"]["generation"], &reset["status"]["health"]["seen"]), (&json!(1), &json!(0)));
    let (_, answer) = service.post("/v1/streams/cam/classify", &row);
    assert_eq!((&answer["rows"][0]["id"], &answer["generation"]), (&json!(0), &json!(1)));
    let (_, history) = service.get("/v1/streams/cam/history");
    let kinds: Vec<&str> =
        history["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["created", "frozen", "unfrozen", "reset"]);
    assert_eq!(service.delete("/v1/streams/cam"), 204);
    assert_eq!(service.get("/v1/streams/cam").0, 404);
    assert!(!folder.path().join("streams/cam").exists());
    service.stop();
}

#[test]
fn a_snapshot_is_returned_to_bit_for_bit_and_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(900), session("ul-tta"));
    service.classify(&features.slice(0..400));
    session.step(&features.slice(0..400)).unwrap();
    let kept = session.state().to_bytes().unwrap();
    let snapshots = "/v1/streams/default/snapshots";
    assert_eq!(service.post(snapshots, &json!({"label": "good"})).0, 201);
    assert_eq!(service.post(snapshots, &json!({})).1["label"], "seen-400");
    assert_eq!(service.post(snapshots, &json!({"label": "a/b"})).0, 422);
    service.classify(&features.slice(400..600));
    let rollback = |label: &str| service.post("/v1/streams/default/rollback", &json!({"label": label}));
    assert_eq!(rollback("none").0, 404);
    assert_eq!(rollback("../good").0, 404);
    assert_eq!(rollback("good").1["status"]["generation"], 1);
    assert_eq!(service.state("default"), kept);
    // it goes on from there, also after a restart
    service.classify(&features.slice(600..700));
    session.step(&features.slice(600..700)).unwrap();
    service.stop();
    let service = Service::with_default(folder.path(), "ul-tta");
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    assert_eq!(service.get("/v1/streams/default").1["status"]["generation"], 1);
    assert_eq!(service.delete(&format!("{snapshots}/good")), 204);
    assert_eq!(service.delete(&format!("{snapshots}/good")), 404);
    service.stop();
}

#[test]
fn a_shadow_sees_the_same_rows_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, labels) = simulator().next_block(700);
    let mut main = session("ul-tta");
    service.classify(&features.slice(0..200));
    main.step(&features.slice(0..200)).unwrap();
    let clone = |body: Value| service.post("/v1/streams/default/clone", &body);
    // the same settings: the state comes along; others: from the start
    assert_eq!(clone(json!({"name": "twin", "shadow": true})).0, 201);
    assert_eq!(clone(json!({"name": "paper", "shadow": true, "preset": "paper"})).0, 201);
    assert_eq!(clone(json!({"name": "apart"})).0, 201);
    for start in (200..700).step_by(50) {
        service.classify(&features.slice(start..start + 50));
    }
    main.step(&features.slice(200..700)).unwrap();
    let mut paper = session("ul-tta:paper");
    paper.step(&features.slice(200..700)).unwrap();
    let label = labels[690] as usize;
    service.post("/v1/streams/default/feedback", &json!({"labels": [{"id": 690, "label": label}]}));
    main.feedback(690, label).unwrap();
    paper.feedback(490, label).unwrap();
    let seen =
        |name: &str| service.get(&format!("/v1/streams/{name}")).1["status"]["health"]["seen"].as_u64();
    eventually("the shadows have caught up", || seen("twin") == Some(700) && seen("paper") == Some(500));
    eventually("the label has arrived", || service.state("twin") == main.state().to_bytes().unwrap());
    assert_eq!(service.state("default"), main.state().to_bytes().unwrap());
    assert_eq!(service.state("paper"), paper.state().to_bytes().unwrap());
    assert_eq!(seen("apart"), Some(200));
    service.post("/v1/streams/default/freeze", &json!({}));
    assert_eq!(clone(json!({"name": "frozen"})).1["status"]["learning"], false);
    let (_, twin) = service.get("/v1/streams/twin");
    assert_eq!((&twin["status"]["shadow_agreement"], &twin["shadow_of"]), (&json!(1.0), &json!("default")));
    service.stop();
}

#[test]
fn states_of_two_servers_merge_by_the_merge_law() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) =
        (Service::with_default(here.path(), "ul-tta"), Service::with_default(there.path(), "ul-tta"));
    let features = rows(1200);
    a.classify(&features.slice(0..500));
    b.classify(&features.slice(500..1200));
    let (ours, theirs) = (a.state("default"), b.state("default"));
    let (status, merged) = a.send("/v1/streams/default/merge", "application/octet-stream", &theirs);
    assert_eq!(status, 200, "{merged}");
    let law = State::from_bytes(&ours).unwrap().merge(&State::from_bytes(&theirs).unwrap()).unwrap();
    let mut expected = Session::new(head(), &ultta::Config::default()).unwrap();
    expected.load(&law).unwrap();
    assert_eq!(a.state("default"), expected.state().to_bytes().unwrap());
    // the other way round gives the same evidence
    b.send("/v1/streams/default/merge", "application/octet-stream", &ours);
    let evidence = |bytes: &[u8]| State::from_bytes(bytes).unwrap().under("evidence.");
    let (one, other) = (evidence(&a.state("default")), evidence(&b.state("default")));
    assert_eq!(one.get::<u64>("seen").unwrap(), other.get::<u64>("seen").unwrap());
    assert_eq!(a.post("/v1/streams/default/merge", &json!({"stream": "default"})).0, 409, "itself");
    // on one server by name; another configuration is refused
    a.ensure("second", "ul-tta");
    assert_eq!(a.post("/v1/streams/second/merge", &json!({"stream": "default"})).0, 200);
    a.ensure("paper", "ul-tta:paper");
    assert_eq!(a.post("/v1/streams/default/merge", &json!({"stream": "paper"})).0, 409);
    assert_eq!(a.send("/v1/streams/default/merge", "application/octet-stream", b"nonsense").0, 422);
    // it survives a restart
    let state = a.state("default");
    a.stop();
    let a = Service::with_default(here.path(), "ul-tta");
    assert_eq!(a.state("default"), state);
    a.stop();
    b.stop();
}

/// The page's own function, by Node where there is one.
#[test]
fn numbers_on_the_page_keep_their_zeros() {
    let page = include_str!("../../src/pages/dashboard.html");
    let start = page.find("const number = ").unwrap();
    let function = &page[start..start + page[start..].find(";\n").unwrap() + 1];
    let script = format!(
        "{function} console.log([250.3, 99.97, 0.5, 100, 1234.5, 1e6, 0.0001234, -20.04, NaN].map(v => number(v)).join(' '))"
    );
    let Ok(output) = std::process::Command::new("node").args(["-e", &script]).output() else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim(), "250 100 0.5 100 1235 1,000,000 0.000123 -20 –");
}

#[test]
fn the_board_tells_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(1500);
    for start in (0..1500).step_by(100) {
        service.classify(&features.slice(start..start + 100));
        std::thread::sleep(std::time::Duration::from_millis(90));
    }
    eventually("classes are published", || service.get("/v1/streams/default/classes").1["as_of"] == 1500);
    let (_, classes) = service.get("/v1/streams/default/classes");
    let list = classes["classes"].as_array().unwrap();
    assert_eq!(list.len(), CLASSES);
    let sum = |key: &str| list.iter().map(|c| c[key].as_f64().unwrap()).sum::<f64>();
    assert!((sum("recent") - 1.0).abs() < 1e-9 && (sum("prior") - 1.0).abs() < 1e-6, "{classes}");
    // As a session tells it that has seen the same rows.
    let mut session = session("ul-tta");
    session.step(&features).unwrap();
    for (told, drift) in list.iter().zip(session.per_class()) {
        let told = |key: &str| told[key].as_f64().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        assert!(
            close(told("evidence"), drift.evidence) && close(told("movement"), drift.movement),
            "{drift:?}"
        );
    }
    assert!(sum("evidence") > 100.0);
    let (_, history) = service.get("/v1/streams/default/history");
    let points = history["points"].as_array().unwrap();
    assert!(!points.is_empty());
    assert!(
        points[0]["agreement"].as_f64().unwrap() > 0.3 && points[0]["latency_p99_ms"].as_f64().unwrap() > 0.0
    );
    let (status, text) = service.get_bytes("/metrics");
    let text = String::from_utf8(text).unwrap();
    assert_eq!(status, 200);
    for line in [
        "ultta_requests_total{route=\"/v1/streams/{stream}/classify\",status=\"200\"} 15",
        "ultta_rows_total{stream=\"default\"} 1500",
        "ultta_seen{stream=\"default\"} 1500",
        "ultta_queue_depth{stream=\"default\"} 0",
        "ultta_degraded{stream=\"default\"} 0",
        "ultta_stage_seconds_count{stage=\"step\",stream=\"default\"}",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(service.get("/v1/methods").1["methods"].as_array().unwrap().len() > 5);
    assert_eq!(service.get("/v1/config").1["durability"], "interval");
    for page in ["/", "/docs", "/openapi.json"] {
        assert_eq!(service.get_bytes(page).0, 200, "{page}");
    }
    service.stop();
}

/// Ids of the source count within its generation, and the shadow has samples of its own in between.
#[test]
fn a_label_reaches_the_sample_that_the_shadow_was_shown() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(60);
    assert_eq!(service.post("/v1/streams/default/clone", &json!({"name": "shadow", "shadow": true})).0, 201);
    let mut shadow = session("ul-tta");
    let seen = |n: u64| {
        eventually("the shadow has caught up", || {
            service.get("/v1/streams/shadow").1["status"]["health"]["seen"] == n
        });
    };
    service.classify(&features.slice(0..10));
    shadow.step(&features.slice(0..10)).unwrap();
    seen(10);
    service.post("/v1/streams/default/reset", &json!({}));
    let own = service.post("/v1/streams/shadow/classify", &request(&features.slice(10..30)));
    assert_eq!(own.0, 200);
    shadow.step(&features.slice(10..30)).unwrap();
    service.classify(&features.slice(30..35));
    shadow.step(&features.slice(30..35)).unwrap();
    seen(35);
    let feedback = json!({"labels": [{"id": 2, "label": 3}], "generation": 1});
    assert_eq!(service.post("/v1/streams/default/feedback", &feedback).0, 200);
    shadow.feedback(32, 3).unwrap();
    eventually("the label has arrived", || service.state("shadow") == shadow.state().to_bytes().unwrap());
    service.stop();
}

/// A label of a new generation, whose id is below those that the shadow was last shown, reaches no sample and harms nothing.
#[test]
fn a_label_for_a_sample_that_the_shadow_was_not_shown_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    assert_eq!(service.post("/v1/streams/default/clone", &json!({"name": "shadow", "shadow": true})).0, 201);
    let features = rows(30);
    service.classify(&features.slice(0..10));
    service.classify(&features.slice(10..20));
    service.post("/v1/streams/default/reset", &json!({}));
    let feedback = json!({"labels": [{"id": 0, "label": 3}], "generation": 1});
    assert_eq!(service.post("/v1/streams/default/feedback", &feedback).0, 200);
    service.classify(&features.slice(20..30));
    eventually("the shadow goes on", || {
        service.get("/v1/streams/shadow").1["status"]["health"]["seen"] == 30
    });
    assert_eq!(service.get("/healthz").1["status"], "ok");
    service.stop();
}

#[test]
fn a_shadow_does_not_follow_another_stream_of_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.post("/v1/streams/default/clone", &json!({"name": "shadow", "shadow": true}));
    assert_eq!(service.get("/v1/streams/default").1["shadows"], json!(["shadow"]));
    assert_eq!(service.delete("/v1/streams/default"), 204);
    service.ensure("default", "ul-tta");
    service.stop();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/v1/streams/default").1["shadows"], json!([]));
    service.stop();
}

#[test]
fn neither_samples_nor_labels_teach_a_frozen_stream() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(300);
    service.classify(&features);
    service.post("/v1/streams/default/freeze", &json!({}));
    let answers = || service.classify(&features.slice(0..5))["rows"].clone();
    let probs = |answers: Value| -> Vec<Value> {
        answers.as_array().unwrap().iter().map(|a| a["prob"].clone()).collect()
    };
    let before = probs(answers());
    let labels: Vec<Value> = (100..300).map(|id| json!({"id": id, "label": id % 3})).collect();
    let (status, outcome) = service.post("/v1/streams/default/feedback", &json!({"labels": labels}));
    assert_eq!(status, 200);
    assert_eq!(outcome["outcomes"][0]["outcome"], "unused", "{outcome}");
    assert_eq!(probs(answers()), before);
    service.stop();
}

/// A wrong stamp does not outlive a reset.
#[test]
fn time_starts_again_with_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(config(folder.path()));
    let settings = json!({"advanced.update_seconds": 1.0, "advanced.update_every": 100_000});
    let head = json!({"name": "timed", "settings": settings, "head": head_body()});
    let (status, made) = service.post("/v1/streams", &head);
    assert_eq!(status, 201, "{made}");
    let features = rows(400);
    let post = |rows: std::ops::Range<usize>, time: f64| {
        let mut body = request(&features.slice(rows.clone()));
        body["times"] = json!(vec![time; rows.len()]);
        assert_eq!(service.post("/v1/streams/timed/classify", &body).0, 200);
    };
    post(0..1, 1.8e12);
    service.post("/v1/streams/timed/reset", &json!({}));
    for second in 0..4 {
        post(second * 100..(second + 1) * 100, 1.8e9 + 2.0 * second as f64);
    }
    let (_, stream) = service.get("/v1/streams/timed");
    let moved = stream["status"]["health"]["movement_max"].as_f64().unwrap();
    assert!(moved > 0.0, "{stream}");
    service.stop();
}

#[test]
fn a_label_counts_once_for_the_calibration() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&rows(20));
    let body = json!({"labels": [{"id": 3, "label": 1}, {"id": 3, "label": 1}, {"id": 900, "label": 1}]});
    for _ in 0..2 {
        assert_eq!(service.post("/v1/streams/default/feedback", &body).0, 200);
    }
    let (_, stream) = service.get("/v1/streams/default");
    assert_eq!(stream["reliability"]["labels"], 1, "{}", stream["reliability"]);
    service.stop();
}

fn head_body() -> Value {
    let head = head();
    let rows: Vec<&[f32]> = (0..head.n_classes()).map(|c| head.prototype(c)).collect();
    json!({"prototypes": rows, "classes": head.classes(), "logit_scale": head.logit_scale()})
}

/// Requests that were being scored when the stream ended are told so at once.
#[test]
fn deleting_a_stream_ends_large_requests() {
    let folder = tempfile::tempdir().unwrap();
    let mut simulator =
        Simulator::new(&SimulatorConfig { classes: 400, dim: 256, ..Default::default() }).unwrap();
    let service = Service::start(config(folder.path()));
    service.ensure_with("big", "ul-tta", simulator.head().clone());
    let body = safetensors(&simulator.next_block(2000).0);
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12)
            .map(|_| {
                scope.spawn(|| service.send("/v1/streams/big/classify", "application/octet-stream", &body).0)
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(service.delete("/v1/streams/big"), 204);
        for status in asked.into_iter().map(|a| a.join().unwrap()) {
            assert!([200, 404, 503].contains(&status), "{status}");
        }
    });
    assert!(started.elapsed().as_secs() < 25);
    service.stop();
}
