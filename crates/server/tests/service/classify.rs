use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Features, Session};

use crate::common::*;
use crate::durability::crash;

#[test]
fn json_binary_and_lines_give_the_answers_of_a_session_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(600), session("ul-tta"));
    let mut at = 0;
    let mut next = |n: usize| {
        at += n;
        features.slice(at - n..at).into_owned()
    };
    // one by one, in blocks of several kinds: grouping does not matter
    for n in [1, 1, 3, 64] {
        let block = next(n);
        let answer = service.classify(&block);
        let step = session.step(&block).unwrap();
        assert_same(&answer, &step);
        assert_eq!(answer["rows"][0]["id"].as_u64(), Some(step.rows[0].id));
        assert_eq!(
            (answer["learnt"].as_bool(), answer["as_of"].as_u64()),
            (Some(true), Some(session.next_id()))
        );
    }
    for body in [npy as fn(&Features<'_>) -> Vec<u8>, safetensors] {
        let block = next(100);
        let (status, answer) =
            service.send("/v1/streams/default/classify", "application/octet-stream", &body(&block));
        assert_eq!(status, 200, "{answer}");
        assert_same(&answer, &session.step(&block).unwrap());
    }
    let block = next(150);
    let lines: String =
        (0..150).map(|r| format!("{}\n", serde_json::to_string(block.row(r)).unwrap())).collect();
    let (status, bytes, _) = service.send_raw(
        "/v1/streams/default/classify",
        &[("content-type", "application/x-ndjson")],
        lines.as_bytes(),
    );
    assert_eq!(status, 200);
    let answers: Vec<Value> = bytes
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_same(&json!({"rows": answers}), &session.step(&block).unwrap());
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    service.stop();
}

/// Requests large enough to be scored before they queue give the bits of those that the owner scores, and the log
/// replays them.
#[test]
fn large_requests_among_small_ones_give_the_answers_of_a_session_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let mut simulator =
        Simulator::new(&SimulatorConfig { classes: 400, dim: 256, ..Default::default() }).unwrap();
    let head = simulator.head().clone();
    let service = Service::start(config(folder.path()));
    service.ensure_with("default", "ul-tta", head.clone());
    let mut session = Session::new(head, &Config::named("ul-tta").unwrap()).unwrap();
    for n in [3, 200, 1, 300, 170, 40] {
        let block = simulator.next_block(n).0;
        let path = "/v1/streams/default/classify";
        let (status, answer) = service.send(path, "application/octet-stream", &safetensors(&block));
        assert_eq!(status, 200, "{answer}");
        assert_same(&answer, &session.step(&block).unwrap());
    }
    let state = session.state().to_bytes().unwrap();
    assert!(service.state("default") == state);
    // rows of another dimension are refused, and nothing changes
    let bad = Features::normalized(vec![1.0; 200 * 255], 255).unwrap();
    let (status, _) =
        service.send("/v1/streams/default/classify", "application/octet-stream", &safetensors(&bad));
    assert_eq!(status, 422);
    assert!(service.state("default") == state);
    let copy = crash(folder.path());
    service.stop();
    let service = Service::start(config(copy.path()));
    assert!(service.state("default") == state);
    service.stop();
}

#[test]
fn lines_are_answered_while_they_are_still_being_sent() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(3);
    let mut socket = TcpStream::connect(service.address).unwrap();
    let head = "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap()).lines();
    let mut chunk = |text: &str| write!(socket, "{:x}\r\n{text}\r\n", text.len()).unwrap();
    let mut answer = || loop {
        let line = answers.next().unwrap().unwrap();
        if line.starts_with('{') {
            return serde_json::from_str::<Value>(&line).unwrap();
        }
    };
    let row = |r: usize| serde_json::to_string(features.row(r)).unwrap();
    chunk(&format!("{}\n", row(0)));
    assert_eq!(answer()["id"], 0);
    // a line in two pieces, and one that is no row
    let text = format!("{{\"id\": \"x\", \"features\": {}}}\nnonsense\n", row(1));
    chunk(&text[..20]);
    chunk(&text[20..]);
    let named = answer();
    assert_eq!((&named["id"], &named["ref"]), (&json!(1), &json!("x")));
    let refused = answer();
    assert_eq!(refused["line"], 3);
    assert!(refused["error"].as_str().unwrap().contains("expected an array"));
    chunk(&row(2));
    chunk("");
    assert_eq!(answer()["id"], 2);
    service.stop();
}

#[test]
fn top_probs_refs_and_learn_marks_are_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let block = rows(2);
    let mut body = request(&block);
    body["top"] = 3.into();
    body["probs"] = true.into();
    body["prob_pred"] = true.into();
    body["refs"] = json!(["a", 7]);
    body["learn"] = json!([false, true]);
    let (status, answer) = service.post("/v1/streams/default/classify", &body);
    assert_eq!(status, 200, "{answer}");
    let row = &answer["rows"][0];
    assert_eq!((&row["ref"], &answer["rows"][1]["ref"]), (&json!("a"), &json!(7)));
    assert_eq!(row["top"].as_array().unwrap().len(), 3);
    assert_eq!(row["top"][0]["label"], row["label"]);
    let probs: Vec<f64> = row["probs"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
    assert_eq!(probs.len(), CLASSES);
    assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-4);
    let mut session = session("ul-tta");
    let learn = [false, true];
    let step = session.step(ultta::Input { learn: Some(&learn), ..ultta::Input::new(&block) }).unwrap();
    let told = |row: &Value| row["prob_pred"].as_f64().map(|p| p as f32);
    assert_eq!(
        (told(row), told(&answer["rows"][1])),
        (Some(step.rows[0].prob_pred), Some(step.rows[1].prob_pred))
    );
    let (_, plain) = service.post("/v1/streams/default/predict", &request(&block));
    assert_eq!(plain["rows"][0].get("prob_pred"), None, "only for those who ask");
    let (_, asked) = service.post("/v1/streams/default/predict?prob_pred=true", &request(&block));
    assert!(told(&asked["rows"][0]).is_some());
    service.stop();
}

#[test]
fn predictions_change_nothing_and_follow_what_was_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(700), session("ul-tta"));
    service.classify(&features.slice(0..600));
    session.step(&features.slice(0..600)).unwrap();
    let before = service.state("default");
    let ask = || service.post("/v1/streams/default/predict", &request(&features.slice(600..700))).1;
    eventually("the published state is the latest", || ask()["as_of"] == 600);
    let answer = ask();
    assert_same(&answer, &session.predict(&features.slice(600..700)).unwrap());
    assert_eq!((&answer["learnt"], &answer["rows"][0]["id"]), (&json!(false), &Value::Null));
    assert_eq!(service.state("default"), before);
    service.stop();
}

#[test]
fn labels_reach_the_session_and_tell_calibration() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, labels) = simulator().next_block(200);
    let mut session = session("ul-tta");
    service.classify(&features);
    session.step(&features).unwrap();
    let mut sent = Vec::new();
    for (id, label) in labels.iter().enumerate().take(50) {
        session.feedback(id as u64, *label as usize).unwrap();
        sent.push(match id % 2 {
            0 => json!({"id": id, "label": label}),
            _ => json!({"id": id, "class": head().classes()[*label as usize]}),
        });
    }
    let (status, answer) =
        service.post("/v1/streams/default/feedback", &json!({"labels": sent, "generation": 0}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["outcomes"][0]["outcome"], "taken");
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    let (_, stream) = service.get("/v1/streams/default");
    assert_eq!(stream["reliability"]["labels"], 50);
    assert!(stream["reliability_zero_shot"]["top1"].as_f64().unwrap() > 0.2);
    let ask = |body: Value| service.post("/v1/streams/default/feedback", &body);
    let (_, unknown) = ask(json!({"labels": [{"id": 5000, "label": 0}]}));
    assert_eq!(unknown["outcomes"][0]["outcome"], "refused");
    assert_eq!(ask(json!({"labels": [{"id": 0, "label": 0}], "generation": 3})).0, 409);
    assert_eq!(ask(json!({"labels": [{"id": 0}]})).0, 422);
    assert_eq!(ask(json!({"labels": [{"id": 0, "class": "no such class"}]})).0, 422);
    service.stop();
}

#[test]
fn garbage_is_told_by_rows_health_and_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    // The third picture is the opposite of the second one.
    let pictures = rows(3);
    let mut data = pictures.data().to_vec();
    for i in 0..DIM {
        data[2 * DIM + i] = -data[DIM + i];
    }
    let answer = service.classify(&ultta::Features::new(data.clone(), DIM).unwrap());
    let told: Vec<&Value> = answer["rows"].as_array().unwrap().iter().map(|row| &row["garbage"]).collect();
    assert_eq!(told, [false, false, true]);
    eventually("the published health counts it", || {
        service.get("/v1/streams/default").1["status"]["health"]["garbage"] == 1
    });
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    assert!(metrics.contains("ultta_garbage{stream=\"default\"} 1"), "{metrics}");
    let text = json!({"inputs": [{"name": "features", "shape": [1, DIM], "datatype": "FP32", "data": &data[2 * DIM..]}],
        "outputs": [{"name": "garbage"}]});
    let (status, answer) = service.post("/v2/models/default/infer", &text);
    assert_eq!(
        (status, &answer["outputs"][0]["data"]),
        (200, &json!([true])),
        "a copy of garbage is garbage: {answer}"
    );
    service.stop();
}

#[test]
fn the_open_inference_protocol_answers_with_text_and_with_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(8), session("ul-tta"));
    let (status, model) = service.get("/v2/models/default");
    assert_eq!((status, &model["inputs"][0]["shape"][1]), (200, &json!(DIM)));
    assert_eq!(service.get("/v2/health/ready").0, 200);
    assert_eq!(service.get("/v2/models/none").0, 404);
    let block = features.slice(0..4);
    let step = session.step(&block).unwrap();
    let text = json!({"id": "x", "inputs": [{"name": "features", "shape": [4, DIM], "datatype": "FP32", "data": block.data()}]});
    let version = "/v2/models/default/versions";
    assert_eq!(service.get(&format!("{version}/1")).1, model);
    assert_eq!(service.get(&format!("{version}/1/ready")).1["ready"], true);
    assert_eq!(service.get(&format!("{version}/2")).0, 404);
    assert_eq!(service.post(&format!("{version}/2/infer"), &text).0, 404);
    let (status, answer) = service.post(&format!("{version}/1/infer"), &text);
    assert_eq!((status, &answer["id"]), (200, &json!("x")), "{answer}");
    let labels: Vec<u64> =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    assert_eq!(labels, step.rows.iter().map(|r| r.label as u64).collect::<Vec<_>>());

    let block = features.slice(4..8);
    let step = session.step(&block).unwrap();
    let data: Vec<u8> = block.data().iter().flat_map(|v| v.to_le_bytes()).collect();
    let text = json!({
        "inputs": [{"name": "features", "shape": [4, DIM], "datatype": "FP32", "parameters": {"binary_data_size": data.len()}}],
        "outputs": [{"name": "prob", "parameters": {"binary_data": true}}, {"name": "class"}, {"name": "prob_pred"}],
    });
    let mut body = serde_json::to_vec(&text).unwrap();
    let length = body.len().to_string();
    body.extend(data);
    let headers =
        [("inference-header-content-length", length.as_str()), ("content-type", "application/octet-stream")];
    let (status, bytes, headers) = service.send_raw("/v2/models/default/infer", &headers, &body);
    assert_eq!(status, 200);
    let length: usize = headers["inference-header-content-length"].to_str().unwrap().parse().unwrap();
    let probs: Vec<f32> = bytes[length..].as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(probs, step.rows.iter().map(|r| r.prob).collect::<Vec<_>>());
    let names: Value = serde_json::from_slice(&bytes[..length]).unwrap();
    assert_eq!(names["outputs"][1]["data"].as_array().unwrap().len(), 4);
    let behind: Vec<f32> =
        names["outputs"][2]["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(behind, step.rows.iter().map(|r| r.prob_pred).collect::<Vec<_>>());
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    service.stop();
}
