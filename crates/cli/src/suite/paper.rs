//! `ultta suite paper`: the six tables of the UL-TTA paper, from packs of features or from pictures.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ultta::internal::nearest;
use ultta_eval::method::Method;
use ultta_eval::suite::{CHANGING, DATASETS, Entry, Forward, LONG, Suite, TABLES, absent, packs_below};
use ultta_formats::shown;

use super::pictures::{Asked, Prepared};
use crate::encoder::EncoderArgs;
use crate::eval::Bars;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::{gradient, pictures};

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only these tables: datasets, domainnet, per-dataset, ablations, efficiency, stability
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,

    /// Folder of packs, `<dataset>/<encoder>/features.safetensors` with head.safetensors beside it
    #[arg(long, value_name = "FOLDER", default_value = "data", conflicts_with = "images")]
    data: PathBuf,

    /// Folder of datasets as they are downloaded (PACS, office_home, domain_net, terra_incognita, imagenetv2…,
    /// imagenet-r, imagenet-a, imagenet-sketch): what is found is encoded, then methods on features and methods that
    /// change the encoder run on it
    #[arg(long, value_name = "ROOT")]
    images: Option<PathBuf>,

    /// With --images, encode only N pictures of each domain: a quick look
    #[arg(long, value_name = "N", requires = "images", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,

    /// With --images, weak views of each picture, for methods that use views: each costs a forward pass
    #[arg(long, value_name = "K", default_value_t = 0, requires = "images", value_parser = clap::value_parser!(u32).range(..=1024))]
    views: u32,

    /// Samples of the long stream
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    long: Option<u32>,

    /// A pack that counts as in-distribution: AUROC tells it from each stream
    #[arg(long, value_name = "FILE")]
    in_distribution: Option<PathBuf>,

    /// With --data, measure a forward pass of --model: overheads in the efficiency table are shares of it. With --images
    /// this is always done
    #[arg(long)]
    forward: bool,

    /// Only the estimate of the time, with --images
    #[arg(long, requires = "images")]
    estimate: bool,

    /// Prompt templates of the heads, with --images
    #[arg(long, value_name = "T", default_value = "photo")]
    templates: String,

    /// Where run folders, packs, tables.md and report.html go; what is there is not made again. With --sample or --views
    /// they go beside it, into FOLDER-sample-N, FOLDER-views-K
    #[arg(long, value_name = "FOLDER", default_value = "runs/suite-paper")]
    out: PathBuf,

    /// Runs at a time; as many as there are cores unless given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    #[command(flatten)]
    encoder: EncoderArgs,
}

const EXAMPLES: &str = "\
Examples:
  ultta suite paper --data data/
  ultta suite paper --images /data --model ViT-B-16 --sample 200      # a quick look
  ultta suite paper --images /data --model ViT-B-16                   # everything; killed, it goes on where it was

Methods that change the encoder need a binary built with --features gradient.";

/// Samples of the long stream per picture, where only some pictures are looked at.
const LONG_PER_PICTURE: usize = 10;

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    for name in &args.tables {
        if !TABLES.contains(&name.as_str()) {
            let hint = nearest(name, TABLES.into_iter()).map(|n| format!("; did you mean {n}?"));
            let hint = hint.unwrap_or_default();
            return usage(format!("unknown table {name:?}{hint} (known: {})", TABLES.join(", ")));
        }
    }
    match &args.images {
        Some(root) => from_pictures(&args, root),
        None => from_packs(&args),
    }
}

fn wanted(args: &Args) -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().filter(|t| args.tables.is_empty() || args.tables.iter().any(|p| p == t))
}

fn jobs(args: &Args) -> usize {
    args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

fn from_packs(args: &Args) -> anyhow::Result<ExitCode> {
    let open = |entry: &Entry| packs_below(&args.data, entry);
    let needs_pictures =
        "needs pictures, not features: `ultta suite paper --images ROOT --model M`".to_string();
    let forward = if args.forward { Some(forward(args, &*args.encoder.open(false)?)?) } else { None };
    print(
        args,
        &Suite {
            datasets: &open,
            changing: Err(needs_pictures),
            forward,
            in_distribution: args.in_distribution.clone(),
            absent: &absent,
            long: args.long.map_or(LONG, |n| n as usize),
            out: args.out.clone(),
            jobs: jobs(args),
        },
    )
}

/// A forward pass, measured on a grey picture.
fn forward(args: &Args, encoder: &dyn ultta_encode::Encoder) -> anyhow::Result<Forward> {
    let seconds = super::pictures::forward_seconds(encoder)?;
    Ok(Forward { encoder: encoder.name().into(), seconds, flops: pictures::flops(&args.encoder.model) })
}

fn from_pictures(args: &Args, root: &Path) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let encoder = args.encoder.open(false)?;
    let forward = forward(args, &*encoder)?;
    let methods = gradient::Methods::open(&args.encoder.model, Vec::new());
    let resolve = |name: &str| -> ultta::Result<Method> {
        let bad = |reason: String| ultta::Error::Config { key: "method".into(), reason };
        match &methods {
            Ok(methods) => match methods.resolve(name, None).map_err(|e| bad(format!("{e:#}")))? {
                Some(method) => Ok(method),
                None => Err(bad(format!("{name} is not built into this binary"))),
            },
            Err(error) => Err(bad(format!("{error:#}"))),
        }
    };
    let out = super::place(&args.out, args.sample, args.views)?;
    let asked = Asked {
        root,
        sample: args.sample.map(|n| n as usize),
        views: args.views as usize,
        templates: &args.templates,
        out: &out,
        encoder: &*encoder,
        options: args.encoder.options(),
        forward: &forward,
        interrupt: &interrupt,
    };
    let prepared = Prepared::find(asked, &DATASETS.map(|e| e.folder))?;
    let pictures = prepared.pictures();
    let long = args.long.map_or_else(
        || if args.sample.is_some() { LONG.min(LONG_PER_PICTURE * pictures.max(1)) } else { LONG },
        |n| n as usize,
    );
    let tables: Vec<&str> = wanted(args).collect();
    let changing: Vec<Method> = match &methods {
        Ok(_) => CHANGING.into_iter().map(&resolve).collect::<ultta::Result<_>>()?,
        Err(_) => Vec::new(),
    };
    prepared.estimate(&changing, &tables, long)?;
    if args.estimate {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = prepared.encode()? {
        return Ok(code);
    }
    let open = |entry: &Entry| prepared.open(entry.folder);
    let missing = |entry: &Entry| {
        format!("absent: get {}, put it into {}/{}", entry.source, shown(&root), entry.folder)
    };
    print(
        args,
        &Suite {
            datasets: &open,
            changing: match &methods {
                Ok(_) => Ok(&resolve),
                Err(error) => Err(format!("{error:#}")),
            },
            forward: Some(forward.clone()),
            in_distribution: args.in_distribution.clone(),
            absent: &missing,
            long,
            out: out.clone(),
            jobs: jobs(args),
        },
    )
}

/// Prints the tables one by one; they and a report over their runs stay in the output folder.
fn print(args: &Args, suite: &Suite<'_>) -> anyhow::Result<ExitCode> {
    let mut all = String::new();
    for name in wanted(args) {
        let bars = Bars::new(None, false);
        let table = suite.table(name, &bars);
        bars.clear();
        let table = table?;
        write!(std::io::stdout(), "{table}")?;
        all.push_str(&table);
    }
    super::keep(&suite.out, &all)?;
    Ok(ExitCode::SUCCESS)
}
