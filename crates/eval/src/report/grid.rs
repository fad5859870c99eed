//! Methods × datasets of one protocol: the figures of a report's tables, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::metrics::Spread;
use crate::naming;
use crate::summary::Cell;

/// What a table shows.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub title: &'static str,
    value: fn(&Cell) -> Spread,
    zero_shot: fn(&Cell) -> Spread,
    /// Percent, or plain.
    scale: f64,
    higher_is_better: bool,
    /// A loss against zero-shot smaller than this is none.
    tolerance: f64,
}

pub(super) const FIGURES: [Figure; 3] = [
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
pub(super) struct Grid<'a> {
    pub protocol: &'a str,
    pub datasets: Vec<&'a str>,
    /// Methods, best mean of the first figure first.
    pub methods: Vec<&'a str>,
    cells: BTreeMap<(&'a str, &'a str), &'a Cell>,
}

impl<'a> Grid<'a> {
    pub fn all(cells: &'a [Cell]) -> Vec<Self> {
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

    pub fn cell(&self, method: &str, dataset: &str) -> Option<&'a Cell> {
        self.cells.iter().find(|(k, _)| k.0 == method && k.1 == dataset).map(|(_, c)| *c)
    }

    /// Mean over the datasets, where the method ran on all of them.
    pub fn mean(&self, method: &str, figure: &Figure) -> Option<f64> {
        let values: Option<Vec<f64>> =
            self.datasets.iter().map(|d| self.cell(method, d).map(|c| (figure.value)(c).mean)).collect();
        values.map(|v| v.iter().sum::<f64>() / v.len() as f64)
    }

    fn zero_shot(&self, dataset: &str, figure: &Figure) -> Option<f64> {
        let cell = self.methods.iter().find_map(|m| self.cell(m, dataset))?;
        Some((figure.zero_shot)(cell).mean)
    }
    /// The figures of all methods, and of zero-shot where no method is.
    pub fn table(&self, figure: &Figure) -> FigureTable {
        let better = |a: f64, b: f64| if figure.higher_is_better { a > b } else { a < b };
        let worse = |value: f64, zero: f64| {
            if figure.higher_is_better {
                value < zero - figure.tolerance
            } else {
                value > zero + figure.tolerance
            }
        };
        let of_dataset =
            |d: &&str| self.methods.iter().map(|m| self.cell(m, d).map(|c| (figure.value)(c))).collect();
        let of_mean = |m: &&str| self.mean(m, figure).map(|mean| Spread { mean, sd: 0.0 });
        let mut columns: Vec<Vec<Option<Spread>>> = self.datasets.iter().map(of_dataset).collect();
        columns.push(self.methods.iter().map(of_mean).collect());
        let mut zeros: Vec<Option<f64>> = self.datasets.iter().map(|d| self.zero_shot(d, figure)).collect();
        let all: Option<Vec<f64>> = zeros.iter().copied().collect();
        zeros.push(all.map(|v| v.iter().sum::<f64>() / v.len().max(1) as f64));
        let best: Vec<Option<f64>> = columns
            .iter()
            .map(|column| {
                let means = column.iter().flatten().map(|spread| spread.mean);
                means.reduce(|a, b| if better(b, a) { b } else { a })
            })
            .collect();
        let show = |spread: Option<Spread>, column: usize| Shown {
            value: spread.map(|s| (s.mean * figure.scale, s.sd * figure.scale)),
            digits: figure.digits(),
            best: spread.is_some_and(|s| best[column] == Some(s.mean)),
            loses: spread.is_some_and(|s| zeros[column].is_some_and(|zero| worse(s.mean, zero))),
        };
        let row = |(i, method): (usize, &&str)| {
            let figures = columns.iter().enumerate().map(|(c, column)| show(column[i], c)).collect();
            (method.to_string(), figures)
        };
        let mut rows: Vec<(String, Vec<Shown>)> = self.methods.iter().enumerate().map(row).collect();
        if !self.methods.contains(&"zero-shot") {
            let plain = |zero: &Option<f64>| Shown {
                value: zero.map(|zero| (zero * figure.scale, 0.0)),
                digits: figure.digits(),
                best: false,
                loses: false,
            };
            rows.push(("(zero-shot)".to_string(), zeros.iter().map(plain).collect()));
        }
        let mut header = vec!["method".to_string()];
        header.extend(self.datasets.iter().map(|d| short(d, &self.datasets)));
        header.push("mean".into());
        FigureTable { header, rows }
    }
}

impl Figure {
    fn digits(&self) -> usize {
        if self.scale == 1.0 { 3 } else { 1 }
    }
}

/// A table of figures: a header, then each method with its figures.
pub(super) struct FigureTable {
    pub header: Vec<String>,
    pub rows: Vec<(String, Vec<Shown>)>,
}

/// One figure of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shown {
    /// Mean and standard deviation, scaled; `None` where the method did not run.
    pub value: Option<(f64, f64)>,
    digits: usize,
    /// Whether no method of the column is better.
    pub best: bool,
    /// Whether zero-shot is better on the same samples.
    pub loses: bool,
}

/// The number alone, `–` without one.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits;
        let Some((mean, sd)) = self.value else { return f.write_str("–") };
        write!(f, "{mean:.digits$}")?;
        if sd > 0.0 { write!(f, " ±{sd:.digits$}") } else { Ok(()) }
    }
}

impl Shown {
    /// The number with ★ where it is the best and ▼ where it loses against zero-shot.
    pub fn marked(&self) -> String {
        let star = if self.best { " ★" } else { "" };
        let loss = if self.loses { " ▼" } else { "" };
        format!("{self}{star}{loss}")
    }
}

/// A dataset's name without the folders that all names end in.
pub(super) fn short(name: &str, all: &[&str]) -> String {
    let first = |n: &str| n.split('/').next().unwrap_or(n).to_string();
    let unique = |n: &str| all.iter().filter(|o| first(o) == n).count() == 1;
    let joined = naming::joined(name);
    if joined.len() > 1 {
        return joined.into_iter().map(first).collect::<Vec<_>>().join(" → ");
    }
    Some(first(name)).filter(|n| unique(n)).unwrap_or_else(|| name.to_string())
}

pub(super) fn seeds_note(cells: &[Cell]) -> String {
    let seeds = cells.iter().map(|c| c.seeds).max().unwrap_or(0);
    format!(
        "Means over {seeds} seed(s), ± one standard deviation; ★ best, ▼ worse than zero-shot on the same samples."
    )
}
