//! Why a row is answered as it is: the parts of its logits, and the earlier scenes that look like it.

use super::{Incoming, UlTta, Work};
use crate::adapter::{Batch, KeptScene, Prediction};
use crate::explain::{Lever, Part, Similar};

impl UlTta {
    /// The answer to a batch of one row, and the parts that add up to its logits.
    pub(super) fn explain_row(&self, batch: &Batch<'_>) -> (Prediction, Vec<Part>) {
        let classes = self.head.n_classes();
        let mut prediction = self.prediction(batch, 1, true);
        let mut work = Work::default();
        let row = Incoming::of(batch, 0);
        let (mut answered, admitted) = self.peek(row, &mut work, prediction.scores.row_mut(0));
        answered.answer.admitted = admitted && batch.may_learn(0);
        self.emit(&answered, work.answered_weights(&answered, batch, 0), &[], 0, &mut prediction);

        let mut image = vec![0.0; classes];
        for (&c, v) in work.candidates.iter().zip(&work.image) {
            image[c as usize] = answered.image_weight * v;
        }
        // The frozen logits, and what is added to them, enter the answer τ_pred times.
        let sharp = |nats: Vec<f32>| nats.into_iter().map(|v| answered.tau_pred * v).collect::<Vec<f32>>();
        let text = Part { lever: Lever::Text, nats: sharp(row.text.to_vec()) };
        let mut parts = vec![text];
        let mut labels = vec![0.0; classes];
        if answered.answer.copy {
            // What the frozen model says of the scene, less what it says of this row.
            let mut scene = self.scene.clone();
            scene.join(row.z, row.text);
            self.corrections.add_to(&scene.mean, &mut labels);
            let mut nats = Vec::new();
            scene.say(&mut nats);
            nats.iter_mut().zip(row.text).for_each(|(said, own)| *said -= own);
            parts.push(Part { lever: Lever::Scene, nats: sharp(nats) });
        } else {
            self.corrections.add_to(row.z, &mut labels);
        }
        if work.is_corrected {
            parts.push(Part { lever: Lever::Labels, nats: sharp(labels) });
        }
        parts.push(Part { lever: Lever::Image, nats: image });
        parts.push(Part { lever: Lever::Prior, nats: work.log_prior });
        (prediction, parts)
    }

    /// The earlier scenes that look most like a row.
    pub(super) fn similar_scenes(&self, z: &[f32], most: usize) -> Vec<Similar> {
        let nearest = self.kept.nearest(z, most).into_iter();
        nearest
            .map(|(scene, cosine)| Similar {
                id: scene.id,
                cosine,
                label: scene.label as usize,
                corrected: self.corrections.label_of(scene.id),
            })
            .collect()
    }

    /// The scenes that are kept, oldest first.
    pub(super) fn kept_scenes(&self) -> Vec<KeptScene> {
        let given: std::collections::HashMap<u64, usize> = self.corrections.given().collect();
        let kept = self.kept.iter().map(|scene| KeptScene {
            id: scene.id,
            label: scene.label as usize,
            prob: scene.prob,
            corrected: given.get(&scene.id).copied(),
            features: scene.features(),
        });
        kept.collect()
    }
}
