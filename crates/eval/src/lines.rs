//! Rows as JSON lines: one sample a line, a plain array of numbers or an object (`docs/formats.md`).

use serde::{Deserialize, Serialize};
use ultta::{Features, Result};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Id {
    Number(u64),
    Text(String),
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
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let bytes = bytes.trim_ascii();
        let line = match bytes.first() {
            None => return Ok(None),
            Some(b'[') => serde_json::from_slice(bytes).map(|features| Self {
                id: None,
                features,
                learn: true,
                time: None,
                views: Vec::new(),
            }),
            Some(b'{') => serde_json::from_slice(bytes),
            Some(_) => {
                return Err("expected an array of numbers, or an object with `features`".into());
            }
        };
        line.map(Some).map_err(|e| format!("not a valid row: {e}"))
    }

    /// The sample's features and views as unit rows.
    pub fn features(&self, normalize: bool) -> Result<(Features<'_>, Option<Features<'static>>)> {
        let dim = self.features.len();
        let unit = |data: std::borrow::Cow<'_, [f32]>| {
            if normalize {
                Features::normalized(data.into_owned(), dim)
            } else {
                Features::new(data.into_owned(), dim)
            }
        };
        let features = unit((&self.features[..]).into())?;
        if self.views.is_empty() {
            return Ok((features, None));
        }
        if let Some(view) = self.views.iter().find(|view| view.len() != dim) {
            return Err(ultta::Error::Shape { what: "length of a view", expected: dim, got: view.len() });
        }
        Ok((features, Some(unit(self.views.concat().into())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Line>, String> {
        Line::parse(text.as_bytes())
    }

    #[test]
    fn arrays_and_objects_are_rows() {
        let plain = parse(" [0.6, 0.8] \n").unwrap().unwrap();
        assert_eq!((plain.features, plain.learn, plain.id), (vec![0.6, 0.8], true, None));
        let full =
            r#"{"id": "a", "features": [1, 0], "learn": false, "time": 2.5, "views": [[0, 1], [1, 0]]}"#;
        let full = parse(full).unwrap().unwrap();
        assert_eq!((full.id.clone(), full.learn, full.time), (Some(Id::Text("a".into())), false, Some(2.5)));
        let (features, views) = full.features(false).unwrap();
        assert_eq!((features.rows(), views.unwrap().rows()), (1, 2));
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
            (r#"{"features": [1], "id": -1}"#, "Id"),
            ("\u{7f}", "expected an array"),
            ("[1e39, 0]", "out of range"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        let ragged = parse(r#"{"features": [1, 0], "views": [[1]]}"#).unwrap().unwrap();
        assert!(ragged.features(false).unwrap_err().to_string().contains("length of a view"));
        assert!(parse("[]").unwrap().unwrap().features(false).is_err());
    }
}
