//! The transformer both towers share: pre-norm blocks with fused QKV, residuals added by the products themselves.
//!
//! Where only one token of a sequence is read in the end (CLIP's class token, the end of a text), the last block
//! computes that token alone: the others would be thrown away.

use std::cell::RefCell;
use std::sync::Mutex;

use rayon::prelude::*;

use super::element::{self, Activation, vectorised};
use super::product::{Aligned, Finish, Packed, Rows, product, product_at, product_here};
use crate::weights::{Tensors, WeightsError};

/// A linear layer.
pub(crate) struct Linear {
    weight: Packed,
    bias: Option<Vec<f32>>,
}

impl Linear {
    pub fn new(weight: &[f32], outputs: usize, inputs: usize, bias: Option<Vec<f32>>) -> Self {
        Self { weight: Packed::new(weight, outputs, inputs), bias }
    }

    /// `{name}.weight` and, with `bias`, `{name}.bias`.
    pub fn load(
        tensors: &Tensors,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Self, WeightsError> {
        let weight = tensors.get(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(tensors.get(&format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(Self::new(&weight, outputs, inputs, bias))
    }

    pub fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    /// `out = x · Wᵀ + b`, rows of `x` one after another.
    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        self.run(x, self.finish(), out);
    }

    /// The same through a non-linearity.
    pub fn forward_activated(&self, x: &[f32], activation: Activation, out: &mut [f32]) {
        self.run(x, Finish { activation: Some(activation), ..self.finish() }, out);
    }

    /// `out += x · Wᵀ + b`.
    pub fn forward_added(&self, x: &[f32], out: &mut [f32]) {
        self.run(x, Finish { add: true, ..self.finish() }, out);
    }

    fn finish(&self) -> Finish<'_> {
        Finish { bias: self.bias.as_deref(), activation: None, add: false }
    }

    fn run(&self, x: &[f32], finish: Finish<'_>, out: &mut [f32]) {
        let stride = self.weight.inputs();
        let rows = Rows { data: x, rows: x.len() / stride, stride };
        product(rows, &self.weight, finish, out, self.weight.outputs());
    }
}

/// A layer norm.
pub(crate) struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

impl LayerNorm {
    pub fn load(tensors: &Tensors, name: &str, width: usize, eps: f32) -> Result<Self, WeightsError> {
        let weight = tensors.get(&format!("{name}.weight"), &[width])?;
        let bias = tensors.get(&format!("{name}.bias"), &[width])?;
        Ok(Self { weight, bias, eps })
    }

    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        // A task takes a few rows: a single one is not worth handing to another thread.
        let piece = 16 * width;
        out.par_chunks_mut(piece).zip(x.par_chunks(piece)).for_each(|(out, x)| {
            vectorised(
                #[inline(always)]
                || {
                    for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                        element::layer_norm(x, &self.weight, &self.bias, self.eps, out);
                    }
                },
            );
        });
    }

    /// In place.
    pub fn apply(&self, x: &mut [f32]) {
        let copy = x.to_vec();
        self.forward(&copy, x);
    }
}

/// Sizes of a transformer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub hidden: usize,
    pub activation: Activation,
    pub eps: f32,
    /// Whether a token sees only those before it.
    pub causal: bool,
    /// Whether one token of each sequence is all that is read in the end.
    pub pooled: bool,
}

struct Block {
    norm1: LayerNorm,
    /// Queries, where they are computed for one token alone; else they are part of `qkv`.
    query: Option<Linear>,
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

/// A stack of blocks.
pub(crate) struct Transformer {
    shape: Shape,
    blocks: Vec<Block>,
    /// Memory of earlier calls, one for each that may run at a time.
    buffers: Mutex<Vec<Buffers>>,
}

#[derive(Default)]
struct Buffers {
    normed: Aligned,
    qkv: Aligned,
    mixed: Aligned,
    hidden: Aligned,
}

impl Transformer {
    /// Reads `{prefix}.blocks.N.*` under this crate's names (see `weights`).
    pub fn load(tensors: &Tensors, prefix: &str, shape: Shape) -> Result<Self, WeightsError> {
        let Shape { width, hidden, eps, .. } = shape;
        let mut blocks = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            let name = |part: &str| format!("{prefix}.blocks.{layer}.{part}");
            let mut weight = tensors.get(&name("attention.qkv.weight"), &[3 * width, width])?;
            let mut bias = tensors.get(&name("attention.qkv.bias"), &[3 * width])?;
            // The scale of the scores is folded into the queries.
            let scale = 1.0 / ((width / shape.heads) as f32).sqrt();
            weight[..width * width].iter_mut().for_each(|w| *w *= scale);
            bias[..width].iter_mut().for_each(|b| *b *= scale);
            let alone = shape.pooled && layer + 1 == shape.layers;
            let (query, qkv) = if alone {
                let rest = bias.split_off(width);
                let query = Linear::new(&weight[..width * width], width, width, Some(bias));
                (Some(query), Linear::new(&weight[width * width..], 2 * width, width, Some(rest)))
            } else {
                (None, Linear::new(&weight, 3 * width, width, Some(bias)))
            };
            blocks.push(Block {
                norm1: LayerNorm::load(tensors, &name("norm1"), width, eps)?,
                query,
                qkv,
                out: Linear::load(tensors, &name("attention.out"), width, width, true)?,
                norm2: LayerNorm::load(tensors, &name("norm2"), width, eps)?,
                fc1: Linear::load(tensors, &name("mlp.fc1"), hidden, width, true)?,
                fc2: Linear::load(tensors, &name("mlp.fc2"), width, hidden, true)?,
            });
        }
        Ok(Self { shape, blocks, buffers: Mutex::default() })
    }

    /// Sequences of `tokens` rows each, in place. All rows of a pooled transformer are worked on except in the
    /// last block: the result is then one row per sequence, that of the token `pooled` names.
    pub fn forward(&self, x: &mut Vec<f32>, tokens: usize, pooled: Option<&[usize]>) {
        let taken = self.buffers.lock().map(|mut b| b.pop()).unwrap_or_default();
        let mut buffers = taken.unwrap_or_default();
        for block in &self.blocks {
            match (&block.query, pooled) {
                (Some(query), Some(pooled)) => self.last(block, query, x, tokens, pooled, &mut buffers),
                _ => self.block(block, x, tokens, &mut buffers),
            }
        }
        if let Ok(mut all) = self.buffers.lock() {
            all.push(buffers);
        }
    }

    fn block(&self, block: &Block, x: &mut [f32], tokens: usize, buffers: &mut Buffers) {
        let width = self.shape.width;
        let rows = x.len() / width;
        let normed = buffers.normed.grow(rows * width);
        block.norm1.forward(x, normed);
        let qkv = buffers.qkv.grow(3 * rows * width);
        block.qkv.forward(normed, qkv);
        let mixed = buffers.mixed.grow(rows * width);
        self.attention(qkv, tokens, mixed);
        block.out.forward_added(mixed, x);
        self.feed_forward(block, x, normed, &mut buffers.hidden);
    }

    fn feed_forward(&self, block: &Block, x: &mut [f32], normed: &mut [f32], hidden: &mut Aligned) {
        let rows = x.len() / self.shape.width;
        block.norm2.forward(x, normed);
        let hidden = hidden.grow(rows * self.shape.hidden);
        block.fc1.forward_activated(normed, self.shape.activation, hidden);
        block.fc2.forward_added(hidden, x);
    }

    /// Every token looks at every other (or at those before it), head by head.
    fn attention(&self, qkv: &[f32], tokens: usize, out: &mut [f32]) {
        let Shape { width, heads, causal, .. } = self.shape;
        let dim = width / heads;
        let sequences = out.len() / (tokens * width);
        let target = Target(out.as_mut_ptr());
        let task = |index: usize| {
            let (sequence, head) = (index / heads, index % heads);
            let rows = &qkv[sequence * tokens * 3 * width..][..tokens * 3 * width];
            let at = |which: usize| &rows[which * width + head * dim..];
            HEAD.with_borrow_mut(|HeadBuffers { keys, values, scores }| {
                let (k, v) = (at(1), at(2));
                keys.pack(tokens, dim, |token, i| k[token * 3 * width + i]);
                let scores = scores.grow(tokens * tokens);
                let queries = Rows { data: at(0), rows: tokens, stride: 3 * width };
                product_here(queries, keys, Finish::default(), scores, tokens);
                vectorised(
                    #[inline(always)]
                    || {
                        for (i, row) in scores.chunks_exact_mut(tokens).enumerate() {
                            let seen = if causal { i + 1 } else { tokens };
                            element::softmax(&mut row[..seen]);
                            row[seen..].fill(0.0);
                        }
                    },
                );
                values.pack(dim, tokens, |i, token| v[token * 3 * width + i]);
                let weights = Rows { data: scores, rows: tokens, stride: tokens };
                // SAFETY: this head's columns of this sequence's rows belong to this task alone.
                unsafe {
                    let out = target.start().add(sequence * tokens * width + head * dim);
                    product_at(weights, values, Finish::default(), out, width);
                }
            });
        };
        (0..sequences * heads).into_par_iter().with_max_len(1).for_each(task);
    }

    /// The last block for one token of each sequence.
    fn last(
        &self,
        block: &Block,
        query: &Linear,
        x: &mut Vec<f32>,
        tokens: usize,
        pooled: &[usize],
        buffers: &mut Buffers,
    ) {
        let Shape { width, heads, causal, .. } = self.shape;
        let dim = width / heads;
        let rows = x.len() / width;
        let normed = buffers.normed.grow(rows * width);
        block.norm1.forward(x, normed);
        let kv = buffers.qkv.grow(2 * rows * width);
        block.qkv.forward(normed, kv);
        let pick = |from: &[f32]| -> Vec<f32> {
            let row = |(sequence, &token): (usize, &usize)| {
                from[(sequence * tokens + token) * width..][..width].to_vec()
            };
            pooled.iter().enumerate().flat_map(row).collect()
        };
        let chosen = pick(normed);
        let mut queries = vec![0.0; chosen.len()];
        query.forward(&chosen, &mut queries);
        let mut mixed = vec![0.0; chosen.len()];
        mixed.par_chunks_mut(width).enumerate().for_each(|(sequence, out)| {
            let kv = &kv[sequence * tokens * 2 * width..][..tokens * 2 * width];
            let seen = if causal { pooled[sequence] + 1 } else { tokens };
            let query = &queries[sequence * width..][..width];
            attend(query, kv, seen, dim, out);
        });
        *x = pick(x);
        block.out.forward_added(&mixed, x);
        self.feed_forward(block, x, &mut normed[..pooled.len() * width], &mut buffers.hidden);
    }
}

/// One query over `seen` keys and values, whose rows lie beside each other; `out` is one row.
pub(crate) fn attend(query: &[f32], kv: &[f32], seen: usize, dim: usize, out: &mut [f32]) {
    let width = query.len();
    vectorised(
        #[inline(always)]
        || {
            let mut weights = vec![0.0f32; seen];
            for head in (0..width).step_by(dim) {
                for (token, weight) in weights.iter_mut().enumerate() {
                    let key = &kv[token * 2 * width + head..][..dim];
                    *weight = query[head..head + dim].iter().zip(key).map(|(q, k)| q * k).sum();
                }
                element::softmax(&mut weights);
                let out = &mut out[head..head + dim];
                out.fill(0.0);
                for (token, weight) in weights.iter().enumerate() {
                    let value = &kv[token * 2 * width + width + head..][..dim];
                    for (o, v) in out.iter_mut().zip(value) {
                        *o += weight * v;
                    }
                }
            }
        },
    );
}

/// An output whose columns are shared out to tasks.
struct Target(*mut f32);
// SAFETY: see `attention`: tasks write to different columns.
unsafe impl Sync for Target {}

impl Target {
    fn start(&self) -> *mut f32 {
        self.0
    }
}

struct HeadBuffers {
    keys: Packed,
    values: Packed,
    scores: Aligned,
}

thread_local! {
    static HEAD: RefCell<HeadBuffers> =
        RefCell::new(HeadBuffers { keys: Packed::empty(), values: Packed::empty(), scores: Aligned::default() });
}
