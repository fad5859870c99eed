//! Prometheus metrics: requests, latency per stage, and what operators watch of every stream.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use ultta::Standing;

use crate::board::Status;
use crate::fleet::GroupView;
use crate::verdict::{Level, Verdict};

/// Upper ends of the bins of latencies, in seconds.
const BUCKETS: [f64; 14] =
    [2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.0, 10.0];

/// What one request goes through.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Reading and parsing the body.
    Parse,
    /// Encoding pictures.
    Encode,
    /// Waiting for the stream.
    Queue,
    /// Writing the log.
    Log,
    /// Answering and learning.
    Step,
}

/// All metrics of a server.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    stage_seconds: HistogramVec,
    rows: IntCounterVec,
    alarms: IntCounterVec,
    streams: Vec<StreamGauge>,
    groups: Vec<(GaugeVec, fn(&GroupView) -> f64)>,
    queue: IntGaugeVec,
    verdicts: IntGaugeVec,
    silence: GaugeVec,
}

struct StreamGauge {
    name: &'static str,
    gauge: GaugeVec,
    value: fn(&Status) -> f64,
}

/// The stages of one stream, looked up once.
#[derive(Clone)]
pub struct Stages {
    stages: Arc<[Histogram; 5]>,
    /// Rows answered.
    pub rows: prometheus::IntCounter,
    alarms: IntCounterVec,
    stream: Arc<str>,
}

impl Stages {
    pub fn observe(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time.as_secs_f64());
    }

    /// Counts an alarm.
    pub fn alarm(&self, kind: &str) {
        self.alarms.with_label_values(&[&*self.stream, kind]).inc();
    }
}

/// Kinds of alarms.
const KINDS: [&str; 5] = ["domain", "mix", "quality", "frozen", "silent"];

/// The gauge of damage. It also tells of streams that could not be opened.
const DAMAGED: &str = "ultta_damaged";

/// A number that nothing is known about before the first row. Gauges without a number are left out.
fn known(status: &Status, value: f64) -> f64 {
    if status.health.seen > 0 { value } else { f64::NAN }
}

/// Name, meaning, and how the value is read from a stream's status.
const STREAM_GAUGES: [(&str, &str, fn(&Status) -> f64); 43] = [
    ("ultta_admitted_share", "Share of recent samples that the gate admitted", |s| s.health.admitted_share),
    ("ultta_flip_share", "Share of recent samples answered differently from zero-shot", |s| {
        s.health.flip_share
    }),
    ("ultta_flips", "Samples answered differently from zero-shot since the start", |s| s.health.flips as f64),
    ("ultta_unknown_share", "Running share of samples that fit no class", |s| s.health.unknown_share),
    ("ultta_prior_kl", "KL of the class prior to where it started, in nats", |s| s.health.prior_kl),
    ("ultta_movement_max", "Largest prototype movement over the classes", |s| s.health.movement_max),
    ("ultta_movement_mean", "Mean prototype movement", |s| s.health.movement_mean),
    ("ultta_tau_pred", "Temperature multiplier of the answer", |s| s.health.tau_pred),
    ("ultta_tau_cal", "Temperature multiplier of the calibrated probabilities", |s| s.health.tau_cal),
    ("ultta_evidence_weight", "How much the evidence from the stream says", |s| s.health.evidence_weight),
    ("ultta_effective_classes", "Effective number of classes among recent answers", |s| {
        s.health.effective_classes
    }),
    (
        "ultta_effective_classes_zero_shot",
        "Effective number of classes among recent zero-shot answers",
        |s| s.health.effective_classes_zero_shot,
    ),
    ("ultta_standing", "0 healthy, 1 restored to the last healthy state, 2 zero-shot answers alone", |s| {
        match s.health.standing {
            Standing::Healthy => 0.0,
            Standing::Restored => 1.0,
            Standing::ZeroShot => 2.0,
        }
    }),
    ("ultta_restarts", "Times the method began anew because the stream had changed", |s| {
        s.health.restarts as f64
    }),
    (
        "ultta_garbage",
        "Samples that look like nothing since the start (noise, opposites): they taught nothing",
        |s| s.health.garbage as f64,
    ),
    (
        "ultta_alarms",
        "Alarms of the session since the start of the state, acknowledged ones too; without silence, which only the server \
         notices (ultta_alarms_total has it)",
        |s| s.health.alarms as f64,
    ),
    ("ultta_alarms_ready", "1 once enough scenes were seen to notice a change", |s| {
        f64::from(u8::from(s.health.alarms_ready))
    }),
    ("ultta_rows_per_second", "Rows per second over the last half minute", |s| s.rows_per_second),
    ("ultta_estimated_top1", "Estimated accuracy of the answers", |s| known(s, s.health.estimate.top1)),
    ("ultta_estimated_top1_low", "Lower end of its interval", |s| known(s, s.health.estimate.low)),
    ("ultta_estimated_top1_high", "Upper end of its interval", |s| known(s, s.health.estimate.high)),
    ("ultta_estimated_zero_shot_top1", "Estimated accuracy of the zero-shot answers", |s| {
        known(s, s.health.estimate_zero_shot.top1)
    }),
    ("ultta_estimated_zero_shot_top1_low", "Lower end of its interval", |s| {
        known(s, s.health.estimate_zero_shot.low)
    }),
    ("ultta_estimated_zero_shot_top1_high", "Upper end of its interval", |s| {
        known(s, s.health.estimate_zero_shot.high)
    }),
    ("ultta_estimated_recent_top1", "Estimated accuracy of recent answers", |s| {
        known(s, s.health.estimate_recent.top1)
    }),
    ("ultta_estimated_recent_top1_low", "Lower end of its interval", |s| {
        known(s, s.health.estimate_recent.low)
    }),
    ("ultta_estimated_recent_top1_high", "Upper end of its interval", |s| {
        known(s, s.health.estimate_recent.high)
    }),
    ("ultta_estimated_recent_zero_shot_top1", "Estimated accuracy of recent zero-shot answers", |s| {
        known(s, s.health.estimate_recent_zero_shot.top1)
    }),
    ("ultta_estimated_recent_zero_shot_top1_low", "Lower end of its interval", |s| {
        known(s, s.health.estimate_recent_zero_shot.low)
    }),
    ("ultta_estimated_recent_zero_shot_top1_high", "Upper end of its interval", |s| {
        known(s, s.health.estimate_recent_zero_shot.high)
    }),
    ("ultta_estimate_labels", "Labels that the estimates rest on", |s| s.health.estimate_labels as f64),
    ("ultta_coverage_promise", "1 while labels back the coverage of the sets up", |s| {
        f64::from(u8::from(s.health.coverage_promise))
    }),
    ("ultta_coverage_held", "Share of labels that the set of their sample held", |s| s.health.coverage_held),
    ("ultta_set_size", "Mean number of classes of recent sets", |s| s.health.set_size),
    ("ultta_guard_fired", "Times the collapse guard fired", |s| s.health.guard_fired as f64),
    ("ultta_seen", "Samples observed since the start of the state", |s| s.health.seen as f64),
    ("ultta_state_bytes", "Bytes a stream carries from sample to sample", |s| s.health.state_bytes as f64),
    ("ultta_log_bytes", "Bytes of log since the last base state", |s| s.log_bytes as f64),
    ("ultta_sync_lag_seconds", "Longest time so far that a log record waited for the disk", |s| {
        s.sync_lag_ms / 1e3
    }),
    ("ultta_learning", "1 while samples teach, 0 while frozen", |s| f64::from(u8::from(s.learning))),
    (DAMAGED, "1 while something was lost on the disk and nobody has acknowledged it", |s| {
        f64::from(u8::from(s.damage.is_some()))
    }),
    ("ultta_degraded", "1 while the disk does not take the log and nothing is learnt", |s| {
        f64::from(u8::from(s.degraded.is_some()))
    }),
    ("ultta_generation", "Times the state was replaced", |s| s.generation as f64),
];

/// What is told of every group.
const GROUP_GAUGES: [(&str, &str, fn(&GroupView) -> f64); 7] = [
    ("ultta_group_connected", "Whether the group can be reached: 1 or 0", |v| f64::from(v.trouble.is_none())),
    ("ultta_group_members", "Members that were heard of", |v| v.members.len() as f64),
    ("ultta_group_given_deltas", "Deltas given since the server started", |v| v.given.deltas as f64),
    ("ultta_group_given_bytes", "Their bytes", |v| v.given.bytes as f64),
    ("ultta_group_taken_deltas", "Deltas taken since the server started", |v| v.taken.deltas as f64),
    ("ultta_group_taken_bytes", "Their bytes", |v| v.taken.bytes as f64),
    ("ultta_group_waiting_samples", "Samples learnt from and not given yet", |v| {
        v.own.iter().map(|own| own.waiting as f64).sum()
    }),
];

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let seconds = |name: &str, help: &str, labels: &[&str]| -> Result<HistogramVec, prometheus::Error> {
            let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            let histogram = HistogramVec::new(options, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let request_seconds = seconds("ultta_request_seconds", "Time to answer a request", &["route"])?;
        let stage_seconds =
            seconds("ultta_stage_seconds", "Time that requests spend in each stage", &["stream", "stage"])?;
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let requests = counter("ultta_requests_total", "Requests answered", &["route", "status"])?;
        let rows = counter("ultta_rows_total", "Rows observed", &["stream"])?;
        let alarms =
            counter("ultta_alarms_total", "Alarms raised since the server started", &["stream", "kind"])?;
        let queue =
            IntGaugeVec::new(Opts::new("ultta_queue_depth", "Requests waiting for a stream"), &["stream"])?;
        registry.register(Box::new(queue.clone()))?;
        let verdict = Opts::new("ultta_verdict", "The verdict: 0 well, 1 watch, 2 act");
        let verdicts = IntGaugeVec::new(verdict, &["stream"])?;
        registry.register(Box::new(verdicts.clone()))?;
        let silence = "Time since the last row, or since the server opened the stream if none has come since";
        let silence = GaugeVec::new(Opts::new("ultta_silence_seconds", silence), &["stream"])?;
        registry.register(Box::new(silence.clone()))?;
        let mut groups = Vec::new();
        for (name, help, value) in GROUP_GAUGES {
            let gauge = GaugeVec::new(Opts::new(name, help), &["group"])?;
            registry.register(Box::new(gauge.clone()))?;
            groups.push((gauge, value));
        }
        let mut streams = Vec::new();
        for (name, help, value) in STREAM_GAUGES {
            let gauge = GaugeVec::new(Opts::new(name, help), &["stream"])?;
            registry.register(Box::new(gauge.clone()))?;
            streams.push(StreamGauge { name, gauge, value });
        }
        Ok(Self {
            registry,
            requests,
            request_seconds,
            stage_seconds,
            rows,
            alarms,
            streams,
            groups,
            queue,
            verdicts,
            silence,
        })
    }

    /// The stages of a stream.
    pub fn stages(&self, stream: &str) -> Stages {
        let stage = |name| self.stage_seconds.with_label_values(&[stream, name]);
        // Counters that are there from the start: a first alarm is an increase.
        for kind in KINDS {
            self.alarms.with_label_values(&[stream, kind]);
        }
        Stages {
            stages: Arc::new([stage("parse"), stage("encode"), stage("queue"), stage("log"), stage("step")]),
            rows: self.rows.with_label_values(&[stream]),
            alarms: self.alarms.clone(),
            stream: stream.into(),
        }
    }

    /// Notes a request.
    pub fn request(&self, route: &str, status: u16, time: Duration) {
        let mut digits = [0u8; 3];
        for (slot, power) in digits.iter_mut().zip([100, 10, 1]) {
            *slot = b'0' + (status / power % 10) as u8;
        }
        let status = std::str::from_utf8(&digits).unwrap_or("000");
        self.requests.with_label_values(&[route, status]).inc();
        self.request_seconds.with_label_values(&[route]).observe(time.as_secs_f64());
    }

    /// Forgets a stream that is gone.
    pub fn forget(&self, stream: &str) {
        for stage in ["parse", "encode", "queue", "log", "step"] {
            let _ = self.stage_seconds.remove_label_values(&[stream, stage]);
        }
        let _ = self.rows.remove_label_values(&[stream]);
        let _ = self.queue.remove_label_values(&[stream]);
        let _ = self.verdicts.remove_label_values(&[stream]);
        let _ = self.silence.remove_label_values(&[stream]);
        for kind in KINDS {
            let _ = self.alarms.remove_label_values(&[stream, kind]);
        }
        for gauge in &self.streams {
            let _ = gauge.gauge.remove_label_values(&[stream]);
        }
    }

    /// Notes where the groups stand. A group that is gone is forgotten.
    pub fn groups(&self, views: &[GroupView]) {
        for (gauge, value) in &self.groups {
            gauge.reset();
            views.iter().for_each(|view| gauge.with_label_values(&[&view.group]).set(value(view)));
        }
    }

    /// The text that Prometheus scrapes. `unopened` names the streams that could not be opened: they are damaged, too.
    pub fn text<'a>(
        &self,
        streams: impl Iterator<Item = (&'a str, Status, Verdict, usize)>,
        unopened: impl Iterator<Item = &'a str>,
    ) -> Result<String, prometheus::Error> {
        for (name, status, verdict, waiting) in streams {
            self.verdicts.with_label_values(&[name]).set(verdict.level as i64);
            self.silence.with_label_values(&[name]).set(status.silence_seconds);
            for gauge in &self.streams {
                let value = (gauge.value)(&status);
                if value.is_nan() {
                    let _ = gauge.gauge.remove_label_values(&[name]);
                } else {
                    gauge.gauge.with_label_values(&[name]).set(value);
                }
            }
            self.queue.with_label_values(&[name]).set(waiting as i64);
        }
        for name in unopened {
            self.verdicts.with_label_values(&[name]).set(Level::Act as i64);
            let damaged = self.streams.iter().filter(|gauge| gauge.name == DAMAGED);
            damaged.for_each(|gauge| gauge.gauge.with_label_values(&[name]).set(1.0));
        }
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}
