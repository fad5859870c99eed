//! The story of every class: its share of the answers, prior, drift and estimated accuracy along the stream, at most 64 points.
//! When there are more, every second one is dropped and points come half as often: memory is flat, and the story always begins
//! at the start.

use serde::Serialize;
use ultta::{ClassDrift, ClassEstimate, Estimate};

/// Points that are kept, at most.
const POINTS: usize = 64;
/// Seconds between two points, at first.
const SPACING: f64 = 5.0;

/// One class at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ClassPoint {
    /// Seconds since 1970.
    pub time: f64,
    /// Its share of recent answers.
    pub recent: f32,
    /// Its prior.
    pub prior: f32,
    /// How far its prototype has moved.
    pub movement: f32,
    /// Mean calibrated probability of the recent answers of this class; absent if there are none.
    pub confidence: Option<f32>,
    /// Share of the answers naming it so far that are right, by estimate: `top1`, `low`, `high`; absent if there were none.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub estimate: Option<Estimate>,
}

/// All classes along the stream.
#[derive(Default)]
pub struct Stories {
    times: Vec<f64>,
    /// Per point and class: share, prior, movement, confidence, and the ends and middle of the estimate (NaN if there is none).
    numbers: Vec<Vec<[f32; 7]>>,
    spacing: f64,
}

impl Stories {
    /// Whether a point is due.
    pub fn is_due(&self, now: f64) -> bool {
        self.times.last().is_none_or(|last| now - last >= self.spacing.max(SPACING))
    }

    /// Adds a point. `answers` has, per class, recent answers and the sum of their probabilities; the others may be empty.
    pub fn add(
        &mut self,
        now: f64,
        (drift, estimates): (&[ClassDrift], &[ClassEstimate]),
        answers: &[(u32, f64)],
        total: usize,
    ) {
        if self.times.len() == POINTS {
            let mut even = (0..POINTS).map(|i| i % 2 == 0);
            self.times.retain(|_| even.next().unwrap_or(false));
            let mut even = (0..POINTS).map(|i| i % 2 == 0);
            self.numbers.retain(|_| even.next().unwrap_or(false));
            self.spacing = 2.0 * self.spacing.max(SPACING);
        }
        let total = total.max(1) as f32;
        let numbers = answers.iter().enumerate().map(|(class, &(n, sum))| {
            let drift = drift.get(class).copied().unwrap_or_default();
            let estimate = estimates.get(class).filter(|estimate| estimate.answers > 0);
            let [low, top1, high] = estimate
                .map_or([f64::NAN; 3], |e| [e.adapted.low, e.adapted.top1, e.adapted.high])
                .map(|v| v as f32);
            let confidence = (sum / f64::from(n)) as f32;
            [n as f32 / total, drift.prior as f32, drift.movement as f32, confidence, low, top1, high]
        });
        self.numbers.push(numbers.collect());
        self.times.push(now);
    }

    /// The story of one class, oldest point first.
    pub fn of(&self, class: usize) -> Vec<ClassPoint> {
        let points = self.times.iter().zip(&self.numbers);
        points
            .filter_map(|(&time, numbers)| {
                let &[recent, prior, movement, confidence, low, top1, high] = numbers.get(class)?;
                let confidence = confidence.is_finite().then_some(confidence);
                let [low, middle, high] = [low, top1, high].map(f64::from);
                let estimate = top1.is_finite().then_some(Estimate { top1: middle, low, high });
                Some(ClassPoint { time, recent, prior, movement, confidence, estimate })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_story_keeps_its_beginning_and_few_points() {
        let mut stories = Stories::default();
        let of = |top1: f64| Estimate { top1, low: top1 - 0.25, high: top1 + 0.25 };
        let estimate = |answers, top1| ClassEstimate { answers, adapted: of(top1), zero_shot: of(0.5) };
        let estimates = [estimate(3, 0.625), estimate(0, 0.5)];
        for second in 0..100_000 {
            if stories.is_due(f64::from(second)) {
                stories.add(f64::from(second), (&[], &estimates), &[(3, 2.4), (0, 0.0)], 4);
            }
        }
        let (cat, dog) = (stories.of(0), stories.of(1));
        assert!((32..=64).contains(&cat.len()), "{}", cat.len());
        assert!(cat[0].time == 0.0 && cat[cat.len() - 1].time > 90_000.0);
        assert!((cat[0].recent - 0.75).abs() < 1e-6 && (cat[0].confidence.unwrap() - 0.8).abs() < 1e-6);
        assert_eq!((dog[0].recent, dog[0].confidence), (0.0, None));
        assert_eq!((cat[0].estimate, dog[0].estimate), (Some(of(0.625)), None));
    }
}
