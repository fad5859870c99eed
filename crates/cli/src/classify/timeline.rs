//! A timeline of scenes: what was seen from when to when, frame after frame made into entries.
//!
//! An entry goes on while its class is answered. Another class takes over once it has been answered for a few frames
//! in a row; a shorter flicker stays in the entry. Memory does not grow with the video: an entry is given out when it is
//! complete.

use serde::Serialize;

/// Seconds that another class must be answered for before it becomes an entry of its own.
const HOLD: f64 = 0.4;

/// What a frame shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A class, by its label.
    Class(usize),
    /// Something that fits no class.
    Unknown,
    /// Nothing: the frame is dark.
    Dark,
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Seconds.
    pub from: f64,
    pub to: f64,
    /// What was seen; `None` if there was no signal.
    pub seen: Option<Seen>,
    /// Mean probability of the class over the frames; 0 if none was answered.
    pub prob: f64,
    /// The classes that come to [`Timeline`]'s coverage together, the best first, by their mean probabilities.
    pub set: Vec<usize>,
    /// Frames that were answered.
    pub frames: u64,
    /// Scenes among them: runs of near-copies.
    pub scenes: u64,
}

/// Frames of one kind that follow one another.
#[derive(Clone, Debug)]
struct Run {
    seen: Seen,
    from: f64,
    frames: u64,
    scenes: u64,
    /// Frames with probabilities, and their sums.
    answered: u64,
    sums: Vec<f64>,
}

impl Run {
    fn new(seen: Seen, from: f64) -> Self {
        Self { seen, from, frames: 0, scenes: 0, answered: 0, sums: Vec::new() }
    }

    fn add(&mut self, probs: &[f32], begins_scene: bool) {
        self.frames += 1;
        self.scenes += u64::from(begins_scene);
        if probs.is_empty() {
            return;
        }
        self.answered += 1;
        self.sums.resize(probs.len(), 0.0);
        self.sums.iter_mut().zip(probs).for_each(|(sum, prob)| *sum += f64::from(*prob));
    }

    fn join(&mut self, other: Run) {
        self.frames += other.frames;
        self.scenes += other.scenes;
        self.answered += other.answered;
        self.sums.resize(self.sums.len().max(other.sums.len()), 0.0);
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
    }

    fn entry(self, to: f64, coverage: f64) -> Entry {
        let mean = |class: usize| self.sums.get(class).map_or(0.0, |sum| sum / self.answered.max(1) as f64);
        let mut set = Vec::new();
        if self.seen != Seen::Dark {
            let mut classes: Vec<usize> = (0..self.sums.len()).collect();
            classes.sort_by(|&a, &b| mean(b).total_cmp(&mean(a)));
            let mut covered = 0.0;
            for class in classes {
                set.push(class);
                covered += mean(class);
                if covered >= coverage {
                    break;
                }
            }
        }
        let prob = if let Seen::Class(class) = self.seen { mean(class) } else { 0.0 };
        let scenes = if self.seen == Seen::Dark { 0 } else { self.scenes.max(1) };
        Entry { from: self.from, to, seen: Some(self.seen), prob, set, frames: self.frames, scenes }
    }
}

/// Makes entries of frames.
pub struct Timeline {
    /// Seconds of a frame.
    each: f64,
    hold: u64,
    coverage: f64,
    current: Option<Run>,
    /// Another class that may take over.
    pending: Option<Run>,
    /// When the latest frame ends.
    until: f64,
    /// Since when there has been no signal.
    lost: Option<f64>,
}

impl Timeline {
    pub fn new(fps: f64, coverage: f64) -> Self {
        let hold = (HOLD * fps).ceil().max(1.0) as u64;
        Self { each: 1.0 / fps, hold, coverage, current: None, pending: None, until: 0.0, lost: None }
    }

    /// Takes in a frame; what is complete comes out.
    pub fn push(&mut self, at: f64, seen: Seen, probs: &[f32], begins_scene: bool) -> Vec<Entry> {
        let mut out = Vec::new();
        if let Some(from) = self.lost.take() {
            out.push(gap(from, at));
        }
        self.until = at + self.each;
        let current = self.current.get_or_insert_with(|| Run::new(seen, at));
        if current.seen == seen {
            if let Some(flicker) = self.pending.take() {
                current.join(flicker);
            }
            current.add(probs, begins_scene);
            return out;
        }
        if let Some(flicker) = self.pending.take_if(|run| run.seen != seen) {
            current.join(flicker);
        }
        let pending = self.pending.get_or_insert_with(|| Run::new(seen, at));
        pending.add(probs, begins_scene);
        if pending.frames >= self.hold {
            out.extend(self.take_over());
        }
        out
    }

    /// What is pending becomes the entry at hand; the one before is complete, unless it was a flicker itself.
    fn take_over(&mut self) -> Option<Entry> {
        let mut next = self.pending.take()?;
        let before = self.current.take()?;
        if before.frames < self.hold {
            next.from = before.from;
            next.join(before);
            self.current = Some(next);
            return None;
        }
        let entry = before.entry(next.from, self.coverage);
        self.current = Some(next);
        Some(entry)
    }

    /// There is no signal from now on.
    pub fn lose(&mut self, at: f64) -> Option<Entry> {
        let entry = self.close();
        // A camera that was never there is lost from the beginning.
        self.lost.get_or_insert(if entry.is_some() { self.until } else { at });
        entry
    }

    /// The entry at hand, and the time without a signal up to now.
    pub fn finish(mut self, now: f64) -> Vec<Entry> {
        let entry = self.close();
        entry.into_iter().chain(self.lost.map(|from| gap(from, now.max(from)))).collect()
    }

    fn close(&mut self) -> Option<Entry> {
        let mut current = self.current.take()?;
        if let Some(flicker) = self.pending.take() {
            current.join(flicker);
        }
        Some(current.entry(self.until, self.coverage))
    }

    /// The class at hand.
    pub fn at_hand(&self) -> Option<Seen> {
        self.current.as_ref().map(|run| run.seen)
    }
}

fn gap(from: f64, to: f64) -> Entry {
    Entry { from, to, seen: None, prob: 0.0, set: Vec::new(), frames: 0, scenes: 0 }
}

/// An entry as files hold it.
#[derive(Serialize)]
pub struct Written<'a> {
    from: f64,
    to: f64,
    /// `scene`, `unknown`, `dark` or `no signal`.
    kind: &'static str,
    class: Option<&'a str>,
    probability: Option<f64>,
    set: Vec<&'a str>,
    frames: u64,
    scenes: u64,
}

impl<'a> Written<'a> {
    pub fn new(entry: &Entry, classes: &'a [String]) -> Self {
        let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
        let kind = match entry.seen {
            Some(Seen::Class(_)) => "scene",
            Some(Seen::Unknown) => "unknown",
            Some(Seen::Dark) => "dark",
            None => "no signal",
        };
        let class =
            if let Some(Seen::Class(label)) = entry.seen { Some(classes[label].as_str()) } else { None };
        Self {
            from: rounded(entry.from, 1e3),
            to: rounded(entry.to, 1e3),
            kind,
            class,
            probability: class.map(|_| rounded(entry.prob, 1e4)),
            set: entry.set.iter().map(|&c| classes[c].as_str()).collect(),
            frames: entry.frames,
            scenes: entry.scenes,
        }
    }

    /// Names of [`Written::cells`].
    pub const COLUMNS: [&'static str; 8] =
        ["from", "to", "kind", "class", "probability", "set", "frames", "scenes"];

    /// As a row of a table; the classes of the set are divided by semicolons.
    pub fn cells(&self) -> [String; 8] {
        [
            format!("{:.3}", self.from),
            format!("{:.3}", self.to),
            self.kind.into(),
            self.class.unwrap_or_default().into(),
            self.probability.map(|p| format!("{p:.4}")).unwrap_or_default(),
            self.set.join(";"),
            self.frames.to_string(),
            self.scenes.to_string(),
        ]
    }

    /// As a line for people: what was seen, how surely, what else it may have been.
    pub fn words(&self) -> String {
        let Some(class) = self.class else { return format!("({})", self.kind) };
        let mut words = format!("{class} {:.0} %", 100.0 * self.probability.unwrap_or(0.0));
        if self.set.len() > 1 {
            let others: Vec<&str> =
                self.set.iter().copied().filter(|other| *other != class).take(4).collect();
            words += &format!(", or {}", others.join(", "));
            if self.set.len() - 1 > others.len() {
                words += " …";
            }
        }
        words
    }

    /// From and to, for people.
    pub fn span(&self) -> String {
        format!("{} – {}", clock(self.from), clock(self.to))
    }

    /// As a subtitle.
    pub fn subtitle(&self, number: u64) -> String {
        let time = |seconds: f64| {
            let ms = (seconds.max(0.0) * 1e3).round() as u64;
            format!("{:02}:{:02}:{:02},{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
        };
        format!("{number}\n{} --> {}\n{}\n\n", time(self.from), time(self.to), self.words())
    }
}

/// A time for people: `1:02:03.4`.
pub fn clock(seconds: f64) -> String {
    let tenths = (seconds.max(0.0) * 10.0).round() as u64;
    let (h, m, s) = (tenths / 36_000, tenths / 600 % 60, tenths / 10 % 60);
    let hours = if h > 0 { format!("{h}:{m:02}") } else { m.to_string() };
    format!("{hours}:{s:02}.{}", tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a text through a timeline of five frames a second: a letter is a class, `.` dark, `-` a frame lost.
    fn entries(frames: &str) -> Vec<(char, f64, f64)> {
        let mut timeline = Timeline::new(5.0, 0.9);
        let mut out = Vec::new();
        let mut away = false;
        for (n, frame) in frames.chars().enumerate() {
            let at = n as f64 / 5.0;
            match frame {
                '-' if !away => out.extend(timeline.lose(at)),
                '-' => {}
                '.' => out.extend(timeline.push(at, Seen::Dark, &[], false)),
                letter => {
                    let label = letter as usize - 'a' as usize;
                    let mut probs = [0.05; 3];
                    probs[label] = 0.9;
                    out.extend(timeline.push(at, Seen::Class(label), &probs, true));
                }
            }
            away = frame == '-';
        }
        out.extend(timeline.finish(frames.len() as f64 / 5.0));
        let name = |entry: Entry| {
            let letter = match entry.seen {
                Some(Seen::Class(label)) => (b'a' + label as u8) as char,
                Some(Seen::Dark) => '.',
                _ => '-',
            };
            let tenth = |t: f64| (t * 10.0).round() / 10.0;
            (letter, tenth(entry.from), tenth(entry.to))
        };
        out.into_iter().map(name).collect()
    }

    #[test]
    fn entries_begin_and_end_where_the_class_does() {
        assert_eq!(entries("aaaaabbbbb"), [('a', 0.0, 1.0), ('b', 1.0, 2.0)]);
        assert_eq!(entries("aaaaa.....b"), [('a', 0.0, 1.0), ('.', 1.0, 2.2)], "one frame is too short");
        assert_eq!(entries("aaa---bbb"), [('a', 0.0, 0.6), ('-', 0.6, 1.2), ('b', 1.2, 1.8)]);
        assert_eq!(entries("--aa--"), [('-', 0.0, 0.4), ('a', 0.4, 0.8), ('-', 0.8, 1.2)]);
        assert!(entries("").is_empty());
    }

    #[test]
    fn a_flicker_stays_in_its_entry() {
        assert_eq!(entries("aaabaaacbaaa"), [('a', 0.0, 2.4)]);
        assert_eq!(entries("abbbb"), [('b', 0.0, 1.0)], "a flicker at the start, too");
    }

    #[test]
    fn an_entry_tells_its_mean_probability_and_set() {
        let mut timeline = Timeline::new(5.0, 0.9);
        for _ in 0..4 {
            timeline.push(0.0, Seen::Class(1), &[0.3, 0.65, 0.05], false);
        }
        let entry = timeline.finish(0.0).remove(0);
        assert!((entry.prob - 0.65).abs() < 1e-6);
        assert_eq!((entry.set.clone(), entry.frames, entry.scenes), (vec![1, 0], 4, 1));
        let classes = ["x".to_string(), "y".into(), "z".into()];
        let written = Written::new(&entry, &classes);
        assert_eq!(written.words(), "y 65 %, or x");
        assert_eq!(written.cells()[5], "y;x");
        assert!(written.subtitle(3).starts_with("3\n00:00:00,000 --> 00:00:00,200\ny 65 %"));
    }

    #[test]
    fn times_are_written_for_people() {
        assert_eq!(
            (clock(3.24), clock(62.0), clock(3723.96)),
            ("0:03.2".into(), "1:02.0".into(), "1:02:04.0".into())
        );
    }
}
