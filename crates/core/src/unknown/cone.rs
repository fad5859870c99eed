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

use crate::kernels::{dot_f64, max};
use crate::{Error, Head, Result, State};

/// A mean follows about this many of the last images.
const MEMORY: f64 = 16_384.0;

/// Images before the parts of the score are standardised, before they are compared within a class, and before u and l
/// take any in.
const BEGINNINGS: [u64; 3] = [8, 16, 32];

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

    fn deviation(&self) -> f64 {
        (self.variance + 1e-12).sqrt()
    }

    fn standardised(&self, x: f64) -> f64 {
        if self.n > 1.0 { (x - self.mean) / self.deviation() } else { 0.0 }
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

    fn push(&mut self, row: &[f32]) {
        self.n = (self.n + 1.0).min(MEMORY);
        let share = (1.0 / self.n) as f32;
        self.values.iter_mut().zip(row).for_each(|(mean, x)| *mean += share * (x - *mean));
    }
}

/// What is said of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// The score.
    pub score: f64,
    /// Its second part, in which strangers lie apart.
    pub side: f64,
    fit: f64,
    best: f64,
    raw_side: Option<f64>,
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
    /// ⟨z, w_c⟩ less its mean; a buffer.
    centred: Vec<f32>,
}

impl Cone {
    pub(super) fn new(head: &Head) -> Self {
        let (classes, dim) = (head.n_classes(), head.dim());
        let mut mean = Mean::new(dim);
        (0..classes).for_each(|c| mean.push(head.prototype(c)));
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
            centred: Vec::new(),
        }
    }

    /// What is said of an image; nothing changes but a buffer.
    fn told(&self, z: &[f32], logits: &[f32], centred: &mut Vec<f32>) -> Judged {
        let mean = logits.iter().sum::<f32>() / logits.len() as f32;
        let g = &self.image.values;
        let apart = (1.0 - 2.0 * dot_f64(z, g) + dot_f64(g, g)).max(1e-6).sqrt();
        centred.clear();
        let texts = self.texts.values.iter().zip(&self.lengths);
        let unscale = self.unscale;
        centred.extend(logits.iter().zip(texts).map(|(l, (t, length))| (unscale * (l - mean) - t) * length));
        let fit = if self.seen > 0 { f64::from(max(centred)) / apart } else { 0.0 };
        let best = f64::from(max(logits));
        let raw_side = (self.good.n > SPEAKS && self.bad.n > SPEAKS).then(|| {
            let (u, l) = (&self.good.values, &self.bad.values);
            let length = dot_f64(u, u) - 2.0 * dot_f64(u, l) + dot_f64(l, l);
            (dot_f64(z, u) - dot_f64(z, l)) / length.max(1e-12).sqrt()
        });
        let side = raw_side.map_or(0.0, |side| self.moments[3].standardised(side));
        Judged { score: self.moments[0].standardised(fit) + side, side, fit, best, raw_side }
    }

    /// The score of an image and of nothing else.
    pub(super) fn score(&self, z: &[f32], logits: &[f32]) -> f64 {
        self.told(z, logits, &mut Vec::new()).score
    }

    /// The score of an image, which then moves the means. `answer` is the frozen model's.
    pub(super) fn observe(&mut self, z: &[f32], logits: &[f32], answer: usize) -> Judged {
        let mut centred = std::mem::take(&mut self.centred);
        let told = self.told(z, logits, &mut centred);
        if self.seen > BEGINNINGS[0] {
            let sum = self.moments[0].standardised(told.fit) + self.moments[1].standardised(told.best);
            self.moments[0].push(told.fit);
            self.moments[1].push(told.best);
            if self.seen > BEGINNINGS[1] {
                self.compare(z, sum, answer);
            }
            if let Some(side) = told.raw_side {
                self.moments[3].push(side);
            }
        }
        self.seen += 1;
        self.image.push(z);
        // ⟨z, w_c⟩ less its mean: what was centred, before g and the lengths.
        let mean = logits.iter().sum::<f32>() / logits.len() as f32;
        centred.clear();
        centred.extend(logits.iter().map(|l| self.unscale * (l - mean)));
        self.texts.push(&centred);
        self.centred = centred;
        told
    }

    /// Lets an image count for u or for l.
    fn compare(&mut self, z: &[f32], sum: f64, answer: usize) {
        let all = self.moments[2];
        let [n, mean] = self.classes[answer];
        let usual = (n * mean + CLASS_HOLD * all.mean) / (n + CLASS_HOLD);
        let ahead = (sum - usual) / if all.n > 1.0 { all.deviation() } else { 1.0 };
        self.moments[2].push(sum);
        let n = (n + 1.0).min(MEMORY);
        self.classes[answer] = [n, mean + (sum - mean) / n];
        if self.seen > BEGINNINGS[2] {
            if ahead > 0.0 {
                self.good.push(z);
            }
            if ahead < -WELL_BELOW {
                self.bad.push(z);
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
        Ok(())
    }
}

/// Names of the means in a state.
const NAMES: [&str; 4] =
    ["unknown.cone.image", "unknown.cone.texts", "unknown.cone.good", "unknown.cone.bad"];
