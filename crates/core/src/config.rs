//! [`Config`]: method, guard and open-set settings, as TOML with presets and overrides.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use self::read::{Mistake, read};
use crate::alarm::AlarmConfig;
use crate::guard::GuardConfig;
use crate::methods::presets::{self, Preset, UlTtaConfig};
use crate::methods::{self, MethodConfig};
use crate::unknown::UnknownConfig;
use crate::{Error, Result};

mod moved;
pub(crate) mod read;

/// The default configuration, every key with its meaning.
pub const DEFAULT_TOML: &str = include_str!("../config/default.toml");

/// The configuration of the preset `paper`, the published algorithm, every key with its meaning.
pub const PAPER_TOML: &str = include_str!("../config/paper.toml");

/// Everything that decides how a session behaves.
///
/// ```
/// use ultta::Config;
/// let paper = Config::named("ul-tta:paper")?;
/// let mine = Config::resolve(Some("[method.ul_tta.gate]\nkeep = 0.5"), None, None, &[("prior.frozen", "true")])?;
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
        Self::resolve(None, Some(name), None, &[])
    }

    /// The configuration in a TOML text; what it does not say keeps the value of its preset.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::resolve(Some(text), None, None, &[])
    }

    /// The configuration that a state or a stream was saved with, in the keys of now or of an earlier version.
    pub fn from_saved(text: &str) -> Result<Self> {
        let renewed = text.parse().ok().map(moved::renewed).transpose()?.flatten();
        renewed.map_or_else(|| Self::from_toml(text), |table| Self::from_toml(&table.to_string()))
    }

    /// Layers, later ones winning: preset, file, `method` and `preset` by name, single settings.
    ///
    /// The method's name may have its preset after a colon. A setting's key is the dotted path of the file;
    /// `method.<name>.` may be left out.
    pub fn resolve(
        file: Option<&str>,
        method: Option<&str>,
        preset: Option<&str>,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let (method, preset) = split_name(method, preset)?;
        let mut user = Table::new();
        if let Some(text) = file {
            let full = format!("method.{}.preset", presets::NAME);
            let by_setting = settings.iter().rev().find(|(key, _)| *key == "preset" || *key == full);
            user = check_file(text, by_setting.map(|(_, value)| *value).or(preset))?;
        }
        let in_file = user.get("method").and_then(Value::as_table).and_then(|t| t.keys().next().cloned());
        let name = match method {
            Some(name) => known_method(name)?,
            None => in_file.clone().unwrap_or_else(|| presets::NAME.into()),
        };
        if let Some(other) = in_file.filter(|other| *other != name) {
            return Err(Error::config(
                "method",
                format!("{name} was asked for, but the file configures {other}"),
            ));
        }
        // The preset fills in what the user left open.
        let mut base = Config { method: default_method(&name)?, ..Default::default() };
        entry(&mut user, &["method", &name])?;
        if let Some(preset) = preset {
            if base.method.card().presets.is_empty() {
                return Err(Error::config("preset", format!("the method {} has none", plain(&name))));
            }
            insert(&mut user, &["method", &name, "preset"], Value::String(preset.to_string()))?;
        }
        let full_path = |key: &str| {
            let own = !TABLES.contains(&key.split('.').next().unwrap_or_default());
            if own { format!("method.{name}.{key}") } else { key.to_string() }
        };
        let settings: Vec<(String, Value)> =
            settings.iter().map(|(key, value)| (full_path(key), parse_value(value))).collect();
        for (key, value) in &settings {
            insert(&mut user, &key.split('.').collect::<Vec<_>>(), value.clone())?;
        }
        let own = user["method"][&name].as_table().cloned().unwrap_or_default();
        let mut advice = String::new();
        if let MethodConfig::UlTta(_) = &base.method {
            let preset = presets::preset_of(&own)
                .map_err(|reason| Error::config(format!("method.{name}.preset"), reason))?;
            base.method = MethodConfig::UlTta(preset.config());
            advice = presets::foreign_key(&own, preset);
        }
        let base = base.to_table();
        let mut table = base.clone();
        merge(&mut table, user);
        let config = Config::from_table(&table).map_err(|reason| {
            let (key, reason) = at_fault(&base, &settings).unwrap_or(("settings".into(), reason));
            Error::config(key, format!("{reason}{advice}"))
        })?;
        config.guard.check()?;
        config.unknown.check()?;
        config.alarms.check()?;
        in_range("coverage", config.coverage, 0.0..=0.999)?;
        Ok(config)
    }

    /// The settings that the numbers in a saved state depend on, by dotted key: a state can be continued only under
    /// the same values of these. All other settings may change.
    pub(crate) fn state_settings(&self) -> Table {
        let card = self.method.card();
        let own = self.method.settings();
        let mut kept = Table::new();
        match &self.method {
            MethodConfig::UlTta(config) => {
                kept.insert("preset".into(), own["preset"].clone());
                for key in config.state_keys() {
                    let find =
                        |table: &Table| key.split_once('.').and_then(|(a, b)| table.get(a)?.get(b).cloned());
                    kept.extend(find(&own).map(|value| (key.to_string(), value)));
                }
            }
            _ => kept.extend(own.into_iter().filter(|(key, _)| !card.answer_keys.contains(&key.as_str()))),
        }
        kept.insert("method".into(), Value::String(card.name.into()));
        kept
    }

    /// The resolved configuration as TOML, every key written out, what is advanced at the end.
    pub fn to_toml(&self) -> String {
        let text = toml::to_string(self).expect("settings are plain numbers, strings and lists");
        let mut sections: Vec<String> = Vec::new();
        for line in text.lines() {
            if line.starts_with('[') || sections.is_empty() {
                sections.push(String::new());
            }
            let section = sections.last_mut().expect("the first line began one");
            section.extend([line, "\n"]);
        }
        sections
            .sort_by_key(|section| section.lines().next().is_some_and(|line| line.ends_with(".advanced]")));
        sections.concat()
    }

    /// The settings as a table. It is made of the text, as [`Config::from_table`] reads the text of a table: serde would
    /// compile all settings of all methods once more for tables.
    pub(crate) fn to_table(&self) -> Table {
        self.to_toml().parse().unwrap_or_default()
    }

    /// Settings from a table.
    pub(crate) fn from_table(table: &Table) -> Result<Self, String> {
        read(&table.to_string()).map_err(|mistake| in_words(mistake.message()))
    }
}

/// The tables and keys beside the method's own, at the top of a file.
const TABLES: [&str; 5] = ["alarms", "coverage", "guard", "method", "unknown"];

/// A method's name and its preset, from `NAME:PRESET` or from both apart.
fn split_name<'a>(
    method: Option<&'a str>,
    preset: Option<&'a str>,
) -> Result<(Option<&'a str>, Option<&'a str>)> {
    let Some((name, own)) = method.and_then(|name| name.split_once(':')) else { return Ok((method, preset)) };
    match preset {
        Some(other) if other != own => Err(Error::config(
            "preset",
            format!("{other} was asked for, but {name}:{own} has its preset in its name"),
        )),
        _ => Ok((Some(name), Some(own))),
    }
}

/// A message of the TOML reader without its lines and its names of number types.
pub(crate) fn in_words(message: &str) -> String {
    let words = message.trim_end().replace('\n', ", ");
    let words = ["u64", "usize"].iter().fold(words, |words, kind| {
        words.replace(&format!("expected {kind}"), "expected a whole number of at least 0")
    });
    words.replace("expected f64", "expected a number")
}

/// The first of some single settings that cannot be, tried by itself on top of `base`: its key, and what is wrong.
fn at_fault(base: &Table, settings: &[(String, Value)]) -> Option<(String, String)> {
    settings.iter().find_map(|(key, value)| {
        let path: Vec<&str> = key.split('.').collect();
        let (mut single, mut table) = (Table::new(), base.clone());
        insert(&mut single, &path, value.clone()).ok()?;
        merge(&mut table, single);
        let reason = Config::from_table(&table).err()?;
        Some((key.clone(), format!("{reason}{}", meant(base, &path))))
    })
}

/// What may have been meant by a key that `known` does not have: a similar one, or the same one of another group.
fn meant(known: &Table, path: &[&str]) -> String {
    if let Some(told) = moved::of_key(&path.join(".")) {
        return told;
    }
    let mut table = known;
    for (i, &key) in path.iter().enumerate() {
        match table.get(key) {
            Some(Value::Table(inner)) => table = inner,
            Some(_) => return String::new(),
            None => {
                let held = |(group, value): (&String, &Value)| {
                    let holds = value.as_table().is_some_and(|inner| inner.contains_key(key));
                    holds.then(|| format!("{group}.{key}"))
                };
                let near = nearest(key, table.keys().map(String::as_str)).map(String::from);
                let found = near.or_else(|| table.iter().find_map(held));
                let rest = path[i + 1..].iter().map(|part| format!(".{part}")).collect::<String>();
                return found.map_or_else(String::new, |found| format!("; did you mean `{found}{rest}`?"));
            }
        }
    }
    String::new()
}

/// Reads the text of a file strictly, so that an error carries its line and column. `preset` wins over the file's.
fn check_file(text: &str, preset: Option<&str>) -> Result<Table> {
    let error =
        |mistake: Mistake, advice: String| Error::config("file", format!("{}{advice}", mistake.within(text)));
    let table: Table = read(text).map_err(|mistake| error(mistake, String::new()))?;
    let methods = table.get("method").and_then(Value::as_table).filter(|t| t.len() == 1);
    match methods.and_then(|t| t.get(presets::NAME)).and_then(Value::as_table) {
        Some(own) => {
            let by_name = preset.and_then(Preset::by_name);
            let preset = by_name.or_else(|| presets::preset_of(own).ok()).unwrap_or(Preset::Default);
            let advice = || moved::in_file(&table, Some(preset)) + &presets::foreign_key(own, preset);
            presets::read_file(text, preset).map_err(|mistake| error(mistake, advice()))?;
        }
        None => {
            read::<Config>(text).map(drop).map_err(|mistake| error(mistake, moved::in_file(&table, None)))?
        }
    }
    Ok(table)
}

/// A method's name as in a file (`ul_tta`), from any spelling (`ul-tta`).
fn known_method(name: &str) -> Result<String> {
    let in_file = name.replace('-', "_");
    let names = methods::cards().into_iter().map(|c| c.name);
    if names.clone().any(|n| n == in_file) {
        return Ok(in_file);
    }
    let all = names.clone().map(plain).collect::<Vec<_>>().join(", ");
    let hint = nearest(&in_file, names).map(|n| format!("; did you mean {}?", plain(n)));
    Err(Error::config(
        "method",
        format!("unknown method {name:?}{} (known: {all})", hint.unwrap_or_default()),
    ))
}

/// A method's name as the command line writes it.
fn plain(name: &str) -> String {
    name.replace('_', "-")
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
        for free in [
            "alarms.scenes",
            "guard.advanced.window",
            "unknown.advanced.window",
            "feedback.remember",
            "advanced.gate_window",
        ] {
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
        assert!(error(Config::resolve(None, None, Some("fast"), &[])).contains("paper"));
        assert!(error(Config::from_toml("[method.zero_shot]\n[method.ul_tta]")).contains("method"));
    }

    #[test]
    fn a_setting_that_cannot_be_is_told_by_its_own_key() {
        let told = |key: &str, value: &str| {
            let tried = Config::resolve(None, None, None, &[("prior.frozen", "true"), (key, value)]);
            tried.unwrap_err().to_string()
        };
        assert_eq!(
            told("advanced.update_every", "0.5"),
            "config: method.ul_tta.advanced.update_every: invalid type: floating point `0.5`, expected a whole number of at least 0"
        );
        assert_eq!(
            told("advanced.floor", "true"),
            "config: method.ul_tta.advanced.floor: invalid type: boolean `true`, expected a number"
        );
        assert_eq!(
            told("gate.keeep", "1"),
            "config: method.ul_tta.gate.keeep: unknown field `keeep`, expected `keep`; \
             did you mean `keep`?"
        );
        assert!(told("keep", "0.5").ends_with("; did you mean `gate.keep`?"), "{}", told("keep", "0.5"));
        assert!(told("guard.enabeld", "false").starts_with("config: guard.enabeld: unknown field"));
    }

    #[test]
    fn what_is_advanced_is_printed_last() {
        for name in ["ul-tta", "ul-tta:paper", "tda"] {
            let text = Config::named(name).unwrap().to_toml();
            let tables = text.lines().filter(|line| line.starts_with('['));
            assert!(tables.is_sorted_by_key(|line| line.ends_with(".advanced]")), "{text}");
        }
    }

    #[test]
    fn a_preset_may_follow_the_name_everywhere() {
        let error = |r: Result<Config>| r.unwrap_err().to_string();
        let paper = Config::named("ul_tta:paper").unwrap();
        assert_eq!(Config::resolve(None, Some("ul-tta:paper"), Some("paper"), &[]).unwrap(), paper);
        assert_eq!(paper.method.name(), "ul-tta:paper");
        assert_eq!(Config::named("ul_tta:default").unwrap().method.name(), "ul-tta");
        let both = error(Config::resolve(None, Some("ul-tta:paper"), Some("default"), &[]));
        assert!(both.contains("ul-tta:paper has its preset in its name"), "{both}");
        assert_eq!(
            error(Config::named("tip_adapter:paper")),
            "config: preset: the method tip-adapter has none"
        );
    }
}
