//! [`Config`]: method, guard and open-set settings, as TOML with presets and overrides.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::alarm::AlarmConfig;
use crate::guard::GuardConfig;
use crate::methods::presets::{self, Preset, UlTtaConfig};
use crate::methods::{self, MethodConfig};
use crate::unknown::UnknownConfig;
use crate::{Error, Result};

/// The default configuration, every key with its meaning.
pub const DEFAULT_TOML: &str = include_str!("../config/default.toml");

/// The configuration of the preset `paper`, the published algorithm, every key with its meaning.
pub const PAPER_TOML: &str = include_str!("../config/paper.toml");

/// Everything that decides how a session behaves.
///
/// ```
/// use ultta::Config;
/// let paper = Config::named("ul-tta:paper")?;
/// let mine = Config::resolve(Some("[method.ul_tta.gate]\nkeep = 0.5"), None, None, &[("update.every", "64")])?;
/// assert!(mine.to_toml().contains("keep = 0.5"));
/// assert!(Config::named("ul-tta:papre").unwrap_err().to_string().contains("paper"));
/// # Ok::<(), ultta::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of the samples whose set of classes is to hold the truth, such as 0.9; 0 gives no sets.
    pub coverage: f64,
    /// The method and its settings.
    pub method: MethodConfig,
    /// When to fall back to a healthy state or to zero-shot.
    pub guard: GuardConfig,
    /// Open-set rejection.
    pub unknown: UnknownConfig,
    /// Alarms when the stream changes.
    pub alarms: AlarmConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coverage: 0.0,
            method: MethodConfig::UlTta(UlTtaConfig::default()),
            guard: Default::default(),
            unknown: Default::default(),
            alarms: Default::default(),
        }
    }
}

impl Config {
    /// A method by name, with a preset after a colon: `zero-shot`, `ul-tta`, `ul-tta:paper`.
    pub fn named(name: &str) -> Result<Self> {
        let (method, preset) = match name.split_once(':') {
            Some((method, preset)) => (method, Some(preset)),
            None => (name, None),
        };
        Self::resolve(None, Some(method), preset, &[])
    }

    /// The configuration in a TOML text; what it does not say keeps the value of its preset.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::resolve(Some(text), None, None, &[])
    }

    /// Layers, later ones winning: preset, file, `method` and `preset` by name, single settings.
    ///
    /// A setting's key is the dotted path of the file; `method.<name>.` may be left out.
    pub fn resolve(
        file: Option<&str>,
        method: Option<&str>,
        preset: Option<&str>,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let mut user = Table::new();
        if let Some(text) = file {
            let by_setting =
                settings.iter().rev().find(|(k, _)| *k == "preset" || *k == "method.ul_tta.preset");
            user = check_file(text, by_setting.map(|(_, value)| *value).or(preset))?;
        }
        let in_file = user.get("method").and_then(Value::as_table).and_then(|t| t.keys().next().cloned());
        let name = match method {
            Some(name) => known_method(name)?,
            None => in_file.clone().unwrap_or_else(|| "ul_tta".into()),
        };
        if let Some(other) = in_file.filter(|other| *other != name) {
            return Err(Error::config(
                "method",
                format!("{name} was asked for, but the file configures {other}"),
            ));
        }
        entry(&mut user, &["method", &name])?;
        if let Some(preset) = preset {
            insert(&mut user, &["method", &name, "preset"], Value::String(preset.to_string()))?;
        }
        for (key, value) in settings {
            let mut path: Vec<&str> = key.split('.').collect();
            if !["alarms", "coverage", "method", "guard", "unknown"].contains(&path[0]) {
                path.splice(0..0, ["method", name.as_str()]);
            }
            insert(&mut user, &path, parse_value(value))?;
        }
        // The preset fills in what the user left open.
        let mut base = Config { method: default_method(&name)?, ..Default::default() };
        let own = user["method"][&name].as_table().cloned().unwrap_or_default();
        let mut advice = String::new();
        if let MethodConfig::UlTta(_) = &base.method {
            let preset = presets::preset_of(&own)
                .map_err(|reason| Error::config(format!("method.{name}.preset"), reason))?;
            base.method = MethodConfig::UlTta(preset.config());
            advice = presets::foreign_key(&own, preset);
        }
        let mut table = base.to_table();
        merge(&mut table, user);
        let config =
            Config::from_table(&table).map_err(|e| Error::config("settings", format!("{e}{advice}")))?;
        config.guard.check()?;
        config.unknown.check()?;
        config.alarms.check()?;
        in_range("coverage", config.coverage, 0.0..=0.999)?;
        Ok(config)
    }

    /// The settings that the numbers in a saved state depend on, by dotted key: a state can be continued only under
    /// the same values of these. All other settings may change.
    pub(crate) fn state_settings(&self) -> Table {
        let name = self.method.card().name;
        let own = self.method.settings();
        let mut kept = Table::new();
        if let MethodConfig::UlTta(config) = &self.method {
            kept.insert("preset".into(), own["preset"].clone());
            for key in config.state_keys() {
                let find =
                    |table: &Table| key.split_once('.').and_then(|(a, b)| table.get(a)?.get(b).cloned());
                kept.extend(find(&own).map(|value| (key.to_string(), value)));
            }
        } else {
            kept.extend(own);
        }
        kept.insert("method".into(), Value::String(name.into()));
        kept
    }

    /// The resolved configuration as TOML, every key written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are plain numbers, strings and lists")
    }

    /// The settings as a table. It is made of the text, as [`Config::from_table`] reads the text of a table: serde would
    /// compile all settings of all methods once more for tables.
    pub(crate) fn to_table(&self) -> Table {
        self.to_toml().parse().unwrap_or_default()
    }

    /// Settings from a table. An error names the table that is wrong.
    pub(crate) fn from_table(table: &Table) -> Result<Self, String> {
        let text = table.to_string();
        toml::from_str(&text).map_err(|e| without_line(&text, &e))
    }
}

/// An error in a text that no user has seen: its message with the table's name instead of a line.
pub(crate) fn without_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.end)).unwrap_or_default();
    let table = before.lines().rev().find_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    // The message quotes a value of the wrong type: the line that holds it has the key.
    let value = error.message().split(['"', '`']).nth(1);
    let key = value.and_then(|value| {
        let holds = |line: &str| line.split_once(" = ").is_some_and(|(_, v)| v.trim_matches('"') == value);
        text.lines().find(|line| holds(line)).and_then(|line| line.split_once(" = ")).map(|(key, _)| key)
    });
    let place = match key {
        Some(key) => format!(", for `{key}`"),
        None => table.map(|table| format!(" in `{table}`")).unwrap_or_default(),
    };
    format!("{}{place}", error.message().trim_end().replace('\n', ", "))
}

/// Reads the text of a file strictly, so that an error carries its line and column. `preset` wins over the file's.
fn check_file(text: &str, preset: Option<&str>) -> Result<Table> {
    let error = |e: toml::de::Error, advice: String| {
        Error::config("file", format!("{}{advice}", e.to_string().trim_end()))
    };
    let table: Table = text.parse().map_err(|e| error(e, String::new()))?;
    let methods = table.get("method").and_then(Value::as_table).filter(|t| t.len() == 1);
    match methods.and_then(|t| t.get("ul_tta")).and_then(Value::as_table) {
        Some(own) => {
            let by_name = preset.and_then(Preset::by_name);
            let preset = by_name.or_else(|| presets::preset_of(own).ok()).unwrap_or(Preset::Default);
            presets::read_file(text, preset).map_err(|e| error(e, presets::foreign_key(own, preset)))?;
        }
        None => toml::from_str::<Config>(text).map(drop).map_err(|e| error(e, String::new()))?,
    }
    Ok(table)
}

/// A method's name as in a file (`ul_tta`), from any spelling (`ul-tta`).
fn known_method(name: &str) -> Result<String> {
    let plain = name.replace('-', "_");
    let names = methods::cards().into_iter().map(|c| c.name);
    if names.clone().any(|n| n == plain) {
        return Ok(plain);
    }
    let all = names.clone().map(|n| n.replace('_', "-")).collect::<Vec<_>>().join(", ");
    let hint = nearest(&plain, names).map(|n| format!("; did you mean {}?", n.replace('_', "-")));
    Err(Error::config(
        "method",
        format!("unknown method {name:?}{} (known: {all})", hint.unwrap_or_default()),
    ))
}

fn default_method(name: &str) -> Result<MethodConfig> {
    MethodConfig::by_name(&known_method(name)?).ok_or_else(|| Error::config("method", "unknown method"))
}

/// The name with the smallest edit distance, if it is near enough to be a slip.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|k| (strsim::levenshtein(name, k), k))
        .min()
        .filter(|(d, k)| *d <= k.len().div_ceil(3))
        .map(|(_, k)| k)
}

/// A value as TOML; a bare word is a string.
fn parse_value(text: &str) -> Value {
    format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_string()))
}

fn entry<'t>(table: &'t mut Table, path: &[&str]) -> Result<&'t mut Table> {
    let Some((first, rest)) = path.split_first() else { return Ok(table) };
    match table.entry(first.to_string()).or_insert_with(|| Value::Table(Table::new())) {
        Value::Table(inner) => entry(inner, rest),
        _ => Err(Error::config(path.join("."), "it is a single value, not a group of settings")),
    }
}

fn insert(table: &mut Table, path: &[&str], value: Value) -> Result<()> {
    let (last, groups) = path.split_last().expect("a key has at least one part");
    entry(table, groups)?.insert(last.to_string(), value);
    Ok(())
}

/// Puts `over` on top of `base`, table by table. An integer where the base has a float becomes a float.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(value)) => merge(inner, value),
            (Some(Value::Float(slot)), Value::Integer(value)) => *slot = value as f64,
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Checks a number against a range, for `check` functions of settings.
pub(crate) fn in_range(key: &str, value: f64, range: std::ops::RangeInclusive<f64>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::config(
        key,
        format!("expected a number from {} to {}, got {value}", range.start(), range.end()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of `full` that `documented` does not have.
    fn missing(full: &Table, documented: &Table, path: &str) -> Vec<String> {
        let one = |(key, value): (&String, &Value)| match (value, documented.get(key)) {
            (Value::Table(full), Some(Value::Table(documented))) => {
                missing(full, documented, &format!("{path}{key}."))
            }
            (_, Some(_)) => Vec::new(),
            (_, None) => vec![format!("{path}{key}")],
        };
        full.iter().flat_map(one).collect()
    }

    #[test]
    fn the_documented_values_are_the_values_and_every_key_is_documented() {
        for (text, name) in [(DEFAULT_TOML, "ul-tta"), (PAPER_TOML, "ul-tta:paper")] {
            let config = Config::named(name).unwrap();
            assert_eq!(Config::from_toml(text).unwrap(), config, "{name}");
            let missing = missing(&config.to_table(), &text.parse().unwrap(), "");
            assert!(missing.is_empty(), "{name}: not documented: {missing:?}");
        }
        assert_eq!(Config::named("ul-tta").unwrap(), Config::default());
    }

    #[test]
    fn a_key_of_the_other_preset_says_so() {
        let error = |r: Result<Config>| r.unwrap_err().to_string();
        let rho = error(Config::from_toml("[method.ul_tta.prototypes]\nrho = 0.1"));
        assert!(
            rho.contains("line 2") && rho.contains("prototypes.rho is a setting of the preset \"paper\""),
            "{rho}"
        );
        let set = error(Config::resolve(None, None, Some("paper"), &[("advanced.shrink", "4")]));
        assert!(set.contains("advanced is a setting of the preset \"default\""), "{set}");
        let file = "[method.ul_tta.prototypes]\nrho = 0.1";
        assert!(Config::resolve(Some(file), None, Some("paper"), &[]).is_ok());
        assert!(Config::resolve(Some(file), None, None, &[("preset", "paper")]).is_ok());
        assert!(error(Config::from_toml("[method.ul_tta]\npreset = \"fast\"")).contains("line 2"));
    }

    #[test]
    fn a_state_depends_on_few_settings() {
        let settings =
            |set: &[(&str, &str)]| Config::resolve(None, None, None, set).unwrap().state_settings();
        let own = settings(&[]);
        assert_eq!(own["method"].as_str(), Some("ul_tta"));
        for free in
            ["alarms.scenes", "guard.window", "unknown.window", "feedback.remember", "advanced.gate_window"]
        {
            assert_eq!(settings(&[(free, "128")]), own, "{free}");
        }
        for kept in ["prototypes.half_life", "advanced.candidates"] {
            assert_ne!(settings(&[(kept, "32")]), own, "{kept}");
        }
        for key in UlTtaConfig::default().state_keys() {
            assert!(own.contains_key(*key), "{key}");
        }
        let paper = Config::named("ul-tta:paper").unwrap();
        assert_eq!(paper.state_settings().len(), 6);
    }

    #[test]
    fn resolved_configs_round_trip() {
        for name in ["zero-shot", "ul-tta", "ul-tta:paper"] {
            let config = Config::named(name).unwrap();
            assert_eq!(Config::from_toml(&config.to_toml()).unwrap(), config, "{name}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |r: Result<Config>| r.unwrap_err().to_string();
        assert!(error(Config::named("ul-ta")).contains("did you mean ul-tta?"));
        assert!(error(Config::from_toml("[method.ul_tta.gate]\nkeeep = 0.5")).contains("line 2"));
        assert!(error(Config::from_toml("[method.ul_tta.gate]\nkeep = \"x\"")).contains("line 2"));
        assert!(error(Config::resolve(None, None, None, &[("gate.keeep", "1")])).contains("keeep"));
        assert!(error(Config::resolve(None, None, Some("fast"), &[])).contains("paper"));
        assert!(error(Config::from_toml("[method.zero_shot]\n[method.ul_tta]")).contains("method"));
    }
}
