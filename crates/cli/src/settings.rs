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
        self.method.is_some() || self.preset.is_some() || self.config.is_some() || !self.settings.is_empty()
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
            return usage(format!(
                "{name} changes the encoder and so needs pictures, not features; it runs in an evaluation: \
                 ultta eval --images DIR --model M --methods zero-shot,{name}"
            ));
        }
        let settings: Vec<(&str, &str)> =
            self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let config = Config::resolve(file, self.method.as_deref(), self.preset.as_deref(), &settings);
        match &self.config {
            Some(path) => config.with_context(|| shown(&path)),
            None => Ok(config?),
        }
    }
}
