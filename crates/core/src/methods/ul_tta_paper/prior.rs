//! Lever 2: the class prior π, the mean of a Dirichlet posterior over the responsibilities of admitted samples,
//!
//! ```text
//! π_c = (γ C π⁰_c + N_c) / (γ C + Σ N)      under KL(π‖π⁰) ≤ κ
//! ```
//!
//! The text takes "the smallest λ" of λ π + (1 − λ) π⁰ that satisfies the cap, which is always 0; here it is the
//! largest.

use super::config::PriorConfig;
use crate::methods::checked::checked_counts;
use crate::methods::kl::{cap_kl, kl};
use crate::{Result, State};

#[derive(Clone, Debug)]
pub(super) struct Prior {
    frozen: bool,
    /// π⁰.
    start: Vec<f64>,
    /// N_c.
    counts: Vec<f64>,
    /// log(C π_c), as of the last update.
    log_ratio: Vec<f32>,
    /// KL(π‖π⁰), as of the last update.
    kl: f64,
}

impl Prior {
    pub(super) fn new(config: &PriorConfig, classes: usize) -> Self {
        let even = || vec![1.0 / classes as f64; classes];
        let start = if config.start.is_empty() { even() } else { config.start.clone() };
        Self {
            frozen: config.frozen,
            counts: vec![0.0; classes],
            log_ratio: start.iter().map(|p| ((p * classes as f64) as f32).ln()).collect(),
            start,
            kl: 0.0,
        }
    }

    /// log(C π_c).
    pub(super) fn log_ratio(&self) -> &[f32] {
        &self.log_ratio
    }

    pub(super) fn kl(&self) -> f64 {
        self.kl
    }

    /// Counts the responsibility of an admitted sample for a class.
    pub(super) fn count(&mut self, class: usize, responsibility: f64) {
        if !self.frozen {
            self.counts[class] += responsibility;
        }
    }

    /// Moves π; γ and κ come from the schedule.
    pub(super) fn update(&mut self, gamma: f64, kappa: f64) {
        if self.frozen {
            return;
        }
        let classes = self.start.len() as f64;
        let gamma = gamma * classes;
        let total: f64 = gamma + self.counts.iter().sum::<f64>();
        let mut pi: Vec<f64> =
            self.counts.iter().zip(&self.start).map(|(n, p)| (gamma * p + n) / total).collect();
        cap_kl(&mut pi, &self.start, kappa);
        self.kl = kl(&pi, &self.start);
        for (l, p) in self.log_ratio.iter_mut().zip(&pi) {
            *l = (p * classes).ln() as f32;
        }
    }

    /// π.
    pub(super) fn current(&self) -> Vec<f64> {
        if self.frozen {
            return self.start.clone();
        }
        let classes = self.start.len() as f64;
        self.log_ratio.iter().map(|&l| (l as f64).exp() / classes).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.start.len() * (8 + 8 + 4)
    }

    pub(super) fn save_evidence(&self, state: &mut State) {
        if !self.frozen {
            state.put("evidence.prior", &self.counts);
        }
    }

    pub(super) fn load_evidence(&mut self, state: &State) -> Result<()> {
        if !self.frozen {
            self.counts = checked_counts("evidence.prior", state, self.counts.len())?;
        }
        Ok(())
    }

    pub(super) fn save_local(&self, state: &mut State) {
        if !self.frozen {
            state.put("local.prior.kl", &[self.kl]);
            state.put("local.prior.log_ratio", &self.log_ratio);
        }
    }

    pub(super) fn load_local(&mut self, state: &State) -> Result<()> {
        if !self.frozen {
            self.kl = checked_counts("local.prior.kl", state, 1)?[0];
            let len = self.log_ratio.len();
            self.log_ratio = state.within::<f32>("local.prior.log_ratio", len, -1e3..=1e3)?.to_vec();
        }
        Ok(())
    }
}
