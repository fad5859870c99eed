//! Tent: Wang, Shelhamer, Liu, Olshausen, Darrell. Tent: Fully Test-Time Adaptation by Entropy Minimization.
//! ICLR 2021.
//!
//! Per batch x₁…x_B with logits l_i:
//!
//! ```text
//! answer   softmax(l_i)                               from the forward before the step
//! loss     L = 1/B Σ_i H(softmax(l_i))
//! step     γ, β of every LayerNorm of the image tower ← SGD on L
//! ```
//!
//! Departures: the paper adapts batch norms and their statistics; a ViT has LayerNorms, whose scales and shifts take
//! their place, and no statistics. SGD with learning rate 0.00025 and momentum 0.9, 64 pictures a batch, as the paper
//! has for ImageNet. Text prototypes stay frozen. A step whose gradient is not finite is left out.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};

use crate::Result;
use crate::method::{Batch, Classifier, Cost, Method, check};
use crate::ops::entropy;
use crate::train::{Kind, Optimizer, Parameters, Which};

/// What Tent is.
pub const CARD: Card = Card {
    name: "tent",
    summary: "minimises the entropy of each batch over the LayerNorms of the image tower",
    paper: "Wang et al., ICLR 2021",
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

/// Settings of Tent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TentConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// SGD or Adam.
    pub optimizer: Kind,
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
}

impl Default for TentConfig {
    fn default() -> Self {
        Self { batch: 64, episodic: false, optimizer: Kind::Sgd, lr: 2.5e-4, momentum: 0.9 }
    }
}

impl TentConfig {
    /// Tent for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Tent> {
        check("tent", "batch", self.batch as f64, 1.0, 1e6)?;
        check("tent", "lr", self.lr, 0.0, 10.0)?;
        check("tent", "momentum", self.momentum, 0.0, 0.9999)?;
        Ok(Tent {
            config: self.clone(),
            parameters: Parameters::of_images(classifier.model(), Which::Norms, 0)?,
            optimizer: Optimizer::new(self.optimizer, self.momentum, 0.0),
        })
    }
}

/// Tent at work.
pub struct Tent {
    config: TentConfig,
    parameters: Parameters,
    optimizer: Optimizer,
}

impl Method for Tent {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let logits = classifier.logits(self.parameters.weights(), &batch.patches)?;
        let loss = entropy(&logits)?.mean_all()?;
        let grads = loss.backward()?;
        cost.note_loss(&loss)?;
        cost.forward(classifier, batch.rows());
        cost.backward(classifier, batch.rows(), false);
        self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)?;
        Ok(logits.detach())
    }

    fn reset(&mut self) -> Result<()> {
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
