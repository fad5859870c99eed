//! Times an image tower on noise: `encoder_speed MODEL BATCH REPEATS`, milliseconds per image, one line a repeat.
//!
//! `RAYON_NUM_THREADS` sets the threads. `benches/speed.py` runs it in turns with other engines.

use std::time::Instant;

use ultta_encode::open;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, repeats] = &arguments[..] else {
        return Err("expected MODEL BATCH REPEATS".into());
    };
    let (batch, repeats): (usize, usize) = (batch.parse()?, repeats.parse()?);
    let encoder = open(model)?;
    let size = encoder.preprocess().size;
    let pixels: Vec<f32> = (0..batch * 3 * size * size).map(|i| ((i as f32) * 0.37).sin()).collect();
    encoder.images(&pixels)?;
    for _ in 0..repeats {
        let begun = Instant::now();
        encoder.images(&pixels)?;
        println!("{:.3}", begun.elapsed().as_secs_f64() * 1e3 / batch as f64);
    }
    Ok(())
}
