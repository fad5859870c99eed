//! `ultta correct`: labels for earlier samples of a saved state that count at once.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use ultta::Head;

use crate::anchors::StateHead;
use crate::failure::usage;
use crate::output;

/// Give labels for earlier samples of a saved state that count from the next row on, or take them back
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    head: StateHead,

    /// The state to correct, as `run --save-state` or the service wrote it
    #[arg(long, value_name = "FILE")]
    state: PathBuf,

    /// Labels: ID=LABEL. The id is the `sample` of an answer or a suggestion, the label an index or a name
    #[arg(value_name = "ID=LABEL")]
    labels: Vec<String>,

    /// Take the label of a sample back, by its `sample`; several times for several
    #[arg(long, value_name = "ID")]
    withdraw: Vec<u64>,

    /// Where the corrected state goes; the state itself if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print the labels that count as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta suggest --state state.safetensors --head head.safetensors
  ultta correct --state state.safetensors --head head.safetensors 17=cat 18=dog
  ultta correct --state state.safetensors --head head.safetensors --withdraw 18
  ultta run --features day2.npy --head head.safetensors --load-state state.safetensors

An ID is the number that the session gave the sample: `sample` in the answers of `run --out` and `classify --json`, and in what
`suggest` prints. It is the row of the features file only if the rows came in that order and from no earlier state.

Rows that look like a labelled sample lean to its label by 4 to 9 nats; a head that is surer than that keeps its answer. What
the sample had taught by itself is withdrawn. A label that is taken back leaves nothing behind (docs/operating.md). A running
service takes labels by `ultta client correct`.";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if args.labels.is_empty() && args.withdraw.is_empty() {
        return usage("expected labels, such as 17=cat, or --withdraw 17");
    }
    if let Some(out) = &args.out {
        let inputs: Vec<&Path> = args.head.files().collect();
        output::check_apart(out, &inputs)?;
    }
    let mut session = args.head.resume(&args.state)?;
    // Nothing is written unless all of it could be done.
    for text in &args.labels {
        let (id, label) = parse(text)?;
        let label = label.of(session.head()).with_context(|| format!("{text:?}"))?;
        if !session.correct(id, label).with_context(|| format!("{text:?}"))? {
            let method = session.config().method.name();
            return usage(format!("{text:?}: the method of this state, {method}, has no use for labels"));
        }
    }
    for id in &args.withdraw {
        if !session.withdraw(*id) {
            return usage(format!("--withdraw {id}: there is no label for this sample"));
        }
    }
    session.state().save(output::target(args.out.as_ref().unwrap_or(&args.state)))?;
    let given = session.corrections();
    let mut out = std::io::stdout().lock();
    if args.json {
        let name = |label: usize| &session.head().classes()[label];
        let list: Vec<_> = given
            .iter()
            .map(|&(id, label)| serde_json::json!({ "id": id, "label": label, "class": name(label) }))
            .collect();
        writeln!(out, "{}", serde_json::json!({ "corrections": list }))?;
    } else {
        let (more, less) = (args.labels.len(), args.withdraw.len());
        writeln!(out, "{more} given, {less} taken back; {} labels count now", given.len())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A class, as somebody types it.
pub enum Typed<'a> {
    Index(usize),
    Name(&'a str),
}

impl Typed<'_> {
    fn of(&self, head: &Head) -> anyhow::Result<usize> {
        let name = match *self {
            Typed::Index(label) => return Ok(label),
            Typed::Name(name) => name,
        };
        let mut found = head.classes().iter().enumerate().filter(|(_, class)| *class == name);
        match (found.next(), found.next()) {
            (Some((label, _)), None) => Ok(label),
            (None, _) => usage(format!("there is no class {name:?}")),
            _ => usage(format!("several classes are named {name:?}; give the index")),
        }
    }
}

/// ID=LABEL.
pub fn parse(text: &str) -> anyhow::Result<(u64, Typed<'_>)> {
    let parsed =
        text.split_once('=').and_then(|(id, label)| Some((id.trim().parse::<u64>().ok()?, label.trim())));
    let Some((id, label)) = parsed.filter(|(_, label)| !label.is_empty()) else {
        return usage(format!("{text:?}: expected ID=LABEL, such as 17=cat"));
    };
    Ok((id, label.parse().map_or(Typed::Name(label), Typed::Index)))
}
