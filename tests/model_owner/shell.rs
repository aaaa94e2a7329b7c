//! How a request goes through an instance: the shell's calls of the fence's own functions and of the ownership's.
//!
//! A broken shell ([`Mutant`]) differs from the right one at one marked place. It is judged elsewhere, in `truth.rs`.

use fencegate::fence::{Arrival, Claim, Effects, Party, arrive};

use super::mutants::Mutant;
use super::truth::{let_through, lose_connection, send};
use super::world::{End, Phase, State, Tenure, Transaction, What, World};

impl World {
    /// Whether this instance may let a fenced byte through, as far as it knows.
    pub fn is_sure(&self, state: &State, instance: usize) -> bool {
        let now = self.clock(state, instance);
        let tenure = state.instances[instance].tenure();
        tenure.is_some_and(|tenure| tenure.validity.holds(now))
    }

    /// A request arrives, or arrives again after it has waited.
    pub fn arrive(&self, state: &mut State, request: usize, instance: usize) {
        if !self.is_sure(state, instance) && !self.reads_anyway(request) {
            state.flights[request].phase = Phase::Ended(End::Away);
            return;
        }
        let arrival = self.compare(state, request, instance);
        state.flights[request].phase = match arrival {
            Arrival::Admitted if self.requests[request].read => {
                let_through(self, state, request, instance);
                Phase::Ended(End::Through(instance))
            }
            Arrival::Admitted => Phase::Admitted(instance),
            Arrival::Waits { .. } => Phase::Waiting(instance),
            Arrival::Stale { .. } => Phase::Ended(End::Refused),
            Arrival::Unstored => Phase::Ended(End::Away),
            Arrival::Missing { .. } | Arrival::StepTooLarge { .. } | Arrival::Overloaded => {
                unreachable!("it presents a token, may leap, and may wait")
            }
        };
    }

    fn compare(&self, state: &mut State, request: usize, instance: usize) -> Arrival {
        let now = self.clock(state, instance);
        let claim = self.claim(request);
        let tenure = owned(state, instance);
        if tenure.door.admits(claim) {
            return Arrival::Admitted; // the fast way
        }
        let hold = tenure.hold;
        let mut parties = [Party {
            core: &mut tenure.core,
            door: &tenure.door,
            claim,
            max_step: None,
            effects: Effects::default(),
        }];
        let arrival = arrive(&mut parties, true, now, hold);
        let effects = parties[0].effects;
        self.perform(state, instance, effects);
        arrival
    }

    pub fn claim(&self, request: usize) -> Claim {
        Claim::Token(self.requests[request].token)
    }

    pub fn reads_anyway(&self, request: usize) -> bool {
        self.requests[request].read && self.breaks(Mutant::ReadsWithoutOwnership)
    }

    /// The commit point: the token and the ownership are asked immediately before the system call that could carry
    /// the last byte. The two are one step here; [`Mutant::StopsAfterTheCheck`] shows what hangs on that.
    pub fn commit(&self, state: &mut State, request: usize, instance: usize) {
        if !self.is_sure(state, instance) && !self.breaks(Mutant::CommitsWithoutOwnership) {
            state.flights[request].phase = Phase::Ended(End::Away);
            return;
        }
        let claim = self.claim(request);
        if !owned(state, instance).door.commit(claim) {
            state.flights[request].phase = Phase::Ended(End::Refused);
        } else if self.breaks(Mutant::StopsAfterTheCheck) {
            state.flights[request].phase = Phase::Passed(instance);
        } else {
            self.write(state, request, instance);
        }
    }

    /// The last byte leaves.
    pub fn write(&self, state: &mut State, request: usize, instance: usize) {
        send(self, state, request, instance);
        state.flights[request].phase = Phase::Committed(instance);
    }

    /// The whole answer has come; what the backend has answered it has finished with (A2).
    pub fn answer(&self, state: &mut State, request: usize, instance: usize) {
        state.flights[request].sent = None;
        state.flights[request].phase = Phase::Ended(End::Through(instance));
        self.settle(state, instance);
    }

    fn settle(&self, state: &mut State, instance: usize) {
        let now = self.clock(state, instance);
        let tenure = owned(state, instance);
        if tenure.door.settle() {
            let effects = tenure.core.advance(&tenure.door, now, tenure.hold);
            self.perform(state, instance, effects);
        }
    }

    /// The connection is reset, by whomever, after the commit point: in doubt from this moment.
    pub fn lose(&self, state: &mut State, request: usize, instance: usize) {
        lose_connection(self, state, request, instance);
        state.flights[request].phase = Phase::Ended(End::Through(instance));
        let now = self.clock(state, instance);
        let until = now.plus(self.settle_after(instance));
        let tenure = owned(state, instance);
        let effects = tenure.core.doubt(&tenure.door, until, now, tenure.hold);
        self.perform(state, instance, effects);
    }

    /// Everything that is under way here is over: ownership has lapsed.
    pub fn reset_all(&self, state: &mut State, instance: usize) {
        for request in 0..state.flights.len() {
            match state.flights[request].phase {
                Phase::Committed(at) if at == instance => {
                    if self.breaks(Mutant::LapseLeavesNoDoubt) {
                        lose_connection(self, state, request, instance);
                        state.flights[request].phase = Phase::Ended(End::Through(instance));
                        self.settle(state, instance);
                    } else {
                        self.lose(state, request, instance);
                    }
                }
                phase if phase.at() == Some(instance) => {
                    state.flights[request].phase = Phase::Ended(End::Away);
                }
                _ => {}
            }
        }
    }

    pub fn timer(&self, state: &mut State, instance: usize) {
        let now = self.clock(state, instance);
        let tenure = owned(state, instance);
        tenure.timers.retain(|due| *due > now);
        let effects = tenure.core.advance(&tenure.door, now, tenure.hold);
        self.perform(state, instance, effects);
    }

    /// An operator asks this instance for the next reset.
    pub fn reset(&self, state: &mut State, instance: usize) {
        let token = self.resets[usize::from(state.left.resets_asked)];
        state.left.resets_asked += 1;
        let now = self.clock(state, instance);
        let tenure = owned(state, instance);
        let effects = tenure.core.reset(&tenure.door, token, now, tenure.hold);
        self.perform(state, instance, effects);
    }

    /// Does what a transition asks for. Who waits looks again by itself here: that waiters are woken is the other
    /// model's matter.
    pub fn perform(&self, state: &mut State, instance: usize, effects: Effects) {
        let tenure = owned(state, instance);
        if let Some(timer) = effects.timer
            && let Err(place) = tenure.timers.binary_search(&timer)
        {
            tenure.timers.insert(place, timer);
        }
        if let Some(persist) = effects.persist {
            assert!(tenure.asked.is_none(), "the ledger is asked once at a time");
            tenure.asked = Some(persist);
            submit(state, instance);
        }
    }
}

/// The tenure that this instance takes itself to have.
pub fn owned(state: &mut State, instance: usize) -> &mut Tenure {
    match &mut state.instances[instance].role {
        super::world::Role::Owner(tenure) => tenure,
        super::world::Role::Standby | super::world::Role::Asking(_) => {
            unreachable!("enabled only for an owner")
        }
    }
}

/// Sends what the fence has asked for, with what is known of the mark.
pub fn submit(state: &mut State, instance: usize) {
    let tenure = owned(state, instance);
    let what = What::Raise {
        tenure: tenure.since,
        persist: tenure.asked.expect("the fence has asked"),
        known: tenure.known,
    };
    state.network.push(Transaction {
        by: instance,
        what,
        outcome: None,
        given_up: false,
    });
}
