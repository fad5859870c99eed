//! Metrics over a labelled stream, gathered answer by answer.

use serde::Serialize;

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

/// Expected calibration error of the answered class: equal-width bins `[lo, hi)`, the last one closed, and the
/// mean over the bins, weighted by their samples, of |accuracy − mean probability|.
///
/// This equals netcal with the same number of bins, and torchmetrics wherever no probability is exactly 1.
#[derive(Clone, Debug)]
pub struct Ece {
    bins: Vec<Bin>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    n: u64,
    right: u64,
    prob: f64,
}

impl Ece {
    /// No answers yet.
    pub fn new(bins: usize) -> Self {
        Self { bins: vec![Bin::default(); bins.max(1)] }
    }

    /// Takes in an answer: its probability, and whether it was right.
    pub fn push(&mut self, prob: f64, right: bool) {
        let n = self.bins.len();
        // A product with the number of bins can round across an edge, so the edges themselves decide.
        let edge = |bin: usize| bin as f64 / n as f64;
        let mut bin = ((prob * n as f64) as usize).min(n - 1);
        if bin > 0 && prob < edge(bin) {
            bin -= 1;
        } else if bin + 1 < n && prob >= edge(bin + 1) {
            bin += 1;
        }
        let bin = &mut self.bins[bin];
        bin.n += 1;
        bin.right += u64::from(right);
        bin.prob += prob;
    }

    /// The error so far; 0 before the first answer.
    pub fn value(&self) -> f64 {
        let n: u64 = self.bins.iter().map(|b| b.n).sum();
        let gaps: f64 = self.bins.iter().map(|b| (b.right as f64 - b.prob).abs()).sum();
        if n == 0 { 0.0 } else { gaps / n as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ece(bins: usize, answers: &[(f64, bool)]) -> f64 {
        let mut ece = Ece::new(bins);
        answers.iter().for_each(|&(prob, right)| ece.push(prob, right));
        ece.value()
    }

    /// The examples of torchmetrics' documentation.
    #[test]
    fn equals_torchmetrics() {
        let multiclass = [(0.55, false), (0.55, false), (0.60, true), (0.90, true)];
        assert!((ece(3, &multiclass) - 0.2).abs() < 1e-12);
        let binary = [(0.25, false), (0.25, false), (0.55, true), (0.75, true), (0.75, true)];
        assert!((ece(2, &binary) - 0.29).abs() < 1e-12);
    }

    #[test]
    fn a_probability_of_one_belongs_to_the_last_bin() {
        // torchmetrics would give these two a bin each: (0.05 + 0) / 2
        assert!((ece(15, &[(0.95, true), (1.0, false)]) - 0.475).abs() < 1e-12);
    }

    #[test]
    fn an_edge_belongs_to_the_bin_above() {
        for n in [3, 10, 15] {
            for k in 1..n {
                let edge = k as f64 / n as f64;
                let mut ece = Ece::new(n);
                ece.push(edge, true);
                assert_eq!(ece.bins[k].n, 1, "{k}/{n}");
                ece.push(edge.next_down(), true);
                assert_eq!(ece.bins[k - 1].n, 1, "below {k}/{n}");
            }
        }
    }

    #[test]
    fn top1_is_a_fraction() {
        let mut accumulator = Accumulator::default();
        assert_eq!(accumulator.metrics(), None);
        accumulator.push(0.5, true);
        accumulator.push(0.5, false);
        assert_eq!(accumulator.metrics(), Some(Metrics { top1: 0.5, ece: 0.0 }));
    }
}
