//! What is emitted: adapted and frozen probabilities, mixed (see the method's front page).

use super::{Answered, Incoming, UlTta};
use crate::adapter::Prediction;
use crate::export::TIE;
use crate::kernels::{LANES, exp, ln, sum_lanes, vectorised};
use crate::scores::Summary;

/// Usual heads have a bias (`background.rs`) below the first value, heads with poor prompts one above the second.
const BIASED: [f64; 2] = [0.85, 1.25];

/// Under a head with poor prompts the frozen share is this many times as large, because there the adapted answers are wrong
/// in whole runs.
const BIASED_SHARE: f64 = 3.0;

/// The largest frozen share.
const MOST_FROZEN: f64 = 0.5;

impl UlTta {
    /// The frozen share before ties are looked at: the setting as far as the halves disagree, and more under a head that
    /// favours some classes.
    pub(super) fn wanted_frozen_share(&self) -> f32 {
        let share = self.config.advanced.frozen_share * (1.0 - self.image.opinion.agreement());
        (share * (1.0 + (BIASED_SHARE - 1.0) * self.biased())).min(MOST_FROZEN) as f32
    }

    /// How biased the head is, from 0 (as usual heads are) to 1 (as heads with poor prompts are).
    pub(super) fn biased(&self) -> f64 {
        ((self.prior.background.bias - BIASED[0]) / (BIASED[1] - BIASED[0])).clamp(0.0, 1.0)
    }

    /// Adds an answer to a prediction, whose scores are in row `place`: with them go the logarithms of the emitted
    /// probabilities, and these themselves where they are asked for. `weights` is exp(frozen logit − best) of what was
    /// answered; `tempered` is exp(τ_cal (score − best)) where that is known, else empty.
    pub(super) fn emit(
        &self,
        answered: &Answered,
        weights: &[f32],
        tempered: &[f32],
        place: usize,
        prediction: &mut Prediction,
    ) {
        let &Answered { answer, summary, tau, matched, frozen_share, frozen_prob, .. } = answered;
        let row = prediction.answers.len();
        prediction.answers.push(answer);
        prediction.tau_cal.push(if prediction.calibrated.is_some() { 1.0 } else { tau });
        if prediction.calibrated.is_none() && prediction.probs.is_none() {
            return;
        }
        let mut computed = Vec::new();
        if tempered.is_empty() {
            sum_exp_kept(prediction.scores.row(place), tau, summary.best, &mut computed);
        }
        let tempered = if tempered.is_empty() { &computed } else { tempered };
        let floor = self.config.advanced.floor as f32;
        let adapted = (1.0 - floor) * (1.0 - frozen_share) * matched;
        let frozen = (1.0 - floor) * frozen_share * frozen_prob;
        let even = floor / tempered.len() as f32;
        let of = [adapted, frozen, even];
        if let Some(probs) = &mut prediction.probs {
            mix(of, tempered, weights, probs.row_mut(row), |prob| prob);
        }
        if let Some(calibrated) = &mut prediction.calibrated {
            mix(of, tempered, weights, calibrated.row_mut(place), ln);
        }
    }

    /// w of a sample: what is wanted, or less where more would make another class more probable than the answer, whose
    /// adapted probability is `prob`.
    pub(super) fn frozen_share(
        &self,
        row: Incoming<'_>,
        scores: &[f32],
        summary: &Summary,
        tau: f32,
        prob: f32,
    ) -> f32 {
        let share = self.wanted_frozen_share();
        if summary.label == row.frozen.label {
            return share;
        }
        let own = row.weights[summary.label];
        let rivals = row.weights.iter().zip(scores).filter(|(w, _)| **w > own);
        rivals.fold(share, |share, (&w, &s)| {
            let lead = prob - prob * exp(tau * (s - summary.best));
            let pull = (w - own) * row.frozen.prob;
            share.min(TIE * lead.max(0.0) / (lead.max(0.0) + pull))
        })
    }
}

/// `to` of each class's emitted probability: shares of the adapted and the frozen weight, and an even part.
#[inline(always)]
fn mix(of: [f32; 3], tempered: &[f32], weights: &[f32], out: &mut [f32], to: impl Fn(f32) -> f32) {
    vectorised(
        #[inline(always)]
        || {
            // Copies: what is read through a reference might be changed by the writes, and the loop would go one by one.
            let [adapted, frozen, even] = of;
            for ((out, &t), &w) in out.iter_mut().zip(tempered).zip(weights) {
                *out = to(adapted * t + frozen * w + even);
            }
        },
    );
}

/// Σ exp(τ (x − best)).
pub(super) fn sum_exp(row: &[f32], tau: f32, best: f32) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (chunks, tail) = row.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] += exp(tau * (chunk[i] - best));
                }
            }
            sum_lanes(lanes, tail.iter().map(|&x| exp(tau * (x - best))))
        },
    )
}

/// The same; exp(τ (x − best)) of each value is written to `kept`.
pub(super) fn sum_exp_kept(row: &[f32], tau: f32, best: f32, kept: &mut Vec<f32>) -> f32 {
    kept.resize(row.len(), 0.0);
    vectorised(
        #[inline(always)]
        || {
            let (tau, best) = (tau, best);
            let mut lanes = [0.0f32; LANES];
            let (chunks, tail) = row.as_chunks::<LANES>();
            let (outs, out_tail) = kept.as_chunks_mut::<LANES>();
            for (chunk, out) in chunks.iter().zip(outs) {
                for i in 0..LANES {
                    out[i] = exp(tau * (chunk[i] - best));
                    lanes[i] += out[i];
                }
            }
            let tail = tail.iter().zip(out_tail).map(|(&x, out)| {
                *out = exp(tau * (x - best));
                *out
            });
            sum_lanes(lanes, tail)
        },
    )
}
