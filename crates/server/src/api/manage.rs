//! Streams: create, inspect, change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Matrix;
use super::bounded::{Setting, list, settings};
use crate::alarms::AlarmView;
use crate::board::{Event, Point, Reliability, Status};
use crate::settings::Durability;
use crate::story::ClassPoint;
use crate::verdict::Verdict;

/// A new stream. The head comes from exactly one of `head`, `head_base64` and `head_of`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
    #[serde(default, deserialize_with = "settings")]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub settings: Option<BTreeMap<String, Setting>>,
    /// `interval` or `sync`; the server's own if not given.
    #[serde(default)]
    pub durability: Option<Durability>,
    /// A group: streams with the same head and settings that teach each other the classes.
    #[serde(default)]
    pub group: Option<String>,
}

/// A head, written out.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeadBody {
    /// One unit row per class.
    #[cfg_attr(test, schema(value_type = Vec<Vec<f32>>))]
    pub prototypes: Matrix,
    /// Class names, in label order.
    #[serde(deserialize_with = "list")]
    pub classes: Vec<String>,
    /// The model's own logit scale (CLIP: about 100).
    pub logit_scale: f32,
}

/// A second stream beside another. Without method and settings it has those of the first, and its state.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
    #[serde(default, deserialize_with = "settings")]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub settings: Option<BTreeMap<String, Setting>>,
    /// `interval` or `sync`; the server's own if not given.
    #[serde(default)]
    pub durability: Option<Durability>,
}

/// A snapshot to make.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Its label; the number of samples seen if not given.
    #[serde(default)]
    pub label: Option<String>,
}

/// A snapshot to return to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Its label.
    pub label: String,
}

/// A stream of this server whose evidence is added.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MergeRequest {
    /// Its name.
    pub stream: String,
}

/// A stream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
    /// The group that it shares evidence with.
    pub group: Option<String>,
    /// Requests that wait.
    pub waiting: usize,
    /// Log records that were replayed when the stream was opened.
    pub recovered_records: u64,
    /// Bytes of broken log that were cut off then.
    pub dropped_bytes: u64,
    /// How it is doing, in one word and a sentence.
    pub verdict: Verdict,
    /// Its last alarms, oldest first.
    pub alarms: Vec<AlarmView>,
    /// Where it stands.
    pub status: Status,
}

/// A stream with its settings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct StreamDetail {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub view: StreamView,
    /// The resolved configuration, as TOML.
    pub config: String,
    /// What counts already, while the first scenes do not teach what classes look like; absent after that.
    pub warm_up: Option<String>,
    /// Adapted answers that labels arrived for.
    pub reliability: Reliability,
    /// Zero-shot answers that labels arrived for.
    pub reliability_zero_shot: Reliability,
}

/// All streams.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct StreamList {
    /// By name.
    pub streams: Vec<StreamView>,
    /// Streams that could not be opened, and why. They can be deleted, or repaired before the next start.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub damaged: BTreeMap<String, String>,
}

/// One class of a stream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
    /// Mean calibrated probability of its recent answers; absent if there are none.
    pub confidence: Option<f64>,
    /// Adapted answers that named it so far.
    pub answers: u64,
    /// Share of the answers naming it that are right, by estimate: `top1`, `low`, `high`; from 0 to 1 before the first answer.
    #[cfg_attr(test, schema(value_type = Object))]
    pub estimate: ultta::Estimate,
    /// Share of the zero-shot answers naming it that are right, by estimate: `top1`, `low`, `high`.
    #[cfg_attr(test, schema(value_type = Object))]
    pub estimate_zero_shot: ultta::Estimate,
}

/// All classes of a stream, in label order.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ClassList<'a> {
    /// Samples that the state shown here had seen.
    pub as_of: u64,
    /// Recent answers that `recent` is taken over.
    pub window: usize,
    /// The classes.
    pub classes: Vec<ClassView<'a>>,
}

/// The recent past of a stream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct History {
    /// About one a second while there is traffic, oldest first.
    pub points: Vec<Point>,
    /// What happened, oldest first.
    pub events: Vec<Event>,
}

/// The story of a class.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ClassHistory {
    /// Index.
    pub label: usize,
    /// Name.
    pub class: String,
    /// Oldest first, at most 64 since the server started.
    pub points: Vec<ClassPoint>,
}

/// A snapshot.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SnapshotView {
    /// Its label.
    pub label: String,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Snapshots of a stream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SnapshotList {
    /// By label.
    pub snapshots: Vec<SnapshotView>,
}
