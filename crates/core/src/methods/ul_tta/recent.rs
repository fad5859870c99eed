//! The last answered samples, each as it was scored before it taught: what the one-dimensional fits run over.
//!
//! A row keeps its candidate classes and lumps the rest into one entry: so many classes, with so much mass.
//! Memory does not grow with the number of classes. Rows are padded to whole lanes with entries of no mass.

use crate::kernels::{LANES, exp, max, max_lanes, sum_lanes, vectorised};
use crate::{Error, Result, State};

/// Logit of an entry without mass: far below any real one, and its square is still finite.
const NOTHING: f32 = -1e4;

/// A sample as the fits see it. Logits are relative to the best text logit; the entry after the last candidate
/// is the lump of the other classes, and from there on rows are padded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    pub id: u64,
    pub classes: &'a [u32],
    /// Frozen logits; of the lump, the log of its mass.
    pub text: &'a [f32],
    /// What the prototypes add, beyond what they add to the lumped classes.
    pub image: &'a [f32],
    /// log(C π_c) at the time; with `text` it gives the lump's mass under the prior.
    pub prior: &'a [f32],
    /// The sample's features, where they are kept.
    pub features: &'a [f32],
    /// Everything about a row that is one number.
    pub one: One,
}

/// The single numbers of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct One {
    /// Weight of `image` in the answer.
    pub weight: f32,
    /// How many classes are lumped together.
    pub rest: f32,
    /// log Σ exp(text) over them.
    pub rest_text: f32,
    /// log Σ exp(text + prior) over them.
    pub rest_prior: f32,
    /// log mean exp(prior) over them.
    pub rest_ratio: f32,
    /// Whether the row may be used by label-free fits, has image scores, was admitted (1 or 0).
    pub teaches: f32,
    pub has_image: f32,
    pub admitted: f32,
}

const ONES: usize = 8;

impl One {
    fn to_array(self) -> [f32; ONES] {
        [
            self.weight,
            self.rest,
            self.rest_text,
            self.rest_prior,
            self.rest_ratio,
            self.teaches,
            self.has_image,
            self.admitted,
        ]
    }

    fn from_array(a: [f32; ONES]) -> Self {
        let [weight, rest, rest_text, rest_prior, rest_ratio, teaches, has_image, admitted] = a;
        Self { weight, rest, rest_text, rest_prior, rest_ratio, teaches, has_image, admitted }
    }

    /// log of the number of lumped classes.
    #[inline(always)]
    pub(super) fn log_rest(&self) -> f32 {
        if self.rest > 1.0 { self.rest.ln() } else { 0.0 }
    }
}

/// A ring of samples.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    capacity: usize,
    /// Most candidates of a row, and entries kept for it: candidates, lump and padding.
    width: usize,
    stride: usize,
    dim: usize,
    len: usize,
    next: usize,
    ids: Vec<u64>,
    counts: Vec<u32>,
    classes: Vec<u32>,
    text: Vec<f32>,
    image: Vec<f32>,
    prior: Vec<f32>,
    features: Vec<f32>,
    ones: Vec<One>,
}

impl Recent {
    /// `dim` is the length of the features kept per sample; 0 keeps none.
    pub(super) fn new(capacity: usize, width: usize, dim: usize) -> Self {
        let stride = (width + 1).next_multiple_of(LANES);
        Self {
            capacity,
            width,
            stride,
            dim,
            len: 0,
            next: 0,
            ids: vec![0; capacity],
            counts: vec![0; capacity],
            classes: vec![0; capacity * width],
            text: vec![0.0; capacity * stride],
            image: vec![0.0; capacity * stride],
            prior: vec![0.0; capacity * stride],
            features: vec![0.0; capacity * dim],
            ones: vec![One::default(); capacity],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes in a sample; slices hold candidates, what follows them is ignored.
    pub(super) fn push(&mut self, sample: Sample<'_>) {
        let slot = self.next;
        let n = sample.classes.len();
        self.ids[slot] = sample.id;
        self.counts[slot] = n as u32;
        self.classes[slot * self.width..][..n].copy_from_slice(sample.classes);
        let row = slot * self.stride..slot * self.stride + (n + 1).next_multiple_of(LANES);
        let (lump_text, lump_prior) = if sample.one.rest > 0.0 {
            (sample.one.rest_text, sample.one.rest_prior - sample.one.rest_text)
        } else {
            (NOTHING, NOTHING)
        };
        let fill = |into: &mut [f32], from: &[f32], lump: f32, pad: f32| {
            into[..n].copy_from_slice(&from[..n]);
            into[n] = lump;
            into[n + 1..].fill(pad);
        };
        fill(&mut self.text[row.clone()], sample.text, lump_text, NOTHING);
        fill(&mut self.image[row.clone()], sample.image, 0.0, 0.0);
        fill(&mut self.prior[row], sample.prior, lump_prior, NOTHING);
        self.features[slot * self.dim..][..self.dim].copy_from_slice(&sample.features[..self.dim]);
        self.ones[slot] = sample.one;
        self.next = (slot + 1) % self.capacity;
        self.len = self.capacity.min(self.len + 1);
    }

    fn slot(&self, age: usize) -> usize {
        (self.next + self.capacity - 1 - age) % self.capacity
    }

    #[inline(always)]
    fn at(&self, slot: usize) -> Sample<'_> {
        let n = self.counts[slot] as usize;
        let row = slot * self.stride..slot * self.stride + (n + 1).next_multiple_of(LANES);
        Sample {
            id: self.ids[slot],
            classes: &self.classes[slot * self.width..][..n],
            text: &self.text[row.clone()],
            image: &self.image[row.clone()],
            prior: &self.prior[row],
            features: &self.features[slot * self.dim..][..self.dim],
            one: self.ones[slot],
        }
    }

    /// The last `n` samples, newest first.
    pub(super) fn newest(&self, n: usize) -> impl Iterator<Item = Sample<'_>> {
        (0..n.min(self.len)).map(|age| self.at(self.slot(age)))
    }

    /// Whether ids grow, as they do where samples enter on arrival.
    pub(super) fn is_ordered(&self) -> bool {
        let ids = || self.newest(self.len).map(|s| s.id);
        ids().zip(ids().skip(1)).all(|(young, old)| young > old)
    }

    /// A sample by its id. Ids must grow: it is a binary search by age.
    pub(super) fn find(&self, id: u64) -> Option<Sample<'_>> {
        let (mut young, mut old) = (0, self.len);
        while young < old {
            let age = (young + old) / 2;
            let slot = self.slot(age);
            match self.ids[slot].cmp(&id) {
                std::cmp::Ordering::Equal => return Some(self.at(slot)),
                std::cmp::Ordering::Greater => young = age + 1,
                std::cmp::Ordering::Less => old = age,
            }
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        self.capacity * (self.width * 4 + self.stride * 12 + 12 + ONES * 4 + self.dim * 4)
    }

    pub(super) fn save(&self, prefix: &str, state: &mut State) {
        // Oldest first, and only what is used.
        let slots: Vec<usize> = (0..self.len).rev().map(|age| self.slot(age)).collect();
        let candidates = |values: fn(&Sample<'_>) -> Vec<f32>| {
            slots.iter().flat_map(|&s| values(&self.at(s))).collect::<Vec<f32>>()
        };
        state.put(format!("{prefix}ids"), &slots.iter().map(|&s| self.ids[s]).collect::<Vec<_>>());
        state.put(format!("{prefix}counts"), &slots.iter().map(|&s| self.counts[s]).collect::<Vec<_>>());
        let classes: Vec<u32> = slots.iter().flat_map(|&s| self.at(s).classes.to_vec()).collect();
        state.put(format!("{prefix}classes"), &classes);
        state.put(format!("{prefix}text"), &candidates(|s| s.text[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}image"), &candidates(|s| s.image[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}prior"), &candidates(|s| s.prior[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}ones"), &candidates(|s| s.one.to_array().to_vec()));
        if self.dim > 0 {
            state.put(format!("{prefix}features"), &candidates(|s| s.features.to_vec()));
        }
    }

    pub(super) fn load(&mut self, prefix: &str, state: &State, n_classes: usize) -> Result<()> {
        let name = |part: &str| format!("{prefix}{part}");
        let ids = state.get::<u64>(&name("ids"))?;
        let counts = state.get_n::<u32>(&name("counts"), ids.len())?;
        let fits =
            ids.len() <= self.capacity && counts.iter().all(|&c| (1..=self.width).contains(&(c as usize)));
        if !fits {
            return Err(Error::state(format!("{prefix}counts: rows too many or too wide")));
        }
        let total = counts.iter().map(|&c| c as usize).sum();
        let classes = state.get_n::<u32>(&name("classes"), total)?;
        if classes.iter().any(|&c| c as usize >= n_classes) {
            return Err(Error::state(format!("{prefix}classes: a class out of range")));
        }
        // Products of these stay finite.
        let numbers = |part: &str, len: usize| state.within::<f32>(&name(part), len, -1e12..=1e12);
        let text = numbers("text", total)?;
        let image = numbers("image", total)?;
        let prior = numbers("prior", total)?;
        let ones = numbers("ones", ids.len() * ONES)?;
        let features =
            if self.dim > 0 { state.get_n::<f32>(&name("features"), ids.len() * self.dim)? } else { &[] };
        let mut fresh = Self::new(self.capacity, self.width, self.dim);
        let mut start = 0;
        for (i, &id) in ids.iter().enumerate() {
            let row = start..start + counts[i] as usize;
            start = row.end;
            fresh.push(Sample {
                id,
                classes: &classes[row.clone()],
                text: &text[row.clone()],
                image: &image[row.clone()],
                prior: &prior[row],
                features: &features[i * self.dim..][..self.dim],
                one: One::from_array(ones.as_chunks().0[i]),
            });
        }
        *self = fresh;
        Ok(())
    }
}

/// Logits t·x + b of some rows, lump and padding included, and E\[x\], E\[b\], E\[log p\] of each under
/// softmax(text + prior): the frozen posterior under the prior of the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    x: Vec<f32>,
    b: Vec<f32>,
    /// End of each row, and its number of candidates: the entries before the lump.
    rows: Vec<(usize, usize)>,
    targets: Vec<[f64; 3]>,
}

/// One row of [`Lines`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub candidates: usize,
}

/// What softmax(t·x + b) says about x.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub mean: f64,
    pub variance: f64,
    best: f64,
    sum: f64,
}

impl Moments {
    /// log Σ exp(t·x + b).
    pub(super) fn log_sum(&self) -> f64 {
        self.best + self.sum.ln()
    }
}

impl Lines {
    /// The lines of some samples; `fill` writes x and b of one.
    pub(super) fn new<'a>(
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

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Line<'_>> {
        let mut start = 0;
        self.rows.iter().map(move |&(end, candidates)| {
            let line = Line { x: &self.x[start..end], b: &self.b[start..end], candidates };
            start = end;
            line
        })
    }

    pub(super) fn targets(&self) -> &[[f64; 3]] {
        &self.targets
    }

    /// The t at which softmax(t·x + b) comes closest, in cross-entropy over the rows, to the targets.
    ///
    /// The slope is E_p\[x\] − E_target\[x\], the curvature Var_p\[x\]: a damped Newton search in one dimension.
    pub(super) fn matching(
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
    pub(super) fn moments(&self, t: f32) -> Moments {
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
        let sum = sum_lanes(s0) as f64;
        let (first, second) = (sum_lanes(s1) as f64 / sum, sum_lanes(s2) as f64 / sum);
        Moments {
            mean: first + origin as f64,
            variance: (second - first * first).max(0.0),
            best: best as f64,
            sum,
        }
    }

    /// The largest x of a candidate.
    #[inline(always)]
    pub(super) fn best_candidate(&self) -> f32 {
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
    let [sum, x, b, y] = sums.map(|lanes| sum_lanes(lanes) as f64);
    [x / sum, b / sum, y / sum - sum.ln()]
}

/// Damped Newton steps for a one-dimensional convex objective, whose mean slope and curvature `at` gives.
///
/// Stops early once a step changes `t` by less than a thousandth.
pub(super) fn newton(
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
