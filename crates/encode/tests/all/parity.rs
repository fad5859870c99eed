//! The encoder beside the libraries it reads models of: fixtures made by `fixtures/make.py`.
//!
//! `parity.py` compares with the live libraries in the sizes of real models.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use ultta_encode::config::{Filter, Preprocess, Resize};
use ultta_encode::decode::{Limits, decode};
use ultta_encode::preprocess::cut;
use ultta_encode::{Clip, Encoder};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// The largest difference, and the smallest cosine of the rows.
fn compare(got: &[f32], expected: &[f32], dim: usize) -> (f32, f64) {
    assert_eq!(got.len(), expected.len());
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| x as f64 * y as f64).sum::<f64>();
    let cosine = got
        .chunks(dim)
        .zip(expected.chunks(dim))
        .map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt())
        .fold(1.0, f64::min);
    (worst, cosine)
}

#[test]
fn features_are_those_of_transformers_and_open_clip() {
    for (model, expected) in [
        ("clip", "clip"),
        ("clip-bin", "clip"),
        ("siglip", "siglip"),
        ("open_clip", "open_clip"),
        ("open_clip-quick", "open_clip-quick"),
        ("open_clip-resnet", "open_clip-resnet"),
        ("open_clip-resnet-bin", "open_clip-resnet"),
    ] {
        let clip = Clip::open(fixtures().join(model)).unwrap();
        let bytes = std::fs::read(fixtures().join(expected).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let pixels = floats(&file, "pixels");
        let image = clip.raw_images(&pixels).unwrap();
        let (worst, cosine) = compare(&image, &floats(&file, "image"), clip.dim());
        assert!(worst < 1e-4 && cosine > 0.99999, "{model}: images differ by {worst}, cosine {cosine}");
        // Many at a time, or few: the same.
        let many = clip.raw_images(&pixels.repeat(4)).unwrap();
        assert!(compare(&many, &image.repeat(4), clip.dim()).0 < 1e-5, "{model}");
        let ids = file.tensor("ids").unwrap();
        let context = ids.shape()[1];
        let ids: Vec<u32> =
            ids.data().as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect();
        let ids: Vec<Vec<u32>> = ids.chunks(context).map(<[u32]>::to_vec).collect();
        let text = clip.raw_tokens(&ids).unwrap();
        let (worst, cosine) = compare(&text, &floats(&file, "text"), clip.dim());
        assert!(worst < 1e-4 && cosine > 0.99999, "{model}: texts differ by {worst}, cosine {cosine}");
        // One at a time or together: the same.
        let alone = clip.raw_tokens(&ids[1..2]).unwrap();
        assert!(compare(&alone, &text[clip.dim()..2 * clip.dim()], clip.dim()).0 < 1e-5);
    }
}

#[test]
fn the_models_own_preprocessing_is_read() {
    let clip = Clip::open(fixtures().join("open_clip")).unwrap();
    assert_eq!(clip.preprocess().mean, [0.5, 0.4, 0.3]);
    assert_eq!(clip.preprocess().resize, Resize::Shortest(28));
    let siglip = Clip::open(fixtures().join("siglip")).unwrap();
    assert_eq!((siglip.preprocess().resize, siglip.preprocess().mean), (Resize::Squash, [0.5; 3]));
    assert!(siglip.logit_scale() > 0.0 && siglip.logit_bias() == -10.0);
}

#[test]
fn pictures_are_cut_as_pillow_cuts_them() {
    let bytes = std::fs::read(fixtures().join("pictures.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let openai = Preprocess::openai(32);
    let squash = Preprocess { size: 28, resize: Resize::Squash, filter: Filter::Bicubic, ..openai.clone() };
    let mut report = Vec::new();
    for (name, view) in file.iter() {
        let (picture, label) = name.split_once(':').unwrap();
        let bytes = std::fs::read(fixtures().join("pictures").join(picture)).unwrap();
        let decoded = decode(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{picture}: {e}"));
        let got = cut(&decoded, if label == "shortest" { &openai } else { &squash }).unwrap();
        assert_eq!(got.rgb.len(), view.data().len(), "{name}");
        let worst = got.rgb.iter().zip(view.data()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        report.push((worst, name.to_string()));
    }
    report.sort();
    assert_eq!(report.len(), 38);
    let wrong: Vec<_> = report.iter().filter(|(worst, _)| *worst > 2).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn broken_files_and_bombs_are_errors() {
    let read = |name: &str| std::fs::read(fixtures().join("pictures").join(name)).unwrap();
    for name in
        ["wide.jpg", "progressive.jpg", "plain.png", "plain.gif", "plain.tif", "lossy.webp", "plain.bmp"]
    {
        let bytes = read(name);
        for cut in [0, 1, 3, 10, bytes.len() / 3, bytes.len() / 2, bytes.len() - bytes.len() / 4] {
            assert!(decode(&bytes[..cut], &Limits::default()).is_err(), "{name} cut to {cut} bytes");
        }
        let mut mixed = bytes.clone();
        for i in (20..mixed.len()).step_by(7) {
            mixed[i] ^= 0x5a;
        }
        // Whatever comes of it, it does not panic.
        let _ = decode(&mixed, &Limits::default());
    }
    let few = Limits { pixels: 100, ..Limits::default() };
    let error = decode(&read("wide.jpg"), &few).unwrap_err().to_string();
    assert!(error.contains("150 × 90") && error.contains("limit"), "{error}");
    let error = decode(b"plain text, no picture", &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("not a picture"), "{error}");
}

#[test]
fn a_model_that_is_not_one_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| match Clip::open(path) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    };
    assert!(error(&folder.path().join("none")).contains("no such folder"));
    assert!(error(folder.path()).contains("config.json"));
    std::fs::copy(fixtures().join("clip/config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), b"no weights").unwrap();
    assert!(error(folder.path()).contains("safetensors"));
    // Weights of another shape than the configuration says.
    std::fs::copy(fixtures().join("clip/model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let config = std::fs::read_to_string(fixtures().join("clip/config.json")).unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        config.replace("\"image_size\": 28", "\"image_size\": 56"),
    )
    .unwrap();
    let message = error(folder.path());
    assert!(message.contains("position_embedding") && message.contains("expected"), "{message}");
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(error(folder.path()).contains("JSON"));
}

#[test]
fn residual_networks_of_other_shapes_and_files_beside_them_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("open_clip-resnet");
    let copy = |name: &str| std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
    copy("open_clip_model.safetensors");
    copy("open_clip_config.json");
    let config = std::fs::read_to_string(from.join("open_clip_config.json")).unwrap();
    let plain: serde_json::Value = serde_json::from_str(&config).unwrap();
    let error = |at: &str, value: serde_json::Value| {
        let mut changed = plain.clone();
        changed["model_cfg"]["vision_cfg"][at] = value;
        std::fs::write(folder.path().join("open_clip_config.json"), changed.to_string()).unwrap();
        match Clip::open(folder.path()) {
            Ok(_) => panic!("{at}: opened"),
            Err(e) => e.to_string(),
        }
    };
    let deep = error("layers", serde_json::json!([2, 1, 2, 2]));
    assert!(deep.contains("visual.layer4.1") && deep.contains("no weight"), "{deep}");
    let wide = error("width", 8.into());
    assert!(wide.contains("conv1.weight") && wide.contains("expected shape"), "{wide}");
    let odd = error("image_size", 100.into());
    assert!(odd.contains("a multiple of 32"), "{odd}");
    let short = error("layers", serde_json::json!([2, 1]));
    assert!(short.contains("JSON"), "{short}");
    // timm keeps the image tower alone beside the whole model: the whole one is read.
    std::fs::write(folder.path().join("open_clip_config.json"), config).unwrap();
    let timm = serde_json::json!({ "architecture": "resnet50_clip", "pretrained_cfg": {} });
    std::fs::write(folder.path().join("config.json"), timm.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "the image tower of timm").unwrap();
    assert_eq!(Clip::open(folder.path()).unwrap().dim(), 12);
}
