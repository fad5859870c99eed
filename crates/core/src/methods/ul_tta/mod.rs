//! placeholder header
mod config;
pub use config::*;

use crate::adapter::{Adapter, Batch, Card, Observed, Prediction, Readout, Rows, Vitals};
use crate::{Head, Result, State};

/// The method's card.
pub static CARD: Card = Card {
    name: "ul_tta",
    summary: "class prototypes, priors and temperature adapted in closed form (presets: default, paper)",
    paper: "Kim, Ultra-Light Test-Time Adaptation for Vision-Language Models",
    readout: Readout::BeforeObserve,
    rows: Rows::Independent,
    needs_horizon: false,
    needs_labels: false,
    needs_views: false,
};

/// UL-TTA.
#[derive(Clone, Debug)]
pub struct UlTta;

impl UlTtaConfig {
    /// The adapter for a head.
    pub fn build(&self, head: &Head) -> Result<UlTta> {
        self.check(head.n_classes())?;
        Ok(UlTta)
    }
}

impl Adapter for UlTta {
    fn card(&self) -> &'static Card {
        &CARD
    }
    fn predict(&self, batch: &Batch<'_>) -> Result<Prediction> {
        Ok(Prediction::from_scores(batch.zero_shot.to_scores()))
    }
    fn observe(&mut self, batch: &Batch<'_>) -> Result<Observed> {
        Ok(Observed { admitted: vec![false; batch.rows()] })
    }
    fn reset(&mut self) {}
    fn save(&self) -> State {
        State::default()
    }
    fn load(&mut self, _: &State) -> Result<()> {
        Ok(())
    }
    fn vitals(&self) -> Vitals {
        Vitals::default()
    }
}
