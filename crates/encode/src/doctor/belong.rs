//! Whether labels and a head belong together, judged by what the head answers.
//!
//! With V(l, c) the number of rows of label l that are answered c, the share of right answers is compared with two
//! others: what labels in a random order would give (its mean is 1/C, its spread follows from V: answers come in
//! clusters, so the spread is wide), and what the best order of the classes would give (a one-to-one match of labels
//! and classes, the largest counts first). Right answers beyond chance, or close to the best order, belong. A best order
//! that explains the answers while the given one does not is another order. What no order explains does not belong.

use std::collections::HashMap;

use super::{Finding, doubtful, fine, wrong};

/// Right answers must lie this many standard deviations above chance. Heads of other datasets reach 3.0 on the project's packs, the
/// packs' own heads begin at 4.6.
const BEYOND: f64 = 3.5;
/// Right answers up to this many times those of chance are hardly better than it.
const HARDLY: f64 = 1.5;
/// Share of the best order that counts as that order. Heads of other datasets reach 0.78, own heads begin at 0.98.
const NEARLY: f64 = 0.9;
/// A best order explains the answers if it makes this share of them right, …
const EXPLAINS: f64 = 0.4;
/// … and this share of what the answers agree on within the labels.
const OF_AGREED: f64 = 0.75;

/// Answers by label.
struct Votes {
    n: usize,
    rows: f64,
    /// Rows by label and class, the most frequent pairs first.
    pairs: Vec<((usize, usize), f64)>,
}

impl Votes {
    fn new(n: usize, answers: &[(usize, usize)]) -> Self {
        let mut counts = HashMap::<(usize, usize), f64>::new();
        for &pair in answers {
            *counts.entry(pair).or_default() += 1.0;
        }
        Self::counted(n, counts)
    }

    fn counted(n: usize, counts: impl IntoIterator<Item = ((usize, usize), f64)>) -> Self {
        let mut pairs: Vec<_> = counts.into_iter().collect();
        pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let rows = pairs.iter().map(|pair| pair.1).sum::<f64>().max(1.0);
        Self { n, rows, pairs }
    }

    /// Whether right answers are beyond chance, or close to the best order.
    fn belong(&self) -> bool {
        let (right, chance) = (self.moved(0), 1.0 / self.n as f64);
        right >= chance + BEYOND * self.spread() || (right >= NEARLY * self.best_order() && right > chance)
    }

    fn by_chance(&self) -> String {
        format!("{:.1} ± {:.1} %", 100.0 / self.n as f64, 100.0 * self.spread())
    }

    /// Share of right answers if labels are moved by `by` classes.
    fn moved(&self, by: i64) -> f64 {
        let n = self.n as i64;
        let hit = |&&((label, class), _): &&((usize, usize), f64)| {
            (label as i64 + by).rem_euclid(n) == class as i64
        };
        self.pairs.iter().filter(hit).map(|pair| pair.1).sum::<f64>() / self.rows
    }

    /// Spread of the share of right answers over all orders of the labels: Var = Σ d² / (n − 1), with d the counts less
    /// the means of their label and class.
    fn spread(&self) -> f64 {
        let n = self.n as f64;
        let (mut labels, mut classes) = (HashMap::<usize, f64>::new(), HashMap::<usize, f64>::new());
        let mut squares = 0.0;
        for &((label, class), count) in &self.pairs {
            *labels.entry(label).or_default() += count;
            *classes.entry(class).or_default() += count;
            squares += count * count;
        }
        let of = |sums: &HashMap<usize, f64>| sums.values().map(|v| v * v).sum::<f64>() / n;
        let centred = squares - of(&labels) - of(&classes) + self.rows * self.rows / (n * n);
        (centred.max(0.0) / (n - 1.0).max(1.0)).sqrt() / self.rows
    }

    /// Share of right answers under the best order, found greedily.
    fn best_order(&self) -> f64 {
        let (mut labels, mut classes) = (vec![false; self.n], vec![false; self.n]);
        let mut right = 0.0;
        for &((label, class), count) in &self.pairs {
            if !labels[label] && !classes[class] {
                (labels[label], classes[class]) = (true, true);
                right += count;
            }
        }
        right / self.rows
    }

    /// Share of answers that are their label's most frequent one.
    fn agreed(&self) -> f64 {
        let mut seen = vec![false; self.n];
        let first = |&&((label, _), _): &&((usize, usize), f64)| !std::mem::replace(&mut seen[label], true);
        let most: f64 = self.pairs.iter().filter(first).map(|pair| pair.1).sum();
        most / self.rows
    }

    fn labels(&self) -> usize {
        let mut labels: Vec<usize> = self.pairs.iter().map(|pair| pair.0.0).collect();
        labels.sort_unstable();
        labels.dedup();
        labels.len()
    }
}

/// Fewer labelled answers tell nothing.
const FEWEST: f64 = 100.0;

/// Whether the answers of a head of `n` classes are right hardly more often than chance would have it, in words. `counts` has the answers
/// by label and class; of few answers, or of labels that name fewer than three classes of many, nothing is said.
pub fn at_chance(n: usize, counts: &HashMap<(usize, usize), u64>) -> Option<String> {
    let votes = Votes::counted(n, counts.iter().map(|(&pair, &count)| (pair, count as f64)));
    if n < 2 || votes.rows < FEWEST || votes.labels() < n.min(3) {
        return None;
    }
    let (right, chance) = (votes.moved(0), 1.0 / n as f64);
    (!votes.belong() || right <= HARDLY * chance)
        .then(|| format!("right for {:.1} %, by chance {}", 100.0 * right, votes.by_chance()))
}

/// Judges labels and answers of some rows; all are below `n`, the number of classes.
pub(super) fn judge(n: usize, answers: &[(usize, usize)]) -> Finding {
    let votes = Votes::new(n, answers);
    let (right, chance, spread) = (votes.moved(0), 1.0 / n as f64, votes.spread());
    let (best, agreed) = (votes.best_order(), votes.agreed());
    let percent = |share: f64| format!("{:.1} %", 100.0 * share.max(0.0));
    let by_chance = format!("by chance {}", votes.by_chance());
    if votes.belong() {
        let told = format!("zero-shot top-1 {}, {by_chance}", percent(right));
        return if right > HARDLY * chance {
            fine(told)
        } else {
            doubtful(told, "hardly better than chance: check class names, prompts and the encoder")
        };
    }
    let explains = best >= EXPLAINS
        && best >= OF_AGREED * agreed
        && best >= chance + BEYOND.min(n as f64 - 2.0) * spread;
    for by in [-1, 1] {
        if explains && votes.moved(by) >= NEARLY * best {
            return wrong(
                format!(
                    "the labels fit when moved by {by:+}: {:.0} % instead of {:.0} %",
                    100.0 * votes.moved(by),
                    100.0 * right
                ),
                "labels and class names are counted from different numbers",
            );
        }
    }
    let labels = votes.labels();
    if explains {
        let other = if labels < n { ", or of another list" } else { "" };
        let sorted = if n > 10 { "; class folders sort as text (0, 1, 10, 2 …)" } else { "" };
        return wrong(
            format!(
                "zero-shot answers agree within classes ({:.0} %) but not with the labels ({:.0} %)",
                100.0 * best,
                100.0 * right
            ),
            format!("the class names are in another order than the labels{other}{sorted}"),
        );
    }
    wrong(
        format!(
            "these do not belong together: zero-shot answers are right for {}, {by_chance}, and no order of the classes \
             makes more than {} right",
            percent(right),
            percent(best)
        ),
        if labels == n {
            "the labels are not those of these rows, or the head is of other classes or of another encoder"
                .into()
        } else {
            format!(
                "the labels name {labels} classes, the head has {n}: give the head of these classes and of this encoder"
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    /// Rows by label; each answers `of(label)` mostly, else something that depends on its place.
    fn answers(labels: usize, n: usize, of: impl Fn(usize) -> usize) -> Vec<(usize, usize)> {
        (0..labels * 20)
            .map(|i| {
                let label = i % labels;
                (label, if i / labels % 5 < 3 { of(label) } else { (7 * i + i / labels) % n })
            })
            .collect()
    }

    #[test]
    fn what_belongs_and_what_does_not() {
        let told = |labels: usize, n: usize, of: &dyn Fn(usize) -> usize| {
            let found = judge(n, &answers(labels, n, of));
            (found.verdict, format!("{}; {}", found.what, found.advice))
        };
        for n in [2, 4, 10, 24] {
            assert_eq!(told(n, n, &|c| c).0, Verdict::Fine, "{n}");
        }
        let (verdict, what) = told(24, 24, &|c| (c + 1) % 24);
        assert!(verdict == Verdict::Wrong && what.contains("moved by +1"), "{what}");
        let (verdict, what) = told(24, 24, &|c| (5 * c + 3) % 24);
        assert!(verdict == Verdict::Wrong && what.contains("another order"), "{what}");
        // Another dataset: all labels fall on a few classes, one of them by chance on its own.
        let (verdict, what) = told(24, 62, &|c| [1, 40, 60][c % 3]);
        assert!(verdict == Verdict::Wrong && what.contains("these do not belong together"), "{what}");
        assert!(
            what.contains("name 24 classes, the head has 62") && what.contains("by chance 1.6 ±"),
            "{what}"
        );
    }

    #[test]
    fn right_answers_that_are_hardly_more_than_chance_are_doubtful() {
        // Of two classes six in ten are right.
        let rows: Vec<_> =
            (0..200).map(|i| (i % 2, if i / 2 % 10 < 6 { i % 2 } else { 1 - i % 2 })).collect();
        let found = judge(2, &rows);
        assert!(
            found.verdict == Verdict::Doubtful && found.what.contains("zero-shot top-1 60.0 %"),
            "{found:?}"
        );
        assert!(found.advice.contains("hardly better than chance"), "{found:?}");
    }

    #[test]
    fn chance_is_told_of_many_answers_only() {
        let told = |n: usize, answers: &[(usize, usize)]| {
            let mut counts = HashMap::new();
            for &pair in answers {
                *counts.entry(pair).or_default() += 1;
            }
            at_chance(n, &counts)
        };
        assert_eq!(told(10, &answers(10, 10, |c| c)), None);
        let moved = answers(10, 10, |c| (c + 1) % 10);
        assert!(told(10, &moved).unwrap().contains("by chance 10.0 ± "));
        assert_eq!(told(10, &moved[..99]), None, "too few");
        // One class alone, and mostly mistaken: that is its business.
        let one: Vec<_> = (0..300).map(|i| (4, if i % 3 == 0 { 4 } else { 5 })).collect();
        assert_eq!(told(10, &one), None);
        // Two classes, six in ten.
        let two: Vec<_> = (0..300).map(|i| (i % 2, if i / 2 % 10 < 6 { i % 2 } else { 1 - i % 2 })).collect();
        assert!(told(2, &two).unwrap().starts_with("right for 60.0 %, by chance 50.0 ± "));
    }

    #[test]
    fn the_spread_is_that_of_all_orders() {
        let votes = Votes::new(4, &answers(4, 4, |c| c / 2));
        let mut shares = Vec::new();
        for order in 0..256usize {
            let place = |label: usize| order >> (2 * label) & 3;
            let mut used: Vec<usize> = (0..4).map(place).collect();
            used.sort_unstable();
            used.dedup();
            if used.len() == 4 {
                let right = votes.pairs.iter().filter(|p| place(p.0.0) == p.0.1).map(|p| p.1).sum::<f64>();
                shares.push(right / votes.rows);
            }
        }
        let mean = shares.iter().sum::<f64>() / 24.0;
        let spread = (shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 24.0).sqrt();
        assert!((mean - 0.25).abs() < 1e-12 && (spread - votes.spread()).abs() < 1e-12, "{mean} {spread}");
    }
}
