//! The frozen model asked twice, with each half of a feature's dimensions: how often both halves name the same class, and how much
//! their posteriors overlap, tells how right its answers are, whatever it claims.

use super::MOST;
use crate::blocks::PASS_ROWS;
use crate::kernels::{exp, fold_lanes, leading_products, max, products, vectorised};
use crate::{Features, Head, Result, State};

/// The halves are compared at each of the first scenes, later at every 64th.
pub(super) const DENSE: u64 = 256;
const SPARSE: u64 = 64;

/// Whether the halves are compared at a scene, once not every scene is.
pub(crate) fn is_compared(scene: u64) -> bool {
    scene >= DENSE && scene.is_multiple_of(SPARSE)
}

/// Half-life, in scenes, of the comparison of the halves.
const HALVES_HALF_LIFE: f64 = 4096.0;

/// Where the correction's inputs are centred, and their scale: overlap, agreement, share of early scenes.
const CENTRES: [(f64, f64); 3] = [(0.5, 0.25), (0.5, 0.25), (0.4, 0.3)];

/// The correction of the mean probability: constant, overlap, agreement, early; overlap², overlap · agreement, agreement².
/// Fitted by `docs/estimate.py`.
const CORRECTION: [f64; 7] = [0.0165, -0.0126, 0.0362, 0.0139, 0.0495, -0.0472, -0.0181];

/// An accuracy is no higher than this much plus agreement and overlap of the halves: answers on which the halves never
/// agree say nothing of the image.
const CAP: f64 = 0.45;

/// In fewer dimensions a half knows too little for a correction.
const MIN_DIM: usize = 64;

/// The frozen model asked twice, with each half of the dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Halves {
    /// Scenes compared, by weight.
    weight: f64,
    /// Weighted sums: posterior overlap, and whether both name the same class.
    overlap: f64,
    agree: f64,
    /// How often each half names each class.
    named: [Vec<f64>; 2],
    /// Agreement by chance: Σ_c share of the first · share of the second.
    chance: f64,
    /// Whether the halves have dimensions enough.
    large: bool,
    /// Buffers: rows, or one of which one half is 0; the logits of the two halves.
    rows: Vec<f32>,
    logits: [Vec<f32>; 2],
    /// Places of rows whose first half's logits are ready, and these.
    places: Vec<usize>,
    ready: Vec<f32>,
}

impl Halves {
    pub(crate) fn new(classes: usize, dim: usize) -> Self {
        let named = [vec![0.0; classes], vec![0.0; classes]];
        Self {
            weight: 0.0,
            overlap: 0.0,
            agree: 0.0,
            named,
            chance: 0.0,
            large: dim >= MIN_DIM,
            rows: Vec::new(),
            logits: Default::default(),
            places: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// The share of so many samples that came early.
    pub(crate) fn early(samples: u64) -> f64 {
        (DENSE as f64 / samples.max(1) as f64).min(1.0)
    }

    /// As before anything was compared.
    pub(super) fn fresh(&self) -> Self {
        Self { large: self.large, ..Self::new(self.named[0].len(), 0) }
    }

    /// Forgets what was prepared.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.ready.clear();
    }

    /// Takes the first half's logits of a row, which are known.
    pub(super) fn know(&mut self, place: usize, logits: &[f32]) {
        self.places.push(place);
        self.ready.extend_from_slice(logits);
    }

    /// Computes the first half's logits of some rows at once: for one row alone the whole head is read, too.
    pub(super) fn prepare(&mut self, rows: &Features<'_>, places: impl Iterator<Item = usize>, head: &Head) {
        let (dim, classes, scale) = (head.dim(), head.n_classes(), head.logit_scale());
        self.rows.clear();
        for place in places.take(PASS_ROWS) {
            self.places.push(place);
            self.rows.extend_from_slice(rows.row(place));
        }
        self.ready.resize(self.places.len() * classes, 0.0);
        leading_products(&self.rows, head.prototypes(), [dim, dim / 2], scale, &mut self.ready);
    }

    /// Compares the halves on the first image of a scene, before which there were so many, if they are due there. Its logits are
    /// known; `place` is its place among the rows that were prepared, if any were.
    pub(crate) fn meet(&mut self, z: &[f32], logits: &[f32], place: Option<usize>, head: &Head, scenes: u64) {
        if scenes < DENSE {
            self.compare(z, logits, place, head, 1.0);
        } else if is_compared(scenes) {
            self.compare(z, logits, place, head, SPARSE as f64);
        }
    }

    fn compare(&mut self, z: &[f32], logits: &[f32], place: Option<usize>, head: &Head, weight: f64) {
        let (dim, scale) = (head.dim(), head.logit_scale());
        let half = dim / 2;
        let [first, second] = &mut self.logits;
        first.clear();
        match place.and_then(|place| self.places.binary_search(&place).ok()) {
            Some(ready) => first.extend_from_slice(&self.ready[ready * logits.len()..][..logits.len()]),
            None => {
                first.resize(logits.len(), 0.0);
                leading_products(z, head.prototypes(), [dim, half], scale, first);
            }
        }
        if head.anchors_apart().is_some() {
            // Where a class has several anchors its logit is no sum of two halves.
            self.rows.clear();
            self.rows.resize(dim, 0.0);
            self.rows[half..].copy_from_slice(&z[half..]);
            second.resize(logits.len(), 0.0);
            products(&self.rows, head.prototypes(), dim, scale, second);
        } else {
            second.clear();
            second.extend(logits.iter().zip(first.iter()).map(|(whole, first)| whole - first));
        }
        let best = [&*first, &*second].map(|half| {
            let top = max(half);
            half.iter().position(|&logit| logit == top).unwrap_or(0)
        });
        for (half, best) in [&mut *first, &mut *second].into_iter().zip(best) {
            let top = half[best];
            vectorised(
                #[inline(always)]
                // A half has half the logit's size: twice the temperature makes it whole.
                || half.iter_mut().for_each(|logit| *logit = exp(2.0 * (*logit - top))),
            );
        }
        let sum = |half: &[f32]| fold_lanes(half, half, |weight, _| weight);
        let overlap =
            fold_lanes(first, second, |a, b| a * b) / (sum(first) * sum(second)).max(f32::MIN_POSITIVE);
        let keep = if weight > 1.0 { 0.5f64.powf(weight / HALVES_HALF_LIFE) } else { 1.0 };
        self.weight = self.weight * keep + weight;
        self.overlap = self.overlap * keep + weight * f64::from(overlap);
        self.agree = self.agree * keep + if best[0] == best[1] { weight } else { 0.0 };
        for (named, best) in self.named.iter_mut().zip(best) {
            if keep < 1.0 {
                named.iter_mut().for_each(|n| *n *= keep);
            }
            named[best] += weight;
        }
        self.reckon_chance();
    }

    fn reckon_chance(&mut self) {
        let both: f64 = self.named[0].iter().zip(&self.named[1]).map(|(a, b)| a * b).sum();
        self.chance = if self.weight > 0.0 { both / (self.weight * self.weight) } else { 0.0 };
    }

    /// Mean overlap of the halves' posteriors, and their agreement beyond chance.
    pub(super) fn reading(&self) -> Option<(f64, f64)> {
        if self.weight <= 0.0 {
            return None;
        }
        let agree = self.agree / self.weight;
        let beyond = (agree - self.chance) / (1.0 - self.chance).max(1e-3);
        Some((self.overlap / self.weight, beyond.clamp(0.0, 1.0)))
    }

    /// Whether they have dimensions enough to correct a claim; else they only cap it.
    pub(crate) fn are_large(&self) -> bool {
        self.large
    }

    /// How right answers are that claim this probability on the mean, when this share of them came early; the claim itself
    /// while nothing was compared.
    pub(crate) fn corrected(&self, claim: f64, early: f64) -> f64 {
        let Some((overlap, agreement)) = self.reading() else { return claim };
        corrected(claim, [overlap, agreement, early], self.large)
    }

    pub(crate) fn bytes(&self) -> usize {
        2 * size_of::<f64>() * self.named[0].len()
    }

    /// Writes what was compared under a prefix.
    pub(crate) fn save(&self, prefix: &str, state: &mut State) {
        state.put(format!("{prefix}halves"), &[self.weight, self.overlap, self.agree]);
        state.put(format!("{prefix}named"), &self.named.concat());
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(crate) fn load(&mut self, prefix: &str, state: &State) -> Result<()> {
        let classes = self.named[0].len();
        let halves = state.within::<f64>(&format!("{prefix}halves"), 3, 0.0..=MOST)?;
        let named = state.within::<f64>(&format!("{prefix}named"), 2 * classes, 0.0..=MOST)?;
        (self.weight, self.overlap, self.agree) = (halves[0], halves[1], halves[2]);
        self.named = [named[..classes].to_vec(), named[classes..].to_vec()];
        self.reckon_chance();
        Ok(())
    }
}

/// The mean probability of the frozen answers, corrected by what the halves tell; only capped where they are small.
fn corrected(mean: f64, inputs: [f64; 3], large: bool) -> f64 {
    let [o, a, e]: [f64; 3] = std::array::from_fn(|i| (inputs[i] - CENTRES[i].0) / CENTRES[i].1);
    let terms = [1.0, o, a, e, o * o, o * a, a * a];
    let correction: f64 = CORRECTION.iter().zip(terms).map(|(b, x)| b * x).sum();
    let most = (CAP + inputs[0] + inputs[1]).min(0.995);
    (mean.min(most) + if large { correction } else { 0.0 }).clamp(0.02, most)
}

pub(crate) fn log_odds(p: f64) -> f64 {
    let p = p.clamp(0.005, 0.995);
    (p / (1.0 - p)).ln()
}

pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes along the axes, each image at its class's anchor in both halves, or in one half only.
    fn halves(agree: bool) -> (f64, f64) {
        let mut anchors = vec![0.0f32; 4 * 8];
        (0..4).for_each(|c| {
            anchors[c * 8 + c] = 0.5f32.sqrt();
            anchors[c * 8 + 4 + c] = 0.5f32.sqrt();
        });
        let head = Head::new(anchors, 8, ["a", "b", "c", "d"], 20.0).unwrap();
        let mut halves = Halves::new(4, 8);
        for i in 0..64 {
            let mut z = [0.0f32; 8];
            z[i % 4] = 0.5f32.sqrt();
            z[4 + if agree { i % 4 } else { i / 4 % 4 }] = 0.5f32.sqrt();
            let logits: Vec<f32> =
                (0..4).map(|c| 20.0 * fold_lanes(&z, head.prototype(c), |a, b| a * b)).collect();
            halves.compare(&z, &logits, Some(i), &head, 1.0);
        }
        halves.reading().unwrap()
    }

    #[test]
    fn halves_agree_beyond_chance_or_not() {
        let (overlap, agreement) = halves(true);
        assert!(overlap > 0.99 && agreement > 0.99, "{overlap} {agreement}");
        let (overlap, agreement) = halves(false);
        assert!((overlap - 0.25).abs() < 0.01 && agreement < 1e-9, "{overlap} {agreement}");
    }

    #[test]
    fn answers_that_say_nothing_of_the_image_are_not_believed() {
        for large in [false, true] {
            assert!(corrected(0.99, [0.05, 0.0, 0.1], large) <= CAP + 0.05);
            assert_eq!(corrected(0.01, [0.0, 0.0, 0.1], false), 0.02);
        }
        for mean in [0.2, 0.5, 0.9] {
            let better = corrected(mean, [0.4, 0.8, 0.1], true);
            assert!(better > corrected(mean, [0.4, 0.3, 0.1], true), "{mean}: more agreement, more accuracy");
        }
    }
}
