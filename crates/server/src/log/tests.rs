//! What is written is read, and what is broken is known.

use super::*;

const OWN: Identity = *b"own logs";

fn features(values: &[f32]) -> Features<'static> {
    Features::new(values.to_vec(), 2).unwrap()
}

fn records() -> Vec<Record> {
    let plain = Samples::plain(features(&[1.0, 0.0, 0.6, 0.8]));
    let views = Views { features: features(&[1.0, 0.0, 0.0, 1.0]), counts: vec![2] };
    let full = Samples::new(features(&[0.0, 1.0]), Some(vec![false]), Some(vec![2.5]), Some(views)).unwrap();
    vec![
        Record::Samples(plain),
        Record::Feedback { id: 1, label: 0 },
        Record::Learning(false),
        Record::Correction { id: 1, label: Some(1) },
        Record::Correction { id: 1, label: None },
        Record::Group(GroupRecord::Take { position: 3, delta: vec![1, 2, 3] }),
        Record::Samples(full),
    ]
}

fn write(path: &Path, first: u64) -> Vec<u64> {
    let mut log = Log::create(path, first, OWN).unwrap();
    let mut ends = vec![log.bytes()];
    for record in records() {
        match &record {
            Record::Samples(samples) => log.stage_samples(samples),
            Record::Feedback { id, label } => log.stage_feedback(*id, *label),
            Record::Learning(learning) => log.stage_learning(*learning),
            Record::Correction { id, label } => log.stage_correction(*id, *label),
            Record::Group(record) => log.stage_group(record),
        }
        log.commit(false).unwrap();
        ends.push(log.bytes());
    }
    ends
}

/// The records from one on, and the rows in them.
fn whole(from: usize) -> Whole {
    let rows = |record: &Record| if let Record::Samples(samples) = record { samples.len() as u64 } else { 0 };
    let left = &records()[from..];
    Whole { records: left.len() as u64, rows: left.iter().map(rows).sum() }
}

fn read(path: &Path, first: u64) -> (Vec<Record>, Tail) {
    let mut found = Vec::new();
    let tail = replay(path, first, |r| found.push(r)).unwrap();
    (found, tail)
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-7.wal");
    write(&path, 7);
    let (found, tail) = read(&path, 7);
    assert_eq!(found, records());
    assert_eq!((tail.log.next(), tail.dropped), (7 + records().len() as u64, 0));
}

/// Rows that scaling would change come back as they were written: the checksum vouches for them.
#[test]
fn features_are_not_scaled_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-0.wal");
    let values = vec![0.6, 0.803, 0.999, 0.0];
    assert_ne!(Features::new(values.clone(), 2).unwrap().data(), values, "scaling would change them");
    let written = Samples::plain(Features::trusted(values.clone(), 2).unwrap());
    let mut log = Log::create(&path, 0, OWN).unwrap();
    log.stage_samples(&written);
    log.commit(false).unwrap();
    let (found, _) = read(&path, 0);
    assert_eq!(found, [Record::Samples(written)]);
}

#[test]
fn a_log_cut_anywhere_keeps_its_whole_records_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-0.wal");
    let ends = write(&path, 0);
    let bytes = std::fs::read(&path).unwrap();
    for cut in BEGINNING..=bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut as u64).count().saturating_sub(1);
        let (found, mut tail) = read(&path, 0);
        assert_eq!(found, records()[..whole], "cut at {cut}");
        tail.log.stage_feedback(9, 9);
        tail.log.commit(true).unwrap();
        let (again, tail) = read(&path, 0);
        assert_eq!(again.len(), whole + 1, "cut at {cut}");
        assert_eq!(tail.dropped, 0);
    }
}

#[test]
fn a_segment_without_its_beginning_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-0.wal");
    write(&path, 0);
    let bytes = std::fs::read(&path).unwrap();
    for cut in 0..BEGINNING {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert_eq!(read(&path, 0).1.damage.expect("damage").behind, Whole::default(), "cut at {cut}");
    }
    for at in 0..MAGIC.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        std::fs::write(&path, &broken).unwrap();
        assert_eq!(read(&path, 0).1.damage.expect("damage").behind, whole(0), "flipped at {at}");
    }
}

#[test]
fn a_segment_knows_whose_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-0.wal");
    write(&path, 0);
    let told = |whose| foreign(&path, whose).unwrap();
    assert_eq!(told(OWN), None);
    assert!(told(*b"theirs  ").unwrap().contains("another stream"));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, [b"ULTTAW\x00\x02", &bytes[8..]].concat()).unwrap();
    assert_eq!(told(OWN).unwrap(), "version 2 of the log, this build reads version 3");
    for other in [&b""[..], b"ULTTAW\x00\x03own", b"nothing of the kind"] {
        std::fs::write(&path, other).unwrap();
        assert_eq!(told(OWN), None, "replaying tells that it is damaged");
    }
}

#[test]
fn a_flipped_bit_ends_the_log_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log-0.wal");
    let ends = write(&path, 0);
    let bytes = std::fs::read(&path).unwrap();
    for at in BEGINNING..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 0x10;
        std::fs::write(&path, &broken).unwrap();
        let count = ends.iter().filter(|&&end| end <= at as u64).count() - 1;
        let (found, tail) = read(&path, 0);
        assert_eq!(found, records()[..count], "flipped at {at}");
        assert!(tail.dropped > 0);
        let damage = tail.damage.expect("damage");
        let lost = (damage.record, damage.behind);
        assert_eq!(lost, (count as u64, whole(count + 1)), "flipped at {at}");
        assert_eq!(std::fs::metadata(damage.aside).unwrap().len(), tail.dropped);
        assert_eq!(std::fs::read(&path).unwrap(), broken, "nothing is cut off");
    }
}
