//! `ultta classify`: pictures to answers, adapting on the way.

mod feed;
mod timeline;
mod video;

use std::collections::HashMap;
use std::io::{Write, stderr, stdout};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use indicatif::ProgressBar;
use ultta::{Features, Head, Input, Session, Step};
use ultta_encode::encoder::encode_views;
use ultta_encode::pipeline::{self, Block};
use ultta_encode::prompts::readable;
use ultta_encode::source::{self, Item};
use ultta_encode::{Encoder, Error};
use ultta_formats::Id;
use ultta_formats::shown;

use crate::answers::{Answer, Extent, Sink};
use crate::encoder::{EncoderArgs, HeadArgs, warn_of_another};
use crate::failure::{is_broken_pipe, usage};
use crate::interrupt::Interrupt;
use crate::run::{open_session, progress_bar};
use crate::settings::Settings;
use crate::summary::{GuardWatch, Samples, Tally};
use crate::{anchors, output};

/// Classify pictures by class names, adapting to them on the way
///
/// One stream is one camera: give each of several cameras a run of its own.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, folders, globs, CSV tables with a column `path`, WebDataset .tar files; - reads paths from standard input.
    /// Or one video: a file, a camera (/dev/video0) or an address (rtsp://…), read through ffmpeg
    #[arg(value_name = "PATH")]
    paths: Vec<String>,

    #[command(flatten)]
    head: HeadArgs,

    /// A head file in place of class names
    #[arg(long = "head", value_name = "FILE", conflicts_with_all = ["labels", "labels_file", "labels_folder", "exemplars"], help_heading = "Classes")]
    head_file: Option<PathBuf>,

    #[command(flatten)]
    encoder: EncoderArgs,

    #[command(flatten)]
    settings: Settings,

    /// Weak views of each admitted picture that its teaching is averaged over: 0, 2 or 4
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = view_count, help_heading = "Method")]
    views: u32,

    /// Seed of the views
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Method")]
    seed: u64,

    /// Continue from a saved state, under its own settings
    #[arg(long, value_name = "FILE", help_heading = "State")]
    load_state: Option<PathBuf>,

    /// Save the state at the end, or when interrupted
    #[arg(long, value_name = "FILE", help_heading = "State")]
    save_state: Option<PathBuf>,

    /// Follow a folder: answer pictures as they arrive, until interrupted
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    watch: Option<PathBuf>,

    /// End --watch when nothing has come for this long
    #[arg(long, value_name = "SECONDS", requires = "watch", help_heading = "Input")]
    watch_idle: Option<f64>,

    #[command(flatten)]
    video: video::VideoArgs,

    /// Stop at the first picture that cannot be read, in place of reporting and skipping it
    #[arg(long, help_heading = "Input")]
    strict: bool,

    /// Show the K best classes
    #[arg(long, value_name = "K", default_value_t = 5, help_heading = "Output")]
    top: usize,

    /// Answers as JSON lines on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Answers as CSV on standard output
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    csv: bool,

    /// Answers into a file: .jsonl, .csv or .parquet
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"], help_heading = "Output")]
    out: Option<PathBuf>,

    /// No progress bar and no summary
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,

    /// Figures of the session's health in the summary
    #[arg(long, short, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  ultta classify photos/ --labels cat,dog,fox
  ultta classify 'photos/**/*.jpg' --labels-file classes.txt --templates imagenet-80 --out answers.csv
  find . -name '*.jpg' | ultta classify - --labels cat,dog --json
  ultta classify --watch incoming/ --labels cat,dog --save-state state.safetensors
  ultta classify photos/ --labels cat,dog --model ViT-L-14 --exemplars examples/ --views 2
  ultta classify clip.mp4 --labels beach,street,kitchen --timeline scenes.srt
  ultta classify rtsp://camera/1 --labels empty,person,car --fps 2 --follow --timeline today.csv

Where pictures lie in a folder per class, accuracy is reported beside zero-shot's; labels never teach. Pictures that cannot
be read are reported and skipped. Exit codes: 0 done, 1 failure, 2 bad input or usage,
128 + signal after an interrupt (the state is saved).";

/// How often a watched folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(400);

fn view_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ (0 | 2 | 4)) => Ok(count),
        _ => Err("expected 0, 2 or 4".into()),
    }
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if args.paths.is_empty() && args.watch.is_none() {
        return usage("which pictures? give files, folders or --watch DIR");
    }
    if !args.head.given() && args.head_file.is_none() {
        return usage(
            "which classes? give --labels cat,dog, --labels-file FILE, --labels-folder DIR (a folder per class) or --head FILE",
        );
    }
    if let Some(folder) = args.watch.as_ref().filter(|folder| !folder.is_dir()) {
        return usage(format!("--watch: {} is no folder", shown(&folder)));
    }
    args.check_files()?;
    let interrupt = Interrupt::listen()?;
    // Missing pictures and wrong class names are known before a model is loaded.
    args.check_names()?;
    let video = video::source_of(&args)?;
    let items = if video.is_none() { source::collect(&args.paths)? } else { Vec::new() };
    if items.is_empty() && args.watch.is_none() && video.is_none() {
        return usage(format!("no pictures in {}", args.paths.join(", ")));
    }
    let encoder = args.encoder.open(args.quiet)?;
    let mut options = args.encoder.options();
    options.keep_pictures = args.views > 0;
    let head = match &args.head_file {
        Some(path) => checked_head(path, &*encoder)?,
        None => args.head.build(&*encoder, &options, args.quiet)?,
    };
    let session = open_session(head, &args.settings, args.load_state.as_deref())?;
    let extent = Extent { top: args.top, probs: false, set: session.config().coverage > 0.0 };
    let classes = session.head().classes();
    let sink = match (&args.out, args.json, args.csv) {
        (Some(path), ..) => Some(Sink::create(path, classes, extent)?),
        (None, true, _) => Some(Sink::create(Path::new("-"), classes, extent)?),
        (None, _, true) => Some(Sink::csv_on_stdout(classes, extent)?),
        _ => None,
    };
    let mut run = Classify {
        guard: GuardWatch::new(&session),
        session,
        encoder: &*encoder,
        args: &args,
        extent,
        sink,
        tally: Tally::default(),
        unreadable: 0,
        unlabelled: None,
        hung_up: false,
        progress: ProgressBar::hidden(),
        interrupt: &interrupt,
        clock: 0.0,
    };
    let begun = Instant::now();
    let answered = match &args.watch {
        Some(_) => items.iter().filter_map(Item::path).filter_map(|p| Some((real(p), stamp(p)?))).collect(),
        None => HashMap::new(),
    };
    run.answer(&items, &options)?;
    let watched = match (&args.watch, &video) {
        (_, Some(source)) => run.video(source, options.batch),
        (Some(folder), _) => run.watch(folder, answered, &options),
        _ => Ok(()),
    };
    let watched = watched.or_else(|error| run.unless_hung_up(error));
    // What was learnt is kept, however the watching ended.
    let samples = if video.is_some() { Samples::Frames } else { Samples::Pictures };
    let code = run.finish(begun.elapsed(), samples);
    watched.and(code)
}

impl Args {
    /// Refuses class names that cannot be used. One that a blank cut off stands among the paths.
    fn check_names(&self) -> anyhow::Result<()> {
        let cut_off = |path: &&String| path.chars().all(char::is_alphanumeric) && !Path::new(path).exists();
        if self.head.labels.is_some()
            && self.paths.len() > 1
            && let Some(name) = self.paths.iter().find(cut_off)
        {
            return usage(format!(
                "no such file or folder: {}; is it a class? --labels takes one word, or quotes around all: \"cat,red fox\"",
                shown(name)
            ));
        }
        if self.head_file.is_some() { Ok(()) } else { self.head.check() }
    }

    /// Refuses outputs that would replace an input or one another, before anything is read or written.
    fn check_files(&self) -> anyhow::Result<()> {
        let named = [&self.head.labels_file, &self.head_file, &self.settings.config];
        let mut inputs: Vec<&Path> = named.into_iter().flatten().map(PathBuf::as_path).collect();
        inputs.push(Path::new(&self.head.templates));
        inputs.extend(self.paths.iter().map(Path::new));
        if let Some(path) = &self.save_state {
            // It may take the place of the state that was loaded.
            output::check_apart(path, &inputs)?;
            output::check_writable(path)?;
        }
        inputs.extend(self.load_state.as_deref());
        let (out, timeline) = (self.out.as_deref(), self.video.timeline());
        for path in [out, timeline].into_iter().flatten() {
            output::check_apart(path, &inputs)?;
        }
        let state = self.save_state.as_deref();
        output::check_different(&[("--out", out), ("--timeline", timeline), ("--save-state", state)])
    }
}

/// Size and time of change: a file that has others was written again.
type Stamp = (u64, Option<SystemTime>);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = path.metadata().ok()?;
    Some((metadata.len(), metadata.modified().ok()))
}

/// The path without links, where there is one.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// A head that this encoder can serve.
fn checked_head(path: &Path, encoder: &dyn Encoder) -> anyhow::Result<Head> {
    let head = anchors::read_head(path)?;
    if head.dim() != encoder.dim() {
        let (expected, got) = (encoder.dim(), head.dim());
        return Err(ultta::Error::Shape { what: ultta::What::Other("dimension of the head"), expected, got })
            .with_context(|| shown(&path));
    }
    warn_of_another(&head, path, encoder);
    Ok(head)
}

struct Classify<'a> {
    session: Session,
    encoder: &'a dyn Encoder,
    args: &'a Args,
    extent: Extent,
    sink: Option<Sink>,
    tally: Tally,
    unreadable: usize,
    /// A class that a folder or table names and the head does not have.
    unlabelled: Option<String>,
    hung_up: bool,
    guard: GuardWatch,
    progress: ProgressBar,
    interrupt: &'a Interrupt,
    /// The latest time at which pictures arrived, in seconds since 1970.
    clock: f64,
}

impl Classify<'_> {
    /// Answers pictures in order.
    fn answer(&mut self, items: &[Item], options: &pipeline::Options) -> anyhow::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        // Answers for people go to the same terminal as a bar would.
        let bar = !self.args.quiet && self.sink.is_some();
        self.progress = if bar { progress_bar(items.len()) } else { ProgressBar::hidden() };
        let (encoder, interrupt) = (self.encoder, self.interrupt);
        let mut failed = None;
        pipeline::run(items, encoder, options, |block| {
            if interrupt.came().is_some() {
                return Ok(ControlFlow::Break(()));
            }
            match self.block(&block) {
                Ok(()) => Ok(ControlFlow::Continue(())),
                Err(error) => {
                    failed = Some(error);
                    Ok(ControlFlow::Break(()))
                }
            }
        })?;
        self.progress.finish_and_clear();
        failed.map_or(Ok(()), |error| self.unless_hung_up(error))
    }

    /// A reader who hung up is no failure.
    fn unless_hung_up(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        if is_broken_pipe(&error) {
            self.hung_up = true;
            return Ok(());
        }
        Err(error)
    }

    fn block(&mut self, block: &Block<'_>) -> anyhow::Result<()> {
        let views = self.views(block)?;
        // Pictures arrive when their features are there: updates by time (`advanced.update_seconds`) go by this clock.
        let times = self.session.config().method.uses_times().then(|| {
            // A clock that is set back does not turn time back.
            self.clock = self.clock.max(now());
            vec![self.clock; block.features.rows()]
        });
        let input = Input {
            times: times.as_deref(),
            views: views.as_ref().map(|(views, _)| views),
            view_counts: views.as_ref().map(|(_, counts)| counts.as_slice()),
            keep_scores: self.extent.needs_scores(),
            ..Input::new(&block.features)
        };
        let step = self.session.step(input)?;
        for (i, row) in block.rows.iter().enumerate() {
            let item = &block.items[i];
            match row {
                Ok(row) => {
                    let label = self.label(item);
                    if label.is_none() && self.unlabelled.is_none() {
                        self.unlabelled = item.class.clone();
                    }
                    self.tally.push(&step.rows[*row], label);
                    if let Some(set) = step.sets.get(*row) {
                        self.tally.push_set(set, label);
                    }
                    self.show(item, &step, *row)?;
                }
                Err(error) => self.skip(item, error, block.start + i)?,
            }
        }
        if let Some(sink) = &mut self.sink {
            sink.flush()?;
        }
        if let Some(warning) = self.guard.look(&step.health) {
            self.progress.suspend(|| eprintln!("{warning}"));
        }
        self.progress.inc(block.items.len() as u64);
        Ok(())
    }

    /// Weak views of the pictures that would teach now; of every picture, if the method answers from views.
    fn views(&self, block: &Block<'_>) -> anyhow::Result<Option<(Features<'static>, Vec<usize>)>> {
        let count = self.args.views as usize;
        if count == 0 || block.features.rows() == 0 {
            return Ok(None);
        }
        let wanted: Vec<bool> = if self.session.config().method.card().needs_views {
            vec![true; block.features.rows()]
        } else {
            self.session.predict(&block.features)?.rows.iter().map(|row| row.admitted).collect()
        };
        let (mut rows, mut counts) = (Vec::new(), Vec::new());
        for (row, wanted) in wanted.into_iter().enumerate() {
            if !wanted {
                counts.push(0);
                continue;
            }
            let id = self.session.next_id() + row as u64;
            let seed = self.args.seed ^ id.wrapping_mul(0x2545_f491_4f6c_dd1d);
            rows.extend_from_slice(encode_views(self.encoder, &block.pictures[row], count, seed)?.data());
            counts.push(count);
        }
        if rows.is_empty() { Ok(None) } else { Ok(Some((Features::new(rows, self.encoder.dim())?, counts))) }
    }

    fn show(&mut self, item: &Item, step: &Step, row: usize) -> anyhow::Result<()> {
        let classes = self.session.head().classes();
        if let Some(sink) = &mut self.sink {
            let id = Id::Text(item.id.clone());
            return sink.write(&Answer::new(step, row, id, classes, self.extent));
        }
        let answer = &step.rows[row];
        let mut out = stdout().lock();
        let unknown = match answer {
            answer if answer.unknown => "unknown; nearest ",
            answer if answer.garbage => "looks like nothing; nearest ",
            _ => "",
        };
        let class = |label: usize| shown(&classes[label]);
        write!(out, "{}: {unknown}{} {:.0} %", shown(&item.id), class(answer.label), 100.0 * answer.prob)?;
        // Without --top no scores were kept.
        let best = if self.args.top > 0 { step.top(row, self.args.top) } else { Vec::new() };
        let others: Vec<String> = best
            .into_iter()
            .filter(|(label, prob)| *label != answer.label && *prob >= 0.005)
            .map(|(label, prob)| format!("{} {:.0} %", class(label), 100.0 * prob))
            .collect();
        if !others.is_empty() {
            write!(out, ", {}", others.join(", "))?;
        }
        if answer.zero_shot.label != answer.label {
            let frozen = &answer.zero_shot;
            write!(out, "  (zero-shot: {} {:.0} %)", class(frozen.label), 100.0 * frozen.prob)?;
        }
        writeln!(out)?;
        Ok(())
    }

    /// The class that a picture's source tells (a folder per class, a column, a `.cls` file), by name or by number.
    fn label(&self, item: &Item) -> Option<usize> {
        let classes = self.session.head().classes();
        let class = item.class.as_deref()?;
        let plain = |name: &str| readable(name).to_lowercase();
        let named = classes.iter().position(|c| plain(c) == plain(class));
        named.or_else(|| class.parse().ok().filter(|&label| label < classes.len()))
    }

    fn skip(&mut self, item: &Item, error: &Error, index: usize) -> anyhow::Result<()> {
        // Errors of files name them already.
        let message = error.to_string();
        let name = shown(&item.id);
        let message = if message.contains(&name) { message } else { format!("{name}: {message}") };
        if self.args.strict {
            return usage(message);
        }
        self.unreadable += 1;
        self.progress.suspend(|| eprintln!("warning: {message}"));
        if let Some(sink) = &mut self.sink {
            sink.write_error(index as u64 + 1, Some(&Id::Text(item.id.clone())), &error.to_string())?;
        }
        Ok(())
    }

    /// Answers pictures as they arrive, and again when they have changed. One that is still being written is left for
    /// the next look.
    fn watch(
        &mut self,
        folder: &Path,
        mut answered: HashMap<PathBuf, Stamp>,
        options: &pipeline::Options,
    ) -> anyhow::Result<()> {
        let root = real(folder);
        let mut before: HashMap<PathBuf, Stamp> = HashMap::new();
        let mut last = Instant::now();
        while self.interrupt.came().is_none() && !self.hung_up {
            let items = match source::tree(folder) {
                Err(error) if !folder.is_dir() => return Err(error.into()),
                // A folder inside went away meanwhile.
                Err(_) => Vec::new(),
                Ok(items) => items,
            };
            let (mut ready, mut now) = (Vec::new(), HashMap::new());
            for item in items {
                let Some((path, found)) = item.path().and_then(|path| Some((path, stamp(path)?))) else {
                    continue;
                };
                let path = root.join(path.strip_prefix(folder).unwrap_or(path));
                if answered.get(&path) == Some(&found) {
                    continue;
                }
                if before.get(&path) == Some(&found) && found.0 > 0 {
                    answered.insert(path, found);
                    ready.push(item);
                } else {
                    now.insert(path, found);
                }
            }
            before = now;
            if ready.is_empty() {
                if self.args.watch_idle.is_some_and(|idle| last.elapsed().as_secs_f64() > idle) {
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            self.answer(&ready, options)?;
            last = Instant::now();
        }
        Ok(())
    }

    fn finish(mut self, time: Duration, samples: Samples) -> anyhow::Result<ExitCode> {
        let code = self.interrupt.came();
        let sunk = self.sink.take().filter(|_| !self.hung_up).map_or(Ok(()), Sink::commit);
        if let Some(path) = &self.args.save_state {
            self.session.state().save(output::target(path))?;
        }
        sunk?;
        if self.hung_up {
            return Ok(code.unwrap_or(ExitCode::SUCCESS));
        }
        if self.unreadable > 0 {
            let all = self.tally.n as usize + self.unreadable;
            eprintln!("warning: {} of {all} pictures could not be read", self.unreadable);
        }
        if !self.args.quiet && self.tally.n > 0 {
            self.tally.warn_of_chance(self.session.head().n_classes());
            let summary = self.tally.summary(&self.session, time);
            summary.print(&mut stderr(), samples, self.args.verbose)?;
            let labelled = self.tally.labelled();
            match &self.unlabelled {
                Some(class) if labelled == 0 => eprintln!(
                    "no accuracy: {} and the other folders or table entries are not among the class names",
                    shown(class)
                ),
                _ if labelled > 0 && labelled < self.tally.n => eprintln!(
                    "top-1 and ECE are those of the {labelled} pictures whose folder or table names a class"
                ),
                _ => {}
            }
        }
        if self.tally.n == 0 && self.unreadable > 0 && code.is_none() {
            return usage("none of the pictures could be read");
        }
        Ok(code.unwrap_or(ExitCode::SUCCESS))
    }
}
