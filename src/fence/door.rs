//! The door of one fence: the way that nearly every request takes, with atomics alone.
//!
//! It says which token is open and counts the flights that are past their commit point. It never decides to open
//! or to shut: [`super::Core`] does, under its lock.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::Claim;
use crate::base::Token;
use crate::base::atomic::{AtomicU64, Ordering};

/// Set while a raise or a reset is under way: nothing commits.
const SHUT: u64 = 1 << 63;
/// Set until the resource has its first mark.
const BARE: u64 = 1 << 62;
/// One step of the generation, which moves whenever the door opens: 30 bits.
const GENERATION: u64 = 1 << 32;
const GENERATION_MASK: u64 = (BARE - 1) & !(GENERATION - 1);
/// The committed flights: 32 bits, far more than there can be sockets.
const COUNT_MASK: u64 = GENERATION - 1;

/// Which token is open, and how many flights have committed.
///
/// `word` is `SHUT | BARE | generation | count`. `high` and `low` are the open token; they change only while the
/// door is shut, and the generation moves before it opens again. So one compare-and-swap of `word` proves that
/// the token read before it is still the one that is open.
pub struct Door {
    word: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
}

impl Door {
    /// An open door: at `mark`, or bare where there is none yet.
    #[must_use]
    pub fn new(mark: Option<Token>) -> Door {
        let token = mark.map_or(0, |t| t.0);
        Door {
            word: AtomicU64::new(if mark.is_some() { 0 } else { BARE }),
            high: AtomicU64::new((token >> 64) as u64),
            low: AtomicU64::new(token as u64),
        }
    }

    /// Whether `claim` could commit at this moment: the comparison on arrival, and again after a wait.
    #[inline]
    #[must_use]
    pub fn admits(&self, claim: Claim) -> bool {
        loop {
            let before = self.word.load(Ordering::Acquire);
            let fits = self.fits(before, claim);
            // Pairs with the Release stores in `open`: a token of a later generation comes with a later word.
            let after = self.word.load(Ordering::Acquire);
            if before & !COUNT_MASK == after & !COUNT_MASK {
                return fits;
            }
        }
    }

    /// The commit point: counts a flight in, if its claim is still the open one. False means that it is cut.
    #[inline]
    #[must_use]
    pub fn commit(&self, claim: Claim) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if !self.fits(word, claim) {
                // A token read across a change of generation proves nothing: only an unchanged word does.
                let now = self.word.load(Ordering::Acquire);
                if now & !COUNT_MASK == word & !COUNT_MASK {
                    return false;
                }
                word = now;
                continue;
            }
            debug_assert!(word & COUNT_MASK < COUNT_MASK, "the count of flights overflows");
            // AcqRel: pairs with `shut`. Either this flight is in the count that `shut` returns, or it sees SHUT.
            match self
                .word
                .compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Counts a committed flight out. True where it was the last one that a shut door waited for: the caller then
    /// calls [`super::Core::advance`].
    #[inline]
    #[must_use]
    pub fn settle(&self) -> bool {
        // Release: what the flight did comes before; Acquire: the last one out acts for the raise.
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & COUNT_MASK > 0, "a flight settled twice");
        before & SHUT != 0 && before & COUNT_MASK == 1
    }

    /// How many flights have committed and not settled.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.word.load(Ordering::Acquire) & COUNT_MASK
    }

    /// Whether a raise or a reset is under way.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.word.load(Ordering::Acquire) & SHUT != 0
    }

    /// The token that is open, or was last; `None` before the first mark. Exact only under the core's lock.
    #[must_use]
    pub fn mark(&self) -> Option<Token> {
        (!self.is_bare()).then(|| self.token())
    }

    /// Whether the resource has no mark yet.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.word.load(Ordering::Acquire) & BARE != 0
    }

    /// Stops every commit from here on. Under the core's lock.
    pub(super) fn shut(&self) {
        self.word.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Opens at `mark` and moves the generation. Under the core's lock, shut, and with nothing committed.
    pub(super) fn open(&self, mark: Token) {
        let word = self.word.load(Ordering::Acquire);
        assert!(word & SHUT != 0, "a door is opened only after it was shut");
        assert!(
            word & COUNT_MASK == 0,
            "F3: a door opens only when everything older has settled"
        );
        // Release: a reader that sees the new token sees SHUT, or a later word, when it looks at `word` again.
        self.high.store((mark.0 >> 64) as u64, Ordering::Release);
        self.low.store(mark.0 as u64, Ordering::Release);
        let next = word.wrapping_add(GENERATION) & GENERATION_MASK;
        self.word.store(next, Ordering::Release);
    }

    fn fits(&self, word: u64, claim: Claim) -> bool {
        if word & SHUT != 0 {
            return false;
        }
        match claim {
            Claim::Token(token) => word & BARE == 0 && token == self.token(),
            Claim::Without { until_fenced } => !until_fenced || word & BARE != 0,
        }
    }

    fn token(&self) -> Token {
        let high = self.high.load(Ordering::Acquire);
        let low = self.low.load(Ordering::Acquire);
        Token(u128::from(high) << 64 | u128::from(low))
    }

    fn parts(&self) -> (u64, u64, u64) {
        (
            self.word.load(Ordering::Acquire),
            self.high.load(Ordering::Acquire),
            self.low.load(Ordering::Acquire),
        )
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Acquire);
        f.debug_struct("Door")
            .field("shut", &(word & SHUT != 0))
            .field("mark", &self.mark())
            .field("committed", &(word & COUNT_MASK))
            .finish()
    }
}

// A copy of the state, for the model: it explores one thread's steps at a time.
impl Clone for Door {
    fn clone(&self) -> Door {
        let (word, high, low) = self.parts();
        Door {
            word: AtomicU64::new(word),
            high: AtomicU64::new(high),
            low: AtomicU64::new(low),
        }
    }
}

impl PartialEq for Door {
    fn eq(&self, other: &Door) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Door {}

impl Hash for Door {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}
