//! JSON lines: one sample a line, answered while more are still being sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use ultta::Features;
use ultta_formats::{Id, Line};

use crate::api::{ClassifyQuery, RowAnswer, row_answers};
use crate::http::App;
use crate::job::Answers;
use crate::problem::Problem;
use crate::room::Share;
use crate::samples::{Samples, Views};
use crate::stream::Stream;

/// Lines of one request that are under way at once.
const LINES_AHEAD: usize = 64;
/// How often a request whose client is quiet looks whether the server is stopping.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes of a line, at most.
const MAX_LINE: usize = 4 << 20;

/// One line of an answer to JSON lines.
#[derive(Serialize)]
struct LineAnswer<'a> {
    #[serde(flatten)]
    row: RowAnswer<'a>,
    learnt: bool,
    generation: u64,
}

/// One line that is refused.
#[derive(Serialize)]
struct LineError<'a> {
    line: u64,
    error: &'a str,
}

/// A line that was read and is not answered yet.
struct Ahead {
    number: u64,
    pending: Pending,
    /// The room that it holds, also while it waits for the owner.
    share: Arc<Share>,
}

/// The answer to one line, finished or not.
enum Pending {
    /// The owner will answer.
    Answer(oneshot::Receiver<Result<Answers, Problem>>, Option<Id>),
    /// It is answered.
    Ready(Result<Answers, Problem>, Option<Id>),
    /// The line is no sample.
    Refused(String),
}

/// Answers line by line, in order. A line that cannot be answered is refused in its place, and the others go on.
pub fn answer_lines(
    app: &Arc<App>,
    stream: Arc<Stream>,
    query: ClassifyQuery,
    body: Body,
    learn: bool,
    pause: Duration,
) -> Response {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    tokio::spawn(read_lines(app.clone(), stream.clone(), query, body, learn, pause, sender));
    let answers = stream::unfold((receiver, stream), |(mut receiver, stream)| async move {
        let Ahead { number, pending, share: _share } = receiver.recv().await?;
        let (answered, reference) = match pending {
            Pending::Answer(answer, reference) => (stream.answer(answer).await, reference),
            Pending::Ready(answer, reference) => (answer, reference),
            Pending::Refused(message) => (Err(Problem::malformed(message)), None),
        };
        let mut line = match answered {
            Ok(answers) => {
                let (learnt, generation) = (answers.learnt(), answers.generation);
                let refs = reference.map(|r| vec![r]);
                let mut rows = row_answers(answers, stream.head.classes(), refs);
                match rows.pop() {
                    Some(row) => serde_json::to_vec(&LineAnswer { row, learnt, generation }),
                    None => Ok(Vec::new()),
                }
            }
            Err(problem) => serde_json::to_vec(&LineError { line: number, error: &problem.detail }),
        }
        .unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (receiver, stream)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(answers)).into_response()
}

/// Reads lines and shows them to the stream while more are being sent.
async fn read_lines(
    app: Arc<App>,
    stream: Arc<Stream>,
    query: ClassifyQuery,
    body: Body,
    learn: bool,
    pause: Duration,
    sender: mpsc::Sender<Ahead>,
) {
    let mut chunks = body.into_data_stream();
    let mut buffer: Vec<u8> = Vec::new();
    let (mut number, mut ended, mut heard) = (0, false, Instant::now());
    // Whether the rest of a refused line is still to come. It is read and dropped: a connection that closes before its
    // client has sent everything loses the answers that are under way.
    let mut dropping = false;
    let share = app.room.share_of_body();
    while !ended {
        match tokio::time::timeout(LOOK, chunks.next()).await {
            Ok(Some(Ok(chunk))) => {
                heard = Instant::now();
                let from = if dropping { end_of_line(&chunk).map(|end| end + 1) } else { Some(0) };
                if let Some(from) = from {
                    dropping = false;
                    buffer.extend_from_slice(&chunk[from..]);
                }
            }
            Ok(None) => {
                ended = true;
                buffer.push(b'\n');
            }
            // The client has gone, says nothing, or the server stops: what was sent whole is answered.
            Ok(Some(Err(_))) => return,
            Err(_) if heard.elapsed() >= pause || app.stopping.load(Ordering::Acquire) => return,
            Err(_) if share.is_cut() => {
                let pending = Pending::Ready(Err(app.room.cut_off()), None);
                let _ =
                    sender.send(Ahead { number: number + 1, pending, share: app.room.share().into() }).await;
                return;
            }
            Err(_) => {}
        }
        let mut start = 0;
        while let Some(length) = end_of_line(&buffer[start..]) {
            number += 1;
            let line = &buffer[start..start + length];
            start += length + 1;
            // A line holds its room until it is answered, not only until it is read.
            let own = Arc::new(app.room.share());
            let pending = match Line::parse(line) {
                Ok(None) => continue,
                _ if !own.hold(length) => Pending::Ready(Err(app.room.refusal()), None),
                Ok(Some(line)) => ask(&stream, line, query, learn, own.clone()).await,
                Err(error) => Pending::Refused(error.to_string()),
            };
            if sender.send(Ahead { number, pending, share: own }).await.is_err() {
                return;
            }
        }
        buffer.drain(..start);
        // The beginning of a line that is not here whole.
        let refusal = if buffer.len() > MAX_LINE {
            Some(Pending::Refused(format!("a line may have {MAX_LINE} bytes")))
        } else if !share.hold(buffer.len()) {
            Some(Pending::Ready(Err(app.room.refusal()), None))
        } else {
            None
        };
        if let Some(pending) = refusal {
            number += 1;
            (buffer, dropping) = (Vec::new(), true);
            share.hold(0);
            if sender.send(Ahead { number, pending, share: app.room.share().into() }).await.is_err() {
                return;
            }
        }
    }
}

fn end_of_line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&b| b == b'\n')
}

/// Shows the sample of a line to the stream.
async fn ask(stream: &Stream, line: Line, query: ClassifyQuery, learn: bool, held: Arc<Share>) -> Pending {
    let samples = match from_line(&line, stream.head.dim(), query.normalize.unwrap_or(false)) {
        Ok(samples) => samples,
        Err(problem) => return Pending::Refused(problem.detail),
    };
    if let Err(problem) = stream.check(&samples, 1) {
        return Pending::Refused(problem.detail);
    }
    if !learn {
        return Pending::Ready(stream.predict(samples, query.extent()).await, line.id);
    }
    match stream.submit(samples, query.extent(), held).await {
        Ok(answer) => Pending::Answer(answer, line.id),
        Err(problem) => Pending::Ready(Err(problem), line.id),
    }
}

/// The sample of a line.
fn from_line(line: &Line, dim: usize, normalize: bool) -> Result<Samples, Problem> {
    // A row of the wrong length is told so, not that its norm is wrong.
    if line.features.len() != dim {
        let (expected, got) = (dim, line.features.len());
        return Err(ultta::Error::Shape { what: ultta::What::Dimension, expected, got }.into());
    }
    let (features, views) = Features::of_line(line, normalize)?;
    let views = views.map(|features| Views { counts: vec![features.rows()], features });
    let learn = (!line.learn).then(|| vec![false]);
    Ok(Samples::new(features.into_owned(), learn, line.time.map(|time| vec![time]), views)?)
}
