//! [`Plan`]: every protocol × dataset × method × seed, run in parallel, each in a folder of its own.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ultta::{Error, Result};

use crate::dataset::Dataset;
use crate::method::Method;
use crate::pack::Pack;
use crate::protocol::Protocol;
use crate::run_folder::{self, RunFolder};
use crate::summary::Run;

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
            let groups: Vec<Vec<&Dataset>> = if protocol.spans_packs() {
                vec![self.datasets.iter().collect()]
            } else {
                self.datasets.iter().map(|d| vec![d]).collect()
            };
            for packs in groups {
                let dataset = packs.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join("+");
                let own = |d: &&Dataset| packs.iter().any(|p| std::ptr::eq(*p, *d));
                let others: Vec<&Dataset> =
                    self.datasets.iter().chain(&self.strangers).filter(|d| !own(d)).collect();
                for method in &self.methods {
                    if let Some(lacks) = lacks(method, &packs) {
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
        let folder = RunFolder::of(job, &self.out);
        let stream = job.protocol.stream(&job.packs, &job.others, job.seed)?;
        let config = run_folder::config_text(job, &stream)?;
        if let Some(run) = folder.finished(&config) {
            progress.finished(worker, job, false);
            return Ok((run, false));
        }
        folder.check_same_packs(&config)?;
        progress.started(worker, job, stream.samples.len());
        let (summary, windows, timing) = job.run(&stream, |n| {
            progress.advanced(worker, n);
            !progress.gives_up()
        })?;
        folder.write(&config, &summary, &windows, &timing)?;
        progress.finished(worker, job, true);
        Ok((Run { summary, timing }, true))
    }
}

/// What a method needs and some pack does not have.
fn lacks(method: &Method, packs: &[&Dataset]) -> Option<&'static str> {
    if method.card().needs_views && packs.iter().any(|d| d.views_each() == 0) {
        Some("the pack has no views")
    } else if method.pictures.is_some() && packs.iter().any(|d| d.pictures.is_none()) {
        Some("it needs pictures, the pack has features only")
    } else {
        None
    }
}
