//! A *delta*: what one member of a group has learnt about the classes since it last told the others.
//!
//! Only evidence is in it (sums of images), never what belongs to one camera: no scene, no prior, no temperature. It is
//! sparse in classes, and its second moments are left out where none came in. Adding deltas is commutative and associative,
//! forgetting included; the law is in `methods/ul_tta/shared.rs`, `docs/fleet.md` tells it to users.
//!
//! A delta says which part of its member's contribution it is: what came after number `after`, up to number `upto`. So
//! nothing is added twice, and a gap is seen. A member's whole contribution is the delta that begins at 0. The *epoch* of a
//! member rises when its contribution is taken out of the group.

use crate::methods::triangle;
use crate::state::differing_setting;
use crate::{Error, Result, State};

/// How the bytes of a delta begin.
const FORMAT: &str = "ultta-delta-1";

/// Delayed labels teach beside samples; a delta may hold this much more than its samples for them.
pub(crate) const LABELS: f64 = 256.0;

/// Second moments are added late and in chunks: they may be this many samples behind.
const LATE: f64 = 8192.0;

/// Samples that a member may have given: a thousand a second for thirty years. The group's clock counts those of all members, and
/// a state whose clock says more than 10¹⁵ cannot be loaded.
const MOST_SAMPLES: u64 = 1_000_000_000_000;

/// Numbers were rounded to 32 bits on the way.
const ROUNDING: f64 = 1e-3;

/// What a member has learnt since a mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    pub(crate) head: String,
    pub(crate) settings: String,
    pub(crate) member: String,
    pub(crate) epoch: u64,
    pub(crate) after: u64,
    pub(crate) upto: u64,
    /// Samples that its member had given before, samples that it counts for, and the group's clock when it was cut.
    pub(crate) before: u64,
    pub(crate) samples: u64,
    pub(crate) stamp: f64,
    /// The half-life of the evidence, in samples of the group; 0 where nothing is forgotten.
    pub(crate) half_life: f64,
    pub(crate) sums: Sums,
}

/// The sums of a delta, faded to the moment when it was cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// Samples behind `sum`, samples behind the second moments, and how much was withdrawn of what labels contradicted.
    pub n: f64,
    pub second_n: f64,
    pub withdrawn: f64,
    pub sum: Vec<f32>,
    /// Empty where nothing came in.
    pub second_sum: Vec<f32>,
    pub second: Vec<f32>,
    /// The classes that something came in for, in order, each with its count and its sum.
    pub classes: Vec<u32>,
    pub class_n: Vec<f32>,
    pub class_sum: Vec<f32>,
}

impl Sums {
    /// Whether the sums fit each other.
    fn fit(&self) -> bool {
        let Sums { sum, second_sum, second, classes, class_n, class_sum, .. } = self;
        let dim = sum.len();
        (second.is_empty() || second.len() == triangle::len(dim))
            && second_sum.len() == if second.is_empty() { 0 } else { dim }
            && class_n.len() == classes.len()
            && Some(class_sum.len()) == classes.len().checked_mul(dim)
            && classes.is_sorted_by(|a, b| a < b)
    }
}

impl Delta {
    /// Who learnt it.
    pub fn member(&self) -> &str {
        &self.member
    }

    /// How often the member's contribution had been taken out before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The numbers of the member's contributions that it holds: those after the first, up to the second.
    pub fn span(&self) -> (u64, u64) {
        (self.after, self.upto)
    }

    /// Samples that it counts for.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The group's clock when it was cut: the samples of all members that its member knew of.
    pub fn stamp(&self) -> f64 {
        self.stamp
    }

    /// Number of classes that it teaches.
    pub fn n_classes(&self) -> usize {
        self.sums.classes.len()
    }

    /// Whether it holds second moments.
    pub fn has_second_moments(&self) -> bool {
        !self.sums.second.is_empty()
    }

    /// The evidence in it as plain numbers, for comparisons: counts, sums, second moments, classes in full.
    pub fn values(&self, classes: usize) -> Vec<f64> {
        let Sums { n, second_n, sum, second_sum, second, .. } = &self.sums;
        let dim = sum.len();
        let mut values = vec![*n, *second_n];
        values.extend(sum.iter().chain(second_sum).chain(second).map(|&v| v as f64));
        // Second moments that are left out are 0.
        values.resize(2 + 2 * dim + triangle::len(dim), 0.0);
        let (mut class_n, mut class_sum) = (vec![0.0; classes], vec![0.0; classes * dim]);
        for (i, &c) in self.sums.classes.iter().enumerate() {
            class_n[c as usize] = self.sums.class_n[i] as f64;
            let from = &self.sums.class_sum[i * dim..][..dim];
            class_sum[c as usize * dim..][..dim].iter_mut().zip(from).for_each(|(to, &v)| *to = v as f64);
        }
        values.extend(class_n);
        values.extend(class_sum);
        values
    }

    /// This contribution and the delta that follows it, as one: what a member gave, from what is kept of it.
    pub fn followed_by(&self, next: &Delta) -> Result<Delta> {
        let kin = (&self.head, &self.settings, &self.member, self.half_life);
        if kin != (&next.head, &next.settings, &next.member, next.half_life)
            || self.sums.sum.len() != next.sums.sum.len()
        {
            return Err(refused(&next.member, "it is no continuation: another member, head or settings"));
        }
        if (self.epoch, self.upto) != (next.epoch, next.after) {
            return Err(Error::Gap { member: next.member.clone(), expected: self.upto, got: next.after });
        }
        let stamp = self.stamp.max(next.stamp);
        let fade =
            |from: f64| if self.half_life > 0.0 { ((from - stamp) / self.half_life).exp2() } else { 1.0 };
        let (ours, theirs) = (fade(self.stamp), fade(next.stamp));
        let (a, b) = (&self.sums, &next.sums);
        let add = |a: &[f32], b: &[f32]| -> Vec<f32> {
            let at = |v: &[f32], i: usize| v.get(i).copied().unwrap_or(0.0) as f64;
            (0..a.len().max(b.len())).map(|i| (at(a, i) * ours + at(b, i) * theirs) as f32).collect()
        };
        let mut sums = Sums {
            n: a.n * ours + b.n * theirs,
            second_n: a.second_n * ours + b.second_n * theirs,
            withdrawn: a.withdrawn + b.withdrawn,
            sum: add(&a.sum, &b.sum),
            second_sum: add(&a.second_sum, &b.second_sum),
            second: add(&a.second, &b.second),
            ..Sums::default()
        };
        let dim = a.sum.len();
        let place = |of: &Sums, class: u32| of.classes.binary_search(&class).ok();
        let rows = |of: &'_ Sums, at: Option<usize>| -> Vec<f32> {
            at.map_or_else(Vec::new, |i| of.class_sum[i * dim..(i + 1) * dim].to_vec())
        };
        let mut classes: Vec<u32> = a.classes.iter().chain(&b.classes).copied().collect();
        classes.sort_unstable();
        classes.dedup();
        for &class in &classes {
            let (i, j) = (place(a, class), place(b, class));
            let count = |of: &Sums, at: Option<usize>| at.map_or(vec![], |i| vec![of.class_n[i]]);
            sums.class_n.extend(add(&count(a, i), &count(b, j)));
            sums.class_sum.extend(add(&rows(a, i), &rows(b, j)));
        }
        sums.classes = classes;
        let samples = self.samples + next.samples;
        Ok(Delta { upto: next.upto, samples, stamp, sums, ..self.clone() })
    }

    /// What is left of a contribution that was taken out: its samples were counted, and the next epoch begins.
    pub fn tombstone(&self) -> Delta {
        let sums = Sums { sum: vec![0.0; self.sums.sum.len()], ..Sums::default() };
        Delta { epoch: self.epoch + 1, upto: 0, sums, ..self.clone() }
    }

    /// The bytes of a delta, for a log or the wire.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut state = State::default();
        let strings = [
            ("format", FORMAT),
            ("head", &self.head),
            ("settings", &self.settings),
            ("member", &self.member),
        ];
        state.metadata.extend(strings.map(|(key, value)| (key.to_string(), value.to_string())));
        let Sums { n, second_n, withdrawn, sum, second_sum, second, classes, class_n, class_sum } =
            &self.sums;
        state.put("at", &[self.epoch, self.after, self.upto, self.before, self.samples]);
        state.put("n", &[*n, *second_n, *withdrawn, self.stamp, self.half_life]);
        state.put("sum", sum);
        state.put("second_sum", second_sum);
        state.put("second", second);
        state.put("classes", classes);
        state.put("class_n", class_n);
        state.put("class_sum", class_sum);
        state.to_bytes()
    }

    /// Reads the bytes of a delta. Its numbers are finite and its sums fit each other; whether they can be is for the member
    /// that takes it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let state = State::read(bytes)?;
        let string = |key: &str| state.metadata.get(key).cloned().unwrap_or_default();
        if string("format") != FORMAT {
            return Err(refused("a member", format!("expected {FORMAT}, got {:?}", string("format"))));
        }
        let member = string("member");
        state.check_finite().map_err(|e| refused(&member, reason_of(e)))?;
        let read = || -> Result<Self> {
            let [epoch, after, upto, before, samples] = state.counts("at")?;
            let &[n, second_n, withdrawn, stamp, half_life] = state.get::<f64>("n")? else {
                return Err(Error::state("n: expected 5 numbers"));
            };
            Ok(Self {
                head: string("head"),
                settings: string("settings"),
                member: member.clone(),
                epoch,
                after,
                upto,
                before,
                samples,
                stamp,
                half_life,
                sums: Sums {
                    n,
                    second_n,
                    withdrawn,
                    sum: state.get::<f32>("sum")?.to_vec(),
                    second_sum: state.get::<f32>("second_sum")?.to_vec(),
                    second: state.get::<f32>("second")?.to_vec(),
                    classes: state.get::<u32>("classes")?.to_vec(),
                    class_n: state.get::<f32>("class_n")?.to_vec(),
                    class_sum: state.get::<f32>("class_sum")?.to_vec(),
                },
            })
        };
        let delta = read().map_err(|e| refused(&member, reason_of(e)))?;
        if !delta.sums.fit() {
            return Err(refused(&member, "its sums do not fit each other"));
        }
        Ok(delta)
    }

    /// Refuses a delta of another head or other settings, and sums that unit rows cannot have.
    pub(crate) fn check(&self, head: &str, settings: &str, classes: usize, dim: usize) -> Result<()> {
        let no = |reason: String| Err(refused(&self.member, reason));
        if self.head != head {
            return no(format!("it is for another head (digest {}, this head is {head})", self.head));
        }
        if self.settings != settings {
            let key = differing_setting(settings, &self.settings);
            return no(format!("it was learnt under other settings: {key}"));
        }
        if self.member.is_empty() || self.after > self.upto {
            return no("it does not say whose it is, or which part".into());
        }
        let Sums { n, second_n, withdrawn, sum, second_sum, second, classes: listed, class_n, class_sum } =
            &self.sums;
        if self.before.saturating_add(self.samples) > MOST_SAMPLES {
            return no(format!("{} samples cannot be", self.before.saturating_add(self.samples)));
        }
        if !(0.0..=1e15).contains(&self.half_life) {
            return no(format!("its half-life, {}, cannot be", self.half_life));
        }
        let in_head = listed.last().is_none_or(|&class| (class as usize) < classes);
        if sum.len() != dim || !self.sums.fit() || !in_head {
            return no("its sums are not those of this head".into());
        }
        let samples = self.samples as f64 * (1.0 + ROUNDING);
        let within = |name: &str, value: f64, most: f64| {
            if (-1e-6..=most + 1e-3).contains(&value) {
                return Ok(());
            }
            no(format!("{name} weighs {value:.1}, and its {} samples justify {most:.1}", self.samples))
        };
        within("the sum of its images", *n, samples)?;
        within("the second moments", *second_n, samples + LATE)?;
        within("what labels withdrew", *withdrawn, samples + LABELS)?;
        let taught: f64 = class_n.iter().map(|&n| n.abs() as f64).sum();
        within("what it teaches the classes", taught, samples + withdrawn + LABELS)?;
        if !(0.0..=1e15).contains(&self.stamp) {
            return no(format!("its clock, {}, cannot be", self.stamp));
        }
        let norm = |v: &[f32]| v.iter().map(|&v| v as f64 * v as f64).sum::<f64>().sqrt();
        let longer = |v: &[f32], most: f64| norm(v) > most * (1.0 + ROUNDING) + 1e-3;
        let classes_longer = class_sum
            .chunks_exact(dim)
            .zip(class_n)
            .any(|(sum, &n)| longer(sum, n.abs() as f64 + 2.0 * withdrawn));
        if longer(sum, *n) || longer(second_sum, *second_n) || classes_longer {
            return no("a sum is longer than the samples behind it".into());
        }
        if !second.is_empty() {
            let diagonal = |i: usize| second[triangle::column(dim, i).start] as f64;
            let trace: f64 = (0..dim).map(diagonal).sum();
            // Rows have unit length, within 1 %.
            let fits = (trace - second_n).abs() <= 0.03 * second_n + 1e-3;
            let bounded = (0..dim).all(|c| {
                let column = &second[triangle::column(dim, c)];
                column.iter().enumerate().all(|(i, &v)| {
                    let most = (diagonal(c).max(0.0) * diagonal(c + i).max(0.0)).sqrt();
                    (v as f64).abs() <= most * (1.0 + ROUNDING) + 1e-3
                })
            });
            if !fits || !bounded {
                return no("its second moments are not those of unit rows".into());
            }
        }
        Ok(())
    }
}

/// The error that refuses a member's delta.
pub(crate) fn refused(member: &str, reason: impl Into<String>) -> Error {
    Error::Delta { member: member.into(), reason: reason.into() }
}

fn reason_of(error: Error) -> String {
    match error {
        Error::State { reason } => reason,
        other => other.to_string(),
    }
}
