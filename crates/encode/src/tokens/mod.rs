//! Text to tokens.

mod clean;
mod unigram;

use std::path::Path;

use instant_clip_tokenizer::{Token, Tokenizer as BytePairs};

use crate::config::{ModelConfig, TokenKind};
use crate::{Error, Result};
use unigram::Unigram;

/// The tokeniser of a model.
pub struct Tokenizer {
    kind: Kind,
    context: usize,
}

enum Kind {
    Clip(Box<BytePairs>),
    Unigram(Box<Unigram>),
    /// No vocabulary is there, or one that is not read; pictures can be encoded all the same.
    Missing(std::path::PathBuf, &'static str),
}

impl Tokenizer {
    /// CLIP's byte pairs for texts of this many tokens.
    pub fn clip(context: usize) -> Self {
        Self { kind: Kind::Clip(Box::new(BytePairs::new())), context: context.max(2) }
    }

    /// The tokeniser that a model's configuration asks for.
    pub(crate) fn open(config: &ModelConfig, folder: &Path) -> Result<Self> {
        let context = config.text.context;
        match config.tokens {
            TokenKind::Clip => Ok(Self::clip(context)),
            TokenKind::Unigram => Self::unigram(folder, context),
        }
    }

    /// The unigram model in a folder, for texts of this many tokens. Without one, texts are errors.
    pub fn unigram(folder: &Path, context: usize) -> Result<Self> {
        let path = folder.join(unigram::FILE);
        let kind = if !path.exists() {
            Kind::Missing(path, "text needs the model's vocabulary, which is missing")
        } else {
            match Unigram::open(&path)? {
                Some(model) => Kind::Unigram(Box::new(model)),
                None => Kind::Missing(
                    path,
                    "text needs the model's vocabulary, which is no unigram model (SigLIP 2: Gemma's byte pairs): make \
                     the head in Python and give it as a file (docs/encode.md)",
                ),
            }
        };
        Ok(Self { kind, context })
    }

    /// Exactly as many tokens as the model's context, padding included.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Clip(pairs) => {
                let mut tokens = vec![pairs.start_of_text()];
                pairs.encode(&clean::clean(text), &mut tokens);
                tokens.truncate(self.context - 1);
                tokens.push(pairs.end_of_text());
                let mut ids: Vec<u32> = tokens.into_iter().map(Token::to_u16).map(u32::from).collect();
                ids.resize(self.context, 0);
                Ok(ids)
            }
            Kind::Unigram(model) => Ok(model.encode(&clean::canonicalize(text), self.context)),
            Kind::Missing(path, reason) => Err(Error::model(path, *reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `fixtures/prompts.json`: a thousand prompts with open_clip's ids, beside the script that made them.
    #[test]
    fn ids_are_those_of_open_clip() {
        let fixture: Vec<(String, Vec<u32>)> =
            serde_json::from_str(include_str!("../../tests/fixtures/prompts.json")).unwrap();
        assert!(fixture.len() >= 1000);
        let tokenizer = Tokenizer::clip(77);
        let wrong: Vec<&String> = fixture
            .iter()
            .filter(|(text, expected)| {
                let ids = tokenizer.encode(text).unwrap();
                let end = ids.iter().position(|&id| id == 49407).unwrap();
                ids[1..end] != expected[..]
            })
            .map(|(text, _)| text)
            .collect();
        assert!(
            wrong.is_empty(),
            "{} of {}: {:?}",
            wrong.len(),
            fixture.len(),
            &wrong[..wrong.len().min(20)]
        );
    }

    #[test]
    fn long_texts_are_cut_and_short_ones_filled() {
        let tokenizer = Tokenizer::clip(77);
        let long = tokenizer.encode(&"dog ".repeat(500)).unwrap();
        assert_eq!((long.len(), long[0], long[76]), (77, 49406, 49407));
        let empty = tokenizer.encode("").unwrap();
        assert_eq!(empty[..3], [49406, 49407, 0]);
    }
}
