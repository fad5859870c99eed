//! τ_pred: how sharp the frozen logits are when they meet the prior and the image evidence.
//!
//! Some heads are far less sure than they are right. Their logits differ by too little, and a prior that has learnt a
//! little outvotes them. How right the head is can be read off the shape of its margins, whatever their scale
//! ([`folded_accuracy`]). If that accuracy is clearly above the mean frozen confidence, then the answer takes the
//! frozen logits τ_pred times,
//!
//! ```text
//! mean confidence at τ_pred = confidence + share · (accuracy − confidence − DEAD_ZONE)        1 ≤ τ_pred ≤ MOST
//! ```
//!
//! over the last samples; else τ_pred is 1. The emitted probabilities have a temperature of their own (`fits.rs`).

use std::collections::VecDeque;

use super::fits::folded_accuracy;
use crate::kernels::exp;
use crate::scores::Summary;
use crate::{Error, Result, State};

/// Recent samples that are looked at.
const WINDOW: usize = 512;

/// With fewer samples τ_pred is not fitted.
const FEWEST: usize = 64;

/// Samples that the temperature is searched over. Of more, every second, third, … is taken.
const FIT_ROWS: usize = 128;

/// What the margins must tell beyond the mean confidence before they are believed: they tell a few points too much.
const DEAD_ZONE: f64 = 0.07;

/// The largest τ_pred.
const MOST: f64 = 4.0;

/// Halvings of the range that τ_pred is searched in.
const STEPS: usize = 12;

/// Rivals of the best class that are kept one by one.
const RIVALS: usize = 7;

/// Logit of a rival that is not there.
const NOTHING: f32 = -1e4;

/// Frozen logits of a sample, relative to the best.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// How far the best class is ahead of the second.
    margin: f32,
    /// The best rivals, best first.
    rivals: [f32; RIVALS],
    /// The other classes: their number, and the logarithm of their mean exp(logit − best).
    others: f32,
    of_others: f32,
}

/// τ_pred, and the samples that it is found from.
#[derive(Clone, Debug)]
pub(super) struct Sharpness {
    pub tau: f64,
    share: f64,
    rows: VecDeque<Row>,
}

impl Row {
    /// From the logits of all classes, their summary, and the classes among which the rivals are.
    fn of(logits: &[f32], frozen: &Summary, candidates: &[u32]) -> Self {
        let Summary { label, best, prob, .. } = *frozen;
        let mut rivals = [NOTHING; RIVALS];
        for c in candidates.iter().map(|&c| c as usize).filter(|&c| c != label) {
            let mut logit = logits[c] - best;
            if logit > rivals[RIVALS - 1] {
                for kept in &mut rivals {
                    if logit > *kept {
                        std::mem::swap(kept, &mut logit);
                    }
                }
            }
        }
        let others = logits.len().saturating_sub(1 + RIVALS) as f32;
        let listed: f32 = 1.0 + rivals.iter().map(|&r| exp(r)).sum::<f32>();
        // exp(logit − best) of all classes adds up to 1 / prob.
        let mass = (1.0 / prob - listed).max(others * 1e-30);
        Self {
            margin: frozen.margin,
            rivals,
            others,
            of_others: if others > 0.0 { (mass / others).ln() } else { NOTHING },
        }
    }

    /// Probability of the best class at a temperature.
    fn confidence(&self, tau: f32) -> f32 {
        let rivals: f32 = self.rivals.iter().map(|&r| exp(tau * r)).sum();
        1.0 / (1.0 + rivals + self.others * exp(tau * self.of_others))
    }
}

impl Sharpness {
    pub(super) fn new(share: f64) -> Self {
        Self { tau: 1.0, share, rows: VecDeque::new() }
    }

    /// Remembers the frozen logits of a sample, from the logits and their summary.
    pub(super) fn push(&mut self, logits: &[f32], frozen: &Summary, candidates: &[u32]) {
        if self.share == 0.0 || logits.len() < 2 {
            return;
        }
        if self.rows.len() == WINDOW {
            self.rows.pop_front();
        }
        self.rows.push_back(Row::of(logits, frozen, candidates));
    }

    /// Finds τ_pred.
    pub(super) fn fit(&mut self) {
        if self.rows.len() < FEWEST {
            return;
        }
        let margins: Vec<f32> = self.rows.iter().map(|row| row.margin).collect();
        let accuracy = folded_accuracy(&margins);
        let rows: Vec<&Row> = self.rows.iter().step_by(self.rows.len().div_ceil(FIT_ROWS)).collect();
        let confidence = |tau: f64| {
            rows.iter().map(|row| row.confidence(tau as f32) as f64).sum::<f64>() / rows.len() as f64
        };
        let now = confidence(1.0);
        let wanted = now + self.share * (accuracy - now - DEAD_ZONE);
        let (mut low, mut high) = (1.0, MOST);
        if accuracy > 0.5 && wanted > now {
            for _ in 0..STEPS {
                let middle = 0.5 * (low + high);
                if confidence(middle) < wanted { low = middle } else { high = middle }
            }
        }
        self.tau = low;
    }

    pub(super) fn bytes(&self) -> usize {
        WINDOW * size_of::<Row>()
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("local.tau_pred", &[self.tau]);
        let numbers =
            |row: &Row| [row.margin].into_iter().chain(row.rivals).chain([row.others, row.of_others]);
        state.put("local.tau_pred.rows", &self.rows.iter().flat_map(numbers).collect::<Vec<f32>>());
    }

    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        self.tau = state.within::<f64>("local.tau_pred", 1, 1.0..=MOST)?[0];
        let name = "local.tau_pred.rows";
        let (rows, rest) = state.get::<f32>(name)?.as_chunks::<{ RIVALS + 3 }>();
        if !rest.is_empty() || rows.len() > WINDOW {
            return Err(Error::state(format!("{name}: expected at most {WINDOW} rows of {}", RIVALS + 3)));
        }
        let possible = |&v: &f32| (NOTHING * 1e3..=1e9).contains(&v);
        if !rows.as_flattened().iter().all(possible) {
            return Err(Error::state(format!("{name}: a value out of range")));
        }
        self.rows = rows
            .iter()
            .map(|&[margin, a, b, c, d, e, f, g, others, of_others]| Row {
                margin,
                rivals: [a, b, c, d, e, f, g],
                others,
                of_others,
            })
            .collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of samples of a head with `classes` classes whose right class is ahead by `lead` on the mean.
    fn fitted(classes: usize, lead: f32, noise: f32) -> f64 {
        let mut sharpness = Sharpness::new(0.7);
        let mut seed = 1u32;
        let mut uniform = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 24) as f32
        };
        let candidates: Vec<u32> = (0..classes as u32).collect();
        for _ in 0..600 {
            let logits: Vec<f32> = (0..classes)
                .map(|c| {
                    let normal = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
                    normal * noise + if c == 0 { lead } else { 0.0 }
                })
                .collect();
            let mut weights = vec![0.0; classes];
            let summary = crate::scores::weigh(&logits, &mut weights);
            sharpness.push(&logits, &summary, &candidates);
        }
        sharpness.fit();
        sharpness.tau
    }

    #[test]
    fn a_head_that_is_less_sure_than_right_is_sharpened_and_no_other() {
        assert!(fitted(40, 3.0, 0.5) > 1.3, "nearly always right, at low confidence");
        assert_eq!(fitted(40, 9.0, 1.0), 1.0, "sure and right");
        assert_eq!(fitted(40, 0.0, 1.0), 1.0, "margins that tell nothing");
    }

    #[test]
    fn rivals_are_the_best_ones_and_the_rest_keeps_its_mass() {
        let logits: Vec<f32> = (0..20).map(|c| -0.1 * c as f32).collect();
        let mut weights = vec![0.0; 20];
        let summary = crate::scores::weigh(&logits, &mut weights);
        let row = Row::of(&logits, &summary, &(0..20).rev().collect::<Vec<_>>());
        assert!((row.rivals[0] + 0.1).abs() < 1e-6 && (row.rivals[6] + 0.7).abs() < 1e-6, "{row:?}");
        assert!((row.confidence(1.0) - summary.prob).abs() < 1e-5);
        let two = [0.0, 0.5f32.ln()];
        let summary = crate::scores::weigh(&two, &mut weights[..2]);
        let two = Row::of(&two, &summary, &[0, 1]);
        assert!((two.confidence(1.0) - 2.0 / 3.0).abs() < 1e-6);
        // A rival that is no candidate still tells how far the best class is ahead.
        let alone = [9.0, 1.0, 0.0];
        let summary = crate::scores::weigh(&alone, &mut weights[..3]);
        assert_eq!(Row::of(&alone, &summary, &[0]).margin, 8.0);
    }
}
