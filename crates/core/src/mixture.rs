//! [`Mixture`]: several anchors per class, kept apart. A class scores the soft maximum over its anchors.
//!
//! ```text
//! ℓ_c = (1/t) log Σ_k w_k exp(t s⟨z, a_ck⟩),   Σ_k w_k = 1 within a class
//! ```
//!
//! With sharpness t → 0 it is the weighted mean of the anchors' logits, with t → ∞ their maximum; t = 1 adds up the
//! probabilities that each anchor would give. The folded mean, one unit row per class, stands beside it: methods that
//! move prototypes move that one.

use std::ops::RangeInclusive;

use crate::kernels::{self, exp};
use crate::{Anchor, Error, Result, Scores};

/// Sharpness that a mixture may have.
pub const SHARPNESSES: RangeInclusive<f32> = 1e-3..=1e3;

/// Anchors of all classes, class after class.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mixture {
    /// Unit rows.
    pub anchors: Vec<f32>,
    /// The anchors of class c are the rows `first[c]..first[c + 1]`.
    pub first: Vec<usize>,
    /// w, per row; they sum to 1 within a class.
    pub weights: Vec<f32>,
    /// t.
    pub sharpness: f32,
}

impl Mixture {
    /// Of anchors that have been checked: every class has one, lengths are not 0.
    pub(crate) fn new(anchors: &[Anchor<'_>], dim: usize, classes: usize, sharpness: f32) -> Result<Self> {
        check_sharpness(sharpness)?;
        let mut mixture = Self { anchors: Vec::new(), first: vec![0], weights: Vec::new(), sharpness };
        for class in 0..classes {
            let own = || anchors.iter().filter(move |a| a.class == class && a.weight > 0.0);
            let total: f64 = own().map(|a| a.weight as f64).sum();
            for anchor in own() {
                let norm = kernels::dot_f64(anchor.vector, anchor.vector).sqrt();
                mixture.anchors.extend(anchor.vector.iter().map(|&v| (v as f64 / norm) as f32));
                mixture.weights.push((anchor.weight as f64 / total) as f32);
            }
            mixture.first.push(mixture.anchors.len() / dim);
        }
        Ok(mixture)
    }

    /// Its anchors; those of a class count `weight` together.
    pub(crate) fn all(&self, dim: usize, weight: f32) -> impl Iterator<Item = Anchor<'_>> {
        self.first.windows(2).enumerate().flat_map(move |(class, bounds)| {
            (bounds[0]..bounds[1]).map(move |row| Anchor {
                class,
                vector: &self.anchors[row * dim..][..dim],
                weight: weight * self.weights[row],
            })
        })
    }

    /// Every class's soft maximum for some rows.
    pub(crate) fn scores(&self, rows: &[f32], dim: usize, scale: f32, out: &mut Scores) {
        let each = self.weights.len();
        let mut logits = vec![0.0; rows.len() / dim * each];
        kernels::products(rows, &self.anchors, dim, scale, &mut logits);
        for (row, logits) in logits.chunks(each.max(1)).enumerate() {
            let out = out.row_mut(row);
            for (class, bounds) in self.first.windows(2).enumerate() {
                let range = bounds[0]..bounds[1];
                out[class] = soft_maximum(&logits[range.clone()], &self.weights[range], self.sharpness);
            }
        }
    }
}

/// Refuses a sharpness out of range.
pub(crate) fn check_sharpness(sharpness: f32) -> Result<()> {
    if SHARPNESSES.contains(&sharpness) {
        return Ok(());
    }
    let (least, most) = (SHARPNESSES.start(), SHARPNESSES.end());
    Err(Error::config("sharpness", format!("expected a number from {least} to {most}, got {sharpness}")))
}

fn soft_maximum(logits: &[f32], weights: &[f32], sharpness: f32) -> f32 {
    if let [one] = logits {
        return *one;
    }
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().zip(weights).map(|(l, w)| w * exp(sharpness * (l - most))).sum();
    most + sum.max(f32::MIN_POSITIVE).ln() / sharpness
}

#[cfg(test)]
mod tests {
    use crate::{Anchor, Features, Head};

    fn anchors() -> [Anchor<'static>; 3] {
        let a = |class, vector, weight| Anchor { class, vector, weight };
        [a(0, &[1.0, 0.0], 3.0), a(0, &[0.0, 2.0], 1.0), a(1, &[0.6, 0.8], 1.0)]
    }

    #[test]
    fn a_class_scores_the_soft_maximum_of_its_anchors() {
        let z = Features::new(vec![0.8, 0.6], 2).unwrap();
        let scores = |t: f32| {
            let head = Head::from_anchors_apart(&anchors(), 2, ["x", "y"], 10.0, t).unwrap();
            head.zero_shot(&z).unwrap().row(0).to_vec()
        };
        let wanted = |t: f64| (0.75 * (t * 8.0).exp() + 0.25 * (t * 6.0).exp()).ln() / t;
        for t in [0.1f32, 1.0, 5.0] {
            assert!((scores(t)[0] as f64 - wanted(t as f64)).abs() < 1e-4, "{t}: {:?}", scores(t));
            assert!((scores(t)[1] - 9.6).abs() < 1e-5);
        }
        // nearly the mean of the logits, nearly their maximum
        assert!((scores(1e-3)[0] - 7.5).abs() < 1e-2 && (scores(1e3)[0] - 8.0).abs() < 1e-2);
    }

    #[test]
    fn a_mixture_survives_its_file_and_is_another_head() {
        let apart = Head::from_anchors_apart(&anchors(), 2, ["x", "y"], 10.0, 2.0).unwrap();
        let folded = Head::from_anchors(&anchors(), 2, ["x", "y"], 10.0).unwrap();
        assert_eq!(apart.prototypes(), folded.prototypes());
        assert_ne!(apart.digest(), folded.digest());
        let read = Head::from_bytes(&apart.to_bytes().unwrap()).unwrap();
        assert_eq!(read.digest(), apart.digest());
        let z = Features::new(vec![0.8, 0.6], 2).unwrap();
        assert_eq!(read.zero_shot(&z).unwrap(), apart.zero_shot(&z).unwrap());
        assert_ne!(folded.zero_shot(&z).unwrap(), apart.zero_shot(&z).unwrap());
        assert_eq!((apart.anchors_apart(), folded.anchors_apart()), (Some(3), None));
        // Further anchors join those that are apart, which count 1 together.
        let vector = [0.6, 0.8];
        let more = Anchor { class: 0, vector: &vector, weight: 1.0 };
        let joined = apart.with_anchors_apart(1.0, &[more], 2.0).unwrap();
        let wanted = (0.375 * 16f64.exp() + 0.125 * 12f64.exp() + 0.5 * 19.2f64.exp()).ln() / 2.0;
        let got = joined.zero_shot(&z).unwrap().row(0)[0] as f64;
        assert!(joined.anchors_apart() == Some(4) && (got - wanted).abs() < 1e-4, "{got} {wanted}");
    }

    #[test]
    fn a_sharpness_out_of_range_is_refused() {
        for t in [0.0, -1.0, f32::NAN, 1e4] {
            let refused =
                Head::from_anchors_apart(&anchors(), 2, ["x", "y"], 10.0, t).unwrap_err().to_string();
            assert!(refused.contains("sharpness"), "{refused}");
        }
    }
}
