//! When an update comes, and when the evidence begins to learn and to speak.
//!
//! In a group all of it goes by the group's samples, as on one machine that sees them all. A member counts its own samples and
//! knows the group's *tempo*: how many samples of the group come on one of its own. So of three members alike each waits
//! for a third of the samples that one machine would wait for.

use super::UlTta;

/// An update comes after this share of the samples that the evidence has seen, at least `advanced.update_every`: updates become
/// rarer as there is more evidence, because each then changes less. Evidence that was dropped starts again.
const UPDATE_SHARE: u64 = 8;

/// Most samples between two updates: as many, or a 16th of a half-life if that is more, because evidence that lasts longer changes
/// less; and at most half a half-life, because what was learnt must not wait while the stream goes on.
const UPDATE_MOST: u64 = 1024;
const UPDATES_PER_HALF_LIFE: u64 = 16;

/// In a group as out of it a fit looks at this many samples at least, but for settings that ask for fewer.
const FEWEST_SCORED: usize = 64;

impl UlTta {
    /// Samples of the group on one of its own; 1 outside of a group.
    pub(super) fn tempo(&self) -> f64 {
        self.shared.as_ref().map_or(1.0, |shared| shared.tempo())
    }

    /// Samples of the group, counted in own ones.
    fn in_own(&self, samples: u64) -> u64 {
        (samples as f64 / self.tempo()).ceil() as u64
    }

    /// Samples before the evidence learns.
    pub(super) fn warm_up(&self) -> u64 {
        self.in_own(self.config.advanced.gate_warm_up)
    }

    /// Samples that must have been scored before the scale of the image scores is fitted. Of few a fit tells little, whoever else
    /// there is.
    pub(super) fn least_scored(&self) -> usize {
        let least = self.config.advanced.scale_min_rows;
        (self.in_own(least as u64) as usize).max(FEWEST_SCORED.min(least))
    }

    /// Whether an update follows the sample: by count, or by time where times are given.
    pub(super) fn update_is_due(&mut self, counts: bool, time: Option<f64>) -> bool {
        let seconds = self.config.advanced.update_seconds;
        let by_time = match (time, self.updated_at) {
            (Some(now), Some(last)) => seconds > 0.0 && self.since_update > 0 && now - last >= seconds,
            _ => false,
        };
        let (most, samples) = match &self.evidence {
            Some(evidence) => {
                let half_life = evidence.half_life() as u64;
                (UPDATE_MOST.max(half_life / UPDATES_PER_HALF_LIFE).min(half_life / 2), evidence.samples())
            }
            None => (UPDATE_MOST, self.seen),
        };
        let enough = self.in_own(self.config.advanced.update_every).max(most.min(samples / UPDATE_SHARE));
        let due = (counts && self.since_update >= enough) || by_time;
        if due || self.updated_at.is_none() {
            self.updated_at = time.or(self.updated_at);
        }
        due
    }
}
