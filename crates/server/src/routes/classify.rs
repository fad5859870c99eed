//! Answers: features as JSON, binary or JSON lines; pictures; delayed labels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use ultta::Features;
use ultta_formats::{Id, Line};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::*;
use crate::http::App;
use crate::log::Rows;
use crate::metrics::Stage;
use crate::owner::{Answers, Extent, Outcome};
use crate::problem::Problem;
use crate::routes::{Named, Params, content_type, json, json_body, read};
use crate::streams::Stream;

/// Lines of one request that are under way at once.
const LINES_AHEAD: usize = 64;
/// How often a quiet client's server looks whether it is stopping.
const LOOK: Duration = Duration::from_millis(250);
/// A longer line is no row.
const MAX_LINE: usize = 4 << 20;

pub fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(classify))
        .routes(routes!(predict))
        .routes(routes!(pictures))
        .routes(routes!(predict_pictures))
        .routes(routes!(feedback))
}

/// Answer rows and learn from them
///
/// Rows are answered in arrival order, each before it teaches. Three kinds of body: `application/json`;
/// `application/octet-stream` with a safetensors or `.npy` file, for bulk; `application/x-ndjson`, one row a line,
/// answered line by line while the request is still being sent.
#[utoipa::path(post, path = "/v1/streams/{stream}/classify", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((ClassifyRequest = "application/json"), (Vec<u8> = "application/octet-stream"), (String = "application/x-ndjson"))),
    responses((status = 200, description = "Answers, in order", content((ClassifyResponse<'_> = "application/json"), (String = "application/x-ndjson"))), Refusals),
    security((), ("token" = [])))]
async fn classify(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(&app, &name, query, &headers, body, true).await
}

/// Answer rows without learning from them
///
/// Answered from the published state, which is at most about ten seconds behind, one second while there are readers (`as_of`); never waits for learning.
/// Takes the same bodies as `classify`.
#[utoipa::path(post, path = "/v1/streams/{stream}/predict", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((ClassifyRequest = "application/json"), (Vec<u8> = "application/octet-stream"), (String = "application/x-ndjson"))),
    responses((status = 200, description = "Answers, in order", content((ClassifyResponse<'_> = "application/json"), (String = "application/x-ndjson"))), Refusals),
    security((), ("token" = [])))]
async fn predict(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(&app, &name, query, &headers, body, false).await
}

async fn answer(
    app: &Arc<App>,
    name: &str,
    query: ClassifyQuery,
    headers: &HeaderMap,
    body: Body,
    learn: bool,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let stream = app.streams.get(name)?;
    let limits = &app.config.limits;
    let kind = content_type(headers);
    if kind == "application/x-ndjson" {
        let pause = Duration::from_secs(limits.request_seconds);
        return Ok(answer_lines(app, stream, query, body, learn, pause));
    }
    let (rows, extent, refs) = match kind.as_str() {
        "application/json" => {
            let bytes = read(body, limits.body_bytes, limits.request_seconds).await?;
            from_json(&bytes, query, &stream, limits.batch_rows)?
        }
        "application/octet-stream" | "application/x-npy" | "application/x-safetensors" => {
            let bytes = read(body, limits.body_bytes, limits.request_seconds).await?;
            let parsed = crate::body::Body::parse(&bytes, query.normalize.unwrap_or(false))?;
            let dim = parsed.features.dim();
            let rows = Rows {
                dim,
                features: parsed.features.data().to_vec(),
                learn: parsed.learn,
                times: parsed.times,
                ..Default::default()
            };
            (rows, query.extent(), None)
        }
        other => {
            return Err(Problem::unsupported(format!(
                "expected application/json, application/octet-stream or application/x-ndjson, got {other:?}"
            )));
        }
    };
    check(&rows, &stream, limits.batch_rows)?;
    stream.stages.observe(Stage::Parse, arrived.elapsed());
    respond(&stream, rows, extent, refs, learn, arrived).await
}

async fn respond(
    stream: &Stream,
    rows: Rows,
    extent: Extent,
    refs: Option<Vec<Id>>,
    learn: bool,
    arrived: Instant,
) -> Result<Response, Problem> {
    let answers = match learn {
        true => stream.classify(rows, extent, arrived).await?,
        false => stream.predict(rows, extent).await?,
    };
    let response = ClassifyResponse {
        stream: &stream.name,
        generation: answers.generation,
        learnt: answers.learnt,
        as_of: answers.as_of,
        rows: row_answers(answers, stream.head.classes(), refs),
    };
    Ok(Json(response).into_response())
}

fn from_json(
    bytes: &[u8],
    query: ClassifyQuery,
    stream: &Stream,
    most: usize,
) -> Result<(Rows, Extent, Option<Vec<Id>>), Problem> {
    let request: ClassifyRequest = json(bytes)?;
    let Matrix { data, rows: n, dim } = request.features;
    // No rows have no dimension of their own.
    let dim = if n == 0 { stream.head.dim() } else { dim };
    if n > most {
        return Err(Problem::too_large(format!("a request may have {most} rows, got {n}")));
    }
    if dim != stream.head.dim() {
        let (expected, got) = (stream.head.dim(), dim);
        return Err(ultta::Error::Shape { what: "feature dimension", expected, got }.into());
    }
    let normalize = request.normalize.or(query.normalize).unwrap_or(false);
    let unit = |data: Vec<f32>| -> Result<Vec<f32>, Problem> {
        let features = if normalize { Features::normalized(data, dim) } else { Features::new(data, dim) }?;
        Ok(features.data().to_vec())
    };
    let learn = match request.learn {
        None | Some(Learn::All(true)) => None,
        Some(Learn::All(false)) => Some(vec![false; n]),
        Some(Learn::Rows(marks)) => Some(marks),
    };
    let view_counts = request.views.as_ref().map(|views| views.iter().map(Vec::len).collect::<Vec<_>>());
    let mut views = Vec::new();
    for view in request.views.iter().flatten().flatten() {
        if view.len() != dim {
            return Err(
                ultta::Error::Shape { what: "length of a view", expected: dim, got: view.len() }.into()
            );
        }
        views.extend_from_slice(view);
    }
    if let Some(refs) = request.refs.as_ref().filter(|refs| refs.len() != n) {
        return Err(ultta::Error::Shape { what: "refs", expected: n, got: refs.len() }.into());
    }
    let extent = Extent {
        top: request.top.or(query.top).unwrap_or(0) as usize,
        probs: request.probs.or(query.probs).unwrap_or(false),
    };
    let rows =
        Rows { dim, features: unit(data)?, learn, times: request.times, views: unit(views)?, view_counts };
    Ok((rows, extent, request.refs))
}

/// Finds what is wrong before anything waits in a queue.
fn check(rows: &Rows, stream: &Stream, most: usize) -> Result<(), Problem> {
    let (n, dim) = (rows.len(), stream.head.dim());
    if n > most {
        return Err(Problem::too_large(format!("a request may have {most} rows, got {n}")));
    }
    let shape = |what, expected, got| {
        if expected == got { Ok(()) } else { Err(ultta::Error::Shape { what, expected, got }) }
    };
    shape("feature dimension", dim, rows.dim)?;
    if let Some(learn) = &rows.learn {
        shape("learn marks", n, learn.len())?;
    }
    if let Some(times) = &rows.times {
        shape("times", n, times.len())?;
        if let Some(row) = times.iter().position(|t| !t.is_finite()) {
            return Err(ultta::Error::NotFinite { what: "times", row }.into());
        }
    }
    if let Some(counts) = &rows.view_counts {
        shape("view counts", n, counts.len())?;
    }
    Ok(())
}

/// One line of an answer to JSON lines.
#[derive(Serialize)]
struct LineAnswer<'a> {
    #[serde(flatten)]
    row: RowAnswer<'a>,
    learnt: bool,
    generation: u64,
}

#[derive(Serialize)]
struct LineError<'a> {
    line: u64,
    error: &'a str,
}

enum Pending {
    Answer(oneshot::Receiver<Result<Answers, Problem>>, Option<Id>),
    Ready(Result<Answers, Problem>, Option<Id>),
    Broken(String),
}

/// Answers line by line, in order. A line that cannot be answered is refused in its place, and the others go on.
fn answer_lines(
    app: &Arc<App>,
    stream: Arc<Stream>,
    query: ClassifyQuery,
    body: Body,
    learn: bool,
    pause: Duration,
) -> Response {
    let (sender, receiver) = mpsc::channel::<(u64, Pending)>(LINES_AHEAD);
    let (asking, app) = (stream.clone(), app.clone());
    tokio::spawn(async move {
        let mut chunks = body.into_data_stream();
        let mut buffer: Vec<u8> = Vec::new();
        let (mut number, mut ended, mut heard) = (0, false, Instant::now());
        while !ended {
            match tokio::time::timeout(LOOK, chunks.next()).await {
                Ok(Some(Ok(chunk))) => {
                    buffer.extend_from_slice(&chunk);
                    heard = Instant::now();
                }
                Ok(None) => {
                    ended = true;
                    buffer.push(b'\n');
                }
                // The client has gone, says nothing, or the server stops: what was sent whole is answered.
                Ok(Some(Err(_))) => return,
                Err(_) if heard.elapsed() >= pause || app.stopping.load(Ordering::Acquire) => return,
                Err(_) => {}
            }
            let mut start = 0;
            while let Some(length) = buffer[start..].iter().position(|&b| b == b'\n') {
                number += 1;
                let line = &buffer[start..start + length];
                start += length + 1;
                let pending = match Line::parse(line) {
                    Ok(None) => continue,
                    Ok(Some(line)) => ask(&asking, line, query, learn).await,
                    Err(reason) => Pending::Broken(reason.to_string()),
                };
                if sender.send((number, pending)).await.is_err() {
                    return;
                }
            }
            buffer.drain(..start);
            if buffer.len() > MAX_LINE {
                let refusal = Pending::Broken(format!("a line may have {MAX_LINE} bytes"));
                let _ = sender.send((number + 1, refusal)).await;
                return;
            }
        }
    });
    let answers = stream::unfold((receiver, stream), |(mut receiver, stream)| async move {
        let (number, pending) = receiver.recv().await?;
        let (answered, reference) = match pending {
            Pending::Answer(answer, reference) => (stream.answer(answer).await, reference),
            Pending::Ready(answer, reference) => (answer, reference),
            Pending::Broken(message) => (Err(Problem::malformed(message)), None),
        };
        let mut line = match answered {
            Ok(answers) => {
                let (learnt, generation) = (answers.learnt, answers.generation);
                let refs = reference.map(|r| vec![r]);
                let mut rows = row_answers(answers, stream.head.classes(), refs);
                match rows.pop() {
                    Some(row) => serde_json::to_vec(&LineAnswer { row, learnt, generation }),
                    None => Ok(Vec::new()),
                }
            }
            Err(problem) => serde_json::to_vec(&LineError { line: number, error: &problem.detail }),
        }
        .unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (receiver, stream)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(answers)).into_response()
}

async fn ask(stream: &Stream, line: Line, query: ClassifyQuery, learn: bool) -> Pending {
    let rows = match Features::of_line(&line, query.normalize.unwrap_or(false)) {
        Ok((features, views)) => Rows {
            dim: features.dim(),
            learn: (!line.learn).then(|| vec![false]),
            times: line.time.map(|t| vec![t]),
            view_counts: views.as_ref().map(|v| vec![v.rows()]),
            views: views.map(|v| v.data().to_vec()).unwrap_or_default(),
            features: features.data().to_vec(),
        },
        Err(e) => return Pending::Broken(e.to_string()),
    };
    if let Err(problem) = check(&rows, stream, 1) {
        return Pending::Broken(problem.detail);
    }
    match learn {
        true => match stream.submit(rows, query.extent()).await {
            Ok(answer) => Pending::Answer(answer, line.id),
            Err(problem) => Pending::Ready(Err(problem), line.id),
        },
        false => Pending::Ready(stream.predict(rows, query.extent()).await, line.id),
    }
}

/// Answer pictures and learn from them
///
/// Needs an image model (`ultta serve --model`). Bodies: one picture as it is (`image/jpeg`, `image/png`,
/// `application/octet-stream`), `multipart/form-data` with any number of files, or JSON with base64.
#[utoipa::path(post, path = "/v1/streams/{stream}/pictures", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((PicturesRequest = "application/json"), (Vec<u8> = "image/jpeg"), (Vec<u8> = "image/png"), (Vec<u8> = "application/octet-stream"), (PicturesForm = "multipart/form-data"))),
    responses((status = 200, description = "Answers, in order", body = ClassifyResponse<'_>), Refusals), security((), ("token" = [])))]
async fn pictures(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    request: Request,
) -> Result<Response, Problem> {
    answer_pictures(&app, &name, query, request, true).await
}

/// Answer pictures without learning from them
#[utoipa::path(post, path = "/v1/streams/{stream}/pictures/predict", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((PicturesRequest = "application/json"), (Vec<u8> = "image/jpeg"), (Vec<u8> = "image/png"), (Vec<u8> = "application/octet-stream"), (PicturesForm = "multipart/form-data"))),
    responses((status = 200, description = "Answers, in order", body = ClassifyResponse<'_>), Refusals), security((), ("token" = [])))]
async fn predict_pictures(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    request: Request,
) -> Result<Response, Problem> {
    answer_pictures(&app, &name, query, request, false).await
}

async fn answer_pictures(
    app: &App,
    name: &str,
    query: ClassifyQuery,
    request: Request,
    learn: bool,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let stream = app.streams.get(name)?;
    let encoder = app.pictures.as_ref().ok_or_else(Problem::no_picture_model)?;
    if encoder.dim() != stream.head.dim() {
        return Err(Problem::conflict(format!(
            "the image model makes rows of {} numbers, the head of stream {name:?} expects {}",
            encoder.dim(),
            stream.head.dim()
        )));
    }
    let limits = &app.config.limits;
    let (mut extent, mut refs) = (query.extent(), None);
    let kind = content_type(request.headers());
    let pictures: Vec<Bytes> = match kind.as_str() {
        "multipart/form-data" => from_multipart(request).await?,
        "application/json" => {
            let bytes = read(request.into_body(), limits.body_bytes, limits.request_seconds).await?;
            let request: PicturesRequest = json(&bytes)?;
            if let Some(names) = request.refs.as_ref().filter(|r| r.len() != request.pictures.len()) {
                let (expected, got) = (request.pictures.len(), names.len());
                return Err(ultta::Error::Shape { what: "refs", expected, got }.into());
            }
            extent.top = request.top.map_or(extent.top, |top| top as usize);
            extent.probs = request.probs.unwrap_or(extent.probs);
            refs = request.refs;
            let decode = |(i, text): (usize, &String)| {
                let decoded = base64::engine::general_purpose::STANDARD.decode(text.trim());
                decoded
                    .map(Bytes::from)
                    .map_err(|e| Problem::malformed(format!("picture {i}: not base64: {e}")))
            };
            request.pictures.iter().enumerate().map(decode).collect::<Result<_, _>>()?
        }
        "application/octet-stream" => {
            vec![read(request.into_body(), limits.picture_bytes, limits.request_seconds).await?]
        }
        kind if kind.starts_with("image/") => {
            vec![read(request.into_body(), limits.picture_bytes, limits.request_seconds).await?]
        }
        other => {
            return Err(Problem::unsupported(format!(
                "expected a picture, multipart/form-data or application/json, got {other:?}"
            )));
        }
    };
    if pictures.len() > limits.batch_rows {
        return Err(Problem::too_large(format!("a request may have {} pictures", limits.batch_rows)));
    }
    if let Some(i) = pictures.iter().position(|p| p.len() > limits.picture_bytes) {
        return Err(Problem::too_large(format!(
            "picture {i}: a picture may have {} bytes",
            limits.picture_bytes
        )));
    }
    stream.stages.observe(Stage::Parse, arrived.elapsed());
    let encoding = Instant::now();
    let data = encoder.encode(pictures).await?;
    stream.stages.observe(Stage::Encode, encoding.elapsed());
    let dim = stream.head.dim();
    let features = Features::normalized(data, dim)?.data().to_vec();
    respond(&stream, Rows { dim, features, ..Default::default() }, extent, refs, learn, arrived).await
}

/// The files of a form, without its other fields. Its size is limited by the router.
async fn from_multipart(request: Request) -> Result<Vec<Bytes>, Problem> {
    let malformed = |e: axum::extract::multipart::MultipartError| match e.status().as_u16() {
        413 => Problem::too_large(e.body_text()),
        _ => Problem::malformed(e.body_text()),
    };
    let mut form =
        Multipart::from_request(request, &()).await.map_err(|e| Problem::malformed(e.body_text()))?;
    let mut pictures = Vec::new();
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        if field.file_name().is_some() {
            pictures.push(field.bytes().await.map_err(malformed)?);
        }
    }
    match pictures.is_empty() {
        true => Err(Problem::malformed("expected a form with at least 1 file, got none")),
        false => Ok(pictures),
    }
}

/// Deliver labels of earlier samples
///
/// By the ids of the answers. A method that has a use for labels learns from them, and calibration is reported.
#[utoipa::path(post, path = "/v1/streams/{stream}/feedback", tag = "classify", params(("stream" = String, Path, example = "default")),
    request_body = FeedbackRequest, responses((status = 200, description = "What became of each label", body = FeedbackResponse), Refusals),
    security((), ("token" = [])))]
async fn feedback(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<FeedbackResponse>, Problem> {
    let stream = app.streams.get(&name)?;
    let limits = &app.config.limits;
    let request: FeedbackRequest = json_body(&headers, body, limits).await?;
    if request.labels.len() > limits.batch_rows {
        return Err(Problem::too_large(format!("a request may have {} labels", limits.batch_rows)));
    }
    let mut labels = Vec::with_capacity(request.labels.len());
    for given in &request.labels {
        let label = match (given.label, &given.class) {
            (Some(label), None) => label,
            (None, Some(class)) => {
                let mut found = stream.head.classes().iter().enumerate().filter(|(_, name)| *name == class);
                match (found.next(), found.next()) {
                    (Some((label, _)), None) => label,
                    (None, _) => return Err(Problem::invalid(format!("there is no class {class:?}"))),
                    _ => {
                        return Err(Problem::invalid(format!(
                            "several classes are named {class:?}; give the label"
                        )));
                    }
                }
            }
            _ => {
                return Err(Problem::invalid(format!("sample {}: expected either label or class", given.id)));
            }
        };
        labels.push((given.id, label));
    }
    let outcomes = stream.feedback(labels, request.generation).await?;
    let outcomes = request.labels.iter().zip(outcomes).map(|(given, outcome)| match outcome {
        Outcome::Taken => FeedbackOutcome { id: given.id, outcome: "taken", reason: None },
        Outcome::Unused => FeedbackOutcome { id: given.id, outcome: "unused", reason: None },
        Outcome::Refused(why) => FeedbackOutcome { id: given.id, outcome: "refused", reason: Some(why) },
    });
    Ok(Json(FeedbackResponse { outcomes: outcomes.collect() }))
}
