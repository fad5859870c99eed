//! Bytes of a file to a picture: eight-bit RGB, upright.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use libjpeg_turbo_rs::PixelFormat;

use crate::{Error, Result};

/// A picture: rows of eight-bit RGB.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Three bytes a pixel, row by row.
    pub rgb: Vec<u8>,
}

/// What a picture may cost: larger ones are refused before they are decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Pixels of a picture.
    pub pixels: u64,
    /// Pixels across or down.
    pub side: u32,
    /// Bytes of a file.
    pub bytes: u64,
}

impl Default for Limits {
    /// 178,956,970 pixels: where Pillow takes a picture for a decompression bomb.
    fn default() -> Self {
        Self { pixels: 178_956_970, side: 65_535, bytes: 1 << 30 }
    }
}

impl Limits {
    fn check(&self, width: u64, height: u64) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(Error::picture(format!("it is {width} × {height} pixels large")));
        }
        if width > self.side.into() || height > self.side.into() || width.saturating_mul(height) > self.pixels
        {
            return Err(Error::picture(format!(
                "{width} × {height} pixels are more than the limit of {} (at most {} a side)",
                self.pixels, self.side
            )));
        }
        Ok(())
    }
}

/// Number of pixels of a picture, read off the head of its file. What [`decode`] refuses for its size is refused here.
pub fn pixels(bytes: &[u8], limits: &Limits) -> Result<u64> {
    let (_, decoder) = open(bytes, limits)?;
    let (width, height) = decoder.dimensions();
    Ok(u64::from(width) * u64::from(height))
}

/// Decodes JPEG, PNG, WebP, GIF (its first frame), BMP or TIFF; the contents decide, not the name. The picture is
/// turned as its EXIF orientation says, alpha is dropped as Pillow's `convert("RGB")` drops it.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture> {
    let (format, mut decoder) = open(bytes, limits)?;
    // A wrong orientation is no reason to lose the picture.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    if format == ImageFormat::Jpeg {
        drop(decoder);
        return Ok(turned(jpeg(bytes)?, orientation));
    }
    let picture =
        DynamicImage::from_decoder(decoder).map_err(|e| Error::picture(format!("{}: {e}", name(format))))?;
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    Ok(turned(Picture { width, height, rgb: to_rgb(picture) }, orientation))
}

/// Reads the head of a file and refuses what is too large.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(ImageFormat, impl ImageDecoder + 'a)> {
    if bytes.len() as u64 > limits.bytes {
        return Err(Error::picture(format!(
            "{} bytes are more than the limit of {}",
            bytes.len(),
            limits.bytes
        )));
    }
    if bytes.is_empty() {
        return Err(Error::picture("the file is empty"));
    }
    let format = image::guess_format(bytes)
        .map_err(|_| Error::picture("not a picture: expected JPEG, PNG, WebP, GIF, BMP or TIFF"))?;
    let bad = |e: image::ImageError| Error::picture(format!("{}: {e}", name(format)));
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut bounds = image::Limits::default();
    bounds.max_image_width = Some(limits.side);
    bounds.max_image_height = Some(limits.side);
    // Sixteen bits in four channels are eight bytes a pixel; a decoder may need a copy.
    bounds.max_alloc = Some(limits.pixels.saturating_mul(16));
    reader.limits(bounds);
    let decoder = reader.into_decoder().map_err(bad)?;
    let (width, height) = decoder.dimensions();
    limits.check(width.into(), height.into())?;
    Ok((format, decoder))
}

fn name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Png => "PNG",
        ImageFormat::Gif => "GIF",
        ImageFormat::WebP => "WebP",
        ImageFormat::Tiff => "TIFF",
        ImageFormat::Bmp => "BMP",
        _ => "picture",
    }
}

/// Eight-bit RGB without alpha. Sixteen-bit values keep their upper half, as Pillow does.
fn to_rgb(picture: DynamicImage) -> Vec<u8> {
    let high = |v: u16| (v >> 8) as u8;
    match picture {
        DynamicImage::ImageRgb8(p) => p.into_raw(),
        DynamicImage::ImageRgba8(p) => p.pixels().flat_map(|p| [p[0], p[1], p[2]]).collect(),
        DynamicImage::ImageLuma8(p) => p.pixels().flat_map(|p| [p[0]; 3]).collect(),
        DynamicImage::ImageLumaA8(p) => p.pixels().flat_map(|p| [p[0]; 3]).collect(),
        DynamicImage::ImageRgb16(p) => p.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(p) => {
            p.pixels().flat_map(|p| [high(p[0]), high(p[1]), high(p[2])]).collect()
        }
        DynamicImage::ImageLuma16(p) => p.pixels().flat_map(|p| [high(p[0]); 3]).collect(),
        DynamicImage::ImageLumaA16(p) => p.pixels().flat_map(|p| [high(p[0]); 3]).collect(),
        other => other.into_rgb8().into_raw(),
    }
}

/// JPEG, CMYK included.
fn jpeg(bytes: &[u8]) -> Result<Picture> {
    let bad = |e: String| Error::picture(format!("JPEG: {e}"));
    // A file that ends early is an error, not a picture with a grey rest.
    if !is_whole(bytes) {
        return Err(bad("the file is truncated".into()));
    }
    let image = libjpeg_turbo_rs::decompress(bytes).map_err(|e| bad(e.to_string()))?;
    let (width, height) = (image.width, image.height);
    let rgb = match image.pixel_format {
        PixelFormat::Rgb => image.data,
        PixelFormat::Grayscale => image.data.iter().flat_map(|&v| [v; 3]).collect(),
        // Stored inverted, as Adobe does: ink times black.
        PixelFormat::Cmyk => image
            .data
            .as_chunks::<4>()
            .0
            .iter()
            .flat_map(|&[c, m, y, k]| [c, m, y].map(|ink| multiply(ink, k)))
            .collect(),
        other => return Err(bad(format!("expected grey, RGB or CMYK, got {other:?}"))),
    };
    if rgb.len() != width * height * 3 {
        return Err(bad(format!("expected {} values, got {}", width * height * 3, rgb.len())));
    }
    Ok(Picture { width, height, rgb })
}

/// Whether the end of the picture is there. A thumbnail before it has an end of its own; what may follow is ignored.
fn is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    // Segments up to the start of the first scan.
    while let Some(&[0xff, marker, high, low]) = bytes.get(at..at + 4) {
        match marker {
            0xda => return bytes[at..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]),
            0xff => at += 1,
            _ => at += 2 + u16::from_be_bytes([high, low]) as usize,
        }
    }
    // Something else than segments: the decoder will say what.
    at < bytes.len()
}

/// `a · b / 255`, rounded.
fn multiply(a: u8, b: u8) -> u8 {
    let product = a as u32 * b as u32 + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// The picture upright.
fn turned(picture: Picture, orientation: Orientation) -> Picture {
    let (w, h) = (picture.width as isize, picture.height as isize);
    // The pixel that comes to the upper left, and the steps to the one that comes right of it and to the one below.
    let (first, right, down) = match orientation {
        Orientation::NoTransforms => return picture,
        Orientation::FlipHorizontal => (w - 1, -1, w),
        Orientation::Rotate180 => (w * h - 1, -1, -w),
        Orientation::FlipVertical => (w * (h - 1), 1, -w),
        Orientation::Rotate90 => (w * (h - 1), -w, 1),
        Orientation::Rotate270 => (w - 1, w, -1),
        Orientation::Rotate90FlipH => (0, w, 1),
        Orientation::Rotate270FlipH => (w * h - 1, -w, -1),
    };
    let upright = [Orientation::FlipHorizontal, Orientation::Rotate180, Orientation::FlipVertical]
        .contains(&orientation);
    let (width, height) = if upright { (w, h) } else { (h, w) };
    let pixels = picture.rgb.as_chunks::<3>().0;
    let rgb = (0..height)
        .flat_map(|y| (0..width).flat_map(move |x| pixels[(first + x * right + y * down) as usize]))
        .collect();
    Picture { width: width as usize, height: height as usize, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_eight_orientations_are_those_of_the_image_crate() {
        for (width, height) in [(5, 3), (1, 4), (4, 1)] {
            let rgb: Vec<u8> = (0..width * height * 3).map(|i| i as u8).collect();
            for exif in 1..=8 {
                let orientation = Orientation::from_exif(exif).unwrap();
                let image = image::RgbImage::from_raw(width, height, rgb.clone()).unwrap();
                let mut image = DynamicImage::ImageRgb8(image);
                image.apply_orientation(orientation);
                let picture = Picture { width: width as usize, height: height as usize, rgb: rgb.clone() };
                let ours = turned(picture, orientation);
                assert_eq!((ours.width as u32, ours.height as u32), (image.width(), image.height()));
                assert_eq!(ours.rgb, image.into_bytes(), "{orientation:?}");
            }
        }
    }
}
