//! What can happen next, and the shell's part in it: how the gate calls the fence's own functions.
//!
//! The clients, the socket, the backend, the ledger, the clock and the operator choose; every choice is explored.
//! A broken shell ([`Mutant`]) differs from the right one at exactly one marked place.

use fencegate::base::{Moment, Token};
use fencegate::fence::{Arrival, Claim, Core, Door, Effects, Party, Persist, Step, arrive};
use smallvec::SmallVec;
use stateright::{Model, Property};

use super::checks::{self, F1, F2, F3, PROMISE, RAISES_NOTHING, S1, S3};
use super::mutants::Mutant;
use super::world::{End, Fence, Phase, Rank, Sent, State, TICK, World};

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

// ---- a request -------------------------------------------------------------------------------------------------

impl World {
    fn arrive(&self, state: &mut State, at: usize, may_wait: bool) {
        if self.breaks(Mutant::RefusesEverything) {
            state.flights[at].phase = Phase::Ended(End::Refused);
            return;
        }
        let before: SmallVec<[_; 2]> = state.fences.iter().map(|f| f.core.highest()).collect();
        let arrival = if self.breaks(Mutant::ComparesOneAtATime) {
            self.arrive_one_at_a_time(state, at, may_wait)
        } else {
            let may_wait = may_wait || self.breaks(Mutant::OverloadRaises);
            self.arrive_at(state, at, &[0, 1], may_wait)
        };
        let raised = before
            .iter()
            .zip(&state.fences)
            .any(|(b, f)| *b != f.core.highest());
        let refused = matches!(
            arrival,
            Arrival::Stale { .. } | Arrival::Missing { .. } | Arrival::Overloaded
        );
        if raised && (refused || !may_wait) {
            state.note(RAISES_NOTHING);
        }
        self.judge_refusal(state, at, arrival);
        if !refused && may_wait {
            self.note_seen(state, at);
        }
        self.act_on(state, at, if may_wait { arrival } else { turned_away(arrival) });
    }

    /// Calls the fence's own [`arrive`] with the request's claims on these fences.
    fn arrive_at(&self, state: &mut State, at: usize, fences: &[usize], may_wait: bool) -> Arrival {
        let (now, hold) = (state.now, state.hold);
        let mut places: SmallVec<[usize; 2]> = SmallVec::new();
        let mut parties: SmallVec<[Party; 2]> = SmallVec::new();
        for (place, fence) in state.fences.iter_mut().enumerate() {
            if let (Some(claim), true) = (self.requests[at].claims[place], fences.contains(&place)) {
                places.push(place);
                parties.push(Party {
                    core: &mut fence.core,
                    door: &fence.door,
                    claim,
                    effects: Effects::default(),
                });
            }
        }
        if parties.iter().all(|party| party.door.admits(party.claim)) {
            return Arrival::Admitted; // the fast way
        }
        let arrival = arrive(&mut parties, may_wait, now, hold);
        let effects: SmallVec<[Effects; 2]> = parties.into_iter().map(|party| party.effects).collect();
        for (place, effects) in places.into_iter().zip(effects) {
            self.perform(state, place, effects);
        }
        arrival
    }

    fn arrive_one_at_a_time(&self, state: &mut State, at: usize, may_wait: bool) -> Arrival {
        let first = self.arrive_at(state, at, &[0], may_wait);
        if matches!(first, Arrival::Stale { .. } | Arrival::Missing { .. }) {
            return first;
        }
        match self.arrive_at(state, at, &[1], may_wait) {
            Arrival::Admitted => first,
            second => second,
        }
    }

    /// "Seen" means presented and not refused: from here on what is lower must be refused (S3).
    fn note_seen(&self, state: &mut State, at: usize) {
        for (fence, claim) in state.fences.iter_mut().zip(&self.requests[at].claims) {
            if let (Some(Claim::Token(token)), false) = (claim, fence.resetting.is_some()) {
                let higher = fence.seen < Some(*token);
                if higher && self.breaks(Mutant::StoresBeforeDrain) {
                    land(
                        fence,
                        Persist {
                            token: *token,
                            reset: false,
                        },
                    );
                }
                fence.seen = fence.seen.max(Some(*token));
            }
        }
    }

    fn judge_refusal(&self, state: &mut State, at: usize, arrival: Arrival) {
        let stale = |(fence, claim): (&Fence, &Option<Claim>)| match claim {
            Some(Claim::Token(token)) => fence.seen > Some(*token),
            Some(Claim::Without { until_fenced }) => *until_fenced && fence.seen.is_some(),
            None => false,
        };
        let refused = matches!(arrival, Arrival::Stale { .. } | Arrival::Missing { .. });
        if refused && !state.fences.iter().zip(&self.requests[at].claims).any(stale) {
            state.note(S1);
        }
    }

    fn act_on(&self, state: &mut State, at: usize, arrival: Arrival) {
        let read = self.requests[at].read;
        state.flights[at].phase = match arrival {
            Arrival::Admitted => {
                self.let_through(state, at);
                if read {
                    Phase::Ended(End::Through)
                } else {
                    Phase::Admitted
                }
            }
            Arrival::Waits { .. } if read && self.breaks(Mutant::ReadsDontDrain) => {
                self.let_through(state, at);
                Phase::Ended(End::Through)
            }
            Arrival::Waits { .. } => Phase::Waiting { woken: false },
            Arrival::Stale { .. } if self.lets_lower_pass(state, at) => Phase::Admitted,
            Arrival::Stale { .. } | Arrival::Missing { .. } => Phase::Ended(End::Refused),
            Arrival::Overloaded | Arrival::Unstored => Phase::Ended(End::Away),
        };
    }

    fn lets_lower_pass(&self, state: &State, at: usize) -> bool {
        let fence = &state.fences[0];
        let mark = fence.door.mark().map(Claim::Token);
        self.breaks(Mutant::AdmitsLowerWhileRaiseWaits)
            && fence.core.step() != Step::Open
            && mark == self.requests[at].claims[0]
    }

    /// The commit point: asked immediately before the system call that could carry the last byte.
    fn commit(&self, state: &mut State, at: usize, taken: bool) {
        let mut counted = 0u8;
        let mut fits = true;
        for (place, fence) in state.fences.iter().enumerate() {
            let Some(claim) = self.requests[at].claims[place] else {
                continue;
            };
            if counted != 0 && self.breaks(Mutant::CommitsFirstFenceOnly) {
                continue;
            }
            if !fence.door.commit(claim) {
                fits = false;
                break;
            }
            counted |= 1 << place;
        }
        if !fits && !self.sends_anyway(state, at) {
            state.flights[at].counted = if self.breaks(Mutant::LeaksFirstFence) {
                0
            } else {
                counted
            };
            state.flights[at].phase = Phase::Ended(End::Refused);
            self.settle(state, at); // what was counted before the fence that cut it
            return;
        }
        state.flights[at].counted = counted;
        if taken {
            self.send(state, at);
        } else {
            self.take_back(state, at);
        }
    }

    fn sends_anyway(&self, state: &State, at: usize) -> bool {
        let without = matches!(self.requests[at].claims[0], Some(Claim::Without { .. }));
        self.breaks(Mutant::SkipsCommitPoint)
            || (self.breaks(Mutant::TokenlessNotCut) && without)
            || self.lets_lower_pass(state, at)
    }

    fn send(&self, state: &mut State, at: usize) {
        self.let_through(state, at);
        state.flights[at].sent = Some(self.message(state, at));
        state.flights[at].phase = Phase::Committed;
        let without = matches!(self.requests[at].claims[0], Some(Claim::Without { .. }));
        if self.breaks(Mutant::SettlesAtCommit) || (self.breaks(Mutant::TokenlessNotDrained) && without) {
            self.settle(state, at);
        }
    }

    fn take_back(&self, state: &mut State, at: usize) {
        if self.breaks(Mutant::TakenCountsAsShort) {
            state.flights[at].sent = Some(self.message(state, at));
            state.flights[at].phase = Phase::Ended(End::Refused);
            lose_connection(state, at, self.settle_after(state.run));
        }
        self.settle(state, at);
    }

    fn message(&self, state: &State, at: usize) -> Sent {
        let rank = |place: usize| {
            let fence = state.fences.get(place)?;
            let token = match self.requests[at].claims[place]? {
                Claim::Token(token) => Some(token),
                Claim::Without { until_fenced: true } => None,
                Claim::Without { until_fenced: false } => fence.ledger.token,
            };
            let resets = fence.ledger.resets;
            Some(Rank { resets, token })
        };
        Sent {
            ranks: [rank(0), rank(1)],
            pending: true,
            deadline: None,
        }
    }

    /// Truth: the request is forwarded. Judges it, and from here on everything older.
    fn let_through(&self, state: &mut State, at: usize) {
        for place in 0..state.fences.len() {
            let Some(claim) = self.requests[at].claims[place] else {
                continue;
            };
            let fence = &mut state.fences[place];
            let Claim::Token(token) = claim else {
                if claim == (Claim::Without { until_fenced: true }) && fence.ledger.token.is_some() {
                    state.note(F1);
                }
                continue;
            };
            let (below, unseen) = (Some(token) < fence.ledger.token, Some(token) < fence.seen);
            let rank = Rank {
                resets: fence.ledger.resets,
                token: Some(token),
            };
            fence.let_through = fence.let_through.max(rank);
            if below {
                state.note(F1);
            }
            if unseen {
                state.note(S3);
            }
            let mut sent = state.flights.iter().filter_map(|f| f.sent.as_ref());
            if sent.any(|s| s.ranks[place].is_some_and(|older| older < rank)) {
                state.note(F3);
            }
        }
    }

    /// The flight has ended: counts it out at its doors, and goes on with a raise that waited for it.
    fn settle(&self, state: &mut State, at: usize) {
        let counted = std::mem::take(&mut state.flights[at].counted);
        for place in 0..state.fences.len() {
            let (now, hold) = (state.now, state.hold);
            let fence = &mut state.fences[place];
            if counted & 1 << place != 0 && fence.door.settle() && !self.breaks(Mutant::LastOutSaysNothing) {
                let effects = fence.core.advance(&fence.door, now, hold);
                self.perform(state, place, effects);
            }
        }
    }

    /// The answer is lost: in doubt from this moment.
    fn lose(&self, state: &mut State, at: usize) {
        let settle_after = self.settle_after(state.run);
        lose_connection(state, at, settle_after);
        state.flights[at].phase = Phase::Ended(End::Through);
        let counted = std::mem::take(&mut state.flights[at].counted);
        let doubt = match self.mutant {
            Some(Mutant::DoubtEndsAtOnce) => 0,
            Some(Mutant::DoubtEndsEarly) => settle_after - TICK,
            _ => settle_after,
        };
        let (now, hold) = (state.now, state.hold);
        for place in 0..state.fences.len() {
            let fence = &mut state.fences[place];
            if counted & 1 << place != 0 {
                let effects = fence.core.doubt(&fence.door, later(now, doubt), now, hold);
                self.perform(state, place, effects);
            }
        }
    }
}

fn turned_away(arrival: Arrival) -> Arrival {
    match arrival {
        Arrival::Waits { .. } => Arrival::Overloaded,
        other => other,
    }
}

fn later(now: Moment, wait: u64) -> Moment {
    Moment(now.0 + wait)
}

// ---- the backend, the ledger and the clock ---------------------------------------------------------------------

/// A message takes effect: the one place where the promise is judged.
fn take_effect(state: &mut State, at: usize) {
    let sent = state.flights[at]
        .sent
        .as_mut()
        .expect("enabled only while it is on its way");
    sent.pending = false;
    let ranks = sent.ranks;
    if sent.deadline.is_some() {
        state.flights[at].sent = None; // nobody awaits its answer
    }
    let mut judged = state.fences.iter().zip(ranks);
    if judged.any(|(fence, rank)| rank.is_some_and(|rank| rank < fence.let_through)) {
        state.note(PROMISE);
    }
}

/// What was sent may take effect for `settle_after` more, or never (A4).
fn lose_connection(state: &mut State, at: usize, settle_after: u64) {
    let now = state.now;
    let sent = &mut state.flights[at].sent;
    match sent {
        Some(message) if message.pending => {
            message.deadline.get_or_insert(later(now, settle_after));
        }
        _ => *sent = None,
    }
}

fn tick(state: &mut State) {
    state.now = later(state.now, TICK);
    let now = state.now;
    for flight in &mut state.flights {
        let expired = |sent: &Sent| sent.deadline.is_some_and(|deadline| deadline <= now);
        if flight.sent.as_ref().is_some_and(expired) {
            flight.sent = None;
        }
    }
}

/// A change becomes what a restart finds. A raise never lowers it.
fn land(fence: &mut Fence, persist: Persist) {
    if persist.reset {
        fence.ledger.resets += 1;
        fence.ledger.token = Some(persist.token);
    } else {
        fence.ledger.token = fence.ledger.token.max(Some(persist.token));
    }
}

impl World {
    fn stored(&self, state: &mut State, at: usize) {
        let (now, hold) = (state.now, state.hold);
        let fence = &mut state.fences[at];
        let persist = fence.asked.take().expect("enabled only while it is asked");
        if !self.breaks(Mutant::ForwardsBeforeDurable) {
            land(fence, persist);
        }
        if persist.reset && fence.resetting == Some(persist.token) {
            fence.resetting = None;
        }
        let effects = fence.core.durable(&fence.door, true, now, hold);
        self.perform(state, at, effects);
    }

    fn not_stored(&self, state: &mut State, at: usize, landed: bool) {
        state.left.store_failures -= 1;
        let (now, hold) = (state.now, state.hold);
        let fence = &mut state.fences[at];
        let persist = fence.asked.take().expect("enabled only while it is asked");
        if landed {
            land(fence, persist);
        }
        let stored = self.breaks(Mutant::TakesFailureForStored);
        let effects = fence.core.durable(&fence.door, stored, now, hold);
        self.perform(state, at, effects);
    }

    fn timer(&self, state: &mut State, at: usize) {
        let (now, hold) = (state.now, state.hold);
        let fence = &mut state.fences[at];
        fence.timers.retain(|due| *due > now);
        let effects = fence.core.advance(&fence.door, now, hold);
        self.perform(state, at, effects);
    }

    /// Does what a transition asks for.
    fn perform(&self, state: &mut State, at: usize, effects: Effects) {
        let fence = &mut state.fences[at];
        if let Some(persist) = effects.persist {
            assert!(fence.asked.is_none(), "the ledger is asked once at a time");
            fence.asked = Some(persist);
        }
        if let (Some(timer), false) = (effects.timer, self.breaks(Mutant::NoTimers))
            && let Err(place) = fence.timers.binary_search(&timer)
        {
            fence.timers.insert(place, timer);
        }
        if effects.wake && !self.breaks(Mutant::NobodyIsWoken) {
            for (flight, request) in state.flights.iter_mut().zip(&self.requests) {
                if let (Phase::Waiting { .. }, Some(_)) = (flight.phase, request.claims[at]) {
                    flight.phase = Phase::Waiting { woken: true };
                }
            }
        }
    }

    // ---- the end of a run --------------------------------------------------------------------------------------

    fn crash(&self, state: &mut State, landed: u8) {
        state.left.crashes -= 1;
        for (place, fence) in state.fences.iter_mut().enumerate() {
            if let (Some(persist), true) = (fence.asked, landed & 1 << place != 0) {
                land(fence, persist);
            }
        }
        self.restart(state, false);
    }

    fn stop(&self, state: &mut State) {
        state.left.stops -= 1;
        for fence in &mut state.fences {
            if let Some(persist) = fence.asked {
                land(fence, persist); // closing commits what is queued
            }
        }
        self.restart(state, true);
    }

    /// The process ends, with every connection that it has, and the next one starts from the ledger.
    fn restart(&self, state: &mut State, clean: bool) {
        for at in 0..state.flights.len() {
            lose_connection(state, at, self.settle_after(state.run));
            let flight = &mut state.flights[at];
            flight.counted = 0;
            if !matches!(flight.phase, Phase::New | Phase::Ended(_)) {
                flight.phase = Phase::Ended(End::Away);
            }
            if let Some(deadline) = flight.sent.as_mut().and_then(|sent| sent.deadline.as_mut()) {
                deadline.0 -= state.now.0; // the next process counts from its own start
            }
        }
        state.run += 1;
        state.now = Moment(0);
        let own = self.settle_after(state.run);
        let wait = match self.mutant {
            _ if clean => 0,
            Some(Mutant::NoHold) => 0,
            Some(Mutant::HoldOfThisConfigOnly) => own,
            _ => own.max(state.beside_marker),
        };
        state.hold = Moment(wait);
        let inherited = if self.breaks(Mutant::HoldIsNotInherited) {
            0
        } else {
            wait
        };
        state.beside_marker = own.max(inherited);
        for fence in &mut state.fences {
            let (ledger, let_through) = (fence.ledger, fence.let_through);
            let found = if self.breaks(Mutant::ForgetsMarks) {
                Rank::default()
            } else {
                ledger
            };
            *fence = Fence {
                ledger,
                let_through,
                ..Fence::restored(found)
            };
        }
    }

    fn reset(&self, state: &mut State) {
        let (place, token) = self.resets[state.left.resets];
        state.left.resets += 1;
        let (now, hold) = (state.now, state.hold);
        if self.breaks(Mutant::ResetDoesNotDrain) {
            return reset_at_once(state, place, token);
        }
        let fence = &mut state.fences[place];
        fence.seen = Some(token);
        fence.resetting = Some(token);
        let effects = fence.core.reset(&fence.door, token, now, hold);
        self.perform(state, place, effects);
    }
}

fn reset_at_once(state: &mut State, place: usize, token: Token) {
    for flight in &mut state.flights {
        flight.counted &= !(1 << place);
    }
    let fence = &mut state.fences[place];
    land(fence, Persist { token, reset: true });
    fence.asked = None;
    fence.seen = Some(token);
    fence.door = Door::new(Some(token));
    fence.core = Core::at_rest(&fence.door);
}

/// F2, from one state to the next: no mark falls but by a reset, and none is lost in a crash.
fn check_marks(last: &State, state: &mut State) {
    let fell = |(before, after): (&Fence, &Fence)| {
        let same_run = last.run == state.run;
        let same_resets = before.ledger.resets == after.ledger.resets;
        let ledger_fell = after.ledger < before.ledger;
        let gate_fell = same_run
            && same_resets
            && (after.core.highest() < before.core.highest() || after.door.mark() < before.door.mark());
        let start_lost = !same_run && after.door.mark() != after.ledger.token;
        ledger_fell || gate_fell || start_lost
    };
    if last.fences.iter().zip(&state.fences).any(fell) {
        state.note(F2);
    }
}
