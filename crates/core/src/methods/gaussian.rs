//! Gaussian classes that share one covariance: what OGA, ADAPT and DOTA score with.

use super::math;
use crate::linear::{add_squares, cholesky, solve, solve_one};

/// A pivot below this share of the largest diagonal entry counts as 0.
const SINGULAR: f64 = 1e-10;

/// A precision matrix A = scale · M⁻¹.
#[derive(Clone, Debug)]
pub(crate) struct Precision {
    dim: usize,
    scale: f64,
    matrix: Matrix,
}

#[derive(Clone, Debug)]
enum Matrix {
    /// The lower Cholesky factor of M, column-major. All zero: there is no precision, and everything scores 0.
    Factor(Vec<f64>),
    /// M⁺ itself, for a matrix without a factor.
    Inverse(Vec<f64>),
}

impl Precision {
    /// A = scale / value · I.
    pub(crate) fn diagonal(dim: usize, value: f64, scale: f64) -> Self {
        let mut factor = vec![0.0; dim * dim];
        (0..dim).for_each(|i| factor[i * dim + i] = value.sqrt());
        Self { dim, scale, matrix: Matrix::Factor(factor) }
    }

    /// Everything scores 0.
    pub(crate) fn silent(dim: usize, scale: f64) -> Self {
        Self::diagonal(dim, 0.0, scale)
    }

    /// Of the lower triangle of M; silent if M is not positive definite.
    pub(crate) fn of(mut matrix: Vec<f64>, dim: usize, scale: f64) -> Self {
        match cholesky(&mut matrix, dim) {
            Some(()) => Self { dim, scale, matrix: Matrix::Factor(cleared(matrix, dim)) },
            None => Self::silent(dim, scale),
        }
    }

    /// Of the lower triangle of M, its pseudo-inverse if it is singular.
    pub(crate) fn pseudo(matrix: Vec<f64>, dim: usize) -> Self {
        let largest = (0..dim).map(|i| matrix[i * dim + i]).fold(0.0, f64::max);
        let mut factor = matrix.clone();
        let sound = cholesky(&mut factor, dim).is_some()
            && (0..dim).all(|i| factor[i * dim + i].powi(2) > SINGULAR * largest);
        let matrix = if sound {
            Matrix::Factor(cleared(factor, dim))
        } else {
            Matrix::Inverse(pseudo_inverse(matrix, dim))
        };
        Self { dim, scale: 1.0, matrix }
    }

    /// The ridge estimate of Kubokawa and Srivastava over centred rows x: A = d · ((n−1) S + tr(S) I)⁻¹ with S their
    /// covariance. `scatter` is the lower triangle of Σ(x − x̄)(x − x̄)ᵀ = (n−1) S.
    pub(crate) fn ridge(mut scatter: Vec<f64>, dim: usize, n: usize) -> Self {
        let scale = dim as f64;
        if n < 2 {
            return Self::diagonal(dim, scale, scale);
        }
        let trace: f64 = (0..dim).map(|i| scatter[i * dim + i]).sum::<f64>() / (n - 1) as f64;
        // Without spread there is nothing to learn from.
        if trace <= 1e-12 {
            return Self::silent(dim, scale);
        }
        (0..dim).for_each(|i| scatter[i * dim + i] += trace);
        Self::of(scatter, dim, scale)
    }

    /// The factor, for a saved state.
    pub(crate) fn factor(&self) -> &[f64] {
        match &self.matrix {
            Matrix::Factor(values) | Matrix::Inverse(values) => values,
        }
    }

    /// With a saved factor.
    pub(crate) fn with_factor(&self, factor: Vec<f64>) -> Self {
        Self { matrix: Matrix::Factor(factor), ..*self }
    }

    /// A x for every row x, in place.
    pub(crate) fn apply(&self, rows: &mut [f64]) {
        match &self.matrix {
            Matrix::Factor(factor) if factor.first().is_none_or(|first| *first <= 0.0) => rows.fill(0.0),
            Matrix::Factor(factor) => {
                if rows.len() == self.dim {
                    solve_one(factor, self.dim, rows);
                } else {
                    solve(factor, self.dim, rows);
                }
                rows.iter_mut().for_each(|v| *v *= self.scale);
            }
            Matrix::Inverse(inverse) => {
                for row in rows.chunks_mut(self.dim) {
                    let each = inverse.chunks(self.dim).map(|column| dot(column, row));
                    let out: Vec<f64> = each.collect();
                    row.copy_from_slice(&out);
                }
            }
        }
    }

    /// Slope A μ and offset −½ μᵀA μ of every mean μ.
    pub(crate) fn discriminant(&self, means: &[f64]) -> Discriminant {
        let mut slopes = means.to_vec();
        self.apply(&mut slopes);
        let offsets = slopes.chunks(self.dim).zip(means.chunks(self.dim)).map(|(s, m)| -0.5 * dot(s, m));
        Discriminant { offsets: offsets.collect(), slopes }
    }
}

/// ⟨z, A μ_c⟩ − ½ μ_cᵀA μ_c of every class.
#[derive(Clone, Debug)]
pub(crate) struct Discriminant {
    slopes: Vec<f64>,
    offsets: Vec<f64>,
}

impl Discriminant {
    pub(crate) fn scores(&self, z: &[f32]) -> Vec<f64> {
        let mut scores = math::dots(&self.slopes, z, 1.0);
        scores.iter_mut().zip(&self.offsets).for_each(|(s, offset)| *s += offset);
        scores
    }

    /// Takes in a class whose mean has moved.
    pub(crate) fn refresh(&mut self, precision: &Precision, class: usize, mean: &[f64]) {
        let slope = &mut self.slopes[class * mean.len()..][..mean.len()];
        slope.copy_from_slice(mean);
        precision.apply(slope);
        self.offsets[class] = -0.5 * dot(slope, mean);
    }

    /// Takes in a mean that has moved to (n μ + p z) / (n + p), by A z: while A stays, a slope moves as its mean does, and one
    /// solve serves all classes that a sample teaches.
    pub(crate) fn blend(&mut self, class: usize, (n, p): (f64, f64), az: &[f64], mean: &[f64]) {
        let slope = &mut self.slopes[class * az.len()..][..az.len()];
        math::blend(slope, (n, p), az);
        self.offsets[class] = -0.5 * dot(slope, mean);
    }

    /// A μ of every class, for a saved state: after [`Self::blend`] or [`Self::refresh`] they are not what a solve of all
    /// classes gives, to the last bit.
    pub(crate) fn slopes(&self) -> &[f64] {
        &self.slopes
    }

    /// With saved slopes.
    pub(crate) fn with_slopes(slopes: Vec<f64>, means: &[f64], dim: usize) -> Self {
        let offsets = slopes.chunks(dim).zip(means.chunks(dim)).map(|(s, m)| -0.5 * dot(s, m)).collect();
        Self { slopes, offsets }
    }
}

/// The lower triangle of Σ(x − x̄)(x − x̄)ᵀ over some rows.
pub(crate) fn scatter(mut rows: Vec<f64>, dim: usize) -> Vec<f64> {
    let mut scatter = vec![0.0; dim * dim];
    let n = rows.len() / dim;
    if n == 0 {
        return scatter;
    }
    let mut mean = vec![0.0; dim];
    rows.chunks(dim).for_each(|row| mean.iter_mut().zip(row).for_each(|(m, v)| *m += v));
    mean.iter_mut().for_each(|m| *m /= n as f64);
    rows.chunks_mut(dim).for_each(|row| row.iter_mut().zip(&mean).for_each(|(v, m)| *v -= m));
    add_squares(&mut scatter, &rows, dim, 1.0);
    scatter
}

/// Whether what was computed from the first `last` of `count` events is out of date, if it may lag by a share of them.
pub(crate) fn due(count: u64, last: u64, lag: f64) -> bool {
    (count - last) as f64 > lag * last as f64
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A factor with zeros above its diagonal.
fn cleared(mut factor: Vec<f64>, dim: usize) -> Vec<f64> {
    (1..dim).for_each(|column| factor[column * dim..][..column].fill(0.0));
    factor
}

/// Eigenvalues below this share of the largest count as 0 in a pseudo-inverse.
const NEGLIGIBLE: f64 = 1e-10;

/// M⁺ of a symmetric matrix given by its lower triangle, by Jacobi rotations.
fn pseudo_inverse(mut m: Vec<f64>, dim: usize) -> Vec<f64> {
    (0..dim).for_each(|c| (0..c).for_each(|r| m[c * dim + r] = m[r * dim + c]));
    let mut vectors = vec![0.0; dim * dim];
    (0..dim).for_each(|i| vectors[i * dim + i] = 1.0);
    for _ in 0..60 {
        let off: f64 =
            (0..dim).flat_map(|c| (0..c).map(move |r| (c, r))).map(|(c, r)| m[c * dim + r].powi(2)).sum();
        let on: f64 = (0..dim).map(|i| m[i * dim + i].powi(2)).sum();
        if off <= 1e-28 * on {
            break;
        }
        for p in 0..dim {
            for q in p + 1..dim {
                rotate(&mut m, &mut vectors, dim, p, q);
            }
        }
    }
    let values: Vec<f64> = (0..dim).map(|i| m[i * dim + i]).collect();
    let largest = values.iter().copied().fold(0.0, f64::max);
    let mut inverse = vec![0.0; dim * dim];
    for (value, vector) in values.iter().zip(vectors.chunks(dim)) {
        if *value > NEGLIGIBLE * largest {
            for (column, &v) in inverse.chunks_mut(dim).zip(vector) {
                column.iter_mut().zip(vector).for_each(|(o, u)| *o += u * v / value);
            }
        }
    }
    inverse
}

/// The rotation of two axes that clears the entry they share. Row i of `vectors` is the i-th eigenvector.
fn rotate(m: &mut [f64], vectors: &mut [f64], dim: usize, p: usize, q: usize) {
    let shared = m[p * dim + q];
    if shared == 0.0 {
        return;
    }
    let theta = (m[q * dim + q] - m[p * dim + p]) / (2.0 * shared);
    let tangent = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
    let sine = tangent * cosine;
    for i in 0..dim {
        let (a, b) = (m[i * dim + p], m[i * dim + q]);
        (m[i * dim + p], m[i * dim + q]) = (cosine * a - sine * b, sine * a + cosine * b);
    }
    for i in 0..dim {
        let (a, b) = (m[p * dim + i], m[q * dim + i]);
        (m[p * dim + i], m[q * dim + i]) = (cosine * a - sine * b, sine * a + cosine * b);
        let (a, b) = (vectors[p * dim + i], vectors[q * dim + i]);
        (vectors[p * dim + i], vectors[q * dim + i]) = (cosine * a - sine * b, sine * a + cosine * b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows in four dimensions: their second moments have rank 3.
    fn moments() -> Vec<f64> {
        let rows = [1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 0.0, 2.0, 0.0, 1.0, 1.0];
        let mut matrix = vec![0.0; 16];
        add_squares(&mut matrix, &rows, 4, 1.0);
        matrix
    }

    #[test]
    fn a_singular_matrix_has_a_pseudo_inverse() {
        let matrix = moments();
        let full = |c: usize, r: usize| matrix[c.min(r) * 4 + c.max(r)];
        let inverse = pseudo_inverse(matrix.clone(), 4);
        for r in 0..4 {
            for c in 0..4 {
                let back: f64 = (0..4)
                    .flat_map(|i| (0..4).map(move |j| (i, j)))
                    .map(|(i, j)| full(r, i) * inverse[i * 4 + j] * full(j, c))
                    .sum();
                assert!((back - full(r, c)).abs() < 1e-9, "M M⁺ M = M at {r}, {c}: {back}");
            }
        }
        assert!(matches!(Precision::pseudo(matrix, 4).matrix, Matrix::Inverse(_)));
    }

    #[test]
    fn both_ways_to_invert_agree() {
        let mut matrix = moments();
        (0..4).for_each(|i| matrix[i * 4 + i] += 0.5);
        let means = [0.3, -0.2, 0.9, 0.1, 1.0, 0.0, 0.0, 2.0];
        let factor = Precision::pseudo(matrix.clone(), 4);
        assert!(matches!(factor.matrix, Matrix::Factor(_)));
        let inverse = Precision { matrix: Matrix::Inverse(pseudo_inverse(matrix, 4)), ..factor.clone() };
        let (a, b) = (factor.discriminant(&means), inverse.discriminant(&means));
        for (a, b) in a.slopes.iter().chain(&a.offsets).zip(b.slopes.iter().chain(&b.offsets)) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
    }

    #[test]
    fn a_lag_is_a_share_of_what_was_seen() {
        assert!(due(1, 0, 0.5) && !due(2, 2, 0.0) && due(3, 2, 0.0));
        assert!(!due(96, 64, 0.5) && due(97, 64, 0.5));
    }
}
