//! What must hold: the promise, the invariants by their names, and that nothing waits for ever.
//!
//! Rules about a step are noted in [`State::broken`] as the step is taken; rules about a state are asked of it.

use fencegate::base::Token;
use fencegate::fence::{Claim, Comparison, Core, Step};
use stateright::{Model, Property};

use super::world::{End, Fence, Phase, State, World};

/// The promise: once a token was let through, no older write takes effect.
pub const PROMISE: &str = "the promise";
/// Nothing is forwarded below the mark.
pub const F1: &str = "F1";
/// Marks never fall but by a reset.
pub const F2: &str = "F2";
/// Nothing is admitted above an unsettled older flight.
pub const F3: &str = "F3";
/// The ledger's mark implies that everything lower has settled.
pub const F4: &str = "F4";
/// Only what is too old is refused as too old.
pub const S1: &str = "S1: no refusal without a cause";
/// What was let through is found again after a crash.
pub const S2: &str = "S2: durable first";
/// Nothing lower than what was seen is let through.
pub const S3: &str = "S3: lower ones are refused at once";
/// No request raises a fence by more than it may.
pub const MAX_STEP: &str = "max_step";
/// A refused request raises nothing (S7, S12).
pub const RAISES_NOTHING: &str = "a refused request raises nothing";
/// The door says what the core says, and a core at rest can be made again from its door.
pub const DOOR_AND_CORE: &str = "the door and the core agree";
/// The ledger isn't asked again for what it has just made durable: else a raise never ends.
pub const ASKS_ONCE: &str = "what is durable is not asked for again";
/// A raise that waits has someone who comes back to it.
pub const NO_RAISE_IS_LEFT: &str = "no raise is left alone";
/// A request that waits is woken when its fences open.
pub const NO_REQUEST_SLEEPS: &str = "no request sleeps for ever";
/// Where nothing more can happen, every request and every reset has ended, and every fence is open.
pub const ALL_ENDS: &str = "everything comes to an end";

/// The rules about steps; their places are the bits of [`State::broken`].
pub const STEP_RULES: [&str; 9] = [PROMISE, F1, F2, F3, S1, S3, RAISES_NOTHING, ASKS_ONCE, MAX_STEP];

impl State {
    /// Notes that a rule about steps was seen broken.
    pub fn note(&mut self, rule: &'static str) {
        self.broken |= bit(rule);
    }

    fn keeps(&self, rule: &'static str) -> bool {
        self.broken & bit(rule) == 0
    }
}

fn bit(rule: &'static str) -> u16 {
    let at = STEP_RULES
        .iter()
        .position(|r| *r == rule)
        .expect("a rule about steps");
    1 << at
}

/// All properties of a world. Each request must be able to get through: a fence that refuses all is not one.
pub fn properties(world: &World) -> Vec<Property<World>> {
    let mut all = vec![
        Property::always(PROMISE, |_, s: &State| s.keeps(PROMISE)),
        Property::always(F1, |_, s: &State| s.keeps(F1)),
        Property::always(F2, |_, s: &State| s.keeps(F2)),
        Property::always(F3, |_, s: &State| s.keeps(F3)),
        Property::always(F4, |_, s: &State| older_have_settled(s)),
        Property::always(S1, |_, s: &State| s.keeps(S1)),
        Property::always(S2, |_, s: &State| {
            s.fences.iter().all(|f| f.ledger >= f.let_through)
        }),
        Property::always(S3, |_, s: &State| s.keeps(S3)),
        Property::always(RAISES_NOTHING, |_, s: &State| s.keeps(RAISES_NOTHING)),
        Property::always(MAX_STEP, |_, s: &State| s.keeps(MAX_STEP)),
        Property::always(ASKS_ONCE, |_, s: &State| s.keeps(ASKS_ONCE)),
        Property::always(DOOR_AND_CORE, |_, s: &State| s.fences.iter().all(agree)),
        Property::always(NO_RAISE_IS_LEFT, |_, s: &State| {
            (0..s.fences.len()).all(|at| is_looked_after(s, at))
        }),
        Property::always(NO_REQUEST_SLEEPS, no_request_sleeps),
        Property::always(ALL_ENDS, all_ends),
    ];
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
    state.flights[at].phase == Phase::Ended(End::Through)
}

fn older_have_settled(state: &State) -> bool {
    state.fences.iter().enumerate().all(|(at, fence)| {
        let sent = state.flights.iter().filter_map(|f| f.sent.as_ref());
        sent.filter_map(|s| s.ranks[at]).all(|rank| rank >= fence.ledger)
    })
}

fn agree(fence: &Fence) -> bool {
    let tokens = (0..5).map(|t| Claim::Token(Token(t)));
    let without = [true, false].map(|until_fenced| Claim::Without { until_fenced });
    tokens
        .chain(without)
        .all(|claim| fence.door.admits(claim) == (fence.core.compare(claim) == Comparison::Equal))
        && (!fence.core.is_at_rest() || fence.core == Core::at_rest(&fence.door))
}

fn is_looked_after(state: &State, at: usize) -> bool {
    let fence = &state.fences[at];
    match fence.core.step() {
        Step::Open => true,
        Step::Committing { .. } => fence.asked.is_some(),
        Step::Draining | Step::Unstored { .. } => {
            let mut flights = state.flights.iter();
            !fence.timers.is_empty()
                || flights.any(|f| f.phase == Phase::Committed && f.counted & (1 << at) != 0)
        }
    }
}

fn no_request_sleeps(world: &World, state: &State) -> bool {
    let mut both = world.requests.iter().zip(&state.flights);
    !both.any(|(request, flight)| {
        let mut fences = state.fences.iter().zip(&request.claims);
        flight.phase == Phase::Waiting { woken: false }
            && fences.all(|(f, claim)| claim.is_none() || f.core.step() == Step::Open)
    })
}

fn all_ends(world: &World, state: &State) -> bool {
    let ended = state.flights.iter().all(|f| matches!(f.phase, Phase::Ended(_)));
    let rests = |f: &Fence| f.core.step() == Step::Open && f.resetting.is_none();
    let open = state.fences.iter().all(rests);
    if (ended && open) || state.broken != 0 {
        return true;
    }
    let mut actions = Vec::new();
    world.actions(state, &mut actions);
    !actions.is_empty()
}
