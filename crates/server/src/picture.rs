//! The seam to an image model: bytes of a picture in, a feature row out.

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
