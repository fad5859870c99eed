//! What happens to a server that is killed, starved of disk and files, or sent what it did not ask for.

use super::*;

/// Sends blocks one after another until the server dies; returns the rows acknowledged.
fn load_blocks(server: &Server, features: &Features<'_>, mut at: usize, dice: &mut Dice) -> usize {
    while at < features.rows() {
        let n = (1 + dice.below(9) as usize).min(features.rows() - at);
        match server.post(CLASSIFY, &request(&features.slice(at..at + n))) {
            Ok(answer) => {
                assert_eq!(answer["learnt"], true, "{answer}");
                assert_eq!(answer["rows"][0]["id"].as_u64(), Some(at as u64));
                at += n;
            }
            Err(_) => break,
        }
    }
    at
}

/// Sends lines, many under way at once, until the server dies; returns the rows acknowledged.
fn load_lines(server: &Server, features: &Features<'_>, at: usize) -> usize {
    let mut socket = TcpStream::connect(&server.address).unwrap();
    write!(socket, "POST {CLASSIFY} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let answers = BufReader::new(socket.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for row in at..features.rows() {
                let line = serde_json::to_string(features.row(row)).unwrap();
                if write!(socket, "{:x}\r\n{line}\n\r\n", line.len() + 1).is_err() {
                    return;
                }
            }
        });
        let mut acknowledged = at;
        for line in answers.lines().map_while(Result::ok).filter(|l| l.starts_with('{')) {
            let Ok(answer) = serde_json::from_str::<Value>(&line) else { break };
            assert_eq!(answer["id"].as_u64(), Some(acknowledged as u64), "{line}");
            acknowledged += 1;
        }
        acknowledged
    })
}

/// kill -9 at random moments under load. After each, the recovered state is that of an uninterrupted run over the
/// rows that the stream has, and it has every acknowledged one.
#[test]
fn killed_at_random_it_forgets_no_acknowledged_row() {
    let rounds: usize = std::env::var("ULTTA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let folder = tempfile::tempdir().unwrap();
    let features = simulator().next_block(200_000).0;
    let mut session = Session::new(simulator().head().clone(), &Config::default()).unwrap();
    let mut dice = Dice(7 + rounds as u64);
    let mut learnt_in_all = 0;
    for round in 0..rounds {
        let durability = ["interval", "sync"][round / 2 % 2];
        let server = Server::start(folder.path(), &["--durability", durability]);
        let start = server.seen();
        let wait = Duration::from_millis(20 + dice.below(400));
        let pid = server.child.id().to_string();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            Command::new("kill").args(["-9", &pid]).status().unwrap();
        });
        let acknowledged = match round % 2 {
            0 => load_blocks(&server, &features, start, &mut dice),
            _ => load_lines(&server, &features, start),
        };
        killer.join().unwrap();
        server.kill();
        let server = Server::start(folder.path(), &[]);
        let seen = server.seen();
        assert!(seen >= acknowledged, "round {round}: {acknowledged} rows acknowledged, {seen} there");
        session.step(&features.slice(start..seen)).unwrap();
        assert!(server.state() == session.state().to_bytes().unwrap(), "round {round}: another state");
        learnt_in_all = seen;
        server.kill();
    }
    assert!(learnt_in_all > rounds, "there was some load: {learnt_in_all} rows");
    println!("{rounds} kills, {learnt_in_all} rows");
}

#[test]
fn without_room_on_the_disk_it_answers_on_and_learns_again_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    // Files may have 60 kB, as if the disk were full then; the signal that comes with it is ignored.
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; ulimit -S -f 60; exec \"$0\" serve \"$@\"", ULTTA]);
    let server = Server::spawn(command, folder.path(), &[]);
    let features = simulator().next_block(3000).0;
    let mut session = Session::new(simulator().head().clone(), &Config::default()).unwrap();
    let mut at = 0;
    let mut refused = 0;
    while refused < 3 {
        let block = features.slice(at..at + 50);
        let answer = server.post(CLASSIFY, &request(&block)).unwrap();
        if answer["learnt"].as_bool().unwrap() {
            session.step(&block).unwrap();
            at += 50;
        } else {
            assert_eq!(
                (&answer["rows"][0]["id"], answer["rows"].as_array().unwrap().len()),
                (&Value::Null, 50)
            );
            refused += 1;
        }
        assert!(at < 2500, "the disk was never full");
    }
    assert!(at > 0);
    let health = server.get("/healthz");
    assert_eq!(health["status"], "degraded", "{health}");
    assert!(health["degraded"]["default"].as_str().unwrap().contains("writing the log failed"), "{health}");
    let label = json!({"labels": [{"id": 0, "label": 0}]});
    assert_eq!(server.post("/v1/streams/default/feedback", &label).unwrap()["status"], 507);
    assert!(server.state() == session.state().to_bytes().unwrap(), "nothing was learnt meanwhile");
    // room again
    let pid = server.child.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status().unwrap().success());
    let started = Instant::now();
    while server.get("/healthz")["status"] != "ok" {
        assert!(started.elapsed() < Duration::from_secs(20), "it did not recover");
        std::thread::sleep(Duration::from_millis(50));
    }
    let block = features.slice(at..at + 50);
    assert_eq!(server.post(CLASSIFY, &request(&block)).unwrap()["learnt"], true);
    session.step(&block).unwrap();
    server.kill();
    let server = Server::start(folder.path(), &[]);
    assert!(server.state() == session.state().to_bytes().unwrap());
    server.terminate();
}

/// Connections that say nothing take no file that a log needs: with few files to open, streams learn, rotate their logs
/// and write their states all the same.
#[test]
fn idle_connections_leave_files_for_the_logs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ultta.toml");
    std::fs::write(&file, "[server]\ncompact_bytes = 65536\n").unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 128; exec \"$0\" serve \"$@\"", ULTTA]);
    let server = Server::spawn(command, folder.path(), &["--config", file.to_str().unwrap()]);
    assert_eq!(server.get("/v1/config")["limits"]["connections"], 64);
    let idle: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let features = simulator().next_block(5000).0;
    for start in (0..5000).step_by(50) {
        let answer = server.post(CLASSIFY, &request(&features.slice(start..start + 50))).unwrap();
        assert_eq!(answer["learnt"], true, "row {start}: {answer}");
    }
    let stream = server.get("/v1/streams/default");
    assert_eq!(stream["status"]["degraded"], Value::Null);
    let snapshot = server.post("/v1/streams/default/snapshots", &json!({"label": "a"})).unwrap();
    assert!(snapshot["snapshots"].is_array() || snapshot["label"] == "a", "{snapshot}");
    let started = Instant::now();
    while std::fs::read_dir(folder.path().join("data/streams/default"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "wal"))
        .count()
        > 1
    {
        assert!(started.elapsed() < Duration::from_secs(10), "the log was not compacted");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(idle);
    server.terminate();
}

/// Whoever reads the address may stop the server at once: it heeds that before it tells the address.
#[cfg(target_os = "linux")]
#[test]
fn it_can_be_stopped_as_soon_as_it_says_that_it_listens() {
    const TERMINATE: u64 = 1 << 14;
    let folder = tempfile::tempdir().unwrap();
    let head = folder.path().join("head.safetensors");
    simulator().head().save(&head).unwrap();
    // There is no room in the pipe yet, so it cannot get further than that.
    let (mut told, mut out) = std::io::pipe().unwrap();
    out.write_all(&[b' '; 1 << 16]).unwrap();
    let mut command = Command::new(ULTTA);
    command
        .args(["serve", "--port", "0", "--head"])
        .arg(head)
        .arg("--data-dir")
        .arg(folder.path().join("data"));
    let mut child = command.env("ULTTA_LOG", "off").stdout(out).spawn().unwrap();
    drop(command);
    let started = Instant::now();
    let heeded = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & TERMINATE != 0
    };
    while !heeded() {
        assert!(started.elapsed() < Duration::from_secs(20), "it cannot be stopped");
        std::thread::sleep(Duration::from_millis(20));
    }
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    std::io::copy(&mut told, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
}
