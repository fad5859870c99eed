//! CLIP's two towers, differentiable: the same weights and names as `ultta-encode` reads, the arithmetic on candle.
//!
//! A forward takes its weights by name from a [`Weights`]. Those that are variables get gradients; for all others
//! none is computed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use ultta_encode::Activation;
use ultta_encode::config::{BlockConfig, ModelConfig, Preprocess, VisionPool};
use ultta_encode::encoder::open_weights;
use ultta_encode::tokens::Tokenizer;
use ultta_encode::weights::Tensors;
use ultta_formats::Dtype;
use ultta_formats::numbers::Number;
use ultta_formats::tensors::NewTensor;

use crate::ops::{layer_norm, linear, quick_gelu, softmax, unit};
use crate::{Error, Result};

/// Added to what a token must not see.
const HIDDEN: f32 = -1e9;

/// Weights by name; names as in [`ultta_encode::weights`].
pub type Weights = BTreeMap<String, Tensor>;

/// A CLIP model with its weights as tensors.
pub struct Model {
    name: String,
    config: ModelConfig,
    weights: Weights,
    tokenizer: Tokenizer,
    logit_scale: f32,
}

/// What a name's tensor is shaped like.
fn shapes(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut list = Vec::new();
    let mut add = |name: &str, shape: &[usize]| list.push((name.to_string(), shape.to_vec()));
    let (vision, text) = (&config.vision, &config.text);
    let width = vision.blocks.width;
    add("vision.patch.weight", &[width, 3 * vision.patch * vision.patch]);
    add("vision.class", &[width]);
    add("vision.position", &[vision.tokens(), width]);
    add("vision.norm_pre.weight", &[width]);
    add("vision.norm_pre.bias", &[width]);
    for (tower, blocks) in [("vision", &vision.blocks), ("text", &text.blocks)] {
        let &BlockConfig { width, hidden, layers, .. } = blocks;
        for layer in 0..layers {
            for (part, outputs, inputs) in [
                ("attention.qkv", 3 * width, width),
                ("attention.out", width, width),
                ("mlp.fc1", hidden, width),
                ("mlp.fc2", width, hidden),
            ] {
                add(&format!("{tower}.blocks.{layer}.{part}.weight"), &[outputs, inputs]);
                add(&format!("{tower}.blocks.{layer}.{part}.bias"), &[outputs]);
            }
            for norm in ["norm1", "norm2"] {
                add(&format!("{tower}.blocks.{layer}.{norm}.weight"), &[width]);
                add(&format!("{tower}.blocks.{layer}.{norm}.bias"), &[width]);
            }
        }
    }
    add("vision.norm_post.weight", &[width]);
    add("vision.norm_post.bias", &[width]);
    add("vision.projection.weight", &[config.dim, width]);
    add("text.token", &[text.vocabulary, text.blocks.width]);
    add("text.position", &[text.context, text.blocks.width]);
    add("text.norm.weight", &[text.blocks.width]);
    add("text.norm.bias", &[text.blocks.width]);
    add("text.projection.weight", &[config.dim, text.blocks.width]);
    list
}

impl Model {
    /// Opens a model by folder or hub name, or the tiny one, as `ultta_encode::open` does.
    pub fn open(model: &str) -> Result<Self> {
        if model == ultta_encode::tiny::NAME {
            let (tensors, config) = (ultta_encode::tiny::tensors()?, ultta_encode::tiny::config());
            return Self::of(model, &tensors, config);
        }
        let folder: PathBuf = if Path::new(model).is_dir() {
            model.into()
        } else {
            ultta_encode::hub::Hub::from_environment()?
                .model(ultta_encode::models::full_name(model), &mut |_| {})?
        };
        if folder.join("image.onnx").exists() {
            let reason =
                "gradients need weights in the layout of transformers or open_clip, got an ONNX model";
            return Err(Error::Model(format!("{model}: {reason}")));
        }
        let tensors = open_weights(&folder)?;
        let config = ModelConfig::load(&folder, &tensors)?;
        Self::of(model, &tensors, config)
    }

    fn of(model: &str, tensors: &Tensors, config: ModelConfig) -> Result<Self> {
        let logit_scale = tensors.scalar("logit_scale").map_or(100.0, f32::exp);
        let weights = read(tensors, &config)?;
        Self::new(model, config, weights, logit_scale)
    }

    /// A model of these weights.
    pub fn new(name: &str, config: ModelConfig, weights: Weights, logit_scale: f32) -> Result<Self> {
        class_token(&config)?;
        for (name, shape) in shapes(&config) {
            match weights.get(&name) {
                Some(tensor) if tensor.dims() == shape => {}
                Some(other) => {
                    let got = other.dims();
                    return Err(Error::Model(format!("{name}: expected shape {shape:?}, got {got:?}")));
                }
                None => return Err(Error::Model(format!("{name}: expected a weight, got none"))),
            }
        }
        let tokenizer = Tokenizer::clip(config.text.context);
        Ok(Self { name: name.to_string(), config, weights, tokenizer, logit_scale })
    }

    /// A model with random weights, for measurements and tests.
    pub fn random(name: &str, config: ModelConfig, seed: u64) -> Result<Self> {
        class_token(&config)?;
        let mut random = ultta_eval::random::Random::new(seed);
        let mut weights = Weights::new();
        for (name, shape) in shapes(&config) {
            let n: usize = shape.iter().product();
            let values: Vec<f32> = if name.contains("norm") {
                vec![if name.ends_with("weight") { 1.0 } else { 0.0 }; n]
            } else if name.ends_with("bias") {
                vec![0.0; n]
            } else {
                let size = if shape.len() == 2 && !name.contains("position") {
                    1.0 / (*shape.last().expect("two dimensions") as f64).sqrt()
                } else {
                    0.02
                };
                (0..n).map(|_| (size * random.normal()) as f32).collect()
            };
            weights.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
        }
        Self::new(name, config, weights, 100.0)
    }

    /// Names in transformers, shapes and values of all weights.
    pub(crate) fn named(&self) -> Result<Vec<(String, Vec<usize>, Vec<f32>)>> {
        let mut list = Vec::new();
        for (name, tensor) in &self.weights {
            let values = crate::ops::with(tensor, <[f32]>::to_vec)?;
            let mut shape = tensor.dims().to_vec();
            let name = hf_name(name);
            if let Some((before, kind)) = name.split_once("self_attn.qkv.") {
                shape[0] /= 3;
                for (part, values) in ["q", "k", "v"].iter().zip(values.chunks_exact(values.len() / 3)) {
                    let name = format!("{before}self_attn.{part}_proj.{kind}");
                    list.push((name, shape.clone(), values.to_vec()));
                }
                continue;
            }
            if name.ends_with("patch_embedding.weight") {
                let patch = self.config.vision.patch;
                shape = vec![shape[0], 3, patch, patch];
            }
            list.push((name, shape, values));
        }
        list.push(("logit_scale".into(), vec![], vec![self.logit_scale.ln()]));
        Ok(list)
    }

    /// Writes a folder in the layout of transformers, which `ultta-encode` opens.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let io = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Core(ultta::Error::Io { doing, source, path })
        };
        std::fs::create_dir_all(folder).map_err(io("making a folder", folder))?;
        let bytes = <f32 as Number>::encode;
        let files: Vec<(String, Vec<usize>, Vec<u8>)> =
            self.named()?.into_iter().map(|(name, shape, values)| (name, shape, bytes(&values))).collect();
        let tensors = files.iter().map(|(name, shape, bytes)| NewTensor {
            name,
            dtype: Dtype::F32,
            shape: shape.clone(),
            bytes,
        });
        let whole = ultta_formats::to_bytes(tensors.collect(), &Default::default());
        ultta_formats::write_atomically(&folder.join("model.safetensors"), &whole)?;
        let (vision, text) = (&self.config.vision, &self.config.text);
        let tower = |blocks: &BlockConfig| {
            serde_json::json!({
                "hidden_size": blocks.width,
                "intermediate_size": blocks.hidden,
                "num_hidden_layers": blocks.layers,
                "num_attention_heads": blocks.heads,
                "layer_norm_eps": blocks.eps,
                "hidden_act": match blocks.activation {
                    Activation::QuickGelu => "quick_gelu",
                    Activation::Gelu => "gelu",
                    Activation::GeluTanh => "gelu_pytorch_tanh",
                    Activation::Relu => "relu",
                },
            })
        };
        let (mut image, mut words) = (tower(&vision.blocks), tower(&text.blocks));
        image["image_size"] = vision.image_size.into();
        image["patch_size"] = vision.patch.into();
        words["vocab_size"] = text.vocabulary.into();
        words["max_position_embeddings"] = text.context.into();
        let config = serde_json::json!({
            "model_type": "clip",
            "projection_dim": self.config.dim,
            "vision_config": image,
            "text_config": words,
        });
        let text = serde_json::to_vec_pretty(&config).unwrap_or_default();
        ultta_formats::write_atomically(&folder.join("config.json"), &text)?;
        Ok(())
    }

    /// Where it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes and preprocessing.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How pictures become input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.config.preprocess
    }

    /// The frozen weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// What turns cosines into logits.
    pub fn logit_scale(&self) -> f32 {
        self.logit_scale
    }

    /// Text to tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Floats of one preprocessed picture.
    pub fn input_len(&self) -> usize {
        3 * self.config.vision.image_size * self.config.vision.image_size
    }

    /// Preprocessed pictures as rows of patches, [pictures, patches, 3 · patch²].
    pub fn patches(&self, pixels: &[f32]) -> Result<Tensor> {
        let (size, patch, len) = (self.config.vision.image_size, self.config.vision.patch, self.input_len());
        if pixels.is_empty() || !pixels.len().is_multiple_of(len) {
            return Err(Error::shape("pixels of a picture", len, pixels.len() % len));
        }
        let (across, inputs) = (size / patch, 3 * patch * patch);
        let n = pixels.len() / len;
        let mut rows = Vec::with_capacity(n * across * across * inputs);
        for picture in pixels.chunks_exact(len) {
            for index in 0..across * across {
                let (top, left) = (index / across * patch, index % across * patch);
                for line in 0..3 * patch {
                    let (channel, y) = (line / patch, line % patch);
                    let start = (channel * size + top + y) * size + left;
                    rows.extend_from_slice(&picture[start..start + patch]);
                }
            }
        }
        Ok(Tensor::from_vec(rows, (n, across * across, inputs), &Device::Cpu)?)
    }

    /// Class tokens behind the last LayerNorm, before the projection: [pictures, width].
    pub fn pooled(&self, weights: &Weights, patches: &Tensor) -> Result<Tensor> {
        let (n, _, _) = patches.dims3()?;
        let blocks = &self.config.vision.blocks;
        let x = linear(patches, get(weights, "vision.patch.weight")?, weights.get("vision.patch.bias"))?;
        let class = get(weights, "vision.class")?.reshape((1, 1, blocks.width))?;
        let class = class.broadcast_as((n, 1, blocks.width))?.contiguous()?;
        let x = Tensor::cat(&[&class, &x], 1)?.broadcast_add(get(weights, "vision.position")?)?;
        let x = norm(&x, weights, "vision.norm_pre", blocks.eps)?;
        let x = transformer(x, weights, "vision", blocks, None)?;
        let x = x.narrow(1, 0, 1)?.squeeze(1)?;
        norm(&x, weights, "vision.norm_post", blocks.eps)
    }

    /// Image features of unit length, [pictures, dim].
    pub fn images(&self, weights: &Weights, patches: &Tensor) -> Result<Tensor> {
        let pooled = self.pooled(weights, patches)?;
        Ok(unit(&linear(&pooled, get(weights, "vision.projection.weight")?, None)?)?)
    }

    /// Text features of unit length from embedded tokens [texts, tokens, width], read at the places `ends`.
    pub fn texts(&self, weights: &Weights, embedded: &Tensor, ends: &[usize]) -> Result<Tensor> {
        let (n, tokens, width) = embedded.dims3()?;
        let blocks = &self.config.text.blocks;
        let x = embedded.broadcast_add(&get(weights, "text.position")?.narrow(0, 0, tokens)?)?;
        let mask: Vec<f32> =
            (0..tokens * tokens).map(|i| if i % tokens > i / tokens { HIDDEN } else { 0.0 }).collect();
        let mask = Tensor::from_vec(mask, (1, 1, tokens, tokens), &Device::Cpu)?;
        let x = transformer(x, weights, "text", blocks, Some(&mask))?;
        let places: Vec<u32> = ends.iter().enumerate().map(|(i, &e)| (i * tokens + e) as u32).collect();
        let x = x.reshape((n * tokens, width))?.index_select(&Tensor::new(places, &Device::Cpu)?, 0)?;
        let x = norm(&x, weights, "text.norm", blocks.eps)?;
        Ok(unit(&linear(&x, get(weights, "text.projection.weight")?, None)?)?)
    }

    /// Tokens of texts, cut behind the longest, and the place of each text's end.
    pub fn tokens(&self, texts: &[String]) -> Result<(Vec<Vec<u32>>, Vec<usize>)> {
        let mut ids = texts.iter().map(|t| self.tokenizer.encode(t)).collect::<Result<Vec<_>, _>>()?;
        let vocabulary = self.config.text.vocabulary;
        if let Some(id) = ids.iter().flatten().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::Model(format!(
                "token {id}: expected one below the vocabulary's {vocabulary}"
            )));
        }
        let end = |ids: &Vec<u32>| {
            let last = ids.iter().copied().max().unwrap_or(0);
            ids.iter().position(|&id| id == last).unwrap_or(0)
        };
        let ends: Vec<usize> = ids.iter().map(end).collect();
        let tokens = ends.iter().max().map_or(1, |e| e + 1);
        ids.iter_mut().for_each(|ids| ids.truncate(tokens));
        Ok((ids, ends))
    }

    /// Embeddings of tokens, [texts, tokens, width].
    pub fn embed(&self, weights: &Weights, ids: &[Vec<u32>]) -> Result<Tensor> {
        let tokens = ids.first().map_or(0, Vec::len);
        let flat: Vec<u32> = ids.concat();
        let table = get(weights, "text.token")?;
        let rows = table.index_select(&Tensor::new(flat, &Device::Cpu)?, 0)?;
        Ok(rows.reshape((ids.len(), tokens, self.config.text.blocks.width))?)
    }
}

/// The name of a weight in transformers; query, key and value still in one.
fn hf_name(name: &str) -> String {
    match name {
        "vision.class" => return "vision_model.embeddings.class_embedding".into(),
        "vision.position" => return "vision_model.embeddings.position_embedding.weight".into(),
        "text.token" => return "text_model.embeddings.token_embedding.weight".into(),
        "text.position" => return "text_model.embeddings.position_embedding.weight".into(),
        _ => {}
    }
    name.replace("vision.patch", "vision_model.embeddings.patch_embedding")
        .replace("vision.norm_pre", "vision_model.pre_layrnorm")
        .replace("vision.norm_post", "vision_model.post_layernorm")
        .replace("vision.projection", "visual_projection")
        .replace("text.projection", "text_projection")
        .replace("text.norm", "text_model.final_layer_norm")
        .replace("vision.blocks", "vision_model.encoder.layers")
        .replace("text.blocks", "text_model.encoder.layers")
        .replace(".norm1", ".layer_norm1")
        .replace(".norm2", ".layer_norm2")
        .replace("attention.", "self_attn.")
        .replace("self_attn.out", "self_attn.out_proj")
}

fn class_token(config: &ModelConfig) -> Result<()> {
    match config.vision.pool {
        VisionPool::ClassToken => Ok(()),
        VisionPool::Attention => Err(Error::Model(
            "gradients go through CLIP towers (class token); got one that pools by attention (SigLIP)".into(),
        )),
        VisionPool::MeanQuery(_) => Err(Error::Model(
            "gradients go through CLIP's transformers (class token); got a residual network (RN50, RN101)"
                .into(),
        )),
    }
}

fn read(tensors: &Tensors, config: &ModelConfig) -> Result<Weights> {
    class_token(config)?;
    let mut weights = Weights::new();
    let mut names = shapes(config);
    if tensors.has("vision.patch.bias") {
        names.push(("vision.patch.bias".into(), vec![config.vision.blocks.width]));
    }
    for (name, shape) in names {
        let values = tensors
            .get(&name, &shape)
            .map_err(|e| ultta_encode::Error::Model { path: tensors.path().into(), reason: e.to_string() })?;
        weights.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
    }
    Ok(weights)
}

pub(crate) fn get<'a>(weights: &'a Weights, name: &str) -> Result<&'a Tensor> {
    weights.get(name).ok_or_else(|| Error::Model(format!("{name}: expected a weight, got none")))
}

fn norm(x: &Tensor, weights: &Weights, name: &str, eps: f32) -> Result<Tensor> {
    let (scale, shift) = (get(weights, &format!("{name}.weight"))?, get(weights, &format!("{name}.bias"))?);
    Ok(layer_norm(x, scale, shift, eps)?)
}

fn dense(x: &Tensor, weights: &Weights, name: &str) -> Result<Tensor> {
    let bias = weights.get(&format!("{name}.bias"));
    Ok(linear(x, get(weights, &format!("{name}.weight"))?, bias)?)
}

/// The blocks of a tower.
fn transformer(
    mut x: Tensor,
    weights: &Weights,
    tower: &str,
    blocks: &BlockConfig,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    for layer in 0..blocks.layers {
        let base = format!("{tower}.blocks.{layer}");
        let normed = norm(&x, weights, &format!("{base}.norm1"), blocks.eps)?;
        let mixed = attention(&normed, weights, &base, blocks, mask)?;
        x = (x + mixed)?;
        let normed = norm(&x, weights, &format!("{base}.norm2"), blocks.eps)?;
        let hidden = dense(&normed, weights, &format!("{base}.mlp.fc1"))?;
        let hidden = match blocks.activation {
            Activation::QuickGelu => quick_gelu(&hidden)?,
            Activation::Gelu => hidden.gelu_erf()?,
            Activation::GeluTanh => hidden.gelu()?,
            Activation::Relu => hidden.relu()?,
        };
        x = (x + dense(&hidden, weights, &format!("{base}.mlp.fc2"))?)?;
    }
    Ok(x)
}

fn attention(
    x: &Tensor,
    weights: &Weights,
    base: &str,
    blocks: &BlockConfig,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (n, tokens, width) = x.dims3()?;
    let each = width / blocks.heads;
    let qkv = dense(x, weights, &format!("{base}.attention.qkv"))?;
    let part = |which: usize| -> Result<Tensor> {
        let part = qkv.narrow(2, which * width, width)?.reshape((n, tokens, blocks.heads, each))?;
        Ok(part.transpose(1, 2)?.contiguous()?)
    };
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let q = (q * (1.0 / (each as f64).sqrt()))?;
    let mut scores = q.matmul(&k.t()?)?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    let mixed = softmax(&scores)?.matmul(&v)?;
    let mixed = mixed.transpose(1, 2)?.contiguous()?.reshape((n, tokens, width))?;
    dense(&mixed, weights, &format!("{base}.attention.out"))
}

/// Zeros of a shape.
pub(crate) fn zeros(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::zeros(shape, DType::F32, &Device::Cpu)?)
}
