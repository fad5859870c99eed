//! The verdict on a stream, for whoever has five seconds: well, watch or act; why; and what to do next. Page, API, metrics and
//! messages take it from here.

use serde::Serialize;
use ultta::Standing;

use crate::alarms::AlarmView;
use crate::board::Status;
use crate::stream::{ENDED, LEAVING};

/// Scenes before a change can be noticed, about (`docs/alarms.md`).
const FIRST_SCENES: u64 = 220;

/// Labels from which on the answers are compared with zero-shot's.
const MIN_LABELS: u64 = 100;

/// How a stream is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing is to be done.
    Well,
    /// Something has changed; look when there is time.
    Watch,
    /// Something is wrong; act now.
    Act,
}

/// The verdict on a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Verdict {
    /// `well`, `watch` or `act`.
    pub level: Level,
    /// Why.
    pub reason: String,
    /// What to do next; empty if nothing is.
    pub next: String,
}

impl Verdict {
    fn new(level: Level, reason: impl Into<String>, next: impl Into<String>) -> Self {
        Self { level, reason: reason.into(), next: next.into() }
    }

    /// The verdict on a stream that cannot be opened.
    pub fn unopened(reason: &str) -> Self {
        let next = "it is not served: repair its folder or delete it";
        Self::new(Level::Act, format!("{}.", sentence(reason)), next)
    }

    /// The last word on a stream that was deleted.
    pub fn deleted() -> Self {
        Self::new(Level::Well, "The stream was deleted.", "")
    }

    /// Whether another verdict has the same level and reason, but for the numbers in it, which run on.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let words = |verdict: &Self| verdict.reason.replace(|c: char| c.is_ascii_digit(), "");
        self.level == other.level && words(self) == words(other)
    }

    /// The verdict from where a stream stands and its alarms. What is worst counts.
    pub fn of(status: &Status, alarms: &[AlarmView]) -> Self {
        let health = &status.health;
        if let Some(reason) = &status.degraded {
            if reason == LEAVING {
                return Self::new(Level::Well, format!("{}.", sentence(reason)), "");
            }
            let next = if reason == ENDED {
                "restart the server; until then it answers `predict` and reads only, from the last state"
            } else {
                "look at the disk of the server; answers go on, and learning goes on by itself once the disk takes the log"
            };
            return Self::new(Level::Act, format!("Nothing is learnt: {reason}."), next);
        }
        if let Some(damage) = &status.damage {
            let next = "look at the disk of the server, then acknowledge (`ultta client acknowledge`)";
            return Self::new(Level::Act, format!("Something was lost: {damage}."), next);
        }
        let told = |alarm: &AlarmView| {
            let urgent = ["quality", "frozen", "silent"].contains(&alarm.kind);
            let level = if urgent { Level::Act } else { Level::Watch };
            Self::new(level, format!("{}.", sentence(&alarm.text)), alarm.advice)
        };
        let open = alarms.iter().rev().filter(|alarm| alarm.open).map(told);
        // The newest among the worst; a later equal one does not replace it.
        let alarm = open.reduce(|worst, other| if other.level > worst.level { other } else { worst });
        // Acknowledged is seen, not mended.
        let seen_to = alarms.iter().rev().find(|alarm| alarm.lasts && !alarm.open).map(|alarm| {
            let reason = format!("{}; this was acknowledged, and goes on.", sentence(&alarm.text));
            Self::new(Level::Watch, reason, alarm.advice)
        });
        let standing = match health.standing {
            Standing::ZeroShot => Some(Self::new(
                Level::Act,
                "The answers collapsed twice, so the frozen model answers alone.",
                "look at recent pictures; it tries again by itself, or reset the stream to learn anew",
            )),
            Standing::Restored => Some(Self::new(
                Level::Watch,
                "The answers collapsed, and the last healthy state was restored.",
                "nothing if it stays so; a second collapse means zero-shot answers",
            )),
            Standing::Healthy => None,
        };
        // Labels may be few or chosen: both intervals have to agree that learning does harm.
        let (adapted, zero_shot) = (health.estimate_recent, health.estimate_recent_zero_shot);
        let worse = (health.estimate_labels >= MIN_LABELS && adapted.high < zero_shot.low).then(|| {
            let reason = format!(
                "The answers are right less often than zero-shot's: {:.0} % for {:.0} %, by {} labels.",
                100.0 * adapted.top1,
                100.0 * zero_shot.top1,
                health.estimate_labels
            );
            Self::new(
                Level::Watch,
                reason,
                "reset the stream to learn anew; if it comes again, serve zero-shot",
            )
        });
        let frozen = (!status.learning).then(|| {
            Self::new(
                Level::Watch,
                "Learning is frozen.",
                "unfreeze it when it should learn again (`ultta client unfreeze`)",
            )
        });
        let empty = (health.seen == 0)
            .then(|| Self::new(Level::Watch, "No row has arrived yet.", "send rows to this stream"));
        // A restart does not hide a feed that is dead.
        let unheard = (health.seen > 0 && status.last_row.is_none()).then(|| {
            let reason =
                format!("No row since the server opened the stream {:.0} s ago.", status.silence_seconds);
            Self::new(Level::Watch, reason, "look whether the camera, the network and the sender are up")
        });
        let worst = [unheard, alarm, standing, seen_to, worse, frozen, empty].into_iter().flatten();
        worst.reduce(|worst, other| if other.level > worst.level { other } else { worst }).unwrap_or_else(
            || {
                let scenes = health.scenes;
                let (reason, next) = if !status.watched {
                    (format!("Learning; {scenes} scenes seen, alarms are off."), "")
                } else if health.alarms_ready {
                    // What changed earlier and is known or the new normal by now is not left out.
                    let changed = alarms.iter().rev().find(|a| !["frozen", "silent"].contains(&a.kind));
                    let since = changed.map_or_else(String::new, |alarm| format!(" since row {}", alarm.since));
                    (format!("Learning; nothing has changed{since}, {scenes} scenes seen."), "")
                } else if scenes < FIRST_SCENES {
                    let reason = format!("Learning; too early to judge: {scenes} of about {FIRST_SCENES} scenes.");
                    (reason, "let it run; changes are noticed once there are enough scenes")
                } else {
                    let reason = format!(
                        "Learning; too early to judge: {scenes} scenes seen, too few that differ or since the last change."
                    );
                    (reason, "let it run; changes are noticed once there are enough scenes")
                };
                Self::new(Level::Well, reason, next)
            },
        )
    }
}

/// With a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::tests::status;

    #[test]
    fn what_is_worst_counts() {
        let level = |change: fn(&mut Status), alarms: &[AlarmView]| {
            let mut status = status();
            status.health.seen = 10;
            status.last_row = Some(0.0);
            change(&mut status);
            Verdict::of(&status, alarms).level
        };
        let silent = AlarmView::silent(0.0, 60.0, 3);
        let mix = AlarmView { kind: "mix", ..silent.clone() };
        let known = AlarmView { open: false, ..silent.clone() };
        assert_eq!(level(|_| {}, &[]), Level::Well);
        // Acknowledged while it lasts is seen, not mended.
        assert_eq!(level(|_| {}, std::slice::from_ref(&known)), Level::Watch);
        let over = AlarmView { lasts: false, ..known };
        assert_eq!(level(|_| {}, std::slice::from_ref(&over)), Level::Well);
        assert_eq!(level(|_| {}, std::slice::from_ref(&mix)), Level::Watch);
        assert_eq!(level(|_| {}, &[silent, mix]), Level::Act);
        assert_eq!(level(|s| s.learning = false, &[]), Level::Watch);
        let mut frozen = Status { learning: false, last_row: Some(0.0), ..status() };
        frozen.health.seen = 10;
        assert!(Verdict::of(&frozen, &[]).next.ends_with("(`ultta client unfreeze`)"));
        assert_eq!(level(|s| s.health.seen = 0, &[]), Level::Watch);
        assert_eq!(level(|s| s.last_row = None, &[]), Level::Watch);
        assert_eq!(level(|s| s.health.standing = Standing::ZeroShot, &[]), Level::Act);
        assert_eq!(level(|s| s.degraded = Some("x".into()), &[]), Level::Act);
        assert_eq!(level(|s| s.damage = Some("x".into()), &[]), Level::Act);
        let worse = |labels: u64| {
            let mut status = Status { last_row: Some(0.0), ..status() };
            (status.health.seen, status.health.estimate_labels) = (500, labels);
            status.health.estimate_recent = ultta::Estimate { top1: 0.5, low: 0.45, high: 0.55 };
            status.health.estimate_recent_zero_shot = ultta::Estimate { top1: 0.7, low: 0.65, high: 0.75 };
            Verdict::of(&status, &[])
        };
        assert_eq!((worse(99).level, worse(100).level), (Level::Well, Level::Watch));
        assert!(worse(100).reason.contains("50 % for 70 %, by 100 labels"), "{:?}", worse(100));
        assert_eq!(sentence("élan"), "Élan");
    }

    #[test]
    fn too_early_is_told_as_such() {
        let told = |scenes: u64, ready: bool| {
            let mut status = Status { last_row: Some(0.0), ..status() };
            status.health.seen = 500;
            (status.health.scenes, status.health.alarms_ready) = (scenes, ready);
            Verdict::of(&status, &[])
        };
        let early = told(60, false);
        assert!(early.reason.contains("too early to judge: 60 of about 220 scenes"), "{early:?}");
        assert!(!early.next.is_empty());
        let alike = told(500, false);
        assert!(alike.reason.contains("too early") && !alike.reason.contains("220"), "{alike:?}");
        assert_eq!(told(500, true).next, "");
        assert!(told(500, true).says_the_same(&told(501, true)) && !told(500, true).says_the_same(&early));
        let act = |reason: &str| Verdict::new(Level::Act, reason, "");
        assert!(!act("The disk is full.").says_the_same(&act("No row came for 60 seconds.")));
        let mut later = Status { last_row: Some(0.0), ..status() };
        (later.health.seen, later.health.scenes, later.health.alarms_ready) = (900, 500, true);
        let known = AlarmView { kind: "mix", open: false, lasts: false, ..AlarmView::silent(0.0, 1.0, 300) };
        let verdict = Verdict::of(&later, std::slice::from_ref(&known));
        assert_eq!(verdict.reason, "Learning; nothing has changed since row 300, 500 scenes seen.");
        let mut off = Status { watched: false, last_row: Some(0.0), ..status() };
        off.health.seen = 500;
        assert!(Verdict::of(&off, &[]).reason.contains("alarms are off"));
        let mut restarted = Status { silence_seconds: 41.6, ..status() };
        restarted.health.seen = 500;
        let verdict = Verdict::of(&restarted, &[]);
        assert_eq!(verdict.reason, "No row since the server opened the stream 42 s ago.");
    }
}
