//! [`Method`]: a method under its name on the command line, with its settings.

use std::sync::Arc;

use toml::{Table, Value};
use ultta::{Card, Config, Error, Grouping, Result};

use crate::pictures::PictureMethod;

/// Rows of a step where the grouping does not matter.
pub(crate) const BLOCK: usize = ultta::internal::PASS_ROWS;

/// A method under its name on the command line.
#[derive(Clone, Debug)]
pub struct Method {
    /// `ul-tta`, `ul-tta:paper`, `tda`, …
    pub name: String,
    /// Its settings.
    pub config: Config,
    /// A method that needs the pictures themselves; the settings are its own then.
    pub pictures: Option<Arc<dyn PictureMethod>>,
}

impl std::fmt::Debug for dyn PictureMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.settings())
    }
}

impl Method {
    /// A method by name, with the part of a configuration file that concerns it. It is called by its one name, however
    /// it was spelt.
    ///
    /// Baselines run as published, without the collapse guard; UL-TTA's default preset runs as it ships, with it.
    /// A `[guard]` in the file decides for all.
    pub fn resolve(name: &str, file: Option<&str>) -> Result<Self> {
        let method = name.split(':').next().unwrap_or_default();
        let key = method.replace('-', "_");
        let mut table = Table::new();
        if let Some(text) = file {
            let parse = |e: toml::de::Error| Error::Config { key: "file".into(), reason: e.to_string() };
            table = text.parse().map_err(parse)?;
        }
        let guarded = table.contains_key("guard");
        if let Some(Value::Table(methods)) = table.get_mut("method") {
            methods.retain(|name, _| *name == key);
            if methods.is_empty() {
                table.remove("method");
            }
        }
        let text = toml::to_string(&table).unwrap_or_default();
        let text = (!table.is_empty()).then_some(text.as_str());
        let mut config = Config::resolve(text, Some(name), None, &[])?;
        if !guarded && !config.method.card().guarded {
            config.guard.enabled = false;
        }
        Ok(Self { name: config.method.name(), config, pictures: None })
    }

    /// A method that needs the pictures themselves.
    pub fn on_pictures(name: &str, method: Arc<dyn PictureMethod>) -> Result<Self> {
        let config = Config::resolve(None, Some("zero-shot"), None, &[])?;
        Ok(Self { name: name.to_string(), config, pictures: Some(method) })
    }

    /// Its card.
    pub fn card(&self) -> &'static Card {
        match &self.pictures {
            Some(method) => method.card(),
            None => self.config.method.card(),
        }
    }

    /// The configuration for a stream of `n` samples: a method that must know the length is told.
    pub(crate) fn for_stream(&self, n: usize) -> Config {
        let mut config = self.config.clone();
        config.method = config.method.for_stream_of(n as u64);
        config
    }

    /// Rows of a step where the protocol leaves it open: for a joint method, what its paper uses.
    pub(crate) fn batch(&self) -> usize {
        if let Some(method) = &self.pictures {
            return method.batch().max(1);
        }
        let card = self.config.method.card();
        match card.grouping {
            Grouping::Independent => BLOCK,
            Grouping::Joint if card.transductive => usize::MAX,
            Grouping::Joint => card.batch.unwrap_or(BLOCK),
        }
    }
}

/// Whether a name is that of the frozen model, with which every method is compared.
pub(crate) fn is_baseline(name: &str) -> bool {
    ultta::card(name).is_some_and(|card| card.baseline)
}

/// Whether a name is that of this project's own method.
pub(crate) fn is_own(name: &str) -> bool {
    ultta::card(name).is_some_and(|card| card.own)
}

/// Methods by name, each once, however its name is spelt.
pub fn each_once(names: &[impl AsRef<str>], file: Option<&str>) -> Result<Vec<Method>> {
    let mut methods: Vec<Method> = Vec::new();
    for name in names {
        let method = Method::resolve(name.as_ref(), file)?;
        if !methods.iter().any(|m| m.name == method.name) {
            methods.push(method);
        }
    }
    Ok(methods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_decides_who_is_guarded_however_the_method_is_spelt() {
        let guarded =
            |name: &str, file: Option<&str>| Method::resolve(name, file).unwrap().config.guard.enabled;
        for name in ["ul-tta", "ul_tta", "ul-tta:default", "ul_tta:default"] {
            assert!(guarded(name, None), "{name}");
            assert_eq!(Method::resolve(name, None).unwrap().name, "ul-tta", "{name}: one method, one name");
        }
        let names = ["zero_shot", "ul_tta", "ul-tta:default", "ul-tta", "zero-shot"];
        let once: Vec<String> = each_once(&names, None).unwrap().into_iter().map(|m| m.name).collect();
        assert_eq!(once, ["zero-shot", "ul-tta"]);
        assert!(is_baseline("zero_shot") && is_own("ul-tta") && !is_own("ul-tta:paper") && !is_own("tent"));
        for name in ["ul-tta:paper", "tda", "zero-shot"] {
            assert!(!guarded(name, None), "{name}");
            assert!(guarded(name, Some("[guard]\nenabled = true")), "{name}: the file decides");
        }
    }
}
