//! The HTML page that carries the charts, and its colours.

use std::fmt::Write;

/// A table: a header and rows of cells. The first column is left-aligned, the others hold numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What the table shows, in a line.
    pub caption: String,
    /// Column names.
    pub header: Vec<String>,
    /// One list of cells per row. A row of a single cell is the heading of the rows below it.
    pub rows: Vec<Vec<String>>,
}

/// A cell of a matrix that is read by colour first.
#[derive(Clone, Debug, Default)]
pub struct HeatCell {
    /// The text of the cell; empty for an empty cell.
    pub text: String,
    /// Its tooltip.
    pub title: String,
    /// From −3 (orange, a loss) over 0 (plain) to 3 (blue, a gain).
    pub tone: i8,
}

/// Cells with more letters are words, not numbers.
const WORDS: usize = 22;

/// A self-contained HTML page, built from the top down. All text is escaped.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
    /// Sections that the contents list: anchor and heading.
    sections: Vec<(String, String)>,
    /// Folds that are open while the page is built.
    folds: usize,
    foot: String,
}

impl Page {
    /// A page with nothing but its title.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new(), sections: Vec::new(), folds: 0, foot: String::new() }
    }

    /// The opening paragraph.
    pub fn lead(self, text: &str) -> Self {
        self.push("p class=\"lead\"", "p", text)
    }

    /// A section heading. Those outside of folds are listed in the contents.
    pub fn section(mut self, text: &str) -> Self {
        if self.folds > 0 {
            return self.push("h3", "h3", text);
        }
        let anchor = format!("s{}", self.sections.len() + 1);
        let _ = writeln!(self.body, "<h2 id=\"{anchor}\">{}</h2>", escape(text));
        self.sections.push((anchor, text.to_string()));
        self
    }

    /// Begins a part that is closed until it is clicked; printed pages show it. [`Page::unfold`] ends it.
    pub fn fold(self, title: &str) -> Self {
        self.details("details", title)
    }

    /// Begins a part that is open until it is clicked. [`Page::unfold`] ends it.
    pub fn fold_open(self, title: &str) -> Self {
        self.details("details open", title)
    }

    fn details(mut self, tag: &str, title: &str) -> Self {
        let _ = writeln!(self.body, "<{tag}><summary>{}</summary>", escape(title));
        self.folds += 1;
        self
    }

    /// Ends the part that was begun last.
    pub fn unfold(mut self) -> Self {
        if self.folds > 0 {
            self.folds -= 1;
            self.body.push_str("</details>\n");
        }
        self
    }

    /// The main numbers, in large letters: each a number and what it means.
    pub fn headline(mut self, figures: &[(String, String)]) -> Self {
        self.body.push_str("<div class=\"headline\">");
        for (number, what) in figures {
            let _ = write!(self.body, "<p><b>{}</b><span>{}</span></p>", escape(number), escape(what));
        }
        self.body.push_str("</div>\n");
        self
    }

    /// How the page was made, at its foot: lines of text.
    pub fn foot(mut self, lines: &[String]) -> Self {
        self.foot = lines.iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
        self
    }

    /// Small pictures with captions. Each is the base64 text of a JPEG.
    pub fn thumbnails(mut self, pictures: &[(String, String)]) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
        self.body.push_str("<div class=\"thumbnails\">");
        for (picture, caption) in pictures.iter().filter(|p| p.0.chars().all(plain)) {
            let caption = escape(caption);
            let _ = write!(
                self.body,
                "<figure><img alt=\"{caption}\" src=\"data:image/jpeg;base64,{picture}\"><figcaption>{caption}</figcaption></figure>"
            );
        }
        self.body.push_str("</div>\n");
        self
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
            if let [group] = &row[..] {
                let width = table.header.len();
                let _ = write!(
                    self.body,
                    "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{width}\"><span>{}</span></th></tr>",
                    escape(group)
                );
                continue;
            }
            self.body.push_str("<tr>");
            for (i, cell) in row.iter().enumerate() {
                // A cell that is mostly words may take several lines, so that the table stays on the page.
                let words = cell.contains(" · ") || cell.chars().count() > WORDS;
                let class = if words { " class=\"words\"" } else { "" };
                let cell = escape(cell);
                let _ = if i == 0 {
                    write!(self.body, "<th scope=\"row\">{cell}</th>")
                } else {
                    write!(self.body, "<td{class}>{cell}</td>")
                };
            }
            self.body.push_str("</tr>");
        }
        self.body.push_str("</tbody></table></div>\n");
        self
    }

    /// A matrix: named columns, and named rows of coloured cells.
    pub fn heat(mut self, caption: &str, columns: &[String], rows: &[(String, Vec<HeatCell>)]) -> Self {
        let _ = write!(
            self.body,
            "<div class=\"table\"><table class=\"heat\"><caption>{}</caption>",
            escape(caption)
        );
        self.body.push_str("<thead><tr><th scope=\"col\"></th>");
        for name in columns {
            let _ = write!(self.body, "<th scope=\"col\"><span>{}</span></th>", escape(name));
        }
        self.body.push_str("</tr></thead><tbody>");
        for (name, cells) in rows {
            let _ = write!(self.body, "<tr><th scope=\"row\">{}</th>", escape(name));
            for HeatCell { text, title, tone } in cells {
                let side = if *tone < 0 { "loss" } else { "gain" };
                let class = if *tone == 0 {
                    String::new()
                } else {
                    format!(" class=\"{side}{}\"", tone.abs().min(3))
                };
                let (text, title) = (escape(text), escape(title));
                let _ = write!(self.body, "<td{class} title=\"{title}\">{text}</td>");
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
        let body = format!("{}{}", self.body, "</details>".repeat(self.folds));
        let foot =
            if self.foot.is_empty() { String::new() } else { format!("<footer>{}</footer>\n", self.foot) };
        let contents = self.contents();
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
{contents}{body}{foot}</main>
</body>
</html>
"#
        )
    }

    /// Links to the sections, where there are several.
    fn contents(&self) -> String {
        if self.sections.len() < 4 {
            return String::new();
        }
        let link = |(anchor, text): &(String, String)| format!("<a href=\"#{anchor}\">{}</a>", escape(text));
        let links: Vec<String> = self.sections.iter().map(link).collect();
        format!("<nav aria-label=\"Contents\">{}</nav>\n", links.join(" "))
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

pub(super) const COLOUR_CSS: &str = "
:root{--paper:#fff;--ink:#1c2024;--soft:#5b6470;--line:#d9dde2;--card:#f7f8fa;--note:#fff6e0;
--c0:#6b7280;--c1:#0072b2;--c2:#d55e00;--c3:#00805e;--c4:#a8487f;--c5:#b27700;--c6:#1b8fb8}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e7eaee;--soft:#a3adb8;--line:#343b43;--card:#1c2126;--note:#332a14;
--c0:#9aa3af;--c1:#4fb0ff;--c2:#ff8f4d;--c3:#35c79b;--c4:#e69ac6;--c5:#f0b840;--c6:#6fd3ee}}
";

const PAGE_CSS: &str = "
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1680px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.7rem;line-height:1.2;margin:.2em 0 .5em}
h2{font-size:1.2rem;margin:2em 0 .4em}
p{max-width:46em}
.lead{font-size:1.08rem;color:var(--soft)}
.note{background:var(--note);border-left:4px solid var(--c5);padding:.6em .9em;border-radius:4px}
nav{display:flex;flex-wrap:wrap;gap:.2em 1.1em;margin:.6em 0 1.4em;padding:.6em 0;border-top:1px solid var(--line);border-bottom:1px solid var(--line);font-size:.94rem}
a{color:var(--c1)}
h3{font-size:1.02rem;margin:1.4em 0 .3em}
details{margin:.5em 0;border-bottom:1px solid var(--line)}summary{cursor:pointer;padding:.35em 0;font-weight:600}
.headline{display:flex;flex-wrap:wrap;gap:.6em 2.4em;margin:1em 0}.headline p{margin:0}
.headline b{display:block;font-size:2.3rem;line-height:1.15;color:var(--c1);font-variant-numeric:tabular-nums}.headline span{color:var(--soft);font-size:.94rem}
.thumbnails{display:flex;flex-wrap:wrap;gap:10px;margin:1em 0}.thumbnails figure{width:132px;padding:6px}
.thumbnails img{display:block;width:100%;height:auto;border-radius:4px}.thumbnails figcaption{font-size:.74rem;line-height:1.3;padding-top:.3em;overflow-wrap:anywhere}
footer{margin-top:3em;padding-top:.8em;border-top:1px solid var(--line);color:var(--soft);font-size:.84rem}footer p{max-width:none;margin:.2em 0;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7em .9em;overflow-x:auto;font-size:.9rem}
.table{overflow-x:auto;margin:1em 0}
table{border-collapse:separate;border-spacing:0;font-variant-numeric:tabular-nums;font-size:.94rem}
caption{text-align:left;color:var(--soft);padding-bottom:.4em}
th,td{padding:.32em .55em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--paper);z-index:1}
.words{white-space:normal;min-width:7.5em;overflow-wrap:anywhere}
.group th{font-weight:600;padding-top:.9em;white-space:normal}.group span{display:block;max-width:calc(100vw - 32px);position:sticky;left:0}
thead th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
tbody th{font-weight:500;white-space:normal;min-width:8em}
.heat{font-size:.82rem}.heat th,.heat td{padding:.22em .4em}.heat th{white-space:nowrap;min-width:0}
.heat thead th{vertical-align:bottom}.heat thead span{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left}
.gain1{background:rgba(0,114,178,.14)}.gain2{background:rgba(0,114,178,.32)}.gain3{background:rgba(0,114,178,.55)}
.loss1{background:rgba(230,120,0,.18)}.loss2{background:rgba(230,120,0,.42)}.loss3{background:rgba(230,120,0,.7)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px;margin:1em 0;align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;max-width:640px}
figure svg{display:block;width:100%;height:auto}
@media(max-width:1400px){table{font-size:.82rem}th,td{padding:.32em .36em}.words{min-width:6.4em}}
@media(max-width:480px){table{font-size:.84rem}th,td{padding:.32em .4em}th:first-child{min-width:6.5em}}
@page{size:A4 landscape;margin:12mm}
@media print{figure,tr{break-inside:avoid}nav{display:none}details::details-content{content-visibility:visible;block-size:auto}
.table{overflow:visible}table{font-size:.72rem}.heat{font-size:.6rem}th,td{padding:.2em .35em;white-space:normal}th:first-child{position:static}body{font-size:12px}}
";

pub(super) const SVG_CSS: &str = "
svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}
svg .head{font-size:14px;font-weight:600}svg .soft{fill:var(--soft)}svg .small{font-size:10.5px;fill:var(--soft)}
svg .middle{text-anchor:middle}svg .end{text-anchor:end}
svg .grid{stroke:var(--line);stroke-width:1;fill:none}svg .axis{stroke:var(--soft);stroke-width:1;fill:none}
svg .even{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4;fill:none}
svg .whisker{stroke:var(--ink);stroke-width:1;fill:none}
svg .span0{fill:none}svg .span1{fill:var(--soft);opacity:.1}
svg .l{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
svg .hit{fill:transparent;stroke:none}svg .hit:hover{fill:var(--ink);opacity:.35}
svg .b{opacity:.16;stroke:none}svg .d{opacity:.85}svg .few{opacity:.22}
svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}svg .s3{stroke:var(--c3)}svg .s4{stroke:var(--c4)}svg .s5{stroke:var(--c5)}svg .s6{stroke:var(--c6)}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}
";
