//! The self-contained page.

use std::collections::{BTreeMap, BTreeSet};

use ultta::Result;

use super::grid::{FIGURES, FigureTable, Grid, Shown, seeds_note, short};
use super::{Runs, harm};
use crate::metrics::Bin;
use crate::plot::{Bars, LineChart, Page, Reliability, ReliabilityBin, Scatter, Series, Table};
use crate::run_folder::read_windows;
use crate::summary::{Cell, Run, Window, cells};

/// Methods drawn along a stream: more lines cannot be told apart.
const LINES: usize = 6;

/// The self-contained page.
pub fn html(found: &Runs) -> Result<String> {
    let runs: Vec<Run> = found.runs.iter().map(|(run, _)| run.clone()).collect();
    let cells = cells(&runs);
    let datasets: BTreeSet<&str> = cells.iter().map(|c| c.dataset.as_str()).collect();
    let methods: BTreeSet<&str> = cells.iter().map(|c| c.method.as_str()).collect();
    let mut page = Page::new("Test-time adaptation: evaluation").lead(&format!(
        "{} runs: {} methods on {} datasets. Every figure stands beside the frozen model's on the same samples.",
        runs.len(),
        methods.len(),
        datasets.len()
    ));
    page = page.text(&seeds_note(&cells));
    for reason in &found.unreadable {
        page = page.note(&format!("Left out: {reason}"));
    }
    page = harm::section(page, &runs);
    for grid in Grid::all(&cells) {
        page = page.section(&format!("Protocol {}", grid.protocol));
        for figure in &FIGURES {
            let FigureTable { header, rows } = grid.table(figure);
            let row = |(method, figures): (String, Vec<Shown>)| {
                std::iter::once(method).chain(figures.iter().map(Shown::marked)).collect()
            };
            let rows = rows.into_iter().map(row).collect();
            page =
                page.table(&Table { caption: format!("{}, {}", figure.title, grid.protocol), header, rows });
        }
        page = page.figures(vec![pareto(&grid), cost(&grid)]);
        for dataset in &grid.datasets {
            page = stream_figures(page, found, &grid, dataset)?;
        }
    }
    page = stability(page, &runs);
    page = open_set(page, &runs);
    page = domains(page, &runs);
    page = stories(page, &runs);
    Ok(page.to_html())
}

/// A colour for each method, the same in every chart: grey for zero-shot, then UL-TTA, then by rank.
fn drawn<'a>(grid: &Grid<'a>) -> Vec<(&'a str, usize)> {
    let mut names: Vec<&str> = ["zero-shot", "ul-tta", "ul-tta:paper"]
        .into_iter()
        .filter_map(|n| grid.methods.iter().find(|m| **m == n).copied())
        .collect();
    for method in &grid.methods {
        if names.len() < LINES && !names.contains(method) {
            names.push(method);
        }
    }
    let mut next = 0;
    names
        .into_iter()
        .map(|n| match n {
            "zero-shot" => (n, 0),
            _ => {
                next += 1;
                (n, next)
            }
        })
        .collect()
}

fn colour(grid: &Grid<'_>, method: &str) -> usize {
    drawn(grid).iter().find(|(n, _)| *n == method).map_or(LINES, |(_, c)| *c)
}

/// Mean top-1 against mean ECE.
fn pareto(grid: &Grid<'_>) -> String {
    let title = format!("Accuracy and calibration, {}", grid.protocol);
    let mut chart = Scatter::new(title, "mean ECE (%), lower is better", "mean top-1 (%)");
    for method in &grid.methods {
        if let (Some(top1), Some(ece)) = (grid.mean(method, &FIGURES[0]), grid.mean(method, &FIGURES[1])) {
            let series = Series::new("", vec![(100.0 * ece, 100.0 * top1)]).colour(colour(grid, method));
            chart = chart.series(series, vec![method.to_string()]);
        }
    }
    chart.to_svg()
}

/// Microseconds a sample against the gain in top-1.
fn cost(grid: &Grid<'_>) -> String {
    let title = format!("Cost and gain, {}", grid.protocol);
    let mut chart = Scatter::new(title, "mean time per sample (µs, log₁₀)", "mean gain in top-1 (points)");
    for method in &grid.methods {
        let cells: Vec<&Cell> = grid.datasets.iter().filter_map(|d| grid.cell(method, d)).collect();
        if cells.is_empty() {
            continue;
        }
        let mean =
            |value: &dyn Fn(&Cell) -> f64| cells.iter().map(|c| value(c)).sum::<f64>() / cells.len() as f64;
        let micros = mean(&|c| 1e6 / c.samples_per_second.mean.max(1e-9));
        let gain = mean(&|c| 100.0 * (c.top1.mean - c.zero_shot_top1.mean));
        let series = Series::new("", vec![(micros.log10(), gain)]).colour(colour(grid, method));
        chart = chart.series(series, vec![method.to_string()]);
    }
    chart.to_svg()
}

/// Accuracy and calibration along the stream and reliability diagrams, first seed.
fn stream_figures(mut page: Page, found: &Runs, grid: &Grid<'_>, dataset: &str) -> Result<Page> {
    let name = short(dataset, &grid.datasets);
    let mut accuracy =
        LineChart::new(format!("{name}: gain in top-1 along the stream"), "sample", "points over zero-shot");
    let mut calibration = LineChart::new(format!("{name}: ECE so far"), "sample", "ECE (%)");
    let mut reliability = Reliability::new(format!("{name}: reliability"));
    let mut any = false;
    for (method, colour) in drawn(grid) {
        let own = |r: &Run| {
            r.summary.protocol == grid.protocol && r.summary.dataset == dataset && r.summary.method == method
        };
        let Some((run, folder)) = found.runs.iter().find(|(run, _)| own(run)) else { continue };
        let Ok(windows) = read_windows(folder) else { continue };
        any = true;
        let line = |value: fn(&Window) -> f64| {
            let points = windows.iter().map(|w| (w.end as f64, 100.0 * value(w))).collect();
            Series::new(method, points).colour(colour)
        };
        accuracy = accuracy.series(line(|w| w.top1 - w.zero_shot_top1));
        calibration = calibration.series(line(|w| w.ece));
        if colour <= 2 {
            reliability = reliability.series(method, &reliability_bins(&run.summary.reliability), colour);
            if accuracy_spans(run) && colour == 1 {
                let mut from = 0.0;
                for domain in &run.summary.course.domains {
                    let to = from + domain.n as f64;
                    accuracy = accuracy.span(from, to, short(&domain.name, &[]));
                    from = to;
                }
            }
        }
    }
    if any {
        page = page.figures(vec![accuracy.to_svg(), calibration.to_svg(), reliability.to_svg()]);
    }
    Ok(page)
}

fn accuracy_spans(run: &Run) -> bool {
    !run.summary.course.domains.is_empty()
}

fn reliability_bins(bins: &[Bin]) -> Vec<ReliabilityBin> {
    let total: u64 = bins.iter().map(|b| b.n).sum();
    let bin = |b: &Bin| ReliabilityBin {
        confidence: b.prob / b.n as f64,
        accuracy: b.right as f64 / b.n as f64,
        share: b.n as f64 / total as f64,
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
    page.section("Stability").table(&Table {
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
            format!("{} · {} · {} · {}", s.method, short(&s.dataset, &[]), s.protocol, s.seed),
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
    page.section("Strangers").table(&Table {
        caption: "Telling samples of no known class from the others (%)".into(),
        header: header.map(String::from).to_vec(),
        rows,
    })
}

fn domains(page: Page, runs: &[Run]) -> Page {
    let mut rows = Vec::new();
    for run in runs {
        for (i, d) in run.summary.course.domains.iter().enumerate() {
            rows.push(vec![
                format!(
                    "{} · {} · {} · seed {} · {}. {}",
                    run.summary.method,
                    short(&run.summary.dataset, &[]),
                    run.summary.protocol,
                    run.summary.seed,
                    i + 1,
                    short(&d.name, &[])
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
    page.section("Domain after domain").table(&Table {
        caption: "One stream without reset".into(),
        header: header.map(String::from).to_vec(),
        rows,
    })
}

/// Which prototypes and priors moved, and which answers changed: the first run of UL-TTA, or of any method.
fn stories(mut page: Page, runs: &[Run]) -> Page {
    let own = |r: &&Run| r.summary.method == "ul-tta" && !r.summary.drift.is_empty();
    let mut seen = BTreeSet::new();
    for run in runs.iter().filter(own).chain(runs.iter().filter(|r| !r.summary.drift.is_empty()).take(1)) {
        let s = &run.summary;
        if !seen.insert((&s.dataset, s.method == "ul-tta")) || (s.method != "ul-tta" && seen.len() > 1) {
            continue;
        }
        if seen.len() > 4 {
            break;
        }
        let title = format!("{} on {}, {}", s.method, short(&s.dataset, &[]), s.protocol);
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
        let rows = s.flips.examples.iter().map(|f| {
            let kind = if f.adapted == f.class { "helpful" } else { "harmful" };
            vec![f.id.clone(), kind.into(), f.class.clone(), f.zero_shot.clone(), f.adapted.clone()]
        });
        let header = ["row", "flip", "class", "zero-shot said", "adapted said"];
        page = page
            .section(&format!("What moved: {title}"))
            .figures(vec![movement.to_svg(), prior.to_svg()])
            .table(&Table {
                caption: format!(
                    "Flips against zero-shot: {} helpful, {} harmful, {} between wrong answers; the last of each",
                    s.flips.helpful, s.flips.harmful, s.flips.neutral
                ),
                header: header.map(String::from).to_vec(),
                rows: rows.collect(),
            });
    }
    page
}
