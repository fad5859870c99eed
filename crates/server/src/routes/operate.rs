//! What an operator does: see why, correct, label what helps, take the head along.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use ultta::{Features, Head, Input};

use crate::answer::Place;
use crate::api::*;
use crate::http::App;
use crate::job::Outcome;
use crate::owner::Owner;
use crate::problem::Problem;
use crate::room::Watch;
use crate::routes::feedback::OUTCOME_BYTES;
use crate::routes::{Named, Params, json_body};

/// Classes explained, and samples suggested, at most.
const MOST_BEST: u32 = 1000;
const MOST_SUGGESTED: u32 = 1000;

calls! {
    "/v1/streams/{stream}/explain": post explain;
    "/v1/streams/{stream}/correct": post correct;
    "/v1/streams/{stream}/suggest": get suggest;
    "/v1/streams/{stream}/layer": get layer;
}

/// The class that a label names, by index or by name.
pub fn label_of(head: &Head, id: u64, label: Option<usize>, class: Option<&str>) -> Result<usize, Problem> {
    match (label, class) {
        (Some(label), None) => Ok(label),
        (None, Some(class)) => {
            let mut found = head.classes().iter().enumerate().filter(|(_, name)| *name == class);
            match (found.next(), found.next()) {
                (Some((label, _)), None) => Ok(label),
                (None, _) => Err(Problem::invalid(format!("there is no class {class:?}"))),
                _ => Err(Problem::invalid(format!("several classes are named {class:?}; give the label"))),
            }
        }
        _ => Err(Problem::invalid(format!("sample {id}: expected either label or class"))),
    }
}

/// Say why a row is answered as it is
///
/// The logits of an answer are a sum. For the best classes and the frozen model's own answer: what the frozen model (`text`),
/// given `labels`, the stream's images (`image`), its class frequencies (`prior`) and the `scene` say, in nats. Answered from
/// the state as it is now; of the rows of the last moment it may not know (`as_of`).
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/explain", tag = "operate", params(("stream" = String, Path, example = "default")),
    request_body = ExplainRequest, responses((status = 200, description = "The parts of the answer", body = ExplainResponse<'_>), Refusals),
    security((), ("token" = []))))]
async fn explain(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let request: ExplainRequest = json_body(&headers, body, &app.config.limits).await?;
    let best = request.best.unwrap_or(5).min(MOST_BEST) as usize;
    let least = request.id.map_or(0, |id| id.saturating_add(1));
    let (session, generation) = stream.control(move |owner| Ok(owner.session(least))).await?;
    let explained = match (request.features, request.id) {
        (Some(features), None) => {
            stream.size(1).check(1, features.len())?;
            let normalize = request.normalize.unwrap_or(false);
            let features = Features::checked(features, stream.head.dim(), normalize)?;
            tokio::task::block_in_place(|| session.explain(Input::new(&features), best))?
        }
        (None, Some(id)) => tokio::task::block_in_place(|| session.explain_sample(id, best))?,
        _ => return Err(Problem::invalid("expected either features or id")),
    };
    let class = |label: usize| stream.head.classes()[label].as_str();
    let row = &explained.row;
    let answer = ExplainResponse {
        stream: &stream.name,
        generation,
        as_of: session.next_id(),
        label: row.label,
        class: class(row.label),
        prob: row.prob,
        zero_shot_label: row.zero_shot.label,
        zero_shot_class: class(row.zero_shot.label),
        zero_shot_prob: row.zero_shot.prob,
        standing: explained.standing.name(),
        temperature: explained.temperature,
        flipped_by: explained.flipped_by.map(|lever| lever.name()),
        corrected: explained.corrected.map(class),
        levers: explained.levers.iter().map(|lever| lever.name()).collect(),
        classes: explained
            .classes
            .into_iter()
            .map(|c| ExplainedView {
                label: c.label,
                class: class(c.label),
                logit: c.logit,
                prob: c.prob,
                zero_shot: c.zero_shot,
                nats: c.nats,
            })
            .collect(),
        similar: explained
            .similar
            .iter()
            .map(|s| SimilarView {
                id: s.id,
                cosine: s.cosine,
                label: s.label,
                class: class(s.label),
                corrected: s.corrected.map(class),
            })
            .collect(),
    };
    let bytes = answer.classes.len() * 256;
    Place::take(&app.room, bytes)?.json(&answer)
}

/// Give labels that count at once
///
/// From the next row on, rows that look like a labelled sample lean to its label by 4 to 9 nats; a head that is surer than that
/// keeps its answer. What the sample had taught by itself is withdrawn. `withdraw` takes a label back, and all that it had
/// changed; so it does while learning is stopped, when no labels are taken in. Labels are logged as samples are. The call
/// `feedback` is for labels that only measure and calibrate.
#[cfg_attr(test, utoipa::path(post, path = "/v1/streams/{stream}/correct", tag = "operate", params(("stream" = String, Path, example = "default")),
    request_body = CorrectRequest, responses((status = 200, description = "What became of each label", body = CorrectResponse), Refusals),
    security((), ("token" = []))))]
async fn correct(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Extension(watch): Extension<Watch>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let limits = &app.config.limits;
    let request: CorrectRequest = json_body(&headers, body, limits).await?;
    if request.labels.len() > limits.batch_rows {
        return Err(Problem::too_large(format!("a request may have {} labels", limits.batch_rows)));
    }
    let mut given = Vec::with_capacity(request.labels.len());
    for label in &request.labels {
        let own = match (label.withdraw, label.label, &label.class) {
            (true, None, None) => None,
            (true, ..) => {
                let id = label.id;
                return Err(Problem::invalid(format!("sample {id}: expected either withdraw or a label")));
            }
            (false, index, class) => Some(label_of(&stream.head, label.id, index, class.as_deref())?),
        };
        given.push((label.id, own));
    }
    let place = Place::take(&app.room, given.len() * OUTCOME_BYTES)?;
    let (generation, held) = (request.generation, watch.share());
    let correct = move |owner: &mut Owner| {
        let _held = held;
        owner.correct(&given, generation)
    };
    let (outcomes, corrections) = stream.control(correct).await?;
    let outcomes = request.labels.iter().zip(outcomes).map(|(label, outcome)| match outcome {
        Outcome::Taken => FeedbackOutcome { id: label.id, outcome: "taken", reason: None },
        Outcome::Unused(why) => FeedbackOutcome { id: label.id, outcome: "unused", reason: Some(why.into()) },
        Outcome::Refused(why) => FeedbackOutcome { id: label.id, outcome: "refused", reason: Some(why) },
    });
    place.json(&CorrectResponse { outcomes: outcomes.collect(), corrections })
}

/// Say what to label next
///
/// Of the recent scenes those whose labels would help most: unsure, standing for many that look like them, one per scene.
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/suggest", tag = "operate", params(("stream" = String, Path, example = "default"), SuggestQuery),
    responses((status = 200, description = "Samples, the best first", body = SuggestResponse<'_>), Refusals), security((), ("token" = []))))]
async fn suggest(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<SuggestQuery>,
) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let (session, generation) = stream.control(|owner| Ok(owner.session(0))).await?;
    let k = query.k.unwrap_or(20).min(MOST_SUGGESTED) as usize;
    let suggested = tokio::task::block_in_place(|| session.suggest(k))?;
    let view = |s: &ultta::Suggestion| SuggestionView {
        id: s.id,
        label: s.label,
        class: &stream.head.classes()[s.label],
        prob: s.prob,
        expected_use: s.expected_use,
    };
    let suggestions = suggested.iter().map(view).collect();
    let answer = SuggestResponse { generation, as_of: session.next_id(), suggestions };
    Place::take(&app.room, 256 * k)?.json(&answer)
}

/// Download the adapted head as a plain linear layer
///
/// For a device that cannot adapt: weights, bias, temperature and prior as they are now, as ONNX, safetensors or `.npz`. The
/// file is named after the stream.
#[cfg_attr(test, utoipa::path(get, path = "/v1/streams/{stream}/layer", tag = "operate", params(("stream" = String, Path, example = "default"), LayerQuery),
    responses((status = 200, description = "The layer", body = Vec<u8>, content_type = "application/octet-stream"), Refusals),
    security((), ("token" = []))))]
async fn layer(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
    Params(query): Params<LayerQuery>,
) -> Result<Response, Problem> {
    let stream = app.streams.get(&name)?;
    let format = query.format.as_deref().unwrap_or("onnx");
    if !ultta::LAYER_ENDINGS.contains(&format) {
        return Err(Problem::invalid(format!("format: expected {}", ultta::LAYER_ENDINGS.join(", "))));
    }
    let (session, _) = stream.control(|owner| Ok(owner.session(u64::MAX))).await?;
    let _turn = stream.turn().await?;
    let bytes = tokio::task::block_in_place(|| session.layer()?.to_bytes(format))?;
    let mut answer = Place::for_file(&app.room, bytes.len())?.send("application/octet-stream", bytes);
    if let Ok(named) = format!("attachment; filename=\"{}.{format}\"", stream.name).parse() {
        answer.headers_mut().insert(header::CONTENT_DISPOSITION, named);
    }
    Ok(answer)
}
