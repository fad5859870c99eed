//! The paper's six tables: what it reports, what comes out here, and the gap. A row whose data are absent says so.
//!
//! A dataset of several domains is one stream, domain after domain in the order of their names, each in its file's own
//! order, without reset and without a second visit, as in the paper; a dataset of one pack is its file's own order.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use ultta::{Config, Error, Result};

use crate::dataset::{Dataset, Heads, find, name_all};
use crate::method::Method;
use crate::pack::Pack;
use crate::plan::{Plan, Progress};
use crate::protocol::Protocol;
use crate::summary::{Run, Summary};
use crate::words::counted;

pub mod batteries;
mod published;

pub use published::{DATASETS, Entry};
use published::{DOMAINNET, EFFICIENCY, STABILITY};

/// The tables, by name.
pub const TABLES: [&str; 6] =
    ["datasets", "domainnet", "per-dataset", "ablations", "efficiency", "stability"];

/// Methods of the paper's tables that change the encoder.
pub const CHANGING: [&str; 2] = ["tent", "cotta"];

/// The methods that the paper has for each dataset, and our own.
const PER_DATASET: [&str; 5] = ["zero-shot", "tent", "freetta", "ul-tta:paper", "ul-tta"];

/// The methods that a table asks for.
pub fn methods_of(table: &str) -> Vec<&'static str> {
    let paper: Vec<&str> = match table {
        "domainnet" => DOMAINNET.iter().map(|row| row.3).collect(),
        "per-dataset" => return PER_DATASET.to_vec(),
        "efficiency" => std::iter::once("zero-shot").chain(EFFICIENCY.iter().map(|row| row.3)).collect(),
        "stability" => STABILITY.iter().map(|row| row.5).collect(),
        _ => return Vec::new(),
    };
    paper.into_iter().chain(["ul-tta"]).collect()
}

/// The dataset of the paper's main table, its ablations and its long stream.
const DOMAINNET_ENTRY: &Entry = &DATASETS[2];
/// Samples of the paper's long stream.
pub const LONG: usize = 200_000;

/// One row of the ablation table.
#[derive(Debug, Deserialize)]
struct Ablation {
    name: String,
    /// The paper's top-1 and ECE.
    paper: [f64; 2],
    settings: BTreeMap<String, String>,
}

fn ablations() -> Result<Vec<Ablation>> {
    #[derive(Deserialize)]
    struct File {
        row: Vec<Ablation>,
    }
    let file: File = toml::from_str(include_str!("ablations.toml"))
        .map_err(|e| Error::Config { key: "ablations".into(), reason: e.to_string() })?;
    Ok(file.row)
}

/// Opens the packs of a dataset: none, one, or one per domain.
pub type Opener<'a> = dyn Fn(&Entry) -> Result<Vec<Dataset>> + 'a;
/// A method that changes the encoder, by name.
pub type Changing<'a> = dyn Fn(&str) -> Result<Method> + 'a;

/// What the suite runs on, where runs go, how many at a time.
pub struct Suite<'a> {
    /// Opens datasets.
    pub datasets: &'a Opener<'a>,
    /// Methods that change the encoder, where pictures and a model are at hand; else how to have them.
    pub changing: std::result::Result<&'a Changing<'a>, String>,
    /// What a forward pass of the encoder costs here; without it overheads stand as they are.
    pub forward: Option<Forward>,
    /// A pack that counts as in-distribution: AUROC tells it from each stream.
    pub in_distribution: Option<PathBuf>,
    /// How an absent dataset is got.
    pub absent: &'a dyn Fn(&Entry) -> String,
    /// Samples of the long stream.
    pub long: usize,
    /// Where run folders go.
    pub out: PathBuf,
    /// Runs at a time.
    pub jobs: usize,
}

/// A forward pass of the image tower, as it was measured.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Name of the encoder.
    pub encoder: String,
    /// Seconds per picture.
    pub seconds: f64,
    /// Operations per picture.
    pub flops: f64,
}

/// Runs on a dataset's stream.
struct Ran {
    runs: Vec<Run>,
    skipped: Vec<String>,
    classes: usize,
    dim: usize,
    /// What a reader must know of the packs.
    note: String,
}

/// The packs of a dataset below a folder: `<dataset>/<encoder>/` or, for datasets of several domains,
/// `<dataset>-<domain>/<encoder>/` and `<dataset>/<domain>/<encoder>/`.
pub fn packs_below(data: &Path, entry: &Entry) -> Result<Vec<Dataset>> {
    if !data.is_dir() {
        return Ok(Vec::new());
    }
    let belongs = |path: &Path| {
        let inside = path.strip_prefix(data).unwrap_or(path);
        let first = inside.components().next().map(|c| c.as_os_str().to_string_lossy().to_lowercase());
        let first = first.unwrap_or_default().replace('_', "-");
        first == entry.folder || first.starts_with(&format!("{}-", entry.folder))
    };
    // `imagenet-r` must not claim `imagenet-r…` packs of another entry.
    let other = |path: &Path| {
        let inside = path.strip_prefix(data).unwrap_or(path).to_string_lossy().to_lowercase();
        DATASETS.iter().any(|e| e.folder.len() > entry.folder.len() && inside.starts_with(e.folder))
    };
    let mut found = find(data, Heads::Main)?;
    found.retain(|(features, _)| belongs(features) && !other(features));
    let mut datasets = Vec::new();
    for (features, head) in &found {
        datasets.push(Dataset::open(features, head)?);
    }
    name_all(&mut datasets)?;
    Ok(datasets)
}

impl Suite<'_> {
    /// One table as Markdown.
    pub fn table(&self, name: &str, progress: &dyn Progress) -> Result<String> {
        match name {
            "datasets" => self.datasets_table(),
            "domainnet" => self.domainnet(progress),
            "per-dataset" => self.per_dataset(progress),
            "ablations" => self.ablations(progress),
            "efficiency" => self.efficiency(progress),
            _ => self.stability(progress),
        }
    }

    /// Methods by name: those that change the encoder where they can be had.
    fn methods(&self, names: &[&str]) -> Result<Vec<Method>> {
        let mut methods = Vec::new();
        for &name in names {
            match (is_changing(name), &self.changing) {
                (true, Ok(changing)) => methods.push(changing(name)?),
                (true, Err(_)) => {}
                (false, _) => methods.push(Method::resolve(name, None)?),
            }
        }
        Ok(methods)
    }

    /// The packs of one encoder, and a note if there are others.
    fn of_one_encoder(&self, entry: &Entry) -> Result<(Vec<Dataset>, String)> {
        let mut groups: BTreeMap<(String, usize), Vec<Dataset>> = BTreeMap::new();
        for dataset in (self.datasets)(entry)? {
            let key = (dataset.encoder().unwrap_or_default().to_string(), dataset.pack.dim());
            groups.entry(key).or_default().push(dataset);
        }
        let names: Vec<String> = groups.keys().map(|(name, dim)| format!("{name} ({dim})")).collect();
        let chosen = groups.into_iter().max_by_key(|(_, packs)| packs.len());
        let Some(((name, dim), mut packs)) = chosen else { return Ok((Vec::new(), String::new())) };
        let own = format!("{name} ({dim})");
        let others: Vec<&str> = names.iter().filter(|n| **n != own).map(String::as_str).collect();
        let note = if others.is_empty() {
            String::new()
        } else {
            format!("{}: packs of {own}; also there, and not run: {}", entry.name, others.join(", "))
        };
        for dataset in &mut packs {
            dataset.name = format!("{}/{}", entry.folder, dataset.name);
        }
        Ok((packs, note))
    }

    /// Runs methods over a dataset as one stream; `None` if it is absent.
    fn runs(
        &self,
        entry: &Entry,
        methods: Vec<Method>,
        addition: &str,
        progress: &dyn Progress,
    ) -> Result<Option<Ran>> {
        let (datasets, note) = self.of_one_encoder(entry)?;
        if datasets.is_empty() {
            return Ok(None);
        }
        let order = if datasets.len() > 1 { "domains" } else { "file" };
        let protocol: Protocol = match format!("{order}{addition}").parse() {
            Ok(protocol) => protocol,
            Err(reason) => return Err(Error::Config { key: "protocol".into(), reason }),
        };
        let (classes, dim) = (datasets[0].head.n_classes(), datasets[0].pack.dim());
        let in_distribution = match &self.in_distribution {
            Some(path) => Some(Pack::open(path, None)?).filter(|pack| pack.dim() == dim),
            None => None,
        };
        let plan = Plan {
            datasets,
            strangers: Vec::new(),
            in_distribution,
            methods,
            protocols: vec![protocol],
            seeds: vec![0],
            out: self.out.clone(),
            // What the model costs is measured: such runs are alone.
            jobs: if self.changing.is_ok() { 1 } else { self.jobs },
            patience: None,
        };
        let outcome = plan.run(progress)?;
        Ok(Some(Ran { runs: outcome.runs, skipped: outcome.skipped, classes, dim, note }))
    }

    /// The runs on DomainNet, else on the first dataset that is there.
    fn main_runs<'e>(
        &self,
        methods: &dyn Fn() -> Result<Vec<Method>>,
        addition: &str,
        progress: &dyn Progress,
    ) -> Result<(Option<Ran>, &'e Entry)> {
        for entry in std::iter::once(DOMAINNET_ENTRY).chain(&DATASETS) {
            if let Some(ran) = self.runs(entry, methods()?, addition, progress)? {
                return Ok((Some(ran), entry));
            }
        }
        Ok((None, DOMAINNET_ENTRY))
    }

    fn datasets_table(&self) -> Result<String> {
        let mut out =
            heading("Datasets", &["dataset", "shift", "classes: paper", "ours", "images: paper", "ours"]);
        for entry in &DATASETS {
            let (packs, _) = self.of_one_encoder(entry)?;
            let rows: usize = packs.iter().map(|d| d.pack.rows()).sum();
            let (classes, rows) = match packs.first() {
                None => ("absent".to_string(), (self.absent)(entry)),
                Some(first) => (
                    first.head.n_classes().to_string(),
                    format!("{rows} in {}", counted(packs.len(), "pack")),
                ),
            };
            let paper = (entry.classes.to_string(), entry.images.to_string());
            line(&mut out, &[entry.name.into(), entry.shift.into(), paper.0, classes, paper.1, rows]);
        }
        Ok(out)
    }

    fn domainnet(&self, progress: &dyn Progress) -> Result<String> {
        let mut out = heading("DomainNet", &RESULT_HEADER);
        let ran = self.runs(DOMAINNET_ENTRY, self.methods(&methods_of("domainnet"))?, "", progress)?;
        let rows = DOMAINNET.iter().map(|(name, top1, ece, ours)| (*name, Some((*top1, *ece)), *ours));
        for (name, paper, ours) in rows.chain([("UL-TTA, default preset", None, "ul-tta")]) {
            line(&mut out, &self.result_row(name, paper, ours, ran.as_ref(), DOMAINNET_ENTRY));
        }
        Ok(out + &notes(&ran, DOMAINNET_ENTRY))
    }

    fn per_dataset(&self, progress: &dyn Progress) -> Result<String> {
        let mut out = heading("Per dataset", &RESULT_HEADER);
        let mut further = String::new();
        for entry in &DATASETS {
            let ran = self.runs(entry, self.methods(&PER_DATASET)?, "", progress)?;
            let labels = ["zero-shot", "Tent", "FreeTTA", "UL-TTA", "UL-TTA, default preset"];
            for (i, (label, name)) in labels.into_iter().zip(PER_DATASET).enumerate() {
                let paper = entry.results.and_then(|r| r.get(i).copied());
                let label = format!("{} · {label}", entry.name);
                line(&mut out, &self.result_row(&label, paper, name, ran.as_ref(), entry));
                if ran.is_none() && entry.results.is_none() {
                    break;
                }
            }
            further.push_str(&notes(&ran, entry));
        }
        Ok(out + &further)
    }

    /// Ours beside the paper's top-1 / ECE, and the gap in points.
    fn result_row(
        &self,
        label: &str,
        paper: Option<(f64, f64)>,
        method: &str,
        ran: Option<&Ran>,
        entry: &Entry,
    ) -> Vec<String> {
        let dash = || "–".to_string();
        let published = paper.map_or_else(dash, |(top1, ece)| format!("{top1:.1} / {ece:.1}"));
        let summary = match self.find(ran, method, entry) {
            Ok(run) => &run.summary,
            Err(why) => return vec![label.into(), published, why, dash(), dash(), dash()],
        };
        let q = &summary.quality;
        let (top1, ece) = (100.0 * q.top1, 100.0 * q.ece);
        let gap = paper.map_or_else(dash, |(t, e)| format!("{:+.1} / {:+.1}", top1 - t, ece - e));
        let auroc = summary.open.map_or_else(dash, |open| format!("{:.1}", 100.0 * open.max_softmax.auroc));
        let ours = format!("{top1:.1} / {ece:.1}");
        vec![label.into(), published, ours, gap, format!("{:.3} / {:.3}", q.nll, q.brier), auroc]
    }

    /// A method's run, or why there is none.
    fn find<'r>(
        &self,
        ran: Option<&'r Ran>,
        method: &str,
        entry: &Entry,
    ) -> std::result::Result<&'r Run, String> {
        let Some(ran) = ran else { return Err((self.absent)(entry)) };
        if let Some(run) = ran.runs.iter().find(|r| r.summary.method == method) {
            return Ok(run);
        }
        if let (true, Err(how)) = (is_changing(method), &self.changing) {
            return Err(how.clone());
        }
        let skipped = ran.skipped.iter().find(|s| s.starts_with(&format!("{method} on ")));
        Err(skipped.cloned().unwrap_or_else(|| "not run".into()))
    }

    fn ablations(&self, progress: &dyn Progress) -> Result<String> {
        let rows = ablations()?;
        let name = |row: &Ablation| {
            format!("ul-tta:paper-{}", row.name.replace('π', "pi").replace('τ', "tau").replace(' ', "-"))
        };
        let variants = || {
            let variant = |row: &Ablation| {
                let settings: Vec<(&str, &str)> =
                    row.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                let mut config = Config::resolve(None, Some("ul-tta"), Some("paper"), &settings)?;
                config.guard.enabled = false;
                Ok(Method { name: name(row), config, pictures: None })
            };
            rows.iter().map(variant).collect::<Result<Vec<_>>>()
        };
        let mut out = String::new();
        let mut any = false;
        for entry in std::iter::once(DOMAINNET_ENTRY).chain(DATASETS.iter().filter(|e| e.name != "DomainNet"))
        {
            let ran = self.runs(entry, variants()?, "", progress)?;
            // DomainNet's row is always there; other datasets serve where they are at hand.
            if ran.is_none() && (any || entry.name != DOMAINNET_ENTRY.name) {
                continue;
            }
            any = true;
            out.push_str(&heading(&format!("Ablations on {}", entry.name), &RESULT_HEADER));
            for row in &rows {
                let paper = (entry.name == DOMAINNET_ENTRY.name).then_some((row.paper[0], row.paper[1]));
                line(&mut out, &self.result_row(&row.name, paper, &name(row), ran.as_ref(), entry));
            }
            out.push_str(&notes(&ran, entry));
        }
        Ok(out)
    }

    fn efficiency(&self, progress: &dyn Progress) -> Result<String> {
        let header = [
            "method",
            "paper: FLOPs, latency",
            "numbers updated",
            "operations per sample over zero-shot's",
            "µs per sample over zero-shot's",
            "FLOPs, latency over a forward pass",
        ];
        let mut out = heading("Efficiency", &header);
        // One run at a time: what is measured is the time. Reports do not read hidden folders: these runs are on a stream
        // that others have run on, and would count as another seed.
        let alone = Suite {
            jobs: 1,
            changing: self.changing.clone(),
            forward: self.forward.clone(),
            in_distribution: None,
            out: self.out.join(".efficiency"),
            ..*self
        };
        let (ran, used) = alone.main_runs(&|| self.methods(&methods_of("efficiency")), "", progress)?;
        let rows = EFFICIENCY
            .iter()
            .map(|(name, flops, latency, ours)| (*name, format!("{flops}, {latency}"), *ours));
        for (name, paper, ours) in rows.chain([("UL-TTA, default preset", "–".into(), "ul-tta")]) {
            let cells =
                match (alone.find(ran.as_ref(), ours, used), alone.find(ran.as_ref(), "zero-shot", used)) {
                    (Ok(run), Ok(zero)) => {
                        self.overhead(run, zero, ran.as_ref().map_or((0, 0), |r| (r.classes, r.dim)), ours)
                    }
                    (Err(why), _) | (_, Err(why)) => [why, "–".into(), "–".into(), "–".into()],
                };
            line(&mut out, &[vec![name.to_string(), paper], cells.to_vec()].concat());
        }
        let about = match &self.forward {
            Some(f) => format!(
                "A forward pass of {}: {:.1} ms and {:.2} GFLOP per picture, measured here before the runs.",
                f.encoder,
                1e3 * f.seconds,
                f.flops / 1e9
            ),
            None => {
                "No forward pass of an encoder was measured; where one is, the last column has shares of it."
                    .into()
            }
        };
        let _ = writeln!(
            out,
            "\n{about} Operations of methods on features are counted from their cards, full memories assumed; those of \
             methods that change the encoder from their passes. Stream: {}.",
            used.name
        );
        Ok(out + &notes(&ran, used))
    }

    /// Numbers updated, operations, microseconds, and both as shares of a forward pass.
    fn overhead(&self, run: &Run, zero: &Run, (classes, dim): (usize, usize), method: &str) -> [String; 4] {
        let (c, d) = (classes as f64, dim as f64);
        let time = |r: &Run| 1.0 / r.timing.samples_per_second.max(1e-9) + r.timing.encode_seconds;
        let seconds = time(run) - time(zero);
        let card = Method::resolve(method, None).ok().and_then(|m| m.card().operations);
        let (updated, operations) = match (&run.summary.cost, is_changing(method)) {
            (Some(cost), true) => {
                let base = zero.summary.cost.and_then(|c| c.flops);
                (cost.parameters.to_string(), cost.flops.zip(base).map(|(own, base)| own - base))
            }
            _ => ("0 of the model".into(), card.map(|count| count(c, d))),
        };
        let share = |of: f64, whole: f64| {
            if whole > 0.0 { format!("{:+.3} %", 100.0 * of / whole) } else { "–".into() }
        };
        let shares = match &self.forward {
            Some(f) => format!(
                "{}, {}",
                operations.map_or("–".into(), |o| share(o, f.flops)),
                share(seconds, f.seconds)
            ),
            None => "–".into(),
        };
        let operations = operations.map_or("–".into(), |o| format!("{:.3} MFLOP", o / 1e6));
        [updated, operations, format!("{:.1}", 1e6 * seconds), shares]
    }

    fn stability(&self, progress: &dyn Progress) -> Result<String> {
        let header = ["method", "paper: collapse, KL, ‖Δt‖, drop", "ours", "samples", "worst domain's gain"];
        let mut out = heading(&format!("Stability over {} samples", self.long), &header);
        let addition = format!("+cycle:{}", self.long);
        let (ran, used) = self.main_runs(&|| self.methods(&methods_of("stability")), &addition, progress)?;
        let rows = STABILITY.iter().map(|(name, collapse, kl, movement, drop, ours)| {
            (*name, format!("{collapse}, {kl}, {movement}, {drop} %"), *ours)
        });
        for (name, paper, ours) in rows.chain([("UL-TTA, default preset", "–".into(), "ul-tta")]) {
            let (value, samples, worst) = match self.find(ran.as_ref(), ours, used) {
                Err(why) => (why, "–".into(), "–".into()),
                Ok(run) => {
                    let s = &run.summary.stability;
                    let collapse = if s.collapsed { "yes" } else { "no" };
                    // Methods that change the encoder have no prior of their own: KL of their answers.
                    let kl = if is_changing(ours) { s.max_answer_kl } else { s.max_prior_kl };
                    let (moved, drop) = (s.max_movement, 100.0 * s.accuracy_drop);
                    (
                        format!("{collapse}, {kl:.2}, {moved:.3}, {drop:+.1} %"),
                        format!("{} of {}", run.summary.n, used.name),
                        worst_domain(&run.summary),
                    )
                }
            };
            line(&mut out, &[name.into(), paper, value, samples, worst]);
        }
        let _ = writeln!(
            out,
            "\nAll domains one after another, again and again, without reset. KL is that of the class prior from its \
             start; for methods that change the encoder, which have none, the largest over windows of the mean answer \
             from zero-shot's."
        );
        Ok(out + &notes(&ran, used))
    }
}

/// The least gain over zero-shot of any visit to a domain, with its name.
fn worst_domain(summary: &Summary) -> String {
    let gain = |d: &crate::summary::Domain| 100.0 * (d.top1 - d.zero_shot_top1);
    let worst = summary.course.domains.iter().min_by(|a, b| gain(a).total_cmp(&gain(b)));
    worst.map_or("–".into(), |d| format!("{:+.1} ({})", gain(d), d.name))
}

fn is_changing(name: &str) -> bool {
    CHANGING.contains(&name)
}

const RESULT_HEADER: [&str; 6] =
    ["row", "paper: top-1 / ECE", "ours", "gap", "NLL / Brier", "AUROC against the in-distribution pack"];

fn notes(ran: &Option<Ran>, entry: &Entry) -> String {
    match ran {
        Some(Ran { note, .. }) if !note.is_empty() => format!("\n{}: {note}\n", entry.name),
        _ => String::new(),
    }
}

/// How a dataset is got that is not there, for packs.
pub fn absent(entry: &Entry) -> String {
    format!("absent: get {}, encode it into {}/<encoder>/", entry.source, entry.folder)
}

fn heading(title: &str, header: &[&str]) -> String {
    format!("\n**{title}**\n\n| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()))
}

fn line(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_of_the_ablations_is_a_setting() {
        let rows = ablations().unwrap();
        assert_eq!(rows.len(), 6);
        let full = Config::resolve(None, Some("ul-tta"), Some("paper"), &[]).unwrap();
        for row in &rows {
            let settings: Vec<(&str, &str)> =
                row.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let config = Config::resolve(None, Some("ul-tta"), Some("paper"), &settings).unwrap();
            assert_eq!(config.to_toml() == full.to_toml(), row.name == "full", "{}", row.name);
        }
    }

    #[test]
    fn methods_of_the_tables_count_their_operations() {
        let count =
            |name: &str| Method::resolve(name, None).unwrap().card().operations.unwrap()(345.0, 512.0);
        assert_eq!(count("zero-shot"), 0.0);
        assert!(count("ul-tta:paper") < count("ul-tta"), "a covariance costs something");
        assert!(count("t3a") < count("freetta"));
        for card in ultta::cards() {
            let counted = card.operations.map(|count| count(1000.0, 512.0));
            assert!(counted.is_none_or(|n| (0.0..1e12).contains(&n)), "{}", card.name);
            // Those of ecalp grow with the stream.
            assert_eq!(counted.is_none(), card.name == "ecalp", "{}", card.name);
        }
    }
}
