//! What is done to features before a method sees them: near-copies of a picture, garbage, a shifted state.
//!
//! Everything is drawn along the stream from the seed, sample by sample, so the size of the blocks does not matter.

use ultta::{Features, Result};

use crate::dataset::{Dataset, Moments};
use crate::protocol::{GarbageKind, Protocol, Role, Sample};
use crate::random::Random;

/// How much of a shot's wandering stays from one near-copy to the next: AR(1).
const WANDER: f64 = 0.9;

/// Makes the features of a stream that are not in its pack.
pub(crate) struct Stage {
    random: Random,
    moments: Moments,
    /// Where the present shot has wandered to: standard normal in each direction.
    wander: Vec<f64>,
    /// Size of the wandering, of all directions together.
    shot_size: f64,
    garbage: Option<GarbageKind>,
    /// Present where the stream has a shifted state.
    shift: Option<Shift>,
}

/// A rotation in random planes and a moved mean.
struct Shift {
    /// Coordinates in random order: each pair is a plane.
    planes: Vec<usize>,
    sine: f32,
    cosine: f32,
    /// Added after the rotation.
    moved: Vec<f32>,
}

impl Stage {
    /// The stage of a stream; `None` where the protocol alters nothing.
    pub fn new(protocol: &Protocol, dataset: &Dataset, seed: u64) -> Result<Option<Self>> {
        if !protocol.alters() {
            return Ok(None);
        }
        let moments = dataset.moments()?.clone();
        let mut random = Random::new(seed ^ 0x57A6E);
        let shift = match protocol.shift_strength() {
            0.0 => None,
            strength => Some(Shift::new(strength, &moments, &mut random)),
        };
        // A copy lies at cosine 1 − share · spread from its picture: noise of this size across it.
        let cosine = protocol.shots.map_or(1.0, |shots| 1.0 - shots.share * moments.spread);
        Ok(Some(Self {
            wander: vec![0.0; moments.mean.len()],
            shot_size: if protocol.shots.is_some() { (1.0 / (cosine * cosine) - 1.0).sqrt() } else { 0.0 },
            garbage: protocol.garbage.map(|garbage| garbage.kind),
            random,
            moments,
            shift,
        }))
    }

    /// The features as they are seen, from those of the pack.
    pub fn show(&mut self, samples: &[Sample], features: &Features<'_>) -> Result<Features<'static>> {
        let dim = features.dim();
        let mut data = features.data().to_vec();
        for (row, sample) in data.chunks_exact_mut(dim).zip(samples) {
            if sample.role == Role::Garbage {
                self.litter(row, sample.copy);
                continue;
            }
            if self.shot_size > 0.0 {
                self.wander(row, sample.copy == 0);
            }
            if let Some(shift) = self.shift.as_ref().filter(|_| sample.shifted) {
                shift.apply(row);
            }
        }
        Features::normalized(data, dim)
    }

    fn wander(&mut self, row: &mut [f32], fresh: bool) {
        let (keep, add) = if fresh { (0.0, 1.0) } else { (WANDER, (1.0 - WANDER * WANDER).sqrt()) };
        let size = self.shot_size / (row.len() as f64).sqrt();
        for (value, wander) in row.iter_mut().zip(&mut self.wander) {
            *wander = keep * *wander + add * self.random.normal();
            *value = (*value as f64 + size * *wander) as f32;
        }
    }

    fn litter(&mut self, row: &mut [f32], place: u32) {
        let Moments { mean, spread } = &self.moments;
        match self.garbage {
            Some(GarbageKind::Noise) => row.iter_mut().for_each(|v| *v = self.random.normal() as f32),
            Some(GarbageKind::Cone) => {
                // Of a unit vector 1 − spread lies along the mean and the rest across it, as in the pack.
                let size = (spread / row.len() as f64).sqrt();
                for (value, mean) in row.iter_mut().zip(mean) {
                    *value = (mean + size * self.random.normal()) as f32;
                }
            }
            Some(GarbageKind::Flip) if place % 2 == 1 => row.iter_mut().for_each(|v| *v = -*v),
            _ => {}
        }
    }
}

impl Shift {
    /// Rotates by `strength` radians and moves the mean by `strength` of the pack's spread.
    fn new(strength: f64, moments: &Moments, random: &mut Random) -> Self {
        let dim = moments.mean.len();
        let mut planes: Vec<usize> = (0..dim).collect();
        random.shuffle(&mut planes);
        let direction: Vec<f64> = (0..dim).map(|_| random.normal()).collect();
        let length = direction.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-12);
        let size = strength * moments.spread.sqrt() / length;
        let (sine, cosine) = (strength as f32).sin_cos();
        Self { planes, sine, cosine, moved: direction.iter().map(|v| (size * v) as f32).collect() }
    }

    fn apply(&self, row: &mut [f32]) {
        for plane in self.planes.chunks_exact(2) {
            let (a, b) = (row[plane[0]], row[plane[1]]);
            row[plane[0]] = self.cosine * a - self.sine * b;
            row[plane[1]] = self.sine * a + self.cosine * b;
        }
        row.iter_mut().zip(&self.moved).for_each(|(v, moved)| *v += moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::testing::{Made, datasets};

    fn dataset() -> Dataset {
        let folder = tempfile::tempdir().unwrap();
        // The folder may be deleted now: the features are read through the open file.
        datasets(folder.path(), &[Made::named("sea")]).remove(0)
    }

    /// The samples of a protocol, and their features as they are seen in blocks of this size.
    fn seen(dataset: &Dataset, protocol: &str, seed: u64, block: usize) -> (Vec<Sample>, Vec<Vec<f32>>) {
        let protocol: Protocol = protocol.parse().unwrap();
        let samples = protocol.stream(&[dataset], &[], seed).unwrap().samples;
        let mut stage = Stage::new(&protocol, dataset, seed).unwrap().unwrap();
        let mut rows = Vec::new();
        for samples in samples.chunks(block) {
            let own: Vec<usize> = samples.iter().map(|s| s.row as usize).collect();
            let shown = stage.show(samples, &dataset.pack.select(&own, false).unwrap()).unwrap();
            rows.extend(shown.data().chunks(shown.dim()).map(<[f32]>::to_vec));
        }
        (samples, rows)
    }

    fn cosine(a: &[f32], b: &[f32]) -> f64 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| *x as f64 * *y as f64).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    }

    fn original(dataset: &Dataset, sample: &Sample) -> Vec<f32> {
        dataset.pack.select(&[sample.row as usize], false).unwrap().data().to_vec()
    }

    #[test]
    fn near_copies_keep_their_distance_and_wander_slowly() {
        let dataset = dataset();
        let (samples, rows) = seen(&dataset, "iid+shots:20", 3, 64);
        assert_eq!(samples.len(), 300 * 20);
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let from_picture =
            samples.iter().zip(&rows).map(|(s, row)| 1.0 - cosine(&original(&dataset, s), row));
        let expected = 0.07 * dataset.moments().unwrap().spread;
        let distance = mean(from_picture.collect());
        assert!((distance / expected - 1.0).abs() < 0.1, "expected {expected}, got {distance}");
        let step = |pair: (&[Sample], &[Vec<f32>])| {
            (pair.0[1].copy > 0).then(|| 1.0 - cosine(&pair.1[0], &pair.1[1]))
        };
        let steps: Vec<f64> = samples.windows(2).zip(rows.windows(2)).filter_map(step).collect();
        // Neighbours share 0.9 of their wandering: they are 2 (1 − 0.9) as far apart as their noise is long.
        assert!((mean(steps) / (0.2 * expected) - 1.0).abs() < 0.15);
        let wide = seen(&dataset, "iid+shots:2:0.3", 3, 64);
        let distances = wide.0.iter().zip(&wide.1).map(|(s, row)| 1.0 - cosine(&original(&dataset, s), row));
        assert!(mean(distances.collect()) > 3.0 * distance);
    }

    #[test]
    fn what_is_seen_depends_on_the_seed_and_not_on_the_blocks() {
        let dataset = dataset();
        for protocol in ["runs+shots:3", "iid+garbage:50:cone:middle", "iid+night:40", "iid+shift:0.5"] {
            let one = seen(&dataset, protocol, 5, 1);
            assert_eq!(one, seen(&dataset, protocol, 5, 77), "{protocol}");
            assert_ne!(one.1, seen(&dataset, protocol, 6, 77).1, "{protocol}");
        }
    }

    #[test]
    fn garbage_is_of_its_kind() {
        let dataset = dataset();
        let Moments { mean, spread } = dataset.moments().unwrap();
        let mean: Vec<f32> = mean.iter().map(|v| *v as f32).collect();
        let garbage = |kind: &str| {
            let (samples, rows) = seen(&dataset, &format!("iid+garbage:400:{kind}"), 1, 64);
            assert_eq!(samples.len(), 400 + 300);
            let untouched = samples[400..].iter().zip(&rows[400..]);
            assert!(untouched.clone().all(|(s, row)| cosine(&original(&dataset, s), row) > 0.999_999));
            rows[..400].to_vec()
        };
        let to_mean =
            |rows: &[Vec<f32>]| rows.iter().map(|row| cosine(row, &mean)).sum::<f64>() / rows.len() as f64;
        assert!(to_mean(&garbage("noise")).abs() < 0.05);
        assert!((to_mean(&garbage("cone")) - (1.0 - spread).sqrt()).abs() < 0.02);
        let flip = garbage("flip");
        assert!(flip.chunks(2).all(|pair| cosine(&pair[0], &pair[1]) < -0.999_999));
        assert!(flip[0] != flip[2], "picture after picture");
        let still = garbage("still");
        assert!(still.iter().all(|row| *row == still[0]));
    }

    #[test]
    fn nights_come_and_go_and_are_always_the_same() {
        let dataset = dataset();
        let (samples, rows) = seen(&dataset, "iid+night:40", 2, 64);
        for (i, (sample, row)) in samples.iter().zip(&rows).enumerate() {
            let night = (i / 40) % 2 == 1;
            assert_eq!(sample.shifted, night, "{i}");
            assert_eq!(cosine(&original(&dataset, sample), row) < 0.99, night, "{i}");
        }
        let protocol: Protocol = "iid+night:40".parse().unwrap();
        let shifts = protocol.stream(&[&dataset], &[], 2).unwrap().shifts;
        assert_eq!(shifts.len(), 8);
        assert_eq!((shifts[1].0, shifts[1].1.as_str(), shifts[2].1.as_str()), (40, "shifted", "plain"));
        // The shifted state of a picture is the same at every visit, and the same as under `shift`.
        let (always, shifted) = seen(&dataset, "iid+shift:0.3", 2, 64);
        assert!(always.iter().all(|s| s.shifted));
        assert_eq!(shifted[45], rows[45]);
        assert_eq!(shifted[125], rows[125]);
    }
}
