//! What a row goes through when it arrives: is it a near-copy, has the stream changed, and only then a sample that is
//! answered and teaches. [`UlTta::peek`] answers the same and changes nothing.

use super::experts::SMALL;
use super::garbage::Look;
use super::kept::{Counted, largest};
use super::prior::{PriorWork, WARM_UP};
use super::{Answered, Incoming, UlTta, Work};
use crate::adapter::Batch;

/// A restart is *hasty* if it comes before this many samples since the last one.
const LASTING: u64 = 4096;

/// A restart makes the prior's warm-up four times as long, and so does each hasty restart that follows it, up to this many
/// restarts in all: on a stream that keeps changing its look a prior is out of date as soon as it is learnt.
const MOST_HASTY: u64 = 4;

/// Mean of a row's frozen logits, and their mean square after centring.
fn moments(row: Incoming<'_>) -> (f32, f64) {
    (row.frozen.moments.0, row.frozen.moments.1.into())
}

impl UlTta {
    /// Samples before the prior enters the answers.
    pub(super) fn prior_warm_up(&self) -> u64 {
        WARM_UP << (2 * self.hasty.min(MOST_HASTY))
    }

    /// Whether a row is a near-copy of the scene at hand.
    fn is_copy(&self, row: Incoming<'_>) -> bool {
        self.config.scenes && self.scene.holds(row.z, row.text)
    }

    /// Whether a row that is no copy is garbage.
    fn look(&self, row: Incoming<'_>) -> Option<Look> {
        self.config.spot_garbage.then(|| self.garbage.look(row, self.scene.usual()))
    }

    /// Answers a row and changes nothing.
    pub(super) fn peek(&self, row: Incoming<'_>, work: &mut Work, scores: &mut [f32]) -> (Answered, bool) {
        if self.is_copy(row) {
            let mut scene = self.scene.clone();
            scene.join(row.z, row.text);
            return (self.answer_copy(&scene, work, scores), false);
        }
        let look = self.look(row);
        let garbage = look.is_some_and(|look| look.garbage);
        let anew = if garbage {
            look.is_some_and(|look| self.garbage.begins_anew(&look, self.seen))
        } else {
            self.watch.would_change(moments(row), row.frozen.label, self.config.advanced.restart_at)
        };
        let fresh = anew.then(|| {
            let mut fresh = Self::new(&self.config, &self.head);
            fresh.corrections.clone_from(&self.corrections);
            fresh
        });
        let method = fresh.as_ref().unwrap_or(self);
        let mut answered = method.answer_corrected(row, work, scores);
        answered.answer.garbage = garbage;
        let admitted = !garbage && method.admits(&answered.summary);
        (answered, admitted)
    }

    /// Answers a row with what labels add to it.
    fn answer_corrected(&self, row: Incoming<'_>, work: &mut Work, scores: &mut [f32]) -> Answered {
        let mut buffer = std::mem::take(&mut work.corrected);
        let answered = self.answer(row.corrected(&self.corrections, &mut buffer, work), work, scores);
        work.corrected = buffer;
        answered
    }

    /// Takes over what somebody said of earlier rows. What these rows had taught is forgotten.
    pub(super) fn keep_labels(&mut self, other: &Self) {
        (self.kept, self.corrections) = (other.kept.clone(), other.corrections.clone());
        self.kept.retire();
        self.corrections.retire();
    }

    /// Keeps a scene's first row, with what it has taught.
    pub(super) fn keep(&mut self, id: u64, z: &[f32], answered: &Answered, may_learn: bool, work: &Work) {
        let mut counted = Counted::default();
        if may_learn {
            counted.seen = self.seen;
            counted.samples = self.evidence.as_ref().map_or(0, |evidence| evidence.samples());
            counted.evidence = largest(work.shares.iter().copied());
        }
        let posterior = work.candidates.iter().zip(&work.posterior).map(|(&c, &p)| (c, p));
        let posterior = largest(posterior.filter(|share| share.1 > SMALL));
        self.kept.push(id, z, (answered.answer.label, answered.answer.prob), posterior, counted);
    }

    /// Begins anew because the stream has changed.
    fn restart(&mut self, work: &mut Work) {
        let hasty = if self.seen < LASTING { (self.hasty + 1).min(MOST_HASTY) } else { 1 };
        self.begin_anew(work);
        self.hasty = hasty;
        self.scene.forget();
    }

    /// Forgets what was learnt. Earlier rows can still be labelled.
    fn begin_anew(&mut self, work: &mut Work) {
        let mut fresh = Self::new(&self.config, &self.head);
        fresh.prior.keep_neighbours(&mut self.prior);
        std::mem::swap(&mut fresh.recent, &mut self.recent);
        std::mem::swap(&mut fresh.scene, &mut self.scene);
        std::mem::swap(&mut fresh.garbage, &mut self.garbage);
        fresh.recent.retire();
        fresh.keep_labels(self);
        fresh.shared = self.shared.take();
        fresh.restarts = self.restarts + 1;
        fresh.hasty = self.hasty;
        fresh.updated_at = self.updated_at;
        *self = fresh;
        work.prior = PriorWork::default();
    }

    /// Answers a row and lets it teach, if it may and is no copy.
    pub(super) fn take_in(
        &mut self,
        batch: &Batch<'_>,
        row: usize,
        work: &mut Work,
        scores: &mut [f32],
    ) -> Answered {
        let (incoming, id) = (Incoming::of(batch, row), batch.first_id + row as u64);
        if !batch.may_learn(row) {
            let answered = self.peek(incoming, work, scores).0;
            self.learn(batch, row, incoming, &answered, work);
            return answered;
        }
        if self.is_copy(incoming) {
            self.scene.join(incoming.z, incoming.text);
            self.scene.note_copy(id);
            let answered = self.answer_copy(&self.scene, work, scores);
            if self.update_is_due(false, batch.times.map(|t| t[row])) {
                self.update(work);
            }
            return answered;
        }
        let garbage = self.notice(incoming, work);
        // The labels' part is in what is answered and learnt from, not in where scenes begin.
        let mut buffer = std::mem::take(&mut work.corrected);
        let spoken = incoming.corrected(&self.corrections, &mut buffer, work);
        let mut answered = self.answer(spoken, work, scores);
        self.begin_scene(id, incoming, garbage, work);
        answered.answer.garbage = garbage;
        answered.answer.admitted = self.learn(batch, row, spoken, &answered, work);
        work.corrected = buffer;
        answered
    }

    /// Takes note of a row that is no copy: whether it is garbage, and if not whether the stream has changed, for then everything
    /// begins anew.
    fn notice(&mut self, row: Incoming<'_>, work: &mut Work) -> bool {
        if let Some(look) = self.look(row) {
            if self.garbage.push(row.z, &look, self.seen) {
                self.begin_anew(work);
            }
            if look.garbage {
                return true;
            }
        }
        if self.watch.push(moments(row), row.frozen.label, self.config.advanced.restart_at) {
            self.restart(work);
        }
        false
    }

    /// Begins a scene with a row that was answered.
    fn begin_scene(&mut self, id: u64, row: Incoming<'_>, garbage: bool, work: &Work) {
        if self.config.scenes {
            self.scene.begin(id, row.z, row.text, (!garbage).then(|| moments(row)));
            self.scene.keep_prior(&work.prior.mix, &work.log_prior);
        }
    }

    /// Takes in a row that the frozen model answers: it teaches nothing, but scenes go on and the watch looks out, so that
    /// scenes are cut where they would be cut otherwise. `resting` is the batch with no row that may teach. Tells whether the
    /// row is a copy, and whether it is garbage.
    pub(super) fn pass_by(
        &mut self,
        batch: &Batch<'_>,
        resting: &Batch<'_>,
        row: usize,
        work: &mut Work,
        scores: &mut [f32],
    ) -> (bool, bool) {
        if !batch.may_learn(row) {
            let answer = self.take_in(resting, row, work, scores).answer;
            return (answer.copy, answer.garbage);
        }
        let (incoming, id) = (Incoming::of(batch, row), batch.first_id + row as u64);
        if self.is_copy(incoming) {
            self.scene.join(incoming.z, incoming.text);
            self.scene.note_copy(id);
            return (true, self.scene.garbage);
        }
        let garbage = self.notice(incoming, work);
        let answered = self.answer_corrected(incoming, work, scores);
        self.begin_scene(id, incoming, garbage, work);
        self.learn(resting, row, incoming, &answered, work);
        (false, garbage)
    }

    /// Takes over what depends on the rows alone, because these go on after a return to a healthy state: the scene at hand, the
    /// ids of copies, and the watch. The prior under which the scene began is forgotten with all that misled.
    pub(super) fn keep_rows(&mut self, other: &Self) {
        (self.scene, self.watch, self.garbage) =
            (other.scene.clone(), other.watch.clone(), other.garbage.clone());
        self.scene.forget_prior();
    }
}
