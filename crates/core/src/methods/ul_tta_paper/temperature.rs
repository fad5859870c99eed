//! Lever 3: two temperatures. τ_pred, at which samples are answered, minimises the entropy of the samples admitted
//! since the last update, as they were scored, and is smoothed by β. τ_cal, at which probabilities are emitted, is 1
//! until there are delayed labels.

use super::config::TemperatureConfig;
use crate::methods::recent::{Labelled, Sample};

/// Steps of the grid on which the entropy is looked at before its minimum is bisected.
const GRID: usize = 16;

/// Bisections: the bracket shrinks below the last digit.
const BISECTIONS: usize = 40;

/// τ_pred and τ_cal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Temperatures {
    pub pred: f64,
    pub cal: f64,
}

impl Default for Temperatures {
    fn default() -> Self {
        Self { pred: 1.0, cal: 1.0 }
    }
}

impl Temperatures {
    /// Moves τ_pred towards the τ of least entropy over some samples.
    pub(super) fn fit_pred(&mut self, rows: &[Sample<'_>], config: &TemperatureConfig) {
        if rows.is_empty() {
            return;
        }
        let (min, max) = (config.min, config.max);
        let point = |i: usize| min + (max - min) * i as f64 / GRID as f64;
        let at = |tau: f64| entropy(rows, tau);
        let best = (0..=GRID).min_by(|&a, &b| at(point(a)).0.total_cmp(&at(point(b)).0)).unwrap_or(GRID);
        let (mut low, mut high) = (point(best.saturating_sub(1)), point((best + 1).min(GRID)));
        for _ in 0..BISECTIONS {
            let middle = 0.5 * (low + high);
            if at(middle).1 > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        let fitted = if at(high).1 <= 0.0 { high } else { low };
        self.pred = (config.beta * self.pred + (1.0 - config.beta) * fitted).clamp(min, max);
    }

    /// Fits τ_cal to delayed labels: least negative log-likelihood, held near 1.
    pub(super) fn fit_cal(&mut self, labelled: &Labelled, strength: f64, config: &TemperatureConfig) {
        let tau_pred = self.pred as f32;
        let bounds = (config.cal_min, config.cal_max);
        self.cal = labelled.fit(self.cal, 1.0, strength, bounds, |s, x, b| {
            if config.cal_prior {
                for i in 0..x.len() {
                    x[i] = tau_pred * (s.text[i] + s.image_weight * s.image[i]) + s.prior[i];
                }
                b.fill(0.0);
            } else {
                for i in 0..x.len() {
                    x[i] = s.text[i] + s.image_weight * s.image[i];
                }
                b.copy_from_slice(s.prior);
            }
            // Every lumped class has an equal part of the lump's mass, and τ_cal multiplies the logit of one class.
            let lump = s.classes.len();
            x[lump] -= s.lump.log_classes();
            b[lump] += s.lump.log_classes();
        });
    }

    /// Whether values read from a file are possible.
    pub(super) fn is_sound(&self) -> bool {
        [self.pred, self.cal].iter().all(|tau| (1e-3..=1e3).contains(tau))
    }
}

/// Sum of the entropies of softmax(τ x + log prior) over some samples, and its derivative −Cov(ℓ, x).
fn entropy(rows: &[Sample<'_>], tau: f64) -> (f64, f64) {
    let (mut entropy, mut slope) = (0.0, 0.0);
    for s in rows {
        let n = s.classes.len();
        let x = |i: usize| s.text[i] as f64 + s.image_weight as f64 * s.image[i] as f64;
        // The lumped classes have one value each of x and of the log prior.
        let rest_x = s.lump.text as f64 - (s.lump.classes as f64).max(1.0).ln();
        let rest_b = s.lump.prior as f64 - s.lump.text as f64;
        let lump = (tau * rest_x + rest_b, rest_x, s.lump.classes as f64);
        let logits: Vec<(f64, f64, f64)> = (0..n)
            .map(|i| (tau * x(i) + s.prior[i] as f64, x(i), 1.0))
            .chain((s.lump.classes > 0.0).then_some(lump))
            .collect();
        let best = logits.iter().fold(f64::NEG_INFINITY, |m, l| m.max(l.0));
        let (mut z, mut el, mut ex, mut elx) = (0.0, 0.0, 0.0, 0.0);
        for (l, x, count) in logits {
            let p = count * (l - best).exp();
            z += p;
            el += p * (l - best);
            ex += p * x;
            elx += p * (l - best) * x;
        }
        entropy += z.ln() - el / z;
        slope -= elx / z - (el / z) * (ex / z);
    }
    (entropy, slope)
}
