//! TPT: Shu, Nie, Huang, Yu, Goldstein, Anandkumar, Xiao. Test-Time Prompt Tuning for Zero-Shot Generalization in
//! Vision-Language Models. NeurIPS 2022.
//!
//! The prompt of class c is `[V] name_c .`, V the embeddings of a few context words. Per picture, from the start:
//!
//! ```text
//! views      the picture and 63 random cuts of it; their features stay fixed
//! selected   the tenth of lowest entropy under the present prompts
//! loss       entropy of the mean probability of those selected
//! step       V ← one step of AdamW, through the text tower
//! answer     the plain picture under the new prompts; V goes back
//! ```
//!
//! As published: V begins as "a photo of a", learning rate 0.005, weight decay 0.01. Departures: cuts (area at least
//! 0.08, mirrored or not) are made of the preprocessed square; no AugMix, which the paper's code leaves without
//! operations, too. The zero-shot answer beside it is that of the head in use, whatever its templates.

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ultta::{Card, Grouping, Readout};
use ultta_encode::flops;
use ultta_eval::random::Random;

use crate::method::{Batch, Classifier, Cost, Method, check};
use crate::ops::{entropy, linear, softmax};
use crate::train::{Kind, Optimizer, Parameters};
use crate::views::{Strength, view};
use crate::{Error, Result};

/// What TPT is.
pub const CARD: Card = Card {
    name: "tpt",
    summary: "tunes the prompt of each picture over its confident views, through the text tower, and forgets it",
    paper: "Shu et al., NeurIPS 2022",
    readout: Readout::AfterObserve,
    grouping: Grouping::Independent,
    ..Card::PLAIN
};

const CONTEXT: &str = "text.context";

/// Settings of TPT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TptConfig {
    /// Pictures of a step; they are worked on one by one.
    pub batch: usize,
    /// TPT always starts afresh; setting this changes nothing.
    pub episodic: bool,
    /// Learning rate.
    pub lr: f64,
    /// Views of a picture, itself among them.
    pub views: usize,
    /// Share of views selected.
    pub selected: f64,
    /// Steps per picture.
    pub steps: usize,
    /// The words V begins as.
    pub context: String,
    /// Seed of the views.
    pub seed: u64,
}

impl Default for TptConfig {
    fn default() -> Self {
        Self {
            batch: 1,
            episodic: true,
            lr: 5e-3,
            views: 64,
            selected: 0.1,
            steps: 1,
            context: "a photo of a".into(),
            seed: 0,
        }
    }
}

impl TptConfig {
    /// TPT for a model and the classes of a head.
    pub fn build(&self, classifier: &Classifier) -> Result<Tpt> {
        check("tpt", "batch", self.batch as f64, 1.0, 1e6)?;
        check("tpt", "lr", self.lr, 0.0, 10.0)?;
        check("tpt", "views", self.views as f64, 1.0, 1e4)?;
        check("tpt", "selected", self.selected, 1e-6, 1.0)?;
        check("tpt", "steps", self.steps as f64, 1.0, 1e3)?;
        let model = classifier.model();
        let prompt = |name: &String| format!("{} {name}.", self.context);
        let prompts: Vec<String> = classifier.head().classes().iter().map(prompt).collect();
        let (ids, ends) = model.tokens(&prompts)?;
        let (bare, end) = model.tokens(std::slice::from_ref(&self.context))?;
        let words = end[0] - 1;
        if words == 0 || ids.iter().any(|ids| ids.len() <= words || ids[..=words] != bare[0][..=words]) {
            let reason =
                format!("expected words that keep their tokens before a class name, got {:?}", self.context);
            return Err(Error::config("method.tpt.context", reason));
        }
        let embedded = model.embed(model.weights(), &ids)?;
        let start = embedded.narrow(1, 0, 1)?.contiguous()?;
        let names = embedded.narrow(1, 1 + words, embedded.dim(1)? - 1 - words)?.contiguous()?;
        let context = embedded.narrow(0, 0, 1)?.narrow(1, 1, words)?.contiguous()?;
        let mut parameters = Parameters::new(model.weights(), &[])?;
        parameters.add(CONTEXT, context)?;
        Ok(Tpt {
            config: self.clone(),
            parameters,
            start,
            names,
            ends,
            optimizer: Optimizer::new(Kind::Adam, 0.9, 0.01),
        })
    }
}

/// TPT at work.
pub struct Tpt {
    config: TptConfig,
    parameters: Parameters,
    /// Embeddings before and behind the context, [classes, …, width].
    start: Tensor,
    names: Tensor,
    ends: Vec<usize>,
    optimizer: Optimizer,
}

const STRENGTH: Strength = Strength { min_area: 0.08, colour: 0.0, noise: 0.0 };

impl Tpt {
    /// Scaled prototypes under the present context, [classes, dim].
    fn prototypes(&self, classifier: &Classifier, cost: &mut Cost) -> Result<Tensor> {
        let model = classifier.model();
        let classes = self.ends.len();
        let context = &self.parameters.weights()[CONTEXT];
        let (_, words, width) = context.dims3()?;
        let context = context.broadcast_as((classes, words, width))?.contiguous()?;
        let embedded = Tensor::cat(&[&self.start, &context, &self.names], 1)?;
        cost.text_forwards += classes as u64;
        cost.flops += classes as f64 * flops::text_forward(model.config(), embedded.dim(1)?);
        let features = model.texts(self.parameters.weights(), &embedded, &self.ends)?;
        Ok((features * classifier.head().logit_scale() as f64)?)
    }

    fn tune(&mut self, classifier: &Classifier, picture: &[f32], cost: &mut Cost) -> Result<Tensor> {
        let model = classifier.model();
        // The picture itself seeds its views: they do not depend on what came before.
        let seed = picture.iter().fold(self.config.seed, |hash, v| {
            (hash ^ u64::from(v.to_bits())).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
        });
        let mut random = Random::new(seed);
        let mut pixels = picture.to_vec();
        for _ in 1..self.config.views {
            pixels.extend(view(picture, model.preprocess().size, STRENGTH, &mut random));
        }
        let features = model.images(model.weights(), &model.patches(&pixels)?)?;
        cost.forward(classifier, self.config.views);
        let keep = ((self.config.views as f64 * self.config.selected) as usize).max(1);
        let mut chosen: Option<Tensor> = None;
        for _ in 0..self.config.steps {
            let prototypes = self.prototypes(classifier, cost)?;
            // The first step selects, later ones keep the selection.
            let views = match &chosen {
                Some(views) => views.clone(),
                None => {
                    let logits = linear(&features, &prototypes.detach(), None)?;
                    let entropies = entropy(&logits)?.to_vec1::<f32>()?;
                    let mut order: Vec<u32> = (0..entropies.len() as u32).collect();
                    order.sort_by(|a, b| entropies[*a as usize].total_cmp(&entropies[*b as usize]));
                    order.truncate(keep);
                    let views = features.index_select(&Tensor::new(order, &Device::Cpu)?, 0)?;
                    chosen.insert(views).clone()
                }
            };
            let mean = softmax(&linear(&views, &prototypes, None)?)?.mean_keepdim(0)?;
            let log = (mean.clone() + 1e-12)?.log()?;
            let loss = (mean * log)?.sum_all()?.neg()?;
            let grads = loss.backward()?;
            cost.note_loss(&loss)?;
            let classes = self.ends.len();
            cost.text_backwards += classes as u64;
            let tokens = 1 + self.names.dim(1)? + self.parameters.weights()[CONTEXT].dim(1)?;
            cost.flops += classes as f64 * flops::text_backward(model.config(), tokens);
            self.optimizer.learn(&self.parameters, &grads, self.config.lr, cost)?;
        }
        let prototypes = self.prototypes(classifier, cost)?;
        Ok(linear(&features.narrow(0, 0, 1)?, &prototypes, None)?.detach())
    }
}

impl Method for Tpt {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor> {
        let mut answers = Vec::with_capacity(batch.rows());
        for picture in batch.pixels.chunks_exact(classifier.model().input_len()) {
            let answer = self.tune(classifier, picture, cost);
            self.optimizer.reset();
            self.parameters.reset()?;
            answers.push(answer?);
        }
        Ok(Tensor::cat(&answers, 0)?)
    }

    fn reset(&mut self) -> Result<()> {
        self.optimizer.reset();
        self.parameters.reset()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
