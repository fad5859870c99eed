//! The seam to an image model: bytes of a picture in, a feature row out.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

use crate::problem::Problem;
use crate::settings::Limits;
use crate::turns::{Turn, Turns};

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

/// What a picture costs beside its pixels, in pixels: the pass of the model.
const PASS: u64 = 1_000_000;

/// An image model that encodes as many pictures at once as there are cores. Requests take turns, picture by picture, and the
/// one that was given the fewest pixels is next: a request of many or of large pictures does not keep one of few small ones
/// waiting. One whose client has gone ends with the picture at hand. Some more requests may wait; what they hold in memory is bounded with them. All of it
/// stands behind the other requests, which take far less of a processor.
pub struct Pictures {
    encoder: Arc<dyn PictureEncoder>,
    places: Arc<Semaphore>,
    turns: Turns,
    threads: Threads,
    /// Pixels that the pictures of a request may have together.
    most_pixels: u64,
}

impl Pictures {
    pub fn new(encoder: Arc<dyn PictureEncoder>, limits: &Limits) -> std::io::Result<Self> {
        Self::on(std::thread::available_parallelism().map_or(1, usize::from), encoder, limits)
    }

    fn on(cores: usize, encoder: Arc<dyn PictureEncoder>, limits: &Limits) -> std::io::Result<Self> {
        Ok(Self {
            encoder,
            threads: Threads::new(cores)?,
            places: Arc::new(Semaphore::new(
                cores + limits.picture_queue.min(Semaphore::MAX_PERMITS - cores),
            )),
            turns: Turns::new(cores),
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
        let (most, all) = (self.most_pixels, pictures.clone());
        // The sizes of all pictures are checked before the first is decoded.
        let (sizes, mut next) =
            self.work(self.turns.first(), 0, move |encoder| sizes(encoder, &all, most)).await?;
        let mut rows = Vec::with_capacity(pictures.len() * self.dim());
        for (i, (picture, pixels)) in pictures.into_iter().zip(sizes?).enumerate() {
            let cost = pixels.saturating_add(PASS);
            let (row, after) = self.work(next, cost, move |encoder| encoder.encode(&picture)).await?;
            rows.extend(row.map_err(|reason| refusal(i, &reason))?);
            next = after;
        }
        Ok(rows)
    }

    /// Does some work when it is this request's turn, and asks for its next one. The core is held until the work is done, also
    /// if nobody waits for it any more.
    async fn work<T: Send + 'static>(
        &self,
        turn: oneshot::Receiver<Turn>,
        cost: u64,
        work: impl FnOnce(&dyn PictureEncoder) -> T + Send + 'static,
    ) -> Result<(T, oneshot::Receiver<Turn>), Problem> {
        let turn = turn.await.map_err(|_| busy())?;
        let encoder = self.encoder.clone();
        let done = self.threads.run(move || {
            let done = work(&*encoder);
            (done, turn.again(cost))
        });
        done.await
    }
}

/// Pixels of each picture, if all together are not too many.
fn sizes(encoder: &dyn PictureEncoder, pictures: &[Bytes], most: u64) -> Result<Vec<u64>, Problem> {
    let (mut sizes, mut sum) = (Vec::with_capacity(pictures.len()), 0u64);
    for (i, picture) in pictures.iter().enumerate() {
        let own = encoder.pixels(picture).map_err(|reason| refusal(i, &reason))?;
        sum = sum.saturating_add(own);
        if sum > most {
            return Err(Problem::too_large(format!(
                "the pictures of a request may have {most} pixels together (limits.request_pixels), the first {} have {sum}",
                i + 1
            )));
        }
        sizes.push(own);
    }
    Ok(sizes)
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, RwLock};

    use super::*;

    /// A model that works while its gate is open, and notes the sizes of what it was given. A picture is its size.
    #[derive(Default)]
    struct Noting {
        gate: RwLock<()>,
        seen: Mutex<Vec<u64>>,
    }

    impl PictureEncoder for Noting {
        fn dim(&self) -> usize {
            1
        }

        fn pixels(&self, picture: &[u8]) -> Result<u64, String> {
            Ok(u64::from_le_bytes(picture.try_into().map_err(|_| "not a picture")?))
        }

        fn encode(&self, picture: &[u8]) -> Result<Vec<f32>, String> {
            self.seen.lock().unwrap().push(self.pixels(picture)?);
            drop(self.gate.read().unwrap());
            Ok(vec![1.0])
        }
    }

    /// On one core a request of large pictures lets one of small ones go first until that was given as many pixels.
    #[test]
    fn requests_take_turns_by_pixels() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let noting = Arc::new(Noting::default());
        let pictures = Arc::new(Pictures::on(1, noting.clone(), &Limits::default()).unwrap());
        let ask = |size: u64, count: usize| {
            let (pictures, picture) = (pictures.clone(), Bytes::copy_from_slice(&size.to_le_bytes()));
            runtime.spawn(async move { pictures.encode(vec![picture; count]).await.map(|rows| rows.len()) })
        };
        let seen = |count: usize| {
            while noting.seen.lock().unwrap().len() < count {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        let closed = noting.gate.write().unwrap();
        let large = ask(40_000_000, 2);
        seen(1);
        let small = ask(400_000, 8);
        // It waits for the only core: one of its places is taken.
        while pictures.places.available_permits() != 1 + Limits::default().picture_queue - 2 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(closed);
        let rows = runtime.block_on(async { (large.await.unwrap(), small.await.unwrap()) });
        assert!(matches!(rows, (Ok(2), Ok(8))));
        let seen = noting.seen.lock().unwrap();
        let last = seen.iter().rposition(|size| *size == 40_000_000).unwrap();
        assert_eq!(last, 9, "the second large picture comes last: {seen:?}");
    }
}
