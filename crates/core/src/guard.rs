//! The collapse guard: notices when adapted answers turn against a confident frozen model, and falls back.
//!
//! Over a window of answers it fires for either of two reasons:
//!
//! - *Collapse.* The adapted answers concentrate on far fewer classes than the frozen model's *and* the frozen posterior
//!   gives those answers little weight. Concentration alone is no collapse: on class-sorted streams few classes are right.
//! - *Harm.* Where the frozen model is confident, the adapted answers contradict it far more often than its own
//!   probabilities allow for. Where it is unsure they may contradict it as they like: that is what adaptation is for.
//!
//! The guard first returns to the last healthy state; if that fails,
//! too, it answers zero-shot for a while and then tries again from the start, because the stream may have recovered; the
//! more often it fired, the longer it waits. All of it is visible in [`Health`](crate::Health).

use std::collections::VecDeque;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::config::in_range;
use crate::{Error, Result, State};

/// The frozen model is confident from this probability on.
const CONFIDENT: f32 = 0.8;

/// Contradictions of a confident frozen model count as harm if there are more of them than this many times the errors that
/// its probabilities tell of, plus [`SLACK`] of the window. On 17 packs under the protocols of `harm`, seed 0, no window of 256
/// samples in 4,785 is taken for harm.
const EXCESS: f64 = 2.0;

/// Share of the window that may contradict besides.
const SLACK: f64 = 1.0 / 40.0;

/// Settings of the collapse guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardConfig {
    /// `false` only watches: health is reported, nothing falls back.
    pub enabled: bool,
    /// Settings that hardly anybody needs to change.
    pub advanced: GuardAdvanced,
}

/// When the guard fires, and how long it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardAdvanced {
    /// Number of recent samples looked at.
    pub window: usize,
    /// Fires only if the effective number of adapted classes falls below this share of the zero-shot one …
    pub concentration: f64,
    /// … and the frozen posterior gives the adapted answers less than this share of what it gives its own.
    pub support: f64,
    /// Samples after a return to the last healthy state within which a second collapse means zero-shot. The next try
    /// comes after this many samples times how often the guard has fired.
    pub patience: u64,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self { enabled: true, advanced: Default::default() }
    }
}

impl Default for GuardAdvanced {
    fn default() -> Self {
        Self { window: 256, concentration: 0.7, support: 0.5, patience: 4096 }
    }
}

impl GuardConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let a = &self.advanced;
        in_range("guard.advanced.window", a.window as f64, 16.0..=65_536.0)?;
        in_range("guard.advanced.concentration", a.concentration, 0.0..=1.0)?;
        in_range("guard.advanced.support", a.support, 0.0..=1.0)
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Adapting.
    #[default]
    Healthy,
    /// Adapting again, from the last healthy state.
    Restored,
    /// Answering zero-shot for a while, after two collapses in a row.
    ZeroShot,
}

impl Standing {
    /// In one word, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Healthy => "healthy",
            Standing::Restored => "restored",
            Standing::ZeroShot => "zero_shot",
        }
    }
}

/// One answered sample, as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardRow {
    pub adapted: u32,
    pub zero_shot: u32,
    /// Frozen probability of the adapted answer.
    pub support: f32,
    /// Frozen probability of the zero-shot answer.
    pub frozen: f32,
    pub admitted: bool,
}

/// n·ln n in fixed point, so that a running sum is exact.
fn n_log_n(n: u32) -> i64 {
    static SMALL: LazyLock<[i64; 1024]> = LazyLock::new(|| std::array::from_fn(|n| compute(n as u32)));
    fn compute(n: u32) -> i64 {
        let n = f64::from(n);
        (n * n.max(1.0).ln() * (1u64 << 32) as f64).round() as i64
    }
    SMALL.get(n as usize).copied().unwrap_or_else(|| compute(n))
}

/// Histogram of labels in the window with its entropy kept up to date.
#[derive(Clone, Debug)]
struct Histogram {
    counts: Vec<u32>,
    sum: i64,
}

impl Histogram {
    fn new(classes: usize) -> Self {
        Self { counts: vec![0; classes], sum: 0 }
    }

    fn change(&mut self, label: u32, by: i32) {
        let count = &mut self.counts[label as usize];
        self.sum -= n_log_n(*count);
        *count = count.wrapping_add_signed(by);
        self.sum += n_log_n(*count);
    }

    /// exp of the entropy of the label shares among `n` samples.
    fn effective(&self, n: usize) -> f64 {
        if n == 0 {
            return 0.0;
        }
        let n = n as f64;
        (n.ln() - self.sum as f64 / (1u64 << 32) as f64 / n).exp()
    }
}

/// What a check decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing to do.
    Fine,
    /// Healthy, and the window is full: a good moment to remember the state.
    Healthy,
    /// Return to the last healthy state.
    Restore,
    /// Answer zero-shot for a while.
    FallBack,
}

/// Watches the answers of one session.
#[derive(Clone, Debug)]
pub struct Guard {
    config: GuardConfig,
    seen: VecDeque<GuardRow>,
    adapted: Histogram,
    zero_shot: Histogram,
    flips: usize,
    admitted: usize,
    standing: Standing,
    /// Samples since the last return to a healthy state, or since the fall back to zero-shot.
    since_restore: u64,
    /// How often it fired.
    fired: u64,
}

impl Guard {
    pub(crate) fn new(config: &GuardConfig, classes: usize) -> Self {
        Self {
            config: config.clone(),
            seen: VecDeque::with_capacity(config.advanced.window),
            adapted: Histogram::new(classes),
            zero_shot: Histogram::new(classes),
            flips: 0,
            admitted: 0,
            standing: Standing::Healthy,
            since_restore: 0,
            fired: 0,
        }
    }

    pub(crate) fn push(&mut self, sample: GuardRow) {
        if self.seen.len() == self.config.advanced.window
            && let Some(old) = self.seen.pop_front()
        {
            self.count(old, -1);
        }
        self.count(sample, 1);
        self.seen.push_back(sample);
        self.since_restore += 1;
    }

    fn count(&mut self, sample: GuardRow, by: i32) {
        self.adapted.change(sample.adapted, by);
        self.zero_shot.change(sample.zero_shot, by);
        self.flips =
            self.flips.wrapping_add_signed(by as isize * isize::from(sample.adapted != sample.zero_shot));
        self.admitted = self.admitted.wrapping_add_signed(by as isize * isize::from(sample.admitted));
    }

    /// Looks at the window and decides. `corrected` tells that somebody gave labels that count at once: these may
    /// contradict a confident frozen model, that is what they are for.
    pub(crate) fn check(&mut self, corrected: bool) -> Verdict {
        if self.standing == Standing::ZeroShot {
            // The method was reset when it fell back; now it learns again, under watch.
            if self.since_restore >= self.config.advanced.patience.saturating_mul(self.fired) {
                self.try_again();
            }
            return Verdict::Fine;
        }
        if self.seen.len() < self.config.advanced.window {
            return Verdict::Fine;
        }
        let concentrated =
            self.effective_adapted() < self.config.advanced.concentration * self.effective_zero_shot();
        let (support, frozen) =
            self.seen.iter().fold((0.0, 0.0), |(s, f), x| (s + x.support as f64, f + x.frozen as f64));
        let unsupported = support < self.config.advanced.support * frozen;
        let harmful = !corrected && self.is_harmful();
        let collapsed = concentrated && unsupported;
        if !collapsed && !harmful {
            if self.standing == Standing::Restored && self.since_restore >= self.config.advanced.patience {
                self.standing = Standing::Healthy;
            }
            // Only a state that is far from a collapse is worth remembering.
            let clear = !concentrated && support > (0.5 + 0.5 * self.config.advanced.support) * frozen;
            return if clear { Verdict::Healthy } else { Verdict::Fine };
        }
        if !self.config.enabled {
            return Verdict::Fine;
        }
        self.fired += 1;
        self.clear_window();
        let again = self.standing == Standing::Restored && self.since_restore < self.config.advanced.patience;
        self.since_restore = 0;
        self.standing = if again { Standing::ZeroShot } else { Standing::Restored };
        if again { Verdict::FallBack } else { Verdict::Restore }
    }

    /// Ends a fall back to zero-shot, if there is one: enough samples have passed, or somebody gave a label that is to count now.
    pub(crate) fn try_again(&mut self) {
        if self.standing == Standing::ZeroShot {
            self.clear_window();
            (self.standing, self.since_restore) = (Standing::Restored, 0);
        }
    }

    /// Whether the adapted answers contradict a confident frozen model more often than it can be wrong.
    fn is_harmful(&self) -> bool {
        let confident = self.seen.iter().filter(|x| x.frozen >= CONFIDENT);
        let (contradicted, wrong) = confident.fold((0.0, 0.0), |(n, wrong), x| {
            (n + f64::from(x.adapted != x.zero_shot), wrong + 1.0 - x.frozen as f64)
        });
        contradicted > EXCESS * wrong + SLACK * self.config.advanced.window as f64
    }

    fn clear_window(&mut self) {
        while let Some(old) = self.seen.pop_front() {
            self.count(old, -1);
        }
    }

    /// Where the session stands.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// How often the guard fired.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Effective number of classes among the adapted answers in the window.
    pub fn effective_adapted(&self) -> f64 {
        self.adapted.effective(self.seen.len())
    }

    /// Effective number of classes among the zero-shot answers in the same window.
    pub fn effective_zero_shot(&self) -> f64 {
        self.zero_shot.effective(self.seen.len())
    }

    /// Share of the window answered differently from zero-shot.
    pub fn flip_share(&self) -> f64 {
        self.flips as f64 / self.seen.len().max(1) as f64
    }

    /// Share of the window that the gate admitted.
    pub fn admitted_share(&self) -> f64 {
        self.admitted as f64 / self.seen.len().max(1) as f64
    }

    pub(crate) fn save(&self, state: &mut State) {
        let column = |f: fn(&GuardRow) -> u32| self.seen.iter().map(f).collect::<Vec<_>>();
        let float = |f: fn(&GuardRow) -> f32| self.seen.iter().map(f).collect::<Vec<_>>();
        state.put("guard.adapted", &column(|s| s.adapted));
        state.put("guard.zero_shot", &column(|s| s.zero_shot));
        state.put("guard.admitted", &column(|s| u32::from(s.admitted)));
        state.put("guard.support", &float(|s| s.support));
        state.put("guard.frozen", &float(|s| s.frozen));
        state.put("guard.standing", &[self.standing as u64, self.since_restore, self.fired]);
    }

    pub(crate) fn load(&mut self, state: &State) -> Result<()> {
        let mut fresh = Self::new(&self.config, self.adapted.counts.len());
        if state.any_under("guard.") {
            let adapted = state.get::<u32>("guard.adapted")?;
            let n = adapted.len();
            let zero_shot = state.get_n::<u32>("guard.zero_shot", n)?;
            let admitted = state.get_n::<u32>("guard.admitted", n)?;
            let support = state.within::<f32>("guard.support", n, 0.0..=1.001)?;
            let frozen = state.within::<f32>("guard.frozen", n, 0.0..=1.001)?;
            let classes = self.adapted.counts.len() as u32;
            if adapted.iter().chain(zero_shot).any(|&c| c >= classes) {
                return Err(Error::state("guard: a label out of range"));
            }
            // `push` keeps the newest samples, if the state holds more than this window.
            for i in 0..n {
                fresh.push(GuardRow {
                    adapted: adapted[i],
                    zero_shot: zero_shot[i],
                    support: support[i],
                    frozen: frozen[i],
                    admitted: admitted[i] != 0,
                });
            }
            let [standing, since, fired] = state.counts("guard.standing")?;
            fresh.standing = match standing {
                0 => Standing::Healthy,
                1 => Standing::Restored,
                2 => Standing::ZeroShot,
                other => return Err(Error::state(format!("guard.standing: {other} is not a standing"))),
            };
            (fresh.since_restore, fresh.fired) = (since, fired);
        }
        *self = fresh;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.config.advanced.window * std::mem::size_of::<GuardRow>() + 8 * self.adapted.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings with a window of this many samples.
    fn watching(window: usize) -> GuardConfig {
        GuardConfig { enabled: true, advanced: GuardAdvanced { window, ..Default::default() } }
    }

    fn guard() -> Guard {
        Guard::new(&watching(64), 16)
    }

    fn fill(guard: &mut Guard, adapted: impl Fn(u32) -> u32, support: f32) {
        fill_under(guard, adapted, support, 0.7);
    }

    /// `frozen` is how sure the frozen model is of its own answers.
    fn fill_under(guard: &mut Guard, adapted: impl Fn(u32) -> u32, support: f32, frozen: f32) {
        for i in 0..64 {
            guard.push(GuardRow { adapted: adapted(i), zero_shot: i % 16, support, frozen, admitted: true });
        }
    }

    #[test]
    fn concentration_without_contradiction_is_fine() {
        let mut guard = guard();
        fill_under(&mut guard, |_| 3, 0.4, 0.5);
        assert_eq!(guard.check(false), Verdict::Fine);
        assert!((guard.effective_adapted() - 1.0).abs() < 1e-9);
        assert!((guard.effective_zero_shot() - 16.0).abs() < 1e-9);
    }

    #[test]
    fn collapse_restores_then_falls_back() {
        let mut guard = guard();
        fill(&mut guard, |i| i % 16, 0.7);
        assert_eq!(guard.check(false), Verdict::Healthy);
        fill(&mut guard, |_| 3, 0.1);
        assert_eq!(guard.check(false), Verdict::Restore);
        assert_eq!(guard.standing(), Standing::Restored);
        assert_eq!(guard.check(false), Verdict::Fine, "the window starts again");
        fill(&mut guard, |_| 3, 0.1);
        assert_eq!(guard.check(false), Verdict::FallBack);
        assert_eq!((guard.standing(), guard.fired()), (Standing::ZeroShot, 2));
        let mut config = watching(64);
        config.advanced.patience = 640;
        guard.config = config;
        for rest in (0..20).rev() {
            assert_eq!(guard.standing(), Standing::ZeroShot);
            fill(&mut guard, |i| i % 16, 0.7);
            assert_eq!(guard.check(false), Verdict::Fine, "{rest} more windows of patience");
        }
        assert_eq!(guard.standing(), Standing::Restored, "it tries again");
        fill(&mut guard, |_| 3, 0.1);
        assert_eq!(
            guard.check(false),
            Verdict::FallBack,
            "and falls back again if the stream has not recovered"
        );
    }

    #[test]
    fn contradictions_of_a_confident_frozen_model_are_harm() {
        // Every second answer is another class than the frozen model's. No class is favoured.
        let contradict = |i: u32| if i.is_multiple_of(2) { i % 16 } else { (i + 5) % 16 };
        let mut guard = guard();
        fill_under(&mut guard, contradict, 0.3, 0.6);
        assert_eq!(guard.check(false), Verdict::Fine, "the frozen model is not sure");
        fill_under(&mut guard, contradict, 0.5, 0.97);
        assert_ne!(guard.check(true), Verdict::Restore, "somebody said so");
        assert_eq!(
            guard.check(false),
            Verdict::Restore,
            "it is sure, and half of its answers are contradicted"
        );
        let mut guard = self::guard();
        let rarely = |i: u32| if i.is_multiple_of(16) { 1 } else { i % 16 };
        fill_under(&mut guard, rarely, 0.9, 0.97);
        assert_eq!(guard.check(false), Verdict::Healthy, "as often as it may be wrong");
    }

    #[test]
    fn a_disabled_guard_only_watches() {
        let mut guard = Guard::new(&GuardConfig { enabled: false, ..watching(64) }, 16);
        fill(&mut guard, |_| 3, 0.1);
        assert_eq!((guard.check(false), guard.standing()), (Verdict::Fine, Standing::Healthy));
        assert_eq!(guard.flip_share(), 60.0 / 64.0);
    }
}
