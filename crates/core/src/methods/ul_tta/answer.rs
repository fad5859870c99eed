//! The answer to a sample: frozen logits, prior and image evidence added up, and the probability that is emitted for it.
//! Nothing changes here but buffers.

use super::emission::{sum_exp, sum_exp_kept};
use super::lump::lump_of;
use super::scene::Scene;
use super::{Answered, Incoming, UlTta, Work};
use crate::adapter::Answer;
use crate::kernels::{exp, vectorised};
use crate::methods::recent::{Lump, choose_candidates};
use crate::scores::{Summary, summary_weighed, weigh};

impl UlTta {
    /// Answers a sample. Writes ℓ to `scores`.
    pub(super) fn answer(&self, row: Incoming<'_>, work: &mut Work, scores: &mut [f32]) -> Answered {
        work.log_prior.resize(row.text.len(), 0.0);
        self.sharpened(row, work, |row, sharp, work| {
            self.prior.log_ratios(sharp.weights, &mut work.prior, &mut work.log_prior);
            if self.seen < self.prior_warm_up() {
                self.prior.at_start(&mut work.prior.mix, &mut work.log_prior);
            }
            self.answer_under(row, sharp, work, scores)
        })
    }

    /// Hands a row to `answer` beside the same row with its frozen logits times τ_pred.
    fn sharpened(
        &self,
        row: Incoming<'_>,
        work: &mut Work,
        answer: impl FnOnce(Incoming<'_>, Incoming<'_>, &mut Work) -> Answered,
    ) -> Answered {
        if self.sharpness.tau == 1.0 {
            return answer(row, row, work);
        }
        let (mut text, mut weights) =
            (std::mem::take(&mut work.sharp_text), std::mem::take(&mut work.sharp_weights));
        let tau = self.sharpness.tau as f32;
        text.clear();
        text.extend(row.text.iter().map(|t| tau * t));
        weights.resize(text.len(), 0.0);
        let frozen = weigh(&text, &mut weights);
        let sharp = Incoming { z: row.z, text: &text, frozen: &frozen, weights: &weights };
        let mut answered = answer(row, sharp, work);
        answered.tau_pred = tau;
        (work.sharp_text, work.sharp_weights) = (text, weights);
        answered
    }

    /// Answers a near-copy from the mean of its scene, under the prior of the scene's first row.
    pub(super) fn answer_copy(&self, scene: &Scene, work: &mut Work, scores: &mut [f32]) -> Answered {
        work.log_prior.clone_from(&scene.log_prior);
        work.prior.mix.clone_from(&scene.mix);
        let (mut logits, mut weights) =
            (std::mem::take(&mut work.scene_logits), std::mem::take(&mut work.scene_weights));
        scene.say(&mut logits);
        weights.resize(scores.len(), 0.0);
        let frozen = weigh(&logits, &mut weights);
        let row = Incoming { z: &scene.mean, text: &logits, frozen: &frozen, weights: &weights };
        let mut buffer = std::mem::take(&mut work.corrected);
        let row = row.corrected(&self.corrections, &mut buffer, work);
        let mut answered =
            self.sharpened(row, work, |row, sharp, work| self.answer_under(row, sharp, work, scores));
        answered.answer.copy = true;
        answered.answer.garbage = scene.garbage;
        (work.scene_logits, work.scene_weights, work.corrected) = (logits, weights, buffer);
        answered
    }

    /// Answers a sample under the prior in `work`. `sharp` is the row with its frozen logits times τ_pred.
    fn answer_under(
        &self,
        row: Incoming<'_>,
        sharp: Incoming<'_>,
        work: &mut Work,
        scores: &mut [f32],
    ) -> Answered {
        let (frozen, advanced) = (sharp.frozen, &self.config.advanced);
        choose_candidates(
            sharp.text,
            frozen.best,
            advanced.candidates,
            advanced.candidate_range,
            &mut work.candidates,
        );
        let has_image = self.image_scores(sharp.z, work);
        let image_weight = if has_image { self.image.weight() } else { 0.0 };
        add_up(sharp, image_weight, work, scores);
        let summary =
            summary_weighed(scores, &work.weights, frozen.best, &work.candidates, &mut work.posterior);
        work.posterior.iter_mut().for_each(|p| *p *= summary.prob);
        let answered = self.emitted(row, frozen.label, scores, summary, work);
        Answered { image_weight, has_image, lump: lump_of(sharp, &summary, work), ..answered }
    }

    /// The probabilities that go with an answer: what is emitted of it, and of the class that the frozen model would
    /// answer. `row` is the row as it came.
    fn emitted(
        &self,
        row: Incoming<'_>,
        frozen_label: usize,
        scores: &[f32],
        summary: Summary,
        work: &mut Work,
    ) -> Answered {
        let tau = self.tau_cal() as f32;
        work.tempered.clear();
        let prob = if tau == 1.0 {
            summary.prob
        } else if work.keep_tempered {
            1.0 / sum_exp_kept(scores, tau, summary.best, &mut work.tempered)
        } else {
            1.0 / sum_exp(scores, tau, summary.best)
        };
        let floor = self.config.advanced.floor as f32;
        let frozen_share = self.frozen_share(row, scores, &summary, tau, prob);
        let of_frozen = row.weights[summary.label] * row.frozen.prob;
        let mixed = (1.0 - frozen_share) * prob + frozen_share * of_frozen;
        let emitted = |mixed: f32| (1.0 - floor) * mixed + floor / scores.len() as f32;
        let flipped = summary.label != frozen_label;
        let prob_frozen = flipped.then(|| {
            let adapted = prob * exp(tau * (scores[frozen_label] - summary.best));
            emitted((1.0 - frozen_share) * adapted + frozen_share * row.frozen.prob)
        });
        let answer = Answer {
            label: summary.label,
            prob: emitted(mixed),
            prob_pred: summary.prob,
            prob_frozen,
            ..Default::default()
        };
        Answered {
            summary,
            answer,
            tau,
            matched: prob,
            image_weight: 0.0,
            has_image: false,
            lump: Lump::default(),
            frozen_share,
            frozen_prob: row.frozen.prob,
            tau_pred: 1.0,
        }
    }

    /// Computes v of the candidates, relative to the lowest: the other classes count as that one. `false` where there
    /// is no evidence to score with; v is 0 then.
    fn image_scores(&self, z: &[f32], work: &mut Work) -> bool {
        let Some(evidence) = self.evidence.as_ref().filter(|e| e.speaks()) else {
            work.image.clear();
            work.image.resize(work.candidates.len(), 0.0);
            return false;
        };
        evidence.scores(z, &work.candidates, &mut work.image);
        let lowest = work.image.iter().copied().fold(f32::INFINITY, f32::min);
        work.image.iter_mut().for_each(|v| *v -= lowest);
        true
    }
}

/// ℓ of every class, and exp(ℓ − best frozen logit) in `work.weights`: the frozen weight times C π_c. The candidates get
/// their image scores; their weights are 0, because they have to be computed anew.
fn add_up(row: Incoming<'_>, image_weight: f32, work: &mut Work, scores: &mut [f32]) {
    work.weights.resize(row.text.len(), 0.0);
    let known = row.text.iter().zip(&work.log_prior).zip(row.weights).zip(&work.prior.mix);
    vectorised(
        #[inline(always)]
        || {
            for ((s, o), (((&t, &p), &w), &m)) in scores.iter_mut().zip(&mut work.weights).zip(known.clone())
            {
                *s = t + p;
                *o = w * m;
            }
        },
    );
    work.candidates.iter().for_each(|&c| work.weights[c as usize] = 0.0);
    if image_weight > 0.0 {
        for (&c, &v) in work.candidates.iter().zip(&work.image) {
            scores[c as usize] += image_weight * v;
        }
    }
}
