//! What a model is: sizes of its towers, its preprocessing, its tokeniser. Read from the JSON files that
//! `transformers` and `open_clip` put beside the weights.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::weights::{Layout, Tensors};
use crate::{Activation, Error, Result};

/// A dual encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The image tower.
    pub vision: VisionConfig,
    /// The text tower.
    pub text: TextConfig,
    /// Length of a feature.
    pub dim: usize,
    /// How pictures become input.
    pub preprocess: Preprocess,
    /// How text becomes tokens.
    pub tokens: TokenKind,
}

/// Sizes of the image tower.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Side of the square input.
    pub image_size: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Sizes of the transformer.
    pub blocks: BlockConfig,
    /// How the patches become one vector.
    pub pool: VisionPool,
}

/// How the image tower's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionPool {
    /// A class token, normalised and projected: CLIP.
    ClassToken,
    /// A learnt query attends to the patches: SigLIP.
    Attention,
    /// The mean of a grid of convolutions attends to the grid: CLIP's residual networks. So many blocks make each
    /// of its four stages; a place of the grid is a patch, `blocks` tells the attention's sizes and, as `hidden`,
    /// the width inside of the last stage's blocks.
    MeanQuery([usize; 4]),
}

/// Sizes of the text tower.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Number of tokens there are.
    pub vocabulary: usize,
    /// Tokens of a text.
    pub context: usize,
    /// Sizes of the transformer.
    pub blocks: BlockConfig,
    /// Whether a token sees only those before it, and the end of the text is read: CLIP. Otherwise all tokens see
    /// each other and the last place is read: SigLIP.
    pub causal: bool,
}

/// Sizes of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockConfig {
    /// Length of a token's vector.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// Its non-linearity.
    pub activation: Activation,
    /// Added to variances.
    pub eps: f32,
}

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// CLIP's byte pairs, shipped with this crate.
    Clip,
    /// A unigram model, read from the model's `tokenizer.json`: SigLIP.
    Unigram,
}

/// How a picture becomes the input of the image tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Side of the square that goes in.
    pub size: usize,
    /// How the picture is brought to that size.
    pub resize: Resize,
    /// The filter.
    pub filter: Filter,
    /// Subtracted from each channel (of values in [0, 1]) …
    pub mean: [f32; 3],
    /// … which is then divided by this.
    pub std: [f32; 3],
}

/// How a picture is brought to the input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side is scaled to this length, and the middle is cut out.
    Shortest(usize),
    /// Both sides are scaled, each for itself.
    Squash,
}

/// The filter of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Catmull-Rom, as Pillow's BICUBIC.
    Bicubic,
    /// A triangle.
    Bilinear,
}

impl Preprocess {
    /// That of OpenAI's models.
    pub fn openai(size: usize) -> Self {
        Self {
            size,
            resize: Resize::Shortest(size),
            filter: Filter::Bicubic,
            mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
        }
    }

    /// That of SigLIP.
    pub fn siglip(size: usize) -> Self {
        Self { size, resize: Resize::Squash, filter: Filter::Bicubic, mean: [0.5; 3], std: [0.5; 3] }
    }

    /// A line for people and for files: what a features file must agree on.
    pub fn describe(&self) -> String {
        let resize = match self.resize {
            Resize::Shortest(size) => format!("shortest {size}"),
            Resize::Squash => "squash".into(),
        };
        let filter = match self.filter {
            Filter::Bicubic => "bicubic",
            Filter::Bilinear => "bilinear",
        };
        format!("{resize}, {filter}, crop {}, mean {:?}, std {:?}", self.size, self.mean, self.std)
    }
}

impl VisionConfig {
    /// Number of patches.
    pub fn patches(&self) -> usize {
        (self.image_size / self.patch) * (self.image_size / self.patch)
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.patches() + usize::from(self.pool != VisionPool::Attention)
    }
}

/// The file that describes a model of `transformers`.
pub const HF_CONFIG: &str = "config.json";
/// The file that describes a model of `open_clip`.
pub const OPEN_CLIP_CONFIG: &str = "open_clip_config.json";
/// The file that describes the preprocessing of a model of `transformers`.
pub const HF_PREPROCESS: &str = "preprocessor_config.json";

impl ModelConfig {
    /// Reads the configuration in a folder; the weights' layout says whose it is.
    pub fn load(folder: &Path, tensors: &Tensors) -> Result<Self> {
        let config = match tensors.layout() {
            Layout::HfClip => hf_clip(folder),
            Layout::HfSiglip => hf_siglip(folder),
            Layout::OpenClip | Layout::OpenClipTimm | Layout::OpenClipResNet => open_clip(folder, tensors),
        }?;
        config.check(folder)?;
        Ok(config)
    }

    fn check(&self, folder: &Path) -> Result<()> {
        let bad = |reason: String| Err(Error::model(folder, reason));
        for (tower, blocks) in [("vision", &self.vision.blocks), ("text", &self.text.blocks)] {
            let sizes = [blocks.width, blocks.layers, blocks.heads, blocks.hidden];
            if sizes.contains(&0) || sizes.iter().any(|&n| n > 1 << 16) {
                return bad(format!("{tower}: sizes between 1 and 65536 expected, got {sizes:?}"));
            }
            if !blocks.width.is_multiple_of(blocks.heads) {
                return bad(format!(
                    "{tower}: width {} is not a multiple of {} heads",
                    blocks.width, blocks.heads
                ));
            }
        }
        let VisionConfig { image_size, patch, .. } = self.vision;
        if patch == 0 || image_size < patch || image_size > 1 << 13 {
            return bad(format!("vision: patches of {patch} in an image of {image_size}"));
        }
        if let VisionPool::MeanQuery(stages) = self.vision.pool {
            let width = self.vision.blocks.width;
            let depth: usize = stages.iter().fold(0, |sum, &n| sum.saturating_add(n));
            if !width.is_multiple_of(64) || !image_size.is_multiple_of(patch) || depth > 1 << 10 {
                return bad(format!(
                    "vision: a residual network of width {width} / 32 with stages {stages:?} for images of \
                     {image_size}; expected an even width, stages of 1024 blocks at most and a multiple of {patch}"
                ));
            }
        }
        if self.text.context < 2 || self.text.context > 1 << 16 || self.text.vocabulary < 3 || self.dim == 0 {
            return bad(format!(
                "text: context {}, vocabulary {}, features of {}",
                self.text.context, self.text.vocabulary, self.dim
            ));
        }
        if self.preprocess.size != image_size {
            return bad(format!(
                "the preprocessing makes images of {}, the model takes {image_size}",
                self.preprocess.size
            ));
        }
        Ok(())
    }
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("opening", path, e))?;
    serde_json::from_str(&text).map_err(|e| Error::model(path, format!("not the expected JSON: {e}")))
}

/// A tower in a `config.json`; what it leaves out has the library's default.
#[derive(Deserialize, Default)]
#[serde(default)]
struct HfTower {
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    hidden_act: Option<String>,
    layer_norm_eps: Option<f32>,
    image_size: Option<usize>,
    patch_size: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    projection_size: Option<usize>,
}

#[derive(Deserialize)]
struct HfConfig {
    projection_dim: Option<usize>,
    #[serde(default)]
    vision_config: HfTower,
    #[serde(default)]
    text_config: HfTower,
}

fn activation(name: &str, path: &Path) -> Result<Activation> {
    match name {
        "quick_gelu" => Ok(Activation::QuickGelu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => {
            let known = "quick_gelu, gelu or gelu_pytorch_tanh";
            Err(Error::model(path, format!("hidden_act: expected {known}, got {other:?}")))
        }
    }
}

impl HfTower {
    fn blocks(
        &self,
        (width, hidden, heads): (usize, usize, usize),
        act: &str,
        eps: f32,
        path: &Path,
    ) -> Result<BlockConfig> {
        Ok(BlockConfig {
            width: self.hidden_size.unwrap_or(width),
            layers: self.num_hidden_layers.unwrap_or(12),
            heads: self.num_attention_heads.unwrap_or(heads),
            hidden: self.intermediate_size.unwrap_or(hidden),
            activation: activation(self.hidden_act.as_deref().unwrap_or(act), path)?,
            eps: self.layer_norm_eps.unwrap_or(eps),
        })
    }
}

/// What `transformers` takes for granted of a family of models where its file is silent.
struct HfFamily {
    patch: usize,
    pool: VisionPool,
    vocabulary: usize,
    context: usize,
    /// Width, hidden width and heads of the text tower. Those of the image tower are the same for all families.
    text: (usize, usize, usize),
    causal: bool,
    activation: &'static str,
    eps: f32,
    tokens: TokenKind,
    preprocess: fn(usize) -> Preprocess,
}

fn hf_clip(folder: &Path) -> Result<ModelConfig> {
    let family = HfFamily {
        patch: 32,
        pool: VisionPool::ClassToken,
        vocabulary: 49408,
        context: 77,
        text: (512, 2048, 8),
        causal: true,
        activation: "quick_gelu",
        eps: 1e-5,
        tokens: TokenKind::Clip,
        preprocess: Preprocess::openai,
    };
    hf_model(folder, family, |config, _| config.projection_dim.unwrap_or(512))
}

fn hf_siglip(folder: &Path) -> Result<ModelConfig> {
    let family = HfFamily {
        patch: 16,
        pool: VisionPool::Attention,
        vocabulary: 32000,
        context: 64,
        text: (768, 3072, 12),
        causal: false,
        activation: "gelu_pytorch_tanh",
        eps: 1e-6,
        tokens: TokenKind::Unigram,
        preprocess: Preprocess::siglip,
    };
    hf_model(folder, family, |config, text| config.text_config.projection_size.unwrap_or(text.blocks.width))
}

fn hf_model(
    folder: &Path,
    family: HfFamily,
    dim: fn(&HfConfig, &TextConfig) -> usize,
) -> Result<ModelConfig> {
    let path = folder.join(HF_CONFIG);
    let config: HfConfig = read_json(&path)?;
    let (v, t) = (&config.vision_config, &config.text_config);
    let image_size = v.image_size.unwrap_or(224);
    let vision = VisionConfig {
        image_size,
        patch: v.patch_size.unwrap_or(family.patch),
        blocks: v.blocks((768, 3072, 12), family.activation, family.eps, &path)?,
        pool: family.pool,
    };
    let text = TextConfig {
        vocabulary: t.vocab_size.unwrap_or(family.vocabulary),
        context: t.max_position_embeddings.unwrap_or(family.context),
        blocks: t.blocks(family.text, family.activation, family.eps, &path)?,
        causal: family.causal,
    };
    Ok(ModelConfig {
        dim: dim(&config, &text),
        preprocess: hf_preprocess(folder, (family.preprocess)(image_size))?,
        vision,
        text,
        tokens: family.tokens,
    })
}

/// A size as `transformers` writes it: a number, `{shortest_edge}` or `{height, width}`.
fn side(value: &Value) -> Option<(usize, bool)> {
    if let Some(n) = value.as_u64() {
        return Some((n as usize, true));
    }
    if let Some(n) = value.get("shortest_edge").and_then(Value::as_u64) {
        return Some((n as usize, true));
    }
    let (h, w) = (value.get("height")?.as_u64()?, value.get("width")?.as_u64()?);
    (h == w).then_some((h as usize, false))
}

fn hf_preprocess(folder: &Path, default: Preprocess) -> Result<Preprocess> {
    let path = folder.join(HF_PREPROCESS);
    if !path.exists() {
        return Ok(default);
    }
    let file: Value = read_json(&path)?;
    let bad = |what: &str| Error::model(&path, format!("{what}: {}", file[what]));
    let mut preprocess = default;
    let channels = |what: &str, old: [f32; 3]| match &file[what] {
        Value::Null => Ok(old),
        value => serde_json::from_value(value.clone()).map_err(|_| bad(what)),
    };
    preprocess.mean = channels("image_mean", preprocess.mean)?;
    preprocess.std = channels("image_std", preprocess.std)?;
    preprocess.filter = match file["resample"].as_u64() {
        None | Some(3) => Filter::Bicubic,
        Some(2) => Filter::Bilinear,
        Some(_) => return Err(bad("resample")),
    };
    let flag = |what: &str| file[what].as_bool().unwrap_or(true);
    let crops = flag("do_center_crop") && !file["crop_size"].is_null();
    if !file["size"].is_null() {
        let (size, shortest) = side(&file["size"]).ok_or_else(|| bad("size"))?;
        preprocess.size =
            if crops { side(&file["crop_size"]).ok_or_else(|| bad("crop_size"))?.0 } else { size };
        preprocess.resize = if shortest { Resize::Shortest(size) } else { Resize::Squash };
    }
    Ok(preprocess)
}

#[derive(Deserialize)]
struct OpenClipFile {
    model_cfg: OpenClipModel,
    #[serde(default)]
    preprocess_cfg: OpenClipPreprocess,
}

#[derive(Deserialize)]
struct OpenClipModel {
    embed_dim: usize,
    #[serde(default)]
    quick_gelu: bool,
    vision_cfg: OpenClipVision,
    text_cfg: OpenClipText,
}

#[derive(Deserialize)]
struct OpenClipVision {
    image_size: Option<usize>,
    layers: Option<OpenClipLayers>,
    width: Option<usize>,
    head_width: Option<usize>,
    mlp_ratio: Option<f64>,
    patch_size: Option<usize>,
    timm_model_name: Option<String>,
}

/// Blocks of a transformer, or of the four stages of a residual network.
#[derive(Deserialize)]
#[serde(untagged)]
enum OpenClipLayers {
    Blocks(usize),
    Stages([usize; 4]),
}

#[derive(Deserialize)]
struct OpenClipText {
    context_length: Option<usize>,
    vocab_size: Option<usize>,
    width: Option<usize>,
    heads: Option<usize>,
    layers: Option<usize>,
    mlp_ratio: Option<f64>,
    hf_tokenizer_name: Option<String>,
    #[serde(default)]
    no_causal_mask: bool,
    norm_kwargs: Option<Value>,
}

#[derive(Deserialize, Default)]
struct OpenClipPreprocess {
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
    interpolation: Option<String>,
    resize_mode: Option<String>,
}

/// Width of the layer between, from a ratio to the width.
fn ratio(width: usize, ratio: Option<f64>) -> usize {
    (width as f64 * ratio.unwrap_or(4.0)) as usize
}

/// Patch, blocks and pooling of the image tower.
fn open_clip_tower(
    v: &OpenClipVision,
    gelu: Activation,
    tensors: &Tensors,
) -> Result<(usize, BlockConfig, VisionPool), String> {
    Ok(match (&v.timm_model_name, &v.layers) {
        (None, Some(OpenClipLayers::Stages(stages))) => {
            let width = v.width.unwrap_or(64).saturating_mul(32);
            let blocks = BlockConfig {
                width,
                layers: stages.iter().fold(0, |sum, &n| sum.saturating_add(n)),
                heads: width / v.head_width.unwrap_or(64).max(1),
                hidden: width / 4,
                activation: Activation::Relu,
                eps: 1e-5,
            };
            (32, blocks, VisionPool::MeanQuery(*stages))
        }
        (None, layers) => {
            let width = v.width.unwrap_or(768);
            let blocks = BlockConfig {
                width,
                layers: match layers {
                    Some(OpenClipLayers::Blocks(layers)) => *layers,
                    _ => 12,
                },
                heads: width / v.head_width.unwrap_or(64).max(1),
                hidden: ratio(width, v.mlp_ratio),
                activation: gelu,
                eps: 1e-5,
            };
            (v.patch_size.unwrap_or(16), blocks, VisionPool::ClassToken)
        }
        (Some(name), _) => {
            let shape = tensors.shape("vision.patch.weight").unwrap_or_default();
            let hidden = tensors.shape("vision.blocks.0.mlp.fc1.weight").unwrap_or_default();
            let (&[width, _, patch, _], &[hidden, _]) = (&shape[..], &hidden[..]) else {
                return Err(format!("no vision transformer as {name} was expected"));
            };
            // timm's SigLIP heads are 64 wide, but for the shape-optimised model's 72.
            let heads = if width % 72 == 0 && width % 64 != 0 { width / 72 } else { width / 64 };
            let tanh = name.contains("so400m") || name.contains("patch32");
            let blocks = BlockConfig {
                width,
                layers: tensors.layers("vision"),
                heads: heads.max(1),
                hidden,
                activation: if tanh { Activation::GeluTanh } else { Activation::Gelu },
                eps: 1e-6,
            };
            (patch, blocks, VisionPool::Attention)
        }
    })
}

/// What is done to pictures, where it differs from what is usual.
fn open_clip_preprocess(
    given: &OpenClipPreprocess,
    mut preprocess: Preprocess,
    image_size: usize,
) -> Result<Preprocess, String> {
    preprocess.mean = given.mean.unwrap_or(preprocess.mean);
    preprocess.std = given.std.unwrap_or(preprocess.std);
    match given.interpolation.as_deref() {
        None | Some("bicubic" | "random") => {}
        Some("bilinear") => preprocess.filter = Filter::Bilinear,
        Some(other) => return Err(format!("interpolation: {other:?}")),
    }
    match given.resize_mode.as_deref() {
        None => {}
        Some("shortest") => preprocess.resize = Resize::Shortest(image_size),
        Some("squash") => preprocess.resize = Resize::Squash,
        Some(other) => {
            return Err(format!("resize_mode: expected shortest or squash, got {other:?}"));
        }
    }
    Ok(preprocess)
}

fn open_clip(folder: &Path, tensors: &Tensors) -> Result<ModelConfig> {
    let path = folder.join(OPEN_CLIP_CONFIG);
    let file: OpenClipFile = read_json(&path)?;
    let model = &file.model_cfg;
    let (v, t) = (&model.vision_cfg, &model.text_cfg);
    let gelu = if model.quick_gelu { Activation::QuickGelu } else { Activation::Gelu };
    let image_size = v.image_size.unwrap_or(224);
    let (patch, blocks, pool) =
        open_clip_tower(v, gelu, tensors).map_err(|reason| Error::model(&path, reason))?;
    let width = t.width.unwrap_or(512);
    let eps = t.norm_kwargs.as_ref().and_then(|k| k["eps"].as_f64()).unwrap_or(1e-5);
    let text = TextConfig {
        vocabulary: t.vocab_size.unwrap_or(49408),
        context: t.context_length.unwrap_or(77),
        blocks: BlockConfig {
            width,
            layers: t.layers.unwrap_or(12),
            heads: t.heads.unwrap_or(8),
            hidden: ratio(width, t.mlp_ratio),
            activation: gelu,
            eps: eps as f32,
        },
        causal: !t.no_causal_mask,
    };
    let timm = v.timm_model_name.is_some();
    let usual = if timm { Preprocess::siglip(image_size) } else { Preprocess::openai(image_size) };
    let preprocess = open_clip_preprocess(&file.preprocess_cfg, usual, image_size)
        .map_err(|reason| Error::model(&path, reason))?;
    let tokens = if t.hf_tokenizer_name.is_some() { TokenKind::Unigram } else { TokenKind::Clip };
    let vision = VisionConfig { image_size, patch, blocks, pool };
    Ok(ModelConfig { vision, text, dim: model.embed_dim, preprocess, tokens })
}
