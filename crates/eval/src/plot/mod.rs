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

mod canvas;
mod charts;
mod labels;
mod page;

pub use charts::{Bars, LineChart, Reliability, ReliabilityBin, Scatter, Series, standalone};
pub use page::{HeatCell, Page, Table, escape};

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
            ReliabilityBin { confidence: 0.4, accuracy: 0.5, share: 0.3, n: 3 },
            ReliabilityBin { confidence: 0.9, accuracy: 0.8, share: 0.7, n: 700 },
            ReliabilityBin { confidence: 0.0, accuracy: 0.0, share: 0.0, n: 0 },
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
        let heat = HeatCell { text: "−1.0 ▼".into(), title: "<pets>".into(), tone: -2 };
        let page = page.heat("matrix", &["iid".into()], &[("pets".into(), vec![heat, HeatCell::default()])]);
        let page = page.headline(&[("+1.0".into(), "points & <more>".into())]);
        let page =
            page.thumbnails(&[("aGk=".into(), "was \"dog\"".into()), ("\" onload=".into(), "no".into())]);
        let page =
            page.section("s2").section("s3").section("s4").fold("f").section("inside").unfold().fold("g");
        let page = page.table(&table).code("ultta demo").figures(vec![line, reliability, bars, scatter]);
        page.foot(&["made by <me>".into()]).to_html()
    }

    #[test]
    fn pages_ask_for_nothing_and_escape_all_text() {
        let html = everything();
        for word in ["http:", "https:", "//", "@import", "url(", "<script", "<link"] {
            assert!(!html.contains(word), "{word}");
        }
        // Links lead to places of the page, pictures are in it.
        assert_eq!(html.matches("href=").count(), html.matches("href=\"#s").count());
        assert_eq!(html.matches("src=").count(), html.matches("src=\"data:image/jpeg;base64,").count());
        assert!(html.contains("Lines &amp; &lt;spans&gt;") && html.contains("&lt;calm&gt;"));
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }

    #[test]
    fn elements_are_balanced() {
        let html = everything();
        for tag in [
            "svg", "g", "text", "title", "figure", "table", "tr", "th", "td", "p", "div", "details", "nav",
            "a", "h2", "h3",
        ] {
            let opened =
                html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn contents_list_what_is_not_folded_and_bad_pictures_are_left_out() {
        let html = everything();
        assert!(html.contains("<a href=\"#s2\">s2</a>") && !html.contains(">inside</a>"));
        assert!(html.contains("<h3>inside</h3>") && !html.contains("onload"));
        assert!(!Page::new("t").section("a").section("b").to_html().contains("<nav"));
    }

    #[test]
    fn a_logarithmic_axis_has_plain_numbers_and_few_samples_fade() {
        let dots = vec![(2.5, 1.0), (40.0, 2.0), (900.0, 3.0)];
        let svg = Scatter::new("t", "µs", "y").series(Series::new("", dots), vec![]).log_x().to_svg();
        for tick in [">3<", ">10<", ">30<", ">100<", ">300<"] {
            assert!(svg.contains(tick), "{tick}: {svg}");
        }
        let html = everything();
        assert_eq!(html.matches("class=\"few\"").count(), 1, "the bin of 3");
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
}
