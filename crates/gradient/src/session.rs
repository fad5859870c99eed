//! [`Session`]: the single door for methods that need pictures, as [`ultta::Session`] is for methods on features.
//!
//! ```text
//! pictures ─► frozen tower ─► zero-shot scores ──────────────┐
//!          └► method (forward, backward, step, answer) ──────┴─► step
//! ```

use std::sync::Arc;

use candle_core::Tensor;
use ultta::internal::summary;
use ultta::{Head, Prediction, Row, Scores, ZeroShotAnswer};

use crate::method::{Batch, Classifier, Cost, Method, MethodConfig};
use crate::vit::Model;
use crate::{Error, Result};

/// A model, a head, and the method that adapts the model to one stream.
pub struct Session {
    classifier: Classifier,
    config: MethodConfig,
    method: Box<dyn Method>,
    cost: Cost,
    next_id: u64,
    max_movement: f64,
}

/// What came of one block of pictures.
pub struct Step {
    /// One answer per picture, the adapted one beside the frozen one.
    pub rows: Vec<Row>,
    /// The frozen model's logits.
    pub zero_shot: Scores,
    /// The method's logits and answers.
    pub prediction: Prediction,
}

impl Session {
    /// A session that has seen nothing.
    pub fn new(model: Arc<Model>, head: Arc<Head>, config: &MethodConfig) -> Result<Self> {
        let classifier = Classifier::new(model, head)?;
        Ok(Self {
            method: config.build(&classifier)?,
            classifier,
            config: config.clone(),
            cost: Cost::default(),
            next_id: 0,
            max_movement: 0.0,
        })
    }

    /// Shows the method preprocessed pictures of the kind the model was trained on, without labels.
    pub fn prepare(&mut self, source: &[f32]) -> Result<()> {
        let len = self.classifier.model().input_len();
        if !source.len().is_multiple_of(len) {
            return Err(Error::shape("pixels of a picture", len, source.len() % len));
        }
        let batches = source
            .chunks(len * 64)
            .map(|pixels| Batch::new(self.classifier.model(), pixels))
            .collect::<Result<Vec<_>>>()?;
        self.method.prepare(&self.classifier, &batches)
    }

    /// Answers preprocessed pictures and learns from them, in the order of the method's card.
    ///
    /// The frozen model's logits are taken as given, or computed; that forward is not among the method's costs.
    pub fn step(&mut self, pixels: &[f32], zero_shot: Option<Scores>) -> Result<Step> {
        let batch = Batch::new(self.classifier.model(), pixels)?;
        let classes = self.classifier.head().n_classes();
        let zero_shot = match zero_shot {
            Some(scores) if scores.rows() == batch.rows() && scores.classes() == classes => scores,
            Some(scores) => return Err(Error::shape("zero-shot rows", batch.rows(), scores.rows())),
            None => scores(&self.classifier.zero_shot(&batch.patches)?)?,
        };
        let mut cost = self.cost;
        if self.config.episodic() {
            self.method.reset()?;
        }
        let answer = self.method.step(&self.classifier, &batch, &mut cost)?;
        let prediction = Prediction::from_scores(scores(&answer)?);
        cost.pictures += batch.rows() as u64;
        self.cost = cost;
        let rows = prediction
            .answers
            .iter()
            .enumerate()
            .map(|(i, answer)| {
                let frozen = summary(zero_shot.row(i), 1.0);
                Row {
                    id: self.next_id + i as u64,
                    label: answer.label,
                    prob: answer.prob,
                    prob_pred: answer.prob_pred,
                    zero_shot: ZeroShotAnswer { label: frozen.label, prob: frozen.prob },
                    admitted: answer.admitted,
                    unknown: false,
                    scene: self.next_id + i as u64,
                    garbage: false,
                    begins_scene: true,
                }
            })
            .collect();
        self.next_id += batch.rows() as u64;
        self.max_movement = self.max_movement.max(self.method.parameters().movement()?);
        Ok(Step { rows, zero_shot, prediction })
    }

    /// Back to the start.
    pub fn reset(&mut self) -> Result<()> {
        self.method.reset()
    }

    /// The method.
    pub fn method(&self) -> &dyn Method {
        &*self.method
    }

    /// The model under its head.
    pub fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// What all steps have cost.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Numbers the method may change.
    pub fn parameters(&self) -> usize {
        self.method.parameters().count()
    }

    /// How far the parameters were from the start at most, relative to their length.
    pub fn max_movement(&self) -> f64 {
        self.max_movement
    }
}

fn scores(logits: &Tensor) -> Result<Scores> {
    let classes = logits.dim(1)?;
    Ok(Scores::from_rows(crate::ops::with(logits, <[f32]>::to_vec)?, classes))
}
