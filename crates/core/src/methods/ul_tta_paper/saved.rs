//! What the published algorithm saves. `evidence.*` is what two sessions may add (`State::merge`); everything else is
//! local to one stream.

use super::{Paper, Temperatures};
use crate::methods::checked::checked_counts;
use crate::{Error, Result, State};

impl Paper {
    /// The evidence. `compact` rounds it: for the copy that the guard returns to.
    pub(super) fn save_evidence(&self, compact: bool) -> State {
        let mut state = State::default();
        state.put("evidence.seen", &[self.seen, self.admitted]);
        self.prior.save_evidence(&mut state);
        if let Some(prototypes) = &self.prototypes {
            prototypes.save_evidence(&mut state, compact);
        }
        state
    }

    /// Everything.
    pub(super) fn save_all(&self) -> State {
        let mut state = self.save_evidence(false);
        self.gate.save(&mut state);
        self.prior.save_local(&mut state);
        if let Some(prototypes) = &self.prototypes {
            prototypes.save_local(&mut state);
        }
        self.recent.save("local.recent.", &mut state);
        self.labelled.save(&mut state);
        state.put("local.temperatures", &[self.temperatures.pred, self.temperatures.cal]);
        state.put("local.movement", &[self.movement.0, self.movement.1]);
        state.put("local.updated_at", &self.updated_at.map_or(vec![], |t| vec![t]));
        state.put("local.since", &[self.since_update, self.recent_since as u64]);
        state
    }

    /// An adapter with these settings in a saved state.
    pub(super) fn loaded(&self, state: &State) -> Result<Self> {
        let mut fresh = Self::new(&self.config, &self.head);
        if !state.any_under("evidence.") {
            return Ok(fresh);
        }
        [fresh.seen, fresh.admitted] = state.counts("evidence.seen")?;
        fresh.prior.load_evidence(state)?;
        if let Some(prototypes) = &mut fresh.prototypes {
            prototypes.load_evidence(state)?;
        }
        // Local parts are either all there, or they start again: after a merge, or a return to a healthy state.
        if state.any_under("local.") || state.any_under("gate.") {
            fresh.load_local(state)?;
        } else {
            let strict = fresh.strictness();
            fresh.prior.update(strict.gamma, strict.kappa);
        }
        Ok(fresh)
    }

    fn load_local(&mut self, state: &State) -> Result<()> {
        let classes = self.head.n_classes();
        self.gate.aim(self.strictness().gate);
        self.gate.load(state)?;
        self.prior.load_local(state)?;
        if let Some(prototypes) = &mut self.prototypes {
            prototypes.load_local(state)?;
        }
        self.recent.load("local.recent.", state, classes)?;
        self.recent.check_order("local.recent.")?;
        self.labelled.load(state, classes)?;
        let &[pred, cal] = state.get::<f64>("local.temperatures")? else {
            return Err(Error::state("local.temperatures: expected 2 values"));
        };
        self.temperatures = Temperatures { pred, cal };
        if !self.temperatures.is_sound() {
            return Err(Error::state("local.temperatures: a value out of range"));
        }
        let movement = checked_counts("local.movement", state, 2)?;
        self.movement = (movement[0], movement[1]);
        self.updated_at = state.get::<f64>("local.updated_at")?.first().copied();
        let [since_update, recent_since] = state.counts("local.since")?;
        (self.since_update, self.recent_since) = (since_update, recent_since as usize);
        Ok(())
    }
}
