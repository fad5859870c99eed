use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use ultta::{Config, Features, Input};
use ultta_server::{Durability, ServerConfig};

use crate::common::*;

/// The folder as a crash would leave it: copied while the server runs.
pub fn crash(folder: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let aside = tempfile::tempdir().unwrap();
    copy(folder, aside.path());
    aside
}

fn logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("streams/default")).unwrap();
    let mut logs: Vec<PathBuf> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "wal")).collect();
    logs.sort();
    logs
}

#[test]
fn what_was_answered_is_there_after_a_crash_under_both_durabilities() {
    for durability in [Durability::Interval, Durability::Sync] {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::start(ServerConfig { durability, ..config(folder.path()) });
        service.ensure("default", "ul-tta");
        let (features, mut session) = (rows(800), session("ul-tta"));
        let mut at = 0;
        for n in [1, 7, 256, 300, 36, 100, 100] {
            service.classify(&features.slice(at..at + n));
            session.step(&features.slice(at..at + n)).unwrap();
            at += n;
            match at {
                264 => {
                    service
                        .post("/v1/streams/default/feedback", &json!({"labels": [{"id": 200, "label": 3}]}));
                    session.feedback(200, 3).unwrap();
                }
                564 => {
                    service.post("/v1/streams/default/freeze", &json!({}));
                    session.set_learning(false);
                }
                600 => {
                    service.post("/v1/streams/default/unfreeze", &json!({}));
                    session.set_learning(true);
                }
                _ => {}
            }
            let left = crash(folder.path());
            let after = Service::with_default(left.path(), "ul-tta");
            assert_eq!(after.state("default"), session.state().to_bytes().unwrap(), "{durability:?} at {at}");
            let (_, stream) = after.get("/v1/streams/default");
            assert_eq!(stream["status"]["learning"], session.learning());
            after.stop();
        }
        service.stop();
    }
}

#[test]
fn every_method_recovers_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(config(folder.path()));
    let features = rows(400);
    let names: Vec<String> = ultta::cards()
        .into_iter()
        .filter(|card| !card.needs_views && !card.needs_labels)
        .map(|card| card.name.replace('_', "-"))
        .collect();
    let mut expected = Vec::new();
    for name in &names {
        service.ensure(name, name);
        let mut session = session(name);
        for start in (0..400).step_by(40) {
            let block = features.slice(start..start + 40);
            let (status, answer) = service.post(&format!("/v1/streams/{name}/classify"), &request(&block));
            assert_eq!(status, 200, "{name}: {answer}");
            assert_same(&answer, &session.step(&block).unwrap());
        }
        expected.push(session.state().to_bytes().unwrap());
    }
    let left = crash(folder.path());
    let after = Service::start(config(left.path()));
    for (name, state) in names.iter().zip(expected) {
        assert_eq!(after.state(name), state, "{name}");
    }
    after.stop();
    service.stop();
}

/// Rows are scaled where they come in; the log and the session have the same bits.
#[test]
fn rows_that_the_service_scaled_recover_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(120);
    let mut session = session("ul-tta");
    for (start, length, normalize) in [(0, 3.0, true), (40, 1.004, false), (80, 0.07, true)] {
        let data: Vec<f32> = features.slice(start..start + 40).data().iter().map(|v| v * length).collect();
        let rows: Vec<&[f32]> = data.chunks(DIM).collect();
        let (status, answer) =
            service.post("/v1/streams/default/classify", &json!({"features": rows, "normalize": normalize}));
        assert_eq!(status, 200, "{answer}");
        let scaled = Features::checked(data, DIM, normalize).unwrap();
        assert_same(&answer, &session.step(&scaled).unwrap());
    }
    let left = crash(folder.path());
    let after = Service::with_default(left.path(), "ul-tta");
    assert_eq!(after.state("default"), session.state().to_bytes().unwrap());
    after.stop();
    service.stop();
}

#[test]
fn a_torn_or_broken_tail_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(300), session("ul-tta"));
    let mut states = vec![session.state().to_bytes().unwrap()];
    let mut ends = vec![fs::metadata(&logs(folder.path())[0]).unwrap().len()];
    for start in (0..300).step_by(60) {
        service.classify(&features.slice(start..start + 60));
        session.step(&features.slice(start..start + 60)).unwrap();
        states.push(session.state().to_bytes().unwrap());
        ends.push(fs::metadata(&logs(folder.path())[0]).unwrap().len());
    }
    let length = ends[5];
    for (cut, flip, whole) in [
        (length - 1, None, 4),
        (ends[4] + 3, None, 4),
        (ends[2] + 100, None, 2),
        (length, Some(ends[3] + 50), 3),
        (length, Some(ends[4] + 4), 4),
        (5, None, 0),
    ] {
        let left = crash(folder.path());
        let log = &logs(left.path())[0];
        let mut bytes = fs::read(log).unwrap();
        bytes.truncate(cut as usize);
        if let Some(at) = flip {
            bytes[at as usize] ^= 1;
        }
        fs::write(log, bytes).unwrap();
        let after = Service::with_default(left.path(), "ul-tta");
        assert_eq!(after.state("default"), states[whole], "cut {cut}, flip {flip:?}");
        let (_, stream) = after.get("/v1/streams/default");
        assert!(stream["dropped_bytes"].as_u64().unwrap() > 0);
        // and it goes on, durably
        after.classify(&features.slice(whole * 60..whole * 60 + 60));
        let again = crash(left.path());
        let again = Service::with_default(again.path(), "ul-tta");
        if whole < 5 {
            assert_eq!(again.state("default"), states[whole + 1]);
        }
        again.stop();
        after.stop();
    }
    service.stop();
}

/// A log that lost records which were on the disk was cut by somebody, at the end of a record or within one. What was not
/// synced yet may go with the power, and is no damage.
#[test]
fn a_log_that_ends_before_what_was_synced_is_damaged() {
    for (durability, damaged) in [(Durability::Sync, true), (Durability::Interval, false)] {
        let folder = tempfile::tempdir().unwrap();
        let settings = ServerConfig { durability, sync_interval_ms: 600_000, ..config(folder.path()) };
        let service = Service::start(settings);
        service.ensure("default", "ul-tta");
        let (features, mut session) = (rows(100), session("ul-tta"));
        let mut ends = Vec::new();
        for start in (0..100).step_by(10) {
            service.classify(&features.slice(start..start + 10));
            ends.push(fs::metadata(&logs(folder.path())[0]).unwrap().len() as usize);
        }
        session.step(&features.slice(0..60)).unwrap();
        for kept in [ends[5], ends[6] - 3] {
            let left = crash(folder.path());
            let log = &logs(left.path())[0];
            let bytes = fs::read(log).unwrap();
            fs::write(log, &bytes[..kept]).unwrap();
            let after = Service::start(config(left.path()));
            let (_, view) = after.get("/v1/streams/default");
            let told = view["status"]["damage"].as_str();
            assert_eq!(told.is_some(), damaged, "{durability:?}, {kept}: {view}");
            if let Some(told) = told {
                assert!(told.contains("ends before record 6") && told.contains("4 of them"), "{told}");
                assert_eq!(after.get("/healthz").1["degraded"]["default"], told);
            }
            assert_eq!(view["status"]["generation"], u64::from(damaged), "no id means two samples");
            assert_eq!(after.state("default"), session.state().to_bytes().unwrap());
            // It goes on, and is told until it is acknowledged.
            after.classify(&features.slice(60..70));
            let again = crash(left.path());
            after.stop();
            let again = Service::start(config(again.path()));
            assert_eq!(again.get("/healthz").1["status"] == "degraded", damaged);
            assert_eq!(again.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
            assert_eq!(again.get("/healthz").1["status"], "ok");
            again.stop();
        }
        service.stop();
    }
}

/// What is damaged and cut off is counted whole: the damaged record, those behind it, and those that are gone.
#[test]
fn records_that_are_gone_behind_a_damaged_one_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(ServerConfig { durability: Durability::Sync, ..config(folder.path()) });
    service.ensure("default", "ul-tta");
    let features = rows(100);
    let mut ends = Vec::new();
    for start in (0..100).step_by(10) {
        service.classify(&features.slice(start..start + 10));
        ends.push(fs::metadata(&logs(folder.path())[0]).unwrap().len() as usize);
    }
    let bytes = fs::read(&logs(folder.path())[0]).unwrap();
    let mut flipped = bytes[..ends[6]].to_vec();
    flipped[ends[3] + 40] ^= 1;
    let cases = [
        (vec![], "record 0 of the log is damaged; it and 0 whole records (0 rows)", "9 more of them"),
        (flipped, "record 4 of the log is damaged; it and 2 whole records (20 rows)", "3 more of them"),
    ];
    for (log, damaged, gone) in cases {
        let left = crash(folder.path());
        fs::write(&logs(left.path())[0], log).unwrap();
        let after = Service::start(config(left.path()));
        let (_, view) = after.get("/v1/streams/default");
        let told = view["status"]["damage"].as_str().unwrap();
        assert!(told.contains(damaged) && told.contains(gone), "{told}");
        assert_eq!(view["status"]["generation"], 1);
        after.stop();
    }
    service.stop();
}

/// A folder of an earlier build has no mark; it gets one.
#[test]
fn a_stream_without_a_mark_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let (features, mut session) = (rows(40), session("ul-tta"));
    service.classify(&features);
    session.step(&features).unwrap();
    let left = crash(folder.path());
    service.stop();
    let stream = left.path().join("streams/default");
    fs::remove_file(stream.join("synced")).unwrap();
    crate::manifest::list_logs(&stream, &[0]);
    let service = Service::start(config(left.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok");
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    service.stop();
    assert!(stream.join("synced").exists());
    assert!(fs::read_to_string(stream.join("manifest.json")).unwrap().contains("\"marked\": true"));
}

#[test]
fn the_log_is_compacted_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(ServerConfig { compact_bytes: 1 << 16, ..config(folder.path()) });
    service.ensure("default", "ul-tta");
    let (features, mut session) = (rows(6000), session("ul-tta"));
    for start in (0..6000).step_by(100) {
        service.classify(&features.slice(start..start + 100));
        session.step(&features.slice(start..start + 100)).unwrap();
        if start == 3000 {
            let left = crash(folder.path());
            let after = Service::with_default(left.path(), "ul-tta");
            assert_eq!(after.state("default"), session.state().to_bytes().unwrap());
            after.stop();
        }
    }
    let expected = session.state().to_bytes().unwrap();
    // 6,000 rows are six segments; all but the last are replaced by a state
    eventually("old logs are gone", || logs(folder.path()).len() == 1);
    let left = crash(folder.path());
    let after = Service::with_default(left.path(), "ul-tta");
    assert_eq!(after.state("default"), expected);
    assert!(after.get("/v1/streams/default").1["recovered_records"].as_u64().unwrap() < 20);
    after.stop();
    service.stop();
    let after = Service::with_default(folder.path(), "ul-tta");
    assert_eq!(after.get("/v1/streams/default").1["recovered_records"], 0, "a stop leaves nothing to replay");
    assert_eq!(after.state("default"), expected);
    after.stop();
}

#[test]
fn clocks_that_run_backwards_are_lifted_here_and_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(config(folder.path()));
    let body = json!({"name": "default", "head_base64": encode(&head().to_bytes().unwrap()), "settings": {"advanced.update_seconds": 5}});
    assert_eq!(service.post("/v1/streams", &body).0, 201);
    let features = rows(300);
    let settings = [("advanced.update_seconds", "5")];
    let mut session =
        ultta::Session::new(head(), &Config::resolve(None, None, None, &settings).unwrap()).unwrap();
    let mut latest = f64::MIN;
    for (i, start) in (0..300).step_by(30).enumerate() {
        let block = features.slice(start..start + 30);
        // forwards, then an hour back, then forwards again
        let times: Vec<f64> = (0..30)
            .map(|k| (start + k) as f64 * 0.3 - if (3..6).contains(&i) { 3600.0 } else { 0.0 })
            .collect();
        let mut body = request(&block);
        body["times"] = json!(times);
        let (status, answer) = service.post("/v1/streams/default/classify", &body);
        assert_eq!(status, 200, "{answer}");
        let lifted: Vec<f64> = times
            .iter()
            .map(|t| {
                latest = latest.max(*t);
                latest
            })
            .collect();
        let step = session.step(Input { times: Some(&lifted), ..Input::new(&block) }).unwrap();
        assert_same(&answer, &step);
    }
    assert_eq!(service.state("default"), session.state().to_bytes().unwrap());
    let left = crash(folder.path());
    let after = Service::start(config(left.path()));
    assert_eq!(after.state("default"), session.state().to_bytes().unwrap());
    // rows without a time are stamped by the server, not before the latest
    assert_eq!(after.post("/v1/streams/default/classify", &request(&features.slice(0..1))).0, 200);
    after.stop();
    service.stop();
}

#[test]
fn a_damaged_stream_does_not_keep_the_others_from_being_served() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.ensure("other", "ul-tta");
    service.stop();
    let head = folder.path().join("streams/other/head.safetensors");
    let bytes = fs::read(&head).unwrap();
    fs::write(&head, &bytes[..bytes.len() / 2]).unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&rows(10));
    let (_, health) = service.get("/readyz");
    assert_eq!(health["status"], "degraded");
    assert!(health["degraded"]["other"].as_str().unwrap().contains("could not be opened"), "{health}");
    let (_, list) = service.get("/v1/streams");
    assert_eq!(list["streams"].as_array().unwrap().len(), 1);
    assert_eq!(list["damaged"], health["degraded"]);
    assert_eq!(service.get("/v1/streams/other").0, 503);
    let again = json!({"name": "other", "head_of": "default"});
    assert_eq!(service.post("/v1/streams", &again).0, 409, "what is left of it is not overwritten");
    assert_eq!(service.delete("/v1/streams/other"), 204);
    assert_eq!(service.get("/healthz").1["status"], "ok");
    let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
    assert!(!metrics.contains("stream=\"other\""), "nothing is left of it");
    assert_eq!(service.post("/v1/streams", &again).0, 201);
    service.stop();
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let error = Service::try_start(config(folder.path()), None).err().unwrap().to_string();
    assert!(error.contains("another server"), "{error}");
    // Nor if somebody has tidied up.
    fs::remove_file(folder.path().join("lock")).unwrap();
    let error = Service::try_start(config(folder.path()), None).err().unwrap().to_string();
    assert!(error.contains("another server"), "{error}");
    service.stop();
    Service::with_default(folder.path(), "ul-tta").stop();
}

fn encode(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A full disk at the end of a run leaves a segment that was never begun.
#[test]
fn a_segment_that_was_never_begun_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(200);
    for start in (0..200).step_by(20) {
        service.classify(&features.slice(start..start + 20));
    }
    for torn in [&b""[..], b"ULT"] {
        let mut session = session("ul-tta");
        session.step(&features).unwrap();
        let left = crash(folder.path());
        fs::write(left.path().join(format!("streams/default/log-{:020}.wal", 10)), torn).unwrap();
        let after = Service::start(config(left.path()));
        assert_eq!(after.get("/healthz").1["status"], "ok");
        assert_eq!(after.state("default"), session.state().to_bytes().unwrap());
        after.classify(&features.slice(0..10));
        session.step(&features.slice(0..10)).unwrap();
        let again = crash(left.path());
        after.stop();
        let recovered = Service::start(config(again.path()));
        assert_eq!(recovered.state("default"), session.state().to_bytes().unwrap());
        recovered.stop();
    }
    service.stop();
}
