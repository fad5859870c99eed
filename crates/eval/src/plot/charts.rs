//! The charts: lines, reliability diagrams, bars, dots.

use std::fmt::Write;

use super::canvas::{COLOURS, Canvas, LEFT, WIDTH};
use super::labels::{LETTER, log_ticks, number, padded, range, shorten};
use super::page::{COLOUR_CSS, SVG_CSS, escape};

/// Height of the drawing area of charts with a vertical axis.
const PLOT_HEIGHT: f64 = 210.0;

/// A named line, set of dots or group of bars.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    band: Vec<(f64, f64)>,
    colour: Option<usize>,
}

impl Series {
    /// Points `(x, y)` in drawing order. Points that are not finite leave a gap.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, band: Vec::new(), colour: None }
    }

    /// An interval `(low, high)` around every point, drawn as a pale band.
    pub fn band(mut self, band: Vec<(f64, f64)>) -> Self {
        self.band = band;
        self
    }

    /// A fixed colour (and dash), so that a method looks the same in every chart: 0 is a quiet grey meant for
    /// the baseline, 1 to 6 are colours. Without it, a series takes the number of its place in the chart.
    pub fn colour(mut self, colour: usize) -> Self {
        self.colour = Some(colour);
        self
    }
}

/// Lines over a common axis, with named spans (phases, domains) in the background.
#[derive(Clone, Debug)]
pub struct LineChart {
    title: String,
    x_label: String,
    y_label: String,
    series: Vec<Series>,
    spans: Vec<(f64, f64, String)>,
    y_range: Option<(f64, f64)>,
}

impl LineChart {
    /// An empty chart. Units belong into the labels: `top-1 (%)`.
    pub fn new(title: impl Into<String>, x_label: impl Into<String>, y_label: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            series: Vec::new(),
            spans: Vec::new(),
            y_range: None,
        }
    }

    /// Adds a line.
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a named stretch of the x axis.
    pub fn span(mut self, from: f64, to: f64, name: impl Into<String>) -> Self {
        self.spans.push((from, to, name.into()));
        self
    }

    /// Fixes the range of the y axis.
    pub fn y_range(mut self, low: f64, high: f64) -> Self {
        self.y_range = Some((low, high));
        self
    }

    /// The chart as an SVG element.
    pub fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| s.points.iter().copied());
        let xs = points().map(|p| p.0).chain(self.spans.iter().flat_map(|s| [s.0, s.1]));
        let ys = points().map(|p| p.1);
        let ys = ys.chain(self.series.iter().flat_map(|s| &s.band).flat_map(|b| [b.0, b.1]));
        let y = self.y_range.unwrap_or_else(|| padded(range(ys)));
        let mut canvas = Canvas::new(&self.title, &legend(&self.series), PLOT_HEIGHT, LEFT);
        // room for the spans' names above the drawing area
        canvas.top += if self.spans.is_empty() { 0.0 } else { 12.0 };
        let frame = canvas.frame(range(xs), y);

        for (i, (from, to, name)) in self.spans.iter().enumerate() {
            let (x0, x1) = (frame.x(*from), frame.x(*to));
            let _ = write!(
                canvas.body,
                r#"<g><title>{name}</title><rect class="span{odd}" x="{x0:.1}" y="{top:.1}" width="{width:.1}" height="{PLOT_HEIGHT}"/><text class="soft middle" x="{middle:.1}" y="{text:.1}">{short}</text></g>"#,
                name = escape(name),
                odd = i % 2,
                top = frame.top,
                width = (x1 - x0).max(0.0),
                middle = (x0 + x1) / 2.0,
                text = frame.top - 5.0,
                short = escape(&shorten(name, x1 - x0)),
            );
        }
        canvas.axes(&frame, &self.x_label, &self.y_label);
        for (i, series) in self.series.iter().enumerate() {
            let look = series.colour.unwrap_or(i);
            canvas.band(&frame, &series.points, &series.band, look);
            canvas.line(&frame, &series.points, look);
            // Dots on lines with few points; on lines with many points the markers are invisible and only carry tooltips.
            let radius = if series.points.len() <= 30 { 3.0 } else { 0.0 };
            for &(x, y) in &series.points {
                let tip = format!("{}: {} at {}", series.name, number(y), number(x));
                canvas.dot(&frame, (x, y), look, radius, &tip);
            }
        }
        canvas.finish()
    }
}

/// One bin of a reliability diagram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReliabilityBin {
    /// Mean confidence of the bin's answers, in [0, 1].
    pub confidence: f64,
    /// Share of them that were right, in [0, 1].
    pub accuracy: f64,
    /// Share of all answers that fall into the bin, in [0, 1].
    pub share: f64,
    /// Answers in the bin.
    pub n: usize,
}

/// A bin of fewer answers is drawn pale: its accuracy says little.
const FEW: usize = 20;

/// Accuracy over confidence: a calibrated classifier lies on the diagonal. Dots grow with the bin's share; bins of few
/// answers are pale, and no line leads to them.
#[derive(Clone, Debug)]
pub struct Reliability {
    title: String,
    series: Vec<(Series, Vec<(f64, usize)>)>,
}

impl Reliability {
    /// An empty diagram.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), series: Vec::new() }
    }

    /// Adds a classifier's bins; empty ones are left out. `colour` as in [`Series::colour`].
    pub fn series(mut self, name: impl Into<String>, bins: &[ReliabilityBin], colour: usize) -> Self {
        let bins: Vec<_> = bins.iter().filter(|b| b.share > 0.0).collect();
        let points = bins.iter().map(|b| (b.confidence, b.accuracy)).collect();
        let shares = bins.iter().map(|b| (b.share, b.n)).collect();
        self.series.push((Series::new(name, points).colour(colour), shares));
        self
    }

    /// The diagram as an SVG element.
    pub fn to_svg(&self) -> String {
        let series: Vec<Series> = self.series.iter().map(|s| s.0.clone()).collect();
        let mut canvas = Canvas::new(&self.title, &legend(&series), PLOT_HEIGHT, LEFT);
        let frame = canvas.frame((0.0, 1.0), (0.0, 1.0));
        canvas.axes(&frame, "confidence", "accuracy");
        canvas.diagonal(&frame);
        for (series, shares) in &self.series {
            let look = series.colour.unwrap_or(0);
            let sure =
                |((x, y), (_, n)): (&(f64, f64), &(f64, usize))| (*x, if *n < FEW { f64::NAN } else { *y });
            let line: Vec<(f64, f64)> = series.points.iter().zip(shares).map(sure).collect();
            canvas.line(&frame, &line, look);
            for (&(x, y), &(share, n)) in series.points.iter().zip(shares) {
                let tip = format!(
                    "{}: {:.1} % right at confidence {:.1} % ({n} answers, {:.1} %)",
                    series.name,
                    100.0 * y,
                    100.0 * x,
                    100.0 * share
                );
                if n < FEW {
                    canvas.pale();
                }
                canvas.dot(&frame, (x, y), look, 2.0 + 9.0 * share.sqrt(), &tip);
                if n < FEW {
                    canvas.bright();
                }
            }
        }
        canvas.finish()
    }
}

/// Horizontal bars, grouped by category; values may be negative (gains and losses).
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    label: String,
    categories: Vec<String>,
    groups: Vec<Group>,
    digits: Option<usize>,
}

#[derive(Clone, Debug)]
struct Group {
    name: String,
    values: Vec<f64>,
    intervals: Vec<(f64, f64)>,
    colour: usize,
}

impl Bars {
    /// Bars over these categories; `label` names the value axis.
    pub fn new(title: impl Into<String>, label: impl Into<String>, categories: Vec<String>) -> Self {
        Self { title: title.into(), label: label.into(), categories, groups: Vec::new(), digits: None }
    }

    /// Numbers with this many digits after the point, and a sign: for gains and losses.
    pub fn signed(mut self, digits: usize) -> Self {
        self.digits = Some(digits);
        self
    }

    fn number(&self, value: f64) -> String {
        match self.digits {
            Some(digits) => format!("{value:+.digits$}"),
            None => number(value),
        }
    }

    /// Adds one bar per category. `intervals` are `(low, high)` whiskers, or empty.
    pub fn group(
        mut self,
        name: impl Into<String>,
        values: Vec<f64>,
        intervals: Vec<(f64, f64)>,
        colour: usize,
    ) -> Self {
        self.groups.push(Group { name: name.into(), values, intervals, colour });
        self
    }

    /// The bars as an SVG element.
    pub fn to_svg(&self) -> String {
        const BAR: f64 = 13.0;
        const GAP: f64 = 10.0;
        let row = BAR * self.groups.len().max(1) as f64 + GAP;
        let longest = self.categories.iter().map(|c| c.chars().count()).max().unwrap_or(0);
        let left = (longest as f64 * LETTER + 12.0).clamp(40.0, 170.0);
        let entries: Vec<_> = self.groups.iter().map(|g| (g.name.as_str(), g.colour)).collect();
        let entries = if entries.len() > 1 { entries } else { Vec::new() };
        let mut canvas = Canvas::new(&self.title, &entries, row * self.categories.len() as f64, left);
        let values = self.groups.iter().flat_map(|g| {
            g.values.iter().copied().chain(g.intervals.iter().flat_map(|i| [i.0, i.1])).chain([0.0])
        });
        let (mut low, mut high) = range(values);
        let pad = 0.14 * (high - low);
        // room for the numbers at the ends of the bars
        low -= if low < 0.0 { pad } else { 0.0 };
        high += if high > 0.0 { pad } else { 0.0 };
        let frame = canvas.frame((low, high), (0.0, 1.0));
        canvas.x_axis(&frame, &self.label);
        for (c, category) in self.categories.iter().enumerate() {
            let y = frame.top + c as f64 * row + GAP / 2.0;
            let middle = y + (row - GAP) / 2.0 + 4.0;
            let _ = write!(
                canvas.body,
                r#"<text class="end" x="{x:.1}" y="{middle:.1}">{name}</text>"#,
                x = left - 8.0,
                name = escape(&shorten(category, left - 10.0)),
            );
            for (g, group) in self.groups.iter().enumerate() {
                let Some(&value) = group.values.get(c).filter(|v| v.is_finite()) else { continue };
                let (x0, x1) = (frame.x(value.min(0.0)), frame.x(value.max(0.0)));
                let top = y + g as f64 * BAR;
                let (anchor, at) = if value < 0.0 { ("end", x0 - 4.0) } else { ("", x1 + 4.0) };
                let mut after = at;
                let mut whisker = String::new();
                if let Some(&(a, b)) = group.intervals.get(c) {
                    let (wa, wb) = (frame.x(a), frame.x(b));
                    let line = top + BAR / 2.0;
                    whisker = format!(
                        r#"<path class="whisker" d="M{wa:.1} {line:.1}H{wb:.1}M{wa:.1} {t:.1}v6M{wb:.1} {t:.1}v6"/>"#,
                        t = line - 3.0
                    );
                    after = if value < 0.0 { at.min(wa - 4.0) } else { at.max(wb + 4.0) };
                }
                let _ = write!(
                    canvas.body,
                    r#"<g><title>{tip}</title><rect class="f{colour}" x="{x0:.1}" y="{top:.1}" width="{w:.1}" height="{h:.1}" rx="1.5"/>{whisker}<text class="small {anchor}" x="{after:.1}" y="{text:.1}">{value}</text></g>"#,
                    tip = escape(&format!("{category}, {}: {}", group.name, self.number(value))),
                    colour = group.colour % COLOURS,
                    w = (x1 - x0).max(0.5),
                    h = BAR - 2.0,
                    text = top + BAR - 3.0,
                    value = self.number(value),
                );
            }
        }
        let zero = frame.x(0.0);
        let bottom = frame.top + frame.height;
        let _ = write!(canvas.body, r#"<path class="axis" d="M{zero:.1} {:.1}V{bottom:.1}"/>"#, frame.top);
        canvas.finish()
    }
}

/// Dots in a plane, each with its own label; `diagonal` draws y = x for "before against after".
#[derive(Clone, Debug)]
pub struct Scatter {
    title: String,
    x_label: String,
    y_label: String,
    series: Vec<(Series, Vec<String>)>,
    diagonal: bool,
    log_x: bool,
}

impl Scatter {
    /// An empty plane.
    pub fn new(title: impl Into<String>, x_label: impl Into<String>, y_label: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            series: Vec::new(),
            diagonal: false,
            log_x: false,
        }
    }

    /// Adds dots; `labels` name them in their tooltips and may be empty. A series without a name is left out of
    /// the legend, and its labels stand beside its dots.
    pub fn series(mut self, series: Series, labels: Vec<String>) -> Self {
        self.series.push((series, labels));
        self
    }

    /// Draws y = x, and gives both axes the same range.
    pub fn diagonal(mut self) -> Self {
        self.diagonal = true;
        self
    }

    /// Makes the x axis logarithmic. Dots at 0 or below are left out.
    pub fn log_x(mut self) -> Self {
        self.log_x = true;
        self
    }

    /// Where a value lies on the x axis.
    fn place(&self, x: f64) -> f64 {
        if self.log_x { x.log10() } else { x }
    }

    /// The plane as an SVG element.
    pub fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| s.0.points.iter());
        let (mut x, mut y) = (range(points().map(|p| self.place(p.0))), padded(range(points().map(|p| p.1))));
        // Logarithms go below zero, and half a decade on each side has a tick on it.
        x = if self.log_x { (x.0 - 0.3, x.1 + 0.3) } else { padded(x) };
        if self.diagonal {
            x = (x.0.min(y.0), x.1.max(y.1));
            y = x;
        }
        let named = self.series.iter().filter(|s| !s.0.name.is_empty());
        let series: Vec<Series> = named.map(|s| s.0.clone()).collect();
        let entries = if series.len() > 1 { legend(&series) } else { Vec::new() };
        let mut canvas = Canvas::new(&self.title, &entries, PLOT_HEIGHT, LEFT);
        let frame = canvas.frame(x, y);
        if self.log_x {
            canvas.x_axis_at(&frame, &self.x_label, &log_ticks(x));
            canvas.y_axis(&frame, &self.y_label);
        } else {
            canvas.axes(&frame, &self.x_label, &self.y_label);
        }
        if self.diagonal {
            canvas.diagonal(&frame);
        }
        let mut labelled: Vec<(f64, f64, f64)> = Vec::new();
        for (i, (series, labels)) in self.series.iter().enumerate() {
            for (j, &(x, y)) in series.points.iter().enumerate() {
                let label = labels.get(j).unwrap_or(&series.name);
                let tip = format!("{label}: {}, {}", number(x), number(y));
                let x = self.place(x);
                if !x.is_finite() || !y.is_finite() {
                    continue;
                }
                canvas.dot(&frame, (x, y), series.colour.unwrap_or(i), 4.0, &tip);
                if series.name.is_empty() {
                    // To the left of dots near the right edge; a little up or down where another label is.
                    let (x, y) = (frame.x(x), frame.y(y) + 3.5);
                    let width = label.chars().count() as f64 * LETTER;
                    let beyond = x + 8.0 + width > WIDTH;
                    let (x, side) = if beyond { (x - 8.0, "end") } else { (x + 8.0, "start") };
                    let from = if beyond { x - width } else { x };
                    let free = |y: f64| {
                        let apart = |&(left, right, at): &(f64, f64, f64)| {
                            from > right || from + width < left || (y - at).abs() > 11.0
                        };
                        labelled.iter().all(apart)
                    };
                    // Where there is no room the tooltip alone names the dot.
                    let Some(y) =
                        [0.0, 12.0, -12.0, 24.0, -24.0].map(|by| y + by).into_iter().find(|y| free(*y))
                    else {
                        continue;
                    };
                    labelled.push((from, from + width, y));
                    let label = escape(label);
                    let _ = write!(
                        canvas.body,
                        r#"<text class="soft" style="text-anchor:{side}" x="{x:.1}" y="{y:.1}">{label}</text>"#
                    );
                }
            }
        }
        canvas.finish()
    }
}

fn legend(series: &[Series]) -> Vec<(&str, usize)> {
    series.iter().enumerate().map(|(i, s)| (s.name.as_str(), s.colour.unwrap_or(i))).collect()
}

/// An inline figure as an SVG file of its own, with its colours.
pub fn standalone(svg: &str) -> String {
    let svg = svg.replacen("<svg ", r#"<svg xmlns="http://www.w3.org/2000/svg" "#, 1);
    match svg.split_once('>') {
        Some((open, rest)) => format!("{open}><style>{COLOUR_CSS}{SVG_CSS}</style>{rest}"),
        None => svg,
    }
}
