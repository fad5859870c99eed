//! Answers on their way out. A large answer holds its share of the room until its client has read it. A client that stops
//! reading is cut off, so that its answers do not hold memory and room for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::problem::Problem;
use crate::room::{Room, Share};
use crate::routes::aside;

/// Answers up to this size are not counted: the buffers of a connection hold as much.
const SMALL: usize = 256 << 10;
/// A large answer is handed to the connection in pieces of this size.
const PIECE: usize = 64 << 10;
/// Bytes per second at which a client has to read a large answer, at least, after a first pause.
const PACE: u64 = 64 << 10;
/// A client may read nothing for this long at first.
const PAUSE: Duration = Duration::from_secs(30);

/// Room for an answer, taken before work goes into it.
pub struct Place(Share);

impl Place {
    /// For an answer of about `bytes` bytes. An error says that it is too large, or that there is no room at present.
    pub fn take(room: &Room, bytes: usize) -> Result<Self, Problem> {
        Ok(Self(if bytes > SMALL { room.for_answer(bytes)? } else { room.share() }))
    }

    /// For a file, whose size the client cannot choose: a file that is larger than the whole room takes the whole room.
    pub fn for_file(room: &Room, bytes: usize) -> Result<Self, Problem> {
        Self::take(room, bytes.min(room.most_for_answers()))
    }

    /// Makes the place larger, for an answer that nothing was learnt for: it may still be refused.
    pub fn grow(&self, room: &Room, bytes: usize) -> Result<(), Problem> {
        if bytes > SMALL && bytes > self.0.bytes() && !self.0.hold(bytes) {
            return Err(room.refusal());
        }
        Ok(())
    }

    /// The answer as JSON.
    pub fn json(self, answer: &impl Serialize) -> Result<Response, Problem> {
        let text = aside(self.0.bytes(), || serde_json::to_vec(answer))
            .map_err(|e| Problem::invalid(format!("no answer in JSON: {e}")))?;
        Ok(self.send("application/json", text))
    }

    /// The answer as it is.
    pub fn send(self, kind: &'static str, mut bytes: Vec<u8>) -> Response {
        if bytes.len() > SMALL {
            bytes.shrink_to_fit();
        }
        (PLACED, [(header::CONTENT_TYPE, kind)], self.body(bytes.into())).into_response()
    }

    fn body(self, bytes: Bytes) -> Body {
        if bytes.len() <= SMALL {
            return Body::from(bytes);
        }
        // Sets of many classes and the sender's own names for rows are not reckoned before anything is learnt.
        self.0.hold_anyway(bytes.len());
        Body::new(Held { bytes, sent: 0, started: Instant::now(), _share: self.0 })
    }
}

/// Marks an answer that has the room it needs.
pub const PLACED: Extension<Placed> = Extension(Placed);

#[derive(Clone)]
pub struct Placed;

/// Has an answer that turned out large, and that nobody has taken room for, hold room until its client has read it. If there is none, its
/// client is told to try again: calls that change something take room before.
pub async fn place(room: &Room, answer: Response) -> Response {
    let bytes = answer.body().size_hint().exact().map_or(0, |bytes| bytes as usize);
    if bytes <= SMALL || answer.extensions().get::<Placed>().is_some() {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let placed = Place::for_file(room, bytes);
    match (placed, axum::body::to_bytes(body, usize::MAX).await) {
        (Ok(place), Ok(bytes)) => Response::from_parts(head, place.body(bytes)),
        (Err(problem), _) => problem.into_response(),
        (_, Err(error)) => Problem::unavailable(error.to_string()).into_response(),
    }
}

/// A large answer, and the room that it holds.
struct Held {
    bytes: Bytes,
    sent: usize,
    started: Instant,
    _share: Share,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let held = self.get_mut();
        let patience = PAUSE + Duration::from_secs(held.sent as u64 / PACE);
        if held.started.elapsed() > patience {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        let rest = &held.bytes[held.sent..];
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        // Copied, so that a piece that waits to be sent does not keep the whole answer in memory.
        let piece = Bytes::copy_from_slice(&rest[..rest.len().min(PIECE)]);
        held.sent += piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.bytes.len() - self.sent) as u64)
    }
}

/// A connection that ends if its client reads nothing for a while.
pub struct Patient<S> {
    socket: S,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(socket: S, patience: Duration) -> Self {
        Self { socket, patience, waiting: None }
    }

    /// Passes on the result of writing. An error if nothing could be written for too long.
    fn watch<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let sleep = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.patience)));
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.watch(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.socket).poll_shutdown(context);
        self.watch(shut, context)
    }
}
