//! Views of preprocessed pictures: random cuts, mirrorings, changes of colour, quarter turns.
//!
//! They work on the normalised planes that the tower takes, so a view is cut out of what the plain preprocessing
//! shows. Seeded.

use ultta_eval::random::Random;

/// How far a view may be from its picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strength {
    /// Smallest share of the picture's area that a cut shows.
    pub min_area: f64,
    /// Largest relative change of contrast, and largest shift of brightness in units of the normalised values.
    pub colour: f64,
    /// Standard deviation of noise added to the normalised values.
    pub noise: f64,
}

/// A random view of a picture: three planes of `size × size`.
pub fn view(picture: &[f32], size: usize, strength: Strength, random: &mut Random) -> Vec<f32> {
    let area = strength.min_area + (1.0 - strength.min_area) * random.uniform();
    let side = area.sqrt() * size as f64;
    let (left, top) = (random.uniform() * (size as f64 - side), random.uniform() * (size as f64 - side));
    let mirrored = random.uniform() < 0.5;
    let contrast = 1.0 + strength.colour * (2.0 * random.uniform() - 1.0);
    let brightness = strength.colour * (2.0 * random.uniform() - 1.0);
    let step = side / size as f64;
    // Where each column and row is read: two neighbours and the weight of the second.
    let taps = |start: f64, flip: bool| -> Vec<(usize, usize, f32)> {
        (0..size)
            .map(|i| {
                let i = if flip { size - 1 - i } else { i };
                let at = (start + (i as f64 + 0.5) * step - 0.5).clamp(0.0, size as f64 - 1.0);
                let low = at.floor() as usize;
                (low, (low + 1).min(size - 1), (at - low as f64) as f32)
            })
            .collect()
    };
    let (columns, rows) = (taps(left, mirrored), taps(top, false));
    let mut out = Vec::with_capacity(picture.len());
    for plane in picture.chunks_exact(size * size) {
        for &(y0, y1, wy) in &rows {
            for &(x0, x1, wx) in &columns {
                let mix = |y: usize| plane[y * size + x0] * (1.0 - wx) + plane[y * size + x1] * wx;
                let value = mix(y0) * (1.0 - wy) + mix(y1) * wy;
                out.push((contrast * value as f64 + brightness) as f32);
            }
        }
    }
    if strength.noise > 0.0 {
        out.iter_mut().for_each(|v| *v += (strength.noise * random.normal()) as f32);
    }
    out
}

/// A picture turned by quarter turns against the clock.
pub fn turned(picture: &[f32], size: usize, quarters: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(picture.len());
    for plane in picture.chunks_exact(size * size) {
        for y in 0..size {
            for x in 0..size {
                let (from_y, from_x) = match quarters % 4 {
                    0 => (y, x),
                    1 => (x, size - 1 - y),
                    2 => (size - 1 - y, size - 1 - x),
                    _ => (size - 1 - x, y),
                };
                out.push(plane[from_y * size + from_x]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_quarter_turns_are_none() {
        let picture: Vec<f32> = (0..3 * 16).map(|v| v as f32).collect();
        let once = turned(&picture, 4, 1);
        assert_eq!(once[0], 3.0, "the upper right corner comes to the upper left");
        assert_eq!(turned(&turned(&once, 4, 1), 4, 2), picture);
        assert_eq!(turned(&picture, 4, 3), turned(&once, 4, 2));
    }

    #[test]
    fn a_view_without_strength_is_the_picture_or_its_mirror_image() {
        let picture: Vec<f32> = (0..3 * 16).map(|v| v as f32).collect();
        let none = Strength { min_area: 1.0, colour: 0.0, noise: 0.0 };
        let mirrored: Vec<f32> = picture.chunks(4).flat_map(|row| row.iter().rev().copied()).collect();
        for seed in 0..8 {
            let view = view(&picture, 4, none, &mut Random::new(seed));
            assert!(view == picture || view == mirrored);
        }
        let strong = Strength { min_area: 0.3, colour: 0.2, noise: 0.1 };
        assert_eq!(
            view(&picture, 4, strong, &mut Random::new(1)),
            view(&picture, 4, strong, &mut Random::new(1))
        );
    }
}
