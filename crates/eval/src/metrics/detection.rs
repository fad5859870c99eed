//! Ranking metrics: how well a score tells strangers from known samples, and right answers from wrong ones.

use serde::{Deserialize, Serialize};

/// How well a score tells in-distribution samples (the positives, high scores) from strangers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// Area under the ROC curve; ties count half.
    pub auroc: f64,
    /// Average precision (the area under the precision–recall curve, without interpolation).
    pub aupr: f64,
    /// Share of strangers accepted at the highest threshold that accepts 95 % of the known.
    pub fpr95: f64,
}

impl Detection {
    /// From the scores of known samples and of strangers; `None` if either is missing.
    pub fn of(known: &[f32], strangers: &[f32]) -> Option<Self> {
        if known.is_empty() || strangers.is_empty() {
            return None;
        }
        let all = ranked(known, strangers);
        Some(Self::of_ranked(&all, &vec![1; all.len()]))
    }

    /// The same metrics over ranked scores; each score has a count, which may be 0.
    pub(super) fn of_ranked(ranked: &[(f32, bool)], times: &[u16]) -> Self {
        let count = |known: bool| {
            ranked.iter().zip(times).filter(|(r, _)| r.1 == known).map(|(_, &t)| t as f64).sum::<f64>()
        };
        let (positives, negatives) = (count(true), count(false));
        let (mut hits, mut alarms) = (0.0, 0.0);
        let (mut auroc, mut aupr, mut fpr95) = (0.0, 0.0, None);
        // Equal scores cross the threshold together.
        let mut times = times;
        for group in ranked.chunk_by(|a, b| a.0 == b.0) {
            let (own_times, later) = times.split_at(group.len());
            times = later;
            let (mut own, mut other) = (0.0, 0.0);
            for (g, &t) in group.iter().zip(own_times) {
                *if g.1 { &mut own } else { &mut other } += t as f64;
            }
            if own + other == 0.0 {
                continue;
            }
            auroc += other * (hits + own / 2.0);
            (hits, alarms) = (hits + own, alarms + other);
            aupr += own / positives * hits / (hits + alarms);
            if fpr95.is_none() && hits >= 0.95 * positives {
                fpr95 = Some(alarms / negatives);
            }
        }
        Self { auroc: auroc / positives / negatives, aupr, fpr95: fpr95.unwrap_or(1.0) }
    }
}

/// All scores from the highest down, each with whether it is of a known sample.
pub(super) fn ranked(known: &[f32], strangers: &[f32]) -> Vec<(f32, bool)> {
    let mut all: Vec<(f32, bool)> =
        known.iter().map(|&s| (s, true)).chain(strangers.iter().map(|&s| (s, false))).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all
}

/// Area under the risk–coverage curve: the mean over k of the share of wrong answers among the k most certain.
/// Among equal probabilities the order is taken as random: wrong answers spread evenly over the tie.
pub fn aurc(answers: &[(f64, bool)]) -> f64 {
    let mut sorted: Vec<(f64, bool)> = answers.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut wrong, mut seen) = (0.0, 0.0, 0.0);
    for group in sorted.chunk_by(|a, b| a.0 == b.0).rev() {
        let share = group.iter().filter(|g| !g.1).count() as f64 / group.len() as f64;
        for _ in group {
            wrong += share;
            seen += 1.0;
            sum += wrong / seen;
        }
    }
    sum / (sorted.len() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_of_a_handful() {
        let perfect = Detection::of(&[0.9, 0.8], &[0.1, 0.2]).unwrap();
        assert_eq!(perfect, Detection { auroc: 1.0, aupr: 1.0, fpr95: 0.0 });
        let blind = Detection::of(&[0.5, 0.5], &[0.5, 0.5]).unwrap();
        assert_eq!(blind, Detection { auroc: 0.5, aupr: 0.5, fpr95: 1.0 });
        assert_eq!(Detection::of(&[], &[0.5]), None);
    }

    #[test]
    fn risk_and_coverage() {
        // risks 0, 1/2, 1/3
        assert!((aurc(&[(0.9, true), (0.8, false), (0.7, true)]) - (0.5 + 1.0 / 3.0) / 3.0).abs() < 1e-12);
        // a tie: half a wrong answer at each place
        assert!((aurc(&[(0.5, true), (0.5, false)]) - 0.5).abs() < 1e-12);
        assert_eq!(aurc(&[]), 0.0);
    }
}
