//! `ultta explain`: why a row is answered as it is.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use ultta::{Explanation, Head, Input, Session, State};
use ultta_eval::pack::Pack;
use ultta_formats::shown;

use crate::anchors::read_head;
use crate::failure::usage;

/// Say why a row is answered as it is: what text, images, prior, labels and scene say, in nats per class
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The head that the state was saved with
    #[arg(long, value_name = "FILE")]
    head: PathBuf,

    /// The state to answer from, as `run --save-state` or the service wrote it; without one, the frozen model
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Features; --row says which
    #[arg(long, value_name = "FILE", requires = "row")]
    features: Option<PathBuf>,

    /// The row of the features to explain, from 0
    #[arg(long, value_name = "N", requires = "features", conflicts_with = "id")]
    row: Option<usize>,

    /// Instead of features: an earlier sample by its id, from what the state keeps of it
    #[arg(long, value_name = "ID", requires = "state")]
    id: Option<u64>,

    /// Classes shown
    #[arg(long, value_name = "K", default_value_t = 5)]
    best: usize,

    /// Accept features of any length but zero, and scale them to unit length
    #[arg(long)]
    normalize: bool,

    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta explain --head head.safetensors --state state.safetensors --features day2.npy --row 17
  ultta explain --head head.safetensors --state state.safetensors --id 4711 --json

The nats of a class add up to its logit; the class with the highest logit is the answer. A difference of 1 nat makes a class
e = 2.7 times as likely as another.";

/// Width of the bars.
const BAR: usize = 12;

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let head = read_head(&args.head)?;
    let session = match &args.state {
        Some(path) => {
            let resumed = State::load(path).and_then(|state| Session::resume(head, &state));
            resumed.with_context(|| format!("--state {}", shown(&path)))?
        }
        None => Session::new(head, &ultta::Config::default())?,
    };
    let explanation = match (&args.features, args.row, args.id) {
        (Some(path), Some(row), None) => {
            let pack = Pack::open(path, None)?;
            if row >= pack.rows() {
                return usage(format!("--row {row}: {} has {} rows", shown(&path), pack.rows()));
            }
            let features = pack.file().select(&[row], args.normalize)?;
            session.explain(Input::new(&features), args.best)?
        }
        (None, None, Some(id)) => session.explain_sample(id, args.best)?,
        _ => return usage("expected either --features with --row, or --id"),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", as_json(&explanation, session.head()))?;
    } else {
        print(&mut out, &explanation, session.head())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The explanation with the names of its classes.
fn as_json(explanation: &Explanation, head: &Head) -> serde_json::Value {
    let name = |label: usize| head.classes()[label].clone();
    let mut value = json!(explanation);
    value["class"] = name(explanation.row.label).into();
    let lists = [("classes", explanation.classes.len()), ("similar", explanation.similar.len())];
    for (list, n) in lists {
        for i in 0..n {
            let label = value[list][i]["label"].as_u64().unwrap_or_default() as usize;
            value[list][i]["class"] = name(label).into();
        }
    }
    value
}

fn print(out: &mut impl Write, explanation: &Explanation, head: &Head) -> std::io::Result<()> {
    let name = |label: usize| shown(&head.classes()[label]);
    let row = &explanation.row;
    let answer = format!("{} ({:.1} %)", name(row.label), 100.0 * row.prob);
    let frozen = format!("{} ({:.1} %)", name(row.zero_shot.label), 100.0 * row.zero_shot.prob);
    match explanation.flipped_by {
        Some(lever) => writeln!(out, "{answer}; zero-shot says {frozen}; flipped by the {}", lever.name())?,
        None => writeln!(out, "{answer}; zero-shot says the same ({:.1} %)", 100.0 * row.zero_shot.prob)?,
    }
    writeln!(out)?;
    let width = explanation.classes.iter().map(|c| name(c.label).chars().count()).max().unwrap_or(0).max(5);
    write!(out, "{:width$}", "class")?;
    for lever in &explanation.levers {
        write!(out, "  {:>9}", lever.name())?;
    }
    writeln!(out, "  {:>9}  {:>6}", "= logit", "prob")?;
    // Bars show how far each class is ahead of the last one shown.
    let lowest = explanation.classes.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
    let highest = explanation.classes.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    for class in &explanation.classes {
        let own = name(class.label);
        write!(out, "{own}{}", " ".repeat(width - own.chars().count()))?;
        for nats in &class.nats {
            write!(out, "  {nats:>9.2}")?;
        }
        let share = (class.logit - lowest) / (highest - lowest).max(1e-6);
        let bar = "█".repeat((share * BAR as f32).round() as usize);
        writeln!(out, "  {:>9.2}  {:>5.1}%  {bar}", class.logit, 100.0 * class.prob)?;
    }
    if !explanation.similar.is_empty() {
        writeln!(out, "\nmost similar earlier scenes")?;
    }
    for similar in &explanation.similar {
        let label = match similar.corrected {
            Some(label) => format!("labelled {}", name(label)),
            None => format!("answered {}", name(similar.label)),
        };
        writeln!(out, "  sample {:<8} cosine {:.3}  {label}", similar.id, similar.cosine)?;
    }
    Ok(())
}
