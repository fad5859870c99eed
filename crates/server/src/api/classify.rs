//! Samples, answers and labels.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use ultta::Head;
use ultta_formats::Id;

use super::Matrix;
use super::bounded::{list, optional_list};
use crate::job::{Answers, Extent};

/// Rows to classify, as JSON.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClassifyRequest {
    /// Image features: a list of rows, all of the head's dimension and unit length.
    #[cfg_attr(test, schema(value_type = Vec<Vec<f32>>))]
    pub features: Matrix,
    /// `false` for rows that must not teach: one for all rows, or one per row.
    #[serde(default)]
    pub learn: Option<Learn>,
    /// Arrival time of each row in seconds, for updates by time. A time before an earlier one is lifted to it.
    #[serde(default, deserialize_with = "optional_list")]
    pub times: Option<Vec<f64>>,
    /// Extra views of each row, for methods that need views: per row a list of feature rows.
    #[serde(default, deserialize_with = "optional_list")]
    #[cfg_attr(test, schema(value_type = Option<Vec<Vec<Vec<f32>>>>))]
    pub views: Option<Vec<Matrix>>,
    /// Your own names for the rows, echoed as `ref`: numbers or strings.
    #[serde(default, deserialize_with = "optional_list")]
    #[cfg_attr(test, schema(value_type = Option<Vec<OwnName>>))]
    pub refs: Option<Vec<Id>>,
    /// Add this many of the best classes.
    #[serde(default)]
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    #[serde(default)]
    pub probs: Option<bool>,
    /// Add the probability behind the answer (τ_pred) beside the calibrated one.
    #[serde(default)]
    pub prob_pred: Option<bool>,
    /// Accept rows of any length but zero and scale them to unit length.
    #[serde(default)]
    pub normalize: Option<bool>,
}

/// One mark for all rows, or one per row.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Learn {
    /// One mark for all rows.
    All(bool),
    /// One mark per row.
    Each(Vec<bool>),
}

impl<'de> Deserialize<'de> for Learn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LearnVisitor)
    }
}

struct LearnVisitor;

impl<'de> Visitor<'de> for LearnVisitor {
    type Value = Learn;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or a list of them")
    }

    fn visit_bool<E>(self, mark: bool) -> Result<Learn, E> {
        Ok(Learn::All(mark))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, marks: A) -> Result<Learn, A::Error> {
        Ok(Learn::Each(list(SeqAccessDeserializer::new(marks))?))
    }
}

/// What an answer holds, for bodies that cannot say it themselves.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(test, into_params(parameter_in = Query))]
pub struct ClassifyQuery {
    /// Add this many of the best classes.
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    pub probs: Option<bool>,
    /// Add the probability behind the answer (τ_pred) beside the calibrated one.
    pub prob_pred: Option<bool>,
    /// Accept rows of any length but zero and scale them to unit length.
    pub normalize: Option<bool>,
}

impl ClassifyQuery {
    /// What the answer is to hold.
    pub fn extent(&self) -> Extent {
        Extent {
            top: self.top.unwrap_or(0) as usize,
            probs: self.probs.unwrap_or(false),
            prob_pred: self.prob_pred.unwrap_or(false),
        }
    }
}

/// Answers.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ClassifyResponse<'a> {
    /// The stream that answered.
    pub stream: &'a str,
    /// The stream's generation, which sample ids belong to.
    pub generation: u64,
    /// Whether the rows are in the log and may teach. `false` for predictions, while the stream is frozen, and while it
    /// is degraded. A frozen stream logs and counts its rows all the same: they have ids.
    pub learnt: bool,
    /// Samples that the stream had seen: with these rows if they have ids, up to the published state if not.
    pub as_of: u64,
    /// One answer per row.
    pub rows: Vec<RowAnswer<'a>>,
}

/// A caller's own name for a row, as the document tells it: a number or a string.
#[cfg(test)]
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code)]
pub enum OwnName {
    Number(u64),
    Text(String),
}

/// The answer for a row.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RowAnswer<'a> {
    /// The sample's id, for feedback; none where nothing was logged.
    pub id: Option<u64>,
    /// Your own name for the row.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<OwnName>))]
    pub reference: Option<Id>,
    /// The class answered.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
    /// Its probability behind the answer (τ_pred), if the request wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prob_pred: Option<f32>,
    /// What the frozen model says.
    pub zero_shot: ZeroShot<'a>,
    /// Whether the gate admitted the sample as a teacher.
    pub admitted: bool,
    /// Whether the sample fits no class.
    pub unknown: bool,
    /// Whether the sample looks like nothing that the stream or the head knows (noise, the opposite of a picture): then it
    /// teaches nothing.
    pub garbage: bool,
    /// Number of the scene that the sample belongs to: a scene is a run of near-copies.
    pub scene: u64,
    /// Whether the sample began its scene.
    pub begins_scene: bool,
    /// The set of classes, the most probable first, where the stream gives sets (`coverage`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<u32>>,
    /// Whether labels back the coverage of the set up, where there is one; else it is a credible set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_promise: Option<bool>,
    /// The best classes, if the request wants them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<Top<'a>>>,
    /// The calibrated probabilities of all classes, if the request wants them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probs: Option<Vec<f32>>,
}

/// The frozen model's answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ZeroShot<'a> {
    /// The class.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its probability.
    pub prob: f32,
}

/// One of the best classes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Top<'a> {
    /// The class.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
}

/// Bytes of the answers to rows, about: what is written for a row, for each of its best classes, for each probability.
pub fn answer_bytes(rows: usize, extent: Extent, head: &Head) -> usize {
    let name = head.classes().iter().map(String::len).max().unwrap_or(0);
    let top = extent.top.min(head.n_classes()).saturating_mul(48 + name);
    let probs = if extent.probs { 14 * head.n_classes() } else { 0 };
    rows.saturating_mul((256 + 2 * name).saturating_add(top).saturating_add(probs))
}

/// Bytes of what is known only when the answers are there, about: sets of classes, and the sender's own names for the rows.
pub fn more_bytes(answers: &Answers, refs: Option<&[Id]>) -> usize {
    let name = |id: &Id| match id {
        Id::Number(_) => 20,
        Id::Text(text) => text.len(),
    };
    let sets: usize = answers.sets.iter().map(Vec::len).sum();
    6 * sets + refs.unwrap_or_default().iter().map(name).sum::<usize>()
}

/// Answers with class names and the sender's own names for the rows.
pub fn row_answers<'a>(
    mut answers: Answers,
    classes: &'a [String],
    refs: Option<Vec<Id>>,
) -> Vec<RowAnswer<'a>> {
    let mut refs = refs.map(Vec::into_iter);
    let mut probs = std::mem::take(&mut answers.probs).into_iter();
    let mut tops = std::mem::take(&mut answers.top).into_iter();
    let mut sets = std::mem::take(&mut answers.sets).into_iter();
    answers
        .rows
        .iter()
        .map(|row| RowAnswer {
            id: answers.logged().then_some(row.id),
            reference: refs.as_mut().and_then(Iterator::next),
            label: row.label,
            class: &classes[row.label],
            prob: row.prob,
            prob_pred: answers.prob_pred.then_some(row.prob_pred),
            zero_shot: ZeroShot {
                label: row.zero_shot.label,
                class: &classes[row.zero_shot.label],
                prob: row.zero_shot.prob,
            },
            admitted: row.admitted && answers.learnt(),
            unknown: row.unknown,
            garbage: row.garbage,
            scene: row.scene,
            begins_scene: row.begins_scene && answers.logged(),
            set_promise: answers.set_promise,
            set: sets.next(),
            top: tops.next().map(|top| {
                top.into_iter().map(|(label, prob)| Top { label, class: &classes[label], prob }).collect()
            }),
            probs: probs.next(),
        })
        .collect()
}

/// Pictures as files of a form; fields without a file are ignored.
#[derive(Debug)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[allow(dead_code)]
pub struct PicturesForm {
    /// Any number of files, under any names.
    #[cfg_attr(test, schema(value_type = Vec<String>, format = Binary))]
    pictures: Vec<Vec<u8>>,
}

/// Pictures as JSON.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PicturesRequest {
    /// Whole picture files, base64.
    #[serde(deserialize_with = "list")]
    pub pictures: Vec<String>,
    /// Your own names for the pictures, echoed as `ref`.
    #[serde(default, deserialize_with = "optional_list")]
    #[cfg_attr(test, schema(value_type = Option<Vec<OwnName>>))]
    pub refs: Option<Vec<Id>>,
    /// Add this many of the best classes.
    #[serde(default)]
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    #[serde(default)]
    pub probs: Option<bool>,
    /// Add the probability behind the answer (τ_pred) beside the calibrated one.
    #[serde(default)]
    pub prob_pred: Option<bool>,
}

/// Delayed labels.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FeedbackRequest {
    /// The labels.
    #[serde(deserialize_with = "list")]
    pub labels: Vec<FeedbackLabel>,
    /// The generation that the ids belong to, as the answers had it. It may be left out in the first generation only:
    /// after a reset the same id is another sample.
    #[serde(default)]
    pub generation: Option<u64>,
}

/// One delayed label: the class by index or by name.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FeedbackLabel {
    /// The sample's id, as answered.
    pub id: u64,
    /// The true class, by index …
    #[serde(default)]
    pub label: Option<usize>,
    /// … or by name.
    #[serde(default)]
    pub class: Option<String>,
}

/// What became of labels.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct FeedbackResponse {
    /// One outcome per label, in order.
    pub outcomes: Vec<FeedbackOutcome>,
    /// Which samples labels can still be for.
    pub remembered: Remembered,
}

/// The samples that labels can still be for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Remembered {
    /// Number of samples that can be labelled now.
    pub samples: usize,
    /// Number of samples that can be labelled at most.
    pub most: usize,
    /// The setting that bounds this number; absent where the method has no use for labels.
    pub setting: Option<&'static str>,
    /// Id of the oldest of these samples.
    pub oldest_id: Option<u64>,
    /// How many seconds ago the oldest sample was answered; absent if that was before the last start of the server.
    pub oldest_seconds: Option<f64>,
}

/// What became of a label.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct FeedbackOutcome {
    /// The sample's id.
    pub id: u64,
    /// `taken`, `unused` (the method has no use for labels, learning is stopped, or there was none to take back) or `refused`.
    pub outcome: &'static str,
    /// Why it was refused or not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
