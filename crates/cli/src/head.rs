//! `ultta head`: class names, or head files, to a head file.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta_formats::shown;

use crate::anchors::{Anchors, read_head, with_files};
use crate::encoder::{EncoderArgs, HeadArgs};
use crate::failure::usage;
use crate::output;

/// Make a head file of class names, or of other head files
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    head: HeadArgs,

    /// A head file instead of class names: nothing is encoded
    #[arg(long, value_name = "FILE", conflicts_with_all = ["labels", "labels_file", "labels_folder", "exemplars"], help_heading = "Classes")]
    from: Option<PathBuf>,

    /// Further anchors: another head file (matched by class name) or labelled features. All that a file has for a class count
    /// WEIGHT (default 1) together, the head's own count 1. Folded in, unless --anchors-apart
    #[arg(long, value_name = "FILE[:WEIGHT]", help_heading = "Classes")]
    anchors: Vec<Anchors>,

    /// Keep prompts, exemplars and anchors of a class apart instead of folding them into a mean: it scores the soft maximum
    /// over them. T near 0 is the mean of their scores, a large T their maximum; 1 adds up probabilities
    #[arg(long, value_name = "T", help_heading = "Classes")]
    anchors_apart: Option<f32>,

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
  ultta head --labels-folder photos/ --templates imagenet-80 --exemplars examples/:0.5 --out head.safetensors
  ultta head --labels cat,dog,fox --templates imagenet-7 --anchors-apart 1 --out head.safetensors
  ultta head --from head.safetensors --anchors head-weak.safetensors --anchors-apart 1 --out both.safetensors";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if !args.head.given() && args.from.is_none() {
        return usage(
            "which classes? give --labels cat,dog, --labels-file FILE, --labels-folder DIR or --from HEAD",
        );
    }
    output::check_writable(&args.out)?;
    let head = match &args.from {
        Some(file) => read_head(file)?,
        None => {
            args.head.check()?;
            let encoder = args.encoder.open(args.quiet)?;
            args.head.build_apart(&*encoder, &args.encoder.options(), args.quiet, args.anchors_apart)?
        }
    };
    if args.from.is_some() && args.anchors.is_empty() {
        return usage("--from: expected further anchors; give --anchors FILE");
    }
    let head = with_files(head, &args.anchors, args.anchors_apart)?;
    head.save(output::target(&args.out))?;
    if !args.quiet {
        writeln!(
            std::io::stdout(),
            "{}: {} classes, dimension {}, logit scale {:.2}, {} templates{}",
            shown(&args.out),
            head.n_classes(),
            head.dim(),
            head.logit_scale(),
            head.metadata().get("templates").map_or("its own", String::as_str),
            head.anchors_apart().map_or(String::new(), |n| format!(", {n} anchors kept apart"))
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
