//! [`Right`]: which samples were answered right, for comparisons of two methods on the same samples.

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

    /// How many samples only this method has right, and how many only the other; `None` if the streams differ.
    pub fn against(&self, other: &Self) -> Option<(u64, u64)> {
        let count = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| u64::from((a & !b).count_ones())).sum();
        (self.n == other.n).then(|| (count(&self.bits, &other.bits), count(&other.bits, &self.bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_answers_are_kept_bit_by_bit() {
        let of = |text: &str| Right::of(text.chars().map(|c| c == '1').collect::<Vec<_>>().into_iter());
        let (a, b) = (of("1101000011"), of("1011000010"));
        assert_eq!((a.against(&b), b.against(&a)), (Some((2, 1)), Some((1, 2))));
        assert_eq!(a.against(&of("1")), None);
        assert_eq!(Right::from_bytes(a.bytes().to_vec(), 10), Some(a.clone()));
        assert_eq!(Right::from_bytes(a.bytes().to_vec(), 20), None);
        assert_eq!(Right::from_bytes(vec![0, 8], 10), None, "a bit beyond the end");
    }
}
