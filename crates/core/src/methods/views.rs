//! A sample as the multi-view methods see it: its own row, or the mean of the most certain of its views.

use std::borrow::Cow;

use crate::adapter::Batch;
use crate::scores::{self, Summary};

/// What a method works with for one sample.
pub(crate) struct Sample<'a> {
    /// Feature row; a mean of unit rows is not renormalised, as in the published code.
    pub feature: Cow<'a, [f32]>,
    /// Frozen logits.
    pub logits: Cow<'a, [f32]>,
    /// Frozen probabilities.
    pub probs: Vec<f32>,
    /// Entropy of `probs`, in nats.
    pub entropy: f32,
    /// The class with the largest logit.
    pub label: usize,
}

impl<'a> Sample<'a> {
    /// The sample's own row.
    pub(crate) fn own(batch: &'a Batch<'_>, row: usize) -> Self {
        let logits = batch.zero_shot.row(row);
        let mut probs = vec![0.0; logits.len()];
        scores::softmax(logits, 1.0, &mut probs);
        let Summary { entropy, label, .. } = batch.frozen[row];
        Self { feature: batch.features.row(row).into(), logits: logits.into(), probs, entropy, label }
    }

    /// The mean over the `share` most certain of the sample and its views; the sample's own row without views.
    pub(crate) fn confident(batch: &'a Batch<'_>, row: usize, share: f64) -> Self {
        let chosen = confident_views(batch, row, share);
        if chosen.len() <= 1 && batch.views.is_none_or(|v| v.of(row).is_empty()) {
            return Self::own(batch, row);
        }
        let classes = batch.zero_shot.classes();
        let scale = 1.0 / chosen.len() as f32;
        let mut feature = vec![0.0; batch.features.dim()];
        let mut logits = vec![0.0; classes];
        let mut probs = vec![0.0; classes];
        let mut one = vec![0.0; classes];
        for view in &chosen {
            scores::softmax(view.logits, 1.0, &mut one);
            let add = |sum: &mut [f32], v: &[f32]| sum.iter_mut().zip(v).for_each(|(s, v)| *s += v * scale);
            add(&mut feature, view.feature);
            add(&mut logits, view.logits);
            add(&mut probs, &one);
        }
        let entropy = -probs.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f32>();
        let label = scores::summary(&logits, 1.0).label;
        Self { feature: feature.into(), logits: logits.into(), probs, entropy: entropy.max(0.0), label }
    }

    /// Whether it stands for several views, or for one that was chosen of them.
    pub(crate) fn of_views(&self) -> bool {
        matches!(self.feature, Cow::Owned(_))
    }
}

/// The mean of the posteriors of a sample's views; `None` without views. `posterior` is given a view's feature and frozen
/// logits, and where the posterior goes.
pub(crate) fn mean_posterior(
    batch: &Batch<'_>,
    row: usize,
    mut posterior: impl FnMut(&[f32], &[f32], &mut [f32]),
) -> Option<Vec<f32>> {
    let views = batch.views.filter(|views| !views.of(row).is_empty())?;
    let classes = batch.zero_shot.classes();
    let (mut mean, mut probs) = (vec![0.0f32; classes], vec![0.0f32; classes]);
    let share = 1.0 / views.of(row).len() as f32;
    for view in views.of(row) {
        posterior(views.features.row(view), views.zero_shot.row(view), &mut probs);
        for (m, &p) in mean.iter_mut().zip(&probs) {
            *m += share * p;
        }
    }
    Some(mean)
}

/// One view of a sample.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub feature: &'a [f32],
    pub logits: &'a [f32],
    pub entropy: f32,
    pub label: usize,
}

/// The sample's own row and its views, most certain first (its own row first among equals).
pub(crate) fn views_by_entropy<'a>(batch: &'a Batch<'_>, row: usize) -> Vec<View<'a>> {
    let Summary { entropy, label, .. } = batch.frozen[row];
    let own = View { feature: batch.features.row(row), logits: batch.zero_shot.row(row), entropy, label };
    let mut all = vec![own];
    if let Some(views) = batch.views {
        all.extend(views.of(row).map(|i| {
            let logits = views.zero_shot.row(i);
            let Summary { entropy, label, .. } = scores::summary(logits, 1.0);
            View { feature: views.features.row(i), logits, entropy, label }
        }));
    }
    all.sort_by(|a, b| a.entropy.total_cmp(&b.entropy));
    all
}

/// The `share` most certain of the sample and its views, rounded down, at least one.
pub(crate) fn confident_views<'a>(batch: &'a Batch<'_>, row: usize, share: f64) -> Vec<View<'a>> {
    let mut all = views_by_entropy(batch, row);
    all.truncate(((all.len() as f64 * share) as usize).max(1));
    all
}
