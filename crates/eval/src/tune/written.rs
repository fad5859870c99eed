//! The result of a search, as a configuration file that says how it was made, and as a table.

use std::fmt::Write;

use super::{Evaluated, Objective};
use crate::method::Method;

/// Gains over zero-shot on some cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gain {
    /// Each cell's.
    pub cells: Vec<Evaluated>,
}

/// Settings, what they were fitted to and what they were not.
pub struct Fold {
    /// What is left out; `None` for the settings fitted to everything.
    pub name: Option<String>,
    /// The settings that differ from those at the start.
    pub settings: Vec<(&'static str, String)>,
    /// The method with these settings.
    pub method: Method,
    /// Where the settings were fitted.
    pub fitted: Gain,
    /// In the same place, under the settings at the start.
    pub fitted_before: Gain,
    /// On what is left out.
    pub left_out: Gain,
    /// In the same place, under the settings at the start.
    pub left_out_before: Gain,
}

/// The result of a search.
pub struct Tuned {
    /// Fitted to everything.
    pub whole: Fold,
    /// Fitted to all but something each.
    pub folds: Vec<Fold>,
    /// Settings tried for each fold, those at the start among them.
    pub trials: usize,
    /// What could not be run, and why.
    pub skipped: Vec<String>,
    /// How many evaluations of the journal another build of the program made: what it does may have changed since.
    pub other_build: usize,
}

impl Gain {
    /// The gains on these cells.
    pub(super) fn of(cells: &[Evaluated]) -> Self {
        Self { cells: cells.to_vec() }
    }

    /// The objective of the gains.
    pub fn objective(&self, objective: Objective) -> f64 {
        objective.of(&self.cells)
    }

    fn mean(&self, value: fn(&Evaluated) -> f64) -> f64 {
        self.cells.iter().map(value).sum::<f64>() / self.cells.len().max(1) as f64
    }

    /// The mean gain in top-1 (points), the mean changes of ECE (points) and NLL, and the worst cell's gain in top-1.
    fn columns(&self) -> [String; 4] {
        if self.cells.is_empty() {
            return ["–"; 4].map(String::from);
        }
        let worst = self.cells.iter().map(|cell| cell.top1).fold(f64::INFINITY, f64::min);
        [
            format!("{:+.2}", self.mean(|cell| cell.top1)),
            format!("{:+.2}", self.mean(|cell| 0.0 - cell.ece)),
            format!("{:+.3}", self.mean(|cell| 0.0 - cell.nll)),
            format!("{worst:+.2}"),
        ]
    }
}

impl Tuned {
    /// A line per fold: changes against zero-shot where the settings were fitted and on what was left out, each beside those at the start;
    /// first what was left out, all folds together.
    pub fn table(&self) -> String {
        let mut out = String::from(
            "| settings | where | cells | top-1 | ECE | NLL | worst top-1 | top-1 before | ECE before | NLL before | worst before |\n",
        );
        let _ = writeln!(out, "|{}", "---|".repeat(11));
        let mut line = |settings: &str, place: &str, now: &Gain, before: &Gain| {
            let columns = now.columns().into_iter().chain(before.columns()).collect::<Vec<_>>().join(" | ");
            let _ = writeln!(out, "| {settings} | {place} | {} | {columns} |", now.cells.len());
        };
        let together = |part: fn(&Fold) -> &Gain| Gain {
            cells: self.folds.iter().flat_map(|fold| part(fold).cells.clone()).collect(),
        };
        if !self.folds.is_empty() {
            let (now, before) = (together(|fold| &fold.left_out), together(|fold| &fold.left_out_before));
            line("all folds", "left out", &now, &before);
            let (now, before) = (together(|fold| &fold.fitted), together(|fold| &fold.fitted_before));
            line("all folds", "fitted", &now, &before);
        }
        line("as written", "fitted", &self.whole.fitted, &self.whole.fitted_before);
        for fold in &self.folds {
            let name = format!("without {}", fold.name.as_deref().unwrap_or_default());
            line(&name, "left out", &fold.left_out, &fold.left_out_before);
            line(&name, "fitted", &fold.fitted, &fold.fitted_before);
        }
        out
    }

    /// The configuration file. `made` says by which command.
    pub fn to_toml(&self, made: &str) -> String {
        self.file(
            &self.whole,
            &format!("{made}\n\nFitted to all packs; the settings of the folds are beside it."),
        )
    }

    /// The configuration file of a fold.
    pub fn fold_toml(&self, fold: &Fold, made: &str) -> String {
        let name = fold.name.as_deref().unwrap_or_default();
        self.file(fold, &format!("{made}\n\nFitted to all packs but those of {name}, which were left out."))
    }

    fn file(&self, fold: &Fold, made: &str) -> String {
        let changed = match fold.settings.as_slice() {
            [] => "No settings tried were better than those at the start.".to_string(),
            settings => {
                let each: Vec<String> =
                    settings.iter().map(|(key, value)| format!("  {key} = {value}")).collect();
                format!("Settings that changed:\n{}", each.join("\n"))
            }
        };
        let comment = format!(
            "Settings of {} learnt from labelled packs ({} settings tried for each fold).\n\n{made}\n\n{changed}\n\n\
             Changes against zero-shot, means over cells (a pack under a protocol): top-1 and ECE in points, NLL in nats;\n\
             below 0 is better for ECE and NLL.\n\
             What was left out is the claim; what was fitted is fitted.\n\n{}",
            fold.method.name,
            self.trials,
            self.table()
        );
        let lines: String =
            comment.lines().map(|line| format!("# {line}").trim_end().to_string() + "\n").collect();
        format!("{lines}\n{}", fold.method.config.to_toml())
    }
}
