//! Models from the Hugging Face hub, in the cache that its own tools use.
//!
//! ```text
//! $HF_HOME/hub/models--owner--name/{refs/main, snapshots/COMMIT/FILE, blobs/ETAG}
//! ```
//!
//! Downloads resume where they stopped, are checked against the hub's SHA-256, and appear under their name only when
//! they are whole. `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_TOKEN` are respected, and so are
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. Whatever fails on the way, the error says which files to get
//! by other means, and where to put them, in one short line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode};

use ultta_formats::shown;

use crate::config::{HF_CONFIG, HF_PREPROCESS, OPEN_CLIP_CONFIG};
use crate::encoder::{SHARD_INDEX, WEIGHT_FILES, of_timm, shards};
use crate::{Error, Result, models, secret};

/// How far a download is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes there will be.
    pub total: u64,
}

/// A hub and the folder that caches it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Where the hub is.
    pub endpoint: String,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Whether nothing may be downloaded.
    pub offline: bool,
    /// The access token for models that need one.
    pub token: Option<String>,
    /// How long a connection, then an answer, and then each further piece of a file may take.
    pub patience: Duration,
}

/// The hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";

/// How long the hub may be silent, unless [`Hub::patience`] says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a download that broke off is taken up again.
const ATTEMPTS: usize = 5;

impl Hub {
    /// As the environment says.
    pub fn from_environment() -> Result<Self> {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let flag = |name: &str| {
            var(name).is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off"))
        };
        let cache = match (var("HF_HUB_CACHE"), var("HF_HOME")) {
            (Some(cache), _) => cache.into(),
            (None, Some(home)) => Path::new(&home).join("hub"),
            (None, None) => match var("XDG_CACHE_HOME") {
                Some(cache) => Path::new(&cache).join("huggingface").join("hub"),
                None => std::env::home_dir()
                    .ok_or_else(|| Error::hub("no home folder to keep models in; set HF_HOME"))?
                    .join(".cache/huggingface/hub"),
            },
        };
        Ok(Self {
            endpoint: var("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').into(),
            cache,
            offline: flag("HF_HUB_OFFLINE"),
            token: var("HF_TOKEN"),
            patience: PATIENCE,
        })
    }

    /// The folder of a model in the cache.
    pub fn folder(&self, model: &str) -> PathBuf {
        self.cache.join(format!("models--{}", model.replace('/', "--")))
    }

    /// The snapshot that is in the cache and holds weights, if there is one.
    pub fn cached(&self, model: &str) -> Option<PathBuf> {
        let folder = self.folder(model);
        let named = fs::read_to_string(folder.join("refs/main")).ok();
        let snapshots = folder.join("snapshots");
        let mut candidates: Vec<PathBuf> = named.iter().map(|commit| snapshots.join(commit.trim())).collect();
        if let Ok(all) = fs::read_dir(&snapshots) {
            let mut all: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
            all.sort();
            candidates.extend(all);
        }
        candidates.into_iter().find(|snapshot| complete(snapshot))
    }

    /// The folder with a model's files; what is missing is downloaded.
    pub fn model(&self, model: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf> {
        let parts: Vec<&str> = model.split('/').collect();
        let plain = |part: &&str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        if parts.len() != 2 || !parts.iter().all(plain) {
            if model.starts_with(['.', '/', '~']) {
                return Err(Error::model(model, "no such folder"));
            }
            let reason = "no such folder, and not the name of a hub model (owner/name)";
            return Err(Error::model(model, format!("{reason}; {}", models::advice(model))));
        }
        if let Some(snapshot) = self.cached(model) {
            return Ok(snapshot);
        }
        if !self.endpoint.contains("://") {
            let reason =
                format!("HF_ENDPOINT: expected an address with https:// in front, got {}", self.name());
            return Err(self.failed(model, &reason));
        }
        if self.offline {
            return Err(self.failed(model, "not in the cache, and HF_HUB_OFFLINE is set"));
        }
        self.download(model, progress).map_err(|error| match error {
            Error::Hub { reason } => self.failed(model, &reason),
            other => other,
        })
    }

    /// What was asked for, why it did not come, and how to do without the hub.
    fn failed(&self, model: &str, reason: &str) -> Error {
        let known = models::KNOWN.iter().find(|known| known.hub.eq_ignore_ascii_case(model));
        // A name that is not known may be mistyped.
        let names = if known.is_some() { String::new() } else { models::advice(model) + "; " };
        Error::hub(format!(
            "{model}: {reason}; {names}by hand: put {} into one folder and give it as the model, or copy {} \
             from another machine's cache; the model `tiny` needs no download",
            files(known),
            shown(&self.folder(model))
        ))
    }

    /// The hub as it may be shown: a mirror's address may hold a password.
    fn name(&self) -> String {
        let address = secret::hidden(&self.endpoint).replace("***@", "");
        if self.endpoint == ENDPOINT { address } else { format!("{address} (HF_ENDPOINT)") }
    }

    /// Why nothing came back; `at` is the hub or where it sent us.
    fn silent(&self, at: &str, error: &ureq::Error) -> String {
        let nowhere = || (true, "no such host, or no network".into());
        // Whether whoever is nearest could not even be reached, and why.
        let (unreached, why) = match error {
            ureq::Error::HostNotFound => nowhere(),
            // What the system says of a name has no kind of its own.
            ureq::Error::Io(error) if error.to_string().contains("lookup address") => nowhere(),
            ureq::Error::Timeout(of) => {
                let why = format!("nothing within {} s", self.patience.as_secs_f32());
                (matches!(of, ureq::Timeout::Connect), why)
            }
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                (true, "connection refused".into())
            }
            other => (false, secret::hidden(&other.to_string())),
        };
        let who = if at.starts_with(&self.endpoint) { self.name() } else { secret::hidden(origin(at)) };
        match proxy_to(at) {
            Some(proxy) if unreached => format!("no answer from the proxy {proxy}: {why}"),
            Some(proxy) => format!("no answer from {who} through the proxy {proxy}: {why}"),
            None if self.endpoint == ENDPOINT => {
                format!("no answer from {who}: {why} (HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy)")
            }
            None => format!("no answer from {who}: {why}"),
        }
    }

    fn download(&self, model: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf> {
        let agent: Agent = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(self.patience))
            .timeout_recv_response(Some(self.patience))
            .build()
            .into();
        let from = Remote { hub: self, agent: &agent, model };
        let hf = from.file(HF_CONFIG, progress)?.filter(|path| !of_timm(path));
        let open_clip = from.file(OPEN_CLIP_CONFIG, progress)?;
        let Some(config) = hf.as_ref().or(open_clip.as_ref()) else {
            let reason = format!(
                "{} has no {HF_CONFIG} of it (404): no such model, no CLIP model, or no hub",
                self.name()
            );
            return Err(Error::hub(reason));
        };
        let folder = config.parent().unwrap_or(Path::new(".")).to_owned();
        for optional in [HF_PREPROCESS, "tokenizer.json"] {
            from.file(optional, progress)?;
        }
        for weights in WEIGHT_FILES {
            // A model of `transformers` does not need open_clip's weights, and the other way round.
            let theirs = weights.starts_with("open_clip");
            if (theirs && open_clip.is_none()) || (!theirs && hf.is_none()) {
                continue;
            }
            if from.file(weights, progress)?.is_some() {
                return Ok(folder);
            }
        }
        if let Some(index) = from.file(SHARD_INDEX, progress)? {
            let text = fs::read_to_string(&index).map_err(|e| Error::io("opening", &index, e))?;
            for shard in shards(&text, &index)? {
                from.file(&shard, progress)?
                    .ok_or_else(|| Error::hub(format!("there is no {shard}, which its index names")))?;
            }
            return Ok(folder);
        }
        Err(Error::hub(format!("there is none of {}", WEIGHT_FILES.join(", "))))
    }
}

/// The proxy that requests for an address go through, as it may be shown, and the variable that names it.
fn proxy_to(address: &str) -> Option<String> {
    let proxy = ureq::Proxy::try_from_env()?;
    if address.parse().is_ok_and(|address| proxy.is_no_proxy(&address)) {
        return None;
    }
    let named = ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
        .into_iter()
        .find(|name| std::env::var(name).is_ok_and(|value| ureq::Proxy::new(&value).is_ok()))?;
    Some(format!("{}:{} ({named})", proxy.host(), proxy.port()))
}

/// The files to get by hand: those of a known model, or of either kind.
fn files(known: Option<&models::Known>) -> String {
    let open_clip = format!("{OPEN_CLIP_CONFIG} and open_clip_model.safetensors");
    let tokenizer = match known {
        Some(known) if known.hub.starts_with("timm/") => return open_clip,
        Some(known) if known.family == models::Family::SigLip => ", tokenizer.json",
        _ => "",
    };
    let hf = format!("{HF_CONFIG}, {HF_PREPROCESS}{tokenizer} and model.safetensors");
    if known.is_some() { hf + " (or pytorch_model.bin)" } else { format!("{hf}, or {open_clip},") }
}

/// Whether a snapshot holds all that is needed.
fn complete(snapshot: &Path) -> bool {
    let has = |name: &str| snapshot.join(name).exists();
    let weights = WEIGHT_FILES.iter().any(|name| has(name))
        || fs::read_to_string(snapshot.join(SHARD_INDEX))
            .is_ok_and(|text| shards(&text, snapshot).is_ok_and(|all| all.iter().all(|shard| has(shard))));
    weights && (has(HF_CONFIG) || has(OPEN_CLIP_CONFIG))
}

/// A model on its hub.
struct Remote<'a> {
    hub: &'a Hub,
    agent: &'a Agent,
    model: &'a str,
}

impl Remote<'_> {
    /// Gets one file into the cache; `None` if the model has no such file.
    fn file(&self, name: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Option<PathBuf>> {
        let url = format!("{}/{}/resolve/main/{name}", self.hub.endpoint, self.model);
        let head = self.head(&url, name).map_err(Error::hub)?;
        let Some(head) = head else { return Ok(None) };
        let folder = self.hub.folder(self.model);
        let snapshot = folder.join("snapshots").join(&head.commit);
        let target = snapshot.join(name);
        if target.exists() {
            return Ok(Some(target));
        }
        let blobs = folder.join("blobs");
        for place in [&blobs, &snapshot, &folder.join("refs")] {
            fs::create_dir_all(place).map_err(|e| Error::io("making a folder", place, e))?;
        }
        let blob = blobs.join(&head.etag);
        if !blob.exists() {
            self.fetch(&head, name, &blob, progress)?;
        }
        link(&blob, &target)?;
        let named = folder.join("refs/main");
        ultta_formats::write_atomically(&named, head.commit.as_bytes())?;
        Ok(Some(target))
    }

    /// Asks for a file's size, digest and place.
    fn head(&self, url: &str, name: &str) -> Result<Option<Remembered>, String> {
        let mut at = url.to_string();
        let mut found: Option<Remembered> = None;
        // The first answer has the hub's headers; redirects lead to where the bytes are.
        for _ in 0..10 {
            let mut request = self.agent.head(&at);
            if let Some(token) = self.hub.token.as_ref().filter(|_| at.starts_with(&self.hub.endpoint)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let answer = request.call().map_err(|e| self.hub.silent(&at, &e))?;
            let (status, headers) = (answer.status(), answer.headers());
            match status {
                StatusCode::NOT_FOUND => return Ok(None),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(format!(
                        "{} answers {status}: no such model, or it needs an access token (HF_TOKEN)",
                        self.hub.name()
                    ));
                }
                _ if status.is_client_error() || status.is_server_error() => {
                    return Err(format!("{} answers {status} for {name}", self.hub.name()));
                }
                _ => {}
            }
            let mut remembered = found.take().unwrap_or_default();
            remembered.take(headers);
            if !status.is_redirection() {
                remembered.url = at;
                return if remembered.etag.is_empty() {
                    Err("the hub gave no ETag to keep the file under".into())
                } else {
                    Ok(Some(remembered))
                };
            }
            let to = text(headers, "location").ok_or("a redirect to nowhere")?;
            at = if to.starts_with('/') { format!("{}{to}", origin(&at)) } else { to };
            found = Some(remembered);
        }
        Err("too many redirects".into())
    }

    /// Downloads to a file beside the blob, goes on where an earlier one stopped, checks and renames it.
    fn fetch(
        &self,
        head: &Remembered,
        name: &str,
        blob: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        let mut part = blob.as_os_str().to_owned();
        part.push(".incomplete");
        let part = PathBuf::from(part);
        let mut problem = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(200 << attempt));
            }
            match self.fetch_rest(head, name, &part, progress) {
                Ok(()) => {
                    verify(head, name, &part)?;
                    return fs::rename(&part, blob).map_err(|e| Error::io("renaming", blob, e));
                }
                Err(reason) => problem = reason,
            }
        }
        Err(Error::hub(format!("{name}: {problem}; what came is kept for the next try")))
    }

    fn fetch_rest(
        &self,
        head: &Remembered,
        name: &str,
        part: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), String> {
        let there = fs::metadata(part).map_or(0, |m| m.len());
        if head.size.is_some_and(|size| there == size) {
            return Ok(());
        }
        let mut request = self.agent.get(&head.url);
        if let Some(token) = self.hub.token.as_ref().filter(|_| head.url.starts_with(&self.hub.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if there > 0 {
            request = request.header("Range", format!("bytes={there}-"));
        }
        let answer = request.call().map_err(|e| self.hub.silent(&head.url, &e))?;
        let resumed = answer.status() == StatusCode::PARTIAL_CONTENT;
        if !answer.status().is_success() {
            if there > 0 {
                // What is there does not fit; the next try begins anew.
                let _ = fs::remove_file(part);
            }
            return Err(answer.status().to_string());
        }
        let mut file = OpenOptions::new();
        let file = file.create(true).write(true).append(resumed).truncate(!resumed).open(part);
        let mut file = file.map_err(|e| e.to_string())?;
        let mut done = if resumed { there } else { 0 };
        let total = head.size.unwrap_or(0);
        let pieces = pieces(answer.into_body().into_reader());
        loop {
            let piece = match pieces.recv_timeout(self.hub.patience) {
                Ok(piece) => piece.map_err(|e| format!("the connection broke off: {e}"))?,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let silence = self.hub.patience.as_secs_f32();
                    return Err(format!("nothing more within {silence} s after {done} bytes"));
                }
            };
            file.write_all(&piece).map_err(|e| e.to_string())?;
            done += piece.len() as u64;
            progress(Progress { file: name, done, total });
        }
        file.sync_all().map_err(|e| e.to_string())?;
        match head.size {
            Some(size) if done < size => {
                Err(format!("the connection broke off after {done} of {size} bytes"))
            }
            _ => Ok(()),
        }
    }
}

/// The pieces of a body as they come, from a thread of their own: a read itself waits without end for a hub that has fallen silent.
/// The thread ends with the body, or with the first piece that nobody takes.
fn pieces(mut body: impl Read + Send + 'static) -> Receiver<io::Result<Vec<u8>>> {
    let (give, take) = sync_channel(4);
    std::thread::spawn(move || {
        loop {
            let mut piece = vec![0; 1 << 17];
            let read = body.read(&mut piece);
            let last = !matches!(read, Ok(n) if n > 0);
            let piece = read.map(|n| {
                piece.truncate(n);
                piece
            });
            if give.send(piece).is_err() || last {
                return;
            }
        }
    });
    take
}

/// What the hub says about a file.
#[derive(Default)]
struct Remembered {
    url: String,
    commit: String,
    etag: String,
    size: Option<u64>,
}

impl Remembered {
    /// Headers of the hub itself count; those of where the bytes lie fill in what it left out.
    fn take(&mut self, headers: &HeaderMap) {
        if let Some(commit) = text(headers, "x-repo-commit").filter(|c| is_name(c)) {
            self.commit = commit;
        } else if self.commit.is_empty() {
            self.commit = "main".into();
        }
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        if let Some(etag) = etag.filter(|_| self.etag.is_empty()) {
            let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
            if is_name(&etag) {
                self.etag = etag;
            }
        }
        let size = text(headers, "x-linked-size").or_else(|| text(headers, "content-length"));
        if let Some(size) = size.and_then(|s| s.parse().ok()).filter(|_| text(headers, "location").is_none())
        {
            self.size = Some(size);
        } else if let Some(size) = text(headers, "x-linked-size").and_then(|s| s.parse().ok()) {
            self.size = Some(size);
        }
    }
}

/// Whether a text that the hub sent can be used as a file name.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_string())
}

/// Scheme and host of an address.
fn origin(url: &str) -> &str {
    let after = url.find("://").map_or(0, |i| i + 3);
    &url[..url[after..].find('/').map_or(url.len(), |i| after + i)]
}

/// Large files have their SHA-256 as ETag, small ones git's SHA-1, which only the size is checked for.
fn verify(head: &Remembered, name: &str, part: &Path) -> Result<()> {
    let bad = |reason: String| {
        let _ = fs::remove_file(part);
        Err(Error::hub(format!("{name}: {reason}; it was removed, try again")))
    };
    let mut file = File::open(part).map_err(|e| Error::io("opening", part, e))?;
    let size = file.metadata().map_err(|e| Error::io("reading", part, e))?.len();
    if let Some(expected) = head.size.filter(|&expected| expected != size) {
        return bad(format!("expected {expected} bytes, got {size}"));
    }
    if head.etag.len() != 64 || !head.etag.chars().all(|c| c.is_ascii_hexdigit()) {
        return Ok(());
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).map_err(|e| Error::io("reading", part, e))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
    }
    let got: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if got.eq_ignore_ascii_case(&head.etag) {
        Ok(())
    } else {
        bad(format!("its SHA-256 is {got}, the hub says {}", head.etag))
    }
}

/// A relative link, as the hub's tools make them; a copy where there are no links.
fn link(blob: &Path, target: &Path) -> Result<()> {
    let name = blob.file_name().unwrap_or_default();
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(Path::new("../../blobs").join(name), target);
    #[cfg(not(unix))]
    let linked = {
        let _ = name;
        fs::copy(blob, target).map(|_| ())
    };
    match linked {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io("linking", target, e)),
        _ => Ok(()),
    }
}
