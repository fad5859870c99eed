//! The [`Adapter`] trait: what a test-time adaptation method is shown, and what it answers.
//!
//! A method never sees a label; [`Batch`] carries none. Methods disagree on whether a sample is answered before
//! or after it has taught, so the order belongs to the method and is declared on its [`Card`].

use std::ops::Range;

pub use crate::drift::ClassDrift;
use crate::explain::{Lever, Part, Similar};
use crate::group::Sharing;
use crate::scores::{Summary, softmax_from, summary};
use crate::{Error, Features, Head, Layer, Result, Scores, State};

mod card;

pub use card::{Card, Footing, Grouping, Growth, Readout};

/// What an adapter is shown: rows in arrival order.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Id of the first row; the others count on from it.
    pub first_id: u64,
    /// Unit image features, one row per sample.
    pub features: Features<'a>,
    /// The frozen model's logits for these rows.
    pub zero_shot: ScoresRef<'a>,
    /// Summary (τ = 1) of each row of `zero_shot`.
    pub frozen: &'a [Summary],
    /// exp(logit − best) of each row of `zero_shot`: its probabilities before they are normalised.
    pub weights: ScoresRef<'a>,
    /// Rows that must not teach are `false`; `None` lets all teach.
    pub learn: Option<&'a [bool]>,
    /// Arrival times in seconds, for updates by time.
    pub times: Option<&'a [f64]>,
    /// Extra views (weak augmentations) of the rows.
    pub views: Option<ViewsRef<'a>>,
    /// Whether anyone will read the prediction's scores: if not, a method may leave them empty.
    pub keep_scores: bool,
    /// Whether anyone will read the emitted probabilities of all classes. Where only these will be read, a method that gives
    /// them may leave the scores empty.
    pub keep_probs: bool,
}

impl<'a> Batch<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.features.rows()
    }

    /// Whether a row may teach.
    pub fn may_learn(&self, row: usize) -> bool {
        self.learn.is_none_or(|learn| learn[row])
    }

    /// Some consecutive rows as a batch of their own.
    pub fn slice(&self, rows: Range<usize>) -> Batch<'_> {
        Batch {
            first_id: self.first_id + rows.start as u64,
            features: self.features.slice(rows.clone()),
            zero_shot: self.zero_shot.slice(rows.clone()),
            frozen: &self.frozen[rows.clone()],
            weights: self.weights.slice(rows.clone()),
            learn: self.learn.map(|v| &v[rows.clone()]),
            times: self.times.map(|v| &v[rows.clone()]),
            views: self.views.map(|v| ViewsRef { offsets: &v.offsets[rows.start..rows.end + 1], ..v }),
            keep_scores: self.keep_scores,
            keep_probs: self.keep_probs,
        }
    }
}

/// Borrowed [`Scores`].
#[derive(Clone, Copy, Debug)]
pub struct ScoresRef<'a> {
    data: &'a [f32],
    classes: usize,
}

impl<'a> ScoresRef<'a> {
    /// One row.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.classes..][..self.classes]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.classes.max(1)
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// All rows, one after another.
    pub fn data(&self) -> &'a [f32] {
        self.data
    }

    /// Some consecutive rows.
    pub fn slice(&self, rows: Range<usize>) -> ScoresRef<'a> {
        ScoresRef {
            data: &self.data[rows.start * self.classes..rows.end * self.classes],
            classes: self.classes,
        }
    }

    /// A copy.
    pub fn to_scores(self) -> Scores {
        Scores::from_rows(self.data.to_vec(), self.classes)
    }
}

impl<'a> From<&'a Scores> for ScoresRef<'a> {
    fn from(scores: &'a Scores) -> Self {
        Self { data: scores.data(), classes: scores.classes() }
    }
}

/// Extra views of samples: several feature rows each, with the frozen model's scores for them.
#[derive(Clone, Copy, Debug)]
pub struct ViewsRef<'a> {
    /// All view rows, sample after sample.
    pub features: &'a Features<'a>,
    /// The frozen model's logits for the view rows.
    pub zero_shot: &'a Scores,
    /// The views of sample `i` are the rows `offsets[i]..offsets[i + 1]`.
    pub offsets: &'a [usize],
}

impl ViewsRef<'_> {
    /// The view rows of a sample.
    pub fn of(&self, row: usize) -> Range<usize> {
        self.offsets[row]..self.offsets[row + 1]
    }
}

/// The answer for one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    /// The class answered.
    pub label: usize,
    /// Its probability under the calibrated temperature τ_cal: what a consumer should use.
    pub prob: f32,
    /// Its probability under τ_pred.
    pub prob_pred: f32,
    /// The probability under τ_cal of the frozen model's answer, where the method tells it and it is another one.
    pub prob_frozen: Option<f32>,
    /// Whether the gate admits the row as a teacher.
    pub admitted: bool,
    /// Whether the row is a near-copy of the scene at hand: then it teaches nothing.
    pub copy: bool,
    /// Whether the row looks like nothing the stream or the head knows: then it teaches nothing.
    pub garbage: bool,
}

/// A method's answers for a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Logits, rows × classes, at τ_pred.
    pub scores: Scores,
    /// Logits of the calibrated probabilities, where these are not a multiple of `scores`.
    pub calibrated: Option<Scores>,
    /// The calibrated probabilities themselves, where the batch asks for them and the method has them at hand.
    pub probs: Option<Scores>,
    /// The calibrated probabilities are softmax(`tau_cal[row]` · logits).
    pub tau_cal: Vec<f32>,
    /// One answer per row.
    pub answers: Vec<Answer>,
}

impl Prediction {
    /// Answers read off logits alone: no separate calibration, nothing admitted.
    pub fn from_scores(scores: Scores) -> Self {
        let answers = (0..scores.rows())
            .map(|row| {
                let s = summary(scores.row(row), 1.0);
                Answer { label: s.label, prob: s.prob, prob_pred: s.prob, ..Default::default() }
            })
            .collect();
        Self { tau_cal: vec![1.0; scores.rows()], calibrated: None, probs: None, scores, answers }
    }

    /// The frozen model's own answers; `looks` tells of each row whether it is a near-copy of the scene at hand, and whether it
    /// is garbage.
    pub(crate) fn frozen(batch: &Batch<'_>, looks: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut prediction = Self::from_scores(batch.zero_shot.to_scores());
        for (answer, look) in prediction.answers.iter_mut().zip(looks) {
            (answer.copy, answer.garbage) = look;
        }
        prediction
    }

    /// The emitted probabilities of all classes for a row: those at hand, or computed from scores, into `buffer`.
    pub(crate) fn emitted<'a>(&'a self, row: usize, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        if let Some(probs) = &self.probs {
            return probs.row(row);
        }
        buffer.resize(self.scores.classes(), 0.0);
        let logits = self.calibrated.as_ref().unwrap_or(&self.scores);
        let answer = &self.answers[row];
        softmax_from(logits.row(row), self.tau_cal[row], (answer.label, answer.prob), buffer);
        buffer
    }

    /// The emitted probabilities of all classes for all rows.
    fn all_emitted(&self) -> Scores {
        let (mut probs, mut buffer) = (Scores::zeros(0, self.scores.classes()), Vec::new());
        for row in 0..self.answers.len() {
            let emitted = self.emitted(row, &mut buffer);
            probs.append(ScoresRef { data: emitted, classes: emitted.len() });
        }
        probs
    }

    /// Takes in the rows of a later prediction.
    pub(crate) fn append(&mut self, other: Prediction) {
        // A session that falls back to zero-shot within a block has probabilities or calibrated logits at hand for the first
        // rows only; for the others those of the plain scores stand in.
        if self.probs.is_some() || other.probs.is_some() {
            let mut probs = self.probs.take().unwrap_or_else(|| self.all_emitted());
            match &other.probs {
                Some(theirs) => probs.append(theirs),
                None => probs.append(&other.all_emitted()),
            }
            self.probs = Some(probs);
        }
        if self.calibrated.is_some() || other.calibrated.is_some() {
            let own = self.calibrated.get_or_insert_with(|| self.scores.clone());
            own.append(other.calibrated.as_ref().unwrap_or(&other.scores));
        }
        self.scores.append(&other.scores);
        self.tau_cal.extend(other.tau_cal);
        self.answers.extend(other.answers);
    }
}

/// The samples that delayed labels can be for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Number of samples that can be labelled now.
    pub samples: usize,
    /// Id of the oldest of them.
    pub oldest: Option<u64>,
    /// Number of samples that can be labelled at most.
    pub most: usize,
    /// The setting that bounds this number.
    pub setting: &'static str,
}

/// A scene that is kept, by its first row.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptScene {
    /// Id of the row.
    pub id: u64,
    /// The class answered.
    pub label: usize,
    /// Its calibrated probability.
    pub prob: f32,
    /// The label that was given for it, if one was.
    pub corrected: Option<usize>,
    /// The row's features, as they are kept.
    pub features: Vec<f32>,
}

/// What letting a batch teach did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Per row: whether it taught.
    pub admitted: Vec<bool>,
}

/// What a method can say about itself without labels. Fields that do not apply keep their neutral values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vitals {
    /// KL(π‖π⁰) of the class prior, in nats.
    pub prior_kl: f64,
    /// Largest movement of a prototype over the classes: ‖t_c − μ_c‖, or what corresponds to it in the method.
    pub movement_max: f64,
    /// Mean movement over the classes.
    pub movement_mean: f64,
    /// Temperature multiplier of the answer.
    pub tau_pred: f64,
    /// Temperature multiplier of the calibrated probabilities.
    pub tau_cal: f64,
    /// How much the evidence from the stream counts in the answers: 0 is nothing. For the default it is the *trust*.
    pub evidence_weight: f64,
    /// How often the method began anew because the stream had changed.
    pub restarts: u64,
    /// Bytes the method carries.
    pub state_bytes: usize,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            prior_kl: 0.0,
            movement_max: 0.0,
            movement_mean: 0.0,
            tau_pred: 1.0,
            tau_cal: 1.0,
            evidence_weight: 0.0,
            restarts: 0,
            state_bytes: 0,
        }
    }
}

/// A test-time adaptation method on features.
///
/// The default bodies suit a method that keeps nothing. A method that learns brings `observe`, `reset`, `save`,
/// `load` and `vitals` of its own. An adapter only meets batches that [`Session`](crate::Session) has checked, so
/// answering and learning cannot fail.
pub trait Adapter: CloneAdapter + Send + Sync {
    /// Name, paper, read-out order and the like.
    fn card(&self) -> &'static Card;

    /// The answer now, each row by itself unless the card says [`Grouping::Joint`]. Changes nothing.
    fn predict(&self, batch: &Batch<'_>) -> Prediction;

    /// Lets the batch teach: gate, accumulate, update.
    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        Observed { admitted: vec![false; batch.rows()] }
    }

    /// One step in the order the card declares. For [`Grouping::Independent`] it equals stepping row by row.
    /// A method may override it to share work; the contract tests hold it to the same answers.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let Card { readout, grouping, .. } = *self.card();
        let mut step_together = |batch: &Batch<'_>| {
            let (mut prediction, observed) = match readout {
                Readout::BeforeObserve => {
                    let prediction = self.predict(batch);
                    (prediction, self.observe(batch))
                }
                Readout::AfterObserve => {
                    let observed = self.observe(batch);
                    (self.predict(batch), observed)
                }
            };
            for (answer, admitted) in prediction.answers.iter_mut().zip(observed.admitted) {
                answer.admitted = admitted;
            }
            prediction
        };
        if grouping == Grouping::Joint {
            return step_together(batch);
        }
        let mut all = Prediction::default();
        for row in 0..batch.rows() {
            all.append(step_together(&batch.slice(row..row + 1)));
        }
        all
    }

    /// Rows that the frozen model answers, because the guard has no faith in the method: they teach nothing, but can be
    /// labelled, and scenes go on. Per row: whether it is a near-copy of the scene at hand, and whether it is garbage.
    fn rest(&mut self, batch: &Batch<'_>) -> Vec<(bool, bool)> {
        let none = vec![false; batch.rows()];
        self.observe(&Batch { learn: Some(&none), ..batch.clone() });
        vec![(false, false); batch.rows()]
    }

    /// A delayed label for a row answered earlier; `false` if the method has no use for it.
    fn feedback(&mut self, _id: u64, _label: usize) -> Result<bool> {
        Ok(false)
    }

    /// Which samples delayed labels can be for; `None` if the method has no use for labels.
    fn memory(&self) -> Option<Memory> {
        None
    }

    /// A label for a row answered earlier that counts at once; `false` if the method has no use for it.
    fn correct(&mut self, _id: u64, _label: usize) -> Result<bool> {
        Ok(false)
    }

    /// Takes back a label that [`correct`](Adapter::correct) took in; `false` if there was none.
    fn withdraw(&mut self, _id: u64) -> bool {
        false
    }

    /// The labels that count at once, by the ids of their rows, in the order in which they were given.
    fn corrections(&self) -> Vec<(u64, usize)> {
        Vec::new()
    }

    /// The answer to a batch of one row, and the parts that add up to its logits.
    fn explain(&self, batch: &Batch<'_>) -> (Prediction, Vec<Part>) {
        let prediction = self.predict(batch);
        let text = batch.zero_shot.row(0);
        let added = prediction.scores.row(0).iter().zip(text).map(|(own, text)| own - text).collect();
        let parts = vec![
            Part { lever: Lever::Text, nats: text.to_vec() },
            Part { lever: Lever::Method, nats: added },
        ];
        (prediction, parts)
    }

    /// The earlier scenes that look most like a row, of those that are kept.
    fn similar(&self, _z: &[f32], _most: usize) -> Vec<Similar> {
        Vec::new()
    }

    /// The features of an earlier row, or of the first row of its scene, as they are kept; and that row's id.
    fn kept_features(&self, id: u64) -> Result<(u64, Vec<f32>)> {
        Err(Error::Forgotten { id, remembered: 0, setting: None })
    }

    /// The scenes that are kept, oldest first.
    fn kept(&self) -> Vec<KeptScene> {
        Vec::new()
    }

    /// Back to the start.
    fn reset(&mut self) {}

    /// Everything needed to continue bit for bit.
    fn save(&self) -> State {
        State::default()
    }

    /// Continues from a saved state. On an error nothing has changed.
    fn load(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }

    /// A compact copy to fall back to, accepted by [`load`](Adapter::load). It may round.
    fn checkpoint(&self) -> State {
        self.save()
    }

    /// What can be said without labels.
    fn vitals(&self) -> Vitals {
        Vitals::default()
    }

    /// The answers as they are now, as one linear layer; `None` where they are none.
    fn layer(&self, _head: &Head) -> Option<Layer> {
        None
    }

    /// The evidence that can be shared with a group; `None` where there is none.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }

    /// The shared evidence, mutable.
    fn sharing_mut(&mut self) -> Option<&mut dyn Sharing> {
        None
    }

    /// How far each class's prototype has moved, and its prior, for reports. Empty where it does not apply.
    fn per_class(&self) -> Vec<ClassDrift> {
        Vec::new()
    }
}

/// Clones an adapter behind its trait. Every adapter that is [`Clone`] has it.
pub trait CloneAdapter {
    /// A second adapter in the same state.
    fn clone_box(&self) -> Box<dyn Adapter>;
}

impl<A: Adapter + Clone + 'static> CloneAdapter for A {
    fn clone_box(&self) -> Box<dyn Adapter> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Adapter> {
    fn clone(&self) -> Self {
        self.as_ref().clone_box()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_that_are_put_together_keep_their_probabilities() {
        let of = |rows: &[f32]| Prediction::from_scores(Scores::from_rows(rows.to_vec(), 2));
        let at_hand = |rows: &[f32], probs: &[f32]| Prediction {
            probs: Some(Scores::from_rows(probs.to_vec(), 2)),
            ..of(rows)
        };
        let mut buffer = Vec::new();
        let mut both = at_hand(&[0.0, 1.0], &[0.4, 0.6]);
        both.append(at_hand(&[2.0, 0.0], &[0.9, 0.1]));
        assert_eq!(both.probs.as_ref().unwrap().data(), [0.4, 0.6, 0.9, 0.1]);
        // Where one part has none at hand, they are those of its scores.
        both.append(of(&[0.0, 0.0]));
        assert_eq!((both.emitted(1, &mut buffer), both.answers.len()), (&[0.9, 0.1][..], 3));
        assert_eq!(both.emitted(2, &mut buffer), [0.5, 0.5]);
        let mut later = of(&[0.0, 0.0]);
        later.append(at_hand(&[0.0, 1.0], &[0.4, 0.6]));
        assert_eq!(later.probs.unwrap().data(), [0.5, 0.5, 0.4, 0.6]);
        let mut all = Prediction::default();
        all.append(at_hand(&[0.0, 1.0], &[0.4, 0.6]));
        assert_eq!(all.probs.unwrap().data(), [0.4, 0.6]);
        let mut none = of(&[0.0, 1.0]);
        none.append(of(&[0.0, 1.0]));
        assert_eq!(none.probs, None);
    }
}
