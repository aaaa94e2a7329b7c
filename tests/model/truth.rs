//! What really happens at the backend, in the ledger and with the clock, and how it is judged. The shell can't see it.

use fencegate::base::Moment;
use fencegate::fence::{Arrival, Claim, Persist};

use super::checks::{F1, F2, F3, MAX_STEP, PROMISE, S1, S3};
use super::mutants::Mutant;
use super::world::{Fence, Rank, Sent, State, TICK, World};

/// A message takes effect: the one place where the promise is judged.
pub fn take_effect(state: &mut State, at: usize) {
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
pub fn lose_connection(state: &mut State, at: usize, settle_after: u64) {
    let now = state.now;
    let sent = &mut state.flights[at].sent;
    match sent {
        Some(message) if message.pending => {
            message.deadline.get_or_insert(later(now, settle_after));
        }
        _ => *sent = None,
    }
}

pub fn tick(state: &mut State) {
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
pub fn land(fence: &mut Fence, persist: Persist) {
    if persist.reset {
        fence.ledger.resets += 1;
        fence.ledger.token = Some(persist.token);
    } else {
        fence.ledger.token = fence.ledger.token.max(Some(persist.token));
    }
}

pub fn later(now: Moment, wait: u64) -> Moment {
    Moment(now.0 + wait)
}

impl World {
    /// "Seen" means presented and not refused: from here on what is lower must be refused at once (S3).
    pub fn note_seen(&self, state: &mut State, at: usize) {
        if self.claims(state, at).any(is_too_old) {
            state.note(S3);
        }
        if self.claims(state, at).any(|claim| self.is_leap(at, claim)) {
            state.note(MAX_STEP);
        }
        for (fence, claim) in state.fences.iter_mut().zip(&self.requests[at].claims) {
            let Some(Claim::Token(token)) = *claim else {
                continue;
            };
            if fence.resetting.is_some() || fence.seen >= Some(token) {
                continue; // during a reset it is judged again when that is durable
            }
            fence.seen = Some(token);
            if self.breaks(Mutant::StoresBeforeDrain) {
                let reset = false;
                land(fence, Persist { token, reset });
            }
        }
    }

    /// Only what is too old is refused on arrival.
    pub fn judge_refusal(&self, state: &mut State, at: usize, arrival: Arrival) {
        let refused = matches!(arrival, Arrival::Stale { .. } | Arrival::Missing { .. });
        if refused && !self.claims(state, at).any(is_too_old) {
            state.note(S1);
        }
        let leaps = self.claims(state, at).any(|claim| self.is_leap(at, claim));
        if matches!(arrival, Arrival::StepTooLarge { .. }) && !leaps {
            state.note(S1);
        }
    }

    /// More than this request may raise above what was seen.
    fn is_leap(&self, at: usize, (fence, claim): (&Fence, Claim)) -> bool {
        match (claim, fence.seen, self.requests[at].max_step) {
            (Claim::Token(token), Some(seen), Some(max)) => token.0 > seen.0 + u128::from(max),
            _ => false,
        }
    }

    /// A write is cut only because it is too old by now, or by a reset.
    pub fn judge_cut(&self, state: &mut State, at: usize) {
        let has_cause = |(fence, claim): (&Fence, Claim)| {
            let by_reset = fence.resetting.is_some() || fence.ledger.resets > 0;
            // Without a token it is older than whatever is raised at this moment.
            let by_raise = matches!(claim, Claim::Without { .. }) && fence.door.is_shut();
            by_reset || by_raise || is_too_old((fence, claim))
        };
        if !self.claims(state, at).any(has_cause) {
            state.note(S1);
        }
    }

    fn claims<'a>(&'a self, state: &'a State, at: usize) -> impl Iterator<Item = (&'a Fence, Claim)> {
        let both = state.fences.iter().zip(self.requests[at].claims);
        both.filter_map(|(fence, claim)| Some((fence, claim?)))
    }

    pub fn message(&self, state: &State, at: usize) -> Sent {
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
    pub fn let_through(&self, state: &mut State, at: usize) {
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
}

/// F2, from one state to the next: no mark falls but by a reset, and none is lost in a crash.
pub fn check_marks(last: &State, state: &mut State) {
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

fn is_too_old((fence, claim): (&Fence, Claim)) -> bool {
    match claim {
        Claim::Token(token) => fence.seen > Some(token),
        Claim::Without { until_fenced } => until_fenced && fence.seen.is_some(),
    }
}
