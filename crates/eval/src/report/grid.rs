//! Methods × datasets of one protocol: the figures of a report's tables, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::overview::Groups;
use crate::method::is_baseline;
use crate::metrics::Spread;
use crate::naming;
use crate::refused::{Refused, Why};
use crate::summary::{Cell, Run};
use crate::words::counted;

/// What a table shows.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub title: &'static str,
    value: fn(&Cell) -> Spread,
    zero_shot: fn(&Cell) -> Spread,
    /// Percent, or plain.
    scale: f64,
    higher_is_better: bool,
    /// A smaller loss against zero-shot is not marked as a loss.
    tolerance: f64,
    /// The worst tenth of the runs of a stream: what a column beside the mean shows, and ties are marked by.
    tail: Option<fn(&Cell) -> f64>,
}

pub(super) const FIGURES: [Figure; 3] = [
    Figure {
        title: "Top-1 (%)",
        value: |c| c.top1,
        zero_shot: |c| c.zero_shot_top1,
        scale: 100.0,
        higher_is_better: true,
        tolerance: 5e-4,
        tail: Some(|c| c.top1_tail),
    },
    Figure {
        title: "ECE (%)",
        value: |c| c.ece,
        zero_shot: |c| c.zero_shot_ece,
        scale: 100.0,
        higher_is_better: false,
        tolerance: 5e-4,
        tail: None,
    },
    Figure {
        title: "NLL",
        value: |c| c.nll,
        zero_shot: |c| c.zero_shot_nll,
        scale: 1.0,
        higher_is_better: false,
        tolerance: 5e-4,
        tail: None,
    },
];

/// Methods × datasets of one protocol.
pub(super) struct Grid<'a> {
    pub protocol: &'a str,
    pub datasets: Vec<&'a str>,
    /// Methods, group after group, the best mean of the first figure first.
    pub methods: Vec<&'a str>,
    groups: &'a Groups,
    cells: BTreeMap<(&'a str, &'a str), &'a Cell>,
    ties: &'a Ties,
    refused: &'a [Refused],
}

/// Methods whose difference from the best of their group on a stream can be chance: `(protocol, dataset, method)`.
pub(super) type Ties = BTreeSet<(String, String, String)>;

impl<'a> Grid<'a> {
    pub fn all(cells: &'a [Cell], groups: &'a Groups, ties: &'a Ties, refused: &'a [Refused]) -> Vec<Self> {
        let protocols: BTreeSet<&str> = cells.iter().map(|c| c.protocol.as_str()).collect();
        protocols.into_iter().map(|p| Self::new(cells, p, groups, ties, refused)).collect()
    }

    fn new(
        cells: &'a [Cell],
        protocol: &'a str,
        groups: &'a Groups,
        ties: &'a Ties,
        refused: &'a [Refused],
    ) -> Self {
        let own: Vec<&Cell> = cells.iter().filter(|c| c.protocol == protocol).collect();
        let datasets: BTreeSet<&str> = own.iter().map(|c| c.dataset.as_str()).collect();
        let methods: BTreeSet<&str> = own.iter().map(|c| c.method.as_str()).collect();
        let cells = own.iter().map(|c| ((c.method.as_str(), c.dataset.as_str()), *c)).collect();
        let mut grid = Self {
            protocol,
            datasets: datasets.into_iter().collect(),
            methods: methods.into_iter().collect(),
            groups,
            cells,
            ties,
            refused,
        };
        let mean = |m: &&str| grid.mean(m, &FIGURES[0]).unwrap_or(f64::NEG_INFINITY);
        let mut methods = grid.methods.clone();
        let group = |m: &str| grid.group(m).0;
        methods.sort_by(|a, b| group(a).cmp(&group(b)).then(mean(b).total_cmp(&mean(a))).then(a.cmp(b)));
        grid.methods = methods;
        grid
    }

    /// The group of a method: number and title.
    fn group(&self, method: &str) -> (usize, &'static str) {
        self.groups.get(method).copied().unwrap_or_default()
    }

    pub fn cell(&self, method: &str, dataset: &str) -> Option<&'a Cell> {
        self.cells.iter().find(|(k, _)| k.0 == method && k.1 == dataset).map(|(_, c)| *c)
    }

    /// Mean over the datasets, where the method ran on all of them.
    pub fn mean(&self, method: &str, figure: &Figure) -> Option<f64> {
        self.over_datasets(method, |c| (figure.value)(c).mean)
    }

    fn over_datasets(&self, method: &str, value: impl Fn(&Cell) -> f64) -> Option<f64> {
        let values: Option<Vec<f64>> =
            self.datasets.iter().map(|d| self.cell(method, d).map(&value)).collect();
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
        // The mean first, then the datasets.
        let mut columns: Vec<Vec<Option<Spread>>> = vec![self.methods.iter().map(of_mean).collect()];
        columns.extend(self.datasets.iter().map(of_dataset));
        let zeros: Vec<Option<f64>> = self.datasets.iter().map(|d| self.zero_shot(d, figure)).collect();
        let all: Option<Vec<f64>> = zeros.iter().copied().collect();
        let mean = all.map(|v| v.iter().sum::<f64>() / v.len().max(1) as f64);
        let zeros: Vec<Option<f64>> = std::iter::once(mean).chain(zeros).collect();
        // The best of each group of several methods, or of the only group.
        let all: Vec<usize> = self.methods.iter().map(|m| self.group(m).0).collect();
        let one_group = all.iter().all(|group| *group == all[0]);
        let best = |column: usize, group: usize| {
            if !one_group && all.iter().filter(|other| **other == group).count() < 2 {
                return None;
            }
            let own = columns[column].iter().zip(&all).filter(|(_, other)| **other == group);
            let means = own.filter_map(|(spread, _)| Some((*spread)?.mean));
            means.reduce(|a, b| if better(b, a) { b } else { a })
        };
        let tied = |method: &str, column: usize| {
            let dataset = column.checked_sub(1).map(|i| self.datasets[i]);
            let key = dataset.map(|d| (self.protocol.to_string(), d.to_string(), method.to_string()));
            figure.tail.is_some() && key.is_some_and(|key| self.ties.contains(&key))
        };
        let gap = |method: &str, column: usize| {
            let dataset = column.checked_sub(1).map(|i| self.datasets[i])?;
            let same =
                |r: &&Refused| r.protocol == self.protocol && r.dataset == dataset && r.method == method;
            self.refused.iter().find(same).map(|r| r.why)
        };
        let show = |spread: Option<Spread>, column: usize, method: &str| Shown {
            gap: gap(method, column),
            value: spread.map(|s| (s.mean * figure.scale, s.sd * figure.scale)),
            digits: figure.digits(),
            best: spread.is_some_and(|s| best(column, self.group(method).0) == Some(s.mean)),
            ties: tied(method, column),
            loses: spread.is_some_and(|s| zeros[column].is_some_and(|zero| worse(s.mean, zero))),
        };
        let plain = |value: Option<f64>| Shown {
            gap: None,
            value: value.map(|value| (value * figure.scale, 0.0)),
            digits: figure.digits(),
            best: false,
            ties: false,
            loses: false,
        };
        let row = |(i, method): (usize, &&str)| {
            let shown = columns.iter().enumerate().map(|(c, column)| show(column[i], c, method));
            let mut figures: Vec<Shown> = shown.collect();
            if let Some(tail) = figure.tail {
                figures.insert(1, plain(self.over_datasets(method, tail)));
            }
            (method.to_string(), figures)
        };
        let mut rows: Vec<(String, Vec<Shown>)> = Vec::new();
        if !self.methods.iter().any(|method| is_baseline(method)) {
            let mut figures: Vec<Shown> = zeros.iter().map(|zero| plain(*zero)).collect();
            if figure.tail.is_some() {
                figures.insert(1, plain(None));
            }
            rows.push(("(zero-shot)".to_string(), figures));
        }
        for (i, method) in self.methods.iter().enumerate() {
            if !one_group && (i == 0 || all[i - 1] != all[i]) {
                rows.push((self.group(method).1.to_string(), Vec::new()));
            }
            rows.push(row((i, method)));
        }
        let mut header = vec!["method".to_string(), "mean".into()];
        header.extend(figure.tail.map(|_| "worst tenth".into()));
        header.extend(self.datasets.iter().map(|d| d.to_string()));
        FigureTable { header, rows }
    }
}

impl Figure {
    fn digits(&self) -> usize {
        if self.scale == 1.0 { 3 } else { 1 }
    }
}

/// A table of figures: a header, then each method with its figures. A row without figures is the heading of a group.
pub(super) struct FigureTable {
    pub header: Vec<String>,
    pub rows: Vec<(String, Vec<Shown>)>,
}

/// One figure of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shown {
    /// Mean and standard deviation, scaled; `None` where the method did not run.
    pub value: Option<(f64, f64)>,
    /// Why it did not run there.
    pub gap: Option<Why>,
    digits: usize,
    /// Whether no method of its group is better in the column.
    pub best: bool,
    /// Whether its difference from the best of its group can be chance.
    pub ties: bool,
    /// Whether zero-shot is better on the same samples.
    pub loses: bool,
}

/// The number alone. Without a number: the reason if there is one, else `–`.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits;
        let Some((mean, sd)) = self.value else { return f.write_str(self.gap.map_or("–", Why::word)) };
        write!(f, "{mean:.digits$}")?;
        if sd > 0.0 { write!(f, " ±{sd:.digits$}") } else { Ok(()) }
    }
}

impl Shown {
    /// The number with ★ where it is the best of its group, ≈ where its difference from that can be chance, ▼ where it
    /// loses against zero-shot.
    pub fn marked(&self) -> String {
        let star = if self.best {
            " ★"
        } else if self.ties {
            " ≈"
        } else {
            ""
        };
        let loss = if self.loses { " ▼" } else { "" };
        format!("{self}{star}{loss}")
    }
}

/// A dataset's name without the folders behind it, where others have the same ones.
pub(super) fn short(name: &str, all: &[&str]) -> String {
    let first = |n: &str| n.split('/').next().unwrap_or(n).to_string();
    let unique = |n: &str| all.iter().filter(|o| first(o) == n).count() <= 1;
    // Folders that no two names share may be what tells a dataset.
    let tails: Vec<&str> = all.iter().filter_map(|o| o.split_once('/')).map(|(_, tail)| tail).collect();
    let shared = tails.iter().enumerate().any(|(i, tail)| tails[..i].contains(tail));
    let joined = naming::joined(name);
    if joined.len() > 1 {
        return joined.into_iter().map(|part| short(part, all)).collect::<Vec<_>>().join(" → ");
    }
    Some(first(name)).filter(|n| shared && unique(n)).unwrap_or_else(|| name.to_string())
}

/// The runs under one name per dataset: the shortest that tells it from all others of the report.
pub(super) fn named(runs: &[Run]) -> Vec<Run> {
    let all: BTreeSet<&str> = runs.iter().map(|r| r.summary.dataset.as_str()).collect();
    let single: Vec<&str> = all.iter().copied().filter(|name| naming::joined(name).len() == 1).collect();
    let rename = |run: &Run| {
        let mut run = run.clone();
        run.summary.dataset = short(&run.summary.dataset, &single);
        for domain in &mut run.summary.course.domains {
            domain.name = short(&domain.name, &single);
        }
        run
    };
    runs.iter().map(rename).collect()
}

/// Refusals under the same names as the runs.
pub(super) fn named_refused(refused: &[Refused], runs: &[Run]) -> Vec<Refused> {
    let all: BTreeSet<&str> = runs.iter().map(|r| r.summary.dataset.as_str()).collect();
    let single: Vec<&str> = all.iter().copied().filter(|name| naming::joined(name).len() == 1).collect();
    let rename = |one: &Refused| Refused { dataset: short(&one.dataset, &single), ..one.clone() };
    refused.iter().map(rename).collect()
}

/// A table without the columns that no row fills. A row of a single cell is a heading.
pub(super) fn filled(header: &[&str], mut rows: Vec<Vec<String>>) -> (Vec<String>, Vec<Vec<String>>) {
    let fills = |row: &Vec<String>, i: usize| row.len() > 1 && !matches!(row[i].as_str(), "" | "–");
    let kept: Vec<bool> = (0..header.len()).map(|i| i == 0 || rows.iter().any(|row| fills(row, i))).collect();
    for row in rows.iter_mut().filter(|row| row.len() > 1) {
        let mut kept = kept.iter();
        row.retain(|_| *kept.next().unwrap_or(&true));
    }
    let header = header.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(name, _)| name.to_string());
    (header.collect(), rows)
}

pub(super) fn seeds_note(cells: &[Cell]) -> String {
    let seeds = cells.iter().map(|c| c.seeds).max().unwrap_or(0);
    format!(
        "Means over {}, ± one standard deviation; worst tenth: the mean over the worst tenth of the runs of \
         each dataset, at least one; ★ best of its group, ≈ not told from that by a paired bootstrap (5 %), ▼ worse than \
         zero-shot on the same samples. Methods of a group may see the same.",
        counted(seeds, "seed")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_where_datasets_lie_alike() {
        let all = ["pets/b32", "cars/b32", "sea/rn50"];
        assert_eq!(all.map(|name| short(name, &all)), ["pets", "cars", "sea"]);
        assert_eq!(short("pets24/b32", &["pets24/b32"]), "pets24/b32");
        assert_eq!(short("2023/pets", &["2023/pets", "2024/cars"]), "2023/pets");
    }

    #[test]
    fn empty_columns_are_left_out() {
        let row = |cells: &[&str]| cells.iter().map(|c| c.to_string()).collect::<Vec<_>>();
        let rows = vec![row(&["group"]), row(&["a", "1", "–", ""]), row(&["b", "–", "–", ""])];
        let (header, rows) = filled(&["method", "x", "y", "z"], rows);
        assert_eq!(header, ["method", "x"]);
        assert_eq!(rows, [row(&["group"]), row(&["a", "1"]), row(&["b", "–"])]);
    }
}
