//! What an operator can count on, measured on packs (`docs/operating.md` has the figures):
//!
//! - `labels`: gain from 1, 2 and 4 labels per class that count at once, beside Tip-Adapter with the same labels.
//! - `suggest`: gain from labels that `suggest` asks for, beside as many random ones.
//! - `wrong`: a thousand wrong labels, withdrawn; and whether explanations add up and an exported layer answers the same.
//! - `speed`: what alarms, sets and rejection cost, in turns with a session without them (`docs/estimates.md`).
//!
//!     cargo run --release -p ultta-eval --example operating -- labels FOLDER [FOLDER …]

use std::path::Path;

use ultta::{Config, Features, Input, Result, Session};
use ultta_eval::dataset::{Dataset, Heads, find, name_all};
use ultta_eval::order::Order;
use ultta_eval::random::Random;
use ultta_formats::numbers::Number;
use ultta_formats::tensors::{NewTensor, to_bytes};

/// Seeds of the orders.
const SEEDS: [u64; 2] = [0, 1];
/// Labels per class.
const PER_CLASS: [usize; 3] = [1, 2, 4];
/// Labels asked for at once, and draws of random ones.
const ASKED: usize = 20;
const DRAWS: usize = 4;
/// Wrong labels.
const WRONG: usize = 1000;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let mut datasets = Vec::new();
    for folder in arguments {
        for (features, head) in find(Path::new(&folder), Heads::Main)? {
            datasets.push(Dataset::open(&features, &head)?);
        }
    }
    name_all(&mut datasets)?;
    let table: fn(&Dataset) -> Result<Vec<f64>> = match what.as_str() {
        "labels" => labels,
        "suggest" => suggestions,
        "wrong" => wrong,
        "speed" => speed,
        _ => return Err("expected labels, suggest, wrong or speed, then folders with packs".into()),
    };
    println!("{}", headings(&what));
    let mut rows = Vec::new();
    for dataset in &datasets {
        rows.push(table(dataset)?);
        println!("| {} | {} |", dataset.name, cells(&rows[rows.len() - 1]));
    }
    if rows.is_empty() {
        return Err("no packs there".into());
    }
    let mean: Vec<f64> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect();
    println!("| mean | {} |", cells(&mean));
    Ok(())
}

fn cells(row: &[f64]) -> String {
    row.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>().join(" | ")
}

fn headings(what: &str) -> String {
    let columns: Vec<String> = match what {
        "labels" => ["shuffled", "partial:0.2"]
            .into_iter()
            .flat_map(|order| {
                PER_CLASS.into_iter().flat_map(move |k| {
                    ["zero-shot", "none", "labels", "Tip-Adapter"].map(|c| format!("{order} {k}: {c}"))
                })
            })
            .collect(),
        "suggest" => ["zero-shot", "none", "random", "asked for"].map(String::from).to_vec(),
        "speed" => ["without, µs a row", "with all of it, µs", "speed kept %"].map(String::from).to_vec(),
        _ => [
            "zero-shot",
            "before",
            "wrong",
            "withdrawn",
            "sum off by (1e-6)",
            "same label %",
            "prob off by (1e-6)",
            "corrected at once %",
        ]
        .map(String::from)
        .to_vec(),
    };
    format!("| pack | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()))
}

/// Share of rows answered right, in per cent, by the session and by zero-shot.
fn run(session: &mut Session, features: &Features<'_>, labels: &[usize]) -> Result<[f64; 2]> {
    let step = session.step(Input { keep_scores: false, ..Input::new(features) })?;
    let mut right = [0.0; 2];
    for (row, label) in step.rows.iter().zip(labels) {
        right[0] += f64::from(row.label == *label);
        right[1] += f64::from(row.zero_shot.label == *label);
    }
    Ok(right.map(|n| 100.0 * n / labels.len().max(1) as f64))
}

/// The first k rows of every class come first, each labelled when it was answered; all are measured on the rest.
fn labels(dataset: &Dataset) -> Result<Vec<f64>> {
    let mut row = Vec::new();
    for order in [Order::Shuffled, Order::Partial(0.2)] {
        for k in PER_CLASS {
            let mut sums = [0.0; 4];
            for seed in SEEDS {
                let indices = order.indices(dataset.pack.rows(), dataset.pack.labels(), seed)?;
                let truth = dataset.labels();
                let mut given = vec![0; dataset.head.n_classes()];
                let (mut shots, mut rest) = (Vec::new(), Vec::new());
                for i in indices {
                    given[truth[i]] += 1;
                    if given[truth[i]] <= k { shots.push(i) } else { rest.push(i) }
                }
                let file = dataset.pack.file();
                let (shown, later) = (file.select(&shots, false)?, file.select(&rest, false)?);
                let told: Vec<usize> = shots.iter().map(|&i| truth[i]).collect();
                let later_truth: Vec<usize> = rest.iter().map(|&i| truth[i]).collect();
                for corrected in [false, true] {
                    let mut session = Session::new(dataset.head.clone(), &Config::default())?;
                    for (i, &label) in told.iter().enumerate() {
                        let id = session.step(&shown.slice(i..i + 1))?.rows[0].id;
                        if corrected {
                            session.correct(id, label)?;
                        }
                    }
                    let [own, frozen] = run(&mut session, &later, &later_truth)?;
                    sums[1 + usize::from(corrected)] += own;
                    sums[0] += frozen / 2.0;
                }
                let folder = tempfile::tempdir().map_err(|source| ultta::Error::Io {
                    doing: "creating a folder",
                    source,
                    path: std::env::temp_dir(),
                })?;
                let config = tip_adapter(folder.path(), &shown, &told)?;
                let mut tip = Session::new(dataset.head.clone(), &config)?;
                sums[3] += run(&mut tip, &later, &later_truth)?[0];
            }
            row.extend(sums.map(|sum| sum / SEEDS.len() as f64));
        }
    }
    Ok(row)
}

/// Tip-Adapter with these shots, which it reads from a file when its session is made.
fn tip_adapter(folder: &Path, shown: &Features<'_>, labels: &[usize]) -> Result<Config> {
    let labels: Vec<i64> = labels.iter().map(|&label| label as i64).collect();
    let (rows, labels) = (f32::encode(shown.data()), i64::encode(&labels));
    let shape = vec![shown.rows(), shown.dim()];
    let tensors = vec![
        NewTensor { name: "features", dtype: f32::DTYPE, shape, bytes: &rows },
        NewTensor { name: "labels", dtype: i64::DTYPE, shape: vec![shown.rows()], bytes: &labels },
    ];
    let path = folder.join("shots.safetensors");
    ultta_formats::write_atomically(&path, &to_bytes(tensors, &Default::default()))?;
    let shots = format!("{:?}", path.to_string_lossy());
    Config::resolve(None, Some("tip-adapter"), None, &[("shots", &shots)])
}

/// Half of the stream without labels, then labels for earlier rows, then the other half.
fn suggestions(dataset: &Dataset) -> Result<Vec<f64>> {
    let mut sums = [0.0; 4];
    for seed in SEEDS {
        let truth = dataset.labels();
        let indices = Order::Shuffled.indices(dataset.pack.rows(), None, seed)?;
        let (first, second) = indices.split_at(indices.len() / 2);
        let file = dataset.pack.file();
        let later = file.select(second, false)?;
        let later_truth: Vec<usize> = second.iter().map(|&i| truth[i]).collect();
        let mut session = Session::new(dataset.head.clone(), &Config::default())?;
        session.observe(&file.select(first, false)?)?;
        let label = |session: &mut Session, id: u64| session.correct(id, truth[first[id as usize]]);
        let [none, frozen] = run(&mut session.clone(), &later, &later_truth)?;
        (sums[0], sums[1]) = (sums[0] + frozen, sums[1] + none);
        let mut random = Random::new(seed);
        for _ in 0..DRAWS {
            let mut kept: Vec<u64> = session.kept().iter().map(|scene| scene.id).collect();
            random.shuffle(&mut kept);
            let mut drawn = session.clone();
            for &id in kept.iter().take(ASKED) {
                label(&mut drawn, id)?;
            }
            sums[2] += run(&mut drawn, &later, &later_truth)?[0] / DRAWS as f64;
        }
        for suggestion in session.suggest(ASKED)? {
            label(&mut session, suggestion.id)?;
        }
        sums[3] += run(&mut session, &later, &later_truth)?[0];
    }
    Ok(sums.map(|sum| sum / SEEDS.len() as f64).to_vec())
}

/// Wrong labels for every row of a first part of the stream, withdrawn after it; then explanations and the layer.
fn wrong(dataset: &Dataset) -> Result<Vec<f64>> {
    let truth = dataset.labels();
    let classes = dataset.head.n_classes();
    let indices = Order::Shuffled.indices(dataset.pack.rows(), None, 0)?;
    let (first, second) = indices.split_at(indices.len() / 2);
    let file = dataset.pack.file();
    let (shown, later) = (file.select(first, false)?, file.select(second, false)?);
    let later_truth: Vec<usize> = second.iter().map(|&i| truth[i]).collect();
    let mut plain = Session::new(dataset.head.clone(), &Config::default())?;
    plain.observe(&shown)?;
    let [before, frozen] = run(&mut plain, &later, &later_truth)?;

    let mut session = Session::new(dataset.head.clone(), &Config::default())?;
    let mut random = Random::new(7);
    let each = WRONG.div_ceil(first.len());
    for (i, &row) in first.iter().enumerate() {
        let id = session.step(Input { keep_scores: false, ..Input::new(&shown.slice(i..i + 1)) })?.rows[0].id;
        for _ in 0..each {
            session.correct(id, (truth[row] + 1 + random.below(classes - 1)) % classes)?;
        }
    }
    let misled = run(&mut session.clone(), &later, &later_truth)?[0];
    for (id, _) in session.corrections() {
        session.withdraw(id);
    }
    let withdrawn = run(&mut session, &later, &later_truth)?[0];

    // Every wrong answer of the last ones, corrected by itself: is the picture answered by its label then?
    let (mut corrected, mut tried) = (0.0, 0.0);
    for scene in plain.kept().iter().rev() {
        let label = truth[indices[scene.id as usize]];
        if scene.label != label && tried < 30.0 {
            let mut one = plain.clone();
            one.correct(scene.id, label)?;
            corrected += f64::from(one.explain_sample(scene.id, 1)?.row.label == label);
            tried += 1.0;
        }
    }

    // Explanations and layer of the plain session, with some labels given.
    for id in plain.kept().iter().map(|scene| scene.id).take(20) {
        plain.correct(id, truth[indices[id as usize]])?;
    }
    let layer = plain.layer()?;
    let (mut off, mut same, mut probs_off, mut rows) = (0.0f64, 0.0, 0.0f64, 0.0);
    for i in 0..later.rows().min(500) {
        let z = later.slice(i..i + 1);
        let step = plain.predict(&z)?;
        let explained = plain.explain(&z, classes)?;
        for class in &explained.classes {
            let sum: f32 = class.nats.iter().sum();
            off = off.max((sum - step.prediction.scores.row(0)[class.label]).abs() as f64);
        }
        if explained.levers.contains(&ultta::Lever::Scene) {
            continue;
        }
        let probs = layer.probabilities(z.row(0))?;
        let logits = layer.logits(z.row(0))?;
        let best = (0..classes).fold(0, |best, c| if logits[c] > logits[best] { c } else { best });
        same += f64::from(best == step.rows[0].label);
        rows += 1.0;
        probs_off = probs_off.max((probs[step.rows[0].label] - step.rows[0].prob).abs() as f64);
    }
    Ok(vec![
        frozen,
        before,
        misled,
        withdrawn,
        1e6 * off,
        100.0 * same / rows,
        1e6 * probs_off,
        100.0 * corrected / tried,
    ])
}

/// Rounds, rows after which the sessions take turns, and rows of a step.
const ROUNDS: usize = 7;
const TURN: usize = 1024;
const BLOCK: usize = 128;

/// A session that only adapts beside one that also watches for changes, gives sets and rejects strangers.
fn speed(dataset: &Dataset) -> Result<Vec<f64>> {
    let indices = Order::Shuffled.indices(dataset.pack.rows(), None, 0)?;
    let rows = dataset.pack.file().select(&indices, false)?;
    let all = [("coverage", "0.9"), ("unknown.score", "\"cone\""), ("unknown.cost", "0.05")];
    let configs = [
        Config::resolve(None, None, None, &[("alarms.enabled", "false")])?,
        Config::resolve(None, None, None, &all)?,
    ];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let mut sessions = Vec::new();
        for config in &configs {
            sessions.push(Session::new(dataset.head.clone(), config)?);
        }
        let mut spent = [0.0; 2];
        for start in (0..rows.rows()).step_by(TURN) {
            let end = rows.rows().min(start + TURN);
            for (session, spent) in sessions.iter_mut().zip(&mut spent) {
                let began = cpu_seconds();
                for first in (start..end).step_by(BLOCK) {
                    let block = rows.slice(first..end.min(first + BLOCK));
                    session.step(Input { keep_scores: false, ..Input::new(&block) })?;
                }
                *spent += cpu_seconds() - began;
            }
        }
        for (times, spent) in times.iter_mut().zip(spent) {
            times.push(1e6 * spent / rows.rows() as f64);
        }
    }
    let [without, with] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    Ok(vec![without, with, 100.0 * without / with])
}

/// Processor time of this thread where the system tells it, else time on the wall.
fn cpu_seconds() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    told.map_or_else(|| START.elapsed().as_secs_f64(), |nanoseconds| nanoseconds * 1e-9)
}
