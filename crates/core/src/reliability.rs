//! Reliability of answers: bins of equal width over the probability of the answered class, and their expected
//! calibration error. Evaluations and the service count with the same bins.

use serde::{Deserialize, Serialize};

/// Which side of a bin is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edges {
    /// `[lo, hi)`, the last bin closed: netcal, and torchmetrics wherever no probability is exactly 1.
    #[default]
    Left,
    /// `(lo, hi]`, a probability of exactly 0 in no bin: Guo et al.'s code, C-TPT's.
    Right,
}

/// One bin of a reliability diagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Answers in the bin.
    pub n: u64,
    /// Those that were right.
    pub right: u64,
    /// Sum of their probabilities.
    pub prob: f64,
}

/// Expected calibration error of the answered class: equal-width bins, and the mean over the bins, weighted by
/// their samples, of |accuracy − mean probability|.
#[derive(Clone, Debug)]
pub struct Ece {
    bins: Vec<Bin>,
    edges: Edges,
    seen: u64,
}

impl Ece {
    /// No answers yet; bins `[lo, hi)`.
    pub fn new(bins: usize) -> Self {
        Self::with_edges(bins, Edges::Left)
    }

    /// No answers yet.
    pub fn with_edges(bins: usize, edges: Edges) -> Self {
        Self { bins: vec![Bin::default(); bins.max(1)], edges, seen: 0 }
    }

    /// Takes in an answer: its probability, and whether it was right.
    pub fn push(&mut self, prob: f64, right: bool) {
        self.seen += 1;
        let Some(bin) = bin_of(prob, self.bins.len(), self.edges) else { return };
        let bin = &mut self.bins[bin];
        bin.n += 1;
        bin.right += u64::from(right);
        bin.prob += prob;
    }

    /// The error so far; 0 before the first answer.
    pub fn value(&self) -> f64 {
        let gaps: f64 = self.bins.iter().map(|b| (b.right as f64 - b.prob).abs()).sum();
        if self.seen == 0 { 0.0 } else { gaps / self.seen as f64 }
    }

    /// The largest gap of a bin that holds an answer (the maximum calibration error).
    pub fn max(&self) -> f64 {
        let gap = |b: &Bin| (b.right as f64 - b.prob).abs() / b.n as f64;
        self.bins.iter().filter(|b| b.n > 0).map(gap).fold(0.0, f64::max)
    }

    /// The bins.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }
}

/// The bin of `n` that a probability falls in.
pub fn bin_of(prob: f64, n: usize, edges: Edges) -> Option<usize> {
    // A product with the number of bins can round across an edge, so the edges themselves decide.
    let edge = |bin: usize| bin as f64 / n as f64;
    let guess = ((prob * n as f64) as usize).min(n - 1);
    match edges {
        Edges::Left if guess > 0 && prob < edge(guess) => Some(guess - 1),
        Edges::Left if guess + 1 < n && prob >= edge(guess + 1) => Some(guess + 1),
        Edges::Left => Some(guess),
        Edges::Right if prob <= 0.0 => None,
        Edges::Right if guess > 0 && prob <= edge(guess) => Some(guess - 1),
        Edges::Right if guess + 1 < n && prob > edge(guess + 1) => Some(guess + 1),
        Edges::Right => Some(guess),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ece(bins: usize, edges: Edges, answers: &[(f64, bool)]) -> Ece {
        let mut ece = Ece::with_edges(bins, edges);
        answers.iter().for_each(|&(prob, right)| ece.push(prob, right));
        ece
    }

    /// The examples of torchmetrics' documentation.
    #[test]
    fn equals_torchmetrics() {
        let multiclass = [(0.55, false), (0.55, false), (0.60, true), (0.90, true)];
        let value = ece(3, Edges::Left, &multiclass);
        assert!((value.value() - 0.2).abs() < 1e-12);
        assert!((value.max() - 0.7 / 3.0).abs() < 1e-12);
        let binary = [(0.25, false), (0.25, false), (0.55, true), (0.75, true), (0.75, true)];
        let value = ece(2, Edges::Left, &binary);
        assert!((value.value() - 0.29).abs() < 1e-12);
        assert!((value.max() - 0.95 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_probability_of_one_belongs_to_the_last_bin() {
        // torchmetrics would give these two a bin each: (0.05 + 0) / 2
        let answers = [(0.95, true), (1.0, false)];
        assert!((ece(15, Edges::Left, &answers).value() - 0.475).abs() < 1e-12);
        assert!((ece(15, Edges::Right, &answers).value() - 0.475).abs() < 1e-12);
    }

    #[test]
    fn an_edge_belongs_to_the_bin_above_or_below() {
        for n in [3, 10, 15] {
            for k in 1..n {
                let edge = k as f64 / n as f64;
                assert_eq!(bin_of(edge, n, Edges::Left), Some(k), "{k}/{n}");
                assert_eq!(bin_of(edge.next_down(), n, Edges::Left), Some(k - 1), "below {k}/{n}");
                assert_eq!(bin_of(edge, n, Edges::Right), Some(k - 1), "{k}/{n}");
                assert_eq!(bin_of(edge.next_up(), n, Edges::Right), Some(k), "above {k}/{n}");
            }
        }
    }

    #[test]
    fn a_probability_of_zero_is_in_no_right_closed_bin() {
        assert_eq!(bin_of(0.0, 15, Edges::Right), None);
        assert_eq!(bin_of(0.0, 15, Edges::Left), Some(0));
        // it still counts among the samples
        assert!((ece(15, Edges::Right, &[(0.0, false), (0.5, false)]).value() - 0.25).abs() < 1e-12);
    }
}
