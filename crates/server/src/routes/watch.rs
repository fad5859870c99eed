//! Health, metrics, methods, settings, and the two pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ultta::{Grouping, Readout};

use crate::api::*;
use crate::http::App;
use crate::problem::Problem;

const VERSION: &str = env!("CARGO_PKG_VERSION");

calls! {
    "/healthz": get healthz;
    "/readyz": get readyz;
    "/metrics": get metrics;
    "/v1/methods": get methods;
    "/v1/config": get config;
}

fn health(app: &App) -> HealthView {
    let mut degraded = app.streams.damaged();
    let streams = app.streams.all();
    degraded.extend(streams.iter().filter_map(|stream| Some((stream.name.clone(), stream.trouble()?))));
    let status = if degraded.is_empty() { "ok" } else { "degraded" };
    let apart = app.fleet.troubles().into_iter().collect();
    HealthView { status, degraded, apart, version: VERSION }
}

/// Whether the server lives
///
/// `degraded` names streams whose disk does not take the log: they answer and learn nothing until it does again;
/// streams that lost something on their disk, until that is acknowledged; and streams that could not be opened.
#[cfg_attr(test, utoipa::path(get, path = "/healthz", tag = "watch", responses((status = 200, description = "It lives", body = HealthView), Refusals)))]
async fn healthz(State(app): State<Arc<App>>) -> Json<HealthView> {
    Json(health(&app))
}

/// Whether the server takes requests
#[cfg_attr(test, utoipa::path(get, path = "/readyz", tag = "watch", responses((status = 200, description = "It does", body = HealthView), Refusals)))]
async fn readyz(State(app): State<Arc<App>>) -> Result<Json<HealthView>, Problem> {
    if app.stopping.load(Ordering::Acquire) {
        return Err(Problem::unavailable("the server is stopping"));
    }
    Ok(Json(health(&app)))
}

/// Prometheus metrics
#[cfg_attr(test, utoipa::path(get, path = "/metrics", tag = "watch", responses((status = 200, description = "Metrics", body = String, content_type = "text/plain"), Refusals),
    security((), ("token" = []))))]
async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let (streams, damaged) = (app.streams.all(), app.streams.damaged());
    let each = streams.iter().map(|s| (s.name.as_str(), s.status(), s.verdict(), s.waiting()));
    let unopened = damaged.keys().map(String::as_str);
    app.metrics.groups(&app.fleet.views());
    let text = app.metrics.text(each, unopened);
    let text = text.map_err(|e| Problem::unavailable(e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// The methods that a stream can use
#[cfg_attr(test, utoipa::path(get, path = "/v1/methods", tag = "watch", responses((status = 200, description = "Methods", body = MethodList), Refusals),
    security((), ("token" = []))))]
async fn methods() -> Json<MethodList> {
    let methods = ultta::cards().into_iter().map(|card| MethodView {
        name: card.name.replace('_', "-"),
        summary: card.summary,
        paper: card.paper,
        readout: match card.readout {
            Readout::BeforeObserve => "before_observe",
            Readout::AfterObserve => "after_observe",
        },
        rows: match card.grouping {
            Grouping::Independent => "independent",
            Grouping::Joint => "joint",
        },
        needs_views: card.needs_views,
    });
    Json(MethodList { methods: methods.collect() })
}

/// Settings of the server
#[cfg_attr(test, utoipa::path(get, path = "/v1/config", tag = "watch", responses((status = 200, description = "Settings", body = ConfigView), Refusals),
    security((), ("token" = []))))]
async fn config(State(app): State<Arc<App>>) -> Json<ConfigView> {
    let config = &app.config;
    Json(ConfigView {
        durability: config.durability,
        sync_interval_ms: config.sync_interval_ms,
        compact_bytes: config.compact_bytes,
        limits: config.limits.clone(),
        pictures: app.pictures.is_some(),
        tokens: !config.tokens.is_empty(),
        version: VERSION,
        stream_defaults: ultta::DEFAULT_TOML,
    })
}

/// The dashboard.
pub async fn dashboard() -> Response {
    page(include_str!("../pages/dashboard.html"))
}

/// The browsable documentation of the API.
pub async fn docs() -> Response {
    page(include_str!("../pages/docs.html"))
}

/// A page that can reach nothing but this server.
fn page(html: &'static str) -> Response {
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                  img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (StatusCode::OK, headers, html).into_response()
}
