//! TTT: Sun, Wang, Liu, Miller, Efros, Hardt. Test-Time Training with Self-Supervision for Generalization under
//! Distribution Shifts. ICML 2020. And TTT++: Liu, Kothari, van Delft, Bellot-Gurlet, Mordan, Alahi. TTT++: When
//! Does Self-Supervised Test-Time Training Fail or Thrive? NeurIPS 2021.
//!
//! ```text
//! ttt     loss  mean over pictures i and quarter turns r of cross entropy(r, A h(turn_r(x_i)) + b)
//!         h     the class token behind the last LayerNorm; A, b a linear head for the four turns
//! ttt++   loss  NT-Xent over two views of each picture's feature z (temperature 0.5)
//!               + λ ( ‖μ_s − μ‖² + ‖Σ_s − Σ‖²_F )
//!         μ, Σ  mean and covariance of the batch's z; μ_s, Σ_s the source's
//! step    the image tower ← SGD on the loss, then the batch is answered with the new weights
//! ```
//!
//! Departures, and they are large: both papers train the extra task together with the classifier on source data; a
//! published CLIP comes without such a head and without its data.
//! - TTT's head is trained on frozen features of source pictures where some are given ([`Method::prepare`]). Without
//!   them it begins at zero and learns on the stream, so the first steps hardly move the tower.
//! - TTT++ has no projection head of its own: CLIP's projection, trained contrastively as well, takes its place. Its
//!   source moments come from source pictures; without them there is no alignment, the contrastive term alone is left.
//! - The papers' residual networks have batch or group norms and one shared trunk; here every weight of the image
//!   tower learns (`parameters = "norms"` restricts it to the LayerNorms), with one step per batch at learning rate
//!   0.001; λ = 1. The papers take several steps per sample (TTT) or epochs over the test set (TTT++).

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};
use ultta_eval::random::Random;

use crate::Result;
use crate::method::{Batch, Classifier, Cost, Method, check};
use crate::ops::{cross_entropy, linear};
use crate::train::{Kind, Optimizer, Parameters, Which};
use crate::views::{Strength, turned, view};
use crate::vit::zeros;

/// What TTT is.
pub const CARD: Card = Card {
    name: "ttt",
    summary: "learns to tell quarter turns of each batch, then answers it; every weight of the image tower",
    paper: "Sun et al., ICML 2020",
    readout: Readout::AfterObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

/// What TTT++ is.
pub const CARD_PLUS_PLUS: Card = Card {
    name: "ttt++",
    summary: "contrasts two views of each picture and aligns moments with the source, then answers the batch",
    paper: "Liu et al., NeurIPS 2021",
    readout: Readout::AfterObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

const WEIGHT: &str = "rotation.weight";
const BIAS: &str = "rotation.bias";

/// Settings of TTT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TttConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// Which weights of the tower learn.
    pub parameters: Which,
    /// Steps of the head on source pictures.
    pub head_steps: usize,
    /// Learning rate of the head on source pictures (Adam).
    pub head_lr: f64,
}

impl Default for TttConfig {
    fn default() -> Self {
        Self {
            batch: 32,
            episodic: false,
            lr: 1e-3,
            momentum: 0.0,
            parameters: Which::All,
            head_steps: 300,
            head_lr: 0.01,
        }
    }
}

impl TttConfig {
    /// TTT for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Ttt> {
        check("ttt", "batch", self.batch as f64, 1.0, 1e6)?;
        check("ttt", "lr", self.lr, 0.0, 10.0)?;
        check("ttt", "momentum", self.momentum, 0.0, 0.9999)?;
        check("ttt", "head_lr", self.head_lr, 0.0, 10.0)?;
        let model = classifier.model();
        let width = model.config().vision.blocks.width;
        let (weight, bias) = (zeros(&[4, width])?, zeros(&[4])?);
        Ok(Ttt {
            parameters: self.parameters(classifier, weight, bias)?,
            config: self.clone(),
            optimizer: self.optimizer(),
        })
    }

    fn parameters(&self, classifier: &Classifier, weight: Tensor, bias: Tensor) -> Result<Parameters> {
        let mut parameters = Parameters::of_images(classifier.model(), self.parameters, 0)?;
        parameters.add(WEIGHT, weight)?;
        parameters.add(BIAS, bias)?;
        Ok(parameters)
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer::new(Kind::Sgd, self.momentum, 0.0)
    }
}

/// TTT at work.
pub struct Ttt {
    config: TttConfig,
    parameters: Parameters,
    optimizer: Optimizer,
}

/// All four turns of each picture, and the one-hot of the turn.
fn turns(classifier: &Classifier, batch: &Batch<'_>) -> Result<(Tensor, Tensor)> {
    let model = classifier.model();
    let mut pixels = Vec::with_capacity(4 * batch.pixels.len());
    let mut target = Vec::with_capacity(16 * batch.rows());
    for picture in batch.pixels.chunks_exact(model.input_len()) {
        for quarters in 0..4 {
            pixels.extend(turned(picture, model.preprocess().size, quarters));
            target.extend((0..4).map(|q| f32::from(u8::from(q == quarters))));
        }
    }
    Ok((model.patches(&pixels)?, Tensor::from_vec(target, (4 * batch.rows(), 4), &Device::Cpu)?))
}

impl Method for Ttt {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let n = batch.rows();
        let (patches, target) = turns(classifier, batch)?;
        let weights = self.parameters.weights();
        let pooled = classifier.model().pooled(weights, &patches)?;
        let logits = linear(&pooled, &weights[WEIGHT], Some(&weights[BIAS]))?;
        let loss = cross_entropy(&target, &logits)?.mean_all()?;
        let grads = loss.backward()?;
        cost.note_loss(&loss)?;
        cost.forward(classifier, 4 * n);
        cost.backward(classifier, 4 * n, self.config.parameters == Which::All);
        self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)?;
        cost.forward(classifier, n);
        Ok(classifier.logits(self.parameters.weights(), &batch.patches)?.detach())
    }

    /// Fits the head to frozen features of turned source pictures.
    fn prepare(&mut self, classifier: &Classifier, source: &[Batch<'_>]) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        let model = classifier.model();
        let mut shown = Vec::new();
        for batch in source {
            let (patches, target) = turns(classifier, batch)?;
            shown.push((model.pooled(model.weights(), &patches)?, target));
        }
        let head = Parameters::new(
            &[
                (WEIGHT.to_string(), self.parameters.weights()[WEIGHT].detach()),
                (BIAS.to_string(), self.parameters.weights()[BIAS].detach()),
            ]
            .into(),
            &[WEIGHT.to_string(), BIAS.to_string()],
        )?;
        let mut adam = Optimizer::new(Kind::Adam, 0.9, 0.0);
        for step in 0..self.config.head_steps {
            let (pooled, target) = &shown[step % shown.len()];
            let logits = linear(pooled, &head.weights()[WEIGHT], Some(&head.weights()[BIAS]))?;
            let grads = cross_entropy(target, &logits)?.mean_all()?.backward()?;
            if let Some(gradients) = head.gradients(&grads)? {
                adam.step(&head, &gradients, self.config.head_lr)?;
            }
        }
        let mut values = head.copies()?.into_iter();
        let (weight, bias) = (values.next().expect("two"), values.next().expect("two"));
        self.parameters = self.config.parameters(classifier, weight, bias)?;
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

/// Settings of TTT++.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TttPlusPlusConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// Which weights of the tower learn.
    pub parameters: Which,
    /// Temperature of the contrast.
    pub temperature: f64,
    /// λ.
    pub alignment: f64,
    /// Seed of the views.
    pub seed: u64,
}

impl Default for TttPlusPlusConfig {
    fn default() -> Self {
        Self {
            batch: 64,
            episodic: false,
            lr: 1e-3,
            momentum: 0.9,
            parameters: Which::All,
            temperature: 0.5,
            alignment: 1.0,
            seed: 0,
        }
    }
}

impl TttPlusPlusConfig {
    /// TTT++ for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<TttPlusPlus> {
        check("ttt++", "batch", self.batch as f64, 1.0, 1e6)?;
        check("ttt++", "lr", self.lr, 0.0, 10.0)?;
        check("ttt++", "momentum", self.momentum, 0.0, 0.9999)?;
        check("ttt++", "temperature", self.temperature, 1e-3, 1e3)?;
        check("ttt++", "alignment", self.alignment, 0.0, 1e6)?;
        Ok(TttPlusPlus {
            config: self.clone(),
            parameters: Parameters::of_images(classifier.model(), self.parameters, 0)?,
            optimizer: Optimizer::new(Kind::Sgd, self.momentum, 0.0),
            random: Random::new(self.seed),
            source: None,
        })
    }
}

/// TTT++ at work.
pub struct TttPlusPlus {
    config: TttPlusPlusConfig,
    parameters: Parameters,
    optimizer: Optimizer,
    random: Random,
    /// μ_s and Σ_s.
    source: Option<(Tensor, Tensor)>,
}

const STRENGTH: Strength = Strength { min_area: 0.5, colour: 0.3, noise: 0.0 };

/// Mean and covariance of rows.
fn moments(z: &Tensor) -> Result<(Tensor, Tensor)> {
    let n = z.dim(0)?;
    let mean = z.mean(0)?;
    let centred = z.broadcast_sub(&mean)?;
    let covariance = (centred.t()?.matmul(&centred)? / (n.max(2) - 1) as f64)?;
    Ok((mean, covariance))
}

/// Contrast of rows i and i + n, which show the same picture, with all others.
fn contrast(z: &Tensor, temperature: f64) -> Result<Tensor> {
    let both = z.dim(0)?;
    let n = both / 2;
    let mut own = vec![0.0f32; both * both];
    let mut target = vec![0.0f32; both * both];
    for i in 0..both {
        own[i * both + i] = -1e9;
        target[i * both + (i + n) % both] = 1.0;
    }
    let own = Tensor::from_vec(own, (both, both), &Device::Cpu)?;
    let target = Tensor::from_vec(target, (both, both), &Device::Cpu)?;
    let similarities = ((z.matmul(&z.t()?)? / temperature)? + own)?;
    Ok(cross_entropy(&target, &similarities)?.mean_all()?)
}

impl Method for TttPlusPlus {
    fn card(&self) -> &'static Card {
        &CARD_PLUS_PLUS
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let n = batch.rows();
        let model = classifier.model();
        let mut pixels = Vec::with_capacity(2 * batch.pixels.len());
        for _ in 0..2 {
            for picture in batch.pixels.chunks_exact(model.input_len()) {
                pixels.extend(view(picture, model.preprocess().size, STRENGTH, &mut self.random));
            }
        }
        let z = model.images(self.parameters.weights(), &model.patches(&pixels)?)?;
        let mut loss = contrast(&z, self.config.temperature)?;
        cost.forward(classifier, 2 * n);
        cost.backward(classifier, 2 * n, self.config.parameters == Which::All);
        if let Some((mean, covariance)) = &self.source
            && n > 1
        {
            let own = model.images(self.parameters.weights(), &batch.patches)?;
            let (m, c) = moments(&own)?;
            let gap = ((m - mean)?.sqr()?.sum_all()? + (c - covariance)?.sqr()?.sum_all()?)?;
            loss = (loss + (gap * self.config.alignment)?)?;
            cost.forward(classifier, n);
            cost.backward(classifier, n, self.config.parameters == Which::All);
        }
        let grads = loss.backward()?;
        cost.note_loss(&loss)?;
        self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)?;
        cost.forward(classifier, n);
        Ok(classifier.logits(self.parameters.weights(), &batch.patches)?.detach())
    }

    /// Takes the moments of the source's features.
    fn prepare(&mut self, classifier: &Classifier, source: &[Batch<'_>]) -> Result<()> {
        let model = classifier.model();
        let features =
            source.iter().map(|b| model.images(model.weights(), &b.patches)).collect::<Result<Vec<_>>>()?;
        if !features.is_empty() {
            let (mean, covariance) = moments(&Tensor::cat(&features, 0)?)?;
            self.source = Some((mean, covariance));
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.random = Random::new(self.config.seed);
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
