//! `ultta serve` as a process, asked over HTTP and by `ultta client`.

mod faults;
mod memory;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Features, Session};

const ULTTA: &str = env!("CARGO_BIN_EXE_ultta");
pub const CLASSIFY: &str = "/v1/streams/default/classify";

pub fn simulator() -> Simulator {
    Simulator::new(&SimulatorConfig { classes: 12, dim: 16, ..Default::default() }).unwrap()
}

/// A server of its own process.
pub struct Server {
    child: Child,
    address: String,
    agent: ureq::Agent,
}

impl Server {
    pub fn start(folder: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(ULTTA);
        command.arg("serve");
        Self::spawn(command, folder, flags)
    }

    pub fn spawn(mut command: Command, folder: &Path, flags: &[&str]) -> Self {
        let head = folder.join("head.safetensors");
        if !head.exists() {
            simulator().head().save(&head).unwrap();
        }
        command
            .arg("--head")
            .arg(head)
            .arg("--data-dir")
            .arg(folder.join("data"))
            .args(["--port", "0"])
            .args(flags);
        if command.get_envs().all(|(name, _)| name != "ULTTA_LOG") {
            command.env("ULTTA_LOG", "off");
        }
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_string();
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Self { child, address, agent: config.into() }
    }

    pub fn get(&self, path: &str) -> Value {
        let mut response = self.agent.get(format!("http://{}{path}", self.address)).call().unwrap();
        response.body_mut().read_json().unwrap_or(Value::Null)
    }

    #[cfg(feature = "nats")]
    pub fn text(&self, path: &str) -> String {
        let mut response = self.agent.get(format!("http://{}{path}", self.address)).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn delete(&self, path: &str) {
        let _ = self.agent.delete(format!("http://{}{path}", self.address)).call();
    }

    fn state(&self) -> Vec<u8> {
        self.state_of("default")
    }

    pub fn state_of(&self, stream: &str) -> Vec<u8> {
        let url = format!("http://{}/v1/streams/{stream}/state", self.address);
        let mut response = self.agent.get(url).call().unwrap();
        response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap()
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ureq::Error> {
        let request = self.agent.post(format!("http://{}{path}", self.address));
        let text = serde_json::to_vec(body).unwrap();
        let mut response = request.header("content-type", "application/json").send(&text)?;
        response.body_mut().read_json()
    }

    fn seen(&self) -> usize {
        self.get("/v1/streams/default")["status"]["health"]["seen"].as_u64().unwrap() as usize
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn terminate(mut self) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

pub fn request(features: &Features<'_>) -> Value {
    let rows: Vec<&[f32]> = (0..features.rows()).map(|r| features.row(r)).collect();
    json!({"features": rows})
}

/// Numbers that look random and are the same every time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A large body that is refused ends with the refusal, not with a broken pipe.
#[test]
fn the_client_is_told_why_a_large_body_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ultta.toml");
    std::fs::write(&file, "[server.limits]\nbody_bytes = 1000000\n").unwrap();
    let server = Server::start(folder.path(), &["--config", file.to_str().unwrap()]);
    let config = SimulatorConfig { classes: 2, dim: 4096, ..Default::default() };
    let features = Simulator::new(&config).unwrap().next_block(500).0;
    let npy = folder.path().join("wide.npy");
    std::fs::write(&npy, to_npy(&features)).unwrap();
    let url = format!("http://{}", server.address);
    for _ in 0..5 {
        let arguments = ["client", "--url", &url, "classify", npy.to_str().unwrap()];
        let output = Command::new(ULTTA).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains("a body may have 1000000 bytes"), "{text}");
    }
    server.terminate();
}

#[test]
fn rust_http_and_the_command_line_give_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let features = simulator().next_block(500).0;
    let mut session = Session::new(simulator().head().clone(), &Config::default()).unwrap();
    let step = session.step(&features).unwrap();
    let server = Server::start(folder.path(), &[]);
    let (npy, head) = (folder.path().join("features.npy"), folder.path().join("head.safetensors"));
    std::fs::write(&npy, to_npy(&features)).unwrap();
    let url = format!("http://{}", server.address);
    let client = |arguments: &[&str]| {
        let output =
            Command::new(ULTTA).arg("client").args(["--url", &url]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let over_http = client(&["classify", npy.to_str().unwrap(), "--top", "2", "--prob-pred"]);
    let (out, saved) = (folder.path().join("out.jsonl"), folder.path().join("state.safetensors"));
    let run = Command::new(ULTTA)
        .args(["run", "--quiet", "--top", "2"])
        .args([Path::new("--features"), &npy, Path::new("--head"), &head])
        .args([Path::new("--out"), &out, Path::new("--save-state"), &saved])
        .status();
    assert!(run.unwrap().success());
    let by_hand = std::fs::read_to_string(&out).unwrap();
    assert_eq!((over_http.lines().count(), by_hand.lines().count()), (500, 500));
    for ((http, cli), rust) in over_http.lines().zip(by_hand.lines()).zip(&step.rows) {
        let (mut http, mut cli): (Value, Value) =
            (serde_json::from_str(http).unwrap(), serde_json::from_str(cli).unwrap());
        // The service names the zero-shot class, too, and its ids are the samples; all else is the same row.
        http["zero_shot"].as_object_mut().unwrap().remove("class");
        assert_eq!(cli.as_object_mut().unwrap().remove("sample").as_ref(), Some(&http["id"]));
        assert_eq!(http, cli);
        assert_eq!(
            (cli["label"].as_u64(), cli["prob"].as_f64().map(|p| p as f32)),
            (Some(rust.label as u64), Some(rust.prob))
        );
    }
    let state = session.state().to_bytes().unwrap();
    assert!(server.state() == state && std::fs::read(saved).unwrap() == state);
    // the other commands
    let seen = || {
        serde_json::from_str::<Value>(&client(&["status", "--json"])).unwrap()["status"]["health"]["seen"]
            .clone()
    };
    assert_eq!(seen(), 500);
    let told = client(&["status"]);
    for words in [
        &format!("stream          default at {url}\n"),
        "learning        yes",
        "500 rows",
        "zero-shot",
        "durability interval",
        "prior KL",
    ] {
        assert!(told.contains(words), "{words:?} is missing: {told}");
    }
    assert!(told.lines().nth(1).is_some_and(|line| line.starts_with("verdict         well: ")), "{told}");
    // To predict teaches nothing. (The examples are run by crates/python/tests/test_blocks.py.)
    assert_eq!(client(&["predict", npy.to_str().unwrap(), "--top", "1"]).lines().count(), 500);
    for language in ["curl", "python"] {
        let example = client(&["example", language]);
        assert!(example.contains(&url) && example.contains("predict"), "{example}");
        assert!(example.contains("expects unit rows of 16 numbers"), "{example}");
        let active = example.lines().filter(|line| !line.trim_start().starts_with('#'));
        assert!(
            active.clone().all(|line| !line.contains("classify") && !line.contains("feedback")),
            "{example}"
        );
    }
    assert_eq!(seen(), 500);
    let copy = folder.path().join("copy.safetensors");
    client(&["state", copy.to_str().unwrap()]);
    assert!(std::fs::read(copy).unwrap() == state);
    client(&["clone", "candidate", "--shadow", "--preset", "paper"]);
    let list = client(&["list"]);
    assert!(list.contains("candidate") && list.contains("shadow of default"), "{list}");
    let line = list.lines().find(|line| line.starts_with("default ")).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    let read = ultta::Head::load(&head).unwrap();
    let sizes = [read.n_classes(), read.dim(), 500].map(|n| n.to_string());
    assert_eq!(columns[2..5], sizes, "{list}");
    assert_eq!(
        serde_json::from_str::<Value>(&client(&["list", "--json"])).unwrap()["streams"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let kept = Command::new(ULTTA)
        .args(["client", "--url", &url, "--stream", "candidate", "delete"])
        .output()
        .unwrap();
    assert!(kept.status.code() == Some(2) && String::from_utf8(kept.stderr).unwrap().contains("--yes"));
    assert!(client(&["--stream", "candidate", "delete", "--yes"]).contains("gone"));
    assert!(!client(&["list"]).contains("candidate"));
    client(&["clone", "again"]);
    assert_eq!(client(&["--stream", "again", "freeze"]), "again: frozen, 500 rows kept\n");
    let told = client(&["--stream", "again", "status"]);
    assert!(told.contains("verdict         watch: ") && told.contains("next            "), "{told}");
    let told = client(&["--stream", "again", "reset"]);
    assert_eq!(told, "again: back to the start, generation 1; still frozen (`ultta client unfreeze`)\n");
    assert_eq!(client(&["--stream", "again", "acknowledge"]), "again: acknowledged, verdict watch\n");
    assert_eq!(client(&["--stream", "again", "unfreeze"]), "again: learning, 0 rows kept\n");
    let frozen: Value = serde_json::from_str(&client(&["--stream", "again", "freeze", "--json"])).unwrap();
    assert_eq!(frozen["status"]["learning"], false);
    assert_eq!(
        client(&["--stream", "again", "reset"]),
        "again: back to the start, generation 2; still frozen (`ultta client unfreeze`)\n"
    );
    assert!(client(&["reset", "--help"]).contains("ultta client snapshot"));
    // During the warm-up no figures of the last update are shown: there was none.
    let told = client(&["--stream", "again", "status"]);
    assert!(told.contains("warm-up         0 of 100 scenes") && !told.contains("prior KL"), "{told}");
    // Nor is anything said of class looks where the method learns none.
    client(&["create", "--head", head.to_str().unwrap(), "--stream", "plain", "--method", "zero-shot"]);
    let told = client(&["--stream", "plain", "status"]);
    assert!(told.contains("prior KL") && !told.contains("class looks"), "{told}");
    assert_eq!(client(&["feedback", "3=1"]), "sample 3: taken\n");
    assert!(client(&["feedback", "3=1", "--json"]).contains("\"oldest_id\": 0"));
    assert!(client(&["suggest", "--k", "2"]).lines().count() == 3);
    assert!(client(&["suggest", "--k", "2", "--json"]).contains("expected_use"));
    assert_eq!(client(&["correct", "3=1"]), "sample 3: taken\nlabels that count: 1\n");
    let told = client(&["explain", "3"]);
    assert!(told.contains("= logit") && told.contains("labelled "), "{told}");
    assert!(client(&["explain", "3", "--json"]).contains("corrected"));
    assert!(client(&["correct", "--withdraw", "3", "--json"]).contains("\"corrections\": 0"));
    // A label that is not used is a failure, and says why.
    let unused = |arguments: &[&str], why: &str| {
        let output =
            Command::new(ULTTA).arg("client").args(["--url", &url]).args(arguments).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(1) && told.contains(why), "{told}");
    };
    unused(&["correct", "--withdraw", "3"], "there was no label");
    client(&["freeze"]);
    unused(&["correct", "3=1"], "learning is stopped; send it again once the stream learns");
    unused(&["feedback", "3=1"], "learning is stopped");
    let frozen = Command::new(ULTTA)
        .args(["client", "--url", &url, "classify", npy.to_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8(frozen.stderr).unwrap();
    assert!(frozen.status.success() && told.matches("warning: nothing was learnt").count() == 1, "{told}");
    client(&["unfreeze"]);
    let layer = folder.path().join("layer.npz");
    assert!(client(&["export", "--out", layer.to_str().unwrap()]).contains("bytes"));
    assert!(std::fs::read(layer).unwrap().starts_with(b"PK"));
    let kept = client(&["snapshot", "--label", "x"]);
    assert!(kept.starts_with("default: snapshot x kept, ") && kept.ends_with(" bytes\n"), "{kept}");
    assert!(client(&["snapshot", "--label", "y", "--json"]).contains("\"y\""));
    assert_eq!(client(&["rollback", "x"]), "default: back at snapshot x, 1000 rows, generation 1\n");
    let made =
        client(&["create", "--stream", "second", "--head", head.to_str().unwrap(), "--preset", "paper"]);
    assert!(made.starts_with("second: created, ") && made.lines().count() == 1, "{made}");
    let mut piped = Command::new(ULTTA)
        .args(["client", "--url", &url, "--stream", "second", "classify", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(piped.stdin.take().unwrap(), "{}", serde_json::to_string(features.row(0)).unwrap()).unwrap();
    let mut answer = String::new();
    piped.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
    assert!(piped.wait().unwrap().success() && answer.contains("\"id\":0"), "{answer}");
    for (generation, code) in [(&["--generation", "1"][..], 1), (&["--generation", "0"], 2), (&[], 2)] {
        let mut command = Command::new(ULTTA);
        command.args(["client", "--url", &url, "feedback", "999999=1"]).args(generation);
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(code), "a refused label, {generation:?}");
        let advised = String::from_utf8_lossy(&refused.stderr).contains("(--generation N)");
        assert_eq!(advised, generation.is_empty(), "{refused:?}");
    }
    let picture = folder.path().join("a.png");
    std::fs::write(&picture, b"\x89PNG\r\n").unwrap();
    let refused = Command::new(ULTTA)
        .args(["client", "--url", &url, "classify", picture.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("is a picture") && text.contains("/v1/streams/default/pictures\n"), "{text}");
    // An address without its scheme is understood, and examples have it whole; curl is the language unless another is named.
    let plain = url.strip_prefix("http://").unwrap();
    let short = Command::new(ULTTA).args(["client", "--url", plain, "example"]).output().unwrap();
    let text = String::from_utf8_lossy(&short.stdout).into_owned();
    assert!(
        text.contains(&format!("curl -s {url}/v1")) && text.contains("expects unit rows of 16"),
        "{text}"
    );
    let refused =
        Command::new(ULTTA).args(["client", "--url", &url, "--stream", "none", "status"]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text.contains("ultta client create --head FILE --stream none"), "{text}");
    server.terminate();
}

#[test]
fn a_missing_token_is_named_by_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.toml");
    std::fs::write(&tokens, "read = [\"a-token-to-read-with\"]\n").unwrap();
    let server = Server::start(folder.path(), &["--tokens", tokens.to_str().unwrap()]);
    let url = format!("http://{}", server.address);
    let ask = |token: &[&str]| {
        let mut command = Command::new(ULTTA);
        command.args(["client", "--url", &url]).args(token).arg("status").env_remove("ULTTA_TOKEN");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = ask(&[]);
    assert!(code == Some(2) && text.contains("--token") && text.contains("ULTTA_TOKEN"), "{text}");
    let (code, text) = ask(&["--token", "another-token"]);
    assert!(
        code == Some(2) && text.contains("that of --token or ULTTA_TOKEN is none of the server's"),
        "{text}"
    );
    assert_eq!(ask(&["--token", "a-token-to-read-with"]).0, Some(0));
    server.terminate();
}

#[test]
fn a_certificate_that_is_not_known_is_told_and_can_be_made_known() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let [cert, key] =
        ["cert.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_string());
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = Server::start(folder.path(), &["--tls-cert", &cert, "--tls-key", &key]);
    let port = server.address.rsplit(':').next().unwrap();
    let ask = |scheme: &str, flags: &[&str]| {
        let url = format!("{scheme}://localhost:{port}");
        let mut command = Command::new(ULTTA);
        let output = command.args(["client", "--url", &url, "status"]).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = ask("https", &[]);
    assert!(code == Some(1) && text.contains("--cacert FILE names the authority"), "{text}");
    let (code, text) = ask("http", &[]);
    assert!(code == Some(1) && text.contains("does it speak TLS (https://)?"), "{text}");
    let (code, text) = ask("https", &["--cacert", &key]);
    assert!(code == Some(2) && text.contains("expected certificates (PEM), got none"), "{text}");
    assert_eq!(ask("https", &["--cacert", &cert]), (Some(0), String::new()));
    server.terminate();
}

#[test]
fn lines_are_answered_while_more_are_to_come() {
    let folder = tempfile::tempdir().unwrap();
    let features = simulator().next_block(20_000).0;
    let server = Server::start(folder.path(), &[]);
    let url = format!("http://{}", server.address);
    let mut command = Command::new(ULTTA);
    command.args(["client", "--url", &url, "classify", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut rows, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || answers.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let next = || -> Value {
        let line = lines.recv_timeout(Duration::from_secs(60)).expect("an answer while more may come");
        serde_json::from_str(&line).unwrap()
    };
    for row in 0..3 {
        writeln!(rows, "{}", serde_json::to_string(features.row(row)).unwrap()).unwrap();
        assert_eq!(next()["id"].as_u64(), Some(row as u64));
    }
    for row in 3..2000 {
        writeln!(rows, "{}", serde_json::to_string(features.row(row)).unwrap()).unwrap();
    }
    writeln!(rows, "no row").unwrap();
    // A row of the wrong length is told so, not that its norm is wrong.
    writeln!(rows, "[1, 2, 3]").unwrap();
    drop(rows);
    for row in 3..2000 {
        assert_eq!(next()["id"].as_u64(), Some(row));
    }
    assert_eq!(next()["line"].as_u64(), Some(2001), "counted over all requests");
    let short = next()["error"].as_str().unwrap().to_string();
    assert!(
        short.contains("feature dimension") && short.contains("got 3") && !short.contains("norm"),
        "{short}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(2));
    // A file of more rows than a request may have.
    let npy = folder.path().join("features.npy");
    std::fs::write(&npy, to_npy(&features)).unwrap();
    let output = Command::new(ULTTA).args(["client", "--url", &url, "classify"]).arg(&npy).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 20_000);
    let mut session = Session::new(simulator().head().clone(), &Config::default()).unwrap();
    session.step(&features.slice(0..2000)).unwrap();
    session.step(&features).unwrap();
    assert!(server.state() == session.state().to_bytes().unwrap());
    server.terminate();
}

#[test]
fn a_posted_picture_has_the_answer_of_the_command_line() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../encode/tests/fixtures");
    let (model, picture) = (fixtures.join("clip"), fixtures.join("pictures/plain.png"));
    let folder = tempfile::tempdir().unwrap();
    let head = folder.path().join("head.safetensors");
    let config = SimulatorConfig { classes: 5, dim: 12, ..Default::default() };
    Simulator::new(&config).unwrap().head().save(&head).unwrap();
    let output = Command::new(ULTTA)
        .args(["classify", "--json", "-q", "--top", "2", "--model"])
        .args([model.as_path(), Path::new("--head"), &head, &picture])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let by_hand: Value = serde_json::from_slice(&output.stdout).unwrap();
    let server = Server::start(folder.path(), &["--model", model.to_str().unwrap()]);
    let post = |server: &Server| -> Value {
        let url = format!("http://{}/v1/streams/default/pictures?top=2", server.address);
        let request = server.agent.post(url).header("content-type", "image/png");
        request.send(&std::fs::read(&picture).unwrap()[..]).unwrap().body_mut().read_json().unwrap()
    };
    let answer = post(&server);
    for key in ["label", "class", "prob", "top"] {
        assert_eq!(answer["rows"][0][key], by_hand[key], "{key}: {answer}");
    }
    server.terminate();
    let file = folder.path().join("ultta.toml");
    std::fs::write(&file, "[server.limits]\npicture_pixels = 100\n").unwrap();
    let flags = ["--model", model.to_str().unwrap(), "--config", file.to_str().unwrap()];
    let server = Server::start(folder.path(), &flags);
    let refused = post(&server);
    assert!(refused["detail"].as_str().unwrap().contains("more than the limit of 100"), "{refused}");
    server.terminate();
}

#[test]
fn a_file_sets_the_server_up_and_mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ultta.toml");
    std::fs::write(&file, "[server]\ndurability = \"sync\"\n[server.limits]\nbatch_rows = 3\n[method.ul_tta.gate]\nkeep = 0.5\n").unwrap();
    let server = Server::start(folder.path(), &["--config", file.to_str().unwrap()]);
    let stream = server.get("/v1/streams/default");
    assert_eq!(stream["durability"], "sync");
    assert!(stream["config"].as_str().unwrap().contains("keep = 0.5"));
    assert_eq!(server.get("/v1/config")["limits"]["batch_rows"], 3);
    server.terminate();
    let fails = |arguments: &[&str], word: &str| {
        let output =
            Command::new(ULTTA).arg("serve").args(arguments).env("ULTTA_LOG", "off").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(word), "{text}");
    };
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let head = folder.path().join("head.safetensors");
    fails(&["--data-dir", data, "--head", folder.path().to_str().unwrap()], "it is a folder");
    fails(&[], "--data-dir");
    fails(&["--data-dir", data, "--host", "0.0.0.0"], "tokens are required");
    fails(&["--data-dir", data, "--host", "0.0.0.0"], "ULTTA_TOKEN_ADMIN");
    fails(&["--data-dir", data, "--set", "gate.keep=0.5"], "no --head");
    fails(&["--data-dir", data, "--head", "/none.safetensors"], "none.safetensors");
    fails(
        &["--data-dir", data, "--head", head.to_str().unwrap(), "--preset", "paper", "--port", "0"],
        "another configuration",
    );
    fails(
        &["--data-dir", data, "--head", head.to_str().unwrap(), "--method", "zero-shot", "--port", "0"],
        "method: ul-tta there, zero-shot asked for",
    );
    std::fs::write(&file, "[server]\nprot = 1\n").unwrap();
    fails(&["--data-dir", data, "--config", file.to_str().unwrap()], "prot");
}

fn to_npy(features: &Features<'_>) -> Vec<u8> {
    let shape = format!("({}, {})", features.rows(), features.dim());
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(features.data().iter().flat_map(|v| v.to_le_bytes()));
    bytes
}
