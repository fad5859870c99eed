//! Answers that nobody reads, bodies that pause, refusals that quote: none of them takes memory or room from others.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};

use crate::common::*;
use crate::durability::crash;

const CLASSIFY: &str = "/v1/streams/default/classify";
const CLASSIFY_WIDE: &str = "/v1/streams/wide/classify";
const OCTETS: &str = "application/octet-stream";

fn head_of(path: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {OCTETS}\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// A service with room for two large answers, and a request for one.
struct Large {
    service: Service,
    path: &'static str,
    body: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Large {
    fn start(request_seconds: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut small = config(folder.path());
        (small.limits.body_bytes, small.limits.waiting_bytes) = (4 << 20, 16 << 20);
        small.limits.request_seconds = request_seconds;
        let service = Service::start(small);
        service.ensure("default", "ul-tta");
        let mut simulator =
            Simulator::new(&SimulatorConfig { classes: 300, dim: 16, ..Default::default() }).unwrap();
        service.ensure_with("many", "zero-shot", simulator.head().clone());
        let body = npy(&simulator.next_block(1500).0);
        Self { service, path: "/v1/streams/many/predict?probs=true", body, _folder: folder }
    }

    fn ask(&self) -> (u16, Value) {
        self.service.send(self.path, OCTETS, &self.body)
    }

    /// Asks for an answer and reads no more than its status: from then on the answer holds room.
    fn unread(&self) -> TcpStream {
        let mut socket = TcpStream::connect(self.service.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(&head_of(self.path, self.body.len())).unwrap();
        socket.write_all(&self.body).unwrap();
        let mut status = [0; 12];
        socket.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        socket
    }
}

/// Answers that their clients do not read hold room: small requests are served all the while, and large ones are
/// refused, not queued in memory. Clients that have gone hold none.
#[test]
fn answers_that_nobody_reads_hold_room() {
    let large = Large::start(60);
    assert_eq!(large.ask().0, 200);
    let unread = [large.unread(), large.unread()];
    let (status, problem) = large.ask();
    assert_eq!(status, 429, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("limits.waiting_bytes"), "{problem}");
    large.service.classify(&rows(10));
    drop(unread);
    eventually("there is room again", || large.ask().0 == 200);
    large.service.stop();
}

/// A client that does not read its answer is not waited for.
#[test]
fn answers_that_nobody_reads_are_given_up() {
    let large = Large::start(5);
    let unread = [large.unread(), large.unread()];
    eventually("there is room again", || large.ask().0 == 200);
    drop(unread);
    large.service.stop();
}

/// An answer that can never have room is refused before anything is learnt.
#[test]
fn an_answer_that_is_too_large_is_refused_before_anything_is_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    (small.limits.body_bytes, small.limits.waiting_bytes) = (2 << 20, 2 << 20);
    let service = Service::start(small);
    service.ensure("default", "ul-tta");
    let body = npy(&rows(16_384));
    let (status, problem) = service.send(&format!("{CLASSIFY}?probs=true"), OCTETS, &body);
    assert_eq!(status, 413, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("send fewer rows"), "{problem}");
    assert_eq!(service.get("/v1/streams/default").1["status"]["log_next"], 0);
    let body = npy(&rows(1000));
    assert_eq!(service.send(&format!("{CLASSIFY}?probs=true"), OCTETS, &body).0, 200);
    service.stop();
}

/// Clients that send almost all of the largest body and pause do not keep small requests out.
#[test]
fn large_bodies_that_pause_leave_room_for_small_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut tight = config(folder.path());
    (tight.limits.body_bytes, tight.limits.waiting_bytes) = (8 << 20, 16 << 20);
    let service = Service::start(tight);
    service.ensure("default", "ul-tta");
    let most = vec![0; (8 << 20) - 600];
    let mut paused: Vec<TcpStream> = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(service.address).unwrap();
        socket.write_all(&head_of(CLASSIFY, 8 << 20)).unwrap();
        socket.write_all(&most).unwrap();
        paused.push(socket);
    }
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        service.classify(&rows(100));
    }
    // One of the two was given room: which one is for the scheduler to say.
    let answers: Vec<[u8; 12]> = paused
        .iter_mut()
        .map(|socket| {
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket.write_all(&[0; 600]).unwrap();
            let mut answer = [0; 12];
            socket.read_exact(&mut answer).unwrap();
            answer
        })
        .collect();
    assert_eq!(answers.iter().filter(|answer| *answer == b"HTTP/1.1 429").count(), 1, "{answers:?}");
    service.stop();
}

/// Lines that were read and wait to be answered count, too.
#[test]
fn lines_hold_room_until_they_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut tight = config(folder.path());
    (tight.limits.body_bytes, tight.limits.waiting_bytes) = (2 << 20, 2 << 20);
    let service = Service::start(tight);
    let mut simulator =
        Simulator::new(&SimulatorConfig { classes: 3000, dim: 16, ..Default::default() }).unwrap();
    service.ensure_with("wide", "zero-shot", simulator.head().clone());
    let row = simulator.next_block(1).0.row(0).to_vec();
    // Few answers would fit into the buffers of the connection, which hold some megabytes; large lines fill the room.
    let line = format!("{}\n", json!({"features": row, "views": vec![&row; 250]}));
    let lines = 500;
    let mut socket = TcpStream::connect(service.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST {CLASSIFY_WIDE}?probs=true HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        line.len() * lines
    );
    let mut out = socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        out.write_all(head.as_bytes()).unwrap();
        (0..lines).for_each(|_| drop(out.write_all(line.as_bytes())));
    });
    // Nobody reads yet: answers fill the buffers of the connection, then lines fill the room, and another request has none.
    let half = vec![0; 1 << 20];
    eventually("lines fill the room", || service.send(CLASSIFY_WIDE, OCTETS, &half).0 == 429);
    // From here on the server takes lines until it has no room for one more, which takes it a moment.
    for _ in 0..100 {
        if sender.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    sender.join().unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("limits.waiting_bytes"), "{} bytes of answers, none refused", text.len());
    let answered = text.matches("\"learnt\":true").count();
    let refused = text.matches("limits.waiting_bytes").count();
    assert!(answered > 0, "those with room are answered");
    assert_eq!(answered + refused, lines, "every line has its answer");
    service.stop();
}

/// A refusal quotes what was sent, but not all of it.
#[test]
fn refusals_are_short_whatever_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let long = "é".repeat(1_000_000);
    let bodies = [
        (CLASSIFY, json!({"features": long})),
        (CLASSIFY, json!({ long.as_str(): 1 })),
        ("/v1/streams/default/feedback", json!({"labels": [{"id": 0, "class": long}]})),
        ("/v2/models/default/infer", json!({"inputs": long})),
        ("/v2/models/default/infer", json!({"inputs": [{"name": long, "shape": [1], "datatype": "FP32"}]})),
    ];
    for (path, body) in bodies {
        let text = serde_json::to_vec(&body).unwrap();
        let (status, answer, _) = service.send_raw(path, &[("content-type", "application/json")], &text);
        assert_eq!(status, 422);
        assert!(answer.len() < 10_000, "{path}: {} bytes", answer.len());
        let problem: Value = serde_json::from_slice(&answer).unwrap();
        assert!(problem["detail"].as_str().unwrap().ends_with('…'), "{path}");
    }
    service.stop();
}

/// The head of a request has a bound of its own, below what a connection could otherwise keep.
#[test]
fn a_request_with_a_huge_head_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let answer =
        service.raw(format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}", "x".repeat(100_000)).as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    service.classify(&rows(1));
    service.stop();
}

/// Records that another stream wrote are not learnt, and not passed over in silence either.
#[test]
fn records_of_another_stream_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let prototypes = json!([[1.0, 0.0], [0.0, 1.0]]);
    let head = json!({"prototypes": prototypes, "classes": ["a", "b"], "logit_scale": 50});
    assert_eq!(service.post("/v1/streams", &json!({"name": "other", "head": head})).0, 201);
    for _ in 0..3 {
        service.classify(&rows(5));
        let row = json!({"features": [[1.0, 0.0]]});
        assert_eq!(service.post("/v1/streams/other/classify", &row).0, 200);
    }
    let left = crash(folder.path());
    service.stop();
    let log = |stream: &str| left.path().join("streams").join(stream).join(format!("log-{:020}.wal", 0));
    let (own, other) = (fs::read(log("default")).unwrap(), fs::read(log("other")).unwrap());
    fs::write(log("default"), [&own[..16], &other[16..]].concat()).unwrap();
    let service = Service::start(config(left.path()));
    let damage = service.get("/healthz").1["degraded"]["default"].as_str().unwrap().to_string();
    assert!(damage.contains("record 0") && damage.contains("expected rows of 16 numbers, got 2"), "{damage}");
    assert!(damage.contains("3 whole records (3 rows) from it on"), "{damage}");
    let status = service.get("/v1/streams/default").1["status"].clone();
    assert_eq!((&status["generation"], &status["health"]["seen"]), (&json!(1), &json!(0)), "{status}");
    assert!(log("default").with_extension("damaged-0").exists());
    service.classify(&rows(5));
    service.stop();
}

/// What an earlier deletion left behind does not keep a stream from being deleted.
#[test]
fn a_deletion_is_not_stopped_by_what_an_earlier_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    fs::write(folder.path().join("streams/.gone-default"), b"in the way").unwrap();
    assert_eq!(service.delete("/v1/streams/default"), 204);
    assert_eq!(service.get("/v1/streams/default").0, 404);
    assert!(!folder.path().join("streams/default").exists());
    assert_eq!(service.get("/healthz").1["status"], "ok");
    service.ensure("default", "ul-tta");
    service.stop();
}

/// Clients that send small bodies and then pause fill the room together. They lose it when others want it, and are told.
#[test]
fn small_bodies_that_pause_lose_their_room_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut tight = config(folder.path());
    (tight.limits.body_bytes, tight.limits.waiting_bytes) = (4 << 20, 8 << 20);
    // None of them is cut off for its slowness alone.
    tight.limits.request_seconds = 600;
    let service = Service::start(tight);
    service.ensure("default", "ul-tta");
    let lines = b"POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    let pausing = |turn: usize| {
        let mut socket = TcpStream::connect(service.address).unwrap();
        let most = vec![b' '; 1_000_000];
        if turn % 4 == 3 {
            socket.write_all(lines).unwrap();
            socket.write_all(format!("{:x}\r\n", 4_000_000).as_bytes()).unwrap();
        } else {
            socket.write_all(&head_of(CLASSIFY, 1 << 20)).unwrap();
        }
        socket.write_all(&most).unwrap();
        socket
    };
    let mut paused: Vec<TcpStream> = (0..12).map(pausing).collect();
    let body = npy(&rows(16_000));
    let wants = || service.send(CLASSIFY, OCTETS, &body).0;
    for _ in 0..8 {
        eventually("there is room", || wants() == 200);
    }
    let told = paused
        .iter_mut()
        .filter(|socket| {
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut answer = [0; 12];
            let mut socket = &**socket;
            socket.read_exact(&mut answer).is_ok() && &answer == b"HTTP/1.1 408"
        })
        .count();
    assert!(told >= 1, "nobody was told");
    service.stop();
}
