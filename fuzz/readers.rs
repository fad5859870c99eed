//! What the fuzzers feed: each reader of the project, and what lies right behind it. A reader may refuse bytes; it
//! must not panic, hang or take memory out of proportion. The tests replay the corpus through the same functions.

use std::path::PathBuf;
use std::sync::LazyLock;

use tempfile::TempDir;
use ultta::{Config, Delta, FeatureFile, Features, Head, Session, State};
use ultta_encode::config::{ModelConfig, Preprocess};
use ultta_encode::dataset::Dataset;
use ultta_encode::decode;
use ultta_encode::preprocess::preprocess;
use ultta_encode::prompts::{Classes, Templates};
use ultta_encode::source;
use ultta_encode::tokens::Tokenizer;
use ultta_encode::weights::{Layout, Tensors};
use ultta_eval::pack::Pack;
use ultta_eval::tune::Journal;
use ultta_formats::Line;
use ultta_server::body::from_file;

/// Feeds bytes to a reader.
pub type Reader = fn(&[u8]);

/// All readers by the names of their targets and corpus folders.
pub const READERS: [(&str, Reader); 23] = [
    ("features", features),
    ("head", head),
    ("state", state),
    ("numpy", numpy),
    ("config", config),
    ("lines", lines),
    ("body", body),
    ("weights", weights),
    ("archive", archive),
    ("text", text),
    ("vocabulary", vocabulary),
    ("log", log),
    ("request", request),
    ("infer", infer),
    ("folder", folder),
    ("picture", picture),
    ("labels", labels),
    ("model", model),
    ("delta", delta),
    ("run", run),
    ("split", split),
    ("journal", journal),
    ("parquet", parquet),
];

/// A folder with one file that holds these bytes, for readers that open files.
fn folder_with(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("room for a temporary file");
    (folder, path)
}

/// A features file in safetensors form, with its labels.
pub fn features(bytes: &[u8]) {
    let (_folder, path) = folder_with("features", bytes);
    if let Ok(file) = FeatureFile::open(&path) {
        let _ = file.read_all(false);
        let _ = file.read_all(true);
    }
    read_pack(Pack::open(&path, None));
}

/// A head file.
pub fn head(bytes: &[u8]) {
    if let Ok(head) = Head::from_bytes(bytes) {
        let again =
            Head::from_bytes(&head.to_bytes().expect("a head can be written")).expect("and read again");
        assert_eq!(head.digest(), again.digest());
        let first = Features::new(head.prototype(0).to_vec(), head.dim()).expect("prototypes are unit rows");
        head.zero_shot(&first).expect("they fit");
    }
}

/// A state file, and a session that continues from it.
pub fn state(bytes: &[u8]) {
    let Ok(mut state) = State::from_bytes(bytes) else { return };
    let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 10.0).expect("a head");
    for name in ultta::names() {
        let config = Config::named(&name).expect("a method");
        if config.method.card().needs_views {
            continue;
        }
        let mut session = Session::new(head.clone(), &config).expect("a session");
        // As if it belonged to this session, so that the arrays themselves are tried.
        state.metadata.extend(session.state().metadata);
        if session.load(&state).is_err() {
            continue;
        }
        for _ in 0..200 {
            session
                .step(&Features::new(vec![0.6, 0.8, 1.0, 0.0], 2).expect("unit rows"))
                .expect("it goes on");
        }
        State::from_bytes(&session.state().to_bytes().expect("it can be saved")).map(|_| ()).unwrap_or(());
    }
    // What is merged loads or is refused, and goes on.
    let mut session = Session::new(head, &Config::default()).expect("a session");
    state.metadata.extend(session.state().metadata);
    if let Ok(merged) = state.merge(&state)
        && session.load(&merged).is_ok()
    {
        session.step(&Features::new([0.6, 0.8].repeat(200), 2).expect("unit rows")).expect("it goes on");
    }
}

/// A `.npy` or `.npz` file.
pub fn numpy(bytes: &[u8]) {
    read_pack(FeatureFile::from_bytes("fuzz", bytes.to_vec()).map(Pack::of));
}

/// A configuration.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(config) = Config::from_toml(text) {
        let again = Config::from_toml(&config.to_toml()).expect("a resolved configuration is one");
        assert_eq!(again.to_toml(), config.to_toml());
        let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 10.0).expect("a head");
        let _ = Session::new(head, &config);
    }
}

/// A JSON line.
pub fn lines(bytes: &[u8]) {
    if let Ok(Some(line)) = Line::parse(bytes) {
        let _ = Features::of_line(&line, false);
        let _ = Features::of_line(&line, true);
    }
}

/// Rows as they are posted to the service.
pub fn body(bytes: &[u8]) {
    for normalize in [false, true] {
        if let Ok(samples) = from_file(bytes.to_vec(), None, normalize) {
            assert!(samples.learn().is_none_or(|learn| learn.len() == samples.len()));
            assert!(samples.times().is_none_or(|times| times.len() == samples.len()));
        }
    }
}

/// Weights: safetensors, or what `torch.save` writes, a pickle in an archive.
pub fn weights(bytes: &[u8]) {
    let (_folder, path) = folder_with("weights", bytes);
    if let Ok(tensors) = Tensors::open(&[path], None) {
        for name in tensors.names() {
            assert!(tensors.has(name) || tensors.shape(name).is_none());
        }
        let _ = tensors.layers("vision");
        let _ = tensors.get("logit_scale", &[]);
    }
}

/// A tar archive of pictures and their classes.
pub fn archive(bytes: &[u8]) {
    let (_folder, path) = folder_with("pictures.tar", bytes);
    if let Ok(items) = source::archive(&path) {
        for item in items.iter().take(64) {
            let _ = item.read(1 << 20);
        }
    }
}

/// A text on its way to tokens.
pub fn text(bytes: &[u8]) {
    static CLIP: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::clip(77));
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert_eq!(CLIP.encode(text).expect("every text has tokens").len(), 77);
    }
}

/// A unigram vocabulary.
pub fn vocabulary(bytes: &[u8]) {
    let (folder, _) = folder_with("tokenizer.json", bytes);
    if let Ok(tokenizer) = Tokenizer::unigram(folder.path(), 16) {
        // A vocabulary of another kind opens, and says so when it is asked for a text.
        if let Ok(tokens) = tokenizer.encode("a photo of a cat") {
            assert_eq!(tokens.len(), 16);
        }
    }
}

/// A segment of the service's write-ahead log.
pub fn log(bytes: &[u8]) {
    let (_folder, path) = folder_with("0.log", bytes);
    let records = ultta_server::fuzz::log(&path).expect("a broken tail is cut off, not an error");
    let again = ultta_server::fuzz::log(&path).expect("what is left is whole");
    assert_eq!(records, again);
    // Changed bytes hardly ever pass the checksum, so what stands behind it is tried without.
    ultta_server::fuzz::record(bytes);
}

/// A JSON body, as every call of the service that takes one reads it.
pub fn request(bytes: &[u8]) {
    ultta_server::fuzz::request(bytes);
}

/// A body of the Open Inference Protocol: two bytes of the length of its JSON (all of it if they are zero), the body.
pub fn infer(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk::<2>() else { return };
    let length = usize::from(u16::from_le_bytes(*length));
    ultta_server::fuzz::infer(body, (length > 0).then_some(length));
}

/// A stream's folder: its list of files, a zero, its settings. The files themselves are missing.
pub fn folder(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let settings = bytes.get(end + 1..).unwrap_or_default();
    assert!(!ultta_server::fuzz::folder(folder.path(), &bytes[..end], settings), "it has no head");
}

/// A picture, and what the encoder makes of it.
pub fn picture(bytes: &[u8]) {
    let limits = decode::Limits { bytes: 1 << 16, pixels: 1 << 16, ..Default::default() };
    let Ok(pixels) = decode::pixels(bytes, &limits) else { return };
    assert!(pixels <= 1 << 16);
    if let Ok(picture) = decode::decode(bytes, &limits) {
        let _ = preprocess(&picture, &Preprocess::openai(16));
        let _ = preprocess(&picture, &Preprocess::siglip(16));
    }
}

/// A file of class names.
pub fn labels(bytes: &[u8]) {
    let (_folder, path) = folder_with("labels", bytes);
    if let Ok(classes) = Classes::from_file(&path) {
        let templates = Templates::named("imagenet-7").expect("templates");
        for class in 0..classes.names.len().min(64) {
            assert!(!classes.prompts(class, &templates).is_empty());
        }
    }
    let _ = Templates::named(&path.to_string_lossy());
}

/// The configuration of an image model.
pub fn model(bytes: &[u8]) {
    let (folder, _) = folder_with("config.json", bytes);
    for name in ["open_clip_config.json", "preprocessor_config.json"] {
        std::fs::write(folder.path().join(name), bytes).expect("room for a temporary file");
    }
    let weights = folder.path().join("model.safetensors");
    std::fs::write(&weights, NO_WEIGHTS).expect("room for a temporary file");
    for layout in [Layout::HfClip, Layout::HfSiglip, Layout::OpenClip, Layout::OpenClipTimm] {
        let tensors = Tensors::open(std::slice::from_ref(&weights), Some(layout)).expect("no tensors");
        let _ = ModelConfig::load(folder.path(), &tensors);
    }
}

/// What another member of a group sends over a broker, and a member that takes it.
pub fn delta(bytes: &[u8]) {
    for bytes in [Some(bytes.to_vec()), as_of_the_group(bytes)].into_iter().flatten() {
        let Ok(delta) = Delta::from_bytes(&bytes) else { continue };
        let again = Delta::from_bytes(&delta.to_bytes().expect("a delta can be written")).expect("and read");
        assert_eq!(delta, again);
        let _ = delta.followed_by(&delta.tombstone());
        let mut session = member("b", 40);
        let _ = session.take(&delta);
        let _ = session.withdraw_member(&delta);
        let _ = session.rebuild(&[delta]);
        session.step(&Features::new([0.6, 0.8].repeat(200), 2).expect("unit rows")).expect("it goes on");
        let state = State::from_bytes(&session.state().to_bytes().expect("it can be saved"));
        member("b", 0).load(&state.expect("and read")).expect("and goes on from there");
    }
}

/// A member of a group that has seen some rows.
fn member(name: &str, rows: usize) -> Session {
    let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 10.0).expect("a head");
    let mut session = Session::new(head, &Config::default()).expect("a session");
    session.join(name).expect("a member");
    session.step(&Features::new([1.0, 0.0].repeat(rows), 2).expect("unit rows")).expect("it learns");
    session
}

/// A delta as if it were for that group, so that its numbers are tried; `None` if it is no file of tensors.
fn as_of_the_group(bytes: &[u8]) -> Option<Vec<u8>> {
    static STRINGS: LazyLock<serde_json::Value> = LazyLock::new(|| {
        let mut session = member("a", 200);
        let bytes = session.cut().expect("a member").expect("something new").to_bytes().expect("bytes");
        header(&bytes).expect("a header").0["__metadata__"].clone()
    });
    let (mut header, data) = header(bytes)?;
    header["__metadata__"] = STRINGS.clone();
    let mut text = serde_json::to_vec(&header).ok()?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Some([&(text.len() as u64).to_le_bytes()[..], &text, data].concat())
}

/// The header of a safetensors file, an object, and the data behind it.
fn header(bytes: &[u8]) -> Option<(serde_json::Value, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: serde_json::Value = serde_json::from_slice(text).ok()?;
    header.is_object().then_some((header, data))
}

/// The files of a run folder, parted by zero bytes, and the report over it.
pub fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let names = ["summary.json", "timing.json", "windows.jsonl", "made.json", "right.bin", "done"];
    for (name, part) in names.iter().zip(bytes.split(|&byte| byte == 0)) {
        std::fs::write(folder.path().join(name), part).expect("room for a temporary file");
    }
    let Ok(runs) = ultta_eval::report::read(folder.path()) else { return };
    let refused = runs.refused;
    let runs: Vec<_> = runs.runs.into_iter().map(|(run, _)| run).collect();
    let _ = ultta_eval::report::markdown(&runs, &refused);
}

/// The split of a dataset in CoOp's layout.
pub fn split(bytes: &[u8]) {
    let (folder, _) = folder_with("split_zhou_OxfordPets.json", bytes);
    std::fs::create_dir(folder.path().join("images")).expect("room for a folder");
    std::fs::write(folder.path().join("images/a.jpg"), b"").expect("room for a temporary file");
    let _ = Dataset::named("oxford_pets").expect("a dataset").open(folder.path());
}

/// The journal of a search for settings.
pub fn journal(bytes: &[u8]) {
    let (_folder, path) = folder_with("journal.jsonl", bytes);
    if Journal::open(&path).is_ok() {
        Journal::open(&path).expect("what is left is whole");
    }
}

/// A features file in Parquet form.
pub fn parquet(bytes: &[u8]) {
    let (_folder, path) = folder_with("features.parquet", bytes);
    read_pack(Pack::open(&path, None));
}

/// A safetensors file without tensors.
const NO_WEIGHTS: &[u8] = b"\x08\0\0\0\0\0\0\0{}      ";

fn read_pack(pack: ultta::Result<Pack>) {
    if let Ok(pack) = pack {
        let _ = pack.check(false);
        let _ = pack.check(true);
        let _ = pack.check_labels(2);
        let last = pack.rows().saturating_sub(1);
        let _ = pack.select(&[last, 0], true);
    }
}
