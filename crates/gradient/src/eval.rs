//! The methods of this crate as an evaluation sees them.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use ultta::{Card, Head, Prediction, Result, Scores};
use ultta_eval::pictures::{Cost, PictureMethod, PictureSession};

use crate::method::MethodConfig;
use crate::session::Session;
use crate::vit::Model;

/// A method, its settings, the model it starts from, and pictures of the source if there are some.
pub struct Evaluated {
    /// The model.
    pub model: Arc<Model>,
    /// The method and its settings.
    pub config: MethodConfig,
    /// Preprocessed pictures of the kind the model was trained on; may be empty.
    pub source: Arc<Vec<f32>>,
}

impl PictureMethod for Evaluated {
    fn card(&self) -> &'static Card {
        self.config.card()
    }

    fn batch(&self) -> usize {
        self.config.batch()
    }

    fn settings(&self) -> String {
        let settings = toml::to_string(&self.config).unwrap_or_default();
        let (name, source) = (self.model.name(), self.source.len() / self.model.input_len());
        let digest = digest(&self.source);
        format!(
            "[method]\n[model]\nname = {name:?}\nsource_pictures = {source}\nsource_digest = \"{digest}\"\n{settings}"
        )
    }

    fn start(&self, head: &Arc<Head>) -> Result<Box<dyn PictureSession>> {
        let mut session = Session::new(self.model.clone(), head.clone(), &self.config)?;
        if !self.source.is_empty() {
            session.prepare(&self.source)?;
        }
        Ok(Box::new(Running(session)))
    }
}

/// The start of a SHA-256 over the values: other source pictures are another run.
fn digest(values: &[f32]) -> String {
    let mut hash = Sha256::new();
    values.iter().for_each(|value| hash.update(value.to_le_bytes()));
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Running(Session);

impl PictureSession for Running {
    fn step(&mut self, pixels: &[f32], zero_shot: &Scores) -> Result<Prediction> {
        Ok(self.0.step(pixels, Some(zero_shot.clone()))?.prediction)
    }

    fn cost(&self) -> Cost {
        let cost = self.0.cost();
        let each = |n: u64| n as f64 / cost.pictures.max(1) as f64;
        Cost {
            parameters: self.0.parameters(),
            forwards: each(cost.forwards),
            backwards: each(cost.backwards),
            texts: each(cost.text_forwards + cost.text_backwards),
            flops: Some(cost.flops / cost.pictures.max(1) as f64),
            updates: cost.updates,
            skipped: cost.skipped,
            resets: cost.resets,
        }
    }

    fn max_movement(&self) -> f64 {
        self.0.max_movement()
    }
}
