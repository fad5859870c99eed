//! `ultta explain`: why a row is answered as it is.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta::{Error, Input, NamedExplanation, Session};
use ultta_eval::pack::Pack;
use ultta_formats::shown;

use crate::anchors::StateHead;
use crate::failure::usage;
use crate::summary::held_at_zero_shot;

/// Say why a row is answered as it is: what text, images, prior, labels and scene say, in nats per class
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    head: StateHead,

    /// The state to answer from, as `run --save-state` or the service wrote it; without one, the frozen model
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Features; --row says which
    #[arg(long, value_name = "FILE", requires = "row")]
    features: Option<PathBuf>,

    /// The row of the features to explain, from 0
    #[arg(long, value_name = "N", requires = "features", conflicts_with = "id")]
    row: Option<usize>,

    /// Instead of features: an earlier sample, by the `sample` of its answer, from what the state keeps of it
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

An ID is the number that the session gave the sample: `sample` in the answers of `run --out` and `classify --json`, and in what
`suggest` prints.

The nats of a class add up to its logit; the class with the highest logit is the answer. A difference of 1 nat makes a class
e = 2.7 times as likely as another.";

/// Width of the bars.
const BAR: usize = 12;

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let session = match &args.state {
        Some(state) => args.head.resume(state)?,
        None => Session::new(args.head.load()?, &ultta::Config::default())?,
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
        (None, None, Some(id)) => match session.explain_sample(id, args.best) {
            Err(error @ Error::Forgotten { .. }) => {
                return usage(format!("{error}; give its features with --features and --row"));
            }
            explained => explained?,
        },
        _ => return usage("expected either --features with --row, or --id"),
    };
    let explanation = explanation.named(session.head());
    warn(&explanation);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&explanation)?)?;
    } else {
        print(&explanation, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says on standard error if it is the frozen model that is explained.
pub fn warn(told: &NamedExplanation) {
    if let Some(warning) = held_at_zero_shot(told.standing) {
        eprintln!("{warning}");
    }
}

/// For people: a sentence, a table of nats, and what looked alike.
pub fn print(told: &NamedExplanation, out: &mut impl Write) -> std::io::Result<()> {
    let answer = format!("{} ({:.1} %)", shown(&told.class), 100.0 * told.prob);
    let frozen = 100.0 * told.zero_shot_prob;
    match &told.flipped_by {
        Some(lever) => {
            let other = shown(&told.zero_shot_class);
            writeln!(out, "{answer}; zero-shot says {other} ({frozen:.1} %); flipped by the {lever}")?
        }
        None => writeln!(out, "{answer}; zero-shot says the same ({frozen:.1} %)")?,
    }
    if let Some(label) = &told.corrected {
        writeln!(out, "labelled {}", shown(label))?;
    }
    writeln!(out)?;
    let names: Vec<String> = told.classes.iter().map(|c| shown(&c.class).to_string()).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
    write!(out, "{:width$}", "class")?;
    for lever in &told.levers {
        write!(out, "  {lever:>9}")?;
    }
    writeln!(out, "  {:>9}  {:>6}", "= logit", "prob")?;
    // Bars show how far each class is ahead of the last one shown.
    let lowest = told.classes.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
    let highest = told.classes.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    for (class, own) in told.classes.iter().zip(&names) {
        write!(out, "{own}{}", " ".repeat(width - own.chars().count()))?;
        for nats in &class.nats {
            write!(out, "  {:>9.2}", to_hundredths(*nats))?;
        }
        let share = (class.logit - lowest) / (highest - lowest).max(1e-6);
        let bar = "█".repeat((share * BAR as f32).round() as usize);
        writeln!(out, "  {:>9.2}  {:>5.1}%  {bar}", to_hundredths(class.logit), 100.0 * class.prob)?;
    }
    if !told.similar.is_empty() {
        writeln!(out, "\nmost similar earlier scenes")?;
    }
    for scene in &told.similar {
        let label = match &scene.corrected {
            Some(label) => format!("labelled {}", shown(label)),
            None => format!("answered {}", shown(&scene.class)),
        };
        writeln!(out, "  sample {:<8} cosine {:.3}  {label}", scene.id, scene.cosine)?;
    }
    Ok(())
}

/// Rounded as it is printed: what rounds to nothing has no sign.
fn to_hundredths(nats: f32) -> f32 {
    (100.0 * nats).round() / 100.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_without_a_sign() {
        let written = [-0.0, -0.001, 0.0049, -0.006, 12.345].map(|v| format!("{:.2}", to_hundredths(v)));
        assert_eq!(written, ["0.00", "0.00", "0.00", "-0.01", "12.35"]);
    }
}
