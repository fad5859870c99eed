//! Weights under one set of names, whichever library saved them.
//!
//! ```text
//! vision.patch.{weight,bias}  vision.class  vision.position  vision.norm_pre.*  vision.norm_post.*
//! vision.projection.weight    vision.pool.{probe,q,kv,out,norm,mlp.fc1,mlp.fc2}.*
//! text.token  text.position   text.norm.*   text.projection.{weight,bias}
//! {vision,text}.blocks.N.{norm1,attention.qkv,attention.out,norm2,mlp.fc1,mlp.fc2}.*
//! vision.stem.{conv,bn}N.*    vision.stages.S.B.{conv1,bn1,conv2,bn2,conv3,bn3,downsample.0,downsample.1}.*
//! logit_scale  logit_bias
//! ```
//!
//! Linear weights are `[outputs, inputs]`. A differentiable forward (autograd through the tower) starts from the
//! same names: [`Tensors::get`] gives plain floats in a checked shape.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ultta_formats::map::Mmap;
use ultta_formats::npy::NPZ_MAGIC;
use ultta_formats::{map_file, numbers, tensors};

use crate::models::Reads;
use crate::pickle::{self, Stored};
use crate::{Error, Result};

/// A weight that is missing or of another shape.
#[derive(Debug)]
pub struct WeightsError(pub(crate) String);

impl std::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which library's names the files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `transformers`: CLIPModel.
    HfClip,
    /// `transformers`: SiglipModel.
    HfSiglip,
    /// `open_clip` with its own vision transformer.
    OpenClip,
    /// `open_clip` with a vision transformer of `timm`: SigLIP.
    OpenClipTimm,
    /// `open_clip` and OpenAI with a residual network: RN50, RN101.
    OpenClipResNet,
}

/// The weights of a model: files mapped into memory, or bytes that are there already.
pub struct Tensors {
    layout: Layout,
    path: PathBuf,
    maps: Vec<Bytes>,
    entries: HashMap<String, Entry>,
}

/// A file of weights.
enum Bytes {
    Mapped(Mmap),
    Kept(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Kept(bytes) => bytes,
        }
    }
}

/// A tensor of one of the files.
struct Entry {
    file: usize,
    tensor: tensors::Entry,
}

/// Where one of our names is found: parts that follow one another, turned if the file has them the other way.
struct Source {
    parts: Vec<String>,
    turned: bool,
    /// Only these rows of the parts (of three that are stored together).
    rows: Option<(usize, usize)>,
}

impl Tensors {
    /// Maps safetensors files, or one file that `torch.save` wrote.
    pub fn open(paths: &[PathBuf], layout: Option<Layout>) -> Result<Self> {
        let maps = paths.iter().map(|path| Ok((path.clone(), Bytes::Mapped(map_file(path)?))));
        Self::of(maps.collect::<Result<_>>()?, layout)
    }

    /// The bytes of a safetensors file, under a name for messages.
    pub fn of_bytes(bytes: Vec<u8>, name: PathBuf) -> Result<Self> {
        Self::of(vec![(name, Bytes::Kept(bytes))], None)
    }

    fn of(files: Vec<(PathBuf, Bytes)>, layout: Option<Layout>) -> Result<Self> {
        let mut maps = Vec::new();
        let mut entries = HashMap::new();
        let first = files.first().map(|(path, _)| path.clone()).unwrap_or_default();
        for (path, map) in files {
            let index = maps.len();
            if map.starts_with(NPZ_MAGIC) {
                for Stored { name, start, len, dtype, shape } in
                    pickle::read(&map).map_err(|reason| Error::model(&path, reason))?
                {
                    let tensor = tensors::Entry { dtype, shape, bytes: start..start + len };
                    entries.insert(name, Entry { file: index, tensor });
                }
            } else {
                let found = tensors::Tensors::read(&map).map_err(|e| {
                    let expected = "expected weights as safetensors or as torch.save writes them";
                    Error::model(&path, format!("{expected}: {e}"))
                })?;
                let found = found.entries.into_iter();
                entries.extend(found.map(|(name, tensor)| (name, Entry { file: index, tensor })));
            }
            maps.push(map);
        }
        let path = first;
        let layout = match layout.or_else(|| guess(&entries)) {
            Some(layout) => layout,
            None => {
                let mut some: Vec<_> = entries.keys().cloned().collect();
                some.sort();
                let reason = match foreign(&some) {
                    Some((what, reads)) => format!("{what}: {}", reads.advice().unwrap_or_default()),
                    None => {
                        some.truncate(3);
                        format!(
                            "expected CLIP or SigLIP weights of transformers or open_clip, got {some:?} …"
                        )
                    }
                };
                return Err(Error::model(path, reason));
            }
        };
        Ok(Self { layout, path, maps, entries })
    }

    /// The layout of the files.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names as they are in the files, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.entries.values().map(|e| e.tensor.bytes.len()).sum()
    }

    /// Name and some bytes of every tensor, sorted: enough to tell models apart.
    pub(crate) fn samples(&self) -> Vec<(&str, &[u8])> {
        let sample = |name| {
            let entry = &self.entries[name];
            let bytes = self.bytes_of(entry);
            (name, &bytes[..bytes.len().min(256)])
        };
        self.names().into_iter().map(sample).collect()
    }

    fn bytes_of(&self, entry: &Entry) -> &[u8] {
        &self.maps[entry.file][entry.tensor.bytes.clone()]
    }

    /// Whether there is such a weight.
    pub fn has(&self, name: &str) -> bool {
        self.source(name).parts.iter().all(|part| self.entries.contains_key(part))
    }

    /// The shape of a weight in the file, if it is there.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let source = self.source(name);
        let mut shape = self.entries.get(&source.parts[0])?.tensor.shape.clone();
        if source.parts.len() > 1 {
            shape[0] *= source.parts.len();
        }
        if source.turned {
            shape.reverse();
        }
        Some(shape)
    }

    /// Number of blocks of a tower (`vision` or `text`).
    pub fn layers(&self, tower: &str) -> usize {
        (0..).take_while(|n| self.has(&format!("{tower}.blocks.{n}.norm1.weight"))).count()
    }

    /// A weight as floats, in this crate's shape. Files may keep it with dimensions of one, or a convolution's.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let source = self.source(name);
        let wanted: usize = shape.iter().product();
        let mut values = Vec::with_capacity(wanted);
        for part in &source.parts {
            let entry = self.entries.get(part).ok_or_else(|| {
                WeightsError(format!("no weight named {part:?}, expected one of shape {shape:?} for {name}"))
            })?;
            let dtype = entry.tensor.dtype;
            let part_values = numbers::floats(self.bytes_of(entry), dtype).ok_or_else(|| {
                WeightsError(format!("{part}: expected {}, got {dtype:?}", numbers::FLOATS))
            })?;
            match source.rows {
                None => values.extend(part_values),
                Some((which, of)) => {
                    let third = part_values.len() / of;
                    values.extend_from_slice(&part_values[which * third..(which + 1) * third]);
                }
            }
        }
        let found: Vec<usize> = match source.parts.as_slice() {
            [one] if source.rows.is_none() => {
                self.entries[one].tensor.shape.iter().copied().filter(|&n| n != 1).collect()
            }
            _ => vec![],
        };
        let plain: Vec<usize> = shape.iter().copied().filter(|&n| n != 1).collect();
        let mut turned = plain.clone();
        if source.turned {
            turned.reverse();
        }
        // A convolution's kernel is a row of a product: its inner dimensions may be folded.
        let folds = |found: &[usize]| found.len() <= 2 || found[0] == shape[0];
        if values.len() != wanted
            || (found.len() == plain.len() && !found.is_empty() && found != turned)
            || !folds(&found)
        {
            let got = self.entries[&source.parts[0]].tensor.shape.clone();
            return Err(WeightsError(format!("{}: expected shape {shape:?}, got {got:?}", source.parts[0])));
        }
        if source.turned && shape.len() == 2 {
            let (rows, columns) = (shape[0], shape[1]);
            let old = values.clone();
            for r in 0..rows {
                for c in 0..columns {
                    values[r * columns + c] = old[c * rows + r];
                }
            }
        }
        if values.iter().any(|v| !v.is_finite()) {
            return Err(WeightsError(format!("{}: it holds a value that is not finite", source.parts[0])));
        }
        Ok(values)
    }

    /// A single number.
    pub fn scalar(&self, name: &str) -> Option<f32> {
        self.get(name, &[1]).ok().map(|v| v[0])
    }

    fn source(&self, name: &str) -> Source {
        match self.layout {
            Layout::HfClip => hf(name, "pre_layrnorm", false),
            Layout::HfSiglip => hf(name, "pre_layrnorm", true),
            Layout::OpenClip => open_clip(name, self.text_prefix()),
            Layout::OpenClipTimm => timm(name, self.text_prefix()),
            Layout::OpenClipResNet => resnet(name, self.text_prefix()),
        }
    }

    /// open_clip keeps a text tower of its own class under `text.`.
    fn text_prefix(&self) -> &'static str {
        if self.entries.contains_key("text.token_embedding.weight") { "text." } else { "" }
    }
}

fn guess(entries: &HashMap<String, Entry>) -> Option<Layout> {
    let has = |name: &str| entries.contains_key(name);
    if has("vision_model.embeddings.class_embedding") {
        Some(Layout::HfClip)
    } else if has("vision_model.head.probe") {
        Some(Layout::HfSiglip)
    } else if has("visual.class_embedding") {
        Some(Layout::OpenClip)
    } else if has("visual.trunk.attn_pool.latent") {
        Some(Layout::OpenClipTimm)
    } else if has("visual.attnpool.positional_embedding") {
        Some(Layout::OpenClipResNet)
    } else {
        None
    }
}

/// Weights of models that people have and this crate does not read: what they are, and how they are read after all.
fn foreign(names: &[String]) -> Option<(&'static str, Reads)> {
    let any = |part: &str| names.iter().any(|name| name.contains(part));
    if any("visual.trunk.stem.") || any("image_encoder.model.") {
        Some(("an image tower of timm with a stem of convolutions (MobileCLIP, ConvNeXt)", Reads::AsOnnx))
    } else if any("visual.trunk.blocks.0.attn.q_proj") || any("visual.blocks.0.attn.q_proj") || any(".rope.")
    {
        Some(("an image tower with rotary positions (EVA-CLIP)", Reads::AsOnnx))
    } else if any("visual.trunk.") {
        Some(("an image tower of timm that is not SigLIP's", Reads::AsOnnx))
    } else {
        None
    }
}

fn whole(part: impl Into<String>) -> Source {
    Source { parts: vec![part.into()], turned: false, rows: None }
}

fn turned(part: &str) -> Source {
    Source { turned: true, ..whole(part) }
}

fn third(part: &str, which: usize, of: usize) -> Source {
    Source { rows: Some((which, of)), ..whole(part) }
}

/// `tower.blocks.N.rest` taken apart.
fn block(name: &str) -> Option<(&str, &str, &str)> {
    let (tower, rest) = name.split_once(".blocks.")?;
    let (layer, rest) = rest.split_once('.')?;
    Some((tower, layer, rest))
}

/// The names of `transformers`.
fn hf(name: &str, norm_pre: &str, siglip: bool) -> Source {
    if let Some((tower, layer, rest)) = block(name) {
        let base = format!("{tower}_model.encoder.layers.{layer}");
        if let Some(kind) = rest.strip_prefix("attention.qkv.") {
            let part = |which: &str| format!("{base}.self_attn.{which}_proj.{kind}");
            return Source { parts: vec![part("q"), part("k"), part("v")], turned: false, rows: None };
        }
        let rest = rest
            .replace("norm1", "layer_norm1")
            .replace("norm2", "layer_norm2")
            .replace("attention.out", "self_attn.out_proj");
        return whole(format!("{base}.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("vision.pool.") {
        let head = "vision_model.head";
        return match rest {
            "probe" => whole(format!("{head}.probe")),
            "q.weight" => third(&format!("{head}.attention.in_proj_weight"), 0, 3),
            "q.bias" => third(&format!("{head}.attention.in_proj_bias"), 0, 3),
            "k.weight" => third(&format!("{head}.attention.in_proj_weight"), 1, 3),
            "k.bias" => third(&format!("{head}.attention.in_proj_bias"), 1, 3),
            "v.weight" => third(&format!("{head}.attention.in_proj_weight"), 2, 3),
            "v.bias" => third(&format!("{head}.attention.in_proj_bias"), 2, 3),
            _ => {
                let rest = rest.replace("out.", "attention.out_proj.").replace("norm.", "layernorm.");
                whole(format!("{head}.{rest}"))
            }
        };
    }
    let embeddings = "vision_model.embeddings";
    match name {
        "vision.class" => whole(format!("{embeddings}.class_embedding")),
        "vision.position" => whole(format!("{embeddings}.position_embedding.weight")),
        "text.token" => whole("text_model.embeddings.token_embedding.weight"),
        "text.position" => whole("text_model.embeddings.position_embedding.weight"),
        "vision.projection.weight" => whole("visual_projection.weight"),
        "text.projection.weight" if siglip => whole("text_model.head.weight"),
        "text.projection.bias" => whole("text_model.head.bias"),
        "text.projection.weight" => whole("text_projection.weight"),
        _ => whole(
            name.replace("vision.patch", &format!("{embeddings}.patch_embedding"))
                .replace("vision.norm_pre", &format!("vision_model.{norm_pre}"))
                .replace("vision.norm_post", "vision_model.post_layernorm")
                .replace("text.norm", "text_model.final_layer_norm"),
        ),
    }
}

/// A block of open_clip's own transformer.
fn open_clip_block(base: &str, layer: &str, rest: &str) -> Source {
    let base = format!("{base}transformer.resblocks.{layer}");
    if let Some(kind) = rest.strip_prefix("attention.qkv.") {
        return whole(format!("{base}.attn.in_proj_{kind}"));
    }
    let rest = rest
        .replace("norm1", "ln_1")
        .replace("norm2", "ln_2")
        .replace("attention.out", "attn.out_proj")
        .replace("mlp.fc1", "mlp.c_fc")
        .replace("mlp.fc2", "mlp.c_proj");
    whole(format!("{base}.{rest}"))
}

/// The text tower of open_clip.
fn open_clip_text(name: &str, text: &str) -> Source {
    if let Some((_, layer, rest)) = block(name) {
        return open_clip_block(text, layer, rest);
    }
    match name {
        "text.token" => whole(format!("{text}token_embedding.weight")),
        "text.position" => whole(format!("{text}positional_embedding")),
        "text.norm.weight" => whole(format!("{text}ln_final.weight")),
        "text.norm.bias" => whole(format!("{text}ln_final.bias")),
        other => whole(other),
    }
}

/// The names of `open_clip`.
fn open_clip(name: &str, text: &str) -> Source {
    if name == "text.projection.weight" {
        return turned(&format!("{text}text_projection"));
    }
    if name.starts_with("text.") {
        return open_clip_text(name, text);
    }
    if let Some((_, layer, rest)) = block(name) {
        return open_clip_block("visual.", layer, rest);
    }
    match name {
        "vision.class" => whole("visual.class_embedding"),
        "vision.position" => whole("visual.positional_embedding"),
        "vision.projection.weight" => turned("visual.proj"),
        _ => whole(
            name.replace("vision.patch", "visual.conv1")
                .replace("vision.norm_pre", "visual.ln_pre")
                .replace("vision.norm_post", "visual.ln_post"),
        ),
    }
}

/// The names of `open_clip` and OpenAI with a residual network; the text tower's are those of the transformers.
fn resnet(name: &str, text: &str) -> Source {
    if let Some((stage, rest)) = name.strip_prefix("vision.stages.").and_then(|rest| rest.split_once('.')) {
        // Files count stages from one.
        let stage = stage.parse::<usize>().map_or(0, |stage| stage + 1);
        return whole(format!("visual.layer{stage}.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("vision.stem.") {
        return whole(format!("visual.{rest}"));
    }
    if let Some((which, kind)) = name.strip_prefix("vision.pool.").and_then(|rest| rest.split_once('.')) {
        let which = if which == "out" { "c" } else { which };
        return whole(format!("visual.attnpool.{which}_proj.{kind}"));
    }
    match name {
        "vision.position" => whole("visual.attnpool.positional_embedding"),
        _ => open_clip(name, text),
    }
}

/// The names of `open_clip` with a vision transformer of `timm`.
fn timm(name: &str, text: &str) -> Source {
    match name {
        "text.projection.weight" => return whole(format!("{text}text_projection.weight")),
        "text.projection.bias" => return whole(format!("{text}text_projection.bias")),
        _ => {}
    }
    if name.starts_with("text.") {
        return open_clip_text(name, text);
    }
    let trunk = "visual.trunk";
    if let Some((_, layer, rest)) = block(name) {
        let rest = rest.replace("attention.qkv", "attn.qkv").replace("attention.out", "attn.proj");
        return whole(format!("{trunk}.blocks.{layer}.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("vision.pool.") {
        let pool = format!("{trunk}.attn_pool");
        return match rest {
            "probe" => whole(format!("{pool}.latent")),
            "k.weight" => third(&format!("{pool}.kv.weight"), 0, 2),
            "k.bias" => third(&format!("{pool}.kv.bias"), 0, 2),
            "v.weight" => third(&format!("{pool}.kv.weight"), 1, 2),
            "v.bias" => third(&format!("{pool}.kv.bias"), 1, 2),
            _ => whole(format!("{pool}.{}", rest.replace("out.", "proj."))),
        };
    }
    match name {
        "vision.position" => whole(format!("{trunk}.pos_embed")),
        _ => whole(
            name.replace("vision.patch", &format!("{trunk}.patch_embed.proj"))
                .replace("vision.norm_post", &format!("{trunk}.norm")),
        ),
    }
}
