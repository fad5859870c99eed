//! Sets hold what they promise, on streams made for it.

use super::*;

/// A stream whose class 0 has probability `told` by the model and `real` in truth; every 20th is labelled 100 later.
fn covered(told: f32, real: f64, labels: bool, rows: u64) -> (f64, SetsHealth) {
    let mut sets = Sets::new(0.9).unwrap();
    let (mut held, mut counted) = (0, 0);
    let mut truth = Vec::new();
    for id in 0..rows {
        // How sure the model is differs from sample to sample.
        let sure = told + (1.0 - told) * ((id * 7919 % 100) as f32 / 100.0 - 0.5);
        let mut probs = [(1.0 - sure) / 9.0; 10];
        probs[0] = sure;
        let odds = real + (1.0 - real) * ((id * 7919 % 100) as f64 / 100.0 - 0.5);
        let label = if (id as f64 * 0.618_033_988).fract() < odds { 0 } else { 1 + (id % 9) as usize };
        truth.push(label);
        let set = sets.give(id, &probs);
        if id >= rows / 2 {
            counted += 1;
            held += u64::from(set.contains(&(label as u32)));
        }
        if labels && id >= 100 && id % 20 == id / 20 % 20 {
            sets.label(id - 100, truth[(id - 100) as usize]);
        }
    }
    (held as f64 / counted as f64, sets.health())
}

#[test]
fn labels_make_the_promise_good() {
    for (told, real) in [(0.7, 0.7), (0.7, 0.5), (0.5, 0.8)] {
        let (share, health) = covered(told, real, true, 20_000);
        // Nine classes are equally probable here, and a set takes all of them or none: it may hold more than asked for.
        assert!(health.promise && (0.87..0.99).contains(&share), "{told} {real}: {share}");
    }
}

#[test]
fn answers_that_claim_too_little_get_smaller_sets() {
    let threshold = |surplus: f64| {
        let mut sets = Sets::new(0.9).unwrap();
        sets.believe(surplus);
        for id in 0..512u64 {
            let sure = 0.5 + 0.5 * ((id * 7919 % 100) as f32 / 100.0);
            sets.give(id, &[sure, 1.0 - sure]);
        }
        sets.threshold
    };
    assert!(threshold(0.1) > threshold(0.0) && threshold(0.0) > threshold(-0.1));
    let mut sets = Sets::new(0.9).unwrap();
    assert!((sets.quantile(0.9) - 0.9).abs() < 1e-5, "uniform masses");
    sets.believe(0.1);
    let mass = sets.quantile(0.9);
    assert!((1.0 - (1.0 - mass).powf((0.1 * SURPLUS).exp()) - 0.9).abs() < 1e-5, "{mass}");
    assert_eq!(reloaded(&sets).surplus, sets.surplus);
}

#[test]
fn a_quantile_is_that_of_labels_and_belief_together() {
    let quantile = |most: f32, share: f64| {
        let mut sets = Sets::new(0.9).unwrap();
        sets.labelled.extend((0..100).map(|i| [most * (i as f32 + 0.5) / 100.0, 1.0]));
        sets.quantile(share)
    };
    for share in [0.1, 0.3, 0.7, 0.9, 0.99] {
        assert!((quantile(1.0, share) - share).abs() < 0.01, "both are uniform: {}", quantile(1.0, share));
        // Labels below 0.97: within what chance explains, so that the belief keeps its worth.
        let mass = quantile(0.97, share);
        let reached = (100.0 * (mass / 0.97).min(1.0) + BELIEF * mass) / (100.0 + BELIEF);
        assert!((reached - share).abs() < 0.01, "{share}: {mass} {reached}");
    }
    // Labels far below what is believed: with half of its worth the mass would be 0.7.
    assert!((0.5..0.68).contains(&quantile(0.5, 0.9)), "{}", quantile(0.5, 0.9));
}

#[test]
fn without_labels_there_is_none() {
    let (share, health) = covered(0.7, 0.7, false, 5000);
    assert!(!health.promise && health.labels == 0);
    assert!(share > 0.85, "calibrated probabilities are credible: {share}");
    assert!(covered(0.7, 0.4, false, 5000).0 < 0.85, "wrong ones are not");
}

#[test]
fn after_a_change_fewer_misses_are_allowed_until_labels_come() {
    let mut sets = Sets::new(0.9).unwrap();
    let row = |id: u64| {
        let sure = 0.3 + 0.6 * ((id * 7919 % 100) as f32 / 100.0);
        [sure, 1.0 - sure]
    };
    let feed = |sets: &mut Sets, ids: std::ops::Range<u64>, label: bool| {
        for id in ids {
            sets.give(id, &row(id));
            if label && id % 10 == 0 {
                sets.label(id, usize::from(id % 30 == 0));
            }
        }
    };
    feed(&mut sets, 0..2000, true);
    let (before, misses) = (sets.threshold, sets.misses());
    sets.change(1990);
    feed(&mut sets, 2000..2048, false);
    assert!(sets.misses() < 0.7 * misses && sets.threshold < before);
    let cautious = sets.misses();
    assert!(!sets.health().promise, "no label tells of the stream as it is now");
    feed(&mut sets, 2048..2048 + 190, true);
    assert!(!sets.health().promise, "19 labels since");
    feed(&mut sets, 2048 + 190..4000, true);
    assert!(sets.misses() > cautious, "{} {cautious}", sets.misses());
    assert!(sets.health().promise);
    // Labels that ceased long ago tell nothing, either.
    feed(&mut sets, 4000..4000 + REMEMBERED as u64 - 10, false);
    assert!(sets.health().promise);
    feed(&mut sets, 4000 + REMEMBERED as u64 - 10..4010 + REMEMBERED as u64, false);
    assert!(!sets.health().promise);
}

#[test]
fn a_label_is_held_if_it_was_in_the_set_however_large_that_is() {
    let mut sets = Sets::new(0.9).unwrap();
    // Class c is the more probable the lower c is; 64 of the 100 classes are in the set.
    let probs: Vec<f32> = (0..100).map(|c| 2.0 * (100 - c) as f32 / 10_100.0).collect();
    let mut held = 0;
    for id in 0..100 {
        (sets.most, sets.threshold) = (0.9, probs[63]);
        // The threshold is aimed anew at some ids: the sets of the others are looked at.
        let set = sets.give(id, &probs);
        let label = (id as usize * 37) % 100;
        held += u64::from(set.contains(&(label as u32)));
        let mut copy = reloaded(&sets);
        for sets in [&mut sets, &mut copy] {
            let before = sets.held;
            sets.label(id, label);
            assert_eq!(sets.held - before, u64::from(set.contains(&(label as u32))), "{id}: {label}");
        }
    }
    assert_eq!(sets.health().labels, 100);
    assert!((sets.health().held - held as f64 / 100.0).abs() < 1e-12 && (40..90).contains(&held), "{held}");
}

fn reloaded(sets: &Sets) -> Sets {
    let mut state = State::default();
    sets.save(&mut state);
    let mut copy = Sets::new(0.9).unwrap();
    copy.load(&state, 100).unwrap();
    copy
}

#[test]
fn a_mass_and_its_probability_belong_together() {
    let mut belief = Belief::default();
    let mass = |belief: &Belief, prob: f32| belief.mass_at(bin(prob));
    assert!((belief.prob(0.9) - 0.1).abs() < 1e-3 && (mass(&belief, 0.1) - 0.9).abs() < 1e-3);
    for i in 1..1000 {
        let prob = (i as f32 / 1000.0).powi(3);
        belief.bins[bin(prob).0] += f64::from(prob);
    }
    belief.look();
    for wanted in [0.05, 0.3, 0.5, 0.9, 0.99] {
        assert!((mass(&belief, belief.prob(wanted)) - wanted).abs() < 1e-4, "{wanted}");
    }
    assert_eq!((belief.prob(1.0), mass(&belief, 0.0)), (0.0, 1.0));
}

#[test]
fn classes_are_found_in_their_order() {
    for n in [1usize, 5, 16, 17, 64, 65, 100, 1000] {
        for steps in [3, 40, 100_000] {
            // Few steps make many classes equally probable.
            let prob = |i: usize| ((i * 7919 + n) * 104_729 % steps) as f32 / (steps * n) as f32;
            let probs: Vec<f32> = (0..n).map(prob).collect();
            let mut expected: Vec<u32> = (0..n as u32).collect();
            expected.sort_by(|&a, &b| probs[b as usize].total_cmp(&probs[a as usize]));
            let mut found = Vec::new();
            let least = among_best(&probs);
            find(&probs, least, &mut found);
            assert!(found.len() >= BEST.min(n), "{n} classes, {steps} steps: {}", found.len());
            assert_eq!(found, expected[..found.len()], "{n} classes, {steps} steps");
            assert!(steps < 100_000 || found.len() <= 2 * BEST, "{n} classes: {} looked at", found.len());
            find(&probs, 0.0, &mut found);
            assert_eq!(found, expected, "{n} classes, {steps} steps");
        }
    }
}
