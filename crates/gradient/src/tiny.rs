//! A dual encoder small enough to be trained in seconds, on pictures drawn by this file: ten shapes with their words,
//! in two styles. The model learns one style; the other is a real shift that adaptation can be judged on.

use candle_core::{Device, Tensor};
use ultta_encode::Activation;
use ultta_encode::config::{
    BlockConfig, ModelConfig, Preprocess, TextConfig, TokenKind, VisionConfig, VisionPool,
};
use ultta_encode::decode::Picture;
use ultta_encode::preprocess::preprocess;
use ultta_encode::tokens::Tokenizer;
use ultta_eval::random::Random;

use crate::ops::cross_entropy;
use crate::train::{Kind, Optimizer, Parameters};
use crate::vit::{Model, Weights};
use crate::{Error, Result};

/// The words.
pub const SHAPES: [&str; 10] =
    ["circle", "square", "triangle", "cross", "ring", "diamond", "star", "crescent", "hexagon", "bar"];

/// Pixels across and down.
pub const SIZE: usize = 32;

/// What the prompts of the training say.
const TEMPLATES: [&str; 3] = ["a photo of a {}.", "a drawing of a {}.", "{}"];

/// How shapes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Dark on light paper: what the model is trained on.
    Source,
    /// Dark on darker, rippled paper, with more noise.
    Shifted,
}

/// Below 0 inside the shape; about the distance to its edge.
fn distance(shape: usize, u: f64, v: f64) -> f64 {
    let r = (u * u + v * v).sqrt();
    let angle = v.atan2(u);
    match shape {
        0 => r - 0.62,
        1 => u.abs().max(v.abs()) - 0.56,
        2 => (v - 0.45).max(0.87 * u.abs() - 0.5 * v - 0.4),
        3 => {
            let bar = |a: f64, b: f64| (a.abs() - 0.7).max(b.abs() - 0.2);
            bar(u, v).min(bar(v, u))
        }
        4 => (r - 0.52).abs() - 0.14,
        5 => 0.8 * (u.abs() + v.abs() * 0.8 - 0.68),
        6 => 0.8 * (r - 0.46 - 0.2 * (5.0 * angle).cos()),
        7 => (r - 0.66).max(0.52 - ((u - 0.3).powi(2) + v * v).sqrt()),
        8 => {
            let sector = std::f64::consts::PI / 3.0;
            let folded = (angle + sector / 2.0).rem_euclid(sector) - sector / 2.0;
            r * folded.cos() - 0.56
        }
        _ => (u.abs() - 0.78).max(v.abs() - 0.22),
    }
}

/// Draws a shape.
pub fn draw(shape: usize, style: Style, random: &mut Random) -> Picture {
    let mut range = |low: f64, high: f64| low + (high - low) * random.uniform();
    let (scale, turn) = (range(0.75, 1.1), range(-0.35, 0.35));
    let (left, top) = (range(-0.18, 0.18), range(-0.18, 0.18));
    let light = [range(0.7, 1.0), range(0.7, 1.0), range(0.7, 1.0)];
    let dark = [range(0.0, 0.4), range(0.0, 0.4), range(0.0, 0.4)];
    let middle = [range(0.5, 0.8), range(0.5, 0.8), range(0.5, 0.8)];
    let wave = [range(2.0, 7.0), range(-5.0, 5.0), range(0.0, 6.3)];
    let (ink, paper, noise, texture) = match style {
        Style::Source => (dark, light, 0.04, 0.0),
        Style::Shifted => (dark, middle, 0.10, 0.08),
    };
    let mut rgb = Vec::with_capacity(3 * SIZE * SIZE);
    for y in 0..SIZE {
        for x in 0..SIZE {
            let at = |i: usize| 2.0 * (i as f64 + 0.5) / SIZE as f64 - 1.0;
            let (dx, dy) = ((at(x) - left) / scale, (at(y) - top) / scale);
            let (u, v) = (dx * turn.cos() - dy * turn.sin(), dx * turn.sin() + dy * turn.cos());
            let edge = distance(shape, u, v);
            let cover = (0.5 - edge * SIZE as f64 / 4.0).clamp(0.0, 1.0);
            let ripple = texture * (wave[0] * at(x) + wave[1] * at(y) + wave[2]).sin();
            for c in 0..3 {
                let value = paper[c] + ripple + cover * (ink[c] - paper[c]) + noise * random.normal();
                rgb.push((255.0 * value).clamp(0.0, 255.0).round() as u8);
            }
        }
    }
    Picture { width: SIZE, height: SIZE, rgb }
}

/// Sizes of the model.
pub fn config() -> ModelConfig {
    let blocks = |width: usize, layers: usize| BlockConfig {
        width,
        layers,
        heads: 4,
        hidden: 2 * width,
        activation: Activation::QuickGelu,
        eps: 1e-5,
    };
    ModelConfig {
        vision: VisionConfig {
            image_size: SIZE,
            patch: 8,
            blocks: blocks(64, 4),
            pool: VisionPool::ClassToken,
        },
        text: TextConfig { vocabulary: 49_408, context: 16, blocks: blocks(32, 2), causal: true },
        dim: 32,
        preprocess: Preprocess::openai(SIZE),
        tokens: TokenKind::Clip,
    }
}

/// Preprocessed pictures, `each` of every shape, and their labels, shape after shape.
pub fn pictures(each: usize, style: Style, seed: u64) -> Result<(Vec<f32>, Vec<usize>)> {
    let mut random = Random::new(seed);
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let config = Preprocess::openai(SIZE);
    for shape in 0..SHAPES.len() {
        for _ in 0..each {
            pixels.extend(preprocess(&draw(shape, style, &mut random), &config)?);
            labels.push(shape);
        }
    }
    Ok((pixels, labels))
}

/// Share of pictures of a style that a model names rightly, `each` of every shape.
pub fn accuracy(model: &Model, each: usize, style: Style) -> Result<f64> {
    let prompts: Vec<String> = SHAPES.iter().map(|s| format!("a photo of a {s}.")).collect();
    let (ids, ends) = model.tokens(&prompts)?;
    let words = model.texts(model.weights(), &model.embed(model.weights(), &ids)?, &ends)?;
    let (pixels, labels) = pictures(each, style, 77)?;
    let images = model.images(model.weights(), &model.patches(&pixels)?)?;
    let answers = images.matmul(&words.t()?)?.argmax(1)?.to_vec1::<u32>()?;
    let right = answers.iter().zip(&labels).filter(|(a, b)| **a as usize == **b).count();
    Ok(right as f64 / labels.len().max(1) as f64)
}

/// Trains the model on the source style: softmax over the words' prompts, Adam, `steps` steps of 64 pictures.
pub fn train(steps: usize, seed: u64, mut told: impl FnMut(usize, f64)) -> Result<Model> {
    let full = config();
    let tokenizer = Tokenizer::clip(full.text.context);
    // Only the tokens that occur are trained: a table of these, put into the full one in the end.
    let mut used: Vec<u32> = Vec::new();
    let mut prompts = Vec::new();
    for template in TEMPLATES {
        let texts: Vec<String> = SHAPES.iter().map(|s| template.replace("{}", s)).collect();
        let ids = texts.iter().map(|t| tokenizer.encode(t)).collect::<Result<Vec<_>, _>>()?;
        used.extend(ids.iter().flatten());
        prompts.push(ids);
    }
    used.sort_unstable();
    used.dedup();
    let mut small = full.clone();
    small.text.vocabulary = used.len().max(3);
    let start = Model::random("tiny", small, seed)?;
    let names: Vec<String> = start.weights().keys().cloned().collect();
    let mut parameters = Parameters::new(start.weights(), &names)?;
    parameters.add("logit_scale", Tensor::new(10f32.ln(), &Device::Cpu)?)?;
    let mut adam = Optimizer::new(Kind::Adam, 0.9, 0.0);
    let mut random = Random::new(seed ^ 0x5EED);
    let place = |id: &u32| used.binary_search(id).unwrap_or(0) as u32;
    let batch = 64;
    for step in 0..steps {
        let (mut pixels, mut target) = (Vec::new(), vec![0.0f32; batch * SHAPES.len()]);
        for row in 0..batch {
            let shape = random.below(SHAPES.len());
            target[row * SHAPES.len() + shape] = 1.0;
            pixels.extend(preprocess(&draw(shape, Style::Source, &mut random), &full.preprocess)?);
        }
        let target = Tensor::from_vec(target, (batch, SHAPES.len()), &Device::Cpu)?;
        let weights = parameters.weights();
        let ids = &prompts[random.below(TEMPLATES.len())];
        let end = |ids: &Vec<u32>| ids.iter().position(|&id| id == 49_407).unwrap_or(0);
        let ends: Vec<usize> = ids.iter().map(end).collect();
        let tokens = ends.iter().max().map_or(1, |e| e + 1);
        let mapped: Vec<Vec<u32>> = ids.iter().map(|ids| ids[..tokens].iter().map(place).collect()).collect();
        let texts = start.texts(weights, &start.embed(weights, &mapped)?, &ends)?;
        let images = start.images(weights, &start.patches(&pixels)?)?;
        let scale = weights["logit_scale"].exp()?;
        let logits = images.matmul(&texts.t()?)?.broadcast_mul(&scale)?;
        let loss = cross_entropy(&target, &logits)?.mean_all()?;
        let value = loss.to_scalar::<f32>()? as f64;
        let Some(gradients) = parameters.gradients(&loss.backward()?)? else {
            return Err(Error::Model(format!("training: the gradient of step {step} is not finite")));
        };
        // A warm-up, then down to a tenth.
        let progress = step as f64 / steps.max(1) as f64;
        let lr = 1.5e-3 * ((step + 1) as f64 / 40.0).min(1.0) * (1.0 - 0.9 * progress);
        adam.step(&parameters, &gradients, lr)?;
        told(step, value);
    }
    let mut weights = Weights::new();
    for (name, value) in parameters.values() {
        weights.insert(name.to_string(), value.copy()?.detach());
    }
    let scale = weights.remove("logit_scale").map_or(Ok(10.0), |s| s.exp()?.to_scalar::<f32>())?;
    let width = full.text.blocks.width;
    let mut table: Vec<f32> =
        (0..full.text.vocabulary * width).map(|_| (0.02 * random.normal()) as f32).collect();
    let learnt = crate::ops::with(&weights["text.token"], <[f32]>::to_vec)?;
    for (row, &id) in used.iter().enumerate() {
        table[id as usize * width..][..width].copy_from_slice(&learnt[row * width..][..width]);
    }
    let table = Tensor::from_vec(table, (full.text.vocabulary, width), &Device::Cpu)?;
    weights.insert("text.token".into(), table);
    Model::new("tiny", full, weights, scale.min(100.0))
}
