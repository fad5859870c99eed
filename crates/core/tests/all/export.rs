//! The adapted head as a plain linear layer answers as the session does.

use ultta::{Error, Features, Head, Layer, Session, Temperature};

use crate::common::{World, config, quick};

/// Rows that are no near-copies of the scene at hand, and a session that has learnt all its levers.
fn learnt(world: &World, settings: &[(&str, &str)]) -> Session {
    let settings = [&[("scenes", "false")], settings].concat();
    let mut session = world.session(&quick("ul-tta", &settings));
    let labels: Vec<usize> = (0..900).map(|i| [0, 1, 2, 3][i / 10 % 4]).collect();
    session.step(&world.images(&labels, &mut crate::common::Rng(5))).unwrap();
    session
}

fn compare(session: &Session, layer: &Layer, rows: &Features<'_>) -> (f32, f32, usize) {
    let step = session.predict(rows).unwrap();
    let (mut furthest, mut logits_apart, mut same) = (0.0f32, 0.0f32, 0);
    for (i, row) in step.rows.iter().enumerate() {
        let z = rows.row(i);
        let (logits, own) = (layer.logits(z).unwrap(), step.prediction.scores.row(i));
        // Logits are equal but for a constant.
        let gap = own[row.label] - logits[row.label];
        let apart = own.iter().zip(&logits).map(|(a, b)| (a - b - gap).abs()).fold(0.0, f32::max);
        logits_apart = logits_apart.max(apart);
        let probs = layer.probabilities(z).unwrap();
        let best = (0..probs.len()).fold(0, |best, c| if probs[c] > probs[best] { c } else { best });
        same += usize::from(best == row.label);
        let emitted = step.probs(i, Temperature::Cal);
        furthest = emitted.iter().zip(&probs).map(|(a, b)| (a - b).abs()).fold(furthest, f32::max);
    }
    (furthest, logits_apart, same)
}

#[test]
fn the_layer_answers_as_the_session_where_all_classes_are_candidates() {
    let world = World::small();
    for settings in [&[][..], &[("calibration.rule", "off")], &[("prototypes.frozen", "true")]] {
        let session = if settings.is_empty() {
            let session = learnt(&world, settings);
            assert!(session.health().evidence_weight > 0.0 && session.health().prior_kl > 0.01);
            session
        } else {
            let mut session = world.session(&quick("ul-tta", &[&[("scenes", "false")], settings].concat()));
            session.step(&world.rows(500, 3)).unwrap();
            session
        };
        let layer = session.layer().unwrap();
        let rows = world.rows(200, 8);
        let (furthest, logits_apart, same) = compare(&session, &layer, &rows);
        assert!(furthest < 1e-5 && logits_apart < 1e-4, "{settings:?}: {furthest} {logits_apart}");
        assert_eq!(same, 200, "{settings:?}");
        assert!((layer.prior.iter().sum::<f32>() - 1.0).abs() < 1e-4);
    }
}

#[test]
fn with_few_candidates_the_label_is_nearly_always_the_same() {
    let world = World::small();
    let session = learnt(&world, &[("advanced.candidates", "4"), ("advanced.candidate_range", "6")]);
    let (_, _, same) = compare(&session, &session.layer().unwrap(), &world.rows(1000, 8));
    assert!(same >= 999, "{same}");
}

#[test]
fn files_hold_the_layer_and_other_endings_are_refused() {
    let world = World::small();
    let layer = learnt(&world, &[]).layer().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for ending in ultta::LAYER_ENDINGS {
        let path = folder.path().join(format!("layer.{ending}"));
        layer.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // Whatever the format, the numbers are in it as they are.
        let weights: Vec<u8> = layer.weights.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(bytes.windows(weights.len()).any(|w| w == weights), "{ending}");
    }
    let refused = layer.save(folder.path().join("layer.pt")).unwrap_err().to_string();
    assert!(refused.contains(".safetensors, .npz, .onnx"), "{refused}");
    assert!(matches!(layer.logits(&[1.0]), Err(Error::Shape { .. })));
}

#[test]
fn what_is_no_linear_layer_is_refused() {
    let world = World::small();
    let refused = |session: &Session| session.layer().unwrap_err().to_string();
    assert!(refused(&world.session(&config("tda", &[]))).contains("tda"));
    let anchor = world.head.prototype(1).to_vec();
    let anchor = ultta::Anchor { class: 0, vector: &anchor, weight: 1.0 };
    let head: Head = world.head.with_anchors_apart(1.0, &[anchor], 1.0).unwrap();
    assert!(refused(&Session::new(head, &config("ul-tta", &[])).unwrap()).contains("anchors"));
}

#[test]
fn every_method_with_a_layer_answers_as_it_does_and_is_named_in_the_guide() {
    let world = World::small();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let section = guide.split("## Take it along").nth(1).unwrap();
    let mut linear = 0;
    for method in ultta::names() {
        let settings: &[(&str, &str)] = if method == "ul-tta" { &[("scenes", "false")] } else { &[] };
        let mut session = world.session(&config(&method, settings));
        if session.config().method.card().needs_views {
            continue;
        }
        session.step(&world.rows(60, 2)).unwrap();
        match session.layer() {
            Ok(layer) => {
                let (furthest, ..) = compare(&session, &layer, &world.rows(50, 4));
                assert!(furthest < 1e-5, "{method}: {furthest}");
                let told = if method == "ul-tta" { "the default".into() } else { format!("`{method}`") };
                assert!(section.contains(&told), "{method} has a layer: docs/operating.md does not say so");
                linear += 1;
            }
            Err(error) => assert!(error.to_string().contains(&method), "{method}: {error}"),
        }
    }
    assert!(linear > 1, "{linear}");
}
