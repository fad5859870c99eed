//! The last answered samples, each as it was scored before it taught: what the fits of UL-TTA run over.
//!
//! A sample keeps the scores of its *candidates*: the classes with the best scores, at most a fixed number. All
//! other classes of the sample are kept as one entry, the *lump*: how many classes there are and how much mass they
//! have together. So memory does not grow with the number of classes. Rows are padded with entries of no mass, so
//! that a row fills whole vector registers.

use crate::kernels::{LANES, indices_above};
use crate::{Error, Result, State};

mod earlier;
mod labels;
mod lines;

use crate::adapter::Memory;
use earlier::Earlier;
pub(crate) use labels::Labelled;
pub(crate) use lines::Lines;

/// Logit of an entry without mass: far below any real one, and its square is still finite.
const NOTHING: f32 = -1e4;

/// Samples whose features are kept, where labels teach.
pub(crate) const TEACHABLE: usize = 1024;

/// log of the lump's mass where there is no lump.
const NO_LUMP: f32 = -80.0;

/// A remembered sample. Logits are relative to the best frozen logit. In a sample that was read from [`Recent`] the
/// entry after the last candidate is the lump, and the entries after the lump are padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    pub id: u64,
    /// The candidates.
    pub classes: &'a [u32],
    /// Frozen logits; for the lump, the log of its mass.
    pub text: &'a [f32],
    /// What the prototypes add to the logits, before `image_weight`; 0 for the lump.
    pub image: &'a [f32],
    /// log(C π_c) when the sample was answered; for the lump, what has to be added to `text` to get the log of its
    /// mass under the prior.
    pub prior: &'a [f32],
    /// The sample's features, where they are kept; else empty.
    pub features: &'a [f32],
    /// Weight of `image` in the answer.
    pub image_weight: f32,
    pub lump: Lump,
    pub flags: Flags,
}

/// The classes of a sample that are no candidates, together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lump {
    /// Number of these classes.
    pub classes: f32,
    /// log Σ exp(frozen logit − best) over them.
    pub text: f32,
    /// log Σ exp(frozen logit − best + log(C π_c)) over them, with the moved prototypes where these move.
    pub prior: f32,
    /// log of the mean C π_c over them.
    pub ratio: f32,
}

impl Lump {
    /// log of the number of classes.
    #[inline(always)]
    pub(crate) fn log_classes(&self) -> f32 {
        if self.classes > 1.0 { self.classes.ln() } else { 0.0 }
    }

    /// The log of a mass that lumped classes have, bounded away from log 0.
    pub(crate) fn log_mass(classes: f32, mass: f32) -> f32 {
        if classes > 0.0 { mass.max(classes * 1e-9).ln() } else { NO_LUMP }
    }
}

/// How a sample was treated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flags {
    /// The sample may be used by fits without labels.
    pub teaches: bool,
    /// `image` holds scores of the image evidence.
    pub has_image: bool,
    /// The gate admitted the sample.
    pub admitted: bool,
}

impl Flags {
    fn to_byte(self) -> u8 {
        u8::from(self.teaches) | u8::from(self.has_image) << 1 | u8::from(self.admitted) << 2
    }

    fn from_byte(byte: u8) -> Self {
        Self { teaches: byte & 1 != 0, has_image: byte & 2 != 0, admitted: byte & 4 != 0 }
    }
}

/// The candidates of a sample: all classes if there are at most `most`, else the classes whose logit is within
/// `range` of `best`, and of these the `most` best.
pub(crate) fn choose_candidates(
    logits: &[f32],
    best: f32,
    most: usize,
    range: f64,
    candidates: &mut Vec<u32>,
) {
    candidates.clear();
    if logits.len() <= most {
        candidates.extend(0..logits.len() as u32);
        return;
    }
    indices_above(logits, best - range as f32, candidates);
    if candidates.len() > most {
        let by_score = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        candidates.select_nth_unstable_by(most - 1, by_score);
        candidates.truncate(most);
        candidates.sort_unstable();
    }
}

/// A ring of samples: the last `capacity` ones. Of earlier ones a little is kept, where labels may come for them.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    capacity: usize,
    /// Most candidates of a sample.
    width: usize,
    /// Entries of a row: candidates, lump and padding.
    stride: usize,
    /// Length of the features kept per sample; 0 where none are kept.
    dim: usize,
    len: usize,
    next: usize,
    ids: Vec<u64>,
    counts: Vec<u32>,
    classes: Vec<u32>,
    text: Vec<f32>,
    image: Vec<f32>,
    prior: Vec<f32>,
    features: Vec<f32>,
    image_weights: Vec<f32>,
    lumps: Vec<Lump>,
    flags: Vec<Flags>,
    earlier: Earlier,
}

impl Recent {
    /// A ring for `capacity` samples with at most `width` candidates; `dim` features are kept per sample.
    pub(crate) fn new(capacity: usize, width: usize, dim: usize) -> Self {
        let stride = (width + 1).next_multiple_of(LANES);
        Self {
            capacity,
            width,
            stride,
            dim,
            len: 0,
            next: 0,
            ids: vec![0; capacity],
            counts: vec![0; capacity],
            classes: vec![0; capacity * width],
            text: vec![0.0; capacity * stride],
            image: vec![0.0; capacity * stride],
            prior: vec![0.0; capacity * stride],
            features: vec![0.0; capacity * dim],
            image_weights: vec![0.0; capacity],
            lumps: vec![Lump::default(); capacity],
            flags: vec![Flags::default(); capacity],
            earlier: Earlier::default(),
        }
    }

    /// The same ring, which also keeps a little of the last `most` samples.
    pub(crate) fn remembering(self, most: usize) -> Self {
        Self { earlier: Earlier::new(most), ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes in a sample. Of its slices only the candidates' entries are read: lump and padding are written here.
    pub(crate) fn push(&mut self, sample: Sample<'_>) {
        let slot = self.next;
        let n = sample.classes.len();
        self.ids[slot] = sample.id;
        self.counts[slot] = n as u32;
        self.classes[slot * self.width..][..n].copy_from_slice(sample.classes);
        let row = slot * self.stride..slot * self.stride + (n + 1).next_multiple_of(LANES);
        let lump = sample.lump;
        let (lump_text, lump_prior) =
            if lump.classes > 0.0 { (lump.text, lump.prior - lump.text) } else { (NOTHING, NOTHING) };
        let fill = |into: &mut [f32], from: &[f32], lump: f32, pad: f32| {
            into[..n].copy_from_slice(&from[..n]);
            into[n] = lump;
            into[n + 1..].fill(pad);
        };
        fill(&mut self.text[row.clone()], sample.text, lump_text, NOTHING);
        fill(&mut self.image[row.clone()], sample.image, 0.0, 0.0);
        fill(&mut self.prior[row], sample.prior, lump_prior, NOTHING);
        let kept = &mut self.features[slot * self.dim..][..self.dim];
        if sample.features.len() >= self.dim {
            kept.copy_from_slice(&sample.features[..self.dim]);
        } else {
            kept.fill(0.0);
        }
        self.image_weights[slot] = sample.image_weight;
        self.lumps[slot] = lump;
        self.flags[slot] = sample.flags;
        self.earlier.push(&sample);
        self.next = (slot + 1) % self.capacity;
        self.len = self.capacity.min(self.len + 1);
    }

    /// No sample so far is used by fits without labels any more.
    pub(crate) fn retire(&mut self) {
        self.flags.iter_mut().for_each(|flags| flags.teaches = false);
    }

    fn slot(&self, age: usize) -> usize {
        (self.next + self.capacity - 1 - age) % self.capacity
    }

    #[inline(always)]
    fn at(&self, slot: usize) -> Sample<'_> {
        let n = self.counts[slot] as usize;
        let row = slot * self.stride..slot * self.stride + (n + 1).next_multiple_of(LANES);
        Sample {
            id: self.ids[slot],
            classes: &self.classes[slot * self.width..][..n],
            text: &self.text[row.clone()],
            image: &self.image[row.clone()],
            prior: &self.prior[row],
            features: &self.features[slot * self.dim..][..self.dim],
            image_weight: self.image_weights[slot],
            lump: self.lumps[slot],
            flags: self.flags[slot],
        }
    }

    /// The last `n` samples, newest first.
    pub(crate) fn newest(&self, n: usize) -> impl Iterator<Item = Sample<'_>> {
        (0..n.min(self.len)).map(|age| self.at(self.slot(age)))
    }

    /// One of the samples that can be labelled, by its id: whole if it is in the ring, else what is kept of it.
    pub(crate) fn find(&self, id: u64, remembered: usize) -> Result<Sample<'_>> {
        let found = self.find_whole(id, remembered).or_else(|| self.earlier.find(id, remembered));
        found.ok_or_else(|| Error::Forgotten {
            id,
            remembered: self.memory().samples,
            setting: Some("feedback.remember"),
        })
    }

    /// What delayed labels can be for.
    pub(crate) fn memory(&self) -> Memory {
        let (samples, oldest) = (self.earlier.len(), self.earlier.oldest());
        Memory { samples, oldest, most: self.earlier.most(), setting: "feedback.remember" }
    }

    fn find_whole(&self, id: u64, remembered: usize) -> Option<Sample<'_>> {
        let remembered = self.len.min(remembered);
        // Ids grow, so this is a binary search by age.
        let (mut young, mut old) = (0, remembered);
        while young < old {
            let age = (young + old) / 2;
            let slot = self.slot(age);
            match self.ids[slot].cmp(&id) {
                std::cmp::Ordering::Equal => return Some(self.at(slot)),
                std::cmp::Ordering::Greater => young = age + 1,
                std::cmp::Ordering::Less => old = age,
            }
        }
        None
    }

    pub(crate) fn bytes(&self) -> usize {
        self.capacity * (self.width * 4 + self.stride * 12 + 8 + 4 + 5 * 4 + 1 + self.dim * 4)
            + self.earlier.bytes()
    }

    /// Puts the samples into a state, oldest first, without lump entries and padding.
    pub(crate) fn save(&self, prefix: &str, state: &mut State) {
        let slots: Vec<usize> = (0..self.len).rev().map(|age| self.slot(age)).collect();
        let floats = |values: fn(&Sample<'_>) -> Vec<f32>| {
            slots.iter().flat_map(|&s| values(&self.at(s))).collect::<Vec<f32>>()
        };
        state.put(format!("{prefix}ids"), &slots.iter().map(|&s| self.ids[s]).collect::<Vec<_>>());
        state.put(format!("{prefix}counts"), &slots.iter().map(|&s| self.counts[s]).collect::<Vec<_>>());
        let classes: Vec<u32> = slots.iter().flat_map(|&s| self.at(s).classes.to_vec()).collect();
        state.put(format!("{prefix}classes"), &classes);
        state.put(format!("{prefix}text"), &floats(|s| s.text[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}image"), &floats(|s| s.image[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}prior"), &floats(|s| s.prior[..s.classes.len()].to_vec()));
        state.put(format!("{prefix}image_weight"), &floats(|s| vec![s.image_weight]));
        state.put(
            format!("{prefix}lump"),
            &floats(|s| vec![s.lump.classes, s.lump.text, s.lump.prior, s.lump.ratio]),
        );
        let flags: Vec<u8> = slots.iter().map(|&s| self.flags[s].to_byte()).collect();
        state.put(format!("{prefix}flags"), &flags);
        if self.earlier.most() > 0 {
            self.earlier.save(prefix, state);
        }
        if self.dim > 0 {
            state.put(format!("{prefix}features"), &floats(|s| s.features.to_vec()));
        }
    }

    /// Reads the samples of a state: the newest ones, if there are more than this ring holds. Samples that were
    /// saved without features have none.
    pub(crate) fn load(&mut self, prefix: &str, state: &State, n_classes: usize) -> Result<()> {
        let name = |part: &str| format!("{prefix}{part}");
        let ids = state.get::<u64>(&name("ids"))?;
        let counts = state.get_n::<u32>(&name("counts"), ids.len())?;
        if !counts.iter().all(|&c| (1..=self.width).contains(&(c as usize))) {
            return Err(Error::state(format!("{prefix}counts: expected 1 to {} candidates", self.width)));
        }
        let total = counts.iter().map(|&c| c as usize).sum();
        let classes = state.get_n::<u32>(&name("classes"), total)?;
        if classes.iter().any(|&c| c as usize >= n_classes) {
            return Err(Error::state(format!("{prefix}classes: a class out of range")));
        }
        // Products of numbers within these bounds stay finite.
        let numbers = |part: &str, len: usize| state.within::<f32>(&name(part), len, -1e12..=1e12);
        let text = numbers("text", total)?;
        let image = numbers("image", total)?;
        let prior = numbers("prior", total)?;
        let image_weights = numbers("image_weight", ids.len())?;
        let lumps = numbers("lump", ids.len() * 4)?.as_chunks::<4>().0;
        let flags = state.get_n::<u8>(&name("flags"), ids.len())?;
        let with_features = self.dim > 0 && state.has(&name("features"));
        let features: &[f32] =
            if with_features { state.get_n(&name("features"), ids.len() * self.dim)? } else { &[] };
        let mut fresh = Self::new(self.capacity, self.width, self.dim);
        let mut start = 0;
        for (i, &id) in ids.iter().enumerate() {
            let row = start..start + counts[i] as usize;
            start = row.end;
            let [lump_classes, lump_text, lump_prior, ratio] = lumps[i];
            fresh.push(Sample {
                id,
                classes: &classes[row.clone()],
                text: &text[row.clone()],
                image: &image[row.clone()],
                prior: &prior[row],
                features: if with_features { &features[i * self.dim..][..self.dim] } else { &[] },
                image_weight: image_weights[i],
                lump: Lump { classes: lump_classes, text: lump_text, prior: lump_prior, ratio },
                flags: Flags::from_byte(flags[i]),
            });
        }
        // What is kept of each sample is read as it was written: a ring may hold fewer samples than it once did.
        fresh.earlier = Earlier::new(self.earlier.most());
        fresh.earlier.load(prefix, state, n_classes)?;
        *self = fresh;
        Ok(())
    }

    /// Refuses samples that are not in the order of their ids, as they are where samples enter on arrival.
    pub(crate) fn check_order(&self, prefix: &str) -> Result<()> {
        let ids = || self.newest(self.len).map(|s| s.id);
        if ids().zip(ids().skip(1)).all(|(young, old)| young > old) {
            return Ok(());
        }
        Err(Error::state(format!("{prefix}ids: samples out of order")))
    }
}
