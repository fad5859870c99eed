//! Groups: who shares, and what is taken out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fleet::GroupView;

/// All groups that streams of this server are in.
#[derive(Debug, Serialize, ToSchema)]
pub struct GroupList {
    /// By name.
    pub groups: Vec<GroupView>,
}

/// A member to take out of a group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DropRequest {
    /// Its name, or a server's for all of its streams.
    pub member: String,
}

/// Members of a group.
#[derive(Debug, Serialize, ToSchema)]
pub struct MemberNames {
    /// Their names.
    pub members: Vec<String>,
}
