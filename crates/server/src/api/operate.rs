//! Why, corrections, what to label next.

use serde::{Deserialize, Serialize};

use super::FeedbackOutcome;
use super::bounded::{list, optional_list};

/// What to explain: a row, or an earlier sample by its id.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// Features of one row …
    #[serde(default, deserialize_with = "optional_list")]
    pub features: Option<Vec<f32>>,
    /// … or the id of an earlier sample, of which the stream still keeps the features.
    #[serde(default)]
    pub id: Option<u64>,
    /// How many of the best classes to explain; 5 if not given.
    #[serde(default)]
    pub best: Option<u32>,
    /// Accept a row of any length but zero and scale it to unit length.
    #[serde(default)]
    pub normalize: Option<bool>,
}

/// Why a row is answered as it is: the core's `NamedExplanation`, as the command line and Python tell it, and the stream that answered.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainResponse<'a> {
    /// The stream that answered.
    pub stream: &'a str,
    /// The stream's generation.
    pub generation: u64,
    /// Samples that the answering state had seen.
    pub as_of: u64,
    /// The class answered.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
    /// The frozen model's answer.
    pub zero_shot_label: usize,
    /// Its name.
    pub zero_shot_class: &'a str,
    /// Its probability.
    pub zero_shot_prob: f32,
    /// `healthy`, `restored`, or `zero_shot` while the guard answers zero-shot: then the frozen model is explained.
    pub standing: &'static str,
    /// What logits are multiplied by for the calibrated probabilities.
    pub temperature: f32,
    /// Where the two differ: what speaks most for the one against the other (`image`, `prior`, …).
    pub flipped_by: Option<&'static str>,
    /// The class that somebody gave for the sample, where it is asked for by its id.
    pub corrected: Option<&'a str>,
    /// What has a part in the answer, the frozen model (`text`) first.
    pub levers: Vec<&'static str>,
    /// The best classes and the frozen model's answer, best first.
    pub classes: Vec<ExplainedView<'a>>,
    /// The most similar earlier scenes.
    pub similar: Vec<SimilarView<'a>>,
}

/// A class of an explanation.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedView<'a> {
    /// Index of the class.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its logit: the sum of `nats`.
    pub logit: f32,
    /// Its calibrated probability.
    pub prob: f32,
    /// The frozen model's probability.
    pub zero_shot: f32,
    /// Nats of each lever, in the order of `levers`.
    pub nats: Vec<f32>,
}

/// An earlier scene that looks like a row.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SimilarView<'a> {
    /// Id of its first sample.
    pub id: u64,
    /// Cosine between the scene and the row.
    pub cosine: f32,
    /// The class that was answered for the scene.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// The class that somebody gave for the scene.
    pub corrected: Option<&'a str>,
}

/// Labels that count at once.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CorrectRequest {
    /// The labels.
    #[serde(deserialize_with = "list")]
    pub labels: Vec<CorrectLabel>,
    /// The generation that the ids belong to, as the answers had it. It may be left out in the first generation only.
    #[serde(default)]
    pub generation: Option<u64>,
}

/// A label that counts at once: the class by index or by name, or `withdraw`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CorrectLabel {
    /// The sample's id, as answered.
    pub id: u64,
    /// The true class, by index …
    #[serde(default)]
    pub label: Option<usize>,
    /// … or by name …
    #[serde(default)]
    pub class: Option<String>,
    /// … or `true` to take back the label that was given for it.
    #[serde(default)]
    pub withdraw: bool,
}

/// What became of labels that count at once.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct CorrectResponse {
    /// One outcome per label, in order.
    pub outcomes: Vec<FeedbackOutcome>,
    /// Labels that count now.
    pub corrections: usize,
}

/// How many samples to suggest.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(test, into_params(parameter_in = Query))]
pub struct SuggestQuery {
    /// 20 if not given, 1000 at most.
    pub k: Option<u32>,
}

/// What to label next.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SuggestResponse<'a> {
    /// The stream's generation.
    pub generation: u64,
    /// Samples that the state had seen.
    pub as_of: u64,
    /// The samples, the best first.
    pub suggestions: Vec<SuggestionView<'a>>,
}

/// A sample whose label would help.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SuggestionView<'a> {
    /// Its id.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
    /// About how many recent answers its label would affect.
    pub expected_use: f32,
}

/// The format of a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(test, into_params(parameter_in = Query))]
pub struct LayerQuery {
    /// `onnx` (if not given), `safetensors` or `npz`.
    pub format: Option<String>,
}
