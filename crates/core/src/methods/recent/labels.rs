//! Delayed labels: the samples that got one, and the temperature under which they are most likely.

use std::collections::VecDeque;

use super::lines::newton;
use super::{Lines, Recent, Sample};
use crate::{Error, Result, State};

/// Number of labelled samples that are kept, the newest ones. They are enough to fit one temperature, whose error
/// falls as 1/√labels.
const LABELLED: usize = 512;

/// The last labelled samples with their labels.
#[derive(Clone, Debug)]
pub(crate) struct Labelled {
    samples: Recent,
    /// Oldest first, as the samples.
    labels: VecDeque<u32>,
}

impl Labelled {
    /// Room for samples with at most `width` candidates.
    pub(crate) fn new(width: usize) -> Self {
        Self { samples: Recent::new(LABELLED, width, 0), labels: VecDeque::with_capacity(LABELLED) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Takes in a label. A second label for a sample replaces the first. `true` if the sample had no label before.
    pub(crate) fn put(&mut self, sample: Sample<'_>, label: usize) -> bool {
        let known = self.samples.newest(LABELLED).position(|s| s.id == sample.id);
        if let Some(age) = known {
            let place = self.labels.len() - 1 - age;
            self.labels[place] = label as u32;
            return false;
        }
        if self.labels.len() == LABELLED {
            self.labels.pop_front();
        }
        self.labels.push_back(label as u32);
        self.samples.push(sample);
        true
    }

    /// The τ of least negative log-likelihood of the labels under softmax(τ·x + b), where `line` writes x and b of
    /// a sample. A penalty `strength`/2 · (ln τ/anchor)² holds τ near `anchor`: it is worth `strength` labels.
    pub(crate) fn fit(
        &self,
        start: f64,
        anchor: f64,
        strength: f64,
        bounds: (f64, f64),
        line: impl Fn(&Sample<'_>, &mut [f32], &mut [f32]),
    ) -> f64 {
        let count = self.labels.len() as f64;
        let lines = Lines::new(self.samples.newest(LABELLED), line);
        // The place of each label in its row: that of its candidate, or that of the lump.
        let place = |(s, label): (Sample<'_>, &u32)| {
            s.classes.iter().position(|c| c == label).unwrap_or(s.classes.len())
        };
        let places: Vec<usize> =
            self.samples.newest(LABELLED).zip(self.labels.iter().rev()).map(place).collect();
        newton(
            start,
            bounds,
            0.3,
            0.0,
            #[inline(always)]
            |tau| {
                let (mut slope, mut curvature) = (0.0, 0.0);
                for (line, &place) in lines.iter().zip(&places) {
                    let m = line.moments(tau as f32);
                    slope += m.mean - line.x[place] as f64;
                    curvature += m.variance;
                }
                let log = (tau / anchor).ln();
                slope += strength * log / tau;
                curvature += strength * ((1.0 - log) / (tau * tau)).max(0.0);
                (slope / count, curvature / count)
            },
        )
    }

    pub(crate) fn bytes(&self) -> usize {
        self.samples.bytes()
    }

    pub(crate) fn save(&self, state: &mut State) {
        self.samples.save("local.labelled.", state);
        state.put("local.labelled.labels", &self.labels.iter().copied().collect::<Vec<_>>());
    }

    pub(crate) fn load(&mut self, state: &State, n_classes: usize) -> Result<()> {
        self.samples.load("local.labelled.", state, n_classes)?;
        let labels = state.get_n::<u32>("local.labelled.labels", self.samples.len())?;
        if labels.iter().any(|&l| l as usize >= n_classes) {
            return Err(Error::state("local.labelled.labels: a class out of range"));
        }
        self.labels = labels.iter().copied().collect();
        Ok(())
    }
}
