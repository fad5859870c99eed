//! The `ultta` command line: one file per subcommand, glue and flags only.

mod anchors;
mod answers;
mod completions;
mod config;
mod demo;
mod failure;
mod inspect;
mod interrupt;
mod methods;
mod output;
mod pipe;
mod run;
mod settings;
mod summary;
mod terminal_plot;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Adapts a frozen zero-shot classifier (CLIP and its kin) to the stream it sees.
#[derive(Parser)]
#[command(name = "ultta", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ultta demo
  ultta run --features features.safetensors --head head.safetensors --shuffle 0
  ultta run --features features.npy --head head.safetensors --out predictions.csv
  encoder | ultta run --features - --head head.safetensors | consumer
  ultta inspect head.safetensors
  ultta config --default > ultta.toml";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Run(Box<run::Args>),
    Inspect(inspect::Args),
    Methods(methods::Args),
    Config(config::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::main(args),
        Command::Run(args) => run::main(*args),
        Command::Inspect(args) => inspect::main(args),
        Command::Methods(args) => methods::main(args),
        Command::Config(args) => config::main(args),
        Command::Completions(args) => completions::main(args),
    };
    done.unwrap_or_else(failure::report)
}
