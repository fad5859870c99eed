//! The default method as it answers now, as one linear layer: everything that is added to the frozen logits is linear
//! in z. Image scores count for candidates only; the layer has them for all classes.

use super::prior::PriorWork;
use super::{Evidence, UlTta};
use crate::Layer;

impl UlTta {
    /// The layer that answers as this method does, but for near-copies and for the other classes than the candidates.
    pub(super) fn linear_layer(&self) -> Layer {
        let mut layer = Layer::frozen(&self.head);
        let classes = self.head.n_classes();
        self.corrections.add_to_layer(&mut layer.frozen_weights, &mut layer.frozen_bias);
        let tau = self.sharpness.tau as f32;
        layer.weights = layer.frozen_weights.iter().map(|w| tau * w).collect();
        layer.bias = layer.frozen_bias.iter().map(|b| tau * b).collect();
        if let Some(evidence) = self.evidence.as_deref().filter(|evidence: &&Evidence| evidence.speaks()) {
            evidence.add_to(self.image.weight(), &mut layer.weights, &mut layer.bias);
        }
        // The mixture of the experts is the same whatever the sample.
        let (mut work, mut log_prior) = (PriorWork::default(), vec![0.0; classes]);
        self.prior.log_ratios(&vec![1.0; classes], &mut work, &mut log_prior);
        if self.seen < self.prior_warm_up() {
            self.prior.at_start(&mut work.mix, &mut log_prior);
        }
        layer.bias.iter_mut().zip(&log_prior).for_each(|(b, p)| *b += p);
        layer.prior = work.mix.iter().map(|m| m / classes as f32).collect();
        layer.temperature = self.tau_cal() as f32;
        layer.frozen_share = self.wanted_frozen_share();
        layer.floor = self.config.advanced.floor as f32;
        layer
    }
}
