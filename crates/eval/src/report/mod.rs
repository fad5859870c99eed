//! Reports over runs: tables as Markdown and LaTeX, and one self-contained HTML page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ultta::{Error, Result};

use crate::refused::{self, Refused};
use crate::run_folder::{read_run, read_windows};
use crate::summary::Run;

mod compare;
mod grid;
mod harm;
mod html;
mod overview;
mod text;

pub use html::html;
pub use text::{latex, markdown};

/// Runs read from a folder, and what could not be read.
#[derive(Default)]
pub struct Runs {
    /// Run and folder.
    pub runs: Vec<(Run, PathBuf)>,
    /// Folders that hold something else, or a torn run.
    pub unreadable: Vec<String>,
    /// Methods that could not run somewhere.
    pub refused: Vec<Refused>,
}

/// The pictures of the summary as files of their own: names and SVG.
pub fn figures(runs: &[Run]) -> Vec<(&'static str, String)> {
    let runs = grid::named(runs);
    let figures = overview::Overview::of(&runs).figures();
    figures.into_iter().map(|(name, svg)| (name, crate::plot::standalone(&svg))).collect()
}

/// Reads every run below a folder, sorted by path.
pub fn read(folder: &Path) -> Result<Runs> {
    let mut found = Runs::default();
    let mut folders = vec![folder.to_owned()];
    let mut places = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|source| Error::Io {
            doing: "opening",
            source,
            path: folder.clone(),
        })?;
        for path in entries.flatten().map(|e| e.path()) {
            let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path.ends_with("summary.json") || path.ends_with("config.toml") {
                places.insert(folder.clone());
            } else if path.ends_with(refused::FILE) {
                found.refused.extend(Refused::read(&folder));
            }
        }
    }
    for place in places {
        match read_run(&place) {
            Ok(run) => {
                // Without its windows a run is still in the tables; only its line in the plots is missing.
                found.unreadable.extend(read_windows(&place).err().map(|error| error.to_string()));
                found.runs.push((run, place));
            }
            Err(error) => found.unreadable.push(error.to_string()),
        }
    }
    // A refusal is dropped if the run was made later.
    found.refused.retain(|one| {
        let same = |run: &Run| {
            let s = &run.summary;
            s.protocol == one.protocol && s.dataset == one.dataset && s.method == one.method
        };
        !found.runs.iter().any(|(run, _)| same(run))
    });
    let key = |one: &Refused| (one.protocol.clone(), one.dataset.clone(), one.method.clone());
    found.refused.sort_by_key(key);
    Ok(found)
}
