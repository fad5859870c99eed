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
//!
//! **Agreement.** How often the frozen model names the same class from either half tells how right it is, whatever its scale:
//! where the halves disagree, more of the frozen probabilities is emitted (`emission.rs`). Where prototypes are frozen nothing is
//! asked, and half of the samples count as agreed on.

use crate::kernels::exp;

/// The weights w that are tried.
const WEIGHTS: [f32; 6] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Half-life of the gains, in samples that were judged.
const HALF_LIFE: f64 = 512.0;

/// Every sample is asked about while fewer than the first number were seen, then one in the second: by then more tells little.
const DENSE: u64 = 1280;
const STRIDE: u64 = 4;

/// Half-life of the agreement, in samples that were asked about.
const AGREEMENT_HALF_LIFE: f64 = 4096.0;

/// So many samples, of which half agree, are taken for seen at the start.
const SUPPOSED: f64 = 3.0;

/// Numbers of an opinion in a file.
pub(super) const LEN: usize = WEIGHTS.len() + 2;

/// What the halves said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Opinion {
    /// The running sum of the gains under each weight.
    gains: [f64; WEIGHTS.len()],
    /// Samples on which the halves of the frozen model agreed, and all that were asked about; both fade.
    agreed: f64,
    asked: f64,
}

/// A candidate class in both halves: frozen logit with the prior, and image score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halved {
    pub text: [f32; 2],
    pub image: [f32; 2],
}

impl Opinion {
    /// Whether a sample is asked about, before which so many were seen.
    pub(super) fn is_due(seen: u64) -> bool {
        seen < DENSE || seen.is_multiple_of(STRIDE)
    }

    /// Share of the samples on which both halves of the frozen model name the same class.
    pub(super) fn agreement(&self) -> f64 {
        (self.agreed + 0.5 * SUPPOSED) / (self.asked + SUPPOSED)
    }

    /// Notes whether the halves of the frozen model agree on a sample; `prior` is the candidates' log(C π). A sample with a
    /// single candidate has none to disagree on.
    pub(super) fn compare(&mut self, candidates: &[Halved], prior: &[f32]) {
        let named = |half: usize| best(candidates.iter().zip(prior).map(|(h, p)| h.text[half] - p));
        let fade = 0.5f64.powf(1.0 / AGREEMENT_HALF_LIFE);
        self.agreed = fade * self.agreed + f64::from(u8::from(named(0) == named(1)));
        self.asked = fade * self.asked + 1.0;
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
    pub(super) fn judge(&mut self, candidates: &[Halved], scale: f32, samples: f64) {
        let mut gains = [0.0; WEIGHTS.len()];
        for half in 0..2 {
            let answer =
                |weight: f32| best(candidates.iter().map(|h| h.text[half] + weight * scale * h.image[half]));
            let frozen = answer(0.0);
            // Scores are lines in the weight, and a line that is the highest at two weights is so between them.
            if answer(WEIGHTS[WEIGHTS.len() - 1]) == frozen {
                continue;
            }
            let judge = |h: &Halved| h.text[1 - half];
            let top = candidates.iter().map(judge).fold(f32::NEG_INFINITY, f32::max);
            let all: f32 = candidates.iter().map(|h| exp(judge(h) - top)).sum();
            let says = |i: usize| (exp(judge(&candidates[i]) - top) / all) as f64;
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
        let [a, b, c, d, e, f] = self.gains;
        [a, b, c, d, e, f, self.agreed, self.asked]
    }

    /// From numbers; what is missing is 0.
    pub(super) fn from_numbers(numbers: &[f64]) -> Self {
        let number = |i: usize| numbers.get(i).copied().unwrap_or(0.0);
        let gains = std::array::from_fn(number);
        Self { gains, agreed: number(WEIGHTS.len()), asked: number(WEIGHTS.len() + 1) }
    }

    /// Whether values read from a file are possible.
    pub(super) fn is_sound(&self) -> bool {
        self.gains.iter().all(|gain| gain.abs() <= 1e9)
            && (0.0..=1e9).contains(&self.asked)
            && (0.0..=self.asked * (1.0 + 1e-9)).contains(&self.agreed)
    }
}

/// Index of the highest score, the first of equals.
fn best(scores: impl Iterator<Item = f32>) -> usize {
    let better = |best: (usize, f32), (i, s): (usize, f32)| if s > best.1 { (i, s) } else { best };
    scores.enumerate().fold((0, f32::NEG_INFINITY), better).0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two classes. The first half is for class 0 by 1, the second for class 1 by `other`; the evidence is for class 1 in both.
    fn asked(other: f32) -> Opinion {
        let class = |text, image| Halved { text, image: [image; 2] };
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
    fn halves_agree_or_not_whatever_the_prior() {
        let class = |text| Halved { text, image: [0.0; 2] };
        let mut opinion = Opinion::default();
        assert_eq!(opinion.agreement(), 0.5, "nothing is known");
        // The prior adds 5 to class 1 in both halves: without it the first half is for class 0.
        (0..400).for_each(|_| opinion.compare(&[class([1.0, 0.0]), class([5.0, 6.0])], &[0.0, 5.0]));
        assert!(opinion.agreement() < 0.01, "{opinion:?}");
        (0..8000).for_each(|_| opinion.compare(&[class([1.0, 0.0]), class([0.0, -1.0])], &[0.0; 2]));
        assert!(opinion.agreement() > 0.95, "{opinion:?}");
        assert!(opinion.is_sound());
        assert!(!Opinion::from_numbers(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 1.0]).is_sound());
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
