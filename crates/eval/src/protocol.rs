//! [`Protocol`]: in which order samples arrive and what else happens to the stream. Named, seeded, composable:
//! an order, then what is added to it with `+`, as in `iid+open:0.2` (`docs/protocols.md`).

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use ultta::config::nearest;
use ultta::{Error, Result};

use crate::dataset::Dataset;
use crate::order::Order;
use crate::random::Random;

/// Samples of a slot of a Dirichlet stream.
const SLOT: usize = 128;

/// The names a protocol starts with, and those it may add.
const ORDERS: [&str; 9] =
    ["file", "iid", "sorted", "dirichlet", "zipf", "partial", "few", "continual", "gradual"];
const ADDITIONS: [&str; 6] = ["batch", "labels", "compute", "weak", "open", "cycle"];

/// How samples follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// The file's own order: the paper's protocol.
    File,
    /// Shuffled.
    Iid,
    /// Class after class.
    Sorted,
    /// Temporally correlated: each class is spread over time slots by a Dirichlet distribution.
    Dirichlet(f64),
    /// Imbalanced: class frequencies fall as 1 / rank^s; shuffled.
    Zipf(f64),
    /// Only this share of the classes occurs; shuffled.
    Partial(f64),
    /// At most `classes` classes within `batch` consecutive samples.
    Few {
        /// Classes at a time.
        classes: usize,
        /// Samples until the classes change.
        batch: usize,
    },
    /// All packs one after another without reset, and the first again.
    Continual,
    /// All packs, each fading into the next.
    Gradual,
}

/// What a stream is and what happens along it.
#[derive(Clone, Debug, PartialEq)]
pub struct Protocol {
    name: String,
    /// How samples follow one another.
    pub arrival: Arrival,
    /// Rows of a step; by default what a joint method's paper uses.
    pub batch: Option<usize>,
    /// Delayed labels: the share of samples that get one, and after how many samples.
    pub labels: Option<(f64, usize)>,
    /// Compute-aware: samples per second that arrive, and the cost of a sample in microseconds where it is not
    /// to be measured.
    pub compute: Option<(f64, Option<f64>)>,
    /// Poor prompts: noise of this size on the unit prototypes.
    pub weak: f64,
    /// Share of samples that belong to no class of the head.
    pub open: f64,
    /// The stream goes round until it has this many samples.
    pub cycle: Option<usize>,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('+');
        let mut protocol = Self {
            name: text.to_string(),
            arrival: arrival(parts.next().unwrap_or_default())?,
            batch: None,
            labels: None,
            compute: None,
            weak: 0.0,
            open: 0.0,
            cycle: None,
        };
        let mut added = Vec::new();
        for part in parts {
            let name = part.split(':').next();
            if added.contains(&name) {
                return Err(format!("{part}: added twice"));
            }
            protocol.add(part)?;
            added.push(name);
        }
        Ok(protocol)
    }
}

fn arrival(text: &str) -> Result<Arrival, String> {
    let mut fields = text.split(':');
    let name = fields.next().unwrap_or_default();
    let fields: Vec<&str> = fields.collect();
    let number =
        |i: usize, default: f64, low: f64, high: f64| number(text, &fields, i, Some(default), low, high);
    let arrival = match name {
        "file" => Arrival::File,
        "iid" | "shuffled" => Arrival::Iid,
        "sorted" => Arrival::Sorted,
        "dirichlet" => Arrival::Dirichlet(number(0, 0.1, 1e-4, 1e4)?),
        "zipf" => Arrival::Zipf(number(0, 1.0, 0.0, 10.0)?),
        "partial" => Arrival::Partial(number(0, 0.2, 1e-6, 1.0)?),
        "few" => Arrival::Few {
            classes: whole(text, number(0, 5.0, 1.0, 1e6)?)?,
            batch: whole(text, number(1, 64.0, 1.0, 1e6)?)?,
        },
        "continual" => Arrival::Continual,
        "gradual" => Arrival::Gradual,
        _ => return Err(unknown("protocol", name, &ORDERS)),
    };
    let most = match arrival {
        Arrival::Few { .. } => 2,
        Arrival::Dirichlet(_) | Arrival::Zipf(_) | Arrival::Partial(_) => 1,
        _ => 0,
    };
    if fields.len() > most {
        return Err(format!("{text}: expected at most {most} numbers after {name:?}, got {}", fields.len()));
    }
    Ok(arrival)
}

fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let hint =
        nearest(name, known.iter().copied()).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
    format!("unknown {what} {name:?}{hint} (known: {})", known.join(", "))
}

fn number(
    text: &str,
    fields: &[&str],
    i: usize,
    default: Option<f64>,
    low: f64,
    high: f64,
) -> Result<f64, String> {
    let value = match (fields.get(i), default) {
        (Some(field), _) => field.parse().map_err(|_| format!("{text}: {field:?} is not a number"))?,
        (None, Some(default)) => default,
        (None, None) => return Err(format!("{text}: a number is missing")),
    };
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{text}: expected a number from {low} to {high}, got {value}"))
    }
}

fn whole(text: &str, value: f64) -> Result<usize, String> {
    if value.fract() == 0.0 {
        Ok(value as usize)
    } else {
        Err(format!("{text}: expected a whole number, got {value}"))
    }
}

impl Protocol {
    fn add(&mut self, text: &str) -> Result<(), String> {
        let mut fields = text.split(':');
        let name = fields.next().unwrap_or_default();
        let fields: Vec<&str> = fields.collect();
        let get = |i: usize, default: Option<f64>, low: f64, high: f64| {
            number(text, &fields, i, default, low, high)
        };
        match name {
            "batch" => self.batch = Some(whole(text, get(0, None, 1.0, 1e6)?)?),
            "labels" => {
                let delay = whole(text, get(1, Some(100.0), 0.0, 1e9)?)?;
                self.labels = Some((get(0, None, 0.0, 1.0)?, delay));
            }
            "compute" => {
                let cost = fields.get(1).map(|_| get(1, None, 0.0, 1e9)).transpose()?;
                self.compute = Some((get(0, None, 1e-3, 1e9)?, cost));
            }
            "weak" => self.weak = get(0, Some(0.5), 0.0, 100.0)?,
            "open" => self.open = get(0, Some(0.2), 0.0, 0.99)?,
            "cycle" => self.cycle = Some(whole(text, get(0, None, 1.0, 1e9)?)?),
            _ => return Err(unknown("addition to a protocol", name, &ADDITIONS)),
        }
        Ok(())
    }

    /// The name it was given by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether one stream runs through all packs.
    pub fn spans_packs(&self) -> bool {
        matches!(self.arrival, Arrival::Continual | Arrival::Gradual)
    }

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
            Arrival::Partial(share) => plain(Order::Partial(share), 0)?,
            Arrival::Dirichlet(gamma) => of(dirichlet(labels, gamma, &mut random)),
            Arrival::Zipf(exponent) => of(zipf(labels, exponent, &mut random)),
            Arrival::Few { classes, batch } => of(few(labels, classes, batch, &mut random)),
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
        let known: HashSet<String> = datasets[0].head.classes().iter().map(|c| c.to_lowercase()).collect();
        let mut pool = Vec::new();
        for (i, other) in others.iter().enumerate() {
            let foreign = |label: usize| !known.contains(&other.head.classes()[label].to_lowercase());
            if other.pack.dim() == datasets[0].pack.dim() {
                let rows = other.labels().iter().enumerate().filter(|(_, label)| foreign(**label));
                pool.extend(rows.map(|(row, _)| (i, row)));
            }
        }
        if pool.is_empty() {
            return Err(Error::Config {
                key: "protocol".into(),
                reason: format!(
                    "{}: no strangers; give a pack with other classes of the same dimension",
                    self.name
                ),
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
                Sample { pack: pack as u16, row: row as u32, stranger: true }
            } else {
                known.next().expect("as many places as samples")
            });
        }
        Ok(())
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// One sample of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of its pack; for a stranger, among the other packs.
    pub pack: u16,
    /// Row of the pack.
    pub row: u32,
    /// Whether it belongs to no class of the head.
    pub stranger: bool,
}

impl Sample {
    fn known(pack: usize, row: usize) -> Self {
        Self { pack: pack as u16, row: row as u32, stranger: false }
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

/// The rows of each class, shuffled.
fn rows_by_class(labels: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
    let mut by_class = vec![Vec::new(); labels.iter().max().map_or(0, |m| m + 1)];
    labels.iter().enumerate().for_each(|(row, &label)| by_class[label].push(row));
    by_class.retain(|rows| !rows.is_empty());
    by_class.iter_mut().for_each(|rows| random.shuffle(rows));
    by_class
}

/// Each class spreads over the slots by its own draw from Dir(γ); within a slot the order is random.
fn dirichlet(labels: &[usize], gamma: f64, random: &mut Random) -> Vec<usize> {
    let by_class = rows_by_class(labels, random);
    let slots = labels.len().div_ceil(SLOT).min(by_class.len()).max(1);
    let mut out = vec![Vec::new(); slots];
    for rows in by_class {
        let shares = random.dirichlet(gamma, slots);
        let (mut from, mut sum) = (0, 0.0);
        for (slot, share) in out.iter_mut().zip(shares) {
            sum += share;
            let to = ((sum * rows.len() as f64).round() as usize).clamp(from, rows.len());
            slot.extend_from_slice(&rows[from..to]);
            from = to;
        }
        out[slots - 1].extend_from_slice(&rows[from..]);
    }
    out.iter_mut().for_each(|slot| random.shuffle(slot));
    out.concat()
}

/// The class of rank r keeps 1/r^s of the rows of the largest class, at least one; ranks are drawn at random.
fn zipf(labels: &[usize], exponent: f64, random: &mut Random) -> Vec<usize> {
    let mut by_class = rows_by_class(labels, random);
    random.shuffle(&mut by_class);
    let largest = by_class.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let mut out = Vec::new();
    for (rank, rows) in by_class.iter().enumerate() {
        let keep = (largest / (rank as f64 + 1.0).powf(exponent)).round() as usize;
        out.extend_from_slice(&rows[..keep.clamp(1, rows.len())]);
    }
    random.shuffle(&mut out);
    out
}

/// Batch after batch of few classes, drawn among those with rows left.
fn few(labels: &[usize], classes: usize, batch: usize, random: &mut Random) -> Vec<usize> {
    let mut by_class = rows_by_class(labels, random);
    let mut out = Vec::with_capacity(labels.len());
    while !by_class.is_empty() {
        random.shuffle(&mut by_class);
        let chosen = classes.min(by_class.len());
        for _ in 0..batch {
            let alive: Vec<usize> = (0..chosen).filter(|&c| !by_class[c].is_empty()).collect();
            let Some(_) = alive.first() else { break };
            out.extend(by_class[alive[random.below(alive.len())]].pop());
        }
        by_class.retain(|rows| !rows.is_empty());
    }
    out
}

/// At time t ∈ [0, 1] pack i is drawn with weight max(0, 1 − |t (P − 1) − i|), as long as it has rows left.
fn gradual(datasets: &[&Dataset], random: &mut Random) -> Vec<Sample> {
    let mut left: Vec<Vec<usize>> = datasets.iter().map(|d| (0..d.pack.rows()).collect()).collect();
    left.iter_mut().for_each(|rows| random.shuffle(rows));
    let total: usize = left.iter().map(Vec::len).sum();
    let mut out = Vec::with_capacity(total);
    for i in 0..total {
        let place = i as f64 / total as f64 * (left.len() - 1) as f64;
        let near = |pack: usize| (1.0 - (place - pack as f64).abs()).max(1e-9);
        let weights: Vec<f64> =
            (0..left.len()).map(|p| if left[p].is_empty() { 0.0 } else { near(p) }).collect();
        let mut at = random.uniform() * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|w| {
            at -= w;
            at < 0.0
        });
        let pack = drawn.unwrap_or_else(|| weights.iter().position(|w| *w > 0.0).unwrap_or(0));
        out.extend(left[pack].pop().map(|row| Sample::known(pack, row)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<usize> {
        (0..1000).map(|i| i % 20).collect()
    }

    fn sorted(mut rows: Vec<usize>) -> Vec<usize> {
        rows.sort_unstable();
        rows
    }

    #[test]
    fn names_are_read_and_mistakes_named() {
        let p: Protocol = "dirichlet:0.01+open:0.3+labels:0.1:50+batch:16".parse().unwrap();
        assert_eq!((p.arrival, p.open), (Arrival::Dirichlet(0.01), 0.3));
        assert_eq!((p.labels, p.batch), (Some((0.1, 50)), Some(16)));
        let error = |text: &str| text.parse::<Protocol>().unwrap_err();
        assert!(error("sortd").contains("did you mean sorted?"));
        assert!(error("iid+opne:1").contains("did you mean open?"));
        assert!(error("partial:2").contains("from"));
        assert!(error("partial:x").contains("not a number"));
        assert!(error("iid:3").contains("at most 0"));
        assert!(error("iid+batch").contains("missing"));
        assert!(error("iid+batch:2.5").contains("whole"));
        assert!(error("iid+labels:0.1+labels:0.2").contains("twice"));
    }

    #[test]
    fn dirichlet_keeps_all_rows_and_gathers_classes() {
        let labels = labels();
        let changes = |rows: &[usize]| rows.windows(2).filter(|w| labels[w[0]] != labels[w[1]]).count();
        let mild = dirichlet(&labels, 100.0, &mut Random::new(1));
        let strong = dirichlet(&labels, 0.001, &mut Random::new(1));
        assert_eq!(sorted(strong.clone()), (0..1000).collect::<Vec<_>>());
        assert!(changes(&strong) < changes(&mild));
        assert_eq!(strong, dirichlet(&labels, 0.001, &mut Random::new(1)), "the seed decides");
    }

    #[test]
    fn zipf_thins_the_classes() {
        let labels = labels();
        let rows = zipf(&labels, 1.0, &mut Random::new(2));
        let mut counts = [0; 20];
        rows.iter().for_each(|&r| counts[labels[r]] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(counts[..4], [50, 25, 17, 13]);
        assert_eq!(zipf(&labels, 0.0, &mut Random::new(2)).len(), 1000);
    }

    #[test]
    fn few_limits_the_classes_of_a_batch() {
        let labels = labels();
        let rows = few(&labels, 3, 60, &mut Random::new(3));
        assert_eq!(sorted(rows.clone()), (0..1000).collect::<Vec<_>>());
        let distinct: HashSet<usize> = rows[..60].iter().map(|&r| labels[r]).collect();
        assert_eq!(distinct.len(), 3);
    }
}
