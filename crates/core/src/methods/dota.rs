//! DOTA: a running Gaussian per class; its pooled covariance scores beside the frozen logits.
//!
//! Han et al., *DOTA: Distributional Test-Time Adaptation of Vision-Language Models*, NeurIPS 2025, arXiv 2409.19375,
//! with its released `dota.py`. Every class starts with n_c = 1, Σ_c = σ I and μ_c = 0.001 in every coordinate;
//! Λ = I/σ. For a sample z with logits ℓ and p = softmax(ℓ), answered before it teaches:
//!
//! ```text
//! g_c = ⟨z, Λμ_c⟩ − ½ μ_cᵀΛμ_c,   λ = min(ρ mean(n), η),   answer ℓ + λ g
//! Σ_c ← (n_c Σ_c + p_c (z − μ_c)(z − μ_c)ᵀ) / (n_c + p_c)
//! μ_c ← (n_c μ_c + p_c z) / (n_c + p_c),   n_c ← n_c + p_c
//! Λ = ((1 − ε) mean_c Σ_c + ε I)⁻¹
//! ```
//!
//! With V kept views, z and ℓ are their means, every view teaches with its own p, and λ = min(ρ mean(n)/V, η).
//!
//! The released code's quirk, `flat_start`: means start at 0.001 in every coordinate, since November 2025;
//! `flat_start = false` starts them at the text rows, as before. A class that was not visited scores g ≈ 0, a visited one
//! g > 0: only η bounds what it loses by that.
//!
//! Departures: σ = 0.002, ε = 1e-4, η = 0.3, ρ = 0.02 everywhere (the publication chooses η and ρ, and twice ε, per
//! dataset); classes with p_c < 1e-4 are not taught; Λ may lag behind by the share `lag` of the samples so far (an
//! inversion after each would be most of the cost; `lag = 0` is as published), while means never do; Σ_c is f32.
//!
//! Memory: a triangle of d (d+1)/2 numbers for each class that was taught, 0.5 GB for 1000 classes of 512 dimensions.

use serde::{Deserialize, Serialize};

use super::gaussian::{Discriminant, Precision, due};
use super::memory::check_bytes;
use super::views::confident_views;
use super::{math, triangle};
use crate::adapter::{
    Adapter, Batch, Card, ClassDrift, Grouping, Growth, Observed, Prediction, Readout, Vitals,
};
use crate::config::in_range;
use crate::kernels::accumulate;
use crate::scores::softmax_f64;
use crate::{Error, Head, Result, Scores, State};

/// Smaller probabilities teach nothing.
const NEGLIGIBLE: f64 = 1e-4;

/// Rows that may wait to enter the covariances, per class: a pass over a covariance costs as much as some rows.
const MOST_PENDING: usize = 16;

/// Columns of the covariances that are added up at a time: they stay in the first cache.
const COLUMNS: usize = 8;

/// Every coordinate of a mean at the start.
const FLAT: f64 = 1e-3;

/// Settings of DOTA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DotaConfig {
    /// Variance that every class starts with (σ).
    pub sigma: f64,
    /// Share of the unit matrix in the pooled covariance (ε).
    pub epsilon: f64,
    /// Largest weight of the Gaussian term (η).
    pub eta: f64,
    /// How fast its weight grows with the samples per class (ρ).
    pub rho: f64,
    /// Whether means start at 0.001 in every coordinate, as released; else at the text rows.
    pub flat_start: bool,
    /// Share of the samples by which the covariance may lag; 0 is as published.
    pub lag: f64,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
    /// Bytes that the covariances may take; a head that would need more is refused.
    pub max_bytes: u64,
}

impl Default for DotaConfig {
    fn default() -> Self {
        Self {
            sigma: 0.002,
            epsilon: 1e-4,
            eta: 0.3,
            rho: 0.02,
            flat_start: true,
            lag: 1.0 / 16.0,
            view_share: 0.1,
            max_bytes: 4 << 30,
        }
    }
}

impl DotaConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Dota> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.dota.{k}"), v, lo..=hi);
        range("sigma", self.sigma, 1e-9, 1e6)?;
        range("epsilon", self.epsilon, 0.0, 1.0)?;
        range("eta", self.eta, 0.0, 1e6)?;
        range("rho", self.rho, 0.0, 1e6)?;
        range("lag", self.lag, 0.0, 1.0)?;
        range("view_share", self.view_share, 0.0, 1.0)?;
        let (classes, dim) = (head.n_classes(), head.dim());
        check_bytes(
            "method.dota.max_bytes",
            self.max_bytes,
            bytes(classes, dim, 0),
            &format!("{classes} classes of {dim} dimensions"),
        )?;
        let means = if self.flat_start { vec![FLAT; classes * dim] } else { math::widen(head.prototypes()) };
        let precision = Precision::diagonal(dim, self.sigma, 1.0);
        Ok(Dota {
            counts: vec![1.0; classes],
            gaussian: precision.discriminant(&means),
            precision,
            means,
            sums: vec![None; classes],
            pending: Vec::new(),
            pending_class: Vec::new(),
            seen: 0,
            inverted_at: 0,
            head: head.clone(),
            config: self.clone(),
        })
    }
}

/// The covariances, the rows that wait (twice while they are added up), the mean of all and its factor, means and slopes.
fn bytes(classes: usize, dim: usize, _samples: u64) -> u64 {
    let (classes, dim) = (classes as u64, dim as u64);
    let (triangle, waiting) = (dim * (dim + 1) / 2, MOST_PENDING as u64 * classes);
    4 * (classes * triangle + waiting * (2 * dim + 1)) + 16 * (dim * dim + classes * (dim + 1))
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "dota",
    summary: "a running Gaussian per class with pooled covariance beside zero-shot",
    paper: "Han et al., DOTA: Distributional Test-Time Adaptation of Vision-Language Models, NeurIPS 2025, arXiv 2409.19375",
    // As published, nothing lags: scores, a covariance per class, a factorisation and C solutions for every sample.
    operations: Some(|c, d| 2.0 * c * d + 5.0 * c * d * d + 2.0 / 3.0 * d * d * d),
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    tuned: true,
    growth: Growth::Squares,
    bytes: Some(bytes),
    answer_keys: &["eta", "rho", "max_bytes"],
    reads_views: true,
    ..Card::PLAIN
};

/// DOTA.
#[derive(Clone, Debug)]
pub(crate) struct Dota {
    config: DotaConfig,
    head: Head,
    /// n.
    counts: Vec<f64>,
    /// μ, one row per class.
    means: Vec<f64>,
    /// n_c Σ_c without the rows that wait, a packed triangle for each class that was taught; the others are at σ I.
    sums: Vec<Option<Vec<f32>>>,
    /// √p_c (z − μ_c) of the rows that wait, and their classes.
    pending: Vec<f32>,
    pending_class: Vec<u32>,
    /// Λ, as of the last inversion.
    precision: Precision,
    gaussian: Discriminant,
    /// Samples that taught, in all and at the last inversion.
    seen: u64,
    inverted_at: u64,
}

impl Dota {
    /// λ for a sample of `views` kept views.
    fn weight(&self, views: usize) -> f64 {
        let mean = self.counts.iter().sum::<f64>() / self.counts.len() as f64;
        (self.config.rho * mean / views as f64).min(self.config.eta)
    }

    fn scores(&self, batch: &Batch<'_>, row: usize, out: &mut [f32]) {
        let views = confident_views(batch, row, self.config.view_share);
        let scale = 1.0 / views.len() as f32;
        let mean = |of: &dyn Fn(usize) -> Vec<f32>| {
            let mut sum = of(0);
            (1..views.len()).for_each(|v| sum.iter_mut().zip(of(v)).for_each(|(s, x)| *s += x));
            sum.iter_mut().for_each(|s| *s *= scale);
            sum
        };
        let (z, logits) = (mean(&|v| views[v].feature.to_vec()), mean(&|v| views[v].logits.to_vec()));
        let (gaussian, weight) = (self.gaussian.scores(&z), self.weight(views.len()));
        for ((out, g), text) in out.iter_mut().zip(gaussian).zip(logits) {
            *out = (text as f64 + weight * g) as f32;
        }
    }

    fn accumulate(&mut self, batch: &Batch<'_>, row: usize) {
        let dim = self.head.dim();
        let views = confident_views(batch, row, self.config.view_share);
        // What each view teaches, (view, class, p). Every view is seen from the mean before the sample.
        let mut taught: Vec<(usize, usize, f64)> = Vec::new();
        for (v, view) in views.iter().enumerate() {
            let mut probs = math::widen(view.logits);
            softmax_f64(&mut probs);
            for (class, p) in probs.into_iter().enumerate().filter(|(_, p)| *p >= NEGLIGIBLE) {
                let root = p.sqrt();
                let mean = &self.means[class * dim..][..dim];
                self.pending
                    .extend(view.feature.iter().zip(mean).map(|(&z, m)| (root * (z as f64 - m)) as f32));
                self.pending_class.push(class as u32);
                taught.push((v, class, p));
            }
        }
        self.seen += 1;
        let inverts = due(self.seen, self.inverted_at, self.config.lag);
        let rows: Vec<f64> = views.iter().flat_map(|view| math::widen(view.feature)).collect();
        let solved = (!inverts).then(|| {
            let mut solved = rows.clone();
            self.precision.apply(&mut solved);
            solved
        });
        for (view, class, p) in taught {
            let (n, at) = (self.counts[class], view * dim..(view + 1) * dim);
            let mean = &mut self.means[class * dim..][..dim];
            math::blend(mean, (n, p), &rows[at.clone()]);
            self.counts[class] = n + p;
            if let Some(solved) = &solved {
                self.gaussian.blend(class, (n, p), &solved[at], mean);
            }
        }
        if inverts {
            self.invert();
        }
        if self.pending_class.len() >= MOST_PENDING * self.counts.len() {
            self.fold();
        }
    }

    /// The rows that wait enter the covariances of their classes.
    fn fold(&mut self) {
        let dim = self.head.dim();
        let mut of_class: Vec<(u32, usize)> = self.pending_class.iter().copied().zip(0..).collect();
        of_class.sort_unstable();
        let mut rows = Vec::new();
        for group in of_class.chunk_by(|a, b| a.0 == b.0) {
            rows.clear();
            group.iter().for_each(|&(_, i)| rows.extend_from_slice(&self.pending[i * dim..][..dim]));
            let (sigma, len) = (self.config.sigma as f32, triangle::len(dim));
            let sum = self.sums[group[0].0 as usize].get_or_insert_with(|| {
                let mut start = vec![0.0; len];
                (0..dim).for_each(|i| start[triangle::column(dim, i).start] = sigma);
                start
            });
            triangle::outer_products(&rows, dim, |column, product| {
                sum[triangle::column(dim, column)].iter_mut().zip(product).for_each(|(s, v)| *s += v);
            });
        }
        self.pending.clear();
        self.pending_class.clear();
    }

    /// mean_c Σ_c, the lower triangle.
    fn pooled(&self) -> Vec<f64> {
        let (classes, dim) = (self.counts.len(), self.head.dim());
        let weight = |class: usize| 1.0 / (classes as f64 * self.counts[class]);
        let mut pooled = vec![0.0; dim * dim];
        // σ I, where it is not within a sum.
        let start: f64 = (0..classes).filter(|&c| self.sums[c].is_none()).map(weight).sum();
        (0..dim).for_each(|i| pooled[i * dim + i] = start * self.config.sigma);
        for first in (0..dim).step_by(COLUMNS) {
            let sums = self.sums.iter().enumerate().filter_map(|(class, sum)| Some((class, sum.as_ref()?)));
            for (class, sum) in sums {
                for column in first..(first + COLUMNS).min(dim) {
                    let into = &mut pooled[column * dim + column..(column + 1) * dim];
                    accumulate(into, weight(class), &sum[triangle::column(dim, column)]);
                }
            }
        }
        let mut waiting = self.pending.clone();
        for (row, &class) in waiting.chunks_mut(dim).zip(&self.pending_class) {
            let root = weight(class as usize).sqrt() as f32;
            row.iter_mut().for_each(|v| *v *= root);
        }
        triangle::outer_products(&waiting, dim, |column, product| {
            accumulate(&mut pooled[column * dim + column..(column + 1) * dim], 1.0, product);
        });
        pooled
    }

    fn invert(&mut self) {
        let (dim, epsilon) = (self.head.dim(), self.config.epsilon);
        let mut matrix = self.pooled();
        matrix.iter_mut().for_each(|v| *v *= 1.0 - epsilon);
        (0..dim).for_each(|i| matrix[i * dim + i] += epsilon);
        self.precision = Precision::of(matrix, dim, 1.0);
        self.gaussian = self.precision.discriminant(&self.means);
        self.inverted_at = self.seen;
    }
}

impl Adapter for Dota {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        (0..batch.rows()).for_each(|row| self.scores(batch, row, scores.row_mut(row)));
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let admitted: Vec<bool> = (0..batch.rows()).map(|row| batch.may_learn(row)).collect();
        (0..batch.rows()).filter(|&row| admitted[row]).for_each(|row| self.accumulate(batch, row));
        Observed { admitted }
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        let taught: Vec<u32> =
            (0..self.sums.len() as u32).filter(|&c| self.sums[c as usize].is_some()).collect();
        let sums: Vec<f32> = self.sums.iter().flatten().flatten().copied().collect();
        state.put("seen", &[self.seen, self.inverted_at]);
        state.put("counts", &self.counts);
        state.put("means", &self.means);
        state.put("taught", &taught);
        state.put("sums", &sums);
        state.put("factor", self.precision.factor());
        state.put("slopes", self.gaussian.slopes());
        state.put("pending", &self.pending);
        state.put("pending.class", &self.pending_class);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let (classes, dim) = (self.counts.len(), self.head.dim());
        let [seen, inverted_at] = state.counts("seen")?;
        if inverted_at > seen {
            return Err(Error::state("seen: inverted after the last sample"));
        }
        let counts = state.within::<f64>("counts", classes, 1.0..=1e15)?.to_vec();
        let means = state.within::<f64>("means", self.means.len(), -1.01..=1.01)?.to_vec();
        let taught = state.get::<u32>("taught")?;
        if taught.windows(2).any(|w| w[0] >= w[1]) || taught.last().is_some_and(|&c| c as usize >= classes) {
            return Err(Error::state("taught: expected classes in order"));
        }
        let sums = state.get_n::<f32>("sums", taught.len() * triangle::len(dim))?;
        let factor = state.get_n::<f64>("factor", dim * dim)?.to_vec();
        let slopes = state.within::<f64>("slopes", means.len(), -1e15..=1e15)?.to_vec();
        let pending_class = state.get::<u32>("pending.class")?.to_vec();
        if pending_class.iter().any(|&c| c as usize >= classes) {
            return Err(Error::state("pending.class: class out of range"));
        }
        let pending = state.get_n::<f32>("pending", pending_class.len() * dim)?.to_vec();
        self.sums = vec![None; classes];
        for (&class, sum) in taught.iter().zip(sums.chunks(triangle::len(dim))) {
            self.sums[class as usize] = Some(sum.to_vec());
        }
        self.precision = self.precision.with_factor(factor);
        self.gaussian = Discriminant::with_slopes(slopes, &means, dim);
        (self.counts, self.means) = (counts, means);
        (self.pending, self.pending_class) = (pending, pending_class);
        (self.seen, self.inverted_at) = (seen, inverted_at);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let dim = self.head.dim();
        let (movement_max, movement_mean) = math::movement(&self.means, self.head.prototypes(), dim);
        let triangles = self.sums.iter().flatten().count() * triangle::len(dim);
        // Room for the rows that wait, whether they are there or not.
        let waiting = self.pending_class.len().max(MOST_PENDING * self.counts.len()) * (dim + 1);
        let doubles = 2 * self.means.len() + 2 * self.counts.len() + dim * dim;
        Vitals {
            movement_max,
            movement_mean,
            evidence_weight: self.weight(1),
            state_bytes: 4 * (triangles + waiting) + 8 * doubles,
            ..Default::default()
        }
    }

    fn per_class(&self) -> Vec<ClassDrift> {
        let moved = math::distances(&self.means, self.head.prototypes(), self.head.dim());
        let prior = 1.0 / moved.len() as f64;
        let drift = |(movement, n): (f64, &f64)| ClassDrift { movement, prior, evidence: n - 1.0 };
        moved.into_iter().zip(&self.counts).map(drift).collect()
    }
}
