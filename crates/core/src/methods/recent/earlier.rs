//! Answers of long ago, for labels that come late in life. Of a sample the best few classes are kept, 64 bytes in all:
//! enough to tell how likely a label was, too little to teach what a class looks like.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Lump, NO_LUMP, Sample};
use crate::kernels::{LANES, exp, fold_lanes, max, vectorised};
use crate::{Error, Result, State};

/// Classes kept of a sample.
const BEST: usize = 4;

/// Records that are copied together when one is added to a clone.
const CHUNK: usize = 512;

/// Stands for no class.
const NONE: u32 = u32::MAX;

/// One answer. The logits are those of [`Sample`], with the image's part in `text`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    id: u64,
    classes: [u32; BEST],
    text: [f32; BEST],
    prior: [f32; BEST],
    /// The lump of all other classes: log of its mass, without and with the prior.
    lump: [f32; 2],
}

/// The last answers, at most `most` of them. Clones share what they have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    most: usize,
    /// Number of classes of the head.
    classes: usize,
    /// Oldest first; all but the last are full.
    chunks: VecDeque<Arc<Vec<Record>>>,
    work: Work,
}

/// Logits of one sample's candidates, with the image's part, without and with the prior; padded to whole chunks.
#[derive(Clone, Debug, Default)]
struct Work {
    text: Vec<f32>,
    answer: Vec<f32>,
}

/// Logit of a class that is not there.
const NOTHING: f32 = -1e30;

impl Earlier {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Default::default() }
    }

    /// Number of answers that are kept at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Number of answers kept now.
    pub(crate) fn len(&self) -> usize {
        let last = self.chunks.back().map_or(0, |chunk| chunk.len());
        (self.chunks.len().saturating_sub(1) * CHUNK + last).min(self.most)
    }

    /// The oldest that is kept.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.records().next().map(|record| record.id)
    }

    /// Those that are kept, oldest first. What is left of the oldest chunk beyond the bound is passed over.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let all: usize = self.chunks.iter().map(|chunk| chunk.len()).sum();
        self.chunks.iter().flat_map(|chunk| chunk.iter()).skip(all - self.len())
    }

    /// Takes in a sample as it was answered.
    pub(crate) fn push(&mut self, sample: &Sample<'_>) {
        if self.most == 0 {
            return;
        }
        self.classes = sample.classes.len() + sample.lump.classes as usize;
        let record = Record::of(sample, &mut self.work);
        self.add(record);
    }

    fn add(&mut self, record: Record) {
        match self.chunks.back_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => Arc::make_mut(chunk).push(record),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(record);
                self.chunks.push_back(Arc::new(chunk));
                // The oldest chunk goes when the full ones behind it hold enough.
                if self.chunks.len() >= 2 && (self.chunks.len() - 2) * CHUNK >= self.most {
                    self.chunks.pop_front();
                }
            }
        }
    }

    /// One of the last `remembered` answers, by its id.
    pub(crate) fn find(&self, id: u64, remembered: usize) -> Option<Sample<'_>> {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last.id < id));
        let chunk_records = self.chunks.get(chunk)?;
        let place = chunk_records.binary_search_by_key(&id, |record| record.id).ok()?;
        let behind: usize = self.chunks.range(chunk..).map(|chunk| chunk.len()).sum();
        let age = behind - place;
        (age <= remembered.min(self.most)).then(|| chunk_records[place].sample(self.classes))
    }

    /// Bytes that the records take when all are there.
    pub(crate) fn bytes(&self) -> usize {
        self.most * size_of::<Record>()
    }

    pub(crate) fn save(&self, prefix: &str, state: &mut State) {
        fn flat<T: Copy, const N: usize>(records: &[&Record], part: impl Fn(&Record) -> [T; N]) -> Vec<T> {
            records.iter().flat_map(|record| part(record)).collect()
        }
        let records: Vec<&Record> = self.records().collect();
        state.put(format!("{prefix}earlier.ids"), &flat(&records, |r| [r.id]));
        state.put(format!("{prefix}earlier.classes"), &flat(&records, |r| r.classes));
        state.put(format!("{prefix}earlier.text"), &flat(&records, |r| r.text));
        state.put(format!("{prefix}earlier.prior"), &flat(&records, |r| r.prior));
        state.put(format!("{prefix}earlier.lump"), &flat(&records, |r| r.lump));
    }

    /// Reads what was saved: the newest, if there are more than are kept here.
    pub(crate) fn load(&mut self, prefix: &str, state: &State, n_classes: usize) -> Result<()> {
        let mut fresh = Self { classes: n_classes, ..Self::new(self.most) };
        let name = |part: &str| format!("{prefix}earlier.{part}");
        if self.most > 0 {
            let ids = state.get::<u64>(&name("ids"))?;
            if !ids.is_sorted_by(|a, b| a < b) {
                return Err(Error::state(format!("{}: samples out of order", name("ids"))));
            }
            let cells = ids.len().saturating_mul(BEST);
            let classes = state.get_n::<u32>(&name("classes"), cells)?.as_chunks().0;
            let possible = |class: &u32| (*class as usize) < n_classes || *class == NONE;
            if !classes.iter().all(|row: &[u32; BEST]| row[0] != NONE && row.iter().all(possible)) {
                return Err(Error::state(format!("{}: a class out of range", name("classes"))));
            }
            // Products of numbers within these bounds stay finite.
            let numbers = |part: &str, len: usize| state.within::<f32>(&name(part), len, -1e12..=1e12);
            let text = numbers("text", cells)?.as_chunks().0;
            let prior = numbers("prior", cells)?.as_chunks().0;
            let lump = numbers("lump", ids.len().saturating_mul(2))?.as_chunks().0;
            for i in ids.len().saturating_sub(self.most)..ids.len() {
                let (classes, text, prior) = (classes[i], text[i], prior[i]);
                fresh.add(Record { id: ids[i], classes, text, prior, lump: lump[i] });
            }
        }
        *self = fresh;
        Ok(())
    }
}

/// A logit with which fits can reckon.
fn bounded(logit: f32) -> f32 {
    logit.clamp(-1e9, 1e9)
}

/// Places of the largest values, the largest first and the lower place first among equals; as many as there are.
fn best_places(values: &[f32]) -> [usize; BEST] {
    let (mut best, mut places) = ([f32::NEG_INFINITY; BEST], [0; BEST]);
    for (place, &value) in values.iter().enumerate() {
        if value > best[BEST - 1] {
            let at = best.iter().position(|other| value > *other).unwrap_or(BEST - 1);
            best[at..].rotate_right(1);
            places[at..].rotate_right(1);
            (best[at], places[at]) = (value, place);
        }
    }
    places
}

impl Record {
    fn of(sample: &Sample<'_>, work: &mut Work) -> Self {
        let n = sample.classes.len();
        let Work { text, answer } = work;
        for logits in [&mut *text, &mut *answer] {
            logits.clear();
            logits.resize(n.next_multiple_of(LANES), NOTHING);
        }
        let (weight, parts) = (sample.image_weight, sample.text.iter().zip(sample.image).zip(sample.prior));
        vectorised(
            #[inline(always)]
            || {
                let into = text[..n].iter_mut().zip(&mut answer[..n]);
                for ((text, answer), ((t, v), p)) in into.zip(parts.clone()) {
                    *text = bounded(t + weight * v);
                    *answer = *text + p;
                }
            },
        );
        let mut best = best_places(&answer[..n]);
        let best = &mut best[..n.min(BEST)];
        best.sort_unstable();
        let mut record = Self {
            id: sample.id,
            classes: [NONE; BEST],
            text: [0.0; BEST],
            prior: [0.0; BEST],
            lump: [0.0; 2],
        };
        for (place, &i) in best.iter().enumerate() {
            record.classes[place] = sample.classes[i];
            record.text[place] = text[i];
            record.prior[place] = sample.prior[i];
            (text[i], answer[i]) = (NOTHING, NOTHING);
        }
        // The other candidates join the lump.
        let lump = sample.lump;
        let others = (n - best.len()) as f32 + lump.classes;
        let log_mass = |own: f32, logits: &[f32]| {
            if others <= 0.0 {
                return NO_LUMP;
            }
            let own = if lump.classes > 0.0 { own } else { NOTHING };
            let top = max(logits).max(own);
            let sum = fold_lanes(logits, logits, |x, _| exp(x - top)) + exp(own - top);
            bounded(top + sum.ln()).max((others * 1e-9).ln())
        };
        record.lump = [log_mass(lump.text, text), log_mass(lump.prior, answer)];
        record
    }

    /// The answer as the fits take samples.
    fn sample(&self, classes: usize) -> Sample<'_> {
        let kept = self.classes.iter().position(|&class| class == NONE).unwrap_or(BEST);
        let lump = Lump {
            classes: classes.saturating_sub(kept) as f32,
            text: self.lump[0],
            prior: self.lump[1],
            ratio: 0.0,
        };
        Sample {
            id: self.id,
            classes: &self.classes[..kept],
            text: &self.text[..kept],
            image: &[0.0; BEST][..kept],
            prior: &self.prior[..kept],
            features: &[],
            image_weight: 0.0,
            lump,
            flags: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(earlier: &mut Earlier, id: u64) {
        let best = id as u32 % 6;
        let text: Vec<f32> = (0..6).map(|c| if c == best { 0.0 } else { -1.0 - c as f32 }).collect();
        earlier.push(&Sample {
            id,
            classes: &[0, 1, 2, 3, 4, 5],
            text: &text,
            image: &[0.5; 6],
            prior: &[0.1; 6],
            features: &[],
            image_weight: 2.0,
            lump: Lump { classes: 4.0, text: -3.0, prior: -2.9, ratio: 0.0 },
            flags: Default::default(),
        });
    }

    #[test]
    fn the_newest_are_found_with_their_best_classes() {
        assert!(size_of::<Record>() <= 64);
        let mut earlier = Earlier::new(1000);
        assert_eq!((earlier.len(), earlier.oldest()), (0, None));
        for id in 0..5000 {
            // Ids grow, and not every one is there.
            push(&mut earlier, 3 * id);
            assert_eq!(earlier.len(), 1000.min(id as usize + 1));
        }
        assert_eq!(earlier.oldest(), Some(12_000));
        assert!(earlier.chunks.len() * CHUNK <= 1000 + 2 * CHUNK);
        for id in [0, 11_997, 12_001, 15_000, u64::MAX] {
            assert!(earlier.find(id, usize::MAX).is_none(), "{id}");
        }
        assert!(earlier.find(14_700, 100).is_some() && earlier.find(14_697, 100).is_none());
        let sample = earlier.find(12_003, usize::MAX).unwrap();
        assert_eq!((sample.id, sample.classes), (12_003, &[0, 1, 2, 3][..]));
        assert_eq!((sample.text[3], sample.prior[0], sample.lump.classes), (1.0, 0.1, 6.0));
        let expected = ((-3.0f32).exp() + (-4.0f32).exp() + (-5.0f32).exp()).ln();
        assert!((sample.lump.text - expected).abs() < 1e-5, "{} {expected}", sample.lump.text);
    }

    #[test]
    fn what_is_saved_is_read_and_clones_share_it() {
        let mut earlier = Earlier::new(700);
        (0..2000).for_each(|id| push(&mut earlier, id));
        let clone = earlier.clone();
        push(&mut earlier, 2000);
        assert!(Arc::ptr_eq(&clone.chunks[0], &earlier.chunks[0]));
        assert!(clone.find(2000, 700).is_none() && earlier.find(2000, 700).is_some());
        let mut state = State::default();
        earlier.save("p.", &mut state);
        for most in [700, 50, 5000] {
            let mut read = Earlier::new(most);
            read.load("p.", &state, 10).unwrap();
            assert_eq!(read.len(), most.min(700));
            let ids: Vec<u64> = read.records().map(|record| record.id).collect();
            assert_eq!(ids, (2001 - most.min(700) as u64..2001).collect::<Vec<_>>());
            let (own, all): (Vec<_>, Vec<_>) = (read.records().collect(), earlier.records().collect());
            assert!(all.ends_with(&own));
        }
        assert!(Earlier::new(5).load("p.", &state, 3).is_err(), "a class that there is not");
    }
}
