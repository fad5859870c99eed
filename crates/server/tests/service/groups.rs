//! Groups inside one server: streams share what they learn, nothing is lost or counted twice, a member can be taken out.

use std::path::Path;

use crate::common::*;
use base64::Engine;
use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Delta, Features, State};
use ultta_server::{ServerConfig, ShareSettings};

/// A server that shares without delay.
pub fn sharing(folder: &Path) -> ServerConfig {
    let share = ShareSettings { seconds: 0.05, samples: 1, ..Default::default() };
    ServerConfig { share, ..config(folder) }
}

pub fn create(service: &Service, name: &str, group: Option<&str>) {
    let head = base64::engine::general_purpose::STANDARD.encode(head().to_bytes().unwrap());
    let (status, answer) =
        service.post("/v1/streams", &json!({"name": name, "head_base64": head, "group": group}));
    assert_eq!(status, 201, "{answer}");
}

/// Rows of another stretch of the same stream.
pub fn rows_of(seed: u64, n: usize) -> Features<'static> {
    let config = SimulatorConfig { classes: CLASSES, dim: DIM, ..Default::default() };
    let mut simulator = Simulator::new(&config).expect("a simulator");
    for _ in 0..seed {
        simulator.next_block(n);
    }
    simulator.next_block(n).0
}

pub fn classify(service: &Service, stream: &str, rows: &Features<'_>) {
    let (status, answer) = service.post(&format!("/v1/streams/{stream}/classify"), &request(rows));
    assert_eq!(status, 200, "{answer}");
}

pub fn group(service: &Service) -> Value {
    service.get("/v1/groups/all").1
}

/// All members of this server have given all they learnt, and know all that the others gave.
pub fn is_settled(view: &Value) -> bool {
    let own = view["own"].as_array().cloned().unwrap_or_default();
    let clocks: Vec<f64> = own.iter().filter_map(|own| own["clock"].as_f64()).collect();
    !own.is_empty()
        && own.iter().all(|own| own["waiting"] == 0 && own["behind"] == 0)
        && clocks.iter().all(|clock| *clock == clocks[0] && *clock > 0.0)
}

/// All that the group gave, as a stream's state has it.
pub fn total(service: &Service, stream: &str) -> (Vec<f64>, ultta::Session) {
    let state = State::from_bytes(&service.state(stream)).unwrap();
    let session = ultta::Session::resume(head(), &state).unwrap();
    (session.group_total().unwrap().values(CLASSES), session)
}

/// The same evidence: every kind of sum within 1e-6 of its own largest number.
pub fn assert_close(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let second = DIM * (DIM + 1) / 2;
    let kinds = [("counts", 2), ("sum", DIM), ("second sum", DIM), ("second moments", second)];
    let classes = [("class counts", CLASSES), ("class sums", CLASSES * DIM)];
    let mut start = 0;
    for (kind, len) in kinds.into_iter().chain(classes) {
        let (a, b) = (&a[start..start + len], &b[start..start + len]);
        let largest = a.iter().chain(b).fold(1e-3f64, |m, v| m.max(v.abs()));
        for (x, y) in a.iter().zip(b) {
            assert!((x - y).abs() <= 1e-6 * largest, "{what}, {kind}: {x} and {y}");
        }
        start += len;
    }
    assert_eq!(start, a.len(), "{what}");
}

#[test]
fn streams_of_a_group_hold_the_same_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(sharing(folder.path()));
    for name in ["a", "b", "c"] {
        create(&service, name, Some("all"));
    }
    create(&service, "alone", None);
    for round in 0..4 {
        for (i, name) in ["a", "b", "c", "alone"].iter().enumerate() {
            classify(&service, name, &rows_of(4 * round + i as u64, 60));
        }
    }
    eventually("all know all", || is_settled(&group(&service)));
    let (first, session) = total(&service, "a");
    assert!(first[0] > 300.0, "{} samples", first[0]);
    for name in ["b", "c"] {
        assert_close(&total(&service, name).0, &first, name);
    }
    let heard = session.membership().unwrap().heard;
    assert_eq!(heard.keys().collect::<Vec<_>>(), ["b", "c"]);
    let alone = State::from_bytes(&service.state("alone")).unwrap();
    assert!(!alone.any_under("shared."), "a stream outside of a group shares nothing");
    let view = group(&service);
    assert_eq!((view["over"].as_str(), view["trouble"].as_str()), (Some("server"), None));
    assert_eq!(view["members"].as_array().unwrap().len(), 3);
    assert_eq!(service.get("/v1/streams/a").1["group"], "all");
    assert_eq!(service.get("/v1/groups/none").0, 404);
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    assert!(metrics.contains("ultta_group_members{group=\"all\"} 3"), "{metrics}");
    // A stream that is made later starts with what the others know.
    create(&service, "late", Some("all"));
    eventually("the newcomer knows all", || {
        let view = group(&service);
        is_settled(&view) && view["own"].as_array().unwrap().len() == 4
    });
    assert_close(&total(&service, "late").0, &first, "late");
    service.stop();
}

/// What a killed server held comes back bit for bit: what each learnt, gave and took.
#[test]
fn a_killed_server_goes_on_with_what_was_shared() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(sharing(folder.path()));
    for name in ["a", "b"] {
        create(&service, name, Some("all"));
    }
    for round in 0..5 {
        classify(&service, "a", &rows_of(2 * round, 50));
        classify(&service, "b", &rows_of(2 * round + 1, 50));
    }
    eventually("all know all", || is_settled(&group(&service)));
    let before = ["a", "b"].map(|name| service.state(name));
    // As a kill leaves it: the logs as they are, no base state written at the end.
    let copy = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), copy.path());
    service.stop();
    let service = Service::start(sharing(copy.path()));
    for (name, before) in ["a", "b"].iter().zip(&before) {
        assert_eq!(&service.state(name), before, "{name}");
    }
    classify(&service, "a", &rows_of(20, 50));
    eventually("all know all again", || {
        let view = group(&service);
        is_settled(&view) && view["given"]["deltas"].as_u64() >= Some(1)
    });
    assert_close(&total(&service, "a").0, &total(&service, "b").0, "after the restart");
    service.stop();
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_member_is_dropped_everywhere_and_a_reset_keeps_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(sharing(folder.path()));
    for name in ["a", "b", "bad"] {
        create(&service, name, Some("all"));
    }
    for (i, name) in ["a", "b", "bad"].iter().enumerate() {
        classify(&service, name, &rows_of(i as u64, 200));
    }
    eventually("all know all", || is_settled(&group(&service)));
    let (before, session) = total(&service, "bad");
    let bad = session.contribution().unwrap();
    let (status, done) = service.post("/v1/groups/all/drop", &json!({"member": "bad"}));
    assert_eq!((status, &done["members"]), (200, &json!(["bad"])), "{done}");
    let clock = session.membership().unwrap().clock;
    let fade = 0.5f64.powf((clock - bad.stamp()) / 1000.0);
    let expected: Vec<f64> =
        before.iter().zip(bad.values(CLASSES)).map(|(all, bad)| all - fade * bad).collect();
    for name in ["a", "b", "bad"] {
        assert_close(&total(&service, name).0, &expected, name);
    }
    assert_eq!(service.post("/v1/groups/all/drop", &json!({"member": "nobody"})).0, 404);
    // A reset forgets what the stream learnt by itself, not its place in the group.
    assert_eq!(service.post("/v1/streams/a/reset", &json!({})).0, 200);
    assert_close(&total(&service, "a").0, &expected, "after a reset");
    classify(&service, "a", &rows_of(9, 60));
    eventually("all know all again", || is_settled(&group(&service)));
    assert_close(&total(&service, "b").0, &total(&service, "a").0, "after more");
    // All that the group gave can be taken along.
    let (status, bytes) = service.get_bytes("/v1/groups/all/state");
    assert_eq!(status, 200);
    assert_close(&Delta::from_bytes(&bytes).unwrap().values(CLASSES), &total(&service, "a").0, "downloaded");
    service.stop();
}

#[test]
fn strangers_and_copies_are_no_members() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(sharing(folder.path()));
    create(&service, "a", Some("all"));
    let other = json!({"name": "x", "group": "all", "head": {"prototypes": [[1.0, 0.0], [0.0, 1.0]], "classes": ["p", "q"], "logit_scale": 10.0}});
    let (status, refused) = service.post("/v1/streams", &other);
    assert_eq!(status, 409);
    assert!(refused["detail"].as_str().unwrap().contains("stream \"a\" of the group \"all\""), "{refused}");
    for (body, part) in [
        (json!({"name": "x", "head_of": "a", "group": "a.b"}), "without '.'"),
        (
            json!({"name": "x", "head_of": "a", "group": "all", "method": "zero-shot"}),
            "another head or configuration",
        ),
        (json!({"name": "x", "head_of": "a", "group": "other", "method": "zero-shot"}), "keeps no evidence"),
    ] {
        let (status, refused) = service.post("/v1/streams", &body);
        assert!(status == 409 || status == 422, "{status} {refused}");
        assert!(refused["detail"].as_str().unwrap().contains(part), "{refused}");
    }
    classify(&service, "a", &rows_of(1, 100));
    let (status, copy) = service.post("/v1/streams/a/clone", &json!({"name": "copy"}));
    assert_eq!((status, &copy["group"]), (201, &Value::Null));
    assert!(!State::from_bytes(&service.state("copy")).unwrap().any_under("shared."));
    service.stop();
}
