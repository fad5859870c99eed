//! BCA-style: class embeddings and a posterior per embedding, both updated by confident samples.
//!
//! After Zhou et al., *Bayesian Test-Time Adaptation for Vision-Language Models*, CVPR 2025. Written from a
//! third-party description, no official code was at hand: hence *-style*.
//!
//! ```text
//! s = softmax(scale ⟨z, μ⟩),  p = Σ_k s_k R_k,  R_k = P(y | μ_k), at first the identity
//! k = argmax p;  p_k > 0.05:  μ_k ← norm((n_k μ_k + z) / (n_k + 1)),  n_k starts at 20000
//!                p_k > 0.65:  R_k ← (m_k R_k + p) / (m_k + 1),         m_k starts at 1
//! ```
//!
//! So its "prior" is a row of a confusion matrix, not a class marginal. Rows of R that were never updated are not
//! stored, and embeddings with s_k below 1e-9 are left out of the sum.

use serde::{Deserialize, Serialize};

use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::kernels::vectorised;
use crate::scores::softmax_f64;
use crate::{Error, Head, Result, Scores, State};

/// Embeddings with a smaller likelihood add nothing that an f32 could show.
const NEGLIGIBLE: f64 = 1e-9;

/// Settings of BCA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BcaConfig {
    /// An answer more certain than this moves its class embedding.
    pub embedding_threshold: f64,
    /// An answer more certain than this moves its posterior row.
    pub posterior_threshold: f64,
    /// Samples that the text embedding counts for at the start.
    pub embedding_count: f64,
    /// Samples that the identity counts for at the start.
    pub posterior_count: f64,
}

impl Default for BcaConfig {
    fn default() -> Self {
        Self {
            embedding_threshold: 0.05,
            posterior_threshold: 0.65,
            embedding_count: 20_000.0,
            posterior_count: 1.0,
        }
    }
}

impl BcaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Bca> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.bca.{k}"), v, lo..=hi);
        range("embedding_threshold", self.embedding_threshold, 0.0, 1.0)?;
        range("posterior_threshold", self.posterior_threshold, 0.0, 1.0)?;
        range("embedding_count", self.embedding_count, 0.0, 1e15)?;
        range("posterior_count", self.posterior_count, 0.0, 1e15)?;
        let mut bca = Bca {
            head: head.clone(),
            config: self.clone(),
            embeddings: Vec::new(),
            embedding_counts: Vec::new(),
            posteriors: Vec::new(),
            posterior_counts: Vec::new(),
        };
        bca.reset();
        Ok(bca)
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "bca",
    summary: "class embeddings and their posteriors follow confident samples (BCA-style)",
    paper: "after Zhou et al., Bayesian Test-Time Adaptation for Vision-Language Models, CVPR 2025",
    // The scores; the posteriors of the embeddings; one of them moves.
    operations: Some(|c, d| 2.0 * c * d + 2.0 * c * c + 4.0 * d),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

/// BCA-style adaptation.
#[derive(Clone, Debug)]
pub(crate) struct Bca {
    config: BcaConfig,
    head: Head,
    /// μ, one unit row per class.
    embeddings: Vec<f64>,
    /// n.
    embedding_counts: Vec<f64>,
    /// R, without the rows that are still the identity's.
    posteriors: Vec<Option<Vec<f64>>>,
    /// m.
    posterior_counts: Vec<f64>,
}

impl Bca {
    fn posterior(&self, z: &[f32]) -> Vec<f64> {
        let mut likelihood = math::dots(&self.embeddings, z, self.head.logit_scale() as f64);
        softmax_f64(&mut likelihood);
        let mut p = vec![0.0; likelihood.len()];
        vectorised(
            #[inline(always)]
            || {
                for (k, (&s, row)) in likelihood.iter().zip(&self.posteriors).enumerate() {
                    match row {
                        None => p[k] += s,
                        Some(row) if s > NEGLIGIBLE => p.iter_mut().zip(row).for_each(|(p, r)| *p += s * r),
                        Some(_) => {}
                    }
                }
            },
        );
        p
    }

    /// Whether the sample moved anything.
    fn update(&mut self, z: &[f32], p: &[f64]) -> bool {
        let k = math::argmax(p);
        let moves = p[k] > self.config.embedding_threshold;
        if moves {
            let count = &mut self.embedding_counts[k];
            let mu = &mut self.embeddings[k * self.head.dim()..][..self.head.dim()];
            mu.iter_mut().for_each(|v| *v *= *count);
            math::add(mu, 1.0, z);
            math::normalize(mu);
            *count += 1.0;
        }
        let teaches = p[k] > self.config.posterior_threshold;
        if teaches {
            let count = &mut self.posterior_counts[k];
            let row =
                self.posteriors[k].get_or_insert_with(|| (0..p.len()).map(|c| f64::from(c == k)).collect());
            let share = 1.0 / (*count + 1.0);
            row.iter_mut().zip(p).for_each(|(r, p)| *r = (*count * *r + p) * share);
            *count += 1.0;
        }
        moves || teaches
    }
}

impl Adapter for Bca {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            math::logits_of(&self.posterior(batch.features.row(row)), scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let z = batch.features.row(row);
            admitted.push(
                batch.may_learn(row) && {
                    let p = self.posterior(z);
                    self.update(z, &p)
                },
            );
        }
        Observed { admitted }
    }

    /// Answer and update share the posterior.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let z = batch.features.row(row);
            let p = self.posterior(z);
            math::logits_of(&p, scores.row_mut(row));
            admitted.push(batch.may_learn(row) && self.update(z, &p));
        }
        let mut prediction = Prediction::from_scores(scores);
        prediction.answers.iter_mut().zip(admitted).for_each(|(answer, a)| answer.admitted = a);
        prediction
    }

    fn reset(&mut self) {
        let classes = self.head.n_classes();
        self.embeddings = math::widen(self.head.prototypes());
        self.embedding_counts = vec![self.config.embedding_count; classes];
        self.posteriors = vec![None; classes];
        self.posterior_counts = vec![self.config.posterior_count; classes];
    }

    fn save(&self) -> State {
        let stored = || self.posteriors.iter().enumerate().filter_map(|(k, row)| Some((k, row.as_ref()?)));
        let mut state = State::default();
        state.put("embeddings", &self.embeddings);
        state.put("embedding_counts", &self.embedding_counts);
        state.put("posterior_counts", &self.posterior_counts);
        state.put("posterior_index", &stored().map(|(k, _)| k as u32).collect::<Vec<_>>());
        state.put("posteriors", &stored().flat_map(|(_, row)| row).copied().collect::<Vec<_>>());
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let classes = self.head.n_classes();
        let embeddings = state.get_n::<f64>("embeddings", self.embeddings.len())?.to_vec();
        let embedding_counts = state.get_n::<f64>("embedding_counts", classes)?.to_vec();
        let posterior_counts = state.get_n::<f64>("posterior_counts", classes)?.to_vec();
        let index = state.get::<u32>("posterior_index")?;
        let rows = state.get_n::<f64>("posteriors", index.len() * classes)?;
        let mut posteriors = vec![None; classes];
        for (&k, row) in index.iter().zip(rows.chunks(classes)) {
            let slot = posteriors.get_mut(k as usize);
            *slot.ok_or_else(|| Error::state("posterior_index: class out of range"))? = Some(row.to_vec());
        }
        let (config, head) = (self.config.clone(), self.head.clone());
        *self = Self { config, head, embeddings, embedding_counts, posteriors, posterior_counts };
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.embeddings, self.head.prototypes(), self.head.dim());
        let rows = self.posteriors.iter().flatten().count() * self.posteriors.len();
        let state_bytes = (self.embeddings.len() + rows + 2 * self.posteriors.len()) * 8;
        Vitals { movement_max, movement_mean, state_bytes, ..Default::default() }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.embeddings, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        let evidence = self.embedding_counts.iter().map(|n| n - self.config.embedding_count);
        moved
            .into_iter()
            .zip(evidence)
            .map(|(movement, evidence)| ClassDrift { movement, prior, evidence })
            .collect()
    }
}
