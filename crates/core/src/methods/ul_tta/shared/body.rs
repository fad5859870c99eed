//! The sums of a group, brought to one clock.

use crate::delta::Sums;
use crate::methods::checked::checked_sums;
use crate::methods::triangle;
use crate::{Error, Result, State};

/// The sums are brought to a newer clock when this many half-lives have passed.
const REBASE: f64 = 16.0;

/// Sums of a group, as they were when its clock stood at `reference`.
#[derive(Clone, Debug)]
pub(in super::super) struct Body {
    pub(super) reference: f64,
    pub n: f64,
    pub sum: Vec<f64>,
    pub second_n: f64,
    pub second_sum: Vec<f64>,
    pub second: Vec<f64>,
    pub(super) class_n: Vec<f64>,
    class_sum: Vec<f64>,
}

/// What others have learnt, as a fold takes it in: all sums are to be multiplied by `scale`.
#[derive(Clone, Copy)]
pub(in super::super) struct Others<'a> {
    pub body: &'a Body,
    pub scale: f64,
}

impl Others<'_> {
    pub(in super::super) fn n(&self) -> f64 {
        self.body.n * self.scale
    }

    pub(in super::super) fn class_n(&self, class: usize) -> f64 {
        self.body.class_n[class] * self.scale
    }

    pub(in super::super) fn class_sum(&self, class: usize) -> &[f64] {
        let dim = self.body.sum.len();
        &self.body.class_sum[class * dim..][..dim]
    }

    /// What a sample of a class counts.
    pub(in super::super) fn worth(&self, class: usize, apart: f64) -> f64 {
        1.0 / (1.0 + self.class_n(class).max(0.0) * apart)
    }

    /// What a sample counts on average.
    pub(in super::super) fn mean_worth(&self, apart: f64) -> f64 {
        if apart == 0.0 {
            return 1.0;
        }
        let (mut counted, mut all) = (0.0, 0.0);
        for class in 0..self.body.class_n.len() {
            let n = self.class_n(class).max(0.0);
            counted += self.worth(class, apart) * n;
            all += n;
        }
        if all > 0.0 { counted / all } else { 1.0 }
    }
}

impl Body {
    pub(super) fn new(classes: usize, dim: usize) -> Self {
        Self {
            reference: 0.0,
            n: 0.0,
            sum: vec![0.0; dim],
            second_n: 0.0,
            second_sum: vec![0.0; dim],
            second: vec![0.0; triangle::len(dim)],
            class_n: vec![0.0; classes],
            class_sum: vec![0.0; classes * dim],
        }
    }

    /// Adds sums that were faded to a stamp; with `sign` −1 takes them out.
    pub(super) fn add(&mut self, sums: &Sums, stamp: f64, half_life: f64, sign: f64) {
        if stamp - self.reference > REBASE * half_life {
            self.rebase(stamp, half_life);
        }
        let weight = sign * ((stamp - self.reference) / half_life).exp2();
        let dim = self.sum.len();
        self.n += weight * sums.n;
        self.second_n += weight * sums.second_n;
        add(&mut self.sum, weight, &sums.sum);
        if !sums.second.is_empty() {
            add(&mut self.second_sum, weight, &sums.second_sum);
            add(&mut self.second, weight, &sums.second);
        }
        for (i, &c) in sums.classes.iter().enumerate() {
            self.class_n[c as usize] += weight * sums.class_n[i] as f64;
            add(&mut self.class_sum[c as usize * dim..][..dim], weight, &sums.class_sum[i * dim..][..dim]);
        }
    }

    fn rebase(&mut self, clock: f64, half_life: f64) {
        let factor = ((self.reference - clock) / half_life).exp2();
        let sums =
            [&mut self.sum, &mut self.second_sum, &mut self.second, &mut self.class_n, &mut self.class_sum];
        sums.into_iter().flatten().for_each(|v| *v *= factor);
        self.n *= factor;
        self.second_n *= factor;
        self.reference = clock;
    }

    /// The sums at a clock, with those of another body if there is one.
    pub(super) fn at(&self, clock: f64, half_life: f64, with: Option<&Body>) -> Sums {
        let factor = |body: &Body| ((body.reference - clock) / half_life).exp2();
        let (own, theirs) = (factor(self), with.map_or(0.0, factor));
        let one = |get: fn(&Body) -> f64| get(self) * own + with.map_or(0.0, |w| get(w) * theirs);
        let all = |get: fn(&Body) -> &[f64]| -> Vec<f32> {
            let mut sums: Vec<f64> = get(self).iter().map(|v| v * own).collect();
            if let Some(with) = with {
                sums.iter_mut().zip(get(with)).for_each(|(s, v)| *s += v * theirs);
            }
            sums.into_iter().map(|v| v as f32).collect()
        };
        let (dim, class_n, class_sum) = (self.sum.len(), all(|b| &b.class_n), all(|b| &b.class_sum));
        let told = |c: usize| class_n[c] != 0.0 || class_sum[c * dim..][..dim].iter().any(|&v| v != 0.0);
        let classes: Vec<u32> = (0..class_n.len()).filter(|&c| told(c)).map(|c| c as u32).collect();
        let some = one(|b| b.second_n) > 0.0;
        let second = |get| if some { all(get) } else { Vec::new() };
        Sums {
            n: one(|b| b.n).max(0.0),
            second_n: one(|b| b.second_n).max(0.0),
            withdrawn: 0.0,
            sum: all(|b| &b.sum),
            second_sum: second(|b| &b.second_sum),
            second: second(|b| &b.second),
            class_n: classes.iter().map(|&c| class_n[c as usize]).collect(),
            class_sum: classes.iter().flat_map(|&c| class_sum[c as usize * dim..][..dim].to_vec()).collect(),
            classes,
        }
    }

    pub(super) fn save(&self, name: &str, state: &mut State) {
        state.put(format!("shared.{name}.n"), &[self.reference, self.n, self.second_n]);
        let sums = [
            ("sum", &self.sum),
            ("second_sum", &self.second_sum),
            ("second", &self.second),
            ("class_n", &self.class_n),
            ("class_sum", &self.class_sum),
        ];
        sums.into_iter().for_each(|(part, sums)| state.put(format!("shared.{name}.{part}"), sums));
    }

    pub(super) fn load(name: &str, state: &State, classes: usize, dim: usize) -> Result<Self> {
        let at = |part: &str| format!("shared.{name}.{part}");
        let sums = |part: &str, len: usize| Ok::<_, Error>(state.get_n::<f64>(&at(part), len)?.to_vec());
        let n = state.within::<f64>(&at("n"), 3, -1e3..=1e30)?;
        let body = Self {
            reference: n[0],
            n: n[1],
            second_n: n[2],
            sum: sums("sum", dim)?,
            second_sum: sums("second_sum", dim)?,
            second: sums("second", triangle::len(dim))?,
            class_n: state.within::<f64>(&at("class_n"), classes, -1e30..=1e30)?.to_vec(),
            class_sum: sums("class_sum", classes * dim)?,
        };
        checked_sums(&at("sum"), &body.sum, &[body.n])?;
        checked_sums(&at("second"), &body.second, &[body.second_n])?;
        Ok(body)
    }
}

fn add(into: &mut [f64], weight: f64, from: &[f32]) {
    into.iter_mut().zip(from).for_each(|(to, &v)| *to += weight * v as f64);
}
