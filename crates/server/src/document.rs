//! The OpenAPI document of the calls, made of their types and comments. The program ships it as a file (`pages/openapi.json`), so that only
//! tests compile this; one of them holds the file to the code.

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{IntoResponses, OpenApi};

use crate::problem::Problem;
use crate::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ultta",
        description = "Test-time adaptation of zero-shot classifiers: named streams that learn while they answer. \
                       Every refusal is a problem document (RFC 9457)."
    ),
    components(schemas(Problem)),
    tags(
        (name = "classify", description = "Answers, with and without learning"),
        (name = "operate", description = "See why, correct, label what helps, take the head along"),
        (name = "streams", description = "Create, inspect and change streams"),
        (name = "groups", description = "Streams that teach each other the classes"),
        (name = "watch", description = "Health, metrics, methods, settings"),
        (name = "open inference", description = "The Open Inference Protocol (KServe v2)"),
    )
)]
struct Document;

/// The ways in which a request can be refused. Every one is a problem document.
#[derive(IntoResponses)]
#[allow(dead_code)]
pub enum Refusals {
    /// The body or a parameter cannot be read as what it claims to be.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(Problem),
    /// The token is missing or unknown.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorised(Problem),
    /// The token does not allow this, or the request comes from a foreign page.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is no such stream, snapshot or page.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// The request took too long.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(Problem),
    /// The request does not fit what exists, for example a name that is taken.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// Body, picture or batch are larger than allowed.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The content type is none that this call reads.
    #[response(status = 415, content_type = "application/problem+json")]
    Unsupported(Problem),
    /// The body could be read, but its contents are not valid.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// The stream's queue is full; `Retry-After` says when to try again.
    #[response(status = 429, content_type = "application/problem+json")]
    Busy(Problem),
    /// No image model is loaded.
    #[response(status = 501, content_type = "application/problem+json")]
    NoModel(Problem),
    /// The server is stopping.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
    /// The disk does not take what must be kept; `Retry-After` says when to try again.
    #[response(status = 507, content_type = "application/problem+json")]
    Storage(Problem),
}

/// The document, OpenAPI 3.1.
fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", bearer);
    for calls in [
        routes::classify::Calls::openapi(),
        routes::pictures::Calls::openapi(),
        routes::feedback::Calls::openapi(),
        routes::operate::Calls::openapi(),
        routes::manage::Calls::openapi(),
        routes::groups::Calls::openapi(),
        routes::watch::Calls::openapi(),
        routes::v2::Calls::openapi(),
    ] {
        document.merge(calls);
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ULTTA_WRITE=1` writes the file anew.
    #[test]
    fn the_file_is_the_document_of_the_code() {
        let made = document().to_pretty_json().unwrap();
        if std::env::var_os("ULTTA_WRITE").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/pages/openapi.json"), &made).unwrap();
        } else {
            let help = "make it anew: ULTTA_WRITE=1 cargo test -p ultta-server --lib document";
            assert!(made == crate::http::OPENAPI, "pages/openapi.json is not what the code says; {help}");
        }
    }

    #[test]
    fn every_call_is_documented_at_its_own_path_and_no_other_is() {
        let mut routed: Vec<String> =
            routes::calls().map(|(path, method)| format!("{method} {path}")).collect();
        let document = serde_json::to_value(document()).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let operations = |(path, item): (&String, &serde_json::Value)| {
            let methods = item
                .as_object()
                .unwrap()
                .keys()
                .filter(|key| ["get", "post", "put", "delete"].contains(&key.as_str()));
            methods.map(|method| format!("{method} {path}")).collect::<Vec<_>>()
        };
        let mut documented: Vec<String> = paths.flat_map(operations).collect();
        routed.sort();
        documented.sort();
        assert_eq!(routed, documented);
    }
}
