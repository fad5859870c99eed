//! The seam to an image model: bytes of a picture in, a feature row out.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::Semaphore;

use crate::problem::Problem;

/// Turns pictures into features. The command line passes one in when a model is loaded.
pub trait PictureEncoder: Send + Sync {
    /// Length of a feature row.
    fn dim(&self) -> usize;

    /// One unit row per picture, in order, all rows one after another. Pictures are whole files (JPEG, PNG, …);
    /// an error says which picture is wrong and why.
    fn encode(&self, pictures: &[&[u8]]) -> Result<Vec<f32>, PictureError>;
}

/// A picture that cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("picture {index}: {reason}")]
pub struct PictureError {
    /// Which of the pictures.
    pub index: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// An image model that encodes for as many requests at once as there are cores. Some more may wait; what they hold in
/// memory is bounded with them.
pub struct Pictures {
    encoder: Arc<dyn PictureEncoder>,
    places: Arc<Semaphore>,
    cores: Arc<Semaphore>,
}

impl Pictures {
    pub fn new(encoder: Arc<dyn PictureEncoder>, queue: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            encoder,
            places: Arc::new(Semaphore::new(cores + queue.min(Semaphore::MAX_PERMITS - cores))),
            cores: Arc::new(Semaphore::new(cores)),
        }
    }

    /// Length of a feature row.
    pub fn dim(&self) -> usize {
        self.encoder.dim()
    }

    /// One row per picture, when it is this request's turn.
    pub async fn encode(&self, pictures: Vec<Bytes>) -> Result<Vec<f32>, Problem> {
        let busy = || Problem::busy("too many pictures wait for the image model already; try again");
        let place = self.places.clone().try_acquire_owned().map_err(|_| busy())?;
        let core = self.cores.clone().acquire_owned().await.map_err(|_| busy())?;
        let encoder = self.encoder.clone();
        let encoded = tokio::task::spawn_blocking(move || {
            // Held to the end, also if nobody waits for the answer any more.
            let _turn = (place, core);
            let views: Vec<&[u8]> = pictures.iter().map(|p| &p[..]).collect();
            encoder.encode(&views)
        });
        encoded
            .await
            .map_err(|_| Problem::invalid("the image model failed on this picture"))?
            .map_err(|e| Problem::invalid(e.to_string()))
    }
}
