//! The paper's six tables: what it reports, what comes out here, and the gap. A row whose data are absent says so.
//!
//! Packs are looked for under `<data>/<dataset>/<encoder>/` or, for datasets of several domains, under
//! `<data>/<dataset>-<domain>/<encoder>/` and `<data>/<dataset>/<domain>/<encoder>/`, each with
//! `features.safetensors` and `head.safetensors`. The stream is the file's own order, domain after domain, as in
//! the paper.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ultta::{Config, Result};

use crate::dataset::{Dataset, Heads, find, name_all};
use crate::method::Method;
use crate::plan::{Plan, Progress};
use crate::protocol::Protocol;
use crate::summary::Run;

/// A dataset of the paper.
pub struct Entry {
    /// Name in the paper.
    pub name: &'static str,
    /// Name of its folder.
    pub folder: &'static str,
    /// Shift type, as the paper names it.
    pub shift: &'static str,
    /// Classes, as the paper counts them.
    pub classes: usize,
    /// Test images, as the paper counts them.
    pub images: usize,
    /// How to get it.
    pub source: &'static str,
    /// The paper's top-1 and ECE in percent for zero-shot, Tent, FreeTTA and UL-TTA, where it gives them.
    pub results: Option<[(f64, f64); 4]>,
}

/// The paper's datasets table, with its results beside it.
pub const DATASETS: [Entry; 8] = [
    Entry {
        name: "PACS",
        folder: "pacs",
        shift: "style / domain",
        classes: 7,
        images: 9_991,
        source: "DomainBed's download script, `PACS`",
        results: Some([(89.1, 5.2), (90.0, 4.9), (90.7, 4.1), (91.3, 3.2)]),
    },
    Entry {
        name: "Office-Home",
        folder: "office-home",
        shift: "everyday domain",
        classes: 65,
        images: 15_588,
        source: "DomainBed's download script, `OfficeHome`",
        results: Some([(78.4, 6.8), (79.1, 6.2), (80.4, 5.5), (81.0, 4.3)]),
    },
    Entry {
        name: "DomainNet",
        folder: "domainnet",
        shift: "multi-domain, large-scale",
        classes: 345,
        images: 586_575,
        source: "the DomainNet project page (cleaned version)",
        results: Some([(55.4, 11.2), (56.7, 10.5), (59.3, 7.9), (60.1, 6.8)]),
    },
    Entry {
        name: "Terra Incognita",
        folder: "terra-incognita",
        shift: "camera / location",
        classes: 10,
        images: 16_584,
        source: "DomainBed's download script, `TerraIncognita`",
        results: Some([(46.0, 14.8), (47.4, 11.9), (49.1, 9.2), (50.3, 7.1)]),
    },
    Entry {
        name: "ImageNet-V2",
        folder: "imagenet-v2",
        shift: "natural shift",
        classes: 1000,
        images: 10_000,
        source: "the ImageNetV2 repository, matched-frequency",
        results: None,
    },
    Entry {
        name: "ImageNet-R",
        folder: "imagenet-r",
        shift: "renderings / cartoons",
        classes: 200,
        images: 30_000,
        source: "the imagenet-r repository",
        results: Some([(71.2, 9.0), (72.1, 8.8), (73.0, 7.1), (73.6, 6.5)]),
    },
    Entry {
        name: "ImageNet-A",
        folder: "imagenet-a",
        shift: "adversarial natural",
        classes: 200,
        images: 7_500,
        source: "the natural-adv-examples repository",
        results: Some([(38.8, 17.1), (40.0, 15.2), (41.1, 14.3), (42.5, 12.7)]),
    },
    Entry {
        name: "ImageNet-Sketch",
        folder: "imagenet-sketch",
        shift: "sketches",
        classes: 1000,
        images: 50_000,
        source: "the ImageNet-Sketch repository",
        results: None,
    },
];

/// The paper's other rows on DomainNet: method, top-1, ECE, and our name for it, if it is a method on features.
const DOMAINNET: [(&str, f64, f64, Option<&str>); 6] = [
    ("Zero-shot CLIP", 55.4, 11.2, Some("zero-shot")),
    ("Tent", 56.7, 10.5, None),
    ("T3A", 57.9, 9.8, Some("t3a")),
    ("CoTTA", 58.4, 9.1, None),
    ("FreeTTA", 59.3, 7.9, Some("freetta")),
    ("UL-TTA", 60.1, 6.8, Some("ul-tta:paper")),
];

/// The paper's ablations on DomainNet: row, top-1, ECE, and the settings of the `paper` preset that make it.
const ABLATIONS: [(&str, f64, f64, &[(&str, &str)]); 6] = [
    ("full", 60.1, 6.8, &[]),
    ("without selective filtering", 58.9, 8.4, &[("gate.enabled", "false")]),
    ("t frozen", 59.2, 7.7, &[("prototypes.frozen", "true")]),
    ("π frozen", 59.3, 7.9, &[("prior.frozen", "true")]),
    ("single τ", 59.0, 9.6, &[("temperature.single", "true")]),
    (
        "without guards",
        58.1,
        12.2,
        &[
            ("prototypes.rho", "inf"),
            ("prototypes.eta", "1"),
            ("prior.kappa", "inf"),
            ("temperature.beta", "0"),
        ],
    ),
];

/// The paper's overheads: method, FLOPs, latency, our name.
const EFFICIENCY: [(&str, &str, &str, Option<&str>); 4] = [
    ("CoTTA", "+290 %", "+410 %", None),
    ("FreeTTA", "+180 %", "+325 %", Some("freetta")),
    ("T3A", "+15 %", "+18 %", Some("t3a")),
    ("UL-TTA", "< 5 %", "< 8 %", Some("ul-tta:paper")),
];

/// The paper's stability over 200 K samples: method, collapse, max KL, max movement, accuracy drop, our name.
const STABILITY: [(&str, &str, f64, f64, f64, Option<&str>); 3] = [
    ("CoTTA", "yes", 1.82, 0.21, -6.2, None),
    ("FreeTTA", "mild", 0.74, 0.09, -3.4, Some("freetta")),
    ("UL-TTA", "no", 0.07, 0.01, -0.6, Some("ul-tta:paper")),
];

/// The tables, by name.
pub const TABLES: [&str; 6] =
    ["datasets", "domainnet", "per-dataset", "ablations", "efficiency", "stability"];

const NO_GRADIENTS: &str = "needs pictures, not features: `ultta eval --images DIR --model M --methods zero-shot,tent,cotta --protocols file`";

/// Assumed time of a ViT-B/16 forward pass on one CPU core, where only features are at hand.
const FORWARD_MICROS: f64 = 176_000.0;

/// Where packs are, where runs go, how many at a time.
pub struct Suite {
    /// The folder of packs.
    pub data: PathBuf,
    /// Where run folders go.
    pub out: PathBuf,
    /// Runs at a time.
    pub jobs: usize,
}

impl Suite {
    /// One table as Markdown.
    pub fn table(&self, name: &str, progress: &dyn Progress) -> Result<String> {
        match name {
            "datasets" => self.datasets(),
            "domainnet" => self.domainnet(progress),
            "per-dataset" => self.per_dataset(progress),
            "ablations" => self.ablations(progress),
            "efficiency" => self.efficiency(progress),
            _ => self.stability(progress),
        }
    }

    /// The packs of a dataset: one, or one per domain.
    fn packs(&self, entry: &Entry) -> Result<Vec<(PathBuf, PathBuf)>> {
        if !self.data.is_dir() {
            return Ok(Vec::new());
        }
        let belongs = |path: &Path| {
            let inside = path.strip_prefix(&self.data).unwrap_or(path);
            let first = inside.components().next().map(|c| c.as_os_str().to_string_lossy().to_lowercase());
            let first = first.unwrap_or_default().replace('_', "-");
            first == entry.folder || first.starts_with(&format!("{}-", entry.folder))
        };
        // `imagenet-r` must not claim `imagenet-r…` packs of another entry.
        let other = |path: &Path| {
            let inside = path.strip_prefix(&self.data).unwrap_or(path).to_string_lossy().to_lowercase();
            DATASETS.iter().any(|e| e.folder.len() > entry.folder.len() && inside.starts_with(e.folder))
        };
        let mut found = find(&self.data, Heads::Main)?;
        found.retain(|(features, _)| belongs(features) && !other(features));
        Ok(found)
    }

    /// Runs methods over each pack of a dataset in the file's own order; `None` if it is absent.
    fn runs(
        &self,
        entry: &Entry,
        methods: Vec<Method>,
        protocol: &str,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<Run>>> {
        let pairs = self.packs(entry)?;
        if pairs.is_empty() {
            return Ok(None);
        }
        let mut datasets = Vec::new();
        for (features, head) in &pairs {
            datasets.push(Dataset::open(features, head)?);
        }
        name_all(&mut datasets)?;
        for dataset in &mut datasets {
            dataset.name = format!("{}/{}", entry.folder, dataset.name);
        }
        let protocol: Protocol = protocol.parse().expect("a protocol of this crate");
        let plan = Plan {
            datasets,
            strangers: Vec::new(),
            in_distribution: None,
            methods,
            protocols: vec![protocol],
            seeds: vec![0],
            out: self.out.clone(),
            jobs: self.jobs,
        };
        Ok(Some(plan.run(progress)?.runs))
    }

    fn datasets(&self) -> Result<String> {
        let mut out =
            heading("Datasets", &["dataset", "shift", "classes: paper", "ours", "images: paper", "ours"]);
        for entry in &DATASETS {
            let pairs = self.packs(entry)?;
            let (mut rows, mut classes) = (0, 0);
            for (features, head) in &pairs {
                let dataset = Dataset::open(features, head)?;
                rows += dataset.pack.rows();
                classes = dataset.head.n_classes();
            }
            let (classes, rows) = match pairs.len() {
                0 => ("absent".to_string(), absent(entry)),
                n => (classes.to_string(), format!("{rows} in {n} pack(s)")),
            };
            let paper = (entry.classes.to_string(), entry.images.to_string());
            line(&mut out, &[entry.name.into(), entry.shift.into(), paper.0, classes, paper.1, rows]);
        }
        Ok(out)
    }

    fn domainnet(&self, progress: &dyn Progress) -> Result<String> {
        let mut out = heading("DomainNet", &["method", "paper: top-1 / ECE", "ours", "gap"]);
        let names: Vec<&str> = DOMAINNET.iter().filter_map(|row| row.3).chain(["ul-tta"]).collect();
        let runs = self.runs(&DATASETS[2], methods(&names)?, "file", progress)?;
        for (name, top1, ece, ours) in DOMAINNET {
            let paper = format!("{top1:.1} / {ece:.1}");
            let (value, gap) = match (ours, &runs) {
                (None, _) => (NO_GRADIENTS.into(), "–".into()),
                (_, None) => (absent(&DATASETS[2]), "–".into()),
                (Some(ours), Some(runs)) => beside(runs, ours, top1, ece),
            };
            line(&mut out, &[name.into(), paper, value, gap]);
        }
        if let Some(runs) = &runs {
            line(
                &mut out,
                &[
                    "UL-TTA, default preset".into(),
                    "–".into(),
                    beside(runs, "ul-tta", 0.0, 0.0).0,
                    "–".into(),
                ],
            );
        }
        Ok(out)
    }

    fn per_dataset(&self, progress: &dyn Progress) -> Result<String> {
        let header = ["dataset · method", "paper: top-1 / ECE", "ours", "gap"];
        let mut out = heading("Per dataset", &header);
        for entry in &DATASETS {
            let names = ["zero-shot", "freetta", "ul-tta:paper", "ul-tta"];
            let runs = self.runs(entry, methods(&names)?, "file", progress)?;
            let Some(runs) = runs else {
                line(&mut out, &[entry.name.into(), paper_results(entry), absent(entry), "–".into()]);
                continue;
            };
            let paper = |i: usize| entry.results.map(|r| r[i]);
            for (label, name, paper) in [
                ("zero-shot", "zero-shot", paper(0)),
                ("Tent", "", paper(1)),
                ("FreeTTA", "freetta", paper(2)),
                ("UL-TTA", "ul-tta:paper", paper(3)),
                ("UL-TTA, default preset", "ul-tta", None),
            ] {
                let (value, gap) = match (name, paper) {
                    ("", _) => (NO_GRADIENTS.into(), "–".into()),
                    (name, Some((top1, ece))) => beside(&runs, name, top1, ece),
                    (name, None) => (beside(&runs, name, 0.0, 0.0).0, "–".into()),
                };
                let paper = paper.map_or("–".into(), |(t, e)| format!("{t:.1} / {e:.1}"));
                line(&mut out, &[format!("{} · {label}", entry.name), paper, value, gap]);
            }
        }
        Ok(out)
    }

    fn ablations(&self, progress: &dyn Progress) -> Result<String> {
        let mut out = heading("Ablations on DomainNet", &["setting", "paper: top-1 / ECE", "ours", "gap"]);
        let mut variants = Vec::new();
        for (name, _, _, settings) in ABLATIONS {
            let mut config = Config::resolve(None, Some("ul-tta"), Some("paper"), settings)?;
            config.guard.enabled = false;
            let plain = name.replace('π', "pi").replace('τ', "tau").replace(' ', "-");
            variants.push(Method { name: format!("ul-tta:paper-{plain}"), config, pictures: None });
        }
        let names: Vec<String> = variants.iter().map(|m| m.name.clone()).collect();
        let runs = self.runs(&DATASETS[2], variants, "file", progress)?;
        for ((name, top1, ece, _), ours) in ABLATIONS.iter().zip(names) {
            let (value, gap) = match &runs {
                None => (absent(&DATASETS[2]), "–".into()),
                Some(runs) => beside(runs, &ours, *top1, *ece),
            };
            line(&mut out, &[name.to_string(), format!("{top1:.1} / {ece:.1}"), value, gap]);
        }
        Ok(out)
    }

    fn efficiency(&self, progress: &dyn Progress) -> Result<String> {
        let header = [
            "method",
            "paper: FLOPs",
            "paper: latency",
            "ours: µs per sample over zero-shot's",
            "share of a ViT-B/16 forward pass, if that takes 176 ms",
        ];
        let mut out = heading("Efficiency", &header);
        let names = ["zero-shot", "freetta", "t3a", "ul-tta:paper", "ul-tta"];
        // Any pack will do for a cost; DomainNet's has the class count of the paper.
        let mut runs = self.runs(&DATASETS[2], methods(&names)?, "iid", progress)?;
        let mut used = &DATASETS[2];
        for entry in &DATASETS {
            if runs.is_none() {
                runs = self.runs(entry, methods(&names)?, "iid", progress)?;
                used = entry;
            }
        }
        let micros = |runs: &[Run], name: &str| {
            let own: Vec<&Run> = runs.iter().filter(|r| r.summary.method == name).collect();
            own.iter().map(|r| 1e6 / r.timing.samples_per_second.max(1e-9)).sum::<f64>()
                / own.len().max(1) as f64
        };
        let mut rows: Vec<(&str, &str, &str, Option<&str>)> = EFFICIENCY.to_vec();
        rows.push(("UL-TTA, default preset", "–", "–", Some("ul-tta")));
        for (name, flops, latency, ours) in rows {
            let (value, share) = match (ours, &runs) {
                (None, _) => (NO_GRADIENTS.into(), "–".into()),
                (_, None) => (absent(&DATASETS[2]), "–".into()),
                (Some(ours), Some(runs)) => {
                    let extra = micros(runs, ours) - micros(runs, "zero-shot");
                    // 17.6 GMAC at a hundred GMAC per second. `ultta eval --images` measures it with the encoder.
                    let share = extra / FORWARD_MICROS * 100.0;
                    (format!("{extra:.1} on {}", used.name), format!("{share:.3} %"))
                }
            };
            line(&mut out, &[name.into(), flops.into(), latency.into(), value, share]);
        }
        Ok(out)
    }

    fn stability(&self, progress: &dyn Progress) -> Result<String> {
        let header = ["method", "paper: collapse, KL, ‖Δt‖, drop", "ours", "samples"];
        let mut out = heading("Stability over 200 K samples", &header);
        let names = ["freetta", "ul-tta:paper", "ul-tta"];
        let mut runs = self.runs(&DATASETS[2], methods(&names)?, "file+cycle:200000", progress)?;
        let mut used = &DATASETS[2];
        for entry in &DATASETS {
            if runs.is_none() {
                runs = self.runs(entry, methods(&names)?, "iid+cycle:200000", progress)?;
                used = entry;
            }
        }
        let mut rows = STABILITY.to_vec();
        rows.push(("UL-TTA, default preset", "–", f64::NAN, f64::NAN, f64::NAN, Some("ul-tta")));
        for (name, collapse, kl, movement, drop, ours) in rows {
            let paper =
                if kl.is_nan() { "–".into() } else { format!("{collapse}, {kl}, {movement}, {drop} %") };
            let (value, samples) = match (ours, &runs) {
                (None, _) => (NO_GRADIENTS.into(), "–".into()),
                (_, None) => (absent(&DATASETS[2]), "–".into()),
                (Some(ours), Some(runs)) => match runs.iter().find(|r| r.summary.method == ours) {
                    None => ("–".into(), "–".into()),
                    Some(run) => {
                        let s = &run.summary.stability;
                        let collapse = if s.collapsed { "yes" } else { "no" };
                        let (kl, moved, drop) = (s.max_prior_kl, s.max_movement, 100.0 * s.accuracy_drop);
                        (
                            format!("{collapse}, {kl:.2}, {moved:.3}, {drop:+.1} %"),
                            format!("{} of {}", run.summary.n, used.name),
                        )
                    }
                },
            };
            line(&mut out, &[name.into(), paper, value, samples]);
        }
        Ok(out)
    }
}

fn methods(names: &[&str]) -> Result<Vec<Method>> {
    names.iter().map(|name| Method::resolve(name, None)).collect()
}

/// Ours beside the paper's: top-1 / ECE over all packs, weighted by samples, and the gap in points.
fn beside(runs: &[Run], method: &str, top1: f64, ece: f64) -> (String, String) {
    let own: Vec<&Run> = runs.iter().filter(|r| r.summary.method == method).collect();
    let n: f64 = own.iter().map(|r| r.summary.n as f64).sum();
    if n == 0.0 {
        return ("–".into(), "–".into());
    }
    let mean = |value: &dyn Fn(&Run) -> f64| {
        100.0 * own.iter().map(|r| value(r) * r.summary.n as f64).sum::<f64>() / n
    };
    let (ours, our_ece) = (mean(&|r| r.summary.quality.top1), mean(&|r| r.summary.quality.ece));
    (format!("{ours:.1} / {our_ece:.1}"), format!("{:+.1} / {:+.1}", ours - top1, our_ece - ece))
}

fn paper_results(entry: &Entry) -> String {
    let Some(results) = entry.results else { return "none given".into() };
    let pair = |(top1, ece): &(f64, f64)| format!("{top1:.1} / {ece:.1}");
    format!("zero-shot {}, UL-TTA {}", pair(&results[0]), pair(&results[3]))
}

fn absent(entry: &Entry) -> String {
    format!("absent: get {}, encode it into {}/<encoder>/", entry.source, entry.folder)
}

fn heading(title: &str, header: &[&str]) -> String {
    format!("\n**{title}**\n\n| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()))
}

fn line(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
