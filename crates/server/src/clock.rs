//! Time that never runs backwards: the wall clock at the start, and a steady clock from there on.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock for time axes and arrival times.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    unix: f64,
}

impl Clock {
    /// Starts now. What happens to the wall clock afterwards does not matter.
    pub fn new() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        Self { start: Instant::now(), unix }
    }

    /// Seconds since 1970.
    pub fn now(&self) -> f64 {
        self.unix + self.start.elapsed().as_secs_f64()
    }
}

/// Arrival times in the order of arrival: one that lies before an earlier one is lifted to it, so that a clock
/// that is set back, here or at a sender, cannot make a session's time run backwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// The latest time so far.
    pub latest: f64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { latest: f64::MIN }
    }
}

impl Arrivals {
    /// Lifts times that run backwards.
    pub fn lift(&mut self, times: &mut [f64]) {
        for time in times {
            self.latest = self.latest.max(*time);
            *time = self.latest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_never_run_backwards() {
        let mut arrivals = Arrivals::default();
        let mut times = [3.0, 1.0, 4.0];
        arrivals.lift(&mut times);
        assert_eq!(times, [3.0, 3.0, 4.0]);
        let mut later = [-7.0, 5.0];
        arrivals.lift(&mut later);
        assert_eq!(later, [4.0, 5.0]);
        let clock = Clock::new();
        assert!(clock.now() <= clock.now());
    }
}
