//! The tiny encoder that ships with the crate.

use ultta::Features;
use ultta_encode::preprocess::preprocess;
use ultta_encode::tiny::shapes::{SHAPES, Style, draw, write};
use ultta_encode::{Clip, Encoder};

/// Uniform numbers by SplitMix64: those that the trainer's example draws its pictures from.
fn uniform(mut state: u64) -> impl FnMut() -> f64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Share of 2,000 pictures that it names rightly, zero-shot.
fn zero_shot(model: &Clip, style: Style, seed: u64) -> f64 {
    let words = model.texts(&SHAPES.map(|shape| format!("a photo of a {shape}."))).unwrap();
    let mut uniform = uniform(seed);
    let mut right = 0;
    for shape in 0..SHAPES.len() {
        let mut pixels = Vec::new();
        for _ in 0..200 {
            pixels.extend(preprocess(&draw(shape, style, &mut uniform), model.preprocess()).unwrap());
        }
        let images: Features<'_> = model.images(&pixels).unwrap();
        let cosine = |row: usize, word: usize| -> f32 {
            images.row(row).iter().zip(words.row(word)).map(|(a, b)| a * b).sum()
        };
        for row in 0..images.rows() {
            let best = (0..SHAPES.len()).max_by(|&a, &b| cosine(row, a).total_cmp(&cosine(row, b)));
            right += usize::from(best == Some(shape));
        }
    }
    right as f64 / 2000.0
}

/// On the pictures of `crates/gradient/examples/tiny.rs`: the figure that the documentation gives (66.0 %), to half
/// precision.
#[test]
fn it_knows_its_shapes_and_meets_a_shift() {
    let model = Clip::tiny().unwrap();
    let (source, shifted) = (zero_shot(&model, Style::Source, 11), zero_shot(&model, Style::Shifted, 12));
    assert!(source > 0.9, "{source}");
    assert!((shifted - 0.66).abs() < 0.005, "{shifted}");
    assert_eq!((model.name(), model.dim()), ("tiny", 32));
    let opened = ultta_encode::open("tiny").unwrap();
    assert_eq!(opened.digest(), model.digest());
}

#[test]
fn pictures_on_disk_are_those_that_were_drawn() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), Style::Shifted, 2, uniform(5)).unwrap();
    let mut uniform = uniform(5);
    for (shape, word) in SHAPES.iter().enumerate() {
        for i in 0..2 {
            let bytes = std::fs::read(folder.path().join(word).join(format!("{i:04}.png"))).unwrap();
            let read = ultta_encode::decode::decode(&bytes, &Default::default()).unwrap();
            assert_eq!(read, draw(shape, Style::Shifted, &mut uniform), "{word} {i}");
        }
    }
}
