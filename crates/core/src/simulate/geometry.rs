//! Random directions: families of kin, class anchors, spectra; and the generators they are drawn from.

use rand_distr::{Distribution, StandardNormal, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::SimulatorConfig;

/// First axis of the power laws: eigenvalues fall as `(axis + OFFSET)^-decay`.
const SPECTRUM_OFFSET: f64 = 4.0;
/// Decay of the class centres' spectrum: about 12 to 30 effective dimensions, as measured.
pub(super) const CENTRE_DECAY: f64 = 1.5;
/// Decay of the spectrum of the anchors' own part, over axes in an order of their own.
const ANCHOR_DECAY: f64 = 0.5;
/// Share of an anchor's own part that it has in common with its family.
const ANCHOR_KINSHIP: f64 = 0.5;

/// First class and size of the family that a class belongs to; the last family takes in the rest.
pub(super) fn family(class: usize, classes: usize, size: usize) -> (usize, usize) {
    let families = (classes / size).max(1);
    let first = (class / size).min(families - 1) * size;
    let end = if first / size == families - 1 { classes } else { first + size };
    (first, end - first)
}

/// One unit anchor per class.
pub(super) fn anchors(
    config: &SimulatorConfig,
    axis: &[f64],
    text_axis: &[f64],
    centres: &[f64],
) -> Vec<f32> {
    let &SimulatorConfig { classes, dim, seed, agreement, anchor_cone, .. } = config;
    let mut rng = rng(seed, Purpose::Anchors);
    let scale = spectrum(dim, ANCHOR_DECAY);
    let scale: Vec<f64> = permutation(&mut rng, dim).iter().map(|&k| scale[k as usize]).collect();
    let mut own = kin(&mut rng, classes, config.family, ANCHOR_KINSHIP, &scale);
    for (row, centre) in own.chunks_exact_mut(dim).zip(centres.chunks_exact(dim)) {
        orthogonalise(row, axis);
        normalise(row);
        for (r, c) in row.iter_mut().zip(centre) {
            *r = agreement * c + (1.0 - agreement * agreement).sqrt() * *r;
        }
        normalise(row);
    }
    centre(&mut own, dim);
    for row in own.chunks_exact_mut(dim) {
        let bias = config.bias / config.cone.sqrt() * normal(&mut rng);
        for ((r, t), a) in row.iter_mut().zip(text_axis).zip(axis) {
            *r = anchor_cone.sqrt() * t + (1.0 - anchor_cone).sqrt() * *r + bias * a;
        }
        normalise(row);
    }
    own.iter().map(|&v| v as f32).collect()
}

/// Rows of random directions with a given spectrum, in families that share part of theirs.
pub(super) fn kin(rng: &mut Pcg64Mcg, classes: usize, size: usize, kinship: f64, scale: &[f64]) -> Vec<f64> {
    let mut rows = Vec::with_capacity(classes * scale.len());
    let mut common = Vec::new();
    for class in 0..classes {
        if family(class, classes, size).0 == class {
            common = normals(rng, scale.len(), Some(scale));
        }
        let own = normals(rng, scale.len(), Some(scale));
        rows.extend(common.iter().zip(&own).map(|(c, o)| kinship.sqrt() * c + (1.0 - kinship).sqrt() * o));
    }
    rows
}

/// Takes the mean of the rows off every row.
pub(super) fn centre(rows: &mut [f64], dim: usize) {
    let n = (rows.len() / dim) as f64;
    let mut mean = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        for (m, r) in mean.iter_mut().zip(row) {
            *m += r / n;
        }
    }
    for row in rows.chunks_exact_mut(dim) {
        for (r, m) in row.iter_mut().zip(&mean) {
            *r -= m;
        }
    }
}

/// Standard deviations whose squares fall as a power law and add up to 1.
pub(super) fn spectrum(dim: usize, decay: f64) -> Vec<f64> {
    let variances: Vec<f64> = (0..dim).map(|k| (k as f64 + SPECTRUM_OFFSET).powf(-decay)).collect();
    let sum: f64 = variances.iter().sum();
    variances.iter().map(|v| (v / sum).sqrt()).collect()
}

/// Takes the part along a unit vector off a row.
pub(super) fn orthogonalise(row: &mut [f64], axis: &[f64]) {
    let along: f64 = row.iter().zip(axis).map(|(r, a)| r * a).sum();
    for (r, a) in row.iter_mut().zip(axis) {
        *r -= along * a;
    }
}

/// Scales a row to unit length.
pub(super) fn normalise(row: &mut [f64]) {
    let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
    row.iter_mut().for_each(|v| *v /= norm);
}

/// A vector scaled to unit length.
pub(super) fn unit(mut row: Vec<f64>) -> Vec<f64> {
    normalise(&mut row);
    row
}

/// What a generator is for. Each purpose has its own, so that one setting does not disturb the rest.
pub(super) enum Purpose {
    Axes,
    Centres,
    Strangers,
    Anchors,
    Stream,
    Domain(u64),
    Mix(u64),
}

pub(super) fn rng(seed: u64, purpose: Purpose) -> Pcg64Mcg {
    let (kind, id) = match purpose {
        Purpose::Axes => (0, 0),
        Purpose::Centres => (1, 0),
        Purpose::Strangers => (2, 0),
        Purpose::Anchors => (3, 0),
        Purpose::Stream => (4, 0),
        Purpose::Domain(id) => (5, id),
        Purpose::Mix(id) => (6, id),
    };
    // odd constants of the 64-bit golden ratio kind keep neighbouring seeds, purposes and ids apart
    let mixed = seed
        .wrapping_add(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(kind + 1))
        .wrapping_add(0xd1b5_4a32_d192_ed03u64.wrapping_mul(id));
    Pcg64Mcg::seed_from_u64(mixed)
}

pub(super) fn uniform(rng: &mut Pcg64Mcg) -> f64 {
    StandardUniform.sample(rng)
}

pub(super) fn normal(rng: &mut Pcg64Mcg) -> f64 {
    StandardNormal.sample(rng)
}

pub(super) fn normals(rng: &mut Pcg64Mcg, n: usize, scale: Option<&[f64]>) -> Vec<f64> {
    (0..n).map(|k| normal(rng) * scale.map_or(1.0, |s| s[k])).collect()
}

/// A shuffled list of 0 to n − 1.
pub(super) fn permutation(rng: &mut Pcg64Mcg, n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        order.swap(i, (uniform(rng) * (i + 1) as f64) as usize);
    }
    order
}
