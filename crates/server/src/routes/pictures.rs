//! Answers to pictures: encoded here, then on the way of all samples.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::response::Response;
use base64::Engine;
use ultta::Features;

use super::classify::respond;
use crate::api::*;
use crate::http::App;
use crate::metrics::Stage;
use crate::problem::Problem;
use crate::room::Watch;
use crate::routes::{Named, Params, aside, content_type, json, read};
use crate::samples::Samples;

calls! {
    "/v1/streams/{stream}/pictures": post pictures;
    "/v1/streams/{stream}/pictures/predict": post predict_pictures;
}

/// Answer pictures and learn from them
///
/// Needs an image model (`ultta serve --model`). Bodies: one picture as it is (`image/jpeg`, `image/png`,
/// `application/octet-stream`), `multipart/form-data` with any number of files, or JSON with base64.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/pictures", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((PicturesRequest = "application/json"), (Vec<u8> = "image/jpeg"), (Vec<u8> = "image/png"), (Vec<u8> = "application/octet-stream"), (PicturesForm = "multipart/form-data"))),
    responses((status = 200, description = "Answers, in order", body = ClassifyResponse<'_>), Refusals), security((), ("token" = []))))]
async fn pictures(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    Extension(watch): Extension<Watch>,
    request: Request,
) -> Result<Response, Problem> {
    answer_pictures(&app, &name, query, request, Some(watch)).await
}

/// Answer pictures without learning from them
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/pictures/predict", tag = "classify", params(("stream" = String, Path, example = "default"), ClassifyQuery),
    request_body(content((PicturesRequest = "application/json"), (Vec<u8> = "image/jpeg"), (Vec<u8> = "image/png"), (Vec<u8> = "application/octet-stream"), (PicturesForm = "multipart/form-data"))),
    responses((status = 200, description = "Answers, in order", body = ClassifyResponse<'_>), Refusals), security((), ("token" = []))))]
async fn predict_pictures(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<ClassifyQuery>,
    request: Request,
) -> Result<Response, Problem> {
    answer_pictures(&app, &name, query, request, None).await
}

async fn answer_pictures(
    app: &App,
    name: &str,
    query: ClassifyQuery,
    request: Request,
    learn: Option<Watch>,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let stream = app.streams.get(name)?;
    let encoder = app.pictures.as_ref().ok_or_else(Problem::no_picture_model)?;
    if encoder.dim() != stream.head.dim() {
        return Err(Problem::conflict(format!(
            "the image model makes rows of {} numbers, the head of stream {name:?} expects {}; do both come from one encoder?",
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
            let request: PicturesRequest =
                aside(bytes.len(), || json(&bytes)).map_err(|problem: Problem| {
                    problem.with_advice("`features`", "; features go to `…/classify`")
                })?;
            if let Some(names) = request.refs.as_ref().filter(|r| r.len() != request.pictures.len()) {
                let (expected, got) = (request.pictures.len(), names.len());
                return Err(ultta::Error::Shape { what: ultta::What::Other("refs"), expected, got }.into());
            }
            extent.top = request.top.map_or(extent.top, |top| top as usize);
            extent.probs = request.probs.unwrap_or(extent.probs);
            extent.prob_pred = request.prob_pred.unwrap_or(extent.prob_pred);
            refs = request.refs;
            let decode = |(i, text): (usize, &String)| {
                let decoded = base64::engine::general_purpose::STANDARD.decode(text.trim());
                decoded
                    .map(Bytes::from)
                    .map_err(|e| Problem::malformed(format!("picture {i}: not base64: {e}")))
            };
            aside(bytes.len(), || request.pictures.iter().enumerate().map(decode).collect::<Result<_, _>>())?
        }
        "application/octet-stream" => {
            vec![read(request.into_body(), limits.picture_bytes, limits.request_seconds).await?]
        }
        kind if kind.starts_with("image/") => {
            vec![read(request.into_body(), limits.picture_bytes, limits.request_seconds).await?]
        }
        other => {
            return Err(Problem::unsupported(format!(
                "expected a picture, multipart/form-data or application/json, got {other:?}; name the picture's type: -H 'content-type: image/png'"
            )));
        }
    };
    if pictures.len() > limits.batch_rows {
        return Err(Problem::too_large(format!("a request may have {} pictures", limits.batch_rows)));
    }
    if let Some(i) = pictures.iter().position(Bytes::is_empty) {
        return Err(Problem::invalid(format!("picture {i}: the file is empty (did curl find the file?)")));
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
    let samples = Samples::plain(Features::checked(data, stream.head.dim(), true)?);
    stream.check(&samples, limits.batch_rows)?;
    respond(app, &stream, samples, extent, refs, learn, arrived).await
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
    if pictures.is_empty() {
        return Err(Problem::malformed("expected a form with at least 1 file, got none"));
    }
    Ok(pictures)
}
