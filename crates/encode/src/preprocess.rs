//! A picture to the input of an image tower: resize, cut, normalise.

use std::ops::Range;

use crate::Result;
use crate::config::{Preprocess, Resize};
use crate::decode::Picture;
use crate::resize::{Frame, resized_part};

/// Resizes, cuts out and normalises a picture: three planes of `size × size`.
pub fn preprocess(picture: &Picture, config: &Preprocess) -> Result<Vec<f32>> {
    Ok(normalise(&cut(picture, config)?, config))
}

/// The picture in the input's size, before it is normalised: what a test compares with Pillow.
pub fn cut(picture: &Picture, config: &Preprocess) -> Result<Picture> {
    let size = config.size;
    let (width, height) = (picture.width, picture.height);
    let (new_width, new_height) = match config.resize {
        Resize::Squash => (size, size),
        // As torchvision: the longer side is rounded down.
        Resize::Shortest(shortest) if width <= height => {
            (shortest, (shortest as u64 * height as u64 / width.max(1) as u64) as usize)
        }
        Resize::Shortest(shortest) => {
            ((shortest as u64 * width as u64 / height.max(1) as u64) as usize, shortest)
        }
    };
    let (columns, rows) = match config.resize {
        Resize::Squash => ((0..size, 0), (0..size, 0)),
        Resize::Shortest(_) => (middle(new_width, size), middle(new_height, size)),
    };
    let whole = Frame { left: 0.0, top: 0.0, width: width as f64, height: height as f64 };
    let resized = resized_part(picture, whole, (new_width, new_height), (columns.0, rows.0), config.filter)?;
    Ok(padded(resized, columns.1, rows.1, size))
}

/// The middle of a side: the pixels of it that are shown, and how many black ones come before them.
fn middle(length: usize, size: usize) -> (Range<usize>, usize) {
    // Rounded as Python rounds: halves to even.
    let start = ((length as f64 - size as f64) / 2.0).round_ties_even();
    let (first, before) = (start.max(0.0) as usize, (-start).max(0.0) as usize);
    (first..(first + size - before).min(length), before)
}

/// A square that is larger than the picture: black around it.
fn padded(picture: Picture, left: usize, top: usize, size: usize) -> Picture {
    if (picture.width, picture.height) == (size, size) {
        return picture;
    }
    let mut rgb = vec![0; size * size * 3];
    for (y, row) in picture.rgb.chunks_exact(picture.width * 3).enumerate() {
        rgb[((top + y) * size + left) * 3..][..row.len()].copy_from_slice(row);
    }
    Picture { width: size, height: size, rgb }
}

/// Planes of normalised values, of a picture that has the input's size.
pub fn normalise(picture: &Picture, config: &Preprocess) -> Vec<f32> {
    let pixels = picture.width * picture.height;
    let mut planes = vec![0.0; 3 * pixels];
    for (channel, plane) in planes.chunks_exact_mut(pixels).enumerate() {
        let (scale, shift) =
            (1.0 / (255.0 * config.std[channel]), config.mean[channel] / config.std[channel]);
        for (value, pixel) in plane.iter_mut().zip(picture.rgb.as_chunks::<3>().0) {
            *value = pixel[channel] as f32 * scale - shift;
        }
    }
    planes
}
