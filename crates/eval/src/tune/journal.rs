//! The journal of a search: one line for each evaluation, so that a search that was stopped goes on where it was.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use ultta::{Error, Result};

use crate::summary::{Made, Summary};

/// What is kept of an evaluation: a method with its settings on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Gain over zero-shot in top-1, in points.
    pub top1: f64,
    /// Gain in NLL, in nats.
    pub nll: f64,
    /// Gain in ECE, in points.
    pub ece: f64,
}

impl Evaluated {
    pub(crate) fn of(s: &Summary) -> Self {
        Self {
            top1: 100.0 * (s.quality.top1 - s.zero_shot.top1),
            nll: s.zero_shot.nll - s.quality.nll,
            ece: 100.0 * (s.zero_shot.ece - s.quality.ece),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    /// The build of the program; empty in older journals.
    #[serde(default)]
    built: String,
    #[serde(flatten)]
    evaluated: Evaluated,
}

/// Evaluations by their key: everything that decides what comes out.
pub struct Journal {
    path: PathBuf,
    /// What came out, and whether another build found it.
    known: Mutex<(HashMap<String, (Evaluated, bool)>, File)>,
    built: String,
    other_build: AtomicUsize,
}

impl Journal {
    /// Reads the lines that are there, and writes further ones behind them. A torn last line is dropped.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |doing: &'static str| move |source| Error::Io { doing, source, path: path.to_owned() };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io("opening")(error)),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (mut known, built) = (HashMap::new(), Made::now().built);
        for line in text[..whole].lines() {
            let line: Line = serde_json::from_str(line).map_err(|e| Error::Format {
                reason: format!("not a journal of this version: {e}"),
                path: path.to_owned(),
            })?;
            known.insert(line.key, (line.evaluated, line.built != built));
        }
        let file = File::options().create(true).append(true).open(path).map_err(io("writing"))?;
        file.set_len(whole as u64).map_err(io("writing"))?;
        let (path, known) = (path.to_owned(), Mutex::new((known, file)));
        Ok(Self { path, known, built, other_build: AtomicUsize::new(0) })
    }

    /// What came out under this key, if it was evaluated.
    pub fn get(&self, key: &str) -> Option<Evaluated> {
        let (evaluated, other) = self.known.lock().expect("no panics").0.get(key).copied()?;
        self.other_build.fetch_add(usize::from(other), Ordering::Relaxed);
        Some(evaluated)
    }

    /// How many evaluations were taken over from another build of the program.
    pub fn other_build(&self) -> usize {
        self.other_build.load(Ordering::Relaxed)
    }

    /// Notes an evaluation.
    pub fn note(&self, key: &str, evaluated: Evaluated) -> Result<()> {
        let line = Line { key: key.into(), built: self.built.clone(), evaluated };
        let line = serde_json::to_string(&line).expect("plain numbers");
        let mut known = self.known.lock().expect("no panics");
        known.0.insert(key.into(), (evaluated, false));
        let written = known.1.write_all(format!("{line}\n").as_bytes());
        written.map_err(|source| Error::Io { doing: "writing", source, path: self.path.clone() })
    }
}
