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
    /// By how much it may raise the fence at most, where that is bounded.
    pub max_step: Option<u64>,
    /// What the caller has to do afterwards.
    pub effects: Effects,
}

impl Party<'_> {
    fn leap(&self) -> Option<Token> {
        match (self.claim, self.max_step) {
            (Claim::Token(token), Some(max_step)) => self.core.leaps(token, max_step),
            (Claim::Token(_) | Claim::Without { .. }, _) => None,
        }
    }
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
    /// The party at `index` would be raised from `highest` by more than it may. Nothing was raised.
    StepTooLarge {
        /// Which of the parties.
        index: usize,
        /// The highest token seen there.
        highest: Token,
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
    let mut leap = None;
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
        if leap.is_none() {
            leap = party.leap().map(|highest| (index, highest));
        }
    }
    // After all were compared: a holder that is stale somewhere is told that first.
    if let Some((index, highest)) = leap {
        return Arrival::StepTooLarge { index, highest };
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

#[cfg(test)]
mod tests {
    use super::{Arrival, Claim, Core, Door, Effects, Party, arrive};
    use crate::base::{Moment, Token};

    /// A fence at rest.
    struct Fence {
        door: Door,
        core: Core,
    }

    impl Fence {
        fn at(mark: Option<u128>) -> Fence {
            let door = Door::new(mark.map(Token));
            let core = Core::at_rest(&door);
            Fence { door, core }
        }

        fn party(&mut self, token: u128, max_step: Option<u64>) -> Party<'_> {
            Party {
                core: &mut self.core,
                door: &self.door,
                claim: Claim::Token(Token(token)),
                max_step,
                effects: Effects::default(),
            }
        }

        fn arrive(&mut self, token: u128, max_step: Option<u64>) -> Arrival {
            arrive(&mut [self.party(token, max_step)], true, Moment(1), Moment(0))
        }

        fn reset(&mut self, token: u128) {
            let _effects = self.core.reset(&self.door, Token(token), Moment(1), Moment(0));
        }
    }

    fn too_large(index: usize, highest: u128) -> Arrival {
        let highest = Token(highest);
        Arrival::StepTooLarge { index, highest }
    }

    const RAISED: Arrival = Arrival::Waits { raised: true };

    #[test]
    fn a_leap_is_refused_and_raises_nothing() {
        let mut fence = Fence::at(Some(10));
        assert_eq!(fence.arrive(16, Some(5)), too_large(0, 10));
        assert_eq!(fence.core.highest(), Some(Token(10)));
        assert!(!fence.door.is_shut());
        assert_eq!(fence.arrive(15, Some(5)), RAISED);
        let far = u128::from(u64::MAX);
        assert_eq!(Fence::at(Some(0)).arrive(far, Some(u64::MAX)), RAISED);
        assert_eq!(Fence::at(Some(10)).arrive(far, None), RAISED);
    }

    #[test]
    fn the_first_token_of_a_resource_is_no_leap() {
        assert_eq!(Fence::at(None).arrive(u128::from(u64::MAX), Some(1)), RAISED);
    }

    #[test]
    fn a_step_is_counted_from_the_highest_seen_also_while_that_is_not_durable() {
        let mut fence = Fence::at(Some(10));
        assert_eq!(fence.arrive(15, Some(5)), RAISED);
        assert_eq!(
            fence.core.mark(),
            Some(Token(10)),
            "15 is on its way to the ledger"
        );
        assert_eq!(fence.arrive(20, Some(5)), RAISED);
        assert_eq!(fence.arrive(26, Some(5)), too_large(0, 20));
        assert_eq!(fence.arrive(20, Some(5)), Arrival::Waits { raised: false });
    }

    #[test]
    fn a_step_is_counted_from_the_mark_that_a_reset_is_about_to_set() {
        let mut fence = Fence::at(Some(100));
        fence.reset(10);
        assert_eq!(fence.arrive(100, Some(5)), too_large(0, 10));
        assert_eq!(fence.arrive(12, Some(5)), Arrival::Waits { raised: false });
    }

    #[test]
    fn one_leap_of_two_fences_raises_neither_and_a_stale_token_is_told_first() {
        let (mut one, mut two) = (Fence::at(Some(10)), Fence::at(Some(10)));
        let mut ask = |first, second, may_wait| {
            let mut parties = [one.party(first, None), two.party(second, Some(5))];
            let arrival = arrive(&mut parties, may_wait, Moment(1), Moment(0));
            let highest = parties.map(|party| party.core.highest());
            (arrival, highest)
        };
        let unmoved = [Some(Token(10)); 2];
        assert_eq!(ask(11, 16, true), (too_large(1, 10), unmoved));
        assert_eq!(ask(11, 16, false), (too_large(1, 10), unmoved));
        let stale = Arrival::Stale {
            index: 0,
            highest: Token(10),
        };
        assert_eq!(ask(9, 16, true), (stale, unmoved));
        let (index, highest) = (1, Token(10));
        assert_eq!(ask(11, 9, true), (Arrival::Stale { index, highest }, unmoved));
    }
}
