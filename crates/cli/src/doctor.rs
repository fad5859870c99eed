//! `ultta doctor`: checks a model, a head, a dataset, a features file, and says what to do.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta::{Error, Features, Head};
use ultta_encode::Encoder;
use ultta_encode::dataset::Dataset;
use ultta_encode::decode::decode;
use ultta_encode::doctor::{self, Finding, Verdict};
use ultta_encode::pipeline;
use ultta_encode::source::{self, Item};
use ultta_eval::pack::Pack;
use ultta_formats::shown;

use crate::anchors::read_head;
use crate::encoder::EncoderArgs;
use crate::failure::{BAD_INPUT, usage};
use crate::pictures::label_of;

/// Check a model, a head, a dataset or a features file, and say what to do
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Pictures to look through for unreadable files
    #[arg(value_name = "PATH")]
    paths: Vec<String>,

    /// Check the model; with pictures and a --head of it, also their cosines with the classes
    #[arg(long)]
    check_model: bool,

    #[command(flatten)]
    encoder: EncoderArgs,

    /// A head file
    #[arg(long, value_name = "FILE")]
    head: Option<PathBuf>,

    /// A features file; with --head, both are checked against each other
    #[arg(long, value_name = "FILE")]
    features: Option<PathBuf>,

    /// A known dataset …
    #[arg(long, value_name = "NAME", requires = "root")]
    dataset: Option<String>,

    /// … and where it lies
    #[arg(long, value_name = "DIR", requires = "dataset")]
    root: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ultta doctor --check-model --model ViT-B-16
  ultta doctor --check-model --model ViT-B-16 --head head.safetensors photos/
  ultta doctor --features features.safetensors --head head.safetensors
  ultta doctor --dataset pacs --root PACS/
  ultta doctor photos/

Exit codes: 0 all is well or doubtful, 2 something is wrong.";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let asked = [args.check_model, args.head.is_some(), args.features.is_some(), args.dataset.is_some()];
    if !asked.contains(&true) && args.paths.is_empty() {
        return usage("what shall be checked? give --check-model, --head, --features, --dataset or pictures");
    }
    let holds_rows =
        |path: &&String| [".safetensors", ".npy", ".parquet"].iter().any(|end| path.ends_with(end));
    if let Some(path) = args.paths.iter().find(holds_rows) {
        return usage(format!("{} is no picture: give it as --features or --head", shown(path)));
    }
    let mut worst = Verdict::Fine;
    let mut show = |title: &str, findings: &[Finding]| -> std::io::Result<()> {
        // Names of files and classes are part of what is said.
        writeln!(std::io::stdout(), "{}", shown(title))?;
        for finding in findings {
            let mark = match finding.verdict {
                Verdict::Known => "–    ",
                Verdict::Fine => "ok   ",
                Verdict::Doubtful => "hm   ",
                Verdict::Wrong => "WRONG",
            };
            writeln!(std::io::stdout(), "  {mark} {}", shown(&finding.what))?;
            if !finding.advice.is_empty() {
                writeln!(std::io::stdout(), "        → {}", shown(&finding.advice))?;
            }
            worst = worst.max(finding.verdict);
        }
        Ok(())
    };
    let head = args.head.as_deref().map(read_head).transpose()?;
    if args.check_model {
        let encoder = args.encoder.open(false)?;
        let mut findings = doctor::model(&*encoder)?;
        if let (Some(head), false) = (&head, args.paths.is_empty()) {
            findings.retain(|finding| finding.verdict != Verdict::Known);
            let mut items = source::collect(&args.paths)?;
            if items.iter().any(|item| label_of(item, head).is_some()) {
                // Those of classes that the head lacks say nothing of its cosines.
                items.retain(|item| label_of(item, head).is_some());
            }
            findings.extend(measured(&*encoder, &items, head, &args)?);
        }
        show(&format!("model {}", encoder.name()), &findings)?;
    }
    if let (Some(head), Some(path)) = (&head, &args.head) {
        show(&format!("head {}", shown(&path)), &doctor::head(head))?;
    }
    if let Some(path) = &args.features {
        show(&format!("features {}", shown(&path)), &features(path, head.as_ref())?)?;
    }
    if let (Some(name), Some(root)) = (&args.dataset, &args.root) {
        let found = Dataset::named(name)?.open(root)?;
        let mut findings: Vec<Finding> = found
            .packs
            .iter()
            .map(|pack| finding(Verdict::Fine, format!("{}: {} pictures", pack.name, pack.items.len()), ""))
            .collect();
        let classes = &found.classes.names;
        let some: Vec<&str> = classes.iter().take(5).map(String::as_str).collect();
        findings.push(finding(
            Verdict::Fine,
            format!("{} classes in this order: {} …", classes.len(), some.join(", ")),
            "",
        ));
        findings.extend(found.warnings.iter().map(|w| {
            finding(
                Verdict::Doubtful,
                w.clone(),
                "fine if that is what you have; compare with the publication",
            )
        }));
        let items: Vec<_> = found.packs.iter().flat_map(|p| p.items.clone()).collect();
        findings.extend(unreadable(&items, &args)?);
        show(&format!("dataset {name}"), &findings)?;
    }
    if !args.paths.is_empty() {
        let items = source::collect(&args.paths)?;
        if items.is_empty() {
            return usage(format!("no pictures in {}", args.paths.join(", ")));
        }
        let mut findings = unreadable(&items, &args)?;
        if let Some(head) = &head {
            let names: BTreeSet<String> = items.iter().filter_map(|item| item.class.clone()).collect();
            findings.extend(doctor::folders(&Vec::from_iter(names), head));
        }
        show("pictures", &findings)?;
    }
    Ok(if worst == Verdict::Wrong { ExitCode::from(BAD_INPUT) } else { ExitCode::SUCCESS })
}

fn finding(verdict: Verdict, what: impl Into<String>, advice: &str) -> Finding {
    Finding { verdict, what: what.into(), advice: advice.into() }
}

/// Pictures whose cosines are measured.
const PICTURES: usize = 64;

/// Cosines of some pictures with the classes of a head, as the model gives them. Folders that are all named as classes
/// are labels.
fn measured(encoder: &dyn Encoder, items: &[Item], head: &Head, args: &Args) -> anyhow::Result<Vec<Finding>> {
    let n = items.len().min(PICTURES);
    let some: Vec<Item> = (0..n).map(|i| items[i * items.len() / n].clone()).collect();
    let labels: Option<Vec<usize>> = some.iter().map(|item| label_of(item, head)).collect();
    let (mut rows, mut kept) = (Vec::new(), Vec::new());
    pipeline::run(&some, encoder, &args.encoder.options(), |block| {
        // What cannot be read is told with the pictures.
        for (i, row) in block.rows.iter().enumerate().filter_map(|(i, row)| Some((i, row.as_ref().ok()?))) {
            rows.extend_from_slice(block.features.row(*row));
            kept.push(block.start + i);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if kept.is_empty() {
        return usage(format!("none of {n} pictures could be read"));
    }
    let labels: Option<Vec<usize>> = labels.map(|all| kept.iter().map(|&i| all[i]).collect());
    Ok(doctor::features(&Features::new(rows, encoder.dim())?, &[1.0], labels.as_deref(), Some(head)))
}

/// Rows that are looked at.
const ROWS: usize = 20_000;

fn features(path: &PathBuf, head: Option<&Head>) -> anyhow::Result<Vec<Finding>> {
    let pack = Pack::open(path, None)?;
    // A file in the order of its classes shows all of them.
    let rows: Vec<usize> = (0..pack.rows()).step_by(pack.rows().div_ceil(ROWS).max(1)).collect();
    // A whole read names the first row that is wrong; only then they are looked at one by one.
    let norms = match pack.select(&rows, false) {
        Ok(_) => Ok(vec![1.0]),
        Err(Error::NotUnit { .. }) => rows.iter().map(|&row| norm(&pack, row)).collect(),
        Err(error) => Err(error),
    };
    let norms: Vec<f64> = match norms {
        Ok(norms) => norms,
        Err(Error::NotFinite { row, .. }) => {
            let advice = "the encoder ran in too low a precision, or the file is damaged: encode anew";
            return Ok(vec![finding(
                Verdict::Wrong,
                format!("row {row} holds values that are not finite"),
                advice,
            )]);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(row) = norms.iter().position(|&norm| norm < 1e-12) {
        let advice = "a picture could not be encoded: leave such rows out";
        let row = rows[row];
        return Ok(vec![finding(Verdict::Wrong, format!("row {row} is all zeros"), advice)]);
    }
    let features = pack.select(&rows, true)?;
    let labels: Option<Vec<usize>> = pack.labels().map(|all| rows.iter().map(|&row| all[row]).collect());
    let mut findings = doctor::features(&features, &norms, labels.as_deref(), head);
    if let Some(head) = head {
        findings.extend(doctor::provenance(pack.metadata(), head));
    }
    if rows.len() < pack.rows() {
        let what = format!("{} of {} rows were read, spread over the file", rows.len(), pack.rows());
        findings.push(finding(Verdict::Fine, what, ""));
    }
    Ok(findings)
}

/// The length of a row as it is in the file.
fn norm(pack: &Pack, row: usize) -> Result<f64, Error> {
    match pack.read(row..row + 1, false) {
        Ok(_) => Ok(1.0),
        Err(Error::NotUnit { norm, .. }) => Ok(norm),
        Err(Error::NotFinite { what, .. }) => Err(Error::NotFinite { what, row }),
        Err(error) => Err(error),
    }
}

/// Decodes every picture.
fn unreadable(items: &[source::Item], args: &Args) -> anyhow::Result<Vec<Finding>> {
    use rayon::prelude::*;
    let limits = args.encoder.options().limits;
    let bad: Vec<Finding> = items
        .par_iter()
        .filter_map(|item| {
            let read = item.read(limits.bytes).and_then(|bytes| decode(&bytes, &limits));
            let error = read.err()?.to_string();
            Some(finding(Verdict::Wrong, format!("{}: {error}", item.id), ""))
        })
        .collect();
    let mut findings = vec![finding(
        if bad.is_empty() { Verdict::Fine } else { Verdict::Wrong },
        format!("{} of {} pictures can be read", items.len() - bad.len(), items.len()),
        if bad.is_empty() { "" } else { "replace the files below, or leave them: they are skipped" },
    )];
    findings.extend(bad.into_iter().take(20));
    Ok(findings)
}
