//! The threshold that rejects a share of the *known* images, on a stream that may hold strangers: no labels tell which are
//! which.
//!
//! A mixture of two normal distributions is fitted to a signal in which strangers lie apart. Where the lower part is well
//! apart, an image counts as known as far as it does not belong to that part, and the threshold is a quantile of the
//! scores so weighted. Where the parts are not apart, nothing speaks for strangers, and every image counts. Nor does it where the
//! answers tell who is in the lower part: those are known classes that look unlike the others (drawings among photos), unless they
//! fit their classes much worse, too.
//!
//! Scores of earlier images are made anew with the means of now, as that of the next image will be, and early ones, of which the
//! means knew little, are forgotten first.
//!
//! Strangers that stay among the known hold that quantile down, but they do not reach the upper end of the scores. So where
//! something speaks for strangers the upper quantile, mirrored at the median, may raise the threshold.

use std::collections::VecDeque;

use super::cone::Scale;
use crate::kernels::{exp, vectorised};
use crate::scores::LANES_F64;
use crate::{Error, Result, State};

/// Recent images that the threshold is taken over, at most; before that the later half of them.
const WINDOW: usize = 2048;

/// Nothing is unknown before this many images.
const FIRST: usize = 32;

/// Fewer images do not tell strangers apart.
const ENOUGH: usize = 128;

/// The threshold is set anew after this many images; before [`ENOUGH`] after every [`FIRST`], and in the first thousand after every
/// 128th.
const EVERY: usize = 256;

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

/// The same is said whatever the answers explain if the lower part fits its classes worse by so many pooled standard deviations: in
/// part, and fully.
const FITS_WORSE: (f64, f64) = (1.25, 1.75);

/// The threshold lies at this multiple of the share asked for where nothing speaks for strangers: images drift, and more fall
/// below an old threshold. This and the two below were chosen on the packs of `docs/estimates.md`.
const PLAIN: f64 = 0.8;

/// The multiple where everything speaks for strangers.
const RAISED: f64 = 1.0;

/// The mirrored quantile (as far below the median as the surest share lies above it) may raise it up to this multiple.
const MIRRORED: f64 = 1.5;

/// An image in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    /// What its score is the sum of, before both are standardised. Strangers lie apart in the second.
    pub parts: [f32; 2],
    /// The frozen model's answer.
    pub answer: u32,
}

/// Recent images, and the threshold they give.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    /// Newest last.
    window: VecDeque<Image>,
    /// Images since the window began, and since the threshold was set.
    seen: u64,
    since: usize,
    threshold: Option<f64>,
    /// Whether strangers lie apart in the second part, if there are some.
    tells: bool,
    /// Whether the images in the window have that part.
    sided: bool,
}

impl Cost {
    pub(super) fn new(tells: bool) -> Self {
        Self { window: VecDeque::new(), seen: 0, since: 0, threshold: None, tells, sided: false }
    }

    /// The threshold for scores with both their parts, or with the first alone.
    pub(super) fn threshold(&self, sided: bool) -> Option<f64> {
        self.threshold.filter(|_| sided == self.sided)
    }

    /// Takes in an image. The window begins anew with the first that has both parts.
    pub(super) fn push(&mut self, image: Image, sided: bool, scales: [Scale; 2], share: f64) {
        if sided != self.sided {
            *self = Self { sided, ..Self::new(self.tells) };
        }
        self.seen += 1;
        self.since += 1;
        self.window.push_back(image);
        let later_half = (self.seen / 2).clamp(ENOUGH as u64, WINDOW as u64) as usize;
        while self.window.len() > later_half {
            self.window.pop_front();
        }
        let every = match self.seen {
            0..=128 => FIRST,
            129..=1024 => ENOUGH,
            _ => EVERY,
        };
        if self.since >= every {
            self.since = 0;
            self.threshold = Some(threshold(&self.window, scales, share, self.tells && sided));
        }
    }

    pub(super) fn save(&self, state: &mut State) {
        let parts: Vec<[f32; 2]> = self.window.iter().map(|image| image.parts).collect();
        state.put("unknown.cost.parts", parts.as_flattened());
        let answers: Vec<u32> = self.window.iter().map(|image| image.answer).collect();
        state.put("unknown.cost.answers", &answers);
        state.put("unknown.cost.counts", &[self.seen, self.since as u64, u64::from(self.sided)]);
        state.put("unknown.cost.threshold", &self.threshold.into_iter().collect::<Vec<f64>>());
    }

    /// Continues from a state; one of an earlier build, without the parts of the scores, begins anew.
    pub(super) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        if !state.has("unknown.cost.parts") {
            return Ok(());
        }
        let parts = state.get::<f32>("unknown.cost.parts")?;
        if !parts.len().is_multiple_of(2) || parts.len() > 2 * WINDOW {
            return Err(Error::state("unknown.cost.parts: expected pairs, and no more than are kept"));
        }
        let answers = state.get_n::<u32>("unknown.cost.answers", parts.len() / 2)?;
        if answers.iter().any(|&answer| answer as usize >= classes) {
            return Err(Error::state("unknown.cost.answers: a class out of range"));
        }
        let [seen, since, sided] = state.counts("unknown.cost.counts")?;
        if since >= EVERY as u64 || seen < answers.len() as u64 || sided > 1 {
            return Err(Error::state("unknown.cost.counts out of range"));
        }
        let threshold = state.get::<f64>("unknown.cost.threshold")?;
        let images = parts.as_chunks::<2>().0.iter().zip(answers);
        self.window = images.map(|(&parts, &answer)| Image { parts, answer }).collect();
        (self.seen, self.since, self.sided) = (seen, since as usize, sided == 1);
        self.threshold = threshold.first().copied();
        Ok(())
    }
}

/// The score below which about `share` of the known images lie.
fn threshold(window: &VecDeque<Image>, scales: [Scale; 2], share: f64, tells: bool) -> f64 {
    let parts = |image: &Image| [0, 1].map(|part| scales[part].of(f64::from(image.parts[part])));
    let score = |image: &Image| parts(image).iter().sum::<f64>() as f32;
    let scores: Vec<f32> = window.iter().map(score).collect();
    if !tells {
        return plain_quantile(scores, share * PLAIN);
    }
    let signals: Vec<f32> = window.iter().map(|image| parts(image)[1] as f32).collect();
    let step = window.len().div_ceil(FIT).max(1);
    let few: Vec<f32> = signals.iter().copied().step_by(step).collect();
    let mixture = Mixture::fit(&few);
    if mixture.strangers == 0.0 {
        return plain_quantile(scores, share * PLAIN);
    }
    let mut low = vec![0.0; signals.len()];
    mixture.low(&signals, &mut low);
    let strangers = mixture.strangers * no_class_of_its_own(window, &low);
    if strangers == 0.0 {
        return plain_quantile(scores, share * PLAIN);
    }
    let weighted = in_order(&scores, &low, strangers);
    let all = weighted.last().map_or(0.0, |&(_, up_to)| up_to);
    let at = |share: f64| quantile(&weighted, share * all);
    let between = |factor: f64| at(share * (PLAIN + (factor - PLAIN) * strangers));
    let mirrored = 2.0 * at(0.5) - at(1.0 - share);
    between(RAISED).max(mirrored.min(between(MIRRORED)))
}

/// How far the lower part can be strangers, in [0, 1]: as far as the answers do not explain who is in it, or it fits worse.
fn no_class_of_its_own(window: &VecDeque<Image>, low: &[f32]) -> f64 {
    let ramp = |x: f64, (none, full): (f64, f64)| ((x - none) / (full - none)).clamp(0.0, 1.0);
    let unexplained = ramp(-explained(window, low), (-EXPLAINED.1, -EXPLAINED.0));
    unexplained.max(ramp(fits_worse(window, low), FITS_WORSE))
}

/// How much worse the lower part fits its classes than the upper one, in pooled standard deviations.
fn fits_worse(window: &VecDeque<Image>, low: &[f32]) -> f64 {
    let mut sums = [[0.0f64; 3]; 2];
    for (image, &low) in window.iter().zip(low) {
        let (fit, low) = (f64::from(image.parts[0]), f64::from(low));
        for ([weight, sum, squares], share) in sums.iter_mut().zip([low, 1.0 - low]) {
            *weight += share;
            *sum += share * fit;
            *squares += share * fit * fit;
        }
    }
    let [low, high] = sums.map(|[weight, sum, squares]| {
        let mean = sum / weight.max(1e-9);
        (mean, (squares / weight.max(1e-9) - mean * mean).max(0.0))
    });
    (high.0 - low.0) / (0.5 * (low.1 + high.1) + 1e-12).sqrt()
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
fn in_order(scores: &[f32], low: &[f32], strangers: f64) -> Vec<(f32, f64)> {
    // Whole numbers in the order of the scores, each with its place in the lower half: these are sorted faster than pairs.
    let key = |(place, score): (usize, &f32)| {
        let bits = score.to_bits();
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(ordered) << 32 | place as u64
    };
    let mut keys: Vec<u64> = scores.iter().enumerate().map(key).collect();
    keys.sort_unstable();
    let places = keys.into_iter().map(|key| key as u32 as usize);
    let mut up_to = 0.0;
    let count = |place: usize| {
        up_to += 1.0 - strangers * f64::from(low[place]);
        (scores[place], up_to)
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
        if mixture.shares[0] < MOST_STRANGERS && signals.len() >= ENOUGH {
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

    /// The signal of a known image and of a stranger, as from a normal distribution: one is independent of the others.
    fn draw(i: usize, mean: f64) -> f64 {
        let uniform = |k: usize| {
            let mut z = ((i * 12 + k) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ (z >> 31)) as f64 / u64::MAX as f64
        };
        (0..12).map(uniform).sum::<f64>() - 6.0 + mean
    }

    /// A judge of images whose parts are as they come.
    struct Judge(Cost);

    impl Judge {
        fn new() -> Self {
            Self(Cost::new(true))
        }

        /// Whether an image is rejected, which then enters the window.
        fn rejects(&mut self, parts: [f64; 2], answer: usize) -> bool {
            let unknown = self.0.threshold(true).is_some_and(|t| parts[0] + parts[1] < t);
            let image = Image { parts: parts.map(|part| part as f32), answer: answer as u32 };
            self.0.push(image, true, [Scale::PLAIN; 2], 0.05);
            unknown
        }
    }

    #[test]
    fn the_known_pay_what_was_asked_for_with_strangers_and_without() {
        for strangers in [0.0, 0.1, 0.3] {
            let is_stranger = |i: usize| (i as f64 * 0.618_034).fract() < strangers;
            let mut judge = Judge::new();
            let (mut known, mut rejected, mut found) = (0, 0, 0);
            for i in 0..6000 {
                let x = draw(i, if is_stranger(i) { -5.0 } else { 0.0 });
                let unknown = judge.rejects([0.0, x], i % 10);
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

    /// One image in six is of class 3 and looks unlike the others; its fit is so much worse. How many of them and of the others are
    /// rejected among the last 4000.
    fn with_a_class_apart(worse: f64) -> [usize; 2] {
        let mut judge = Judge::new();
        let mut rejected = [0; 2];
        for i in 0..6000 {
            let apart = (i as f64 * 0.618_034).fract() < 1.0 / 6.0;
            let side = draw(i, if apart { -5.0 } else { 0.0 });
            let fit = draw(i + 6000, if apart { -worse } else { 0.0 });
            let unknown = judge.rejects([fit, side], if apart { 3 } else { i % 3 });
            rejected[usize::from(apart)] += usize::from(unknown && i >= 2000);
        }
        rejected
    }

    #[test]
    fn a_class_of_its_own_is_no_group_of_strangers_unless_it_fits_worse() {
        let [others, apart] = with_a_class_apart(0.0);
        assert!((40..280).contains(&(others + apart)), "{others} and {apart} of 4000");
        let [others, apart] = with_a_class_apart(3.0);
        assert!(apart > 640, "{apart} of 667 that the answers tell apart, and that fit no class");
        assert!((60..280).contains(&others), "{others} of 3333");
    }

    #[test]
    fn scores_of_one_part_say_nothing_of_those_with_both() {
        let mut cost = Cost::new(true);
        let image = |i: usize, side: f64| Image { parts: [draw(i, 0.0), side].map(|x| x as f32), answer: 0 };
        (0..100).for_each(|i| cost.push(image(i, 0.0), false, [Scale::PLAIN; 2], 0.05));
        assert!(cost.threshold(false).is_some() && cost.threshold(true).is_none());
        (100..131).for_each(|i| cost.push(image(i, 3.0), true, [Scale::PLAIN; 2], 0.05));
        assert!(cost.threshold(true).is_none(), "31 with both");
        cost.push(image(131, 3.0), true, [Scale::PLAIN; 2], 0.05);
        assert!(cost.threshold(true).is_some_and(|t| (0.0..3.0).contains(&t)), "{:?}", cost.threshold(true));
    }

    #[test]
    fn earlier_images_are_judged_as_the_next_one_will_be() {
        let mut cost = Cost::new(true);
        let image = |i: usize| Image { parts: [draw(i, 10.0) as f32, 0.0], answer: 0 };
        (0..127).for_each(|i| cost.push(image(i), true, [Scale::PLAIN; 2], 0.05));
        let centred = Scale { mean: 10.0, unit: 0.1 };
        cost.push(image(127), true, [centred, Scale::PLAIN], 0.05);
        assert!(
            cost.threshold(true).is_some_and(|t| (-0.3..-0.05).contains(&t)),
            "{:?}",
            cost.threshold(true)
        );
    }
}
