//! Real feature packs and cameras beside the workspace, in `../shared`; without them these tests are ignored.

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

/// One stream of shots, one after garbage, and rows that all lie close together: what is promised of each, and what the
/// record tells. `docs/harm.md` has the same of every pack.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs ../shared/data")]
fn shots_garbage_and_narrow_streams_keep_the_promise() {
    let out = tempfile::tempdir().unwrap();
    let eval = |pack: &str, protocols: &str| {
        let folder = root().join("../shared").join(pack);
        let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
        let (features, head, out) =
            (file("features.safetensors"), file("head.safetensors"), out.path().to_str().unwrap());
        let flags = ["--methods", "ul-tta", "--protocols", protocols, "--out", out, "--json"];
        ultta(&[&["eval", "--features", &features, "--head", &head], &flags[..]].concat()).success().json()
    };
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let gain =
        |run: &serde_json::Value, key: &str| 100.0 * (number(&run[key]) - number(&run["zero_shot"][key]));

    let runs = eval("data/pets24/clip-vit-b32", "iid+shots:30,iid+garbage:2500:noise,runs")["runs"].clone();
    let (shots, garbage, sorted) = (&runs[0], &runs[1], &runs[2]);
    assert!(gain(shots, "top1") >= -0.5 && gain(shots, "ece") <= 1.5, "{shots}");
    let switches = |who: &str| number(&shots["shots"]["switches"][who]);
    assert!(switches("adapted") <= 0.5 * switches("zero_shot"), "{shots}");
    let share = |run: &serde_json::Value| number(&run["record"]["scenes"]) / number(&run["record"]["rows"]);
    assert!(share(shots) < 0.1, "thirty copies are hardly more than a scene: {}", share(shots));

    assert!(number(&garbage["after_garbage"]["worst_gain"]) >= -0.02, "{garbage}");
    assert!(garbage["record"]["restarts"].as_u64() > Some(0), "what happened is told: {}", garbage["record"]);
    // Pictures of one class, one after another, are pictures; and so are rows whose logits are all there is of them.
    assert!(share(sorted) > 0.9, "{}", sorted["record"]);
    let narrow = &eval("wide/eurosat10-logitspace/clip-vit-b16", "iid")["runs"][0];
    // Of rows that are cosines with ten texts one in eight looks like the one before.
    assert!(share(narrow) > 0.85 && gain(narrow, "top1") > 4.0, "{narrow}");
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs ../shared/data")]
fn a_camera_is_answered_steadily_and_no_surer() {
    let streams = root().join("../shared/streams");
    let file = |name: &str| streams.join(name).to_str().unwrap().to_string();
    let (features, head) = (file("cctv-arson005.safetensors"), file("head-voc20.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let answers = folder.path().join("answers.jsonl");
    let out = answers.to_str().unwrap();
    ultta(&["run", "--features", &features, "--head", &head, "--out", out]).success();
    let text = std::fs::read_to_string(&answers).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 1174);
    let of =
        |row: &serde_json::Value, frozen: bool| if frozen { row["zero_shot"].clone() } else { row.clone() };
    let [(switches, sure), (flickers, frozen_sure)] = [false, true].map(|frozen| {
        let labels: Vec<_> = rows.iter().map(|row| of(row, frozen)["label"].clone()).collect();
        let sure = rows.iter().map(|row| of(row, frozen)["prob"].as_f64().unwrap()).sum::<f64>() / 1174.0;
        (labels.windows(2).filter(|pair| pair[0] != pair[1]).count(), sure)
    });
    assert!(flickers > 100 && 2 * switches <= flickers, "{switches} switches, {flickers} of zero-shot");
    assert!((sure - frozen_sure).abs() <= 0.1, "confidence {sure:.2}, of zero-shot {frozen_sure:.2}");
}
