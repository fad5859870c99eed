//! Groups: who shares, and what is taken out.

use serde::{Deserialize, Serialize};

use crate::fleet::GroupView;

/// All groups that streams of this server are in.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct GroupList {
    /// By name.
    pub groups: Vec<GroupView>,
}

/// A member to take out of a group.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DropRequest {
    /// Its name, or a server's for all of its streams.
    pub member: String,
}

/// Members of a group.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct MemberNames {
    /// Their names.
    pub members: Vec<String>,
}
