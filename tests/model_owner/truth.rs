//! What really happens at the backend and in the store, and how it is judged. The shell can't see it.

use super::checks::{F1, F2, F3, F5};
use super::mutants::Mutant;
use super::world::{Phase, Rank, Sent, State, World};

/// Truth: the request is forwarded. Judges it, and from here on everything older.
pub fn let_through(world: &World, state: &mut State, request: usize, instance: usize) -> Rank {
    let rank = Rank {
        resets: state.store.mark.resets,
        token: world.requests[request].token,
    };
    if rank < state.store.mark {
        state.note(F1);
    }
    let sent = state.flights.iter().filter_map(|flight| flight.sent);
    if sent.into_iter().any(|older| older.rank < rank) {
        state.note(F3);
    }
    if !is_the_owner(state, instance) {
        state.note(F5);
    }
    state.let_through = state.let_through.max(rank);
    rank
}

/// The request has left whole: from here on it may take effect.
pub fn send(world: &World, state: &mut State, request: usize, instance: usize) {
    let rank = let_through(world, state, request, instance);
    let deadline = None;
    state.flights[request].sent = Some(Sent { rank, deadline });
}

/// What was sent may take effect for `settle_after` more, or never (A4).
pub fn lose_connection(world: &World, state: &mut State, request: usize, instance: usize) {
    let deadline = state.now + world.settle[instance];
    if let Some(sent) = &mut state.flights[request].sent {
        sent.deadline.get_or_insert(deadline);
    }
}

/// A stopped gate loses no connection: there the end of its ownership counts (A4).
pub fn end_ownership_of_the_stopped(world: &World, state: &mut State) {
    for request in 0..state.flights.len() {
        let Phase::Committed(instance) = state.flights[request].phase else {
            continue;
        };
        if state.instances[instance].stopped && !is_the_owner(state, instance) {
            lose_connection(world, state, request, instance);
        }
    }
}

pub fn tick(world: &World, state: &mut State) {
    state.now += 1;
    let now = state.now;
    state.store.owner = state.store.owner.filter(|owner| owner.lease_end > now);
    for flight in &mut state.flights {
        let lasts = |sent: &Sent| sent.deadline.is_none_or(|deadline| deadline > now);
        flight.sent = flight.sent.filter(lasts);
    }
    if world.breaks(Mutant::ClockStopsWithTheProcess) {
        for instance in &mut state.instances {
            instance.ticks_stopped += u8::from(instance.stopped);
        }
    }
}

/// Whether the store says so.
fn is_the_owner(state: &State, instance: usize) -> bool {
    let tenure = state.instances[instance].tenure();
    let owner = state.store.owner;
    tenure.is_some_and(|t| owner.is_some_and(|key| key.by == instance && key.tenure == t.since))
}

/// F2, from one state to the next: no mark falls but by a reset.
pub fn check_marks(last: &State, state: &mut State) {
    if state.store.mark < last.store.mark {
        state.note(F2);
    }
}
