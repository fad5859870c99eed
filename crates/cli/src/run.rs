//! `ultta run`: adapts on a stream of features.

use std::collections::VecDeque;
use std::io::{Write, stderr, stdout};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ultta::internal::{LABELLED_ROWS, STEP_ROWS};
use ultta::{Error, FeatureFile, Features, Head, Input, Session, State};
use ultta_encode::doctor::other_encoder;
use ultta_eval::order::Order;
use ultta_eval::pack::Pack;
use ultta_eval::random::Random;
use ultta_formats::Id;
use ultta_formats::shown;

use crate::anchors::HeadChanges;
use crate::answers::{Answer, Extent, Sink};
use crate::failure::{is_broken_pipe, usage};
use crate::interrupt::Interrupt;
use crate::settings::Settings;
use crate::summary::{GuardWatch, Samples, Tally};
use crate::{output, pipe};

/// Adapt a zero-shot classifier on a stream of features
///
/// One stream is one camera: give each of several cameras a run of its own.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Features: safetensors, .npy, .npz or (in builds with the feature `parquet`) Parquet, with `learn`, `times` and `views` where they are there; - reads JSON lines from standard input and answers each at once
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub features: PathBuf,

    /// The head: class prototypes, class names and logit scale (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub head: PathBuf,

    /// Labels in a file of their own, only to report top-1 and ECE (and for --label-share)
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    labels: Option<PathBuf>,

    /// Hand this share of the labels over as feedback, some rows after their answers: what delayed labels would do
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Input")]
    label_share: Option<f64>,

    /// Rows between an answer and its label
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 100,
        requires = "label_share",
        help_heading = "Input"
    )]
    label_delay: usize,

    #[command(flatten)]
    changes: HeadChanges,

    /// Accept features of any length but zero, and scale them to unit length
    #[arg(long, help_heading = "Input")]
    pub normalize: bool,

    /// Order of the rows: file, shuffled, sorted or partial:SHARE (only that share of the classes occurs)
    #[arg(long, value_name = "ORDER", default_value = "file", help_heading = "Input")]
    order: Order,

    /// Seed of the order
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Input")]
    seed: u64,

    /// Short for --order shuffled --seed N
    #[arg(long, value_name = "N", conflicts_with_all = ["order", "seed"], help_heading = "Input")]
    shuffle: Option<u64>,

    /// Only these places of the order, such as 0..1000, or 1000.. to go on after an interrupt
    #[arg(long, value_name = "A..B", value_parser = parse_places, help_heading = "Input")]
    rows: Option<Places>,

    /// Rows per step; the answers do not depend on it unless the method answers rows jointly
    #[arg(long, value_name = "N", default_value_t = STEP_ROWS as u32, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Input")]
    block: u32,

    #[command(flatten)]
    settings: Settings,

    /// Continue from a saved state, under its own settings
    #[arg(long, value_name = "FILE", help_heading = "State")]
    load_state: Option<PathBuf>,

    /// Save the state at the end, or when interrupted
    #[arg(long, value_name = "FILE", help_heading = "State")]
    save_state: Option<PathBuf>,

    /// Write predictions: .jsonl, .csv, .parquet, or - for JSON lines on standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,

    /// Add the K best classes to each prediction
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, help_heading = "Output")]
    top: usize,

    /// Add the probabilities of all classes to each prediction
    #[arg(long, help_heading = "Output")]
    probs: bool,

    /// Print the summary as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// No progress bar and no summary for people
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,

    /// Figures of the session's health in the summary
    #[arg(long, short, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  Files are often class-sorted; shuffle them with seed 0 and compare with the published algorithm:
    ultta run --features features.safetensors --head head.safetensors --shuffle 0
    ultta run --features features.safetensors --head head.safetensors --shuffle 0 --preset paper

  Predictions with the three best classes, and a state to go on from:
    ultta run --features day1.npy --head head.safetensors --out day1.csv --top 3 --save-state s.safetensors
    ultta run --features day2.npy --head head.safetensors --out day2.csv --top 3 --load-state s.safetensors

  As a filter between two programs, one JSON row a line:
    echo '{\"id\": \"img-1\", \"features\": [0.6, 0.8]}' | ultta run --features - --head head.safetensors

  Exemplar images beside the text anchors, counting half as much:
    ultta run --features features.npz --head head.safetensors --anchors exemplars.safetensors:0.5

  A setting of the method, and rejection of strangers at the price of 5 % of the known:
    ultta run --features f.npy --head h.safetensors --set gate.keep=0.6 --unknown 5%

Exit codes: 0 done, 1 failure, 2 bad input or usage, 128 + signal after an interrupt (the state is saved).
An output file is replaced only when the new one is complete.";

fn share(text: &str) -> Result<f64, String> {
    crate::settings::share(text)
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| "expected a share above 0 and up to 1, such as 5% or 0.05".into())
}

/// Labels on their way to the session.
struct DelayedLabels {
    share: f64,
    delay: usize,
    random: Random,
    /// Place in the order at which each is due, id of its sample, and the label.
    due: VecDeque<(usize, u64, usize)>,
}

impl DelayedLabels {
    /// None, unless a share of the labels is to be handed over.
    fn asked_for(args: &Args, labelled: bool) -> anyhow::Result<Option<Self>> {
        if args.label_share.is_some() && !labelled {
            return usage("--label-share needs labels: in the features file, or with --labels");
        }
        Ok(args.label_share.map(|share| Self {
            share,
            delay: args.label_delay,
            random: Random::new(args.shuffle.unwrap_or(args.seed) ^ 0x1ABE1),
            due: VecDeque::new(),
        }))
    }

    /// Decides which rows of a block get a label. The block began at `place`, its first sample has the id `first`.
    fn ask(&mut self, place: usize, first: u64, labels: impl Iterator<Item = usize>) {
        for (i, label) in labels.enumerate() {
            if self.random.uniform() < self.share {
                self.due.push_back((place + i + self.delay, first + i as u64, label));
            }
        }
    }

    /// Hands over what is due after `done` rows. A sample that the session has forgotten needs no label.
    fn hand_over(&mut self, session: &mut Session, done: usize) -> anyhow::Result<()> {
        while self.due.front().is_some_and(|due| due.0 < done) {
            let Some((_, id, label)) = self.due.pop_front() else { break };
            match session.feedback(id, label) {
                Ok(_) | Err(Error::Forgotten { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Places in the order: a start and, maybe, an end.
#[derive(Clone, Debug)]
struct Places {
    start: usize,
    end: Option<usize>,
}

fn parse_places(text: &str) -> Result<Places, String> {
    let bad = || "expected A..B, A.. or ..B".to_string();
    let (start, end) = text.split_once("..").ok_or_else(bad)?;
    let start = if start.is_empty() { 0 } else { start.parse().map_err(|_| bad())? };
    let end = if end.is_empty() { None } else { Some(end.parse().map_err(|_| bad())?) };
    if end.is_some_and(|end| end < start) {
        return Err(bad());
    }
    Ok(Places { start, end })
}

impl Places {
    fn within(&self, n: usize) -> Range<usize> {
        let end = self.end.unwrap_or(n).min(n);
        self.start.min(end)..end
    }
}

pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let piped = args.features == Path::new("-");
    args.check(piped)?;
    let interrupt = Interrupt::listen()?;
    let head = args.changes.load_head(&args.head)?;
    let session = open_session(head, &args.settings, args.load_state.as_deref())?;
    let set = session.config().coverage > 0.0;
    let extent = Extent { top: args.top, probs: args.probs, set };
    let mut run = Run {
        guard: GuardWatch::new(&session),
        session,
        tally: Tally::default(),
        sink: None,
        extent,
        hung_up: false,
    };
    let begun = Instant::now();
    let answered = if piped {
        run.open_sink(Some(args.out.as_deref().unwrap_or(Path::new("-"))))?;
        pipe::answer_lines(&mut run, args.normalize, &interrupt)
    } else {
        let stream = Stream::open(&args, run.session.head())?;
        let rows = run.session.next_id() + stream.indices.len() as u64;
        run.session.config().method.check_memory(run.session.head(), rows)?;
        run.open_sink(args.out.as_deref())?;
        stream.answer(&mut run, &args, &interrupt)
    };
    let seconds = begun.elapsed();

    // Both outputs are tried, so that a failure of one does not lose the other.
    let sunk = run.sink.take().filter(|_| !run.hung_up && answered.is_ok()).map_or(Ok(()), |sink| {
        sink.commit()
            .with_context(|| format!("cannot write {}", shown(args.out.as_deref().unwrap_or(Path::new("-")))))
    });
    if let Some(path) = &args.save_state {
        run.session.state().save(output::target(path))?;
    }
    let code = answered?;
    sunk?;
    if run.hung_up {
        return Ok(code);
    }
    run.tally.warn_of_chance(run.session.head().n_classes());
    let summary = run.tally.summary(&run.session, seconds);
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string(&summary)?)?;
    } else if !args.quiet {
        // Standard output belongs to the predictions when they go there.
        if args.answers_on_stdout(piped) {
            summary.print(&mut stderr(), Samples::Rows, args.verbose)?
        } else {
            summary.print(&mut stdout(), Samples::Rows, args.verbose)?
        }
    }
    Ok(code)
}

impl Args {
    fn answers_on_stdout(&self, piped: bool) -> bool {
        self.out.as_deref().map_or(piped, |out| out == Path::new("-"))
    }

    /// What can be refused before anything is read.
    fn check(&self, piped: bool) -> anyhow::Result<()> {
        if self.json && self.answers_on_stdout(piped) {
            return usage(
                "--json and the predictions both want standard output; give the predictions a file with --out",
            );
        }
        if piped {
            let only_for_files = [
                (self.order != Order::File || self.shuffle.is_some(), "--order and --shuffle"),
                (self.rows.is_some(), "--rows"),
                (self.labels.is_some(), "--labels"),
                (self.label_share.is_some(), "--label-share"),
            ];
            if let Some((_, flags)) = only_for_files.iter().find(|(given, _)| *given) {
                return usage(format!(
                    "{flags} cannot be used with --features -: lines are answered as they come"
                ));
            }
        }
        let inputs =
            [Some(&self.features), Some(&self.head), self.labels.as_ref(), self.settings.config.as_ref()];
        let mut inputs: Vec<&Path> = inputs.into_iter().flatten().map(PathBuf::as_path).collect();
        inputs.extend(self.changes.files());
        if let Some(path) = &self.save_state {
            output::check_apart(path, &inputs)?;
            output::check_writable(path)?;
        }
        if let Some(path) = &self.out {
            inputs.extend(self.load_state.as_deref());
            output::check_apart(path, &inputs)?;
        }
        output::check_different(&[
            ("--out", self.out.as_deref()),
            ("--save-state", self.save_state.as_deref()),
        ])
    }
}

/// A fresh session, or one that continues from a state. Settings given beside a state must agree with it.
pub fn open_session(head: Head, settings: &Settings, state: Option<&Path>) -> anyhow::Result<Session> {
    let Some(path) = state else { return Ok(Session::new(head, &settings.resolve()?)?) };
    let resume = || -> anyhow::Result<Session> {
        let state = State::load(path)?;
        if !settings.given() {
            return Ok(Session::resume(head, &state)?);
        }
        let mut session = Session::new(head, &settings.resolve()?)?;
        session.load(&state)?;
        Ok(session)
    };
    resume().with_context(|| format!("--load-state {}", shown(&path)))
}

/// What both kinds of run, files and pipes, share.
pub struct Run {
    pub session: Session,
    pub tally: Tally,
    pub sink: Option<Sink>,
    pub extent: Extent,
    /// Whether the reader of the predictions hung up: the run ends there, quietly.
    pub hung_up: bool,
    guard: GuardWatch,
}

impl Run {
    fn open_sink(&mut self, path: Option<&Path>) -> anyhow::Result<()> {
        let classes = self.session.head().classes();
        self.sink = path.map(|path| Sink::create(path, classes, self.extent)).transpose()?;
        Ok(())
    }

    /// Answers a block of samples. `id` and `label` give the id and, where known, the label of a row of the block.
    /// Returns warnings if the collapse guard has fired or the stream has changed.
    pub fn step(
        &mut self,
        input: &Input<'_>,
        id: impl Fn(usize, u64) -> Id,
        label: impl Fn(usize) -> Option<usize>,
    ) -> anyhow::Result<Option<String>> {
        let input = Input { keep_scores: self.extent.needs_scores(), ..*input };
        let step = self.session.step(input)?;
        for (i, row) in step.rows.iter().enumerate() {
            self.tally.push(row, label(i));
            if let Some(set) = step.sets.get(i) {
                self.tally.push_set(set, label(i));
            }
            if let Some(sink) = &mut self.sink {
                let classes = self.session.head().classes();
                sink.write(&Answer::new(&step, i, id(i, row.id), classes, self.extent))
                    .context("cannot write the predictions")?;
            }
        }
        let alarms = step.alarms.iter().map(|alarm| {
            let (text, advice) = (alarm.text(self.session.head().classes()), alarm.kind.advice());
            format!("alarm: {text}; {advice}")
        });
        let lines: Vec<String> = self.guard.look(&step.health).into_iter().chain(alarms).collect();
        Ok((!lines.is_empty()).then(|| lines.join("\n")))
    }
}

/// A features file of up to this many numbers, views counted, is read once and kept; 256 MiB of f32.
const KEPT_NUMBERS: usize = 1 << 26;

/// The rows of a file, checked and scaled.
struct Rows {
    features: Features<'static>,
    /// As many for each row.
    views: Option<Features<'static>>,
}

impl Rows {
    /// Reads the rows with these indices.
    fn read(file: &FeatureFile, rows: &[usize], normalize: bool) -> ultta::Result<Self> {
        Ok(Self { features: file.select(rows, normalize)?, views: file.views(rows, normalize)? })
    }

    /// The rows with these indices: neighbours are shared, others copied.
    fn pick(&self, rows: &[usize]) -> Self {
        let neighbours = rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let pick = |of: &Features<'static>, each: usize| {
            if neighbours && !rows.is_empty() {
                return of.slice(rows[0] * each..(rows[0] + rows.len()) * each);
            }
            of.select(&rows.iter().flat_map(|row| row * each..(row + 1) * each).collect::<Vec<_>>())
        };
        let each = |views: &Features<'_>| views.rows() / self.features.rows().max(1);
        Self {
            features: pick(&self.features, 1),
            views: self.views.as_ref().map(|views| pick(views, each(views))),
        }
    }
}

/// A features file in the order it is to be answered.
struct Stream {
    pack: Pack,
    /// All rows, unless the file is too large to keep: then they are read block by block.
    kept: Option<Rows>,
    indices: Vec<usize>,
    /// Place of `indices[0]` in the whole order.
    first: usize,
    /// Whether the file's arrival times go with its rows.
    timed: bool,
}

impl Stream {
    /// Opens the features and checks every row, view and label, so that bad input is known before the work starts.
    fn open(args: &Args, head: &Head) -> anyhow::Result<Self> {
        let pack = Pack::open(&args.features, args.labels.as_deref())?;
        let bad = |reason: String| Error::Format { reason, path: args.features.clone() };
        if pack.dim() != head.dim() {
            let reason =
                format!("features: expected {} columns as in the head, got {}", head.dim(), pack.dim());
            return Err(bad(reason).into());
        }
        if pack.rows() == 0 {
            return Err(bad("features: expected at least 1 row, got 0".into()).into());
        }
        if pack.labels().is_some()
            && args.labels.is_none()
            && let Err(other) = pack.check_classes(head.classes())
        {
            return usage(format!(
                "{other}; labels are numbers of classes: make the head of the features' classes, in their order (`ultta \
                 inspect` shows them), or give labels that fit the head (--labels)"
            ));
        }
        pack.check_labels(head.n_classes())?;
        if other_encoder(pack.metadata(), head.metadata()) {
            let name = |of: &std::collections::BTreeMap<String, String>| {
                of.get("encoder").cloned().unwrap_or_default()
            };
            let (ours, theirs) = (name(pack.metadata()), name(head.metadata()));
            eprintln!(
                "warning: the features say that they are of another encoder ({}) than the head ({}); `ultta doctor` tells \
                 whether they belong together",
                shown(&ours),
                shown(&theirs)
            );
        }
        let (order, seed) = match args.shuffle {
            Some(seed) => (Order::Shuffled, seed),
            None => (args.order, args.seed),
        };
        let mut indices = order.indices(pack.rows(), pack.labels(), seed)?;
        let mut first = 0;
        if let Some(rows) = &args.rows {
            let places = rows.within(indices.len());
            if places.is_empty() {
                return usage(format!("--rows: nothing left of {} rows", indices.len()));
            }
            first = places.start;
            indices = indices[places].to_vec();
        }
        let in_file = || shown(&args.features);
        let numbers = pack.rows().saturating_mul(pack.dim()).saturating_mul(1 + pack.file().views_each());
        let kept = if numbers <= KEPT_NUMBERS {
            let all: Vec<usize> = (0..pack.rows()).collect();
            Some(Rows::read(pack.file(), &all, args.normalize).with_context(in_file)?)
        } else {
            pack.check(args.normalize).with_context(in_file)?;
            None
        };
        let timed = order == Order::File;
        if let Some(times) = pack.file().times().filter(|_| timed)
            && let Some(row) = times.windows(2).position(|pair| pair[1] < pair[0])
        {
            let row = row + 1;
            anyhow::bail!(
                "times: row {row} arrived before row {}; expected times that never run backwards ({})",
                row - 1,
                shown(&pack.path())
            );
        }
        if pack.file().times().is_some() && !timed {
            eprintln!("warning: the file's `times` are left out, as its rows come in another order");
        }
        Ok(Self { pack, kept, indices, first, timed })
    }

    fn answer(&self, run: &mut Run, args: &Args, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let progress = if args.quiet { ProgressBar::hidden() } else { progress_bar(self.indices.len()) };
        let mut done = 0;
        let mut code = ExitCode::SUCCESS;
        let mut delayed = DelayedLabels::asked_for(args, self.pack.labels().is_some())?;
        let rows =
            if delayed.is_some() { LABELLED_ROWS.min(args.block as usize) } else { args.block as usize };
        for block in self.indices.chunks(rows) {
            if let Some(interrupted) = interrupt.came() {
                code = interrupted;
                break;
            }
            let file = self.pack.file();
            let Rows { features, views } = match &self.kept {
                Some(all) => all.pick(block),
                None => Rows::read(file, block, args.normalize)?,
            };
            let view_counts = vec![file.views_each(); block.len()];
            let learn: Option<Vec<bool>> =
                file.learn().map(|learn| block.iter().map(|&row| learn[row]).collect());
            let times = file.times().filter(|_| self.timed);
            let times: Option<Vec<f64>> = times.map(|times| block.iter().map(|&row| times[row]).collect());
            let stepped = run.step(
                &Input {
                    learn: learn.as_deref(),
                    times: times.as_deref(),
                    views: views.as_ref(),
                    view_counts: views.as_ref().map(|_| &view_counts[..]),
                    ..Input::new(&features)
                },
                |i, _| Id::Number(block[i] as u64),
                |i| self.pack.labels().map(|labels| labels[block[i]]),
            );
            run.hung_up = stepped.as_ref().is_err_and(is_broken_pipe);
            if let (Some(delayed), Some(labels)) = (&mut delayed, self.pack.labels()) {
                let first = run.session.next_id().saturating_sub(block.len() as u64);
                delayed.ask(done, first, block.iter().map(|&row| labels[row]));
                delayed.hand_over(&mut run.session, done + block.len())?;
            }
            done += block.len();
            if run.hung_up {
                break;
            }
            if let Some(warning) = stepped? {
                progress.suspend(|| eprintln!("{warning}"));
            }
            progress.inc(block.len() as u64);
        }
        progress.finish_and_clear();
        if done < self.indices.len() && !(run.hung_up && args.save_state.is_none()) {
            self.tell_how_to_go_on(args, done);
        }
        Ok(code)
    }

    /// Warns that not all rows were answered.
    fn tell_how_to_go_on(&self, args: &Args, done: usize) {
        let next = self.first + done;
        let advice = match &args.save_state {
            Some(path) => {
                let apart = if args.out.is_some() { " and another --out" } else { "" };
                format!("; go on with --load-state {} --rows {next}..{apart}", shown(&path))
            }
            None => String::new(),
        };
        eprintln!("warning: interrupted after {done} of {} rows{advice}", self.indices.len());
    }
}

/// A progress bar with the rate, on standard error and only if that is a terminal.
pub fn progress_bar(rows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} rows, {per_sec}, {eta} left");
    ProgressBar::new(rows as u64).with_style(style.expect("the template is valid"))
}
