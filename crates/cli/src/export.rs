//! `ultta export`: the adapted head as a plain linear layer.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ultta_formats::shown;

use crate::anchors::StateHead;
use crate::failure::usage;
use crate::output;
use crate::summary::held_at_zero_shot;

/// Write the adapted head as a plain linear layer, for a device that cannot adapt
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    head: StateHead,

    /// The state to export, as `run --save-state` or the service wrote it
    #[arg(long, value_name = "FILE")]
    state: PathBuf,

    /// Where the layer goes: .safetensors, .npz or .onnx
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Print what was written as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta run --features f.safetensors --head head.safetensors --save-state state.safetensors
  ultta export --head head.safetensors --state state.safetensors --out head.onnx

The layer is what the state answers now: logits = weights · z + bias (with the prior in it), label = argmax,
probabilities = softmax(temperature · logits), mixed with the frozen model's as the session does (docs/operating.md).
It does not learn and knows no scenes.";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let inputs: Vec<&Path> = std::iter::once(args.state.as_path()).chain(args.head.files()).collect();
    output::check_apart(&args.out, &inputs)?;
    ending(&args.out)?;
    let session = args.head.resume(&args.state)?;
    if let Some(warning) = held_at_zero_shot(session.health().standing) {
        eprintln!("{warning}; the layer is the frozen head");
    }
    let layer = session.layer()?;
    layer.save(&args.out)?;
    let mut out = std::io::stdout().lock();
    let (classes, dim, seen) = (layer.classes.len(), layer.dim, session.next_id());
    if args.json {
        let facts = serde_json::json!({
            "out": args.out, "classes": classes, "dim": dim, "seen": seen,
            "standing": session.health().standing, "temperature": layer.temperature, "frozen_share": layer.frozen_share, "floor": layer.floor,
        });
        writeln!(out, "{facts}")?;
    } else {
        writeln!(out, "{}: {classes} classes × {dim}, after {seen} samples", shown(&args.out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How a layer is written, by the name of its file.
pub fn ending(path: &Path) -> anyhow::Result<String> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if !ultta::LAYER_ENDINGS.contains(&ending.as_str()) {
        let endings = ultta::LAYER_ENDINGS.join(", .");
        return usage(format!("--out {}: expected a name that ends in .{endings}", shown(&path)));
    }
    Ok(ending)
}
