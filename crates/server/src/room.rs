//! Room for request bodies. Bytes are counted as they arrive, whatever kind of body they belong to, and given back when
//! the request is answered: a connection that sends nothing holds nothing. What waits for a stream's owner holds its room until
//! the owner is done with it, also if its client has hung up. What a refused request still has to send is read and dropped, up to a
//! bound, so that its client comes to see the refusal.
//!
//! After large bodies and answers, and after many smaller ones, free memory is given back to the system.
//!
//! A part of the room is for small bodies alone, and a part of that for tiny ones: clients that send large ones and then pause do
//! not keep others out. Nor do clients that send small ones and then pause: where room is wanted and there is none, the bodies that have paused for longest
//! lose theirs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;

use crate::problem::Problem;

/// Bytes of bodies are counted in units of this size.
const UNIT: usize = 1024;
/// A share up to this size is small.
const SMALL: usize = 1 << 20;
/// A share up to this size is tiny: a few rows.
const TINY: usize = 64 << 10;
/// Bytes of smaller shares, each above a quarter of that, after which memory is given back, too.
const WORTH_IT: usize = 16 << 20;
/// Memory is given back this long after a large share, so that it is free by then, and not more often.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(1);
/// The rest of a body is awaited for this long.
const LINGER: Duration = Duration::from_secs(10);
/// A body pauses if less than [`STEP`] of it came in this time.
const PAUSE: Duration = Duration::from_secs(3);
const STEP: usize = 16 << 10;

/// Room for the bodies of all requests, and for large answers until they are sent.
pub struct Room {
    book: Arc<Mutex<Book>>,
    bytes: usize,
    large_bytes: usize,
    left: Arc<Left>,
}

/// Who holds what of the room, in units.
struct Book {
    /// What all shares together may still hold, those that are not tiny, and large ones; less than nothing where an answer turned out
    /// larger than was reckoned.
    free: [isize; 3],
    shares: BTreeMap<u64, Held>,
    /// The next share's number.
    next: u64,
    pause: Duration,
    /// Bytes that answers may have together.
    for_answers: usize,
}

/// What a share holds.
#[derive(Default)]
struct Held {
    /// Of each kind of room.
    units: [isize; 3],
    /// While its client sends.
    sending: Option<Sending>,
    /// Whether it lost its room because its client paused.
    is_cut: bool,
}

/// How far a client is with its body.
struct Sending {
    /// Units that it had sent at this moment. Little more does not count as going on.
    units: isize,
    at: Instant,
    /// Who waits for more of it.
    waker: Option<Waker>,
}

/// What a share of so many bytes holds of each kind of room.
fn units(bytes: usize) -> [isize; 3] {
    let units = bytes.div_ceil(UNIT).cast_signed();
    [units, if bytes > TINY { units } else { 0 }, if bytes > SMALL { units } else { 0 }]
}

impl Book {
    /// Has a share hold this many bytes, no more and no less. If there is no room, tells of which kind.
    fn hold(&mut self, share: u64, bytes: usize) -> Result<(), usize> {
        let Some(held) = self.shares.get(&share) else { return Err(0) };
        let needed = units(bytes);
        let lacks = |&kind: &usize| {
            needed[kind] > held.units[kind] && needed[kind] > held.units[kind] + self.free[kind]
        };
        if let Some(kind) = (0..3).rev().find(lacks) {
            return Err(kind);
        }
        if held.is_cut && bytes > 0 {
            return Err(0);
        }
        self.set(share, bytes);
        Ok(())
    }

    /// Has a share hold this many bytes, whether or not there is room.
    fn set(&mut self, share: u64, bytes: usize) {
        let Some(held) = self.shares.get_mut(&share) else { return };
        let needed = units(bytes);
        for (kind, needed) in needed.into_iter().enumerate() {
            self.free[kind] += held.units[kind] - needed;
        }
        held.units = needed;
        let units = needed[0];
        if let Some(sending) = held.sending.as_mut().filter(|s| units >= s.units + (STEP / UNIT) as isize) {
            (sending.units, sending.at) = (units, Instant::now());
        }
    }

    fn is_cut(&self, share: u64) -> bool {
        self.shares.get(&share).is_some_and(|held| held.is_cut)
    }

    /// Takes the room of the body that has paused for longest among those that hold room of a kind. `false` if none does.
    fn cut(&mut self, but: u64, kind: usize) -> bool {
        let paused = |(&share, held): (&u64, &Held)| {
            let at = held.sending.as_ref()?.at;
            (share != but && held.units[kind] > 0 && at.elapsed() >= self.pause).then_some((at, share))
        };
        let Some((_, share)) = self.shares.iter().filter_map(paused).min() else { return false };
        let _ = self.hold(share, 0);
        if let Some(held) = self.shares.get_mut(&share) {
            held.is_cut = true;
            if let Some(waker) = held.sending.as_mut().and_then(|sending| sending.waker.take()) {
                waker.wake();
            }
        }
        true
    }
}

/// What requests leave behind when they are answered.
struct Left {
    /// Where memory is given back; none in some tests.
    runtime: Option<Handle>,
    /// Bytes that shares of some size held since memory was last given back.
    freed: AtomicUsize,
    /// Whether memory is about to be given back.
    owed: AtomicBool,
}

impl Room {
    /// Room for `bytes` bytes of bodies and answers. A body of the largest size always fits into it.
    pub fn new(bytes: usize, largest: usize) -> Self {
        let large_bytes = (bytes - bytes / 8).max(largest.min(bytes));
        let free =
            [bytes, bytes.midpoint(large_bytes), large_bytes].map(|bytes| bytes.div_ceil(UNIT).cast_signed());
        let book = Book { free, shares: BTreeMap::new(), next: 0, pause: PAUSE, for_answers: large_bytes };
        let runtime = Handle::try_current().ok();
        let left = Left { runtime, freed: AtomicUsize::new(0), owed: AtomicBool::new(false) };
        Self { book: Arc::new(Mutex::new(book)), bytes, large_bytes, left: Arc::new(left) }
    }

    /// Bytes that all shares hold together.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.bytes.saturating_add_signed(-lock(&self.book).free[0] * UNIT.cast_signed())
    }

    /// A share that holds nothing yet.
    pub fn share(&self) -> Share {
        self.open(None)
    }

    /// A share of a body that is being sent. It may lose its room if its client pauses.
    pub fn share_of_body(&self) -> Share {
        self.open(Some(Sending { units: 0, at: Instant::now(), waker: None }))
    }

    fn open(&self, sending: Option<Sending>) -> Share {
        let mut book = lock(&self.book);
        let number = book.next;
        book.next += 1;
        book.shares.insert(number, Held { sending, ..Held::default() });
        Share { book: self.book.clone(), number, most: AtomicUsize::new(0), left: self.left.clone() }
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
        let share = self.share();
        if share.hold(bytes) { Ok(share) } else { Err(self.refusal()) }
    }

    /// The room of a request's body, for the samples that were in it. Numbers of one byte have become numbers of four by now.
    pub fn hold_samples(&self, watch: &Watch, bytes: usize) -> Result<Option<Arc<Share>>, Problem> {
        let share = watch.0.share.clone();
        match &share {
            Some(share) if bytes > share.bytes() && !share.hold(bytes.min(self.large_bytes)) => {
                Err(self.refusal())
            }
            _ => Ok(share),
        }
    }

    /// The refusal of a request for which there is no room.
    pub fn refusal(&self) -> Problem {
        let bytes = self.bytes;
        Problem::busy(format!(
            "{bytes} bytes of bodies and answers are being worked on already (limits.waiting_bytes); try again"
        ))
    }

    /// The refusal of a request whose body paused while others wanted its room.
    pub fn cut_off(&self) -> Problem {
        Problem::timeout(format!(
            "the body paused for {} seconds, and others wanted its room (limits.waiting_bytes)",
            PAUSE.as_secs()
        ))
    }
}

/// The room that one request holds.
pub struct Share {
    book: Arc<Mutex<Book>>,
    number: u64,
    /// Bytes that it held room for at most.
    most: AtomicUsize,
    left: Arc<Left>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut book = lock(&self.book);
        let _ = book.hold(self.number, 0);
        book.shares.remove(&self.number);
        drop(book);
        let most = *self.most.get_mut();
        if most <= SMALL / 4 {
            return;
        }
        let freed = self.left.freed.fetch_add(most, Ordering::AcqRel) + most;
        if most > SMALL || freed > WORTH_IT {
            self.left.freed.store(0, Ordering::Release);
            give_back_soon(&self.left);
        }
    }
}

/// Has memory given back in a moment, unless that is under way.
fn give_back_soon(left: &Arc<Left>) {
    let Some(runtime) = &left.runtime else { return };
    if left.owed.swap(true, Ordering::AcqRel) {
        return;
    }
    let (left, runtime) = (left.clone(), runtime.clone());
    runtime.spawn(async move {
        tokio::time::sleep(GIVE_BACK_AFTER).await;
        left.owed.store(false, Ordering::Release);
        let _ = tokio::task::spawn_blocking(ultta_formats::map::give_free_pages_back).await;
    });
}

impl Share {
    /// Bytes that it holds room for.
    pub fn bytes(&self) -> usize {
        lock(&self.book).shares.get(&self.number).map_or(0, |held| held.units[0].unsigned_abs() * UNIT)
    }

    /// Holds room for this many bytes, no more and no less. `false` if there is not enough; then it holds what it held.
    pub fn hold(&self, bytes: usize) -> bool {
        let mut book = lock(&self.book);
        let fits = loop {
            let Err(kind) = book.hold(self.number, bytes) else { break true };
            if book.is_cut(self.number) || !book.cut(self.number, kind) {
                break false;
            }
        };
        if fits {
            self.most.fetch_max(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Holds room for an answer of this many bytes that is there already: while there is less than no room, others are refused. One that
    /// is larger than all answers may be holds as much as they may.
    pub fn hold_anyway(&self, bytes: usize) {
        let mut book = lock(&self.book);
        let bytes = bytes.min(book.for_answers);
        book.set(self.number, bytes);
        self.most.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Whether it lost its room because its client paused.
    pub fn is_cut(&self) -> bool {
        lock(&self.book).is_cut(self.number)
    }

    /// Its body has come: from now on it is not its client that is waited for.
    fn has_come(&self) {
        if let Some(held) = lock(&self.book).shares.get_mut(&self.number) {
            held.sending = None;
        }
    }

    /// More of its body is waited for. `false` if nobody need wait any more.
    fn wait(&self, waker: &Waker) -> bool {
        let mut book = lock(&self.book);
        let Some(held) = book.shares.get_mut(&self.number).filter(|held| !held.is_cut) else { return false };
        if let Some(sending) = &mut held.sending {
            sending.waker = Some(waker.clone());
        }
        true
    }
}

/// Watches the body of a request: its room, and what was not read of it.
#[derive(Clone)]
pub struct Watch(Arc<Watched>);

struct Watched {
    /// `None` for bodies that are worked on piece by piece: their reader counts what it keeps.
    share: Option<Arc<Share>>,
    full: AtomicBool,
    /// The part of the body that its reader did not read.
    rest: Mutex<Option<BodyDataStream>>,
}

impl Watch {
    /// Watches a body; with a share its bytes are counted. An unread body that waits to be asked for (`expected`) is
    /// left alone: its client sees the answer before it sends.
    pub fn new(body: Body, share: Option<Share>, expected: bool) -> (Self, Body) {
        let share = share.map(Arc::new);
        let watch = Self(Arc::new(Watched { share, full: AtomicBool::new(false), rest: Mutex::default() }));
        let inner = Some(body.into_data_stream());
        let counted = Counted { inner, bytes: 0, touched: !expected, watched: watch.0.clone() };
        (watch, Body::from_stream(counted))
    }

    /// The room of the body, for what is made of it.
    pub fn share(&self) -> Option<Arc<Share>> {
        self.0.share.clone()
    }

    /// Whether the body was cut off because there was no room for it.
    pub fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Acquire)
    }

    /// Whether the body was cut off because it paused while others wanted its room.
    pub fn is_cut(&self) -> bool {
        self.0.share.as_ref().is_some_and(|share| share.is_cut())
    }

    /// Gives the room back, and reads and drops what is left of the body, up to a number of bytes.
    pub fn finish(self, most: usize) {
        if let Some(share) = &self.0.share {
            share.hold(0);
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
        let Poll::Ready(item) = inner.poll_next_unpin(context) else {
            let goes_on = self.watched.share.as_ref().is_none_or(|share| share.wait(context.waker()));
            if goes_on {
                return Poll::Pending;
            }
            self.inner = None;
            return Poll::Ready(Some(Err(axum::Error::new("it paused while others wanted its room"))));
        };
        let Some(Ok(chunk)) = &item else {
            self.inner = None;
            if let Some(share) = &self.watched.share {
                share.has_come();
            }
            return Poll::Ready(item);
        };
        self.bytes += chunk.len();
        let fits = self.watched.share.as_ref().is_none_or(|share| share.hold(self.bytes));
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
        let (one, other) = (room.share(), room.share());
        assert!(one.hold(3 * UNIT) && other.hold(1) && !other.hold(UNIT + 1));
        assert!(one.hold(UNIT) && other.hold(3 * UNIT) && !one.hold(UNIT + 1));
        drop(other);
        assert!(one.hold(4 * UNIT) && !one.hold(4 * UNIT + 1));
        let other = room.share();
        assert!(one.hold(UNIT) && other.hold(3 * UNIT));
        one.hold_anyway(4 * UNIT);
        assert!(
            !room.share().hold(1) && other.hold(UNIT) && !room.share().hold(1),
            "there is less than none"
        );
        drop(other);
        assert!(!room.share().hold(1) && one.hold(3 * UNIT) && room.share().hold(UNIT));
        drop(one);
        assert_eq!(lock(&room.book).free[0], 4);
    }

    #[test]
    fn large_shares_leave_room_for_small_ones() {
        let room = Room::new(16 * SMALL, 8 * SMALL);
        let (one, other, small) = (room.share(), room.share(), room.share());
        assert!(one.hold(8 * SMALL) && other.hold(6 * SMALL), "seven eighths");
        assert!(!other.hold(6 * SMALL + UNIT) && small.hold(SMALL), "the rest is for small ones");
        assert!(!small.hold(SMALL + 1));
        let third = room.share();
        assert!(!third.hold(TINY + 1), "what is left is for tiny ones");
        let tiny: Vec<Share> = (0..SMALL / TINY).map(|_| room.share()).collect();
        assert!(tiny.iter().all(|share| share.hold(TINY)) && !room.share().hold(1), "all is held");
        assert!(!third.hold(2 * SMALL) && one.hold(SMALL) && third.hold(2 * SMALL), "a large one has left");
        drop((one, other, small, third, tiny));
        let free = lock(&room.book).free.map(|units| units.unsigned_abs() * UNIT);
        assert_eq!(free, [16 * SMALL, 15 * SMALL, 14 * SMALL]);
        // The largest body fits, if need be into all of the room.
        assert!(Room::new(4 * SMALL, 4 * SMALL).share().hold(4 * SMALL));
        let refusal = |bytes| room.for_answer(bytes).map(drop).map_err(|problem| problem.status);
        assert_eq!((refusal(14 * SMALL), refusal(14 * SMALL + 1)), (Ok(()), Err(413)));
        let _held = room.for_answer(13 * SMALL).map_err(|problem| problem.detail).unwrap();
        assert_eq!(refusal(2 * SMALL), Err(429));
    }

    #[test]
    fn bodies_that_pause_lose_their_room_to_those_that_want_it() {
        let room = Room::new(4 * SMALL, 4 * SMALL);
        let [first, second, third] = [(); 3].map(|()| room.share_of_body());
        assert!(first.hold(SMALL) && second.hold(SMALL) && third.hold(SMALL));
        let answer = room.for_answer(SMALL).map_err(|problem| problem.detail).unwrap();
        assert!(!room.share().hold(1) && !first.is_cut(), "nobody pauses yet");
        lock(&room.book).pause = Duration::ZERO;
        third.has_come();
        let other = room.share();
        assert!(
            other.hold(UNIT) && first.is_cut() && !second.is_cut(),
            "the one that waits for longest, no more"
        );
        assert!(!first.hold(1) && first.hold(0), "what it lost is lost");
        assert!(other.hold(SMALL) && !second.is_cut());
        assert!(!other.hold(5 * SMALL) && !second.is_cut(), "in vain: none of them is large");
        assert!(other.hold(SMALL + UNIT) && second.is_cut() && !third.is_cut() && !answer.is_cut());
        assert!(!room.share().hold(SMALL), "what is worked on is left alone");
        drop((first, second, third, answer, other));
        assert_eq!(room.held(), 0);
        assert!(lock(&room.book).shares.is_empty());
    }

    #[test]
    fn a_body_that_comes_in_drops_pauses() {
        let room = Room::new(SMALL, 0);
        let drops = room.share_of_body();
        let at = |room: &Room| lock(&room.book).shares[&0].sending.as_ref().map(|sending| sending.at);
        let begun = at(&room);
        assert!(drops.hold(UNIT) && drops.hold(STEP - UNIT));
        assert_eq!(at(&room), begun);
        assert!(drops.hold(STEP) && at(&room) > begun);
    }
}
