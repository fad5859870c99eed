//! The score of *known* that goes by text and image: how well an image fits a class's text among this stream's images, and
//! on which side of the stream's own cone of images it lies.
//!
//! ```text
//! fit   = max_c ⟨z − g, w_c − w̄⟩ / (‖z − g‖ ‖w_c − w̄‖)      g the mean image, w̄ the mean anchor
//! side  = ⟨z, u − l⟩ / ‖u − l‖                              u, l mean images that fit well and badly
//! score = standardised fit + standardised side
//! ```
//!
//! An image counts for u if fit and best logit, both standardised, are above the mean *of the images with the same answer*,
//! for l if they are well below it. So u and l have the same mix of classes, and their difference is not that between an
//! easy and a hard class. All means follow the stream; nothing here looks at labels.

use crate::kernels::{LANES, fold_lanes, max_lanes, padded, sum_each, sum_lanes, vectorised};
use crate::scores::Summary;
use crate::{Error, Head, Result, State};

/// A mean follows about this many of the last images.
const MEMORY: f64 = 16_384.0;

/// Images before the parts of the score are measured, before they are compared within a class, and before u and l take any in.
const BEGINNINGS: [u64; 3] = [8, 25, 48];

/// Values that tell no spread yet: nothing is standardised by so few.
const FEW: f64 = 16.0;

/// u and l speak once each holds this many images.
const SPEAKS: f64 = 8.0;

/// An image counts for l if it is this many standard deviations below the mean of its class.
const WELL_BELOW: f64 = 0.85;

/// Images that the mean over all classes is worth in the mean of one.
const CLASS_HOLD: f64 = 8.0;

/// A running mean and variance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moments {
    n: f64,
    mean: f64,
    variance: f64,
}

impl Moments {
    fn push(&mut self, x: f64) {
        self.n = (self.n + 1.0).min(MEMORY);
        let ahead = x - self.mean;
        self.mean += ahead / self.n;
        self.variance += (ahead * (x - self.mean) - self.variance) / self.n;
    }

    /// Mean, and 1 / deviation; 0 before the deviation is known.
    fn scale(&self) -> Scale {
        let unit = if self.n > FEW { 1.0 / (self.variance + 1e-12).sqrt() } else { 0.0 };
        Scale { mean: self.mean, unit }
    }

    fn standardised(&self, x: f64) -> f64 {
        self.scale().of(x)
    }
}

/// How a value is standardised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub mean: f64,
    pub unit: f64,
}

impl Scale {
    /// Leaves values as they are.
    pub(super) const PLAIN: Self = Self { mean: 0.0, unit: 1.0 };

    pub(super) fn of(self, x: f64) -> f64 {
        (x - self.mean) * self.unit
    }
}

/// A running mean of vectors.
#[derive(Clone, Debug, PartialEq)]
struct Mean {
    n: f64,
    values: Vec<f32>,
}

impl Mean {
    fn new(len: usize) -> Self {
        Self { n: 0.0, values: vec![0.0; len] }
    }

    /// Counts one more row; its share in the mean.
    fn next_share(&mut self) -> f32 {
        self.n = (self.n + 1.0).min(MEMORY);
        (1.0 / self.n) as f32
    }

    /// Takes in a row; Σ term(mean, other) after that, in lanes.
    fn push(&mut self, row: &[f32], other: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
        let share = self.next_share();
        vectorised(
            #[inline(always)]
            || {
                let [share] = [share];
                let mut lanes = [0.0f32; LANES];
                let (means, mean_tail) = self.values.as_chunks_mut::<LANES>();
                let (rows, row_tail) = row.as_chunks::<LANES>();
                let (others, other_tail) = other.as_chunks::<LANES>();
                for ((mean, row), other) in means.iter_mut().zip(rows).zip(others) {
                    let mut moved = [0.0f32; LANES];
                    for i in 0..LANES {
                        moved[i] = mean[i] + share * (row[i] - mean[i]);
                        lanes[i] += term(moved[i], other[i]);
                    }
                    *mean = moved;
                }
                let tail = mean_tail.iter_mut().zip(row_tail).zip(other_tail).map(|((mean, row), other)| {
                    *mean += share * (row - *mean);
                    term(*mean, *other)
                });
                sum_lanes(lanes, tail)
            },
        )
    }
}

/// What is said of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// The score.
    pub score: f64,
    /// Fit and side as measured; the side is 0 before u and l speak.
    pub parts: [f64; 2],
    /// Whether the side is part of the score.
    pub sided: bool,
    /// Whether u and l speak.
    spoken: bool,
    best: f64,
}

/// The score's means.
#[derive(Clone, Debug)]
pub(super) struct Cone {
    /// 1 / ‖w_c − w̄‖, and 1 / logit scale.
    lengths: Vec<f32>,
    unscale: f32,
    seen: u64,
    /// g, and ⟨g, w_c⟩ less its mean over the classes.
    image: Mean,
    texts: Mean,
    /// u and l.
    good: Mean,
    bad: Mean,
    /// Moments of fit, best logit, their sum, and side.
    moments: [Moments; 4],
    /// Per class: answers, and the mean of the sum.
    classes: Vec<[f64; 2]>,
    /// ‖g‖² and ‖u − l‖², which follow from the means.
    squares: [f32; 2],
}

impl Cone {
    pub(super) fn new(head: &Head) -> Self {
        let (classes, dim) = (head.n_classes(), head.dim());
        let mut mean = Mean::new(dim);
        for c in 0..classes {
            mean.push(head.prototype(c), head.prototype(c), |_, _| 0.0);
        }
        let length = |c: usize| {
            let apart = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
            let square: f64 = head.prototype(c).iter().zip(&mean.values).map(apart).sum();
            (1.0 / square.sqrt().max(1e-3)) as f32
        };
        Self {
            lengths: (0..classes).map(length).collect(),
            unscale: 1.0 / head.logit_scale(),
            seen: 0,
            image: Mean::new(dim),
            texts: Mean::new(classes),
            good: Mean::new(dim),
            bad: Mean::new(dim),
            moments: Default::default(),
            classes: vec![[0.0; 2]; classes],
            squares: [0.0; 2],
        }
    }

    /// What is said of an image whose largest (⟨z − g, w_c⟩, less its mean) / ‖w_c − w̄‖ is known.
    fn told(&self, z: &[f32], best_fit: f32, frozen: &Summary) -> Judged {
        let [at_mean, at_good, at_bad] =
            three_products(z, [&self.image, &self.good, &self.bad].map(|m| &*m.values));
        let [square, length] = self.squares.map(f64::from);
        let apart = (1.0 - 2.0 * f64::from(at_mean) + square).max(1e-6).sqrt();
        let fit = if self.seen > 0 { f64::from(best_fit) / apart } else { 0.0 };
        let spoken = self.good.n > SPEAKS && self.bad.n > SPEAKS;
        let side = if spoken { f64::from(at_good - at_bad) / length.max(1e-12).sqrt() } else { 0.0 };
        let scales = self.scales();
        let score = scales[0].of(fit) + scales[1].of(side);
        let sided = spoken && self.moments[3].n > FEW;
        Judged { score, parts: [fit, side], sided, spoken, best: f64::from(frozen.best) }
    }

    /// How fit and side are standardised now: their sum is the score.
    pub(super) fn scales(&self) -> [Scale; 2] {
        [self.moments[0].scale(), self.moments[3].scale()]
    }

    /// What is said of an image, which changes nothing. `frozen` is the summary of its logits.
    pub(super) fn look(&self, z: &[f32], logits: &[f32], frozen: &Summary) -> Judged {
        let texts = &mut self.texts.values.clone();
        let best_fit = best_fit(texts, logits, &self.lengths, [self.unscale, frozen.moments.0, 0.0]);
        self.told(z, best_fit, frozen)
    }

    /// What is said of an image, which then moves the means. `frozen` is the frozen model's answer.
    pub(super) fn observe(&mut self, z: &[f32], logits: &[f32], frozen: &Summary) -> Judged {
        let factors = [self.unscale, frozen.moments.0, self.texts.next_share()];
        let best_fit = best_fit(&mut self.texts.values, logits, &self.lengths, factors);
        let told = self.told(z, best_fit, frozen);
        if self.seen > BEGINNINGS[0] {
            let [fit, side] = told.parts;
            let sum = self.moments[0].standardised(fit) + self.moments[1].standardised(told.best);
            self.moments[0].push(fit);
            self.moments[1].push(told.best);
            if self.seen > BEGINNINGS[1] {
                self.compare(z, sum, frozen.label);
            }
            if told.spoken {
                self.moments[3].push(side);
            }
        }
        self.seen += 1;
        self.squares[0] = self.image.push(z, z, |g, _| g * g);
        told
    }

    /// Lets an image count for u or for l.
    fn compare(&mut self, z: &[f32], sum: f64, answer: usize) {
        let all = self.moments[2];
        let [n, mean] = self.classes[answer];
        let usual = (n * mean + CLASS_HOLD * all.mean) / (n + CLASS_HOLD);
        let ahead = (sum - usual) * all.scale().unit;
        self.moments[2].push(sum);
        let n = (n + 1.0).min(MEMORY);
        self.classes[answer] = [n, mean + (sum - mean) / n];
        if self.seen > BEGINNINGS[2] {
            let apart = |u: f32, l: f32| (u - l) * (u - l);
            if ahead > 0.0 {
                self.squares[1] = self.good.push(z, &self.bad.values, apart);
            }
            if ahead < -WELL_BELOW {
                self.squares[1] = self.bad.push(z, &self.good.values, apart);
            }
        }
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("unknown.cone.seen", &[self.seen]);
        let means = [&self.image, &self.texts, &self.good, &self.bad];
        state.put("unknown.cone.counts", &means.map(|mean| mean.n));
        for (name, mean) in NAMES.into_iter().zip(means) {
            state.put(name, &mean.values);
        }
        let moments = self.moments.map(|m| [m.n, m.mean, m.variance]);
        state.put("unknown.cone.moments", moments.as_flattened());
        state.put("unknown.cone.classes", self.classes.as_flattened());
    }

    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        [self.seen] = state.counts("unknown.cone.seen")?;
        let counts = state.within::<f64>("unknown.cone.counts", 4, 0.0..=MEMORY)?;
        let means = [&mut self.image, &mut self.texts, &mut self.good, &mut self.bad];
        for ((name, mean), &n) in NAMES.into_iter().zip(means).zip(counts) {
            // Means of unit vectors and of cosines, less their mean.
            let values = state.within::<f32>(name, mean.values.len(), -4.0..=4.0)?;
            mean.n = n;
            mean.values.copy_from_slice(values);
        }
        let moments = state.within::<f64>("unknown.cone.moments", 12, -1e12..=1e12)?;
        for (own, read) in self.moments.iter_mut().zip(moments.as_chunks::<3>().0) {
            let &[n, mean, variance] = read;
            if !(0.0..=MEMORY).contains(&n) || variance < 0.0 {
                return Err(Error::state("unknown.cone.moments: a count or a variance out of range"));
            }
            *own = Moments { n, mean, variance };
        }
        let classes = state.within::<f64>("unknown.cone.classes", 2 * self.classes.len(), -1e12..=1e12)?;
        if classes.as_chunks::<2>().0.iter().any(|class| !(0.0..=MEMORY).contains(&class[0])) {
            return Err(Error::state("unknown.cone.classes: a count out of range"));
        }
        self.classes.as_flattened_mut().copy_from_slice(classes);
        let [g, u, l] = [&self.image, &self.good, &self.bad].map(|mean| &*mean.values);
        self.squares = [fold_lanes(g, g, |a, b| a * b), fold_lanes(u, l, |u, l| (u - l) * (u - l))];
        Ok(())
    }
}

/// The largest (⟨z − g, w_c⟩, less its mean) / ‖w_c − w̄‖; `texts` are ⟨g, w_c⟩ less their mean. After that the image enters these, with
/// the last of the factors as its share.
fn best_fit(texts: &mut [f32], logits: &[f32], lengths: &[f32], factors: [f32; 3]) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let [factors] = [factors];
            let mut most = [f32::NEG_INFINITY; LANES];
            let (texts, texts_tail) = texts.as_chunks_mut::<LANES>();
            let (logits, logits_tail) = logits.as_chunks::<LANES>();
            let (lengths, lengths_tail) = lengths.as_chunks::<LANES>();
            for ((texts, logits), lengths) in texts.iter_mut().zip(logits).zip(lengths) {
                raise(&mut most, texts, logits, lengths, factors);
            }
            // What pads the tail fits no class.
            let mut last = padded(texts_tail, 0.0);
            raise(&mut most, &mut last, &padded(logits_tail, f32::MIN), &padded(lengths_tail, 1.0), factors);
            texts_tail.iter_mut().zip(last).for_each(|(text, moved)| *text = moved);
            max_lanes(most)
        },
    )
}

/// Raises the largest fits so far to those of a chunk of classes, and moves their texts. Fits first, maxima after: one loop for
/// both is not vectorised.
#[inline(always)]
fn raise(
    most: &mut [f32; LANES],
    texts: &mut [f32; LANES],
    logits: &[f32; LANES],
    lengths: &[f32; LANES],
    [unscale, mean, share]: [f32; 3],
) {
    let (mut moved, mut fits) = ([0.0f32; LANES], [0.0f32; LANES]);
    for i in 0..LANES {
        let ahead = unscale * (logits[i] - mean) - texts[i];
        fits[i] = ahead * lengths[i];
        moved[i] = texts[i] + share * ahead;
    }
    *texts = moved;
    for i in 0..LANES {
        most[i] = if fits[i] > most[i] { fits[i] } else { most[i] };
    }
}

/// ⟨z, m⟩ for three vectors at once.
fn three_products(z: &[f32], means: [&[f32]; 3]) -> [f32; 3] {
    vectorised(
        #[inline(always)]
        || {
            let (mut x, mut y, mut w) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
            let (zs, z_tail) = z.as_chunks::<LANES>();
            let (a, a_tail) = means[0].as_chunks::<LANES>();
            let (b, b_tail) = means[1].as_chunks::<LANES>();
            let (c, c_tail) = means[2].as_chunks::<LANES>();
            for (((z, a), b), c) in zs.iter().zip(a).zip(b).zip(c) {
                add_products(z, a, &mut x);
                add_products(z, b, &mut y);
                add_products(z, c, &mut w);
            }
            let z = padded(z_tail, 0.0);
            add_products(&z, &padded(a_tail, 0.0), &mut x);
            add_products(&z, &padded(b_tail, 0.0), &mut y);
            add_products(&z, &padded(c_tail, 0.0), &mut w);
            sum_each([x, y, w])
        },
    )
}

#[inline(always)]
fn add_products(a: &[f32; LANES], b: &[f32; LANES], lanes: &mut [f32; LANES]) {
    for i in 0..LANES {
        lanes[i] += a[i] * b[i];
    }
}

/// Names of the means in a state.
const NAMES: [&str; 4] =
    ["unknown.cone.image", "unknown.cone.texts", "unknown.cone.good", "unknown.cone.bad"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_tell_no_spread() {
        // Two values that are nearly equal: a third is not a thousand deviations off.
        let mut moments = Moments::default();
        moments.push(0.3);
        moments.push(0.3001);
        assert_eq!(moments.standardised(0.4), 0.0);
        (0..32).for_each(|i| moments.push(0.3 + 0.01 * f64::from(i % 5)));
        assert!((3.0..9.0).contains(&moments.standardised(0.4)), "{}", moments.standardised(0.4));
    }
}
