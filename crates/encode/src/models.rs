//! The models this crate knows by name.

/// A model on the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// A short name.
    pub name: &'static str,
    /// Its name on the hub.
    pub hub: &'static str,
    /// Side of its input.
    pub size: usize,
    /// Length of a feature.
    pub dim: usize,
    /// Parameters of both towers, in millions.
    pub parameters: usize,
}

/// The model that is used unless another is asked for.
pub const DEFAULT: &str = "openai/clip-vit-base-patch16";

/// Well-known models. Any other hub name or folder of the same kinds works as well.
pub const KNOWN: [Known; 10] = [
    known("ViT-B-32", "openai/clip-vit-base-patch32", 224, 512, 151),
    known("ViT-B-16", DEFAULT, 224, 512, 150),
    known("ViT-L-14", "openai/clip-vit-large-patch14", 224, 768, 428),
    known("ViT-L-14-336", "openai/clip-vit-large-patch14-336", 336, 768, 428),
    known("ViT-B-32-laion", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", 224, 512, 151),
    known("ViT-B-16-laion", "laion/CLIP-ViT-B-16-laion2B-s34B-b88K", 224, 512, 150),
    known("ViT-L-14-laion", "laion/CLIP-ViT-L-14-laion2B-s32B-b82K", 224, 768, 428),
    known("ViT-H-14-laion", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 224, 1024, 986),
    known("ViT-B-16-datacomp", "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K", 224, 512, 150),
    known("SigLIP-B-16", "google/siglip-base-patch16-224", 224, 768, 203),
];

const fn known(name: &'static str, hub: &'static str, size: usize, dim: usize, parameters: usize) -> Known {
    Known { name, hub, size, dim, parameters }
}

/// The hub name behind a short name; other names are taken as they are.
pub fn full_name(model: &str) -> &str {
    KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(model)).map_or(model, |known| known.hub)
}
