//! The first thing that a reader sees: one ranking over all protocols, in groups of methods that may see the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::compare::{Difference, difference, same_streams};
use super::grid::filled;
use crate::method::{is_baseline, is_own};
use crate::plot::{Bars, Page, Scatter, Series, Table};
use crate::summary::{Facts, Run, tail};
use crate::words::counted;

/// A cell loses if its top-1 is more points below zero-shot's, and the interval of the difference leaves out 0.
const TOLERANCE: f64 = 0.5;

/// A method over all its streams; figures are points of top-1 over zero-shot on the same samples.
pub(super) struct Ranked<'a> {
    pub method: &'a str,
    facts: Facts,
    /// Streams (datasets under protocols) it ran on.
    cells: usize,
    /// Mean over streams, with its 95 % interval.
    pub gain: f64,
    interval: (f64, f64),
    /// Mean changes of ECE (points) and NLL (nats) over streams: below 0 is better.
    ece: f64,
    nll: f64,
    /// Mean over the worst tenth of all runs.
    tail: f64,
    best: (f64, String),
    worst: (f64, String),
    losing: usize,
    /// Mean microseconds of a sample in its steps.
    micros: f64,
    /// Bytes of its largest state.
    bytes: usize,
    /// Difference to the best method that ran on as many streams; `None` for that method itself, or without kept answers.
    to_best: Option<Difference>,
}

/// All methods.
pub(super) struct Overview<'a> {
    /// The best mean first.
    pub methods: Vec<Ranked<'a>>,
    cells: usize,
    protocols: usize,
    datasets: usize,
}

impl<'a> Overview<'a> {
    pub fn of(runs: &'a [Run]) -> Self {
        let mut of_method: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            of_method.entry(&run.summary.method).or_default().push(run);
        }
        let distinct = |key: &dyn Fn(&'a Run) -> &'a str| runs.iter().map(key).collect::<BTreeSet<_>>().len();
        let streams: BTreeSet<_> = runs.iter().map(|r| (&r.summary.protocol, &r.summary.dataset)).collect();
        let mut methods: Vec<Ranked<'_>> =
            of_method.iter().map(|(name, runs)| Ranked::of(name, runs)).collect();
        methods.sort_by(|a, b| {
            (b.cells, b.gain).partial_cmp(&(a.cells, a.gain)).unwrap_or(a.method.cmp(b.method))
        });
        let whole = |m: &&Ranked<'_>| m.cells == streams.len();
        if let Some(best) = methods.iter().find(whole).map(|m| m.method) {
            for ranked in methods.iter_mut().filter(|m| m.method != best) {
                ranked.to_best = difference(same_streams(&of_method[ranked.method], &of_method[best]));
            }
        }
        methods.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.method.cmp(b.method)));
        Self {
            methods,
            cells: streams.len(),
            protocols: distinct(&|r| &r.summary.protocol),
            datasets: distinct(&|r| &r.summary.dataset),
        }
    }

    /// The best method that ran everywhere.
    fn best(&self) -> Option<&Ranked<'a>> {
        self.methods.iter().find(|m| m.cells == self.cells && !is_baseline(m.method))
    }

    const HEADER: [&'static str; 13] = [
        "method",
        "mean gain",
        "95 % interval",
        "ECE change",
        "NLL change",
        "worst tenth",
        "streams that lose",
        "to the best",
        "µs a sample",
        "state",
        "best stream",
        "worst stream",
        "sees, needs, keeps",
    ];

    /// Header and rows of the ranking, a heading before each group of equals.
    fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut groups: BTreeMap<(usize, &str), Vec<&Ranked<'_>>> = BTreeMap::new();
        for method in &self.methods {
            groups.entry(group(&method.facts)).or_default().push(method);
        }
        let mut rows = Vec::new();
        for ((_, title), methods) in groups {
            rows.push(vec![title.to_string()]);
            rows.extend(methods.into_iter().map(|m| m.row(self.cells)));
        }
        filled(&Self::HEADER, rows)
    }

    fn explained(&self) -> String {
        format!(
            "Points of top-1 over zero-shot on the same samples: the mean over {}, {} under {}. \
             ECE (points) and NLL (nats) are changes against zero-shot, below 0 is better. Intervals are paired bootstraps over samples. A stream loses if its top-1 is more than \
             {TOLERANCE} points below zero-shot's and the interval leaves out 0. Worst tenth: of all runs. To the best: the difference to the best \
             method that ran on every stream, on the streams both ran on; ≈ where chance alone explains it (5 %). µs: the mean \
             processor time of a sample in the method's own steps (by the clock where the system does not tell, and for methods \
             of several threads); state: the largest it had to keep. Methods \
             are grouped by what they are allowed to see, so that equals stand beside equals.",
            counted(self.cells, "stream"),
            counted(self.datasets, "dataset"),
            counted(self.protocols, "protocol")
        )
    }

    /// The opening of the page.
    pub fn section(&self, mut page: Page) -> Page {
        page = page.section("Summary");
        if let Some(best) = self.best() {
            let (low, high) = best.interval;
            page = page.headline(&[
                (format!("{:+.1}", best.gain), format!("points, {} [{low:+.1}, {high:+.1}]", best.method)),
                (
                    format!("{} of {}", best.losing, self.cells),
                    "of its streams lose against zero-shot".into(),
                ),
                (format!("{:+.1}", best.tail), "points in the worst tenth of its runs".into()),
            ]);
            if self.cells > 1 {
                page = page.text(&format!(
                    "Best stream of {}: {} ({:+.1}); worst: {} ({:+.1}).",
                    best.method, best.best.1, best.best.0, best.worst.1, best.worst.0
                ));
            }
        }
        let (header, rows) = self.table();
        page.text(&self.explained())
            .table(&Table { caption: "All methods over all streams".into(), header, rows })
            .figures(self.figures().into_iter().map(|(_, svg)| svg).collect())
    }

    /// Gain with its intervals, and gain against cost; each with a name for a file.
    pub fn figures(&self) -> Vec<(&'static str, String)> {
        let names = self.methods.iter().map(|m| m.method.to_string()).collect();
        let gains = self.methods.iter().map(|m| m.gain).collect();
        let intervals = self.methods.iter().map(|m| m.interval).collect();
        let title = "Mean gain in top-1 over all streams, 95 % intervals";
        let bars =
            Bars::new(title, "points over zero-shot", names).signed(1).group("gain", gains, intervals, 1);
        let title = "Cost and gain over all streams";
        let mut chart =
            Scatter::new(title, "mean time per sample (µs)", "mean gain in top-1 (points)").log_x();
        for method in self.methods.iter().filter(|m| m.micros > 0.0) {
            let colour = match method.method {
                name if is_baseline(name) => 0,
                name if is_own(name) => 1,
                // There are four more colours: the last two groups, which got more than features, share one.
                _ => 2 + group(&method.facts).0.min(4),
            };
            let series = Series::new("", vec![(method.micros, method.gain)]).colour(colour);
            chart = chart.series(series, vec![method.method.to_string()]);
        }
        vec![("gain", bars.to_svg()), ("cost", chart.to_svg())]
    }

    /// The columns that a printed page has room for.
    pub fn narrow(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let (header, mut rows) = self.table();
        let wide = ["best stream", "worst stream", "sees, needs, keeps"];
        let kept = |i: usize| !wide.contains(&header[i].as_str());
        for row in rows.iter_mut().filter(|row| row.len() > 1) {
            *row = row.iter().enumerate().filter(|(i, _)| kept(*i)).map(|(_, cell)| cell.clone()).collect();
        }
        let names = header.iter().enumerate().filter(|(i, _)| kept(*i)).map(|(_, name)| name.clone());
        (names.collect(), rows)
    }

    /// The overview as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("\n**Summary**\n\n{}\n\n", self.explained());
        let (header, rows) = self.table();
        let _ = writeln!(out, "| {} |\n|{}", header.join(" | "), "---|".repeat(header.len()));
        for row in rows {
            match &row[..] {
                [title] => {
                    let _ = writeln!(out, "| *{title}* |{}", " |".repeat(header.len() - 1));
                }
                row => {
                    let _ = writeln!(out, "| {} |", row.join(" | "));
                }
            }
        }
        out
    }
}

impl<'a> Ranked<'a> {
    fn of(method: &'a str, runs: &[&'a Run]) -> Self {
        let gain = |r: &Run| 100.0 * (r.summary.quality.top1 - r.summary.zero_shot.top1);
        let mut streams: BTreeMap<(&str, &str), Vec<&Run>> = BTreeMap::new();
        for run in runs {
            streams.entry((&run.summary.dataset, &run.summary.protocol)).or_default().push(run);
        }
        let mean = |runs: &[&Run], value: &dyn Fn(&Run) -> f64| {
            runs.iter().map(|r| value(r)).sum::<f64>() / runs.len().max(1) as f64
        };
        // Seeds and protocols order the same samples anew: ends of intervals are averaged; packs add in squares.
        let mut packs: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let (mut losing, mut all) = (0, Vec::new());
        let (mut ece, mut nll) = (0.0, 0.0);
        for ((dataset, protocol), runs) in &streams {
            ece += 100.0 * mean(runs, &|r| r.summary.quality.ece - r.summary.zero_shot.ece);
            nll += mean(runs, &|r| r.summary.quality.nll - r.summary.zero_shot.nll);
            let own = mean(runs, &gain);
            let low = own - mean(runs, &|r| 100.0 * r.summary.intervals.gain.low);
            let high = mean(runs, &|r| 100.0 * r.summary.intervals.gain.high) - own;
            let pack = packs.entry(dataset).or_default();
            *pack = (pack.0 + low.max(0.0), pack.1 + high.max(0.0));
            losing += usize::from(own < -TOLERANCE && own + high < 0.0);
            all.push((own, format!("{dataset} · {protocol}")));
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let n = all.len().max(1) as f64;
        let total = all.iter().map(|s| s.0).sum::<f64>() / n;
        let wide =
            |side: fn(&(f64, f64)) -> f64| packs.values().map(|p| side(p).powi(2)).sum::<f64>().sqrt() / n;
        let mut each: Vec<f64> = runs.iter().map(|r| gain(r)).collect();
        let micros = mean(runs, &|r| r.timing.sample_us());
        let bytes = runs.iter().map(|r| r.summary.state_bytes).max().unwrap_or(0);
        Self {
            method,
            facts: facts(runs),
            cells: all.len(),
            gain: total,
            interval: (total - wide(|p| p.0), total + wide(|p| p.1)),
            ece: ece / n,
            nll: nll / n,
            tail: tail(&mut each),
            worst: all.first().cloned().unwrap_or_default(),
            best: all.last().cloned().unwrap_or_default(),
            losing,
            micros,
            bytes,
            to_best: None,
        }
    }

    fn row(&self, cells: usize) -> Vec<String> {
        // The best and the worst of one are the mean.
        let stream = |(gain, name): &(f64, String)| match cells {
            0 | 1 => String::new(),
            _ => format!("{gain:+.1} {name}"),
        };
        // A change that rounds to nothing has no sign.
        let plain = |text: String| {
            if text.trim_matches(['-', '0', '.']).is_empty() { text.replace('-', "+") } else { text }
        };
        let to_best = match &self.to_best {
            None => "–".into(),
            Some(d) => {
                let chance = if d.is_chance() { " ≈" } else { "" };
                format!("{:+.1} [{:+.1}, {:+.1}]{chance}", 100.0 * d.mean, 100.0 * d.low, 100.0 * d.high)
            }
        };
        let method = match self.cells {
            all if all == cells => self.method.to_string(),
            some => format!("{} ({some} of {cells} streams)", self.method),
        };
        vec![
            method,
            format!("{:+.2}", self.gain),
            format!("{:+.2} to {:+.2}", self.interval.0, self.interval.1),
            plain(format!("{:+.1}", self.ece)),
            plain(format!("{:+.3}", self.nll)),
            format!("{:+.1}", self.tail),
            format!("{} of {}", self.losing, self.cells),
            to_best,
            if self.micros < 9.95 { format!("{:.1}", self.micros) } else { format!("{:.0}", self.micros) },
            size(self.bytes),
            stream(&self.best),
            stream(&self.worst),
            self.facts.words(),
        ]
    }
}

/// Bytes in a unit that fits them.
fn size(bytes: usize) -> String {
    match bytes as f64 {
        b if b < 999.5 => format!("{b:.0} B"),
        b if b < 999.5e3 => format!("{:.0} kB", b / 1e3),
        b if b < 99.5e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.0} MB", b / 1e6),
    }
}

/// The group of each method: those that may see the same stand together.
pub(super) type Groups = BTreeMap<String, (usize, &'static str)>;

/// The groups of the methods of some runs.
pub(super) fn groups(runs: &[Run]) -> Groups {
    let mut of_method: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        of_method.entry(&run.summary.method).or_default().push(run);
    }
    of_method.into_iter().map(|(method, runs)| (method.to_string(), group(&facts(&runs)))).collect()
}

/// What a method may see, over all of its runs.
fn facts(runs: &[&Run]) -> Facts {
    Facts {
        // With views of some packs only it is no equal of methods without, either.
        views: runs.iter().any(|r| r.summary.facts.views),
        ..runs.first().map_or(Facts::default(), |r| r.summary.facts)
    }
}

fn group(facts: &Facts) -> (usize, &'static str) {
    if facts.pictures {
        (5, "Changes the encoder, and needs the pictures")
    } else if facts.labels || facts.views || facts.stream_length {
        (4, "Given more than features: labels, views or the stream's length")
    } else if facts.whole_stream {
        (3, "Sees the whole stream first")
    } else if facts.later_samples {
        (2, "Sees later samples of its batch")
    } else if facts.answers_after {
        (1, "The sample teaches before it is answered")
    } else {
        (0, "Answers before the sample teaches")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_tenth_is_rounded_up() {
        assert_eq!(tail(&mut [3.0, 1.0, 2.0]), 1.0);
        assert_eq!(tail(&mut (1..=20).map(f64::from).collect::<Vec<_>>()), 1.5);
        assert_eq!(tail(&mut []), 0.0);
    }

    #[test]
    fn sizes_have_units() {
        let sizes = [0, 999, 1000, 999_499, 1_234_567, 1_050_000_000].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1 kB", "999 kB", "1.2 MB", "1050 MB"]);
    }

    #[test]
    fn equals_stand_together() {
        let plain = Facts::default();
        assert_eq!(group(&plain).0, 0);
        assert_eq!(group(&Facts { answers_after: true, ..plain }).0, 1);
        assert_eq!(group(&Facts { later_samples: true, answers_after: true, ..plain }).0, 2);
        assert_eq!(group(&Facts { later_samples: true, whole_stream: true, ..plain }).0, 3);
        assert_eq!(group(&Facts { later_samples: true, stream_length: true, ..plain }).0, 4);
        assert_eq!(group(&Facts { pictures: true, views: true, ..plain }).0, 5);
    }
}
