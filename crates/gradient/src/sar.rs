//! SAR: Niu, Wu, Zhang, Wen, Chen, Zhao, Tan. Towards Stable Test-Time Adaptation in Dynamic Wild World. ICLR 2023.
//!
//! Per batch, with H_i the entropy of softmax(l_i) and E₀ = 0.4 ln C:
//!
//! ```text
//! answer     from the forward before the step
//! first      g = ∇ mean of H_i over S₁ = {H_i < E₀};      θ' = θ + ρ g/‖g‖
//! second     H'_i under θ';  g' = ∇ mean of H'_i over S₂ = {i ∈ S₁, H'_i < E₀}
//! step       θ ← θ − SGD(g')
//! recovery   e ← 0.9 e + 0.1 mean of H'_i over S₂;        back to the start once e < 0.2
//! ```
//!
//! Parameters: LayerNorms of the image tower without those of the top quarter of its blocks and the last norm, as
//! published for ViT-B (the top 3 of 12). The learning rate is 0.001/64 per picture of a batch, doubled for batches
//! of one. Departures: an empty S₁ or S₂ makes no step; a step whose gradient is not finite is left out.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};

use crate::Result;
use crate::method::{Batch, Classifier, Cost, Method, check, masked_mean};
use crate::ops::entropy;
use crate::train::{Kind, Optimizer, Parameters, Which, square_sum};

/// What SAR is.
pub const CARD: Card = Card {
    name: "sar",
    summary: "sharpness-aware entropy of reliable samples over the lower LayerNorms, with a recovery reset",
    paper: "Niu et al., ICLR 2023",
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

/// Settings of SAR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SarConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// Learning rate for a batch of 64.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// E₀ in units of ln C.
    pub margin: f64,
    /// ρ.
    pub rho: f64,
    /// Running loss below which the method goes back to the start.
    pub reset_below: f64,
    /// Blocks at the top that stay frozen; by default a quarter.
    pub skip_top: Option<usize>,
}

impl Default for SarConfig {
    fn default() -> Self {
        Self {
            batch: 64,
            episodic: false,
            lr: 1e-3,
            momentum: 0.9,
            margin: 0.4,
            rho: 0.05,
            reset_below: 0.2,
            skip_top: None,
        }
    }
}

impl SarConfig {
    /// SAR for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Sar> {
        check("sar", "batch", self.batch as f64, 1.0, 1e6)?;
        check("sar", "lr", self.lr, 0.0, 10.0)?;
        check("sar", "momentum", self.momentum, 0.0, 0.9999)?;
        check("sar", "margin", self.margin, 0.0, 10.0)?;
        check("sar", "rho", self.rho, 0.0, 100.0)?;
        check("sar", "reset_below", self.reset_below, 0.0, 1e3)?;
        let layers = classifier.model().config().vision.blocks.layers;
        let skip = self.skip_top.unwrap_or(layers / 4);
        Ok(Sar {
            config: self.clone(),
            margin: self.margin * (classifier.head().n_classes() as f64).ln(),
            parameters: Parameters::of_images(classifier.model(), Which::Norms, skip)?,
            optimizer: Optimizer::new(Kind::Sgd, self.momentum, 0.0),
            running: None,
        })
    }
}

/// SAR at work.
pub struct Sar {
    config: SarConfig,
    margin: f64,
    parameters: Parameters,
    optimizer: Optimizer,
    /// e.
    running: Option<f64>,
}

impl Sar {
    /// Entropies, and which of them are below the margin and in `among`.
    fn reliable(&self, entropies: &Tensor, among: Option<&[f32]>) -> Result<Option<Vec<f32>>> {
        let mask: Vec<f32> = entropies
            .detach()
            .to_vec1::<f32>()?
            .iter()
            .enumerate()
            .map(|(i, h)| f32::from(u8::from((*h as f64) < self.margin)) * among.map_or(1.0, |a| a[i]))
            .collect();
        Ok(mask.iter().any(|m| *m > 0.0).then_some(mask))
    }

    /// The gradient at the worst point near the parameters, and the mean loss there.
    fn second(
        &self,
        classifier: &Classifier,
        batch: &Batch<'_>,
        first: &[f32],
    ) -> Result<Option<(Option<Vec<Tensor>>, f64)>> {
        let entropies = entropy(&classifier.logits(self.parameters.weights(), &batch.patches)?)?;
        let Some(mask) = self.reliable(&entropies, Some(first))? else { return Ok(None) };
        let loss = masked_mean(&entropies, &mask)?;
        let grads = loss.backward()?;
        Ok(Some((self.parameters.gradients(&grads)?, loss.to_scalar::<f32>()?.into())))
    }
}

impl Method for Sar {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let n = batch.rows();
        let logits = classifier.logits(self.parameters.weights(), &batch.patches)?;
        cost.forward(classifier, n);
        let entropies = entropy(&logits)?;
        let Some(first) = self.reliable(&entropies, None)? else { return Ok(logits.detach()) };
        let grads = masked_mean(&entropies, &first)?.backward()?;
        cost.backward(classifier, n, false);
        let Some(gradients) = self.parameters.gradients(&grads)? else {
            cost.skipped += 1;
            return Ok(logits.detach());
        };
        let mut length = 0.0;
        for gradient in &gradients {
            length += square_sum(gradient)?;
        }
        let here = self.parameters.copies()?;
        self.parameters.add_scaled(&gradients, self.config.rho / (length.sqrt() + 1e-12))?;
        let second = self.second(classifier, batch, &first);
        self.parameters.set(&here)?;
        cost.forward(classifier, n);
        let Some((gradients, loss)) = second? else { return Ok(logits.detach()) };
        cost.loss = loss;
        cost.backward(classifier, n, false);
        let Some(gradients) = gradients else {
            cost.skipped += 1;
            return Ok(logits.detach());
        };
        let lr = self.config.lr / 64.0 * n as f64 * if n == 1 { 2.0 } else { 1.0 };
        self.optimizer.step(&self.parameters, &gradients, lr)?;
        cost.updates += 1;
        let running = self.running.map_or(loss, |e| 0.9 * e + 0.1 * loss);
        self.running = Some(running);
        if running < self.config.reset_below {
            self.reset()?;
            cost.resets += 1;
        }
        Ok(logits.detach())
    }

    fn reset(&mut self) -> Result<()> {
        self.running = None;
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
