//! Comparing: a command's tokens with the marks, at once or after a wait in which everything else goes on; and what a
//! transaction gathers until its EXEC.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use smallvec::SmallVec;

use super::owed::{Named, Names};
use super::{End, Session};
use crate::base::Reason;
use crate::keeper::{Ask, Flight, Keeper, Refused, Sighting};
use crate::observe::Decision;
use crate::redis::answer::Refusal;
use crate::rules::Mode;
use crate::rules::redis::RedisRules;

/// What a transaction has gathered.
#[derive(Debug, Default)]
pub struct Queued {
    /// A command was refused: EXEC must not happen.
    pub aborted: bool,
    /// What its commands are compared for.
    pub names: Names,
    /// Some command of it may change something.
    pub write: bool,
}

/// What came of comparing.
pub enum Compared<'k> {
    /// It may go.
    Go(Flight<'k>, Names),
    /// It may not.
    Refused(Refusal),
    /// It would raise, or wait, and nobody has seen yet whether the server lets the client in at all.
    Stranger,
    /// The server does not let the client in, and so it is to be told.
    Unknown,
}

/// What ended one wait of several.
enum Turn<T> {
    Done(T),
    /// A raise waits for, or cuts, an earlier command.
    Shut,
    Lapsed(End),
    /// Something can be moved, or a deadline is over.
    Again,
}

impl<'k> Session<'_, 'k> {
    /// Compares what the notes claim: in a transaction without raising, else for a flight.
    pub(super) async fn compare(&mut self, write: bool) -> Result<Compared<'k>, End> {
        let names = self.enforced();
        if names.is_empty() {
            // What a rule only observes is counted as what it would have been.
            if self.notes.claims().len() == 0 && self.notes.observed.is_empty() {
                self.gate.count_free(&self.notes);
            }
            return Ok(Compared::Go(Flight::unfenced(), names));
        }
        if self.state.queued.is_some() {
            return Ok(self.queue(names, write));
        }
        self.admit(names, write).await
    }

    /// EXEC: everything that was queued is admitted at once, each with the token that it came with.
    pub(super) async fn compare_queued(&mut self) -> Result<Compared<'k>, End> {
        let Some(queued) = &mut self.state.queued else {
            return Ok(Compared::Go(Flight::unfenced(), Names::new()));
        };
        let (names, write) = (std::mem::take(&mut queued.names), queued.write);
        match older_of_two(&names) {
            Some((older, newer)) => {
                let mut refusal = Refusal::new(Reason::StaleToken, "");
                refusal.highest = newer
                    .token
                    .and_then(|token| self.show_highest(Some(newer), token));
                self.name(&mut refusal, Some(older));
                Ok(Compared::Refused(refusal))
            }
            None if names.is_empty() => Ok(Compared::Go(Flight::unfenced(), names)),
            None => self.admit(names, write).await,
        }
    }

    /// A command of a transaction is compared as it comes, and raises nothing yet.
    fn queue(&mut self, names: Names, write: bool) -> Compared<'k> {
        let asks = asks(&names, &self.gate.listener.rules);
        if let Some(refused) = self.keeper.look(&asks) {
            drop(asks);
            return Compared::Refused(self.admission_refusal(refused, &names));
        }
        drop(asks);
        if let Some(queued) = &mut self.state.queued {
            queued.write |= write;
            for named in names {
                if !queued.names.contains(&named) {
                    queued.names.push(named);
                }
            }
        }
        Compared::Go(Flight::unfenced(), Names::new())
    }

    async fn admit(&mut self, names: Names, write: bool) -> Result<Compared<'k>, End> {
        let gate = self.gate;
        let rules = &gate.listener.rules;
        let keeper: &'k std::sync::Arc<Keeper> = self.keeper;
        let asks = asks(&names, rules);
        let settle_after = gate.listener.upstream.settle_after;
        if let Some(flight) = keeper.quick(&asks, write) {
            gate.count_through(names.iter().map(|named| (named.rule, named.token)), false);
            drop(asks);
            return Ok(Compared::Go(flight.settles_after(settle_after), names));
        }
        // Who has not given the server's password shuts nobody out.
        match self.state.welcome {
            Some(true) => {}
            Some(false) => return Ok(Compared::Unknown),
            None => return Ok(Compared::Stranger),
        }
        let patience = names
            .iter()
            .map(|named| rules.rules[named.rule].drain_timeout)
            .min();
        let deadline = Instant::now() + patience.unwrap_or_default();
        let mut admission = keeper.admit(&asks, &gate.room, write);
        let waited = self.drive(deadline, |cx| admission.poll(cx)).await?;
        let refusal = match waited {
            Some(Ok(found)) => {
                let claims = names.iter().map(|named| (named.rule, named.token));
                gate.count_through(claims, found.raised);
                drop(admission);
                drop(asks);
                return Ok(Compared::Go(found.flight.settles_after(settle_after), names));
            }
            Some(Err(refused)) => self.admission_refusal(refused, &names),
            None if admission.waits_for_the_store() => {
                Refusal::new(Reason::StoreUnavailable, "the store has not taken the token yet")
            }
            None => {
                let detail = "older writes have not settled yet; the raise goes on by itself";
                let mut refusal = Refusal::new(Reason::Draining, detail);
                self.name(&mut refusal, names.first());
                refusal
            }
        };
        Ok(Compared::Refused(refusal))
    }

    /// Waits for `ready` until the deadline, while everything but the client's commands goes on: what is waited for may
    /// be replies to earlier commands of this very connection. `None` where the time is over.
    pub(super) async fn drive<T>(
        &mut self,
        deadline: Instant,
        mut ready: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<T>, End> {
        loop {
            while self.relay()? {}
            let soonest = self.reply_deadline().map_or(deadline, |late| late.min(deadline));
            let mut watches = self.watched();
            let turn = poll_fn(|cx| {
                if let Poll::Ready(done) = ready(cx) {
                    return Poll::Ready(Turn::Done(done));
                }
                if watches.iter_mut().any(|watch| watch.poll_shut(cx).is_ready()) {
                    return Poll::Ready(Turn::Shut);
                }
                if let Poll::Ready(lapsed) = self.poll_lapsed(cx) {
                    return Poll::Ready(Turn::Lapsed(lapsed));
                }
                if self.poll_relay(cx).is_ready() {
                    return Poll::Ready(Turn::Again);
                }
                self.alarm.poll(cx, soonest).map(|()| Turn::Again)
            });
            match turn.await {
                Turn::Done(done) => return Ok(Some(done)),
                Turn::Lapsed(end) => return Err(end),
                Turn::Shut => self.shut(),
                Turn::Again if Instant::now() >= deadline => return Ok(None),
                Turn::Again => self.give_up_late()?,
            }
        }
    }

    /// The claims whose rules enforce.
    fn enforced(&self) -> Names {
        let rules = &self.gate.listener.rules.rules;
        let enforced = self
            .notes
            .claims()
            .filter(|claim| rules[claim.rule].mode == Mode::Enforce);
        enforced.map(|claim| Named::of(&claim)).collect()
    }

    /// What rules that only observe would have done with a command.
    pub(super) fn note_observed(&self, command: &str) {
        let gate = self.gate;
        let rules = &gate.listener.rules.rules;
        for (rule, reason) in &self.notes.observed {
            let mut refusal = Refusal::new(*reason, "");
            refusal.rule = Some(*rule);
            self.note(refusal, command);
        }
        let observed = self
            .notes
            .claims()
            .filter(|claim| rules[claim.rule].mode == Mode::Observe);
        for claim in observed {
            let rule = &rules[claim.rule];
            let fence = &rule.fences[claim.fence];
            let asks = [Ask::new(
                claim.resource,
                claim.token,
                rule.missing,
                fence.format,
                fence.max_step,
            )];
            let (reason, highest) = match self.keeper.observe(&asks) {
                Sighting::Admitted => {
                    gate.decisions(Some(claim.rule)).count(Decision::Admitted);
                    continue;
                }
                Sighting::Raised => {
                    gate.decisions(Some(claim.rule)).count(Decision::Raised);
                    continue;
                }
                Sighting::Passed => {
                    gate.count_through(std::iter::once((claim.rule, None)), false);
                    continue;
                }
                Sighting::Stale { highest, .. } => (Reason::StaleToken, Some(highest)),
                Sighting::StepTooLarge { highest, .. } => (Reason::StepTooLarge, Some(highest)),
                Sighting::Missing { .. } => (Reason::MissingToken, None),
            };
            let mut refusal = Refusal::new(reason, "");
            refusal.rule = Some(claim.rule);
            refusal.resource = Some(claim.resource.to_owned());
            refusal.token = claim.token.map(|token| fence.format.show(token).to_string());
            refusal.highest = highest.map(|highest| fence.format.show(highest).to_string());
            self.note(refusal, command);
        }
    }

    /// One thing that would have been refused.
    fn note(&self, mut refusal: Refusal, command: &str) {
        refusal.command = Some(command.to_ascii_uppercase());
        self.tell(&refusal, true);
    }

    fn admission_refusal(&self, refused: Refused, names: &[Named]) -> Refusal {
        let (mut refusal, index) = match refused {
            Refused::Stale { index, highest } => {
                let mut refusal = Refusal::new(Reason::StaleToken, "");
                refusal.highest = self.show_highest(names.get(index), highest);
                (refusal, index)
            }
            Refused::Missing { index } => {
                let detail = "the resource is fenced, and the connection presents no token";
                (Refusal::new(Reason::MissingToken, detail), index)
            }
            Refused::StepTooLarge { index, highest } => {
                let detail =
                    "the token is more than max_step above the highest seen; an operator can raise it";
                let mut refusal = Refusal::new(Reason::StepTooLarge, detail);
                refusal.highest = self.show_highest(names.get(index), highest);
                (refusal, index)
            }
            Refused::Overloaded => (
                Refusal::new(Reason::Overloaded, "max_waiting commands wait already"),
                0,
            ),
            Refused::Unstored => {
                let detail = "the store can't take the token now; it is tried again by itself";
                (Refusal::new(Reason::StoreUnavailable, detail), 0)
            }
            Refused::NotOwner => (not_owner(), 0),
        };
        self.name(&mut refusal, names.get(index));
        refusal
    }
}

pub(super) fn not_owner() -> Refusal {
    Refusal::new(
        Reason::NotOwner,
        "this instance does not own the fences: another one may",
    )
}

fn asks<'n>(names: &'n [Named], rules: &RedisRules) -> SmallVec<[Ask<'n>; 2]> {
    let ask = |named: &'n Named| {
        let rule = &rules.rules[named.rule];
        let fence = &rule.fences[named.fence];
        Ask::new(
            named.resource(),
            named.token,
            rule.missing,
            fence.format,
            fence.max_step,
        )
    };
    names.iter().map(ask).collect()
}

/// Two tokens for one resource in one transaction: the older one's holder has lost it by the newer one's word.
fn older_of_two(names: &[Named]) -> Option<(&Named, &Named)> {
    names.iter().enumerate().find_map(|(index, one)| {
        let other = names[..index]
            .iter()
            .find(|other| other.resource() == one.resource())?;
        match one.token < other.token {
            true => Some((one, other)),
            false => Some((other, one)),
        }
    })
}
