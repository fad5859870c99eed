//! What passes cost, counted from the sizes: two operations per multiplication and addition of a product. Norms,
//! activations and softmax are left out; they are below one per cent.
//!
//! A backward computes one product per linear layer for the gradient of its input, and one more where its weight is
//! trained; attention's two products have two gradients each.

use crate::config::{BlockConfig, ModelConfig};

/// Operations of the linear layers and of attention in one block.
fn block(blocks: &BlockConfig, tokens: usize) -> (f64, f64) {
    let (t, w, h) = (tokens as f64, blocks.width as f64, blocks.hidden as f64);
    (2.0 * t * (4.0 * w * w + 2.0 * w * h), 4.0 * t * t * w)
}

/// One picture forward through the image tower.
pub fn image_forward(config: &ModelConfig) -> f64 {
    let (vision, width) = (&config.vision, config.vision.blocks.width as f64);
    let (linear, attention) = block(&vision.blocks, vision.tokens());
    let patches = 2.0 * vision.patches() as f64 * width * (3 * vision.patch * vision.patch) as f64;
    patches + vision.blocks.layers as f64 * (linear + attention) + 2.0 * width * config.dim as f64
}

/// One picture backward, `all` if the linear weights are trained, too.
pub fn image_backward(config: &ModelConfig, all: bool) -> f64 {
    let (vision, width) = (&config.vision, config.vision.blocks.width as f64);
    let (linear, attention) = block(&vision.blocks, vision.tokens());
    let each = if all { 2.0 } else { 1.0 };
    let patches = 2.0 * vision.patches() as f64 * width * (3 * vision.patch * vision.patch) as f64;
    let inner = vision.blocks.layers as f64 * (each * linear + 2.0 * attention);
    inner + each * 2.0 * width * config.dim as f64 + if all { patches } else { 0.0 }
}

/// One text of `tokens` tokens forward through the text tower.
pub fn text_forward(config: &ModelConfig, tokens: usize) -> f64 {
    let blocks = &config.text.blocks;
    let (linear, attention) = block(blocks, tokens);
    blocks.layers as f64 * (linear + attention) + 2.0 * (blocks.width * config.dim) as f64
}

/// One text backward to its embeddings, all weights frozen.
pub fn text_backward(config: &ModelConfig, tokens: usize) -> f64 {
    let blocks = &config.text.blocks;
    let (linear, attention) = block(blocks, tokens);
    blocks.layers as f64 * (linear + 2.0 * attention) + 2.0 * (blocks.width * config.dim) as f64
}

/// One feature against all classes.
pub fn head(classes: usize, dim: usize) -> f64 {
    2.0 * (classes * dim) as f64
}
