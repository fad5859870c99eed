//! *Garbage*: rows that look like nothing the stream or the head knows. They are answered, told, and teach nothing.
//!
//! Pictures differ from one another in few ways: of how a picture z deviates from the mean of the pictures before it, much
//! lies along how those deviate. Noise deviates in all ways alike, whatever its mean is. With x = z − m, and r_k = z_k − m
//! of the last 16 samples, of which m is the mean,
//!
//! ```text
//! shared = d Σ_k ⟨x, r_k⟩² / (‖x‖² Σ_k ‖r_k‖²)        known = max_c (l_c − l̄_c) / (s ‖x‖ √(σ² / d))
//! ```
//!
//! `shared` is 1 for noise on the mean, 7 to 50 for pictures of real encoders in the middle. `known` is how many deviations the
//! best class's frozen logit lies above the usual one, in those that noise of this length has; σ² is how far apart the
//! prototypes are. A row is garbage if neither the stream (`shared` below 2) nor the head (`known` below 4.5) knows it. It is
//! garbage, too, if it is the opposite of one of the 16: pictures all lie to one side.
//!
//! Once four rows in a row were garbage, `shared` must reach 3, so that chance lets none of the others teach. What a stream
//! that begins with garbage had taught until it could be noticed is forgotten.

use super::Incoming;
use crate::kernels::{fold_lanes, products};
use crate::{Head, Result, State};

/// Samples that a row is compared with.
const RECENT: usize = 16;

/// Pictures share more of what sets them apart than this, in multiples of what noise does; after a run of garbage they have to share
/// more.
const SHARED: [f64; 2] = [2.0, 3.0];

/// Rows of garbage that are a run.
const RUN: u64 = 4;

/// What the head knows stands out by so many deviations.
const KNOWN: f64 = 4.5;

/// Cosine to a picture below which a row is its opposite.
const OPPOSITE: f64 = -0.7;

/// In fewer dimensions noise looks like pictures.
const MIN_DIM: usize = 64;

/// With samples that are more alike than this (mean square of their deviations) nothing can be told.
const MIN_SPREAD: f64 = 1e-4;

/// Garbage began the stream if so many samples were seen before its first run: it could not be noticed in time.
const AT_START: std::ops::RangeInclusive<u64> = RECENT as u64..=2 * RECENT as u64;

/// What rows are compared with.
#[derive(Clone, Debug)]
pub(super) struct Garbage {
    dim: usize,
    /// s² σ² / d.
    noise: f64,
    /// The last samples, and where the next one goes.
    rows: Vec<f32>,
    next: usize,
    /// Their products with one another.
    products: [[f32; RECENT]; RECENT],
    /// Rows of garbage since the last other one.
    run: u64,
}

/// What was found of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub garbage: bool,
    opposite: bool,
    /// The row's products with the last samples.
    products: [f32; RECENT],
}

impl Garbage {
    pub(super) fn new(head: &Head) -> Self {
        let dim = head.dim();
        let prototypes = (head.prototypes().len() / dim) as f32;
        let mut mean = vec![0.0f32; dim];
        let mut square = 0.0;
        for prototype in head.prototypes().chunks_exact(dim) {
            mean.iter_mut().zip(prototype).for_each(|(m, p)| *m += p / prototypes);
            square += fold_lanes(prototype, prototype, |a, b| a * b) as f64 / prototypes as f64;
        }
        let apart = (square - fold_lanes(&mean, &mean, |a, b| a * b) as f64).max(0.0);
        let noise = (head.logit_scale() as f64).powi(2) * apart / dim as f64;
        Self { dim, noise, rows: Vec::new(), next: 0, products: [[0.0; RECENT]; RECENT], run: 0 }
    }

    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    /// Looks at a row that is no near-copy. `usual` are sums of centred frozen logits of earlier samples, and their number.
    pub(super) fn look(&self, row: Incoming<'_>, (usual, samples): (&[f32], f64)) -> Look {
        let mut look = Look { garbage: false, opposite: false, products: [0.0; RECENT] };
        let n = self.len();
        if n == 0 {
            return look;
        }
        products(row.z, &self.rows, self.dim, 1.0, &mut look.products[..n]);
        look.opposite = look.products[..n].iter().any(|&p| f64::from(p) < OPPOSITE);
        look.garbage = look.opposite;
        if n < RECENT || self.dim < MIN_DIM || look.opposite {
            return look;
        }
        let k = RECENT as f64;
        // ⟨z_k, m⟩, ‖m‖² and ⟨z, m⟩.
        let of_mean = self.products.map(|row| row.iter().map(|&p| f64::from(p)).sum::<f64>() / k);
        let mean = of_mean.iter().sum::<f64>() / k;
        let own = look.products.iter().map(|&p| f64::from(p)).sum::<f64>() / k;
        let spread = (0..RECENT).map(|i| f64::from(self.products[i][i])).sum::<f64>() / k - mean;
        let length = 1.0 - 2.0 * own + mean;
        if spread < MIN_SPREAD || length < MIN_SPREAD {
            return look;
        }
        let square = |(&p, of_mean): (&f32, f64)| (f64::from(p) - own - of_mean + mean).powi(2);
        let squares: f64 = look.products.iter().zip(of_mean).map(square).sum();
        let shared = self.dim as f64 * squares / (length * k * spread);
        if shared < SHARED[usize::from(self.run >= RUN)] {
            let least = (KNOWN * (length * self.noise).sqrt()) as f32;
            let (centre, share) = (row.frozen.moments.0, (1.0 / samples.max(1.0)) as f32);
            look.garbage = !row.text.iter().zip(usual).any(|(t, u)| t - centre - share * u > least);
        }
        look
    }

    /// Whether a row shows that the stream, of which so many samples were `seen`, began with garbage.
    pub(super) fn begins_anew(&self, look: &Look, seen: u64) -> bool {
        look.garbage && self.run + 1 == RUN && AT_START.contains(&seen)
    }

    /// Takes in a row that is no near-copy and may teach. Whether it shows that the stream, of which so many samples were `seen`,
    /// began with garbage.
    pub(super) fn push(&mut self, z: &[f32], look: &Look, seen: u64) -> bool {
        let anew = self.begins_anew(look, seen);
        self.run = if look.garbage { self.run + 1 } else { 0 };
        if !look.opposite {
            let at = self.next;
            if self.len() < RECENT {
                self.rows.extend_from_slice(z);
            } else {
                self.rows[at * self.dim..][..self.dim].copy_from_slice(z);
            }
            self.products[at] = look.products;
            (0..RECENT).for_each(|i| self.products[i][at] = look.products[i]);
            products(z, z, self.dim, 1.0, &mut self.products[at][at..=at]);
            self.next = (at + 1) % RECENT;
        }
        anew
    }

    pub(super) fn bytes(&self) -> usize {
        RECENT * (4 * self.dim + 4 * RECENT)
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("local.garbage.rows", &self.rows);
        state.put("local.garbage", &[self.next as u64, self.run]);
    }

    /// States of earlier builds have none.
    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        if !state.any_under("local.garbage") {
            return Ok(());
        }
        let rows = state.get::<f32>("local.garbage.rows")?;
        let [next, run] = state.counts("local.garbage")?;
        let samples = rows.len() / self.dim;
        let fits = samples * self.dim == rows.len()
            && samples <= RECENT
            && next as usize == if samples < RECENT { samples } else { next as usize % RECENT };
        if !fits || !rows.iter().all(|v| v.abs() <= 1.001) {
            return Err(crate::Error::state("local.garbage.rows: no samples of this stream"));
        }
        (self.rows, self.next, self.run) = (rows.to_vec(), next as usize, run);
        if samples == 0 {
            return Ok(());
        }
        let mut all = vec![0.0; samples * samples];
        products(&self.rows, &self.rows, self.dim, 1.0, &mut all);
        for (to, from) in self.products.iter_mut().zip(all.chunks(samples)) {
            to[..samples].copy_from_slice(from);
        }
        Ok(())
    }
}
