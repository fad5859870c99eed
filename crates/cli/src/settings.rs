//! The flags that choose a method and its settings, shared by `run` and `config`.

use std::path::PathBuf;

use anyhow::Context;
use ultta::{Config, Error};
use ultta_formats::shown;

use crate::failure::usage;
use crate::gradient;

/// Method, preset, file and single settings; later ones win.
#[derive(clap::Args, Clone, Debug)]
pub struct Settings {
    /// The method (`ultta methods` lists them); ul-tta unless the config file says otherwise
    #[arg(long, value_name = "NAME", help_heading = "Method")]
    pub method: Option<String>,

    /// A named set of values for all settings of the method: default or paper
    #[arg(long, value_name = "NAME", help_heading = "Method")]
    pub preset: Option<String>,

    /// Settings as TOML; what the file leaves out keeps the value of its preset
    #[arg(long, value_name = "FILE", help_heading = "Method")]
    pub config: Option<PathBuf>,

    /// One setting, by its dotted path in the config file; `method.NAME.` may be left out
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "Method", value_parser = key_value)]
    pub settings: Vec<(String, String)>,

    /// Report samples that fit no class as unknown, rejecting at most this share of those that do: 5% or 0.05
    #[arg(long, value_name = "SHARE", help_heading = "Method", value_parser = share_of_known)]
    pub unknown: Option<f64>,

    /// Give each sample a set of classes that holds the truth this often: 90% or 0.9. Labels (feedback) make it a promise
    #[arg(long, value_name = "SHARE", help_heading = "Method", value_parser = coverage)]
    pub coverage: Option<f64>,
}

/// A share as people write it: 5% or 0.05.
pub fn share(text: &str) -> Option<f64> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    number.parse::<f64>().ok().map(|number| number / unit)
}

fn share_of_known(text: &str) -> Result<f64, String> {
    share(text).filter(|share| *share > 0.0 && *share <= 0.5).ok_or_else(|| {
        "expected a share of the known samples, above 0 and up to 50%, such as 5% or 0.05".into()
    })
}

fn coverage(text: &str) -> Result<f64, String> {
    share(text)
        .filter(|share| (0.0..=0.999).contains(share))
        .ok_or_else(|| "expected how often sets hold the truth, up to 99.9%, such as 90% or 0.9".into())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err("expected KEY=VALUE, such as gate.keep=0.5".into()),
    }
}

impl Settings {
    /// Whether any flag was given.
    pub fn given(&self) -> bool {
        self.method.is_some()
            || self.preset.is_some()
            || self.config.is_some()
            || !self.settings.is_empty()
            || self.unknown.is_some()
            || self.coverage.is_some()
    }

    /// The configuration they ask for.
    pub fn resolve(&self) -> anyhow::Result<Config> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| Error::Io {
                doing: "opening",
                source,
                path: path.clone(),
            })
        };
        self.resolve_over(self.config.as_ref().map(read).transpose()?.as_deref())
    }

    /// The configuration they ask for, on top of the text of the file.
    pub fn resolve_over(&self, file: Option<&str>) -> anyhow::Result<Config> {
        if let Some(name) = self.method.as_deref().filter(|name| gradient::is_method(name)) {
            return usage(gradient::needs_pictures(name));
        }
        let text = |share: f64| share.to_string();
        let (cost, coverage) = (self.unknown.map(text), self.coverage.map(text));
        let mut settings: Vec<(&str, &str)> = Vec::new();
        if let Some(cost) = &cost {
            settings.extend([("unknown.score", "cone"), ("unknown.cost", cost)]);
        }
        if let Some(coverage) = &coverage {
            settings.push(("coverage", coverage));
        }
        settings.extend(self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let config = Config::resolve(file, self.method.as_deref(), self.preset.as_deref(), &settings);
        match &self.config {
            Some(path) => config.with_context(|| shown(&path)),
            None => Ok(config?),
        }
    }
}
