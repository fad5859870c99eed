//! The seam to an image model: bytes of a picture in, a feature row out.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::problem::Problem;
use crate::settings::Limits;

/// Turns pictures into features. The command line passes one in when a model is loaded.
pub trait PictureEncoder: Send + Sync {
    /// Length of a feature row.
    fn dim(&self) -> usize;

    /// Number of pixels of a picture, read off the head of its file (JPEG, PNG, …): nothing is decoded. An error says
    /// what is wrong with the picture.
    fn pixels(&self, picture: &[u8]) -> Result<u64, String>;

    /// The unit row of a picture, a whole file. An error says what is wrong with the picture.
    fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String>;
}

/// An image model that encodes as many pictures at once as there are cores. Requests take turns, picture by picture, in
/// the order in which they ask: a request of many pictures does not keep one of few waiting, and one whose client has
/// gone ends with the picture at hand. Some more requests may wait; what they hold in memory is bounded with them. All of it
/// stands behind the other requests, which take far less of a processor.
pub struct Pictures {
    encoder: Arc<dyn PictureEncoder>,
    places: Arc<Semaphore>,
    cores: Arc<Semaphore>,
    threads: Threads,
    /// Pixels that the pictures of a request may have together.
    most_pixels: u64,
}

impl Pictures {
    pub fn new(encoder: Arc<dyn PictureEncoder>, limits: &Limits) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            encoder,
            threads: Threads::new(cores)?,
            places: Arc::new(Semaphore::new(
                cores + limits.picture_queue.min(Semaphore::MAX_PERMITS - cores),
            )),
            cores: Arc::new(Semaphore::new(cores)),
            most_pixels: limits.request_pixels as u64,
        })
    }

    /// Length of a feature row.
    pub fn dim(&self) -> usize {
        self.encoder.dim()
    }

    /// One row per picture, all rows one after another. If this future is dropped, pictures that wait are not encoded.
    pub async fn encode(&self, pictures: Vec<Bytes>) -> Result<Vec<f32>, Problem> {
        let _place = self.places.try_acquire().map_err(|_| busy())?;
        let most = self.most_pixels;
        let mut pixels: u64 = 0;
        let mut rows = Vec::with_capacity(pictures.len() * self.dim());
        // The sizes of all pictures are checked before the first is decoded.
        for (i, picture) in pictures.iter().enumerate() {
            let own = self.turn(picture, |encoder, picture| encoder.pixels(picture)).await?;
            pixels = pixels.saturating_add(own.map_err(|reason| refusal(i, &reason))?);
            if pixels > most {
                return Err(Problem::too_large(format!(
                    "the pictures of a request may have {most} pixels together (limits.request_pixels), the first {} have {pixels}",
                    i + 1
                )));
            }
        }
        for (i, picture) in pictures.iter().enumerate() {
            let row = self.turn(picture, |encoder, picture| encoder.encode(picture)).await?;
            rows.extend(row.map_err(|reason| refusal(i, &reason))?);
        }
        Ok(rows)
    }

    /// Does some work on a picture when it is this request's turn. The core is held until the work is done, also if
    /// nobody waits for it any more.
    async fn turn<T: Send + 'static>(
        &self,
        picture: &Bytes,
        work: impl FnOnce(&dyn PictureEncoder, &[u8]) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| busy())?;
        let (encoder, picture) = (self.encoder.clone(), picture.clone());
        let done = self.threads.run(move || {
            let _core = core;
            work(&*encoder, &picture)
        });
        done.await
    }
}

/// Threads of the image model's own.
struct Threads(Option<Runtime>);

impl Threads {
    fn new(most: usize) -> std::io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(most).thread_name("pictures").on_thread_start(stand_back);
        builder.build().map(|runtime| Self(Some(runtime)))
    }

    /// Does some work on one of them.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let Some(runtime) = &self.0 else { return Err(busy()) };
        let done = runtime.spawn_blocking(work).await;
        done.map_err(|_| Problem::invalid("the image model failed on this picture"))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Nobody waits for a picture any more.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Has the calling thread stand behind the others of the process from now on, where the system has priorities of threads. Short
/// requests are then answered at once while long work goes on beside them.
pub fn stand_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(10) {
        tracing::debug!(%error, "a thread keeps its priority");
    }
}

fn busy() -> Problem {
    Problem::busy("too many pictures wait for the image model already; try again")
}

fn refusal(picture: usize, reason: &str) -> Problem {
    Problem::invalid(format!("picture {picture}: {reason}"))
}
