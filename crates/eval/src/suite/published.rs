//! What the UL-TTA paper reports: its datasets and the figures of its tables.

/// A dataset of the paper.
pub struct Entry {
    /// Name in the paper.
    pub name: &'static str,
    /// Name of its folder.
    pub folder: &'static str,
    /// Shift type, as the paper names it.
    pub shift: &'static str,
    /// Classes, as the paper counts them.
    pub classes: usize,
    /// Test images, as the paper counts them.
    pub images: usize,
    /// How to get it.
    pub source: &'static str,
    /// The paper's top-1 and ECE in percent for zero-shot, Tent, FreeTTA and UL-TTA, where it gives them.
    pub results: Option<[(f64, f64); 4]>,
}

/// The paper's datasets table, with its results beside it.
pub const DATASETS: [Entry; 8] = [
    Entry {
        name: "PACS",
        folder: "pacs",
        shift: "style / domain",
        classes: 7,
        images: 9_991,
        source: "DomainBed's download script, `PACS`",
        results: Some([(89.1, 5.2), (90.0, 4.9), (90.7, 4.1), (91.3, 3.2)]),
    },
    Entry {
        name: "Office-Home",
        folder: "office-home",
        shift: "everyday domain",
        classes: 65,
        images: 15_588,
        source: "DomainBed's download script, `OfficeHome`",
        results: Some([(78.4, 6.8), (79.1, 6.2), (80.4, 5.5), (81.0, 4.3)]),
    },
    Entry {
        name: "DomainNet",
        folder: "domainnet",
        shift: "multi-domain, large-scale",
        classes: 345,
        images: 586_575,
        source: "the DomainNet project page (cleaned version)",
        results: Some([(55.4, 11.2), (56.7, 10.5), (59.3, 7.9), (60.1, 6.8)]),
    },
    Entry {
        name: "Terra Incognita",
        folder: "terra-incognita",
        shift: "camera / location",
        classes: 10,
        images: 16_584,
        source: "DomainBed's download script, `TerraIncognita`",
        results: Some([(46.0, 14.8), (47.4, 11.9), (49.1, 9.2), (50.3, 7.1)]),
    },
    Entry {
        name: "ImageNet-V2",
        folder: "imagenet-v2",
        shift: "natural shift",
        classes: 1000,
        images: 10_000,
        source: "the ImageNetV2 repository, matched-frequency",
        results: None,
    },
    Entry {
        name: "ImageNet-R",
        folder: "imagenet-r",
        shift: "renderings / cartoons",
        classes: 200,
        images: 30_000,
        source: "the imagenet-r repository",
        results: Some([(71.2, 9.0), (72.1, 8.8), (73.0, 7.1), (73.6, 6.5)]),
    },
    Entry {
        name: "ImageNet-A",
        folder: "imagenet-a",
        shift: "adversarial natural",
        classes: 200,
        images: 7_500,
        source: "the natural-adv-examples repository",
        results: Some([(38.8, 17.1), (40.0, 15.2), (41.1, 14.3), (42.5, 12.7)]),
    },
    Entry {
        name: "ImageNet-Sketch",
        folder: "imagenet-sketch",
        shift: "sketches",
        classes: 1000,
        images: 50_000,
        source: "the ImageNet-Sketch repository",
        results: None,
    },
];

/// The paper's other rows on DomainNet: method, top-1, ECE, and our name for it.
pub(super) const DOMAINNET: [(&str, f64, f64, &str); 6] = [
    ("Zero-shot CLIP", 55.4, 11.2, "zero-shot"),
    ("Tent", 56.7, 10.5, "tent"),
    ("T3A", 57.9, 9.8, "t3a"),
    ("CoTTA", 58.4, 9.1, "cotta"),
    ("FreeTTA", 59.3, 7.9, "freetta"),
    ("UL-TTA", 60.1, 6.8, "ul-tta:paper"),
];

/// The paper's overheads: method, FLOPs, latency, our name.
pub(super) const EFFICIENCY: [(&str, &str, &str, &str); 4] = [
    ("CoTTA", "+290 %", "+410 %", "cotta"),
    ("FreeTTA", "+180 %", "+325 %", "freetta"),
    ("T3A", "+15 %", "+18 %", "t3a"),
    ("UL-TTA", "< 5 %", "< 8 %", "ul-tta:paper"),
];

/// The paper's stability over 200 K samples: method, collapse, max KL, max movement, accuracy drop, our name.
pub(super) const STABILITY: [(&str, &str, f64, f64, f64, &str); 3] = [
    ("CoTTA", "yes", 1.82, 0.21, -6.2, "cotta"),
    ("FreeTTA", "mild", 0.74, 0.09, -3.4, "freetta"),
    ("UL-TTA", "no", 0.07, 0.01, -0.6, "ul-tta:paper"),
];
