//! The self-contained page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ultta::Result;

use super::grid::{FIGURES, FigureTable, Grid, Shown, named, named_refused, seeds_note};
use super::overview::{Overview, groups};
use super::{Runs, compare, harm};
use crate::method::{is_baseline, is_own};
use crate::metrics::{Bin, Spread};
use crate::plot::{Bars, LineChart, Page, Reliability, ReliabilityBin, Scatter, Series, Table};
use crate::refused::notes;
use crate::run_folder::read_windows;
use crate::summary::{Cell, Flip, Made, Run, Window, cells};
use crate::words::counted;

/// Methods drawn along a stream: more lines cannot be told apart.
const LINES: usize = 6;
/// Protocols that a page shows open: more are folded.
const OPEN: usize = 3;
/// Commands listed at the foot.
const COMMANDS: usize = 4;

/// The self-contained page.
pub fn html(found: &Runs) -> Result<String> {
    let runs: Vec<Run> = found.runs.iter().map(|(run, _)| run.clone()).collect();
    let refused = named_refused(&found.refused, &runs);
    let runs = named(&runs);
    let folders: Vec<&Path> = found.runs.iter().map(|(_, folder)| folder.as_path()).collect();
    let cells = cells(&runs);
    let groups = groups(&runs);
    let ties = compare::ties(&runs, &groups);
    let datasets: BTreeSet<&str> = cells.iter().map(|c| c.dataset.as_str()).collect();
    let methods: BTreeSet<&str> = cells.iter().map(|c| c.method.as_str()).collect();
    let mut page = Page::new("Test-time adaptation: evaluation").lead(&format!(
        "{}: {} on {}. Every figure stands beside the frozen model's on the same samples.",
        counted(runs.len(), "run"),
        counted(methods.len(), "method"),
        counted(datasets.len(), "dataset")
    ));
    for reason in &found.unreadable {
        page = page.note(&format!("Left out: {reason}"));
    }
    let overview = Overview::of(&runs);
    page = overview.section(page);
    let looks = looks(&overview);
    page = page.section("Protocols").text(&seeds_note(&cells));
    for note in notes(&refused) {
        page = page.note(&format!("Without a run: {note}"));
    }
    let streams = Streams { runs: &runs, folders: &folders, looks: &looks };
    let grids = Grid::all(&cells, &groups, &ties, &refused);
    let few = grids.len() <= OPEN;
    for grid in grids {
        let title = format!("Protocol {}", grid.protocol);
        page = if few { page.fold_open(&title) } else { page.fold(&title) };
        for figure in &FIGURES {
            let FigureTable { header, rows } = grid.table(figure);
            let row = |(method, figures): (String, Vec<Shown>)| {
                std::iter::once(method).chain(figures.iter().map(Shown::marked)).collect()
            };
            let rows = rows.into_iter().map(row).collect();
            page =
                page.table(&Table { caption: format!("{}, {}", figure.title, grid.protocol), header, rows });
        }
        page = page.figures(vec![gains(&runs, &grid, &looks), pareto(&grid, &looks), cost(&grid, &looks)]);
        page = page.fold(&format!("Along the streams of {}", grid.protocol));
        for dataset in &grid.datasets {
            page = streams.figures(page, &grid, dataset)?;
        }
        page = page.unfold().unfold();
    }
    page = harm::section(page, &runs, &refused);
    page = page.section("Further figures");
    page = stability(page.fold("Stability"), &runs).unfold();
    page = harm::steadiness(page, &runs);
    page = open_set(page, &runs);
    page = domains(page, &runs);
    page = stories(page, &runs);
    Ok(page.foot(&foot(&runs)).to_html())
}

/// How the page and its runs came about.
fn foot(runs: &[Run]) -> Vec<String> {
    let Made { command, version, date, machine, .. } = Made::now();
    let mut lines = vec![format!("Page: {command} · ultta {version} · {date} · {machine}")];
    let mut commands: BTreeMap<(&str, &str, &str, &str), (usize, &str)> = BTreeMap::new();
    for made in runs.iter().filter_map(|run| run.made.as_ref()) {
        let key = (made.command.as_str(), made.version.as_str(), made.built.as_str(), made.machine.as_str());
        let entry = commands.entry(key).or_insert((0, &made.date));
        *entry = (entry.0 + 1, entry.1.max(&made.date));
    }
    let mut commands: Vec<_> = commands.into_iter().collect();
    commands.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
    for ((command, version, built, machine), (n, date)) in commands.iter().take(COMMANDS) {
        let built = if built.is_empty() { String::new() } else { format!(" of {built}") };
        let runs = counted(*n, "run");
        lines.push(format!("{runs}: {command} · ultta {version}{built} · until {date} · {machine}"));
    }
    if commands.len() > COMMANDS {
        lines.push(format!(
            "and {} further commands; made.json beside each run has its own",
            commands.len() - COMMANDS
        ));
    }
    lines
}

/// The methods drawn along streams with their colours, the same in every chart: grey for zero-shot, then our own
/// method, then by rank over all protocols.
fn looks<'a>(overview: &Overview<'a>) -> Vec<(&'a str, usize)> {
    let mut names: Vec<&str> = overview.methods.iter().map(|m| m.method).collect();
    names.sort_by_key(|name| (!is_baseline(name), !is_own(name)));
    names.truncate(LINES);
    let mut next = 0;
    let mut look = |name: &str| {
        if is_baseline(name) {
            return 0;
        }
        next += 1;
        next
    };
    names.into_iter().map(|name| (name, look(name))).collect()
}

fn colour(looks: &[(&str, usize)], method: &str) -> usize {
    looks.iter().find(|(n, _)| *n == method).map_or(LINES, |(_, c)| *c)
}

/// The gain on every dataset with its interval, for the methods that are drawn.
fn gains(runs: &[Run], grid: &Grid<'_>, looks: &[(&str, usize)]) -> String {
    let names = grid.datasets.iter().map(|d| d.to_string()).collect();
    let title = format!("Gain and 95 % intervals, {}", grid.protocol);
    let mut bars = Bars::new(title, "points over zero-shot", names).signed(1);
    let drawn = looks.iter().filter(|(m, _)| !is_baseline(m) && grid.methods.contains(m));
    for (method, colour) in drawn.take(3) {
        let (mut values, mut intervals) = (Vec::new(), Vec::new());
        for dataset in &grid.datasets {
            let own: Vec<&Run> = runs.iter().filter(|r| is(r, grid.protocol, dataset, method)).collect();
            let mean = |value: &dyn Fn(&Run) -> f64| {
                if own.is_empty() {
                    return f64::NAN;
                }
                100.0 * own.iter().map(|r| value(r)).sum::<f64>() / own.len() as f64
            };
            values.push(mean(&|r| r.summary.quality.top1 - r.summary.zero_shot.top1));
            let end = |end: fn(&Run) -> f64| mean(&end);
            intervals.push((end(|r| r.summary.intervals.gain.low), end(|r| r.summary.intervals.gain.high)));
        }
        bars = bars.group(*method, values, intervals, *colour);
    }
    bars.to_svg()
}

fn is(run: &Run, protocol: &str, dataset: &str, method: &str) -> bool {
    let s = &run.summary;
    s.protocol == protocol && s.dataset == dataset && s.method == method
}

/// Mean top-1 against mean ECE.
fn pareto(grid: &Grid<'_>, looks: &[(&str, usize)]) -> String {
    let title = format!("Accuracy and calibration, {}", grid.protocol);
    let mut chart = Scatter::new(title, "mean ECE (%), lower is better", "mean top-1 (%)");
    for method in &grid.methods {
        if let (Some(top1), Some(ece)) = (grid.mean(method, &FIGURES[0]), grid.mean(method, &FIGURES[1])) {
            let series = Series::new("", vec![(100.0 * ece, 100.0 * top1)]).colour(colour(looks, method));
            chart = chart.series(series, vec![method.to_string()]);
        }
    }
    chart.to_svg()
}

/// Microseconds a sample against the gain in top-1.
fn cost(grid: &Grid<'_>, looks: &[(&str, usize)]) -> String {
    let title = format!("Cost and gain, {}", grid.protocol);
    let mut chart = Scatter::new(title, "mean time per sample (µs)", "mean gain in top-1 (points)").log_x();
    for method in &grid.methods {
        let cells: Vec<&Cell> = grid.datasets.iter().filter_map(|d| grid.cell(method, d)).collect();
        if cells.is_empty() {
            continue;
        }
        let mean =
            |value: &dyn Fn(&Cell) -> f64| cells.iter().map(|c| value(c)).sum::<f64>() / cells.len() as f64;
        let clock = |c: &Cell| 1e6 / c.samples_per_second.mean.max(1e-9);
        let micros = mean(&|c| c.all.get("timing.cpu_us").map_or_else(|| clock(c), |us| us.mean));
        let gain = mean(&|c| 100.0 * (c.top1.mean - c.zero_shot_top1.mean));
        let series = Series::new("", vec![(micros, gain)]).colour(colour(looks, method));
        chart = chart.series(series, vec![method.to_string()]);
    }
    chart.to_svg()
}

/// What curves are drawn from.
struct Streams<'a> {
    runs: &'a [Run],
    folders: &'a [&'a Path],
    looks: &'a [(&'a str, usize)],
}

impl Streams<'_> {
    /// The windows of a method on a stream, seed by seed, those less than half full left out; with the first seed's run.
    fn windows(&self, grid: &Grid<'_>, dataset: &str, method: &str) -> Option<(&Run, Vec<Vec<Window>>)> {
        let mut first = None;
        let mut all: Vec<Vec<Window>> = Vec::new();
        for (run, folder) in self.runs.iter().zip(self.folders) {
            if !is(run, grid.protocol, dataset, method) {
                continue;
            }
            let Ok(mut windows) = read_windows(folder) else { continue };
            windows.retain(|w| 2 * w.n >= run.summary.course.window && w.n > 0);
            let ends = |w: &[Window]| w.iter().map(|w| w.end).collect::<Vec<_>>();
            // A seed whose windows end at other samples is left out of the mean.
            if all.first().is_none_or(|known| ends(known) == ends(&windows)) {
                all.push(windows);
            }
            first.get_or_insert(run);
        }
        first.map(|run| (run, all))
    }

    /// Accuracy and calibration along the stream, mean and spread over seeds, and reliability of the first seed.
    fn figures(&self, mut page: Page, grid: &Grid<'_>, dataset: &str) -> Result<Page> {
        let mut accuracy = LineChart::new(
            format!("{dataset}: gain in top-1 along the stream"),
            "sample",
            "points over zero-shot",
        );
        let mut calibration = LineChart::new(format!("{dataset}: ECE so far"), "sample", "ECE (%)");
        let mut reliability = Reliability::new(format!("{dataset}: reliability, first seed"));
        let mut held =
            LineChart::new(format!("{dataset}: sets that hold the truth"), "sample", "samples (%)");
        let mut sizes = LineChart::new(format!("{dataset}: size of the sets"), "sample", "classes");
        let (mut any, mut spans, mut sets) = (false, false, false);
        for &(method, colour) in self.looks {
            let Some((run, seeds)) = self.windows(grid, dataset, method) else { continue };
            any = true;
            accuracy = accuracy.series(band(method, &seeds, |w| w.top1 - w.zero_shot_top1).colour(colour));
            calibration = calibration.series(band(method, &seeds, |w| w.ece).colour(colour));
            if seeds.iter().flatten().any(|w| w.set_held.is_some()) {
                sets = true;
                held = held.series(band(method, &seeds, |w| w.set_held.unwrap_or(0.0)).colour(colour));
                // This axis counts classes; the others are in per cent.
                sizes =
                    sizes.series(band(method, &seeds, |w| w.set_size.unwrap_or(0.0) / 100.0).colour(colour));
            }
            if colour <= 2 {
                reliability = reliability.series(method, &reliability_bins(&run.summary.reliability), colour);
            }
            if !spans {
                spans = true;
                let mut from = 0.0;
                for domain in &run.summary.course.domains {
                    let to = from + domain.n as f64;
                    accuracy = accuracy.span(from, to, domain.name.clone());
                    from = to;
                }
            }
        }
        if any {
            page = page.figures(vec![accuracy.to_svg(), calibration.to_svg(), reliability.to_svg()]);
        }
        if sets {
            page = page.figures(vec![held.to_svg(), sizes.to_svg()]);
        }
        Ok(page)
    }
}

/// A figure along the stream: the mean over seeds, and one standard deviation around it where there are several.
fn band(name: &str, seeds: &[Vec<Window>], value: fn(&Window) -> f64) -> Series {
    let (mut points, mut edges) = (Vec::new(), Vec::new());
    for i in 0..seeds.first().map_or(0, Vec::len) {
        let spread = Spread::of(seeds.iter().map(|windows| 100.0 * value(&windows[i])));
        points.push((seeds[0][i].end as f64, spread.mean));
        edges.push((spread.mean - spread.sd, spread.mean + spread.sd));
    }
    let series = Series::new(name, points);
    if seeds.len() > 1 { series.band(edges) } else { series }
}

fn reliability_bins(bins: &[Bin]) -> Vec<ReliabilityBin> {
    let total: u64 = bins.iter().map(|b| b.n).sum();
    let bin = |b: &Bin| ReliabilityBin {
        confidence: b.prob / b.n as f64,
        accuracy: b.right as f64 / b.n as f64,
        share: b.n as f64 / total as f64,
        n: b.n as usize,
    };
    bins.iter().filter(|b| b.n > 0).map(bin).collect()
}

/// The paper's stability columns, the worst over datasets and seeds.
fn stability(page: Page, runs: &[Run]) -> Page {
    let mut worst: BTreeMap<(&str, &str), (f64, f64, f64, usize, u64, f64)> = BTreeMap::new();
    for run in runs {
        let s = &run.summary;
        let w = worst.entry((&s.protocol, &s.method)).or_default();
        w.0 = w.0.max(s.stability.max_prior_kl);
        w.1 = w.1.max(s.stability.max_movement);
        w.2 = w.2.min(s.stability.accuracy_drop);
        w.3 += usize::from(s.stability.collapsed);
        w.4 += s.guard_fired;
        w.5 = w.5.min(s.course.worst - s.course.zero_shot_worst);
    }
    let row = |((protocol, method), w): ((&str, &str), (f64, f64, f64, usize, u64, f64))| {
        vec![
            format!("{method} · {protocol}"),
            w.3.to_string(),
            format!("{:.3}", w.0),
            format!("{:.3}", w.1),
            format!("{:.1}", 100.0 * w.2),
            format!("{:.1}", 100.0 * w.5),
            w.4.to_string(),
        ]
    };
    let header = [
        "method · protocol",
        "runs collapsed",
        "max KL(π)",
        "max ‖Δt‖",
        "accuracy drop",
        "worst window",
        "guard fired",
    ];
    page.table(&Table {
        caption: "The worst over datasets and seeds; points against zero-shot".into(),
        header: header.map(String::from).to_vec(),
        rows: worst.into_iter().map(row).collect(),
    })
}

fn open_set(page: Page, runs: &[Run]) -> Page {
    let row = |run: &Run| {
        let (s, open) = (&run.summary, run.summary.open.as_ref()?);
        let percent = |v: f64| format!("{:.1}", 100.0 * v);
        Some(vec![
            format!("{} · {} · {} · {}", s.method, s.dataset, s.protocol, s.seed),
            open.strangers.to_string(),
            percent(open.max_softmax.auroc),
            percent(open.energy.auroc),
            percent(open.max_softmax.fpr95),
            percent(open.max_softmax.aupr),
            percent(open.zero_shot_max_softmax.auroc),
            percent(open.zero_shot_energy.auroc),
        ])
    };
    let rows: Vec<Vec<String>> = runs.iter().filter_map(row).collect();
    if rows.is_empty() {
        return page;
    }
    let header = [
        "run",
        "strangers",
        "AUROC softmax",
        "AUROC energy",
        "FPR@95",
        "AUPR",
        "zero-shot softmax",
        "zero-shot energy",
    ];
    let caption = "Telling samples of no known class from the others (%)".into();
    page.fold("Strangers").table(&Table { caption, header: header.map(String::from).to_vec(), rows }).unfold()
}

fn domains(page: Page, runs: &[Run]) -> Page {
    let mut rows = Vec::new();
    for run in runs {
        for (i, d) in run.summary.course.domains.iter().enumerate() {
            rows.push(vec![
                format!(
                    "{} · {} · {} · seed {} · {}. {}",
                    run.summary.method,
                    run.summary.dataset,
                    run.summary.protocol,
                    run.summary.seed,
                    i + 1,
                    d.name
                ),
                format!("{:.1}", 100.0 * d.top1),
                format!("{:.1}", 100.0 * d.zero_shot_top1),
                format!("{:+.1}", 100.0 * (d.top1 - d.zero_shot_top1)),
                d.recovery.map_or("never".into(), |n| n.to_string()),
            ]);
        }
    }
    if rows.is_empty() {
        return page;
    }
    let header = ["run and visit", "top-1", "zero-shot", "gain", "samples to recover"];
    let caption = "One stream without reset".into();
    page.fold("Domain after domain")
        .table(&Table { caption, header: header.map(String::from).to_vec(), rows })
        .unfold()
}

/// Which prototypes and priors moved, and which answers changed: the first run of our own method, or of any.
fn stories(mut page: Page, runs: &[Run]) -> Page {
    let own = |r: &&Run| is_own(&r.summary.method) && !r.summary.drift.is_empty();
    let mut seen = BTreeSet::new();
    for run in runs.iter().filter(own).chain(runs.iter().filter(|r| !r.summary.drift.is_empty()).take(1)) {
        let s = &run.summary;
        let is_own = is_own(&s.method);
        if !seen.insert((&s.dataset, is_own)) || (!is_own && seen.len() > 1) {
            continue;
        }
        if seen.len() > 4 {
            break;
        }
        let title = format!("{} on {}, {}", s.method, s.dataset, s.protocol);
        let classes: Vec<String> = s.drift.iter().map(|d| d.class.clone()).collect();
        let uniform = 1.0 / s.classes as f64;
        let movement = Bars::new(format!("{title}: movement"), "‖Δt‖", classes.clone()).group(
            "movement",
            s.drift.iter().map(|d| d.movement).collect(),
            Vec::new(),
            1,
        );
        let prior = Bars::new(format!("{title}: prior"), "prior, times uniform", classes).group(
            "prior",
            s.drift.iter().map(|d| d.prior / uniform).collect(),
            Vec::new(),
            3,
        );
        let kind = |f: &Flip| if f.adapted == f.class { "helpful" } else { "harmful" };
        let rows = s.flips.examples.iter().map(|f| {
            vec![f.id.clone(), kind(f).into(), f.class.clone(), f.zero_shot.clone(), f.adapted.clone()]
        });
        let shown = s.flips.examples.iter().filter_map(|f| {
            let caption = format!("{}: {}, was {}, is {}", kind(f), f.class, f.zero_shot, f.adapted);
            Some((f.thumbnail.clone()?, caption))
        });
        let shown: Vec<(String, String)> = shown.collect();
        let header = ["row", "flip", "class", "zero-shot said", "adapted said"];
        page = page
            .fold(&format!("What moved: {title}"))
            .figures(vec![movement.to_svg(), prior.to_svg()])
            .table(&Table {
                caption: format!(
                    "Flips against zero-shot: {} helpful, {} harmful, {} between wrong answers; the last of each",
                    s.flips.helpful, s.flips.harmful, s.flips.neutral
                ),
                header: header.map(String::from).to_vec(),
                rows: rows.collect(),
            });
        if !shown.is_empty() {
            page = page.thumbnails(&shown);
        }
        page = page.unfold();
    }
    page
}
