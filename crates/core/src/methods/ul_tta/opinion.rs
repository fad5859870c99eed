//! The *second opinion*: how loudly the image evidence should speak, judged by the other half of each picture.
//!
//! The evidence learns from the frozen posterior, so it foretells the frozen answers whether or not it improves them. What it
//! *changes* can be judged without labels, because a feature has many dimensions: take half of them, let the evidence
//! change the answer, and ask the frozen model about the other half, whose noise is its own. With g the mean of the
//! images and y the deviation z − g with every second sign turned, both halves, brought to full size, are
//!
//! ```text
//! t± = s⟨z, μ_c⟩ ± s⟨y, μ_c⟩ + log(C π_c)        v± = v_c(z) ± ⟨y, Σ⁻¹ m_c⟩        q± = softmax(t±)
//! gain(w) = mean over both halves of  q∓[argmax t± + w · scale · v±] − q∓[argmax t±]
//! ```
//!
//! The evidence has *earned* the weight w whose gains add up to most; nothing, while all are below 0. The judge has the frozen
//! model's own bias in both halves and so rather keeps what the frozen model says: where it approves of a change, there
//! is a reason. Without it the evidence changed answers to no purpose where it had nothing to add, as under heads whose
//! prototypes are means of pictures.

use crate::kernels::exp;

/// The weights w that are tried.
const WEIGHTS: [f32; 6] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Half-life of the gains, in samples that were judged.
const HALF_LIFE: f64 = 512.0;

/// Every sample is judged while fewer than the first number were, then one in the second: by then more tells little.
const DENSE: u64 = 1024;
const STRIDE: u64 = 4;

/// Numbers of an opinion in a file.
pub(super) const LEN: usize = WEIGHTS.len();

/// The running sum of the gains under each weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Opinion {
    gains: [f64; WEIGHTS.len()],
}

/// A candidate class in both halves: frozen logit with the prior, and image score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halves {
    pub text: [f32; 2],
    pub image: [f32; 2],
}

impl Opinion {
    /// Whether a sample is asked about, of which so many have been judged.
    pub(super) fn is_due(judged: u64) -> bool {
        judged < DENSE || judged.is_multiple_of(STRIDE)
    }

    /// The weight that the evidence has earned.
    pub(super) fn earned(&self) -> f64 {
        let mut best = (0.0, 0.0);
        for (&gain, weight) in self.gains.iter().zip(WEIGHTS) {
            if gain > best.0 {
                best = (gain, weight.into());
            }
        }
        best.1
    }

    /// Judges what the evidence would change of a sample. In a group earlier gains fade by the group's samples, of which so many
    /// came with this one: as fast as the evidence grows.
    pub(super) fn judge(&mut self, candidates: &[Halves], scale: f32, samples: f64) {
        let mut gains = [0.0; WEIGHTS.len()];
        for half in 0..2 {
            let answer = |weight: f32| {
                let score = |h: &Halves| h.text[half] + weight * scale * h.image[half];
                let better =
                    |best: (usize, f32), (i, s): (usize, f32)| if s > best.1 { (i, s) } else { best };
                candidates.iter().map(score).enumerate().fold((0, f32::NEG_INFINITY), better).0
            };
            let frozen = answer(0.0);
            // Scores are lines in the weight, and a line that is the highest at two weights is so between them.
            if answer(WEIGHTS[WEIGHTS.len() - 1]) == frozen {
                continue;
            }
            let judge = |h: &Halves| h.text[1 - half];
            let best = candidates.iter().map(judge).fold(f32::NEG_INFINITY, f32::max);
            let all: f32 = candidates.iter().map(|h| exp(judge(h) - best)).sum();
            let says = |i: usize| (exp(judge(&candidates[i]) - best) / all) as f64;
            for (gain, weight) in gains.iter_mut().zip(WEIGHTS) {
                *gain += 0.5 * (says(answer(weight)) - says(frozen));
            }
        }
        let fade = 0.5f64.powf(samples / HALF_LIFE);
        for (sum, gain) in self.gains.iter_mut().zip(gains) {
            *sum = *sum * fade + gain;
        }
    }

    pub(super) fn numbers(&self) -> [f64; LEN] {
        self.gains
    }

    /// From numbers; what is missing is 0.
    pub(super) fn from_numbers(numbers: &[f64]) -> Self {
        Self { gains: std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0.0)) }
    }

    /// Whether values read from a file are possible.
    pub(super) fn is_sound(&self) -> bool {
        self.gains.iter().all(|gain| gain.abs() <= 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two classes. The first half is for class 0 by 1, the second for class 1 by `other`; the evidence is for class 1 in both.
    fn asked(other: f32) -> Opinion {
        let class = |text, image| Halves { text, image: [image; 2] };
        let mut opinion = Opinion::default();
        (0..200).for_each(|_| opinion.judge(&[class([1.0, 0.0], 0.0), class([0.0, other], 1.0)], 1.0, 1.0));
        opinion
    }

    #[test]
    fn a_change_that_the_other_half_approves_of_is_earned_and_no_other() {
        assert_eq!(asked(3.0).earned(), 2.0, "the least weight that changes the first half");
        assert_eq!(asked(-3.0).earned(), 0.0);
        assert_eq!(Opinion::default().earned(), 0.0);
    }

    #[test]
    fn an_opinion_survives_its_file() {
        let opinion = asked(3.0);
        assert!(opinion.is_sound());
        assert_eq!(Opinion::from_numbers(&opinion.numbers()), opinion);
        let mut wrong = opinion.numbers();
        wrong[1] = f64::NAN;
        assert!(!Opinion::from_numbers(&wrong).is_sound());
    }
}
