//! Lever 1: prototypes t_c between their text anchor μ_c and the images that taught them. With N_c the
//! responsibilities and S_c the responsibility-weighted sum of admitted images,
//!
//! ```text
//! t̃_c = normalise((α μ_c + S_c) / (α + N_c + ε))
//! t_c ← normalise(clip((1 − η) t_c + η t̃_c))        clip: ‖t_c − μ_c‖ ≤ ρ
//! ```
//!
//! The text leaves open whether t̃ is normalised before it is interpolated; here it is normalised, then interpolated,
//! clipped, and normalised again.

use std::sync::Arc;

use super::config::PrototypesConfig;
use crate::kernels::{accumulate, products};
use crate::methods::checked::{checked_counts, checked_sums};
use crate::{Head, Result, State};

#[derive(Clone, Debug)]
pub(super) struct Prototypes {
    config: PrototypesConfig,
    head: Arc<Head>,
    /// t_c.
    prototypes: Vec<f32>,
    /// N_c and S_c.
    class_n: Vec<f64>,
    class_sum: Vec<f64>,
}

impl Prototypes {
    pub(super) fn new(config: &PrototypesConfig, head: &Arc<Head>) -> Self {
        Self {
            config: config.clone(),
            prototypes: head.prototypes().to_vec(),
            class_n: vec![0.0; head.n_classes()],
            class_sum: vec![0.0; head.n_classes() * head.dim()],
            head: head.clone(),
        }
    }

    /// Writes s⟨z, t_c⟩ of some rows.
    pub(super) fn scores(&self, rows: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(rows.len() / self.head.dim() * self.head.n_classes(), 0.0);
        products(rows, &self.prototypes, self.head.dim(), self.head.logit_scale(), out);
    }

    /// Lets an admitted sample teach a class.
    pub(super) fn teach(&mut self, class: usize, responsibility: f64, z: &[f32]) {
        let dim = self.head.dim();
        self.class_n[class] += responsibility;
        accumulate(&mut self.class_sum[class * dim..][..dim], responsibility, z);
    }

    /// Moves the prototypes; α and η come from the schedule.
    pub(super) fn update(&mut self, alpha: f64, eta: f64) {
        let dim = self.head.dim();
        let mut moved = vec![0.0f64; dim];
        for (c, t) in self.prototypes.chunks_mut(dim).enumerate() {
            let anchor = self.head.prototype(c);
            let sum = &self.class_sum[c * dim..][..dim];
            let total = alpha + self.class_n[c] + self.config.epsilon;
            for i in 0..dim {
                moved[i] = (alpha * anchor[i] as f64 + sum[i]) / total;
            }
            if !normalise(&mut moved) {
                continue;
            }
            for i in 0..dim {
                moved[i] = (1.0 - eta) * t[i] as f64 + eta * moved[i];
            }
            let distance = moved.iter().zip(anchor).map(|(m, &a)| (m - a as f64).powi(2)).sum::<f64>().sqrt();
            if distance > self.config.rho {
                let share = self.config.rho / distance;
                for i in 0..dim {
                    moved[i] = anchor[i] as f64 + share * (moved[i] - anchor[i] as f64);
                }
            }
            if normalise(&mut moved) {
                for i in 0..dim {
                    t[i] = moved[i] as f32;
                }
            }
        }
    }

    /// ‖t_c − μ_c‖ per class.
    pub(super) fn movements(&self) -> Vec<f64> {
        let dim = self.head.dim();
        self.prototypes
            .chunks(dim)
            .zip(self.head.prototypes().chunks(dim))
            .map(|(t, a)| t.iter().zip(a).map(|(&t, &a)| (t as f64 - a as f64).powi(2)).sum::<f64>().sqrt())
            .collect()
    }

    /// N_c.
    pub(super) fn counts(&self) -> &[f64] {
        &self.class_n
    }

    pub(super) fn bytes(&self) -> usize {
        self.prototypes.len() * 12 + self.class_n.len() * 8
    }

    /// Saves what two sessions may add. `compact` rounds the class sums to 8 bits around 128, one scale per class.
    pub(super) fn save_evidence(&self, state: &mut State, compact: bool) {
        state.put("evidence.class_n", &self.class_n);
        if !compact {
            state.put("evidence.class_sum", &self.class_sum);
            return;
        }
        let mut rounded = Vec::with_capacity(self.class_sum.len());
        let mut scales = Vec::with_capacity(self.class_n.len());
        for row in self.class_sum.chunks(self.head.dim()) {
            let scale = row.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0;
            let round = |v: &f64| if scale > 0.0 { (128.0 + v / scale).round() as u8 } else { 128 };
            rounded.extend(row.iter().map(round));
            scales.push(scale);
        }
        state.put("evidence.rounded", &rounded);
        state.put("evidence.rounded_scale", &scales);
    }

    pub(super) fn load_evidence(&mut self, state: &State) -> Result<()> {
        self.class_n = checked_counts("evidence.class_n", state, self.class_n.len())?;
        self.class_sum = if state.has("evidence.rounded") {
            let rounded = state.get_n::<u8>("evidence.rounded", self.class_sum.len())?;
            let scales = state.get_n::<f64>("evidence.rounded_scale", self.class_n.len())?;
            let dim = self.head.dim();
            rounded.iter().enumerate().map(|(i, &q)| (q as f64 - 128.0) * scales[i / dim]).collect()
        } else {
            state.get_n::<f64>("evidence.class_sum", self.class_sum.len())?.to_vec()
        };
        checked_sums("evidence.class_sum", &self.class_sum, &self.class_n)?;
        self.prototypes.copy_from_slice(self.head.prototypes());
        Ok(())
    }

    pub(super) fn save_local(&self, state: &mut State) {
        state.put("local.prototypes", &self.prototypes);
    }

    pub(super) fn load_local(&mut self, state: &State) -> Result<()> {
        let len = self.prototypes.len();
        self.prototypes = state.within::<f32>("local.prototypes", len, -1.001..=1.001)?.to_vec();
        Ok(())
    }
}

/// Scales to unit length; `false` for a vector without a direction.
fn normalise(v: &mut [f64]) -> bool {
    let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
    if norm < 1e-12 || !norm.is_finite() {
        return false;
    }
    v.iter_mut().for_each(|x| *x /= norm);
    true
}
