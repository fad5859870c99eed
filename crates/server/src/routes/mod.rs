//! The calls, by what they are for; and how bodies, paths and queries are read.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use crate::http::App;
use crate::problem::Problem;

/// The calls of a file, by path: its `router`, their list, and for tests their part of the OpenAPI document.
macro_rules! calls {
    ($($path:literal: $($method:ident $handler:ident),+;)*) => {
        pub fn router() -> axum::Router<std::sync::Arc<$crate::http::App>> {
            axum::Router::new()$(.route($path, axum::routing::MethodRouter::new()$(.$method($handler))+))*
        }

        #[cfg(test)]
        pub const CALLS: &[(&str, &str)] = &[$($(($path, stringify!($method)),)+)*];

        #[cfg(test)]
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler),+),*))]
        pub struct Calls;
    };
}

pub mod classify;
pub mod feedback;
pub mod groups;
mod lines;
pub mod manage;
pub mod operate;
pub mod pictures;
pub mod v2;
pub mod watch;

/// All calls.
pub fn router() -> Router<Arc<App>> {
    Router::new()
        .merge(classify::router())
        .merge(pictures::router())
        .merge(feedback::router())
        .merge(operate::router())
        .merge(manage::router())
        .merge(groups::router())
        .merge(watch::router())
        .merge(v2::router())
}

/// Path and method of every call.
#[cfg(test)]
pub fn calls() -> impl Iterator<Item = (&'static str, &'static str)> {
    let files = [
        classify::CALLS,
        pictures::CALLS,
        feedback::CALLS,
        operate::CALLS,
        manage::CALLS,
        groups::CALLS,
        watch::CALLS,
        v2::CALLS,
    ];
    files.into_iter().flatten().copied()
}

/// Query parameters, refused with a problem document.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(params)| Params(params)).map_err(|e| Problem::malformed(e.body_text()))
    }
}

/// Names in the path, refused with a problem document.
pub struct Named<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(names)| Named(names)).map_err(|e| Problem::malformed(e.body_text()))
    }
}

/// The whole body, if it is not too large. A client that pauses for too long is cut off.
pub async fn read(body: Body, most: usize, pause: u64) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut first: Option<Bytes> = None;
    let mut all: Vec<u8> = Vec::new();
    loop {
        let chunk = match tokio::time::timeout(Duration::from_secs(pause), stream.next()).await {
            Err(_) => return Err(Problem::timeout(format!("no byte of the body for {pause} seconds"))),
            Ok(None) => break,
            Ok(Some(Err(e))) => return Err(Problem::malformed(format!("the body broke off: {e}"))),
            Ok(Some(Ok(chunk))) => chunk,
        };
        if first.as_ref().map_or(all.len(), Bytes::len) + chunk.len() > most {
            return Err(Problem::too_large(format!("a body may have {most} bytes")));
        }
        match first.take() {
            None if all.is_empty() => first = Some(chunk),
            Some(earlier) => {
                all.reserve(earlier.len() + chunk.len());
                all.extend_from_slice(&earlier);
                all.extend_from_slice(&chunk);
            }
            None => all.extend_from_slice(&chunk),
        }
    }
    Ok(first.unwrap_or_else(|| all.into()))
}

/// Bodies and answers above this size are worked on aside.
const LARGE: usize = 1 << 20;

/// Does work on `bytes` bytes. If these are many, the other requests of this thread move to another thread first.
pub fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes > LARGE { tokio::task::block_in_place(work) } else { work() }
}

/// The content type without its parameters, in lower case.
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// Reads JSON and names what is wrong with it.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => Problem::invalid(format!("body: {e}")),
        _ => Problem::malformed(format!("body: not valid JSON: {e}")),
    })
}

/// Reads a JSON body of moderate size.
pub async fn json_body<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    limits: &crate::settings::Limits,
) -> Result<T, Problem> {
    expect_json(headers)?;
    let bytes = read(body, limits.body_bytes, limits.request_seconds).await?;
    aside(bytes.len(), || json(&bytes))
}

/// Refuses what is not declared as JSON: a page cannot send that to another origin without asking.
pub fn expect_json(headers: &HeaderMap) -> Result<(), Problem> {
    match content_type(headers).as_str() {
        "application/json" => Ok(()),
        other => Err(Problem::unsupported(format!("expected application/json, got {other:?}"))),
    }
}
