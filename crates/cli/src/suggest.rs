//! `ultta suggest`: which samples to label next.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use ultta::{Session, Unlabelled, suggest};
use ultta_eval::pack::Pack;
use ultta_formats::{Id, shown};

use crate::anchors::HeadChanges;
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

    #[command(flatten)]
    changes: HeadChanges,

    /// How many samples
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    k: u32,

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
hang on a label. `sample` is the id that `correct` and `explain --id` take; `row`, for a run, is the row of the features
(docs/operating.md).";

/// What is needed of a line of predictions.
#[derive(Deserialize)]
struct Line {
    id: Id,
    /// Answers that were written by an earlier version have none.
    #[serde(default)]
    sample: Option<u64>,
    label: usize,
    class: String,
    prob: f32,
    begins_scene: bool,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let k = args.k as usize;
    let suggested = match (&args.answers, &args.features, &args.state, &args.head) {
        (Some(_), Some(_), None, None) if args.changes.given() => {
            return usage("--anchors and --logit-scale belong to --head; answers need neither");
        }
        (Some(answers), Some(features), None, None) => of_run(answers, features, k, args.normalize)?,
        (None, None, Some(state), Some(head)) => of_state(&args.changes.resume(head, state)?, k)?,
        _ => return usage("expected either --answers with --features, or --state with --head"),
    };
    suggested.print(&mut std::io::stdout().lock(), args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Samples to label, the best first; or why there are none.
pub struct Suggested {
    pub list: Vec<SuggestedRow>,
    pub why_none: String,
}

/// A sample to label, with the name of the class answered; also what a service tells.
#[derive(Deserialize, Serialize)]
pub struct SuggestedRow {
    /// The row of the features that were answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    /// The session's number of the sample; a service calls it the id.
    #[serde(default, alias = "id", skip_serializing_if = "Option::is_none")]
    sample: Option<u64>,
    label: usize,
    class: String,
    prob: f32,
    expected_use: f32,
}

impl Suggested {
    /// Prints the samples, and says on standard error why there are none.
    pub fn print(self, out: &mut impl Write, json: bool) -> anyhow::Result<()> {
        if self.list.is_empty() {
            eprintln!("nothing to suggest: {}", self.why_none);
        }
        // Only what comes from a run has rows.
        let rows = self.list.iter().any(|told| told.row.is_some());
        if !json {
            let row = if rows { format!("{:>10}  ", "row") } else { String::new() };
            writeln!(out, "{row}{:>10}  {:>6}  {:>6}  answered", "sample", "use", "prob")?;
        }
        let number = |number: Option<u64>| number.map_or("–".into(), |number| number.to_string());
        for told in self.list {
            if json {
                writeln!(out, "{}", serde_json::to_string(&told)?)?;
                continue;
            }
            let SuggestedRow { row, sample, expected_use, prob, class, .. } = told;
            let row = if rows { format!("{:>10}  ", number(row)) } else { String::new() };
            let (sample, prob) = (number(sample), 100.0 * prob);
            writeln!(out, "{row}{sample:>10}  {expected_use:>6.1}  {prob:>5.1}%  {}", shown(&class))?;
        }
        Ok(())
    }
}

/// Suggestions from the scenes that a state keeps.
fn of_state(session: &Session, k: usize) -> anyhow::Result<Suggested> {
    let name = |label: usize| session.head().classes()[label].clone();
    let list = session.suggest(k)?.into_iter().map(|s| SuggestedRow {
        row: None,
        sample: Some(s.id),
        label: s.label,
        class: name(s.label),
        prob: s.prob,
        expected_use: s.expected_use,
    });
    let why_none = if session.next_id() == 0 {
        "the state has seen no samples".into()
    } else if session.kept().is_empty() {
        let method = session.config().method.name();
        format!("this state keeps no scenes (method {method}); a run's answers do: --answers with --features")
    } else {
        "every scene that the state keeps has a label".into()
    };
    Ok(Suggested { list: list.collect(), why_none })
}

/// Suggestions from the answers of a run. Class names come from the answers.
pub fn of_run(answers: &Path, features: &Path, k: usize, normalize: bool) -> anyhow::Result<Suggested> {
    let file = std::fs::File::open(answers).with_context(|| format!("cannot open {}", shown(&answers)))?;
    let pack = Pack::open(features, None)?;
    // Row, sample and class of each, by its place here.
    let mut facts: Vec<(u64, Option<u64>, String)> = Vec::new();
    let (mut samples, mut lines) = (Vec::new(), 0u64);
    for line in std::io::BufReader::new(file).lines() {
        lines += 1;
        let at = || format!("{}: line {lines}", shown(&answers));
        let line = line.with_context(at)?;
        let Ok(line) = serde_json::from_str::<Line>(&line) else {
            return usage(format!(
                "{} is no prediction; expected JSON lines from `ultta run --out answers.jsonl`",
                at()
            ));
        };
        let row = match line.id {
            Id::Number(row) => row,
            Id::Text(id) => {
                let features = shown(&features);
                return usage(format!(
                    "{} has the id {id:?}, which is no row of {features}; expected the answers of `ultta run` to this file",
                    at()
                ));
            }
        };
        if row >= pack.rows() as u64 {
            let (features, rows) = (shown(&features), pack.rows());
            return usage(format!("{} is about row {row}, {features} has {rows} rows", at()));
        }
        if line.begins_scene {
            samples.push(Unlabelled { id: facts.len() as u64, label: line.label, prob: line.prob });
            facts.push((row, line.sample, line.class));
        }
    }
    let rows: Vec<usize> = facts.iter().map(|fact| fact.0 as usize).collect();
    let suggested = if rows.is_empty() {
        Vec::new()
    } else {
        suggest(&samples, &pack.file().select(&rows, normalize)?, k)?
    };
    let list = suggested.into_iter().map(|s| {
        let (row, sample, class) = &facts[s.id as usize];
        SuggestedRow {
            row: Some(*row),
            sample: *sample,
            label: s.label,
            class: class.clone(),
            prob: s.prob,
            expected_use: s.expected_use,
        }
    });
    let why_none = match lines {
        0 => format!("{} holds no answers", shown(&answers)),
        _ => format!("no answer in {} begins a scene", shown(&answers)),
    };
    Ok(Suggested { list: list.collect(), why_none })
}
