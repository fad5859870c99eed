//! Two methods on the same samples: the difference in top-1 and its paired bootstrap.
//!
//! Redrawing samples with replacement changes only how often those samples are drawn on which the two disagree. Their
//! number in a redrawn stream is binomial, and so is how many of them speak for the first method: a redraw is two
//! binomial draws, whatever the length of the stream. Near-copies of a picture are one sample: where a stream is made
//! of shots, whole shots are redrawn, with one binomial draw for each size of the difference on a shot.
//!
//! Seeds and protocols order the same samples of a pack anew and add none. Their redraws are averaged rank by rank, as
//! if they rose and fell together, which makes intervals rather too wide than too narrow. Packs are redrawn on their own.

use std::collections::{BTreeMap, BTreeSet};

use super::overview::Groups;
use crate::protocol::Protocol;
use crate::random::Random;
use crate::summary::{Right, Run};

/// How often samples are drawn again.
const REDRAWS: usize = 1000;
/// Binomial draws of a larger variance are normal ones, rounded.
const LARGE: f64 = 25.0;

/// The mean difference in top-1, with its 95 % interval and two-sided p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    pub p: f64,
}

impl Difference {
    /// Whether the difference can be chance, at 5 %.
    pub fn is_chance(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }
}

/// The difference of the first method to the second over some runs on the same streams; `None` if a run did not keep
/// its answers.
pub(super) fn difference<'a>(pairs: impl IntoIterator<Item = (&'a Run, &'a Run)>) -> Option<Difference> {
    let mut random = Random::new(17);
    let mut packs: BTreeMap<&str, (usize, Vec<f64>)> = BTreeMap::new();
    let (mut mean, mut n) = (0.0, 0);
    for (a, b) in pairs {
        let (right, others) = (a.right.as_ref()?, b.right.as_ref()?);
        let (own, redrawn) = paired(right, others, &a.summary.protocol, &mut random)?;
        mean += own;
        n += 1;
        let pack = packs.entry(&a.summary.dataset).or_insert_with(|| (0, vec![0.0; REDRAWS]));
        pack.0 += 1;
        pack.1.iter_mut().zip(redrawn).for_each(|(sum, value)| *sum += value);
    }
    let mut all = vec![0.0; REDRAWS];
    for (_, mut pack) in packs.into_values() {
        random.shuffle(&mut pack);
        all.iter_mut().zip(pack).for_each(|(sum, value)| *sum += value / f64::from(n));
    }
    if n == 0 {
        return None;
    }
    all.sort_by(f64::total_cmp);
    let at = |q: f64| all[((REDRAWS - 1) as f64 * q).round() as usize];
    let share = |side: &dyn Fn(f64) -> bool| all.iter().filter(|v| side(**v)).count() as f64 / REDRAWS as f64;
    let p = 2.0 * share(&|v| v <= 0.0).min(share(&|v| v >= 0.0));
    let p = p.clamp(1.0 / REDRAWS as f64, 1.0);
    Some(Difference { mean: mean / f64::from(n), low: at(0.025), high: at(0.975), p })
}

/// The difference of two runs on the same stream, and those of redrawn streams in ascending order.
fn paired(a: &Right, b: &Right, protocol: &str, random: &mut Random) -> Option<(f64, Vec<f64>)> {
    let (n, shot) = (a.len().max(1) as u64, shot(protocol));
    let differ = a.against(b, shot)?;
    let more: i64 = differ.iter().map(|(more, shots)| more * *shots as i64).sum();
    Some((more as f64 / n as f64, redraw(&differ, n, shot as u64, random)))
}

/// Samples in a row that are near-copies of one picture; 1 without shots.
fn shot(protocol: &str) -> usize {
    let shots = protocol.parse::<Protocol>().ok().and_then(|protocol| protocol.shots);
    shots.map_or(1, |shots| shots.copies.max(1))
}

/// Differences of redrawn streams, in ascending order: `differ` has how many shots differ by how much, the stream
/// `n` samples in shots of `shot`.
fn redraw(differ: &BTreeMap<i64, u64>, n: u64, shot: u64, random: &mut Random) -> Vec<f64> {
    let shots = n.div_ceil(shot);
    let all: u64 = differ.values().sum();
    let one = |random: &mut Random| {
        let (mut drawn, mut left, mut sum) = (binomial(shots, all as f64 / shots as f64, random), all, 0);
        for (more, count) in differ.iter().rev() {
            let own = binomial(drawn, *count as f64 / left as f64, random);
            sum += more * own as i64;
            (drawn, left) = (drawn - own, left - count);
        }
        sum as f64 / n as f64
    };
    let mut all: Vec<f64> = (0..REDRAWS).map(|_| one(random)).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// How many of `n` trials succeed.
fn binomial(n: u64, p: f64, random: &mut Random) -> u64 {
    if n == 0 || p <= 0.0 {
        return 0;
    }
    if p > 0.5 {
        return n - binomial(n, 1.0 - p, random);
    }
    let variance = n as f64 * p * (1.0 - p);
    if variance > LARGE {
        let value = n as f64 * p + variance.sqrt() * random.normal();
        return value.round().clamp(0.0, n as f64) as u64;
    }
    // The trials until the next success are geometric.
    let (mut trials, mut hits) = (0.0, 0);
    loop {
        trials += ((1.0 - random.uniform()).ln() / (1.0 - p).ln()).floor() + 1.0;
        if trials > n as f64 || hits == n {
            return hits;
        }
        hits += 1;
    }
}

/// Methods whose difference from the best of their group on a dataset and protocol can be chance:
/// `(protocol, dataset, method)`.
pub(super) fn ties(runs: &[Run], groups: &Groups) -> BTreeSet<(String, String, String)> {
    let mut streams: BTreeMap<(&str, &str, usize), BTreeMap<&str, Vec<&Run>>> = BTreeMap::new();
    for run in runs {
        let s = &run.summary;
        let group = groups.get(&s.method).map_or(0, |group| group.0);
        streams.entry((&s.protocol, &s.dataset, group)).or_default().entry(&s.method).or_default().push(run);
    }
    let mut found = BTreeSet::new();
    for ((protocol, dataset, _), methods) in streams {
        let mean =
            |runs: &[&Run]| runs.iter().map(|r| r.summary.quality.top1).sum::<f64>() / runs.len() as f64;
        let Some((best, top)) = methods.iter().max_by(|a, b| mean(a.1).total_cmp(&mean(b.1))) else {
            continue;
        };
        for (method, runs) in methods.iter().filter(|(method, _)| *method != best) {
            let pairs = same_streams(runs, top);
            if difference(pairs).is_some_and(|difference| difference.is_chance()) {
                found.insert((protocol.to_string(), dataset.to_string(), method.to_string()));
            }
        }
    }
    found
}

/// Pairs of runs on the same stream.
pub(super) fn same_streams<'a>(a: &[&'a Run], b: &[&'a Run]) -> Vec<(&'a Run, &'a Run)> {
    let key = |r: &Run| (r.summary.protocol.clone(), r.summary.dataset.clone(), r.summary.seed);
    let others: BTreeMap<_, &Run> = b.iter().map(|r| (key(r), *r)).collect();
    a.iter().filter_map(|r| others.get(&key(r)).map(|other| (*r, *other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Interval, Scored, bootstrap};

    #[test]
    fn drawing_counts_is_drawing_samples() {
        // 400 samples, 40 of which only the first has right, 20 only the second.
        let answer =
            |right: bool| Scored { confidence: 0.5, right, top5: true, class: 0, nll: 1.0, brier: 0.5 };
        let first: Vec<Scored> = (0..400).map(|i| answer(i < 240)).collect();
        let second: Vec<Scored> = (0..400).map(|i| answer((40..260).contains(&i))).collect();
        let Interval { low, high } = bootstrap(&first, &second, &[], 3).gain;
        let redrawn = redraw(&[(1, 40), (-1, 20)].into(), 400, 1, &mut Random::new(5));
        let own = (redrawn[25], redrawn[974]);
        assert!((own.0 - low).abs() < 0.008 && (own.1 - high).abs() < 0.008, "{own:?} {low} {high}");
    }

    /// Thirty copies of a picture tell as much as one: a picture's difference is 30 samples, and its chance the same.
    #[test]
    fn copies_of_a_picture_are_drawn_together() {
        let of = |copies: usize, right: fn(usize) -> bool| {
            Right::of((0..300 * copies).map(|i| right(i / copies)).collect::<Vec<_>>().into_iter())
        };
        let redrawn = |copies: usize, protocol: &str| {
            let (first, second) = (of(copies, |p| p < 180), of(copies, |p| (30..200).contains(&p)));
            paired(&first, &second, protocol, &mut Random::new(5)).unwrap()
        };
        let (mean, once) = redrawn(1, "iid");
        let (same, often) = redrawn(30, "iid+shots:30");
        assert!((mean - 10.0 / 300.0).abs() < 1e-12 && (mean - same).abs() < 1e-12);
        assert!(once.iter().zip(&often).all(|(a, b)| (a - b).abs() < 1e-12), "{once:?} {often:?}");
        let width = |redrawn: &[f64]| redrawn[974] - redrawn[25];
        let (_, apart) = redrawn(30, "iid");
        assert!(width(&apart) < 0.4 * width(&often), "drawn one by one they look like many");
        assert!(often[25] < 0.0 && apart[25] > 0.0, "and chance looks like a difference");
    }

    #[test]
    fn binomial_draws_have_their_mean_and_variance() {
        let mut random = Random::new(1);
        for (n, p) in [(10, 0.3), (1000, 0.002), (50, 0.98), (4000, 0.2), (7, 1.0), (9, 0.0)] {
            let draws: Vec<f64> = (0..20_000).map(|_| binomial(n, p, &mut random) as f64).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let (expected, spread) = (n as f64 * p, n as f64 * p * (1.0 - p));
            assert!((mean - expected).abs() < 0.03 * spread.sqrt() + 1e-9, "{n} {p}: {mean}");
            assert!((variance - spread).abs() <= 0.06 * spread + 1e-9, "{n} {p}: {variance}");
        }
    }
}
