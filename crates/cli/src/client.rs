//! `ultta client`: small commands to a running service.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Value, json};
use ultta::Error;
use ultta_formats::shown;
use ultta_server::body::from_file;

use crate::failure::usage;

/// Ask a running service (`ultta serve`)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address of the service
    #[arg(long, env = "ULTTA_URL", default_value = "http://127.0.0.1:8080", global = true)]
    url: String,

    /// The stream
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    stream: String,

    /// Bearer token; better in the environment than on the command line
    #[arg(long, env = "ULTTA_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ultta client status
  ultta client classify features.npy --top 3
  encoder | ultta client classify - | consumer
  ultta client feedback 17=cat 18=dog
  ultta client snapshot --label before-the-holidays
  ultta client rollback before-the-holidays
  ultta client create --head head.safetensors --stream cam-2 --preset paper
  ultta client example python";

#[derive(Subcommand, Debug)]
enum Command {
    /// Show a stream: health, learning, log
    Status,
    /// Classify features: a safetensors or .npy file, or JSON lines on standard input (-). Prints JSON lines
    Classify {
        /// The file, or - for standard input
        file: PathBuf,
        /// Answer without learning
        #[arg(long)]
        predict: bool,
        /// Add the K best classes
        #[arg(long, value_name = "K", default_value_t = 0)]
        top: u32,
        /// Accept rows of any length but zero
        #[arg(long)]
        normalize: bool,
    },
    /// Deliver labels of earlier samples
    Feedback {
        /// ID=LABEL, the label by index or name
        #[arg(required = true, value_name = "ID=LABEL")]
        labels: Vec<String>,
        /// Generation of the samples, as their answers had it; needed after a reset, a return to a snapshot or a merge
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
    },
    /// Keep the state under a label
    Snapshot {
        /// Its label; the number of samples seen if not given
        #[arg(long)]
        label: Option<String>,
    },
    /// Return to a snapshot
    Rollback {
        /// Its label
        label: String,
    },
    /// Stop learning
    Freeze,
    /// Learn again
    Unfreeze,
    /// Create a stream from a head file
    Create {
        /// The head
        #[arg(long, value_name = "FILE")]
        head: PathBuf,
        /// The method
        #[arg(long)]
        method: Option<String>,
        /// Its preset
        #[arg(long)]
        preset: Option<String>,
    },
    /// Print a program that talks to this stream: curl or python
    Example {
        /// The language
        #[arg(value_parser = ["curl", "python"])]
        language: String,
    },
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args);
    let stream = format!("/v1/streams/{}", args.stream);
    match &args.command {
        Command::Status => print(&client.get(&stream)?),
        Command::Classify { file, predict, top, normalize } => {
            let call = if *predict { "predict" } else { "classify" };
            let path = format!("{stream}/{call}?top={top}&normalize={normalize}");
            return if file.as_os_str() == "-" {
                classify_lines(&client, &path)
            } else {
                classify_file(&client, &path, file, *normalize)
            };
        }
        Command::Feedback { labels, generation } => {
            let labels = labels.iter().map(|text| label(text)).collect::<anyhow::Result<Vec<_>>>()?;
            let answer = client
                .post(&format!("{stream}/feedback"), &json!({"labels": labels, "generation": generation}))?;
            print(&answer);
            let outcomes = answer["outcomes"].as_array();
            if outcomes.into_iter().flatten().any(|outcome| outcome["outcome"] == "refused") {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Snapshot { label } => {
            print(&client.post(&format!("{stream}/snapshots"), &json!({"label": label}))?)
        }
        Command::Rollback { label } => {
            print(&client.post(&format!("{stream}/rollback"), &json!({"label": label}))?)
        }
        Command::Freeze => print(&client.post(&format!("{stream}/freeze"), &json!({}))?),
        Command::Unfreeze => print(&client.post(&format!("{stream}/unfreeze"), &json!({}))?),
        Command::Create { head, method, preset } => {
            let head = read_file(head)?;
            let mut body = json!({
                "name": args.stream,
                "head_base64": base64::engine::general_purpose::STANDARD.encode(head),
            });
            for (key, value) in [("method", method), ("preset", preset)] {
                if let Some(value) = value {
                    body[key] = value.as_str().into();
                }
            }
            print(&client.post("/v1/streams", &body)?)
        }
        Command::Example { language } => {
            let dim = client.get(&stream).ok().and_then(|s| s["dim"].as_u64()).unwrap_or(512);
            let text = if language == "curl" { CURL } else { PYTHON };
            let text = text.replace("{url}", &args.url).replace("{stream}", &args.stream);
            write!(stdout(), "{}", text.replace("{dim}", &dim.to_string()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(value: &Value) {
    let _ = writeln!(stdout(), "{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

fn read_file(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    Ok(std::fs::read(path).map_err(|source| Error::Io { doing: "opening", source, path: path.clone() })?)
}

/// Lines, or rows of a large file, that are sent in one request.
const BLOCK: usize = 256;
/// A file of more rows than this is sent in blocks.
const MANY: usize = 4096;

/// Sends lines as they come: each request takes those that wait, and its answers are printed before the next.
fn classify_lines(client: &Client, path: &str) -> anyhow::Result<ExitCode> {
    let (sender, lines) = mpsc::sync_channel(BLOCK);
    std::thread::spawn(move || stdin().lock().split(b'\n').try_for_each(|line| sender.send(line)));
    let mut out = stdout().lock();
    let (mut sent, mut refused) = (0, false);
    while let Ok(first) = lines.recv() {
        let block: Vec<Vec<u8>> =
            std::iter::once(first).chain(lines.try_iter().take(BLOCK - 1)).collect::<Result<_, _>>()?;
        let expected = block.iter().filter(|line| !line.trim_ascii().is_empty()).count();
        let text = client.text(path, "application/x-ndjson", &block.join(&b'\n'))?;
        for answer in text.lines() {
            match serde_json::from_str::<LineError>(answer) {
                // The service counts the lines of its request.
                Ok(LineError { line, error }) => {
                    refused = true;
                    writeln!(out, "{{\"line\":{},\"error\":{}}}", sent + line, json!(error))?;
                }
                Err(_) => writeln!(out, "{answer}")?,
            }
        }
        out.flush()?;
        let got = text.lines().count();
        anyhow::ensure!(got == expected, "expected {expected} answers from the service, got {got}");
        sent += block.len() as u64;
    }
    Ok(if refused { ExitCode::from(crate::failure::BAD_INPUT) } else { ExitCode::SUCCESS })
}

/// A line that was refused.
#[derive(Deserialize)]
struct LineError {
    line: u64,
    error: String,
}

/// Sends a file whole, or a large one in blocks.
fn classify_file(client: &Client, path: &str, file: &PathBuf, normalize: bool) -> anyhow::Result<ExitCode> {
    let mut out = stdout().lock();
    let mut print = |answers: Value| -> anyhow::Result<()> {
        for row in answers["rows"].as_array().into_iter().flatten() {
            writeln!(out, "{row}")?;
        }
        Ok(())
    };
    let bytes: Arc<[u8]> = read_file(file)?.into();
    let samples = from_file(bytes.clone(), normalize).with_context(|| shown(&file))?;
    let n = samples.len();
    if n <= MANY {
        print(client.send(path, "application/octet-stream", &bytes)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for start in (0..n).step_by(BLOCK) {
        let rows = start..n.min(start + BLOCK);
        let features: Vec<&[f32]> = rows.clone().map(|row| samples.features().row(row)).collect();
        let mut block = json!({"features": features});
        if let Some(learn) = samples.learn() {
            block["learn"] = json!(learn[rows.clone()]);
        }
        if let Some(times) = samples.times() {
            block["times"] = json!(times[rows.clone()]);
        }
        if let Some(views) = samples.views() {
            let views: Vec<Vec<&[f32]>> =
                rows.map(|row| views.of(row).map(|view| views.features.row(view)).collect()).collect();
            block["views"] = json!(views);
        }
        print(client.post(path, &block)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn label(text: &str) -> anyhow::Result<Value> {
    let parsed =
        text.split_once('=').and_then(|(id, label)| Some((id.trim().parse::<u64>().ok()?, label.trim())));
    let Some((id, label)) = parsed.filter(|(_, label)| !label.is_empty()) else {
        return usage(format!("{text:?}: expected ID=LABEL, such as 17=cat"));
    };
    Ok(match label.parse::<usize>() {
        Ok(number) => json!({"id": id, "label": number}),
        Err(_) => json!({"id": id, "class": label}),
    })
}

/// A connection to a service.
struct Client {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

impl Client {
    fn new(args: &Args) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .build();
        let url = args.url.trim_end_matches('/').to_string();
        Self { agent: config.into(), url, token: args.token.clone() }
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.answer(request.call())
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(path, "application/json", &serde_json::to_vec(body)?)
    }

    fn send(&self, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<Value> {
        self.answer(self.request(path, kind).send(body))
    }

    fn request(&self, path: &str, kind: &str) -> ureq::RequestBuilder<ureq::typestate::WithBody> {
        let mut request = self.agent.post(format!("{}{path}", self.url)).header("content-type", kind);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request
    }

    /// The answer as it was sent.
    fn text(&self, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<String> {
        self.read(self.request(path, kind).send(body))
    }

    fn answer(&self, result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.read(result)?).unwrap_or(Value::Null))
    }

    fn read(&self, result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<String> {
        let mut response = result.with_context(|| format!("no answer from {}", self.url))?;
        let status = response.status();
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string()?;
        if status.is_success() {
            return Ok(text);
        }
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let detail = value["detail"].as_str().unwrap_or("no reason given").to_string();
        match status.as_u16() {
            400..=499 => usage(format!("{status}: {detail}")),
            _ => anyhow::bail!("{status}: {detail}"),
        }
    }
}

const CURL: &str = r#"# The stream {stream} at {url} expects unit rows of {dim} numbers.
# Random rows stand in for the features of your pictures here.
row=$(python3 -c 'import random; v = [random.gauss(0, 1) for _ in range({dim})]; n = sum(x * x for x in v) ** .5; print([x / n for x in v])')

# Answer a row and learn from it; `id` in the answer is for feedback
curl -s {url}/v1/streams/{stream}/classify -H "authorization: Bearer $ULTTA_TOKEN" \
  -H 'content-type: application/json' -d "{\"features\": [$row], \"top\": 3}"

# Answer without learning
curl -s {url}/v1/streams/{stream}/predict -H "authorization: Bearer $ULTTA_TOKEN" \
  -H 'content-type: application/json' -d "{\"features\": [$row]}"

# A label that became known later; id and generation are those of the answer
curl -s {url}/v1/streams/{stream}/feedback -H "authorization: Bearer $ULTTA_TOKEN" \
  -H 'content-type: application/json' -d '{"labels": [{"id": 0, "label": 1}], "generation": 0}'

# Many rows at once, as a .npy or safetensors file
# curl -s {url}/v1/streams/{stream}/classify -H 'content-type: application/octet-stream' --data-binary @features.npy
"#;

const PYTHON: &str = r#"# The stream {stream} at {url} expects unit rows of {dim} numbers.
import io
import json
import os
import urllib.request

import numpy as np


def post(call, body, kind="application/json"):
    data = body if kind != "application/json" else json.dumps(body).encode()
    headers = {"content-type": kind, "authorization": "Bearer " + os.environ.get("ULTTA_TOKEN", "")}
    request = urllib.request.Request("{url}/v1/streams/{stream}/" + call, data, headers)
    return json.load(urllib.request.urlopen(request))


# Random rows stand in for the features of your pictures here.
features = np.random.default_rng(0).normal(size=(8, {dim})).astype(np.float32)
features /= np.linalg.norm(features, axis=1, keepdims=True)

# Answer rows and learn from them, as one binary body
body = io.BytesIO()
np.save(body, features)
answers = post("classify", body.getvalue(), "application/octet-stream")
for row in answers["rows"]:
    print(row["id"], row["class"], round(row["prob"], 3), "zero-shot:", row["zero_shot"]["class"])

# A label that became known later
print(post("feedback", {"labels": [{"id": answers["rows"][0]["id"], "label": 1}], "generation": answers["generation"]}))
"#;
