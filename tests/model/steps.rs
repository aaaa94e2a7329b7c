//! What can happen next. The clients, the socket, the backend, the ledger, the clock and the operator choose; every
//! choice is explored.

use stateright::{Model, Property};

use super::checks;
use super::mutants::Mutant;
use super::truth::{check_marks, lose_connection, take_effect, tick};
use super::world::{End, Phase, State, World};

/// One thing that happens. Numbers are places in [`World::requests`] or fences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A request arrives.
    Arrive(usize),
    /// A request arrives while too many wait.
    ArriveOverloaded(usize),
    /// A woken request arrives again.
    Again(usize),
    /// A waiting request runs into its `drain_timeout`.
    GiveUp(usize),
    /// A write reaches its commit point, and the socket takes its last byte.
    Commit(usize),
    /// A write reaches its commit point, and the socket doesn't take the last byte.
    CommitShort(usize),
    /// The client of a committed write leaves.
    ClientLeaves(usize),
    /// A write takes effect at the backend.
    TakesEffect(usize),
    /// The backend answers; what it has answered it has finished with (A2).
    Answer(usize),
    /// The connection is lost after the commit point.
    Lose(usize),
    /// The ledger has made it durable.
    Stored(usize),
    /// The ledger doesn't know whether it is durable; `landed` says whether a restart finds it.
    NotStored { fence: usize, landed: bool },
    /// A timer of this fence runs out; it may be late, never early.
    Timer(usize),
    /// Time passes.
    Tick,
    /// The wait after a crash is over, and the shell tells the ledger.
    HoldIsOver,
    /// The gate crashes and starts again. What was at the ledger is found again where its bit is set.
    Crash { landed: u8 },
    /// The gate stops cleanly and starts again.
    CleanStop,
    /// An operator asks for the next reset.
    Reset,
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.mutant.is_none() && state.broken != 0 {
            return; // the counter-example is complete
        }
        for at in 0..state.flights.len() {
            self.flight_actions(state, at, actions);
        }
        for (at, fence) in state.fences.iter().enumerate() {
            if fence.asked.is_some() {
                actions.push(Action::Stored(at));
                if state.left.store_failures > 0 {
                    actions.extend([true, false].map(|landed| Action::NotStored { fence: at, landed }));
                }
            }
            if fence.timers.first().is_some_and(|due| *due <= state.now) {
                actions.push(Action::Timer(at));
            }
        }
        self.gate_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Arrive(at) => self.arrive(&mut state, at, true),
            Action::ArriveOverloaded(at) => self.arrive(&mut state, at, false),
            Action::Again(at) => self.arrive(&mut state, at, true),
            Action::GiveUp(at) => state.flights[at].phase = Phase::Ended(End::Away),
            Action::Commit(at) => self.commit(&mut state, at, true),
            Action::CommitShort(at) => {
                state.left.short_writes -= 1;
                self.commit(&mut state, at, false);
            }
            Action::ClientLeaves(at) => {
                self.settle(&mut state, at);
                state.flights[at].phase = Phase::Ended(End::Through);
                lose_connection(&mut state, at, self.settle_after(last.run));
            }
            Action::TakesEffect(at) => take_effect(&mut state, at),
            Action::Answer(at) => {
                state.flights[at].sent = None;
                state.flights[at].phase = Phase::Ended(End::Through);
                self.settle(&mut state, at);
            }
            Action::Lose(at) => self.lose(&mut state, at),
            Action::Stored(at) => self.stored(&mut state, at),
            Action::NotStored { fence, landed } => self.not_stored(&mut state, fence, landed),
            Action::Timer(at) => self.timer(&mut state, at),
            Action::Tick => tick(&mut state),
            Action::HoldIsOver => state.beside_marker = self.settle_after(state.run),
            Action::Crash { landed } => self.crash(&mut state, landed),
            Action::CleanStop => self.stop(&mut state),
            Action::Reset => self.reset(&mut state),
        }
        check_marks(last, &mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        checks::properties(self)
    }
}

// ---- what can happen -------------------------------------------------------------------------------------------

impl World {
    fn flight_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let flight = &state.flights[at];
        match flight.phase {
            Phase::New => {
                actions.push(Action::Arrive(at));
                if self.overload {
                    actions.push(Action::ArriveOverloaded(at));
                }
            }
            Phase::Waiting { woken } => {
                if woken {
                    actions.push(Action::Again(at));
                }
                if self.give_up {
                    actions.push(Action::GiveUp(at));
                }
            }
            Phase::Admitted => {
                actions.push(Action::Commit(at));
                if state.left.short_writes > 0 {
                    actions.push(Action::CommitShort(at));
                }
            }
            Phase::Committed => {
                actions.extend([Action::Answer(at), Action::Lose(at)]);
                if self.breaks(Mutant::ForgetsWhenClientLeaves) {
                    actions.push(Action::ClientLeaves(at));
                }
            }
            Phase::Ended(_) => {}
        }
        if flight.sent.as_ref().is_some_and(|sent| sent.pending) {
            actions.push(Action::TakesEffect(at));
        }
    }

    fn gate_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if something_waits_for_time(state) {
            actions.push(Action::Tick);
        }
        if state.now >= state.hold && state.beside_marker != self.settle_after(state.run) {
            actions.push(Action::HoldIsOver);
        }
        if state.left.crashes > 0 {
            let asked = (0u8..).zip(&state.fences).filter(|(_, f)| f.asked.is_some());
            let asked = asked.fold(0, |bits, (at, _)| bits | 1 << at);
            let subsets = (0..4u8).filter(|landed| landed & !asked == 0);
            actions.extend(subsets.map(|landed| Action::Crash { landed }));
        }
        if state.left.stops > 0 && self.is_clean(state) {
            actions.push(Action::CleanStop);
        }
        if state.left.resets < self.resets.len() {
            actions.push(Action::Reset);
        }
    }

    /// Whether the shell may call a stop clean (S10).
    fn is_clean(&self, state: &State) -> bool {
        let settled = state.fences.iter().all(|f| f.door.committed() == 0);
        let known = state.fences.iter().all(|f| f.core.in_doubt(state.now) == 0);
        (settled || self.breaks(Mutant::CleanInFlight))
            && (known || self.breaks(Mutant::CleanInDoubt))
            && (state.now >= state.hold || self.breaks(Mutant::CleanWithinHold))
    }
}

/// The clock stands still where nothing waits for it: else there were no end of states.
fn something_waits_for_time(state: &State) -> bool {
    let timers = state.fences.iter().flat_map(|f| f.timers.iter());
    let sent = state.flights.iter().filter_map(|f| f.sent.as_ref());
    let deadlines = sent.filter_map(|s| s.deadline.as_ref());
    timers
        .chain(deadlines)
        .chain([&state.hold])
        .any(|at| *at > state.now)
}
