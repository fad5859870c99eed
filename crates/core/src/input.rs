//! [`Input`]: samples on their way in, and the one check of what a caller says about them.

use crate::adapter::Card;
use crate::{Error, Features, Head, Result, Scores, What};

/// Samples on their way in: features, and what the caller knows about them.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// One unit row per sample.
    pub features: &'a Features<'a>,
    /// The frozen model's scores for the rows, [`Head::zero_shot`] of them, where the caller has them. They need no
    /// session, so a caller may compute the scores of many blocks at once. They are not checked.
    pub zero_shot: Option<&'a Scores>,
    /// `false` marks a row that must not teach, for instance because another detector rejected it.
    pub learn: Option<&'a [bool]>,
    /// Arrival time of each row in seconds, for updates by time. Never decreasing within a session.
    pub times: Option<&'a [f64]>,
    /// Extra views (weak augmentations) of the samples, all view rows one after another.
    pub views: Option<&'a Features<'a>>,
    /// How many of the `views` each sample has.
    pub view_counts: Option<&'a [usize]>,
    /// Whether the step keeps all scores (rows × classes) or only the answers.
    pub keep_scores: bool,
}

impl<'a> Input<'a> {
    /// Plain rows.
    pub fn new(features: &'a Features<'a>) -> Self {
        Self {
            features,
            zero_shot: None,
            learn: None,
            times: None,
            views: None,
            view_counts: None,
            keep_scores: true,
        }
    }

    /// Whether a head and a method can take the samples. Everything that can be wrong with them is found here. A step
    /// checks by itself; a caller that keeps samples for a later step can know before.
    pub fn check(&self, head: &Head, card: &Card) -> Result<()> {
        same(What::Dimension, head.dim(), self.features.dim())?;
        if let Some(scores) = self.zero_shot {
            same(What::Other("classes of the zero-shot scores"), head.n_classes(), scores.classes())?;
        }
        if self.views.is_none() && card.needs_views {
            return Err(Error::NeedsViews { method: card.name.replace('_', "-") });
        }
        self.check_parts()
    }

    /// Whether marks, times, views and scores fit the rows.
    #[doc(hidden)]
    pub fn check_parts(&self) -> Result<()> {
        let rows = self.features.rows();
        let views_of = |counts: &[usize]| counts.iter().fold(0, |n: usize, &c| n.saturating_add(c));
        if let Some(scores) = self.zero_shot {
            same(What::Other("rows of the zero-shot scores"), rows, scores.rows())?;
        }
        if let Some(learn) = self.learn {
            same(What::LearnMarks, rows, learn.len())?;
        }
        if let Some(times) = self.times {
            same(What::Times, rows, times.len())?;
            if let Some(row) = times.iter().position(|t| !t.is_finite()) {
                return Err(Error::NotFinite { what: What::Times, row });
            }
        }
        if let Some(views) = self.views {
            same(What::Other("length of a view"), self.features.dim(), views.dim())?;
            let counts = self.view_counts.unwrap_or(&[]);
            same(What::ViewCounts, rows, counts.len())?;
            same(What::Views, views_of(counts), views.rows())?;
        } else {
            same(What::Views, views_of(self.view_counts.unwrap_or(&[])), 0)?;
        }
        Ok(())
    }
}

fn same(what: What, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Shape { what, expected, got }) }
}

impl<'a> From<&'a Features<'a>> for Input<'a> {
    fn from(features: &'a Features<'a>) -> Self {
        Self::new(features)
    }
}
