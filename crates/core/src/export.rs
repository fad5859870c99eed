//! [`Layer`]: the adapted head as it answers now, for a device that can run a linear layer but cannot adapt.
//!
//! ```text
//! logits = W z + b                         label = argmax logits
//! adapted = softmax(τ · logits)            frozen = softmax(F z + f)
//! probabilities = (1 − floor) ((1 − w) adapted + w frozen) + floor / C
//! ```
//!
//! b holds the prior. Of W, b, F and f the mean over the classes is taken off: logits are the session's less their mean on
//! each row, so the same softmax from smaller numbers, which devices that count in f32 round less. A method that does not mix in the frozen model has w = floor = 0. Where the mixture would prefer
//! another class to the label, w is lowered on that row, as the session does (`frozen_share` there).

use std::collections::BTreeMap;
use std::path::Path;

use ultta_formats::npy::{NewArray, archive};
use ultta_formats::numbers::Number;
use ultta_formats::onnx::{Attribute, Element, Model, Size};
use ultta_formats::tensors::{self, NewTensor};
use ultta_formats::write_atomically;

use crate::scores::softmax_f64;
use crate::{Error, Head, Result, What};

/// Of the frozen share that would make another class as probable as the answer, this much is taken.
pub(crate) const TIE: f32 = 0.99;

/// Endings of the files that a layer can be saved to.
pub const LAYER_ENDINGS: [&str; 3] = ["safetensors", "npz", "onnx"];

/// The adapted head as plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Class names, in label order.
    pub classes: Vec<String>,
    /// Length of a feature row.
    pub dim: usize,
    /// W, class after class.
    pub weights: Vec<f32>,
    /// b, with the logarithm of the prior in it.
    pub bias: Vec<f32>,
    /// τ.
    pub temperature: f32,
    /// The class prior π, as it is in `bias`: log(C π_c).
    pub prior: Vec<f32>,
    /// F and f: the frozen model, with the labels that were given.
    pub frozen_weights: Vec<f32>,
    /// f.
    pub frozen_bias: Vec<f32>,
    /// w.
    pub frozen_share: f32,
    /// Share of the probabilities that is even over the classes.
    pub floor: f32,
}

impl Layer {
    /// The frozen head itself.
    pub(crate) fn frozen(head: &Head) -> Self {
        let classes = head.n_classes();
        let weights: Vec<f32> = head.prototypes().iter().map(|v| v * head.logit_scale()).collect();
        Self {
            classes: head.classes().to_vec(),
            dim: head.dim(),
            frozen_weights: weights.clone(),
            weights,
            bias: vec![0.0; classes],
            temperature: 1.0,
            prior: vec![1.0 / classes as f32; classes],
            frozen_bias: vec![0.0; classes],
            frozen_share: 0.0,
            floor: 0.0,
        }
    }

    /// With logits of mean 0 on every row.
    pub(crate) fn centred(mut self) -> Self {
        let (classes, dim) = (self.classes.len(), self.dim);
        for values in [&mut self.weights, &mut self.frozen_weights] {
            take_mean_off(values, classes, dim);
        }
        for values in [&mut self.bias, &mut self.frozen_bias] {
            take_mean_off(values, classes, 1);
        }
        self
    }

    /// The logits of a feature row; their mean is 0.
    pub fn logits(&self, z: &[f32]) -> Result<Vec<f32>> {
        if z.len() != self.dim {
            return Err(Error::Shape { what: What::Dimension, expected: self.dim, got: z.len() });
        }
        Ok(product(&self.weights, &self.bias, z))
    }

    /// The probabilities of all classes for a feature row.
    pub fn probabilities(&self, z: &[f32]) -> Result<Vec<f32>> {
        let adapted = softmax(&self.logits(z)?, self.temperature);
        let frozen = softmax(&product(&self.frozen_weights, &self.frozen_bias, z), 1.0);
        let label = (0..adapted.len()).fold(0, |best, c| if adapted[c] > adapted[best] { c } else { best });
        let rivals = frozen.iter().zip(&adapted).filter(|(f, _)| **f > frozen[label]);
        let share = rivals.fold(self.frozen_share, |share, (f, a)| {
            let (lead, pull) = (adapted[label] - a, f - frozen[label]);
            share.min(TIE * lead / (lead + pull))
        });
        let even = self.floor / adapted.len() as f32;
        let mixed = adapted.iter().zip(&frozen);
        Ok(mixed.map(|(a, f)| (1.0 - self.floor) * ((1.0 - share) * a + share * f) + even).collect())
    }

    /// Writes the layer; the ending of the name says how: `.safetensors`, `.npz` or `.onnx`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        if !LAYER_ENDINGS.contains(&ending.as_str()) {
            let reason = format!("expected a name that ends in .{}", LAYER_ENDINGS.join(", ."));
            return Err(Error::format(path, reason));
        }
        Ok(write_atomically(path, &self.to_bytes(&ending)?)?)
    }

    /// The bytes of a file, by its ending.
    pub fn to_bytes(&self, ending: &str) -> Result<Vec<u8>> {
        match ending {
            "safetensors" => Ok(self.to_safetensors()),
            "npz" => self.to_npz(),
            "onnx" => Ok(self.to_onnx()),
            _ => Err(Error::NoLayer { reason: format!("expected {}", LAYER_ENDINGS.join(", ")) }),
        }
    }

    /// Every array with its name and shape.
    fn arrays(&self) -> [(&'static str, Vec<usize>, Vec<f32>); 8] {
        let (c, d) = (self.classes.len(), self.dim);
        [
            ("weights", vec![c, d], self.weights.clone()),
            ("bias", vec![c], self.bias.clone()),
            ("temperature", vec![1], vec![self.temperature]),
            ("prior", vec![c], self.prior.clone()),
            ("frozen_weights", vec![c, d], self.frozen_weights.clone()),
            ("frozen_bias", vec![c], self.frozen_bias.clone()),
            ("frozen_share", vec![1], vec![self.frozen_share]),
            ("floor", vec![1], vec![self.floor]),
        ]
    }

    fn names(&self) -> String {
        serde_json::to_string(&self.classes).expect("strings are valid JSON")
    }

    fn to_safetensors(&self) -> Vec<u8> {
        let arrays = self.arrays().map(|(name, shape, values)| (name, shape, f32::encode(&values)));
        let list = arrays.iter().map(|(name, shape, bytes)| NewTensor {
            name,
            dtype: f32::DTYPE,
            shape: shape.clone(),
            bytes,
        });
        let strings = BTreeMap::from([
            ("format".to_string(), "ultta-layer-1".to_string()),
            ("classes".to_string(), self.names()),
        ]);
        tensors::to_bytes(list.collect(), &strings)
    }

    fn to_npz(&self) -> Result<Vec<u8>> {
        let arrays = self.arrays();
        let mut list: Vec<(&str, NewArray<'_>)> =
            arrays.iter().map(|(name, shape, values)| (*name, NewArray::Floats(shape, values))).collect();
        list.push(("classes", NewArray::Names(&self.classes)));
        archive(&list).map_err(|problem| problem.at("layer.npz").into())
    }

    /// A model with the input `features` [rows, dim] and the outputs `label` [rows], `logits` and `probabilities`
    /// [rows, classes].
    fn to_onnx(&self) -> Vec<u8> {
        let (c, d, any) = (self.classes.len(), self.dim, Size::Any("rows"));
        let along = [Attribute::Int("axis", 1)];
        let each = [Attribute::Ints("axes", &[1]), Attribute::Int("keepdims", 1)];
        let dense = [Attribute::Int("transB", 1)];
        let mut m = Model::default();
        m.input("features", &[any, Size::Fixed(d)]);
        m.tensor("weights", &[c, d], &self.weights);
        m.tensor("bias", &[c], &self.bias);
        m.tensor("temperature", &[1], &[self.temperature]);
        m.operator("Gemm", &["features", "weights", "bias"], "logits", &dense);
        m.operator("ArgMax", &["logits"], "label", &[along[0], Attribute::Int("keepdims", 0)]);
        m.operator("Mul", &["logits", "temperature"], "scaled", &[]);
        if self.frozen_share == 0.0 && self.floor == 0.0 {
            m.operator("Softmax", &["scaled"], "probabilities", &along);
        } else {
            m.operator("Softmax", &["scaled"], "adapted", &along);
            m.tensor("frozen_weights", &[c, d], &self.frozen_weights);
            m.tensor("frozen_bias", &[c], &self.frozen_bias);
            m.tensor("share", &[1], &[self.frozen_share]);
            m.tensor("tie", &[1], &[TIE]);
            m.tensor("zero", &[1], &[0.0]);
            m.tensor("kept", &[1], &[1.0 - self.floor]);
            m.tensor("even", &[1], &[self.floor / c as f32]);
            m.operator("Gemm", &["features", "frozen_weights", "frozen_bias"], "frozen_logits", &dense);
            m.operator("Softmax", &["frozen_logits"], "frozen", &along);
            // w of a row: the setting, or less where a rival of the label would overtake it.
            m.operator("ArgMax", &["logits"], "place", &[along[0], Attribute::Int("keepdims", 1)]);
            m.operator("GatherElements", &["frozen", "place"], "own", &along);
            m.operator("ReduceMax", &["adapted"], "best", &each);
            m.operator("Sub", &["best", "adapted"], "lead", &[]);
            m.operator("Sub", &["frozen", "own"], "pull", &[]);
            m.operator("Greater", &["pull", "zero"], "rival", &[]);
            m.operator("Add", &["lead", "pull"], "gap", &[]);
            m.operator("Div", &["lead", "gap"], "overtaken", &[]);
            m.operator("Mul", &["overtaken", "tie"], "bound", &[]);
            m.operator("Where", &["rival", "bound", "share"], "bounds", &[]);
            m.operator("ReduceMin", &["bounds"], "least", &each);
            m.operator("Min", &["least", "share"], "row_share", &[]);
            m.operator("Sub", &["frozen", "adapted"], "difference", &[]);
            m.operator("Mul", &["difference", "row_share"], "shift", &[]);
            m.operator("Add", &["adapted", "shift"], "mixed", &[]);
            m.operator("Mul", &["mixed", "kept"], "shrunk", &[]);
            m.operator("Add", &["shrunk", "even"], "probabilities", &[]);
        }
        m.output("label", Element::Int64, &[any]);
        m.output("logits", Element::Float, &[any, Size::Fixed(c)]);
        m.output("probabilities", Element::Float, &[any, Size::Fixed(c)]);
        m.string("classes", &self.names());
        m.to_bytes("adapted head", concat!("ultta ", env!("CARGO_PKG_VERSION")))
    }
}

/// Takes the mean row off all rows.
fn take_mean_off(values: &mut [f32], rows: usize, columns: usize) {
    for column in 0..columns {
        let mean = values.iter().skip(column).step_by(columns).map(|&v| v as f64).sum::<f64>() / rows as f64;
        values.iter_mut().skip(column).step_by(columns).for_each(|v| *v = (*v as f64 - mean) as f32);
    }
}

/// W z + b, summed in f64.
fn product(weights: &[f32], bias: &[f32], z: &[f32]) -> Vec<f32> {
    let rows = weights.chunks_exact(z.len());
    rows.zip(bias).map(|(row, &b)| (crate::kernels::dot_f64(row, z) + b as f64) as f32).collect()
}

/// softmax(τ · logits), summed in f64.
fn softmax(logits: &[f32], temperature: f32) -> Vec<f32> {
    let mut probs: Vec<f64> = logits.iter().map(|&l| (l * temperature) as f64).collect();
    softmax_f64(&mut probs);
    probs.into_iter().map(|p| p as f32).collect()
}
