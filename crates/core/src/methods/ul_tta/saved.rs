//! What the default method saves. `evidence.*` is what two sessions may add (`State::merge`); everything else is
//! local to one stream.

use super::opinion::{self, Opinion};
use super::prior::PriorWork;
use super::{Calibration, ImageBranch, Shared, UlTta};
use crate::methods::checked::checked_counts;
use crate::{Error, Result, State};

/// Scale and growth of the image branch, and the numbers of its second opinion, which states of earlier builds do not have.
pub(super) fn of_image(state: &State) -> Result<([f64; 2], &[f64])> {
    let image = state.get::<f64>("local.image")?;
    match image {
        &[scale, grown, ref opinion @ ..] if [0, opinion::LEN].contains(&opinion.len()) => {
            Ok(([scale, grown], opinion))
        }
        _ => Err(Error::state(format!("local.image: expected {} values", 2 + opinion::LEN))),
    }
}

impl UlTta {
    /// The evidence. `compact` rounds it: for the copy that the guard returns to.
    pub(super) fn save_evidence(&self, compact: bool) -> State {
        let mut state = State::default();
        state.put("evidence.seen", &[self.seen, self.admitted]);
        if let Some(evidence) = &self.evidence {
            evidence.save_evidence(&mut state, compact);
        }
        state
    }

    /// Everything.
    pub(super) fn save_all(&self) -> State {
        let mut state = self.save_evidence(false);
        self.gate.save(&mut state);
        self.prior.save(&self.work.prior, &mut state);
        if let Some(evidence) = &self.evidence {
            evidence.save_local(&mut state);
        }
        self.recent.save("local.recent.", &mut state);
        self.labelled.save(&mut state);
        self.scene.save(&mut state);
        self.garbage.save(&mut state);
        self.halves.save("local.halves.", &mut state);
        self.watch.save(&mut state);
        self.sharpness.save(&mut state);
        self.kept.save(&mut state);
        self.corrections.save(&mut state);
        if let Some(shared) = &self.shared {
            shared.save(&mut state);
            self.evidence.iter().for_each(|evidence| evidence.save_mark(&mut state));
        }
        let ImageBranch { scale, grown, judged, records, opinion } = self.image;
        state.put("local.image", &[&[scale, grown], &opinion.numbers()[..]].concat());
        state.put("local.image.records", records.as_flattened());
        let Calibration { matched, label_free, tau } = self.calibration;
        state.put("local.calibration", &[matched, label_free, tau]);
        state.put("local.movement", &[self.movement.0, self.movement.1]);
        state.put("local.updated_at", &self.updated_at.map_or(vec![], |t| vec![t]));
        state.put("local.since", &[self.since_update, judged, self.restarts, self.hasty]);
        state
    }

    /// An adapter with these settings in a saved state.
    pub(super) fn loaded(&self, state: &State) -> Result<Self> {
        let mut fresh = Self::new(&self.config, &self.head);
        if !state.any_under("evidence.") {
            fresh.keep_labels(self);
            fresh.keep_rows(self);
            fresh.shared = self.shared.clone();
            return Ok(fresh);
        }
        [fresh.seen, fresh.admitted] = state.counts("evidence.seen")?;
        if let Some(evidence) = &mut fresh.evidence {
            evidence.load_evidence(state, self.evidence.as_deref())?;
        }
        let in_group = state.any_under("shared.");
        fresh.shared = if in_group {
            let (classes, dim) = (self.head.n_classes(), self.head.dim());
            Some(Box::new(Shared::load(state, self.config.half_life(classes), classes, dim)?))
        } else {
            self.shared.clone()
        };
        // Local parts are either all there, or they start again: after a merge, or a return to a healthy state.
        if state.any_under("local.") || state.any_under("gate.") {
            fresh.load_local(state)?;
        } else {
            // A label that somebody gave outlives a return to a healthy state, and so do the rows.
            fresh.keep_labels(self);
            fresh.keep_rows(self);
            fresh.prior.update(&PriorWork::default());
            if let Some(evidence) = &mut fresh.evidence {
                evidence.recompute(fresh.shared.as_deref().and_then(Shared::others));
            }
            fresh.load_trust(state)?;
        }
        match &mut fresh.evidence {
            Some(evidence) if in_group => evidence.load_mark(state)?,
            // What a healthy state holds was told before it was left.
            Some(evidence) if fresh.shared.is_some() => evidence.set_mark(),
            _ => {}
        }
        Ok(fresh)
    }

    fn load_local(&mut self, state: &State) -> Result<()> {
        let classes = self.head.n_classes();
        self.gate.load(state)?;
        self.prior.load(&mut self.work.prior, state)?;
        if let Some(evidence) = &mut self.evidence {
            evidence.load_local(state)?;
        }
        self.recent.load("local.recent.", state, classes)?;
        self.recent.check_order("local.recent.")?;
        self.labelled.load(state, classes)?;
        self.scene.load(state)?;
        self.garbage.load(state)?;
        // States of earlier builds have none.
        if state.any_under("local.halves.") {
            self.halves.load("local.halves.", state)?;
        }
        self.watch.load(state)?;
        self.sharpness.load(state)?;
        // States of earlier builds have none.
        if state.any_under("local.kept.") {
            self.kept.load(state, classes)?;
        }
        self.corrections.load(state, classes, self.head.dim())?;
        let ([scale, grown], opinion) = of_image(state)?;
        let opinion = Opinion::from_numbers(opinion);
        let records = state.get_n::<f64>("local.image.records", 4)?;
        let records = [[records[0], records[1]], [records[2], records[3]]];
        let judged;
        [self.since_update, judged, self.restarts, self.hasty] = state.counts("local.since")?;
        self.image = ImageBranch { scale, grown, judged, records, opinion };
        let &[matched, label_free, tau] = state.get::<f64>("local.calibration")? else {
            return Err(Error::state("local.calibration: expected 3 values"));
        };
        self.calibration = Calibration { matched, label_free, tau };
        if !self.image.is_sound() || !self.calibration.is_sound() {
            return Err(Error::state("local.image or local.calibration: a value out of range"));
        }
        let movement = checked_counts("local.movement", state, 2)?;
        self.movement = (movement[0], movement[1]);
        self.updated_at = state.get::<f64>("local.updated_at")?.first().copied();
        Ok(())
    }
}
