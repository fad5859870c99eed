//! The threshold that rejects a share of the *known* images, on a stream that may hold strangers: no labels tell which are
//! which.
//!
//! A mixture of two normal distributions is fitted to a signal in which strangers lie apart. Where the lower part is well
//! apart, an image counts as known as far as it does not belong to that part, and the threshold is a quantile of the
//! scores so weighted. Where the parts are not apart, nothing speaks for strangers, and every image counts. Nor does it where the
//! answers tell who is in the lower part: those are known classes that look unlike the others (drawings among photos).
//!
//! Strangers that stay among the known hold that quantile down, but they do not reach the upper end of the scores. So where
//! something speaks for strangers the upper quantile, mirrored at the median, may raise the threshold.

use std::collections::VecDeque;

use crate::kernels::{exp, vectorised};
use crate::scores::LANES_F64;
use crate::{Error, Result, State};

/// Recent images that the threshold is taken over.
const WINDOW: usize = 2048;

/// Nothing is unknown before this many images.
const FIRST: usize = 32;

/// The threshold is set anew after this many images; while the window holds fewer, after every 32nd. Fewer images do not
/// tell strangers apart.
const EVERY: usize = 128;

/// Images that a fit looks at, at most.
const FIT: usize = 512;

/// Rounds of a fit.
const ROUNDS: usize = 24;

/// How far apart, in pooled standard deviations, the parts of the mixture must be to speak for strangers: at all, and
/// fully.
const APART: (f64, f64) = (1.5, 2.5);

/// A lower part with a larger share than this is no group of strangers.
const MOST_STRANGERS: f64 = 0.5;

/// How much of who is in the lower part the answers may explain (adjusted R²) for it to speak for strangers: fully, and at all. Strangers are
/// given to many classes, and those have images of their own, too. Chosen on the packs of `docs/estimates.md`.
const EXPLAINED: (f64, f64) = (0.55, 0.7);

/// The threshold lies at this multiple of the share asked for where nothing speaks for strangers: images drift, and more fall
/// below an old threshold. This and the two below were chosen on the packs of `docs/estimates.md`.
const PLAIN: f64 = 0.65;

/// The multiple where everything speaks for strangers.
const RAISED: f64 = 1.3;

/// The mirrored quantile (as far below the median as the surest share lies above it) may raise it up to this multiple.
const MIRRORED: f64 = 2.0;

/// An image in the window.
#[derive(Clone, Copy, Debug)]
struct Image {
    score: f32,
    signal: f32,
    /// The frozen model's answer.
    answer: u32,
}

/// Scores with their signals, and the threshold they give.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    /// Newest last.
    window: VecDeque<Image>,
    since: usize,
    threshold: Option<f64>,
    /// Whether strangers lie apart in the signal, if there are some.
    tells: bool,
}

impl Cost {
    pub(super) fn new(tells: bool) -> Self {
        Self { window: VecDeque::new(), since: 0, threshold: None, tells }
    }

    pub(super) fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    pub(super) fn push(&mut self, score: f64, signal: f64, answer: usize, share: f64) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(Image { score: score as f32, signal: signal as f32, answer: answer as u32 });
        self.since += 1;
        if self.since >= if self.window.len() <= EVERY { FIRST } else { EVERY } {
            self.since = 0;
            self.threshold = Some(threshold(&self.window, share, self.tells));
        }
    }

    pub(super) fn save(&self, state: &mut State) {
        let rows: Vec<[f32; 2]> = self.window.iter().map(|image| [image.score, image.signal]).collect();
        state.put("unknown.cost.window", rows.as_flattened());
        let answers: Vec<u32> = self.window.iter().map(|image| image.answer).collect();
        state.put("unknown.cost.answers", &answers);
        state.put("unknown.cost.since", &[self.since as u64]);
        state.put("unknown.cost.threshold", &self.threshold.into_iter().collect::<Vec<f64>>());
    }

    pub(super) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        let rows = state.get::<f32>("unknown.cost.window")?;
        if !rows.len().is_multiple_of(2) || rows.len() > 2 * WINDOW {
            return Err(Error::state("unknown.cost.window: expected pairs, and no more than are kept"));
        }
        // States of earlier builds have no answers: one for all explains nothing.
        let unsaid = vec![0; rows.len() / 2];
        let answers = if state.has("unknown.cost.answers") {
            state.get_n::<u32>("unknown.cost.answers", rows.len() / 2)?
        } else {
            &unsaid
        };
        if answers.iter().any(|&answer| answer as usize >= classes) {
            return Err(Error::state("unknown.cost.answers: a class out of range"));
        }
        let [since] = state.counts("unknown.cost.since")?;
        if since >= EVERY as u64 {
            return Err(Error::state("unknown.cost.since out of range"));
        }
        let threshold = state.get::<f64>("unknown.cost.threshold")?;
        let images = rows.as_chunks::<2>().0.iter().zip(answers);
        self.window = images.map(|(&[score, signal], &answer)| Image { score, signal, answer }).collect();
        (self.since, self.threshold) = (since as usize, threshold.first().copied());
        Ok(())
    }
}

/// The score below which about `share` of the known images lie.
fn threshold(window: &VecDeque<Image>, share: f64, tells: bool) -> f64 {
    let plain = || plain_quantile(window.iter().map(|image| image.score).collect(), share * PLAIN);
    if !tells {
        return plain();
    }
    let step = window.len().div_ceil(FIT).max(1);
    let signals: Vec<f32> = window.iter().step_by(step).map(|image| image.signal).collect();
    let mixture = Mixture::fit(&signals);
    if mixture.strangers == 0.0 {
        return plain();
    }
    let signals: Vec<f32> = window.iter().map(|image| image.signal).collect();
    let mut low = vec![0.0; signals.len()];
    mixture.low(&signals, &mut low);
    let (full, none) = EXPLAINED;
    let strangers = mixture.strangers * ((none - explained(window, &low)) / (none - full)).clamp(0.0, 1.0);
    if strangers == 0.0 {
        return plain();
    }
    let weighted = in_order(window, &low, strangers);
    let all = weighted.last().map_or(0.0, |&(_, up_to)| up_to);
    let at = |share: f64| quantile(&weighted, share * all);
    let between = |factor: f64| at(share * (PLAIN + (factor - PLAIN) * strangers));
    let mirrored = 2.0 * at(0.5) - at(1.0 - share);
    between(RAISED).max(mirrored.min(between(MIRRORED)))
}

/// How much of who is in the lower part the answers explain: R², adjusted for the number of classes.
fn explained(window: &VecDeque<Image>, low: &[f32]) -> f64 {
    let classes = window.iter().map(|image| image.answer as usize + 1).max().unwrap_or(0);
    let mut sums = vec![[0.0f64; 2]; classes];
    let mut all = [0.0f64; 3];
    for (image, &low) in window.iter().zip(low) {
        let (low, [n, sum]) = (f64::from(low), &mut sums[image.answer as usize]);
        (*n, *sum) = (*n + 1.0, *sum + low);
        all = [all[0] + 1.0, all[1] + low, all[2] + low * low];
    }
    let [n, sum, squares] = all;
    let seen = sums.iter().filter(|[n, _]| *n > 0.0);
    let (used, within) =
        seen.fold((0.0, squares), |(used, left), [n, sum]| (used + 1.0, left - sum * sum / n));
    let spread = squares - sum * sum / n.max(1.0);
    1.0 - within / spread.max(1e-9) * (n - 1.0) / (n - used).max(1.0)
}

/// The scores in their order, each with how many images up to it count as known.
fn in_order(window: &VecDeque<Image>, low: &[f32], strangers: f64) -> Vec<(f32, f64)> {
    // Whole numbers in the order of the scores, each with its place in the lower half: these are sorted faster than pairs.
    let key = |(place, image): (usize, &Image)| {
        let bits = image.score.to_bits();
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(ordered) << 32 | place as u64
    };
    let mut keys: Vec<u64> = window.iter().enumerate().map(key).collect();
    keys.sort_unstable();
    let places = keys.into_iter().map(|key| key as u32 as usize);
    let mut up_to = 0.0;
    let count = |place: usize| {
        up_to += 1.0 - strangers * f64::from(low[place]);
        (window[place].score, up_to)
    };
    places.map(count).collect()
}

/// [`quantile`] where every score has the same weight; the scores need no order.
fn plain_quantile(mut scores: Vec<f32>, share: f64) -> f64 {
    let Some(last) = scores.len().checked_sub(1) else { return f64::NEG_INFINITY };
    let place = ((share * scores.len() as f64) as usize).min(last);
    f64::from(*scores.select_nth_unstable_by(place, f32::total_cmp).1)
}

/// The score below which so many images count as known.
fn quantile(weighted: &[(f32, f64)], wanted: f64) -> f64 {
    let place = weighted.partition_point(|&(_, up_to)| up_to <= wanted);
    weighted.get(place).or(weighted.last()).map_or(f64::NEG_INFINITY, |&(score, _)| f64::from(score))
}

/// Two normal distributions, the lower one first.
#[derive(Clone, Copy, Debug)]
struct Mixture {
    shares: [f64; 2],
    means: [f64; 2],
    deviations: [f64; 2],
    /// How far the lower part speaks for strangers, in [0, 1].
    strangers: f64,
}

impl Mixture {
    fn fit(signals: &[f32]) -> Self {
        let n = signals.len().max(1) as f64;
        let all = || signals.iter().map(|&x| f64::from(x));
        let mean = all().sum::<f64>() / n;
        let variance = all().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        // Parts do not shrink to single images.
        let least = 0.01 * variance.max(1e-12);
        let mut parted = signals.to_vec();
        let mut quantile = |q: f64| match parted.len() {
            0 => 0.0,
            _ => f64::from(*parted.select_nth_unstable_by(((n - 1.0) * q) as usize, f32::total_cmp).1),
        };
        let mut mixture = Self {
            shares: [0.2, 0.8],
            means: [quantile(0.1), quantile(0.6)],
            deviations: [0.6 * (variance + least).sqrt(); 2],
            strangers: 0.0,
        };
        let mut low = vec![0.0; signals.len()];
        for _ in 0..ROUNDS {
            mixture.low(signals, &mut low);
            let sums = sums_of_parts(signals, &low);
            for (part, [weight, sum, squares]) in sums.into_iter().enumerate() {
                let weight = weight.max(1e-9);
                mixture.shares[part] = weight / n;
                mixture.means[part] = sum / weight;
                let spread = (squares / weight - (sum / weight).powi(2)).max(0.0);
                mixture.deviations[part] = (spread + least).sqrt();
            }
        }
        let pooled = (0.5 * mixture.deviations.iter().map(|d| d * d).sum::<f64>()).sqrt();
        let apart = (mixture.means[1] - mixture.means[0]) / pooled;
        if mixture.shares[0] < MOST_STRANGERS && signals.len() >= EVERY {
            mixture.strangers = ((apart - APART.0) / (APART.1 - APART.0)).clamp(0.0, 1.0);
        }
        mixture
    }

    /// Writes the probability of the lower part for each signal.
    fn low(&self, signals: &[f32], out: &mut [f32]) {
        let [low, high] = [0, 1].map(|part| {
            let log = self.shares[part].max(1e-12).ln() - self.deviations[part].ln();
            (log as f32, self.means[part] as f32, (1.0 / self.deviations[part]) as f32)
        });
        vectorised(
            #[inline(always)]
            || {
                for (out, x) in out.iter_mut().zip(signals) {
                    let (off_low, off_high) = ((x - low.1) * low.2, (x - high.1) * high.2);
                    let ahead = (high.0 - 0.5 * off_high * off_high) - (low.0 - 0.5 * off_low * off_low);
                    *out = 1.0 / (1.0 + exp(ahead));
                }
            },
        );
    }
}

/// Σ w, Σ w x and Σ w x² over the signals x, by how far each belongs to the lower part and to the upper one, in lanes.
fn sums_of_parts(signals: &[f32], low: &[f32]) -> [[f64; 3]; 2] {
    let mut lanes = [[[0.0f64; LANES_F64]; 3]; 2];
    vectorised(
        #[inline(always)]
        || {
            let (xs, x_tail) = signals.as_chunks::<LANES_F64>();
            let (lows, low_tail) = low.as_chunks::<LANES_F64>();
            for (x, low) in xs.iter().zip(lows) {
                add(&mut lanes, x, low, &[1.0; LANES_F64]);
            }
            let (mut x, mut low, mut there) = ([0.0; LANES_F64], [0.0; LANES_F64], [0.0; LANES_F64]);
            for (i, (&x_of, &low_of)) in x_tail.iter().zip(low_tail).enumerate() {
                (x[i], low[i], there[i]) = (x_of, low_of, 1.0);
            }
            add(&mut lanes, &x, &low, &there);
        },
    );
    lanes.map(|part| part.map(|lanes| lanes.iter().sum()))
}

/// Adds some signals to the sums of both parts.
#[inline(always)]
fn add(
    lanes: &mut [[[f64; LANES_F64]; 3]; 2],
    x: &[f32; LANES_F64],
    low: &[f32; LANES_F64],
    there: &[f64; LANES_F64],
) {
    for (part, sums) in lanes.iter_mut().enumerate() {
        for i in 0..LANES_F64 {
            let (x, low) = (f64::from(x[i]), f64::from(low[i]));
            let weight = if part == 0 { low } else { there[i] - low };
            let [first, second] = [weight * x, weight * x * x];
            sums[0][i] += weight;
            sums[1][i] += first;
            sums[2][i] += second;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signal of a known image and of a stranger, as from a normal distribution.
    fn draw(i: usize, mean: f64) -> f64 {
        let uniform =
            |k: usize| ((i * 12 + k) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / u64::MAX as f64;
        (0..12).map(uniform).sum::<f64>() - 6.0 + mean
    }

    #[test]
    fn the_known_pay_what_was_asked_for_with_strangers_and_without() {
        for strangers in [0.0, 0.1, 0.3] {
            let is_stranger = |i: usize| (i as f64 * 0.618_034).fract() < strangers;
            let mut cost = Cost::new(true);
            let (mut known, mut rejected, mut found) = (0, 0, 0);
            for i in 0..6000 {
                let x = draw(i, if is_stranger(i) { -5.0 } else { 0.0 });
                let unknown = cost.threshold().is_some_and(|t| x < t);
                cost.push(x, x, i % 10, 0.05);
                if i < 2000 {
                    continue;
                }
                if is_stranger(i) {
                    found += usize::from(unknown);
                } else {
                    known += 1;
                    rejected += usize::from(unknown);
                }
            }
            let share = rejected as f64 / known as f64;
            assert!((0.03..0.075).contains(&share), "{strangers}: {share}");
            let all = 4000 - known;
            assert!(all == 0 || found as f64 > 0.95 * all as f64, "{strangers}: {found} of {all}");
        }
    }
    #[test]
    fn a_class_of_its_own_is_no_group_of_strangers() {
        // Every sixth image is of class 3, which looks unlike the others.
        let mut cost = Cost::new(true);
        let mut rejected = 0;
        for i in 0..6000 {
            let apart = i % 6 == 3;
            let x = draw(i, if apart { -5.0 } else { 0.0 });
            rejected += usize::from(i >= 2000 && cost.threshold().is_some_and(|t| x < t));
            cost.push(x, x, if apart { 3 } else { i % 3 }, 0.05);
        }
        assert!((0.01..0.07).contains(&(rejected as f64 / 4000.0)), "{rejected} of 4000");
    }
}
