//! What members keep at the broker, and what strangers put there: nobody is locked out by it, nothing is lost for it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use async_nats::jetstream::{self, object_store::ObjectStore};
use base64::Engine;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use ultta::{Config, Features, Head, Session};

use crate::common::*;
use crate::fleet::{Broker, eventually, member, settle};
use crate::groups::*;

/// A client of the broker that does there what it likes.
struct Hand {
    runtime: tokio::runtime::Runtime,
    context: jetstream::Context,
}

impl Hand {
    fn of(broker: &Broker) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let options = async_nats::ConnectOptions::with_user_and_password("anna".into(), "hush".into());
        let address = format!("127.0.0.1:{}", broker.port);
        let context = runtime.block_on(async { jetstream::new(options.connect(address).await.unwrap()) });
        Self { context, runtime }
    }

    /// Removes all messages of a member, as the broker does where the stream is full.
    fn trim(&self, subject: &str) {
        self.runtime.block_on(async {
            let stream = self.context.get_stream("ULTTA_all").await.unwrap();
            stream.purge().filter(subject).await.unwrap();
        });
    }

    fn publish(&self, subject: &str, part: Option<&str>, payload: Vec<u8>) {
        let mut headers = async_nats::HeaderMap::new();
        part.into_iter().for_each(|part| headers.insert("Ultta-Part", part));
        self.runtime.block_on(async {
            let sent = self.context.publish_with_headers(subject.to_string(), headers, payload.into()).await;
            sent.unwrap().await.unwrap();
        });
    }

    fn bucket(&self) -> ObjectStore {
        self.runtime.block_on(self.context.get_object_store("ULTTA_all")).unwrap()
    }

    fn object(&self, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let bucket = self.bucket();
        self.runtime
            .block_on(async { bucket.get(name).await.unwrap().read_to_end(&mut bytes).await.unwrap() });
        bytes
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let (bucket, mut reader) = (self.bucket(), bytes);
        self.runtime.block_on(async { bucket.put(name, &mut reader).await.unwrap() });
    }
}

/// Has a server's stream learn something, and waits until it has given it.
fn teach(service: &Service, rows: &Features<'_>) {
    let given = |view: &Value| view["given"]["deltas"].as_u64().unwrap_or(0);
    let before = given(&group(service));
    classify(service, "cam", rows);
    eventually("it has given what it learnt", || {
        let view = group(service);
        view["own"][0]["waiting"] == 0 && given(&view) > before
    });
}

fn is_refused(service: &Service, member: &str, reason: &str) -> bool {
    let refused = group(service)["refused"].as_array().cloned().unwrap_or_default();
    refused.iter().any(|r| r["member"] == member && r["reason"].as_str().unwrap_or("").contains(reason))
}

fn snapshot(service: &Service) {
    assert_eq!(service.post("/v1/groups/all/snapshot", &json!({})).0, 200);
}

/// What a member of another head keeps at the broker does not keep newcomers from what the others keep there.
#[test]
fn a_stranger_locks_nobody_out() {
    let broker = Broker::start();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let a = member(broker.config(folders[0].path(), "a"));
    let stranger = Service::start(broker.config(folders[1].path(), "stranger"));
    let other = json!({"name": "cam", "group": "all", "head": {"prototypes": [[1.0, 0.0], [0.0, 1.0]], "classes": ["p", "q"], "logit_scale": 10.0}});
    assert_eq!(stranger.post("/v1/streams", &other).0, 201);
    teach(&stranger, &Features::normalized(vec![1.0, 0.2, 0.3, 1.0, 1.0, -0.4, -0.2, 1.0], 2).unwrap());
    teach(&a, &rows_of(0, 100));
    snapshot(&a);
    Hand::of(&broker).trim("ultta.all.a=2fcam");
    let newcomer = member(broker.config(folders[2].path(), "newcomer"));
    settle(&[&a, &newcomer]);
    assert_close(&total(&newcomer, "cam").0, &total(&a, "cam").0, "a newcomer");
    assert!(is_refused(&newcomer, "stranger/cam", "another head"), "{}", group(&newcomer)["refused"]);
    assert!(!is_refused(&newcomer, "newcomer/cam", ""), "it is not its own fault");
    for service in [a, stranger, newcomer] {
        service.stop();
    }
}

/// A member that lacks something, and takes over what is kept for it, reads again what followed that, whoever gave it.
#[test]
fn what_follows_contributions_is_read_again() {
    let broker = Broker::start();
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let start = |i: usize| member(broker.config(folders[i].path(), ["x", "y", "z", "late"][i]));
    let (x, y, z, late) = (start(0), start(1), start(2), start(3));
    for (i, service) in [&x, &y, &z].into_iter().enumerate() {
        teach(service, &rows_of(i as u64, 60));
        snapshot(service);
    }
    settle(&[&x, &y, &z, &late]);
    late.stop();
    // x gives more than is kept of it, and ends.
    teach(&x, &rows_of(3, 60));
    settle(&[&x, &y, &z]);
    x.stop();
    // Of y some is missing in the stream, and is kept; then it gives more, and z is the last one.
    teach(&y, &rows_of(4, 60));
    settle(&[&y, &z]);
    snapshot(&y);
    Hand::of(&broker).trim("ultta.all.y=2fcam");
    snapshot(&z);
    teach(&y, &rows_of(5, 60));
    teach(&z, &rows_of(6, 60));
    settle(&[&y, &z]);
    let late = start(3);
    settle(&[&y, &z, &late]);
    assert_close(&total(&late, "cam").0, &total(&y, "cam").0, "the late one");
    for service in [y, z, late] {
        service.stop();
    }
}

/// What cannot be read at the moment is not taken for what is not there.
#[test]
fn a_notice_that_cannot_be_read_is_waited_for() {
    let broker = Broker::start();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let start = |i: usize| member(broker.config(folders[i].path(), ["a", "b", "c"][i]));
    let (a, b, c) = (start(0), start(1), start(2));
    teach(&a, &rows_of(0, 60));
    teach(&b, &rows_of(1, 60));
    settle(&[&a, &b, &c]);
    b.stop();
    c.stop();
    let (status, done) = a.post("/v1/groups/all/drop", &json!({"member": "b"}));
    assert_eq!(status, 200, "{done}");
    let (hand, name) = (Hand::of(&broker), "drop-b=2fcam-0");
    let notice = hand.object(name);
    let about = base64::engine::general_purpose::URL_SAFE.encode(name);
    hand.publish(&format!("$O.ULTTA_all.M.{about}"), None, b"nothing that is read".to_vec());
    let c = start(2);
    eventually("it says what it cannot read", || {
        group(&c)["trouble"].as_str().is_some_and(|trouble| trouble.contains(name))
    });
    hand.put(name, &notice);
    eventually("it takes out what was dropped", || {
        let members = group(&c)["members"].as_array().cloned().unwrap_or_default();
        members.iter().any(|m| m["member"] == "b/cam" && m["epoch"] == 1)
    });
    settle(&[&a, &c]);
    assert_close(&total(&c, "cam").0, &total(&a, "cam").0, "after the drop");
    a.stop();
    c.stop();
}

/// Bytes without end, and deltas in another's name, are refused by the subject or object they came as.
#[test]
fn what_a_stranger_puts_there_is_bounded_and_his_own() {
    let broker = Broker::start();
    let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let a = member(broker.config(folders[0].path(), "a"));
    teach(&a, &rows_of(0, 60));
    let hand = Hand::of(&broker);
    hand.publish("ultta.all.endless", Some("0/1000000"), vec![7; 200_000]);
    eventually("it is refused", || is_refused(&a, "ultta.all.endless", "bytes or more"));
    // In a's name, of a later number than its own: a keeps its name, and others do not hear it.
    let mut other = session("ul-tta");
    other.join("a/cam").unwrap();
    let cuts = (1..9).map(|i| {
        other.step(&rows_of(i, 60)).unwrap();
        other.cut().unwrap().unwrap()
    });
    let last = cuts.last().unwrap().to_bytes().unwrap();
    hand.publish("ultta.all.mallory", Some("0/1"), last);
    eventually("it is refused", || is_refused(&a, "ultta.all.mallory", "name of another member, a/cam"));
    assert_eq!(group(&a)["own"][0]["member"], "a/cam");
    hand.put("mallory", &other.contribution().unwrap().to_bytes().unwrap());
    hand.put("endless", &vec![7; 200_000]);
    let b = member(broker.config(folders[1].path(), "b"));
    settle(&[&a, &b]);
    assert_close(&total(&b, "cam").0, &total(&a, "cam").0, "without the stranger");
    assert!(
        is_refused(&b, "mallory", "name of another member") && is_refused(&b, "endless", "bytes or more")
    );
    a.stop();
    b.stop();
}

/// A line to the broker that carries this many bytes a second towards the server.
fn slow_line(broker: u16, rate: f64) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let carry = |mut from: TcpStream, mut to: TcpStream, rate: f64| {
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                std::thread::sleep(Duration::from_secs_f64(n as f64 / rate));
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", broker)) else { continue };
            carry(client.try_clone().unwrap(), server.try_clone().unwrap(), f64::INFINITY);
            carry(server, client, rate);
        }
    });
    port
}

/// A whole contribution may take longer than the broker's time for an answer.
#[test]
fn a_contribution_comes_over_a_slow_line() {
    const WIDE: usize = 64;
    const MANY: usize = 1500;
    let broker = Broker::start();
    let mut random = 1u64;
    let mut noise = |n: usize| -> Vec<f32> {
        let mut one = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| one()).collect()
    };
    let anchors = Features::normalized(noise(WIDE * MANY), WIDE).unwrap();
    let names = (0..MANY).map(|c| format!("class {c}"));
    let head = Head::new(anchors.data().to_vec(), WIDE, names, 40.0).unwrap();
    let mut giver = Session::new(head.clone(), &Config::default()).unwrap();
    giver.join("giver/cam").unwrap();
    for _ in 0..3 {
        let rows: Vec<f32> =
            anchors.data().iter().zip(noise(WIDE * MANY)).map(|(v, e)| v + 0.05 * e).collect();
        giver.step(&Features::normalized(rows, WIDE).unwrap()).unwrap();
    }
    giver.cut().unwrap().unwrap();
    let bytes = giver.contribution().unwrap().to_bytes().unwrap();
    assert!(bytes.len() > 330_000, "{} bytes", bytes.len());
    // A first server makes stream and bucket.
    let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = member(broker.config(folders[0].path(), "first"));
    eventually("the broker is there", || group(&first)["connected"] == true);
    first.stop();
    Hand::of(&broker).put("giver=2fcam", &bytes);
    let mut config = broker.config(folders[1].path(), "far");
    config.share.url = Some(format!("nats://anna:hush@127.0.0.1:{}", slow_line(broker.port, 55e3)));
    let far = Service::start(config);
    let head = base64::engine::general_purpose::STANDARD.encode(head.to_bytes().unwrap());
    let spec = json!({"name": "cam", "head_base64": head, "group": "all"});
    assert_eq!(far.post("/v1/streams", &spec).0, 201);
    eventually("it has come", || {
        let members = group(&far)["members"].as_array().cloned().unwrap_or_default();
        members.iter().any(|m| m["member"] == "giver/cam" && m["samples"].as_u64() > Some(1000))
    });
    far.stop();
}
