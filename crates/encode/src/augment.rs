//! Weak views of a picture: at least four fifths of what the plain preprocessing shows, maybe mirrored, with a light
//! change of colour.
//!
//! Seeded: the same picture, seed and number give the same view.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::Result;
use crate::config::{Preprocess, Resize};
use crate::decode::Picture;
use crate::preprocess::normalise;
use crate::resize::{Frame, resized};

/// Smallest share of the picture that a view shows.
pub const MIN_AREA: f64 = 0.8;

/// Largest change of brightness, contrast and saturation.
pub const MAX_COLOUR: f64 = 0.1;

/// A view of a picture as input of the image tower.
pub fn view(picture: &Picture, config: &Preprocess, seed: u64, number: u64) -> Result<Vec<f32>> {
    let mut random = Pcg64Mcg::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut uniform = |low: f64, high: f64| {
        let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        low + unit * (high - low)
    };
    // What the plain preprocessing shows: the square in the middle, or everything.
    let (width, height) = (picture.width as f64, picture.height as f64);
    let (base_width, base_height) = match config.resize {
        Resize::Shortest(_) => (width.min(height), width.min(height)),
        Resize::Squash => (width, height),
    };
    let scale = uniform(MIN_AREA, 1.0).sqrt();
    let (w, h) = ((base_width * scale).max(1.0), (base_height * scale).max(1.0));
    let left = (width - base_width) / 2.0 + uniform(0.0, base_width - w);
    let top = (height - base_height) / 2.0 + uniform(0.0, base_height - h);
    let frame = Frame { left: left.max(0.0), top: top.max(0.0), width: w, height: h };
    let mut cut = resized(picture, frame, config.size, config.size, config.filter)?;
    if uniform(0.0, 1.0) < 0.5 {
        for row in cut.rgb.chunks_exact_mut(config.size * 3) {
            row.as_chunks_mut::<3>().0.reverse();
        }
    }
    let mut factor = || uniform(1.0 - MAX_COLOUR, 1.0 + MAX_COLOUR) as f32;
    colour(&mut cut, factor(), factor(), factor());
    Ok(normalise(&cut, config))
}

fn colour(picture: &mut Picture, brightness: f32, contrast: f32, saturation: f32) {
    let grey = |p: &[u8; 3]| 0.299 * p[0] as f32 + 0.587 * p[1] as f32 + 0.114 * p[2] as f32;
    let pixels = picture.rgb.as_chunks_mut::<3>().0;
    let mean =
        brightness * pixels.iter().map(|p| grey(p) as f64).sum::<f64>() as f32 / pixels.len().max(1) as f32;
    for pixel in pixels {
        let own = grey(pixel);
        for value in pixel {
            let saturated = own + saturation * (*value as f32 - own);
            let contrasted = mean + contrast * (brightness * saturated - mean);
            *value = contrasted.clamp(0.0, 255.0).round() as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_seeded_and_near_the_picture() {
        let rgb = (0..60 * 40 * 3).map(|i| (i % 251) as u8).collect();
        let picture = Picture { width: 60, height: 40, rgb };
        let config = Preprocess::openai(32);
        let view = |seed, number| view(&picture, &config, seed, number).unwrap();
        assert_eq!(view(1, 0), view(1, 0));
        assert_ne!(view(1, 0), view(1, 1));
        assert_ne!(view(1, 0), view(2, 0));
        assert_eq!(view(1, 0).len(), 3 * 32 * 32);
        let plain = crate::preprocess::preprocess(&picture, &config).unwrap();
        let mean = |v: &[f32]| v.iter().sum::<f32>() / v.len() as f32;
        assert!((mean(&view(3, 0)) - mean(&plain)).abs() < 0.5);
    }
}
