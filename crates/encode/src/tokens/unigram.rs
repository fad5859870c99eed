//! A unigram model from `tokenizer.json`: the pieces whose scores add up to the most.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::{Error, Result};

/// The file of the vocabulary.
pub(crate) const FILE: &str = "tokenizer.json";

/// What the end of a text and the padding are in SigLIP's vocabulary.
const END: &str = "</s>";

/// Stands for a space, and before the first word.
const SPACE: char = '▁';

/// How much worse than the worst piece an unknown character is: sentencepiece's number.
const UNKNOWN_PENALTY: f64 = 10.0;

pub(crate) struct Unigram {
    pieces: HashMap<String, (u32, f64)>,
    /// Characters of the longest piece.
    longest: usize,
    unknown: u32,
    unknown_score: f64,
    end: u32,
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    unk_id: Option<u32>,
    vocab: Vocabulary,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Scores(Vec<(String, f64)>),
    /// That of byte pairs: ids by token.
    Ids {},
}

impl Unigram {
    /// Nothing if the file holds another kind of vocabulary.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("opening", path, e))?;
        let file: File = serde_json::from_str(&text)
            .map_err(|e| Error::model(path, format!("expected a unigram vocabulary: {e}")))?;
        let Vocabulary::Scores(vocab) = file.model.vocab else { return Ok(None) };
        if file.model.kind.as_deref().is_some_and(|kind| kind != "Unigram") {
            return Ok(None);
        }
        let end = vocab.iter().position(|(piece, _)| piece == END);
        let end = end.ok_or_else(|| Error::model(path, format!("no {END} in the vocabulary")))? as u32;
        let lowest = vocab.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
        let longest = vocab.iter().map(|(piece, _)| piece.chars().count()).max().unwrap_or(1);
        let pieces =
            vocab.into_iter().enumerate().map(|(id, (piece, score))| (piece, (id as u32, score))).collect();
        let unknown = file.model.unk_id.unwrap_or(0);
        Ok(Some(Self { pieces, longest, unknown, unknown_score: lowest - UNKNOWN_PENALTY, end }))
    }

    /// The tokens of a text of plain words, its end, and padding up to `context`.
    pub fn encode(&self, text: &str, context: usize) -> Vec<u32> {
        let mut ids = if text.is_empty() { vec![] } else { self.pieces(text) };
        ids.truncate(context.saturating_sub(1));
        ids.push(self.end);
        ids.resize(context, self.end);
        ids
    }

    /// The best way to cut the text, found from left to right.
    fn pieces(&self, text: &str) -> Vec<u32> {
        let text: String =
            std::iter::once(SPACE).chain(text.chars().map(|c| if c == ' ' { SPACE } else { c })).collect();
        let bounds: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
        let n = bounds.len() - 1;
        // For each place: the best score up to it, where the last piece begins, and which it is.
        let mut best: Vec<(f64, usize, u32)> = vec![(f64::NEG_INFINITY, 0, self.unknown); n + 1];
        best[0].0 = 0.0;
        for start in 0..n {
            let so_far = best[start].0;
            let mut single = false;
            for end in start + 1..=n.min(start + self.longest) {
                if let Some(&(id, score)) = self.pieces.get(&text[bounds[start]..bounds[end]]) {
                    single |= end == start + 1;
                    if so_far + score > best[end].0 {
                        best[end] = (so_far + score, start, id);
                    }
                }
            }
            if !single && so_far + self.unknown_score > best[start + 1].0 {
                best[start + 1] = (so_far + self.unknown_score, start, self.unknown);
            }
        }
        let mut ids = Vec::new();
        let mut at = n;
        while at > 0 {
            let (_, start, id) = best[at];
            // Neighbouring unknown characters are one token.
            if id != self.unknown || ids.last() != Some(&self.unknown) {
                ids.push(id);
            }
            at = start;
        }
        ids.reverse();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pieces_win() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let vocab = r#"{"model": {"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0.0], ["</s>", 0.0],
            ["<unk>", 0.0], ["▁", -2.0], ["▁cat", -4.0], ["▁c", -3.0], ["at", -3.0], ["s", -5.0], ["a", -6.0]]}}"#;
        std::fs::write(file.path(), vocab).unwrap();
        let model = Unigram::open(file.path()).unwrap().unwrap();
        assert_eq!(model.encode("cats", 6), [4, 7, 1, 1, 1, 1]);
        assert_eq!(model.encode("cat xx cat", 8), [4, 3, 2, 4, 1, 1, 1, 1]);
        assert_eq!(model.encode("", 3), [1, 1, 1]);
        assert_eq!(model.encode("cats cats cats", 3), [4, 7, 1]);
        let pairs = r#"{"model": {"type": "BPE", "vocab": {"<pad>": 0, "a": 1}, "merges": []}}"#;
        std::fs::write(file.path(), pairs).unwrap();
        assert!(Unigram::open(file.path()).unwrap().is_none());
        std::fs::write(file.path(), "{}").unwrap();
        assert!(Unigram::open(file.path()).is_err());
    }
}
