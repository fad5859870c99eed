//! The trainer of the tiny dual encoder (`ultta_encode::tiny`): seconds on drawn shapes with their words. The model
//! learns one style; the other is a real shift that adaptation can be judged on.

use candle_core::{Device, Tensor};
use ultta_encode::config::Preprocess;
use ultta_encode::preprocess::preprocess;
use ultta_encode::tiny::shapes::{SHAPES, SIZE, Style, draw};
use ultta_encode::tiny::{TABLE, TOKENS, config};
use ultta_encode::tokens::Tokenizer;
use ultta_eval::random::Random;
use ultta_formats::Dtype;
use ultta_formats::numbers::{Number, halves};
use ultta_formats::tensors::NewTensor;

use crate::ops::cross_entropy;
use crate::train::{Kind, Optimizer, Parameters};
use crate::vit::{Model, Weights};
use crate::{Error, Result};

/// What the prompts of the training say.
const TEMPLATES: [&str; 3] = ["a photo of a {}.", "a drawing of a {}.", "{}"];

/// Preprocessed pictures, `each` of every shape, and their labels, shape after shape.
pub fn pictures(each: usize, style: Style, seed: u64) -> Result<(Vec<f32>, Vec<usize>)> {
    let mut random = Random::new(seed);
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let config = Preprocess::openai(SIZE);
    for shape in 0..SHAPES.len() {
        for _ in 0..each {
            pixels.extend(preprocess(&draw(shape, style, || random.uniform()), &config)?);
            labels.push(shape);
        }
    }
    Ok((pixels, labels))
}

/// Share of pictures of a style that a model names rightly, `each` of every shape drawn from this seed.
pub fn accuracy(model: &Model, each: usize, style: Style, seed: u64) -> Result<f64> {
    let prompts: Vec<String> = SHAPES.iter().map(|s| format!("a photo of a {s}.")).collect();
    let (ids, ends) = model.tokens(&prompts)?;
    let words = model.texts(model.weights(), &model.embed(model.weights(), &ids)?, &ends)?;
    let (pixels, labels) = pictures(each, style, seed)?;
    let images = model.images(model.weights(), &model.patches(&pixels)?)?;
    let answers = images.matmul(&words.t()?)?.argmax(1)?.to_vec1::<u32>()?;
    let right = answers.iter().zip(&labels).filter(|(a, b)| **a as usize == **b).count();
    Ok(right as f64 / labels.len().max(1) as f64)
}

/// Token ids of every shape's prompt, by template.
fn prompts(tokenizer: &Tokenizer) -> Result<Vec<Vec<Vec<u32>>>> {
    let of = |template: &&str| {
        let texts = SHAPES.iter().map(|s| tokenizer.encode(&template.replace("{}", s)));
        Ok(texts.collect::<Result<Vec<_>, _>>()?)
    };
    TEMPLATES.iter().map(of).collect()
}

/// The tokens that occur, sorted.
fn used(prompts: &[Vec<Vec<u32>>]) -> Vec<u32> {
    let mut used: Vec<u32> = prompts.iter().flatten().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// The weights as they ship (`ultta_encode::tiny`): in half precision, of the table of tokens the rows that were trained.
pub fn packed(model: &Model) -> Result<Vec<u8>> {
    let used = used(&prompts(model.tokenizer())?);
    let width = model.config().text.blocks.width;
    let mut files: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, mut shape, mut values) in model.named()? {
        if name == TABLE {
            let rows = used.iter().flat_map(|&id| &values[id as usize * width..][..width]).copied().collect();
            (values, shape) = (rows, vec![used.len(), width]);
        }
        files.push((name, Dtype::F16, shape, halves(&values)));
    }
    files.push((TOKENS.into(), Dtype::U32, vec![used.len()], u32::encode(&used)));
    let tensors = files.iter().map(|(name, dtype, shape, bytes)| NewTensor {
        name,
        dtype: *dtype,
        shape: shape.clone(),
        bytes,
    });
    Ok(ultta_formats::to_bytes(tensors.collect(), &Default::default()))
}

/// Trains the model on the source style: softmax over the words' prompts, Adam, `steps` steps of 64 pictures.
pub fn train(steps: usize, seed: u64, mut told: impl FnMut(usize, f64)) -> Result<Model> {
    let full = config();
    let tokenizer = Tokenizer::clip(full.text.context);
    // Only the tokens that occur are trained: a table of these, put into the full one in the end.
    let prompts = prompts(&tokenizer)?;
    let used = used(&prompts);
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
            pixels.extend(preprocess(&draw(shape, Style::Source, || random.uniform()), &full.preprocess)?);
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
