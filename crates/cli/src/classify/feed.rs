//! Frames on their way from ffmpeg to the encoder. A thread reads them as they come.
//!
//! A file waits for the encoder. A live source does not: only its newest frame is kept, what the encoder cannot keep up
//! with is dropped and counted. The last frame before a source went away is kept, too: it tells what was seen until then.
//! With `follow` a source that went away is opened again and again until it is back.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ultta_encode::config::Preprocess;
use ultta_encode::decode::Picture;
use ultta_encode::video::{Frames, Source, Stopper};

/// Frames of a file that are read ahead.
const AHEAD: usize = 16;

/// Frames and losses of a live source that wait for the encoder, at most.
const MOST_WAITING: usize = 64;

/// A live source that is silent for this long is opened anew.
const SILENCE: Duration = Duration::from_secs(10);

/// Waits between two tries to open a source again: the first, doubled each time, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(4);

/// What comes out of a feed, in order.
pub enum Event {
    /// A frame, its time in seconds, and when it was read.
    Frame(Picture, f64, Instant),
    /// The source went away at this time, and why; it is opened again.
    Lost(f64, String),
    /// The last of all.
    End(End),
}

/// How a source ended.
pub struct End {
    /// Frames it gave.
    pub frames: u64,
    /// What was wrong, if something was.
    pub problem: Option<String>,
}

/// Frames that a thread reads.
pub struct Feed {
    shared: Arc<Shared>,
    started: Instant,
    live: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    events: VecDeque<Event>,
    dropped: u64,
    /// Nobody wants more.
    stopped: bool,
    running: Option<Stopper>,
    /// It was ended because nothing came from it.
    silent: bool,
    /// When the latest frame came, or the source was opened.
    heard: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&self, event: Event) {
        self.lock().events.push_back(event);
        self.changed.notify_all();
    }

    /// Tells that the source went away; while too much waits, nothing is told.
    fn lose(&self, at: f64, reason: String) {
        if self.lock().events.len() < MOST_WAITING {
            self.push(Event::Lost(at, reason));
        }
    }
}

impl Feed {
    /// Starts reading. An ffmpeg that cannot be started is an error here.
    pub fn open(
        source: &Source,
        fps: f64,
        preprocess: &Preprocess,
        follow: bool,
    ) -> ultta_encode::Result<Self> {
        let started = Instant::now();
        let first = Frames::open(source, fps, preprocess)?;
        let state = State {
            events: VecDeque::new(),
            dropped: 0,
            stopped: false,
            running: Some(first.stopper()),
            silent: false,
            heard: started,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let reader = Reader {
            shared: shared.clone(),
            source: source.clone(),
            preprocess: preprocess.clone(),
            fps,
            follow,
            started,
            frames: 0,
        };
        std::thread::spawn(move || reader.run(first));
        Ok(Self { shared, started, live: source.is_live() })
    }

    /// The next event; `None` if there is none within a moment.
    pub fn next(&self, within: Duration) -> Option<Event> {
        let mut state = self.shared.lock();
        if state.events.is_empty() {
            state = match self.shared.changed.wait_timeout(state, within) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        let event = state.events.pop_front();
        if event.is_some() {
            self.shared.changed.notify_all();
        } else if self.live && state.heard.elapsed() > SILENCE {
            // The reader finds the end of its frames, and opens the source anew.
            if let Some(running) = state.running.take() {
                state.silent = true;
                running.stop();
            }
        }
        event
    }

    /// Frames that were dropped.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        state.running.take().iter().for_each(Stopper::stop);
        self.shared.changed.notify_all();
    }
}

/// What the thread works with.
struct Reader {
    shared: Arc<Shared>,
    source: Source,
    preprocess: Preprocess,
    fps: f64,
    follow: bool,
    started: Instant,
    frames: u64,
}

impl Reader {
    fn run(mut self, first: Frames) {
        let mut opened = Some(first);
        let mut wait = FIRST_WAIT;
        let mut last_reason = String::new();
        loop {
            let before = self.frames;
            let problem = match opened.take() {
                Some(frames) => self.read(frames),
                None => Some("it could not be opened again".into()),
            };
            if self.shared.lock().stopped || !self.follow {
                self.shared.push(Event::End(End { frames: self.frames, problem }));
                return;
            }
            if self.frames > before {
                (wait, last_reason) = (FIRST_WAIT, String::new());
            }
            let reason = problem.unwrap_or_else(|| "it ended".into());
            // Tries that fail in the same way are told once.
            if reason != last_reason {
                self.shared.lose(self.started.elapsed().as_secs_f64(), reason.clone());
                last_reason = reason;
            }
            if self.pause(wait) {
                self.shared.push(Event::End(End { frames: self.frames, problem: None }));
                return;
            }
            wait = LONGEST_WAIT.min(2 * wait);
            if let Ok(frames) = Frames::open(&self.source, self.fps, &self.preprocess) {
                let mut state = self.shared.lock();
                state.heard = Instant::now();
                state.running = Some(frames.stopper());
                drop(state);
                opened = Some(frames);
            }
        }
    }

    /// Reads to the end; what went wrong, if something did.
    fn read(&mut self, mut frames: Frames) -> Option<String> {
        let mut n = 0u64;
        while let Some(picture) = frames.read() {
            let now = Instant::now();
            let at = if self.source.is_live() {
                now.duration_since(self.started).as_secs_f64()
            } else {
                n as f64 / self.fps
            };
            n += 1;
            self.frames += 1;
            if self.give(Event::Frame(picture, at, now)) {
                return None;
            }
        }
        let ending = frames.end();
        if std::mem::take(&mut self.shared.lock().silent) {
            return Some(format!("nothing came for {} seconds", SILENCE.as_secs()));
        }
        if !ending.said.is_empty() {
            return Some(ending.said);
        }
        match (ending.success, n) {
            (false, _) => Some("ffmpeg ended without a word".into()),
            (true, 0) => Some("there is no frame in it".into()),
            (true, _) => None,
        }
    }

    /// Hands a frame over; true if nobody wants more.
    fn give(&self, event: Event) -> bool {
        let mut state = self.shared.lock();
        state.heard = Instant::now();
        if self.source.is_live() {
            // A frame gives way to the next one, but not to one from behind a loss of the source: what was seen before it
            // would be missing. An encoder that does not get on at all keeps no more than a few.
            let newest = state.events.len().saturating_sub(1);
            let gives_way = match state.events.len() {
                MOST_WAITING.. => state.events.iter().position(|event| matches!(event, Event::Frame(..))),
                _ => Some(newest).filter(|&place| matches!(state.events.get(place), Some(Event::Frame(..)))),
            };
            if let Some(place) = gives_way {
                state.events.remove(place);
                state.dropped += 1;
            }
        } else {
            while state.events.len() >= AHEAD && !state.stopped {
                // A file that waits for the encoder is not silent.
                state.heard = Instant::now();
                state = match self.shared.changed.wait_timeout(state, Duration::from_secs(1)) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
        }
        if state.stopped {
            return true;
        }
        state.events.push_back(event);
        self.shared.changed.notify_all();
        false
    }

    /// Waits; true if nobody wants more.
    fn pause(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.shared.lock();
        while !state.stopped {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return false;
            };
            state.heard = Instant::now();
            state = match self.shared.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}
