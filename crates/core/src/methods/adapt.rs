//! ADAPT, online: a bank of confident samples gives Gaussian classes and a vote; both scale the frozen logits.
//!
//! Zhang et al., *Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment*, NeurIPS 2025,
//! arXiv 2508.15568, with its released `ADAPT_online.py`. The bank holds, per class, the 16 samples z_i of lowest entropy
//! H_i with q_i, the probability of that class. For a sample with k = argmax ℓ and p = softmax(ℓ), which first teaches:
//!
//! ```text
//! bank of k: has room, or H is below its largest H, which z replaces; else what follows up to v is left as it was
//! μ_k = α (Σ_bank k q_i z_i + p_k z) / (Σ q_i + p_k) + (1 − α) w_k,   α = 0.9
//! x_i = z_i − μ over all n in the bank, S their covariance,   A = d ((n−1) S + tr(S) I)⁻¹
//! v_c = Σ_bank c q_i ⟨z, z_i⟩
//! g = log softmax(⟨z, Aμ_c⟩ − ½ μ_cᵀAμ_c),   u = g/s + v/(2n),   answer ℓ · exp(u − max u),   s = 60
//! ```
//!
//! The released code's quirks: `double_count`, a sample that enters the bank counts twice in its mean, within the sum and
//! as p_k z (the documentation says it is left out); `stale_vote`, a sample that does not enter the bank is given the vote
//! v of the last one that did. With `false` each does what was meant. The product is with raw logits, as released: a class
//! whose logit is negative gains where it should lose.
//!
//! Departures: s = 60 everywhere, the median of what the publication chooses per dataset (10 to 100); the class texts are
//! the head's, not descriptions by a language model; A may lag behind the bank by the share `lag` of the changes so far
//! (a factorisation after each would be most of the cost; `lag = 0` is as published), while means and votes never do.

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::gaussian::{Discriminant, Precision, due};
use super::math;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::linear::add_squares;
use crate::{Error, Head, Result, Scores, State};

/// Rows that may wait to enter or leave the second moments of the bank.
const MOST_WAITING: usize = 64;

/// Settings of ADAPT, online.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptConfig {
    /// Samples in the bank per class (L).
    pub capacity: usize,
    /// Share of the bank in a class mean (α).
    pub alpha: f64,
    /// How little the Gaussian term counts (s).
    pub scale: f64,
    /// Whether a new sample counts twice in its mean, as released.
    pub double_count: bool,
    /// Whether a sample that does not enter the bank is given the vote of the last one that did, as released.
    pub stale_vote: bool,
    /// Share of the changes of the bank by which the covariance may lag; 0 is as published.
    pub lag: f64,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
}

impl Default for AdaptConfig {
    fn default() -> Self {
        Self {
            capacity: 16,
            alpha: 0.9,
            scale: 60.0,
            double_count: true,
            stale_vote: true,
            lag: 1.0 / 16.0,
            view_share: 0.1,
        }
    }
}

impl AdaptConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Adapt> {
        in_range("method.adapt.capacity", self.capacity as f64, 1.0..=1e6)?;
        in_range("method.adapt.alpha", self.alpha, 0.0..=1.0)?;
        in_range("method.adapt.scale", self.scale, 1e-3..=1e9)?;
        in_range("method.adapt.lag", self.lag, 0.0..=1.0)?;
        in_range("method.adapt.view_share", self.view_share, 0.0..=1.0)?;
        let (classes, dim) = (head.n_classes(), head.dim());
        let (means, precision) = (math::widen(head.prototypes()), Precision::silent(dim, dim as f64));
        Ok(Adapt {
            bank: Bank::new(dim, classes, self.capacity),
            gaussian: precision.discriminant(&means),
            precision,
            means,
            vote: vec![0.0; classes],
            changes: 0,
            factorised_at: 0,
            head: head.clone(),
            config: self.clone(),
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "adapt",
    summary: "Gaussian classes and a vote of a bank of confident samples scale the frozen logits, online",
    paper: "Zhang et al., Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment, NeurIPS 2025, arXiv 2508.15568",
    // As published, for a sample that enters the full bank: vote and scores, 16 c rows of scatter, a factorisation, C solutions.
    operations: Some(|c, d| 34.0 * c * d + 18.0 * c * d * d + 2.0 / 3.0 * d * d * d),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    tuned: true,
    answer_keys: &["scale"],
    reads_views: true,
    ..Card::PLAIN
};

/// ADAPT, online.
#[derive(Clone, Debug)]
pub(crate) struct Adapt {
    config: AdaptConfig,
    head: Head,
    bank: Bank,
    /// μ, one row per class.
    means: Vec<f64>,
    /// A, as of the last factorisation.
    precision: Precision,
    gaussian: Discriminant,
    /// v of the last sample that entered the bank.
    vote: Vec<f64>,
    /// Times that the bank changed, in all and at the last factorisation.
    changes: u64,
    factorised_at: u64,
}

impl Adapt {
    fn accumulate(&mut self, sample: &Sample<'_>) -> bool {
        let (class, dim) = (sample.label, self.head.dim());
        let (z, p) = (&sample.feature, sample.probs[sample.label]);
        if !self.bank.offer(class, sample.entropy, p, z) {
            return false;
        }
        let mean = &mut self.means[class * dim..][..dim];
        mean.fill(0.0);
        let mut total = self.bank.add_weighted(class, mean);
        if self.config.double_count {
            math::add(mean, p as f64, z);
            total += p as f64;
        }
        blend(mean, total, self.config.alpha, self.head.prototype(class));
        self.changes += 1;
        if due(self.changes, self.factorised_at, self.config.lag) {
            self.precision = self.bank.precision(&self.means);
            self.gaussian = self.precision.discriminant(&self.means);
            self.factorised_at = self.changes;
        } else {
            self.gaussian.refresh(&self.precision, class, &self.means[class * dim..][..dim]);
        }
        self.vote = self.bank.vote(z);
        true
    }

    fn scores(&self, sample: &Sample<'_>, out: &mut [f32]) {
        let fresh;
        let vote = if self.config.stale_vote {
            &self.vote
        } else {
            fresh = self.bank.vote(&sample.feature);
            &fresh
        };
        let gaussian = self.gaussian.scores(&sample.feature);
        scale_logits(gaussian, vote, self.bank.len(), self.config.scale, &sample.logits, out);
    }
}

/// A mean of a weighted sum, drawn to the text row.
pub(super) fn blend(sum: &mut [f64], total: f64, alpha: f64, text: &[f32]) {
    for (m, &w) in sum.iter_mut().zip(text) {
        *m = alpha * *m / total.max(1e-30) + (1.0 - alpha) * w as f64;
    }
}

/// ℓ · exp(u − max u) with u = log softmax(gaussian)/s + vote/(2n).
pub(super) fn scale_logits(
    mut gaussian: Vec<f64>,
    vote: &[f64],
    n: usize,
    scale: f64,
    logits: &[f32],
    out: &mut [f32],
) {
    // The normaliser of the softmax is one constant for all classes: the maximum takes it out again.
    let votes = 1.0 / (2.0 * n.max(1) as f64);
    gaussian.iter_mut().zip(vote).for_each(|(u, v)| *u = *u / scale + votes * v);
    let most = gaussian.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for ((out, u), &logit) in out.iter_mut().zip(gaussian).zip(logits) {
        *out = (logit as f64 * (u - most).exp()) as f32;
    }
}

/// The bank: confident samples with the probability of their class, and their second moments.
#[derive(Clone, Debug)]
pub(super) struct Bank {
    dim: usize,
    cache: Cache,
    /// q, per slot.
    probs: Vec<f32>,
    /// Σ z zᵀ over the bank, the lower triangle, column after column.
    second: Vec<f64>,
    /// Rows that are still to be added to it, and to be taken from it.
    entered: Vec<f64>,
    left: Vec<f64>,
}

impl Bank {
    pub(super) fn new(dim: usize, classes: usize, capacity: usize) -> Self {
        Self {
            dim,
            cache: Cache::new(dim, classes, capacity),
            probs: Vec::new(),
            second: vec![0.0; dim * dim],
            entered: Vec::new(),
            left: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Samples of a class.
    pub(super) fn held(&self, class: usize) -> usize {
        self.cache.slots(class).len()
    }

    pub(super) fn offer(&mut self, class: usize, entropy: f32, prob: f32, z: &[f32]) -> bool {
        let worst = self.cache.slots(class).last().map(|slot| math::widen(self.cache.key(slot)));
        let held = self.cache.len();
        let Some(slot) = self.cache.offer(class, entropy, z) else { return false };
        if slot == held {
            self.probs.push(prob);
        } else {
            self.probs[slot] = prob;
            self.left.extend(worst.unwrap_or_default());
        }
        self.entered.extend(z.iter().map(|&v| v as f64));
        if self.entered.len() >= MOST_WAITING * self.dim {
            self.settle();
        }
        true
    }

    /// The rows that wait enter the second moments, or leave them.
    fn settle(&mut self) {
        add_squares(&mut self.second, &self.entered, self.dim, 1.0);
        add_squares(&mut self.second, &self.left, self.dim, -1.0);
        self.entered.clear();
        self.left.clear();
    }

    /// Adds Σ q_i z_i of a class to `sum`; returns Σ q_i.
    pub(super) fn add_weighted(&self, class: usize, sum: &mut [f64]) -> f64 {
        let mut total = 0.0;
        for slot in self.cache.slots(class) {
            let q = self.probs[slot] as f64;
            math::add(sum, q, self.cache.key(slot));
            total += q;
        }
        total
    }

    /// v_c = Σ q_i ⟨z, z_i⟩ over the bank of each class.
    pub(super) fn vote(&self, z: &[f32]) -> Vec<f64> {
        let products = self.cache.products(z);
        let of = |class: usize| {
            self.cache.slots(class).map(|slot| self.probs[slot] as f64 * products[slot] as f64).sum()
        };
        (0..self.cache.classes()).map(of).collect()
    }

    /// A around some class means. With the mean z̄_k and the number m_k of a class's samples and δ_k = z̄_k − μ_k, the scatter
    /// is Σ z zᵀ + Σ_k m_k (δ_k δ_kᵀ − z̄_k z̄_kᵀ) − n x̄ x̄ᵀ: no pass over the samples for it.
    pub(super) fn precision(&mut self, means: &[f64]) -> Precision {
        let (dim, n) = (self.dim, self.len());
        self.settle();
        let (mut own, mut apart, mut all) = (Vec::new(), Vec::new(), vec![0.0; dim]);
        for (class, mu) in means.chunks(dim).enumerate() {
            let m = self.cache.slots(class).len();
            if m == 0 {
                continue;
            }
            let root = (m as f64).sqrt();
            let at = own.len();
            own.resize(at + dim, 0.0);
            // √m z̄
            self.cache.slots(class).for_each(|s| math::add(&mut own[at..], 1.0 / root, self.cache.key(s)));
            apart.extend(own[at..].iter().zip(mu).map(|(z, mu)| z - root * mu));
            let sum = &apart[at..];
            all.iter_mut().zip(sum).for_each(|(a, x)| *a += root * x);
        }
        let root = (n.max(1) as f64).sqrt();
        own.extend(all.iter().map(|a| a / root));
        let mut scatter = self.second.clone();
        add_squares(&mut scatter, &apart, dim, 1.0);
        add_squares(&mut scatter, &own, dim, -1.0);
        Precision::ridge(scatter, dim, n)
    }

    fn save(&self, state: &mut State) {
        self.cache.save("bank", state);
        let probs: Vec<f32> = self.cache.order().into_iter().map(|slot| self.probs[slot]).collect();
        state.put("bank.probs", &probs);
        state.put("moments", &self.second);
        state.put("entered", &self.entered);
        state.put("left", &self.left);
    }

    fn loaded(&self, state: &State) -> Result<Self> {
        let cache = self.cache.loaded("bank", state)?;
        let probs = state.within::<f32>("bank.probs", cache.len(), 0.0..=1.001)?.to_vec();
        let rows = |name: &str| -> Result<Vec<f64>> {
            let rows = state.get::<f64>(name)?;
            if !rows.len().is_multiple_of(self.dim) {
                return Err(Error::state(format!("{name}: expected whole rows of {}", self.dim)));
            }
            Ok(rows.to_vec())
        };
        let (entered, left) = (rows("entered")?, rows("left")?);
        let second = state.get_n::<f64>("moments", self.second.len())?.to_vec();
        Ok(Self { dim: self.dim, cache, probs, second, entered, left })
    }

    fn bytes(&self) -> usize {
        // Room for the rows that wait, whether they are there or not.
        let waiting = (self.entered.len() + self.left.len()).max(2 * MOST_WAITING * self.dim);
        self.cache.bytes() + self.probs.len() * 4 + (self.second.len() + waiting) * 8
    }
}

impl Adapter for Adapt {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.config.view_share);
            self.scores(&sample, scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let each = (0..batch.rows()).map(|row| {
            batch.may_learn(row) && self.accumulate(&Sample::confident(batch, row, self.config.view_share))
        });
        Observed { admitted: each.collect() }
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        self.bank.save(&mut state);
        state.put("means", &self.means);
        state.put("factor", self.precision.factor());
        state.put("slopes", self.gaussian.slopes());
        state.put("vote", &self.vote);
        state.put("changes", &[self.changes, self.factorised_at]);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let [changes, factorised_at] = state.counts("changes")?;
        if factorised_at > changes {
            return Err(Error::state("changes: factorised after the last of them"));
        }
        let bank = self.bank.loaded(state)?;
        let means = state.within::<f64>("means", self.means.len(), -2.0..=2.0)?.to_vec();
        let vote = state.within::<f64>("vote", self.vote.len(), -1e9..=1e9)?.to_vec();
        let factor = state.get_n::<f64>("factor", self.precision.factor().len())?.to_vec();
        let slopes = state.within::<f64>("slopes", means.len(), -1e15..=1e15)?.to_vec();
        self.precision = self.precision.with_factor(factor);
        self.gaussian = Discriminant::with_slopes(slopes, &means, self.head.dim());
        (self.bank, self.means, self.vote) = (bank, means, vote);
        (self.changes, self.factorised_at) = (changes, factorised_at);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.means, self.head.prototypes(), self.head.dim());
        let values = 2 * self.means.len() + 2 * self.vote.len() + self.precision.factor().len();
        Vitals {
            movement_max,
            movement_mean,
            evidence_weight: 1.0 / self.config.scale,
            state_bytes: self.bank.bytes() + 8 * values,
            ..Default::default()
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.means, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        let drift =
            |(class, movement)| ClassDrift { movement, prior, evidence: self.bank.held(class) as f64 };
        moved.into_iter().enumerate().map(drift).collect()
    }
}
