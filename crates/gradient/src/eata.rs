//! EATA: Niu, Wu, Zhang, Chen, Zheng, Zhao, Tan. Efficient Test-Time Model Adaptation without Forgetting. ICML 2022.
//!
//! Per batch, with p_i = softmax(l_i), H_i its entropy, m the running mean of probabilities of samples that taught:
//!
//! ```text
//! answer     p_i                                           from the forward before the step
//! reliable   H_i < E₀ = 0.4 ln C
//! new        |cos(p_i, m)| < d                             all, while m is not there yet
//! m          ← 0.9 m + 0.1 mean of p over those selected
//! loss       L = mean over those selected of e^(E₀ − H_i) H_i  +  λ Σ_j F_j (θ_j − θ⁰_j)²
//! step       γ, β of every LayerNorm ← SGD on L; none if nothing was selected
//! F          mean over batches of (∂/∂θ cross entropy with the answers)² at θ⁰
//! ```
//!
//! Departures: LayerNorms take the place of batch norms. F comes from pictures of the source if there are some
//! ([`Method::prepare`]); without them from the first `fisher_samples` of the stream, at θ⁰, as they pass. d is 0.05
//! as published for ImageNet, and 0.4 as published for CIFAR-10 where the head has fewer than a hundred classes: a
//! confident answer among few classes is never as far from the mean as 0.05. A step whose gradient is not finite is
//! left out.

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};

use crate::Result;
use crate::method::{Batch, Classifier, Cost, Method, check, masked_mean};
use crate::ops::{cross_entropy, entropy, softmax, with};
use crate::train::{Kind, Optimizer, Parameters, Which};

/// What EATA is.
pub const CARD: Card = Card {
    name: "eata",
    summary: "entropy of reliable and new samples over the LayerNorms, held near the start by a Fisher regulariser",
    paper: "Niu et al., ICML 2022",
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

/// Settings of EATA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EataConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// E₀ in units of ln C.
    pub margin: f64,
    /// d; by default 0.05, and 0.4 with fewer than a hundred classes.
    pub d_margin: Option<f64>,
    /// λ.
    pub fisher_alpha: f64,
    /// Samples that F is made of.
    pub fisher_samples: usize,
}

impl Default for EataConfig {
    fn default() -> Self {
        Self {
            batch: 64,
            episodic: false,
            lr: 2.5e-4,
            momentum: 0.9,
            margin: 0.4,
            d_margin: None,
            fisher_alpha: 2000.0,
            fisher_samples: 2000,
        }
    }
}

impl EataConfig {
    /// EATA for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Eata> {
        check("eata", "batch", self.batch as f64, 1.0, 1e6)?;
        check("eata", "lr", self.lr, 0.0, 10.0)?;
        check("eata", "momentum", self.momentum, 0.0, 0.9999)?;
        check("eata", "margin", self.margin, 0.0, 10.0)?;
        check("eata", "d_margin", self.d_margin.unwrap_or(1.0), 0.0, 2.0)?;
        check("eata", "fisher_alpha", self.fisher_alpha, 0.0, 1e12)?;
        let classes = classifier.head().n_classes();
        let usual = if classes < 100 { 0.4 } else { 0.05 };
        Ok(Eata {
            config: self.clone(),
            margin: self.margin * (classes as f64).ln(),
            d_margin: self.d_margin.unwrap_or(usual),
            parameters: Parameters::of_images(classifier.model(), Which::Norms, 0)?,
            optimizer: Optimizer::new(Kind::Sgd, self.momentum, 0.0),
            mean: None,
            fisher: Fisher::default(),
        })
    }
}

/// EATA at work.
pub struct Eata {
    config: EataConfig,
    margin: f64,
    d_margin: f64,
    parameters: Parameters,
    optimizer: Optimizer,
    /// m.
    mean: Option<Vec<f32>>,
    fisher: Fisher,
}

/// Sums of squared gradients.
#[derive(Default)]
struct Fisher {
    sums: Vec<Tensor>,
    batches: f64,
    samples: usize,
    given: bool,
}

impl Eata {
    /// Adds a batch to F, with the frozen weights in place.
    fn observe_fisher(&mut self, classifier: &Classifier, batch: &Batch<'_>) -> Result<()> {
        let now = self.parameters.copies()?;
        self.parameters.reset()?;
        let squares = self.squares(classifier, batch);
        self.parameters.set(&now)?;
        if let Some(squares) = squares? {
            self.fisher.sums = if self.fisher.sums.is_empty() {
                squares
            } else {
                let add = |(a, b): (&Tensor, Tensor)| Ok((a + b)?);
                self.fisher.sums.iter().zip(squares).map(add).collect::<Result<_>>()?
            };
            self.fisher.batches += 1.0;
        }
        self.fisher.samples += batch.rows();
        Ok(())
    }

    fn squares(&self, classifier: &Classifier, batch: &Batch<'_>) -> Result<Option<Vec<Tensor>>> {
        let logits = classifier.logits(self.parameters.weights(), &batch.patches)?;
        let classes = logits.dim(1)?;
        let mut target = vec![0.0f32; batch.rows() * classes];
        for (row, best) in logits.detach().argmax(1)?.to_vec1::<u32>()?.into_iter().enumerate() {
            target[row * classes + best as usize] = 1.0;
        }
        let target = Tensor::from_vec(target, (batch.rows(), classes), &Device::Cpu)?;
        let grads = cross_entropy(&target, &logits)?.mean_all()?.backward()?;
        match self.parameters.gradients(&grads)? {
            Some(gradients) => Ok(Some(gradients.iter().map(|g| Ok(g.sqr()?)).collect::<Result<_>>()?)),
            None => Ok(None),
        }
    }

    /// λ Σ F (θ − θ⁰)², if there is an F.
    fn regulariser(&self) -> Result<Option<Tensor>> {
        let mut sum: Option<Tensor> = None;
        if self.config.fisher_alpha == 0.0 || self.fisher.sums.is_empty() {
            return Ok(None);
        }
        let scale = self.config.fisher_alpha / self.fisher.batches;
        for (((_, value), start), fisher) in
            self.parameters.values().zip(self.parameters.start()).zip(&self.fisher.sums)
        {
            let term = ((fisher * (value - start)?.sqr()?)?.sum_all()? * scale)?;
            sum = Some(match sum {
                Some(sum) => (sum + term)?,
                None => term,
            });
        }
        Ok(sum)
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-12)
}

impl Method for Eata {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let n = batch.rows();
        if !self.fisher.given
            && self.config.fisher_alpha > 0.0
            && self.fisher.samples < self.config.fisher_samples
        {
            self.observe_fisher(classifier, batch)?;
            cost.forward(classifier, n);
            cost.backward(classifier, n, false);
        }
        let logits = classifier.logits(self.parameters.weights(), &batch.patches)?;
        cost.forward(classifier, n);
        let entropies = entropy(&logits)?;
        let classes = logits.dim(1)?;
        let probs = with(&softmax(&logits.detach())?, <[f32]>::to_vec)?;
        let values = entropies.detach().to_vec1::<f32>()?;
        let taught = |row: usize| {
            (values[row] as f64) < self.margin
                && self
                    .mean
                    .as_ref()
                    .is_none_or(|mean| cosine(mean, &probs[row * classes..][..classes]).abs() < self.d_margin)
        };
        let mask: Vec<f32> = (0..n).map(|row| f32::from(u8::from(taught(row)))).collect();
        let chosen = mask.iter().filter(|m| **m > 0.0).count();
        if chosen == 0 {
            return Ok(logits.detach());
        }
        let weights: Vec<f32> = values.iter().map(|h| (self.margin - *h as f64).exp() as f32).collect();
        let weighted = (entropies * Tensor::from_vec(weights, n, &Device::Cpu)?)?;
        let mut loss = masked_mean(&weighted, &mask)?;
        if let Some(term) = self.regulariser()? {
            loss = (loss + term)?;
        }
        let grads = loss.backward()?;
        cost.note_loss(&loss)?;
        cost.backward(classifier, n, false);
        self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)?;
        let mut fresh = vec![0.0f32; classes];
        for row in (0..n).filter(|row| mask[*row] > 0.0) {
            let row = &probs[row * classes..][..classes];
            fresh.iter_mut().zip(row).for_each(|(f, p)| *f += p / chosen as f32);
        }
        self.mean = Some(match &self.mean {
            Some(mean) => mean.iter().zip(fresh).map(|(m, f)| 0.9 * m + 0.1 * f).collect(),
            None => fresh,
        });
        Ok(logits.detach())
    }

    fn prepare(&mut self, classifier: &Classifier, source: &[Batch<'_>]) -> Result<()> {
        self.fisher = Fisher::default();
        for batch in source {
            if self.fisher.samples >= self.config.fisher_samples {
                break;
            }
            self.observe_fisher(classifier, batch)?;
        }
        self.fisher.given = !source.is_empty();
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.mean = None;
        if !self.fisher.given {
            self.fisher = Fisher::default();
        }
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
