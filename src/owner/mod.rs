//! Who may admit, where several instances share one store: for how long an instance is sure to be the owner, what it
//! finds when it takes over, and what it makes of a transaction's outcome. Pure: time is passed in. It never talks to
//! the store; called by `ledger/etcd/`, and by the model of ownership.
//!
//! The idea is the lease of Gray and Cheriton (SOSP 1989), judged by the holder: it counts from *before* it asked, on a
//! clock that goes on while the machine is suspended, and stops *before* the store could let another one in.

#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

mod outcome;

use std::time::Duration;

pub use self::outcome::{Attempt, Held, Revision, Verdict, judge};
use crate::base::Moment;

/// The part of a lease that is not used, so that two clocks may run at different speeds: a tenth, more than any clock is
/// off, but never more than [`MARGIN_MAX`].
const MARGIN_PART: u32 = 10;
/// The most that is kept back: of a lease of a minute it still allows for clocks that differ by 1.6 %.
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// Until when a lease is good for its holder: `ttl` is what the store granted in its answer to a request that was sent
/// at `sent_at` or later.
///
/// The store counts from when it has got the request, which is no earlier. So this moment comes before the store lets
/// another one in, as long as the holder's clock is no slower than the store's by more than the margin.
#[must_use]
pub fn valid_until(sent_at: Moment, ttl: Duration) -> Moment {
    sent_at.plus(ttl.saturating_sub(margin(ttl)))
}

/// How much of a lease of `ttl` is kept back.
#[must_use]
pub fn margin(ttl: Duration) -> Duration {
    (ttl / MARGIN_PART).min(MARGIN_MAX)
}

/// How long an owner is sure to be it. Pairs with the lease that it renews.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Validity {
    until: Moment,
    lapsed: bool,
}

/// What a renewal or the passing of time has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is not sure any more: everything towards the backend is reset. The lease may still live.
    Lapsed,
    /// It is sure again, by the same lease: nobody was let in meanwhile.
    Regained,
}

impl Validity {
    /// From the grant of the lease, which was asked for at `sent_at`.
    #[must_use]
    pub fn granted(sent_at: Moment, ttl: Duration) -> Validity {
        Validity {
            until: valid_until(sent_at, ttl),
            lapsed: false,
        }
    }

    /// Until when.
    #[must_use]
    pub fn until(&self) -> Moment {
        self.until
    }

    /// Whether the owner may let a byte through now.
    #[must_use]
    pub fn holds(&self, now: Moment) -> bool {
        !self.lapsed && now < self.until
    }

    /// The store has renewed the lease for `ttl`, asked at `sent_at`. An answer that comes late counts for what is left
    /// of it, and never shortens what is known already.
    ///
    /// Call [`Validity::look`] with the same `now` first: a lapse must not be passed over.
    #[must_use]
    pub fn renewed(&mut self, sent_at: Moment, ttl: Duration, now: Moment) -> Option<Turn> {
        self.until = self.until.max(valid_until(sent_at, ttl));
        if self.lapsed && now < self.until {
            self.lapsed = false;
            return Some(Turn::Regained);
        }
        None
    }

    /// Time has passed.
    #[must_use]
    pub fn look(&mut self, now: Moment) -> Option<Turn> {
        if !self.lapsed && now >= self.until {
            self.lapsed = true;
            return Some(Turn::Lapsed);
        }
        None
    }
}

/// What stands in the store beside the marks, about the run that wrote it last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Marker {
    /// Nothing of it can still take effect.
    pub clean: bool,
    /// How long something may, after its end.
    pub settle_after: Duration,
}

/// How an owner begins (S10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakeOver {
    /// How long it lets no raise through, counted from the answer to the transaction that made it the owner.
    pub hold: Duration,
    /// What that transaction writes, together with the owner's key.
    pub marker: Marker,
}

/// A store with this marker, or none where it is new, is taken over by an owner with `settle_after`.
#[must_use]
pub fn take_over(found: Option<Marker>, settle_after: Duration) -> TakeOver {
    let hold = match found {
        Some(marker) if !marker.clean => marker.settle_after.max(settle_after),
        Some(_) | None => Duration::ZERO,
    };
    TakeOver {
        hold,
        marker: Marker {
            clean: false,
            // An owner that ends before its wait is over leaves what it had found.
            settle_after: hold.max(settle_after),
        },
    }
}

/// The wait after an unclean end is over: what an owner with `settle_after` writes from then on.
#[must_use]
pub fn settled_in(settle_after: Duration) -> Marker {
    Marker {
        clean: false,
        settle_after,
    }
}

/// What an owner writes as it deletes its key. `settled` says that nothing is in flight or in doubt and no wait runs;
/// else what stands there stays.
#[must_use]
pub fn at_the_end(settled: bool, settle_after: Duration) -> Option<Marker> {
    settled.then_some(Marker {
        clean: true,
        settle_after,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Marker, Turn, Validity, at_the_end, margin, settled_in, take_over, valid_until};
    use crate::base::Moment;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    fn marker(clean: bool, seconds: u64) -> Marker {
        Marker {
            clean,
            settle_after: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_lease_counts_from_before_it_was_asked_for_and_ends_before_the_stores() {
        assert_eq!(valid_until(at(100), TTL), at(129));
        assert_eq!(margin(Duration::from_secs(2)), Duration::from_millis(200));
        assert_eq!(valid_until(at(100), Duration::ZERO), at(100));
    }

    #[test]
    fn a_lapse_is_seen_once_and_ended_by_a_renewal_alone() {
        let mut validity = Validity::granted(at(0), TTL);
        assert!(validity.holds(at(28)));
        assert_eq!(validity.look(at(28)), None);
        assert!(!validity.holds(at(29)), "also before anybody looked");
        assert_eq!(validity.look(at(29)), Some(Turn::Lapsed));
        assert_eq!(validity.look(at(40)), None);
        assert_eq!(validity.renewed(at(1), TTL, at(40)), None, "that one is over too");
        assert!(
            !validity.holds(at(29)),
            "a clock that is read late lets nothing through"
        );
        assert_eq!(validity.renewed(at(41), TTL, at(42)), Some(Turn::Regained));
        assert!(validity.holds(at(42)));
    }

    #[test]
    fn an_answer_to_an_older_question_shortens_nothing() {
        let mut validity = Validity::granted(at(10), TTL);
        assert_eq!(validity.renewed(at(5), TTL, at(12)), None);
        assert_eq!(validity.until(), at(39));
    }

    #[test]
    fn the_larger_wait_counts_and_is_left_to_the_next() {
        let own = Duration::from_secs(5);
        for (found, hold, left) in [
            (None, 0, 5),
            (Some(marker(true, 60)), 0, 5),
            (Some(marker(false, 60)), 60, 60),
            (Some(marker(false, 1)), 5, 5),
        ] {
            let begun = take_over(found, own);
            assert_eq!(begun.hold, Duration::from_secs(hold), "{found:?}");
            assert_eq!(begun.marker, marker(false, left), "{found:?}");
        }
        assert_eq!(settled_in(own), marker(false, 5));
        assert_eq!(at_the_end(true, own), Some(marker(true, 5)));
        assert_eq!(at_the_end(false, own), None);
    }
}
