//! What passes cost, counted from the sizes: two operations per multiplication and addition of a product. Norms,
//! activations and softmax are left out; they are below one per cent.
//!
//! A backward computes one product per linear layer for the gradient of its input, and one more where its weight is
//! trained; attention's two products have two gradients each.

use crate::config::{BlockConfig, ModelConfig, VisionConfig, VisionPool};

/// Operations of the linear layers and of attention in one block.
fn block(blocks: &BlockConfig, tokens: usize) -> (f64, f64) {
    let (t, w, h) = (tokens as f64, blocks.width as f64, blocks.hidden as f64);
    (2.0 * t * (4.0 * w * w + 2.0 * w * h), 4.0 * t * t * w)
}

/// One picture forward through the image tower.
pub fn image_forward(config: &ModelConfig) -> f64 {
    if let VisionPool::MeanQuery(stages) = config.vision.pool {
        return residual_forward(&config.vision, stages, config.dim);
    }
    let (vision, width) = (&config.vision, config.vision.blocks.width as f64);
    let (linear, attention) = block(&vision.blocks, vision.tokens());
    let patches = 2.0 * vision.patches() as f64 * width * (3 * vision.patch * vision.patch) as f64;
    patches + vision.blocks.layers as f64 * (linear + attention) + 2.0 * width * config.dim as f64
}

/// One picture forward through a residual network.
fn residual_forward(vision: &VisionConfig, stages: [usize; 4], dim: usize) -> f64 {
    let width = vision.blocks.width as f64;
    let base = width / 32.0;
    let conv = |side: f64, inputs: f64, outputs: f64| 2.0 * side * side * inputs * outputs;
    let mut side = vision.image_size as f64 / 2.0;
    let mut sum =
        conv(side, 27.0, base / 2.0) + conv(side, 4.5 * base, base / 2.0) + conv(side, 4.5 * base, base);
    side /= 2.0;
    let mut channels = base;
    for (stage, &blocks) in stages.iter().enumerate() {
        let inside = base * f64::from(1 << stage);
        for block in 0..blocks {
            sum += conv(side, channels, inside) + conv(side, 9.0 * inside, inside);
            if block == 0 && stage > 0 {
                side /= 2.0;
            }
            if block == 0 {
                sum += conv(side, channels, 4.0 * inside);
            }
            sum += conv(side, inside, 4.0 * inside);
            channels = 4.0 * inside;
        }
    }
    let tokens = vision.tokens() as f64;
    // Keys and values of all places, one query, and its two products with them.
    sum + 2.0 * width * width * (2.0 * tokens + 1.0) + 4.0 * tokens * width + 2.0 * width * dim as f64
}

/// One picture backward through a transformer, `all` if the linear weights are trained, too.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;
    use crate::config::{Preprocess, TextConfig, TokenKind};

    #[test]
    fn operations_are_those_that_publications_tell() {
        let blocks = |width: usize, heads, hidden, layers| BlockConfig {
            width,
            layers,
            heads,
            hidden,
            activation: Activation::QuickGelu,
            eps: 1e-5,
        };
        let model = |vision, dim| ModelConfig {
            vision,
            text: TextConfig {
                vocabulary: 49408,
                context: 77,
                blocks: blocks(512, 8, 2048, 12),
                causal: true,
            },
            dim,
            preprocess: Preprocess::openai(224),
            tokens: TokenKind::Clip,
        };
        let residual = |stages: [usize; 4], dim| {
            let pool = VisionPool::MeanQuery(stages);
            model(VisionConfig { image_size: 224, patch: 32, blocks: blocks(2048, 32, 512, 16), pool }, dim)
        };
        let transformer = VisionConfig {
            image_size: 224,
            patch: 16,
            blocks: blocks(768, 12, 3072, 12),
            pool: VisionPool::ClassToken,
        };
        // Billions for one picture, as open_clip's profile of image towers lists them. It computes the pooling of a
        // residual network for every place instead of the mean alone.
        for (config, expected) in [
            (residual([3, 4, 6, 3], 1024), 12.22),
            (residual([3, 4, 23, 3], 512), 19.54),
            (model(transformer, 512), 35.13),
        ] {
            let got = image_forward(&config) / 1e9;
            assert!((0.94..1.001).contains(&(got / expected)), "got {got}, expected {expected}");
        }
    }
}
