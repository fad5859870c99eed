//! The metrics against torchmetrics, netcal and scikit-learn, to 1e-6. The cases were made by
//! `fixtures/metrics.py`; `live_metrics.sh` compares fresh random ones with the libraries themselves.

use std::collections::BTreeMap;

use serde::Deserialize;
use ultta_eval::metrics::{Detection, Gather};

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
    detections: Vec<DetectionCase>,
}

#[derive(Deserialize)]
struct Case {
    classes: usize,
    probs: Vec<f32>,
    labels: Vec<usize>,
    expected: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct DetectionCase {
    known: Vec<f32>,
    strangers: Vec<f32>,
    expected: Detection,
}

/// The cases to check: the committed ones, or those of the file that `ULTTA_METRIC_CASES` names.
fn cases() -> Cases {
    let path = std::env::var("ULTTA_METRIC_CASES")
        .unwrap_or_else(|_| format!("{}/tests/fixtures/metrics.json", env!("CARGO_MANIFEST_DIR")));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn close(what: &str, got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{what}: {got}, expected {want}");
}

#[test]
fn quality_agrees_with_the_libraries() {
    for (i, case) in cases().cases.into_iter().enumerate() {
        let mut gather = Gather::new(case.classes);
        for (probs, &label) in case.probs.chunks(case.classes).zip(&case.labels) {
            let first_best = |best: usize, c: usize| if probs[c] > probs[best] { c } else { best };
            let answer = (0..case.classes).fold(0, first_best);
            gather.push(probs, answer, label, None);
        }
        let quality = serde_json::to_value(gather.quality()).unwrap();
        for (name, want) in case.expected {
            let field = name.split("_torchmetrics").next().unwrap().split("_sklearn").next().unwrap();
            close(&format!("case {i}, {name}"), quality[field].as_f64().unwrap(), want);
        }
    }
}

#[test]
fn detection_agrees_with_scikit_learn() {
    for (i, case) in cases().detections.into_iter().enumerate() {
        let got = Detection::of(&case.known, &case.strangers).unwrap();
        close(&format!("case {i}, auroc"), got.auroc, case.expected.auroc);
        close(&format!("case {i}, aupr"), got.aupr, case.expected.aupr);
        close(&format!("case {i}, fpr95"), got.fpr95, case.expected.fpr95);
    }
}
