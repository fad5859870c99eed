//! How an admitted sample is shared among the classes that it teaches: its *responsibilities*.

use super::{Answered, Incoming, Responsibilities, UlTta, Work};
use crate::adapter::Batch;
use crate::kernels::{exp, indices_above};
use crate::methods::recent::Lump;
use crate::methods::views::mean_posterior;
use crate::scores::{softmax, weigh};

impl UlTta {
    /// Shares an admitted sample among the classes it belongs to, and lets it teach them.
    pub(super) fn accumulate(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        incoming: Incoming<'_>,
        answered: &Answered,
        work: &mut Work,
    ) {
        if self.evidence.is_none() {
            return;
        }
        let least = self.config.advanced.min_responsibility as f32;
        if let Some(mean) = self.view_responsibilities(batch, row) {
            let shares = mean.iter().enumerate().map(|(c, &r)| (c as u32, r));
            work.shares.extend(shares.filter(|s| s.1 > least));
        } else {
            match self.config.advanced.responsibilities {
                Responsibilities::Text => text_shares(incoming, least, &mut work.shares),
                Responsibilities::Fused => fused_shares(answered.image_weight, &answered.lump, least, work),
            }
        }
        if let Some(evidence) = &mut self.evidence {
            for &(c, share) in &work.shares {
                evidence.teach(c as usize, share as f64, batch.features.row(row));
            }
        }
    }

    /// With extra views of a sample, its responsibilities are the mean of the views' own.
    fn view_responsibilities(&self, batch: &Batch<'_>, row: usize) -> Option<Vec<f32>> {
        let classes = self.head.n_classes();
        let mut work = Work::default();
        mean_posterior(batch, row, |z, text, probs| {
            if self.config.advanced.responsibilities == Responsibilities::Text {
                softmax(text, 1.0, probs);
                return;
            }
            let (mut scores, mut weights) = (vec![0.0; classes], vec![0.0; classes]);
            let frozen = weigh(text, &mut weights);
            self.answer(Incoming { z, text, frozen: &frozen, weights: &weights }, &mut work, &mut scores);
            scores.iter_mut().zip(&work.log_prior).for_each(|(s, p)| *s -= p);
            softmax(&scores, 1.0, probs);
        })
    }
}

/// Shares of a sample by the frozen posterior.
fn text_shares(row: Incoming<'_>, least: f32, shares: &mut Vec<(u32, f32)>) {
    let sum = exp(row.frozen.log_sum - row.frozen.best);
    let mut classes = Vec::new();
    indices_above(row.weights, least * sum, &mut classes);
    shares.extend(classes.into_iter().map(|c| (c, row.weights[c as usize] / sum)));
}

/// Shares of a sample by frozen logits and image evidence, without the prior, among its candidates.
fn fused_shares(image_weight: f32, lump: &Lump, least: f32, work: &mut Work) {
    // Relative to the best fused logit, which may lie beyond the range of exp.
    let fused = |i: usize| work.candidate_text[i] + image_weight * work.image[i];
    let top = (0..work.candidates.len()).map(fused).fold(0.0, f32::max);
    let rest = if lump.classes > 0.0 { exp(lump.text - top) } else { 0.0 };
    let shares = &mut work.shares;
    shares.extend(work.candidates.iter().enumerate().map(|(i, &c)| (c, exp(fused(i) - top))));
    let sum = shares.iter().fold(rest, |sum, share| sum + share.1);
    shares.retain_mut(|share| {
        share.1 /= sum;
        share.1 >= least
    });
}
