//! Real feature packs beside the workspace, in `../shared/data`; without them these tests are ignored.

use crate::support::{root, ultta};

#[test]
#[cfg_attr(not(shared_data), ignore = "needs ../shared/data")]
fn zero_shot_on_real_packs_is_as_published() {
    let data = root().join("../shared/data");
    // Top-1 of the frozen model, in percent, as the packs' own description gives it.
    for (pack, encoder, top1) in [
        ("pets24", "clip-vit-b32", 93.0),
        ("caltech62", "clip-vit-b32", 95.2),
        ("pacs-cartoon", "effnet-lite0-to-clip-b32", 42.5),
    ] {
        let folder = data.join(pack).join(encoder);
        let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
        let (features, head) = (file("features.safetensors"), file("head.safetensors"));
        let run = ["run", "--features", &features, "--head", &head, "--json", "--shuffle", "0"];
        let summary = ultta(&run).success().json();
        let got = 100.0 * summary["zero_shot"]["top1"].as_f64().unwrap();
        assert!((got - top1).abs() < 0.06, "{pack}: {got}");
        ultta(&["inspect", &features, "--head", &head]).success();
    }
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs ../shared/data")]
fn the_doctor_tells_which_head_belongs_to_which_features() {
    let data = root().join("../shared/data");
    let doctor = |features: &str, head: &str| {
        let file = |pack: &str, name: &str| {
            let folder = std::fs::read_dir(data.join(pack)).unwrap().next().unwrap().unwrap().path();
            folder.join(name).to_str().unwrap().to_string()
        };
        let (features, head) = (file(features, "features.safetensors"), file(head, "head.safetensors"));
        ultta(&["doctor", "--features", &features, "--head", &head])
    };
    let packs = ["caltech62", "cifar10", "pacs-cartoon", "pets24"];
    for pack in packs {
        let told = doctor(pack, pack).success();
        assert!(told.stdout.contains("zero-shot top-1") && !told.stdout.contains("WRONG"), "{}", told.stdout);
    }
    // Heads of other classes: no talk of labels that are moved, nor of an accuracy that is fine.
    for (features, head) in [("pets24", "caltech62"), ("cifar10", "pets24"), ("pets24", "cifar10")] {
        let told = doctor(features, head);
        let text = &told.stdout;
        assert!(
            told.code == 2 && text.contains("these do not belong together"),
            "{features}, {head}: {text}"
        );
        assert!(
            !text.contains("moved by") && !text.contains("ok    zero-shot top-1"),
            "{features}, {head}: {text}"
        );
    }
    // The rows that are looked at are spread over the file, whose classes come one after another.
    let told = doctor("pets24", "caltech62").stdout;
    assert!(told.contains("the labels name 24 classes, the head has 62"), "{told}");
    // Looking at a part of the rows is said.
    let told = doctor("imagenet6k", "imagenet6k").success().stdout;
    assert!(told.contains("cosines and answers are those of 2000 rows, spread over 6000"), "{told}");
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs ../shared/data")]
fn the_collapse_guard_speaks_up() {
    let folder = root().join("../shared/data/imagenet6k/clip-vit-b32");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (features, head) = (file("features.safetensors"), file("head.safetensors"));
    // The published algorithm without its own guards collapses here.
    let unguarded = ["--preset", "paper", "--set", "prototypes.rho=inf", "--set", "prior.kappa=inf"];
    let run = ["run", "--features", &features, "--head", &head, "--shuffle", "0", "--json"];
    let outcome = ultta(&[&run[..], &unguarded].concat()).success();
    assert!(outcome.stderr.contains("warning: the collapse guard fired"), "{outcome:?}");
    assert!(outcome.json()["health"]["guard_fired"].as_u64().unwrap() > 0);
}
