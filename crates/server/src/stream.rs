//! One stream, as requests see it: samples go into its queue, reads are answered from its board.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use ultta::{Config, Head, Scores};

use crate::board::{Board, Status};
use crate::clock::Clock;
use crate::job::{Answers, Classify, Extent, Feedback, Job, Outcomes, Reply};
use crate::metrics::Stages;
use crate::owner::Owner;
use crate::parts;
use crate::problem::Problem;
use crate::room::Share;
use crate::samples::Samples;
use crate::settings::Durability;
use crate::shadow::Shadows;
use crate::store::{Folder, Meta};
use crate::verdict::Verdict;

/// Reads that take more multiplications than this leave the threads that serve requests.
const HEAVY: usize = 16 << 20;

/// Views of a row, at most: their scores are held while the row is answered.
const MOST_VIEWS: usize = 256;

/// Scores that a waiting request may carry.
const MOST_CELLS: usize = 1 << 20;

/// What is wrong with a stream whose thread has ended.
pub const ENDED: &str = "its thread has ended; restart the server";

/// What is said of a stream while it is deleted. Nothing is wrong with it.
pub const LEAVING: &str = "it is being deleted";

/// Requests of much work at once: one per core.
static TURNS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)));

/// A stream, as requests see it.
pub struct Stream {
    pub name: String,
    pub head: Arc<Head>,
    pub digest: String,
    pub config: Config,
    pub meta: Meta,
    pub durability: Durability,
    pub board: Arc<Board>,
    pub stages: Stages,
    pub shadows: Shadows,
    pub folder: Folder,
    /// Log records that were replayed when it was opened.
    pub recovered_records: u64,
    /// Bytes of broken log that were cut off then.
    pub dropped_bytes: u64,
    /// Of a shadow: samples that it was not shown.
    pub missed: Arc<AtomicU64>,
    /// Whether it is being deleted.
    pub leaving: AtomicBool,
    pub queue: mpsc::Sender<Job>,
    pub clock: Clock,
}

/// What the rows of a request may be.
#[derive(Clone, Copy)]
pub struct Size {
    pub dim: usize,
    pub most_rows: usize,
}

impl Size {
    /// Refuses too many rows, or rows of the wrong length, before work goes into them.
    pub fn check(self, rows: usize, dim: usize) -> Result<(), Problem> {
        let Self { dim: expected, most_rows } = self;
        if rows > most_rows {
            return Err(Problem::too_large(format!("a request may have {most_rows} rows, got {rows}")));
        }
        if dim != expected {
            return Err(ultta::Error::Shape { what: ultta::What::Dimension, expected, got: dim }.into());
        }
        Ok(())
    }
}

/// Refuses more views of a row than can be held at once.
pub fn check_views(views: usize) -> Result<(), Problem> {
    if views > MOST_VIEWS {
        return Err(Problem::too_large(format!("a row may have {MOST_VIEWS} views, got {views}")));
    }
    Ok(())
}

impl Stream {
    /// Refuses samples that cannot be shown to this stream: the last check, before they queue.
    pub fn check(&self, samples: &Samples, most_rows: usize) -> Result<(), Problem> {
        self.size(most_rows).check(samples.len(), samples.features().dim())?;
        check_views(samples.views().and_then(|views| views.counts.iter().copied().max()).unwrap_or(0))?;
        Ok(samples.input(None, false).check(&self.head, self.config.method.card())?)
    }

    /// What the rows of a request may be.
    pub fn size(&self, most_rows: usize) -> Size {
        Size { dim: self.head.dim(), most_rows }
    }

    /// Answers samples and learns from them, in arrival order. They hold their room until they are learnt.
    pub async fn classify(
        &self,
        samples: Samples,
        extent: Extent,
        arrived: Instant,
        held: Option<Arc<Share>>,
    ) -> Result<Answers, Problem> {
        let place = self.queue.try_reserve().map_err(|e| self.refusal(e))?;
        let answers = self.send(place, samples, extent, arrived, held).await?;
        self.answer(answers).await
    }

    /// Submits samples, waiting for a place in the queue. [`answer`](Self::answer) is called later, so that many requests can
    /// be under way.
    pub async fn submit(
        &self,
        samples: Samples,
        extent: Extent,
        held: Arc<Share>,
    ) -> Result<oneshot::Receiver<Result<Answers, Problem>>, Problem> {
        let place = self.queue.reserve().await.map_err(|_| self.gone())?;
        self.send(place, samples, extent, Instant::now(), Some(held)).await
    }

    async fn send(
        &self,
        place: mpsc::Permit<'_, Job>,
        samples: Samples,
        extent: Extent,
        arrived: Instant,
        held: Option<Arc<Share>>,
    ) -> Result<oneshot::Receiver<Result<Answers, Problem>>, Problem> {
        let (samples, zero_shot) = self.score(samples).await?;
        let (reply, answers) = oneshot::channel();
        let reply = Reply::Caller(reply);
        place.send(Job::Classify(Classify { samples, zero_shot, extent, arrived, reply, _held: held }));
        Ok(answers)
    }

    /// What the owner replies. A request that took its place in the queue before the owner ended, and filled it
    /// after, is never seen.
    pub async fn answer<T>(&self, mut reply: oneshot::Receiver<Result<T, Problem>>) -> Result<T, Problem> {
        tokio::select! {
            biased;
            answer = &mut reply => answer.unwrap_or_else(|_| Err(self.gone())),
            () = self.queue.closed() => reply.try_recv().unwrap_or_else(|_| Err(self.gone())),
        }
    }

    /// The frozen model's scores of many rows, so that the owner need not compute them: requests are scored at
    /// once, and only learning waits its turn. Few rows are scored faster together with others', by the owner.
    async fn score(&self, samples: Samples) -> Result<(Samples, Option<Scores>), Problem> {
        let cells = samples.len() * self.head.n_classes();
        if cells * self.head.dim() <= HEAVY || cells > MOST_CELLS {
            return Ok((samples, None));
        }
        let turn = self.turn().await?;
        let head = self.head.clone();
        let score = move || {
            let scores = head.zero_shot(samples.features());
            drop(turn);
            (samples, scores)
        };
        let (samples, scores) = tokio::task::spawn_blocking(score).await.map_err(|_| self.gone())?;
        Ok((samples, Some(scores?)))
    }

    /// Answers samples from the published state. Never waits for learning.
    pub async fn predict(&self, samples: Samples, extent: Extent) -> Result<Answers, Problem> {
        let (session, generation) = self.published();
        let work = samples.len() * self.head.n_classes() * self.head.dim();
        let answer = move || -> Result<Answers, Problem> {
            Ok(parts::predict(&session, &samples, None, extent, generation)?)
        };
        if work <= HEAVY {
            return answer();
        }
        // The turn ends with the work, not with the client: what was begun holds memory until it is done, what waits for its
        // turn is given up with its request.
        let turn = self.turn().await?;
        let answer = move || {
            let answers = answer();
            drop(turn);
            answers
        };
        tokio::task::spawn_blocking(answer).await.map_err(|_| self.gone())?
    }

    /// A turn at work that takes much of a core or of memory.
    pub async fn turn(&self) -> Result<SemaphorePermit<'static>, Problem> {
        TURNS.acquire().await.map_err(|_| self.gone())
    }

    /// The published session; if it is behind, a newer one is on its way after this.
    pub fn published(&self) -> (Arc<ultta::Session>, u64) {
        let published = self.board.session();
        if published.stale && self.queue.try_send(Job::Publish).is_err() {
            self.board.withdraw_request();
        }
        (published.session, published.generation)
    }

    /// Hands delayed labels on.
    pub async fn feedback(
        &self,
        labels: Vec<(u64, usize)>,
        generation: Option<u64>,
        held: Option<Arc<Share>>,
    ) -> Result<Outcomes, Problem> {
        let (reply, outcomes) = oneshot::channel();
        let job = Feedback { labels, generation, source: None, _held: held, reply: Some(reply) };
        self.enqueue(Job::Feedback(job))?;
        self.answer(outcomes).await
    }

    /// Has the owner do something between two blocks.
    pub async fn control<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Owner) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, done) = oneshot::channel();
        let job = Job::Control(Box::new(move |owner| {
            let _ = reply.send(work(owner));
        }));
        self.queue.send(job).await.map_err(|_| self.gone())?;
        self.answer(done).await
    }

    /// Where the stream stands: what its owner says, or that the owner has ended. Every call, the metrics and the
    /// page take it from here.
    pub fn status(&self) -> Status {
        let mut status = self.board.status(self.clock.now());
        if self.queue.is_closed() {
            let leaving = self.leaving.load(Ordering::Acquire);
            status.degraded = Some(if leaving { LEAVING } else { ENDED }.into());
        }
        status
    }

    /// The verdict on the stream.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.status(), &self.board.alarms())
    }

    /// Why nothing is learnt, if so.
    pub fn degraded(&self) -> Option<String> {
        self.status().degraded
    }

    /// What is wrong with the stream, if anything is: it cannot learn, or something was lost on its disk.
    pub fn trouble(&self) -> Option<String> {
        trouble(self.status())
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    fn enqueue(&self, job: Job) -> Result<(), Problem> {
        self.queue.try_send(job).map_err(|e| self.refusal(e))
    }

    fn refusal<T>(&self, error: mpsc::error::TrySendError<T>) -> Problem {
        match error {
            mpsc::error::TrySendError::Full(_) => Problem::busy(format!(
                "{} requests wait for stream {:?} already; try again",
                self.queue.max_capacity(),
                self.name
            )),
            mpsc::error::TrySendError::Closed(_) => self.gone(),
        }
    }

    fn gone(&self) -> Problem {
        Problem::unavailable(format!("stream {:?} has ended", self.name))
    }

    /// Has the owner write the state and end.
    pub async fn stop(&self) {
        let (reply, done) = oneshot::channel();
        if self.queue.send(Job::Stop(reply)).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// All that is wrong: one trouble does not hide the other.
fn trouble(status: Status) -> Option<String> {
    let degraded = status.degraded.filter(|reason| reason != LEAVING);
    let troubles: Vec<String> = degraded.into_iter().chain(status.damage).collect();
    (!troubles.is_empty()).then(|| troubles.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::tests::status;

    #[test]
    fn one_trouble_does_not_hide_the_other() {
        let told = |degraded: Option<&str>, damage: Option<&str>| {
            trouble(Status { degraded: degraded.map(Into::into), damage: damage.map(Into::into), ..status() })
        };
        assert_eq!(told(None, None), None);
        assert_eq!(told(Some(LEAVING), None), None, "nothing is wrong with it");
        assert_eq!(told(Some("full"), None).as_deref(), Some("full"));
        assert_eq!(told(Some("full"), Some("a record is lost")).as_deref(), Some("full; a record is lost"));
    }
}
