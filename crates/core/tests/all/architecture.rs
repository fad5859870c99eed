//! ARCHITECTURE.md is true: the files it names are there, and the ways of a row go through functions that exist.

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

/// The pieces of a line that stand between backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn what_it_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let is_there = |name: &str| {
        // `core/features.rs` and `core/src/features.rs` are the same file.
        let name = name.replace("/src/", "/");
        files.iter().any(|file| file.to_string_lossy().replace("/src/", "/").ends_with(&format!("/{name}")))
    };
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut functions = 0;
    for line in text.lines() {
        // A way of a row is a numbered list: `file.rs` `Type::function`.
        let step = line.trim_start().starts_with(|c: char| c.is_ascii_digit());
        for name in quoted(line) {
            if name.ends_with(".rs") {
                assert!(is_there(name), "no source file {name}: {line}");
            } else if step
                && let Some((kind, function)) = name.split_once("::")
                && function.starts_with(|c: char| c.is_lowercase())
            {
                let wanted = [format!("fn {function}("), format!("fn {function}<")];
                let anywhere = files.iter().any(|path| {
                    let source = fs::read_to_string(path).unwrap();
                    source.contains(kind) && wanted.iter().any(|w| source.contains(w))
                });
                assert!(anywhere, "no function {name}: {line}");
                functions += 1;
            }
        }
    }
    assert!(functions > 25, "found {functions} functions only");
}
