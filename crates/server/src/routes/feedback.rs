//! Delayed labels.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer::Place;
use crate::api::*;
use crate::http::App;
use crate::job::{Outcome, Outcomes};
use crate::problem::Problem;
use crate::room::Watch;
use crate::routes::operate::label_of;
use crate::routes::{Named, json_body};

/// Bytes of what is said of a label, about.
pub const OUTCOME_BYTES: usize = 320;

calls! {
    "/v1/streams/{stream}/feedback": post feedback;
}

/// Deliver labels of earlier samples
///
/// By the ids of the answers. A method that has a use for labels learns from them, and calibration is reported. Labels may
/// come late: `remembered` says how many samples they can be for, and since when these were answered.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/feedback", tag = "classify", params(("stream" = String, Path, example = "default")),
    request_body = FeedbackRequest, responses((status = 200, description = "What became of each label", body = FeedbackResponse), Refusals),
    security((), ("token" = []))))]
async fn feedback(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Extension(watch): Extension<Watch>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let limits = &app.config.limits;
    let request: FeedbackRequest = json_body(&headers, body, limits).await?;
    if request.labels.len() > limits.batch_rows {
        return Err(Problem::too_large(format!("a request may have {} labels", limits.batch_rows)));
    }
    let mut labels = Vec::with_capacity(request.labels.len());
    for given in &request.labels {
        let label = label_of(&stream.head, given.id, given.label, given.class.as_deref())?;
        labels.push((given.id, label));
    }
    let place = Place::take(&app.room, labels.len() * OUTCOME_BYTES)?;
    let Outcomes { outcomes, remembered } =
        stream.feedback(labels, request.generation, watch.share()).await?;
    let outcomes = request.labels.iter().zip(outcomes).map(|(given, outcome)| match outcome {
        Outcome::Taken => FeedbackOutcome { id: given.id, outcome: "taken", reason: None },
        Outcome::Unused(why) => FeedbackOutcome { id: given.id, outcome: "unused", reason: Some(why.into()) },
        Outcome::Refused(why) => FeedbackOutcome { id: given.id, outcome: "refused", reason: Some(why) },
    });
    place.json(&FeedbackResponse { outcomes: outcomes.collect(), remembered })
}
