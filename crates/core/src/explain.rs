//! [`Explanation`]: why a row is answered as it is. An answer's logits are a sum; each *lever* has its part in it, in
//! nats per class.

use serde::{Deserialize, Serialize};

use crate::blocks::Blocks;
use crate::guard::Standing;
use crate::scores::{softmax, top_k};
use crate::session::Answers;
use crate::step::{Row, Temperature};
use crate::{Error, Features, Head, Input, Result, Scores, Session, Step, What};

/// Similar scenes in an explanation, at most.
const SIMILAR: usize = 5;

/// What has a part in an answer's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lever {
    /// The frozen model: what the class texts say of this row.
    Text,
    /// Labels that somebody gave for earlier rows.
    Labels,
    /// The stream's own class means: the image evidence.
    Image,
    /// How often the classes occur in this stream.
    Prior,
    /// The rows of the same scene before this one: a near-copy is answered from the mean of its scene.
    Scene,
    /// All that a method adds which does not tell its levers apart.
    Method,
}

impl Lever {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Lever::Text => "text",
            Lever::Labels => "labels",
            Lever::Image => "image",
            Lever::Prior => "prior",
            Lever::Scene => "scene",
            Lever::Method => "method",
        }
    }
}

/// The part of a lever in an answer: nats of every class.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The lever.
    pub lever: Lever,
    /// Its nats per class.
    pub nats: Vec<f32>,
}

/// A class in an explanation.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedClass {
    /// Index of the class.
    pub label: usize,
    /// Its logit in the answer: the sum of `nats`.
    pub logit: f32,
    /// Its calibrated probability.
    pub prob: f32,
    /// The frozen model's probability.
    pub zero_shot: f32,
    /// The nats of each lever, in the order of [`Explanation::levers`].
    pub nats: Vec<f32>,
}

/// An earlier scene that looks like a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similar {
    /// Id of the scene's first row.
    pub id: u64,
    /// Cosine of the two, from features that are kept rounded to 8 bits.
    pub cosine: f32,
    /// What it was answered.
    pub label: usize,
    /// The label that was given for it, if one was.
    pub corrected: Option<usize>,
}

/// Why a row is answered as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The answer.
    pub row: Row,
    /// Where the session stands: at zero-shot the frozen model is explained.
    pub standing: Standing,
    /// The temperature that turns logits into the calibrated probabilities.
    pub temperature: f32,
    /// The levers that have a part in it, the frozen model first.
    pub levers: Vec<Lever>,
    /// The best few classes, and the frozen model's answer: best first.
    pub classes: Vec<ExplainedClass>,
    /// Where the answer is not the frozen model's: the lever that speaks most for the one against the other.
    pub flipped_by: Option<Lever>,
    /// The label that was given for the sample, where an earlier one is explained by its id.
    pub corrected: Option<usize>,
    /// The most similar earlier scenes, the most similar first.
    pub similar: Vec<Similar>,
}

/// An explanation with the names of its classes: what the command line, the service and Python tell, field by field the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedExplanation {
    /// The class answered.
    pub label: usize,
    /// Its name.
    pub class: String,
    /// Its calibrated probability.
    pub prob: f32,
    /// The frozen model's answer.
    pub zero_shot_label: usize,
    /// Its name.
    pub zero_shot_class: String,
    /// Its probability.
    pub zero_shot_prob: f32,
    /// Where the session stands.
    pub standing: Standing,
    /// The temperature that turns logits into the calibrated probabilities.
    pub temperature: f32,
    /// The lever that speaks most for the answer, where it is not the frozen model's.
    pub flipped_by: Option<String>,
    /// The class that somebody gave for the sample, where it is asked for by its id.
    pub corrected: Option<String>,
    /// The levers that have a part in it, the frozen model first.
    pub levers: Vec<String>,
    /// The best few classes, and the frozen model's answer: best first.
    pub classes: Vec<NamedClass>,
    /// The most similar earlier scenes.
    pub similar: Vec<NamedScene>,
}

/// A class of an explanation, with its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedClass {
    /// Index of the class.
    pub label: usize,
    /// Its name.
    pub class: String,
    /// Its logit: the sum of `nats`.
    pub logit: f32,
    /// Its calibrated probability.
    pub prob: f32,
    /// The frozen model's probability.
    pub zero_shot: f32,
    /// Nats of each lever, in the order of `levers`.
    pub nats: Vec<f32>,
}

/// An earlier scene that looks like a row, with the names of its classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedScene {
    /// Id of its first row.
    pub id: u64,
    /// Cosine of the two.
    pub cosine: f32,
    /// What it was answered.
    pub label: usize,
    /// The name of that class.
    pub class: String,
    /// The class that somebody gave for it.
    pub corrected: Option<String>,
}

impl Explanation {
    /// With the names of this head's classes.
    pub fn named(self, head: &Head) -> NamedExplanation {
        let name = |label: usize| head.classes()[label].clone();
        let Self { row, standing, temperature, levers, classes, flipped_by, corrected, similar } = self;
        let lever = |lever: Lever| lever.name().to_string();
        let class = |c: ExplainedClass| NamedClass {
            label: c.label,
            class: name(c.label),
            logit: c.logit,
            prob: c.prob,
            zero_shot: c.zero_shot,
            nats: c.nats,
        };
        let scene = |s: Similar| NamedScene {
            id: s.id,
            cosine: s.cosine,
            label: s.label,
            class: name(s.label),
            corrected: s.corrected.map(name),
        };
        NamedExplanation {
            label: row.label,
            class: name(row.label),
            prob: row.prob,
            zero_shot_label: row.zero_shot.label,
            zero_shot_class: name(row.zero_shot.label),
            zero_shot_prob: row.zero_shot.prob,
            standing,
            temperature,
            flipped_by: flipped_by.map(lever),
            corrected: corrected.map(name),
            levers: levers.into_iter().map(lever).collect(),
            classes: classes.into_iter().map(class).collect(),
            similar: similar.into_iter().map(scene).collect(),
        }
    }
}

/// The lever whose part speaks most for one class against another; the frozen model's own part is no lever.
pub(crate) fn flipped_by(parts: &[Part], answer: usize, zero_shot: usize) -> Option<Lever> {
    let speaks = |part: &&Part| part.nats[answer] - part.nats[zero_shot];
    let levers = parts.iter().filter(|part| answer != zero_shot && part.lever != Lever::Text);
    levers.max_by(|a, b| speaks(a).total_cmp(&speaks(b))).map(|part| part.lever)
}

impl Session {
    /// Why a row is answered as it is, under the state as it is now: the parts of its logits for the `best` classes.
    /// Changes nothing.
    pub fn explain<'a>(&self, input: impl Into<Input<'a>>, best: usize) -> Result<Explanation> {
        let input = input.into();
        self.check(&input)?;
        if input.features.rows() != 1 {
            return Err(Error::Shape {
                what: What::Other("rows to explain"),
                expected: 1,
                got: input.features.rows(),
            });
        }
        let mut answers = Answers::new(&input, self.head.n_classes());
        let (mut weights, mut parts) = (Scores::default(), Vec::new());
        for block in Blocks::new(&self.head, &input, self.joint()) {
            for rows in block.parts(self.next_id) {
                let part = block.part(rows, &mut weights);
                let unknown = [self.unknown.is_unknown(part.seen(0)).0];
                let learn = [self.learning && part.may_learn(0) && !unknown[0]];
                let batch = part.batch(self.next_id, &learn);
                let prediction;
                (prediction, parts) = match self.guard.standing() {
                    Standing::ZeroShot => {
                        let nats = batch.zero_shot.row(0).to_vec();
                        (self.peek_frozen(&batch), vec![Part { lever: Lever::Text, nats }])
                    }
                    Standing::Healthy | Standing::Restored => self.adapter.explain(&batch),
                };
                answers.push(&batch, prediction, &unknown, self.totals.scenes, false);
            }
            answers.push_zero_shot(block.zero_shot());
        }
        let step = answers.into_step(self.health());
        Ok(self.explanation(&step, parts, &input, best))
    }

    fn explanation(&self, step: &Step, parts: Vec<Part>, input: &Input<'_>, best: usize) -> Explanation {
        let (row, scores) = (step.rows[0], step.prediction.scores.row(0));
        let mut shown: Vec<usize> = top_k(scores, best.max(1)).into_iter().map(|(class, _)| class).collect();
        if !shown.contains(&row.zero_shot.label) {
            shown.push(row.zero_shot.label);
        }
        let probs = step.probs(0, Temperature::Cal);
        let mut frozen = vec![0.0; scores.len()];
        softmax(step.zero_shot.row(0), 1.0, &mut frozen);
        let class = |label: usize| ExplainedClass {
            label,
            logit: scores[label],
            prob: probs[label],
            zero_shot: frozen[label],
            nats: parts.iter().map(|part| part.nats[label]).collect(),
        };
        Explanation {
            row,
            standing: self.guard.standing(),
            temperature: step.prediction.tau_cal[0],
            classes: shown.into_iter().map(class).collect(),
            flipped_by: flipped_by(&parts, row.label, row.zero_shot.label),
            corrected: None,
            levers: parts.iter().map(|part| part.lever).collect(),
            similar: self.adapter.similar(input.features.row(0), SIMILAR),
        }
    }

    /// As [`explain`](Self::explain), for an earlier sample by its id: from its features as they are kept, rounded, under the
    /// state as it is now.
    pub fn explain_sample(&self, id: u64, best: usize) -> Result<Explanation> {
        let (first, features) = self.adapter.kept_features(id)?;
        let features = Features::normalized(features, self.head.dim())?;
        let mut explanation = self.explain(Input::new(&features), best)?;
        explanation.row.id = id;
        let given = self.corrections().into_iter().find(|(sample, _)| *sample == first);
        explanation.corrected = given.map(|(_, label)| label);
        explanation.similar.retain(|similar| similar.id != first);
        Ok(explanation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lever_that_speaks_most_for_the_answer_flipped_it() {
        let part = |lever, nats: [f32; 2]| Part { lever, nats: nats.to_vec() };
        let parts =
            [part(Lever::Text, [1.0, 3.0]), part(Lever::Image, [1.0, 0.0]), part(Lever::Prior, [2.0, 0.0])];
        assert_eq!(flipped_by(&parts, 0, 1), Some(Lever::Prior));
        assert_eq!(flipped_by(&parts, 1, 1), None);
        assert_eq!(flipped_by(&parts[..1], 0, 1), None, "the frozen model alone flips nothing");
    }
}
