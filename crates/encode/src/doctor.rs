//! Checks for what costs users days: another encoder's features, wrong normalisation, wrong class order, prompts
//! that collide.

use ultta::{Features, Head};

use crate::decode::Picture;
use crate::encoder::Encoder;
use crate::preprocess::preprocess;
use crate::{Result, prompts};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
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
    let scale = encoder.logit_scale();
    findings.push(match scale {
        s if (10.0..=200.0).contains(&s) => fine(format!("logit scale {s:.2}")),
        s => doubtful(
            format!("logit scale {s:.2}; CLIP has about 100, SigLIP about 115"),
            "check that these are the trained weights, not an initialisation",
        ),
    });
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
    let plain = |name: &str| prompts::readable(&name.to_lowercase());
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
            "describe them by what differs, or give --exemplars",
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
            "normalise the rows when they are encoded, or run with --normalize",
        ),
    });
    let rows = features.rows().min(2000);
    let step = (features.rows() / rows.max(1)).max(1);
    let sample: Vec<usize> = (0..features.rows()).step_by(step).take(rows).collect();
    // Pictures of one encoder lie in a cone: 0.3 to 0.9 for CLIP and SigLIP.
    let pairs: Vec<f32> = sample.windows(2).map(|p| dot(features.row(p[0]), features.row(p[1]))).collect();
    if !pairs.is_empty() {
        let mean = pairs.iter().sum::<f32>() / pairs.len() as f32;
        findings.push(match mean {
            m if m < 0.05 => doubtful(
                format!("cosines between pictures around {m:.2}; CLIP's are 0.3 to 0.9"),
                "features of a CLIP image tower are not centred; were they whitened, or are they of another kind?",
            ),
            m if m > 0.995 => wrong(
                format!("all rows are nearly the same (cosine {m:.3})"),
                "the pictures were not normalised as the model wants, or all are one picture",
            ),
            m => fine(format!("cosines between pictures around {m:.2}")),
        });
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
    let mean = best.iter().sum::<f32>() / best.len().max(1) as f32;
    findings.push(match mean {
        m if m < 0.1 => wrong(
            format!("the best class has a cosine of {m:.2} on average; CLIP's have 0.2 to 0.35"),
            "features and head are of different encoders (or one of them of another checkpoint): encode both anew",
        ),
        m if m > 0.6 => doubtful(
            format!("the best class has a cosine of {m:.2} on average; texts give 0.2 to 0.35"),
            "fine if the head was made from pictures; otherwise check what was encoded",
        ),
        m => fine(format!("the best class has a cosine of {m:.2} on average")),
    });
    if let Some(labels) = labels {
        findings.extend(order(&sample, &top, labels, head));
    }
    findings
}

/// Whether the labels are those of the head, and if not, which permutation they betray.
fn order(sample: &[usize], top: &[usize], labels: &[usize], head: &Head) -> Vec<Finding> {
    let n = head.n_classes();
    if let Some(&label) = labels.iter().find(|&&label| label >= n) {
        return vec![wrong(
            format!("label {label} is not below the number of classes, {n}"),
            "the head has too few classes, or the labels begin at 1",
        )];
    }
    let share = |shift: i64| {
        let hits = sample
            .iter()
            .zip(top)
            .filter(|&(&row, &class)| (labels[row] as i64 + shift).rem_euclid(n as i64) as usize == class)
            .count();
        hits as f64 / sample.len().max(1) as f64
    };
    let right = share(0);
    let chance = 1.0 / n as f64;
    let (mut best, mut shift) = (right, 0i64);
    for candidate in [-1, 1] {
        if share(candidate) > best {
            (best, shift) = (share(candidate), candidate);
        }
    }
    if shift != 0 && best > 3.0 * right.max(chance) {
        return vec![wrong(
            format!(
                "the labels fit when moved by {shift:+}: {:.0} % instead of {:.0} %",
                100.0 * best,
                100.0 * right
            ),
            "labels and class names are counted from different numbers",
        )];
    }
    // For each label, the class answered most: a permutation if the names are in another order.
    let mut votes = vec![std::collections::HashMap::<usize, usize>::new(); n];
    for (&row, &class) in sample.iter().zip(top) {
        *votes[labels[row]].entry(class).or_default() += 1;
    }
    let agreeing: usize = votes.iter().filter_map(|v| v.values().max()).sum();
    let agreeing = agreeing as f64 / sample.len().max(1) as f64;
    let shown = votes.iter().filter(|v| !v.is_empty()).count();
    if sample.len() >= 4 * shown && agreeing > 0.5 && right < 0.5 * agreeing {
        let advice = if sorts_as_text(n) {
            "class folders sort as text (0, 1, 10, 2 …) or the names are in another order than the labels"
        } else {
            "the class names are in another order than the labels"
        };
        return vec![wrong(
            format!(
                "zero-shot answers agree within classes ({:.0} %) but not with the labels ({:.0} %)",
                100.0 * agreeing,
                100.0 * right
            ),
            advice,
        )];
    }
    vec![if right > 2.0 * chance {
        fine(format!("zero-shot top-1 {:.1} %", 100.0 * right))
    } else {
        doubtful(
            format!("zero-shot top-1 {:.1} %, chance is {:.1} %", 100.0 * right, 100.0 * chance),
            "check class names, their order and the encoder",
        )
    }]
}

fn sorts_as_text(n: usize) -> bool {
    n > 10
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn mistakes_are_named() {
        let norms = vec![1.0; 40];
        let (z, labels, head) = data(|c| c);
        assert_eq!(worst(&features(&z, &norms, Some(&labels), Some(&head))).0, Verdict::Fine);
        let (verdict, what) = worst(&features(&z, &[10.0; 40], Some(&labels), Some(&head)));
        assert!(verdict == Verdict::Wrong && what.contains("norms"), "{what}");
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
    }
}
