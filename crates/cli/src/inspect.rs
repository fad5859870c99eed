//! `ultta inspect`: prints what a file holds, and checks it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value, json};
use ultta::{Error, Head, Session, State};
use ultta_eval::pack::Pack;
use ultta_formats::Kind;
use ultta_formats::shown;

use crate::anchors::read_head;

/// Print what a features, head or state file holds, and check it
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Features (safetensors, .npy, .npz), a head or a state
    file: PathBuf,

    /// Also check that features or a state fit this head
    #[arg(long, value_name = "FILE")]
    head: Option<PathBuf>,

    /// Accept features of any length but zero
    #[arg(long)]
    normalize: bool,

    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta inspect features.safetensors --head head.safetensors
  ultta inspect state.safetensors --json";

/// Classes printed by name before the rest is only counted.
const NAMED_CLASSES: usize = 12;

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let head = args.head.as_deref().map(read_head).transpose()?;
    let (kind, facts, checked) = match Kind::of(&args.file).map_err(ultta::Error::from)? {
        Kind::Features => {
            let pack = Pack::open(&args.file, None)?;
            ("features", features(&pack), check_features(&pack, head.as_ref(), args.normalize))
        }
        Kind::Head => ("head", head_facts(&read_head(&args.file)?, args.json), Ok(())),
        Kind::State => {
            let state = State::load(&args.file).with_context(|| shown(&args.file))?;
            ("state", state_facts(&state), check_state(&state, head))
        }
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut object = Map::from_iter([("kind".to_string(), kind.into())]);
        object.extend(facts);
        object.insert("ok".into(), checked.is_ok().into());
        writeln!(out, "{}", Value::Object(object))?;
    } else {
        writeln!(out, "{kind} {}", shown(&args.file))?;
        for (key, value) in facts {
            print_fact(&mut out, &key, &value)?;
        }
    }
    checked.with_context(|| shown(&args.file))?;
    if !args.json {
        writeln!(out, "  ok")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_fact(out: &mut impl Write, key: &str, value: &Value) -> std::io::Result<()> {
    match value {
        // The configuration and the settings of a state have several lines.
        Value::String(text) if matches!(key, "config" | "settings") => {
            writeln!(out, "  {key}:")?;
            text.lines().try_for_each(|line| writeln!(out, "    {}", shown(line)))
        }
        Value::String(text) => writeln!(out, "  {}: {}", shown(key), shown(text)),
        Value::Object(map) => {
            map.iter().try_for_each(|(inner, value)| print_fact(out, &format!("{key}.{inner}"), value))
        }
        other => writeln!(out, "  {}: {other}", shown(key)),
    }
}

type Facts = Vec<(String, Value)>;

fn features(pack: &Pack) -> Facts {
    let mut facts: Facts = vec![
        ("rows".into(), pack.rows().into()),
        ("dim".into(), pack.dim().into()),
        ("dtype".into(), pack.dtype().into()),
    ];
    if let Some(labels) = pack.labels() {
        let mut classes = labels.to_vec();
        classes.sort_unstable();
        let range = (classes.first().copied(), classes.last().copied());
        classes.dedup();
        let described = json!({ "lowest": range.0, "highest": range.1, "distinct": classes.len() });
        facts.push(("labels".into(), described));
    } else {
        facts.push(("labels".into(), "none".into()));
    }
    facts.push(("metadata".into(), json!(pack.metadata())));
    facts
}

fn check_features(pack: &Pack, head: Option<&Head>, normalize: bool) -> ultta::Result<()> {
    pack.check(normalize)?;
    if let Some(head) = head {
        if pack.dim() != head.dim() {
            let (expected, got) = (head.dim(), pack.dim());
            return Err(Error::Shape { what: ultta::What::Dimension, expected, got });
        }
        pack.check_labels(head.n_classes())?;
    }
    Ok(())
}

fn head_facts(head: &Head, all_names: bool) -> Facts {
    let names = head.classes();
    let named = if all_names { names.len() } else { NAMED_CLASSES.min(names.len()) };
    let mut listed = names[..named].join(", ");
    if named < names.len() {
        listed.push_str(&format!(" and {} more", names.len() - named));
    }
    let names = if all_names { json!(names) } else { listed.into() };
    vec![
        ("classes".into(), head.n_classes().into()),
        ("names".into(), names),
        ("dim".into(), head.dim().into()),
        ("logit_scale".into(), head.logit_scale().into()),
        ("digest".into(), head.digest().into()),
        ("metadata".into(), json!(head.metadata())),
    ]
}

fn state_facts(state: &State) -> Facts {
    let strings = state.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    let mut facts: Facts = strings.collect();
    if let Ok([seen, admitted, flips, unknown, ..]) = state.get::<u64>("session.counts") {
        facts.push(("seen".into(), (*seen).into()));
        facts.push(("admitted".into(), (*admitted).into()));
        facts.push(("flips".into(), (*flips).into()));
        facts.push(("unknown".into(), (*unknown).into()));
    }
    facts.push(("tensors".into(), state.tensors.len().into()));
    facts.push(("bytes".into(), state.bytes().into()));
    // The configuration and the settings are long: last.
    facts.sort_by_key(|(key, _)| key == "config" || key == "settings");
    facts
}

/// Reading has checked the file itself; a head lets a session try the contents.
fn check_state(state: &State, head: Option<Head>) -> ultta::Result<()> {
    head.map_or(Ok(()), |head| Session::resume(head, state).map(|_| ()))
}
