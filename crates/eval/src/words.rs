//! Numbers and their nouns.

/// A number with its noun: `1 seed`, `5 seeds`.
pub fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "seed")), ["0 seeds", "1 seed", "2 seeds"]);
    }
}
