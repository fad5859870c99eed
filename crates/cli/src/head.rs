//! `ultta head`: class names to a head file.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta_formats::shown;

use crate::encoder::{EncoderArgs, HeadArgs};
use crate::failure::usage;
use crate::output;

/// Make a head file of class names
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    head: HeadArgs,

    #[command(flatten)]
    encoder: EncoderArgs,

    /// The head file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,

    /// No progress bar
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta head --labels cat,dog,fox --out head.safetensors
  ultta head --labels-file descriptions.json --out head.safetensors
  ultta head --labels-folder photos/ --templates imagenet-80 --exemplars examples/:0.5 --out head.safetensors";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if !args.head.given() {
        return usage("which classes? give --labels cat,dog, --labels-file FILE or --labels-folder DIR");
    }
    output::check_writable(&args.out)?;
    let encoder = args.encoder.open(args.quiet)?;
    let head = args.head.build(&*encoder, &args.encoder.options(), args.quiet)?;
    head.save(output::target(&args.out))?;
    if !args.quiet {
        writeln!(
            std::io::stdout(),
            "{}: {} classes, dimension {}, logit scale {:.2}, {} templates",
            shown(&args.out),
            head.n_classes(),
            head.dim(),
            head.logit_scale(),
            head.metadata().get("templates").map_or("its own", String::as_str)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
