//! The router, and what every request goes through: request id, origin, token, time limit, metrics, log line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tower_http::cors::{Any, CorsLayer};

use crate::answer::{self, PLACED};
use crate::auth::{Access, Guards};
use crate::deliver::Outbox;
use crate::fleet::Fleet;
use crate::listen::ServerError;
use crate::metrics::Metrics;
use crate::picture::{PictureEncoder, Pictures};
use crate::problem::Problem;
use crate::room::{Room, Watch};
use crate::routes;
use crate::settings::ServerConfig;
use crate::streams::Streams;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a refused request still sends is read and dropped, up to this much or twice the limit of a body: a client that is cut
/// off earlier sees a broken pipe instead of the refusal.
const DROPPED: usize = 64 << 20;

/// All that requests share.
pub struct App {
    pub config: ServerConfig,
    pub streams: Arc<Streams>,
    pub fleet: Fleet,
    pub metrics: Arc<Metrics>,
    pub pictures: Option<Pictures>,
    pub stopping: AtomicBool,
    guards: Guards,
    /// Room for request bodies.
    pub room: Room,
    /// Request ids are this and a number.
    boot: u32,
    requests: AtomicU64,
}

impl App {
    pub fn open(config: ServerConfig, encoder: Option<Arc<dyn PictureEncoder>>) -> Result<Self, ServerError> {
        let metrics = Arc::new(Metrics::new().map_err(|e| ServerError::Config(e.to_string()))?);
        let outbox = Outbox::start(&config.alarms).map_err(ServerError::Config)?;
        let streams = Streams::open(&config, metrics.clone(), outbox)?;
        let boot = (streams.clock.now() * 1e3) as u64 as u32 ^ std::process::id().rotate_left(16);
        let guards = Guards::new(&config.tokens);
        let (stopping, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        let room = Room::new(config.limits.waiting_bytes, config.limits.body_bytes);
        let pictures = encoder.map(|encoder| Pictures::new(encoder, &config.limits)).transpose();
        let pictures =
            pictures.map_err(|e| ServerError::Config(format!("threads for the image model: {e}")))?;
        let fleet = Fleet::default();
        Ok(Self { config, streams, fleet, metrics, pictures, stopping, guards, room, boot, requests })
    }
}

/// The OpenAPI 3.1 document of the API (`document.rs` makes it).
pub const OPENAPI: &str = include_str!("pages/openapi.json");

/// Everything the server answers.
pub fn router(app: Arc<App>) -> Router {
    let json = || async { (PLACED, [(header::CONTENT_TYPE, "application/json")], OPENAPI) };
    let mut router = routes::router()
        .route("/", axum::routing::get(routes::watch::dashboard))
        .route("/docs", axum::routing::get(routes::watch::docs))
        .route("/openapi.json", axum::routing::get(json))
        .fallback(|| async { Problem::not_found("there is nothing here; /docs lists what there is") })
        .layer(DefaultBodyLimit::max(app.config.limits.body_bytes))
        .layer(middleware::from_fn_with_state(app.clone(), every_request));
    if let Some(cors) = cors(&app.config) {
        router = router.layer(cors);
    }
    router.with_state(app)
}

/// CORS is off unless origins are named.
fn cors(config: &ServerConfig) -> Option<CorsLayer> {
    let origins = &config.cors_origins;
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new().allow_methods([Method::GET, Method::POST, Method::DELETE]).allow_headers([
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        REQUEST_ID.clone(),
    ]);
    if origins.iter().any(|origin| origin == "*") {
        return Some(layer.allow_origin(Any));
    }
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    Some(layer.allow_origin(origins))
}

async fn every_request(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&app, &request);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", |path| path.as_str()).to_owned();
    let method = request.method().clone();
    if let Ok(value) = HeaderValue::from_str(&id) {
        request.headers_mut().insert(REQUEST_ID.clone(), value);
    }
    let limit = Duration::from_secs(app.config.limits.request_seconds);
    let admitted = admit(&app, &request).and_then(|access| {
        check_encoding(&request)?;
        check_length(&app, &request).map(|()| access)
    });
    let share = (!is_lines(&request)).then(|| app.room.share_of_body());
    let expected = request.headers().contains_key(header::EXPECT);
    let (watch, body) = Watch::new(std::mem::take(request.body_mut()), share, expected);
    *request.body_mut() = body;
    let mut response = match admitted {
        Err(problem) => {
            drop(request);
            problem.into_response()
        }
        Ok(access) => {
            request.extensions_mut().insert(access);
            request.extensions_mut().insert(watch.clone());
            match tokio::time::timeout(limit, next.run(request)).await {
                Ok(response) => answer::place(&app.room, response).await,
                Err(_) => Problem::timeout(format!("the request took more than {} seconds", limit.as_secs()))
                    .into_response(),
            }
        }
    };
    if watch.is_full() && !response.status().is_success() {
        response = app.room.refusal().into_response();
    }
    if watch.is_cut() && !response.status().is_success() {
        response = app.room.cut_off().into_response();
    }
    // A client that was too slow gets no more time to send the rest of its body.
    if response.status() != StatusCode::REQUEST_TIMEOUT {
        watch.finish((2 * app.config.limits.body_bytes).max(DROPPED));
    }
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        // axum puts the header on further out.
        let detail = "this path does not take this method; the header `allow` of this answer names those that it takes";
        response = Problem::method_not_allowed(detail).into_response();
    }
    let status = response.status();
    let took = started.elapsed();
    app.metrics.request(&route, status.as_u16(), took);
    let ms = took.as_secs_f64() * 1e3;
    // The log has neither payloads nor tokens: only the request's id, its route and how it went.
    if status.is_client_error() || status.is_server_error() {
        tracing::warn!(request = id, %method, route, status = status.as_u16(), ms, "refused");
    } else {
        tracing::debug!(request = id, %method, route, status = status.as_u16(), ms, "answered");
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID.clone(), value);
    }
    let secure = [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")];
    for (name, value) in secure {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Refuses a body whose announced length is over the limit, before anything of it is read. JSON lines may be of any
/// length: they are answered one by one.
fn check_length(app: &App, request: &Request) -> Result<(), Problem> {
    let announced: Option<u64> =
        request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    let most = app.config.limits.body_bytes;
    match announced {
        Some(length) if length > most as u64 && !is_lines(request) => {
            Err(Problem::too_large(format!("a body may have {most} bytes, this one has {length}")))
        }
        _ => Ok(()),
    }
}

/// Refuses a compressed body: its length does not bound what it unpacks to.
fn check_encoding(request: &Request) -> Result<(), Problem> {
    let encodings = request.headers().get_all(header::CONTENT_ENCODING).iter();
    let mut packed = encodings.filter(|name| !name.as_bytes().eq_ignore_ascii_case(b"identity"));
    match packed.next() {
        Some(name) => Err(Problem::unsupported(format!(
            "content-encoding {:?} is not read; send the body as it is",
            String::from_utf8_lossy(name.as_bytes())
        ))),
        None => Ok(()),
    }
}

/// Whether a body is read line by line. Another call that is sent lines reads its body, if it does, as a whole.
fn is_lines(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    ["/v1/streams/{stream}/classify", "/v1/streams/{stream}/predict"].contains(&path)
        && routes::content_type(request.headers()) == "application/x-ndjson"
}

/// The caller's own request id if it is a plain one, else a new one.
fn request_id(app: &App, request: &Request) -> String {
    let plain = |id: &&str| (1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic());
    match request.headers().get(&REQUEST_ID).and_then(|v| v.to_str().ok()).filter(plain) {
        Some(id) => id.to_string(),
        None => format!("{:08x}-{}", app.boot, app.requests.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Whether a request may go on, and what it may do.
fn admit(app: &App, request: &Request) -> Result<Access, Problem> {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|v| v.to_str().ok()).unwrap_or("");
    if let Some(origin) = headers.get(header::ORIGIN).and_then(|v| v.to_str().ok()) {
        let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
        let allowed = app.config.cors_origins.iter().any(|o| o == "*" || o == origin);
        if !own && !allowed {
            return Err(Problem::forbidden(
                "pages of another origin may not call this server; its setting cors_origins lists those that may",
            ));
        }
    }
    let needed = needed(request.method(), request.uri().path());
    if app.guards.open() {
        // Without tokens anyone who reaches the port may do anything, so a page must not reach it by a name of its own.
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.chars().all(|c| c.is_ascii_digit()))
            .map_or(host, |(n, _)| n);
        // Host names are compared without case, and without the dot that may end a complete name.
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let local = name.is_empty()
            || name == "localhost"
            || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
            || app.config.hosts.iter().any(|h| h.eq_ignore_ascii_case(&name));
        if local || needed.is_none() {
            return Ok(Access::Admin);
        }
        return Err(Problem::forbidden(
            "this server has no tokens, so it answers to local names only; its setting server.hosts lists others",
        ));
    }
    let Some(needed) = needed else { return Ok(Access::Read) };
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token);
    let Some(token) = token else {
        return Err(Problem::unauthorised("expected a header `Authorization: Bearer TOKEN`"));
    };
    match app.guards.access(token.trim().as_bytes()) {
        None => Err(Problem::unauthorised("the token is not known")),
        Some(access) if access < needed => {
            let text = format!("a token for {access:?} was given, this needs one for {needed:?}");
            Err(Problem::forbidden(text.to_lowercase()))
        }
        Some(access) => Ok(access),
    }
}

/// What a request needs to be allowed; `None` if it is open to all.
fn needed(method: &Method, path: &str) -> Option<Access> {
    // A stream may bear the name of a call, so a call is recognised by its place behind the stream's name.
    let last = path.trim_matches('/').split('/').skip(3).last().unwrap_or("");
    let open =
        ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready"];
    if open.contains(&path) || method == Method::OPTIONS {
        return None;
    }
    Some(match (method.as_str(), last) {
        ("GET" | "HEAD", "state" | "layer") => Access::Admin,
        ("GET" | "HEAD", _) => Access::Read,
        // Whether `infer` learns is said in its body; the call asks for the permission itself.
        ("POST", "predict" | "infer" | "explain") => Access::Read,
        ("POST", "classify" | "pictures" | "feedback" | "correct") => Access::Write,
        _ => Access::Admin,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_call_needs_what_it_does() {
        let document = serde_json::from_str::<serde_json::Value>(OPENAPI).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut seen = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let needed = needed(&method, path);
                let expected = match (method.as_str(), path.as_str()) {
                    (_, "/healthz" | "/readyz" | "/v2" | "/v2/health/live" | "/v2/health/ready") => None,
                    (
                        _,
                        "/v1/streams/{stream}/state"
                        | "/v1/streams/{stream}/layer"
                        | "/v1/groups/{group}/state",
                    ) => Some(Access::Admin),
                    ("GET", _) => Some(Access::Read),
                    (_, p) if ["/predict", "/infer", "/explain"].iter().any(|e| p.ends_with(e)) => {
                        Some(Access::Read)
                    }
                    (_, p)
                        if ["/classify", "/pictures", "/feedback", "/correct"]
                            .iter()
                            .any(|e| p.ends_with(e)) =>
                    {
                        Some(Access::Write)
                    }
                    _ => Some(Access::Admin),
                };
                assert_eq!(needed, expected, "{method} {path}");
                seen += 1;
            }
        }
        assert!(seen >= 25, "{seen} calls");
    }
}
