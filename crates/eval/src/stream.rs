//! [`Stream`]: the samples of a protocol in arrival order.

use std::collections::HashSet;

use ultta::{Error, Result};

use crate::arrival::{Arrival, dirichlet, few, gradual, zipf};
use crate::dataset::Dataset;
use crate::order::Order;
use crate::protocol::{Garbage, GarbageKind, Protocol};
use crate::random::Random;

/// Pictures that become shots, unless `cycle` asks for more or fewer.
const SHOT_PICTURES: usize = 300;

/// How a sample counts in the evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Its class is in the head: it counts.
    #[default]
    Known,
    /// Its class is not in the head: it counts in the detection of strangers.
    Stranger,
    /// Shows nothing: it counts nowhere.
    Garbage,
}

/// One sample of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Index of its pack; for a stranger, among the other packs.
    pub pack: u16,
    /// Row of the pack that it is, or is made from.
    pub row: u32,
    /// How it counts in the evaluation.
    pub role: Role,
    /// Which near-copy of a shot, or which row of the garbage it is, from 0.
    pub copy: u32,
    /// Whether it is seen in the shifted state.
    pub shifted: bool,
}

impl Sample {
    pub(crate) fn known(pack: usize, row: usize) -> Self {
        Self { pack: pack as u16, row: row as u32, ..Self::default() }
    }
}

/// Samples in arrival order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// The samples.
    pub samples: Vec<Sample>,
    /// Where a new domain begins, and its name.
    pub shifts: Vec<(usize, String)>,
}

impl Stream {
    /// Ends the stream after this many samples that count.
    pub fn limit(&mut self, counted: usize) {
        let known = self.samples.iter().enumerate().filter(|(_, s)| s.role == Role::Known);
        if let Some((end, _)) = known.clone().nth(counted) {
            self.samples.truncate(end);
            self.shifts.retain(|shift| shift.0 < end);
        }
    }
}

impl Protocol {
    /// The samples in arrival order. Strangers come from the rows of `others` whose class the head lacks.
    pub fn stream(&self, datasets: &[&Dataset], others: &[&Dataset], seed: u64) -> Result<Stream> {
        if self.spans_packs() {
            same_task(datasets)?;
        }
        let mut stream = Stream::default();
        let mut round = 0;
        loop {
            // A later round is another draw of the same order.
            self.extend(&mut stream, datasets, seed.wrapping_add(round * 1_000_003))?;
            round += 1;
            match self.cycle {
                Some(n) if stream.samples.len() < n && !stream.samples.is_empty() => {}
                Some(n) => {
                    stream.samples.truncate(n);
                    stream.shifts.retain(|s| s.0 < n);
                    break;
                }
                None => break,
            }
        }
        if self.open > 0.0 {
            self.mix_in_strangers(&mut stream, datasets, others, seed)?;
        }
        if let Some(shots) = self.shots {
            if self.cycle.is_none() {
                stream.samples.truncate(SHOT_PICTURES);
            }
            let copies = |sample: Sample| (0..shots.copies as u32).map(move |copy| Sample { copy, ..sample });
            stream.samples = stream.samples.into_iter().flat_map(copies).collect();
        }
        let every = self.night.unwrap_or(usize::MAX);
        for (i, sample) in stream.samples.iter_mut().enumerate() {
            sample.shifted = if self.night.is_some() { (i / every) % 2 == 1 } else { self.shift.is_some() };
        }
        if self.night.is_some() {
            let state = |i: usize| if (i / every) % 2 == 1 { "shifted" } else { "plain" };
            let starts = (0..stream.samples.len()).step_by(every);
            stream.shifts = starts.map(|i| (i, state(i).to_string())).collect();
        }
        if let Some(garbage) = self.garbage {
            litter(&mut stream, garbage, datasets[0].pack.rows(), seed);
        }
        Ok(stream)
    }

    fn extend(&self, stream: &mut Stream, datasets: &[&Dataset], seed: u64) -> Result<()> {
        let mut random = Random::new(seed);
        let plain = |order: Order, pack: usize| -> Result<Vec<Sample>> {
            let labels = datasets[pack].labels();
            let rows = order.indices(labels.len(), Some(labels), seed)?;
            Ok(rows.into_iter().map(|row| Sample::known(pack, row)).collect())
        };
        let labels = datasets[0].labels();
        let of = |rows: Vec<usize>| rows.into_iter().map(|row| Sample::known(0, row)).collect::<Vec<_>>();
        let samples = match self.arrival {
            Arrival::File => plain(Order::File, 0)?,
            Arrival::Iid => plain(Order::Shuffled, 0)?,
            Arrival::Sorted => plain(Order::Sorted, 0)?,
            Arrival::Runs => plain(Order::Runs, 0)?,
            Arrival::Partial(share) => plain(Order::Partial(share), 0)?,
            Arrival::Dirichlet(gamma) => of(dirichlet(labels, gamma, &mut random)),
            Arrival::Zipf(exponent) => of(zipf(labels, exponent, &mut random)),
            Arrival::Few { classes, batch } => of(few(labels, classes, batch, &mut random)),
            Arrival::Domains => {
                let mut samples = Vec::new();
                for pack in 0..datasets.len() {
                    stream.shifts.push((stream.samples.len() + samples.len(), datasets[pack].name.clone()));
                    samples.extend(plain(Order::File, pack)?);
                }
                samples
            }
            Arrival::Continual => {
                let mut samples = Vec::new();
                for pack in (0..datasets.len()).chain([0]) {
                    stream.shifts.push((stream.samples.len() + samples.len(), datasets[pack].name.clone()));
                    let mut rows = plain(Order::File, pack)?;
                    random.shuffle(&mut rows);
                    samples.extend(rows);
                }
                samples
            }
            Arrival::Gradual => gradual(datasets, &mut random),
        };
        stream.samples.extend(samples);
        Ok(())
    }

    fn mix_in_strangers(
        &self,
        stream: &mut Stream,
        datasets: &[&Dataset],
        others: &[&Dataset],
        seed: u64,
    ) -> Result<()> {
        let pool = strangers(datasets[0], others);
        if pool.is_empty() {
            return Err(Error::Config {
                key: "protocol".into(),
                reason: format!("{}: {NO_STRANGERS}", self.name()),
            });
        }
        let mut random = Random::new(seed ^ 0x5EED);
        let n = stream.samples.len();
        let strangers = (n as f64 * self.open / (1.0 - self.open)).round() as usize;
        // Which places of the longer stream go to strangers.
        let mut places = vec![false; n + strangers];
        places[..strangers].fill(true);
        random.shuffle(&mut places);
        let mut known = std::mem::take(&mut stream.samples).into_iter();
        for stranger in places {
            stream.samples.push(if stranger {
                let (pack, row) = pool[random.below(pool.len())];
                Sample { role: Role::Stranger, ..Sample::known(pack, row) }
            } else {
                known.next().expect("as many places as samples")
            });
        }
        Ok(())
    }
}

/// Why a stream with strangers cannot be made.
pub(crate) const NO_STRANGERS: &str = "no strangers; give a pack of the same encoder that has other classes";

/// Rows that belong to no class of a dataset's head: of other packs of the same encoder.
pub(crate) fn strangers(dataset: &Dataset, others: &[&Dataset]) -> Vec<(usize, usize)> {
    let known: HashSet<String> = dataset.head.classes().iter().map(|c| c.to_lowercase()).collect();
    let mut pool = Vec::new();
    for (i, other) in others.iter().enumerate() {
        let foreign = |label: usize| !known.contains(&other.head.classes()[label].to_lowercase());
        if other.pack.dim() == dataset.pack.dim() && other.encoder() == dataset.encoder() {
            let rows = other.labels().iter().enumerate().filter(|(_, label)| foreign(**label));
            pool.extend(rows.map(|(row, _)| (i, row)));
        }
    }
    pool
}

/// Puts garbage before the stream or into its middle. Domains that begin behind the garbage begin later then.
fn litter(stream: &mut Stream, garbage: Garbage, rows: usize, seed: u64) {
    let mut random = Random::new(seed ^ 0x6A4B);
    let at = if garbage.middle { stream.samples.len() / 2 } else { 0 };
    let first = stream.samples.first().map_or(0, |s| s.row as usize);
    let mut picture = first;
    let made = (0..garbage.rows).map(|i| {
        if garbage.kind == GarbageKind::Flip && i % 2 == 0 {
            picture = random.below(rows);
        }
        Sample { role: Role::Garbage, copy: i as u32, ..Sample::known(0, picture) }
    });
    let made: Vec<Sample> = made.collect();
    stream.samples.splice(at..at, made);
    for shift in stream.shifts.iter_mut().filter(|shift| shift.0 >= at) {
        shift.0 += garbage.rows;
    }
}

/// One stream can only run through packs of one encoder and one class list.
fn same_task(datasets: &[&Dataset]) -> Result<()> {
    let first = datasets[0];
    let refuse = |reason: String| Err(Error::Config { key: "protocol".into(), reason });
    if datasets.len() < 2 {
        return refuse("a stream across domains needs at least two packs".into());
    }
    for other in &datasets[1..] {
        if other.encoder() != first.encoder() || other.pack.dim() != first.pack.dim() {
            let name = |d: &Dataset| format!("{} ({})", d.name, d.encoder().unwrap_or("encoder unknown"));
            return refuse(format!("one stream cannot cross encoders: {}, {}", name(first), name(other)));
        }
        if other.head.classes() != first.head.classes() {
            return refuse(format!("{} and {} have different classes", first.name, other.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(n: usize) -> Stream {
        Stream { samples: (0..n).map(|row| Sample::known(0, row)).collect(), shifts: Vec::new() }
    }

    #[test]
    fn garbage_goes_before_the_stream_or_into_its_middle() {
        for (middle, at) in [(false, 0), (true, 5)] {
            for kind in [GarbageKind::Noise, GarbageKind::Flip, GarbageKind::Still] {
                let mut stream = clean(10);
                litter(&mut stream, Garbage { rows: 6, kind, middle }, 10, 1);
                let (garbage, rest): (Vec<Sample>, Vec<Sample>) =
                    stream.samples.iter().partition(|s| s.role == Role::Garbage);
                assert_eq!((garbage.len(), &rest), (6, &clean(10).samples));
                assert!(stream.samples[at..at + 6].iter().all(|s| s.role == Role::Garbage));
                let rows: Vec<u32> = garbage.iter().map(|s| s.row).collect();
                match kind {
                    GarbageKind::Flip => assert!(rows.chunks(2).all(|pair| pair[0] == pair[1])),
                    _ => assert_eq!(rows, [0; 6], "the first frame"),
                }
            }
        }
    }

    #[test]
    fn a_limit_counts_what_counts() {
        let mut stream = clean(10);
        litter(&mut stream, Garbage { rows: 6, kind: GarbageKind::Noise, middle: false }, 10, 1);
        stream.limit(4);
        assert_eq!(stream.samples.len(), 10);
        stream.limit(100);
        assert_eq!(stream.samples.len(), 10);
    }
}
