//! When an update comes.

use super::UlTta;

/// An update comes after this share of all samples seen, within the bounds of the settings: updates become rarer as
/// there is more evidence, because each then changes less.
const UPDATE_SHARE: u64 = 8;

impl UlTta {
    /// Whether an update follows the sample: by count, or by time where times are given.
    pub(super) fn update_is_due(&mut self, counts: bool, time: Option<f64>) -> bool {
        let seconds = self.config.update.seconds;
        let by_time = match (time, self.updated_at) {
            (Some(now), Some(last)) => seconds > 0.0 && self.since_update > 0 && now - last >= seconds,
            _ => false,
        };
        let most = self.config.advanced.update_every_most;
        let most = self.evidence.as_ref().map_or(most, |e| most.min(e.half_life() as u64 / 2));
        let enough = self.config.advanced.update_every.max(most.min(self.seen / UPDATE_SHARE));
        let due = (counts && self.since_update >= enough) || by_time;
        if due || self.updated_at.is_none() {
            self.updated_at = time.or(self.updated_at);
        }
        due
    }
}
