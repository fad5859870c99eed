//! [`Plan`]: every protocol × dataset × method × seed, run in parallel, each in a folder of its own.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ultta::{Error, Result};

use crate::dataset::Dataset;
use crate::method::Method;
use crate::pack::Pack;
use crate::protocol::Protocol;
use crate::refused::{Refused, Why};
pub use crate::run::Ran;
use crate::run_folder::{self, RunFolder};
use crate::stream::{NO_STRANGERS, strangers};
use crate::summary::{Made, Run};

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
    /// A run that takes longer is given up, with the further seeds of its cell; its cell in the tables says so.
    pub patience: Option<Duration>,
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
    /// A run has answered this many samples more.
    fn advanced(&self, _worker: usize, _samples: usize) {}
    /// Whether to give up; asked after every block.
    fn gives_up(&self) -> bool {
        false
    }
    /// A run is done, or was done before.
    fn finished(&self, _worker: usize, _job: &Job<'_>, _fresh: bool) {}
}

/// Progress that nobody watches.
impl Progress for () {}

/// What came of a plan.
pub struct Outcome {
    /// All runs, in the plan's order.
    pub runs: Vec<Run>,
    /// How many of the runs had been made before.
    pub reused: usize,
    /// How many of those by another build of the program: what it does may have changed since.
    pub other_build: usize,
    /// What could not be run, and why.
    pub skipped: Vec<String>,
    /// The refusals that are cells of the tables.
    pub refused: Vec<Refused>,
}

impl Plan {
    /// Every run of the plan, those that cannot be made with their reasons.
    pub fn jobs(&self) -> (Vec<Job<'_>>, Vec<String>) {
        let (jobs, refused) = self.cells();
        (jobs, told(&refused))
    }

    /// Every run of the plan, and methods that cannot run somewhere.
    fn cells(&self) -> (Vec<Job<'_>>, Vec<Refused>) {
        let (mut jobs, mut refused) = (Vec::new(), Vec::new());
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
                let alone = protocol.open > 0.0 && strangers(packs[0], &others).is_empty();
                let applies = || alone.then(|| (Why::Strangers, NO_STRANGERS.to_string()));
                for method in &self.methods {
                    let too_large = || self.does_not_fit(method, protocol, &packs, &others);
                    let lacking = || lacks(method, protocol, &packs).or_else(too_large);
                    if let Some((why, reason)) = applies().or_else(lacking) {
                        let (protocol, dataset) = (protocol.name().to_string(), dataset.clone());
                        refused.push(Refused { protocol, dataset, method: method.name.clone(), why, reason });
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
        (jobs, refused)
    }

    /// The reason, with the number of bytes, if a stream makes a method keep more bytes or samples than it may; else `None`.
    fn does_not_fit(
        &self,
        method: &Method,
        protocol: &Protocol,
        packs: &[&Dataset],
        others: &[&Dataset],
    ) -> Option<(Why, String)> {
        if method.pictures.is_some() || method.card().bytes.is_none() {
            return None;
        }
        let seed = self.seeds.first().copied().unwrap_or(0);
        let rows = protocol.stream(packs, others, seed).ok()?.samples.len() as u64;
        let error = method.config.method.check_memory(&packs[0].head, rows).err()?;
        let samples = matches!(&error, Error::Config { key, .. } if key.ends_with(".max_samples"));
        Some((if samples { Why::Samples } else { Why::Memory }, error.to_string()))
    }

    /// Carries the plan out. The first error stops it; finished runs stay on disk.
    pub fn run(&self, progress: &dyn Progress) -> Result<Outcome> {
        let (jobs, mut refused) = self.cells();
        for one in &refused {
            one.write(&run_folder::cell(&self.out, &one.protocol, &one.dataset, &one.method))?;
        }
        let slow = Mutex::new(Vec::new());
        let work = |worker: usize, i: usize| self.run_or_reuse(&jobs[i], worker, &slow, progress);
        let done = in_parallel(jobs.len(), self.jobs, work)?;
        let slow = slow.into_inner().expect("no panics");
        refused.extend(slow);
        let skipped = told(&refused);
        let done: Vec<(Run, bool)> = done.into_iter().flatten().collect();
        let before = || done.iter().filter(|(_, fresh)| !fresh).map(|(run, _)| run);
        let own = Made::now().built;
        let other = |run: &&Run| run.made.as_ref().is_none_or(|made| made.built != own);
        let (reused, other_build) = (before().count(), before().filter(other).count());
        let runs = done.into_iter().map(|(run, _)| run).collect();
        Ok(Outcome { runs, reused, other_build, skipped, refused })
    }

    /// A run, and whether it was made just now; `None` if it was given up.
    fn run_or_reuse(
        &self,
        job: &Job<'_>,
        worker: usize,
        slow: &Mutex<Vec<Refused>>,
        progress: &dyn Progress,
    ) -> Result<Option<(Run, bool)>> {
        let folder = RunFolder::of(job, &self.out);
        let stream = job.protocol.stream(&job.packs, &job.others, job.seed)?;
        let config = run_folder::config_text(job, &stream)?;
        if let Some(run) = folder.finished(&config) {
            progress.finished(worker, job, false);
            return Ok(Some((run, false)));
        }
        let (protocol, dataset, method) = (job.protocol.name(), &job.dataset, &job.method.name);
        let same = |r: &Refused| r.protocol == protocol && r.dataset == *dataset && r.method == *method;
        if slow.lock().expect("no panics").iter().any(same) {
            progress.finished(worker, job, true);
            return Ok(None);
        }
        folder.check_same_packs(&config)?;
        progress.started(worker, job, stream.samples.len());
        let begun = Instant::now();
        let mut answered = 0;
        let mut too_slow = false;
        let ran = job.run(&stream, |n| {
            progress.advanced(worker, n);
            answered += n;
            too_slow =
                answered < stream.samples.len() && self.patience.is_some_and(|most| begun.elapsed() > most);
            !too_slow && !progress.gives_up()
        });
        let cell = run_folder::cell(&self.out, protocol, dataset, method);
        if too_slow {
            let reason = format!(
                "given up after {:.0} s, {answered} of {} samples",
                begun.elapsed().as_secs_f64(),
                stream.samples.len()
            );
            let (protocol, dataset, method) = (protocol.to_string(), dataset.clone(), method.clone());
            let one = Refused { protocol, dataset, method, why: Why::Time, reason };
            one.write(&cell)?;
            slow.lock().expect("no panics").push(one);
            progress.finished(worker, job, true);
            return Ok(None);
        }
        let ran = ran?;
        folder.write(&config, &ran)?;
        progress.finished(worker, job, true);
        Ok(Some((ran.run, true)))
    }
}

/// Does `pieces` pieces of work, several at a time, and returns their results in order. The first error stops the work.
pub(crate) fn in_parallel<T: Send>(
    pieces: usize,
    workers: usize,
    work: impl Fn(usize, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let done: Mutex<Vec<Option<T>>> = Mutex::new((0..pieces).map(|_| None).collect());
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for worker in 0..workers.clamp(1, pieces.max(1)) {
            let (next, stop, done, failure, work) = (&next, &stop, &done, &failure, &work);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= pieces {
                        break;
                    }
                    match work(worker, i) {
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
    match failure.into_inner().expect("no panics") {
        Some(error) => Err(error),
        None => Ok(done.into_inner().expect("no panics").into_iter().flatten().collect()),
    }
}

/// Each reason once.
fn told(refused: &[Refused]) -> Vec<String> {
    let mut skipped = Vec::new();
    for reason in refused.iter().map(Refused::to_string) {
        if !skipped.contains(&reason) {
            skipped.push(reason);
        }
    }
    skipped
}

/// What a method needs and some pack does not have.
fn lacks(method: &Method, protocol: &Protocol, packs: &[&Dataset]) -> Option<(Why, String)> {
    let (views, pictures) = (method.card().needs_views, method.pictures.is_some());
    let why = if views { Why::Views } else { Why::Pictures };
    let reason = if (views || pictures) && protocol.alters() {
        "it needs views or pictures, and the protocol makes features of which there are none"
    } else if views && packs.iter().any(|d| d.views_each() == 0) {
        "the pack has no views"
    } else if pictures && packs.iter().any(|d| d.pictures.is_none()) {
        "it needs pictures, the pack has features only"
    } else {
        return None;
    };
    Some((why, reason.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Role;
    use crate::summary::Summary;
    use crate::testing::{Made, datasets};

    fn plan(folder: &std::path::Path, packs: &[Made<'_>], protocols: &[&str]) -> Plan {
        Plan {
            datasets: datasets(folder, packs),
            strangers: Vec::new(),
            in_distribution: None,
            methods: vec![Method::resolve("ul-tta", None).unwrap(), Method::resolve("tda", None).unwrap()],
            protocols: protocols.iter().map(|p| p.parse().unwrap()).collect(),
            seeds: vec![0],
            out: folder.join("runs"),
            jobs: 2,
            patience: None,
        }
    }

    #[test]
    fn garbage_counts_nowhere_and_shots_and_nights_have_figures() {
        let folder = tempfile::tempdir().unwrap();
        let protocols = ["iid+garbage:200:noise", "iid+shots:4", "iid+night:50"];
        let runs = plan(folder.path(), &[Made::named("sea")], &protocols).run(&()).unwrap().runs;
        for run in &runs {
            let s = &run.summary;
            let frozen = &runs.iter().find(|r| r.summary.protocol == s.protocol).unwrap().summary.zero_shot;
            assert_eq!(s.zero_shot, *frozen, "the same samples for every method");
            let record = s.record.unwrap();
            let own = s.method == "ul-tta";
            assert_eq!(
                record.scenes == record.rows,
                !(own && s.shots.is_some()),
                "{}: {record:?}",
                s.protocol
            );
            match s.protocol.as_str() {
                "iid+shots:4" => {
                    let shots = s.shots.unwrap();
                    assert_eq!((s.n, shots.n), (1200, 300));
                    assert!(shots.switches.zero_shot <= s.switches.zero_shot);
                    assert!((shots.zero_shot.accuracy - s.zero_shot.top1).abs() < 1e-9);
                }
                "iid+night:50" => {
                    assert_eq!(s.n, 300);
                    let visits: Vec<(&str, usize)> =
                        s.course.domains.iter().map(|d| (d.name.as_str(), d.n)).collect();
                    assert_eq!(visits, [("plain", 50), ("shifted", 50)].repeat(3));
                }
                _ => {
                    let after = s.after_garbage.as_ref().unwrap();
                    assert_eq!((s.n, after.garbage, after.window), (300, 200, 300));
                    assert!((after.worst_gain - (s.quality.top1 - s.zero_shot.top1)).abs() < 1e-9);
                    assert_eq!(record.rows, 500);
                }
            }
        }
    }

    #[test]
    fn rows_that_must_not_teach_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let packs = [
            Made::named("sea"),
            Made { learn: |row| row % 3 > 0, ..Made::named("sky") },
            Made { learn: |_| false, ..Made::named("ice") },
        ];
        let plan = plan(folder.path(), &packs, &["iid", "iid+garbage:50:noise"]);
        for job in plan.jobs().0 {
            let made = packs.iter().find(|made| made.name == job.dataset).unwrap();
            let samples = job.protocol.stream(&job.packs, &job.others, job.seed).unwrap().samples;
            let learn = job.learn(&samples);
            assert_eq!(learn.is_none(), made.name == "sea");
            for (sample, may) in samples.iter().zip(learn.into_iter().flatten()) {
                assert_eq!(may, sample.role == Role::Garbage || (made.learn)(sample.row as usize));
            }
        }
        let runs = plan.run(&()).unwrap().runs;
        let admitted = |pack: &str| -> Vec<f64> {
            let of_pack = |s: &&Summary| s.protocol == "iid" && s.dataset == pack;
            let summaries = runs.iter().map(|run| &run.summary).filter(of_pack);
            summaries.map(|s| s.admitted_share).collect()
        };
        assert!(admitted("sea")[0] > admitted("sky")[0], "{:?}, {:?}", admitted("sea"), admitted("sky"));
        assert_eq!(admitted("ice"), [0.0, 0.0]);
    }

    #[test]
    fn runs_of_another_build_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), &[Made::named("sea")], &["iid"]);
        let first = plan.run(&()).unwrap();
        assert_eq!((first.runs.len(), first.reused, first.other_build), (2, 0, 0));
        let cell = run_folder::cell(&plan.out, "iid", &first.runs[0].summary.dataset, "tda");
        let made = cell.join("seed-0/made.json");
        let mut old: crate::made::Made =
            serde_json::from_str(&std::fs::read_to_string(&made).unwrap()).unwrap();
        old.built = "2000-01-01 00:00 UTC".into();
        std::fs::write(&made, serde_json::to_string(&old).unwrap()).unwrap();
        let again = plan.run(&()).unwrap();
        assert_eq!((again.reused, again.other_build), (2, 1));
    }

    #[test]
    fn a_run_that_would_not_fit_is_refused_with_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(folder.path(), &[Made::named("sea")], &["iid", "iid+cycle:100"]);
        let small = |name, file| Method::resolve(name, Some(file)).unwrap();
        plan.methods = vec![
            small("ecalp", "[method.ecalp]\nmax_samples = 100"),
            small("dota", "[method.dota]\nmax_bytes = 100"),
        ];
        let (jobs, skipped) = plan.jobs();
        let kept: Vec<String> = jobs.iter().map(|j| format!("{} {}", j.method.name, j.protocol)).collect();
        assert_eq!(kept, ["ecalp iid+cycle:100"]);
        assert_eq!(skipped.len(), 3, "{skipped:?}");
        assert!(skipped.iter().all(|s| s.contains("bytes")), "{skipped:?}");
        let why: Vec<Why> = plan.cells().1.iter().map(|refused| refused.why).collect();
        assert_eq!(why, [Why::Samples, Why::Memory, Why::Memory]);
    }

    #[test]
    fn a_run_that_takes_too_long_is_given_up_and_its_cell_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(folder.path(), &[Made::named("sea")], &["iid"]);
        (plan.jobs, plan.seeds, plan.patience) = (1, vec![0, 1], Some(Duration::ZERO));
        let outcome = plan.run(&()).unwrap();
        assert!(outcome.runs.is_empty() && outcome.refused.len() == 2, "{:?}", outcome.refused);
        assert!(outcome.skipped.iter().all(|s| s.contains("given up after")), "{:?}", outcome.skipped);
        let found = crate::report::read(&plan.out).unwrap();
        assert!(found.runs.is_empty() && found.refused.len() == outcome.refused.len());
        assert!(found.refused.iter().all(|refused| outcome.refused.contains(refused)), "{:?}", found.refused);
        // Without a limit one method is run again and finishes; the table says why the other has no figure.
        plan.patience = None;
        plan.methods.truncate(1);
        plan.run(&()).unwrap();
        let found = crate::report::read(&plan.out).unwrap();
        let runs: Vec<Run> = found.runs.into_iter().map(|(run, _)| run).collect();
        let methods: Vec<&str> = found.refused.iter().map(|r| r.method.as_str()).collect();
        assert_eq!((runs.len(), methods), (2, vec!["tda"]));
        let tables = crate::report::markdown(&runs, &found.refused);
        assert!(tables.contains("tda (time): 1 stream of sea; given up after"), "{tables}");
    }

    #[test]
    fn strangers_are_of_the_same_encoder_or_the_cell_is_not_applicable() {
        let folder = tempfile::tempdir().unwrap();
        let packs = [
            Made::named("sea"),
            Made::named("sky"),
            Made { encoder: "other", ..Made::named("alone") },
            Made { class: "alone", encoder: "other", ..Made::named("twin") },
        ];
        let plan = plan(folder.path(), &packs, &["iid+open:0.5"]);
        let outcome = plan.run(&()).unwrap();
        let ran: Vec<&str> = outcome.runs.iter().map(|r| r.summary.dataset.as_str()).collect();
        assert_eq!(ran, ["sea", "sea", "sky", "sky"]);
        assert_eq!(outcome.runs[0].summary.open.unwrap().strangers, 300);
        assert_eq!(outcome.skipped.len(), 2);
        assert!(outcome.skipped[0].contains("alone: not applicable: no strangers"), "{:?}", outcome.skipped);
        // The folder of the runs says so, too, and so do the tables.
        let found = crate::report::read(&plan.out).unwrap();
        let cells: Vec<(&str, Why)> = found.refused.iter().map(|r| (r.dataset.as_str(), r.why)).collect();
        assert_eq!(
            cells,
            [
                ("alone", Why::Strangers),
                ("alone", Why::Strangers),
                ("twin", Why::Strangers),
                ("twin", Why::Strangers)
            ]
        );
        let tables = crate::report::markdown(&outcome.runs, &outcome.refused);
        assert!(
            tables.contains("ul-tta (not applicable): 2 streams of alone, twin; no strangers"),
            "{tables}"
        );
    }
}
