//! *Doubt* of the prior where there are few classes.
//!
//! A class that wins most of the time may be frequent, or the head may favour it. The background (`background.rs`) tells these
//! apart by what comes second, which says nothing with two classes and little with three: the rivals of a class are few, and
//! second place is theirs whoever is favoured. Then a biased head looks like a stream of runs, because the class that it favours
//! follows upon itself.
//!
//! So where there are few classes one more expert keeps a record. It foretells with the counts of the slowest expert as they are,
//! lifted but without the dead zone: the mix of the whole stream, head's bias and all. It has no voice of its own: its weight goes
//! to π⁰. Runs and changes foretell better than it and are believed; what lasts is not, because the head may be all that it comes from. Its
//! weight starts at 1 / (C − 1)² of what the others have.

use super::experts::Expert;

/// Up to so many classes are few.
const FEW: usize = 5;

/// The logarithm of the weight that the doubt starts with; `None` where there is none.
pub(super) fn start(classes: usize) -> Option<f64> {
    (2..=FEW).contains(&classes).then(|| -2.0 * ((classes - 1) as f64).ln())
}

/// What the mix of the whole stream, as `slowest` counted it, foretold of a sample: Σ_c q_c · π_c / π⁰_c, with q the lifted
/// frozen posterior. `text` is exp(frozen logit − best), `base` C π⁰_c.
pub(super) fn foretold(slowest: &Expert, lift: &[f32], base: &[f32], text: &[f32]) -> f64 {
    let line = slowest.as_line();
    let (mut all, mut mass, mut hit) = (0.0, 0.0, 0.0);
    for (((&count, &lift), &base), &text) in line.counts.iter().zip(lift).zip(base).zip(text) {
        let (ratio, seen) = (f64::from((line.slope * count + line.offset) * lift), f64::from(text * lift));
        all += seen;
        mass += ratio * f64::from(base);
        hit += ratio * f64::from(base) * seen;
    }
    hit / all / (mass / base.len() as f64)
}
