//! Names of packs: one dataset may be seen by several encoders and through several heads, and each of these is a
//! pack of its own with a run folder of its own (`docs/protocols.md`).
//!
//! ```text
//! whurs19                          the only pack of its dataset
//! pets24/clip-vit-b32              without metadata: the folder and the one above it
//! whurs19/clip-rn50                one of several packs of its dataset
//! whurs19/clip-rn50+head-weak      the same features under head-weak.safetensors
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a pack's name is made of.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The name its metadata gives.
    pub own: Option<String>,
    /// The features file.
    pub features: PathBuf,
    /// The head file.
    pub head: PathBuf,
}

/// The stem of the main head file beside a features file.
pub(crate) const MAIN_HEAD: &str = "head";

/// The names of all packs given, in their order, or the name that two of them would share.
pub(crate) fn names(origins: &[Origin]) -> Result<Vec<String>, String> {
    let paths: Vec<Vec<String>> = origins.iter().map(|o| components(&o.features)).collect();
    let all: BTreeSet<&[String]> = paths.iter().map(Vec::as_slice).collect();
    // All tails have as many components as make them unique, so that the names read alike.
    let nameless = origins.iter().zip(&paths).filter(|(origin, _)| origin.own.is_none());
    let length = unique_length(&all).max(least_length(&nameless.map(|(_, path)| path.as_slice()).collect()));
    let mut of_name: BTreeMap<&str, BTreeSet<&[String]>> = BTreeMap::new();
    for (origin, path) in origins.iter().zip(&paths) {
        if let Some(own) = &origin.own {
            of_name.entry(own).or_default().insert(path);
        }
    }
    let name = |(origin, path): (&Origin, &Vec<String>)| {
        let base = match &origin.own {
            None => tail(path, length),
            Some(own) => match &of_name[own.as_str()] {
                paths if paths.len() == 1 => own.clone(),
                paths => qualified(own, &tail(path, unique_length(paths))),
            },
        };
        base + &head_suffix(origin, origins)
    };
    let names: Vec<String> = origins.iter().zip(&paths).map(name).collect();
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(twice.clone()),
        None => Ok(names),
    }
}

/// `+head-weak` for `head-weak.safetensors`, and for `weak.safetensors`; nothing for the pack's main head.
fn head_suffix(origin: &Origin, origins: &[Origin]) -> String {
    let stem = origin.head.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    if stem == MAIN_HEAD {
        return String::new();
    }
    let beside = origin.head.parent() == origin.features.parent();
    let further = beside && origin.head.with_file_name(format!("{MAIN_HEAD}.safetensors")).is_file();
    let several = origins.iter().any(|o| o.features == origin.features && o.head != origin.head);
    if !further && !several {
        String::new()
    } else if stem.starts_with(MAIN_HEAD) {
        format!("+{stem}")
    } else {
        format!("+{MAIN_HEAD}-{stem}")
    }
}

/// The packs of a stream across domains, whose names are joined by `+`; a further head's name stays with its pack.
pub(crate) fn joined(name: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (place, _) in name.match_indices('+') {
        if !name[place + 1..].starts_with(MAIN_HEAD) {
            parts.push(&name[start..place]);
            start = place + 1;
        }
    }
    parts.push(&name[start..]);
    parts
}

/// A tail of the path behind the dataset's name, unless the tail begins with the name anyway.
fn qualified(own: &str, tail: &str) -> String {
    let begins = tail.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if begins { tail.to_string() } else { format!("{own}/{tail}") }
}

/// The folders that lead to a features file, and the file's own stem unless it is `features`. A name makes no hidden
/// folders.
fn components(path: &Path) -> Vec<String> {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = |part: &std::ffi::OsStr| {
        let part = part.to_string_lossy();
        let plain = part.trim_start_matches('.');
        if plain.is_empty() { part.to_string() } else { plain.to_string() }
    };
    let mut parts: Vec<String> =
        full.parent().into_iter().flat_map(|p| p.components()).map(|c| text(c.as_os_str())).collect();
    parts.retain(|part| part != "/");
    let stem = full.file_stem().map(text).unwrap_or_default();
    if stem != "features" || parts.is_empty() {
        parts.push(stem);
    }
    parts
}

/// One component is often an encoder's name, which tells no dataset: the folder above it joins in. Packs beside each
/// other need no more than their own folders.
fn least_length(paths: &BTreeSet<&[String]>) -> usize {
    let above: BTreeSet<&[String]> = paths.iter().map(|path| &path[..path.len().saturating_sub(1)]).collect();
    if above.len() == paths.len() { 2 } else { 1 }
}

/// The last `n` components.
fn tail(path: &[String], n: usize) -> String {
    path[path.len().saturating_sub(n)..].join("/")
}

/// How many components tell different paths apart.
fn unique_length(paths: &BTreeSet<&[String]>) -> usize {
    let longest = paths.iter().map(|path| path.len()).max().unwrap_or(1);
    let unique = |n: &usize| {
        let tails: BTreeSet<String> = paths.iter().map(|path| tail(path, *n)).collect();
        tails.len() == paths.len()
    };
    (1..=longest).find(unique).unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(own: &str, folder: &str, head: &str) -> Origin {
        Origin {
            own: (!own.is_empty()).then(|| own.to_string()),
            features: format!("/data/{folder}/features.safetensors").into(),
            head: format!("/data/{folder}/{head}.safetensors").into(),
        }
    }

    #[test]
    fn a_pack_has_its_own_name_or_a_short_tail() {
        assert_eq!(names(&[origin("sea", "a/b", "head")]).unwrap(), ["sea"]);
        assert_eq!(names(&[origin("", "pets24/clip", "head")]).unwrap(), ["pets24/clip"]);
        assert_eq!(names(&[origin("", ".pets24/clip", "head")]).unwrap(), ["pets24/clip"]);
        let encoders = [origin("", "pets/clip", "head"), origin("", "cars/rn50", "head")];
        assert_eq!(names(&encoders).unwrap(), ["pets/clip", "cars/rn50"]);
        let beside = [origin("", "packs/pets", "head"), origin("", "packs/cars", "head")];
        assert_eq!(names(&beside).unwrap(), ["pets", "cars"]);
        let two = [origin("", "pets/clip", "head"), origin("", "cars/clip", "head")];
        assert_eq!(names(&two).unwrap(), ["pets/clip", "cars/clip"]);
        let mixed = [origin("sea", "sea/clip", "head"), origin("", "cars/clip", "head")];
        assert_eq!(names(&mixed).unwrap(), ["sea", "cars/clip"]);
    }

    #[test]
    fn several_encoders_and_heads_are_several_packs() {
        let packs = [
            origin("sea", "sea/rn50", "head"),
            origin("sea", "sea/b32", "head"),
            origin("sea", "sea/b32", "head-weak"),
            origin("cars", "cars/b32", "head"),
        ];
        assert_eq!(names(&packs).unwrap(), ["sea/rn50", "sea/b32", "sea/b32+head-weak", "cars"]);
        let heads = [origin("sea", "sea/b32", "head"), origin("sea", "sea/b32", "head-weak")];
        assert_eq!(names(&heads).unwrap(), ["sea", "sea+head-weak"]);
        let versions = [origin("sea", "v1/sea/b32", "head"), origin("sea", "v2/sea/b32", "head")];
        assert_eq!(names(&versions).unwrap(), ["sea/v1/sea/b32", "sea/v2/sea/b32"]);
        let nested = [origin("sea", "sea/one/b32", "head"), origin("sea", "sea/two/b32", "head")];
        assert_eq!(names(&nested).unwrap(), ["sea/one/b32", "sea/two/b32"]);
    }

    #[test]
    fn a_further_head_is_no_further_pack() {
        assert_eq!(joined("sea/b32+head-weak"), ["sea/b32+head-weak"]);
        assert_eq!(joined("a/x+b/x+head-weak+c"), ["a/x", "b/x+head-weak", "c"]);
    }

    #[test]
    fn the_same_pack_twice_is_refused() {
        let twice = [origin("sea", "sea/b32", "head"), origin("sea", "sea/b32", "head")];
        assert_eq!(names(&twice).unwrap_err(), "sea");
        // Two packs may not take each other's names either.
        let clash = [origin("b/clip", "a/clip", "head"), origin("", "b/clip", "head")];
        assert_eq!(names(&clash).unwrap_err(), "b/clip");
    }
}
