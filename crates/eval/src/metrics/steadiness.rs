//! How steady answers are: how often they switch, confidence within shots, the worst stretch after garbage.

use serde::{Deserialize, Serialize};

use super::{ECE_BINS, Scored};

/// Length of the windows of samples that are compared after garbage.
pub const AFTER_GARBAGE: usize = 300;

/// Of the windows, those that begin at a multiple of so many samples are kept one by one.
const WINDOW_EVERY: usize = 30;

/// How often the answer changes from a sample to the next that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Switches {
    /// Per 100 samples.
    pub adapted: f64,
    /// The frozen model's.
    pub zero_shot: f64,
}

/// Answers within shots, whose samples all show the same picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShotFigures {
    /// Shots.
    pub n: usize,
    /// Switches per 100 steps from a near-copy to the next of the same picture.
    pub switches: Switches,
    /// Of the adapted answers.
    pub adapted: ShotConfidence,
    /// Of the frozen model.
    pub zero_shot: ShotConfidence,
}

/// Confidence against accuracy, each shot counted as one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShotConfidence {
    /// Mean over shots of the mean probability of its answers.
    pub confidence: f64,
    /// Mean over shots of the share of its answers that were right.
    pub accuracy: f64,
    /// Calibration error over shots: 15 bins of a shot's mean probability, each against its mean accuracy.
    pub ece: f64,
}

/// The clean samples after garbage, window by window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AfterGarbage {
    /// Rows of garbage.
    pub garbage: usize,
    /// Clean samples of a window: 300, or all there are.
    pub window: usize,
    /// Least gain over zero-shot in top-1 in any window behind the garbage.
    pub worst_gain: f64,
    /// Clean samples between the garbage and that window.
    pub start: usize,
    /// Gain in the first window.
    pub first_gain: f64,
    /// Gain in each window that begins at a multiple of 30 samples, so that means over seeds can be taken window by window.
    #[serde(default)]
    pub gains: Vec<f64>,
}

/// Counts switches and gathers shots along a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steadiness {
    last: Option<[usize; 2]>,
    /// Steps and switches (adapted, frozen): all, and within shots.
    all: (usize, [usize; 2]),
    within: (usize, [usize; 2]),
    /// Per shot: samples, and for each classifier Σ confidence and Σ right.
    shots: Vec<(usize, [[f64; 2]; 2])>,
}

impl Steadiness {
    /// Takes in the two answers to a sample that counts; `copy` is its number within a shot.
    pub fn push(&mut self, answers: [usize; 2], scored: [Scored; 2], copy: Option<u32>) {
        if let Some(last) = self.last.replace(answers) {
            let switched = [0, 1].map(|i| usize::from(last[i] != answers[i]));
            let inside = copy.is_some_and(|copy| copy > 0);
            for count in [Some(&mut self.all), inside.then_some(&mut self.within)].into_iter().flatten() {
                count.0 += 1;
                count.1 = [0, 1].map(|i| count.1[i] + switched[i]);
            }
        }
        let Some(copy) = copy else { return };
        if copy == 0 || self.shots.is_empty() {
            self.shots.push((0, [[0.0; 2]; 2]));
        }
        if let Some((n, sums)) = self.shots.last_mut() {
            *n += 1;
            for (sum, scored) in sums.iter_mut().zip(scored) {
                sum[0] += scored.confidence as f64;
                sum[1] += f64::from(u8::from(scored.right));
            }
        }
    }

    /// Switches over the whole stream.
    pub fn switches(&self) -> Switches {
        rate(self.all)
    }

    /// Samples of every shot, one after another.
    pub fn shot_lengths(&self) -> Vec<usize> {
        self.shots.iter().map(|shot| shot.0).collect()
    }

    /// Figures of the shots, if there were any.
    pub fn shots(&self) -> Option<ShotFigures> {
        let confidence = |side: usize| {
            let n = self.shots.len() as f64;
            let means = || self.shots.iter().map(|(rows, sums)| sums[side].map(|sum| sum / *rows as f64));
            let mut gaps = [0.0; ECE_BINS];
            for [confidence, accuracy] in means() {
                let bin = ((confidence * ECE_BINS as f64) as usize).min(ECE_BINS - 1);
                gaps[bin] += confidence - accuracy;
            }
            ShotConfidence {
                confidence: means().map(|m| m[0]).sum::<f64>() / n,
                accuracy: means().map(|m| m[1]).sum::<f64>() / n,
                ece: gaps.iter().map(|gap| gap.abs()).sum::<f64>() / n,
            }
        };
        (!self.shots.is_empty()).then(|| ShotFigures {
            n: self.shots.len(),
            switches: rate(self.within),
            adapted: confidence(0),
            zero_shot: confidence(1),
        })
    }
}

fn rate((steps, switches): (usize, [usize; 2])) -> Switches {
    let [adapted, zero_shot] = switches.map(|count| 100.0 * count as f64 / steps.max(1) as f64);
    Switches { adapted, zero_shot }
}

impl AfterGarbage {
    /// Over the answers behind the garbage; `None` without any.
    pub(crate) fn of(garbage: usize, adapted: &[Scored], zero_shot: &[Scored]) -> Option<Self> {
        let gain = |(a, z): (&Scored, &Scored)| i64::from(a.right) - i64::from(z.right);
        let gains: Vec<i64> = adapted.iter().zip(zero_shot).map(gain).collect();
        let window = gains.len().min(AFTER_GARBAGE);
        if window == 0 {
            return None;
        }
        let mut sums: Vec<i64> = vec![gains[..window].iter().sum()];
        sums.extend(gains.windows(window + 1).scan(sums[0], |sum, moved| {
            *sum += moved[window] - moved[0];
            Some(*sum)
        }));
        let share = |sum: i64| sum as f64 / window as f64;
        let (start, worst) = sums.iter().copied().enumerate().min_by_key(|&(start, sum)| (sum, start))?;
        Some(Self {
            garbage,
            window,
            worst_gain: share(worst),
            start,
            first_gain: share(sums[0]),
            gains: sums.iter().step_by(WINDOW_EVERY).map(|&sum| share(sum)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(confidence: f32, right: bool) -> Scored {
        Scored { confidence, right, top5: true, class: 0, nll: 0.0, brier: 0.0 }
    }

    #[test]
    fn switches_are_counted_within_shots_and_over_all() {
        let mut steady = Steadiness::default();
        // Two shots of three: adapted never switches within one, zero-shot always does.
        for (i, (adapted, frozen)) in [(1, 0), (1, 2), (1, 0), (2, 0), (2, 2), (2, 0)].into_iter().enumerate()
        {
            let both = [scored(0.9, i < 3), scored(0.5, true)];
            steady.push([adapted, frozen], both, Some(i as u32 % 3));
        }
        assert_eq!(steady.switches(), Switches { adapted: 20.0, zero_shot: 80.0 });
        let shots = steady.shots().unwrap();
        assert_eq!((shots.n, shots.switches), (2, Switches { adapted: 0.0, zero_shot: 100.0 }));
        let ShotConfidence { confidence, accuracy, ece } = shots.adapted;
        assert!((confidence - 0.9).abs() < 1e-6 && accuracy == 0.5 && (ece - 0.4).abs() < 1e-6);
        assert!(shots.zero_shot.accuracy == 1.0 && (shots.zero_shot.ece - 0.5).abs() < 1e-6);
        let mut plain = Steadiness::default();
        plain.push([0, 0], [scored(0.9, true); 2], None);
        assert_eq!((plain.switches(), plain.shots()), (Switches::default(), None));
    }

    #[test]
    fn the_worst_window_after_garbage_is_found() {
        let right = |i: usize| !(400..430).contains(&i);
        let adapted: Vec<Scored> = (0..1000).map(|i| scored(0.9, right(i))).collect();
        let frozen = vec![scored(0.9, true); 1000];
        let found = AfterGarbage::of(7, &adapted, &frozen).unwrap();
        assert_eq!((found.garbage, found.window, found.start), (7, 300, 130));
        assert!((found.worst_gain + 0.1).abs() < 1e-12 && found.first_gain == 0.0);
        // Windows begin at 0, 30, …, 690: those from 150 on hold all thirty wrong answers, until they begin behind the first.
        assert_eq!(found.gains.len(), 24);
        assert!((found.gains[5] + 0.1).abs() < 1e-12 && found.gains[3] == 0.0 && found.gains[15] == 0.0);
        assert_eq!(AfterGarbage::of(7, &adapted[..20], &frozen[..20]).unwrap().window, 20);
        assert_eq!(AfterGarbage::of(7, &[], &[]), None);
    }
}
