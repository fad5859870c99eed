//! Lists in JSON bodies that cannot take memory out of proportion: numbers are read straight into one flat list, and
//! lists of larger things end at a fixed number of entries. Nothing is read into a tree of JSON values first.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Entries that a list of a JSON body may have. No request has more rows ([`Limits`](crate::Limits) says so).
pub const MOST_ENTRIES: usize = 1 << 20;

/// A list of at most `MOST` entries; one more is refused before it is read.
#[derive(Debug)]
pub struct Bounded<T, const MOST: usize = MOST_ENTRIES>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor::<T, MOST>(PhantomData))
    }
}

struct BoundedVisitor<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for BoundedVisitor<T, MOST> {
    type Value = Bounded<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::custom(format!("a list may have {MOST} entries, got more")));
            }
            list.push(entry);
        }
        Ok(Bounded(list))
    }
}

/// For `#[serde(deserialize_with)]`: a list of at most [`MOST_ENTRIES`].
pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Bounded::<T>::deserialize(deserializer)?.0)
}

/// For `#[serde(deserialize_with)]`: a list of at most [`MOST_ENTRIES`] that may be absent.
pub fn optional_list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Option::<Bounded<T>>::deserialize(deserializer)?.map(|list| list.0))
}

/// Limits: settings in a request, entries of a setting that is a list, bytes of a setting that is a text.
const MOST_SETTINGS: usize = 256;
const MOST_TEXT: usize = 4096;

/// A single setting: a number, a word, a mark, or a list of them; nothing that nests further.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting(pub String);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SettingVisitor { lists: true }).map(Setting)
    }
}

/// Writes a setting as TOML; a text that is not in a list needs no quotes.
#[derive(Clone, Copy)]
struct SettingVisitor {
    lists: bool,
}

impl<'de> Visitor<'de> for SettingVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lists {
            "a number, a text, true, false, or a list of them"
        } else {
            "a number or a text"
        })
    }

    fn visit_bool<E>(self, mark: bool) -> Result<String, E> {
        Ok(mark.to_string())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(serde_json::Value::from(number).to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > MOST_TEXT {
            return Err(E::custom(format!("a setting may have {MOST_TEXT} bytes, got {}", text.len())));
        }
        Ok(if self.lists { text.to_string() } else { serde_json::Value::from(text).to_string() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<String, A::Error> {
        if !self.lists {
            return Err(A::Error::custom("a setting may be a list, got lists in a list"));
        }
        let mut list: Vec<String> = Vec::new();
        while let Some(entry) = entries.next_element_seed(Self { lists: false })? {
            if list.len() == MOST_SETTINGS {
                return Err(A::Error::custom(format!("a list may have {MOST_SETTINGS} entries, got more")));
            }
            list.push(entry);
        }
        Ok(format!("[{}]", list.join(",")))
    }
}

impl<'de> DeserializeSeed<'de> for SettingVisitor {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// For `#[serde(deserialize_with)]`: settings by key; they may be absent.
pub fn settings<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, Setting>>, D::Error> {
    struct Settings;
    impl<'de> Visitor<'de> for Settings {
        type Value = BTreeMap<String, Setting>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("settings by key")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry()? {
                if all.len() == MOST_SETTINGS {
                    return Err(A::Error::custom(format!(
                        "a request may have {MOST_SETTINGS} settings, got more"
                    )));
                }
                all.insert(key, value);
            }
            Ok(all)
        }
    }
    struct Maybe;
    impl<'de> Visitor<'de> for Maybe {
        type Value = Option<BTreeMap<String, Setting>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("settings by key, or null")
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(Settings).map(Some)
        }
    }
    deserializer.deserialize_option(Maybe)
}

/// Reads numbers of a list, flat or as a list of rows, in order, up to a limit.
pub struct Numbers {
    pub most: usize,
}

impl<'de> DeserializeSeed<'de> for Numbers {
    type Value = Vec<f32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<f32>, D::Error> {
        let mut numbers = Vec::new();
        deserializer.deserialize_seq(Level { numbers: &mut numbers, depth: 2, most: self.most })?;
        Ok(numbers)
    }
}

/// A list that is appended to the flat list: its entries are numbers or, above the lowest level, lists.
struct Level<'a> {
    numbers: &'a mut Vec<f32>,
    depth: usize,
    most: usize,
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.depth > 0 { "numbers, or rows of numbers" } else { "a number" })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if self.depth == 0 {
            return Err(A::Error::custom("expected numbers or rows of numbers, got lists in rows"));
        }
        while entries
            .next_element_seed(Level { numbers: &mut *self.numbers, depth: self.depth - 1, most: self.most })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        if self.numbers.len() == self.most {
            return Err(E::custom(format!("expected {} numbers by the shape, got more", self.most)));
        }
        self.numbers.push(number as f32);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_flat_or_nested_and_the_first_other_thing_ends_reading() {
        let read =
            |text: &str, most| Numbers { most }.deserialize(&mut serde_json::Deserializer::from_str(text));
        for text in ["[1, -2.5, 3, 4]", "[[1, -2.5], [3, 4]]"] {
            assert_eq!(read(text, 4).unwrap(), [1.0, -2.5, 3.0, 4.0]);
            assert!(read(text, 3).unwrap_err().to_string().contains("expected 3 numbers by the shape"));
        }
        for text in ["[{\"\":0} and what follows is never looked at", "[\"1\"]", "[[[1]]]", "[null]", "3"] {
            let error = read(text, 9).unwrap_err();
            assert!(error.is_data() && error.column() < 8, "{text}: {error}");
        }
    }

    #[test]
    fn settings_are_single_things_and_few() {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "settings")]
            settings: Option<BTreeMap<String, Setting>>,
        }
        let read = |text: &str| serde_json::from_str::<Body>(&format!("{{\"settings\": {text}}}"));
        let all =
            read(r#"{"a": 1, "b": -2.5, "c": true, "d": "word", "e": [1, 2.0], "f": ["x", "y"], "g": 1e3}"#);
        let all = all.unwrap().settings.unwrap();
        let words: Vec<&str> = all.values().map(|setting| setting.0.as_str()).collect();
        assert_eq!(words, ["1", "-2.5", "true", "word", "[1,2.0]", "[\"x\",\"y\"]", "1000.0"]);
        assert!(read("null").unwrap().settings.is_none());
        assert!(serde_json::from_str::<Body>("{}").unwrap().settings.is_none());
        for text in ["{\"a\": {\"\": 0} and more", "{\"a\": [[1] and more", "{\"a\": null and more", "3 "] {
            let error = read(text).map(|_| ()).unwrap_err();
            assert!(error.is_data() && error.column() < 28, "{text}: {error}");
        }
        let many: Vec<String> = (0..300).map(|i| format!("\"{i}\": 1")).collect();
        let error = read(&format!("{{{}}}", many.join(","))).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("256 settings"), "{error}");
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(5000));
        assert!(read(&long).map(|_| ()).unwrap_err().to_string().contains("4096 bytes"));
    }

    #[test]
    fn a_list_ends_at_its_bound() {
        assert_eq!(serde_json::from_str::<Bounded<u8, 3>>("[1, 2, 3]").unwrap().0, [1, 2, 3]);
        let error = serde_json::from_str::<Bounded<u8, 3>>("[1, 2, 3, 4 and more").unwrap_err();
        assert!(error.is_data() && error.to_string().contains("a list may have 3 entries"), "{error}");
    }
}
