//! Room for request bodies. Bytes are counted as they arrive, whatever kind of body they belong to, and given back when
//! the request is answered: a connection that sends nothing holds nothing. What a refused request still has to send is
//! read and dropped, up to a bound, so that its client comes to see the refusal.
//!
//! After large bodies and answers, and after many smaller ones, free memory is given back to the system.
//!
//! A part of the room is for small bodies alone: clients that send large ones and then pause do not keep others out.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// Bytes of bodies are counted in units of this size.
const UNIT: usize = 1024;
/// A share up to this size is small.
const SMALL: usize = 1 << 20;
/// Bytes of smaller shares, each above a quarter of that, after which memory is given back, too.
const WORTH_IT: usize = 16 << 20;
/// Memory is given back this long after a large share, so that it is free by then, and not more often.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(1);
/// The rest of a body is awaited for this long.
const LINGER: Duration = Duration::from_secs(10);

/// Room for the bodies of all requests, and for large answers until they are sent.
pub struct Room {
    units: Arc<Semaphore>,
    /// The part of the room that all large shares together may hold.
    large: Arc<Semaphore>,
    bytes: usize,
    large_bytes: usize,
    left: Arc<Left>,
}

/// What requests leave behind when they are answered.
#[derive(Default)]
struct Left {
    /// Bytes that shares of some size held since memory was last given back.
    freed: AtomicUsize,
    /// Whether memory is about to be given back.
    owed: AtomicBool,
}

impl Room {
    /// Room for `bytes` bytes of bodies and answers. A body of the largest size always fits into it.
    pub fn new(bytes: usize, largest: usize) -> Self {
        let large_bytes = (bytes - bytes / 8).max(largest.min(bytes));
        let semaphore =
            |bytes: usize| Arc::new(Semaphore::new(bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS)));
        Self {
            units: semaphore(bytes),
            large: semaphore(large_bytes),
            bytes,
            large_bytes,
            left: Arc::default(),
        }
    }

    /// A share that holds nothing yet.
    pub fn share(&self) -> Share {
        Share {
            units: self.units.clone(),
            large: self.large.clone(),
            held: None,
            held_as_large: None,
            most: 0,
            left: self.left.clone(),
        }
    }

    /// Bytes that answers may have together.
    pub fn most_for_answers(&self) -> usize {
        self.large_bytes
    }

    /// A share that holds room for an answer of `bytes` bytes.
    pub fn for_answer(&self, bytes: usize) -> Result<Share, Problem> {
        if bytes > self.large_bytes {
            let most = self.large_bytes;
            return Err(Problem::too_large(format!(
                "an answer may have {most} bytes, this one would have about {bytes}; send fewer rows, or ask for less (probs, top)"
            )));
        }
        let mut share = self.share();
        if share.hold(bytes) { Ok(share) } else { Err(self.refusal()) }
    }

    /// The refusal of a request for which there is no room.
    pub fn refusal(&self) -> Problem {
        let bytes = self.bytes;
        Problem::busy(format!(
            "{bytes} bytes of bodies and answers are being worked on already (limits.waiting_bytes); try again"
        ))
    }
}

/// The room that one request holds.
pub struct Share {
    units: Arc<Semaphore>,
    large: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    held_as_large: Option<OwnedSemaphorePermit>,
    /// Bytes that it held room for at most.
    most: usize,
    left: Arc<Left>,
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.most <= SMALL / 4 {
            return;
        }
        let freed = self.left.freed.fetch_add(self.most, Ordering::AcqRel) + self.most;
        if self.most > SMALL || freed > WORTH_IT {
            self.left.freed.store(0, Ordering::Release);
            give_back_soon(&self.left);
        }
    }
}

/// Has memory given back in a moment, unless that is under way.
fn give_back_soon(left: &Arc<Left>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if left.owed.swap(true, Ordering::AcqRel) {
        return;
    }
    let left = left.clone();
    runtime.spawn(async move {
        tokio::time::sleep(GIVE_BACK_AFTER).await;
        left.owed.store(false, Ordering::Release);
        let _ = tokio::task::spawn_blocking(ultta_formats::map::give_free_pages_back).await;
    });
}

impl Share {
    /// Bytes that it holds room for.
    pub fn bytes(&self) -> usize {
        permits(&self.held) * UNIT
    }

    /// Holds room for this many bytes, no more and no less. `false` if there is not enough; then it holds what it held.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let needed = bytes.div_ceil(UNIT);
        let as_large = if bytes > SMALL { needed } else { 0 };
        let before = permits(&self.held_as_large);
        if !adjust(&mut self.held_as_large, &self.large, as_large) {
            return false;
        }
        let fits = adjust(&mut self.held, &self.units, needed);
        self.most = self.most.max(if fits { bytes } else { 0 });
        if !fits && before < as_large {
            adjust(&mut self.held_as_large, &self.large, before);
        }
        fits
    }
}

fn permits(held: &Option<OwnedSemaphorePermit>) -> usize {
    held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
}

/// Holds as many permits as needed, no more and no less. `false` if there are not enough.
fn adjust(held: &mut Option<OwnedSemaphorePermit>, all: &Arc<Semaphore>, needed: usize) -> bool {
    let before = permits(held);
    if needed < before {
        drop(held.as_mut().and_then(|permit| permit.split(before - needed)));
    }
    if needed > before {
        let more = u32::try_from(needed - before).unwrap_or(u32::MAX);
        let Ok(more) = all.clone().try_acquire_many_owned(more) else { return false };
        match held {
            Some(permit) => permit.merge(more),
            None => *held = Some(more),
        }
    }
    true
}

/// Watches the body of a request: its room, and what was not read of it.
#[derive(Clone)]
pub struct Watch(Arc<Watched>);

struct Watched {
    /// `None` for bodies that are worked on piece by piece: their reader counts what it keeps.
    share: Option<Mutex<Share>>,
    full: AtomicBool,
    /// The part of the body that its reader did not read.
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

/// A body whose bytes are counted. If it is dropped before its end, the rest goes to its watch.
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
        let room = Room::new(4 * UNIT, 0);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(3 * UNIT) && other.hold(1) && !other.hold(UNIT + 1));
        assert!(one.hold(UNIT) && other.hold(3 * UNIT) && !one.hold(UNIT + 1));
        drop(other);
        assert!(one.hold(4 * UNIT) && !one.hold(4 * UNIT + 1));
        drop(one);
        assert_eq!(room.units.available_permits(), 4);
    }

    #[test]
    fn large_shares_leave_room_for_small_ones() {
        let room = Room::new(16 * SMALL, 8 * SMALL);
        let (mut one, mut other, mut small) = (room.share(), room.share(), room.share());
        assert!(one.hold(8 * SMALL) && other.hold(6 * SMALL), "seven eighths");
        assert!(!other.hold(6 * SMALL + UNIT) && small.hold(SMALL), "the rest is for small ones");
        assert!(!small.hold(SMALL + 1));
        let mut third = room.share();
        assert!(third.hold(SMALL) && !room.share().hold(1), "all is held");
        assert!(!third.hold(2 * SMALL) && one.hold(SMALL) && third.hold(2 * SMALL), "a large one has left");
        drop((one, other, small, third));
        assert_eq!(room.units.available_permits() * UNIT, 16 * SMALL);
        assert_eq!(room.large.available_permits() * UNIT, 14 * SMALL);
        // The largest body fits, if need be into all of the room.
        assert!(Room::new(4 * SMALL, 4 * SMALL).share().hold(4 * SMALL));
        let refusal = |bytes| room.for_answer(bytes).map(drop).map_err(|problem| problem.status);
        assert_eq!((refusal(14 * SMALL), refusal(14 * SMALL + 1)), (Ok(()), Err(413)));
        let _held = room.for_answer(13 * SMALL).map_err(|problem| problem.detail).unwrap();
        assert_eq!(refusal(2 * SMALL), Err(429));
    }
}
