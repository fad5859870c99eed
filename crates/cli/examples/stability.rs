//! A long stream in constant memory: one million simulated samples through both presets at once.
//!
//! ```text
//! cargo run --release -p ultta-cli --example stability
//! ```
//!
//! Prints resident memory, top-1 of the first and the last tenth beside zero-shot's, and the stability figures of
//! the published method: largest KL of the prior, largest prototype movement, accuracy drop, guard events. Fails
//! if memory grows by 2 MB or more after the first tenth, or if the default ends below zero-shot.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Input, Session};

/// One million simulated samples through both presets, in constant memory
#[derive(Parser)]
struct Args {
    /// Samples in the stream
    #[arg(long, default_value_t = 1_000_000)]
    samples: usize,
    /// Classes
    #[arg(long, default_value_t = 345)]
    classes: usize,
    /// Length of a feature row
    #[arg(long, default_value_t = 512)]
    dim: usize,
    /// Seed of the stream
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

const PRESETS: [&str; 2] = ["ul-tta:paper", "ul-tta"];
const BLOCK: usize = 128;
/// Growth of resident memory that the check allows between the first tenth and the end.
const ALLOWED_KB: u64 = 2048;

/// Right answers in the first tenth, in the last, and in all.
#[derive(Default)]
struct Right([u64; 3]);

impl Right {
    fn push(&mut self, tenth: usize, right: bool) {
        let right = u64::from(right);
        self.0[2] += right;
        match tenth {
            0 => self.0[0] += right,
            9 => self.0[1] += right,
            _ => {}
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let tenth = (args.samples / 10).next_multiple_of(BLOCK);
    let config =
        SimulatorConfig { classes: args.classes, dim: args.dim, seed: args.seed, ..Default::default() };
    let mut simulator = Simulator::new(&config)?;
    let mut sessions = Vec::new();
    for name in PRESETS {
        sessions.push(Session::new(simulator.head().clone(), &Config::named(name)?)?);
    }
    let mut frozen = Right::default();
    let mut adapted: Vec<Right> = PRESETS.map(|_| Right::default()).into();
    let (mut simulating, mut stepping) = (Duration::ZERO, PRESETS.map(|_| Duration::ZERO));
    let mut early = None;

    println!(
        "simulated stream: {} samples, {} classes, {} dimensions, seed {}",
        10 * tenth,
        args.classes,
        args.dim,
        args.seed
    );
    for block in 0..10 * tenth / BLOCK {
        let part = block * BLOCK / tenth;
        if part == 1 && early.is_none() {
            early = resident_kb();
        }
        let start = Instant::now();
        let (features, labels) = simulator.next_block(BLOCK);
        simulating += start.elapsed();
        for (i, session) in sessions.iter_mut().enumerate() {
            let start = Instant::now();
            let step = session.step(Input { keep_scores: false, ..Input::new(&features) })?;
            stepping[i] += start.elapsed();
            for (row, &label) in step.rows.iter().zip(&labels) {
                adapted[i].push(part, row.label == label as usize);
                if i == 0 {
                    frozen.push(part, row.zero_shot.label == label as usize);
                }
            }
        }
    }
    let end = resident_kb();

    let percent = |right: u64, n: usize| 100.0 * right as f64 / n as f64;
    println!();
    println!("{:<28}{:>12}{:>14}{:>12}", "", "zero-shot", PRESETS[0], PRESETS[1]);
    for (what, index, n) in [
        ("top-1, first tenth (%)", 0, tenth),
        ("top-1, last tenth (%)", 1, tenth),
        ("top-1, whole stream (%)", 2, 10 * tenth),
    ] {
        let [a, b] = [0, 1].map(|i: usize| percent(adapted[i].0[index], n));
        println!("{what:<28}{:>12.2}{a:>14.2}{b:>12.2}", percent(frozen.0[index], n));
    }
    let drop = |r: &Right| percent(r.0[0], tenth) - percent(r.0[1], tenth);
    println!(
        "{:<28}{:>12.2}{:>14.2}{:>12.2}",
        "accuracy drop (points)",
        drop(&frozen),
        drop(&adapted[0]),
        drop(&adapted[1])
    );
    let health: Vec<_> = sessions.iter().map(Session::health).collect();
    let row = |what: &str, values: [String; 2]| {
        println!("{what:<28}{:>12}{:>14}{:>12}", "–", values[0], values[1]);
    };
    row("largest KL(prior‖uniform)", [0, 1].map(|i: usize| format!("{:.4}", health[i].max_prior_kl)));
    row("largest movement", [0, 1].map(|i: usize| format!("{:.4}", health[i].max_movement)));
    row("collapse guard fired", [0, 1].map(|i: usize| health[i].guard_fired.to_string()));
    row("standing at the end", [0, 1].map(|i: usize| format!("{:?}", health[i].standing).to_lowercase()));
    row("state (KB)", [0, 1].map(|i: usize| (health[i].state_bytes / 1024).to_string()));
    let micros = |d: Duration| format!("{:.1}", d.as_secs_f64() * 1e6 / (10 * tenth) as f64);
    row("step, µs per sample", stepping.map(micros));
    println!("simulating: {} µs per sample", micros(simulating));

    let grown = match (early, end) {
        (Some(early), Some(end)) => {
            let grown = end.saturating_sub(early);
            println!(
                "resident memory: {early} KB after the first tenth, {end} KB at the end: grown by {grown} KB"
            );
            grown
        }
        _ => {
            println!("resident memory: cannot be read on this system");
            0
        }
    };
    let steady = grown < ALLOWED_KB;
    let holds = adapted[1].0[1] >= frozen.0[1];
    println!(
        "memory {}, default {}",
        verdict(steady, "constant", "GROWS"),
        verdict(holds, "at least zero-shot", "BELOW zero-shot")
    );
    Ok(ExitCode::from(u8::from(!(steady && holds))))
}

fn verdict(good: bool, yes: &'static str, no: &'static str) -> &'static str {
    if good { yes } else { no }
}

/// Resident memory of this process, where the system tells (Linux).
fn resident_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
