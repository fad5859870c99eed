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

use serde::Serialize;

use crate::kernels::products;
use crate::{Error, Features, Result, Session};

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
        return Err(Error::Shape { what: "rows of features", expected: samples.len(), got: features.rows() });
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

    let mut helped = vec![0.0f32; n];
    let mut chosen: Vec<Suggestion> = Vec::new();
    let mut left: Vec<usize> = (0..n).collect();
    while chosen.len() < k && !left.is_empty() {
        let use_of = |i: usize| -> f32 {
            let row = &alike[i * n..][..n];
            row.iter().zip(&helped).zip(&unsure).map(|((a, h), u)| u * (a - h).max(0.0)).sum()
        };
        let (at, expected_use) =
            left.iter().map(|&i| use_of(i)).enumerate().fold((0, f32::NEG_INFINITY), |best, (at, value)| {
                if value > best.1 { (at, value) } else { best }
            });
        let i = left.swap_remove(at);
        left.sort_unstable();
        let Unlabelled { id, label, prob } = samples[places[i]];
        chosen.push(Suggestion { id, label, prob, expected_use });
        let row = &alike[i * n..][..n];
        helped.iter_mut().zip(row).for_each(|(h, a)| *h = h.max(*a));
    }
    Ok(chosen)
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
