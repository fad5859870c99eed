//! [`Arrival`]: how the samples of a stream follow one another.

use crate::dataset::Dataset;
use crate::random::Random;
use crate::stream::Sample;

/// Samples in one time slot of a Dirichlet stream.
const SLOT: usize = 128;

/// How samples follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// The file's own order: the paper's protocol.
    File,
    /// Shuffled.
    Iid,
    /// Class after class in label order.
    Sorted,
    /// Class after class in random order.
    Runs,
    /// Temporally correlated: each class is spread over time slots by a Dirichlet distribution.
    Dirichlet(f64),
    /// Imbalanced: class frequencies fall as 1 / rank^s; shuffled.
    Zipf(f64),
    /// Only this share of the classes occurs; shuffled.
    Partial(f64),
    /// At most `classes` classes within `batch` consecutive samples.
    Few {
        /// Classes at a time.
        classes: usize,
        /// Samples until the classes change.
        batch: usize,
    },
    /// All packs one after another without reset, each in its file's own order: the paper's protocol for several domains.
    Domains,
    /// All packs one after another without reset, and the first again.
    Continual,
    /// All packs, each fading into the next.
    Gradual,
}

/// The rows of each class, shuffled.
fn rows_by_class(labels: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
    let mut by_class = vec![Vec::new(); labels.iter().max().map_or(0, |m| m + 1)];
    labels.iter().enumerate().for_each(|(row, &label)| by_class[label].push(row));
    by_class.retain(|rows| !rows.is_empty());
    by_class.iter_mut().for_each(|rows| random.shuffle(rows));
    by_class
}

/// Each class spreads over the slots by its own draw from a symmetric Dirichlet distribution; within a slot the order is random.
pub(crate) fn dirichlet(labels: &[usize], gamma: f64, random: &mut Random) -> Vec<usize> {
    let by_class = rows_by_class(labels, random);
    let slots = labels.len().div_ceil(SLOT).min(by_class.len()).max(1);
    let mut out = vec![Vec::new(); slots];
    for rows in by_class {
        let shares = random.dirichlet(gamma, slots);
        let (mut from, mut sum) = (0, 0.0);
        for (slot, share) in out.iter_mut().zip(shares) {
            sum += share;
            let to = ((sum * rows.len() as f64).round() as usize).clamp(from, rows.len());
            slot.extend_from_slice(&rows[from..to]);
            from = to;
        }
        out[slots - 1].extend_from_slice(&rows[from..]);
    }
    out.iter_mut().for_each(|slot| random.shuffle(slot));
    out.concat()
}

/// The class of rank r keeps 1/r^s of the rows of the largest class, at least one; ranks are drawn at random.
pub(crate) fn zipf(labels: &[usize], exponent: f64, random: &mut Random) -> Vec<usize> {
    let mut by_class = rows_by_class(labels, random);
    random.shuffle(&mut by_class);
    let largest = by_class.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let mut out = Vec::new();
    for (rank, rows) in by_class.iter().enumerate() {
        let keep = (largest / (rank as f64 + 1.0).powf(exponent)).round() as usize;
        out.extend_from_slice(&rows[..keep.clamp(1, rows.len())]);
    }
    random.shuffle(&mut out);
    out
}

/// Batch after batch of few classes, drawn among those with rows left.
pub(crate) fn few(labels: &[usize], classes: usize, batch: usize, random: &mut Random) -> Vec<usize> {
    let mut by_class = rows_by_class(labels, random);
    let mut out = Vec::with_capacity(labels.len());
    while !by_class.is_empty() {
        random.shuffle(&mut by_class);
        let chosen = classes.min(by_class.len());
        for _ in 0..batch {
            let alive: Vec<usize> = (0..chosen).filter(|&c| !by_class[c].is_empty()).collect();
            let Some(_) = alive.first() else { break };
            out.extend(by_class[alive[random.below(alive.len())]].pop());
        }
        by_class.retain(|rows| !rows.is_empty());
    }
    out
}

/// At time t ∈ [0, 1] pack i is drawn with weight max(0, 1 − |t (P − 1) − i|), as long as it has rows left.
pub(crate) fn gradual(datasets: &[&Dataset], random: &mut Random) -> Vec<Sample> {
    let mut left: Vec<Vec<usize>> = datasets.iter().map(|d| (0..d.pack.rows()).collect()).collect();
    left.iter_mut().for_each(|rows| random.shuffle(rows));
    let total: usize = left.iter().map(Vec::len).sum();
    let mut out = Vec::with_capacity(total);
    for i in 0..total {
        let place = i as f64 / total as f64 * (left.len() - 1) as f64;
        let near = |pack: usize| (1.0 - (place - pack as f64).abs()).max(1e-9);
        let weights: Vec<f64> =
            (0..left.len()).map(|p| if left[p].is_empty() { 0.0 } else { near(p) }).collect();
        let mut at = random.uniform() * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|w| {
            at -= w;
            at < 0.0
        });
        let pack = drawn.unwrap_or_else(|| weights.iter().position(|w| *w > 0.0).unwrap_or(0));
        out.extend(left[pack].pop().map(|row| Sample::known(pack, row)));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn labels() -> Vec<usize> {
        (0..1000).map(|i| i % 20).collect()
    }

    fn sorted(mut rows: Vec<usize>) -> Vec<usize> {
        rows.sort_unstable();
        rows
    }

    #[test]
    fn dirichlet_keeps_all_rows_and_gathers_classes() {
        let labels = labels();
        let changes = |rows: &[usize]| rows.windows(2).filter(|w| labels[w[0]] != labels[w[1]]).count();
        let mild = dirichlet(&labels, 100.0, &mut Random::new(1));
        let strong = dirichlet(&labels, 0.001, &mut Random::new(1));
        assert_eq!(sorted(strong.clone()), (0..1000).collect::<Vec<_>>());
        assert!(changes(&strong) < changes(&mild));
        assert_eq!(strong, dirichlet(&labels, 0.001, &mut Random::new(1)), "the seed decides");
    }

    #[test]
    fn zipf_thins_the_classes() {
        let labels = labels();
        let rows = zipf(&labels, 1.0, &mut Random::new(2));
        let mut counts = [0; 20];
        rows.iter().for_each(|&r| counts[labels[r]] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(counts[..4], [50, 25, 17, 13]);
        assert_eq!(zipf(&labels, 0.0, &mut Random::new(2)).len(), 1000);
    }

    #[test]
    fn few_limits_the_classes_of_a_batch() {
        let labels = labels();
        let rows = few(&labels, 3, 60, &mut Random::new(3));
        assert_eq!(sorted(rows.clone()), (0..1000).collect::<Vec<_>>());
        let distinct: HashSet<usize> = rows[..60].iter().map(|&r| labels[r]).collect();
        assert_eq!(distinct.len(), 3);
    }
}
