//! [`Samples`]: what one request shows to a stream. Read, scaled and checked once, where the request comes in; the
//! log, the adapter and the shadows take them as they are.

use ultta::{Features, Input, Result, Scores};

/// Samples in arrival order, and what the sender says about them. [`Samples::new`] checks that the parts fit each other, and
/// nothing else takes parts one by one: there is one row of features per sample, all of them unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    features: Features<'static>,
    learn: Option<Vec<bool>>,
    times: Option<Vec<f64>>,
    views: Option<Views>,
}

/// Extra views of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    /// All views, sample after sample.
    pub features: Features<'static>,
    /// How many views each sample has.
    pub counts: Vec<usize>,
}

impl Views {
    /// The rows of `features` that are the views of a sample.
    pub fn of(&self, sample: usize) -> std::ops::Range<usize> {
        let start = self.counts[..sample].iter().sum();
        start..start + self.counts[sample]
    }
}

impl Samples {
    /// Checks, by the core's own check, that there is one learn mark, one time and one view count per row, as far as they
    /// are given, and that times are finite.
    pub fn new(
        features: Features<'static>,
        learn: Option<Vec<bool>>,
        times: Option<Vec<f64>>,
        views: Option<Views>,
    ) -> Result<Self> {
        let samples = Self { features, learn, times, views };
        samples.input(None, false).check_parts()?;
        Ok(samples)
    }

    /// Samples of which nothing but the features is known.
    pub fn plain(features: Features<'static>) -> Self {
        Self { features, learn: None, times: None, views: None }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.features.rows()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the numbers.
    pub fn bytes(&self) -> usize {
        let views = self.views.as_ref().map_or(0, |views| views.features.data().len());
        (self.features.data().len() + views) * size_of::<f32>()
    }

    /// Unit rows, one per sample.
    pub fn features(&self) -> &Features<'static> {
        &self.features
    }

    /// `false` for samples that must not teach.
    pub fn learn(&self) -> Option<&[bool]> {
        self.learn.as_deref()
    }

    /// Arrival times in seconds.
    pub fn times(&self) -> Option<&[f64]> {
        self.times.as_deref()
    }

    /// Extra views.
    pub fn views(&self) -> Option<&Views> {
        self.views.as_ref()
    }

    /// Arrival times to change, where there are some.
    pub(crate) fn times_mut(&mut self) -> Option<&mut [f64]> {
        self.times.as_deref_mut()
    }

    /// Gives all samples the same arrival time.
    pub(crate) fn stamp(&mut self, time: f64) {
        self.times = Some(vec![time; self.len()]);
    }

    /// Some of the samples. The features are shared, not copied.
    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> Samples {
        let views = self.views.as_ref().map(|views| {
            let before: usize = views.counts[..range.start].iter().sum();
            let counts = views.counts[range.clone()].to_vec();
            let features = views.features.slice(before..before + counts.iter().sum::<usize>());
            Views { features, counts }
        });
        Samples {
            features: self.features.slice(range.clone()),
            learn: self.learn.as_ref().map(|learn| learn[range.clone()].to_vec()),
            times: self.times.as_ref().map(|times| times[range].to_vec()),
            views,
        }
    }

    /// Whether later samples can follow these in one block.
    pub(crate) fn can_append(&self, later: &Samples) -> bool {
        self.features.dim() == later.features.dim()
            && self.times.is_some() == later.times.is_some()
            && self.views.is_none()
            && later.views.is_none()
    }

    /// Takes in later samples; [`can_append`](Self::can_append) says whether they fit.
    pub(crate) fn append(&mut self, later: &Samples) {
        if self.learn.is_some() || later.learn.is_some() {
            let (own, added) = (self.len(), later.len());
            let learn = self.learn.get_or_insert_with(|| vec![true; own]);
            match &later.learn {
                Some(marks) => learn.extend(marks),
                None => learn.resize(own + added, true),
            }
        }
        if let (Some(times), Some(added)) = (&mut self.times, &later.times) {
            times.extend(added);
        }
        self.features.append(&later.features);
    }

    /// The samples as a session takes them, with the frozen model's scores where these were computed on the way.
    pub(crate) fn input<'a>(&'a self, zero_shot: Option<&'a Scores>, keep_scores: bool) -> Input<'a> {
        Input {
            zero_shot,
            learn: self.learn(),
            times: self.times(),
            views: self.views.as_ref().map(|views| &views.features),
            view_counts: self.views.as_ref().map(|views| &views.counts[..]),
            keep_scores,
            ..Input::new(&self.features)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(rows: usize) -> Features<'static> {
        Features::new([0.6, 0.8].repeat(rows), 2).unwrap()
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let refusal =
            |learn, times, views| Samples::new(features(2), learn, times, views).unwrap_err().to_string();
        let views =
            |rows, counts: &[usize]| Some(Views { features: features(rows), counts: counts.to_vec() });
        for (refusal, word) in [
            (refusal(Some(vec![true]), None, None), "learn marks: expected 2, got 1"),
            (refusal(None, Some(vec![1.0; 3]), None), "times: expected 2, got 3"),
            (refusal(None, Some(vec![1.0, f64::NAN]), None), "times: row 1"),
            (refusal(None, None, views(2, &[2])), "view counts: expected 2, got 1"),
            (refusal(None, None, views(2, &[2, 1])), "views: expected 3, got 2"),
            (refusal(None, None, views(2, &[usize::MAX, 2])), "views: expected"),
        ] {
            assert!(refusal.contains(word), "{refusal}");
        }
        assert_eq!(Samples::new(features(2), None, None, views(3, &[2, 1])).unwrap().len(), 2);
    }

    #[test]
    fn samples_follow_each_other_only_where_they_are_alike() {
        let plain = Samples::plain(features(1));
        let marked = Samples::new(features(1), Some(vec![false]), None, None).unwrap();
        let timed = Samples::new(features(1), None, Some(vec![1.0]), None).unwrap();
        assert!(plain.can_append(&marked) && !plain.can_append(&timed));
        let mut both = plain.clone();
        both.append(&marked);
        both.append(&plain);
        assert_eq!(both.learn(), Some(&[true, false, true][..]));
        assert_eq!(both.len(), 3);
        assert_eq!(both.slice(1..3).learn(), Some(&[false, true][..]));
        let views = Views { features: features(6), counts: vec![2, 1, 3] };
        let viewed = Samples::new(features(3), None, Some(vec![1.0, 2.0, 3.0]), Some(views)).unwrap();
        let last = viewed.slice(1..3);
        assert_eq!((last.len(), last.times()), (2, Some(&[2.0, 3.0][..])));
        assert_eq!(
            last.views().map(|views| (views.features.rows(), &views.counts[..])),
            Some((4, &[1, 3][..]))
        );
    }
}
