//! Room for request bodies. Bytes are counted as they arrive, whatever kind of body they belong to, and given back when
//! the request is answered: a connection that sends nothing holds nothing. What a refused request still has to send is
//! read and dropped, up to a bound, so that its client comes to see the refusal.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// Bytes of bodies are counted in units of this size.
const UNIT: usize = 1024;
/// The rest of a body is awaited for this long.
const LINGER: Duration = Duration::from_secs(10);

/// Room for the bodies of all requests.
pub struct Room {
    units: Arc<Semaphore>,
    bytes: usize,
}

impl Room {
    pub fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), bytes }
    }

    /// A share that holds nothing yet.
    pub fn share(&self) -> Share {
        Share { units: self.units.clone(), held: None }
    }

    /// The refusal of a request for which there is no room.
    pub fn refusal(&self) -> Problem {
        let bytes = self.bytes;
        Problem::busy(format!("{bytes} bytes of request bodies are being worked on already; try again"))
    }
}

/// The room that one request holds.
pub struct Share {
    units: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Holds room for this many bytes, no more and no less. `false` if there is not enough.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let (needed, held) = (bytes.div_ceil(UNIT), self.held.as_ref().map_or(0, |held| held.num_permits()));
        if needed < held {
            drop(self.held.as_mut().and_then(|permit| permit.split(held - needed)));
        }
        if needed > held {
            let more = u32::try_from(needed - held).unwrap_or(u32::MAX);
            let Ok(more) = self.units.clone().try_acquire_many_owned(more) else { return false };
            match &mut self.held {
                Some(permit) => permit.merge(more),
                None => self.held = Some(more),
            }
        }
        true
    }
}

/// What becomes of a request's body.
#[derive(Clone)]
pub struct Watch(Arc<Watched>);

struct Watched {
    /// `None` for bodies that are worked on piece by piece: their reader counts what it keeps.
    share: Option<Mutex<Share>>,
    full: AtomicBool,
    /// What its reader has left of the body.
    rest: Mutex<Option<BodyDataStream>>,
}

impl Watch {
    /// Watches a body; with a share its bytes are counted. An unread body that waits to be asked for (`expected`) is
    /// left alone: its client sees the answer before it sends.
    pub fn new(body: Body, share: Option<Share>, expected: bool) -> (Self, Body) {
        let share = share.map(Mutex::new);
        let watch = Self(Arc::new(Watched { share, full: AtomicBool::new(false), rest: Mutex::default() }));
        let inner = Some(body.into_data_stream());
        let counted = Counted { inner, bytes: 0, touched: !expected, watched: watch.0.clone() };
        (watch, Body::from_stream(counted))
    }

    /// Whether the body was cut off because there was no room for it.
    pub fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Acquire)
    }

    /// Gives the room back, and reads and drops what is left of the body, up to a number of bytes.
    pub fn finish(self, most: usize) {
        if let Some(share) = &self.0.share {
            lock(share).hold(0);
        }
        let Some(mut rest) = lock(&self.0.rest).take() else { return };
        tokio::spawn(tokio::time::timeout(LINGER, async move {
            let mut left = most;
            while let Some(Ok(chunk)) = rest.next().await {
                match left.checked_sub(chunk.len()) {
                    Some(less) => left = less,
                    None => return,
                }
            }
        }));
    }
}

/// A body whose bytes are counted. Dropped before its end, it leaves the rest to its watch.
struct Counted {
    inner: Option<BodyDataStream>,
    bytes: usize,
    /// Whether someone has begun to read, or the client sends without being asked.
    touched: bool,
    watched: Arc<Watched>,
}

impl Stream for Counted {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.touched = true;
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let item = ready!(inner.poll_next_unpin(context));
        let Some(Ok(chunk)) = &item else {
            self.inner = None;
            return Poll::Ready(item);
        };
        self.bytes += chunk.len();
        let fits = self.watched.share.as_ref().is_none_or(|share| lock(share).hold(self.bytes));
        if !fits {
            self.watched.full.store(true, Ordering::Release);
            return Poll::Ready(Some(Err(axum::Error::new("there is no room for it"))));
        }
        Poll::Ready(item)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.touched {
            *lock(&self.watched.rest) = self.inner.take();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_and_shrinks_and_gives_back_what_it_held() {
        let room = Room::new(4 * UNIT);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(3 * UNIT) && other.hold(1) && !other.hold(UNIT + 1));
        assert!(one.hold(UNIT) && other.hold(3 * UNIT) && !one.hold(UNIT + 1));
        drop(other);
        assert!(one.hold(4 * UNIT) && !one.hold(4 * UNIT + 1));
        drop(one);
        assert_eq!(room.units.available_permits(), 4);
    }
}
