//! Vision and text transformers for inference, on packed weights.
//!
//! `product` multiplies, `element` does the rest of the arithmetic, `transformer` stacks blocks, and the two towers
//! here put them to use.

pub(crate) mod element;
pub(crate) mod product;
pub(crate) mod transformer;

use rayon::prelude::*;

use crate::config::{BlockConfig, ModelConfig, TextConfig, VisionConfig, VisionPool};
use crate::weights::{Tensors, WeightsError};
use transformer::{LayerNorm, Linear, Shape, Transformer, attend};

/// Rows of activations worked on at a time: those of a few images, which stay in the last-level cache.
const ROWS_AT_A_TIME: usize = 800;

fn shape(blocks: &BlockConfig, causal: bool, pooled: bool) -> Shape {
    let &BlockConfig { width, layers, heads, hidden, activation, eps } = blocks;
    Shape { width, layers, heads, hidden, activation, eps, causal, pooled }
}

/// The image tower.
pub(crate) struct VisionTower {
    config: VisionConfig,
    patch: Linear,
    class: Vec<f32>,
    position: Vec<f32>,
    norm_pre: Option<LayerNorm>,
    transformer: Transformer,
    norm_post: LayerNorm,
    pool: Pool,
    dim: usize,
}

enum Pool {
    /// The class token through a projection.
    Class(Linear),
    /// A learnt query over all tokens.
    Attention(Box<AttentionPool>),
}

struct AttentionPool {
    query: Vec<f32>,
    kv: Linear,
    out: Linear,
    norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl VisionTower {
    pub fn load(tensors: &Tensors, model: &ModelConfig) -> Result<Self, WeightsError> {
        let config = model.vision.clone();
        let BlockConfig { width, hidden, eps, .. } = config.blocks;
        let kernel = 3 * config.patch * config.patch;
        let patch = Linear::load(tensors, "vision.patch", width, kernel, tensors.has("vision.patch.bias"))?;
        let class_token = config.pool == VisionPool::ClassToken;
        let pool = match config.pool {
            VisionPool::ClassToken => {
                Pool::Class(Linear::load(tensors, "vision.projection", model.dim, width, false)?)
            }
            VisionPool::MeanQuery(_) => {
                return Err(WeightsError("expected a transformer, got a residual network".into()));
            }
            VisionPool::Attention => {
                let load = |which: &str| {
                    let weight = tensors.get(&format!("vision.pool.{which}.weight"), &[width, width])?;
                    let bias = tensors.get(&format!("vision.pool.{which}.bias"), &[width])?;
                    Ok::<_, WeightsError>((weight, bias))
                };
                let (wq, bq) = load("q")?;
                let (mut wk, mut bk) = load("k")?;
                let (wv, bv) = load("v")?;
                // The query is the same for every picture.
                let probe = tensors.get("vision.pool.probe", &[width])?;
                let scale = 1.0 / ((width / config.blocks.heads) as f32).sqrt();
                let mut query = vec![0.0; width];
                Linear::new(&wq, width, width, Some(bq)).forward(&probe, &mut query);
                query.iter_mut().for_each(|q| *q *= scale);
                wk.extend(wv);
                bk.extend(bv);
                Pool::Attention(Box::new(AttentionPool {
                    query,
                    kv: Linear::new(&wk, 2 * width, width, Some(bk)),
                    out: Linear::load(tensors, "vision.pool.out", width, width, true)?,
                    norm: LayerNorm::load(tensors, "vision.pool.norm", width, eps)?,
                    fc1: Linear::load(tensors, "vision.pool.mlp.fc1", hidden, width, true)?,
                    fc2: Linear::load(tensors, "vision.pool.mlp.fc2", width, hidden, true)?,
                }))
            }
        };
        let norm_pre = if tensors.has("vision.norm_pre.weight") {
            Some(LayerNorm::load(tensors, "vision.norm_pre", width, eps)?)
        } else {
            None
        };
        Ok(Self {
            patch,
            class: if class_token { tensors.get("vision.class", &[width])? } else { vec![] },
            position: tensors.get("vision.position", &[config.tokens(), width])?,
            norm_pre,
            transformer: Transformer::load(tensors, "vision", shape(&config.blocks, false, class_token))?,
            norm_post: LayerNorm::load(tensors, "vision.norm_post", width, eps)?,
            pool,
            dim: model.dim,
            config,
        })
    }

    /// Floats of one input: three planes.
    pub fn input_len(&self) -> usize {
        3 * self.config.image_size * self.config.image_size
    }

    /// Features of normalised pictures, planes one after another; rows are not scaled to unit length.
    pub fn forward(&self, pixels: &[f32]) -> Vec<f32> {
        let at_a_time = (ROWS_AT_A_TIME / self.config.tokens()).max(1);
        let mut features = Vec::with_capacity(pixels.len() / self.input_len() * self.dim);
        for part in pixels.chunks(at_a_time * self.input_len()) {
            features.extend(self.forward_part(part));
        }
        features
    }

    fn forward_part(&self, pixels: &[f32]) -> Vec<f32> {
        let n = pixels.len() / self.input_len();
        let width = self.config.blocks.width;
        let (patches, tokens) = (self.config.patches(), self.config.tokens());
        let inputs = 3 * self.config.patch * self.config.patch;
        let mut cut = vec![0.0; n * patches * inputs];
        cut.par_chunks_mut(patches * inputs)
            .zip(pixels.par_chunks(self.input_len()))
            .for_each(|(cut, pixels)| self.patchify(pixels, cut));
        let mut embedded = vec![0.0; n * patches * width];
        self.patch.forward(&cut, &mut embedded);
        let mut x = vec![0.0; n * tokens * width];
        x.par_chunks_mut(tokens * width).zip(embedded.par_chunks(patches * width)).for_each(
            |(x, embedded)| {
                let (class, rest) = x.split_at_mut(self.class.len());
                class.copy_from_slice(&self.class);
                rest.copy_from_slice(embedded);
                x.iter_mut().zip(&self.position).for_each(|(x, p)| *x += p);
            },
        );
        if let Some(norm) = &self.norm_pre {
            norm.apply(&mut x);
        }
        match &self.pool {
            Pool::Class(projection) => {
                self.transformer.forward(&mut x, tokens, Some(&vec![0; n]));
                self.norm_post.apply(&mut x);
                let mut features = vec![0.0; n * projection.outputs()];
                projection.forward(&x, &mut features);
                features
            }
            Pool::Attention(pool) => {
                self.transformer.forward(&mut x, tokens, None);
                self.norm_post.apply(&mut x);
                pool.forward(&x, tokens, &self.config.blocks)
            }
        }
    }

    /// Patches as rows, each channel by channel: a convolution whose kernels do not overlap is then a product.
    fn patchify(&self, pixels: &[f32], out: &mut [f32]) {
        let (size, patch) = (self.config.image_size, self.config.patch);
        let across = size / patch;
        let inputs = 3 * patch * patch;
        for (index, row) in out.chunks_exact_mut(inputs).enumerate() {
            let (py, px) = (index / across * patch, index % across * patch);
            for (line, target) in row.chunks_exact_mut(patch).enumerate() {
                let (channel, y) = (line / patch, line % patch);
                let start = (channel * size + py + y) * size + px;
                target.copy_from_slice(&pixels[start..start + patch]);
            }
        }
    }
}

impl AttentionPool {
    fn forward(&self, x: &[f32], tokens: usize, blocks: &BlockConfig) -> Vec<f32> {
        let width = blocks.width;
        let n = x.len() / (tokens * width);
        let mut kv = vec![0.0; 2 * x.len()];
        self.kv.forward(x, &mut kv);
        let mut mixed = vec![0.0; n * width];
        mixed.par_chunks_mut(width).zip(kv.par_chunks(tokens * 2 * width)).for_each(|(out, kv)| {
            attend(&self.query, kv, tokens, width / blocks.heads, out);
        });
        let mut pooled = vec![0.0; n * width];
        self.out.forward(&mixed, &mut pooled);
        let mut normed = vec![0.0; n * width];
        self.norm.forward(&pooled, &mut normed);
        let mut hidden = vec![0.0; n * blocks.hidden];
        self.fc1.forward_activated(&normed, blocks.activation, &mut hidden);
        self.fc2.forward_added(&hidden, &mut pooled);
        pooled
    }
}

/// The text tower.
pub(crate) struct TextTower {
    config: TextConfig,
    token: Vec<f32>,
    position: Vec<f32>,
    transformer: Transformer,
    norm: LayerNorm,
    projection: Linear,
}

impl TextTower {
    pub fn load(tensors: &Tensors, model: &ModelConfig) -> Result<Self, WeightsError> {
        let config = model.text.clone();
        let width = config.blocks.width;
        let bias = tensors.has("text.projection.bias");
        Ok(Self {
            token: tensors.get("text.token", &[config.vocabulary, width])?,
            position: tensors.get("text.position", &[config.context, width])?,
            transformer: Transformer::load(tensors, "text", shape(&config.blocks, config.causal, true))?,
            norm: LayerNorm::load(tensors, "text.norm", width, config.blocks.eps)?,
            projection: Linear::load(tensors, "text.projection", model.dim, width, bias)?,
            config,
        })
    }

    /// Features of texts given as tokens; every text has `context` of them, padding included. Rows are not scaled
    /// to unit length.
    pub fn forward(&self, texts: &[Vec<u32>]) -> Vec<f32> {
        // What follows the end of a text is not seen in a causal tower, so texts are cut there; those of about the
        // same length go together.
        let ends: Vec<usize> = texts.iter().map(|ids| self.pooled(ids)).collect();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| ends[i]);
        let dim = self.projection.outputs();
        let mut features = vec![0.0; texts.len() * dim];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let n = (ROWS_AT_A_TIME / (ends[rest[0]] + 1)).clamp(1, rest.len());
            let (part, after) = rest.split_at(n);
            let tokens = part.iter().map(|&i| ends[i] + 1).max().unwrap_or(1);
            let ids: Vec<&[u32]> = part.iter().map(|&i| &texts[i][..tokens]).collect();
            let pooled: Vec<usize> = part.iter().map(|&i| ends[i]).collect();
            for (row, &i) in self.forward_part(&ids, tokens, &pooled).chunks(dim).zip(part) {
                features[i * dim..][..dim].copy_from_slice(row);
            }
            rest = after;
        }
        features
    }

    /// The place that is read in the end: the first of the largest token, or the last one.
    fn pooled(&self, ids: &[u32]) -> usize {
        if self.config.causal {
            let end = ids.iter().copied().max().unwrap_or(0);
            ids.iter().position(|&id| id == end).unwrap_or(0)
        } else {
            ids.len().saturating_sub(1)
        }
    }

    fn forward_part(&self, texts: &[&[u32]], tokens: usize, pooled: &[usize]) -> Vec<f32> {
        let width = self.config.blocks.width;
        let mut x = Vec::with_capacity(texts.len() * tokens * width);
        for ids in texts {
            for (place, &id) in ids.iter().enumerate() {
                let token = &self.token[id as usize * width..][..width];
                x.extend(token.iter().zip(&self.position[place * width..]).map(|(t, p)| t + p));
            }
        }
        self.transformer.forward(&mut x, tokens, Some(pooled));
        self.norm.apply(&mut x);
        let mut features = vec![0.0; texts.len() * self.projection.outputs()];
        self.projection.forward(&x, &mut features);
        features
    }
}
