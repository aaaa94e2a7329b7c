//! What an owner makes of a transaction that did not simply succeed: refused, or without an answer.
//!
//! Each one compares the owner's key and the exact revision of each mark that it writes. So one that was given up can
//! land only while nothing else has been written there, and what is read afterwards tells what has happened.

use crate::base::Token;

/// A revision of the store: of its owner's key when that was made, or of a mark when that was last written. Zero where
/// there is no such key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub i64);

/// A mark as it was to be written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    /// The token.
    pub token: Token,
    /// Whether it is a reset, which may lower the mark.
    pub reset: bool,
    /// The mark's revision that the transaction compares.
    pub known: Revision,
}

/// A mark as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    /// The token.
    pub token: Token,
    /// When it was written.
    pub revision: Revision,
}

/// What is to be made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The mark stands there, written at this revision.
    Done(Revision),
    /// It does not, and may be written by a transaction that compares this revision.
    Again(Revision),
    /// Somebody else owns the store, or nobody: this instance's tenure is over.
    NotOwner,
    /// Somebody has written there who must not. Nothing is known to be safe: the tenure is to be ended.
    Foreign,
}

/// Judges an attempt of the owner since `tenure` by what a linearizable read has found: the revision at which the
/// owner's key was made, and the mark.
#[must_use]
pub fn judge(tenure: Revision, owner: Option<Revision>, attempt: Attempt, held: Option<Held>) -> Verdict {
    if owner != Some(tenure) {
        return Verdict::NotOwner;
    }
    let revision = held.map_or(Revision(0), |held| held.revision);
    if revision == attempt.known {
        // It has not landed. It still may: then the next one, which compares the same revision, does not.
        return Verdict::Again(revision);
    }
    let Some(held) = held else {
        return Verdict::Foreign; // it was there, and nobody deletes marks
    };
    if held.revision < attempt.known {
        return Verdict::Foreign; // an older copy of the store
    }
    if attempt.reset {
        // A raise that was given up has landed, or the reset itself: written once more, it is certain.
        return Verdict::Again(revision);
    }
    match held.token.cmp(&attempt.token) {
        std::cmp::Ordering::Less => Verdict::Again(revision),
        std::cmp::Ordering::Equal => Verdict::Done(revision),
        std::cmp::Ordering::Greater => Verdict::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::{Attempt, Held, Revision, Verdict, judge};
    use crate::base::Token;

    const TENURE: Revision = Revision(7);

    fn attempt(token: u128, known: i64) -> Attempt {
        Attempt {
            token: Token(token),
            reset: false,
            known: Revision(known),
        }
    }

    fn held(token: u128, revision: i64) -> Option<Held> {
        let (token, revision) = (Token(token), Revision(revision));
        Some(Held { token, revision })
    }

    #[test]
    fn a_raise_is_done_where_it_stands_and_tried_again_where_it_does_not() {
        let judged = |held| judge(TENURE, Some(TENURE), attempt(5, 20), held);
        assert_eq!(judged(held(4, 20)), Verdict::Again(Revision(20)));
        assert_eq!(judged(held(5, 21)), Verdict::Done(Revision(21)));
        assert_eq!(judged(held(4, 21)), Verdict::Again(Revision(21)));
        assert_eq!(judged(held(6, 21)), Verdict::Foreign);
        assert_eq!(judged(None), Verdict::Foreign);
        assert_eq!(judged(held(4, 19)), Verdict::Foreign, "revisions only grow");
        let first = judge(TENURE, Some(TENURE), attempt(5, 0), None);
        assert_eq!(first, Verdict::Again(Revision(0)));
    }

    #[test]
    fn a_reset_is_written_once_more_over_whatever_landed() {
        let reset = Attempt {
            reset: true,
            ..attempt(5, 20)
        };
        for (found, revision) in [(4, 20), (9, 21), (5, 21)] {
            let verdict = judge(TENURE, Some(TENURE), reset, held(found, revision));
            assert_eq!(verdict, Verdict::Again(Revision(revision)));
        }
    }

    #[test]
    fn nothing_is_done_once_somebody_else_or_nobody_owns_the_store() {
        for owner in [None, Some(Revision(8))] {
            assert_eq!(
                judge(TENURE, owner, attempt(5, 20), held(5, 21)),
                Verdict::NotOwner
            );
        }
    }
}
