//! What a stream's owner publishes, and all that reads are answered from. Its lock is never held while learning.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use ultta::internal::Ece;
use ultta::{Health, Row, Session};
use utoipa::ToSchema;

/// Points of the time axis that are kept: half an hour at one a second.
const POINTS: usize = 1800;
/// Events that are kept.
const EVENTS: usize = 256;
/// Recent answers that the class mix is taken over.
const MIX: usize = 1024;
/// Bins of the reliability diagram.
const BINS: usize = 10;
/// Latencies that a point's quantiles are taken over, at most.
const LATENCIES: usize = 4096;

/// Where a stream stands.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// Whether samples teach.
    pub learning: bool,
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
    #[schema(value_type = Object)]
    pub health: Health,
    /// Of a shadow: share of rows that it answered as the stream it shadows.
    pub shadow_agreement: Option<f64>,
    /// Of a shadow: rows that it was not shown because its queue was full.
    pub shadow_dropped: u64,
    /// Under `interval`: the longest time so far that a record waited for the disk, in milliseconds.
    pub sync_lag_ms: f64,
}

/// One point of the time axis: about a second of traffic.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    /// Samples observed so far.
    pub seen: u64,
    /// Rows in this point.
    pub rows: u64,
    /// Share answered as zero-shot does.
    pub agreement: f64,
    /// Mean calibrated probability of the answers.
    pub confidence: f64,
    /// The same of the zero-shot answers.
    pub confidence_zero_shot: f64,
    /// Share of the rows that the gate admitted.
    pub admitted: f64,
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
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Event {
    /// Seconds since 1970.
    pub time: f64,
    /// `guard`, `frozen`, `snapshot`, `rolled_back`, …
    pub kind: &'static str,
    /// What happened.
    pub text: String,
}

/// Answers that labels arrived for, by confidence.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
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
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
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

/// Published things of one stream.
pub struct Board {
    inner: Mutex<Inner>,
}

struct Inner {
    status: Status,
    session: Arc<Session>,
    session_generation: u64,
    /// Whether a reader has requested a newer session, which is on its way.
    requested: bool,
    mix: VecDeque<u32>,
    counts: Vec<u32>,
    points: VecDeque<Point>,
    events: VecDeque<Event>,
    adapted: Sums,
    frozen: Sums,
    point: Growing,
}

/// The point that is being gathered.
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
    /// Recent answers per class.
    pub counts: Vec<u32>,
    /// Number of recent answers.
    pub total: usize,
}

impl Board {
    pub fn new(status: Status, session: Arc<Session>) -> Self {
        let counts = vec![0; session.head().n_classes()];
        let inner = Inner {
            session_generation: status.generation,
            status,
            session,
            requested: false,
            mix: VecDeque::new(),
            counts,
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

    pub fn status(&self) -> Status {
        self.lock().status.clone()
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

    pub fn publish(&self, session: Arc<Session>, generation: u64) {
        let mut inner = self.lock();
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
                inner.counts[oldest as usize] -= 1;
            }
            inner.mix.push_back(row.label as u32);
            inner.counts[row.label] += 1;
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
        if health.guard_fired > inner.status.health.guard_fired {
            let text = format!("the collapse guard fired; now {:?}", health.standing);
            push(&mut inner.events, Event { time: now, kind: "guard", text }, EVENTS);
        }
        if inner.point.since.elapsed() >= Duration::from_secs(1) && inner.point.rows > 0 {
            let mut done = std::mem::replace(&mut inner.point, Growing::new());
            let n = done.rows as f64;
            done.latencies.sort_unstable_by(f32::total_cmp);
            let quantile = |q: f64| match done.latencies.len() {
                0 => 0.0,
                len => f64::from(done.latencies[((len - 1) as f64 * q).round() as usize]) * 1e3,
            };
            let point = Point {
                time: now,
                seen: health.seen,
                rows: done.rows,
                agreement: done.agreed as f64 / n,
                confidence: done.confidence / n,
                confidence_zero_shot: done.confidence_zero_shot / n,
                admitted: done.admitted as f64 / n,
                prior_kl: health.prior_kl,
                movement_max: health.movement_max,
                tau_pred: health.tau_pred,
                tau_cal: health.tau_cal,
                guard_fired: health.guard_fired,
                latency_p50_ms: quantile(0.5),
                latency_p99_ms: quantile(0.99),
            };
            push(&mut inner.points, point, POINTS);
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

    /// The state was replaced: what was gathered belongs to another one.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.mix.clear();
        inner.counts.fill(0);
        (inner.adapted, inner.frozen) = Default::default();
    }

    pub fn mix(&self) -> Mix {
        let inner = self.lock();
        Mix { counts: inner.counts.clone(), total: inner.mix.len() }
    }

    pub fn history(&self) -> (Vec<Point>, Vec<Event>) {
        let inner = self.lock();
        (inner.points.iter().copied().collect(), inner.events.iter().cloned().collect())
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
mod tests {
    use super::*;

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
