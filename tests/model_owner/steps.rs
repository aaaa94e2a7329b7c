//! What can happen next. The clients, the backend, the store, the network, the clock and the operator choose; every
//! choice is explored.

use stateright::{Model, Property};

use super::checks;
use super::mutants::Mutant;
use super::tenure::awaited;
use super::truth::{check_marks, end_ownership_of_the_stopped, tick};
use super::world::{Phase, Role, State, Tenure, What, World};
use fencegate::fence::{Comparison, Step};

/// One thing that happens. The first number is a place in [`World::requests`] where a request is meant, then comes
/// the instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A request arrives at an instance that serves.
    Arrive(usize, usize),
    /// A request that waits finds that its fence has moved.
    Again(usize, usize),
    /// A write reaches its commit point.
    Commit(usize, usize),
    /// Its last byte leaves, where that is a step of its own.
    Write(usize, usize),
    /// The backend answers.
    Answer(usize, usize),
    /// The connection breaks after the commit point.
    Lose(usize, usize),
    /// A fence's timer runs out.
    Timer(usize),
    /// A standby asks to be the owner.
    Ask(usize),
    /// The transaction at this place of the network lands.
    Land(usize),
    /// An instance gets its answer.
    Reply(usize),
    /// No answer came in time: the store is read again.
    ReadAgain(usize),
    /// No answer to a raise came in time, and the store can't be read.
    GiveUpRaise(usize),
    /// The validity has run out, and the instance sees it.
    Lapse(usize),
    /// The lease is renewed.
    Renew(usize),
    /// The lease is renewed, and the answer is late.
    AskRenewal(usize),
    /// That answer comes.
    Renewed(usize),
    /// The wait of S10 is over, and the store is told.
    HoldIsOver(usize),
    /// The process is stopped: nothing of it moves but its clock.
    Stop(usize),
    /// It goes on.
    Resume(usize),
    Crash(usize),
    /// It is told to end.
    Quit(usize),
    /// It ends with everything settled.
    LeaveClean(usize),
    /// It ends by `shutdown_timeout`.
    LeaveUnclean(usize),
    /// An operator asks for the next reset.
    Reset(usize),
    /// The store's leader changes, and each lease begins anew.
    Extend,
    /// Time passes.
    Tick,
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
        if !self.is_done(state) {
            for request in 0..state.flights.len() {
                self.request_actions(state, request, actions);
            }
            for instance in 0..state.instances.len() {
                if state.instances[instance].stopped {
                    actions.push(Action::Resume(instance));
                } else {
                    self.instance_actions(state, instance, actions);
                }
            }
            for (place, transaction) in state.network.iter().enumerate() {
                if transaction.outcome.is_none() && !transaction.given_up {
                    actions.push(Action::Land(place));
                }
            }
            let calm = state.now >= self.calm_from;
            if !calm {
                self.faults(state, actions);
            }
            if state.now < self.end && self.time_may_pass(state, calm, actions) {
                actions.push(Action::Tick);
            }
            if calm && !self.every_order {
                actions.truncate(1);
            }
        }
        self.unhurried(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, action);
        end_ownership_of_the_stopped(self, &mut state);
        self.forget_what_cannot_land(&mut state);
        check_marks(last, &mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        checks::properties(self)
    }
}

impl World {
    fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::Arrive(request, instance) | Action::Again(request, instance) => {
                self.arrive(state, request, instance);
            }
            Action::Commit(request, instance) => self.commit(state, request, instance),
            Action::Write(request, instance) => self.write(state, request, instance),
            Action::Answer(request, instance) => self.answer(state, request, instance),
            Action::Lose(request, instance) => {
                state.left.losses -= 1;
                self.lose(state, request, instance);
            }
            Action::Timer(instance) => self.timer(state, instance),
            Action::Ask(instance) => self.ask(state, instance),
            Action::Land(place) => self.land(state, place),
            Action::Reply(instance) => self.reply(state, instance),
            Action::ReadAgain(instance) => {
                state.left.timeouts -= 1;
                self.read_again(state, instance);
            }
            Action::GiveUpRaise(instance) => {
                state.left.timeouts -= 1;
                self.give_up_raise(state, instance);
            }
            Action::Lapse(instance) => self.lapse(state, instance),
            Action::Renew(instance) => self.renew(state, instance),
            Action::AskRenewal(instance) => {
                state.left.late_renewals -= 1;
                self.asks_for_renewal(state, instance);
            }
            Action::Renewed(instance) => self.renewed(state, instance),
            Action::HoldIsOver(instance) => self.hold_is_over(state, instance),
            Action::Stop(instance) => {
                state.left.stops -= 1;
                state.instances[instance].stopped = true;
            }
            Action::Resume(instance) => state.instances[instance].stopped = false,
            Action::Crash(instance) => {
                state.left.crashes -= 1;
                self.crash(state, instance);
            }
            Action::Quit(instance) => {
                state.left.quits -= 1;
                self.quit(state, instance);
            }
            Action::LeaveClean(instance) => self.leave(state, instance, true),
            Action::LeaveUnclean(instance) => self.leave(state, instance, false),
            Action::Reset(instance) => self.reset(state, instance),
            Action::Extend => self.extend(state),
            Action::Tick => tick(self, state),
        }
    }

    fn extend(&self, state: &mut State) {
        state.left.extensions -= 1;
        let anew = state.now + self.ttl;
        if let Some(owner) = &mut state.store.owner {
            owner.lease_end = anew;
        }
        for transaction in &mut state.network {
            if let What::TakeOver { lease_end, .. } = &mut transaction.what {
                *lease_end = anew;
            }
        }
    }
}

// ---- what can happen

impl World {
    fn request_actions(&self, state: &State, request: usize, actions: &mut Vec<Action>) {
        let phase = state.flights[request].phase;
        if phase == Phase::New {
            let serves = |at: &usize| self.serves(state, request, *at);
            let arrivals = (0..state.instances.len()).filter(serves);
            actions.extend(arrivals.map(|at| Action::Arrive(request, at)));
        }
        let Some(at) = phase.at().filter(|at| !state.instances[*at].stopped) else {
            return;
        };
        match phase {
            Phase::Waiting(_) if self.fence_has_moved(state, request, at) => {
                actions.push(Action::Again(request, at));
            }
            Phase::Admitted(_) => actions.push(Action::Commit(request, at)),
            Phase::Passed(_) => actions.push(Action::Write(request, at)),
            Phase::Committed(_) => actions.push(Action::Answer(request, at)),
            Phase::New | Phase::Waiting(_) | Phase::Ended(_) => {}
        }
    }

    fn serves(&self, state: &State, request: usize, instance: usize) -> bool {
        let sure = self.is_sure(state, instance) || self.reads_anyway(request);
        let here = &state.instances[instance];
        sure && !here.stopped && here.tenure().is_some_and(|tenure| !tenure.leaving)
    }

    fn fence_has_moved(&self, state: &State, request: usize, instance: usize) -> bool {
        let tenure = state.instances[instance].tenure();
        tenure.is_some_and(|tenure| {
            tenure.core.compare(self.claim(request)) != Comparison::Pending
                || matches!(tenure.core.step(), Step::Unstored { .. })
        })
    }

    fn instance_actions(&self, state: &State, instance: usize, actions: &mut Vec<Action>) {
        if let Some(place) = awaited(state, instance)
            && state.network[place].outcome.is_some()
        {
            actions.push(Action::Reply(instance));
        }
        match &state.instances[instance].role {
            Role::Standby => {
                let free = state.store.owner.is_none() || (self.asks_blindly && state.now < self.calm_from);
                if free && !self.breaks(Mutant::NeverAsks) {
                    actions.push(Action::Ask(instance));
                }
            }
            Role::Asking(_) => {}
            Role::Owner(tenure) => self.owner_actions(state, instance, tenure, actions),
        }
    }

    fn owner_actions(&self, state: &State, instance: usize, tenure: &Tenure, actions: &mut Vec<Action>) {
        let now = self.clock(state, instance);
        if self.has_lapsed(state, instance) {
            actions.push(Action::Lapse(instance));
        } else if tenure.renewal.is_some() {
            actions.push(Action::Renewed(instance));
        } else if self.wants_renewal(state, instance, tenure) {
            actions.push(Action::Renew(instance));
        }
        if tenure.timers.first().is_some_and(|due| *due <= now) {
            actions.push(Action::Timer(instance));
        }
        let settle_after = self.settle_after(instance);
        let over = now >= tenure.hold || self.breaks(Mutant::HoldIsOverTooEarly);
        let owner = state.store.tenure() == Some(tenure.since);
        if over && owner && state.store.marker.settle_after != settle_after {
            actions.push(Action::HoldIsOver(instance));
        }
        if tenure.leaving && self.may_leave_clean(tenure, now) {
            actions.push(Action::LeaveClean(instance));
        }
        let asks = usize::from(state.left.resets_asked) < self.resets.len();
        if asks && !tenure.leaving && self.is_sure(state, instance) {
            actions.push(Action::Reset(instance));
        }
    }

    fn may_leave_clean(&self, tenure: &Tenure, now: fencegate::base::Moment) -> bool {
        let in_flight = tenure.door.committed() > 0 && !self.breaks(Mutant::CleanInFlight);
        let in_doubt = tenure.core.in_doubt(now) > 0 && !self.breaks(Mutant::CleanInDoubt);
        let holds = now < tenure.hold && !self.breaks(Mutant::CleanWithinHold);
        let may = !in_flight && !in_doubt && !holds;
        assert!(may || !tenure.is_settled(now), "settled is one thing");
        may
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (request, flight) in state.flights.iter().enumerate() {
            if let Phase::Committed(at) = flight.phase
                && left.losses > 0
                && !state.instances[at].stopped
            {
                actions.push(Action::Lose(request, at));
            }
        }
        for (at, instance) in state.instances.iter().enumerate() {
            let busy = instance.role != Role::Standby;
            if left.crashes > 0 && busy {
                actions.push(Action::Crash(at));
            }
            if instance.stopped {
                continue;
            }
            if left.stops > 0 && busy {
                actions.push(Action::Stop(at));
            }
            if left.timeouts > 0 && awaited(state, at).is_some() {
                actions.push(Action::ReadAgain(at));
                if instance.tenure().is_some() {
                    actions.push(Action::GiveUpRaise(at));
                }
            }
            let Some(tenure) = instance.tenure() else {
                continue;
            };
            if left.quits > 0 && !tenure.leaving {
                actions.push(Action::Quit(at));
            }
            let renews = self.wants_renewal(state, at, tenure);
            let alive = state.store.tenure() == Some(tenure.since);
            if left.late_renewals > 0 && renews && alive && !self.has_lapsed(state, at) {
                actions.push(Action::AskRenewal(at));
            }
        }
        let leased = state
            .store
            .owner
            .is_some_and(|owner| owner.lease_end < state.now + self.ttl);
        if left.extensions > 0 && leased {
            actions.push(Action::Extend);
        }
    }

    /// A lapse is seen in the tick in which it comes, unless the process is stopped: an instance that is slow for
    /// longer than that is a stopped one. Once it is calm, everything else that can be done is done first.
    fn time_may_pass(&self, state: &State, calm: bool, actions: &[Action]) -> bool {
        let waits_to_see = |at: usize| !state.instances[at].stopped && self.has_lapsed(state, at);
        let unseen = (0..state.instances.len()).any(waits_to_see);
        !unseen && (!calm || actions.is_empty())
    }

    /// What may happen at any time, also when it is calm, or never.
    fn unhurried(&self, state: &State, actions: &mut Vec<Action>) {
        for (place, transaction) in state.network.iter().enumerate() {
            if transaction.given_up {
                actions.push(Action::Land(place));
            }
        }
        for (at, instance) in state.instances.iter().enumerate() {
            let now = self.clock(state, at);
            let leaves = |tenure: &Tenure| tenure.leaving && !tenure.is_settled(now);
            if !instance.stopped && instance.tenure().is_some_and(leaves) {
                actions.push(Action::LeaveUnclean(at));
            }
        }
    }
}
