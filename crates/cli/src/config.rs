//! `ultta config`: prints settings.

use std::io::Write;
use std::process::ExitCode;

use ultta::{Error, Head, Session};

use crate::settings::Settings;

/// Print settings: the documented default, or what flags and a file resolve to
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print the default configuration, or with `--preset paper` that of the published algorithm, with the meaning of
    /// every key
    #[arg(long, conflicts_with_all = ["method", "config", "settings"])]
    default: bool,

    #[command(flatten)]
    settings: Settings,
}

const EXAMPLES: &str = "\
Examples:
  ultta config --default > ultta.toml         a file to start from
  ultta config --default --preset paper       the same for the published algorithm
  ultta config --preset paper                 every value of a preset
  ultta config --config ultta.toml            checks a file and fills in what it leaves out
  ultta config --set gate.keep=0.6            tries a setting";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let resolved = args.settings.resolve()?;
    // Ranges are checked where a session is made, of any head; a file of shots that does not fit this one is no mistake.
    let any = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 100.0)?;
    if let Err(error @ Error::Config { .. }) = Session::new(any, &resolved) {
        return Err(error.into());
    }
    let text = if !args.default {
        resolved.to_toml()
    } else if args.settings.preset.as_deref() == Some("paper") {
        ultta::internal::PAPER_TOML.to_string()
    } else {
        ultta::DEFAULT_TOML.to_string()
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
