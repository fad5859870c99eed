//! Settings that had another place in an earlier version, or are constants now. What was saved under the old keys is read; who
//! writes an old key is told where it went.

use toml::{Table, Value};

use super::{insert, parse_value};
use crate::Result;
use crate::methods::presets::{self, Preset};

/// Settings that have another place: from, to.
const MOVED: [(&str, &str); 15] = [
    ("guard.window", "guard.advanced.window"),
    ("guard.concentration", "guard.advanced.concentration"),
    ("guard.support", "guard.advanced.support"),
    ("guard.patience", "guard.advanced.patience"),
    ("unknown.threshold", "unknown.advanced.threshold"),
    ("unknown.quantile", "unknown.advanced.quantile"),
    ("unknown.window", "unknown.advanced.window"),
    ("unknown.share", "unknown.advanced.share"),
    ("unknown.share_half_life", "unknown.advanced.share_half_life"),
    ("method.ul_tta.feedback.correctable", "method.ul_tta.advanced.correctable"),
    ("method.ul_tta.feedback.prior_strength", "method.ul_tta.advanced.label_strength"),
    ("method.ul_tta.prototypes.half_life_per_class", "method.ul_tta.advanced.half_life_per_class"),
    ("method.ul_tta.gate.warm_up", "method.ul_tta.advanced.gate_warm_up"),
    ("method.ul_tta.update.every", "method.ul_tta.advanced.update_every"),
    ("method.ul_tta.update.seconds", "method.ul_tta.advanced.update_seconds"),
];

/// Settings that are constants now, with their value.
const FIXED: [(&str, &str); 3] = [
    ("method.ul_tta.advanced.gate_min_fill", "30"),
    ("method.ul_tta.advanced.update_every_most", "1024"),
    ("method.ul_tta.advanced.scene_near_logits", "0.5"),
];

/// Those of [`MOVED`] that concern a file: the settings of our own method moved in its default, not in its other preset.
/// `preset` wins over the file's.
fn moves(
    table: &Table,
    preset: Option<Preset>,
) -> impl Iterator<Item = &'static (&'static str, &'static str)> + use<> {
    let own = table.get("method").and_then(|method| method.get(presets::NAME)).and_then(Value::as_table);
    let preset = preset.or_else(|| own.and_then(|own| presets::preset_of(own).ok()));
    let other = preset.is_some_and(|preset| preset != Preset::Default);
    MOVED.iter().filter(move |(old, _)| !other || !old.starts_with("method."))
}

/// What was saved, in the keys of now; `None` if it had no others. A constant that was set to another value stays, to be
/// refused by its name.
pub(super) fn renewed(mut table: Table) -> Result<Option<Table>> {
    let mut any = false;
    for (old, new) in moves(&table, None) {
        if let Some(value) = take(&mut table, &old.split('.').collect::<Vec<_>>()) {
            insert(&mut table, &new.split('.').collect::<Vec<_>>(), value)?;
            any = true;
        }
    }
    for (old, value) in FIXED {
        if at(&table, old) == Some(&parse_value(value)) {
            any |= take(&mut table, &old.split('.').collect::<Vec<_>>()).is_some();
        }
    }
    Ok(any.then_some(table))
}

/// A sentence about the first setting of a file that has moved or is a constant now; empty if there is none. `preset` is
/// that of our own method.
pub(super) fn in_file(table: &Table, preset: Option<Preset>) -> String {
    if let Some((old, new)) = moves(table, preset).find(|(old, _)| at(table, old).is_some()) {
        return format!("\n{old} is now {new}");
    }
    let fixed = FIXED.iter().find(|(old, _)| at(table, old).is_some());
    fixed.map_or_else(String::new, |(old, value)| format!("\n{old} is always {value} now"))
}

/// The same about one key that is unknown here.
pub(super) fn of_key(key: &str) -> Option<String> {
    let moved = MOVED.iter().find(|(old, _)| *old == key).map(|(_, new)| format!("; it is now `{new}`"));
    let fixed = || FIXED.iter().find(|(old, _)| *old == key);
    moved.or_else(|| fixed().map(|(_, value)| format!("; it is always {value} now")))
}

/// A setting of a table, by its dotted key.
fn at<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = table.get(first)?;
    rest.map_or(Some(value), |rest| at(value.as_table()?, rest))
}

/// Takes a setting out of a table, and the groups that hold nothing else.
fn take(table: &mut Table, path: &[&str]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    if rest.is_empty() {
        return table.remove(*first);
    }
    let group = table.get_mut(*first)?.as_table_mut()?;
    let taken = take(group, rest)?;
    // The name of the method says which one it is.
    if group.is_empty() && *first != presets::NAME {
        table.remove(*first);
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_setting_that_has_moved_says_where_it_is_and_is_read_from_what_was_saved() {
        let error = |r: Result<Config>| r.unwrap_err().to_string();
        let old = "[guard]\nwindow = 64\n[unknown]\nshare = 0.2\n[method.ul_tta.feedback]\ncorrectable = 9\n";
        let file = error(Config::from_toml(old));
        assert!(
            file.contains("line 2") && file.ends_with("guard.window is now guard.advanced.window"),
            "{file}"
        );
        let other = error(Config::from_toml("[unknown]\nwindow = 64\n[method.tda]"));
        assert!(other.ends_with("unknown.window is now unknown.advanced.window"), "{other}");
        let set = error(Config::resolve(None, None, None, &[("feedback.correctable", "9")]));
        assert!(set.ends_with("; it is now `method.ul_tta.advanced.correctable`"), "{set}");
        let now = [
            ("guard.advanced.window", "64"),
            ("unknown.advanced.share", "0.2"),
            ("advanced.correctable", "9"),
        ];
        assert_eq!(Config::from_saved(old).unwrap(), Config::resolve(None, None, None, &now).unwrap());
        // A group that has gone goes with its last key; what is a constant now is read if it had that value.
        let gone =
            "[method.ul_tta.update]\nseconds = 2.5\n[method.ul_tta.advanced]\nupdate_every_most = 1024\n";
        let now = [("advanced.update_seconds", "2.5")];
        assert_eq!(Config::from_saved(gone).unwrap(), Config::resolve(None, None, None, &now).unwrap());
        let other = "[method.ul_tta.advanced]\nupdate_every_most = 7\n";
        for refused in [Config::from_saved(other), Config::from_toml(other)] {
            let refused = error(refused);
            assert!(refused.ends_with("update_every_most is always 1024 now"), "{refused}");
        }
        let set = error(Config::resolve(None, None, None, &[("advanced.scene_near_logits", "0.4")]));
        assert!(set.ends_with("; it is always 0.5 now"), "{set}");
        // The other preset has some of these keys where they were.
        let paper =
            "[method.ul_tta]\npreset = \"paper\"\ngate = { warm_up = 7 }\nupdate = { seconds = 2.5 }\n";
        assert_eq!(Config::from_saved(paper).unwrap(), Config::from_toml(paper).unwrap());
        for (old, new) in MOVED {
            assert!(at(&Config::default().to_table(), new).is_some(), "{old}");
        }
    }
}
