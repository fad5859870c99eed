//! `ultta tune`: settings learnt on labelled packs. Random draws, then steps around the best; risk-averse; whole datasets
//! (or encoders) are left out in turn, so that over-fitting shows.
//!
//! ```text
//! for settings drawn at random        { evaluate on every cell }
//! for each fold, around its own best  { evaluate on the cells it is fitted to }     a fold never sees what it leaves out
//! for each fold                       { its best settings on the cells it left out }
//! ```

mod journal;
mod space;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use ultta::{Error, Result};

use crate::dataset::Dataset;
use crate::method::Method;
use crate::plan::{Job, Plan, Progress, in_parallel};
use crate::random::Random;
use crate::run_folder::config_text;
use crate::stream::strangers;

pub use journal::{Evaluated, Journal};
pub use space::{Knob, Point, Scale, Space, tunable};
pub use written::{Fold, Gain, Tuned};

/// Points of top-1 that a nat of NLL is worth to an objective.
const NAT: f64 = 10.0;
/// The most that a cell counts, in points, up or down: a head that is ruined by noise may gain fifteen nats.
const MOST: f64 = 20.0;
/// The share of the cells, the worst ones, whose losses a risk-averse objective takes off.
const WORST_SHARE: f64 = 0.1;
/// First and last length of the steps around the best, as a share of a setting's range.
const STEPS: (f64, f64) = (0.2, 0.03);

/// What settings are to be good at. All are means over cells: a pack under a protocol, the mean over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Gain in top-1 (points) and NLL (10 points a nat), minus what the worst tenth of the cells lose.
    #[default]
    Risk,
    /// The mean gain in top-1 and NLL, without taking off losses.
    Mean,
    /// Gain in top-1.
    Top1,
    /// Gain in NLL.
    Nll,
}

/// What is left out in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaveOut {
    /// All packs of a dataset.
    #[default]
    Dataset,
    /// All packs of an encoder.
    Encoder,
}

/// A search.
pub struct Tune {
    /// Packs, protocols and seeds; its one method is the one to tune, from whose settings the search starts.
    pub plan: Plan,
    /// What settings are to be good at.
    pub objective: Objective,
    /// What is left out in turn.
    pub leave_out: LeaveOut,
    /// Settings tried for each fold: half of them drawn at random, half around the best.
    pub trials: usize,
    /// No new settings are tried after this time.
    pub budget: Option<Duration>,
    /// Streams are cut to this many samples that count.
    pub rows: Option<usize>,
    /// Decides which settings are tried.
    pub seed: u64,
    /// Where evaluations are noted, and found again.
    pub journal: PathBuf,
}

/// What a fold knows while the search goes on. It is fitted to all cells but those it leaves out.
struct Search {
    name: Option<String>,
    fit: Vec<usize>,
    out: Vec<usize>,
    best: Point,
    score: f64,
}

/// Evaluations by settings and job.
struct Evaluations<'a> {
    tune: &'a Tune,
    space: &'a Space,
    jobs: &'a [Job<'a>],
    journal: Journal,
    known: HashMap<(String, usize), Evaluated>,
}

impl Tune {
    /// Carries the search out. The same seed and number of trials give the same settings.
    pub fn run(&self, progress: &dyn Progress) -> Result<Tuned> {
        let started = Instant::now();
        let within = |share: f64| self.budget.is_none_or(|budget| started.elapsed() < budget.mul_f64(share));
        let space = Space::of(self.plan.methods[0].clone())?;
        let (mut jobs, skipped) = self.plan.jobs();
        if jobs.is_empty() {
            let reasons = format!("there is nothing to evaluate: {}", skipped.join("; "));
            return Err(Error::Config { key: "tune".into(), reason: reasons });
        }
        let mut folds = self.folds(&mut jobs, &space);
        let journal = Journal::open(&self.journal)?;
        let mut evaluations =
            Evaluations { tune: self, space: &space, jobs: &jobs, journal, known: HashMap::new() };
        let all: Vec<usize> = (0..jobs.len()).collect();
        let mut random = Random::new(self.seed);
        let drawn = self.trials.div_ceil(2).max(1);
        let mut trials = 0;
        for trial in 0..drawn {
            let point = if trial == 0 { space.start() } else { space.draw(&mut random) };
            // The settings at the start are always among those tried.
            let whole = evaluations.make(&[(&point, &all)], &|| trial == 0 || within(0.5), progress)?;
            if !whole {
                break;
            }
            folds.iter_mut().for_each(|fold| fold.consider(&point, &evaluations));
            trials += 1;
        }
        let rounds = self.trials - drawn.min(self.trials);
        for round in 0..rounds {
            let step = STEPS.0 + (STEPS.1 - STEPS.0) * round as f64 / rounds as f64;
            let near = |fold: &Search| {
                // The same draws for every fold: folds with the same best try the same settings.
                space.near(&fold.best, step, &mut Random::new(self.seed ^ ((round as u64 + 1) << 20)))
            };
            let points: Vec<Point> = folds.iter().map(near).collect();
            let wanted: Vec<(&Point, &[usize])> =
                points.iter().zip(&folds).map(|(point, fold)| (point, fold.fit.as_slice())).collect();
            if !evaluations.make(&wanted, &|| within(1.0), progress)? {
                break;
            }
            folds.iter_mut().zip(&points).for_each(|(fold, point)| fold.consider(point, &evaluations));
            trials += 1;
        }
        let left: Vec<(&Point, &[usize])> =
            folds.iter().map(|fold| (&fold.best, fold.out.as_slice())).collect();
        evaluations.make(&left, &|| true, progress)?;
        self.tuned(&space, &folds, &evaluations, trials, skipped)
    }

    /// How many evaluations a search makes at most. Folds whose best settings are the same share theirs.
    pub fn most_evaluations(&self) -> Result<usize> {
        let space = Space::of(self.plan.methods[0].clone())?;
        let (mut jobs, _) = self.plan.jobs();
        let folds = self.folds(&mut jobs, &space);
        let drawn = self.trials.div_ceil(2).max(1);
        let over = |part: fn(&Search) -> usize| folds.iter().map(part).sum::<usize>();
        Ok(drawn * jobs.len()
            + (self.trials.max(drawn) - drawn) * over(|f| f.fit.len())
            + over(|f| f.out.len()))
    }

    /// The first fold is fitted to everything, each further one leaves something out. Strangers that a fold would draw from
    /// packs it leaves out it draws from others: such streams are jobs of their own, behind those of the plan.
    fn folds<'a>(&self, jobs: &mut Vec<Job<'a>>, space: &Space) -> Vec<Search> {
        let group = |d: &Dataset| match self.leave_out {
            LeaveOut::Dataset => d.family().to_string(),
            LeaveOut::Encoder => d.encoder().unwrap_or("encoder unknown").to_string(),
        };
        let groups: BTreeSet<String> = self.plan.datasets.iter().map(group).collect();
        let planned = jobs.len();
        let mut fold = |name: Option<String>| {
            let is_left = |d: &&Dataset| name.as_ref() == Some(&group(d));
            let (mut fit, mut out) = (Vec::new(), Vec::new());
            for i in 0..planned {
                let job = &jobs[i];
                if job.packs.iter().any(is_left) {
                    out.push(i);
                } else if job.protocol.open > 0.0 && job.others.iter().any(is_left) {
                    let others: Vec<&'a Dataset> =
                        job.others.iter().copied().filter(|d| !is_left(d)).collect();
                    if !strangers(job.packs[0], &others).is_empty() {
                        fit.push(jobs.len());
                        jobs.push(Job { others, ..job.clone() });
                    }
                } else {
                    fit.push(i);
                }
            }
            Search { name, fit, out, best: space.start(), score: f64::NEG_INFINITY }
        };
        let folds: Vec<Search> =
            std::iter::once(None).chain(groups.into_iter().map(Some)).map(&mut fold).collect();
        let whole = |fold: &Search| !fold.fit.is_empty() && (fold.name.is_none() || !fold.out.is_empty());
        folds.into_iter().filter(whole).collect()
    }

    fn tuned(
        &self,
        space: &Space,
        folds: &[Search],
        evaluations: &Evaluations<'_>,
        trials: usize,
        skipped: Vec<String>,
    ) -> Result<Tuned> {
        let start = space.start();
        let fold = |search: &Search| -> Result<Fold> {
            let gain = |point: &Point, cells: &[usize]| Gain::of(&evaluations.cells(point, cells));
            Ok(Fold {
                name: search.name.clone(),
                settings: space.settings(&search.best),
                method: space.method(&search.best)?,
                fitted: gain(&search.best, &search.fit),
                fitted_before: gain(&start, &search.fit),
                left_out: gain(&search.best, &search.out),
                left_out_before: gain(&start, &search.out),
            })
        };
        let mut folds = folds.iter().map(fold).collect::<Result<Vec<Fold>>>()?.into_iter();
        let whole = folds.next().expect("the first fold is fitted to everything");
        let other_build = evaluations.journal.other_build();
        Ok(Tuned { whole, folds: folds.collect(), trials, skipped, other_build })
    }
}

impl Search {
    fn consider(&mut self, point: &Point, evaluations: &Evaluations<'_>) {
        let score = evaluations.tune.objective.of(&evaluations.cells(point, &self.fit));
        if score > self.score {
            (self.best, self.score) = (point.clone(), score);
        }
    }
}

impl Evaluations<'_> {
    /// Evaluates what is not known yet; false if time ran out before all was.
    fn make(
        &mut self,
        wanted: &[(&Point, &[usize])],
        goes_on: &(dyn Fn() -> bool + Sync),
        progress: &dyn Progress,
    ) -> Result<bool> {
        let mut methods: BTreeMap<String, Method> = BTreeMap::new();
        let mut pieces = BTreeSet::new();
        for (point, jobs) in wanted {
            let name = self.name(point);
            if !methods.contains_key(&name) {
                methods.insert(name.clone(), self.space.method(point)?);
            }
            let fresh = jobs.iter().filter(|job| !self.known.contains_key(&(name.clone(), **job)));
            pieces.extend(fresh.map(|job| (name.clone(), *job)));
        }
        let pieces: Vec<(String, usize)> = pieces.into_iter().collect();
        let work = |worker: usize, i: usize| {
            let (name, job) = &pieces[i];
            if !goes_on() {
                return Ok(None);
            }
            self.evaluate(&Job { method: &methods[name], ..self.jobs[*job].clone() }, worker, progress)
                .map(Some)
        };
        let made = in_parallel(pieces.len(), self.tune.plan.jobs, work)?;
        let whole = made.iter().all(Option::is_some);
        let made = pieces.into_iter().zip(made).filter_map(|(piece, made)| Some((piece, made?)));
        self.known.extend(made);
        Ok(whole)
    }

    fn evaluate(&self, job: &Job<'_>, worker: usize, progress: &dyn Progress) -> Result<Evaluated> {
        let mut stream = job.protocol.stream(&job.packs, &job.others, job.seed)?;
        if let Some(rows) = self.tune.rows {
            stream.limit(rows);
        }
        let key = fingerprint(&config_text(job, &stream)?);
        if let Some(known) = self.journal.get(&key) {
            progress.finished(worker, job, false);
            return Ok(known);
        }
        progress.started(worker, job, stream.samples.len());
        let ran = job.run(&stream, |n| {
            progress.advanced(worker, n);
            !progress.gives_up()
        })?;
        let evaluated = Evaluated::of(&ran.run.summary);
        self.journal.note(&key, evaluated)?;
        progress.finished(worker, job, true);
        Ok(evaluated)
    }

    fn name(&self, point: &Point) -> String {
        self.space.settings(point).iter().map(|(key, value)| format!("{key}={value} ")).collect()
    }

    /// The cells of some jobs: packs under protocols, the mean over seeds.
    fn cells(&self, point: &Point, jobs: &[usize]) -> Vec<Evaluated> {
        let name = self.name(point);
        let mut groups: BTreeMap<(&str, &str), Vec<Evaluated>> = BTreeMap::new();
        for &i in jobs {
            let key = (self.jobs[i].dataset.as_str(), self.jobs[i].protocol.name());
            groups.entry(key).or_default().extend(self.known.get(&(name.clone(), i)));
        }
        let mean = |runs: Vec<Evaluated>| {
            let over = |value: fn(&Evaluated) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
            Evaluated { top1: over(|e| e.top1), nll: over(|e| e.nll), ece: over(|e| e.ece) }
        };
        groups.into_values().filter(|runs| !runs.is_empty()).map(mean).collect()
    }
}

impl Objective {
    /// The objective of some cells' gains; higher is better.
    pub fn of(self, cells: &[Evaluated]) -> f64 {
        let both = |cell: &Evaluated| (cell.top1 + NAT * cell.nll).clamp(-MOST, MOST);
        let mean = |value: &dyn Fn(&Evaluated) -> f64| {
            cells.iter().map(value).sum::<f64>() / cells.len().max(1) as f64
        };
        match self {
            Objective::Top1 => mean(&|cell| cell.top1),
            Objective::Nll => mean(&|cell| cell.nll),
            Objective::Mean => mean(&both),
            Objective::Risk => {
                let mut losses: Vec<f64> = cells.iter().map(|cell| (-both(cell)).max(0.0)).collect();
                losses.sort_by(|a, b| b.total_cmp(a));
                let worst = ((cells.len() as f64 * WORST_SHARE).ceil() as usize).max(1);
                let lost = losses.iter().take(worst).sum::<f64>() / worst as f64;
                mean(&both) - lost
            }
        }
    }
}

/// The start of a SHA-256 of a text.
fn fingerprint(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::{Made, datasets};

    fn tune(folder: &Path, journal: &str, jobs: usize) -> Tune {
        let packs = ["sea", "sky"].map(|name| Made { rows: 120, ..Made::named(name) });
        Tune {
            plan: Plan {
                datasets: datasets(folder, &packs),
                strangers: Vec::new(),
                in_distribution: None,
                methods: vec![Method::resolve("tda", None).unwrap()],
                protocols: ["iid", "sorted", "iid+shots:3"].iter().map(|p| p.parse().unwrap()).collect(),
                seeds: vec![0, 1],
                out: PathBuf::new(),
                jobs,
                patience: None,
            },
            objective: Objective::Risk,
            leave_out: LeaveOut::Dataset,
            trials: 6,
            budget: None,
            rows: Some(100),
            seed: 1,
            journal: folder.join(journal),
        }
    }

    /// Counts evaluations that were made, and gives up after some.
    struct Watch {
        fresh: AtomicUsize,
        most: usize,
    }

    impl Progress for Watch {
        fn finished(&self, _worker: usize, _job: &Job<'_>, fresh: bool) {
            self.fresh.fetch_add(usize::from(fresh), Ordering::Relaxed);
        }
        fn gives_up(&self) -> bool {
            self.fresh.load(Ordering::Relaxed) >= self.most
        }
    }

    fn watch(most: usize) -> Watch {
        Watch { fresh: AtomicUsize::new(0), most }
    }

    #[test]
    fn a_search_is_deterministic_and_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let whole = watch(usize::MAX);
        let one = tune(folder.path(), "one", 1).run(&whole).unwrap();
        let made = whole.fresh.into_inner();
        let three = tune(folder.path(), "three", 3).run(&()).unwrap();
        assert_eq!(one.to_toml("x"), three.to_toml("x"), "whatever the number of workers");
        assert_eq!(one.trials, 6);
        let folds: Vec<Option<&str>> = one.folds.iter().map(|f| f.name.as_deref()).collect();
        assert_eq!(folds, [Some("sea"), Some("sky")]);
        // Stopped half-way, then taken up again: only the rest is evaluated.
        let stopped = watch(made / 2);
        assert!(tune(folder.path(), "torn", 1).run(&stopped).is_err());
        let rest = watch(usize::MAX);
        let resumed = tune(folder.path(), "torn", 1).run(&rest).unwrap();
        assert_eq!(resumed.to_toml("x"), one.to_toml("x"));
        assert_eq!(rest.fresh.into_inner() + made / 2, made);
    }

    #[test]
    fn fitting_does_not_lose_and_folds_are_fitted_without_what_they_leave_out() {
        let folder = tempfile::tempdir().unwrap();
        let tuned = tune(folder.path(), "j", 2).run(&()).unwrap();
        assert!(
            tuned.whole.fitted.objective(Objective::Risk)
                >= tuned.whole.fitted_before.objective(Objective::Risk)
        );
        assert_eq!((tuned.whole.fitted.cells.len(), tuned.whole.left_out.cells.len()), (6, 0));
        for fold in &tuned.folds {
            assert_eq!((fold.fitted.cells.len(), fold.left_out.cells.len()), (3, 3));
            assert!(fold.fitted.objective(Objective::Risk) >= fold.fitted_before.objective(Objective::Risk));
        }
        let text = tuned.to_toml("ultta tune --data packs");
        assert!(text.contains("ultta tune --data packs") && text.contains("left out"), "{text}");
        assert_eq!(ultta::Config::from_toml(&text).unwrap(), tuned.whole.method.config);
    }

    #[test]
    fn a_fold_is_what_a_search_without_the_pack_finds() {
        let folder = tempfile::tempdir().unwrap();
        let both = tune(folder.path(), "both", 2).run(&()).unwrap();
        for (left, fold) in ["sea", "sky"].into_iter().zip(&both.folds) {
            assert_eq!(fold.name.as_deref(), Some(left));
            let mut alone = tune(folder.path(), &format!("without-{left}"), 2);
            alone.plan.datasets.retain(|d| d.name != left);
            let alone = alone.run(&()).unwrap();
            assert!(alone.folds.is_empty(), "one pack cannot be left out");
            assert_eq!(
                (&fold.settings, &fold.fitted),
                (&alone.whole.settings, &alone.whole.fitted),
                "{left}"
            );
        }
    }

    #[test]
    fn folds_draw_no_strangers_from_what_they_leave_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut tune = tune(folder.path(), "j", 2);
        let names = ["sea", "sky", "ice"];
        let packs = names.map(|name| Made { rows: 120, ..Made::named(name) });
        tune.plan.datasets = datasets(folder.path(), &packs);
        tune.plan.protocols = vec!["iid+open:0.3".parse().unwrap()];
        let space = Space::of(tune.plan.methods[0].clone()).unwrap();
        let (mut jobs, _) = tune.plan.jobs();
        let folds = tune.folds(&mut jobs, &space);
        assert_eq!(folds.len(), 4);
        for fold in &folds[1..] {
            let left = fold.name.as_deref().unwrap();
            assert_eq!((fold.fit.len(), fold.out.len()), (4, 2), "two packs, two seeds: {left}");
            for job in fold.fit.iter().map(|&i| &jobs[i]) {
                let seen: Vec<&str> = job.packs.iter().chain(&job.others).map(|d| d.name.as_str()).collect();
                assert!(seen.len() == 2 && !seen.contains(&left), "without {left}: {seen:?}");
            }
        }
        assert!(
            folds[0].fit.iter().all(|&i| jobs[i].others.len() == 2),
            "what is shipped is fitted to everything"
        );
        // Of two packs, the other one has no strangers left: the cell is not part of the fold.
        tune.plan.datasets.pop();
        let (mut jobs, _) = tune.plan.jobs();
        let folds: Vec<Option<String>> = tune.folds(&mut jobs, &space).into_iter().map(|f| f.name).collect();
        assert_eq!(folds, [None]);
    }

    #[test]
    fn nothing_to_evaluate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut tune = tune(folder.path(), "j", 2);
        tune.plan.datasets.pop();
        tune.plan.protocols = vec!["iid+open:0.3".parse().unwrap()];
        assert_eq!(tune.most_evaluations().unwrap(), 0);
        let refused = tune.run(&()).err().unwrap().to_string();
        assert!(refused.contains("nothing to evaluate") && refused.contains("no strangers"), "{refused}");
    }

    #[test]
    fn encoders_are_left_out_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut tune = tune(folder.path(), "j", 2);
        let of = |name, encoder| Made { rows: 120, encoder, ..Made::named(name) };
        let packs = [of("sea", "one"), of("sky", "one"), of("ice", "two"), of("fog", "")];
        tune.plan.datasets = datasets(folder.path(), &packs);
        tune.leave_out = LeaveOut::Encoder;
        let space = Space::of(tune.plan.methods[0].clone()).unwrap();
        let (mut jobs, _) = tune.plan.jobs();
        let folds = tune.folds(&mut jobs, &space);
        let left: Vec<(&str, BTreeSet<&str>)> = folds[1..]
            .iter()
            .map(|f| (f.name.as_deref().unwrap(), f.out.iter().map(|&i| jobs[i].dataset.as_str()).collect()))
            .collect();
        let expected = [("encoder unknown", vec!["fog"]), ("one", vec!["sea", "sky"]), ("two", vec!["ice"])];
        assert_eq!(left, expected.map(|(encoder, packs)| (encoder, packs.into_iter().collect())));
    }

    #[test]
    fn evaluations_of_another_build_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let first = tune(folder.path(), "j", 2).run(&()).unwrap();
        let again = tune(folder.path(), "j", 2).run(&()).unwrap();
        assert_eq!((first.other_build, again.other_build), (0, 0));
        let path = folder.path().join("j");
        let text = std::fs::read_to_string(&path).unwrap();
        let own = crate::made::Made::now().built;
        std::fs::write(&path, text.replacen(&own, "2000-01-01 00:00 UTC", 3)).unwrap();
        assert_eq!(tune(folder.path(), "j", 2).run(&()).unwrap().other_build, 3);
    }

    #[test]
    fn a_search_makes_no_more_evaluations_than_told_before() {
        let folder = tempfile::tempdir().unwrap();
        let (tune, made) = (tune(folder.path(), "j", 2), watch(usize::MAX));
        let most = tune.most_evaluations().unwrap();
        tune.run(&made).unwrap();
        let made = made.fresh.into_inner();
        assert!(made <= most && 2 * made > most, "{made} of at most {most}");
    }

    #[test]
    fn time_that_has_run_out_leaves_the_settings_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let tune = Tune { budget: Some(Duration::ZERO), ..tune(folder.path(), "j", 2) };
        let tuned = tune.run(&()).unwrap();
        assert_eq!((tuned.trials, tuned.whole.settings.len()), (1, 0));
    }

    #[test]
    fn the_worst_cells_weigh() {
        let cell = |top1: f64| Evaluated { top1, nll: 0.0, ece: 0.0 };
        let calm: Vec<Evaluated> = (0..20).map(|_| cell(1.0)).collect();
        let wild: Vec<Evaluated> = (0..20).map(|i| cell(if i == 0 { -10.0 } else { 2.0 })).collect();
        assert!(Objective::Mean.of(&wild) > Objective::Mean.of(&calm));
        assert!(Objective::Risk.of(&wild) < Objective::Risk.of(&calm));
    }
}
