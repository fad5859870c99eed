//! Answers to features: as JSON, as a file, as JSON lines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use ultta::Features;
use ultta_formats::Id;

use super::lines::answer_lines;
use crate::answer::Place;
use crate::api::*;
use crate::body;
use crate::http::App;
use crate::job::Extent;
use crate::metrics::Stage;
use crate::problem::Problem;
use crate::room::Watch;
use crate::routes::{Named, Params, aside, content_type, json, read};
use crate::samples::{Samples, Views};
use crate::stream::{Size, Stream, check_views};

calls! {
    "/v1/streams/{stream}/classify": post classify;
    "/v1/streams/{stream}/predict": post predict;
}

/// Answer rows and learn from them
///
/// Rows are answered in arrival order, each before it teaches. Three kinds of body: `application/json`;
/// `application/octet-stream` with a safetensors or `.npy` file, for bulk; `application/x-ndjson`, one row a line,
/// answered line by line while the request is still being sent.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/classify", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((ClassifyRequest = "application/json"), (Vec<u8> = "application/octet-stream"), (String = "application/x-ndjson"))),
    responses((status = 200, description = "Answers, in order", content((ClassifyResponse<'_> = "application/json"), (String = "application/x-ndjson"))), Refusals),
    security((), ("token" = []))))]
async fn classify(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    Extension(watch): Extension<Watch>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(&app, &name, query, &headers, body, Some(watch)).await
}

/// Answer rows without learning from them
///
/// Answered from the published state, which is at most about ten seconds behind, one second while there are readers (`as_of`); never waits for learning.
/// Takes the same bodies as `classify`.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/predict", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((ClassifyRequest = "application/json"), (Vec<u8> = "application/octet-stream"), (String = "application/x-ndjson"))),
    responses((status = 200, description = "Answers, in order", content((ClassifyResponse<'_> = "application/json"), (String = "application/x-ndjson"))), Refusals),
    security((), ("token" = []))))]
async fn predict(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(&app, &name, query, &headers, body, None).await
}

async fn answer(
    app: &Arc<App>,
    name: &str,
    query: ClassifyQuery,
    headers: &HeaderMap,
    sent: Body,
    learn: Option<Watch>,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let stream = app.streams.get(name)?;
    let limits = &app.config.limits;
    let kind = content_type(headers);
    if kind == "application/x-ndjson" {
        let pause = Duration::from_secs(limits.request_seconds);
        return Ok(answer_lines(app, stream, query, sent, learn.is_some(), pause));
    }
    let bytes = || read(sent, limits.body_bytes, limits.request_seconds);
    let (samples, extent, refs) = match kind.as_str() {
        "application/json" => {
            let bytes = bytes().await?;
            aside(bytes.len(), || from_json(&bytes, query, stream.size(limits.batch_rows)))?
        }
        "application/octet-stream" | "application/x-npy" | "application/x-safetensors" => {
            let bytes = bytes().await?;
            let rows_of = |bytes| -> Result<Samples, Problem> {
                let file = body::open(bytes)?;
                // Numbers of one byte become numbers of four: what is too much is refused before it is read.
                stream.size(limits.batch_rows).check(file.rows(), file.dim())?;
                check_views(file.views_each())?;
                Ok(body::samples(&file, query.normalize.unwrap_or(false))?)
            };
            let samples = aside(bytes.len(), || rows_of(bytes))?;
            (samples, query.extent(), None)
        }
        other => {
            let advice = match other {
                kind if kind.starts_with("image/") || kind == "multipart/form-data" => {
                    "; pictures go to `…/pictures`"
                }
                "application/x-www-form-urlencoded" => {
                    "; that is curl's own, tell it -H 'content-type: application/json'"
                }
                _ => "",
            };
            return Err(Problem::unsupported(format!(
                "expected application/json, application/octet-stream or application/x-ndjson, got {other:?}{advice}"
            )));
        }
    };
    stream.check(&samples, limits.batch_rows)?;
    stream.stages.observe(Stage::Parse, arrived.elapsed());
    respond(app, &stream, samples, extent, refs, learn, arrived).await
}

/// Shows checked samples to the stream and writes its answers. It learns from those of a request whose body is watched, which holds its
/// room until then.
pub async fn respond(
    app: &App,
    stream: &Stream,
    samples: Samples,
    extent: Extent,
    refs: Option<Vec<Id>>,
    learn: Option<Watch>,
    arrived: Instant,
) -> Result<Response, Problem> {
    // Before anything is learnt: a request whose answer has no room is refused as a whole.
    let reckoned = answer_bytes(samples.len(), extent, &stream.head);
    let place = Place::take(&app.room, reckoned)?;
    let answers = match learn {
        Some(watch) => {
            let held = app.room.hold_samples(&watch, samples.bytes())?;
            stream.classify(samples, extent, arrived, held).await?
        }
        None => {
            let answers = stream.predict(samples, extent).await?;
            place.grow(&app.room, reckoned + more_bytes(&answers, refs.as_deref()))?;
            answers
        }
    };
    let response = ClassifyResponse {
        stream: &stream.name,
        generation: answers.generation,
        learnt: answers.learnt(),
        as_of: answers.as_of,
        rows: row_answers(answers, stream.head.classes(), refs),
    };
    place.json(&response)
}

/// Samples of a JSON body, what its answers are to hold, and the sender's names for them.
pub fn from_json(
    bytes: &[u8],
    query: ClassifyQuery,
    size: Size,
) -> Result<(Samples, Extent, Option<Vec<Id>>), Problem> {
    let request: ClassifyRequest = json(bytes)?;
    let Matrix { data, rows, dim } = request.features;
    // An empty list of rows does not tell its dimension.
    let dim = if rows == 0 { size.dim } else { dim };
    size.check(rows, dim)?;
    let normalize = request.normalize.or(query.normalize).unwrap_or(false);
    let learn = match request.learn {
        None | Some(Learn::All(true)) => None,
        Some(Learn::All(false)) => Some(vec![false; rows]),
        Some(Learn::Each(marks)) => Some(marks),
    };
    if let Some(refs) = request.refs.as_ref().filter(|refs| refs.len() != rows) {
        return Err(ultta::Error::Shape {
            what: ultta::What::Other("refs"),
            expected: rows,
            got: refs.len(),
        }
        .into());
    }
    let views = request.views.map(|views| json_views(views, dim, normalize)).transpose()?;
    let samples = Samples::new(Features::checked(data, dim, normalize)?, learn, request.times, views)?;
    let extent = Extent {
        top: request.top.or(query.top).unwrap_or(0) as usize,
        probs: request.probs.or(query.probs).unwrap_or(false),
        prob_pred: request.prob_pred.or(query.prob_pred).unwrap_or(false),
    };
    Ok((samples, extent, request.refs))
}

/// The views of all rows, one list per row.
fn json_views(views: Vec<Matrix>, dim: usize, normalize: bool) -> Result<Views, Problem> {
    let counts: Vec<usize> = views.iter().map(|view| view.rows).collect();
    if let Some(view) = views.iter().find(|view| view.rows > 0 && view.dim != dim) {
        return Err(ultta::Error::Shape {
            what: ultta::What::Other("length of a view"),
            expected: dim,
            got: view.dim,
        }
        .into());
    }
    let data: Vec<f32> = views.into_iter().flat_map(|view| view.data).collect();
    Ok(Views { features: Features::checked(data, dim, normalize)?, counts })
}
