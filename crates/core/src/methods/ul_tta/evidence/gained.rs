//! What the evidence has gained since a *mark*: the part of it that a group does not know yet.

use std::sync::Arc;

use super::{Evidence, with_remains};
use crate::delta::Sums;
use crate::methods::checked::{checked_counts, checked_sums};
use crate::methods::triangle;
use crate::{Error, Result, State};

/// A class whose gain weighs less than this has gained nothing but rounding.
const LEAST: f64 = 1e-6;

/// The sums as they were when the group was last told.
#[derive(Clone, Debug)]
pub(in super::super) struct Mark {
    scale: f64,
    samples: u64,
    withdrawn: f64,
    n: f64,
    sum: Vec<f64>,
    second_n: f64,
    second_sum: Vec<f64>,
    second: Arc<Vec<f64>>,
    class_n: Vec<f64>,
    class_sum: Vec<f64>,
}

impl Evidence {
    /// Marks what there is as told.
    pub(in super::super) fn set_mark(&mut self) {
        self.mark = Some(Arc::new(Mark {
            scale: self.scale,
            samples: self.samples,
            withdrawn: self.withdrawn,
            n: self.n,
            sum: self.sum.clone(),
            second_n: self.second_n,
            second_sum: self.second_sum.clone(),
            second: self.second.clone(),
            class_n: self.class_n.clone(),
            class_sum: self.class_sum.clone(),
        }));
    }

    /// Samples taken in since the mark.
    pub(in super::super) fn gained_samples(&self) -> u64 {
        self.samples - self.mark.as_ref().map_or(0, |mark| mark.samples)
    }

    /// The sums that came in since the mark, faded to now. Rows that wait come with a later gain.
    pub(in super::super) fn gained(&self) -> Sums {
        let (now, dim) = (self.scale, self.dim);
        let Some(mark) = &self.mark else {
            let none = Mark {
                scale: 0.0,
                samples: self.samples,
                withdrawn: 0.0,
                n: 0.0,
                sum: vec![0.0; dim],
                second_n: 0.0,
                second_sum: vec![0.0; dim],
                second: Arc::new(vec![0.0; triangle::len(dim)]),
                class_n: vec![0.0; self.classes],
                class_sum: vec![0.0; self.classes * dim],
            };
            return self.gained_since(&none, now);
        };
        self.gained_since(mark, now)
    }

    fn gained_since(&self, mark: &Mark, now: f64) -> Sums {
        let dim = self.dim;
        let samples = (self.samples - mark.samples).min(i32::MAX as u64) as i32;
        let before = mark.scale * self.decay.powi(samples);
        let gain = |a: f64, b: f64| a * now - b * before;
        let gains = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(&a, &b)| gain(a, b) as f32).collect();
        let mut sums = Sums {
            n: gain(self.n, mark.n).max(0.0),
            sum: gains(&self.sum, &mark.sum),
            withdrawn: self.withdrawn - mark.withdrawn,
            ..Sums::default()
        };
        let second_n = gain(self.second_n, mark.second_n);
        if !Arc::ptr_eq(&self.second, &mark.second) && second_n > LEAST {
            sums.second_n = second_n;
            sums.second_sum = gains(&self.second_sum, &mark.second_sum);
            sums.second = gains(&self.second, &mark.second);
        }
        for c in 0..self.classes {
            let at = c * dim..(c + 1) * dim;
            let n = gain(self.class_n[c], mark.class_n[c]);
            // Where labels moved rows, as much may have come in as went out.
            let moved = sums.withdrawn > 0.0
                && self.class_sum[at.clone()]
                    .iter()
                    .zip(&mark.class_sum[at.clone()])
                    .any(|(&a, &b)| gain(a, b).abs() > LEAST);
            if n.abs() > LEAST || moved {
                sums.classes.push(c as u32);
                sums.class_n.push(n as f32);
                sums.class_sum.extend::<Vec<f32>>(gains(&self.class_sum[at.clone()], &mark.class_sum[at]));
            }
        }
        sums
    }

    pub(in super::super) fn save_mark(&self, state: &mut State) {
        state.put("shared.fold", &[self.apart, self.withdrawn]);
        state.put("shared.fold.pooled", &self.pooled_count.map_or(vec![], |n| vec![n]));
        let Some(mark) = &self.mark else { return };
        state.put("shared.mark.samples", &[mark.samples]);
        state.put("shared.mark.n", &[mark.scale, mark.n, mark.second_n, mark.withdrawn]);
        state.put("shared.mark.sum", &mark.sum);
        state.put("shared.mark.second_sum", &mark.second_sum);
        state.put_shared("shared.mark.second", mark.second.clone());
        state.put("shared.mark.class_n", &mark.class_n);
        state.put("shared.mark.class_sum", &mark.class_sum);
    }

    pub(in super::super) fn load_mark(&mut self, state: &State) -> Result<()> {
        let fold = checked_counts("shared.fold", state, 2)?;
        (self.apart, self.withdrawn) = (fold[0], fold[1]);
        self.pooled_count = match state.get::<f64>("shared.fold.pooled")? {
            [] => None,
            _ => Some(checked_counts("shared.fold.pooled", state, 1)?[0]),
        };
        self.mark = None;
        if !state.any_under("shared.mark.") {
            return Ok(());
        }
        let (c, d) = (self.classes, self.dim);
        let [samples] = state.counts("shared.mark.samples")?;
        let counts = checked_counts("shared.mark.n", state, 4)?;
        let &[scale, n, second_n, withdrawn] = &counts[..] else {
            return Err(Error::state("shared.mark.n: expected 4 numbers"));
        };
        if samples > self.samples {
            return Err(Error::state("shared.mark.samples lies ahead of the samples seen"));
        }
        let mut second = state.shared::<f64>("shared.mark.second", triangle::len(d))?;
        if second == self.second {
            // One array again, as before it was saved.
            second = self.second.clone();
        }
        let mark = Mark {
            scale,
            samples,
            withdrawn,
            n,
            second_n,
            sum: state.get_n::<f64>("shared.mark.sum", d)?.to_vec(),
            second_sum: state.get_n::<f64>("shared.mark.second_sum", d)?.to_vec(),
            second,
            class_n: checked_counts("shared.mark.class_n", state, c)?,
            class_sum: state.get_n::<f64>("shared.mark.class_sum", c * d)?.to_vec(),
        };
        checked_sums("shared.mark.sum", &mark.sum, &[mark.n])?;
        checked_sums("shared.mark class sums", &mark.class_sum, &with_remains(&mark.class_n, mark.scale))?;
        self.mark = Some(Arc::new(mark));
        Ok(())
    }
}
