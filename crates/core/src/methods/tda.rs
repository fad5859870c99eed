//! TDA: a positive and a negative cache of confident samples beside the frozen scores.
//!
//! Karmanov et al., *Efficient Test-Time Adaptation of Vision-Language Models*, CVPR 2024.
//!
//! ```text
//! positive cache: per pseudo-class the K₊ samples of lowest entropy H(p)
//! negative cache: the same with K₋, only samples with 0.2 < H / log₂ C < 0.5; value: classes with 0.03 < p < 1
//! ℓ = s⟨z, w⟩ + α₊ Σ_i exp(−β₊ (1 − ⟨z, k_i⟩)) onehot_i − α₋ Σ_j exp(−β₋ (1 − ⟨z, k_j⟩)) mask_j
//! ```
//!
//! A sample enters the caches *before* it is scored, so it scores against itself too. With views: the 10 % most
//! certain ones, features averaged and not renormalised, logits averaged, entropy of the mean probability.
//!
//! As in the published code: H is in nats but divided by log₂ C, so the normalised range is really 0.29–0.72.
//! Its figures are with 80 templates on ImageNet-R and -Sketch, 7 on ImageNet, -A, -V2, Caltech101, Cars and SUN397, and
//! one elsewhere: what a head is made of decides more than the method does.
//! Departure: α₊ and β₊ are one pair (2, 5) for all datasets; the publication chooses them per dataset. The
//! arithmetic is not half-precision.

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::math;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::{Error, Head, Result, Scores, State};

/// Settings of TDA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TdaConfig {
    /// Samples per class in the positive cache; 0 switches it off.
    pub capacity: usize,
    /// Weight of the positive cache (α₊).
    pub alpha: f64,
    /// Sharpness of the positive cache (β₊).
    pub beta: f64,
    /// Samples per class in the negative cache; 0 switches it off.
    pub negative_capacity: usize,
    /// Weight of the negative cache (α₋).
    pub negative_alpha: f64,
    /// Sharpness of the negative cache (β₋).
    pub negative_beta: f64,
    /// Only samples whose H / log₂ C lies above this enter the negative cache …
    pub entropy_low: f64,
    /// … and below this.
    pub entropy_high: f64,
    /// A negative sample speaks against classes with a probability above this …
    pub mask_low: f64,
    /// … and below this.
    pub mask_high: f64,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
}

impl Default for TdaConfig {
    fn default() -> Self {
        Self {
            capacity: 3,
            alpha: 2.0,
            beta: 5.0,
            negative_capacity: 2,
            negative_alpha: 0.117,
            negative_beta: 1.0,
            entropy_low: 0.2,
            entropy_high: 0.5,
            mask_low: 0.03,
            mask_high: 1.0,
            view_share: 0.1,
        }
    }
}

impl TdaConfig {
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.{name}.{k}"), v, lo..=hi);
        range("alpha", self.alpha, 0.0, 1e6)?;
        range("beta", self.beta, 0.0, 1e6)?;
        range("negative_alpha", self.negative_alpha, 0.0, 1e6)?;
        range("negative_beta", self.negative_beta, 0.0, 1e6)?;
        range("entropy_low", self.entropy_low, 0.0, 1e3)?;
        range("entropy_high", self.entropy_high, 0.0, 1e3)?;
        range("mask_low", self.mask_low, 1e-3, 1.0)?;
        range("mask_high", self.mask_high, 0.0, 1.0)?;
        range("view_share", self.view_share, 0.0, 1.0)
    }

    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Tda> {
        self.check(CARD.name)?;
        Ok(Tda { caches: Caches::new(self, head) })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "tda",
    summary: "positive and negative caches of confident samples added to the frozen scores",
    paper: "Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024",
    // 5 cached samples per class against the row; the masks of the negative ones.
    operations: Some(|c, d| 10.0 * c * d + 4.0 * c * c),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    tuned: true,
    answer_keys: &["alpha", "beta", "negative_alpha", "negative_beta"],
    reads_views: true,
    ..Card::PLAIN
};

/// TDA.
#[derive(Clone, Debug)]
pub(crate) struct Tda {
    caches: Caches,
}

/// The two caches: TDA's whole state, and BoostAdapter's.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub config: TdaConfig,
    pub positive: Cache,
    pub negative: Cache,
    /// Per slot of the negative cache: the classes it speaks against.
    masks: Vec<Vec<u32>>,
}

impl Caches {
    pub(crate) fn new(config: &TdaConfig, head: &Head) -> Self {
        let cache = |capacity| Cache::new(head.dim(), head.n_classes(), capacity);
        Self {
            positive: cache(config.capacity),
            negative: cache(config.negative_capacity),
            masks: Vec::new(),
            config: config.clone(),
        }
    }

    /// Lets one sample into the caches; whether either took it.
    pub(crate) fn accumulate(&mut self, sample: &Sample<'_>) -> bool {
        let c = &self.config;
        let positive = self.positive.offer(sample.label, sample.entropy, &sample.feature);
        let normalised = sample.entropy as f64 / (sample.probs.len() as f64).log2();
        if !(c.entropy_low < normalised && normalised < c.entropy_high) {
            return positive.is_some();
        }
        let negative = self.negative.offer(sample.label, sample.entropy, &sample.feature);
        if let Some(slot) = negative {
            let masked = |p: f32| c.mask_low < p as f64 && (p as f64) < c.mask_high;
            let mask = (0..sample.probs.len() as u32).filter(|&k| masked(sample.probs[k as usize])).collect();
            self.masks.resize(self.negative.len(), Vec::new());
            self.masks[slot] = mask;
        }
        positive.is_some() || negative.is_some()
    }

    /// Takes the negative cache's word off the scores.
    pub(crate) fn subtract_negative(&self, feature: &[f32], scores: &mut [f64]) {
        let products = self.negative.products(feature);
        for slot in self.negative.order() {
            let affinity = (-self.config.negative_beta * (1.0 - products[slot] as f64)).exp();
            for &class in &self.masks[slot] {
                scores[class as usize] -= self.config.negative_alpha * affinity;
            }
        }
    }

    pub(crate) fn save(&self) -> State {
        let mut state = State::default();
        self.positive.save("positive", &mut state);
        self.negative.save("negative", &mut state);
        let masks: Vec<&Vec<u32>> = self.negative.order().into_iter().map(|s| &self.masks[s]).collect();
        let lengths: Vec<u32> = masks.iter().map(|m| m.len() as u32).collect();
        state.put("negative.mask_lengths", &lengths);
        state.put("negative.masks", &masks.into_iter().flatten().copied().collect::<Vec<u32>>());
        state
    }

    pub(crate) fn load(&mut self, state: &State) -> Result<()> {
        let positive = self.positive.loaded("positive", state)?;
        let negative = self.negative.loaded("negative", state)?;
        let lengths = state.get_n::<u32>("negative.mask_lengths", negative.len())?;
        let total = lengths.iter().map(|&l| l as usize).sum();
        let mut rest = state.get_n::<u32>("negative.masks", total)?;
        if rest.iter().any(|&c| c as usize >= negative.classes()) {
            return Err(Error::state("negative.masks: class out of range"));
        }
        self.masks.clear();
        for &length in lengths {
            let (mask, others) = rest.split_at(length as usize);
            self.masks.push(mask.to_vec());
            rest = others;
        }
        (self.positive, self.negative) = (positive, negative);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.positive.clear();
        self.negative.clear();
        self.masks.clear();
    }

    pub(crate) fn bytes(&self) -> usize {
        let masks: usize = self.masks.iter().map(|m| m.len() * 4 + size_of::<Vec<u32>>()).sum();
        self.positive.bytes() + self.negative.bytes() + masks
    }
}

impl Adapter for Tda {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), batch.zero_shot.classes());
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.caches.config.view_share);
            let mut sums = math::widen(&sample.logits);
            let TdaConfig { alpha, beta, .. } = self.caches.config;
            self.caches.positive.add_affinities(&sample.feature, alpha, beta, &mut sums);
            self.caches.subtract_negative(&sample.feature, &mut sums);
            scores.row_mut(row).iter_mut().zip(sums).for_each(|(s, v)| *s = v as f32);
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let admitted = (0..batch.rows()).map(|row| {
            let sample = Sample::confident(batch, row, self.caches.config.view_share);
            batch.may_learn(row) && self.caches.accumulate(&sample)
        });
        Observed { admitted: admitted.collect() }
    }

    fn reset(&mut self) {
        self.caches.clear();
    }

    fn save(&self) -> State {
        self.caches.save()
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.caches.load(state)
    }

    fn vitals(&self) -> Vitals {
        Vitals { state_bytes: self.caches.bytes(), ..Default::default() }
    }
}
