//! Trains a tiny dual encoder on drawn shapes and writes it with its pictures, in two styles:
//!
//! ```text
//! cargo run --release -p ultta-gradient --example tiny -- --out tiny
//! ultta eval --images tiny/shifted --source tiny/source --model tiny/model --methods zero-shot,ul-tta,tent
//! ```
//!
//! `--weights crates/encode/src/tiny/weights.safetensors` writes the model as it ships with the encoder (`--model tiny`).

use std::path::PathBuf;

use ultta_encode::tiny::shapes::{Style, write};
use ultta_eval::random::Random;
use ultta_gradient::tiny::{accuracy, packed, train};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut out, mut steps, mut each, mut seed) = (PathBuf::from("tiny"), 400, 200, 1);
    let mut weights: Option<PathBuf> = None;
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag}: expected a value"));
        match flag.as_str() {
            "--out" => out = value()?.into(),
            "--weights" => weights = Some(value()?.into()),
            "--steps" => steps = value()?.parse()?,
            "--per-class" => each = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            other => {
                let known = "--out, --weights, --steps, --per-class or --seed";
                return Err(format!("expected {known}, got {other}").into());
            }
        }
    }
    let begun = std::time::Instant::now();
    let model = train(steps, seed, |step, loss| {
        if step % 50 == 0 || step + 1 == steps {
            eprintln!("step {step}: loss {loss:.3}");
        }
    })?;
    eprintln!("trained in {:.1} s", begun.elapsed().as_secs_f64());
    if let Some(path) = weights {
        std::fs::write(path, packed(&model)?)?;
    }
    model.save(&out.join("model"))?;
    for (style, name, seed) in [(Style::Source, "source", 11), (Style::Shifted, "shifted", 12)] {
        let mut random = Random::new(seed);
        write(&out.join(name), style, each, || random.uniform())?;
        // On the very pictures that are written: what `ultta eval` answers for them.
        let share = accuracy(&model, each, style, seed)?;
        println!("{name}: {} pictures, zero-shot {:.1} %", 10 * each, 100.0 * share);
    }
    println!("{}: model, source and shifted, {each} pictures per class", out.display());
    Ok(())
}
