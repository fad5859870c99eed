use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use ultta_server::{ServerConfig, Tokens};

use crate::common::*;

const CLASSIFY: &str = "/v1/streams/default/classify";

#[test]
fn tokens_open_what_they_are_for_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let token = |kind: &str| format!("{kind}-token-of-some-length");
    let tokens =
        Tokens { read: vec![token("read")], write: vec![token("write")], admin: vec![token("admin")] };
    let mut service = Service::start(ServerConfig { tokens, ..config(folder.path()) });
    service.ensure("default", "ul-tta");
    let row = request(&rows(1));
    let mut tried = Vec::new();
    for given in [
        None,
        Some("wrong-token-of-some-length".to_string()),
        Some(token("read")),
        Some(token("write")),
        Some(token("admin")),
    ] {
        service.token = given;
        tried.push([
            service.get("/healthz").0,
            service.get("/v1/streams").0,
            service.get("/metrics").0,
            service.post("/v1/streams/default/predict", &row).0,
            service.post(CLASSIFY, &row).0,
            service.post("/v1/streams/default/freeze", &json!({})).0,
            service.get("/v1/streams/default/state").0,
        ]);
    }
    assert_eq!(tried[0], [200, 401, 401, 401, 401, 401, 401]);
    assert_eq!(tried[1], [200, 401, 401, 401, 401, 401, 401]);
    assert_eq!(tried[2], [200, 200, 200, 200, 403, 403, 403]);
    assert_eq!(tried[3], [200, 200, 200, 200, 200, 403, 403]);
    assert_eq!(tried[4], [200, 200, 200, 200, 200, 200, 200]);
    // Inference needs what it does; the scheme may be written in any case.
    let infer = |learn: bool| {
        let features =
            json!({"name": "features", "shape": [1, DIM], "datatype": "FP32", "data": rows(1).data()});
        json!({"parameters": {"learn": learn}, "inputs": [features]})
    };
    service.token = None;
    assert_eq!(service.post("/v2/models/default/infer", &infer(false)).0, 401);
    let bearer = format!("bearer {}", token("read"));
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for (learn, expected) in [(false, 200), (true, 403)] {
        let body = serde_json::to_vec(&infer(learn)).unwrap();
        assert_eq!(service.send_raw("/v2/models/default/infer", &headers, &body).0, expected);
    }
    service.stop();
}

#[test]
fn an_address_beyond_loopback_needs_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let open = ServerConfig { host: "0.0.0.0".parse().unwrap(), ..config(folder.path()) };
    let error = Service::try_start(open, None).err().unwrap().to_string();
    assert!(error.contains("tokens are required"), "{error}");
}

#[test]
fn foreign_pages_and_foreign_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let own = format!("http://{}", service.address);
    let body = serde_json::to_vec(&request(&rows(1))).unwrap();
    let ask = |headers: &[(&str, &str)]| {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        service.send_raw(CLASSIFY, &all, &body)
    };
    let (status, _, headers) = ask(&[("origin", &own)]);
    assert_eq!(status, 200);
    assert!(headers.get("access-control-allow-origin").is_none(), "CORS is off");
    assert_eq!(ask(&[("origin", "http://evil.example")]).0, 403);
    assert_eq!(ask(&[("host", "evil.example")]).0, 403);
    assert_eq!(ask(&[("host", "localhost:1")]).0, 200);
    service.stop();
    let folder = tempfile::tempdir().unwrap();
    let cors_origins = vec!["http://friend.example".to_string()];
    let service = Service::start(ServerConfig { cors_origins, ..config(folder.path()) });
    service.ensure("default", "ul-tta");
    let headers = [("content-type", "application/json"), ("origin", "http://friend.example")];
    let (status, _, headers) = service.send_raw(CLASSIFY, &headers, &body);
    assert_eq!(
        (status, headers["access-control-allow-origin"].to_str().unwrap()),
        (200, "http://friend.example")
    );
    service.stop();
}

#[test]
fn malformed_bodies_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    small.limits.body_bytes = 200_000;
    small.limits.batch_rows = 50;
    let service = Service::start(small);
    service.ensure("default", "ul-tta");
    let before = service.state("default");
    let nan = [f32::NAN.to_le_bytes(); DIM].concat();
    let mut bad_npy = npy(&rows(1));
    let at = bad_npy.len() - DIM * 4;
    bad_npy[at..].copy_from_slice(&nan);
    let json_text = |text: &str| ("application/json", text.as_bytes().to_vec());
    let wide = json!({"features": [vec![1.0; DIM + 1]]}).to_string();
    let ragged = json!({"features": [vec![0.25; DIM], vec![0.25; DIM - 1]]}).to_string();
    let marks = json!({"features": [vec![0.25; DIM]], "learn": [true, true]}).to_string();
    let times = json!({"features": [vec![0.25; DIM]], "times": [1.0, 2.0]}).to_string();
    for (i, (expected, (kind, body))) in [
        (400, json_text("")),
        (400, json_text("{")),
        (400, json_text("{\"features\": [[NaN]]}")),
        (422, json_text("[]")),
        (422, json_text("{}")),
        (422, json_text("{\"features\": 3}")),
        (422, json_text("{\"features\": [[\"a\"]]}")),
        (422, json_text("{\"features\": [[1]], \"typo\": 1}")),
        (422, json_text(&wide)),
        (422, json_text(&ragged)),
        (422, json_text(&marks)),
        (422, json_text(&times)),
        (422, json_text(&json!({"features": [vec![3.0; DIM]]}).to_string())),
        (422, json_text(&json!({"features": [vec![0.0; DIM]], "normalize": true}).to_string())),
        (400, ("application/octet-stream", b"nonsense".to_vec())),
        (400, ("application/octet-stream", npy(&rows(2))[..100].to_vec())),
        (422, ("application/octet-stream", bad_npy)),
        (413, ("application/octet-stream", npy(&rows(51)))),
        (413, ("application/octet-stream", vec![0; 200_001])),
        (415, ("text/plain", b"[[1]]".to_vec())),
        (415, ("", b"[[1]]".to_vec())),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, bytes, headers) = service.send_raw(CLASSIFY, &[("content-type", kind)], &body);
        assert_eq!(status, expected, "{i}: {}", String::from_utf8_lossy(&bytes));
        assert_eq!(headers["content-type"], "application/problem+json", "{i}");
        assert!(headers.contains_key("x-request-id"), "{i}");
    }
    assert_eq!(service.post("/v1/streams/none/classify", &json!({})).0, 404);
    assert_eq!(service.get("/nothing").0, 404);
    let answer = service.agent.get(service.url(CLASSIFY)).call().unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["allow"].to_str().unwrap()), (405, "POST"));
    let (status, problem) = service.get(CLASSIFY);
    assert_eq!((status, &problem["title"]), (405, &json!("method not allowed")));
    assert!(problem["detail"].as_str().unwrap().contains("the header `allow`"), "{problem}");
    // What goes elsewhere is told where.
    for (kind, body, told) in [
        ("image/png", &b"x"[..], "pictures go to `…/pictures`"),
        ("application/x-www-form-urlencoded", &b"{}"[..], "tell it -H 'content-type: application/json'"),
        ("application/json", &b"{\"features\": [1.0, 0.0]}"[..], "a row: a list of numbers, as in [[…], …]"),
    ] {
        let (_, bytes, _) = service.send_raw(CLASSIFY, &[("content-type", kind)], body);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(told), "{told:?} is missing: {text}");
    }
    let (status, problem) = service.post("/v1/streams", &json!({"name": "cam1"}));
    assert!(
        status == 422
            && problem["detail"].as_str().unwrap().contains("head_base64 (the bytes of a head file)"),
        "{problem}"
    );
    let (status, problem) = service.post(CLASSIFY, &json!({"features": [[1.0, 0.0, 0.0]]}));
    let detail = problem["detail"].as_str().unwrap();
    assert!(status == 422 && detail.contains("do both come from one encoder?"), "{problem}");
    let (status, problem) = service.get("/v1/streams/cam1");
    assert!(status == 404 && problem["detail"].as_str().unwrap().contains("POST /v1/streams"), "{problem}");
    assert_eq!(service.post(&format!("{CLASSIFY}?top=x"), &json!({})).0, 400);
    for garbage in [
        &b"\x00\x01\x02\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ] {
        service.raw(garbage);
    }
    assert_eq!(service.state("default"), before);
    // no rows are no step
    let (status, answer) = service.post(CLASSIFY, &json!({"features": []}));
    assert_eq!((status, &answer["rows"]), (200, &json!([])), "{answer}");
    service.stop();
}

/// What a client is advised to do, a client can do: no flag of the command line is named.
#[test]
fn refusals_advise_in_the_words_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let long = vec![vec![3.0; DIM]];
    let row = json!({"name": "features", "shape": [1, DIM], "datatype": "FP32", "data": long[0]});
    let head = json!({"prototypes": [long[0], long[0]], "classes": ["a", "b"], "logit_scale": 100});
    let normalize = "send `normalize: true`";
    for (path, body, advice) in [
        (CLASSIFY, json!({"features": long}), normalize),
        ("/v1/streams/default/predict", json!({"features": long}), normalize),
        ("/v2/models/default/infer", json!({"inputs": [row]}), normalize),
        ("/v1/streams", json!({"name": "other", "head": head}), "scale the rows to unit length"),
    ] {
        let (status, answer) = service.post(path, &body);
        let detail = answer["detail"].as_str().unwrap();
        assert_eq!(status, 422, "{path}: {detail}");
        assert!(detail.contains("norm 12") && detail.contains(advice) && !detail.contains("--"), "{detail}");
    }
    // and the advice helps
    assert_eq!(service.post(CLASSIFY, &json!({"features": long, "normalize": true})).0, 200);
    let infer = json!({"inputs": [row], "parameters": {"normalize": true}});
    assert_eq!(service.post("/v2/models/default/infer", &infer).0, 200);
    let line = serde_json::to_vec(&long[0]).unwrap();
    let (_, answer) = service.send(CLASSIFY, "application/x-ndjson", &line);
    assert!(answer["error"].as_str().unwrap().contains(normalize), "{answer}");
    service.stop();
}

#[test]
fn slow_clients_are_cut_off_and_vanishing_ones_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut hasty = config(folder.path());
    (hasty.limits.header_seconds, hasty.limits.request_seconds) = (1, 1);
    let service = Service::start(hasty);
    service.ensure("default", "ul-tta");
    let started = Instant::now();
    // a head that never ends, and a body that never comes
    service.raw(b"POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\nx-slow: ");
    let head = "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{";
    let answer = service.raw(head.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    // lines that stop coming: the answer ends
    let head = "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ncontent-length: 500\r\n\r\n[";
    service.raw(head.as_bytes());
    assert!(started.elapsed() < Duration::from_secs(15));
    // clients that leave after asking: what they sent whole is learnt, what they did not is not
    let block = rows(5);
    let body = serde_json::to_string(&request(&block)).unwrap();
    for cut in [0, 10, body.len() - 1] {
        let mut socket = TcpStream::connect(service.address).unwrap();
        write!(socket, "POST {CLASSIFY} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}", body.len(), &body[..cut]).unwrap();
    }
    let answer = service.classify(&block);
    assert_eq!(answer["rows"][0]["id"], 0);
    service.stop();
}

#[test]
fn a_thousand_connections_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let body = serde_json::to_string(&request(&rows(1))).unwrap();
    let text = format!(
        "POST {CLASSIFY} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut sockets: Vec<TcpStream> =
        (0..1000).map(|_| TcpStream::connect(service.address).unwrap()).collect();
    let mut ids = std::collections::BTreeSet::new();
    for socket in &mut sockets {
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.write_all(text.as_bytes()).unwrap();
    }
    for socket in &mut sockets {
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        while !answer.ends_with(b"]}") {
            let n = socket.read(&mut chunk).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..n]);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let id = answer.split("\"id\":").nth(1).unwrap().split(',').next().unwrap();
        ids.insert(id.parse::<u64>().unwrap());
    }
    assert_eq!(ids.len(), 1000, "every request is a sample of its own");
    assert_eq!(service.get("/v1/streams/default").1["status"]["health"]["seen"], 1000);
    service.stop();
}

#[test]
fn a_full_queue_answers_429_and_says_when_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut narrow = config(folder.path());
    narrow.limits.queue = 1;
    let service = Service::start(narrow);
    service.ensure("default", "ul-tta");
    let block = npy(&rows(4000));
    let (fine, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..6 {
                    let headers = [("content-type", "application/octet-stream")];
                    let (status, bytes, headers) = service.send_raw(CLASSIFY, &headers, &block);
                    match status {
                        200 => fine.fetch_add(1, Ordering::Relaxed),
                        429 => {
                            assert_eq!(headers["retry-after"], "1");
                            busy.fetch_add(1, Ordering::Relaxed)
                        }
                        other => panic!("{other}: {}", String::from_utf8_lossy(&bytes)),
                    };
                }
            });
        }
    });
    let (fine, busy) = (fine.into_inner(), busy.into_inner());
    assert!(fine > 0 && busy > 0, "{fine} answered, {busy} refused");
    // what was answered was learnt, what was refused was not
    let (_, stream) = service.get("/v1/streams/default");
    assert_eq!(stream["status"]["health"]["seen"].as_u64(), Some(4000 * fine as u64));
    service.stop();
}

#[test]
fn a_shutdown_finishes_what_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let block = npy(&rows(3000));
    let address = service.address;
    let head = format!(
        "POST {CLASSIFY} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
        block.len()
    );
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(&block).unwrap();
    eventually("the request is being worked on or done", || {
        service.get("/v1/streams/default").1["status"]["log_next"] == 1
    });
    service.stop();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.200}");
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    let service = Service::with_default(folder.path(), "ul-tta");
    assert_eq!(service.get("/v1/streams/default").1["status"]["health"]["seen"], 3000);
    service.stop();
}

#[test]
fn tls_is_spoken_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let secure = |cert: &std::path::Path| ServerConfig {
        tls_cert: Some(cert.to_owned()),
        tls_key: Some(key.clone()),
        ..config(&folder.path().join("data"))
    };
    let error = Service::try_start(secure(&folder.path().join("none.pem")), None).err().unwrap();
    assert!(error.to_string().contains("none.pem"), "{error}");
    let service = Service::start(secure(&cert));
    service.ensure("default", "ul-tta");
    assert_eq!(service.classify(&rows(2))["learnt"], true);
    let plain = service.raw(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(!plain.contains("200 OK"), "{plain}");
    service.stop();
}

#[test]
fn limits_on_streams_and_snapshots_hold() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    (small.limits.streams, small.limits.snapshots) = (2, 1);
    let service = Service::start(small);
    service.ensure("default", "ul-tta");
    let clone = |name: &str| service.post("/v1/streams/default/clone", &json!({"name": name})).0;
    assert_eq!((clone("a"), clone("b")), (201, 409));
    let snapshot = |label: &str| service.post("/v1/streams/default/snapshots", &json!({"label": label})).0;
    assert_eq!((snapshot("x"), snapshot("x"), snapshot("y")), (201, 201, 409));
    service.stop();
}

#[test]
fn no_request_makes_the_server_read_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let shots = json!({"shots": "/etc/hostname"});
    let made = json!({"name": "tip", "head_of": "default", "method": "tip-adapter", "settings": shots});
    let (status, problem) = service.post("/v1/streams", &made);
    assert_eq!(status, 422, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("reads no file"), "{problem}");
    let cloned = json!({"name": "tip", "config": "[method.tip_adapter]\nshots = \"/etc/hostname\"\n"});
    let (status, problem) = service.post("/v1/streams/default/clone", &cloned);
    assert_eq!(status, 422, "{problem}");
    service.stop();
}

#[test]
fn bodies_that_wait_have_room_for_so_many_bytes() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    (small.limits.body_bytes, small.limits.waiting_bytes) = (100_000, 100_000);
    let service = Service::start(small);
    service.ensure("default", "ul-tta");
    let head = "POST /v1/streams/default/classify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\ncontent-length: 99000\r\n\r\n";
    let body = npy(&rows(100));
    let send = || service.send("/v1/streams/default/classify", "application/octet-stream", &body);
    // one that has sent nearly all, and is slow to send the rest; beside another body it is refused itself
    let mut slow = None;
    eventually("no room is left", || {
        drop(slow.take());
        let socket = slow.insert(std::net::TcpStream::connect(service.address).unwrap());
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(&[0; 98_500]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        send().0 == 429
    });
    drop(slow);
    eventually("there is room again", || send().0 == 200);
    service.stop();
}

#[test]
fn a_stream_may_bear_the_name_of_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut guarded = config(folder.path());
    guarded.tokens.read = vec!["r".repeat(32)];
    let service = Service::start(guarded);
    service.ensure("state", "ul-tta");
    let get = |path: &str| {
        let token = "r".repeat(32);
        service.raw(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    };
    assert!(get("/v1/streams/state").starts_with("HTTP/1.1 200"), "{}", get("/v1/streams/state"));
    assert!(get("/v1/streams/state/state").starts_with("HTTP/1.1 403"));
    service.stop();
}

/// A port that is taken is told before anything is made on the disk.
#[test]
fn a_taken_port_is_told_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let data = folder.path().join("data");
    let refused = Service::try_start(ServerConfig { port, ..config(&data) }, None);
    let text = refused.err().expect("the port is taken").to_string();
    assert!(text.contains("choose another port"), "{text}");
    assert!(!data.exists());
}
