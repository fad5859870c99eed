//! Shadows: streams that are shown the traffic of another one, their answers only compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use ultta::Row;

use crate::job::{Classify, Extent, Feedback, Job, Reply};
use crate::samples::Samples;

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
    pub missed: Arc<AtomicU64>,
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
            let labels = answers.iter().map(|row| row.label as u32).collect();
            let first = (generation, answers.first().map_or(0, |row| row.id));
            let job = Classify {
                samples: samples.clone(),
                zero_shot: None,
                extent: Extent::default(),
                arrived: Instant::now(),
                reply: Reply::Shadow { first, labels },
            };
            let fits = !shadow.needs_views || samples.views().is_some();
            if !fits || shadow.queue.try_send(Job::Classify(job)).is_err() {
                shadow.missed.fetch_add(answers.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Passes delayed labels on; the ids are those of the stream that is followed.
    pub fn show_labels(&self, labels: &[(u64, usize)], generation: u64) {
        for shadow in self.lock().iter() {
            let source = Some(generation);
            let job = Feedback { labels: labels.to_vec(), generation: None, source, reply: None };
            let _ = shadow.queue.try_send(Job::Feedback(job));
        }
    }
}
