//! [`suggest`]: which samples to label next.
//!
//! A label helps the rows that look like its row and that are not sure. So each sample j of a pool needs help as much as
//! it is unsure, 1 − p_j, and a label for sample i helps sample j as much as the two look alike among all:
//!
//! ```text
//! alike(i, j) = max(0, cos(z_i − g, z_j − g))⁴        g = mean of the pool
//! ```
//!
//! Samples are chosen one after another, each for the help that the earlier ones leave to be had:
//! use(i) = Σ_j (1 − p_j) · max(0, alike(i, j) − alike(already chosen, j)). That is uncertain, representative, and never
//! twice the same. The use of a suggestion is in answers: it estimates how many answers of the pool hang on its label.
//!
//! What is chosen only ever lowers the use of the others. So an earlier figure is a bound, and most samples need not be
//! looked at again: the best bound is, and if it holds up nothing else can be better.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use serde::Serialize;

use crate::kernels::products;
use crate::{Error, Features, Result, Session, What};

/// Samples that are compared with one another, at most: of a larger pool an even part is taken, the most recent included.
const COMPARED: usize = 2048;

/// Power of the cosine: only what looks much alike is helped.
const POWER: i32 = 4;

/// A sample that could be labelled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unlabelled {
    /// Its id.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its calibrated probability.
    pub prob: f32,
}

/// A sample whose label would help.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// Its id.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its calibrated probability.
    pub prob: f32,
    /// About how many answers of the pool hang on its label.
    pub expected_use: f32,
}

/// The `k` samples of a pool whose labels would help most, the best first. The samples are first rows of scenes, in the
/// order of `features`.
pub fn suggest(samples: &[Unlabelled], features: &Features<'_>, k: usize) -> Result<Vec<Suggestion>> {
    if samples.len() != features.rows() {
        return Err(Error::Shape {
            what: What::Other("rows of features"),
            expected: samples.len(),
            got: features.rows(),
        });
    }
    let n = samples.len().min(COMPARED);
    if n == 0 {
        return Ok(Vec::new());
    }
    let places: Vec<usize> = (1..=n).map(|i| i * samples.len() / n - 1).collect();
    let dim = features.dim();
    let mut mean = vec![0.0f64; dim];
    for &place in &places {
        mean.iter_mut().zip(features.row(place)).for_each(|(m, v)| *m += *v as f64 / n as f64);
    }
    let mut rows = Vec::with_capacity(n * dim);
    for &place in &places {
        let centred = || features.row(place).iter().zip(&mean).map(|(v, m)| *v as f64 - m);
        let norm = centred().map(|v| v * v).sum::<f64>().sqrt().max(1e-12);
        rows.extend(centred().map(|v| (v / norm) as f32));
    }
    let mut alike = vec![0.0f32; n * n];
    products(&rows, &rows, dim, 1.0, &mut alike);
    alike.iter_mut().for_each(|a| *a = a.max(0.0).powi(POWER));
    let unsure: Vec<f32> = places.iter().map(|&place| (1.0 - samples[place].prob).clamp(0.0, 1.0)).collect();

    let chosen = choose(&alike, &unsure, k).into_iter().map(|(i, expected_use)| {
        let Unlabelled { id, label, prob } = samples[places[i]];
        Suggestion { id, label, prob, expected_use }
    });
    Ok(chosen.collect())
}

/// The use of a sample as it was when `chosen` samples had been chosen. The largest is the one of most use, the first of
/// several.
struct Bound {
    expected_use: f32,
    place: Reverse<usize>,
    chosen: usize,
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> Ordering {
        self.expected_use.total_cmp(&other.expected_use).then(self.place.cmp(&other.place))
    }
}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bound {}

/// How much a sample helps those that are unsure, beyond the help that they have.
fn use_of(alike: &[f32], helped: &[f32], unsure: &[f32]) -> f32 {
    alike.iter().zip(helped).zip(unsure).map(|((a, h), u)| u * (a - h).max(0.0)).sum()
}

/// The `k` samples to choose one after another, with their uses; `alike` has a row for each.
fn choose(alike: &[f32], unsure: &[f32], k: usize) -> Vec<(usize, f32)> {
    let n = unsure.len();
    let row = |i: usize| &alike[i * n..][..n];
    let mut helped = vec![0.0f32; n];
    let mut chosen = Vec::with_capacity(k.min(n));
    let first =
        |i: usize| Bound { expected_use: use_of(row(i), &helped, unsure), place: Reverse(i), chosen: 0 };
    let mut bounds: BinaryHeap<Bound> = (0..n).map(first).collect();
    while chosen.len() < k {
        let Some(Bound { expected_use, place: Reverse(i), chosen: at }) = bounds.pop() else { break };
        if at < chosen.len() {
            let expected_use = use_of(row(i), &helped, unsure);
            bounds.push(Bound { expected_use, place: Reverse(i), chosen: chosen.len() });
            continue;
        }
        chosen.push((i, expected_use));
        helped.iter_mut().zip(row(i)).for_each(|(h, a)| *h = h.max(*a));
    }
    chosen
}

impl Session {
    /// The `k` earlier scenes whose labels would help most, of those that are kept and have none. See [`suggest`].
    pub fn suggest(&self, k: usize) -> Result<Vec<Suggestion>> {
        let kept: Vec<_> = self.kept().into_iter().filter(|scene| scene.corrected.is_none()).collect();
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        let samples: Vec<Unlabelled> =
            kept.iter().map(|s| Unlabelled { id: s.id, label: s.label, prob: s.prob }).collect();
        let data: Vec<f32> = kept.into_iter().flat_map(|scene| scene.features).collect();
        suggest(&samples, &Features::normalized(data, self.head().dim())?, k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(angles: &[f32], probs: &[f32]) -> (Vec<Unlabelled>, Features<'static>) {
        let row = |a: &f32| [a.cos(), a.sin()];
        let features = Features::normalized(angles.iter().flat_map(row).collect::<Vec<_>>(), 2).unwrap();
        let sample = |(i, &prob): (usize, &f32)| Unlabelled { id: i as u64, label: 0, prob };
        (probs.iter().enumerate().map(sample).collect(), features)
    }

    #[test]
    fn an_unsure_sample_among_many_comes_first_and_its_like_do_not_follow() {
        // Three unsure samples together, one alone, and four that are sure.
        let angles = [0.0, 0.05, 0.1, 2.0, 4.0, 4.05, 4.1, 4.15];
        let (samples, features) = pool(&angles, &[0.3, 0.3, 0.3, 0.3, 0.99, 0.99, 0.99, 0.99]);
        let suggested = suggest(&samples, &features, 3).unwrap();
        let ids: Vec<u64> = suggested.iter().map(|s| s.id).collect();
        assert!(ids[0] <= 2 && ids[1] == 3, "{suggested:?}");
        assert!(suggested[0].expected_use > 1.5 && suggested[1].expected_use < 1.0, "{suggested:?}");
        assert!(suggested.is_sorted_by(|a, b| a.expected_use >= b.expected_use));
    }

    /// As [`choose`], looking at every sample every time.
    fn choose_plainly(alike: &[f32], unsure: &[f32], k: usize) -> Vec<(usize, f32)> {
        let n = unsure.len();
        let mut helped = vec![0.0f32; n];
        let mut chosen: Vec<(usize, f32)> = Vec::new();
        while chosen.len() < k.min(n) {
            let left = (0..n).filter(|i| chosen.iter().all(|(c, _)| c != i));
            let uses = left.map(|i| (i, use_of(&alike[i * n..][..n], &helped, unsure)));
            let best = uses.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap();
            chosen.push(best);
            helped.iter_mut().zip(&alike[best.0 * n..][..n]).for_each(|(h, a)| *h = h.max(*a));
        }
        chosen
    }

    #[test]
    fn looking_at_few_chooses_as_looking_at_all_does() {
        let mut seed = 7u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 40) as f32 / (1 << 24) as f32
        };
        for n in [1, 2, 17, 90] {
            // Coarse numbers, so that many are equal: of equals the first is chosen.
            let alike: Vec<f32> = (0..n * n).map(|_| (random() * 4.0).floor() / 4.0).collect();
            let unsure: Vec<f32> = (0..n).map(|_| (random() * 3.0).floor() / 3.0).collect();
            for k in [1, 5, n, n + 3] {
                assert_eq!(choose(&alike, &unsure, k), choose_plainly(&alike, &unsure, k), "{k} of {n}");
            }
        }
    }

    #[test]
    fn a_pool_has_no_more_than_it_has_and_may_be_large() {
        let (samples, features) = pool(&[0.0, 1.0], &[0.5, 0.5]);
        assert_eq!(suggest(&samples, &features, 9).unwrap().len(), 2);
        assert!(suggest(&samples[..1], &features, 9).is_err());
        let angles: Vec<f32> = (0..3000).map(|i| i as f32).collect();
        let (samples, features) = pool(&angles, &vec![0.5; 3000]);
        let suggested = suggest(&samples, &features, 5).unwrap();
        assert!(suggested.len() == 5 && suggested.iter().all(|s| s.id < 3000));
    }
}
