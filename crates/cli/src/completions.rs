//! `ultta completions`: what a shell needs to complete our flags.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  ultta completions bash > ~/.local/share/bash-completion/completions/ultta
  ultta completions zsh  > \"${fpath[1]}/_ultta\"
  ultta completions fish > ~/.config/fish/completions/ultta.fish";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    // Written to memory first, because the generator panics if its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "ultta", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
