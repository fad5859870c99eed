//! Large requests in parts. An answer that lists classes needs the scores of its row, of all classes; those of all rows of a
//! large request at once would take memory out of proportion to what was sent.

use std::ops::Range;

use ultta::internal::PASS_ROWS;
use ultta::{Result, Scores, Session, Step};

use crate::job::{Answers, Classify, Extent, Kept};
use crate::recovery::grouping_is_free;
use crate::samples::Samples;

/// Scores that are kept at once: 16 MB of each kind.
const MOST_CELLS: usize = 4 << 20;

/// Rows that are answered at once, at most: whole passes over the prototypes. A method that answers a batch jointly takes it in
/// one piece.
pub fn most_rows(session: &Session, extent: Extent) -> usize {
    if !extent.needs_scores() || !grouping_is_free(session) {
        return usize::MAX;
    }
    (MOST_CELLS / session.head().n_classes() / PASS_ROWS).max(1) * PASS_ROWS
}

/// The rows of a request in parts; without rows there is one empty part.
fn parts(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows.max(1)).step_by(most).map(move |start| start..rows.min(start.saturating_add(most)))
}

/// Answers samples without learning from them.
pub fn predict(
    session: &Session,
    samples: &Samples,
    zero_shot: Option<&Scores>,
    extent: Extent,
    generation: u64,
) -> Result<Answers> {
    let most = most_rows(session, extent);
    let answer = |samples: &Samples, zero_shot| -> Result<Answers> {
        let step = session.predict(samples.input(zero_shot, extent.needs_scores()))?;
        Ok(Answers::of(&step, 0..step.rows.len(), extent, Kept::Nothing, generation))
    };
    // Scores that were computed before are those of all rows, and the largest requests have none (`Stream::score`).
    if samples.len() <= most || zero_shot.is_some() {
        return answer(samples, zero_shot);
    }
    let mut ranges = parts(samples.len(), most);
    let mut whole = answer(&samples.slice(ranges.next().unwrap_or(0..0)), None)?;
    for range in ranges {
        whole.append(answer(&samples.slice(range), None)?);
    }
    Ok(whole)
}

/// Lets the many samples of a job teach, and answers them: what came of all of them, without scores, and the answers. The
/// method must not mind how rows are grouped.
pub fn step(session: &mut Session, job: &Classify, most: usize, generation: u64) -> Result<(Step, Answers)> {
    let mut whole: Option<(Step, Answers)> = None;
    for range in parts(job.samples.len(), most) {
        let samples = job.samples.slice(range);
        let mut step = session.step(samples.input(None, true))?;
        let kept = Kept::in_log(session.learning());
        let answers = Answers::of(&step, 0..step.rows.len(), job.extent, kept, generation);
        (step.zero_shot, step.prediction) = Default::default();
        whole = Some(match whole {
            None => (step, answers),
            Some((mut before, mut all)) => {
                all.append(answers);
                before.rows.extend(step.rows);
                before.sets.extend(step.sets);
                before.known.extend(step.known);
                before.alarms.extend(step.alarms);
                before.health = step.health;
                (before, all)
            }
        });
    }
    whole.ok_or(ultta::Error::Shape { what: ultta::What::Other("rows"), expected: 1, got: 0 })
}

#[cfg(test)]
mod tests {
    use ultta::{Config, Features, Head};

    use super::*;

    #[test]
    fn parts_are_all_rows_in_order() {
        assert_eq!(parts(0, 128).collect::<Vec<_>>(), vec![0..0; 1]);
        assert_eq!(parts(300, 128).collect::<Vec<_>>(), [0..128, 128..256, 256..300]);
        assert_eq!(parts(5, usize::MAX).collect::<Vec<_>>(), vec![0..5; 1]);
    }

    #[test]
    fn answers_in_parts_are_those_of_the_whole() {
        let rows: Vec<f32> =
            (0..260).flat_map(|i| [(i as f32 * 0.7).cos(), (i as f32 * 0.7).sin()]).collect();
        let samples = Samples::plain(Features::checked(rows, 2, true).unwrap());
        let session = |method: &str, classes: usize| {
            let prototypes: Vec<f32> =
                (0..classes).flat_map(|i| [(i as f32).cos(), (i as f32).sin()]).collect();
            let names: Vec<String> = (0..classes).map(|i| i.to_string()).collect();
            let head = Head::new(prototypes, 2, names, 50.0).unwrap();
            Session::new(head, &Config::named(method).unwrap()).unwrap()
        };
        let extent = Extent { top: 2, probs: false, prob_pred: true };
        let most = |method| most_rows(&session(method, 20_000), extent);
        assert_eq!((most("zero-shot"), most("lame")), (128, usize::MAX));
        assert_eq!(most_rows(&session("zero-shot", 20_000), Extent::default()), usize::MAX);
        for (method, classes, most) in [("ul-tta", 100, 128), ("zero-shot", 20_000, 128)] {
            let mut session = session(method, classes);
            let mut other = session.clone();
            let reply = crate::job::Reply::Shadow { first: (0, 0), labels: Vec::new() };
            let arrived = std::time::Instant::now();
            let job =
                Classify { samples: samples.clone(), zero_shot: None, extent, arrived, reply, _held: None };
            let (step, answers) = super::step(&mut session, &job, most, 3).unwrap();
            let whole = other.step(samples.input(None, true)).unwrap();
            assert_eq!((&step.rows, &answers.rows), (&whole.rows, &whole.rows));
            assert_eq!((answers.as_of, step.health.seen), (260, 260));
            assert!(answers.top.iter().enumerate().all(|(row, top)| *top == whole.top(row, 2)));
            assert_eq!(session.state().to_bytes().unwrap(), other.state().to_bytes().unwrap());
            let predicted = predict(&session, &samples, None, extent, 3).unwrap();
            let whole = session.predict(samples.input(None, true)).unwrap();
            let plain = |rows: &[ultta::Row]| -> Vec<_> {
                rows.iter().map(|r| (r.label, r.prob.to_bits())).collect()
            };
            assert_eq!(plain(&predicted.rows), plain(&whole.rows));
            assert!(predicted.top.iter().enumerate().all(|(row, top)| *top == whole.top(row, 2)));
        }
    }
}
