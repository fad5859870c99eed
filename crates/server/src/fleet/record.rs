//! What a group does to a stream, as its log keeps it. The log comes first here, too: a session that shares is a function of
//! its base state and its log, so what it cuts after a crash is what it cut before.

use ultta::{Delta, Session};

use crate::store::Extra;

/// One thing that a group did to a stream. `position` is the broker's number of the message that it came with; 0 without one.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupRecord {
    /// The stream became a member.
    Join { member: String },
    /// What it had learnt was cut, to be given.
    Cut,
    /// What another member had learnt was added.
    Take { position: u64, delta: Vec<u8> },
    /// All that was heard was replaced by whole contributions.
    Rebuild { position: u64, contributions: Vec<Vec<u8>> },
    /// A member's whole contribution was taken out.
    Drop { position: u64, contribution: Vec<u8> },
}

/// What a record changed.
#[derive(Debug, Default)]
pub struct Changed {
    /// Whether anything did.
    pub changed: bool,
    /// What was cut.
    pub cut: Option<Delta>,
}

const JOIN: u8 = 0;
const CUT: u8 = 1;
const TAKE: u8 = 2;
const REBUILD: u8 = 3;
const DROP: u8 = 4;

impl GroupRecord {
    /// Does it. What was refused when it was logged is refused again, and changes nothing either time.
    pub fn apply(&self, session: &mut Session, extra: &mut Extra) -> ultta::Result<Changed> {
        let mut done = Changed { changed: true, cut: None };
        let position = match self {
            Self::Join { member } => {
                session.join(member)?;
                0
            }
            Self::Cut => {
                done.cut = session.cut()?;
                0
            }
            Self::Take { position, delta } => {
                done.changed = session.take(&Delta::from_bytes(delta)?)?;
                *position
            }
            Self::Rebuild { position, contributions } => {
                let contributions: ultta::Result<Vec<Delta>> =
                    contributions.iter().map(|bytes| Delta::from_bytes(bytes)).collect();
                session.rebuild(&contributions?)?;
                // What followed the contributions is read again, after a restart, too.
                extra.position = *position;
                *position
            }
            Self::Drop { position, contribution } => {
                session.withdraw_member(&Delta::from_bytes(contribution)?)?;
                *position
            }
        };
        extra.position = extra.position.max(position);
        Ok(done)
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, n: u64| out.extend(n.to_le_bytes());
        match self {
            Self::Join { member } => {
                out.push(JOIN);
                out.extend(member.as_bytes());
            }
            Self::Cut => out.push(CUT),
            Self::Take { position, delta } => {
                out.push(TAKE);
                number(out, *position);
                out.extend(delta);
            }
            Self::Rebuild { position, contributions } => {
                out.push(REBUILD);
                number(out, *position);
                for bytes in contributions {
                    number(out, bytes.len() as u64);
                    out.extend(bytes);
                }
            }
            Self::Drop { position, contribution } => {
                out.push(DROP);
                number(out, *position);
                out.extend(contribution);
            }
        }
    }

    /// Reads a record that `write` made; `None` if it makes no sense.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        fn number(bytes: &mut &[u8]) -> Option<u64> {
            let (head, rest) = bytes.split_at_checked(8)?;
            *bytes = rest;
            Some(u64::from_le_bytes(head.try_into().ok()?))
        }
        let (&kind, mut rest) = bytes.split_first()?;
        Some(match kind {
            JOIN => Self::Join { member: String::from_utf8(rest.to_vec()).ok()? },
            CUT if rest.is_empty() => Self::Cut,
            TAKE => Self::Take { position: number(&mut rest)?, delta: rest.to_vec() },
            REBUILD => {
                let position = number(&mut rest)?;
                let mut contributions = Vec::new();
                while !rest.is_empty() {
                    let length = usize::try_from(number(&mut rest)?).ok()?;
                    let (bytes, behind) = rest.split_at_checked(length)?;
                    contributions.push(bytes.to_vec());
                    rest = behind;
                }
                Self::Rebuild { position, contributions }
            }
            DROP => Self::Drop { position: number(&mut rest)?, contribution: rest.to_vec() },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultta::{Config, Head};

    /// A server that falls after it took contributions over, and before it read what followed them, reads that again.
    #[test]
    fn after_contributions_reading_starts_again() {
        let head = Head::new(vec![1.0, 0.0, 0.0, 1.0], 2, ["a", "b"], 10.0).unwrap();
        let mut session = Session::new(head, &Config::default()).unwrap();
        let mut extra = Extra { position: 9, ..Extra::default() };
        GroupRecord::Join { member: "one".into() }.apply(&mut session, &mut extra).unwrap();
        assert_eq!(extra.position, 9);
        GroupRecord::Rebuild { position: 0, contributions: vec![] }.apply(&mut session, &mut extra).unwrap();
        assert_eq!(extra.position, 0);
    }

    #[test]
    fn what_is_written_is_read() {
        for record in [
            GroupRecord::Join { member: "a/b".into() },
            GroupRecord::Cut,
            GroupRecord::Take { position: 7, delta: vec![1, 2, 3] },
            GroupRecord::Rebuild { position: 9, contributions: vec![vec![], vec![4; 300]] },
            GroupRecord::Drop { position: 1, contribution: vec![5] },
        ] {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            assert_eq!(GroupRecord::parse(&bytes), Some(record));
        }
        for broken in
            [&[][..], &[9], &[CUT, 0], &[TAKE, 1], &[REBUILD, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[JOIN, 0xff]]
        {
            assert_eq!(GroupRecord::parse(broken), None, "{broken:?}");
        }
    }
}
