//! The drawing surface of all charts: an SVG element with a title, a legend, axes, lines and dots.

use std::fmt::Write;

use super::labels::{LETTER, tick_label, ticks};
use super::page::escape;

/// Width of every figure in user units. A page shows two side by side, a phone one: text stays readable.
pub(super) const WIDTH: f64 = 480.0;
/// Number of colours of the palette; further series start over.
pub(super) const COLOURS: usize = 7;
const DASHES: [&str; 4] = ["5 3", "", "2 3", "9 3 2 3"];

/// Space for y labels.
pub(super) const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;

/// The drawing area and how data land in it.
pub(super) struct Frame {
    left: f64,
    pub top: f64,
    width: f64,
    pub height: f64,
    xs: (f64, f64),
    ys: (f64, f64),
}

impl Frame {
    pub fn x(&self, x: f64) -> f64 {
        self.left + self.width * (x - self.xs.0) / (self.xs.1 - self.xs.0)
    }
    pub fn y(&self, y: f64) -> f64 {
        let y = y.clamp(self.ys.0, self.ys.1);
        self.top + self.height * (self.ys.1 - y) / (self.ys.1 - self.ys.0)
    }
}

/// An SVG element that is being drawn: title and legend on top, then the drawing area.
pub(super) struct Canvas {
    title: String,
    pub body: String,
    left: f64,
    pub top: f64,
    plot_height: f64,
}

impl Canvas {
    pub fn new(title: &str, legend: &[(&str, usize)], plot_height: f64, left: f64) -> Self {
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

    pub fn frame(&self, xs: (f64, f64), ys: (f64, f64)) -> Frame {
        let (left, top, height) = (self.left, self.top, self.plot_height);
        Frame { left, top, width: WIDTH - left - RIGHT, height, xs, ys }
    }

    pub fn axes(&mut self, frame: &Frame, x_label: &str, y_label: &str) {
        self.x_axis(frame, x_label);
        self.y_axis(frame, y_label);
    }

    pub fn y_axis(&mut self, frame: &Frame, y_label: &str) {
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

    pub fn x_axis(&mut self, frame: &Frame, label: &str) {
        let (ticks, step) = ticks(frame.xs, 6);
        let ticks: Vec<(f64, String)> =
            ticks.into_iter().map(|tick| (tick, tick_label(tick, step))).collect();
        self.x_axis_at(frame, label, &ticks);
    }

    /// The x axis with these ticks: places and what stands at them.
    pub fn x_axis_at(&mut self, frame: &Frame, label: &str, ticks: &[(f64, String)]) {
        let bottom = frame.top + frame.height;
        for (tick, name) in ticks {
            let x = frame.x(*tick);
            let _ = write!(
                self.body,
                r#"<path class="grid" d="M{x:.1} {top:.1}V{end:.1}"/><text class="soft middle" x="{x:.1}" y="{text:.1}">{label}</text>"#,
                top = frame.top,
                end = bottom + 4.0,
                text = bottom + 18.0,
                label = escape(name),
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

    pub fn diagonal(&mut self, frame: &Frame) {
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

    pub fn band(&mut self, frame: &Frame, points: &[(f64, f64)], band: &[(f64, f64)], look: usize) {
        if band.is_empty() {
            return;
        }
        let low = points.iter().zip(band).map(|(p, b)| (p.0, b.0));
        let high = points.iter().zip(band).map(|(p, b)| (p.0, b.1));
        let mut path = String::new();
        for (x, y) in low.chain(high.rev()).filter(|p| p.1.is_finite()) {
            let verb = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{:.1} {:.1}", frame.x(x), frame.y(y));
        }
        let _ = write!(self.body, r#"<path class="b f{}" d="{path}Z"/>"#, look % COLOURS);
    }

    pub fn line(&mut self, frame: &Frame, points: &[(f64, f64)], look: usize) {
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

    /// A marker with a tooltip. With radius 0 it is invisible, but its tooltip still appears.
    pub fn dot(&mut self, frame: &Frame, (x, y): (f64, f64), look: usize, radius: f64, tip: &str) {
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

    /// Draws what follows pale, until [`Canvas::bright`].
    pub fn pale(&mut self) {
        self.body.push_str(r#"<g class="few">"#);
    }

    pub fn bright(&mut self) {
        self.body.push_str("</g>");
    }

    pub fn finish(self) -> String {
        let height = self.top + self.plot_height + 46.0;
        format!(
            r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.title, self.body
        )
    }
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
