//! Batches for tests that talk to an adapter without a session.

use ultta::internal::{Adapter, Batch, Summary, ViewsRef, weigh};
use ultta::{Config, Features, Head, Scores};

/// Rows with the views each has, and the frozen scores of both: what a batch borrows from.
pub struct Block {
    pub features: Features<'static>,
    pub zero_shot: Scores,
    pub frozen: Vec<Summary>,
    pub weights: Scores,
    pub views: Features<'static>,
    pub view_scores: Scores,
    pub offsets: Vec<usize>,
}

impl Block {
    pub fn new(head: &Head, features: Features<'static>, views: Features<'static>) -> Self {
        let zero_shot = head.zero_shot(&features).unwrap();
        let mut weights = Scores::zeros(zero_shot.rows(), zero_shot.classes());
        let frozen = (0..zero_shot.rows()).map(|r| weigh(zero_shot.row(r), weights.row_mut(r))).collect();
        let each = views.rows() / features.rows().max(1);
        let offsets = (0..=features.rows()).map(|r| r * each).collect();
        Self {
            view_scores: head.zero_shot(&views).unwrap(),
            zero_shot,
            frozen,
            weights,
            features,
            views,
            offsets,
        }
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch {
            first_id: 0,
            features: self.features.slice(0..self.features.rows()),
            zero_shot: (&self.zero_shot).into(),
            frozen: &self.frozen,
            weights: (&self.weights).into(),
            learn: None,
            times: None,
            keep_scores: true,
            keep_probs: false,
            views: (self.views.rows() > 0).then_some(ViewsRef {
                features: &self.views,
                zero_shot: &self.view_scores,
                offsets: &self.offsets,
            }),
        }
    }
}

pub fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

pub const CLASSES: usize = 5;
pub const DIM: usize = 12;
pub const VIEWS: usize = 4;

pub fn head() -> Head {
    let names: Vec<String> = (0..CLASSES).map(|c| format!("class {c}")).collect();
    let text = Features::normalized(noise(CLASSES * DIM, 1), DIM).unwrap();
    Head::new(text.data().to_vec(), DIM, names, 20.0).unwrap()
}

/// Rows around the classes, off the text by a common shift.
pub fn rows(head: &Head, n: usize, seed: u64) -> Features<'static> {
    let (shift, spread) = (noise(DIM, 99), noise(n * DIM, seed));
    let value = |i: usize| {
        let (row, d) = (i / DIM, i % DIM);
        head.prototype((row * 7 + seed as usize) % CLASSES)[d] + 0.5 * shift[d] + 0.6 * spread[i]
    };
    Features::normalized((0..n * DIM).map(value).collect::<Vec<_>>(), DIM).unwrap()
}

pub fn block(head: &Head, n: usize, seed: u64) -> Block {
    Block::new(head, rows(head, n, seed), rows(head, n * VIEWS, seed + 1000))
}

pub fn build(name: &str, head: &Head) -> Box<dyn Adapter> {
    Config::named(name).unwrap().method.build(&head.clone().into()).unwrap()
}
