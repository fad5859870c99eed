//! Known datasets in the layouts people have on disk: classes in the right order, domains, and published counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::prompts::{Classes, Templates, class_folders, readable};
use crate::source::{Item, tree};
use crate::splits::{self, Split};
use crate::{Error, Result};

/// A dataset by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dataset {
    /// Its name.
    pub name: &'static str,
    layout: Layout,
    /// Published numbers of pictures, each with whose it is.
    pub counts: &'static [(usize, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// `root/DOMAIN/CLASS/…`, as DomainBed has it. Other spellings of a domain follow it.
    Domains { domains: &'static [&'static [&'static str]], classes: usize },
    /// `root/WNID/…` for these WordNet ids, in this order.
    WordNet { ids: &'static str, inside: &'static [&'static str] },
    /// `root/0 … root/999`, class numbers as folders.
    Numbers { classes: usize, inside: &'static [&'static str] },
    /// CoOp's: pictures in a folder, the test split in a file beside it.
    Split { images: &'static str, split: Split, classes: usize },
}

const SYNSETS: &str = include_str!("../data/imagenet/synsets.txt");
const SYNSETS_A: &str = include_str!("../data/imagenet/imagenet-a.txt");
const SYNSETS_R: &str = include_str!("../data/imagenet/imagenet-r.txt");
const IMAGENET_CLASSES: &str = include_str!("../data/imagenet/classes.txt");

/// The datasets that have a name.
pub const DATASETS: [Dataset; 19] = [
    Dataset {
        name: "pacs",
        layout: Layout::Domains {
            domains: &[&["art_painting"], &["cartoon"], &["photo"], &["sketch"]],
            classes: 7,
        },
        counts: &[(9_991, "published")],
    },
    Dataset {
        name: "office-home",
        layout: Layout::Domains {
            domains: &[
                &["Art"],
                &["Clipart"],
                &["Product"],
                &["Real World", "Real", "Real_World", "RealWorld"],
            ],
            classes: 65,
        },
        counts: &[(15_588, "published")],
    },
    Dataset {
        name: "domainnet",
        layout: Layout::Domains {
            domains: &[&["clipart"], &["infograph"], &["painting"], &["quickdraw"], &["real"], &["sketch"]],
            classes: 345,
        },
        counts: &[(586_575, "published")],
    },
    Dataset {
        name: "terra-incognita",
        layout: Layout::Domains {
            domains: &[
                &["location_100", "L100"],
                &["location_38", "L38"],
                &["location_43", "L43"],
                &["location_46", "L46"],
            ],
            classes: 10,
        },
        counts: &[(24_788, "DomainBed's split"), (16_584, "the UL-TTA paper")],
    },
    Dataset {
        name: "imagenet-v2",
        layout: Layout::Numbers {
            classes: 1000,
            inside: &["imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency"],
        },
        counts: &[(10_000, "published")],
    },
    Dataset {
        name: "imagenet-r",
        layout: Layout::WordNet { ids: SYNSETS_R, inside: &["imagenet-r"] },
        counts: &[(30_000, "published")],
    },
    Dataset {
        name: "imagenet-a",
        layout: Layout::WordNet { ids: SYNSETS_A, inside: &["imagenet-a"] },
        counts: &[(7_500, "published")],
    },
    Dataset {
        name: "imagenet-sketch",
        layout: Layout::WordNet { ids: SYNSETS, inside: &["sketch", "imagenet-sketch", "images"] },
        counts: &[(50_889, "the archive"), (50_000, "published, rounded")],
    },
    Dataset {
        name: "imagenet",
        layout: Layout::WordNet {
            ids: SYNSETS,
            inside: &["val", "validation", "ILSVRC/Data/CLS-LOC/val", "images/val"],
        },
        counts: &[(50_000, "published, the validation set")],
    },
    Dataset {
        name: "caltech101",
        layout: Layout::Split {
            images: "101_ObjectCategories",
            split: Split::Json("split_zhou_Caltech101.json"),
            classes: 100,
        },
        counts: &[(2_465, "CoOp's test split")],
    },
    Dataset {
        name: "oxford-pets",
        layout: Layout::Split {
            images: "images",
            split: Split::Json("split_zhou_OxfordPets.json"),
            classes: 37,
        },
        counts: &[(3_669, "CoOp's test split")],
    },
    Dataset {
        name: "stanford-cars",
        layout: Layout::Split {
            images: "",
            split: Split::Json("split_zhou_StanfordCars.json"),
            classes: 196,
        },
        counts: &[(8_041, "CoOp's test split")],
    },
    Dataset {
        name: "oxford-flowers",
        layout: Layout::Split {
            images: "jpg",
            split: Split::Json("split_zhou_OxfordFlowers.json"),
            classes: 102,
        },
        counts: &[(2_463, "CoOp's test split")],
    },
    Dataset {
        name: "food101",
        layout: Layout::Split {
            images: "images",
            split: Split::Json("split_zhou_Food101.json"),
            classes: 101,
        },
        counts: &[(30_300, "CoOp's test split")],
    },
    Dataset {
        name: "fgvc-aircraft",
        layout: Layout::Split { images: "images", split: Split::Aircraft, classes: 100 },
        counts: &[(3_333, "CoOp's test split")],
    },
    Dataset {
        name: "sun397",
        layout: Layout::Split {
            images: "SUN397",
            split: Split::Json("split_zhou_SUN397.json"),
            classes: 397,
        },
        counts: &[(19_850, "CoOp's test split")],
    },
    Dataset {
        name: "dtd",
        layout: Layout::Split {
            images: "images",
            split: Split::Json("split_zhou_DescribableTextures.json"),
            classes: 47,
        },
        counts: &[(1_692, "CoOp's test split")],
    },
    Dataset {
        name: "eurosat",
        layout: Layout::Split { images: "2750", split: Split::Json("split_zhou_EuroSAT.json"), classes: 10 },
        counts: &[(8_100, "CoOp's test split")],
    },
    Dataset {
        name: "ucf101",
        layout: Layout::Split {
            images: "UCF-101-midframes",
            split: Split::Json("split_zhou_UCF101.json"),
            classes: 101,
        },
        counts: &[(3_783, "CoOp's test split")],
    },
];

/// One pack of a dataset: a domain, or all of it.
#[derive(Clone, Debug)]
pub struct Pack {
    /// `pacs-cartoon`, `imagenet-r`.
    pub name: String,
    /// The pictures, their classes by name.
    pub items: Vec<Item>,
    /// Per picture, its label.
    pub labels: Vec<usize>,
}

/// A dataset as it lies on disk.
#[derive(Clone, Debug)]
pub struct Found {
    /// Class names in label order.
    pub classes: Classes,
    /// The packs.
    pub packs: Vec<Pack>,
    /// What differs from what was published, for people.
    pub warnings: Vec<String>,
}

impl Pack {
    /// Keeps at most `n` pictures, spread evenly over all of them in their order, so that every class keeps its share.
    pub fn thin(&mut self, n: usize) {
        let all = self.items.len();
        if n >= all {
            return;
        }
        let keep: Vec<usize> = (0..n).map(|i| i * all / n).collect();
        self.items = keep.iter().map(|&i| self.items[i].clone()).collect();
        self.labels = keep.iter().map(|&i| self.labels[i]).collect();
    }
}

impl Dataset {
    /// Folders that it is downloaded as; signs and capitals do not matter.
    pub fn folders(&self) -> impl Iterator<Item = &'static str> {
        let further: &'static [&'static str] = match self.name {
            "domainnet" => &["domain_net"],
            "terra-incognita" => &["terra"],
            "caltech101" => &["caltech-101"],
            "oxford-pets" => &["pets", "oxford-iiit-pet"],
            "stanford-cars" => &["cars"],
            "oxford-flowers" => &["flowers102", "oxford_flowers102"],
            "fgvc-aircraft" => &["aircraft"],
            "imagenet-r" => &["imagenet-rendition"],
            "imagenet-a" => &["imagenet-adversarial"],
            _ => &[],
        };
        let inside: &'static [&'static str] = match self.layout {
            Layout::WordNet { inside, .. } | Layout::Numbers { inside, .. } => inside,
            Layout::Domains { .. } | Layout::Split { .. } => &[],
        };
        // `val` and the like say nothing of whose they are.
        let telling = inside.iter().copied().filter(|name| name.contains("imagenet"));
        std::iter::once(self.name).chain(further.iter().copied()).chain(telling)
    }

    /// The prompt that CoOp has for it; the plain one for datasets that are not CoOp's.
    pub fn prompt(&self) -> &'static str {
        match self.name {
            "oxford-pets" => "a photo of a {}, a type of pet.",
            "oxford-flowers" => "a photo of a {}, a type of flower.",
            "fgvc-aircraft" => "a photo of a {}, a type of aircraft.",
            "food101" => "a photo of {}, a type of food.",
            "dtd" => "{} texture.",
            "eurosat" => "a centered satellite photo of {}.",
            "ucf101" => "a photo of a person doing {}.",
            _ => "a photo of a {}.",
        }
    }

    /// Templates by name: `coop` means the dataset's own prompt, `tda` what TDA, PTA and DOTA use on it, other names are
    /// those of all datasets.
    pub fn templates(&self, name: &str) -> Result<Templates> {
        match name {
            "coop" => Templates::new("coop", vec![self.prompt().to_string()]),
            "tda" => match self.name {
                "imagenet-r" | "imagenet-sketch" => Templates::named("imagenet-80"),
                "imagenet" | "imagenet-a" | "imagenet-v2" | "caltech101" | "stanford-cars" | "sun397" => {
                    Templates::named("imagenet-7")
                }
                _ => Templates::new("coop", vec![self.prompt().to_string()]),
            },
            _ => Templates::named(name),
        }
    }

    /// A dataset by name.
    pub fn named(name: &str) -> Result<Self> {
        let plain = name.to_lowercase().replace('_', "-");
        DATASETS.into_iter().find(|d| d.name == plain).ok_or_else(|| {
            let known = DATASETS.map(|d| d.name).join(", ");
            Error::names("dataset", format!("expected one of {known}, got {name:?}"))
        })
    }

    /// Finds its pictures under a folder.
    pub fn open(&self, root: &Path) -> Result<Found> {
        if !root.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::io("opening", root, source));
        }
        let mut found = match self.layout {
            Layout::Domains { domains, classes } => self.domains(root, domains, classes)?,
            Layout::WordNet { ids, inside } => self.word_net(root, ids, inside)?,
            Layout::Numbers { classes, inside } => self.numbers(root, classes, inside)?,
            Layout::Split { images, split, classes } => {
                splits::open(self.name, root, images, classes, split)?
            }
        };
        let total: usize = found.packs.iter().map(|p| p.items.len()).sum();
        if !self.counts.iter().any(|(count, _)| *count == total) {
            let expected: Vec<String> = self
                .counts
                .iter()
                .map(|(count, whose)| {
                    let difference = total as i64 - *count as i64;
                    format!("{count} ({whose}; {difference:+})")
                })
                .collect();
            let warning =
                format!("{}: expected {} pictures, found {total}", self.name, expected.join(" or "));
            found.warnings.push(warning);
        }
        if total == 0 {
            return Err(self.bad(root, "no pictures in it"));
        }
        Ok(found)
    }

    fn bad(&self, root: &Path, reason: impl Into<String>) -> Error {
        Error::Dataset { name: self.name.into(), reason: reason.into(), path: root.into() }
    }

    fn domains(&self, root: &Path, domains: &[&[&str]], n_classes: usize) -> Result<Found> {
        // DomainBed keeps each dataset in a folder of its own; either that or its parent may be given.
        let is_root = |folder: &Path| domains.iter().any(|names| find(folder, names).is_some());
        let below = class_folders(root)?;
        let root = std::iter::once(root.to_path_buf())
            .chain(below.iter().map(|name| root.join(name)))
            .find(|folder| is_root(folder))
            .ok_or_else(|| {
                let expected: Vec<&str> = domains.iter().map(|names| names[0]).collect();
                self.bad(root, format!("expected folders {}, found {below:?}", expected.join(", ")))
            })?;
        let mut warnings = Vec::new();
        let mut folders = Vec::new();
        for names in domains {
            match find(&root, names) {
                Some(folder) => folders.push((names[0], folder)),
                None => warnings.push(format!("{}: the domain {} is missing", self.name, names[0])),
            }
        }
        // One list of classes for all domains: labels mean the same in each.
        let mut names: Vec<String> = Vec::new();
        for (_, folder) in &folders {
            names.extend(class_folders(folder)?);
        }
        names.sort();
        names.dedup();
        if names.len() != n_classes {
            warnings.push(format!("{}: expected {n_classes} classes, found {}", self.name, names.len()));
        }
        let label_of: HashMap<&str, usize> = names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
        let mut packs = Vec::new();
        for (domain, folder) in folders {
            let have = class_folders(&folder)?.len();
            if have != names.len() {
                let all = names.len();
                warnings.push(format!("{}: {domain} has {have} of {all} classes", self.name));
            }
            let name = format!("{}-{}", self.name, domain.to_lowercase().replace(' ', "_"));
            packs.push(pack(name, tree(&folder)?, |class| label_of.get(class).copied()));
        }
        let classes = Classes::new(names.iter().map(|n| readable(n)).collect())?;
        Ok(Found { classes, packs, warnings })
    }

    fn word_net(&self, root: &Path, ids: &'static str, inside: &[&str]) -> Result<Found> {
        let order: Vec<&str> = ids.split_whitespace().collect();
        let label_of: HashMap<&str, usize> = order.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let is_root = |folder: &Path| {
            class_folders(folder).is_ok_and(|all| all.iter().any(|n| label_of.contains_key(n.as_str())))
        };
        let Some(root) = nested(root, inside).find(|folder| is_root(folder)) else {
            let flat = tree(root)?.iter().any(|i| i.id.contains("ILSVRC2012_val_"));
            let advice = if flat {
                "; its pictures lie in one folder: sort them into folders by WordNet id (the usual valprep script)"
            } else {
                ""
            };
            return Err(
                self.bad(root, format!("expected folders named by WordNet id such as {}{advice}", order[0]))
            );
        };
        let have = class_folders(&root)?;
        let mut warnings = Vec::new();
        let missing: Vec<&str> = order.iter().copied().filter(|id| !have.iter().any(|h| h == id)).collect();
        if !missing.is_empty() {
            let first = missing[0];
            warnings.push(format!(
                "{}: {} of {} class folders are missing, {first} first",
                self.name,
                missing.len(),
                order.len()
            ));
        }
        let strange: Vec<&String> = have.iter().filter(|h| !label_of.contains_key(h.as_str())).collect();
        if !strange.is_empty() {
            warnings.push(format!(
                "{}: {} folders are none of its classes and are left out, {} first",
                self.name,
                strange.len(),
                strange[0]
            ));
        }
        let items = tree(&root)?;
        let packs = vec![pack(self.name.into(), items, |class| label_of.get(class).copied())];
        Ok(Found { classes: imagenet_names(&order)?, packs, warnings })
    }

    fn numbers(&self, root: &Path, n_classes: usize, inside: &[&str]) -> Result<Found> {
        let number = |name: &str| name.parse::<usize>().ok().filter(|&n| n < n_classes);
        let is_root =
            |folder: &Path| class_folders(folder).is_ok_and(|all| all.iter().any(|n| number(n).is_some()));
        let root = nested(root, inside)
            .find(|folder| is_root(folder))
            .ok_or_else(|| self.bad(root, format!("expected folders named 0 to {}", n_classes - 1)))?;
        let have = class_folders(&root)?.iter().filter(|n| number(n).is_some()).count();
        let mut warnings = Vec::new();
        if have != n_classes {
            warnings.push(format!("{}: expected {n_classes} class folders, found {have}", self.name));
        }
        let packs = vec![pack(self.name.into(), tree(&root)?, number)];
        let order: Vec<&str> = SYNSETS.split_whitespace().collect();
        Ok(Found { classes: imagenet_names(&order)?, packs, warnings })
    }
}

/// A folder by one of its spellings.
fn find(root: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().map(|name| root.join(name)).find(|path| path.is_dir())
}

/// The folder itself and those that archives put around it.
fn nested<'a>(root: &'a Path, inside: &'a [&'a str]) -> impl Iterator<Item = PathBuf> + 'a {
    std::iter::once(root.to_path_buf()).chain(inside.iter().map(move |name| root.join(name)))
}

fn pack(name: String, items: Vec<Item>, label: impl Fn(&str) -> Option<usize>) -> Pack {
    let mut labelled: Vec<(usize, Item)> =
        items.into_iter().filter_map(|item| Some((label(item.class.as_deref()?)?, item))).collect();
    // By label, then by path: numbers as folders sort as text otherwise.
    labelled.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
    let (labels, items) = labelled.into_iter().unzip();
    Pack { name, items, labels }
}

/// Names of WordNet ids that are ImageNet classes.
fn imagenet_names(ids: &[&str]) -> Result<Classes> {
    let names: HashMap<&str, &str> = SYNSETS.split_whitespace().zip(IMAGENET_CLASSES.lines()).collect();
    Classes::new(ids.iter().map(|id| names.get(id).unwrap_or(id).to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_those_of_the_publications() {
        let count =
            |dataset: &str, name: &str| Dataset::named(dataset).unwrap().templates(name).unwrap().list.len();
        for (dataset, expected) in [("imagenet-r", 80), ("imagenet-a", 7), ("sun397", 7), ("dtd", 1)] {
            assert_eq!((count(dataset, "tda"), count(dataset, "coop")), (expected, 1), "{dataset}");
        }
    }

    #[test]
    fn the_imagenets_are_read_as_coop_lays_them_out() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |folder: PathBuf| {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("a.jpg"), "").unwrap();
        };
        // What else lies there is not read.
        put(root.join("imagenet/images/train/n01443537"));
        for (name, folder, below, id) in [
            ("imagenet", "imagenet", "images/val", "n01443537"),
            ("imagenet-sketch", "imagenet-sketch", "images", "n01443537"),
            ("imagenet-a", "imagenet-adversarial", "imagenet-a", "n01498041"),
            ("imagenet-r", "imagenet-rendition", "imagenet-r", "n01443537"),
        ] {
            put(root.join(folder).join(below).join(id));
            let dataset = Dataset::named(name).unwrap();
            assert!(dataset.folders().any(|known| known == folder), "{name}");
            let found = dataset.open(&root.join(folder)).unwrap();
            assert_eq!((found.packs.len(), found.packs[0].items.len()), (1, 1), "{name}");
            let label = found.packs[0].labels[0];
            assert_eq!(
                found.classes.names[label],
                imagenet_names(&[id, "n02124075"]).unwrap().names[0],
                "{name}"
            );
        }
    }

    #[test]
    fn the_sets_of_coop_are_read_as_it_lays_them_out() {
        let root = tempfile::tempdir().unwrap();
        let mut seen = 0;
        for dataset in DATASETS {
            let Layout::Split { images, split: Split::Json(file), .. } = dataset.layout else { continue };
            let folder = root.path().join(dataset.name);
            for class in ["one", "two"] {
                std::fs::create_dir_all(folder.join(images).join(class)).unwrap();
                std::fs::write(folder.join(images).join(class).join("a.jpg"), "").unwrap();
            }
            let split = r#"{"test": [["two/a.jpg", 1, "big_cat"], ["one/a.jpg", 0, "dog"]]}"#;
            std::fs::write(folder.join(file), split).unwrap();
            let found = dataset.open(&folder).unwrap();
            assert_eq!(found.classes.names, ["dog", "big cat"], "{}", dataset.name);
            assert_eq!(found.packs[0].labels, [1, 0], "{}: {:?}", dataset.name, found.warnings);
            seen += 1;
        }
        assert_eq!(seen, 9, "Aircraft has lists of its own");
    }

    #[test]
    fn lists_agree() {
        let all: Vec<&str> = SYNSETS.split_whitespace().collect();
        assert_eq!((all.len(), IMAGENET_CLASSES.lines().count()), (1000, 1000));
        assert!(all.is_sorted(), "labels are sorted WordNet ids");
        for subset in [SYNSETS_A, SYNSETS_R] {
            let ids: Vec<&str> = subset.split_whitespace().collect();
            assert!(ids.len() == 200 && ids.is_sorted() && ids.iter().all(|id| all.contains(id)));
        }
        let names = imagenet_names(&["n01443537", "n02124075"]).unwrap().names;
        assert_eq!(names, ["goldfish", "Egyptian Mau"]);
    }
}
