//! `ultta export`: the adapted head as a plain linear layer.

use crate::support::{Folder, ultta};

#[test]
fn a_state_becomes_a_layer_in_three_formats() {
    let folder = Folder::new();
    folder.run(&["--save-state", "%/state.safetensors"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let export = |out: &str| ultta(&["export", "--head", &head, "--state", &state, "--out", out, "--json"]);
    for ending in ["safetensors", "npz", "onnx"] {
        let facts = export(&folder.arg(&format!("layer.{ending}"))).success().json();
        assert_eq!((&facts["classes"], &facts["dim"], &facts["seen"]), (&4.into(), &8.into(), &300.into()));
    }
    // Of the three only safetensors is read here: the weights are there, and every number is finite.
    let bytes = folder.bytes("layer.safetensors");
    let layer = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(layer.tensor("weights").unwrap().shape(), [4, 8]);
    let prior = layer.tensor("prior").unwrap();
    let prior = prior.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).sum::<f32>();
    assert!((prior - 1.0).abs() < 1e-4, "{prior}");

    export(&folder.arg("layer.pt")).failure(2, &[".onnx", "layer.pt"]);
    export(&head).failure(2, &["is an input"]);
    let other = ["export", "--head", &state, "--state", &state, "--out", &folder.arg("x.onnx")];
    ultta(&other).failure(2, &["prototypes"]);
}

#[test]
fn a_method_that_is_no_layer_is_refused() {
    let folder = Folder::new();
    folder.run(&["--method", "tda", "--save-state", "%/state.safetensors"]).success();
    let (head, state) = (folder.arg("head.safetensors"), folder.arg("state.safetensors"));
    let out = folder.arg("layer.onnx");
    ultta(&["export", "--head", &head, "--state", &state, "--out", &out]).failure(2, &["tda"]);
    assert!(!folder.path("layer.onnx").exists());
}
