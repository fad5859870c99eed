//! Plots as inline SVG, and the one HTML page that carries them.
//!
//! A page is self-contained: no script, no font, no request to anywhere. It follows the reader's light or dark
//! preference, reads on a phone, and its colours are told apart by colour-blind readers (after Okabe and Ito);
//! lines differ by dash and marker as well. Values appear as tooltips (`<title>`).
//!
//! ```
//! use ultta_eval::plot::{LineChart, Page, Series};
//! let chart = LineChart::new("Top-1 over the stream", "sample", "top-1 (%)")
//!     .series(Series::new("zero-shot", vec![(0.0, 60.0), (1000.0, 61.0)]))
//!     .series(Series::new("ul-tta", vec![(0.0, 60.0), (1000.0, 63.5)]))
//!     .span(0.0, 500.0, "calm")
//!     .span(500.0, 1000.0, "shifted");
//! let page = Page::new("A run").lead("One stream, two methods.").figures(vec![chart.to_svg()]);
//! assert!(page.to_html().starts_with("<!doctype html>"));
//! ```

use std::fmt::Write;

/// Width of every figure in user units. A page shows two side by side, a phone one: text stays readable.
const WIDTH: f64 = 480.0;
/// Height of the drawing area of charts with a vertical axis.
const PLOT_HEIGHT: f64 = 210.0;
/// Rough advance of a letter in the figures' font size, for laying out labels without measuring text.
const LETTER: f64 = 6.6;
/// Number of colours of the palette; further series start over.
const COLOURS: usize = 7;
const DASHES: [&str; 4] = ["5 3", "", "2 3", "9 3 2 3"];

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
            canvas.band(&frame, series, look);
            canvas.line(&frame, &series.points, look);
            // Dots on sparse lines; on dense ones only something to point at.
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
}

/// Accuracy over confidence: a calibrated classifier lies on the diagonal. Dots grow with the bin's share.
#[derive(Clone, Debug)]
pub struct Reliability {
    title: String,
    series: Vec<(Series, Vec<f64>)>,
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
        let shares = bins.iter().map(|b| b.share).collect();
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
            canvas.line(&frame, &series.points, look);
            for (&(x, y), &share) in series.points.iter().zip(shares) {
                let tip = format!(
                    "{}: {:.1} % right at confidence {:.1} % ({:.1} % of the answers)",
                    series.name,
                    100.0 * y,
                    100.0 * x,
                    100.0 * share
                );
                canvas.dot(&frame, (x, y), look, 2.0 + 9.0 * share.sqrt(), &tip);
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
        Self { title: title.into(), label: label.into(), categories, groups: Vec::new() }
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
                    tip = escape(&format!("{category}, {}: {}", group.name, number(value))),
                    colour = group.colour % COLOURS,
                    w = (x1 - x0).max(0.5),
                    h = BAR - 2.0,
                    text = top + BAR - 3.0,
                    value = number(value),
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

    /// The plane as an SVG element.
    pub fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| s.0.points.iter());
        let (mut x, mut y) = (padded(range(points().map(|p| p.0))), padded(range(points().map(|p| p.1))));
        if self.diagonal {
            x = (x.0.min(y.0), x.1.max(y.1));
            y = x;
        }
        let named = self.series.iter().filter(|s| !s.0.name.is_empty());
        let series: Vec<Series> = named.map(|s| s.0.clone()).collect();
        let entries = if series.len() > 1 { legend(&series) } else { Vec::new() };
        let mut canvas = Canvas::new(&self.title, &entries, PLOT_HEIGHT, LEFT);
        let frame = canvas.frame(x, y);
        canvas.axes(&frame, &self.x_label, &self.y_label);
        if self.diagonal {
            canvas.diagonal(&frame);
        }
        for (i, (series, labels)) in self.series.iter().enumerate() {
            for (j, &(x, y)) in series.points.iter().enumerate() {
                let label = labels.get(j).unwrap_or(&series.name);
                let tip = format!("{label}: {}, {}", number(x), number(y));
                canvas.dot(&frame, (x, y), series.colour.unwrap_or(i), 4.0, &tip);
                if series.name.is_empty() {
                    // To the left of dots near the right edge.
                    let (x, y) = (frame.x(x), frame.y(y) + 3.5);
                    let beyond = x + 8.0 + label.chars().count() as f64 * LETTER > WIDTH;
                    let (x, side) = if beyond { (x - 8.0, "end") } else { (x + 8.0, "start") };
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

/// An inline figure as an SVG file of its own, with its colours.
pub fn standalone(svg: &str) -> String {
    let svg = svg.replacen("<svg ", r#"<svg xmlns="http://www.w3.org/2000/svg" "#, 1);
    match svg.split_once('>') {
        Some((open, rest)) => format!("{open}><style>{COLOUR_CSS}{SVG_CSS}</style>{rest}"),
        None => svg,
    }
}

/// A table: a header and rows of cells. The first column is left-aligned, the others hold numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What the table shows, in a line.
    pub caption: String,
    /// Column names.
    pub header: Vec<String>,
    /// One list of cells per row.
    pub rows: Vec<Vec<String>>,
}

/// A self-contained HTML page, built from the top down. All text is escaped.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with nothing but its title.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new() }
    }

    /// The opening paragraph.
    pub fn lead(self, text: &str) -> Self {
        self.push("p class=\"lead\"", "p", text)
    }

    /// A section heading.
    pub fn section(self, text: &str) -> Self {
        self.push("h2", "h2", text)
    }

    /// A paragraph.
    pub fn text(self, text: &str) -> Self {
        self.push("p", "p", text)
    }

    /// A paragraph that must not be missed.
    pub fn note(self, text: &str) -> Self {
        self.push("p class=\"note\"", "p", text)
    }

    /// Preformatted text: a command, a configuration.
    pub fn code(self, text: &str) -> Self {
        self.push("pre", "pre", text)
    }

    /// A table.
    pub fn table(mut self, table: &Table) -> Self {
        let _ =
            write!(self.body, "<div class=\"table\"><table><caption>{}</caption>", escape(&table.caption));
        self.body.push_str("<thead><tr>");
        for name in &table.header {
            let _ = write!(self.body, "<th scope=\"col\">{}</th>", escape(name));
        }
        self.body.push_str("</tr></thead><tbody>");
        for row in &table.rows {
            self.body.push_str("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let cell = escape(cell);
                let _ = match i {
                    0 => write!(self.body, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(self.body, "<td>{cell}</td>"),
                };
            }
            self.body.push_str("</tr>");
        }
        self.body.push_str("</tbody></table></div>\n");
        self
    }

    /// Figures side by side as far as the window is wide: SVG elements of this module.
    pub fn figures(mut self, svgs: Vec<String>) -> Self {
        self.body.push_str("<div class=\"figures\">");
        for svg in svgs {
            let _ = write!(self.body, "<figure>{svg}</figure>");
        }
        self.body.push_str("</div>\n");
        self
    }

    /// The page's HTML.
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        let body = &self.body;
        format!(
            r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{COLOUR_CSS}{PAGE_CSS}{SVG_CSS}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}</main>
</body>
</html>
"#
        )
    }

    fn push(mut self, open: &str, close: &str, text: &str) -> Self {
        let _ = writeln!(self.body, "<{open}>{}</{close}>", escape(text));
        self
    }
}

/// Text made safe for HTML and SVG, attribute values included.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

const COLOUR_CSS: &str = "
:root{--paper:#fff;--ink:#1c2024;--soft:#5b6470;--line:#d9dde2;--card:#f7f8fa;--note:#fff6e0;
--c0:#6b7280;--c1:#0072b2;--c2:#d55e00;--c3:#00805e;--c4:#a8487f;--c5:#b27700;--c6:#1b8fb8}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e7eaee;--soft:#a3adb8;--line:#343b43;--card:#1c2126;--note:#332a14;
--c0:#9aa3af;--c1:#4fb0ff;--c2:#ff8f4d;--c3:#35c79b;--c4:#e69ac6;--c5:#f0b840;--c6:#6fd3ee}}
";

const PAGE_CSS: &str = "
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.7rem;line-height:1.2;margin:.2em 0 .5em}
h2{font-size:1.2rem;margin:2em 0 .4em}
p{max-width:46em}
.lead{font-size:1.08rem;color:var(--soft)}
.note{background:var(--note);border-left:4px solid var(--c5);padding:.6em .9em;border-radius:4px}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7em .9em;overflow-x:auto;font-size:.9rem}
.table{overflow-x:auto;margin:1em 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.94rem}
caption{text-align:left;color:var(--soft);padding-bottom:.4em}
th,td{padding:.32em .8em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600}
tbody th{font-weight:500}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px;margin:1em 0;align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;max-width:640px}
figure svg{display:block;width:100%;height:auto}
@media print{figure{break-inside:avoid}}
";

const SVG_CSS: &str = "
svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}
svg .head{font-size:14px;font-weight:600}svg .soft{fill:var(--soft)}svg .small{font-size:10.5px;fill:var(--soft)}
svg .middle{text-anchor:middle}svg .end{text-anchor:end}
svg .grid{stroke:var(--line);stroke-width:1;fill:none}svg .axis{stroke:var(--soft);stroke-width:1;fill:none}
svg .even{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4;fill:none}
svg .whisker{stroke:var(--ink);stroke-width:1;fill:none}
svg .span0{fill:none}svg .span1{fill:var(--soft);opacity:.1}
svg .l{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
svg .hit{fill:transparent;stroke:none}svg .hit:hover{fill:var(--ink);opacity:.35}
svg .b{opacity:.16;stroke:none}svg .d{opacity:.85}
svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}svg .s3{stroke:var(--c3)}svg .s4{stroke:var(--c4)}svg .s5{stroke:var(--c5)}svg .s6{stroke:var(--c6)}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}
";

/// Space for y labels.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;

/// The drawing area and how data land in it.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    xs: (f64, f64),
    ys: (f64, f64),
}

impl Frame {
    fn x(&self, x: f64) -> f64 {
        self.left + self.width * (x - self.xs.0) / (self.xs.1 - self.xs.0)
    }
    fn y(&self, y: f64) -> f64 {
        let y = y.clamp(self.ys.0, self.ys.1);
        self.top + self.height * (self.ys.1 - y) / (self.ys.1 - self.ys.0)
    }
}

/// An SVG element on its way: title and legend on top, then the drawing area.
struct Canvas {
    title: String,
    body: String,
    left: f64,
    top: f64,
    plot_height: f64,
}

impl Canvas {
    fn new(title: &str, legend: &[(&str, usize)], plot_height: f64, left: f64) -> Self {
        let mut body = format!(r#"<text class="head" x="8" y="20">{}</text>"#, escape(title));
        let (mut x, mut y) = (8.0, 40.0);
        for (name, look) in legend {
            let width = 34.0 + name.chars().count() as f64 * LETTER + 10.0;
            if x > 8.0 && x + width > WIDTH {
                (x, y) = (8.0, y + 18.0);
            }
            let _ = write!(
                body,
                r#"<path class="l s{colour}" {dash} d="M{x:.1} {line:.1}h24"/>{marker}<text x="{text:.1}" y="{y:.1}">{name}</text>"#,
                colour = look % COLOURS,
                dash = dash(*look),
                line = y - 4.0,
                marker = marker(*look, x + 12.0, y - 4.0, 3.0, "d"),
                text = x + 30.0,
                name = escape(name),
            );
            x += width;
        }
        let top = if legend.is_empty() { 32.0 } else { y + 14.0 };
        Self { title: escape(title), body, left, top, plot_height }
    }

    fn frame(&self, xs: (f64, f64), ys: (f64, f64)) -> Frame {
        let (left, top, height) = (self.left, self.top, self.plot_height);
        Frame { left, top, width: WIDTH - left - RIGHT, height, xs, ys }
    }

    fn axes(&mut self, frame: &Frame, x_label: &str, y_label: &str) {
        self.x_axis(frame, x_label);
        let (left, right) = (frame.left, frame.left + frame.width);
        let (ticks, step) = ticks(frame.ys, 5);
        for tick in ticks {
            let y = frame.y(tick);
            let _ = write!(
                self.body,
                r#"<path class="grid" d="M{left:.1} {y:.1}H{right:.1}"/><text class="soft end" x="{x:.1}" y="{text:.1}">{label}</text>"#,
                x = left - 6.0,
                text = y + 4.0,
                label = tick_label(tick, step),
            );
        }
        let middle = frame.top + frame.height / 2.0;
        let _ = write!(
            self.body,
            r#"<text class="soft middle" transform="translate(14 {middle:.1}) rotate(-90)">{}</text>"#,
            escape(y_label)
        );
    }

    fn x_axis(&mut self, frame: &Frame, label: &str) {
        let bottom = frame.top + frame.height;
        let (ticks, step) = ticks(frame.xs, 6);
        for tick in ticks {
            let x = frame.x(tick);
            let _ = write!(
                self.body,
                r#"<path class="grid" d="M{x:.1} {top:.1}V{end:.1}"/><text class="soft middle" x="{x:.1}" y="{text:.1}">{label}</text>"#,
                top = frame.top,
                end = bottom + 4.0,
                text = bottom + 18.0,
                label = tick_label(tick, step),
            );
        }
        let _ = write!(
            self.body,
            r#"<path class="axis" d="M{left:.1} {bottom:.1}h{width:.1}"/><text class="soft middle" x="{middle:.1}" y="{text:.1}">{label}</text>"#,
            left = frame.left,
            width = frame.width,
            middle = frame.left + frame.width / 2.0,
            text = bottom + 36.0,
            label = escape(label),
        );
    }

    fn diagonal(&mut self, frame: &Frame) {
        let (low, high) = (frame.xs.0.max(frame.ys.0), frame.xs.1.min(frame.ys.1));
        let _ = write!(
            self.body,
            r#"<path class="even" d="M{:.1} {:.1}L{:.1} {:.1}"/>"#,
            frame.x(low),
            frame.y(low),
            frame.x(high),
            frame.y(high)
        );
    }

    fn band(&mut self, frame: &Frame, series: &Series, look: usize) {
        if series.band.is_empty() {
            return;
        }
        let low = series.points.iter().zip(&series.band).map(|(p, b)| (p.0, b.0));
        let high = series.points.iter().zip(&series.band).map(|(p, b)| (p.0, b.1));
        let mut path = String::new();
        for (x, y) in low.chain(high.rev()).filter(|p| p.1.is_finite()) {
            let verb = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{:.1} {:.1}", frame.x(x), frame.y(y));
        }
        let _ = write!(self.body, r#"<path class="b f{}" d="{path}Z"/>"#, look % COLOURS);
    }

    fn line(&mut self, frame: &Frame, points: &[(f64, f64)], look: usize) {
        let mut path = String::new();
        let mut pen_up = true;
        for &(x, y) in points {
            if !x.is_finite() || !y.is_finite() {
                pen_up = true;
                continue;
            }
            let verb = if pen_up { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{:.1} {:.1}", frame.x(x), frame.y(y));
            pen_up = false;
        }
        let _ = write!(self.body, r#"<path class="l s{}" {} d="{path}"/>"#, look % COLOURS, dash(look));
    }

    /// A marker with a tooltip; radius 0 is only something to point at.
    fn dot(&mut self, frame: &Frame, (x, y): (f64, f64), look: usize, radius: f64, tip: &str) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        let (x, y) = (frame.x(x), frame.y(y));
        let visible = if radius > 0.0 { marker(look, x, y, radius, "d") } else { String::new() };
        let _ = write!(
            self.body,
            r#"<g>{visible}<circle class="hit" cx="{x:.1}" cy="{y:.1}" r="{r:.1}"/><title>{tip}</title></g>"#,
            r = radius.max(6.0),
            tip = escape(tip),
        );
    }

    fn finish(self) -> String {
        let height = self.top + self.plot_height + 46.0;
        format!(
            r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.title, self.body
        )
    }
}

fn legend(series: &[Series]) -> Vec<(&str, usize)> {
    series.iter().enumerate().map(|(i, s)| (s.name.as_str(), s.colour.unwrap_or(i))).collect()
}

fn dash(look: usize) -> String {
    match DASHES[look % DASHES.len()] {
        "" => String::new(),
        dash => format!(r#"stroke-dasharray="{dash}""#),
    }
}

/// Circle, square, triangle or diamond: a second way to tell series apart.
fn marker(look: usize, x: f64, y: f64, r: f64, class: &str) -> String {
    let fill = format!("{class} f{}", look % COLOURS);
    match look % 4 {
        0 => format!(r#"<circle class="{fill}" cx="{x:.1}" cy="{y:.1}" r="{r:.1}"/>"#),
        1 => {
            let (x, y, side) = (x - r, y - r, 2.0 * r);
            format!(r#"<rect class="{fill}" x="{x:.1}" y="{y:.1}" width="{side:.1}" height="{side:.1}"/>"#)
        }
        2 => {
            let (top, base) = (y - 1.2 * r, y + 0.9 * r);
            let (a, b) = (x - 1.1 * r, x + 1.1 * r);
            format!(r#"<path class="{fill}" d="M{x:.1} {top:.1}L{b:.1} {base:.1}H{a:.1}Z"/>"#)
        }
        _ => {
            let r = 1.2 * r;
            let (l, t, rr, b) = (x - r, y - r, x + r, y + r);
            format!(
                r#"<path class="{fill}" d="M{x:.1} {t:.1}L{rr:.1} {y:.1}L{x:.1} {b:.1}L{l:.1} {y:.1}Z"/>"#
            )
        }
    }
}

/// The finite values' range; never empty.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match low.partial_cmp(&high) {
        Some(std::cmp::Ordering::Less) => (low, high),
        Some(std::cmp::Ordering::Equal) => (low - 0.5, high + 0.5),
        _ => (0.0, 1.0),
    }
}

fn padded((low, high): (f64, f64)) -> (f64, f64) {
    let pad = 0.08 * (high - low);
    // an axis of shares or counts does not go below zero
    let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
    ((low - pad).max(floor), high + pad)
}

/// Round numbers within a range, about `n` of them, and their distance.
fn ticks((low, high): (f64, f64), n: usize) -> (Vec<f64>, f64) {
    let raw = (high - low) / n as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|s| *s >= raw * 0.999);
    let step = step.unwrap_or(10.0 * magnitude);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    ((first..=last).map(|i| i as f64 * step).collect(), step)
}

fn tick_label(tick: f64, step: f64) -> String {
    let tick = if tick.abs() < step * 1e-6 { 0.0 } else { tick };
    if tick.abs() >= 1e6 {
        return format!("{}M", number(tick / 1e6));
    }
    if tick.abs() >= 1e4 {
        return format!("{}k", number(tick / 1e3));
    }
    let fine = step.fract().abs() > 1e-9;
    let decimals = if fine {
        (-step.log10()).ceil().max(0.0) as usize + usize::from(step.log10().fract() != 0.0)
    } else {
        0
    };
    let label = format!("{tick:.decimals$}");
    if fine && label.contains('.') { trim(&label) } else { label }
}

/// A number for people: at most four significant digits or so, no trailing zeros.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 4,
    };
    trim(&format!("{value:.decimals$}"))
}

fn trim(number: &str) -> String {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => number.to_string(),
    }
}

/// A label cut to fit a width.
fn shorten(text: &str, width: f64) -> String {
    let room = (width / LETTER).max(0.0) as usize;
    match text.chars().count() <= room {
        true => text.to_string(),
        false => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> String {
        let line = LineChart::new("Lines & <spans>", "sample", "top-1 (%)")
            .series(Series::new("zero-shot", vec![(0.0, 60.0), (10.0, f64::NAN), (20.0, 61.0)]))
            .series(Series::new("a \"b\"", vec![(0.0, 1.0), (20.0, 2.0)]).band(vec![(0.5, 1.5), (1.0, 3.0)]))
            .span(0.0, 10.0, "first")
            .to_svg();
        let bins = [
            ReliabilityBin { confidence: 0.4, accuracy: 0.5, share: 0.3 },
            ReliabilityBin { confidence: 0.9, accuracy: 0.8, share: 0.7 },
            ReliabilityBin { confidence: 0.0, accuracy: 0.0, share: 0.0 },
        ];
        let reliability = Reliability::new("Reliability").series("zero-shot", &bins, 0).to_svg();
        let bars = Bars::new("Gain", "points", vec!["pets".into(), "cifar".into()])
            .group("default", vec![1.0, -0.4], vec![(0.5, 1.5), (-0.9, 0.1)], 1)
            .group("paper", vec![-10.0, f64::NAN], vec![], 2)
            .to_svg();
        let scatter = Scatter::new("Before and after", "zero-shot", "adapted")
            .series(Series::new("streams", vec![(50.0, 52.0), (90.0, 91.0)]), vec!["cifar".into()])
            .diagonal()
            .to_svg();
        let table = Table {
            caption: "A table".into(),
            header: vec!["phase".into(), "top-1".into()],
            rows: vec![vec!["<calm>".into(), "61.0".into()]],
        };
        let page = Page::new("All & everything").lead("lead").note("simulated").section("s").text("t");
        page.table(&table).code("ultta demo").figures(vec![line, reliability, bars, scatter]).to_html()
    }

    #[test]
    fn pages_ask_for_nothing_and_escape_all_text() {
        let html = everything();
        for word in ["http:", "https:", "//", "src=", "href=", "@import", "url(", "<script", "<link"] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.contains("Lines &amp; &lt;spans&gt;") && html.contains("&lt;calm&gt;"));
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }

    #[test]
    fn elements_are_balanced() {
        let html = everything();
        for tag in ["svg", "g", "text", "title", "figure", "table", "tr", "th", "td", "p", "div"] {
            let opened =
                html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn empty_charts_are_drawn() {
        assert!(LineChart::new("t", "x", "y").to_svg().contains("<svg"));
        assert!(Bars::new("t", "x", vec![]).to_svg().contains("<svg"));
        assert!(Scatter::new("t", "x", "y").to_svg().contains("<svg"));
        assert!(Reliability::new("t").to_svg().contains("<svg"));
    }

    #[test]
    fn a_standalone_figure_carries_its_namespace_and_colours() {
        let svg = standalone(&Reliability::new("t").to_svg());
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("--c1") && svg.ends_with("</svg>"));
    }

    #[test]
    fn ticks_are_round_and_within() {
        for range in [(0.0, 1.0), (58.3, 64.9), (-3.0, 12.0), (0.0, 12_800.0), (0.0, 1e6), (0.001, 0.0034)] {
            let (ticks, _) = ticks(range, 5);
            assert!((2..=8).contains(&ticks.len()), "{range:?} {ticks:?}");
            assert!(ticks.iter().all(|t| (range.0 - 1e-9..=range.1 + 1e-9).contains(t)), "{ticks:?}");
        }
        assert_eq!(tick_label(2500.0, 2500.0), "2500");
        assert_eq!(tick_label(20_000.0, 5000.0), "20k");
        assert_eq!(tick_label(0.25, 0.25), "0.25");
        assert_eq!(tick_label(0.2, 0.2), "0.2");
        assert_eq!(number(-0.4), "-0.4");
        assert_eq!(number(61.25), "61.2");
    }
}
