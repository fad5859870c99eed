//! The promise, and what is found how soon, on simulated scenes.

use super::*;

struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 += 1;
        chance(self.0, 99)
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform().max(1e-300), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

const DIM: usize = 16;
const CLASSES: usize = 24;

/// A stream whose scenes resemble those before: every coordinate, the level and the contrast follow an AR(1) process,
/// and the class is kept with the same probability.
struct Simulated {
    random: Random,
    phi: f64,
    walk: [f64; DIM + 2],
    class: u32,
    id: u64,
    // What can be changed.
    move_by: f32,
    contrast: f32,
    classes: std::ops::Range<u32>,
    still: bool,
}

impl Simulated {
    fn new(seed: u64, phi: f64) -> Self {
        let mut random = Random(seed << 32);
        let walk = std::array::from_fn(|_| random.normal());
        let classes = 0..CLASSES as u32;
        Self { random, phi, walk, class: 0, id: 0, move_by: 0.0, contrast: 1.0, classes, still: false }
    }

    fn show(&mut self, alarms: &mut Alarms) -> Option<Alarm> {
        if !self.still {
            let noise = (1.0 - self.phi * self.phi).sqrt();
            for value in &mut self.walk {
                *value = self.phi * *value + noise * self.random.normal();
            }
            if self.random.uniform() > self.phi {
                let n = f64::from(self.classes.end - self.classes.start);
                self.class = self.classes.start + (self.random.uniform().powi(2) * n) as u32;
            }
        }
        let mut features: [f32; DIM] = std::array::from_fn(|i| self.walk[i] as f32 * 0.25);
        features[0] += 1.0;
        features[1] += self.move_by;
        let length = features.iter().map(|v| v * v).sum::<f32>().sqrt();
        features.iter_mut().for_each(|v| *v /= length);
        let level = 20.0 + (0.5 * self.walk[DIM]).exp() as f32;
        let contrast = self.contrast * (0.3 * self.walk[DIM + 1]).exp() as f32;
        let mut logits: [f32; CLASSES] = std::array::from_fn(|c| level + contrast * (c as f32 * 0.7).sin());
        logits[self.class as usize] += 3.0 * contrast;
        let id = self.id;
        self.id += 1;
        let moments = crate::scores::weigh(&logits, &mut [0.0; CLASSES]).moments;
        alarms.push(&AlarmRow { id, features: &features, moments, class: self.class }, false)
    }
}

#[test]
fn two_million_scenes_that_do_not_change_raise_no_more_alarms_than_promised() {
    let mut told = Vec::new();
    // The more scenes resemble those before, the later bets are taken: the stream is long enough for most to be judged.
    for (phi, length) in [(0.0, 20_000), (0.5, 2_000), (0.9, 20_000), (0.98, 50_000)] {
        let (mut raised, mut judged) = (0, 0);
        for seed in 0..500_000 / length {
            let mut stream = Simulated::new(1000 * (100.0 * phi) as u64 + seed, phi);
            let mut alarms = Alarms::new(&AlarmConfig::default());
            for _ in 0..length {
                raised += usize::from(stream.show(&mut alarms).is_some());
                judged += usize::from(alarms.numbers.judged() == NUMBERS);
            }
        }
        assert!(
            judged > 250_000,
            "resemblance {phi}: all four numbers were judged in {judged} of 500,000 scenes"
        );
        told.push((phi, raised, judged));
    }
    println!("resemblance, false alarms, scenes of 500,000 in which all four numbers were judged: {told:?}");
    let (total, judged) =
        told.iter().fold((0, 0), |(n, all), (_, raised, judged)| (n + raised, all + judged));
    assert!(total <= judged / 100_000, "promised: one in 100,000 scenes that were judged; raised: {told:?}");
}

/// What is raised after a change at scene `at`, and how many scenes later.
fn after(change: impl Fn(&mut Simulated), phi: f64, at: u64) -> Option<(Alarm, u64)> {
    let mut stream = Simulated::new(7, phi);
    let mut alarms = Alarms::new(&AlarmConfig::default());
    for _ in 0..at {
        assert_eq!(stream.show(&mut alarms), None, "nothing has changed yet");
    }
    assert!(alarms.is_ready());
    change(&mut stream);
    (1..4000).find_map(|later| Some((stream.show(&mut alarms)?, later)))
}

#[test]
fn every_kind_of_change_is_found_named_and_dated() {
    type Change = fn(&mut Simulated);
    let changes: [(AlarmKind, Change); 4] = [
        (AlarmKind::Domain, |s| s.move_by = 0.5),
        (AlarmKind::Quality, |s| s.contrast = 0.3),
        (AlarmKind::Mix, |s| s.classes = 0..3),
        (AlarmKind::Frozen, |s| s.still = true),
    ];
    for (kind, change) in changes {
        let (alarm, later) = after(change, 0.0, 1000).unwrap_or_else(|| panic!("{kind:?}"));
        assert_eq!(alarm.kind, kind, "{alarm:?}");
        assert!(later < 100, "{kind:?} after {later} scenes");
        assert!((990..=1050).contains(&alarm.since) && alarm.id == 999 + later, "{alarm:?}");
        assert!(alarm.evidence > 14.0 && alarm.strength > 0.5, "{alarm:?}");
        assert!(alarm.text(&vec!["a".into(); CLASSES]).contains(&format!("row {}", alarm.since)));
        assert!(!kind.advice().is_empty() && alarm.class.is_some() == (kind == AlarmKind::Mix));
    }
    let (slow, later) = after(|s| s.contrast = 0.3, 0.8, 4000).expect("a change among scenes that resemble");
    assert!(slow.kind == AlarmKind::Quality && later < 500, "{slow:?} after {later}");
}

#[test]
fn the_new_normal_is_learnt_and_the_way_back_is_a_change() {
    let mut stream = Simulated::new(3, 0.3);
    let mut alarms = Alarms::new(&AlarmConfig::default());
    let mut raised = Vec::new();
    for contrast in [1.0, 0.2, 1.0] {
        stream.contrast = contrast;
        raised.push((0..2000).filter_map(|_| stream.show(&mut alarms)).count());
    }
    assert_eq!(raised, [0, 1, 1]);
    assert_eq!((alarms.raised(), alarms.kept().len()), (2, 2));
    let kinds: Vec<AlarmKind> = alarms.kept().map(|alarm| alarm.kind).collect();
    assert_eq!(kinds[0], AlarmKind::Quality);
    assert_ne!(kinds[1], AlarmKind::Quality, "pictures that say more again are not hard to read");
}

#[test]
fn switched_off_it_watches_nothing() {
    let mut stream = Simulated::new(3, 0.0);
    let mut alarms = Alarms::new(&AlarmConfig { enabled: false, ..Default::default() });
    (0..600).for_each(|_| assert_eq!(stream.show(&mut alarms), None));
    stream.contrast = 0.1;
    (0..600).for_each(|_| assert_eq!(stream.show(&mut alarms), None));
}
