//! Pictures that are drawn, not taken: ten shapes in two styles. The tiny encoder is trained on one style; the other is
//! a real shift that adaptation can be judged on.

use std::path::Path;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::decode::Picture;
use crate::{Error, Result};

/// The words.
pub const SHAPES: [&str; 10] =
    ["circle", "square", "triangle", "cross", "ring", "diamond", "star", "crescent", "hexagon", "bar"];

/// Pixels across and down.
pub const SIZE: usize = 32;

/// How shapes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Dark on light paper: what the model is trained on.
    Source,
    /// Dark on darker, rippled paper, with more noise.
    Shifted,
}

/// Below 0 inside the shape; about the distance to its edge.
fn distance(shape: usize, u: f64, v: f64) -> f64 {
    let r = (u * u + v * v).sqrt();
    let angle = v.atan2(u);
    match shape {
        0 => r - 0.62,
        1 => u.abs().max(v.abs()) - 0.56,
        2 => (v - 0.45).max(0.87 * u.abs() - 0.5 * v - 0.4),
        3 => {
            let bar = |a: f64, b: f64| (a.abs() - 0.7).max(b.abs() - 0.2);
            bar(u, v).min(bar(v, u))
        }
        4 => (r - 0.52).abs() - 0.14,
        5 => 0.8 * (u.abs() + v.abs() * 0.8 - 0.68),
        6 => 0.8 * (r - 0.46 - 0.2 * (5.0 * angle).cos()),
        7 => (r - 0.66).max(0.52 - ((u - 0.3).powi(2) + v * v).sqrt()),
        8 => {
            let sector = std::f64::consts::PI / 3.0;
            let folded = (angle + sector / 2.0).rem_euclid(sector) - sector / 2.0;
            r * folded.cos() - 0.56
        }
        _ => (u.abs() - 0.78).max(v.abs() - 0.22),
    }
}

/// Draws a shape, by its place in [`SHAPES`]. `uniform` gives random numbers in [0, 1): the same numbers draw the same
/// picture.
pub fn draw(shape: usize, style: Style, mut uniform: impl FnMut() -> f64) -> Picture {
    let mut range = |low: f64, high: f64| low + (high - low) * uniform();
    let (scale, turn) = (range(0.75, 1.1), range(-0.35, 0.35));
    let (left, top) = (range(-0.18, 0.18), range(-0.18, 0.18));
    let light = [range(0.7, 1.0), range(0.7, 1.0), range(0.7, 1.0)];
    let dark = [range(0.0, 0.4), range(0.0, 0.4), range(0.0, 0.4)];
    let middle = [range(0.5, 0.8), range(0.5, 0.8), range(0.5, 0.8)];
    let wave = [range(2.0, 7.0), range(-5.0, 5.0), range(0.0, 6.3)];
    let (ink, paper, noise, texture) = match style {
        Style::Source => (dark, light, 0.04, 0.0),
        Style::Shifted => (dark, middle, 0.10, 0.08),
    };
    // Box–Muller.
    let mut normal = || {
        let (u, v) = (1.0 - uniform(), uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let mut rgb = Vec::with_capacity(3 * SIZE * SIZE);
    for y in 0..SIZE {
        for x in 0..SIZE {
            let at = |i: usize| 2.0 * (i as f64 + 0.5) / SIZE as f64 - 1.0;
            let (dx, dy) = ((at(x) - left) / scale, (at(y) - top) / scale);
            let (u, v) = (dx * turn.cos() - dy * turn.sin(), dx * turn.sin() + dy * turn.cos());
            let edge = distance(shape, u, v);
            let cover = (0.5 - edge * SIZE as f64 / 4.0).clamp(0.0, 1.0);
            let ripple = texture * (wave[0] * at(x) + wave[1] * at(y) + wave[2]).sin();
            for c in 0..3 {
                let value = paper[c] + ripple + cover * (ink[c] - paper[c]) + noise * normal();
                rgb.push((255.0 * value).clamp(0.0, 255.0).round() as u8);
            }
        }
    }
    Picture { width: SIZE, height: SIZE, rgb }
}

/// Draws `each` pictures of every shape into a folder per shape: `root/circle/0000.png`.
pub fn write(root: &Path, style: Style, each: usize, mut uniform: impl FnMut() -> f64) -> Result<()> {
    for (shape, word) in SHAPES.iter().enumerate() {
        let folder = root.join(word);
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("making a folder", &folder, e))?;
        for i in 0..each {
            let picture = draw(shape, style, &mut uniform);
            let path = folder.join(format!("{i:04}.png"));
            std::fs::write(&path, png(&picture)?).map_err(|e| Error::io("writing", &path, e))?;
        }
    }
    Ok(())
}

/// A picture as a PNG. `image::save_buffer` would choose the format by the file's name, and bring the encoders of all formats.
fn png(picture: &Picture) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (width, height) = (picture.width as u32, picture.height as u32);
    PngEncoder::new(&mut bytes)
        .write_image(&picture.rgb, width, height, ExtendedColorType::Rgb8)
        .map_err(|e| Error::picture(format!("drawing a shape: {e}")))?;
    Ok(bytes)
}
