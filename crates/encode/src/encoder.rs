//! [`Encoder`]: a dual encoder of pictures and texts; [`Clip`] is the one in pure Rust.

use std::path::{Path, PathBuf};

use ultta::Features;

use crate::config::{HF_CONFIG, ModelConfig, OPEN_CLIP_CONFIG, Preprocess, VisionPool};
use crate::resnet::ResNet;
use crate::tokens::Tokenizer;
use crate::vit::{TextTower, VisionTower};
use crate::weights::{Layout, Tensors, WeightsError};
use crate::{Error, Result, augment, decode, preprocess, tiny};

/// What is said of an ONNX model in a build that does not read it.
pub const NO_ONNX: &str = "an ONNX model; this build does not read it, for want of the feature `onnx`";

/// A dual encoder: pictures and texts to unit vectors of one space.
pub trait Encoder: Send + Sync {
    /// Where it came from: a hub name or a folder.
    fn name(&self) -> &str;

    /// Length of a feature.
    fn dim(&self) -> usize;

    /// How pictures become input.
    fn preprocess(&self) -> &Preprocess;

    /// Features of preprocessed pictures, one after another.
    fn images(&self, pixels: &[f32]) -> Result<Features<'static>>;

    /// Features of texts.
    fn texts(&self, texts: &[String]) -> Result<Features<'static>>;

    /// What turns cosines into logits.
    fn logit_scale(&self) -> f32;

    /// What a sigmoid model adds to its logits; the same for all classes, so no ranking depends on it.
    fn logit_bias(&self) -> f32 {
        0.0
    }

    /// SHA-256 over configuration and samples of the weights: features and heads of different models are told apart
    /// by it.
    fn digest(&self) -> &str;
}

/// The feature of one encoded file's bytes (JPEG, PNG, …): what a server needs.
///
/// ```no_run
/// # fn main() -> ultta_encode::Result<()> {
/// let encoder = ultta_encode::open("openai/clip-vit-base-patch16")?;
/// let bytes = std::fs::read("cat.jpg").unwrap();
/// let feature = ultta_encode::encode_picture(&*encoder, &bytes, &Default::default())?;
/// assert_eq!(feature.len(), encoder.dim());
/// # Ok(())
/// # }
/// ```
pub fn encode_picture(encoder: &dyn Encoder, bytes: &[u8], limits: &decode::Limits) -> Result<Vec<f32>> {
    let picture = decode::decode(bytes, limits)?;
    let pixels = preprocess::preprocess(&picture, encoder.preprocess())?;
    Ok(encoder.images(&pixels)?.row(0).to_vec())
}

/// Features of `count` weak views of a picture.
pub fn encode_views(
    encoder: &dyn Encoder,
    picture: &decode::Picture,
    count: usize,
    seed: u64,
) -> Result<Features<'static>> {
    let mut pixels = Vec::new();
    for view in 0..count {
        pixels.extend(augment::view(picture, encoder.preprocess(), seed, view as u64)?);
    }
    encoder.images(&pixels)
}

/// CLIP or SigLIP on the CPU, in pure Rust.
pub struct Clip {
    name: String,
    config: ModelConfig,
    vision: ImageTower,
    text: TextTower,
    tokenizer: Tokenizer,
    logit_scale: f32,
    logit_bias: f32,
    digest: String,
}

/// The image tower: a transformer or a residual network.
enum ImageTower {
    Transformer(Box<VisionTower>),
    Residual(Box<ResNet>),
}

impl ImageTower {
    fn load(tensors: &Tensors, config: &ModelConfig) -> Result<Self, WeightsError> {
        Ok(match config.vision.pool {
            VisionPool::MeanQuery(_) => Self::Residual(Box::new(ResNet::load(tensors, config)?)),
            _ => Self::Transformer(Box::new(VisionTower::load(tensors, config)?)),
        })
    }

    fn input_len(&self) -> usize {
        match self {
            Self::Transformer(tower) => tower.input_len(),
            Self::Residual(tower) => tower.input_len(),
        }
    }

    fn forward(&self, pixels: &[f32]) -> Vec<f32> {
        match self {
            Self::Transformer(tower) => tower.forward(pixels),
            Self::Residual(tower) => tower.forward(pixels),
        }
    }
}

/// Names a weights file may have, the preferred one first.
pub const WEIGHT_FILES: [&str; 5] = [
    "model.safetensors",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
];

/// The list of shards of weights that come in several files.
pub const SHARD_INDEX: &str = "model.safetensors.index.json";

impl Clip {
    /// Opens a folder with configuration and weights in the layout of `transformers` or `open_clip`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        Self::open_named(folder, &folder.display().to_string())
    }

    /// The same under another name: that of the hub.
    pub fn open_named(folder: &Path, name: &str) -> Result<Self> {
        let tensors = open_weights(folder)?;
        let config = ModelConfig::load(folder, &tensors)?;
        let tokenizer = Tokenizer::open(&config, folder)?;
        Self::of(name, config, &tensors, tokenizer)
    }

    /// The tiny encoder that ships with this crate.
    pub fn tiny() -> Result<Self> {
        let config = tiny::config();
        let tokenizer = Tokenizer::clip(config.text.context);
        Self::of(tiny::NAME, config, &tiny::tensors()?, tokenizer)
    }

    fn of(name: &str, config: ModelConfig, tensors: &Tensors, tokenizer: Tokenizer) -> Result<Self> {
        let bad = |e: WeightsError| Error::model(tensors.path(), e.0);
        let vision = ImageTower::load(tensors, &config).map_err(bad)?;
        let text = TextTower::load(tensors, &config).map_err(bad)?;
        let logit_scale = tensors.scalar("logit_scale").map_or(100.0, f32::exp);
        if !(logit_scale.is_finite() && logit_scale > 0.0) {
            return Err(Error::model(tensors.path(), format!("logit scale: got {logit_scale}")));
        }
        Ok(Self {
            name: name.to_string(),
            digest: digest(&config, tensors),
            logit_scale,
            logit_bias: tensors.scalar("logit_bias").unwrap_or(0.0),
            config,
            vision,
            text,
            tokenizer,
        })
    }

    /// Sizes, preprocessing, tokens.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Image features as the model gives them, not scaled to unit length.
    pub fn raw_images(&self, pixels: &[f32]) -> Result<Vec<f32>> {
        let expected = self.vision.input_len();
        if !pixels.len().is_multiple_of(expected) {
            let got = pixels.len() % expected;
            return Err(ultta::Error::Shape {
                what: ultta::What::Other("pixels of a picture"),
                expected,
                got,
            }
            .into());
        }
        Ok(self.vision.forward(pixels))
    }

    /// Text features of token ids, not scaled to unit length. Every text has as many ids as the model's context.
    pub fn raw_tokens(&self, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
        let expected = self.config.text.context;
        for ids in texts {
            if ids.len() != expected {
                let got = ids.len();
                return Err(ultta::Error::Shape {
                    what: ultta::What::Other("tokens of a text"),
                    expected,
                    got,
                }
                .into());
            }
            let vocabulary = self.config.text.vocabulary;
            if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                let reason = format!("token {id} is not below the size of the vocabulary, {vocabulary}");
                return Err(Error::Text { reason });
            }
        }
        Ok(self.text.forward(texts))
    }
}

impl Encoder for Clip {
    fn name(&self) -> &str {
        &self.name
    }

    fn dim(&self) -> usize {
        self.config.dim
    }

    fn preprocess(&self) -> &Preprocess {
        &self.config.preprocess
    }

    fn images(&self, pixels: &[f32]) -> Result<Features<'static>> {
        Ok(Features::normalized(self.raw_images(pixels)?, self.config.dim)?)
    }

    fn texts(&self, texts: &[String]) -> Result<Features<'static>> {
        let ids = texts.iter().map(|text| self.tokenizer.encode(text)).collect::<Result<Vec<_>>>()?;
        Ok(Features::normalized(self.raw_tokens(&ids)?, self.config.dim)?)
    }

    fn logit_scale(&self) -> f32 {
        self.logit_scale
    }

    fn logit_bias(&self) -> f32 {
        self.logit_bias
    }

    fn digest(&self) -> &str {
        &self.digest
    }
}

/// Finds and maps the weights in a folder.
pub fn open_weights(folder: &Path) -> Result<Tensors> {
    let index = folder.join(SHARD_INDEX);
    let timm = of_timm(&folder.join(HF_CONFIG));
    let open_clip = (timm || !folder.join(HF_CONFIG).exists()) && folder.join(OPEN_CLIP_CONFIG).exists();
    let single = WEIGHT_FILES
        .iter()
        .filter(|name| !timm || name.starts_with("open_clip"))
        .map(|name| folder.join(name))
        .find(|path| path.exists());
    if let Some(path) = single {
        let tensors = Tensors::open(&[path], None)?;
        // A folder may hold both libraries' files: the configuration must be that of the weights.
        let needs = match tensors.layout() {
            Layout::HfClip | Layout::HfSiglip => HF_CONFIG,
            _ => OPEN_CLIP_CONFIG,
        };
        if !folder.join(needs).exists() {
            return Err(Error::model(folder, format!("the weights need {needs} beside them")));
        }
        return Ok(tensors);
    }
    if index.exists() {
        let text = std::fs::read_to_string(&index).map_err(|e| Error::io("opening", &index, e))?;
        return Tensors::open(
            &shards(&text, &index)?.iter().map(|s| folder.join(s)).collect::<Vec<_>>(),
            None,
        );
    }
    let config = if open_clip { OPEN_CLIP_CONFIG } else { HF_CONFIG };
    let expected = WEIGHT_FILES.join(", ");
    if !folder.is_dir() {
        let reason = "no such folder, and not the name of a hub model (owner/name)";
        return Err(Error::model(folder, reason));
    }
    Err(Error::model(folder, format!("expected {config} and one of {expected}, found no weights")))
}

/// Whether a configuration is timm's, which has the name of that of `transformers`; weights of the same names are then
/// those of the image tower alone.
pub(crate) fn of_timm(config: &Path) -> bool {
    let text = std::fs::read_to_string(config).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    config.get("pretrained_cfg").is_some()
}

/// The file names in a list of shards.
pub(crate) fn shards(text: &str, path: &Path) -> Result<Vec<String>> {
    let index: serde_json::Value =
        serde_json::from_str(text).map_err(|e| Error::model(path, format!("not the expected JSON: {e}")))?;
    let map = index["weight_map"].as_object().ok_or_else(|| Error::model(path, "no `weight_map`"))?;
    let mut files: Vec<String> = map.values().filter_map(|v| v.as_str()).map(str::to_string).collect();
    files.sort();
    files.dedup();
    // A shard is a file beside the list, never somewhere else.
    if let Some(file) = files.iter().find(|f| Path::new(f).file_name().is_none_or(|n| n != f.as_str())) {
        return Err(Error::model(path, format!("`weight_map` names {file:?}, expected plain file names")));
    }
    Ok(files)
}

/// SHA-256 of the whole configuration and of some values of every weight: quick, and enough to tell models apart.
fn digest(config: &ModelConfig, tensors: &Tensors) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(format!("{config:?}"));
    for (name, sample) in tensors.samples() {
        hash.update(name);
        hash.update(sample);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Opens a model by folder or hub name (`openai/clip-vit-base-patch16`); files from the hub are kept in its cache.
/// `tiny` is the one that ships with this crate; a folder of that name is `./tiny`.
pub fn open(model: &str) -> Result<Box<dyn Encoder>> {
    open_with(model, &mut |_| {})
}

/// Opens a model as [`open`] does, and tells `progress` about downloads.
pub fn open_with(
    model: &str,
    progress: &mut dyn FnMut(crate::hub::Progress<'_>),
) -> Result<Box<dyn Encoder>> {
    if model == tiny::NAME {
        return Ok(Box::new(Clip::tiny()?));
    }
    let folder: PathBuf = if Path::new(model).is_dir() {
        model.into()
    } else if let Some(advice) = crate::models::conversion(model) {
        return Err(Error::model(model, advice));
    } else {
        crate::hub::Hub::from_environment()?.model(crate::models::full_name(model), progress)?
    };
    #[cfg(feature = "onnx")]
    if crate::onnx::is_onnx(&folder) {
        return Ok(Box::new(crate::onnx::OnnxModel::open(&folder, model)?));
    }
    #[cfg(not(feature = "onnx"))]
    if folder.join("image.onnx").exists() {
        return Err(Error::model(folder, NO_ONNX));
    }
    Ok(Box::new(Clip::open_named(&folder, model)?))
}
