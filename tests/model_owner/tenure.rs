//! How an instance becomes the owner, stays it, and ceases to be it: the shell's calls of the ownership's own functions.

use fencegate::base::Moment;
use fencegate::fence::{Core, Door};
use fencegate::owner::{
    Attempt, Held, Marker, Revision, Validity, Verdict, at_the_end, judge, margin, settled_in, take_over,
    valid_until,
};

use super::checks::{F2, NOTHING_IS_FOREIGN};
use super::mutants::Mutant;
use super::shell::{owned, submit};
use super::truth::lose_connection;
use super::world::{Asking, End, Instance, Outcome, Phase, Role, State, Tenure, Transaction, What, World};

// ---- taking over

impl World {
    /// A standby has looked at the store, got a lease, and asks to be the owner.
    pub fn ask(&self, state: &mut State, instance: usize) {
        let found = state.store.marker;
        let what = What::TakeOver {
            lease_end: state.now + self.ttl,
            found: state.store.marker_revision,
            marker: self.marker_at_take_over(instance, found),
        };
        state.network.push(Transaction {
            by: instance,
            what,
            outcome: None,
            given_up: false,
        });
        state.instances[instance].role = Role::Asking(Asking {
            sent_at: self.clock(state, instance),
            marker: found,
            mark: self
                .breaks(Mutant::MarksReadBefore)
                .then_some((state.store.mark, state.store.mark_revision)),
        });
    }

    fn marker_at_take_over(&self, instance: usize, found: Marker) -> Marker {
        let own = self.settle_after(instance);
        let right = take_over(Some(found), own).marker;
        match self.mutant {
            Some(Mutant::MarkerStaysClean) => Marker {
                clean: found.clean,
                ..right
            },
            Some(Mutant::HoldIsNotInherited) => Marker {
                settle_after: own,
                ..right
            },
            Some(_) | None => right,
        }
    }

    /// The answer: it is the owner since `since`. It reads the marks, and raises wait from now on.
    fn elect(&self, state: &mut State, instance: usize, since: Revision) {
        let Role::Asking(asking) = state.instances[instance].role else {
            unreachable!("only who has asked is elected")
        };
        let now = self.clock(state, instance);
        let sent_at = if self.breaks(Mutant::ValidFromTheAnswer) {
            now
        } else {
            asking.sent_at
        };
        let store = &state.store;
        let (mark, known) = match asking.mark {
            Some(read_before) => read_before,
            None if self.breaks(Mutant::MarksNotRead) => (self.start().store.mark, store.mark_revision),
            None => (store.mark, store.mark_revision),
        };
        if mark.token != store.mark.token && store.tenure() == Some(since) {
            state.note(F2);
        }
        let validity = Validity::granted(sent_at, self.lent());
        let hold = self.hold(instance, &asking, now);
        let tenure = Tenure::new(since, validity, hold, mark.token, known);
        state.instances[instance].role = Role::Owner(Box::new(tenure));
    }

    fn hold(&self, instance: usize, asking: &Asking, now: Moment) -> Moment {
        let own = self.settle_after(instance);
        let right = take_over(Some(asking.marker), own).hold;
        let hold = match self.mutant {
            Some(Mutant::NoHold) => return Moment(0),
            Some(Mutant::HoldOfThisConfigOnly) => right.min(own),
            Some(_) | None => right,
        };
        if hold.is_zero() {
            return Moment(0);
        }
        if self.breaks(Mutant::HoldCountsFromTheQuestion) {
            asking.sent_at.plus(hold)
        } else {
            now.plus(hold)
        }
    }

    /// What the store grants, as [`Validity`] is told.
    pub fn lent(&self) -> std::time::Duration {
        let ttl = self.ttl();
        if self.breaks(Mutant::NoMargin) {
            ttl + margin(ttl) // of which the margin is taken
        } else {
            ttl
        }
    }

    /// The wait is over, and the store is told.
    pub fn hold_is_over(&self, state: &mut State, instance: usize) {
        state.store.write_marker(settled_in(self.settle_after(instance)));
    }
}

// ---- staying the owner

impl World {
    /// Whether a lapse has come that nobody has looked at.
    pub fn has_lapsed(&self, state: &State, instance: usize) -> bool {
        let now = self.clock(state, instance);
        let tenure = state.instances[instance].tenure();
        tenure.is_some_and(|tenure| tenure.validity.clone().look(now).is_some())
    }

    /// Whether a renewal that is sent now would be worth more than what is known.
    pub fn wants_renewal(&self, state: &State, instance: usize, tenure: &Tenure) -> bool {
        let now = self.clock(state, instance);
        let owner = state.store.owner.filter(|owner| owner.tenure == tenure.since);
        let renewed_now = owner.is_some_and(|owner| owner.lease_end == state.now + self.ttl);
        let known =
            valid_until(now, self.lent()) <= tenure.validity.until() || self.breaks(Mutant::NeverRegains);
        tenure.renewal.is_none() && !(renewed_now && known)
    }

    pub fn lapse(&self, state: &mut State, instance: usize) {
        let now = self.clock(state, instance);
        let turn = owned(state, instance).validity.look(now);
        assert!(turn.is_some(), "enabled only where there is a lapse");
        if !self.breaks(Mutant::ResetsOnlyWhenTold) {
            self.reset_all(state, instance);
        }
    }

    /// A renewal, question and answer. The answer says so where the lease is gone.
    pub fn renew(&self, state: &mut State, instance: usize) {
        if !self.asks_for_renewal(state, instance) {
            return self.end_tenure(state, instance);
        }
        self.renewed(state, instance);
    }

    /// The question of a renewal reaches the store; false where the lease is gone.
    pub fn asks_for_renewal(&self, state: &mut State, instance: usize) -> bool {
        let (now, sent_at) = (state.now, self.clock(state, instance));
        let tenure = owned(state, instance);
        tenure.renewal = Some(sent_at);
        let since = tenure.since;
        match &mut state.store.owner {
            Some(owner) if owner.tenure == since => {
                owner.lease_end = now + self.ttl;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The answer to it.
    pub fn renewed(&self, state: &mut State, instance: usize) {
        let now = self.clock(state, instance);
        let tenure = owned(state, instance);
        let sent_at = tenure.renewal.take().expect("enabled only after the question");
        let sent_at = if self.breaks(Mutant::ValidFromTheAnswer) {
            now
        } else {
            sent_at
        };
        let regains = !self.breaks(Mutant::NeverRegains) || tenure.validity.holds(now);
        if regains {
            let _regained = tenure.validity.renewed(sent_at, self.lent(), now);
        }
    }
}

// ---- answers, and none

impl World {
    /// The answer to this instance's transaction comes.
    pub fn reply(&self, state: &mut State, instance: usize) {
        let transaction = take_awaited(state, instance);
        let outcome = transaction.outcome.expect("enabled only once it has landed");
        match (transaction.what, outcome) {
            (What::TakeOver { .. }, Outcome::Written(since)) => self.elect(state, instance, since),
            (What::TakeOver { .. }, Outcome::Refused(..)) => state.instances[instance].role = Role::Standby,
            (What::Raise { .. }, Outcome::Written(revision)) => self.stored(state, instance, revision),
            (What::Raise { known, .. }, Outcome::Refused(owner, held)) => {
                if self.breaks(Mutant::RefusedIsDone) {
                    self.stored(state, instance, held.revision);
                } else {
                    self.judge(state, instance, known, owner, held);
                }
            }
            (What::End { .. }, _) => unreachable!("nobody awaits the end"),
        }
    }

    /// No answer came in time: the store is read again, and that is judged.
    pub fn read_again(&self, state: &mut State, instance: usize) {
        let transaction = give_up(state, instance);
        let (owner, held) = (state.store.tenure(), state.store.held());
        match transaction.what {
            What::TakeOver { .. } => match (transaction.outcome, owner) {
                (Some(Outcome::Written(since)), Some(tenure)) if since == tenure => {
                    self.elect(state, instance, since);
                }
                _ if self.breaks(Mutant::TimedOutTakeOverIsWon) => {
                    let next = Revision(i64::from(state.store.tenures) + 1);
                    self.elect(state, instance, next);
                }
                _ => state.instances[instance].role = Role::Standby,
            },
            What::Raise { known, .. } if self.breaks(Mutant::TimedOutIsDone) => {
                self.stored(state, instance, known);
            }
            What::Raise { known, .. } => self.judge(state, instance, known, owner, held),
            What::End { .. } => unreachable!("nobody awaits the end"),
        }
    }

    /// No answer came in time, and the store can't be read: the fence is told that it isn't known. It asks again.
    pub fn give_up_raise(&self, state: &mut State, instance: usize) {
        let _transaction = give_up(state, instance);
        if self.breaks(Mutant::TimedOutIsForgotten) {
            let tenure = owned(state, instance);
            tenure.asked = None;
            let mark = tenure.core.mark();
            tenure.door = Door::new(mark);
            tenure.core = Core::at_rest(&tenure.door);
        } else {
            self.not_stored(state, instance);
        }
    }

    fn judge(
        &self,
        state: &mut State,
        instance: usize,
        known: Revision,
        owner: Option<Revision>,
        held: Held,
    ) {
        let tenure = owned(state, instance);
        let persist = tenure.asked.expect("a raise is under way");
        let attempt = Attempt {
            token: persist.token,
            reset: persist.reset,
            known,
        };
        match judge(tenure.since, owner, attempt, Some(held)) {
            Verdict::Done(revision) => self.stored(state, instance, revision),
            Verdict::Again(_) if self.breaks(Mutant::RevisionNotLearnt) => self.not_stored(state, instance),
            Verdict::Again(revision) => {
                tenure.known = revision;
                submit(state, instance);
            }
            Verdict::NotOwner => self.end_tenure(state, instance),
            Verdict::Foreign => {
                state.note(NOTHING_IS_FOREIGN); // nobody writes there but owners
                self.end_tenure(state, instance);
            }
        }
    }

    fn stored(&self, state: &mut State, instance: usize, revision: Revision) {
        owned(state, instance).known = revision;
        self.durable(state, instance, true);
    }

    fn not_stored(&self, state: &mut State, instance: usize) {
        self.durable(state, instance, false);
    }

    fn durable(&self, state: &mut State, instance: usize, stored: bool) {
        let now = self.clock(state, instance);
        let tenure = owned(state, instance);
        tenure.asked = None;
        let effects = tenure.core.durable(&tenure.door, stored, now, tenure.hold);
        self.perform(state, instance, effects);
    }
}

// ---- the end

impl World {
    /// It is told to end: nothing new comes in, and what is under way goes on.
    pub fn quit(&self, state: &mut State, instance: usize) {
        owned(state, instance).leaving = true;
        if self.breaks(Mutant::KeyDeletedBeforeDrain) {
            send_end(state, instance, None);
        }
    }

    /// It ends, with its last transaction on its way, and another process starts in its place.
    pub fn leave(&self, state: &mut State, instance: usize, settled: bool) {
        let settled = settled || self.breaks(Mutant::UncleanEndWritesClean);
        send_end(state, instance, at_the_end(settled, self.settle_after(instance)));
        self.end_tenure(state, instance);
    }

    /// The process is gone, and another one starts in its place.
    pub fn crash(&self, state: &mut State, instance: usize) {
        self.end_tenure(state, instance);
        state.instances[instance] = Instance::standby();
    }

    /// The tenure is over, as far as this instance knows: every connection is reset, and nothing is awaited.
    pub fn end_tenure(&self, state: &mut State, instance: usize) {
        for request in 0..state.flights.len() {
            if state.flights[request].phase.at() == Some(instance) {
                lose_connection(self, state, request, instance);
                state.flights[request].phase = Phase::Ended(End::Away);
            }
        }
        state
            .network
            .retain(|transaction| transaction.by != instance || transaction.outcome.is_none());
        for transaction in &mut state.network {
            transaction.given_up |= transaction.by == instance;
        }
        state.instances[instance].role = Role::Standby;
    }
}

fn send_end(state: &mut State, instance: usize, marker: Option<Marker>) {
    let tenure = owned(state, instance).since;
    state.network.push(Transaction {
        by: instance,
        what: What::End { tenure, marker },
        outcome: None,
        given_up: true,
    });
}

/// The place of the transaction whose answer this instance awaits.
pub fn awaited(state: &State, instance: usize) -> Option<usize> {
    let mut network = state.network.iter();
    network.position(|transaction| transaction.by == instance && !transaction.given_up)
}

fn take_awaited(state: &mut State, instance: usize) -> Transaction {
    let place = awaited(state, instance).expect("enabled only while it awaits an answer");
    state.network.remove(place)
}

/// Awaits it no longer. It stays on its way unless it has landed.
fn give_up(state: &mut State, instance: usize) -> Transaction {
    let transaction = take_awaited(state, instance);
    if transaction.outcome.is_none() {
        state.network.push(Transaction {
            given_up: true,
            ..transaction.clone()
        });
    }
    transaction
}
