//! `ultta suite`: the tables of publications, their figures and ours side by side.

use std::io::Write as _;
use std::path::{Path, PathBuf};
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

/// Where packs, runs, tables and the report of a suite go. A sample of the pictures, and views beside them, are other data
/// under the same names: they have a folder of their own beside `--out`, so that a quick look is not in the way of the whole.
fn place(out: &Path, sample: Option<u32>, views: u32) -> std::io::Result<PathBuf> {
    let suffix = sample.map_or(String::new(), |n| format!("-sample-{n}"));
    let suffix = if views > 0 { format!("{suffix}-views-{views}") } else { suffix };
    if suffix.is_empty() {
        return Ok(out.into());
    }
    // `.` and `..` have no name of their own.
    let out = if out.file_name().is_some() { out.to_path_buf() } else { out.canonicalize()? };
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    Ok(out.with_file_name(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_a_folder_beside_the_whole() {
        let of = |out: &str, sample, views| place(Path::new(out), sample, views).unwrap();
        assert_eq!(of("runs/suite", None, 0), Path::new("runs/suite"));
        assert_eq!(of("runs/suite/", Some(9), 0), Path::new("runs/suite-sample-9"));
        assert_eq!(of("runs/suite", Some(9), 63), Path::new("runs/suite-sample-9-views-63"));
        let here = std::env::current_dir().unwrap();
        let name = format!("{}-sample-9", here.file_name().unwrap().to_string_lossy());
        assert_eq!(of(".", Some(9), 0), here.canonicalize().unwrap().with_file_name(name));
    }
}
