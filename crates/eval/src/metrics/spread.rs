//! How certain a figure is: bootstrap intervals over samples, standard deviation over seeds.

use serde::{Deserialize, Serialize};

use super::calibration::{bin_starts, quantile};
use super::detection::ranked;
use super::{Detection, ECE_BINS, Edges, Scored, mean_recall};
use crate::random::Random;

/// Redrawn streams behind a bootstrap interval.
const REDRAWS: usize = 100;

/// Long streams are redrawn less often, because their intervals are narrow anyway: all redrawn streams together have at
/// most [`REDRAWN_SAMPLES`] samples, but a stream is redrawn at least this often.
const LEAST_REDRAWS: usize = 40;
const REDRAWN_SAMPLES: usize = 8_000_000;

/// A 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// 2.5 % of the redrawn values lie below.
    pub low: f64,
    /// 2.5 % of the redrawn values lie above.
    pub high: f64,
}

/// 95 % intervals of the metrics of a stream, over its samples. The class-wise calibration error is not among them:
/// it would take all probabilities of all samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Intervals {
    pub top1: Interval,
    pub top5: Interval,
    pub class_recall: Interval,
    pub ece: Interval,
    pub ece_right: Interval,
    pub ece_adaptive: Interval,
    pub mce: Interval,
    pub nll: Interval,
    pub brier: Interval,
    pub aurc: Interval,
    /// Top-1 minus zero-shot's on the same samples.
    pub gain: Interval,
    /// Share of samples that zero-shot answered wrong and the method right.
    pub helpful: Interval,
    /// Share of samples that zero-shot answered right and the method wrong.
    pub harmful: Interval,
    /// ECE minus zero-shot's on the same samples.
    pub ece_change: Interval,
    /// NLL minus zero-shot's on the same samples.
    pub nll_change: Interval,
}

/// Bootstrap intervals: the samples drawn again with replacement, both classifiers' answers to each together. Near-copies
/// of one picture are one sample: `shots` are the lengths of such runs, one after another; without any, every answer is
/// drawn for itself.
pub fn bootstrap(adapted: &[Scored], zero_shot: &[Scored], shots: &[usize], seed: u64) -> Intervals {
    let rows = adapted.len();
    if rows == 0 {
        return Intervals::default();
    }
    let shot_of = shots.iter().enumerate().flat_map(|(shot, &len)| std::iter::repeat_n(shot, len));
    let shot_of = shot_of.chain(std::iter::repeat(0));
    let longest = shots.iter().copied().max().unwrap_or(1);
    let mut pairs: Vec<(Scored, Scored, usize)> =
        adapted.iter().zip(zero_shot).zip(shot_of).map(|((a, z), shot)| (*a, *z, shot)).collect();
    pairs.sort_unstable_by(|a, b| a.0.confidence.total_cmp(&b.0.confidence));
    let sorted: Vec<(Scored, bool)> = pairs.iter().map(|(a, z, _)| (*a, z.right)).collect();
    // For each answer of the frozen model: its bin, right − p, its NLL.
    let frozen: Vec<(usize, f64, f64)> = pairs
        .iter()
        .map(|(_, z, _)| {
            let bin = ((z.confidence as f64 * ECE_BINS as f64) as usize).min(ECE_BINS - 1);
            (bin, f64::from(u8::from(z.right)) - z.confidence as f64, z.nll as f64)
        })
        .collect();
    let confidence: Vec<f64> = sorted.iter().map(|s| s.0.confidence as f64).collect();
    let [left, right] = [Edges::Left, Edges::Right].map(|edges| bin_starts(&confidence, ECE_BINS, edges));
    let classes = adapted.iter().map(|s| s.class as usize + 1).max().unwrap_or(0);
    let mut per_class = vec![(0u32, 0u32); classes];
    let shares: Vec<f64> = (1..=rows.max(shots.len() * longest)).map(|seen| 1.0 / seen as f64).collect();
    let mut of_shots = vec![0u16; shots.len()];
    let draw = |random: &mut Random, times: &mut [u16]| {
        if shots.is_empty() {
            (0..rows).for_each(|_| times[random.below(rows)] += 1);
            return;
        }
        of_shots.fill(0);
        (0..shots.len()).for_each(|_| of_shots[random.below(shots.len())] += 1);
        times.iter_mut().zip(&pairs).for_each(|(times, pair)| *times = of_shots[pair.2]);
    };
    let redrawn = redraw(rows, seed, draw, |times| {
        let n = times.iter().map(|&times| usize::from(times)).sum::<usize>().max(1);
        let (mut hits, mut top5, mut nll, mut brier) = (0u32, 0u32, 0.0f64, 0.0f64);
        let (mut helpful, mut harmful) = (0u32, 0u32);
        let (mut gaps, mut frozen_nll) = ([0.0f64; ECE_BINS], 0.0f64);
        per_class.fill((0, 0));
        for (((s, zero_shot_right), (bin, gap, own)), &times) in sorted.iter().zip(&frozen).zip(times) {
            let times = u32::from(times);
            gaps[*bin] += gap * f64::from(times);
            frozen_nll += own * f64::from(times);
            let hit = u32::from(s.right) * times;
            hits += hit;
            top5 += u32::from(s.top5) * times;
            helpful += u32::from(s.right & !zero_shot_right) * times;
            harmful += u32::from(!s.right & *zero_shot_right) * times;
            nll += s.nll as f64 * times as f64;
            brier += s.brier as f64 * times as f64;
            let class = &mut per_class[s.class as usize];
            *class = (class.0 + times, class.1 + hit);
        }
        let sums = Sums::of(&sorted, times);
        let share = |count: u32| count as f64 / n as f64;
        let (ece, mce) = sums.errors(&left);
        [
            share(hits),
            share(top5),
            mean_recall(&per_class),
            ece,
            sums.errors(&right).0,
            sums.adaptive(ECE_BINS),
            mce,
            nll / n as f64,
            brier / n as f64,
            aurc_of(&sorted, times, &shares),
            share(helpful) - share(harmful),
            share(helpful),
            share(harmful),
            ece - gaps.iter().map(|gap| gap.abs()).sum::<f64>() / n as f64,
            (nll - frozen_nll) / n as f64,
        ]
    });
    // In the order of the values above.
    let mut redrawn = redrawn.into_iter();
    let mut next = || redrawn.next().unwrap_or_default();
    Intervals {
        top1: next(),
        top5: next(),
        class_recall: next(),
        ece: next(),
        ece_right: next(),
        ece_adaptive: next(),
        mce: next(),
        nll: next(),
        brier: next(),
        aurc: next(),
        gain: next(),
        helpful: next(),
        harmful: next(),
        ece_change: next(),
        nll_change: next(),
    }
}

/// Redrawn answers in ascending order of their probabilities. Before the first of every [`STRIDE`] of them: how many,
/// and Σ (right − p).
struct Sums<'a> {
    sorted: &'a [(Scored, bool)],
    times: &'a [u16],
    before: Vec<(u32, f64)>,
}

const STRIDE: usize = 64;

impl<'a> Sums<'a> {
    fn of(sorted: &'a [(Scored, bool)], times: &'a [u16]) -> Self {
        let mut sums = Self { sorted, times, before: vec![(0, 0.0)] };
        for start in (0..sorted.len()).step_by(STRIDE) {
            sums.before.push(sums.at(sorted.len().min(start + STRIDE)));
        }
        sums
    }

    /// How many answers come before a place, and their Σ (right − p).
    fn at(&self, place: usize) -> (u32, f64) {
        let block = place.div_ceil(STRIDE).saturating_sub(1);
        let rest = block * STRIDE..place;
        let (mut n, mut gap) = self.before[block];
        for ((s, _), &times) in self.sorted[rest.clone()].iter().zip(&self.times[rest]) {
            n += u32::from(times);
            gap += (f64::from(u8::from(s.right)) - s.confidence as f64) * times as f64;
        }
        (n, gap)
    }

    /// Expected and largest calibration error over bins that begin at these places, the last place being the end.
    fn errors(&self, starts: &[usize]) -> (f64, f64) {
        let (mut sum, mut most) = (0.0, 0.0f64);
        let all = self.at(self.sorted.len()).0;
        let mut low = self.at(starts[0]);
        for &end in &starts[1..] {
            let high = self.at(end);
            let (n, gap) = (high.0 - low.0, (high.1 - low.1).abs());
            sum += gap;
            most = most.max(if n > 0 { gap / n as f64 } else { 0.0 });
            low = high;
        }
        (sum / all as f64, most)
    }

    /// The probability of the answer with this rank.
    fn ranked(&self, rank: usize) -> f64 {
        let block = self.before.partition_point(|b| b.0 as usize <= rank) - 1;
        let mut n = self.before[block].0 as usize;
        let mut place = block * STRIDE;
        while n + self.times[place] as usize <= rank {
            n += self.times[place] as usize;
            place += 1;
        }
        self.sorted[place].0.confidence as f64
    }

    /// Over bins of equal mass, as [`super::adaptive_ece`] has them.
    fn adaptive(&self, bins: usize) -> f64 {
        let all = self.at(self.sorted.len()).0;
        let mut starts = vec![0];
        for bin in 1..bins {
            let edge = quantile(bin as f64 / bins as f64, all as usize, |rank| self.ranked(rank));
            let start = self.sorted.partition_point(|s| (s.0.confidence as f64) < edge);
            starts.push(start.max(starts[bin - 1]));
        }
        starts.push(self.sorted.len());
        self.errors(&starts).0
    }
}

/// [`super::aurc`] of answers in ascending order of their probabilities, each of which counts several times.
/// `shares` are 1, 1/2, 1/3, … as far as the answers go.
fn aurc_of(sorted: &[(Scored, bool)], times: &[u16], shares: &[f64]) -> f64 {
    let (mut sum, mut wrong) = (0.0f64, 0.0f64);
    let mut shares = shares.iter();
    let mut seen = 0.0;
    let mut end = sorted.len();
    for group in sorted.chunk_by(|a, b| a.0.confidence == b.0.confidence).rev() {
        let own = &times[end - group.len()..end];
        end -= group.len();
        let copies: u32 = own.iter().map(|&t| u32::from(t)).sum();
        // Among equal probabilities, every answer counts the share of wrong ones among them.
        let one = match group {
            [(s, _)] => f64::from(u8::from(!s.right)),
            _ => {
                let wrongs = group.iter().zip(own).map(|((s, _), &t)| u32::from(!s.right) * u32::from(t));
                wrongs.sum::<u32>() as f64 / copies.max(1) as f64
            }
        };
        for share in shares.by_ref().take(copies as usize) {
            wrong += one;
            sum += wrong * share;
        }
        seen += f64::from(copies);
    }
    sum / seen.max(1.0)
}

/// 95 % intervals of a [`Detection`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DetectionIntervals {
    pub auroc: Interval,
    pub aupr: Interval,
    pub fpr95: Interval,
}

impl DetectionIntervals {
    /// Known samples and strangers drawn again, each among themselves.
    pub fn of(known: &[f32], strangers: &[f32], seed: u64) -> Self {
        let all = ranked(known, strangers);
        let places = |own: bool| (0..all.len()).filter(|&i| all[i].1 == own).collect::<Vec<_>>();
        let sides = [places(true), places(false)];
        let draw = |random: &mut Random, times: &mut [u16]| {
            for side in &sides {
                side.iter().for_each(|_| times[side[random.below(side.len())]] += 1);
            }
        };
        let [auroc, aupr, fpr95] = redraw(all.len(), seed, draw, |times| {
            let d = Detection::of_ranked(&all, times);
            [d.auroc, d.aupr, d.fpr95]
        });
        Self { auroc, aupr, fpr95 }
    }
}

/// Intervals of values of redrawn samples: `draw` counts how often each of `n` places is drawn, `values` is told.
fn redraw<const K: usize>(
    n: usize,
    seed: u64,
    mut draw: impl FnMut(&mut Random, &mut [u16]),
    mut values: impl FnMut(&[u16]) -> [f64; K],
) -> [Interval; K] {
    let mut random = Random::new(seed);
    let mut times = vec![0u16; n];
    let mut redrawn: [Vec<f64>; K] = std::array::from_fn(|_| Vec::with_capacity(REDRAWS));
    for _ in 0..(REDRAWN_SAMPLES / n.max(1)).clamp(LEAST_REDRAWS, REDRAWS) {
        times.fill(0);
        draw(&mut random, &mut times);
        redrawn.iter_mut().zip(values(&times)).for_each(|(all, value)| all.push(value));
    }
    redrawn.map(|mut values| {
        values.sort_by(f64::total_cmp);
        let at = |q: f64| values[((values.len() - 1) as f64 * q).round() as usize];
        Interval { low: at(0.025), high: at(0.975) }
    })
}

/// Mean and standard deviation over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation (n − 1 in the denominator); 0 for a single value.
    pub sd: f64,
}

impl Spread {
    /// Mean and standard deviation of some values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Self { mean, sd: if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ece, adaptive_ece, aurc};
    use super::*;

    /// Thirty copies of a picture tell as much as one: the interval stays as wide, whatever the number of rows.
    #[test]
    fn copies_of_a_picture_are_drawn_together() {
        let answer = |picture: usize| Scored {
            confidence: 0.3 + 0.1 * (picture % 7) as f32,
            right: picture * 7 % 10 < 6,
            top5: true,
            class: (picture % 3) as u32,
            nll: 0.1 * (picture % 9) as f32,
            brier: 0.5,
        };
        let shown =
            |copies: usize| -> Vec<Scored> { (0..200 * copies).map(|i| answer(i / copies)).collect() };
        let frozen = |copies: usize| -> Vec<Scored> {
            (0..200 * copies).map(|i| Scored { confidence: 0.6, ..answer(i / copies + 3) }).collect()
        };
        let once = bootstrap(&shown(1), &frozen(1), &[1; 200], 1);
        let often = bootstrap(&shown(30), &frozen(30), &[30; 200], 1);
        let near = |a: Interval, b: Interval| (a.low - b.low).abs() < 1e-6 && (a.high - b.high).abs() < 1e-6;
        assert!(near(once.ece_change, often.ece_change) && near(once.top1, often.top1), "{once:?} {often:?}");
        assert!(near(once.nll_change, often.nll_change) && near(once.gain, often.gain));
        let apart = bootstrap(&shown(30), &frozen(30), &[], 1);
        let width = |i: Interval| i.high - i.low;
        assert!(
            width(apart.nll_change) < 0.4 * width(often.nll_change),
            "drawn one by one they look like many"
        );
    }

    #[test]
    fn an_interval_holds_its_mean_and_narrows_with_samples() {
        let scored = |n: usize| -> Vec<Scored> {
            let one = |i: usize| Scored {
                confidence: 0.7,
                right: i % 10 < 7,
                top5: true,
                class: (i % 2) as u32,
                nll: 1.0,
                brier: 0.5,
            };
            (0..n).map(one).collect()
        };
        let of = |n: usize| bootstrap(&scored(n), &scored(n), &[], 1);
        let (few, many) = (of(100), of(10_000));
        assert!(few.top1.low <= 0.7 && 0.7 <= few.top1.high);
        let width = |i: Interval| i.high - i.low;
        assert!(width(many.top1) < 0.3 * width(few.top1));
        assert!((width(many.top1) - 2.0 * 1.96 * (0.21f64 / 1e4).sqrt()).abs() < 5e-3);
        let one = Interval { low: 1.0, high: 1.0 };
        let none = Interval::default();
        assert_eq!((many.nll, many.top5, many.gain, many.harmful), (one, one, none, none));
        // the same answers twice: no redrawn stream tells them apart
        assert!(many.ece_change.high.abs() < 1e-12 && many.nll_change == none);
        assert!(many.ece.low < 0.005 && many.ece == many.ece_adaptive && many.ece == many.mce);
        // one tie: the risk is the share of wrong answers at every coverage
        assert!((many.aurc.low + many.top1.high - 1.0).abs() < 1e-9);
        assert!(many.class_recall.low < 0.7 && 0.7 < many.class_recall.high);
        assert_eq!(of(100), few, "the seed decides");
    }

    #[test]
    fn a_redrawn_metric_is_the_metric_of_the_redrawn() {
        let mut random = Random::new(5);
        let scored: Vec<Scored> = (0..200)
            .map(|_| Scored {
                confidence: random.below(40) as f32 / 39.0,
                right: random.below(2) == 0,
                top5: true,
                class: 0,
                nll: 1.0,
                brier: 0.5,
            })
            .collect();
        let mut sorted: Vec<(Scored, bool)> = scored.iter().map(|s| (*s, true)).collect();
        sorted.sort_by(|a, b| a.0.confidence.total_cmp(&b.0.confidence));
        let times: Vec<u16> = (0..200).map(|_| random.below(4) as u16).collect();
        let drawn: Vec<(f64, bool)> = (sorted.iter().zip(&times))
            .flat_map(|(s, &t)| std::iter::repeat_n((s.0.confidence as f64, s.0.right), t as usize))
            .collect();
        let confidence: Vec<f64> = sorted.iter().map(|s| s.0.confidence as f64).collect();
        let sums = Sums::of(&sorted, &times);
        for edges in [Edges::Left, Edges::Right] {
            let mut ece = Ece::with_edges(ECE_BINS, edges);
            drawn.iter().for_each(|a| ece.push(a.0, a.1));
            let (value, most) = sums.errors(&bin_starts(&confidence, ECE_BINS, edges));
            assert!((value - ece.value()).abs() < 1e-12 && (most - ece.max()).abs() < 1e-12);
        }
        assert!((sums.adaptive(ECE_BINS) - adaptive_ece(&drawn, ECE_BINS)).abs() < 1e-12);
        let shares: Vec<f64> = (1..=drawn.len()).map(|seen| 1.0 / seen as f64).collect();
        assert!((aurc_of(&sorted, &times, &shares) - aurc(&drawn)).abs() < 1e-12);
    }

    #[test]
    fn intervals_of_a_detection_hold_it() {
        let mut random = Random::new(3);
        let mut scores =
            |mean: f64, n: usize| -> Vec<f32> { (0..n).map(|_| (mean + random.normal()) as f32).collect() };
        let (known, strangers) = (scores(1.0, 400), scores(0.0, 300));
        let d = Detection::of(&known, &strangers).unwrap();
        let i = DetectionIntervals::of(&known, &strangers, 1);
        for (value, interval) in [(d.auroc, i.auroc), (d.aupr, i.aupr), (d.fpr95, i.fpr95)] {
            assert!(interval.low < value && value < interval.high, "{value} {interval:?}");
            assert!(interval.high - interval.low < 0.3, "{interval:?}");
        }
    }

    #[test]
    fn spread_over_seeds() {
        assert_eq!(Spread::of([1.0, 3.0]), Spread { mean: 2.0, sd: 2f64.sqrt() });
        assert_eq!(Spread::of([1.0]), Spread { mean: 1.0, sd: 0.0 });
    }
}
