//! The last answered samples, each as it was scored before it taught: what the one-dimensional fits run over.
//!
//! A row keeps its candidate classes and lumps the rest: so many classes, with so much mass. Memory does not
//! grow with the number of classes.

use crate::kernels::{LANES, exp, max, sum_lanes, vectorised};
use crate::{Error, Result, State};

/// A row's candidates and its rest, as seen by the fits. Logits are relative to the best text logit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    pub id: u64,
    pub classes: &'a [u32],
    /// Frozen logits.
    pub text: &'a [f32],
    /// What the prototypes add: a score that the answer weighs with `weight`.
    pub image: &'a [f32],
    /// log(C π_c) at the time.
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
    /// How many classes are lumped together. Their image score is 0: `image` counts from there.
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
}

/// A ring of samples.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    capacity: usize,
    width: usize,
    len: usize,
    next: usize,
    ids: Vec<u64>,
    counts: Vec<u32>,
    classes: Vec<u32>,
    text: Vec<f32>,
    image: Vec<f32>,
    prior: Vec<f32>,
    features: Vec<f32>,
    dim: usize,
    ones: Vec<One>,
}

impl Recent {
    /// `dim` is the length of the features kept per sample; 0 keeps none.
    pub(super) fn new(capacity: usize, width: usize, dim: usize) -> Self {
        Self {
            capacity,
            width,
            len: 0,
            next: 0,
            ids: vec![0; capacity],
            counts: vec![0; capacity],
            classes: vec![0; capacity * width],
            text: vec![0.0; capacity * width],
            image: vec![0.0; capacity * width],
            prior: vec![0.0; capacity * width],
            features: vec![0.0; capacity * dim],
            dim,
            ones: vec![One::default(); capacity],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, sample: Sample<'_>) {
        let slot = self.next;
        let n = sample.classes.len();
        let range = slot * self.width..slot * self.width + n;
        self.ids[slot] = sample.id;
        self.counts[slot] = n as u32;
        self.classes[range.clone()].copy_from_slice(sample.classes);
        self.text[range.clone()].copy_from_slice(sample.text);
        self.image[range.clone()].copy_from_slice(sample.image);
        self.prior[range].copy_from_slice(sample.prior);
        self.features[slot * self.dim..][..self.dim].copy_from_slice(&sample.features[..self.dim]);
        self.ones[slot] = sample.one;
        self.next = (slot + 1) % self.capacity;
        self.len = self.capacity.min(self.len + 1);
    }

    fn slot(&self, age: usize) -> usize {
        (self.next + self.capacity - 1 - age) % self.capacity
    }

    fn at(&self, slot: usize) -> Sample<'_> {
        let range = slot * self.width..slot * self.width + self.counts[slot] as usize;
        Sample {
            id: self.ids[slot],
            classes: &self.classes[range.clone()],
            text: &self.text[range.clone()],
            image: &self.image[range.clone()],
            prior: &self.prior[range],
            features: &self.features[slot * self.dim..][..self.dim],
            one: self.ones[slot],
        }
    }

    /// The last `n` samples, newest first.
    pub(super) fn newest(&self, n: usize) -> impl Iterator<Item = Sample<'_>> {
        (0..n.min(self.len)).map(|age| self.at(self.slot(age)))
    }

    /// A sample by its id. Ids grow, so it is a binary search by age.
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
        self.capacity * (self.width * 16 + 12 + ONES * 4 + self.dim * 4)
    }

    pub(super) fn save(&self, prefix: &str, state: &mut State) {
        // Oldest first, and only what is used.
        let slots: Vec<usize> = (0..self.len).rev().map(|age| self.slot(age)).collect();
        let flat = |f: &dyn Fn(usize) -> Vec<f32>| slots.iter().flat_map(|&s| f(s)).collect::<Vec<f32>>();
        state.put(format!("{prefix}ids"), &slots.iter().map(|&s| self.ids[s]).collect::<Vec<_>>());
        state.put(format!("{prefix}counts"), &slots.iter().map(|&s| self.counts[s]).collect::<Vec<_>>());
        let classes: Vec<u32> = slots.iter().flat_map(|&s| self.at(s).classes.to_vec()).collect();
        state.put(format!("{prefix}classes"), &classes);
        state.put(format!("{prefix}text"), &flat(&|s| self.at(s).text.to_vec()));
        state.put(format!("{prefix}image"), &flat(&|s| self.at(s).image.to_vec()));
        state.put(format!("{prefix}prior"), &flat(&|s| self.at(s).prior.to_vec()));
        state.put(format!("{prefix}ones"), &flat(&|s| self.ones[s].to_array().to_vec()));
        if self.dim > 0 {
            state.put(format!("{prefix}features"), &flat(&|s| self.at(s).features.to_vec()));
        }
    }

    pub(super) fn load(&mut self, prefix: &str, state: &State, n_classes: usize) -> Result<()> {
        let name = |part: &str| format!("{prefix}{part}");
        let ids = state.get::<u64>(&name("ids"))?;
        let counts = state.get_n::<u32>(&name("counts"), ids.len())?;
        let total: u64 = counts.iter().map(|&c| u64::from(c)).sum();
        let fits = ids.len() <= self.capacity
            && counts.iter().all(|&c| c as usize <= self.width)
            && ids.windows(2).all(|w| w[0] < w[1]);
        if !fits {
            return Err(Error::state(format!("{prefix}: rows out of order, too many or too wide")));
        }
        let total = total as usize;
        let classes = state.get_n::<u32>(&name("classes"), total)?;
        if classes.iter().any(|&c| c as usize >= n_classes) {
            return Err(Error::state(format!("{prefix}classes: a class out of range")));
        }
        let text = state.get_n::<f32>(&name("text"), total)?;
        let image = state.get_n::<f32>(&name("image"), total)?;
        let prior = state.get_n::<f32>(&name("prior"), total)?;
        let ones = state.get_n::<f32>(&name("ones"), ids.len() * ONES)?;
        let features =
            if self.dim > 0 { state.get_n::<f32>(&name("features"), ids.len() * self.dim)? } else { &[] };
        let mut fresh = Self::new(self.capacity, self.width, self.dim);
        let mut start = 0;
        for (i, &id) in ids.iter().enumerate() {
            let range = start..start + counts[i] as usize;
            start = range.end;
            fresh.push(Sample {
                id,
                classes: &classes[range.clone()],
                text: &text[range.clone()],
                image: &image[range.clone()],
                prior: &prior[range],
                features: &features[i * self.dim..][..self.dim],
                one: One::from_array(ones.as_chunks().0[i]),
            });
        }
        *self = fresh;
        Ok(())
    }
}

/// What a softmax over t·x + b says about x.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub mean: f64,
    pub variance: f64,
    /// log Σ exp(t·x + b).
    pub log_sum: f64,
    /// The largest t·x + b.
    pub best: f64,
}

/// Logits t·x + b of a row's candidates, and of the `rest` classes that share one value each of x and b.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub x: Vec<f32>,
    pub b: Vec<f32>,
    pub rest: f32,
    pub rest_x: f32,
    pub rest_b: f32,
    e: Vec<f32>,
}

impl Line {
    pub(super) fn clear(&mut self) {
        self.x.clear();
        self.b.clear();
    }

    /// Moments of x under softmax(t·x + b).
    #[inline(always)]
    pub(super) fn moments(&mut self, t: f32) -> Moments {
        let rest_logit = t * self.rest_x + self.rest_b;
        self.e.clear();
        self.e.extend(self.x.iter().zip(&self.b).map(|(&x, &b)| t * x + b));
        let mut best = max(&self.e);
        if self.rest > 0.0 && rest_logit > best {
            best = rest_logit;
        }
        for v in &mut self.e {
            *v = exp(*v - best);
        }
        // Relative to one of the values, so that the variance does not cancel.
        let origin = self.x.first().copied().unwrap_or(0.0);
        let (mut s0, mut s1, mut s2) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        let (es, e_tail) = self.e.as_chunks::<LANES>();
        let (xs, x_tail) = self.x.as_chunks::<LANES>();
        for (e, x) in es.iter().zip(xs) {
            for i in 0..LANES {
                let d = x[i] - origin;
                s0[i] += e[i];
                s1[i] += e[i] * d;
                s2[i] += e[i] * d * d;
            }
        }
        for (i, (&e, &x)) in e_tail.iter().zip(x_tail).enumerate() {
            let d = x - origin;
            s0[i] += e;
            s1[i] += e * d;
            s2[i] += e * d * d;
        }
        let (mut sum, mut first, mut second) =
            (sum_lanes(s0) as f64, sum_lanes(s1) as f64, sum_lanes(s2) as f64);
        if self.rest > 0.0 {
            let d = (self.rest_x - origin) as f64;
            let e = self.rest as f64 * exp(rest_logit - best) as f64;
            sum += e;
            first += e * d;
            second += e * d * d;
        }
        let mean = first / sum;
        Moments {
            mean: mean + origin as f64,
            variance: (second / sum - mean * mean).max(0.0),
            log_sum: best as f64 + sum.ln(),
            best: best as f64,
        }
    }
}

/// A target posterior softmax(y), where the rest has total log-mass `rest_y`.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub y: Vec<f32>,
    pub rest_y: f32,
    e: Vec<f32>,
}

impl Target {
    /// E\[x\], E\[b\] and E\[log p\] under the target, for a line's x and b; a lumped class has its share of log p.
    #[inline(always)]
    pub(super) fn expectations(&mut self, line: &Line) -> [f64; 3] {
        let mut best = max(&self.y);
        if line.rest > 0.0 && self.rest_y > best {
            best = self.rest_y;
        }
        self.e.clear();
        self.e.extend(self.y.iter().map(|&v| exp(v - best)));
        let mut lanes = [[0.0f32; LANES]; 4];
        for i in 0..self.e.len() {
            let (e, lane) = (self.e[i], i % LANES);
            lanes[0][lane] += e;
            lanes[1][lane] += e * line.x[i];
            lanes[2][lane] += e * line.b[i];
            lanes[3][lane] += e * (self.y[i] - best);
        }
        let [mut sum, mut x, mut b, mut y] = lanes.map(|l| sum_lanes(l) as f64);
        if line.rest > 0.0 {
            let e = exp(self.rest_y - best) as f64;
            sum += e;
            x += e * line.rest_x as f64;
            b += e * line.rest_b as f64;
            y += e * ((self.rest_y - best) as f64 - (line.rest as f64).ln());
        }
        [x / sum, b / sum, y / sum - sum.ln()]
    }
}

/// Damped Newton steps for a one-dimensional convex objective, whose mean slope and curvature `at` gives.
///
/// Stops early once a step changes `t` by less than a ten-thousandth.
pub(super) fn newton(
    mut t: f64,
    bounds: (f64, f64),
    relative_step: f64,
    absolute_step: f64,
    iterations: usize,
    mut at: impl FnMut(f64) -> (f64, f64),
) -> f64 {
    for _ in 0..iterations {
        let (slope, curvature) = vectorised(
            #[inline(always)]
            || at(t),
        );
        let step = (slope / (curvature + 1e-9)).clamp(-relative_step * t, relative_step * t + absolute_step);
        let next = (t - step).clamp(bounds.0, bounds.1);
        let change = (next - t).abs();
        t = next;
        if change <= 1e-4 * t.abs() {
            break;
        }
    }
    t
}
