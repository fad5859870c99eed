//! What is wrong is found, and told by its name.

use super::*;

fn worst(findings: &[Finding]) -> (Verdict, String) {
    let worst = findings.iter().max_by_key(|f| f.verdict).unwrap();
    (worst.verdict, worst.what.clone())
}

/// Classes along axes, samples near them, all in a cone around the last axis.
fn data(order: impl Fn(usize) -> usize) -> (Features<'static>, Vec<usize>, Head) {
    let (n, dim) = (5, 6);
    let mut anchors = vec![0.0; n * dim];
    let (mut rows, mut labels) = (vec![], vec![]);
    for c in 0..n {
        anchors[c * dim + c] = 1.0;
        for k in 0..8 {
            let mut row = vec![0.02 * k as f32; dim];
            row[c] = 0.3;
            row[dim - 1] = 1.0;
            rows.extend(row);
            labels.push(order(c));
        }
    }
    let head = Head::new(anchors, dim, ["a", "b", "c", "d", "e"], 100.0).unwrap();
    (Features::normalized(rows, dim).unwrap(), labels, head)
}

/// An encoder of which only the description counts.
struct Pretend {
    name: &'static str,
    dim: usize,
    preprocess: Preprocess,
    scale: f32,
    bias: f32,
}

impl Encoder for Pretend {
    fn name(&self) -> &str {
        self.name
    }
    fn dim(&self) -> usize {
        self.dim
    }
    fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }
    fn images(&self, _: &[f32]) -> Result<Features<'static>> {
        unreachable!("not asked for")
    }
    fn texts(&self, _: &[String]) -> Result<Features<'static>> {
        unreachable!("not asked for")
    }
    fn logit_scale(&self) -> f32 {
        self.scale
    }
    fn logit_bias(&self) -> f32 {
        self.bias
    }
    fn digest(&self) -> &str {
        ""
    }
}

#[test]
fn a_model_is_held_against_those_that_are_known() {
    let model = |name, dim, preprocess, scale, bias| {
        let found = beside_known(&Pretend { name, dim, preprocess, scale, bias });
        let all = found.iter().map(|f| f.what.as_str()).collect::<Vec<_>>().join("; ");
        (worst(&found).0, all)
    };
    let openai = Preprocess::openai(224);
    let (verdict, all) = model("RN50", 1024, openai.clone(), 100.0, 0.0);
    assert!(verdict == Verdict::Fine && all.contains("as of RN50"), "{all}");
    // What was not measured is not said to be fine.
    let (name, preprocess) = ("RN50", openai.clone());
    let found = beside_known(&Pretend { name, dim: 1024, preprocess, scale: 100.0, bias: 0.0 });
    let cosine = found.iter().find(|f| f.what.contains("0.27")).unwrap();
    assert!(cosine.verdict == Verdict::Known && cosine.what.contains("not measured"), "{cosine:?}");
    let (verdict, all) = model("RN50", 1024, openai.clone(), 14.29, 0.0);
    assert!(verdict == Verdict::Doubtful && all.contains("RN50 a scale of 99.5 to 100.5"), "{all}");
    let (verdict, all) = model("ViT-L-14", 512, openai.clone(), 100.0, 0.0);
    assert!(verdict == Verdict::Wrong && all.contains("ViT-L-14 has features of 768"), "{all}");
    let (verdict, all) = model("RN50", 1024, Preprocess::siglip(224), 100.0, 0.0);
    assert!(verdict == Verdict::Doubtful && all.contains("was trained with mean"), "{all}");
    // A folder has no name: whoever has these sizes and such a scale and bias.
    let (verdict, all) = model("a/folder", 768, Preprocess::siglip(224), 117.0, -12.9);
    assert!(
        verdict == Verdict::Fine && all.contains("bias -12.90, as of SigLIP-B-16, SigLIP2-B-16"),
        "{all}"
    );
    let (verdict, all) = model("a/folder", 8, openai.clone(), 100.0, 0.0);
    assert!(verdict == Verdict::Fine && all.contains("none of the known"), "{all}");
    let (verdict, all) = model("a/folder", 8, openai, 4.6, 0.0);
    assert!(verdict == Verdict::Doubtful && all.contains("logit scale 4.60; CLIP has about 100"), "{all}");
}

#[test]
fn cosines_of_another_encoder_are_doubtful() {
    let head = Head::new(vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 3, ["a", "b"], 100.0).unwrap();
    let rows = [0.4, 0.1, 1.0, 0.1, 0.4, 1.0].repeat(8);
    let z = Features::normalized(rows, 3).unwrap();
    let labels = [0, 1].repeat(8);
    let named = |encoder: &str| {
        let head = head.clone().with_metadata("encoder", encoder);
        worst(&features(&z, &[1.0; 16], Some(&labels), Some(&head)))
    };
    // Cosines around 0.37 are those of ViT-B-32 and of models that nobody measured, not those of GeoRSCLIP.
    assert_eq!((named("ViT-B-32").0, named("someone/else").0), (Verdict::Fine, Verdict::Fine));
    let (verdict, what) = named("GeoRSCLIP-L-14");
    assert!(verdict == Verdict::Doubtful && what.contains("GeoRSCLIP-L-14's texts give 0.22"), "{what}");
}

#[test]
fn mistakes_are_named() {
    let norms = vec![1.0; 40];
    let (z, labels, head) = data(|c| c);
    assert_eq!(worst(&features(&z, &norms, Some(&labels), Some(&head))).0, Verdict::Fine);
    let (verdict, what) = worst(&features(&z, &[10.0; 40], Some(&labels), Some(&head)));
    assert!(verdict == Verdict::Wrong && what.contains("norms"), "{what}");
    // Without labels nobody knows whether the classes are those of the pictures.
    let (verdict, what) = worst(&features(&z, &norms, None, Some(&head)));
    assert!(verdict == Verdict::Doubtful && what.contains("no labels"), "{what}");
    let more = |by: usize| labels.iter().map(|label| label + by).collect::<Vec<_>>();
    let (verdict, what) = worst(&features(&z, &norms, Some(&more(1)), Some(&head)));
    assert!(verdict == Verdict::Wrong && what.contains("begin at 1; moved by -1: zero-shot top-1"), "{what}");
    let (verdict, what) = worst(&features(&z, &norms, Some(&more(3)), Some(&head)));
    assert!(verdict == Verdict::Wrong && what.contains("the labels go up to 7, the head has 5"), "{what}");
    let (z, labels, head) = data(|c| (c + 1) % 5);
    let (verdict, what) = worst(&features(&z, &norms, Some(&labels), Some(&head)));
    assert!(verdict == Verdict::Wrong && what.contains("moved by -1"), "{what}");
    let (z, labels, head) = data(|c| [2, 0, 4, 1, 3][c]);
    let (verdict, what) = worst(&features(&z, &norms, Some(&labels), Some(&head)));
    assert!(verdict == Verdict::Wrong && what.contains("agree within classes"), "{what}");
    let other = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 100.0).unwrap();
    assert_eq!(worst(&features(&z, &norms, None, Some(&other))).0, Verdict::Wrong);
}

#[test]
fn heads_are_looked_through() {
    let near = vec![1.0, 0.0, 0.0, 1.0, 0.01, 0.0, 0.0, 0.0, 1.0];
    let mut near = Features::normalized(near, 3).unwrap().data().to_vec();
    near.truncate(9);
    let h = Head::new(near, 3, ["Sea_lion", "sea lion", "cat"], 4.6).unwrap();
    let found = head(&h);
    assert!(found.iter().any(|f| f.what.contains("spelling")), "{found:?}");
    assert!(found.iter().any(|f| f.what.contains("same prototype")));
    assert!(found.iter().any(|f| f.advice.contains("exp(logit_scale)")));
    // In a large head two classes may have one name, as ImageNet's cranes.
    let mut names: Vec<String> = (0..400).map(|class| format!("class {class}")).collect();
    (names[1], names[7]) = ("crane".into(), "crane".into());
    let around: Vec<f32> = (0..400).flat_map(|class| [(class as f32).cos(), (class as f32).sin()]).collect();
    let found = head(&Head::new(around, 2, names, 100.0).unwrap());
    assert!(found.iter().any(|f| f.what.contains("classes 1 and 7 are both called \"crane\"")), "{found:?}");
}

/// An encoder that knows the four colours, or mixes them up.
struct Colours {
    preprocess: Preprocess,
    /// Which colour a text means.
    means: fn(usize) -> usize,
    /// What the presence of other pictures adds to a feature.
    mixes: f32,
    reads_texts: bool,
}

impl Colours {
    /// A vector near its own axis, in a cone of pictures (4) or texts (5).
    fn row(colour: usize, cone: usize, mixed: f32) -> [f32; 6] {
        let mut row = [mixed; 6];
        row[colour] += 0.4;
        row[cone] += 1.0;
        row
    }
}

impl Encoder for Colours {
    fn name(&self) -> &str {
        "colours"
    }
    fn dim(&self) -> usize {
        6
    }
    fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }
    fn images(&self, pixels: &[f32]) -> Result<Features<'static>> {
        let plane = self.preprocess.size.pow(2);
        let pictures = pixels.chunks_exact(3 * plane);
        let mixed = if pictures.len() > 1 { self.mixes } else { 0.0 };
        let rows = pictures.flat_map(|picture| {
            let [red, green, blue] = [0, 1, 2].map(|channel| picture[channel * plane] > 0.0);
            Self::row(
                if red && green { 3 } else { [red, green, blue].iter().position(|&c| c).unwrap() },
                4,
                mixed,
            )
        });
        Ok(Features::normalized(rows.collect::<Vec<_>>(), 6)?)
    }
    fn texts(&self, texts: &[String]) -> Result<Features<'static>> {
        if !self.reads_texts {
            return Err(crate::Error::model("here", "tokenizer.json is missing"));
        }
        let rows = texts.iter().flat_map(|text| {
            let colour = COLOURS.iter().position(|(name, _)| text.ends_with(name)).unwrap();
            Self::row((self.means)(colour), 5, 0.0)
        });
        Ok(Features::normalized(rows.collect::<Vec<_>>(), 6)?)
    }
    fn logit_scale(&self) -> f32 {
        100.0
    }
    fn digest(&self) -> &str {
        ""
    }
}

#[test]
fn a_model_shows_whether_it_was_trained() {
    let preprocess = Preprocess::openai(8);
    let good = Colours { preprocess, means: |colour| colour, mixes: 0.0, reads_texts: true };
    let told = |encoder: &Colours| {
        let found = model(encoder).unwrap();
        (worst(&found).0, found.iter().map(|f| format!("{}; {}\n", f.what, f.advice)).collect::<String>())
    };
    let (verdict, all) = told(&good);
    assert!(verdict == Verdict::Fine && all.contains("4 of 4 colours recognised"), "{all}");
    assert!(all.contains("parity vector (a green square)"), "{all}");
    let untrained = Colours { means: |colour| (colour + 1) % 4, ..good };
    let (verdict, all) = told(&untrained);
    assert!(verdict == Verdict::Doubtful && all.contains("0 of 4 colours recognised"), "{all}");
    assert!(all.contains("check weights, preprocessing and tokeniser"), "{all}");
    let (verdict, all) = told(&Colours { mixes: 0.1, ..untrained });
    assert!(verdict == Verdict::Wrong && all.contains("feature depends on its batch"), "{all}");
    let preprocess = Preprocess::openai(8);
    let (verdict, all) = told(&Colours { preprocess, means: |c| c, mixes: 0.0, reads_texts: false });
    assert!(verdict == Verdict::Wrong && all.contains("texts cannot be encoded: "), "{all}");
    assert!(all.contains("tokenizer.json is missing") && all.contains("add the tokeniser's files"), "{all}");
}

#[test]
fn cosines_that_no_encoder_gives_are_told() {
    let told = |finding: Finding| (finding.verdict, format!("{}; {}", finding.what, finding.advice));
    assert_eq!(between_pictures(0.5).verdict, Verdict::Fine);
    let (verdict, what) = told(between_pictures(0.0));
    assert!(
        verdict == Verdict::Doubtful && what.contains("CLIP's are 0.3 to 0.9; ") && what.contains("whitened")
    );
    let (verdict, what) = told(between_pictures(0.999));
    assert!(
        verdict == Verdict::Wrong && what.contains("all rows are nearly the same (cosine 0.999)"),
        "{what}"
    );
    let head = data(|c| c).2;
    assert_eq!(to_the_best_class(0.3, &head).verdict, Verdict::Fine);
    let (verdict, what) = told(to_the_best_class(0.02, &head));
    assert!(verdict == Verdict::Wrong && what.contains("CLIP's texts give 0.20 to 0.35"), "{what}");
    assert!(what.contains("are of different encoders") && what.contains("encode both anew"), "{what}");
    let (verdict, what) = told(to_the_best_class(0.8, &head));
    assert!(
        verdict == Verdict::Doubtful && what.contains("fine if the head was made from pictures"),
        "{what}"
    );
}

#[test]
fn what_files_say_of_themselves_is_compared() {
    let head = data(|c| c).2.with_metadata("encoder", "ViT-B-32").with_metadata("encoder_digest", "1");
    let told = |said: &[(&str, &str)]| {
        let said = said.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let found = provenance(&said, &head);
        (
            found.iter().map(|f| f.verdict).max(),
            found.iter().map(|f| format!("{}; {}", f.what, f.advice)).collect::<String>(),
        )
    };
    assert_eq!(told(&[("encoder", "ViT-B-32"), ("encoder_digest", "1"), ("classes", "[]")]).0, None);
    assert_eq!(told(&[("classes", r#"["A", "b", "c", "d", "e"]"#)]).0, None);
    let (verdict, what) = told(&[("encoder", "ViT-B-32"), ("encoder_digest", "2")]);
    assert!(verdict == Some(Verdict::Wrong) && what.contains("encode both with the same model"), "{what}");
    let (verdict, what) = told(&[("encoder", "RN50")]);
    assert!(
        verdict == Some(Verdict::Doubtful) && what.contains("features are of RN50, the head of ViT-B-32"),
        "{what}"
    );
    assert!(what.contains("fine if both are of one space"), "{what}");
    let (verdict, what) = told(&[("classes", r#"["b", "a", "c", "d", "e"]"#)]);
    assert!(verdict == Some(Verdict::Wrong) && what.contains("in the order of the labels"), "{what}");
    let (verdict, what) = told(&[("classes", r#"["x", "y", "c", "z", "u", "v"]"#)]);
    assert!(verdict == Some(Verdict::Wrong) && what.contains("give the head of these classes"), "{what}");
    assert!(what.contains(r#"the head lacks 5 of the 6 classes: "x", "y", "z", "u", "v";"#), "{what}");
    assert!(what.contains("class 0 is \"x\" in the features file and \"a\" in the head"), "{what}");
}

#[test]
fn names_of_folders_are_held_against_the_classes() {
    let head = data(|c| c).2;
    let told = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        folders(&names, &head).map(|f| (f.verdict, f.what))
    };
    let (verdict, what) = told(&["A", "b"]).unwrap();
    assert!(verdict == Verdict::Fine && what == "2 folders are named as classes of the head", "{what}");
    let (verdict, what) = told(&["a", "x", "y"]).unwrap();
    assert!(
        verdict == Verdict::Wrong && what.ends_with(r#"the head lacks 2 of the 3 classes: "x", "y""#),
        "{what}"
    );
    let (verdict, what) = told(&["monday", "tuesday"]).unwrap();
    assert!(verdict == Verdict::Doubtful && what.starts_with("no folder is named as a class"), "{what}");
    // A place, numbers of classes, and no folder at all.
    assert_eq!((told(&["photos"]), told(&["0", "4"]), told(&[])), (None, None, None));
}
