//! `ultta fleet` and servers that share, as programs: killed at random, with a real broker (`crates/server/tests/fleet.py`).

use std::path::Path;
use std::process::Command;

#[cfg(target_os = "linux")]
use crate::serve::{Server, request, simulator};

const ULTTA: &str = env!("CARGO_BIN_EXE_ultta");

/// Every server is killed -9 five times, the broker twice, one server is stopped for a while: the same evidence everywhere, every
/// sample counted once.
#[cfg(feature = "nats")]
#[test]
fn servers_that_are_killed_lose_nothing_and_count_nothing_twice() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/fleet.py");
    let output = Command::new("python3")
        .arg(script)
        .args(["--ultta", ULTTA, "--kills", "5", "--pause", "2", "--misled", "3"])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}

/// No broker where one should be: the service answers, and health, metrics and `ultta fleet status` say so. Whatever is secret is
/// in none of it, nor in the log, however much that tells.
#[cfg(all(feature = "nats", target_os = "linux"))]
#[test]
fn a_broker_that_is_away_is_told_and_no_secret_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("nats://anna:hush-hush@{nobody}");
    let mut command = Command::new(ULTTA);
    command.arg("serve").env("ULTTA_LOG", "trace").stderr(std::fs::File::create(&log).unwrap());
    command.env("ULTTA_NATS_USER", "berta").env("ULTTA_NATS_PASSWORD", "not-a-word");
    let server =
        Server::spawn(command, folder.path(), &["--group", "all", "--member", "box", "--share", &address]);
    let patience = std::time::Instant::now();
    while !server.get("/healthz")["apart"]["all"].is_string() {
        assert!(patience.elapsed().as_secs() < 60, "{}", server.get("/healthz"));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let rows = request(&simulator().next_block(80).0);
    let answered = server.post(crate::serve::CLASSIFY, &rows).unwrap();
    assert_eq!(answered["rows"].as_array().map(Vec::len), Some(80), "{answered}");
    let metrics = server.text("/metrics");
    assert!(metrics.contains("ultta_group_connected{group=\"all\"} 0"), "{metrics}");
    let url = format!("http://{}", server.address());
    let status = Command::new(ULTTA).args(["fleet", "status", "--url", &url]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("group all over nats: apart: "), "{status}");
    let told =
        [status, metrics, server.get("/healthz").to_string(), server.get("/v1/groups/all").to_string()];
    server.terminate();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("attempting connection"), "the client of the broker tells what it does: {log}");
    for secret in ["hush-hush", "not-a-word"] {
        assert!(!told.iter().any(|told| told.contains(secret)), "{told:?}");
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "in the log");
    }
}

/// Without the feature the error names it; a service without groups is told, too.
#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(ULTTA);
        command.arg("serve").arg("--data-dir").arg(folder.path()).args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = serve(&["--share", "nats://127.0.0.1:4222"]);
    let expected = if cfg!(feature = "nats") { "share.member" } else { "cargo feature `nats`" };
    assert!(said.contains(expected), "{said}");
    assert!(serve(&["--group", "all"]).contains("no --head"));
    let lonely =
        Command::new(ULTTA).args(["fleet", "status", "--url", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(lonely.status.code(), Some(1));
}

/// Two streams of one server: who is there, what each gave; one is taken out; all that the group gave goes into a file.
#[cfg(target_os = "linux")]
#[test]
fn a_fleet_is_looked_at_thinned_out_and_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[server.share]\nseconds = 0.05\nsamples = 1\n").unwrap();
    let server = Server::start(folder.path(), &["--group", "all", "--config", config.to_str().unwrap()]);
    let url = format!("http://{}", server.address());
    let fleet = |arguments: &[&str]| {
        let output = Command::new(ULTTA).arg("fleet").args(arguments).args(["--url", &url]).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), said)
    };
    let spec = serde_json::json!({"name": "yard", "head_of": "default", "group": "all"});
    server.post("/v1/streams", &spec).unwrap();
    for stream in ["default", "yard"] {
        let rows = request(&simulator().next_block(80).0);
        server.post(&format!("/v1/streams/{stream}/classify"), &rows).unwrap();
    }
    let view = || -> serde_json::Value { serde_json::from_str(&fleet(&["status", "--json"]).1[0]).unwrap() };
    let patience = std::time::Instant::now();
    while !view()["members"].as_array().is_some_and(|m| m.len() == 2 && m.iter().all(|m| m["samples"] != 0)) {
        assert!(patience.elapsed().as_secs() < 60, "{}", view());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (code, [said, _]) = fleet(&["status"]);
    assert_eq!(code, Some(0));
    for part in [
        "group all over server: together",
        "default (here): ",
        "yard (here): ",
        " samples, delta ",
        " samples of the group ago, last seen ",
        "stream yard: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let file = folder.path().join("group.safetensors");
    let (code, [said, error]) = fleet(&["snapshot", "--out", file.to_str().unwrap()]);
    assert_eq!(
        (code, said.lines().next()),
        (Some(0), Some("2 members keep what they gave")),
        "{said}{error}"
    );
    let whole = ultta::Delta::from_bytes(&std::fs::read(&file).unwrap()).unwrap();
    assert!(whole.samples() > 100, "{} samples", whole.samples());
    let (code, [said, error]) = fleet(&["drop", "yard"]);
    assert_eq!((code, said.as_str()), (Some(0), "what yard gave is taken out\n"), "{error}");
    let epochs: Vec<_> = view()["members"].as_array().unwrap().iter().map(|m| m["epoch"].clone()).collect();
    assert_eq!(epochs, [0, 1]);
    let (code, [_, error]) = fleet(&["drop", "nobody"]);
    assert!(code != Some(0) && error.contains("there is no member \"nobody\""), "{code:?} {error}");
    server.terminate();
}
