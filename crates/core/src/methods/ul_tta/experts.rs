//! An *expert* of the class prior: soft counts of the classes that forget with one half-life.

use crate::kernels::Line;
use crate::{Error, Result};

/// Posterior shares below this are spread evenly instead of counted one by one: it saves time and hardly matters.
pub(super) const SMALL: f32 = 1e-3;

/// The most samples an expert can have counted; more would be a damaged file.
const MAX_TOTAL: f64 = 1e15;

/// Counts are multiplied by their scale when the scale falls below this, long before it underflows.
const MIN_SCALE: f64 = 1e-12;

/// Soft counts with one half-life. The count of class c, as a ratio to π⁰_c, is `scale · (counts[c] + spread)`.
#[derive(Clone, Debug)]
pub(super) struct Expert {
    decay: f64,
    /// Samples' worth of π⁰ that the counts are smoothed with.
    pub smoothing: f64,
    scale: f64,
    /// Samples counted, older ones less.
    pub total: f64,
    /// Mass shared evenly by all classes.
    spread: f64,
    counts: Vec<f64>,
    /// The counts, nearly: in f32, for the passes over all classes.
    near: Vec<f32>,
}

impl Expert {
    /// `smoothing` is per class; an expert that forgets fast is smoothed less.
    pub(super) fn new(half_life: f64, smoothing: f64, classes: usize) -> Self {
        Self {
            decay: 0.5f64.powf(1.0 / half_life),
            smoothing: (smoothing * classes as f64).min(half_life / 4.0),
            scale: 1.0,
            total: 0.0,
            spread: 0.0,
            counts: vec![0.0; classes],
            near: vec![0.0; classes],
        }
    }

    /// Counts a sample with a weight.
    pub(super) fn count(&mut self, weight: f64, shares: &Shares) {
        self.scale *= self.decay;
        self.total = self.total * self.decay + weight;
        let unit = weight / self.scale;
        for &(class, ratio) in &shares.listed {
            self.set_count(class, self.counts[class] + ratio * unit);
        }
        self.spread += shares.spread * unit;
        if self.scale < MIN_SCALE {
            for class in 0..self.counts.len() {
                self.set_count(class, self.counts[class] * self.scale);
            }
            self.spread *= self.scale;
            self.scale = 1.0;
        }
    }

    /// Adds to the count of a class, or takes away what was added, `age` samples after it was counted.
    pub(super) fn recount(&mut self, class: usize, share: f64, age: u64, start: &[f64]) {
        let faded = share * self.decay.powi(age.min(i32::MAX as u64) as i32);
        self.total = (self.total + faded).max(0.0);
        let count = self.counts[class] + faded / start[class] / self.scale;
        self.set_count(class, count.max(0.0));
    }

    /// The counts as ratios to π⁰.
    pub(super) fn ratios(&self) -> impl Iterator<Item = f64> {
        self.counts.iter().map(|count| self.scale * (count + self.spread))
    }

    /// The counts with the slope and the offset that turn `counts[c]` into the smoothed share of class c, as a ratio to π⁰_c.
    pub(super) fn as_line(&self) -> Line<'_> {
        let all = self.smoothing + self.total;
        let (slope, offset) = (self.scale / all, (self.smoothing + self.scale * self.spread) / all);
        Line { counts: &self.near, slope: slope as f32, offset: offset as f32 }
    }

    /// Appends the counts to `counts`, and scale, total and spread to `sums`.
    pub(super) fn save(&self, counts: &mut Vec<f64>, sums: &mut Vec<f64>) {
        counts.extend_from_slice(&self.counts);
        sums.extend([self.scale, self.total, self.spread]);
    }

    pub(super) fn load(&mut self, counts: &[f64], sums: [f64; 3], start: &[f64]) -> Result<()> {
        for (class, &count) in counts.iter().enumerate() {
            self.set_count(class, count);
        }
        [self.scale, self.total, self.spread] = sums;
        if self.total > MAX_TOTAL {
            return Err(Error::state("local.prior.sums: a total out of range"));
        }
        if !(MIN_SCALE..=1.0).contains(&self.scale) {
            return Err(Error::state("local.prior.sums: a scale out of range"));
        }
        // Neither a class nor the spread holds more than the total.
        let all = 1.001 * self.total + 1e-6;
        let fits = |(count, start): (&f64, &f64)| count * self.scale * start <= all;
        if self.spread * self.scale > all || !counts.iter().zip(start).all(fits) {
            return Err(Error::state("local.prior.counts: more than their total"));
        }
        Ok(())
    }

    fn set_count(&mut self, class: usize, count: f64) {
        self.counts[class] = count;
        self.near[class] = count as f32;
    }
}

/// How a sample is shared among the classes: larger shares one by one, as ratios to π⁰; the rest evenly.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    listed: Vec<(usize, f64)>,
    spread: f64,
}

impl Shares {
    /// Lists the shares above [`SMALL`]. All shares together are at most 1.
    pub(super) fn list(&mut self, shares: impl Iterator<Item = (usize, f32)>, start: &[f64]) {
        self.listed.clear();
        self.spread = 1.0;
        for (class, share) in shares.filter(|s| s.1 > SMALL) {
            self.listed.push((class, share as f64 / start[class]));
            self.spread -= share as f64;
        }
        self.spread = self.spread.max(0.0);
    }
}
