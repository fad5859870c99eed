//! Metrics over a labelled stream, gathered answer by answer in one pass.
//!
//! All are fractions in [0, 1] but the NLL (nats) and the Brier score (0 to 2, the sum over the classes).
//! `tests/metrics.rs` compares them with torchmetrics, netcal and scikit-learn.

mod calibration;
mod detection;
mod spread;
mod steadiness;

use serde::{Deserialize, Serialize};
use ultta::internal::vectorised;

pub use calibration::{Bin, ClassEce, Ece, Edges, adaptive_ece};
pub use detection::{Detection, aurc};
pub use spread::{DetectionIntervals, Interval, Intervals, Spread, bootstrap};
pub(crate) use steadiness::Steadiness;
pub use steadiness::{AFTER_GARBAGE, AfterGarbage, ShotConfidence, ShotFigures, Switches};

/// Number of bins of the expected calibration error.
pub const ECE_BINS: usize = 15;

/// Top-1 accuracy and expected calibration error, as fractions in [0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// Share of answers that were right.
    pub top1: f64,
    /// Expected calibration error of the answers' probabilities.
    pub ece: f64,
}

/// Gathers [`Metrics`].
#[derive(Clone, Debug)]
pub struct Accumulator {
    right: u64,
    seen: u64,
    ece: Ece,
}

impl Default for Accumulator {
    fn default() -> Self {
        Self { right: 0, seen: 0, ece: Ece::new(ECE_BINS) }
    }
}

impl Accumulator {
    /// Takes in an answer: its probability, and whether it was right.
    pub fn push(&mut self, prob: f64, right: bool) {
        self.seen += 1;
        self.right += u64::from(right);
        self.ece.push(prob, right);
    }

    /// The metrics so far; `None` before the first answer.
    pub fn metrics(&self) -> Option<Metrics> {
        (self.seen > 0).then(|| Metrics { top1: self.right as f64 / self.seen as f64, ece: self.ece.value() })
    }
}

/// Everything that is said about the answers of one classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quality {
    /// Share of answers that were right.
    pub top1: f64,
    /// Share of samples whose class was among the five most probable.
    pub top5: f64,
    /// Mean over the classes that occurred of the share of their samples answered right.
    pub class_recall: f64,
    /// Expected calibration error: 15 bins `[lo, hi)`, the last closed.
    pub ece: f64,
    /// The same with bins `(lo, hi]`.
    pub ece_right: f64,
    /// With bins of equal mass.
    pub ece_adaptive: f64,
    /// Mean over the classes of each class probability's calibration error.
    pub ece_class: f64,
    /// Largest gap of a bin.
    pub mce: f64,
    /// Mean of −log p(class), in nats.
    pub nll: f64,
    /// Mean over the samples of Σ_c (p_c − [c = class])².
    pub brier: f64,
    /// Area under the risk–coverage curve, by confidence.
    pub aurc: f64,
}

/// What is remembered of an answer: enough to redraw every mean over samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Probability of the answer.
    pub confidence: f32,
    /// Whether it was right.
    pub right: bool,
    /// Whether the class was among the five most probable.
    pub top5: bool,
    /// The class the sample is of.
    pub class: u32,
    /// −log p(class).
    pub nll: f32,
    /// Σ_c (p_c − [c = class])².
    pub brier: f32,
}

/// Gathers a [`Quality`] from the probabilities of a stream.
#[derive(Clone, Debug)]
pub struct Gather {
    ece: Ece,
    ece_right: Ece,
    ece_class: ClassEce,
    /// Per class: samples, and those answered right.
    per_class: Vec<(u32, u32)>,
    scored: Vec<Scored>,
}

impl Gather {
    /// A collector that has seen no sample.
    pub fn new(classes: usize) -> Self {
        Self {
            ece: Ece::new(ECE_BINS),
            ece_right: Ece::with_edges(ECE_BINS, Edges::Right),
            ece_class: ClassEce::new(classes, ECE_BINS),
            per_class: vec![(0, 0); classes],
            scored: Vec::new(),
        }
    }

    /// Takes in a sample: the probabilities of all classes, the answer and the class it is of. `nll` is given
    /// where the probability of the class is too small for an f32.
    pub fn push(&mut self, probs: &[f32], answer: usize, class: usize, nll: Option<f64>) -> Scored {
        let (own, confidence) = (probs[class], probs[answer]);
        let right = answer == class;
        let (lanes, above) = vectorised(
            #[inline(always)]
            || {
                let (mut lanes, mut above) = ([0.0f32; 8], [0u32; 8]);
                let (chunks, tail) = probs.as_chunks::<8>();
                for chunk in chunks {
                    for i in 0..8 {
                        lanes[i] += chunk[i] * chunk[i];
                        above[i] += u32::from(chunk[i] > own);
                    }
                }
                for (i, &p) in tail.iter().enumerate() {
                    lanes[i] += p * p;
                    above[i] += u32::from(p > own);
                }
                (lanes, above.iter().sum::<u32>())
            },
        );
        // Among equals the lower index ranks first, as for the answer itself.
        let before = if above < 5 { probs[..class].iter().filter(|&&p| p == own).count() as u32 } else { 0 };
        let squares: f64 = lanes.iter().map(|&v| v as f64).sum();
        let scored = Scored {
            confidence,
            right,
            top5: above + before < 5,
            class: class as u32,
            nll: nll.unwrap_or_else(|| -(own as f64).max(1e-300).ln()) as f32,
            brier: (squares - 2.0 * own as f64 + 1.0) as f32,
        };
        self.ece.push(confidence as f64, right);
        self.ece_right.push(confidence as f64, right);
        self.ece_class.push(probs, class);
        self.per_class[class].0 += 1;
        self.per_class[class].1 += u32::from(right);
        self.scored.push(scored);
        scored
    }

    /// The answers so far.
    pub fn scored(&self) -> &[Scored] {
        &self.scored
    }

    /// Per class: samples, and those answered right.
    pub fn per_class(&self) -> &[(u32, u32)] {
        &self.per_class
    }

    /// Per class: the sum of its probabilities so far.
    pub fn mass(&self) -> &[f64] {
        self.ece_class.mass()
    }

    /// The bins of a reliability diagram.
    pub fn bins(&self) -> &[Bin] {
        self.ece.bins()
    }

    /// The metrics so far; all 0 before the first sample.
    pub fn quality(&self) -> Quality {
        let n = self.scored.len();
        if n == 0 {
            return Quality::default();
        }
        let mean = |value: &dyn Fn(&Scored) -> f64| self.scored.iter().map(value).sum::<f64>() / n as f64;
        let answers: Vec<(f64, bool)> = self.scored.iter().map(|s| (s.confidence as f64, s.right)).collect();
        Quality {
            top1: mean(&|s| f64::from(s.right)),
            top5: mean(&|s| f64::from(s.top5)),
            class_recall: mean_recall(&self.per_class),
            ece: self.ece.value(),
            ece_right: self.ece_right.value(),
            ece_adaptive: adaptive_ece(&answers, ECE_BINS),
            ece_class: self.ece_class.value(),
            mce: self.ece.max(),
            nll: mean(&|s| s.nll as f64),
            brier: mean(&|s| s.brier as f64),
            aurc: aurc(&answers),
        }
    }
}

/// Mean over the classes that occurred of the share of their samples answered right.
fn mean_recall(per_class: &[(u32, u32)]) -> f64 {
    let seen = || per_class.iter().filter(|(n, _)| *n > 0);
    seen().map(|&(n, right)| right as f64 / n as f64).sum::<f64>() / seen().count().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top1_is_a_fraction() {
        let mut accumulator = Accumulator::default();
        assert_eq!(accumulator.metrics(), None);
        accumulator.push(0.5, true);
        accumulator.push(0.5, false);
        assert_eq!(accumulator.metrics(), Some(Metrics { top1: 0.5, ece: 0.0 }));
    }

    #[test]
    fn quality_of_two_samples() {
        let mut gather = Gather::new(2);
        assert_eq!(gather.quality(), Quality::default());
        gather.push(&[0.75, 0.25], 0, 0, None);
        gather.push(&[0.75, 0.25], 0, 1, None);
        let q = gather.quality();
        assert_eq!((q.top1, q.top5, q.class_recall), (0.5, 1.0, 0.5));
        assert!((q.ece - 0.25).abs() < 1e-12 && (q.mce - 0.25).abs() < 1e-12);
        assert!((q.brier - (0.125 + 1.125) / 2.0).abs() < 1e-7);
        assert!((q.nll + (0.75f64.ln() + 0.25f64.ln()) / 2.0).abs() < 1e-7);
        // The probability of the second sample's class is 0, so its logarithm is given.
        gather.push(&[1.0, 0.0], 0, 1, Some(200.0));
        assert_eq!(gather.scored()[2].nll, 200.0);
    }
}
