//! The last scenes, each by its first row: the features rounded to 8 bits, the answer, and what the row had taught.
//! Corrections, explanations and suggestions are made from them. Memory is flat: about d + 200 bytes a scene.

use crate::kernels::{LANES, fold_lanes, max_lanes, padded, vectorised};
use crate::{Error, Result, State};

/// Shares of a sample that are kept: the largest ones. They are what a correction withdraws.
pub(super) const SHARES: usize = 8;

/// Shares of a sample among classes, the largest first; unused places have share 0.
pub(super) type Shares = [(u32, f32); SHARES];

/// Ids beyond this are not possible.
const MAX_ID: u64 = 1 << 62;

/// What a sample had taught; nothing if it has seen none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Samples that could teach, itself included, and samples of the evidence, at the time.
    pub seen: u64,
    pub samples: u64,
    /// How it was shared among the classes in the evidence.
    pub evidence: Shares,
}

/// A scene's first row as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptRow {
    pub id: u64,
    pub label: u32,
    pub prob: f32,
    /// Its adapted posterior, as which it was counted in the prior.
    pub posterior: Shares,
    pub counted: Counted,
    /// The features are `scale` times the numbers.
    pub scale: f32,
    pub numbers: Vec<i8>,
}

impl KeptRow {
    /// The features, nearly of unit length.
    pub(super) fn features(&self) -> Vec<f32> {
        self.numbers.iter().map(|&n| n as f32 * self.scale).collect()
    }

    /// Cosine to a unit row.
    fn cosine(&self, z: &[f32]) -> f32 {
        let own = self.features();
        let norm = fold_lanes(&own, &own, |a, b| a * b).sqrt();
        fold_lanes(&own, z, |a, b| a * b) / norm.max(1e-12)
    }
}

/// The largest shares of a list.
pub(super) fn largest(shares: impl Iterator<Item = (u32, f32)>) -> Shares {
    let mut kept = Shares::default();
    for share in shares {
        if share.1 > kept[SHARES - 1].1 {
            let place = kept.iter().position(|s| share.1 > s.1).unwrap_or(SHARES - 1);
            kept[place..].rotate_right(1);
            kept[place] = share;
        }
    }
    kept
}

/// A ring of scenes, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    most: usize,
    dim: usize,
    scenes: std::collections::VecDeque<KeptRow>,
}

impl Kept {
    pub(super) fn new(most: usize, dim: usize) -> Self {
        Self { most, dim, scenes: Default::default() }
    }

    /// Keeps a row.
    pub(super) fn push(
        &mut self,
        id: u64,
        z: &[f32],
        (label, prob): (usize, f32),
        posterior: Shares,
        counted: Counted,
    ) {
        if self.most == 0 {
            return;
        }
        // The oldest row's numbers are written over.
        let mut numbers = if self.scenes.len() == self.most { self.scenes.pop_front() } else { None }
            .map_or_else(|| Vec::with_capacity(self.dim), |old| old.numbers);
        let scale = largest_size(z) / i8::MAX as f32;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        numbers.resize(z.len(), 0);
        round(z, inverse, &mut numbers);
        self.scenes.push_back(KeptRow { id, label: label as u32, prob, posterior, counted, scale, numbers });
    }

    pub(super) fn len(&self) -> usize {
        self.scenes.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &KeptRow> {
        self.scenes.iter()
    }

    /// A scene by the id of its first row.
    pub(super) fn find(&self, id: u64) -> Result<&KeptRow> {
        let place = self.scenes.binary_search_by_key(&id, |scene| scene.id);
        place.map(|place| &self.scenes[place]).map_err(|_| Error::Forgotten {
            id,
            remembered: self.len(),
            setting: Some("advanced.correctable"),
        })
    }

    /// The `most` scenes nearest to a unit row, with their cosines.
    pub(super) fn nearest(&self, z: &[f32], most: usize) -> Vec<(&KeptRow, f32)> {
        let mut all: Vec<(&KeptRow, f32)> = self.iter().map(|scene| (scene, scene.cosine(z))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.id.cmp(&b.0.id)));
        all.truncate(most);
        all
    }

    /// What the scenes had taught is forgotten, so nothing of it can be withdrawn.
    pub(super) fn retire(&mut self) {
        self.scenes.iter_mut().for_each(|scene| scene.counted = Counted::default());
    }

    pub(super) fn bytes(&self) -> usize {
        self.most * (self.dim + size_of::<KeptRow>())
    }

    pub(super) fn save(&self, state: &mut State) {
        save_scenes("local.kept.", self.scenes.iter(), state);
    }

    /// Reads the newest scenes that there is room for.
    pub(super) fn load(&mut self, state: &State, classes: usize) -> Result<()> {
        let mut scenes = load_scenes("local.kept.", state, classes, self.dim)?;
        if !scenes.is_sorted_by(|a, b| a.id < b.id) {
            return Err(Error::state("local.kept.ids: not in their order"));
        }
        scenes.drain(..scenes.len().saturating_sub(self.most));
        self.scenes = scenes.into();
        Ok(())
    }
}

/// The largest absolute value.
fn largest_size(z: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (chunks, tail) = z.as_chunks::<LANES>();
            for chunk in chunks.iter().chain([&padded(tail, 0.0)]) {
                for i in 0..LANES {
                    let size = chunk[i].abs();
                    lanes[i] = if size > lanes[i] { size } else { lanes[i] };
                }
            }
            max_lanes(lanes)
        },
    )
}

/// `factor · z`, rounded to whole numbers, ties to even.
fn round(z: &[f32], factor: f32, out: &mut [i8]) {
    /// Adding 1.5·2^23 rounds to an integer that can be read from the low bits.
    const ROUND: f32 = 12_582_912.0;
    vectorised(
        #[inline(always)]
        || out.iter_mut().zip(z).for_each(|(o, v)| *o = (v * factor + ROUND).to_bits() as i8),
    );
}

/// Puts scenes into a state.
pub(super) fn save_scenes<'a>(
    prefix: &str,
    scenes: impl Iterator<Item = &'a KeptRow> + Clone,
    state: &mut State,
) {
    fn all<'a, T: Copy, const N: usize>(
        scenes: impl Iterator<Item = &'a KeptRow>,
        of: impl Fn(&KeptRow) -> [T; N],
    ) -> Vec<T> {
        scenes.flat_map(of).collect()
    }
    state.put(format!("{prefix}ids"), &all(scenes.clone(), |s| [s.id, s.counted.seen, s.counted.samples]));
    let classes = |s: &KeptRow| {
        let mut list = [s.label; 1 + 2 * SHARES];
        for i in 0..SHARES {
            (list[1 + i], list[1 + SHARES + i]) = (s.posterior[i].0, s.counted.evidence[i].0);
        }
        list
    };
    let shares = |s: &KeptRow| {
        let mut list = [s.prob; 2 + 2 * SHARES];
        list[1] = s.scale;
        for i in 0..SHARES {
            (list[2 + i], list[2 + SHARES + i]) = (s.posterior[i].1, s.counted.evidence[i].1);
        }
        list
    };
    state.put(format!("{prefix}classes"), &all(scenes.clone(), classes));
    state.put(format!("{prefix}shares"), &all(scenes.clone(), shares));
    let numbers: Vec<u8> = scenes.flat_map(|s| s.numbers.iter().map(|&n| n as u8)).collect();
    state.put(format!("{prefix}features"), &numbers);
}

/// Reads scenes from a state.
pub(super) fn load_scenes(prefix: &str, state: &State, classes: usize, dim: usize) -> Result<Vec<KeptRow>> {
    let bytes = state.get::<u8>(&format!("{prefix}features"))?;
    let n = bytes.len() / dim.max(1);
    if bytes.len() != n * dim {
        return Err(Error::state(format!("{prefix}features: not whole rows")));
    }
    let ids = state.get_n::<u64>(&format!("{prefix}ids"), 3 * n)?.as_chunks::<3>().0;
    if ids.as_flattened().iter().any(|&id| id > MAX_ID) {
        return Err(Error::state(format!("{prefix}ids: a number beyond {MAX_ID}")));
    }
    let labels = state.get_n::<u32>(&format!("{prefix}classes"), n * (1 + 2 * SHARES))?;
    if labels.iter().any(|&c| c as usize >= classes) {
        return Err(Error::state(format!("{prefix}classes: a class out of range")));
    }
    let shares = state.within::<f32>(&format!("{prefix}shares"), n * (2 + 2 * SHARES), 0.0..=1.001)?;
    let scene = |i: usize| {
        let labels = &labels[i * (1 + 2 * SHARES)..][..1 + 2 * SHARES];
        let shares = &shares[i * (2 + 2 * SHARES)..][..2 + 2 * SHARES];
        let list = |from: usize| std::array::from_fn(|k| (labels[1 + from + k], shares[2 + from + k]));
        let [id, seen, samples] = ids[i];
        KeptRow {
            id,
            label: labels[0],
            prob: shares[0],
            posterior: list(0),
            counted: Counted { seen, samples, evidence: list(SHARES) },
            scale: shares[1],
            numbers: bytes[i * dim..][..dim].iter().map(|&b| b as i8).collect(),
        }
    };
    Ok((0..n).map(scene).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(angle: f32) -> [f32; 3] {
        [angle.cos(), angle.sin(), 0.0]
    }

    #[test]
    fn a_row_is_kept_to_a_hundredth_and_found_by_id_and_by_look() {
        let mut kept = Kept::new(3, 3);
        for (id, angle) in [(4, 0.0), (6, 0.5), (9, 1.0), (11, 1.5)] {
            kept.push(id, &row(angle), (1, 0.5), Shares::default(), Counted::default());
        }
        assert!(kept.find(4).is_err() && kept.find(7).is_err(), "the oldest is gone");
        let kept_row = kept.find(9).unwrap().features();
        assert!(kept_row.iter().zip(row(1.0)).all(|(a, b)| (a - b).abs() < 5e-3), "{kept_row:?}");
        let near: Vec<u64> = kept.nearest(&row(1.1), 2).iter().map(|(scene, _)| scene.id).collect();
        assert_eq!(near, [9, 11]);
        assert!((kept.nearest(&row(1.0), 1)[0].1 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn the_largest_shares_are_kept_in_order() {
        let shares = largest((0..20).map(|c| (c, ((c * 7) % 20) as f32 / 20.0)));
        assert!(shares.is_sorted_by(|a, b| a.1 >= b.1) && shares[0].1 == 0.95 && shares[7].1 == 0.6);
        assert_eq!(largest([(3, 0.5)].into_iter())[..2], [(3, 0.5), (0, 0.0)]);
    }

    #[test]
    fn a_state_gives_them_back_and_damage_is_refused() {
        let mut kept = Kept::new(4, 3);
        let shares = largest([(1, 0.7), (0, 0.2)].into_iter());
        for id in 0..6 {
            let counted = Counted { seen: id, samples: 2 * id, evidence: Shares::default() };
            kept.push(id, &row(id as f32), (1, 0.25), shares, counted);
        }
        let mut state = State::default();
        kept.save(&mut state);
        let mut again = Kept::new(4, 3);
        again.load(&state, 2).unwrap();
        assert!(again.iter().eq(kept.iter()));
        let mut fewer = Kept::new(2, 3);
        fewer.load(&state, 2).unwrap();
        assert_eq!(fewer.iter().map(|s| s.id).collect::<Vec<_>>(), [4, 5]);
        assert!(again.load(&state, 1).is_err(), "a class that there is not");
        assert!(Kept::new(4, 5).load(&state, 2).is_err(), "rows of another length");
    }
}
