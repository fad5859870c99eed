//! Evaluation of methods that need the pictures themselves: what they read, what a run asks of them, what it costs.
//!
//! This crate knows neither pictures nor models: [`Pictures`] gives a dataset's preprocessed pictures,
//! [`PictureMethod`] starts a method on them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use ultta::{Card, Head, Prediction, Result, Scores};

/// The pictures behind a dataset's rows.
pub trait Pictures: Send + Sync {
    /// Preprocessed pictures of some rows, one after another.
    fn read(&self, rows: &[usize]) -> Result<Vec<f32>>;

    /// What encoding them cost.
    fn encoding(&self) -> Encoding;

    /// A small picture of a row for people, a JPEG as base64; `None` if there is none to show.
    fn thumbnail(&self, _row: usize) -> Option<String> {
        None
    }
}

/// What it costs to encode one picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    /// Operations of the image tower.
    pub flops: f64,
    /// Seconds.
    pub seconds: f64,
    /// Most memory held while encoding, in bytes; 0 where the system does not tell.
    pub peak_bytes: u64,
}

/// A method with the model inside, and its settings.
pub trait PictureMethod: Send + Sync {
    /// Name, paper, read-out order.
    fn card(&self) -> &'static Card;

    /// Pictures of a step where the protocol leaves it open.
    fn batch(&self) -> usize;

    /// Everything that decides the method's answers, as TOML.
    fn settings(&self) -> String;

    /// A fresh start under a head.
    fn start(&self, head: &Arc<Head>) -> Result<Box<dyn PictureSession>>;
}

/// A method at work on one stream.
pub trait PictureSession {
    /// Answers preprocessed pictures, beside the frozen model's logits, and learns from them.
    fn step(&mut self, pixels: &[f32], zero_shot: &Scores) -> Result<Prediction>;

    /// What steps have cost so far.
    fn cost(&self) -> Cost;

    /// The largest distance of the changed parameters from their start, relative to their norm.
    fn max_movement(&self) -> f64;
}

/// What a method costs per picture, counted, not timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Numbers of the model (or prompt) that the method may change.
    pub parameters: usize,
    /// Pictures and views through the image tower, per picture.
    pub forwards: f64,
    /// Pictures and views backward through it, per picture.
    pub backwards: f64,
    /// Texts through the text tower, forward and backward, per picture.
    pub texts: f64,
    /// Operations per picture; `None` where they are not known.
    pub flops: Option<f64>,
    /// Steps of the optimiser in all.
    pub updates: u64,
    /// Steps left out because a gradient was not finite.
    pub skipped: u64,
    /// Times the method went back to the start by itself.
    pub resets: u64,
}

/// Largest resident size of this process since the last [`reset_peak`], in bytes; `None` where the system does not
/// tell.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// Begins a new measurement of the peak.
pub fn reset_peak() {
    // Only Linux can; elsewhere `peak_bytes` is `None`.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
