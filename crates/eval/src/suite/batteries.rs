//! The two batteries that the field reports on: ten cross-domain sets, and ImageNet with its four shifted sets. Ours
//! beside what was published for CLIP ViT-B/16, where a figure is known.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ultta::Result;

use super::{heading, line};
use crate::dataset::{Dataset, Heads, find};
use crate::method::each_once;
use crate::plan::{Plan, Progress};
use crate::summary::{Cell, cells};
use crate::words::counted;

/// A battery by name.
pub struct Battery {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// Its datasets, by the names of `encode --dataset`.
    pub datasets: &'static [&'static str],
}

/// Both batteries.
pub const BATTERIES: [Battery; 2] = [
    Battery {
        name: "cross-domain",
        title: "Ten cross-domain sets",
        datasets: &[
            "caltech101",
            "oxford-pets",
            "stanford-cars",
            "oxford-flowers",
            "food101",
            "fgvc-aircraft",
            "sun397",
            "dtd",
            "eurosat",
            "ucf101",
        ],
    },
    Battery {
        name: "imagenet",
        title: "ImageNet and its shifts",
        datasets: &["imagenet", "imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch"],
    },
];

/// Top-1 that was published for a method at ViT-B/16: dataset and percent.
type Published = &'static [(&'static str, f64)];

/// What was published, by method, and where the figures were found. Settings differ: `docs/protocols.md` says how.
const PUBLISHED: [(&str, &str, Published); 8] = [
    (
        "zero-shot",
        "PromptAlign's table; ImageNet from memory",
        &[
            ("imagenet", 66.7),
            ("imagenet-a", 47.87),
            ("imagenet-v2", 60.86),
            ("imagenet-r", 73.98),
            ("imagenet-sketch", 46.06),
        ],
    ),
    (
        "tda",
        "an audit that quotes the paper; ImageNet, A, R and Sketch from memory",
        &[
            ("caltech101", 94.24),
            ("dtd", 47.40),
            ("eurosat", 58.00),
            ("oxford-pets", 88.63),
            ("imagenet", 69.5),
            ("imagenet-a", 60.1),
            ("imagenet-v2", 64.67),
            ("imagenet-r", 80.2),
            ("imagenet-sketch", 50.5),
        ],
    ),
    (
        "dmn",
        "its authors' logs",
        &[
            ("oxford-flowers", 74.79),
            ("dtd", 54.61),
            ("oxford-pets", 91.88),
            ("stanford-cars", 67.77),
            ("ucf101", 72.43),
            ("caltech101", 95.09),
            ("food101", 85.06),
            ("sun397", 69.99),
            ("fgvc-aircraft", 29.85),
            ("eurosat", 57.37),
            ("imagenet", 72.24),
            ("imagenet-a", 58.28),
            ("imagenet-v2", 65.27),
            ("imagenet-r", 78.55),
            ("imagenet-sketch", 52.98),
        ],
    ),
    (
        "freetta",
        "an audit that quotes the paper; ImageNet, A, R and Sketch from memory",
        &[
            ("caltech101", 94.63),
            ("dtd", 46.96),
            ("eurosat", 62.93),
            ("oxford-pets", 90.11),
            ("imagenet", 70.2),
            ("imagenet-a", 61.4),
            ("imagenet-v2", 64.92),
            ("imagenet-r", 80.5),
            ("imagenet-sketch", 50.9),
        ],
    ),
    (
        "bca",
        "from memory",
        &[
            ("imagenet", 70.2),
            ("imagenet-a", 61.1),
            ("imagenet-v2", 64.9),
            ("imagenet-r", 80.7),
            ("imagenet-sketch", 50.9),
        ],
    ),
    (
        "boost-adapter",
        "from memory",
        &[("imagenet-a", 64.5), ("imagenet-v2", 65.5), ("imagenet-r", 80.9), ("imagenet-sketch", 51.3)],
    ),
    (
        "dota",
        "CGPS's comparison",
        &[
            ("fgvc-aircraft", 26.25),
            ("caltech101", 94.16),
            ("stanford-cars", 69.56),
            ("dtd", 47.64),
            ("eurosat", 62.78),
            ("oxford-flowers", 75.23),
            ("food101", 87.08),
            ("oxford-pets", 92.01),
            ("sun397", 69.80),
            ("ucf101", 72.54),
        ],
    ),
    (
        "ecalp",
        "IOTA's comparison; ImageNet and its shifts with one prompt, TTABC's",
        &[
            ("oxford-flowers", 75.52),
            ("dtd", 54.67),
            ("oxford-pets", 92.04),
            ("stanford-cars", 68.03),
            ("ucf101", 75.92),
            ("caltech101", 94.24),
            ("food101", 85.65),
            ("sun397", 70.61),
            ("fgvc-aircraft", 29.13),
            ("eurosat", 55.95),
            // With many descriptions 71.27 on ImageNet, after IOTA.
            ("imagenet", 70.18),
            ("imagenet-a", 49.12),
            ("imagenet-v2", 62.27),
            ("imagenet-r", 77.69),
            ("imagenet-sketch", 51.74),
        ],
    ),
];

/// Means over a battery that were published without its sets: PTA's abstract.
const PUBLISHED_MEANS: [(&str, &str, f64); 3] =
    [("zero-shot", "cross-domain", 65.64), ("pta", "cross-domain", 69.38), ("tda", "cross-domain", 67.97)];

/// Means over the ten cross-domain sets and ImageNet that were published: they have no column of their own.
const PUBLISHED_OVER_ELEVEN: [(&str, &str); 2] = [
    ("oga", "65.3 → 68.5, one template, its README"),
    ("ecalp", "70.28 with many descriptions, 71.27 of it on ImageNet, IOTA's comparison"),
];

/// What was published for a method on a dataset.
pub fn published(method: &str, dataset: &str) -> Option<f64> {
    let rows = PUBLISHED.iter().find(|(name, ..)| *name == method)?.2;
    rows.iter().find(|(name, _)| *name == dataset).map(|(_, top1)| *top1)
}

/// A dataset that is there.
pub struct Opened {
    /// The pack that runs.
    pub dataset: Dataset,
    /// Folders of its other packs, which do not run.
    pub left_out: Vec<String>,
}

/// The pack of a dataset below a folder: `<dataset>/<encoder>/features.safetensors`; the first encoder by name.
pub fn pack_of(data: &Path, dataset: &str) -> Result<Option<Opened>> {
    let folder = data.join(dataset);
    if !folder.is_dir() {
        return Ok(None);
    }
    let packs = find(&folder, Heads::Main)?;
    let Some((features, head)) = packs.first() else { return Ok(None) };
    let left_out = packs[1..].iter().map(|(features, _)| folder_of(features)).collect();
    Ok(Some(Opened { dataset: Dataset::open(features, head)?, left_out }))
}

/// The name of the folder that a pack lies in: the encoder's.
fn folder_of(features: &Path) -> String {
    let own = features.parent().and_then(Path::file_name).unwrap_or_default();
    own.to_string_lossy().into_owned()
}

/// What a battery runs on, where runs go, how many at a time.
pub struct Run<'a> {
    /// Opens a dataset, if it is there.
    pub open: &'a dyn Fn(&str) -> Result<Option<Opened>>,
    /// How a dataset is got that is not there.
    pub absent: &'a dyn Fn(&str) -> String,
    /// Methods by name.
    pub methods: Vec<String>,
    /// Seeds of the shuffled streams.
    pub seeds: Vec<u64>,
    /// Where run folders go.
    pub out: PathBuf,
    /// Runs at a time.
    pub jobs: usize,
}

impl Run<'_> {
    /// The table of a battery as Markdown: a row per dataset, ours and the published figure per method.
    pub fn table(&self, battery: &Battery, progress: &dyn Progress) -> Result<String> {
        let methods = each_once(&self.methods, None)?;
        let names: Vec<String> = methods.iter().map(|method| method.name.clone()).collect();
        let (mut there, mut packs) = (Vec::new(), Vec::new());
        for &name in battery.datasets {
            let Some(Opened { mut dataset, left_out }) = (self.open)(name)? else { continue };
            // Another encoder's runs have folders of their own.
            dataset.name = format!("{name}/{}", folder_of(dataset.pack.path()));
            let size = format!("{}, {}", dataset.pack.rows(), dataset.head.n_classes());
            let encoder = dataset.encoder().unwrap_or("not told").to_string();
            packs.push((name, size, encoder, left_out));
            there.push(dataset);
        }
        let plan = Plan {
            datasets: there,
            strangers: Vec::new(),
            in_distribution: None,
            methods,
            protocols: vec!["iid".parse().expect("a protocol of this crate")],
            seeds: self.seeds.clone(),
            out: self.out.clone(),
            jobs: self.jobs,
            patience: None,
        };
        let outcome = plan.run(progress)?;
        let cells = cells(&outcome.runs);
        let ours = |method: &str, dataset: &str| {
            let own = |c: &&Cell| c.method == method && c.dataset.split('/').next() == Some(dataset);
            cells.iter().find(own).map(|c| 100.0 * c.top1.mean)
        };
        let mut header = vec!["dataset", "pictures, classes", "encoder"];
        header.extend(names.iter().map(String::as_str));
        let mut out =
            heading(&format!("{}: top-1 (%), ours / published at ViT-B/16", battery.title), &header);
        let number = |value: Option<f64>| value.map_or("–".to_string(), |v| format!("{v:.1}"));
        for &dataset in battery.datasets {
            let Some((_, size, encoder, left_out)) = packs.iter().find(|(name, ..)| *name == dataset) else {
                line(&mut out, &[dataset.to_string(), (self.absent)(dataset)]);
                continue;
            };
            let others = if left_out.is_empty() {
                String::new()
            } else {
                format!(" (left out: {})", left_out.join(", "))
            };
            let mut row = vec![dataset.to_string(), size.clone(), format!("{encoder}{others}")];
            let cell = |method: &String| {
                format!("{} / {}", number(ours(method, dataset)), number(published(method, dataset)))
            };
            row.extend(names.iter().map(cell));
            line(&mut out, &row);
        }
        // A mean only over datasets that all have: the battery's, where it is whole.
        let whole = packs.len() == battery.datasets.len();
        let mixed = packs.iter().any(|(_, _, encoder, _)| *encoder != packs[0].2);
        let mean = |value: &dyn Fn(&str) -> Option<f64>| -> Option<f64> {
            let all: Option<Vec<f64>> = battery.datasets.iter().map(|d| value(d)).collect();
            all.map(|v| v.iter().sum::<f64>() / v.len() as f64)
        };
        let mut row = vec![
            "mean".to_string(),
            if whole { "whole".into() } else { format!("{} of {}", packs.len(), battery.datasets.len()) },
            if mixed { "several".into() } else { String::new() },
        ];
        row.extend(names.iter().map(|method| {
            let listed = PUBLISHED_MEANS.iter().find(|(m, b, _)| m == method && *b == battery.name);
            let theirs = mean(&|d| published(method, d)).or(listed.map(|(.., top1)| *top1));
            let own = mean(&|d| ours(method, d));
            format!("{} / {}", number(own), number(theirs))
        }));
        line(&mut out, &row);
        for reason in &outcome.skipped {
            let _ = writeln!(out, "\nSkipped: {reason}.");
        }
        let _ = writeln!(
            out,
            "\nOurs: shuffled streams, {}, one configuration per method. Published figures often have settings \
             chosen per dataset, other templates or views, and are not all read in the papers themselves.{}",
            counted(self.seeds.len(), "seed"),
            found_in(&names, battery)
        );
        Ok(out)
    }
}

/// Where the published figures of some methods were found.
fn found_in(methods: &[String], battery: &Battery) -> String {
    let told = |(method, found, rows): &(&str, &str, Published)| {
        let of_battery = rows.iter().any(|(dataset, _)| battery.datasets.contains(dataset));
        let shown = of_battery && methods.iter().any(|name| name == method);
        shown.then(|| format!("{method}: {found}"))
    };
    let mut all: Vec<String> = PUBLISHED.iter().filter_map(told).collect();
    let shown = |(method, of, _): &(&str, &str, f64)| {
        *of == battery.name && methods.iter().any(|name| name == method)
    };
    if PUBLISHED_MEANS.iter().any(shown) {
        all.push("means without their sets: PTA's abstract".into());
    }
    let found =
        if all.is_empty() { String::new() } else { format!(" Where they were found: {}.", all.join("; ")) };
    let eleven = PUBLISHED_OVER_ELEVEN.iter().filter(|(method, _)| methods.iter().any(|name| name == method));
    let eleven: Vec<String> = eleven.map(|(method, mean)| format!("{method} {mean}")).collect();
    if eleven.is_empty() {
        return found;
    }
    format!("{found} Published over the ten sets and ImageNet together: {}.", eleven.join("; "))
}

/// A battery by name.
pub fn named(name: &str) -> Option<&'static Battery> {
    BATTERIES.iter().find(|b| b.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Made;

    #[test]
    fn the_table_names_the_encoder_and_those_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        for name in ["one", "two"] {
            Made { encoder: name, ..Made::named(name) }.write(&data.join("dtd"));
        }
        let run = Run {
            open: &|name| pack_of(&data, name),
            absent: &|_| "absent".into(),
            methods: vec!["zero-shot".into(), "tda".into()],
            seeds: vec![0],
            out: folder.path().join("runs"),
            jobs: 1,
        };
        let table = run.table(named("cross-domain").unwrap(), &()).unwrap();
        assert!(table.contains("| dtd | 300, 5 | one (left out: two) |"), "{table}");
        assert!(table.contains("tda: an audit") && !table.contains("dota:"), "{table}");
        assert!(!table.contains("and ImageNet together"), "{table}");
        let told = found_in(&["zero-shot".into(), "oga".into()], named("cross-domain").unwrap());
        assert!(told.contains("ImageNet together: oga 65.3 → 68.5") && !told.contains("ecalp"), "{told}");
    }

    #[test]
    fn published_figures_are_of_the_batteries() {
        let known: Vec<&str> = BATTERIES.iter().flat_map(|b| b.datasets.iter().copied()).collect();
        for (method, found, rows) in PUBLISHED {
            assert!(!found.is_empty(), "{method}");
            for (dataset, top1) in rows {
                assert!(known.contains(dataset), "{method}: {dataset}");
                assert!((10.0..100.0).contains(top1), "{method}: {top1}");
            }
        }
        assert_eq!(published("tda", "dtd"), Some(47.40));
        assert_eq!(published("ul-tta", "dtd"), None);
        // The mean that CGPS reports of DOTA's ten sets.
        let dota = PUBLISHED.iter().find(|(name, ..)| *name == "dota").unwrap().2;
        let mean = dota.iter().map(|(_, v)| v).sum::<f64>() / dota.len() as f64;
        assert!((mean - 69.71).abs() < 0.01, "{mean}");
    }
}
