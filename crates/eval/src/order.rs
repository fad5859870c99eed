//! The order in which the rows of a pack arrive.

use std::fmt;
use std::str::FromStr;

use ultta::{Error, Result};

use crate::random::Random;

/// How a stream is ordered. Every order is a function of the labels and a seed alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Order {
    /// As in the file.
    #[default]
    File,
    /// A random permutation.
    Shuffled,
    /// Class after class in label order, rows shuffled within each class.
    Sorted,
    /// Class after class in random class order, rows shuffled within each class.
    Runs,
    /// Only this share of the classes occurs (at least one, chosen at random); their rows shuffled.
    Partial(f64),
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "file" => Ok(Order::File),
            "shuffled" => Ok(Order::Shuffled),
            "sorted" => Ok(Order::Sorted),
            "runs" => Ok(Order::Runs),
            _ => match text.strip_prefix("partial:").map(str::parse::<f64>) {
                Some(Ok(share)) if share > 0.0 && share <= 1.0 => Ok(Order::Partial(share)),
                Some(_) => Err("partial: expected a share of the classes above 0 and at most 1".into()),
                None => Err("expected file, shuffled, sorted, runs or partial:SHARE".into()),
            },
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::File => write!(f, "file"),
            Order::Shuffled => write!(f, "shuffled"),
            Order::Sorted => write!(f, "sorted"),
            Order::Runs => write!(f, "runs"),
            Order::Partial(share) => write!(f, "partial:{share}"),
        }
    }
}

impl Order {
    /// The indices of the rows in arrival order. `sorted`, `runs` and `partial` need labels.
    pub fn indices(self, rows: usize, labels: Option<&[usize]>, seed: u64) -> Result<Vec<usize>> {
        let labels = || {
            labels.ok_or_else(|| Error::Config {
                key: "order".into(),
                reason: format!("{self} needs labels, and the features have none"),
            })
        };
        let mut random = Random::new(seed);
        let mut indices: Vec<usize> = (0..rows).collect();
        match self {
            Order::File => {}
            Order::Shuffled => random.shuffle(&mut indices),
            Order::Sorted => {
                let labels = labels()?;
                random.shuffle(&mut indices);
                indices.sort_by_key(|&row| labels[row]);
            }
            Order::Runs => {
                let labels = labels()?;
                let mut place: Vec<usize> = (0..labels.iter().max().map_or(0, |most| most + 1)).collect();
                random.shuffle(&mut place);
                random.shuffle(&mut indices);
                indices.sort_by_key(|&row| place[labels[row]]);
            }
            Order::Partial(share) => {
                let labels = labels()?;
                let mut classes: Vec<usize> = labels.to_vec();
                classes.sort_unstable();
                classes.dedup();
                random.shuffle(&mut classes);
                classes.truncate(((classes.len() as f64 * share).round() as usize).max(1));
                classes.sort_unstable();
                indices.retain(|&row| classes.binary_search(&labels[row]).is_ok());
                random.shuffle(&mut indices);
            }
        }
        Ok(indices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [usize; 10] = [3, 0, 1, 2, 3, 0, 1, 2, 4, 4];

    fn indices(order: &str, seed: u64) -> Vec<usize> {
        order.parse::<Order>().unwrap().indices(LABELS.len(), Some(&LABELS), seed).unwrap()
    }

    #[test]
    fn orders_are_fixed_by_their_seed() {
        assert_eq!(indices("file", 1), (0..10).collect::<Vec<_>>());
        assert_eq!(indices("shuffled", 1), [9, 0, 1, 4, 8, 2, 3, 7, 6, 5]);
        assert_ne!(indices("shuffled", 1), indices("shuffled", 2));
    }

    #[test]
    fn shuffled_is_a_permutation() {
        let mut all = indices("shuffled", 7);
        assert_ne!(all, (0..10).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn sorted_runs_class_after_class() {
        let order = indices("sorted", 3);
        assert_eq!(order.len(), 10);
        assert!(order.is_sorted_by_key(|&row| LABELS[row]));
    }

    #[test]
    fn runs_are_whole_classes_in_random_order() {
        let classes = |seed: u64| {
            let mut classes: Vec<usize> = indices("runs", seed).iter().map(|&row| LABELS[row]).collect();
            classes.dedup();
            classes
        };
        let mut all = classes(1);
        assert_eq!(indices("runs", 1).len(), LABELS.len());
        assert!(!all.is_sorted() && all != classes(2) && all == classes(1));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4], "each class comes once");
    }

    #[test]
    fn partial_keeps_whole_classes() {
        let order = indices("partial:0.4", 5);
        let mut classes: Vec<usize> = order.iter().map(|&row| LABELS[row]).collect();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!((classes.len(), order.len()), (2, 4));
        assert_eq!(indices("partial:0.01", 5).len(), 2, "at least one class");
    }

    #[test]
    fn mistakes_are_named() {
        for bad in ["random", "partial", "partial:0", "partial:2", "partial:x", "partial:nan"] {
            assert!(bad.parse::<Order>().is_err(), "{bad}");
        }
        let error = Order::Sorted.indices(3, None, 0).unwrap_err().to_string();
        assert!(error.contains("needs labels"), "{error}");
    }
}
