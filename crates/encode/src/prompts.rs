//! Class names and prompt templates to a head.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use ultta::{Anchor, Features, Head};
use ultta_formats::shown;

use crate::encoder::Encoder;
use crate::{Error, Result};

/// Where a class's name goes in a template.
pub const SLOT: &str = "{}";

/// Prompts encoded at a time.
const AT_A_TIME: usize = 256;

/// Prompt templates.
#[derive(Clone, Debug, PartialEq)]
pub struct Templates {
    /// Their name, for the records.
    pub name: String,
    /// Texts with a slot for the class.
    pub list: Vec<String>,
}

/// The names of the templates that are shipped.
pub const TEMPLATES: [&str; 5] = ["none", "photo", "imagenet-7", "imagenet-80", "cifar"];

impl Templates {
    /// Shipped templates by name, or a file with one template a line.
    pub fn named(name: &str) -> Result<Self> {
        let lines = |text: &str| text.lines().filter(|l| !l.trim().is_empty()).map(str::to_string).collect();
        let list = match name {
            "none" => vec![SLOT.to_string()],
            "photo" => vec!["a photo of a {}.".to_string()],
            "imagenet-7" => lines(include_str!("../data/templates/imagenet-7.txt")),
            "imagenet-80" => lines(include_str!("../data/templates/imagenet-80.txt")),
            "cifar" => lines(include_str!("../data/templates/cifar.txt")),
            file if Path::new(file).is_file() => {
                let text = std::fs::read_to_string(file).map_err(|e| Error::io("opening", file, e))?;
                lines(&text)
            }
            other => {
                let known = TEMPLATES.join(", ");
                return Err(Error::names("templates", format!("expected {known} or a file, got {other:?}")));
            }
        };
        Self::new(name, list)
    }

    /// Templates of one's own.
    pub fn new(name: &str, list: Vec<String>) -> Result<Self> {
        if list.is_empty() {
            return Err(Error::names("templates", format!("{name}: expected at least one, got none")));
        }
        match list.iter().find(|template| !template.contains(SLOT)) {
            Some(bad) => {
                let reason = format!("{name}: expected {SLOT} where the class name goes, got {bad:?}");
                Err(Error::names("templates", reason))
            }
            None => Ok(Self { name: name.to_string(), list }),
        }
    }
}

/// Class names in label order, and descriptions where there are some.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// The names.
    pub names: Vec<String>,
    /// Per class, texts that take the place of the templates; empty where there are none.
    pub descriptions: Vec<Vec<String>>,
}

impl Classes {
    /// Plain names.
    pub fn new(names: Vec<String>) -> Result<Self> {
        let descriptions = vec![vec![]; names.len()];
        Self { names, descriptions }.checked()
    }

    /// Names separated by commas.
    pub fn from_list(list: &str) -> Result<Self> {
        let names = list.split(',').map(|n| n.trim().to_string()).filter(|n| !n.is_empty());
        Self::new(names.collect())
    }

    /// A text file with a name a line, a JSON list of names, or a JSON object of descriptions per class.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("opening", path, e))?;
        let text = text.trim_start_matches('\u{feff}');
        if !text.trim_start().starts_with(['{', '[']) {
            let names = text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_string);
            return Self::new(names.collect());
        }
        let bad = |e: serde_json::Error| {
            let reason =
                format!("{}: expected a list of names, or lists of descriptions by name: {e}", shown(&path));
            Error::names("labels", reason)
        };
        if text.trim_start().starts_with('[') {
            return Self::new(serde_json::from_str(text).map_err(bad)?);
        }
        // The order of the file is the order of the labels.
        let Ordered(entries) = serde_json::from_str(text).map_err(bad)?;
        let (names, descriptions) = entries.into_iter().unzip();
        Self { names, descriptions }.checked()
    }

    /// The folders in a folder, sorted; underscores become spaces.
    pub fn from_folder(path: &Path) -> Result<Self> {
        Self::new(class_folders(path)?.iter().map(|name| readable(name)).collect())
    }

    fn checked(self) -> Result<Self> {
        if self.names.len() < 2 {
            let got = match self.names.first() {
                Some(name) if name.contains(' ') => format!("1: {name:?}; names are separated by commas"),
                Some(name) => format!("1: {name:?}"),
                None => "0".into(),
            };
            return Err(Error::names("labels", format!("expected at least two class names, got {got}")));
        }
        Ok(self)
    }

    /// The prompts of a class.
    pub fn prompts(&self, class: usize, templates: &Templates) -> Vec<String> {
        let name = &self.names[class];
        match self.descriptions[class].as_slice() {
            [] => templates.list.iter().map(|t| t.replace(SLOT, name)).collect(),
            own => own.iter().map(|d| d.replace(SLOT, name)).collect(),
        }
    }
}

/// A JSON object with its order.
struct Ordered(Vec<(String, Vec<String>)>);

impl<'de> serde::Deserialize<'de> for Ordered {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Ordered;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("lists of descriptions by class name")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// Names of the folders in a folder, sorted.
pub fn class_folders(path: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(path).map_err(|e| Error::io("opening", path, e))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    Ok(names)
}

/// A folder's name as a class name.
pub fn readable(name: &str) -> String {
    name.replace('_', " ").trim().to_string()
}

/// Builds a head: each class is the mean of its prompts. With a cache folder, a head that was built before is read.
pub fn build_head(
    encoder: &dyn Encoder,
    classes: &Classes,
    templates: &Templates,
    cache: Option<&Path>,
    progress: impl FnMut(usize, usize),
) -> Result<Head> {
    let path = cache.map(|folder| folder.join(format!("{}.safetensors", key(encoder, classes, templates))));
    if let Some(head) = path.as_ref().filter(|p| p.exists()).and_then(|path| Head::load(path).ok()) {
        return Ok(head);
    }
    let head = encode_head(encoder, classes, templates, None, progress)?;
    if let Some(path) = path {
        // A cache that cannot be written costs time, not the answer.
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = head.save(&path);
    }
    Ok(head)
}

/// Builds a head whose prompts are kept apart: a class scores the soft maximum over its prompts, with this sharpness.
pub fn build_head_apart(
    encoder: &dyn Encoder,
    classes: &Classes,
    templates: &Templates,
    sharpness: f32,
    progress: impl FnMut(usize, usize),
) -> Result<Head> {
    encode_head(encoder, classes, templates, Some(sharpness), progress)
}

/// Encodes the prompts of all classes; they fold into one mean each, or are kept apart.
fn encode_head(
    encoder: &dyn Encoder,
    classes: &Classes,
    templates: &Templates,
    apart: Option<f32>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Head> {
    let mut prompts = Vec::new();
    let mut class_of = Vec::new();
    for class in 0..classes.names.len() {
        for prompt in classes.prompts(class, templates) {
            prompts.push(prompt);
            class_of.push(class);
        }
    }
    let dim = encoder.dim();
    let mut vectors = Vec::with_capacity(prompts.len() * dim);
    for part in prompts.chunks(AT_A_TIME) {
        vectors.extend_from_slice(encoder.texts(part)?.data());
        progress(vectors.len() / dim, prompts.len());
    }
    let anchors: Vec<Anchor<'_>> = vectors
        .chunks(dim)
        .zip(&class_of)
        .map(|(vector, &class)| Anchor { class, vector, weight: 1.0 })
        .collect();
    let (names, scale) = (classes.names.clone(), encoder.logit_scale());
    let head = match apart {
        Some(sharpness) => Head::from_anchors_apart(&anchors, dim, names, scale, sharpness)?,
        None => Head::from_anchors(&anchors, dim, names, scale)?,
    };
    Ok(head
        .with_metadata("encoder", encoder.name())
        .with_metadata("encoder_digest", encoder.digest())
        .with_metadata("templates", templates.name.clone()))
}

/// What a cached head depends on.
fn key(encoder: &dyn Encoder, classes: &Classes, templates: &Templates) -> String {
    let mut hash = Sha256::new();
    hash.update(encoder.digest());
    for class in 0..classes.names.len() {
        hash.update([0]);
        hash.update(&classes.names[class]);
        for prompt in classes.prompts(class, templates) {
            hash.update([1]);
            hash.update(prompt);
        }
    }
    hash.finalize()[..16].iter().map(|b| format!("{b:02x}")).collect()
}

/// The folder where heads are kept: `$XDG_CACHE_HOME/ultta/heads`.
pub fn head_cache() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    Some(given.or_else(|| Some(std::env::home_dir()?.join(".cache")))?.join("ultta").join("heads"))
}

/// Mixes exemplar pictures into a head: those of a class count `weight` together, its text counts 1. A head that keeps its
/// anchors apart keeps these apart, too.
pub fn with_exemplars(head: Head, exemplars: &Features<'_>, labels: &[usize], weight: f32) -> Result<Head> {
    let mut counts = vec![0u32; head.n_classes()];
    for &label in labels {
        *counts.get_mut(label).ok_or(ultta::Error::Label { label, classes: head.n_classes() })? += 1;
    }
    let anchors: Vec<Anchor<'_>> = labels
        .iter()
        .enumerate()
        .map(|(row, &class)| Anchor {
            class,
            vector: exemplars.row(row),
            weight: weight / counts[class] as f32,
        })
        .collect();
    Ok(match head.sharpness() {
        Some(sharpness) => head.with_anchors_apart(1.0, &anchors, sharpness)?,
        None => head.with_anchors(1.0, &anchors)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_shipped_and_checked() {
        for (name, count) in
            [("none", 1), ("photo", 1), ("imagenet-7", 7), ("imagenet-80", 80), ("cifar", 18)]
        {
            assert_eq!(Templates::named(name).unwrap().list.len(), count, "{name}");
        }
        assert!(Templates::named("imagnet").unwrap_err().to_string().contains("imagenet-80"));
        assert!(Templates::new("t", vec!["no slot".into()]).is_err());
        assert!(Templates::new("t", vec![]).is_err());
    }

    #[test]
    fn classes_come_from_lists_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes");
        assert_eq!(Classes::from_list("cat, dog,red fox").unwrap().names, ["cat", "dog", "red fox"]);
        assert!(Classes::from_list("cat").is_err());
        std::fs::write(&path, "cat\n\n dog \n").unwrap();
        assert_eq!(Classes::from_file(&path).unwrap().names, ["cat", "dog"]);
        std::fs::write(&path, r#"{"zebra": ["a striped horse", "a {} in grass"], "ant": []}"#).unwrap();
        let classes = Classes::from_file(&path).unwrap();
        assert_eq!(classes.names, ["zebra", "ant"], "in the order of the file");
        let photo = Templates::named("photo").unwrap();
        assert_eq!(classes.prompts(0, &photo), ["a striped horse", "a zebra in grass"]);
        assert_eq!(classes.prompts(1, &photo), ["a photo of a ant."]);
        std::fs::write(&path, r#"{"zebra": 3}"#).unwrap();
        assert!(Classes::from_file(&path).is_err());
        for name in ["b_c", "a"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(Classes::from_folder(folder.path()).unwrap().names, ["a", "b c"]);
    }
}
