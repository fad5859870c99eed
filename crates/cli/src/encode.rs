//! `ultta encode`: pictures to features files.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use ultta::Head;
use ultta_encode::dataset::Dataset;
use ultta_encode::pipeline::{self, Options};
use ultta_encode::prompts::Templates;
use ultta_encode::source::{self, Item};
use ultta_encode::store::{self, Provenance, Store, Written, push_block};
use ultta_encode::{Encoder, prompts};
use ultta_formats::shown;

use crate::encoder::{EncoderArgs, build_head};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::run::progress_bar;

/// Encode pictures into features files
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, folders (a folder per class gives labels), globs, CSV tables, WebDataset .tar files; - reads paths
    #[arg(value_name = "PATH", conflicts_with = "dataset")]
    paths: Vec<String>,

    /// A known dataset: pacs, office-home, domainnet, terra-incognita, imagenet-v2, imagenet-r, imagenet-a,
    /// imagenet-sketch, imagenet
    #[arg(long, value_name = "NAME", requires = "root", help_heading = "Dataset")]
    dataset: Option<String>,

    /// Where it lies
    #[arg(long, value_name = "DIR", requires = "dataset", help_heading = "Dataset")]
    root: Option<PathBuf>,

    /// Prompt templates of the dataset's head
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
    let run = Run { args: &args, encoder: &*encoder, options: args.encoder.options(), interrupt: &interrupt };
    run.pack(&args.out, &items, labels.as_deref(), classes.unwrap_or_default(), &args.paths.join(" "))
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
    let found = Dataset::named(name)?.open(root)?;
    for warning in &found.warnings {
        eprintln!("warning: {warning}");
    }
    let templates = Templates::named(&args.templates)?;
    let encoder = args.encoder.open(args.quiet)?;
    let head = build_head(&*encoder, &found.classes, &templates, true, args.quiet)?;
    let run = Run { args, encoder: &*encoder, options: args.encoder.options(), interrupt };
    let model = encoder.name().trim_end_matches('/').rsplit('/').next().unwrap_or("encoder").to_string();
    for pack in &found.packs {
        let folder = args.out.join(&pack.name).join(&model);
        let out = folder.join("features.safetensors");
        if out.exists() {
            keep(&out, &folder.join("head.safetensors"), &*encoder, &head)?;
            continue;
        }
        std::fs::create_dir_all(&folder).map_err(|source| ultta::Error::Io {
            doing: "making a folder",
            source,
            path: folder.clone(),
        })?;
        head.save(folder.join("head.safetensors"))?;
        let code =
            run.pack(&out, &pack.items, Some(&pack.labels), found.classes.names.clone(), &pack.name)?;
        if interrupt.came().is_some() {
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A pack that is there already: it must be of this encoder, and gets the head that was asked for.
fn keep(out: &Path, head_file: &Path, encoder: &dyn Encoder, head: &Head) -> anyhow::Result<()> {
    let pack = ultta_eval::pack::Pack::open(out, None)?;
    if pack.metadata().get("encoder_digest").is_some_and(|digest| digest != encoder.digest()) {
        return usage(format!(
            "{}: is there already, made by another encoder; remove it, or give another --out",
            shown(&out)
        ));
    }
    let same = Head::load(head_file).is_ok_and(|there| there.digest() == head.digest());
    if !same {
        head.save(head_file)?;
    }
    writeln!(
        std::io::stdout(),
        "{}: is there already{}",
        shown(&out),
        if same { "" } else { "; its head was renewed" }
    )?;
    Ok(())
}

struct Run<'a> {
    args: &'a Args,
    encoder: &'a dyn Encoder,
    options: Options,
    interrupt: &'a Interrupt,
}

impl Run<'_> {
    /// Encodes one set of pictures into one features file.
    fn pack(
        &self,
        out: &Path,
        items: &[Item],
        labels: Option<&[usize]>,
        classes: Vec<String>,
        from: &str,
    ) -> anyhow::Result<ExitCode> {
        let provenance = Provenance {
            encoder: self.encoder.name().into(),
            encoder_digest: self.encoder.digest().into(),
            preprocess: self.encoder.preprocess().describe(),
            classes,
            source: from.into(),
        };
        let every = self.args.save_every as usize;
        let mut store = Store::open(out, self.encoder.dim(), provenance, items, labels, every)?;
        let done = store.done();
        if done > 0 {
            eprintln!("going on after {done} of {} pictures", items.len());
        }
        let bar = if self.args.quiet { ProgressBar::hidden() } else { progress_bar(items.len()) };
        bar.set_position(done as u64);
        let begun = Instant::now();
        let rest = labels.map(|labels| &labels[done..]);
        let mut strict = None;
        pipeline::run(&items[done..], self.encoder, &self.options, |block| {
            if self.interrupt.came().is_some() {
                return Ok(ControlFlow::Break(()));
            }
            for (item, row) in block.items.iter().zip(&block.rows) {
                if let Err(error) = row {
                    let message = format!("{}: {error}", shown(&item.id));
                    if self.args.strict {
                        strict = Some(message);
                        return Ok(ControlFlow::Break(()));
                    }
                    bar.suspend(|| eprintln!("warning: {message}"));
                }
            }
            push_block(&mut store, &block, rest)?;
            bar.inc(block.items.len() as u64);
            Ok(ControlFlow::Continue(()))
        })?;
        bar.finish_and_clear();
        if let Some(message) = strict {
            return usage(message);
        }
        if let Some(code) = self.interrupt.came() {
            store.flush()?;
            eprintln!(
                "warning: interrupted after {} of {} pictures; the same command goes on from there",
                store.done(),
                items.len()
            );
            return Ok(code);
        }
        let written = store.finish(self.args.shard_rows as usize)?;
        if !self.args.quiet {
            report(&written, items.len(), items.len() - done, begun.elapsed().as_secs_f64())?;
        }
        if written.rows == 0 {
            return usage("none of the pictures could be read");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn report(written: &Written, all: usize, encoded: usize, seconds: f64) -> anyhow::Result<()> {
    let files: Vec<String> = written.files.iter().map(|f| shown(&f)).collect();
    writeln!(
        std::io::stdout(),
        "{}: {} rows of {all} pictures, {:.1} pictures/s",
        files.join(", "),
        written.rows,
        encoded as f64 / seconds.max(1e-9)
    )?;
    if !written.unreadable.is_empty() {
        let n = written.unreadable.len();
        eprintln!(
            "warning: {n} of {all} pictures could not be read; the table beside the features lists them"
        );
    }
    Ok(())
}
