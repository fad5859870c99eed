//! What goes over the wire, in both directions: `classify` (samples, answers, labels), `manage` (streams), `choice` (a
//! stream's method and settings), `operate` (why, corrections, suggestions), `groups` (who shares), `watch` (health, methods, settings), `matrix` (rows of numbers in JSON), `bounded`
//! (lists that end at a bound).

mod bounded;
mod choice;
mod classify;
mod groups;
mod manage;
mod matrix;
mod operate;
mod watch;

use utoipa::IntoResponses;

use crate::problem::Problem;

pub use bounded::{Bounded, MOST_ENTRIES, Numbers};
pub use classify::*;
pub use groups::*;
pub use manage::*;
pub use matrix::Matrix;
pub use operate::*;
pub use watch::*;

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
