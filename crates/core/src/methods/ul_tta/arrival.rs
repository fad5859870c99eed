//! What a row goes through when it arrives: is it a near-copy, has the stream changed, and only then a sample that is
//! answered and teaches. [`UlTta::peek`] answers the same and changes nothing.

use super::prior::PriorWork;
use super::scene::moments;
use super::{Answered, Incoming, UlTta, Work};
use crate::adapter::Batch;

impl UlTta {
    /// Whether a row is a near-copy of the scene at hand.
    fn is_copy(&self, row: Incoming<'_>) -> bool {
        self.config.scenes && self.scene.holds(row.z, row.text)
    }

    /// Answers a row and changes nothing.
    pub(super) fn peek(&self, row: Incoming<'_>, work: &mut Work, scores: &mut [f32]) -> (Answered, bool) {
        if self.is_copy(row) {
            let mut scene = self.scene.clone();
            scene.join(row.z, row.text);
            return (self.answer_copy(&scene, work, scores), false);
        }
        if self.watch.after(moments(row.text), self.config.advanced.restart_at).1 {
            let fresh = Self::new(&self.config, &self.head);
            let answered = fresh.answer(row, work, scores);
            let admitted = fresh.admits(&answered.summary);
            return (answered, admitted);
        }
        let answered = self.answer(row, work, scores);
        let admitted = self.admits(&answered.summary);
        (answered, admitted)
    }

    /// Forgets what was learnt, because the stream has changed. Earlier rows can still be labelled.
    fn restart(&mut self, work: &mut Work) {
        let mut fresh = Self::new(&self.config, &self.head);
        fresh.prior.keep_neighbours(&mut self.prior);
        std::mem::swap(&mut fresh.recent, &mut self.recent);
        std::mem::swap(&mut fresh.scene, &mut self.scene);
        fresh.recent.retire();
        fresh.scene.forget();
        fresh.restarts = self.restarts + 1;
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
            self.learn(batch, row, &answered, work);
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
        let moments = moments(incoming.text);
        let (watch, changed) = self.watch.after(moments, self.config.advanced.restart_at);
        if changed {
            self.restart(work);
        }
        self.watch = watch;
        let mut answered = self.answer(incoming, work, scores);
        if self.config.scenes {
            self.scene.begin(id, incoming.z, incoming.text, moments);
            self.scene.keep_prior(&work.prior.mix, &work.log_prior);
        }
        answered.answer.admitted = self.learn(batch, row, &answered, work);
        answered
    }
}
