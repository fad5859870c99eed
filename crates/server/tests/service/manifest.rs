//! Files of a stream that are missing, exchanged or changed are found when it is opened, and named.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::*;
use crate::durability::crash;

/// The file of a stream whose name begins so.
fn find(folder: &Path, stream: &str, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(folder.join("streams").join(stream)).unwrap();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .collect();
    assert_eq!(found.len(), 1, "{prefix}: {found:?}");
    found.remove(0)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A folder with a stream that has a base, a log behind it and a snapshot, and a second stream with another head; and the
/// state of the first.
fn folder_in_use() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let other = json!({"prototypes": [[1.0, 0.0], [0.0, 1.0]], "classes": ["a", "b"], "logit_scale": 50});
    assert_eq!(service.post("/v1/streams", &json!({"name": "other", "head": other})).0, 201);
    let features = rows(120);
    service.classify(&features.slice(0..60));
    assert_eq!(service.post("/v1/streams/default/snapshots", &json!({"label": "a"})).0, 201);
    assert_eq!(service.post("/v1/streams/default/rollback", &json!({"label": "a"})).0, 200);
    service.classify(&features.slice(60..120));
    let (left, state) = (crash(folder.path()), service.state("default"));
    service.stop();
    (left, state)
}

#[test]
fn every_file_that_is_missing_or_changed_is_named_and_putting_it_back_mends_the_stream() {
    let (folder, state) = folder_in_use();
    type Harm = fn(&Path);
    let harms: [(&str, &[&str], Harm); 16] = [
        ("base missing", &["base-", "a base state is missing"], |f| {
            fs::remove_file(find(f, "default", "base-")).unwrap()
        }),
        ("base changed in its numbers", &["base-", "its digest is another"], |f| {
            let path = find(f, "default", "base-");
            let end = fs::metadata(&path).unwrap().len() as usize;
            flip(&path, end - 9);
        }),
        ("base changed in its text", &["base-", "its digest is another"], |f| {
            flip(&find(f, "default", "base-"), 100)
        }),
        ("log missing", &["log-", "a segment of the log is missing"], |f| {
            fs::remove_file(find(f, "default", "log-")).unwrap()
        }),
        ("log exchanged", &["log-", "a log of another stream"], |f| {
            let (log, other) = (find(f, "default", "log-"), find(f, "other", "log-"));
            fs::copy(other, log).map(drop).unwrap()
        }),
        ("base and log missing", &["is missing"], |f| {
            fs::remove_file(find(f, "default", "base-")).unwrap();
            fs::remove_file(find(f, "default", "log-")).unwrap();
        }),
        ("head exchanged", &["head.safetensors", "another head"], |f| {
            fs::copy(find(f, "other", "head"), find(f, "default", "head")).map(drop).unwrap()
        }),
        ("head missing", &["the head is missing"], |f| fs::remove_file(find(f, "default", "head")).unwrap()),
        ("settings changed", &["stream.json", "settings were changed"], |f| {
            let path = find(f, "default", "stream.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("enabled = true"), "{text}");
            fs::write(&path, text.replacen("enabled = true", "enabled = false", 1)).unwrap();
        }),
        ("settings missing", &["settings is missing"], |f| {
            fs::remove_file(find(f, "default", "stream.json")).unwrap()
        }),
        ("manifest missing", &["manifest.json", "is missing"], |f| {
            fs::remove_file(find(f, "default", "manifest")).unwrap()
        }),
        ("manifest changed", &["manifest.json", "damaged"], |f| {
            let path = find(f, "default", "manifest");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace("\"number\": 1", "\"number\": 0")).unwrap();
        }),
        ("mark missing", &["synced", "is missing"], |f| {
            fs::remove_file(find(f, "default", "synced")).unwrap()
        }),
        ("mark changed", &["synced", "is damaged"], |f| {
            let path = find(f, "default", "synced");
            flip(&path, 0);
            flip(&path, 512);
        }),
        ("a foreign log", &["log-", "not listed"], |f| {
            let log = find(f, "default", "log-");
            fs::copy(&log, log.with_file_name(format!("log-{:020}.wal", 50))).map(drop).unwrap()
        }),
        ("the whole folder missing", &["its folder is missing"], |f| {
            fs::remove_dir_all(f.join("streams/default")).unwrap()
        }),
    ];
    for (what, words, harm) in harms {
        let left = crash(folder.path());
        harm(left.path());
        let service = Service::start(config(left.path()));
        let (_, health) = service.get("/healthz");
        let named = health["degraded"]["default"].as_str().unwrap_or_else(|| panic!("{what}: {health}"));
        assert!(words.iter().all(|word| named.contains(word)), "{what}: {named}");
        assert_eq!(service.get("/v1/streams/default").0, 503, "{what}");
        assert_eq!(service.get("/v1/streams").1["damaged"]["default"], named, "{what}");
        assert_eq!(service.get("/v2/models/default/ready").0, 503, "{what}");
        let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
        for line in ["ultta_damaged{stream=\"default\"} 1", "ultta_verdict{stream=\"default\"} 2"] {
            assert!(metrics.contains(line), "{what}: {line}");
        }
        assert_eq!(service.get("/v1/streams/other").0, 200, "{what}: the other is served");
        service.stop();
        // With its own files back it is what it was.
        let stream = left.path().join("streams/default");
        let _ = fs::remove_dir_all(&stream);
        let copy = crash(folder.path());
        fs::rename(copy.path().join("streams/default"), &stream).unwrap();
        let service = Service::start(config(left.path()));
        assert_eq!(service.get("/healthz").1["status"], "ok", "{what}");
        assert!(service.state("default") == state, "{what}: another state");
        service.stop();
    }
    // A snapshot that was changed is refused when it is needed, and harms nothing else.
    let snapshot = folder.path().join("streams/default/snapshots/a.safetensors");
    flip(&snapshot, fs::metadata(&snapshot).unwrap().len() as usize - 9);
    let service = Service::start(config(folder.path()));
    let (status, problem) = service.post("/v1/streams/default/rollback", &json!({"label": "a"}));
    assert!(
        status >= 400 && problem["detail"].as_str().unwrap().contains("snapshot a was changed"),
        "{problem}"
    );
    assert!(service.state("default") == state);
    service.stop();
}

/// A stream whose folder is gone is not made anew in silence, by the start of the server or by a call; deleting it settles it.
#[test]
fn a_stream_without_its_folder_does_not_start_at_zero() {
    let (folder, _) = folder_in_use();
    fs::remove_dir_all(folder.path().join("streams/default")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = || config(folder.path());
    let spec = ultta_server::StreamSpec {
        head: head(),
        config: ultta::Config::named("ul-tta").unwrap(),
        durability: None,
        group: None,
    };
    let start = ultta_server::Server::start_with(config(), None, Some(("default", spec)));
    let server = runtime.block_on(start).unwrap();
    assert!(server.streams().is_damaged("default"));
    runtime.block_on(server.stop());
    let service = Service::start(config());
    assert_eq!(service.post("/v1/streams", &json!({"name": "default", "head_of": "other"})).0, 409);
    assert_eq!(service.delete("/v1/streams/default"), 204);
    assert_eq!(service.get("/healthz").1["status"], "ok");
    service.stop();
    let service = Service::start(config());
    assert_eq!(service.get("/healthz").1["status"], "ok", "it is forgotten for good");
    assert_eq!(service.get("/v1/streams/default").0, 404);
    service.stop();
}

/// Snapshots are listed: one that is missing is told until it is back or someone acknowledges it, and one under another
/// one's name is refused.
#[test]
fn snapshots_that_are_missing_or_exchanged_are_noticed() {
    let (folder, state) = folder_in_use();
    let snapshot = |label: &str| folder.path().join(format!("streams/default/snapshots/{label}.safetensors"));
    let aside = folder.path().join("aside");
    fs::rename(snapshot("a"), &aside).unwrap();
    for _ in 0..2 {
        let service = Service::start(config(folder.path()));
        let (_, view) = service.get("/v1/streams/default");
        assert_eq!(view["status"]["damage"], "the snapshot a is missing");
        assert_eq!(service.get("/healthz").1["degraded"]["default"], "the snapshot a is missing");
        assert_eq!(service.post("/v1/streams/default/rollback", &json!({"label": "a"})).0, 400);
        assert!(service.state("default") == state, "it is served all the same");
        service.stop();
    }
    fs::rename(&aside, snapshot("a")).unwrap();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok", "it is back");
    assert_eq!(service.post("/v1/streams/default/snapshots", &json!({"label": "b"})).0, 201);
    fs::copy(snapshot("a"), snapshot("b")).unwrap();
    let (_, problem) = service.post("/v1/streams/default/rollback", &json!({"label": "b"}));
    assert!(problem["detail"].as_str().unwrap().contains("the one of the label a"), "{problem}");
    assert_eq!(service.post("/v1/streams/default/rollback", &json!({"label": "a"})).0, 200);
    service.stop();
    fs::remove_dir_all(folder.path().join("streams/default/snapshots")).unwrap();
    let service = Service::start(config(folder.path()));
    let health = service.get("/healthz").1;
    let expected = "the snapshot a is missing; the snapshot b is missing";
    assert_eq!(health["degraded"]["default"], expected, "{health}");
    assert_eq!(service.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
    service.stop();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok");
    assert_eq!(service.get("/v1/streams/default/snapshots").1["snapshots"], json!([]));
    assert_eq!(service.post("/v1/streams/default/snapshots", &json!({"label": "c"})).0, 201);
    assert_eq!(service.delete("/v1/streams/default/snapshots/c"), 204);
    service.stop();
}

/// Earlier builds listed no snapshots and kept what was lost in a file of its own: both are taken over.
#[test]
fn snapshots_and_damage_of_earlier_builds_are_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    service.classify(&rows(20));
    assert_eq!(service.post("/v1/streams/default/snapshots", &json!({"label": "a"})).0, 201);
    let left = crash(folder.path());
    service.stop();
    let stream = left.path().join("streams/default");
    list_logs(&stream, &[0]);
    fs::write(stream.join("damage.txt"), "a record was lost").unwrap();
    fs::remove_file(left.path().join("streams.json")).unwrap();
    for _ in 0..2 {
        let service = Service::start(config(left.path()));
        assert_eq!(service.get("/healthz").1["degraded"]["default"], "a record was lost");
        assert_eq!(service.get("/v1/streams/default/snapshots").1["snapshots"][0]["label"], "a");
        service.stop();
        assert!(!stream.join("damage.txt").exists(), "no file that can be lost");
    }
}

/// What a crash between two writes leaves behind counts for nothing.
#[test]
fn files_that_a_crash_left_unlisted_change_nothing() {
    let (folder, state) = folder_in_use();
    let stream = folder.path().join("streams/default");
    // A segment that was made and not listed, a base that was written and not listed, and what compaction left.
    let (log, base) = (find(folder.path(), "default", "log-"), find(folder.path(), "default", "base-"));
    fs::write(stream.join(format!("log-{:020}.wal", 2)), b"ULTTAW\x00\x03a stream").unwrap();
    fs::write(stream.join(format!("log-{:020}.wal", 0)), fs::read(&log).unwrap()).unwrap();
    let later = format!("base-{:020}-0123456789abcdef.safetensors", 2);
    fs::copy(&base, stream.join(&later)).unwrap();
    fs::copy(&base, stream.join(format!("base-{:020}-0123456789abcdef.safetensors", 0))).unwrap();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok");
    assert!(service.state("default") == state);
    let view = service.get("/v1/streams/default").1;
    assert_eq!((&view["status"]["generation"], &view["status"]["log_next"]), (&json!(1), &json!(2)));
    service.stop();
    // The stop has written a base of its own, and compaction has removed the rest.
    assert!(!stream.join(later).exists());
    assert_eq!(find(folder.path(), "default", "base-").extension().unwrap(), "safetensors");
    let service = Service::start(config(folder.path()));
    assert!(service.state("default") == state);
    service.stop();
}

/// Two states before the same record: the later one counts, whatever moment the crash comes at.
#[test]
fn resets_without_a_record_between_them_survive() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(40);
    service.classify(&features);
    for generation in 1..4 {
        assert_eq!(service.post("/v1/streams/default/reset", &json!({})).0, 200);
        let left = crash(folder.path());
        let after = Service::start(config(left.path()));
        assert_eq!(after.get("/v1/streams/default").1["status"]["generation"], generation);
        assert_eq!(after.get("/healthz").1["status"], "ok");
        after.stop();
    }
    service.classify(&features);
    let left = crash(folder.path());
    let mut expected = session("ul-tta");
    expected.step(&features).unwrap();
    let after = Service::start(config(left.path()));
    assert!(after.state("default") == expected.state().to_bytes().unwrap());
    after.stop();
    service.stop();
}

/// Writes the manifest anew with these segments, as the service did before logs had marks.
pub fn list_logs(stream: &Path, logs: &[u64]) {
    let path = stream.join("manifest.json");
    let sealed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let listed = &sealed["manifest"];
    assert!(listed["base"].is_null());
    let (format, head, settings) = (&listed["format"], &listed["head"], &listed["settings"]);
    let text = format!(
        r#"{{"format":{format},"head":{head},"settings":{settings},"base":null,"logs":{}}}"#,
        json!(logs)
    );
    let sha256: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&path, format!(r#"{{"manifest":{text},"sha256":"{sha256}"}}"#)).unwrap();
}

/// A log in two segments, as it is until a base is written: each is needed, and what cannot follow is not learnt.
#[test]
fn a_segment_that_lost_its_end_keeps_the_later_one_from_being_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::with_default(folder.path(), "ul-tta");
    let features = rows(100);
    let (mut ends, mut session, mut states) = (Vec::new(), session("ul-tta"), Vec::new());
    for start in (0..100).step_by(20) {
        service.classify(&features.slice(start..start + 20));
        session.step(&features.slice(start..start + 20)).unwrap();
        states.push(session.state().to_bytes().unwrap());
        ends.push(fs::metadata(find(folder.path(), "default", "log-")).unwrap().len() as usize);
    }
    let left = crash(folder.path());
    service.stop();
    let whole = fs::read(find(left.path(), "default", "log-")).unwrap();
    for (kept, damaged) in [(ends[2], false), (ends[2] - 1, true), (ends[1], true), (ends[1] + 20, true)] {
        let left = crash(left.path());
        let stream = left.path().join("streams/default");
        let first = find(left.path(), "default", "log-");
        fs::write(&first, &whole[..kept]).unwrap();
        let second = [&whole[..16], &whole[ends[2]..]].concat();
        fs::write(stream.join(format!("log-{:020}.wal", 3)), second).unwrap();
        list_logs(&stream, &[0, 3]);
        let service = Service::start(config(left.path()));
        let (_, view) = service.get("/v1/streams/default");
        let damage = view["status"]["damage"].as_str();
        assert_eq!(damage.is_some(), damaged, "{kept}: {damage:?}");
        if let Some(damage) = damage {
            let named = "the log from record 3 on, 2 whole records (40 rows), does not follow record 2";
            assert!(damage.contains(named), "{damage}");
        }
        assert_eq!(view["status"]["generation"], u64::from(damaged));
        assert!(service.state("default") == states[if damaged { 1 } else { 4 }]);
        service.stop();
    }
}
