//! What labels say of how often each class occurs.
//!
//! A label tells that its class occurs. With n_c labels of class c, n in all, and some samples that every class is taken to
//! have had *before*, class c is
//!
//! ```text
//! ratio_c = C (n_c + before) / (n + before · C)
//! ```
//!
//! times as frequent as an even share. But labels need not be a fair draw of the stream: who labels what looks wrong labels
//! what is hard. So ratios enter the logits by weights that they have to earn, one for each number of [`BEFORE`]:
//!
//! ```text
//! lead_c = log(w_even + Σ_before w_before · ratio_c)        w = softmax(HEAD_START, told + record)
//! ```
//!
//! less the same of a class without labels. *told* is how likely the labels are by their own counts, each by those before it,
//! Σ log ratio; it is bounded. The *record* is the decayed sum of log Σ_c q_c · ratio_c over the samples since, with q the frozen
//! posterior: how well the labels foretold the stream. On a stream where all classes are about as frequent it falls, whatever
//! was labelled.

use crate::{Result, State};

/// Samples that every class is taken to have had.
const BEFORE: [f64; 2] = [1.0, 0.1];

/// Head start, in nats, of an even share.
const HEAD_START: f64 = 1.0;

/// The most that labels can say for themselves, or against.
const MOST_TOLD: f64 = 3.0;

/// How slowly a record fades, per sample.
const DECAY: f64 = 0.985;

/// Added to what was foretold, so that its logarithm is finite.
const LEAST_FORETOLD: f64 = 1e-6;

/// A state file with a larger record is refused: a record that fades by `DECAY` per sample stays far below this.
const LARGEST_RECORD: f64 = 1e4;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LabelPrior {
    classes: f64,
    /// The classes that have labels, with their number; and all labels.
    counts: Vec<(u32, u32)>,
    total: f64,
    told: [f64; BEFORE.len()],
    records: [f64; BEFORE.len()],
    /// The lead of the classes that have labels.
    lead: Vec<(u32, f32)>,
}

impl LabelPrior {
    /// What is added to the logits of classes that have labels.
    pub(super) fn lead(&self) -> &[(u32, f32)] {
        &self.lead
    }

    /// Counts the labels anew.
    pub(super) fn count(&mut self, labels: impl Iterator<Item = u32>, classes: usize) {
        let mut all: Vec<u32> = labels.collect();
        all.sort_unstable();
        (self.classes, self.total) = (classes as f64, all.len() as f64);
        self.counts = all.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect();
        self.told = BEFORE.map(|before| self.likelihood(before).clamp(-MOST_TOLD, MOST_TOLD));
        self.weigh();
    }

    /// The ratio of a class with n labels, when there are `total`.
    fn ratio(&self, n: f64, total: f64, before: f64) -> f64 {
        self.classes * (n + before) / (total + before * self.classes)
    }

    /// Σ log ratio of the labels, each by those before it; their order does not matter.
    fn likelihood(&self, before: f64) -> f64 {
        let of_class = |&(_, n): &(u32, u32)| (0..n).map(|i| (f64::from(i) + before).ln()).sum::<f64>();
        let even = |i: u32| (self.classes / (f64::from(i) + before * self.classes)).ln();
        self.counts.iter().map(of_class).sum::<f64>() + (0..self.total as u32).map(even).sum::<f64>()
    }

    /// Takes in how the frozen model reads a sample: `text` is exp(logit − best), `best` the probability of the best class.
    pub(super) fn foretell(&mut self, text: &[f32], best: f32) {
        if self.counts.is_empty() {
            return;
        }
        for (i, before) in BEFORE.into_iter().enumerate() {
            let none = self.ratio(0.0, self.total, before);
            let ahead = |&(c, n): &(u32, u32)| {
                f64::from(text[c as usize] * best) * (self.ratio(f64::from(n), self.total, before) - none)
            };
            let foretold = none + self.counts.iter().map(ahead).sum::<f64>();
            self.records[i] = DECAY * self.records[i] + (foretold.max(0.0) + LEAST_FORETOLD).ln();
        }
        self.weigh();
    }

    /// The leads from counts and records.
    fn weigh(&mut self) {
        let most = self.told.iter().zip(&self.records).map(|(t, r)| t + r).fold(HEAD_START, f64::max);
        let even = (HEAD_START - most).exp();
        let weights: [f64; BEFORE.len()] =
            std::array::from_fn(|i| (self.told[i] + self.records[i] - most).exp());
        let log_mixed = |n: f64| {
            let mixed = BEFORE.iter().zip(weights).map(|(a, w)| w * self.ratio(n, self.total, *a));
            (even + mixed.sum::<f64>()).ln()
        };
        let none = log_mixed(0.0);
        // Most classes have as many labels as another one.
        let mut last = (0, 0.0);
        let lead = |&(c, n): &(u32, u32)| {
            if n != last.0 {
                last = (n, (log_mixed(f64::from(n)) - none) as f32);
            }
            (c, last.1)
        };
        self.lead = self.counts.iter().map(lead).collect();
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("local.given.records", &self.records);
    }

    /// Reads the records; the labels are counted after.
    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        // States of earlier builds have none.
        if state.has("local.given.records") {
            let bounds = -LARGEST_RECORD..=LARGEST_RECORD;
            let records = state.within::<f64>("local.given.records", BEFORE.len(), bounds)?;
            self.records.copy_from_slice(records);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lead of class 0 after labels, and samples that the frozen model reads as one class each.
    fn lead(labels: &[u32], samples: impl Iterator<Item = usize>) -> f32 {
        let mut prior = LabelPrior::default();
        prior.count(labels.iter().copied(), 10);
        for class in samples {
            let mut text = [0.02; 10];
            text[class] = 1.0;
            prior.foretell(&text, 1.0 / 1.18);
        }
        prior.lead()[0].1
    }

    #[test]
    fn labels_lead_where_the_stream_bears_them_out() {
        let (two, borne_out) = ([0, 1], lead(&[0, 1], (0..60).map(|i| i % 2)));
        assert!(borne_out > 1.0, "{borne_out}");
        let even = lead(&two, (0..60).map(|i| i % 10));
        assert!(even.abs() < 0.1, "{even}");
        let others = lead(&two, (0..60).map(|i| 2 + i % 8));
        assert!(others.abs() < 0.01, "{others}");
        let often = lead(&[0, 0, 0, 1, 1, 1], std::iter::empty());
        assert!(often > 0.5, "labels that repeat a few classes say so themselves: {often}");
    }

    #[test]
    fn as_many_labels_of_every_class_say_nothing() {
        let all: Vec<u32> = (0..10).chain(0..10).collect();
        let mut prior = LabelPrior::default();
        prior.count(all.into_iter(), 10);
        let leads: Vec<f32> = prior.lead().iter().map(|lead| lead.1).collect();
        assert!(leads.iter().all(|lead| (lead - leads[0]).abs() < 1e-6), "{leads:?}");
    }
}
