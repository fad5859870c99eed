//! What a merged state knows of how loudly its evidence may speak. (*Trust* itself is `ImageBranch::trust` in `fits.rs`.)
//!
//! Trust is earned on samples that the evidence has not learnt from, and a merged state has none of those at hand. So it
//! begins with what the parts had earned: scale, records and temperatures of each, averaged by the samples that each was
//! judged on. Averages and not sums, so that trust that was not deserved is lost as fast as on one stream.

use super::opinion::{self, Opinion};
use super::saved::of_image;
use super::{Calibration, ImageBranch, UlTta};
use crate::state::MAX_COUNT;
use crate::{Error, Result, State};

/// Where a merged state keeps it.
const NAME: &str = "trust";

/// Samples judged; scale of the image branch, its records, the temperatures; then the second opinion, which states of earlier
/// builds do not have.
type Trust = [f64; FIRST + opinion::LEN];
const FIRST: usize = 9;

/// The trust of a state: of one stream, or merged. `None` where nothing was judged.
fn of(state: &State) -> Result<Option<Trust>> {
    let trust = if state.has(NAME) {
        let given = state.get::<f64>(NAME)?;
        if ![FIRST, FIRST + opinion::LEN].contains(&given.len()) {
            return Err(Error::state(format!("trust: expected {} values", FIRST + opinion::LEN)));
        }
        std::array::from_fn(|i| given.get(i).copied().unwrap_or(0.0))
    } else if state.has("local.image") {
        let ([scale, _], opinion) = of_image(state)?;
        let records = state.get_n("local.image.records", 4)?;
        let (since, tau) = (state.get_n::<u64>("local.since", 4)?, state.get_n("local.calibration", 3)?);
        let first = [&[since[1] as f64, scale], records, tau].concat();
        std::array::from_fn(|i| first.iter().chain(opinion).nth(i).copied().unwrap_or(0.0))
    } else {
        return Ok(None);
    };
    Ok(Some(trust).filter(|trust| trust[0] > 0.0))
}

/// Adds the trust of two states to the state that they were merged to.
pub(crate) fn merge(ours: &State, theirs: &State, merged: &mut State) -> Result<()> {
    let trust = match (of(ours)?, of(theirs)?) {
        (Some(a), Some(b)) => {
            let judged = a[0] + b[0];
            let mean = |i: usize| (a[0] * a[i] + b[0] * b[i]) / judged;
            std::array::from_fn(|i| if i == 0 { judged } else { mean(i) })
        }
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Ok(()),
    };
    merged.put(NAME, &trust);
    Ok(())
}

impl UlTta {
    /// Takes over the trust of a merged state. Evidence is there already.
    pub(super) fn load_trust(&mut self, state: &State) -> Result<()> {
        let (Some(evidence), Some(trust)) = (&self.evidence, of(state)?) else { return Ok(()) };
        let [judged, scale, a, b, c, d, matched, label_free, tau, opinion @ ..] = trust;
        let (records, opinion) = ([[a, b], [c, d]], Opinion::from_numbers(&opinion));
        self.image = ImageBranch { scale, grown: 0.0, opinion, judged: judged as u64, records };
        self.calibration = Calibration { matched, label_free, tau };
        if !self.image.is_sound() || !self.calibration.is_sound() || judged > MAX_COUNT as f64 {
            return Err(Error::state("trust: a value out of range"));
        }
        self.image.grow(evidence.mean_count(), &self.config.advanced);
        Ok(())
    }
}
