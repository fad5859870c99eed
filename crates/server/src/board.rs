//! What a stream's owner publishes, and all that reads are answered from. Its lock is never held while learning.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use ultta::internal::Ece;
use ultta::{Health, Row, Session, Standing};

use crate::alarms::{AlarmView, Alarms};
use crate::story::{ClassPoint, Stories};

/// Points of the time axis that are kept: half an hour at one a second.
const POINTS: usize = 1800;
/// Events that are kept.
const EVENTS: usize = 256;
/// Recent answers that the class mix is taken over.
const MIX: usize = 1024;
/// Seconds that rows per second are taken over.
const RATE_SECONDS: f64 = 30.0;
/// Bins of the reliability diagram.
const BINS: usize = 10;
/// Latencies that a point's quantiles are taken over, at most.
const LATENCIES: usize = 4096;

/// Where a stream stands.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Status {
    /// Whether samples teach.
    pub learning: bool,
    /// Whether the stream is watched for changes (`alarms.enabled`).
    pub watched: bool,
    /// While nothing changes, one false alarm at most in so many scenes is promised (`alarms.scenes`).
    pub alarm_scenes: f64,
    /// Times the state was replaced (reset, roll back, merge). Sample ids count within a generation.
    pub generation: u64,
    /// Why nothing is learnt although it should be; absent while all is well.
    pub degraded: Option<String>,
    /// What was lost on the disk, until someone acknowledges it; absent while nothing was.
    pub damage: Option<String>,
    /// Number of the next log record.
    pub log_next: u64,
    /// Bytes of log since the last base state.
    pub log_bytes: u64,
    /// What the session says about itself.
    #[cfg_attr(test, schema(value_type = Object))]
    pub health: Health,
    /// Of a shadow: share of rows that it answered as the stream it shadows.
    pub shadow_agreement: Option<f64>,
    /// Of a shadow: rows that it was not shown because too much waited for it already.
    pub shadow_dropped: u64,
    /// When the last row came, in seconds since 1970; absent if none has since the server started.
    pub last_row: Option<f64>,
    /// Seconds since the last row, or since the server opened the stream if none has come since.
    pub silence_seconds: f64,
    /// Rows per second over the last half minute.
    pub rows_per_second: f64,
    /// Under `interval`: the longest time so far that a record waited for the disk, in milliseconds.
    pub sync_lag_ms: f64,
}

/// One point of the time axis: about a second of traffic.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    /// Samples observed so far.
    pub seen: u64,
    /// Rows in this point.
    pub rows: u64,
    /// Share answered as zero-shot does.
    pub agreement: f64,
    /// Share answered as zero-shot does, over the recent scenes that health tells of.
    pub agreement_recent: f64,
    /// Mean calibrated probability of the answers.
    pub confidence: f64,
    /// Mean probability of the zero-shot answers.
    pub confidence_zero_shot: f64,
    /// Estimated accuracy of recent answers: `top1`, `low`, `high`.
    #[cfg_attr(test, schema(value_type = Object))]
    pub estimate: ultta::Estimate,
    /// Estimated accuracy of recent zero-shot answers: `top1`, `low`, `high`.
    #[cfg_attr(test, schema(value_type = Object))]
    pub estimate_zero_shot: ultta::Estimate,
    /// Share of the rows that the gate admitted.
    pub admitted: f64,
    /// Share that the gate admitted, over the recent scenes that health tells of.
    pub admitted_recent: f64,
    /// KL of the class prior.
    pub prior_kl: f64,
    /// Largest prototype movement.
    pub movement_max: f64,
    /// Temperature multiplier of the answer.
    pub tau_pred: f64,
    /// Temperature multiplier of the calibrated probabilities.
    pub tau_cal: f64,
    /// Times the guard has fired so far.
    pub guard_fired: u64,
    /// Median time from arrival to answer, in milliseconds.
    pub latency_p50_ms: f64,
    /// 99th percentile of the same.
    pub latency_p99_ms: f64,
}

/// Something that happened to a stream.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Event {
    /// Seconds since 1970.
    pub time: f64,
    /// `guard`, `frozen`, `snapshot`, `rolled_back`, …
    pub kind: &'static str,
    /// What happened.
    pub text: String,
}

/// Answers that labels arrived for, by confidence.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Reliability {
    /// Labels.
    pub labels: u64,
    /// Share answered right.
    pub top1: f64,
    /// Expected calibration error over ten bins.
    pub ece: f64,
    /// Per bin of confidence: labels, mean confidence, share right.
    pub bins: Vec<Bin>,
}

/// A bin of a reliability diagram.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Bin {
    /// Labels in the bin.
    pub labels: u64,
    /// Mean confidence.
    pub confidence: f64,
    /// Share right.
    pub right: f64,
}

#[derive(Clone, Debug)]
struct Sums(Ece);

impl Default for Sums {
    fn default() -> Self {
        Sums(Ece::new(BINS))
    }
}

impl Sums {
    fn add(&mut self, prob: f32, right: bool) {
        self.0.push(f64::from(prob), right);
    }

    fn reliability(&self) -> Reliability {
        let bins = self.0.bins();
        let mean = |sum: f64, n: u64| sum / n.max(1) as f64;
        let labels = bins.iter().map(|bin| bin.n).sum();
        let right: u64 = bins.iter().map(|bin| bin.right).sum();
        Reliability {
            labels,
            top1: mean(right as f64, labels),
            ece: self.0.value(),
            bins: bins
                .iter()
                .map(|bin| Bin {
                    labels: bin.n,
                    confidence: mean(bin.prob, bin.n),
                    right: mean(bin.right as f64, bin.n),
                })
                .collect(),
        }
    }
}

/// What is published of one stream.
pub struct Board {
    inner: Mutex<Inner>,
}

struct Inner {
    status: Status,
    session: Arc<Session>,
    session_generation: u64,
    /// Whether a reader has requested a newer session, which is on its way.
    requested: bool,
    mix: VecDeque<(u32, f32)>,
    /// Per class: recent answers, and the sum of their probabilities.
    counts: Vec<(u32, f64)>,
    stories: Stories,
    alarms: Alarms,
    last_row: Option<f64>,
    /// When the stream was opened.
    opened: f64,
    points: VecDeque<Point>,
    events: VecDeque<Event>,
    adapted: Sums,
    frozen: Sums,
    point: Growing,
}

/// The point that is being gathered.
#[derive(Clone)]
struct Growing {
    since: Instant,
    rows: u64,
    agreed: u64,
    admitted: u64,
    confidence: f64,
    confidence_zero_shot: f64,
    latencies: Vec<f32>,
}

impl Growing {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            rows: 0,
            agreed: 0,
            admitted: 0,
            confidence: 0.0,
            confidence_zero_shot: 0.0,
            latencies: Vec::new(),
        }
    }
}

impl Growing {
    /// The finished point.
    fn finished(mut self, now: f64, health: &Health) -> Point {
        let n = self.rows.max(1) as f64;
        self.latencies.sort_unstable_by(f32::total_cmp);
        let quantile = |q: f64| match self.latencies.len() {
            0 => 0.0,
            len => f64::from(self.latencies[((len - 1) as f64 * q).round() as usize]) * 1e3,
        };
        Point {
            time: now,
            seen: health.seen,
            rows: self.rows,
            agreement: self.agreed as f64 / n,
            agreement_recent: 1.0 - health.flip_share,
            confidence: self.confidence / n,
            confidence_zero_shot: self.confidence_zero_shot / n,
            estimate: health.estimate_recent,
            estimate_zero_shot: health.estimate_recent_zero_shot,
            admitted: self.admitted as f64 / n,
            admitted_recent: health.admitted_share,
            prior_kl: health.prior_kl,
            movement_max: health.movement_max,
            tau_pred: health.tau_pred,
            tau_cal: health.tau_cal,
            guard_fired: health.guard_fired,
            latency_p50_ms: quantile(0.5),
            latency_p99_ms: quantile(0.99),
        }
    }
}

impl Inner {
    /// Seconds since the last row, or since the stream was opened.
    fn silence(&self, now: f64) -> f64 {
        (now - self.last_row.unwrap_or(self.opened)).max(0.0)
    }

    /// Rows per second over the last half minute, or since the first point or the start if that is later.
    fn rows_per_second(&self, now: f64) -> f64 {
        let since = now - RATE_SECONDS;
        let recent = self.points.iter().rev().take_while(|point| point.time > since);
        let growing = if self.last_row.is_some_and(|last| last > since) { self.point.rows } else { 0 };
        let rows = growing + recent.map(|point| point.rows).sum::<u64>();
        let begun = self.points.front().map_or(self.opened, |point| point.time - 1.0);
        rows as f64 / (now - begun).clamp(1.0, RATE_SECONDS)
    }
}

/// A published session.
pub struct Published {
    pub session: Arc<Session>,
    /// The generation it belongs to.
    pub generation: u64,
    /// Whether the reader is to request a newer one.
    pub stale: bool,
}

/// What the page's class table shows.
pub struct Mix {
    /// Recent answers per class, and the sum of their probabilities.
    pub counts: Vec<(u32, f64)>,
    /// Number of recent answers.
    pub total: usize,
}

impl Board {
    /// Alarms at rows before `known` were acknowledged. The stream is opened `now`.
    pub fn new(status: Status, session: Arc<Session>, known: u64, now: f64) -> Self {
        let counts = vec![(0, 0.0); session.head().n_classes()];
        let alarms = Alarms::of(&session, known);
        let inner = Inner {
            session_generation: status.generation,
            status,
            session,
            requested: false,
            mix: VecDeque::new(),
            counts,
            stories: Stories::default(),
            alarms,
            last_row: None,
            opened: now,
            points: VecDeque::new(),
            events: VecDeque::new(),
            adapted: Sums::default(),
            frozen: Sums::default(),
            point: Growing::new(),
        };
        Self { inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the stream stands at this time.
    pub fn status(&self, now: f64) -> Status {
        let inner = self.lock();
        let (last_row, silence_seconds) = (inner.last_row, inner.silence(now));
        let rows_per_second = inner.rows_per_second(now);
        Status { last_row, silence_seconds, rows_per_second, ..inner.status.clone() }
    }

    /// When the last row came, and the seconds since then or since the stream was opened.
    pub fn silence(&self, now: f64) -> (Option<f64>, f64) {
        let inner = self.lock();
        (inner.last_row, inner.silence(now))
    }

    pub fn set_status(&self, status: Status) {
        self.lock().status = status;
    }

    /// The published session. If it is behind and no reader has requested a newer one yet, the caller is to do so.
    pub fn session(&self) -> Published {
        let mut inner = self.lock();
        let (status, session) = (&inner.status, &inner.session);
        let behind = session.next_id() != status.health.seen || session.learning() != status.learning;
        let stale = behind && !inner.requested;
        inner.requested |= stale;
        Published { session: inner.session.clone(), generation: inner.session_generation, stale }
    }

    /// Takes back the request for a newer session: none is on its way after all.
    pub fn withdraw_request(&self) {
        self.lock().requested = false;
    }

    pub fn publish(&self, session: Arc<Session>, generation: u64, now: f64) {
        // What takes long is done without the lock.
        let due = {
            let inner = self.lock();
            inner.stories.is_due(now) && !inner.mix.is_empty()
        };
        let drift = due.then(|| (session.per_class(), session.class_estimates()));
        let mut inner = self.lock();
        let inner = &mut *inner;
        if let Some((drift, estimates)) = drift {
            inner.stories.add(now, (&drift, &estimates), &inner.counts, inner.mix.len());
        }
        inner.session = session;
        inner.session_generation = generation;
        inner.requested = false;
    }

    /// Notes answers: the class mix, and the point that is being gathered.
    pub fn note(&self, rows: &[Row], latencies: impl Iterator<Item = Duration>, status: Status, now: f64) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        for row in rows {
            if inner.mix.len() == MIX
                && let Some(oldest) = inner.mix.pop_front()
            {
                let (n, sum) = &mut inner.counts[oldest.0 as usize];
                *n -= 1;
                *sum = if *n == 0 { 0.0 } else { *sum - f64::from(oldest.1) };
            }
            inner.mix.push_back((row.label as u32, row.prob));
            let (n, sum) = &mut inner.counts[row.label];
            *n += 1;
            *sum += f64::from(row.prob);
            let point = &mut inner.point;
            point.rows += 1;
            point.agreed += u64::from(row.label == row.zero_shot.label);
            point.admitted += u64::from(row.admitted);
            point.confidence += f64::from(row.prob);
            point.confidence_zero_shot += f64::from(row.zero_shot.prob);
        }
        for latency in latencies {
            if inner.point.latencies.len() < LATENCIES {
                inner.point.latencies.push(latency.as_secs_f32());
            }
        }
        let health = &status.health;
        inner.last_row = Some(now);
        inner.alarms.rows_came(health.scenes);
        if health.guard_fired > inner.status.health.guard_fired {
            let outcome = match health.standing {
                Standing::ZeroShot => "the frozen model answers alone",
                Standing::Restored => "the last healthy state was restored",
                Standing::Healthy => "all is well again",
            };
            let text = format!("the collapse guard fired; {outcome}");
            push(&mut inner.events, Event { time: now, kind: "guard", text }, EVENTS);
        }
        if inner.point.since.elapsed() >= Duration::from_secs(1) && inner.point.rows > 0 {
            let done = std::mem::replace(&mut inner.point, Growing::new());
            push(&mut inner.points, done.finished(now, health), POINTS);
        }
        inner.status = status;
    }

    /// Notes a label: what was answered, and what zero-shot would have been.
    pub fn labelled(&self, label: usize, adapted: (u32, f32), frozen: (u32, f32)) {
        let mut inner = self.lock();
        inner.adapted.add(adapted.1, adapted.0 as usize == label);
        inner.frozen.add(frozen.1, frozen.0 as usize == label);
    }

    pub fn event(&self, time: f64, kind: &'static str, text: impl Into<String>) {
        push(&mut self.lock().events, Event { time, kind, text: text.into() }, EVENTS);
    }

    /// The state was replaced: forgets what was gathered about the old one.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.mix.clear();
        inner.counts.fill((0, 0.0));
        inner.stories = Stories::default();
        inner.alarms = Alarms::default();
        (inner.adapted, inner.frozen) = Default::default();
    }

    pub fn mix(&self) -> Mix {
        let inner = self.lock();
        Mix { counts: inner.counts.clone(), total: inner.mix.len() }
    }

    /// Points, of which the last may still grow, and events.
    pub fn history(&self, now: f64) -> (Vec<Point>, Vec<Event>) {
        let inner = self.lock();
        let mut points: Vec<Point> = inner.points.iter().copied().collect();
        if inner.point.rows > 0 {
            points.push(inner.point.clone().finished(inner.last_row.unwrap_or(now), &inner.status.health));
        }
        (points, inner.events.iter().cloned().collect())
    }

    /// Takes in an alarm, which is an event, too.
    pub fn raise(&self, alarm: AlarmView, time: f64) {
        let mut inner = self.lock();
        let text = format!("{}: {}; {}", alarm.kind, alarm.text, alarm.advice);
        push(&mut inner.events, Event { time, kind: "alarm", text }, EVENTS);
        inner.alarms.raise(alarm);
    }

    /// Alarms, oldest first.
    pub fn alarms(&self) -> Vec<AlarmView> {
        self.lock().alarms.list()
    }

    /// Closes all alarms. Returns how many were open.
    pub fn acknowledge_alarms(&self) -> usize {
        self.lock().alarms.acknowledge()
    }

    /// The story of a class.
    pub fn story(&self, class: usize) -> Vec<ClassPoint> {
        self.lock().stories.of(class)
    }

    /// Reliability of adapted and of zero-shot answers.
    pub fn reliability(&self) -> (Reliability, Reliability) {
        let inner = self.lock();
        (inner.adapted.reliability(), inner.frozen.reliability())
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ultta::{Config, Head};

    fn session() -> Session {
        let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0).unwrap();
        Session::new(head, &Config::default()).unwrap()
    }

    /// The status of a stream that has just begun.
    pub fn status() -> Status {
        Status {
            learning: true,
            watched: true,
            alarm_scenes: 1e5,
            generation: 0,
            degraded: None,
            damage: None,
            log_next: 0,
            log_bytes: 0,
            health: session().health(),
            shadow_agreement: None,
            shadow_dropped: 0,
            last_row: None,
            silence_seconds: 0.0,
            rows_per_second: 0.0,
            sync_lag_ms: 0.0,
        }
    }

    #[test]
    fn a_burst_shorter_than_a_point_is_seen() {
        let mut session = session();
        let board = Board::new(status(), Arc::new(session.clone()), 0, 4.0);
        assert_eq!(board.status(5.0).silence_seconds, 1.0, "since it was opened");
        assert_eq!((board.history(5.0).0.len(), board.status(5.0).last_row), (0, None));
        let step = session.step(&ultta::Features::new(&[0.6f32, 0.8][..], 2).unwrap()).unwrap();
        board.note(&step.rows, std::iter::empty(), Status { health: step.health, ..status() }, 10.0);
        let (points, _) = board.history(12.0);
        assert_eq!((points.len(), points[0].rows, points[0].time), (1, 1, 10.0));
        let now = board.status(12.0);
        assert_eq!(
            (now.last_row, now.rows_per_second),
            (Some(10.0), 1.0 / 8.0),
            "a row in 8 s since the start"
        );
        assert_eq!(now.silence_seconds, 2.0);
        assert_eq!(board.status(100.0).rows_per_second, 0.0);
    }

    #[test]
    fn reliability_is_what_was_right() {
        let mut sums = Sums::default();
        for right in [true, true, true, false] {
            sums.add(0.75, right);
        }
        sums.add(1.0, true);
        let found = sums.reliability();
        assert_eq!((found.labels, found.bins[7].labels, found.bins[9].labels), (5, 4, 1));
        assert!((found.top1 - 0.8).abs() < 1e-12 && found.ece.abs() < 1e-9, "{found:?}");
    }
}
