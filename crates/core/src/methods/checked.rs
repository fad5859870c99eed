//! Checks of the numbers in a saved state: a file may come from anywhere.

use crate::{Error, Result, State};

/// Values that count something: not negative, and not larger than what a stream can hold.
pub(crate) fn checked_counts(name: &str, state: &State, len: usize) -> Result<Vec<f64>> {
    Ok(state.within::<f64>(name, len, 0.0..=1e30)?.to_vec())
}

/// Sums of unit vectors, one sum per count: no entry of a sum can be larger than its count.
pub(crate) fn checked_sums(name: &str, sums: &[f64], counts: &[f64]) -> Result<()> {
    let dim = sums.len() / counts.len();
    let fits = sums.chunks(dim).zip(counts).all(|(sum, n)| sum.iter().all(|s| s.abs() <= 1.001 * n + 1e-6));
    if fits { Ok(()) } else { Err(Error::state(format!("{name} holds a sum longer than its count"))) }
}
