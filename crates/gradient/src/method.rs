//! [`Method`]: adaptation that needs the model inside. Read this first.
//!
//! A method on features (`Adapter` in the core) is shown features and answers with logits. A method here is
//! shown pictures, runs the tower itself, and changes the tower's weights (or, TPT, the prompts).

use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use ultta::{Card, Head};
use ultta_encode::flops;

use crate::train::Parameters;
use crate::vit::{Model, Weights};
use crate::{Error, Result, cotta, eata, ops, sar, tent, tpt, ttt};

/// A frozen model and the head that names its classes.
pub struct Classifier {
    model: Arc<Model>,
    head: Arc<Head>,
    /// Prototypes times the logit scale, [classes, dim].
    prototypes: Tensor,
}

impl Classifier {
    /// Puts a head on a model.
    pub fn new(model: Arc<Model>, head: Arc<Head>) -> Result<Self> {
        if head.dim() != model.config().dim {
            return Err(Error::shape("feature dimension of the head", model.config().dim, head.dim()));
        }
        let scaled: Vec<f32> = head.prototypes().iter().map(|v| v * head.logit_scale()).collect();
        let prototypes = Tensor::from_vec(scaled, (head.n_classes(), head.dim()), &Device::Cpu)?;
        Ok(Self { model, head, prototypes })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Logits of pictures under some weights, [pictures, classes].
    pub fn logits(&self, weights: &Weights, patches: &Tensor) -> Result<Tensor> {
        self.score(&self.model.images(weights, patches)?)
    }

    /// Logits of unit features.
    pub fn score(&self, features: &Tensor) -> Result<Tensor> {
        Ok(ops::linear(features, &self.prototypes, None)?)
    }

    /// Logits of the frozen model.
    pub fn zero_shot(&self, patches: &Tensor) -> Result<Tensor> {
        self.logits(self.model.weights(), patches)
    }
}

/// Preprocessed pictures in arrival order.
pub struct Batch<'a> {
    /// Three planes each, one picture after another.
    pub pixels: &'a [f32],
    /// The pictures as rows of patches, [pictures, patches, 3 · patch²].
    pub patches: Tensor,
}

impl<'a> Batch<'a> {
    /// Checks the size and cuts the patches.
    pub fn new(model: &Model, pixels: &'a [f32]) -> Result<Self> {
        if let Some(i) = pixels.iter().position(|v| !v.is_finite()) {
            return Err(ultta::Error::NotFinite {
                what: ultta::What::Other("pixels"),
                row: i / model.input_len(),
            }
            .into());
        }
        Ok(Self { patches: model.patches(pixels)?, pixels })
    }

    /// Number of pictures.
    pub fn rows(&self) -> usize {
        self.patches.dims()[0]
    }
}

/// What steps have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Pictures answered.
    pub pictures: u64,
    /// Pictures and views that went forward through the image tower for the method.
    pub forwards: u64,
    /// Pictures and views that went backward through the image tower.
    pub backwards: u64,
    /// Texts that went forward through the text tower.
    pub text_forwards: u64,
    /// Texts that went backward through the text tower.
    pub text_backwards: u64,
    /// Operations of all of these.
    pub flops: f64,
    /// Steps of the optimiser.
    pub updates: u64,
    /// Steps that were left out because a gradient was not finite.
    pub skipped: u64,
    /// Times the method went back to the start by itself.
    pub resets: u64,
    /// Loss of the last step that had one.
    pub loss: f64,
}

impl Cost {
    /// Notes a loss.
    pub fn note_loss(&mut self, loss: &Tensor) -> Result<()> {
        self.loss = loss.to_scalar::<f32>()?.into();
        Ok(())
    }

    /// Notes pictures that went forward.
    pub fn forward(&mut self, classifier: &Classifier, n: usize) {
        let (config, head) = (classifier.model().config(), classifier.head());
        self.forwards += n as u64;
        self.flops += n as f64 * (flops::image_forward(config) + flops::head(head.n_classes(), head.dim()));
    }

    /// Notes pictures that went backward, `all` if every weight is trained.
    pub fn backward(&mut self, classifier: &Classifier, n: usize, all: bool) {
        self.backwards += n as u64;
        self.flops += n as f64 * flops::image_backward(classifier.model().config(), all);
    }
}

/// A test-time adaptation method with the model inside.
pub trait Method: Send {
    /// Name, paper, read-out order.
    fn card(&self) -> &'static Card;

    /// Answers a batch with logits [pictures, classes] and learns from it, in the order of the card. On an error
    /// nothing has changed.
    fn step(&mut self, classifier: &Classifier, batch: &Batch<'_>, cost: &mut Cost) -> Result<Tensor>;

    /// Shows the method pictures of the kind the model was trained on, without labels, before the stream.
    fn prepare(&mut self, _classifier: &Classifier, _source: &[Batch<'_>]) -> Result<()> {
        Ok(())
    }

    /// Back to the start.
    fn reset(&mut self) -> Result<()>;

    /// What it may change.
    fn parameters(&self) -> &Parameters;
}

macro_rules! methods {
    ($($variant:ident($config:ty), $name:literal, $card:expr;)*) => {
        /// A method and its settings.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum MethodConfig {
            $(#[serde(rename = $name)] $variant($config),)*
        }

        impl MethodConfig {
            /// A method with its paper's settings, by name.
            pub fn by_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(MethodConfig::$variant(Default::default())),)*
                    _ => None,
                }
            }

            /// The method's card.
            pub fn card(&self) -> &'static Card {
                match self {
                    $(MethodConfig::$variant(_) => &$card,)*
                }
            }

            /// The method for a model and a head.
            pub fn build(&self, classifier: &Classifier) -> Result<Box<dyn Method>> {
                match self {
                    $(MethodConfig::$variant(config) => Ok(Box::new(config.build(classifier)?)),)*
                }
            }

            /// Pictures of a step in the paper.
            pub fn batch(&self) -> usize {
                match self {
                    $(MethodConfig::$variant(config) => config.batch,)*
                }
            }

            /// Whether every step starts afresh.
            pub fn episodic(&self) -> bool {
                match self {
                    $(MethodConfig::$variant(config) => config.episodic,)*
                }
            }
        }

        /// The cards of all methods that need pictures.
        pub fn cards() -> Vec<&'static Card> {
            vec![$(&$card,)*]
        }
    };
}

methods! {
    Tent(tent::TentConfig), "tent", tent::CARD;
    Eata(eata::EataConfig), "eata", eata::CARD;
    Sar(sar::SarConfig), "sar", sar::CARD;
    Cotta(cotta::CottaConfig), "cotta", cotta::CARD;
    Ttt(ttt::TttConfig), "ttt", ttt::CARD;
    TttPlusPlus(ttt::TttPlusPlusConfig), "ttt++", ttt::CARD_PLUS_PLUS;
    Tpt(tpt::TptConfig), "tpt", tpt::CARD;
}

impl MethodConfig {
    /// A method by name, with the settings that a TOML file has for it (`[method.tent]`, `[method."ttt++"]`).
    pub fn resolve(name: &str, file: Option<&str>) -> Result<Option<Self>> {
        let Some(default) = Self::by_name(name) else { return Ok(None) };
        let bad = |e: &dyn std::fmt::Display| Error::config(format!("method.{name}"), e.to_string());
        let table: Table = file.unwrap_or_default().parse().map_err(|e: toml::de::Error| bad(&e))?;
        let Some(Value::Table(given)) = table.get("method").and_then(|m| m.get(name)) else {
            return Ok(Some(default));
        };
        let mut tagged = Table::new();
        tagged.insert(name.to_string(), Value::Table(given.clone()));
        let config: Self = Value::Table(tagged).try_into().map_err(|e| bad(&e))?;
        Ok(Some(config))
    }
}

/// Refuses a setting that is out of range.
pub(crate) fn check(method: &str, key: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(Error::config(
            format!("method.{method}.{key}"),
            format!("expected a number from {low} to {high}, got {value}"),
        ))
    }
}

/// Mean of some elements of a vector: Σ m·v / Σ m.
pub(crate) fn masked_mean(values: &Tensor, mask: &[f32]) -> Result<Tensor> {
    let n: f32 = mask.iter().sum();
    let mask = Tensor::from_slice(mask, mask.len(), &Device::Cpu)?;
    Ok(((values * mask)?.sum_all()? / n.max(1.0) as f64)?)
}
