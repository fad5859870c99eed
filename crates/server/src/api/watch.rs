//! Health, methods and settings.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::settings::{Durability, Limits};

/// A method.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct MethodList {
    /// The methods.
    pub methods: Vec<MethodView>,
}

/// Settings of the server.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
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
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct HealthView {
    /// `ok`, or `degraded` while some stream cannot keep what it would learn, or could not be opened.
    pub status: &'static str,
    /// Why, by stream.
    pub degraded: BTreeMap<String, String>,
    /// Groups that cannot be reached at the moment, and why. Their streams answer and learn on, and give later.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub apart: BTreeMap<String, String>,
    /// Version of the server.
    pub version: &'static str,
}
