//! [`Mix`]: one number that tells whether the classes of the stream have changed.
//!
//! ```text
//! number = how often the class of this scene is among the last 64 scenes − how often among 64 earlier ones
//! ```
//!
//! The earlier ones are drawn evenly from all that came before. While the mix stays, in whatever order the scenes come,
//! both counts have the same distribution. Another mix, or fewer classes, makes the first larger; more classes make
//! it smaller. Classes are the frozen model's answers: what is learnt cannot change them.

use std::collections::VecDeque;

use super::chance;
use crate::{Error, Result, State};

/// Scenes in either set.
pub(super) const SCENES: usize = 64;

/// The classes of recent scenes and of earlier ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mix {
    recent: VecDeque<u32>,
    earlier: Vec<u32>,
    /// Scenes that `earlier` was drawn from.
    left: u64,
}

impl Mix {
    /// The number of a scene, which is taken in.
    pub(super) fn push(&mut self, class: u32, scene: u64) -> f64 {
        let recent = self.recent.iter().filter(|c| **c == class).count();
        let earlier = self.earlier.iter().filter(|c| **c == class).count();
        if self.recent.len() == SCENES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.left += 1;
            if self.earlier.len() < SCENES {
                self.earlier.push(oldest);
            } else {
                let place = (chance(scene, 11) * self.left as f64) as usize;
                if let Some(slot) = self.earlier.get_mut(place) {
                    *slot = oldest;
                }
            }
        }
        self.recent.push_back(class);
        recent as f64 - earlier as f64
    }

    /// The class that gained most and the one that lost most between the sets, each with its shares before and now.
    pub(super) fn moved(&self, since: usize) -> [(u32, f64, f64); 2] {
        let now: Vec<u32> = self.recent.iter().rev().take(since.max(1)).copied().collect();
        let share = |of: &[u32], class: u32| {
            of.iter().filter(|c| **c == class).count() as f64 / of.len().max(1) as f64
        };
        let mut classes: Vec<u32> = now.iter().chain(&self.earlier).copied().collect();
        classes.sort_unstable();
        classes.dedup();
        let moves = classes.into_iter().map(|c| (c, share(&self.earlier, c), share(&now, c)));
        let gain = |m: &(u32, f64, f64)| m.2 - m.1;
        let most = moves.clone().max_by(|a, b| gain(a).total_cmp(&gain(b)));
        let least = moves.min_by(|a, b| gain(a).total_cmp(&gain(b)));
        [most.unwrap_or_default(), least.unwrap_or_default()]
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("alarm.mix.recent", &self.recent.iter().copied().collect::<Vec<_>>());
        state.put("alarm.mix.earlier", &self.earlier);
        state.put("alarm.mix.left", &[self.left]);
    }

    pub(super) fn load(state: &State, classes: usize) -> Result<Self> {
        let list = |name: &str| {
            let list = state.get::<u32>(name)?;
            if list.len() > SCENES || list.iter().any(|&c| c as usize >= classes) {
                return Err(Error::state(format!("{name} holds classes that are not possible")));
            }
            Ok(list.to_vec())
        };
        let [left] = state.counts("alarm.mix.left")?;
        let (recent, earlier) = (list("alarm.mix.recent")?, list("alarm.mix.earlier")?);
        if earlier.len() as u64 != left.min(SCENES as u64) || (left > 0 && recent.len() != SCENES) {
            return Err(Error::state("alarm.mix.left does not fit the scenes that are kept"));
        }
        Ok(Self { recent: recent.into(), earlier, left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(mix: &mut Mix, scenes: std::ops::Range<u64>, class: impl Fn(f64) -> u32) -> f64 {
        let n = (scenes.end - scenes.start) as f64;
        scenes.map(|i| mix.push(class(chance(i, 13)), i)).sum::<f64>() / n
    }

    #[test]
    fn a_steady_mix_has_mean_zero_and_a_change_has_not() {
        let many = |u: f64| (u * 40.0) as u32;
        let mut mix = Mix::default();
        mean(&mut mix, 0..200, many);
        assert_eq!(mix.earlier.len(), SCENES);
        let steady = mean(&mut mix, 200..20_200, many);
        assert!(steady.abs() < 0.05, "{steady}");
        assert!(mean(&mut mix.clone(), 20_200..20_264, |u| (u * 4.0) as u32) > 3.0, "fewer classes");
        assert!(mean(&mut mix, 20_200..20_264, |u| 100 + (u * 40.0) as u32) > 0.4, "other classes");
        let [(gained, before, now), _] = mix.moved(64);
        assert!(gained >= 100 && before == 0.0 && now > 0.0);
    }
}
