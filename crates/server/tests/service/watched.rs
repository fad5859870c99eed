//! Files that are removed, cut or exchanged while the server runs are noticed then, named, and written anew from memory; what
//! is no file keeps no other stream from being served.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use ultta_server::Durability;

use crate::common::*;
use crate::durability::crash;

/// The newest file of a stream whose name begins so, but for what was set aside.
fn find(folder: &Path, stream: &str, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(folder.join("streams").join(stream)).unwrap();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .filter(|path| !path.to_string_lossy().contains(".exchanged"))
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("no {prefix}"))
}

/// A service with a stream that has a base, a log and a snapshot, and another one of the same head and settings.
fn in_use(durability: Durability) -> (tempfile::TempDir, Service) {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(ultta_server::ServerConfig { durability, ..config(folder.path()) });
    for stream in ["default", "other"] {
        service.ensure(stream, "ul-tta");
        let classify = |from: usize| {
            let body = request(&rows(60).slice(from..from + 30));
            assert_eq!(service.post(&format!("/v1/streams/{stream}/classify"), &body).0, 200);
        };
        classify(0);
        let path = |call: &str| format!("/v1/streams/{stream}/{call}");
        assert_eq!(service.post(&path("snapshots"), &json!({"label": "a"})).0, 201);
        assert_eq!(service.post(&path("rollback"), &json!({"label": "a"})).0, 200);
        classify(30);
    }
    (folder, service)
}

fn damage(service: &Service) -> Option<String> {
    let health = service.get("/healthz").1;
    health["degraded"]["default"].as_str().map(String::from)
}

type Harm = fn(&Path);

/// Each harm, and what names it.
const HARMS: [(&str, &[&str], Harm); 15] = [
    ("log removed", &["log-", "was removed"], |f| fs::remove_file(find(f, "default", "log-")).unwrap()),
    ("log moved away", &["log-", "it is gone"], |f| {
        fs::rename(find(f, "default", "log-"), f.join("aside")).unwrap()
    }),
    ("log cut", &["log-", "it has 100 bytes"], |f| {
        let log = fs::File::options().write(true).open(find(f, "default", "log-")).unwrap();
        log.set_len(100).unwrap()
    }),
    ("log exchanged", &["log-", "another file is in its place"], |f| {
        let (log, other) = (find(f, "default", "log-"), find(f, "other", "log-"));
        fs::copy(&other, f.join("copy")).unwrap();
        fs::rename(&log, f.join("aside")).unwrap();
        fs::rename(f.join("copy"), log).unwrap()
    }),
    ("base removed", &["base-", "missing"], |f| fs::remove_file(find(f, "default", "base-")).unwrap()),
    ("base cut", &["base-", "the base state was changed"], |f| {
        let base = fs::File::options().write(true).open(find(f, "default", "base-")).unwrap();
        base.set_len(100).unwrap()
    }),
    ("base changed", &["base-", "its digest is another"], |f| {
        let path = find(f, "default", "base-");
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.len() - 9;
        bytes[end] ^= 1;
        fs::write(path, bytes).unwrap()
    }),
    ("head removed", &["head.safetensors", "the head is missing"], |f| {
        fs::remove_file(find(f, "default", "head")).unwrap()
    }),
    ("head cut", &["head.safetensors"], |f| fs::write(find(f, "default", "head"), b"broken").unwrap()),
    ("settings removed", &["stream.json", "settings is missing"], |f| {
        fs::remove_file(find(f, "default", "stream.json")).unwrap()
    }),
    ("manifest removed", &["manifest.json", "is missing"], |f| {
        fs::remove_file(find(f, "default", "manifest")).unwrap()
    }),
    ("manifest exchanged", &["manifest.json", "another list of files"], |f| {
        fs::copy(find(f, "other", "manifest"), find(f, "default", "manifest")).map(drop).unwrap()
    }),
    ("mark removed", &["synced", "it is gone"], |f| fs::remove_file(find(f, "default", "synced")).unwrap()),
    ("mark cut", &["synced", "it was cut off"], |f| fs::write(find(f, "default", "synced"), b"").unwrap()),
    ("everything removed", &["the stream's folder is missing"], |f| {
        fs::remove_dir_all(f.join("streams/default")).unwrap()
    }),
];

/// Whatever is done to the files of a stream, it is told, nothing that was acknowledged is lost, and learning goes on.
#[test]
fn what_is_done_to_files_while_the_server_runs_is_noticed_and_written_anew() {
    for (durability, harms) in [(Durability::Interval, &HARMS[..]), (Durability::Sync, &HARMS[..4])] {
        let (folder, service) = in_use(durability);
        for &(what, words, harm) in harms {
            assert_eq!(damage(&service), None, "before: {what}");
            let before = service.state("default");
            harm(folder.path());
            eventually(what, || damage(&service).is_some());
            let told = damage(&service).unwrap();
            assert!(words.iter().all(|word| told.contains(word)), "{what}: {told}");
            assert!(told.contains("written anew"), "{what}: {told}");
            let view = service.get("/v1/streams/default").1;
            let status = &view["status"];
            assert!(status["degraded"].is_null() && status["damage"].is_string(), "{what}: {status}");
            assert_eq!(
                (&status["generation"], &view["verdict"]["level"]),
                (&json!(1), &json!("act")),
                "{what}"
            );
            let metrics = String::from_utf8(service.get_bytes("/metrics").1).unwrap();
            assert!(metrics.contains("ultta_damaged{stream=\"default\"} 1"), "{what}");
            assert!(service.state("default") == before, "{what}: nothing is lost");
            assert_eq!(service.classify(&rows(10))["learnt"], true, "{what}");
            // A crash then loses nothing, and the note of what was done stays until it is acknowledged.
            let (left, state) = (crash(folder.path()), service.state("default"));
            let after = Service::start(config(left.path()));
            assert!(after.state("default") == state, "{what}: after a crash");
            assert_eq!(damage(&after), Some(damage(&service).unwrap()), "{what}");
            after.stop();
            assert_eq!(service.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
            // The snapshots are gone with the folder, and that is told, too.
            let label = service.get("/v1/streams/default/snapshots").1["snapshots"][0]["label"].clone();
            assert_eq!(label.is_null(), what == "everything removed", "{what}");
        }
        assert_eq!(service.get("/healthz").1["status"], "ok");
        service.stop();
    }
}

/// A row that comes right after its log was removed or cut is in a log that is there, before it is answered.
#[test]
fn no_row_is_taken_into_a_log_that_is_gone() {
    let (folder, service) = in_use(Durability::Sync);
    for (what, _, harm) in [HARMS[0], HARMS[2]] {
        harm(folder.path());
        assert_eq!(service.classify(&rows(10))["learnt"], true, "{what}");
        let (left, state) = (crash(folder.path()), service.state("default"));
        let after = Service::start(config(left.path()));
        assert!(after.state("default") == state, "{what}");
        after.stop();
    }
    service.stop();
}

/// Folders that were exchanged: nothing is written into another stream's folder, and what was is there when they are put back.
#[test]
fn folders_that_are_exchanged_are_not_written_to() {
    let (folder, service) = in_use(Durability::Interval);
    let at = |name: &str| folder.path().join("streams").join(name);
    let exchange = || {
        fs::rename(at("default"), at("aside")).unwrap();
        fs::rename(at("other"), at("default")).unwrap();
        fs::rename(at("aside"), at("other")).unwrap();
    };
    let states = ["default", "other"].map(|stream| service.state(stream));
    exchange();
    for stream in ["default", "other"] {
        let told = || service.get(&format!("/v1/streams/{stream}")).1["status"]["degraded"].clone();
        eventually("it is told", || told().is_string());
        assert!(told().as_str().unwrap().contains("another folder is in the place"), "{}", told());
        assert_eq!(service.get(&format!("/v2/models/{stream}/ready")).0, 503);
        let (status, answer) = service.post(&format!("/v1/streams/{stream}/classify"), &request(&rows(5)));
        assert_eq!((status, &answer["learnt"]), (200, &json!(false)));
        assert_eq!(service.post(&format!("/v1/streams/{stream}/snapshots"), &json!({"label": "b"})).0, 507);
    }
    // So they are found at a start, each named by its own name.
    let left = crash(folder.path());
    let after = Service::start(config(left.path()));
    let health = after.get("/healthz").1;
    let named = |stream: &str| health["degraded"][stream].as_str().unwrap_or("well").to_string();
    assert!(named("default").contains("the folder of the stream other"), "{health}");
    assert!(named("other").contains("the folder of the stream default"), "{health}");
    after.stop();
    exchange();
    eventually("they are back", || service.get("/healthz").1["status"] == "ok");
    assert!(service.state("default") == states[0] && service.state("other") == states[1]);
    assert_eq!(service.classify(&rows(5))["learnt"], true);
    let (left, state) = (crash(folder.path()), service.state("default"));
    let after = Service::start(config(left.path()));
    assert!(after.state("default") == state && after.state("other") == states[1]);
    after.stop();
    service.stop();
}

/// A folder that was copied in under a new name is a stream of its own.
#[test]
fn a_copy_under_a_new_name_is_a_stream() {
    let (folder, service) = in_use(Durability::Interval);
    let left = crash(folder.path());
    service.stop();
    let copy = crash(&left.path().join("streams/default"));
    fs::rename(copy.path(), left.path().join("streams/copied")).unwrap();
    for _ in 0..2 {
        let service = Service::start(config(left.path()));
        assert_eq!(service.get("/healthz").1["status"], "ok");
        assert!(service.state("copied") == service.state("default"));
        service.stop();
    }
}

/// Snapshots that are removed or changed while the server runs.
#[test]
fn snapshots_are_looked_at_while_the_server_runs() {
    let (folder, service) = in_use(Durability::Interval);
    let path = folder.path().join("streams/default/snapshots/a.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    eventually("it is missed", || damage(&service).as_deref() == Some("the snapshot a is missing"));
    fs::write(&path, &bytes).unwrap();
    eventually("it is back", || damage(&service).is_none());
    fs::write(&path, &bytes[..100]).unwrap();
    eventually("it was cut", || {
        damage(&service).is_some_and(|told| told.contains("the snapshot a was changed"))
    });
    assert_eq!(service.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
    service.stop();
}

/// What is no file in the place of one: its stream is named, the others are served, and nothing is waited for.
#[cfg(unix)]
#[test]
fn pipes_sockets_and_folders_in_the_place_of_files_harm_their_own_stream_only() {
    let (folder, service) = in_use(Durability::Interval);
    let (left, state) = (crash(folder.path()), service.state("other"));
    service.stop();
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let socket = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    let device = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let directory = |path: &Path| fs::create_dir(path).unwrap();
    let kinds: [(&str, &dyn Fn(&Path)); 4] =
        [("pipe", &pipe), ("socket", &socket), ("device", &device), ("folder", &directory)];
    for name in ["log-", "base-", "head", "stream.json", "manifest", "synced", "damage.txt"] {
        for (kind, make) in kinds {
            let left = crash(left.path());
            let path = match name {
                "damage.txt" => left.path().join("streams/default/damage.txt"),
                name => find(left.path(), "default", name),
            };
            let _ = fs::remove_file(&path);
            make(&path);
            let service = Service::start(config(left.path()));
            let told = damage(&service).unwrap_or_else(|| panic!("{kind} for {name}"));
            assert!(told.contains("could not be opened"), "{kind} for {name}: {told}");
            assert!(service.state("other") == state, "{kind} for {name}: the other is served");
            service.stop();
        }
    }
    // In the place of what belongs to the server, too.
    for name in ["streams.json", "streams/more"] {
        let left = crash(left.path());
        let _ = fs::remove_file(left.path().join(name));
        pipe(&left.path().join(name));
        let service = Service::start(config(left.path()));
        assert!(service.state("other") == state, "{name}");
        service.stop();
    }
    let _ = fs::remove_file(left.path().join("lock"));
    pipe(&left.path().join("lock"));
    let error = Service::try_start(config(left.path()), None).err().unwrap().to_string();
    assert!(error.contains("expected a file") || error.contains("lock"), "{error}");
}

/// While the server runs, too: what was put there is set aside.
#[cfg(unix)]
#[test]
fn pipes_in_the_place_of_files_are_set_aside_while_the_server_runs() {
    let (folder, service) = in_use(Durability::Interval);
    let names = ["log-", "base-", "head", "stream.json", "manifest", "synced"];
    let pipes = names.map(|name| (name, "mkfifo"));
    // What was set aside before stays.
    for (name, make) in pipes.into_iter().chain([("head", "mkdir"), ("synced", "mkdir")]) {
        let path = find(folder.path(), "default", name);
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new(make).arg(&path).status().unwrap().success());
        eventually(name, || damage(&service).is_some());
        assert!(damage(&service).unwrap().contains("written anew"), "{name}: {:?}", damage(&service));
        assert_eq!(service.classify(&rows(10))["learnt"], true, "{name}");
        assert_eq!(service.post("/v1/streams/default/acknowledge", &json!({})).0, 200);
    }
    let state = service.state("default");
    service.stop();
    let service = Service::start(config(folder.path()));
    assert_eq!(service.get("/healthz").1["status"], "ok");
    assert!(service.state("default") == state);
    service.stop();
}

/// Tails that claim one record within the other, or far more than there is: they are read once, and copied without their holes.
#[test]
fn a_crafted_tail_of_a_log_costs_its_own_stream_only() {
    let (folder, service) = in_use(Durability::Interval);
    let pristine = crash(folder.path());
    service.stop();
    let frame = |size: u32| {
        let mut frame = [&size.to_le_bytes()[..], &7u32.to_le_bytes()].concat();
        frame.extend(crc32fast::hash(&frame).to_le_bytes());
        frame
    };
    // Each of many frames claims a record that ends where the file does.
    let frames: u32 = 200_000;
    let nested: Vec<u8> = (0..frames).flat_map(|i| frame(12 * (frames - i - 1))).collect();
    for (tail, hole, damaged) in
        [(nested, 0, true), (vec![], 1 << 40, false), (frame(64 << 20), 1 << 40, true)]
    {
        let left = crash(pristine.path());
        let path = find(left.path(), "default", "log-");
        let mut log = fs::File::options().append(true).open(&path).unwrap();
        log.write_all(&tail).unwrap();
        log.set_len(log.metadata().unwrap().len() + hole).unwrap();
        let service = Service::start(config(left.path()));
        let told = damage(&service);
        assert_eq!(told.unwrap_or_default().contains("is damaged"), damaged);
        assert_eq!(service.get("/v1/streams/other").0, 200);
        assert_eq!(service.classify(&rows(10))["learnt"], true);
        service.stop();
    }
}
