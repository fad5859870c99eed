//! Trains a tiny dual encoder on drawn shapes and writes it with its pictures, in two styles:
//!
//! ```text
//! cargo run --release -p ultta-gradient --example tiny -- --out tiny
//! ultta eval --images tiny/shifted --source tiny/source --model tiny/model --methods zero-shot,ul-tta,tent
//! ```

use std::path::PathBuf;

use image::{ImageBuffer, Rgb};
use ultta_eval::random::Random;
use ultta_gradient::tiny::{SHAPES, Style, accuracy, draw, train};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut out, mut steps, mut each, mut seed) = (PathBuf::from("tiny"), 400, 200, 1);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag}: expected a value"));
        match flag.as_str() {
            "--out" => out = value()?.into(),
            "--steps" => steps = value()?.parse()?,
            "--per-class" => each = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            other => {
                return Err(format!("expected --out, --steps, --per-class or --seed, got {other}").into());
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
    let of = |style| accuracy(&model, 50, style).map(|share| 100.0 * share);
    eprintln!("zero-shot: source {:.1} %, shifted {:.1} %", of(Style::Source)?, of(Style::Shifted)?);
    model.save(&out.join("model"))?;
    for (style, name, seed) in [(Style::Source, "source", 11), (Style::Shifted, "shifted", 12)] {
        let mut random = Random::new(seed);
        for (shape, word) in SHAPES.iter().enumerate() {
            let folder = out.join(name).join(word);
            std::fs::create_dir_all(&folder)?;
            for i in 0..each {
                let picture = draw(shape, style, &mut random);
                let (w, h) = (picture.width as u32, picture.height as u32);
                let image: ImageBuffer<Rgb<u8>, _> =
                    ImageBuffer::from_raw(w, h, picture.rgb).ok_or("a picture of the wrong size")?;
                image.save(folder.join(format!("{i:04}.png")))?;
            }
        }
    }
    println!("{}: model, source and shifted, {each} pictures per class", out.display());
    Ok(())
}
