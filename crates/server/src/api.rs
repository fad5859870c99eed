//! What goes over the wire, in both directions.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use ultta_formats::Id;
use utoipa::{IntoParams, IntoResponses, ToSchema};

use crate::board::{Event, Point, Reliability, Status};
use crate::owner::{Answers, Extent};
use crate::problem::Problem;
use crate::settings::{Durability, Limits};

/// Rows to classify, as JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifyRequest {
    /// Image features: a list of rows, all of the head's dimension and unit length.
    #[schema(value_type = Vec<Vec<f32>>)]
    pub features: Matrix,
    /// `false` for rows that must not teach: one for all rows, or one per row.
    #[serde(default)]
    pub learn: Option<Learn>,
    /// Arrival time of each row in seconds, for updates by time. A time before an earlier one is lifted to it.
    #[serde(default)]
    pub times: Option<Vec<f64>>,
    /// Extra views of each row, for methods that need some: per row a list of feature rows.
    #[serde(default)]
    pub views: Option<Vec<Vec<Vec<f32>>>>,
    /// Your own names for the rows, echoed as `ref`: numbers or strings.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub refs: Option<Vec<Id>>,
    /// Add the best classes, so many.
    #[serde(default)]
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    #[serde(default)]
    pub probs: Option<bool>,
    /// Accept rows of any length but zero and scale them to unit length.
    #[serde(default)]
    pub normalize: Option<bool>,
}

/// One mark for all rows, or one per row.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Learn {
    /// For all rows.
    All(bool),
    /// Per row.
    Rows(Vec<bool>),
}

/// A list of rows of equal length, flat.
#[derive(Debug, Default)]
pub struct Matrix {
    pub data: Vec<f32>,
    pub rows: usize,
    pub dim: usize,
}

impl<'de> Deserialize<'de> for Matrix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Outer(Matrix);
        impl<'de> Visitor<'de> for Outer {
            type Value = Matrix;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of rows, each a list of numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(mut self, mut rows: A) -> Result<Matrix, A::Error> {
                while rows.next_element_seed(Row(&mut self.0.data))?.is_some() {
                    let len = self.0.data.len();
                    if self.0.rows == 0 {
                        self.0.dim = len;
                    }
                    self.0.rows += 1;
                    if len != self.0.rows * self.0.dim {
                        let got = len - (self.0.rows - 1) * self.0.dim;
                        return Err(serde::de::Error::custom(format!(
                            "row {}: expected {} numbers, got {got}",
                            self.0.rows - 1,
                            self.0.dim
                        )));
                    }
                }
                Ok(self.0)
            }
        }
        struct Row<'a>(&'a mut Vec<f32>);
        impl<'de> serde::de::DeserializeSeed<'de> for Row<'_> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.deserialize_seq(self)
            }
        }
        impl<'de> Visitor<'de> for Row<'_> {
            type Value = ();
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a row: a list of numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<(), A::Error> {
                while let Some(number) = numbers.next_element::<f32>()? {
                    self.0.push(number);
                }
                Ok(())
            }
        }
        deserializer.deserialize_seq(Outer(Matrix::default()))
    }
}

/// What an answer holds, for bodies that cannot say it themselves.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ClassifyQuery {
    /// Add the best classes, so many.
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    pub probs: Option<bool>,
    /// Accept rows of any length but zero and scale them to unit length.
    pub normalize: Option<bool>,
}

impl ClassifyQuery {
    pub fn extent(&self) -> Extent {
        Extent { top: self.top.unwrap_or(0) as usize, probs: self.probs.unwrap_or(false) }
    }
}

/// Answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassifyResponse<'a> {
    /// The stream that answered.
    pub stream: &'a str,
    /// The stream's generation, which sample ids belong to.
    pub generation: u64,
    /// Whether the rows are in the log and the stream has seen them. `false` for predictions, and while the stream
    /// is degraded.
    pub learnt: bool,
    /// Samples that the stream had seen: with these rows if they were learnt, up to the published state if not.
    pub as_of: u64,
    /// One answer per row.
    pub rows: Vec<RowAnswer<'a>>,
}

/// The answer for a row.
#[derive(Debug, Serialize, ToSchema)]
pub struct RowAnswer<'a> {
    /// The sample's id, for feedback; none where nothing was learnt.
    pub id: Option<u64>,
    /// Your own name for the row.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub reference: Option<Id>,
    /// The class answered.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
    /// What the frozen model says.
    pub zero_shot: ZeroShot<'a>,
    /// Whether the gate admitted the sample as a teacher.
    pub admitted: bool,
    /// Whether the sample fits no class.
    pub unknown: bool,
    /// The best classes, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<Top<'a>>>,
    /// The calibrated probabilities of all classes, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probs: Option<Vec<f32>>,
}

/// The frozen model's answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ZeroShot<'a> {
    /// The class.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its probability.
    pub prob: f32,
}

/// One of the best classes.
#[derive(Debug, Serialize, ToSchema)]
pub struct Top<'a> {
    /// The class.
    pub label: usize,
    /// Its name.
    pub class: &'a str,
    /// Its calibrated probability.
    pub prob: f32,
}

/// Puts answers into words.
pub fn row_answers<'a>(
    mut answers: Answers,
    classes: &'a [String],
    refs: Option<Vec<Id>>,
) -> Vec<RowAnswer<'a>> {
    let mut refs = refs.map(Vec::into_iter);
    let mut probs = std::mem::take(&mut answers.probs).into_iter();
    let mut tops = std::mem::take(&mut answers.top).into_iter();
    answers
        .rows
        .iter()
        .map(|row| RowAnswer {
            id: answers.learnt.then_some(row.id),
            reference: refs.as_mut().and_then(Iterator::next),
            label: row.label,
            class: &classes[row.label],
            prob: row.prob,
            zero_shot: ZeroShot {
                label: row.zero_shot.label,
                class: &classes[row.zero_shot.label],
                prob: row.zero_shot.prob,
            },
            admitted: row.admitted && answers.learnt,
            unknown: row.unknown,
            top: tops.next().map(|top| {
                top.into_iter().map(|(label, prob)| Top { label, class: &classes[label], prob }).collect()
            }),
            probs: probs.next(),
        })
        .collect()
}

/// Pictures as files of a form; fields without a file are ignored.
#[derive(Debug, ToSchema)]
#[allow(dead_code)]
pub struct PicturesForm {
    /// Any number of files, under any names.
    #[schema(value_type = Vec<String>, format = Binary)]
    pictures: Vec<Vec<u8>>,
}

/// Pictures as JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PicturesRequest {
    /// Whole picture files, base64.
    pub pictures: Vec<String>,
    /// Your own names for the pictures, echoed as `ref`.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub refs: Option<Vec<Id>>,
    /// Add the best classes, so many.
    #[serde(default)]
    pub top: Option<u32>,
    /// Add the probabilities of all classes.
    #[serde(default)]
    pub probs: Option<bool>,
}

/// Delayed labels.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedbackRequest {
    /// The labels.
    pub labels: Vec<FeedbackLabel>,
    /// The generation that the ids belong to, to be safe against a reset in between.
    #[serde(default)]
    pub generation: Option<u64>,
}

/// One delayed label: the class by index or by name.
#[derive(Debug, Deserialize, ToSchema)]
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
#[derive(Debug, Serialize, ToSchema)]
pub struct FeedbackResponse {
    /// One outcome per label, in order.
    pub outcomes: Vec<FeedbackOutcome>,
}

/// What became of a label.
#[derive(Debug, Serialize, ToSchema)]
pub struct FeedbackOutcome {
    /// The sample's id.
    pub id: u64,
    /// `taken`, `unused` (the method has no use for labels) or `refused`.
    pub outcome: &'static str,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A new stream. The head comes from exactly one of `head`, `head_base64` and `head_of`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateStream {
    /// 1 to 64 letters, digits, '-', '_' or '.'.
    pub name: String,
    /// The head, written out.
    #[serde(default)]
    pub head: Option<HeadBody>,
    /// The bytes of a head file (safetensors), base64.
    #[serde(default)]
    pub head_base64: Option<String>,
    /// The head of another stream.
    #[serde(default)]
    pub head_of: Option<String>,
    /// A configuration, as TOML; single choices below win over it.
    #[serde(default)]
    pub config: Option<String>,
    /// The method, `ul-tta` if not given.
    #[serde(default)]
    pub method: Option<String>,
    /// A preset of the method, `default` or `paper`.
    #[serde(default)]
    pub preset: Option<String>,
    /// Single settings by dotted key.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub settings: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    /// `interval` or `sync`; the server's own if not given.
    #[serde(default)]
    pub durability: Option<Durability>,
}

/// Method and settings of a stream, as a request chooses them.
pub struct Choice<'a> {
    pub config: Option<&'a str>,
    pub method: Option<&'a str>,
    pub preset: Option<&'a str>,
    pub settings: Option<&'a std::collections::BTreeMap<String, serde_json::Value>>,
}

macro_rules! choice {
    ($($request:ty),*) => {$(
        impl $request {
            /// What the request chooses.
            pub fn choice(&self) -> Choice<'_> {
                Choice {
                    config: self.config.as_deref(),
                    method: self.method.as_deref(),
                    preset: self.preset.as_deref(),
                    settings: self.settings.as_ref(),
                }
            }
        }
    )*};
}
choice!(CreateStream, CloneStream);

impl Choice<'_> {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.method.is_none() && self.preset.is_none() && self.settings.is_none()
    }

    /// The configuration. One that names a file is refused: a server reads no file that a request names.
    pub fn resolve(&self) -> ultta::Result<ultta::Config> {
        let settings: Vec<(&str, String)> = self
            .settings
            .into_iter()
            .flatten()
            .map(|(key, value)| {
                (key.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_string))
            })
            .collect();
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let config = ultta::Config::resolve(self.config, self.method, self.preset, &settings)?;
        if let Some((key, _)) = config.method.files().into_iter().next() {
            let reason = "a server reads no file that a request names; start it with `ultta serve --config`";
            return Err(ultta::Error::Config { key, reason: reason.into() });
        }
        Ok(config)
    }
}

/// A head, written out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadBody {
    /// One unit row per class.
    #[schema(value_type = Vec<Vec<f32>>)]
    pub prototypes: Matrix,
    /// Class names, in label order.
    pub classes: Vec<String>,
    /// The model's own logit scale (CLIP: about 100).
    pub logit_scale: f32,
}

/// A second stream beside another. Without method and settings it has those of the first, and its state.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneStream {
    /// Name of the new stream.
    pub name: String,
    /// Whether the new stream is shown the traffic of the old one, its answers only compared.
    #[serde(default)]
    pub shadow: bool,
    /// A configuration, as TOML; single choices below win over it.
    #[serde(default)]
    pub config: Option<String>,
    /// The method, `ul-tta` if not given.
    #[serde(default)]
    pub method: Option<String>,
    /// A preset of the method, `default` or `paper`.
    #[serde(default)]
    pub preset: Option<String>,
    /// Single settings by dotted key.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub settings: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    /// `interval` or `sync`; the server's own if not given.
    #[serde(default)]
    pub durability: Option<Durability>,
}

/// A snapshot to make.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Its label; the number of samples seen if not given.
    #[serde(default)]
    pub label: Option<String>,
}

/// A snapshot to return to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Its label.
    pub label: String,
}

/// A stream of this server whose evidence is added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeRequest {
    /// Its name.
    pub stream: String,
}

/// A stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamView {
    /// Its name.
    pub name: String,
    /// Number of classes.
    pub classes: usize,
    /// Length of a feature row.
    pub dim: usize,
    /// SHA-256 of the head.
    pub head: String,
    /// The method.
    pub method: String,
    /// When answers may be given, relative to the log reaching the disk.
    pub durability: Durability,
    /// Seconds since 1970.
    pub created: f64,
    /// The stream whose traffic this one is shown.
    pub shadow_of: Option<String>,
    /// Streams that are shown this one's traffic.
    pub shadows: Vec<String>,
    /// Requests that wait.
    pub waiting: usize,
    /// Log records that were replayed when the stream was opened.
    pub recovered_records: u64,
    /// Bytes of broken log that were cut off then.
    pub dropped_bytes: u64,
    /// Where it stands.
    pub status: Status,
}

/// A stream with its settings.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamDetail {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub view: StreamView,
    /// The resolved configuration, as TOML.
    pub config: String,
    /// Adapted answers that labels arrived for.
    pub reliability: Reliability,
    /// The same for zero-shot.
    pub reliability_zero_shot: Reliability,
}

/// All streams.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamList {
    /// By name.
    pub streams: Vec<StreamView>,
    /// Streams that could not be opened, and why. They can be deleted, or repaired before the next start.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub damaged: std::collections::BTreeMap<String, String>,
}

/// One class of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassView<'a> {
    /// Index.
    pub label: usize,
    /// Name.
    pub class: &'a str,
    /// How far its prototype has moved.
    pub movement: f64,
    /// The class prior.
    pub prior: f64,
    /// Its share of recent answers.
    pub recent: f64,
    /// Evidence gathered for it, in samples.
    pub evidence: f64,
}

/// All classes of a stream, in label order.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassList<'a> {
    /// Samples that the state shown here had seen.
    pub as_of: u64,
    /// Recent answers that `recent` is taken over.
    pub window: usize,
    /// The classes.
    pub classes: Vec<ClassView<'a>>,
}

/// The recent past of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct History {
    /// About one a second while there is traffic, oldest first.
    pub points: Vec<Point>,
    /// What happened, oldest first.
    pub events: Vec<Event>,
}

/// A snapshot.
#[derive(Debug, Serialize, ToSchema)]
pub struct SnapshotView {
    /// Its label.
    pub label: String,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Snapshots of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct SnapshotList {
    /// By label.
    pub snapshots: Vec<SnapshotView>,
}

/// A method.
#[derive(Debug, Serialize, ToSchema)]
pub struct MethodView {
    /// Its name.
    pub name: String,
    /// One line.
    pub summary: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// `before_observe` or `after_observe`.
    pub readout: &'static str,
    /// `independent` or `joint`.
    pub rows: &'static str,
    /// Whether it needs extra views of each sample.
    pub needs_views: bool,
}

/// All methods.
#[derive(Debug, Serialize, ToSchema)]
pub struct MethodList {
    /// The methods.
    pub methods: Vec<MethodView>,
}

/// Settings of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConfigView {
    /// Durability of streams that do not choose.
    pub durability: Durability,
    /// Time between two syncs of a log, in milliseconds.
    pub sync_interval_ms: u64,
    /// A log longer than this, in bytes, is replaced by a snapshot of the state.
    pub compact_bytes: u64,
    /// Bounds on what is accepted.
    pub limits: Limits,
    /// Whether pictures can be classified.
    pub pictures: bool,
    /// Whether requests need a token.
    pub tokens: bool,
    /// Version of the server.
    pub version: &'static str,
    /// The default configuration of a stream, as TOML, every key with its meaning.
    pub stream_defaults: &'static str,
}

/// Health of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// `ok`, or `degraded` while some stream cannot keep what it would learn, or could not be opened.
    pub status: &'static str,
    /// Why, by stream.
    pub degraded: std::collections::BTreeMap<String, String>,
    /// Version of the server.
    pub version: &'static str,
}

/// The ways in which a request can be refused. Every one is a problem document.
#[derive(IntoResponses)]
#[allow(dead_code)]
pub enum Refusals {
    /// The body or a parameter cannot be read as what it claims to be.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(Problem),
    /// The token is missing or unknown.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorised(Problem),
    /// The token does not allow this, or the request comes from a foreign page.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is no such stream, snapshot or page.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// The request took too long.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(Problem),
    /// It clashes with what is there.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// Body, picture or batch are larger than allowed.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The content type is none that this call reads.
    #[response(status = 415, content_type = "application/problem+json")]
    Unsupported(Problem),
    /// The body was read, but what it says cannot be.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// The stream's queue is full; `Retry-After` says when to try again.
    #[response(status = 429, content_type = "application/problem+json")]
    Busy(Problem),
    /// No image model is loaded.
    #[response(status = 501, content_type = "application/problem+json")]
    NoModel(Problem),
    /// The server is stopping.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
    /// The disk does not take what must be kept; `Retry-After` says when to try again.
    #[response(status = 507, content_type = "application/problem+json")]
    Storage(Problem),
}
