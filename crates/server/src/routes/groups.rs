//! Groups: who shares, how far everyone is, what a member gave and how to take it out.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer::Place;
use crate::api::*;
use crate::fleet::{Ask, Fleet, GroupView};
use crate::http::App;
use crate::problem::Problem;
use crate::routes::{Named, json_body};

calls! {
    "/v1/groups": get list;
    "/v1/groups/{group}": get inspect;
    "/v1/groups/{group}/drop": post drop_member;
    "/v1/groups/{group}/snapshot": post snapshot;
    "/v1/groups/{group}/state": get total;
}

/// List the groups that streams of this server are in
#[cfg_attr(test, utoipa::path(get, path = "/v1/groups", tag = "groups", responses((status = 200, description = "All groups", body = GroupList), Refusals),
    security((), ("token" = []))))]
async fn list(State(app): State<Arc<App>>) -> Json<GroupList> {
    Json(GroupList { groups: app.fleet.views() })
}

/// Inspect a group: members, how far each is, what was refused
#[cfg_attr(test, utoipa::path(get, path = "/v1/groups/{group}", tag = "groups", params(("group" = String, Path, example = "cameras")),
    responses((status = 200, description = "The group", body = GroupView), Refusals), security((), ("token" = []))))]
async fn inspect(
    State(app): State<Arc<App>>,
    Named(group): Named<String>,
) -> Result<Json<GroupView>, Problem> {
    Fleet::inspect(&app, &group).await.map(Json).ok_or_else(|| none(&group))
}

fn none(group: &str) -> Problem {
    Problem::not_found(format!("this server has no stream in a group {group:?}"))
}

/// Take out what a member gave, everywhere
///
/// For a camera that was upside down for a week. Its own stream forgets what it learnt, too, and gives again from there on. A name
/// of a server means all of its streams.
#[cfg_attr(test, utoipa::path(post, path = "/v1/groups/{group}/drop", tag = "groups", params(("group" = String, Path, example = "cameras")),
    request_body = DropRequest, responses((status = 200, description = "Members that were taken out", body = MemberNames), Refusals),
    security((), ("token" = []))))]
async fn drop_member(
    State(app): State<Arc<App>>,
    Named(group): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<MemberNames>, Problem> {
    let DropRequest { member } = json_body(&headers, body, &app.config.limits).await?;
    let members = app.fleet.ask(|reply| Ask::Drop { group, member, reply }).await?;
    Ok(Json(MemberNames { members }))
}

/// Have the members of this server keep what they gave where newcomers find it
#[cfg_attr(test, utoipa::path(post, path = "/v1/groups/{group}/snapshot", tag = "groups", params(("group" = String, Path, example = "cameras")),
    responses((status = 200, description = "Members whose contribution is kept", body = MemberNames), Refusals),
    security((), ("token" = []))))]
async fn snapshot(
    State(app): State<Arc<App>>,
    Named(group): Named<String>,
) -> Result<Json<MemberNames>, Problem> {
    let members = app.fleet.ask(|reply| Ask::Snapshot { group, reply }).await?;
    Ok(Json(MemberNames { members }))
}

/// Download all that the group gave, as a stream of this server knows it
#[cfg_attr(test, utoipa::path(get, path = "/v1/groups/{group}/state", tag = "groups", params(("group" = String, Path, example = "cameras")),
    responses((status = 200, description = "A delta (safetensors)", body = Vec<u8>, content_type = "application/octet-stream"), Refusals),
    security((), ("token" = []))))]
async fn total(State(app): State<Arc<App>>, Named(group): Named<String>) -> Result<Response, Problem> {
    let streams = app.streams.all();
    let stream = streams.iter().find(|stream| stream.meta.group.as_ref() == Some(&group));
    let stream = stream.ok_or_else(|| none(&group))?;
    let total = stream.control(|owner| owner.group_total()).await?;
    let _turn = stream.turn().await?;
    let bytes = tokio::task::block_in_place(|| total.to_bytes())?;
    Ok(Place::for_file(&app.room, bytes.len())?.send("application/octet-stream", bytes))
}
