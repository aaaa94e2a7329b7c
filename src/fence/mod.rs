//! The fence of one resource: what it lets through, what it refuses, and what a new holder must wait for.
//!
//! A pure state machine: time comes in as `now`, effects go out as [`Effects`]. It does no I/O and holds no
//! lock but the table's. Called by `keeper/` alone, and by the model in `tests/`, which explores these very
//! functions.
//!
//! Two parts share the work. The [`Door`] is three atomics: the open token and the number of committed flights;
//! nearly every request touches nothing else. The [`Core`] is everything that takes more than a moment: a raise
//! that drains, commits and opens, doubts, resets. A core at rest can be thrown away and made again from its door.
//!
//! Invariants, by the names that the model, the tests and the debug checks use:
//! - **F1** nothing is forwarded below the mark;
//! - **F2** marks never fall but by an audited reset;
//! - **F3** nothing is admitted above an unsettled older flight;
//! - **F4** the ledger's mark implies that everything lower has settled;
//! - **F5** no fenced byte leaves without ownership (asked in `keeper/`, at the commit point).

#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

mod core;
mod door;
mod table;

pub use self::core::{Claim, Comparison, Core, Effects, Persist, Step};
pub use self::door::Door;
pub use self::table::{Entry, Key, Table};

use crate::base::{Moment, Token};

/// One fence of a request that arrives, with what the request presents for it.
#[derive(Debug)]
pub struct Party<'a> {
    /// The fence's slow state.
    pub core: &'a mut Core,
    /// The fence's door.
    pub door: &'a Door,
    /// What the request presents.
    pub claim: Claim,
    /// What the caller has to do afterwards.
    pub effects: Effects,
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It may go on to its commit point.
    Admitted,
    /// The party at `index` has seen the higher token `highest`. Nothing was raised.
    Stale {
        /// Which of the parties.
        index: usize,
        /// The highest token seen there.
        highest: Token,
    },
    /// The party at `index` lets nothing through without a token any more. Nothing was raised.
    Missing {
        /// Which of the parties.
        index: usize,
    },
    /// It would have to wait and may not. Nothing was raised.
    Overloaded,
    /// A raise that it needs is drained but could not be made durable; it is tried again by itself. Its other fences
    /// may have been raised by this call.
    Unstored,
    /// It waits; call again when the fence has moved.
    Waits {
        /// Whether this call raised a fence.
        raised: bool,
    },
}

/// A request arrives: compares it with all its fences at once and, unless one refuses it, raises those that are
/// lower (S1, S3, S12).
///
/// The caller holds all the fences' locks, taken in one fixed order. A request that waits arrives again, with the
/// same claims, each time that one of its fences has moved.
///
/// `hold` is the end of the wait after a crash (S10), [`Moment`] zero where there is none. With `may_wait` false a
/// request that would have to wait is turned away before it raises anything (S7).
pub fn arrive(parties: &mut [Party<'_>], may_wait: bool, now: Moment, hold: Moment) -> Arrival {
    let mut waits = false;
    let mut raises = false;
    let mut unstored = false;
    for (index, party) in parties.iter().enumerate() {
        match party.core.compare(party.claim) {
            Comparison::Stale { highest } => return Arrival::Stale { index, highest },
            Comparison::Missing => return Arrival::Missing { index },
            Comparison::Equal => {}
            Comparison::Pending => {
                waits = true;
                unstored |= matches!(party.core.step(), Step::Unstored { .. });
            }
            Comparison::Raise => raises = true,
        }
    }
    if !waits && !raises {
        return Arrival::Admitted;
    }
    if !may_wait {
        return Arrival::Overloaded;
    }
    for party in parties.iter_mut() {
        if let (Comparison::Raise, Claim::Token(token)) = (party.core.compare(party.claim), party.claim) {
            party.effects = party.core.raise(party.door, token, now, hold);
        }
    }
    if unstored {
        Arrival::Unstored
    } else {
        Arrival::Waits { raised: raises }
    }
}
