//! What a run comes to: counts, metrics where there are labels, and health.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use ultta::{Alarm, Estimate, Health, Row, Session, Standing, UnknownScore};
use ultta_encode::doctor::at_chance;
use ultta_eval::metrics::{Accumulator, Metrics};

/// Features of fewer dimensions are too few for the correction of estimates (docs/estimates.md).
const ROUGH_BELOW: usize = 64;

/// Of fewer scenes no estimate is told: its interval would be as wide as everything.
const FEWEST_SCENES: u64 = 50;

/// What a command calls the samples it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    Rows,
    Pictures,
    Frames,
}

impl Samples {
    fn word(self) -> &'static str {
        match self {
            Samples::Rows => "rows",
            Samples::Pictures => "pictures",
            Samples::Frames => "frames",
        }
    }
}

/// Counts and metrics while a run goes on.
#[derive(Default)]
pub struct Tally {
    pub n: u64,
    admitted: u64,
    flips: u64,
    unknown: u64,
    labelled: u64,
    adapted: Accumulator,
    zero_shot: Accumulator,
    sets: u64,
    set_classes: u64,
    set_labels: u64,
    set_held: u64,
    /// Zero-shot answers by label and class.
    answered: HashMap<(usize, usize), u64>,
}

impl Tally {
    /// Takes in an answer, and its label where it has one.
    pub fn push(&mut self, row: &Row, label: Option<usize>) {
        self.n += 1;
        self.admitted += u64::from(row.admitted);
        self.flips += u64::from(row.label != row.zero_shot.label);
        self.unknown += u64::from(row.unknown);
        if let Some(label) = label {
            self.labelled += 1;
            *self.answered.entry((label, row.zero_shot.label)).or_default() += 1;
            self.adapted.push(row.prob.into(), row.label == label);
            self.zero_shot.push(row.zero_shot.prob.into(), row.zero_shot.label == label);
        }
    }

    /// Takes in the set of a sample, and its label where it has one.
    pub fn push_set(&mut self, set: &[u32], label: Option<usize>) {
        self.sets += 1;
        self.set_classes += set.len() as u64;
        if let Some(label) = label {
            self.set_labels += 1;
            self.set_held += u64::from(set.contains(&(label as u32)));
        }
    }

    /// Answers that came with a label.
    pub fn labelled(&self) -> u64 {
        self.labelled
    }

    /// Says on standard error if the frozen model's answers have little to do with the labels.
    pub fn warn_of_chance(&self, classes: usize) {
        if let Some(right) = at_chance(classes, &self.answered) {
            eprintln!(
                "warning: zero-shot is hardly better than chance ({right}): labels, class names or encoder may be of something \
                 else, and adaptation cannot mend that; `ultta doctor` looks into it"
            );
        }
    }

    /// The summary at the end.
    pub fn summary(&self, session: &Session, time: Duration) -> Summary {
        let (method, preset) = name_of(session);
        let adapted = self.adapted.metrics();
        let zero_shot = self.zero_shot.metrics();
        let share = |count: u64| count as f64 / self.n.max(1) as f64;
        let health = session.health();
        let dim = session.head().dim();
        let rough = dim < ROUGH_BELOW && health.estimate_labels == 0;
        Summary {
            n: self.n,
            dim,
            classes: session.head().n_classes(),
            method,
            preset,
            top1: adapted.map(|m| m.top1),
            ece: adapted.map(|m| m.ece),
            estimate: Estimated { estimate: health.estimate, rough },
            zero_shot: Frozen {
                top1: zero_shot.map(|m| m.top1),
                ece: zero_shot.map(|m| m.ece),
                estimate: Estimated { estimate: health.estimate_zero_shot, rough },
            },
            sets: (self.sets > 0).then(|| SetSummary {
                coverage: health.coverage,
                promise: health.coverage_promise,
                labels: health.coverage_labels,
                held: (self.set_labels > 0).then(|| self.set_held as f64 / self.set_labels as f64),
                size: self.set_classes as f64 / self.sets as f64,
            }),
            admitted_share: share(self.admitted),
            flip_share: share(self.flips),
            unknown_share: share(self.unknown),
            looks_for_unknown: session.config().unknown.score != UnknownScore::Off,
            alarms: session.alarms().into_iter().map(|alarm| AlarmLine::of(alarm, session)).collect(),
            health,
            seconds: time.as_secs_f64(),
        }
    }
}

/// The method as the command line writes it, and its preset.
fn name_of(session: &Session) -> (String, Option<String>) {
    use ultta::MethodConfig;
    let method = &session.config().method;
    let preset = match method {
        MethodConfig::UlTta(config) => Some(config.preset().name().to_string()),
        _ => None,
    };
    (method.card().name.replace('_', "-"), preset)
}

/// What `--json` prints. Shares, metrics and estimates are fractions in [0, 1]; metrics are null without labels.
#[derive(Serialize)]
pub struct Summary {
    n: u64,
    #[serde(skip)]
    dim: usize,
    classes: usize,
    method: String,
    preset: Option<String>,
    top1: Option<f64>,
    ece: Option<f64>,
    estimate: Estimated,
    zero_shot: Frozen,
    #[serde(skip_serializing_if = "Option::is_none")]
    sets: Option<SetSummary>,
    admitted_share: f64,
    flip_share: f64,
    unknown_share: f64,
    #[serde(skip)]
    looks_for_unknown: bool,
    /// The last ones, oldest first.
    alarms: Vec<AlarmLine>,
    health: Health,
    seconds: f64,
}

/// An alarm, with words for people.
#[derive(Serialize)]
pub struct AlarmLine {
    #[serde(flatten)]
    alarm: Alarm,
    text: String,
    advice: &'static str,
}

impl AlarmLine {
    pub fn of(alarm: Alarm, session: &Session) -> Self {
        Self { text: alarm.text(session.head().classes()), advice: alarm.kind.advice(), alarm }
    }
}

/// The sets of a run.
#[derive(Serialize)]
struct SetSummary {
    /// Share of the samples whose set is to hold the truth.
    coverage: f64,
    /// Whether labels back this up.
    promise: bool,
    /// Labels handed over for it.
    labels: u64,
    /// Share of the samples whose set held the truth, where labels tell.
    held: Option<f64>,
    /// Mean number of classes of a set.
    size: f64,
}

#[derive(Serialize)]
struct Frozen {
    top1: Option<f64>,
    ece: Option<f64>,
    estimate: Estimated,
}

/// An estimated accuracy. It is rough where the features are too short for its correction and no label came.
#[derive(Serialize)]
struct Estimated {
    #[serde(flatten)]
    estimate: Estimate,
    rough: bool,
}

impl Summary {
    /// For people; with `verbose`, the figures behind the words, too.
    pub fn print(&self, out: &mut impl Write, samples: Samples, verbose: bool) -> std::io::Result<()> {
        let samples = samples.word();
        let preset = self.preset.as_ref().map(|p| format!(" ({p})")).unwrap_or_default();
        let rate = self.n as f64 / self.seconds.max(1e-9);
        writeln!(
            out,
            "{}{preset}: {} {samples}, {} classes, {:.2} s ({rate:.0} {samples}/s)",
            self.method, self.n, self.classes, self.seconds
        )?;
        let metrics = |top1: Option<f64>, ece: Option<f64>| Some(Metrics { top1: top1?, ece: ece? });
        let frozen = metrics(self.zero_shot.top1, self.zero_shot.ece);
        if let (Some(adapted), Some(frozen)) = (metrics(self.top1, self.ece), frozen) {
            writeln!(out, "{:<12}{:>9}{:>9}", "", "top-1 %", "ECE %")?;
            writeln!(out, "{:<12}{:>9.2}{:>9.2}", "zero-shot", 100.0 * frozen.top1, 100.0 * frozen.ece)?;
            writeln!(out, "{:<12}{:>9.2}{:>9.2}", "adapted", 100.0 * adapted.top1, 100.0 * adapted.ece)?;
            let gain = [adapted.top1 - frozen.top1, adapted.ece - frozen.ece].map(|g| 100.0 * g);
            writeln!(out, "{:<12}{:>+9.2}{:>+9.2}", "difference", gain[0], gain[1])?;
        }
        let h = &self.health;
        let of =
            |e: &Estimate| format!("{:.1} % ({:.1} to {:.1})", 100.0 * e.top1, 100.0 * e.low, 100.0 * e.high);
        let from = match h.estimate_labels {
            0 => "without labels".to_string(),
            n => format!("with {n} labels"),
        };
        if self.n == 0 {
            // Nothing was answered.
        } else if self.estimate.rough {
            let (dim, least) = (self.dim, ROUGH_BELOW);
            writeln!(
                out,
                "no estimated accuracy: without labels features of {dim} dimensions are too few for one ({least} are enough)"
            )?;
        } else if h.scenes < FEWEST_SCENES {
            writeln!(out, "no estimated accuracy: {} {samples} that differ are too few for one", h.scenes)?;
        } else {
            writeln!(
                out,
                "estimated accuracy {from} (90 % interval): adapted {}, zero-shot {}",
                of(&self.estimate.estimate),
                of(&self.zero_shot.estimate.estimate)
            )?;
        }
        if let Some(sets) = &self.sets {
            let held =
                sets.held.map(|held| format!(", held the truth {:.1} %", 100.0 * held)).unwrap_or_default();
            let promise = if sets.promise {
                format!("backed by {} labels", sets.labels)
            } else {
                "no promise: credible sets, there are too few labels".to_string()
            };
            let asked = 100.0 * sets.coverage;
            writeln!(out, "sets at {asked:.0} %: {:.2} classes on average{held}; {promise}", sets.size)?;
        }
        let unknown = if self.looks_for_unknown {
            format!("{:.1} % are unknown", 100.0 * self.unknown_share)
        } else {
            "strangers were not looked for (--unknown 5%)".to_string()
        };
        writeln!(
            out,
            "of the {samples}, {:.1} % taught, {:.1} % are answered differently from zero-shot, {unknown}",
            100.0 * self.admitted_share,
            100.0 * self.flip_share,
        )?;
        if h.scenes < h.seen || h.restarts > 0 {
            writeln!(
                out,
                "{} of {} {samples} were near-copies of the one before; began anew {} times because the stream had changed",
                h.seen - h.scenes.min(h.seen),
                h.seen,
                h.restarts
            )?;
        }
        if h.garbage > 0 {
            let (n, seen) = (h.garbage, h.seen);
            let taught = if n == 1 { "it taught nothing" } else { "they taught nothing" };
            writeln!(out, "{n} of {seen} {samples} looked like nothing (garbage): {taught}")?;
        }
        if h.alarms == 0 {
            let ready = if h.alarms_ready { "" } else { " (too few so far to notice a change)" };
            writeln!(out, "alarms: none{ready}")?;
        } else {
            writeln!(out, "alarms: {}, the last: {}", h.alarms, self.alarms.last().map_or("", |a| &a.text))?;
        }
        writeln!(out, "{}", in_words(h))?;
        if !verbose {
            return Ok(());
        }
        writeln!(
            out,
            "health: prior KL {:.3}, movement {:.3} (mean {:.3}), evidence weight {:.2}, tau {:.3} (calibrated {:.3}), \
             effective classes {:.1} (zero-shot {:.1}), {}",
            h.prior_kl,
            h.movement_max,
            h.movement_mean,
            h.evidence_weight,
            h.tau_pred,
            h.tau_cal,
            h.effective_classes,
            h.effective_classes_zero_shot,
            match h.standing {
                Standing::Healthy => "healthy",
                Standing::Restored => "restored by the guard",
                Standing::ZeroShot => "fallen back to zero-shot",
            }
        )
    }
}

/// What is to be said of a state whose answers the guard holds at zero-shot.
pub fn held_at_zero_shot(standing: Standing) -> Option<&'static str> {
    (standing == Standing::ZeroShot).then_some(
        "warning: this state has fallen back to zero-shot; it tries again after a while (guard.advanced.patience)",
    )
}

/// What the session has come to, for people who do not know the figures.
fn in_words(health: &Health) -> &'static str {
    // Less than this is nothing that an answer could show.
    let [prior, looks] =
        [health.prior_kl, health.evidence_weight.max(health.movement_max)].map(|figure| figure >= 0.0005);
    match (health.standing, prior, looks) {
        (Standing::ZeroShot, ..) => {
            "it has fallen back to zero-shot: its answers had turned against the frozen model"
        }
        (Standing::Restored, ..) => {
            "it went back to its last healthy state: its answers had turned against the frozen model"
        }
        (_, true, true) => "it uses how often classes occur and what they look like here",
        (_, true, false) => "so far it learnt how often classes occur; what they look like is not used yet",
        (_, false, true) => {
            "it uses what classes look like here; how often they occur changes nothing so far"
        }
        (_, false, false) if health.flips > 0 => {
            let never = health.max_prior_kl.max(health.max_movement) < 0.0005;
            if never && health.scenes < health.seen {
                "near-copies are answered together; nothing that it learnt from the stream changes an answer so far"
            } else {
                "what it learnt from the stream changes some answers"
            }
        }
        (_, false, false) => "nothing that it learnt from the stream changes an answer so far",
    }
}

/// Says on standard error when the collapse guard fires.
pub struct GuardWatch {
    fired: u64,
}

impl GuardWatch {
    /// Watches from now on; a session that has fallen back already is worth a word, too.
    pub fn new(session: &Session) -> Self {
        if let Some(warning) = held_at_zero_shot(session.health().standing) {
            eprintln!("{warning}");
        }
        Self { fired: session.health().guard_fired }
    }

    /// A warning, if the guard has fired since the last look.
    pub fn look(&mut self, health: &Health) -> Option<String> {
        if health.guard_fired == self.fired {
            return None;
        }
        self.fired = health.guard_fired;
        let consequence = match health.standing {
            Standing::ZeroShot => "answering zero-shot for a while (guard.advanced.patience)",
            _ => "returned to the last healthy state",
        };
        Some(format!(
            "warning: the collapse guard fired after {} answers: adapted answers turned against the frozen model; {consequence}",
            health.seen
        ))
    }
}
