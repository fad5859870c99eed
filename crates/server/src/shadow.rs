//! Shadows: streams that are shown the traffic of another one, their answers only compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use ultta::Row;

use crate::job::{Classify, Extent, Feedback, Job, Reply};
use crate::room::{Room, Share};
use crate::samples::Samples;

/// Bytes of samples that may wait for a shadow: one that is slower than the stream it follows misses samples rather than fill the
/// memory.
const MOST_WAITING: usize = 64 << 20;

/// The shadows of one stream.
#[derive(Clone, Default)]
pub struct Shadows(Arc<Mutex<Vec<Shadow>>>);

/// One shadow, as the stream that it follows sees it.
#[derive(Clone)]
pub struct Shadow {
    pub name: String,
    pub queue: mpsc::Sender<Job>,
    /// Whether its method needs views of every sample.
    pub needs_views: bool,
    /// Samples that it was not shown.
    missed: Arc<AtomicU64>,
    /// Room for what waits for it.
    room: Arc<Room>,
}

impl Shadow {
    pub fn new(name: &str, queue: mpsc::Sender<Job>, needs_views: bool, missed: Arc<AtomicU64>) -> Self {
        let room = Arc::new(Room::new(MOST_WAITING, MOST_WAITING));
        Self { name: name.into(), queue, needs_views, missed, room }
    }

    /// Hands a job over that holds so many bytes. `false` if there is no place or no room for it.
    fn take(&self, bytes: usize, job: impl FnOnce(Arc<Share>) -> Job) -> bool {
        let held = Arc::new(self.room.share());
        held.hold(bytes.min(MOST_WAITING)) && self.queue.try_send(job(held)).is_ok()
    }
}

impl Shadows {
    /// Adds a shadow, in the place of one of its name.
    pub fn add(&self, shadow: Shadow) {
        self.remove(&shadow.name);
        self.lock().push(shadow);
    }

    pub fn remove(&self, name: &str) {
        self.lock().retain(|shadow| shadow.name != name);
    }

    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|shadow| shadow.name.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shadow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows samples and how they were answered. A shadow that cannot take them misses them and counts them.
    pub fn show(&self, samples: &Samples, answers: &[Row], generation: u64) {
        for shadow in self.lock().iter() {
            let job = |held| {
                let labels = answers.iter().map(|row| row.label as u32).collect();
                let first = (generation, answers.first().map_or(0, |row| row.id));
                Job::Classify(Classify {
                    samples: samples.clone(),
                    zero_shot: None,
                    extent: Extent::default(),
                    arrived: Instant::now(),
                    reply: Reply::Shadow { first, labels },
                    _held: Some(held),
                })
            };
            let fits = !shadow.needs_views || samples.views().is_some();
            if !fits || !shadow.take(samples.bytes(), job) {
                shadow.missed.fetch_add(answers.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Passes delayed labels on; the ids are those of the stream that is followed.
    pub fn show_labels(&self, labels: &[(u64, usize)], generation: u64) {
        for shadow in self.lock().iter() {
            let (labels, source) = (labels.to_vec(), Some(generation));
            shadow.take(size_of_val(&labels[..]), |held| {
                Job::Feedback(Feedback { labels, generation: None, source, _held: Some(held), reply: None })
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shadow that is slower than its stream has so much waiting for it, however many places its queue has.
    #[test]
    fn what_waits_for_a_shadow_is_bounded_in_bytes() {
        let (queue, mut jobs) = mpsc::channel(1024);
        let shadow = Shadow::new("b", queue, false, Arc::default());
        let show = |bytes| {
            shadow.take(bytes, |held| {
                let (labels, generation, source, reply) = (Vec::new(), None, None, None);
                Job::Feedback(Feedback { labels, generation, source, _held: Some(held), reply })
            })
        };
        assert!((0..64).all(|_| show(MOST_WAITING / 64)) && !show(1));
        drop(jobs.try_recv());
        assert!(show(MOST_WAITING / 64) && !show(1));
        while jobs.try_recv().is_ok() {}
        assert!(show(2 * MOST_WAITING) && !show(1), "one that is larger is shown by itself");
    }
}
