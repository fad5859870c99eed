//! Curves drawn with characters: one mark per method, so that they can be told apart without colour.

use std::fmt::Write;

const COLUMNS: usize = 66;
const ROWS: usize = 12;

/// A plot for the terminal.
pub struct TerminalPlot {
    title: &'static str,
    series: Vec<Curve>,
    sections: Vec<(f64, &'static str)>,
}

struct Curve {
    name: &'static str,
    points: Vec<(f64, f64)>,
    mark: char,
    ansi: &'static str,
}

impl TerminalPlot {
    /// An empty plot.
    pub fn new(title: &'static str) -> Self {
        Self { title, series: Vec::new(), sections: Vec::new() }
    }

    /// Adds a curve with its mark and ANSI colour. Later curves are drawn over earlier ones.
    pub fn series(&mut self, name: &'static str, points: Vec<(f64, f64)>, mark: char, ansi: &'static str) {
        let points = points.into_iter().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
        self.series.push(Curve { name, points, mark, ansi });
    }

    /// Names the stretch that begins at `x`.
    pub fn section(&mut self, x: f64, name: &'static str) {
        self.sections.push((x, name));
    }

    /// The plot as lines of text.
    pub fn draw(&self, colour: bool) -> String {
        let points = || self.series.iter().flat_map(|c| &c.points);
        let end = points().map(|p| p.0).fold(1.0, f64::max);
        let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min).floor();
        let high = points().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
        let column = |x: f64| ((x / end * COLUMNS as f64) as usize).min(COLUMNS - 1);
        let row = |y: f64| ((high - y) / (high - low) * (ROWS - 1) as f64).round() as usize;

        let mut cells: Vec<[Option<usize>; COLUMNS]> = vec![[None; COLUMNS]; ROWS];
        for (i, curve) in self.series.iter().enumerate() {
            for c in 0..COLUMNS {
                let here: Vec<f64> = curve.points.iter().filter(|p| column(p.0) == c).map(|p| p.1).collect();
                if !here.is_empty() {
                    cells[row(here.iter().sum::<f64>() / here.len() as f64)][c] = Some(i);
                }
            }
        }
        let paint = |curve: &Curve| {
            if colour { format!("\x1b[{}m{}\x1b[0m", curve.ansi, curve.mark) } else { curve.mark.to_string() }
        };
        let mut text = format!("{}\n", self.title);
        let starts: Vec<usize> = self.sections.iter().skip(1).map(|s| column(s.0)).collect();
        for (r, line) in cells.iter().enumerate() {
            let labelled = r == 0 || r == ROWS - 1 || r == ROWS / 2;
            let y = high - (high - low) * r as f64 / (ROWS - 1) as f64;
            let _ = if labelled { write!(text, "{y:6.1} ┤") } else { write!(text, "       │") };
            for (c, cell) in line.iter().enumerate() {
                match cell {
                    Some(i) => text.push_str(&paint(&self.series[*i])),
                    None if starts.contains(&c) => text.push('┊'),
                    None => text.push(' '),
                }
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        let _ = writeln!(text, "       └{}", "─".repeat(COLUMNS));
        let mut names = String::new();
        for (x, name) in &self.sections {
            let indent = (8 + column(*x)).saturating_sub(names.chars().count());
            let _ = write!(names, "{}{name} ", " ".repeat(indent));
        }
        let _ = writeln!(text, "{}", names.trim_end());
        let keys: Vec<String> = self.series.iter().map(|c| format!("{} {}", paint(c), c.name)).collect();
        let _ = writeln!(text, "        {}", keys.join("   "));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_drawn_where_they_belong() {
        let mut plot = TerminalPlot::new("t");
        plot.series("low", (0..100).map(|i| (f64::from(i), 1.0)).collect(), '.', "90");
        plot.series("high", vec![(0.0, 9.0), (50.0, f64::NAN), (99.0, 9.0)], '#', "36");
        plot.section(0.0, "first");
        plot.section(50.0, "second");
        let text = plot.draw(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + ROWS + 3);
        assert!(lines[1].starts_with("   9.0 ┤#") && lines[1].ends_with('#'), "{text}");
        assert_eq!(lines[ROWS].matches('.').count(), COLUMNS + 1, "one for the label: {text}");
        assert!(lines[ROWS + 2].contains("first") && lines[ROWS + 2].contains("second"));
        assert!(!text.contains('\x1b'));
        assert!(plot.draw(true).contains("\x1b[36m#\x1b[0m"));
    }

    #[test]
    fn an_empty_plot_is_drawn() {
        assert!(TerminalPlot::new("t").draw(false).contains('┤'));
    }
}
