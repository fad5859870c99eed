//! What goes wrong, as an answer: one `application/problem+json` (RFC 9457) for every refusal.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A refusal. `title` names the kind, `detail` says what was expected and what was found.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// The kind of problem.
    pub title: &'static str,
    /// What, expected, got.
    pub detail: String,
    /// Seconds after which to try again, where that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// `detail` again, where the Open Inference Protocol looks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Bytes of a refusal's text, at most: what a client sent is quoted, and it may have sent much.
const MOST_DETAIL: usize = 2000;

fn shortened(mut detail: String) -> String {
    if detail.len() > MOST_DETAIL {
        let end =
            (0..=MOST_DETAIL.min(detail.len())).rev().find(|&i| detail.is_char_boundary(i)).unwrap_or(0);
        detail.truncate(end);
        detail.shrink_to_fit();
        detail.push('…');
    }
    detail
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title,
            detail: shortened(detail.into()),
            retry_after: None,
            error: None,
        }
    }

    /// The body cannot be read as what it claims to be.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed request", detail)
    }

    pub fn unauthorised(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "token missing or unknown", detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "not allowed", detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not found", detail)
    }

    pub fn method_not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
    }

    pub fn timeout(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too slow", detail)
    }

    /// The request does not fit what exists, for example a name that is taken.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too large", detail)
    }

    pub fn unsupported(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported content type", detail)
    }

    /// The body could be read, but its contents are not valid.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid request", detail)
    }

    /// The queue is full.
    pub fn busy(detail: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too many requests", detail);
        Self { retry_after: Some(1), ..problem }
    }

    /// The same with advice at its end, if it speaks of `word`.
    pub fn with_advice(mut self, word: &str, advice: &str) -> Self {
        if self.detail.contains(word) {
            self.detail += advice;
        }
        self
    }

    pub fn no_picture_model() -> Self {
        let detail =
            "this server has no image model; its operator can start it with one (`ultta serve --model`)";
        Self::new(StatusCode::NOT_IMPLEMENTED, "no image model", detail)
    }

    /// The server is shutting down.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        Self { retry_after: Some(5), ..problem }
    }

    /// The disk does not take what must be kept.
    pub fn storage(detail: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::INSUFFICIENT_STORAGE, "storage failed", detail);
        Self { retry_after: Some(5), ..problem }
    }
}

/// The core's errors, in the words of the service: what a client can send instead.
impl From<ultta::Error> for Problem {
    fn from(error: ultta::Error) -> Self {
        use ultta::Error::*;
        use ultta::What;
        match error.root() {
            NotUnit { what: What::Features | What::Views, norm, .. } if *norm > 0.0 => {
                Problem::invalid(format!("{error}; scale the rows to unit length, or send `normalize: true`"))
            }
            NotUnit { norm, .. } if *norm > 0.0 => {
                Problem::invalid(format!("{error}; scale the rows to unit length"))
            }
            Shape { what: What::Dimension, .. } => {
                Problem::invalid(format!("{error}; rows and head: do both come from one encoder?"))
            }
            Version { .. } => {
                Problem::invalid(format!("{error}; use the build that wrote it, or a state of this one"))
            }
            NeedsViews { .. } => Problem::invalid(format!("{error}; send them as `views`")),
            OtherHead { .. } | OtherConfig { .. } | Delta { .. } | Gap { .. } => {
                Problem::conflict(error.to_string())
            }
            Forgotten { .. } => Problem::not_found(error.to_string()),
            Io { .. } => Problem::storage(error.to_string()),
            Format { reason, .. } => Problem::malformed(reason.clone()),
            _ => Problem::invalid(error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_not_unit_come_with_the_field_that_helps() {
        let detail = |values: Vec<f32>| Problem::from(ultta::Features::new(values, 2).unwrap_err()).detail;
        assert!(detail(vec![3.0, 4.0]).contains("`normalize: true`"));
        assert!(!detail(vec![3.0, 4.0]).contains("--"), "flags belong to the command line");
        assert!(!detail(vec![0.0, 0.0]).contains("normalize"), "no scaling helps a row of zeros");
    }

    #[test]
    fn rows_of_another_encoder_and_states_of_another_version_come_with_what_to_do() {
        let head = || ultta::Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 1.0).unwrap();
        let session = ultta::Session::new(head(), &ultta::Config::default()).unwrap();
        let wide = ultta::Features::new(vec![1.0, 0.0, 0.0], 3).unwrap();
        let detail = Problem::from(session.predict(&wide).unwrap_err()).detail;
        assert!(detail.ends_with("do both come from one encoder?"), "{detail}");
        let mut state = session.state();
        state.metadata.insert("format".into(), "ultta-state-9".into());
        let error = ultta::State::from_bytes(&state.to_bytes().unwrap()).unwrap_err();
        let detail = Problem::from(error).detail;
        assert!(detail.ends_with("; use the build that wrote it, or a state of this one"), "{detail}");
    }
}
