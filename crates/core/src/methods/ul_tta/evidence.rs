//! The *evidence*: class means of the stream's own images, kept apart from the text prototypes.
//!
//! Images and texts live in separate cones, so averaging an image into a text prototype lifts that class by tens of
//! logits. Instead the evidence scores an image z among images. With g the mean of all images, Σ their shared
//! covariance (scaled to mean variance 1, shrunk towards the identity), N_c the samples that taught class c, S_c their
//! sum and k the setting `shrink`,
//!
//! ```text
//! m_c = (S_c − N_c g) / (N_c + k)      v_c(z) = ⟨z − g, Σ⁻¹ m_c⟩ − ½ ⟨m_c, Σ⁻¹ m_c⟩
//! ```
//!
//! v is linear in z, and 0 for a class without evidence. The sums forget with one half-life. Besides the C × d class
//! sums the evidence holds the d × d second moments of the images, which the published algorithm does without. They and the
//! factor of Σ are packed triangles, and clones share them until one of them changes.
//!
//! The *fold* is the evidence as the answers use it: one row Σ⁻¹ m_c and one bias per class. It stays the same between
//! updates. What costs time is done rarely: second moments are added in chunks and, once there are many, from one
//! sample in 8 to 16; Σ is factorised when it has changed; a class is folded again when its own evidence has changed.

use std::sync::Arc;

use super::config::DefaultConfig;
use super::shared::Others;
use crate::kernels::{accumulate, gather_dots_i16};
use crate::linear::solve;
use crate::methods::checked::{checked_counts, checked_sums};
use crate::methods::triangle;
use crate::{Error, Result, State};

mod fold;
mod gained;

use fold::{FOLD_BLOCK, Fold, LARGEST};
pub(super) use gained::Mark;

/// Rows whose second moments are added in one matrix product.
const CHUNK: usize = 256;

/// Every sample enters the second moments while fewer than this many samples per dimension have been seen.
const DENSE_PER_DIM: u64 = 4;

/// After that one sample in `half-life / THINNED_PER_HALF_LIFE` enters them, within these bounds.
const THINNED_PER_HALF_LIFE: f64 = 256.0;
const THINNED: std::ops::RangeInclusive<u64> = 8..=16;

/// Sums are multiplied by their common scale when the scale falls below this, long before it underflows.
const MIN_SCALE: f64 = 1e-9;

#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// k: class means shrink as N_c / (N_c + k).
    shrink: f64,
    /// Least share of the identity in Σ.
    covariance_shrink: f64,
    classes: usize,
    dim: usize,
    decay: f64,
    half_life: f64,
    /// Of thinned samples, one in `stride` enters the second moments.
    stride: u64,
    /// All sums below have to be multiplied by `scale`, so forgetting is one multiplication.
    scale: f64,
    /// Number and sum of all samples: g = sum / n.
    n: f64,
    sum: Vec<f64>,
    /// Number, sum and second moments of the samples that entered the second moments.
    second_n: f64,
    second_sum: Vec<f64>,
    /// The sum of z zᵀ, a packed triangle.
    second: Arc<Vec<f64>>,
    /// N_c and S_c.
    class_n: Vec<f64>,
    class_sum: Vec<f64>,
    /// Rows that wait to enter the second moments.
    pending: Vec<f32>,
    /// Samples seen, without forgetting.
    samples: u64,
    /// How much labels have withdrawn so far.
    withdrawn: f64,
    fold: Option<Fold>,
    /// How far apart others' class means lie from the own ones, and the mean evidence per class with theirs, as of the last
    /// fold (`fold.rs`).
    apart: f64,
    pooled_count: Option<f64>,
    /// What the group knows of the sums above (`gained.rs`).
    mark: Option<Arc<Mark>>,
}

/// What labels withdraw from a class is known to 8 bits: up to this much of it may remain where the count is 0.
const REMAINS: f64 = 0.5;

/// Counts of classes, with what may remain in their sums of rows that labels have withdrawn.
fn with_remains(counts: &[f64], scale: f64) -> Vec<f64> {
    counts.iter().map(|n| n + REMAINS / scale.max(MIN_SCALE)).collect()
}

impl Evidence {
    pub(super) fn new(config: &DefaultConfig, classes: usize, dim: usize) -> Self {
        let half_life = config.half_life(classes);
        Self {
            stride: ((half_life / THINNED_PER_HALF_LIFE) as u64).clamp(*THINNED.start(), *THINNED.end()),
            decay: 0.5f64.powf(1.0 / half_life),
            half_life,
            shrink: config.advanced.shrink,
            covariance_shrink: config.advanced.covariance_shrink,
            classes,
            dim,
            scale: 1.0,
            n: 0.0,
            sum: vec![0.0; dim],
            second_n: 0.0,
            second_sum: vec![0.0; dim],
            second: Arc::new(vec![0.0; triangle::len(dim)]),
            class_n: vec![0.0; classes],
            class_sum: vec![0.0; classes * dim],
            pending: Vec::with_capacity(CHUNK * dim),
            samples: 0,
            withdrawn: 0.0,
            fold: None,
            apart: 0.0,
            pooled_count: None,
            mark: None,
        }
    }

    /// Half-life of the evidence, in samples.
    pub(super) fn half_life(&self) -> f64 {
        self.half_life
    }

    /// Whether there is a fold to score with.
    pub(super) fn speaks(&self) -> bool {
        self.fold.is_some()
    }

    /// Writes v_c(z) of some classes.
    pub(super) fn scores(&self, z: &[f32], classes: &[u32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(classes.len(), 0.0);
        if let Some(fold) = &self.fold {
            gather_dots_i16(&fold.rows, self.dim, classes, z, out);
            for (v, &c) in out.iter_mut().zip(classes) {
                *v = *v * fold.row_scale[c as usize] + fold.bias[c as usize];
            }
        }
    }

    /// Writes z − g with every second sign turned.
    pub(super) fn turn(&self, z: &[f32], out: &mut Vec<f32>) {
        let mean = self.scale / (self.n * self.scale + 1.0);
        out.clear();
        out.extend(z.iter().zip(&self.sum).map(|(&z, &sum)| z - (sum * mean) as f32));
        out.iter_mut().skip(1).step_by(2).for_each(|y| *y = -*y);
    }

    /// Writes ⟨y, Σ⁻¹ m_c⟩ of some classes.
    pub(super) fn turned_scores(&self, y: &[f32], classes: &[u32], out: &mut Vec<f32>) {
        self.scores(y, classes, out);
        if let Some(fold) = &self.fold {
            out.iter_mut().zip(classes).for_each(|(v, &c)| *v -= fold.bias[c as usize]);
        }
    }

    /// Samples taken in.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// g, and the samples behind it. One sample more is taken to lie at 0, so that a first row is not its own mean.
    pub(super) fn mean(&self) -> (Vec<f64>, f64) {
        let n = self.n * self.scale;
        (self.sum.iter().map(|s| s * self.scale / (n + 1.0)).collect(), n)
    }

    /// Σ⁻¹ of rows, with Σ as the fold has it; the rows themselves where there is no fold.
    pub(super) fn whiten(&self, rows: &mut [f32]) {
        let Some(fold) = &self.fold else { return };
        let factor = triangle::unpack(&fold.factor, self.dim);
        rows.chunks_mut(FOLD_BLOCK * self.dim).for_each(|block| solve(&factor, self.dim, block));
    }

    /// Withdraws a row from the classes that it taught when there were `samples`, `age` samples ago; with `sign` −1
    /// gives it back. Nothing happens if the evidence began anew in between.
    pub(super) fn recount(&mut self, shares: &[(u32, f32)], z: &[f32], samples: u64, age: u64, sign: f64) {
        if self.samples.checked_sub(samples) != Some(age) {
            return;
        }
        let faded = self.decay.powi(age.min(i32::MAX as u64) as i32);
        for &(class, share) in shares.iter().filter(|share| share.1 > 0.0) {
            let class = class as usize;
            let weight = -sign * share as f64 * faded / self.scale;
            self.withdrawn += share as f64 * faded;
            // What was added before cannot leave less than nothing, but for rounding.
            self.class_n[class] = (self.class_n[class] + weight).max(0.0);
            accumulate(&mut self.class_sum[class * self.dim..][..self.dim], weight, z);
            if let Some(fold) = &mut self.fold {
                let fresh = fold.fresh[class] + sign as f32 * share;
                fold.fresh[class] = if fresh < 0.0 { share } else { fresh };
            }
        }
    }

    /// Adds `weight` times the fold to a linear layer: v_c(z) is ⟨z, Σ⁻¹ m_c⟩ and a bias.
    pub(super) fn add_to(&self, weight: f32, weights: &mut [f32], bias: &mut [f32]) {
        let Some(fold) = &self.fold else { return };
        let rows = fold.rows.chunks_exact(self.dim).zip(weights.chunks_exact_mut(self.dim));
        for (c, (row, out)) in rows.enumerate() {
            let factor = weight * fold.row_scale[c];
            out.iter_mut().zip(row).for_each(|(o, &v)| *o += factor * v as f32);
            bias[c] += weight * fold.bias[c];
        }
    }

    /// Mean evidence per class, in samples, with what others have learnt.
    pub(super) fn mean_count(&self) -> f64 {
        let own = self.class_n.iter().sum::<f64>() * self.scale / self.classes as f64;
        self.pooled_count.map_or(own, |pooled| pooled.max(own))
    }

    /// Takes in a sample, admitted or not: it moves mean and covariance.
    pub(super) fn observe(&mut self, z: &[f32]) {
        self.scale *= self.decay;
        let unit = 1.0 / self.scale;
        self.n += unit;
        accumulate(&mut self.sum, unit, z);
        let dense = self.samples < DENSE_PER_DIM * self.dim as u64;
        if dense || self.samples.is_multiple_of(self.stride) {
            self.pending.extend_from_slice(z);
            // The last chunk of dense rows ends where the thinned ones begin.
            if self.pending.len() >= CHUNK * self.dim || self.samples + 1 == DENSE_PER_DIM * self.dim as u64 {
                self.add_pending();
            }
        }
        self.samples += 1;
        if self.scale < MIN_SCALE {
            self.rescale();
        }
    }

    /// Lets an admitted sample teach a class.
    pub(super) fn teach(&mut self, class: usize, responsibility: f64, z: &[f32]) {
        let weight = responsibility / self.scale;
        self.class_n[class] += weight;
        accumulate(&mut self.class_sum[class * self.dim..][..self.dim], weight, z);
        if let Some(fold) = &mut self.fold {
            fold.fresh[class] += responsibility as f32;
        }
    }

    fn rescale(&mut self) {
        let scale = self.scale;
        let second = Arc::make_mut(&mut self.second);
        let sums = [&mut self.sum, &mut self.second_sum, second, &mut self.class_n, &mut self.class_sum];
        sums.into_iter().flatten().for_each(|v| *v *= scale);
        self.n *= scale;
        self.second_n *= scale;
        self.scale = 1.0;
    }

    /// What a waiting row counts: a thinned row stands for the rows left out.
    fn unit(&self) -> f64 {
        let dense = self.samples < DENSE_PER_DIM * self.dim as u64;
        if dense { 1.0 / self.scale } else { self.stride as f64 / self.scale }
    }

    /// Adds the waiting rows to the second moments: products in f32, sums in f64.
    fn add_pending(&mut self) {
        let (dim, unit) = (self.dim, self.unit());
        if self.pending.is_empty() {
            return;
        }
        let second = Arc::make_mut(&mut self.second);
        triangle::outer_products(&self.pending, dim, |column, from| {
            accumulate(&mut second[triangle::column(dim, column)], unit, from);
        });
        for z in self.pending.chunks(dim) {
            accumulate(&mut self.second_sum, unit, z);
        }
        self.second_n += (self.pending.len() / dim) as f64 * unit;
        self.pending.clear();
    }

    /// ‖Σ⁻¹ m_c‖ per class.
    pub(super) fn norms(&self) -> &[f32] {
        self.fold.as_ref().map_or(&[], |f| &f.norm)
    }

    /// Evidence per class, in samples.
    pub(super) fn counts(&self) -> impl Iterator<Item = f64> + '_ {
        self.class_n.iter().map(|n| n * self.scale)
    }

    pub(super) fn bytes(&self) -> usize {
        let (c, d, half) = (self.classes, self.dim, triangle::len(self.dim));
        // evidence, waiting rows, fold
        8 * (c * d + c + half + 2 * d) + 4 * CHUNK * d + 2 * c * d + 16 * c + 4 * (half + d)
    }

    /// Saves what two sessions may add, but for the rows that wait ([`State::settled`] adds them). `compact` rounds the
    /// class sums to 16 bits, one scale per class, and leaves the second moments out: what images look like together does
    /// not depend on how they were answered, so a return to a healthy copy keeps those at hand.
    pub(super) fn save_evidence(&self, state: &mut State, compact: bool) {
        state.put("evidence.scale", &[self.scale]);
        state.put("evidence.samples", &[self.samples]);
        state.put("evidence.decayed.sum", &self.sum);
        state.put("evidence.decayed.class_n", &self.class_n);
        if !compact {
            state.put("evidence.decayed.n", &[self.n, self.second_n]);
            state.put("evidence.decayed.second_sum", &self.second_sum);
            state.put_shared("evidence.decayed.second", self.second.clone());
            state.put("evidence.decayed.class_sum", &self.class_sum);
            return;
        }
        state.put("evidence.decayed.n", &[self.n, 0.0]);
        let mut rounded = Vec::with_capacity(self.class_sum.len());
        let mut scales = Vec::with_capacity(self.classes);
        for row in self.class_sum.chunks(self.dim) {
            let largest = row.iter().fold(0.0f64, |m, &v| if v.abs() > m { v.abs() } else { m });
            let scale = largest / i16::MAX as f64;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            rounded.extend(row.iter().map(|v| (v * inverse + 0.5f64.copysign(*v)) as i16));
            scales.push(scale);
        }
        state.put("evidence.rounded", &rounded);
        state.put("evidence.rounded_scale", &scales);
    }

    /// Reads the evidence. A compact one has no second moments: those of `current` stand in.
    pub(super) fn load_evidence(&mut self, state: &State, current: Option<&Evidence>) -> Result<()> {
        let (c, d) = (self.classes, self.dim);
        self.scale = state.scalar("evidence.scale")?;
        if !(MIN_SCALE..=1.0).contains(&self.scale) {
            return Err(Error::state(format!("evidence.scale is not in [{MIN_SCALE}, 1]")));
        }
        [self.samples] = state.counts("evidence.samples")?;
        let counts = checked_counts("evidence.decayed.n", state, 2)?;
        (self.n, self.second_n) = (counts[0], counts[1]);
        self.sum = state.get_n::<f64>("evidence.decayed.sum", d)?.to_vec();
        if state.has("evidence.rounded") {
            self.take_second_moments(current);
        } else {
            self.second_sum = state.get_n::<f64>("evidence.decayed.second_sum", d)?.to_vec();
            self.second = state.shared::<f64>("evidence.decayed.second", triangle::len(d))?;
        }
        self.class_n = checked_counts("evidence.decayed.class_n", state, c)?;
        self.class_sum = if state.has("evidence.rounded") {
            let rounded = state.get_n::<i16>("evidence.rounded", c * d)?;
            let scales = state.get_n::<f64>("evidence.rounded_scale", c)?;
            rounded.iter().enumerate().map(|(i, &q)| q as f64 * scales[i / d]).collect()
        } else {
            state.get_n::<f64>("evidence.decayed.class_sum", c * d)?.to_vec()
        };
        self.check_sums()?;
        self.pending.clear();
        self.fold = None;
        Ok(())
    }

    /// Takes over the second moments of other evidence, waiting rows included.
    fn take_second_moments(&mut self, other: Option<&Evidence>) {
        let Some(mut other) = other.cloned() else { return };
        other.add_pending();
        // Both have a scale of their own.
        let factor = other.scale / self.scale;
        Arc::make_mut(&mut other.second).iter_mut().chain(&mut other.second_sum).for_each(|v| *v *= factor);
        (self.second, self.second_sum, self.second_n) =
            (other.second, other.second_sum, other.second_n * factor);
    }

    fn check_sums(&self) -> Result<()> {
        checked_sums("evidence.decayed.sum", &self.sum, &[self.n])?;
        checked_sums("evidence.decayed.second_sum", &self.second_sum, &[self.second_n])?;
        checked_sums("evidence.decayed.second", &self.second, &[self.second_n])?;
        checked_sums("evidence class sums", &self.class_sum, &with_remains(&self.class_n, self.scale))
    }

    /// Makes a fold from the evidence alone: after a merge, or a return to a healthy state.
    pub(super) fn recompute(&mut self, others: Option<Others<'_>>) {
        if self.n > 0.0 {
            self.update(others);
        }
    }

    /// Saves what belongs to one stream: waiting rows and the fold.
    pub(super) fn save_local(&self, state: &mut State) {
        state.put("local.evidence.pending", &self.pending);
        state.put("local.evidence.unit", &[self.unit()]);
        if let Some(fold) = &self.fold {
            state.put_shared("local.fold.factor", fold.factor.clone());
            state.put("local.fold.at", &[fold.at_n]);
            state.put("local.fold.at_samples", &[fold.at_samples]);
            state.put("local.fold.rows", &fold.rows);
            state.put("local.fold.row_scale", &fold.row_scale);
            state.put("local.fold.bias", &fold.bias);
            state.put("local.fold.norm", &fold.norm);
            state.put("local.fold.fresh", &fold.fresh);
        }
    }

    pub(super) fn load_local(&mut self, state: &State) -> Result<()> {
        let (c, d) = (self.classes, self.dim);
        let pending = state.get::<f32>("local.evidence.pending")?;
        state.within::<f32>("local.evidence.pending", pending.len(), -1.001..=1.001)?;
        if !pending.len().is_multiple_of(d) || pending.len() >= CHUNK * d {
            return Err(Error::state("local.evidence.pending: not whole rows, or too many"));
        }
        self.pending.extend_from_slice(pending);
        // What the rows count follows from the rest; it is in the state for those who add states.
        checked_counts("local.evidence.unit", state, 1)?;
        if state.any_under("local.fold.") {
            let at_samples = state.scalar("local.fold.at_samples")?;
            if at_samples > self.samples {
                return Err(Error::state("local.fold.at_samples lies ahead of the samples seen"));
            }
            self.fold = Some(Fold {
                factor: {
                    state.within::<f32>("local.fold.factor", triangle::len(d), -1e3..=1e3)?;
                    state.shared("local.fold.factor", triangle::len(d))?
                },
                at_n: checked_counts("local.fold.at", state, 1)?[0],
                at_samples,
                rows: state.get_n::<i16>("local.fold.rows", c * d)?.to_vec(),
                row_scale: state.within::<f32>("local.fold.row_scale", c, 0.0..=LARGEST)?.to_vec(),
                bias: state.within::<f32>("local.fold.bias", c, -LARGEST..=LARGEST)?.to_vec(),
                norm: state.within::<f32>("local.fold.norm", c, 0.0..=LARGEST)?.to_vec(),
                fresh: state.within::<f32>("local.fold.fresh", c, 0.0..=1e30)?.to_vec(),
            });
        }
        Ok(())
    }
}
