//! [`Bets`]: the test itself. Each bet stakes against "nothing has changed": it wins on ranks that lie on its side.
//!
//! ```text
//! log M ← max(0, log M) ± b x − b² · pace / 6        b = stake / pace
//! ```
//!
//! x is a rank from −1 to 1. For independent ranks E exp(b x) = sinh(b)/b ≤ exp(b²/6), so that M is a
//! CUSUM of e-values: M ≥ A happens on average at most once in A scenes while nothing changes. With scenes that
//! resemble one another a sum of ranks has pace times the variance, and the same holds for slow sums. A bet runs since M was
//! last at or below 1: that is when the change began, if there was one.

use crate::{Error, Result, State};

/// Stakes: the larger sees large changes sooner, the smaller sees small ones at all.
const STAKES: [f64; 2] = [1.0, 3.0];

/// Bets on one number: each stake, on high and on low ranks.
pub(super) const BETS: usize = 2 * STAKES.len();

/// One bet that is running.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bet {
    /// log M.
    pub log: f64,
    /// How many scenes it has run.
    pub scenes: u64,
    /// The pace when it began: a change must not pass for resemblance.
    pace: f64,
}

/// All bets on one number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bets([Bet; BETS]);

impl Bets {
    pub(super) fn push(&mut self, rank: f64, pace: f64) {
        for (i, bet) in self.0.iter_mut().enumerate() {
            let side = if i % 2 == 0 { rank } else { -rank };
            if bet.log <= 0.0 {
                *bet = Bet { log: 0.0, scenes: 0, pace };
            }
            let stake = STAKES[i / 2];
            bet.log += stake * (side - stake / 6.0) / bet.pace;
            bet.scenes += 1;
        }
    }

    /// The bet that has won most.
    pub(super) fn best(&self) -> Bet {
        let mut best = self.0[0];
        for bet in &self.0[1..] {
            if bet.log >= best.log {
                best = *bet;
            }
        }
        best
    }

    pub(super) fn save(&self, name: &str, state: &mut State) {
        let numbers: Vec<f64> = self.0.iter().flat_map(|bet| [bet.log, bet.pace]).collect();
        state.put(format!("{name}.bets"), &numbers);
        state.put(format!("{name}.bet_scenes"), &self.0.map(|bet| bet.scenes));
    }

    pub(super) fn load(name: &str, state: &State) -> Result<Self> {
        let key = format!("{name}.bets");
        let numbers = state.within::<f64>(&key, 2 * BETS, -1e3..=1e6)?;
        let scenes: [u64; BETS] = state.counts(&format!("{name}.bet_scenes"))?;
        let mut bets = Self::default();
        for (i, bet) in bets.0.iter_mut().enumerate() {
            *bet = Bet { log: numbers[2 * i], pace: numbers[2 * i + 1], scenes: scenes[i] };
            if bet.log > 0.0 && bet.pace < 1.0 {
                return Err(Error::state(format!("{key} holds a pace of {}, expected at least 1", bet.pace)));
            }
        }
        Ok(bets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::chance;

    #[test]
    fn a_fair_game_is_rarely_won_and_a_change_is_dated() {
        let mut bets = Bets::default();
        let mut most = 0.0f64;
        for i in 0..200_000 {
            bets.push(2.0 * chance(i, 7) - 1.0, 1.0);
            most = most.max(bets.best().log);
        }
        assert!(most < 200_000f64.ln() + (BETS as f64).ln(), "{most}");
        (0..20).for_each(|i| bets.push(0.9 + 0.1 * chance(i, 8), 1.0));
        let best = bets.best();
        assert!(best.log > 15.0 && (20..26).contains(&best.scenes), "{best:?}");
    }
}
