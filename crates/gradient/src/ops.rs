//! The four operations that a transformer spends its time in, each with its own backward.
//!
//! candle's fused LayerNorm and softmax have no backward: gradients that pass through them are lost without a word.
//! Its product computes the gradient of both factors, wanted or not. Here a weight that is not being trained gets no
//! gradient, and none is computed for it.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail};
use rayon::prelude::*;

/// Floats worked on by one thread at a time.
const PIECE: usize = 1 << 14;

fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let all = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&all[from..to]),
        None => bail!("expected a contiguous tensor, got {layout:?}"),
    }
}

/// Reads a tensor's floats in place.
pub(crate) fn with<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => Ok(f(floats(cpu, layout)?)),
        _ => bail!("expected a tensor in main memory"),
    }
}

fn rows_at_a_time(width: usize) -> usize {
    (PIECE / width.max(1)).max(1) * width.max(1)
}

/// Sums over the rows of a matrix.
fn column_sums(data: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f32; width];
    for row in data.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(s, v)| *s += v);
    }
    sums
}

/// `x Wᵀ + b`. Gradients go to those of the three that are tracked, and to no other.
struct Linear;

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (outputs, inputs) = lw.shape().dims2()?;
        let rows = lx.shape().elem_count() / inputs;
        let Some((start, _)) = lx.contiguous_offsets() else { bail!("linear: contiguous input expected") };
        let Some((weights, _)) = lw.contiguous_offsets() else { bail!("linear: contiguous weight expected") };
        let left = Layout::new((1, rows, inputs).into(), vec![rows * inputs, inputs, 1], start);
        let right = Layout::new((1, inputs, outputs).into(), vec![outputs * inputs, 1, inputs], weights);
        let product = x.matmul(w, (1, rows, outputs, inputs), &left, &right)?;
        let CpuStorage::F32(mut y) = product else { bail!("linear: expected floats") };
        let bias = floats(b, lb)?;
        y.par_chunks_mut(rows_at_a_time(outputs)).for_each(|part| {
            for row in part.chunks_exact_mut(outputs) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        });
        let mut shape = lx.shape().dims().to_vec();
        *shape.last_mut().expect("a matrix has dimensions") = outputs;
        Ok((CpuStorage::F32(y), shape.into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (outputs, inputs) = w.dims2()?;
        let grad = grad.contiguous()?.reshape(((), outputs))?;
        let to_x = if x.track_op() { Some(grad.matmul(&w.detach())?.reshape(x.shape())?) } else { None };
        let to_w =
            if w.track_op() { Some(grad.t()?.matmul(&x.detach().reshape(((), inputs))?)?) } else { None };
        let to_b = if b.track_op() {
            Some(Tensor::from_vec(with(&grad, |g| column_sums(g, outputs))?, outputs, b.device())?)
        } else {
            None
        };
        Ok((to_x, to_w, to_b))
    }
}

/// `x Wᵀ + b` over the last dimension.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let zeros;
    let bias = match bias {
        Some(bias) => bias,
        None => {
            zeros = Tensor::zeros(weight.dim(0)?, weight.dtype(), weight.device())?;
            &zeros
        }
    };
    x.contiguous()?.apply_op3(weight, bias, Linear)
}

/// Normalises rows, then scales and shifts them.
struct LayerNorm {
    eps: f32,
}

impl LayerNorm {
    /// Mean and inverse deviation of a row.
    fn moments(&self, row: &[f32]) -> (f32, f32) {
        let n = row.len() as f64;
        let mean = row.iter().map(|&v| v as f64).sum::<f64>() / n;
        let variance = row.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n;
        (mean as f32, (1.0 / (variance + self.eps as f64).sqrt()) as f32)
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        scale: &CpuStorage,
        ls: &Layout,
        shift: &CpuStorage,
        lh: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, scale, shift) = (floats(x, lx)?, floats(scale, ls)?, floats(shift, lh)?);
        let width = scale.len();
        let mut y = vec![0.0; x.len()];
        let piece = rows_at_a_time(width);
        y.par_chunks_mut(piece).zip(x.par_chunks(piece)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                let (mean, inverse) = self.moments(x);
                for i in 0..width {
                    y[i] = (x[i] - mean) * inverse * scale[i] + shift[i];
                }
            }
        });
        Ok((CpuStorage::F32(y), lx.shape().clone()))
    }

    /// With n = (x − μ)/σ: dx = (h − mean h − n · mean(h n))/σ for h = γ g; dγ = Σ g n; dβ = Σ g.
    fn bwd(
        &self,
        x: &Tensor,
        scale: &Tensor,
        shift: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let width = scale.elem_count();
        let gamma = with(scale, <[f32]>::to_vec)?;
        let piece = rows_at_a_time(width);
        let (to_x, to_scale, to_shift) = with(x, |x| {
            with(grad, |grad| {
                let mut to_x = vec![0.0; x.len()];
                // Each piece has sums of its own, added in order: the result does not depend on the threads.
                let sums: Vec<(Vec<f32>, Vec<f32>)> = to_x
                    .par_chunks_mut(piece)
                    .zip(x.par_chunks(piece).zip(grad.par_chunks(piece)))
                    .map(|(to_x, (x, grad))| {
                        let mut sums = (vec![0.0; width], vec![0.0; width]);
                        let rows = x.chunks_exact(width).zip(grad.chunks_exact(width));
                        for (row, (x, g)) in to_x.chunks_exact_mut(width).zip(rows) {
                            let (mean, inverse) = self.moments(x);
                            let (mut mean_h, mut mean_hn) = (0.0f32, 0.0f32);
                            for i in 0..width {
                                let (n, h) = ((x[i] - mean) * inverse, g[i] * gamma[i]);
                                sums.0[i] += g[i] * n;
                                sums.1[i] += g[i];
                                mean_h += h;
                                mean_hn += h * n;
                            }
                            mean_h /= width as f32;
                            mean_hn /= width as f32;
                            for i in 0..width {
                                let n = (x[i] - mean) * inverse;
                                row[i] = (g[i] * gamma[i] - mean_h - n * mean_hn) * inverse;
                            }
                        }
                        sums
                    })
                    .collect();
                let mut totals = (vec![0.0f32; width], vec![0.0f32; width]);
                for (scale, shift) in sums {
                    totals.0.iter_mut().zip(scale).for_each(|(t, v)| *t += v);
                    totals.1.iter_mut().zip(shift).for_each(|(t, v)| *t += v);
                }
                (to_x, totals.0, totals.1)
            })
        })??;
        let device = x.device();
        Ok((
            if x.track_op() { Some(Tensor::from_vec(to_x, x.shape(), device)?) } else { None },
            if scale.track_op() { Some(Tensor::from_vec(to_scale, width, device)?) } else { None },
            if shift.track_op() { Some(Tensor::from_vec(to_shift, width, device)?) } else { None },
        ))
    }
}

/// LayerNorm over the last dimension.
pub(crate) fn layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Tensor> {
    x.contiguous()?.apply_op3(scale, shift, LayerNorm { eps })
}

struct Softmax {
    width: usize,
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = floats(x, layout)?.to_vec();
        y.par_chunks_mut(rows_at_a_time(self.width)).for_each(|part| {
            for row in part.chunks_exact_mut(self.width) {
                let top = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let mut sum = 0.0;
                for v in row.iter_mut() {
                    *v = (*v - top).exp();
                    sum += *v;
                }
                row.iter_mut().for_each(|v| *v /= sum);
            }
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    /// dx = p (g − Σ g p).
    fn bwd(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let width = self.width;
        let mut out = with(grad, <[f32]>::to_vec)?;
        with(y, |p| {
            let piece = rows_at_a_time(width);
            out.par_chunks_mut(piece).zip(p.par_chunks(piece)).for_each(|(g, p)| {
                for (g, p) in g.chunks_exact_mut(width).zip(p.chunks_exact(width)) {
                    let dot: f32 = g.iter().zip(p).map(|(g, p)| g * p).sum();
                    g.iter_mut().zip(p).for_each(|(g, p)| *g = p * (*g - dot));
                }
            });
        })?;
        Ok(Some(Tensor::from_vec(out, x.shape(), x.device())?))
    }
}

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(candle_core::D::Minus1)?;
    x.contiguous()?.apply_op1(Softmax { width })
}

struct QuickGelu;

impl CustomOp1 for QuickGelu {
    fn name(&self) -> &'static str {
        "quick-gelu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = floats(x, layout)?.par_iter().map(|&x| x / (1.0 + (-1.702 * x).exp())).collect();
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let out: Vec<f32> = with(x, |x| {
            with(grad, |grad| {
                let slope = |(&x, &g): (&f32, &f32)| {
                    let s = 1.0 / (1.0 + (-1.702 * x).exp());
                    g * (s + 1.702 * x * s * (1.0 - s))
                };
                x.par_iter().zip(grad).map(slope).collect()
            })
        })??;
        Ok(Some(Tensor::from_vec(out, x.shape(), x.device())?))
    }
}

/// `x · sigmoid(1.702 x)`.
pub(crate) fn quick_gelu(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(QuickGelu)
}

/// log softmax over the last dimension.
pub(crate) fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let last = candle_core::D::Minus1;
    let shifted = x.broadcast_sub(&x.detach().max_keepdim(last)?)?;
    let sum = shifted.exp()?.sum_keepdim(last)?.log()?;
    shifted.broadcast_sub(&sum)
}

/// Entropy of each row's softmax, in nats.
pub fn entropy(logits: &Tensor) -> Result<Tensor> {
    cross_entropy(&softmax(logits)?, logits)
}

/// `−Σ q log softmax(logits)` of each row.
pub fn cross_entropy(target: &Tensor, logits: &Tensor) -> Result<Tensor> {
    (target * log_softmax(logits)?)?.sum(candle_core::D::Minus1)?.neg()
}

/// Rows scaled to unit length.
pub(crate) fn unit(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&x.sqr()?.sum_keepdim(candle_core::D::Minus1)?.sqrt()?)
}
