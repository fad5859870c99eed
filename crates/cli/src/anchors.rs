//! The head of a run: a head file, and further anchors folded into it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use ultta::{Anchor, Error, FeatureFile, Features, Head, Session, State};
use ultta_eval::pack::Pack;
use ultta_formats::Kind;
use ultta_formats::shown;

/// A file of anchors and how much it counts against the head's own, which count 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Anchors {
    path: PathBuf,
    weight: f32,
}

impl FromStr for Anchors {
    type Err = String;

    /// `FILE` or `FILE:WEIGHT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (path, weight) = match text.rsplit_once(':').map(|(path, weight)| (path, weight.parse::<f32>())) {
            Some((path, Ok(weight))) => (path, weight),
            _ => (text, 1.0),
        };
        if !(weight > 0.0 && weight.is_finite()) {
            return Err(format!("expected a weight above 0, got {weight}"));
        }
        Ok(Self { path: path.into(), weight })
    }
}

/// What changes a head before it answers. A state belongs to the head with these changes.
#[derive(clap::Args, Debug)]
pub struct HeadChanges {
    /// Further anchors folded into the head: another head file (matched by class name) or labelled features.
    /// All anchors a file has for a class count WEIGHT (default 1) together, the head's own anchor counts 1
    #[arg(long, value_name = "FILE[:WEIGHT]", help_heading = "Input")]
    anchors: Vec<Anchors>,

    /// Keep the anchors apart instead of folding them into a mean: a class scores the soft maximum over its anchors.
    /// T near 0 is the mean of their scores, a large T their maximum; 1 adds up probabilities
    #[arg(long, value_name = "T", requires = "anchors", help_heading = "Input")]
    anchors_apart: Option<f32>,

    /// Logit scale instead of the head's own. A state belongs to the head with this scale
    #[arg(long, value_name = "S", help_heading = "Input")]
    logit_scale: Option<f32>,
}

impl HeadChanges {
    /// Whether anything is to be changed.
    pub fn given(&self) -> bool {
        !self.anchors.is_empty() || self.logit_scale.is_some()
    }

    /// The files they are read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.anchors.iter().map(|anchors| anchors.path.as_path())
    }

    /// Reads a head and folds further anchors into it, or keeps them apart with some sharpness.
    pub fn load_head(&self, path: &Path) -> anyhow::Result<Head> {
        let mut head = with_files(read_head(path)?, &self.anchors, self.anchors_apart)?;
        if let Some(scale) = self.logit_scale {
            head = head.with_logit_scale(scale)?;
        }
        Ok(head)
    }

    /// The session that a state was saved from; errors name the state.
    pub fn resume(&self, head: &Path, state: &Path) -> anyhow::Result<Session> {
        let head = self.load_head(head)?;
        let resumed = State::load(state).and_then(|state| Session::resume(head, &state));
        resumed.with_context(|| format!("--state {}", shown(&state)))
    }
}

/// The head of a state that is operated.
#[derive(clap::Args, Debug)]
pub struct StateHead {
    /// The head that the state was saved with
    #[arg(long, value_name = "FILE")]
    head: PathBuf,

    #[command(flatten)]
    changes: HeadChanges,
}

impl StateHead {
    /// The files it is read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.head.as_path()).chain(self.changes.files())
    }

    /// The head, with its changes.
    pub fn load(&self) -> anyhow::Result<Head> {
        self.changes.load_head(&self.head)
    }

    /// The session that a state was saved from; errors name the state.
    pub fn resume(&self, state: &Path) -> anyhow::Result<Session> {
        self.changes.resume(&self.head, state)
    }
}

/// A head with the anchors of some files folded into it, or kept apart with some sharpness.
pub fn with_files(head: Head, files: &[Anchors], apart: Option<f32>) -> anyhow::Result<Head> {
    let vectors = files.iter().map(|file| file.read(&head)).collect::<anyhow::Result<Vec<_>>>()?;
    let all: Vec<Anchor<'_>> =
        vectors.iter().zip(files).flat_map(|(vectors, file)| vectors.anchors(file.weight)).collect();
    if all.is_empty() {
        return Ok(head);
    }
    Ok(match apart {
        Some(sharpness) => head.with_anchors_apart(1.0, &all, sharpness)?,
        None => head.with_anchors(1.0, &all)?,
    })
}

/// Reads a head file; errors name it.
pub fn read_head(path: &Path) -> anyhow::Result<Head> {
    Head::load(path).map_err(|e| match e {
        Error::Format { .. } if FeatureFile::open(path).is_ok() => anyhow::Error::from(e).context(format!(
            "{} is a features file; `ultta head` makes a head of class names",
            shown(&path)
        )),
        Error::Format { .. } | Error::Io { .. } => e.into(),
        _ => anyhow::Error::from(e).context(shown(&path)),
    })
}

/// Vectors with the class of each.
struct Vectors {
    features: Features<'static>,
    classes: Vec<usize>,
}

impl Anchors {
    /// A head's prototypes, matched by class name, or labelled features: exemplar images.
    fn read(&self, head: &Head) -> anyhow::Result<Vectors> {
        let path = &self.path;
        let vectors = match Kind::of(path).map_err(ultta::Error::from)? {
            Kind::Head => prototypes(&read_head(path)?, head).with_context(|| shown(&path))?,
            _ => exemplars(path, head)?,
        };
        if vectors.features.dim() != head.dim() {
            return Err(Error::Shape {
                what: ultta::What::Other("dimension of the anchors"),
                expected: head.dim(),
                got: vectors.features.dim(),
            })
            .with_context(|| shown(&path));
        }
        Ok(vectors)
    }
}

/// The prototypes of another head, matched by class name.
fn prototypes(other: &Head, head: &Head) -> anyhow::Result<Vectors> {
    let mut classes = Vec::with_capacity(other.n_classes());
    for name in other.classes() {
        let class = head.classes().iter().position(|class| class == name);
        classes.push(class.ok_or_else(|| Error::Classes {
            reason: format!("the anchors name a class {name:?} that the head does not have"),
        })?);
    }
    Ok(Vectors { features: Features::new(other.prototypes().to_vec(), other.dim())?, classes })
}

/// Labelled features: exemplar images.
fn exemplars(path: &Path, head: &Head) -> anyhow::Result<Vectors> {
    let pack = Pack::open(path, None)?;
    let labels = pack.labels().ok_or_else(|| Error::Format {
        reason: "anchors: expected a head file, or features with labels; these have no labels".into(),
        path: path.to_owned(),
    })?;
    pack.check_labels(head.n_classes())?;
    let features = pack.read(0..pack.rows(), true).with_context(|| shown(&path))?;
    Ok(Vectors { classes: labels.to_vec(), features })
}

impl Vectors {
    /// The vectors of a class share the file's weight, so that many exemplars do not drown the text.
    fn anchors(&self, weight: f32) -> impl Iterator<Item = Anchor<'_>> {
        let mut counts = vec![0u32; self.classes.iter().max().map_or(0, |class| class + 1)];
        self.classes.iter().for_each(|&class| counts[class] += 1);
        self.classes.iter().enumerate().map(move |(row, &class)| Anchor {
            class,
            vector: self.features.row(row),
            weight: weight / counts[class] as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_may_follow_the_file() {
        let parse = |text: &str| text.parse::<Anchors>();
        assert_eq!(parse("a.npz").unwrap(), Anchors { path: "a.npz".into(), weight: 1.0 });
        assert_eq!(parse("a.npz:0.5").unwrap(), Anchors { path: "a.npz".into(), weight: 0.5 });
        assert_eq!(parse("a:b").unwrap(), Anchors { path: "a:b".into(), weight: 1.0 });
        assert!(parse("a:0").is_err() && parse("a:-1").is_err() && parse("a:nan").is_err());
    }
}
