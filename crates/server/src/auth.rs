//! Who may do what: bearer tokens, compared in constant time.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::settings::Tokens;

/// What a caller may do; each includes the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Read: status, predictions.
    Read,
    /// Let rows and labels teach.
    Write,
    /// Create, change and delete streams.
    Admin,
}

/// The tokens, as digests: comparing these takes the same time whatever the difference or the length.
pub struct Guards {
    digests: Vec<([u8; 32], Access)>,
}

impl Guards {
    pub fn new(tokens: &Tokens) -> Self {
        let lists =
            [(&tokens.read, Access::Read), (&tokens.write, Access::Write), (&tokens.admin, Access::Admin)];
        let digests = lists
            .iter()
            .flat_map(|(list, access)| list.iter().map(|token| (digest(token.as_bytes()), *access)))
            .collect();
        Self { digests }
    }

    /// Whether there is no token, so that everybody may do everything.
    pub fn open(&self) -> bool {
        self.digests.is_empty()
    }

    /// What the bearer of a token may do. Compares with every known token, so that the time tells nothing.
    pub fn access(&self, token: &[u8]) -> Option<Access> {
        let given = digest(token);
        let mut best = None;
        for (digest, access) in &self.digests {
            let same: Choice = digest.ct_eq(&given);
            if bool::from(same) {
                best = best.max(Some(*access));
            }
        }
        best
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_its_own_access_and_nothing_else_does() {
        let tokens =
            Tokens { read: vec!["r".repeat(16)], write: vec!["w".repeat(16)], admin: vec!["a".repeat(16)] };
        let guards = Guards::new(&tokens);
        assert_eq!(guards.access("r".repeat(16).as_bytes()), Some(Access::Read));
        assert_eq!(guards.access("w".repeat(16).as_bytes()), Some(Access::Write));
        assert_eq!(guards.access("a".repeat(16).as_bytes()), Some(Access::Admin));
        assert_eq!(guards.access("r".repeat(15).as_bytes()), None);
        assert_eq!(guards.access(b""), None);
        assert!(Guards::new(&Tokens::default()).open());
    }
}
