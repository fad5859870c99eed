//! The *background*: which classes the head favours, whatever the pictures show.
//!
//! A class that the head favours wins often, like a class that occurs often. The two differ in what comes *second*: a
//! favoured class also comes second often, on samples of other classes; a frequent class does not. So the background
//! of a class is its mean share of the frozen posterior without the winner, over samples that the class did not win,
//! as a ratio to an even share 1/(C − 1). Its *lift* is
//!
//! ```text
//! lift_c = background_c ^ −power
//! ```
//!
//! A sample counts for the background with weight min(1, 1/(C π_winner)), so that a long run of one class does not
//! make its neighbours look favoured. With two classes the loser always comes second, which tells nothing: the lift is 1.
//!
//! The *bias* of the head is the standard deviation of log lift over the classes: 0 for a head that favours no class,
//! 0.3 to 0.8 for usual heads, above 1 for heads with poor prompts.
//!
//! All of it belongs to the head more than to the stream: it forgets slowly. A restart begins it anew, because the rows
//! before may have been garbage.

use super::config::DefaultConfig;
use super::experts::{Expert, Shares};
use crate::kernels::{exp, fold_lanes, ln, vectorised};
use crate::{Result, State};

/// The background forgets this much more slowly than the evidence.
const SLOWER: f64 = 4.0;

/// If the classes beside the winner, whose exp(logit − best) is 1, have less than this together, then the sample
/// tells nothing about the background.
const MIN_REST: f32 = 1e-30;

/// Bounds of a lift, far from what an f32 cannot hold.
const LIFTS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

#[derive(Clone, Debug)]
pub(super) struct Background {
    power: f64,
    /// An even share for every class, 1/C.
    pub even: Vec<f64>,
    /// Counts of the shares of the frozen posterior without the winner, and counts of the winners; as ratios to 1/C.
    pub counts: [Expert; 2],
    /// Follows the counts every few samples.
    pub lift: Vec<f32>,
    /// The lift to the power `prior_stay_lift`, for what stays (`prior.rs`).
    pub stay_lift: Vec<f32>,
    stay_power: f32,
    /// Standard deviation of log lift.
    pub bias: f64,
}

impl Background {
    /// `half_life` is that of the evidence.
    pub(super) fn new(config: &DefaultConfig, classes: usize, half_life: f64) -> Self {
        let a = &config.advanced;
        Self {
            power: a.prior_background,
            even: vec![1.0 / classes as f64; classes],
            counts: [SLOWER * half_life; 2].map(|h| Expert::new(h, a.prior_smoothing, classes)),
            lift: vec![1.0; classes],
            stay_lift: vec![1.0; classes],
            stay_power: a.prior_stay_lift as f32,
            bias: 0.0,
        }
    }

    /// Counts a sample. `text` is exp(frozen logit − best), `winner` the class of the best frozen logit, `expected` the
    /// winner's C π.
    pub(super) fn count(
        &mut self,
        candidates: &[u32],
        text: &[f32],
        winner: usize,
        expected: f32,
        shares: &mut Shares,
    ) {
        if self.power == 0.0 {
            return;
        }
        let candidates = candidates.iter().map(|&c| c as usize);
        let others = candidates.filter(|&c| c != winner).map(|c| (c, text[c]));
        let rest: f32 = others.clone().map(|(_, t)| t).sum();
        if rest < MIN_REST {
            return;
        }
        let weight = (1.0 / expected as f64).min(1.0);
        let [seconds, winners] = &mut self.counts;
        shares.list(others.map(|(c, t)| (c, t / rest)), &self.even);
        seconds.count(weight, shares);
        shares.list([(winner, 1.0)].into_iter(), &self.even);
        winners.count(weight, shares);
    }

    /// The lift from the counts as they stand.
    pub(super) fn relift(&mut self) {
        let c = self.lift.len() as f64;
        let [seconds, winners] = &self.counts;
        let (least, seen) = (seconds.smoothing, seconds.smoothing + seconds.total);
        let of_others = (c - 1.0) / c;
        vectorised(
            #[inline(always)]
            || {
                let counts = seconds.ratios().zip(winners.ratios());
                for (lift, (second, won)) in self.lift.iter_mut().zip(counts) {
                    // Share of the class in the samples that it did not win, smoothed.
                    let (share, all) = (least + second * of_others, (seen - won / c).max(least));
                    *lift = (all / share).clamp(*LIFTS.start(), *LIFTS.end()) as f32;
                }
            },
        );
        if self.power != 1.0 {
            self.lift.iter_mut().for_each(|lift| *lift = lift.powf(self.power as f32));
        }
        self.follow();
    }

    /// What depends on the lift alone.
    fn follow(&mut self) {
        let (logs, power) = (&mut self.stay_lift, self.stay_power);
        vectorised(
            #[inline(always)]
            || logs.iter_mut().zip(&self.lift).for_each(|(log, &lift)| *log = ln(lift)),
        );
        self.bias = deviation(logs);
        vectorised(
            #[inline(always)]
            || logs.iter_mut().for_each(|log| *log = exp(power * *log)),
        );
    }

    /// What was saved of the counts is read with the prior's experts.
    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        self.lift = state.within::<f32>("local.prior.lift", self.lift.len(), LIFTS)?.to_vec();
        self.follow();
        Ok(())
    }
}

/// Standard deviation.
fn deviation(values: &[f32]) -> f64 {
    let n = values.len().max(1) as f32;
    let mean = fold_lanes(values, values, |v, _| v) / n;
    let square = fold_lanes(values, values, |v, _| (v - mean) * (v - mean)) / n;
    (square as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head of four classes whose second place goes to class 1 with these odds.
    fn biased(odds: f32) -> f64 {
        let mut background = Background::new(&DefaultConfig::default(), 4, 1000.0);
        let mut shares = Shares::default();
        for i in 0..400 {
            let mut text = [0.1f32; 4];
            text[1] = 0.1 * odds;
            text[i % 4] = 1.0;
            background.count(&[0, 1, 2, 3], &text, i % 4, 1.0, &mut shares);
        }
        background.relift();
        background.bias
    }

    #[test]
    fn a_head_that_favours_a_class_has_a_bias() {
        assert!(biased(1.0) < 0.02, "{}", biased(1.0));
        assert!(biased(3.0) > 0.3 && biased(8.0) > biased(3.0), "{} {}", biased(3.0), biased(8.0));
    }
}
