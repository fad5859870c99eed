//! Prometheus metrics: requests, latency per stage, and what operators watch of every stream.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::board::Status;

/// Seconds.
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
    streams: Vec<StreamGauge>,
    queue: IntGaugeVec,
}

struct StreamGauge {
    gauge: GaugeVec,
    value: fn(&Status) -> f64,
}

/// The stages of one stream, looked up once.
#[derive(Clone)]
pub struct Stages {
    stages: Arc<[Histogram; 5]>,
    /// Rows answered.
    pub rows: prometheus::IntCounter,
}

impl Stages {
    pub fn observe(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time.as_secs_f64());
    }
}

/// Name, meaning, and where a stream's status has it.
const STREAM_GAUGES: [(&str, &str, fn(&Status) -> f64); 20] = [
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
    ("ultta_guard_fired", "Times the collapse guard fired", |s| s.health.guard_fired as f64),
    ("ultta_seen", "Samples observed since the start of the state", |s| s.health.seen as f64),
    ("ultta_state_bytes", "Bytes a stream carries from sample to sample", |s| s.health.state_bytes as f64),
    ("ultta_log_bytes", "Bytes of log since the last base state", |s| s.log_bytes as f64),
    ("ultta_sync_lag_seconds", "Longest time so far that a log record waited for the disk", |s| {
        s.sync_lag_ms / 1e3
    }),
    ("ultta_learning", "1 while samples teach, 0 while frozen", |s| f64::from(u8::from(s.learning))),
    ("ultta_damaged", "1 while something was lost on the disk and nobody has acknowledged it", |s| {
        f64::from(u8::from(s.damage.is_some()))
    }),
    ("ultta_degraded", "1 while the disk does not take the log and nothing is learnt", |s| {
        f64::from(u8::from(s.degraded.is_some()))
    }),
    ("ultta_generation", "Times the state was replaced", |s| s.generation as f64),
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
        let queue =
            IntGaugeVec::new(Opts::new("ultta_queue_depth", "Requests waiting for a stream"), &["stream"])?;
        registry.register(Box::new(queue.clone()))?;
        let mut streams = Vec::new();
        for (name, help, value) in STREAM_GAUGES {
            let gauge = GaugeVec::new(Opts::new(name, help), &["stream"])?;
            registry.register(Box::new(gauge.clone()))?;
            streams.push(StreamGauge { gauge, value });
        }
        Ok(Self { registry, requests, request_seconds, stage_seconds, rows, streams, queue })
    }

    /// The stages of a stream.
    pub fn stages(&self, stream: &str) -> Stages {
        let stage = |name| self.stage_seconds.with_label_values(&[stream, name]);
        Stages {
            stages: Arc::new([stage("parse"), stage("encode"), stage("queue"), stage("log"), stage("step")]),
            rows: self.rows.with_label_values(&[stream]),
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
        for gauge in &self.streams {
            let _ = gauge.gauge.remove_label_values(&[stream]);
        }
    }

    /// The text that Prometheus scrapes.
    pub fn text<'a>(
        &self,
        streams: impl Iterator<Item = (&'a str, Status, usize)>,
    ) -> Result<String, prometheus::Error> {
        for (name, status, waiting) in streams {
            for gauge in &self.streams {
                gauge.gauge.with_label_values(&[name]).set((gauge.value)(&status));
            }
            self.queue.with_label_values(&[name]).set(waiting as i64);
        }
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}
