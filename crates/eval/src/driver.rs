//! Runs: every protocol × dataset × method × seed of a plan, in parallel, each in its own folder.
//!
//! One run is, in plain words:
//!
//! ```text
//! for block in protocol.stream(datasets, seed) {
//!     let step = session.step(block)?;            // answer, then learn (or as the method's card says)
//!     for (answer, label) in zip(step, labels) { metrics.push(answer, label) }
//!     for label that is due { session.feedback(id, label) }
//! }
//! ```
//!
//! A run's folder `<protocol>/<dataset>/<method>/seed-<n>/` appears whole or not at all; one that is there under
//! the same configuration is not run again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use toml::{Table, Value};
use ultta::adapter::{Card, ClassDrift, Rows};
use ultta::methods::MethodConfig;
use ultta::scores::{softmax_from, summary};
use ultta::{Config, Error, Features, Head, Input, Result, Session};

use crate::dataset::Dataset;
use crate::metrics::{Detection, DetectionIntervals, ECE_BINS, Ece, Gather, bootstrap};
use crate::pack::Pack;
use crate::pictures::{Cost, PictureMethod, peak_bytes, reset_peak};
use crate::protocol::{Protocol, Sample, Stream};
use crate::random::Random;
use crate::summary::{
    ClassStory, Course, Domain, Flip, Flips, Open, Run, Stability, Summary, Timing, Window,
};

/// Rows of a step where the grouping does not matter.
const BLOCK: usize = 128;
/// Rows of a step while labels arrive: they are handed over between steps.
const LABELLED_BLOCK: usize = 16;
/// Flips and classes kept as examples.
const EXAMPLES: usize = 12;
/// Samples of the running accuracy that tells recovery after a shift.
const RECOVERY_WINDOW: usize = 100;

/// Products with the head that a method on features is counted as, an estimate: zero-shot scores, adapted scores, and
/// as much again for what it learns.
const HEAD_PRODUCTS: f64 = 3.0;

/// A method under its name on the command line.
#[derive(Clone, Debug)]
pub struct Method {
    /// `ul-tta`, `ul-tta:paper`, `tda`, …
    pub name: String,
    /// Its settings.
    pub config: Config,
    /// A method that needs the pictures themselves; the settings are its own then.
    pub pictures: Option<Arc<dyn PictureMethod>>,
}

impl std::fmt::Debug for dyn PictureMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.settings())
    }
}

impl Method {
    /// A method by name, with the part of a configuration file that concerns it.
    ///
    /// Baselines run as published, without the collapse guard; UL-TTA's default preset runs as it ships, with it.
    /// A `[guard]` in the file decides for all.
    pub fn resolve(name: &str, file: Option<&str>) -> Result<Self> {
        let (method, preset) = match name.split_once(':') {
            Some((method, preset)) => (method, Some(preset)),
            None => (name, None),
        };
        let key = method.replace('-', "_");
        let mut table = Table::new();
        if let Some(text) = file {
            let parse = |e: toml::de::Error| Error::Config { key: "file".into(), reason: e.to_string() };
            table = text.parse().map_err(parse)?;
        }
        let guarded = table.contains_key("guard");
        if let Some(Value::Table(methods)) = table.get_mut("method") {
            methods.retain(|name, _| *name == key);
            if methods.is_empty() {
                table.remove("method");
            }
        }
        let text = toml::to_string(&table).unwrap_or_default();
        let text = (!table.is_empty()).then_some(text.as_str());
        let mut config = Config::resolve(text, Some(method), preset, &[])?;
        if !guarded && name != "ul-tta" {
            config.guard.enabled = false;
        }
        Ok(Self { name: name.to_string(), config, pictures: None })
    }

    /// A method that needs the pictures themselves.
    pub fn on_pictures(name: &str, method: Arc<dyn PictureMethod>) -> Result<Self> {
        let config = Config::resolve(None, Some("zero-shot"), None, &[])?;
        Ok(Self { name: name.to_string(), config, pictures: Some(method) })
    }

    /// Its card.
    pub fn card(&self) -> &'static Card {
        match &self.pictures {
            Some(method) => method.card(),
            None => self.config.method.card(),
        }
    }

    /// The configuration for a stream of `n` samples: a method that must know the length is told.
    fn for_stream(&self, n: usize) -> Config {
        let mut config = self.config.clone();
        if let MethodConfig::Onzeta(onzeta) = &mut config.method {
            onzeta.horizon = n.max(1) as u64;
        }
        config
    }

    /// Rows of a step where the protocol leaves it open: for a joint method, what its paper uses.
    fn batch(&self) -> usize {
        if let Some(method) = &self.pictures {
            return method.batch().max(1);
        }
        let card = self.config.method.card();
        match (card.rows, card.name) {
            (Rows::Independent, _) => BLOCK,
            (Rows::Joint, "t3a") => 32,
            (Rows::Joint, "stata") => 128,
            (Rows::Joint, _) => 64,
        }
    }
}

/// What is to be run.
pub struct Plan {
    /// The packs.
    pub datasets: Vec<Dataset>,
    /// Further packs that strangers come from; the other packs of the plan serve, too.
    pub strangers: Vec<Dataset>,
    /// A pack that counts as in-distribution: how well confidence tells it from each stream.
    pub in_distribution: Option<Pack>,
    /// The methods.
    pub methods: Vec<Method>,
    /// The protocols.
    pub protocols: Vec<Protocol>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Where run folders go.
    pub out: PathBuf,
    /// Runs at a time.
    pub jobs: usize,
}

/// One protocol × dataset × method × seed.
#[derive(Clone)]
pub struct Job<'a> {
    /// Name of the pack, or of all packs of a stream across domains.
    pub dataset: String,
    /// The packs.
    pub packs: Vec<&'a Dataset>,
    /// Where strangers come from.
    pub others: Vec<&'a Dataset>,
    /// The pack that counts as in-distribution, if any.
    pub in_distribution: Option<&'a Pack>,
    /// The method.
    pub method: &'a Method,
    /// The protocol.
    pub protocol: &'a Protocol,
    /// The seed.
    pub seed: u64,
}

/// Watches a plan being carried out.
pub trait Progress: Sync {
    /// A run begins.
    fn started(&self, _worker: usize, _job: &Job<'_>, _samples: usize) {}
    /// A run has answered so many samples.
    fn advanced(&self, _worker: usize, _samples: usize) {}
    /// Whether to give up; asked after every block.
    fn gives_up(&self) -> bool {
        false
    }
    /// A run is done, or was done before.
    fn finished(&self, _worker: usize, _job: &Job<'_>, _fresh: bool) {}
}

/// Nobody watches.
impl Progress for () {}

/// What came of a plan.
pub struct Outcome {
    /// All runs, in the plan's order.
    pub runs: Vec<Run>,
    /// How many of them were there already.
    pub reused: usize,
    /// What could not be run, and why.
    pub skipped: Vec<String>,
}

impl Plan {
    /// Every run of the plan, those that cannot be made with their reasons.
    pub fn jobs(&self) -> (Vec<Job<'_>>, Vec<String>) {
        let (mut jobs, mut skipped) = (Vec::new(), Vec::new());
        for protocol in &self.protocols {
            let groups: Vec<Vec<&Dataset>> = match protocol.spans_packs() {
                true => vec![self.datasets.iter().collect()],
                false => self.datasets.iter().map(|d| vec![d]).collect(),
            };
            for packs in groups {
                let dataset = packs.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join("+");
                let own = |d: &&Dataset| packs.iter().any(|p| std::ptr::eq(*p, *d));
                let others: Vec<&Dataset> =
                    self.datasets.iter().chain(&self.strangers).filter(|d| !own(d)).collect();
                for method in &self.methods {
                    let blind = method.pictures.is_some() && packs.iter().any(|d| d.pictures.is_none());
                    let lacks = match method.card().needs_views && packs.iter().any(|d| d.views_each() == 0) {
                        true => Some("the pack has no views"),
                        false => blind.then_some("it needs pictures, the pack has features only"),
                    };
                    if let Some(lacks) = lacks {
                        let reason = format!("{} on {dataset}: {lacks}", method.name);
                        if !skipped.contains(&reason) {
                            skipped.push(reason);
                        }
                        continue;
                    }
                    for &seed in &self.seeds {
                        let (dataset, packs, others) = (dataset.clone(), packs.clone(), others.clone());
                        let in_distribution = self.in_distribution.as_ref();
                        jobs.push(Job { dataset, packs, others, in_distribution, method, protocol, seed });
                    }
                }
            }
        }
        (jobs, skipped)
    }

    /// Carries the plan out. The first error stops it; runs that were done stay.
    pub fn run(&self, progress: &dyn Progress) -> Result<Outcome> {
        let (jobs, skipped) = self.jobs();
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let done: Mutex<Vec<Option<(Run, bool)>>> = Mutex::new(vec![None; jobs.len()]);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for worker in 0..self.jobs.clamp(1, jobs.len().max(1)) {
                let (next, stop, done, failure, jobs) = (&next, &stop, &done, &failure, &jobs);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(i) else { break };
                        match self.run_or_reuse(job, worker, progress) {
                            Ok(result) => done.lock().expect("no panics")[i] = Some(result),
                            Err(error) => {
                                stop.store(true, Ordering::Relaxed);
                                failure.lock().expect("no panics").get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        if let Some(error) = failure.into_inner().expect("no panics") {
            return Err(error);
        }
        let done: Vec<(Run, bool)> = done.into_inner().expect("no panics").into_iter().flatten().collect();
        let reused = done.iter().filter(|(_, fresh)| !fresh).count();
        Ok(Outcome { runs: done.into_iter().map(|(run, _)| run).collect(), reused, skipped })
    }

    fn run_or_reuse(&self, job: &Job<'_>, worker: usize, progress: &dyn Progress) -> Result<(Run, bool)> {
        let folder = job.folder(&self.out);
        let stream = job.protocol.stream(&job.packs, &job.others, job.seed)?;
        let config = job.config_text(&stream)?;
        if let Some(run) = finished(&folder, &config) {
            progress.finished(worker, job, false);
            return Ok((run, false));
        }
        check_same_packs(&folder, &config)?;
        progress.started(worker, job, stream.samples.len());
        let (summary, windows, timing) = job.run(&stream, |n| {
            progress.advanced(worker, n);
            !progress.gives_up()
        })?;
        write_folder(&folder, &config, &summary, &windows, &timing)?;
        progress.finished(worker, job, true);
        Ok((Run { summary, timing }, true))
    }
}

/// A run that is there, whole, and made under the same configuration.
fn finished(folder: &Path, config: &str) -> Option<Run> {
    let there = std::fs::read_to_string(folder.join("config.toml")).ok()?;
    if !folder.join("done").is_file() || there != config || read_windows(folder).is_err() {
        return None;
    }
    read_run(folder).ok()
}

/// A run of other packs under the same name is not replaced.
fn check_same_packs(folder: &Path, config: &str) -> Result<()> {
    let packs = |text: &str| -> Option<Value> {
        text.parse::<Table>().ok()?.get("run")?.as_table()?.get("packs").cloned()
    };
    let there = std::fs::read_to_string(folder.join("config.toml")).ok().and_then(|text| packs(&text));
    if there.is_some() && there != packs(config) {
        let reason = "holds a run of other features under the same name; choose another --out, or remove it";
        return Err(Error::Format { reason: reason.into(), path: folder.to_owned() });
    }
    Ok(())
}

/// Reads a run folder.
pub fn read_run(folder: &Path) -> Result<Run> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|source| Error::Io { doing: "opening", source, path })
    };
    let bad = |e: serde_json::Error, name: &str| Error::Format {
        reason: format!("not a run this version can read: {e}"),
        path: folder.join(name),
    };
    Ok(Run {
        summary: serde_json::from_str(&read("summary.json")?).map_err(|e| bad(e, "summary.json"))?,
        timing: serde_json::from_str(&read("timing.json")?).map_err(|e| bad(e, "timing.json"))?,
    })
}

/// Reads the windows of a run.
pub fn read_windows(folder: &Path) -> Result<Vec<Window>> {
    let path = folder.join("windows.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io {
        doing: "opening",
        source,
        path: path.clone(),
    })?;
    let line = |l: &str| {
        serde_json::from_str(l).map_err(|e| Error::Format { reason: e.to_string(), path: path.clone() })
    };
    text.lines().map(line).collect()
}

/// Writes a run folder aside and renames it.
fn write_folder(
    folder: &Path,
    config: &str,
    summary: &Summary,
    windows: &[Window],
    timing: &Timing,
) -> Result<()> {
    let io = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { doing, source, path }
    };
    let json = |value: &dyn erased::Json| value.text();
    let parent = folder.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(io("creating", parent))?;
    let aside = tempfile::Builder::new()
        .prefix(".run-")
        .tempdir_in(parent)
        .map_err(io("creating a folder in", parent))?;
    let lines: String = windows.iter().map(|w| json(w) + "\n").collect();
    for (name, text) in [
        ("config.toml", config.to_string()),
        ("summary.json", json(summary)),
        ("timing.json", json(timing)),
        ("windows.jsonl", lines),
        ("done", String::new()),
    ] {
        let path = aside.path().join(name);
        std::fs::write(&path, text).map_err(io("writing", &path))?;
    }
    if folder.exists() {
        // Made under another configuration, or torn: it goes before the new one comes.
        std::fs::remove_dir_all(folder).map_err(io("replacing", folder))?;
    }
    std::fs::rename(aside.path(), folder).map_err(io("renaming to", folder))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755));
    }
    Ok(())
}

mod erased {
    /// Anything that can be written as JSON.
    pub trait Json {
        fn text(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn text(&self) -> String {
            serde_json::to_string(self).expect("plain numbers and strings")
        }
    }
}

impl Job<'_> {
    /// Where the run goes.
    pub fn folder(&self, out: &Path) -> PathBuf {
        // A name may hold folders, but none that lead out of this one.
        let plain = |name: &str| -> PathBuf {
            let name = name.replace([':', '\\'], "-");
            name.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect()
        };
        out.join(plain(self.protocol.name()))
            .join(plain(&self.dataset))
            .join(plain(&self.method.name))
            .join(format!("seed-{}", self.seed))
    }

    /// Everything that decides what comes out.
    fn config_text(&self, stream: &Stream) -> Result<String> {
        let mut run = Table::new();
        run.insert("dataset".into(), self.dataset.clone().into());
        run.insert("method".into(), self.method.name.clone().into());
        run.insert("protocol".into(), self.protocol.name().into());
        run.insert("seed".into(), (self.seed as i64).into());
        run.insert("samples".into(), (stream.samples.len() as i64).into());
        run.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        let digests: Vec<Value> = self.packs.iter().map(|d| d.head.digest().into()).collect();
        run.insert("heads".into(), digests.into());
        let packs = |packs: &[&Dataset]| -> Result<Value> {
            packs
                .iter()
                .map(|d| Ok(Value::from(d.pack.digest()?)))
                .collect::<Result<Vec<_>>>()
                .map(Value::from)
        };
        run.insert("packs".into(), packs(&self.packs)?);
        if self.protocol.open > 0.0 {
            run.insert("strangers".into(), packs(&self.others)?);
        }
        if let Some(pack) = self.in_distribution {
            run.insert("in_distribution".into(), pack.digest()?.into());
        }
        let mut table = Table::new();
        table.insert("run".into(), run.into());
        let settings = match &self.method.pictures {
            Some(method) => method.settings(),
            None => self.method.for_stream(stream.samples.len()).to_toml(),
        };
        Ok(format!(
            "{}
{settings}",
            toml::to_string(&table).expect("plain values")
        ))
    }

    /// Runs the stream. `advanced` is told of every block and says whether to go on.
    pub fn run(
        &self,
        stream: &Stream,
        mut advanced: impl FnMut(usize) -> bool,
    ) -> Result<(Summary, Vec<Window>, Timing)> {
        let head = self.head()?;
        if let Some(method) = &self.method.pictures {
            return self.run_on_pictures(&**method, &head, stream, advanced);
        }
        let n = stream.samples.len();
        reset_peak();
        let mut session = Session::new(head.clone(), &self.method.for_stream(n))?;
        let block = self.block();
        let mut tally = Tally::new(self, &head, stream);
        let mut due: VecDeque<(usize, u64, usize)> = VecDeque::new();
        let mut labelled = Random::new(self.seed ^ 0x1ABE1);
        let mut labels_used = 0;
        let mut clock = Clock::new(self.protocol.compute, block);
        let mut done = 0;
        for samples in stream.samples.chunks(block) {
            let features = self.features(samples)?;
            if clock.busy(done + samples.len() - 1) {
                // The method still works on earlier samples: the frozen model answers these.
                let scores = head.zero_shot(&features)?;
                for (i, sample) in samples.iter().enumerate() {
                    tally.push_frozen(sample, scores.row(i));
                }
            } else {
                let views = self.views(samples)?;
                let counts: Vec<usize> = views
                    .as_ref()
                    .map_or(Vec::new(), |v| vec![v.rows() / samples.len().max(1); samples.len()]);
                let mut input = Input::new(&features);
                if let Some(views) = &views {
                    input.views = Some(views);
                    input.view_counts = Some(&counts);
                }
                let started = Instant::now();
                let step = session.step_with(&input)?;
                clock.worked(started.elapsed().as_secs_f64(), done, samples.len());
                for (i, sample) in samples.iter().enumerate() {
                    let row = &step.rows[i];
                    let logits =
                        step.prediction.calibrated.as_ref().unwrap_or(&step.prediction.scores).row(i);
                    let frozen = (row.zero_shot.label, row.zero_shot.prob);
                    let adapted =
                        Told { logits, tau: step.prediction.tau_cal[i], answer: (row.label, row.prob) };
                    tally.push(
                        sample,
                        adapted,
                        Told { logits: step.zero_shot.row(i), tau: 1.0, answer: frozen },
                    );
                    if let Some((share, delay)) = self.protocol.labels
                        && !sample.stranger
                        && labelled.uniform() < share
                    {
                        due.push_back((done + i + delay, row.id, self.label(sample)));
                    }
                }
                tally.health = Some(step.health);
            }
            done += samples.len();
            tally.close_window(done);
            while due.front().is_some_and(|d| d.0 < done) {
                let (_, id, label) = due.pop_front().expect("there is a front");
                match session.feedback(id, label) {
                    Ok(used) => labels_used += usize::from(used),
                    Err(Error::Forgotten { .. }) => {}
                    Err(other) => return Err(other),
                }
            }
            if !advanced(samples.len()) {
                let reason = format!("given up after {done} of {n} samples");
                return Err(Error::Config { key: "run".into(), reason });
            }
        }
        let mut timing = clock.timing();
        if let Some(pack) = self.in_distribution {
            tally.ask_in_distribution(&session, pack)?;
        }
        let health = session.health();
        let end = End {
            max_prior_kl: health.max_prior_kl,
            max_movement: health.max_movement,
            state_bytes: health.state_bytes,
            guard_fired: health.guard_fired,
            admitted_share: session.admitted() as f64 / session.next_id().max(1) as f64,
            classes: session.per_class(),
        };
        let (mut summary, windows) = tally.finish(end);
        summary.labels_used = labels_used;
        if let Some(pictures) = &self.packs[0].pictures {
            let encoding = pictures.encoding();
            timing.encode_seconds = encoding.seconds;
            timing.peak_bytes = peak_bytes().map_or(0, |own| own.max(encoding.peak_bytes));
            let flops = encoding.flops + HEAD_PRODUCTS * 2.0 * (head.n_classes() * head.dim()) as f64;
            summary.cost = Some(Cost { forwards: 1.0, flops, ..Cost::default() });
        }
        Ok((summary, windows, timing))
    }

    /// The same for a method that needs the pictures themselves. It has no use for labels.
    fn run_on_pictures(
        &self,
        method: &dyn PictureMethod,
        head: &Arc<Head>,
        stream: &Stream,
        mut advanced: impl FnMut(usize) -> bool,
    ) -> Result<(Summary, Vec<Window>, Timing)> {
        let n = stream.samples.len();
        reset_peak();
        let mut session = method.start(head)?;
        let block = self.block();
        let mut tally = Tally::new(self, head, stream);
        let mut clock = Clock::new(self.protocol.compute, block);
        let mut done = 0;
        for samples in stream.samples.chunks(block) {
            let zero_shot = head.zero_shot(&self.features(samples)?)?;
            if clock.busy(done + samples.len() - 1) {
                for (i, sample) in samples.iter().enumerate() {
                    tally.push_frozen(sample, zero_shot.row(i));
                }
            } else {
                let mut pixels = Vec::new();
                for sample in samples {
                    let dataset = self.dataset(sample);
                    let Some(pictures) = &dataset.pictures else {
                        let reason =
                            format!("{} needs pictures, {} has none", self.method.name, dataset.name);
                        return Err(Error::Config { key: "pictures".into(), reason });
                    };
                    pixels.extend(pictures.read(&[sample.row as usize])?);
                }
                let started = Instant::now();
                let prediction = session.step(&pixels, &zero_shot)?;
                clock.worked(started.elapsed().as_secs_f64(), done, samples.len());
                for (i, sample) in samples.iter().enumerate() {
                    let answer = &prediction.answers[i];
                    let logits = prediction.scores.row(i);
                    let adapted = Told { logits, tau: 1.0, answer: (answer.label, answer.prob) };
                    tally.push(sample, adapted, Told::of(zero_shot.row(i)));
                }
            }
            done += samples.len();
            tally.close_window(done);
            if !advanced(samples.len()) {
                let reason = format!("given up after {done} of {n} samples");
                return Err(Error::Config { key: "run".into(), reason });
            }
        }
        let mut timing = clock.timing();
        timing.peak_bytes = peak_bytes().unwrap_or(0);
        let cost = session.cost();
        let end = End {
            max_movement: session.max_movement(),
            state_bytes: cost.parameters * size_of::<f32>(),
            ..End::default()
        };
        let (mut summary, windows) = tally.finish(end);
        summary.cost = Some(cost);
        Ok((summary, windows, timing))
    }

    /// The first pack's head, its prototypes blurred where the protocol says so.
    fn head(&self) -> Result<Arc<Head>> {
        let head = &self.packs[0].head;
        if self.protocol.weak == 0.0 {
            return Ok(head.clone());
        }
        let mut random = Random::new(self.seed ^ 0x0EA4);
        let size = self.protocol.weak / (head.dim() as f64).sqrt();
        let noisy: Vec<f32> =
            head.prototypes().iter().map(|&v| (v as f64 + size * random.normal()) as f32).collect();
        let unit = Features::normalized(noisy, head.dim())?;
        Ok(Arc::new(Head::new(
            unit.data().to_vec(),
            head.dim(),
            head.classes().to_vec(),
            head.logit_scale(),
        )?))
    }

    fn block(&self) -> usize {
        let usual = self.method.batch();
        let joint = self.method.card().rows == Rows::Joint;
        match (self.protocol.batch, self.protocol.labels, self.protocol.compute) {
            (Some(batch), _, _) => batch,
            (None, Some(_), _) if !joint => LABELLED_BLOCK,
            (None, _, Some(_)) if !joint => 1,
            _ => usual,
        }
    }

    fn dataset(&self, sample: &Sample) -> &Dataset {
        match sample.stranger {
            true => self.others[sample.pack as usize],
            false => self.packs[sample.pack as usize],
        }
    }

    fn label(&self, sample: &Sample) -> usize {
        self.packs[sample.pack as usize].labels()[sample.row as usize]
    }

    fn features(&self, samples: &[Sample]) -> Result<Features<'static>> {
        let same = |a: &Sample, b: &Sample| (a.pack, a.stranger) == (b.pack, b.stranger);
        let mut data = Vec::new();
        let dim = self.packs[0].pack.dim();
        for group in samples.chunk_by(same) {
            let rows: Vec<usize> = group.iter().map(|s| s.row as usize).collect();
            let pack = &self.dataset(&group[0]).pack;
            let part = pack.select(&rows, false).map_err(|e| pack.named(e))?;
            if group.len() == samples.len() {
                return Ok(part);
            }
            data.extend_from_slice(part.data());
        }
        Features::new(data, dim)
    }

    /// Views where every sample's pack has as many.
    fn views(&self, samples: &[Sample]) -> Result<Option<Features<'static>>> {
        let each = samples.first().map_or(0, |s| self.dataset(s).views_each());
        if each == 0 || samples.iter().any(|s| self.dataset(s).views_each() != each) {
            return Ok(None);
        }
        let mut data = Vec::new();
        for sample in samples {
            let views = self.dataset(sample).views(&[sample.row as usize])?;
            data.extend_from_slice(views.as_ref().map_or(&[], |v| v.data()));
        }
        Features::new(data, self.packs[0].pack.dim()).map(Some)
    }
}

/// Times steps; in a compute-aware protocol, decides which samples the method misses.
struct Clock {
    compute: Option<(f64, Option<f64>)>,
    block: usize,
    steps: Vec<f64>,
    samples: usize,
    busy_until: f64,
}

impl Clock {
    fn new(compute: Option<(f64, Option<f64>)>, block: usize) -> Self {
        Self { compute, block, steps: Vec::new(), samples: 0, busy_until: 0.0 }
    }

    /// Whether the method is still at work when this sample arrives.
    fn busy(&self, index: usize) -> bool {
        self.compute.is_some_and(|(rate, _)| (index as f64) / rate < self.busy_until)
    }

    fn worked(&mut self, seconds: f64, first: usize, rows: usize) {
        self.steps.push(seconds);
        self.samples += rows;
        if let Some((rate, cost)) = self.compute {
            let seconds = cost.map_or(seconds, |us| us * 1e-6 * rows as f64);
            self.busy_until = (first + rows - 1) as f64 / rate + seconds;
        }
    }

    fn timing(mut self) -> Timing {
        let seconds: f64 = self.steps.iter().sum();
        self.steps.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let last = self.steps.len().saturating_sub(1);
            self.steps.get((last as f64 * q).round() as usize).copied().unwrap_or(0.0) * 1e6
        };
        Timing {
            seconds,
            samples_per_second: if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 },
            rows_per_step: self.block,
            step_p50_us: at(0.5),
            step_p99_us: at(0.99),
            ..Timing::default()
        }
    }
}

/// What a session says of itself at the end of a stream.
#[derive(Default)]
struct End {
    max_prior_kl: f64,
    max_movement: f64,
    state_bytes: usize,
    guard_fired: u64,
    admitted_share: f64,
    classes: Vec<ClassDrift>,
}

/// What a classifier told of a sample: logits, the temperature of their probabilities, its answer and how probable
/// that is.
#[derive(Clone, Copy)]
struct Told<'a> {
    logits: &'a [f32],
    tau: f32,
    answer: (usize, f32),
}

impl<'a> Told<'a> {
    /// Read off the logits alone.
    fn of(logits: &'a [f32]) -> Self {
        let s = summary(logits, 1.0);
        Self { logits, tau: 1.0, answer: (s.label, s.prob) }
    }
}

/// Everything that is counted along one run.
struct Tally<'a> {
    job: &'a Job<'a>,
    stream: &'a Stream,
    adapted: Gather,
    zero_shot: Gather,
    /// Scores that tell strangers: adapted and frozen, maximum softmax and energy; known ones, then strangers.
    detection: [[Vec<f32>; 4]; 2],
    flips: Flips,
    helpful: VecDeque<Flip>,
    harmful: VecDeque<Flip>,
    windows: Vec<Window>,
    window: usize,
    /// Labelled samples before each window's start and the running ECEs.
    counted: usize,
    running: [Ece; 2],
    /// Position in the stream of each labelled sample, where the stream has domains.
    places: Vec<usize>,
    place: usize,
    missed: usize,
    health: Option<ultta::Health>,
    probs: Vec<f32>,
    frozen: Vec<f32>,
    /// Sums of the probabilities before the present window: adapted, frozen.
    mass: [Vec<f64>; 2],
    max_answer_kl: f64,
    head: Arc<Head>,
}

impl<'a> Tally<'a> {
    fn new(job: &'a Job<'a>, head: &Arc<Head>, stream: &'a Stream) -> Self {
        let classes = head.n_classes();
        Self {
            job,
            stream,
            adapted: Gather::new(classes),
            zero_shot: Gather::new(classes),
            detection: Default::default(),
            flips: Flips::default(),
            helpful: VecDeque::new(),
            harmful: VecDeque::new(),
            windows: Vec::new(),
            window: (stream.samples.len() / 40).clamp(100, 10_000),
            counted: 0,
            running: [Ece::new(ECE_BINS), Ece::new(ECE_BINS)],
            places: Vec::new(),
            place: 0,
            missed: 0,
            health: None,
            probs: vec![0.0; classes],
            frozen: vec![0.0; classes],
            mass: [vec![0.0; classes], vec![0.0; classes]],
            max_answer_kl: 0.0,
            head: head.clone(),
        }
    }

    /// A sample the method missed.
    fn push_frozen(&mut self, sample: &Sample, zero_shot: &[f32]) {
        self.missed += 1;
        let told = Told::of(zero_shot);
        self.push(sample, told, told);
    }

    fn push(&mut self, sample: &Sample, adapted: Told<'_>, zero_shot: Told<'_>) {
        let place = self.place;
        self.place += 1;
        softmax_from(adapted.logits, adapted.tau, adapted.answer, &mut self.probs);
        softmax_from(zero_shot.logits, zero_shot.tau, zero_shot.answer, &mut self.frozen);
        let (answer, frozen) = (adapted.answer.0, zero_shot.answer.0);
        let against_pack = self.job.in_distribution.is_some();
        if self.job.protocol.open > 0.0 || against_pack {
            let energy = |row: &[f32]| summary(row, 1.0).log_sum;
            let scores =
                [self.probs[answer], energy(adapted.logits), self.frozen[frozen], energy(zero_shot.logits)];
            // Against another pack the whole stream is out of distribution.
            let side = usize::from(sample.stranger || against_pack);
            self.detection[side].iter_mut().zip(scores).for_each(|(all, score)| all.push(score));
        }
        if sample.stranger {
            return;
        }
        let class = self.job.label(sample);
        // −log p from the logits where p itself is too small.
        let log = |probs: &[f32], told: Told<'_>| {
            (probs[class] < 1e-30).then(|| {
                let (row, top) = (told.logits, summary(told.logits, told.tau).label);
                -(probs[top] as f64).ln() + told.tau as f64 * (row[top] as f64 - row[class] as f64)
            })
        };
        let (nll, frozen_nll) = (log(&self.probs, adapted), log(&self.frozen, zero_shot));
        let scored = self.adapted.push(&self.probs, answer, class, nll);
        let frozen_scored = self.zero_shot.push(&self.frozen, frozen, class, frozen_nll);
        self.running[0].push(scored.confidence as f64, scored.right);
        self.running[1].push(frozen_scored.confidence as f64, frozen_scored.right);
        if !self.stream.shifts.is_empty() {
            self.places.push(place);
        }
        if answer != frozen {
            self.note_flip(sample, class, answer, frozen);
        }
    }

    /// Confidence on the in-distribution pack, as the session stands at the end of the stream.
    fn ask_in_distribution(&mut self, session: &Session, pack: &Pack) -> Result<()> {
        for start in (0..pack.rows()).step_by(BLOCK) {
            let rows = pack.read(start..pack.rows().min(start + BLOCK), false).map_err(|e| pack.named(e))?;
            let step = session.predict(&rows)?;
            for (i, row) in step.rows.iter().enumerate() {
                let logits = step.prediction.calibrated.as_ref().unwrap_or(&step.prediction.scores).row(i);
                let energy = |row: &[f32]| summary(row, 1.0).log_sum;
                let scores = [row.prob, energy(logits), row.zero_shot.prob, energy(step.zero_shot.row(i))];
                self.detection[0].iter_mut().zip(scores).for_each(|(all, score)| all.push(score));
            }
        }
        Ok(())
    }

    fn note_flip(&mut self, sample: &Sample, class: usize, answer: usize, frozen: usize) {
        let kept = match (frozen == class, answer == class) {
            (false, true) => {
                self.flips.helpful += 1;
                &mut self.helpful
            }
            (true, false) => {
                self.flips.harmful += 1;
                &mut self.harmful
            }
            _ => {
                self.flips.neutral += 1;
                return;
            }
        };
        let name = |c: usize| self.head.classes()[c].clone();
        let id = match self.job.packs.len() {
            1 => sample.row.to_string(),
            _ => format!("{}:{}", self.job.dataset(sample).name, sample.row),
        };
        kept.push_back(Flip { id, class: name(class), zero_shot: name(frozen), adapted: name(answer) });
        if kept.len() > EXAMPLES {
            kept.pop_front();
        }
    }

    /// Notes a window once it is full, or the stream has ended.
    fn close_window(&mut self, done: usize) {
        let begun = self.windows.last().map_or(0, |w| w.end);
        if done - begun < self.window && done < self.stream.samples.len() {
            return;
        }
        let fresh = &self.adapted.scored()[self.counted..];
        let frozen = &self.zero_shot.scored()[self.counted..];
        let n = fresh.len();
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n.max(1) as f64;
        self.windows.push(Window {
            end: done,
            n,
            top1: mean(&mut fresh.iter().map(|s| f64::from(s.right))),
            zero_shot_top1: mean(&mut frozen.iter().map(|s| f64::from(s.right))),
            confidence: mean(&mut fresh.iter().map(|s| s.confidence as f64)),
            ece: self.running[0].value(),
            zero_shot_ece: self.running[1].value(),
            prior_kl: self.health.map_or(0.0, |h| h.prior_kl),
            movement: self.health.map_or(0.0, |h| h.movement_max),
            tau_cal: self.health.map_or(1.0, |h| h.tau_cal),
        });
        self.counted += n;
        let own = [&self.adapted, &self.zero_shot].map(|g| g.mass().to_vec());
        let fresh = |i: usize| own[i].iter().zip(&self.mass[i]).map(|(now, before)| now - before).collect();
        self.max_answer_kl = self.max_answer_kl.max(divergence(&[fresh(0), fresh(1)]));
        self.mass = own;
    }

    fn finish(mut self, end: End) -> (Summary, Vec<Window>) {
        let full = |w: &&Window| w.n * 2 >= self.window && w.n > 0;
        let tops = |value: fn(&Window) -> f64| self.windows.iter().filter(full).map(value);
        let worst = |value| tops(value).fold(1.0f64, f64::min);
        let course = Course {
            window: self.window,
            first: self.windows.first().map_or(0.0, |w| w.top1),
            last: self.windows.iter().rfind(full).map_or(0.0, |w| w.top1),
            worst: worst(|w| w.top1),
            zero_shot_worst: worst(|w| w.zero_shot_top1),
            domains: self.domains(),
        };
        let collapsed = self
            .windows
            .iter()
            .filter(full)
            .any(|w| w.top1 < 0.5 * w.zero_shot_top1 && w.zero_shot_top1 > 0.1);
        let stability = Stability {
            max_prior_kl: end.max_prior_kl,
            max_movement: end.max_movement,
            accuracy_drop: self.drop(),
            collapsed,
            max_answer_kl: self.max_answer_kl,
        };
        let mut flips = std::mem::take(&mut self.flips);
        flips.examples = self.harmful.iter().chain(&self.helpful).cloned().collect();
        let summary = Summary {
            dataset: self.job.dataset.clone(),
            method: self.job.method.name.clone(),
            protocol: self.job.protocol.name().to_string(),
            seed: self.job.seed,
            n: self.adapted.scored().len(),
            classes: self.head.n_classes(),
            quality: self.adapted.quality(),
            zero_shot: self.zero_shot.quality(),
            intervals: bootstrap(self.adapted.scored(), self.zero_shot.scored(), self.job.seed),
            flips,
            course,
            stability,
            open: self.open(),
            admitted_share: end.admitted_share,
            state_bytes: end.state_bytes,
            guard_fired: end.guard_fired,
            missed: self.missed,
            labels_used: 0,
            reliability: self.adapted.bins().to_vec(),
            zero_shot_reliability: self.zero_shot.bins().to_vec(),
            drift: self.drift(&end.classes),
            cost: None,
        };
        (summary, self.windows)
    }

    /// Gain over zero-shot in the last tenth minus the gain in the first tenth.
    fn drop(&self) -> f64 {
        let n = self.adapted.scored().len();
        let tenth = (n / 10).max(1).min(n);
        let gain = |range: std::ops::Range<usize>| {
            let right = |g: &Gather| g.scored()[range.clone()].iter().filter(|s| s.right).count() as f64;
            (right(&self.adapted) - right(&self.zero_shot)) / range.len().max(1) as f64
        };
        gain(n - tenth..n) - gain(0..tenth)
    }

    fn open(&self) -> Option<Open> {
        let [known, strangers] = &self.detection;
        let of = |i: usize| Detection::of(&known[i], &strangers[i]);
        Some(Open {
            strangers: strangers[0].len(),
            max_softmax: of(0)?,
            energy: of(1)?,
            zero_shot_max_softmax: of(2)?,
            zero_shot_energy: of(3)?,
            max_softmax_intervals: DetectionIntervals::of(&known[0], &strangers[0], self.job.seed),
            energy_intervals: DetectionIntervals::of(&known[1], &strangers[1], self.job.seed),
        })
    }

    fn domains(&self) -> Vec<Domain> {
        let ends = self.stream.shifts.iter().skip(1).map(|s| s.0).chain([self.stream.samples.len()]);
        let domain = |((start, name), end): (&(usize, String), usize)| {
            let first = self.places.partition_point(|p| *p < *start);
            let last = self.places.partition_point(|p| *p < end);
            let (adapted, frozen) =
                (&self.adapted.scored()[first..last], &self.zero_shot.scored()[first..last]);
            let share = |s: &[crate::metrics::Scored]| {
                s.iter().filter(|s| s.right).count() as f64 / s.len().max(1) as f64
            };
            let settled = share(&adapted[adapted.len() / 2..]);
            let recovery = (RECOVERY_WINDOW..=adapted.len())
                .find(|&i| share(&adapted[i - RECOVERY_WINDOW..i]) >= settled - 0.01);
            Domain {
                name: name.clone(),
                n: adapted.len(),
                top1: share(adapted),
                zero_shot_top1: share(frozen),
                recovery,
            }
        };
        self.stream.shifts.iter().zip(ends).map(domain).collect()
    }

    /// The classes whose prototype moved most, or whose prior did.
    fn drift(&self, classes: &[ClassDrift]) -> Vec<ClassStory> {
        let uniform = 1.0 / classes.len().max(1) as f64;
        let story = |(class, d): (usize, &ClassDrift)| {
            let recall = |g: &Gather| {
                let (n, right) = g.per_class()[class];
                right as f64 / f64::from(n.max(1))
            };
            ClassStory {
                class: self.head.classes()[class].clone(),
                movement: d.movement,
                prior: d.prior,
                evidence: d.evidence,
                n: self.adapted.per_class()[class].0,
                recall: recall(&self.adapted),
                zero_shot_recall: recall(&self.zero_shot),
            }
        };
        let mut stories: Vec<ClassStory> = classes.iter().enumerate().map(story).collect();
        let shift = |s: &ClassStory| s.movement + (s.prior.max(1e-12) / uniform).ln().abs();
        stories.sort_by(|a, b| shift(b).total_cmp(&shift(a)).then(a.class.cmp(&b.class)));
        stories.truncate(EXAMPLES);
        stories
    }
}

/// KL of the first mass from the second, both scaled to one.
fn divergence([p, q]: &[Vec<f64>; 2]) -> f64 {
    let (n, m) = (p.iter().sum::<f64>().max(1e-300), q.iter().sum::<f64>().max(1e-300));
    let term = |(p, q): (&f64, &f64)| {
        let (p, q) = (p / n, (q / m).max(1e-12));
        if p > 0.0 { p * (p / q).ln() } else { 0.0 }
    };
    p.iter().zip(q).map(term).sum::<f64>().max(0.0)
}
