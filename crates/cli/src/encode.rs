//! `ultta encode`: pictures to features files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ultta_encode::dataset::Dataset;
use ultta_encode::source::{self, Item};
use ultta_encode::store;
use ultta_encode::{Encoder, prompts};
use ultta_formats::shown;

use crate::encoder::{EncoderArgs, build_head};
use crate::encoding::Encoding;
use crate::failure::usage;
use crate::interrupt::Interrupt;

/// Encode pictures into features files
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, folders (a folder per class gives labels), globs, CSV tables, WebDataset .tar files; - reads paths
    #[arg(value_name = "PATH", conflicts_with = "dataset")]
    paths: Vec<String>,

    /// A known dataset: pacs, office-home, domainnet, terra-incognita, imagenet-v2, imagenet-r, imagenet-a,
    /// imagenet-sketch, imagenet; in CoOp's layouts, caltech101, oxford-pets, stanford-cars, oxford-flowers, food101,
    /// fgvc-aircraft, sun397, dtd, eurosat, ucf101
    #[arg(long, value_name = "NAME", requires = "root", help_heading = "Dataset")]
    dataset: Option<String>,

    /// Where it lies
    #[arg(long, value_name = "DIR", requires = "dataset", help_heading = "Dataset")]
    root: Option<PathBuf>,

    /// Prompt templates of the dataset's head; coop for the dataset's own prompt, tda for
    /// what TDA, PTA and DOTA use on it
    #[arg(long, value_name = "T", default_value = "photo", help_heading = "Dataset")]
    templates: String,

    #[command(flatten)]
    encoder: EncoderArgs,

    /// The features file; with --dataset, the folder of its packs
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,

    /// Pictures whose features are saved at a time; a run that is killed goes on after the last of them
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    save_every: u32,

    /// Rows of a file at most; larger sets become several files
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Output")]
    shard_rows: u32,

    /// Weak views of each picture that are encoded, too, and written beside its features: `run` and `eval` hand them to
    /// methods that use views
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024), help_heading = "Output")]
    views: u32,

    /// Seed of the views
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Output")]
    seed: u64,

    /// Stop at the first picture that cannot be read
    #[arg(long)]
    strict: bool,

    /// No progress bar
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta encode photos/ --out features.safetensors
  ultta encode --dataset pacs --root PACS/ --out data/       # a pack per domain, heads beside them
  ultta encode 'shards/*.tar' --out features.safetensors --model ViT-L-14

Beside the features a table of the same name, .csv, says which row is which picture and which could not be read. The
same command goes on where a killed one stopped.";

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    if let (Some(name), Some(root)) = (&args.dataset, &args.root) {
        return dataset(&args, name, root, &interrupt);
    }
    if args.paths.is_empty() {
        return usage("which pictures? give files, folders or --dataset NAME --root DIR");
    }
    store::check_out(&args.out)?;
    let table = store::table_of(&args.out);
    if let Some(input) = args.paths.iter().find(|path| is_same(Path::new(path), &table)) {
        return usage(format!("{input}: the table of rows would replace it; give --out another name"));
    }
    let items = source::collect(&args.paths)?;
    if items.is_empty() {
        return usage(format!("no pictures in {}", args.paths.join(", ")));
    }
    let labels = labels_of(&items);
    if let Some(loose) = items.iter().find(|item| item.class.is_none() && !item.is_broken())
        && items.iter().any(|item| item.class.is_some())
    {
        eprintln!("warning: {} has no class, so no labels are written", shown(&loose.id));
    }
    let encoder = args.encoder.open(args.quiet)?;
    let (classes, labels) = labels.unzip();
    encoding(&args, &*encoder, &interrupt).pack(
        &args.out,
        &items,
        labels.as_deref(),
        classes.unwrap_or_default(),
        &args.paths.join(" "),
    )
}

/// Whether two paths lead to one file.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Class names in label order and the label of each picture, if every picture has a class. Classes that are numbers
/// are the labels themselves.
fn labels_of<'a>(items: &'a [Item]) -> Option<(Vec<String>, Vec<usize>)> {
    // What cannot be read has no row, so any class will do.
    let any = items.iter().find_map(|item| item.class.as_deref())?;
    let class_of = |item: &'a Item| item.class.as_deref().or(item.is_broken().then_some(any));
    let classes: Vec<&str> = items.iter().map(class_of).collect::<Option<_>>()?;
    let numbers: Option<Vec<usize>> = classes.iter().map(|c| c.parse().ok()).collect();
    if let Some(numbers) = numbers.filter(|all| all.iter().all(|&n| n < 1 << 20)) {
        let n = numbers.iter().max().map_or(0, |max| max + 1);
        return Some(((0..n).map(|i| i.to_string()).collect(), numbers));
    }
    let names: Vec<&str> = classes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let labels = classes.iter().map(|c| names.binary_search(c).ok()).collect::<Option<_>>()?;
    Some((names.into_iter().map(prompts::readable).collect(), labels))
}

fn dataset(args: &Args, name: &str, root: &Path, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let dataset = Dataset::named(name)?;
    let found = dataset.open(root)?;
    for warning in &found.warnings {
        eprintln!("warning: {warning}");
    }
    let templates = dataset.templates(&args.templates)?;
    let encoder = args.encoder.open(args.quiet)?;
    let head = build_head(&*encoder, &found.classes, &templates, true, args.quiet)?;
    encoding(args, &*encoder, interrupt).dataset(&found, &head, &args.out)
}

fn encoding<'a>(args: &Args, encoder: &'a dyn Encoder, interrupt: &'a Interrupt) -> Encoding<'a> {
    Encoding {
        encoder,
        options: args.encoder.options(),
        interrupt,
        save_every: args.save_every as usize,
        shard_rows: args.shard_rows as usize,
        strict: args.strict,
        views: args.views as usize,
        seed: args.seed,
        quiet: args.quiet,
    }
}
