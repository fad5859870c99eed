//! Text as open_clip cleans it before its tokeniser: `ftfy.fix_text`, HTML entities twice, white space, lower case.
//!
//! The tables are made by `data/make.py` from ftfy and Python's `html`. What ftfy does and this does not: escape
//! sequences beyond ANSI colours, and CESU-8.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;
use regex::bytes::Regex as ByteRegex;
use unicode_normalization::UnicodeNormalization;

/// A text as CLIP's tokeniser wants it.
pub(crate) fn clean(text: &str) -> String {
    let mut fixed = String::new();
    // Line by line, as ftfy; a `<` turns off entities for the rest.
    let mut entities = true;
    for line in text.split_inclusive('\n') {
        entities &= !line.contains('<');
        fixed.push_str(&fix_line(line, entities));
    }
    let unescaped = unescape(&unescape(&fixed));
    let words: Vec<&str> = unescaped.split(is_space).filter(|w| !w.is_empty()).collect();
    lower(&words.join(" "))
}

/// Python's idea of white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's and Rust's lower case agree, final sigma included.
fn lower(text: &str) -> String {
    text.to_lowercase()
}

/// `ftfy.fix_and_explain`, until nothing changes.
fn fix_line(line: &str, entities: bool) -> String {
    let mut text = line.to_string();
    loop {
        let before = text.clone();
        if entities && text.contains('&') {
            text = fix_entities(&text);
        }
        text = fix_encoding(&text);
        text =
            text.chars()
                .map(|c| {
                    if ('\u{80}'..='\u{9f}').contains(&c) { WINDOWS_1252.upper[c as usize - 0x80] } else { c }
                })
                .collect();
        text = replace(&text, &LIGATURES);
        text = replace(&text, &WIDTHS);
        text = text
            .chars()
            .map(|c| match c {
                '\u{2bc}' | '\u{2018}'..='\u{201b}' => '\'',
                '\u{201c}'..='\u{201f}' => '"',
                other => other,
            })
            .collect();
        text = text.replace("\r\n", "\n").replace(['\r', '\u{2028}', '\u{2029}', '\u{85}'], "\n");
        text = ANSI.replace_all(&text, "").into_owned();
        text.retain(|c| {
            !matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{206a}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffc}')
        });
        text = text.nfc().collect();
        if text == before {
            return text;
        }
    }
}

fn replace(text: &str, table: &HashMap<char, String>) -> String {
    if !text.chars().any(|c| table.contains_key(&c)) {
        return text.to_string();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match table.get(&c) {
            Some(other) => out.push_str(other),
            None => out.push(c),
        }
    }
    out
}

/// Undoes text that was decoded in the wrong encoding, step by step.
fn fix_encoding(text: &str) -> String {
    let mut text = text.to_string();
    // ftfy loops until nothing changes; every step shortens the text, so this ends.
    loop {
        let next = fix_encoding_once(&text);
        if next == text {
            return text;
        }
        text = next;
    }
}

fn fix_encoding_once(text: &str) -> String {
    if text.is_ascii() || !BADNESS.is_match(text) {
        return text.to_string();
    }
    let mut possible = Vec::new();
    for table in ENCODINGS.iter() {
        let Some(bytes) = table.encode(text) else { continue };
        possible.push(table.name.as_str());
        let mut bytes = bytes;
        if table.name != "macroman" && ALTERED.is_match(&bytes) {
            bytes = restore_a0(&bytes);
        }
        if table.name.starts_with("sloppy") {
            bytes = LOSSY.replace_all(&bytes, "\u{fffd}".as_bytes()).into_owned();
        }
        if let Ok(fixed) = String::from_utf8(bytes) {
            return fixed;
        }
    }
    let fixed = fix_embedded(text);
    if fixed != text {
        return fixed;
    }
    if possible.contains(&"latin-1") {
        // Strictly Windows-1252 as well: the text is probably meant. Otherwise it has control characters, which that
        // encoding reads as something else.
        if text.chars().all(|c| !('\u{80}'..='\u{9f}').contains(&c)) {
            return text.to_string();
        }
        let bytes: Vec<u8> = text.chars().map(|c| c as u32 as u8).collect();
        return WINDOWS_1252.decode(&bytes);
    }
    text.to_string()
}

/// Decodes sequences that look like UTF-8 inside of text that is not.
fn fix_embedded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut last = 0;
    let mut at = 0;
    while let Some(found) = DETECTOR.find_at(text, at) {
        let before = text[..found.start()].chars().next_back();
        if before.is_some_and(|c| CONTINUATION_STRICT.is_match(c.encode_utf8(&mut [0; 4]))) {
            // ftfy looks behind: a sequence does not begin after a continuation. Try one character further.
            at = found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        out.push_str(&text[last..found.start()]);
        let part = found.as_str();
        if part.len() < text.len() && BADNESS.is_match(part) {
            out.push_str(&fix_encoding(part))
        } else {
            out.push_str(part)
        }
        (last, at) = (found.end(), found.end());
    }
    out.push_str(&text[last..]);
    out
}

/// Puts back the byte A0 where a space stands for it.
fn restore_a0(bytes: &[u8]) -> Vec<u8> {
    let mut spaced = Vec::with_capacity(bytes.len() + 4);
    let mut i = 0;
    while i < bytes.len() {
        spaced.push(bytes[i]);
        if bytes[i] == 0xc3 && bytes.get(i + 1) == Some(&b' ') {
            let rest = &bytes[i + 2..];
            let word = [&b" "[..], b"quele", b"quela", b"quilo", b"s "];
            if !word.iter().any(|w| rest.starts_with(w)) {
                spaced.extend([0xa0, b' ']);
                i += 2;
                continue;
            }
        }
        i += 1;
    }
    let fill = |found: &regex::bytes::Captures<'_>| -> Vec<u8> {
        found[0].iter().map(|&b| if b == b' ' { 0xa0 } else { b }).collect()
    };
    ALTERED.replace_all(&spaced, fill).into_owned()
}

/// `ftfy`'s entities: closed by a semicolon, also in capitals.
fn fix_entities(text: &str) -> String {
    let one = |found: &regex::Captures<'_>| -> String {
        let whole = &found[0];
        let inner = &whole[1..];
        if let Some(known) = ENTITIES.get(inner).or_else(|| SHOUTED.get(inner)) {
            return known.clone();
        }
        if inner.starts_with('#') {
            let fixed = unescape(whole);
            if !fixed.contains('&') {
                return fixed;
            }
        }
        whole.to_string()
    };
    CLOSED_ENTITY.replace_all(text, one).into_owned()
}

/// Python's `html.unescape`.
pub(crate) fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_string();
    }
    let one = |found: &regex::Captures<'_>| -> String {
        let name = &found[1];
        if let Some(digits) = name.strip_prefix('#') {
            let digits = digits.trim_end_matches(';');
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => digits.parse(),
            };
            let Ok(code) = code else { return "\u{fffd}".into() };
            if let Some(&known) = INVALID.get(&code) {
                return known.to_string();
            }
            let noncharacter = (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe;
            let control = (1..=8).contains(&code)
                || (0xe..=0x1f).contains(&code)
                || (0x7f..=0x9f).contains(&code)
                || code == 0xb;
            return match char::from_u32(code) {
                None => "\u{fffd}".into(),
                Some(_) if noncharacter || control => String::new(),
                Some(c) => c.to_string(),
            };
        }
        if let Some(known) = ENTITIES.get(name) {
            return known.clone();
        }
        // The longest known name without a semicolon, and the rest as it is.
        for end in (2..name.len()).rev().filter(|&i| name.is_char_boundary(i)) {
            if let Some(known) = ENTITIES.get(&name[..end]) {
                return format!("{known}{}", &name[end..]);
            }
        }
        format!("&{name}")
    };
    REFERENCE.replace_all(text, one).into_owned()
}

/// A one-byte encoding.
struct Encoding {
    name: String,
    upper: Vec<char>,
    codes: HashMap<char, u8>,
}

impl Encoding {
    /// The bytes, if every character has one.
    fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let sloppy = self.name.starts_with("sloppy");
        text.chars()
            .map(|c| match c {
                '\u{1a}' if sloppy => None,
                '\u{fffd}' if sloppy => Some(0x1a),
                c if c.is_ascii() => Some(c as u8),
                c => self.codes.get(&c).copied(),
            })
            .collect()
    }

    fn decode(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|&b| if b < 0x80 { b as char } else { self.upper[b as usize - 0x80] }).collect()
    }
}

fn characters(codes: &str) -> String {
    codes.split(' ').filter_map(|c| char::from_u32(u32::from_str_radix(c, 16).ok()?)).collect()
}

/// Lines of a key and a value.
fn pairs(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter_map(|line| line.split_once('\t'))
}

fn by_code(table: &'static str, plain: bool) -> HashMap<char, String> {
    let entry = |(code, value): (&str, &str)| {
        let key = char::from_u32(u32::from_str_radix(code, 16).ok()?)?;
        Some((key, if plain { value.to_string() } else { characters(value) }))
    };
    pairs(table).filter_map(entry).collect()
}

static ENTITIES: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    pairs(include_str!("../../data/text/entities.txt")).map(|(k, v)| (k, characters(v))).collect()
});
static SHOUTED: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    pairs(include_str!("../../data/text/shouted_entities.txt")).map(|(k, v)| (k, characters(v))).collect()
});
static INVALID: LazyLock<HashMap<u32, char>> = LazyLock::new(|| {
    let entry = |(code, value): (&str, &str)| {
        Some((u32::from_str_radix(code, 16).ok()?, characters(value).chars().next()?))
    };
    pairs(include_str!("../../data/text/invalid_references.txt")).filter_map(entry).collect()
});
static LIGATURES: LazyLock<HashMap<char, String>> =
    LazyLock::new(|| by_code(include_str!("../../data/text/ligatures.txt"), true));
static WIDTHS: LazyLock<HashMap<char, String>> =
    LazyLock::new(|| by_code(include_str!("../../data/text/widths.txt"), false));
static ENCODINGS: LazyLock<Vec<Encoding>> = LazyLock::new(|| {
    let table = |(name, codes): (&str, &str)| {
        let upper: Vec<char> = characters(codes).chars().collect();
        // The first byte of a character wins, as in Python.
        let codes = upper.iter().enumerate().rev().map(|(i, &c)| (c, (i + 0x80) as u8)).collect();
        Encoding { name: name.to_string(), upper, codes }
    };
    pairs(include_str!("../../data/text/encodings.txt")).map(table).collect()
});
static WINDOWS_1252: LazyLock<&Encoding> = LazyLock::new(|| &ENCODINGS[1]);

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is part of this crate and tested")
}

fn byte_regex(pattern: &str) -> ByteRegex {
    ByteRegex::new(pattern).expect("the pattern is part of this crate and tested")
}

static BADNESS: LazyLock<Regex> =
    LazyLock::new(|| regex(include_str!("../../data/text/badness.txt").trim_end()));
static CLUES: LazyLock<Vec<&str>> =
    LazyLock::new(|| include_str!("../../data/text/utf8_clues.txt").lines().collect());
static DETECTOR: LazyLock<Regex> = LazyLock::new(|| {
    let [two, three, four, continuation] = [CLUES[0], CLUES[1], CLUES[2], CLUES[3]];
    regex(&format!("(?:{two}{continuation}|{three}{continuation}{{2}}|{four}{continuation}{{3}})+"))
});
static CONTINUATION_STRICT: LazyLock<Regex> = LazyLock::new(|| regex(CLUES[4]));
static ANSI: LazyLock<Regex> = LazyLock::new(|| regex("\u{1b}\\[(?:(?:\\d|;)*)([a-zA-Z])"));
static CLOSED_ENTITY: LazyLock<Regex> = LazyLock::new(|| regex("&#?[0-9A-Za-z]{1,24};"));
static REFERENCE: LazyLock<Regex> =
    LazyLock::new(|| regex("&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\\t\\n\\x0c <&#;]{1,32};?)"));
static ALTERED: LazyLock<ByteRegex> = LazyLock::new(|| {
    byte_regex(
        r"(?-u)[\xc2\xc3\xc5\xce\xd0\xd9] |[\xe2\xe3] [\x80-\x84\x86-\x9f\xa1-\xbf]|[\xe0-\xe3][\x80-\x84\x86-\x9f\xa1-\xbf] |\xf0 [\x80-\xbf][\x80-\xbf]|\xf0[\x80-\xbf] [\x80-\xbf]|\xf0[\x80-\xbf][\x80-\xbf] ",
    )
});
static LOSSY: LazyLock<ByteRegex> = LazyLock::new(|| {
    byte_regex(
        r"(?-u)[\xc2-\xdf]\x1a|[\xc2-\xc3]\?|\xed[\xa0-\xaf][\x1a?]\xed[\xb0-\xbf][\x1a?\x80-\xbf]|\xed[\xa0-\xaf][\x1a?\x80-\xbf]\xed[\xb0-\xbf][\x1a?]|[\xe0-\xef][\x1a?][\x1a\x80-\xbf]|[\xe0-\xef][\x1a\x80-\xbf][\x1a?]|[\xf0-\xf4][\x1a?][\x1a\x80-\xbf][\x1a\x80-\xbf]|[\xf0-\xf4][\x1a\x80-\xbf][\x1a?][\x1a\x80-\xbf]|[\xf0-\xf4][\x1a\x80-\xbf][\x1a\x80-\xbf][\x1a?]|\x1a",
    )
});

/// Words without punctuation, for SigLIP.
pub(crate) fn canonicalize(text: &str) -> String {
    let punctuation: HashSet<char> = "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~".chars().collect();
    let plain: String = text
        .replace('_', " ")
        .chars()
        .filter(|c| !punctuation.contains(c))
        .collect::<String>()
        .to_lowercase();
    plain.split(is_space).filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
}
