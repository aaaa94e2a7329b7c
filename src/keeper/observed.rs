//! Marks of rules in observe mode: their own, in memory, and nothing ever waits for them.

use dashmap::DashMap;

use super::Ask;
use crate::base::Token;
use crate::fence::Claim;

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
    /// No token came for ask `index`, and the rule would refuse that.
    Missing {
        /// Which of the asks.
        index: usize,
    },
    /// No token came, and the rule lets that pass.
    Passed,
}

/// The highest token seen of each observed resource.
#[derive(Debug, Default)]
pub struct Observed {
    highest: DashMap<Box<str>, Token>,
}

impl Observed {
    /// Compares a request with all its resources at once and, unless one is stale, notes its tokens.
    #[must_use]
    pub fn see(&self, asks: &[Ask<'_>]) -> Sighting {
        let mut sighting = Sighting::Passed;
        for (index, ask) in asks.iter().enumerate() {
            let highest = self.highest.get(ask.name).map(|entry| *entry);
            match (ask.claim, highest) {
                (Claim::Token(token), Some(highest)) if token < highest => {
                    return Sighting::Stale { index, highest };
                }
                (Claim::Token(token), Some(highest)) if token == highest => {
                    if sighting == Sighting::Passed {
                        sighting = Sighting::Admitted;
                    }
                }
                (Claim::Token(_), _) => sighting = Sighting::Raised,
                (Claim::Without { until_fenced: true }, Some(_)) => return Sighting::Missing { index },
                (Claim::Without { .. }, _) => {}
            }
        }
        for ask in asks {
            if let Claim::Token(token) = ask.claim {
                let mut entry = self.highest.entry(ask.name.into()).or_insert(token);
                *entry = (*entry).max(token);
            }
        }
        sighting
    }
}

#[cfg(test)]
mod tests {
    use super::{Observed, Sighting};
    use crate::base::{Token, TokenFormat};
    use crate::fence::Claim;
    use crate::keeper::Ask;

    fn ask(name: &str, token: u128) -> Ask<'_> {
        Ask {
            name,
            claim: Claim::Token(Token(token)),
            format: TokenFormat::Integer,
        }
    }

    #[test]
    fn one_stale_token_of_two_notes_neither() {
        let observed = Observed::default();
        assert_eq!(observed.see(&[ask("a", 1), ask("b", 5)]), Sighting::Raised);
        assert_eq!(
            observed.see(&[ask("a", 2), ask("b", 4)]),
            Sighting::Stale {
                index: 1,
                highest: Token(5)
            }
        );
        assert_eq!(
            observed.see(&[ask("a", 1), ask("b", 5)]),
            Sighting::Admitted,
            "a is still at 1"
        );
    }

    #[test]
    fn a_write_without_a_token_passes_until_its_resource_is_fenced() {
        let observed = Observed::default();
        let without = Ask {
            name: "a",
            claim: Claim::Without { until_fenced: true },
            format: TokenFormat::Integer,
        };
        assert_eq!(observed.see(&[without]), Sighting::Passed);
        assert_eq!(observed.see(&[ask("a", 1)]), Sighting::Raised);
        assert_eq!(observed.see(&[without]), Sighting::Missing { index: 0 });
    }
}
