//! Turns at the cores: of those who wait, whoever has been given least work so far is next. What counts is the work, not how
//! often somebody comes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Cores that are shared.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    waiting: Vec<Waiting>,
    /// Work of whoever was next last: a newcomer begins there, and owes nothing for the time before.
    now: u64,
    /// How many have waited so far.
    asked: u64,
}

struct Waiting {
    /// Work so far; among equals who came first.
    worked: (u64, u64),
    told: oneshot::Sender<Turn>,
}

/// A core, until it is dropped.
pub struct Turn {
    turns: Option<Turns>,
    worked: u64,
}

impl Turns {
    pub fn new(cores: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: cores, waiting: Vec::new(), now: 0, asked: 0 })))
    }

    /// The first turn of somebody new.
    pub fn first(&self) -> oneshot::Receiver<Turn> {
        let mut state = self.lock();
        let now = state.now;
        let turn = state.wait(now);
        self.grant(&mut state);
        turn
    }

    /// Gives free cores away.
    fn grant(&self, state: &mut State) {
        while state.free > 0 {
            let next = state.waiting.iter().enumerate().min_by_key(|(_, waiting)| waiting.worked);
            let Some((at, _)) = next else { return };
            let Waiting { worked: (worked, _), told } = state.waiting.swap_remove(at);
            match told.send(Turn { turns: Some(self.clone()), worked }) {
                Ok(()) => (state.free, state.now) = (state.free - 1, state.now.max(worked)),
                // Nobody waits any more, and nothing was given.
                Err(mut turn) => turn.turns = None,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, worked: u64) -> oneshot::Receiver<Turn> {
        let (told, turn) = oneshot::channel();
        self.asked += 1;
        self.waiting.push(Waiting { worked: (worked, self.asked), told });
        turn
    }
}

impl Turn {
    /// Gives the core away after this much work, and waits for another turn: one that goes to itself if nobody else is due.
    pub fn again(self, work: u64) -> oneshot::Receiver<Turn> {
        let worked = self.worked.saturating_add(work);
        match &self.turns {
            Some(turns) => turns.lock().wait(worked),
            None => oneshot::channel().1,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            let mut state = turns.lock();
            state.free += 1;
            turns.grant(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_worked_least_is_next() {
        let turns = Turns::new(1);
        let given = |turn: &mut oneshot::Receiver<Turn>| turn.try_recv().ok();
        let mut large = turns.first();
        let mut small = turns.first();
        let turn = given(&mut large).expect("the only core is free");
        assert!(given(&mut small).is_none());
        let mut large = turn.again(100);
        // Work of ninety-nine fits in front of the work of a hundred.
        for _ in 0..9 {
            let turn = given(&mut small).expect("it has worked less");
            assert!(given(&mut large).is_none());
            small = turn.again(11);
        }
        let turn = given(&mut small).expect("99 are less than 100");
        let mut newcomer = turns.first();
        small = turn.again(11);
        assert!(given(&mut small).is_none() && given(&mut large).is_none());
        drop(given(&mut newcomer).expect("it begins where the others are"));
        // Whoever has gone is passed over.
        drop(large);
        assert!(given(&mut small).is_some());
        assert_eq!(turns.lock().free, 1);
    }
}
