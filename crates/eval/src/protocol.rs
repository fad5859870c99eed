//! [`Protocol`]: in which order samples arrive and what else happens to the stream. Named, seeded, composable:
//! an order, then what is added to it with `+`, as in `iid+open:0.2` (`docs/protocols.md`).

use std::fmt;
use std::str::FromStr;

use ultta::internal::nearest;

pub use crate::arrival::Arrival;
pub use crate::stream::{Role, Sample, Stream};

/// The names a protocol starts with, and those it may add.
const ORDERS: [&str; 11] = [
    "file",
    "iid",
    "sorted",
    "runs",
    "dirichlet",
    "zipf",
    "partial",
    "few",
    "domains",
    "continual",
    "gradual",
];
const ADDITIONS: [&str; 10] =
    ["batch", "labels", "compute", "weak", "open", "cycle", "shots", "garbage", "shift", "night"];

/// The protocols that `harm` stands for: what a stream may do to a method, from the friendly to the hostile.
pub const HARM: [&str; 22] = [
    "iid",
    "sorted",
    "runs",
    "dirichlet:0.1",
    "dirichlet:0.01",
    "partial:0.2",
    "partial:0.5",
    "zipf",
    "few:5:64",
    "iid+weak",
    "sorted+weak",
    "partial:0.2+weak",
    "iid+open:0.3",
    "iid+shots:10",
    "iid+shots:30",
    "iid+shots:100",
    "runs+shots:30",
    "iid+night:500",
    "iid+garbage:2500:noise",
    "iid+garbage:2500:cone",
    "iid+garbage:2500:flip",
    "iid+garbage:2500:still",
];

/// Distance of a shot's near-copies from their picture unless given, as a share of 1 − ‖mean‖²: cosine 0.97 for
/// ViT-B/32.
const SHOT_SHARE: f64 = 0.07;
/// Strength of the shifted state of `night` unless `shift` gives one.
const NIGHT_SHIFT: f64 = 0.3;

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
    /// The stream goes round until it has this many samples (pictures, where each becomes a shot).
    pub cycle: Option<usize>,
    /// Each picture becomes near-copies.
    pub shots: Option<Shots>,
    /// Rows that show nothing.
    pub garbage: Option<Garbage>,
    /// Rotated features with a moved mean: how strongly.
    pub shift: Option<f64>,
    /// The stream changes between the plain and the shifted state each time after this many samples.
    pub night: Option<usize>,
}

/// Near-copies of each picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shots {
    /// Near-copies per picture.
    pub copies: usize,
    /// Their distance 1 − cos from the picture, as a share of 1 − ‖mean‖² of the pack's unit features.
    pub share: f64,
}

/// Rows that show nothing, before the stream or in its middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// Number of rows.
    pub rows: usize,
    /// What the rows look like.
    pub kind: GarbageKind,
    /// In the middle of the stream instead of before it.
    pub middle: bool,
}

/// What garbage looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GarbageKind {
    /// White noise.
    Noise,
    /// Noise around the image mean, as far from it as the pack's own pictures are.
    Cone,
    /// A picture, then its opposite, then another picture and its opposite.
    Flip,
    /// One frame all the time.
    Still,
}

const KINDS: [(&str, GarbageKind); 4] = [
    ("noise", GarbageKind::Noise),
    ("cone", GarbageKind::Cone),
    ("flip", GarbageKind::Flip),
    ("still", GarbageKind::Still),
];

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // One protocol, one name.
        let named = match text.strip_prefix("shuffled") {
            Some(rest) if rest.is_empty() || rest.starts_with(['+', ':']) => format!("iid{rest}"),
            _ => text.to_string(),
        };
        let text = named.as_str();
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
            shots: None,
            garbage: None,
            shift: None,
            night: None,
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
        if protocol.spans_packs() && protocol.alters() {
            return Err(format!(
                "{text}: shots, garbage, shift and night are made from one pack; the stream runs through all packs"
            ));
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
        "iid" => Arrival::Iid,
        "sorted" => Arrival::Sorted,
        "runs" => Arrival::Runs,
        "dirichlet" => Arrival::Dirichlet(number(0, 0.1, 1e-4, 1e4)?),
        "zipf" => Arrival::Zipf(number(0, 1.0, 0.0, 10.0)?),
        "partial" => Arrival::Partial(number(0, 0.2, 1e-6, 1.0)?),
        "few" => Arrival::Few {
            classes: whole(text, number(0, 5.0, 1.0, 1e6)?)?,
            batch: whole(text, number(1, 64.0, 1.0, 1e6)?)?,
        },
        "domains" => Arrival::Domains,
        "continual" => Arrival::Continual,
        "gradual" => Arrival::Gradual,
        _ if ADDITIONS.contains(&name) => {
            return Err(format!("{name:?} is an addition and goes behind an order: iid+{text}"));
        }
        "harm" => return Err("\"harm\" is a set of protocols: nothing can be added to it".into()),
        _ => return Err(unknown("protocol", name, &ORDERS)),
    };
    let most = match arrival {
        Arrival::Few { .. } => 2,
        Arrival::Dirichlet(_) | Arrival::Zipf(_) | Arrival::Partial(_) => 1,
        _ => 0,
    };
    at_most(text, name, &fields, most)?;
    Ok(arrival)
}

fn at_most(text: &str, name: &str, fields: &[&str], most: usize) -> Result<(), String> {
    if fields.len() > most {
        return Err(format!("{text}: expected at most {most} fields after {name:?}, got {}", fields.len()));
    }
    Ok(())
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

fn garbage(text: &str, fields: &[&str]) -> Result<Garbage, String> {
    let rows = whole(text, number(text, fields, 0, None, 1.0, 1e6)?)?;
    let Some(name) = fields.get(1) else {
        return Err(format!("{text}: a kind is missing: noise, cone, flip or still"));
    };
    let Some((_, kind)) = KINDS.iter().find(|(known, _)| known == name) else {
        return Err(unknown("kind of garbage", name, &KINDS.map(|(known, _)| known)));
    };
    match fields.get(2) {
        None => Ok(Garbage { rows, kind: *kind, middle: false }),
        Some(&"middle") => Ok(Garbage { rows, kind: *kind, middle: true }),
        Some(other) => Err(format!("{text}: expected nothing or \"middle\" after the kind, got {other:?}")),
    }
}

impl Protocol {
    /// The protocols of a name: one, or those of a set (`harm`).
    pub fn named(text: &str) -> Result<Vec<Self>, String> {
        match text {
            "harm" => HARM.iter().map(|name| name.parse()).collect(),
            _ => text.parse().map(|protocol| vec![protocol]),
        }
    }

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
            "shots" => {
                let copies = whole(text, get(0, None, 1.0, 1e5)?)?;
                self.shots = Some(Shots { copies, share: get(1, Some(SHOT_SHARE), 0.0, 0.5)? });
            }
            "garbage" => self.garbage = Some(garbage(text, &fields)?),
            "shift" => self.shift = Some(get(0, None, 0.0, 3.0)?),
            "night" => self.night = Some(whole(text, get(0, None, 1.0, 1e9)?)?),
            _ => return Err(unknown("addition to a protocol", name, &ADDITIONS)),
        }
        let most = match name {
            "garbage" => 3,
            "labels" | "compute" | "shots" => 2,
            _ => 1,
        };
        at_most(text, name, &fields, most)
    }

    /// The protocol's name, as it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether one stream runs through all packs.
    pub fn spans_packs(&self) -> bool {
        matches!(self.arrival, Arrival::Domains | Arrival::Continual | Arrival::Gradual)
    }

    /// Whether features arrive that are not in the pack: there are neither views nor pictures of them.
    pub fn alters(&self) -> bool {
        self.shots.is_some() || self.garbage.is_some() || self.shift.is_some() || self.night.is_some()
    }

    /// Strength of the shifted state; 0 without one.
    pub(crate) fn shift_strength(&self) -> f64 {
        self.shift.or(self.night.map(|_| NIGHT_SHIFT)).unwrap_or(0.0)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_mistakes_named() {
        let p: Protocol = "dirichlet:0.01+open:0.3+labels:0.1:50+batch:16".parse().unwrap();
        assert_eq!((p.arrival, p.open), (Arrival::Dirichlet(0.01), 0.3));
        assert_eq!((p.labels, p.batch), (Some((0.1, 50)), Some(16)));
        assert_eq!("shuffled+batch:2".parse::<Protocol>().unwrap().name(), "iid+batch:2");
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
    fn shots_garbage_and_nights_are_read() {
        let p: Protocol = "runs+shots:30:0.1".parse().unwrap();
        assert_eq!((p.arrival, p.shots), (Arrival::Runs, Some(Shots { copies: 30, share: 0.1 })));
        let p: Protocol = "iid+garbage:50:flip:middle+night:20".parse().unwrap();
        assert_eq!(p.garbage, Some(Garbage { rows: 50, kind: GarbageKind::Flip, middle: true }));
        assert_eq!((p.night, p.shift_strength()), (Some(20), NIGHT_SHIFT));
        assert_eq!("iid+night:20+shift:0.1".parse::<Protocol>().unwrap().shift_strength(), 0.1);
        let error = |text: &str| text.parse::<Protocol>().unwrap_err();
        assert!(error("iid+garbage:50").contains("kind is missing"));
        assert!(error("iid+garbage:50:nois").contains("did you mean noise?"));
        assert!(error("iid+garbage:50:noise:end").contains("middle"));
        assert!(error("iid+garbage:50:noise:middle:x").contains("at most 3"));
        assert!(error("iid+shots").contains("missing"));
        assert!(error("shots:10").contains("iid+shots:10"));
        assert!(error("harm+weak").contains("set of protocols"));
        assert!(error("iid+night:10:3").contains("at most 1"));
        assert!(error("continual+shots:3").contains("one pack"));
    }

    #[test]
    fn harm_names_a_set() {
        let all = Protocol::named("harm").unwrap();
        assert_eq!(all.iter().map(Protocol::name).collect::<Vec<_>>(), HARM);
        assert_eq!(Protocol::named("iid").unwrap().len(), 1);
        assert!(Protocol::named("harms").is_err());
    }
}
