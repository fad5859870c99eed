//! How objects show themselves in a notebook: a caption over a small table.

/// A table of names and values; every text is escaped.
pub fn table(caption: &str, rows: &[(&str, String)]) -> String {
    let body: String = rows
        .iter()
        .map(|(name, value)| {
            format!("<tr><th style='text-align:left'>{}</th><td>{}</td></tr>", escape(name), escape(value))
        })
        .collect();
    format!("<table><caption>{}</caption>{body}</table>", escape(caption))
}

/// A table with a header line.
pub fn grid(caption: &str, header: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let head = cells("th", &mut header.iter().copied());
    let body: String = rows
        .iter()
        .map(|row| format!("<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str))))
        .collect();
    format!("<table><caption>{}</caption><tr>{head}</tr>{body}</table>", escape(caption))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}
