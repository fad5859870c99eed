//! Where a method does harm: packs × protocols, gain and loss against zero-shot at a glance, losses counted and the
//! worst ones first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::grid::{filled, short};
use crate::method::is_baseline;
use crate::metrics::{Interval, ShotFigures};
use crate::plot::{HeatCell, Page, Table};
use crate::protocol::HARM;
use crate::refused::{Refused, Why};
use crate::summary::{Run, Summary};

/// Losses that are listed one by one.
const WORST: usize = 20;

/// Up to this many methods, their matrices are shown without a click.
const OPEN: usize = 2;

/// One figure of the matrix, as a gain: above 0 the method is better than zero-shot on the same samples.
struct Figure {
    title: &'static str,
    unit: &'static str,
    gain: fn(&Summary) -> f64,
    /// Bootstrap interval of the change, on the same redrawn samples.
    change: fn(&Summary) -> Interval,
    /// Whether a larger figure is better: the sign of the change.
    higher_is_better: bool,
    scale: f64,
    digits: usize,
    /// A larger loss counts, if its interval leaves out 0.
    tolerance: f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        title: "Top-1",
        unit: "points",
        gain: |s| s.quality.top1 - s.zero_shot.top1,
        change: |s| s.intervals.gain,
        higher_is_better: true,
        scale: 100.0,
        digits: 1,
        tolerance: 0.5,
    },
    Figure {
        title: "ECE",
        unit: "points",
        gain: |s| s.zero_shot.ece - s.quality.ece,
        change: |s| s.intervals.ece_change,
        higher_is_better: false,
        scale: 100.0,
        digits: 1,
        tolerance: 1.0,
    },
    Figure {
        title: "NLL",
        unit: "nats",
        gain: |s| s.zero_shot.nll - s.quality.nll,
        change: |s| s.intervals.nll_change,
        higher_is_better: false,
        scale: 1.0,
        digits: 3,
        tolerance: 0.02,
    },
];

/// A figure of a pack under a protocol: the mean over seeds, as a gain.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gain {
    mean: f64,
    /// Mean over seeds of the upper end of the gain's interval: seeds order the same samples anew, they add none.
    high: f64,
    loses: bool,
}

/// All cells of one method.
struct Matrix<'a> {
    method: &'a str,
    packs: Vec<&'a str>,
    protocols: Vec<&'a str>,
    cells: BTreeMap<(&'a str, &'a str), [Gain; 3]>,
    /// Cells that no method can run in.
    not_applicable: BTreeSet<(&'a str, &'a str)>,
    /// Least gain in any window after garbage, least gain of a return against the first visit.
    after_garbage: Option<(f64, String)>,
    visits: Option<(f64, String)>,
}

impl<'a> Matrix<'a> {
    /// A matrix per method, where there is more than one protocol; zero-shot has none.
    fn all(runs: &'a [Run], refused: &'a [Refused]) -> Vec<Self> {
        let protocols: BTreeSet<&str> = runs.iter().map(|r| r.summary.protocol.as_str()).collect();
        let methods: BTreeSet<&str> = runs.iter().map(|r| r.summary.method.as_str()).collect();
        if protocols.len() < 2 {
            return Vec::new();
        }
        // The order of the set, then whatever else was run.
        let known = HARM.iter().filter_map(|name| protocols.get(name).copied());
        let further = protocols.iter().filter(|p| !HARM.contains(p)).copied();
        let protocols: Vec<&str> = known.chain(further).collect();
        let methods = methods.into_iter().filter(|m| !is_baseline(m));
        methods.map(|method| Self::new(runs, refused, method, &protocols)).collect()
    }

    fn new(runs: &'a [Run], refused: &'a [Refused], method: &'a str, protocols: &[&'a str]) -> Self {
        let own: Vec<&Summary> = runs.iter().map(|r| &r.summary).filter(|s| s.method == method).collect();
        let mut groups: BTreeMap<(&str, &str), Vec<&Summary>> = BTreeMap::new();
        for summary in &own {
            groups.entry((&summary.dataset, &summary.protocol)).or_default().push(summary);
        }
        let packs: BTreeSet<&str> = own.iter().map(|s| s.dataset.as_str()).collect();
        let place = |s: &Summary| format!("{}, {}, seed {}", s.dataset, s.protocol, s.seed);
        let least = |values: Vec<(f64, String)>| values.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let after = |s: &&Summary| s.after_garbage.as_ref().map(|a| (100.0 * a.worst_gain, place(s)));
        let returned = |s: &&Summary| least_return(s).map(|r| (r, place(s)));
        Self {
            method,
            packs: packs.into_iter().collect(),
            protocols: protocols.iter().copied().filter(|p| own.iter().any(|s| s.protocol == *p)).collect(),
            not_applicable: refused
                .iter()
                .filter(|r| r.why == Why::Strangers)
                .map(|r| (r.dataset.as_str(), r.protocol.as_str()))
                .collect(),
            after_garbage: least(own.iter().filter_map(after).collect()),
            visits: least(own.iter().filter_map(returned).collect()),
            cells: groups
                .into_iter()
                .map(|(key, runs)| (key, FIGURES.each_ref().map(|f| f.of(&runs))))
                .collect(),
        }
    }

    /// What stands in a cell without runs.
    fn gap(&self, pack: &str, protocol: &str) -> &'static str {
        if self.not_applicable.contains(&(pack, protocol)) { "n/a" } else { "" }
    }

    fn losses(&self, figure: usize) -> usize {
        self.cells.values().filter(|cell| cell[figure].loses).count()
    }

    fn mean(&self, figure: usize) -> f64 {
        self.cells.values().map(|cell| cell[figure].mean).sum::<f64>() / self.cells.len().max(1) as f64
    }

    fn worst(&self, figure: usize) -> f64 {
        self.cells.values().map(|cell| cell[figure].mean).fold(f64::INFINITY, f64::min)
    }

    /// Cells that lose by some figure, the worst first: by how many tolerances.
    fn listed(&self) -> Vec<Vec<String>> {
        let severity = |cell: &[Gain; 3]| {
            let each = FIGURES.iter().zip(cell).filter(|(_, gain)| gain.loses);
            each.map(|(figure, gain)| -gain.mean / figure.tolerance).fold(0.0, f64::max)
        };
        let mut losing: Vec<_> = self.cells.iter().filter(|(_, cell)| severity(cell) > 0.0).collect();
        losing.sort_by(|a, b| severity(b.1).total_cmp(&severity(a.1)).then(a.0.cmp(b.0)));
        let row = |((pack, protocol), cell): (&(&str, &str), &[Gain; 3])| {
            let mut row = vec![format!("{pack} · {protocol}")];
            row.extend(FIGURES.iter().zip(cell).map(|(figure, gain)| figure.marked(gain)));
            row
        };
        losing.into_iter().take(WORST).map(row).collect()
    }

    fn counts(&self) -> Vec<String> {
        let mut row = vec![self.method.to_string(), self.cells.len().to_string()];
        for (i, figure) in FIGURES.iter().enumerate() {
            let n = self.losses(i);
            let share = 100.0 * n as f64 / self.cells.len().max(1) as f64;
            row.push(figure.text(self.mean(i)));
            row.push(format!("{n} ({share:.1} %)"));
            row.push(figure.text(self.worst(i)));
        }
        row.push(self.after_garbage.as_ref().map_or("–".into(), |worst| format!("{:+.1}", worst.0)));
        row.push(self.visits.as_ref().map_or("–".into(), |worst| format!("{:+.1}", worst.0)));
        row
    }
}

impl Figure {
    fn of(&self, runs: &[&Summary]) -> Gain {
        let mean = |value: &dyn Fn(&Summary) -> f64| {
            self.scale * runs.iter().map(|s| value(s)).sum::<f64>() / runs.len().max(1) as f64
        };
        let gain = mean(&self.gain);
        let high = mean(&|s| {
            let change = (self.change)(s);
            if self.higher_is_better { change.high } else { -change.low }
        });
        Gain { mean: gain, high, loses: gain < -self.tolerance && high < 0.0 }
    }

    /// What the tables show of it: a gain in top-1, a change in ECE and NLL.
    fn title(&self) -> String {
        let Self { title, unit, .. } = self;
        if self.higher_is_better {
            format!("gain in {title} ({unit})")
        } else {
            format!("change in {title} ({unit}, below 0 is better)")
        }
    }

    /// A gain as the tables show it: where less is better, as the change that it is.
    fn text(&self, gain: f64) -> String {
        let digits = self.digits;
        let shown = if self.higher_is_better { gain } else { -gain };
        let text = format!("{shown:+.digits$}");
        if text.trim_matches(['+', '-', '0', '.']).is_empty() { text.replace('-', "+") } else { text }
    }

    fn marked(&self, gain: &Gain) -> String {
        format!("{}{}", self.text(gain.mean), if gain.loses { " ▼" } else { "" })
    }
}

/// The least gain of a later visit minus the gain of the first visit to the same state, in points.
fn least_return(summary: &Summary) -> Option<f64> {
    let visits = &summary.course.domains;
    let gain = |i: usize| 100.0 * (visits[i].top1 - visits[i].zero_shot_top1);
    let first = |i: usize| visits[..i].iter().position(|v| v.name == visits[i].name);
    // A last visit that was cut short says little.
    let whole = |i: &usize| 2 * visits[*i].n >= visits[0].n;
    let returns = (0..visits.len()).filter(whole).filter_map(|i| first(i).map(|f| gain(i) - gain(f)));
    returns.reduce(f64::min)
}

const COUNTS: [&str; 13] = [
    "method",
    "cells",
    "top-1, mean gain",
    "cells that lose",
    "worst",
    "ECE, mean change",
    "cells that lose",
    "worst",
    "NLL, mean change",
    "cells that lose",
    "worst",
    "worst 300 after garbage",
    "worst return",
];

const EXPLAINED: &str = "A cell is a pack under a protocol, the mean over seeds, against zero-shot on the same samples; \
    top-1 as a gain, above 0 is better; ECE and NLL as changes, below 0 is better. A cell loses (▼) if top-1 is more than 0.5 points below zero-shot, ECE more \
    than 1 point or NLL more than 0.02 nats above, and the paired bootstrap interval over samples leaves out 0. A cell with \
    n/a is not applicable: no other pack has strangers for it. An empty cell was not run. After garbage, and at a return to an \
    earlier state, the worst single run is told.";

/// The section of the page; nothing with a single protocol.
pub(super) fn section(mut page: Page, runs: &[Run], refused: &[Refused]) -> Page {
    let matrices = Matrix::all(runs, refused);
    if matrices.is_empty() {
        return page;
    }
    let (header, rows) = filled(&COUNTS, matrices.iter().map(Matrix::counts).collect());
    page = page.section("Gain and harm").text(EXPLAINED).table(&Table {
        caption: "All cells of each method; points, NLL in nats".into(),
        header,
        rows,
    });
    for matrix in &matrices {
        let title = format!("Gain and harm: {}", matrix.method);
        page = if matrices.len() <= OPEN { page.fold_open(&title) } else { page.fold(&title) };
        let worst = matrix.listed();
        if worst.is_empty() {
            page = page.text("No cell loses.");
        } else {
            page = page.table(&Table {
                caption: format!("{}: cells that lose, the worst first (at most {WORST})", matrix.method),
                header: ["pack · protocol", "top-1", "ECE", "NLL"].map(String::from).to_vec(),
                rows: worst,
            });
        }
        for (i, figure) in FIGURES.iter().enumerate() {
            let cell = |pack: &str, protocol: &str| match matrix.cells.get(&(pack, protocol)) {
                None => HeatCell { text: matrix.gap(pack, protocol).into(), ..HeatCell::default() },
                Some(cell) => HeatCell {
                    text: figure.marked(&cell[i]),
                    title: format!("{pack}, {protocol}"),
                    tone: tone(cell[i].mean / figure.tolerance),
                },
            };
            let row = |pack: &&str| {
                let cells = matrix.protocols.iter().map(|protocol| cell(pack, protocol)).collect();
                (short(pack, &matrix.packs), cells)
            };
            let caption = format!("{}: {}", matrix.method, figure.title());
            let header: Vec<String> = matrix.protocols.iter().map(|p| p.to_string()).collect();
            page = page.heat(&caption, &header, &matrix.packs.iter().map(row).collect::<Vec<_>>());
        }
        page = page.unfold();
    }
    page
}

/// Switches and shots, cell by cell.
pub(super) fn steadiness(page: Page, runs: &[Run]) -> Page {
    let mut cells: BTreeMap<(&str, &str, &str), Vec<(&Summary, &ShotFigures)>> = BTreeMap::new();
    for summary in runs.iter().map(|run| &run.summary) {
        if let Some(shots) = &summary.shots {
            let key = (summary.method.as_str(), summary.dataset.as_str(), summary.protocol.as_str());
            cells.entry(key).or_default().push((summary, shots));
        }
    }
    if cells.is_empty() {
        return page;
    }
    let row = |((method, dataset, protocol), runs): (_, Vec<(&Summary, &ShotFigures)>)| {
        let from_to = |digits: usize, both: &dyn Fn(&Summary, &ShotFigures) -> [f64; 2]| {
            let mean =
                |i: usize| runs.iter().map(|(s, shots)| both(s, shots)[i]).sum::<f64>() / runs.len() as f64;
            format!("{:.digits$} → {:.digits$}", mean(0), mean(1))
        };
        vec![
            format!("{method} · {} · {protocol}", short(dataset, &[])),
            from_to(1, &|s, _| [s.switches.zero_shot, s.switches.adapted]),
            from_to(1, &|_, shots| [shots.switches.zero_shot, shots.switches.adapted]),
            from_to(2, &|_, shots| [shots.zero_shot.confidence, shots.adapted.confidence]),
            from_to(2, &|_, shots| [shots.zero_shot.accuracy, shots.adapted.accuracy]),
            from_to(1, &|_, shots| [100.0 * shots.zero_shot.ece, 100.0 * shots.adapted.ece]),
        ]
    };
    let header =
        ["cell", "switches per 100", "within a shot", "confidence", "accuracy", "ECE over shots (%)"];
    page.fold("Shots")
        .table(&Table {
            caption: "Near-copies of a picture, zero-shot → adapted, means over seeds; each shot counts once from the \
                      fourth column on"
                .into(),
            header: header.map(String::from).to_vec(),
            rows: cells.into_iter().map(row).collect(),
        })
        .unfold()
}

/// From −3 (a large loss) to 3 (a large gain), by how many tolerances.
fn tone(tolerances: f64) -> i8 {
    let size = match tolerances.abs() {
        t if t < 1.0 => 0,
        t if t < 4.0 => 1,
        t if t < 16.0 => 2,
        _ => 3,
    };
    if tolerances < 0.0 { -size } else { size }
}

/// Harm as Markdown: counts, the worst cells, and the matrix of each figure.
pub(super) fn markdown(runs: &[Run], refused: &[Refused]) -> String {
    let matrices = Matrix::all(runs, refused);
    let mut out = String::new();
    if matrices.is_empty() {
        return out;
    }
    let table = |out: &mut String, title: &str, header: &[String], rows: &[Vec<String>]| {
        let _ =
            writeln!(out, "\n**{title}**\n\n| {} |\n|{}", header.join(" | "), "---|".repeat(header.len()));
        for row in rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
    };
    for matrix in &matrices {
        for (i, figure) in FIGURES.iter().enumerate() {
            let mut header = vec!["pack".to_string()];
            header.extend(matrix.protocols.iter().map(|p| p.to_string()));
            let row = |pack: &&str| {
                let cell =
                    |protocol: &&str| matrix.cells.get(&(*pack, *protocol)).map(|c| figure.marked(&c[i]));
                let cells =
                    matrix.protocols.iter().map(|p| cell(p).unwrap_or_else(|| matrix.gap(pack, p).into()));
                std::iter::once(short(pack, &matrix.packs)).chain(cells).collect()
            };
            let rows: Vec<Vec<String>> = matrix.packs.iter().map(row).collect();
            let title = format!("{} — {}", matrix.method, figure.title());
            table(&mut out, &title, &header, &rows);
        }
        let listed = matrix.listed();
        if !listed.is_empty() {
            let header = ["pack · protocol", "top-1", "ECE", "NLL"].map(String::from);
            table(
                &mut out,
                &format!("{} — cells that lose, the worst first", matrix.method),
                &header,
                &listed,
            );
        }
    }
    let (header, counts) = filled(&COUNTS, matrices.iter().map(Matrix::counts).collect());
    table(&mut out, "Gain and harm", &header, &counts);
    let _ = writeln!(out, "\n{EXPLAINED}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Method;
    use crate::plan::Plan;
    use crate::summary::Domain;
    use crate::testing::{Made, datasets};

    /// Zero-shot under two protocols, called a method: every gain is 0.
    fn runs() -> Vec<Run> {
        let folder = tempfile::tempdir().unwrap();
        let method = Method { name: "ours".into(), ..Method::resolve("zero-shot", None).unwrap() };
        let plan = Plan {
            datasets: datasets(folder.path(), &[Made::named("sea"), Made::named("sky")]),
            strangers: Vec::new(),
            in_distribution: None,
            methods: vec![method],
            protocols: ["sorted", "iid"].iter().map(|p| p.parse().unwrap()).collect(),
            seeds: vec![0],
            out: folder.path().join("runs"),
            jobs: 2,
            patience: None,
        };
        plan.run(&()).unwrap().runs
    }

    #[test]
    fn a_loss_counts_beyond_its_tolerance_and_its_interval() {
        let mut runs = runs();
        let matrix = |runs: &[Run]| {
            let all = Matrix::all(runs, &[]);
            assert_eq!((all.len(), &all[0].protocols[..]), (1, &["iid", "sorted"][..]));
            ([0, 1, 2].map(|i| all[0].losses(i)), all[0].listed())
        };
        assert_eq!(matrix(&runs), ([0; 3], Vec::new()));
        let lose = |run: &mut Run, loss: f64, high: f64| {
            run.summary.quality.top1 = run.summary.zero_shot.top1 - loss;
            run.summary.intervals.gain = Interval { low: -1.0, high };
        };
        lose(&mut runs[0], 0.01, 0.001);
        assert_eq!(matrix(&runs).0, [0, 0, 0], "the interval holds 0");
        lose(&mut runs[0], 0.004, -0.001);
        assert_eq!(matrix(&runs).0, [0, 0, 0], "less than half a point");
        lose(&mut runs[0], 0.01, -0.001);
        // A larger loss in NLL, elsewhere, comes first.
        runs[3].summary.quality.nll = runs[3].summary.zero_shot.nll + 0.5;
        runs[3].summary.intervals.nll_change = Interval { low: 0.4, high: 0.6 };
        let (counts, listed) = matrix(&runs);
        assert_eq!(counts, [1, 0, 1]);
        assert_eq!(listed[0], ["sky · iid", "+0.0", "+0.0", "+0.500 ▼"]);
        assert_eq!(listed[1][..2], ["sea · sorted", "-1.0 ▼"]);
        let text = markdown(&runs, &[]);
        assert!(
            text.contains("| ours | 4 |") && text.contains("ours — change in NLL (nats, below 0 is better)")
        );
        assert!(
            !text.contains("worst 300 after garbage") && !text.contains("worst return"),
            "no row fills them"
        );
        assert_eq!(markdown(&runs[..1], &[]), "", "one protocol is no matrix");
        // Sky under iid was not run, or cannot be.
        let (protocol, dataset, method) = ("iid".to_string(), "sky".to_string(), "ours".to_string());
        let alone = Refused { protocol, dataset, method, why: Why::Strangers, reason: "alone".into() };
        assert!(
            markdown(&runs[..3], &[]).contains(" |  |") && !markdown(&runs[..3], &[]).contains("| n/a |")
        );
        assert!(markdown(&runs[..3], &[alone]).contains("| n/a |"));
    }

    #[test]
    fn a_return_is_held_against_the_first_visit() {
        let mut summary = runs().remove(0).summary;
        assert_eq!(least_return(&summary), None);
        let visit = |name: &str, gain: f64, n: usize| Domain {
            name: name.into(),
            n,
            top1: 0.5 + gain,
            zero_shot_top1: 0.5,
            recovery: None,
        };
        let visits = [("plain", 0.02, 50), ("shifted", 0.0, 50), ("plain", 0.03, 50), ("shifted", -0.01, 50)];
        summary.course.domains = visits.iter().map(|v| visit(v.0, v.1, v.2)).collect();
        summary.course.domains.push(visit("plain", -0.5, 3));
        assert!((least_return(&summary).unwrap() + 1.0).abs() < 1e-9, "a visit cut short does not count");
    }
}
