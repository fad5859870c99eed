//! Samples: logged, stepped, answered, shown to shadows.

use std::collections::VecDeque;
use std::time::Instant;

use super::Owner;
use crate::alarms::AlarmView;
use crate::job::{Answers, Classify, Kept, Reply};
use crate::metrics::Stage;
use crate::parts;
use crate::problem::Problem;
use crate::recovery::grouping_is_free;

impl Owner {
    /// Logs a group of requests with one write, then steps through them. While the disk refuses the log, they are
    /// answered without learning.
    pub(super) fn classify(&mut self, mut group: Vec<Classify>) {
        let taken = Instant::now();
        self.pulse.beat();
        for job in &mut group {
            self.parts.stages.observe(Stage::Queue, taken - job.arrived);
            self.settle_times(job);
        }
        let logged = self.log_samples(&group);
        self.parts.stages.observe(Stage::Log, taken.elapsed());
        if !logged {
            return self.answer_only(group);
        }
        let stepping = Instant::now();
        let together = grouping_is_free(&self.session);
        let mut jobs = VecDeque::from(group);
        while let Some(first) = jobs.pop_front() {
            let mut block = vec![first];
            while together && jobs.front().is_some_and(|job| self.can_follow(job, &block)) {
                block.extend(jobs.pop_front());
            }
            self.step(block);
        }
        self.parts.stages.observe(Stage::Step, stepping.elapsed());
    }

    /// Gives samples the server's time where the method goes by time and the sender gave none, and lifts times that
    /// run backwards.
    fn settle_times(&mut self, job: &mut Classify) {
        if self.stamps_times && job.samples.times().is_none() {
            job.samples.stamp(self.parts.clock.now());
        }
        if let Some(times) = job.samples.times_mut() {
            self.extra.arrivals.lift(times);
        }
    }

    /// Whether a job can be stepped as one block behind others. What has to be done in parts is done by itself.
    fn can_follow(&self, job: &Classify, block: &[Classify]) -> bool {
        let small = |job: &Classify| job.samples.len() <= parts::most_rows(&self.session, job.extent);
        job.can_follow(&block[0]) && small(job) && block.iter().all(small)
    }

    /// Steps jobs as one block and answers them.
    fn step(&mut self, mut block: Vec<Classify>) {
        let keep_scores = block.iter().any(|job| job.extent.needs_scores());
        let zero_shot = block[0].zero_shot.take();
        let mut samples = block[0].samples.clone();
        for job in &block[1..] {
            samples.append(&job.samples);
        }
        let most = parts::most_rows(&self.session, block[0].extent);
        let stepped = if samples.len() > most && zero_shot.is_none() && block.len() == 1 {
            let done = parts::step(&mut self.session, &block[0], most, self.extra.generation);
            done.map(|(step, answers)| (step, Some(answers)))
        } else {
            let done = self.session.step(samples.input(zero_shot.as_ref(), keep_scores));
            done.map(|step| (step, None))
        };
        let (step, mut answers) = match stepped {
            Ok(stepped) => stepped,
            Err(e) => {
                let problem = Problem::from(e);
                return block.into_iter().for_each(|job| job.reply.send(Err(problem.clone())));
            }
        };
        self.publishing.behind = true;
        let mut start = 0;
        for job in &block {
            let rows = &step.rows[start..start + job.samples.len()];
            let source = match &job.reply {
                Reply::Shadow { first, labels } => {
                    let same = rows.iter().zip(labels).filter(|(row, label)| row.label as u32 == **label);
                    self.agreement.same += same.count() as u64;
                    self.agreement.shown += rows.len() as u64;
                    Some(*first)
                }
                Reply::Caller(_) => None,
            };
            self.recent.add(rows, source);
            start += rows.len();
        }
        self.parts.shadows.show(&samples, &step.rows, self.extra.generation);
        self.parts.stages.rows.inc_by(samples.len() as u64);
        let status = self.status_with(step.health);
        let latencies = block.iter().map(|job| job.arrived.elapsed());
        let now = self.parts.clock.now();
        self.board.note(&step.rows, latencies, status, now);
        for alarm in &step.alarms {
            self.raise(AlarmView::of(alarm, &self.session, Some(now)));
        }
        let kept = Kept::in_log(self.session.learning());
        let mut start = 0;
        for job in block {
            let rows = start..start + job.samples.len();
            start = rows.end;
            if matches!(job.reply, Reply::Caller(_)) {
                let of_step = || Answers::of(&step, rows, job.extent, kept, self.extra.generation);
                job.reply.send(Ok(answers.take().unwrap_or_else(of_step)));
            }
        }
    }

    /// Answers without learning, because nothing can be kept.
    fn answer_only(&mut self, jobs: Vec<Classify>) {
        for job in jobs {
            let (zero_shot, generation) = (job.zero_shot.as_ref(), self.extra.generation);
            let answers = parts::predict(&self.session, &job.samples, zero_shot, job.extent, generation);
            job.reply.send(answers.map_err(Problem::from));
        }
    }
}
