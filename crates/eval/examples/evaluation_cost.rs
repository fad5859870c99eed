//! What an evaluation costs over the bare adaptive stream: the same simulated samples through a session alone,
//! and through a run with all metrics, in turns.
//!
//!     cargo run --release -p ultta-eval --example evaluation_cost [SAMPLES]

use std::time::Instant;

use ultta::simulate::{Simulator, SimulatorConfig};
use ultta::{Config, Input, Session};
use ultta_eval::dataset::Dataset;
use ultta_eval::method::Method;
use ultta_eval::plan::Job;
use ultta_eval::protocol::Protocol;
use ultta_formats::numbers::Number;
use ultta_formats::tensors::{NewTensor, to_bytes};

const CLASSES: usize = 345;
const DIM: usize = 512;
const BLOCK: usize = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let samples: usize = std::env::args().nth(1).map_or(Ok(200_000), |n| n.parse())?;
    let folder = tempfile::tempdir()?;
    let (features, head) =
        (folder.path().join("features.safetensors"), folder.path().join("head.safetensors"));
    let mut simulator =
        Simulator::new(&SimulatorConfig { classes: CLASSES, dim: DIM, ..Default::default() })?;
    simulator.head().save(&head)?;
    let (mut rows, mut labels) = (Vec::with_capacity(samples * DIM * 4), Vec::new());
    for _ in 0..samples.div_ceil(BLOCK) {
        let (block, classes) = simulator.next_block(BLOCK);
        rows.extend(f32::encode(block.data()));
        labels.extend(u32::encode(&classes));
    }
    let n = labels.len() / size_of::<u32>();
    let tensors = vec![
        NewTensor { name: "features", dtype: f32::DTYPE, shape: vec![n, DIM], bytes: &rows },
        NewTensor { name: "labels", dtype: u32::DTYPE, shape: vec![n], bytes: &labels },
    ];
    std::fs::write(&features, to_bytes(tensors, &Default::default()))?;
    drop((rows, labels));
    let mut dataset = Dataset::open(&features, &head)?;
    dataset.name = "simulated".into();
    let method = Method::resolve("ul-tta", None)?;
    let protocol: Protocol = "file".parse()?;
    let stream = protocol.stream(&[&dataset], &[], 0)?;
    let dataset_name = dataset.name.clone();
    let job = Job {
        dataset: dataset_name,
        packs: vec![&dataset],
        others: vec![],
        in_distribution: None,
        method: &method,
        protocol: &protocol,
        seed: 0,
    };
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let started = Instant::now();
        let mut session = Session::new(dataset.head.clone(), &Config::default())?;
        for start in (0..n).step_by(BLOCK) {
            let block = dataset.pack.read(start..n.min(start + BLOCK), false)?;
            session.step(Input { keep_scores: false, ..Input::new(&block) })?;
        }
        bare.push(started.elapsed().as_secs_f64());
        let started = Instant::now();
        job.run(&stream, |_| true)?;
        whole.push(started.elapsed().as_secs_f64());
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    // A slow minute of the machine meets both halves of a round.
    let ratio = median(whole.iter().zip(&bare).map(|(whole, bare)| whole / bare).collect());
    let (bare, whole) = (median(bare), median(whole));
    println!(
        "{n} samples, {CLASSES} classes, d = {DIM}: bare stream {bare:.2} s, evaluated {whole:.2} s, ratio of a round {ratio:.2}"
    );
    Ok(())
}
