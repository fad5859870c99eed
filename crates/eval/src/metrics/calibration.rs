//! Calibration errors of the answered class and of every class.

use ultta::internal::bin_of;
use ultta::internal::vectorised;
pub use ultta::internal::{Bin, Ece, Edges};

/// Classes looked at together.
const CHUNK: usize = 16;

/// Expected calibration error over bins of equal mass: edges at the quantiles of the probabilities (linear
/// interpolation), the outermost moved to 0 and 1. Equals netcal's with `equal_intervals=False`.
pub fn adaptive_ece(answers: &[(f64, bool)], bins: usize) -> f64 {
    let mut sorted: Vec<(f64, bool)> = answers.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    if sorted.is_empty() {
        return 0.0;
    }
    let mut total = 0.0;
    let mut rest = &sorted[..];
    for bin in 1..=bins {
        let taken = if bin == bins {
            rest.len()
        } else {
            let edge = quantile(bin as f64 / bins as f64, sorted.len(), |i| sorted[i].0);
            rest.partition_point(|a| a.0 < edge)
        };
        let (inside, others) = rest.split_at(taken);
        total += inside.iter().map(|a| f64::from(a.1) - a.0).sum::<f64>().abs();
        rest = others;
    }
    total / sorted.len() as f64
}

/// The q-quantile of `n` sorted values, interpolated.
pub(super) fn quantile(q: f64, n: usize, at: impl Fn(usize) -> f64) -> f64 {
    let place = q * (n - 1) as f64;
    let (low, share) = (place.floor() as usize, place.fract());
    let (a, b) = (at(low), at((low + 1).min(n - 1)));
    // NumPy's interpolation: from the nearer end, so that it is monotone.
    if share < 0.5 { a + (b - a) * share } else { b - (b - a) * (1.0 - share) }
}

/// Where the bins begin among sorted probabilities, and where the last one ends. Those in no bin come before.
pub(super) fn bin_starts(sorted: &[f64], bins: usize, edges: Edges) -> Vec<usize> {
    let place = |p: f64| bin_of(p, bins, edges).map_or(0, |bin| bin + 1);
    (1..=bins + 1).map(|bin| sorted.partition_point(|&p| place(p) < bin)).collect()
}

/// Class-wise calibration error: for each class, its probability over *all* samples is binned and compared with
/// how often the class occurred; the mean over the classes.
#[derive(Clone, Debug)]
pub struct ClassEce {
    n_bins: usize,
    classes: usize,
    samples: u64,
    /// Per class and bin above the lowest: sum of probabilities, less the samples of the class.
    upper: Vec<f64>,
    /// Per class: sum of all probabilities. The lowest bin is what the others leave.
    probs: Vec<f64>,
    /// Per class: its samples.
    occurred: Vec<u32>,
    /// The largest probability of each chunk of classes of the present sample.
    most: Vec<f32>,
}

impl ClassEce {
    /// No samples yet.
    pub fn new(classes: usize, bins: usize) -> Self {
        Self {
            n_bins: bins,
            classes,
            samples: 0,
            upper: vec![0.0; classes * (bins - 1)],
            probs: vec![0.0; classes],
            occurred: vec![0; classes],
            most: vec![0.0; classes.div_ceil(CHUNK)],
        }
    }

    /// Per class: the sum of its probabilities so far.
    pub fn mass(&self) -> &[f64] {
        &self.probs
    }

    /// Takes in a sample.
    pub fn push(&mut self, probs: &[f32], class: usize) {
        self.samples += 1;
        self.occurred[class] += 1;
        let first_edge = 1.0 / self.n_bins as f64;
        // Few classes are above the lowest bin, so whole chunks are passed over.
        let floor = first_edge as f32 * (1.0 - f32::EPSILON);
        let (totals, most) = (&mut self.probs, &mut self.most);
        vectorised(
            #[inline(always)]
            || {
                let (chunks, tail) = probs.as_chunks::<CHUNK>();
                let (chunk_totals, tail_totals) = totals.as_chunks_mut::<CHUNK>();
                for ((chunk, totals), most) in chunks.iter().zip(chunk_totals).zip(most.iter_mut()) {
                    let mut lanes = [0.0f32; 8];
                    for i in 0..CHUNK {
                        totals[i] += chunk[i] as f64;
                        lanes[i % 8] = if chunk[i] > lanes[i % 8] { chunk[i] } else { lanes[i % 8] };
                    }
                    *most = lanes.into_iter().fold(0.0, f32::max);
                }
                for (p, total) in tail.iter().zip(tail_totals) {
                    *total += *p as f64;
                }
                if !tail.is_empty() {
                    most[chunks.len()] = tail.iter().copied().fold(0.0, f32::max);
                }
            },
        );
        for (i, chunk) in probs.chunks(CHUNK).enumerate() {
            if self.most[i] < floor {
                continue;
            }
            let start = i * CHUNK;
            for (c, p) in chunk.iter().enumerate().map(|(i, &p)| (start + i, p as f64)) {
                if p >= first_edge {
                    let bin = bin_of(p, self.n_bins, Edges::Left).unwrap_or(0).max(1) - 1;
                    self.upper[c * (self.n_bins - 1) + bin] += p - f64::from(u8::from(c == class));
                }
            }
        }
    }

    /// The error so far; 0 before the first sample.
    pub fn value(&self) -> f64 {
        if self.samples == 0 {
            return 0.0;
        }
        let mut sum = 0.0;
        let totals = self.probs.iter().zip(&self.occurred);
        for (gaps, (&prob, &occurred)) in self.upper.chunks(self.n_bins - 1).zip(totals) {
            let lowest = prob - f64::from(occurred) - gaps.iter().sum::<f64>();
            sum += lowest.abs() + gaps.iter().map(|gap| gap.abs()).sum::<f64>();
        }
        sum / self.samples as f64 / self.classes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gathered_is_no_error() {
        assert_eq!((Ece::new(15).value(), Ece::new(15).max()), (0.0, 0.0));
        assert_eq!((adaptive_ece(&[], 15), ClassEce::new(3, 15).value()), (0.0, 0.0));
    }
}
