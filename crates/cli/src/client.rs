//! `ultta client`: small commands to a running service.

mod connection;
mod shown_for_people;

use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use anyhow::Context;
use base64::Engine;
use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Value, json};
use ultta::Error;
use ultta_formats::shown;
use ultta_server::body::from_file;

pub use self::connection::Client;
use crate::correct::{self, Typed};
use crate::failure::usage;
use crate::suggest::Suggested;
use crate::{explain, export, output};

/// Ask a running service (`ultta serve`)
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    service: Service,

    /// The stream
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    stream: String,

    #[command(subcommand)]
    command: Command,
}

/// Where a running service is, and how it is entered.
#[derive(clap::Args, Debug)]
pub struct Service {
    /// Address of the service
    #[arg(long, env = "ULTTA_URL", default_value = "http://127.0.0.1:8080", global = true)]
    url: String,

    /// Bearer token; better in the environment than on the command line
    #[arg(long, env = "ULTTA_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,

    /// Certificates (PEM) of the authority that signed the service's, where no public one did
    #[arg(long, value_name = "FILE", env = "ULTTA_CACERT", global = true)]
    cacert: Option<PathBuf>,
}

/// Rows to answer, and what their answers hold.
#[derive(clap::Args, Debug)]
struct Rows {
    /// The file, or - for standard input
    file: PathBuf,
    /// Add the K best classes
    #[arg(long, value_name = "K", default_value_t = 0)]
    top: u32,
    /// Add the probability behind each answer beside the calibrated one
    #[arg(long)]
    prob_pred: bool,
    /// Accept rows of any length but zero
    #[arg(long)]
    normalize: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta client list
  ultta client status
  ultta client predict features.npy --top 3
  ultta client classify features.npy --top 3
  encoder | ultta client classify - | consumer
  ultta client feedback 17=cat 18=dog
  ultta client suggest --k 20
  ultta client explain 17
  ultta client correct 17=cat --withdraw 18
  ultta client snapshot --label before-the-holidays
  ultta client rollback before-the-holidays
  ultta client acknowledge
  ultta client create --head head.safetensors --stream cam-2 --preset paper
  ultta client clone candidate --shadow --preset paper
  ultta client state state.safetensors
  ultta client export --out head.onnx
  ultta client example python";

#[derive(Subcommand, Debug)]
enum Command {
    /// List the streams
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a stream: health, learning, log
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Answer features without learning from them: a safetensors or .npy file, or JSON lines on standard input (-)
    Predict(Rows),
    /// Classify features: a safetensors or .npy file, or JSON lines on standard input (-). Prints JSON lines
    Classify {
        #[command(flatten)]
        rows: Rows,
        /// Answer without learning
        #[arg(long)]
        predict: bool,
    },
    /// Deliver labels of earlier samples. The exit code is 1 if one of them could not be used
    Feedback {
        /// ID=LABEL, the label by index or name
        #[arg(required = true, value_name = "ID=LABEL")]
        labels: Vec<String>,
        /// Generation of the samples, as their answers had it; needed after a reset, a return to a snapshot or a merge
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
        /// The service's answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Give labels of earlier samples that count at once, or take them back. The exit code is 1 if one of them could not be used
    Correct {
        /// ID=LABEL, the label by index or name
        #[arg(required_unless_present = "withdraw", value_name = "ID=LABEL")]
        labels: Vec<String>,
        /// Take the label of a sample back; several times for several
        #[arg(long, value_name = "ID")]
        withdraw: Vec<u64>,
        /// Generation of the samples, as their answers had it; needed after a reset, a return to a snapshot or a merge
        #[arg(long, value_name = "N")]
        generation: Option<u64>,
        /// The service's answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say why an earlier sample is answered as it is
    Explain {
        /// The sample's id, as its answer had it
        id: u64,
        /// Classes shown
        #[arg(long, value_name = "K", default_value_t = 5)]
        best: u32,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the samples whose labels would help most
    Suggest {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        k: u32,
        /// As JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Keep the state under a label
    Snapshot {
        /// Its label; the number of samples seen if not given
        #[arg(long)]
        label: Option<String>,
        /// The service's answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Return to a snapshot
    Rollback {
        /// Its label
        label: String,
        /// The stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Close the open alarms, and damage that was seen to
    Acknowledge {
        /// The stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop learning: answers stay adapted, and do not return to zero-shot
    Freeze {
        /// The stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Learn again
    Unfreeze {
        /// The stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget what was learnt: back to the start. This cannot be undone: `ultta client snapshot` before it keeps the state
    Reset {
        /// The stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete the stream and all that it has kept
    Delete {
        /// Yes, delete it
        #[arg(long)]
        yes: bool,
    },
    /// Make a second stream from this one
    Clone {
        /// Its name
        name: String,
        /// Show the new stream the traffic of this one, and compare its answers
        #[arg(long)]
        shadow: bool,
        /// Another method
        #[arg(long)]
        method: Option<String>,
        /// Another preset
        #[arg(long)]
        preset: Option<String>,
        /// The new stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Download the state into a file, for `ultta run --load-state` or another server
    State {
        /// The file
        file: PathBuf,
    },
    /// Download the adapted head as a plain linear layer, for a device that cannot adapt
    Export {
        /// Where the layer goes: .safetensors, .npz or .onnx
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
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
        /// A group of streams that teach each other the classes
        #[arg(long)]
        group: Option<String>,
        /// The new stream as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a program that talks to this stream: curl or python
    Example {
        /// The language
        #[arg(value_parser = ["curl", "python"], default_value = "curl")]
        language: String,
    },
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::of(&args.service)?;
    let stream = format!("/v1/streams/{}", args.stream);
    match &args.command {
        Command::List { json } => {
            let list = client.get("/v1/streams")?;
            if *json { print(&list) } else { shown_for_people::list(&list, &mut stdout())? }
        }
        Command::Status { json } => {
            let status = client.get(&stream)?;
            if *json {
                print(&status)
            } else {
                shown_for_people::status(&status, client.url(), &mut stdout())?
            }
        }
        Command::Classify { rows, predict: false } => return answer(&client, &stream, "classify", rows),
        Command::Classify { rows, predict: true } | Command::Predict(rows) => {
            return answer(&client, &stream, "predict", rows);
        }
        Command::Reset { json } => {
            let view = client.post(&format!("{stream}/reset"), &json!({}))?;
            tell(&view, *json, |view| {
                let frozen = view["status"]["learning"] == false;
                let still = if frozen { "; still frozen (`ultta client unfreeze`)" } else { "" };
                format!("back to the start, generation {}{still}", view["status"]["generation"])
            })?
        }
        Command::Delete { yes: false } => {
            return usage(format!(
                "delete: stream {:?} and all it has learnt would be gone; add --yes if that is meant",
                args.stream
            ));
        }
        Command::Delete { yes: true } => {
            client.delete(&stream)?;
            writeln!(stdout(), "stream {} is gone", shown(&args.stream))?;
        }
        Command::Clone { name, shadow, method, preset, json } => {
            let mut body = json!({"name": name, "shadow": shadow});
            choose(&mut body, method, preset);
            let view = client.post(&format!("{stream}/clone"), &body)?;
            let how = if *shadow { "shadow" } else { "copy" };
            tell(&view, *json, |view| format!("created, {how} of {}, {}", args.stream, made_of(view)))?
        }
        Command::State { file } => {
            output::check_writable(file)?;
            download(&client, &format!("{stream}/state"), file)?
        }
        Command::Export { out } => {
            let format = export::ending(out)?;
            output::check_writable(out)?;
            download(&client, &format!("{stream}/layer?format={format}"), out)?
        }
        Command::Feedback { labels, generation, json } => {
            let labels = labels.iter().map(|text| label(text)).collect::<anyhow::Result<Vec<_>>>()?;
            let body = json!({"labels": labels, "generation": generation});
            return hand_over(&client, &format!("{stream}/feedback"), &body, *json);
        }
        Command::Correct { labels, withdraw, generation, json } => {
            let given = labels.iter().map(|text| label(text));
            let taken = withdraw.iter().map(|id| Ok(json!({"id": id, "withdraw": true})));
            let labels = given.chain(taken).collect::<anyhow::Result<Vec<_>>>()?;
            let body = json!({"labels": labels, "generation": generation});
            return hand_over(&client, &format!("{stream}/correct"), &body, *json);
        }
        Command::Explain { id, best, json } => {
            let told = client.post(&format!("{stream}/explain"), &json!({"id": id, "best": best}))?;
            if *json {
                print(&told)
            } else {
                let told = serde_json::from_value(told).context("the service's explanation")?;
                explain::warn(&told);
                explain::print(&told, &mut stdout())?
            }
        }
        Command::Suggest { k, json } => {
            let told = client.get(&format!("{stream}/suggest?k={k}"))?;
            let list = serde_json::from_value(told["suggestions"].clone()).context("the service's list")?;
            let why_none = "the stream keeps no scenes without a label".into();
            Suggested { list, why_none }.print(&mut stdout(), *json)?
        }
        Command::Snapshot { label, json } => {
            let kept = client.post(&format!("{stream}/snapshots"), &json!({"label": label}))?;
            if *json {
                print(&kept)
            } else {
                let label = kept["label"].as_str().unwrap_or_default();
                let line = format!("{}: snapshot {label} kept, {} bytes", args.stream, kept["bytes"]);
                writeln!(stdout(), "{}", shown(&line))?
            }
        }
        Command::Rollback { label, json } => {
            let view = client.post(&format!("{stream}/rollback"), &json!({"label": label}))?;
            tell(&view, *json, |view| {
                let generation = &view["status"]["generation"];
                format!("back at snapshot {label}, {} rows, generation {generation}", rows_seen(view))
            })?
        }
        Command::Acknowledge { json } => {
            let view = client.post(&format!("{stream}/acknowledge"), &json!({}))?;
            tell(&view, *json, |view| {
                format!("acknowledged, verdict {}", view["verdict"]["level"].as_str().unwrap_or_default())
            })?
        }
        Command::Freeze { json } => {
            let view = client.post(&format!("{stream}/freeze"), &json!({}))?;
            tell(&view, *json, |view| format!("frozen, {} rows kept", rows_seen(view)))?
        }
        Command::Unfreeze { json } => {
            let view = client.post(&format!("{stream}/unfreeze"), &json!({}))?;
            tell(&view, *json, |view| format!("learning, {} rows kept", rows_seen(view)))?
        }
        Command::Create { head, method, preset, group, json } => {
            let head = read_file(head)?;
            let mut body = json!({
                "name": args.stream,
                "head_base64": base64::engine::general_purpose::STANDARD.encode(head),
                "group": group,
            });
            choose(&mut body, method, preset);
            let view = client.post("/v1/streams", &body)?;
            tell(&view, *json, |view| format!("created, {}", made_of(view)))?
        }
        Command::Example { language } => {
            let dim = client.get(&stream).ok().and_then(|s| s["dim"].as_u64());
            let expects = match dim {
                Some(dim) => format!("expects unit rows of {dim} numbers"),
                None => "did not answer: 512 numbers a row are a guess".into(),
            };
            let text = match language.as_str() {
                "curl" => include_str!("client/example.sh"),
                _ => include_str!("client/example.py"),
            };
            let text = text.replace("{url}", client.url()).replace("{stream}", &args.stream);
            let text = text.replace("{expects}", &expects);
            write!(stdout(), "{}", text.replace("{dim}", &dim.unwrap_or(512).to_string()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells what became of a stream: in one line for people, or the stream as JSON.
fn tell(view: &Value, json: bool, text: impl FnOnce(&Value) -> String) -> std::io::Result<()> {
    if json {
        print(view);
        return Ok(());
    }
    let line = format!("{}: {}", view["name"].as_str().unwrap_or_default(), text(view));
    writeln!(stdout(), "{}", shown(&line))
}

/// Rows that a stream has seen.
fn rows_seen(view: &Value) -> &Value {
    &view["status"]["health"]["seen"]
}

/// What a stream is made of.
fn made_of(view: &Value) -> String {
    let method = view["method"].as_str().unwrap_or_default();
    format!("{method}, {} classes, rows of {} numbers", view["classes"], view["dim"])
}

/// Sends lines or a file, and prints the answers.
fn answer(client: &Client, stream: &str, call: &str, rows: &Rows) -> anyhow::Result<ExitCode> {
    let Rows { file, top, prob_pred, normalize } = rows;
    let path = format!("{stream}/{call}?top={top}&prob_pred={prob_pred}&normalize={normalize}");
    if file.as_os_str() == "-" {
        classify_lines(client, &path)
    } else {
        classify_file(client, &path, file, *normalize)
    }
}

/// Writes what the service sends into a file.
fn download(client: &Client, path: &str, file: &Path) -> anyhow::Result<()> {
    let bytes = client.bytes(path)?;
    ultta_formats::write_atomically(&output::target(file), &bytes).map_err(Error::from)?;
    writeln!(stdout(), "{}: {} bytes", shown(&file), bytes.len())?;
    Ok(())
}

/// Sends labels, and prints what became of each; one that was not taken is a failure.
fn hand_over(client: &Client, path: &str, body: &Value, json: bool) -> anyhow::Result<ExitCode> {
    let answer = client.post(path, body)?;
    if json {
        print(&answer)
    } else {
        shown_for_people::outcomes(&answer, &mut stdout())?
    }
    let failed =
        |outcome: &Value| ["refused", "unused"].iter().any(|failure| outcome["outcome"] == **failure);
    let failed = answer["outcomes"].as_array().into_iter().flatten().any(failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Adds a method and a preset to a request, where they are given.
fn choose(body: &mut Value, method: &Option<String>, preset: &Option<String>) {
    for (key, value) in [("method", method), ("preset", preset)] {
        if let Some(value) = value {
            body[key] = value.as_str().into();
        }
    }
}

/// Prints an answer as JSON.
pub fn print(value: &Value) {
    let _ = writeln!(stdout(), "{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

fn read_file(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    Ok(std::fs::read(path).map_err(|source| Error::Io { doing: "opening", source, path: path.clone() })?)
}

/// Lines, or rows of a large file, that are sent in one request.
const BLOCK: usize = ultta::internal::STEP_ROWS;
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
    let mut warned = path.contains("/predict");
    let mut print = |answers: Value| -> anyhow::Result<()> {
        if answers["learnt"] == false && !std::mem::replace(&mut warned, true) {
            eprintln!("warning: nothing was learnt of these rows; `ultta client status` says why");
        }
        for row in answers["rows"].as_array().into_iter().flatten() {
            writeln!(out, "{row}")?;
        }
        Ok(())
    };
    let bytes: Arc<[u8]> = read_file(file)?.into();
    if is_picture(&bytes) {
        return usage(format!(
            "{} is a picture, this sends features: `ultta encode` makes them; the service takes a picture at {}",
            shown(&file),
            path.split('?')
                .next()
                .unwrap_or_default()
                .replace("/classify", "/pictures")
                .replace("/predict", "/pictures/predict")
        ));
    }
    let samples = from_file(bytes.clone(), None, normalize).with_context(|| shown(&file))?;
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

/// Whether a file begins as pictures do: PNG, JPEG, GIF, WebP.
fn is_picture(bytes: &[u8]) -> bool {
    [&b"\x89PNG"[..], b"\xff\xd8\xff", b"GIF8"].iter().any(|start| bytes.starts_with(start))
        || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"))
}

fn label(text: &str) -> anyhow::Result<Value> {
    let (id, label) = correct::parse(text)?;
    Ok(match label {
        Typed::Index(number) => json!({"id": id, "label": number}),
        Typed::Name(class) => json!({"id": id, "class": class}),
    })
}
