//! Rows as JSON lines: one sample a line, a plain array of numbers or an object (`docs/formats.md`).

use serde::{Deserialize, Serialize};

/// Why a line is no row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It begins like neither.
    #[error("expected an array of numbers, or an object with `features`")]
    NoRow,
    /// It begins like one, but is none.
    #[error("not a valid row: {0}")]
    Json(#[from] serde_json::Error),
}

/// One sample on its way in.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The sender's name for the sample.
    #[serde(default)]
    pub id: Option<Id>,
    /// The image features.
    pub features: Vec<f32>,
    /// `false` marks a sample that must not teach.
    #[serde(default = "yes")]
    pub learn: bool,
    /// Arrival time in seconds, for updates by time.
    #[serde(default)]
    pub time: Option<f64>,
    /// Extra views of the sample.
    #[serde(default)]
    pub views: Vec<Vec<f32>>,
}

fn yes() -> bool {
    true
}

/// A sample's name: a number or a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Id {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl serde::de::Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number of at least 0, or a string")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Id, E> {
        Ok(Id::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Id, E> {
        Ok(Id::Text(text.to_string()))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Number(number) => write!(f, "{number}"),
            Id::Text(text) => write!(f, "{text}"),
        }
    }
}

impl Line {
    /// Reads a line; `None` if it is blank.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, LineError> {
        let bytes = bytes.trim_ascii();
        match bytes.first() {
            None => Ok(None),
            Some(b'[') => {
                let features = serde_json::from_slice(bytes)?;
                Ok(Some(Self { id: None, features, learn: true, time: None, views: Vec::new() }))
            }
            Some(b'{') => Ok(Some(serde_json::from_slice(bytes)?)),
            Some(_) => Err(LineError::NoRow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Line>, String> {
        Line::parse(text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn arrays_and_objects_are_rows() {
        let plain = parse(" [0.6, 0.8] \n").unwrap().unwrap();
        assert_eq!((plain.features, plain.learn, plain.id), (vec![0.6, 0.8], true, None));
        let full =
            r#"{"id": "a", "features": [1, 0], "learn": false, "time": 2.5, "views": [[0, 1], [1, 0]]}"#;
        let full = parse(full).unwrap().unwrap();
        assert_eq!((full.id.clone(), full.learn, full.time), (Some(Id::Text("a".into())), false, Some(2.5)));
        assert_eq!((full.features, full.views), (vec![1.0, 0.0], vec![vec![0.0, 1.0], vec![1.0, 0.0]]));
        assert_eq!(parse("  \r\n").unwrap(), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("hello", "expected an array"),
            ("[1, NaN]", "not a valid row"),
            ("[1, 2", "EOF"),
            (r#"{"id": 1}"#, "features"),
            (r#"{"feature": [1]}"#, "feature"),
            (r#"{"features": [1], "id": -1}"#, "whole number of at least 0"),
            ("\u{7f}", "expected an array"),
            ("[1e39, 0]", "out of range"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
