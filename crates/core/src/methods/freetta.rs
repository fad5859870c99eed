//! FreeTTA-style: a Gaussian per class with one shared covariance, learnt by online EM, beside the frozen scores.
//!
//! After Dai and Yang, *Free on the Fly: Enhancing Flexibility in Test-Time Adaptation with Online EM*, CVPR 2025.
//! Written from the paper's description, official code unavailable: hence *-style*.
//!
//! ```text
//! E: γ = softmax(ℓ(z)),  ω = exp(−β H(p_text))
//! M: N_c += ω γ_c,  S_c += ω γ_c z,  Q += ω z zᵀ;   the text row w_c counts as n₀ samples of its class
//!    μ_c = (n₀ w_c + S_c)/(n₀ + N_c),   π_c = (n₀ + N_c)/Σ(n₀ + N)
//!    Σ = [n₀ Σ w wᵀ + Q − Σ_c (n₀ + N_c) μ_c μ_cᵀ] / (C n₀ + Σω),   Σ⁻¹ ≈ (Σ + tr(Σ)/n · I)⁻¹, n = C n₀ + Σω
//! ℓ_c = s⟨z, w_c⟩ + α (⟨z, Σ⁻¹μ_c⟩ − ½⟨μ_c, Σ⁻¹μ_c⟩ + log π_c)
//! ```
//!
//! Departures: means, Σ⁻¹ and priors are recomputed every `refresh` samples instead of after each, and the
//! generative term is silent before the first time (there is no covariance yet); responsibilities below 1e-3 are
//! dropped. n₀, α and β are ours, chosen in the method's favour on shuffled streams of three packs (α 0.02–0.2,
//! β 1 and 4.5, n₀ 1 and 16); the paper's values are not known to us. On class-sorted streams classes not seen yet
//! stay at their text rows, far from every image, and lose: no choice of these repaired that.

use serde::{Deserialize, Serialize};

use super::math;
use crate::adapter::{Adapter, Batch, Card, ClassDrift, Grouping, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::linear::{add_squares, cholesky, solve};
use crate::scores::softmax_f64;
use crate::{Error, Head, Result, Scores, State};

/// Responsibilities below this teach nothing.
const NEGLIGIBLE: f64 = 1e-3;

/// Samples added to the second moments at once.
const CHUNK: usize = 64;

/// Settings of FreeTTA-style adaptation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FreettaConfig {
    /// Weight of the generative term (α).
    pub alpha: f64,
    /// How fast a sample's weight falls with its zero-shot entropy (β).
    pub beta: f64,
    /// Samples that the text row counts for (n₀).
    pub text_count: f64,
    /// Samples between two recomputations.
    pub refresh: u64,
}

impl Default for FreettaConfig {
    fn default() -> Self {
        Self { alpha: 0.05, beta: 1.0, text_count: 1.0, refresh: 64 }
    }
}

impl FreettaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Freetta> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.freetta.{k}"), v, lo..=hi);
        range("alpha", self.alpha, 0.0, 1e6)?;
        range("beta", self.beta, 0.0, 1e6)?;
        range("text_count", self.text_count, 1e-6, 1e12)?;
        range("refresh", self.refresh as f64, 1.0, 1e12)?;
        let (classes, dim) = (head.n_classes(), head.dim());
        Ok(Freetta {
            config: self.clone(),
            head: head.clone(),
            seen: 0,
            weight: 0.0,
            counts: vec![0.0; classes],
            sums: vec![0.0; classes * dim],
            second: {
                let root = self.text_count.sqrt();
                let text: Vec<f64> = head.prototypes().iter().map(|&w| root * w as f64).collect();
                let mut second = vec![0.0; dim * dim];
                add_squares(&mut second, &text, dim, 1.0);
                second
            },
            pending: Vec::new(),
            slopes: vec![0.0; classes * dim],
            offsets: vec![0.0; classes],
        })
    }
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "freetta",
    summary: "class means, a shared covariance and priors by online EM beside zero-shot (FreeTTA-style)",
    paper: "after Dai and Yang, Free on the Fly: Enhancing Flexibility in Test-Time Adaptation with Online EM, CVPR 2025",
    // The scores and the means; the second moments; every 64 samples a factorisation and C solutions.
    operations: Some(|c, d| 4.0 * c * d + 2.0 * d * d + (2.0 / 3.0 * d * d * d + 4.0 * c * d * d) / 64.0),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

/// FreeTTA-style adaptation.
#[derive(Clone, Debug)]
pub(crate) struct Freetta {
    config: FreettaConfig,
    head: Head,
    /// Samples that taught.
    seen: u64,
    /// Σω.
    weight: f64,
    /// N.
    counts: Vec<f64>,
    /// S.
    sums: Vec<f64>,
    /// n₀ Σ w wᵀ + Q without the rows that wait, the lower triangle, column after column.
    second: Vec<f64>,
    /// √ω z of the samples that wait to be added.
    pending: Vec<f64>,
    /// Σ⁻¹μ_c as of the last recomputation; zero before it.
    slopes: Vec<f64>,
    /// −½⟨μ_c, Σ⁻¹μ_c⟩ + log π_c as of the last recomputation.
    offsets: Vec<f64>,
}

impl Freetta {
    fn logits(&self, z: &[f32], zero_shot: &[f32]) -> Vec<f64> {
        let mut logits = math::dots(&self.slopes, z, 1.0);
        for ((logit, offset), &text) in logits.iter_mut().zip(&self.offsets).zip(zero_shot) {
            *logit = text as f64 + self.config.alpha * (*logit + offset);
        }
        logits
    }

    fn accumulate(&mut self, z: &[f32], entropy: f32, mut logits: Vec<f64>) {
        let dim = self.head.dim();
        softmax_f64(&mut logits);
        let omega = (-self.config.beta * entropy as f64).exp();
        for (class, gamma) in logits.into_iter().enumerate().filter(|(_, gamma)| *gamma >= NEGLIGIBLE) {
            self.counts[class] += omega * gamma;
            math::add(&mut self.sums[class * dim..][..dim], omega * gamma, z);
        }
        let root = omega.sqrt();
        self.pending.extend(z.iter().map(|&v| root * v as f64));
        if self.pending.len() >= CHUNK * dim {
            self.add_pending();
        }
        self.weight += omega;
        self.seen += 1;
        if self.seen.is_multiple_of(self.config.refresh) {
            self.update();
        }
    }

    fn add_pending(&mut self) {
        add_squares(&mut self.second, &self.pending, self.head.dim(), 1.0);
        self.pending.clear();
    }

    /// μ_c, one row per class.
    fn means(&self) -> Vec<f64> {
        let n0 = self.config.text_count;
        let dim = self.head.dim();
        let mut means = self.sums.clone();
        for (class, mean) in means.chunks_mut(dim).enumerate() {
            math::add(mean, n0, self.head.prototype(class));
            let total = n0 + self.counts[class];
            mean.iter_mut().for_each(|v| *v /= total);
        }
        means
    }

    fn update(&mut self) {
        let n0 = self.config.text_count;
        let (classes, dim) = (self.head.n_classes(), self.head.dim());
        let n = classes as f64 * n0 + self.weight;
        self.add_pending();
        let means = self.means();
        let mut scaled = means.clone();
        for (mean, count) in scaled.chunks_mut(dim).zip(&self.counts) {
            let root = (n0 + count).sqrt();
            mean.iter_mut().for_each(|v| *v *= root);
        }
        let mut sigma = self.second.clone();
        add_squares(&mut sigma, &scaled, dim, -1.0);
        sigma.iter_mut().for_each(|v| *v /= n);
        let trace: f64 = (0..dim).map(|i| sigma[i * dim + i]).sum();
        (0..dim).for_each(|i| sigma[i * dim + i] += trace / n);
        // Without spread there is nothing to learn from: the generative term keeps silent.
        let Some(()) = cholesky(&mut sigma, dim) else { return };
        let mut solved = means.clone();
        solve(&sigma, dim, &mut solved);
        let total: f64 = self.counts.iter().sum::<f64>() + classes as f64 * n0;
        for class in 0..classes {
            let column = &solved[class * dim..][..dim];
            let half = 0.5 * column.iter().zip(&means[class * dim..]).map(|(s, m)| s * m).sum::<f64>();
            self.slopes[class * dim..][..dim].copy_from_slice(column);
            self.offsets[class] = ((n0 + self.counts[class]) / total).ln() - half;
        }
    }
}

impl Adapter for Freetta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let logits = self.logits(batch.features.row(row), batch.zero_shot.row(row));
            scores.row_mut(row).iter_mut().zip(logits).for_each(|(s, v)| *s = v as f32);
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        for row in (0..batch.rows()).filter(|&row| batch.may_learn(row)) {
            let z = batch.features.row(row);
            let logits = self.logits(z, batch.zero_shot.row(row));
            self.accumulate(z, batch.frozen[row].entropy, logits);
        }
        Observed { admitted: (0..batch.rows()).map(|row| batch.may_learn(row)).collect() }
    }

    /// Answer and update share the logits.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let z = batch.features.row(row);
            let logits = self.logits(z, batch.zero_shot.row(row));
            scores.row_mut(row).iter_mut().zip(&logits).for_each(|(s, &v)| *s = v as f32);
            if batch.may_learn(row) {
                self.accumulate(z, batch.frozen[row].entropy, logits);
            }
        }
        let mut prediction = Prediction::from_scores(scores);
        for (row, answer) in prediction.answers.iter_mut().enumerate() {
            answer.admitted = batch.may_learn(row);
        }
        prediction
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        state.put("seen", &[self.seen]);
        state.put("weight", &[self.weight]);
        state.put("counts", &self.counts);
        state.put("sums", &self.sums);
        state.put("moments", &self.second);
        state.put("pending", &self.pending);
        state.put("slopes", &self.slopes);
        state.put("offsets", &self.offsets);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let get = |name: &str, like: &Vec<f64>| state.get_n::<f64>(name, like.len()).map(<[f64]>::to_vec);
        let pending = state.get::<f64>("pending")?;
        if !pending.len().is_multiple_of(self.head.dim()) || pending.len() >= CHUNK * self.head.dim() {
            return Err(Error::state(format!("pending: expected less than {CHUNK} whole rows")));
        }
        let [seen] = state.counts("seen")?;
        *self = Self {
            seen,
            weight: state.scalar("weight")?,
            counts: get("counts", &self.counts)?,
            sums: get("sums", &self.sums)?,
            second: get("moments", &self.second)?,
            pending: pending.to_vec(),
            slopes: get("slopes", &self.slopes)?,
            offsets: get("offsets", &self.offsets)?,
            config: self.config.clone(),
            head: self.head.clone(),
        };
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let (movement_max, movement_mean) =
            math::movement(&self.means(), self.head.prototypes(), self.head.dim());
        let mut prior: Vec<f64> = self.counts.iter().map(|n| n + self.config.text_count).collect();
        math::to_shares(&mut prior);
        let values = 2 * (self.sums.len() + self.counts.len()) + self.second.len() + self.pending.len();
        Vitals {
            prior_kl: math::kl_from_uniform(&prior),
            movement_max,
            movement_mean,
            state_bytes: values * 8,
            ..Default::default()
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.means(), self.head.prototypes(), self.head.dim());
        let total = self.counts.iter().sum::<f64>() + moved.len() as f64 * self.config.text_count;
        let drift = |(movement, &evidence): (f64, &f64)| ClassDrift {
            movement,
            prior: (evidence + self.config.text_count) / total,
            evidence,
        };
        moved.into_iter().zip(&self.counts).map(drift).collect()
    }
}
