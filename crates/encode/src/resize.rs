//! Scales a part of a picture by Pillow's arithmetic, bit for bit: first across, then down, each sum in integers and
//! rounded to eight bits.

use std::ops::Range;

use crate::config::Filter;
use crate::decode::Picture;
use crate::vit::element::vectorised;
use crate::{Error, Result};

/// A part of a picture, in its pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

/// Bits behind the point of a weight.
const BITS: u32 = 22;

/// One half, so that a sum is rounded when its bits behind the point are cut off.
const HALF: i32 = 1 << (BITS - 1);

/// Rows of a picture that are scaled across at a time, one to a vector lane.
const LANES: usize = 16;

/// Scales a part of a picture to a size.
pub(crate) fn resized(
    picture: &Picture,
    frame: Frame,
    width: usize,
    height: usize,
    filter: Filter,
) -> Result<Picture> {
    resized_part(picture, frame, (width, height), (0..width, 0..height), filter)
}

/// A part of what [`resized`] gives: the columns and rows of the scaled picture that are asked for. No other is computed.
pub(crate) fn resized_part(
    picture: &Picture,
    frame: Frame,
    (width, height): (usize, usize),
    (columns, rows): (Range<usize>, Range<usize>),
    filter: Filter,
) -> Result<Picture> {
    let pixels = picture.width * picture.height;
    if pixels == 0 || picture.rgb.len() != 3 * pixels || columns.is_empty() || rows.is_empty() {
        let (from, to) = (format!("{} × {}", picture.width, picture.height), format!("{width} × {height}"));
        return Err(Error::picture(format!("it cannot be resized from {from} to {to}")));
    }
    let down = Weights::new(picture.height, (frame.top, frame.height), height, rows, filter);
    let across = Weights::new(picture.width, (frame.left, frame.width), width, columns, filter);
    let (width, height) = (across.windows.len(), down.windows.len());
    let rows = down.sources();
    let narrow = vectorised(
        #[inline(always)]
        || scale_across(picture, rows.clone(), &across),
    );
    let rgb = vectorised(
        #[inline(always)]
        || scale_down(&narrow, rows.start, width, &down),
    );
    Ok(Picture { width, height, rgb })
}

/// For each pixel of one side of the scaled picture: which pixels it is a sum of, and their weights.
struct Weights {
    windows: Vec<(Range<usize>, Range<usize>)>,
    values: Vec<i32>,
}

impl Weights {
    /// Weights from `length` pixels beginning at `start`, out of `source` pixels, to `target` pixels; of these, those
    /// that are `wanted`.
    fn new(
        source: usize,
        (start, length): (f64, f64),
        target: usize,
        wanted: Range<usize>,
        filter: Filter,
    ) -> Self {
        let (shape, reach): (fn(f64) -> f64, f64) = match filter {
            Filter::Bicubic => (bicubic, 2.0),
            Filter::Bilinear => (|x| (1.0 - x.abs()).max(0.0), 1.0),
        };
        let scale = length / target as f64;
        // Where the picture becomes larger, the filter keeps its width.
        let width = scale.max(1.0);
        let (mut windows, mut values) = (Vec::with_capacity(wanted.len()), Vec::new());
        for i in wanted {
            let centre = start + (i as f64 + 0.5) * scale;
            let first = ((centre - reach * width + 0.5).max(0.0) as usize).min(source - 1);
            let end = ((centre + reach * width + 0.5) as usize).clamp(first + 1, source);
            let raw: Vec<f64> =
                (first..end).map(|x| shape((x as f64 - centre + 0.5) * (1.0 / width))).collect();
            let sum: f64 = raw.iter().sum();
            let begin = values.len();
            values.extend(raw.iter().map(|w| {
                let fixed = if sum == 0.0 { 0.0 } else { w / sum } * f64::from(1 << BITS);
                (fixed + 0.5_f64.copysign(fixed)) as i32
            }));
            windows.push((first..end, begin..values.len()));
        }
        Self { windows, values }
    }

    /// The pixels that any of the sums needs.
    fn sources(&self) -> Range<usize> {
        let first = self.windows.iter().map(|(pixels, _)| pixels.start).min().unwrap_or(0);
        first..self.windows.iter().map(|(pixels, _)| pixels.end).max().unwrap_or(first)
    }

    /// The pixels of each sum, with their weights.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (Range<usize>, &[i32])> {
        self.windows.iter().map(|(pixels, weights)| (pixels.clone(), &self.values[weights.clone()]))
    }
}

/// Catmull and Rom's spline.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// The rows of a picture, each with as many pixels as there are sums.
#[inline(always)]
fn scale_across(picture: &Picture, rows: Range<usize>, weights: &Weights) -> Vec<u8> {
    let width = weights.windows.len();
    let mut out = vec![0; rows.len() * width * 3];
    // The same byte of sixteen rows lies side by side.
    let mut columns = vec![[0u8; LANES]; picture.width * 3];
    let sources = rows.map(|y| &picture.rgb[y * picture.width * 3..][..picture.width * 3]);
    let sources: Vec<&[u8]> = sources.collect();
    for (sources, out) in sources.chunks(LANES).zip(out.chunks_mut(LANES * width * 3)) {
        for (lane, row) in sources.iter().enumerate() {
            for (column, value) in columns.iter_mut().zip(*row) {
                column[lane] = *value;
            }
        }
        for (x, (pixels, weights)) in weights.iter().enumerate() {
            let columns = columns[pixels.start * 3..pixels.end * 3].as_chunks::<3>().0;
            let (mut red, mut green, mut blue) = ([HALF; LANES], [HALF; LANES], [HALF; LANES]);
            for ([r, g, b], weight) in columns.iter().zip(weights) {
                red = added(red, r, *weight);
                green = added(green, g, *weight);
                blue = added(blue, b, *weight);
            }
            let sums = [red, green, blue];
            for lane in 0..sources.len() {
                for (channel, sums) in sums.iter().enumerate() {
                    out[(lane * width + x) * 3 + channel] = rounded(sums[lane]);
                }
            }
        }
    }
    out
}

/// As many rows as there are sums. The first row at hand is row `first` of the picture.
#[inline(always)]
fn scale_down(rows: &[u8], first: usize, width: usize, weights: &Weights) -> Vec<u8> {
    let mut out = vec![0; weights.windows.len() * width * 3];
    let mut sums = vec![0; width * 3];
    for ((pixels, weights), out) in weights.iter().zip(out.chunks_exact_mut(width * 3)) {
        sums.fill(HALF);
        for (y, weight) in pixels.zip(weights) {
            for (sum, value) in sums.iter_mut().zip(&rows[(y - first) * width * 3..][..width * 3]) {
                *sum = add(*sum, *value, *weight);
            }
        }
        for (out, sum) in out.iter_mut().zip(&sums) {
            *out = rounded(*sum);
        }
    }
    out
}

/// Sums and one more weighed value for each. They cannot overflow: the weights of a sum add up to 1.
#[inline(always)]
fn added(mut sums: [i32; LANES], values: &[u8; LANES], weight: i32) -> [i32; LANES] {
    for lane in 0..LANES {
        sums[lane] = add(sums[lane], values[lane], weight);
    }
    sums
}

#[inline(always)]
fn add(sum: i32, value: u8, weight: i32) -> i32 {
    sum.wrapping_add(weight.wrapping_mul(i32::from(value)))
}

#[inline(always)]
fn rounded(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize) -> Picture {
        let rgb = (0..width * height * 3).map(|i| (i * 7919 % 256) as u8).collect();
        Picture { width, height, rgb }
    }

    fn whole(picture: &Picture) -> Frame {
        Frame { left: 0.0, top: 0.0, width: picture.width as f64, height: picture.height as f64 }
    }

    #[test]
    fn the_same_size_is_the_same_picture() {
        let picture = picture(37, 21);
        for filter in [Filter::Bicubic, Filter::Bilinear] {
            assert_eq!(resized(&picture, whole(&picture), 37, 21, filter).unwrap(), picture);
        }
    }

    #[test]
    fn a_plain_colour_stays_in_every_size() {
        let plain = Picture { width: 50, height: 33, rgb: [10, 200, 255].repeat(50 * 33) };
        for (width, height) in [(1, 1), (7, 90), (120, 5), (50, 33)] {
            let part = Frame { left: 3.7, top: 0.2, width: 40.1, height: 32.0 };
            for filter in [Filter::Bicubic, Filter::Bilinear] {
                let scaled = resized(&plain, part, width, height, filter).unwrap();
                assert_eq!(scaled.rgb, [10, 200, 255].repeat(width * height));
            }
        }
    }

    #[test]
    fn pixels_of_one_row_or_column_are_enough() {
        for (width, height) in [(1, 40), (40, 1), (1, 1), (17, 2)] {
            let picture = picture(width, height);
            let scaled = resized(&picture, whole(&picture), 9, 9, Filter::Bicubic).unwrap();
            assert_eq!(scaled.rgb.len(), 9 * 9 * 3);
        }
    }

    #[test]
    fn a_part_is_a_part_of_the_whole() {
        let picture = picture(61, 40);
        let all = resized(&picture, whole(&picture), 30, 25, Filter::Bicubic).unwrap();
        let part =
            resized_part(&picture, whole(&picture), (30, 25), (4..11, 20..25), Filter::Bicubic).unwrap();
        for (y, row) in part.rgb.chunks(7 * 3).enumerate() {
            assert_eq!(row, &all.rgb[((20 + y) * 30 + 4) * 3..][..7 * 3]);
        }
        assert_eq!((part.width, part.height), (7, 5));
        assert!(
            resized(&Picture { rgb: vec![0; 5], ..picture }, whole(&all), 9, 9, Filter::Bicubic).is_err()
        );
    }
}
