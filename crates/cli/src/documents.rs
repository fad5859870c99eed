//! What the documents tell a reader to type is a command line that this program takes: every `ultta …` of a shell block
//! in the README, in `docs` and beside them is parsed.

use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;

/// A command of a document, and where it stands.
struct Command {
    place: String,
    words: Vec<String>,
}

/// The commands of a document's shell blocks: fenced ones (`sh`), and lines indented by four spaces.
fn told(name: &str, text: &str) -> Vec<Command> {
    let mut found = Vec::new();
    let mut fence: Option<bool> = None;
    let mut pending = String::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language == "sh" || language == "bash") };
            continue;
        }
        let shell = fence.unwrap_or_else(|| line.starts_with("    ultta "));
        if !shell {
            continue;
        }
        if let Some(start) = line.strip_suffix('\\') {
            pending.push_str(start);
            continue;
        }
        pending.push_str(line);
        let place = format!("{name}:{}", number + 1);
        for words in commands(&std::mem::take(&mut pending)) {
            found.push(Command { place: place.clone(), words });
        }
    }
    found
}

/// The calls of `ultta` in a line of shell: words up to a pipe, a redirection, a comment or the next command.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let (mut word, mut quote) = (None::<String>, None::<char>);
    let push = |all: &mut Vec<Vec<String>>, word: &mut Option<String>| {
        if let Some(word) = word.take() {
            all.last_mut().expect("never empty").push(word);
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '&' | ';' | '>' | '<' | '(' | ')') => {
                push(&mut all, &mut word);
                all.push(Vec::new());
            }
            (None, _) if letter.is_whitespace() => push(&mut all, &mut word),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    push(&mut all, &mut word);
    all.retain(|words| words.first().is_some_and(|program| program == "ultta") && words.len() > 1);
    all
}

#[test]
fn commands_are_found_as_a_shell_would() {
    let found =
        commands("X=1; some | ultta run --features - --head 'a b' > out && ultta report runs/  # and so on");
    assert_eq!(
        found,
        [vec!["ultta", "run", "--features", "-", "--head", "a b"], vec!["ultta", "report", "runs/"]]
    );
}

#[test]
fn every_command_of_the_documents_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)).to_vec();
    for folder in ["docs", "examples"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut all = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        all.extend(told(&name, &std::fs::read_to_string(&path).unwrap()));
    }
    assert!(all.len() >= 20, "{} commands", all.len());
    let mut wrong = Vec::new();
    for Command { place, words } in all {
        match crate::Cli::try_parse_from(&words) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
            Err(error) => wrong.push(format!("{place}: {}\n{error}", words.join(" "))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
