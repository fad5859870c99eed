//! Open-set rejection: samples that fit no class are reported as unknown and never teach.
//!
//! No score looks at what was learnt, so adaptation cannot talk itself into accepting strangers. `max_softmax` and `energy`
//! are log-odds or log-densities of the frozen model; `cone` compares an image with the stream's own images, too.
//!
//! By *cost* (`cost = 0.05`: at most 5 % of the known are rejected) the threshold follows the stream, strangers or not.
//! Else a sample is unknown if `score < threshold + log-odds(share) − log-odds(share expected)`:
//! where unknown samples have been common lately, the threshold is higher. The share adapts slowly and moves the
//! threshold by at most `MOST_SHIFT`, because it is counted from the verdicts that the threshold gives.

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::scores::Summary;
use crate::window::OrderedWindow;
use crate::{Error, Head, Result, State};

mod cone;
mod cost;

use cone::{Cone, Scale};
use cost::{Cost, Image};

/// Which score decides that a sample is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownScore {
    /// Every sample is taken as known.
    #[default]
    Off,
    /// Log-odds of the largest zero-shot probability.
    MaxSoftmax,
    /// log Σ exp(logits) of the frozen model (the negative free energy).
    Energy,
    /// Fit to a class's text among the stream's images, and side of the stream's cone of images. The best measured.
    Cone,
}

/// Settings of open-set rejection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnknownConfig {
    /// Which score decides that a sample is unknown: `off`, `max_softmax`, `energy` or `cone`.
    pub score: UnknownScore,
    /// Share of the known samples that may be rejected, whatever the score; 0 goes by `advanced.quantile` or
    /// `advanced.threshold`.
    pub cost: f64,
    /// Settings that hardly anybody needs to change.
    pub advanced: UnknownAdvanced,
}

/// How the threshold follows the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnknownAdvanced {
    /// Fixed threshold: for `max_softmax` a probability, for `energy` a log-sum of logits. Used when `quantile` is 0.
    pub threshold: f64,
    /// Threshold at this quantile of the scores of recent samples; 0 means the fixed threshold.
    pub quantile: f64,
    /// Number of recent samples the quantile is taken over.
    pub window: usize,
    /// Share of unknown samples expected, where the threshold is fixed; by quantile it is the quantile.
    pub share: f64,
    /// Half-life, in samples, of the running share of unknown samples.
    pub share_half_life: f64,
}

impl Default for UnknownConfig {
    fn default() -> Self {
        Self { score: UnknownScore::Off, cost: 0.0, advanced: Default::default() }
    }
}

impl Default for UnknownAdvanced {
    fn default() -> Self {
        Self { threshold: 0.2, quantile: 0.0, window: 512, share: 0.1, share_half_life: 1000.0 }
    }
}

/// The running share stays within these bounds, so that it can always move back.
const SHARE_BOUNDS: (f64, f64) = (0.01, 0.9);

/// The running share moves the threshold by at most this many nats.
const MOST_SHIFT: f64 = 0.25;

/// Where the threshold is a quantile, no sample is called unknown while the window holds fewer samples.
const MIN_FILL: usize = 30;

/// Features of fewer dimensions hold little but how they fit the classes: there is no side on which strangers lie.
const MIN_DIM: usize = 64;

impl UnknownConfig {
    /// The expected share of unknown samples: at this share the threshold is not moved.
    fn expected(&self) -> f64 {
        let share = if self.advanced.quantile > 0.0 { self.advanced.quantile } else { self.advanced.share };
        share.clamp(SHARE_BOUNDS.0, SHARE_BOUNDS.1)
    }

    pub(crate) fn check(&self) -> Result<()> {
        in_range("unknown.cost", self.cost, 0.0..=0.5)?;
        in_range("unknown.advanced.quantile", self.advanced.quantile, 0.0..=1.0)?;
        if self.score == UnknownScore::Cone && self.cost == 0.0 && self.advanced.quantile == 0.0 {
            let reason = "the score \"cone\" has no fixed threshold; expected unknown.cost, such as 0.05";
            return Err(Error::config("unknown.cost", reason));
        }
        if self.score == UnknownScore::Off && self.cost > 0.0 {
            let reason = format!(
                "{} rejects nothing while unknown.score is \"off\"; expected a score (\"cone\" is the best measured)",
                self.cost
            );
            return Err(Error::config("unknown.cost", reason));
        }
        in_range("unknown.advanced.share", self.advanced.share, SHARE_BOUNDS.0..=SHARE_BOUNDS.1)?;
        in_range("unknown.advanced.share_half_life", self.advanced.share_half_life, 1.0..=1e12)?;
        in_range("unknown.advanced.window", self.advanced.window as f64, MIN_FILL as f64..=1e6)?;
        if self.score == UnknownScore::MaxSoftmax {
            in_range("unknown.advanced.threshold", self.advanced.threshold, 0.0..=1.0)?;
        }
        if !self.advanced.threshold.is_finite() {
            return Err(Error::config("unknown.advanced.threshold", "expected a finite number"));
        }
        Ok(())
    }
}

fn log_odds(p: f64) -> f64 {
    let p = p.clamp(1e-9, 1.0 - 1e-9);
    (p / (1.0 - p)).ln()
}

/// Judges samples in arrival order.
#[derive(Clone, Debug)]
pub struct Unknown {
    config: UnknownConfig,
    scores: OrderedWindow,
    /// Running share that moves the threshold: it starts where it is expected, and stays within bounds.
    share: f64,
    /// Running share of what was rejected, and over how many samples.
    rejected: f64,
    judged: u64,
    /// For the score `cone`.
    cone: Option<Box<Cone>>,
    /// Where the threshold goes by cost.
    cost: Option<Cost>,
}

/// A sample as the judge sees it.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// Summary of the frozen model's logits.
    pub frozen: &'a Summary,
    /// The frozen model's logits.
    pub logits: &'a [f32],
    /// The image's features.
    pub features: &'a [f32],
}

impl Unknown {
    pub(crate) fn new(config: &UnknownConfig, head: &Head) -> Self {
        let on = config.score != UnknownScore::Off;
        let window = if on && config.cost == 0.0 { config.advanced.window } else { 0 };
        Self {
            scores: OrderedWindow::new(window, config.advanced.quantile),
            share: config.advanced.share,
            rejected: 0.0,
            judged: 0,
            cone: (config.score == UnknownScore::Cone).then(|| Box::new(Cone::new(head))),
            cost: (on && config.cost > 0.0)
                .then(|| Cost::new(config.score != UnknownScore::Cone || head.dim() >= MIN_DIM)),
            config: config.clone(),
        }
    }

    /// Whether rejection is switched on.
    pub fn enabled(&self) -> bool {
        self.config.score != UnknownScore::Off
    }

    /// Running share of unknown samples, from 0 on.
    pub fn rejected(&self) -> f64 {
        self.rejected
    }

    /// The score of the frozen model.
    fn score(&self, frozen: &Summary) -> f64 {
        match self.config.score {
            UnknownScore::Off | UnknownScore::Cone => f64::INFINITY,
            UnknownScore::MaxSoftmax => log_odds(frozen.prob as f64),
            UnknownScore::Energy => frozen.log_sum as f64,
        }
    }

    /// Whether a sample is unknown, and its score. The running share and the window stay as they are.
    pub fn is_unknown(&self, seen: Seen<'_>) -> (bool, f32) {
        if !self.enabled() {
            return (false, 0.0);
        }
        let (score, sided) = match &self.cone {
            Some(cone) => {
                let told = cone.look(seen.features, seen.logits, seen.frozen);
                (told.score, told.sided)
            }
            None => (self.score(seen.frozen), true),
        };
        (self.below(score, sided), score as f32)
    }

    /// Whether a score is below the present threshold. `sided` if it has both its parts.
    fn below(&self, score: f64, sided: bool) -> bool {
        if let Some(cost) = &self.cost {
            return cost.threshold(sided).is_some_and(|threshold| score < threshold);
        }
        let threshold = if self.config.advanced.quantile > 0.0 {
            match self.scores.quantile() {
                Some(t) if self.scores.len() >= MIN_FILL => t as f64,
                _ => return false,
            }
        } else if self.config.score == UnknownScore::MaxSoftmax {
            log_odds(self.config.advanced.threshold)
        } else {
            self.config.advanced.threshold
        };
        let shift = log_odds(self.share) - log_odds(self.config.expected());
        score < threshold + shift.clamp(-MOST_SHIFT, MOST_SHIFT)
    }

    /// Whether a sample is unknown, and its score; updates the running share and the window.
    pub fn judge(&mut self, seen: Seen<'_>) -> (bool, f32) {
        if !self.enabled() {
            return (false, 0.0);
        }
        let (score, parts, sided) = match &mut self.cone {
            Some(cone) => {
                let told = cone.observe(seen.features, seen.logits, seen.frozen);
                (told.score, told.parts, told.sided)
            }
            // The other scores have one part, in which strangers lie apart.
            None => {
                let score = self.score(seen.frozen);
                (score, [0.0, score], true)
            }
        };
        let unknown = self.below(score, sided);
        match &mut self.cost {
            Some(cost) => {
                let scales = self.cone.as_ref().map_or([Scale::PLAIN; 2], |cone| cone.scales());
                let image = Image { parts: parts.map(|part| part as f32), answer: seen.frozen.label as u32 };
                cost.push(image, sided, scales, self.config.cost);
            }
            None => self.scores.push(score as f32),
        }
        let keep = 0.5f64.powf(1.0 / self.config.advanced.share_half_life);
        self.share = (keep * self.share + (1.0 - keep) * f64::from(u8::from(unknown)))
            .clamp(SHARE_BOUNDS.0, SHARE_BOUNDS.1);
        self.judged += 1;
        let weight = (1.0 - keep).max(1.0 / self.judged as f64);
        self.rejected += weight * (f64::from(u8::from(unknown)) - self.rejected);
        (unknown, score as f32)
    }

    pub(crate) fn save(&self, state: &mut State) {
        if self.enabled() {
            state.put("unknown.kind", &[self.config.score as u64]);
            state.put("unknown.scores", &self.scores.values());
            state.put("unknown.share", &[self.share]);
            state.put("unknown.rejected", &[self.rejected]);
            state.put("unknown.judged", &[self.judged]);
        }
        if let Some(cone) = &self.cone {
            cone.save(state);
        }
        if let Some(cost) = &self.cost {
            cost.save(state);
        }
    }

    pub(crate) fn load(&mut self, state: &State, head: &Head) -> Result<()> {
        let mut fresh = Self::new(&self.config, head);
        if self.enabled() && state.any_under("unknown.") {
            let scores = state.get::<f32>("unknown.scores")?;
            // The newest scores, if the state holds more than this window; none, if they are scores of another kind.
            if state.counts("unknown.kind")? == [self.config.score as u64] {
                if fresh.cost.is_none() {
                    fresh.scores = OrderedWindow::from_values(
                        self.config.advanced.window,
                        self.config.advanced.quantile,
                        scores,
                    );
                }
                if let Some(cone) = fresh.cone.as_mut().filter(|_| state.any_under("unknown.cone.")) {
                    cone.load(state)?;
                }
                if let Some(cost) = fresh.cost.as_mut().filter(|_| state.any_under("unknown.cost.")) {
                    cost.load(state, head.n_classes())?;
                }
            }
            fresh.share = state.scalar::<f64>("unknown.share")?.clamp(SHARE_BOUNDS.0, SHARE_BOUNDS.1);
            // States of earlier builds have neither.
            if state.has("unknown.rejected") || state.has("unknown.judged") {
                fresh.rejected = state.within::<f64>("unknown.rejected", 1, 0.0..=1.0)?[0];
                [fresh.judged] = state.counts("unknown.judged")?;
            }
        }
        *self = fresh;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A judge, and samples of which the frozen model is more or less sure.
    struct Judge(Unknown);

    impl Judge {
        fn new(config: &UnknownConfig) -> Self {
            let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 10.0).unwrap();
            Self(Unknown::new(config, &head))
        }

        fn judge(&mut self, prob: f32) -> bool {
            let frozen = Summary { prob, log_sum: prob * 10.0, ..Default::default() };
            self.0.judge(Seen { frozen: &frozen, logits: &[0.0; 2], features: &[1.0, 0.0] }).0
        }

        fn is_unknown(&self, prob: f32) -> bool {
            let frozen = Summary { prob, log_sum: prob * 10.0, ..Default::default() };
            self.0.is_unknown(Seen { frozen: &frozen, logits: &[0.0; 2], features: &[1.0, 0.0] }).0
        }
    }

    #[test]
    fn a_fixed_threshold_rejects_the_unsure_and_the_share_follows() {
        let config = UnknownConfig {
            score: UnknownScore::MaxSoftmax,
            advanced: UnknownAdvanced { threshold: 0.5, share_half_life: 10.0, ..Default::default() },
            ..Default::default()
        };
        let mut unknown = Judge::new(&config);
        assert!(unknown.judge(0.4));
        assert!(!unknown.judge(0.9));
        for _ in 0..200 {
            unknown.judge(0.1);
        }
        assert!(unknown.0.rejected() > 0.8);
        assert!(unknown.is_unknown(0.55), "where strangers are common, less is needed");
        assert!(!unknown.is_unknown(0.6), "but not much less");
    }

    #[test]
    fn a_quantile_adapts_to_the_stream() {
        let config = UnknownConfig {
            score: UnknownScore::Energy,
            advanced: UnknownAdvanced { quantile: 0.1, share_half_life: 1e6, ..Default::default() },
            ..Default::default()
        };
        let mut unknown = Judge::new(&config);
        let n = (0..1000).filter(|i| unknown.judge((i * 37 % 100) as f32 / 100.0)).count();
        assert!((60..=110).contains(&n), "{n}");
    }

    #[test]
    fn a_share_asked_for_is_about_the_share_rejected() {
        for quantile in [0.05, 0.2, 0.5] {
            let advanced = UnknownAdvanced { quantile, ..Default::default() };
            let config = UnknownConfig { score: UnknownScore::MaxSoftmax, cost: 0.0, advanced };
            let mut unknown = Judge::new(&config);
            let n = 20_000;
            let rejected = (0..n).filter(|i| unknown.judge((i * 37 % 97) as f32 / 97.0)).count();
            let share = rejected as f64 / n as f64;
            assert!((share / quantile - 1.0).abs() < 0.25, "{quantile}: {share}");
        }
    }

    #[test]
    fn the_share_that_is_told_is_that_of_what_was_rejected() {
        let advanced = UnknownAdvanced { threshold: 0.5, ..Default::default() };
        let config = UnknownConfig { score: UnknownScore::MaxSoftmax, advanced, ..Default::default() };
        let mut unknown = Judge::new(&config);
        for _ in 0..200 {
            assert!(!unknown.judge(0.99));
            assert_eq!(unknown.0.rejected(), 0.0, "nothing was rejected");
        }
        for _ in 0..200 {
            assert!(unknown.judge(0.01));
        }
        assert!((unknown.0.rejected() - 0.5).abs() < 1e-9, "{}", unknown.0.rejected());
    }

    #[test]
    fn a_cost_without_a_score_is_refused() {
        let config = UnknownConfig { cost: 0.05, ..Default::default() };
        assert!(config.check().unwrap_err().to_string().contains("unknown.score is \"off\""));
        assert!(UnknownConfig { score: UnknownScore::Cone, ..config }.check().is_ok());
    }

    #[test]
    fn off_by_default() {
        let mut unknown = Judge::new(&Default::default());
        assert!(!unknown.judge(0.0));
        assert_eq!(unknown.0.rejected(), 0.0);
    }
}
