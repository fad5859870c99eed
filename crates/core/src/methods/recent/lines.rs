//! Logits of remembered samples as lines t·x + b in one temperature t, and the search for the best t.

use super::Sample;
use crate::kernels::{LANES, exp, max, max_lanes, sum_lanes, vectorised};

/// The lines of some samples, lump and padding included. The *target* of a sample is the frozen posterior under the
/// prior of the time, softmax(text + prior); kept are E\[x\], E\[b\] and E\[log p\] under it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    x: Vec<f32>,
    b: Vec<f32>,
    /// For each row, the end of its entries and its number of candidates (the lump comes after these).
    rows: Vec<(usize, usize)>,
    targets: Vec<[f64; 3]>,
}

/// One row of [`Lines`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub candidates: usize,
}

/// What softmax(t·x + b) says about x.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub mean: f64,
    pub variance: f64,
    best: f64,
    sum: f64,
}

impl Moments {
    /// log Σ exp(t·x + b).
    pub(crate) fn log_sum(&self) -> f64 {
        self.best + self.sum.ln()
    }
}

impl Lines {
    /// The lines of some samples; `fill` writes x and b of one.
    pub(crate) fn new<'a>(
        samples: impl Iterator<Item = Sample<'a>>,
        fill: impl Fn(&Sample<'_>, &mut [f32], &mut [f32]),
    ) -> Self {
        let mut lines = Self::default();
        let mut add = |s: Sample<'_>| {
            let start = lines.x.len();
            let end = start + s.text.len();
            lines.x.resize(end, 0.0);
            lines.b.resize(end, 0.0);
            fill(&s, &mut lines.x[start..], &mut lines.b[start..]);
            lines.rows.push((end, s.classes.len()));
            let target = under_target(&s, &lines.x[start..], &lines.b[start..]);
            lines.targets.push(target);
        };
        let samples: Vec<Sample<'a>> = samples.collect();
        vectorised(
            #[inline(always)]
            || samples.iter().for_each(|s| add(*s)),
        );
        lines
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Line<'_>> {
        let mut start = 0;
        self.rows.iter().map(move |&(end, candidates)| {
            let line = Line { x: &self.x[start..end], b: &self.b[start..end], candidates };
            start = end;
            line
        })
    }

    /// The t at which softmax(t·x + b) comes closest, in cross-entropy over the rows, to the targets.
    ///
    /// The slope is E_p\[x\] − E_target\[x\], the curvature Var_p\[x\]: a damped Newton search in one dimension.
    pub(crate) fn matching(
        &self,
        start: f64,
        bounds: (f64, f64),
        relative_step: f64,
        absolute_step: f64,
    ) -> f64 {
        let n = self.len() as f64;
        let wanted: f64 = self.targets.iter().map(|t| t[0]).sum();
        newton(
            start,
            bounds,
            relative_step,
            absolute_step,
            #[inline(always)]
            |t| {
                let (mut mean, mut variance) = (0.0, 0.0);
                for line in self.iter() {
                    let m = line.moments(t as f32);
                    mean += m.mean;
                    variance += m.variance;
                }
                ((mean - wanted) / n, variance / n)
            },
        )
    }
}

impl Line<'_> {
    #[inline(always)]
    pub(crate) fn moments(&self, t: f32) -> Moments {
        let (xs, bs) = (self.x.as_chunks::<LANES>().0, self.b.as_chunks::<LANES>().0);
        let mut tops = [f32::NEG_INFINITY; LANES];
        for (x, b) in xs.iter().zip(bs) {
            for i in 0..LANES {
                let l = t * x[i] + b[i];
                tops[i] = if l > tops[i] { l } else { tops[i] };
            }
        }
        let best = max_lanes(tops);
        // Relative to one of the values, so that the variance does not cancel.
        let origin = self.x[0];
        let (mut s0, mut s1, mut s2) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        for (x, b) in xs.iter().zip(bs) {
            for i in 0..LANES {
                let e = exp(t * x[i] + b[i] - best);
                let d = x[i] - origin;
                s0[i] += e;
                s1[i] += e * d;
                s2[i] += e * d * d;
            }
        }
        let sum = sum_lanes(s0, []) as f64;
        let (first, second) = (sum_lanes(s1, []) as f64 / sum, sum_lanes(s2, []) as f64 / sum);
        Moments {
            mean: first + origin as f64,
            variance: (second - first * first).max(0.0),
            best: best as f64,
            sum,
        }
    }

    /// The largest x of a candidate.
    #[inline(always)]
    pub(crate) fn best_candidate(&self) -> f32 {
        max(&self.x[..self.candidates])
    }
}

#[inline(always)]
fn under_target(sample: &Sample<'_>, x: &[f32], b: &[f32]) -> [f64; 3] {
    let (texts, priors) = (sample.text.as_chunks::<LANES>().0, sample.prior.as_chunks::<LANES>().0);
    let (xs, bs) = (x.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
    let mut tops = [f32::NEG_INFINITY; LANES];
    for (t, p) in texts.iter().zip(priors) {
        for i in 0..LANES {
            let y = t[i] + p[i];
            tops[i] = if y > tops[i] { y } else { tops[i] };
        }
    }
    let best = max_lanes(tops);
    let mut sums = [[0.0f32; LANES]; 4];
    for (((t, p), x), b) in texts.iter().zip(priors).zip(xs).zip(bs) {
        for i in 0..LANES {
            let y = t[i] + p[i] - best;
            let e = exp(y);
            sums[0][i] += e;
            sums[1][i] += e * x[i];
            sums[2][i] += e * b[i];
            sums[3][i] += e * y;
        }
    }
    let [sum, x, b, y] = sums.map(|lanes| sum_lanes(lanes, []) as f64);
    [x / sum, b / sum, y / sum - sum.ln()]
}

/// Damped Newton steps for a one-dimensional convex objective, whose mean slope and curvature `at` gives.
///
/// Stops early once a step changes `t` by less than a thousandth.
pub(crate) fn newton(
    mut t: f64,
    bounds: (f64, f64),
    relative_step: f64,
    absolute_step: f64,
    mut at: impl FnMut(f64) -> (f64, f64),
) -> f64 {
    const ITERATIONS: usize = 10;
    for _ in 0..ITERATIONS {
        let (slope, curvature) = vectorised(
            #[inline(always)]
            || at(t),
        );
        let step = (slope / (curvature + 1e-9)).clamp(-relative_step * t, relative_step * t + absolute_step);
        let next = (t - step).clamp(bounds.0, bounds.1);
        let change = (next - t).abs();
        t = next;
        if change <= 1e-3 * t.abs() {
            break;
        }
    }
    t
}
