//! *Garbage*: rows that look like nothing the stream or the head knows. They are answered, told, and teach nothing.
//!
//! Pictures differ from one another in few ways: of how a picture z deviates from the mean of the pictures before it, much
//! lies along how those deviate. Noise deviates in all ways alike, whatever its mean is. With x = z − m, and r_k = z_k − m
//! of the last 16 samples, of which m is the mean,
//!
//! ```text
//! shared = d Σ_k ⟨x, r_k⟩² / (‖x‖² Σ_k ‖r_k‖²)        known = max_c (l_c − max(l̄_c, 0)) / (s ‖x‖ √(σ² / d))
//! ```
//!
//! `shared` is 1 for noise on the mean, 7 to 50 for pictures of real encoders in the middle. `known` is how many deviations the
//! best class's centred frozen logit lies above the usual one and above 0, in those that noise of this length has; σ² is how far apart the
//! prototypes are. A row is garbage if neither the stream (`shared` below 2) nor the head (`known` below 4.5) knows it. It is
//! garbage, too, if it is the opposite of one of the 16: pictures all lie to one side.
//!
//! Once four rows in a row were garbage, `shared` must reach 3, so that chance lets none of the others teach. What a stream
//! that begins with garbage had taught until it could be noticed is forgotten.

use super::Incoming;
use crate::kernels::{fold_lanes, products};
use crate::{Head, Result, State};

/// Samples that a row is compared with.
const RECENT: usize = 16;

/// Pictures share more of what sets them apart than this, in multiples of what noise does; after a run of garbage they have to share
/// more.
const SHARED: [f64; 2] = [2.0, 3.0];

/// Rows of garbage that are a run.
const RUN: u64 = 4;

/// What the head knows stands out by so many deviations.
const KNOWN: f64 = 4.5;

/// Cosine to a picture below which a row is its opposite.
const OPPOSITE: f64 = -0.95;

/// With samples that are more alike than this (mean square of their deviations) nothing can be told.
const MIN_SPREAD: f64 = 1e-4;

/// Garbage began the stream if so many samples were seen before its first run: it could not be noticed in time.
const AT_START: std::ops::RangeInclusive<u64> = RECENT as u64..=2 * RECENT as u64;

/// What rows are compared with.
#[derive(Clone, Debug)]
pub(super) struct Garbage {
    dim: usize,
    /// In fewer dimensions noise looks like pictures (`advanced.garbage_dim`).
    least_dim: usize,
    /// s² σ² / d.
    noise: f64,
    /// The last samples, and where the next one goes.
    rows: Vec<f32>,
    next: usize,
    /// Their products with one another.
    products: [[f32; RECENT]; RECENT],
    /// Rows of garbage since the last other one.
    run: u64,
}

/// What was found of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub garbage: bool,
    opposite: bool,
    /// The row's products with the last samples.
    products: [f32; RECENT],
}

impl Garbage {
    pub(super) fn new(least_dim: usize, head: &Head) -> Self {
        let dim = head.dim();
        let prototypes = (head.prototypes().len() / dim) as f32;
        let mut mean = vec![0.0f32; dim];
        let mut square = 0.0;
        for prototype in head.prototypes().chunks_exact(dim) {
            mean.iter_mut().zip(prototype).for_each(|(m, p)| *m += p / prototypes);
            square += fold_lanes(prototype, prototype, |a, b| a * b) as f64 / prototypes as f64;
        }
        let apart = (square - fold_lanes(&mean, &mean, |a, b| a * b) as f64).max(0.0);
        let noise = (head.logit_scale() as f64).powi(2) * apart / dim as f64;
        Self { dim, least_dim, noise, rows: Vec::new(), next: 0, products: [[0.0; RECENT]; RECENT], run: 0 }
    }

    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    /// Looks at a row that is no near-copy. `usual` are sums of centred frozen logits of earlier samples, and their number.
    pub(super) fn look(&self, row: Incoming<'_>, (usual, samples): (&[f32], f64)) -> Look {
        let mut look = Look { garbage: false, opposite: false, products: [0.0; RECENT] };
        let n = self.len();
        if n == 0 {
            return look;
        }
        products(row.z, &self.rows, self.dim, 1.0, &mut look.products[..n]);
        look.opposite = look.products[..n].iter().any(|&p| f64::from(p) < OPPOSITE);
        look.garbage = look.opposite;
        if n < RECENT || self.dim < self.least_dim || look.opposite {
            return look;
        }
        let k = RECENT as f64;
        // ⟨z_k, m⟩, ‖m‖² and ⟨z, m⟩.
        let of_mean = self.products.map(|row| row.iter().map(|&p| f64::from(p)).sum::<f64>() / k);
        let mean = of_mean.iter().sum::<f64>() / k;
        let own = look.products.iter().map(|&p| f64::from(p)).sum::<f64>() / k;
        let spread = (0..RECENT).map(|i| f64::from(self.products[i][i])).sum::<f64>() / k - mean;
        let length = 1.0 - 2.0 * own + mean;
        if spread < MIN_SPREAD || length < MIN_SPREAD {
            return look;
        }
        let square = |(&p, of_mean): (&f32, f64)| (f64::from(p) - own - of_mean + mean).powi(2);
        let squares: f64 = look.products.iter().zip(of_mean).map(square).sum();
        let shared = self.dim as f64 * squares / (length * k * spread);
        if shared < SHARED[usize::from(self.run >= RUN)] {
            let least = (KNOWN * (length * self.noise).sqrt()) as f32;
            let (centre, share) = (row.frozen.moments.0, (1.0 / samples.max(1.0)) as f32);
            // That a class is usually far below the others makes it no better known.
            look.garbage =
                !row.text.iter().zip(usual).any(|(t, u)| t - centre - (share * u).max(0.0) > least);
        }
        look
    }

    /// Whether a row shows that the stream, of which so many samples were `seen`, began with garbage.
    pub(super) fn begins_anew(&self, look: &Look, seen: u64) -> bool {
        look.garbage && self.run + 1 == RUN && AT_START.contains(&seen)
    }

    /// Takes in a row that is no near-copy and may teach. Whether it shows that the stream, of which so many samples were `seen`,
    /// began with garbage.
    pub(super) fn push(&mut self, z: &[f32], look: &Look, seen: u64) -> bool {
        let anew = self.begins_anew(look, seen);
        self.run = if look.garbage { self.run + 1 } else { 0 };
        if !look.opposite {
            let at = self.next;
            if self.len() < RECENT {
                self.rows.extend_from_slice(z);
            } else {
                self.rows[at * self.dim..][..self.dim].copy_from_slice(z);
            }
            self.products[at] = look.products;
            (0..RECENT).for_each(|i| self.products[i][at] = look.products[i]);
            products(z, z, self.dim, 1.0, &mut self.products[at][at..=at]);
            self.next = (at + 1) % RECENT;
        }
        anew
    }

    pub(super) fn bytes(&self) -> usize {
        RECENT * (4 * self.dim + 4 * RECENT)
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("local.garbage.rows", &self.rows);
        state.put("local.garbage", &[self.next as u64, self.run]);
    }

    /// States of earlier builds have none.
    pub(super) fn load(&mut self, state: &State) -> Result<()> {
        if !state.any_under("local.garbage") {
            return Ok(());
        }
        let rows = state.get::<f32>("local.garbage.rows")?;
        let [next, run] = state.counts("local.garbage")?;
        let samples = rows.len() / self.dim;
        let fits = samples * self.dim == rows.len()
            && samples <= RECENT
            && next as usize == if samples < RECENT { samples } else { next as usize % RECENT };
        if !fits || !rows.iter().all(|v| v.abs() <= 1.001) {
            return Err(crate::Error::state("local.garbage.rows: no samples of this stream"));
        }
        (self.rows, self.next, self.run) = (rows.to_vec(), next as usize, run);
        if samples == 0 {
            return Ok(());
        }
        let mut all = vec![0.0; samples * samples];
        products(&self.rows, &self.rows, self.dim, 1.0, &mut all);
        for (to, from) in self.products.iter_mut().zip(all.chunks(samples)) {
            to[..samples].copy_from_slice(from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::weigh;

    const DIM: usize = 128;
    const LEAST_DIM: usize = 64;
    const CLASSES: usize = 6;

    /// About normal, and always the same.
    struct Random(u64);

    impl Random {
        fn normal(&mut self) -> f32 {
            let uniform = |state: &mut u64| {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 40) as f32 / (1u32 << 24) as f32
            };
            (0..12).map(|_| uniform(&mut self.0)).sum::<f32>() - 6.0
        }

        fn direction(&mut self) -> Vec<f32> {
            (0..DIM).map(|_| self.normal() / (DIM as f32).sqrt()).collect()
        }
    }

    fn unit(mut row: Vec<f32>) -> Vec<f32> {
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter_mut().for_each(|v| *v /= norm);
        row
    }

    fn plus(row: &[f32], share: f32, other: &[f32]) -> Vec<f32> {
        row.iter().zip(other).map(|(a, b)| a + share * b).collect()
    }

    /// Pictures lie around a mean and differ from one another in twenty ways, and in some noise; texts lie elsewhere.
    struct Camera {
        random: Random,
        mean: Vec<f32>,
        ways: Vec<Vec<f32>>,
        head: Head,
        garbage: Garbage,
        /// Sums of centred logits, and their number.
        usual: (Vec<f32>, f64),
    }

    impl Camera {
        fn of(dim: usize, seed: u64) -> Self {
            let mut random = Random(seed);
            let (mean, ways) = (random.direction(), (0..20).map(|_| random.direction()).collect());
            let texts: Vec<f32> =
                (0..CLASSES).flat_map(|_| unit(random.direction()[..dim].to_vec())).collect();
            let head = Head::new(texts, dim, (0..CLASSES).map(|c| c.to_string()), 100.0).unwrap();
            let garbage = Garbage::new(LEAST_DIM, &head);
            Self { random, mean, ways, head, garbage, usual: (vec![0.0; CLASSES], 0.0) }
        }

        fn picture(&mut self) -> Vec<f32> {
            let mut row = self.mean.clone();
            for way in &self.ways {
                row = plus(&row, 0.35 * self.random.normal(), way);
            }
            let noise = self.random.direction();
            unit(plus(&row, 0.4, &noise)[..self.head.dim()].to_vec())
        }

        /// Noise around a point that lies `along` the mean of the pictures.
        fn noise(&mut self, along: f32) -> Vec<f32> {
            let noise = self.random.direction();
            unit(plus(&noise, along, &self.mean)[..self.head.dim()].to_vec())
        }

        fn look(&self, z: &[f32]) -> Look {
            let text: Vec<f32> =
                (0..CLASSES).map(|c| 100.0 * fold_lanes(z, self.head.prototype(c), |a, b| a * b)).collect();
            let mut weights = vec![0.0; CLASSES];
            let frozen = weigh(&text, &mut weights);
            let row = Incoming { z, text: &text, frozen: &frozen, weights: &weights };
            self.garbage.look(row, (&self.usual.0, self.usual.1))
        }

        /// Shows a row. Whether it is garbage, and whether the stream is taken to have begun with garbage.
        fn show(&mut self, z: &[f32], seen: u64) -> (bool, bool) {
            let look = self.look(z);
            (look.garbage, self.garbage.push(z, &look, seen))
        }

        fn pictures(&mut self, n: usize) -> usize {
            (0..n)
                .filter(|_| {
                    let z = self.picture();
                    self.show(&z, 100).0
                })
                .count()
        }
    }

    #[test]
    fn noise_of_any_mean_is_garbage_and_pictures_are_not() {
        let mut camera = Camera::of(DIM, 1);
        let told = camera.pictures(200);
        assert!(told <= 4, "{told} of 200 pictures");
        for along in [-0.5, 0.0, 0.5, 1.0, 2.0] {
            let told = (0..100)
                .filter(|_| {
                    let z = camera.noise(along);
                    camera.look(&z).garbage
                })
                .count();
            assert!(told >= 80, "noise around {along} of the mean: {told} of 100");
        }
        // One after another, too, when they are what rows are compared with.
        let told: Vec<bool> = (0..60)
            .map(|_| {
                let z = camera.noise(1.0);
                camera.show(&z, 300).0
            })
            .collect();
        assert!(told[16..].iter().filter(|&&garbage| !garbage).count() <= 2, "{told:?}");
        assert!(camera.pictures(40) < 12, "pictures are known again when some of them are among the sixteen");
        let told = camera.pictures(40);
        assert!(told <= 2, "{told} of 40 later ones");
    }

    #[test]
    fn opposites_are_garbage_in_any_number_of_dimensions() {
        for dim in [8, 32, DIM] {
            let mut camera = Camera::of(dim, 2);
            let z = camera.picture();
            assert!(!camera.show(&z, 0).0, "the first row is compared with nothing");
            let opposite: Vec<f32> = z.iter().map(|v| -v).collect();
            assert!(camera.show(&opposite, 1).0, "{dim} dimensions");
            assert!(!camera.look(&z).garbage, "rows are not compared with opposites");
            assert_eq!(camera.garbage.len(), 1);
        }
    }

    #[test]
    fn nothing_is_told_too_early_in_few_dimensions_or_beside_rows_that_are_alike() {
        let mut camera = Camera::of(DIM, 3);
        assert_eq!(camera.pictures(15), 0);
        let noise = camera.noise(1.0);
        assert!(!camera.look(&noise).garbage, "fifteen samples are too few");
        assert_eq!(camera.pictures(1), 0);
        assert!(camera.look(&noise).garbage);
        let mut small = Camera::of(LEAST_DIM - 1, 3);
        small.pictures(16);
        let noise = small.noise(1.0);
        assert!(!small.look(&noise).garbage, "too few dimensions");
        let mut still = Camera::of(DIM, 3);
        let z = still.picture();
        (0..16).for_each(|_| assert!(!still.show(&z, 100).0));
        let noise = still.noise(1.0);
        assert!(!still.look(&noise).garbage && !still.look(&z).garbage, "sixteen rows that are the same");
    }

    #[test]
    fn what_the_head_knows_is_no_garbage() {
        let mut camera = Camera::of(DIM, 4);
        camera.pictures(16);
        // Noise with a text in it: unlike all pictures, but the head knows it.
        let (noise, text) = (camera.noise(0.0), camera.head.prototype(2).to_vec());
        let with = |share: f32| unit(plus(&noise, share, &text));
        assert!(camera.look(&noise).garbage && camera.look(&with(0.1)).garbage);
        assert!(!camera.look(&with(0.8)).garbage);
        // What the head says of every row is nothing that it knows of this one.
        camera.usual = ((0..CLASSES).map(|c| if c == 2 { 500.0 } else { -100.0 }).collect(), 10.0);
        assert!(camera.look(&with(0.8)).garbage);
    }

    #[test]
    fn after_a_run_pictures_have_to_share_more() {
        let mut camera = Camera::of(DIM, 5);
        camera.pictures(40);
        let shared = |camera: &mut Camera, run: u64, share: f32| {
            camera.garbage.run = run;
            let noise = camera.noise(0.0);
            // Of noise with something of a picture in it.
            let way = camera.ways[0].clone();
            let row = unit(plus(&plus(&noise, 1.0, &camera.mean.clone()), share, &way));
            !camera.look(&row).garbage
        };
        let pass = |camera: &mut Camera, run: u64| -> usize {
            camera.random = Random(9);
            (0..60).filter(|i| shared(camera, run, *i as f32 / 60.0)).count()
        };
        let passes = [0, RUN - 1, RUN, RUN + 9].map(|run| pass(&mut camera, run));
        assert!(passes[0] == passes[1] && passes[2] == passes[3] && passes[2] < passes[1], "{passes:?}");
    }

    #[test]
    fn a_stream_that_begins_with_garbage_begins_anew_once() {
        let begins = |pictures: usize| -> Vec<usize> {
            let (mut camera, mut seen) = (Camera::of(DIM, 6), 0);
            camera.pictures(pictures);
            seen += pictures as u64;
            let rows: Vec<_> = (0..60).map(|_| camera.noise(1.0)).collect();
            rows.iter()
                .enumerate()
                .filter_map(|(i, z)| {
                    let (garbage, anew) = camera.show(z, seen);
                    seen = if anew { 0 } else { seen + u64::from(!garbage) };
                    anew.then_some(i)
                })
                .collect()
        };
        assert_eq!(begins(0).len(), 1, "noise alone: {:?}", begins(0));
        assert!(begins(0)[0] >= RECENT + RUN as usize - 1, "{:?}", begins(0));
        assert_eq!(begins(40), [0; 0], "what forty pictures taught stays");
    }

    #[test]
    fn it_goes_on_from_a_state_and_refuses_impossible_ones() {
        let mut camera = Camera::of(DIM, 7);
        for n in [0, 5, 16, 23] {
            camera.garbage = Garbage::new(LEAST_DIM, &camera.head);
            camera.pictures(n);
            camera.garbage.run = 7;
            let mut state = State::default();
            camera.garbage.save(&mut state);
            let mut resumed = Garbage::new(LEAST_DIM, &camera.head);
            resumed.load(&state).unwrap();
            let products = |g: &Garbage| g.products.map(|row| row.map(f32::to_bits));
            assert_eq!(products(&resumed), products(&camera.garbage), "after {n} rows, bit for bit");
            assert_eq!((resumed.next, resumed.run, &resumed.rows), (n % RECENT, 7, &camera.garbage.rows));
        }
        let mut state = State::default();
        camera.garbage.save(&mut state);
        let refused = |name: &str, change: &dyn Fn(&mut State)| {
            let mut changed = state.clone();
            change(&mut changed);
            let error = Garbage::new(LEAST_DIM, &camera.head).load(&changed).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        };
        let rows = state.get::<f32>("local.garbage.rows").unwrap().to_vec();
        refused("local.garbage.rows", &|s| s.put("local.garbage.rows", &rows[1..]));
        refused("local.garbage.rows", &|s| s.put("local.garbage.rows", &[&rows[..], &rows[..DIM]].concat()));
        refused("local.garbage.rows", &|s| s.put("local.garbage.rows", &rows[..DIM]));
        refused("local.garbage.rows", &|s| s.put("local.garbage", &[16u64, 0]));
        for value in [2.0, f32::NAN] {
            let mut wrong = rows.clone();
            wrong[7] = value;
            refused("local.garbage.rows", &|s| s.put("local.garbage.rows", &wrong));
        }
        refused("local.garbage", &|s| s.put("local.garbage", &[0u64]));
        refused("local.garbage", &|s| s.put("local.garbage", &[0, u64::MAX]));
        refused("local.garbage.rows", &|s| drop(s.tensors.remove("local.garbage.rows")));
        Garbage::new(LEAST_DIM, &camera.head).load(&State::default()).unwrap();
    }
}
