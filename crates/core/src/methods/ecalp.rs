//! ECALP: labels spread from the class texts over a graph of all images seen so far.
//!
//! Li et al., *Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of Vision-Language
//! Model*, ICLR 2025, arXiv 2412.18303, with its released code. Nodes are the C class texts, the images 0 … i, and a twin
//! of image i that is dropped afterwards:
//!
//! ```text
//! ω = norm(variance of the text rows w, per coordinate);   a_uv = cos(ω∘z_u, z_v) for images u ≤ v, u = v included
//! each image links to its 8 largest a and its 3 largest ⟨z, w⟩; a link weighs its value to the power γ = 10
//! W = links + linksᵀ,  D its row sums,  W̃_uv = W_uv / ((√D_u + 1e-6)(√D_v + 1e-6))
//! Y of text c is e_c and stays; images start at what they carry (i and the twin at 0); three times  Y ← W̃ Y
//! answer: the twin's row of Y, times 1e4.   Each image then carries its best class at a fifth of its value
//! ```
//!
//! The released code's quirk, `twin`: the answer is read off a second copy of the sample, which links to the first and
//! takes a place among the neighbours of others. `twin = false` reads the sample's own row. Only the order of an answer
//! means anything, its probabilities do not: softmax(1e4 Y). Text pull falls as 1/√(images that link to a text), a hidden
//! prior for balance.
//!
//! Departures: none that we know of; equal values are taken in order of age, and sums are f32, as released.
//!
//! Memory and time per sample grow with the samples seen. Once `max_samples` are held, later ones are answered but do not
//! join; an evaluation of more is refused.

use serde::{Deserialize, Serialize};

use self::graph::{Links, Spread, power};
use super::math;
use super::memory::check_bytes;
use super::views::Sample;
use crate::adapter::{Adapter, Batch, Card, Grouping, Growth, Observed, Prediction, Readout, Vitals};
use crate::config::in_range;
use crate::{Error, Head, Result, Scores, State, kernels};

mod graph;

/// Settings of ECALP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EcalpConfig {
    /// Images that an image links to.
    pub neighbours: usize,
    /// Class texts that an image links to.
    pub texts: usize,
    /// Power of a similarity that a link weighs (γ).
    pub gamma: f64,
    /// Times that labels are passed on per sample.
    pub rounds: usize,
    /// A carried label has its value divided by this.
    pub carry: f64,
    /// Factor from a propagated label to a logit.
    pub sharpness: f64,
    /// Whether the answer is read off a second copy of the sample, as released.
    pub twin: bool,
    /// Share of the views, the most certain ones, that stand for a sample.
    pub view_share: f64,
    /// Samples held; later ones are answered but do not join. 0 is no limit.
    pub max_samples: u64,
    /// Bytes that the graph may take.
    pub max_bytes: u64,
}

impl Default for EcalpConfig {
    fn default() -> Self {
        Self {
            neighbours: 8,
            texts: 3,
            gamma: 10.0,
            rounds: 3,
            carry: 5.0,
            sharpness: 1e4,
            twin: true,
            view_share: 1.0,
            // More than any stream of the field's batteries; 0.2 GB at d = 512.
            max_samples: 60_000,
            max_bytes: 4 << 30,
        }
    }
}

impl EcalpConfig {
    /// The adapter for a head.
    pub(crate) fn build(&self, head: &Head) -> Result<Ecalp> {
        let range = |k: &str, v: f64, lo: f64, hi: f64| in_range(&format!("method.ecalp.{k}"), v, lo..=hi);
        range("neighbours", self.neighbours as f64, 1.0, 1e3)?;
        range("texts", self.texts as f64, 1.0, 1e3)?;
        range("gamma", self.gamma, 1e-3, 1e3)?;
        range("rounds", self.rounds as f64, 1.0, 1e3)?;
        range("carry", self.carry, 1e-3, 1e9)?;
        range("sharpness", self.sharpness, 1e-9, 1e12)?;
        range("view_share", self.view_share, 0.0, 1.0)?;
        let (classes, dim) = (head.n_classes(), head.dim());
        let most = self.max_samples.max(1);
        if self.max_samples > 0 {
            let what = format!("{most} samples of {dim} dimensions (max_samples)");
            check_bytes("method.ecalp.max_bytes", self.max_bytes, bytes(classes, dim, most), &what)?;
        }
        Ok(Ecalp {
            weights: spread_of(head),
            images: Vec::new(),
            graph: Graph { links: Links::new(self.neighbours, self.gamma), texts: Vec::new() },
            carried: Vec::new(),
            head: head.clone(),
            config: self.clone(),
        })
    }
}

/// ω: the variance of the text rows per coordinate, as a unit vector.
fn spread_of(head: &Head) -> Vec<f32> {
    let (classes, dim) = (head.n_classes() as f64, head.dim());
    let mut mean = vec![0.0; dim];
    head.prototypes().chunks(dim).for_each(|row| math::add(&mut mean, 1.0 / classes, row));
    let mut spread = vec![0.0; dim];
    for row in head.prototypes().chunks(dim) {
        for ((s, &w), m) in spread.iter_mut().zip(row).zip(&mean) {
            *s += (w as f64 - m).powi(2) / (classes - 1.0);
        }
    }
    math::normalize(&mut spread);
    spread.iter().map(|&s| s as f32).collect()
}

/// Weighted rows, links both ways, and the labels that are passed on.
fn bytes(classes: usize, dim: usize, samples: u64) -> u64 {
    samples * (4 * dim as u64 + 320 + 12 * classes.min(graph::DENSE) as u64)
}

/// The method's card.
pub(crate) static CARD: Card = Card {
    name: "ecalp",
    summary: "labels spread from the class texts over a graph of all images seen",
    paper: "Li et al., Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of Vision-Language Model, ICLR 2025, arXiv 2412.18303",
    readout: Readout::BeforeObserve,
    grouping: Grouping::Independent,
    growth: Growth::Samples,
    bytes: Some(bytes),
    // `predict` puts the sample into a copy of the graph and reads the answer there.
    includes_itself: true,
    answer_keys: &["sharpness", "max_bytes"],
    reads_views: true,
    ..Card::PLAIN
};

/// ECALP.
#[derive(Clone, Debug)]
pub(crate) struct Ecalp {
    config: EcalpConfig,
    head: Head,
    /// ω.
    weights: Vec<f32>,
    /// norm(ω∘z) of every image.
    images: Vec<f32>,
    graph: Graph,
    /// The class that each image carries, and its value.
    carried: Vec<(u32, f32)>,
}

/// Who links to whom, without the twin.
#[derive(Clone, Debug)]
struct Graph {
    /// The images that each links to.
    links: Links,
    /// The texts that each image links to, and how much the links weigh; `texts` of them per image.
    texts: Vec<(u32, f32)>,
}

impl Graph {
    /// The graph itself, while a sample joins it; an empty one stays behind.
    fn take(&mut self) -> Self {
        Self { links: self.links.take(), texts: std::mem::take(&mut self.texts) }
    }
}

impl Ecalp {
    /// Samples held.
    fn held(&self) -> usize {
        self.carried.len()
    }

    fn has_room(&self) -> bool {
        self.config.max_samples == 0 || (self.held() as u64) < self.config.max_samples
    }

    fn texts_each(&self) -> usize {
        self.config.texts.min(self.head.n_classes())
    }

    /// norm(ω∘z) of a sample, and its similarity a with every image and itself. `known` are its products with the first
    /// images.
    fn similar(&self, z: &[f32], known: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut own: Vec<f64> = self.weights.iter().zip(z).map(|(&w, &z)| w as f64 * z as f64).collect();
        math::normalize(&mut own);
        let own: Vec<f32> = own.iter().map(|&v| v as f32).collect();
        let length = kernels::dot_f64(z, z).sqrt().max(1e-12) as f32;
        let mut similar = vec![0.0; self.held() + 1];
        similar[..known.len()].copy_from_slice(known);
        if self.held() > known.len() {
            let further = &self.images[known.len() * z.len()..];
            kernels::products(z, further, z.len(), 1.0, &mut similar[known.len()..self.held()]);
        }
        similar[self.held()] = kernels::dot_f64(&own, z) as f32;
        similar.iter_mut().for_each(|a| *a /= length);
        (own, similar)
    }

    /// The texts that a sample links to.
    fn nearest_texts(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let larger = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let each = self.texts_each();
        if each < order.len() {
            order.select_nth_unstable_by(each, larger);
            order.truncate(each);
        }
        order.sort_unstable_by(larger);
        let scale = self.head.logit_scale();
        order.into_iter().map(|c| (c, power(logits[c as usize] / scale, self.config.gamma))).collect()
    }

    /// The sample as the newest node of a graph. Returns the answer, and the graph with the sample in it.
    fn spread(&self, sample: &Sample<'_>, known: &[f32], graph: Graph) -> (Vec<f32>, Joined) {
        let Graph { mut links, mut texts } = graph;
        let (row, similar) = self.similar(&sample.feature, known);
        links.join(&similar);
        let near = self.nearest_texts(&sample.logits);
        texts.extend_from_slice(&near);
        let undo = self.config.twin.then(|| {
            texts.extend_from_slice(&near);
            links.join_twin(&similar)
        });
        let spread = Spread {
            links: &links,
            texts: &texts,
            texts_each: self.texts_each(),
            classes: self.head.n_classes(),
            rounds: self.config.rounds,
        };
        let (answer, mut best) = spread.run(&self.carried);
        if let Some(undo) = undo {
            links.leave_twin(undo);
            texts.truncate(texts.len() - near.len());
            best.pop();
        }
        let carry = self.config.carry as f32;
        best.iter_mut().for_each(|(_, value)| *value /= carry);
        (answer, Joined { row, graph: Graph { links, texts }, carried: best })
    }

    fn take_in(&mut self, joined: Joined) {
        self.images.extend(joined.row);
        self.graph = joined.graph;
        self.carried = joined.carried;
    }

    fn write(&self, answer: &[f32], out: &mut [f32]) {
        let sharpness = self.config.sharpness as f32;
        out.iter_mut().zip(answer).for_each(|(o, y)| *o = sharpness * y);
    }
}

/// A sample that has joined, and what images carry then.
struct Joined {
    row: Vec<f32>,
    graph: Graph,
    carried: Vec<(u32, f32)>,
}

impl Adapter for Ecalp {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn predict(&self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        for row in 0..batch.rows() {
            let sample = Sample::confident(batch, row, self.config.view_share);
            let (answer, _) = self.spread(&sample, &[], self.graph.clone());
            self.write(&answer, scores.row_mut(row));
        }
        Prediction::from_scores(scores)
    }

    fn observe(&mut self, batch: &Batch<'_>) -> Observed {
        let mut admitted = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let joins = batch.may_learn(row) && self.has_room();
            if joins {
                let sample = Sample::confident(batch, row, self.config.view_share);
                let (_, joined) = self.spread(&sample, &[], self.graph.clone());
                self.take_in(joined);
            }
            admitted.push(joins);
        }
        Observed { admitted }
    }

    /// Answer and update share the graph, and rows that come together their pass over the images that were there before.
    fn step(&mut self, batch: &Batch<'_>) -> Prediction {
        let mut scores = Scores::zeros(batch.rows(), self.head.n_classes());
        let mut admitted = Vec::with_capacity(batch.rows());
        let samples: Vec<Sample<'_>> =
            (0..batch.rows()).map(|row| Sample::confident(batch, row, self.config.view_share)).collect();
        let (before, dim) = (self.held(), self.head.dim());
        let mut known = vec![0.0; batch.rows() * before];
        if before > 0 {
            let rows: Vec<f32> = samples.iter().flat_map(|sample| sample.feature.iter()).copied().collect();
            kernels::products(&rows, &self.images, dim, 1.0, &mut known);
        }
        for (row, sample) in samples.iter().enumerate() {
            let joins = batch.may_learn(row) && self.has_room();
            let known = &known[row * before..][..before];
            let graph = if joins { self.graph.take() } else { self.graph.clone() };
            let (answer, joined) = self.spread(sample, known, graph);
            self.write(&answer, scores.row_mut(row));
            if joins {
                self.take_in(joined);
            }
            admitted.push(joins);
        }
        let mut prediction = Prediction::from_scores(scores);
        prediction.answers.iter_mut().zip(admitted).for_each(|(answer, joins)| answer.admitted = joins);
        prediction
    }

    fn reset(&mut self) {
        *self = self.config.build(&self.head).expect("the settings were valid when this was built");
    }

    fn save(&self) -> State {
        let mut state = State::default();
        let split = |pairs: &[(u32, f32)]| -> (Vec<u32>, Vec<f32>) { pairs.iter().copied().unzip() };
        state.put("images", &self.images);
        self.graph.links.save(&mut state);
        let (to, weight) = split(&self.graph.texts);
        state.put("texts.to", &to);
        state.put("texts.weight", &weight);
        let (class, value) = split(&self.carried);
        state.put("carried.class", &class);
        state.put("carried.value", &value);
        state
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let classes = self.head.n_classes();
        let pairs = |index: &str, value: &str, len: Option<usize>| -> Result<Vec<(u32, f32)>> {
            let index_of = state.get::<u32>(index)?;
            let values = state.within::<f32>(value, len.unwrap_or(index_of.len()), 0.0..=1e30)?;
            if index_of.len() != values.len() || index_of.iter().any(|&c| c as usize >= classes) {
                return Err(Error::state(format!("{index}: expected {} classes", values.len())));
            }
            Ok(index_of.iter().copied().zip(values.iter().copied()).collect())
        };
        let carried = pairs("carried.class", "carried.value", None)?;
        let texts = pairs("texts.to", "texts.weight", Some(carried.len() * self.texts_each()))?;
        let images = state.within::<f32>("images", carried.len() * self.head.dim(), -1.01..=1.01)?.to_vec();
        let links = self.graph.links.loaded(state, carried.len())?;
        (self.images, self.graph, self.carried) = (images, Graph { links, texts }, carried);
        Ok(())
    }

    fn vitals(&self) -> Vitals {
        let pairs = self.graph.texts.len() + self.carried.len();
        let state_bytes = 4 * (self.weights.len() + self.images.len()) + 8 * pairs + self.graph.links.bytes();
        Vitals { evidence_weight: 1.0, state_bytes, ..Default::default() }
    }
}
