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
        problem["error"].as_str().unwrap().contains("expected 16 numbers by the shape, got more"),
        "{problem}"
    );
    let unit = format!("[[1{}]]", ",0".repeat(DIM - 1));
    assert_eq!(infer(&unit).0, 200);
    // The shape may come behind the numbers.
    let late = format!(
        r#"{{"inputs": [{{"data": {unit}, "datatype": "FP32", "parameters": null, "other": [1], "shape": [1, {DIM}], "name": "features"}}]}}"#
    );
    assert_eq!(service.send("/v2/models/default/infer", "application/json", late.as_bytes()).0, 200);
    let (status, problem) = service.send(
        "/v2/models/default/infer",
        "application/json",
        br#"{"inputs": [{"name": "features", "data": [1]}]}"#,
    );
    assert!(
        status == 422 && problem["error"].as_str().unwrap().contains("missing field `shape`"),
        "{problem}"
    );
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

/// A deletion that the disk hinders leaves one standing, told alike everywhere, and can be asked for again.
#[test]
fn a_deletion_that_the_disk_hinders_is_told_everywhere_and_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.ensure("lost", "ul-tta");
    let streams = folder.path().join("streams");
    // Whoever removes a stream's folder by hand may still delete the stream.
    fs::remove_dir_all(streams.join("lost")).unwrap();
    assert_eq!(service.delete("/v1/streams/lost"), 204);
    assert_eq!(service.get("/v1/streams/lost").0, 404);
    assert_eq!(service.get("/healthz").1["status"], "ok");
    // A folder that cannot be reached at all.
    let aside = folder.path().join("aside");
    fs::rename(&streams, &aside).unwrap();
    fs::write(&streams, b"a file").unwrap();
    for _ in 0..2 {
        assert_eq!(service.delete("/v1/streams/default"), 507);
        let (_, health) = service.get("/healthz");
        let told = health["degraded"]["default"].as_str().expect("its standing").to_string();
        assert!(told.contains("could not be removed") && told.contains("delete it again"), "{told}");
        let (status, problem) = service.get("/v1/streams/default");
        assert_eq!(status, 503);
        assert!(problem["detail"].as_str().unwrap().contains(&told), "{problem}");
        assert_eq!(service.get("/v1/streams").1["damaged"]["default"], told);
        assert_eq!(service.get("/v2/models/default/ready").0, 503);
        assert_eq!(service.post("/v1/streams/default/predict", &request(&rows(1))).0, 503);
        let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
        for line in ["ultta_damaged{stream=\"default\"} 1", "ultta_verdict{stream=\"default\"} 2"] {
            assert!(metrics.contains(line), "{line}");
        }
    }
    fs::remove_file(&streams).unwrap();
    fs::rename(&aside, &streams).unwrap();
    assert_eq!(service.delete("/v1/streams/default"), 204);
    assert_eq!(service.get("/healthz").1["status"], "ok");
    assert!(!streams.join("default").exists());
    service.stop();
}

/// Room is held by bytes that have arrived, not by announcements, and by bodies of every kind.
#[test]
fn silent_connections_hold_no_room_and_bodies_of_unknown_length_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    (small.limits.body_bytes, small.limits.waiting_bytes) = (100_000, 100_000);
    let service = Service::start(small);
    service.ensure("default", "ul-tta");
    let body = npy(&rows(100));
    let send = || service.send("/v1/streams/default/classify", "application/octet-stream", &body).0;
    let open = |length: &str| {
        let mut socket = TcpStream::connect(service.address).unwrap();
        let kind = "content-type: application/octet-stream";
        let head = format!(
            "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n{length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    };
    let silent: Vec<_> = (0..8).map(|_| open("content-length: 99000")).collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(send(), 200, "eight announcements take no room");
    let head = "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/octet-stream\r\nexpect: 100-continue\r\ncontent-length: 100001\r\n\r\n";
    let answer = service.raw(head.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "at once, before a byte is sent: {answer}");
    drop(silent);
    let mut chunked = open("transfer-encoding: chunked");
    std::thread::sleep(std::time::Duration::from_millis(200));
    chunked.write_all(format!("{:x}\r\n", 97_000).as_bytes()).unwrap();
    chunked.write_all(&[0; 97_000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    eventually("no room is left", || send() == 429);
    drop(chunked);
    eventually("there is room again", || send() == 200);
    service.stop();
}

/// The answer to a large body that is refused reaches a client that sends all of it first.
#[test]
fn refusals_of_large_bodies_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    small.limits.body_bytes = 3_000_000;
    small.limits.waiting_bytes = 3_000_000;
    small.tokens.admin.push("a-token-of-the-tests".into());
    small.tokens.read.push("a-token-that-only-reads".into());
    let mut service = Service::start(small);
    service.ensure("default", "ul-tta");
    let (large, larger) = (vec![0; 2_900_000], vec![0; 5_000_000]);
    let classify = "/v1/streams/default/classify";
    let octets = "application/octet-stream";
    for _ in 0..5 {
        service.token = None;
        assert_eq!(service.send(classify, octets, &large).0, 401);
        service.token = Some("a-token-that-only-reads".into());
        assert_eq!(service.send(classify, octets, &large).0, 403);
        service.token = Some("a-token-of-the-tests".into());
        assert_eq!(service.send("/v1/streams/none/classify", octets, &large).0, 404);
        assert_eq!(service.send(classify, "text/plain", &large).0, 415);
        assert_eq!(service.send(classify, octets, &larger).0, 413);
    }
    // The same with the client of Python's standard library, which sends all of a body before it reads.
    let script = r#"
import http.client, sys
host, classify = sys.argv[1:]
asks = [(401, classify, None, "application/octet-stream", 2_900_000), (403, classify, "a-token-that-only-reads", "application/octet-stream", 2_900_000),
    (404, "/v1/streams/none/classify", "a-token-of-the-tests", "application/octet-stream", 2_900_000),
    (415, classify, "a-token-of-the-tests", "text/plain", 2_900_000), (413, classify, "a-token-of-the-tests", "application/octet-stream", 5_000_000)]
for expected, path, token, kind, size in 5 * asks:
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"content-type": kind} | ({"authorization": f"Bearer {token}"} if token else {})
    connection.request("POST", path, bytes(size), headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == expected, (answer.status, expected)
"#;
    let python = std::process::Command::new("python3")
        .args(["-c", script, &service.address.to_string(), classify])
        .output()
        .expect("python3 runs");
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    // Another body holds the room. (It is sent anew if the server met the two bodies the other way round and refused this one.)
    let head = format!(
        "POST {classify} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer a-token-of-the-tests\r\ncontent-type: {octets}\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    eventually("no room is left", || {
        let mut other = TcpStream::connect(service.address).unwrap();
        other.write_all(head.as_bytes()).unwrap();
        other.write_all(&large[..2_000_000]).unwrap();
        service.send(classify, octets, &large).0 == 429
    });
    service.stop();
}

/// Calls that need no body take one, and the connection goes on.
#[test]
fn a_body_that_nobody_needs_does_not_end_the_connection() {
    use std::io::{BufRead, BufReader, Read};
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let socket = TcpStream::connect(service.address).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let (mut out, mut answers) = (socket.try_clone().unwrap(), BufReader::new(socket));
    for turn in 0..100 {
        let call = ["freeze", "unfreeze", "reset"][turn % 3];
        let head = format!(
            "POST /v1/streams/default/{call} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
        );
        out.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(turn as u64 % 5));
        out.write_all(b"{}").unwrap();
        let (mut line, mut length) = (String::new(), 0);
        answers.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "turn {turn}: {line:?}");
        loop {
            line.clear();
            answers.read_line(&mut line).unwrap();
            assert!(!line.to_lowercase().starts_with("connection: close"), "turn {turn}");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        answers.read_exact(&mut vec![0; length]).unwrap();
    }
    service.stop();
}

/// Damage in the middle of a log is seen everywhere until it is acknowledged, and no id means two samples.
#[test]
fn a_flipped_byte_in_the_middle_of_a_log_is_told_and_begins_a_new_generation() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(100);
    for start in (0..100).step_by(10) {
        service.classify(&features.slice(start..start + 10));
    }
    let left = crate::durability::crash(folder.path());
    service.stop();
    let stream = left.path().join("streams/default");
    let log = stream.join(format!("log-{:020}.wal", 0));
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() * 45 / 100;
    bytes[middle] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let mut expected = session("ul-tta");
    for start in (0..40).step_by(10) {
        expected.step(&features.slice(start..start + 10)).unwrap();
    }
    let mut folders = vec![left];
    for restart in 0..2 {
        let service = Service::start(config(folders[restart].path()));
        let (_, view) = service.get("/v1/streams/default");
        let damage = view["status"]["damage"].as_str().expect("damage").to_string();
        assert!(
            damage.contains("record 4") && damage.contains("5 whole records (50 rows) behind it"),
            "{damage}"
        );
        assert_eq!(view["status"]["generation"], 1, "restart {restart}");
        assert_eq!(service.get("/v2/models/default/ready").0, 200, "it answers and learns");
        assert_eq!(service.get("/healthz").1["degraded"]["default"], damage.as_str());
        let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
        assert!(metrics.contains("ultta_damaged{stream=\"default\"} 1"), "{metrics}");
        assert_eq!(service.state("default"), expected.state().to_bytes().unwrap(), "restart {restart}");
        let old = json!({"labels": [{"id": 50, "label": 1}], "generation": 0});
        assert_eq!(service.post("/v1/streams/default/feedback", &old).0, 409, "a label of a lost sample");
        let answer = service.classify(&features.slice(0..10));
        expected.step(&features.slice(0..10)).unwrap();
        assert_eq!(answer["generation"], 1);
        folders.push(crate::durability::crash(folders[restart].path()));
        service.stop();
    }
    let aside = folders[2].path().join("streams/default").join(format!("log-{:020}.damaged-4", 0));
    assert!(bytes.ends_with(&fs::read(aside).unwrap()), "what was lost is kept");
    let service = Service::start(config(folders[2].path()));
    assert_eq!(service.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
    assert_eq!(service.get("/healthz").1["status"], "ok");
    let last = crate::durability::crash(folders[2].path());
    service.stop();
    let service = Service::start(config(last.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok");
    service.stop();
}

/// A packed body is refused by naming its encoding, whatever the call; an identity is none.
#[test]
fn packed_bodies_are_refused_by_their_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let body = serde_json::to_vec(&request(&rows(1))).unwrap();
    for (encoding, expected) in [("gzip", 415), ("br", 415), ("gzip, identity", 415), ("identity", 200)] {
        for path in ["/v1/streams/default/classify", "/v1/streams/default/predict"] {
            let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
            let (status, text, _) = service.send_raw(path, &headers, &body);
            let text = String::from_utf8(text).unwrap();
            assert_eq!(status, expected, "{encoding}: {text}");
            assert!(status == 200 || text.contains("content-encoding"), "{text}");
        }
    }
    service.stop();
}

/// Names have no case and may end in a dot.
#[test]
fn every_form_of_a_local_name_is_local() {
    let folder = tempfile::tempdir().unwrap();
    let mut named = config(folder.path());
    named.hosts.push("Box.Example".into());
    let service = Service::start(named);
    for (host, status) in [
        ("localhost", 200),
        ("LOCALHOST", 200),
        ("localhost.", 200),
        ("LocalHost.:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("BOX.example", 200),
        ("localhost.example", 403),
        ("localhost..", 403),
        ("evil.example", 403),
    ] {
        let answer = service
            .raw(format!("GET /v1/streams HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
    service.stop();
}

/// After a reset an id is another sample: a label that does not say which is meant reaches none.
#[test]
fn labels_without_a_generation_are_taken_in_the_first_one_only() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let feedback = |body: &serde_json::Value| service.post("/v1/streams/default/feedback", body);
    let plain = json!({"labels": [{"id": 3, "label": 1}]});
    service.classify(&rows(10));
    assert_eq!(feedback(&plain).0, 200);
    assert_eq!(service.post("/v1/streams/default/reset", &json!({})).0, 200);
    service.classify(&rows(10));
    let (status, problem) = feedback(&plain);
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("send `generation`"), "{problem}");
    assert_eq!(feedback(&json!({"labels": [{"id": 3, "label": 1}], "generation": 0})).0, 409);
    assert_eq!(feedback(&json!({"labels": [{"id": 3, "label": 1}], "generation": 1})).0, 200);
    service.stop();
}

/// Labels may come late: a sample is remembered for long, the answer says for how long, a refusal names the setting.
#[test]
fn labels_come_late_and_the_answer_says_how_late_they_may() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let short = json!({"name": "short", "head_of": "default", "settings": {"feedback.remember": 1500}});
    assert_eq!(service.post("/v1/streams", &short).0, 201);
    let features = rows(6000);
    let mut session = session("ul-tta");
    for start in (0..6000).step_by(1000) {
        let body = npy(&features.slice(start..start + 1000));
        for stream in ["default", "short"] {
            let path = format!("/v1/streams/{stream}/classify");
            assert_eq!(service.send(&path, "application/octet-stream", &body).0, 200);
        }
        session.step(&features.slice(start..start + 1000)).unwrap();
    }
    let labels: Vec<serde_json::Value> = (0..50).map(|id| json!({"id": id * 7, "label": id % 12})).collect();
    let (status, told) =
        service.post("/v1/streams/default/feedback", &json!({"labels": labels, "generation": 0}));
    assert_eq!(status, 200, "{told}");
    assert!(told["outcomes"].as_array().unwrap().iter().all(|o| o["outcome"] == "taken"), "{told}");
    let remembered = &told["remembered"];
    assert_eq!((&remembered["samples"], &remembered["most"]), (&json!(6000), &json!(100_000)), "{told}");
    assert_eq!((&remembered["setting"], &remembered["oldest_id"]), (&json!("feedback.remember"), &json!(0)));
    assert!(remembered["oldest_seconds"].as_f64().unwrap() > 0.0, "{told}");
    (0..50).for_each(|id| assert!(session.feedback(id * 7, id as usize % 12).unwrap()));
    assert!(service.state("default") == session.state().to_bytes().unwrap());
    assert_eq!(service.get("/v1/streams/default").1["reliability"]["labels"], 50);
    let late = json!({"labels": [{"id": 4499, "label": 1}, {"id": 4500, "label": 1}]});
    let (_, told) = service.post("/v1/streams/short/feedback", &late);
    let reason = told["outcomes"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("1500 remembered") && reason.contains("feedback.remember"), "{reason}");
    assert_eq!(
        (&told["outcomes"][1]["outcome"], &told["remembered"]["oldest_id"]),
        (&json!("taken"), &json!(4500))
    );
    // What is remembered survives a crash.
    let left = crate::durability::crash(folder.path());
    service.stop();
    let service = Service::start(config(left.path()));
    assert!(service.state("default") == session.state().to_bytes().unwrap());
    let (_, told) = service.post("/v1/streams/default/feedback", &json!({"labels": [{"id": 3, "label": 1}]}));
    assert_eq!(told["outcomes"][0]["outcome"], "taken", "{told}");
    assert_eq!(told["remembered"]["oldest_seconds"], serde_json::Value::Null, "answered before the start");
    service.stop();
}
