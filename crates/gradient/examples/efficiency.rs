//! What each method costs on a ViT-B/16 with random weights: operations, time and memory per picture beside zero-shot.
//!
//! ```text
//! cargo run --release -p ultta-gradient --example efficiency -- --batch 4 --classes 200
//! ```
//!
//! Every method runs in a process of its own, so that peak memory is its own; zero-shot runs first and last. Zero-shot
//! and UL-TTA use the encoder of `ultta-encode`; the row "candle forward" is zero-shot on the differentiable tower.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use ultta::{Config, Features, Head};
use ultta_encode::config::{
    BlockConfig, ModelConfig, Preprocess, TextConfig, TokenKind, VisionConfig, VisionPool,
};
use ultta_encode::flops;
use ultta_encode::{Activation, Clip, Encoder};
use ultta_eval::pictures::{peak_bytes, reset_peak};
use ultta_eval::random::Random;
use ultta_gradient::method::{Batch, Classifier};
use ultta_gradient::train::{Parameters, Which};
use ultta_gradient::{MethodConfig, Model, Session, entropy};

type Any = Box<dyn std::error::Error>;

/// Name, method, settings.
const ROWS: [(&str, &str, &str); 13] = [
    ("zero-shot", "zero-shot", ""),
    ("ul-tta", "ul-tta", ""),
    ("candle forward", "forward", ""),
    ("tent", "tent", ""),
    ("tent, every gradient computed", "all-gradients", ""),
    ("eata", "eata", "fisher_alpha = 0.0\nmargin = 10.0\nd_margin = 2.0"),
    ("sar", "sar", "margin = 10.0"),
    ("cotta, without views", "cotta", "threshold = 0.0"),
    ("cotta, 32 views", "cotta", "threshold = 1.0"),
    ("ttt", "ttt", ""),
    ("ttt++", "ttt++", ""),
    ("tpt", "tpt", ""),
    ("zero-shot, again", "zero-shot", ""),
];

fn shapes() -> ModelConfig {
    let blocks = |width: usize, heads: usize| BlockConfig {
        width,
        layers: 12,
        heads,
        hidden: 4 * width,
        activation: Activation::QuickGelu,
        eps: 1e-5,
    };
    ModelConfig {
        vision: VisionConfig {
            image_size: 224,
            patch: 16,
            blocks: blocks(768, 12),
            pool: VisionPool::ClassToken,
        },
        text: TextConfig { vocabulary: 49_408, context: 77, blocks: blocks(512, 8), causal: true },
        dim: 512,
        preprocess: Preprocess::openai(224),
        tokens: TokenKind::Clip,
    }
}

fn head(classes: usize) -> Result<Arc<Head>, Any> {
    let mut random = Random::new(5);
    let values: Vec<f32> = (0..classes * 512).map(|_| random.normal() as f32).collect();
    let unit = Features::normalized(values, 512)?;
    let names: Vec<String> = (0..classes).map(|c| format!("thing number {c}")).collect();
    Ok(Arc::new(Head::new(unit.data().to_vec(), 512, names, 100.0)?))
}

fn main() -> Result<(), Any> {
    let (mut batch, mut classes, mut only, mut one, mut folder) = (4, 200, String::new(), None, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag}: expected a value"));
        match flag.as_str() {
            "--batch" => batch = value()?.parse()?,
            "--classes" => classes = value()?.parse()?,
            "--only" => only = value()?,
            "--one" => one = Some(value()?.parse::<usize>()?),
            "--model" => folder = Some(value()?),
            other => return Err(format!("expected --batch, --classes or --only, got {other}").into()),
        }
    }
    if let (Some(row), Some(folder)) = (one, folder) {
        println!("{}", measure(row, &folder, batch, classes)?);
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    Model::random("ViT-B/16 shapes", shapes(), 1)?.save(place.path())?;
    let mut rows: Vec<(usize, Value)> = Vec::new();
    for (i, (name, method, _)) in ROWS.iter().enumerate() {
        if !only.is_empty() && *method != "zero-shot" && !only.split(',').any(|o| o == *method) {
            continue;
        }
        eprintln!("{name} …");
        let out = Command::new(std::env::current_exe()?)
            .args(["--one", &i.to_string(), "--batch", &batch.to_string(), "--classes", &classes.to_string()])
            .arg("--model")
            .arg(place.path())
            .output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        match serde_json::from_str(text.trim()) {
            Ok(value) => rows.push((i, value)),
            Err(_) => eprintln!("{name}: {}", String::from_utf8_lossy(&out.stderr)),
        }
    }
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or(0.0);
    let zero: Vec<Value> =
        rows.iter().filter(|(i, _)| ROWS[*i].1 == "zero-shot").map(|(_, v)| v.clone()).collect();
    let base = |key: &str| zero.iter().map(|v| of(v, key)).sum::<f64>() / zero.len().max(1) as f64;
    let (encoder, head) = (base("encoder"), base("step"));
    // UL-TTA runs the same encoder as zero-shot: only its step is its own, and the encoder's noise is not.
    for (i, row) in &mut rows {
        if ROWS[*i].1 == "ul-tta" {
            row["ms"] = json!(encoder + of(row, "step"));
            row["cpu"] = json!(base("cpu_encoder") + of(row, "step"));
            eprintln!("steps on features: ul-tta {:.4} ms, zero-shot {head:.4} ms", of(row, "step"));
        }
    }
    println!(
        "| method | parameters updated | forwards | backwards | GFLOP | × | ms | × | CPU ms | × | peak MB | × |"
    );
    println!("|{}", "---|".repeat(12));
    for (i, row) in &rows {
        let (flops, ms, cpu) = (of(row, "flops") / 1e9, of(row, "ms"), of(row, "cpu"));
        let peak = of(row, "peak") / (1 << 20) as f64;
        println!(
            "| {} | {} | {:.2} | {:.2} | {flops:.2} | {:.4} | {ms:.1} | {:.4} | {cpu:.1} | {:.4} | {peak:.0} | {:.2} |",
            ROWS[*i].0,
            of(row, "parameters"),
            of(row, "forwards"),
            of(row, "backwards"),
            flops * 1e9 / base("flops"),
            ms / base("ms"),
            cpu / base("cpu"),
            peak * (1 << 20) as f64 / base("peak"),
        );
    }
    Ok(())
}

/// Seconds of processor time this process has used; 0 where the system does not tell.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// One row in this process.
fn measure(row: usize, folder: &str, batch: usize, classes: usize) -> Result<Value, Any> {
    let (_, method, settings) = ROWS.get(row).copied().ok_or("no such row")?;
    let head = head(classes)?;
    let mut random = Random::new(9);
    let pixels: Vec<f32> = (0..batch * 3 * 224 * 224).map(|_| random.normal() as f32).collect();
    let per = |seconds: f64, n: usize| 1e3 * seconds / n as f64;
    let head_flops = flops::head(classes, 512);
    let picture = flops::image_forward(&shapes());
    if matches!(method, "zero-shot" | "ul-tta") {
        let encoder = Clip::open(Path::new(folder))?;
        encoder.images(&pixels)?;
        reset_peak();
        let mut session =
            ultta::Session::new(head.clone(), &Config::resolve(None, Some(method), None, &[])?)?;
        // UL-TTA's step is so short that a thousand are timed, one picture each, and added to the encoder.
        let features = encoder.images(&pixels)?;
        let begun = Instant::now();
        let mut n = 0;
        while n < 1000 {
            for row in 0..batch {
                session.step(&features.slice(row..row + 1))?;
                n += 1;
            }
        }
        let step = per(begun.elapsed().as_secs_f64(), n);
        let mut best = f64::INFINITY;
        let used = processor();
        for _ in 0..5 {
            let begun = Instant::now();
            encoder.images(&pixels)?;
            best = best.min(per(begun.elapsed().as_secs_f64(), batch));
        }
        let cpu = per(processor() - used, 5 * batch);
        let products = if method == "ul-tta" { 3.0 } else { 1.0 };
        let flops = picture + products * head_flops;
        return Ok(json!({
            "parameters": 0, "forwards": 1, "backwards": 0, "flops": flops, "ms": best + step,
            "encoder": best, "step": step, "cpu_encoder": cpu, "cpu": cpu + step, "peak": peak_bytes(),
        }));
    }
    let model = Arc::new(Model::open(folder)?);
    if method == "forward" || method == "all-gradients" {
        let classifier = Classifier::new(model.clone(), head)?;
        let input = Batch::new(&model, &pixels)?;
        reset_peak();
        let all = Parameters::of_images(&model, Which::All, 0)?;
        let pass = || -> Result<(), Any> {
            if method == "forward" {
                classifier.zero_shot(&input.patches)?;
            } else {
                entropy(&classifier.logits(all.weights(), &input.patches)?)?.mean_all()?.backward()?;
            }
            Ok(())
        };
        pass()?;
        let (begun, used) = (Instant::now(), processor());
        pass()?;
        let ms = per(begun.elapsed().as_secs_f64(), batch);
        let cpu = per(processor() - used, batch);
        let back = if method == "forward" { 0 } else { 1 };
        let flops = picture + head_flops + f64::from(back) * flops::image_backward(&shapes(), true);
        return Ok(json!({
            "parameters": 0, "forwards": 1, "backwards": back, "flops": flops, "ms": ms, "cpu": cpu,
            "peak": peak_bytes(),
        }));
    }
    let text = format!("[method.{method:?}]\n{settings}");
    let config = MethodConfig::resolve(method, Some(&text))?.ok_or("no such method")?;
    let n = if method == "tpt" { 1 } else { batch };
    let pixels = &pixels[..n * 3 * 224 * 224];
    let zero_shot = ultta::Scores::zeros(n, classes);
    let mut session = Session::new(model, head, &config)?;
    // The first step warms up, as the encoder's does above, and counts the passes.
    session.step(pixels, Some(zero_shot.clone()))?;
    let cost = session.cost();
    reset_peak();
    let (begun, used) = (Instant::now(), processor());
    session.step(pixels, Some(zero_shot))?;
    let (ms, cpu) = (per(begun.elapsed().as_secs_f64(), n), per(processor() - used, n));
    Ok(json!({
        "parameters": session.parameters(),
        "forwards": cost.forwards as f64 / n as f64,
        "backwards": cost.backwards as f64 / n as f64,
        "flops": cost.flops / n as f64,
        "ms": ms,
        "cpu": cpu,
        "peak": peak_bytes(),
    }))
}
