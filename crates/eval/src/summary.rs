//! What is kept of a run: its summary, its windows, its timing; and the table over runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ultta::{Estimate, Standing};

pub use crate::facts::Facts;
pub use crate::made::Made;
use crate::metrics::{
    AfterGarbage, Bin, Detection, DetectionIntervals, Intervals, Quality, ShotFigures, Spread, Switches,
};
use crate::pictures::Cost;
pub use crate::promises::{Rejection, SetFigures};
pub use crate::right::Right;

/// One protocol × method × dataset × seed. Deterministic: what depends on the clock is in [`Timing`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the dataset, or of all packs of a stream across domains.
    pub dataset: String,
    /// The method, with its preset after a colon.
    pub method: String,
    /// The protocol.
    pub protocol: String,
    /// Seed of the stream.
    pub seed: u64,
    /// Labelled samples.
    pub n: usize,
    /// Classes of the head.
    pub classes: usize,
    /// Metrics of the adapted answers, from their calibrated probabilities.
    #[serde(flatten)]
    pub quality: Quality,
    /// Metrics of the frozen model on the same samples.
    pub zero_shot: Quality,
    /// Bootstrap intervals over samples.
    pub intervals: Intervals,
    /// Answers that differ from zero-shot's.
    pub flips: Flips,
    /// How often the answer changes from sample to sample.
    #[serde(default)]
    pub switches: Switches,
    /// Answers within shots, where the stream is made of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shots: Option<ShotFigures>,
    /// The worst stretch after garbage, where the stream has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_garbage: Option<AfterGarbage>,
    /// Accuracy along the stream.
    pub course: Course,
    /// The paper's stability columns.
    pub stability: Stability,
    /// Telling strangers from the known, where the stream has strangers, or the stream from a pack that counts as
    /// in-distribution.
    pub open: Option<Open>,
    /// Share of samples admitted as teachers.
    pub admitted_share: f64,
    /// Bytes the method carries from sample to sample.
    pub state_bytes: usize,
    /// How often the collapse guard fired.
    pub guard_fired: u64,
    /// What the session's record says at the end of the stream; `None` of methods on pictures, which keep none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// Samples a slow method missed (compute-aware protocols).
    pub missed: usize,
    /// Delayed labels the method made use of.
    pub labels_used: usize,
    /// Sets of classes, where the method gives some (`coverage`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetFigures>,
    /// Rejection of samples that fit no class, where the method rejects some (`[unknown]`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// What the session itself estimates of its accuracy, at the end of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Estimated>,
    /// Reliability diagram of the adapted answers.
    pub reliability: Vec<Bin>,
    /// Reliability diagram of the frozen model.
    pub zero_shot_reliability: Vec<Bin>,
    /// What happened to the classes that moved most.
    pub drift: Vec<ClassStory>,
    /// What a picture cost, on datasets of pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// What the method is allowed to see and to keep.
    #[serde(default)]
    pub facts: Facts,
}

/// What a session tells of its stream, without labels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Rows answered, garbage and strangers among them.
    pub rows: u64,
    /// Scenes among them.
    pub scenes: u64,
    /// How often the method began anew because the stream had changed.
    pub restarts: u64,
    /// Rows that look like nothing; 0 in summaries of earlier builds, which did not look.
    #[serde(default)]
    pub garbage: u64,
    /// Alarms raised.
    pub alarms: u64,
    /// Where the session stands at the end.
    pub standing: Standing,
}

/// What a session estimates of its own accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimated {
    /// The estimate for the adapted answers.
    pub adapted: Estimate,
    /// The estimate for the zero-shot answers.
    pub zero_shot: Estimate,
    /// Labels that the estimates rest on.
    pub labels: u64,
    /// The terms of the estimates, from which `docs/estimate.py` fits their constants.
    pub ingredients: [f64; 11],
}

/// Answers that differ from zero-shot's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flips {
    /// Zero-shot wrong, adapted right.
    pub helpful: u64,
    /// Zero-shot right, adapted wrong.
    pub harmful: u64,
    /// Both wrong, differently.
    pub neutral: u64,
    /// The last few of the helpful and the harmful ones.
    pub examples: Vec<Flip>,
}

/// An answer that differs from zero-shot's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// `pack:row`, or the row where there is one pack.
    pub id: String,
    /// The class it is of.
    pub class: String,
    /// What the frozen model said.
    pub zero_shot: String,
    /// What was answered.
    pub adapted: String,
    /// A small picture of it, where pictures are at hand: a JPEG as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thumbnail: Option<String>,
}

/// Accuracy along the stream, in windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Samples of a window.
    pub window: usize,
    /// Top-1 in the first window: cold start.
    pub first: f64,
    /// Top-1 in the last window.
    pub last: f64,
    /// Top-1 in the worst window.
    pub worst: f64,
    /// Zero-shot's top-1 in its worst window.
    pub zero_shot_worst: f64,
    /// Domain after domain, where the stream has several; with `night`, visit after visit of its two states.
    pub domains: Vec<Domain>,
}

/// One stretch of a stream across domains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Domain {
    /// The pack, or the state of a `night` stream.
    pub name: String,
    /// Samples.
    pub n: usize,
    /// Top-1.
    pub top1: f64,
    /// Zero-shot's top-1.
    pub zero_shot_top1: f64,
    /// Samples until the accuracy over the last 100 came within a point of the stretch's second half; `None`
    /// if it never did.
    pub recovery: Option<usize>,
}

/// The paper's stability columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stability {
    /// Largest KL(π‖π⁰).
    pub max_prior_kl: f64,
    /// Largest ‖t_c − μ_c‖.
    pub max_movement: f64,
    /// Gain over zero-shot in the last tenth minus the gain in the first tenth: below 0 it got worse.
    pub accuracy_drop: f64,
    /// Whether some window fell below half of zero-shot's accuracy in it.
    pub collapsed: bool,
    /// Largest KL over windows of the mean probabilities answered from those of zero-shot.
    #[serde(default)]
    pub max_answer_kl: f64,
}

/// Detection of strangers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Samples out of distribution.
    pub strangers: usize,
    /// By the answer's calibrated probability.
    pub max_softmax: Detection,
    /// By log Σ exp of the adapted scores.
    pub energy: Detection,
    /// By the frozen model's probability.
    pub zero_shot_max_softmax: Detection,
    /// By log Σ exp of the frozen scores.
    pub zero_shot_energy: Detection,
    /// Bootstrap intervals of `max_softmax`.
    pub max_softmax_intervals: DetectionIntervals,
    /// Bootstrap intervals of `energy`.
    pub energy_intervals: DetectionIntervals,
}

/// What happened to one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ClassStory {
    pub class: String,
    pub movement: f64,
    pub prior: f64,
    pub evidence: f64,
    pub n: u32,
    pub recall: f64,
    pub zero_shot_recall: f64,
}

/// A stretch of the stream: enough to draw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Samples of the stream before its end.
    pub end: usize,
    /// Labelled samples in it.
    pub n: usize,
    /// Top-1 in it.
    pub top1: f64,
    /// Zero-shot's.
    pub zero_shot_top1: f64,
    /// Mean calibrated probability of its answers.
    pub confidence: f64,
    /// ECE over all answers up to its end.
    pub ece: f64,
    /// Zero-shot's.
    pub zero_shot_ece: f64,
    /// KL(π‖π⁰) at its end.
    pub prior_kl: f64,
    /// Largest prototype movement at its end.
    pub movement: f64,
    /// τ_cal at its end.
    pub tau_cal: f64,
    /// Share of its samples whose set of classes held the truth, where there are sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_held: Option<f64>,
    /// Mean number of classes of a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_size: Option<f64>,
}

/// What depends on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Seconds spent in the method's steps.
    pub seconds: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Rows of a step.
    pub rows_per_step: usize,
    /// Median time of a step, in microseconds.
    pub step_p50_us: f64,
    /// 99 % of the steps took no longer, in microseconds.
    pub step_p99_us: f64,
    /// Processor time of a sample in microseconds; `None` where the system does not tell it, or steps use several threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// Seconds per picture spent in the encoder before, on datasets of pictures; 0 where the method runs it itself.
    #[serde(default)]
    pub encode_seconds: f64,
    /// Most memory this process held during the run or the encoding before it, in bytes; 0 if not measured.
    #[serde(default)]
    pub peak_bytes: u64,
}

impl Timing {
    /// Microseconds of a sample: processor time, which a busy machine does not lengthen, or else the clock's.
    pub fn sample_us(&self) -> f64 {
        self.cpu_us.unwrap_or(1e6 / self.samples_per_second.max(1e-9))
    }
}

/// A run as it is read back and printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What came out.
    #[serde(flatten)]
    pub summary: Summary,
    /// How long it took.
    pub timing: Timing,
    /// Which samples that count were answered right, in the order of the stream: what two methods share on the same
    /// samples. `None` of runs that did not keep it.
    #[serde(skip)]
    pub right: Option<Right>,
    /// How it came about.
    #[serde(skip)]
    pub made: Option<Made>,
}

/// Mean and spread over seeds of one dataset × method × protocol.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Cell {
    pub dataset: String,
    pub method: String,
    pub protocol: String,
    pub seeds: usize,
    pub top1: Spread,
    /// Mean top-1 over the worst tenth of the seeds, at least one.
    pub top1_tail: f64,
    pub ece: Spread,
    pub nll: Spread,
    pub brier: Spread,
    pub class_recall: Spread,
    pub aurc: Spread,
    pub zero_shot_top1: Spread,
    pub zero_shot_ece: Spread,
    pub zero_shot_nll: Spread,
    pub samples_per_second: Spread,
    /// Every figure of the runs, by its path in a run: `top5`, `zero_shot.mce`, `flips.harmful`, `course.worst`, …
    pub all: BTreeMap<String, Spread>,
}

/// Spread of every figure that all of these runs have.
fn spreads(runs: &[&Run]) -> BTreeMap<String, Spread> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in runs {
        let run = serde_json::to_value(run).unwrap_or_default();
        collect("", &run, &mut values);
    }
    values.retain(|path, v| v.len() == runs.len() && path != "seed" && path != "classes");
    values.into_iter().map(|(path, v)| (path, Spread::of(v))).collect()
}

/// The numbers of nested objects, by path. Lists, and the ends of intervals, are no figures of their own.
fn collect(path: &str, value: &serde_json::Value, values: &mut BTreeMap<String, Vec<f64>>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !name.ends_with("intervals")) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, values);
            }
        }
        serde_json::Value::Number(n) => {
            values.entry(path.into()).or_default().extend(n.as_f64());
        }
        serde_json::Value::Bool(b) => values.entry(path.into()).or_default().push(f64::from(u8::from(*b))),
        _ => {}
    }
}

/// The mean of the worst tenth, at least of one.
pub(crate) fn tail(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len().div_ceil(10);
    values[..n].iter().sum::<f64>() / n.max(1) as f64
}

/// The table over runs, sorted by protocol, dataset and method.
pub fn cells(runs: &[Run]) -> Vec<Cell> {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        let s = &run.summary;
        groups.entry((&s.protocol, &s.dataset, &s.method)).or_default().push(run);
    }
    let cell = |((protocol, dataset, method), runs): ((&str, &str, &str), Vec<&Run>)| {
        let over = |value: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(|r| value(r)));
        Cell {
            dataset: dataset.into(),
            method: method.into(),
            protocol: protocol.into(),
            seeds: runs.len(),
            top1: over(&|r| r.summary.quality.top1),
            top1_tail: tail(&mut runs.iter().map(|r| r.summary.quality.top1).collect::<Vec<_>>()),
            ece: over(&|r| r.summary.quality.ece),
            nll: over(&|r| r.summary.quality.nll),
            brier: over(&|r| r.summary.quality.brier),
            class_recall: over(&|r| r.summary.quality.class_recall),
            aurc: over(&|r| r.summary.quality.aurc),
            zero_shot_top1: over(&|r| r.summary.zero_shot.top1),
            zero_shot_ece: over(&|r| r.summary.zero_shot.ece),
            zero_shot_nll: over(&|r| r.summary.zero_shot.nll),
            samples_per_second: over(&|r| r.timing.samples_per_second),
            all: spreads(&runs),
        }
    };
    groups.into_iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn records_of_before_garbage_are_read() {
        let record = r#"{"rows":9,"scenes":8,"restarts":1,"alarms":0,"standing":"healthy"}"#;
        let record: Record = serde_json::from_str(record).unwrap();
        assert_eq!((record.rows, record.garbage), (9, 0));
        let told = serde_json::to_value(Record { garbage: 3, ..record }).unwrap();
        assert_eq!(told["garbage"], 3);
    }
}
