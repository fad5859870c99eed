//! Names as they are shown to people: a name of a file may hold any character, and must not break a line or move a
//! cursor.

use std::path::Path;

/// A path or another name with control characters escaped: a line break is shown as `\\n`.
pub fn shown<P: AsRef<Path> + ?Sized>(name: &P) -> String {
    let name = name.as_ref().to_string_lossy();
    if !name.contains(char::is_control) {
        return name.into_owned();
    }
    name.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_their_line() {
        assert_eq!(shown("a b/é.png"), "a b/é.png");
        assert_eq!(shown("a\nwarning: b\u{1b}[2J.png"), "a\\nwarning: b\\u{1b}[2J.png");
    }
}
