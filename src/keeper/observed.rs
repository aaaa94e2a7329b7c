//! Marks of rules in observe mode: their own, in memory, and nothing ever waits for them.
//!
//! They are bounded, since anybody can name resources: of the latest [`OBSERVED_MAX`] at least half are kept, and the
//! oldest are forgotten. A forgotten one is as one never seen, and nothing is refused because of it.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Ask;
use crate::base::Token;
use crate::fence::{Claim, Key};
use crate::observe::{Decision, Decisions};

/// How many observed resources are kept at most.
pub const OBSERVED_MAX: usize = 500_000;

/// What enforcing would have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sighting {
    /// The token is the highest seen.
    Admitted,
    /// The token is higher than every one seen.
    Raised,
    /// The token of ask `index` is lower than the highest seen.
    Stale {
        /// Which of the asks.
        index: usize,
        /// The highest token seen.
        highest: Token,
    },
    /// The token of ask `index` is too far above the highest seen.
    StepTooLarge {
        /// Which of the asks.
        index: usize,
        /// The highest token seen.
        highest: Token,
    },
    /// No token came for ask `index`, and the rule would refuse that.
    Missing {
        /// Which of the asks.
        index: usize,
    },
    /// No token came, and the rule lets that pass.
    Passed,
}

impl Sighting {
    /// Counts a request of one rule that was seen so, with these asks: it goes through.
    pub fn count(self, asks: &[Ask<'_>], decisions: &Decisions) {
        decisions.count(match self {
            Sighting::Admitted => Decision::Admitted,
            Sighting::Raised => Decision::Raised,
            Sighting::Stale { .. } => Decision::Stale,
            Sighting::Missing { .. } => Decision::Missing,
            Sighting::StepTooLarge { .. } => Decision::Malformed,
            Sighting::Passed => Decision::Passed,
        });
        if asks.iter().any(Ask::is_bare) {
            decisions.count_unfenced();
        }
    }

    /// Whether enforcing would have refused the request.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        match self {
            Sighting::Stale { .. } | Sighting::StepTooLarge { .. } | Sighting::Missing { .. } => true,
            Sighting::Admitted | Sighting::Raised | Sighting::Passed => false,
        }
    }
}

/// The highest token seen of each observed resource.
#[derive(Debug, Default)]
pub struct Observed {
    marks: Mutex<Marks>,
}

/// Two generations: what is used moves to the young one; when that is full, the old one is forgotten.
#[derive(Debug, Default)]
struct Marks {
    young: HashMap<Key, Token>,
    old: HashMap<Key, Token>,
}

impl Observed {
    /// Compares a request with all its resources at once and, unless it would be refused, notes its tokens. `keys`
    /// are those of the asks' resources.
    #[must_use]
    pub(super) fn see(&self, asks: &[Ask<'_>], keys: &[Key]) -> Sighting {
        let mut marks = self.marks.lock();
        let sighting = marks.compare(asks, keys);
        if !sighting.is_refusal() {
            for (ask, key) in asks.iter().zip(keys) {
                if let Claim::Token(token) = ask.claim {
                    marks.note(*key, token, OBSERVED_MAX / 2);
                }
            }
        }
        sighting
    }

    /// How many resources are kept.
    pub(super) fn count(&self) -> usize {
        let marks = self.marks.lock();
        marks.young.len() + marks.old.len()
    }
}

impl Marks {
    fn get(&self, key: Key) -> Option<Token> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    fn compare(&self, asks: &[Ask<'_>], keys: &[Key]) -> Sighting {
        let mut sighting = Sighting::Passed;
        let mut leap = None;
        for (index, (ask, key)) in asks.iter().zip(keys).enumerate() {
            match (ask.claim, self.get(*key)) {
                (Claim::Token(token), Some(highest)) if token < highest => {
                    return Sighting::Stale { index, highest };
                }
                (Claim::Token(token), Some(highest)) if token == highest => {
                    if sighting == Sighting::Passed {
                        sighting = Sighting::Admitted;
                    }
                }
                (Claim::Token(token), Some(highest))
                    if ask
                        .max_step
                        .is_some_and(|max| token.0 - highest.0 > u128::from(max)) =>
                {
                    leap = leap.or(Some(Sighting::StepTooLarge { index, highest }));
                }
                (Claim::Token(_), _) => sighting = Sighting::Raised,
                (Claim::Without { until_fenced: true }, Some(_)) => return Sighting::Missing { index },
                (Claim::Without { .. }, _) => {}
            }
        }
        leap.unwrap_or(sighting)
    }

    fn note(&mut self, key: Key, token: Token, generation_max: usize) {
        let token = self.get(key).map_or(token, |highest| highest.max(token));
        if self.young.insert(key, token).is_none() {
            self.old.remove(&key);
        }
        if self.young.len() >= generation_max {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Marks, Observed, Sighting};
    use crate::base::{Token, TokenFormat};
    use crate::fence::{Claim, Key, Table};
    use crate::keeper::Ask;

    fn ask(name: &str, token: u128) -> Ask<'_> {
        Ask {
            name,
            claim: Claim::Token(Token(token)),
            format: TokenFormat::Integer,
            max_step: None,
        }
    }

    /// Observes with keys as the keeper makes them.
    struct Watcher {
        table: Table<()>,
        observed: Observed,
    }

    impl Watcher {
        fn new() -> Watcher {
            Watcher {
                table: Table::default(),
                observed: Observed::default(),
            }
        }

        fn see(&self, asks: &[Ask<'_>]) -> Sighting {
            let keys: Vec<Key> = asks.iter().map(|ask| self.table.key(ask.name)).collect();
            self.observed.see(asks, &keys)
        }
    }

    #[test]
    fn one_stale_token_of_two_notes_neither() {
        let watcher = Watcher::new();
        assert_eq!(watcher.see(&[ask("a", 1), ask("b", 5)]), Sighting::Raised);
        let (index, highest) = (1, Token(5));
        assert_eq!(
            watcher.see(&[ask("a", 2), ask("b", 4)]),
            Sighting::Stale { index, highest }
        );
        assert_eq!(
            watcher.see(&[ask("a", 1), ask("b", 5)]),
            Sighting::Admitted,
            "a is still at 1"
        );
    }

    #[test]
    fn a_leap_is_noted_as_refused_and_raises_nothing() {
        let watcher = Watcher::new();
        let bounded = |token| Ask {
            max_step: Some(5),
            ..ask("a", token)
        };
        assert_eq!(watcher.see(&[bounded(100)]), Sighting::Raised, "the first");
        let (index, highest) = (0, Token(100));
        let refused = Sighting::StepTooLarge { index, highest };
        assert_eq!(watcher.see(&[bounded(106), ask("b", 1)]), refused);
        assert_eq!(watcher.see(&[bounded(105)]), Sighting::Raised);
        assert_eq!(watcher.observed.count(), 1, "b was not noted");
    }

    #[test]
    fn a_write_without_a_token_passes_until_its_resource_is_fenced() {
        let watcher = Watcher::new();
        let without = Ask {
            claim: Claim::Without { until_fenced: true },
            ..ask("a", 0)
        };
        assert_eq!(watcher.see(&[without]), Sighting::Passed);
        assert_eq!(watcher.see(&[ask("a", 1)]), Sighting::Raised);
        assert_eq!(watcher.see(&[without]), Sighting::Missing { index: 0 });
    }

    #[test]
    fn the_oldest_are_forgotten_and_what_is_used_is_kept() {
        let table = Table::<()>::default();
        let mut marks = Marks::default();
        let used = table.key("used");
        for n in 0..1_000 {
            marks.note(table.key(&format!("r{n}")), Token(1), 50);
            marks.note(used, Token(7), 50);
            assert!(marks.young.len() + marks.old.len() <= 100);
        }
        marks.note(used, Token(3), 50);
        assert_eq!(marks.get(used), Some(Token(7)));
        assert_eq!(marks.get(table.key("r0")), None);
        assert_eq!(marks.get(table.key("r999")), Some(Token(1)));
    }
}
