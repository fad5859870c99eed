//! Which classes are *near* a class: those with the most similar prototypes in the head. Kept sparse, and computed for
//! a class and the few beside it in the head when one of them is first needed: at most once, and never for classes far
//! from those that occur.

use crate::Head;
use crate::kernels::products;

/// Neighbours per class, at most.
const NEIGHBOURS: usize = 32;

/// How many of them count, about: their weights are softmax(b · cosine) with b such that the entropy is that of `EFFECTIVE`
/// equal weights.
const EFFECTIVE: f64 = 8.0;

/// Steps of the search for b between 0 and [`SHARPEST`].
const STEPS: usize = 32;
const SHARPEST: f64 = 1e4;

/// Classes computed at once: the head is read once for all of them.
const TOGETHER: usize = 16;

/// The neighbours of each class with their weights; `None` where they are not known yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Neighbours {
    of: Vec<Option<Box<[(u32, f32)]>>>,
    cosines: Vec<f32>,
}

impl Neighbours {
    pub(super) fn new(classes: usize) -> Self {
        Self { of: vec![None; classes], cosines: Vec::new() }
    }

    /// The neighbours of a class and their weights, which add up to 1. None if there is one class only.
    pub(super) fn of(&mut self, class: usize, head: &Head) -> &[(u32, f32)] {
        if self.of[class].is_none() {
            let (classes, dim) = (head.n_classes(), head.dim());
            let first = class - class % TOGETHER;
            let last = classes.min(first + TOGETHER);
            self.cosines.resize((last - first) * classes, 0.0);
            let rows = &head.prototypes()[first * dim..last * dim];
            products(rows, head.prototypes(), dim, 1.0, &mut self.cosines);
            for (c, cosines) in (first..last).zip(self.cosines.chunks_exact(classes)) {
                self.of[c] = Some(nearest(c, cosines));
            }
        }
        self.of[class].as_deref().unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        self.of.len() * (16 + NEIGHBOURS.min(self.of.len()) * 8)
    }
}

fn nearest(class: usize, cosines: &[f32]) -> Box<[(u32, f32)]> {
    let mut order: Vec<u32> = (0..cosines.len() as u32).filter(|&c| c as usize != class).collect();
    let by_cosine = |a: &u32, b: &u32| cosines[*b as usize].total_cmp(&cosines[*a as usize]).then(a.cmp(b));
    if order.len() > NEIGHBOURS {
        order.select_nth_unstable_by(NEIGHBOURS - 1, by_cosine);
        order.truncate(NEIGHBOURS);
    }
    order.sort_unstable_by(by_cosine);
    let Some(&first) = order.first() else { return Box::default() };
    let best = cosines[first as usize] as f64;
    let below: Vec<f64> = order.iter().map(|&c| cosines[c as usize] as f64 - best).collect();
    // Entropy of softmax(b · cosine): log Σ e − b Σ e · below / Σ e, with e = exp(b · below).
    let entropy = |b: f64| {
        let (sum, weighed) = below.iter().fold((0.0, 0.0), |(sum, weighed), v| {
            let e = (b * v).exp();
            (sum + e, weighed + e * v)
        });
        sum.ln() - b * weighed / sum
    };
    let most = (order.len().max(2) as f64).ln();
    let wanted = EFFECTIVE.ln().min(0.98 * most);
    let (mut low, mut high) = (0.0, SHARPEST);
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        if entropy(middle) > wanted { low = middle } else { high = middle }
    }
    let sum: f64 = below.iter().map(|v| (high * v).exp()).sum();
    order.iter().zip(&below).map(|(&c, v)| (c, ((high * v).exp() / sum) as f32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_classes_are_near_and_weights_add_up() {
        let angle = |i: usize| (0.05 * i as f32).sin_cos();
        let rows: Vec<f32> = (0..60).flat_map(|i| [angle(i).1, angle(i).0]).collect();
        let head = Head::new(rows, 2, (0..60).map(|c| c.to_string()), 10.0).unwrap();
        let mut neighbours = Neighbours::new(60);
        let of = neighbours.of(30, &head).to_vec();
        assert_eq!(of.len(), NEIGHBOURS);
        assert!(of[..2].iter().all(|n| [29, 31].contains(&n.0)), "{of:?}");
        assert!((of.iter().map(|n| n.1).sum::<f32>() - 1.0).abs() < 1e-5);
        let entropy: f64 = of.iter().map(|n| -(n.1 as f64) * (n.1 as f64).ln()).sum();
        assert!((entropy.exp() - EFFECTIVE).abs() < 0.01, "{}", entropy.exp());
    }

    #[test]
    fn one_class_has_no_neighbours_and_two_have_each_other() {
        assert!(nearest(0, &[1.0]).is_empty());
        assert_eq!(*nearest(0, &[1.0, 0.2]), [(1, 1.0)]);
    }
}
