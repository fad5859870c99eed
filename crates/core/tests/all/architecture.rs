//! ARCHITECTURE.md is true: the files it names are there, and what stands beside a file's name stands in that file.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            found.push(entry);
        }
    }
}

/// All sources, each with its path as the document writes it: `core/src/features.rs` and `core/features.rs` are the same file.
struct Tree(Vec<(String, String)>);

impl Tree {
    fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        sources(&root.join("crates"), &mut files);
        let read = |path: &PathBuf| {
            (path.to_string_lossy().replace("/src/", "/"), fs::read_to_string(path).unwrap())
        };
        Self(files.iter().map(read).collect())
    }

    /// The sources that a name may mean; any, if it names none.
    fn of(&self, file: Option<&str>) -> impl Iterator<Item = &str> {
        let ending = file.map(|file| format!("/{}", file.replace("/src/", "/")));
        let fits = move |path: &str| ending.as_ref().is_none_or(|ending| path.ends_with(ending));
        self.0.iter().filter(move |(path, _)| fits(path)).map(|(_, source)| source.as_str())
    }

    /// Whether `Type::function`, `function` or `Type` stands in a file of this name; in any one file, if it is not named.
    fn has(&self, file: Option<&str>, name: &str) -> bool {
        self.of(file).any(|source| match name.split_once("::") {
            Some((kind, function)) => defines_function(source, function) && implements(source, kind),
            None if name.starts_with(char::is_uppercase) => ["struct", "enum", "trait", "type"]
                .iter()
                .any(|word| has_word(source, &format!("{word} {name}"))),
            None => defines_function(source, name),
        })
    }
}

fn defines_function(source: &str, function: &str) -> bool {
    ["(", "<"].iter().any(|after| source.contains(&format!("fn {function}{after}")))
}

/// Whether a source has an `impl` of the type, or is where the trait is.
fn implements(source: &str, kind: &str) -> bool {
    let begins = |line: &str| ["impl", "trait ", "pub trait "].iter().any(|word| line.starts_with(word));
    source.lines().map(str::trim_start).any(|line| begins(line) && has_word(line, kind))
}

/// Whether a text has a word, not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let letter = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(letter) && !text[at + word.len()..].starts_with(letter)
    })
}

/// The paragraphs, rows of tables and points of lists, each as one line.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('|') || line.starts_with(|c: char| c.is_ascii_digit()) {
            pieces.push(String::new());
        }
        let piece = pieces.last_mut().unwrap();
        *piece += " ";
        *piece += line;
    }
    pieces
}

/// What stands between backquotes, each with the file that is named beside it: `file.rs` `Type::function`, `other` and `third`.
fn named(piece: &str) -> Vec<(Option<&str>, &str)> {
    let parts: Vec<&str> = piece.split('`').collect();
    let (mut file, mut found) = (None, Vec::new());
    for pair in parts.chunks_exact(2) {
        let (between, name) = (pair[0], pair[1]);
        // A remark in brackets does not part them.
        let between = match between.strip_prefix(" (").and_then(|rest| rest.split_once(')')) {
            Some((_, rest)) => rest,
            None => between,
        };
        if name.ends_with(".rs") {
            file = Some(name);
            continue;
        }
        let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
        if ![" ", ", ", " and ", " or "].contains(&between) || !name.split("::").all(word) {
            file = None;
        }
        found.push((file, name));
    }
    found
}

#[test]
fn what_it_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root);
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (mut beside, mut alone) = (0, 0);
    for piece in pieces(&text) {
        for file in piece.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")) {
            assert!(tree.of(Some(file)).next().is_some(), "no source file {file}: {piece}");
        }
        // A way of a row is a numbered list; there, a function without a file has to be somewhere.
        let step = piece.trim_start().starts_with(|c: char| c.is_ascii_digit());
        for (file, name) in named(&piece) {
            let function = name.split_once("::").is_some_and(|(_, f)| f.starts_with(char::is_lowercase));
            if let Some(file) = file {
                assert!(tree.has(Some(file), name), "no {name} in {file}: {piece}");
                beside += 1;
            } else if step && function {
                assert!(tree.has(None, name), "no function {name}: {piece}");
                alone += 1;
            }
        }
    }
    assert!(beside > 50 && alone > 8, "found {beside} and {alone} names only");
}

#[test]
fn a_function_in_another_file_is_not_there() {
    let tree = Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(tree.has(Some("gate.rs"), "Gate::admits") && tree.has(None, "Gate::admits"));
    assert!(!tree.has(Some("guard.rs"), "Gate::admits"), "it is in gate.rs");
    assert!(!tree.has(None, "Gate::recover"), "the function is another type's");
    let told =
        "1. `gate.rs` `Gate::admits` (a remark) and `open`, `log.rs` `Log::commit`; then `Prior::learn`";
    assert_eq!(
        named(told),
        [
            (Some("gate.rs"), "Gate::admits"),
            (Some("gate.rs"), "open"),
            (Some("log.rs"), "Log::commit"),
            (None, "Prior::learn")
        ]
    );
}
