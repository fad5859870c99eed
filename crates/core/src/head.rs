//! [`Head`]: one unit anchor per class, class names and the model's logit scale; it gives the zero-shot scores.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};
use ultta_formats::numbers::{self, Number};
use ultta_formats::tensors::{self, NewTensor};
use ultta_formats::{Tensors, map_file, write_atomically};

use crate::features::unit_rows;
use crate::mixture::{Mixture, check_sharpness};
use crate::{Error, Features, Result, Scores, What, kernels};

/// In a long list a few names may occur twice (ImageNet has two cranes, the bird and the machine): up to this
/// share of the classes. In a short one it is a mistake.
pub const MAX_HOMONYM_SHARE: f64 = 0.01;

/// Logit scales that a head may have. CLIP's is 100, SigLIP's about 117; far outside of this range probabilities are
/// uniform or certain, and what a method learns from them overflows.
pub const LOGIT_SCALES: RangeInclusive<f32> = 1e-6..=1e6;

/// The frozen zero-shot classifier: class anchors, names, and the scale of its logits.
///
/// ```
/// use ultta::{Features, Head};
/// let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["cat", "dog"], 100.0)?;
/// let scores = head.zero_shot(&Features::new(vec![0.6, 0.8], 2)?)?;
/// assert!((scores.row(0)[0] - 60.0).abs() < 1e-4 && (scores.row(0)[1] - 80.0).abs() < 1e-4);
/// # Ok::<(), ultta::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Head {
    prototypes: Vec<f32>,
    classes: Vec<String>,
    dim: usize,
    logit_scale: f32,
    metadata: BTreeMap<String, String>,
    /// Several anchors per class, where they are kept apart.
    mixture: Option<Arc<Mixture>>,
    /// Computed when it is first asked for.
    digest: OnceLock<String>,
}

/// One of several anchors that fold into a class: a prompt's text vector, an exemplar image.
#[derive(Clone, Debug)]
pub struct Anchor<'a> {
    /// Index of the class.
    pub class: usize,
    /// A vector of any length but zero; only its direction counts.
    pub vector: &'a [f32],
    /// Its weight among the anchors of its class.
    pub weight: f32,
}

impl Head {
    /// A head from one unit anchor per class (`docs/formats.md` says what the logit scale is).
    pub fn new<S: Into<String>>(
        prototypes: Vec<f32>,
        dim: usize,
        classes: impl IntoIterator<Item = S>,
        logit_scale: f32,
    ) -> Result<Self> {
        let classes: Vec<String> = classes.into_iter().map(Into::into).collect();
        let invalid = |reason: String| Err(Error::Classes { reason });
        match classes.len() {
            0 => return invalid("no classes; expected at least 2".into()),
            1 => {
                return invalid(format!(
                    "one class ({:?}) leaves nothing to decide; expected at least 2",
                    classes[0]
                ));
            }
            _ => {}
        }
        if let Some(i) = classes.iter().position(|class| class.trim().is_empty()) {
            return invalid(format!("class {i} has an empty name"));
        }
        let repeated = homonyms(&classes);
        if repeated.len() as f64 > MAX_HOMONYM_SHARE * classes.len() as f64 {
            let (first, again) = repeated[0];
            return invalid(format!(
                "class name {:?} occurs twice (classes {first} and {again})",
                classes[first]
            ));
        }
        if let Some(reason) = wrong_scale(logit_scale) {
            return invalid(format!("logit scale: {reason}"));
        }
        if dim == 0 || prototypes.len() != classes.len() * dim {
            let expected = classes.len() * dim.max(1);
            return Err(Error::Shape {
                what: What::Other("values in the prototypes (classes × dim)"),
                expected,
                got: prototypes.len(),
            });
        }
        let prototypes =
            unit_rows(What::Other("prototypes"), Cow::Owned(prototypes), dim, false)?.into_owned();
        Ok(Self {
            prototypes,
            classes,
            dim,
            logit_scale,
            metadata: BTreeMap::new(),
            mixture: None,
            digest: OnceLock::new(),
        })
    }

    /// A head whose classes have several anchors each (prompt ensembles, exemplar images): the weighted mean of
    /// their unit vectors, normalised.
    pub fn from_anchors<S: Into<String>>(
        anchors: &[Anchor<'_>],
        dim: usize,
        classes: impl IntoIterator<Item = S>,
        logit_scale: f32,
    ) -> Result<Self> {
        let classes: Vec<String> = classes.into_iter().map(Into::into).collect();
        let prototypes = fold_anchors(anchors, dim, &classes)?;
        Self::new(prototypes, dim, classes, logit_scale)
    }

    /// As [`from_anchors`](Self::from_anchors), with the anchors kept apart: a class scores the soft maximum over its
    /// anchors. A sharpness towards 0 is the mean of their scores, a large one their maximum; 1 adds up probabilities.
    pub fn from_anchors_apart<S: Into<String>>(
        anchors: &[Anchor<'_>],
        dim: usize,
        classes: impl IntoIterator<Item = S>,
        logit_scale: f32,
        sharpness: f32,
    ) -> Result<Self> {
        let mut head = Self::from_anchors(anchors, dim, classes, logit_scale)?;
        head.mixture = Some(Arc::new(Mixture::new(anchors, dim, head.n_classes(), sharpness)?));
        Ok(head)
    }

    /// As [`with_anchors`](Self::with_anchors), with the present prototypes and the anchors kept apart; where the present
    /// anchors of a class are apart already, they stay so, and count `own` together.
    pub fn with_anchors_apart(&self, own: f32, anchors: &[Anchor<'_>], sharpness: f32) -> Result<Self> {
        let mut head = self.with_anchors(own, anchors)?;
        let mut all: Vec<Anchor<'_>> = match &self.mixture {
            Some(mixture) => mixture.all(self.dim, own).collect(),
            None => (0..self.n_classes())
                .map(|class| Anchor { class, vector: self.prototype(class), weight: own })
                .collect(),
        };
        all.extend_from_slice(anchors);
        head.mixture = Some(Arc::new(Mixture::new(&all, self.dim, self.n_classes(), sharpness)?));
        Ok(head)
    }

    /// How many anchors are kept apart; `None` where each class has one.
    pub fn anchors_apart(&self) -> Option<usize> {
        self.mixture.as_ref().map(|mixture| mixture.weights.len())
    }

    /// The sharpness of the soft maximum over anchors that are kept apart; `None` where each class has one.
    pub fn sharpness(&self) -> Option<f32> {
        self.mixture.as_ref().map(|mixture| mixture.sharpness)
    }

    /// This head with further anchors mixed in; the present prototypes count with weight `own`.
    pub fn with_anchors(&self, own: f32, anchors: &[Anchor<'_>]) -> Result<Self> {
        let mut all: Vec<Anchor<'_>> = (0..self.n_classes())
            .map(|class| Anchor { class, vector: self.prototype(class), weight: own })
            .collect();
        all.extend_from_slice(anchors);
        let mut head = self.clone();
        head.prototypes = fold_anchors(&all, self.dim, &self.classes)?;
        head.mixture = None;
        head.digest = OnceLock::new();
        Ok(head)
    }

    /// The same head with another logit scale.
    pub fn with_logit_scale(mut self, logit_scale: f32) -> Result<Self> {
        if let Some(reason) = wrong_scale(logit_scale) {
            return Err(Error::config("logit_scale", reason));
        }
        self.logit_scale = logit_scale;
        self.digest = OnceLock::new();
        Ok(self)
    }

    /// Number of classes.
    pub fn n_classes(&self) -> usize {
        self.classes.len()
    }

    /// Length of a prototype.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Class names, in label order.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Classes whose name occurred before: the first class of that name and the later one.
    pub fn homonyms(&self) -> Vec<(usize, usize)> {
        homonyms(&self.classes)
    }

    /// The model's own logit scale (CLIP: about 100).
    pub fn logit_scale(&self) -> f32 {
        self.logit_scale
    }

    /// All prototypes, one after another.
    pub fn prototypes(&self) -> &[f32] {
        &self.prototypes
    }

    /// One class's prototype.
    pub fn prototype(&self, class: usize) -> &[f32] {
        &self.prototypes[class * self.dim..][..self.dim]
    }

    /// Free-form provenance: `encoder`, `source` and the like. It does not enter the digest.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Adds provenance.
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// The frozen model's scores, `logit_scale · ⟨z, μ_c⟩`, or the soft maximum over anchors that are kept apart.
    pub fn zero_shot(&self, features: &Features<'_>) -> Result<Scores> {
        if features.dim() != self.dim {
            return Err(Error::Shape { what: What::Dimension, expected: self.dim, got: features.dim() });
        }
        Ok(self.scores(features))
    }

    /// [`zero_shot`](Self::zero_shot) of features whose dimension was checked.
    pub(crate) fn scores(&self, features: &Features<'_>) -> Scores {
        self.scores_and_halves(features, &[]).0
    }

    /// The same, and the scores of some rows by the first half of their dimensions: the head is read once for all of them. None
    /// where a class has several anchors, whose scores are no sums.
    pub(crate) fn scores_and_halves(&self, features: &Features<'_>, places: &[usize]) -> (Scores, Vec<f32>) {
        let mut scores = Scores::zeros(features.rows(), self.n_classes());
        let (dim, scale) = (self.dim, self.logit_scale);
        let mut halves = Vec::new();
        match &self.mixture {
            Some(mixture) => mixture.scores(features.data(), dim, scale, &mut scores),
            None if places.is_empty() => {
                kernels::products(features.data(), &self.prototypes, dim, scale, scores.data_mut());
            }
            None => {
                halves.resize(places.len() * self.n_classes(), 0.0);
                let rows = features.select(places);
                let (rows, out) = ([features.data(), rows.data()], [scores.data_mut(), &mut halves]);
                kernels::products_and_halves(rows, &self.prototypes, dim, scale, out);
            }
        }
        (scores, halves)
    }

    /// SHA-256 over prototypes, class names and logit scale: what a state belongs to.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| self.compute_digest())
    }

    fn compute_digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.n_classes() as u64).to_le_bytes());
        hash.update((self.dim as u64).to_le_bytes());
        hash.update(self.logit_scale.to_le_bytes());
        for class in &self.classes {
            hash.update((class.len() as u64).to_le_bytes());
            hash.update(class.as_bytes());
        }
        for value in &self.prototypes {
            hash.update(value.to_le_bytes());
        }
        if let Some(mixture) = &self.mixture {
            hash.update(mixture.sharpness.to_le_bytes());
            mixture.first.iter().for_each(|&first| hash.update((first as u64).to_le_bytes()));
            mixture.anchors.iter().chain(&mixture.weights).for_each(|v| hash.update(v.to_le_bytes()));
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Reads a head file (`docs/formats.md`).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_bytes(&map_file(path)?).map_err(|e| match e {
            Error::Format { reason, .. } => Error::format(path, reason),
            other => other,
        })
    }

    /// Reads a head from the bytes of a head file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |reason: String| Error::format("head", reason);
        let found = Tensors::read(bytes).map_err(|e| e.at("head"))?;
        let entry = found.need("prototypes").map_err(|e| e.at("head"))?;
        let &[n_classes, dim] = &entry.shape[..] else {
            return Err(bad(format!("`prototypes`: expected shape [classes, dim], got {:?}", entry.shape)));
        };
        let prototypes = numbers::floats(&bytes[entry.bytes.clone()], entry.dtype).ok_or_else(|| {
            bad(format!("`prototypes`: expected {}, got {:?}", numbers::FLOATS, entry.dtype))
        })?;
        let mut metadata = found.metadata.clone();
        let names = metadata
            .remove("classes")
            .ok_or_else(|| bad("no `classes` in the metadata; expected a JSON list of names".into()))?;
        let classes: Vec<String> = serde_json::from_str(&names)
            .map_err(|e| bad(format!("`classes` in the metadata: expected a JSON list of names: {e}")))?;
        if classes.len() != n_classes {
            return Err(Error::Shape {
                what: What::Other("class names"),
                expected: n_classes,
                got: classes.len(),
            });
        }
        let scale = metadata
            .remove("logit_scale")
            .ok_or_else(|| bad("no `logit_scale` in the metadata (CLIP: about 100)".into()))?;
        let scale: f32 = scale
            .trim()
            .parse()
            .map_err(|_| bad(format!("`logit_scale` in the metadata: expected a number, got {scale:?}")))?;
        let sharpness = metadata.remove("anchor_sharpness");
        let mut head = Self::new(prototypes, dim, classes, scale)?;
        if let Some(sharpness) = sharpness {
            head.mixture = Some(Arc::new(read_mixture(&found, bytes, &head, &sharpness)?));
        }
        head.metadata = metadata;
        Ok(head)
    }

    /// The bytes of a head file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let data = f32::encode(&self.prototypes);
        let mut metadata = self.metadata.clone();
        let names = serde_json::to_string(&self.classes).expect("strings are valid JSON");
        metadata.insert("classes".into(), names);
        metadata.insert("logit_scale".into(), self.logit_scale.to_string());
        let shape = vec![self.n_classes(), self.dim];
        let prototypes = NewTensor { name: "prototypes", dtype: f32::DTYPE, shape, bytes: &data };
        let Some(mixture) = &self.mixture else { return Ok(tensors::to_bytes(vec![prototypes], &metadata)) };
        metadata.insert("anchor_sharpness".into(), mixture.sharpness.to_string());
        let n = mixture.weights.len();
        let classes: Vec<f32> =
            mixture.first.windows(2).enumerate().flat_map(|(c, w)| vec![c as f32; w[1] - w[0]]).collect();
        let (anchors, weights) = (f32::encode(&mixture.anchors), f32::encode(&mixture.weights));
        let classes = f32::encode(&classes);
        let extra = |name, shape, bytes| NewTensor { name, dtype: f32::DTYPE, shape, bytes };
        let all = vec![
            prototypes,
            extra("anchors", vec![n, self.dim], &anchors),
            extra("anchor_classes", vec![n], &classes),
            extra("anchor_weights", vec![n], &weights),
        ];
        Ok(tensors::to_bytes(all, &metadata))
    }

    /// Writes a head file, atomically.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        Ok(write_atomically(path.as_ref(), &self.to_bytes()?)?)
    }
}

/// Anchors kept apart, from a head file.
fn read_mixture(found: &Tensors, bytes: &[u8], head: &Head, sharpness: &str) -> Result<Mixture> {
    let bad = |reason: String| Error::format("head", reason);
    let floats = |name: &str| -> Result<Vec<f32>> {
        let entry = found.need(name).map_err(|e| e.at("head"))?;
        numbers::floats(&bytes[entry.bytes.clone()], entry.dtype)
            .ok_or_else(|| bad(format!("`{name}`: expected {}, got {:?}", numbers::FLOATS, entry.dtype)))
    };
    let (vectors, classes, weights) =
        (floats("anchors")?, floats("anchor_classes")?, floats("anchor_weights")?);
    let n = classes.len();
    if weights.len() != n || vectors.len() != n * head.dim() {
        let expected = n * head.dim();
        return Err(Error::Shape {
            what: What::Other("values in the anchors"),
            expected,
            got: vectors.len(),
        });
    }
    let ordered = classes.is_sorted() && (0..head.n_classes()).all(|c| classes.contains(&(c as f32)));
    if !ordered || classes.last().is_some_and(|&last| last as usize >= head.n_classes()) {
        return Err(bad("`anchor_classes`: expected every class, one after another".into()));
    }
    if weights.iter().any(|w| !(*w > 0.0 && *w <= 1.001)) {
        return Err(bad("`anchor_weights`: expected shares that sum to 1 within a class".into()));
    }
    let sharpness = sharpness.trim().parse();
    let sharpness =
        sharpness.map_err(|_| bad("`anchor_sharpness` in the metadata: expected a number".into()))?;
    check_sharpness(sharpness)?;
    let anchors = unit_rows(What::Other("anchors"), Cow::Owned(vectors), head.dim(), false)?.into_owned();
    let first = (0..=head.n_classes()).map(|c| classes.partition_point(|&own| own < c as f32)).collect();
    Ok(Mixture { anchors, first, weights, sharpness })
}

/// What is wrong with a logit scale, if anything is.
fn wrong_scale(scale: f32) -> Option<String> {
    let (least, most) = (LOGIT_SCALES.start(), LOGIT_SCALES.end());
    (!LOGIT_SCALES.contains(&scale)).then(|| format!("expected a number from {least} to {most}, got {scale}"))
}

fn homonyms(classes: &[String]) -> Vec<(usize, usize)> {
    let mut first = HashMap::new();
    let mut repeated = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        match first.get(class) {
            Some(&earlier) => repeated.push((earlier, i)),
            None => {
                first.insert(class, i);
            }
        }
    }
    repeated
}

/// Weighted mean of each class's unit anchors, normalised.
fn fold_anchors(anchors: &[Anchor<'_>], dim: usize, classes: &[String]) -> Result<Vec<f32>> {
    let mut sums = vec![0.0f64; classes.len() * dim];
    for (row, anchor) in anchors.iter().enumerate() {
        if anchor.vector.len() != dim {
            return Err(Error::Shape {
                what: What::Other("anchor dimension"),
                expected: dim,
                got: anchor.vector.len(),
            });
        }
        if anchor.class >= classes.len() {
            return Err(Error::Label { label: anchor.class, classes: classes.len() });
        }
        if !anchor.weight.is_finite() || anchor.weight < 0.0 {
            let reason =
                format!("anchor {row} has weight {}; expected a finite weight of at least 0", anchor.weight);
            return Err(Error::Classes { reason });
        }
        let norm = kernels::dot_f64(anchor.vector, anchor.vector).sqrt();
        if !norm.is_finite() {
            return Err(Error::NotFinite { what: What::Other("anchors"), row });
        }
        if norm < 1e-30 {
            return Err(Error::NotUnit { what: What::Other("anchors"), row, norm });
        }
        let sum = &mut sums[anchor.class * dim..][..dim];
        kernels::accumulate(sum, anchor.weight as f64 / norm, anchor.vector);
    }
    let mut prototypes = Vec::with_capacity(sums.len());
    for (class, sum) in classes.iter().zip(sums.chunks(dim)) {
        let norm = sum.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm < 1e-12 {
            let reason = format!("class {class:?} has no anchor, or its anchors cancel out");
            return Err(Error::Classes { reason });
        }
        prototypes.extend(sum.iter().map(|v| (v / norm) as f32));
    }
    Ok(prototypes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(result: Result<Head>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn class_lists_are_checked() {
        let none: [&str; 0] = [];
        assert!(reason(Head::new(vec![], 2, none, 1.0)).contains("no classes"));
        assert!(reason(Head::new(vec![1.0, 0.0], 2, ["a"], 1.0)).contains("one class"));
        let two = || vec![1.0, 0.0, 0.0, 1.0];
        assert!(reason(Head::new(two(), 2, ["a", "a"], 1.0)).contains("twice"));
        assert!(reason(Head::new(two(), 2, ["a", " "], 1.0)).contains("empty name"));
        for scale in [f32::NAN, f32::INFINITY, 0.0, -100.0, 1e13, 1e-13] {
            assert!(reason(Head::new(two(), 2, ["a", "b"], scale)).contains("logit scale"), "{scale}");
            let head = Head::new(two(), 2, ["a", "b"], 100.0).unwrap();
            assert!(reason(head.with_logit_scale(scale)).contains("logit_scale"), "{scale}");
        }
        assert!(matches!(Head::new(two(), 2, ["a", "b", "c"], 1.0), Err(Error::Shape { .. })));
        assert!(matches!(Head::new(vec![0.0; 4], 2, ["a", "b"], 1.0), Err(Error::NotUnit { .. })));
    }

    #[test]
    fn anchors_fold_into_a_weighted_mean() {
        let a = |class, vector, weight| Anchor { class, vector, weight };
        let anchors = [a(0, &[2.0, 0.0][..], 1.0), a(0, &[0.0, 5.0], 1.0), a(1, &[0.0, -1.0], 2.0)];
        let head = Head::from_anchors(&anchors, 2, ["x", "y"], 10.0).unwrap();
        let half = 0.5f32.sqrt();
        assert!((head.prototype(0)[0] - half).abs() < 1e-6 && (head.prototype(0)[1] - half).abs() < 1e-6);
        assert_eq!(head.prototype(1), [0.0, -1.0]);
        assert!(Head::from_anchors(&anchors[..2], 2, ["x", "y"], 10.0).is_err(), "y has no anchor");
        let mixed = head.with_anchors(1.0, &[a(1, &[1.0, 0.0], 1.0)]).unwrap();
        assert_eq!(mixed.prototype(0), head.prototype(0));
        assert!((mixed.prototype(1)[0] - half).abs() < 1e-6);
    }

    #[test]
    fn bytes_round_trip_and_digest_follows_content() {
        let head =
            Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 100.0).unwrap().with_metadata("encoder", "e");
        let back = Head::from_bytes(&head.to_bytes().unwrap()).unwrap();
        assert_eq!(back.digest(), head.digest());
        assert_eq!(back.metadata()["encoder"], "e");
        assert_ne!(head.clone().with_logit_scale(50.0).unwrap().digest(), head.digest());
    }
}
