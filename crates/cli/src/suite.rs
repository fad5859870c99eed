//! `ultta suite paper`: the paper's tables, its figures and ours side by side.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta::internal::nearest;
use ultta_eval::suite::{Suite, TABLES};

use crate::eval::Bars;
use crate::failure::usage;

/// Reproduce the tables of a publication
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    suite: Which,
}

#[derive(clap::Subcommand, Debug)]
enum Which {
    /// The six tables of the UL-TTA paper
    Paper(Paper),
}

#[derive(clap::Args, Debug)]
struct Paper {
    /// Only these tables: datasets, domainnet, per-dataset, ablations, efficiency, stability
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,

    /// Folder of packs, `<dataset>/<encoder>/features.safetensors` with head.safetensors beside it
    #[arg(long, value_name = "FOLDER", default_value = "data")]
    data: PathBuf,

    /// Where run folders go; finished runs that are there are not run again
    #[arg(long, value_name = "FOLDER", default_value = "runs/suite-paper")]
    out: PathBuf,

    /// Runs at a time; as many as there are cores unless given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let Which::Paper(paper) = args.suite;
    for name in &paper.tables {
        if !TABLES.contains(&name.as_str()) {
            let hint = nearest(name, TABLES.into_iter()).map(|n| format!("; did you mean {n}?"));
            let hint = hint.unwrap_or_default();
            return usage(format!("unknown table {name:?}{hint} (known: {})", TABLES.join(", ")));
        }
    }
    let jobs = paper.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let suite = Suite { data: paper.data, out: paper.out, jobs };
    for name in TABLES.iter().filter(|t| paper.tables.is_empty() || paper.tables.iter().any(|p| p == *t)) {
        let bars = Bars::new(None, false);
        let table = suite.table(name, &bars);
        bars.clear();
        write!(std::io::stdout(), "{}", table?)?;
    }
    Ok(ExitCode::SUCCESS)
}
