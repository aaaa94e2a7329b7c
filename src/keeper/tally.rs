//! How many writes are in flight, counted by each thread in a place of its own: threads that share one counter would wait
//! for each other at each write. Called by `flight.rs` at the beginning and end of each, and by whoever wants to know.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More threads than this share places, which costs them time and nothing else.
const PLACES: usize = 32;

/// Counts what has begun and what has ended, which only ever grow.
#[derive(Debug, Default)]
pub(super) struct Tally {
    places: [Place; PLACES],
}

/// One thread's. As far from its neighbours as processors fetch at once.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Tally {
    #[inline]
    pub(super) fn begin(&self) {
        self.place().begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Of something that has begun, on whichever thread.
    #[inline]
    pub(super) fn end(&self) {
        // Pairs with the Acquire load in `count`: whoever sees this end sees its begin.
        self.place().ended.fetch_add(1, Ordering::AcqRel);
    }

    /// How many have begun and not ended. While they begin and end it may be more than there were at any moment, never
    /// less: nobody takes for over what is not.
    pub(super) fn count(&self) -> u64 {
        // All the ends before any begin.
        let ended: u64 = self.sum(|place| &place.ended);
        let begun: u64 = self.sum(|place| &place.begun);
        begun.wrapping_sub(ended)
    }

    fn sum(&self, of: impl Fn(&Place) -> &AtomicU64) -> u64 {
        let counts = self.places.iter().map(|place| of(place).load(Ordering::Acquire));
        counts.fold(0, u64::wrapping_add)
    }

    #[inline]
    fn place(&self) -> &Place {
        &self.places[number() % PLACES]
    }
}

/// This thread's number.
#[inline]
fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) % PLACES);
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{PLACES, Tally};

    #[test]
    fn what_begins_on_one_thread_may_end_on_another() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * PLACES {
                scope.spawn(|| (0..100).for_each(|_| tally.begin()));
            }
        });
        assert_eq!(tally.count(), 200 * PLACES as u64);
        (0..200 * PLACES).for_each(|_| tally.end());
        assert_eq!(tally.count(), 0);
    }

    #[test]
    fn one_that_lasts_is_seen_whatever_begins_and_ends_beside_it() {
        let tally = Tally::default();
        let over = AtomicBool::new(false);
        tally.begin();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        tally.begin();
                        tally.end();
                    }
                });
            }
            for _ in 0..20_000 {
                assert!(tally.count() >= 1);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(tally.count(), 1);
    }
}
