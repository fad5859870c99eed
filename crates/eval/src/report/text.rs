//! Tables as Markdown and LaTeX.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::grid::{FIGURES, FigureTable, Grid, Shown, named, named_refused, seeds_note};
use super::overview::{Overview, groups};
use super::{compare, harm};
use crate::method::is_baseline;
use crate::pictures::Cost;
use crate::refused::{Refused, notes};
use crate::summary::{Run, cells};

/// Tables as Markdown; a method that could not run somewhere says why.
pub fn markdown(runs: &[Run], refused: &[Refused]) -> String {
    let refused = &named_refused(refused, runs)[..];
    let runs = &named(runs)[..];
    let (cells, groups) = (cells(runs), groups(runs));
    let ties = compare::ties(runs, &groups);
    let mut out = format!("{}\n", seeds_note(&cells));
    out.push_str(&Overview::of(runs).markdown());
    for grid in Grid::all(&cells, &groups, &ties, refused) {
        for figure in &FIGURES {
            let FigureTable { header, rows } = grid.table(figure);
            let _ = writeln!(out, "\n**{} — {}**\n", grid.protocol, figure.title);
            let _ = writeln!(out, "| {} |", header.join(" | "));
            let _ = writeln!(out, "|{}", "---|".repeat(header.len()));
            for (method, figures) in rows {
                if figures.is_empty() {
                    let _ = writeln!(out, "| *{method}* |{}", " |".repeat(header.len() - 1));
                    continue;
                }
                let figures: Vec<String> = figures.iter().map(Shown::marked).collect();
                let _ = writeln!(out, "| {method} | {} |", figures.join(" | "));
            }
        }
    }
    let notes = notes(refused);
    if !notes.is_empty() {
        let _ = writeln!(out, "\n**Without a run**\n");
        notes.iter().for_each(|note| {
            let _ = writeln!(out, "- {note}");
        });
    }
    out.push_str(&costs(runs));
    out.push_str(&harm::markdown(runs, refused));
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
        let flops = |r: &Run| r.summary.cost.and_then(|c| c.flops).unwrap_or(0.0) / 1e6;
        let ms = |r: &Run| 1e3 * (r.timing.encode_seconds + 1.0 / r.timing.samples_per_second.max(1e-9));
        let peak = |r: &Run| r.timing.peak_bytes as f64 / (1 << 20) as f64;
        let zero = methods.iter().find(|(method, _)| is_baseline(method)).map(|(_, runs)| runs.clone());
        let times = |value: f64, of: &dyn Fn(&Run) -> f64| match &zero {
            Some(zero) if mean(zero, of) > 0.0 => format!(" ({:.2})", value / mean(zero, of)),
            _ => String::new(),
        };
        for (method, runs) in &methods {
            let cost = |value: fn(&Cost) -> f64| mean(runs, &|r| r.summary.cost.as_ref().map_or(0.0, value));
            let (f, m, p) = (mean(runs, &flops), mean(runs, &ms), mean(runs, &peak));
            let operations = if f > 0.0 { format!("{f:.2}{}", times(f, &flops)) } else { "–".into() };
            let collapsed = runs.iter().filter(|r| r.summary.stability.collapsed).count();
            let _ = writeln!(
                out,
                "| {method} | {} | {:.2} | {:.2} | {:.2} | {operations} | {m:.3}{} | {p:.0}{} | {} | {:.3} |",
                cost(|c| c.parameters as f64),
                cost(|c| c.forwards),
                cost(|c| c.backwards),
                cost(|c| c.texts),
                times(m, &ms),
                times(p, &peak),
                if collapsed > 0 { format!("yes ({collapsed} of {})", runs.len()) } else { "no".into() },
                runs.iter().map(|r| r.summary.stability.max_answer_kl).fold(0.0, f64::max),
            );
        }
    }
    out
}

/// Datasets of a LaTeX table: more do not fit a column, and go into further tables.
const COLUMNS: usize = 5;

/// A table that is wider than its place is made smaller; none is made larger.
const FIT: &str = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}";

/// A LaTeX document that compiles as it is (pdflatex and graphicx; plain lines where booktabs is not installed): the
/// ranking over all streams across the page, then tables of a column's width, the best of a group in bold, what chance
/// alone sets apart from it underlined, losses in italics.
pub fn latex(runs: &[Run], refused: &[Refused]) -> String {
    let refused = &named_refused(refused, runs)[..];
    let runs = &named(runs)[..];
    let (cells, groups) = (cells(runs), groups(runs));
    let ties = compare::ties(runs, &groups);
    let note = seeds_note(&cells);
    let note = note.replace('★', "bold:").replace('≈', "underlined:").replace('▼', "italic:");
    let mut out = format!(
        "% {note}\n\\documentclass[twocolumn]{{article}}\n\\usepackage[utf8]{{inputenc}}\n\\usepackage[T1]{{fontenc}}\n\
         \\usepackage{{graphicx}}\n\\IfFileExists{{booktabs.sty}}{{\\usepackage{{booktabs}}}}\
         {{\\let\\toprule\\hline\\let\\midrule\\hline\\let\\bottomrule\\hline}}\n\\begin{{document}}\n\n"
    );
    out.push_str(&latex_ranking(&Overview::of(runs)));
    for grid in Grid::all(&cells, &groups, &ties, refused) {
        for figure in &FIGURES {
            let FigureTable { header, rows } = grid.table(figure);
            let fixed = header.len() - grid.datasets.len();
            for (part, datasets) in header[fixed..].chunks(COLUMNS).enumerate() {
                let from = fixed + part * COLUMNS;
                let columns = "l".to_string() + &"r".repeat(fixed - 1 + datasets.len());
                // Names of datasets are long and figures short: the names stand up.
                let upright = |name: &String| format!("\\rotatebox{{70}}{{{}}}", escape(name));
                let names: Vec<String> =
                    header[..fixed].iter().map(|h| escape(h)).chain(datasets.iter().map(upright)).collect();
                let more = if part > 0 { ", continued" } else { "" };
                let _ = writeln!(
                    out,
                    "\\begin{{table}}[t]\n\\centering\n\\caption{{{}: {}{more}}}\n{FIT}{{!}}{{%",
                    escape(grid.protocol),
                    escape(figure.title)
                );
                let _ = writeln!(out, "\\begin{{tabular}}{{{columns}}}\n\\toprule");
                let _ = writeln!(out, "{} \\\\\n\\midrule", names.join(" & "));
                for (method, figures) in &rows {
                    if figures.is_empty() {
                        out.push_str(&latex_group(method, columns.len()));
                        continue;
                    }
                    let own = figures[from - 1..from - 1 + datasets.len()].iter();
                    let own: Vec<String> = figures[..fixed - 1].iter().chain(own).map(latex_cell).collect();
                    let _ = writeln!(out, "{} & {} \\\\", escape(method), own.join(" & "));
                }
                let _ = writeln!(out, "\\bottomrule\n\\end{{tabular}}}}\n\\end{{table}}\n");
            }
            // Tables are set before the next figure's begin: LaTeX can hold back only a few.
            out.push_str("\\clearpage\n\n");
        }
    }
    out.push_str("\\end{document}\n");
    out
}

/// The heading of a group of methods.
fn latex_group(title: &str, columns: usize) -> String {
    format!("\\multicolumn{{{columns}}}{{l}}{{\\textit{{{}}}}} \\\\\n", escape(title))
}

/// One ranking over all streams, as wide as the page.
fn latex_ranking(overview: &Overview<'_>) -> String {
    let (header, rows) = overview.narrow();
    let line = |cells: &[String]| cells.iter().map(|cell| escape(cell)).collect::<Vec<_>>().join(" & ");
    let mut out = format!(
        "\\begin{{table*}}[t]\n\\centering\n\\caption{{All methods over all streams: points of top-1 over zero-shot}}\n\
         {FIT}{{!}}{{%\n\\begin{{tabular}}{{l{}}}\n\\toprule\n{} \\\\\n\\midrule\n",
        "r".repeat(header.len() - 1),
        line(&header)
    );
    for row in rows {
        match &row[..] {
            [title] => out.push_str(&latex_group(title, header.len())),
            row => {
                let _ = writeln!(out, "{} \\\\", line(row));
            }
        }
    }
    out + "\\bottomrule\n\\end{tabular}}\n\\end{table*}\n\n"
}

fn latex_cell(shown: &Shown) -> String {
    let plain = escape(&shown.to_string());
    if shown.best {
        format!("\\textbf{{{plain}}}")
    } else if shown.ties {
        format!("\\underline{{{plain}}}")
    } else if shown.loses {
        format!("\\textit{{{plain}}}")
    } else {
        plain
    }
}

/// Text as LaTeX sets it. Letters beyond ASCII that have no command here become a question mark.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                out.push('\\');
                out.push(c);
            }
            '\\' => out.push_str("\\textbackslash{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '→' => out.push_str("$\\to$"),
            '±' => out.push_str("$\\pm$"),
            '≈' => out.push_str("$\\approx$"),
            '–' => out.push_str("--"),
            'µ' | 'μ' => out.push_str("$\\mu$"),
            'π' => out.push_str("$\\pi$"),
            'τ' => out.push_str("$\\tau$"),
            // What inputenc and the T1 fonts have: Latin letters with accents.
            c if c.is_ascii() || ('\u{c0}'..='\u{17e}').contains(&c) => out.push(c),
            _ => out.push('?'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn latex_is_told_of_its_own_signs() {
        assert_eq!(
            escape("a_b & 5 % of {x}^2 # $ ~ \\"),
            "a\\_b \\& 5 \\% of \\{x\\}\\textasciicircum{}2 \\# \\$ \\textasciitilde{} \\textbackslash{}"
        );
        assert_eq!(escape("π–é ±1 → 猫"), "$\\pi$--é $\\pm$1 $\\to$ ?");
    }
}
