//! Datasets in the layouts of CoOp: a folder of pictures, and a file that says which are for testing and of which class.
//!
//! Folder names, file names, templates and counts are those of K. Zhou et al., *Learning to Prompt for Vision-Language
//! Models*, 2022, and its code (`THIRD_PARTY.md`). Class names are read from the split file itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::dataset::{Found, Pack};
use crate::prompts::Classes;
use crate::source::Item;
use crate::{Error, Result};

/// Where the test pictures of a dataset are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// `split_zhou_….json`: `{"test": [["path below the folder of pictures", label, "class"], …], …}`.
    Json(&'static str),
    /// FGVC-Aircraft: `variants.txt` has the classes, `images_variant_test.txt` the pictures.
    Aircraft,
}

#[derive(Deserialize)]
struct File {
    test: Vec<(String, usize, String)>,
}

/// The test pictures below a dataset's folder. `images` is the folder of pictures in it; empty where it is the same.
pub(crate) fn open(name: &str, root: &Path, images: &str, classes: usize, split: Split) -> Result<Found> {
    let bad = |reason: String, path: &Path| Error::Dataset { name: name.into(), reason, path: path.into() };
    let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| Error::io("opening", path, e));
    let mut warnings = Vec::new();
    let (names, test) = match split {
        Split::Json(file) => {
            let path = root.join(file);
            let text = read(&path)?;
            let file: File =
                serde_json::from_str(&text).map_err(|e| bad(format!("not a split: {e}"), &path))?;
            let mut names: BTreeMap<usize, &str> = BTreeMap::new();
            for (_, label, class) in &file.test {
                let known = names.entry(*label).or_insert(class);
                if known != class {
                    return Err(bad(format!("label {label} is both {known:?} and {class:?}"), &path));
                }
            }
            if let Some(label) = (0..names.len()).find(|label| !names.contains_key(label)) {
                return Err(bad(
                    format!("expected labels without gaps, label {label} has no picture"),
                    &path,
                ));
            }
            let names: Vec<String> = names.values().map(|name| name.replace('_', " ")).collect();
            let test: Vec<(String, usize)> =
                file.test.into_iter().map(|(path, label, _)| (path, label)).collect();
            (names, test)
        }
        Split::Aircraft => {
            let variants = read(&root.join("variants.txt"))?;
            let names: Vec<String> =
                variants.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect();
            let path = root.join("images_variant_test.txt");
            let mut test = Vec::new();
            for line in read(&path)?.lines().filter(|line| !line.trim().is_empty()) {
                let place = line.split_once(' ').and_then(|(id, class)| {
                    Some((format!("{id}.jpg"), names.iter().position(|name| name == class.trim())?))
                });
                test.push(place.ok_or_else(|| bad(format!("no class of variants.txt in {line:?}"), &path))?);
            }
            (names, test)
        }
    };
    if names.len() != classes {
        warnings.push(format!("{name}: expected {classes} classes, found {}", names.len()));
    }
    let folder = if images.is_empty() { root.to_path_buf() } else { root.join(images) };
    let (mut items, mut labels, mut missing) = (Vec::new(), Vec::new(), 0);
    for (path, label) in test {
        let path = folder.join(&path);
        // A path that leads out of the folder, or to no file, is left out.
        let inside = !path.components().any(|part| part == std::path::Component::ParentDir);
        if !inside || !path.is_file() {
            missing += 1;
            continue;
        }
        labels.push(label);
        items.push(Item::file(path, Some(names[label].clone())));
    }
    if missing > 0 {
        warnings.push(format!("{name}: {missing} pictures of the split are not there"));
    }
    let packs = vec![Pack { name: name.into(), items, labels }];
    Ok(Found { classes: Classes::new(names)?, packs, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(split: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("images")).unwrap();
        for name in ["a.jpg", "b.jpg"] {
            std::fs::write(folder.path().join("images").join(name), "").unwrap();
        }
        std::fs::write(folder.path().join("split.json"), split).unwrap();
        folder
    }

    fn of(split: &str) -> Result<Found> {
        open("toy", tree(split).path(), "images", 2, Split::Json("split.json"))
    }

    #[test]
    fn a_split_names_test_pictures_and_classes() {
        let text = r#"{"train": [["x.jpg", 0, "no"]], "test": [["b.jpg", 1, "big_cat"], ["a.jpg", 0, "dog"], ["../a.jpg", 0, "dog"]]}"#;
        let found = of(text).unwrap();
        assert_eq!(found.classes.names, ["dog", "big cat"]);
        assert_eq!(found.packs[0].labels, [1, 0]);
        assert_eq!(found.warnings, ["toy: 1 pictures of the split are not there"]);
    }

    #[test]
    fn a_split_that_contradicts_itself_is_refused() {
        for (text, reason) in [
            ("{}", "not a split"),
            (r#"{"test": [["a.jpg", 0, "dog"], ["b.jpg", 0, "cat"]]}"#, "both"),
            (r#"{"test": [["a.jpg", 0, "dog"], ["b.jpg", 2, "cat"]]}"#, "label 1 has no picture"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn aircraft_has_lists_of_its_own() {
        let folder = tree("{}");
        std::fs::write(folder.path().join("variants.txt"), "707-320\nA300B4\n").unwrap();
        std::fs::write(folder.path().join("images_variant_test.txt"), "b A300B4\na 707-320\n").unwrap();
        let found = open("toy", folder.path(), "images", 2, Split::Aircraft).unwrap();
        assert_eq!(
            (found.packs[0].labels.as_slice(), found.classes.names[1].as_str()),
            (&[1, 0][..], "A300B4")
        );
        std::fs::write(folder.path().join("images_variant_test.txt"), "b nothing\n").unwrap();
        assert!(open("toy", folder.path(), "images", 2, Split::Aircraft).is_err());
    }
}
