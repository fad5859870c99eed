//! The models this crate knows by name: which load as they are, which need a conversion and how, and what their
//! weights must look like.

/// A model that people use.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// Who trained it, and how.
    pub family: Family,
    /// How it is read.
    pub reads: Reads,
    /// The mean cosine of photographs with the best of some class texts, where it was measured: on WHU-RS19's 19
    /// classes with 107 templates, for ViT-B-32 on 1,000 classes of ImageNet, too; for ViT-B-16 from frames of five
    /// surveillance videos with 171 classes to EuroSAT's ten.
    pub cosine: Option<(f32, f32)>,
}

/// Models that were trained alike: what their logit scale, bias and preprocessing must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's: the scale was held at 100 from above, and all of them ended there.
    OpenAi,
    /// Trained with the softmax loss of open_clip and its kin, which holds the scale at 100 from above.
    OpenClip,
    /// Trained with a sigmoid loss: a scale of its own and a bias.
    SigLip,
}

/// How a model is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// As it lies on the hub.
    AsItIs,
    /// Pictures as they are; texts not, because its vocabulary is of another kind.
    PicturesOnly,
    /// Weights without a configuration: `docs/convert_model.py` puts one beside them.
    AddConfiguration,
    /// An image tower that this crate does not have: `docs/convert_model.py` makes ONNX of it.
    AsOnnx,
}

impl Family {
    /// The logit scales that trained weights have.
    pub fn scales(self) -> std::ops::RangeInclusive<f32> {
        match self {
            // float16 of ln 100 is 4.605, so files in half precision are a little below.
            Self::OpenAi => 99.5..=100.5,
            Self::OpenClip => 40.0..=100.5,
            Self::SigLip => 80.0..=150.0,
        }
    }

    /// The logit biases that trained weights have.
    pub fn biases(self) -> std::ops::RangeInclusive<f32> {
        match self {
            Self::OpenAi | Self::OpenClip => 0.0..=0.0,
            Self::SigLip => -25.0..=-5.0,
        }
    }
}

impl Reads {
    /// What to do; nothing for a model that loads as it is.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::AsItIs => None,
            Self::PicturesOnly => Some(
                "pictures load as they are; its vocabulary (Gemma's) is not read: make the head in Python and give it \
                 as a file (docs/encode.md)",
            ),
            Self::AddConfiguration => Some(
                "weights without a configuration: `python docs/convert_model.py FILE --as NAME --out FOLDER` writes \
                 both",
            ),
            Self::AsOnnx => Some(
                "its image tower is not built in: `python docs/convert_model.py NAME --onnx --out FOLDER`, and a build \
                 with the feature onnx",
            ),
        }
    }

    /// A word for a table.
    pub fn word(self) -> &'static str {
        match self {
            Self::AsItIs => "as it is",
            Self::PicturesOnly => "pictures",
            Self::AddConfiguration => "convert",
            Self::AsOnnx => "onnx",
        }
    }
}

/// The model that is used unless another is asked for.
pub const DEFAULT: &str = "openai/clip-vit-base-patch16";

/// Well-known models. Any other hub name or folder of the same kinds works as well.
pub const KNOWN: [Known; 24] = {
    use Family::{OpenAi, OpenClip, SigLip};
    use Reads::{AddConfiguration, AsItIs, AsOnnx, PicturesOnly};
    [
        known("RN50", "timm/resnet50_clip.openai", (224, 1024, 102), OpenAi, AsItIs).measured(0.269, 0.269),
        known("RN101", "timm/resnet101_clip.openai", (224, 512, 120), OpenAi, AsItIs),
        known("ViT-B-32", "openai/clip-vit-base-patch32", (224, 512, 151), OpenAi, AsItIs)
            .measured(0.287, 0.341),
        known("ViT-B-16", DEFAULT, (224, 512, 150), OpenAi, AsItIs).measured(0.242, 0.3184),
        known("ViT-L-14", "openai/clip-vit-large-patch14", (224, 768, 428), OpenAi, AsItIs),
        known("ViT-L-14-336", "openai/clip-vit-large-patch14-336", (336, 768, 428), OpenAi, AsItIs),
        known("ViT-B-32-laion", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", (224, 512, 151), OpenClip, AsItIs),
        known("ViT-B-16-laion", "laion/CLIP-ViT-B-16-laion2B-s34B-b88K", (224, 512, 150), OpenClip, AsItIs),
        known("ViT-L-14-laion", "laion/CLIP-ViT-L-14-laion2B-s32B-b82K", (224, 768, 428), OpenClip, AsItIs),
        known("ViT-H-14-laion", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", (224, 1024, 986), OpenClip, AsItIs),
        known(
            "ViT-B-16-datacomp",
            "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
            (224, 512, 150),
            OpenClip,
            AsItIs,
        ),
        known("SigLIP-B-16", "google/siglip-base-patch16-224", (224, 768, 203), SigLip, AsItIs),
        known("SigLIP-SO400M-384", "google/siglip-so400m-patch14-384", (384, 1152, 878), SigLip, AsItIs),
        known("SigLIP2-B-16", "google/siglip2-base-patch16-224", (224, 768, 375), SigLip, PicturesOnly),
        known(
            "SigLIP2-SO400M-384",
            "google/siglip2-so400m-patch14-384",
            (384, 1152, 1136),
            SigLip,
            PicturesOnly,
        ),
        known("MobileCLIP-S2", "apple/MobileCLIP-S2-OpenCLIP", (256, 512, 99), OpenClip, AsOnnx),
        known("MobileCLIP-B", "apple/MobileCLIP-B-OpenCLIP", (224, 512, 150), OpenClip, AsOnnx),
        known(
            "EVA02-B-16",
            "timm/eva02_base_patch16_clip_224.merged2b_s8b_b131k",
            (224, 512, 150),
            OpenClip,
            AsOnnx,
        ),
        known(
            "EVA02-L-14",
            "timm/eva02_large_patch14_clip_224.merged2b_s4b_b131k",
            (224, 768, 428),
            OpenClip,
            AsOnnx,
        ),
        known("RemoteCLIP-RN50", "chendelong/RemoteCLIP", (224, 1024, 102), OpenClip, AddConfiguration),
        known("RemoteCLIP-B-32", "chendelong/RemoteCLIP", (224, 512, 151), OpenClip, AddConfiguration)
            .measured(0.317, 0.317),
        known("RemoteCLIP-L-14", "chendelong/RemoteCLIP", (224, 768, 428), OpenClip, AddConfiguration),
        known("GeoRSCLIP-B-32", "Zilun/GeoRSCLIP", (224, 512, 151), OpenClip, AddConfiguration),
        known("GeoRSCLIP-L-14", "Zilun/GeoRSCLIP", (224, 768, 428), OpenClip, AddConfiguration)
            .measured(0.222, 0.222),
    ]
};

const fn known(
    name: &'static str,
    hub: &'static str,
    (size, dim, parameters): (usize, usize, usize),
    family: Family,
    reads: Reads,
) -> Known {
    Known { name, hub, size, dim, parameters, family, reads, cosine: None }
}

impl Known {
    const fn measured(mut self, low: f32, high: f32) -> Self {
        self.cosine = Some((low, high));
        self
    }
}

/// Where names of models are listed, and the known one that is nearest to a name that is not known.
pub fn advice(model: &str) -> String {
    let listed = "`ultta models` lists the known ones";
    match nearest(model) {
        Some(name) => format!("{listed}; did you mean {name}?"),
        None => listed.into(),
    }
}

/// The known name most like this one, if one is like it.
pub fn nearest(model: &str) -> Option<&'static str> {
    // As names are mistyped: case, and what stands between the words.
    let plain = |name: &str| name.to_lowercase().replace(['/', '_', ' ', '.'], "-");
    let asked = plain(model);
    let names = KNOWN.iter().flat_map(|known| [known.name, known.hub]).chain([crate::tiny::NAME]);
    let alike = names.map(|name| (strsim::normalized_damerau_levenshtein(&asked, &plain(name)), name));
    let (likeness, name) = alike.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness >= 0.6).then_some(name)
}

/// The hub name behind a short name; other names are taken as they are.
pub fn full_name(model: &str) -> &str {
    KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(model)).map_or(model, |known| known.hub)
}

/// What must be done before a known model can be opened by its name; nothing for those that load from the hub.
pub fn conversion(model: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(model) || known.hub == model)?;
    match known.reads {
        Reads::AsItIs | Reads::PicturesOnly => None,
        Reads::AddConfiguration | Reads::AsOnnx => known.reads.advice(),
    }
}

/// The known models that a name may mean: by its short name, by its hub name, or, for a folder, those whose input and
/// features have the same sizes.
pub fn like(name: &str, size: usize, dim: usize) -> Vec<&'static Known> {
    let named = |known: &&Known| known.name.eq_ignore_ascii_case(name) || known.hub == name;
    let by_name: Vec<_> = KNOWN.iter().filter(named).collect();
    if by_name.is_empty() {
        KNOWN.iter().filter(|known| (known.size, known.dim) == (size, dim)).collect()
    } else {
        by_name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_folders_found_by_their_sizes() {
        let mut names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN.len());
        assert_eq!(full_name("rn50"), "timm/resnet50_clip.openai");
        assert_eq!(full_name("someone/else"), "someone/else");
        assert_eq!(like("vit-b-32", 1, 1)[0].name, "ViT-B-32");
        let sizes: Vec<&str> = like("a/folder", 224, 1024).iter().map(|known| known.name).collect();
        assert_eq!(sizes, ["RN50", "ViT-H-14-laion", "RemoteCLIP-RN50"]);
        assert!(like("a/folder", 28, 12).is_empty());
        assert!(conversion("chendelong/RemoteCLIP").unwrap().contains("convert_model.py"));
        assert_eq!((conversion("SigLIP2-B-16"), conversion("someone/else")), (None, None));
    }

    #[test]
    fn a_mistyped_name_finds_its_own() {
        for (typed, meant) in [
            ("ViT-B/16", "ViT-B-16"),
            ("vitb32", "ViT-B-32"),
            ("openai/clip-vit-base-patch-16", "openai/clip-vit-base-patch16"),
            ("Siglip_B_16", "SigLIP-B-16"),
            ("tinny", "tiny"),
        ] {
            assert_eq!(nearest(typed), Some(meant), "{typed}");
        }
        assert_eq!(nearest("resnet"), None);
        assert!(advice("ViT-B/16").contains("did you mean ViT-B-16?"));
    }
}
