//! Streams: create, inspect, change, delete.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use ultta::{Head, Session, State as Learnt};

use crate::answer::Place;
use crate::api::*;
use crate::http::App;
use crate::owner::Owner;
use crate::problem::Problem;
use crate::room::{Share, Watch};
use crate::routes::{Named, content_type, json, json_body, read};
use crate::store::Folder;
use crate::stream::Stream;
use crate::streams::{StreamSpec, check_name};

calls! {
    "/v1/streams": get list, post create;
    "/v1/streams/{stream}": get inspect, delete delete;
    "/v1/streams/{stream}/reset": post reset;
    "/v1/streams/{stream}/freeze": post freeze;
    "/v1/streams/{stream}/unfreeze": post unfreeze;
    "/v1/streams/{stream}/acknowledge": post acknowledge;
    "/v1/streams/{stream}/snapshots": get snapshots, post snapshot;
    "/v1/streams/{stream}/snapshots/{label}": delete remove_snapshot;
    "/v1/streams/{stream}/rollback": post rollback;
    "/v1/streams/{stream}/clone": post clone;
    "/v1/streams/{stream}/merge": post merge;
    "/v1/streams/{stream}/state": get state;
    "/v1/streams/{stream}/classes": get classes;
    "/v1/streams/{stream}/history": get history;
    "/v1/streams/{stream}/classes/{label}/history": get story;
}

fn view(stream: &Stream) -> StreamView {
    StreamView {
        name: stream.name.clone(),
        classes: stream.head.n_classes(),
        dim: stream.head.dim(),
        head: stream.digest.clone(),
        method: stream.config.method.card().name.replace('_', "-"),
        durability: stream.durability,
        created: stream.meta.created,
        shadow_of: stream.meta.shadow_of.clone(),
        shadows: stream.shadows.names(),
        group: stream.meta.group.clone(),
        waiting: stream.waiting(),
        recovered_records: stream.recovered_records,
        dropped_bytes: stream.dropped_bytes,
        verdict: stream.verdict(),
        alarms: stream.board.alarms(),
        status: stream.status(),
    }
}

/// List the streams
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams", tag = "streams", responses((status = 200, description = "All streams", body = StreamList), Refusals),
    security((), ("token" = []))))]
async fn list(State(app): State<Arc<App>>) -> Json<StreamList> {
    let streams = app.streams.all().iter().map(|s| view(s)).collect();
    Json(StreamList { streams, damaged: app.streams.damaged() })
}

/// Create a stream
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams", tag = "streams", request_body = CreateStream,
    responses((status = 201, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<StreamView>), Problem> {
    let request: CreateStream = json_body(&headers, body, &app.config.limits).await?;
    let name = request.name.clone();
    let spec = spec(request, |name| Ok(Head::clone(&app.streams.get(name)?.head)))?;
    let stream = app.streams.create(&name, spec, None, None).await?;
    Ok((StatusCode::CREATED, Json(view(&stream))))
}

/// Head and settings of a new stream; the head may be taken from another stream.
pub fn spec(
    request: CreateStream,
    head_of: impl FnOnce(&str) -> Result<Head, Problem>,
) -> Result<StreamSpec, Problem> {
    let config = request.choice().resolve()?;
    let head = match (request.head, &request.head_base64, &request.head_of) {
        (Some(HeadBody { prototypes, classes, logit_scale }), None, None) => {
            Head::new(prototypes.data, prototypes.dim.max(1), classes, logit_scale)?
        }
        (None, Some(text), None) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text.trim())
                .map_err(|e| Problem::malformed(format!("head_base64: not base64: {e}")))?;
            Head::from_bytes(&bytes)?
        }
        (None, None, Some(name)) => head_of(name)?,
        _ => {
            return Err(Problem::invalid(
                "expected exactly one of head (prototypes, classes, logit_scale), head_base64 (the bytes of a head file) and head_of (the name \
             of another stream)",
            ));
        }
    };
    Ok(StreamSpec { head, config, durability: request.durability, group: request.group })
}

/// Inspect a stream
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The stream", body = StreamDetail), Refusals), security((), ("token" = []))))]
async fn inspect(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<StreamDetail>, Problem> {
    let stream = app.streams.get(&name)?;
    let (reliability, reliability_zero_shot) = stream.board.reliability();
    let config = stream.config.to_toml();
    let warm_up = warm_up(&stream);
    Ok(Json(StreamDetail { view: view(&stream), config, warm_up, reliability, reliability_zero_shot }))
}

/// How far the warm-up of a method is that has one: the class prior counts before the first scene teaches what its class
/// looks like. When class looks begin to count is told by `evidence_weight`.
fn warm_up(stream: &Stream) -> Option<String> {
    let (first, most) = stream.config.method.warm_up()?;
    let scenes = stream.status().health.scenes;
    let counts = if scenes < first {
        "answers are zero-shot so far, of near-copies from the mean of their scene"
    } else {
        "the class mix already counts, classes are not taught yet"
    };
    (scenes < most).then(|| format!("{scenes} of {most} scenes; {counts}"))
}

/// Delete a stream and all it has kept
#[cfg_attr(test, utoipa::path(delete, path = "/v1/streams/{stream}", tag = "streams", params(("stream" = String, Path)),
    responses((status = 204, description = "It is gone"), Refusals), security((), ("token" = []))))]
async fn delete(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<StatusCode, Problem> {
    // A deletion runs to its end, whether or not the client waits for it.
    let deletion = tokio::spawn(async move { app.streams.delete(&name).await });
    deletion.await.unwrap_or_else(|e| Err(Problem::unavailable(format!("the deletion failed: {e}"))))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Asks the owner to change a stream. Returns the stream as it is afterwards.
async fn changed(
    app: &App,
    name: &str,
    work: impl FnOnce(&mut Owner) -> Result<(), Problem> + Send + 'static,
) -> Result<Json<StreamView>, Problem> {
    let stream = app.streams.get(name)?;
    stream.control(work).await?;
    Ok(Json(view(&stream)))
}

/// Back to the start
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/reset", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn reset(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Json<StreamView>, Problem> {
    changed(&app, &name, |owner| owner.reset()).await
}

/// Stop learning
///
/// Samples are answered and counted, but do not teach.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/freeze", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn freeze(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<StreamView>, Problem> {
    changed(&app, &name, |owner| owner.set_learning(false)).await
}

/// Learn again
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/unfreeze", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn unfreeze(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<StreamView>, Problem> {
    changed(&app, &name, |owner| owner.set_learning(true)).await
}

/// Acknowledge what was lost on the disk, and open alarms
///
/// Open alarms are closed. A damaged log costs what lies behind the damage: it is set aside, a new generation of sample
/// ids begins, and the stream's `damage` says so until this call.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/acknowledge", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn acknowledge(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<StreamView>, Problem> {
    changed(&app, &name, |owner| owner.acknowledge()).await
}

/// List the snapshots of a stream
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/snapshots", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "Snapshots", body = SnapshotList), Refusals), security((), ("token" = []))))]
async fn snapshots(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<SnapshotList>, Problem> {
    let stream = app.streams.get(&name)?;
    let found = tokio::task::block_in_place(|| stream.folder.snapshots());
    let snapshots = found.into_iter().map(|(label, bytes)| SnapshotView { label, bytes }).collect();
    Ok(Json(SnapshotList { snapshots }))
}

/// Keep the state under a label
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/snapshots", tag = "streams", params(("stream" = String, Path, example = "default")),
    request_body = SnapshotRequest, responses((status = 201, description = "The snapshot", body = SnapshotView), Refusals),
    security((), ("token" = []))))]
async fn snapshot(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<SnapshotView>), Problem> {
    let stream = app.streams.get(&name)?;
    let request: SnapshotRequest = json_body(&headers, body, &app.config.limits).await?;
    if let Some(label) = &request.label {
        check_name(label).map_err(Problem::invalid)?;
    }
    let most = app.config.limits.snapshots;
    let folder = stream.folder.clone();
    let (label, bytes) = stream
        .control(move |owner| {
            let label = request.label.unwrap_or_else(|| format!("seen-{}", owner.seen()));
            let there = folder.snapshots();
            if there.len() >= most && !there.iter().any(|(l, _)| *l == label) {
                return Err(Problem::conflict(format!(
                    "there are {most} snapshots already, the most that are allowed"
                )));
            }
            owner.snapshot(&label)?;
            let bytes = folder.snapshots().iter().find(|(l, _)| *l == label).map_or(0, |(_, bytes)| *bytes);
            Ok((label, bytes))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(SnapshotView { label, bytes })))
}

/// Remove a snapshot
#[cfg_attr(test, utoipa::path(delete, path = "/v1/streams/{stream}/snapshots/{label}", tag = "streams", params(("stream" = String, Path, example = "default"), ("label" = String, Path)),
    responses((status = 204, description = "It is gone"), Refusals), security((), ("token" = []))))]
async fn remove_snapshot(
    State(app): State<Arc<App>>,
    Named((name, label)): Named<(String, String)>,
) -> Result<StatusCode, Problem> {
    let stream = app.streams.get(&name)?;
    tokio::task::block_in_place(|| {
        find_snapshot(&stream.name, &stream.folder, &label)?;
        Ok::<_, Problem>(stream.folder.remove_snapshot(&label)?)
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// Return to a snapshot
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/rollback", tag = "streams", params(("stream" = String, Path, example = "default")),
    request_body = RollbackRequest, responses((status = 200, description = "The stream", body = StreamView), Refusals),
    security((), ("token" = []))))]
async fn rollback(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<StreamView>, Problem> {
    let stream = app.streams.get(&name)?;
    let RollbackRequest { label } = json_body(&headers, body, &app.config.limits).await?;
    let (folder, name) = (stream.folder.clone(), stream.name.clone());
    // Read by the owner: however many ask for it, one state is in memory.
    let return_to = move |owner: &mut Owner| {
        find_snapshot(&name, &folder, &label)?;
        let state = folder.load_snapshot(&label)?;
        owner.load(&state, "rolled_back", &format!("back to snapshot {label}"))
    };
    stream.control(return_to).await?;
    Ok(Json(view(&stream)))
}

fn find_snapshot(stream: &str, folder: &Folder, label: &str) -> Result<(), Problem> {
    if folder.snapshots().iter().any(|(l, _)| l == label) {
        return Ok(());
    }
    Err(Problem::not_found(format!("stream {stream:?} has no snapshot {label:?}")))
}

/// Make a second stream from this one
///
/// With the same settings the state is copied, frozen if this one is. As a shadow it is shown the same traffic, and its answers are compared.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/clone", tag = "streams", params(("stream" = String, Path, example = "default")),
    request_body = CloneStream, responses((status = 201, description = "The new stream", body = StreamView), Refusals),
    security((), ("token" = []))))]
async fn clone(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<StreamView>), Problem> {
    let source = app.streams.get(&name)?;
    let request: CloneStream = json_body(&headers, body, &app.config.limits).await?;
    let choice = request.choice();
    let config = if choice.is_empty() { source.config.clone() } else { choice.resolve()? };
    let start = if config == source.config {
        Some(source.control(|owner| Ok(owner.session(u64::MAX).0)).await?)
    } else {
        None
    };
    let durability = request.durability.or(source.meta.durability);
    // A copy is no member: what it starts with was given by the first.
    let spec = StreamSpec { head: Head::clone(&source.head), config, durability, group: None };
    let shadow_of = request.shadow.then(|| name.clone());
    let stream = app.streams.create(&request.name, spec, start, shadow_of).await?;
    Ok((StatusCode::CREATED, Json(view(&stream))))
}

/// Where evidence comes from that is added.
enum Source {
    /// A stream of this server.
    Stream(Arc<Session>),
    /// The file of a state, and its room.
    File(Bytes, Option<Arc<Share>>),
}

/// Add the evidence of another stream or server
///
/// JSON names a stream of this server; `application/octet-stream` is a state as `GET …/state` gives it, from any server
/// with the same head and configuration. Evidence is added by the merge law; windows, prior and temperatures restart.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/merge", tag = "streams", params(("stream" = String, Path, example = "default")),
    request_body(content((MergeRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses((status = 200, description = "The stream", body = StreamView), Refusals), security((), ("token" = []))))]
async fn merge(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Extension(watch): Extension<Watch>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<StreamView>, Problem> {
    let stream = app.streams.get(&name)?;
    let limits = &app.config.limits;
    let kind = content_type(&headers);
    let bytes = read(body, limits.body_bytes, limits.request_seconds).await?;
    let (other, text) = match kind.as_str() {
        "application/json" => {
            let MergeRequest { stream: other } = json(&bytes)?;
            if other == name {
                return Err(Problem::conflict(format!(
                    "expected another stream, got {name:?} itself: its evidence would count twice"
                )));
            }
            let (session, _) = app.streams.get(&other)?.control(|owner| Ok(owner.session(u64::MAX))).await?;
            (Source::Stream(session), format!("the evidence of stream {other} was added"))
        }
        "application/octet-stream" | "application/x-safetensors" => {
            (Source::File(bytes, watch.share()), "the evidence of another server was added".to_string())
        }
        other => {
            return Err(Problem::unsupported(format!(
                "expected application/json or application/octet-stream, got {other:?}"
            )));
        }
    };
    // Whole states are large: each is there while the owner merges it, and no longer.
    let merge = move |owner: &mut Owner| match other {
        Source::Stream(session) => owner.merge(&session.state(), &text),
        Source::File(bytes, _held) => owner.merge(&Learnt::from_bytes(&bytes)?, &text),
    };
    stream.control(merge).await?;
    Ok(Json(view(&stream)))
}

/// Download the state
///
/// A state file (safetensors), for `merge` on another server or `ultta run --load-state`.
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/state", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "The state", body = Vec<u8>, content_type = "application/octet-stream"), Refusals),
    security((), ("token" = []))))]
async fn state(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let (session, _) = stream.control(|owner| Ok(owner.session(u64::MAX))).await?;
    let _turn = stream.turn().await?;
    let bytes = tokio::task::block_in_place(|| session.state().to_bytes())?;
    Ok(Place::for_file(&app.room, bytes.len())?.send("application/octet-stream", bytes))
}

/// Classes: drift, prior, recent mix
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/classes", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "All classes", body = ClassList<'_>), Refusals), security((), ("token" = []))))]
async fn classes(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let (session, _) = stream.published();
    let drift = session.per_class();
    let estimates = session.class_estimates();
    let mix = stream.board.mix();
    let total = mix.total.max(1) as f64;
    let names = stream.head.classes();
    let classes = names
        .iter()
        .enumerate()
        .map(|(label, class)| {
            let drift = drift.get(label).copied().unwrap_or_default();
            let (n, sum) = mix.counts.get(label).copied().unwrap_or_default();
            let recent = f64::from(n) / total;
            ClassView {
                label,
                class,
                movement: drift.movement,
                prior: drift.prior,
                recent,
                evidence: drift.evidence,
                confidence: (n > 0).then(|| sum / f64::from(n)),
                answers: estimates[label].answers,
                estimate: estimates[label].adapted,
                estimate_zero_shot: estimates[label].zero_shot,
            }
        })
        .collect();
    Ok(Json(ClassList { as_of: session.next_id(), window: mix.total, classes }).into_response())
}

/// The recent past: time axis and events
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/history", tag = "streams", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "Points and events", body = History), Refusals), security((), ("token" = []))))]
async fn history(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Json<History>, Problem> {
    let (points, events) = app.streams.get(&name)?.board.history(app.streams.clock.now());
    Ok(Json(History { points, events }))
}

/// The story of a class: its mix, drift and estimated accuracy along the stream
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/classes/{label}/history", tag = "streams",
    params(("stream" = String, Path, example = "default"), ("label" = usize, Path, example = 0)),
    responses((status = 200, description = "Points", body = ClassHistory), Refusals), security((), ("token" = []))))]
async fn story(
    State(app): State<Arc<App>>,
    Named((name, label)): Named<(String, usize)>,
) -> Result<Json<ClassHistory>, Problem> {
    let stream = app.streams.get(&name)?;
    let class = stream.head.classes().get(label).cloned();
    let class = class.ok_or_else(|| Problem::not_found(format!("stream {name:?} has no class {label}")))?;
    Ok(Json(ClassHistory { label, class, points: stream.board.story(label) }))
}
