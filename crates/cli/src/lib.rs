//! The `ultta` command line: one file per subcommand, glue and flags only.
#![forbid(unsafe_code)]

mod anchors;
mod answers;
mod classify;
#[cfg(feature = "serve")]
mod client;
mod completions;
mod config;
mod correct;
mod demo;
mod doctor;
#[cfg(test)]
mod documents;
mod encode;
mod encoder;
mod encoding;
mod eval;
mod explain;
mod export;
mod failure;
#[cfg(feature = "serve")]
mod fleet;
mod gradient;
mod head;
mod inspect;
mod interrupt;
mod man;
mod methods;
mod models;
mod output;
mod pictures;
mod pipe;
mod report;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod suggest;
mod suite;
mod summary;
mod terminal_plot;
mod tune;

use std::ffi::OsString;
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
  ultta classify photos/ --labels cat,dog,fox
  ultta run --features features.safetensors --head head.safetensors --shuffle 0
  ultta run --features features.npy --head head.safetensors --out predictions.csv
  encoder | ultta run --features - --head head.safetensors | consumer
  ultta serve --head head.safetensors --data-dir data
  ultta export --head head.safetensors --state state.safetensors --out head.onnx
  ultta inspect head.safetensors
  ultta config --default > ultta.toml";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Classify(Box<classify::Args>),
    Encode(encode::Args),
    Head(head::Args),
    Models(models::Args),
    Doctor(doctor::Args),
    Run(Box<run::Args>),
    Eval(Box<eval::Args>),
    Report(report::Args),
    Suite(suite::Args),
    Tune(Box<tune::Args>),
    #[cfg(feature = "serve")]
    Serve(Box<serve::Args>),
    #[cfg(feature = "serve")]
    Client(client::Args),
    #[cfg(feature = "serve")]
    Fleet(fleet::Args),
    Explain(explain::Args),
    Suggest(suggest::Args),
    Correct(correct::Args),
    Export(export::Args),
    Inspect(inspect::Args),
    Methods(methods::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Opens an encoder by name or folder, for the Python package; a download shows its progress on a terminal.
pub fn open_encoder(model: &str) -> ultta_encode::Result<Box<dyn ultta_encode::Encoder>> {
    encoder::open(model, false)
}

/// What to label of a run, from its answers file and the features that were answered, for the Python package: JSON lines as
/// `ultta suggest --json` prints them.
pub fn suggest_of_run(
    answers: &std::path::Path,
    features: &std::path::Path,
    k: usize,
    normalize: bool,
) -> Result<String, String> {
    let mut lines = Vec::new();
    let told =
        suggest::of_run(answers, features, k, normalize).and_then(|found| found.print(&mut lines, true));
    told.map_err(|error| failure::message(&error))?;
    String::from_utf8(lines).map_err(|error| error.to_string())
}

/// What is wrong with a method that changes the encoder where there are features only, and where it runs; `None` for all
/// other names.
pub fn needs_pictures(method: &str) -> Option<String> {
    gradient::is_method(method).then(|| gradient::needs_pictures(method))
}

/// Runs the command line on these arguments, the program's name first. Wrong usage ends the process, as help does.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let done = match Cli::parse_from(args).command {
        Command::Demo(args) => demo::main(args),
        Command::Classify(args) => classify::main(*args),
        Command::Encode(args) => encode::main(args),
        Command::Head(args) => head::main(args),
        Command::Models(args) => models::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Run(args) => run::main(*args),
        Command::Eval(args) => eval::main(*args),
        Command::Report(args) => report::main(args),
        Command::Suite(args) => suite::main(args),
        Command::Tune(args) => tune::main(*args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::main(*args),
        #[cfg(feature = "serve")]
        Command::Client(args) => client::main(args),
        #[cfg(feature = "serve")]
        Command::Fleet(args) => fleet::main(args),
        Command::Explain(args) => explain::main(args),
        Command::Suggest(args) => suggest::main(args),
        Command::Correct(args) => correct::main(args),
        Command::Export(args) => export::main(args),
        Command::Inspect(args) => inspect::main(args),
        Command::Methods(args) => methods::main(args),
        Command::Config(args) => config::main(args),
        Command::Completions(args) => completions::main(args),
        Command::Man(args) => man::main(args),
    };
    done.unwrap_or_else(failure::report)
}
