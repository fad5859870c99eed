//! DMN (training-free, dynamic memory): a class proxy read out of a memory of confident samples for each query.
//!
//! Zhang et al., *Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models*, CVPR 2024.
//!
//! ```text
//! memory: per pseudo-class the 50 samples of lowest entropy, and the text row w_c
//! a_i = exp(−β (1 − ⟨z, m_i⟩)), β = 5.5;   proxy_c = norm(Σ_i a_i m_i)
//! p = (p_text + λ softmax(s⟨z, proxy⟩)) / (1 + λ)
//! ```
//!
//! A sample joins the memory before it is answered. With views: the 10 % most certain ones, as in TDA.
//! Departure: λ = 1 for every dataset. The publication picks λ per dataset on test labels; this is the fixed-weight
//! variant. The sum is divided by 1 + λ so that it is a probability.

use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::math;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::scores::softmax_f64;
use crate::{Head, Result, Scores, State};

/// Settings of DMN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DmnConfig {
    /// Samples per class in the memory.
    pub capacity: usize,
    /// Sharpness of the read-out (β).
    pub beta: f64,
    /// Weight of the memory's probabilities against the text's (λ).
    pub weight: f64,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
}

impl Default for DmnConfig {
    fn default() -> Self {
        Self { capacity: 50, beta: 5.5, weight: 1.0, view_share: 0.1 }
    }
}

impl DmnConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Dmn> {
        in_range("method.dmn.beta", self.beta, 0.0..=1e6)?;
        in_range("method.dmn.weight", self.weight, 0.0..=1e6)?;
        in_range("method.dmn.view_share", self.view_share, 0.0..=1.0)?;
        let memory = Cache::new(head.dim(), head.n_classes(), self.capacity);
        Ok(Dmn {
            grams: vec![Vec::new(); head.n_classes()],
            memory,
            head: head.clone(),
            config: self.clone(),
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "dmn",
    summary: "class proxies read out of a memory of confident samples, averaged with zero-shot",
    paper: "Zhang et al., Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models, CVPR 2024",
    // 51 remembered rows per class, read and summed; the scores of the proxies.
    operations: Some(|c, d| 206.0 * c * d),
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    tuned: true,
    answer_keys: &["beta", "weight"],
    reads_views: true,
    ..Card::PLAIN
};

/// DMN.
#[derive(Clone, Debug)]
pub(crate) struct Dmn {
    config: DmnConfig,
    head: Head,
    memory: Cache,
    /// Products of the text row and the samples of a class with each other, a row each; empty for a class without samples.
    /// They follow from the memory.
    grams: Vec<Vec<f32>>,
}

impl Dmn {
    /// Takes in that the memory of a class has changed.
    fn refresh(&mut self, class: usize) {
        let text = (self.memory.slots(class).len() > 0).then(|| self.head.prototype(class));
        let keys = self.memory.slots(class).map(|slot| self.memory.key(slot));
        let rows: Vec<&[f32]> = text.into_iter().chain(keys).collect();
        let of = |row: &&[f32]| {
            let row = math::widen(row);
            rows.iter().map(move |other| math::dot(&row, other) as f32).collect::<Vec<f32>>()
        };
        self.grams[class] = rows.iter().flat_map(of).collect();
    }

    /// s⟨z, proxy⟩ for every class. Of a proxy only its product with z and its length count, and both follow from products
    /// of rows: ⟨z, Σ a_i m_i⟩ = Σ a_i ⟨z, m_i⟩ and |Σ a_i m_i|² = Σ a_i a_j ⟨m_i, m_j⟩.
    fn memory_logits(&self, z: &[f32], text: &[f32]) -> Vec<f64> {
        let scale = self.head.logit_scale() as f64;
        let products = self.memory.products(z);
        let affinity = |product: f64| (-self.config.beta * (1.0 - product)).exp();
        let mut affinities: Vec<f64> = Vec::new();
        let mut logits = math::widen(text);
        // Where a class has no sample, the text row alone is its proxy.
        for (class, logit) in
            logits.iter_mut().enumerate().filter(|(class, _)| !self.grams[*class].is_empty())
        {
            let own = std::iter::once(*logit / scale);
            let near = own.chain(self.memory.slots(class).map(|slot| products[slot] as f64));
            affinities.clear();
            let mut along = 0.0;
            affinities.extend(near.map(|product| {
                let a = affinity(product);
                along += a * product;
                a
            }));
            let rows = self.grams[class].chunks(affinities.len()).zip(&affinities);
            let square: f64 = rows.map(|(row, a)| a * math::dot(&affinities, row)).sum();
            *logit = if square > 0.0 { scale * along / square.sqrt() } else { 0.0 };
        }
        logits
    }
}

impl Adapter for Dmn {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        let weight = self.config.weight;
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.config.view_share);
            let mut probs = self.memory_logits(&sample.feature, &sample.logits);
            softmax_f64(&mut probs);
            let mix = |(p, &text): (&mut f64, &f32)| *p = (text as f64 + weight * *p) / (1.0 + weight);
            probs.iter_mut().zip(&sample.probs).for_each(mix);
            math::logits_of(&probs, scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.config.view_share);
            let taken = batch.may_learn(row)
                && self.memory.offer(sample.label, sample.entropy, &sample.feature).is_some();
            if taken {
                self.refresh(sample.label);
            }
            admitted.push(taken);
        }
        Observed { admitted }
    }

    fn reset(&mut self) {
        self.memory.clear();
        self.grams.iter_mut().for_each(Vec::clear);
    }

    fn save(&self) -> State {
        let mut state = State::default();
        self.memory.save("memory", &mut state);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.memory = self.memory.loaded("memory", state)?;
        (0..self.grams.len()).for_each(|class| self.refresh(class));
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let products: usize = self.grams.iter().map(Vec::len).sum();
        Vitals { state_bytes: self.memory.bytes() + 4 * products, ..Default::default() }
    }
}
