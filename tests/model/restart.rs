//! The end of a run, clean or not, and the start of the next one from the ledger (S10).

use fencegate::base::Moment;

use super::mutants::Mutant;
use super::truth::{land, lose_connection};
use super::world::{End, Fence, Phase, Rank, State, World};

impl World {
    pub fn crash(&self, state: &mut State, landed: u8) {
        state.left.crashes -= 1;
        for (place, fence) in state.fences.iter_mut().enumerate() {
            if let (Some(persist), true) = (fence.asked, landed & 1 << place != 0) {
                land(fence, persist);
            }
        }
        self.restart(state, false);
    }

    pub fn stop(&self, state: &mut State) {
        state.left.stops -= 1;
        for fence in &mut state.fences {
            if let Some(persist) = fence.asked {
                land(fence, persist); // closing commits what is queued
            }
        }
        self.restart(state, true);
    }

    /// The process ends, with every connection that it has, and the next one starts from the ledger.
    pub fn restart(&self, state: &mut State, clean: bool) {
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
}
