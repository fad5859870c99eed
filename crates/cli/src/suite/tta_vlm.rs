//! `ultta suite tta-vlm`: the field's two batteries, from packs of features or from pictures.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ultta::internal::nearest;
use ultta_encode::dataset::Dataset as Layout;
use ultta_eval::suite::Forward;
use ultta_eval::suite::batteries::{BATTERIES, Battery, Opened, Run, named, pack_of};
use ultta_formats::shown;

use super::pictures::{Asked, Prepared, forward_seconds};
use crate::encoder::EncoderArgs;
use crate::eval::{Bars, seeds};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::pictures;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only these batteries: cross-domain, imagenet
    #[arg(value_name = "BATTERY")]
    batteries: Vec<String>,

    /// Folder of packs, `<dataset>/<encoder>/features.safetensors` with head.safetensors beside it, as `ultta encode
    /// --dataset NAME` writes them
    #[arg(long, value_name = "FOLDER", default_value = "data", conflicts_with = "images")]
    data: PathBuf,

    /// Folder of datasets in CoOp's layouts (caltech-101, oxford_pets, …) and ImageNet's: what is found is encoded first
    #[arg(long, value_name = "ROOT")]
    images: Option<PathBuf>,

    /// With --images, encode only N pictures of each dataset: a quick look
    #[arg(long, value_name = "N", requires = "images", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,

    /// With --images, weak views of each picture, for methods that use views: each costs a forward pass
    #[arg(long, value_name = "K", default_value_t = 0, requires = "images", value_parser = clap::value_parser!(u32).range(..=1024))]
    views: u32,

    /// Methods, separated by commas; zero-shot,tda,dmn,bca,freetta,dota,ecalp,pta,oga,adapt,ul-tta unless given, with
    /// --views boost-adapter and zero, too
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    methods: Option<Vec<String>>,

    /// Seeds: numbers and ranges, separated by commas
    #[arg(long, value_name = "LIST", default_value = "0")]
    seeds: String,

    /// Prompt templates of the heads, with --images; coop for each dataset's own prompt, tda for what
    /// TDA, PTA and DOTA use on each (80 on R and Sketch, 7 on ImageNet, A, V2, Caltech101, Cars and SUN397)
    #[arg(long, value_name = "T", default_value = "coop")]
    templates: String,

    /// Where run folders, packs, tables.md and report.html go; what is there is not made again. With --sample or --views
    /// they go beside it, into FOLDER-sample-N, FOLDER-views-K
    #[arg(long, value_name = "FOLDER", default_value = "runs/suite-tta-vlm")]
    out: PathBuf,

    /// Runs at a time; as many as there are cores unless given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    #[command(flatten)]
    encoder: EncoderArgs,
}

/// Methods that run unless others are asked for, and those that need views.
const METHODS: [&str; 11] =
    ["zero-shot", "tda", "dmn", "bca", "freetta", "dota", "ecalp", "pta", "oga", "adapt", "ul-tta"];
const WITH_VIEWS: [&str; 2] = ["boost-adapter", "zero"];

fn methods(args: &Args) -> Vec<String> {
    args.methods.clone().unwrap_or_else(|| {
        let further = WITH_VIEWS.iter().filter(|_| args.views > 0);
        METHODS.iter().chain(further).map(|name| name.to_string()).collect()
    })
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let known = BATTERIES.each_ref().map(|b| b.name);
    let mut wanted: Vec<&Battery> = Vec::new();
    for name in &args.batteries {
        match named(name) {
            Some(battery) => wanted.push(battery),
            None => {
                let hint = nearest(name, known.into_iter()).map(|n| format!("; did you mean {n}?"));
                let hint = hint.unwrap_or_default();
                return usage(format!("unknown battery {name:?}{hint} (known: {})", known.join(", ")));
            }
        }
    }
    if wanted.is_empty() {
        wanted = BATTERIES.iter().collect();
    }
    let seeds = match seeds(&args.seeds) {
        Ok(seeds) => seeds,
        Err(reason) => return usage(reason),
    };
    let out = super::place(&args.out, args.sample, args.views)?;
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let print = |open: &dyn Fn(&str) -> ultta::Result<Option<Opened>>, absent: &dyn Fn(&str) -> String| {
        let (methods, seeds) = (methods(&args), seeds.clone());
        let run = Run { open, absent, methods, seeds, out: out.clone(), jobs };
        let mut all = String::new();
        for battery in &wanted {
            let bars = Bars::new(None, false);
            let table = run.table(battery, &bars);
            bars.clear();
            let table = table?;
            write!(std::io::stdout(), "{table}")?;
            all.push_str(&table);
        }
        super::keep(&out, &all)?;
        Ok(ExitCode::SUCCESS)
    };
    let Some(root) = &args.images else {
        let data = shown(&args.data);
        let absent = |name: &str| format!("absent: `ultta encode --dataset {name} --root DIR --out {data}`");
        return print(&|name| pack_of(&args.data, name), &absent);
    };
    let interrupt = Interrupt::listen()?;
    let encoder = args.encoder.open(false)?;
    let forward = Forward {
        encoder: encoder.name().into(),
        seconds: forward_seconds(&*encoder)?,
        flops: pictures::flops(&args.encoder.model),
    };
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
    let names: Vec<&str> = wanted.iter().flat_map(|b| b.datasets.iter().copied()).collect();
    let prepared = Prepared::find(asked, &names)?;
    prepared.estimate(&[], &[], 0)?;
    if let Some(code) = prepared.encode()? {
        return Ok(code);
    }
    let absent = |name: &str| {
        let folder = Layout::named(name).ok().and_then(|layout| layout.folders().next());
        let folder = shown(&root.join(folder.unwrap_or(name)));
        format!("absent: expected in {folder}, as docs/encode.md (Datasets) has it")
    };
    let open = |name: &str| -> ultta::Result<Option<Opened>> {
        let dataset = prepared.open(name)?.pop();
        Ok(dataset.map(|dataset| Opened { dataset, left_out: Vec::new() }))
    };
    print(&open, &absent)
}
