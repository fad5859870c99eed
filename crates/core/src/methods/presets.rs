//! One name, two methods: `ul_tta` is the default method ([`ul_tta`](super::ul_tta)) or, with `preset = "paper"`,
//! the published algorithm ([`ul_tta_paper`](super::ul_tta_paper)). Each has settings of its own.

use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use toml::{Table, Value};

use super::MethodConfig;
use super::ul_tta::{DefaultConfig, WARM_UP, trust};
use super::ul_tta_paper::PaperConfig;
use crate::adapter::{Adapter, Card};
use crate::config::in_words;
use crate::config::read::{Mistake, read};
use crate::{Error, Head, Result};

/// The name of both in a configuration, and of the method that runs where none is named.
pub const NAME: &str = "ul_tta";

/// The card of the default method.
pub static CARD: Card = Card {
    summary: "this project's own: image evidence, class prior and temperatures in closed form (`ul-tta:paper` is the published algorithm)",
    paper: "this project, after Kim, Ultra-Light Test-Time Adaptation for Vision-Language Models, 2025",
    own: true,
    merge: Some(trust::merge),
    times: Some("advanced.update_seconds"),
    warm_up: Some((WARM_UP, "advanced.gate_warm_up")),
    // Scores and teaching over all classes; the second moments; at most every 1024 samples a factorisation and C
    // solutions. Less where few classes are candidates, and once the moments are thinned.
    operations: Some(|c, d| 4.0 * c * d + 2.0 * d * d + (2.0 / 3.0 * d * d * d + 2.0 * c * d * d) / 1024.0),
    ..BOTH
};

/// The card of the published algorithm, which an evaluation measures without the guard.
pub static PAPER_CARD: Card = Card {
    summary: "the published algorithm: prototypes, prior and temperature in closed form",
    paper: "Kim, Ultra-Light Test-Time Adaptation for Vision-Language Models, 2025",
    // Scores and sums of all classes; an update of 8 numbers per class and dimension every 64 admitted samples.
    operations: Some(|c, d| 4.0 * c * d + 8.0 * c * d / 64.0),
    guarded: false,
    times: Some("update.seconds"),
    ..BOTH
};

/// What the two cards have in common.
const BOTH: Card = Card { name: NAME, presets: &["paper"], guarded: true, reads_views: true, ..Card::PLAIN };

/// Which of the two methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// The product's own method.
    Default,
    /// The published algorithm, with the repairs its text needs.
    Paper,
}

impl Preset {
    /// Its name in a file and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Default => "default",
            Preset::Paper => "paper",
        }
    }

    /// A preset by its name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Preset::Default, Preset::Paper].into_iter().find(|p| p.name() == name)
    }

    /// All its settings.
    pub fn config(self) -> UlTtaConfig {
        match self {
            Preset::Default => UlTtaConfig::Default(DefaultConfig::default()),
            Preset::Paper => UlTtaConfig::Paper(PaperConfig::default()),
        }
    }

    fn other(self) -> Self {
        match self {
            Preset::Default => Preset::Paper,
            Preset::Paper => Preset::Default,
        }
    }
}

/// Settings of `ul_tta`: those of the method that the preset names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant)] // one per session
pub enum UlTtaConfig {
    /// The product's own method.
    Default(DefaultConfig),
    /// The published algorithm.
    Paper(PaperConfig),
}

impl Default for UlTtaConfig {
    fn default() -> Self {
        Preset::Default.config()
    }
}

impl<'de> Deserialize<'de> for UlTtaConfig {
    /// Reads `preset` first. The error has no line: `Config::resolve` finds mistakes in a file before.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let own = Table::deserialize(deserializer)?;
        let preset = preset_of(&own).map_err(D::Error::custom)?;
        let within = |key: &str, table: Table| Table::from_iter([(key.to_string(), Value::Table(table))]);
        let text = within("method", within(NAME, own)).to_string();
        read_file(&text, preset).map_err(|e| D::Error::custom(in_words(e.message())))
    }
}

impl UlTtaConfig {
    /// The adapter for a head; settings out of range are an error.
    pub fn build(&self, head: &Arc<Head>) -> Result<Box<dyn Adapter>> {
        match self {
            UlTtaConfig::Default(config) => Ok(Box::new(config.build(head)?)),
            UlTtaConfig::Paper(config) => Ok(Box::new(config.build(head)?)),
        }
    }

    /// Which of the two methods.
    pub fn preset(&self) -> Preset {
        match self {
            UlTtaConfig::Default(_) => Preset::Default,
            UlTtaConfig::Paper(_) => Preset::Paper,
        }
    }

    /// The settings that the numbers in a saved state depend on.
    pub(crate) fn state_keys(&self) -> &'static [&'static str] {
        match self {
            UlTtaConfig::Default(_) => &DefaultConfig::STATE_KEYS,
            UlTtaConfig::Paper(_) => &PaperConfig::STATE_KEYS,
        }
    }
}

/// The preset that a table of settings asks for.
pub(crate) fn preset_of(table: &Table) -> Result<Preset, String> {
    let Some(value) = table.get("preset") else { return Ok(Preset::Default) };
    let preset = value.as_str().and_then(Preset::by_name);
    preset.ok_or_else(|| format!("unknown preset {value}, expected \"default\" or \"paper\""))
}

/// Reads the table `[method.ul_tta]` of a file, whose preset is known. All of the file is checked; an error names its line
/// and column.
pub(crate) fn read_file(text: &str, preset: Preset) -> Result<UlTtaConfig, Mistake> {
    /// A configuration with another type for `[method.ul_tta]`.
    #[derive(Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[allow(dead_code)] // the others are read to be checked
    struct File<C> {
        coverage: f64,
        method: Method<C>,
        guard: crate::guard::GuardConfig,
        unknown: crate::unknown::UnknownConfig,
        alarms: crate::alarm::AlarmConfig,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Method<C> {
        UlTta(C),
    }
    impl<C: Default> Default for File<C> {
        fn default() -> Self {
            let method = Method::UlTta(C::default());
            Self {
                coverage: 0.0,
                method,
                guard: Default::default(),
                unknown: Default::default(),
                alarms: Default::default(),
            }
        }
    }
    fn own<C: Default + DeserializeOwned>(text: &str) -> Result<C, Mistake> {
        let File { method: Method::UlTta(config), .. } = read(text)?;
        Ok(config)
    }
    match preset {
        Preset::Default => own(text).map(UlTtaConfig::Default),
        Preset::Paper => own(text).map(UlTtaConfig::Paper),
    }
}

/// A sentence about the first key of `table` that only the other preset has; empty if there is none.
pub(crate) fn foreign_key(table: &Table, preset: Preset) -> String {
    fn find(table: &Table, own: &Table, other: &Table, path: &str) -> Option<String> {
        table.iter().find_map(|(key, value)| match (value, own.get(key), other.get(key)) {
            (_, None, Some(_)) => Some(format!("{path}{key}")),
            (Value::Table(table), Some(Value::Table(own)), Some(Value::Table(other))) => {
                find(table, own, other, &format!("{path}{key}."))
            }
            _ => None,
        })
    }
    let all = |preset: Preset| MethodConfig::UlTta(preset.config()).settings();
    let key = find(table, &all(preset), &all(preset.other()), "");
    key.map_or_else(String::new, |key| {
        let (own, other) = (preset.name(), preset.other().name());
        format!("\n{key} is a setting of the preset {other:?}; the preset here is {own:?}")
    })
}

/// Checks a starting prior π⁰: empty, or one value per class that sum to 1.
pub(crate) fn check_start(start: &[f64], n_classes: usize) -> Result<()> {
    if start.is_empty() {
        return Ok(());
    }
    let error = |reason: String| Err(Error::config("method.ul_tta.prior.start", reason));
    if start.len() != n_classes {
        let got = start.len();
        return error(format!("expected one value per class ({n_classes}) or none, got {got}"));
    }
    let sum: f64 = start.iter().sum();
    // A smaller value has no logarithm in f32 to work with.
    if start.iter().any(|&p| !(p >= 1e-9 && p.is_finite())) || (sum - 1.0).abs() > 1e-3 {
        return error(format!("expected values of at least 1e-9 that sum to 1, got a sum of {sum}"));
    }
    Ok(())
}
