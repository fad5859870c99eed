//! Cells of a table without a run, and the reason: the method cannot run on that dataset under that protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use ultta::Result;

use crate::words::counted;

/// What a method lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// Its state would take too many bytes.
    Memory,
    /// The stream has more samples than its settings let it hold.
    Samples,
    /// It took longer than the time limit of the plan.
    Time,
    /// It needs views of every picture.
    Views,
    /// It needs the pictures.
    Pictures,
    /// The protocol wants strangers, and no pack has any for this one: no method can run.
    Strangers,
}

impl Why {
    /// What stands in its cell.
    pub fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Samples => "samples",
            Self::Time => "time",
            Self::Views => "views",
            Self::Pictures => "pictures",
            Self::Strangers => "not applicable",
        }
    }
}

/// A method that did not run on a dataset under a protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The protocol.
    pub protocol: String,
    /// The dataset.
    pub dataset: String,
    /// The method.
    pub method: String,
    /// What the method lacks.
    pub why: Why,
    /// The reason in full, with its numbers.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, dataset, method, why, reason } = self;
        match why {
            Why::Memory | Why::Samples | Why::Time => {
                write!(f, "{method} under {protocol} on {dataset}: {reason}")
            }
            // The same for every method.
            Why::Strangers => write!(f, "{protocol} on {dataset}: not applicable: {reason}"),
            // The same under every protocol.
            Why::Views | Why::Pictures => write!(f, "{method} on {dataset}: {reason}"),
        }
    }
}

/// The file in the folder of a method's runs on a dataset under a protocol.
pub(crate) const FILE: &str = "refused.json";

impl Refused {
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|source| ultta::Error::Io {
            doing: "creating",
            source,
            path: folder.into(),
        })?;
        let text = serde_json::to_string(self).expect("plain strings");
        ultta_formats::write_atomically(&folder.join(FILE), text.as_bytes()).map_err(Into::into)
    }

    pub(crate) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(FILE)).ok()?).ok()
    }
}

/// A line for each method and what it lacks: where, and the first reason in full.
pub(crate) fn notes(refused: &[Refused]) -> Vec<String> {
    let mut groups: BTreeMap<(&str, Why), Vec<&Refused>> = BTreeMap::new();
    for one in refused {
        groups.entry((&one.method, one.why)).or_default().push(one);
    }
    let line = |((method, why), all): ((&str, Why), Vec<&Refused>)| {
        let datasets: BTreeSet<&str> = all.iter().map(|one| one.dataset.as_str()).collect();
        let listed: Vec<&str> = datasets.iter().copied().take(3).collect();
        let more = datasets.len().saturating_sub(listed.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let listed = listed.join(", ");
        let streams = counted(all.len(), "stream");
        format!("{method} ({}): {streams} of {listed}{more}; {}", why.word(), all[0].reason)
    };
    groups.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_read_and_gathered() {
        let folder = tempfile::tempdir().unwrap();
        let one = |method: &str, dataset: &str, why| Refused {
            protocol: "iid".into(),
            dataset: dataset.into(),
            method: method.into(),
            why,
            reason: "because".into(),
        };
        let refused = one("dota", "a", Why::Memory);
        refused.write(&folder.path().join("x")).unwrap();
        assert_eq!(Refused::read(&folder.path().join("x")), Some(refused.clone()));
        assert_eq!(Refused::read(folder.path()), None);
        assert_eq!(refused.to_string(), "dota under iid on a: because");
        let all = ["a", "b", "c", "d"].map(|d| one("zero", d, Why::Views));
        let lines = notes(&[&all[..], &[refused]].concat());
        assert_eq!(
            lines,
            [
                "dota (memory): 1 stream of a; because",
                "zero (views): 4 streams of a, b, c and 1 more; because"
            ]
        );
    }
}
