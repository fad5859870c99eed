//! [`Gate`]: which samples may teach. Thresholds are quantiles over a sliding window of recent samples.

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::scores::Summary;
use crate::window::OrderedWindow;
use crate::{Result, State};

/// Settings of the gate: a sample may teach if its entropy is low and its margin (best logit minus runner-up) is high
/// among the recent samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// `false` admits every sample after the warm-up.
    pub enabled: bool,
    /// Share of recent samples whose entropy would pass.
    pub keep: f64,
    /// Share of recent samples whose margin would pass; 0 means the same as `keep`.
    pub keep_margin: f64,
    /// Number of recent samples the quantiles are taken over.
    pub window: usize,
    /// No sample is admitted while the window holds fewer.
    pub min_fill: usize,
    /// The first samples do not teach.
    pub warm_up: u64,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self { enabled: true, keep: 0.9, keep_margin: 0.0, window: 512, min_fill: 30, warm_up: 100 }
    }
}

impl GateConfig {
    pub(crate) fn check(&self, key: &str) -> Result<()> {
        in_range(&format!("{key}.keep"), self.keep, 0.0..=1.0)?;
        in_range(&format!("{key}.keep_margin"), self.keep_margin, 0.0..=1.0)?;
        in_range(&format!("{key}.window"), self.window as f64, 1.0..=1e6)
    }
}

/// Admits a sample if its entropy is low and its margin high, compared with the samples before it.
#[derive(Clone, Debug)]
pub struct Gate {
    config: GateConfig,
    entropy: OrderedWindow,
    margin: OrderedWindow,
}

impl Gate {
    /// A gate that has seen nothing.
    pub fn new(config: &GateConfig) -> Self {
        let mut gate = Self {
            entropy: OrderedWindow::new(config.window, config.keep),
            margin: OrderedWindow::new(config.window, 1.0 - config.keep),
            config: config.clone(),
        };
        gate.aim(1.0);
        gate
    }

    /// Whether a sample may teach.
    pub fn admits(&self, sample: &Summary) -> bool {
        if !self.config.enabled {
            return true;
        }
        if self.entropy.len() < self.config.min_fill.max(1) {
            return false;
        }
        let entropy = self.entropy.quantile().unwrap_or(f32::INFINITY);
        let margin = self.margin.quantile().unwrap_or(f32::NEG_INFINITY);
        sample.entropy <= entropy && sample.margin >= margin
    }

    /// Takes a sample into the window, admitted or not.
    pub fn push(&mut self, sample: &Summary) {
        self.entropy.push(sample.entropy);
        self.margin.push(sample.margin);
    }

    /// Multiplies the share kept of the coming samples by `strictness`; 1 keeps the configured share.
    pub(crate) fn aim(&mut self, strictness: f64) {
        let margin = if self.config.keep_margin > 0.0 { self.config.keep_margin } else { self.config.keep };
        self.entropy.aim(self.config.keep * strictness);
        self.margin.aim(1.0 - margin * strictness);
    }

    /// The margins in the window, oldest first.
    pub fn margins(&self) -> Vec<f32> {
        self.margin.values()
    }

    pub(crate) fn save(&self, state: &mut State) {
        state.put("gate.entropy", &self.entropy.values());
        state.put("gate.margin", &self.margin.values());
    }

    /// Reads the window of a state: its newest samples, if it holds more than this window.
    pub(crate) fn load(&mut self, state: &State) -> Result<()> {
        let entropy = state.get::<f32>("gate.entropy")?;
        let margin = state.get_n::<f32>("gate.margin", entropy.len())?;
        entropy.iter().for_each(|&v| self.entropy.push(v));
        margin.iter().for_each(|&v| self.margin.push(v));
        Ok(())
    }

    /// Two windows, which hold each value twice.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.config.window * 2 * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_confident_half() {
        let mut gate = Gate::new(&GateConfig { keep: 0.5, min_fill: 3, window: 4, ..Default::default() });
        let sample = |entropy, margin| Summary { entropy, margin, ..Default::default() };
        assert!(!gate.admits(&sample(0.0, 9.0)), "nothing to compare with yet");
        for v in [1.0, 2.0, 3.0] {
            gate.push(&sample(v, 4.0 - v));
        }
        assert!(gate.admits(&sample(2.0, 2.0)), "exactly the median");
        assert!(!gate.admits(&sample(2.1, 2.0)), "entropy too high");
        assert!(!gate.admits(&sample(2.0, 1.9)), "margin too small");
        gate.aim(0.5);
        assert!(!gate.admits(&sample(2.0, 2.0)), "stricter");
        gate.aim(1.0);
        for _ in 0..4 {
            gate.push(&sample(0.0, 9.0));
        }
        assert!(!gate.admits(&sample(2.0, 2.0)), "old samples have left the window");
    }
}
