//! `ultta suggest`: which samples to label next.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use ultta::{Suggestion, Unlabelled, suggest};
use ultta_eval::pack::Pack;
use ultta_formats::shown;

use crate::anchors::resume;
use crate::failure::usage;

/// List the samples whose labels would help most, with their expected use
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Predictions of a run, as JSON lines: `ultta run --out answers.jsonl`
    #[arg(long, value_name = "FILE", requires = "features", conflicts_with_all = ["head", "state"])]
    answers: Option<PathBuf>,

    /// The features that were answered
    #[arg(long, value_name = "FILE", requires = "answers")]
    features: Option<PathBuf>,

    /// Instead of a run: the state of a stream, with its head
    #[arg(long, value_name = "FILE", requires = "head")]
    state: Option<PathBuf>,

    /// The head that the state was saved with
    #[arg(long, value_name = "FILE", requires = "state")]
    head: Option<PathBuf>,

    /// How many samples
    #[arg(long, value_name = "N", default_value_t = 20)]
    k: usize,

    /// Accept features of any length but zero, and scale them to unit length
    #[arg(long)]
    normalize: bool,

    /// Print JSON lines instead
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta run --features day1.npy --head head.safetensors --out day1.jsonl
  ultta suggest --answers day1.jsonl --features day1.npy --k 20
  ultta suggest --state state.safetensors --head head.safetensors

Samples are unsure, stand for many that look like them, and come from one scene each. `use` says about how many answers
hang on a label (docs/operating.md).";

/// What is needed of a line of predictions.
#[derive(Deserialize)]
struct Line {
    id: u64,
    label: usize,
    class: String,
    prob: f32,
    begins_scene: bool,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (suggested, names) = match (&args.answers, &args.features, &args.state, &args.head) {
        (Some(answers), Some(features), None, None) => of_run(answers, features, &args)?,
        (None, None, Some(state), Some(head)) => {
            let session = resume(head, state)?;
            (session.suggest(args.k)?, session.head().classes().to_vec())
        }
        _ => return usage("expected either --answers with --features, or --state with --head"),
    };
    let told = suggested.into_iter().map(|Suggestion { id, label, prob, expected_use }| {
        let class = names.get(label).cloned().unwrap_or_default();
        SuggestedRow { id, label, class, prob, expected_use }
    });
    print(&mut std::io::stdout().lock(), told.collect(), args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A sample to label, with the name of the class answered; also what a service tells.
#[derive(Deserialize, Serialize)]
pub struct SuggestedRow {
    id: u64,
    label: usize,
    class: String,
    prob: f32,
    expected_use: f32,
}

pub fn print(out: &mut impl Write, list: Vec<SuggestedRow>, json: bool) -> anyhow::Result<()> {
    if !json {
        writeln!(out, "{:>10}  {:>6}  {:>6}  answered", "sample", "use", "prob")?;
    }
    for told in list {
        if json {
            writeln!(out, "{}", serde_json::to_string(&told)?)?;
        } else {
            let SuggestedRow { id, expected_use, prob, class, .. } = told;
            writeln!(out, "{id:>10}  {expected_use:>6.1}  {:>5.1}%  {}", 100.0 * prob, shown(&class))?;
        }
    }
    Ok(())
}

/// Suggestions from the answers of a run; the ids are rows of the features. Class names come from the answers.
fn of_run(answers: &Path, features: &Path, args: &Args) -> anyhow::Result<(Vec<Suggestion>, Vec<String>)> {
    let file = std::fs::File::open(answers).with_context(|| format!("cannot open {}", shown(&answers)))?;
    let pack = Pack::open(features, None)?;
    let (mut samples, mut names) = (Vec::new(), Vec::new());
    for (number, line) in std::io::BufReader::new(file).lines().enumerate() {
        let number = number + 1;
        let line = line.with_context(|| format!("{}: line {number}", shown(&answers)))?;
        let Ok(line) = serde_json::from_str::<Line>(&line) else {
            return usage(format!(
                "{}: line {number} is no prediction; expected JSON lines from `ultta run --out answers.jsonl`",
                shown(&answers)
            ));
        };
        if line.id >= pack.rows() as u64 {
            return usage(format!(
                "{}: line {number} is about row {}, {} has {} rows",
                shown(&answers),
                line.id,
                shown(&features),
                pack.rows()
            ));
        }
        if names.len() <= line.label && line.label < 1 << 20 {
            names.resize(line.label + 1, String::new());
        }
        if let Some(name) = names.get_mut(line.label) {
            *name = line.class;
        }
        if line.begins_scene {
            samples.push(Unlabelled { id: line.id, label: line.label, prob: line.prob });
        }
    }
    let rows: Vec<usize> = samples.iter().map(|sample| sample.id as usize).collect();
    let features = pack.file().select(&rows, args.normalize)?;
    Ok((suggest(&samples, &features, args.k)?, names))
}
