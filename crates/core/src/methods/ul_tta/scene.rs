//! Scenes. A *scene* is a run of near-copies: a camera sees one picture many times. Thirty copies of one frame are
//! one witness, so a scene teaches once, by its first row. The other rows, its *copies*, are answered from the mean
//! of the scene so far, which is steadier, and teach nothing.
//!
//! A row z with frozen logits l is a near-copy of the scene with mean feature m and mean logits L if both hold:
//!
//! ```text
//! 1 − cos(z, m) < near · spread             RMS of (l − L), centred < ½ · nats
//! ```
//!
//! What near means is learnt from the stream: `spread` is how far apart independent pictures are (1 − cosine to their
//! mean direction), `nats` how much the logits of two of them differ. Both are running estimates over the first rows
//! of scenes, held near a start value at first and below a cap always: rows of noise lie far apart and would make
//! everything else look near.
//!
//! *Witnesses.* Copies are not quite alike, so k of them say a little more than one. With ρ how much they are alike, 1 less how far apart two
//! of them are as a share of `spread`, they are worth k / (1 + (k − 1) ρ) rows: the frozen model's mean logits count as
//! often. Rows that are all the same are worth one. Pictures of one class that are taken for copies, because they look alike, are
//! worth more, so that what they show is not outvoted for the whole scene by what was before it.
//!
//! Where a scene is cut depends on the rows alone, never on how they are grouped, answered or learnt from; nor on what
//! the guard does (`arrival.rs`, `keep_rows`). A row that
//! may not teach is compared with the scene at hand and leaves it as it is. One stream is one camera: with rows of
//! several cameras in turns every row begins a scene.

use std::collections::VecDeque;

use super::config::Advanced;
use crate::kernels::{LANES, fold_lanes, sum_lanes, vectorised};
use crate::{Error, Result, State};

/// How far apart independent pictures are taken to be before the stream has told: 1 − cosine to the mean.
const SPREAD_START: f64 = 0.4;

/// The same in nats of a logit.
const NATS_START: f64 = 2.0;

/// The logits of a near-copy differ by less than this share of how much those of two pictures do.
const NEAR_LOGITS: f64 = 0.5;

/// Scenes that the start values are worth.
const START_WORTH: f64 = 20.0;

/// The most that the spread can become. Without a cap noise widens spread and nats, and pictures of a narrow domain that
/// follow become one scene.
const SPREAD_MOST: f64 = 0.4;

/// The most that the nats can become, for the same reason.
const NATS_MOST: f64 = 3.0;

/// Scenes after which an old scene counts half in spread and nats.
const SPREAD_HALF_LIFE: f64 = 64.0;

/// Rows at the end of a scene that its mean follows: a slow pan stays one scene for a while, not for ever.
const FOLLOW: f64 = 64.0;

/// Runs of copies whose ids are remembered for delayed labels.
const COPIES: usize = 8192;

/// Ids beyond this are not possible; counting on from an id cannot overflow.
const MAX_ID: u64 = 1 << 62;

/// The scene at hand, and what near means in this stream.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    /// `near` above (`advanced.scene_near`).
    near: f64,
    /// Mean feature, not of unit length, and mean frozen logits. Empty before the first row.
    pub mean: Vec<f32>,
    pub logits: Vec<f32>,
    /// C π_c and log(C π_c) as they were for its first row: copies are answered under the same prior.
    pub mix: Vec<f32>,
    pub log_prior: Vec<f32>,
    /// Rows in it.
    rows: f64,
    /// Id of its first row.
    first_id: u64,
    /// Whether it began with garbage.
    pub garbage: bool,
    apart: Apart,
    /// Runs of copies, oldest first: first id, last id, id of the row that taught.
    copies: VecDeque<[u64; 3]>,
}

/// How far apart independent pictures are: decayed sums over the first rows of scenes.
#[derive(Clone, Debug)]
struct Apart {
    scenes: f64,
    /// Σ z and Σ of centred logits, and their squared lengths (of the logits, per class).
    features: Vec<f32>,
    logits: Vec<f32>,
    features_squared: f64,
    logits_squared: f64,
    /// Σ of the mean square of centred logits.
    squares: f64,
}

impl Scene {
    pub(super) fn new(a: &Advanced, classes: usize, dim: usize) -> Self {
        Self {
            near: a.scene_near,
            mean: Vec::new(),
            logits: Vec::new(),
            mix: vec![1.0; classes],
            log_prior: vec![0.0; classes],
            rows: 0.0,
            first_id: 0,
            garbage: false,
            apart: Apart::new(classes, dim),
            copies: VecDeque::new(),
        }
    }

    /// Whether a row is a near-copy of the scene at hand.
    pub(super) fn holds(&self, z: &[f32], logits: &[f32]) -> bool {
        if self.mean.is_empty() {
            return false;
        }
        let dot = fold_lanes(z, &self.mean, |a, b| a * b);
        // One row alone is of unit length.
        let norm =
            if self.rows <= 1.0 { 1.0 } else { fold_lanes(&self.mean, &self.mean, |a, b| a * b).sqrt() };
        let far = (1.0 - dot / norm.max(1e-12)) as f64;
        far < self.near * self.apart.spread() && {
            let n = logits.len() as f32;
            let mean = fold_lanes(logits, &self.logits, |a, b| a - b) / n;
            let squares = fold_lanes(logits, &self.logits, |a, b| (a - b - mean) * (a - b - mean)) / n;
            (squares as f64) < NEAR_LOGITS * NEAR_LOGITS * self.apart.nats_squared()
        }
    }

    /// How many independent rows the scene is worth: at least 1, and 1 if its rows are all the same.
    fn witnesses(&self) -> f64 {
        let rows = self.rows.min(FOLLOW);
        if rows <= 1.0 {
            return 1.0;
        }
        // 1 − the mean cosine of two of its rows, of which the mean's squared length has one of each row with itself.
        let apart = (1.0 - fold_lanes(&self.mean, &self.mean, |a, b| a * b) as f64) * rows / (rows - 1.0);
        let alike = 1.0 - (apart / self.apart.spread().max(1e-12)).clamp(0.0, 1.0);
        rows / (1.0 + (rows - 1.0) * alike)
    }

    /// Writes what the frozen model says of the scene: its mean logits, as often as it has witnesses.
    pub(super) fn say(&self, logits: &mut Vec<f32>) {
        let witnesses = self.witnesses() as f32;
        logits.clear();
        logits.extend(self.logits.iter().map(|logit| witnesses * logit));
    }

    /// Takes a near-copy into the scene at hand.
    pub(super) fn join(&mut self, z: &[f32], logits: &[f32]) {
        self.rows += 1.0;
        let share = (1.0 / self.rows.min(FOLLOW)) as f32;
        follow(&mut self.mean, z, share);
        follow(&mut self.logits, logits, share);
    }

    /// Remembers the id of a copy, for delayed labels.
    pub(super) fn note_copy(&mut self, id: u64) {
        match self.copies.back_mut() {
            Some([_, last, taught]) if *last + 1 == id && *taught == self.first_id => *last = id,
            _ => {
                if self.copies.len() == COPIES {
                    self.copies.pop_front();
                }
                self.copies.push_back([id, id, self.first_id]);
            }
        }
    }

    /// Begins a scene with a row that was answered under a prior; `moments` are the mean of its logits and their mean square
    /// after centring, and nothing for garbage, which tells nothing of what near means.
    pub(super) fn begin(&mut self, id: u64, z: &[f32], logits: &[f32], moments: Option<(f32, f64)>) {
        self.rows = 1.0;
        self.first_id = id;
        self.mean.clear();
        self.mean.extend_from_slice(z);
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.garbage = moments.is_none();
        if let Some((mean, square)) = moments {
            self.apart.add(z, logits, mean, square);
        }
    }

    /// Sums of the centred logits of earlier samples, and their number.
    pub(super) fn usual(&self) -> (&[f32], f64) {
        (&self.apart.logits, self.apart.scenes)
    }

    /// Keeps the prior under which the first row was answered.
    pub(super) fn keep_prior(&mut self, mix: &[f32], log_prior: &[f32]) {
        self.mix.copy_from_slice(mix);
        self.log_prior.copy_from_slice(log_prior);
    }

    /// Copies of the scene at hand are answered under no prior from here on.
    pub(super) fn forget_prior(&mut self) {
        self.mix.fill(1.0);
        self.log_prior.fill(0.0);
    }

    /// What near means starts again: the stream has changed.
    pub(super) fn forget(&mut self) {
        self.apart = Apart::new(self.apart.logits.len(), self.apart.features.len());
    }

    /// The id of the row that taught for a row: of its scene's first row if it is a copy, else its own.
    pub(super) fn taught_by(&self, id: u64) -> u64 {
        let run = self.copies.get(self.copies.partition_point(|run| run[1] < id));
        run.filter(|run| run[0] <= id).map_or(id, |run| run[2])
    }

    pub(super) fn bytes(&self) -> usize {
        self.mix.len() * 16 + self.apart.features.len() * 8 + COPIES * 24
    }

    pub(super) fn save(&self, state: &mut State) {
        let a = &self.apart;
        state.put("local.scene.mean", &self.mean);
        state.put("local.scene.logits", &self.logits);
        state.put("local.scene.mix", &self.mix);
        state.put("local.scene.log_prior", &self.log_prior);
        state.put("local.scene.counts", &[self.rows as u64, self.first_id]);
        state.put("local.scene.garbage", &[u64::from(self.garbage)]);
        state.put("local.scene.apart.features", &a.features);
        state.put("local.scene.apart.logits", &a.logits);
        state.put("local.scene.apart.sums", &[a.scenes, a.squares]);
        let (taught, others): (Vec<u64>, Vec<[u64; 2]>) =
            self.copies.iter().map(|&[from, to, taught]| (taught, [from, to])).unzip();
        state.put("local.scene.copies", others.as_flattened());
        state.put("local.scene.copies_of", &taught);
    }

    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        let (classes, dim) = (self.apart.logits.len(), self.apart.features.len());
        let begun = !state.get::<f32>("local.scene.mean")?.is_empty();
        let numbers = |name: &str, len: usize, most: f64| {
            Ok::<_, Error>(state.within::<f32>(name, len, -most..=most)?.to_vec())
        };
        self.mean = numbers("local.scene.mean", if begun { dim } else { 0 }, 1.001)?;
        self.logits = numbers("local.scene.logits", if begun { classes } else { 0 }, 1e9)?;
        self.mix = state.within::<f32>("local.scene.mix", classes, 0.0..=1.001 * classes as f64)?.to_vec();
        self.log_prior = numbers("local.scene.log_prior", classes, 1e3)?;
        let [rows, first_id] = state.counts("local.scene.counts")?;
        if begun != (rows > 0) {
            return Err(Error::state(format!("local.scene.counts: {rows} rows do not fit local.scene.mean")));
        }
        (self.rows, self.first_id) = (rows as f64, first_id);
        // States of earlier builds do not say.
        let [garbage] =
            if state.any_under("local.scene.garbage") { state.counts("local.scene.garbage")? } else { [0] };
        self.garbage = garbage > 0;
        let sums = state.within::<f64>("local.scene.apart.sums", 2, 0.0..=1e18)?;
        let scenes = sums[0];
        if (scenes >= 1.0 && !begun) || scenes > 1e3 {
            return Err(Error::state(format!("local.scene.apart.sums: {scenes} scenes are not possible")));
        }
        let features = numbers("local.scene.apart.features", dim, 1.001 * scenes + 1e-6)?;
        let logits = numbers("local.scene.apart.logits", classes, 1e12)?;
        self.apart = Apart { scenes, squares: sums[1], features, logits, ..Apart::new(0, 0) };
        self.apart.measure();
        let taught = state.get::<u64>("local.scene.copies_of")?;
        let others = state.get_n::<u64>("local.scene.copies", 2 * taught.len())?.as_chunks::<2>().0;
        let mut ids = others.as_flattened().iter().chain(taught);
        if ids.any(|&id| id > MAX_ID) {
            return Err(Error::state(format!("local.scene.copies holds an id beyond {MAX_ID}")));
        }
        let runs = others.iter().zip(taught).map(|(&[from, to], &taught)| [from, to, taught]);
        self.copies = runs.rev().take(COPIES).collect::<Vec<_>>().into_iter().rev().collect();
        Ok(())
    }
}

impl Apart {
    fn new(classes: usize, dim: usize) -> Self {
        Self {
            scenes: 0.0,
            features: vec![0.0; dim],
            logits: vec![0.0; classes],
            features_squared: 0.0,
            logits_squared: 0.0,
            squares: 0.0,
        }
    }

    fn add(&mut self, z: &[f32], logits: &[f32], mean: f32, square: f64) {
        let fade = 0.5f64.powf(1.0 / SPREAD_HALF_LIFE);
        self.scenes = self.scenes * fade + 1.0;
        self.squares = self.squares * fade + square;
        let fade = fade as f32;
        self.features_squared = add_faded(&mut self.features, z, fade, 0.0) as f64;
        let n = self.logits.len().max(1) as f64;
        self.logits_squared = add_faded(&mut self.logits, logits, fade, mean) as f64 / n;
    }

    /// The squared lengths of the sums, as [`Apart::add`] leaves them.
    fn measure(&mut self) {
        self.features_squared = fold_lanes(&self.features, &self.features, |a, b| a * b) as f64;
        let n = self.logits.len().max(1) as f64;
        self.logits_squared = fold_lanes(&self.logits, &self.logits, |a, b| a * b) as f64 / n;
    }

    /// How far apart pictures are: 1 − cosine.
    fn spread(&self) -> f64 {
        let n = self.scenes;
        let seen = n - self.features_squared / n.max(1.0);
        ((START_WORTH * SPREAD_START + seen) / (START_WORTH + n)).min(SPREAD_MOST)
    }

    /// Mean squared difference of the logits of two pictures: twice their variance.
    fn nats_squared(&self) -> f64 {
        let n = self.scenes;
        let seen = 2.0 * (self.squares - self.logits_squared / n.max(1.0));
        let start = START_WORTH * NATS_START * NATS_START;
        ((start + seen) / (START_WORTH + n)).min(NATS_MOST * NATS_MOST)
    }
}

/// Moves a mean towards a row by a share of the way.
fn follow(mean: &mut [f32], row: &[f32], share: f32) {
    vectorised(
        #[inline(always)]
        || mean.iter_mut().zip(row).for_each(|(m, v)| *m += share * (v - *m)),
    );
}

/// Fades the sums, adds a row less `mean`, and returns the sums' squared length: one pass, in the order of [`fold_lanes`].
fn add_faded(sums: &mut [f32], row: &[f32], fade: f32, mean: f32) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let (sums, sums_tail) = sums.as_chunks_mut::<LANES>();
            let (rows, rows_tail) = row.as_chunks::<LANES>();
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = std::array::from_fn(|i| sum[i] * fade + (row[i] - mean));
                for i in 0..LANES {
                    lanes[i] += sum[i] * sum[i];
                }
            }
            let tail = sums_tail.iter_mut().zip(rows_tail).map(|(sum, row)| {
                *sum = *sum * fade + (row - mean);
                *sum * *sum
            });
            sum_lanes(lanes, tail)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene::new(&Advanced::default(), 2, 3)
    }

    fn moments(logits: &[f32; 2]) -> (f32, f64) {
        let moments = crate::scores::weigh(logits, &mut [0.0; 2]).moments;
        (moments.0, moments.1.into())
    }

    fn begin(scene: &mut Scene, z: [f32; 3], logits: [f32; 2]) {
        scene.begin(0, &z, &logits, Some(moments(&logits)));
    }

    #[test]
    fn a_copy_is_near_in_features_and_in_logits() {
        let mut scene = scene();
        assert!(!scene.holds(&[1.0, 0.0, 0.0], &[3.0, 0.0]), "nothing is at hand");
        begin(&mut scene, [1.0, 0.0, 0.0], [3.0, 0.0]);
        assert!(scene.holds(&[0.99, 0.141, 0.0], &[2.9, 0.0]));
        assert!(!scene.holds(&[0.6, 0.8, 0.0], &[3.0, 0.0]), "another picture");
        assert!(!scene.holds(&[0.99, 0.141, 0.0], &[0.0, 3.0]), "another meaning");
        assert!(scene.holds(&[0.99, 0.141, 0.0], &[12.9, 10.0]), "a common offset means nothing");
    }

    /// Rows that lie `side` to both sides of a direction in turns.
    fn witnesses(side: f32) -> f64 {
        let mut scene = scene();
        begin(&mut scene, [(1.0 - side * side).sqrt(), side, 0.0], [3.0, 0.0]);
        for i in 0..200 {
            let side = if i % 2 == 0 { -side } else { side };
            scene.join(&[(1.0 - side * side).sqrt(), side, 0.0], &[3.0, 0.0]);
        }
        let mut said = Vec::new();
        scene.say(&mut said);
        assert!((said[0] as f64 / 3.0 - scene.witnesses()).abs() < 1e-4 && said[1] == 0.0, "{said:?}");
        scene.witnesses()
    }

    #[test]
    fn rows_that_are_all_the_same_are_one_witness_and_others_are_more() {
        assert!((witnesses(0.0) - 1.0).abs() < 1e-6, "{}", witnesses(0.0));
        // Two of them are 0.01 apart where two pictures are 0.4 apart, and 0.08.
        assert!((1.02..1.03).contains(&witnesses(0.1)), "{}", witnesses(0.1));
        assert!((1.2..1.3).contains(&witnesses(0.28)), "{}", witnesses(0.28));
    }

    #[test]
    fn what_is_near_is_learnt_from_the_stream() {
        let mut scene = scene();
        // Pictures that all lie close together, 1 − cos about 0.02, are still pictures of their own.
        for i in 0..400 {
            let side = if i % 2 == 0 { 0.2f32 } else { -0.2 };
            let z = [(1.0 - side * side).sqrt(), side, 0.0];
            begin(&mut scene, z, [side * 20.0, 0.0]);
        }
        assert!(scene.apart.spread() < 0.13, "{}", scene.apart.spread());
        assert!(!scene.holds(&[0.979_8, 0.2, 0.0], &[4.0, 0.0]));
    }

    #[test]
    fn the_mean_follows_and_labels_find_the_row_that_taught() {
        let mut scene = scene();
        scene.begin(7, &[1.0, 0.0, 0.0], &[3.0, 0.0], Some(moments(&[3.0, 0.0])));
        for id in [8, 9, 11] {
            scene.join(&[0.0, 1.0, 0.0], &[1.0, 0.0]);
            scene.note_copy(id);
        }
        assert!((scene.mean[0] - 0.25).abs() < 1e-6 && (scene.logits[0] - 1.5).abs() < 1e-6);
        assert_eq!([7, 8, 9, 10, 11].map(|id| scene.taught_by(id)), [7, 7, 7, 10, 7]);
    }
}
