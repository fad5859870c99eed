//! `ultta classify VIDEO`: frames to answers and a timeline of scenes, live.

use std::fs::File;
use std::io::{IsTerminal, Seek, SeekFrom, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ultta::{Features, Input, Temperature};
use ultta_encode::decode::Picture;
use ultta_encode::preprocess::normalise;
use ultta_encode::source::Item;
use ultta_encode::video::{Source, is_dark};
use ultta_formats::shown;

use super::Classify;
use super::feed::{Event, Feed};
use super::timeline::{Entry, Seen, Timeline, Written, clock};
use crate::failure::usage;
use crate::output;

/// Flags of a video.
#[derive(clap::Args, Debug)]
pub struct VideoArgs {
    /// Frames of a video that are answered per second
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = rate, help_heading = "Video")]
    fps: f64,

    /// Keep going: open a camera or an address again when it goes away, until interrupted
    #[arg(long, help_heading = "Video")]
    follow: bool,

    /// Scenes of a video into a file, as they end: .csv, .json or .srt
    #[arg(long, value_name = "FILE", help_heading = "Video")]
    timeline: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fps) if fps > 0.0 && fps <= 240.0 => Ok(fps),
        _ => Err("expected frames per second, above 0 and at most 240".into()),
    }
}

/// Probability that the classes of an entry's set come to, unless `--coverage` says another.
const COVERAGE: f64 = 0.9;

/// How long a look for a frame takes at most: an interrupt is noticed after it.
const LOOK: Duration = Duration::from_millis(100);

/// The video among the arguments: the only one of them, or none is.
pub fn source_of(args: &super::Args) -> anyhow::Result<Option<Source>> {
    let found = args.paths.iter().find_map(|path| Source::of(path));
    let Some(source) = found else {
        for (given, flag) in [(args.video.follow, "--follow"), (args.video.timeline.is_some(), "--timeline")]
        {
            if given {
                return usage(format!(
                    "{flag}: for a video file, a camera (/dev/video0) or an address (rtsp://…)"
                ));
            }
        }
        return Ok(None);
    };
    if args.paths.len() > 1 || args.watch.is_some() {
        let name = shown(&source.name());
        return usage(format!("{name}: a video goes alone; give one at a time, without pictures"));
    }
    if args.views > 0 {
        return usage("--views: for pictures; frames of a video are views of one another");
    }
    if let Some(timeline) = &args.video.timeline {
        TimelineFile::check(timeline)?;
    }
    if let Source::File(path) = &source {
        let opening = |e| ultta_encode::Error::Io { doing: "opening", source: e, path: path.into() };
        File::open(path).map_err(opening)?;
        if args.video.follow {
            return usage("--follow: for cameras and addresses; a file ends");
        }
    }
    Ok(Some(source))
}

/// What came of a video beside the answers.
#[derive(Default)]
struct Counts {
    dark: u64,
    /// Seconds from reading a frame to its answer, at most.
    latest: f64,
}

/// Frames that are answered together.
#[derive(Default)]
struct Batch {
    pictures: Vec<Picture>,
    /// Per picture its time, and when it was read.
    times: Vec<(f64, Instant)>,
}

impl VideoArgs {
    /// Where the timeline goes.
    pub(super) fn timeline(&self) -> Option<&Path> {
        self.timeline.as_deref()
    }
}

impl Classify<'_> {
    /// Answers the frames of a video.
    pub(super) fn video(&mut self, source: &Source, batch: usize) -> anyhow::Result<()> {
        let args = self.args;
        let flags = &args.video;
        let mut file = flags.timeline.as_deref().map(TimelineFile::new);
        let coverage = Some(self.session.config().coverage).filter(|coverage| *coverage > 0.0);
        let mut timeline = Timeline::new(flags.fps, coverage.unwrap_or(COVERAGE));
        let feed = Feed::open(source, flags.fps, self.encoder.preprocess(), flags.follow)?;
        let status = std::io::stderr().is_terminal() && !self.args.quiet;
        self.progress = if status { spinner() } else { ProgressBar::hidden() };
        let since = super::now();
        let mut counts = Counts::default();
        let mut waiting = Batch::default();
        // A live frame is answered at once.
        let batch = if source.is_live() { 1 } else { batch.max(1) };
        let end = loop {
            if self.interrupt.came().is_some() || self.hung_up {
                break None;
            }
            let event = feed.next(LOOK);
            if let Some(Event::Frame(picture, at, read)) = event {
                waiting.pictures.push(picture);
                waiting.times.push((at, read));
                if waiting.pictures.len() >= batch {
                    let entries =
                        self.frames(std::mem::take(&mut waiting), source, since, &mut timeline, &mut counts)?;
                    self.tell(&entries, &counts, &mut file)?;
                    self.show_status(&timeline, &feed, &counts);
                }
                continue;
            }
            let Some(event) = event else { continue };
            let entries =
                self.frames(std::mem::take(&mut waiting), source, since, &mut timeline, &mut counts)?;
            self.tell(&entries, &counts, &mut file)?;
            match event {
                Event::Lost(at, reason) => {
                    let entry = timeline.lose(at);
                    file.as_mut().map_or(Ok(()), TimelineFile::begin)?;
                    self.tell(entry.as_slice(), &counts, &mut file)?;
                    let message = format!(
                        "{} at {}: no signal ({reason}); trying again",
                        shown(&source.name()),
                        clock(at)
                    );
                    self.progress.suspend(|| eprintln!("warning: {}", shown(&message)));
                }
                Event::End(end) => break Some(end),
                Event::Frame(..) => {}
            }
        };
        let entries = self.frames(waiting, source, since, &mut timeline, &mut counts)?;
        self.tell(&entries, &counts, &mut file)?;
        let entries = timeline.finish(feed.now());
        self.tell(&entries, &counts, &mut file)?;
        self.progress.finish_and_clear();
        if !self.args.quiet && self.tally.n + counts.dark > 0 {
            eprintln!("{}", counts.words(self.tally.n, feed.dropped(), source.is_live()));
        }
        let Some(end) = end else { return Ok(()) };
        match end.problem {
            Some(problem) if end.frames == 0 || self.args.strict => {
                usage(format!("{}: {}", shown(&source.name()), shown(&problem)))
            }
            Some(problem) => {
                let after = clock(end.frames as f64 / flags.fps);
                let name = shown(&source.name());
                eprintln!("warning: {name}: damaged, or it ends early, after {after}: {}", shown(&problem));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Answers frames that follow one another. Dark ones are not answered, and teach nothing.
    fn frames(
        &mut self,
        batch: Batch,
        source: &Source,
        since: f64,
        timeline: &mut Timeline,
        counts: &mut Counts,
    ) -> anyhow::Result<Vec<Entry>> {
        let dark: Vec<bool> = batch.pictures.iter().map(is_dark).collect();
        let lit = batch.pictures.iter().zip(&dark).filter(|(_, dark)| !**dark);
        let pixels: Vec<f32> =
            lit.flat_map(|(picture, _)| normalise(picture, self.encoder.preprocess())).collect();
        let features = if pixels.is_empty() {
            Features::empty(self.encoder.dim())
        } else {
            self.encoder.images(&pixels)?
        };
        let lit = batch.times.iter().zip(&dark).filter(|(_, dark)| !**dark);
        let times: Vec<f64> = lit.map(|((at, _), _)| since + at).collect();
        let times = Some(times).filter(|_| self.session.config().method.uses_times());
        let input = Input { times: times.as_deref(), keep_scores: true, ..Input::new(&features) };
        let step = if features.rows() > 0 { Some(self.session.step(input)?) } else { None };
        let mut entries = Vec::new();
        let mut row = 0;
        for ((at, read), dark) in batch.times.into_iter().zip(dark) {
            match step.as_ref().filter(|_| !dark) {
                None => {
                    counts.dark += 1;
                    entries.extend(timeline.push(at, Seen::Dark, &[], false));
                }
                Some(step) => {
                    let answer = &step.rows[row];
                    self.tally.push(answer, None);
                    let seen = if answer.unknown { Seen::Unknown } else { Seen::Class(answer.label) };
                    let probs = step.probs(row, Temperature::Cal);
                    entries.extend(timeline.push(at, seen, &probs, answer.begins_scene));
                    if self.sink.is_some() {
                        let item = Item::file(format!("{}@{at:.3}", source.name()), None);
                        self.show(&item, step, row)?;
                    }
                    row += 1;
                }
            }
            counts.latest = counts.latest.max(read.elapsed().as_secs_f64());
        }
        if let Some(sink) = &mut self.sink {
            sink.flush()?;
        }
        if let Some(warning) = step.and_then(|step| self.guard.look(&step.health)) {
            self.progress.suspend(|| eprintln!("{warning}"));
        }
        Ok(entries)
    }

    /// Entries that are complete: a line each, and into the file. From the first frame on the file is there.
    fn tell(
        &self,
        entries: &[Entry],
        counts: &Counts,
        file: &mut Option<TimelineFile<'_>>,
    ) -> anyhow::Result<()> {
        if let Some(file) = file.as_mut().filter(|_| self.tally.n + counts.dark > 0) {
            file.begin()?;
        }
        for entry in entries {
            let written = Written::new(entry, self.session.head().classes());
            if let Some(file) = file {
                file.write(&written)?;
            }
            if self.sink.is_none() {
                self.progress
                    .suspend(|| writeln!(stdout(), "{:<19}  {}", written.span(), shown(&written.words())))?;
            }
        }
        Ok(())
    }

    fn show_status(&self, timeline: &Timeline, feed: &Feed, counts: &Counts) {
        let classes = self.session.head().classes();
        let what = match timeline.at_hand() {
            Some(Seen::Class(label)) => classes[label].as_str(),
            Some(Seen::Unknown) => "unknown",
            Some(Seen::Dark) => "dark",
            None => "",
        };
        let frames = self.tally.n + counts.dark;
        self.progress.set_message(format!("{what} … {frames} frames, {} dropped", feed.dropped()));
        self.progress.tick();
    }
}

impl Counts {
    fn words(&self, answered: u64, dropped: u64, live: bool) -> String {
        let mut words = format!("{answered} frames answered, {} dark", self.dark);
        if live {
            words += &format!(
                ", {dropped} dropped to keep up; an answer came at most {:.2} s after its frame",
                self.latest
            );
        }
        words
    }
}

fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("the template is valid");
    ProgressBar::new_spinner().with_style(style)
}

/// A timeline on disk. It grows while the video goes on and can be read at any time. Until there is something to tell, an older
/// file stays as it was.
struct TimelineFile<'a> {
    path: &'a Path,
    open: Option<Open>,
}

enum Open {
    Csv(Box<csv::Writer<File>>),
    Json { file: File, empty: bool },
    Srt { file: File, number: u64 },
}

/// The ending of a path, in small letters.
fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

impl<'a> TimelineFile<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, open: None }
    }

    /// Checks before any work starts that a timeline can be written here; nothing is changed.
    fn check(path: &Path) -> anyhow::Result<()> {
        if !["csv", "json", "srt"].contains(&ending(path).as_str()) {
            return usage(format!(
                "--timeline: expected a name that ends in .csv, .json or .srt, got {}",
                shown(&path)
            ));
        }
        output::check_writable(path)
    }

    /// Begins the file, if it has not begun; an older one is replaced.
    fn begin(&mut self) -> anyhow::Result<()> {
        self.opened().map(|_| ())
    }

    fn opened(&mut self) -> anyhow::Result<&mut Open> {
        let open = match self.open.take() {
            Some(open) => open,
            None => Open::create(self.path)?,
        };
        Ok(self.open.insert(open))
    }

    fn write(&mut self, entry: &Written<'_>) -> anyhow::Result<()> {
        match self.opened()? {
            Open::Csv(writer) => {
                writer.write_record(entry.cells())?;
                writer.flush()?;
            }
            Open::Json { file, empty } => {
                // Over the end of the list, so that the list is whole after every entry.
                file.seek(SeekFrom::End(-3))?;
                let comma = if *empty { "" } else { "," };
                write!(file, "{comma}\n{}\n]\n", serde_json::to_string(entry)?)?;
                *empty = false;
            }
            Open::Srt { file, number } => {
                *number += 1;
                file.write_all(entry.subtitle(*number).as_bytes())?;
            }
        }
        Ok(())
    }
}

impl Open {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::create(path).with_context(|| format!("cannot write {}", shown(&path)))?;
        Ok(match ending(path).as_str() {
            "csv" => {
                let mut writer = csv::Writer::from_writer(file);
                writer.write_record(Written::COLUMNS)?;
                writer.flush()?;
                Self::Csv(Box::new(writer))
            }
            "json" => {
                file.write_all(b"[\n]\n")?;
                Self::Json { file, empty: true }
            }
            _ => Self::Srt { file, number: 0 },
        })
    }
}
