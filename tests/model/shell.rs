//! The gate's shell: how it calls the fence's own functions, request by request.
//!
//! A broken shell ([`Mutant`]) differs from the right one at one marked place. It is judged elsewhere, in `truth.rs`.

use fencegate::base::Token;
use fencegate::fence::{Arrival, Claim, Core, Door, Effects, Party, Persist, Step, arrive};
use smallvec::SmallVec;

use super::checks::{ASKS_ONCE, RAISES_NOTHING};
use super::mutants::Mutant;
use super::truth::{land, later, lose_connection};
use super::world::{End, Phase, State, TICK, World};

impl World {
    pub fn arrive(&self, state: &mut State, at: usize, may_wait: bool) {
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
            Arrival::Stale { .. }
                | Arrival::Missing { .. }
                | Arrival::StepTooLarge { .. }
                | Arrival::Overloaded
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
    pub fn arrive_at(&self, state: &mut State, at: usize, fences: &[usize], may_wait: bool) -> Arrival {
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
                    max_step: self.requests[at]
                        .max_step
                        .filter(|_| !self.breaks(Mutant::IgnoresMaxStep)),
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

    pub fn arrive_one_at_a_time(&self, state: &mut State, at: usize, may_wait: bool) -> Arrival {
        let first = self.arrive_at(state, at, &[0], may_wait);
        if matches!(first, Arrival::Stale { .. } | Arrival::Missing { .. }) {
            return first;
        }
        match self.arrive_at(state, at, &[1], may_wait) {
            Arrival::Admitted => first,
            second => second,
        }
    }

    pub fn act_on(&self, state: &mut State, at: usize, arrival: Arrival) {
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
            Arrival::Stale { .. } | Arrival::Missing { .. } | Arrival::StepTooLarge { .. } => {
                Phase::Ended(End::Refused)
            }
            Arrival::Overloaded | Arrival::Unstored => Phase::Ended(End::Away),
        };
    }

    pub fn lets_lower_pass(&self, state: &State, at: usize) -> bool {
        let fence = &state.fences[0];
        let mark = fence.door.mark().map(Claim::Token);
        self.breaks(Mutant::AdmitsLowerWhileRaiseWaits)
            && fence.core.step() != Step::Open
            && mark == self.requests[at].claims[0]
    }

    /// The commit point: asked immediately before the system call that could carry the last byte.
    pub fn commit(&self, state: &mut State, at: usize, taken: bool) {
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
            self.judge_cut(state, at);
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

    pub fn sends_anyway(&self, state: &State, at: usize) -> bool {
        let without = matches!(self.requests[at].claims[0], Some(Claim::Without { .. }));
        self.breaks(Mutant::SkipsCommitPoint)
            || (self.breaks(Mutant::TokenlessNotCut) && without)
            || self.lets_lower_pass(state, at)
    }

    pub fn send(&self, state: &mut State, at: usize) {
        self.let_through(state, at);
        state.flights[at].sent = Some(self.message(state, at));
        state.flights[at].phase = Phase::Committed;
        let without = matches!(self.requests[at].claims[0], Some(Claim::Without { .. }));
        if self.breaks(Mutant::SettlesAtCommit) || (self.breaks(Mutant::TokenlessNotDrained) && without) {
            self.settle(state, at);
        }
    }

    pub fn take_back(&self, state: &mut State, at: usize) {
        if self.breaks(Mutant::TakenCountsAsShort) {
            state.flights[at].sent = Some(self.message(state, at));
            state.flights[at].phase = Phase::Ended(End::Refused);
            lose_connection(state, at, self.settle_after(state.run));
        }
        self.settle(state, at);
    }

    /// The flight has ended: counts it out at its doors, and goes on with a raise that waited for it.
    pub fn settle(&self, state: &mut State, at: usize) {
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
    pub fn lose(&self, state: &mut State, at: usize) {
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

pub fn turned_away(arrival: Arrival) -> Arrival {
    match arrival {
        Arrival::Waits { .. } => Arrival::Overloaded,
        other => other,
    }
}

// ---- the ledger, timers and the operator ----

impl World {
    pub fn stored(&self, state: &mut State, at: usize) {
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
        if effects.persist == Some(persist) {
            state.note(ASKS_ONCE);
        }
        self.perform(state, at, effects);
    }

    pub fn not_stored(&self, state: &mut State, at: usize, landed: bool) {
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

    pub fn timer(&self, state: &mut State, at: usize) {
        let (now, hold) = (state.now, state.hold);
        let fence = &mut state.fences[at];
        fence.timers.retain(|due| *due > now);
        let effects = fence.core.advance(&fence.door, now, hold);
        self.perform(state, at, effects);
    }

    /// Does what a transition asks for.
    pub fn perform(&self, state: &mut State, at: usize, effects: Effects) {
        let fence = &mut state.fences[at];
        if let Some(persist) = effects.persist {
            assert!(fence.asked.is_none(), "the ledger is asked once at a time");
            fence.asked = Some(persist);
        }
        let timer = effects.timer.filter(|_| !self.breaks(Mutant::NoTimers));
        if let Some(timer) = timer
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

    pub fn reset(&self, state: &mut State) {
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

pub fn reset_at_once(state: &mut State, place: usize, token: Token) {
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
