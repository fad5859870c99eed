//! Flags of the encoder and the head, shared by the commands that see pictures.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ultta::{Features, Head};
use ultta_encode::decode::Limits;
use ultta_encode::prompts::{self, Classes, Templates};
use ultta_encode::{Encoder, pipeline, source, tiny};
use ultta_formats::shown;

use crate::failure::usage;
use crate::run::progress_bar;

/// Which encoder, and how pictures go through it.
#[derive(clap::Args, Debug)]
pub struct EncoderArgs {
    /// A model: a folder, a name on the hub (owner/name) or a short name from `ultta models`. `tiny` ships with the program
    /// and knows ten drawn shapes
    #[arg(long, value_name = "M", default_value = ultta_encode::models::DEFAULT, help_heading = "Encoder")]
    pub model: String,

    /// Pictures encoded together
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Encoder")]
    batch: u32,

    /// Threads; as many as there are cores unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Encoder")]
    threads: Option<u32>,

    /// Refuse pictures of more pixels than this
    #[arg(long, value_name = "N", default_value_t = Limits::default().pixels, help_heading = "Encoder")]
    max_pixels: u64,
}

impl EncoderArgs {
    /// Opens the model; a download shows its progress.
    pub fn open(&self, quiet: bool) -> anyhow::Result<Box<dyn Encoder>> {
        if let Some(threads) = self.threads {
            // An error means that the pool is running already: in tests, or under Python.
            let _ = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build_global();
        }
        Ok(open(&self.model, quiet)?)
    }

    /// How pictures go through it.
    pub fn options(&self) -> pipeline::Options {
        let defaults = pipeline::Options::default();
        pipeline::Options {
            batch: self.batch as usize,
            workers: self.threads.map_or(defaults.workers, |n| n as usize),
            limits: Limits { pixels: self.max_pixels, ..Limits::default() },
            ..defaults
        }
    }
}

/// Opens a model; a download shows its progress.
pub fn open(model: &str, quiet: bool) -> ultta_encode::Result<Box<dyn Encoder>> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style =
        ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left");
    bar.set_style(style.expect("the template is valid"));
    let opened = ultta_encode::encoder::open_with(model, &mut |progress| {
        bar.set_message(progress.file.to_string());
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    opened
}

/// Which classes, and how they become a head.
#[derive(clap::Args, Debug)]
pub struct HeadArgs {
    /// Class names, separated by commas
    #[arg(long, alias = "classes", value_name = "A,B,…", help_heading = "Classes")]
    pub labels: Option<String>,

    /// Class names: a name a line, a JSON list, or a JSON object of descriptions per class
    #[arg(long, value_name = "FILE", conflicts_with = "labels", help_heading = "Classes")]
    pub labels_file: Option<PathBuf>,

    /// Class names are the folders in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["labels", "labels_file"], help_heading = "Classes")]
    pub labels_folder: Option<PathBuf>,

    /// Prompt templates: none, photo, imagenet-7, imagenet-80, cifar, or a file with {} in every line
    #[arg(long, value_name = "T", default_value = "photo", help_heading = "Classes")]
    pub templates: String,

    /// Mix example pictures into the head: a folder per class. All of a class count WEIGHT (default 1) together, its
    /// text counts 1
    #[arg(long, value_name = "DIR[:WEIGHT]", help_heading = "Classes")]
    exemplars: Option<Exemplars>,

    /// Encode the class names even if the same head was built before
    #[arg(long, help_heading = "Classes")]
    no_cache: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Exemplars {
    folder: PathBuf,
    weight: f32,
}

impl FromStr for Exemplars {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (folder, weight) = match text.rsplit_once(':').map(|(folder, w)| (folder, w.parse::<f32>())) {
            Some((folder, Ok(weight))) => (folder, weight),
            _ => (text, 1.0),
        };
        if weight > 0.0 && weight.is_finite() {
            Ok(Self { folder: folder.into(), weight })
        } else {
            Err(format!("expected a weight above 0, got {weight}"))
        }
    }
}

impl HeadArgs {
    /// Whether classes were named.
    pub fn given(&self) -> bool {
        self.labels.is_some() || self.labels_file.is_some() || self.labels_folder.is_some()
    }

    fn classes(&self) -> anyhow::Result<Classes> {
        Ok(match (&self.labels, &self.labels_file, &self.labels_folder) {
            (Some(list), ..) => Classes::from_list(list)?,
            (_, Some(file), _) => Classes::from_file(file)?,
            (.., Some(folder)) => Classes::from_folder(folder)?,
            _ => {
                return usage(
                    "which classes? give --labels cat,dog, --labels-file FILE or --labels-folder DIR",
                );
            }
        })
    }

    /// Refuses class names and templates that cannot be used, before a model is downloaded for them.
    pub fn check(&self) -> anyhow::Result<()> {
        self.classes()?;
        Templates::named(&self.templates)?;
        Ok(())
    }

    /// Builds the head.
    pub fn build(
        &self,
        encoder: &dyn Encoder,
        options: &pipeline::Options,
        quiet: bool,
    ) -> anyhow::Result<Head> {
        self.build_apart(encoder, options, quiet, None)
    }

    /// Builds the head; with a sharpness the prompts and exemplars of a class are kept apart.
    pub fn build_apart(
        &self,
        encoder: &dyn Encoder,
        options: &pipeline::Options,
        quiet: bool,
        apart: Option<f32>,
    ) -> anyhow::Result<Head> {
        let (classes, templates) = (self.classes()?, Templates::named(&self.templates)?);
        let head = match apart {
            Some(sharpness) => {
                prompts::build_head_apart(encoder, &classes, &templates, sharpness, |_, _| ())?
            }
            None => build_head(encoder, &classes, &templates, !self.no_cache, quiet)?,
        };
        let Some(exemplars) = &self.exemplars else { return Ok(head) };
        let (features, labels) = encode_exemplars(&exemplars.folder, &head, encoder, options)?;
        Ok(prompts::with_exemplars(head, &features, &labels, exemplars.weight)?)
    }
}

/// Says so if a head was made by another encoder.
pub fn warn_of_another(head: &Head, path: &Path, encoder: &dyn Encoder) {
    let theirs = head.metadata().get("encoder_digest");
    if theirs.is_some_and(|digest| digest != encoder.digest()) {
        let made_by = head.metadata().get("encoder").map_or("another encoder", String::as_str);
        eprintln!("warning: {} was made by {made_by}, not by {}", shown(&path), encoder.name());
    }
}

/// Builds a head of class names with a progress bar.
pub fn build_head(
    encoder: &dyn Encoder,
    classes: &Classes,
    templates: &Templates,
    cached: bool,
    quiet: bool,
) -> anyhow::Result<Head> {
    if let Some(words) = tiny::warning(encoder.name(), &classes.names) {
        eprintln!("warning: {}", shown(&words));
    }
    let bar = if quiet { ProgressBar::hidden() } else { progress_bar(0) };
    let cache = prompts::head_cache().filter(|_| cached);
    let head = prompts::build_head(encoder, classes, templates, cache.as_deref(), |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(head?)
}

/// Features and labels of a folder per class. A folder that is no class is an error; a picture that cannot be read
/// is a warning.
fn encode_exemplars(
    folder: &Path,
    head: &Head,
    encoder: &dyn Encoder,
    options: &pipeline::Options,
) -> anyhow::Result<(Features<'static>, Vec<usize>)> {
    let items = source::tree(folder)?;
    let plain = |name: &str| prompts::readable(name).to_lowercase();
    let mut labels = Vec::new();
    for item in &items {
        let class = item.class.as_deref().with_context(|| {
            format!("--exemplars: expected a folder per class, but {} is in none", item.id)
        })?;
        let label = head.classes().iter().position(|c| plain(c) == plain(class));
        labels.push(match label {
            Some(label) => label,
            None => return usage(format!("--exemplars: the folder {class:?} is none of the classes")),
        });
    }
    let (mut rows, mut kept) = (Vec::new(), Vec::new());
    pipeline::run(&items, encoder, options, |block| {
        for (i, row) in block.rows.iter().enumerate() {
            match row {
                Ok(row) => {
                    rows.extend_from_slice(block.features.row(*row));
                    kept.push(labels[block.start + i]);
                }
                Err(error) => eprintln!("warning: exemplar {}: {error}", shown(&block.items[i].id)),
            }
        }
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    if kept.is_empty() {
        return usage(format!("--exemplars: no picture in {} could be read", shown(&folder)));
    }
    Ok((Features::new(rows, encoder.dim())?, kept))
}
