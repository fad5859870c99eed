//! Clients and disks that mean harm: one request, one stream or one file never hurts another.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::common::*;

/// A head whose logit scale would overflow what is learnt is refused by the service, and found on a disk it damages
/// its own stream only.
#[test]
fn a_head_with_an_impossible_logit_scale_is_refused_and_never_takes_the_server_down() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let rows = [[1.0, 0.0], [0.0, 1.0]];
    for scale in [1e13, 0.0, -1.0, 1e-13] {
        let head = json!({"prototypes": rows, "classes": ["a", "b"], "logit_scale": scale});
        let (status, problem) = service.post("/v1/streams", &json!({"name": "other", "head": head}));
        assert_eq!(status, 422, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("logit scale"), "{problem}");
    }
    service.ensure("other", "ul-tta");
    service.stop();
    // The same scale, written into the file by someone else.
    let path = folder.path().join("streams/other/head.safetensors");
    let bytes = fs::read(&path).unwrap();
    let text = b"\"logit_scale\":\"100\"";
    let at = bytes.windows(text.len()).position(|w| w == text).expect("the scale in the header");
    let mut wrong = bytes.clone();
    wrong[at..at + text.len()].copy_from_slice(b"\"logit_scale\":\"9e9\"");
    fs::write(&path, wrong).unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&crate::common::rows(10));
    let (_, health) = service.get("/healthz");
    assert!(health["degraded"]["other"].as_str().unwrap().contains("logit scale"), "{health}");
    service.stop();
}

/// Numbers are read as numbers: the first thing that is none ends reading, whatever follows.
#[test]
fn the_open_inference_protocol_reads_numbers_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let infer = |data: &str| {
        let input =
            format!(r#"{{"name": "features", "shape": [1, {DIM}], "datatype": "FP32", "data": {data}}}"#);
        let body = format!(r#"{{"parameters": {{"learn": false}}, "inputs": [{input}]}}"#);
        service.send("/v2/models/default/infer", "application/json", body.as_bytes())
    };
    let objects = format!("[{}", r#"{"":0},"#.repeat(500_000));
    let (status, problem) = infer(&objects);
    assert_eq!(status, 422, "{problem}");
    assert!(problem["error"].as_str().unwrap().contains("expected numbers"), "{problem}");
    let (status, problem) = infer(&format!("[{}0]", "0,".repeat(DIM)));
    assert_eq!(status, 422, "{problem}");
    assert!(
        problem["error"].as_str().unwrap().contains("values in features: expected 16, got 17"),
        "{problem}"
    );
    let unit = format!("[[1{}]]", ",0".repeat(DIM - 1));
    assert_eq!(infer(&unit).0, 200);
    // The other lists of a body that a reader may send are bounded, too.
    let many = format!(r#"{{"features": [], "views": [{}[]]}}"#, "[],".repeat(1 << 20));
    let (status, problem) = service.send("/v1/streams/default/predict", "application/json", many.as_bytes());
    assert_eq!(status, 422, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("a list may have"), "{problem}");
    let marks = r#"{"features": [], "learn": [{"": 0} and what follows is never looked at"#;
    let (status, problem) = service.send("/v1/streams/default/predict", "application/json", marks.as_bytes());
    assert_eq!(status, 422, "{problem}");
    service.stop();
}

/// Whoever asks for a deletion and hangs up gets it: no stream is left that is neither there nor gone.
#[test]
fn a_deletion_runs_to_its_end_without_its_client() {
    use ultta::simulate::{Simulator, SimulatorConfig};
    let folder = tempfile::tempdir().unwrap();
    let mut simulator =
        Simulator::new(&SimulatorConfig { classes: 400, dim: 256, ..Default::default() }).unwrap();
    let service = Service::start(config(folder.path()));
    service.ensure_with("big", "ul-tta", simulator.head().clone());
    let body = safetensors(&simulator.next_block(4000).0);
    std::thread::scope(|scope| {
        // Work that the deletion waits for.
        let asked: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| service.send("/v1/streams/big/classify", "application/octet-stream", &body).0)
            })
            .collect();
        eventually("the stream is at work", || service.get("/v1/streams/big").1["status"]["log_next"] != 0);
        let mut client = TcpStream::connect(service.address).unwrap();
        client.write_all(b"DELETE /v1/streams/big HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(client);
        for status in asked.into_iter().map(|a| a.join().unwrap()) {
            assert!([200, 404, 503].contains(&status), "{status}");
        }
    });
    eventually("the stream is gone", || service.get("/v1/streams/big").0 == 404);
    assert!(!folder.path().join("streams/big").exists());
    assert_eq!(service.get("/healthz").1["status"], "ok");
    service.ensure_with("big", "ul-tta", simulator.head().clone());
    service.stop();
}
