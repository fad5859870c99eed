//! Tables as Markdown and LaTeX.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::grid::{FIGURES, FigureTable, Grid, Shown, seeds_note};
use super::harm;
use crate::pictures::Cost;
use crate::summary::{Run, cells};

/// Tables as Markdown.
pub fn markdown(runs: &[Run]) -> String {
    let cells = cells(runs);
    let mut out = format!("{}\n", seeds_note(&cells));
    for grid in Grid::all(&cells) {
        for figure in &FIGURES {
            let FigureTable { header, rows } = grid.table(figure);
            let _ = writeln!(out, "\n**{} — {}**\n", grid.protocol, figure.title);
            let _ = writeln!(out, "| {} |", header.join(" | "));
            let _ = writeln!(out, "|{}", "---|".repeat(header.len()));
            for (method, figures) in rows {
                let figures: Vec<String> = figures.iter().map(Shown::marked).collect();
                let _ = writeln!(out, "| {method} | {} |", figures.join(" | "));
            }
        }
    }
    out.push_str(&costs(runs));
    out.push_str(&harm::markdown(runs));
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
            let FigureTable { header, rows } = grid.table(figure);
            let cell = |shown: &Shown| {
                let plain = escape(&shown.to_string()).replace('–', "--").replace('±', "$\\pm$");
                if shown.best {
                    format!("\\textbf{{{plain}}}")
                } else if shown.loses {
                    format!("\\textit{{{plain}}}")
                } else {
                    plain
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
            for (method, figures) in rows {
                let figures: Vec<String> = figures.iter().map(cell).collect();
                let _ = writeln!(out, "{} & {} \\\\", escape(&method), figures.join(" & "));
            }
            let _ = writeln!(out, "\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n");
        }
    }
    out
}
