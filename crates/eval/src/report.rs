//! Reports over runs: tables as Markdown and LaTeX, and one self-contained HTML page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ultta::{Error, Result};

use crate::driver::{read_run, read_windows};
use crate::metrics::{Bin, Spread};
use crate::pictures::Cost;
use crate::plot::{Bars, LineChart, Page, Reliability, ReliabilityBin, Scatter, Series, Table};
use crate::summary::{Cell, Run, Window, cells};

/// Methods drawn along a stream: more lines cannot be told apart.
const LINES: usize = 6;

/// Runs read from a folder, and what could not be read.
#[derive(Default)]
pub struct Runs {
    /// Run and folder.
    pub runs: Vec<(Run, PathBuf)>,
    /// Folders that hold something else, or a torn run.
    pub unreadable: Vec<String>,
}

/// Reads every run below a folder, sorted by path.
pub fn read(folder: &Path) -> Result<Runs> {
    let mut found = Runs::default();
    let mut folders = vec![folder.to_owned()];
    let mut places = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|source| Error::Io {
            doing: "opening",
            source,
            path: folder.clone(),
        })?;
        for path in entries.flatten().map(|e| e.path()) {
            let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path.ends_with("summary.json") || path.ends_with("config.toml") {
                places.insert(folder.clone());
            }
        }
    }
    for place in places {
        match read_run(&place) {
            Ok(run) => {
                // A torn file costs its own line in the plots, no more.
                found.unreadable.extend(read_windows(&place).err().map(|error| error.to_string()));
                found.runs.push((run, place));
            }
            Err(error) => found.unreadable.push(error.to_string()),
        }
    }
    Ok(found)
}

/// What a table shows.
#[derive(Clone, Copy)]
struct Figure {
    title: &'static str,
    value: fn(&Cell) -> Spread,
    zero_shot: fn(&Cell) -> Spread,
    /// Percent, or plain.
    scale: f64,
    higher_is_better: bool,
    /// A loss against zero-shot smaller than this is none.
    tolerance: f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        title: "Top-1 (%)",
        value: |c| c.top1,
        zero_shot: |c| c.zero_shot_top1,
        scale: 100.0,
        higher_is_better: true,
        tolerance: 5e-4,
    },
    Figure {
        title: "ECE (%)",
        value: |c| c.ece,
        zero_shot: |c| c.zero_shot_ece,
        scale: 100.0,
        higher_is_better: false,
        tolerance: 5e-4,
    },
    Figure {
        title: "NLL",
        value: |c| c.nll,
        zero_shot: |c| c.zero_shot_nll,
        scale: 1.0,
        higher_is_better: false,
        tolerance: 5e-4,
    },
];

/// Methods × datasets of one protocol.
struct Grid<'a> {
    protocol: &'a str,
    datasets: Vec<&'a str>,
    /// Methods, best mean of the first figure first.
    methods: Vec<&'a str>,
    cells: BTreeMap<(&'a str, &'a str), &'a Cell>,
}

impl<'a> Grid<'a> {
    fn all(cells: &'a [Cell]) -> Vec<Self> {
        let protocols: BTreeSet<&str> = cells.iter().map(|c| c.protocol.as_str()).collect();
        protocols.into_iter().map(|p| Self::new(cells, p)).collect()
    }

    fn new(cells: &'a [Cell], protocol: &'a str) -> Self {
        let own: Vec<&Cell> = cells.iter().filter(|c| c.protocol == protocol).collect();
        let datasets: BTreeSet<&str> = own.iter().map(|c| c.dataset.as_str()).collect();
        let methods: BTreeSet<&str> = own.iter().map(|c| c.method.as_str()).collect();
        let cells = own.iter().map(|c| ((c.method.as_str(), c.dataset.as_str()), *c)).collect();
        let mut grid = Self {
            protocol,
            datasets: datasets.into_iter().collect(),
            methods: methods.into_iter().collect(),
            cells,
        };
        let mean = |m: &&str| grid.mean(m, &FIGURES[0]).unwrap_or(f64::NEG_INFINITY);
        let mut methods = grid.methods.clone();
        methods.sort_by(|a, b| mean(b).total_cmp(&mean(a)).then(a.cmp(b)));
        grid.methods = methods;
        grid
    }

    fn cell(&self, method: &str, dataset: &str) -> Option<&'a Cell> {
        self.cells.iter().find(|(k, _)| k.0 == method && k.1 == dataset).map(|(_, c)| *c)
    }

    /// Mean over the datasets, where the method ran on all of them.
    fn mean(&self, method: &str, figure: &Figure) -> Option<f64> {
        let values: Option<Vec<f64>> =
            self.datasets.iter().map(|d| self.cell(method, d).map(|c| (figure.value)(c).mean)).collect();
        values.map(|v| v.iter().sum::<f64>() / v.len() as f64)
    }

    fn zero_shot(&self, dataset: &str, figure: &Figure) -> Option<f64> {
        let cell = self.methods.iter().find_map(|m| self.cell(m, dataset))?;
        Some((figure.zero_shot)(cell).mean)
    }

    /// Header and rows; the best of each column is starred, losses against zero-shot are marked ▼.
    fn table(&self, figure: &Figure) -> (Vec<String>, Vec<Vec<String>>) {
        let worse = |value: f64, zero: f64| match figure.higher_is_better {
            true => value < zero - figure.tolerance,
            false => value > zero + figure.tolerance,
        };
        let better = |a: f64, b: f64| if figure.higher_is_better { a > b } else { a < b };
        let best = |values: &[Option<f64>]| {
            values.iter().flatten().copied().reduce(|a, b| if better(b, a) { b } else { a })
        };
        let columns: Vec<Vec<Option<f64>>> = self
            .datasets
            .iter()
            .map(|d| self.methods.iter().map(|m| self.cell(m, d).map(|c| (figure.value)(c).mean)).collect())
            .chain([self.methods.iter().map(|m| self.mean(m, figure)).collect()])
            .collect();
        let zeros: Vec<Option<f64>> = self
            .datasets
            .iter()
            .map(|d| self.zero_shot(d, figure))
            .chain([{
                let all: Option<Vec<f64>> = self.datasets.iter().map(|d| self.zero_shot(d, figure)).collect();
                all.map(|v| v.iter().sum::<f64>() / v.len().max(1) as f64)
            }])
            .collect();
        let show = |value: Option<f64>, column: usize, spread: Option<f64>| {
            let Some(value) = value else { return "–".to_string() };
            let digits = if figure.scale == 1.0 { 3 } else { 1 };
            let mut text = format!("{:.digits$}", value * figure.scale);
            if let Some(sd) = spread.filter(|sd| *sd > 0.0) {
                let _ = write!(text, " ±{:.digits$}", sd * figure.scale);
            }
            if best(&columns[column]) == Some(value) {
                text.push_str(" ★");
            }
            if zeros[column].is_some_and(|zero| worse(value, zero)) {
                text.push_str(" ▼");
            }
            text
        };
        let mut header = vec!["method".to_string()];
        header.extend(self.datasets.iter().map(|d| short(d, &self.datasets)));
        header.push("mean".into());
        let row = |(i, method): (usize, &&str)| {
            let mut row = vec![method.to_string()];
            for (column, dataset) in self.datasets.iter().enumerate() {
                let sd = self.cell(method, dataset).map(|c| (figure.value)(c).sd);
                row.push(show(columns[column][i], column, sd));
            }
            row.push(show(columns[self.datasets.len()][i], self.datasets.len(), None));
            row
        };
        let mut rows: Vec<Vec<String>> = self.methods.iter().enumerate().map(row).collect();
        if !self.methods.contains(&"zero-shot") {
            let digits = if figure.scale == 1.0 { 3 } else { 1 };
            let value =
                |z: &Option<f64>| z.map_or("–".into(), |z| format!("{:.digits$}", z * figure.scale));
            rows.push(std::iter::once("(zero-shot)".to_string()).chain(zeros.iter().map(value)).collect());
        }
        (header, rows)
    }
}

/// A dataset's name without the folders that all names end in.
fn short(name: &str, all: &[&str]) -> String {
    let first = |n: &str| n.split('/').next().unwrap_or(n).to_string();
    let unique = |n: &str| all.iter().filter(|o| first(o) == n).count() == 1;
    if name.contains('+') {
        return name.split('+').map(first).collect::<Vec<_>>().join(" → ");
    }
    Some(first(name)).filter(|n| unique(n)).unwrap_or_else(|| name.to_string())
}

fn seeds_note(cells: &[Cell]) -> String {
    let seeds = cells.iter().map(|c| c.seeds).max().unwrap_or(0);
    format!(
        "Means over {seeds} seed(s), ± one standard deviation; ★ best, ▼ worse than zero-shot on the same samples."
    )
}

/// Tables as Markdown.
pub fn markdown(runs: &[Run]) -> String {
    let cells = cells(runs);
    let mut out = format!("{}\n", seeds_note(&cells));
    for grid in Grid::all(&cells) {
        for figure in &FIGURES {
            let (header, rows) = grid.table(figure);
            let _ = writeln!(out, "\n**{} — {}**\n", grid.protocol, figure.title);
            let _ = writeln!(out, "| {} |", header.join(" | "));
            let _ = writeln!(out, "|{}", "---|".repeat(header.len()));
            for row in rows {
                let _ = writeln!(out, "| {} |", row.join(" | "));
            }
        }
    }
    out.push_str(&costs(runs));
    out
}

/// What pictures cost, beside zero-shot; nothing on features.
fn costs(runs: &[Run]) -> String {
    let mut out = String::new();
    let mut groups: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&Run>>> = BTreeMap::new();
    for run in runs.iter().filter(|r| r.summary.cost.is_some()) {
        let s = &run.summary;
        groups.entry((&s.protocol, &s.dataset)).or_default().entry(&s.method).or_default().push(run);
    }
    for ((protocol, dataset), methods) in groups {
        let _ = writeln!(out, "\n**{protocol} — {dataset}: cost per picture, × zero-shot in brackets**\n");
        let _ = writeln!(
            out,
            "| method | parameters updated | forwards | backwards | texts | MFLOP | ms | peak MB | collapsed | max KL |"
        );
        let _ = writeln!(out, "|{}", "---|".repeat(10));
        let mean = |runs: &[&Run], value: &dyn Fn(&Run) -> f64| {
            runs.iter().map(|r| value(r)).sum::<f64>() / runs.len().max(1) as f64
        };
        let flops = |r: &Run| r.summary.cost.map_or(0.0, |c| c.flops) / 1e6;
        let ms = |r: &Run| 1e3 * (r.timing.encode_seconds + 1.0 / r.timing.samples_per_second.max(1e-9));
        let peak = |r: &Run| r.timing.peak_bytes as f64 / (1 << 20) as f64;
        let zero = methods.get("zero-shot").cloned();
        let times = |value: f64, of: &dyn Fn(&Run) -> f64| match &zero {
            Some(zero) if mean(zero, of) > 0.0 => format!(" ({:.2})", value / mean(zero, of)),
            _ => String::new(),
        };
        for (method, runs) in &methods {
            let cost = |value: fn(&Cost) -> f64| mean(runs, &|r| r.summary.cost.as_ref().map_or(0.0, value));
            let (f, m, p) = (mean(runs, &flops), mean(runs, &ms), mean(runs, &peak));
            let collapsed = runs.iter().filter(|r| r.summary.stability.collapsed).count();
            let _ = writeln!(
                out,
                "| {method} | {} | {:.2} | {:.2} | {:.2} | {f:.2}{} | {m:.3}{} | {p:.0}{} | {} | {:.3} |",
                cost(|c| c.parameters as f64),
                cost(|c| c.forwards),
                cost(|c| c.backwards),
                cost(|c| c.texts),
                times(f, &flops),
                times(m, &ms),
                times(p, &peak),
                if collapsed > 0 { format!("yes ({collapsed} of {})", runs.len()) } else { "no".into() },
                runs.iter().map(|r| r.summary.stability.max_answer_kl).fold(0.0, f64::max),
            );
        }
    }
    out
}

/// Tables as LaTeX (booktabs), best in bold, losses in italics.
pub fn latex(runs: &[Run]) -> String {
    let cells = cells(runs);
    let mut out = format!("% {}\n", seeds_note(&cells).replace('★', "bold:").replace('▼', "italic:"));
    let escape =
        |t: &str| t.replace('&', "\\&").replace('%', "\\%").replace('_', "\\_").replace('→', "$\\to$");
    for grid in Grid::all(&cells) {
        for figure in &FIGURES {
            let (header, rows) = grid.table(figure);
            let cell = |text: &String| {
                let (best, loss) = (text.contains('★'), text.contains('▼'));
                let plain = text.replace(" ★", "").replace(" ▼", "").replace('–', "--");
                let plain = escape(&plain).replace('±', "$\\pm$");
                match (best, loss) {
                    (true, _) => format!("\\textbf{{{plain}}}"),
                    (false, true) => format!("\\textit{{{plain}}}"),
                    _ => plain,
                }
            };
            let columns = "l".to_string() + &"r".repeat(header.len() - 1);
            let _ = writeln!(
                out,
                "\\begin{{table}}\n\\caption{{{}: {}}}",
                escape(grid.protocol),
                escape(figure.title)
            );
            let _ = writeln!(out, "\\begin{{tabular}}{{{columns}}}\n\\toprule");
            let _ = writeln!(
                out,
                "{} \\\\\n\\midrule",
                header.iter().map(|h| escape(h)).collect::<Vec<_>>().join(" & ")
            );
            for row in rows {
                let _ = writeln!(out, "{} \\\\", row.iter().map(cell).collect::<Vec<_>>().join(" & "));
            }
            let _ = writeln!(out, "\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n");
        }
    }
    out
}

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
    for grid in Grid::all(&cells) {
        page = page.section(&format!("Protocol {}", grid.protocol));
        for figure in &FIGURES {
            let (header, rows) = grid.table(figure);
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
                    "{} · seed {} · {}. {}",
                    run.summary.method,
                    run.summary.seed,
                    i + 1,
                    short(&d.name, &[])
                ),
                format!("{:.1}", 100.0 * d.top1),
                format!("{:.1}", 100.0 * d.zero_shot_top1),
                d.recovery.map_or("never".into(), |n| n.to_string()),
            ]);
        }
    }
    if rows.is_empty() {
        return page;
    }
    let header = ["run and domain", "top-1", "zero-shot", "samples to recover"];
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
