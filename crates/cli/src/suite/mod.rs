//! `ultta suite`: the tables of publications, their figures and ours side by side.

use std::process::ExitCode;

mod paper;
mod pictures;

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
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    match args.suite {
        Which::Paper(args) => paper::main(args),
    }
}
