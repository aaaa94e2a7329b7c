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
        self.note_observed();
        let names = self.enforced();
        if names.is_empty() {
            self.gate.decisions(self.notes.rule).count(Decision::Passed);
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
        let decisions = gate.decisions(names.first().map(|named| named.rule));
        let keeper: &'k std::sync::Arc<Keeper> = self.keeper;
        let asks = asks(&names, rules);
        let admitted = Ask::let_through(&asks);
        let settle_after = gate.listener.upstream.settle_after;
        if let Some(flight) = keeper.quick(&asks, write) {
            decisions.count(admitted);
            drop(asks);
            return Ok(Compared::Go(flight.settles_after(settle_after), names));
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
                decisions.count(if found.raised { Decision::Raised } else { admitted });
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
        enforced
            .map(|claim| Named {
                resource: claim.resource.to_owned(),
                token: claim.token,
                rule: claim.rule,
                fence: claim.fence,
            })
            .collect()
    }

    /// What rules that only observe would have done.
    fn note_observed(&self) {
        let gate = self.gate;
        let rules = &gate.listener.rules.rules;
        for (rule, reason) in &self.notes.observed {
            if let Some(decision) = Decision::of(*reason) {
                gate.decisions(Some(*rule)).count(decision);
            }
            tracing::info!(
                listener = &*gate.listener.name,
                rule = &*rules[*rule].name,
                reason = reason.as_str(),
                "would be refused"
            );
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
            let decisions = gate.decisions(Some(claim.rule));
            let (decision, highest) = match self.keeper.observe(&asks) {
                Sighting::Admitted => (Decision::Admitted, None),
                Sighting::Raised => (Decision::Raised, None),
                Sighting::Passed => (Decision::Passed, None),
                Sighting::Stale { highest, .. } => (Decision::Stale, Some(highest)),
                Sighting::StepTooLarge { highest, .. } => (Decision::Malformed, Some(highest)),
                Sighting::Missing { .. } => (Decision::Missing, None),
            };
            decisions.count(decision);
            if let Some(highest) = highest {
                let token = claim.token.map(|token| fence.format.show(token).to_string());
                tracing::info!(listener = &*gate.listener.name, rule = &*rule.name, resource = claim.resource, token, highest = %fence.format.show(highest), "would be refused");
            }
        }
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
            &named.resource,
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
            .find(|other| other.resource == one.resource)?;
        match one.token < other.token {
            true => Some((one, other)),
            false => Some((other, one)),
        }
    })
}
