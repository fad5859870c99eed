//! Recovery: the session as it was, from the latest base state and the log behind it.

use std::fs;
use std::path::Path;

use ultta::internal::PASS_ROWS;
use ultta::{Config, Error, Head, Result, Session, State};

use crate::log::{self, Log, Record};
use crate::samples::Samples;
use crate::store::{Extra, Folder, io_error};

/// A stream as found on the disk.
pub struct Recovered {
    pub session: Session,
    pub extra: Extra,
    pub log: Log,
    /// Records replayed.
    pub records: u64,
    /// Bytes of broken log that were cut off or set aside.
    pub dropped: u64,
    /// What was lost, now or earlier, until someone acknowledges it.
    pub damage: Option<String>,
}

/// The session as it was: the listed base, and every record of the listed segments behind it.
pub fn recover(folder: &Folder, head: Head, config: &Config) -> Result<Recovered> {
    let mut session = Session::new(head, config)?;
    let mut extra = Extra::default();
    if let Some(state) = folder.base()? {
        session
            .load(&state)
            .map_err(|e| Error::Format { reason: e.to_string(), path: folder.path().into() })?;
        session.set_learning(note(&state, "learning") != Some("false"));
        extra.generation = note(&state, "generation").and_then(|v| v.parse().ok()).unwrap_or(0);
        let latest = note(&state, "latest").and_then(|v| v.parse().ok().map(f64::from_bits));
        extra.arrivals.latest = latest.unwrap_or(f64::MIN);
        extra.position = note(&state, "position").and_then(|v| v.parse().ok()).unwrap_or(0);
    }
    let logs = folder.manifest().logs.clone();
    let start = folder.manifest().start();
    let mut replayer = Replayer { session, extra, start, pending: None, records: 0, misfit: None };
    let (mut current, mut dropped): (Option<Log>, u64) = (None, 0);
    let (mut losses, mut beyond): (Vec<String>, u64) = (Vec::new(), 0);
    for &first in &logs {
        let path = folder.log_path(first);
        let expected = current.as_ref().map_or(first, Log::next);
        if first != expected || !losses.is_empty() {
            // Records in between are missing: what follows them cannot be learnt in order.
            dropped += fs::metadata(&path).map_or(0, |m| m.len());
            let aside = path.with_extension("torn");
            let behind =
                log::set_aside(&path, &aside, first).map_err(|e| io_error("setting aside", &path, e))?;
            losses.push(format!(
                "the log from record {first} on, {behind}, does not follow record {expected} and is set aside as {}",
                file_name(&aside)
            ));
            beyond = first + behind.records;
            continue;
        }
        let tail = log::replay(&path, first, |record| replayer.take(record))
            .map_err(|e| io_error("reading", &path, e))?;
        dropped += tail.dropped;
        if let Some(damage) = tail.damage {
            losses.push(format!(
                "record {} of the log is damaged; it and {} behind it were not learnt and are set aside as {}",
                damage.record,
                damage.behind,
                file_name(&damage.aside)
            ));
            beyond = damage.record + 1 + damage.behind.records;
        }
        replayer.flush();
        if let Some((record, reason)) = replayer.misfit.take() {
            // The checksum of the record is right, so it was written for another stream.
            let aside = path.with_extension(format!("damaged-{record}"));
            let lost =
                log::set_aside(&path, &aside, record).map_err(|e| io_error("setting aside", &path, e))?;
            losses.push(format!(
                "record {record} of the log does not belong to this stream ({reason}); {lost} from it on were not learnt, and the segment is set aside as {}",
                file_name(&aside)
            ));
            beyond = beyond.max(record.saturating_add(lost.records));
        }
        current = Some(tail.log);
        folder.remember_log(first);
    }
    let Replayer { mut session, mut extra, records, .. } = replayer;
    let Some(mut log) = current else {
        return Err(Error::Format { reason: "no log is listed".into(), path: folder.path().into() });
    };
    let synced = folder.synced();
    let reached = beyond.max(log.next());
    if reached < synced {
        let missing = synced - reached;
        losses.push(if losses.is_empty() {
            format!(
                "the log ends before record {reached}, and all records before {synced} were on the disk: {missing} of them are gone"
            )
        } else {
            format!("all records before {synced} were on the disk: {missing} more of them are gone or not whole")
        });
    }
    if !losses.is_empty() {
        // Samples that were lost had ids, which are given out again: a new generation tells the two apart. It begins
        // with a base of its own behind all that was lost, and what was lost is on the disk before that.
        let number = beyond.max(log.next()).max(synced) + 1;
        folder.note_damage(&losses.join("; "))?;
        extra = Extra { generation: extra.generation + 1, position: extra.position, ..Extra::default() };
        if let Some(membership) = session.membership() {
            // The group may know more of it than it does itself: it goes on as another member.
            session.join(&format!("{}~{}", membership.member, extra.generation))?;
        }
        log = folder.create_log(number)?;
        folder.write_base(session.state(), number, session.learning(), extra)?;
        if let Err(error) = folder.compact() {
            tracing::warn!(path = %folder.path().display(), %error, "old logs stay");
        }
    }
    let damage = folder.damage();
    Ok(Recovered { session, extra, log, records, dropped, damage })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Feeds records to a session, samples in blocks where the method allows it.
struct Replayer {
    session: Session,
    extra: Extra,
    /// Samples that were read and not stepped yet.
    pending: Option<Samples>,
    /// Number of the first record that is replayed.
    start: u64,
    records: u64,
    /// A record that the session refuses, and why: nothing behind it is learnt.
    misfit: Option<(u64, String)>,
}

impl Replayer {
    fn take(&mut self, record: Record) {
        if self.misfit.is_some() {
            return;
        }
        match record {
            Record::Samples(samples) => {
                if let Err(reason) = self.check(&samples) {
                    self.flush();
                    self.misfit.get_or_insert((self.start + self.records, reason));
                    return;
                }
                for time in samples.times().into_iter().flatten() {
                    self.extra.arrivals.latest = self.extra.arrivals.latest.max(*time);
                }
                let free = grouping_is_free(&self.session);
                match &mut self.pending {
                    Some(pending) if free && pending.len() < PASS_ROWS && pending.can_append(&samples) => {
                        pending.append(&samples);
                    }
                    _ => {
                        self.flush();
                        self.pending = Some(samples);
                    }
                }
            }
            // A label that was refused when it arrived is refused again now, and changes nothing either time.
            Record::Feedback { id, label } => {
                self.flush();
                let _ = self.session.feedback(id, label as usize);
            }
            Record::Correction { id, label } => {
                self.flush();
                // As with the labels above: what was refused when it arrived is refused again.
                let _ = match label {
                    Some(label) => self.session.correct(id, label as usize),
                    None => Ok(self.session.withdraw(id)),
                };
            }
            Record::Group(record) => {
                self.flush();
                let _ = record.apply(&mut self.session, &mut self.extra);
            }
            Record::Learning(learning) => {
                self.flush();
                self.session.set_learning(learning);
            }
        }
        self.records += 1;
    }

    /// Whether samples can be for this session, as they were when they were logged.
    fn check(&self, samples: &Samples) -> std::result::Result<(), String> {
        let (expected, got) = (self.session.head().dim(), samples.features().dim());
        if got != expected {
            return Err(format!("expected rows of {expected} numbers, got {got}"));
        }
        if self.session.config().method.card().needs_views && samples.views().is_none() {
            return Err("expected views of every row, got none".into());
        }
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(samples) = self.pending.take()
            && let Err(error) = self.session.step(samples.input(None, false))
        {
            self.misfit.get_or_insert((self.start + self.records.saturating_sub(1), error.to_string()));
        }
    }
}

/// Whether any grouping of samples gives the same answers and state.
pub fn grouping_is_free(session: &Session) -> bool {
    session.config().method.card().grouping == ultta::Grouping::Independent
}

/// What the server wrote beside a state.
fn note<'s>(state: &'s State, key: &str) -> Option<&'s str> {
    state.metadata.get(&format!("server.{key}")).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use ultta::Features;
    use ultta::simulate::{Simulator, SimulatorConfig};

    use super::*;
    use crate::fleet::GroupRecord;
    use crate::store::Meta;

    const CLASSES: usize = 6;

    fn stage(log: &mut Log, record: &Record) {
        match record {
            Record::Samples(samples) => log.stage_samples(samples),
            Record::Feedback { id, label } => log.stage_feedback(*id, *label),
            Record::Learning(learning) => log.stage_learning(*learning),
            Record::Correction { id, label } => log.stage_correction(*id, *label),
            Record::Group(record) => log.stage_group(record),
        }
    }

    /// Does what a record says, as the owner of a stream does it when it is asked.
    fn take(session: &mut Session, extra: &mut Extra, record: &Record) {
        match record {
            Record::Samples(samples) => drop(session.step(samples.input(None, false)).unwrap()),
            Record::Feedback { id, label } => assert!(session.feedback(*id, *label as usize).unwrap()),
            Record::Learning(learning) => session.set_learning(*learning),
            Record::Correction { id, label } => {
                session.correct(*id, label.unwrap() as usize).map(drop).unwrap();
            }
            Record::Group(record) => assert!(record.apply(session, extra).unwrap().changed, "{record:?}"),
        }
    }

    /// A member of a group that is killed anywhere, between what it joined, learnt, gave, took, dropped and took over anew, is
    /// byte for byte what it was after the last whole record.
    #[test]
    fn a_log_of_a_group_cut_anywhere_is_the_session_up_to_there() {
        let settings = SimulatorConfig { classes: CLASSES, dim: 8, ..Default::default() };
        let mut simulator = Simulator::new(&settings).unwrap();
        let (head, config) = (simulator.head().clone(), Config::default());
        let new = || Session::new(head.clone(), &config).unwrap();
        let mut block = || -> Features<'static> { simulator.next_block(50).0 };
        let mut other = new();
        other.join("b").unwrap();
        let mut learn = |rows: Features<'static>| {
            other.step(&rows).unwrap();
            let delta = other.cut().unwrap().expect("something was learnt").to_bytes().unwrap();
            (delta, other.contribution().unwrap().to_bytes().unwrap())
        };
        let (first, _) = learn(block());
        let (second, whole) = learn(block());
        let rows = |rows: Features<'static>| Record::Samples(Samples::plain(rows));
        let records = [
            Record::Group(GroupRecord::Join { member: "a".into() }),
            rows(block()),
            Record::Group(GroupRecord::Cut),
            Record::Group(GroupRecord::Take { position: 1, delta: first }),
            rows(block()),
            Record::Feedback { id: 3, label: 1 },
            Record::Group(GroupRecord::Take { position: 2, delta: second }),
            Record::Learning(false),
            rows(block()),
            Record::Learning(true),
            Record::Group(GroupRecord::Cut),
            Record::Correction { id: 7, label: Some(2) },
            Record::Group(GroupRecord::Rebuild { position: 3, contributions: vec![whole.clone()] }),
            rows(block()),
            Record::Group(GroupRecord::Drop { position: 4, contribution: whole }),
            rows(block()),
            Record::Group(GroupRecord::Cut),
        ];
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        let meta = Meta::new(&config, None, None, 0.0, Some("all".into()));
        Folder::create(&path, &head, &meta, None).unwrap();
        let open = || recover(&Folder::open(path.clone(), false).unwrap(), head.clone(), &config).unwrap();
        let (mut session, mut extra, mut log) = (new(), Extra::default(), open().log);
        let (mut ends, mut states) =
            (vec![log.bytes()], vec![(session.state().to_bytes().unwrap(), extra.position)]);
        for record in &records {
            stage(&mut log, record);
            log.commit(false).unwrap();
            take(&mut session, &mut extra, record);
            ends.push(log.bytes());
            states.push((session.state().to_bytes().unwrap(), extra.position));
        }
        drop(log);
        assert!(states.windows(2).filter(|pair| pair[0] != pair[1]).count() > 12, "records change states");
        let file = path.join(format!("log-{:020}.wal", 0));
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len() as u64, *ends.last().unwrap());
        for (count, end) in ends.iter().enumerate() {
            let next = ends.get(count + 1).copied().unwrap_or(*end);
            for cut in [*end, (end + next) / 2, next.saturating_sub(1).max(*end)] {
                fs::write(&file, &bytes[..cut as usize]).unwrap();
                let found = open();
                assert_eq!((found.records, &found.damage), (count as u64, &None), "cut at {cut}");
                let state = found.session.state().to_bytes().unwrap();
                assert!(
                    (state, found.extra.position) == states[count],
                    "cut at {cut}, behind record {count}"
                );
            }
        }
    }
}
