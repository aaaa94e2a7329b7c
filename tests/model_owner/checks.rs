//! What must hold: the promise, the invariants by their names, and that nothing waits for ever.
//!
//! Rules about a step are noted in [`State::broken`] as the step is taken; rules about a state are asked of it.

use fencegate::fence::Step;
use stateright::{Model, Property};

use super::world::{End, Phase, State, Tenure, World};

/// The promise: once a token was let through, no older write takes effect. What may take effect at any moment is
/// judged at each.
pub const PROMISE: &str = "the promise";
/// Nothing is forwarded below the mark.
pub const F1: &str = "F1";
/// Marks never fall but by a reset, and an owner begins with those that are in the store.
pub const F2: &str = "F2";
/// Nothing is admitted above an unsettled older flight.
pub const F3: &str = "F3";
/// The store's mark implies that everything lower has settled.
pub const F4: &str = "F4";
/// No fenced byte leaves without ownership.
pub const F5: &str = "F5";
/// An owner never takes its own mark for somebody else's: it would end its tenure for nothing.
pub const NOTHING_IS_FOREIGN: &str = "nothing in the store is foreign";
/// What was let through is in the store.
pub const S2: &str = "S2: durable first";
/// There is an end: every request and every reset has come to it once things have been calm for long enough.
pub const ALL_ENDS: &str = "everything comes to an end";
/// Writes flow again: at another instance, too.
pub const ANOTHER_TAKES_OVER: &str = "a request gets through by another instance";

/// The rules about steps; their places are the bits of [`State::broken`].
const STEP_RULES: [&str; 5] = [F1, F2, F3, F5, NOTHING_IS_FOREIGN];

impl State {
    /// Notes that a rule about steps was seen broken.
    pub fn note(&mut self, rule: &'static str) {
        self.broken |= bit(rule);
    }

    fn keeps(&self, rule: &'static str) -> bool {
        self.broken & bit(rule) == 0
    }

    fn sent_is_at_least(&self, rank: super::world::Rank) -> bool {
        let mut sent = self.flights.iter().filter_map(|flight| flight.sent);
        sent.all(|sent| sent.rank >= rank)
    }
}

fn bit(rule: &'static str) -> u16 {
    let at = STEP_RULES
        .iter()
        .position(|r| *r == rule)
        .expect("a rule about steps");
    1 << at
}

/// All properties of a world. Each request must be able to get through: instances that refuse all are of no use.
pub fn properties(world: &World) -> Vec<Property<World>> {
    let mut all = vec![
        Property::always(PROMISE, |_, s: &State| s.sent_is_at_least(s.let_through)),
        Property::always(F1, |_, s: &State| s.keeps(F1)),
        Property::always(F2, |_, s: &State| s.keeps(F2)),
        Property::always(F3, |_, s: &State| s.keeps(F3)),
        Property::always(F4, |_, s: &State| s.sent_is_at_least(s.store.mark)),
        Property::always(F5, |_, s: &State| s.keeps(F5)),
        Property::always(S2, |_, s: &State| s.store.mark >= s.let_through),
        Property::always(NOTHING_IS_FOREIGN, |_, s: &State| s.keeps(NOTHING_IS_FOREIGN)),
        Property::always(ALL_ENDS, all_ends),
    ];
    if world.faults.ends_tenures() {
        all.push(Property::sometimes(ANOTHER_TAKES_OVER, |_, s: &State| {
            let other = |phase| matches!(phase, Phase::Ended(End::Through(by)) if by != 0);
            s.flights.iter().any(|flight| other(flight.phase))
        }));
    }
    for at in 0..world.requests.len() {
        all.push(match at {
            0 => Property::sometimes(GETS_THROUGH[0], |_, s| through(s, 0)),
            1 => Property::sometimes(GETS_THROUGH[1], |_, s| through(s, 1)),
            2 => Property::sometimes(GETS_THROUGH[2], |_, s| through(s, 2)),
            3 => Property::sometimes(GETS_THROUGH[3], |_, s| through(s, 3)),
            _ => unreachable!("a world has four requests at most"),
        });
    }
    all
}

/// That the request at this place may get through.
pub const GETS_THROUGH: [&str; 4] = [
    "request 0 gets through",
    "request 1 gets through",
    "request 2 gets through",
    "request 3 gets through",
];

fn through(state: &State, at: usize) -> bool {
    matches!(state.flights[at].phase, Phase::Ended(End::Through(_)))
}

fn all_ends(world: &World, state: &State) -> bool {
    if state.broken != 0 || world.is_done(state) {
        return true;
    }
    let mut actions = Vec::new();
    world.actions(state, &mut actions);
    state.now < world.end && !actions.is_empty()
}

impl World {
    /// Every request, every raise and every reset has ended, and nobody awaits anything.
    pub fn is_done(&self, state: &State) -> bool {
        let ended = |phase| matches!(phase, Phase::Ended(_));
        let rests = |tenure: &Tenure| !tenure.leaving && tenure.core.step() == Step::Open;
        state.flights.iter().all(|flight| ended(flight.phase))
            && usize::from(state.left.resets_asked) == self.resets.len()
            && state.network.iter().all(|transaction| transaction.given_up)
            && state.instances.iter().filter_map(|i| i.tenure()).all(rests)
    }
}
