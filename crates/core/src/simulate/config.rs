//! What a simulated stream is like: its geometry, its domain, its class mix.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::config::in_range;

/// What a simulated stream is like. The defaults are fitted to CLIP ViT-B/32 on ImageNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorConfig {
    /// Number of classes.
    pub classes: usize,
    /// Length of a feature row.
    pub dim: usize,
    /// Everything random follows from it.
    pub seed: u64,
    /// The head's logit scale.
    pub logit_scale: f32,
    /// Angle between the axes of the image and the text cone in degrees: the modality gap. 0 closes it.
    pub gap: f64,
    /// Squared length of what all images share: the cosine of images of different classes.
    pub cone: f64,
    /// Squared length of a class's own part: how far apart the classes are.
    pub spread: f64,
    /// Squared length of the noise within a class.
    pub noise: f64,
    /// Decay of the noise's spectrum: eigenvalue k falls as k^-decay. 0 is isotropic.
    pub decay: f64,
    /// Number of classes in a family of kin, which are easily confused.
    pub family: usize,
    /// Share of a class's part that it has in common with its family, in [0, 1).
    pub kinship: f64,
    /// Share of samples that look more like a sibling than like their own class, in [0, 0.5].
    pub ambiguity: f64,
    /// How far a sample can lean towards a sibling, in (0.5, 1]: with 1, some look exactly like it.
    pub lean: f64,
    /// Squared length of what all anchors share: the cosine of two anchors.
    pub anchor_cone: f64,
    /// Cosine between an anchor's own part and its class's part in the image cone: the quality of the text.
    pub agreement: f64,
    /// Spread over the classes of the cosine that an anchor has with every image: zero-shot bias.
    pub bias: f64,
    /// The domain that the stream starts in.
    pub domain: Domain,
    /// The class mix that the stream starts with.
    pub mix: Mix,
}

impl Default for SimulatorConfig {
    fn default() -> Self {
        Self {
            classes: 100,
            dim: 512,
            seed: 0,
            logit_scale: 100.0,
            gap: 71.0,
            cone: 0.56,
            spread: 0.26,
            noise: 0.19,
            decay: 0.75,
            family: 6,
            kinship: 0.6,
            ambiguity: 0.2,
            lean: 0.62,
            anchor_cone: 0.61,
            agreement: 0.4,
            bias: 0.003,
            domain: Domain::default(),
            mix: Mix::default(),
        }
    }
}

impl SimulatorConfig {
    pub(super) fn check(&self) -> Result<()> {
        in_range("simulate.classes", self.classes as f64, 2.0..=1e6)?;
        in_range("simulate.dim", self.dim as f64, 8.0..=65_536.0)?;
        in_range("simulate.gap", self.gap, 0.0..=90.0)?;
        in_range("simulate.cone", self.cone, 0.01..=0.99)?;
        in_range("simulate.spread", self.spread, 1e-6..=10.0)?;
        in_range("simulate.noise", self.noise, 0.0..=10.0)?;
        in_range("simulate.decay", self.decay, 0.0..=4.0)?;
        in_range("simulate.family", self.family as f64, 1.0..=1e6)?;
        in_range("simulate.kinship", self.kinship, 0.0..=0.99)?;
        in_range("simulate.ambiguity", self.ambiguity, 0.0..=0.5)?;
        in_range("simulate.lean", self.lean, 0.51..=1.0)?;
        in_range("simulate.anchor_cone", self.anchor_cone, 0.0..=0.99)?;
        in_range("simulate.agreement", self.agreement, 0.0..=1.0)?;
        in_range("simulate.bias", self.bias, 0.0..=0.2)?;
        self.domain.check()?;
        self.mix.check()
    }
}

/// Where the images come from. The default is the domain that the anchors were made for: no shift at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Domain {
    /// Which domain: the directions of its shift follow from it, so a stream can come back to a domain.
    pub id: u64,
    /// Length of a translation that all images share.
    pub translation: f64,
    /// Angle in degrees by which all images turn away from the anchors (in the plane of every pair of axes).
    pub rotation: f64,
    /// Share of a class's part that is replaced by one of this domain's own, in [0, 1].
    pub displacement: f64,
    /// Factor on the noise within a class.
    pub noise: f64,
}

impl Default for Domain {
    fn default() -> Self {
        Self { id: 0, translation: 0.0, rotation: 0.0, displacement: 0.0, noise: 1.0 }
    }
}

impl Domain {
    /// A clearly shifted domain, as drawings are from photographs; zero-shot loses several points.
    pub fn shifted(id: u64) -> Self {
        Self { id, translation: 0.1, rotation: 17.0, displacement: 0.3, noise: 1.0 }
    }

    pub(super) fn check(&self) -> Result<()> {
        in_range("simulate.domain.translation", self.translation, 0.0..=10.0)?;
        in_range("simulate.domain.rotation", self.rotation, 0.0..=180.0)?;
        in_range("simulate.domain.displacement", self.displacement, 0.0..=1.0)?;
        in_range("simulate.domain.noise", self.noise, 0.0..=10.0)
    }
}

/// Which classes occur, how often, and in what order. The default is balanced and shuffled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mix {
    /// Which mix: what classes are frequent or absent follows from it.
    pub id: u64,
    /// Zipf exponent of the class frequencies; 0 is balanced.
    pub imbalance: f64,
    /// Share of the classes that occur at all, in (0, 1].
    pub occurring: f64,
    /// Mean length of a run of one class; 1 is shuffled, a large one class-sorted.
    pub run_length: f64,
    /// Share of samples that belong to none of the head's classes, in [0, 1).
    pub strangers: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { id: 0, imbalance: 0.0, occurring: 1.0, run_length: 1.0, strangers: 0.0 }
    }
}

impl Mix {
    pub(super) fn check(&self) -> Result<()> {
        in_range("simulate.mix.imbalance", self.imbalance, 0.0..=5.0)?;
        in_range("simulate.mix.occurring", self.occurring, 1e-6..=1.0)?;
        in_range("simulate.mix.run_length", self.run_length, 1.0..=1e9)?;
        in_range("simulate.mix.strangers", self.strangers, 0.0..=0.99)
    }
}
