//! `ultta report`: tables and pictures over the runs of `ultta eval`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ultta_eval::report;
use ultta_formats::shown;

use crate::failure::usage;
use crate::output::Output;

/// Report on runs: an HTML page, Markdown or LaTeX tables
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ultta report runs/ --html report.html --md tables.md")]
pub struct Args {
    /// The folder that `ultta eval` wrote
    #[arg(value_name = "RUNS")]
    pub runs: PathBuf,

    /// Write one self-contained page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the tables as Markdown; standard output without FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub md: Option<PathBuf>,

    /// Write the summary's pictures as SVG files into a folder
    #[arg(long, value_name = "FOLDER")]
    pub figures: Option<PathBuf>,

    /// Write the tables as LaTeX; standard output without FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub latex: Option<PathBuf>,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let found = report::read(&args.runs)?;
    for reason in &found.unreadable {
        eprintln!("warning: left out: {reason}");
    }
    if found.runs.is_empty() {
        return usage(format!("no runs in {}", shown(&args.runs)));
    }
    let runs: Vec<_> = found.runs.iter().map(|(run, _)| run.clone()).collect();
    if let Some(path) = &args.html {
        write(path, &report::html(&found)?)?;
    }
    if let Some(path) = &args.latex {
        write(path, &report::latex(&runs, &found.refused))?;
    }
    if let Some(folder) = &args.figures {
        std::fs::create_dir_all(folder).map_err(|source| ultta::Error::Io {
            doing: "creating",
            source,
            path: folder.clone(),
        })?;
        for (name, svg) in report::figures(&runs) {
            write(&folder.join(format!("{name}.svg")), &svg)?;
        }
    }
    match &args.md {
        Some(path) => write(path, &report::markdown(&runs, &found.refused))?,
        None if args.html.is_none() && args.latex.is_none() && args.figures.is_none() => {
            write!(std::io::stdout(), "{}", report::markdown(&runs, &found.refused))?
        }
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a whole file or nothing; `-` is standard output.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(text.as_bytes())?;
    output.commit()
}
