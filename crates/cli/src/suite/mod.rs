//! `ultta suite`: the tables of publications, their figures and ours side by side.

use std::process::ExitCode;

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
