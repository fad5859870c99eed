//! [`Right`]: which samples were answered right, for comparisons of two methods on the same samples.

use std::collections::BTreeMap;

/// One bit per sample that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    bits: Vec<u8>,
    n: usize,
}

impl Right {
    /// From the answers in order.
    pub fn of(right: impl ExactSizeIterator<Item = bool>) -> Self {
        let n = right.len();
        let mut bits = vec![0; n.div_ceil(8)];
        right.enumerate().filter(|(_, right)| *right).for_each(|(i, _)| bits[i / 8] |= 1 << (i % 8));
        Self { bits, n }
    }

    /// From the bytes of a file; `None` if they are not those of `n` samples.
    pub fn from_bytes(bits: Vec<u8>, n: usize) -> Option<Self> {
        let last = bits.last().copied().unwrap_or(0);
        let clean = n.is_multiple_of(8) || last >> (n % 8) == 0;
        (bits.len() == n.div_ceil(8) && clean).then_some(Self { bits, n })
    }

    /// The bytes of a file.
    pub fn bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// How many shots there are by how many more of their samples this method has right than the other; those without
    /// a difference are left out. A shot is this many samples in a row; 1: every sample is its own. `None` if the
    /// streams differ.
    pub fn against(&self, other: &Self, shot: usize) -> Option<BTreeMap<i64, u64>> {
        if self.n != other.n {
            return None;
        }
        let mut shots = BTreeMap::new();
        if shot <= 1 {
            let count = |a: &[u8], b: &[u8]| -> u64 {
                a.iter().zip(b).map(|(a, b)| u64::from((a & !b).count_ones())).sum()
            };
            shots.insert(1, count(&self.bits, &other.bits));
            shots.insert(-1, count(&other.bits, &self.bits));
        } else {
            let bit = |bits: &[u8], i: usize| i64::from((bits[i / 8] >> (i % 8)) & 1);
            for start in (0..self.n).step_by(shot) {
                let own = start..self.n.min(start + shot);
                let more: i64 = own.map(|i| bit(&self.bits, i) - bit(&other.bits, i)).sum();
                *shots.entry(more).or_default() += 1;
            }
        }
        shots.retain(|more, shots| *more != 0 && *shots > 0);
        Some(shots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_answers_are_kept_bit_by_bit() {
        let of = |text: &str| Right::of(text.chars().map(|c| c == '1').collect::<Vec<_>>().into_iter());
        let (a, b) = (of("1101000011"), of("1011000010"));
        let shots = |a: &Right, b: &Right, shot| a.against(b, shot).map(Vec::from_iter);
        assert_eq!(shots(&a, &b, 1), Some(vec![(-1, 1), (1, 2)]));
        assert_eq!(shots(&b, &a, 1), Some(vec![(-1, 2), (1, 1)]));
        // 110 against 101 is no difference; the last shot is cut short
        assert_eq!(shots(&a, &b, 3), Some(vec![(1, 1)]));
        assert_eq!(shots(&of("111100"), &of("000001"), 3), Some(vec![(3, 1)]));
        assert_eq!((shots(&a, &a, 1), shots(&a, &of("1"), 1)), (Some(vec![]), None));
        assert_eq!(Right::from_bytes(a.bytes().to_vec(), 10), Some(a.clone()));
        assert_eq!(Right::from_bytes(a.bytes().to_vec(), 20), None);
        assert_eq!(Right::from_bytes(vec![0, 8], 10), None, "a bit beyond the end");
    }
}
