//! The Open Inference Protocol (KServe v2, HTTP), with its binary tensors: a stream is a model.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use ultta::Features;
use ultta_formats::{Dtype, numbers};

use crate::answer::Place;
#[cfg(test)]
use crate::api::Refusals;
use crate::api::{Bounded, Numbers, RowAnswer, answer_bytes, row_answers};
use crate::auth::Access;
use crate::http::App;
use crate::job::Extent;
use crate::problem::Problem;
use crate::room::Watch;
use crate::routes::{Named, aside, content_type, read};
use crate::samples::Samples;
use crate::stream::Size;

/// A refusal as the protocol words it: with a field `error`.
pub struct Refused(Problem);

impl<E: Into<Problem>> From<E> for Refused {
    fn from(problem: E) -> Self {
        let mut problem = problem.into();
        problem.error = Some(problem.detail.clone());
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// Length of the JSON in front of binary tensors.
static HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The only version of a model.
const VERSION: &str = "1";

/// Inputs and outputs that a request may name, and dimensions of an input: more than the protocol has a use for here.
const MOST_TENSORS: usize = 64;

/// Refuses a version that does not exist.
fn check_version(version: &str) -> Result<(), Problem> {
    if version == VERSION {
        return Ok(());
    }
    Err(Problem::not_found(format!("there is no version {version:?}; expected {VERSION:?}")))
}

calls! {
    "/v2": get server;
    "/v2/health/live": get live;
    "/v2/health/ready": get ready;
    "/v2/models/{stream}": get model;
    "/v2/models/{stream}/ready": get model_ready;
    "/v2/models/{stream}/infer": post infer;
    "/v2/models/{stream}/versions/{version}": get model_version;
    "/v2/models/{stream}/versions/{version}/ready": get model_version_ready;
    "/v2/models/{stream}/versions/{version}/infer": post infer_version;
}

/// The server
#[cfg_attr(test, utoipa::path(get, path = "/v2", tag = "open inference", responses((status = 200, description = "Name, version, extensions", body = Object), Refusals)))]
async fn server() -> Json<Value> {
    Json(json!({"name": "ultta", "version": env!("CARGO_PKG_VERSION"), "extensions": ["binary_tensor_data"]}))
}

/// Whether the server lives
#[cfg_attr(test, utoipa::path(get, path = "/v2/health/live", tag = "open inference", responses((status = 200, description = "It lives", body = Object), Refusals)))]
async fn live() -> Json<Value> {
    Json(json!({"live": true}))
}

/// Whether the server takes requests
#[cfg_attr(test, utoipa::path(get, path = "/v2/health/ready", tag = "open inference", responses((status = 200, description = "It does", body = Object), Refusals)))]
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Refused> {
    if app.stopping.load(Ordering::Acquire) {
        return Err(Problem::unavailable("the server is stopping").into());
    }
    Ok(Json(json!({"ready": true})))
}

/// A stream as a model
#[cfg_attr(test, utoipa::path(get, path = "/v2/models/{stream}", tag = "open inference", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "Inputs and outputs", body = Object), Refusals), security((), ("token" = []))))]
async fn model(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Json<Value>, Refused> {
    let stream = app.streams.get(&name)?;
    let outputs: Vec<Value> =
        OUTPUTS.iter().map(|o| json!({"name": o.name, "datatype": o.datatype, "shape": [-1]})).collect();
    Ok(Json(json!({
        "name": name,
        "versions": [VERSION],
        "platform": "ultta",
        "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, stream.head.dim()]}],
        "outputs": outputs,
    })))
}

/// Whether a stream takes requests
#[cfg_attr(test, utoipa::path(get, path = "/v2/models/{stream}/ready", tag = "open inference", params(("stream" = String, Path, example = "default")),
    responses((status = 200, description = "It does", body = Object), Refusals), security((), ("token" = []))))]
async fn model_ready(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<Value>, Refused> {
    if let Some(reason) = app.streams.get(&name)?.degraded() {
        return Err(Problem::unavailable(reason).into());
    }
    Ok(Json(json!({"name": name, "ready": true})))
}

/// A version of a stream as a model: there is one
#[cfg_attr(test, utoipa::path(get, path = "/v2/models/{stream}/versions/{version}", tag = "open inference",
    params(("stream" = String, Path, example = "default"), ("version" = String, Path, example = "1")),
    responses((status = 200, description = "Inputs and outputs", body = Object), Refusals), security((), ("token" = []))))]
async fn model_version(
    app: State<Arc<App>>,
    Named((name, version)): Named<(String, String)>,
) -> Result<Json<Value>, Refused> {
    check_version(&version)?;
    model(app, Named(name)).await
}

/// Whether a version of a stream takes requests
#[cfg_attr(test, utoipa::path(get, path = "/v2/models/{stream}/versions/{version}/ready", tag = "open inference",
    params(("stream" = String, Path, example = "default"), ("version" = String, Path, example = "1")),
    responses((status = 200, description = "It does", body = Object), Refusals), security((), ("token" = []))))]
async fn model_version_ready(
    app: State<Arc<App>>,
    Named((name, version)): Named<(String, String)>,
) -> Result<Json<Value>, Refused> {
    check_version(&version)?;
    model_ready(app, Named(name)).await
}

/// Answer rows and learn from them, by version
#[cfg_attr(test, utoipa::path(post, path = "/v2/models/{stream}/versions/{version}/infer", tag = "open inference",
    params(("stream" = String, Path, example = "default"), ("version" = String, Path, example = "1")),
    request_body = InferRequest, responses((status = 200, description = "Outputs", body = InferResponse), Refusals),
    security((), ("token" = []))))]
async fn infer_version(
    app: State<Arc<App>>,
    access: Extension<Access>,
    watch: Extension<Watch>,
    Named((name, version)): Named<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    check_version(&version)?;
    infer(app, access, watch, Named(name), headers, body).await
}

/// A request of the protocol.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct InferRequest {
    /// Sent back with the answer.
    #[serde(default)]
    id: Option<String>,
    /// `learn: false` answers without learning; `normalize: true` scales rows to unit length;
    /// `binary_data_output: true` asks for binary outputs.
    #[serde(default)]
    parameters: Option<Parameters>,
    /// One tensor named `features`, FP32 or FP64, rows × dim.
    #[cfg_attr(test, schema(value_type = Vec<InputTensor>))]
    inputs: Bounded<InputTensor, MOST_TENSORS>,
    /// Outputs that are wanted; all if not given.
    #[serde(default)]
    #[cfg_attr(test, schema(value_type = Option<Vec<WantedOutput>>))]
    outputs: Option<Bounded<WantedOutput, MOST_TENSORS>>,
}

/// Parameters of a request or an output.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Parameters {
    #[serde(default)]
    learn: Option<bool>,
    #[serde(default)]
    normalize: Option<bool>,
    #[serde(default)]
    binary_data_output: Option<bool>,
    #[serde(default)]
    binary_data: Option<bool>,
    #[serde(default)]
    binary_data_size: Option<usize>,
}

/// Numbers of a tensor, at most: a body may give them before the shape that says how many there are to be.
const MOST_NUMBERS: usize = 1 << 24;

/// A tensor of a request.
#[derive(Debug)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct InputTensor {
    name: String,
    #[cfg_attr(test, schema(value_type = Vec<usize>))]
    shape: Bounded<usize, MOST_TENSORS>,
    datatype: String,
    parameters: Option<Parameters>,
    /// Numbers, flat or nested; absent where the tensor is binary. No more are read than the shape has room for.
    #[cfg_attr(test, schema(value_type = Option<Vec<Value>>))]
    data: Option<Vec<f32>>,
}

impl<'de> Deserialize<'de> for InputTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InputTensorVisitor)
    }
}

struct InputTensorVisitor;

impl<'de> Visitor<'de> for InputTensorVisitor {
    type Value = InputTensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tensor with name, shape, datatype and data")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<InputTensor, A::Error> {
        let (mut name, mut shape, mut datatype, mut parameters, mut data) = (None, None, None, None, None);
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                "name" => name = Some(fields.next_value()?),
                "shape" => shape = Some(fields.next_value::<Bounded<usize, MOST_TENSORS>>()?),
                "datatype" => datatype = Some(fields.next_value()?),
                "parameters" => parameters = fields.next_value()?,
                "data" => {
                    let room = |shape: &Bounded<usize, MOST_TENSORS>| {
                        shape.0.iter().fold(1usize, |room, &side| room.saturating_mul(side))
                    };
                    let most = shape.as_ref().map_or(MOST_NUMBERS, room).min(MOST_NUMBERS);
                    data = Some(fields.next_value_seed(Numbers { most })?);
                }
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(InputTensor {
            name: name.ok_or_else(|| A::Error::missing_field("name"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            datatype: datatype.ok_or_else(|| A::Error::missing_field("datatype"))?,
            parameters,
            data,
        })
    }
}

/// An output that is wanted.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct WantedOutput {
    name: String,
    #[serde(default)]
    parameters: Option<Parameters>,
}

/// The answer of the protocol.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct InferResponse {
    model_name: String,
    model_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[cfg_attr(test, schema(value_type = Object))]
    parameters: Value,
    outputs: Vec<OutputTensor>,
}

/// A tensor of an answer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OutputTensor {
    name: &'static str,
    datatype: &'static str,
    shape: [usize; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    parameters: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<Vec<Value>>))]
    data: Option<Vec<Value>>,
}

struct Output {
    name: &'static str,
    datatype: &'static str,
    value: fn(&RowAnswer<'_>) -> Value,
}

const OUTPUTS: [Output; 10] = [
    Output { name: "label", datatype: "INT64", value: |row| row.label.into() },
    Output { name: "class", datatype: "BYTES", value: |row| row.class.into() },
    Output { name: "prob", datatype: "FP32", value: |row| f64::from(row.prob).into() },
    Output { name: "prob_pred", datatype: "FP32", value: |row| row.prob_pred.map(f64::from).into() },
    Output { name: "zero_shot_label", datatype: "INT64", value: |row| row.zero_shot.label.into() },
    Output { name: "zero_shot_prob", datatype: "FP32", value: |row| f64::from(row.zero_shot.prob).into() },
    Output { name: "id", datatype: "INT64", value: |row| row.id.map_or(-1, |id| id as i64).into() },
    Output { name: "admitted", datatype: "BOOL", value: |row| row.admitted.into() },
    Output { name: "unknown", datatype: "BOOL", value: |row| row.unknown.into() },
    Output { name: "garbage", datatype: "BOOL", value: |row| row.garbage.into() },
];

/// Answer rows and learn from them
#[cfg_attr(test, utoipa::path(post, path = "/v2/models/{stream}/infer", tag = "open inference", params(("stream" = String, Path, example = "default")),
    request_body = InferRequest, responses((status = 200, description = "Outputs", body = InferResponse), Refusals),
    security((), ("token" = []))))]
async fn infer(
    State(app): State<Arc<App>>,
    Extension(access): Extension<Access>,
    Extension(watch): Extension<Watch>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    let arrived = Instant::now();
    let stream = app.streams.get(&name)?;
    let limits = &app.config.limits;
    let kind = content_type(&headers);
    let header_length = match headers.get(&HEADER_LENGTH) {
        None => None,
        Some(value) => {
            Some(value.to_str().ok().and_then(|v| v.trim().parse::<usize>().ok()).ok_or_else(|| {
                Problem::malformed("inference-header-content-length: expected a number of bytes")
            })?)
        }
    };
    // The protocol's clients send binary tensors with or without a type of their own.
    if header_length.is_none() && !matches!(kind.as_str(), "application/json" | "") {
        return Err(Problem::unsupported(format!("expected application/json, got {kind:?}")).into());
    }
    let bytes = read(body, limits.body_bytes, limits.request_seconds).await?;
    let (mut request, binary) = aside(bytes.len(), || split(&bytes, header_length))?;
    let parameters = request.parameters.unwrap_or_default();
    let learn = parameters.learn.unwrap_or(true);
    if learn && access < Access::Write {
        let text = "a token for read was given, learning needs one for write (learn: false answers only)";
        return Err(Problem::forbidden(text).into());
    }
    let size = stream.size(limits.batch_rows);
    let samples = aside(bytes.len(), || input_samples(&mut request, binary, size))?;
    stream.check(&samples, limits.batch_rows)?;
    let wanted = wanted(&request)?;
    // Each output is written by itself: a class's name may be asked for many times.
    let extent = Extent { prob_pred: true, ..Extent::default() };
    let each = answer_bytes(samples.len(), extent, &stream.head);
    let place = Place::take(&app.room, each.saturating_mul(wanted.len().div_ceil(OUTPUTS.len())))?;
    let answers = if learn {
        let held = app.room.hold_samples(&watch, samples.bytes())?;
        stream.classify(samples, extent, arrived, held).await?
    } else {
        stream.predict(samples, extent).await?
    };
    let (learnt, generation) = (answers.learnt(), answers.generation);
    let answers = row_answers(answers, stream.head.classes(), None);
    let mut tail = Vec::new();
    let mut outputs = Vec::new();
    for (output, as_binary) in wanted {
        let values = answers.iter().map(output.value);
        let mut tensor = OutputTensor {
            name: output.name,
            datatype: output.datatype,
            shape: [answers.len()],
            parameters: None,
            data: None,
        };
        if as_binary {
            let start = tail.len();
            values.for_each(|value| put_binary(&mut tail, output.datatype, &value));
            tensor.parameters = Some(json!({"binary_data_size": tail.len() - start}));
        } else {
            tensor.data = Some(values.collect());
        }
        outputs.push(tensor);
    }
    let response = InferResponse {
        model_name: name,
        model_version: VERSION,
        id: request.id,
        parameters: json!({"learnt": learnt, "generation": generation}),
        outputs,
    };
    if tail.is_empty() {
        return Ok(place.json(&response)?);
    }
    let mut body = serde_json::to_vec(&response).map_err(|e| Problem::malformed(e.to_string()))?;
    let length = body.len().to_string();
    body.extend(tail);
    Ok(([(HEADER_LENGTH.clone(), length)], place.send("application/octet-stream", body)).into_response())
}

/// The request of a body, and the binary tensors behind it.
fn split(bytes: &[u8], header_length: Option<usize>) -> Result<(InferRequest, &[u8]), Problem> {
    let (text, binary) = bytes
        .split_at_checked(header_length.unwrap_or(bytes.len()))
        .ok_or_else(|| Problem::malformed("inference-header-content-length: longer than the body"))?;
    Ok((super::json(text)?, binary))
}

/// The samples of a body, for the fuzzers.
pub fn read_body(bytes: &[u8], header_length: Option<usize>, size: Size) -> Result<Samples, Problem> {
    let (mut request, binary) = split(bytes, header_length)?;
    wanted(&request)?;
    input_samples(&mut request, binary, size)
}

/// The samples of a request, checked and scaled.
fn input_samples(request: &mut InferRequest, binary: &[u8], size: Size) -> Result<Samples, Problem> {
    let [input] = &mut request.inputs.0[..] else {
        return Err(Problem::invalid(format!(
            "inputs: expected one tensor named features, got {}",
            request.inputs.0.len()
        )));
    };
    if input.name != "features" {
        return Err(Problem::invalid(format!(
            "inputs: expected a tensor named features, got {:?}",
            input.name
        )));
    }
    let &[n, dim] = &input.shape.0[..] else {
        return Err(Problem::invalid(format!(
            "features: expected shape [rows, dim], got {:?}",
            input.shape.0
        )));
    };
    size.check(n, dim)?;
    let expected = n.checked_mul(dim).ok_or_else(|| Problem::invalid("features: impossible shape"))?;
    let length = input.parameters.unwrap_or_default().binary_data_size;
    let data: Vec<f32> = match (input.data.take(), length) {
        (Some(data), None) => data,
        (None, Some(length)) => {
            let bytes = binary.get(..length).ok_or_else(|| {
                Problem::malformed(format!(
                    "features: expected {length} bytes behind the header, got {}",
                    binary.len()
                ))
            })?;
            if length > expected.saturating_mul(8) {
                let text =
                    format!("features: expected at most 8 bytes for each of {expected} values, got {length}");
                return Err(Problem::invalid(text));
            }
            let dtype = match input.datatype.as_str() {
                "FP16" => Some(Dtype::F16),
                "FP32" => Some(Dtype::F32),
                "FP64" => Some(Dtype::F64),
                _ => None,
            };
            dtype.and_then(|dtype| numbers::floats(bytes, dtype)).ok_or_else(|| {
                let got = &input.datatype;
                Problem::invalid(format!("features: expected FP16, FP32 or FP64, got {got:?}"))
            })?
        }
        _ => return Err(Problem::invalid("features: expected either data or binary_data_size")),
    };
    if data.len() != expected {
        return Err(ultta::Error::Shape {
            what: ultta::What::Other("values in features"),
            expected,
            got: data.len(),
        }
        .into());
    }
    let normalize = request.parameters.unwrap_or_default().normalize.unwrap_or(false);
    Ok(Samples::plain(Features::checked(data, dim, normalize)?))
}

/// The outputs that are wanted, and whether as binary.
fn wanted(request: &InferRequest) -> Result<Vec<(&'static Output, bool)>, Problem> {
    let all = request.parameters.unwrap_or_default().binary_data_output.unwrap_or(false);
    match request.outputs.as_ref().map(|outputs| &outputs.0[..]) {
        None | Some([]) => Ok(OUTPUTS.iter().map(|o| (o, all)).collect()),
        Some(outputs) => outputs
            .iter()
            .map(|output| {
                let found = OUTPUTS.iter().find(|o| o.name == output.name).ok_or_else(|| {
                    let names = OUTPUTS.map(|o| o.name).join(", ");
                    Problem::invalid(format!("there is no output {:?}; there are {names}", output.name))
                })?;
                Ok((found, output.parameters.unwrap_or_default().binary_data.unwrap_or(all)))
            })
            .collect(),
    }
}

fn put_binary(out: &mut Vec<u8>, datatype: &str, value: &Value) {
    match datatype {
        "INT64" => out.extend(value.as_i64().unwrap_or(-1).to_le_bytes()),
        "FP32" => out.extend((value.as_f64().unwrap_or(0.0) as f32).to_le_bytes()),
        "BOOL" => out.push(u8::from(value.as_bool().unwrap_or(false))),
        _ => {
            let text = value.as_str().unwrap_or("");
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
    }
}
