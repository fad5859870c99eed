//! CoTTA: Wang, Fink, Van Gool, Dai. Continual Test-Time Domain Adaptation. CVPR 2022.
//!
//! A student, a teacher that is its running mean, and the frozen model as anchor. Per batch:
//!
//! ```text
//! confidence  a = mean over i of max softmax(anchor(x_i))
//! teacher     l_i = teacher(x_i);  if a < threshold, instead the mean over N views v of teacher(v(x_i))
//! answer      softmax(l_i), the teacher's
//! loss        L = 1/B Σ_i −Σ_c softmax(l_i)_c log softmax(student(x_i))_c
//! step        every weight of the student ← SGD on L
//! teacher     ← α teacher + (1 − α) student
//! restore     each number of the student goes back to the frozen one with probability p
//! ```
//!
//! As published for ImageNet: learning rate 0.01, momentum 0.9, α = 0.999, N = 32, p = 0.001, 64 pictures a batch;
//! the threshold is the published one for as many classes (CIFAR-10 0.92, CIFAR-100 0.72, ImageNet 0.1). Note what
//! follows from the equations: without views teacher and student begin alike, the loss has no gradient, and CoTTA
//! answers zero-shot for ever. A network with batch norms or dropout escapes that, a ViT does not: above the
//! threshold it is zero-shot at five times the operations.
//!
//! Departures: only the image tower learns, the prototypes are text and stay frozen; views are
//! random cuts, mirrorings, changes of contrast and brightness, and noise on the preprocessed picture, where the
//! paper's code also shears and blurs. A step whose gradient is not finite is left out.

use candle_core::{D, Tensor};
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};
use ultta_eval::random::Random;

use crate::Result;
use crate::method::{Batch, Classifier, Cost, Method, check};
use crate::ops::{cross_entropy, softmax, with};
use crate::train::{Kind, Optimizer, Parameters, Which};
use crate::views::{Strength, view};
use crate::vit::Weights;

/// What CoTTA is.
pub const CARD: Card = Card {
    name: "cotta",
    summary: "a student taught by its own running mean over augmented views, with stochastic restore; every weight",
    paper: "Wang et al., CVPR 2022",
    readout: Readout::BeforeObserve,
    grouping: Grouping::Joint,
    ..Card::PLAIN
};

/// Settings of CoTTA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CottaConfig {
    /// Pictures of a step.
    pub batch: usize,
    /// Whether every step starts afresh.
    pub episodic: bool,
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// α.
    pub teacher_decay: f64,
    /// N.
    pub views: usize,
    /// Anchor confidence below which the teacher looks at views; by default 0.92 up to ten classes, 0.72 up to a
    /// hundred, and 0.1 above.
    pub threshold: Option<f64>,
    /// Smallest share of a picture that a view shows.
    pub min_area: f64,
    /// Largest change of contrast and brightness of a view.
    pub colour: f64,
    /// Noise of a view.
    pub noise: f64,
    /// p.
    pub restore: f64,
    /// Which weights learn.
    pub parameters: Which,
    /// Seed of views and restores.
    pub seed: u64,
}

impl Default for CottaConfig {
    fn default() -> Self {
        Self {
            batch: 64,
            episodic: false,
            lr: 0.01,
            momentum: 0.9,
            teacher_decay: 0.999,
            views: 32,
            threshold: None,
            min_area: 0.8,
            colour: 0.2,
            noise: 0.02,
            restore: 0.001,
            parameters: Which::All,
            seed: 0,
        }
    }
}

impl CottaConfig {
    /// CoTTA for a model and a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Cotta> {
        check("cotta", "batch", self.batch as f64, 1.0, 1e6)?;
        check("cotta", "lr", self.lr, 0.0, 10.0)?;
        check("cotta", "momentum", self.momentum, 0.0, 0.9999)?;
        check("cotta", "teacher_decay", self.teacher_decay, 0.0, 1.0)?;
        let classes = classifier.head().n_classes();
        let usual = if classes <= 10 {
            0.92
        } else if classes <= 100 {
            0.72
        } else {
            0.1
        };
        let threshold = self.threshold.unwrap_or(usual);
        check("cotta", "threshold", threshold, 0.0, 1.0)?;
        check("cotta", "min_area", self.min_area, 1e-3, 1.0)?;
        check("cotta", "colour", self.colour, 0.0, 1.0)?;
        check("cotta", "noise", self.noise, 0.0, 10.0)?;
        check("cotta", "restore", self.restore, 0.0, 1.0)?;
        check("cotta", "views", self.views as f64, 1.0, 1e4)?;
        let model = classifier.model();
        Ok(Cotta {
            config: self.clone(),
            threshold,
            strength: Strength { min_area: self.min_area, colour: self.colour, noise: self.noise },
            parameters: Parameters::of_images(model, self.parameters, 0)?,
            teacher: model.weights().clone(),
            start: model.weights().clone(),
            optimizer: Optimizer::new(Kind::Sgd, self.momentum, 0.0),
            random: Random::new(self.seed),
        })
    }
}

/// CoTTA at work.
pub struct Cotta {
    config: CottaConfig,
    threshold: f64,
    strength: Strength,
    parameters: Parameters,
    teacher: Weights,
    start: Weights,
    optimizer: Optimizer,
    random: Random,
}

impl Cotta {
    /// The teacher's logits; over views if the anchor is unsure.
    fn teach(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let anchor = softmax(&classifier.zero_shot(&batch.patches)?)?;
        cost.forward(classifier, batch.rows());
        let confidence = anchor.max(D::Minus1)?.mean_all()?.to_scalar::<f32>()? as f64;
        if confidence >= self.threshold {
            cost.forward(classifier, batch.rows());
            return classifier.logits(&self.teacher, &batch.patches);
        }
        let model = classifier.model();
        let mut sum: Option<Tensor> = None;
        for _ in 0..self.config.views {
            let mut pixels = Vec::with_capacity(batch.pixels.len());
            for picture in batch.pixels.chunks_exact(model.input_len()) {
                pixels.extend(view(picture, model.preprocess().size, self.strength, &mut self.random));
            }
            let logits = classifier.logits(&self.teacher, &model.patches(&pixels)?)?;
            cost.forward(classifier, batch.rows());
            sum = Some(match sum {
                Some(sum) => (sum + logits)?,
                None => logits,
            });
        }
        let sum = sum.expect("at least one view");
        Ok((sum / self.config.views as f64)?)
    }

    /// The teacher follows, then some numbers of the student go back to the start.
    fn follow(&mut self) -> Result<()> {
        let (keep, p) = (self.config.teacher_decay, self.config.restore);
        let mut next = Vec::new();
        for (name, value) in self.parameters.values() {
            let old = crate::vit::get(&self.teacher, name)?;
            let mean = ((old * keep)? + (value.detach() * (1.0 - keep))?)?;
            self.teacher.insert(name.to_string(), mean);
            if p > 0.0 {
                let mut values = with(value, <[f32]>::to_vec)?;
                with(crate::vit::get(&self.start, name)?, |start| {
                    // Distances between restored numbers are geometric: one draw each, not one per number.
                    let mut at = gap(p, &mut self.random);
                    while at < values.len() {
                        values[at] = start[at];
                        at += 1 + gap(p, &mut self.random);
                    }
                })?;
                next.push(Tensor::from_vec(values, value.shape(), value.device())?);
            }
        }
        if p > 0.0 { self.parameters.set(&next) } else { Ok(()) }
    }
}

/// How many numbers are passed over before the next one is restored.
fn gap(p: f64, random: &mut Random) -> usize {
    if p >= 1.0 {
        return 0;
    }
    ((1.0 - random.uniform()).ln() / (1.0 - p).ln()) as usize
}

impl Method for Cotta {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let n = batch.rows();
        let answer = self.teach(classifier, batch, cost)?;
        let student = classifier.logits(self.parameters.weights(), &batch.patches)?;
        let loss = cross_entropy(&softmax(&answer)?, &student)?.mean_all()?;
        let grads = loss.backward()?;
        cost.note_loss(&loss)?;
        cost.forward(classifier, n);
        cost.backward(classifier, n, self.config.parameters == Which::All);
        if self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)? {
            self.follow()?;
        }
        Ok(answer)
    }

    fn reset(&mut self) -> Result<()> {
        self.teacher = self.start.clone();
        self.random = Random::new(self.config.seed);
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
