//! Heads, models and `ultta doctor`.

use std::process::Command;

use ultta::Head;

use super::{Place, draw, tree, write_model};

#[test]
fn heads_are_built_cached_and_mixed_with_exemplars() {
    let place = Place::new();
    let build = |extra: &[&str], out: &str| {
        place.run(&[&["head", "--out", out], extra].concat()).success();
        Head::load(place.path(out)).unwrap()
    };
    let head = build(&["--labels", "cat,dog,red fox"], "a.safetensors");
    assert_eq!((head.n_classes(), head.dim()), (3, 8));
    assert!((head.logit_scale() - 100.0).abs() < 0.01);
    assert_eq!(std::fs::read_dir(place.path("cache/ultta/heads")).unwrap().count(), 1);
    assert_eq!(head.digest(), build(&["--labels", "cat,dog,red fox"], "b.safetensors").digest());
    let many = build(&["--labels", "cat,dog,red fox", "--templates", "imagenet-80"], "c.safetensors");
    assert_ne!(head.digest(), many.digest());
    std::fs::write(place.path("d.json"), r#"{"cat": ["whiskers"], "dog": ["a {} that barks"]}"#).unwrap();
    assert_eq!(build(&["--labels-file", "d.json"], "d.safetensors").classes(), ["cat", "dog"]);
    for class in ["cat", "Dog", "red_fox"] {
        draw(&place.path(&format!("ex/{class}/0.png")), class.len());
    }
    let mixed = build(&["--labels", "cat,dog,red fox", "--exemplars", "ex:0.5"], "e.safetensors");
    assert_ne!(head.digest(), mixed.digest());
    // Prompts and exemplars kept apart: seven texts and a picture for each class, and the mean beside them.
    let apart = ["--labels", "cat,dog,red fox", "--templates", "imagenet-7", "--anchors-apart", "1"];
    let texts = build(&apart, "g.safetensors");
    assert_eq!((texts.anchors_apart(), texts.sharpness()), (Some(21), Some(1.0)));
    let folded = build(&apart[..4], "h.safetensors");
    assert_eq!((folded.anchors_apart(), folded.prototypes()), (None, texts.prototypes()));
    let both = build(&[&apart[..], &["--exemplars", "ex"]].concat(), "i.safetensors");
    assert_eq!(both.anchors_apart(), Some(24));
    // Head files: no model is needed.
    let files = ["--from", "h.safetensors", "--anchors", "d.safetensors:0.5"];
    let mean = build(&files, "j.safetensors");
    let two = build(&[&files[..], &["--anchors-apart", "2"]].concat(), "k.safetensors");
    assert_eq!((mean.anchors_apart(), two.anchors_apart(), two.sharpness()), (None, Some(5), Some(2.0)));
    assert_eq!(mean.prototypes(), two.prototypes());
    assert_eq!(place.run(&["head", "--from", "h.safetensors", "--out", "l.safetensors"]).code, 2);
    let wrong = [&files[..], &["--anchors-apart", "0", "--out", "l.safetensors"]].concat();
    assert!(place.run(&[&["head"], &wrong[..]].concat()).stderr.contains("sharpness"));
    draw(&place.path("ex/bird/0.png"), 1);
    let wrong =
        place.run(&["head", "--labels", "cat,dog,red fox", "--exemplars", "ex", "--out", "f.safetensors"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("bird"));
    assert_eq!(place.run(&["head", "--labels", "cat", "--out", "f.safetensors"]).code, 2);
    // A head file serves in place of names.
    draw(&place.path("p/0.png"), 0);
    place.run(&["classify", "p", "--head", "a.safetensors", "-q"]).success();
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let place = Place::new();
    tree(&place.path("photos"), 40);
    let out = place.run(&["doctor", "photos"]);
    assert!(out.code == 2 && out.stdout.contains("pictures can be read") && out.stdout.contains("empty"));
    let model = place.run(&["doctor", "--check-model"]).success();
    assert!(model.stdout.contains("parity vector") && model.stdout.contains("colours"), "{}", model.stdout);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    let tiny = command.args(["doctor", "--check-model", "--model", "tiny"]).output().unwrap();
    let tiny = String::from_utf8(tiny.stdout).unwrap();
    assert!(tiny.contains("ships with the program") && !tiny.contains("colours recognised"), "{tiny}");
    place.run(&["encode", "photos", "--out", "f.safetensors", "-q"]).success();
    place.run(&["head", "--labels", "dog,cat,red fox", "--out", "h.safetensors", "-q"]).success();
    let both = place.run(&["doctor", "--features", "f.safetensors", "--head", "h.safetensors"]);
    assert!(both.stdout.contains("rows are unit vectors"), "{}", both.stdout);
    assert!(both.stdout.contains("class 0 is \"cat\" in the features file and \"dog\" in the head"));
    // With pictures and a head the model's cosines are measured.
    assert!(!model.stdout.contains("the best class has a cosine"), "{}", model.stdout);
    let measured = place.run(&["doctor", "--check-model", "--head", "h.safetensors", "photos"]).stdout;
    let of_model = measured.split("\nhead ").next().unwrap();
    assert!(of_model.contains("the best class has a cosine of"), "{measured}");
    std::fs::create_dir(place.path("broken")).unwrap();
    std::fs::write(place.path("broken/a.png"), "no picture").unwrap();
    place
        .run(&["doctor", "--check-model", "--head", "h.safetensors", "broken"])
        .refused(&["none of 1 pictures could be read"]);
    // A head of another model.
    let other = place.path("other");
    std::fs::create_dir(&other).unwrap();
    write_model(&other, 77);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    let made = command
        .args(["head", "--labels", "cat,dog,red fox", "--model", &place.text("other"), "-q", "--no-cache"])
        .args(["--out", &place.text("o.safetensors")])
        .status();
    assert!(made.unwrap().success());
    let out = place.run(&["doctor", "--features", "f.safetensors", "--head", "o.safetensors"]);
    assert!(out.code == 2 && out.stdout.contains("encode both with the same model"), "{}", out.stdout);
    // Rows that are no unit vectors are counted from 0.
    let mut bytes = std::fs::read(place.path("f.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let row = 3 * 8 * 4;
    for value in bytes[start + row..start + row + 32].as_chunks_mut::<4>().0 {
        *value = (3.0 * f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(place.path("long.safetensors"), &bytes).unwrap();
    let out = place.run(&["doctor", "--features", "long.safetensors"]);
    assert!(
        out.stdout.contains("norms between 1.000 and 3.000") && out.stdout.contains("row 3"),
        "{}",
        out.stdout
    );
    bytes[start + row..start + row + 32].fill(0);
    std::fs::write(place.path("zero.safetensors"), &bytes).unwrap();
    let out = place.run(&["doctor", "--features", "zero.safetensors"]);
    assert!(out.stdout.contains("row 3 is all zeros"), "{}", out.stdout);
    bytes[start + row..start + row + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(place.path("nan.safetensors"), &bytes).unwrap();
    let out = place.run(&["doctor", "--features", "nan.safetensors"]);
    assert!(out.code == 2 && out.stdout.contains("row 3 holds values that are not finite"), "{}", out.stdout);
    place.run(&["doctor"]).refused(&["what shall be checked? give --check-model, --head, --features"]);
    // A features file in the place of pictures is told where it goes.
    place.run(&["doctor", "zero.safetensors"]).refused(&[
        "zero.safetensors is no picture",
        "--features",
        "--head",
    ]);
    place
        .run(&["classify", "photos"])
        .refused(&["which classes?", "--labels-folder DIR (a folder per class)"]);
    place
        .run(&["serve", "--head", "none.safetensors", "--data-dir", "d"])
        .refused(&["error: no such file or folder: none.safetensors\n"]);
}

#[test]
fn models_are_listed_and_a_missing_one_says_what_to_do() {
    let place = Place::new();
    let out = place.run(&["models"]).success();
    assert!(out.stdout.contains("openai/clip-vit-base-patch16") && out.stdout.contains("(default)"));
    assert!(out.stdout.contains("timm/resnet50_clip.openai") && out.stdout.contains("convert_model.py"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    let output = command.args(["doctor", "--check-model", "--model", "RemoteCLIP-B-32"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("docs/convert_model.py FILE --as NAME"), "{text}");
    draw(&place.path("p/0.png"), 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultta"));
    command.args(["classify", &place.text("p"), "--labels", "a,b"]);
    command.env("HF_HOME", place.path("hf")).env("HF_HUB_OFFLINE", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    for word in [
        "HF_HUB_OFFLINE",
        "model.safetensors",
        "config.json",
        "--model",
        "models--openai--clip-vit-base-patch16",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
