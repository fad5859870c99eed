//! `ultta eval`: methods × packs × protocols × seeds, each run in its own folder.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use ultta_encode::Encoder;
use ultta_eval::dataset::{self, Dataset, Heads};
use ultta_eval::method::Method;
use ultta_eval::pack::Pack;
use ultta_eval::plan::{Job, Plan, Progress};
use ultta_eval::protocol::Protocol;
use ultta_eval::report;
use ultta_eval::summary::{Cell, Run, cells};
use ultta_eval::words::counted;
use ultta_formats::shown;

use crate::encoder::{EncoderArgs, HeadArgs};
use crate::failure::usage;
use crate::{gradient, pictures};

/// Compare methods on labelled features under named protocols
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A pack of labelled features; may be given several times
    #[arg(long, value_name = "FILE")]
    pub features: Vec<PathBuf>,

    /// The head of each pack, in the same order; a single one serves all
    #[arg(long, value_name = "FILE")]
    pub head: Vec<PathBuf>,

    /// A folder of pictures, a folder per class; may be given several times. They are encoded once; methods that change
    /// the encoder (tent, eata, sar, cotta, ttt, ttt++, tpt) run on nothing else
    #[arg(long, value_name = "DIR")]
    pub images: Vec<PathBuf>,

    /// Weak views of each picture of --images, for methods that use views (boost-adapter, zero, responsibilities over
    /// views)
    #[arg(long, value_name = "K", default_value_t = 0, requires = "images", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub views: u32,

    /// Pictures of the kind the model was trained on, without labels: for EATA's Fisher information, TTT's head and
    /// TTT++'s moments
    #[arg(long, value_name = "DIR", requires = "images")]
    pub source: Option<PathBuf>,

    /// A folder to search for packs: every features.safetensors with a head.safetensors beside it
    #[arg(long, value_name = "FOLDER")]
    pub data: Vec<PathBuf>,

    /// Which heads of a pack found by --data are run: `head.safetensors`, or every `head-*.safetensors` beside it, too
    #[arg(long, value_enum, default_value_t, requires = "data")]
    pub heads: HeadsArg,

    /// Further packs that strangers come from (protocols with open:SHARE), each with its head after a comma
    #[arg(long, value_name = "FEATURES,HEAD")]
    pub strangers: Vec<String>,

    /// A pack that counts as in-distribution: detection metrics then tell it from each stream
    #[arg(long, value_name = "FILE")]
    pub in_distribution: Option<PathBuf>,

    /// Methods, separated by commas; `all` for every one
    #[arg(long, value_name = "NAMES", default_value = "zero-shot,ul-tta", value_delimiter = ',')]
    pub methods: Vec<String>,

    /// Protocols, separated by commas: an order (file, iid, sorted, runs, dirichlet:0.1, zipf:1, partial:0.2, few:5:64,
    /// domains, continual, gradual), then additions behind a + (batch:64, labels:0.1:100, open:0.2, weak:0.5, cycle:200000,
    /// compute:1000, shots:30, garbage:2500:noise, shift:0.3, night:500). `harm` stands for a set of 22 that shows where
    /// a method does harm. docs/protocols.md says what each does
    #[arg(long, value_name = "NAMES", default_value = "iid", value_delimiter = ',')]
    pub protocols: Vec<String>,

    /// Seeds: numbers and ranges, separated by commas
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub seeds: String,

    /// Settings as TOML, one `[method.NAME]` per method; `[guard]` and `[unknown]` hold for all
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Runs at a time; as many as there are cores unless given
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,

    /// Where run folders go; finished runs that are there are not run again
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub out: PathBuf,

    /// Seconds after which a run is given up, with the further seeds of its cell; the tables say so
    #[arg(long, value_name = "SECONDS")]
    pub patience: Option<f64>,

    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    encoder: EncoderArgs,

    #[command(flatten)]
    classes: HeadArgs,
}

const EXAMPLES: &str = "\
Examples:
  ultta eval --features pets/features.safetensors --head pets/head.safetensors --methods ul-tta,tda --seeds 0-4
  ultta eval --data packs/ --methods all --protocols iid,sorted,dirichlet:0.1,partial:0.2 --seeds 0-4
  ultta eval --data packs/ --methods ul-tta,tda --protocols harm --seeds 0-4
  ultta eval --images photos/ --model ViT-B-16 --methods zero-shot,ul-tta,tent,sar
  ultta report runs/ --html report.html";

/// Which heads of a pack are run.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum HeadsArg {
    #[default]
    Main,
    All,
}

impl From<HeadsArg> for Heads {
    fn from(heads: HeadsArg) -> Self {
        match heads {
            HeadsArg::Main => Heads::Main,
            HeadsArg::All => Heads::All,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    runs: &'a [Run],
    summary: Vec<Cell>,
    skipped: &'a [String],
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let plan = plan(&args)?;
    for warning in plan.datasets.iter().filter_map(Dataset::warning) {
        eprintln!("warning: {warning}");
    }
    let (jobs, skipped) = plan.jobs();
    for reason in &skipped {
        eprintln!("warning: skipped: {reason}");
    }
    if jobs.is_empty() && !skipped.is_empty() {
        return usage("nothing is left to run");
    }
    let bars = Bars::new(Some(jobs.len()), args.json);
    let outcome = plan.run(&bars)?;
    bars.clear();
    if outcome.reused > 0 {
        let (reused, all) = (outcome.reused, counted(outcome.runs.len(), "run"));
        eprintln!("{reused} of {all} were there already, in {}", folder(&args.out));
    }
    if outcome.other_build > 0 {
        eprintln!(
            "warning: {} of them were made by another build of this program; if a method has changed since, remove its \
             folders below {} and run this again",
            outcome.other_build,
            shown(&args.out)
        );
    }
    if args.json {
        let summary = cells(&outcome.runs);
        let document = Document { runs: &outcome.runs, summary, skipped: &outcome.skipped };
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&document)?)?;
    } else {
        write!(std::io::stdout(), "{}", report::markdown(&outcome.runs, &outcome.refused))?;
        let (n, out) = (outcome.runs.len(), shown(&args.out));
        eprintln!("runs: {} ({n}); a page: ultta report {out} --html report.html", folder(&args.out));
    }
    Ok(ExitCode::SUCCESS)
}

/// A folder as people write it.
fn folder(path: &Path) -> String {
    let name = shown(&path);
    if name.ends_with('/') { name } else { name + "/" }
}

/// The packs below a folder that `--data` names.
pub fn packs_below(folder: &Path, heads: Heads) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    if !folder.is_dir() {
        return usage(format!(
            "no folder {}: give a folder of packs (features.safetensors beside head.safetensors)",
            shown(&folder)
        ));
    }
    Ok(dataset::find(folder, heads)?)
}

/// What the flags ask for.
fn plan(args: &Args) -> anyhow::Result<Plan> {
    let mut pairs: Vec<(PathBuf, PathBuf)> = match (args.features.len(), args.head.len()) {
        (n, m) if n == m => args.features.iter().cloned().zip(args.head.iter().cloned()).collect(),
        (_, 1) => args.features.iter().map(|f| (f.clone(), args.head[0].clone())).collect(),
        (n, m) => return usage(format!("{n} packs but {m} heads; give one head for all, or one each")),
    };
    for folder in &args.data {
        pairs.extend(packs_below(folder, args.heads.into())?);
    }
    if pairs.is_empty() && args.images.is_empty() {
        return usage(
            "no packs; give --features and --head, --data with a folder of packs, or --images with pictures",
        );
    }
    let names = args.methods.iter().flat_map(|name| expand(name, !args.images.is_empty()));
    let names: Vec<String> = names.collect();
    let changes_encoder = names.iter().find(|name| gradient::is_method(name));
    if let Some(name) = changes_encoder {
        if args.images.is_empty() {
            return usage(format!(
                "{name} changes the encoder and so needs pictures, not features; give --images DIR (a folder per \
                 class) and --model M{}",
                gradient::also_lacking()
            ));
        }
        gradient::check_built(name)?;
    }
    let (datasets, encoder) = datasets(args, &pairs)?;
    let strangers = strangers(args)?;
    let in_distribution = match &args.in_distribution {
        Some(path) => Some(Pack::open(path, None)?),
        None => None,
    };
    if let Some(pack) = &in_distribution
        && let Some(other) = datasets.iter().find(|d| d.pack.dim() != pack.dim())
    {
        let (name, ours, theirs) = (&other.name, other.pack.dim(), pack.dim());
        return usage(format!("--in-distribution: expected {ours} columns as in {name}, got {theirs}"));
    }
    let file = match &args.config {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|source| ultta::Error::Io {
            doing: "opening",
            source,
            path: path.clone(),
        })?),
        None => None,
    };
    let changing = match (&encoder, changes_encoder) {
        (Some(encoder), Some(_)) => {
            let source = match &args.source {
                Some(folder) => pictures::source_pixels(folder, &**encoder, &args.encoder.options().limits)?,
                None => Vec::new(),
            };
            Some(gradient::Methods::open(&args.encoder.model, source)?)
        }
        _ => None,
    };
    check_sections(file.as_deref().unwrap_or_default())?;
    let methods = methods(&names, changing.as_ref(), file.as_deref())?;
    let protocols = protocols(&args.protocols)?;
    // Methods that run the model use all cores themselves, and their costs are measured.
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = args.jobs.unwrap_or(if args.images.is_empty() { cores } else { 1 });
    let seeds = match seeds(&args.seeds) {
        Ok(seeds) => seeds,
        Err(reason) => return usage(reason),
    };
    let patience = match args.patience {
        Some(seconds) if !(seconds.is_finite() && (0.0..=1e9).contains(&seconds)) => {
            return usage(format!("--patience: expected seconds, got {seconds}"));
        }
        seconds => seconds.map(std::time::Duration::from_secs_f64),
    };
    let out = args.out.clone();
    Ok(Plan { datasets, strangers, in_distribution, methods, protocols, seeds, out, jobs, patience })
}

/// The packs, and the folders of pictures with the encoder that they were encoded by.
fn datasets(
    args: &Args,
    pairs: &[(PathBuf, PathBuf)],
) -> anyhow::Result<(Vec<Dataset>, Option<Box<dyn Encoder>>)> {
    let mut datasets = Vec::new();
    for (features, head) in pairs {
        datasets.push(Dataset::open(features, head)?);
    }
    let mut encoder = None;
    if !args.images.is_empty() {
        let opened = args.encoder.open(args.json)?;
        let flops = pictures::flops(&args.encoder.model);
        for folder in &args.images {
            let dataset = pictures::open(
                folder,
                &*opened,
                (&args.encoder, &args.classes),
                flops,
                pictures::Views { each: args.views as usize, seed: 0 },
                &args.out,
                args.json,
            )?;
            if datasets.iter().any(|d: &Dataset| d.name == dataset.name) {
                return usage(format!("--images: two folders are named {:?}", dataset.name));
            }
            datasets.push(dataset);
        }
        encoder = Some(opened);
    }
    dataset::name_all(&mut datasets)?;
    Ok((datasets, encoder))
}

/// The packs that strangers come from.
fn strangers(args: &Args) -> anyhow::Result<Vec<Dataset>> {
    let mut strangers = Vec::new();
    for pair in &args.strangers {
        let Some((features, head)) = pair.split_once(',') else {
            return usage(format!("--strangers {pair}: expected FEATURES,HEAD"));
        };
        strangers.push(Dataset::open(features.as_ref(), head.as_ref())?);
    }
    dataset::name_all(&mut strangers)?;
    Ok(strangers)
}

/// Methods by name, each once, those that change the encoder among them.
fn methods(
    names: &[String],
    changing: Option<&gradient::Methods>,
    file: Option<&str>,
) -> anyhow::Result<Vec<Method>> {
    let mut methods: Vec<Method> = Vec::new();
    for name in names {
        let method = match changing.map(|methods| methods.resolve(name, file)).transpose()? {
            Some(Some(method)) => method,
            _ => Method::resolve(name, file)?,
        };
        if !methods.iter().any(|m| m.name == method.name) {
            methods.push(method);
        }
    }
    Ok(methods)
}

/// Protocols by name, each once; `harm` stands for a set.
pub fn protocols(names: &[String]) -> anyhow::Result<Vec<Protocol>> {
    let mut protocols: Vec<Protocol> = Vec::new();
    for name in names {
        let named = match Protocol::named(name.trim()) {
            Ok(named) => named,
            Err(reason) => return usage(reason),
        };
        for protocol in named {
            if !protocols.iter().any(|p| p.name() == protocol.name()) {
                protocols.push(protocol);
            }
        }
    }
    Ok(protocols)
}

/// `all` stands for every method in every preset; on pictures, for those that need them, too.
fn expand(name: &str, pictures: bool) -> Vec<String> {
    if name != "all" {
        let name = name.trim();
        return vec![if gradient::is_method(name) { name.to_lowercase() } else { name.to_string() }];
    }
    let mut names = ultta::names();
    if pictures {
        names.extend(gradient::cards().iter().map(|card| card.name.to_string()));
    }
    names
}

/// A section for a method that does not exist is a slip.
fn check_sections(text: &str) -> anyhow::Result<()> {
    let plain = |name: &str| name.trim_matches(['"', '\'', ' ']).replace('-', "_");
    let mut names: Vec<String> = ultta::cards().iter().map(|card| plain(card.name)).collect();
    names.extend(gradient::NAMES.map(plain));
    for section in text.lines().filter_map(|line| line.trim().strip_prefix("[method.")) {
        let name = section.split(['.', ']']).next().unwrap_or_default();
        if !names.contains(&plain(name)) {
            return usage(format!(
                "--config: [method.{name}]: there is no such method (see `ultta methods`)"
            ));
        }
    }
    Ok(())
}

/// More seeds than this are a slip.
const MOST_SEEDS: usize = 100_000;

/// `0-4,7` as numbers, each once.
pub fn seeds(text: &str) -> Result<Vec<u64>, String> {
    let bad = || format!("seeds: expected numbers and ranges such as 0-4,7, got {text:?}");
    let number = |t: &str| t.trim().parse::<u64>().map_err(|_| bad());
    let mut seeds = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if to.saturating_sub(from) >= MOST_SEEDS as u64 {
                    return Err(format!("seeds: expected at most {MOST_SEEDS}, got {part}"));
                }
                seeds.extend(from..=to);
            }
            None => seeds.push(number(part)?),
        }
    }
    seeds.sort_unstable();
    seeds.dedup();
    if seeds.is_empty() || seeds.len() > MOST_SEEDS {
        return Err(bad());
    }
    Ok(seeds)
}

/// One bar for the plan and one for every run at work.
pub struct Bars {
    all: MultiProgress,
    total: ProgressBar,
    running: Mutex<BTreeMap<usize, ProgressBar>>,
}

impl Bars {
    /// Bars for this many runs; `None` where the number is not known beforehand.
    pub fn new(runs: Option<usize>, quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let template = match runs {
            Some(_) => "{bar:30} {pos}/{len} runs, {elapsed} gone, {eta} to go",
            None => "{pos} runs, {elapsed} gone",
        };
        Self::of(runs, template, target)
    }

    /// Bars where no more than this many runs will be made, and none is begun after some time.
    pub fn at_most(runs: usize, budget: Option<Duration>) -> Self {
        let mut template = String::from("{bar:30} {pos} of at most {len} runs, {elapsed} gone");
        template.extend(budget.map(|time| format!(" of {}", HumanDuration(time))));
        Self::of(Some(runs), &template, ProgressDrawTarget::stderr())
    }

    fn of(runs: Option<usize>, template: &str, target: ProgressDrawTarget) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let total = runs.map_or_else(ProgressBar::no_length, |runs| ProgressBar::new(runs as u64));
        let style = ProgressStyle::with_template(template).expect("a fixed template");
        Self { total: all.add(total.with_style(style)), all, running: Mutex::new(BTreeMap::new()) }
    }

    /// Takes the bars off the screen.
    pub fn clear(&self) {
        self.total.finish_and_clear();
    }
}

impl Progress for Bars {
    fn started(&self, worker: usize, job: &Job<'_>, samples: usize) {
        let style = ProgressStyle::with_template("  {bar:28} {pos}/{len} {per_sec:>14} {msg}");
        let bar = ProgressBar::new(samples as u64).with_style(style.expect("a fixed template"));
        let bar = self.all.add(bar);
        bar.set_message(format!(
            "{} · {} · {} · seed {}",
            job.method.name, job.dataset, job.protocol, job.seed
        ));
        self.running.lock().expect("no panics").insert(worker, bar);
    }

    fn advanced(&self, worker: usize, samples: usize) {
        if let Some(bar) = self.running.lock().expect("no panics").get(&worker) {
            bar.inc(samples as u64);
        }
    }

    fn finished(&self, worker: usize, _job: &Job<'_>, _fresh: bool) {
        if let Some(bar) = self.running.lock().expect("no panics").remove(&worker) {
            bar.finish_and_clear();
        }
        self.total.inc(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_numbers_and_ranges() {
        assert_eq!(seeds("0-2,7").unwrap(), [0, 1, 2, 7]);
        for bad in ["", "a", "3-1", "1-", "-1"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_means_every_method_and_both_presets() {
        let all = expand("all", false);
        assert!(all.contains(&"ul-tta:paper".to_string()) && all.contains(&"tda".to_string()));
        assert!(!all.contains(&"tent".to_string()) && expand("all", true).contains(&"ttt++".to_string()));
        assert_eq!(expand("tda", false), ["tda"]);
        assert_eq!(expand(" Tent", true), ["tent"]);
    }
}
