//! The slow state of one fence: everything that takes more than a moment.
//!
//! A raise goes down one line: it shuts the door (lower tokens are refused from here on, S3), drains (S4),
//! commits (S2) and opens. What has not passed its commit point never holds it up: it finds the door shut.

use smallvec::SmallVec;

use super::Door;
use crate::base::{Moment, Token};

/// What a request presents for one fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claim {
    /// A token.
    Token(Token),
    /// None, under a rule that lets such writes pass (S15). They count as older than every token.
    Without {
        /// `missing: pass_until_fenced`: only while the resource has seen no token.
        until_fenced: bool,
    },
}

/// A claim compared with what the fence has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// Lower than the highest token seen.
    Stale {
        /// That token.
        highest: Token,
    },
    /// No token came, and the resource is fenced by now.
    Missing,
    /// The open token: it may go on.
    Equal,
    /// Not refused, but a raise or a reset is under way.
    Pending,
    /// Higher than every token seen.
    Raise,
}

/// Where a fence stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// The highest token seen is durable and open, or none was seen yet.
    Open,
    /// A raise or a reset waits for older flights, for doubts, or for the end of the wait after a crash.
    Draining,
    /// The ledger was asked to make this token durable.
    Committing {
        /// The token on its way to the ledger.
        token: Token,
        /// Whether it is a reset.
        reset: bool,
    },
    /// The ledger could not; it is asked again at `retry_at`.
    Unstored {
        /// When it is asked again.
        retry_at: Moment,
    },
}

/// Asks the ledger to make a token durable; its answer comes back by [`Core::durable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Persist {
    /// The token.
    pub token: Token,
    /// Whether it is a reset, which may lower the mark.
    pub reset: bool,
}

/// What the caller has to do after a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Effects {
    /// Hand this to the ledger.
    pub persist: Option<Persist>,
    /// Wake whoever is registered with this fence: it has moved.
    pub wake: bool,
    /// Call [`Core::advance`] again at this moment.
    pub timer: Option<Moment>,
}

/// The slow state of one fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Core {
    /// What the ledger is known to hold.
    mark: Option<Token>,
    /// The highest token seen. Never lower than the mark.
    highest: Option<Token>,
    step: Step,
    /// An operator's reset that is not durable yet.
    reset: Option<Token>,
    /// When each doubt ends, the earliest first.
    doubts: SmallVec<[Moment; 2]>,
}

/// How long after the ledger failed it is asked again.
pub const STORE_RETRY_NS: u64 = 500_000_000;

impl Core {
    /// The core of a door that is open and has no doubts.
    #[must_use]
    pub fn at_rest(door: &Door) -> Core {
        let mark = door.mark();
        Core {
            mark,
            highest: mark,
            step: Step::Open,
            reset: None,
            doubts: SmallVec::new(),
        }
    }

    /// Whether nothing would be lost by making this core again from its door.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.step == Step::Open && self.doubts.is_empty()
    }

    /// The highest token seen.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        self.highest
    }

    /// What the ledger is known to hold.
    #[must_use]
    pub fn mark(&self) -> Option<Token> {
        self.mark
    }

    /// Where the fence stands.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// How many doubts last beyond `now`.
    #[must_use]
    pub fn in_doubt(&self, now: Moment) -> usize {
        self.doubts.len() - self.doubts.partition_point(|until| *until <= now)
    }

    /// Compares a claim with what was seen so far; changes nothing (S1, S3, S15).
    #[must_use]
    pub fn compare(&self, claim: Claim) -> Comparison {
        match claim {
            Claim::Token(token) => self.compare_token(token),
            Claim::Without { until_fenced } => {
                if until_fenced && (self.highest.is_some() || self.reset.is_some()) {
                    Comparison::Missing
                } else if self.step == Step::Open {
                    Comparison::Equal
                } else {
                    Comparison::Pending
                }
            }
        }
    }

    fn compare_token(&self, token: Token) -> Comparison {
        if let Some(target) = self.reset {
            // The mark is about to become `target`. What is lower is stale before and after; the rest is judged
            // again when the reset is durable.
            return if token < target {
                Comparison::Stale { highest: target }
            } else {
                Comparison::Pending
            };
        }
        let Some(highest) = self.highest else {
            return Comparison::Raise;
        };
        match token.cmp(&highest) {
            std::cmp::Ordering::Less => Comparison::Stale { highest },
            std::cmp::Ordering::Equal if self.step == Step::Open => Comparison::Equal,
            std::cmp::Ordering::Equal => Comparison::Pending,
            std::cmp::Ordering::Greater => Comparison::Raise,
        }
    }

    /// The token that `token` would leap from, if that is by more than `max_step`. A fence that has seen none takes
    /// any. Changes nothing.
    #[must_use]
    pub fn leaps(&self, token: Token, max_step: u64) -> Option<Token> {
        // During a reset the mark is about to become its target.
        let present = self.reset.or(self.highest)?;
        let step = token.0.checked_sub(present.0)?;
        (step > u128::from(max_step)).then_some(present)
    }

    /// A higher token was seen: before, it compared as [`Comparison::Raise`]; after, everything lower is refused
    /// and the raise is under way. A raise that finds another one under way joins it.
    pub fn raise(&mut self, door: &Door, token: Token, now: Moment, hold: Moment) -> Effects {
        assert!(
            self.highest.is_none_or(|highest| token > highest),
            "F2: a raise goes up"
        );
        self.highest = Some(token);
        door.shut();
        match self.step {
            Step::Open => self.step = Step::Draining,
            Step::Draining | Step::Committing { .. } | Step::Unstored { .. } => {}
        }
        // The flights that have not committed are cut now: wake them.
        Effects {
            wake: true,
            ..self.advance(door, now, hold)
        }
    }

    /// An operator sets the mark to `token`, also down. Drains every flight, whatever its token.
    pub fn reset(&mut self, door: &Door, token: Token, now: Moment, hold: Moment) -> Effects {
        self.reset = Some(token);
        door.shut();
        if self.step == Step::Open {
            self.step = Step::Draining;
        }
        Effects {
            wake: true,
            ..self.advance(door, now, hold)
        }
    }

    /// Goes on as far as it can: called when a flight has settled, a doubt has ended, a timer has run out.
    pub fn advance(&mut self, door: &Door, now: Moment, hold: Moment) -> Effects {
        // The earliest stand first: a lost connection may leave thousands, one by one.
        let ended = self.doubts.partition_point(|until| *until <= now);
        self.doubts.drain(..ended);
        let effects = match self.step {
            Step::Open | Step::Committing { .. } => Effects::default(),
            Step::Unstored { retry_at } if now < retry_at => Effects {
                timer: Some(retry_at),
                ..Effects::default()
            },
            Step::Draining | Step::Unstored { .. } => self.commit_if_drained(door, now, hold),
        };
        self.check(door, now);
        effects
    }

    fn commit_if_drained(&mut self, door: &Door, now: Moment, hold: Moment) -> Effects {
        if door.committed() > 0 {
            return Effects::default(); // the last one out calls again
        }
        let wait_until = self.doubts.last().copied().unwrap_or_default().max(hold);
        if now < wait_until {
            return Effects {
                timer: Some(wait_until),
                ..Effects::default()
            };
        }
        let (token, reset) = match (self.reset, self.highest) {
            (Some(token), _) => (token, true),
            (None, Some(token)) => (token, false),
            (None, None) => unreachable!("a fence drains only for a raise or a reset"),
        };
        self.step = Step::Committing { token, reset };
        Effects {
            persist: Some(Persist { token, reset }),
            ..Effects::default()
        }
    }

    /// The ledger's answer. `stored` false means *not known to be durable*: it is asked again until it is.
    pub fn durable(&mut self, door: &Door, stored: bool, now: Moment, hold: Moment) -> Effects {
        let Step::Committing { token, reset } = self.step else {
            unreachable!("the ledger answers once for each time it was asked")
        };
        if !stored {
            let retry_at = Moment(now.0.saturating_add(STORE_RETRY_NS));
            self.step = Step::Unstored { retry_at };
            self.check(door, now);
            return Effects {
                wake: true,
                timer: Some(retry_at),
                persist: None,
            };
        }
        self.mark = Some(token);
        if reset && self.reset == Some(token) {
            self.reset = None;
            self.highest = Some(token);
        }
        if self.reset.is_none() && self.highest == self.mark {
            self.step = Step::Open;
            door.open(token);
            self.check(door, now);
            return Effects {
                wake: true,
                ..Effects::default()
            };
        }
        // A still higher token, or a reset, came while this one was on its way. Nothing older is left to drain,
        // and whoever waited for this one is refused.
        self.step = Step::Draining;
        Effects {
            wake: true,
            ..self.advance(door, now, hold)
        }
    }

    /// A committed flight's answer is lost: it leaves the count and is in doubt until `until` (S6).
    pub fn doubt(&mut self, door: &Door, until: Moment, now: Moment, hold: Moment) -> Effects {
        let at = self.doubts.partition_point(|other| *other <= until);
        self.doubts.insert(at, until);
        let _last = door.settle(); // `advance` below looks at the count itself
        let effects = self.advance(door, now, hold);
        // Even where nothing drains, someone must come back to forget the doubt.
        Effects {
            timer: Some(effects.timer.map_or(until, |timer| timer.min(until))),
            ..effects
        }
    }

    /// What must hold after each transition.
    fn check(&self, door: &Door, now: Moment) {
        if !cfg!(debug_assertions) {
            return;
        }
        match self.step {
            Step::Open => {
                assert!(
                    self.reset.is_none() && self.highest == self.mark,
                    "open at the durable mark: {self:?}"
                );
                assert!(
                    !door.is_shut() && door.mark() == self.mark,
                    "F1: the door shows the mark: {self:?} {door:?}"
                );
            }
            Step::Draining | Step::Unstored { .. } => assert!(door.is_shut(), "F3: {self:?} {door:?}"),
            Step::Committing { .. } => {
                assert!(
                    door.is_shut() && door.committed() == 0,
                    "F4: drained before it commits: {self:?} {door:?}"
                );
                assert!(
                    self.doubts.iter().all(|until| *until <= now),
                    "F4: no doubt is left: {self:?}"
                );
            }
        }
        if self.reset.is_none() {
            assert!(self.highest >= self.mark, "F2: {self:?}");
        }
    }
}
