//! A picture to the input of an image tower: resize, cut, normalise.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::config::{Filter, Preprocess, Resize};
use crate::decode::Picture;
use crate::{Error, Result};

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
    let whole = Frame { left: 0.0, top: 0.0, width: width as f64, height: height as f64 };
    match config.resize {
        Resize::Shortest(_) if (new_width, new_height) != (size, size) => {
            // Where the middle begins in the resized picture, rounded as Python rounds: halves to even.
            let start = |length: usize| ((length as f64 - size as f64) / 2.0).round_ties_even();
            let (left, top) = (start(new_width), start(new_height));
            let resized = resized(picture, whole, new_width, new_height, config.filter)?;
            if left < 0.0 || top < 0.0 {
                Ok(pad(&resized, left, top, size))
            } else {
                Ok(window(&resized, left as usize, top as usize, size))
            }
        }
        _ => resized(picture, whole, size, size, config.filter),
    }
}

/// A part of a picture, in its pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

/// Scales a part of a picture.
pub(crate) fn resized(
    picture: &Picture,
    frame: Frame,
    width: usize,
    height: usize,
    filter: Filter,
) -> Result<Picture> {
    let bad = |e: String| Error::picture(format!("resizing {} × {}: {e}", picture.width, picture.height));
    let whole = frame.width == picture.width as f64 && frame.height == picture.height as f64;
    if whole && (width, height) == (picture.width, picture.height) {
        return Ok(picture.clone());
    }
    // First across, then down, as Pillow does: overshoots are clipped in between.
    let across = pass(
        picture,
        Frame { top: 0.0, height: picture.height as f64, ..frame },
        (width, picture.height),
        filter,
    )
    .map_err(&bad)?;
    let frame = Frame { left: 0.0, width: width as f64, ..frame };
    pass(&across, frame, (width, height), filter).map_err(bad)
}

/// One direction of a resize.
fn pass(
    picture: &Picture,
    frame: Frame,
    (width, height): (usize, usize),
    filter: Filter,
) -> Result<Picture, String> {
    // Typed images: without the type, the code of every kind of pixel is compiled into this crate.
    let source =
        TypedImageRef::<U8x3>::from_buffer(picture.width as u32, picture.height as u32, &picture.rgb)
            .map_err(|e| e.to_string())?;
    let mut rgb = vec![0; 3 * width * height];
    let mut target =
        TypedImage::<U8x3>::from_buffer(width as u32, height as u32, &mut rgb).map_err(|e| e.to_string())?;
    let filter = match filter {
        Filter::Bicubic => FilterType::CatmullRom,
        Filter::Bilinear => FilterType::Bilinear,
    };
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(
        frame.left,
        frame.top,
        frame.width,
        frame.height,
    );
    RESIZER
        .with_borrow_mut(|resizer| resizer.resize_typed(&source, &mut target, &options))
        .map_err(|e| e.to_string())?;
    Ok(Picture { width, height, rgb })
}

thread_local! {
    static RESIZER: std::cell::RefCell<Resizer> = std::cell::RefCell::new(Resizer::new());
}

/// A square out of a picture.
fn window(picture: &Picture, left: usize, top: usize, size: usize) -> Picture {
    let mut rgb = Vec::with_capacity(size * size * 3);
    for y in top..top + size {
        rgb.extend_from_slice(&picture.rgb[(y * picture.width + left) * 3..][..size * 3]);
    }
    Picture { width: size, height: size, rgb }
}

/// A square larger than the picture: black around it.
fn pad(picture: &Picture, left: f64, top: f64, size: usize) -> Picture {
    let mut rgb = vec![0; size * size * 3];
    for y in 0..size {
        for x in 0..size {
            let (from_x, from_y) = (x as f64 + left, y as f64 + top);
            if from_x >= 0.0
                && from_y >= 0.0
                && (from_x as usize) < picture.width
                && (from_y as usize) < picture.height
            {
                let from = (from_y as usize * picture.width + from_x as usize) * 3;
                rgb[(y * size + x) * 3..][..3].copy_from_slice(&picture.rgb[from..from + 3]);
            }
        }
    }
    Picture { width: size, height: size, rgb }
}

/// Planes of normalised values.
pub(crate) fn normalise(picture: &Picture, config: &Preprocess) -> Vec<f32> {
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
