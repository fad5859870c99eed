//! Alarms of a stream as the service tells them: those of its session, and silence, which only a clock can notice.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;
use ultta::{Alarm, AlarmKind, Session};

/// Number of alarms that are kept.
const KEPT: usize = 32;
/// Scenes after which an alarm that nobody acknowledged is closed: what changed is the new normal. Pictures that are hard to read
/// are no normal.
const OPEN_SCENES: u64 = 1000;
/// Number of requests after which silence can be noticed without a setting.
const MIN_REQUESTS: u64 = 100;
/// A pause is silence if it is this many times as long as the longest pause between recent requests, …
const TIMES_LONGEST: u32 = 10;
/// … and at least this long.
const SHORTEST_SILENCE: Duration = Duration::from_secs(60);
/// After a restart the pauses before are not known: a stream that had rows is silent if none comes for this long.
const SILENCE_AT_START: Duration = Duration::from_secs(600);
/// The longest pause is taken over this many requests, or up to twice as many.
const PAUSES: u64 = 500;

/// What an alarm tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct AlarmView {
    /// When it was raised, in seconds since 1970; absent if that was before the server started.
    pub time: Option<f64>,
    /// `domain`, `mix`, `quality`, `frozen` or `silent`.
    pub kind: &'static str,
    /// What has changed, since when, and how much.
    pub text: String,
    /// What to do.
    pub advice: &'static str,
    /// Id of the row at which the change began, as far as can be told.
    pub since: u64,
    /// How strong the change is, in standard deviations of what was measured before; for a frozen feed repeats, for a silent
    /// one seconds.
    pub strength: f64,
    /// Natural logarithm of the odds against chance.
    pub evidence: f64,
    /// Whether it still asks for attention: nobody has acknowledged it, and what it tells goes on or is recent.
    pub open: bool,
    /// Whether what it tells is known to go on: the feed is still silent, or still repeats. Whoever has acknowledged it has mended nothing yet.
    #[serde(skip)]
    pub lasts: bool,
    /// Scenes of the stream when it was raised.
    #[serde(skip)]
    pub scenes: u64,
}

impl AlarmView {
    /// An alarm of the session, which was raised at this time, or before the server started.
    pub fn of(alarm: &Alarm, session: &Session, time: Option<f64>) -> Self {
        let health = session.health();
        let rows = health.seen.saturating_sub(alarm.id);
        // Scenes since it was raised, about: the state does not keep them. Rows that repeat are no scenes.
        let repeats = alarm.kind == AlarmKind::Frozen && rows < OPEN_SCENES;
        let later = match time {
            None if !repeats => (rows as f64 / health.rows_per_scene.max(1.0)) as u64,
            _ => 0,
        };
        let open = is_open(alarm.kind.name(), later);
        Self {
            time,
            kind: alarm.kind.name(),
            text: alarm.text(session.head().classes()),
            advice: alarm.kind.advice(),
            since: alarm.since,
            strength: alarm.strength,
            evidence: alarm.evidence,
            open,
            lasts: open && alarm.kind == AlarmKind::Frozen,
            scenes: health.scenes.saturating_sub(later),
        }
    }

    /// No row came for some time.
    pub fn silent(time: f64, seconds: f64, next_id: u64) -> Self {
        Self {
            time: Some(time),
            kind: "silent",
            text: format!("no row came for {seconds:.0} seconds"),
            advice: "the feed is dead: look whether the camera, the network and the sender are up",
            since: next_id,
            strength: seconds,
            evidence: 0.0,
            open: true,
            lasts: true,
            scenes: 0,
        }
    }
}

/// Whether an alarm that nobody acknowledged still asks for attention, this many scenes later, of which there were rows.
fn is_open(kind: &str, later: u64) -> bool {
    match kind {
        "silent" => false,
        kind if kind == AlarmKind::Frozen.name() => later < 2,
        kind if kind == AlarmKind::Quality.name() => true,
        _ => later < OPEN_SCENES,
    }
}

/// The last alarms of a stream.
#[derive(Default)]
pub struct Alarms {
    list: VecDeque<AlarmView>,
}

impl Alarms {
    /// The alarms that a session remembers. Those at rows before `known` were acknowledged.
    pub fn of(session: &Session, known: u64) -> Self {
        let mut alarms = Self::default();
        for alarm in session.alarms() {
            let view = AlarmView::of(&alarm, session, None);
            alarms.raise(AlarmView { open: view.open && alarm.id >= known, ..view });
        }
        alarms
    }

    pub fn raise(&mut self, alarm: AlarmView) {
        // Pictures that have changed once more are no longer those that were hard to read: the new alarm tells how they are.
        if [AlarmKind::Quality.name(), AlarmKind::Domain.name()].contains(&alarm.kind) {
            let before = self.list.iter_mut().filter(|before| before.kind == AlarmKind::Quality.name());
            before.for_each(|before| before.open = false);
        }
        if self.list.len() == KEPT {
            self.list.pop_front();
        }
        self.list.push_back(alarm);
    }

    /// Rows came: closes alarms that are over.
    pub fn rows_came(&mut self, scenes: u64) {
        for alarm in self.list.iter_mut().filter(|alarm| alarm.open || alarm.lasts) {
            let goes_on = is_open(alarm.kind, scenes.saturating_sub(alarm.scenes));
            (alarm.open, alarm.lasts) = (alarm.open && goes_on, alarm.lasts && goes_on);
        }
    }

    /// Closes all alarms, because somebody has acknowledged them. Returns how many were open.
    pub fn acknowledge(&mut self) -> usize {
        let open = self.list.iter_mut().filter(|alarm| alarm.open);
        open.map(|alarm| alarm.open = false).count()
    }

    /// The alarms, oldest first.
    pub fn list(&self) -> Vec<AlarmView> {
        self.list.iter().cloned().collect()
    }
}

/// Notices that requests have ceased to come.
pub struct Pulse {
    /// A fixed time, where one is set.
    fixed: Option<Duration>,
    /// The last request; before the first one the start, if rows came before it.
    last: Option<Instant>,
    /// Rows before the start.
    before: u64,
    /// The longest pause among the latest requests, and among the requests before them.
    longest: [Duration; 2],
    requests: u64,
    told: bool,
}

impl Pulse {
    /// `before` rows came before the start: if there are any, silence counts from now on.
    pub fn new(fixed: Option<Duration>, before: u64) -> Self {
        Self::new_at(Instant::now(), fixed, before)
    }

    fn new_at(now: Instant, fixed: Option<Duration>, before: u64) -> Self {
        let last = (before > 0).then_some(now);
        Self { fixed, last, before, longest: [Duration::ZERO; 2], requests: 0, told: false }
    }

    /// A request came.
    pub fn beat(&mut self) {
        self.beat_at(Instant::now());
    }

    fn beat_at(&mut self, now: Instant) {
        // How long the first request after a start takes says nothing of the pauses between requests.
        if let Some(last) = self.last.filter(|_| self.requests > 0) {
            self.longest[0] = self.longest[0].max(now - last);
        }
        (self.last, self.told) = (Some(now), false);
        self.requests += 1;
        if self.requests.is_multiple_of(PAUSES) {
            self.longest = [Duration::ZERO, self.longest[0]];
        }
    }

    /// Time left until the stream counts as silent; `None` while that cannot be told, and once its silence was told.
    pub fn left(&self) -> Option<Duration> {
        self.left_at(Instant::now())
    }

    fn left_at(&self, now: Instant) -> Option<Duration> {
        let last = self.last.filter(|_| !self.told)?;
        let longest = self.longest[0].max(self.longest[1]);
        let learnt = match self.requests {
            0 => (self.before >= MIN_REQUESTS).then_some(SILENCE_AT_START),
            requests => (requests >= MIN_REQUESTS).then(|| SHORTEST_SILENCE.max(longest * TIMES_LONGEST)),
        };
        Some(self.fixed.or(learnt)?.saturating_sub(now - last))
    }

    /// Seconds without a request, if the stream has just become silent. Every silence is returned once.
    pub fn silence(&mut self) -> Option<f64> {
        self.left().filter(Duration::is_zero)?;
        self.told = true;
        self.last.map(|last| last.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_judged_by_the_pauses_before() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut pulse = Pulse::new(None, 0);
        assert_eq!(pulse.left_at(start), None, "nothing ever came");
        for i in 0..99 {
            pulse.beat_at(start + 20 * i * second);
            assert_eq!(pulse.left_at(start + 20 * i * second), None, "too few requests");
        }
        let now = start + 99 * 20 * second;
        pulse.beat_at(now);
        assert_eq!(pulse.left_at(now), Some(200 * second), "ten times the longest pause");
        assert_eq!(pulse.left_at(now + 150 * second), Some(50 * second));
        assert_eq!(pulse.left_at(now + 500 * second), Some(Duration::ZERO));
        let mut fixed = Pulse::new(Some(5 * second), 0);
        fixed.beat_at(start);
        assert_eq!(fixed.left_at(start + 2 * second), Some(3 * second));
        fixed.told = true;
        assert_eq!(fixed.left_at(start + 9 * second), None, "it is told once");
    }

    #[test]
    fn after_a_restart_silence_counts_from_the_start() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let fixed = Pulse::new_at(start, Some(5 * second), 1);
        assert_eq!(fixed.left_at(start + 2 * second), Some(3 * second));
        assert_eq!(Pulse::new_at(start, Some(5 * second), 0).left_at(start), None, "nothing ever came");
        assert_eq!(Pulse::new_at(start, None, 99).left_at(start), None, "too few rows");
        let mut pulse = Pulse::new_at(start, None, 100);
        assert_eq!(pulse.left_at(start + 60 * second), Some(540 * second));
        // The wait for the first request is no pause between requests.
        for i in 0..100 {
            pulse.beat_at(start + (500 + i) * second);
        }
        assert_eq!(pulse.left_at(start + 599 * second), Some(60 * second));
    }

    #[test]
    fn alarms_close_when_they_are_over_or_known() {
        let mut alarms = Alarms::default();
        alarms.raise(AlarmView::silent(0.0, 60.0, 7));
        alarms.raise(AlarmView { kind: "mix", scenes: 100, ..AlarmView::silent(0.0, 1.0, 7) });
        alarms.raise(AlarmView { kind: "frozen", scenes: 100, ..AlarmView::silent(0.0, 1.0, 7) });
        let open = |alarms: &Alarms| alarms.list.iter().map(|a| a.open).collect::<Vec<_>>();
        alarms.rows_came(100);
        assert_eq!(open(&alarms), [false, true, true]);
        alarms.rows_came(102);
        assert_eq!(open(&alarms), [false, true, false]);
        assert_eq!((alarms.acknowledge(), alarms.acknowledge()), (1, 0));
        // Whoever acknowledges a dead feed has not mended it: that lasts until rows come, and other ones.
        let mut alarms = Alarms::default();
        alarms.raise(AlarmView { kind: "frozen", scenes: 100, ..AlarmView::silent(0.0, 1.0, 7) });
        alarms.acknowledge();
        alarms.rows_came(100);
        assert!(!alarms.list[0].open && alarms.list[0].lasts);
        alarms.rows_came(102);
        assert!(!alarms.list[0].open && !alarms.list[0].lasts);
    }

    #[test]
    fn a_covered_lens_stays_open_until_somebody_knows_or_the_pictures_change_again() {
        let mut alarms = Alarms::default();
        let of = |kind, scenes| AlarmView { kind, scenes, ..AlarmView::silent(0.0, 1.0, 7) };
        let open = |alarms: &Alarms| alarms.list.iter().map(|a| a.open).collect::<Vec<_>>();
        alarms.raise(of("quality", 100));
        alarms.raise(of("mix", 100));
        alarms.rows_came(100 + OPEN_SCENES);
        assert_eq!(
            open(&alarms),
            [true, false],
            "classes that are frequent now are the new normal, a covered lens is not"
        );
        alarms.raise(of("mix", 5000));
        assert!(open(&alarms)[0], "other classes uncover nothing");
        alarms.raise(of("domain", 6000));
        assert_eq!(open(&alarms), [false, false, true, true]);
        alarms.raise(of("quality", 7000));
        alarms.raise(of("quality", 8000));
        assert_eq!(open(&alarms), [false, false, true, true, false, true]);
        assert_eq!(alarms.acknowledge(), 3);
        alarms.rows_came(9000);
        assert!(!open(&alarms).contains(&true));
    }
}
