//! A fleet by simulation: what sharing gains, and what stale evidence costs (`docs/scale.md` has the figures).
//!
//! A pack's rows are dealt out to members: evenly (`even`), or so that every member has a class mix of its own (`mix`); two packs
//! with one head are dealt out by `domain`, half of the members seeing either. Members answer and learn row by row, in turns, and
//! exchange deltas after every N rows each. Beside them: members that do not share, and one machine that sees every row.
//! `--rows N` adds a simulated pack of N rows for each member, so that many members have enough to learn from, too. What an exchange costs is
//! measured on the packs, for every number of members, and with `--rows` on simulated heads of other dimensions and numbers of classes.
//!
//!     cargo run --release -p ultta-eval --example fleet -- [FOLDER …] [--members 1,4,16] [--every 1,8,64] [--rows N]
//!     cargo run --release -p ultta-eval --example fleet -- --draw docs/scale.md --every 8,64 --svg docs/scale.svg
//!
//! The second call draws the tables of a file, so that they may come from several runs, and of their intervals those that are named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Delta, Features, Head, Input, Result, Session};
use ultta_eval::dataset::{Dataset, Heads, find, name_all};
use ultta_eval::order::Order;
use ultta_eval::plot::{LineChart, Series, standalone};
use ultta_eval::random::Random;

/// Seeds of the orders and of the dealing.
const SEEDS: [u64; 2] = [0, 1];

/// How uneven the class mixes are: a member's weight of a class is a uniform number to this power.
const UNEVEN: i32 = 6;

struct Arguments {
    folders: Vec<PathBuf>,
    members: Vec<usize>,
    every: Vec<usize>,
    /// Of a simulated pack, for each member; 0: none.
    rows: usize,
    draw: Option<PathBuf>,
    svg: Option<PathBuf>,
}

/// Classes and dimensions of the simulated pack, and of the heads on which an exchange is timed.
const SIMULATED: (usize, usize) = (24, 64);
const SIZES: [(usize, usize); 7] =
    [(10, 512), (100, 512), (1000, 512), (100, 64), (100, 256), (100, 1024), (1000, 1024)];

/// Rows of each of the members that an exchange is timed with.
const TIMED: usize = 512;

/// Rows with their labels, and the head that answers them.
struct Traffic {
    name: String,
    head: Head,
    /// Per domain.
    domains: Vec<(Features<'static>, Vec<usize>)>,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let Arguments { folders, members, every, rows, draw, svg } = arguments()?;
    if let (Some(tables), Some(svg)) = (draw, svg) {
        let chart = chart(&std::fs::read_to_string(tables)?, &every);
        return Ok(std::fs::write(svg, standalone(&chart.to_svg()))?);
    }
    let mut datasets = Vec::new();
    for folder in &folders {
        for (features, head) in find(folder, Heads::Main)? {
            datasets.push(Dataset::open(&features, &head)?);
        }
    }
    name_all(&mut datasets)?;
    let mut all: Vec<(&str, Traffic)> = Vec::new();
    for dataset in &datasets {
        for split in ["even", "mix"] {
            all.push((split, traffic(dataset.name.clone(), &[dataset])?));
        }
    }
    for (i, a) in datasets.iter().enumerate() {
        let same = |b: &&Dataset| b.head.digest() == a.head.digest();
        if let Some(b) = datasets[i + 1..].iter().find(same) {
            all.push(("domain", traffic(format!("{} + {}", a.name, b.name), &[a, b])?));
        }
    }
    if all.is_empty() && rows == 0 {
        return Err("no packs there".into());
    }
    println!(
        "| pack | classes | dimension | members | bytes of a delta | ms to cut | ms to take | kB that a member takes per exchange |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let last = *every.last().unwrap_or(&1);
    for (split, traffic) in all.iter().filter(|(split, _)| *split == "even") {
        for &count in members.iter().filter(|&&count| count > 1) {
            costs(traffic, split, count, last)?;
        }
    }
    for (classes, dim) in SIZES.into_iter().filter(|_| rows > 0) {
        costs(&simulated(classes, dim, 4 * TIMED)?, "even", 4, last)?;
    }
    println!();
    let shares: Vec<String> = every.iter().copied().map(interval).collect();
    println!("| pack | split | members | zero-shot | one machine | alone | {} |", shares.join(" | "));
    println!("|---|---|---|---|---|---|{}", "---|".repeat(every.len()));
    for (split, traffic) in &all {
        for &count in &members {
            line(traffic, split, count, &every)?;
        }
    }
    for split in ["even", "mix"].into_iter().filter(|_| rows > 0) {
        let (classes, dim) = SIMULATED;
        for &count in &members {
            line(&simulated(classes, dim, rows * count)?, split, count, &every)?;
        }
    }
    Ok(())
}

/// What sharing gains over members alone, as the tables in a text say, means over packs: a curve for every kind of split and
/// interval.
fn chart(text: &str, intervals: &[usize]) -> LineChart {
    let mut curves: Vec<(String, BTreeMap<usize, Vec<f64>>)> = Vec::new();
    let mut every: Vec<String> = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        // The head of a table: of the one that is drawn, or of another one.
        if cells[0] == "pack" {
            let shares = match &cells[..] {
                [_, "split", "members", "zero-shot", "one machine", "alone", shares @ ..] => shares,
                _ => &[],
            };
            every = shares.iter().map(|share| share.to_string()).collect();
        }
        let [pack, split, members, _, _, alone, shares @ ..] = &cells[..] else { continue };
        let (Ok(members), Ok(alone)) = (members.parse::<usize>(), alone.parse::<f64>()) else { continue };
        for (share, every) in shares.iter().zip(&every) {
            if !intervals.iter().any(|rows| *every == interval(*rows)) {
                continue;
            }
            let Ok(share) = share.parse::<f64>() else { continue };
            let kind = if *pack == "simulated" { "simulated " } else { "" };
            let name = format!("{kind}{split}, {every}");
            let known = curves.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                curves.push((name, BTreeMap::new()));
                curves.len() - 1
            });
            curves[known].1.entry(members).or_default().push(share - alone);
        }
    }
    let empty =
        LineChart::new("What a member gains by sharing", "members (log2)", "top-1 over alone (points)");
    curves.into_iter().fold(empty, |chart, (name, gains)| {
        let mean = |gains: &Vec<f64>| gains.iter().sum::<f64>() / gains.len() as f64;
        let points = gains.iter().map(|(&members, gains)| ((members as f64).log2(), mean(gains)));
        chart.series(Series::new(name, points.collect()))
    })
}

/// An interval, as tables and curves name it.
fn interval(rows: usize) -> String {
    format!("every {rows} rows")
}

/// A line of the table.
fn line(traffic: &Traffic, split: &str, members: usize, every: &[usize]) -> Result<()> {
    let figures = cell(traffic, split, members, every)?;
    let shown: Vec<String> = figures.iter().map(|v| format!("{v:.2}")).collect();
    println!("| {} | {split} | {members} | {} |", traffic.name, shown.join(" | "));
    Ok(())
}

/// A line of the table of costs.
fn costs(traffic: &Traffic, split: &str, members: usize, every: usize) -> Result<()> {
    let Costs { deltas, bytes, cut, takes, take } = exchange(traffic, split, members, every, SEEDS[0])?.1;
    let each = |total: Duration, n: usize| total.as_secs_f64() * 1e3 / n.max(1) as f64;
    let mean = bytes / deltas.max(1);
    println!(
        "| {} | {} | {} | {members} | {mean} | {:.2} | {:.2} | {:.0} |",
        traffic.name,
        traffic.head.n_classes(),
        traffic.head.dim(),
        each(cut, deltas),
        each(take, takes),
        (members - 1) as f64 * mean as f64 / 1e3
    );
    Ok(())
}

/// Rows of the simulator.
fn simulated(classes: usize, dim: usize, rows: usize) -> Result<Traffic> {
    let mut simulator = Simulator::new(&SimulatorConfig { classes, dim, ..Default::default() })?;
    let head = simulator.head().clone();
    let (features, labels) = simulator.next_block(rows);
    let labels = labels.into_iter().map(|label| label as usize).collect();
    Ok(Traffic { name: "simulated".into(), head, domains: vec![(features, labels)] })
}

fn arguments() -> std::result::Result<Arguments, Box<dyn std::error::Error>> {
    let numbers =
        |text: String| -> std::result::Result<Vec<usize>, _> { text.split(',').map(str::parse).collect() };
    let mut found = Arguments {
        folders: Vec::new(),
        members: vec![1, 4, 16, 64, 256],
        every: vec![1, 8, 64],
        rows: 0,
        draw: None,
        svg: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument}: expected a value"));
        match argument.as_str() {
            "--members" => found.members = numbers(value()?)?,
            "--every" => found.every = numbers(value()?)?,
            "--rows" => found.rows = value()?.parse()?,
            "--draw" => found.draw = Some(value()?.into()),
            "--svg" => found.svg = Some(value()?.into()),
            _ => found.folders.push(Path::new(&argument).to_owned()),
        }
    }
    if (found.folders.is_empty() && found.rows == 0 && found.draw.is_none())
        || found.members.contains(&0)
        || found.every.contains(&0)
        || found.every.is_empty()
    {
        return Err("expected folders with packs, and numbers above 0".into());
    }
    Ok(found)
}

fn traffic(name: String, datasets: &[&Dataset]) -> Result<Traffic> {
    let mut domains = Vec::new();
    for dataset in datasets {
        let all: Vec<usize> = (0..dataset.pack.rows()).collect();
        domains.push((dataset.pack.select(&all, true)?, dataset.labels().to_vec()));
    }
    Ok(Traffic { name, head: Head::clone(&datasets[0].head), domains })
}

/// Which member gets which rows, in order: (domain, row).
fn deal(traffic: &Traffic, split: &str, members: usize, seed: u64) -> Result<Vec<Vec<(usize, usize)>>> {
    let mut dealt = vec![Vec::new(); members];
    let mut random = Random::new(seed);
    let classes = traffic.head.n_classes();
    let weights: Vec<f64> = (0..members * classes).map(|_| random.uniform().powi(UNEVEN)).collect();
    let parts = traffic.domains.len();
    for (domain, (features, labels)) in traffic.domains.iter().enumerate() {
        for (i, row) in Order::Shuffled.indices(features.rows(), Some(labels), seed)?.into_iter().enumerate()
        {
            let member = match split {
                "mix" => {
                    let own = |m: usize| weights[m * classes + labels[row]];
                    let mut left = random.uniform() * (0..members).map(own).sum::<f64>();
                    let mut chosen = members - 1;
                    for m in 0..members {
                        left -= own(m);
                        if left <= 0.0 {
                            chosen = m;
                            break;
                        }
                    }
                    chosen
                }
                // The members of a domain: every second one where there are two.
                _ if parts > 1 && members > 1 => (i % (members / parts)) * parts + domain,
                _ => i % members,
            };
            dealt[member].push((domain, row));
        }
    }
    if parts > 1 {
        // One machine that sees both sees them in turns.
        dealt.iter_mut().for_each(|rows| random.shuffle(rows));
    }
    Ok(dealt)
}

/// What an exchange costs.
#[derive(Default)]
struct Costs {
    deltas: usize,
    bytes: usize,
    cut: Duration,
    takes: usize,
    take: Duration,
}

/// Top-1 of zero-shot, of one machine, of members alone, and of members that share, in per cent.
fn cell(traffic: &Traffic, split: &str, members: usize, every: &[usize]) -> Result<Vec<f64>> {
    let mut sums = vec![0.0; 3 + every.len()];
    for seed in SEEDS {
        let dealt = deal(traffic, split, members, seed)?;
        let turns = dealt.iter().map(Vec::len).max().unwrap_or(0);
        // One machine that sees every row, in the order in which the members do.
        let interleaved =
            (0..turns).flat_map(|turn| dealt.iter().filter_map(move |rows| rows.get(turn).copied()));
        let (right, zero_shot, rows) = play(&mut session(traffic)?, traffic, interleaved)?;
        sums[0] += 100.0 * zero_shot as f64 / rows as f64;
        sums[1] += 100.0 * right as f64 / rows as f64;
        let mut alone = 0;
        for rows in &dealt {
            alone += play(&mut session(traffic)?, traffic, rows.iter().copied())?.0;
        }
        sums[2] += 100.0 * alone as f64 / rows as f64;
        for (i, &every) in every.iter().enumerate() {
            sums[3 + i] += 100.0 * exchange(traffic, split, members, every, seed)?.0 as f64 / rows as f64;
        }
    }
    Ok(sums.iter().map(|sum| sum / SEEDS.len() as f64).collect())
}

fn session(traffic: &Traffic) -> Result<Session> {
    Session::new(traffic.head.clone(), &Config::default())
}

/// Right answers, right answers of zero-shot, and rows.
fn play(
    session: &mut Session,
    traffic: &Traffic,
    rows: impl Iterator<Item = (usize, usize)>,
) -> Result<(usize, usize, usize)> {
    let (mut right, mut zero_shot, mut n) = (0, 0, 0);
    for (domain, row) in rows {
        let (features, labels) = &traffic.domains[domain];
        let one = features.slice(row..row + 1);
        let step = session.step(Input { keep_scores: false, ..Input::new(&one) })?;
        right += usize::from(step.rows[0].label == labels[row]);
        zero_shot += usize::from(step.rows[0].zero_shot.label == labels[row]);
        n += 1;
    }
    Ok((right, zero_shot, n))
}

/// Right answers of members that share after every N rows each, and what that costs.
fn exchange(
    traffic: &Traffic,
    split: &str,
    members: usize,
    every: usize,
    seed: u64,
) -> Result<(usize, Costs)> {
    let dealt = deal(traffic, split, members, seed)?;
    let mut sessions = Vec::new();
    for member in 0..members {
        let mut session = session(traffic)?;
        session.join(&format!("member {member}"))?;
        sessions.push(session);
    }
    let (mut right, mut costs) = (0, Costs::default());
    let turns = dealt.iter().map(Vec::len).max().unwrap_or(0);
    for start in (0..turns).step_by(every) {
        for (session, rows) in sessions.iter_mut().zip(&dealt) {
            let part = rows.iter().skip(start).take(every).copied();
            right += play(session, traffic, part)?.0;
        }
        let mut deltas: Vec<Delta> = Vec::new();
        for session in &mut sessions {
            let began = Instant::now();
            deltas.extend(session.cut()?);
            costs.cut += began.elapsed();
        }
        costs.deltas += deltas.len();
        costs.bytes +=
            deltas.iter().map(|delta| delta.to_bytes().map_or(0, |bytes| bytes.len())).sum::<usize>();
        for session in &mut sessions {
            let began = Instant::now();
            for delta in &deltas {
                costs.takes += usize::from(session.take(delta)?);
            }
            costs.take += began.elapsed();
        }
    }
    Ok((right, costs))
}
