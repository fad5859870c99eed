//! Speed of adaptation beside the plain zero-shot head, as ratios of one interleaved run.
//!
//! `cargo bench -p ultta --bench step` prints the tables of `docs/benchmarks.md`. One core, d = 512, simulated features, a
//! session from its start through many updates. Those compared take turns every few milliseconds, so that a slow
//! moment of the machine meets all; the ratio is that of the medians over the rounds, in the second table that of the quickest
//! rounds of each turn. `ROUNDS`, `CLASSES`, `WAY`
//! (`blocks` or `one`), `SETTINGS` (`key=value,…`) and `TABLE` (`step`, or `watching` for the second table alone, of `ROWS` rows, and of it
//! only what begins with `ONLY`) narrow it down.

use std::hint::black_box;
use std::time::Instant;

use ultta::internal::softmax;
use ultta::{Config, Features, Head, Input, Session};

const DIM: usize = 512;

/// Rows per block when streaming in blocks.
const BLOCK: usize = 128;

/// Rows after which head and session take turns.
const TURN: usize = 1024;

/// What an operator can switch on, beside the alarms and the estimates.
const WATCHING: [(&str, &str); 3] =
    [("coverage", "0.9"), ("unknown.score", "\"cone\""), ("unknown.cost", "0.05")];

fn main() {
    let given = |name: &str| std::env::var(name).unwrap_or_default();
    let settings = given("SETTINGS");
    let settings: Vec<(&str, &str)> = settings.split(',').filter_map(|s| s.split_once('=')).collect();
    let (rounds, only, way, table) =
        (given("ROUNDS").parse().unwrap_or(7), given("CLASSES").parse().ok(), given("WAY"), given("TABLE"));
    if table != "watching" {
        step_table(rounds, only, &way, &settings);
    }
    if table != "step" {
        watching_table(rounds, only.unwrap_or(1000), &settings);
    }
}

fn resolve(settings: &[(&str, &str)]) -> Config {
    Config::resolve(None, None, None, settings).expect("valid settings")
}

/// Adaptation beside the plain head.
fn step_table(rounds: usize, only: Option<usize>, only_way: &str, settings: &[(&str, &str)]) {
    let config = resolve(settings);
    println!(
        "| classes | way | zero-shot, µs per sample | adaptive, µs per sample | throughput ratio | added, µs |"
    );
    println!("|---|---|---|---|---|---|");
    for (classes, rows) in [(10, 65_536), (200, 65_536), (1000, 65_536), (10_000, 16_384)] {
        if only.is_some_and(|o| o != classes) {
            continue;
        }
        let (head, features) = stream(classes, rows);
        let head = std::sync::Arc::new(head);
        for (way, block) in [("blocks of 128", BLOCK), ("one at a time", 1)] {
            if !way.starts_with(only_way) {
                continue;
            }
            let (mut plain, mut adaptive) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let mut session = Session::new(head.clone(), &config).expect("default settings");
                let (mut frozen, mut adapted) = (0.0, 0.0);
                for start in (0..rows).step_by(TURN) {
                    let turn = features.slice(start..rows.min(start + TURN));
                    frozen += time(|| zero_shot(&head, &turn, block));
                    adapted += time(|| adapt(&mut session, &turn, block));
                }
                plain.push(frozen * 1e6 / rows as f64);
                adaptive.push(adapted * 1e6 / rows as f64);
            }
            let (plain, adaptive) = (median(&mut plain), median(&mut adaptive));
            println!(
                "| {classes} | {way} | {plain:.2} | {adaptive:.2} | {:.2} | {:+.2} |",
                plain / adaptive,
                adaptive - plain
            );
        }
    }
}

/// Adaptation with all that watches beside adaptation alone, and beside each part of it.
fn watching_table(rounds: usize, classes: usize, settings: &[(&str, &str)]) {
    let rows = std::env::var("ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(65_536);
    let (head, features) = stream(classes, rows);
    let head = std::sync::Arc::new(head);
    let silent = ("alarms.enabled", "false");
    let with = |more: &[(&str, &str)]| resolve(&[settings, more].concat());
    let alone = with(&[silent]);
    let all = with(&WATCHING);
    // Name, settings, and whether accuracy is estimated.
    let mut ways = vec![
        ("adaptation alone", alone.clone(), false),
        ("estimates", alone, true),
        ("alarms", with(&[]), false),
        ("sets", with(&[silent, WATCHING[0]]), false),
        ("unknown", with(&[silent, WATCHING[1], WATCHING[2]]), false),
        ("all of it", all, true),
    ];
    let only = std::env::var("ONLY").unwrap_or_default();
    ways.retain(|(name, ..)| name.starts_with(&only));
    // Every round does the same: what makes a turn slower in one than in another is no work of ours.
    let mut quickest = vec![vec![f64::INFINITY; rows.div_ceil(TURN)]; ways.len()];
    for _ in 0..rounds {
        let mut sessions: Vec<Session> = ways
            .iter()
            .map(|(_, config, estimating)| {
                let session = Session::new(head.clone(), config).expect("valid settings");
                if *estimating { session } else { session.without_estimates() }
            })
            .collect();
        for (i, start) in (0..rows).step_by(TURN).enumerate() {
            let turn = features.slice(start..rows.min(start + TURN));
            for (session, quickest) in sessions.iter_mut().zip(&mut quickest) {
                quickest[i] = quickest[i].min(time(|| adapt(session, &turn, BLOCK)));
            }
        }
    }
    println!("\n| {classes} classes, blocks of {BLOCK} | µs per sample | speed of adaptation alone |");
    println!("|---|---|---|");
    let times: Vec<f64> =
        quickest.iter().map(|turns| turns.iter().sum::<f64>() * 1e6 / rows as f64).collect();
    for ((name, ..), time) in ways.iter().zip(&times) {
        println!("| {name} | {time:.2} | {:.3} |", times[0] / time);
    }
}

/// The plain head: matrix product, softmax, best class.
fn zero_shot(head: &Head, features: &Features<'_>, block: usize) -> usize {
    let mut labels = 0;
    let mut probs = vec![0.0; head.n_classes()];
    for start in (0..features.rows()).step_by(block) {
        let scores =
            head.zero_shot(&features.slice(start..features.rows().min(start + block))).expect("shapes fit");
        for row in 0..scores.rows() {
            labels += softmax(scores.row(row), 1.0, &mut probs);
            black_box(&probs);
        }
    }
    labels
}

fn adapt(session: &mut Session, features: &Features<'_>, block: usize) -> usize {
    let mut labels = 0;
    for start in (0..features.rows()).step_by(block) {
        let rows = features.slice(start..features.rows().min(start + block));
        let input = Input { keep_scores: false, ..Input::new(&rows) };
        let step = session.step(input).expect("shapes fit");
        labels += step.rows.iter().map(|r| r.label).sum::<usize>();
    }
    labels
}

fn time(work: impl FnOnce() -> usize) -> f64 {
    let start = cpu_seconds();
    black_box(work());
    cpu_seconds() - start
}

/// CPU time of this thread where the system tells it (other work on the machine then counts less), else the
/// time on the wall.
fn cpu_seconds() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    match told.and_then(|s| s.split(' ').next()?.parse::<f64>().ok()) {
        Some(nanoseconds) => nanoseconds * 1e-9,
        None => EPOCH.elapsed().as_secs_f64(),
    }
}

static EPOCH: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Images and texts in separate cones, with the cosines of real CLIP features.
fn stream(classes: usize, rows: usize) -> (Head, Features<'static>) {
    let mut seed = 1u64;
    let mut gauss = move || {
        let mut uniform = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) as f64 + 0.5) / (1u64 << 31) as f64
        };
        ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos() / (DIM as f64).sqrt())
            as f32
    };
    let mut vector = || (0..DIM).map(|_| gauss()).collect::<Vec<f32>>();
    let (image, text) = (vector(), vector());
    let mix = |parts: &[(&[f32], f32)]| -> Vec<f32> {
        (0..DIM).map(|i| parts.iter().map(|(v, w)| v[i] * w).sum()).collect()
    };
    let class: Vec<Vec<f32>> = (0..classes).map(|_| vector()).collect();
    let prototypes: Vec<f32> =
        class.iter().flat_map(|c| mix(&[(&text, 0.6), (&image, 0.22), (c, 0.55)])).collect();
    let head = Head::new(
        Features::normalized(prototypes, DIM).expect("no zero rows").data().to_vec(),
        DIM,
        (0..classes).map(|c| format!("class {c}")),
        100.0,
    );
    let mut data = Vec::with_capacity(rows * DIM);
    for row in 0..rows {
        let noise = vector();
        data.extend(mix(&[(&image, 0.74), (&class[row.wrapping_mul(7919) % classes], 0.22), (&noise, 0.5)]));
    }
    (head.expect("a valid head"), Features::normalized(data, DIM).expect("no zero rows"))
}
