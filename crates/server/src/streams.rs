//! The streams of a server: create, find, delete, and open again what an earlier run left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ultta::{Config, Head, Session};

use crate::clock::Clock;
use crate::deliver::{GONE, Notice, Outbox};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::register::Register;
use crate::settings::{Durability, Limits};
use crate::store::{Folder, Meta};
use crate::stream::Stream;
use crate::verdict::Verdict;

mod lock;
mod opening;

/// What a new stream is made of.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Class prototypes, names and logit scale.
    pub head: Head,
    /// Method and settings.
    pub config: Config,
    /// Its durability, where it is not the server's.
    pub durability: Option<Durability>,
    /// The group that it shares evidence with, if any: streams with the same head and settings.
    pub group: Option<String>,
}

/// What is said of a stream until it is open.
const OPENING: &str = "it is being opened; its log is long, or its disk is slow";

/// All streams of a server.
pub struct Streams {
    root: PathBuf,
    /// The names of all streams, on the disk.
    register: Register,
    streams: RwLock<BTreeMap<String, Arc<Stream>>>,
    /// Streams that could not be opened, or not be removed, and why.
    damaged: Mutex<BTreeMap<String, String>>,
    /// One creation or deletion at a time.
    changing: tokio::sync::Mutex<()>,
    /// Held as long as the server runs.
    lock: Mutex<lock::Lock>,
    durability: Durability,
    sync_interval: Duration,
    compact_bytes: u64,
    limits: Limits,
    metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    /// Where alarms go.
    outbox: Outbox,
    silent_after: Option<Duration>,
    stopped: AtomicBool,
}

impl Streams {
    /// The stream of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Stream>, Problem> {
        self.read().get(name).cloned().ok_or_else(|| match self.damaged_names().get(name) {
            Some(reason) => Problem::unavailable(format!("stream {name:?}: {reason}")),
            None => Problem::not_found(format!("there is no stream {name:?}; POST /v1/streams creates one")),
        })
    }

    /// Streams that could not be opened, and why.
    pub(crate) fn damaged(&self) -> BTreeMap<String, String> {
        self.damaged_names().clone()
    }

    /// Whether there is a stream of this name that could not be opened.
    pub fn is_damaged(&self, name: &str) -> bool {
        self.damaged_names().contains_key(name)
    }

    fn is_opening(&self, name: &str) -> bool {
        self.damaged_names().get(name).is_some_and(|reason| reason == OPENING)
    }

    /// All streams, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Stream>> {
        self.read().values().cloned().collect()
    }

    /// Names of the streams.
    pub fn names(&self) -> Vec<String> {
        self.read().keys().cloned().collect()
    }

    /// Makes a stream, or finds the one of this name if it has the same head and configuration.
    pub async fn ensure(&self, name: &str, spec: StreamSpec) -> Result<(), String> {
        if let Ok(found) = self.get(name) {
            if found.digest != spec.head.digest() {
                return Err(format!(
                    "stream {name:?} is there already, with another head ({}); delete it, or use another data folder",
                    heads_differ(&found.head, &spec.head)
                ));
            }
            if found.config != spec.config {
                return Err(format!(
                    "stream {name:?} is there already, with another configuration ({}); delete it, use another data folder, or \
                     give the new one another name",
                    differences(&found.config, &spec.config)
                ));
            }
            if found.meta.group != spec.group {
                return Err(format!(
                    "stream {name:?} is there already, in {}; delete it, or use another data folder",
                    found
                        .meta
                        .group
                        .as_ref()
                        .map_or("no group".into(), |group| format!("the group {group:?}"))
                ));
            }
            return Ok(());
        }
        self.create(name, spec, None, None).await.map(|_| ()).map_err(|p| p.detail)
    }

    /// Makes a stream, from what another one has learnt if that is given, and learning if that does; shadowing another one if asked.
    pub(crate) async fn create(
        &self,
        name: &str,
        spec: StreamSpec,
        start: Option<Arc<Session>>,
        shadow_of: Option<String>,
    ) -> Result<Arc<Stream>, Problem> {
        check_name(name).map_err(Problem::invalid)?;
        let _changing = self.changing.lock().await;
        if self.read().contains_key(name) || self.is_damaged(name) {
            return Err(Problem::conflict(format!("there is a stream {name:?} already")));
        }
        if self.read().len() >= self.limits.streams {
            return Err(Problem::conflict(format!(
                "there are {} streams already, the most that are allowed",
                self.limits.streams
            )));
        }
        // Whole states are large: one is in memory at a time.
        let start = start.map(|session| {
            let mut state = tokio::task::block_in_place(|| session.state());
            state.tensors.retain(|name, _| !name.starts_with("shared."));
            (state, session.learning())
        });
        // Refuses what cannot work before anything is written.
        let mut session = tokio::task::block_in_place(|| -> Result<Session, Problem> {
            let mut session = Session::new(spec.head.clone(), &spec.config)?;
            if let Some((state, _)) = &start {
                session.load(state)?;
            }
            Ok(session)
        })?;
        if let Some(group) = &spec.group {
            check_group(group).map_err(Problem::invalid)?;
            let others = self.all().into_iter().filter(|other| other.meta.group.as_ref() == Some(group));
            for other in others {
                if other.digest != spec.head.digest() || other.config != spec.config {
                    return Err(Problem::conflict(format!(
                        "stream {:?} of the group {group:?} has another head or configuration; a group needs one of each",
                        other.name
                    )));
                }
            }
            if shadow_of.is_some() {
                return Err(Problem::invalid("a shadow learns what another stream does; it is in no group"));
            }
            session.join(name)?;
        }
        drop(session);
        let source = shadow_of.map(|name| self.get(&name).map(|s| (name, s.meta.created))).transpose()?;
        let meta = Meta::new(&spec.config, spec.durability, source, self.clock.now(), spec.group.clone());
        let path = self.root.join(name);
        let created = tokio::task::block_in_place(|| -> Result<(), Problem> {
            Folder::create(&path, &spec.head, &meta, start.as_ref())?;
            // A stream that cannot be listed or started was never there.
            let begun = self.register.add([&name.to_string()]).and_then(|()| self.start(name));
            begun.inspect_err(|_| {
                drop(self.register.remove(name));
                drop(Folder::remove(&path));
            })?;
            Ok(())
        });
        created?;
        self.connect(name);
        let stream = self.get(name)?;
        if start.is_some() {
            // The alarms in its state were raised, and are told, by the stream that it comes from.
            stream.control(|owner| owner.acknowledge_alarms()).await?;
        }
        stream.board.event(self.clock.now(), "created", format!("stream {name} created"));
        tracing::info!(stream = name, "created");
        Ok(stream)
    }

    /// Ends a stream and removes all it has kept. One whose folder cannot be removed has ended, is damaged, and can be
    /// deleted again.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Problem> {
        let _changing = self.changing.lock().await;
        let found = self.read().get(name).cloned();
        if found.is_none() && (self.is_opening(name) || !self.is_damaged(name)) {
            return self.get(name).and_then(|_| Err(Problem::unavailable(OPENING)));
        }
        if let Some(stream) = found {
            stream.leaving.store(true, Ordering::Release);
            if let Some(source) = &stream.meta.shadow_of
                && let Ok(source) = self.get(source)
            {
                source.shadows.remove(name);
            }
            stream.stop().await;
        }
        let removed = tokio::task::block_in_place(|| self.remove_folder(name));
        if let Err(error) = &removed {
            let reason =
                format!("it has ended, and its folder could not be removed: {error}; delete it again");
            self.damaged_names().insert(name.into(), reason);
        } else {
            self.damaged_names().remove(name);
        }
        self.write().remove(name);
        self.metrics.forget(name);
        removed?;
        // Nobody keeps the last word of a stream that is gone.
        self.tell(name, GONE, Verdict::deleted());
        tracing::info!(stream = name, "deleted");
        Ok(())
    }

    /// Removes the folder of a stream, and its name from the list. On a full disk the list can be written only after the
    /// folder is gone.
    fn remove_folder(&self, name: &str) -> ultta::Result<()> {
        let listed = self.register.remove(name);
        Folder::remove(&self.root.join(name))?;
        if let Err(error) = listed.or_else(|_| self.register.remove(name)) {
            tracing::warn!(stream = name, %error, "a deleted stream stays on the list of the streams");
        }
        Ok(())
    }

    /// Tells whoever subscribed of a stream that has no owner.
    fn tell(&self, name: &str, event: &'static str, verdict: Verdict) {
        let (stream, time) = (name.to_string(), self.clock.now());
        self.outbox.send(&Notice { event, stream, time, alarm: None, verdict });
    }

    /// Whether the lock and the list of the streams are what they were; each stream looks at its own files.
    pub(crate) fn look(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).look();
        self.register.look();
    }

    /// Finishes every stream: what was accepted is done, states are written.
    pub(crate) async fn stop(&self) {
        {
            // Whatever is opened from here on is not there for anybody.
            let _streams = self.write();
            self.stopped.store(true, Ordering::Release);
        }
        for stream in self.all() {
            stream.stop().await;
        }
        if self.damaged().values().any(|reason| reason == OPENING) {
            // The folder is still in use: it stays locked as long as the process lives.
            return;
        }
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).release();
    }

    fn damaged_names(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Stream>>> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Arc<Stream>>> {
        self.streams.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In what two heads differ: how long features are, how many classes, which, else their numbers.
fn heads_differ(there: &Head, asked: &Head) -> String {
    if there.dim() != asked.dim() {
        return format!("features of {} there, of {} asked for", there.dim(), asked.dim());
    }
    let (ours, theirs) = (there.classes(), asked.classes());
    if ours.len() != theirs.len() {
        return format!("{} classes there, {} asked for", ours.len(), theirs.len());
    }
    match ours.iter().zip(theirs).enumerate().find(|(_, (a, b))| a != b) {
        Some((at, (a, b))) => format!("class {at} is {a:?} there, {b:?} asked for"),
        None => "the same classes, made anew: other prototypes or another logit scale".into(),
    }
}

/// Settings in which two configurations differ, the first few: what there is, and what was asked for.
fn differences(there: &Config, asked: &Config) -> String {
    const SHOWN: usize = 4;
    let name = |config: &Config| config.method.card().name.replace('_', "-");
    if name(there) != name(asked) {
        return format!("method: {} there, {} asked for", name(there), name(asked));
    }
    let [there, asked] = [there, asked].map(|config| {
        let mut settings = BTreeMap::new();
        flatten("", &serde_json::to_value(config).unwrap_or_default(), &mut settings);
        settings
    });
    let mut keys: BTreeSet<&String> = there.keys().chain(asked.keys()).collect();
    let of = |settings: &BTreeMap<String, String>, key: &str| {
        settings.get(key).cloned().unwrap_or_else(|| "none".into())
    };
    // Another preset is all that need be said.
    if keys.iter().any(|key| key.ends_with(".preset") && there.get(*key) != asked.get(*key)) {
        keys.retain(|key| key.ends_with(".preset"));
    }
    let mut told: Vec<String> = keys
        .into_iter()
        .filter(|key| there.get(*key) != asked.get(*key))
        .map(|key| {
            // As `--set` names it.
            let short =
                key.strip_prefix("method.").and_then(|rest| rest.split_once('.')).map_or(&key[..], |p| p.1);
            format!("{short}: {} there, {} asked for", of(&there, key), of(&asked, key))
        })
        .collect();
    if told.len() > SHOWN {
        let more = told.len() - SHOWN;
        told.truncate(SHOWN);
        told.push(format!("and {more} more"));
    }
    told.join("; ")
}

/// The settings of a configuration by dotted key.
fn flatten(prefix: &str, value: &serde_json::Value, settings: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, settings);
            }
        }
        value => drop(settings.insert(prefix.into(), value.to_string())),
    }
}

/// Names of streams and snapshots become file names, so they are plain.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fine = (1..=64).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.');
    if fine {
        return Ok(());
    }
    Err("a name: expected 1 to 64 letters, digits, '-', '_' or '.', not beginning with '.'".into())
}

/// Names of groups become subjects of a broker.
pub fn check_group(name: &str) -> Result<(), String> {
    if name.contains('.') {
        return Err("a group: expected a name without '.'".into());
    }
    check_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_settings_are_named() {
        let config = |name: &str, settings: &[(&str, &str)]| {
            Config::resolve(None, Some(name), None, settings).unwrap()
        };
        let default = config("ul-tta", &[]);
        let told = |other: &Config| differences(&default, other);
        assert_eq!(told(&config("zero-shot", &[])), "method: ul-tta there, zero-shot asked for");
        assert_eq!(told(&config("ul-tta", &[("gate.keep", "0.5")])), "gate.keep: 0.9 there, 0.5 asked for");
        let paper = told(&config("ul-tta:paper", &[]));
        assert!(paper.starts_with("preset: ") && paper.contains("paper") && paper.len() < 80, "{paper}");
        let many = [
            ("gate.keep", "0.5"),
            ("advanced.gate_warm_up", "50"),
            ("prior.frozen", "true"),
            ("prototypes.frozen", "true"),
            ("guard.enabled", "false"),
        ];
        let many = told(&config("ul-tta", &many));
        assert!(many.contains("and 1 more"), "{many}");
    }

    #[test]
    fn names_cannot_leave_their_folder() {
        for good in ["default", "cam-1", "A_b.2"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "é", &"x".repeat(65), "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
