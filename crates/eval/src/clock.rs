//! Time along a run: how long steps take and, in a compute-aware protocol, which samples the method misses.

use crate::summary::Timing;

/// Times steps; in a compute-aware protocol, decides which samples the method misses.
pub(crate) struct Clock {
    compute: Option<(f64, Option<f64>)>,
    block: usize,
    steps: Vec<f64>,
    samples: usize,
    busy_until: f64,
    /// Seconds of processor time; `None` once a step did not tell.
    cpu: Option<f64>,
}

/// Processor time of this thread in seconds, where the system tells.
pub(crate) fn thread_seconds() -> Option<f64> {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

impl Clock {
    /// A clock that has timed nothing yet.
    pub fn new(compute: Option<(f64, Option<f64>)>, block: usize) -> Self {
        Self { compute, block, steps: Vec::new(), samples: 0, busy_until: 0.0, cpu: Some(0.0) }
    }

    /// Whether the method is still at work when this sample arrives.
    pub fn busy(&self, index: usize) -> bool {
        self.compute.is_some_and(|(rate, _)| (index as f64) / rate < self.busy_until)
    }

    /// Notes a step: its seconds by the clock and of the processor, its first sample, its number of rows.
    pub fn worked(&mut self, seconds: f64, cpu: Option<f64>, first: usize, rows: usize) {
        self.steps.push(seconds);
        self.cpu = self.cpu.zip(cpu).map(|(sum, own)| sum + own);
        self.samples += rows;
        if let Some((rate, cost)) = self.compute {
            let seconds = cost.map_or(seconds, |us| us * 1e-6 * rows as f64);
            self.busy_until = (first + rows - 1) as f64 / rate + seconds;
        }
    }

    /// The times of all steps.
    pub fn timing(mut self) -> Timing {
        let seconds: f64 = self.steps.iter().sum();
        self.steps.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let last = self.steps.len().saturating_sub(1);
            self.steps.get((last as f64 * q).round() as usize).copied().unwrap_or(0.0) * 1e6
        };
        Timing {
            seconds,
            samples_per_second: if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 },
            // A step over the whole stream has as many rows as that.
            rows_per_step: self.block.min(self.samples),
            step_p50_us: at(0.5),
            step_p99_us: at(0.99),
            cpu_us: self.cpu.filter(|_| self.samples > 0).map(|cpu| 1e6 * cpu / self.samples as f64),
            ..Timing::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_no_processor_time() {
        let begun = thread_seconds();
        std::thread::sleep(std::time::Duration::from_millis(60));
        let Some(own) = thread_seconds().zip(begun).map(|(end, begun)| end - begun) else { return };
        assert!((0.0..0.03).contains(&own), "{own}");
        let mut clock = Clock::new(None, 2);
        clock.worked(0.06, Some(own), 0, 2);
        let timing = clock.timing();
        assert!(timing.sample_us() < 15_000.0 && timing.samples_per_second < 34.0, "{timing:?}");
        let mut clock = Clock::new(None, 2);
        clock.worked(0.06, None, 0, 2);
        assert!((clock.timing().sample_us() - 30_000.0).abs() < 1.0, "several threads: the clock's");
    }
}
