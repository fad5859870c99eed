//! A dual encoder that ships with the program: 0.2 M parameters that know ten drawn shapes and their words. It makes
//! everything that needs an encoder work without a download; it knows nothing else of the world.
//!
//! `weights.safetensors` was made by `crates/gradient/examples/tiny.rs --weights`: half precision, names of
//! `transformers`, and of the table of tokens only the rows that were trained, with their ids in `tokens`. The rows of
//! all other tokens are zeros.

pub mod shapes;

use ultta_formats::numbers::Number;
use ultta_formats::tensors::{self, NewTensor};
use ultta_formats::{Dtype, Problem, numbers};

use crate::config::{BlockConfig, ModelConfig, Preprocess, TextConfig, TokenKind, VisionConfig, VisionPool};
use crate::prompts::readable;
use crate::weights::Tensors;
use crate::{Activation, Error, Result};

/// Its name, wherever a model is named.
pub const NAME: &str = "tiny";

/// The mean cosine of drawn shapes with the best of the ten words: 0.67 was measured on those that `ultta demo` draws.
pub const COSINE: (f32, f32) = (0.62, 0.72);

/// The tensor that holds the table of tokens, and the one that says which of them are in the file.
pub const TABLE: &str = "text_model.embeddings.token_embedding.weight";
/// The ids of the tokens in the file's table.
pub const TOKENS: &str = "tokens";

static WEIGHTS: &[u8] = include_bytes!("weights.safetensors");

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
            image_size: shapes::SIZE,
            patch: 8,
            blocks: blocks(64, 4),
            pool: VisionPool::ClassToken,
        },
        text: TextConfig { vocabulary: 49_408, context: 16, blocks: blocks(32, 2), causal: true },
        dim: 32,
        preprocess: Preprocess::openai(shapes::SIZE),
        tokens: TokenKind::Clip,
    }
}

/// What to tell someone who asks the model for classes that it has not learnt; nothing where another model is asked.
pub fn warning(model: &str, classes: &[String]) -> Option<String> {
    let knows = |name: &str| shapes::SHAPES.contains(&readable(&name.to_lowercase()).as_str());
    let strangers: Vec<&str> = classes.iter().map(String::as_str).filter(|n| !knows(n)).take(3).collect();
    if model != NAME || strangers.is_empty() {
        return None;
    }
    let (strangers, known) = (strangers.join(", "), shapes::SHAPES.join(", "));
    Some(format!("the tiny model knows ten shapes ({known}), not {strangers}: its answers mean nothing"))
}

/// The weights that ship with the program.
pub fn tensors() -> Result<Tensors> {
    unpack(WEIGHTS)
}

/// Weights as they ship, made whole: the table of tokens has a row for every token.
pub fn unpack(packed: &[u8]) -> Result<Tensors> {
    let bad = |problem: Problem| Error::model(NAME, problem.to_string());
    let found = tensors::Tensors::read(packed).map_err(bad)?;
    let numbers = |name: &str| {
        let entry = found.need(name).map_err(bad)?;
        let bytes = &packed[entry.bytes.clone()];
        let values = numbers::floats(bytes, entry.dtype);
        values.ok_or_else(|| Error::model(NAME, format!("{name}: expected {}", numbers::FLOATS)))
    };
    let ids = found.need(TOKENS).map_err(bad)?;
    let ids = u32::decode(&packed[ids.bytes.clone()]);
    let text = config().text;
    let width = text.blocks.width;
    let rows = numbers(TABLE)?;
    let mut table = vec![0.0; text.vocabulary * width];
    for (&id, row) in ids.iter().zip(rows.chunks_exact(width)) {
        let place = table.get_mut(id as usize * width..(id as usize + 1) * width);
        place.ok_or_else(|| Error::model(NAME, format!("token {id} is none")))?.copy_from_slice(row);
    }
    let mut whole = vec![(TABLE, vec![text.vocabulary, width], f32::encode(&table))];
    for (name, entry) in found.entries.iter().filter(|(name, _)| ![TABLE, TOKENS].contains(&name.as_str())) {
        whole.push((name, entry.shape.clone(), f32::encode(&numbers(name)?)));
    }
    let list = whole.iter().map(|(name, shape, bytes)| NewTensor {
        name,
        dtype: Dtype::F32,
        shape: shape.clone(),
        bytes,
    });
    Tensors::of_bytes(ultta_formats::to_bytes(list.collect(), &Default::default()), NAME.into())
}
