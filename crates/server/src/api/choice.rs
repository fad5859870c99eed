//! Method and settings of a stream, as a request chooses them.

use std::collections::BTreeMap;

use super::bounded::Setting;
use super::{CloneStream, CreateStream};

/// Method and settings of a stream, as a request chooses them.
pub struct Choice<'a> {
    pub config: Option<&'a str>,
    pub method: Option<&'a str>,
    pub preset: Option<&'a str>,
    pub settings: Option<&'a BTreeMap<String, Setting>>,
}

macro_rules! choice {
    ($($request:ty),*) => {$(
        impl $request {
            /// The method and the settings that a request names.
            pub fn choice(&self) -> Choice<'_> {
                Choice {
                    config: self.config.as_deref(),
                    method: self.method.as_deref(),
                    preset: self.preset.as_deref(),
                    settings: self.settings.as_ref(),
                }
            }
        }
    )*};
}
choice!(CreateStream, CloneStream);

impl Choice<'_> {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.method.is_none() && self.preset.is_none() && self.settings.is_none()
    }

    /// The configuration. One that names a file is refused: a server reads no file that a request names.
    pub fn resolve(&self) -> ultta::Result<ultta::Config> {
        let settings: Vec<(&str, &str)> = self
            .settings
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.0.as_str()))
            .collect();
        let config = ultta::Config::resolve(self.config, self.method, self.preset, &settings)?;
        if let Some((key, _)) = config.method.files().into_iter().next() {
            return Err(ultta::Error::Config {
                key,
                reason: "expected none: a server reads no file that a request names".into(),
            });
        }
        Ok(config)
    }
}
