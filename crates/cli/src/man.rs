//! `ultta man`: the manual pages, one per command, for packagers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

/// Write manual pages into a folder, one per command
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub struct Args {
    /// The folder; it is made if it is not there
    folder: PathBuf,
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let failed = |e| anyhow::anyhow!("writing manual pages: {e} ({})", args.folder.display());
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(crate::Cli::command(), &args.folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
