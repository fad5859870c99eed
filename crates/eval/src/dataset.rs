//! [`Dataset`]: a pack with its head and its name, as an evaluation sees it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ultta::{Error, Features, Head, Result};

use crate::naming::{self, Origin};
use crate::pack::Pack;
use crate::pictures::Pictures;

/// Labelled features and the head that classifies them.
pub struct Dataset {
    /// Unique among the packs given once [`name_all`] has seen them; before, its metadata's `dataset`.
    pub name: String,
    /// Features and labels.
    pub pack: Pack,
    /// Class anchors.
    pub head: Arc<Head>,
    /// The pictures behind the rows, where they are at hand.
    pub pictures: Option<Arc<dyn Pictures>>,
    head_path: PathBuf,
    moments: OnceLock<Moments>,
}

/// Mean and spread of a pack's unit features.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Mean of the features.
    pub mean: Vec<f64>,
    /// 1 − ‖mean‖²: the mean squared distance of the features from their mean, and the mean of 1 − cos of two of them.
    pub spread: f64,
}

/// Rows read at once for [`Moments`].
const MOMENT_ROWS: usize = 4096;

impl Dataset {
    /// Opens a pack and its head, and checks that they fit. [`name_all`] names it.
    pub fn open(features: &Path, head: &Path) -> Result<Self> {
        let pack = Pack::open(features, None)?;
        let head_path = head.to_owned();
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
        pack.check_classes(head.classes())?;
        let name = pack.metadata().get("dataset").cloned().unwrap_or_default();
        Ok(Self { name, pack, head: Arc::new(head), pictures: None, head_path, moments: OnceLock::new() })
    }

    /// The labels. Opening a dataset without labels is an error, so they are there.
    pub fn labels(&self) -> &[usize] {
        self.pack.labels().unwrap_or(&[])
    }

    /// The encoder that the features or the head name.
    pub fn encoder(&self) -> Option<&str> {
        let own = self.pack.metadata().get("encoder");
        own.or_else(|| self.head.metadata().get("encoder")).map(String::as_str)
    }

    /// The name of the dataset, whatever encoder and head: its packs are left out together.
    pub fn family(&self) -> &str {
        let own = self.pack.metadata().get("dataset").map(String::as_str);
        own.unwrap_or_else(|| self.name.split(['/', '+']).next().unwrap_or(&self.name))
    }

    /// Mean and spread of the features; computed once.
    pub fn moments(&self) -> Result<&Moments> {
        if let Some(moments) = self.moments.get() {
            return Ok(moments);
        }
        let n = self.pack.rows();
        let mut mean = vec![0.0; self.pack.dim()];
        for start in (0..n).step_by(MOMENT_ROWS) {
            let rows = self.pack.read(start..n.min(start + MOMENT_ROWS), false);
            let rows = rows.map_err(|e| self.pack.named(e))?;
            for row in rows.data().chunks_exact(mean.len()) {
                mean.iter_mut().zip(row).for_each(|(m, v)| *m += *v as f64 / n as f64);
            }
        }
        let spread = (1.0 - mean.iter().map(|v| v * v).sum::<f64>()).clamp(0.0, 1.0);
        Ok(self.moments.get_or_init(|| Moments { mean, spread }))
    }

    /// A warning for the user, if features and head name different encoders.
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

/// Names the datasets given (`docs/protocols.md`): no two share a name, since no two share a run folder.
pub fn name_all(datasets: &mut [Dataset]) -> Result<()> {
    let origin = |d: &Dataset| Origin {
        own: (!d.name.is_empty()).then(|| d.name.clone()),
        features: d.pack.path().to_owned(),
        head: d.head_path.clone(),
    };
    let origins: Vec<Origin> = datasets.iter().map(origin).collect();
    let names = naming::names(&origins).map_err(|twice| Error::Config {
        key: "features".into(),
        reason: format!("{twice:?} is given twice; two packs cannot share a run folder"),
    })?;
    datasets.iter_mut().zip(names).for_each(|(dataset, name)| dataset.name = name);
    Ok(())
}

/// Which heads beside a features file make packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heads {
    /// `head.safetensors` only.
    #[default]
    Main,
    /// `head.safetensors` and every `head-*.safetensors`.
    All,
}

/// Packs below a folder: every `features.safetensors` with a `head.safetensors` beside it, sorted by path; each
/// comes once for each of its heads, the main one first.
pub fn find(folder: &Path, heads: Heads) -> Result<Vec<(PathBuf, PathBuf)>> {
    let main = format!("{}.safetensors", naming::MAIN_HEAD);
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let io = |source| Error::Io { doing: "opening", source, path: folder.clone() };
        let (mut further, mut has_main) = (Vec::new(), false);
        for path in std::fs::read_dir(&folder).map_err(io)?.flatten().map(|e| e.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                folders.push(path);
            } else if *name == *main {
                has_main = true;
            } else if name.starts_with(&format!("{}-", naming::MAIN_HEAD)) && name.ends_with(".safetensors") {
                further.push(path);
            }
        }
        let features = folder.join("features.safetensors");
        if !has_main || !features.is_file() {
            continue;
        }
        further.sort();
        let own = std::iter::once(folder.join(&main));
        let all = own.chain(further.into_iter().filter(|_| heads == Heads::All));
        found.push((features, all.collect::<Vec<_>>()));
    }
    found.sort();
    let each = |(features, heads): (PathBuf, Vec<PathBuf>)| {
        heads.into_iter().map(move |head| (features.clone(), head))
    };
    Ok(found.into_iter().flat_map(each).collect())
}

#[cfg(test)]
mod tests {
    use ultta_formats::numbers::Number;
    use ultta_formats::tensors::{NewTensor, to_bytes};

    use super::*;

    /// A pack of two rows, with as many heads as asked for.
    fn write(folder: &Path, dataset: Option<&str>, heads: &[&str]) {
        std::fs::create_dir_all(folder).unwrap();
        let (rows, labels) = (f32::encode(&[1.0, 0.0, 0.0, 1.0]), i64::encode(&[0, 1]));
        let tensors = vec![
            NewTensor { name: "features", dtype: f32::DTYPE, shape: vec![2, 2], bytes: &rows },
            NewTensor { name: "labels", dtype: i64::DTYPE, shape: vec![2], bytes: &labels },
        ];
        let metadata = dataset.map(|name| ("dataset".to_string(), name.to_string())).into_iter().collect();
        std::fs::write(folder.join("features.safetensors"), to_bytes(tensors, &metadata)).unwrap();
        let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 100.0).unwrap();
        for name in heads {
            head.save(folder.join(format!("{name}.safetensors"))).unwrap();
        }
    }

    fn names(folder: &Path, heads: Heads) -> Vec<String> {
        let pairs = find(folder, heads).unwrap();
        let mut datasets: Vec<Dataset> = pairs.iter().map(|(f, h)| Dataset::open(f, h).unwrap()).collect();
        name_all(&mut datasets).unwrap();
        datasets.into_iter().map(|d| d.name).collect()
    }

    #[test]
    fn packs_are_found_and_named() {
        let tree = tempfile::tempdir().unwrap();
        write(&tree.path().join("sea/b32"), Some("sea"), &["head", "head-weak", "head-tiny"]);
        write(&tree.path().join("sea/rn50"), Some("sea"), &["head"]);
        write(&tree.path().join("cars/b32"), Some("cars"), &["head"]);
        write(&tree.path().join("nameless/b32"), None, &["head"]);
        write(&tree.path().join("headless"), None, &["head-weak"]);
        assert_eq!(names(tree.path(), Heads::Main), ["cars", "nameless/b32", "sea/b32", "sea/rn50"]);
        assert_eq!(
            names(tree.path(), Heads::All),
            ["cars", "nameless/b32", "sea/b32", "sea/b32+head-tiny", "sea/b32+head-weak", "sea/rn50"]
        );
    }

    #[test]
    fn a_pack_given_twice_is_refused() {
        let tree = tempfile::tempdir().unwrap();
        write(tree.path(), Some("sea"), &["head"]);
        let (features, head) = find(tree.path(), Heads::Main).unwrap().remove(0);
        let mut twice = [(); 2].map(|()| Dataset::open(&features, &head).unwrap());
        assert!(name_all(&mut twice).unwrap_err().to_string().contains("\"sea\" is given twice"));
    }
}
