//! [`Dataset`]: a pack with its head and its name, as an evaluation sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ultta::{Error, Features, Head, Result};

use crate::pack::Pack;
use crate::pictures::Pictures;

/// Labelled features and the head that classifies them.
pub struct Dataset {
    /// Its metadata's `dataset`, else the shortest tail of its path that is unique among the packs given.
    pub name: String,
    /// Features and labels.
    pub pack: Pack,
    /// Class anchors.
    pub head: Arc<Head>,
    /// The pictures behind the rows, where they are at hand.
    pub pictures: Option<Arc<dyn Pictures>>,
}

impl Dataset {
    /// Opens a pack and its head, and checks that they fit. The name is the path until [`name_all`] has seen
    /// all packs.
    pub fn open(features: &Path, head: &Path) -> Result<Self> {
        let pack = Pack::open(features, None)?;
        let head = Head::load(head)?;
        let bad = |reason: String| Error::Format { reason, path: features.to_owned() };
        if pack.dim() != head.dim() {
            return Err(bad(format!(
                "feature dimension: the head expects {}, the features have {}",
                head.dim(),
                pack.dim()
            )));
        }
        if pack.rows() == 0 {
            return Err(bad("features: expected at least 1 row, got 0".into()));
        }
        if pack.labels().is_none() {
            return Err(bad("no labels: an evaluation needs a tensor `labels`, one per row".into()));
        }
        pack.check_labels(head.n_classes())?;
        if let Some(names) = pack.metadata().get("classes") {
            let names: Vec<String> = serde_json::from_str(names).unwrap_or_default();
            if names != head.classes() {
                let differs = names.iter().zip(head.classes()).find(|(a, b)| a != b);
                let what = match differs {
                    Some((a, b)) => format!("{a:?} in the features, {b:?} in the head"),
                    None => format!("{} in the features, {} in the head", names.len(), head.n_classes()),
                };
                return Err(bad(format!("the head has other classes than the features: {what}")));
            }
        }
        let name = pack.metadata().get("dataset").cloned().unwrap_or_default();
        Ok(Self { name, pack, head: Arc::new(head), pictures: None })
    }

    /// The labels, which were there when it was opened.
    pub fn labels(&self) -> &[usize] {
        self.pack.labels().unwrap_or(&[])
    }

    /// The encoder that the features or the head name.
    pub fn encoder(&self) -> Option<&str> {
        let of = |metadata: &'_ std::collections::BTreeMap<String, String>| metadata.contains_key("encoder");
        match of(self.pack.metadata()) {
            true => self.pack.metadata().get("encoder").map(String::as_str),
            false => self.head.metadata().get("encoder").map(String::as_str),
        }
    }

    /// What a user should know though it is no error: features and head that name different encoders.
    pub fn warning(&self) -> Option<String> {
        let (ours, heads) = (self.pack.metadata().get("encoder")?, self.head.metadata().get("encoder")?);
        (ours != heads)
            .then(|| format!("{}: the features were made by {ours:?}, the head by {heads:?}", self.name))
    }

    /// Views per sample; 0 without views.
    pub fn views_each(&self) -> usize {
        self.pack.file().views_each()
    }

    /// The views of some rows, sample after sample.
    pub fn views(&self, rows: &[usize]) -> Result<Option<Features<'static>>> {
        self.pack.file().views(rows, false)
    }
}

/// Gives every dataset without a name of its own the shortest tail of its folder that is unique.
pub fn name_all(datasets: &mut [Dataset]) -> Result<()> {
    let parts = |path: &Path| -> Vec<String> {
        let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let file = full.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let mut parts: Vec<String> = full
            .parent()
            .map(|p| p.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        parts.retain(|p| p != "/");
        if file != "features" || parts.is_empty() {
            parts.push(file);
        }
        parts
    };
    let paths: Vec<Vec<String>> = datasets.iter().map(|d| parts(d.pack.path())).collect();
    // As many components for all as make the names unique: they then read alike.
    let tail = |path: &[String], n: usize| path[path.len().saturating_sub(n)..].join("/");
    let longest = paths.iter().map(Vec::len).max().unwrap_or(1);
    let unique = |n: &usize| {
        let mut tails: Vec<String> = paths.iter().map(|path| tail(path, *n)).collect();
        tails.sort_unstable();
        tails.windows(2).all(|pair| pair[0] != pair[1])
    };
    let n = (1..=longest).find(unique).unwrap_or(longest);
    for (dataset, path) in datasets.iter_mut().zip(&paths).filter(|(dataset, _)| dataset.name.is_empty()) {
        dataset.name = tail(path, n);
    }
    let mut names: Vec<&str> = datasets.iter().map(|d| d.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Config {
            key: "features".into(),
            reason: format!("{:?} is given twice; two packs cannot share a run folder", pair[0]),
        }),
        None => Ok(()),
    }
}

/// Packs below a folder: every `features.safetensors` with a `head.safetensors` beside it, sorted by path.
pub fn find(folder: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|source| Error::Io {
            doing: "opening",
            source,
            path: folder.clone(),
        })?;
        for path in entries.flatten().map(|e| e.path()) {
            if path.is_dir() {
                folders.push(path);
            }
        }
        let (features, head) = (folder.join("features.safetensors"), folder.join("head.safetensors"));
        if features.is_file() && head.is_file() {
            found.push((features, head));
        }
    }
    found.sort();
    Ok(found)
}
