//! What a method may change: [`Parameters`], and the two ways to change them, SGD and Adam.

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::method::Cost;
use crate::vit::{Model, Weights};
use crate::{Error, Result};

/// The variables of a method, by name, among the weights of a model.
pub struct Parameters {
    vars: Vec<(String, Var)>,
    start: Vec<Tensor>,
    weights: Weights,
}

/// Which weights of the image tower learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// Scales and shifts of the LayerNorms.
    Norms,
    /// Every weight.
    All,
}

impl Parameters {
    /// The LayerNorms or all weights of the image tower, without those of the `skip` topmost blocks and of the norm
    /// behind them.
    pub fn of_images(model: &Model, which: Which, skip: usize) -> Result<Self> {
        let layers = model.config().vision.blocks.layers;
        let skipped = |name: &str| {
            skip > 0
                && (name.starts_with("vision.norm_post")
                    || (layers.saturating_sub(skip)..layers)
                        .any(|layer| name.starts_with(&format!("vision.blocks.{layer}."))))
        };
        let names = model.weights().keys().filter(|name| {
            name.starts_with("vision.") && (which == Which::All || name.contains("norm")) && !skipped(name)
        });
        let chosen: Vec<String> = names.cloned().collect();
        Self::new(model.weights(), &chosen)
    }

    /// These weights.
    pub fn new(weights: &Weights, names: &[String]) -> Result<Self> {
        let mut weights = weights.clone();
        let (mut vars, mut start) = (Vec::new(), Vec::new());
        for name in names {
            let old = crate::vit::get(&weights, name)?.clone();
            let var = Var::from_tensor(&old)?;
            weights.insert(name.clone(), var.as_tensor().clone());
            vars.push((name.clone(), var));
            start.push(old);
        }
        Ok(Self { vars, start, weights })
    }

    /// One more variable beside the weights.
    pub fn add(&mut self, name: &str, start: Tensor) -> Result<()> {
        let var = Var::from_tensor(&start)?;
        self.weights.insert(name.to_string(), var.as_tensor().clone());
        self.vars.push((name.to_string(), var));
        self.start.push(start);
        Ok(())
    }

    /// All weights of the model, the variables among them.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Name and present value of each variable.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var.as_tensor()))
    }

    /// Values the variables began with.
    pub fn start(&self) -> &[Tensor] {
        &self.start
    }

    /// Numbers that may change.
    pub fn count(&self) -> usize {
        self.start.iter().map(Tensor::elem_count).sum()
    }

    /// The variables' gradients, zero where a variable has no part in the loss. `None` if one is not finite.
    pub fn gradients(&self, grads: &GradStore) -> Result<Option<Vec<Tensor>>> {
        let mut all = Vec::with_capacity(self.vars.len());
        for (_, var) in &self.vars {
            let grad = match grads.get(var.as_tensor()) {
                Some(grad) => grad.clone(),
                None => var.as_tensor().zeros_like()?,
            };
            if !crate::ops::with(&grad, |g| g.iter().all(|v| v.is_finite()))? {
                return Ok(None);
            }
            all.push(grad);
        }
        Ok(Some(all))
    }

    /// Adds `factor · step` to the variables.
    pub fn add_scaled(&self, step: &[Tensor], factor: f64) -> Result<()> {
        for ((_, var), step) in self.vars.iter().zip(step) {
            var.set(&(var.as_tensor() + (step * factor)?)?)?;
        }
        Ok(())
    }

    /// Copies of the present values.
    pub fn copies(&self) -> Result<Vec<Tensor>> {
        self.vars.iter().map(|(_, var)| Ok(var.as_tensor().copy()?)).collect()
    }

    /// Sets all values.
    pub fn set(&self, values: &[Tensor]) -> Result<()> {
        for ((_, var), value) in self.vars.iter().zip(values) {
            var.set(value)?;
        }
        Ok(())
    }

    /// Back to the values it began with.
    pub fn reset(&self) -> Result<()> {
        self.set(&self.start)
    }

    /// How far the values are from those they began with, relative to their length.
    pub fn movement(&self) -> Result<f64> {
        let (mut moved, mut length) = (0.0, 0.0);
        for ((_, var), start) in self.vars.iter().zip(&self.start) {
            moved += square_sum(&(var.as_tensor().detach() - start)?)?;
            length += square_sum(start)?;
        }
        Ok((moved / length.max(1e-30)).sqrt())
    }
}

/// Σ v².
pub(crate) fn square_sum(tensor: &Tensor) -> Result<f64> {
    Ok(crate::ops::with(tensor, |v| v.iter().map(|&v| v as f64 * v as f64).sum())?)
}

/// The way from gradients to steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam.
    Adam,
}

/// An optimiser and what it remembers.
pub struct Optimizer {
    kind: Kind,
    momentum: f64,
    /// Decoupled weight decay, as AdamW has it.
    decay: f64,
    steps: i32,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

/// Adam's second decay and what it adds to square roots.
const ADAM: (f64, f64) = (0.999, 1e-8);

impl Optimizer {
    /// An optimiser that remembers nothing yet. Adam's first decay is the momentum, too.
    pub fn new(kind: Kind, momentum: f64, decay: f64) -> Self {
        Self { kind, momentum, decay, steps: 0, first: Vec::new(), second: Vec::new() }
    }

    /// Forgets.
    pub fn reset(&mut self) {
        (self.steps, self.first, self.second) = (0, Vec::new(), Vec::new());
    }

    /// One step down what a backward pass gave, counted; `false` if it was skipped, a gradient being not finite.
    pub fn learn(
        &mut self,
        parameters: &Parameters,
        grads: &GradStore,
        lr: f64,
        cost: &mut Cost,
    ) -> Result<bool> {
        let Some(gradients) = parameters.gradients(grads)? else {
            cost.skipped += 1;
            return Ok(false);
        };
        self.step(parameters, &gradients, lr)?;
        cost.updates += 1;
        Ok(true)
    }

    /// One step down the gradients.
    pub fn step(&mut self, parameters: &Parameters, gradients: &[Tensor], lr: f64) -> Result<()> {
        if gradients.len() != parameters.vars.len() {
            return Err(Error::shape("gradients", parameters.vars.len(), gradients.len()));
        }
        self.steps += 1;
        if self.decay > 0.0 {
            for (_, var) in &parameters.vars {
                var.set(&(var.as_tensor() * (1.0 - lr * self.decay))?)?;
            }
        }
        let fresh = self.first.is_empty();
        match self.kind {
            Kind::Sgd => {
                self.first = if fresh {
                    gradients.iter().map(|g| Ok(g.detach())).collect::<Result<_>>()?
                } else {
                    let next = |(v, g): (&Tensor, &Tensor)| Ok(((v * self.momentum)? + g)?);
                    self.first.iter().zip(gradients).map(next).collect::<Result<_>>()?
                };
                parameters.add_scaled(&self.first, -lr)
            }
            Kind::Adam => {
                if fresh {
                    let zeros = gradients.iter().map(|g| Ok(g.zeros_like()?)).collect::<Result<Vec<_>>>()?;
                    (self.first, self.second) = (zeros.clone(), zeros);
                }
                let (beta, eps) = ADAM;
                let (m, v) = (1.0 - self.momentum.powi(self.steps), 1.0 - beta.powi(self.steps));
                for (i, g) in gradients.iter().enumerate() {
                    self.first[i] = ((&self.first[i] * self.momentum)? + (g * (1.0 - self.momentum))?)?;
                    self.second[i] = ((&self.second[i] * beta)? + (g.sqr()? * (1.0 - beta))?)?;
                    let root = ((&self.second[i] / v)?.sqrt()? + eps)?;
                    let step = ((&self.first[i] / m)? / root)?;
                    let var = &parameters.vars[i].1;
                    var.set(&(var.as_tensor() - (step * lr)?)?)?;
                }
                Ok(())
            }
        }
    }
}
