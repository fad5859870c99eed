//! The hub's side of a download, played by a small server: redirects, ranges, digests, failures.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ultta_encode::hub::Hub;
use ultta_encode::{Clip, Encoder};

const MODEL: &str = "someone/tiny-clip";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct Server {
    files: HashMap<String, Vec<u8>>,
    /// Bytes after which the next download of the weights breaks off.
    break_after: Mutex<Vec<usize>>,
    /// Whether a download that breaks off only falls silent: its connection is kept here.
    silent: Option<Mutex<Vec<TcpStream>>>,
    /// Whether the digest the hub gives is another one.
    lies: bool,
    /// Whether it wants to know who asks.
    refuses: bool,
    gets: AtomicUsize,
    ranges: Mutex<Vec<String>>,
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl Server {
    fn start(self) -> (Arc<Self>, String) {
        let server = Arc::new(self);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shared = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = shared.serve(stream);
            }
        });
        (server, address)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut parts = line.split_whitespace();
        let (method, path) = (parts.next().unwrap_or("").to_string(), parts.next().unwrap_or("").to_string());
        let mut range = None;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_lowercase().strip_prefix("range:") {
                range = Some(value.trim().to_string());
            }
        }
        if self.refuses {
            let status = "401 Unauthorized";
            return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        let resolve = format!("/{MODEL}/resolve/main/");
        let name = path.strip_prefix(&resolve).or_else(|| path.strip_prefix("/cdn/")).unwrap_or("");
        let Some(bytes) = self.files.get(name) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        };
        let etag = if self.lies { sha256(b"other") } else { sha256(bytes) };
        if path.starts_with(&resolve) && name.ends_with(".safetensors") {
            // Large files lie elsewhere.
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: /cdn/{name}\r\nX-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{etag}\"\r\n\
                 X-Linked-Size: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                bytes.len()
            );
        }
        let start: usize = match &range {
            Some(range) => range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap_or(0),
            None => 0,
        };
        let rest = &bytes[start.min(bytes.len())..];
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
            rest.len()
        )?;
        if method == "GET" {
            self.gets.fetch_add(1, Ordering::SeqCst);
            self.ranges.lock().unwrap().extend(range);
            let cut = if name.ends_with(".safetensors") {
                self.break_after.lock().unwrap().pop().unwrap_or(rest.len())
            } else {
                rest.len()
            };
            stream.write_all(&rest[..cut.min(rest.len())])?;
            if let Some(kept) = self.silent.as_ref().filter(|_| cut < rest.len()) {
                kept.lock().unwrap().push(stream);
            }
        }
        Ok(())
    }
}

fn files() -> HashMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clip");
    ["config.json", "model.safetensors"]
        .map(|name| (name.to_string(), std::fs::read(folder.join(name)).unwrap()))
        .into()
}

fn hub(endpoint: &str, cache: PathBuf, offline: bool) -> Hub {
    Hub { endpoint: endpoint.into(), cache, offline, token: None, patience: Duration::from_secs(30) }
}

#[test]
fn a_model_is_downloaded_resumed_checked_and_kept() {
    let cache = tempfile::tempdir().unwrap();
    let server =
        Server { files: files(), break_after: Mutex::new(vec![20_000, 50_000]), ..Server::default() };
    let (server, address) = server.start();
    let mut last = (0, 0);
    let folder = hub(&address, cache.path().into(), false)
        .model(MODEL, &mut |p| {
            if p.file == "model.safetensors" {
                last = (p.done, p.total);
            }
        })
        .unwrap();
    assert!(folder.ends_with(format!("models--someone--tiny-clip/snapshots/{COMMIT}")));
    assert_eq!(last.0, last.1, "progress reaches the end");
    assert_eq!(
        *server.ranges.lock().unwrap(),
        ["bytes=50000-", "bytes=70000-"],
        "it went on where it stopped"
    );
    assert_eq!(Clip::open(&folder).unwrap().dim(), 12);
    let weights = folder.join("model.safetensors");
    assert!(weights.is_symlink() && std::fs::read(&weights).unwrap() == files()["model.safetensors"]);
    // Now it is in the cache: nothing is asked for again, and no connection is needed.
    let before = server.gets.load(Ordering::SeqCst);
    let again = hub("http://127.0.0.1:1", cache.path().into(), true).model(MODEL, &mut |_| {}).unwrap();
    assert_eq!((again, server.gets.load(Ordering::SeqCst)), (folder, before));
}

/// Every failure says the same, shortly: what was asked for, which files, which folder; and the hub once.
fn says(message: &str, mirror: &str, words: &[&str]) {
    let always =
        ["config.json", "model.safetensors", "give it as the model", "models--someone--tiny-clip", "`tiny`"];
    for word in always.iter().chain(words) {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(message.starts_with(&format!("hub: {MODEL}: ")), "{message}");
    assert!(message.matches(mirror).count() <= 1, "the mirror once: {message}");
    // A temporary folder's name is part of it.
    assert!(message.len() < 500 && !message.contains('\n'), "{} signs: {message}", message.len());
}

#[test]
fn every_failure_is_one_short_line() {
    let cache = tempfile::tempdir().unwrap();
    let asked = |hub: &Hub| hub.model(MODEL, &mut |_| {}).unwrap_err().to_string();
    let of = |mirror: &str| hub(mirror, cache.path().into(), false);

    let offline = asked(&hub("http://127.0.0.1:1", cache.path().into(), true));
    says(&offline, "http://127.0.0.1:1", &["not in the cache, and HF_HUB_OFFLINE is set"]);

    let no_network = asked(&of("http://no-such-host.invalid"));
    says(
        &no_network,
        "no-such-host.invalid",
        &["no answer from http://no-such-host.invalid (HF_ENDPOINT): no such host, or no network"],
    );

    let refused = asked(&of("http://127.0.0.1:1"));
    says(&refused, "127.0.0.1:1", &["no answer from http://127.0.0.1:1 (HF_ENDPOINT): connection refused"]);

    // A mirror with a password in its address: the address without it.
    let secret = asked(&of("http://me:secret@127.0.0.1:1"));
    says(&secret, "127.0.0.1:1", &["no answer from http://127.0.0.1:1 (HF_ENDPOINT)"]);
    assert!(!secret.contains("secret") && !secret.contains("me:"), "{secret}");

    let (_, absent) = Server::default().start();
    let message = asked(&of(&absent));
    says(&message, &absent, &["(HF_ENDPOINT) has no config.json of it (404): no such model"]);

    let (_, closed) = Server { files: files(), refuses: true, ..Server::default() }.start();
    let message = asked(&of(&closed));
    says(&message, &closed, &["(HF_ENDPOINT) answers 401 Unauthorized", "HF_TOKEN"]);

    // It takes a connection and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", mute.local_addr().unwrap());
    let message = asked(&Hub { patience: Duration::from_millis(200), ..of(&address) });
    says(&message, &address, &["(HF_ENDPOINT): nothing within 0.2 s"]);
}

#[test]
fn a_download_that_falls_silent_is_taken_up_again_and_then_given_up() {
    let cache = tempfile::tempdir().unwrap();
    let asked = |stalls: Vec<usize>, folder: &str| {
        let server = Server { files: files(), break_after: Mutex::new(stalls), ..Server::default() };
        let (_, address) = Server { silent: Some(Mutex::default()), ..server }.start();
        let patience = Duration::from_millis(300);
        let hub = Hub { patience, ..hub(&address, cache.path().join(folder), false) };
        (hub.model(MODEL, &mut |_| {}), address)
    };
    // Once: what is missing comes with the next try.
    let (folder, _) = asked(vec![20_000], "once");
    assert_eq!(
        std::fs::read(folder.unwrap().join("model.safetensors")).unwrap(),
        files()["model.safetensors"]
    );
    // Without end: it says so, and what to do.
    let (failed, address) = asked(vec![1_000; 9], "always");
    let words = ["model.safetensors: nothing more within 0.3 s after 5000 bytes", "kept for the next try"];
    says(&failed.unwrap_err().to_string(), &address, &words);
}

#[test]
fn the_files_to_get_are_those_of_the_model() {
    let cache = tempfile::tempdir().unwrap();
    let closed = hub("http://127.0.0.1:1", cache.path().into(), false);
    let message = |model: &str| closed.model(model, &mut |_| {}).unwrap_err().to_string();
    let openai = message("openai/clip-vit-base-patch16");
    assert!(openai.contains("put config.json, preprocessor_config.json and model.safetensors"), "{openai}");
    assert!(!openai.contains("open_clip") && !openai.contains("tokenizer.json"), "{openai}");
    let siglip = message("google/siglip-base-patch16-224");
    assert!(siglip.contains("preprocessor_config.json, tokenizer.json and model.safetensors"), "{siglip}");
    let timm = message("timm/resnet50_clip.openai");
    assert!(timm.contains("put open_clip_config.json and open_clip_model.safetensors into"), "{timm}");
}

#[test]
fn what_cannot_be_had_says_why() {
    let cache = tempfile::tempdir().unwrap();
    let error = |hub: &Hub, model: &str| hub.model(model, &mut |_| {}).unwrap_err().to_string();
    // A name of the hub's kind that is none of the known ones: the nearest; one that is known: none.
    let closed = hub("http://127.0.0.1:1", cache.path().into(), false);
    let mistyped = error(&closed, "openai/clip-vit-base-patch61");
    assert!(mistyped.contains("did you mean openai/clip-vit-base-patch16?"), "{mistyped}");
    let known = error(&closed, "openai/clip-vit-base-patch16");
    assert!(!known.contains("did you mean") && !known.contains("`ultta models`"), "{known}");
    assert!(error(&closed, "../x").ends_with("no such folder (../x)"), "a path is no name");
    for name in ["no-such-folder", "a/b/c", "a/.."] {
        let message = error(&hub("http://127.0.0.1:1", cache.path().into(), false), name);
        assert!(message.contains("owner/name") && message.contains("`ultta models`"), "{message}");
    }
    let message = error(&hub("http://127.0.0.1:1", cache.path().into(), false), "ViT-B-61");
    assert!(message.contains("did you mean ViT-B-16?"), "{message}");
    let (_, address) = Server { files: files(), lies: true, ..Server::default() }.start();
    let message = error(&hub(&address, cache.path().into(), false), MODEL);
    assert!(message.contains("SHA-256"), "{message}");
    let blobs = cache.path().join("models--someone--tiny-clip/blobs");
    let kept = std::fs::read_dir(blobs).unwrap().flatten();
    assert!(kept.into_iter().all(|f| f.metadata().unwrap().len() < 10_000), "the wrong weights are gone");
    let mut only_config = files();
    only_config.remove("model.safetensors");
    let other = tempfile::tempdir().unwrap();
    let (_, address) = Server { files: only_config, ..Server::default() }.start();
    let message = error(&hub(&address, other.path().into(), false), MODEL);
    assert!(
        message.contains("there is none of model.safetensors") && message.contains("give it as the model"),
        "{message}"
    );
    let (_, address) =
        Server { files: files(), break_after: Mutex::new(vec![0; 9]), ..Server::default() }.start();
    let message = error(&hub(&address, other.path().join("z"), false), MODEL);
    assert!(message.contains("broke off") && message.contains("one folder"), "{message}");
}

/// A hub that gives every request the same answer.
fn always(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let _ = write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn a_hub_that_answers_oddly_is_told_as_such() {
    for (answer, words) in [
        ("200 OK", "the hub gave no ETag to keep the file under"),
        ("302 Found", "a redirect to nowhere"),
        ("302 Found\r\nLocation: /again", "too many redirects"),
        // What it says of the size is not what comes.
        (
            "200 OK\r\nETag: \"abc\"\r\nX-Linked-Size: 7",
            "config.json: the connection broke off after 0 of 7 bytes",
        ),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let address = always(answer);
        let told =
            hub(&address, cache.path().into(), false).model(MODEL, &mut |_| {}).unwrap_err().to_string();
        says(&told, &address, &[words]);
    }
}

#[test]
fn a_shard_that_is_missing_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let mut held = files();
    held.remove("model.safetensors");
    held.insert(
        "model.safetensors.index.json".into(),
        br#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#.to_vec(),
    );
    let (_, address) = Server { files: held, ..Server::default() }.start();
    let told = hub(&address, cache.path().into(), false).model(MODEL, &mut |_| {}).unwrap_err().to_string();
    says(&told, &address, &["there is no model-00001-of-00002.safetensors, which its index names"]);
}
