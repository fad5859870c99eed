//! The graph of ECALP: who links to whom, and labels that spread along the links.

use crate::kernels::vectorised;
use crate::{Error, Result, State};

/// Up to this many classes a row of labels is dense; beyond, only its classes are kept.
pub(crate) const DENSE: usize = 128;

/// What is added to √D.
const SMALL: f32 = 1e-6;

/// Values that an instruction works on, at most: rows of labels are multiples of it.
const LANES: usize = 8;

/// The links from each image to the images it is most similar to, most similar first, the older first among equals.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    most: usize,
    gamma: f64,
    nodes: usize,
    /// `most` places per image, the first `min(most, nodes)` of them taken.
    to: Vec<u32>,
    similar: Vec<f32>,
    weight: Vec<f32>,
}

/// The last link of an image before the twin took its place.
pub(crate) type Undo = Vec<(u32, u32, f32, f32)>;

/// What a link of a similarity weighs. An even power of a negative one is positive, as released.
pub(crate) fn power(similarity: f32, gamma: f64) -> f32 {
    let whole = gamma as i32;
    if whole as f64 == gamma {
        (similarity as f64).powi(whole) as f32
    } else {
        (similarity.max(0.0) as f64).powf(gamma) as f32
    }
}

impl Links {
    /// Up to `most` links per image, each with the weight of its similarity to the power `gamma`.
    pub(crate) fn new(most: usize, gamma: f64) -> Self {
        Self { most, gamma, nodes: 0, to: Vec::new(), similar: Vec::new(), weight: Vec::new() }
    }

    /// The links themselves; none stay behind.
    pub(crate) fn take(&mut self) -> Self {
        let none = Self::new(self.most, self.gamma);
        std::mem::replace(self, none)
    }

    fn each(&self) -> usize {
        self.most.min(self.nodes)
    }

    /// The links of an image: to whom, and how much they weigh.
    fn of(&self, node: usize) -> impl Iterator<Item = (u32, f32)> + '_ {
        let at = node * self.most..node * self.most + self.each();
        self.to[at.clone()].iter().copied().zip(self.weight[at].iter().copied())
    }

    /// What the link from one image to another weighs, 0 if there is none.
    fn weight(&self, from: usize, to: usize) -> f32 {
        let at = from * self.most..from * self.most + self.each();
        let own = |(&other, &w): (&u32, &f32)| if other as usize == to { w } else { 0.0 };
        self.to[at.clone()].iter().zip(&self.weight[at]).map(own).sum()
    }

    /// Adds to every image's row of `next` the rows of its links, and to theirs its own, each times what the link weighs.
    fn pass_on(&self, rows: &[f32], next: &mut [f32], width: usize) {
        vectorised(
            #[inline(always)]
            || match width / LANES {
                1 => self.pass_on_narrow::<1>(rows, next),
                2 => self.pass_on_narrow::<2>(rows, next),
                3 => self.pass_on_narrow::<3>(rows, next),
                4 => self.pass_on_narrow::<4>(rows, next),
                _ => self.pass_on_wide(rows, next, width),
            },
        );
    }

    /// Rows of `PARTS` vectors: a sum stays in registers.
    #[inline(always)]
    fn pass_on_narrow<const PARTS: usize>(&self, rows: &[f32], next: &mut [f32]) {
        let rows = rows.as_chunks::<LANES>().0.as_chunks::<PARTS>().0;
        let next = next.as_chunks_mut::<LANES>().0.as_chunks_mut::<PARTS>().0;
        for (node, own) in rows.iter().enumerate() {
            let mut sum = [[0.0f32; LANES]; PARTS];
            for (to, w) in self.of(node) {
                let (from, into) = (&rows[to as usize], &mut next[to as usize]);
                for part in 0..PARTS {
                    for lane in 0..LANES {
                        sum[part][lane] += w * from[part][lane];
                        into[part][lane] += w * own[part][lane];
                    }
                }
            }
            for part in 0..PARTS {
                for lane in 0..LANES {
                    next[node][part][lane] += sum[part][lane];
                }
            }
        }
    }

    #[inline(always)]
    fn pass_on_wide(&self, rows: &[f32], next: &mut [f32], width: usize) {
        let mut sum = vec![0.0f32; width];
        for (node, own) in rows.chunks_exact(width).enumerate() {
            sum.fill(0.0);
            for (to, w) in self.of(node) {
                let at = to as usize * width..(to as usize + 1) * width;
                sum.iter_mut().zip(&rows[at.clone()]).for_each(|(s, y)| *s += w * y);
                next[at].iter_mut().zip(own).for_each(|(n, y)| *n += w * y);
            }
            next[node * width..][..width].iter_mut().zip(&sum).for_each(|(n, s)| *n += s);
        }
    }

    /// Puts a link into a list of `held` links; what no longer fits is dropped.
    fn insert(&mut self, node: usize, held: usize, to: u32, similar: f32) {
        let start = node * self.most;
        if held == self.most && similar <= self.similar[start + held - 1] {
            return;
        }
        let weight = power(similar, self.gamma);
        let place = self.similar[start..start + held].partition_point(|&s| s >= similar);
        let end = (held + 1).min(self.most);
        for (list, value) in [(&mut self.similar, similar), (&mut self.weight, weight)] {
            list[start + place..start + end].rotate_right(1);
            list[start + place] = value;
        }
        self.to[start + place..start + end].rotate_right(1);
        self.to[start + place] = to;
    }

    /// Adds an image, by its similarity with all images before it and, last, with itself.
    pub(crate) fn join(&mut self, similar: &[f32]) {
        let (new, held) = (self.nodes, self.each());
        for node in 0..new {
            self.insert(node, held, new as u32, similar[node]);
        }
        self.nodes += 1;
        self.grow();
        for other in 0..=new {
            let held = other.min(self.most);
            self.insert(new, held, other as u32, similar[other]);
        }
    }

    /// Adds a second copy of the newest image.
    pub(crate) fn join_twin(&mut self, similar: &[f32]) -> Undo {
        let (twin, held) = (self.nodes, self.each());
        let last = held.min(self.most) - 1;
        let mut undo = Vec::new();
        for node in 0..twin {
            let at = node * self.most + last;
            if held < self.most || similar[node] > self.similar[at] {
                undo.push((node as u32, self.to[at], self.similar[at], self.weight[at]));
                self.insert(node, held, twin as u32, similar[node]);
            }
        }
        self.nodes += 1;
        self.grow();
        // The twin is as similar to all as the newest image is, and its links are the same.
        let (from, to) = ((twin - 1) * self.most, twin * self.most);
        self.to.copy_within(from..from + self.most, to);
        self.similar.copy_within(from..from + self.most, to);
        self.weight.copy_within(from..from + self.most, to);
        undo
    }

    /// Takes the twin out again.
    pub(crate) fn leave_twin(&mut self, undo: Undo) {
        self.nodes -= 1;
        let (twin, held) = (self.nodes as u32, self.each());
        self.to.truncate(self.nodes * self.most);
        self.similar.truncate(self.nodes * self.most);
        self.weight.truncate(self.nodes * self.most);
        for (node, to, similar, weight) in undo {
            let start = node as usize * self.most;
            let all = self.most.min(held + 1);
            let place = self.to[start..start + all].iter().position(|&t| t == twin).unwrap_or(all - 1);
            self.to[start + place..start + all].rotate_left(1);
            self.similar[start + place..start + all].rotate_left(1);
            self.weight[start + place..start + all].rotate_left(1);
            let last = start + held - 1;
            (self.to[last], self.similar[last], self.weight[last]) = (to, similar, weight);
        }
    }

    fn grow(&mut self) {
        self.to.resize(self.nodes * self.most, 0);
        self.similar.resize(self.nodes * self.most, 0.0);
        self.weight.resize(self.nodes * self.most, 0.0);
    }

    pub(crate) fn bytes(&self) -> usize {
        12 * self.to.len()
    }

    pub(crate) fn save(&self, state: &mut State) {
        let each = self.each();
        let taken = |values: &[f32]| -> Vec<f32> {
            values.chunks(self.most).flat_map(|links| &links[..each]).copied().collect()
        };
        let to: Vec<u32> = self.to.chunks(self.most).flat_map(|links| &links[..each]).copied().collect();
        state.put("links.to", &to);
        state.put("links.similarity", &taken(&self.similar));
        state.put("links.weight", &taken(&self.weight));
    }

    pub(crate) fn loaded(&self, state: &State, nodes: usize) -> Result<Self> {
        let mut links = Self { nodes, ..Self::new(self.most, self.gamma) };
        links.grow();
        let each = links.each();
        let to = state.get_n::<u32>("links.to", nodes * each)?;
        let similar = state.within::<f32>("links.similarity", nodes * each, -1.01..=1.01)?;
        let weight = state.within::<f32>("links.weight", nodes * each, 0.0..=1e30)?;
        if to.iter().any(|&t| t as usize >= nodes) {
            return Err(Error::state("links.to: image out of range"));
        }
        for node in 0..nodes {
            let (from, into) = (node * each..(node + 1) * each, node * links.most..node * links.most + each);
            links.to[into.clone()].copy_from_slice(&to[from.clone()]);
            links.similar[into.clone()].copy_from_slice(&similar[from.clone()]);
            links.weight[into].copy_from_slice(&weight[from]);
        }
        if links.similar.chunks(links.most).any(|list| !list[..each].is_sorted_by(|a, b| a >= b)) {
            return Err(Error::state("links.similarity: out of order"));
        }
        Ok(links)
    }
}

/// Labels that spread over a graph.
pub(crate) struct Spread<'a> {
    pub links: &'a Links,
    /// Links to texts, `texts_each` per image.
    pub texts: &'a [(u32, f32)],
    pub texts_each: usize,
    pub classes: usize,
    pub rounds: usize,
}

/// Links both ways, two images that link to each other as one link.
struct Ways {
    /// The links of image u are at `first[u]..first[u + 1]`.
    first: Vec<u32>,
    links: Vec<(u32, f32)>,
}

impl Ways {
    #[inline(always)]
    fn of(&self, node: usize) -> &[(u32, f32)] {
        &self.links[self.first[node] as usize..self.first[node + 1] as usize]
    }
}

/// 1 / (√D + small) of images and of texts.
struct Divisors {
    images: Vec<f32>,
    texts: Vec<f32>,
}

impl Spread<'_> {
    /// Y of the newest node after all rounds, and the best class of every image with its value. The last nodes carry
    /// nothing yet.
    pub(crate) fn run(&self, carried: &[(u32, f32)]) -> (Vec<f32>, Vec<(u32, f32)>) {
        if self.classes <= DENSE {
            return self.dense(carried);
        }
        vectorised(
            #[inline(always)]
            || self.sparse(carried),
        )
    }

    fn texts_of(&self, node: usize) -> &[(u32, f32)] {
        &self.texts[node * self.texts_each..][..self.texts_each]
    }

    fn ways(&self) -> Ways {
        let n = self.links.nodes;
        let mut first = vec![0u32; n + 2];
        // Nearly every other link is left out, in no order: counting takes no branch.
        let (mut pairs, mut count) = (vec![(0u32, 0u32, 0.0f32); n * self.links.each()], 0);
        for node in 0..n {
            for (to, w) in self.links.of(node) {
                let other = to as usize;
                let back = self.links.weight(other, node);
                let counts = other >= node || back == 0.0;
                pairs[count] = (node as u32, to, w + back);
                count += usize::from(counts);
                first[node + 2] += u32::from(counts);
                first[other + 2] += u32::from(counts && other != node);
            }
        }
        (2..n + 2).for_each(|i| first[i] += first[i - 1]);
        let mut links = vec![(0, 0.0); first[n + 1] as usize];
        let mut put = |from: u32, to: u32, w: f32| {
            let at = &mut first[from as usize + 1];
            links[*at as usize] = (to, w);
            *at += 1;
        };
        for &(node, other, w) in &pairs[..count] {
            put(node, other, w);
            if other != node {
                put(other, node, w);
            }
        }
        first.truncate(n + 1);
        Ways { first, links }
    }

    fn divisors(&self) -> Divisors {
        let (mut sums, mut texts) = (vec![0.0f32; self.links.nodes], vec![0.0f32; self.classes]);
        for node in 0..self.links.nodes {
            for (to, w) in self.links.of(node) {
                sums[node] += w;
                sums[to as usize] += w;
            }
        }
        for (node, sum) in sums.iter_mut().enumerate() {
            for &(class, w) in self.texts_of(node) {
                *sum += w;
                texts[class as usize] += w;
            }
        }
        for sum in sums.iter_mut().chain(&mut texts) {
            *sum = 1.0 / (sum.sqrt() + SMALL);
        }
        Divisors { images: sums, texts }
    }

    /// Rows of all classes. Every link is followed both ways at once: no list of the links that lead to an image is
    /// needed.
    fn dense(&self, carried: &[(u32, f32)]) -> (Vec<f32>, Vec<(u32, f32)>) {
        let by = self.divisors();
        let (n, width) = (self.links.nodes, self.classes.next_multiple_of(LANES));
        // Rows are kept divided by √D already. At first a row is one class.
        let start = |node: usize| {
            carried.get(node).map_or((0, 0.0), |&(class, value)| (class as usize, value * by.images[node]))
        };
        let start: Vec<(usize, f32)> = (0..n).map(start).collect();
        let (mut rows, mut next) = (vec![0.0f32; n * width], vec![0.0f32; n * width]);
        for round in 0..self.rounds {
            next.fill(0.0);
            for (node, own) in next.chunks_exact_mut(width).enumerate() {
                for &(class, w) in self.texts_of(node) {
                    own[class as usize] += w * by.texts[class as usize];
                }
            }
            if round == 0 {
                for (node, &(own, value)) in start.iter().enumerate() {
                    for (to, w) in self.links.of(node) {
                        let (class, other) = start[to as usize];
                        next[node * width + class] += w * other;
                        next[to as usize * width + own] += w * value;
                    }
                }
            } else {
                self.links.pass_on(&rows, &mut next, width);
            }
            let last = round + 1 == self.rounds;
            for (row, &divisor) in next.chunks_exact_mut(width).zip(&by.images) {
                let scale = if last { divisor } else { divisor * divisor };
                row.iter_mut().for_each(|v| *v *= scale);
            }
            std::mem::swap(&mut rows, &mut next);
        }
        let answer = rows[(n - 1) * width..][..self.classes].to_vec();
        (answer, rows.chunks_exact(width).map(best::<LANES>).collect())
    }

    /// Rows of the classes that occur.
    #[inline(always)]
    fn sparse(&self, carried: &[(u32, f32)]) -> (Vec<f32>, Vec<(u32, f32)>) {
        let (by, ways, n) = (self.divisors(), self.ways(), self.links.nodes);
        let mut rows: Vec<(u32, f32)> =
            carried.iter().zip(&by.images).map(|(&(class, value), d)| (class, value * d)).collect();
        let mut ends: Vec<u32> = (0..n).map(|node| (node + 1).min(carried.len()) as u32).collect();
        let mut sums = Sums::new(self.classes);
        let mut found = Vec::with_capacity(n);
        let mut answer = Vec::new();
        for round in 0..self.rounds {
            let last = round + 1 == self.rounds;
            let (mut next, mut next_ends) = (Vec::with_capacity(rows.len() * 4), Vec::with_capacity(n));
            for (node, &divisor) in by.images.iter().enumerate() {
                for &(class, w) in self.texts_of(node) {
                    sums.add(&[(class, by.texts[class as usize])], w);
                }
                for &(from, w) in ways.of(node) {
                    let from = from as usize;
                    let begin = if from == 0 { 0 } else { ends[from - 1] as usize };
                    let row = &rows[begin..ends[from] as usize];
                    if last { sums.add_unlisted(row, w) } else { sums.add(row, w) }
                }
                if last {
                    if node + 1 == n {
                        answer = sums.sums[..self.classes].iter().map(|sum| 0.0 + sum * divisor).collect();
                    }
                    let (class, sum) = best::<{ 4 * LANES }>(&sums.sums);
                    found.push((class, sum * divisor));
                    sums.clear();
                } else {
                    sums.take(divisor * divisor, &mut next);
                    next_ends.push(next.len() as u32);
                }
            }
            (rows, ends) = (next, next_ends);
        }
        (answer, found)
    }
}

/// What a class that has no sum yet stands at: any sum with a value that is not negative is something else.
const NONE: f32 = -0.0;

/// Sums per class, and a list of the classes that have one. Neither takes a branch to add to.
struct Sums {
    /// Whole vectors of classes.
    sums: Vec<f32>,
    /// As long as a power of 2 above the number of classes: a place beyond the last is written to, too.
    listed: Vec<u32>,
    count: usize,
}

impl Sums {
    fn new(classes: usize) -> Self {
        let listed = vec![0; (classes + 1).next_power_of_two()];
        Self { sums: vec![NONE; classes.next_multiple_of(4 * LANES)], listed, count: 0 }
    }

    #[inline(always)]
    fn add(&mut self, row: &[(u32, f32)], weight: f32) {
        let (sums, listed, mut count) = (&mut self.sums[..], &mut self.listed[..], self.count);
        for &(class, y) in row {
            let sum = &mut sums[class as usize];
            listed[count & (listed.len() - 1)] = class;
            count += usize::from(sum.to_bits() == NONE.to_bits());
            *sum += weight * y;
        }
        self.count = count;
    }

    #[inline(always)]
    fn add_unlisted(&mut self, row: &[(u32, f32)], weight: f32) {
        let sums = &mut self.sums[..];
        row.iter().for_each(|&(class, y)| sums[class as usize] += weight * y);
    }

    /// Hands every sum over, scaled, and begins anew.
    #[inline(always)]
    fn take(&mut self, scale: f32, into: &mut Vec<(u32, f32)>) {
        let listed = &self.listed[..self.count.min(self.listed.len())];
        into.extend(listed.iter().map(|&class| (class, self.sums[class as usize] * scale)));
        listed.iter().for_each(|&class| self.sums[class as usize] = NONE);
        self.count = 0;
    }

    fn clear(&mut self) {
        self.sums.fill(NONE);
        self.count = 0;
    }
}

/// The class of the largest value, the first among equals. No value is below the 0 of the places beyond the last class.
/// `WIDTH` values are compared at a time.
#[inline(always)]
fn best<const WIDTH: usize>(row: &[f32]) -> (u32, f32) {
    let parts = row.as_chunks::<WIDTH>().0;
    let mut most = [0.0f32; WIDTH];
    for part in parts {
        for lane in 0..WIDTH {
            most[lane] = if part[lane] > most[lane] { part[lane] } else { most[lane] };
        }
    }
    let most = most.into_iter().fold(0.0, f32::max);
    let has = |part: &[f32; WIDTH]| part.iter().fold(false, |met, &v| met | (v == most));
    let at = parts.iter().position(has).unwrap_or(0);
    let lane = parts[at].iter().position(|&v| v == most).unwrap_or(0);
    ((at * WIDTH + lane) as u32, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown() -> (Links, Vec<(u32, f32)>) {
        let mut links = Links::new(3, 1.0);
        let similar = |u: usize, v: usize| ((u * 7 + v * 13) % 11) as f32 / 11.0;
        for new in 0..9 {
            let row: Vec<f32> = (0..=new).map(|u| similar(u, new)).collect();
            links.join(&row);
        }
        let texts = (0..9).flat_map(|node| [(node % 4, 0.5), (4 + node % 3, 0.25)]).collect();
        (links, texts)
    }

    #[test]
    fn a_twin_leaves_no_trace() {
        for size in 1..9 {
            let mut links = Links::new(3, 1.0);
            let row =
                |new: usize| (0..=new).map(|u| ((u * 5 + new * 3) % 7) as f32 / 7.0).collect::<Vec<f32>>();
            (0..size).for_each(|new| links.join(&row(new)));
            let before = format!("{:?}", links.of(0).chain(links.of(size - 1)).collect::<Vec<_>>());
            let saved = |links: &Links| {
                let mut state = State::default();
                links.save(&mut state);
                state
            };
            let state = saved(&links);
            let undo = links.join_twin(&row(size - 1));
            assert_eq!(links.nodes, size + 1);
            links.leave_twin(undo);
            assert_eq!(saved(&links), state, "{size}");
            assert_eq!(format!("{:?}", links.of(0).chain(links.of(size - 1)).collect::<Vec<_>>()), before);
        }
    }

    #[test]
    fn rows_of_all_classes_and_of_some_spread_alike() {
        let (links, texts) = grown();
        // Widths of one vector, of some, and of more than stay in registers.
        for classes in [7, 8, 12, 24, 30, 77] {
            let spread = Spread { links: &links, texts: &texts, texts_each: 2, classes, rounds: 3 };
            let carried: Vec<(u32, f32)> =
                (0..8).map(|node| (5 * node % classes as u32, 0.1 * node as f32)).collect();
            let (a, b) = (spread.dense(&carried), spread.sparse(&carried));
            for (a, b) in a.0.iter().zip(&b.0) {
                assert!((a - b).abs() < 1e-6, "{a} {b}");
            }
            for (a, b) in a.1.iter().zip(&b.1) {
                assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-6, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn the_best_class_is_the_first_of_the_largest() {
        for (row, wanted) in [
            ([0.0, 0.2, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0], (2, 0.5)),
            ([0.0; 8], (0, 0.0)),
            ([0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1], (0, 0.1)),
        ] {
            assert_eq!(best::<LANES>(&row), wanted);
        }
    }
}
