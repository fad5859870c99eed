//! ONNX models beside the same model in pure Rust. Needs the feature `onnx` and `ORT_DYLIB_PATH`: `onnx.sh` sets both up.

use std::path::Path;

use ultta_encode::tokens::Tokenizer;
use ultta_encode::{Clip, Encoder, open};

#[test]
fn the_same_model_gives_the_same_features() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let clip = Clip::open(fixtures.join("clip")).unwrap();
    let onnx = open(fixtures.join("onnx").to_str().unwrap()).unwrap();
    assert_eq!((onnx.dim(), onnx.preprocess()), (clip.dim(), clip.preprocess()));
    assert!((onnx.logit_scale() - clip.logit_scale()).abs() < 0.01);
    let cosines = |a: &ultta::Features<'_>, b: &ultta::Features<'_>| {
        (0..a.rows())
            .map(|i| a.row(i).iter().zip(b.row(i)).map(|(x, y)| x * y).sum::<f32>())
            .fold(1.0, f32::min)
    };
    let pixels: Vec<f32> = (0..40 * 3 * 28 * 28).map(|i| (i as f32 * 0.61).sin()).collect();
    let (ours, theirs) = (clip.images(&pixels).unwrap(), onnx.images(&pixels).unwrap());
    assert_eq!(theirs.rows(), 40);
    assert!(cosines(&ours, &theirs) > 0.99999);
    let texts: Vec<String> = (0..35).map(|i| format!("a photo of {i} dogs")).collect();
    let tokenizer = Tokenizer::clip(8);
    let folded = |id: u32| if id == 49407 { 59 } else { id % 58 };
    let ids: Vec<Vec<u32>> =
        texts.iter().map(|t| tokenizer.encode(t).unwrap().into_iter().map(folded).collect()).collect();
    let ours = ultta::Features::normalized(clip.raw_tokens(&ids).unwrap(), clip.dim()).unwrap();
    assert!(cosines(&ours, &onnx.texts(&texts).unwrap()) > 0.99999);
    // The same door as any other encoder.
    let picture = std::fs::read(fixtures.join("pictures/wide.jpg")).unwrap();
    let a = ultta_encode::encode_picture(&clip, &picture, &Default::default()).unwrap();
    let b = ultta_encode::encode_picture(&*onnx, &picture, &Default::default()).unwrap();
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4));
}

#[test]
fn a_broken_model_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let open = || match open(folder.path().to_str().unwrap()) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    std::fs::write(folder.path().join("image.onnx"), b"no model").unwrap();
    assert!(open().contains("model.json"));
    std::fs::write(folder.path().join("model.json"), r#"{"size": 28}"#).unwrap();
    assert!(open().contains("image.onnx"));
}
