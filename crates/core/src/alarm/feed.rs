//! [`Feed`]: notices a feed that is frozen: the same row, bit for bit, again and again. A camera that lives has noise,
//! so its rows differ even while nothing moves; a decoder or a recorder that hangs repeats itself.
//!
//! A run of k repeats is judged by the share p of repeats before it: it is told when p^k is below the promised rate.

use crate::{Result, State};

/// The shortest run that is told.
const SHORTEST: u64 = 64;

/// Rows that the share of repeats is taken to have been seen in, and repeats among them, before the stream has told.
const START: (f64, f64) = (16.0, 8.0);

/// The last row, and how often it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Feed {
    last: Vec<f32>,
    /// Id of the first row of the run.
    first_id: u64,
    /// Repeats in the run at hand.
    run: u64,
    /// Rows and repeats before the run.
    rows: u64,
    repeats: u64,
}

/// A frozen feed: the id of its first row, its repeats, and −log p^k.
pub(super) struct Frozen {
    pub first_id: u64,
    pub repeats: u64,
    pub evidence: f64,
}

impl Feed {
    /// Takes in a row; tells of a run once, when its evidence exceeds `enough`, which is asked for where a row repeats.
    pub(super) fn push(&mut self, id: u64, row: &[f32], enough: impl FnOnce() -> f64) -> Option<Frozen> {
        if self.last != row {
            self.rows += self.run + 1;
            self.repeats += self.run;
            (self.run, self.first_id) = (0, id);
            self.last.clear();
            self.last.extend_from_slice(row);
            return None;
        }
        self.run += 1;
        let (rows, repeats) = START;
        let share = (self.repeats as f64 + repeats) / (self.rows as f64 + rows);
        let evidence = |run: u64| -(run as f64) * share.min(0.999).ln();
        let enough = enough();
        let told = |run: u64| run >= SHORTEST && evidence(run) > enough;
        (told(self.run) && !told(self.run - 1)).then(|| Frozen {
            first_id: self.first_id,
            repeats: self.run,
            evidence: evidence(self.run),
        })
    }

    /// Whether the last row repeated the one before.
    pub(super) fn repeats(&self) -> bool {
        self.run > 0
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("alarm.feed.last", &self.last);
        state.put("alarm.feed.counts", &[self.first_id, self.run, self.rows, self.repeats]);
    }

    pub(super) fn load(state: &State, dim: usize) -> Result<Self> {
        let [first_id, run, rows, repeats] = state.counts("alarm.feed.counts")?;
        let len = if rows == 0 { 0 } else { dim };
        let last = state.within::<f32>("alarm.feed.last", len, -1.001..=1.001)?.to_vec();
        if repeats > rows {
            return Err(crate::Error::state("alarm.feed.counts: more repeats than rows"));
        }
        Ok(Self { last, first_id, run, rows, repeats })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_feed_is_told_once() {
        let mut feed = Feed::default();
        for id in 0..1000 {
            assert!(feed.push(id, &[id as f32, 1.0], || 14.0).is_none());
        }
        let told: Vec<_> = (1000..3000).filter_map(|id| feed.push(id, &[5.0, 5.0], || 14.0)).collect();
        assert_eq!(told.iter().map(|f| (f.first_id, f.repeats)).collect::<Vec<_>>(), [(1000, SHORTEST)]);
        assert!(feed.repeats());
        assert!(feed.push(3000, &[1.0, 2.0], || 14.0).is_none() && !feed.repeats());
    }

    #[test]
    fn where_repeats_are_common_a_run_must_be_longer() {
        let mut feed = Feed::default();
        // Every row fifty times, as a screen that is recorded.
        for id in 0..10_000u64 {
            assert!(feed.push(id, &[(id / 50) as f32], || 14.0).is_none(), "{id}");
        }
        let first = (0..2000u64).find_map(|id| feed.push(10_000 + id, &[1e6], || 14.0));
        assert!(first.is_some_and(|f| f.repeats > 500));
    }
}
