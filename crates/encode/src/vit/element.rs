//! Element-wise passes: exponentials, activations, layer norms, softmax. Written as plain loops over lanes that the
//! compiler turns into vectors; [`vectorised`] compiles them for the CPU at hand.

pub(crate) use ultta::internal::{exp, vectorised};

/// Number of partial sums in a pass.
const LANES: usize = 16;

/// The non-linearity of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(1.702 x)`: OpenAI's models.
    QuickGelu,
    /// `x · Φ(x)`.
    Gelu,
    /// The approximation of `Gelu` by a hyperbolic tangent: SigLIP.
    GeluTanh,
    /// `max(x, 0)`: residual networks.
    Relu,
}

impl Activation {
    /// Applies it in place. Inline it into a vectorised pass.
    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Activation::QuickGelu => each(
                values,
                #[inline(always)]
                |x| x / (1.0 + exp(-1.702 * x)),
            ),
            Activation::Gelu => each(
                values,
                #[inline(always)]
                |x| x * normal_cdf(x),
            ),
            // ½(1 + tanh y) = sigmoid(2y)
            Activation::GeluTanh => each(
                values,
                #[inline(always)]
                |x| {
                    let y = 0.797_884_6 * (x + 0.044715 * x * x * x);
                    x / (1.0 + exp(-2.0 * y))
                },
            ),
            Activation::Relu => each(
                values,
                #[inline(always)]
                |x| if x > 0.0 { x } else { 0.0 },
            ),
        }
    }
}

/// In pieces of a fixed length: a row of a tile is too short for the loops the compiler would make of it otherwise.
#[inline(always)]
fn each(values: &mut [f32], function: impl Fn(f32) -> f32) {
    let (chunks, tail) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for x in chunk {
            *x = function(*x);
        }
    }
    for x in tail {
        *x = function(*x);
    }
}

/// Φ(x), absolute error below 2e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152_1;
    p = p * t + 1.421_413_8;
    p = p * t - 0.284_496_72;
    p = p * t + 0.254_829_6;
    let tail = 0.5 * p * t * exp(-z * z);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Layer norm of one row.
#[inline(always)]
pub(crate) fn layer_norm(row: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = row.len() as f32;
    let mean = sum(
        row,
        #[inline(always)]
        |x| x,
    ) / n;
    let variance = sum(
        row,
        #[inline(always)]
        |x| (x - mean) * (x - mean),
    ) / n;
    let scale = 1.0 / (variance + eps).sqrt();
    for (((o, x), w), b) in out.iter_mut().zip(row).zip(weight).zip(bias) {
        *o = (x - mean) * scale * w + b;
    }
}

/// Softmax of one row in place.
#[inline(always)]
pub(crate) fn softmax(row: &mut [f32]) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    let max = tail.iter().chain(&lanes).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    row.iter_mut().for_each(|x| *x = exp(*x - max));
    let scale = 1.0
        / sum(
            row,
            #[inline(always)]
            |x| x,
        );
    row.iter_mut().for_each(|x| *x *= scale);
}

#[inline(always)]
fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += term(chunk[i]);
        }
    }
    for (i, &value) in tail.iter().enumerate() {
        lanes[i] += term(value);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_their_definitions() {
        // Values of Φ at multiples of ½ from tables.
        for (x, phi) in
            [(0.0, 0.5), (0.5, 0.691_462_5), (1.0, 0.841_344_8), (2.0, 0.977_249_9), (-3.0, 0.001_349_9)]
        {
            assert!((normal_cdf(x) - phi).abs() < 3e-7, "Φ({x}) = {}", normal_cdf(x));
        }
        for i in -2000..2000 {
            let x = i as f32 * 0.01;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-6, "exp({x})");
            let mut got = [x, x];
            Activation::QuickGelu.apply(&mut got[..1]);
            Activation::GeluTanh.apply(&mut got[1..]);
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x as f64 + 0.044715 * (x as f64).powi(3));
            assert!((got[0] as f64 - x as f64 / (1.0 + (-1.702 * x as f64).exp())).abs() < 1e-5);
            assert!((got[1] as f64 - 0.5 * x as f64 * (1.0 + y.tanh())).abs() < 1e-5);
            got = [x, x];
            Activation::Relu.apply(&mut got);
            assert_eq!(got, [x.max(0.0); 2]);
        }
    }

    #[test]
    fn rows_are_normalised() {
        let mut row: Vec<f32> = (0..37).map(|i| (i as f32 * 0.7).sin() * 90.0).collect();
        let mut out = vec![0.0; 37];
        layer_norm(&row, &[1.0; 37], &[0.0; 37], 1e-5, &mut out);
        assert!(out.iter().sum::<f32>().abs() < 1e-4);
        assert!((out.iter().map(|x| x * x).sum::<f32>() / 37.0 - 1.0).abs() < 1e-4);
        softmax(&mut row);
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5 && row.iter().all(|p| *p >= 0.0));
    }
}
