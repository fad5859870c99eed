//! How loudly the image evidence speaks ([`ImageBranch`]), and the temperature of the emitted probabilities
//! ([`Calibration`]). Both have a one-dimensional fit at an update, over remembered samples, each as it was scored
//! before it taught. No labels are needed; labels correct the temperature.

use std::f64::consts::{FRAC_2_PI, SQRT_2};

use super::config::Advanced;
use super::opinion::Opinion;
use crate::kernels::{exp, vectorised};
use crate::methods::recent::{Labelled, Lines, Lump, Recent, Sample};

/// Most samples that a fit looks at. Of more remembered samples it takes every second, third, …
const FIT_ROWS: usize = 256;

/// Where the first fit of the scale (the temperature of the image scores) starts.
const SCALE_START: f64 = 300.0;

/// The largest scale; 200 to 1500 is normal on unit features.
const SCALE_MAX: f64 = 2000.0;

/// Share of the newly fitted scale at each update; the rest is the scale so far.
const SCALE_SMOOTHING: f64 = 0.3;

/// The samples that a fit looks at.
fn fit_rows<'a>(
    recent: &'a Recent,
    window: usize,
    wanted: impl Fn(&Sample<'_>) -> bool,
) -> impl Iterator<Item = Sample<'a>> {
    let all: Vec<Sample<'a>> = recent.newest(window).filter(|s| s.flags.teaches && wanted(s)).collect();
    let step = all.len().div_ceil(FIT_ROWS).max(1);
    all.into_iter().step_by(step)
}

/// Half-lives, in samples, of the two records of the image evidence. The short one takes trust away within a few
/// samples, the long one gives it slowly.
const RECORDS: [f64; 2] = [16.0, 256.0];

/// Samples that must have been judged before evidence is dropped.
const MIN_JUDGED: u64 = 64;

/// How loudly the image evidence speaks: the answer adds `trust · scale · v_c(z)`. The *branch* is the evidence as a
/// classifier of its own, softmax(scale · v + log prior).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ImageBranch {
    /// The branch's own temperature: softmax(scale · v + log prior) matches the frozen posterior best.
    pub scale: f64,
    /// The most that can be earned: trust_max · (n / (n + trust_samples))² with n the mean evidence per class, as of the last
    /// update. Evidence of a few pictures resembles these pictures, and pictures that resemble one another are misread
    /// alike, in both halves.
    pub grown: f64,
    /// What the other half of the dimensions says of what the evidence changes.
    pub opinion: Opinion,
    /// Samples judged.
    pub judged: u64,
    /// Under each half-life: running sums of KL(frozen ‖ branch) and of KL(frozen ‖ prior), where *frozen* is the
    /// frozen posterior under the prior, on samples that the evidence had not learnt from.
    pub records: [[f64; 2]; 2],
}

impl ImageBranch {
    /// Weight of v in the answer.
    pub(super) fn weight(&self) -> f32 {
        (self.trust() * self.scale) as f32
    }

    /// *Trust*: how much of the branch enters the answer. It is what the evidence has earned (`opinion.rs`), at most `grown`,
    /// and less at once where the branch has lately foretold less than it used to.
    pub(super) fn trust(&self) -> f64 {
        let [short, long] = self.records.map(foretold);
        if long <= 0.0 {
            return 0.0;
        }
        let steady = (short / long).clamp(0.0, 1.0);
        steady * steady * self.opinion.earned().min(self.grown)
    }

    /// Whether the branch has foretold less than nothing for long.
    pub(super) fn misleads(&self) -> bool {
        self.judged >= MIN_JUDGED && foretold(self.records[1]) < 0.0
    }

    /// Judges how well the branch foretold a sample that it has not learnt from. The slices are the candidates'.
    pub(super) fn judge(&mut self, text: &[f32], prior: &[f32], image: &[f32], lump: &Lump) {
        if self.scale == 0.0 {
            return;
        }
        let scale = self.scale as f32;
        let rest = (lump.classes > 0.0)
            .then(|| (lump.prior, lump.ratio + lump.log_classes(), lump.ratio + lump.log_classes()));
        // Logits of the frozen posterior, of the branch and of the prior.
        let rows = || {
            let listed = text.iter().zip(prior).zip(image).map(|((t, p), v)| (t + p, scale * v + p, *p));
            listed.chain(rest)
        };
        let mut best = [f32::NEG_INFINITY; 3];
        for (frozen, branch, prior) in rows() {
            best = [best[0].max(frozen), best[1].max(branch), best[2].max(prior)];
        }
        let mut sums = [0.0f32; 3];
        for (frozen, branch, prior) in rows() {
            sums[0] += exp(frozen - best[0]);
            sums[1] += exp(branch - best[1]);
            sums[2] += exp(prior - best[2]);
        }
        let logs: [f32; 3] = std::array::from_fn(|i| best[i] + sums[i].ln());
        let (mut with, mut without) = (0.0f64, 0.0f64);
        for (frozen, branch, prior) in rows() {
            let log_p = frozen - logs[0];
            let p = exp(log_p);
            with += (p * (log_p - branch + logs[1])) as f64;
            without += (p * (log_p - prior + logs[2])) as f64;
        }
        for ([sum_with, sum_without], half_life) in self.records.iter_mut().zip(RECORDS) {
            let fade = 0.5f64.powf(1.0 / half_life);
            *sum_with = *sum_with * fade + with.max(0.0);
            *sum_without = *sum_without * fade + without.max(0.0);
        }
        self.judged += 1;
    }

    /// Fits `scale`: least cross-entropy between the frozen posterior under the prior and softmax(scale · v + log prior).
    /// Not while fewer than `least` samples were scored.
    pub(super) fn fit(&mut self, recent: &Recent, advanced: &Advanced, least: usize) {
        let scored = |s: &Sample<'_>| s.flags.has_image && s.flags.teaches;
        if recent.newest(advanced.scale_window).filter(scored).count() < least.max(1) {
            return;
        }
        let lines = Lines::new(fit_rows(recent, advanced.scale_window, scored), |s, x, b| {
            x.copy_from_slice(s.image);
            b.copy_from_slice(s.prior);
            if s.lump.classes > 0.0 {
                b[s.classes.len()] = s.lump.ratio + s.lump.log_classes();
            }
        });
        let start = if self.scale > 1.0 { self.scale } else { SCALE_START };
        let fitted = lines.matching(start, (0.0, SCALE_MAX), 0.5, 1.0);
        self.scale = if self.scale == 0.0 {
            fitted
        } else {
            (1.0 - SCALE_SMOOTHING) * self.scale + SCALE_SMOOTHING * fitted
        };
    }

    /// Sets `grown` from the mean evidence per class.
    pub(super) fn grow(&mut self, evidence_per_class: f64, advanced: &Advanced) {
        let n = evidence_per_class;
        self.grown =
            if n > 0.0 { advanced.trust_max * (n / (n + advanced.trust_samples)).powi(2) } else { 0.0 };
    }

    /// Whether values read from a file are possible.
    pub(super) fn is_sound(&self) -> bool {
        (0.0..=SCALE_MAX).contains(&self.scale)
            && (0.0..=1e3).contains(&self.grown)
            && self.opinion.is_sound()
            && self.records.as_flattened().iter().all(|sum| (0.0..=1e12).contains(sum))
    }
}

/// Share of the frozen posterior's information that the branch foretold beyond the prior:
/// 1 − Σ KL(frozen ‖ branch) / Σ KL(frozen ‖ prior). Negative where the branch was worse than the prior alone.
fn foretold([with, without]: [f64; 2]) -> f64 {
    if without > 0.0 { 1.0 - with / without } else { 0.0 }
}

/// τ_cal, the temperature of the emitted probabilities softmax(τ_cal · answer), and how it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calibration {
    /// The temperature at which the answers match the frozen posterior.
    pub matched: f64,
    /// The temperature chosen without labels.
    pub label_free: f64,
    /// The temperature emitted: `label_free`, corrected by labels.
    pub tau: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { matched: 1.0, label_free: 1.0, tau: 1.0 }
    }
}

impl Calibration {
    /// Chooses τ_cal without labels.
    ///
    /// The answer counts frozen logits and image evidence of one image as if they were independent, so it is too sure.
    /// First comes the temperature that matches the frozen posterior under the prior of the time. It is applied to the
    /// power `match_power` only: where the answers got better, they may be surer. Then, if the answers' margins tell of
    /// a higher accuracy than the mean confidence, the temperature rises until confidence has gone `margin_share` of
    /// the way up to that accuracy. Last, confidence goes `halves_share` of the way, in log-odds, that `moved` tells from the mean
    /// probability of the frozen answers: how often answers that claim so much are right (`estimate/halves.rs`).
    pub(super) fn fit(
        &mut self,
        recent: &Recent,
        margins: &[f32],
        moved: impl Fn(f64) -> f64,
        advanced: &Advanced,
    ) {
        let lines = Lines::new(fit_rows(recent, advanced.match_window, |_| true), answer_line);
        if lines.len() == 0 {
            return;
        }
        self.matched = lines.matching(self.matched, (advanced.tau_min, advanced.tau_max), 0.3, 0.0);
        let base = self.matched.powf(advanced.match_power).clamp(advanced.tau_min, advanced.tau_max);
        let now = confidence(&lines, base).0;
        let accuracy = folded_accuracy(margins);
        let mut tau = base;
        if advanced.margin_share > 0.0 && accuracy > 0.5 && accuracy > now {
            let wanted = now + advanced.margin_share * (accuracy - now);
            tau = self.label_free.clamp(base, advanced.tau_max);
            tau = reach(&lines, tau, wanted, (base, advanced.tau_max));
        }
        if advanced.halves_share > 0.0 {
            let claims = fit_rows(recent, advanced.match_window, |_| true).map(|s| frozen_best(&s));
            let claim = claimed(&lines, claims, tau);
            let moved = advanced.halves_share * moved(claim);
            if moved != 0.0 {
                let now = confidence(&lines, tau).0;
                let odds = moved.exp() * now / (1.0 - now).max(1e-9);
                tau = reach(&lines, tau, odds / (1.0 + odds), (advanced.tau_min, advanced.tau_max));
            }
        }
        (self.label_free, self.tau) = (tau, tau);
    }

    /// Corrects τ_cal by delayed labels: least negative log-likelihood, held near `label_free`.
    pub(super) fn fit_to_labels(&mut self, labelled: &Labelled, advanced: &Advanced) {
        let bounds = (advanced.tau_min, advanced.tau_max);
        self.tau = labelled.fit(self.tau, self.label_free, advanced.label_strength, bounds, answer_line);
    }

    /// Whether values read from a file are possible.
    pub(super) fn is_sound(&self) -> bool {
        [self.matched, self.label_free, self.tau].iter().all(|tau| (1e-3..=1e3).contains(tau))
    }
}

/// The answer of a remembered sample as a line in τ_cal, which multiplies all of it.
#[inline(always)]
fn answer_line(s: &Sample<'_>, x: &mut [f32], b: &mut [f32]) {
    for i in 0..x.len() {
        x[i] = s.text[i] + s.image_weight * s.image[i] + s.prior[i];
    }
    b.fill(0.0);
    // Every lumped class has an equal part of the lump's mass, and τ_cal multiplies the logit of one such class.
    let lump = s.classes.len();
    x[lump] -= s.lump.log_classes();
    b[lump] += s.lump.log_classes();
}

/// The temperature near another one at which the mean probability of the best candidate is what is wanted. Confidence grows with
/// τ and flattens out: Newton steps, down by 30 % or up by 50 % at most.
fn reach(lines: &Lines, mut tau: f64, wanted: f64, (least, most): (f64, f64)) -> f64 {
    for _ in 0..8 {
        let (at, slope) = confidence(lines, tau);
        let step = (wanted - at) / slope.max(1e-9);
        let next = (tau + step.clamp(-0.3 * tau, 0.5 * tau)).clamp(least, most);
        let change = (next - tau).abs();
        tau = next;
        if change <= 1e-3 * tau {
            break;
        }
    }
    tau
}

/// The place of the frozen model's answer among a sample's candidates.
fn frozen_best(s: &Sample<'_>) -> usize {
    let better = |best: usize, i: usize| if s.text[i] > s.text[best] { i } else { best };
    (1..s.classes.len()).fold(0, better)
}

/// Mean probability of one candidate of every sample at a temperature.
fn claimed(lines: &Lines, candidates: impl Iterator<Item = usize>, tau: f64) -> f64 {
    let mut sum = 0.0;
    for (line, at) in lines.iter().zip(candidates) {
        sum += (tau * line.x[at] as f64 - line.moments(tau as f32).log_sum()).exp();
    }
    sum / lines.len() as f64
}

/// Mean probability of the best candidate at a temperature, and its derivative.
fn confidence(lines: &Lines, tau: f64) -> (f64, f64) {
    let (mut sum, mut slope) = (0.0, 0.0);
    vectorised(
        #[inline(always)]
        || {
            for line in lines.iter() {
                let m = line.moments(tau as f32);
                let best = line.best_candidate() as f64;
                let p = (tau * best - m.log_sum()).exp();
                sum += p;
                slope += p * (best - m.mean);
            }
        },
    );
    (sum / lines.len() as f64, slope / lines.len() as f64)
}

/// The accuracy that margins tell of, whatever their scale. Suppose that the right answer is ahead of its rival by
/// N(μ, σ): then the margins are |N(μ, σ)|, the accuracy is Φ(μ/σ), and E\[Δ\]²/E\[Δ²\] of the margins Δ gives μ/σ.
/// ½ means that the margins tell nothing.
pub(super) fn folded_accuracy(margins: &[f32]) -> f64 {
    let (first, second) =
        margins.iter().fold((0.0, 0.0), |(a, b), &m| (a + m as f64, b + m as f64 * m as f64));
    let n = margins.len().max(1) as f64;
    let ratio = (first / n).powi(2) / (second / n + 1e-30);
    if ratio <= FRAC_2_PI {
        return 0.5;
    }
    let (mut low, mut high) = (0.0f64, 6.0f64);
    for _ in 0..40 {
        let k = 0.5 * (low + high);
        let mean = FRAC_2_PI.sqrt() * (-0.5 * k * k).exp() + k * erf(k / SQRT_2);
        if mean * mean / (1.0 + k * k) < ratio {
            low = k;
        } else {
            high = k;
        }
    }
    0.5 * (1.0 + erf(low / SQRT_2))
}

/// The error function (Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7). A more exact one, libm's, changes
/// probabilities by up to 6e-5 (pets24, class-sorted), because the searches for τ_cal stop a step earlier or later.
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let poly = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t
        + 0.254_829_592)
        * t;
    x.signum() * (1.0 - poly * (-x * x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_read_off_the_shape_of_the_margins() {
        // |N(μ, 1)| at its own quantiles: Φ(1) = 0.841, and a margin that is always the same is always right.
        let folded = |mu: f64| -> Vec<f32> {
            let draw = |i: usize| {
                let (mut low, mut high) = (-8.0f64, 8.0f64);
                for _ in 0..60 {
                    let middle = 0.5 * (low + high);
                    let below = 0.5 * (1.0 + erf(middle / SQRT_2));
                    if below < (i as f64 + 0.5) / 4000.0 { low = middle } else { high = middle }
                }
                (mu + low).abs() as f32
            };
            (0..4000).map(draw).collect()
        };
        assert!((folded_accuracy(&folded(1.0)) - 0.8413).abs() < 2e-3);
        let scaled: Vec<f32> = folded(1.0).iter().map(|m| 7.0 * m).collect();
        assert!((folded_accuracy(&scaled) - folded_accuracy(&folded(1.0))).abs() < 1e-6);
        assert!(folded_accuracy(&folded(0.0)) < 0.65, "no side is ahead");
        assert!(folded_accuracy(&[2.0; 50]) > 0.999);
    }
}
