//! Methods that need views of every sample: classify, predict, recovery, and answers while the disk refuses the log.

use std::fs;

use serde_json::{Value, json};
use ultta::{Features, Input};
use ultta_server::ServerConfig;

use crate::common::*;
use crate::durability::crash;

const VIEWS: usize = 4;

/// The methods of the registry that need views, as the command line writes them.
fn methods() -> Vec<String> {
    let cards = ultta::cards();
    cards.iter().filter(|card| card.needs_views).map(|card| card.name.replace('_', "-")).collect()
}

/// Rows, and four views of each: rows of the same stream.
fn rows_and_views(n: usize) -> (Features<'static>, Features<'static>) {
    let all = rows(n * (1 + VIEWS));
    (all.slice(0..n).into_owned(), all.slice(n..n * (1 + VIEWS)).into_owned())
}

fn body(features: &Features<'_>, views: &Features<'_>) -> Value {
    let of = |row: usize| (row * VIEWS..(row + 1) * VIEWS).map(|view| views.row(view)).collect::<Vec<_>>();
    let mut body = request(features);
    body["views"] = json!((0..features.rows()).map(of).collect::<Vec<_>>());
    body
}

fn input<'a>(features: &'a Features<'a>, views: &'a Features<'a>, counts: &'a [usize]) -> Input<'a> {
    Input { views: Some(views), view_counts: Some(counts), ..Input::new(features) }
}

#[test]
fn methods_that_need_views_classify_predict_and_recover() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(config(folder.path()));
    let (features, views) = rows_and_views(40);
    let counts = [VIEWS; 40];
    for method in &methods() {
        service.ensure(method, method);
        let mut session = session(method);
        let classify = format!("/v1/streams/{method}/classify");
        let (status, answer) = service.post(&classify, &body(&features, &views));
        assert_eq!(status, 200, "{method}: {answer}");
        assert_same(&answer, &session.step(input(&features, &views, &counts)).unwrap());
        let expected = session.predict(input(&features, &views, &counts)).unwrap();
        eventually("the prediction follows what was learnt", || {
            let predict = format!("/v1/streams/{method}/predict");
            let (status, answer) = service.post(&predict, &body(&features, &views));
            assert_eq!((status, &answer["learnt"]), (200, &json!(false)), "{method}: {answer}");
            if answer["as_of"] != 40 {
                return false;
            }
            assert_same(&answer, &expected);
            true
        });
        let (status, answer) = service.post(&classify, &request(&features));
        assert_eq!(status, 422, "{method}");
        assert!(
            answer["detail"]
                .as_str()
                .unwrap()
                .contains("needs views of every sample, got none; send them as `views`"),
            "{answer}"
        );
        let left = crash(folder.path());
        let after = Service::start(config(left.path()));
        assert_eq!(after.state(method), session.state().to_bytes().unwrap(), "{method}");
        after.stop();
    }
    service.stop();
}

#[test]
fn a_file_may_hold_views() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "zero");
    let (features, views) = rows_and_views(10);
    let bytes =
        |rows: &Features<'_>| -> Vec<u8> { rows.data().iter().flat_map(|v| v.to_le_bytes()).collect() };
    let (rows, flat) = (bytes(&features), bytes(&views));
    let tensor = |shape: &[usize], data| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap()
    };
    let file = |shape: &[usize]| {
        let tensors = [("features", tensor(&[10, DIM], &rows)), ("views", tensor(shape, &flat))];
        safetensors::serialize(tensors, None).unwrap()
    };
    let send = |body: &[u8]| service.send("/v1/streams/default/classify", "application/octet-stream", body);
    let (status, answer) = send(&file(&[10, VIEWS, DIM]));
    assert_eq!(status, 200, "{answer}");
    assert_same(&answer, &session("zero").step(input(&features, &views, &[VIEWS; 10])).unwrap());
    for shape in [&[VIEWS, 10, DIM][..], &[10 * VIEWS, DIM]] {
        let (status, answer) = send(&file(shape));
        assert_eq!(status, 400, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("views: expected shape"), "{answer}");
    }
    service.stop();
}

/// The stream's folder vanishes, as if its disk were taken away, and comes back.
#[test]
fn while_nothing_can_be_kept_samples_with_views_are_answered() {
    for method in &methods() {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::start(ServerConfig { compact_bytes: 1 << 16, ..config(folder.path()) });
        service.ensure("default", method);
        let (features, views) = rows_and_views(20);
        let counts = [VIEWS; 20];
        let mut session = session(method);
        let stream = folder.path().join("streams/default");
        let aside = folder.path().join("aside");
        eventually("no base is being written", || fs::rename(&stream, &aside).is_ok());
        let ask = || service.post("/v1/streams/default/classify", &body(&features, &views));
        let expected = loop {
            let (status, answer) = ask();
            assert_eq!(status, 200, "{method}: {answer}");
            if answer["learnt"] == json!(false) {
                break answer;
            }
            session.step(input(&features, &views, &counts)).unwrap();
            assert!(session.next_id() < 1000, "{method}: the missing folder was not noticed");
        };
        assert_same(&expected, &session.predict(input(&features, &views, &counts)).unwrap());
        assert_eq!(service.get("/healthz").1["status"], "degraded");
        fs::rename(&aside, &stream).unwrap();
        eventually("it learns again", || service.get("/healthz").1["status"] == "ok");
        assert_eq!(ask().1["learnt"], true);
        session.step(input(&features, &views, &counts)).unwrap();
        assert_eq!(service.state("default"), session.state().to_bytes().unwrap(), "{method}");
        service.stop();
    }
}

/// The scores of a row's views are held at once, so their number is bounded, in bodies of every kind and for every method.
#[test]
fn a_row_has_few_views() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (one, many) = (rows(1), rows(257));
    let list = |n: usize| (0..n).map(|view| many.row(view)).collect::<Vec<_>>();
    let bytes =
        |rows: &Features<'_>| -> Vec<u8> { rows.data().iter().flat_map(|v| v.to_le_bytes()).collect() };
    for (n, expected) in [(256, 200), (257, 413)] {
        let mut body = request(&one);
        body["views"] = json!([list(n)]);
        let (status, answer) = service.post("/v1/streams/default/predict", &body);
        assert_eq!(status, expected, "{n} views: {answer}");
        let (features, views) = (bytes(&one), bytes(&many.slice(0..n)));
        let tensor = |shape: &[usize], data| {
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap()
        };
        let tensors = [("features", tensor(&[1, DIM], &features)), ("views", tensor(&[1, n, DIM], &views))];
        let file = safetensors::serialize(tensors, None).unwrap();
        let (status, answer) = service.send("/v1/streams/default/predict", "application/octet-stream", &file);
        assert_eq!(status, expected, "{n} views in a file: {answer}");
        assert!(
            status == 200 || answer["detail"].as_str().unwrap().contains("256 views, got 257"),
            "{answer}"
        );
    }
    let line = json!({"features": one.row(0), "views": list(257)}).to_string();
    let lines = [("content-type", "application/x-ndjson")];
    let (status, answer, _) = service.send_raw("/v1/streams/default/predict", &lines, line.as_bytes());
    let answer = String::from_utf8(answer).unwrap();
    assert!(status == 200 && answer.contains("256 views, got 257"), "{answer}");
    service.stop();
}
