//! How a request gets a [`Flight`]: at once where its token is open, else by waiting for its fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::berth::{Berth, Berths, leave};
use super::flight::Flight;
use super::roll::Place;
use super::slow::{self, SleeperId, Sleeps, Slow};
use super::{Chores, Fence, Keeper};
use crate::base::{Token, TokenFormat};
use crate::fence::{self, Arrival, Claim, Door, Effects, Key, Party, Step};
use crate::observe::{Decision, Decisions};
use crate::rules::Missing;

/// What a request presents for one resource.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The resource's name.
    pub name: &'a str,
    /// The token, or that there is none.
    pub claim: Claim,
    /// How the resource's tokens are written.
    pub format: TokenFormat,
    /// By how much the token may raise the fence at most, where that is bounded.
    pub max_step: Option<u64>,
}

impl<'a> Ask<'a> {
    /// For the resource `name`, whose tokens are written in `format`, of a rule that treats a lack of one as `missing`
    /// says.
    #[must_use]
    pub fn new(
        name: &'a str,
        token: Option<Token>,
        missing: Missing,
        format: TokenFormat,
        max_step: Option<u64>,
    ) -> Ask<'a> {
        let until_fenced = missing == Missing::PassUntilFenced;
        Ask {
            name,
            claim: token.map_or(Claim::Without { until_fenced }, Claim::Token),
            format,
            max_step,
        }
    }

    /// Counts a request of one rule with these asks that is let through; `raised` where it was the first with its token.
    pub fn count(asks: &[Ask<'_>], raised: bool, decisions: &Decisions) {
        let bare = asks.iter().filter(|ask| ask.is_bare()).count();
        decisions.count(match (raised, bare < asks.len()) {
            (true, _) => Decision::Raised,
            (false, true) => Decision::Admitted,
            (false, false) => Decision::Passed,
        });
        if bare > 0 {
            decisions.count_unfenced();
        }
    }

    /// Whether no token came for it. It is a write then.
    pub(super) fn is_bare(&self) -> bool {
        matches!(self.claim, Claim::Without { .. })
    }
}

/// Why a request was not admitted. `index` says which of its asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A higher token was seen.
    Stale {
        /// Which of the asks.
        index: usize,
        /// The highest token seen.
        highest: Token,
    },
    /// The resource is fenced by now, and no token came.
    Missing {
        /// Which of the asks.
        index: usize,
    },
    /// The token is too far above the highest seen. Nothing was raised.
    StepTooLarge {
        /// Which of the asks.
        index: usize,
        /// The highest token seen.
        highest: Token,
    },
    /// Too many wait already. Nothing was raised.
    Overloaded,
    /// The ledger could not make the mark durable; it is tried again by itself.
    Unstored,
    /// This instance does not own the fences. Nothing was raised, or what was is over with its tenure.
    NotOwner,
}

/// An admitted request.
#[derive(Debug)]
pub struct Admitted<'k> {
    /// What it may do now.
    pub flight: Flight<'k>,
    /// Whether it was the first to present its token.
    pub raised: bool,
}

/// How many requests of one listener wait, and may wait.
#[derive(Debug)]
pub struct Room {
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Room {
    /// Room for `waiting_max` requests.
    #[must_use]
    pub fn new(waiting_max: usize) -> Room {
        Room {
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    fn enter(&self) -> bool {
        self.waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < self.waiting_max).then_some(n + 1)
            })
            .is_ok()
    }

    fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Keeper {
    /// The way of nearly every request: all its tokens are open. No lock, nothing awaited. A read leaves no trace.
    #[must_use]
    pub fn quick<'k>(self: &'k Arc<Self>, asks: &[Ask<'_>], write: bool) -> Option<Flight<'k>> {
        if !self.is_owner() {
            return None;
        }
        if !write {
            return self.quick_read(asks);
        }
        let berths: Option<Berths> = asks
            .iter()
            .map(|ask| self.berth(ask).filter(Berth::is_open))
            .collect();
        Some(Flight::new(self, berths?, write))
    }

    /// The same for one ask. `before` is a flight with the same claim for the same fence, where there is such a one: then
    /// the fence need not be looked up.
    #[inline(always)] // what it gives is large, and is built where it is to stand
    #[must_use]
    pub fn quick_one<'k>(
        self: &'k Arc<Self>,
        ask: &Ask<'_>,
        write: bool,
        before: Option<&Flight<'_>>,
    ) -> Option<Flight<'k>> {
        if !self.is_owner() {
            return None;
        }
        if !write {
            return self.quick_read(std::slice::from_ref(ask));
        }
        let berth = match before.and_then(Flight::only_berth) {
            Some(berth) => berth.clone(),
            None => self.berth(ask)?,
        };
        berth.is_open().then(|| Flight::of_one(self, berth))
    }

    /// At the fence of an ask, whether it is open or not; `None` where it has to be raised first.
    #[inline(always)]
    fn berth(&self, ask: &Ask<'_>) -> Option<Berth> {
        let key = self.table.key(ask.name);
        let fence = match ask.claim {
            Claim::Token(_) => self.table.get(key)?,
            // Where nobody has presented a token, one without any may go. Where another ask keeps it from that,
            // `admit` takes the bare fence over.
            Claim::Without { .. } => self.table.get_or_bare(key),
        };
        Some(Berth::new(fence, ask.claim, key))
    }

    fn quick_read<'k>(self: &'k Arc<Self>, asks: &[Ask<'_>]) -> Option<Flight<'k>> {
        let open = |ask: &Ask<'_>| {
            let unseen = matches!(ask.claim, Claim::Without { .. });
            self.table
                .admits(self.table.key(ask.name), ask.claim)
                .unwrap_or(unseen)
        };
        match asks {
            [] => Some(Flight::unfenced()),
            _ => asks.iter().all(open).then(|| Flight::read(self)),
        }
    }

    /// Compares without arriving: what would be refused at this moment. Nothing is raised, and nothing waits.
    #[must_use]
    pub fn look(&self, asks: &[Ask<'_>]) -> Option<Refused> {
        if !self.is_owner() {
            return Some(Refused::NotOwner);
        }
        asks.iter().enumerate().find_map(|(index, ask)| {
            let fence = self.table.get(self.table.key(ask.name))?;
            let slot = fence.slow.lock();
            let highest = match slot.as_deref() {
                Some(slow) => slow.core.highest(),
                None => fence.door.mark(),
            }?;
            match ask.claim {
                Claim::Token(token) if token < highest => Some(Refused::Stale { index, highest }),
                Claim::Token(token) => {
                    let leaps = |max: u64| token.0 - highest.0 > u128::from(max);
                    ask.max_step
                        .is_some_and(leaps)
                        .then_some(Refused::StepTooLarge { index, highest })
                }
                Claim::Without { until_fenced } => until_fenced.then_some(Refused::Missing { index }),
            }
        })
    }

    /// The way of the others: compares, raises, and waits. Poll it; drop it to give up (the raise goes on).
    #[must_use]
    pub fn admit<'k, 'a>(
        self: &'k Arc<Self>,
        asks: &'a [Ask<'a>],
        room: &'a Room,
        write: bool,
    ) -> Admission<'k, 'a> {
        let mut waits: SmallVec<[Wait; 1]> = asks
            .iter()
            .enumerate()
            .map(|(index, ask)| {
                let key = self.table.key(ask.name);
                Wait {
                    fence: self.table.get_or_bare(key),
                    key,
                    claim: ask.claim,
                    index,
                    sleeper: None,
                }
            })
            .collect();
        waits.sort_by_key(|wait| wait.key); // the one fixed order in which locks are taken
        Admission {
            keeper: self,
            place: self.leased.then(|| self.roll.enter(self.roll.lapses())),
            asks,
            waits,
            room,
            inside: false,
            raised: false,
            write,
        }
    }
}

/// A request on its way to a flight; see [`Keeper::admit`].
#[derive(Debug)]
pub struct Admission<'k, 'a> {
    keeper: &'k Arc<Keeper>,
    /// Where ownership may lapse: wakes it when that happens.
    place: Option<Place>,
    asks: &'a [Ask<'a>],
    waits: SmallVec<[Wait; 1]>,
    room: &'a Room,
    inside: bool,
    raised: bool,
    write: bool,
}

#[derive(Debug)]
struct Wait {
    fence: Fence,
    key: Key,
    claim: Claim,
    index: usize,
    sleeper: Option<SleeperId>,
}

impl<'k> Admission<'k, '_> {
    /// Arrives at the fences, for the first time or again.
    ///
    /// Pending means that the waker is registered with each of them.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Admitted<'k>, Refused>> {
        if self.is_lapsed(cx) {
            return Poll::Ready(Err(Refused::NotOwner));
        }
        let may_wait = self.inside || self.room.enter();
        self.inside = may_wait;
        let (arrival, chores) = self.arrive(may_wait, cx.waker());
        for (wait, chores) in self.waits.iter().zip(chores) {
            self.keeper.carry_out(&wait.fence, chores);
        }
        match arrival {
            Arrival::Waits { raised } => {
                self.raised |= raised;
                Poll::Pending
            }
            Arrival::Admitted => {
                let raised = self.raised;
                self.leave();
                self.waits.sort_by_key(|wait| wait.index);
                let berth = |wait: Wait| Berth::new(wait.fence, wait.claim, wait.key);
                let berths = self.waits.drain(..).map(berth).collect();
                Poll::Ready(Ok(Admitted {
                    flight: Flight::new(self.keeper, berths, self.write),
                    raised,
                }))
            }
            Arrival::Stale { index, highest } => Poll::Ready(Err(Refused::Stale {
                index: self.waits[index].index,
                highest,
            })),
            Arrival::Missing { index } => Poll::Ready(Err(Refused::Missing {
                index: self.waits[index].index,
            })),
            Arrival::StepTooLarge { index, highest } => Poll::Ready(Err(Refused::StepTooLarge {
                index: self.waits[index].index,
                highest,
            })),
            Arrival::Overloaded => Poll::Ready(Err(Refused::Overloaded)),
            Arrival::Unstored => Poll::Ready(Err(Refused::Unstored)),
        }
    }

    fn is_lapsed(&mut self, cx: &mut Context<'_>) -> bool {
        !self.keeper.is_owner()
            || self
                .place
                .as_mut()
                .is_some_and(|place| place.poll_lapsed(cx).is_ready())
    }

    /// Whether what it waits for is the ledger, and not older flights.
    #[must_use]
    pub fn waits_for_the_store(&self) -> bool {
        self.waits.iter().any(|wait| {
            let slot = wait.fence.slow.lock();
            slot.as_ref().is_some_and(|slow| {
                matches!(slow.core.step(), Step::Committing { .. } | Step::Unstored { .. })
            })
        })
    }

    fn arrive(&mut self, may_wait: bool, waker: &Waker) -> (Arrival, SmallVec<[Chores; 1]>) {
        let now = self.keeper.clock.now();
        let mut slots: SmallVec<[MutexGuard<'_, Option<Box<Slow>>>; 1]> = SmallVec::new();
        let mut sleepers: SmallVec<[&mut Option<SleeperId>; 1]> = SmallVec::new();
        let mut doors: SmallVec<[&Door; 1]> = SmallVec::new();
        let claims: SmallVec<[(Claim, Option<u64>); 1]> = self
            .waits
            .iter()
            .map(|wait| (wait.claim, self.asks[wait.index].max_step))
            .collect();
        for wait in &mut self.waits {
            let ask = &self.asks[wait.index];
            let mut slot = wait.fence.slow.lock();
            slow::open(&mut slot, &wait.fence).is_named(ask.name, ask.format);
            slots.push(slot);
            sleepers.push(&mut wait.sleeper);
            doors.push(&wait.fence.door);
        }
        let mut parties: SmallVec<[Party<'_>; 1]> = SmallVec::new();
        for (slot, (door, (claim, max_step))) in slots.iter_mut().zip(doors.iter().zip(&claims)) {
            let core = &mut slot.as_deref_mut().expect("opened above").core;
            parties.push(Party {
                core,
                door,
                claim: *claim,
                max_step: *max_step,
                effects: Effects::default(),
            });
        }
        let arrival = fence::arrive(&mut parties, may_wait, now, self.keeper.hold);
        let effects: SmallVec<[Effects; 1]> = parties.iter().map(|party| party.effects).collect();
        drop(parties);
        let mut chores = SmallVec::new();
        for (at, (slot, sleeper)) in slots.iter_mut().zip(sleepers).enumerate() {
            let slow = slot.as_deref_mut().expect("opened above");
            if effects[at].wake && slow.since.is_none() {
                slow.since = Some(now);
            }
            // Before this request registers itself: it need not wake itself.
            chores.push(slow.chores(effects[at]));
            match arrival {
                Arrival::Waits { .. } => slow.sleep(sleeper, Sleeps::Waiting, waker),
                Arrival::Stale { index, .. }
                | Arrival::Missing { index }
                | Arrival::StepTooLarge { index, .. } => slow.refused += u64::from(index == at),
                Arrival::Admitted | Arrival::Overloaded | Arrival::Unstored => {}
            }
            slow::rest(slot);
        }
        (arrival, chores)
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.inside) {
            self.room.leave();
        }
        for wait in &mut self.waits {
            if let Some(id) = wait.sleeper.take() {
                let mut slot = wait.fence.slow.lock();
                if let Some(slow) = slot.as_deref_mut() {
                    slow.forget(id);
                    slow::rest(&mut slot);
                }
            }
        }
    }
}

impl Drop for Admission<'_, '_> {
    fn drop(&mut self) {
        self.leave();
        for wait in self.waits.drain(..) {
            leave(wait.fence, wait.key, self.keeper);
        }
    }
}
