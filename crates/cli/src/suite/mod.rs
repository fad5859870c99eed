//! `ultta suite`: the tables of publications, their figures and ours side by side.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use ultta_eval::report;
use ultta_formats::shown;

use crate::output::Output;

mod paper;
mod pictures;
mod tta_vlm;

/// Reproduce the tables of a publication
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    suite: Which,
}

#[derive(clap::Subcommand, Debug)]
enum Which {
    /// The six tables of the UL-TTA paper
    Paper(paper::Args),
    /// The batteries that the field reports on: ten cross-domain sets, and ImageNet with A, V2, R and Sketch
    TtaVlm(tta_vlm::Args),
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    match args.suite {
        Which::Paper(args) => paper::main(args),
        Which::TtaVlm(args) => tta_vlm::main(args),
    }
}

/// Tables, and a report over the runs they are made of, stay in the output folder.
fn keep(out: &Path, tables: &str) -> anyhow::Result<()> {
    if !out.is_dir() {
        return Ok(());
    }
    let write = |name: &str, text: &str| -> anyhow::Result<()> {
        let mut file = Output::create(&out.join(name))?;
        file.write_all(text.as_bytes())?;
        file.commit()
    };
    write("tables.md", tables)?;
    let found = report::read(out)?;
    if !found.runs.is_empty() {
        write("report.html", &report::html(&found)?)?;
        eprintln!("tables: {}; report: {}", shown(&out.join("tables.md")), shown(&out.join("report.html")));
    }
    Ok(())
}
