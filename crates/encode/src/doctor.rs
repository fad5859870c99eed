//! Checks for what costs users days: another encoder's features, wrong normalisation, wrong class order, prompts
//! that collide.

mod belong;

pub use belong::at_chance;

use std::collections::BTreeMap;

use ultta::{Features, Head};

use crate::config::Preprocess;
use crate::decode::Picture;
use crate::encoder::Encoder;
use crate::models::{self, Family, Known};
use crate::preprocess::preprocess;
use crate::{Result, prompts, tiny};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Not looked at: what is known of it.
    Known,
    /// As it should be.
    Fine,
    /// Worth a look.
    Doubtful,
    /// Surely wrong.
    Wrong,
}

/// One check: what was looked at, what was found, what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub what: String,
    /// What to do; empty if nothing.
    pub advice: String,
}

fn fine(what: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Fine, what: what.into(), advice: String::new() }
}

fn doubtful(what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Doubtful, what: what.into(), advice: advice.into() }
}

fn wrong(what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Wrong, what: what.into(), advice: advice.into() }
}

/// Colours that are drawn and named: what any trained model tells apart.
const COLOURS: [(&str, [u8; 3]); 4] =
    [("red", [220, 20, 20]), ("green", [20, 170, 30]), ("blue", [30, 40, 220]), ("yellow", [245, 225, 20])];

/// Checks a model: deterministic and finite features, a sane logit scale, image–text cosines of a trained model.
pub fn model(encoder: &dyn Encoder) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let size = encoder.preprocess().size;
    findings.push(fine(format!("{}: features of {}, input {size} × {size}", encoder.name(), encoder.dim())));
    findings.push(fine(format!("preprocessing: {}", encoder.preprocess().describe())));
    findings.extend(beside_known(encoder));
    let pictures: Vec<Vec<f32>> = COLOURS
        .iter()
        .map(|(_, rgb)| {
            let picture = Picture { width: 64, height: 64, rgb: rgb.repeat(64 * 64) };
            preprocess(&picture, encoder.preprocess())
        })
        .collect::<Result<_>>()?;
    let images = encoder.images(&pictures.concat())?;
    // A parity vector: alone or among others, a picture has the same feature.
    let alone = encoder.images(&pictures[1])?;
    let difference = alone.row(0).iter().zip(images.row(1)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let head: Vec<String> = alone.row(0)[..alone.dim().min(4)].iter().map(|v| format!("{v:+.4}")).collect();
    findings.push(if difference < 1e-4 {
        fine(format!("parity vector (a green square): {} …", head.join(" ")))
    } else {
        wrong(
            format!("a picture's feature depends on its batch by {difference:.1e}"),
            "the model mixes pictures; export it without batch statistics",
        )
    });
    if encoder.name() == tiny::NAME {
        findings
            .push(fine("knows ten drawn shapes and no colours: `ultta demo --pictures shapes` draws them"));
        return Ok(findings);
    }
    let prompts: Vec<String> = COLOURS.iter().map(|(name, _)| format!("the colour {name}")).collect();
    let texts = match encoder.texts(&prompts) {
        Ok(texts) => texts,
        Err(error) => {
            findings.push(wrong(format!("texts cannot be encoded: {error}"), "add the tokeniser's files"));
            return Ok(findings);
        }
    };
    let cosines: Vec<f32> = (0..images.rows())
        .flat_map(|i| (0..texts.rows()).map(move |t| (i, t)))
        .map(|(i, t)| dot(images.row(i), texts.row(t)))
        .collect();
    let mean = cosines.iter().sum::<f32>() / cosines.len() as f32;
    let right = (0..images.rows())
        .filter(|&i| {
            let best = (0..texts.rows()).max_by(|&a, &b| {
                dot(images.row(i), texts.row(a)).total_cmp(&dot(images.row(i), texts.row(b)))
            });
            best == Some(i)
        })
        .count();
    findings.push(match (mean, right) {
        (m, r) if (0.0..0.5).contains(&m) && r >= 3 => {
            fine(format!("image–text cosines around {m:.2}; {r} of 4 colours recognised"))
        }
        (m, r) => doubtful(
            format!("image–text cosines around {m:.2} (CLIP: 0.15 to 0.35), {r} of 4 colours recognised"),
            "a trained model recognises plain colours: check weights, preprocessing and tokeniser",
        ),
    });
    Ok(findings)
}

/// Sizes, logit scale, bias and preprocessing beside those of the models that it is or may be.
fn beside_known(encoder: &dyn Encoder) -> Vec<Finding> {
    let (size, dim) = (encoder.preprocess().size, encoder.dim());
    let (scale, bias) = (encoder.logit_scale(), encoder.logit_bias());
    if encoder.name() == tiny::NAME {
        return vec![fine(format!("logit scale {scale:.2}; ships with the program"))];
    }
    let trained = "check that these are the trained weights, not an initialisation";
    let like = models::like(encoder.name(), size, dim);
    let Some(first) = like.first() else {
        return vec![match scale {
            s if (10.0..=200.0).contains(&s) => fine(format!("logit scale {s:.2}; none of the known models")),
            s => doubtful(format!("logit scale {s:.2}; CLIP has about 100, SigLIP about 115"), trained),
        }];
    };
    if (first.size, first.dim) != (size, dim) {
        let expected = format!("{} has features of {}, input {}", first.name, first.dim, first.size);
        return vec![wrong(expected, "this is another model than its name says: look at its configuration")];
    }
    let names = |of: &[&Known]| of.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
    let fits =
        |known: &&&Known| known.family.scales().contains(&scale) && known.family.biases().contains(&bias);
    let fitting: Vec<&Known> = like.iter().filter(fits).copied().collect();
    if fitting.is_empty() {
        let range = |known: &&Known| {
            let (scales, biases) = (known.family.scales(), known.family.biases());
            let bias = match known.family {
                Family::SigLip => format!(" and a bias of {} to {}", biases.start(), biases.end()),
                _ => String::new(),
            };
            format!("{} a scale of {} to {}{bias}", known.name, scales.start(), scales.end())
        };
        let expected = like.iter().map(range).collect::<Vec<_>>().join(", ");
        return vec![doubtful(
            format!("logit scale {scale:.2}, bias {bias:.2}; by its sizes expected of {expected}"),
            trained,
        )];
    }
    let bias = if bias == 0.0 { String::new() } else { format!(", bias {bias:.2}") };
    let mut findings = vec![fine(format!("logit scale {scale:.2}{bias}, as of {}", names(&fitting)))];
    if let [known] = fitting[..]
        && let Some((low, high)) = known.cosine
    {
        let range = if low == high { format!("{low:.2}") } else { format!("{low:.2} to {high:.2}") };
        findings.push(Finding {
            verdict: Verdict::Known,
            what: format!(
                "its photographs have a cosine of {range} with the best class text: known, not measured here"
            ),
            advice: "measure it on pictures of yours: PATH and --head FILE".into(),
        });
    }
    let openai = Preprocess::openai(size);
    let far = |a: [f32; 3], b: [f32; 3]| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 0.02);
    let given = encoder.preprocess();
    if fitting.iter().all(|known| known.family == Family::OpenAi)
        && (far(given.mean, openai.mean) || far(given.std, openai.std))
    {
        findings.push(doubtful(
            format!(
                "{} was trained with mean {:?} and deviation {:?}",
                names(&fitting),
                openai.mean,
                openai.std
            ),
            "the configuration of the preprocessing is another model's: take that of the publication",
        ));
    }
    findings
}

/// Checks a head: classes that are nearly the same, names that differ only in spelling.
pub fn head(head: &Head) -> Vec<Finding> {
    let mut findings = Vec::new();
    let n = head.n_classes();
    findings.push(fine(format!(
        "{n} classes, dimension {}, logit scale {:.2}",
        head.dim(),
        head.logit_scale()
    )));
    if !(10.0..=200.0).contains(&head.logit_scale()) {
        findings.push(doubtful(
            format!("logit scale {:.3}; CLIP has about 100", head.logit_scale()),
            "it is exp(logit_scale) of the checkpoint, not the stored parameter (about 4.6)",
        ));
    }
    for (first, second) in head.homonyms() {
        let name = &head.classes()[first];
        findings.push(doubtful(
            format!("classes {first} and {second} are both called {name:?}"),
            "tell them apart in words (\"crane bird\", \"construction crane\")",
        ));
    }
    let mut near = Vec::new();
    // In very large heads only neighbours in the list are compared: pairs grow with the square.
    let reach = if n <= 2000 { n } else { 50 };
    for a in 0..n {
        for b in a + 1..n.min(a + reach) {
            if head.classes()[a] != head.classes()[b]
                && plain(&head.classes()[a]) == plain(&head.classes()[b])
            {
                findings.push(wrong(
                    format!(
                        "classes {:?} and {:?} differ only in spelling",
                        head.classes()[a],
                        head.classes()[b]
                    ),
                    "merge them or rename one",
                ));
            }
            let cosine = dot(head.prototype(a), head.prototype(b));
            if cosine > 0.98 {
                near.push((cosine, a, b));
            }
        }
    }
    near.sort_by(|x, y| y.0.total_cmp(&x.0));
    for (cosine, a, b) in near.iter().take(5) {
        let (a, b) = (&head.classes()[*a], &head.classes()[*b]);
        findings.push(doubtful(
            format!("classes {a:?} and {b:?} have nearly the same prototype (cosine {cosine:.3})"),
            "describe them by what differs, or give exemplar pictures",
        ));
    }
    if near.is_empty() {
        findings.push(fine("no two classes have nearly the same prototype"));
    }
    findings
}

/// Checks features against a head: norms, cosines that betray another encoder, classes in another order.
///
/// `norms` are those of the rows as they are in the file.
pub fn features(
    features: &Features<'_>,
    norms: &[f64],
    labels: Option<&[usize]>,
    head: Option<&Head>,
) -> Vec<Finding> {
    let mut findings = vec![fine(format!("{} rows, dimension {}", features.rows(), features.dim()))];
    let (low, high) = norms.iter().fold((f64::INFINITY, 0.0f64), |(l, h), &n| (l.min(n), h.max(n)));
    findings.push(match (low, high) {
        (l, h) if l > 0.99 && h < 1.01 => fine("rows are unit vectors"),
        (l, h) => wrong(
            format!(
                "norms between {l:.3} and {h:.3}, expected 1; the first that is wrong is that of row {}",
                norms.iter().position(|n| !(0.99..=1.01).contains(n)).unwrap_or(0)
            ),
            "normalise the rows when they are encoded, or have them scaled when they are read",
        ),
    });
    let rows = features.rows().min(2000);
    // Spread over all of them: a file in the order of its classes shows every class.
    let sample: Vec<usize> = (0..rows).map(|i| i * features.rows() / rows).collect();
    // Pictures of one encoder lie in a cone: 0.3 to 0.9 for CLIP and SigLIP.
    let pairs: Vec<f32> = sample.windows(2).map(|p| dot(features.row(p[0]), features.row(p[1]))).collect();
    if !pairs.is_empty() {
        findings.push(between_pictures(pairs.iter().sum::<f32>() / pairs.len() as f32));
    }
    let Some(head) = head else { return findings };
    if head.dim() != features.dim() {
        findings.push(wrong(
            format!("the head has dimension {}, the features {}", head.dim(), features.dim()),
            "encode both with the same model",
        ));
        return findings;
    }
    let mut top = Vec::with_capacity(sample.len());
    let mut best = Vec::with_capacity(sample.len());
    for &row in &sample {
        let scores = (0..head.n_classes()).map(|c| dot(features.row(row), head.prototype(c)));
        let (class, cosine) = scores.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0));
        top.push(class);
        best.push(cosine);
    }
    findings.push(to_the_best_class(best.iter().sum::<f32>() / best.len().max(1) as f32, head));
    let told = match labels {
        Some(labels) => {
            let answers: Vec<_> = sample.iter().map(|&row| labels[row]).zip(top).collect();
            findings.push(belonging(labels, head.n_classes(), answers));
            "cosines and answers"
        }
        None => {
            findings.push(doubtful(
                "there are no labels: whether the head's classes are those of the pictures was not judged",
                "give a file with labels, or look at some answers of `ultta run`",
            ));
            "cosines"
        }
    };
    if sample.len() < features.rows() {
        let (some, all) = (sample.len(), features.rows());
        findings.push(fine(format!("{told} are those of {some} rows, spread over {all}")));
    }
    findings
}

/// Whether labels and a head of `n` classes belong together, by the labels of all rows and labels and answers of some.
fn belonging(labels: &[usize], n: usize, answers: Vec<(usize, usize)>) -> Finding {
    let (low, high) = labels.iter().fold((usize::MAX, 0), |(l, h), &label| (l.min(label), h.max(label)));
    if high < n {
        return belong::judge(n, &answers);
    }
    if (low, high) == (1, n) {
        let moved = answers.into_iter().map(|(label, class)| (label - 1, class)).collect::<Vec<_>>();
        let judged = belong::judge(n, &moved);
        if judged.verdict == Verdict::Fine {
            return wrong(
                format!("the labels begin at 1; moved by -1: {}", judged.what),
                "subtract 1 from every label",
            );
        }
    }
    wrong(
        format!(
            "these do not belong together: the labels go up to {high}, the head has {n} classes, 0 to {}",
            n - 1
        ),
        "give the head of these classes",
    )
}

/// What the mean cosine between pictures tells.
fn between_pictures(mean: f32) -> Finding {
    match mean {
        m if m < 0.05 => doubtful(
            format!("cosines between pictures around {m:.2}; CLIP's are 0.3 to 0.9"),
            "features of a CLIP image tower are not centred; were they whitened, or are they of another kind?",
        ),
        m if m > 0.995 => wrong(
            format!("all rows are nearly the same (cosine {m:.3})"),
            "the pictures were not normalised as the model wants, or all are one picture",
        ),
        m => fine(format!("cosines between pictures around {m:.2}")),
    }
}

/// What the mean cosine between pictures and their best class tells.
fn to_the_best_class(mean: f32, head: &Head) -> Finding {
    let known = known_cosine(head);
    let (name, low, high) = known.unwrap_or(("CLIP", 0.2, 0.35));
    let usual = (low - 0.08..=high + 0.08).contains(&mean);
    let found = format!("the best class has a cosine of {mean:.2} on average");
    let beside = format!("{found}; {name}'s texts give {low:.2} to {high:.2}");
    if usual || (known.is_none() && (0.1..=0.6).contains(&mean)) {
        fine(found)
    } else if mean < 0.1 {
        wrong(
            beside,
            "features and head are of different encoders (or one of them of another checkpoint): encode both anew",
        )
    } else if mean > 0.6 {
        doubtful(beside, "fine if the head was made from pictures; otherwise check what was encoded")
    } else {
        doubtful(beside, "check that features and head are of the encoder that the head names")
    }
}

/// The encoder that a head names, and the cosines of its pictures with the best class, if they are known.
fn known_cosine(head: &Head) -> Option<(&'static str, f32, f32)> {
    let name = head.metadata().get("encoder")?;
    if name == tiny::NAME {
        let (low, high) = tiny::COSINE;
        return Some((tiny::NAME, low, high));
    }
    let known = models::like(name, 0, 0).into_iter().next()?;
    let (low, high) = known.cosine?;
    Some((known.name, low, high))
}

/// What a features file and a head say of their encoders and classes: metadata of both, as files carry them.
pub fn provenance(features: &BTreeMap<String, String>, head: &Head) -> Vec<Finding> {
    let mut findings = Vec::new();
    let said = |of: &BTreeMap<String, String>, key: &str| of.get(key).filter(|v| !v.is_empty()).cloned();
    let name = |of: &BTreeMap<String, String>| said(of, "encoder").unwrap_or_else(|| "unknown".into());
    let digests = (said(features, "encoder_digest"), said(head.metadata(), "encoder_digest"));
    let encoders = format!("features are of {}, the head of {}", name(features), name(head.metadata()));
    match digests {
        (Some(ours), Some(theirs)) if ours != theirs => {
            findings.push(wrong(encoders, "these do not belong together: encode both with the same model"));
        }
        (Some(_), Some(_)) => {}
        _ if other_encoder(features, head.metadata()) => findings.push(doubtful(
            encoders,
            "the names differ: fine if both are of one space; otherwise encode both with the same model",
        )),
        _ => {}
    }
    let listed = said(features, "classes").and_then(|c| serde_json::from_str::<Vec<String>>(&c).ok());
    findings.extend(listed.filter(|listed| !listed.is_empty()).and_then(|listed| classes(&listed, head)));
    findings
}

/// Whether metadata name encoders that cannot be the same.
pub fn other_encoder(features: &BTreeMap<String, String>, head: &BTreeMap<String, String>) -> bool {
    let said = |of: &BTreeMap<String, String>, key: &str| of.get(key).filter(|v| !v.is_empty()).cloned();
    if let (Some(ours), Some(theirs)) = (said(features, "encoder_digest"), said(head, "encoder_digest")) {
        return ours != theirs;
    }
    let (Some(ours), Some(theirs)) = (said(features, "encoder"), said(head, "encoder")) else { return false };
    // A short name stands for its hub name; what follows a name ("text") is a remark.
    let plain = |name: &str| models::full_name(name.trim()).to_lowercase();
    let (ours, theirs) = (plain(&ours), plain(&theirs));
    !ours.contains(&theirs) && !theirs.contains(&ours)
}

/// Class names that a features file lists, beside those of a head.
fn classes(listed: &[String], head: &Head) -> Option<Finding> {
    let [ours, theirs] =
        [listed, head.classes()].map(|names| names.iter().map(|name| plain(name)).collect::<Vec<_>>());
    if ours == theirs {
        return None;
    }
    let at = ours.iter().zip(&theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
    let of = |list: &[String]| list.get(at).map_or("missing".into(), |name| format!("{name:?}"));
    let what =
        format!("class {at} is {} in the features file and {} in the head", of(listed), of(head.classes()));
    Some(match lacking(&ours, head) {
        Some(lacking) => wrong(
            format!("{what}; {lacking}"),
            "these do not belong together: give the head of these classes",
        ),
        None => wrong(what, "give the head its classes in the order of the labels"),
    })
}

/// Names of classes that a head does not have, in words; `None` if it has all of them.
fn lacking(names: &[String], head: &Head) -> Option<String> {
    let theirs: Vec<String> = head.classes().iter().map(|name| plain(name)).collect();
    let absent: Vec<&str> =
        names.iter().filter(|name| !theirs.contains(&plain(name))).map(String::as_str).collect();
    let (n, all) = (absent.len(), names.len());
    let some = absent.iter().take(5).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if n > 5 { ", …" } else { "" };
    (n > 0).then(|| format!("the head lacks {n} of the {all} classes: {some}{more}"))
}

/// Whether folders of pictures are named as the classes of a head, or numbered. One folder of another name is a place, not a class.
pub fn folders(names: &[String], head: &Head) -> Option<Finding> {
    if names.iter().all(|name| name.parse().is_ok_and(|label: usize| label < head.n_classes())) {
        return None;
    }
    let theirs: Vec<String> = head.classes().iter().map(|name| plain(name)).collect();
    let known = names.iter().filter(|name| theirs.contains(&plain(name))).count();
    match (known, lacking(names, head)) {
        (_, None) => (known > 0).then(|| fine(format!("{known} folders are named as classes of the head"))),
        (0, Some(lacking)) => (names.len() > 1).then(|| {
            doubtful(
                format!("no folder is named as a class of the head: {lacking}"),
                "if folders are classes, give the head of these classes",
            )
        }),
        (_, Some(lacking)) => Some(wrong(
            format!("by the names of the folders {lacking}"),
            "give the head of these classes: it answers such pictures with one that it has",
        )),
    }
}

/// A class name, however it is spelt.
fn plain(name: &str) -> String {
    prompts::readable(&name.to_lowercase())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests;
