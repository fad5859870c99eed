//! Small pictures for people: what a report shows of a sample.

use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::config::{Filter, Preprocess, Resize};
use crate::decode::Picture;
use crate::preprocess::cut;
use crate::{Error, Result};

/// Pixels across and down.
pub const SIDE: usize = 96;
const QUALITY: u8 = 70;

/// The middle of a picture as a small JPEG.
pub fn thumbnail(picture: &Picture) -> Result<Vec<u8>> {
    let (resize, filter) = (Resize::Shortest(SIDE), Filter::Bilinear);
    let config = Preprocess { size: SIDE, resize, filter, mean: [0.0; 3], std: [1.0; 3] };
    let small = cut(picture, &config)?;
    let mut bytes = Vec::new();
    let (width, height) = (small.width as u32, small.height as u32);
    JpegEncoder::new_with_quality(&mut bytes, QUALITY)
        .encode(&small.rgb, width, height, ExtendedColorType::Rgb8)
        .map_err(|e| Error::picture(format!("making it small: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Limits, decode};

    #[test]
    fn a_thumbnail_is_a_small_picture_of_the_middle() {
        let (width, height) = (400, 200);
        let rgb = (0..width * height).flat_map(|i| [(i % width * 255 / width) as u8, 128, 0]).collect();
        let small = thumbnail(&Picture { width, height, rgb }).unwrap();
        assert!(small.len() < 8_000, "{}", small.len());
        let read = decode(&small, &Limits::default()).unwrap();
        assert_eq!((read.width, read.height), (SIDE, SIDE));
        let red = |x: usize| i32::from(read.rgb[3 * (SIDE * (SIDE / 2) + x)]);
        assert!((red(0) - 64).abs() < 20 && (red(SIDE - 1) - 191).abs() < 20, "{} {}", red(0), red(SIDE - 1));
    }
}
